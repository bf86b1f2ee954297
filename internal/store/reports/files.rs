//! Finished reports, readable by every runner: a record for each, and its content in parts.
//!
//! An attempt writes the parts first. It writes the row that names them last, in a transaction that locks the job's
//! `owed` row and counts the parts. So a reader finds a whole report or none, and only the holder of the job's token
//! can replace a report. Parts that no row names were left by earlier attempts. They are removed here, a few at a time.

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use chrono::TimeDelta;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::sql::batches::statement;
use crate::sql::clock::read_clock;
use crate::sql::connection::{on_pool, transact};
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{AttemptToken, JobId, ReportRecord, RunnerId, Timestamp, first_id_of};

/// Largest part in bytes, on a server that accepts more.
const MAX_PART_BYTES: usize = 512 << 10;
/// Number of parts that one transaction removes, and that are removed between two rests. The number is small because a
/// binary log holds their content once more.
pub const PARTS_AT_ONCE: u64 = 8;
/// Number of rows in one page.
const PAGE: u32 = 200;
/// Number of parts in one page of a search for remains.
const PARTS_READ: i64 = 500;
/// Age at which parts left by an attempt are removed, unless reports are kept for a shorter time.
const REMAINS: TimeDelta = TimeDelta::days(1);
/// Extra time for which the row of a deleted job's report stays, after files of its age are gone from every folder.
const REMOVED: TimeDelta = TimeDelta::days(1);
/// Overlap of a new walk through removed reports with the last one. It is needed because transactions do not commit in
/// the order of their timestamps.
const OVERLAP: TimeDelta = TimeDelta::seconds(60);

/// A statement that returns a row if the token holds the job.
const HOLDS: &str = "SELECT 1 FROM owed FORCE INDEX (PRIMARY) WHERE id = ? AND token = ?";

const COLUMNS: &str = "id, name, bytes, parts, digest, token, runner, host, removed_at IS NOT NULL AS removed";

/// A report whose job was deleted by an operator.
#[derive(Clone, Debug)]
pub struct RemovedReport {
    /// The id of the job.
    pub job: JobId,
    /// The name of the report's file.
    pub name: String,
    /// True if the store still has parts of it.
    pub has_parts: bool,
}

/// The position of a walk through removed reports.
#[derive(Clone, Copy, Debug)]
pub struct RemovedPlace {
    at: Timestamp,
    job: Uuid,
}

/// The attempt that wrote some parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartsOf {
    /// The id of the job.
    pub job: JobId,
    /// The token of the attempt.
    pub token: AttemptToken,
}

impl Store {
    /// Return the largest size of a part in bytes, for the server in use.
    #[must_use]
    pub fn report_part_bytes(&self) -> usize {
        self.shared.options.server.statement_bytes().min(MAX_PART_BYTES)
    }

