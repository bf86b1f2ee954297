//! The figures of attempts, with their handles at hand: to look one up by its labels costs more than to write it.

use std::collections::HashMap;
use std::time::Duration;

use metrics::{Counter, Histogram};

use crate::job::{Name, Verdict};

/// The figures of one runner's attempts.
pub(super) struct Gauges {
    lateness: Histogram,
    kinds: HashMap<Name, KindGauges>,
}

struct KindGauges {
    run: Histogram,
    succeeded: Counter,
}

impl Gauges {
    /// For attempts of these kinds. The recorder must be there already.
    pub(super) fn of(kinds: &[Name]) -> Self {
        let gauges = |kind: &Name| KindGauges {
            run: metrics::histogram!("tickr_run_seconds", "kind" => kind.to_string()),
            succeeded: ended(kind, Verdict::Succeeded),
        };
        Self {
            lateness: metrics::histogram!("tickr_lateness_seconds"),
            kinds: kinds.iter().map(|kind| (kind.clone(), gauges(kind))).collect(),
        }
    }

    /// An attempt started this late.
    pub(super) fn started(&self, lateness: Duration) {
        self.lateness.record(lateness.as_secs_f64());
    }

    /// An attempt came to its end after so long.
    pub(super) fn ended(&self, kind: &Name, verdict: Verdict, took: Duration) {
        // Only kinds of this runner are claimed.
        let Some(gauges) = self.kinds.get(kind) else { return };
        gauges.run.record(took.as_secs_f64());
        match verdict {
            Verdict::Succeeded => gauges.succeeded.increment(1),
            other => ended(kind, other).increment(1),
        }
    }
}

fn ended(kind: &Name, verdict: Verdict) -> Counter {
    metrics::counter!("tickr_attempts_total", "kind" => kind.to_string(), "verdict" => verdict.as_str())
}
