//! Reads about jobs that wait for parents, and about batches.

use std::collections::BTreeSet;

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use super::evidence::{Evidence, PAGE_LIMIT, Walk};
use crate::StoreError;
use crate::batches::rows::{Batch, COLUMNS, batch};
use crate::rows::links::blocked_until;
use crate::sql::batches::{MAX_ROWS, in_list, statement};
use crate::sql::connection;
use crate::sql::error::corrupt;
use tickr_job::{Action, BatchId, JobId, Timestamp};

/// Rows of one page.
const PAGE: u32 = 1_000;

/// A job and one of its parents.
#[derive(Clone, Debug)]
pub struct ParentRow {
    /// The parent.
    pub parent: JobId,
    /// The job.
    pub child: JobId,
    /// When the parent ended for the first time. Absent if it has not ended, or was removed.
    pub first_end: Option<Timestamp>,
    /// True if the parent was removed.
    pub removed: bool,
    /// When the job started for the first time. Absent if it had ended before: an operator then let it run again, and so
    /// it waits for no parent.
    pub first_start: Option<Timestamp>,
}

/// Most jobs of a batch whose ended ones are counted. Each takes two looks, and a page has a hundred batches.
const COUNTED_JOBS: u32 = 10_000;

/// Most batches of one page, and most jobs in all of them. The unfinished jobs of each batch are counted among all of
/// its jobs, so a page of a larger batch has no other.
const BATCHES: u32 = 100;
const JOBS_OF_BATCHES: i64 = 200_000;

/// Return the statement that reads batches behind an id and up to another one, each with its changes that no runner has
/// added up, and with the jobs that have not been removed.
fn batches_and_members() -> String {
    format!(
        "SELECT {COLUMNS}, \
         CAST((SELECT COALESCE(SUM(c.total - c.completed - c.failed - c.cancelled), 0) FROM batch_changes c \
         FORCE INDEX (batch_changes_batch) WHERE c.batch_id = b.id) AS SIGNED) AS to_come, \
         CAST((SELECT COALESCE(SUM(c.failed), 0) FROM batch_changes c FORCE INDEX (batch_changes_batch) \
         WHERE c.batch_id = b.id) AS SIGNED) AS failed_to_come, \
         CAST((SELECT COALESCE(SUM(c.completed + c.cancelled), 0) FROM batch_changes c \
         FORCE INDEX (batch_changes_batch) WHERE c.batch_id = b.id) AS SIGNED) AS others_to_come, \
         EXISTS (SELECT 1 FROM batch_changes c FORCE INDEX (batch_changes_batch) WHERE c.batch_id = b.id) AS untold, \
         CASE WHEN b.total <= {COUNTED_JOBS} THEN (SELECT CONVERT(CONCAT_WS(',', \
         COALESCE(SUM(o.id IS NULL AND d.job_id IS NULL), 0), COALESCE(SUM(d.standing <> 'replayed'), 0)) \
         USING utf8mb4) \
         FROM batch_jobs m FORCE INDEX (batch_jobs_batch) LEFT JOIN owed o ON o.id = m.job_id \
         LEFT JOIN dead_letters d ON d.job_id = m.job_id AND o.id IS NULL WHERE m.batch_id = b.id) END AS members, \
         (SELECT COUNT(*) FROM batch_jobs m FORCE INDEX (batch_jobs_batch) JOIN owed o ON o.id = m.job_id \
         WHERE m.batch_id = b.id) \
         + (SELECT COUNT(*) FROM batches n FORCE INDEX (batches_parent) WHERE n.parent = b.id \
         AND n.completed_at IS NULL) AS unfinished \
         FROM batches b FORCE INDEX (PRIMARY) WHERE b.id > ? AND b.id <= ? ORDER BY b.id"
    )
}

