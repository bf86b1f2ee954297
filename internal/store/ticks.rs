//! What becomes of the ticks of schedules: fired exactly once, skipped with a reason, and kept in a ledger.
//!
//! Any number of runners may plan the same ticks. Whoever locks the row of the schedule first and finds it as the plan
//! expects carries the plan out: lines in the ledger, jobs, and the next tick, in one transaction. The others find that it
//! has moved on, and do nothing. So a crash at any moment leaves all of it or none.
//!
//! The order of locks is: schedules in the order of their names, the owed rows of previous jobs in id order, then new rows,
//! and the tallies last. Nobody who holds an owed row asks for a schedule.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::TimeDelta;
use serde_json::json;
use sqlx::mysql::MySqlRow;
use sqlx::{MySqlConnection, Row};
use uuid::Uuid;

use super::audit::{Act, record};
use super::error::corrupt;
use super::insert::{Accepted, accepted_at, read_clock, receipts, write_jobs};
use super::link::{Earlier, on_pool, transact};
use super::once::{Once, Outcome, Wording, find, keep, lost};
use super::operate::cancel_waiting;
use super::schedules::{Scheduled, lock_schedule};
use super::script::{Script, Value};
use super::settle::{Owed, count, lock_held};
use super::shape::{pad, padded, places, statement};
use super::{Shared, Store, StoreError};
use crate::job::{
    Actor, Event, Fate, JobId, Name, NewJob, Overlap, Planned, Situation, SkipCause, State, Timestamp, floor_ms,
    limits, next, plan,
};

/// Lines that one page of a listing may look at before it says "go on from here".
const MOST_LOOKED_AT: i64 = 20_000;
/// Lines forgotten in one page.
const PAGE: u32 = 1_000;

/// What is to become of some due ticks of one schedule.
#[derive(Clone, Debug)]
pub struct TickPlan {
    /// The schedule, as it was read: the plan counts only while it is so.
    pub row: Scheduled,
    /// Line by line, in order of time. A line that fires has its job.
    pub lines: Vec<PlannedLine>,
    /// The first tick that is not in the plan.
    pub next: Option<Timestamp>,
}

/// What is to become of a tick, or of several that share a line.
#[derive(Clone, Debug)]
pub struct PlannedLine {
    /// When, and what.
    pub planned: Planned,
    /// The job, if it fires.
    pub job: Option<NewJob>,
    /// Why not, in words, if it does not.
    pub reason: Option<String>,
}

/// What plans came to.
#[derive(Clone, Debug, Default)]
pub struct Ticked {
    /// Lines that were written, with how late they were.
    pub lines: Vec<TickLine>,
    /// The receipts of the jobs.
    pub accepted: Vec<Accepted>,
    /// Previous jobs that waited and were cancelled.
    pub cancelled: Vec<JobId>,
    /// Previous jobs that execute and were asked to stop.
    pub asked: Vec<JobId>,
    /// Plans that somebody else had carried out, or that a change had overtaken.
    pub overtaken: usize,
}

/// A line of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TickLine {
    /// The schedule.
    pub schedule: Name,
    /// When it was due; the first of several.
    pub due_at: Timestamp,
    /// 0 for a tick of the schedule's own; from 1, somebody pulled the trigger in this millisecond.
    pub number: u16,
    /// Why it was skipped; none when it fired.
    pub cause: Option<SkipCause>,
    /// The same in words.
    pub reason: Option<String>,
    /// How many ticks share the line, counted to ten thousand.
    pub ticks: u32,
    /// The job, if it fired.
    pub job: Option<JobId>,
    /// When this was written.
    pub recorded_at: Timestamp,
    /// Who saw to it.
    pub recorded_by: Actor,
}

/// A page of the ledger, newest first.
#[derive(Debug)]
pub struct TickPage {
    /// The lines.
    pub lines: Vec<TickLine>,
    /// Go on before this one; absent at the end.
    pub next: Option<(Timestamp, u16)>,
}

