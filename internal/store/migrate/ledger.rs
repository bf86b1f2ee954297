//! The applied migrations: the table `_sqlx_migrations`. It has this name because the first binaries let their database
//! driver migrate.
//!
//! A migration gets its row when all of its statements have run. Earlier binaries wrote the row first, with `success`
//! false, and a process that died in between left it so; such a row counts as none, because every statement may run again.
//!
//! Migrations only add, so a binary works on the tables of a newer one: an operator may roll a deploy back, and an older
//! runner that crashes meanwhile may start again. This binary leaves rows of versions that it does not know alone.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use sqlx::migrate::{Migration, MigrationType};
use sqlx::mysql::MySqlDatabaseError;
use sqlx::{Row as _, SqlStr};

use super::super::StoreError;
use crate::sql::connection::{FIRST_WORDS, Pool, on_pool, within};
use crate::sql::session::Session;

/// Embed files of `migrations/` by name.
macro_rules! embedded {
    ($($file:literal),* $(,)?) => {
        &[$(($file, include_str!(concat!("../migrations/", $file)))),*]
    };
}

/// The names and texts of the migrations, in order. The driver's own macro would embed them too, but it costs a second
/// build of the driver for the compiler: half a minute of each first build on two cores.
const FILES: &[(&str, &str)] = embedded![
    "0001_jobs.sql",
    "0002_owed.sql",
    "0003_attempts.sql",
    "0004_unique_keys.sql",
    "0005_runners.sql",
    "0006_tallies.sql",
    "0007_evidence.sql",
    "0008_idempotency_keys.sql",
    "0009_audit.sql",
    "0010_api_keys.sql",
    "0011_queues.sql",
    "0012_queue_permits.sql",
    "0013_schedules.sql",
    "0014_ticks.sql",
    "0016_job_tags.sql",
    "0017_dead_letters.sql",
    "0018_operations.sql",
    "0019_alerts.sql",
    "0020_ticks_by_job.sql",
    "0021_samples.sql",
    "0022_runners.sql",
    "0023_exchanges.sql",
    "0024_claim_batches.sql",
    "0025_runners_claim_batches.sql",
    "0026_kind_schemas.sql",
    "0027_owed_line.sql",
    "0028_bounds.sql",
    "0029_producers.sql",
    "0030_suspects.sql",
    "0031_report_files.sql",
    "0032_clock_steps.sql",
    "0033_order.sql",
    "0034_unique_windows.sql",
    "0035_limits.sql",
    "0036_jobs_host.sql",
    "0037_breakers.sql",
    "0038_expiries.sql",
    "0039_outbox.sql",
    "0040_dependencies.sql",
    "0041_batches.sql",
    "0042_checkpoints.sql",
    "0043_deferred_attempts.sql",
    "0044_attempt_logs.sql",
    "0045_outbox_sources.sql",
    "0046_limit_starts.sql",
    "0047_declared_kinds.sql",
    "0048_remote_workers.sql",
    "0049_cluster_locks.sql",
    "0050_releases.sql",
    "0051_api_key_queues.sql",
    "0052_jobs_kind_queue.sql",
    "0053_canaries.sql",
    "0054_limit_holds.sql",
    "0055_push_kinds.sql",
    "0056_index_changes.sql",
    "0057_audit_detail.sql",
    "0058_operations_ahead.sql",
    "0059_remote_requests.sql",
    "0060_distant_ids.sql",
    "0061_dead_letters_failed.sql",
    "0062_alert_deliveries.sql",
    "0063_push_follow_ups.sql",
    "0064_revoked_api_keys.sql",
];

/// The migrations that this binary brings, in order.
pub(super) static MIGRATIONS: LazyLock<Vec<Migration>> = LazyLock::new(|| {
    let migration = |(file, sql): &(&'static str, &'static str)| {
        let (version, rest) = file.split_once('_')?;
        let description = rest.strip_suffix(".sql")?.replace('_', " ");
        let sql = SqlStr::from_static(sql);
        Some(Migration::new(version.parse().ok()?, description.into(), MigrationType::Simple, sql, false))
    };
    FILES.iter().filter_map(migration).collect()
});

/// The table as the first binaries made it.
pub(super) const TABLE: &str = "CREATE TABLE IF NOT EXISTS _sqlx_migrations (version BIGINT PRIMARY KEY, \
     description TEXT NOT NULL, installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, success BOOLEAN NOT NULL, \
     checksum BLOB NOT NULL, execution_time BIGINT NOT NULL)";

/// The rows of the table.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// By version: the checksum of its text, and whether all of it ran.
    rows: BTreeMap<i64, (Vec<u8>, bool)>,
}

impl Ledger {
    pub(super) async fn read(conn: &mut Session<'_>) -> Result<Self, sqlx::Error> {
        let sql = "SELECT version, checksum, success FROM _sqlx_migrations ORDER BY version";
        let found = match sqlx::query(sql).fetch_all(conn).await {
            // An account that may not read it has more to be told than that (rights.rs).
            Err(e) if number(&e).is_some_and(|n| n == NO_SUCH_TABLE || DENIED.contains(&n)) => Vec::new(),
            outcome => outcome?,
        };
        let row = |row: &sqlx::mysql::MySqlRow| {
            Ok((row.try_get("version")?, (row.try_get("checksum")?, row.try_get("success")?)))
        };
        Ok(Self { rows: found.iter().map(row).collect::<Result<_, sqlx::Error>>()? })
    }

    fn has(&self, migration: &Migration) -> bool {
        self.rows.get(&migration.version).is_some_and(|(_, whole)| *whole)
    }

    /// Return the migrations that this binary has and the tables lack, in order.
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

    /// Return whether there is no row.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The newest version that was applied; 0 for none.
    pub(super) fn newest(&self) -> i64 {
        self.rows.iter().rev().find(|(_, (_, whole))| *whole).map_or(0, |(version, _)| *version)
    }
}

/// Return whether all migrations of this binary have been applied.
pub(super) async fn is_current(pool: &Pool) -> Result<bool, StoreError> {
    let read = on_pool(pool, "read which migrations were applied", |conn, _| {
        Box::pin(within(FIRST_WORDS, Ledger::read(conn)))
    });
    let ledger = read.await?;
    Ok(ledger.missing().is_empty() && ledger.changed().is_none())
}

/// Record that all statements of a migration have run. This completes the row of a migration that was interrupted.
pub(super) async fn note(
    conn: &mut Session<'_>,
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
/// The server's refusals for want of a right: on the database, the table, a column, the server.
pub(super) const DENIED: [u16; 4] = [1044, 1142, 1143, 1227];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_of_the_folder_is_embedded_with_the_version_and_checksum_of_the_driver() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
        let found = sqlx::migrate::resolve_blocking(&folder).unwrap();
        let driver = found.iter().map(|(m, _)| (m.version, m.description.to_string(), m.checksum.to_vec()));
        let embedded = MIGRATIONS.iter().map(|m| (m.version, m.description.to_string(), m.checksum.to_vec()));
        assert_eq!(embedded.collect::<Vec<_>>(), driver.collect::<Vec<_>>());
    }
}
