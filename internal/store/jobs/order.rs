//! Reads about order keys: the jobs in front of a job, and the jobs that may run now.

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use uuid::Uuid;

use crate::rows::owed::{DueJob, due_job};
use crate::sql::batches::{MAX_ROWS, in_list};
use crate::sql::connection::on_pool;
use crate::sql::error::corrupt;
use crate::{Store, StoreError};
use tickr_job::{JobId, State};

/// Jobs that are counted at most.
const MAX_AHEAD: i64 = 10_000;

/// The place of an unfinished job among the jobs with its order key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderPlace {
    /// Number of open places in front of it. Counted up to a limit.
    pub ahead: u32,
    /// True if there are more than were counted.
    pub more_ahead: bool,
    /// The job at the head, and its state. Absent if the job itself is at the head.
    pub head: Option<(JobId, State)>,
}

impl Store {
    /// Read the place of an unfinished job. Returns nothing if the job has no order key.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn order_place(&self, id: JobId) -> Result<Option<OrderPlace>, StoreError> {
        on_pool(&self.shared.pools.reads, "read the place of a job", move |conn, _| {
            Box::pin(async move {
                let found = sqlx::query(
                    "SELECT p.order_key, p.place, k.head FROM order_places p FORCE INDEX (PRIMARY) \
                     STRAIGHT_JOIN order_keys k ON k.order_key = p.order_key WHERE p.job_id = ? AND p.open \
                     AND p.place >= k.head",
                )
                .bind(id.uuid())
                .fetch_optional(&mut *conn)
                .await?;
                let Some(row) = found else { return Ok(None) };
                let key: Vec<u8> = row.try_get("order_key")?;
                let (place, head): (u64, u64) = (row.try_get("place")?, row.try_get("head")?);
                let counts = sqlx::query(
                    "SELECT COUNT(*) AS looked_at, CAST(COALESCE(SUM(open), 0) AS SIGNED) AS ahead FROM (SELECT open \
                     FROM order_places FORCE INDEX (order_places_line) WHERE order_key = ? AND place >= ? AND place < ? \
                     ORDER BY place LIMIT ?) p",
                )
                .bind(&key)
                .bind(head)
                .bind(place)
                .bind(MAX_AHEAD)
                .fetch_one(&mut *conn)
                .await?;
                let first = sqlx::query(
                    "SELECT p.job_id, COALESCE(o.state, 'failed') AS state FROM order_places p \
                     FORCE INDEX (order_places_line) LEFT JOIN owed o ON o.id = p.job_id \
                     WHERE p.order_key = ? AND p.place = ? AND p.open LIMIT 1",
                )
                .bind(&key)
                .bind(head)
                .fetch_optional(&mut *conn)
                .await?;
                let head = match first {
                    Some(row) => {
                        let state = State::from_word(row.try_get("state")?).ok_or_else(|| corrupt("state"))?;
                        Some((JobId::from_uuid(row.try_get("job_id")?), state)).filter(|(head, _)| *head != id)
                    }
                    None => None,
                };
                Ok(Some(OrderPlace {
                    ahead: u32::try_from(counts.try_get::<i64, _>("ahead")?).unwrap_or(u32::MAX),
                    more_ahead: counts.try_get::<i64, _>("looked_at")? >= MAX_AHEAD,
                    head,
                }))
            })
        })
        .await
    }

    /// Return the waiting jobs at the heads of the order keys of these jobs. After some of these have ended, they are the
    /// jobs that may run now, and the caller must give the index a hint.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn heads_of(&self, ids: &[JobId]) -> Result<Vec<DueJob>, StoreError> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.uuid()).collect();
        on_pool(&self.shared.pools.reads, "read the heads of order keys", move |conn, _| {
            let ids = ids.clone();
            Box::pin(async move {
                let mut heads = Vec::new();
                for ids in ids.chunks(MAX_ROWS) {
                    let sql = "SELECT DISTINCT o.id, o.queue, o.priority, o.execute_at, o.kind FROM order_places p \
                               FORCE INDEX (PRIMARY) STRAIGHT_JOIN order_keys k ON k.order_key = p.order_key \
                               STRAIGHT_JOIN order_places h FORCE INDEX (order_places_line) \
                               ON h.order_key = k.order_key AND h.place = k.head AND h.open \
                               STRAIGHT_JOIN owed o ON o.id = h.job_id AND o.state IN ('waiting', 'retrying') \
                               WHERE p.job_id IN";
                    for row in in_list(sql, ids, "").fetch_all(&mut *conn).await? {
                        heads.push(due_job(&row)?);
                    }
                }
                Ok(heads)
            })
        })
        .await
    }
}
