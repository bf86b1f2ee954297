//! Schedules: read, declared, changed, paused. What becomes of their ticks is in `ticks.rs`.
//!
//! A change locks the row, so it and the ticks take turns. Whatever was due and seen to by nobody when the times change,
//! or when a pause ends, gets its line in the ledger of ticks in the same transaction: no tick goes without a word.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use serde_json::value::RawValue;
use sqlx::mysql::MySqlRow;
use sqlx::{MySqlConnection, Row};
use uuid::Uuid;

use super::audit::{Act, record, was_recorded};
use super::condition::Condition;
use super::error::{Fault, again, corrupt, fault};
use super::insert::read_clock;
use super::link::{Earlier, Step, on_pool, transact};
use super::queues::Pause;
use super::shape::{pad, padded, places, statement};
use super::ticks::{last_tick_of, pass_over};
use super::{Shared, Store, StoreError};
use crate::job::{
    Actor, Cadence, CronExpression, Dst, JobId, JobOptions, Misfire, Name, Overlap, Schedule, SkipCause, Template,
    Timestamp, Zone, floor_ms,
};

/// A schedule as it stands in the store.
#[derive(Clone, Debug)]
pub struct Scheduled {
    /// Its name.
    pub name: Name,
    /// What it asks for.
    pub schedule: Schedule,
    /// Who owns it.
    pub origin: Origin,
    /// Raised by every change of what it asks for.
    pub version: u32,
    /// The first tick that nobody has seen to; none when there will be none.
    pub next_at: Option<Timestamp>,
    /// The last tick that somebody has seen to.
    pub last_at: Option<Timestamp>,
    /// Its last job.
    pub last_job: Option<JobId>,
    /// Who paused it, if it is paused.
    pub paused: Option<Pause>,
    /// When it was made, and by whom.
    pub created: (Timestamp, Actor),
    /// When what it asks for was last changed, and by whom.
    pub updated: (Timestamp, Actor),
}

impl Scheduled {
    /// What tells this wording of it from all others.
    #[must_use]
    pub fn tag(&self) -> VersionTag {
        VersionTag { created_us: self.created.0.timestamp_micros(), version: self.version }
    }
}

/// Who owns a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Whoever calls the API.
    Api,
    /// The configuration file.
    Config,
}

impl Origin {
    /// Its word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Config => "config",
        }
    }
}

impl Pause {
    /// In words, for the ticks of a schedule that it withholds.
    #[must_use]
    pub fn in_words(&self) -> String {
        let why = self.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        format!("paused by {}{why}", self.by)
    }
}

/// Which wording of a schedule: one that was deleted and made again is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionTag {
    /// When it was made, in unix microseconds.
    pub created_us: i64,
    /// Its version.
    pub version: u32,
}

impl fmt::Display for VersionTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{}", self.created_us, self.version)
    }
}

/// What became of a schedule that was put.
#[derive(Clone, Debug)]
pub enum Put {
    /// It is new.
    Created(Scheduled),
    /// It says something else now.
    Changed(Scheduled),
    /// It said so already; nothing was written.
    Unchanged(Scheduled),
    /// What is there is not what the caller expected. Nothing was written.
    Unexpected,
    /// The configuration file owns it. Nothing was written.
    OwnedByConfig,
}

/// What became of a schedule that was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// It is gone.
    Done,
    /// There is none.
    Missing,
    /// What is there is not what the caller expected. Nothing was written.
    Unexpected,
    /// The configuration file owns it. Nothing was written.
    OwnedByConfig,
}

/// What became of a schedule that was paused or resumed.
#[derive(Clone, Debug)]
pub enum Switched {
    /// It was, and is so now.
    Done(Scheduled),
    /// It was so already; nothing was written.
    Already(Scheduled),
}

/// A schedule that this binary cannot understand: a newer one wrote it, or somebody's hand. Others are read all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableSchedule {
    /// Its name.
    pub name: String,
    /// What cannot be understood.
    pub why: String,
}

/// What is due, and when to look again.
#[derive(Debug)]
pub struct DueSchedules {
    /// The moment, by the database's clock.
    pub now: Timestamp,
    /// Schedules with ticks that are due, first due first.
    pub due: Vec<Result<Scheduled, UnreadableSchedule>>,
    /// When the next one after them is due, as far as this was looked at.
    pub next: Option<Timestamp>,
}

/// Pages of due schedules that one look reads, when those in front cannot be read.
const MOST_PAGES: u32 = 64;

