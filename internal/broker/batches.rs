//! Batches: jobs that belong together, with callbacks that follow from their ends.

use tokio_util::sync::CancellationToken;

use crate::Broker;
use tickr_event::Event;
use tickr_job::{Actor, BatchId};
use tickr_store::{
    Batch, BatchCounted, BatchCreated, BatchProblems, IdempotentOutcome, IdempotentRequest, NewBatch, ResponseBuilder,
    StoreError,
};

impl Broker {
    /// Create a batch with its first jobs, all or nothing, at most once if there is an idempotency key. `build` builds the
    /// response from the receipts.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
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
    pub async fn close_batch(&self, id: BatchId, by: &Actor) -> Result<Option<Batch>, StoreError> {
        let Some((batch, counted)) = self.store.close_batch(id, by).await? else { return Ok(None) };
        self.announce(&counted.callbacks);
        Ok(Some(batch))
    }

    /// Add up what has changed in a batch, a few thousand changes at most, and start the callbacks that follow.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn count_batch(&self, id: BatchId) -> Result<BatchCounted, StoreError> {
        let counted = self.store.count_batch(id).await?;
        self.announce(&counted.callbacks);
        Ok(counted)
    }

    /// Cancel the jobs of batches that are marked as cancelled, until none waits or `stop` is cancelled. Executing ones are
    /// asked to stop. Returns whether all were reached.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn cancel_batch_jobs(&self, batches: &[BatchId], stop: &CancellationToken) -> Result<bool, StoreError> {
        for batch in batches {
            let mut after = None;
            loop {
                if stop.is_cancelled() {
                    return Ok(false);
                }
                let page = self.store.cancel_batch_jobs(*batch, after).await?;
                for id in page.cancelled {
                    self.events.emit(Event::Cancelled { id });
                }
                for id in page.stop_requested {
                    self.events.emit(Event::CancelRequested { id });
                }
                page.released.iter().for_each(|job| self.hint_released(job));
                match page.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
        }
        Ok(true)
    }
}
