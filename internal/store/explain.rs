//! What stands between a job and its start, as far as the tables know.

use sqlx::Row;

use super::link::on_pool;
use super::{Store, StoreError};
use crate::job::{JobId, Timestamp};

/// Due jobs of a queue that are counted at most.
const MOST_AHEAD: i64 = 10_000;

/// What the row of an unfinished job tells beside the job itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The database's clock at the reading.
    pub at: Timestamp,
    /// Runners that died under it, one after the other.
    pub losses: u32,
    /// Until when its attempt is its runner's, if it runs.
    pub lease_until: Option<Timestamp>,
    /// Jobs of its queue that wait and were due before it, up to a bound.
    pub ahead: u32,
    /// There are more than were counted.
    pub more_ahead: bool,
}

impl Store {
    /// How an unfinished job stands; nothing when it has ended or never was.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn standing(&self, id: JobId) -> Result<Option<Standing>, StoreError> {
        on_pool(&self.shared.pools.reads, "look at a job's place", move |conn, _| {
            Box::pin(async move {
                let found = sqlx::query(
                    "SELECT UTC_TIMESTAMP(6), losses, lease_until, state = 'executing', queue, execute_at FROM owed \
                     WHERE id = ?",
                )
                .bind(id.uuid())
                .fetch_optional(&mut *conn)
                .await?;
                let Some(row) = found else { return Ok(None) };
                let executing: bool = row.try_get(3)?;
                let (queue, execute_at): (String, Timestamp) = (row.try_get(4)?, row.try_get(5)?);
                // A range of the index, bounded twice: how much is read, and how much of it counts.
                let ahead: i64 = sqlx::query_scalar(
                    "SELECT COUNT(*) FROM (SELECT queue, state FROM owed FORCE INDEX (owed_due) WHERE execute_at < ? \
                     ORDER BY execute_at LIMIT ?) o WHERE o.queue = ? AND o.state <> 'executing'",
                )
                .bind(execute_at)
                .bind(MOST_AHEAD)
                .bind(queue)
                .fetch_one(&mut *conn)
                .await?;
                let read: i64 = sqlx::query_scalar(
                    "SELECT COUNT(*) FROM (SELECT 1 FROM owed FORCE INDEX (owed_due) WHERE execute_at < ? LIMIT ?) o",
                )
                .bind(execute_at)
                .bind(MOST_AHEAD)
                .fetch_one(&mut *conn)
                .await?;
                Ok(Some(Standing {
                    at: row.try_get(0)?,
                    losses: row.try_get(1)?,
                    lease_until: executing.then(|| row.try_get(2)).transpose()?,
                    ahead: u32::try_from(ahead).unwrap_or(u32::MAX),
                    more_ahead: read >= MOST_AHEAD,
                }))
            })
        })
        .await
    }
}
