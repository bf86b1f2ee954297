//! The payloads of unfinished jobs, page by page, for the check that a binary can read them.

use async_recursion::async_recursion as boxed;
use serde_json::value::RawValue;
use sqlx::Row;
use uuid::Uuid;

use crate::sql::connection::on_pool;
use crate::sql::error::corrupt;
use crate::{Store, StoreError};
use tickr_job::{JobId, JobOptions, Name};

/// Most jobs in a page. The number is small because payloads may be large.
const PAGE: u32 = 200;

/// An unfinished job as a handler would receive it.
#[derive(Debug)]
pub struct Pending {
    /// The id of the job.
    pub id: JobId,
    /// The kind of the job.
    pub kind: Name,
    /// The payload; absent if the stored text is not JSON.
    pub payload: Option<Box<RawValue>>,
    /// The error of its options, if they cannot be read.
    pub options_problem: Option<String>,
}

impl Store {
    /// Read one page of unfinished jobs after `after`, in the order of their ids. Also return whether there may be
    /// more.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn pending(&self, after: Option<JobId>) -> Result<(Vec<Pending>, bool), StoreError> {
        on_pool(&self.shared.pools.reads, "read unfinished jobs", move |conn, _| {
            Box::pin(async move {
                let found = sqlx::query(
                    "SELECT j.id, j.kind, j.payload, j.options FROM (SELECT id FROM owed FORCE INDEX (PRIMARY) WHERE id > ? ORDER BY id \
                     LIMIT ?) o JOIN jobs j ON j.id = o.id ORDER BY j.id",
                )
                .bind(after.map_or(Uuid::nil(), JobId::uuid))
                .bind(PAGE)
                .fetch_all(conn)
                .await?;
                let pending = |row: &sqlx::mysql::MySqlRow| {
                    Ok::<_, sqlx::Error>(Pending {
                        id: JobId::from_uuid(row.try_get("id")?),
                        kind: row.try_get::<String, _>("kind")?.parse().map_err(|_| corrupt("kind"))?,
                        payload: RawValue::from_string(row.try_get("payload")?).ok(),
                        options_problem: row
                            .try_get::<Option<&str>, _>("options")?
                            .and_then(|text| serde_json::from_str::<JobOptions>(text).err())
                            .map(|error| error.to_string()),
                    })
                };
                let page: Vec<Pending> = found.iter().map(pending).collect::<Result<_, _>>()?;
                let more = page.len() == PAGE as usize;
                Ok((page, more))
            })
        })
        .await
    }
}
