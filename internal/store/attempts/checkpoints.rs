//! Saves and reads checkpoints of attempts that run, fenced by their tokens.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use tokio::sync::OwnedMutexGuard;
use uuid::Uuid;

use crate::rows::checkpoints::{HAS_CHECKPOINT, mark_checkpoints, read_checkpoint, sorted, write_checkpoints};
use crate::rows::owed::lock_free;
use crate::sql::clock::read_clock;
use crate::sql::connection::{on_pool, transact, transact_unless_locked};
use crate::sql::error::waited_for_lock;
use crate::sql::session::Session;
use crate::{Store, StoreError, StoreInner};
use tickr_job::{AttemptToken, Checkpoint, JobId};

/// Time for which the checkpoints of heartbeats are not saved, after a save has waited for a lock in vain.
const RESTS_FOR: Duration = Duration::from_secs(3);

/// The turn of saving the checkpoints of heartbeats of remote workers. A session that locks their table makes each save
/// wait for a second. One save at a time leaves a connection to the heartbeats themselves.
#[derive(Debug, Default)]
pub(crate) struct SaveTurn {
    free: Arc<tokio::sync::Mutex<()>>,
    /// When the last save waited for a lock in vain.
    waited: Mutex<Option<Instant>>,
}

impl SaveTurn {
    /// Wait for the turn. Returns nothing if a save has just waited for a lock in vain.
    async fn take(&self) -> Option<OwnedMutexGuard<()>> {
        if self.rests() {
            return None;
        }
        let turn = Arc::clone(&self.free).lock_owned().await;
        (!self.rests()).then_some(turn)
    }

    /// Note that a save has waited for a lock in vain.
    fn rest(&self) {
        *self.waited.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn rests(&self) -> bool {
        self.waited.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|since| since.elapsed() < RESTS_FOR)
    }
}

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
            Box::pin(async move { save_page(conn, &shared, &page, None).await })
        })
        .await
    }

    /// Do what [`save_checkpoints`](Self::save_checkpoints) does with those of a heartbeat of a remote worker. A row
    /// that cannot be read keeps no other from being saved. This returns at `until` at the latest. None is saved after
    /// that, when the worker has its answer: it may have sent a newer one since. Returns nothing if another call would
    /// be in vain: the time is over, or another session keeps a lock, which is not tried again for some seconds.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn save_reported_checkpoints(
        &self,
        page: Vec<NewCheckpoint>,
        until: Instant,
    ) -> Result<Option<Vec<NewCheckpoint>>, StoreError> {
        match self.save_reported_page(page.clone(), until).await {
            Err(error) if error.is_about_the_row() && page.len() > 1 => {}
            done => return done,
        }
        let mut saved = Vec::new();
        for new in page {
            let id = new.id;
            match self.save_reported_page(vec![new], until).await {
                Ok(Some(done)) => saved.extend(done),
                // The worker does not send again what is saved by now.
                Ok(None) => break,
                Err(error) if error.is_about_the_row() => {
                    tracing::error!(job = %id, %error, "cannot save the checkpoint of a job, leaving it out");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(saved))
    }

    /// Save this page when it is its turn. Returns nothing if the time is over first, or if a save has waited for a lock
    /// in vain.
    async fn save_reported_page(
        &self,
        page: Vec<NewCheckpoint>,
        until: Instant,
    ) -> Result<Option<Vec<NewCheckpoint>>, StoreError> {
        let saving = async {
            let Some(turn) = self.shared.save_turn.take().await else { return Ok(None) };
            let (shared, page) = (self.shared.clone(), Arc::new(page));
            transact_unless_locked(&self.shared.pools.beats, "save reported checkpoints", move |conn, _| {
                // The task of the transaction keeps the turn, also when its caller goes away.
                let _kept = &turn;
                let (shared, page) = (shared.clone(), Arc::clone(&page));
                Box::pin(async move {
                    let saved = save_page(conn, &shared, &page, Some(until)).await;
                    if saved.as_ref().is_err_and(waited_for_lock) {
                        shared.save_turn.rest();
                    }
                    saved
                })
            })
            .await
        };
        tokio::time::timeout_at(until.into(), saving).await.unwrap_or(Ok(None))
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

/// Save those of these checkpoints whose tokens hold their jobs and whose rows no other session locks, if the time is
/// not over when their rows are locked.
async fn save_page(
    conn: &mut Session<'_>,
    shared: &StoreInner,
    page: &[NewCheckpoint],
    until: Option<Instant>,
) -> Result<Vec<NewCheckpoint>, sqlx::Error> {
    let held = lock_free(conn, page.iter().map(|new| new.id)).await?;
    let ours: Vec<&NewCheckpoint> =
        page.iter().filter(|new| held.get(&new.id).is_some_and(|owed| owed.token == new.token)).collect();
    if ours.is_empty() || until.is_some_and(|until| until <= Instant::now()) {
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
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn one_heartbeat_saves_checkpoints_at_a_time_and_none_after_a_wait_in_vain() {
        let turn = SaveTurn::default();
        let first = turn.take().await.unwrap();
        let mut second = Box::pin(turn.take());
        assert!((&mut second).now_or_never().is_none(), "it waits for the first one");
        turn.rest();
        drop(first);
        assert!(second.await.is_none(), "the first one has waited for a lock in vain");
        assert!(turn.take().await.is_none());
        let long_ago = Instant::now().checked_sub(RESTS_FOR);
        *turn.waited.lock().unwrap() = long_ago;
        assert!(turn.take().await.is_some());
    }
}
