//! The reads of `tickr verify`, and the checks that operators requested.
//!
//! - `evidence.rs`: the contents of the tables, page by page.
//! - `limits.rs`: limits by key.
//! - `links.rs`: jobs with parents, and batches.
//! - `order.rs`: the places of jobs with order keys.
//! - `startable.rs`: jobs that could start now and wait nevertheless.
//! - `verifications.rs`: checks that operators requested, and their results.

pub(super) mod evidence;
pub(super) mod limits;
pub(super) mod links;
pub(super) mod order;
pub(super) mod startable;
pub(super) mod verifications;
