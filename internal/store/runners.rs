//! Runners for operators: the list of runners, the jobs in their slots, and drain.
//!
//! Executing jobs have no index of their own. Every claim and every settle would have to pay for one. They are found in
//! two ways, and neither scans the `owed` rows. First, each runner writes the ids of the jobs in its slots with its
//! heartbeat; this finds jobs that have run for a while. Second, an executing job was due, so most of them are at the
//! front of their lane; this finds jobs that have just started. A job that started since the last heartbeat behind a
//! long backlog is shown after the next heartbeat.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sqlx::mysql::MySqlRow;
use sqlx::{MySqlConnection, Row};
use uuid::Uuid;

use crate::job::{Actor, JobId, Name, Progress, RunnerId, Timestamp};
use crate::store::attempts::lease::LiveAttempt;
use crate::store::audit::{Act, record, was_recorded};
use crate::store::jobs::insert::read_clock;
use crate::store::jobs::lanes::lines_of;
use crate::store::queues::{Pause, Paused};
use crate::store::sql::batches::{MAX_ROWS, pad, padded, places, statement};
use crate::store::sql::connection::{Earlier, on_pool, transact};
use crate::store::sql::error::corrupt;
use crate::store::{Store, StoreError};

/// Most jobs that a runner lists with its heartbeat. The size of the column allows no more.
pub const MAX_SLOT_JOBS: usize = 200;
/// Most rows at the front of all lanes that are searched for executing jobs, and most lanes.
const MAX_LOOKED_AT: u32 = 2_000;
const MAX_LINES: usize = 100;

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
    /// Number of its worker slots.
    pub slots: u32,
    /// Number of slots that were busy at the last heartbeat.
    pub busy: u32,
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
    /// The jobs in its slots at the last heartbeat, at most [`MAX_SLOT_JOBS`].
    pub slot_jobs: Vec<JobId>,
    /// The runner that started this process to run a suspect; absent for an ordinary runner. Such a process has no
    /// slots of its own: it uses one of that runner.
    pub parent: Option<RunnerId>,
}

impl RunnerSeen {
    /// Return whether it is alive and takes new work. A process for a suspect takes no more than its one job.
    #[must_use]
    pub const fn takes_jobs(&self) -> bool {
        self.stopped_at.is_none() && self.drain.is_none() && self.parent.is_none()
    }
}

/// A job in a slot.
#[derive(Clone, Debug)]
pub struct SlotJob {
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

/// The jobs in the slots of one runner.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    /// The jobs, longest running first.
    pub jobs: Vec<SlotJob>,
    /// True if there are more.
    pub more: bool,
}

/// Outcome of a request to drain or resume a runner.
#[derive(Clone, Debug)]
pub enum Drained {
    /// Done, or it was so before.
    Done,
    /// The runner has stopped, at this time.
    Stopped(Timestamp),
    /// There is no runner with this id.
    Missing,
}

const COLUMNS: &str = "id, version, kinds, queues, slots, busy, started_at, heartbeat_at, stopped_at, \
     TIMESTAMPDIFF(MICROSECOND, heartbeat_at, UTC_TIMESTAMP(6)), lease_ms, host, pid, clock_skew_ms, drained_at, \
     drained_by, drain_reason, slot_jobs, parent";

const SLOT: &str = "id, kind, queue, attempt, spared, max_attempts, started_at, cancel_requested_at, progress, runner";

/// Return the ids that a runner lists, as bytes: those of the first attempts, sorted, so that equal sets give equal
/// bytes.
pub(super) fn slot_jobs(live: &[LiveAttempt]) -> Vec<u8> {
    let mut ids: Vec<Uuid> = live.iter().take(MAX_SLOT_JOBS).map(|attempt| attempt.id.uuid()).collect();
    ids.sort_unstable();
    ids.iter().flat_map(|id| *id.as_bytes()).collect()
}

