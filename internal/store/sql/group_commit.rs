//! Group commit: calls that arrive during a write share the next write.
//!
//! A durable commit costs about the same for one row as for hundreds. So callers put their item on a bounded channel
//! and wait. A few flushers, each with a connection of its own, take *everything that queued up while they were
//! writing* and write it in one transaction. An idle system writes a single item at once; a busy one forms batches
//! whose size follows the load. (The idea is as old as database logs; PostgreSQL's `commit_siblings` and Kafka's
//! batching producer are relatives.)
//!
//! Two rules keep the batches whole, because two half batches cost nearly twice as much as one:
//! - A flusher that has its first item lets all tasks run that are ready to run, and takes the rest of its batch
//!   afterwards. Callers that have just got their answers hand in their next item at that moment.
//! - While another flusher writes, a batch that is too small for a commit of its own waits for the end of that write.
//!   It waits [`PATIENCE`] at most, so that a write that is stuck on a lock does not hold up the others.
//!
//! A third rule splits a batch: when it has waited for a lock until the timeout, it is written in pieces, until only
//! the rows that another session locks are left. These go to a connection of their own (`locked_rows.rs`). Later writes
//! of the same rows go there directly, so that the next batches do not wait for these rows again.
//!
//! Items that [go first](Batch::goes_first) are written before the others of their batch, and answered before those.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::{Mutex, Notify, Semaphore, mpsc, oneshot};
use tokio_util::task::TaskTracker;

use crate::sql::batch::{Batch, Reply, Waiting, flush, step};
use crate::sql::connection::{DedicatedConnection, Target};
use crate::sql::error::StoreError;
use crate::sql::locked_rows::LockedRows;

/// The longest wait of a small batch for the end of another flusher's write.
const PATIENCE: Duration = Duration::from_millis(2);
/// Turns of the runtime without a new item, in a row, after which a batch is taken as it is.
const QUIET_TURNS: u32 = 3;
/// Time limit of gathering a batch. A runtime that takes longer to run the flusher again is busy with something else.
const MAX_GATHERING: Duration = Duration::from_millis(1);

/// Memory that the waiting items of outside callers may take, in KiB: 256 MiB in all.
const MAX_KIB: usize = 256 << 10;

/// The entrance to one kind of batched write. When it is dropped, its flushers write what is left and end.
pub(crate) struct GroupCommit<B: Batch> {
    entrance: mpsc::Sender<Waiting<B>>,
    traffic: Arc<Traffic>,
    room: Arc<Semaphore>,
}

/// The state that the flushers of one kind of write share.
#[derive(Default)]
struct Traffic {
    /// Number of flushers that are writing.
    writing: AtomicUsize,
    /// Signal that the next batch need not wait any longer: a write has ended, or enough items have queued up.
    go: Notify,
}

impl Traffic {
    /// Count a flusher as writing until the guard is dropped.
    fn enter(&self) -> impl Drop + '_ {
        struct Writing<'a>(&'a Traffic);
        impl Drop for Writing<'_> {
            fn drop(&mut self) {
                self.0.writing.fetch_sub(1, Ordering::SeqCst);
                self.0.go.notify_one();
            }
        }
        self.writing.fetch_add(1, Ordering::SeqCst);
        Writing(self)
    }

    /// Wait while another flusher writes and the batch is small, at most [`PATIENCE`].
    async fn turn(&self, little: impl Fn() -> bool) {
        let wait = async {
            // Check again after each signal: it may be an old one, sent when no flusher waited.
            while self.writing.load(Ordering::SeqCst) > 0 && little() {
                self.go.notified().await;
            }
        };
        let _ = tokio::time::timeout(PATIENCE, wait).await;
    }
}

