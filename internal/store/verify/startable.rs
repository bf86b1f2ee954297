//! Jobs that could be started now, for the checker: free workers, stopped queues, and jobs that wait nevertheless.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::rows::owed::{DueJob, SUSPECT_FROM, due_job};
use crate::sql::batches::{MAX_ROWS, bind_padded, padded_len, placeholders, statement};
use crate::sql::connection::on_pool;
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Edition, Editions, JobId, Name, Timestamp};

/// Number of claim batches read at a time.
const BATCHES: u32 = 256;
/// Number of `owed` rows in one page of the walk for executing jobs.
const PAGE: i64 = 20_000;

/// The state of runners and queues at one moment.
#[derive(Clone, Debug, Default)]
pub struct Startable {
    /// Living runners that take new work and have a free worker.
    idle: Vec<IdleRunner>,
    /// Queues that are paused, or run as many jobs as their limit allows.
    still: BTreeSet<Name>,
    suspects_run: bool,
}

#[derive(Clone, Debug)]
struct IdleRunner {
    kinds: Vec<Name>,
    queues: Vec<Name>,
    /// The versions of its payload types, if they are known.
    editions: Option<Editions>,
}

impl IdleRunner {
    fn may_read(&self, kind: &Name, refused: &BTreeSet<Edition>) -> bool {
        self.editions.as_ref().is_none_or(|editions| editions.may_read(kind, refused))
    }
}

impl Startable {
    /// Return whether suspects are running. Then a runner may have no room for another suspect, even with free workers.
    #[must_use]
    pub const fn suspects_run(&self) -> bool {
        self.suspects_run
    }

    /// Return whether a runner could have started this job at that moment. The editions in `refused` cannot read it.
    #[must_use]
    pub fn has_room_for(&self, kind: &Name, queue: &Name, refused: &BTreeSet<Edition>) -> bool {
        let takes = |runner: &IdleRunner| {
            runner.kinds.contains(kind) && runner.queues.contains(queue) && runner.may_read(kind, refused)
        };
        !self.still.contains(queue) && self.idle.iter().any(takes)
    }
}

/// A waiting job, with the facts that the checker needs.
#[derive(Clone, Debug)]
pub struct StuckJob {
    /// The job.
    pub job: DueJob,
    /// Number of losses in a row.
    pub losses: u32,
    /// Number of attempts that used none. Those that gave the job back unread are among them.
    pub spared: u32,
}

