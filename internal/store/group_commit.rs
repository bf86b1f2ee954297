//! Group commit: calls that arrive while a write is under way share the next one.
//!
//! A durable commit costs about the same for one row as for hundreds. So callers put their item on a bounded channel and
//! wait; a few flushers, each with a connection of its own, take *everything that queued up while they were writing* and
//! write it in one transaction. An idle system flushes a single item at once, a busy one forms batches of the size its
//! load gives. (The idea is as old as database logs; PostgreSQL's `commit_siblings` and Kafka's batching producer are
//! relatives.)
//!
//! Two rules keep the batches whole, because two half batches cost nearly twice as much as one:
//! - A flusher that has its first item lets everybody run who is ready to run before it takes the rest. Those whose
//!   answers have just gone out come back with their next item at that very moment.
//! - While another flusher writes, a batch that is not yet worth a commit of its own waits for the end of that write.
//!   It waits [`PATIENCE`] at most: a write that is stuck on a lock must not hold up the others.
//!
//! And one rule takes them apart: a batch that has waited for a lock in vain is written in pieces, until the rows that
//! another session holds are alone. Those go to a lane of their own (`stuck.rs`), and later writes of the same rows follow them there, so that
//! the next batches do not wait for them again.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;

use sqlx::MySqlConnection;
use tokio::sync::{Mutex, Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::task::TaskTracker;

use super::error::StoreError;
use super::link::{Earlier, Link, Step, Target};
use super::stuck::Stuck;
use crate::job::JobId;

/// How long a small batch waits for the end of a write that is under way.
const PATIENCE: Duration = Duration::from_millis(2);
/// Times in a row that nobody may come before a batch is taken as it is.
const QUIET_TURNS: u32 = 3;
/// A runtime that takes longer to come back is busy with something else, and is not waited for again.
const LONGEST_GATHERING: Duration = Duration::from_millis(1);

/// How one kind of write treats a batch.
pub(super) trait Batch: Send + Sync + 'static {
    /// What a caller hands in.
    type Item: Send + Sync + 'static;
    /// What the caller gets back.
    type Reply: Send + 'static;
    /// Made once for a batch and the same in every run of it, so that a repeated run recognises its own work.
    type Mark: Copy + Send + Sync + 'static;

    /// For errors and logs.
    const ATTEMPTED: &'static str;
    /// Weight at which a batch is full.
    const FULL: usize;

    /// How much of a batch `item` takes: its rows, and one more for every [`BYTES_PER_ROW`] bytes.
    fn weight(item: &Self::Item) -> usize {
        let _ = item;
        1
    }

    /// How much memory `item` takes while it waits.
    fn bytes(item: &Self::Item) -> usize {
        let _ = item;
        0
    }

    /// The job whose row in `owed` this item has to lock, if it needs one that is there already.
    fn row(item: &Self::Item) -> Option<JobId> {
        let _ = item;
        None
    }

    /// The answer for an item that need not be written now: its row is locked by another session, or another item of its
    /// batch is about the same row and the two are not written together. Without one an item stays until it is written.
    fn left_out() -> Option<Self::Reply> {
        None
    }

    /// The mark of a new batch.
    fn mark(&self) -> Self::Mark;

    /// No answer to a write of these items will be waited for, or their row is `locked`. The write may have been committed
    /// all the same; of a locked row only if an earlier run of the write got no answer.
    fn gave_up(&self, items: &[Self::Item], mark: Self::Mark, locked: bool) {
        let _ = (items, mark, locked);
    }

    /// Write all items, or none, and answer each in order.
    fn write<'c>(
        &'c self,
        conn: &'c mut MySqlConnection,
        items: &'c [Self::Item],
        mark: Self::Mark,
        earlier: Earlier,
    ) -> Step<'c, Vec<Self::Reply>>;
}

/// Memory that the items of callers outside may take, in KiB: a quarter of a gigabyte.
const MOST_KIB: usize = 256 << 10;

/// An item that waits, and who waits for it.
pub(super) struct Waiting<B: Batch> {
    pub(super) item: B::Item,
    pub(super) reply: Reply<B>,
}