const COLUMNS: &str = "name, cron, every_ms, anchor, zone, dst, misfire, grace_ms, overlap, kind, queue, priority, \
     max_attempts, options, payload, origin, version, next_at, last_at, last_job, paused_at, paused_by, pause_reason, \
     created_at, created_by, updated_at, updated_by";

/// What an earlier run of a change came to, for a run that finds it committed.
type Memory<T> = Arc<Mutex<Option<T>>>;

impl Store {
    /// Declare a schedule: make it, or make it say this. `origin` tells who declares it; the API may not change what the
    /// configuration owns, the configuration takes over what the API made.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn put_schedule(
        &self,
        name: Name,
        schedule: Schedule,
        origin: Origin,
        condition: Condition<VersionTag>,
        by: &Actor,
    ) -> Result<Put, StoreError> {
        let act = Act::new(by, "schedule.put", name.as_str());
        let act = act.with(json!({"cadence": schedule.cadence.describe(), "kind": schedule.template.kind}));
        let wanted = Arc::new((name, schedule, origin, condition));
        self.change("put a schedule", act, move |conn, shared, act| {
            let wanted = Arc::clone(&wanted);
            Box::pin(async move {
                let (name, schedule, origin, condition) = &*wanted;
                put(conn, &shared, name, schedule, *origin, condition, &act).await
            })
        })
        .await
    }

    /// Delete a schedule. Its jobs and the ledger of its ticks stay. What the configuration owns goes only if `undeclared`.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn delete_schedule(
        &self,
        name: Name,
        condition: Condition<VersionTag>,
        undeclared: bool,
        by: &Actor,
    ) -> Result<Deleted, StoreError> {
        let act = Act::new(by, "schedule.delete", name.as_str());
        self.change("delete a schedule", act, move |conn, shared, act| {
            let (name, condition) = (name.clone(), condition.clone());
            Box::pin(async move {
                // Also one that this binary cannot read any more can be deleted.
                let found = sqlx::query("SELECT origin, created_at, version FROM schedules WHERE name = ? FOR UPDATE")
                    .bind(name.as_str())
                    .fetch_optional(&mut *conn)
                    .await?;
                let Some(row) = found else {
                    let asked_for_one = !matches!(condition, Condition::Any | Condition::Absent);
                    return Ok(if asked_for_one { Deleted::Unexpected } else { Deleted::Missing });
                };
                if word(&row, "origin")? == Origin::Config.as_str() && !undeclared {
                    return Ok(Deleted::OwnedByConfig);
                }
                let created: Timestamp = row.try_get("created_at")?;
                let tag = VersionTag { created_us: created.timestamp_micros(), version: row.try_get("version")? };
                if !condition.holds(Some(tag)) {
                    return Ok(Deleted::Unexpected);
                }
                sqlx::query("DELETE FROM schedules WHERE name = ?").bind(name.as_str()).execute(&mut *conn).await?;
                let now = read_clock(conn, &shared.clock).await?;
                record(conn, &act, now).await?;
                Ok(Deleted::Done)
            })
        })
        .await
    }

    /// Let its ticks pass without firing, until it is resumed. Who paused it first stays.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn pause_schedule(
        &self,
        name: Name,
        reason: Option<String>,
        by: &Actor,
    ) -> Result<Option<Switched>, StoreError> {
        let mut act = Act::new(by, "schedule.pause", name.as_str());
        if let Some(reason) = &reason {
            act = act.with(json!({"reason": reason}));
        }
        self.change("pause a schedule", act, move |conn, shared, act| {
            let (name, reason) = (name.clone(), reason.clone());
            Box::pin(async move {
                let Some(mut row) = lock_schedule(conn, &name).await? else { return Ok(None) };
                if row.paused.is_some() {
                    return Ok(Some(Switched::Already(row)));
                }
                let now = read_clock(conn, &shared.clock).await?;
                sqlx::query("UPDATE schedules SET paused_at = ?, paused_by = ?, pause_reason = ? WHERE name = ?")
                    .bind(now)
                    .bind(act.actor.as_str())
                    .bind(reason.as_deref())
                    .bind(name.as_str())
                    .execute(&mut *conn)
                    .await?;
                record(conn, &act, now).await?;
                row.paused = Some(Pause { at: now, by: act.actor.clone(), reason });
                Ok(Some(Switched::Done(row)))
            })
        })
        .await
    }

    /// Let its ticks fire again. What was due while it was paused does not.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn resume_schedule(&self, name: Name, by: &Actor) -> Result<Option<Switched>, StoreError> {
        let act = Act::new(by, "schedule.resume", name.as_str());
        self.change("resume a schedule", act, move |conn, shared, act| {
            let name = name.clone();
            Box::pin(async move {
                let Some(mut row) = lock_schedule(conn, &name).await? else { return Ok(None) };
                let Some(pause) = row.paused.take() else { return Ok(Some(Switched::Already(row))) };
                let now = read_clock(conn, &shared.clock).await?;
                pass_over(conn, &mut row, SkipCause::Paused, &pause.in_words(), &act.actor, now).await?;
                sqlx::query(
                    "UPDATE schedules SET paused_at = NULL, paused_by = NULL, pause_reason = NULL, next_at = ?, last_at = ? \
                     WHERE name = ?",
                )
                .bind(row.next_at)
                .bind(row.last_at)
                .bind(name.as_str())
                .execute(&mut *conn)
                .await?;
                record(conn, &act, now).await?;
                Ok(Some(Switched::Done(row)))
            })
        })
        .await
    }

    /// One schedule.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn schedule(&self, name: Name) -> Result<Option<Scheduled>, StoreError> {
        on_pool(&self.shared.pools.reads, "read a schedule", move |conn, _| {
            let name = name.clone();
            Box::pin(async move { read_one(conn, &name, "").await })
        })
        .await
    }

    /// Schedules in the order of their names, after this one.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn schedules(
        &self,
        after: Option<String>,
        limit: u32,
    ) -> Result<Vec<Result<Scheduled, UnreadableSchedule>>, StoreError> {
        on_pool(&self.shared.pools.reads, "list schedules", move |conn, _| {
            let after = after.clone().unwrap_or_default();
            Box::pin(async move {
                let sql = format!("SELECT {COLUMNS} FROM schedules WHERE name > ? ORDER BY name LIMIT ?");
                statement(sql).bind(after).bind(limit).fetch_all(conn).await?.iter().map(understood).collect()
            })
        })
        .await
    }

    /// The names of schedules that the configuration of some runner declared.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn declared_schedules(&self) -> Result<Vec<String>, StoreError> {
        on_pool(&self.shared.pools.loops, "list declared schedules", move |conn, _| {
            let sql = "SELECT name FROM schedules WHERE origin = 'config' ORDER BY name LIMIT 10000";
            Box::pin(async move { sqlx::query_scalar(sql).fetch_all(conn).await })
        })
        .await
    }

    /// Schedules of these kinds with ticks that are due, but for those named in `without`, and when the next one is. About
    /// `limit` that can be read, behind any number that cannot within `MOST_PAGES` times as many.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn due_schedules(
        &self,
        kinds: Vec<Name>,
        limit: u32,
        without: BTreeSet<String>,
    ) -> Result<DueSchedules, StoreError> {
        let (shared, without) = (self.shared.clone(), Arc::new(without));
        on_pool(&self.shared.pools.loops, "read due schedules", move |conn, _| {
            let (kinds, shared, without) = (kinds.clone(), shared.clone(), Arc::clone(&without));
            Box::pin(async move { read_due(conn, &shared, &kinds, limit, &without).await })
        })
        .await
    }

    /// Run a change in one transaction. One whose COMMIT was not answered is recognised by its row in the audit.
    pub(super) async fn change<T, F>(&self, attempted: &'static str, act: Act, step: F) -> Result<T, StoreError>
    where
        T: Clone + Send + 'static,
        F: for<'c> Fn(&'c mut MySqlConnection, Arc<Shared>, Act) -> Step<'c, T> + Send + Sync + 'static,
    {
        let (shared, memory, step) = (self.shared.clone(), Memory::<T>::default(), Arc::new(step));
        transact(&self.shared.pools.steering, attempted, move |conn, earlier| {
            let (shared, memory, step, act) = (shared.clone(), Arc::clone(&memory), Arc::clone(&step), act.clone());
            Box::pin(async move {
                if earlier == Earlier::MayHaveCommitted && was_recorded(conn, &act).await? {
                    let done = memory.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    return done.ok_or_else(|| corrupt("an action was written down that nobody made"));
                }
                let done = step(conn, shared, act).await?;
                *memory.lock().unwrap_or_else(PoisonError::into_inner) = Some(done.clone());
                Ok(done)
            })
        })
        .await
    }
}

