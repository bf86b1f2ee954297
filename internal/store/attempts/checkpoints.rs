//! Saves and reads checkpoints of attempts that run, fenced by their tokens.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use uuid::Uuid;

use crate::rows::checkpoints::{HAS_CHECKPOINT, mark_checkpoints, read_checkpoint, sorted, write_checkpoints};
use crate::rows::owed::lock_free;
use crate::sql::clock::read_clock;
use crate::sql::connection::{on_pool, transact};
use crate::{Store, StoreError};
use tickr_job::{AttemptToken, Checkpoint, JobId};

/// A checkpoint on its way to the store.
#[derive(Clone)]
pub struct NewCheckpoint {
    /// The id of the job.
    pub id: JobId,
    /// The token of the attempt that saves it.
    pub token: AttemptToken,
    /// The JSON text.
    pub content: Arc<str>,
    /// A number of the caller for this content.
    pub version: u64,
}

impl std::fmt::Debug for NewCheckpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Like a payload, the content must not appear in logs.
        f.debug_struct("NewCheckpoint")
            .field("id", &self.id)
            .field("bytes", &self.content.len())
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Save checkpoints in one transaction, each if its token still holds the job. Returns those that were saved. A row
    /// that another session locks is left for the next call.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn save_checkpoints(&self, page: Vec<NewCheckpoint>) -> Result<Vec<NewCheckpoint>, StoreError> {
        let (shared, page) = (self.shared.clone(), Arc::new(page));
        transact(&self.shared.pools.loops, "save checkpoints", move |conn, _| {
            let (shared, page) = (shared.clone(), Arc::clone(&page));
            Box::pin(async move {
                let held = lock_free(conn, page.iter().map(|new| new.id)).await?;
                let ours: Vec<&NewCheckpoint> =
                    page.iter().filter(|new| held.get(&new.id).is_some_and(|owed| owed.token == new.token)).collect();
                if ours.is_empty() {
                    return Ok(Vec::new());
                }
                let unmarked = ours.iter().filter(|new| held[&new.id].links & HAS_CHECKPOINT == 0);
                let mut unmarked: Vec<Uuid> = unmarked.map(|new| new.id.uuid()).collect();
                unmarked.sort_unstable();
                mark_checkpoints(conn, &unmarked).await?;
                let now = read_clock(conn, &shared.clock).await?;
                let rows = sorted(ours.iter().map(|new| (new.id.uuid(), &*new.content)));
                write_checkpoints(conn, &rows, now).await?;
                Ok(ours.into_iter().cloned().collect())
            })
        })
        .await
    }

    /// Read the checkpoint of a job, if there is one.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn checkpoint(&self, id: JobId) -> Result<Option<Checkpoint>, StoreError> {
        on_pool(&self.shared.pools.workers, "read a checkpoint", move |conn, _| {
            Box::pin(async move { read_checkpoint(conn, id.uuid()).await })
        })
        .await
    }
}
