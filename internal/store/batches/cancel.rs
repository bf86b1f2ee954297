//! The cancel of a batch with all of its jobs.
//!
//! The first transaction marks the batch and its nested ones: no job is added any more, and a follow-up job of one that
//! runs is accepted but cannot start. Then the jobs are cancelled, a few hundred at a time. A row in `batch_cancels`
//! stays until none is left, so any runner can finish what another one began.
//!
//! A job that another session locks, or whose order key it locks, is left for a later pass, and the others are cancelled.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use async_recursion::async_recursion as boxed;
use rand::seq::SliceRandom;
use sqlx::Row;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::audit::{AuditEntry, record};
use crate::batches::create::look_again;
use crate::jobs::actions::{CancelledJobs, cancel_all};
use crate::rows::links::{AWAITED, IN_BATCH};
use crate::rows::order::{lock_free_keys_of, lock_keys_of};
use crate::rows::owed::{DueJob, SKIP_LOCKED, left_of, lock_free, lock_held};
use crate::rows::tallies::count;
use crate::rows::unique_keys::lock_free_keys;
use crate::sql::batches::statement;
use crate::sql::clock::read_clock;
use crate::sql::cluster::{Locked, lock_in_cluster};
use crate::sql::connection::{PriorRun, on_pool, transact_unless_locked};
use crate::sql::pools::transact_in_turn;
use crate::sql::session::Session;
use crate::sql::turns::Subject;
use crate::{Store, StoreError, StoreInner};
use tickr_job::{Actor, BatchId, JobId};

/// Jobs that one transaction cancels at most. While MySQL answers slowly, it cancels fewer.
pub(crate) const JOBS: u32 = 1_000;
/// Cancelled batches that one look finds at most.
const CANCELS: u32 = 1_000;
/// Jobs that one call of [`Store::cancel_left_jobs`] takes at most.
pub const LEFT_AT_ONCE: usize = 1_000;
/// Nested batches that one transaction finds at most.
const NESTED: u32 = 256;
const ATTEMPTED: &str = "cancel jobs of a batch";

/// Outcome of the mark with which the cancel of a batch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelMark {
    /// The batch is marked as cancelled, now or before.
    Marked,
    /// The batch has ended, and stays as it is.
    Ended,
    /// There is no such batch.
    Missing,
}

/// Outcome of a part of the cancel of a batch.
#[derive(Clone, Debug, Default)]
pub struct BatchCancelled {
    /// Jobs that were cancelled.
    pub cancelled: Vec<JobId>,
    /// Executing jobs that were asked to stop.
    pub stop_requested: Vec<JobId>,
    /// Jobs that were behind those with the same order keys, and may run now.
    pub released: Vec<DueJob>,
    /// Jobs that stay as they were, because another session locks them or their order keys.
    pub left: Vec<JobId>,
    /// The job behind which the next part begins, if there may be one.
    pub next: Option<JobId>,
}

impl BatchCancelled {
    fn add(&mut self, part: Self) {
        self.cancelled.extend(part.cancelled);
        self.stop_requested.extend(part.stop_requested);
        self.released.extend(part.released);
        self.left.extend(part.left);
    }
}

