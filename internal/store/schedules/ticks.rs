//! Ticks of schedules: each is fired exactly once or skipped with a reason, and recorded in a ledger.
//!
//! Any number of runners may plan the same ticks. The first runner that locks the row of the schedule, and finds it as
//! the plan expects, carries the plan out: it writes the lines in the ledger, the jobs and the next tick in one
//! transaction. The other runners find that the schedule has moved on, and do nothing. So a crash at any moment leaves
//! either the whole change or none of it.
//!
//! A transaction of ticks waits neither for the row of a schedule nor for an order key nor for a previous job. It
//! leaves that schedule out, so that a session that keeps its locks stops no other schedule. While another session is
//! making an order key, the schedules get a transaction each, because the key cannot be told from the others.
//!
//! A server that is slow, or that refuses large transactions, must not stop the schedules for good: the previous jobs
//! that the new ones replace are cancelled together, and after a transaction that failed the next ones have fewer
//! records.
//!
//! Rows are locked in this order: schedules in the order of their names, the order keys of the new jobs in key order,
//! the `owed` rows of previous jobs in id order, then new rows, and the tallies last. A transaction that holds an `owed`
//! row or an order key never waits for a schedule.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use chrono::TimeDelta;
use serde_json::json;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::audit::{AuditEntry, record};
use crate::idempotency::{IdempotentOutcome, IdempotentRequest, ResponseBuilder, store_answer, stored_before};
use crate::jobs::actions::cancel_all;
use crate::rows::jobs::{Accepted, accepted_at, mark_held, receipts, write_jobs};
use crate::rows::links::NewLinks;
use crate::rows::order::{are_being_made, lock_free_or_make, lock_keys_of, lock_or_make, order_key_of};
use crate::rows::owed::{Owed, SKIP_LOCKED, left_of, lock_free, lock_held};
use crate::rows::tallies::count;
use crate::schedules::previous::previous_jobs;
use crate::schedules::rows::{Scheduled, lock_schedule, subjects_of};
use crate::sql::batches::{bind_padded, padded_len, placeholders, statement};
use crate::sql::clock::read_clock;
use crate::sql::connection::{PriorRun, on_pool, transact, transact_unless_locked};
use crate::sql::error::corrupt;
use crate::sql::script::{Script, Value};
use crate::sql::session::Session;
use crate::sql::turns::Subject;
use crate::{Store, StoreError, StoreInner};
use tickr_job::{
    Actor, JobId, Name, NewJob, Overlap, Planned, Situation, SkipCause, State, StateInput, TickDecision, Timestamp,
    floor_ms, limits, next, plan,
};

/// Most lines that one page of a listing may look at before it returns with a position to continue from.
const MAX_LOOKED_AT: i64 = 20_000;
/// Most lines deleted in one page.
const PAGE: u32 = 1_000;
/// Most lines that one transaction of the ticker writes.
pub(crate) const LINES: u32 = 400;

/// A plan for due ticks of one schedule.
#[derive(Clone, Debug)]
pub struct TickPlan {
    /// The schedule as it was read. The plan is valid only while the schedule is unchanged.
    pub row: Scheduled,
    /// The planned lines in order of time. A line that fires has a job.
    pub lines: Vec<PlannedLine>,
    /// The first tick after the plan.
    pub next: Option<Timestamp>,
}

/// The plan for one tick, or for several ticks that share a line.
#[derive(Clone, Debug)]
pub struct PlannedLine {
    /// The due time, and whether the tick fires.
    pub planned: Planned,
    /// The job, if the tick fires.
    pub job: Option<NewJob>,
    /// The reason in words, if it does not fire.
    pub reason: Option<String>,
}

