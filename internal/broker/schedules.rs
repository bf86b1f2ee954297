//! Schedules: changed and triggered by operators, ticked by the engine.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use chrono::TimeDelta;
use metrics::Counter;

use super::{Broker, Draft, Invalid};
use crate::other_versions::{LeftTicks, another_may_read};
use tickr_event::{Event, SettingChanged};
use tickr_handlers::{Problem, Registry};
use tickr_job::{
    Actor, Due, JobId, Name, NewJob, Overlap, Plan, Planned, Schedule, ScheduleDraft, ScheduledBy, Situation,
    SkipCause, TickDecision, Timestamp, TraceContext, plan,
};
use tickr_store::{
    Accepted, Condition, DeleteOutcome, IdempotentOutcome, IdempotentRequest, PauseOutcome, PlannedLine, PutOutcome,
    ResponseBuilder, ScheduleOrigin, Scheduled, StoreError, TickPlan, Ticked, TriggerOutcome, VersionTag,
};
use tickr_telemetry::Tracer;

/// Most bytes of payloads that one transaction of ticks writes. A server may refuse transactions of many bytes, as in
/// group replication.
const MAX_BYTES: usize = 8 << 20;

/// The room that the plans of one transaction have left.
struct PlanRoom {
    /// Records of ticks.
    lines: usize,
    /// Bytes of payloads.
    bytes: usize,
    /// No plan has taken a part of it yet.
    is_whole: bool,
}

impl PlanRoom {
    fn new(lines: usize) -> Self {
        Self { lines, bytes: MAX_BYTES, is_whole: true }
    }

    /// Take room for a plan whose jobs have payloads of this many bytes. Nothing if there is not enough left. The first
    /// plan is cut instead, to one record at least, so that each transaction gets on.
    fn take(&mut self, mut plan: Plan, overlap: Overlap, payload: usize) -> Option<Plan> {
        let (mut lines, mut bytes) = (0, 0);
        for line in plan.lines.iter().take(self.lines) {
            // With the other policies a plan makes one job at most.
            let makes_job = line.decision == TickDecision::Fire && (overlap == Overlap::Allow || bytes == 0);
            let more = if makes_job { payload } else { 0 };
            if bytes + more > self.bytes {
                break;
            }
            (lines, bytes) = (lines + 1, bytes + more);
        }
        if lines < plan.lines.len() {
            if !self.is_whole {
                return None;
            }
            lines = lines.max(1);
            plan.truncate(lines);
        }
        (self.lines, self.bytes) = (self.lines.saturating_sub(lines), self.bytes.saturating_sub(bytes));
        self.is_whole = false;
        Some(plan)
    }
}

/// A plan, with the problems of its job if a tick that fires has an invalid one.
struct MadePlan {
    plan: TickPlan,
    invalid: Option<Invalid>,
}

/// Reason for which a trigger failed.
#[derive(Debug)]
pub enum TriggerError {
    /// The job of the schedule is not valid any more.
    Invalid(Invalid),
    /// MySQL could not be reached or refused.
    Store(StoreError),
}

impl From<StoreError> for TriggerError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Check the job template of a schedule against its kind in `registry`, as a tick at `now` does.
///
/// # Errors
/// [`Invalid`], with everything that is wrong.
pub fn check_schedule(schedule: &Schedule, registry: &Registry, now: Timestamp) -> Result<(), Invalid> {
    draft_of(schedule).prepare(registry, now).map(drop)
}

impl Broker {
    /// Check the draft of a schedule, also against its kind. Pointers are relative to the draft.
    ///
    /// # Errors
    /// [`Invalid`], with everything that is wrong.
    pub fn prepare_schedule(&self, draft: ScheduleDraft) -> Result<Schedule, Invalid> {
        let mut draft = draft;
        // The queue of a declared kind is also that of its scheduled jobs.
        draft.queue = draft.queue.or_else(|| self.queue_of_kind(&draft.kind).map(|queue| queue.to_string()));
        let schedule = draft.check(self.store.clock().now()).map_err(|wrong| Invalid::Job {
            problems: wrong.into_iter().map(|wrong| Problem::at(format!("/{}", wrong.field), wrong.detail)).collect(),
        })?;
        self.check_schedule(&schedule)?;
        Ok(schedule)
    }

    /// Return the queue of the jobs of this kind that name none, if its declaration has one.
    #[must_use]
    pub fn queue_of_kind(&self, kind: &str) -> Option<Name> {
        self.registry.find(kind)?.queue().cloned()
    }

    /// Check the job template of a schedule against its kind.
    ///
    /// # Errors
    /// [`Invalid`], with everything that is wrong.
    pub fn check_schedule(&self, schedule: &Schedule) -> Result<(), Invalid> {
        check_schedule(schedule, &self.registry, self.store.clock().now())
    }