impl Store {
    /// Mark a batch as cancelled. No job is added to it any more. The caller then marks the nested batches with
    /// [`mark_nested`](Self::mark_nested), and cancels the jobs with [`cancel_batch_jobs`](Self::cancel_batch_jobs). Until
    /// all of this is done, any runner goes on with it.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn cancel_batch(&self, id: BatchId, by: &Actor) -> Result<CancelMark, StoreError> {
        let marked = self.mark_cancelled(id, by, None).await?;
        self.shared.batches_changed.notify_one();
        Ok(marked.err().unwrap_or(CancelMark::Marked))
    }

    /// Mark the nested batches of a cancelled batch, until `stop` is cancelled. Returns those that are marked, with the
    /// batch itself in front.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn mark_nested(
        &self,
        id: BatchId,
        by: &Actor,
        stop: &CancellationToken,
    ) -> Result<Vec<BatchId>, StoreError> {
        let mut marked = vec![id];
        let mut met = BTreeSet::from([id]);
        let mut to_mark = vec![id];
        while let Some(batch) = to_mark.pop() {
            let mut behind = None;
            while !stop.is_cancelled() {
                let Ok(nested) = self.mark_cancelled(batch, by, behind).await? else { break };
                if batch != id && behind.is_none() {
                    marked.push(batch);
                }
                behind = nested.last().copied().filter(|_| nested.len() as u32 == NESTED);
                to_mark.extend(nested.into_iter().filter(|nested| met.insert(*nested)));
                if behind.is_none() {
                    break;
                }
            }
        }
        self.shared.batches_changed.notify_one();
        Ok(marked)
    }

    /// Mark one batch, and return a page of its unfinished nested ones, those behind this one. The other outcome says why
    /// it cannot be marked.
    async fn mark_cancelled(
        &self,
        id: BatchId,
        by: &Actor,
        behind: Option<BatchId>,
    ) -> Result<Result<Vec<BatchId>, CancelMark>, StoreError> {
        let shared = self.shared.clone();
        let act = AuditEntry::new(by, "batch.cancel", id.to_string());
        let subjects = BTreeSet::from([Subject::Batch(id), Subject::Change]);
        transact_in_turn(&self.shared.pools, subjects, "cancel a batch", move |conn, earlier| {
            let (shared, act) = (shared.clone(), act.clone());
            Box::pin(async move {
                let sql = "SELECT cancelled_at IS NOT NULL AS cancelled, completed_at IS NOT NULL AS ended FROM batches \
                           WHERE id = ? FOR UPDATE";
                let found = sqlx::query(sql).bind(id.uuid()).fetch_optional(&mut *conn).await?;
                let Some(row) = found else { return Ok(Err(CancelMark::Missing)) };
                let (cancelled, ended): (bool, bool) = (row.try_get("cancelled")?, row.try_get("ended")?);
                // The earlier run may have committed without an answer, and the batch may have ended since.
                if ended && !(cancelled && earlier == PriorRun::MayHaveCommitted) {
                    return Ok(Err(CancelMark::Ended));
                }
                if !cancelled {
                    mark(conn, &shared, id, &act).await?;
                }
                nested_behind(conn, id, behind).await.map(Ok)
            })
        })
        .await
    }

    /// Cancel jobs of a batch behind `after`, a few hundred at most. Executing ones are asked to stop. Those that are left
    /// are in front of the next part: try them again with [`cancel_left_jobs`](Self::cancel_left_jobs), or begin anew.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn cancel_batch_jobs(&self, id: BatchId, after: Option<JobId>) -> Result<BatchCancelled, StoreError> {
        let most = self.shared.cancelled_jobs.get();
        let page = on_pool(&self.shared.pools.steering, "read jobs of a batch", move |conn, _| {
            Box::pin(async move { unfinished_jobs(conn, id, after, most).await })
        });
        let ids = page.await?;
        let mut done = self.cancel_page_of(id, &ids).await?;
        done.next = ids.last().copied().map(JobId::from_uuid).filter(|_| ids.len() as u32 == most);
        Ok(done)
    }

    /// Cancel jobs of a batch that were left before, [`LEFT_AT_ONCE`] at most, and wait for their locks for some
    /// seconds: most locks last for milliseconds. Those that are locked for longer are left again.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn cancel_left_jobs(&self, id: BatchId, left: &[JobId]) -> Result<BatchCancelled, StoreError> {
        let ids: Vec<Uuid> = left.iter().map(|job| job.uuid()).collect();
        match self.cancel_jobs_of(id, &ids, OnLock::Wait).await {
            Ok(Some(done)) => {
                self.shared.links_ended(AWAITED | IN_BATCH);
                self.touch_cancel(id).await?;
                Ok(done)
            }
            Err(error) if !error.is_about_the_row() => Err(error),
            Ok(None) | Err(_) => self.cancel_page_of(id, &ids).await,
        }
    }

    async fn cancel_page_of(&self, id: BatchId, ids: &[Uuid]) -> Result<BatchCancelled, StoreError> {
        if ids.is_empty() {
            return Ok(BatchCancelled::default());
        }
        let mut began = Instant::now();
        let mut done = self.cancel_jobs_of(id, ids, OnLock::Leave).await;
        if matches!(done, Ok(None)) {
            began = Instant::now();
            done = self.cancel_jobs_of(id, ids, OnLock::LeaveKeys).await;
        }
        // A wait for a lock says nothing about the number of jobs.
        if !matches!(done, Ok(None)) {
            self.shared.cancelled_jobs.learn(began, &done);
        }
        let done = match done {
            Ok(Some(done)) => done,
            // MySQL cannot read one of them. The others must not start while an operator looks for it.
            Err(error) if !error.is_about_the_row() => return Err(error),
            Ok(None) | Err(_) => self.cancel_each_of(id, ids).await?,
        };
        self.shared.links_ended(AWAITED | IN_BATCH);
        self.touch_cancel(id).await?;
        Ok(done)
    }

    /// Cancel these jobs of a batch in one transaction. Returns nothing if it has waited in vain for a lock of another
    /// session.
    async fn cancel_jobs_of(
        &self,
        id: BatchId,
        ids: &[Uuid],
        on_lock: OnLock,
    ) -> Result<Option<BatchCancelled>, StoreError> {
        let (shared, ids) = (self.shared.clone(), ids.to_vec());
        transact_unless_locked(&self.shared.pools.steering, ATTEMPTED, move |conn, _| {
            let (shared, ids) = (shared.clone(), ids.clone());
            Box::pin(async move { cancel_jobs(conn, &shared, id, &ids, on_lock).await })
        })
        .await
    }

    /// Let the other runners leave the cancel of a batch to this one for some more seconds.
    async fn touch_cancel(&self, id: BatchId) -> Result<(), StoreError> {
        // Not in the transactions that cancel jobs: a runner that freezes in one would keep the row from those of the
        // others.
        let touched = transact_unless_locked(&self.shared.pools.steering, "touch a cancel", move |conn, _| {
            Box::pin(async move {
                let sql = format!("SELECT 1 FROM batch_cancels WHERE batch_id = ? FOR UPDATE{SKIP_LOCKED}");
                if statement(sql).bind(id.uuid()).fetch_optional(&mut *conn).await?.is_none() {
                    return Ok(());
                }
                let touch = sqlx::query("UPDATE batch_cancels SET touched_at = UTC_TIMESTAMP(6) WHERE batch_id = ?");
                touch.bind(id.uuid()).execute(conn).await.map(drop)
            })
        });
        touched.await.map(drop)
    }

    /// Cancel these jobs one by one, in any order, so that each of them is reached although others are locked.
    async fn cancel_each_of(&self, id: BatchId, ids: &[Uuid]) -> Result<BatchCancelled, StoreError> {
        let (mut all, mut waited) = (BatchCancelled::default(), false);
        let mut ids = ids.to_vec();
        ids.shuffle(&mut rand::rng());
        for job in ids {
            if waited {
                all.left.push(JobId::from_uuid(job));
                continue;
            }
            match self.cancel_jobs_of(id, &[job], OnLock::Leave).await {
                Ok(Some(done)) => all.add(done),
                Ok(None) => {
                    all.left.push(JobId::from_uuid(job));
                    // Each wait takes seconds.
                    waited = true;
                }
                Err(error) if error.is_about_the_row() => {
                    let job = JobId::from_uuid(job);
                    tracing::error!(%job, batch = %id, %error, "a job of a batch cannot be cancelled");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// Return the batches whose cancel is under way and rests for some seconds.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn cancelled_batches(&self) -> Result<Vec<BatchId>, StoreError> {
        on_pool(&self.shared.pools.loops, "look for cancelled batches", |conn, _| {
            Box::pin(async move {
                let found: Vec<Uuid> =
                    sqlx::query_scalar("SELECT batch_id FROM batch_cancels WHERE touched_at < UTC_TIMESTAMP(6) - INTERVAL 5 SECOND ORDER BY batch_id LIMIT ?")
                        .bind(CANCELS)
                        .fetch_all(conn)
                        .await?;
                Ok(found.into_iter().map(BatchId::from_uuid).collect())
            })
        })
        .await
    }

    /// Return a page of the unfinished batches that are nested in this one and are not marked as cancelled. Those of a
    /// cancelled batch were left so by a process that died while it marked them.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn unmarked_nested(&self, id: BatchId) -> Result<Vec<BatchId>, StoreError> {
        on_pool(&self.shared.pools.loops, "look for nested batches that are not cancelled", move |conn, _| {
            Box::pin(async move {
                let found: Vec<Uuid> = sqlx::query_scalar(
                    "SELECT id FROM batches FORCE INDEX (batches_parent) WHERE parent = ? AND completed_at IS NULL \
                     AND cancelled_at IS NULL ORDER BY id LIMIT ?",
                )
                .bind(id.uuid())
                .bind(NESTED)
                .fetch_all(conn)
                .await?;
                Ok(found.into_iter().map(BatchId::from_uuid).collect())
            })
        })
        .await
    }

    /// Note that all jobs of a cancelled batch have ended. Returns false while some have not.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn finish_batch_cancel(&self, id: BatchId) -> Result<bool, StoreError> {
        let gone = transact_unless_locked(&self.shared.pools.loops, "finish the cancel of a batch", move |conn, _| {
            Box::pin(async move {
                // Nothing waits for a lock while the batch goes on.
                let unfinished = "SELECT 1 FROM batches WHERE id = ? AND completed_at IS NULL";
                if sqlx::query(unfinished).bind(id.uuid()).fetch_optional(&mut *conn).await?.is_some() {
                    return Ok(false);
                }
                let sql = "DELETE FROM batch_cancels WHERE batch_id = ? AND NOT EXISTS (SELECT 1 FROM batches \
                           WHERE id = ? AND completed_at IS NULL)";
                let gone = sqlx::query(sql).bind(id.uuid()).bind(id.uuid()).execute(conn).await?;
                Ok(gone.rows_affected() > 0)
            })
        });
        Ok(gone.await?.unwrap_or(false))
    }
}