/// Outcome of plans that were carried out.
#[derive(Clone, Debug, Default)]
pub struct Ticked {
    /// Lines that were written. Each has its due time and the time of the record.
    pub lines: Vec<TickLine>,
    /// The receipts of the new jobs.
    pub accepted: Vec<Accepted>,
    /// Previous jobs that were waiting and were cancelled.
    pub cancelled: Vec<JobId>,
    /// Previous jobs that were executing and were asked to stop.
    pub stop_requested: Vec<JobId>,
    /// Number of plans that another runner had carried out already or is carrying out, or that were outdated by a change.
    pub overtaken: usize,
    /// Schedules whose ticks stay due, because another session locks their rows, their order keys or their previous
    /// jobs, or because only another version may be able to make their jobs. The caller has to wait a moment before it
    /// tries them again.
    pub left: Vec<Name>,
}

impl Ticked {
    /// Add what another transaction did.
    fn add(&mut self, other: Self) {
        self.lines.extend(other.lines);
        self.accepted.extend(other.accepted);
        self.cancelled.extend(other.cancelled);
        self.stop_requested.extend(other.stop_requested);
        self.overtaken += other.overtaken;
        self.left.extend(other.left);
    }
}

/// A line in the ledger of ticks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TickLine {
    /// The schedule.
    pub schedule: Name,
    /// Due time of the tick, or of the first of several ticks.
    pub due_at: Timestamp,
    /// 0 for a regular tick. For a manual trigger, its number within this millisecond, from 1.
    pub number: u16,
    /// The cause, if it was skipped.
    pub cause: Option<SkipCause>,
    /// The same cause in words.
    pub reason: Option<String>,
    /// Number of ticks that share the line. The count stops at ten thousand.
    pub ticks: u32,
    /// The job, if it fired.
    pub job: Option<JobId>,
    /// The time when the line was written.
    pub recorded_at: Timestamp,
    /// The runner or other actor that handled the tick.
    pub recorded_by: Actor,
}

/// A page of the ledger of ticks, newest lines first.
#[derive(Debug)]
pub struct TickPage {
    /// The lines.
    pub lines: Vec<TickLine>,
    /// The position to continue before; absent at the end.
    pub next: Option<(Timestamp, u16)>,
}

/// Outcome of a manual trigger.
#[derive(Clone, Debug)]
pub enum TriggerOutcome {
    /// It fired.
    Fired(Box<Ticked>),
    /// The schedule's previous job has not ended, and the overlap policy does not allow another one. Nothing was
    /// written.
    Busy(JobId, State),
    /// The schedule has changed since it was read. Nothing was written.
    Changed,
    /// There is no such schedule.
    Missing,
}

impl Store {
    /// Return the most lines that the plans of one transaction should have together. There are fewer after a
    /// transaction that MySQL did not carry out.
    #[must_use]
    pub fn ticks_at_once(&self) -> usize {
        self.shared.ticks.get() as usize
    }

