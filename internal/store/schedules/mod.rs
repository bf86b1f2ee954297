//! Schedules: read, declared, changed, paused. Their ticks are handled in `ticks.rs`.
//!
//! A change locks the row of the schedule, so that changes and ticks take turns. When the times change or a pause ends,
//! ticks may be due that no runner has handled. The same transaction records them in the ledger of ticks, so that every
//! tick has a record.
//!
//! - `ticks.rs`: the ticks of schedules and their ledger.

pub(super) mod ticks;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use serde_json::value::RawValue;
use sqlx::mysql::MySqlRow;
use sqlx::{MySqlConnection, Row};
use uuid::Uuid;

use crate::job::{
    Actor, Cadence, CronExpression, Dst, JobId, JobOptions, Misfire, Name, Overlap, Schedule, SkipCause, Template,
    Timestamp, Zone, floor_ms,
};
use crate::store::audit::{Act, record, was_recorded};
use crate::store::jobs::condition::Condition;
use crate::store::jobs::insert::read_clock;
use crate::store::queues::Pause;
use crate::store::schedules::ticks::{last_tick_of, pass_over};
use crate::store::sql::batches::{pad, padded, places, statement};
use crate::store::sql::connection::{Earlier, Step, on_pool, transact};
use crate::store::sql::error::{Fault, again, corrupt, fault};
use crate::store::{Shared, Store, StoreError};

/// A schedule as it is stored.
#[derive(Clone, Debug)]
pub struct Scheduled {
    /// The name of the schedule.
    pub name: Name,
    /// The definition of the schedule.
    pub schedule: Schedule,
    /// The owner of the schedule.
    pub origin: Origin,
    /// The version. Every change of the definition increments it.
    pub version: u32,
    /// The first tick that has not been handled yet; absent if there will be none.
    pub next_at: Option<Timestamp>,
    /// The last tick that has been handled.
    pub last_at: Option<Timestamp>,
    /// The last job that it made.
    pub last_job: Option<JobId>,
    /// The pause, if it is paused.
    pub paused: Option<Pause>,
    /// Time and actor of its creation.
    pub created: (Timestamp, Actor),
    /// Time and actor of the last change of the definition.
    pub updated: (Timestamp, Actor),
}

impl Scheduled {
    /// Return the tag of this version of the schedule.
    #[must_use]
    pub fn tag(&self) -> VersionTag {
        VersionTag { created_us: self.created.0.timestamp_micros(), version: self.version }
    }
}

/// The owner of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Clients of the API.
    Api,
    /// The configuration file.
    Config,
}

impl Origin {
    /// Return the word used in the store and the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Config => "config",
        }
    }
}

impl Pause {
    /// Return the reason that is recorded for the ticks skipped during this pause.
    #[must_use]
    pub fn in_words(&self) -> String {
        let why = self.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        format!("paused by {}{why}", self.by)
    }
}

/// A version of a schedule. A schedule that was deleted and created again has a different tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionTag {
    /// Time of its creation, in unix microseconds.
    pub created_us: i64,
    /// The version of the schedule.
    pub version: u32,
}

impl fmt::Display for VersionTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{}", self.created_us, self.version)
    }
}

/// Outcome of a put.
#[derive(Clone, Debug)]
pub enum Put {
    /// The schedule was created.
    Created(Scheduled),
    /// The schedule was changed.
    Changed(Scheduled),
    /// The schedule was the same already. Nothing was written.
    Unchanged(Scheduled),
    /// The stored version does not meet the caller's condition. Nothing was written.
    Unexpected,
    /// The configuration file owns the schedule. Nothing was written.
    OwnedByConfig,
}

/// Outcome of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// The schedule was deleted.
    Done,
    /// There is no such schedule.
    Missing,
    /// The stored version does not meet the caller's condition. Nothing was written.
    Unexpected,
    /// The configuration file owns the schedule. Nothing was written.
    OwnedByConfig,
}

/// Outcome of a pause or a resume.
#[derive(Clone, Debug)]
pub enum Switched {
    /// The schedule was paused or resumed.
    Done(Scheduled),
    /// The schedule was in that condition already. Nothing was written.
    Already(Scheduled),
}

/// A schedule that this binary cannot read, because a newer binary wrote it or because it was changed by hand in MySQL.
/// The other schedules are read all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableSchedule {
    /// The name of the schedule.
    pub name: String,
    /// The error.
    pub why: String,
}

/// Schedules that are due, and the time of the next read.
#[derive(Debug)]
pub struct DueSchedules {
    /// The time of the read, by the database's clock.
    pub now: Timestamp,
    /// Schedules with due ticks, the earliest first.
    pub due: Vec<Result<Scheduled, UnreadableSchedule>>,
    /// Due time of the next schedule after them, as far as the read looked.
    pub next: Option<Timestamp>,
}

