//! Living runners that may be able to read a job that another runner cannot read, and the runners that have already
//! tried.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use uuid::Uuid;

use crate::sql::batches::{MAX_ROWS, bind_padded, padded_len, placeholders, statement};
use crate::sql::connection::on_pool;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Edition, Editions, JobId, Name, RunnerId};

/// The beginning of the error of every attempt that ended because its runner could not read the job, as in "read the
/// payload as …".
pub const UNREAD: &str = "read the ";

/// A living runner, with the facts that show whether it can read a job.
#[derive(Clone, Debug)]
pub struct Reader {
    /// The id of the runner.
    pub id: RunnerId,
    /// Kinds that it can run.
    pub kinds: BTreeSet<Name>,
    /// Queues that it serves.
    pub queues: BTreeSet<Name>,
    /// The versions of its payload types. Unknown for binaries that are older than the column.
    pub editions: Option<Editions>,
}

impl Store {
    /// Read the runners whose last heartbeat is no older than their lease. This includes runners that have just
    /// stopped: while a binary is replaced, its successor may need a moment to start.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn readers(&self) -> Result<Vec<Reader>, StoreError> {
        on_pool(&self.shared.pools.loops, "read what living runners can read", move |conn, _| {
            Box::pin(async move { readers(conn).await })
        })
        .await
    }

    /// Read the errors of the attempts that gave this job back because their runner could not read it, newest first.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn given_back_unread(&self, id: JobId) -> Result<Vec<String>, StoreError> {
        on_pool(&self.shared.pools.loops, "read which runners could not read a job", move |conn, _| {
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

    /// Read the editions that could not read these jobs and gave them back, for those jobs that have any.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn editions_that_refused(
        &self,
        ids: Vec<JobId>,
    ) -> Result<HashMap<JobId, BTreeSet<Edition>>, StoreError> {
        let ids: Arc<[Uuid]> = ids.into_iter().map(JobId::uuid).collect();
        on_pool(&self.shared.pools.reads, "read which versions could not read jobs", move |conn, _| {
            let ids = Arc::clone(&ids);
            Box::pin(async move {
                let mut refused: HashMap<JobId, BTreeSet<Edition>> = HashMap::new();
                for page in ids.chunks(MAX_ROWS) {
                    let sql = format!(
                        "SELECT job_id, error FROM attempts FORCE INDEX (PRIMARY) WHERE job_id IN {} \
                         AND verdict = 'snoozed' AND error LIKE CONCAT(?, '%')",
                        placeholders(padded_len(page.len()))
                    );
                    let query = bind_padded(statement(sql), page).bind(UNREAD);
                    for row in query.fetch_all(&mut *conn).await? {
                        if let Some(edition) = Edition::named_in(row.try_get("error")?) {
                            refused.entry(JobId::from_uuid(row.try_get("job_id")?)).or_default().insert(edition);
                        }
                    }
                }
                Ok(refused)
            })
        })
        .await
    }

    /// Read the living runners whose version could not read this job and gave it back.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn runners_that_refused(&self, id: JobId, kind: &Name) -> Result<BTreeSet<RunnerId>, StoreError> {
        let refused = self.editions_that_refused(vec![id]).await?.remove(&id).unwrap_or_default();
        if refused.is_empty() {
            return Ok(BTreeSet::new());
        }
        let found = on_pool(&self.shared.pools.reads, "read which runners could not read a job", |conn, _| {
            Box::pin(async move { readers(conn).await })
        });
        let may = |reader: &Reader| reader.editions.as_ref().is_none_or(|editions| editions.may_read(kind, &refused));
        Ok(found.await?.into_iter().filter(|reader| !may(reader)).map(|reader| reader.id).collect())
    }
}

async fn readers(conn: &mut Session<'_>) -> Result<Vec<Reader>, sqlx::Error> {
    let found = sqlx::query(
        "SELECT id, kinds, queues, kind_schemas FROM runners \
         WHERE heartbeat_at >= UTC_TIMESTAMP(6) - INTERVAL lease_ms * 1000 MICROSECOND AND parent IS NULL \
         AND via = 'process'",
    )
    .fetch_all(conn)
    .await?;
    let reader = |row: &sqlx::mysql::MySqlRow| {
        // The row of another version may be unreadable for this binary. Then it is unknown what that runner can read.
        let names = |text: &str| serde_json::from_str::<BTreeSet<Name>>(text).unwrap_or_default();
        let editions: Option<&str> = row.try_get("kind_schemas")?;
        Ok(Reader {
            id: RunnerId::from_stored(row.try_get("id")?),
            kinds: names(row.try_get("kinds")?),
            queues: names(row.try_get("queues")?),
            editions: editions.and_then(|text| serde_json::from_str(text).ok()),
        })
    };
    found.iter().map(reader).collect()
}
