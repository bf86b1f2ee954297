//! Hints to the index, sent in the background.
//!
//! A caller puts its hint on a bounded channel and continues. One task takes all hints that have queued up and sends
//! them to Redis in one script call. So an enqueue takes only as long as its commit, even while Redis hangs, and many
//! enqueues cost Redis few round trips.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_recursion::async_recursion as boxed;
use chrono::TimeDelta;
use tokio::sync::{Notify, mpsc};
use tokio_util::task::TaskTracker;

use tickr_index::{Entry, Health, HintResult, Index, IndexError};
use tickr_job::Timestamp;

/// Most hints that may queue up. Further hints are dropped; the reconciler finds their jobs.
const CAPACITY: usize = 100_000;
/// Most hints in one call.
const MAX_AT_ONCE: usize = 1_000;
/// Time within which the schedulers of all runners look at the index. Each sleeps for a second at most.
const NEXT_LOOK: TimeDelta = TimeDelta::milliseconds(1_200);

/// The signals that wake sleeping loops when work arrives.
#[derive(Clone, Debug, Default)]
pub struct Wake {
    inner: Arc<WakeInner>,
}

#[derive(Debug)]
struct WakeInner {
    scheduler: Notify,
    /// Time until which the scheduler sleeps, in unix milliseconds.
    asleep_until_ms: AtomicI64,
    /// Due times of the first and the last hinted job that other processes may not know before it is due.
    soon: Mutex<Option<(Timestamp, Timestamp)>>,
    fetcher: Notify,
    ticker: Notify,
}

impl Default for WakeInner {
    fn default() -> Self {
        Self {
            scheduler: Notify::new(),
            asleep_until_ms: AtomicI64::new(i64::MAX),
            soon: Mutex::new(None),
            fetcher: Notify::new(),
            ticker: Notify::new(),
        }
    }
}

impl Wake {
    /// Note that the scheduler sleeps until `due_ms`; hints that are due earlier wake it. The scheduler passes
    /// `i64::MAX` before it looks at the index, so that a hint that arrives during the look ends the next sleep.
    pub fn scheduler_sleeps_until(&self, due_ms: i64) {
        self.inner.asleep_until_ms.store(due_ms, Ordering::SeqCst);
    }

    /// Wait until a job is due earlier than the scheduler knew.
    #[boxed]
    pub async fn scheduler(&self) {
        self.inner.scheduler.notified().await;
    }

    /// Take the due times of the first and the last job hinted since the last call that the schedulers of other
    /// processes may not know before it is due. A process without a scheduler moves these jobs itself.
    #[must_use]
    pub fn take_soon(&self) -> Option<(Timestamp, Timestamp)> {
        self.inner.soon.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Wait until work arrives, in a fetcher that works without the index.
    #[boxed]
    pub async fn fetcher(&self) {
        self.inner.fetcher.notified().await;
    }

    /// Wake a fetcher that works without the index: what it may take has changed.
    pub fn fetcher_may_look(&self) {
        self.inner.fetcher.notify_one();
    }

    /// Wait until a schedule is changed through this process.
    #[boxed]
    pub async fn ticker(&self) {
        self.inner.ticker.notified().await;
    }

    pub(super) fn schedules_changed(&self) {
        self.inner.ticker.notify_one();
    }

    fn note_soon(&self, due: impl Iterator<Item = Timestamp>, now: Timestamp) {
        let mut soon = self.inner.soon.lock().unwrap_or_else(PoisonError::into_inner);
        for due in due.filter(|due| *due <= now + NEXT_LOOK) {
            let (first, last) = soon.unwrap_or((due, due));
            *soon = Some((first.min(due), last.max(due)));
        }
    }

    fn earlier(&self, due_ms: i64) {
        if due_ms < self.inner.asleep_until_ms.load(Ordering::SeqCst) {
            self.inner.scheduler.notify_one();
        }
    }
}

/// The sending half of the channel. Cheap to clone; the task ends when the last clone is dropped.
#[derive(Clone, Debug)]
pub(super) struct Hints {
    entrance: mpsc::Sender<Hint>,
    wake: Wake,
}

/// A job for the index, and its place there.
#[derive(Debug)]
struct Hint {
    entry: Entry,
    /// The job is due and was taken from the index before, so it goes to the front of its ready list.
    first: bool,
}

impl Hints {
    /// Start the task. `now` returns the estimated time of MySQL.
    pub(super) fn start(index: Index, now: impl Fn() -> Timestamp + Send + 'static, tasks: &TaskTracker) -> Self {
        let (entrance, queue) = mpsc::channel(CAPACITY);
        let wake = Wake::default();
        tasks.spawn(send_until_closed(index, now, queue, wake.clone()));
        Self { entrance, wake }
    }

    pub(super) fn send(&self, entry: Entry) {
        self.put(Hint { entry, first: false });
    }

    /// Do what [`send`](Self::send) does, for a due job that was taken from its ready list and not started.
    pub(super) fn send_first(&self, entry: Entry) {
        self.put(Hint { entry, first: true });
    }

    fn put(&self, hint: Hint) {
        if self.entrance.try_send(hint).is_err() {
            metrics::counter!("tickr_hints_lost_total").increment(1);
        }
    }

    pub(super) fn wake(&self) -> &Wake {
        &self.wake
    }
}

async fn send_until_closed(index: Index, now: impl Fn() -> Timestamp, mut queue: mpsc::Receiver<Hint>, wake: Wake) {
    let mut hints = Vec::with_capacity(MAX_AT_ONCE);
    let (mut entries, mut first) = (Vec::new(), Vec::new());
    while queue.recv_many(&mut hints, MAX_AT_ONCE).await > 0 {
        for hint in hints.drain(..) {
            if hint.first { first.push(hint.entry) } else { entries.push(hint.entry) }
        }
        first.sort_unstable_by_key(|entry| (entry.execute_at, entry.id));
        wake.inner.fetcher.notify_one();
        let told = match index.health().now() {
            // Redis is known to be out. Waiting for a time-out with each batch would only let hints pile up. The
            // scheduler notices when Redis is back, and the rebuild adds what was missed.
            Health::Degraded => Err(None),
            Health::Fast | Health::Rebuilding => give(&index, &first, &entries).await.map_err(Some),
        };
        match told {
            Ok(hinted) if hinted.waiting > 0 => {
                wake.note_soon(entries.iter().map(|entry| entry.execute_at), now());
                if let Some(first) = entries.iter().map(|entry| entry.execute_at.timestamp_millis()).min() {
                    wake.earlier(first);
                }
            }
            Ok(_) => {}
            Err(error) => {
                metrics::counter!("tickr_hints_lost_total").increment((entries.len() + first.len()) as u64);
                if error.is_some() {
                    // Wake the scheduler, so that it finds the fault now and not at its next look.
                    wake.inner.scheduler.notify_one();
                }
            }
        }
        entries.clear();
        first.clear();
    }
}

async fn give(index: &Index, first: &[Entry], entries: &[Entry]) -> Result<HintResult, IndexError> {
    index.put_first(first).await?;
    index.hint(entries).await
}
