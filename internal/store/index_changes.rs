//! When runners lost Redis and had it again, for the marks on charts.

use async_recursion::async_recursion as boxed;
use chrono::TimeDelta;
use sqlx::Row;
use sqlx::mysql::MySqlRow;

use crate::sql::batches::statement;
use crate::sql::connection::on_pool;
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{IndexChange, RunnerId, Timestamp};

/// How long a change is kept: a page about a range of the past can be read a week later.
pub const KEEP_INDEX_CHANGES: TimeDelta = TimeDelta::days(8);
/// Most rows that are removed at a time, and most that are read: the newest.
const PAGE: u32 = 1_000;

impl Store {
    /// Record a change of the index that a runner saw at this moment, and remove rows older than
    /// [`KEEP_INDEX_CHANGES`].
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement. A repeated call changes nothing.
    #[boxed]
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
                let old = "DELETE FROM index_changes WHERE at < UTC_TIMESTAMP() - INTERVAL ? SECOND \
                           ORDER BY at, runner LIMIT ?";
                sqlx::query(old).bind(KEEP_INDEX_CHANGES.num_seconds()).bind(PAGE).execute(conn).await.map(drop)
            })
        })
        .await
    }
}

/// Read the newest changes from this moment on and, if `to` is given, before it, and whether there are more.
pub(super) async fn index_changes(
    conn: &mut Session<'_>,
    (from, to): (Timestamp, Option<Timestamp>),
) -> Result<(Vec<(Timestamp, IndexChange)>, bool), sqlx::Error> {
    let before = if to.is_some() { "AND at < ?" } else { "" };
    let sql =
        format!("SELECT at, what FROM index_changes WHERE at >= ? {before} ORDER BY at DESC, runner DESC LIMIT ?");
    let mut query = statement(sql).bind(from);
    if let Some(to) = to {
        query = query.bind(to);
    }
    let found = query.bind(PAGE).fetch_all(conn).await?;
    let change = |row: &MySqlRow| {
        let change = IndexChange::from_word(row.try_get("what")?).ok_or_else(|| corrupt("what"))?;
        Ok((row.try_get("at")?, change))
    };
    let changes = found.iter().map(change).collect::<Result<Vec<_>, sqlx::Error>>()?;
    let more = changes.len() >= PAGE as usize;
    Ok((changes, more))
}