/// Where the answer goes, and the room that the item takes until then.
pub(super) struct Reply<B: Batch> {
    answer: oneshot::Sender<Result<B::Reply, StoreError>>,
    room: Option<OwnedSemaphorePermit>,
}

impl<B: Batch> Reply<B> {
    /// A caller that went away does not need its answer.
    pub(super) fn send(self, answer: Result<B::Reply, StoreError>) {
        let Self { answer: waits, room } = self;
        drop(room);
        let _ = waits.send(answer);
    }
}

/// The entrance to one kind of batched write. Dropping it lets its flushers finish and end.
pub(super) struct GroupCommit<B: Batch> {
    entrance: mpsc::Sender<Waiting<B>>,
    traffic: Arc<Traffic>,
    room: Arc<Semaphore>,
}

/// What the flushers of one kind of write know of each other.
#[derive(Default)]
struct Traffic {
    /// Flushers that are writing.
    writing: AtomicUsize,
    /// The next batch need not wait any longer: a write ended, or enough has queued up.
    go: Notify,
}

impl Traffic {
    /// Count one that writes, until the guard is dropped.
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

    /// Wait while somebody writes and there is little to write, within reason.
    async fn turn(&self, little: impl Fn() -> bool) {
        let wait = async {
            // Looked at again after each call, which may be an old one that nobody waited for.
            while self.writing.load(Ordering::SeqCst) > 0 && little() {
                self.go.notified().await;
            }
        };
        let _ = tokio::time::timeout(PATIENCE, wait).await;
    }
}

impl<B: Batch> GroupCommit<B> {
    /// Start `flushers` flushers with room for `capacity` waiting items. The tasks are joined through `tasks`.
    pub(super) fn start(batch: B, target: &Target, flushers: usize, capacity: usize, tasks: &TaskTracker) -> Self {
        let (entrance, queue) = mpsc::channel(capacity);
        let traffic = Arc::new(Traffic::default());
        let (batch, queue) = (Arc::new(batch), Arc::new(Mutex::new(queue)));
        let stuck = Stuck::start(&batch, target, tasks);
        for _ in 0..flushers {
            let (batch, queue, target) = (Arc::clone(&batch), Arc::clone(&queue), target.clone());
            let (traffic, stuck) = (Arc::clone(&traffic), stuck.clone());
            tasks.spawn(async move {
                // A panic loses its batch, whose callers are told, but never the flusher.
                loop {
                    let link = Link::new(target.clone());
                    let flusher = Flusher { batch: Arc::clone(&batch), link, stuck: stuck.clone() };
                    let flushed = AssertUnwindSafe(flusher.flush_until_closed(&queue, &traffic)).catch_unwind().await;
                    let Err(panic) = flushed else { return };
                    tracing::error!(attempted = B::ATTEMPTED, "flusher panicked and starts again");
                    drop(panic);
                }
            });
        }
        Self { entrance, traffic, room: Arc::new(Semaphore::new(MOST_KIB)) }
    }

    /// An item was handed in. Half a batch is worth a write beside the one that is under way.
    fn came(&self) {
        if self.entrance.max_capacity() - self.entrance.capacity() >= B::FULL / 2 {
            self.traffic.go.notify_one();
        }
    }

    /// Hand in one item and wait until the batch that carries it is committed. A caller that goes away does not take
    /// its item back: it may still be written.
    pub(super) async fn submit(&self, item: B::Item) -> Result<B::Reply, StoreError> {
        let (reply, answer) = oneshot::channel();
        let closed = || StoreError::Unavailable { attempted: B::ATTEMPTED, cause: "the store is closing".into() };
        let waiting = Waiting { item, reply: Reply { answer: reply, room: None } };
        self.entrance.send(waiting).await.map_err(|_| closed())?;
        self.came();
        answer.await.map_err(|_| closed())?
    }

