//! The runners as people see them and what they ask of them: the list, the jobs in their slots, drain.
//!
//! Executing jobs have no index of their own, and shall not get one, because every claim and every settle would pay for
//! it. They are found in two ways, neither of which searches the owed rows: each runner writes the ids in its slots down
//! with its beat, which finds what has run for a while; and what executes was due, so most of it stands at the front of
//! its line, which finds what has just begun. A job that began since the last beat behind a long backlog shows
//! with the next.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sqlx::mysql::MySqlRow;
use sqlx::{MySqlConnection, Row};
use uuid::Uuid;

use super::audit::{Act, record, was_recorded};
use super::error::corrupt;
use super::insert::read_clock;
use super::lease::LiveAttempt;
use super::line::lines_of;
use super::link::{Earlier, on_pool, transact};
use super::queues::{Pause, Paused};
use super::shape::{MOST_ROWS, pad, padded, places, statement};
use super::{Store, StoreError};
use crate::job::{Actor, JobId, Name, Progress, RunnerId, Timestamp};

/// Most jobs in slots that a runner writes down; the column has room for so many.
pub const MOST_SLOT_JOBS: usize = 200;
/// Rows at the front of the lines that are looked at for executing ones, and most lines.
const MOST_LOOKED_AT: u32 = 2_000;
const MOST_LINES: usize = 100;

/// One line of the list of runners.
#[derive(Clone, Debug)]
pub struct RunnerSeen {
    /// Its identity.
    pub id: RunnerId,
    /// Version of its binary.
    pub version: String,
    /// Kinds it can run.
    pub kinds: Vec<Name>,
    /// Queues it serves.
    pub queues: Vec<Name>,
    /// Worker slots, and how many were busy at the last beat.
    pub slots: u32,
    /// Busy slots at the last beat.
    pub busy: u32,
    /// When it started.
    pub started_at: Timestamp,
    /// Its last beat.
    pub heartbeat_at: Timestamp,
    /// How long ago that was, by the store's clock.
    pub heartbeat_age: Duration,
    /// When it said goodbye or was found dead.
    pub stopped_at: Option<Timestamp>,
    /// How long it may be silent before its jobs are taken away.
    pub lease: Duration,
    /// The host it runs on, and its process there; unknown of older binaries.
    pub host: Option<String>,
    /// Its process.
    pub pid: Option<u32>,
    /// Its clock minus the store's at its last beat, in milliseconds.
    pub clock_skew_ms: Option<i64>,
    /// Since when it is asked to take no new work, and why.
    pub drain: Option<Pause>,
    /// The jobs in its slots at its last beat, as far as they were written down.
    pub slot_jobs: Vec<JobId>,
    /// The runner whose suspect it runs, if it is such a process. It has no slots: it uses one of that runner.
    pub parent: Option<RunnerId>,
}

impl RunnerSeen {
    /// Does it live, and take new work? A process that runs one suspect takes no more than that.
    #[must_use]
    pub const fn takes_jobs(&self) -> bool {
        self.stopped_at.is_none() && self.drain.is_none() && self.parent.is_none()
    }
}

/// A job in a slot.
#[derive(Clone, Debug)]
pub struct SlotJob {
    /// The job.
    pub id: JobId,
    /// Its kind.
    pub kind: Name,
    /// Its queue.
    pub queue: Name,
    /// Attempts that count, this one included.
    pub attempt: u32,
    /// How many may be burned.
    pub max_attempts: u32,
    /// When the attempt began.
    pub started_at: Timestamp,
    /// When its stop was asked for.
    pub cancel_requested_at: Option<Timestamp>,
    /// What it said last of its progress.
    pub progress: Option<Progress>,
}

/// The jobs in the slots of one runner.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    /// The longest running first.
    pub jobs: Vec<SlotJob>,
    /// There are more.
    pub more: bool,
}

/// What became of a wish about a runner.
#[derive(Clone, Debug)]
pub enum Drained {
    /// It is so now, or was so before.
    Done,
    /// It has stopped.
    Stopped(Timestamp),
    /// Nobody has ever heard of it.
    Missing,
}

