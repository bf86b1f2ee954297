//! A summary of everything that the loops of a runner look at each second, read with one statement.
//!
//! The settings of operators, bulk operations and schedules may change through any process. To follow them, a runner
//! would need five statements a second, and nearly always find that nothing has changed. With the summary it reads the
//! rows themselves only after a change.

use std::time::Instant;

use async_recursion::async_recursion as boxed;
use sqlx::Row;

use crate::sql::connection::on_pool;
use crate::sql::error::corrupt;
use crate::sql::script::{Script, Value};
use crate::{Store, StoreError, api_keys, bulk, kinds as declared, limits, queues};
use tickr_job::{Name, RunnerId, Timestamp};

/// What may have changed since the last summary.
#[derive(Clone, Debug)]
pub struct ChangeSummary {
    /// A moment before MySQL read the tables, by the monotonic clock of this process.
    pub asked: Instant,
    /// Number of rows and checksum of the valid API keys, the queues, the limits and the declared kinds, and whether there
    /// is any API key. Two summaries with the same value show the same settings, but for a chance of one in four billion.
    /// The uses of API keys are no settings.
    pub settings: String,
    /// An operator drained the runner.
    pub drained: bool,
    /// A job has a slot of a limit by key, or waits for one.
    pub limits_in_use: bool,
    /// A job has expired that a runner has not looked at.
    pub expired: bool,
    /// The outbox has rows and no leader, or rows that its leader has left for some seconds.
    pub outbox_waits: bool,
    /// Parents have ended whose children are not told yet.
    pub children_wait: bool,
    /// A job waits for its parents.
    pub jobs_blocked: bool,
    /// The time of a deferred attempt is up.
    pub deferred_overdue: bool,
    /// The counts of batches have changed, or the cancel of one is under way.
    pub batches_changed: bool,
    /// No runner carries out some bulk operation.
    pub operation_is_free: bool,
    /// A remote worker has not stopped.
    pub remote_workers: bool,
    /// Due time of the first tick among the schedules of the runner's kinds.
    pub next_tick: Option<Timestamp>,
}

impl ChangeSummary {
    /// Return the summary for a MySQL that answers, but no summary in time: loops that look only after a change look. The
    /// rest is as in the last summary, or as before the first one.
    #[must_use]
    pub fn assumed(last: Option<&Self>, never: Instant) -> Self {
        Self {
            asked: last.map_or(never, |last| last.asked),
            settings: last.map(|last| last.settings.clone()).unwrap_or_default(),
            drained: last.is_some_and(|last| last.drained),
            next_tick: last.and_then(|last| last.next_tick),
            limits_in_use: true,
            expired: true,
            outbox_waits: true,
            children_wait: true,
            jobs_blocked: true,
            deferred_overdue: true,
            batches_changed: true,
            operation_is_free: true,
            remote_workers: true,
        }
    }
}

