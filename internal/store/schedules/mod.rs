//! Schedules: read, declared, changed, paused. Their ticks are handled in `ticks.rs`.
//!
//! A change locks the row of the schedule, so that changes and ticks take turns. When the times change or a pause ends,
//! ticks may be due that no runner has handled. The same transaction records them in the ledger of ticks, so that every
//! tick has a record.
//!
//! - `day.rs`: the ticks of the last day in slots of time.
//! - `forecast.rs`: jobs and ticks that become due in the next hours.
//! - `previous.rs`: the jobs that may be in the way of the next one.
//! - `rows.rs`: rows of schedules, read, locked, and changed in one transaction.
//! - `ticks.rs`: the ticks of schedules and their ledger.

pub(super) mod day;
pub(super) mod forecast;
mod previous;
pub(super) mod rows;
pub(super) mod ticks;

use std::collections::BTreeSet;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use serde_json::json;
use sqlx::Row;

use crate::audit::{AuditEntry, record};
use crate::jobs::condition::Condition;
use crate::queues::Pause;
use crate::schedules::rows::{
    COLUMNS, Replaced, ScheduleOrigin, Scheduled, UnreadableSchedule, VersionTag, lock_schedule, lock_to_replace,
    read_one, subjects_of, understood, word,
};
use crate::schedules::ticks::{last_tick_of, pass_over};
use crate::sql::batches::{bind_padded, padded_len, placeholders, statement};
use crate::sql::clock::read_clock;
use crate::sql::connection::on_pool;
use crate::sql::error::{Fault, again, fault};
use crate::sql::session::Session;
use crate::{Store, StoreError, StoreInner};
use tickr_job::{Actor, Cadence, Dst, ForOlder, Name, Schedule, SkipCause, Timestamp};

