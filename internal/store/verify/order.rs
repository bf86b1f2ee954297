//! The places of jobs with order keys, for `tickr verify`.

use std::collections::BTreeMap;

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use uuid::Uuid;

use crate::StoreError;
use crate::rows::links::blocked_until;
use crate::rows::order::held_until;
use crate::sql::batches::{in_list, statement};
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
    /// The lives of the job, oldest first. The last one has the place; those before it had the same one or others.
    pub lives: Vec<LifeSpan>,
}

/// A life of a job: from its acceptance or an operator's retry to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LifeSpan {
    /// Start of its first attempt, if there was one.
    pub start: Option<Timestamp>,
    /// Its end. Absent while the job is unfinished.
    pub end: Option<Timestamp>,
}

/// A position in the places: order key, place and job.
pub type OrderCursor = (Vec<u8>, u64, JobId);

/// The columns of a place `p`, of its key `k` and of its job `o`.
const PLACE: &str = "p.order_key, p.place, p.job_id, p.open AND p.place >= COALESCE(k.head, 0) AS open, p.blocks, k.head, \
                     COALESCE(o.started_at > '1970-01-01 00:00:00', FALSE) AS executing, o.started_at, \
                     o.id IS NOT NULL AS owed, COALESCE(o.execute_at = ?, FALSE) AS held, \
                     COALESCE(o.execute_at = ?, FALSE) AS blocked";

impl Evidence {
    /// Read one page of the places behind `after`, in the order of keys and places.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn order_places(&mut self, after: OrderCursor) -> Result<(Vec<PlaceRow>, Walk<OrderCursor>), StoreError> {
        let read = async {
            // The places and the lives have to be of one moment: after a retry between the two, a job would have a new
            // life at its old place.
            self.begin_snapshot().await?;
            let rows = self.read_places(after).await?;
            self.end_snapshot().await?;
            let next = match rows.last() {
                Some(last) if rows.len() == PAGE as usize => Walk::From((last.key.clone(), last.place, last.job)),
                _ => Walk::Over,
            };
            Ok((rows, next))
        };
        connection::within(PAGE_LIMIT, read).await.map_err(|e| StoreError::from_driver("read the places of jobs", &e))
    }

    async fn read_places(&mut self, (key, place, job): OrderCursor) -> Result<Vec<PlaceRow>, sqlx::Error> {
        let query = statement(format!(
            "SELECT {PLACE} FROM (SELECT order_key, place, job_id, open, blocks FROM order_places \
             FORCE INDEX (order_places_line) \
             WHERE order_key > ? OR (order_key = ? AND (place > ? OR (place = ? AND job_id > ?))) \
             ORDER BY order_key, place, job_id LIMIT ?) p LEFT JOIN order_keys k ON k.order_key = p.order_key \
             LEFT JOIN owed o ON o.id = p.job_id ORDER BY p.order_key, p.place, p.job_id"
        ));
        let query = query.bind(held_until().naive_utc()).bind(blocked_until().naive_utc());
        let query = query.bind(key.clone()).bind(key).bind(place).bind(place).bind(job.uuid()).bind(PAGE);
        let found = query.fetch_all(&mut self.conn).await?;
        let mut jobs = Vec::with_capacity(found.len());
        for row in &found {
            jobs.push(row.try_get("job_id")?);
        }
        let mut lives = self.lives_of(&jobs).await?;
        let mut rows = Vec::with_capacity(found.len());
        for (row, id) in found.iter().zip(jobs) {
            let (owed, executing): (bool, bool) = (row.try_get("owed")?, row.try_get("executing")?);
            let running: Option<Timestamp> = row.try_get("started_at")?;
            rows.push(PlaceRow {
                key: row.try_get("order_key")?,
                place: row.try_get("place")?,
                job: JobId::from_uuid(id),
                open: row.try_get("open")?,
                blocks: row.try_get("blocks")?,
                head: row.try_get("head")?,
                owed,
                held: row.try_get("held")?,
                blocked: row.try_get("blocked")?,
                lives: lives.remove(&id).unwrap_or_default().all(owed, running.filter(|_| executing)),
            });
        }
        Ok(rows)
    }

    /// Read the lives of these jobs from the ledger.
    async fn lives_of(&mut self, jobs: &[Uuid]) -> Result<BTreeMap<Uuid, Lives>, sqlx::Error> {
        let mut lives: BTreeMap<Uuid, Lives> = BTreeMap::new();
        if jobs.is_empty() {
            return Ok(lives);
        }
        let sql = "SELECT job_id, started_at, finished_at, runner <> '' AND expired IS NULL AS executed, \
                   end_state IS NOT NULL AS ends FROM attempts FORCE INDEX (PRIMARY) WHERE job_id IN";
        for row in in_list(sql, jobs, " ORDER BY job_id, number").fetch_all(&mut self.conn).await? {
            let (executed, ends): (bool, bool) = (row.try_get("executed")?, row.try_get("ends")?);
            let (start, end): (Timestamp, Timestamp) = (row.try_get("started_at")?, row.try_get("finished_at")?);
            lives.entry(row.try_get("job_id")?).or_default().add(executed.then_some(start), end, ends);
        }
        Ok(lives)
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

/// The lives of a job, while its rows in the ledger are read.
#[derive(Default)]
struct Lives {
    ended: Vec<LifeSpan>,
    /// The life that no row ends, with the end of its newest attempt.
    open: LifeSpan,
}

impl Lives {
    /// Add an attempt. One that executed nothing has no start.
    fn add(&mut self, start: Option<Timestamp>, end: Timestamp, ends_job: bool) {
        self.open = LifeSpan { start: self.open.start.or(start), end: Some(end) };
        if ends_job {
            self.ended.push(std::mem::take(&mut self.open));
        }
    }

    /// Return all lives of a job. `running` is the start of an attempt that runs.
    fn all(self, owed: bool, running: Option<Timestamp>) -> Vec<LifeSpan> {
        let Self { ended: mut all, open } = self;
        if owed {
            all.push(LifeSpan { start: open.start.or(running), end: None });
        } else if open.end.is_some() {
            // A lost job, which another check reports.
            all.push(open);
        }
        all
    }
}
