//! Rows of `dead_letters`: inserted together with the failure of a job, deleted by its retry.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::sql::batches::{MAX_ROWS, groups, in_list, placeholders, statement, tuples};
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use tickr_job::{DeadLetter, DeadLetterStatus, Fingerprint, JobId, JobOptions, Name, Timestamp};

/// Longest part of an error that is stored with a dead letter, in characters. The column has this width.
const MAX_ERROR: usize = 500;

/// Failures of one job that are searched at most for the first one with the same cause.
const MAX_LIVES: u32 = 100;

/// A new dead letter: a job that fails in this transaction.
pub(crate) struct NewDeadLetter<'a> {
    pub(crate) id: Uuid,
    pub(crate) kind: &'a Name,
    pub(crate) queue: &'a Name,
    pub(crate) failed_at: Timestamp,
    pub(crate) error: &'a str,
    /// True if the job was retried before, so that it may have failed before.
    pub(crate) lived_before: bool,
}

/// The columns of a row of `dead_letters` that record its status.
pub(crate) struct StatusColumns<'a> {
    pub(crate) status: DeadLetterStatus,
    pub(crate) since: Timestamp,
    pub(crate) replayed_as: Option<Uuid>,
    /// The bulk operation that replayed it.
    pub(crate) operation: Option<Uuid>,
    pub(crate) actor: Option<&'a str>,
    pub(crate) reason: Option<&'a str>,
}

/// Insert the dead letters of jobs that failed, in the transaction that ends the jobs. `dead_letters` must be sorted by
/// id.
pub(crate) async fn insert_dead_letters(
    conn: &mut Session<'_>,
    dead_letters: &[NewDeadLetter<'_>],
) -> Result<(), sqlx::Error> {
    let open = |dead_letter: &NewDeadLetter<'_>| StatusColumns {
        status: DeadLetterStatus::Open,
        since: dead_letter.failed_at,
        replayed_as: None,
        operation: None,
        actor: None,
        reason: None,
    };
    let rows: Vec<(&NewDeadLetter<'_>, StatusColumns<'_>)> =
        dead_letters.iter().map(|dead_letter| (dead_letter, open(dead_letter))).collect();
    write(conn, &rows).await?;
    note_first_failures(conn, dead_letters).await?;
    for dead_letters in dead_letters.chunks(MAX_ROWS) {
        note_failures_of_originals(conn, dead_letters).await?;
    }
    Ok(())
}

/// Store the time of the first failure with the same cause, for jobs that failed before: a retry that fails again is no
/// new incident. This runs only for retried jobs, which are rare, so it costs other failures nothing.
async fn note_first_failures(conn: &mut Session<'_>, dead_letters: &[NewDeadLetter<'_>]) -> Result<(), sqlx::Error> {
    for dead_letter in dead_letters.iter().filter(|dead_letter| dead_letter.lived_before) {
        let ends = sqlx::query(
            "SELECT finished_at, error FROM attempts FORCE INDEX (PRIMARY) WHERE job_id = ? AND end_state = 'failed' \
             ORDER BY number LIMIT ?",
        )
        .bind(dead_letter.id)
        .bind(MAX_LIVES)
        .fetch_all(&mut *conn)
        .await?;
        let cause = Fingerprint::new(dead_letter.kind, dead_letter.error);
        let mut first = None;
        for row in &ends {
            let (ended, error): (Timestamp, Option<&str>) = (row.try_get("finished_at")?, row.try_get("error")?);
            if Fingerprint::new(dead_letter.kind, error.unwrap_or_default()) == cause {
                first = Some(ended);
                break;
            }
        }
        if let Some(first) = first.filter(|first| *first < dead_letter.failed_at) {
            sqlx::query("UPDATE dead_letters SET first_failed_at = ? WHERE job_id = ?")
                .bind(first)
                .bind(dead_letter.id)
                .execute(&mut *conn)
                .await?;
        }
    }
    Ok(())
}

