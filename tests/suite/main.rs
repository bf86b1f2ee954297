//! Every integration test in one program: linked once, with one pair of private servers, and with a database and a key
//! prefix for each test. Tests wait for events with a deadline. They wait for time to pass only where an outage has to
//! last, or where nothing must happen.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]
#![expect(clippy::large_futures, reason = "the future of a test is made once, and its size costs nothing")]

mod support;

mod ahead;
mod api;
mod api_keys;
mod audit;
mod backlog;
mod batches;
mod bench;
mod blackbox;
mod bounds;
mod callbacks;
mod cancel;
mod change;
mod change_summary;
mod claims;
mod cli;
mod client;
mod clocks;
mod contract;
mod dashboard;
mod dead_letters;
mod dependencies;
mod deploys;
mod docs;
mod driver;
mod durability;
mod engine;
mod enqueue_once;
mod events;
mod examples;
mod expiry;
mod explain;
mod failover;
mod flood;
mod follow_ups;
mod history;
mod import;
mod index;
mod janitor;
mod key_limits;
mod kinds;
mod layering;
mod leases;
mod limits;
mod logs;
mod metrics;
mod migrations;
mod mutations;
mod mysql_faults;
mod openapi;
mod operations;
mod order;
mod outbox;
mod panics;
mod poison;
mod problems;
mod prose;
mod queues;
mod readme;
mod receivers;
mod recovery;
mod redis_faults;
mod report;
mod retries;
mod rollout;
mod runners;
mod schedules;
mod search;
mod security;
mod services;
mod shared_reports;
mod shutdown;
mod starvation;
mod store;
mod traces;
mod unique_keys;
mod verify;
mod versions;
mod workers;