impl Store {
    /// Read the facts that decide which jobs could be started now. Executing jobs are found through the claim batches,
    /// so the cost does not depend on the number of waiting jobs. While a runner of an older version is alive, which
    /// writes no claim batches, all `owed` rows are read, a page at a time.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn startable(&self) -> Result<Startable, StoreError> {
        let running = match self.claimed().await? {
            Some(running) => running,
            None => self.walked().await?,
        };
        let running = std::sync::Arc::new(running);
        on_pool(&self.shared.pools.reads, "look for idle runners", move |conn, _| {
            let running = std::sync::Arc::clone(&running);
            Box::pin(async move { startable(conn, &running).await })
        })
        .await
    }

    /// Count the executing jobs through the claim batches. Return nothing while a runner is alive that writes none.
    async fn claimed(&self) -> Result<Option<Running>, StoreError> {
        on_pool(&self.shared.pools.reads, "count claimed jobs", |conn, _| {
            Box::pin(async move {
                let older = "SELECT EXISTS (SELECT 1 FROM runners WHERE stopped_at IS NULL AND NOT claim_batches)";
                if sqlx::query_scalar(older).fetch_one(&mut *conn).await? {
                    return Ok(None);
                }
                // Use one snapshot: on a runner with short jobs, all jobs may end between two reads.
                sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut *conn).await?;
                sqlx::raw_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY").execute(&mut *conn).await?;
                let running = claimed(conn).await;
                sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
                running.map(Some)
            })
        })
        .await
    }

    /// Count the executing jobs by a walk through the `owed` rows.
    async fn walked(&self) -> Result<Running, StoreError> {
        let mut running = Running::default();
        let mut place = Some(Uuid::nil());
        while let Some(after) = place {
            place = on_pool(&self.shared.pools.reads, "count executing jobs", move |conn, _| {
                Box::pin(async move { executing(conn, after).await })
            })
            .await
            .map(|(page, next)| {
                running.add(page);
                next
            })?;
        }
        Ok(running)
    }

    /// List the queues that are paused now.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn paused_queues(&self) -> Result<BTreeSet<Name>, StoreError> {
        let queues = self.listed_queues().await?;
        Ok(queues.into_iter().filter(|queue| queue.pause.is_some()).map(|queue| queue.name).collect())
    }

    /// Read the ends of the leases of these jobs, for those that are executing now.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn leases_of(&self, ids: Vec<JobId>) -> Result<HashMap<JobId, Timestamp>, StoreError> {
        let ids: std::sync::Arc<[Uuid]> = ids.into_iter().map(JobId::uuid).collect();
        on_pool(&self.shared.pools.reads, "look at leases again", move |conn, _| {
            let ids = std::sync::Arc::clone(&ids);
            Box::pin(async move {
                let mut leases = HashMap::new();
                for page in ids.chunks(MAX_ROWS) {
                    let list = placeholders(padded_len(page.len()));
                    let sql = format!(
                        "SELECT id, lease_until FROM owed FORCE INDEX (PRIMARY) WHERE id IN {list} AND state = 'executing'"
                    );
                    let query = bind_padded(statement(sql), page);
                    for row in query.fetch_all(&mut *conn).await? {
                        leases.insert(JobId::from_uuid(row.try_get("id")?), row.try_get("lease_until")?);
                    }
                }
                Ok(leases)
            })
        })
        .await
    }

    /// Read these jobs, for those that are waiting now.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn stuck_jobs(&self, ids: Vec<JobId>) -> Result<HashMap<JobId, StuckJob>, StoreError> {
        let ids: std::sync::Arc<[Uuid]> = ids.into_iter().map(JobId::uuid).collect();
        on_pool(&self.shared.pools.reads, "look at overdue jobs again", move |conn, _| {
            let ids = std::sync::Arc::clone(&ids);
            Box::pin(async move {
                let mut stuck = HashMap::new();
                for page in ids.chunks(MAX_ROWS) {
                    let sql = format!(
                        "SELECT id, queue, priority, execute_at, kind, losses, spared FROM owed FORCE INDEX (PRIMARY) \
                         WHERE id IN {} AND state IN ('waiting', 'retrying')",
                        placeholders(padded_len(page.len()))
                    );
                    let query = bind_padded(statement(sql), page);
                    for row in query.fetch_all(&mut *conn).await? {
                        let job = due_job(&row)?;
                        let (losses, spared) = (row.try_get("losses")?, row.try_get("spared")?);
                        stuck.insert(job.id, StuckJob { job, losses, spared });
                    }
                }
                Ok(stuck)
            })
        })
        .await
    }
}

/// Numbers of executing jobs, by runner and by queue.
#[derive(Debug, Default)]
struct Running {
    by_runner: BTreeMap<String, u32>,
    by_queue: BTreeMap<String, u32>,
    suspects: bool,
}

impl Running {
    fn add(&mut self, page: Vec<Executing>) {
        for Executing { runner, queue, suspects, jobs } in page {
            *self.by_queue.entry(queue).or_default() += jobs;
            *self.by_runner.entry(runner).or_default() += jobs;
            self.suspects |= suspects;
        }
    }
}

struct Executing {
    /// The runner whose workers these jobs use.
    runner: String,
    queue: String,
    suspects: bool,
    jobs: u32,
}

async fn claimed(conn: &mut Session<'_>) -> Result<Running, sqlx::Error> {
    let (mut running, mut seen) = (Running::default(), HashSet::new());
    let mut place = (String::new(), Uuid::nil());
    loop {
        // The position is a primary key: the walk reads the rows of one runner, then those of the next.
        let sql = "SELECT runner, id, ids FROM claim_batches FORCE INDEX (PRIMARY) WHERE runner >= ? \
                   AND (runner > ? OR id > ?) ORDER BY runner, id LIMIT ?";
        let query = sqlx::query(sql).bind(place.0.clone()).bind(place.0).bind(place.1).bind(BATCHES);
        let found = query.fetch_all(&mut *conn).await?;
        let mut ids: Vec<Uuid> = Vec::new();
        for row in &found {
            for id in row.try_get::<&[u8], _>("ids")?.chunks_exact(16) {
                let id = Uuid::from_slice(id).map_err(|e| corrupt(e.to_string()))?;
                // A job may be in several batches, because some claims took nothing.
                if seen.insert(id) {
                    ids.push(id);
                }
            }
        }
        ids.sort_unstable();
        for ids in ids.chunks(MAX_ROWS) {
            let sql = format!(
                "SELECT COALESCE(r.parent, o.runner) AS runner, o.queue, o.losses >= ? AS suspects, COUNT(*) AS jobs \
                 FROM owed o FORCE INDEX (PRIMARY) LEFT JOIN runners r ON r.id = o.runner WHERE o.id IN {} \
                 AND o.state = 'executing' GROUP BY 1, 2, 3",
                placeholders(padded_len(ids.len()))
            );
            let query = bind_padded(statement(sql).bind(SUSPECT_FROM), ids);
            running.add(executing_rows(&query.fetch_all(&mut *conn).await?)?);
        }
        match found.last() {
            Some(last) if found.len() == BATCHES as usize => place = (last.try_get("runner")?, last.try_get("id")?),
            _ => return Ok(running),
        }
    }
}

