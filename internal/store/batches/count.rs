//! Adds up the ends of jobs, ends batches, and starts their callbacks.
//!
//! The row of the batch is the lock: of two runners that add up at the same time, the second one leaves the batch, or
//! waits and finds what the first one has done. A request that adds jobs holds a shared lock on that row, so a batch does
//! not end while jobs are added. The times in the row say which callbacks have been started. They change in the
//! transaction that inserts the callback.

use std::collections::BTreeSet;

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::query::Query;

use crate::batches::callbacks::CallbackEvent;
use crate::batches::rows::{Batch, BatchCounts, COLUMNS, batch};
use crate::rows::jobs::{Accepted, accepted_at, mark_held, write_jobs};
use crate::rows::links::{BatchChanges, check_links};
use crate::rows::order::{lock_or_make, order_key_of};
use crate::rows::owed::SKIP_LOCKED;
use crate::sql::batches::{MAX_ROWS, placeholders, statement};
use crate::sql::clock::read_clock;
use crate::sql::cluster::{Locked, lock_in_cluster};
use crate::sql::connection::{on_pool, transact_unless_locked};
use crate::sql::session::Session;
use crate::{Store, StoreError, StoreInner};
use tickr_job::{BatchId, NewJob, State, Timestamp};

/// Changes that one transaction adds up at most.
const CHANGES: u32 = 2_000;
/// Batches that one look finds at most.
const BATCHES: u32 = 256;

/// Batches whose counts have changed.
#[derive(Clone, Debug, Default)]
pub struct ChangedBatches {
    /// The batches, those with the oldest changes first.
    pub batches: Vec<BatchId>,
    /// True if there may be more of them: the look read as many changes, or found as many batches, as it takes at most.
    pub more: bool,
}

/// Outcome of adding up the counts of a batch.
#[derive(Clone, Debug, Default)]
pub struct BatchCounted {
    /// The callbacks that were accepted.
    pub callbacks: Vec<Accepted>,
    /// True if all jobs have ended now, for the first time.
    pub ended: bool,
    /// True if there are more changes.
    pub more: bool,
    /// True if the counts of the outer batch have changed with this.
    pub outer_changed: bool,
}

impl Store {
    /// Return batches whose counts have changed, those with the oldest changes first. Batches of `set_aside` may be among
    /// them, but they hide no others, however many changes they have.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn changed_batches(&self, set_aside: Vec<BatchId>) -> Result<ChangedBatches, StoreError> {
        on_pool(&self.shared.pools.loops, "look for changed batches", move |conn, _| {
            let set_aside = set_aside.clone();
            Box::pin(async move {
                let sql = "SELECT batch_id, COUNT(*) AS changes FROM (SELECT id, batch_id FROM batch_changes \
                           FORCE INDEX (PRIMARY) ORDER BY id LIMIT ?) c GROUP BY batch_id ORDER BY MIN(id) LIMIT ?";
                let found = sqlx::query(sql).bind(CHANGES).bind(BATCHES).fetch_all(&mut *conn).await?;
                let (mut batches, mut changes) = (Vec::with_capacity(found.len()), 0);
                for row in &found {
                    batches.push(BatchId::from_uuid(row.try_get("batch_id")?));
                    changes += row.try_get::<i64, _>("changes")?;
                }
                let mut more = changes >= i64::from(CHANGES) || batches.len() >= BATCHES as usize;
                if !batches.is_empty() && batches.iter().all(|batch| set_aside.contains(batch)) {
                    let others = changed_besides(conn, &set_aside).await?;
                    more = others.len() >= BATCHES as usize;
                    batches.extend(others);
                }
                Ok(ChangedBatches { batches, more })
            })
        })
        .await
    }

    /// Add up the changes of a batch, a few thousand at most. Returns nothing if another session locks the batch, or with
    /// `waits` has kept it locked for seconds. So it does when one has kept an order key of its callbacks locked for
    /// seconds. A caller that has met a lock waits the next time: requests that add jobs lock a batch as well, one after
    /// the other, so it might never be free at the moment of a look.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn count_batch(&self, id: BatchId, waits: bool) -> Result<Option<BatchCounted>, StoreError> {
        let shared = self.shared.clone();
        let counted = transact_unless_locked(&self.shared.pools.loops, "count the jobs of a batch", move |conn, _| {
            let shared = shared.clone();
            Box::pin(async move { add_up(conn, &shared, id, waits).await })
        });
        let counted = counted.await?.flatten();
        if counted.as_ref().is_some_and(|counted| counted.outer_changed) {
            self.shared.batches_changed.notify_one();
        }
        Ok(counted)
    }
}