const COLUMNS: &str = "id, version, kinds, queues, slots, busy, started_at, heartbeat_at, stopped_at, \
     TIMESTAMPDIFF(MICROSECOND, heartbeat_at, UTC_TIMESTAMP(6)), lease_ms, host, pid, clock_skew_ms, drained_at, \
     drained_by, drain_reason, slot_jobs, parent";

const SLOT: &str = "id, kind, queue, attempt, spared, max_attempts, started_at, cancel_requested_at, progress, runner";

/// The ids that a runner writes down: those of the first attempts, in an order that depends on nothing else.
pub(super) fn slot_jobs(live: &[LiveAttempt]) -> Vec<u8> {
    let mut ids: Vec<Uuid> = live.iter().take(MOST_SLOT_JOBS).map(|attempt| attempt.id.uuid()).collect();
    ids.sort_unstable();
    ids.iter().flat_map(|id| *id.as_bytes()).collect()
}

impl Store {
    /// The newest living runners, then those that stopped last; of the processes that run one suspect each only those that
    /// live. Reads as many rows as it returns, and those of suspects that stopped meanwhile, however many runners there ever
    /// were.
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

    /// One runner.
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

    /// The jobs in the slots of these runners, at most `most` of each, the longest running first. What a runner began since
    /// its last beat may be missing. Looks at a bounded number of rows, however many are owed.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn slot_jobs(
        &self,
        runners: &[RunnerSeen],
        most: usize,
    ) -> Result<BTreeMap<RunnerId, Slots>, StoreError> {
        // With more busy slots than it may show, a runner has more, whatever is found.
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
                // What executes was due, so most of it stands at the front of its line.
                let first = format!(
                    "SELECT {SLOT} FROM (SELECT {SLOT}, state FROM owed FORCE INDEX (owed_line) WHERE queue = ? AND priority = ? \
                     AND execute_at <= UTC_TIMESTAMP(3) ORDER BY execute_at LIMIT ?) o WHERE state = 'executing'"
                );
                let mut lines = lines_of(conn, &queues).await?;
                lines.truncate(MOST_LINES);
                let most_of_each = MOST_LOOKED_AT / u32::try_from(lines.len().max(1)).unwrap_or(u32::MAX);
                for line in lines {
                    let front = statement(first.clone()).bind(line.queue.as_str()).bind(line.priority.level());
                    for row in &front.bind(most_of_each).fetch_all(&mut *conn).await? {
                        let (runner, job) = slot_job(row)?;
                        found.insert(job.id, (runner, job));
                    }
                }
                let rest: Vec<Uuid> =
                    told.into_iter().filter(|id| !found.contains_key(&JobId::from_uuid(*id))).collect();
                for page in rest.chunks(MOST_ROWS) {
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

    /// Is this runner asked to take no new work?
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn is_drained(&self, id: &RunnerId) -> Result<bool, StoreError> {
        let id = id.clone();
        on_pool(&self.shared.pools.controls, "read whether to take work", move |conn, _| {
            let id = id.clone();
            Box::pin(async move {
                let sql = "SELECT drained_at IS NOT NULL FROM runners WHERE id = ?";
                let drained: Option<bool> = sqlx::query_scalar(sql).bind(id.as_str()).fetch_optional(conn).await?;
                Ok(drained.unwrap_or(false))
            })
        })
        .await
    }

    /// Ask a runner to take no new work, or to take work again. A wish that changes nothing leaves no line in the audit.
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

/// The drain in the columns from `first` on.
fn drain(row: &MySqlRow, first: usize) -> Result<Option<Pause>, sqlx::Error> {
    let (at, by): (Option<Timestamp>, Option<String>) = (row.try_get(first)?, row.try_get(first + 1)?);
    let reason = row.try_get(first + 2)?;
    Ok(at.zip(by).map(|(at, by)| Pause { at, by: Actor::from_stored(by), reason }))
}