/// Outcome of a put.
#[derive(Clone, Debug)]
pub enum PutOutcome {
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
pub enum DeleteOutcome {
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
pub enum PauseOutcome {
    /// The schedule was paused or resumed.
    Done(Scheduled),
    /// The schedule was in that condition already. Nothing was written.
    Already(Scheduled),
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

impl Store {
    /// Create or change a schedule, so that it equals `schedule`. `origin` says who declares it. The API may not change
    /// a schedule that the configuration owns. The configuration takes over a schedule that the API created. A schedule
    /// that this binary cannot read is replaced; which of its old ticks are due is not known, so they get no record.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn put_schedule(
        &self,
        name: Name,
        schedule: Schedule,
        origin: ScheduleOrigin,
        condition: Condition<VersionTag>,
        by: &Actor,
    ) -> Result<PutOutcome, StoreError> {
        let act = AuditEntry::new(by, "schedule.put", name.as_str());
        let act = act.with(json!({"cadence": schedule.cadence.describe(), "kind": schedule.template.kind}));
        let subjects = subjects_of(&name);
        let wanted = Arc::new((name, schedule, origin, condition));
        self.change("create or change a schedule", subjects, act, move |conn, shared, act| {
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
    #[boxed]
    pub async fn delete_schedule(
        &self,
        name: Name,
        condition: Condition<VersionTag>,
        undeclared: bool,
        by: &Actor,
    ) -> Result<DeleteOutcome, StoreError> {
        let act = AuditEntry::new(by, "schedule.delete", name.as_str());
        self.change("delete a schedule", subjects_of(&name), act, move |conn, shared, act| {
            let (name, condition) = (name.clone(), condition.clone());
            Box::pin(async move {
                // Read only these columns, so that a schedule that this binary cannot read can be deleted too.
                let found = sqlx::query("SELECT origin, created_at, version FROM schedules WHERE name = ? FOR UPDATE")
                    .bind(name.as_str())
                    .fetch_optional(&mut *conn)
                    .await?;
                let Some(row) = found else {
                    let asked_for_one = !matches!(condition, Condition::Any | Condition::Absent);
                    return Ok(if asked_for_one { DeleteOutcome::Unexpected } else { DeleteOutcome::Missing });
                };
                if word(&row, "origin")? == ScheduleOrigin::Config.as_str() && !undeclared {
                    return Ok(DeleteOutcome::OwnedByConfig);
                }
                let created: Timestamp = row.try_get("created_at")?;
                let tag = VersionTag { created_us: created.timestamp_micros(), version: row.try_get("version")? };
                if !condition.is_met_by(Some(tag)) {
                    return Ok(DeleteOutcome::Unexpected);
                }
                sqlx::query("DELETE FROM schedules WHERE name = ?").bind(name.as_str()).execute(&mut *conn).await?;
                let now = read_clock(conn, &shared.clock).await?;
                record(conn, &act, now).await?;
                Ok(DeleteOutcome::Done)
            })
        })
        .await
    }

    /// Pause a schedule: its ticks do not fire until it is resumed. If it is paused already, the first pause stays.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn pause_schedule(
        &self,
        name: Name,
        reason: Option<String>,
        by: &Actor,
    ) -> Result<Option<PauseOutcome>, StoreError> {
        let mut act = AuditEntry::new(by, "schedule.pause", name.as_str());
        if let Some(reason) = &reason {
            act = act.with(json!({"reason": reason}));
        }
        self.change("pause a schedule", subjects_of(&name), act, move |conn, shared, act| {
            let (name, reason) = (name.clone(), reason.clone());
            Box::pin(async move {
                let Some(mut row) = lock_schedule(conn, &name).await? else { return Ok(None) };
                if row.paused.is_some() {
                    return Ok(Some(PauseOutcome::Already(row)));
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
                Ok(Some(PauseOutcome::Done(row)))
            })
        })
        .await
    }

    /// Resume a schedule: its ticks fire again. Ticks that were due during the pause are recorded as skipped.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn resume_schedule(&self, name: Name, by: &Actor) -> Result<Option<PauseOutcome>, StoreError> {
        let act = AuditEntry::new(by, "schedule.resume", name.as_str());
        self.change("resume a schedule", subjects_of(&name), act, move |conn, shared, act| {
            let name = name.clone();
            Box::pin(async move {
                let Some(mut row) = lock_schedule(conn, &name).await? else { return Ok(None) };
                let Some(pause) = row.paused.take() else { return Ok(Some(PauseOutcome::Already(row))) };
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
                Ok(Some(PauseOutcome::Done(row)))
            })
        })
        .await
    }

    /// Read one schedule.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn schedule(&self, name: Name) -> Result<Option<Scheduled>, StoreError> {
        on_pool(&self.shared.pools.reads, "read a schedule", move |conn, _| {
            let name = name.clone();
            Box::pin(async move { read_one(conn, &name, "").await })
        })
        .await
    }

    /// Return the error for a schedule that this binary cannot read. Nothing if it can, or if there is no such
    /// schedule.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn unreadable_schedule(&self, name: Name) -> Result<Option<UnreadableSchedule>, StoreError> {
        on_pool(&self.shared.pools.reads, "read why a schedule cannot be read", move |conn, _| {
            let name = name.clone();
            Box::pin(async move {
                let sql = format!("SELECT {COLUMNS} FROM schedules WHERE name = ?");
                let found = statement(sql).bind(name.as_str()).fetch_optional(conn).await?;
                Ok(found.as_ref().map(understood).transpose()?.and_then(Result::err))
            })
        })
        .await
    }

    /// List schedules in the order of their names, after this name.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
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
    #[boxed]
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
    #[boxed]
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
}

async fn put(
    conn: &mut Session<'_>,
    shared: &StoreInner,
    name: &Name,
    schedule: &Schedule,
    origin: ScheduleOrigin,
    condition: &Condition<VersionTag>,
    act: &AuditEntry,
) -> Result<PutOutcome, sqlx::Error> {
    let found = lock_to_replace(conn, name, schedule).await?;
    let owned = found.as_ref().is_some_and(|found| found.row.origin == ScheduleOrigin::Config);
    if owned && origin == ScheduleOrigin::Api {
        return Ok(PutOutcome::OwnedByConfig);
    }
    if !condition.is_met_by(found.as_ref().map(|found| found.row.tag())) {
        return Ok(PutOutcome::Unexpected);
    }
    if let Some(Replaced { row, is_readable: true }) = &found
        && row.origin == origin
        && schedule.is_equivalent_to(&row.schedule)
    {
        return Ok(PutOutcome::Unchanged(row.clone()));
    }
    let now = read_clock(conn, &shared.clock).await?;
    let (by, schedule) = (&act.actor, &schedule.clone().declared_at(now));
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
            PutOutcome::Created(row)
        }
        Some(mut found) => {
            redefine(conn, &mut found, schedule, by, now).await?;
            let mut row = found.row;
            row.origin = origin;
            row.version += 1;
            row.updated = (now, by.clone());
            update(conn, &row).await?;
            PutOutcome::Changed(row)
        }
    };
    record(conn, act, now).await?;
    Ok(put)
}

