//! The table of metrics. The help text, the buckets, the row in `docs/METRICS.md` and the expectations of the tests all
//! come from here. To add a metric, add a row, and count where the event happens.
//!
//! Label values come from closed sets: kinds of this runner, queues that a living runner serves, verdicts, states. Ids
//! and texts chosen by a caller are not permitted: each value would create a time series that never ends.

use std::fmt::Write as _;

use metrics::Unit;

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Name on the metrics page.
    pub name: &'static str,
    /// Type of the metric.
    pub form: Form,
    /// Labels, in the order of the table.
    pub labels: &'static [&'static str],
    /// Scope of the value.
    pub of: Of,
    /// Description in one line.
    pub help: &'static str,
}

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// Increases only, while the process lives.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// A distribution with these upper bounds.
    Histogram(&'static [f64]),
}

/// Scope of a metric's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// A value of this process. Add the values of all runners.
    Runner,
    /// A value of MySQL or Redis, the same from every runner. Take the maximum, never the sum.
    All,
}

/// Bounds from a start within a millisecond to one that is an hour late.
const LATE: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0];
/// Bounds from a handler that does nothing to one that uses the maximum time limit of a day.
const RUN: &[f64] =
    &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 86400.0];
/// Bounds from a commit on a fast disk to fifteen seconds, after which a connection counts as dead.
const WRITE: &[f64] = &[0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0];
/// Bounds up to the longest wait for a result, and beyond.
const REQUEST: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Bounds for the number of items of a batch.
const ROWS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

const fn row(name: &'static str, form: Form, of: Of, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, form, labels, of, help }
}

use Form::{Counter, Gauge, Histogram};
use Of::{All, Runner};

