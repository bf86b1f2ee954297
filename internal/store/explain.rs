//! What stands between a job and its start, as far as the tables know.

use sqlx::Row;

use super::link::on_pool;
use super::{Store, StoreError};
use crate::job::{JobId, Timestamp};

/// Jobs of a queue that are looked at, at most.
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
    /// Jobs of its queue, as urgent or more urgent, that wait and were due before it; up to a bound.
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
                    "SELECT UTC_TIMESTAMP(6), losses, lease_until, state = 'executing', queue, execute_at, priority \
                     FROM owed FORCE INDEX (PRIMARY) WHERE id = ?",
                )
                .bind(id.uuid())
                .fetch_optional(&mut *conn)
                .await?;
                let Some(row) = found else { return Ok(None) };
                let executing: bool = row.try_get(3)?;
                let (queue, execute_at, priority): (String, Timestamp, u8) =
                    (row.try_get(4)?, row.try_get(5)?, row.try_get(6)?);
                // Its own line first, then the more urgent ones; how much is read is bounded for all of them together.
                let (mut ahead, mut left) = (0_i64, MOST_AHEAD);
                for priority in (0..=priority).rev() {
                    let counts = sqlx::query(
                        "SELECT COUNT(*), COUNT(CASE WHEN state <> 'executing' THEN 1 END) FROM (SELECT state FROM owed \
                         FORCE INDEX (owed_line) WHERE queue = ? AND priority = ? AND execute_at < ? \
                         ORDER BY execute_at LIMIT ?) o",
                    )
                    .bind(&queue)
                    .bind(priority)
                    .bind(execute_at)
                    .bind(left)
                    .fetch_one(&mut *conn)
                    .await?;
                    left -= counts.try_get::<i64, _>(0)?;
                    ahead += counts.try_get::<i64, _>(1)?;
                    if left <= 0 {
                        break;
                    }
                }
                Ok(Some(Standing {
                    at: row.try_get(0)?,
                    losses: row.try_get(1)?,
                    lease_until: executing.then(|| row.try_get(2)).transpose()?,
                    ahead: u32::try_from(ahead).unwrap_or(u32::MAX),
                    more_ahead: left <= 0,
                }))
            })
        })
        .await
    }
}
