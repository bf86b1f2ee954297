//! Attempts: claimed, leased, settled and lost.
//!
//! - `breakers.rs`: counts the ends of calls for the breakers of their hosts.
//! - `checkpoints.rs`: saves and reads checkpoints of attempts that run.
//! - `claim.rs`: starts attempts.
//! - `claim_batches.rs`: finds the open attempts of a runner.
//! - `complete.rs`: settles plain successes.
//! - `deferred.rs`: attempts whose verdict comes through the API.
//! - `lease.rs`: the heartbeat of a runner, and the end of attempts whose lease has ended.
//! - `limited.rs`: claims of jobs that count against limits by key.
//! - `permits.rs`: permits of queues with a limit.
//! - `readers.rs`: the runners that can still try to read a job that another runner cannot read.
//! - `remote.rs`: attempts of remote workers.
//! - `renewal.rs`: renews leases and writes progress.
//! - `settle.rs`: settles all other attempts.
//! - `settlement.rs`: what a runner reports about an attempt, and the answer.
//! - `sizes.rs`: sizes of jobs that a remote worker is about to get.
//! - `suspects.rs`: ends a suspect at once when its process is known to be dead.

pub(super) mod breakers;
pub(super) mod checkpoints;
pub(super) mod claim;
pub(super) mod claim_batches;
pub(super) mod complete;
pub(super) mod deferred;
pub(super) mod lease;
pub(super) mod limited;
pub(super) mod permits;
pub(super) mod readers;
pub(super) mod remote;
pub(super) mod renewal;
pub(super) mod settle;
pub(super) mod settlement;
pub(super) mod sizes;
pub(super) mod suspects;