/// Write that a batch is cancelled, whose row is locked.
async fn mark(conn: &mut Session<'_>, shared: &StoreInner, id: BatchId, act: &AuditEntry) -> Result<(), sqlx::Error> {
    lock_in_cluster(conn, Locked::Batch, [id.uuid()]).await?;
    let now = read_clock(conn, &shared.clock).await?;
    sqlx::query("UPDATE batches SET cancelled_at = ?, closed_at = COALESCE(closed_at, ?) WHERE id = ?")
        .bind(now)
        .bind(now)
        .bind(id.uuid())
        .execute(&mut *conn)
        .await?;
    sqlx::query(
        "INSERT INTO batch_cancels (batch_id, touched_at) VALUES (?, ?) \
         ON DUPLICATE KEY UPDATE batch_id = VALUES(batch_id)",
    )
    .bind(id.uuid())
    .bind(now)
    .execute(&mut *conn)
    .await?;
    look_again(conn, id).await?;
    record(conn, act, now).await
}

/// Read a page of the unfinished batches that are nested in this one, those behind a nested batch.
async fn nested_behind(
    conn: &mut Session<'_>,
    id: BatchId,
    behind: Option<BatchId>,
) -> Result<Vec<BatchId>, sqlx::Error> {
    let nested: Vec<Uuid> = sqlx::query_scalar(
        "SELECT id FROM batches FORCE INDEX (batches_parent) WHERE parent = ? AND id > ? \
         AND completed_at IS NULL ORDER BY id LIMIT ?",
    )
    .bind(id.uuid())
    .bind(behind.map(BatchId::uuid).unwrap_or_default())
    .bind(NESTED)
    .fetch_all(conn)
    .await?;
    Ok(nested.into_iter().map(BatchId::from_uuid).collect())
}