/// Return what is wrong with the counts of a batch.
fn wrong_counts(batch: &Batch, row: &MySqlRow) -> Result<Option<String>, sqlx::Error> {
    let to_come = |column| row.try_get::<i64, _>(column);
    let counts = batch.counts;
    let pending = counts.pending() + to_come("to_come")?;
    let failed = counts.failed + to_come("failed_to_come")?;
    let others = counts.completed + counts.cancelled + to_come("others_to_come")?;
    let unfinished = to_come("unfinished")?;
    if pending != unfinished {
        return Ok(Some(format!("it counts {pending} unfinished jobs, and {unfinished} are unfinished")));
    }
    let has_ended = batch.completed_at.is_some() || row.try_get::<bool, _>("untold")?;
    if pending == 0 && batch.closed_at.is_some() && !has_ended {
        return Ok(Some("all of its jobs have ended, and it has not".to_owned()));
    }
    if batch.succeeded_at.is_some() && (failed != 0 || counts.cancelled != 0) {
        return Ok(Some("it has succeeded, and it counts failed or cancelled jobs".to_owned()));
    }
    // Absent in a batch that is too large.
    let members = row.try_get::<Option<&str>, _>("members")?.map(Ended::parse).transpose()?;
    Ok(members.and_then(|members| members.misses(failed, others)))
}

/// The ended jobs of a batch that have not been removed.
struct Ended {
    /// Those that have completed or were cancelled.
    others: i64,
    /// Those that have failed, without those whose replays the batch counts in their places.
    failed: i64,
}

impl Ended {
    /// Read two numbers: the jobs that have completed or were cancelled, and those that have failed.
    fn parse(text: &str) -> Result<Self, sqlx::Error> {
        let numbers: Vec<i64> = text.split(',').filter_map(|number| number.parse().ok()).collect();
        let [others, failed] = numbers[..] else {
            return Err(corrupt("the numbers of the jobs of a batch"));
        };
        Ok(Self { others, failed })
    }

    /// Return what is wrong if a batch counts fewer ended jobs than there are. It may count more, because jobs are removed.
    fn misses(&self, failed: i64, others: i64) -> Option<String> {
        if failed < self.failed {
            Some(format!("it counts {failed} failed jobs, and {} have failed", self.failed))
        } else if others < self.others {
            let there = self.others;
            Some(format!("it counts {others} completed and cancelled jobs, and {there} have ended so"))
        } else {
            None
        }
    }
}

