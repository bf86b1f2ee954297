//! Runners for operators: the list of runners, the jobs of their workers, and drain.
//!
//! Executing jobs have no index of their own. Every claim and every settle would have to pay for one. They are found in
//! two ways, and neither scans the `owed` rows. First, each runner writes the ids of the jobs of its workers with its
//! heartbeat; this finds jobs that have run for a while. Second, an executing job was due, so most of them are at the
//! front of their lane; this finds jobs that have just started. A job that started since the last heartbeat behind a
//! long backlog is shown after the next heartbeat.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::audit::{AuditEntry, record, was_recorded};
use crate::jobs::lanes::lines_of;
use crate::queues::{Pause, PauseRequest};
use crate::sql::batches::{MAX_ROWS, bind_padded, padded_len, placeholders, statement};
use crate::sql::clock::read_clock;
use crate::sql::connection::{PriorRun, on_pool, transact};
use crate::sql::error::corrupt;
use crate::sql::script::rows_as_text;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Actor, AttemptToken, JobId, Name, Progress, RunnerId, Timestamp};

/// Most jobs that a runner lists with its heartbeat. The size of the column allows no more.
pub const MAX_WORKER_JOBS: usize = 200;
/// Most rows at the front of all lanes that are searched for executing jobs, and most lanes.
const MAX_LOOKED_AT: u32 = 2_000;
const MAX_LINES: usize = 100;
/// Most different lists of queues that are read of the living runners.
const MAX_QUEUE_LISTS: u32 = 1_000;

/// One entry in the list of runners.
#[derive(Clone, Debug)]
pub struct RunnerSeen {
    /// The id of the runner.
    pub id: RunnerId,
    /// Version of its binary.
    pub version: String,
    /// Kinds that it can run.
    pub kinds: Vec<Name>,
    /// Queues that it serves.
    pub queues: Vec<Name>,
    /// Number of its workers.
    pub workers: u32,
    /// Number of workers that were busy at the last heartbeat.
    pub busy_workers: u32,
    /// Time when it started.
    pub started_at: Timestamp,
    /// Time of its last heartbeat.
    pub heartbeat_at: Timestamp,
    /// Age of the last heartbeat, by the store's clock.
    pub heartbeat_age: Duration,
    /// Time when it stopped, or was found to be dead.
    pub stopped_at: Option<Timestamp>,
    /// Length of its lease: after this silence its jobs are taken away.
    pub lease: Duration,
    /// Name of its host; unknown for older binaries.
    pub host: Option<String>,
    /// Its process id on that host; unknown for older binaries.
    pub pid: Option<u32>,
    /// Its host's clock minus the store's clock at the last heartbeat, in milliseconds.
    pub clock_skew_ms: Option<i64>,
    /// Time, actor and reason of the drain, if an operator has drained it.
    pub drain: Option<Pause>,
    /// The jobs of its workers at the last heartbeat, at most [`MAX_WORKER_JOBS`].
    pub worker_jobs: Vec<JobId>,
    /// The runner that started this process to run a suspect; absent for an ordinary runner. Such a process has no
    /// workers of its own: it uses one of that runner.
    pub parent: Option<RunnerId>,
    /// True if it is a remote worker.
    pub is_remote: bool,
}

impl RunnerSeen {
    /// Return whether it is alive and takes new work. A process for a suspect takes no more than its one job.
    #[must_use]
    pub const fn takes_jobs(&self) -> bool {
        self.stopped_at.is_none() && self.drain.is_none() && self.parent.is_none()
    }

    /// Return whether its last heartbeat is older than its lease. Each runner has a lease of its own, and sends a
    /// heartbeat about every third of it.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.heartbeat_age > self.lease
    }
}