impl<B: Batch> GroupCommit<B> {
    /// Start `flushers` flushers with room for `capacity` waiting items. The caller joins the tasks through `tasks`.
    pub(crate) fn start(batch: B, target: &Target, flushers: usize, capacity: usize, tasks: &TaskTracker) -> Self {
        let (entrance, queue) = mpsc::channel(capacity);
        let traffic = Arc::new(Traffic::default());
        let (batch, queue) = (Arc::new(batch), Arc::new(Mutex::new(queue)));
        let stuck = LockedRows::start(&batch, target, tasks);
        for _ in 0..flushers {
            let (batch, queue, target) = (Arc::clone(&batch), Arc::clone(&queue), target.clone());
            let (traffic, stuck) = (Arc::clone(&traffic), stuck.clone());
            tasks.spawn(async move {
                // A panic loses one batch, whose callers get an error. The flusher itself goes on.
                loop {
                    let link = DedicatedConnection::new(target.clone());
                    let flusher = Flusher { batch: Arc::clone(&batch), link, stuck: stuck.clone() };
                    let flushed = AssertUnwindSafe(flusher.flush_until_closed(&queue, &traffic)).catch_unwind().await;
                    let Err(panic) = flushed else { return };
                    tracing::error!(attempted = B::ATTEMPTED, "flusher panicked and starts again");
                    drop(panic);
                }
            });
        }
        Self { entrance, traffic, room: Arc::new(Semaphore::new(MAX_KIB)) }
    }

    /// Signal the flushers if half a batch is waiting: that is worth a write beside the one that is under way.
    fn note_arrival(&self) {
        if self.entrance.max_capacity() - self.entrance.capacity() >= B::FULL / 2 {
            self.traffic.go.notify_one();
        }
    }

    /// Hand in one item and wait until its batch is committed. A caller that goes away does not withdraw its item,
    /// which may still be written.
    pub(crate) async fn submit(&self, item: B::Item) -> Result<B::Reply, StoreError> {
        let (reply, answer) = oneshot::channel();
        let closed = || StoreError::unavailable(B::ATTEMPTED, "the store is closing");
        let waiting = Waiting { item, reply: Reply { answer: reply, room: None } };
        self.entrance.send(waiting).await.map_err(|_| closed())?;
        self.note_arrival();
        answer.await.map_err(|_| closed())?
    }

    /// Hand in one item like [`submit`](Self::submit), but refuse at once when too many items wait or they take too
    /// much memory. For outside callers, which can be asked to come back later.
    pub(crate) async fn submit_or_refuse(&self, item: B::Item) -> Result<B::Reply, StoreError> {
        let kib = (B::bytes(&item) >> 10).min(MAX_KIB);
        let room = Arc::clone(&self.room).try_acquire_many_owned(u32::try_from(kib).unwrap_or(u32::MAX));
        let Ok(room) = room else { return Err(StoreError::Overloaded { attempted: B::ATTEMPTED }) };
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting { item, reply: Reply { answer: reply, room: Some(room) } };
        self.entrance.try_send(waiting).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => StoreError::Overloaded { attempted: B::ATTEMPTED },
            mpsc::error::TrySendError::Closed(_) => StoreError::unavailable(B::ATTEMPTED, "the store is closing"),
        })?;
        self.note_arrival();
        answer.await.map_err(|_| StoreError::unavailable(B::ATTEMPTED, "the store is closing"))?
    }
}

/// Pieces into which a batch is split when one of its rows is locked. Each piece with a locked row costs a wait of one
/// second.
const PIECES: usize = 16;

/// Writes batches, one at a time, over a connection of its own.
struct Flusher<B: Batch> {
    batch: Arc<B>,
    link: DedicatedConnection,
    stuck: LockedRows<B>,
}

/// Outcome of the write of a batch or of a piece of it.
enum Flushed<B: Batch> {
    /// All items are written, and each caller has its answer.
    Written,
    /// Nothing is written, because another session holds a lock.
    Locked(Vec<Waiting<B>>),
    /// Nothing is written, and the rest of the batch will not be written either. The callers of these items have their
    /// answers.
    Out(StoreError),
}