    /// Create or change a schedule.
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
        let put = self.store.put_schedule(name, schedule, origin, condition, by).await?;
        self.wake().schedules_changed();
        if let PutOutcome::Created(row) | PutOutcome::Changed(row) = &put {
            self.events.emit(Event::SchedulePut(setting(row)));
        }
        Ok(put)
    }

    /// Delete a schedule. One that belongs to the configuration is deleted only if `undeclared` is true.
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
        let deleted = self.store.delete_schedule(name.clone(), condition, undeclared, by).await?;
        if deleted == DeleteOutcome::Done {
            self.events.emit(Event::ScheduleDeleted { name });
        }
        Ok(deleted)
    }

    /// Pause a schedule: its ticks are skipped.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn pause_schedule(
        &self,
        name: Name,
        reason: Option<String>,
        by: &Actor,
    ) -> Result<Option<Scheduled>, StoreError> {
        Ok(match self.store.pause_schedule(name, reason, by).await? {
            Some(PauseOutcome::Done(row)) => {
                self.events.emit(Event::SchedulePaused(setting(&row)));
                Some(row)
            }
            Some(PauseOutcome::Already(row)) => Some(row),
            None => None,
        })
    }

    /// Resume a schedule: its ticks fire again.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn resume_schedule(&self, name: Name, by: &Actor) -> Result<Option<Scheduled>, StoreError> {
        let resumed = self.store.resume_schedule(name, by).await?;
        self.wake().schedules_changed();
        Ok(match resumed {
            Some(PauseOutcome::Done(row)) => {
                self.events.emit(Event::ScheduleResumed(setting(&row)));
                Some(row)
            }
            Some(PauseOutcome::Already(row)) => Some(row),
            None => None,
        })
    }

    /// Fire a schedule now, at most once for the idempotency key in `once`, if there is one. `build` builds the
    /// response from the receipt of the job. The job continues `trace`.
    ///
    /// # Errors
    /// When the job of the schedule is not valid any more, or MySQL cannot be reached or refuses.
    pub async fn trigger_schedule(
        &self,
        name: &Name,
        overlap: Option<Overlap>,
        by: &Actor,
        trace: Option<&TraceContext>,
        idempotent: Option<IdempotentRequest>,
        build: impl Fn(&NewJob) -> ResponseBuilder<Accepted>,
    ) -> Result<IdempotentOutcome<TriggerOutcome>, TriggerError> {
        // Read the schedule again when it was changed in between. Give up after four concurrent changes.
        for _ in 0..4 {
            let Some(row) = self.store.schedule(name.clone()).await? else {
                return Ok(IdempotentOutcome::Refused(TriggerOutcome::Missing));
            };
            let now = self.store.clock().now();
            let job = self.job_of(&row, now, trace.cloned()).map_err(TriggerError::Invalid)?;
            let build = build(&job);
            let outcome = self.store.trigger_schedule(&row, job, overlap, by, idempotent.clone(), build).await?;
            if let IdempotentOutcome::First { done: Some(TriggerOutcome::Fired(ticked)), .. } = &outcome {
                self.announce_ticks(ticked).await;
            }
            if !matches!(outcome, IdempotentOutcome::Refused(TriggerOutcome::Changed)) {
                return Ok(outcome);
            }
        }
        Ok(IdempotentOutcome::Refused(TriggerOutcome::Changed))
    }

    /// Process the ticks of these schedules that are due at `now` by MySQL's clock, as many as one transaction should.
    /// Those behind them stay due. Each tick that fires is the root of a trace, which its job continues. Ticks whose
    /// job this version cannot make stay due while a living runner of another version may be able to make it.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses. Then no tick was processed, or all of them were and only the answer was
    /// lost.
    #[boxed]
    pub async fn tick(
        &self,
        rows: Vec<Scheduled>,
        now: Timestamp,
        runner: &Actor,
        tracer: &Tracer,
    ) -> Result<Ticked, StoreError> {
        let (mut made, mut spans) = (Vec::new(), BTreeMap::new());
        let mut room = PlanRoom::new(self.store.ticks_at_once());
        for row in rows {
            let Some(from) = row.next_at.filter(|from| *from <= now) else { continue };
            let mut begin = |job: JobId| {
                let span = tracer.tick()?;
                let carried = span.trace_context();
                spans.insert(job, span);
                Some(carried)
            };
            let Some(plan) = self.plan_of(row, from, now, &mut room, &mut begin) else { break };
            made.push(plan);
        }
        let (plans, left) = self.leave_to_others(made).await?;
        if plans.is_empty() {
            return Ok(Ticked { left, ..Ticked::default() });
        }
        let mut ticked = self.store.tick(plans, runner).await?;
        ticked.left.extend(left);
        // The other spans are dropped: another runner had processed those ticks, or the previous job had not ended.
        for line in &ticked.lines {
            if let Some((job, span)) = line.job.and_then(|job| spans.remove_entry(&job)) {
                span.end(line.schedule.as_str(), job);
            }
        }
        self.announce_ticks(&ticked).await;
        Ok(ticked)
    }

    /// Plan the ticks of a schedule. Nothing if there is not enough room for the plan.
    fn plan_of(
        &self,
        row: Scheduled,
        from: Timestamp,
        now: Timestamp,
        room: &mut PlanRoom,
        begin: &mut impl FnMut(JobId) -> Option<TraceContext>,
    ) -> Option<MadePlan> {
        // A tick is not late because it was left to others. Its record says why it did not fire.
        let now = (now - self.ticks_left().left_for(&row.name, from, Instant::now())).max(from);
        let schedule = &row.schedule;
        let withheld = row.paused.as_ref().map(|_| SkipCause::Paused);
        let plan = plan(&schedule.cadence, schedule.misfire, schedule.grace, Situation { from, now, withheld });
        let plan = room.take(plan, schedule.overlap, schedule.template.payload.get().len())?;
        let mut invalid: Option<Invalid> = None;
        let line = |mut planned: Planned| {
            let mut job = None;
            if planned.decision == TickDecision::Fire && invalid.is_none() {
                match self.job_of(&row, planned.due_at, None) {
                    Ok(mut made) => {
                        made.options.trace = begin(made.id);
                        job = Some(made);
                    }
                    Err(wrong) => invalid = Some(wrong),
                }
            }
            if planned.decision == TickDecision::Fire && job.is_none() {
                planned.decision = TickDecision::Skip(SkipCause::Invalid);
            }
            let reason = match planned.decision {
                TickDecision::Fire => None,
                TickDecision::Skip(SkipCause::Invalid) => invalid.as_ref().map(Invalid::in_full),
                TickDecision::Skip(cause) => Some(why_not(&row, &planned, cause, now)),
            };
            PlannedLine { planned, job, reason }
        };
        let lines = plan.lines.into_iter().map(line).collect();
        Some(MadePlan { plan: TickPlan { row, lines, next: plan.next }, invalid })
    }

    /// Return the plans to carry out, and the schedules whose ticks are left to living runners of another version.
    async fn leave_to_others(&self, made: Vec<MadePlan>) -> Result<(Vec<TickPlan>, Vec<Name>), StoreError> {
        let is_asked = made.iter().any(|made| made.invalid.is_some());
        let readers = if is_asked { self.store.readers().await? } else { Vec::new() };
        let (mut plans, mut left) = (Vec::with_capacity(made.len()), Vec::new());
        for MadePlan { plan, invalid } in made {
            if let Some(wrong) = invalid {
                let (name, kind) = (&plan.row.name, &plan.row.schedule.template.kind);
                if another_may_read(&readers, &self.registry, kind.as_str()) && self.is_left(&plan.row) {
                    left.push(name.clone());
                    continue;
                }
                // The record of the tick holds the full reason. The log must not have it, because it may quote the
                // payload.
                tracing::error!(schedule = %name, error = %wrong, "the job of a schedule is not valid for its kind");
            }
            plans.push(plan);
        }
        Ok((plans, left))
    }

    fn is_left(&self, row: &Scheduled) -> bool {
        row.next_at.is_some_and(|tick_at| self.ticks_left().leave(&row.name, tick_at, Instant::now()))
    }

    fn ticks_left(&self) -> MutexGuard<'_, LeftTicks> {
        self.left_ticks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Build the job of a tick.
    fn job_of(&self, row: &Scheduled, tick_at: Timestamp, trace: Option<TraceContext>) -> Result<NewJob, Invalid> {
        let mut job = self.prepare(Draft { trace, ..draft_of(&row.schedule) })?;
        job.options.schedule = Some(ScheduledBy { name: row.name.clone(), tick_at });
        Ok(job)
    }

    async fn announce_ticks(&self, ticked: &Ticked) {
        for id in &ticked.cancelled {
            self.events.emit(Event::Cancelled { id: *id });
        }
        for id in &ticked.stop_requested {
            self.events.emit(Event::CancelRequested { id: *id });
        }
        for line in &ticked.lines {
            let cause = line.cause.map_or("", SkipCause::as_str);
            ticks(line.outcome(), cause).increment(line.ticks.into());
            // A trigger is never late.
            if line.cause.is_none() && line.number == 0 {
                let late = (line.recorded_at - line.due_at).max(TimeDelta::zero()).to_std().unwrap_or_default();
                metrics::histogram!("tickr_schedule_lateness_seconds").record(late.as_secs_f64());
            }
        }
        self.announce(&ticked.accepted);
        for line in &ticked.lines {
            let (name, due_at, job) = (line.schedule.clone(), line.due_at, line.job);
            self.events.emit(Event::ScheduleTicked { name, due_at, job, cause: line.cause, ticks: line.ticks });
        }
        self.hint_heads(&ticked.cancelled).await;
    }
}

