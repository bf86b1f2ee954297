//! Batches: jobs that belong together, with callbacks that follow from their ends.
//!
//! - `callbacks.rs`: the jobs that a batch starts.
//! - `cancel.rs`: the cancel of a batch with all of its jobs.
//! - `count.rs`: adds up the ends of jobs, ends batches, and starts their callbacks.
//! - `create.rs`: new batches.
//! - `read.rs`: batches for people.
//! - `rows.rs`: rows of `batches`.

pub(super) mod callbacks;
pub(super) mod cancel;
pub(super) mod count;
pub(super) mod create;
pub(super) mod read;
pub(super) mod rows;
