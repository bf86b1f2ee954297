//! Removal of what is older than its retention, and of what an operator deletes.
//!
//! - `forget.rs`: removes stopped runners and old records of batches, and sums up tallies that no longer change.
//! - `purge.rs`: removes what is older than its retention.
//! - `remove.rs`: removes ended jobs.
//! - `times.rs`: retention times of ended jobs.

pub(super) mod forget;
pub(super) mod purge;
pub(super) mod remove;
pub(super) mod times;
