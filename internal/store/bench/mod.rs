//! For `tickr bench` alone: the bare writes, the counters of the server and tables filled before a run.
//!
//! - `bare.rs`: the writes of the product without a runner.
//! - `growth.rs`: fills the tables before a run.
//! - `links.rs`: rows of the outbox, and the times of batches and of graphs.
//! - `server_counters.rs`: readings of the server's counters.
//! - `waits.rs`: how long jobs waited, and how many are parked.

pub(super) mod bare;
pub(super) mod growth;
pub(super) mod links;
pub(super) mod server_counters;
pub(super) mod waits;
