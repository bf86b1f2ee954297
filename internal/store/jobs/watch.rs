//! Short lookups of many jobs by primary key: their revisions, to find out if anything has changed, and their kinds and
//! queues.

use std::collections::HashMap;

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use uuid::Uuid;

use crate::sql::batches::{MAX_ROWS, bind_padded, padded_len, placeholders, statement};
use crate::sql::connection::on_pool;
use crate::sql::error::corrupt;
use crate::{Store, StoreError};
use tickr_job::{JobId, Name, State, Timestamp};

/// The revision of a job: everything that can change, without payload, result and errors. The fields of `owed` are
/// absent when the job has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRevision {
    state: Option<State>,
    execute_at: Option<Timestamp>,
    /// The due time that a job shows. A job that waits for its parents has another one in `owed`.
    shown_due: Timestamp,
    attempt: Option<u32>,
    /// A claim that was undone and the one that follows it have the same number.
    started_at: Option<Timestamp>,
    priority: Option<u8>,
    cancel_requested_at: Option<Timestamp>,
    progress: Option<String>,
    /// Number of the last row in its ledger.
    lines: Option<u32>,
}

impl Store {
    /// Read the revisions of these jobs. Jobs that do not exist are left out.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn job_revisions(&self, ids: Vec<JobId>) -> Result<HashMap<JobId, JobRevision>, StoreError> {
        let ids = sorted(ids);
        on_pool(&self.shared.pools.reads, "read job revisions", move |conn, _| {
            let ids = ids.clone();
            Box::pin(async move {
                let mut seen = HashMap::with_capacity(ids.len());
                for ids in ids.chunks(MAX_ROWS) {
                    let sql = format!(
                        "SELECT j.id, j.execute_at AS shown_due, o.state, o.execute_at, o.attempt, o.started_at, o.priority, \
                         o.cancel_requested_at, o.progress, \
                         (SELECT MAX(a.number) FROM attempts a WHERE a.job_id = j.id) AS last_line \
                         FROM jobs j FORCE INDEX (PRIMARY) LEFT JOIN owed o ON o.id = j.id WHERE j.id IN {}",
                        placeholders(padded_len(ids.len()))
                    );
                    let query = bind_padded(statement(sql), ids);
                    for row in query.fetch_all(&mut *conn).await? {
                        let state: Option<&str> = row.try_get("state")?;
                        let revision = JobRevision {
                            state: state
                                .map(|word| State::from_word(word).ok_or_else(|| corrupt("state")))
                                .transpose()?,
                            execute_at: row.try_get("execute_at")?,
                            shown_due: row.try_get("shown_due")?,
                            attempt: row.try_get("attempt")?,
                            started_at: row.try_get("started_at")?,
                            priority: row.try_get("priority")?,
                            cancel_requested_at: row.try_get("cancel_requested_at")?,
                            progress: row.try_get("progress")?,
                            lines: row.try_get("last_line")?,
                        };
                        seen.insert(JobId::from_uuid(row.try_get("id")?), revision);
                    }
                }
                Ok(seen)
            })
        })
        .await
    }

    /// Read the kind and the queue of these jobs. Jobs that do not exist are left out.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn kinds_and_queues(&self, ids: Vec<JobId>) -> Result<HashMap<JobId, (Name, Name)>, StoreError> {
        let ids = sorted(ids);
        on_pool(&self.shared.pools.reads, "look up kinds and queues", move |conn, _| {
            let ids = ids.clone();
            Box::pin(async move {
                let mut names = HashMap::with_capacity(ids.len());
                for ids in ids.chunks(MAX_ROWS) {
                    let sql = format!(
                        "SELECT id, kind, queue FROM jobs FORCE INDEX (PRIMARY) WHERE id IN {}",
                        placeholders(padded_len(ids.len()))
                    );
                    let query = bind_padded(statement(sql), ids);
                    for row in query.fetch_all(&mut *conn).await? {
                        let kind: Name = row.try_get::<String, _>("kind")?.parse().map_err(|_| corrupt("kind"))?;
                        let queue: Name = row.try_get::<String, _>("queue")?.parse().map_err(|_| corrupt("queue"))?;
                        names.insert(JobId::from_uuid(row.try_get("id")?), (kind, queue));
                    }
                }
                Ok(names)
            })
        })
        .await
    }
}

fn sorted(ids: Vec<JobId>) -> Vec<Uuid> {
    let mut ids: Vec<Uuid> = ids.into_iter().map(JobId::uuid).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}
