//! Do the tables have the shape that this binary needs?
//!
//! Migrations only add, so a binary works on the tables of a newer one: a deploy may be taken back, and an older runner that
//! crashes in the middle of it may start again.

use std::sync::LazyLock;

use sqlx::migrate::Migrator;
use sqlx::mysql::MySqlPool;

use super::StoreError;
use super::error::{Fault, fault};
use super::link::{FIRST_WORDS, on_pool, within};

/// The migrations that this binary brings. Newer ones may have been applied.
pub(super) static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    let mut ours = sqlx::migrate!();
    ours.set_ignore_missing(true);
    ours
});

/// Whether these migrations have been applied, each to its end. If not, running them says what is wrong.
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
    let mut ours = MIGRATIONS.iter().map(|migration| (migration.version, migration.checksum.to_vec(), true));
    Ok(ours.all(|ours| applied.contains(&ours)))
}