    /// Remove the parts that earlier attempts of this job left, except those of a finished report. Return false if the
    /// token does not hold the job: then nothing is removed, and the caller should not write anything.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn clear_report(&self, job: JobId, token: AttemptToken) -> Result<bool, StoreError> {
        let left = on_pool(&self.shared.pools.reports, "look for parts of a report", move |conn, _| {
            Box::pin(async move {
                // List the attempts before the check of the token. So an attempt that holds the job after this one is
                // not among them, however long the removal takes.
                let sql = "SELECT DISTINCT token FROM report_parts WHERE job_id = ? AND token <> COALESCE((SELECT f.token \
                           FROM report_files f WHERE f.id = ?), '') LIMIT ?";
                let id = job.uuid();
                let left: Vec<Uuid> =
                    sqlx::query_scalar(sql).bind(id).bind(id).bind(PAGE).fetch_all(&mut *conn).await?;
                let holds = sqlx::query(HOLDS).bind(id).bind(token.uuid()).fetch_optional(conn).await?;
                Ok(holds.map(|_| left))
            })
        })
        .await?;
        let Some(left) = left else { return Ok(false) };
        for former in left {
            let parts =
                "DELETE FROM report_parts WHERE job_id = ? AND token = ? ORDER BY job_id, token, number LIMIT ?";
            let mut removed = PARTS_AT_ONCE;
            while removed == PARTS_AT_ONCE {
                removed = on_pool(&self.shared.pools.reports, "remove parts of a report", move |conn, _| {
                    Box::pin(async move {
                        let query = sqlx::query(parts).bind(job.uuid()).bind(former).bind(PARTS_AT_ONCE);
                        Ok(query.execute(conn).await?.rows_affected())
                    })
                })
                .await?;
            }
        }
        Ok(true)
    }

    /// Write a part of a report. A part that is written again replaces itself.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn put_report_part(
        &self,
        job: JobId,
        token: AttemptToken,
        number: u32,
        content: Vec<u8>,
    ) -> Result<(), StoreError> {
        // The `Arc` lets all runs of the closure share the content.
        let content: Arc<[u8]> = content.into();
        on_pool(&self.shared.pools.reports, "write a part of a report", move |conn, _| {
            let content = Arc::clone(&content);
            Box::pin(async move {
                let sql = "INSERT INTO report_parts (job_id, token, number, bytes, content, made_at) \
                           VALUES (?, ?, ?, ?, ?, UTC_TIMESTAMP(6)) \
                           ON DUPLICATE KEY UPDATE bytes = VALUES(bytes), content = VALUES(content)";
                let query = sqlx::query(sql).bind(job.uuid()).bind(token.uuid()).bind(number);
                let bytes = u32::try_from(content.len()).unwrap_or(u32::MAX);
                query.bind(bytes).bind(&content[..]).execute(conn).await.map(drop)
            })
        })
        .await
    }

    /// Make a report visible after its parts are written. Return false, and change nothing, if the token does not hold
    /// the job or a part is missing.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn publish_report(&self, record: &ReportRecord) -> Result<bool, StoreError> {
        let record = record.clone();
        transact(&self.shared.pools.reports, "make a report visible", move |conn, _| {
            let record = record.clone();
            Box::pin(async move {
                if !is_whole(conn, &record).await? {
                    return Ok(false);
                }
                // Take this lock last, so that a heartbeat, a settle and the reaper wait for it as briefly as possible.
                let lock = statement(format!("{HOLDS} LOCK IN SHARE MODE"));
                if lock.bind(record.job.uuid()).bind(record.token.uuid()).fetch_optional(&mut *conn).await?.is_none() {
                    return Ok(false);
                }
                let sql = "INSERT INTO report_files (id, name, bytes, parts, digest, token, runner, host, made_at) \
                           VALUES (?, ?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE \
                           name = VALUES(name), bytes = VALUES(bytes), parts = VALUES(parts), digest = VALUES(digest), \
                           token = VALUES(token), runner = VALUES(runner), host = VALUES(host), \
                           made_at = VALUES(made_at), removed_at = NULL";
                sqlx::query(sql)
                    .bind(record.job.uuid())
                    .bind(&record.name)
                    .bind(record.bytes)
                    .bind(record.parts)
                    .bind(record.digest.as_ref().map(|digest| &digest[..]))
                    .bind(record.token.uuid())
                    .bind(record.runner.as_str())
                    .bind(&record.host)
                    .execute(conn)
                    .await?;
                Ok(true)
            })
        })
        .await
    }

    /// Read the record of a job's report.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn report_record(&self, job: JobId) -> Result<Option<ReportRecord>, StoreError> {
        on_pool(&self.shared.pools.reports, "look for a report", move |conn, _| {
            Box::pin(async move {
                let sql = format!("SELECT {COLUMNS} FROM report_files WHERE id = ?");
                let found = statement(sql).bind(job.uuid()).fetch_optional(conn).await?;
                found.as_ref().map(record).transpose()
            })
        })
        .await
    }

    /// Read a part of a report; none if it does not exist any more.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn report_part(
        &self,
        job: JobId,
        token: AttemptToken,
        number: u32,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        on_pool(&self.shared.pools.reports, "read a part of a report", move |conn, _| {
            Box::pin(async move {
                let sql = "SELECT content FROM report_parts WHERE job_id = ? AND token = ? AND number = ?";
                sqlx::query_scalar(sql).bind(job.uuid()).bind(token.uuid()).bind(number).fetch_optional(conn).await
            })
        })
        .await
    }

    /// Read the next reports whose jobs operators deleted, and the position to continue after. With `again`, the walk
    /// begins a little before `after`, so some reports are returned again.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn removed_reports(
        &self,
        after: Option<RemovedPlace>,
        again: bool,
    ) -> Result<(Vec<RemovedReport>, Option<RemovedPlace>), StoreError> {
        on_pool(&self.shared.pools.loops, "look for removed reports", move |conn, _| {
            Box::pin(async move {
                let (at, job) = match after {
                    None => (Timestamp::UNIX_EPOCH, Uuid::nil()),
                    Some(place) if again => (place.at - OVERLAP, Uuid::nil()),
                    Some(place) => (place.at, place.job),
                };
                let found = sqlx::query(
                    "SELECT id, name, parts > 0 AS has_parts, removed_at FROM report_files \
                     FORCE INDEX (report_files_removed) WHERE removed_at > ? OR (removed_at = ? AND id > ?) \
                     ORDER BY removed_at, id LIMIT ?",
                )
                .bind(at)
                .bind(at)
                .bind(job)
                .bind(PAGE)
                .fetch_all(conn)
                .await?;
                let mut place = None;
                let mut removed = Vec::with_capacity(found.len());
                for row in &found {
                    let job: Uuid = row.try_get("id")?;
                    place = Some(RemovedPlace { at: row.try_get("removed_at")?, job });
                    removed.push(RemovedReport {
                        job: JobId::from_uuid(job),
                        name: row.try_get("name")?,
                        has_parts: row.try_get("has_parts")?,
                    });
                }
                Ok((removed, place))
            })
        })
        .await
    }

    /// Remove some of the content of a report whose job was deleted. Return true if there may be more.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn empty_removed_report(&self, job: JobId) -> Result<bool, StoreError> {
        transact(&self.shared.pools.loops, "remove the content of a report", move |conn, _| {
            Box::pin(async move {
                let id = job.uuid();
                let parts = "DELETE FROM report_parts WHERE job_id = ? ORDER BY job_id, token, number LIMIT ?";
                let gone = sqlx::query(parts).bind(id).bind(PARTS_AT_ONCE).execute(&mut *conn).await?.rows_affected();
                if gone == PARTS_AT_ONCE {
                    return Ok(true);
                }
                let row = "UPDATE report_files SET parts = 0 WHERE id = ? AND removed_at IS NOT NULL";
                sqlx::query(row).bind(id).execute(conn).await?;
                Ok(false)
            })
        })
        .await
    }

    /// Delete a page of the rows of reports that are older than `keep`. Return true if there may be more. Rows are deleted
    /// before their parts, so that no row names content that does not exist.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn forget_reports(&self, keep: Duration) -> Result<bool, StoreError> {
        let (shared, keep) = (self.shared.clone(), TimeDelta::from_std(keep).unwrap_or(TimeDelta::MAX / 4));
        on_pool(&self.shared.pools.loops, "delete old reports", move |conn, _| {
            let shared = shared.clone();
            Box::pin(async move {
                // A report is younger than the id of its job. So the walk begins at the oldest id and stops where
                // nothing can be old enough.
                let before = read_clock(conn, &shared.clock).await? - keep;
                let rows = "id < ? AND ((removed_at IS NULL AND made_at < ?) OR made_at < ?) ORDER BY id LIMIT ?";
                // Nearly always there is nothing to delete. A plain read finds that out without a lock.
                let read = statement(format!("SELECT 1 FROM report_files WHERE {rows}"));
                let read = read.bind(first_id_of(before)).bind(before).bind(before - REMOVED).bind(1);
                if read.fetch_optional(&mut *conn).await?.is_none() {
                    return Ok(false);
                }
                let delete = statement(format!("DELETE FROM report_files WHERE {rows}"));
                let delete = delete.bind(first_id_of(before)).bind(before).bind(before - REMOVED).bind(PAGE);
                Ok(delete.execute(conn).await?.rows_affected() == u64::from(PAGE))
            })
        })
        .await
    }

    /// Read a page of the attempts that have parts, behind `after`. Return those whose parts are remains that
    /// [`Self::delete_left_parts`] deletes, and the position to continue after; absent at the end. This takes no locks:
    /// the parts of all reports that are kept are among those that it reads.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn left_parts(
        &self,
        keep: Duration,
        after: Option<PartsOf>,
    ) -> Result<(Vec<PartsOf>, Option<PartsOf>), StoreError> {
        let shared = self.shared.clone();
        on_pool(&self.shared.pools.loops, "look for parts of old reports", move |conn, _| {
            let shared = shared.clone();
            Box::pin(async move {
                let before = remains_before(read_clock(conn, &shared.clock).await?, keep);
                // An attempt may have any number of parts. The next page begins behind all of them.
                let (job, token) = after.map_or_else(Default::default, |of| (of.job.uuid(), of.token.uuid()));
                let sql = format!(
                    "SELECT g.job_id, g.token, g.parts, g.first < ? AND {} AS is_left FROM \
                     (SELECT p.job_id, p.token, COUNT(*) AS parts, MIN(p.made_at) AS first FROM \
                     (SELECT job_id, token, made_at FROM report_parts FORCE INDEX (PRIMARY) \
                     WHERE job_id < ? AND (job_id > ? OR (job_id = ? AND token > ?)) \
                     ORDER BY job_id, token, number LIMIT ?) p GROUP BY p.job_id, p.token) g ORDER BY g.job_id, g.token",
                    no_attempt_has("g")
                );
                let query = statement(sql).bind(before).bind(first_id_of(before));
                let query = query.bind(job).bind(job).bind(token).bind(PARTS_READ);
                let (mut left, mut last, mut parts) = (Vec::new(), None, 0);
                for row in query.fetch_all(conn).await? {
                    let (job, token) = (row.try_get("job_id")?, row.try_get("token")?);
                    let of = PartsOf { job: JobId::from_uuid(job), token: AttemptToken::from_uuid(token) };
                    if row.try_get::<i64, _>("is_left")? != 0 {
                        left.push(of);
                    }
                    parts += row.try_get::<i64, _>("parts")?;
                    last = Some(of);
                }
                Ok((left, last.filter(|_| parts == PARTS_READ)))
            })
        })
        .await
    }

    /// Delete up to `most` old parts of an attempt. Return how many were deleted. The parts of the attempt that holds its job
    /// stay, because it may name them at any moment. So do those of a finished report.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn delete_left_parts(&self, keep: Duration, of: PartsOf, most: u64) -> Result<u64, StoreError> {
        let shared = self.shared.clone();
        on_pool(&self.shared.pools.loops, "delete parts of old reports", move |conn, _| {
            let shared = shared.clone();
            Box::pin(async move {
                let before = remains_before(read_clock(conn, &shared.clock).await?, keep);
                let sql = format!(
                    "DELETE FROM report_parts WHERE job_id = ? AND token = ? AND made_at < ? AND {} \
                     ORDER BY job_id, token, number LIMIT ?",
                    no_attempt_has("report_parts")
                );
                let query = statement(sql).bind(of.job.uuid()).bind(of.token.uuid()).bind(before).bind(most);
                Ok(query.execute(conn).await?.rows_affected())
            })
        })
        .await
    }
}