impl Store {
    /// List the newest living runners, then those that stopped last. Processes for suspects are listed only while they
    /// are alive. The number of rows read depends on `limit`, plus the processes for suspects that stopped meanwhile,
    /// and not on the total number of runners.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn runners(&self, limit: u32) -> Result<Vec<RunnerSeen>, StoreError> {
        on_pool(&self.shared.pools.reads, "list runners", move |conn, _| {
            Box::pin(async move {
                let living = format!(
                    "SELECT {COLUMNS} FROM runners FORCE INDEX (runners_stopped) WHERE stopped_at IS NULL \
                     ORDER BY started_at DESC LIMIT ?"
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

    /// Read one runner.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
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

    /// Read the jobs in the slots of these runners, at most `most` per runner, longest running first. Jobs that a
    /// runner started since its last heartbeat may be missing. The number of rows read is bounded, whatever the number
    /// of unfinished jobs.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn slot_jobs(
        &self,
        runners: &[RunnerSeen],
        most: usize,
    ) -> Result<BTreeMap<RunnerId, Slots>, StoreError> {
        // A runner with more busy slots than may be shown has more jobs, whatever the search finds.
        let crowded = |runner: &RunnerSeen| runner.busy as usize > most;
        let known: BTreeMap<RunnerId, bool> =
            runners.iter().map(|runner| (runner.id.clone(), crowded(runner))).collect();
        let told: Vec<Uuid> =
            runners.iter().flat_map(|runner| runner.slot_jobs.iter().take(most)).map(|id| id.uuid()).collect();
        let queues: BTreeSet<Name> = runners.iter().flat_map(|runner| runner.queues.iter().cloned()).collect();
        let queues: Vec<Name> = queues.into_iter().collect();
        on_pool(&self.shared.pools.reads, "read the jobs in slots", move |conn, _| {
            let (known, told, queues) = (known.clone(), told.clone(), queues.clone());
            Box::pin(async move {
                let mut found = BTreeMap::new();
                // Executing jobs were due, so most of them are at the front of their lane.
                let first = format!(
                    "SELECT {SLOT} FROM (SELECT {SLOT}, state FROM owed FORCE INDEX (owed_line) WHERE queue = ? AND priority = ? \
                     AND execute_at <= UTC_TIMESTAMP(3) ORDER BY execute_at LIMIT ?) o WHERE state = 'executing'"
                );
                let mut lines = lines_of(conn, &queues).await?;
                lines.truncate(MAX_LINES);
                let most_of_each = MAX_LOOKED_AT / u32::try_from(lines.len().max(1)).unwrap_or(u32::MAX);
                for line in lines {
                    let front = statement(first.clone()).bind(line.queue.as_str()).bind(line.priority.level());
                    for row in &front.bind(most_of_each).fetch_all(&mut *conn).await? {
                        let (runner, job) = slot_job(row)?;
                        found.insert(job.id, (runner, job));
                    }
                }
                let rest: Vec<Uuid> =
                    told.into_iter().filter(|id| !found.contains_key(&JobId::from_uuid(*id))).collect();
                for page in rest.chunks(MAX_ROWS) {
                    for (runner, job) in slots_of(conn, page).await? {
                        found.insert(job.id, (runner, job));
                    }
                }
                let mut slots: BTreeMap<RunnerId, Slots> = BTreeMap::new();
                for (runner, job) in found.into_values().filter(|(runner, _)| known.contains_key(runner)) {
                    slots.entry(runner).or_default().jobs.push(job);
                }
                for (runner, Slots { jobs, more }) in &mut slots {
                    *more = jobs.len() > most || known.get(runner).copied().unwrap_or(false);
                    jobs.sort_by_key(|job| (job.started_at, job.id));
                    jobs.truncate(most);
                }
                Ok(slots)
            })
        })
        .await
    }

    /// Return whether this runner is drained: it takes no new work.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn is_drained(&self, id: &RunnerId) -> Result<bool, StoreError> {
        let id = id.clone();
        on_pool(&self.shared.pools.controls, "read whether a runner is drained", move |conn, _| {
            let id = id.clone();
            Box::pin(async move {
                let sql = "SELECT drained_at IS NOT NULL FROM runners WHERE id = ?";
                let drained: Option<bool> = sqlx::query_scalar(sql).bind(id.as_str()).fetch_optional(conn).await?;
                Ok(drained.unwrap_or(false))
            })
        })
        .await
    }

    /// Drain a runner, so that it takes no new work, or let it take work again. A request that changes nothing leaves
    /// no audit record.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn drain_runner(&self, id: RunnerId, wish: Paused, by: &Actor) -> Result<Drained, StoreError> {
        let mut act = Act::new(by, if wish == Paused::No { "runner.resume" } else { "runner.drain" }, id.as_str());
        if let Paused::Yes(Some(reason)) = &wish {
            act = act.with(serde_json::json!({ "reason": reason }));
        }
        let shared = self.shared.clone();
        transact(&self.shared.pools.controls, "drain a runner", move |conn, earlier| {
            let (shared, id, wish, act) = (shared.clone(), id.clone(), wish.clone(), act.clone());
            Box::pin(async move {
                let now = read_clock(conn, &shared.clock).await?;
                let sql =
                    "SELECT stopped_at, drained_at, drained_by, drain_reason FROM runners WHERE id = ? FOR UPDATE";
                let Some(row) = sqlx::query(sql).bind(id.as_str()).fetch_optional(&mut *conn).await? else {
                    return Ok(Drained::Missing);
                };
                if earlier == Earlier::MayHaveCommitted && was_recorded(conn, &act).await? {
                    return Ok(Drained::Done);
                }
                if let Some(stopped) = row.try_get(0)? {
                    return Ok(Drained::Stopped(stopped));
                }
                let before = drain(&row, 1)?;
                let after = wish.applied(before.clone(), &act.actor, now);
                if after == before {
                    return Ok(Drained::Done);
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
                Ok(Drained::Done)
            })
        })
        .await
    }
}

async fn slots_of(conn: &mut MySqlConnection, ids: &[Uuid]) -> Result<Vec<(RunnerId, SlotJob)>, sqlx::Error> {
    let list = places(padded(ids.len()));
    let sql = format!("SELECT {SLOT} FROM owed FORCE INDEX (PRIMARY) WHERE id IN {list} AND state = 'executing'");
    let mut query = statement(sql);
    for id in pad(ids) {
        query = query.bind(id);
    }
    query.fetch_all(conn).await?.iter().map(slot_job).collect()
}

fn slot_job(row: &MySqlRow) -> Result<(RunnerId, SlotJob), sqlx::Error> {
    let (attempt, spared): (u32, u32) = (row.try_get(3)?, row.try_get(4)?);
    let progress: Option<String> = row.try_get(8)?;
    let job = SlotJob {
        id: JobId::from_uuid(row.try_get(0)?),
        kind: row.try_get::<String, _>(1)?.parse().map_err(|_| corrupt("kind"))?,
        queue: row.try_get::<String, _>(2)?.parse().map_err(|_| corrupt("queue"))?,
        attempt: attempt.saturating_sub(spared),
        max_attempts: row.try_get(5)?,
        started_at: row.try_get(6)?,
        cancel_requested_at: row.try_get(7)?,
        progress: progress.and_then(|text| serde_json::from_str(&text).ok()),
    };
    Ok((RunnerId::from_stored(row.try_get(9)?), job))
}

fn seen(row: &MySqlRow) -> Result<RunnerSeen, sqlx::Error> {
    let names = |text: String| serde_json::from_str(&text).map_err(|e| corrupt(e.to_string()));
    let in_slots: Option<Vec<u8>> = row.try_get(17)?;
    let ids = in_slots.iter().flat_map(|bytes| bytes.chunks_exact(16));
    Ok(RunnerSeen {
        id: RunnerId::from_stored(row.try_get(0)?),
        version: row.try_get(1)?,
        kinds: names(row.try_get(2)?)?,
        queues: names(row.try_get(3)?)?,
        slots: row.try_get(4)?,
        busy: row.try_get(5)?,
        started_at: row.try_get(6)?,
        heartbeat_at: row.try_get(7)?,
        stopped_at: row.try_get(8)?,
        heartbeat_age: Duration::from_micros(u64::try_from(row.try_get::<i64, _>(9)?).unwrap_or(0)),
        lease: Duration::from_millis(u64::from(row.try_get::<u32, _>(10)?)),
        host: row.try_get(11)?,
        pid: row.try_get(12)?,
        clock_skew_ms: row.try_get(13)?,
        drain: drain(row, 14)?,
        slot_jobs: ids.filter_map(|id| Some(JobId::from_uuid(Uuid::from_slice(id).ok()?))).collect(),
        parent: row.try_get::<Option<String>, _>(18)?.map(RunnerId::from_stored),
    })
}

/// Read the drain from the columns that begin at `first`.
fn drain(row: &MySqlRow, first: usize) -> Result<Option<Pause>, sqlx::Error> {
    let (at, by): (Option<Timestamp>, Option<String>) = (row.try_get(first)?, row.try_get(first + 1)?);
    let reason = row.try_get(first + 2)?;
    Ok(at.zip(by).map(|(at, by)| Pause { at, by: Actor::from_stored(by), reason }))
}
