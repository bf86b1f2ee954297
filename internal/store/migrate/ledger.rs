//! Which migrations have been applied: the table `_sqlx_migrations`, which has this name because the first binaries left
//! the migrating to their database driver.
//!
//! A migration gets its row when all of its statements have run. Earlier binaries wrote the row first, with `success`
//! false, and a process that died in between left it so; such a row counts as none, because every statement may run again.
//!
//! Migrations only add, so a binary works on the tables of a newer one: a deploy may be taken back, and an older runner
//! that crashes in the middle of it may start again. Rows of versions that this binary does not have are left alone.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use sqlx::migrate::{Migration, Migrator};
use sqlx::mysql::MySqlDatabaseError;
use sqlx::{MySqlConnection, Row as _};

use super::super::StoreError;
use crate::store::sql::connection::{FIRST_WORDS, Pool, on_pool, within};

/// The migrations that this binary brings.
pub(super) static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| sqlx::migrate!());

/// As the first binaries made it.
pub(super) const TABLE: &str = "CREATE TABLE IF NOT EXISTS _sqlx_migrations (version BIGINT PRIMARY KEY, \
     description TEXT NOT NULL, installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, success BOOLEAN NOT NULL, \
     checksum BLOB NOT NULL, execution_time BIGINT NOT NULL)";

/// What the table says.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// By version: the checksum of its text, and whether all of it ran.
    rows: BTreeMap<i64, (Vec<u8>, bool)>,
}

impl Ledger {
    pub(super) async fn read(conn: &mut MySqlConnection) -> Result<Self, sqlx::Error> {
        let sql = "SELECT version, checksum, success FROM _sqlx_migrations ORDER BY version";
        let found = match sqlx::query(sql).fetch_all(conn).await {
            // An account that may not read it has more to be told than that (rights.rs).
            Err(e) if number(&e).is_some_and(|n| n == NO_SUCH_TABLE || DENIED.contains(&n)) => Vec::new(),
            outcome => outcome?,
        };
        let row = |row: &sqlx::mysql::MySqlRow| Ok((row.try_get(0)?, (row.try_get(1)?, row.try_get(2)?)));
        Ok(Self { rows: found.iter().map(row).collect::<Result<_, sqlx::Error>>()? })
    }

    fn has(&self, migration: &Migration) -> bool {
        self.rows.get(&migration.version).is_some_and(|(_, whole)| *whole)
    }

    /// What this binary brings and the tables do not have, in order.
    pub(super) fn missing(&self) -> Vec<&'static Migration> {
        MIGRATIONS.iter().filter(|migration| !self.has(migration)).collect()
    }

    /// The first migration that was applied with another text than this binary has.
    pub(super) fn changed(&self) -> Option<i64> {
        let changed = |migration: &&Migration| {
            let row = self.rows.get(&migration.version);
            row.is_some_and(|(checksum, whole)| *whole && checksum[..] != migration.checksum[..])
        };
        MIGRATIONS.iter().find(changed).map(|migration| migration.version)
    }

    /// The newest version that was applied; 0 for none.
    pub(super) fn newest(&self) -> i64 {
        self.rows.iter().rev().find(|(_, (_, whole))| *whole).map_or(0, |(version, _)| *version)
    }
}

/// Whether everything that this binary brings has been applied.
pub(super) async fn is_current(pool: &Pool) -> Result<bool, StoreError> {
    let read = on_pool(pool, "read which migrations were applied", |conn, _| {
        Box::pin(within(FIRST_WORDS, Ledger::read(conn)))
    });
    let ledger = read.await?;
    Ok(ledger.missing().is_empty() && ledger.changed().is_none())
}

/// Write down that all of a migration has run. The row of one that was left half done is made whole.
pub(super) async fn note(
    conn: &mut MySqlConnection,
    migration: &Migration,
    took: std::time::Duration,
) -> Result<(), sqlx::Error> {
    let sql = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
               VALUES (?, ?, TRUE, ?, ?) ON DUPLICATE KEY UPDATE success = TRUE, checksum = VALUES(checksum), \
               execution_time = VALUES(execution_time)";
    let row = sqlx::query(sql).bind(migration.version).bind(&*migration.description).bind(&*migration.checksum);
    row.bind(i64::try_from(took.as_nanos()).unwrap_or(i64::MAX)).execute(conn).await.map(|_| ())
}

/// The server's number of an error, when it comes from the server.
pub(super) fn number(error: &sqlx::Error) -> Option<u16> {
    let database = error.as_database_error()?;
    database.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}

/// The table does not exist.
pub(super) const NO_SUCH_TABLE: u16 = 1146;
/// What the server answers to an account that may not: on the database, the table, a column, the server.
pub(super) const DENIED: [u16; 4] = [1044, 1142, 1143, 1227];
