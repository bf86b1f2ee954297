//! The position of an unfinished job: what stands between it and its start, according to the tables.

use async_recursion::async_recursion as boxed;
use sqlx::Row;

use crate::sql::connection::on_pool;
use crate::{Store, StoreError};
use tickr_job::{JobId, Timestamp};

/// Jobs that are counted at most.
const MAX_AHEAD: i64 = 10_000;

/// The position and the lease of an unfinished job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePosition {
    /// The time of the database at the reading.
    pub at: Timestamp,
    /// Number of runners in a row that died while they executed the job.
    pub losses: u32,
    /// End of the lease, if the job is executing.
    pub lease_until: Option<Timestamp>,
    /// Number of waiting jobs of the same queue, with the same or a more urgent priority, that were due earlier.
    /// Counted up to a limit.
    pub ahead: u32,
    /// True if there are more than were counted.
    pub more_ahead: bool,
}

impl Store {
    /// Read the position of an unfinished job; nothing when the job has ended or does not exist.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn queue_position(&self, id: JobId) -> Result<Option<QueuePosition>, StoreError> {
        on_pool(&self.shared.pools.reads, "read the position of a job", move |conn, _| {
            Box::pin(async move {
                let found = sqlx::query(
                    "SELECT UTC_TIMESTAMP(6) AS moment, losses, lease_until, state = 'executing' AS executing, queue, \
                     execute_at, priority FROM owed FORCE INDEX (PRIMARY) WHERE id = ?",
                )
                .bind(id.uuid())
                .fetch_optional(&mut *conn)
                .await?;
                let Some(row) = found else { return Ok(None) };
                let executing: bool = row.try_get("executing")?;
                let (queue, execute_at, priority): (String, Timestamp, u8) =
                    (row.try_get("queue")?, row.try_get("execute_at")?, row.try_get("priority")?);
                // The lane of the job first, then the more urgent ones. The limit holds for all of them together.
                let (mut ahead, mut left) = (0_i64, MAX_AHEAD);
                for priority in (0..=priority).rev() {
                    let counts = sqlx::query(
                        "SELECT COUNT(*) AS jobs, COUNT(CASE WHEN state <> 'executing' THEN 1 END) AS waiting FROM \
                         (SELECT state FROM owed FORCE INDEX (owed_line) WHERE queue = ? AND priority = ? \
                         AND execute_at < ? ORDER BY execute_at LIMIT ?) o",
                    )
                    .bind(&queue)
                    .bind(priority)
                    .bind(execute_at)
                    .bind(left)
                    .fetch_one(&mut *conn)
                    .await?;
                    left -= counts.try_get::<i64, _>("jobs")?;
                    ahead += counts.try_get::<i64, _>("waiting")?;
                    if left <= 0 {
                        break;
                    }
                }
                Ok(Some(QueuePosition {
                    at: row.try_get("moment")?,
                    losses: row.try_get("losses")?,
                    lease_until: executing.then(|| row.try_get("lease_until")).transpose()?,
                    ahead: u32::try_from(ahead).unwrap_or(u32::MAX),
                    more_ahead: left <= 0,
                }))
            })
        })
        .await
    }
}