/// Let the counters of ticks begin at 0. Otherwise the first ticks that a process counts would be no increase.
pub(super) fn begin_counting() {
    ticks("fired", "").increment(0);
    for cause in SkipCause::ALL {
        ticks("skipped", cause.as_str()).increment(0);
    }
}

fn ticks(outcome: &'static str, cause: &'static str) -> Counter {
    metrics::counter!("tickr_schedule_ticks_total", "outcome" => outcome, "cause" => cause)
}

fn setting(row: &Scheduled) -> SettingChanged {
    SettingChanged { name: row.name.clone(), version: row.tag().to_string(), paused: row.paused.is_some() }
}

fn draft_of(schedule: &Schedule) -> Draft {
    let template = &schedule.template;
    Draft {
        queue: Some(template.queue.to_string()),
        due: Due::Now,
        priority: Some(template.priority.level()),
        max_attempts: template.max_attempts,
        timeout_ms: template.timeout_ms,
        retry: template.retry.clone(),
        order_key: template.order.as_ref().map(|order| order.key.clone()),
        on_failure: template.order.as_ref().map(|order| order.on_failure),
        limit_key: template.limit_key.clone(),
        expires: template.expires_in_ms.map(|ms| Due::After(Duration::from_millis(ms))),
        tags: template.tags.iter().map(ToString::to_string).collect(),
        ..Draft::new(template.kind.to_string(), template.payload.clone())
    }
}