/// Find changed batches besides those that are set aside. MySQL looks at one entry of the index for each batch.
async fn changed_besides(conn: &mut Session<'_>, set_aside: &[BatchId]) -> Result<Vec<BatchId>, sqlx::Error> {
    let sql = format!(
        "SELECT DISTINCT batch_id FROM batch_changes FORCE INDEX (batch_changes_batch) WHERE batch_id NOT IN {} LIMIT ?",
        placeholders(set_aside.len())
    );
    let query = set_aside.iter().fold(statement(sql), |query, batch| query.bind(batch.uuid()));
    let rows = query.bind(BATCHES).fetch_all(conn).await?;
    rows.iter().map(|row| Ok(BatchId::from_uuid(row.try_get("batch_id")?))).collect()
}

/// Lock the order keys of the callbacks of a batch, before any other row.
pub(super) async fn lock_callback_keys(conn: &mut Session<'_>, id: BatchId) -> Result<(), sqlx::Error> {
    let sql = format!("SELECT {COLUMNS} FROM batches WHERE id = ? AND callbacks LIKE '%\"order\"%'");
    if let Some(row) = statement(sql).bind(id.uuid()).fetch_optional(&mut *conn).await? {
        // Callbacks never change.
        let batch = batch(&row)?;
        lock_or_make(conn, &batch.callbacks.iter().filter_map(|callback| order_key_of(&callback.job)).collect())
            .await?;
    }
    Ok(())
}

/// Add up the changes of a batch and do what follows from its counts. Returns nothing if another session locks the
/// batch and the caller does not wait for it.
async fn add_up(
    conn: &mut Session<'_>,
    shared: &StoreInner,
    id: BatchId,
    waits: bool,
) -> Result<Option<BatchCounted>, sqlx::Error> {
    lock_callback_keys(conn, id).await?;
    let sql = format!("SELECT {COLUMNS} FROM batches WHERE id = ? FOR UPDATE{}", if waits { "" } else { SKIP_LOCKED });
    let row = statement(sql).bind(id.uuid()).fetch_optional(&mut *conn).await?;
    // The changes of a batch that was removed are deleted, those of a locked one are left.
    if row.is_none() && !waits && exists(conn, id).await? {
        return Ok(None);
    }
    lock_in_cluster(conn, Locked::Batch, [id.uuid()]).await?;
    let TakenChanges { sum: change, any_failed, more } = take_changes(conn, id).await?;
    let Some(row) = row else { return Ok(Some(BatchCounted { more, ..BatchCounted::default() })) };
    let mut batch = batch(&row)?;
    batch.counts.total += change.total;
    batch.counts.completed += change.completed;
    batch.counts.failed += change.failed;
    batch.counts.cancelled += change.cancelled;
    let now = read_clock(conn, &shared.clock).await?;
    // With more changes to come, the counts are those of a moment in the past, at which jobs may have been pending.
    let counted = progress(conn, &mut batch, now, (any_failed, !more)).await?;
    Ok(Some(BatchCounted { more, ..counted }))
}

async fn exists(conn: &mut Session<'_>, id: BatchId) -> Result<bool, sqlx::Error> {
    let found = sqlx::query("SELECT 1 FROM batches WHERE id = ?").bind(id.uuid()).fetch_optional(&mut *conn).await?;
    Ok(found.is_some())
}

/// Changes of a batch that were read and deleted.
struct TakenChanges {
    sum: BatchCounts,
    /// True if a job had failed for good. A retry may have taken it out of the sum since.
    any_failed: bool,
    /// True if there are more changes.
    more: bool,
}

/// Read and delete the oldest changes of a batch, whose row is locked.
async fn take_changes(conn: &mut Session<'_>, id: BatchId) -> Result<TakenChanges, sqlx::Error> {
    let sql = "SELECT id, total, completed, failed, cancelled FROM batch_changes FORCE INDEX (batch_changes_batch) \
               WHERE batch_id = ? ORDER BY id LIMIT ?";
    // One more than it takes shows whether this is all. If it is, the counts are whole, and no further look has to come.
    let found = sqlx::query(sql).bind(id.uuid()).bind(CHANGES + 1).fetch_all(&mut *conn).await?;
    let (mut sum, mut any_failed) = (BatchCounts::default(), false);
    let mut rows: Vec<u64> = Vec::with_capacity(found.len());
    for row in found.iter().take(CHANGES as usize) {
        let number = |column| row.try_get::<i32, _>(column).map(i64::from);
        sum.total += number("total")?;
        sum.completed += number("completed")?;
        sum.failed += number("failed")?;
        sum.cancelled += number("cancelled")?;
        any_failed |= number("failed")? > 0;
        rows.push(row.try_get("id")?);
    }
    for rows in rows.chunks(MAX_ROWS) {
        let sql = format!(
            "DELETE FROM batch_changes WHERE id IN {} ORDER BY id LIMIT {}",
            placeholders(rows.len()),
            rows.len()
        );
        rows.iter().fold(statement(sql), Query::bind).execute(&mut *conn).await?;
    }
    Ok(TakenChanges { sum, any_failed, more: found.len() as u32 > CHANGES })
}