async fn put(
    conn: &mut MySqlConnection,
    shared: &Shared,
    name: &Name,
    schedule: &Schedule,
    origin: Origin,
    condition: &Condition<VersionTag>,
    act: &Act,
) -> Result<Put, sqlx::Error> {
    let found = lock_schedule(conn, name).await?;
    let owned = found.as_ref().is_some_and(|row| row.origin == Origin::Config);
    if owned && origin == Origin::Api {
        return Ok(Put::OwnedByConfig);
    }
    if !condition.holds(found.as_ref().map(Scheduled::tag)) {
        return Ok(Put::Unexpected);
    }
    if let Some(row) = &found
        && row.origin == origin
        && schedule.says_the_same(&row.schedule)
    {
        return Ok(Put::Unchanged(row.clone()));
    }
    let now = read_clock(conn, &shared.clock).await?;
    let (by, schedule) = (&act.actor, &anchored(schedule, now));
    let put = match found {
        None => {
            // The clock may have been set back since an earlier schedule of this name ticked.
            let after = last_tick_of(conn, name).await?.map_or(now, |last| last.max(now));
            let row = Scheduled {
                name: name.clone(),
                schedule: schedule.clone(),
                origin,
                version: 1,
                next_at: schedule.cadence.next_after(after),
                last_at: None,
                last_job: None,
                paused: None,
                created: (now, by.clone()),
                updated: (now, by.clone()),
            };
            insert(conn, &row).await?;
            Put::Created(row)
        }
        Some(mut row) => {
            if schedule.ticks_the_same(&row.schedule) {
                let cadence = row.schedule.cadence.clone();
                row.schedule = Schedule { cadence, ..schedule.clone() };
            } else {
                let (cause, why) = match &row.paused {
                    Some(pause) => (SkipCause::Paused, pause.in_words()),
                    None => (SkipCause::Changed, format!("changed by {by}")),
                };
                pass_over(conn, &mut row, cause, &why, by, now).await?;
                row.schedule = schedule.clone();
                row.next_at = schedule.cadence.next_after(row.last_at.map_or(now, |last| last.max(now)));
            }
            row.origin = origin;
            row.version += 1;
            row.updated = (now, by.clone());
            update(conn, &row).await?;
            Put::Changed(row)
        }
    };
    record(conn, act, now).await?;
    Ok(put)
}

