//! Reads about limits by key: why a job is parked, and which keys have jobs.

use std::collections::{BTreeMap, BTreeSet};

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;

use crate::rows::limits::{LimitKey, SLOTS, WAITS, key_in, keys_of_limit};
use crate::sql::batches::statement;
use crate::sql::connection::on_pool;
use crate::sql::script::{Script, Value};
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{JobId, Name, Timestamp};

/// Jobs that are counted at most.
const MAX_COUNTED: i64 = 10_000;
/// Running jobs of a key that are named.
const MAX_NAMED: i64 = 5;
/// Keys that one read returns: a page of 200, and one that says that another page follows.
const MAX_KEYS: usize = 201;

/// The limit for which a parked job waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedAt {
    /// The limit and its key.
    pub key: LimitKey,
    /// Number of parked jobs of the key that were due before it. Counted up to a limit.
    pub ahead: u32,
    /// Some of the jobs that have slots of the key.
    pub holders: Vec<JobId>,
    /// Number of jobs that have slots of the key.
    pub running: u32,
    /// The breaker of the host, if it has failures.
    pub breaker: Option<BreakerSeen>,
}

/// The breaker of a host whose last calls failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerSeen {
    /// Number of failures in a row.
    pub failures: u32,
    /// Time of the last failure.
    pub failed_at: Timestamp,
    /// Error of the last failure.
    pub last_error: Option<String>,
    /// Since when it is open. Nothing while it is closed.
    pub opened_at: Option<Timestamp>,
    /// When the next call may start, if it is open.
    pub next_call_at: Option<Timestamp>,
    /// True if it is open and its pause is over: the next call decides, or is under way.
    pub half_open: bool,
}

/// The jobs of one key of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUse {
    /// The key. Empty for a limit that all jobs share.
    pub key: String,
    /// Number of attempts, and of jobs that were let go, that have slots.
    pub running: u32,
    /// Number of parked jobs. Counted up to 10,000.
    pub parked: u32,
    /// Due time of the parked job that was due first.
    pub parked_since: Option<Timestamp>,
    /// The breaker of the host, if it has failures.
    pub breaker: Option<BreakerSeen>,
}

/// Read the breakers with failures of these keys of a limit.
async fn breakers(
    conn: &mut Session<'_>,
    limit: &Name,
    keys: &[&[u8]],
) -> Result<BTreeMap<Vec<u8>, BreakerSeen>, sqlx::Error> {
    let mut script = Script::as_text();
    let (list, of_keys) = script.list(keys);
    let sql = format!(
        "SELECT k.limit_key, k.failures, k.failed_at, k.last_error, k.opened_at, k.probe_at, \
         COALESCE(k.probe_at <= UTC_TIMESTAMP(6), FALSE) AS half_open FROM limits l STRAIGHT_JOIN limit_keys k \
         FORCE INDEX (PRIMARY) ON k.limit_name = l.name AND k.failed_at >= l.breaker_since \
         WHERE l.name = ? AND k.limit_key IN {list} AND k.failures > 0"
    );
    script.push(sql, std::iter::once(Value::from(limit.as_str())).chain(of_keys).collect());
    let found: Vec<MySqlRow> = script.run(conn).await?.into_iter().flat_map(|step| step.rows).collect();
    let seen = |row: &MySqlRow| {
        let seen = BreakerSeen {
            failures: row.try_get("failures")?,
            failed_at: row.try_get("failed_at")?,
            last_error: row.try_get("last_error")?,
            opened_at: row.try_get("opened_at")?,
            next_call_at: row.try_get("probe_at")?,
            half_open: row.try_get::<i64, _>("half_open")? != 0,
        };
        Ok((row.try_get("limit_key")?, seen))
    };
    found.iter().map(seen).collect()
}