/// All metrics, in the order of an investigation.
pub static METRICS: &[Metric] = &[
    // Are jobs in time, and do they succeed?
    row("tickr_lateness_seconds", Histogram(LATE), Runner, &["queue"], "From the time an attempt was due to its start"),
    row("tickr_wait_seconds", Histogram(LATE), Runner, &["queue"], "From a job's acceptance to its first start"),
    row(
        "tickr_claim_seconds",
        Histogram(WRITE),
        Runner,
        &[],
        "From the delivery of a due id to a worker to its committed claim; without the jobs of an order key that are claimed with the end of the one in front",
    ),
    row(
        "tickr_run_seconds",
        Histogram(RUN),
        Runner,
        &["kind"],
        "From the start of a handler to its end; of a remote worker, from the claim of a job to the request with its verdict that MySQL took",
    ),
    row("tickr_settle_seconds", Histogram(WRITE), Runner, &[], "From a verdict to its commit, including repeats"),
    row(
        "tickr_jobs_accepted_total",
        Counter,
        Runner,
        &["kind"],
        "Jobs accepted: enqueued, or requested by another job as follow-ups",
    ),
    row("tickr_attempts_total", Counter, Runner, &["kind", "verdict"], "Attempts that ended, by verdict"),
    row("tickr_workers", Gauge, Runner, &[], "Workers"),
    row(
        "tickr_fetching",
        Gauge,
        Runner,
        &[],
        "1 while MySQL answers the heartbeat of this process, also without a free worker; 0 while it does not, and the \
         process takes no new work",
    ),
    row("tickr_busy_workers", Gauge, Runner, &[], "Workers with a running attempt"),
    // How much work waits?
    row(
        "tickr_jobs",
        Gauge,
        All,
        &["queue", "state"],
        "Unfinished jobs. Counting stops at a hundred thousand in total, shared among the lanes; above that, a lower bound",
    ),
    row(
        "tickr_jobs_ended",
        Gauge,
        All,
        &["queue", "state"],
        "Jobs that ended in this state since the beginning; decreases when an operator retries one",
    ),
    row(
        "tickr_oldest_due_seconds",
        Gauge,
        All,
        &[],
        "Time since the oldest overdue job became due; 0 if none is overdue",
    ),
    row("tickr_index_ready", Gauge, All, &["queue"], "Entries in the ready lists of a queue that this runner serves"),
    row("tickr_index_waiting", Gauge, All, &[], "Entries in Redis that are not due yet"),
    row("tickr_runners", Gauge, All, &[], "Registered runners whose last heartbeat is not older than their lease"),
    row(
        "tickr_runners_with_workers",
        Gauge,
        All,
        &[],
        "Those of tickr_runners that have workers, remote workers included; the others serve the API only",
    ),
    row("tickr_runners_silent", Gauge, All, &[], "Registered runners whose last heartbeat is older than their lease"),
    row(
        "tickr_breakers_open",
        Gauge,
        All,
        &[],
        "Open breakers: hosts to which no calls start after repeated failures; counted up to 100,000",
    ),
    row(
        "tickr_held_jobs",
        Gauge,
        All,
        &["queue", "reason"],
        "Jobs that are held: another job with their order key is in front, a limit by key has no room, the breaker of their \
         host is open, or parents have not ended. Counting stops at a hundred thousand in total, shared among the lanes",
    ),
    row("tickr_parked_jobs", Gauge, All, &[], "Jobs that wait for room at a limit by key; counted up to 100,000"),
    row("tickr_blocked_jobs", Gauge, All, &[], "Jobs that wait for their parents; counted up to 100,000"),
    row("tickr_remote_polls", Gauge, Runner, &[], "Requests for jobs of remote workers that wait at this process"),
    row(
        "tickr_deferred_attempts",
        Gauge,
        All,
        &[],
        "Attempts on which other systems work, which finish them through the API; counted up to 100,000",
    ),
    row(
        "tickr_batches_unfinished",
        Gauge,
        All,
        &[],
        "Batches that have not ended, open ones included; counted up to 100,000",
    ),
    row(
        "tickr_order_keys_blocked",
        Gauge,
        All,
        &[],
        "Order keys that a failed job holds up, among the newest 10,000 open dead letters",
    ),
    row("tickr_outbox_moved_total", Counter, Runner, &[], "Rows of the outbox that this process moved"),
    row("tickr_outbox_rejected_total", Counter, Runner, &[], "Rows of the outbox that this process rejected"),
    row("tickr_outbox_rejected", Gauge, All, &[], "Rejected rows of the outbox; counted up to 10,000"),
    row(
        "tickr_outbox_oldest_seconds",
        Gauge,
        All,
        &[],
        "Time since the oldest row of the outbox was inserted, or copied to it; 0 if there is none",
    ),
    row("tickr_outbox_copied_total", Counter, Runner, &["source"], "Rows copied from the outbox of an application"),
    row(
        "tickr_outbox_source_up",
        Gauge,
        All,
        &["source"],
        "1 while a runner copies rows from this outbox of an application, else 0",
    ),
    row(
        "tickr_outbox_source_waiting",
        Gauge,
        All,
        &["source"],
        "Rows that waited in this outbox of an application when its server last answered; counted up to 10,000",
    ),
    row(
        "tickr_outbox_source_oldest_seconds",
        Gauge,
        All,
        &["source"],
        "How long the oldest of these rows had waited then, by the clock of that server; 0 if there was none",
    ),
    row("tickr_heartbeat_age_seconds", Gauge, All, &[], "Time since the oldest last heartbeat of a registered runner"),
    row(
        "tickr_dead_letters",
        Gauge,
        All,
        &["kind"],
        "Open dead letters: failed jobs that were neither replayed nor discarded; of all kinds together, the oldest and the newest 100,000 are counted",
    ),
    row(
        "tickr_dead_letter_oldest_seconds",
        Gauge,
        All,
        &["kind"],
        "Age of the oldest open dead letter that is counted; 0 if there is none",
    ),
    row("tickr_alerts_total", Counter, Runner, &["alert"], "Alert messages sent (fired or resolved), by rule"),
    row("tickr_operation_jobs_total", Counter, Runner, &[], "Jobs that bulk operations have changed"),
    // Do the servers answer?
    row(
        "tickr_up",
        Gauge,
        Runner,
        &["server"],
        "1 if the server, mysql or redis, answered the last reading in time, and mysql committed a write; otherwise 0",
    ),
    row("tickr_reading_age_seconds", Gauge, Runner, &[], "Age of the values that are the same from every runner"),
    row(
        "tickr_pool_connections",
        Gauge,
        Runner,
        &["pool", "state"],
        "Connections to MySQL, idle and busy: for controls, loops, changes (pool steering), reads, reports, sources, the requests of remote workers (workers) and their heartbeats (beats)",
    ),
    row(
        "tickr_commit_seconds",
        Histogram(WRITE),
        Runner,
        &["write"],
        "One write of a group commit, from its batch to its commit",
    ),
    row("tickr_batch_rows", Histogram(ROWS), Runner, &["write"], "Items that shared one write of a group commit"),
    row(
        "tickr_batches_split_total",
        Counter,
        Runner,
        &["write"],
        "Writes of a group commit that were split, because another session held a lock on one of their rows",
    ),
    row(
        "tickr_store_repeats_total",
        Counter,
        Runner,
        &["cause"],
        "Store calls that were repeated after a deadlock, a lock wait timeout or a broken connection",
    ),
    row(
        "tickr_store_server_changes_total",
        Counter,
        Runner,
        &[],
        "Times that the runner went on to another MySQL server of its mysql_url",
    ),
    // Is the index complete?
    row(
        "tickr_index_state",
        Gauge,
        Runner,
        &["state"],
        "1 for the current state of the index as this runner sees it: fast, rebuilding or degraded",
    ),
    row(
        "tickr_index_server",
        Gauge,
        Runner,
        &["mode", "server"],
        "1 for the Redis server that holds the index, found by redis_url (single), sentinels (sentinel) or the nodes of a Redis Cluster (cluster); 0 for those before it",
    ),
    row(
        "tickr_index_server_changes_total",
        Counter,
        Runner,
        &[],
        "Times that the runner went on to another Redis server, after a failover or a moved slot",
    ),
    row(
        "tickr_index_drift",
        Gauge,
        Runner,
        &[],
        "Entries that the last pass of the reconciler found missing or wrong in Redis, and repaired",
    ),
    row(
        "tickr_drift_repaired_total",
        Counter,
        Runner,
        &[],
        "Overdue jobs that were missing from Redis and were put back",
    ),
    row("tickr_rebuilds_total", Counter, Runner, &[], "Times that the index was rebuilt from the store"),
    row(
        "tickr_hints_lost_total",
        Counter,
        Runner,
        &[],
        "Hints that Redis did not accept; the reconciler puts the jobs into the index later",
    ),
    row("tickr_jobs_parked_total", Counter, Runner, &["limit"], "Jobs that found no room at a limit by key"),
    row(
        "tickr_breaker_openings_total",
        Counter,
        Runner,
        &["limit"],
        "Breakers of hosts that opened after repeated failures",
    ),
    row("tickr_claims_dropped_total", Counter, Runner, &[], "Ids that were delivered twice or too late"),
    // Did something fail?
    row(
        "tickr_leases_lost_total",
        Counter,
        Runner,
        &[],
        "Attempts whose lease was lost before their verdict could be written",
    ),
    row(
        "tickr_remote_given_back_total",
        Counter,
        Runner,
        &[],
        "Attempts of remote workers that were given back because they did not arrive or their worker left",
    ),
    row(
        "tickr_suspects_total",
        Counter,
        Runner,
        &[],
        "Times that a job was run in a process of its own, because the last two runners died while they executed it",
    ),
    row("tickr_suspects_running", Gauge, Runner, &[], "Jobs that currently run in processes of their own"),
    row(
        "tickr_blocked_handlers_total",
        Counter,
        Runner,
        &["kind"],
        "Handlers that the runner stopped waiting for, because they block their thread and do not end",
    ),
    row("tickr_loop_panics_total", Counter, Runner, &["loop"], "Panics of the engine's loops; the loops are restarted"),
    // Schedules, retention, the API.
    row(
        "tickr_schedule_ticks_total",
        Counter,
        Runner,
        &["outcome", "cause"],
        "Ticks of schedules: fired, or skipped with the cause",
    ),
    row(
        "tickr_schedule_lateness_seconds",
        Histogram(LATE),
        Runner,
        &[],
        "From the time of a tick to its job's acceptance",
    ),
    row("tickr_ticks_purged_total", Counter, Runner, &[], "Ticks deleted after the end of their retention"),
    row("tickr_jobs_purged_total", Counter, Runner, &[], "Ended jobs deleted after the end of their retention"),
    row(
        "tickr_answers_purged_total",
        Counter,
        Runner,
        &[],
        "Deleted responses that were stored for an Idempotency-Key",
    ),
    row(
        "tickr_http_request_seconds",
        Histogram(REQUEST),
        Runner,
        &["route", "method", "status"],
        "From the head of a request to the head of its response, by route template and status class",
    ),
    row("tickr_http_connections", Gauge, Runner, &[], "Open connections of clients"),
    row(
        "tickr_http_clients_turned_away_total",
        Counter,
        Runner,
        &[],
        "Clients refused because too many connections were open",
    ),
    row("tickr_http_clients_cut_off_total", Counter, Runner, &[], "Clients disconnected because they were too slow"),
    row(
        "tickr_searches_refused_total",
        Counter,
        Runner,
        &[],
        "Searches, counts and other heavy reads refused because too many were running",
    ),
    row(
        "tickr_controls_age_seconds",
        Gauge,
        Runner,
        &[],
        "Age of this runner's copy of queues, limits, kinds and drain requests; it is read every second",
    ),
    row("tickr_unauthorized_total", Counter, Runner, &[], "Requests without a valid API token or API key"),
    row(
        "tickr_spans_total",
        Counter,
        Runner,
        &["outcome"],
        "Spans for the collector: exported, dropped because the queue was full, or failed because the collector did not accept them",
    ),
    row(
        "tickr_samples_errors_total",
        Counter,
        Runner,
        &[],
        "Failed writes and deletions of the history behind the charts; they are tried again",
    ),
    row("tickr_samples_lost_total", Counter, Runner, &[], "Rows of the history behind the charts that were lost"),
    // Which build runs?
    row("tickr_build_info", Gauge, Runner, &["version"], "1; the label is the version of the build"),
    row("tickr_start_time_seconds", Gauge, Runner, &[], "Start of the process, in unix seconds"),
];