impl<B: Batch> Flusher<B> {
    async fn flush_until_closed(mut self, queue: &Mutex<mpsc::Receiver<Waiting<B>>>, traffic: &Traffic) {
        let rows = metrics::histogram!("tickr_batch_rows", "write" => B::ATTEMPTED);
        let commit = metrics::histogram!("tickr_commit_seconds", "write" => B::ATTEMPTED);
        loop {
            let mut taken: Vec<Waiting<B>> = Vec::new();
            let writing = {
                // One flusher at a time fills its batch. The lock is released before the write, so the next flusher
                // gathers a batch while this one waits for the disk.
                let mut queue = queue.lock().await;
                let Some(first) = queue.recv().await else { return };
                traffic.turn(|| queue.len() + 1 < B::FULL / 2).await;
                gather::<B>(first, &mut queue, &mut taken).await;
                traffic.enter()
            };
            let mark = self.batch.mark();
            let taken = self.stuck.divert(taken, mark);
            if taken.is_empty() {
                continue;
            }
            rows.record(taken.len() as f64);
            let began = Instant::now();
            self.write(taken, mark).await;
            commit.record(began.elapsed().as_secs_f64());
            // Dropped after the answers: a flusher that waits for the end of this write can then take the next items of
            // the same callers.
            drop(writing);
        }
    }

    /// Write a batch and answer each caller in it: first those whose items go first, then the others.
    async fn write(&mut self, taken: Vec<Waiting<B>>, mark: B::Mark) {
        let (first, others): (Vec<_>, Vec<_>) = taken.into_iter().partition(|one| B::goes_first(&one.item));
        match self.write_part(first, mark).await {
            Ok(has_waited) => {
                // One session often locks rows of both parts, and no caller waits twice for so long.
                self.link.hurry(has_waited);
                drop(self.write_part(others, mark).await);
                self.link.hurry(false);
            }
            // An outage concerns all items. Their callers need not wait until each part has been tried.
            Err(error) => drop(answer_all(others.into_iter(), &error)),
        }
    }

    /// Write a part of a batch and answer each caller in it. Returns whether this has waited for a lock in vain, or the
    /// error if the rest of the batch will not be written either.
    async fn write_part(&mut self, taken: Vec<Waiting<B>>, mark: B::Mark) -> Result<bool, StoreError> {
        match self.flush(taken, mark).await {
            Flushed::Written => Ok(false),
            Flushed::Out(error) => Err(error),
            Flushed::Locked(taken) => {
                metrics::counter!("tickr_batches_split_total", "write" => B::ATTEMPTED).increment(1);
                self.link.hurry(true);
                let all_locked = self.write_in_pieces(taken, mark).await;
                self.link.hurry(false);
                if !all_locked.is_empty() {
                    self.flush_patiently(all_locked, mark).await;
                }
                Ok(true)
            }
        }
    }

    /// Write a batch in pieces, and hand items with locked rows to `locked_rows.rs`. Returns the remaining items when
    /// no piece could be written: then the lock is not about single rows, and the pieces would only wait one after the
    /// other.
    async fn write_in_pieces(&mut self, taken: Vec<Waiting<B>>, mark: B::Mark) -> Vec<Waiting<B>> {
        let mut rest = without_twins(taken);
        let size = rest.len().div_ceil(PIECES).max(1);
        let (mut passed, mut locked) = (false, Vec::new());
        while !rest.is_empty() {
            let after = rest.split_off(size.min(rest.len()));
            match self.flush(std::mem::replace(&mut rest, after), mark).await {
                Flushed::Written => passed = true,
                Flushed::Locked(piece) => locked.push(piece),
                Flushed::Out(error) => return answer_all(locked.into_iter().flatten().chain(rest), &error),
            }
            if !passed && locked.len() > 1 && size > 1 {
                return locked.into_iter().flatten().chain(rest).collect();
            }
        }
        let mut alone = locked.into_iter().flatten();
        while let Some(one) = alone.next() {
            match if size > 1 { self.flush(vec![one], mark).await } else { Flushed::Locked(vec![one]) } {
                Flushed::Written => {}
                Flushed::Locked(one) => self.leave_out(one, mark),
                Flushed::Out(error) => return answer_all(alone, &error),
            }
        }
        Vec::new()
    }