/// What became of a trigger.
#[derive(Clone, Debug)]
pub enum Triggered {
    /// It fired.
    Fired(Box<Ticked>),
    /// The schedule's previous job is in the way, by its overlap policy. Nothing was written.
    Busy(JobId, State),
    /// The schedule was changed since it was read.
    Changed,
    /// There is none.
    Missing,
}

impl Store {
    /// Carry out plans, each if its schedule still is as it was read. `runner` is who does it.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn tick(&self, mut plans: Vec<TickPlan>, runner: &Actor) -> Result<Ticked, StoreError> {
        plans.sort_by(|a, b| a.row.name.cmp(&b.row.name));
        let (plans, shared, runner) = (Arc::new(plans), self.shared.clone(), runner.clone());
        let memory: Arc<Mutex<Option<Ticked>>> = Arc::default();
        transact(&self.shared.pools.loops, "fire ticks", move |conn, earlier| {
            let (plans, shared, runner) = (Arc::clone(&plans), shared.clone(), runner.clone());
            let memory = Arc::clone(&memory);
            Box::pin(async move {
                if earlier == Earlier::MayHaveCommitted {
                    let done = memory.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    if let Some(done) = done
                        && is_written(conn, &plans).await?
                    {
                        return Ok(done);
                    }
                }
                let ticked = carry_out(conn, &shared, &plans, &runner).await?;
                *memory.lock().unwrap_or_else(PoisonError::into_inner) = Some(ticked.clone());
                Ok(ticked)
            })
        })
        .await
    }

    /// Fire a schedule now, because somebody asked. `job` was made from the schedule as `row` says it; `overlap` is the
    /// policy for this once, instead of the schedule's own.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn trigger_schedule(
        &self,
        row: &Scheduled,
        job: NewJob,
        overlap: Option<Overlap>,
        by: &Actor,
    ) -> Result<Triggered, StoreError> {
        let mut act = Act::new(by, "schedule.trigger", row.name.as_str());
        act = act.with(json!({"job": job.id}));
        let row = Arc::new(row.clone());
        self.change("trigger a schedule", act, move |conn, shared, act| {
            let (row, job) = (Arc::clone(&row), job.clone());
            Box::pin(async move { trigger(conn, &shared, &row, job, overlap, &act).await })
        })
        .await
    }

    /// As [`trigger_schedule`](Self::trigger_schedule), at most once for the key of `once`. `word` words the receipt.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn trigger_schedule_once(
        &self,
        row: &Scheduled,
        job: NewJob,
        overlap: Option<Overlap>,
        by: &Actor,
        once: Once,
        word: Wording<Accepted>,
    ) -> Result<Outcome<Triggered>, StoreError> {
        let mut act = Act::new(by, "schedule.trigger", row.name.as_str());
        act = act.with(json!({"job": job.id}));
        let (row, shared) = (Arc::new(row.clone()), self.shared.clone());
        transact(&self.shared.pools.steering, "trigger a schedule once", move |conn, _| {
            let (row, job, shared, act) = (Arc::clone(&row), job.clone(), shared.clone(), act.clone());
            let (once, word) = (once.clone(), Arc::clone(&word));
            Box::pin(async move {
                // The same request twice takes turns at the schedule's row. A repeated run finds its own row.
                lock_schedule(conn, &row.name).await?;
                if let Some(kept) = find(conn, &once).await? {
                    return Ok(kept.meet(&once, None));
                }
                let triggered = trigger(conn, &shared, &row, job, overlap, &act).await?;
                let Triggered::Fired(ticked) = &triggered else { return Ok(Outcome::Refused(triggered)) };
                let accepted = ticked.accepted.first().ok_or_else(|| corrupt("a trigger without a job"))?;
                let answer = word(accepted);
                if let Err(error) = keep(conn, &mut [(&once, &answer)], accepted.created_at).await {
                    return lost(conn, &once, error).await;
                }
                Ok(Outcome::First { done: Some(triggered), answer })
            })
        })
        .await
    }

    /// The ledger of a schedule, newest first, before this line: all of it, or only what fired, or did not.
    ///
    /// A page looks at a bounded number of lines; it may come back short and still have a `next`.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn ticks(
        &self,
        name: Name,
        fired: Option<bool>,
        before: Option<(Timestamp, u16)>,
        limit: u32,
    ) -> Result<TickPage, StoreError> {
        on_pool(&self.shared.pools.reads, "read the ticks of a schedule", move |conn, _| {
            let name = name.clone();
            Box::pin(async move { page(conn, &name, fired, before, limit).await })
        })
        .await
    }

    /// Forget ticks that were recorded longer ago than `keep`, one page of the first schedule after `after` that has any;
    /// how many, and the schedule to go on after, if that was not the last.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn purge_ticks(&self, after: String, keep: Duration) -> Result<(u64, Option<String>), StoreError> {
        let shared = self.shared.clone();
        transact(&self.shared.pools.loops, "purge ticks", move |conn, _| {
            let (after, shared) = (after.clone(), shared.clone());
            Box::pin(async move {
                let found: Option<String> =
                    sqlx::query_scalar("SELECT schedule FROM ticks WHERE schedule > ? ORDER BY schedule LIMIT 1")
                        .bind(&after)
                        .fetch_optional(&mut *conn)
                        .await?;
                let Some(name) = found else { return Ok((0, None)) };
                let now = read_clock(conn, &shared.clock).await?;
                let before = now - TimeDelta::from_std(keep).unwrap_or(TimeDelta::MAX / 4);
                let done = sqlx::query(
                    "DELETE FROM ticks WHERE schedule = ? AND due_at < ? AND recorded_at < ? \
                     ORDER BY schedule, due_at, number LIMIT ?",
                )
                .bind(&name)
                .bind(before)
                .bind(before)
                .bind(PAGE)
                .execute(&mut *conn)
                .await?;
                let gone = done.rows_affected();
                // A full page may not have been all of it.
                Ok((gone, Some(if gone == u64::from(PAGE) { after } else { name })))
            })
        })
        .await
    }
}

