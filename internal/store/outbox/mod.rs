//! The outbox: jobs that other programs request with a plain INSERT in their own transactions.
//!
//! - `answers.rs`: rows that became no jobs, because other jobs have their unique keys.
//! - `heads.rs`: locks the rows of a page, and reads their sizes.
//! - `insert.rs`: inserts rows in a transaction of the caller.
//! - `leader.rs`: the runner that looks for rows, and the state of the outbox.
//! - `locks.rs`: takes the locks of a row without a wait.
//! - `pages.rs`: moves rows to `jobs` and `owed`.
//! - `rejected.rs`: rows that cannot become jobs.
//! - `rows.rs`: rows, as applications write them.
//!
//! The table may also be in the database of an application, on another server:
//! - `source.rs`: the connection to such an outbox, and all statements on it.
//! - `deletion.rs`: the deletion of rows there, some of which other sessions lock.
//! - `source_rows.rs`: its rows, which may have any form.
//! - `source_error.rs`: its errors, in words for the operator.
//! - `copies.rs`: copies its rows to the outbox of tickr, each of them once.

pub(super) mod answers;
pub(super) mod copies;
mod deletion;
pub(super) mod heads;
pub(super) mod insert;
pub(super) mod leader;
pub(super) mod locks;
pub(super) mod pages;
pub(super) mod rejected;
pub(super) mod rows;
pub(super) mod source;
pub(super) mod source_error;
pub(super) mod source_rows;