impl Metric {
    /// Return the type of the metric for the table and for the TYPE line of the page.
    #[must_use]
    pub const fn type_word(&self) -> &'static str {
        match self.form {
            Form::Counter => "counter",
            Form::Gauge => "gauge",
            Form::Histogram(_) => "histogram",
        }
    }

    /// Describe the metric to the recorder, and let counters without labels begin at 0. If a counter appeared only with
    /// its first increment, that increment would be missing from every rate.
    pub(super) fn announce(&self) {
        let unit = if self.name.ends_with("_seconds") { Unit::Seconds } else { Unit::Count };
        match self.form {
            Form::Counter => metrics::describe_counter!(self.name, unit, self.help),
            Form::Gauge => metrics::describe_gauge!(self.name, unit, self.help),
            Form::Histogram(_) => metrics::describe_histogram!(self.name, unit, self.help),
        }
        if self.form == Form::Counter && self.labels.is_empty() {
            metrics::counter!(self.name).increment(0);
        }
    }
}

/// Return the table of `docs/METRICS.md`.
#[must_use]
pub fn metrics_table() -> String {
    let mut out = String::from("| Metric | Type | Labels | Of | Meaning |\n|---|---|---|---|---|\n");
    for metric in METRICS {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let of = match metric.of {
            Of::Runner => "runner",
            Of::All => "all",
        };
        let (name, form, labels) = (metric.name, metric.type_word(), labels.join(" "));
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| `{name}` | {form} | {labels} | {of} | {} |", metric.help);
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_say_what_they_count() {
        let mut names = BTreeSet::new();
        for metric in METRICS {
            assert!(names.insert(metric.name), "{} is there twice", metric.name);
            assert!(metric.name.starts_with("tickr_"), "{}", metric.name);
            assert_eq!(metric.form == Form::Counter, metric.name.ends_with("_total"), "{}", metric.name);
            assert!(!metric.help.contains('|') && !metric.help.ends_with('.'), "{}", metric.name);
            if let Form::Histogram(bounds) = metric.form {
                assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]), "{}", metric.name);
            }
        }
    }
}
