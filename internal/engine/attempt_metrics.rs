//! Metrics of attempts. Their handles are stored here, because looking a metric up by its labels costs more than
//! writing it.

use std::collections::HashMap;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};

use tickr_job::{Name, Verdict};
use tickr_store::Claimed;

/// Label of jobs whose queue this runner does not serve. No queue name begins with `_`.
const OTHER: &str = "_other";

/// Metrics of one runner's attempts.
pub(super) struct AttemptMetrics {
    kinds: HashMap<Name, KindMetrics>,
    queues: HashMap<Name, QueueMetrics>,
    other: QueueMetrics,
    claim: Histogram,
    settle: Histogram,
    workers_gauge: Gauge,
    workers: f64,
}

struct KindMetrics {
    run: Histogram,
    succeeded: Counter,
}

struct QueueMetrics {
    lateness: Histogram,
    wait: Histogram,
}

impl QueueMetrics {
    fn new(queue: &str) -> Self {
        Self {
            lateness: metrics::histogram!("tickr_lateness_seconds", "queue" => queue.to_owned()),
            wait: metrics::histogram!("tickr_wait_seconds", "queue" => queue.to_owned()),
        }
    }
}

impl AttemptMetrics {
    /// Create the metrics for these kinds, queues and number of workers. The metrics recorder must be installed first.
    pub(super) fn new(kinds: &[Name], queues: &[Name], workers: usize) -> Self {
        let metrics = |kind: &Name| KindMetrics {
            run: metrics::histogram!("tickr_run_seconds", "kind" => kind.to_string()),
            succeeded: ended(kind, Verdict::Succeeded),
        };
        // Most processes count one of these at most once in their lives. A series that began with this count would have
        // no increase, so no alert would fire.
        for kind in kinds {
            ended(kind, Verdict::Lost).increment(0);
            blocked(kind).increment(0);
        }
        let workers_gauge = metrics::gauge!("tickr_workers");
        // Added, not set: one process may hold several runners.
        workers_gauge.increment(workers as f64);
        Self {
            kinds: kinds.iter().map(|kind| (kind.clone(), metrics(kind))).collect(),
            queues: queues.iter().map(|queue| (queue.clone(), QueueMetrics::new(queue.as_str()))).collect(),
            other: QueueMetrics::new(OTHER),
            claim: metrics::histogram!("tickr_claim_seconds"),
            settle: metrics::histogram!("tickr_settle_seconds"),
            workers_gauge,
            workers: workers as f64,
        }
    }

    /// Record how long a claim took.
    pub(super) fn record_claimed(&self, took: Duration) {
        self.claim.record(took.as_secs_f64());
    }

    /// Record how late an attempt started.
    pub(super) fn record_started(&self, claimed: &Claimed, lateness: Duration) {
        let queue = self.queues.get(&claimed.queue).unwrap_or(&self.other);
        queue.lateness.record(lateness.as_secs_f64());
        if claimed.number == 1 {
            let wait = (claimed.started_at - claimed.created_at).to_std().unwrap_or_default();
            queue.wait.record(wait.as_secs_f64());
        }
    }

    /// Record how long a handler ran.
    pub(super) fn record_ran(&self, kind: &Name, took: Duration) {
        match self.kinds.get(kind) {
            Some(metrics) => metrics.run.record(took.as_secs_f64()),
            // A declared kind, whose receiver this runner calls. Operators declare a bounded number of them.
            None => metrics::histogram!("tickr_run_seconds", "kind" => kind.to_string()).record(took.as_secs_f64()),
        }
    }

    /// Record how long it took to settle a verdict.
    pub(super) fn record_settled(&self, took: Duration) {
        self.settle.record(took.as_secs_f64());
    }

    /// Count an attempt that ended.
    pub(super) fn record_ended(&self, kind: &Name, verdict: Verdict) {
        match (self.kinds.get(kind), verdict) {
            (Some(metrics), Verdict::Succeeded) => metrics.succeeded.increment(1),
            // Other verdicts are rare. The kind may be unknown here: this runner also ends attempts of dead runners.
            _ => ended(kind, verdict).increment(1),
        }
    }

    /// Count a handler that blocks its thread and does not end.
    pub(super) fn record_blocked(&self, kind: &Name) {
        blocked(kind).increment(1);
    }
}

impl Drop for AttemptMetrics {
    fn drop(&mut self) {
        self.workers_gauge.decrement(self.workers);
    }
}

fn blocked(kind: &Name) -> Counter {
    metrics::counter!("tickr_blocked_handlers_total", "kind" => kind.to_string())
}

fn ended(kind: &Name, verdict: Verdict) -> Counter {
    metrics::counter!("tickr_attempts_total", "kind" => kind.to_string(), "verdict" => verdict.as_str())
}
