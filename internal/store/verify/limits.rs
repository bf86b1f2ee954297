//! The reads of `tickr verify` about limits by key.

use std::collections::{BTreeMap, BTreeSet};

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;

use crate::rows::limits::{
    LimitKey, LimitSetting, NOT_PAUSED, SLOTS, add_keys, any_of, key_in, keys_locked_elsewhere, keys_of_rows,
    limit_rows, parked_until, setting,
};
use crate::sql::batches::statement;
use crate::sql::connection::{self, on_pool};
use crate::sql::script::rows_as_text;
use crate::sql::session::Session;
use crate::verify::evidence::{Evidence, PAGE_LIMIT, Walk};
use crate::{Store, StoreError};
use tickr_job::JobId;

/// Most parked jobs of one removed limit that are returned.
const MAX_STRANDED: u32 = 1_000;
/// Removed limits of which parked jobs are returned.
const MAX_REMOVED: u32 = 200;
/// Keys that one statement locks. A sweep leaves these out meanwhile.
const KEYS_TRIED: usize = 64;

/// A key of which more attempts run than its limit allows, the number of those attempts, and the limit.
pub type ExceededLimit = (LimitKey, i64, u32);

impl Evidence {
    /// Return those of the next keys of limits of which more attempts run than the limit allows, with the number of those
    /// attempts and the limit, and where the next page begins. The first page begins behind nothing. Attempts that began
    /// before the limit was last changed do not count: a lower limit stops no job. A limit whose row cannot be read is
    /// left out, and the row is counted with the first page.
    ///
    /// All attempts of a key are counted by one statement, so at one moment. A limit that changes between its read and
    /// the count is left out.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn exceeded_limits(
        &mut self,
        after: Option<LimitKey>,
    ) -> Result<(Vec<ExceededLimit>, Walk<Option<LimitKey>>), StoreError> {
        let read = async {
            let limits = self.readable_limits(after.is_none()).await?;
            let (keys, may_have_more) = self.keys_with_slots(after).await?;
            let asked: Vec<&LimitKey> = keys.iter().collect();
            let mut exceeded = Vec::new();
            for row in &count_attempts(&mut self.conn, &asked).await? {
                let (key, running): (LimitKey, i64) = (key_in(row)?, row.try_get("running")?);
                let version: i64 = row.try_get("version")?;
                let set = limits.iter().find(|set| set.limit.name == key.limit && i64::from(set.version) == version);
                if let Some(most) = set.and_then(|set| set.limit.bounds_of(&key.key).concurrency)
                    && running > i64::from(most)
                {
                    exceeded.push((key, running, most));
                }
            }
            let next = if may_have_more { Walk::From(keys.last().cloned()) } else { Walk::Over };
            Ok((exceeded, next))
        };
        connection::within(PAGE_LIMIT, read).await.map_err(|e| StoreError::from_driver("read the slots of limits", &e))
    }

    /// Read the limits. `counts` says whether rows that cannot be read are counted.
    async fn readable_limits(&mut self, counts: bool) -> Result<Vec<LimitSetting>, sqlx::Error> {
        let mut limits = Vec::new();
        for row in limit_rows(&mut self.conn).await? {
            match setting(&row) {
                Ok(limit) => limits.push(limit),
                Err(error) if counts => {
                    self.cannot_read("limits", row.try_get("name").unwrap_or("without a name"), &error);
                }
                Err(_) => {}
            }
        }
        Ok(limits)
    }

    /// Read the next keys that have slots. Returns whether there may be more.
    async fn keys_with_slots(&mut self, after: Option<LimitKey>) -> Result<(BTreeSet<LimitKey>, bool), sqlx::Error> {
        let (limit, key) = after.map_or_else(Default::default, |key| (key.limit.to_string(), key.key));
        let query = keys_of_rows(SLOTS, "limit_name > ? OR (limit_name = ? AND limit_key > ?)");
        let query = query.bind(limit.clone()).bind(limit).bind(key.into_bytes());
        let mut keys = BTreeSet::new();
        let may_have_more = add_keys(&mut self.conn, query, &mut keys).await?;
        Ok((keys, may_have_more))
    }
}

/// Count the attempts of each of these keys that began after their limits were last changed.
async fn count_attempts(conn: &mut Session<'_>, keys: &[&LimitKey]) -> Result<Vec<MySqlRow>, sqlx::Error> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let (any, values) = any_of("s.", keys);
    let sql = format!(
        "SELECT s.limit_name, s.limit_key, COUNT(*) AS running, CAST(MAX(l.version) AS SIGNED) AS version \
         FROM limit_slots s FORCE INDEX (PRIMARY) \
         STRAIGHT_JOIN owed o FORCE INDEX (PRIMARY) ON o.id = s.job_id AND o.state = 'executing' \
         STRAIGHT_JOIN limits l ON l.name = s.limit_name AND o.started_at > l.changed_at + INTERVAL 2 SECOND \
         WHERE ({any}) AND s.kept_until IS NULL GROUP BY s.limit_name, s.limit_key"
    );
    rows_as_text(conn, sql, values).await
}

impl Store {
    /// Return parked jobs whose limits do not exist any more, each with its key. A sweep lets them go in the order of
    /// their keys and due times, so the first thousand jobs of each limit are returned, of the first two hundred limits.
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
                     AND heartbeat_at >= UTC_TIMESTAMP(6) - INTERVAL lease_ms * 1000 MICROSECOND) \
                     ORDER BY n.limit_name LIMIT ?",
                )
                .bind(MAX_REMOVED)
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
