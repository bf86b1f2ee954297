//! Batches: jobs that belong together, with callbacks that follow from their ends.

use async_recursion::async_recursion as boxed;
use tokio_util::sync::CancellationToken;

use crate::Broker;
use tickr_event::Event;
use tickr_job::{Actor, BatchId, JobId};
use tickr_store::{
    Batch, BatchCancelled, BatchCounted, BatchCreated, BatchProblems, IdempotentOutcome, IdempotentRequest,
    LEFT_AT_ONCE, NewBatch, ResponseBuilder, StoreError,
};

impl Broker {
    /// Create a batch with its first jobs, all or nothing, at most once if there is an idempotency key. `build` builds the
    /// response from the receipts.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn create_batch(
        &self,
        new: NewBatch,
        by: &Actor,
        idempotent: Option<IdempotentRequest>,
        build: ResponseBuilder<BatchCreated>,
    ) -> Result<IdempotentOutcome<BatchCreated, BatchProblems>, StoreError> {
        let outcome = self.store.create_batch(new, by, idempotent, build).await?;
        if let IdempotentOutcome::First { done: Some(created), .. } = &outcome {
            self.announce(&created.accepted);
        }
        Ok(outcome)
    }

    /// Close a batch. Returns nothing if there is no such batch.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn close_batch(&self, id: BatchId, by: &Actor) -> Result<Option<Batch>, StoreError> {
        let Some((batch, counted)) = self.store.close_batch(id, by).await? else { return Ok(None) };
        self.announce(&counted.callbacks);
        Ok(Some(batch))
    }

    /// Add up what has changed in a batch, a few thousand changes at most, and start the callbacks that follow. Returns
    /// nothing if another session locks the batch, or with `waits` has kept it locked for seconds.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn count_batch(&self, id: BatchId, waits: bool) -> Result<Option<BatchCounted>, StoreError> {
        let counted = self.store.count_batch(id, waits).await?;
        if let Some(counted) = &counted {
            self.announce(&counted.callbacks);
        }
        Ok(counted)
    }

    /// Mark the nested batches of a batch that is marked as cancelled, and cancel the jobs of all of them, until none waits
    /// or `stop` is cancelled. Returns whether all were reached. A runner goes on with the others.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn cancel_marked_batch(
        &self,
        id: BatchId,
        by: &Actor,
        stop: &CancellationToken,
    ) -> Result<bool, StoreError> {
        let batches = self.store.mark_nested(id, by, stop).await?;
        self.cancel_batch_jobs(&batches, stop, true).await
    }

    /// Cancel the jobs of batches that are marked as cancelled, until none waits or `stop` is cancelled. Executing ones are
    /// asked to stop. Those that another session locks are left, or with `waits_for_locks` tried again after all others,
    /// for some seconds, until some stay locked. Returns whether all were reached.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn cancel_batch_jobs(
        &self,
        batches: &[BatchId],
        stop: &CancellationToken,
        waits_for_locks: bool,
    ) -> Result<bool, StoreError> {
        let mut left: Vec<(BatchId, Vec<JobId>)> = Vec::new();
        for batch in batches {
            let (mut after, mut locked) = (None, Vec::new());
            loop {
                if stop.is_cancelled() {
                    return Ok(false);
                }
                let page = self.store.cancel_batch_jobs(*batch, after).await?;
                after = page.next;
                locked.extend(self.announce_cancelled(page));
                if after.is_none() {
                    break;
                }
            }
            if !locked.is_empty() {
                left.push((*batch, locked));
            }
        }
        if !waits_for_locks {
            return Ok(left.is_empty());
        }
        for (batch, jobs) in left {
            for jobs in jobs.chunks(LEFT_AT_ONCE) {
                if stop.is_cancelled() {
                    return Ok(false);
                }
                let page = self.store.cancel_left_jobs(batch, jobs).await?;
                if !self.announce_cancelled(page).is_empty() {
                    // Each further wait takes a connection for seconds. A runner comes back to the jobs that are left.
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Publish what a part of a cancel has done. Returns the jobs that were left.
    fn announce_cancelled(&self, part: BatchCancelled) -> Vec<JobId> {
        for id in part.cancelled {
            self.events.emit(Event::Cancelled { id });
        }
        for id in part.stop_requested {
            self.events.emit(Event::CancelRequested { id });
        }
        part.released.iter().for_each(|job| self.hint_released(job));
        part.left
    }
}
