//! Whether MySQL failed a call of this runner, and is not known to answer again.
//!
//! Loops that would only fail skip their work meanwhile. The end is found by a loop of its own, because each of the others
//! may have a reason to do nothing for hours: the fetcher has no free seat, or the runner is drained.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::EngineState;
use tickr_telemetry::LinePace;

/// Longest wait for one answer of MySQL. It is longer than the time after which a try of a write is given up and
/// repeated over another connection.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Longest pause between two questions.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// First pause after a trouble that came back, before jitter.
const FIRST_REST: Duration = Duration::from_millis(250);
/// Time after the end of a trouble within which another one counts as the same that came back.
const COMES_BACK_WITHIN: Duration = Duration::from_secs(5);

/// Whether calls to MySQL fail.
pub(super) struct StoreTrouble {
    known: watch::Sender<bool>,
    /// Jobs could not be fetched or claimed since the last end of a trouble.
    unclaimed: AtomicBool,
    /// The pace of the lines about jobs that could not be claimed.
    claim_lines: Mutex<LinePace>,
}

impl StoreTrouble {
    pub(super) fn new() -> Self {
        let claim_lines = Mutex::new(LinePace::new());
        Self { known: watch::Sender::new(false), unclaimed: AtomicBool::new(false), claim_lines }
    }

    /// Note that a call failed for a reason that may pass.
    pub(super) fn note(&self) {
        self.known.send_if_modified(|known| !std::mem::replace(known, true));
    }

    /// Note that a job could not be fetched or claimed. The fetcher would take the next ones as soon as MySQL commits a
    /// write. MySQL may do that and refuse each claim all the same.
    pub(super) fn note_unclaimed(&self) {
        self.unclaimed.store(true, Ordering::Relaxed);
        self.note();
    }

    /// Return whether to write the next line about a job that could not be claimed: then the number of those that were
    /// left out before it. A MySQL that refuses claims refuses all of them.
    pub(super) fn next_claim_line(&self) -> Option<u64> {
        self.claim_lines.lock().unwrap_or_else(PoisonError::into_inner).next_line()
    }

    pub(super) fn is_known(&self) -> bool {
        *self.known.borrow()
    }

    /// Wait until MySQL takes writes again.
    pub(super) async fn until_over(&self) {
        self.until(false).await;
    }

    async fn until(&self, wanted: bool) {
        // The sender is in this value, so the channel does not end.
        let _ = self.known.subscribe().wait_for(|known| *known == wanted).await;
    }
}

/// The rests before a trouble may end that comes back although MySQL commits a write.
#[derive(Default)]
struct Recurrence {
    ended: Option<Instant>,
    rest: Duration,
}

impl Recurrence {
    /// Return how long to rest before MySQL is asked, for a trouble that begins now. Each time that it comes back, this
    /// is longer.
    fn rest_at(&mut self, now: Instant) -> Duration {
        let comes_back = self.ended.is_some_and(|ended| now.saturating_duration_since(ended) < COMES_BACK_WITHIN);
        self.rest = if comes_back { (self.rest * 2).clamp(FIRST_REST, MAX_PAUSE) } else { Duration::ZERO };
        self.rest
    }
}

/// After each failed call, ask MySQL until it commits a write.
pub(super) async fn end_until_stopped(shared: Arc<EngineState>) {
    let jittered = |pause: Duration| pause.mul_f64(0.5 + rand::random::<f64>() / 2.0);
    let ask = async {
        let (trouble, mut recurrence) = (&shared.store_trouble, Recurrence::default());
        loop {
            trouble.until(true).await;
            // Other calls that fail have pauses of their own.
            if trouble.unclaimed.swap(false, Ordering::Relaxed) {
                tokio::time::sleep(jittered(recurrence.rest_at(Instant::now()))).await;
            }
            let mut pause = Duration::from_millis(100);
            while !shared.store.takes_writes(ANSWER_WITHIN).await {
                tokio::time::sleep(jittered(pause)).await;
                pause = (pause * 2).min(MAX_PAUSE);
            }
            // What failed until now failed before this end.
            trouble.unclaimed.store(false, Ordering::Relaxed);
            recurrence.ended = Some(Instant::now());
            trouble.known.send_replace(false);
            // Ids that were taken and not claimed are missing from the index.
            shared.reconcile.notify_one();
        }
    };
    tokio::select! {
        () = shared.stop_loops.cancelled() => {}
        () = ask => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_that_comes_back_at_once_rests_longer_each_time() {
        let (mut recurrence, start) = (Recurrence::default(), Instant::now());
        let mut now = start;
        let mut rest_ms = |passes_ms: u64| {
            now += Duration::from_millis(passes_ms);
            let rest = recurrence.rest_at(now);
            now += rest;
            recurrence.ended = Some(now);
            rest.as_millis()
        };
        assert_eq!([0, 10, 10, 10, 10, 4_999].map(&mut rest_ms), [0, 250, 500, 1_000, 2_000, 2_000]);
        // The next one is another one.
        assert_eq!([5_000, 10].map(&mut rest_ms), [0, 250]);
    }
}