    /// As [`submit`](Self::submit), but refuses at once when too many wait or what waits takes too much memory: for callers
    /// outside, who can be told to come back.
    pub(super) async fn submit_or_refuse(&self, item: B::Item) -> Result<B::Reply, StoreError> {
        let kib = (B::bytes(&item) >> 10).min(MOST_KIB);
        let room = Arc::clone(&self.room).try_acquire_many_owned(u32::try_from(kib).unwrap_or(u32::MAX));
        let Ok(room) = room else { return Err(StoreError::Overloaded { attempted: B::ATTEMPTED }) };
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting { item, reply: Reply { answer: reply, room: Some(room) } };
        self.entrance.try_send(waiting).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => StoreError::Overloaded { attempted: B::ATTEMPTED },
            mpsc::error::TrySendError::Closed(_) => {
                StoreError::Unavailable { attempted: B::ATTEMPTED, cause: "the store is closing".into() }
            }
        })?;
        self.came();
        answer
            .await
            .map_err(|_| StoreError::Unavailable { attempted: B::ATTEMPTED, cause: "the store is closing".into() })?
    }
}

/// Pieces that a batch is cut into when one of its rows is locked. Each that is stuck costs a second.
const PIECES: usize = 16;

/// Writes batches, one at a time, over a connection of its own.
struct Flusher<B: Batch> {
    batch: Arc<B>,
    link: Link,
    stuck: Stuck<B>,
}

/// What was written of a batch, or of a piece of it.
enum Flushed<B: Batch> {
    /// Everything: each caller has its answer.
    Written,
    /// Nothing: another session holds a lock.
    Locked(Vec<Waiting<B>>),
    /// Nothing, and the rest of the batch will not be written either. Those in it have their answers.
    Out(StoreError),
}

impl<B: Batch> Flusher<B> {
    async fn flush_until_closed(mut self, queue: &Mutex<mpsc::Receiver<Waiting<B>>>, traffic: &Traffic) {
        let rows = metrics::histogram!("tickr_batch_rows", "write" => B::ATTEMPTED);
        let commit = metrics::histogram!("tickr_commit_seconds", "write" => B::ATTEMPTED);
        loop {
            let mut taken: Vec<Waiting<B>> = Vec::new();
            let writing = {
                // One flusher at a time fills its batch; the lock is released before the write, so the next flusher
                // gathers while this one waits for the disk.
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
            // After the answers, so that whoever waits for the end of this write can take in what follows from them.
            drop(writing);
        }
    }

    /// Write a batch and answer each caller in it.
    async fn write(&mut self, taken: Vec<Waiting<B>>, mark: B::Mark) {
        if let Flushed::Locked(taken) = self.flush(taken, mark).await {
            metrics::counter!("tickr_batches_split_total", "write" => B::ATTEMPTED).increment(1);
            self.link.hurry(true);
            let all_locked = self.write_in_pieces(taken, mark).await;
            self.link.hurry(false);
            if !all_locked.is_empty() {
                self.flush_patiently(all_locked, mark).await;
            }
        }
    }

    /// Write a batch in pieces and leave those whose row is locked to their lane. Gives back what is left when nothing gets
    /// through: then the lock is not about single rows, and pieces would only wait one after the other.
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

    /// Write all of these, or none if a row of theirs is locked.
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

    /// Write all of these, however long a lock is to be waited for, within the rules of a [`Link`].
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
            // One bad item must not fail its neighbours: try each on its own and let it answer for itself.
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

    /// Leave those whose row is locked to their lane.
    fn leave_out(&self, locked: Vec<Waiting<B>>, mark: B::Mark) {
        for one in locked {
            self.batch.gave_up(std::slice::from_ref(&one.item), mark, true);
            self.stuck.take_in(one, mark);
        }
    }

    /// Under the same mark, which finds what the refused run had written before it failed.
    async fn one_by_one(&mut self, taken: Vec<Waiting<B>>, mark: B::Mark) -> Flushed<B> {
        let mut rest = without_twins(taken).into_iter();
        while let Some(one) = rest.next() {
            // In a box, because writing a single item could come back here as far as the compiler knows.
            match Box::pin(self.flush(vec![one], mark)).await {
                Flushed::Written => {}
                Flushed::Locked(one) => self.leave_out(one, mark),
                // An outage meets all of them: their callers need not wait for two hundred tries of it.
                Flushed::Out(error) => {
                    answer_all(rest, &error);
                    return Flushed::Out(error);
                }
            }
        }
        Flushed::Written
    }
}

/// The error for an item whose row stays locked.
pub(super) fn locked_row<B: Batch>() -> StoreError {
    StoreError::Unavailable { attempted: B::ATTEMPTED, cause: "another session holds a lock on its row".into() }
}

/// Only the first of several items about one row, if the others can be left out. Written together they know of each other;
/// written apart, under one mark, each would take what the first has done for its own.
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

/// The same error for all of them.
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

/// Each item with its caller again. No step holds the items any more.
fn together<B: Batch>(items: Arc<Vec<B::Item>>, replies: Vec<Reply<B>>) -> Vec<Waiting<B>> {
    let items = Arc::into_inner(items).unwrap_or_default();
    items.into_iter().zip(replies).map(|(item, reply)| Waiting { item, reply }).collect()
}

/// Fill a batch: what waits already, and what those hand in who are ready to run.
async fn gather<B: Batch>(first: Waiting<B>, queue: &mut mpsc::Receiver<Waiting<B>>, taken: &mut Vec<Waiting<B>>) {
    let mut weight = B::weight(&first.item);
    taken.push(first);
    let mut quiet = 0;
    let longest = tokio::time::sleep(LONGEST_GATHERING);
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
        // To the end of the line: this runtime first runs everybody who can, and looks for news from the network.
        // It comes back by this thread alone. Should a handler block it, the clock wakes this task on another one.
        tokio::select! {
            biased;
            () = tokio::task::yield_now() => {}
            () = &mut longest => {}
        }
    }
}