impl Evidence {
    /// Read one page of jobs with their parents, behind this parent and child.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn parents(
        &mut self,
        (parent, child): (JobId, JobId),
    ) -> Result<(Vec<ParentRow>, Walk<(JobId, JobId)>), StoreError> {
        let read = async {
            let found = sqlx::query(
                "SELECT p.parent_id, p.child_id, j.id IS NULL AS removed, \
                 (SELECT MIN(a.finished_at) FROM attempts a WHERE a.job_id = p.parent_id AND a.end_state IS NOT NULL) \
                 AS first_end, \
                 IF(EXISTS (SELECT 1 FROM attempts e WHERE e.job_id = p.child_id AND e.end_state IS NOT NULL \
                 AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.job_id = p.child_id AND a.number <= e.number \
                 AND a.runner <> '' AND a.expired IS NULL)), NULL, \
                 COALESCE((SELECT MIN(a.started_at) FROM attempts a WHERE a.job_id = p.child_id AND a.runner <> '' \
                 AND a.expired IS NULL), IF(o.started_at > '1970-01-01 00:00:00', o.started_at, NULL))) AS first_start \
                 FROM (SELECT parent_id, child_id FROM job_parents FORCE INDEX (PRIMARY) WHERE parent_id > ? \
                 OR (parent_id = ? AND child_id > ?) ORDER BY parent_id, child_id LIMIT ?) p \
                 LEFT JOIN jobs j ON j.id = p.parent_id LEFT JOIN owed o ON o.id = p.child_id \
                 ORDER BY p.parent_id, p.child_id",
            )
            .bind(parent.uuid())
            .bind(parent.uuid())
            .bind(child.uuid())
            .bind(PAGE)
            .fetch_all(&mut self.conn)
            .await?;
            let mut rows = Vec::with_capacity(found.len());
            for row in &found {
                rows.push(ParentRow {
                    parent: JobId::from_uuid(row.try_get("parent_id")?),
                    child: JobId::from_uuid(row.try_get("child_id")?),
                    first_end: row.try_get("first_end")?,
                    removed: row.try_get("removed")?,
                    first_start: row.try_get("first_start")?,
                });
            }
            let next = match rows.last() {
                Some(last) if rows.len() == PAGE as usize => Walk::From((last.parent, last.child)),
                _ => Walk::Over,
            };
            Ok((rows, next))
        };
        connection::within(PAGE_LIMIT, read).await.map_err(|e| StoreError::from_driver("read parents of jobs", &e))
    }

    /// Return the faults among the blocked jobs of one page behind `after`: jobs that wait although their parents have
    /// ended, and rows of jobs that do not wait.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn wrongly_blocked(
        &mut self,
        after: JobId,
    ) -> Result<(Vec<(JobId, &'static str)>, Walk<JobId>), StoreError> {
        let read = async {
            let found = sqlx::query(
                "SELECT b.job_id, COALESCE(o.execute_at = ?, FALSE) AS waits, \
                 EXISTS (SELECT 1 FROM job_parents p JOIN owed q ON q.id = p.parent_id WHERE p.child_id = b.job_id) \
                 OR EXISTS (SELECT 1 FROM job_parents p JOIN parent_ends e ON e.parent_id = p.parent_id \
                 WHERE p.child_id = b.job_id) \
                 OR (b.on_parent_failure = 'hold' AND EXISTS (SELECT 1 FROM job_parents p WHERE p.child_id = b.job_id \
                 AND p.outcome IN ('failed', 'cancelled'))) \
                 OR EXISTS (SELECT 1 FROM batch_jobs m JOIN batches c ON c.id = m.batch_id \
                 WHERE m.job_id = b.job_id AND c.cancelled_at IS NOT NULL AND c.completed_at IS NULL) AS has_reason \
                 FROM (SELECT job_id, on_parent_failure FROM blocked_jobs FORCE INDEX (PRIMARY) WHERE job_id > ? \
                 ORDER BY job_id LIMIT ?) b LEFT JOIN owed o ON o.id = b.job_id ORDER BY b.job_id",
            )
            .bind(blocked_until().naive_utc())
            .bind(after.uuid())
            .bind(PAGE)
            .fetch_all(&mut self.conn)
            .await?;
            let mut faults = Vec::new();
            for row in &found {
                let id = JobId::from_uuid(row.try_get("job_id")?);
                let (waits, has_reason): (bool, bool) = (row.try_get("waits")?, row.try_get("has_reason")?);
                if !waits {
                    faults.push((id, "blocked_jobs has a row of it, and it does not wait for parents"));
                } else if !has_reason {
                    faults.push((id, "it waits for parents, and all of them have ended"));
                }
            }
            let next = match found.last() {
                Some(last) if found.len() == PAGE as usize => Walk::From(JobId::from_uuid(last.try_get("job_id")?)),
                _ => Walk::Over,
            };
            Ok((faults, next))
        };
        connection::within(PAGE_LIMIT, read).await.map_err(|e| StoreError::from_driver("read blocked jobs", &e))
    }

    /// Return the faults among the batches of one page behind `after`: counts that do not fit the jobs, batches that have
    /// not ended although their jobs have, and callbacks that are missing. Ended jobs and callbacks may have been removed:
    /// the counts of ended jobs are at least those of the jobs that are there, and callbacks are looked for that were due
    /// at `kept_since` or later. A batch whose row cannot be read is left out, and the row is counted.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn wrong_batches(
        &mut self,
        after: BatchId,
        kept_since: Timestamp,
    ) -> Result<(Vec<(BatchId, String)>, Walk<BatchId>), StoreError> {
        let read = async {
            let Some(until) = self.batches_up_to(after).await? else { return Ok((Vec::new(), Walk::Over)) };
            // One statement sees one moment, so what is under way contradicts nothing.
            let found = statement(batches_and_members()).bind(after.uuid()).bind(until);
            let mut faults = Vec::new();
            for row in found.fetch_all(&mut self.conn).await? {
                let id: Uuid = row.try_get("id")?;
                let read = batch(&row).and_then(|batch| Ok((wrong_counts(&batch, &row)?, batch)));
                let (wrong, batch) = match read {
                    Ok(read) => read,
                    Err(error) => {
                        self.cannot_read("batches", &BatchId::from_uuid(id).to_string(), &error);
                        continue;
                    }
                };
                faults.extend(wrong.map(|what| (batch.id, what)));
                let missing = self.missing_callbacks(&batch, kept_since).await?;
                if missing > 0 {
                    faults.push((batch.id, format!("{missing} of its callbacks are missing")));
                }
            }
            Ok((faults, Walk::From(BatchId::from_uuid(until))))
        };
        connection::within(PAGE_LIMIT, read).await.map_err(|e| StoreError::from_driver("read batches", &e))
    }

    /// Return the last batch of the page behind `after`; nothing if there is no batch.
    async fn batches_up_to(&mut self, after: BatchId) -> Result<Option<Uuid>, sqlx::Error> {
        let sql = "SELECT id, total FROM batches FORCE INDEX (PRIMARY) WHERE id > ? ORDER BY id LIMIT ?";
        let (mut jobs, mut until) = (0_i64, None);
        for row in sqlx::query(sql).bind(after.uuid()).bind(BATCHES).fetch_all(&mut self.conn).await? {
            jobs = jobs.saturating_add(row.try_get("total")?);
            if until.is_some() && jobs > JOBS_OF_BATCHES {
                break;
            }
            until = Some(row.try_get("id")?);
        }
        Ok(until)
    }

    /// Count the callbacks of this batch that were due at `kept_since` or later and are not there, although neither
    /// retention nor an operator has removed them.
    async fn missing_callbacks(&mut self, batch: &Batch, kept_since: Timestamp) -> Result<usize, sqlx::Error> {
        let due: Vec<Uuid> = batch
            .callbacks
            .iter()
            .filter(|callback| batch.due_at(callback.event).is_some_and(|at| at >= kept_since))
            .map(|callback| callback.job.id.uuid())
            .collect();
        if due.is_empty() {
            return Ok(0);
        }
        let there = in_list("SELECT id FROM jobs FORCE INDEX (PRIMARY) WHERE id IN", &due, "");
        let mut missing: BTreeSet<Uuid> = due.into_iter().collect();
        for row in there.fetch_all(&mut self.conn).await? {
            missing.remove(&row.try_get("id")?);
        }
        let missing = self.without_removed(missing).await?;
        self.without_deleted(missing).await
    }

    /// Return those of these callbacks that retention has not removed. The transaction that removes one records it.
    async fn without_removed(&mut self, mut jobs: BTreeSet<Uuid>) -> Result<BTreeSet<Uuid>, sqlx::Error> {
        let ids: Vec<Uuid> = jobs.iter().copied().collect();
        for ids in ids.chunks(MAX_ROWS) {
            let removed = in_list("SELECT id FROM departures FORCE INDEX (PRIMARY) WHERE id IN", ids, "");
            for row in removed.fetch_all(&mut self.conn).await? {
                jobs.remove(&row.try_get("id")?);
            }
        }
        Ok(jobs)
    }

    /// Count those of these jobs that no operator has deleted. The transaction that deletes a job writes it to the audit.
    async fn without_deleted(&mut self, jobs: BTreeSet<Uuid>) -> Result<usize, sqlx::Error> {
        let mut left = 0;
        for id in jobs {
            let sql = "SELECT 1 FROM audit FORCE INDEX (audit_target) WHERE target = ? AND action = ? LIMIT 1";
            let deleted = sqlx::query(sql).bind(id.to_string()).bind(Action::Delete.act());
            left += usize::from(deleted.fetch_optional(&mut self.conn).await?.is_none());
        }
        Ok(left)
    }
}
