//! Breakers of hosts, as operators see and close them. `attempts/breakers.rs` opens and closes them by the ends of calls.

use std::collections::BTreeSet;

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;

use crate::audit::{AuditEntry, record, was_recorded};
use crate::rows::limits::{LimitKey, key_in, let_go};
use crate::rows::owed::DueJob;
use crate::sql::clock::read_clock;
use crate::sql::connection::{PriorRun, on_pool, transact};
use crate::{Store, StoreError};
use tickr_job::{Actor, Timestamp};

/// Open breakers that one read returns.
const MAX_OPEN: i64 = 100;
/// Open breakers that are counted.
const MAX_COUNTED: i64 = 100_000;

/// A breaker that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenBreaker {
    /// The limit and the host.
    pub key: LimitKey,
    /// Since when it is open.
    pub opened_at: Timestamp,
}

impl Store {
    /// Close the breaker of a host by hand. Returns the parked jobs that have a due time now, or nothing if the breaker was
    /// not open.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn close_breaker(&self, key: LimitKey, by: &Actor) -> Result<Option<Vec<DueJob>>, StoreError> {
        let act =
            AuditEntry::new(by, "limit.close_breaker", key.limit.as_str()).with(serde_json::json!({ "host": key.key }));
        let shared = self.shared.clone();
        let closed = transact(&self.shared.pools.controls, "close a breaker", move |conn, earlier| {
            let (shared, key, act) = (shared.clone(), key.clone(), act.clone());
            Box::pin(async move {
                let now = read_clock(conn, &shared.clock).await?;
                let locked = sqlx::query_scalar::<_, Option<Timestamp>>(
                    "SELECT opened_at FROM limit_keys WHERE limit_name = ? AND limit_key = ? FOR UPDATE",
                );
                let locked =
                    locked.bind(key.limit.as_str()).bind(key.key.as_bytes()).fetch_optional(&mut *conn).await?;
                if locked.flatten().is_none() {
                    let own = earlier == PriorRun::MayHaveCommitted && was_recorded(conn, &act).await?;
                    return Ok(own.then(Vec::new));
                }
                sqlx::query(
                    "UPDATE limit_keys SET failures = 0, failed_at = NULL, last_error = NULL, opened_at = NULL, \
                     pause_ms = NULL, probe_at = NULL, probe_job = NULL WHERE limit_name = ? AND limit_key = ?",
                )
                .bind(key.limit.as_str())
                .bind(key.key.as_bytes())
                .execute(&mut *conn)
                .await?;
                record(conn, &act, now).await?;
                let (gone, _) = let_go(conn, &BTreeSet::from([key.clone()]), &shared.limits.now()).await?;
                tracing::info!(limit = %key.limit, host = key.key, by = %act.actor, "a breaker closed by hand");
                Ok(Some(gone))
            })
        });
        closed.await
    }

    /// Count the open breakers of all limits, up to 100,000. Returns 0 without a statement while no limit has a breaker.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn open_breakers(&self) -> Result<i64, StoreError> {
        if !self.has_breakers() {
            return Ok(0);
        }
        on_pool(&self.shared.pools.reads, "count open breakers", |conn, _| {
            Box::pin(async move {
                sqlx::query_scalar(
                    "SELECT COUNT(*) FROM (SELECT 1 FROM limit_keys k FORCE INDEX (limit_keys_probe) \
                     STRAIGHT_JOIN limits l ON l.name = k.limit_name WHERE k.probe_at IS NOT NULL \
                     AND k.failed_at >= l.breaker_since LIMIT ?) b",
                )
                .bind(MAX_COUNTED)
                .fetch_one(conn)
                .await
            })
        })
        .await
    }

    /// Read the open breakers of all limits, at most 100: those whose next calls may start first. Returns none without
    /// a statement while no limit has a breaker.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn first_open_breakers(&self) -> Result<Vec<OpenBreaker>, StoreError> {
        if !self.has_breakers() {
            return Ok(Vec::new());
        }
        on_pool(&self.shared.pools.reads, "read open breakers", |conn, _| {
            Box::pin(async move {
                let found = sqlx::query(
                    "SELECT k.limit_name, k.limit_key, k.opened_at FROM limit_keys k FORCE INDEX (limit_keys_probe) \
                     STRAIGHT_JOIN limits l ON l.name = k.limit_name WHERE k.probe_at IS NOT NULL \
                     AND k.opened_at IS NOT NULL AND k.failed_at >= l.breaker_since ORDER BY k.probe_at LIMIT ?",
                );
                let rows = found.bind(MAX_OPEN).fetch_all(conn).await?;
                let open = |row: &MySqlRow| -> Result<OpenBreaker, sqlx::Error> {
                    Ok(OpenBreaker { key: key_in(row)?, opened_at: row.try_get("opened_at")? })
                };
                rows.iter().map(open).collect()
            })
        })
        .await
    }

    /// Return whether a limit has a breaker, as far as this process knows.
    fn has_breakers(&self) -> bool {
        self.shared.limits.now().iter().any(|set| set.breaker_rule().is_some())
    }
}
