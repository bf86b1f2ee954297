//! The table of metrics. What the page says about a metric, its buckets, its line in `docs/METRICS.md` and what the
//! tests expect all come from here. To add one, add a row, and count where it happens.
//!
//! Labels are words of a closed set: kinds that this runner has, queues that some living runner serves, verdicts, states.
//! Never an id, and never a word that a caller may choose: those would be a series each, for ever.

use std::fmt::Write as _;

use metrics::Unit;

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// As on the page.
    pub name: &'static str,
    /// What it counts like.
    pub form: Form,
    /// Its labels, in the order of the table.
    pub labels: &'static [&'static str],
    /// Whose figure it is.
    pub of: Of,
    /// One line about it.
    pub help: &'static str,
}

/// What a metric counts like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// Only grows while the process lives.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution over these upper bounds.
    Histogram(&'static [f64]),
}

/// Whose figure a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Of this process: add those of all runners.
    Runner,
    /// Of MySQL or Redis, and the same from every runner: take the largest, never the sum.
    All,
}

/// From a start within a millisecond to one that is an hour late.
const LATE: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0];
/// From a handler that does nothing to one that takes the day it may take.
const RUN: &[f64] =
    &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 86400.0];
/// From a commit on a fast disk to the fifteen seconds after which a line counts as dead.
const WRITE: &[f64] = &[0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0];
/// To the longest wait for a result and beyond.
const REQUEST: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Items of a batch.
const ROWS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

const fn row(name: &'static str, form: Form, of: Of, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, form, labels, of, help }
}

use Form::{Counter, Gauge, Histogram};
use Of::{All, Runner};

