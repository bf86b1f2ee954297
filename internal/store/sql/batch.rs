//! The rules for the batches of one kind of write, and one run of such a write.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::sql::connection::{DbFuture, DedicatedConnection, PriorRun};
use crate::sql::error::StoreError;
use crate::sql::session::Session;
use tickr_job::JobId;

/// The rules for the batches of one kind of write.
pub(crate) trait Batch: Send + Sync + 'static {
    /// The item that a caller hands in.
    type Item: Send + Sync + 'static;
    /// The answer that the caller gets.
    type Reply: Send + 'static;
    /// A value that is made once for a batch and is the same in every run of it, so that a repeated run recognises its
    /// own work.
    type Mark: Copy + Send + Sync + 'static;

    /// The action, for errors, logs and metrics.
    const ATTEMPTED: &'static str;
    /// The weight at which a batch is full.
    const FULL: usize;

    /// Return the weight of `item`: its rows, and one more for every
    /// [`BYTES_PER_ROW`](crate::sql::batches::BYTES_PER_ROW) bytes.
    fn weight(item: &Self::Item) -> usize {
        let _ = item;
        1
    }

    /// Return the memory in bytes that `item` takes while it waits.
    fn bytes(item: &Self::Item) -> usize {
        let _ = item;
        0
    }

    /// Return the job whose row in `owed` this item has to lock, if the row exists before the write.
    fn row(item: &Self::Item) -> Option<JobId> {
        let _ = item;
        None
    }

    /// Return whether this item is written before others of its batch, in one transaction with those like it. So its
    /// caller has the answer while the others still wait for a lock.
    fn goes_first(item: &Self::Item) -> bool {
        let _ = item;
        false
    }

    /// Return the answer for an item that need not be written now: another session locks its row, or another item of
    /// the batch is about the same row and the two are written apart. Without such an answer an item waits until it is
    /// written.
    fn left_out() -> Option<Self::Reply> {
        None
    }

    /// Return the mark of a new batch.
    fn mark(&self) -> Self::Mark;

    /// Note that the flusher does not wait for an answer to these items any more, or that their row is `locked`. The
    /// write may have been committed nevertheless; for a locked row this is possible only if an earlier run of the
    /// write got no answer.
    fn gave_up(&self, items: &[Self::Item], mark: Self::Mark, locked: bool) {
        let _ = (items, mark, locked);
    }

    /// Write all items or none. Return one answer for each item, in order.
    fn write<'c>(
        &'c self,
        conn: &'c mut Session<'_>,
        items: &'c [Self::Item],
        mark: Self::Mark,
        earlier: PriorRun,
    ) -> DbFuture<'c, Vec<Self::Reply>>;
}

/// A waiting item, and the way to its caller.
pub(crate) struct Waiting<B: Batch> {
    pub(crate) item: B::Item,
    pub(crate) reply: Reply<B>,
}

/// The way to the caller, and the memory that the item occupies until it is answered.
pub(crate) struct Reply<B: Batch> {
    pub(crate) answer: oneshot::Sender<Result<B::Reply, StoreError>>,
    pub(crate) room: Option<OwnedSemaphorePermit>,
}

impl<B: Batch> Reply<B> {
    /// Answer the caller. A caller that has gone away needs no answer.
    pub(crate) fn send(self, answer: Result<B::Reply, StoreError>) {
        let Self { answer: waits, room } = self;
        drop(room);
        let _ = waits.send(answer);
    }
}

/// The error for an item whose row stays locked.
pub(crate) fn locked_row<B: Batch>() -> StoreError {
    StoreError::unavailable(B::ATTEMPTED, "another session holds a lock on its row")
}

/// Write these items, or nothing if the wait for a lock timed out.
pub(crate) async fn flush<B: Batch>(
    batch: &Arc<B>,
    items: &Arc<Vec<B::Item>>,
    mark: B::Mark,
    link: &mut DedicatedConnection,
) -> Result<Option<Vec<B::Reply>>, StoreError> {
    link.run_unless_locked(B::ATTEMPTED, step(batch, items, mark)).await
}

/// One run of the write.
pub(crate) fn step<B: Batch>(
    batch: &Arc<B>,
    items: &Arc<Vec<B::Item>>,
    mark: B::Mark,
) -> impl for<'c> Fn(&'c mut Session<'_>, PriorRun) -> DbFuture<'c, Vec<B::Reply>> {
    move |conn, earlier| {
        // Shared and not borrowed, because the step must be able to outlive any one connection.
        let (batch, items) = (Arc::clone(batch), Arc::clone(items));
        Box::pin(async move { batch.write(conn, &items, mark, earlier).await })
    }
}
