//! Writes whose row is locked by another session, such as an operator's open transaction or a frozen runner.
//!
//! These writes wait in a slow lane, apart from all others. The slow lane has a connection of its own and tries one
//! write after the other, for a second each. Rows that were found locked are remembered for a while, and later writes
//! to them go to the slow lane at once.

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use crate::sql::batch::{Batch, Waiting, flush, locked_row};
use crate::sql::connection::{DedicatedConnection, Target};
use tickr_job::JobId;

/// Most writes in a slow lane. Further callers are refused and try again later.
const MAX_WAITING: usize = 1_024;
/// Longest stay in a slow lane, for callers that do not try again by themselves.
const MAX_STAY: Duration = Duration::from_secs(40);
/// Time for which a row counts as locked after it was found locked.
const REMEMBERED: Duration = Duration::from_secs(30);
/// Time for which a locked row is not tried again for a write that can be left out.
const RESPITE: Duration = Duration::from_secs(2);
/// Most locked rows that are remembered at the same time.
const MAX_ROWS: usize = 4_096;

/// The entry to the slow lane of one kind of write.
pub(crate) struct LockedRows<B: Batch> {
    lane: mpsc::Sender<HeldItem<B>>,
    rows: Arc<Rows>,
}

impl<B: Batch> Clone for LockedRows<B> {
    fn clone(&self) -> Self {
        Self { lane: self.lane.clone(), rows: Arc::clone(&self.rows) }
    }
}

/// A write in the slow lane, with the mark of the batch from which it came.
struct HeldItem<B: Batch> {
    waiting: Waiting<B>,
    mark: B::Mark,
    since: Instant,
}

/// Rows that were found locked, with the time of the last try.
#[derive(Default)]
struct Rows(Mutex<HashMap<JobId, Instant>>);

impl Rows {
    fn add(&self, row: JobId) {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if rows.len() >= MAX_ROWS {
            rows.retain(|_, found| found.elapsed() < REMEMBERED);
        }
        if rows.len() < MAX_ROWS {
            rows.insert(row, Instant::now());
        }
    }

    fn remove(&self, row: JobId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&row);
    }

    /// Return the time since the last try of this row, if it counts as locked.
    fn found(&self, row: Option<JobId>) -> Option<Duration> {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let row = row?;
        let since = rows.get(&row)?.elapsed();
        if since > REMEMBERED {
            rows.remove(&row);
            return None;
        }
        Some(since)
    }

    fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

impl<B: Batch> LockedRows<B> {
    /// Start the slow lane of `batch`. It ends when the last entry to it has been dropped.
    pub(crate) fn start(batch: &Arc<B>, target: &Target, tasks: &TaskTracker) -> Self {
        let (lane, mut came) = mpsc::channel(MAX_WAITING);
        let rows = Arc::<Rows>::default();
        let (batch, target, known) = (Arc::clone(batch), target.clone(), Arc::clone(&rows));
        tasks.spawn(async move {
            loop {
                let mut link = DedicatedConnection::new(target.clone());
                link.hurry(true);
                let worked = AssertUnwindSafe(work_off(&batch, &known, &mut came, &mut link)).catch_unwind().await;
                let Err(panic) = worked else { return };
                tracing::error!(attempted = B::ATTEMPTED, "the slow lane for locked rows panicked and starts again");
                drop(panic);
            }
        });
        Self { lane, rows }
    }

    /// Add a write whose row was found locked.
    pub(crate) fn take_in(&self, waiting: Waiting<B>, mark: B::Mark) {
        if let Some(row) = B::row(&waiting.item) {
            self.rows.add(row);
        }
        match B::left_out() {
            Some(answer) => waiting.reply.send(Ok(answer)),
            None => self.hand_over(waiting, mark),
        }
    }

    /// Move the writes whose row counts as locked from a batch to the slow lane. Return the other writes.
    pub(crate) fn divert(&self, taken: Vec<Waiting<B>>, mark: B::Mark) -> Vec<Waiting<B>> {
        if self.rows.is_empty() {
            return taken;
        }
        let mut free = Vec::with_capacity(taken.len());
        for waiting in taken {
            match self.rows.found(B::row(&waiting.item)) {
                None => free.push(waiting),
                Some(since) => match B::left_out().filter(|_| since < RESPITE) {
                    Some(answer) => waiting.reply.send(Ok(answer)),
                    None => self.hand_over(waiting, mark),
                },
            }
        }
        free
    }

    fn hand_over(&self, waiting: Waiting<B>, mark: B::Mark) {
        let held = HeldItem { waiting, mark, since: Instant::now() };
        if let Err(mpsc::error::TrySendError::Full(held) | mpsc::error::TrySendError::Closed(held)) =
            self.lane.try_send(held)
        {
            held.waiting.reply.send(Err(locked_row::<B>()));
        }
    }
}

/// Try the waiting writes in turn, again and again, until no more can come and every caller has its answer.
async fn work_off<B: Batch>(
    batch: &Arc<B>,
    rows: &Rows,
    came: &mut mpsc::Receiver<HeldItem<B>>,
    link: &mut DedicatedConnection,
) {
    let mut waiting: VecDeque<HeldItem<B>> = VecDeque::new();
    loop {
        if waiting.is_empty() {
            // After this time without a locked row, the connection is not worth keeping.
            match tokio::time::timeout(REMEMBERED, came.recv()).await {
                Ok(Some(held)) => waiting.push_back(held),
                Ok(None) => return,
                Err(_) => link.disconnect(),
            }
        }
        while waiting.len() < MAX_WAITING
            && let Ok(held) = came.try_recv()
        {
            waiting.push_back(held);
        }
        if let Some(held) = waiting.pop_front()
            && let Some(held) = attempt(batch, rows, held, link, came.is_closed()).await
        {
            waiting.push_back(held);
        }
    }
}

/// Try one write. Return it if its row is still locked and its caller still waits.
async fn attempt<B: Batch>(
    batch: &Arc<B>,
    rows: &Rows,
    held: HeldItem<B>,
    link: &mut DedicatedConnection,
    closing: bool,
) -> Option<HeldItem<B>> {
    let HeldItem { waiting: Waiting { item, reply }, mark, since } = held;
    let row = B::row(&item);
    let items = Arc::new(vec![item]);
    let written = flush(batch, &items, mark, link).await;
    match written {
        Ok(Some(mut answers)) => {
            row.into_iter().for_each(|row| rows.remove(row));
            reply.send(answers.pop().ok_or_else(locked_row::<B>));
            None
        }
        Ok(None) => {
            row.into_iter().for_each(|row| rows.add(row));
            let item = Arc::into_inner(items).and_then(|mut items| items.pop());
            match (B::left_out(), item) {
                (Some(answer), _) => reply.send(Ok(answer)),
                (None, Some(item)) if !closing && !reply.answer.is_closed() && since.elapsed() < MAX_STAY => {
                    return Some(HeldItem { waiting: Waiting { item, reply }, mark, since });
                }
                (None, _) => reply.send(Err(locked_row::<B>())),
            }
            None
        }
        Err(error) => {
            reply.send(Err(error));
            None
        }
    }
}
