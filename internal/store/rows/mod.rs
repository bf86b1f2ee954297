//! Rows that several folders of the store need: their types, and statements about one table.
//!
//! These files use [`sql`](super::sql) and each other, and no other folder.
//!
//! - `aged.rs`: removes rows by their age.
//! - `alerts.rs`: rows of `alerts`.
//! - `attempt_logs.rs`: rows of `attempt_logs`.
//! - `breakers.rs`: columns of `limit_keys` about the breaker of a host.
//! - `checkpoints.rs`: rows of `checkpoints`.
//! - `dead_letters.rs`: rows of `dead_letters`.
//! - `jobs.rs`: rows of new jobs, and their receipts.
//! - `ledger.rs`: lines of the ledger, `attempts`.
//! - `limits.rs`: rows of `limit_keys`, `limit_slots` and `limit_waits`.
//! - `links.rs`: rows of `job_parents`, `blocked_jobs`, `parent_ends`, `batch_jobs` and `batch_changes`.
//! - `locked_keys.rs`: keys of limits that another session keeps locked.
//! - `order.rs`: rows of `order_keys` and `order_places`.
//! - `owed.rs`: rows of `owed`.
//! - `tallies.rs`: rows of `tallies`.
//! - `unique_keys.rs`: rows of `unique_keys`.

pub(super) mod aged;
pub(super) mod alerts;
pub(super) mod attempt_logs;
pub(super) mod breakers;
pub(super) mod checkpoints;
pub(super) mod dead_letters;
pub(super) mod jobs;
pub(super) mod ledger;
pub(super) mod limits;
pub(super) mod links;
pub(super) mod locked_keys;
pub(super) mod order;
pub(super) mod owed;
pub(super) mod tallies;
pub(super) mod unique_keys;
