//! Lookups and counts of unfinished jobs, for the comparison with the index. `lanes.rs` reads the same jobs in order.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use sqlx::Row;

use crate::jobs::lanes::{fed_queues, lines_of};
use crate::rows::owed::{DueJob, due_job, unreadable};
use crate::sql::batches::{MAX_ROWS, bind_padded, padded_len, placeholders, statement};
use crate::sql::connection::on_pool;
use crate::{Store, StoreError};
use tickr_job::{JobId, Name, Timestamp};

impl Store {
    /// Return those of these jobs that still wait.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn still_waiting(&self, ids: Vec<JobId>) -> Result<HashSet<JobId>, StoreError> {
        let waiting = "AND state IN ('waiting', 'retrying')";
        let select = "SELECT id FROM owed FORCE INDEX (PRIMARY) WHERE id IN";
        self.ids_found("check which jobs still wait", select, ids, waiting).await
    }

    /// Return the ids that a lookup by primary key finds, page by page.
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
                for page in ids.chunks(MAX_ROWS) {
                    let query = bind_padded(
                        statement(format!("{select} {} {only}", placeholders(padded_len(page.len())))),
                        page,
                    );
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

/// Rows that [`Store::due_within`] counts at most.
const MAX_COUNTED: i64 = 50_000;

/// The jobs in the store that the index should have.
#[derive(Clone, Debug)]
pub struct DueWithin {
    /// The time of the database at the count.
    pub at: Timestamp,
    /// Number of waiting jobs that are due.
    pub due: u32,
    /// Number of waiting jobs that become due before the end of the period.
    pub upcoming: u32,
    /// Number of executing jobs. They are not in the index.
    pub executing: u32,
    /// True if there are more jobs than were counted.
    pub more: bool,
    /// The queues that were counted: those that living runners serve.
    pub queues: BTreeSet<Name>,
}

impl Store {
    /// Count the unfinished jobs that are due now or within `ahead`, in the queues that living runners serve. Counts at
    /// most 50,000 rows.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn due_within(&self, ahead: Duration) -> Result<DueWithin, StoreError> {
        let micros = i64::try_from(ahead.as_micros()).unwrap_or(i64::MAX);
        on_pool(&self.shared.pools.reads, "count what is due", move |conn, _| {
            Box::pin(async move {
                let queues = fed_queues(conn).await?;
                let at: Timestamp = sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut *conn).await?;
                let until = at + chrono::TimeDelta::microseconds(micros);
                let sql = "SELECT state = 'executing' AS executes, execute_at <= ? AS is_due, COUNT(*) AS jobs \
                           FROM (SELECT state, execute_at FROM owed FORCE INDEX (owed_line) WHERE queue = ? \
                           AND priority = ? AND execute_at <= ? ORDER BY execute_at LIMIT ?) o GROUP BY 1, 2";
                let (mut due, mut upcoming, mut executing) = (0_u32, 0_u32, 0_u32);
                let mut left = MAX_COUNTED;
                for line in lines_of(conn, &queues.iter().cloned().collect::<Vec<_>>()).await? {
                    let line = sqlx::query(sql)
                        .bind(at)
                        .bind(line.queue.as_str())
                        .bind(line.priority.level())
                        .bind(until)
                        .bind(left);
                    for row in &line.fetch_all(&mut *conn).await? {
                        let (executes, is_due, jobs): (bool, bool, i64) =
                            (row.try_get("executes")?, row.try_get("is_due")?, row.try_get("jobs")?);
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

    /// Return those of these ids that are jobs, in whatever state.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn known(&self, ids: Vec<JobId>) -> Result<HashSet<JobId>, StoreError> {
        self.ids_found("look up jobs", "SELECT id FROM jobs FORCE INDEX (PRIMARY) WHERE id IN", ids, "").await
    }

    /// Return those of these jobs that wait, with their current values.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn due_jobs(&self, ids: Vec<JobId>) -> Result<HashMap<JobId, DueJob>, StoreError> {
        let ids: Arc<[uuid::Uuid]> = ids.into_iter().map(JobId::uuid).collect();
        on_pool(&self.shared.pools.loops, "read due jobs again", move |conn, _| {
            let ids = Arc::clone(&ids);
            Box::pin(async move {
                let mut due = HashMap::new();
                for page in ids.chunks(MAX_ROWS) {
                    let sql = format!(
                        "SELECT id, queue, priority, execute_at, kind FROM owed FORCE INDEX (PRIMARY) WHERE id IN {} \
                         AND state IN ('waiting', 'retrying')",
                        placeholders(padded_len(page.len()))
                    );
                    let query = bind_padded(statement(sql), page);
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
