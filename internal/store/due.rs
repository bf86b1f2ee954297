//! Owed jobs by their ids and by number: what the index is compared with. `line.rs` reads them in order.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use sqlx::Row;
use sqlx::mysql::MySqlRow;

use super::error::corrupt;
use super::line::{fed_queues, lines_of, unreadable};
use super::link::on_pool;
use super::shape::{MOST_ROWS, pad, padded, places, statement};
use super::{Store, StoreError};
use crate::job::{JobId, Name, Priority, Timestamp};

/// One waiting job, as the index needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueJob {
    /// The job.
    pub id: JobId,
    /// The line it waits in.
    pub queue: Name,
    /// Urgency within the queue.
    pub priority: Priority,
    /// When it is due.
    pub execute_at: Timestamp,
    /// Its kind, which not every runner has.
    pub kind: Name,
}

impl Store {
    /// Which of these jobs still wait.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn still_waiting(&self, ids: Vec<JobId>) -> Result<HashSet<JobId>, StoreError> {
        let waiting = "AND state IN ('waiting', 'retrying')";
        let select = "SELECT id FROM owed FORCE INDEX (PRIMARY) WHERE id IN";
        self.ids_found("look at waiting jobs again", select, ids, waiting).await
    }

    /// The ids that a lookup by primary key finds, page by page.
    async fn ids_found(
        &self,
        attempted: &'static str,
        select: &'static str,
        ids: Vec<JobId>,
        only: &'static str,
    ) -> Result<HashSet<JobId>, StoreError> {
        let ids: Arc<[uuid::Uuid]> = ids.into_iter().map(JobId::uuid).collect();
        on_pool(&self.shared.pools.loops, attempted, move |conn, _| {
            let ids = Arc::clone(&ids);
            Box::pin(async move {
                let mut found = HashSet::new();
                for page in ids.chunks(MOST_ROWS) {
                    let mut query = statement(format!("{select} {} {only}", places(padded(page.len()))));
                    for id in pad(page) {
                        query = query.bind(id);
                    }
                    for row in query.fetch_all(&mut *conn).await? {
                        found.insert(JobId::from_uuid(row.try_get(0)?));
                    }
                }
                Ok(found)
            })
        })
        .await
    }
}

/// Most rows that [`Store::due_within`] counts.
const MOST_COUNTED: i64 = 50_000;

/// What the store holds that the index should.
#[derive(Clone, Debug)]
pub struct DueWithin {
    /// The database's clock at the count.
    pub at: Timestamp,
    /// Jobs that wait and are due.
    pub due: u32,
    /// Jobs that wait and become due before the end.
    pub upcoming: u32,
    /// Jobs that execute. Not in the index.
    pub executing: u32,
    /// There are more than were counted.
    pub more: bool,
    /// The queues that were counted: those that living runners serve.
    pub queues: BTreeSet<Name>,
}

impl Store {
    /// Count what is owed and due before so long from now in the queues that living runners serve, up to a limit.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn due_within(&self, ahead: Duration) -> Result<DueWithin, StoreError> {
        let micros = i64::try_from(ahead.as_micros()).unwrap_or(i64::MAX);
        on_pool(&self.shared.pools.reads, "count what is due", move |conn, _| {
            Box::pin(async move {
                let queues = fed_queues(conn).await?;
                let at: Timestamp = sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut *conn).await?;
                let until = at + chrono::TimeDelta::microseconds(micros);
                let sql = "SELECT state = 'executing', execute_at <= ?, COUNT(*) FROM \
                           (SELECT state, execute_at FROM owed FORCE INDEX (owed_line) WHERE queue = ? AND priority = ? \
                           AND execute_at <= ? ORDER BY execute_at LIMIT ?) o GROUP BY 1, 2";
                let (mut due, mut upcoming, mut executing) = (0_u32, 0_u32, 0_u32);
                let mut left = MOST_COUNTED;
                for line in lines_of(conn, &queues.iter().cloned().collect::<Vec<_>>()).await? {
                    let line = sqlx::query(sql)
                        .bind(at)
                        .bind(line.queue.as_str())
                        .bind(line.priority.level())
                        .bind(until)
                        .bind(left);
                    for row in &line.fetch_all(&mut *conn).await? {
                        let (executes, is_due, jobs): (bool, bool, i64) =
                            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
                        let count = match (executes, is_due) {
                            (true, _) => &mut executing,
                            (false, true) => &mut due,
                            (false, false) => &mut upcoming,
                        };
                        *count += u32::try_from(jobs).unwrap_or(u32::MAX);
                        left -= jobs;
                    }
                    if left <= 0 {
                        break;
                    }
                }
                Ok(DueWithin { at, due, upcoming, executing, more: left <= 0, queues })
            })
        })
        .await
    }

    /// Which of these ids are jobs, whatever became of them.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn known(&self, ids: Vec<JobId>) -> Result<HashSet<JobId>, StoreError> {
        self.ids_found("look for jobs", "SELECT id FROM jobs FORCE INDEX (PRIMARY) WHERE id IN", ids, "").await
    }

    /// Those of these jobs that wait, as they stand now.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn due_jobs(&self, ids: Vec<JobId>) -> Result<HashMap<JobId, DueJob>, StoreError> {
        let ids: Arc<[uuid::Uuid]> = ids.into_iter().map(JobId::uuid).collect();
        on_pool(&self.shared.pools.loops, "look at due jobs again", move |conn, _| {
            let ids = Arc::clone(&ids);
            Box::pin(async move {
                let mut due = HashMap::new();
                for page in ids.chunks(MOST_ROWS) {
                    let sql = format!(
                        "SELECT id, queue, priority, execute_at, kind FROM owed FORCE INDEX (PRIMARY) WHERE id IN {} \
                         AND state IN ('waiting', 'retrying')",
                        places(padded(page.len()))
                    );
                    let mut query = statement(sql);
                    for id in pad(page) {
                        query = query.bind(id);
                    }
                    for row in query.fetch_all(&mut *conn).await? {
                        match due_job(&row) {
                            Ok(job) => drop(due.insert(job.id, job)),
                            Err(error) => unreadable(&error.to_string()),
                        }
                    }
                }
                Ok(due)
            })
        })
        .await
    }
}

/// The first five columns of a row: id, queue, priority, execute_at, kind.
pub(super) fn due_job(row: &MySqlRow) -> Result<DueJob, sqlx::Error> {
    let name = |at, what| row.try_get::<&str, _>(at)?.parse().map_err(|_| corrupt(what));
    Ok(DueJob {
        id: JobId::from_uuid(row.try_get(0)?),
        queue: name(1, "queue")?,
        priority: row.try_get::<u8, _>(2)?.try_into().map_err(corrupt)?,
        execute_at: row.try_get(3)?,
        kind: name(4, "kind")?,
    })
}