/// An interval that does not say where it begins, begins now by the store's clock: it ticks first when it is over.
fn anchored(schedule: &Schedule, now: Timestamp) -> Schedule {
    let mut schedule = schedule.clone();
    if let Cadence::Every { anchor, .. } = &mut schedule.cadence
        && schedule.unanchored
    {
        *anchor = floor_ms(now);
    }
    schedule
}

/// What stands in the columns of what a schedule asks for, in the order of their names.
const WISHES: &str = "cron, every_ms, anchor, zone, dst, misfire, grace_ms, overlap, kind, queue, priority, \
     max_attempts, options, payload, origin, version, next_at, last_at, updated_at, updated_by";

macro_rules! bind_wishes {
    ($query:expr, $row:expr, $options:expr) => {{
        let (schedule, template) = (&$row.schedule, &$row.schedule.template);
        let (cron, every_ms, anchor, dst) = cadence_columns(&schedule.cadence);
        $query
            .bind(cron)
            .bind(every_ms)
            .bind(anchor)
            .bind(schedule.zone.name())
            .bind(dst.as_str())
            .bind(schedule.misfire.as_str())
            .bind(u32::try_from(schedule.grace.as_millis()).unwrap_or(u32::MAX))
            .bind(schedule.overlap.as_str())
            .bind(template.kind.as_str())
            .bind(template.queue.as_str())
            .bind(template.priority.level())
            .bind(template.max_attempts)
            .bind($options)
            .bind(template.payload.get())
            .bind($row.origin.as_str())
            .bind($row.version)
            .bind($row.next_at)
            .bind($row.last_at)
            .bind($row.updated.0)
            .bind($row.updated.1.as_str())
    }};
}