/// The registered runners, counted.
#[derive(Clone, Debug, Default)]
pub struct RunnerCounts {
    /// Number of runners whose last heartbeat is not older than their lease, without the processes of suspects.
    pub alive: u64,
    /// Number of those that have workers, remote workers included. The others serve the API only.
    pub with_workers: u64,
    /// Number of the others.
    pub silent: u64,
    /// Age of the oldest last heartbeat, that of a process of a suspect included.
    pub oldest_heartbeat: Duration,
    /// The queues that those of processes serve.
    pub queues: BTreeSet<Name>,
    /// The queues that remote workers serve. Programs choose these names.
    pub worker_queues: BTreeSet<Name>,
}

/// A job that a worker executes.
#[derive(Clone, Debug)]
pub struct WorkerJob {
    /// The id of the job.
    pub id: JobId,
    /// The kind of the job.
    pub kind: Name,
    /// The queue of the job.
    pub queue: Name,
    /// Number of attempts that count, this one included.
    pub attempt: u32,
    /// Most attempts that may count.
    pub max_attempts: u32,
    /// Time when the attempt started.
    pub started_at: Timestamp,
    /// Time when a cancel was requested.
    pub cancel_requested_at: Option<Timestamp>,
    /// The newest progress that the handler reported.
    pub progress: Option<Progress>,
}

/// The jobs of the workers of one runner.
#[derive(Clone, Debug, Default)]
pub struct WorkerJobs {
    /// The jobs, longest running first.
    pub jobs: Vec<WorkerJob>,
    /// True if there are more.
    pub more: bool,
}

/// Outcome of a request to drain or resume a runner.
#[derive(Clone, Debug)]
pub enum DrainOutcome {
    /// Done, or it was so before.
    Done,
    /// The runner has stopped, at this time.
    Stopped(Timestamp),
    /// There is no runner with this id.
    Missing,
}

const COLUMNS: &str = "id, version, kinds, queues, slots, busy, started_at, heartbeat_at, stopped_at, \
     TIMESTAMPDIFF(MICROSECOND, heartbeat_at, UTC_TIMESTAMP(6)) AS heartbeat_age_us, lease_ms, host, pid, \
     clock_skew_ms, drained_at, drained_by, drain_reason, slot_jobs, parent, via = 'http' AS is_remote";

const JOB: &str = "id, kind, queue, attempt, spared, max_attempts, started_at, cancel_requested_at, progress, runner";

/// Return the ids that a runner lists, as bytes: those of the first attempts, sorted, so that equal sets give equal
/// bytes.
pub(super) fn job_ids(live: &[LiveAttempt]) -> Vec<u8> {
    let mut ids: Vec<Uuid> = live.iter().take(MAX_WORKER_JOBS).map(|attempt| attempt.id.uuid()).collect();
    ids.sort_unstable();
    ids.iter().flat_map(|id| *id.as_bytes()).collect()
}

