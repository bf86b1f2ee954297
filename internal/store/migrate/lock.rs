//! One process migrates a database at a time. It holds a named lock of the server on the connection that migrates.
//!
//! The driver's own lock waits without an end (`GET_LOCK(…, -1)`) and does not read the answer; MariaDB answers NULL to
//! that and locks nothing. This code waits a few seconds at a time and reads the answer. The lock ends with its
//! connection, so a dead process leaves none behind. While the server still works on a statement of a dead process, the
//! lock stays, as it should.
//!
//! A cluster such as Galera has such locks for each node only, and may refuse them. Then processes on two nodes run the
//! same statements at once. That is harmless, because every statement may run again, so a refusal is no reason to stop.

use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

use super::progress::Progress;
use crate::sql::connection::within;
use crate::sql::error::is_unusual;
use crate::sql::session::Session;
use tickr_job::TablePrefix;

/// Time that the server waits for the lock before it answers.
const TURN: Duration = Duration::from_secs(5);
/// Time between two messages of a process that waits.
const REMINDER: Duration = Duration::from_secs(30);

/// Wait for the lock of this database, for as long as another process migrates it.
pub(super) async fn take(conn: &mut Session<'_>, database: &str, progress: &Progress<'_>) -> Result<(), sqlx::Error> {
    let name = name(database, conn.prefix());
    let mut said: Option<Instant> = None;
    loop {
        // Ask without a wait first, so that the operator hears of a wait at once.
        let turn = if said.is_some() { TURN } else { Duration::ZERO };
        let asked = sqlx::query_scalar("SELECT CAST(GET_LOCK(?, ?) AS SIGNED)")
            .bind(&name)
            .bind(turn.as_secs())
            .fetch_one(&mut *conn);
        match within(TURN + Duration::from_secs(10), asked).await {
            Ok(Some(1_i64)) => return Ok(()),
            Ok(Some(_)) => {}
            Ok(None) => {
                tracing::warn!("mysql gives no lock for the migration; going on without, which is safe");
                return Ok(());
            }
            Err(error) if is_unusual(&error) => {
                tracing::warn!(%error, "mysql refuses locks for the migration; going on without, which is safe");
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        if said.is_none_or(|said| said.elapsed() > REMINDER) {
            let holder = sqlx::query_scalar::<_, Option<i64>>("SELECT CAST(IS_USED_LOCK(?) AS SIGNED)").bind(&name);
            let connection = within(TURN, holder.fetch_one(&mut *conn)).await?;
            tracing::info!(connection, "another process migrates the tables; waiting for it");
            progress.tell("waiting for another process that migrates the tables");
            said = Some(Instant::now());
        }
    }
}

/// Name the lock. Its name has at most 64 characters, and the database's name alone may have as many. Tickrs with other
/// prefixes do not wait for each other. Without a prefix the name is that of the binaries that knew none.
fn name(database: &str, prefix: &TablePrefix) -> String {
    // No name of a database has a NUL.
    let tables = if prefix.is_empty() { database.to_owned() } else { format!("{database}\0{prefix}") };
    let digest = Sha256::digest(tables.as_bytes());
    let short: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("tickr migrate {short}")
}
