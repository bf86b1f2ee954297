//! A long history and a large backlog for `tickr bench --growth`, made by statements on the server. The rows are those
//! that the product would have left, and are older than all rows of a run.

use chrono::TimeDelta;
use sqlx::AssertSqlSafe;

use crate::sql::connection;
use crate::{Store, StoreError};

/// Rows of one statement.
const CHUNK: u64 = 10_000;
/// The ten digits. Their combinations are the numbers of the rows in a chunk.
const DIGITS: &str = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 \
                      UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";

/// The rows that the tables have before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Number of jobs that completed two days ago.
    pub finished: u64,
    /// Number of jobs that wait for a due time 30 days from now.
    pub waiting: u64,
    /// Size of each payload in bytes.
    pub payload_bytes: usize,
}

impl Store {
    /// Fill the tables. After each chunk, `told` is called with the number of its jobs.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    pub async fn grow(&self, growth: Growth, mut told: impl FnMut(u64)) -> Result<(), StoreError> {
        let attempted = "fill the tables";
        let conn = connection::open(&self.shared.options).await;
        let mut conn = conn.map_err(|e| StoreError::from_driver(attempted, &e))?;
        let now = self.clock().now();
        let pad = growth.payload_bytes.saturating_sub(10);
        for (total, finished, age) in
            [(growth.finished, true, TimeDelta::days(3)), (growth.waiting, false, TimeDelta::days(1))]
        {
            let base_ms = (now - age).timestamp_millis();
            for start in (0..total).step_by(CHUNK as usize) {
                let numbered = format!(
                    "(SELECT UNHEX(CONCAT(LPAD(HEX({base_ms} + n), 12, '0'), '70008', LPAD(HEX(n), 15, '0'))) AS id, n FROM \
                     (SELECT {start} + a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n FROM {DIGITS} a, {DIGITS} b, \
                     {DIGITS} c, {DIGITS} e) AS numbers WHERE n < {total}) AS r ORDER BY n"
                );
                let due =
                    if finished { "UTC_TIMESTAMP(3) - INTERVAL 2 DAY" } else { "UTC_TIMESTAMP(3) + INTERVAL 30 DAY" };
                let made =
                    if finished { "UTC_TIMESTAMP(6) - INTERVAL 3 DAY" } else { "UTC_TIMESTAMP(6) - INTERVAL 1 DAY" };
                let mut statements = vec![format!(
                    "INSERT INTO jobs (id, kind, queue, priority, max_attempts, payload, execute_at, created_at) \
                     SELECT id, 'noop', 'default', 5, 5, CONCAT('{{\"pad\":\"', REPEAT('x', {pad}), '\"}}'), {due}, {made} \
                     FROM {numbered}"
                )];
                statements.push(if finished {
                    format!(
                        "INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict, \
                         end_state) SELECT id, 1, 1, 'earlier/1-00000000', {due}, {due}, {due}, 'succeeded', 'completed' \
                         FROM {numbered}"
                    )
                } else {
                    format!(
                        "INSERT INTO owed (id, kind, queue, priority, max_attempts, state, execute_at) \
                         SELECT id, 'noop', 'default', 5, 5, 'waiting', {due} FROM {numbered}"
                    )
                });
                for sql in statements {
                    let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await;
                    done.map_err(|e| StoreError::from_driver(attempted, &e))?;
                }
                told(CHUNK.min(total - start));
            }
        }
        Ok(())
    }
}
