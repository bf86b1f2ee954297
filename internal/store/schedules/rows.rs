//! Rows of `schedules`: read, locked, and changed in one transaction.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::value::RawValue;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::audit::{AuditEntry, was_recorded};
use crate::queues::Pause;
use crate::sql::batches::statement;
use crate::sql::connection::{DbFuture, PriorRun};
use crate::sql::error::corrupt;
use crate::sql::pools::transact_in_turn;
use crate::sql::session::Session;
use crate::sql::turns::Subject;
use crate::{Store, StoreError, StoreInner};
use tickr_job::{
    Actor, Cadence, CronExpression, Dst, JobId, Misfire, Name, Overlap, Schedule, Template, TemplateOptions, Timestamp,
    Zone,
};

/// A schedule as it is stored.
#[derive(Clone, Debug)]
pub struct Scheduled {
    /// The name of the schedule.
    pub name: Name,
    /// The definition of the schedule.
    pub schedule: Schedule,
    /// The owner of the schedule.
    pub origin: ScheduleOrigin,
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
pub enum ScheduleOrigin {
    /// Clients of the API.
    Api,
    /// The configuration file.
    Config,
}

impl ScheduleOrigin {
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

/// A schedule that this binary cannot read, because a newer binary wrote it or because it was changed by hand in MySQL.
/// The other schedules are read all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableSchedule {
    /// The name of the schedule.
    pub name: String,
    /// The error.
    pub why: String,
}

pub(crate) const COLUMNS: &str = "name, cron, every_ms, anchor, zone, dst, misfire, grace_ms, overlap, kind, queue, priority, \
     max_attempts, options, payload, origin, version, next_at, last_at, last_job, paused_at, paused_by, pause_reason, \
     created_at, created_by, updated_at, updated_by";

/// Lock a schedule and read it.
pub(crate) async fn lock_schedule(conn: &mut Session<'_>, name: &Name) -> Result<Option<Scheduled>, sqlx::Error> {
    read_one(conn, name, "FOR UPDATE").await
}

/// A schedule that is locked to be replaced.
pub(crate) struct Replaced {
    /// The schedule. If this binary cannot read its definition, the new definition stands in for it.
    pub row: Scheduled,
    /// True if this binary can read its definition.
    pub is_readable: bool,
}

/// Lock a schedule and read it, to put `wanted` in place of its definition. A definition that this binary cannot read
/// may be replaced as well.
pub(crate) async fn lock_to_replace(
    conn: &mut Session<'_>,
    name: &Name,
    wanted: &Schedule,
) -> Result<Option<Replaced>, sqlx::Error> {
    let sql = format!("SELECT {COLUMNS} FROM schedules WHERE name = ? FOR UPDATE");
    let Some(row) = statement(sql).bind(name.as_str()).fetch_optional(conn).await? else { return Ok(None) };
    let definition = read_schedule(&row);
    let is_readable = definition.is_ok();
    let row = read_with(&row, definition.unwrap_or_else(|_| wanted.clone()))?;
    Ok(Some(Replaced { row, is_readable }))
}

pub(crate) async fn read_one(
    conn: &mut Session<'_>,
    name: &Name,
    lock: &'static str,
) -> Result<Option<Scheduled>, sqlx::Error> {
    let sql = format!("SELECT {COLUMNS} FROM schedules WHERE name = ? {lock}");
    statement(sql).bind(name.as_str()).fetch_optional(conn).await?.as_ref().map(read).transpose()
}

/// Read the schedule of a row, or return the error for this one schedule, so that one bad row does not hide the others.
pub(crate) fn understood(row: &MySqlRow) -> Result<Result<Scheduled, UnreadableSchedule>, sqlx::Error> {
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

pub(crate) fn read(row: &MySqlRow) -> Result<Scheduled, sqlx::Error> {
    read_with(row, read_schedule(row)?)
}

/// Read a schedule whose definition is `schedule`.
fn read_with(row: &MySqlRow, schedule: Schedule) -> Result<Scheduled, sqlx::Error> {
    let name: Name = word(row, "name")?.parse().map_err(|_| corrupt("name"))?;
    let paused_at: Option<Timestamp> = row.try_get("paused_at")?;
    let paused = match paused_at {
        None => None,
        Some(at) => {
            Some(Pause { at, by: Actor::from_stored(row.try_get("paused_by")?), reason: row.try_get("pause_reason")? })
        }
    };
    let origin = match word(row, "origin")?.as_str() {
        "api" => ScheduleOrigin::Api,
        "config" => ScheduleOrigin::Config,
        _ => return Err(corrupt("origin")),
    };
    let last_job: Option<Uuid> = row.try_get("last_job")?;
    Ok(Scheduled {
        name,
        schedule,
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
    let options = match options {
        Some(text) => TemplateOptions::from_stored(&text).map_err(|e| corrupt(format!("options: {e}")))?,
        None => TemplateOptions::default(),
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
            order: options.order,
            limit_key: options.limit_key,
            expires_in_ms: options.expires_in_ms,
            tags: options.tags,
        },
    })
}

pub(crate) fn word(row: &MySqlRow, column: &str) -> Result<String, sqlx::Error> {
    row.try_get(column)
}

/// Return what a change of this schedule may have to wait for.
pub(super) fn subjects_of(name: &Name) -> BTreeSet<Subject> {
    BTreeSet::from([Subject::Schedule(name.clone()), Subject::Change])
}

/// The result of an earlier run of a change. A later run returns it when it finds that the earlier one has committed.
type PriorResult<T> = Arc<Mutex<Option<T>>>;

impl Store {
    /// Run a change in one transaction, once it is the turn of these subjects. A change whose COMMIT was not answered
    /// is recognised by its audit record.
    pub(super) async fn change<T, F>(
        &self,
        attempted: &'static str,
        subjects: BTreeSet<Subject>,
        act: AuditEntry,
        step: F,
    ) -> Result<T, StoreError>
    where
        T: Clone + Send + 'static,
        F: for<'c> Fn(&'c mut Session<'_>, Arc<StoreInner>, AuditEntry) -> DbFuture<'c, T> + Send + Sync + 'static,
    {
        let (shared, memory, step) = (self.shared.clone(), PriorResult::<T>::default(), Arc::new(step));
        transact_in_turn(&self.shared.pools, subjects, attempted, move |conn, earlier| {
            let (shared, memory, step, act) = (shared.clone(), Arc::clone(&memory), Arc::clone(&step), act.clone());
            Box::pin(async move {
                if earlier == PriorRun::MayHaveCommitted && was_recorded(conn, &act).await? {
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