async fn insert(conn: &mut MySqlConnection, row: &Scheduled) -> Result<(), sqlx::Error> {
    let options = options_of(&row.schedule.template)?;
    let sql = format!("INSERT INTO schedules ({WISHES}, name, created_at, created_by) VALUES {}", places(23));
    let query = bind_wishes!(statement(sql), row, options);
    let query = query.bind(row.name.as_str()).bind(row.created.0).bind(row.created.1.as_str());
    match query.execute(conn).await {
        // Somebody else made it since we looked.
        Err(e) if fault(&e) == Fault::Duplicate => Err(again("a schedule was made meanwhile")),
        done => done.map(drop),
    }
}

async fn update(conn: &mut MySqlConnection, row: &Scheduled) -> Result<(), sqlx::Error> {
    let options = options_of(&row.schedule.template)?;
    let columns: Vec<String> = WISHES.split(", ").map(|column| format!("{} = ?", column.trim())).collect();
    let sql = format!("UPDATE schedules SET {} WHERE name = ?", columns.join(", "));
    bind_wishes!(statement(sql), row, options).bind(row.name.as_str()).execute(conn).await.map(drop)
}

fn cadence_columns(cadence: &Cadence) -> (Option<&str>, Option<u64>, Option<Timestamp>, Dst) {
    match cadence {
        Cadence::Cron { cron, dst, .. } => (Some(cron.as_str()), None, None, *dst),
        Cadence::Every { every, anchor } => {
            (None, u64::try_from(every.as_millis()).ok(), Some(*anchor), Dst::default())
        }
    }
}

fn options_of(template: &Template) -> Result<Option<String>, sqlx::Error> {
    let options = JobOptions { timeout_ms: template.timeout_ms, retry: template.retry, ..JobOptions::default() };
    let text = (!options.is_default()).then(|| serde_json::to_string(&options)).transpose();
    text.map_err(|e| sqlx::Error::Encode(Box::new(e)))
}

/// Lock a schedule and read it.
pub(super) async fn lock_schedule(conn: &mut MySqlConnection, name: &Name) -> Result<Option<Scheduled>, sqlx::Error> {
    read_one(conn, name, "FOR UPDATE").await
}

async fn read_one(
    conn: &mut MySqlConnection,
    name: &Name,
    lock: &'static str,
) -> Result<Option<Scheduled>, sqlx::Error> {
    let sql = format!("SELECT {COLUMNS} FROM schedules WHERE name = ? {lock}");
    statement(sql).bind(name.as_str()).fetch_optional(conn).await?.as_ref().map(read).transpose()
}

async fn read_due(
    conn: &mut MySqlConnection,
    shared: &Shared,
    kinds: &[Name],
    limit: u32,
    without: &BTreeSet<String>,
) -> Result<DueSchedules, sqlx::Error> {
    // The narrow look first: most of the time nothing is due.
    let sql = format!(
        "SELECT name, next_at FROM schedules FORCE INDEX (schedules_next) WHERE next_at IS NOT NULL AND kind IN {} \
         ORDER BY next_at, name LIMIT ? OFFSET ?",
        places(padded(kinds.len()))
    );
    let now = read_clock(conn, &shared.clock).await?;
    let mut found = DueSchedules { now, due: Vec::new(), next: None };
    let mut readable = 0;
    // Those that this binary cannot read, or is asked to leave out, stay due in front, and must not hide the others.
    for page in 0..MOST_PAGES {
        let mut query = statement(sql.clone());
        for kind in pad(&kinds.iter().collect::<Vec<_>>()) {
            query = query.bind(kind.as_str());
        }
        let ahead: Vec<(String, Timestamp)> = query
            .bind(limit + 1)
            .bind(page * limit)
            .fetch_all(&mut *conn)
            .await?
            .iter()
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
            .collect::<Result<_, sqlx::Error>>()?;
        found.next = ahead.iter().map(|(_, next)| *next).find(|next| *next > now);
        let due = ahead.iter().take(limit as usize).filter(|(name, next)| *next <= now && !without.contains(name));
        let names: Vec<&str> = due.map(|(name, _)| name.as_str()).collect();
        if !names.is_empty() {
            let sql = format!("SELECT {COLUMNS} FROM schedules WHERE name IN {}", places(padded(names.len())));
            let mut query = statement(sql);
            for name in pad(&names) {
                query = query.bind(name);
            }
            for row in query.fetch_all(&mut *conn).await? {
                let row = understood(&row)?;
                readable += u32::from(row.is_ok());
                found.due.push(row);
            }
        }
        if readable >= limit || found.next.is_some() || ahead.len() <= limit as usize {
            break;
        }
    }
    found.due.sort_by_key(|row| row.as_ref().ok().and_then(|row| row.next_at));
    Ok(found)
}

