//! The figures of attempts, with their handles at hand: to look one up by its labels costs more than to write it.

use std::collections::HashMap;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};

use crate::job::{Name, Verdict};
use crate::store::Claimed;

/// The label of what belongs to no queue that this runner serves. No name begins like this.
const OTHER: &str = "_other";

/// The figures of one runner's attempts.
pub(super) struct Gauges {
    kinds: HashMap<Name, KindGauges>,
    queues: HashMap<Name, QueueGauges>,
    other: QueueGauges,
    claim: Histogram,
    settle: Histogram,
    slots: Gauge,
    workers: f64,
}

struct KindGauges {
    run: Histogram,
    succeeded: Counter,
}

struct QueueGauges {
    lateness: Histogram,
    wait: Histogram,
}

impl QueueGauges {
    fn of(queue: &str) -> Self {
        Self {
            lateness: metrics::histogram!("tickr_lateness_seconds", "queue" => queue.to_owned()),
            wait: metrics::histogram!("tickr_wait_seconds", "queue" => queue.to_owned()),
        }
    }
}

impl Gauges {
    /// For attempts of these kinds from these queues, by so many workers. The recorder must be there already.
    pub(super) fn of(kinds: &[Name], queues: &[Name], workers: usize) -> Self {
        let gauges = |kind: &Name| KindGauges {
            run: metrics::histogram!("tickr_run_seconds", "kind" => kind.to_string()),
            succeeded: ended(kind, Verdict::Succeeded),
        };
        let slots = metrics::gauge!("tickr_worker_slots");
        // Added, not set: a process may hold several runners.
        slots.increment(workers as f64);
        Self {
            kinds: kinds.iter().map(|kind| (kind.clone(), gauges(kind))).collect(),
            queues: queues.iter().map(|queue| (queue.clone(), QueueGauges::of(queue.as_str()))).collect(),
            other: QueueGauges::of(OTHER),
            claim: metrics::histogram!("tickr_claim_seconds"),
            settle: metrics::histogram!("tickr_settle_seconds"),
            slots,
            workers: workers as f64,
        }
    }

    /// A claim was answered after so long.
    pub(super) fn claimed(&self, took: Duration) {
        self.claim.record(took.as_secs_f64());
    }

    /// An attempt started this late.
    pub(super) fn started(&self, claimed: &Claimed, lateness: Duration) {
        let queue = self.queues.get(&claimed.queue).unwrap_or(&self.other);
        queue.lateness.record(lateness.as_secs_f64());
        if claimed.number == 1 {
            let wait = (claimed.started_at - claimed.created_at).to_std().unwrap_or_default();
            queue.wait.record(wait.as_secs_f64());
        }
    }

    /// A handler came to its end after so long.
    pub(super) fn ran(&self, kind: &Name, took: Duration) {
        // Only kinds of this runner are claimed.
        if let Some(gauges) = self.kinds.get(kind) {
            gauges.run.record(took.as_secs_f64());
        }
    }

    /// A verdict was settled after so long.
    pub(super) fn settled(&self, took: Duration) {
        self.settle.record(took.as_secs_f64());
    }

    /// An attempt ended.
    pub(super) fn ended(&self, kind: &Name, verdict: Verdict) {
        match (self.kinds.get(kind), verdict) {
            (Some(gauges), Verdict::Succeeded) => gauges.succeeded.increment(1),
            // Others are rare. Their kind may be another runner's, whose death this one found out.
            _ => ended(kind, verdict).increment(1),
        }
    }
}

impl Drop for Gauges {
    fn drop(&mut self) {
        self.slots.decrement(self.workers);
    }
}

fn ended(kind: &Name, verdict: Verdict) -> Counter {
    metrics::counter!("tickr_attempts_total", "kind" => kind.to_string(), "verdict" => verdict.as_str())
}
