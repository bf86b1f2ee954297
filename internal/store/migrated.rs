//! Do the tables have the shape that this binary needs?

use sqlx::migrate::Migrator;
use sqlx::mysql::MySqlPool;

use super::StoreError;
use super::error::{Fault, fault};
use super::link::{FIRST_WORDS, on_pool, within};

/// The migrations that this binary brings.
pub(super) static MIGRATIONS: Migrator = sqlx::migrate!();

/// Whether exactly these migrations have been applied, each to its end. If not, running them says what is wrong.
pub(super) async fn is_current(pool: &MySqlPool) -> Result<bool, StoreError> {
    let applied = on_pool(pool, "read which migrations were applied", |conn, _| {
        let sql = "SELECT version, checksum, success FROM _sqlx_migrations ORDER BY version";
        Box::pin(within(FIRST_WORDS, async move {
            match sqlx::query_as::<_, (i64, Vec<u8>, bool)>(sql).fetch_all(conn).await {
                // There is no such table.
                Err(e) if fault(&e) == Fault::Final => Ok(Vec::new()),
                outcome => outcome,
            }
        }))
    })
    .await?;
    let ours = MIGRATIONS.iter().map(|migration| (migration.version, migration.checksum.to_vec(), true));
    Ok(ours.eq(applied))
}