/// The commit of an earlier run may have arrived. It wrote all or nothing, under ids that were made before.
async fn is_written(conn: &mut MySqlConnection, plans: &[TickPlan]) -> Result<bool, sqlx::Error> {
    let mut jobs: Vec<&NewJob> =
        plans.iter().flat_map(|plan| &plan.lines).filter_map(|line| line.job.as_ref()).collect();
    jobs.sort_unstable_by_key(|job| job.id);
    Ok(!jobs.is_empty() && !receipts(conn, &jobs).await?.is_empty())
}

/// Where a schedule stands, as far as plans depend on it.
struct Standing {
    version: u32,
    next_at: Option<Timestamp>,
    paused_at: Option<Timestamp>,
    last_job: Option<JobId>,
}

impl Standing {
    fn is_as(&self, row: &Scheduled) -> bool {
        (self.version, self.next_at, self.paused_at)
            == (row.version, row.next_at, row.paused.as_ref().map(|pause| pause.at))
    }
}

async fn carry_out(
    conn: &mut MySqlConnection,
    shared: &Shared,
    plans: &[TickPlan],
    runner: &Actor,
) -> Result<Ticked, sqlx::Error> {
    let mut ticked = Ticked::default();
    let standing = lock_standing(conn, plans).await?;
    let now = read_clock(conn, &shared.clock).await?;
    let is_due = |plan: &TickPlan| plan.lines.iter().all(|line| line.planned.due_at <= now);
    let plans: Vec<(&TickPlan, &Standing)> = plans
        .iter()
        .filter_map(|plan| Some((plan, standing.get(plan.row.name.as_str())?)))
        .filter(|(plan, standing)| standing.is_as(&plan.row) && is_due(plan))
        .collect();
    ticked.overtaken = standing.len() - plans.len();
    let previous = plans.iter().filter(|(plan, _)| plan.row.schedule.overlap != Overlap::Allow);
    let previous: Vec<JobId> = previous.filter_map(|(_, standing)| standing.last_job).collect();
    let held = if previous.is_empty() { BTreeMap::new() } else { lock_held(conn, previous.into_iter()).await? };

    let mut work = Work { now, held: &held, runner, jobs: Vec::new(), ended: BTreeMap::new(), ticked: &mut ticked };
    let mut moved = Vec::with_capacity(plans.len());
    for (plan, standing) in plans {
        let last_job = work.see_to(conn, plan, standing).await?;
        moved.push((plan, last_job));
    }
    let Work { jobs, ended, .. } = work;
    write(conn, jobs, &mut ticked).await?;
    let mut script = Script::about(moved.len(), 0);
    for (plan, last_job) in &moved {
        let last = plan.lines.last().map(|line| line.planned.due_at);
        script.say(
            "UPDATE schedules SET next_at = ?, last_at = ?, last_job = ? WHERE name = ?",
            vec![
                plan.next.into(),
                last.or(plan.row.last_at).into(),
                last_job.map(JobId::uuid).into(),
                plan.row.name.as_str().into(),
            ],
        );
    }
    script.run(conn).await?;
    count(conn, shared.lanes.any(), &ended).await?;
    Ok(ticked)
}