/// What a transaction does about a job that another session locks.
#[derive(Clone, Copy)]
enum OnLock {
    Wait,
    Leave,
    /// Leave also a job with a unique key that another session locks.
    LeaveKeys,
}

/// Read the unfinished jobs of a batch behind `after`, in id order: none if the batch has ended. Those were retried
/// since.
async fn unfinished_jobs(
    conn: &mut Session<'_>,
    id: BatchId,
    after: Option<JobId>,
    most: u32,
) -> Result<Vec<Uuid>, sqlx::Error> {
    let sql = "SELECT b.job_id FROM batch_jobs b FORCE INDEX (batch_jobs_batch) \
               STRAIGHT_JOIN owed o FORCE INDEX (PRIMARY) ON o.id = b.job_id \
               WHERE b.batch_id = ? AND b.job_id > ? \
               AND EXISTS (SELECT 1 FROM batches WHERE id = ? AND completed_at IS NULL) ORDER BY b.job_id LIMIT ?";
    let query = statement(sql.to_owned()).bind(id.uuid()).bind(after.map(JobId::uuid).unwrap_or_default());
    let query = query.bind(id.uuid()).bind(most);
    query.fetch_all(conn).await?.iter().map(|row| row.try_get("job_id")).collect()
}

async fn cancel_jobs(
    conn: &mut Session<'_>,
    shared: &StoreInner,
    id: BatchId,
    ids: &[Uuid],
    on_lock: OnLock,
) -> Result<BatchCancelled, sqlx::Error> {
    // The order keys come before any other row.
    let (ordered, mut held) = match on_lock {
        OnLock::Wait => {
            let ordered = lock_keys_of(conn, ids).await?;
            (ordered, lock_held(conn, ids.iter().copied().map(JobId::from_uuid)).await?)
        }
        OnLock::Leave | OnLock::LeaveKeys => {
            let (ordered, busy) = lock_free_keys_of(conn, ids).await?;
            let free = ids.iter().filter(|id| !busy.contains(id));
            (ordered, lock_free(conn, free.map(|id| JobId::from_uuid(*id))).await?)
        }
    };
    if matches!(on_lock, OnLock::LeaveKeys) {
        let keyed: Vec<Uuid> = held.iter().filter(|(_, owed)| owed.keyed).map(|(id, _)| id.uuid()).collect();
        let busy = lock_free_keys(conn, &keyed).await?;
        held.retain(|id, _| !busy.contains(&id.uuid()));
    }
    // The batch may have ended since its jobs were read, and an operator may have retried one. The lock of the job is
    // held here, so this statement sees an end that was committed before the retry.
    let sql = "SELECT 1 FROM batches WHERE id = ? AND completed_at IS NULL";
    if sqlx::query(sql).bind(id.uuid()).fetch_optional(&mut *conn).await?.is_none() {
        return Ok(BatchCancelled::default());
    }
    let left = left_of(conn, ids.iter().copied().map(JobId::from_uuid).collect(), &held).await?;
    let now = read_clock(conn, &shared.clock).await?;
    let CancelledJobs { cancelled, stop_requested, released, counts } =
        cancel_all(conn, &held, &ordered, &BTreeMap::new(), now).await?;
    count(conn, shared.lanes.any(), &counts).await?;
    Ok(BatchCancelled { cancelled, stop_requested, released, left: left.into_iter().collect(), next: None })
}