    /// Write all of these items, or none if one of their rows is locked.
    async fn flush(&mut self, taken: Vec<Waiting<B>>, mark: B::Mark) -> Flushed<B> {
        if taken.is_empty() {
            return Flushed::Written;
        }
        if taken.iter().all(|one| B::row(&one.item).is_none()) {
            return self.flush_patiently(taken, mark).await;
        }
        let (items, replies) = apart(taken);
        match flush(&self.batch, &items, mark, &mut self.link).await {
            Ok(None) => Flushed::Locked(together(items, replies)),
            Ok(Some(answers)) => self.answer(items, replies, Ok(answers), mark).await,
            Err(error) => self.answer(items, replies, Err(error), mark).await,
        }
    }

    /// Write all of these items and wait for locks, within the limits of a [`DedicatedConnection`].
    async fn flush_patiently(&mut self, taken: Vec<Waiting<B>>, mark: B::Mark) -> Flushed<B> {
        let (items, replies) = apart(taken);
        let written = self.link.run(B::ATTEMPTED, step(&self.batch, &items, mark)).await;
        self.answer(items, replies, written, mark).await
    }

    async fn answer(
        &mut self,
        items: Arc<Vec<B::Item>>,
        replies: Vec<Reply<B>>,
        written: Result<Vec<B::Reply>, StoreError>,
        mark: B::Mark,
    ) -> Flushed<B> {
        match written {
            Ok(answers) => {
                debug_assert_eq!(answers.len(), replies.len(), "one answer for each item");
                for (reply, answer) in replies.into_iter().zip(answers) {
                    reply.send(Ok(answer));
                }
                Flushed::Written
            }
            // One bad item must not fail the others: write each one separately, with an answer of its own.
            Err(error) if error.is_about_the_row() && items.len() > 1 => {
                tracing::warn!(%error, items = items.len(), "batch refused, writing its items one by one");
                self.one_by_one(together(items, replies), mark).await
            }
            Err(error) => {
                let about_the_row = error.is_about_the_row();
                if !about_the_row {
                    self.batch.gave_up(&items, mark, false);
                }
                for reply in replies {
                    reply.send(Err(error.clone()));
                }
                if about_the_row { Flushed::Written } else { Flushed::Out(error) }
            }
        }
    }

    /// Hand items with locked rows to `locked_rows.rs`.
    fn leave_out(&self, locked: Vec<Waiting<B>>, mark: B::Mark) {
        for one in locked {
            self.batch.gave_up(std::slice::from_ref(&one.item), mark, true);
            self.stuck.take_in(one, mark);
        }
    }

    /// Write each item separately. The mark stays the same, so that it finds what the refused run had written before it
    /// failed.
    async fn one_by_one(&mut self, taken: Vec<Waiting<B>>, mark: B::Mark) -> Flushed<B> {
        let mut rest = without_twins(taken).into_iter();
        while let Some(one) = rest.next() {
            // Boxed, because the compiler sees a recursion here: `flush` can call this function again.
            match Box::pin(self.flush(vec![one], mark)).await {
                Flushed::Written => {}
                Flushed::Locked(one) => self.leave_out(one, mark),
                // An outage concerns all items. Their callers need not wait until each one has been tried.
                Flushed::Out(error) => {
                    answer_all(rest, &error);
                    return Flushed::Out(error);
                }
            }
        }
        Flushed::Written
    }
}

/// Keep only the first of several items about one row, and answer the others if they can be left out. In one write
/// these items are told apart. In separate writes under one mark, each would take the work of the first for its own.
fn without_twins<B: Batch>(taken: Vec<Waiting<B>>) -> Vec<Waiting<B>> {
    let mut seen = HashSet::new();
    let mut kept = Vec::with_capacity(taken.len());
    for one in taken {
        let again = B::row(&one.item).is_some_and(|row| !seen.insert(row));
        match again.then(B::left_out).flatten() {
            Some(answer) => one.reply.send(Ok(answer)),
            None => kept.push(one),
        }
    }
    kept
}