async fn lock_standing(
    conn: &mut MySqlConnection,
    plans: &[TickPlan],
) -> Result<BTreeMap<String, Standing>, sqlx::Error> {
    let names: Vec<&str> = plans.iter().map(|plan| plan.row.name.as_str()).collect();
    let sql = format!(
        "SELECT name, version, next_at, paused_at, last_job FROM schedules FORCE INDEX (PRIMARY) WHERE name IN {} \
         ORDER BY name FOR UPDATE",
        places(padded(names.len()))
    );
    let mut query = statement(sql);
    for name in pad(&names) {
        query = query.bind(name);
    }
    let standing = |row: &MySqlRow| {
        let last_job: Option<Uuid> = row.try_get(4)?;
        let standing = Standing {
            version: row.try_get(1)?,
            next_at: row.try_get(2)?,
            paused_at: row.try_get(3)?,
            last_job: last_job.map(JobId::from_uuid),
        };
        Ok((row.try_get(0)?, standing))
    };
    query.fetch_all(conn).await?.iter().map(standing).collect()
}

/// What one transaction does, as it comes together.
struct Work<'a, 't> {
    now: Timestamp,
    /// Previous jobs that are owed, locked.
    held: &'a BTreeMap<JobId, Owed>,
    runner: &'a Actor,
    jobs: Vec<&'a NewJob>,
    /// Jobs that were cancelled, for the tallies.
    ended: BTreeMap<(Name, Name, State), i64>,
    ticked: &'t mut Ticked,
}