    /// Carry out the plans whose schedules are unchanged. `runner` is recorded as the actor.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses, and no plan was carried out, or the answer was lost.
    #[boxed]
    pub async fn tick(&self, mut plans: Vec<TickPlan>, runner: &Actor) -> Result<Ticked, StoreError> {
        plans.sort_by(|a, b| a.row.name.cmp(&b.row.name));
        let plans = Arc::new(plans);
        if let Some(ticked) = self.tick_together(Arc::clone(&plans), runner).await? {
            return Ok(ticked);
        }
        let (mut all, each) = (Ticked::default(), plans.as_slice());
        if let [plan] = each {
            all.left.push(plan.row.name.clone());
            return Ok(all);
        }
        for plan in each {
            match self.tick_together(Arc::new(vec![plan.clone()]), runner).await {
                Ok(Some(ticked)) => all.add(ticked),
                Ok(None) => all.left.push(plan.row.name.clone()),
                // The caller has to hear of the jobs. The other ticks stay due.
                Err(_) if !all.lines.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// Carry out these plans in one transaction. Nothing if another session holds a lock that one of them would wait
    /// for.
    async fn tick_together(&self, plans: Arc<Vec<TickPlan>>, runner: &Actor) -> Result<Option<Ticked>, StoreError> {
        let (shared, runner) = (self.shared.clone(), runner.clone());
        let memory: Arc<Mutex<Option<Ticked>>> = Arc::default();
        let lines = plans.iter().map(|plan| plan.lines.len()).sum::<usize>();
        let ticked = transact_unless_locked(&self.shared.pools.loops, "fire ticks", move |conn, earlier| {
            let (plans, shared, runner) = (Arc::clone(&plans), shared.clone(), runner.clone());
            let memory = Arc::clone(&memory);
            Box::pin(async move {
                if earlier == PriorRun::MayHaveCommitted {
                    let done = memory.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    if let Some(done) = done
                        && is_written(conn, &plans).await?
                    {
                        return Ok(Some(done));
                    }
                }
                let ticked = carry_out(conn, &shared, &plans, &runner).await?;
                *memory.lock().unwrap_or_else(PoisonError::into_inner) = ticked.clone();
                Ok(ticked)
            })
        });
        let ticked = ticked.await;
        self.shared.ticks.learn_of(u32::try_from(lines).unwrap_or(u32::MAX), &ticked);
        Ok(ticked?.flatten())
    }

    /// Fire a schedule now, on request, at most once if the request has an idempotency key. `job` was made from the
    /// schedule in `row`. `overlap` replaces the schedule's own policy for this job only. `build` builds the response
    /// from the receipt.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn trigger_schedule(
        &self,
        row: &Scheduled,
        job: NewJob,
        overlap: Option<Overlap>,
        by: &Actor,
        idempotent: Option<IdempotentRequest>,
        build: ResponseBuilder<Accepted>,
    ) -> Result<IdempotentOutcome<TriggerOutcome>, StoreError> {
        let mut act = AuditEntry::new(by, "schedule.trigger", row.name.as_str());
        act = act.with(json!({"job": job.id}));
        let mut subjects = subjects_of(&row.name);
        subjects.extend(job.options.order.as_ref().map(|order| Subject::OrderKey(order.key.clone())));
        let looks_at_previous = overlap.unwrap_or(row.schedule.overlap) != Overlap::Allow;
        subjects.extend(row.last_job.filter(|_| looks_at_previous).map(Subject::Job));
        let row = Arc::new(row.clone());
        self.change("trigger a schedule", subjects, act, move |conn, shared, act| {
            let (row, job, idempotent, build) = (Arc::clone(&row), job.clone(), idempotent.clone(), Arc::clone(&build));
            Box::pin(async move {
                // Two equal requests take turns at the row of the schedule.
                let locked = lock_schedule(conn, &row.name).await?;
                if let Some(outcome) = stored_before(conn, idempotent.as_ref(), None).await? {
                    return Ok(outcome);
                }
                let triggered = trigger(conn, &shared, (&row, locked), job, overlap, &act).await?;
                let TriggerOutcome::Fired(ticked) = &triggered else {
                    return Ok(IdempotentOutcome::Refused(triggered));
                };
                let accepted = ticked.accepted.first().ok_or_else(|| corrupt("a trigger without a job"))?;
                let answer = build(accepted);
                if let Some(instead) = store_answer(conn, idempotent.as_ref(), &answer, accepted.created_at).await? {
                    return Ok(instead);
                }
                Ok(IdempotentOutcome::First { done: Some(triggered), answer })
            })
        })
        .await
    }

    /// Read the ledger of a schedule, newest lines first, before this line. `fired` selects the lines that fired, or
    /// those that did not.
    ///
    /// A page looks at a bounded number of lines. It may be short and still have a `next`.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
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

    /// Delete ticks that were recorded longer ago than `keep`: one page of the first schedule after `after` that has
    /// any ticks. Return the number of deleted ticks and the position to continue after, which is empty when the first
    /// schedule of all may have more of them; absent at the end.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn purge_ticks(
        &self,
        after: Option<String>,
        keep: Duration,
    ) -> Result<(u64, Option<String>), StoreError> {
        let (shared, after) = (self.shared.clone(), after.unwrap_or_default());
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
                // After a full page there may be more, so continue with the same schedule.
                Ok((gone, Some(if gone == u64::from(PAGE) { after } else { name })))
            })
        })
        .await
    }
}

