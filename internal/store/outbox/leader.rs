//! The runner that looks for rows of the outbox, and the state of the outbox.
//!
//! The lease only saves the others the looks. Rows are moved under locks of their own, so two leaders do no harm.

use std::time::Duration;

use async_recursion::async_recursion as boxed;
use sqlx::Row;

use crate::sql::connection::on_pool;
use crate::{Store, StoreError};
use tickr_job::{RunnerId, Timestamp};

/// Rows that are counted at most.
const MAX_COUNTED: u32 = 10_000;

/// The state of the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxState {
    /// Number of committed rows that were not moved yet. Counted up to 10,000.
    pub waiting: u32,
    /// When the oldest of the first 10,000 of them was inserted here or copied to here.
    pub oldest_at: Option<Timestamp>,
    /// Time since then, in microseconds, by the clock of the database.
    pub oldest_us: u64,
    /// Number of rejected rows. Counted up to 10,000.
    pub rejected: u32,
    /// The runner that looks for rows. None while nothing was inserted for a while.
    pub leader: Option<String>,
}

impl Store {
    /// Become or stay the runner that looks for rows, for this long. Returns false if another one is.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn lead_outbox(&self, runner: &RunnerId, lease: Duration) -> Result<bool, StoreError> {
        let (runner, lease) = (runner.clone(), i64::try_from(lease.as_micros()).unwrap_or(i64::MAX));
        on_pool(&self.shared.pools.loops, "lead the outbox", move |conn, _| {
            let runner = runner.clone();
            Box::pin(async move {
                // MySQL sets the columns from the left to the right.
                sqlx::query(
                    "INSERT INTO outbox_leader (id, runner, lease_until) \
                     VALUES (1, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND) ON DUPLICATE KEY UPDATE \
                     runner = IF(runner = VALUES(runner) OR lease_until < UTC_TIMESTAMP(6), VALUES(runner), runner), \
                     lease_until = IF(runner = VALUES(runner), VALUES(lease_until), lease_until)",
                )
                .bind(runner.as_str())
                .bind(lease)
                .execute(&mut *conn)
                .await?;
                let leader: String =
                    sqlx::query_scalar("SELECT runner FROM outbox_leader WHERE id = 1").fetch_one(conn).await?;
                Ok(leader == runner.as_str())
            })
        })
        .await
    }

    /// Let another runner look for rows.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn leave_outbox(&self, runner: &RunnerId) -> Result<(), StoreError> {
        let runner = runner.clone();
        on_pool(&self.shared.pools.loops, "leave the outbox", move |conn, _| {
            let runner = runner.clone();
            Box::pin(async move {
                sqlx::query("UPDATE outbox_leader SET lease_until = '1970-01-01 00:00:00' WHERE id = 1 AND runner = ?")
                    .bind(runner.as_str())
                    .execute(conn)
                    .await
                    .map(drop)
            })
        })
        .await
    }

    /// Return whether the outbox has a committed row.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn outbox_has_rows(&self) -> Result<bool, StoreError> {
        on_pool(&self.shared.pools.loops, "look into the outbox", |conn, _| {
            Box::pin(async move {
                let found: i64 =
                    sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM tickr_outbox)").fetch_one(conn).await?;
                Ok(found != 0)
            })
        })
        .await
    }

    /// Read the state of the outbox.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn outbox_state(&self) -> Result<OutboxState, StoreError> {
        on_pool(&self.shared.pools.reads, "read the state of the outbox", |conn, _| {
            Box::pin(async move {
                let row = sqlx::query(
                    "SELECT COUNT(*) AS waiting, MIN(since) AS oldest_at, \
                     COALESCE(TIMESTAMPDIFF(MICROSECOND, MIN(since), UTC_TIMESTAMP(6)), 0) AS oldest_us, \
                     (SELECT COUNT(*) FROM (SELECT 1 FROM outbox_rejected LIMIT ?) r) AS rejected, \
                     (SELECT runner FROM outbox_leader WHERE id = 1 AND lease_until > UTC_TIMESTAMP(6)) AS leader \
                     FROM (SELECT COALESCE(copied_at, created_at) AS since FROM tickr_outbox ORDER BY id LIMIT ?) w",
                )
                .bind(MAX_COUNTED)
                .bind(MAX_COUNTED)
                .fetch_one(conn)
                .await?;
                let count = |column| -> Result<u32, sqlx::Error> {
                    Ok(u32::try_from(row.try_get::<i64, _>(column)?).unwrap_or(u32::MAX))
                };
                Ok(OutboxState {
                    waiting: count("waiting")?,
                    oldest_at: row.try_get("oldest_at")?,
                    oldest_us: u64::try_from(row.try_get::<i64, _>("oldest_us")?).unwrap_or(0),
                    rejected: count("rejected")?,
                    leader: row.try_get("leader")?,
                })
            })
        })
        .await
    }
}
