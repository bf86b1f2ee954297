//! Sizes of jobs that a remote worker is about to get, by which an answer to it is bounded.

use std::collections::HashMap;

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use uuid::Uuid;

use crate::sql::batches::{MAX_ROWS, in_list};
use crate::sql::connection::on_pool;
use crate::{Store, StoreError};
use tickr_job::JobId;

impl Store {
    /// Return how many bytes the payload and the checkpoint of each of these jobs have together. Jobs that do not exist
    /// are left out.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn bytes_of_jobs(&self, ids: Vec<JobId>) -> Result<HashMap<JobId, usize>, StoreError> {
        on_pool(&self.shared.pools.workers, "read the sizes of jobs", move |conn, _| {
            let mut ids: Vec<Uuid> = ids.iter().map(|id| id.uuid()).collect();
            ids.sort_unstable();
            Box::pin(async move {
                let mut found = HashMap::with_capacity(ids.len());
                for page in ids.chunks(MAX_ROWS) {
                    let sql = "SELECT j.id, CAST(LENGTH(j.payload) + COALESCE(LENGTH(c.content), 0) AS SIGNED) AS bytes \
                               FROM jobs j FORCE INDEX (PRIMARY) LEFT JOIN checkpoints c FORCE INDEX (PRIMARY) \
                               ON c.job_id = j.id WHERE j.id IN";
                    for row in &in_list(sql, page, "").fetch_all(&mut *conn).await? {
                        let bytes: i64 = row.try_get("bytes")?;
                        found.insert(JobId::from_uuid(row.try_get("id")?), usize::try_from(bytes).unwrap_or(0));
                    }
                }
                Ok(found)
            })
        })
        .await
    }
}
