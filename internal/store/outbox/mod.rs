//! The outbox: jobs that other programs request with a plain INSERT in their own transactions.
//!
//! - `insert.rs`: inserts rows in a transaction of the caller.
//! - `leader.rs`: the runner that looks for rows, and the state of the outbox.
//! - `pages.rs`: moves rows to `jobs` and `owed`.
//! - `rejected.rs`: rows that cannot become jobs.
//! - `rows.rs`: rows, as applications write them.

pub(super) mod insert;
pub(super) mod leader;
pub(super) mod pages;
pub(super) mod rejected;
pub(super) mod rows;
