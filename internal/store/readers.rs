//! Which living runners may be able to read a job that one of them cannot, and which have tried.

use std::collections::BTreeSet;

use sqlx::Row;

use super::link::on_pool;
use super::{Store, StoreError};
use crate::job::{Editions, JobId, Name, RunnerId};

/// How the error of every attempt begins that ended because its runner could not read the job: "read the payload as …".
pub const UNREAD: &str = "read the ";

/// A living runner, as far as it matters to a runner that looks for another that can read a job.
#[derive(Clone, Debug)]
pub struct Reader {
    /// Its identity.
    pub id: RunnerId,
    /// Kinds it can run.
    pub kinds: BTreeSet<Name>,
    /// Queues it serves.
    pub queues: BTreeSet<Name>,
    /// Which versions of their types it has; unknown of binaries older than the column.
    pub editions: Option<Editions>,
}

impl Store {
    /// The runners whose last beat is no older than their lease. One that has just said goodbye is among them for as long:
    /// while a binary is replaced, its successor may need a moment to start.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn readers(&self) -> Result<Vec<Reader>, StoreError> {
        on_pool(&self.shared.pools.loops, "read what living runners can read", move |conn, _| {
            Box::pin(async move {
                let found = sqlx::query(
                    "SELECT id, kinds, queues, kind_schemas FROM runners \
                     WHERE heartbeat_at >= UTC_TIMESTAMP(6) - INTERVAL lease_ms * 1000 MICROSECOND AND parent IS NULL",
                )
                .fetch_all(conn)
                .await?;
                let reader = |row: &sqlx::mysql::MySqlRow| {
                    // A row of another version may say what this one cannot read: then it is not known what it reads.
                    let names = |text: &str| serde_json::from_str::<BTreeSet<Name>>(text).unwrap_or_default();
                    let editions: Option<&str> = row.try_get(3)?;
                    Ok(Reader {
                        id: RunnerId::from_stored(row.try_get(0)?),
                        kinds: names(row.try_get(1)?),
                        queues: names(row.try_get(2)?),
                        editions: editions.and_then(|text| serde_json::from_str(text).ok()),
                    })
                };
                found.iter().map(reader).collect()
            })
        })
        .await
    }

    /// What the runners said that could not read this job and gave it back, the newest ones first.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn given_back_unread(&self, id: JobId) -> Result<Vec<String>, StoreError> {
        on_pool(&self.shared.pools.loops, "read who could not read a job", move |conn, _| {
            Box::pin(async move {
                sqlx::query_scalar(
                    "SELECT error FROM attempts FORCE INDEX (PRIMARY) WHERE job_id = ? AND verdict = 'snoozed' \
                     AND error LIKE CONCAT(?, '%') ORDER BY number DESC LIMIT 200",
                )
                .bind(id.uuid())
                .bind(UNREAD)
                .fetch_all(conn)
                .await
            })
        })
        .await
    }
}
