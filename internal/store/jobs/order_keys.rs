//! The order keys that have jobs: which job is at the head of each, and how many wait behind it.

use async_recursion::async_recursion as boxed;
use sqlx::Row;

use crate::jobs::conditions::DUE_OF_OWED;
use crate::sql::batches::statement;
use crate::sql::connection::on_pool;
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{JobId, Name, State, Timestamp};

/// Most order keys in one page.
pub const MAX_ORDER_KEYS: usize = 200;
/// Order keys that one page looks at. A key whose jobs have all ended keeps its row for a while.
const MAX_READ: u32 = 5_000;
/// Jobs of a key that are counted at most.
const MAX_COUNTED: u32 = 10_000;

/// An order key that has jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderKeyUse {
    /// The order key.
    pub key: String,
    /// The job at the head. A failed one holds the others up until an operator deals with it.
    pub head: OrderKeyHead,
    /// Number of jobs behind the head. Counted up to 10,000.
    pub waiting: u32,
    /// Due time of the first job behind the head.
    pub waiting_since: Option<Timestamp>,
}

/// The job at the head of an order key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderKeyHead {
    /// The job.
    pub id: JobId,
    /// Its kind.
    pub kind: Name,
    /// Its queue.
    pub queue: Name,
    /// Its state: waiting, retrying, executing or failed.
    pub state: State,
    /// When it started if it executes, when it ended if it failed, and its due time otherwise.
    pub since: Timestamp,
}

/// A page of order keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrderKeyPage {
    /// The order keys, in their order.
    pub keys: Vec<OrderKeyUse>,
    /// The order key behind which the next page begins. A page may be empty and have a next one.
    pub next: Option<String>,
}

impl Store {
    /// Read a page of the order keys that have jobs. With `blocked`, read only those whose head has failed. A page reads
    /// 5,000 keys and returns 200 at most.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn order_keys_in_use(&self, after: Option<String>, blocked: bool) -> Result<OrderKeyPage, StoreError> {
        on_pool(&self.shared.pools.reads, "read the order keys", move |conn, _| {
            let after = after.clone().unwrap_or_default();
            Box::pin(async move { page(conn, after.as_bytes(), blocked).await })
        })
        .await
    }
}

impl Store {
    /// Count the order keys that a failed job holds up, among the newest 10,000 open dead letters.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn blocked_order_keys(&self) -> Result<i64, StoreError> {
        on_pool(&self.shared.pools.reads, "count blocked order keys", |conn, _| {
            Box::pin(async move {
                sqlx::query_scalar(
                    "SELECT COUNT(*) FROM (SELECT job_id FROM dead_letters FORCE INDEX (dead_letters_standing) \
                     WHERE standing = 'open' ORDER BY job_id DESC LIMIT 10000) d \
                     STRAIGHT_JOIN order_places p FORCE INDEX (PRIMARY) ON p.job_id = d.job_id AND p.open \
                     STRAIGHT_JOIN order_keys k FORCE INDEX (PRIMARY) ON k.order_key = p.order_key AND k.head = p.place",
                )
                .fetch_one(conn)
                .await
            })
        })
        .await
    }
}

async fn page(conn: &mut Session<'_>, after: &[u8], blocked: bool) -> Result<OrderKeyPage, sqlx::Error> {
    let last_read: Option<Vec<u8>> = sqlx::query_scalar(
        "SELECT order_key FROM order_keys FORCE INDEX (PRIMARY) WHERE order_key > ? ORDER BY order_key LIMIT 1 OFFSET ?",
    )
    .bind(after)
    .bind(MAX_READ - 1)
    .fetch_optional(&mut *conn)
    .await?;
    let sql = format!(
        "SELECT k.order_key, k.head, p.job_id, j.kind, j.queue, COALESCE(o.state, 'failed') AS state, \
         CASE WHEN o.id IS NULL THEN (SELECT MAX(a.finished_at) FROM attempts a WHERE a.job_id = p.job_id) \
         WHEN o.state = 'executing' THEN o.started_at ELSE {DUE_OF_OWED} END AS since, p.due_at \
         FROM (SELECT order_key, head, tail FROM order_keys FORCE INDEX (PRIMARY) WHERE order_key > ? \
         ORDER BY order_key LIMIT ?) k \
         STRAIGHT_JOIN order_places p FORCE INDEX (order_places_line) \
         ON p.order_key = k.order_key AND p.place = k.head AND p.open \
         STRAIGHT_JOIN jobs j FORCE INDEX (PRIMARY) ON j.id = p.job_id \
         LEFT JOIN owed o FORCE INDEX (PRIMARY) ON o.id = p.job_id \
         WHERE k.head <= k.tail{} ORDER BY k.order_key LIMIT ?",
        if blocked { " AND o.id IS NULL" } else { "" }
    );
    let found = statement(sql).bind(after).bind(MAX_READ).bind(MAX_ORDER_KEYS as u32).fetch_all(&mut *conn).await?;
    let mut keys = Vec::with_capacity(found.len());
    let mut last = None;
    for row in &found {
        let (key, head): (Vec<u8>, u64) = (row.try_get("order_key")?, row.try_get("head")?);
        let behind = sqlx::query(
            "SELECT COUNT(*) AS waiting, MIN(due_at) AS since FROM (SELECT due_at FROM order_places \
             FORCE INDEX (order_places_line) WHERE order_key = ? AND place > ? AND open ORDER BY place LIMIT ?) w",
        )
        .bind(&key)
        .bind(head)
        .bind(MAX_COUNTED)
        .fetch_one(&mut *conn)
        .await?;
        let name = |column| -> Result<Name, sqlx::Error> {
            row.try_get::<&str, _>(column)?.parse().map_err(|_| corrupt(column))
        };
        let since: Option<Timestamp> = row.try_get("since")?;
        keys.push(OrderKeyUse {
            key: String::from_utf8_lossy(&key).into_owned(),
            head: OrderKeyHead {
                id: JobId::from_uuid(row.try_get("job_id")?),
                kind: name("kind")?,
                queue: name("queue")?,
                state: State::from_word(row.try_get("state")?).ok_or_else(|| corrupt("state"))?,
                since: since.map_or_else(|| row.try_get("due_at"), Ok)?,
            },
            waiting: u32::try_from(behind.try_get::<i64, _>("waiting")?).unwrap_or(u32::MAX),
            waiting_since: behind.try_get("since")?,
        });
        last = Some(key);
    }
    let next = if found.len() == MAX_ORDER_KEYS { last } else { last_read };
    Ok(OrderKeyPage { keys, next: next.map(|key| String::from_utf8_lossy(&key).into_owned()) })
}
