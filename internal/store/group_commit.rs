//! Group commit: calls that arrive while a write is under way share the next one.
//!
//! A durable commit costs about the same for one row as for hundreds. So callers put their item on a bounded channel and
//! wait; a few flushers, each with a connection of its own, take *everything that queued up while they were writing* and
//! write it in one transaction. There is no timer: an idle system flushes a single item at once, a busy one forms
//! batches of the size its load gives. (The idea is as old as database logs; PostgreSQL's `commit_siblings` and Kafka's
//! batching producer are relatives.)

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;

use sqlx::MySqlConnection;
use sqlx::mysql::MySqlConnectOptions;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::task::TaskTracker;

use super::error::StoreError;
use super::link::{Earlier, Link, Step};

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

    /// The mark of a new batch.
    fn mark(&self) -> Self::Mark;

    /// Write all items, or none, and answer each in order.
    fn write<'c>(
        &'c self,
        conn: &'c mut MySqlConnection,
        items: &'c [Self::Item],
        mark: Self::Mark,
        earlier: Earlier,
    ) -> Step<'c, Vec<Self::Reply>>;
}

type Waiting<B> = (<B as Batch>::Item, oneshot::Sender<Result<<B as Batch>::Reply, StoreError>>);

/// The entrance to one kind of batched write. Dropping the last clone lets its flushers finish and end.
pub(super) struct GroupCommit<B: Batch> {
    entrance: mpsc::Sender<Waiting<B>>,
}

impl<B: Batch> GroupCommit<B> {
    /// Start `flushers` flushers with room for `capacity` waiting items. The tasks are joined through `tasks`.
    pub(super) fn start(
        batch: B,
        options: &MySqlConnectOptions,
        flushers: usize,
        capacity: usize,
        tasks: &TaskTracker,
    ) -> Self {
        let (entrance, queue) = mpsc::channel(capacity);
        let (batch, queue) = (Arc::new(batch), Arc::new(Mutex::new(queue)));
        for _ in 0..flushers {
            let (batch, queue, options) = (Arc::clone(&batch), Arc::clone(&queue), options.clone());
            tasks.spawn(async move {
                // A panic loses its batch, whose callers are told, but never the flusher.
                while let Err(panic) = AssertUnwindSafe(flush_until_closed(&batch, &queue, Link::new(options.clone())))
                    .catch_unwind()
                    .await
                {
                    tracing::error!(attempted = B::ATTEMPTED, "flusher panicked and starts again");
                    drop(panic);
                }
            });
        }
        Self { entrance }
    }

    /// Hand in one item and wait until the batch that carries it is committed. A caller that goes away does not take
    /// its item back: it may still be written.
    pub(super) async fn submit(&self, item: B::Item) -> Result<B::Reply, StoreError> {
        let (reply, answer) = oneshot::channel();
        let closed = || StoreError::Unavailable { attempted: B::ATTEMPTED, cause: "the store is closing".into() };
        self.entrance.send((item, reply)).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    /// As [`submit`](Self::submit), but refuses at once when the channel is full: for callers outside, who can be told
    /// to come back.
    pub(super) async fn submit_or_refuse(&self, item: B::Item) -> Result<B::Reply, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.entrance.try_send((item, reply)).map_err(|refused| match refused {
            mpsc::error::TrySendError::Full(_) => StoreError::Overloaded { attempted: B::ATTEMPTED },
            mpsc::error::TrySendError::Closed(_) => {
                StoreError::Unavailable { attempted: B::ATTEMPTED, cause: "the store is closing".into() }
            }
        })?;
        answer
            .await
            .map_err(|_| StoreError::Unavailable { attempted: B::ATTEMPTED, cause: "the store is closing".into() })?
    }
}

async fn flush_until_closed<B: Batch>(batch: &Arc<B>, queue: &Mutex<mpsc::Receiver<Waiting<B>>>, mut link: Link) {
    let mut taken: Vec<Waiting<B>> = Vec::new();
    loop {
        {
            // One flusher at a time fills its batch; the lock is released before the write, so the next flusher
            // gathers while this one waits for the disk.
            let mut queue = queue.lock().await;
            let Some(first) = queue.recv().await else { return };
            let mut weight = B::weight(&first.0);
            taken.push(first);
            while weight < B::FULL {
                let Ok(next) = queue.try_recv() else { break };
                weight += B::weight(&next.0);
                taken.push(next);
            }
        }
        metrics::histogram!("tickr_batch_rows", "write" => B::ATTEMPTED).record(taken.len() as f64);
        let (items, replies): (Vec<_>, Vec<_>) = taken.drain(..).unzip();
        let items = Arc::new(items);
        let mark = batch.mark();
        match flush(batch, &items, mark, &mut link).await {
            Ok(answers) => {
                debug_assert_eq!(answers.len(), replies.len(), "one answer for each item");
                for (reply, answer) in replies.into_iter().zip(answers) {
                    // A caller that went away does not need its answer.
                    let _ = reply.send(Ok(answer));
                }
            }
            // One bad item must not fail its neighbours: try each on its own and let it answer for itself.
            Err(e) if !e.is_transient() && items.len() > 1 => {
                tracing::warn!(error = %e, items = items.len(), "batch refused, writing its items one by one");
                for (item, reply) in Arc::into_inner(items).unwrap_or_default().into_iter().zip(replies) {
                    // Under the same mark, which finds what the refused run had written before it failed.
                    let alone = flush(batch, &Arc::new(vec![item]), mark, &mut link).await;
                    let _ = reply.send(alone.and_then(|mut answers| {
                        answers.pop().ok_or(StoreError::Refused {
                            attempted: B::ATTEMPTED,
                            cause: "no answer for a single item".into(),
                        })
                    }));
                }
            }
            Err(e) => {
                for reply in replies {
                    let _ = reply.send(Err(e.clone()));
                }
            }
        }
    }
}

async fn flush<B: Batch>(
    batch: &Arc<B>,
    items: &Arc<Vec<B::Item>>,
    mark: B::Mark,
    link: &mut Link,
) -> Result<Vec<B::Reply>, StoreError> {
    link.run(B::ATTEMPTED, |conn, earlier| {
        // Shared, not borrowed: the step must be able to outlive any one connection.
        let (batch, items) = (Arc::clone(batch), Arc::clone(items));
        Box::pin(async move { batch.write(conn, &items, mark, earlier).await })
    })
    .await
}
