//! The reads of `tickr verify` about limits by key.

use std::collections::{BTreeMap, BTreeSet};

use async_recursion::async_recursion as boxed;
use sqlx::Row;

use crate::rows::limits::{
    LimitKey, LimitSetting, NOT_PAUSED, key_in, keys_locked_elsewhere, limit_rows, parked_until, setting,
};
use crate::sql::batches::statement;
use crate::sql::connection::{self, on_pool};
use crate::verify::evidence::{Evidence, PAGE_LIMIT};
use crate::{Store, StoreError};
use tickr_job::JobId;

/// Most parked jobs of one removed limit that are returned.
const MAX_STRANDED: u32 = 1_000;
/// Keys that one statement locks. A sweep leaves these out meanwhile.
const KEYS_TRIED: usize = 64;

impl Evidence {
    /// Return the keys of limits of which more attempts run than the limit allows, with the number of those attempts
    /// and the limit. Attempts that began before the limit was last changed do not count: a lower limit stops no job. A
    /// limit whose row cannot be read is left out, and the row is counted.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn exceeded_limits(&mut self) -> Result<Vec<(LimitKey, i64, u32)>, StoreError> {
        let read = async {
            let limits = self.readable_limits().await?;
            let used = sqlx::query(
                "SELECT s.limit_name, s.limit_key, COUNT(*) AS running FROM limit_slots s FORCE INDEX (PRIMARY) \
                 STRAIGHT_JOIN owed o ON o.id = s.job_id AND o.state = 'executing' \
                 STRAIGHT_JOIN limits l ON l.name = s.limit_name \
                 AND o.started_at > l.changed_at + INTERVAL 2 SECOND WHERE s.kept_until IS NULL \
                 GROUP BY s.limit_name, s.limit_key",
            )
            .fetch_all(&mut self.conn)
            .await?;
            let mut exceeded = Vec::new();
            for row in &used {
                let (key, running): (LimitKey, i64) = (key_in(row)?, row.try_get("running")?);
                let set = limits.iter().find(|set| set.limit.name == key.limit);
                if let Some(most) = set.and_then(|set| set.limit.bounds_of(&key.key).concurrency)
                    && running > i64::from(most)
                {
                    exceeded.push((key, running, most));
                }
            }
            Ok(exceeded)
        };
        connection::within(PAGE_LIMIT, read).await.map_err(|e| StoreError::from_driver("read the slots of limits", &e))
    }

    async fn readable_limits(&mut self) -> Result<Vec<LimitSetting>, sqlx::Error> {
        let mut limits = Vec::new();
        for row in limit_rows(&mut self.conn).await? {
            match setting(&row) {
                Ok(limit) => limits.push(limit),
                Err(error) => self.cannot_read("limits", row.try_get("name").unwrap_or("without a name"), &error),
            }
        }
        Ok(limits)
    }
}

impl Store {
    /// Return parked jobs whose limits do not exist any more, each with its key. A sweep lets them go in the order of
    /// their keys and due times, so the first thousand jobs of each limit are returned.
    ///
    /// Jobs of paused queues stay parked, so they are left out. While no runner is alive nothing lets a job go, and no
    /// job is returned.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn stranded_jobs(&self) -> Result<BTreeMap<JobId, LimitKey>, StoreError> {
        on_pool(&self.shared.pools.reads, "read parked jobs of removed limits", |conn, _| {
            Box::pin(async move {
                let removed: Vec<String> = sqlx::query_scalar(
                    "SELECT n.limit_name FROM (SELECT DISTINCT limit_name FROM limit_waits \
                     FORCE INDEX (limit_waits_line)) n LEFT JOIN limits l ON l.name = n.limit_name \
                     WHERE l.name IS NULL AND EXISTS (SELECT 1 FROM runners WHERE via = 'process' AND stopped_at IS NULL \
                     AND heartbeat_at >= UTC_TIMESTAMP(6) - INTERVAL lease_ms * 1000 MICROSECOND)",
                )
                .fetch_all(&mut *conn)
                .await?;
                let sql = format!(
                    "SELECT w.job_id, w.limit_name, w.limit_key FROM (SELECT job_id, limit_name, limit_key \
                     FROM limit_waits FORCE INDEX (limit_waits_line) WHERE limit_name = ? AND {NOT_PAUSED} \
                     ORDER BY limit_key, due_at, job_id LIMIT {MAX_STRANDED}) w \
                     STRAIGHT_JOIN owed o FORCE INDEX (PRIMARY) ON o.id = w.job_id AND o.execute_at = ?"
                );
                let mut stranded = BTreeMap::new();
                for limit in removed {
                    let query = statement(sql.clone()).bind(limit).bind(parked_until().naive_utc());
                    for row in query.fetch_all(&mut *conn).await? {
                        stranded.insert(JobId::from_uuid(row.try_get("job_id")?), key_in(&row)?);
                    }
                }
                Ok(stranded)
            })
        })
        .await
    }

    /// Return those of these keys that another session locks at this moment. A sweep leaves them out.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn locked_limit_keys(&self, keys: BTreeSet<LimitKey>) -> Result<BTreeSet<LimitKey>, StoreError> {
        let keys: Vec<LimitKey> = keys.into_iter().collect();
        on_pool(&self.shared.pools.reads, "look for locked keys of limits", move |conn, _| {
            let keys = keys.clone();
            Box::pin(async move {
                let mut locked = BTreeSet::new();
                for keys in keys.chunks(KEYS_TRIED) {
                    locked.extend(keys_locked_elsewhere(conn, &keys.iter().collect::<Vec<_>>()).await?);
                }
                Ok(locked)
            })
        })
        .await
    }
}
