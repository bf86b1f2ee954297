//! Does the server's own set-up make a commit durable (G1)?

use sqlx::Row;

use super::link::on_pool;
use super::{Store, StoreError};

/// What the server's settings promise for an acknowledged commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Durability {
    /// Survives a crash of the machine?
    pub durable: bool,
    /// If not: which settings are to blame.
    pub weaknesses: Vec<String>,
    /// The server's version, for the log.
    pub server: String,
}

impl Store {
    /// Read the settings that decide whether a commit survives a power cut.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn durability(&self) -> Result<Durability, StoreError> {
        on_pool(&self.shared.pool, "read the server's settings", |conn, _| {
            Box::pin(async move {
                let row = sqlx::query(
                    "SELECT VERSION(), CAST(@@GLOBAL.innodb_flush_log_at_trx_commit AS SIGNED), \
                     CAST(@@GLOBAL.sync_binlog AS SIGNED), CAST(@@GLOBAL.log_bin AS SIGNED)",
                )
                .fetch_one(&mut *conn)
                .await?;
                let (server, flush, sync_binlog, log_bin): (String, i64, i64, i64) =
                    (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
                let mut weaknesses = Vec::new();
                if flush != 1 {
                    weaknesses.push(format!("innodb_flush_log_at_trx_commit is {flush}, not 1"));
                }
                // Without a binary log there is nothing that its sync setting could weaken.
                if log_bin != 0 && sync_binlog != 1 {
                    weaknesses.push(format!("log_bin is on and sync_binlog is {sync_binlog}, not 1"));
                }
                Ok(Durability { durable: weaknesses.is_empty(), weaknesses, server })
            })
        })
        .await
    }
}