impl Store {
    /// Read the summary for this runner, which has these kinds.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn change_summary(&self, runner: &RunnerId, kinds: &[Name]) -> Result<ChangeSummary, StoreError> {
        let (shared, runner, kinds) = (self.shared.clone(), runner.clone(), kinds.to_vec());
        on_pool(&self.shared.pools.loops, "look for changes", move |conn, _| {
            let (shared, runner, kinds) = (shared.clone(), runner.clone(), kinds.clone());
            Box::pin(async move {
                // As text, so that a server without room for prepared statements answers as well.
                let mut script = Script::about(1, 0);
                let kinds: Vec<&str> = kinds.iter().map(Name::as_str).collect();
                let (places, listed) = script.list(&kinds);
                let sql = format!(
                    "SELECT UTC_TIMESTAMP(6) AS now, {} AS settings, \
                     EXISTS (SELECT 1 FROM limit_slots) OR EXISTS (SELECT 1 FROM limit_waits) AS limits_in_use, \
                     EXISTS (SELECT 1 FROM job_expiries FORCE INDEX (job_expiries_look) \
                     WHERE look_at <= UTC_TIMESTAMP(6)) AS expired, \
                     IF(EXISTS (SELECT 1 FROM outbox_leader WHERE lease_until > UTC_TIMESTAMP(6)), \
                     EXISTS (SELECT 1 FROM (SELECT COALESCE(copied_at, created_at) AS since FROM tickr_outbox \
                     ORDER BY id LIMIT 100) w WHERE since < UTC_TIMESTAMP(6) - INTERVAL 3 SECOND), \
                     EXISTS (SELECT 1 FROM tickr_outbox)) AS outbox_waits, \
                     EXISTS (SELECT 1 FROM parent_ends) AS children_wait, \
                     EXISTS (SELECT 1 FROM blocked_jobs) AS jobs_blocked, \
                     EXISTS (SELECT 1 FROM deferred_attempts FORCE INDEX (deferred_attempts_look) \
                     WHERE look_at <= UTC_TIMESTAMP(6)) AS deferred_overdue, \
                     EXISTS (SELECT 1 FROM batch_changes) OR EXISTS (SELECT 1 FROM batch_cancels) AS batches_changed, \
                     EXISTS (SELECT 1 FROM runners WHERE id = ? AND drained_at IS NOT NULL) AS drained, \
                     EXISTS (SELECT 1 FROM operations FORCE INDEX (operations_state) WHERE {}) AS operation_is_free, \
                     EXISTS (SELECT 1 FROM runners FORCE INDEX (runners_stopped) \
                     WHERE stopped_at IS NULL AND via = 'http') AS remote_workers, \
                     (SELECT next_at FROM schedules FORCE INDEX (schedules_next) WHERE next_at IS NOT NULL \
                     AND kind IN {places} ORDER BY next_at LIMIT 1) AS next_tick",
                    settings(),
                    bulk::IS_FREE,
                );
                let values = std::iter::once(Value::Text(runner.as_str())).chain(listed).collect();
                script.push(sql, values);
                let asked = Instant::now();
                let mut found = script.run(conn).await?;
                let rows = found.pop().unwrap_or_default().rows;
                let row = rows.first().ok_or_else(|| corrupt("a summary without a row"))?;
                shared.clock.sample(asked, Instant::now(), row.try_get("now")?);
                Ok(ChangeSummary {
                    asked,
                    settings: row.try_get_unchecked("settings")?,
                    drained: row.try_get::<i64, _>("drained")? != 0,
                    limits_in_use: row.try_get::<i64, _>("limits_in_use")? != 0,
                    expired: row.try_get::<i64, _>("expired")? != 0,
                    outbox_waits: row.try_get::<i64, _>("outbox_waits")? != 0,
                    children_wait: row.try_get::<i64, _>("children_wait")? != 0,
                    jobs_blocked: row.try_get::<i64, _>("jobs_blocked")? != 0,
                    deferred_overdue: row.try_get::<i64, _>("deferred_overdue")? != 0,
                    batches_changed: row.try_get::<i64, _>("batches_changed")? != 0,
                    operation_is_free: row.try_get::<i64, _>("operation_is_free")? != 0,
                    remote_workers: row.try_get::<i64, _>("remote_workers")? != 0,
                    next_tick: row.try_get("next_tick")?,
                })
            })
        })
        .await
    }
}

/// Build the SQL for the text that changes with the settings of operators.
fn settings() -> String {
    let parts = [
        // Revoked API keys never change. They stay for ever, so any number of them may be there.
        checksum("api_keys FORCE INDEX (api_keys_revoked) WHERE revoked_at IS NULL", api_keys::SETTINGS),
        // The first API key that was ever made closes the API.
        "EXISTS (SELECT 1 FROM api_keys)".to_owned(),
        checksum("queues", queues::COLUMNS),
        checksum("limits", limits::VERSION_COLUMNS),
        checksum("declared_kinds", declared::VERSION_COLUMNS),
    ];
    format!("CONCAT_WS(' ', {})", parts.join(", "))
}

/// Build the SQL for the number of rows of a table, or of some of its rows, and the checksum of these columns.
fn checksum(rows: &str, columns: &str) -> String {
    let columns: Vec<String> = columns.split(',').map(|column| format!("IFNULL({}, '')", column.trim())).collect();
    let columns = columns.join(", ");
    // A CRC is linear: the same change of two rows would cancel out. So it is taken of a digest.
    let row = format!("CRC32(SHA2(CONCAT_WS('|', {columns}), 256))");
    format!("(SELECT CONCAT(COUNT(*), ':', IFNULL(BIT_XOR({row}), 0)) FROM {rows})")
}