/// The schedule of a row, or why it is none to this binary: one bad row keeps nobody from the others.
fn understood(row: &MySqlRow) -> Result<Result<Scheduled, UnreadableSchedule>, sqlx::Error> {
    let name = word(row, "name")?;
    Ok(read(row).map_err(|error| UnreadableSchedule { name, why: reason(error) }))
}

/// What cannot be understood, without the words that the driver puts around it.
fn reason(error: sqlx::Error) -> String {
    match error {
        sqlx::Error::Decode(what) => what.to_string(),
        other => other.to_string(),
    }
}

fn read(row: &MySqlRow) -> Result<Scheduled, sqlx::Error> {
    let name: Name = word(row, "name")?.parse().map_err(|_| corrupt("name"))?;
    let paused_at: Option<Timestamp> = row.try_get("paused_at")?;
    let paused = match paused_at {
        None => None,
        Some(at) => {
            Some(Pause { at, by: Actor::from_stored(row.try_get("paused_by")?), reason: row.try_get("pause_reason")? })
        }
    };
    let origin = match word(row, "origin")?.as_str() {
        "api" => Origin::Api,
        "config" => Origin::Config,
        _ => return Err(corrupt("origin")),
    };
    let last_job: Option<Uuid> = row.try_get("last_job")?;
    Ok(Scheduled {
        name,
        schedule: read_schedule(row)?,
        origin,
        version: row.try_get("version")?,
        next_at: row.try_get("next_at")?,
        last_at: row.try_get("last_at")?,
        last_job: last_job.map(JobId::from_uuid),
        paused,
        created: (row.try_get("created_at")?, Actor::from_stored(row.try_get("created_by")?)),
        updated: (row.try_get("updated_at")?, Actor::from_stored(row.try_get("updated_by")?)),
    })
}

/// When the schedule of a row ticks, and whose clock people read its times by.
pub(super) fn read_cadence(row: &MySqlRow) -> Result<(Cadence, Zone), sqlx::Error> {
    let zone = word(row, "zone")?;
    let zone = Zone::named(&zone).map_err(|unknown| corrupt(format!("zone {zone} {unknown}")))?;
    let (cron, every_ms): (Option<String>, Option<u64>) = (row.try_get("cron")?, row.try_get("every_ms")?);
    let dst = Dst::from_word(&word(row, "dst")?).ok_or_else(|| corrupt("dst"))?;
    let cadence = match (cron, every_ms) {
        (Some(text), _) => {
            let cron = CronExpression::parse(&text).map_err(|why| corrupt(format!("{text:?} {why}")))?;
            Cadence::Cron { cron, zone, dst }
        }
        (None, Some(ms)) => Cadence::Every { every: Duration::from_millis(ms), anchor: row.try_get("anchor")? },
        (None, None) => return Err(corrupt("no cadence")),
    };
    Ok((cadence, zone))
}

fn read_schedule(row: &MySqlRow) -> Result<Schedule, sqlx::Error> {
    let (cadence, zone) = read_cadence(row)?;
    let options: Option<String> = row.try_get("options")?;
    let options: JobOptions = match options {
        Some(text) => serde_json::from_str(&text).map_err(|e| corrupt(format!("options: {e}")))?,
        None => JobOptions::default(),
    };
    Ok(Schedule {
        cadence,
        unanchored: false,
        zone,
        misfire: Misfire::from_word(&word(row, "misfire")?).ok_or_else(|| corrupt("misfire"))?,
        grace: Duration::from_millis(u64::from(row.try_get::<u32, _>("grace_ms")?)),
        overlap: Overlap::from_word(&word(row, "overlap")?).ok_or_else(|| corrupt("overlap"))?,
        template: Template {
            kind: word(row, "kind")?.parse().map_err(|_| corrupt("kind"))?,
            payload: RawValue::from_string(row.try_get("payload")?).map_err(|e| corrupt(format!("payload: {e}")))?,
            queue: word(row, "queue")?.parse().map_err(|_| corrupt("queue"))?,
            priority: row.try_get::<u8, _>("priority")?.try_into().map_err(corrupt)?,
            max_attempts: row.try_get("max_attempts")?,
            timeout_ms: options.timeout_ms,
            retry: options.retry,
        },
    })
}

fn word(row: &MySqlRow, column: &str) -> Result<String, sqlx::Error> {
    row.try_get(column)
}