/// Most pages of due schedules in one read, when those in front cannot be read.
const MAX_PAGES: u32 = 64;

const COLUMNS: &str = "name, cron, every_ms, anchor, zone, dst, misfire, grace_ms, overlap, kind, queue, priority, \
     max_attempts, options, payload, origin, version, next_at, last_at, last_job, paused_at, paused_by, pause_reason, \
     created_at, created_by, updated_at, updated_by";

/// The result of an earlier run of a change. A later run returns it when it finds that the earlier one has committed.
type Memory<T> = Arc<Mutex<Option<T>>>;

impl Store {
    /// Create or change a schedule, so that it equals `schedule`. `origin` says who declares it. The API may not change
    /// a schedule that the configuration owns. The configuration takes over a schedule that the API created.
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
        self.change("create or change a schedule", act, move |conn, shared, act| {
            let wanted = Arc::clone(&wanted);
            Box::pin(async move {
                let (name, schedule, origin, condition) = &*wanted;
                put(conn, &shared, name, schedule, *origin, condition, &act).await
            })
        })
        .await
    }

    /// Delete a schedule. Its jobs and the ledger of its ticks stay. A schedule that the configuration owns is deleted
    /// only if `undeclared`.
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
                // Read only these columns, so that a schedule that this binary cannot read can be deleted too.
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

    /// Pause a schedule: its ticks do not fire until it is resumed. If it is paused already, the first pause stays.
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

    /// Resume a schedule: its ticks fire again. Ticks that were due during the pause are recorded as skipped.
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

    /// Read one schedule.
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

    /// List schedules in the order of their names, after this name.
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

    /// List the names of schedules that the configuration of a runner declared, at most 10,000.
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

    /// Read the due schedules of these kinds, except those named in `without`, and the due time of the next one. About
    /// `limit` readable schedules are returned. Unreadable ones in front of them are passed over, up to `MAX_PAGES`
    /// pages.
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

    /// Run a change in one transaction. A change whose COMMIT was not answered is recognised by its audit record.
    pub(in crate::store) async fn change<T, F>(
        &self,
        attempted: &'static str,
        act: Act,
        step: F,
    ) -> Result<T, StoreError>
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
                    return done.ok_or_else(|| corrupt("an audit record exists for an action that was not taken"));
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
            // The clock may have been set back since the last tick of an earlier schedule with this name.
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

/// Set the anchor of an interval that has none to the current time of the store. Its first tick is then one interval
/// from now.
fn anchored(schedule: &Schedule, now: Timestamp) -> Schedule {
    let mut schedule = schedule.clone();
    if let Cadence::Every { anchor, .. } = &mut schedule.cadence
        && schedule.unanchored
    {
        *anchor = floor_ms(now);
    }
    schedule
}

/// Columns of a schedule's definition and state, in the order in which `bind_wishes` binds them.
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
        // Another transaction inserted it after the read.
        Err(e) if fault(&e) == Fault::Duplicate => Err(again("a schedule was created meanwhile")),
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
pub(crate) async fn lock_schedule(conn: &mut MySqlConnection, name: &Name) -> Result<Option<Scheduled>, sqlx::Error> {
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
    // Read only names and times first, because most of the time nothing is due.
    let sql = format!(
        "SELECT name, next_at FROM schedules FORCE INDEX (schedules_next) WHERE next_at IS NOT NULL AND kind IN {} \
         ORDER BY next_at, name LIMIT ? OFFSET ?",
        places(padded(kinds.len()))
    );
    let now = read_clock(conn, &shared.clock).await?;
    let mut found = DueSchedules { now, due: Vec::new(), next: None };
    let mut readable = 0;
    // Schedules that this binary cannot read, or that the caller excludes, stay due and stay in front. They must not
    // hide the others.
    for page in 0..MAX_PAGES {
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

/// Read the schedule of a row, or return the error for this one schedule, so that one bad row does not hide the others.
fn understood(row: &MySqlRow) -> Result<Result<Scheduled, UnreadableSchedule>, sqlx::Error> {
    let name = word(row, "name")?;
    Ok(read(row).map_err(|error| UnreadableSchedule { name, why: reason(error) }))
}

/// Return the message of an error, without the text that the driver puts around it.
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

/// Read the cadence of a schedule, and the time zone in which people read its times.
pub(crate) fn read_cadence(row: &MySqlRow) -> Result<(Cadence, Zone), sqlx::Error> {
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
