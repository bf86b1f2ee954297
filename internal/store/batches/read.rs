//! Batches for people, and their removal.

use std::collections::BTreeSet;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use chrono::TimeDelta;
use sqlx::Row;
use uuid::Uuid;

use crate::batches::rows::{Batch, COLUMNS, batch};
use crate::sql::batches::{MAX_ROWS, in_list, statement};
use crate::sql::clock::read_clock;
use crate::sql::connection::{on_pool, transact};
use crate::{Store, StoreError};
use tickr_job::{BatchId, JobId, first_id_of};

/// The columns of batches `b`. The counts include the changes that no runner has added up yet.
fn columns() -> String {
    let mut columns = COLUMNS.to_owned();
    for count in ["total", "completed", "failed", "cancelled"] {
        let whole = format!(
            ", CAST(b.{count} + (SELECT COALESCE(SUM(c.{count}), 0) FROM batch_changes c FORCE INDEX (batch_changes_batch) \
             WHERE c.batch_id = b.id) AS SIGNED) AS {count},"
        );
        columns = columns.replace(&format!(", {count},"), &whole);
    }
    columns
}

/// Nested batches that [`Store::nested_with_failures`] looks at at most, those that succeeded included.
pub const MAX_NESTED: usize = 10_000;
/// Most batches inside each other that it looks at. Each level is a statement.
pub const MAX_NESTED_LEVELS: usize = 100;
/// Nested batches with failures that [`Store::nested_with_failures`] returns at most.
pub const MAX_WITH_FAILURES: usize = 100;
/// Batches that are looked at in one page of the retention.
const PAGE: u32 = 256;