fn executing_rows(found: &[MySqlRow]) -> Result<Vec<Executing>, sqlx::Error> {
    let executing = |row: &MySqlRow| {
        Ok(Executing {
            runner: row.try_get("runner")?,
            queue: row.try_get("queue")?,
            suspects: row.try_get("suspects")?,
            jobs: u32::try_from(row.try_get::<i64, _>("jobs")?).unwrap_or(u32::MAX),
        })
    };
    found.iter().map(executing).collect()
}

async fn executing(conn: &mut Session<'_>, after: Uuid) -> Result<(Vec<Executing>, Option<Uuid>), sqlx::Error> {
    let end = "SELECT id FROM owed FORCE INDEX (PRIMARY) WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?";
    let next: Option<Uuid> = sqlx::query_scalar(end).bind(after).bind(PAGE - 1).fetch_optional(&mut *conn).await?;
    let found = sqlx::query(
        "SELECT COALESCE(r.parent, o.runner) AS runner, o.queue, o.losses >= ? AS suspects, COUNT(*) AS jobs \
         FROM owed o FORCE INDEX (PRIMARY) LEFT JOIN runners r ON r.id = o.runner WHERE o.id > ? AND o.id <= ? \
         AND o.state = 'executing' GROUP BY 1, 2, 3",
    )
    .bind(SUSPECT_FROM)
    .bind(after)
    .bind(next.unwrap_or(Uuid::max()))
    .fetch_all(conn)
    .await?;
    Ok((executing_rows(&found)?, next))
}

async fn startable(conn: &mut Session<'_>, running: &Running) -> Result<Startable, sqlx::Error> {
    let mut found = Startable { suspects_run: running.suspects, ..Startable::default() };
    let runners = sqlx::query(
        "SELECT id, kinds, queues, slots, kind_schemas FROM runners WHERE stopped_at IS NULL AND drained_at IS NULL \
         AND heartbeat_at >= UTC_TIMESTAMP(6) - INTERVAL lease_ms * 1000 MICROSECOND \
         AND (via = 'process' OR polls_until > UTC_TIMESTAMP(6))",
    )
    .fetch_all(&mut *conn)
    .await?;
    for row in &runners {
        let (id, workers): (String, u32) = (row.try_get("id")?, row.try_get("slots")?);
        let busy = running.by_runner.get(&id).copied().unwrap_or(0);
        if busy < workers {
            // The editions of another version may be unreadable for this binary.
            let editions: Option<&str> = row.try_get("kind_schemas")?;
            let editions = editions.and_then(|text| serde_json::from_str(text).ok());
            let (kinds, queues) = (names(row.try_get("kinds")?)?, names(row.try_get("queues")?)?);
            found.idle.push(IdleRunner { kinds, queues, editions });
        }
    }
    // The permits of a silent runner stay taken until it counts as dead, and they may be all permits of the queue.
    let queues = sqlx::query(
        "SELECT q.name, q.paused_at IS NOT NULL AS paused, q.concurrency, \
         CAST(COALESCE((SELECT SUM(p.permits) FROM queue_permits p LEFT JOIN runners r ON r.id = p.runner \
         AND r.stopped_at IS NULL AND r.heartbeat_at >= UTC_TIMESTAMP(6) - INTERVAL r.lease_ms * 1000 MICROSECOND \
         WHERE p.queue = q.name AND r.id IS NULL), 0) AS UNSIGNED) AS taken \
         FROM queues q WHERE q.paused_at IS NOT NULL OR q.concurrency IS NOT NULL LIMIT 2000",
    )
    .fetch_all(conn)
    .await?;
    for row in &queues {
        let (name, paused, limit): (String, bool, Option<u32>) =
            (row.try_get("name")?, row.try_get("paused")?, row.try_get("concurrency")?);
        let taken = u64::from(running.by_queue.get(&name).copied().unwrap_or(0)) + row.try_get::<u64, _>("taken")?;
        if paused || limit.is_some_and(|limit| taken >= u64::from(limit)) {
            // A queue whose name cannot be read has no waiting jobs that can be read.
            found.still.extend(name.parse::<Name>().ok());
        }
    }
    Ok(found)
}

fn names(text: &str) -> Result<Vec<Name>, sqlx::Error> {
    serde_json::from_str(text).map_err(|e| corrupt(e.to_string()))
}
