//! Rows of the outbox that became no jobs of their own: jobs that had their unique keys were the answers to them.
//!
//! A row behind such a row may name it as a parent, and its job then waits for the answer. That row may be in a later
//! page, another process may move it, and an operator may replay it days later. So the transaction that removes the row
//! of the parent keeps the answer. It keeps it in `idempotency_keys`, where the janitor removes it after
//! `retention_idempotency`: the id of a row is for an application what an idempotency key is for a client of the API.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use sqlx::Row;
use uuid::Uuid;

use crate::idempotency::{Digest, find_all};
use crate::jobs::key_holders::KeyHolder;
use crate::sql::batches::in_list;
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use tickr_job::{JobId, State};

/// The answer to a row.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct RowAnswer {
    /// The job that had the unique key of the row.
    pub(super) job: JobId,
    /// True if the job had completed by then. Retention may have removed it.
    pub(super) completed: bool,
}

/// Return the digest under which the answer to a row is kept. The digest of an idempotency key is that of other bytes:
/// they begin with a length or with `part`.
fn digest_of(row: JobId) -> Digest {
    let mut digest = Sha256::new();
    digest.update(b"row of the outbox");
    digest.update(row.uuid().as_bytes());
    digest.finalize().into()
}

/// Return the answers to those of these rows that have one. A row that has become a job since has none: the application
/// has inserted it again.
pub(super) async fn answers_to(
    conn: &mut Session<'_>,
    rows: &[JobId],
) -> Result<BTreeMap<JobId, RowAnswer>, sqlx::Error> {
    let mut answers: BTreeMap<JobId, RowAnswer> = BTreeMap::new();
    if rows.is_empty() {
        return Ok(answers);
    }
    let digests: Vec<Digest> = rows.iter().map(|row| digest_of(*row)).collect();
    let kept = find_all(conn, &digests).await?;
    for (row, digest) in rows.iter().zip(&digests) {
        if let Some(kept) = kept.get(digest) {
            let answer = serde_json::from_str(&kept.answer.body).map_err(|error| corrupt(error.to_string()))?;
            answers.insert(*row, answer);
        }
    }
    if answers.is_empty() {
        return Ok(answers);
    }
    let ids: Vec<Uuid> = answers.keys().map(|row| row.uuid()).collect();
    let jobs = in_list("SELECT id FROM jobs FORCE INDEX (PRIMARY) WHERE id IN", &ids, "");
    for job in jobs.fetch_all(conn).await? {
        answers.remove(&JobId::from_uuid(job.try_get("id")?));
    }
    Ok(answers)
}

/// Keep the answer to a row that this transaction removes. The row may have had another answer before: the application
/// has inserted it again.
pub(super) async fn keep_answer(conn: &mut Session<'_>, row: JobId, holder: KeyHolder) -> Result<(), sqlx::Error> {
    let answer = RowAnswer { job: holder.id, completed: holder.state == State::Completed };
    let body = serde_json::to_string(&answer).map_err(|error| corrupt(error.to_string()))?;
    let digest = digest_of(row).to_vec();
    sqlx::query(
        "INSERT INTO idempotency_keys (id, key_hash, request_hash, status, answer, created_at) \
         VALUES (?, ?, ?, 200, ?, UTC_TIMESTAMP(6)) \
         ON DUPLICATE KEY UPDATE answer = VALUES(answer), created_at = VALUES(created_at)",
    )
    .bind(Uuid::now_v7())
    .bind(digest.clone())
    .bind(digest)
    .bind(body)
    .execute(conn)
    .await
    .map(drop)
}