/// Return the moment before which parts are made that count as remains.
fn remains_before(now: Timestamp, keep: Duration) -> Timestamp {
    now - TimeDelta::from_std(keep).unwrap_or(TimeDelta::MAX / 4).min(REMAINS)
}

/// Build the condition that no finished report names the parts of an attempt, and that the attempt does not hold its job.
fn no_attempt_has(parts: &str) -> String {
    format!(
        "NOT EXISTS (SELECT 1 FROM report_files f WHERE f.id = {parts}.job_id AND f.token = {parts}.token) AND \
         NOT EXISTS (SELECT 1 FROM owed o FORCE INDEX (PRIMARY) WHERE o.id = {parts}.job_id AND o.token = {parts}.token)"
    )
}

/// Return whether all parts of the record are stored.
async fn is_whole(conn: &mut Session<'_>, record: &ReportRecord) -> Result<bool, sqlx::Error> {
    if record.parts == 0 {
        return Ok(true);
    }
    let sql =
        "SELECT COUNT(*), CAST(COALESCE(SUM(bytes), 0) AS SIGNED) FROM report_parts WHERE job_id = ? AND token = ?";
    let (parts, bytes): (i64, i64) =
        sqlx::query_as(sql).bind(record.job.uuid()).bind(record.token.uuid()).fetch_one(conn).await?;
    Ok((parts, u64::try_from(bytes).ok()) == (i64::from(record.parts), Some(record.bytes)))
}

fn record(row: &MySqlRow) -> Result<ReportRecord, sqlx::Error> {
    let digest: Option<Vec<u8>> = row.try_get("digest")?;
    let digest = digest.map(|digest| digest.try_into().map_err(|_| corrupt("digest"))).transpose()?;
    Ok(ReportRecord {
        job: JobId::from_uuid(row.try_get("id")?),
        name: row.try_get("name")?,
        bytes: row.try_get("bytes")?,
        parts: row.try_get("parts")?,
        digest,
        token: AttemptToken::from_uuid(row.try_get("token")?),
        runner: RunnerId::from_stored(row.try_get("runner")?),
        host: row.try_get("host")?,
        removed: row.try_get("removed")?,
    })
}