/// Write these, or nothing if a lock was waited for in vain.
pub(super) async fn flush<B: Batch>(
    batch: &Arc<B>,
    items: &Arc<Vec<B::Item>>,
    mark: B::Mark,
    link: &mut Link,
) -> Result<Option<Vec<B::Reply>>, StoreError> {
    link.run_unless_locked(B::ATTEMPTED, step(batch, items, mark)).await
}

/// One run of the write.
fn step<B: Batch>(
    batch: &Arc<B>,
    items: &Arc<Vec<B::Item>>,
    mark: B::Mark,
) -> impl for<'c> Fn(&'c mut MySqlConnection, Earlier) -> Step<'c, Vec<B::Reply>> {
    move |conn, earlier| {
        // Shared, not borrowed: the step must be able to outlive any one connection.
        let (batch, items) = (Arc::clone(batch), Arc::clone(items));
        Box::pin(async move { batch.write(conn, &items, mark, earlier).await })
    }
}

#[cfg(test)]
mod tests {
    use sqlx::mysql::MySqlConnectOptions;

    use super::*;

    /// Items that say how large they are.
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

        fn write<'c>(&'c self, _: &'c mut MySqlConnection, _: &'c [usize], (): (), _: Earlier) -> Step<'c, Vec<()>> {
            Box::pin(async { Ok(Vec::new()) })
        }
    }

    #[tokio::test]
    async fn what_waits_is_bounded_in_bytes() {
        // Everything waits: on one thread the flusher does not come to run before this awaits something that is not ready.
        let group = GroupCommit::start(Sizes, &Target::new(MySqlConnectOptions::new()), 1, 100, &TaskTracker::new());
        let half = MOST_KIB << 9;
        let mut first = std::pin::pin!(group.submit_or_refuse(half));
        let mut second = std::pin::pin!(group.submit_or_refuse(half));
        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        let third = group.submit_or_refuse(1 << 10).await;
        assert!(matches!(third, Err(StoreError::Overloaded { .. })), "{third:?}");
        // What is small is never in the way, and neither are those inside, who must not be refused.
        assert!(group.submit_or_refuse(1_000).now_or_never().is_none());
        assert!(group.submit(half).now_or_never().is_none());
    }
}
