//! Jobs: accepted, read, searched, counted and changed.
//!
//! - `actions.rs`: cancel, retry and run now, for one job.
//! - `backlog.rs`: counts of unfinished jobs by queue and state.
//! - `change.rs`: changes of the due time or the priority of one job.
//! - `condition.rs`: preconditions of a change.
//! - `conditions.rs`: the conditions of a filter as SQL.
//! - `demand.rs`: the jobs of one queue that need workers now.
//! - `dependencies.rs`: jobs that wait for their parents.
//! - `differences.rs`: samples of failed jobs and of jobs that passed, to compare their traits.
//! - `due.rs`: looks up and counts unfinished jobs, to compare the index with them.
//! - `ended.rs`: counts of ended jobs by queue and state.
//! - `expire.rs`: the end of jobs that did not start before their expiry.
//! - `explain.rs`: the position of a job that waits.
//! - `held.rs`: counts of held jobs by queue and reason.
//! - `idempotent_inserts.rs`: accepts jobs with an idempotency key.
//! - `insert.rs`: accepts jobs.
//! - `key_holders.rs`: the jobs that hold unique keys.
//! - `kind_queues.rs`: the pairs of kind and queue that jobs have.
//! - `lanes.rs`: reads lanes of unfinished jobs in the order of their due times.
//! - `limits.rs`: why a job is parked, and the keys of a limit.
//! - `order.rs`: the jobs in front of a job with the same order key.
//! - `order_keys.rs`: the order keys that have jobs.
//! - `pending.rs`: payloads of unfinished jobs, to check if a binary can read them.
//! - `read.rs`: one job with its attempts, or a page of jobs.
//! - `search.rs`: jobs that match a filter.
//! - `stats.rs`: counts for people and for metrics.
//! - `subjects.rs`: the keys of a job for whose rows its changes take turns.
//! - `survey.rs`: how many jobs of a filter there are by time, by state and by their other facts.
//! - `timeline.rs`: the facts of which the timeline of a job is made.
//! - `unique_keys.rs`: accepts jobs with unique keys.
//! - `watch.rs`: revisions of many jobs.

pub(super) mod actions;
pub(super) mod backlog;
pub(super) mod change;
pub(super) mod condition;
pub(super) mod conditions;
pub(super) mod demand;
pub(super) mod dependencies;
pub(super) mod differences;
pub(super) mod due;
pub(super) mod ended;
pub(super) mod expire;
pub(super) mod explain;
pub(super) mod held;
pub(super) mod idempotent_inserts;
pub(super) mod insert;
pub(super) mod key_holders;
pub(super) mod kind_queues;
pub(super) mod lanes;
pub(super) mod limits;
pub(super) mod order;
pub(super) mod order_keys;
pub(super) mod pending;
pub(super) mod read;
pub(super) mod search;
pub(super) mod stats;
pub(super) mod subjects;
pub(super) mod survey;
pub(super) mod timeline;
pub(super) mod unique_keys;
pub(super) mod watch;