impl Store {
    /// Read a batch.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn batch(&self, id: BatchId) -> Result<Option<Batch>, StoreError> {
        on_pool(&self.shared.pools.reads, "read a batch", move |conn, _| {
            Box::pin(async move {
                let sql = format!("SELECT {} FROM batches b WHERE id = ?", columns());
                let row = statement(sql).bind(id.uuid()).fetch_optional(conn).await?;
                row.as_ref().map(batch).transpose()
            })
        })
        .await
    }

    /// Read batches, the newest first, behind `before`: all of them, or those nested in `parent`.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn batches(
        &self,
        parent: Option<BatchId>,
        unfinished: bool,
        before: Option<BatchId>,
        limit: u32,
    ) -> Result<Vec<Batch>, StoreError> {
        on_pool(&self.shared.pools.reads, "read batches", move |conn, _| {
            Box::pin(async move {
                let (index, of_parent) = match (parent, unfinished) {
                    (Some(_), _) => ("batches_parent", " AND parent = ?"),
                    // Those without an end lie together there, in the order of their ids. By primary key the search
                    // for them would read every batch that is kept.
                    (None, true) => ("batches_completed", ""),
                    (None, false) => ("PRIMARY", ""),
                };
                let open = if unfinished { " AND completed_at IS NULL" } else { "" };
                let sql = format!(
                    "SELECT {} FROM batches b FORCE INDEX ({index}) WHERE id < ?{of_parent}{open} ORDER BY id DESC LIMIT ?",
                    columns()
                );
                let mut query = statement(sql).bind(before.map_or(Uuid::max(), BatchId::uuid));
                if let Some(parent) = parent {
                    query = query.bind(parent.uuid());
                }
                query.bind(limit).fetch_all(conn).await?.iter().map(batch).collect()
            })
        })
        .await
    }

    /// Read which batches that are nested in this one, directly or through others, have failed jobs of their own or of
    /// batches nested in them. A cancelled one is left out with all that is nested in it. Returns nothing if there are too
    /// many.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn nested_with_failures(&self, id: BatchId) -> Result<Option<Vec<BatchId>>, StoreError> {
        on_pool(&self.shared.pools.reads, "read nested batches", move |conn, _| {
            Box::pin(async move {
                let (mut met, mut failed, mut level) = (BTreeSet::from([id.uuid()]), Vec::new(), vec![id.uuid()]);
                let mut levels = 0;
                while !level.is_empty() {
                    let mut next = Vec::new();
                    for parents in level.chunks(MAX_ROWS) {
                        let sql = "SELECT b.id, b.succeeded_at IS NULL AND b.cancelled_at IS NULL AS may_retry, \
                                   b.failed + (SELECT COALESCE(SUM(c.failed), 0) FROM batch_changes c \
                                   FORCE INDEX (batch_changes_batch) WHERE c.batch_id = b.id) > 0 AS has_failures \
                                   FROM (SELECT id FROM batches FORCE INDEX (batches_parent) WHERE parent IN";
                        let most = MAX_NESTED + 1;
                        let tail =
                            format!(" LIMIT {most}) n STRAIGHT_JOIN batches b FORCE INDEX (PRIMARY) ON b.id = n.id");
                        for row in in_list(sql, parents, &tail).fetch_all(&mut *conn).await? {
                            let nested: Uuid = row.try_get("id")?;
                            if met.insert(nested) && row.try_get("may_retry")? {
                                next.push(nested);
                                if row.try_get("has_failures")? {
                                    failed.push(BatchId::from_uuid(nested));
                                }
                            }
                        }
                        if met.len() > MAX_NESTED + 1 || failed.len() > MAX_WITH_FAILURES {
                            return Ok(None);
                        }
                    }
                    levels += 1;
                    if levels > MAX_NESTED_LEVELS {
                        return Ok(None);
                    }
                    level = next;
                }
                Ok(Some(failed))
            })
        })
        .await
    }

    /// Read which of these jobs exist: the callbacks that have been started.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn existing_jobs(&self, ids: &[JobId]) -> Result<Vec<JobId>, StoreError> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.uuid()).collect();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        on_pool(&self.shared.pools.reads, "read which jobs exist", move |conn, _| {
            let ids = ids.clone();
            Box::pin(async move {
                let found =
                    in_list("SELECT id FROM jobs FORCE INDEX (PRIMARY) WHERE id IN", &ids, "").fetch_all(conn).await?;
                found.iter().map(|row| row.try_get("id").map(JobId::from_uuid)).collect()
            })
        })
        .await
    }

    /// Remove batches without jobs and nested batches that ended before this age, from one page behind `after`. Returns
    /// their number, and the batch behind which the next page begins. An outer batch goes after its nested ones, in a
    /// later round: they may succeed once their failed jobs are retried, and it counts that.
    ///
    /// A batch gets its id before it ends. So the walk stops where no batch can be old enough, and a batch whose id was
    /// made by a clock that is ahead goes so much later.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn purge_batches(
        &self,
        after: Option<BatchId>,
        keep: Duration,
    ) -> Result<(usize, Option<BatchId>), StoreError> {
        let shared = self.shared.clone();
        transact(&self.shared.pools.loops, "remove old batches", move |conn, _| {
            let shared = shared.clone();
            Box::pin(async move {
                let now = read_clock(conn, &shared.clock).await?;
                let before = now - TimeDelta::from_std(keep).unwrap_or(TimeDelta::MAX / 4);
                let found = sqlx::query(
                    "SELECT id, COALESCE(completed_at < ?, FALSE) AND NOT EXISTS (SELECT 1 FROM batch_jobs \
                     FORCE INDEX (batch_jobs_batch) WHERE batch_id = b.id) AND NOT EXISTS (SELECT 1 FROM batches n \
                     FORCE INDEX (batches_parent) WHERE n.parent = b.id) AS old \
                     FROM batches b FORCE INDEX (PRIMARY) WHERE id > ? AND id < ? ORDER BY id LIMIT ?",
                )
                .bind(before.naive_utc())
                .bind(after.map(BatchId::uuid).unwrap_or_default())
                .bind(first_id_of(before))
                .bind(PAGE)
                .fetch_all(&mut *conn)
                .await?;
                let mut old: Vec<Uuid> = Vec::new();
                for row in &found {
                    if row.try_get("old")? {
                        old.push(row.try_get("id")?);
                    }
                }
                if !old.is_empty() {
                    let tail = format!(" ORDER BY id LIMIT {PAGE}");
                    in_list("DELETE FROM batches WHERE id IN", &old, &tail).execute(&mut *conn).await?;
                }
                let next = match found.last() {
                    Some(last) if found.len() as u32 == PAGE => Some(BatchId::from_uuid(last.try_get("id")?)),
                    _ => None,
                };
                Ok((old.len(), next))
            })
        })
        .await
    }
}