impl Store {
    /// Write the kinds that a runner executes, after they have changed. Returns false if the runner has no row yet.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn write_kinds_of_runner(&self, runner: &RunnerId, kinds: &[Name]) -> Result<bool, StoreError> {
        let (runner, kinds) = (runner.clone(), serde_json::to_string(kinds).unwrap_or_default());
        on_pool(&self.shared.pools.loops, "write the kinds of the runner", move |conn, _| {
            let (runner, kinds) = (runner.clone(), kinds.clone());
            Box::pin(async move {
                let query = sqlx::query("UPDATE runners SET kinds = ? WHERE id = ?");
                let done = query.bind(kinds).bind(runner.as_str()).execute(conn).await?;
                Ok(done.rows_affected() > 0)
            })
        })
        .await
    }

    /// List the newest living runners, processes before remote workers, then those that stopped last. Processes for suspects are listed only while they
    /// are alive. The number of rows read depends on `limit`, plus the processes for suspects that stopped meanwhile,
    /// and not on the total number of runners.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn runners(&self, limit: u32) -> Result<Vec<RunnerSeen>, StoreError> {
        on_pool(&self.shared.pools.reads, "list runners", move |conn, _| {
            Box::pin(async move {
                let living = format!(
                    "SELECT {COLUMNS} FROM runners FORCE INDEX (runners_stopped) WHERE stopped_at IS NULL \
                     ORDER BY via, started_at DESC LIMIT ?"
                );
                let mut found = statement(living).bind(limit).fetch_all(&mut *conn).await?;
                let left = limit.saturating_sub(u32::try_from(found.len()).unwrap_or(limit));
                if left > 0 {
                    let stopped = format!(
                        "SELECT {COLUMNS} FROM runners FORCE INDEX (runners_stopped) WHERE stopped_at IS NOT NULL \
                         AND parent IS NULL \
                         ORDER BY stopped_at DESC, started_at DESC LIMIT ?"
                    );
                    found.extend(statement(stopped).bind(left).fetch_all(conn).await?);
                }
                found.iter().map(seen).collect()
            })
        })
        .await
    }

    /// List the newest living runners that serve a queue, processes before remote workers. Processes for suspects are
    /// among them whatever they serve.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn runners_of_queue(&self, queue: &Name, limit: u32) -> Result<Vec<RunnerSeen>, StoreError> {
        let listed = in_list_of_names(queue);
        on_pool(&self.shared.pools.reads, "list the runners of a queue", move |conn, _| {
            let listed = listed.clone();
            Box::pin(async move {
                let sql = format!(
                    "SELECT {COLUMNS} FROM runners FORCE INDEX (runners_stopped) WHERE stopped_at IS NULL \
                     AND (parent IS NOT NULL OR INSTR(queues, ?) > 0) ORDER BY via, started_at DESC LIMIT ?"
                );
                let found = statement(sql).bind(listed).bind(limit).fetch_all(conn).await?;
                found.iter().map(seen).collect()
            })
        })
        .await
    }

    /// Count the living runners that take new work of a queue.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn takers_of_queue(&self, queue: &Name) -> Result<u32, StoreError> {
        let listed = in_list_of_names(queue);
        on_pool(&self.shared.pools.reads, "count the runners of a queue", move |conn, _| {
            let listed = listed.clone();
            Box::pin(async move {
                let sql = "SELECT COUNT(*) FROM runners FORCE INDEX (runners_stopped) WHERE stopped_at IS NULL \
                           AND drained_at IS NULL AND parent IS NULL AND INSTR(queues, ?) > 0";
                let count: i64 = sqlx::query_scalar(sql).bind(listed).fetch_one(conn).await?;
                Ok(u32::try_from(count).unwrap_or(u32::MAX))
            })
        })
        .await
    }

    /// Count the runners that have neither stopped nor been found dead. Their number is bounded by nothing but the
    /// fleet, so they are not listed.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn runner_counts(&self) -> Result<RunnerCounts, StoreError> {
        // Reads of clients may keep their connections busy for longer than the metrics wait for this.
        on_pool(&self.shared.pools.loops, "count runners", |conn, _| {
            Box::pin(async move {
                let row = sqlx::query(
                    "SELECT CAST(COALESCE(SUM(r.parent IS NULL AND r.age_us <= r.lease_us), 0) AS SIGNED) AS alive, \
                     CAST(COALESCE(SUM(r.parent IS NULL AND r.age_us <= r.lease_us AND r.slots > 0), 0) AS SIGNED) \
                     AS with_workers, \
                     CAST(COALESCE(SUM(r.parent IS NULL AND r.age_us > r.lease_us), 0) AS SIGNED) AS silent, \
                     COALESCE(MAX(r.age_us), 0) AS oldest_us FROM (SELECT parent, slots, \
                     CAST(lease_ms AS SIGNED) * 1000 AS lease_us, \
                     TIMESTAMPDIFF(MICROSECOND, heartbeat_at, UTC_TIMESTAMP(6)) AS age_us \
                     FROM runners FORCE INDEX (runners_stopped) WHERE stopped_at IS NULL) r",
                )
                .fetch_one(&mut *conn)
                .await?;
                let number = |name: &str| row.try_get::<i64, _>(name).map(|number| u64::try_from(number).unwrap_or(0));
                let (alive, with_workers, silent) = (number("alive")?, number("with_workers")?, number("silent")?);
                let oldest_heartbeat = Duration::from_micros(number("oldest_us")?);
                // Most runners serve the same queues. Those of processes come before those of remote workers.
                let lists = sqlx::query(
                    "SELECT MIN(queues) AS served, CAST(MAX(via = 'process') AS SIGNED) AS of_process \
                     FROM runners FORCE INDEX (runners_stopped) WHERE stopped_at IS NULL \
                     GROUP BY SHA2(queues, 256) ORDER BY of_process DESC LIMIT ?",
                )
                .bind(MAX_QUEUE_LISTS)
                .fetch_all(conn)
                .await?;
                let (mut queues, mut worker_queues) = (BTreeSet::new(), BTreeSet::new());
                for list in &lists {
                    // The row of another version may be unreadable for this binary.
                    let names: Vec<Name> = serde_json::from_str(list.try_get("served")?).unwrap_or_default();
                    let of_process = list.try_get::<i64, _>("of_process")? != 0;
                    if of_process { &mut queues } else { &mut worker_queues }.extend(names);
                }
                Ok(RunnerCounts { alive, with_workers, silent, oldest_heartbeat, queues, worker_queues })
            })
        })
        .await
    }

    /// Read one runner.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn runner(&self, id: RunnerId) -> Result<Option<RunnerSeen>, StoreError> {
        on_pool(&self.shared.pools.reads, "read a runner", move |conn, _| {
            let id = id.clone();
            Box::pin(async move {
                let sql = format!("SELECT {COLUMNS} FROM runners WHERE id = ?");
                let row = statement(sql).bind(id.as_str()).fetch_optional(conn).await?;
                row.as_ref().map(seen).transpose()
            })
        })
        .await
    }

    /// Read the jobs of the workers of these runners, at most `most` per runner, longest running first. Jobs that a
    /// runner started since its last heartbeat may be missing. The number of rows read is bounded, whatever the number
    /// of unfinished jobs.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn worker_jobs(
        &self,
        runners: &[RunnerSeen],
        most: usize,
    ) -> Result<BTreeMap<RunnerId, WorkerJobs>, StoreError> {
        // A runner with more busy workers than may be shown has more jobs, whatever the search finds.
        let crowded = |runner: &RunnerSeen| runner.busy_workers as usize > most;
        let known: BTreeMap<RunnerId, bool> =
            runners.iter().map(|runner| (runner.id.clone(), crowded(runner))).collect();
        let told: Vec<Uuid> =
            runners.iter().flat_map(|runner| runner.worker_jobs.iter().take(most)).map(|id| id.uuid()).collect();
        let queues: BTreeSet<Name> = runners.iter().flat_map(|runner| runner.queues.iter().cloned()).collect();
        let queues: Vec<Name> = queues.into_iter().collect();
        on_pool(&self.shared.pools.reads, "read the jobs of workers", move |conn, _| {
            let (known, told, queues) = (known.clone(), told.clone(), queues.clone());
            Box::pin(async move {
                let mut found = BTreeMap::new();
                // Executing jobs were due, so most of them are at the front of their lane.
                let first = format!(
                    "SELECT {JOB} FROM (SELECT {JOB}, state FROM owed FORCE INDEX (owed_line) WHERE queue = ? AND priority = ? \
                     AND execute_at <= UTC_TIMESTAMP(3) ORDER BY execute_at LIMIT ?) o WHERE state = 'executing'"
                );
                let mut lines = lines_of(conn, &queues).await?;
                lines.truncate(MAX_LINES);
                let most_of_each = MAX_LOOKED_AT / u32::try_from(lines.len().max(1)).unwrap_or(u32::MAX);
                for line in lines {
                    let front = statement(first.clone()).bind(line.queue.as_str()).bind(line.priority.level());
                    for row in &front.bind(most_of_each).fetch_all(&mut *conn).await? {
                        let (runner, job) = worker_job(row)?;
                        found.insert(job.id, (runner, job));
                    }
                }
                let rest: Vec<Uuid> =
                    told.into_iter().filter(|id| !found.contains_key(&JobId::from_uuid(*id))).collect();
                for page in rest.chunks(MAX_ROWS) {
                    for (runner, job) in worker_jobs_of(conn, page).await? {
                        found.insert(job.id, (runner, job));
                    }
                }
                let mut of_runners: BTreeMap<RunnerId, WorkerJobs> = BTreeMap::new();
                for (runner, job) in found.into_values().filter(|(runner, _)| known.contains_key(runner)) {
                    of_runners.entry(runner).or_default().jobs.push(job);
                }
                for (runner, WorkerJobs { jobs, more }) in &mut of_runners {
                    *more = jobs.len() > most || known.get(runner).copied().unwrap_or(false);
                    jobs.sort_by_key(|job| (job.started_at, job.id));
                    jobs.truncate(most);
                }
                Ok(of_runners)
            })
        })
        .await
    }

    /// Return whether this runner is drained: it takes no new work.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn is_drained(&self, id: &RunnerId) -> Result<bool, StoreError> {
        let id = id.clone();
        on_pool(&self.shared.pools.controls, "read whether a runner is drained", move |conn, _| {
            let id = id.clone();
            Box::pin(async move {
                let sql = "SELECT 1 FROM runners WHERE id = ? AND drained_at IS NOT NULL";
                Ok(!rows_as_text(conn, sql, vec![id.as_str().into()]).await?.is_empty())
            })
        })
        .await
    }

    /// Drain a runner, so that it takes no new work, or let it take work again. A request that changes nothing leaves
    /// no audit record.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn drain_runner(
        &self,
        id: RunnerId,
        request: PauseRequest,
        by: &Actor,
    ) -> Result<DrainOutcome, StoreError> {
        let mut act = AuditEntry::new(
            by,
            if request == PauseRequest::No { "runner.resume" } else { "runner.drain" },
            id.as_str(),
        );
        if let PauseRequest::Yes(Some(reason)) = &request {
            act = act.with(serde_json::json!({ "reason": reason }));
        }
        let shared = self.shared.clone();
        transact(&self.shared.pools.controls, "drain a runner", move |conn, earlier| {
            let (shared, id, request, act) = (shared.clone(), id.clone(), request.clone(), act.clone());
            Box::pin(async move {
                let now = read_clock(conn, &shared.clock).await?;
                let sql =
                    "SELECT stopped_at, drained_at, drained_by, drain_reason FROM runners WHERE id = ? FOR UPDATE";
                let Some(row) = sqlx::query(sql).bind(id.as_str()).fetch_optional(&mut *conn).await? else {
                    return Ok(DrainOutcome::Missing);
                };
                if earlier == PriorRun::MayHaveCommitted && was_recorded(conn, &act).await? {
                    return Ok(DrainOutcome::Done);
                }
                if let Some(stopped) = row.try_get("stopped_at")? {
                    return Ok(DrainOutcome::Stopped(stopped));
                }
                let before = drain(&row)?;
                let after = request.apply_to(before.clone(), &act.actor, now);
                if after == before {
                    return Ok(DrainOutcome::Done);
                }
                let after = after.as_ref();
                sqlx::query("UPDATE runners SET drained_at = ?, drained_by = ?, drain_reason = ? WHERE id = ?")
                    .bind(after.map(|drain| drain.at))
                    .bind(after.map(|drain| drain.by.as_str()))
                    .bind(after.and_then(|drain| drain.reason.as_deref()))
                    .bind(id.as_str())
                    .execute(&mut *conn)
                    .await?;
                record(conn, &act, now).await?;
                Ok(DrainOutcome::Done)
            })
        })
        .await
    }
}