/// Put `schedule` in place of the definition of a locked schedule. Move its next tick if the times differ.
async fn redefine(
    conn: &mut Session<'_>,
    found: &mut Replaced,
    schedule: &Schedule,
    by: &Actor,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let Replaced { row, is_readable } = found;
    if *is_readable && schedule.ticks_the_same(&row.schedule) {
        let cadence = row.schedule.cadence.clone();
        row.schedule = Schedule { cadence, ..schedule.clone() };
        return Ok(());
    }
    if row.last_at.is_none() {
        // It has not ticked yet, but an earlier schedule with its name has, by a clock that was ahead.
        row.last_at = last_tick_of(conn, &row.name).await?;
    }
    // Only a binary that reads the old times can tell which ticks of them are due.
    if *is_readable {
        let (cause, why) = match &row.paused {
            Some(pause) => (SkipCause::Paused, pause.in_words()),
            None => (SkipCause::Changed, format!("changed by {by}")),
        };
        pass_over(conn, row, cause, &why, by, now).await?;
    }
    row.schedule = schedule.clone();
    row.next_at = schedule.cadence.next_after(row.last_at.map_or(now, |last| last.max(now)));
    Ok(())
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

async fn insert(conn: &mut Session<'_>, row: &Scheduled) -> Result<(), sqlx::Error> {
    let options = options_of(row)?;
    let sql = format!("INSERT INTO schedules ({WISHES}, name, created_at, created_by) VALUES {}", placeholders(23));
    let query = bind_wishes!(statement(sql), row, options);
    let query = query.bind(row.name.as_str()).bind(row.created.0).bind(row.created.1.as_str());
    match query.execute(conn).await {
        // Another transaction inserted it after the read.
        Err(e) if fault(&e) == Fault::Duplicate => Err(again("a schedule was created meanwhile")),
        done => done.map(drop),
    }
}

async fn update(conn: &mut Session<'_>, row: &Scheduled) -> Result<(), sqlx::Error> {
    let options = options_of(row)?;
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

fn options_of(row: &Scheduled) -> Result<Option<String>, sqlx::Error> {
    let for_older = match row.origin {
        ScheduleOrigin::Api => ForOlder::Unreadable,
        // An older runner declares its own schedules at its start, and could not start after a rollback.
        ScheduleOrigin::Config => ForOlder::Reduced,
    };
    row.schedule.template.options().to_stored(for_older).map_err(|e| sqlx::Error::Encode(Box::new(e)))
}

async fn read_due(
    conn: &mut Session<'_>,
    shared: &StoreInner,
    kinds: &[Name],
    limit: u32,
    without: &BTreeSet<String>,
) -> Result<DueSchedules, sqlx::Error> {
    // Read only names and times first, because most of the time nothing is due.
    let sql = format!(
        "SELECT name, next_at FROM schedules FORCE INDEX (schedules_next) WHERE next_at IS NOT NULL AND kind IN {} \
         ORDER BY next_at, name LIMIT ? OFFSET ?",
        placeholders(padded_len(kinds.len()))
    );
    let kinds: Vec<&str> = kinds.iter().map(Name::as_str).collect();
    let now = read_clock(conn, &shared.clock).await?;
    let mut found = DueSchedules { now, due: Vec::new(), next: None };
    let mut readable = 0;
    // Schedules that this binary cannot read, or that the caller excludes, stay due and stay in front. They must not
    // hide the others.
    for page in 0..MAX_PAGES {
        let query = bind_padded(statement(sql.clone()), &kinds);
        let ahead: Vec<(String, Timestamp)> = query
            .bind(limit + 1)
            .bind(page * limit)
            .fetch_all(&mut *conn)
            .await?
            .iter()
            .map(|row| Ok((row.try_get("name")?, row.try_get("next_at")?)))
            .collect::<Result<_, sqlx::Error>>()?;
        found.next = ahead.iter().map(|(_, next)| *next).find(|next| *next > now);
        let due = ahead.iter().take(limit as usize).filter(|(name, next)| *next <= now && !without.contains(name));
        let names: Vec<&str> = due.map(|(name, _)| name.as_str()).collect();
        if !names.is_empty() {
            let sql =
                format!("SELECT {COLUMNS} FROM schedules WHERE name IN {}", placeholders(padded_len(names.len())));
            let query = bind_padded(statement(sql), &names);
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