impl<'a> Work<'a, '_> {
    /// Decide the lines of a plan by the overlap policy; the schedule's last job then.
    async fn see_to(
        &mut self,
        conn: &mut MySqlConnection,
        plan: &'a TickPlan,
        standing: &Standing,
    ) -> Result<Option<JobId>, sqlx::Error> {
        let overlap = plan.row.schedule.overlap;
        let mut last_job = standing.last_job;
        let mut in_the_way = last_job.filter(|id| self.held.contains_key(id));
        let last_fire = plan.lines.iter().rposition(|line| line.job.is_some());
        for (place, line) in plan.lines.iter().enumerate() {
            let Some(job) = &line.job else {
                let Fate::Skip(cause) = line.planned.fate else { continue };
                self.line(plan, line, Err((cause, line.reason.clone())));
                continue;
            };
            match (overlap, in_the_way) {
                (Overlap::Skip, Some(previous)) => {
                    let why = format!("the previous job {previous} had not ended");
                    self.line(plan, line, Err((SkipCause::Overlap, Some(why))));
                    continue;
                }
                // Of several at once the last one is what counts: the others would only be made to be cancelled.
                (Overlap::Replace, _) if Some(place) != last_fire => {
                    let why = "a later tick was due in the same moment".to_owned();
                    self.line(plan, line, Err((SkipCause::Overlap, Some(why))));
                    continue;
                }
                (Overlap::Replace, Some(previous)) => self.replace(conn, previous, job.id).await?,
                (Overlap::Allow | Overlap::Skip | Overlap::Replace, _) => {}
            }
            self.line(plan, line, Ok(job.id));
            self.jobs.push(job);
            last_job = Some(job.id);
            in_the_way = last_job;
        }
        Ok(last_job)
    }

    fn line(&mut self, plan: &TickPlan, line: &PlannedLine, outcome: Result<JobId, (SkipCause, Option<String>)>) {
        let (job, cause, reason) = match outcome {
            Ok(job) => (Some(job), None, None),
            Err((cause, reason)) => (None, Some(cause), reason),
        };
        self.ticked.lines.push(TickLine {
            schedule: plan.row.name.clone(),
            due_at: line.planned.due_at,
            number: 0,
            cause,
            reason: reason.map(limits::cut),
            ticks: line.planned.count,
            job,
            recorded_at: self.now,
            recorded_by: self.runner.clone(),
        });
    }

    /// Cancel the previous job if it waits, ask it to stop if it executes.
    async fn replace(&mut self, conn: &mut MySqlConnection, id: JobId, by: JobId) -> Result<(), sqlx::Error> {
        let Some(owed) = self.held.get(&id) else { return Ok(()) };
        if next(owed.state, Event::Cancel) == Ok(State::Cancelled) {
            cancel_waiting(conn, id, owed, self.now, Some(&format!("replaced by job {by}"))).await?;
            *self.ended.entry((owed.queue.clone(), owed.kind.clone(), State::Cancelled)).or_default() += 1;
            self.ticked.cancelled.push(id);
        } else {
            sqlx::query("UPDATE owed SET cancel_requested_at = COALESCE(cancel_requested_at, ?) WHERE id = ?")
                .bind(self.now)
                .bind(id.uuid())
                .execute(&mut *conn)
                .await?;
            self.ticked.asked.push(id);
        }
        Ok(())
    }
}

/// Write the jobs and the lines.
async fn write(conn: &mut MySqlConnection, mut jobs: Vec<&NewJob>, ticked: &mut Ticked) -> Result<(), sqlx::Error> {
    if let Some(line) = ticked.lines.first() {
        jobs.sort_unstable_by_key(|job| job.id);
        ticked.accepted = jobs.iter().map(|job| accepted_at(job, line.recorded_at)).collect();
        let pairs: Vec<(&NewJob, &Accepted)> = jobs.into_iter().zip(&ticked.accepted).collect();
        write_jobs(conn, &pairs).await?;
        write_lines(conn, &ticked.lines).await?;
    }
    Ok(())
}

async fn write_lines(conn: &mut MySqlConnection, lines: &[TickLine]) -> Result<(), sqlx::Error> {
    let lines: Vec<&TickLine> = lines.iter().collect();
    let bytes = |line: &&TickLine| 200 + line.reason.as_ref().map_or(0, String::len);
    let mut script = Script::about(lines.len(), lines.iter().map(bytes).sum());
    let sql = [
        "INSERT INTO ticks (schedule, due_at, number, outcome, cause, reason, ticks, job_id, recorded_at, recorded_by) VALUES",
        "(?,?,?,?,?,?,?,?,?,?)",
        "",
    ];
    script.insert(sql, &lines, bytes, |&line, values| {
        values.extend([
            Value::from(line.schedule.as_str()),
            line.due_at.into(),
            line.number.into(),
            line.outcome().into(),
            line.cause.map(SkipCause::as_str).into(),
            line.reason.as_deref().into(),
            line.ticks.into(),
            line.job.map(JobId::uuid).into(),
            line.recorded_at.into(),
            line.recorded_by.as_str().into(),
        ]);
    });
    script.run(conn).await.map(drop)
}