/// Return whether an earlier run has committed. It wrote everything or nothing, and the ids were made before it.
async fn is_written(conn: &mut Session<'_>, plans: &[TickPlan]) -> Result<bool, sqlx::Error> {
    let mut jobs: Vec<&NewJob> =
        plans.iter().flat_map(|plan| &plan.lines).filter_map(|line| line.job.as_ref()).collect();
    jobs.sort_unstable_by_key(|job| job.id);
    Ok(!jobs.is_empty() && !receipts(conn, &jobs).await?.is_empty())
}

/// The state of a schedule on which plans depend.
struct ScheduleCursor {
    version: u32,
    next_at: Option<Timestamp>,
    paused_at: Option<Timestamp>,
    last_job: Option<JobId>,
}

impl ScheduleCursor {
    fn is_as(&self, row: &Scheduled) -> bool {
        (self.version, self.next_at, self.paused_at)
            == (row.version, row.next_at, row.paused.as_ref().map(|pause| pause.at))
    }
}

/// Carry out these plans. Nothing if another session is making one of their order keys.
async fn carry_out(
    conn: &mut Session<'_>,
    shared: &StoreInner,
    plans: &[TickPlan],
    runner: &Actor,
) -> Result<Option<Ticked>, sqlx::Error> {
    let mut ticked = Ticked::default();
    let standing = lock_standing(conn, plans).await?;
    let now = read_clock(conn, &shared.clock).await?;
    let is_due = |plan: &TickPlan| plan.lines.iter().all(|line| line.planned.due_at <= now);
    let all = plans.len();
    // A row that is locked is one that another ticker works on, or that an operator changes. A deleted one is not due.
    ticked
        .left
        .extend(plans.iter().map(|plan| &plan.row.name).filter(|name| !standing.contains_key(name.as_str())).cloned());
    let mut plans: Vec<(&TickPlan, &ScheduleCursor)> = plans
        .iter()
        .filter_map(|plan| Some((plan, standing.get(plan.row.name.as_str())?)))
        .filter(|(plan, standing)| standing.is_as(&plan.row) && is_due(plan))
        .collect();
    ticked.overtaken = all - plans.len();
    let keys: BTreeSet<&[u8]> = plans.iter().flat_map(|(plan, _)| order_keys_of(plan)).collect();
    if are_being_made(conn, &keys).await? {
        // The commit that follows has nothing to write.
        sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
        return Ok(None);
    }
    let busy = lock_free_or_make(conn, &keys).await?;
    let is_busy = |plan: &TickPlan| order_keys_of(plan).any(|key| busy.contains(key));
    ticked.left.extend(plans.iter().filter(|(plan, _)| is_busy(plan)).map(|(plan, _)| plan.row.name.clone()));
    plans.retain(|(plan, _)| !is_busy(plan));
    let looking = plans.iter().filter(|(plan, _)| plan.row.schedule.overlap != Overlap::Allow);
    let looking: Vec<_> = looking.map(|(plan, standing)| (&plan.row, standing.last_job)).collect();
    let previous = previous_jobs(conn, &looking).await?;
    let ids: BTreeSet<JobId> = previous.values().flatten().copied().collect();
    let held = lock_free(conn, ids.iter().copied()).await?;
    let locked = left_of(conn, ids, &held).await?;
    let previous_of = |plan: &TickPlan| previous.get(&plan.row.name).map_or(&[][..], Vec::as_slice);
    // Whether a previous job has ended can only be said under its lock.
    let is_left = |plan: &TickPlan| previous_of(plan).iter().any(|id| locked.contains(id));
    ticked.left.extend(plans.iter().filter(|(plan, _)| is_left(plan)).map(|(plan, _)| plan.row.name.clone()));
    plans.retain(|(plan, _)| !is_left(plan));

    let mut work = Work { now, held: &held, runner, jobs: Vec::new(), replaced: BTreeMap::new(), ticked: &mut ticked };
    let mut moved = Vec::with_capacity(plans.len());
    for (plan, standing) in plans {
        moved.push((plan, work.process(plan, (standing.last_job, previous_of(plan)))));
    }
    let Work { jobs, replaced, .. } = work;
    let ended = cancel_replaced(conn, held, &replaced, now, &mut ticked).await?;
    write(conn, jobs, &mut ticked).await?;
    let mut script = Script::about(moved.len(), 0);
    for (plan, last_job) in &moved {
        let last = plan.lines.last().map(|line| line.planned.due_at);
        script.push(
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
    Ok(Some(ticked))
}

/// Return the order keys of the jobs in a plan.
fn order_keys_of(plan: &TickPlan) -> impl Iterator<Item = &[u8]> {
    plan.lines.iter().filter_map(|line| order_key_of(line.job.as_ref()?))
}

/// Lock the rows of these schedules, without those that another session locks at this moment.
async fn lock_standing(
    conn: &mut Session<'_>,
    plans: &[TickPlan],
) -> Result<BTreeMap<String, ScheduleCursor>, sqlx::Error> {
    let names: Vec<&str> = plans.iter().map(|plan| plan.row.name.as_str()).collect();
    let sql = format!(
        "SELECT name, version, next_at, paused_at, last_job FROM schedules FORCE INDEX (PRIMARY) WHERE name IN {} \
         ORDER BY name FOR UPDATE{SKIP_LOCKED}",
        placeholders(padded_len(names.len()))
    );
    let query = bind_padded(statement(sql), &names);
    let standing = |row: &MySqlRow| {
        let last_job: Option<Uuid> = row.try_get("last_job")?;
        let standing = ScheduleCursor {
            version: row.try_get("version")?,
            next_at: row.try_get("next_at")?,
            paused_at: row.try_get("paused_at")?,
            last_job: last_job.map(JobId::from_uuid),
        };
        Ok((row.try_get("name")?, standing))
    };
    query.fetch_all(conn).await?.iter().map(standing).collect()
}

/// The work of one transaction, while it is being collected.
struct Work<'a, 't> {
    now: Timestamp,
    /// Previous jobs that are unfinished, locked.
    held: &'t BTreeMap<JobId, Owed>,
    runner: &'a Actor,
    jobs: Vec<&'a NewJob>,
    /// Previous jobs that are replaced, each with the new job.
    replaced: BTreeMap<JobId, JobId>,
    ticked: &'t mut Ticked,
}

impl<'a> Work<'a, '_> {
    /// Decide the lines of a plan by the overlap policy. The jobs in `previous` may be in the way. Return the last job
    /// of the schedule after them.
    fn process(&mut self, plan: &'a TickPlan, (mut last_job, previous): (Option<JobId>, &[JobId])) -> Option<JobId> {
        let overlap = plan.row.schedule.overlap;
        let mut in_the_way: Vec<JobId> = previous.iter().copied().filter(|id| self.held.contains_key(id)).collect();
        let last_fire = plan.lines.iter().rposition(|line| line.job.is_some());
        for (place, line) in plan.lines.iter().enumerate() {
            let Some(job) = &line.job else {
                let TickDecision::Skip(cause) = line.planned.decision else { continue };
                self.line(plan, line, Err((cause, line.reason.clone())));
                continue;
            };
            match (overlap, in_the_way.first()) {
                (Overlap::Skip, Some(previous)) => {
                    let why = format!("the previous job {previous} had not ended");
                    self.line(plan, line, Err((SkipCause::Overlap, Some(why))));
                    continue;
                }
                // Of several ticks at once only the last one fires. The jobs of the others would be cancelled at once.
                (Overlap::Replace, _) if Some(place) != last_fire => {
                    let why = "a later tick was due in the same moment".to_owned();
                    self.line(plan, line, Err((SkipCause::Overlap, Some(why))));
                    continue;
                }
                (Overlap::Replace, Some(_)) => {
                    self.replaced.extend(in_the_way.iter().map(|previous| (*previous, job.id)));
                }
                (Overlap::Allow | Overlap::Skip | Overlap::Replace, _) => {}
            }
            self.line(plan, line, Ok(job.id));
            self.jobs.push(job);
            last_job = Some(job.id);
            in_the_way = vec![job.id];
        }
        last_job
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
}

/// Cancel those of the locked jobs that are replaced, each by another job: those that wait end, the handlers of
/// executing ones are asked to stop. Return the changes for the tallies.
async fn cancel_replaced(
    conn: &mut Session<'_>,
    mut held: BTreeMap<JobId, Owed>,
    replaced: &BTreeMap<JobId, JobId>,
    now: Timestamp,
    ticked: &mut Ticked,
) -> Result<BTreeMap<(Name, Name, State), i64>, sqlx::Error> {
    held.retain(|id, _| replaced.contains_key(id));
    let waits = |owed: &Owed| next(owed.state, StateInput::Cancel) == Ok(State::Cancelled);
    let waiting: Vec<Uuid> = held.iter().filter(|(_, owed)| waits(owed)).map(|(id, _)| id.uuid()).collect();
    // The order keys are locked late. A deadlock with a settlement is possible, and the loser runs again.
    let ordered = lock_keys_of(conn, &waiting).await?;
    let errors = replaced.iter().map(|(id, by)| (*id, format!("replaced by job {by}"))).collect();
    let done = cancel_all(conn, &held, &ordered, &errors, now).await?;
    ticked.cancelled.extend(done.cancelled);
    ticked.stop_requested.extend(done.stop_requested);
    Ok(done.counts)
}

/// Insert the jobs and the lines.
async fn write(conn: &mut Session<'_>, mut jobs: Vec<&NewJob>, ticked: &mut Ticked) -> Result<(), sqlx::Error> {
    if let Some(line) = ticked.lines.first() {
        jobs.sort_unstable_by_key(|job| job.id);
        ticked.accepted = jobs.iter().map(|job| accepted_at(job, line.recorded_at)).collect();
        let pairs: Vec<(&NewJob, &Accepted)> = jobs.into_iter().zip(&ticked.accepted).collect();
        // A template has no links. The ids of one schedule's jobs are in the order of its ticks, and so their places.
        let held = write_jobs(conn, &pairs, &NewLinks::default()).await?;
        mark_held(&mut ticked.accepted, &held);
        write_lines(conn, &ticked.lines).await?;
    }
    Ok(())
}

async fn write_lines(conn: &mut Session<'_>, lines: &[TickLine]) -> Result<(), sqlx::Error> {
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
    /// Return the word for its outcome: `fired` or `skipped`.
    #[must_use]
    pub const fn outcome(&self) -> &'static str {
        if self.job.is_some() { "fired" } else { "skipped" }
    }
}

/// Record the due ticks of a locked schedule as skipped, and move `row` behind them. The caller writes the row.
pub(crate) async fn pass_over(
    conn: &mut Session<'_>,
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

/// Read the time of the last tick in the ledger. It may belong to an earlier schedule with this name.
pub(crate) async fn last_tick_of(conn: &mut Session<'_>, name: &Name) -> Result<Option<Timestamp>, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT due_at FROM ticks WHERE schedule = ? ORDER BY schedule DESC, due_at DESC, number DESC LIMIT 1",
    )
    .bind(name.as_str())
    .fetch_optional(conn)
    .await
}

async fn trigger(
    conn: &mut Session<'_>,
    shared: &StoreInner,
    (read, locked): (&Scheduled, Option<Scheduled>),
    mut job: NewJob,
    overlap: Option<Overlap>,
    act: &AuditEntry,
) -> Result<TriggerOutcome, sqlx::Error> {
    let Some(row) = locked else { return Ok(TriggerOutcome::Missing) };
    if row.tag() != read.tag() {
        return Ok(TriggerOutcome::Changed);
    }
    lock_or_make(conn, &order_key_of(&job).into_iter().collect()).await?;
    let overlap = overlap.unwrap_or(row.schedule.overlap);
    let looking = Some((&row, row.last_job)).filter(|_| overlap != Overlap::Allow);
    let previous = previous_jobs(conn, looking.as_slice()).await?.remove(&row.name).unwrap_or_default();
    let held = lock_held(conn, previous.iter().copied()).await?;
    let in_the_way: Vec<JobId> = previous.into_iter().filter(|id| held.contains_key(id)).collect();
    if overlap == Overlap::Skip
        && let Some((id, owed)) = in_the_way.first().and_then(|id| held.get_key_value(id))
    {
        return Ok(TriggerOutcome::Busy(*id, owed.state));
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
    let replaced = in_the_way.into_iter().map(|id| (id, job.id)).collect();
    let ended = cancel_replaced(conn, held, &replaced, now, &mut ticked).await?;
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
    Ok(TriggerOutcome::Fired(Box::new(ticked)))
}

async fn page(
    conn: &mut Session<'_>,
    name: &Name,
    fired: Option<bool>,
    before: Option<(Timestamp, u16)>,
    limit: u32,
) -> Result<TickPage, sqlx::Error> {
    // The inner query bounds the number of lines, whatever the filter matches.
    let only = if fired.is_some() { "WHERE outcome = ?" } else { "" };
    let beyond = if before.is_some() { "AND (due_at < ? OR (due_at = ? AND number < ?))" } else { "" };
    let sql = format!(
        "SELECT schedule, due_at, number, cause, reason, ticks, job_id, recorded_at, recorded_by FROM (SELECT * FROM ticks \
         WHERE schedule = ? {beyond} ORDER BY schedule DESC, due_at DESC, number DESC LIMIT ?) w {only} \
         ORDER BY due_at DESC, number DESC LIMIT ?"
    );
    let look_at = if fired.is_some() { MAX_LOOKED_AT } else { i64::from(limit) + 1 };
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
        // With fewer lines than the limit, either the inner query or the ledger has come to its end.
        let sql = format!(
            "SELECT due_at, number FROM ticks WHERE schedule = ? {beyond} \
             ORDER BY schedule DESC, due_at DESC, number DESC LIMIT 1 OFFSET ?"
        );
        let mut query = statement(sql).bind(name.as_str());
        if let Some((due_at, number)) = before {
            query = query.bind(due_at).bind(due_at).bind(number);
        }
        let last = query.bind(look_at - 1).fetch_optional(&mut *conn).await?;
        next = last.map(|row| Ok::<_, sqlx::Error>((row.try_get("due_at")?, row.try_get("number")?))).transpose()?;
    }
    Ok(TickPage { lines, next })
}

fn read(row: &MySqlRow) -> Result<TickLine, sqlx::Error> {
    let cause: Option<String> = row.try_get("cause")?;
    let job: Option<Uuid> = row.try_get("job_id")?;
    Ok(TickLine {
        schedule: row.try_get::<String, _>("schedule")?.parse().map_err(|_| corrupt("schedule"))?,
        due_at: row.try_get("due_at")?,
        number: row.try_get("number")?,
        cause: cause.map(|word| SkipCause::from_word(&word).ok_or_else(|| corrupt("cause"))).transpose()?,
        reason: row.try_get("reason")?,
        ticks: row.try_get("ticks")?,
        job: job.map(JobId::from_uuid),
        recorded_at: row.try_get("recorded_at")?,
        recorded_by: Actor::from_stored(row.try_get("recorded_by")?),
    })
}