/// Store the time of the first failure with the same cause, for jobs that are replays: a replay that fails again is no
/// new incident either. Costs one more read for each batch in which jobs failed.
async fn note_failures_of_originals(
    conn: &mut Session<'_>,
    dead_letters: &[NewDeadLetter<'_>],
) -> Result<(), sqlx::Error> {
    let ids: Vec<Uuid> = dead_letters.iter().map(|dead_letter| dead_letter.id).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let sql = "SELECT id, options FROM jobs FORCE INDEX (PRIMARY) WHERE id IN";
    let mut original_of: BTreeMap<Uuid, Uuid> = BTreeMap::new();
    for row in in_list(sql, &ids, " AND options LIKE '%\"replay_of\"%'").fetch_all(&mut *conn).await? {
        // The failure is recorded even if the options of the job are unreadable.
        if let Some(original) = JobOptions::as_far_as_readable(row.try_get("options")?).replay_of {
            original_of.insert(row.try_get("id")?, original.uuid());
        }
    }
    let originals: Vec<Uuid> = original_of.values().copied().collect::<BTreeSet<_>>().into_iter().collect();
    if originals.is_empty() {
        return Ok(());
    }
    let sql = "SELECT job_id, fingerprint, COALESCE(first_failed_at, failed_at) AS first_at FROM dead_letters \
               FORCE INDEX (PRIMARY) WHERE job_id IN";
    let mut firsts: BTreeMap<Uuid, (Fingerprint, Timestamp)> = BTreeMap::new();
    for row in in_list(sql, &originals, "").fetch_all(&mut *conn).await? {
        firsts.insert(row.try_get("job_id")?, (group(row.try_get("fingerprint")?)?, row.try_get("first_at")?));
    }
    for dead_letter in dead_letters {
        let first = original_of.get(&dead_letter.id).and_then(|original| firsts.get(original));
        let Some((cause, first)) = first else { continue };
        if *cause == Fingerprint::new(dead_letter.kind, dead_letter.error) && *first < dead_letter.failed_at {
            let sql =
                "UPDATE dead_letters SET first_failed_at = LEAST(COALESCE(first_failed_at, ?), ?) WHERE job_id = ?";
            sqlx::query(sql).bind(first).bind(first).bind(dead_letter.id).execute(&mut *conn).await?;
        }
    }
    Ok(())
}

pub(crate) async fn write(
    conn: &mut Session<'_>,
    dead_letters: &[(&NewDeadLetter<'_>, StatusColumns<'_>)],
) -> Result<(), sqlx::Error> {
    for group in groups(dead_letters) {
        // A row may exist already: of a job that failed before, or of one that was retried by an old binary that knows
        // no dead letters.
        let sql = format!(
            "INSERT INTO dead_letters (job_id, kind, queue, fingerprint, failed_at, error, standing, since, replayed_as, \
             operation, actor, reason) VALUES {} ON DUPLICATE KEY UPDATE first_failed_at = IF(fingerprint = VALUES(fingerprint), \
             first_failed_at, NULL), fingerprint = VALUES(fingerprint), \
             failed_at = VALUES(failed_at), error = VALUES(error), standing = VALUES(standing), since = VALUES(since), \
             replayed_as = VALUES(replayed_as), operation = VALUES(operation), actor = VALUES(actor), reason = VALUES(reason)",
            tuples(&placeholders(12), group.len())
        );
        let mut query = statement(sql);
        for (dead_letter, columns) in group {
            let error: String = dead_letter.error.chars().take(MAX_ERROR).collect();
            query = query
                .bind(dead_letter.id)
                .bind(dead_letter.kind.as_str())
                .bind(dead_letter.queue.as_str())
                .bind(Fingerprint::new(dead_letter.kind, dead_letter.error).bytes().to_vec())
                .bind(dead_letter.failed_at)
                .bind(error)
                .bind(columns.status.as_str())
                .bind(columns.since)
                .bind(columns.replayed_as)
                .bind(columns.operation)
                .bind(columns.actor)
                .bind(columns.reason);
        }
        query.execute(&mut *conn).await?;
    }
    Ok(())
}

/// Delete the dead letter of a job that is retried. The caller holds the lock of the job.
pub(crate) async fn delete_dead_letter(conn: &mut Session<'_>, id: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM dead_letters WHERE job_id = ?").bind(id).execute(conn).await.map(drop)
}

/// Return true if the job was replayed. The caller holds the lock of the job.
pub(crate) async fn was_replayed(conn: &mut Session<'_>, id: Uuid) -> Result<bool, sqlx::Error> {
    let status: Option<String> =
        sqlx::query_scalar("SELECT standing FROM dead_letters WHERE job_id = ?").bind(id).fetch_optional(conn).await?;
    Ok(status.as_deref() == Some(DeadLetterStatus::Replayed.as_str()))
}

/// Read the dead letter of a row, if there is one: fingerprint, failed_at, standing, since, replayed_as, actor, reason.
pub(crate) fn dead_letter(row: &MySqlRow) -> Result<Option<DeadLetter>, sqlx::Error> {
    let Some(fingerprint) = row.try_get::<Option<&[u8]>, _>("fingerprint")? else { return Ok(None) };
    Ok(Some(DeadLetter {
        fingerprint: group(fingerprint)?,
        failed_at: row.try_get("failed_at")?,
        status: DeadLetterStatus::from_word(row.try_get("standing")?).ok_or_else(|| corrupt("standing"))?,
        since: row.try_get("since")?,
        replayed_as: row.try_get::<Option<Uuid>, _>("replayed_as")?.map(JobId::from_uuid),
        by: row.try_get("actor")?,
        reason: row.try_get("reason")?,
    }))
}

pub(crate) fn group(bytes: &[u8]) -> Result<Fingerprint, sqlx::Error> {
    bytes.try_into().map(Fingerprint::from_bytes).map_err(|_| corrupt("fingerprint"))
}
