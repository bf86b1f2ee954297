//! Does the server's own set-up make a commit durable (G1)?

use sqlx::{MySqlConnection, Row};

use super::link::{FIRST_WORDS, on_pool, within};
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
        on_pool(&self.shared.pools.loops, "read the server's settings", |conn, _| {
            Box::pin(within(FIRST_WORDS, async move {
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
            }))
        })
        .await
    }
}

/// Why the server would refuse every write of a READ COMMITTED session (its error 1665), if it would.
pub(super) async fn refuses_writes(conn: &mut MySqlConnection) -> Result<Option<String>, sqlx::Error> {
    // By SHOW, because newer servers may not have the variable any more.
    let found =
        sqlx::query("SHOW VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_format')").fetch_all(conn).await?;
    let (mut log_bin, mut statement) = (false, false);
    for row in &found {
        let (name, value): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        match name.as_str() {
            "log_bin" => log_bin = value.eq_ignore_ascii_case("ON"),
            _ => statement = value.eq_ignore_ascii_case("STATEMENT"),
        }
    }
    Ok((log_bin && statement).then(|| {
        "the server's binlog_format is STATEMENT, with which it refuses every write of tickr's READ COMMITTED sessions; \
         set binlog_format=ROW"
            .to_owned()
    }))
}