/// Every metric, in the order in which people ask.
pub static METRICS: &[Metric] = &[
    // Is it in time, and does it work?
    row("tickr_lateness_seconds", Histogram(LATE), Runner, &["queue"], "From the time an attempt was due to its start"),
    row("tickr_wait_seconds", Histogram(LATE), Runner, &["queue"], "From a job's acceptance to its first start"),
    row(
        "tickr_claim_seconds",
        Histogram(WRITE),
        Runner,
        &[],
        "From a due id in a worker's hand to its committed claim",
    ),
    row("tickr_run_seconds", Histogram(RUN), Runner, &["kind"], "From the start of a handler to its end"),
    row("tickr_settle_seconds", Histogram(WRITE), Runner, &[], "From a verdict to its commit, repeats included"),
    row(
        "tickr_jobs_accepted_total",
        Counter,
        Runner,
        &["kind"],
        "Jobs accepted: enqueued, or asked for by another job",
    ),
    row("tickr_attempts_total", Counter, Runner, &["kind", "verdict"], "Attempts that ended, by what they came to"),
    row("tickr_worker_slots", Gauge, Runner, &[], "Worker slots"),
    row(
        "tickr_fetching",
        Gauge,
        Runner,
        &[],
        "1 while the heartbeat of this runner is answered; 0 while it takes no new work because it is not",
    ),
    row("tickr_worker_slots_busy", Gauge, Runner, &[], "Worker slots with a running attempt"),
    // How much waits?
    row(
        "tickr_jobs",
        Gauge,
        All,
        &["queue", "state"],
        "Unfinished jobs. A hundred thousand are counted, each line up to its share; beyond that a floor",
    ),
    row(
        "tickr_jobs_ended",
        Gauge,
        All,
        &["queue", "state"],
        "Jobs that ended so, ever; falls when an operator retries one",
    ),
    row("tickr_oldest_due_seconds", Gauge, All, &[], "How long the oldest overdue job has been due; 0 when none is"),
    row("tickr_index_ready", Gauge, All, &["queue"], "Entries in the ready lists of a queue that this runner serves"),
    row("tickr_index_waiting", Gauge, All, &[], "Entries that wait in Redis for their time"),
    row("tickr_runners", Gauge, All, &[], "Runners that are on the list and were heard of within two minutes"),
    row("tickr_heartbeat_age_seconds", Gauge, All, &[], "How long the quietest runner on the list has been silent"),
    row("tickr_dead_letters", Gauge, All, &["kind"], "Failed jobs that nobody has replayed or discarded"),
    row(
        "tickr_dead_letter_oldest_seconds",
        Gauge,
        All,
        &["kind"],
        "Age of the oldest dead letter; 0 when there is none",
    ),
    row("tickr_alerts_total", Counter, Runner, &["alert"], "Alerts told, by their rule"),
    row("tickr_operation_jobs_total", Counter, Runner, &[], "Jobs that operations have moved"),
    // Are the servers there?
    row(
        "tickr_up",
        Gauge,
        Runner,
        &["server"],
        "1 when mysql, or redis, answered the last reading in time, 0 when not",
    ),
    row("tickr_reading_age_seconds", Gauge, Runner, &[], "Age of the figures that are the same from every runner"),
    row(
        "tickr_pool_connections",
        Gauge,
        Runner,
        &["pool", "state"],
        "Connections to MySQL, idle and busy: for controls, loops, steering, reads and reports",
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
        "Writes of a group commit that were cut in pieces, because another session held a lock on one of their rows",
    ),
    row(
        "tickr_store_repeats_total",
        Counter,
        Runner,
        &["cause"],
        "Store calls run again: after a deadlock or lock wait, or a broken line",
    ),
    // Is the index whole?
    row(
        "tickr_index_state",
        Gauge,
        Runner,
        &["state"],
        "1 for the state the index is in, as this runner sees it: fast, rebuilding or degraded",
    ),
    row(
        "tickr_index_drift",
        Gauge,
        Runner,
        &[],
        "Entries that the last pass of the reconciler found missing or wrong in Redis, and mended",
    ),
    row("tickr_drift_repaired_total", Counter, Runner, &[], "Overdue jobs that were missing from Redis and are back"),
    row("tickr_rebuilds_total", Counter, Runner, &[], "Times the index was fed from the store"),
    row(
        "tickr_hints_lost_total",
        Counter,
        Runner,
        &[],
        "Hints that Redis did not take; the reconciler makes up for them",
    ),
    row("tickr_claims_dropped_total", Counter, Runner, &[], "Ids that were delivered twice or too late"),
    // Did something go wrong?
    row("tickr_leases_lost_total", Counter, Runner, &[], "Attempts whose lease was gone when their verdict came"),
    row(
        "tickr_suspects_total",
        Counter,
        Runner,
        &[],
        "Times a job was taken in to run in a process of its own, because its last two runners died under it",
    ),
    row("tickr_suspects_running", Gauge, Runner, &[], "Jobs that run in processes of their own now"),
    row(
        "tickr_blocked_handlers_total",
        Counter,
        Runner,
        &["kind"],
        "Handlers left behind, because they block their thread and do not end",
    ),
    row("tickr_loop_panics_total", Counter, Runner, &["loop"], "Panics of the engine's own loops, which start again"),
    // Schedules, retention, the API.
    row(
        "tickr_schedule_ticks_total",
        Counter,
        Runner,
        &["outcome", "cause"],
        "Ticks of schedules: fired, or skipped and why",
    ),
    row(
        "tickr_schedule_lateness_seconds",
        Histogram(LATE),
        Runner,
        &[],
        "From the time of a tick to its job's acceptance",
    ),
    row("tickr_ticks_purged_total", Counter, Runner, &[], "Ticks deleted when their retention was over"),
    row("tickr_jobs_purged_total", Counter, Runner, &[], "Ended jobs deleted when their retention was over"),
    row("tickr_answers_purged_total", Counter, Runner, &[], "Answers deleted that were kept for an Idempotency-Key"),
    row(
        "tickr_http_request_seconds",
        Histogram(REQUEST),
        Runner,
        &["route", "method", "status"],
        "From a request's head to its answer's, by the route's template and the class of the status",
    ),
    row("tickr_http_connections", Gauge, Runner, &[], "Open connections of clients"),
    row(
        "tickr_http_clients_turned_away_total",
        Counter,
        Runner,
        &[],
        "Clients turned away because too many were there",
    ),
    row("tickr_http_clients_cut_off_total", Counter, Runner, &[], "Clients cut off because they were too slow"),
    row(
        "tickr_searches_refused_total",
        Counter,
        Runner,
        &[],
        "Searches and counts refused because too many were under way",
    ),
    row(
        "tickr_controls_age_seconds",
        Gauge,
        Runner,
        &[],
        "Age of this runner's copy of keys, queues and drain; it is read every second",
    ),
    row("tickr_unauthorized_total", Counter, Runner, &[], "Requests without a good token or key"),
    row(
        "tickr_spans_total",
        Counter,
        Runner,
        &["outcome"],
        "Spans for the collector: exported, dropped because the queue was full, failed because it did not take them",
    ),
    row(
        "tickr_samples_errors_total",
        Counter,
        Runner,
        &[],
        "Writes and removals of the history behind the charts that MySQL did not take; they are tried again",
    ),
    row("tickr_samples_lost_total", Counter, Runner, &[], "Rows of the history behind the charts that were given up"),
    // Who speaks?
    row("tickr_build_info", Gauge, Runner, &["version"], "1; its label says which build"),
    row("tickr_start_time_seconds", Gauge, Runner, &[], "When the process started, in unix seconds"),
];

impl Metric {
    /// The word for it in the table and in the page's TYPE line.
    #[must_use]
    pub const fn type_word(&self) -> &'static str {
        match self.form {
            Form::Counter => "counter",
            Form::Gauge => "gauge",
            Form::Histogram(_) => "histogram",
        }
    }

    /// Tell the recorder what it is, and let counters without labels begin at 0: a counter that appears with its first
    /// increment hides that increment from every rate.
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

/// The table of `docs/METRICS.md`.
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