impl Store {
    /// Read for which limit a job is parked. Returns nothing if it is not parked.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn parked_at(&self, id: JobId) -> Result<Option<ParkedAt>, StoreError> {
        on_pool(&self.shared.pools.reads, "read why a job is parked", move |conn, _| {
            Box::pin(async move {
                let sql = "SELECT limit_name, limit_key, due_at FROM limit_waits WHERE job_id = ?";
                let found = sqlx::query(sql).bind(id.uuid()).fetch_optional(&mut *conn).await?;
                let Some(row) = found else { return Ok(None) };
                let (key, due_at): (LimitKey, Timestamp) = (key_in(&row)?, row.try_get("due_at")?);
                let ahead: i64 = sqlx::query_scalar(
                    "SELECT COUNT(*) FROM (SELECT 1 FROM limit_waits FORCE INDEX (limit_waits_line) \
                     WHERE limit_name = ? AND limit_key = ? AND (due_at < ? OR (due_at = ? AND job_id < ?)) LIMIT ?) w",
                )
                .bind(key.limit.as_str())
                .bind(key.key.as_bytes())
                .bind(due_at)
                .bind(due_at)
                .bind(id.uuid())
                .bind(MAX_COUNTED)
                .fetch_one(&mut *conn)
                .await?;
                let running: i64 =
                    sqlx::query_scalar("SELECT COUNT(*) FROM limit_slots WHERE limit_name = ? AND limit_key = ?")
                        .bind(key.limit.as_str())
                        .bind(key.key.as_bytes())
                        .fetch_one(&mut *conn)
                        .await?;
                let holders: Vec<uuid::Uuid> = sqlx::query_scalar(
                    "SELECT job_id FROM limit_slots WHERE limit_name = ? AND limit_key = ? ORDER BY job_id LIMIT ?",
                )
                .bind(key.limit.as_str())
                .bind(key.key.as_bytes())
                .bind(MAX_NAMED)
                .fetch_all(&mut *conn)
                .await?;
                let bytes = key.key.as_bytes();
                let breaker = breakers(conn, &key.limit, &[bytes]).await?.remove(bytes);
                Ok(Some(ParkedAt {
                    breaker,
                    key,
                    ahead: u32::try_from(ahead).unwrap_or(u32::MAX),
                    holders: holders.into_iter().map(JobId::from_uuid).collect(),
                    running: u32::try_from(running).unwrap_or(u32::MAX),
                }))
            })
        })
        .await
    }

    /// Read the keys of a limit that have jobs or an open breaker, in key order, at most 201. They begin after `after`.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn limit_keys_in_use(&self, limit: &Name, after: Option<String>) -> Result<Vec<KeyUse>, StoreError> {
        let limit = limit.clone();
        on_pool(&self.shared.pools.reads, "read the keys of a limit", move |conn, _| {
            let (limit, after) = (limit.clone(), after.clone());
            Box::pin(async move {
                let (name, bound) = (limit.as_str(), after.as_deref().map(str::as_bytes));
                // Before every key stands nothing, and the empty key is one.
                let rest = if bound.is_some() { "AND k.limit_key > ?" } else { "AND k.limit_key >= ?" };
                let sql = format!(
                    "SELECT k.limit_key FROM limits l STRAIGHT_JOIN limit_keys k FORCE INDEX (PRIMARY) \
                     ON k.limit_name = l.name AND k.failed_at >= l.breaker_since WHERE l.name = ? {rest} \
                     AND k.probe_at IS NOT NULL ORDER BY k.limit_key LIMIT {MAX_KEYS}"
                );
                let open = statement(sql).bind(name).bind(bound.unwrap_or_default()).fetch_all(&mut *conn).await?;
                let mut keys: BTreeSet<Vec<u8>> =
                    open.iter().map(|row| row.try_get("limit_key")).collect::<Result<_, _>>()?;
                for table in [SLOTS, WAITS] {
                    let after = bound.map(<[u8]>::to_vec);
                    let found = keys_of_limit(conn, table, (name, after), MAX_KEYS).await?;
                    keys.extend(found.into_iter().map(|key| key.key.into_bytes()));
                }
                let keys: Vec<Vec<u8>> = keys.into_iter().take(MAX_KEYS).collect();
                let mut breakers = breakers(conn, &limit, &keys.iter().map(Vec::as_slice).collect::<Vec<_>>()).await?;
                let mut used = Vec::with_capacity(keys.len());
                for key in keys {
                    let row = sqlx::query(
                        "SELECT (SELECT COUNT(*) FROM limit_slots WHERE limit_name = ? AND limit_key = ?) AS running, \
                         (SELECT COUNT(*) FROM (SELECT 1 FROM limit_waits FORCE INDEX (limit_waits_line) \
                         WHERE limit_name = ? AND limit_key = ? LIMIT ?) w) AS parked, \
                         (SELECT MIN(due_at) FROM limit_waits FORCE INDEX (limit_waits_line) \
                         WHERE limit_name = ? AND limit_key = ?) AS parked_since",
                    )
                    .bind(name)
                    .bind(&key)
                    .bind(name)
                    .bind(&key)
                    .bind(MAX_COUNTED)
                    .bind(name)
                    .bind(&key)
                    .fetch_one(&mut *conn)
                    .await?;
                    let count = |column| -> Result<u32, sqlx::Error> {
                        Ok(u32::try_from(row.try_get::<i64, _>(column)?).unwrap_or(u32::MAX))
                    };
                    used.push(KeyUse {
                        key: String::from_utf8_lossy(&key).into_owned(),
                        running: count("running")?,
                        parked: count("parked")?,
                        parked_since: row.try_get("parked_since")?,
                        breaker: breakers.remove(&key),
                    });
                }
                Ok(used)
            })
        })
        .await
    }
}