impl TickLine {
    /// Its word for what became of it.
    #[must_use]
    pub const fn outcome(&self) -> &'static str {
        if self.job.is_some() { "fired" } else { "skipped" }
    }
}

/// Write down what is due of a locked schedule and will not fire any more, and go on behind it. The caller writes the row.
pub(super) async fn pass_over(
    conn: &mut MySqlConnection,
    row: &mut Scheduled,
    cause: SkipCause,
    reason: &str,
    by: &Actor,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let Some(from) = row.next_at.filter(|from| *from <= now) else { return Ok(()) };
    let schedule = &row.schedule;
    let situation = Situation { from, now, withheld: Some(cause) };
    let passed = plan(&schedule.cadence, schedule.misfire, schedule.grace, situation);
    let line = |planned: &Planned| TickLine {
        schedule: row.name.clone(),
        due_at: planned.due_at,
        number: 0,
        cause: Some(cause),
        reason: Some(limits::cut(reason.to_owned())),
        ticks: planned.count,
        job: None,
        recorded_at: now,
        recorded_by: by.clone(),
    };
    let lines: Vec<TickLine> = passed.lines.iter().map(line).collect();
    write_lines(conn, &lines).await?;
    row.last_at = lines.last().map(|line| line.due_at).or(row.last_at);
    row.next_at = passed.next;
    Ok(())
}

/// The last tick of the ledger, also of an earlier schedule with this name.
pub(super) async fn last_tick_of(conn: &mut MySqlConnection, name: &Name) -> Result<Option<Timestamp>, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT due_at FROM ticks WHERE schedule = ? ORDER BY schedule DESC, due_at DESC, number DESC LIMIT 1",
    )
    .bind(name.as_str())
    .fetch_optional(conn)
    .await
}

async fn trigger(
    conn: &mut MySqlConnection,
    shared: &Shared,
    read: &Scheduled,
    mut job: NewJob,
    overlap: Option<Overlap>,
    act: &Act,
) -> Result<Triggered, sqlx::Error> {
    let Some(row) = lock_schedule(conn, &read.name).await? else { return Ok(Triggered::Missing) };
    if row.tag() != read.tag() {
        return Ok(Triggered::Changed);
    }
    let overlap = overlap.unwrap_or(row.schedule.overlap);
    let previous = row.last_job.filter(|_| overlap != Overlap::Allow);
    let held = match previous {
        Some(id) => lock_held(conn, std::iter::once(id)).await?,
        None => BTreeMap::new(),
    };
    let in_the_way = previous.and_then(|id| Some((id, held.get(&id)?.state)));
    if let (Overlap::Skip, Some((id, state))) = (overlap, in_the_way) {
        return Ok(Triggered::Busy(id, state));
    }
    let now = read_clock(conn, &shared.clock).await?;
    let due_at = floor_ms(now);
    if let Some(by) = &mut job.options.schedule {
        by.tick_at = due_at;
    }
    let number: Option<u16> = sqlx::query_scalar("SELECT MAX(number) FROM ticks WHERE schedule = ? AND due_at = ?")
        .bind(row.name.as_str())
        .bind(due_at)
        .fetch_one(&mut *conn)
        .await?;
    let mut ticked = Ticked::default();
    let mut work =
        Work { now, held: &held, runner: &act.actor, jobs: Vec::new(), ended: BTreeMap::new(), ticked: &mut ticked };
    if let Some((id, _)) = in_the_way {
        work.replace(conn, id, job.id).await?;
    }
    let ended = work.ended;
    ticked.lines.push(TickLine {
        schedule: row.name.clone(),
        due_at,
        number: number.unwrap_or(0) + 1,
        cause: None,
        reason: None,
        ticks: 1,
        job: Some(job.id),
        recorded_at: now,
        recorded_by: act.actor.clone(),
    });
    write(conn, vec![&job], &mut ticked).await?;
    sqlx::query("UPDATE schedules SET last_job = ? WHERE name = ?")
        .bind(job.id.uuid())
        .bind(row.name.as_str())
        .execute(&mut *conn)
        .await?;
    record(conn, act, now).await?;
    count(conn, shared.lanes.any(), &ended).await?;
    Ok(Triggered::Fired(Box::new(ticked)))
}

