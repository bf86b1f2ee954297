//! Breakers of hosts, as operators see and close them. `attempts/breakers.rs` opens and closes them by the ends of calls.

use std::collections::BTreeSet;

use crate::audit::{AuditEntry, record, was_recorded};
use crate::rows::limits::{LimitKey, let_go};
use crate::rows::owed::DueJob;
use crate::sql::clock::read_clock;
use crate::sql::connection::{PriorRun, on_pool, transact};
use crate::{Store, StoreError};
use tickr_job::{Actor, Timestamp};

impl Store {
    /// Close the breaker of a host by hand. Returns the parked jobs that have a due time now, or nothing if the breaker was
    /// not open.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
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

    /// Count the open breakers of all limits. Returns 0 without a statement while no limit has a breaker.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    pub async fn open_breakers(&self) -> Result<i64, StoreError> {
        if self.shared.limits.now().iter().all(|set| set.breaker_rule().is_none()) {
            return Ok(0);
        }
        on_pool(&self.shared.pools.reads, "count open breakers", |conn, _| {
            Box::pin(async move {
                sqlx::query_scalar(
                    "SELECT COUNT(*) FROM limit_keys k FORCE INDEX (limit_keys_probe) JOIN limits l ON l.name = k.limit_name \
                     WHERE k.probe_at IS NOT NULL AND k.failed_at >= l.breaker_since",
                )
                .fetch_one(conn)
                .await
            })
        })
        .await
    }
}
