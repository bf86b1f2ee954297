//! Rows of `checkpoints`: JSON that a handler saved, for the next attempt of its job to begin with.
//!
//! A row is written and deleted only under the lock of the `owed` row of its job. Bit [`HAS_CHECKPOINT`] of `owed.links`
//! says that there is one.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::sql::batches::{MAX_ROWS, groups_by_bytes, in_list, placeholders, statement, tuples};
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use tickr_job::{Checkpoint, Timestamp};

/// Bit of `owed.links`: the job has a checkpoint.
pub(crate) const HAS_CHECKPOINT: u8 = 4;

/// Write the checkpoints of these jobs, sorted by id, in place of earlier ones.
pub(crate) async fn write_checkpoints(
    conn: &mut Session<'_>,
    checkpoints: &[(Uuid, &str)],
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    for group in groups_by_bytes(checkpoints, |(_, content)| 100 + content.len()) {
        let sql = format!(
            "INSERT INTO checkpoints (job_id, content, saved_at) VALUES {} \
             ON DUPLICATE KEY UPDATE content = VALUES(content), saved_at = VALUES(saved_at)",
            tuples(&placeholders(3), group.len())
        );
        let mut query = statement(sql);
        for (id, content) in group {
            query = query.bind(id).bind(*content).bind(now);
        }
        query.execute(&mut *conn).await?;
    }
    Ok(())
}

/// Set the bit in the `owed` rows of these jobs, which are locked.
pub(crate) async fn mark_checkpoints(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<(), sqlx::Error> {
    for ids in ids.chunks(MAX_ROWS) {
        // The order and the limit keep MySQL from scanning a small table.
        let sql = format!("UPDATE owed SET links = links | {HAS_CHECKPOINT} WHERE id IN");
        in_list(&sql, ids, &format!(" ORDER BY id LIMIT {}", ids.len())).execute(&mut *conn).await?;
    }
    Ok(())
}

/// Delete the checkpoints of these jobs.
pub(crate) async fn delete_checkpoints(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<(), sqlx::Error> {
    for ids in ids.chunks(MAX_ROWS) {
        let tail = format!(" ORDER BY job_id LIMIT {}", ids.len());
        in_list("DELETE FROM checkpoints WHERE job_id IN", ids, &tail).execute(&mut *conn).await?;
    }
    Ok(())
}

/// Return the bit for a job that an operator retries.
pub(crate) async fn checkpoint_bit(conn: &mut Session<'_>, id: Uuid) -> Result<u8, sqlx::Error> {
    let found = sqlx::query("SELECT 1 FROM checkpoints WHERE job_id = ?").bind(id).fetch_optional(conn).await?;
    Ok(if found.is_some() { HAS_CHECKPOINT } else { 0 })
}

/// Read the checkpoint of a job, if there is one.
pub(crate) async fn read_checkpoint(conn: &mut Session<'_>, id: Uuid) -> Result<Option<Checkpoint>, sqlx::Error> {
    let row = sqlx::query("SELECT content AS checkpoint, saved_at FROM checkpoints WHERE job_id = ?").bind(id);
    row.fetch_optional(conn).await?.map_or(Ok(None), |row| checkpoint_of(&row))
}

/// Read a checkpoint, if there is one, from these columns of a row: checkpoint, saved_at.
pub(crate) fn checkpoint_of(row: &MySqlRow) -> Result<Option<Checkpoint>, sqlx::Error> {
    let Some(content) = row.try_get::<Option<String>, _>("checkpoint")? else { return Ok(None) };
    let content = RawValue::from_string(content).map_err(|error| corrupt(format!("checkpoint: {error}")))?;
    Ok(Some(Checkpoint { content, saved_at: row.try_get("saved_at")? }))
}

/// Sort checkpoints by the id of their job.
pub(crate) fn sorted<'a>(checkpoints: impl Iterator<Item = (Uuid, &'a str)>) -> Vec<(Uuid, &'a str)> {
    checkpoints.collect::<BTreeMap<_, _>>().into_iter().collect()
}