/// Write the counts of a locked batch, and what follows from them: its end, its callbacks, and what its parent counts.
/// `any_failed` tells that a job has failed for good, also if the counts do not show it any more, and `whole` that the
/// counts leave no change out.
pub(super) async fn progress(
    conn: &mut Session<'_>,
    batch: &mut Batch,
    now: Timestamp,
    (any_failed, whole): (bool, bool),
) -> Result<BatchCounted, sqlx::Error> {
    let mut due: BTreeSet<CallbackEvent> = BTreeSet::new();
    let counts = batch.counts;
    let was = batch.completed_at.map(|_| outcome(batch));
    if batch.failed_at.is_none() && (any_failed || counts.failed > 0) {
        batch.failed_at = Some(now);
        due.insert(CallbackEvent::Failure);
    }
    let all_ended = whole && counts.pending() <= 0 && batch.closed_at.is_some();
    let ended = all_ended && batch.completed_at.is_none();
    if ended {
        batch.completed_at = Some(now);
        due.insert(CallbackEvent::Complete);
    }
    let all_well = all_ended && counts.failed == 0 && counts.cancelled == 0 && batch.cancelled_at.is_none();
    if all_well && batch.succeeded_at.is_none() {
        batch.succeeded_at = Some(now);
        due.insert(CallbackEvent::Success);
    }
    sqlx::query(
        "UPDATE batches SET total = ?, completed = ?, failed = ?, cancelled = ?, closed_at = ?, cancelled_at = ?, \
         failed_at = ?, completed_at = ?, succeeded_at = ? WHERE id = ?",
    )
    .bind(counts.total)
    .bind(counts.completed)
    .bind(counts.failed)
    .bind(counts.cancelled)
    .bind(batch.closed_at)
    .bind(batch.cancelled_at)
    .bind(batch.failed_at)
    .bind(batch.completed_at)
    .bind(batch.succeeded_at)
    .bind(batch.id.uuid())
    .execute(&mut *conn)
    .await?;
    let mut jobs: Vec<&NewJob> =
        batch.callbacks.iter().filter(|callback| due.contains(&callback.event)).map(|callback| &callback.job).collect();
    jobs.sort_unstable_by_key(|job| job.id);
    let mut callbacks: Vec<Accepted> = jobs.iter().map(|job| accepted_at(job, now)).collect();
    if !jobs.is_empty() {
        // The parent counts this batch, so it has not ended.
        let own = batch.parent.into_iter().collect();
        let (links, _) = check_links(conn, &jobs, &own, &BTreeSet::new()).await?;
        let pairs: Vec<(&NewJob, &Accepted)> = jobs.iter().copied().zip(&callbacks).collect();
        let held = write_jobs(conn, &pairs, &links).await?;
        mark_held(&mut callbacks, &held);
    }
    let outer_changed = tell_outer(conn, batch, was).await?;
    Ok(BatchCounted { callbacks, ended, more: false, outer_changed })
}

/// Change the counts of the outer batch of an ended one, which `was` another job for it before. Return whether they change.
async fn tell_outer(conn: &mut Session<'_>, batch: &Batch, was: Option<State>) -> Result<bool, sqlx::Error> {
    let Some(outer) = batch.parent.filter(|_| batch.completed_at.is_some()) else { return Ok(false) };
    let is = outcome(batch);
    if was == Some(is) {
        return Ok(false);
    }
    let mut changes = BatchChanges::default();
    if let Some(was) = was {
        changes.of(outer.uuid()).end(was, -1);
    }
    changes.of(outer.uuid()).end(is, 1);
    changes.write(conn).await?;
    Ok(true)
}

/// Return the state of the job that an ended batch is for its parent.
const fn outcome(batch: &Batch) -> State {
    if batch.succeeded_at.is_some() {
        State::Completed
    } else if batch.cancelled_at.is_some() {
        State::Cancelled
    } else {
        State::Failed
    }
}
