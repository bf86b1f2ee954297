//! Owed work in order of its due time: what the index is fed from, and what replaces it while Redis is away.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use sqlx::Row;
use sqlx::mysql::MySqlRow;

use super::error::corrupt;
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

/// A place in the order of due times: everything after it has not been seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueCursor {
    execute_at: Timestamp,
    id: JobId,
}

impl DueCursor {
    /// Before everything that is due at `moment` or later.
    #[must_use]
    pub const fn at(moment: Timestamp) -> Self {
        Self { execute_at: moment, id: JobId::from_uuid(uuid::Uuid::nil()) }
    }

    /// After the job `id`, due at `moment`.
    #[must_use]
    pub const fn after(moment: Timestamp, id: JobId) -> Self {
        Self { execute_at: moment, id }
    }

    /// The due time of the place.
    #[must_use]
    pub const fn moment(&self) -> Timestamp {
        self.execute_at
    }

    /// The job of the place.
    #[must_use]
    pub const fn id(&self) -> JobId {
        self.id
    }
}

/// A page of waiting jobs in order of due time.
#[derive(Clone, Debug)]
pub struct DuePage {
    /// The waiting jobs among the rows read.
    pub jobs: Vec<DueJob>,
    /// Where to go on; absent when the range is exhausted.
    pub next: Option<DueCursor>,
}

impl Store {
    /// Read up to `limit` owed rows due before or at `until`, from `after` on, and return those that wait.
    ///
    /// A range read of one index without locks: restartable, and harmless beside any write.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn due_page(
        &self,
        after: Option<DueCursor>,
        until: Timestamp,
        limit: usize,
    ) -> Result<DuePage, StoreError> {
        on_pool(&self.shared.pools.loops, "read due jobs", move |conn, _| {
            Box::pin(async move {
                // Two shapes, because an OR over both would keep the optimiser from a plain range.
                let columns = "SELECT id, queue, priority, execute_at, kind, state <> 'executing' FROM owed";
                let order = "ORDER BY execute_at, id LIMIT ?";
                let limit_rows = i64::try_from(limit).unwrap_or(i64::MAX);
                let found =
                    match after {
                        None => {
                            statement(format!("{columns} WHERE execute_at <= ? {order}"))
                                .bind(until)
                                .bind(limit_rows)
                                .fetch_all(conn)
                                .await?
                        }
                        Some(place) => statement(format!(
                            "{columns} WHERE execute_at >= ? AND execute_at <= ? AND (execute_at > ? OR id > ?) {order}"
                        ))
                        .bind(place.execute_at)
                        .bind(until)
                        .bind(place.execute_at)
                        .bind(place.id.uuid())
                        .bind(limit_rows)
                        .fetch_all(conn)
                        .await?,
                    };
                let next = match found.last() {
                    Some(last) if found.len() == limit => {
                        Some(DueCursor { execute_at: last.try_get(3)?, id: JobId::from_uuid(last.try_get(0)?) })
                    }
                    _ => None,
                };
                let mut jobs: Vec<DueJob> = Vec::with_capacity(found.len());
                for row in &found {
                    if row.try_get::<bool, _>(5)? {
                        let job = due_job_like(row, jobs.last())?;
                        jobs.push(job);
                    }
                }
                Ok(DuePage { jobs, next })
            })
        })
        .await
    }

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
    /// There are more: the earliest were counted.
    pub more: bool,
    /// The queues of those that were counted.
    pub queues: BTreeSet<Name>,
}

impl Store {
    /// Count what is owed and due before so long from now, up to a limit.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn due_within(&self, ahead: Duration) -> Result<DueWithin, StoreError> {
        let micros = i64::try_from(ahead.as_micros()).unwrap_or(i64::MAX);
        on_pool(&self.shared.pools.reads, "count what is due", move |conn, _| {
            Box::pin(async move {
                let at: Timestamp = sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut *conn).await?;
                let until = at + chrono::TimeDelta::microseconds(micros);
                let sql = "SELECT queue, state = 'executing', execute_at <= ?, COUNT(*) FROM \
                           (SELECT queue, state, execute_at FROM owed FORCE INDEX (owed_due) WHERE execute_at <= ? \
                           ORDER BY execute_at LIMIT ?) o GROUP BY 1, 2, 3";
                let rows = sqlx::query(sql).bind(at).bind(until).bind(MOST_COUNTED).fetch_all(&mut *conn).await?;
                let (mut due, mut upcoming, mut executing) = (0, 0, 0);
                let mut queues = BTreeSet::new();
                for row in &rows {
                    let (executes, is_due, jobs): (bool, bool, i64) =
                        (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
                    let count = match (executes, is_due) {
                        (true, _) => &mut executing,
                        (false, true) => &mut due,
                        (false, false) => &mut upcoming,
                    };
                    *count += u32::try_from(jobs).unwrap_or(u32::MAX);
                    queues.insert(row.try_get::<String, _>(0)?.parse().map_err(|_| corrupt("queue"))?);
                }
                let more = i64::from(due) + i64::from(upcoming) + i64::from(executing) >= MOST_COUNTED;
                Ok(DueWithin { at, due, upcoming, executing, more, queues })
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
                        let job = due_job(&row)?;
                        due.insert(job.id, job);
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
    due_job_like(row, None)
}

/// As [`due_job`], with the names of the job before it where they are the same, which they are nearly always.
fn due_job_like(row: &MySqlRow, before: Option<&DueJob>) -> Result<DueJob, sqlx::Error> {
    let name = |at, what, known: Option<&Name>| {
        let text: &str = row.try_get(at)?;
        match known.filter(|known| known.as_str() == text) {
            Some(known) => Ok(known.clone()),
            None => text.parse().map_err(|_| corrupt(what)),
        }
    };
    Ok(DueJob {
        id: JobId::from_uuid(row.try_get(0)?),
        queue: name(1, "queue", before.map(|job| &job.queue))?,
        priority: row.try_get::<u8, _>(2)?.try_into().map_err(corrupt)?,
        execute_at: row.try_get(3)?,
        kind: name(4, "kind", before.map(|job| &job.kind))?,
    })
}