/// Describe why ticks did not fire. Operators read this text in the list of ticks.
fn why_not(row: &Scheduled, planned: &Planned, cause: SkipCause, now: Timestamp) -> String {
    let why = match (cause, &row.paused) {
        (SkipCause::Paused, Some(pause)) => pause.in_words(),
        _ => {
            let late = (now - planned.due_at).num_seconds();
            format!("no runner processed it in time: {late} s late, misfire policy {}", row.schedule.misfire)
        }
    };
    match planned.count {
        1 => why,
        count if planned.counts_no_further() => format!("{why}; this record stands for {count} ticks or more"),
        count => format!("{why}; this record stands for {count} ticks"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickr_job::{Cadence, Misfire};

    const MIB: usize = 1 << 20;

    fn at(second: i64) -> Timestamp {
        chrono::DateTime::from_timestamp(1_800_000_000 + second, 0).unwrap()
    }

    /// Plan this many ticks, one a second, that were all missed and all fire.
    fn missed(ticks: i64) -> Plan {
        let cadence = Cadence::Every { every: Duration::from_secs(1), anchor: at(0) };
        let situation = Situation { from: at(0), now: at(ticks - 1), withheld: None };
        plan(&cadence, Misfire::All, Duration::ZERO, situation)
    }

    #[test]
    fn a_plan_of_large_payloads_is_split_at_a_number_of_bytes() {
        let mut room = PlanRoom::new(400);
        let plan = room.take(missed(100), Overlap::Allow, MIB).unwrap();
        assert_eq!((plan.lines.len(), plan.next), (8, Some(at(8))), "it goes on at the first tick that is left");
        assert_eq!(room.take(missed(1), Overlap::Allow, MIB), None, "this one waits for the next transaction");
        // Such a plan makes one job.
        let mut room = PlanRoom::new(400);
        assert_eq!(room.take(missed(100), Overlap::Replace, MIB), Some(missed(100)));
        assert_eq!(room.take(missed(100), Overlap::Allow, 2), Some(missed(100)));
    }

    #[test]
    fn plans_of_one_transaction_have_no_more_records_than_it_has_room_for() {
        let mut room = PlanRoom::new(400);
        assert!(room.take(missed(199), Overlap::Allow, 2).is_some());
        assert!(room.take(missed(200), Overlap::Allow, 2).is_some());
        assert_eq!(room.take(missed(2), Overlap::Allow, 2), None);
        let mut room = PlanRoom::new(3);
        let plan = room.take(missed(100), Overlap::Allow, 2).unwrap();
        assert_eq!((plan.lines.len(), plan.next), (3, Some(at(3))));
        // Each transaction gets on, however little room it has.
        let plan = PlanRoom::new(1).take(missed(100), Overlap::Allow, MAX_BYTES + 1).unwrap();
        assert_eq!((plan.lines.len(), plan.next), (1, Some(at(1))));
    }
}