/// Return how a list of names in JSON has this one. A name needs no escape.
fn in_list_of_names(name: &Name) -> String {
    format!("\"{name}\"")
}

async fn worker_jobs_of(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<Vec<(RunnerId, WorkerJob)>, sqlx::Error> {
    let list = placeholders(padded_len(ids.len()));
    let sql = format!("SELECT {JOB} FROM owed FORCE INDEX (PRIMARY) WHERE id IN {list} AND state = 'executing'");
    let query = bind_padded(statement(sql), ids);
    query.fetch_all(conn).await?.iter().map(worker_job).collect()
}

fn worker_job(row: &MySqlRow) -> Result<(RunnerId, WorkerJob), sqlx::Error> {
    let (attempt, spared): (u32, u32) = (row.try_get("attempt")?, row.try_get("spared")?);
    let progress: Option<String> = row.try_get("progress")?;
    let job = WorkerJob {
        id: JobId::from_uuid(row.try_get("id")?),
        kind: row.try_get::<String, _>("kind")?.parse().map_err(|_| corrupt("kind"))?,
        queue: row.try_get::<String, _>("queue")?.parse().map_err(|_| corrupt("queue"))?,
        attempt: attempt.saturating_sub(spared),
        max_attempts: row.try_get("max_attempts")?,
        started_at: row.try_get("started_at")?,
        cancel_requested_at: row.try_get("cancel_requested_at")?,
        progress: progress.and_then(|text| serde_json::from_str(&text).ok()),
    };
    Ok((RunnerId::from_stored(row.try_get("runner")?), job))
}

fn seen(row: &MySqlRow) -> Result<RunnerSeen, sqlx::Error> {
    let names = |text: String| serde_json::from_str(&text).map_err(|e| corrupt(e.to_string()));
    let listed: Option<Vec<u8>> = row.try_get("slot_jobs")?;
    let ids = listed.iter().flat_map(|bytes| bytes.chunks_exact(16));
    Ok(RunnerSeen {
        id: RunnerId::from_stored(row.try_get("id")?),
        version: row.try_get("version")?,
        kinds: names(row.try_get("kinds")?)?,
        queues: names(row.try_get("queues")?)?,
        workers: row.try_get("slots")?,
        busy_workers: row.try_get("busy")?,
        started_at: row.try_get("started_at")?,
        heartbeat_at: row.try_get("heartbeat_at")?,
        stopped_at: row.try_get("stopped_at")?,
        heartbeat_age: Duration::from_micros(u64::try_from(row.try_get::<i64, _>("heartbeat_age_us")?).unwrap_or(0)),
        lease: Duration::from_millis(u64::from(row.try_get::<u32, _>("lease_ms")?)),
        host: row.try_get("host")?,
        pid: row.try_get("pid")?,
        clock_skew_ms: row.try_get("clock_skew_ms")?,
        drain: drain(row)?,
        worker_jobs: ids.filter_map(|id| Some(JobId::from_uuid(Uuid::from_slice(id).ok()?))).collect(),
        parent: row.try_get::<Option<String>, _>("parent")?.map(RunnerId::from_stored),
        is_remote: row.try_get::<i64, _>("is_remote")? != 0,
    })
}

/// Read the drain of a runner, if there is one: drained_at, drained_by, drain_reason.
fn drain(row: &MySqlRow) -> Result<Option<Pause>, sqlx::Error> {
    let (at, by): (Option<Timestamp>, Option<String>) = (row.try_get("drained_at")?, row.try_get("drained_by")?);
    let reason = row.try_get("drain_reason")?;
    Ok(at.zip(by).map(|(at, by)| Pause { at, by: Actor::from_stored(by), reason }))
}

/// One live attempt of this runner, as the heartbeat reports it to the store.
#[derive(Clone, Debug)]
pub struct LiveAttempt {
    /// The id of the job.
    pub id: JobId,
    /// The token that allows the renewal.
    pub token: AttemptToken,
    /// The newest progress, if the handler reported any since the last heartbeat.
    pub progress: Option<Progress>,
    /// An instant shortly before the newest claim or renewal of the lease.
    pub leased: Instant,
    /// The attempt has a finish key. The system that has it may have given the attempt a longer lease by a report, and a
    /// heartbeat does not shorten that.
    pub has_finish_key: bool,
}
