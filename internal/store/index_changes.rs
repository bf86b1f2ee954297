//! When runners lost Redis and had it again, for the marks on charts.

use sqlx::Row;
use sqlx::mysql::MySqlRow;

use crate::sql::connection::on_pool;
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{IndexChange, RunnerId, Timestamp};

/// Most rows that are removed at a time, and most that are read: the newest.
const PAGE: u32 = 1_000;

impl Store {
    /// Record a change of the index that a runner saw at this moment, and remove rows that are two days old.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement. A repeated call changes nothing.
    pub async fn record_index_change(
        &self,
        runner: &RunnerId,
        change: IndexChange,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        let runner = runner.clone();
        on_pool(&self.shared.pools.loops, "record a change of the index", move |conn, _| {
            let runner = runner.clone();
            Box::pin(async move {
                // A repeated run finds its own row.
                sqlx::query("INSERT IGNORE INTO index_changes (at, runner, what) VALUES (?, ?, ?)")
                    .bind(at)
                    .bind(runner.as_str())
                    .bind(change.as_str())
                    .execute(&mut *conn)
                    .await?;
                let old =
                    "DELETE FROM index_changes WHERE at < UTC_TIMESTAMP() - INTERVAL 2 DAY ORDER BY at, runner LIMIT ?";
                sqlx::query(old).bind(PAGE).execute(conn).await.map(drop)
            })
        })
        .await
    }
}

/// Read the newest changes from this moment on, and whether there are more.
pub(super) async fn index_changes(
    conn: &mut Session<'_>,
    from: Timestamp,
) -> Result<(Vec<(Timestamp, IndexChange)>, bool), sqlx::Error> {
    let sql = "SELECT at, what FROM index_changes WHERE at >= ? ORDER BY at DESC, runner DESC LIMIT ?";
    let found = sqlx::query(sql).bind(from).bind(PAGE).fetch_all(conn).await?;
    let change = |row: &MySqlRow| {
        let change = IndexChange::from_word(row.try_get("what")?).ok_or_else(|| corrupt("what"))?;
        Ok((row.try_get("at")?, change))
    };
    let changes = found.iter().map(change).collect::<Result<Vec<_>, sqlx::Error>>()?;
    let more = changes.len() >= PAGE as usize;
    Ok((changes, more))
}