/// Answer all items with the same error.
fn answer_all<B: Batch>(taken: impl Iterator<Item = Waiting<B>>, error: &StoreError) -> Vec<Waiting<B>> {
    for one in taken {
        one.reply.send(Err(error.clone()));
    }
    Vec::new()
}

fn apart<B: Batch>(taken: Vec<Waiting<B>>) -> (Arc<Vec<B::Item>>, Vec<Reply<B>>) {
    let (items, replies): (Vec<_>, Vec<_>) = taken.into_iter().map(|waiting| (waiting.item, waiting.reply)).unzip();
    (Arc::new(items), replies)
}

/// Join each item with its caller again. No step holds the items any more.
fn together<B: Batch>(items: Arc<Vec<B::Item>>, replies: Vec<Reply<B>>) -> Vec<Waiting<B>> {
    let items = Arc::into_inner(items).unwrap_or_default();
    items.into_iter().zip(replies).map(|(item, reply)| Waiting { item, reply }).collect()
}

/// Fill a batch with the items that wait already, and with those that ready tasks hand in now.
async fn gather<B: Batch>(first: Waiting<B>, queue: &mut mpsc::Receiver<Waiting<B>>, taken: &mut Vec<Waiting<B>>) {
    let mut weight = B::weight(&first.item);
    taken.push(first);
    let mut quiet = 0;
    let longest = tokio::time::sleep(MAX_GATHERING);
    tokio::pin!(longest);
    loop {
        let before = taken.len();
        while weight < B::FULL {
            let Ok(next) = queue.try_recv() else { break };
            weight += B::weight(&next.item);
            taken.push(next);
        }
        quiet = if taken.len() == before { quiet + 1 } else { 0 };
        if weight >= B::FULL || quiet >= QUIET_TURNS || longest.is_elapsed() {
            return;
        }
        // Go to the end of the runtime's queue, so that it first runs all tasks that are ready and reads news from the
        // network. Only this thread would wake the task again; if a handler blocks the thread, the timer wakes the task
        // on another one.
        tokio::select! {
            biased;
            () = tokio::task::yield_now() => {}
            () = &mut longest => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use sqlx::mysql::MySqlConnectOptions;

    use super::*;
    use crate::sql::connection::{DbFuture, PriorRun};
    use crate::sql::session::Session;
    use tickr_job::TablePrefix;

    /// Items that are their own size in bytes.
    struct Sizes;

    impl Batch for Sizes {
        type Item = usize;
        type Reply = ();
        type Mark = ();
        const ATTEMPTED: &'static str = "write nothing";
        const FULL: usize = 10;

        fn bytes(item: &usize) -> usize {
            *item
        }

        fn mark(&self) {}

        fn write<'c>(&'c self, _: &'c mut Session<'_>, _: &'c [usize], (): (), _: PriorRun) -> DbFuture<'c, Vec<()>> {
            Box::pin(async { Ok(Vec::new()) })
        }
    }

    #[tokio::test]
    async fn what_waits_is_bounded_in_bytes() {
        // Every item waits: the test has one thread, and the flusher only runs when this task awaits something that is
        // not ready.
        let group = GroupCommit::start(
            Sizes,
            &Target::new(vec![MySqlConnectOptions::new()], TablePrefix::default()),
            1,
            100,
            &TaskTracker::new(),
        );
        let half = MAX_KIB << 9;
        let mut first = std::pin::pin!(group.submit_or_refuse(half));
        let mut second = std::pin::pin!(group.submit_or_refuse(half));
        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        let third = group.submit_or_refuse(1 << 10).await;
        assert!(matches!(third, Err(StoreError::Overloaded { .. })), "{third:?}");
        // A small item is always accepted, and so is every item of an inside caller, which must not be refused.
        assert!(group.submit_or_refuse(1_000).now_or_never().is_none());
        assert!(group.submit(half).now_or_never().is_none());
    }
}