async fn page(
    conn: &mut MySqlConnection,
    name: &Name,
    fired: Option<bool>,
    before: Option<(Timestamp, u16)>,
    limit: u32,
) -> Result<TickPage, sqlx::Error> {
    // An inner window bounds the lines looked at, whatever the filter matches.
    let only = if fired.is_some() { "WHERE outcome = ?" } else { "" };
    let beyond = if before.is_some() { "AND (due_at < ? OR (due_at = ? AND number < ?))" } else { "" };
    let sql = format!(
        "SELECT schedule, due_at, number, cause, reason, ticks, job_id, recorded_at, recorded_by FROM (SELECT * FROM ticks \
         WHERE schedule = ? {beyond} ORDER BY schedule DESC, due_at DESC, number DESC LIMIT ?) w {only} \
         ORDER BY due_at DESC, number DESC LIMIT ?"
    );
    let look_at = if fired.is_some() { MOST_LOOKED_AT } else { i64::from(limit) + 1 };
    let bound = |sql: String| {
        let mut query = statement(sql).bind(name.as_str().to_owned());
        if let Some((due_at, number)) = before {
            query = query.bind(due_at).bind(due_at).bind(number);
        }
        query.bind(look_at)
    };
    let mut query = bound(sql);
    if let Some(fired) = fired {
        query = query.bind(if fired { "fired" } else { "skipped" });
    }
    let found = query.bind(limit + 1).fetch_all(&mut *conn).await?;
    let mut lines: Vec<TickLine> = found.iter().map(read).collect::<Result<_, _>>()?;
    let mut next = None;
    if lines.len() > limit as usize {
        lines.truncate(limit as usize);
        next = lines.last().map(|line| (line.due_at, line.number));
    } else if fired.is_some() {
        // Short of the limit: either the window ended, or the ledger did.
        let sql = format!(
            "SELECT due_at, number FROM ticks WHERE schedule = ? {beyond} \
             ORDER BY schedule DESC, due_at DESC, number DESC LIMIT 1 OFFSET ?"
        );
        let mut query = statement(sql).bind(name.as_str());
        if let Some((due_at, number)) = before {
            query = query.bind(due_at).bind(due_at).bind(number);
        }
        let last = query.bind(look_at - 1).fetch_optional(&mut *conn).await?;
        next = last.map(|row| Ok::<_, sqlx::Error>((row.try_get(0)?, row.try_get(1)?))).transpose()?;
    }
    Ok(TickPage { lines, next })
}

fn read(row: &MySqlRow) -> Result<TickLine, sqlx::Error> {
    let cause: Option<String> = row.try_get(3)?;
    let job: Option<Uuid> = row.try_get(6)?;
    Ok(TickLine {
        schedule: row.try_get::<String, _>(0)?.parse().map_err(|_| corrupt("schedule"))?,
        due_at: row.try_get(1)?,
        number: row.try_get(2)?,
        cause: cause.map(|word| SkipCause::from_word(&word).ok_or_else(|| corrupt("cause"))).transpose()?,
        reason: row.try_get(4)?,
        ticks: row.try_get(5)?,
        job: job.map(JobId::from_uuid),
        recorded_at: row.try_get(7)?,
        recorded_by: Actor::from_stored(row.try_get(8)?),
    })
}
