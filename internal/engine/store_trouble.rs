//! Whether MySQL failed a call of this runner, and is not known to answer again.
//!
//! Loops that would only fail skip their work meanwhile. The end is found by a loop of its own, because each of the others
//! may have a reason to do nothing for hours: the fetcher has no free seat, or the runner is drained.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::EngineState;

/// Longest wait for one answer of MySQL. It is longer than the time after which a try of a write is given up and
/// repeated over another connection.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Longest pause between two questions.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Whether calls to MySQL fail.
pub(super) struct StoreTrouble {
    known: watch::Sender<bool>,
}

impl StoreTrouble {
    pub(super) fn new() -> Self {
        Self { known: watch::Sender::new(false) }
    }

    /// Note that a call failed for a reason that may pass.
    pub(super) fn note(&self) {
        self.known.send_if_modified(|known| !std::mem::replace(known, true));
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

/// After each failed call, ask MySQL until it commits a write.
pub(super) async fn end_until_stopped(shared: Arc<EngineState>) {
    let ask = async {
        loop {
            shared.store_trouble.until(true).await;
            let mut pause = Duration::from_millis(100);
            while !shared.store.takes_writes(ANSWER_WITHIN).await {
                tokio::time::sleep(pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)).await;
                pause = (pause * 2).min(MAX_PAUSE);
            }
            shared.store_trouble.known.send_replace(false);
            // Ids that were taken and not claimed are missing from the index.
            shared.reconcile.notify_one();
        }
    };
    tokio::select! {
        () = shared.stop_loops.cancelled() => {}
        () = ask => {}
    }
}
