//! The places of jobs with order keys, for `tickr verify`.

use async_recursion::async_recursion as boxed;
use sqlx::Row;

use crate::StoreError;
use crate::rows::links::blocked_until;
use crate::rows::order::held_until;
use crate::sql::connection;
use crate::verify::evidence::{Evidence, PAGE, PAGE_LIMIT, Walk};
use tickr_job::{JobId, Timestamp};

/// The place of a job with an order key, and what the other tables say about the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceRow {
    /// The order key.
    pub key: Vec<u8>,
    /// The place. A replay has the place of the job that it replays.
    pub place: u64,
    /// The job.
    pub job: JobId,
    /// False once the job lets the next one go.
    pub open: bool,
    /// True if the place stays open when the job fails for good.
    pub blocks: bool,
    /// The place whose job may run, if the key has a row.
    pub head: Option<u64>,
    /// True if the job is unfinished.
    pub owed: bool,
    /// True if the job has the due time of a job that is held.
    pub held: bool,
    /// True if the job has the due time of a job that is blocked: a follow-up job of a cancelled batch, until it is cancelled.
    pub blocked: bool,
    /// Start of its first attempt, if there was one.
    pub first_start: Option<Timestamp>,
    /// End of its last attempt, if the job has ended.
    pub end: Option<Timestamp>,
    /// Number of times that it ended. An operator's retry begins another life, at another place.
    pub lives: u32,
}

/// A position in the places: order key, place and job.
pub type OrderCursor = (Vec<u8>, u64, JobId);

impl Evidence {
    /// Read one page of the places behind `after`, in the order of keys and places.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn order_places(&mut self, after: OrderCursor) -> Result<(Vec<PlaceRow>, Walk<OrderCursor>), StoreError> {
        let (key, place, job) = after;
        let read = async {
            let found = sqlx::query(
                "SELECT p.order_key, p.place, p.job_id, p.open AND p.place >= COALESCE(k.head, 0) AS open, p.blocks, k.head, \
                 COALESCE(o.started_at > '1970-01-01 00:00:00', FALSE) AS executing, o.started_at, \
                 o.id IS NOT NULL AS owed, COALESCE(o.execute_at = ?, FALSE) AS held, \
                 COALESCE(o.execute_at = ?, FALSE) AS blocked, \
                 (SELECT MIN(a.started_at) FROM attempts a WHERE a.job_id = p.job_id AND a.runner <> '' \
                 AND a.expired IS NULL) AS first_start, \
                 (SELECT MAX(a.finished_at) FROM attempts a WHERE a.job_id = p.job_id) AS last_end, \
                 (SELECT COUNT(a.end_state) FROM attempts a WHERE a.job_id = p.job_id) AS lives \
                 FROM (SELECT order_key, place, job_id, open, blocks FROM order_places FORCE INDEX (order_places_line) \
                 WHERE order_key > ? OR (order_key = ? AND (place > ? OR (place = ? AND job_id > ?))) \
                 ORDER BY order_key, place, job_id LIMIT ?) p LEFT JOIN order_keys k ON k.order_key = p.order_key \
                 LEFT JOIN owed o ON o.id = p.job_id ORDER BY p.order_key, p.place, p.job_id",
            )
            .bind(held_until().naive_utc())
            .bind(blocked_until().naive_utc())
            .bind(&key)
            .bind(&key)
            .bind(place)
            .bind(place)
            .bind(job.uuid())
            .bind(PAGE)
            .fetch_all(&mut self.conn)
            .await?;
            let mut rows = Vec::with_capacity(found.len());
            for row in &found {
                let (owed, executing): (bool, bool) = (row.try_get("owed")?, row.try_get("executing")?);
                let first: Option<Timestamp> = row.try_get("first_start")?;
                let running: Option<Timestamp> = row.try_get("started_at")?;
                let last_end: Option<Timestamp> = row.try_get("last_end")?;
                rows.push(PlaceRow {
                    key: row.try_get("order_key")?,
                    place: row.try_get("place")?,
                    job: JobId::from_uuid(row.try_get("job_id")?),
                    open: row.try_get("open")?,
                    blocks: row.try_get("blocks")?,
                    head: row.try_get("head")?,
                    owed,
                    held: row.try_get("held")?,
                    blocked: row.try_get("blocked")?,
                    first_start: first.or(running.filter(|_| executing)),
                    end: last_end.filter(|_| !owed),
                    lives: u32::try_from(row.try_get::<i64, _>("lives")?).unwrap_or(u32::MAX),
                });
            }
            let next = match rows.last() {
                Some(last) if rows.len() == PAGE as usize => Walk::From((last.key.clone(), last.place, last.job)),
                _ => Walk::Over,
            };
            Ok((rows, next))
        };
        connection::within(PAGE_LIMIT, read).await.map_err(|e| StoreError::from_driver("read the places of jobs", &e))
    }

    /// Return one page of the order keys behind `after` whose head has no open place although they have jobs.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn headless_order_keys(&mut self, after: Vec<u8>) -> Result<(Vec<Vec<u8>>, Walk<Vec<u8>>), StoreError> {
        let read = async {
            let found = sqlx::query(
                "SELECT k.order_key, k.head <= k.tail AND NOT EXISTS (SELECT 1 FROM order_places p \
                 WHERE p.order_key = k.order_key AND p.place = k.head AND p.open) AS headless \
                 FROM (SELECT order_key, head, tail FROM order_keys FORCE INDEX (PRIMARY) WHERE order_key > ? \
                 ORDER BY order_key LIMIT ?) k ORDER BY k.order_key",
            )
            .bind(after)
            .bind(PAGE)
            .fetch_all(&mut self.conn)
            .await?;
            let mut headless = Vec::new();
            for row in &found {
                if row.try_get("headless")? {
                    headless.push(row.try_get("order_key")?);
                }
            }
            let next = match found.last() {
                Some(last) if found.len() == PAGE as usize => Walk::From(last.try_get("order_key")?),
                _ => Walk::Over,
            };
            Ok((headless, next))
        };
        connection::within(PAGE_LIMIT, read).await.map_err(|e| StoreError::from_driver("read order keys", &e))
    }
}
