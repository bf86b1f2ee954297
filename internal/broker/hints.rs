//! Hints to the index, sent behind the caller's back.
//!
//! A caller puts its hint on a bounded channel and goes on; one task takes whatever queued up and tells Redis in one
//! script. So an enqueue takes as long as its commit, also while Redis hangs, and a flood of enqueues costs Redis few
//! round trips.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::{Notify, mpsc};
use tokio_util::task::TaskTracker;

use crate::index::{Entry, Health, Index};

/// Hints that may queue up. Beyond it they are dropped and left to the reconciler.
const CAPACITY: usize = 100_000;
/// Most hints in one call.
const MOST_AT_ONCE: usize = 1_000;

/// What wakes sleepers when work arrives.
#[derive(Clone, Debug, Default)]
pub struct Wake {
    inner: Arc<WakeInner>,
}

#[derive(Debug)]
struct WakeInner {
    scheduler: Notify,
    /// Until when the scheduler sleeps, unix milliseconds.
    asleep_until_ms: AtomicI64,
    fetcher: Notify,
    ticker: Notify,
}

impl Default for WakeInner {
    fn default() -> Self {
        Self {
            scheduler: Notify::new(),
            asleep_until_ms: AtomicI64::new(i64::MAX),
            fetcher: Notify::new(),
            ticker: Notify::new(),
        }
    }
}

impl Wake {
    /// The scheduler goes to sleep until `due_ms`; hints that are due earlier wake it. It says `i64::MAX` before it looks
    /// at the index, so that a hint which lands during the look is not slept through.
    pub fn scheduler_sleeps_until(&self, due_ms: i64) {
        self.inner.asleep_until_ms.store(due_ms, Ordering::SeqCst);
    }

    /// Resolves when something became due earlier than the scheduler knew.
    pub async fn scheduler(&self) {
        self.inner.scheduler.notified().await;
    }

    /// Resolves when work arrived while the fetcher does without the index.
    pub async fn fetcher(&self) {
        self.inner.fetcher.notified().await;
    }

    /// What a fetcher that does without the index may take has changed.
    pub fn fetcher_may_look(&self) {
        self.inner.fetcher.notify_one();
    }

    /// Resolves when a schedule was changed through this process.
    pub async fn ticker(&self) {
        self.inner.ticker.notified().await;
    }

    pub(super) fn schedules_changed(&self) {
        self.inner.ticker.notify_one();
    }

    fn earlier(&self, due_ms: i64) {
        if due_ms < self.inner.asleep_until_ms.load(Ordering::SeqCst) {
            self.inner.scheduler.notify_one();
        }
    }
}

/// The entrance. Cheap to clone; the task ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct Hints {
    entrance: mpsc::Sender<Entry>,
    wake: Wake,
}

impl Hints {
    pub(super) fn start(index: Index, tasks: &TaskTracker) -> Self {
        let (entrance, queue) = mpsc::channel(CAPACITY);
        let wake = Wake::default();
        tasks.spawn(send_until_closed(index, queue, wake.clone()));
        Self { entrance, wake }
    }

    pub(super) fn send(&self, entry: Entry) {
        if self.entrance.try_send(entry).is_err() {
            metrics::counter!("tickr_hints_lost_total").increment(1);
        }
    }

    pub(super) fn wake(&self) -> &Wake {
        &self.wake
    }
}

async fn send_until_closed(index: Index, mut queue: mpsc::Receiver<Entry>, wake: Wake) {
    let mut entries = Vec::with_capacity(MOST_AT_ONCE);
    while queue.recv_many(&mut entries, MOST_AT_ONCE).await > 0 {
        wake.inner.fetcher.notify_one();
        let told = match index.health().now() {
            // Redis is known to be out. Waiting for its time-out once per batch would only let hints pile up; the
            // scheduler notices when it is back, and the rebuild brings what was missed.
            Health::Degraded => Err(None),
            Health::Fast | Health::Rebuilding => index.hint(&entries).await.map_err(Some),
        };
        match told {
            Ok(hinted) if hinted.waiting > 0 => {
                if let Some(first) = entries.iter().map(|entry| entry.execute_at.timestamp_millis()).min() {
                    wake.earlier(first);
                }
            }
            Ok(_) => {}
            Err(error) => {
                metrics::counter!("tickr_hints_lost_total").increment(entries.len() as u64);
                if error.is_some() {
                    // The scheduler finds out what is the matter at once, not at its next look.
                    wake.inner.scheduler.notify_one();
                }
            }
        }
        entries.clear();
    }
}
