//! The executor: one attempt from its committed claim to its settled verdict, in named steps.
//!
//! start → run → judge → settle → tell. The handler runs in a task of its own. So its panic fails the attempt and not
//! the worker, and the task can be dropped when the handler does not stop.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use tokio::task::JoinError;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::EngineState;
use super::checkpoints;
use super::deferred;
use super::heartbeat::lasting;
use super::live::{LiveGuard, StopReason, StopSwitch};
use super::permits::Permit;
use super::queue_order::is_paused;
use super::released::may_start;
use super::trace::AttemptTrace;
use super::unread::{self, GivenBack, UnreadDecision, UnreadJob, UnreadPart};
use super::worker::{HeldSeat, Successor};
use super::worker_pool::{PATIENCE, Seat, Worker};
use tickr_broker::{Draft, Invalid};
use tickr_event::Event;
use tickr_handlers::{
    CallSlot, CheckpointSlot, Context, ContextParts, ExchangeSlot, Failure, FinishLater, FinishSlot, FollowUp,
    KindDefaults, KnownKind, Outcome, Place, ProgressSlot, Ran, Registered, RemoteVerdict, panic_message,
};
use tickr_job::{CallOutcome, Name, NewJob, TraceContext, Verdict, limits};
use tickr_store::{Again, CheckpointUse, Claim, Claimant, Claimed, Settled, Settlement, Unreadable};
use tickr_telemetry::{AttemptLog, LinePace, LogScope, in_log_scope};

/// Time that a handler has to stop after it was told to, before it is dropped.
pub(super) const STOP_GRACE: Duration = Duration::from_secs(2);
/// Time that a dropped handler has to end, once the grace period of the runner is over.
const LAST_GRACE: Duration = Duration::from_millis(500);
/// Delay of the next attempt of a job whose handler still blocks a thread when its runner stops. The process has ended
/// by then.
const PROCESS_END: Duration = Duration::from_secs(15);

/// Why an attempt ends whose runner stops.
pub(super) const SHUT_DOWN: &str = "the runner shut down";

/// Time before its expiry, at least, at which a job whose kind has no room is looked at once more.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// End of the task of a handler.
enum HandlerEnd {
    /// It returned.
    Returned(Outcome),
    /// It was not started: this binary cannot read the payload. Holds the reason.
    Unread(String),
    /// It panicked with this message.
    Panicked(String),
    /// It did not stop when told to, and was dropped.
    Dropped,
    /// It was dropped and still blocks its thread: it has not reached an await, where a drop takes effect.
    Blocking,
}

/// End the attempt of a job that cannot be read. It would fail in every runner of this version, so it is given back
/// while a runner of another version lives.
pub(super) async fn refuse(shared: &EngineState, unreadable: Unreadable) {
    let Unreadable { id, token, number, kind, queue, error } = unreadable;
    tracing::error!(job = %id, error, "cannot read a job");
    let answer = match (&kind, &queue) {
        (Some(kind), Some(queue)) => {
            unread::decide(shared, UnreadJob { id, kind, queue, number, part: UnreadPart::Options, why: &error }).await
        }
        _ => UnreadDecision { failure: Failure::reject(format!("read the stored job: {error}")), given_back: None },
    };
    let (verdict, error, again) = match answer.failure {
        Failure::Snooze { delay, reason } => (Verdict::Snoozed, reason, Again::ForAnother(delay)),
        Failure::Retry { error } | Failure::Reject { error } => (Verdict::Rejected, error, Again::Now),
    };
    let settlement = Settlement {
        id,
        token,
        number,
        opened: None,
        verdict,
        error: Some(limits::cut(error)),
        exchange: None,
        log: None,
        result: None,
        follow_ups: Vec::new(),
        again,
        call: None,
        checkpoint: CheckpointUse::Unused,
    };
    let SettleEnd { verdict, settled, .. } = settle(shared, settlement, None).await;
    if let Some(given_back) = answer.given_back {
        shared.unread.remember(id, given_back, settled.as_ref());
    }
    if let Some(Settled::Done { state, execute_at, line, released, .. }) = settled {
        released.iter().for_each(|job| shared.broker.hint_released(job));
        if let (Some(execute_at), Some((queue, priority))) = (execute_at, line) {
            shared.broker.hint(id, &queue, priority, execute_at);
        }
        shared.broker.meters().record_settled(queue.as_ref(), verdict, state);
        shared.broker.events().emit(Event::Settled { id, verdict, state });
    }
}

/// Execute a claimed job. `asked` is a moment before the claim was sent; its lease is counted from there. `held` is what
/// the job was fetched with. Return the next job of its order key or limit key, if that was claimed when this one
/// ended.
pub(super) async fn execute(
    shared: &EngineState,
    claimed: Claimed,
    asked: std::time::Instant,
    held: Option<HeldSeat<'_>>,
) -> Option<Successor> {
    let log = AttemptLog::new(shared.settings.attempt_log);
    let scope = LogScope::Attempt {
        job: claimed.id,
        kind: claimed.kind.clone(),
        queue: claimed.queue.clone(),
        attempt: claimed.attempt,
        span_context: claimed.options.trace.as_ref().map(|context| context.span_context),
        log: log.clone(),
    };
    in_log_scope(scope.clone(), attempt(shared, claimed, (asked, held), (scope, log))).await
}

async fn attempt(
    shared: &EngineState,
    mut claimed: Claimed,
    (asked, held): (std::time::Instant, Option<HeldSeat<'_>>),
    (scope, log): (LogScope, AttemptLog),
) -> Option<Successor> {
    let stop = StopSwitch::default();
    let progress = ProgressSlot::default();
    let checkpoint = CheckpointSlot::waking(Arc::clone(&shared.save_checkpoints));
    let finish = FinishSlot::stored_in(Arc::new(deferred::FinishKeys::of(shared, &claimed, &stop)));
    let reported = (progress.clone(), checkpoint.clone(), finish.clone());
    let live = shared.live.insert(claimed.id, claimed.token, asked, stop.clone(), reported);
    if claimed.lost_before {
        shared.workers.record_loss();
    }
    let (mut seat, mut worker, turn) = (None, None, held.as_ref().map(Turn::of));
    if let Some(held) = held {
        (seat, worker) = (Some(held.seat), held.worker);
    }
    let permit = turn.as_ref().map(|turn| turn.permit);
    let claimed_at = Instant::now();
    // If the attempt is told to stop meanwhile, its handler is not started.
    checkpoint.begin_with(checkpoints::read(shared, &claimed, &stop).await);
    let (worker, mut place) = match until_startable(shared, &claimed, (worker, permit), &stop).await {
        Ok(room) => room,
        Err(why) => {
            undo_claim(shared, &claimed, (live, seat), stop.reason(), why).await;
            return None;
        }
    };
    let lateness = (claimed.started_at - claimed.execute_at).to_std().unwrap_or_default() + claimed_at.elapsed();
    shared.attempt_metrics.record_started(&claimed, lateness);
    shared.broker.meters().record_started(&claimed.queue, lateness);
    shared.broker.events().emit(Event::Started { id: claimed.id, number: claimed.number });

    let kind = shared.registry.runnable(claimed.kind.as_str());
    let defaults = kind.as_ref().map_or_else(KindDefaults::default, |kind| kind.defaults().clone());
    let trace = AttemptTrace::begin(&shared.settings.tracer, &claimed);
    let began = Instant::now();
    if let Some(place) = &mut place {
        place.begin();
    }
    let exchange = ExchangeSlot::default();
    let call = CallSlot::default();
    let slots = (progress, checkpoint.clone(), exchange.clone(), call.clone(), finish.clone(), log.clone());
    let payload = std::mem::replace(&mut claimed.payload, RawValue::NULL.to_owned());
    let ended = run(shared, &claimed, (kind, payload), &stop, slots, &defaults, &trace, scope).await;
    let ran = began.elapsed();
    drop(place);
    shared.attempt_metrics.record_ran(&claimed.kind, ran);
    shared.workers.record_run(ran);
    let ended = match ended {
        HandlerEnd::Returned(Ok(output)) => match output.later() {
            Some(later) if finish.is_made() => {
                let left = (later, call.get(), log.close(), &checkpoint);
                leave(shared, &claimed, (live, worker, seat), left, ran).await;
                return None;
            }
            Some(_) => {
                let why = "the handler left the attempt to another system and gave it no finish key";
                HandlerEnd::Returned(Err(Failure::reject(why)))
            }
            None => HandlerEnd::Returned(Ok(output)),
        },
        ended => ended,
    };
    let (ended, given_back) = resolve_unread(shared, &claimed, ended).await;
    if let Some(job) = &given_back {
        shared.unread.leave_to_others(claimed.id, job.clone(), claimed.queue.clone(), claimed.priority);
    }
    let mut settlement = judge(shared, &claimed, ended, stop.reason(), &defaults, trace.trace_context());
    if let (Some(_), &Again::After(delay)) = (&given_back, &settlement.again) {
        settlement.again = Again::ForAnother(delay);
    }
    let keeps_log = settlement.verdict != Verdict::Succeeded || shared.settings.keep_logs_of_successes;
    // What tickr says about the verdict comes after the end of the log.
    settlement.log = log.close().filter(|_| keeps_log);
    if settlement.verdict != Verdict::Succeeded {
        settlement.exchange = exchange.take().and_then(|exchange| serde_json::to_string(&exchange).ok());
    }
    settlement.call = call.after(settlement.verdict);
    shared.live.mark_settling(claimed.id, claimed.token);
    settlement.checkpoint = match checkpoint.unsaved() {
        Some(newest) => CheckpointUse::Unsaved(newest.content),
        None if checkpoint.is_used() => CheckpointUse::Saved,
        None => CheckpointUse::Unused,
    };
    let is_followed = claimed.options.order.is_some() || claimed.was_parked();
    let takes_next = settlement.verdict == Verdict::Succeeded && is_followed;
    let turn = turn.filter(|_| takes_next);
    let next_seat = turn.as_ref().and_then(|turn| turn.seat_for_next(shared, &claimed, &mut seat));
    let room = shared.workers.until_settling((Some(worker), seat)).await;
    let began = Instant::now();
    let claimant = next_seat.as_ref().and(turn.as_ref()).map(|turn| turn.claimant);
    let claimant = claimant.map(|claimant| (claimant, &claimed.queue));
    let SettleEnd { verdict, settled, next } = settle(shared, settlement, claimant).await;
    shared.attempt_metrics.record_settled(began.elapsed());
    drop((live, room));
    // A seat that the next job does not need is free for a job that was released.
    let next = next.zip(next_seat);
    if let Some(given_back) = given_back {
        shared.unread.remember(claimed.id, given_back, settled.as_ref());
    }

    trace.end(&shared.settings.tracer, shared.runner.as_str(), &claimed, verdict);
    shared.attempt_metrics.record_ended(&claimed.kind, verdict);
    let written = match &settled {
        Some(Settled::Done { state, .. }) => Some((verdict, *state)),
        // The runner or the operator that took the lease away has counted it.
        Some(Settled::NotOurs) | None => None,
    };
    shared.broker.meters().record_ended(&claimed.queue, ran, written);
    announce(shared, &claimed, verdict, settled);
    next.map(|((claim, asked), seat)| Successor { claim, asked, seat })
}

/// Leave an attempt to the system that has its finish key, with the newest checkpoint of its handler.
async fn leave(
    shared: &EngineState,
    claimed: &Claimed,
    (live, worker, seat): (LiveGuard<'_>, Worker<'_>, Option<Seat>),
    (later, call, log, checkpoint): (FinishLater, Option<CallOutcome>, Option<String>, &CheckpointSlot),
    ran: Duration,
) {
    shared.live.mark_settling(claimed.id, claimed.token);
    let room = shared.workers.until_settling((Some(worker), seat)).await;
    let call = call.or(Some(CallOutcome::Answered));
    let unsaved = checkpoints::unsaved_after_pass(shared, checkpoint).await;
    let deferred = deferred::defer(shared, claimed, later, (call, log, unsaved)).await;
    drop((live, room));
    shared.broker.meters().record_ended(&claimed.queue, ran, None);
    if deferred {
        shared.broker.events().emit(Event::Deferred { id: claimed.id });
    } else {
        // The system was faster. The process of a suspect reports nothing then, and its runner asks MySQL.
        tracing::debug!(job = %claimed.id, number = claimed.number, "the attempt had ended before it could be deferred");
    }
}

/// Longest time for which the jobs of one order key follow each other on one seat, or on one permit of a limited queue.
/// Then jobs that were due before the next one of the key, and those of a higher priority, have their turn.
const MAX_TURN: Duration = Duration::from_millis(20);

/// What the jobs of one order key or limit key run with that follow each other.
struct Turn<'a> {
    permit: &'a Permit,
    claimant: &'a Claimant,
    since: std::time::Instant,
}

impl<'a> Turn<'a> {
    fn of(held: &HeldSeat<'a>) -> Self {
        Self { permit: held.permit, claimant: held.claimant, since: held.since }
    }

    /// Return a seat for the job that follows this one: a free one, or, for an order key, the seat of this one while
    /// its turn lasts. Return nothing if that job should not start here.
    fn seat_for_next(&self, shared: &EngineState, claimed: &Claimed, seat: &mut Option<Seat>) -> Option<Seat> {
        let lasts = self.since.elapsed() < MAX_TURN;
        let may_start = may_start(shared, &claimed.queue) && self.permit.is_usable();
        if !may_start || !lasts && self.permit.is_scarce() {
            return None;
        }
        let may_keep_its_own = lasts && claimed.options.order.is_some();
        shared.workers.another_seat().or_else(|| if may_keep_its_own { seat.take() } else { None })
    }
}

/// Why a handler may not start now.
#[derive(Clone, Copy)]
struct NotNow {
    why: &'static str,
    /// How long the job is given back for. None: it keeps its position.
    rest: Option<Duration>,
}

impl From<&'static str> for NotNow {
    fn from(why: &'static str) -> Self {
        Self { why, rest: None }
    }
}

/// Wait for a worker, and for a place if the kind has fewer of them. Return the reason if the handler may not start.
async fn until_startable<'a>(
    shared: &'a EngineState,
    claimed: &Claimed,
    (worker, permit): (Option<Worker<'a>>, Option<&Permit>),
    stop: &StopSwitch,
) -> Result<(Worker<'a>, Option<Place>), NotNow> {
    let worker = match worker {
        Some(worker) => worker,
        None => free_worker(shared, stop).await?,
    };
    let kind = shared.registry.runnable(claimed.kind.as_str());
    let entered = match kind.as_deref().and_then(Registered::room) {
        Some(room) => {
            // Jobs of other kinds need the last worker, and other runners the permits of a limited queue.
            let scarce = permit.is_some_and(Permit::is_scarce);
            let may_wait = || !scarce && shared.workers.has_free_worker();
            Some(room.enter(claimed.priority, may_wait, stop.token()).await)
        }
        None => None,
    };
    if let Some(why) = why_not_now(shared, claimed, permit, stop) {
        return Err(why.into());
    }
    match entered.transpose() {
        Ok(place) => Ok((worker, place)),
        Err(rest) => Err(NotNow { why: "its kind had no room before its handler could start", rest: Some(rest) }),
    }
}

/// Return the reason if the handler may not start now, although a worker is free. Much may have happened since the
/// claim, because this process may have been frozen and MySQL may have been slow to write the verdicts of other jobs.
fn why_not_now(
    shared: &EngineState,
    claimed: &Claimed,
    permit: Option<&Permit>,
    stop: &StopSwitch,
) -> Option<&'static str> {
    if stop.reason().is_some() {
        return Some("it was told to stop before its handler started");
    }
    if shared.registry.runnable(claimed.kind.as_str()).is_none() {
        return Some("its kind was removed, or given to remote workers, before its receiver was called");
    }
    // Another runner may have run the job by now, and its handler would run once more.
    if !shared.live.is_leased(claimed.id, claimed.token, lasting(shared.settings.lease)) {
        return Some("its lease ended before its handler could start");
    }
    if has_expired(shared, claimed) {
        return Some("it expired before its handler could start");
    }
    // Without a permit this is a suspect. Its runner has checked all of this before it started the process.
    let permit = permit?;
    let settings = shared.operator_settings.now();
    if settings.drained || is_paused(&settings, &claimed.queue) {
        return Some("its queue was paused or its runner drained before its handler could start");
    }
    if !permit.is_usable() {
        return Some(
            "the limit of its queue or the heartbeat of its runner left no room before its handler could start",
        );
    }
    None
}

/// Return whether the job has expired since its claim, or may have.
fn has_expired(shared: &EngineState, claimed: &Claimed) -> bool {
    claimed.expires_at.is_some_and(|at| shared.store.clock().may_have_come(at))
}

async fn free_worker<'a>(shared: &'a EngineState, stop: &StopSwitch) -> Result<Worker<'a>, &'static str> {
    loop {
        tokio::select! {
            biased;
            worker = shared.workers.worker() => return Ok(worker),
            () = stop.token().cancelled() => return Err("it was told to stop before its handler started"),
            // While MySQL is slow to write verdicts, giving a job back would only be one more.
            () = tokio::time::sleep(PATIENCE) => if !shared.workers.wait_for_verdicts() {
                shared.workers.record_waited_too_long();
                return Err("it was claimed ahead and no worker became free, so no handler was started");
            },
        }
    }
}

/// End an attempt whose handler was not started. A cancel ends its job. Otherwise the claim is undone, and the attempt
/// leaves no row. The job waits in its old position, or, if its kind has no room, until it is looked at again.
async fn undo_claim(
    shared: &EngineState,
    claimed: &Claimed,
    (live, seat): (LiveGuard<'_>, Option<Seat>),
    stopped: Option<StopReason>,
    NotNow { why, rest }: NotNow,
) {
    tracing::debug!(job = %claimed.id, queue = %claimed.queue, why, "giving a job back before its start");
    let mut settlement = judge(shared, claimed, HandlerEnd::Dropped, stopped, &KindDefaults::default(), None);
    if stopped != Some(StopReason::Cancel) {
        settlement.verdict = Verdict::Interrupted;
        let left = claimed.expires_at.map(|at| (at - shared.store.clock().now()).to_std().unwrap_or_default());
        // Not all in the same moment, if many expire at the same time.
        let left = left.map(|left| left.mul_f64(1.0 - rand::random::<f64>() / 4.0));
        let rest = rest.map(|rest| within_expiry(rest, left));
        settlement.again = rest.map_or(Again::Unstarted, Again::UnstartedFor);
    }
    settlement.error = Some(why.to_owned());
    shared.live.mark_settling(claimed.id, claimed.token);
    let room = shared.workers.until_settling((None, seat)).await;
    let SettleEnd { verdict, settled, .. } = settle(shared, settlement, None).await;
    drop((live, room));
    match settled {
        Some(Settled::Done { execute_at: Some(execute_at), line: Some((queue, priority)), released, .. }) => {
            if has_expired(shared, claimed) {
                shared.broker.hint_expired(claimed.id, &queue, priority, execute_at);
            } else if rest.is_some() {
                shared.broker.hint(claimed.id, &queue, priority, execute_at);
            } else {
                shared.broker.hint_first(claimed.id, &queue, priority, execute_at);
            }
            shared.start_or_hint(released);
        }
        settled => {
            if let Some(Settled::Done { state, .. }) = &settled {
                shared.attempt_metrics.record_ended(&claimed.kind, verdict);
                shared.broker.meters().record_settled(Some(&claimed.queue), verdict, *state);
            }
            announce(shared, claimed, verdict, settled);
        }
    }
}

/// Return a rest after which a job that may start within `left` can still start. After its last look, a job rests as
/// others do.
fn within_expiry(rest: Duration, left: Option<Duration>) -> Duration {
    match left.and_then(|left| left.checked_sub(LAST_LOOK)) {
        Some(until_last_look) if !until_last_look.is_zero() => rest.min(until_last_look),
        _ => rest,
    }
}

/// Decide about an attempt whose payload this binary cannot read.
async fn resolve_unread(shared: &EngineState, claimed: &Claimed, ended: HandlerEnd) -> (HandlerEnd, Option<GivenBack>) {
    let HandlerEnd::Unread(why) = ended else { return (ended, None) };
    let Claimed { id, kind, queue, number, .. } = claimed;
    let unread_job = UnreadJob { id: *id, kind, queue, number: *number, part: UnreadPart::Payload, why: &why };
    let UnreadDecision { failure, given_back } = unread::decide(shared, unread_job).await;
    (HandlerEnd::Returned(Err(failure)), given_back)
}

/// What a handler writes to through its context.
type Slots = (ProgressSlot, CheckpointSlot, ExchangeSlot, CallSlot, FinishSlot, AttemptLog);

/// Run the handler until it returns, panics, or has to be dropped.
#[expect(clippy::too_many_arguments, reason = "an attempt and what was made for it")]
async fn run(
    shared: &EngineState,
    claimed: &Claimed,
    (kind, payload): (Option<KnownKind<'_>>, Box<RawValue>),
    stop: &StopSwitch,
    (progress, checkpoint, exchange, call, finish, log): Slots,
    defaults: &KindDefaults,
    trace: &AttemptTrace,
    scope: LogScope,
) -> HandlerEnd {
    let Some(kind) = kind else {
        // The claim takes only jobs of these kinds, and the claim of a kind that was removed since is undone.
        return HandlerEnd::Returned(Err(Failure::retry(format!("no handler for kind {}", claimed.kind))));
    };
    let limit = claimed.options.time_limit_ms().map_or(defaults.timeout, Duration::from_millis);
    let deadline = deadline_of(limit);
    let context = Context::new(ContextParts {
        job: claimed.id,
        kind: claimed.kind.clone(),
        queue: claimed.queue.clone(),
        attempt: claimed.attempt,
        max_attempts: claimed.max_attempts,
        token: claimed.token,
        deadline,
        started_at: claimed.started_at,
        clock: (shared.broker.store().clock().now(), Instant::now()),
        time_limit: limit,
        tags: claimed.options.tags.iter().map(ToString::to_string).collect(),
        stop: stop.token().clone(),
        progress,
        checkpoint,
        finish,
        trace: trace.trace_context().cloned(),
        exchange,
        call,
        log,
    })
    .with(shared.client.attachment());
    // A spawned task does not inherit the log scope, so pass it on. The task is aborted if this one panics.
    // A handler that blocks its thread outlives its runner. If it held the reports, which hold the store, the stop would
    // wait for it.
    let (running, registry) = (kind.run(payload, context.clone()), Arc::downgrade(&shared.registry));
    let handler = async move {
        let ran = running.await;
        let reports = registry.upgrade().and_then(|registry| registry.large_results().cloned());
        match (ran, reports) {
            (Ran::Returned(Ok(output)), Some(reports)) => {
                Ran::Returned(reports.keep_large_result(output, &context).await)
            }
            (ran, _) => ran,
        }
    };
    let mut handler = AbortOnDropHandle::new(tokio::spawn(in_log_scope(scope, handler)));
    let returned = tokio::select! {
        returned = &mut handler => Some(returned),
        () = stop.token().cancelled() => None,
        () = tokio::time::sleep_until(deadline) => {
            stop.trigger(StopReason::Deadline);
            None
        }
    };
    let returned = match returned {
        Some(returned) => Some(returned),
        // The handler was told to stop. It may still finish, and then its result counts.
        None => tokio::time::timeout(STOP_GRACE, &mut handler).await.ok(),
    };
    match returned {
        Some(Ok(Ran::Returned(outcome))) => HandlerEnd::Returned(outcome),
        Some(Ok(Ran::Unread(why))) => HandlerEnd::Unread(why),
        Some(Err(error)) => HandlerEnd::Panicked(panic_cause(error)),
        None => drop_handler(shared, claimed, handler).await,
    }
}

/// Return the moment at which the time limit of an attempt that starts now is over.
fn deadline_of(limit: Duration) -> Instant {
    let now = Instant::now();
    // Only the program itself has defaults as long as that.
    now.checked_add(limit).unwrap_or_else(|| now + limits::MAX_TIMEOUT)
}

/// Drop a handler that did not stop when told to, and wait until it has ended, so that the next attempt of the job does
/// not overlap it. Its result does not count any more. A handler that blocks its thread may do so for ever, so the wait
/// ends after one lease, which is renewed meanwhile. Then the worker slot is free again, but the thread is not.
async fn drop_handler(shared: &EngineState, claimed: &Claimed, mut handler: AbortOnDropHandle<Ran>) -> HandlerEnd {
    // This takes effect at the handler's next await.
    handler.abort();
    let last = async {
        tokio::select! {
            () = tokio::time::sleep(shared.settings.lease) => {}
            () = async {
                shared.grace_over.cancelled().await;
                tokio::time::sleep(LAST_GRACE).await;
            } => {}
        }
    };
    tokio::select! {
        _ = &mut handler => HandlerEnd::Dropped,
        () = last => {
            tracing::error!(job = %claimed.id, kind = %claimed.kind, "a handler blocks its thread and does not end, freeing its worker slot");
            shared.attempt_metrics.record_blocked(&claimed.kind);
            HandlerEnd::Blocking
        }
    }
}

/// Decide the verdict and what follows from it. The only input beside the arguments is a random number for the backoff.
fn judge(
    shared: &EngineState,
    claimed: &Claimed,
    ended: HandlerEnd,
    stopped: Option<StopReason>,
    defaults: &KindDefaults,
    trace: Option<&TraceContext>,
) -> Settlement {
    let policy = claimed.options.backoff().unwrap_or(&defaults.retry).clone();
    let chance = rand::random();
    // The blocking handler ends with the process at the latest. The next attempt should not overlap it.
    let not_before = match ended {
        HandlerEnd::Blocking if shared.grace_over.is_cancelled() => Some(PROCESS_END),
        _ => None,
    };
    let backoff = match not_before {
        Some(pause) => Again::After(policy.delay(claimed.attempt, chance).max(pause)),
        None => Again::Backoff(policy, chance),
    };
    let mut settlement = Settlement {
        id: claimed.id,
        token: claimed.token,
        number: claimed.number,
        opened: Some(claimed.opened()),
        verdict: Verdict::Succeeded,
        error: None,
        exchange: None,
        log: None,
        result: None,
        follow_ups: Vec::new(),
        again: backoff,
        call: None,
        checkpoint: CheckpointUse::Unused,
    };
    let failed = |mut settlement: Settlement, verdict: Verdict, error: String| {
        settlement.verdict = verdict;
        settlement.error = Some(limits::cut(error));
        settlement
    };
    match (ended, stopped) {
        (HandlerEnd::Returned(Ok(mut output)), _) => {
            match output.take_verdict() {
                Some(RemoteVerdict::Failed(error, delay)) => {
                    settlement.again =
                        delay.map_or(settlement.again, |delay| Again::After(delay.min(limits::MAX_AHEAD)));
                    return failed(settlement, Verdict::Failed, error);
                }
                Some(RemoteVerdict::Released(reason)) => {
                    settlement.again = Again::NowWithinBounds;
                    return failed(settlement, Verdict::Interrupted, reason);
                }
                _ => {}
            }
            let (result, follow_ups) = output.into_parts();
            match follow_ups.into_iter().map(|job| prepare(shared, claimed, job, trace)).collect() {
                Ok(jobs) => settlement.follow_ups = jobs,
                Err((verdict, error)) => return failed(settlement, verdict, error),
            }
            settlement.result = result.map(|result| kept_result(claimed, result));
            settlement
        }
        (HandlerEnd::Panicked(message), _) => failed(settlement, Verdict::Panicked, format!("panicked: {message}")),
        (_, Some(StopReason::Cancel)) => failed(settlement, Verdict::Cancelled, "cancelled while it ran".into()),
        (_, Some(StopReason::Deadline)) => {
            let ms = claimed.options.time_limit_ms().unwrap_or(defaults.timeout.as_millis() as u64);
            failed(settlement, Verdict::TimedOut, format!("timed out after {ms} ms"))
        }
        (_, Some(reason @ (StopReason::Shutdown | StopReason::GivenBack))) => {
            settlement.again = not_before.map_or(Again::Now, Again::After);
            failed(settlement, Verdict::Interrupted, why_given_back(reason).into())
        }
        (_, Some(StopReason::LeaseLost)) => {
            settlement.again = Again::NowWithinBounds;
            failed(settlement, Verdict::Interrupted, "the lease could not be renewed in time".into())
        }
        (HandlerEnd::Returned(Err(Failure::Retry { error })), None) => failed(settlement, Verdict::Failed, error),
        (HandlerEnd::Returned(Err(Failure::Reject { error })), None) => failed(settlement, Verdict::Rejected, error),
        (HandlerEnd::Returned(Err(Failure::Snooze { delay, reason })), None) => {
            settlement.again = Again::After(delay.min(limits::MAX_AHEAD));
            failed(settlement, Verdict::Snoozed, reason)
        }
        (HandlerEnd::Unread(why), None) => failed(settlement, Verdict::Rejected, why),
        (HandlerEnd::Dropped | HandlerEnd::Blocking, None) => {
            failed(settlement, Verdict::Failed, "the handler was dropped".into())
        }
    }
}

/// Return the result that the row of a completed job keeps: a note in place of one that is too large even for a file. The
/// work is done, so the job does not fail because of it.
fn kept_result(claimed: &Claimed, result: Box<RawValue>) -> Box<RawValue> {
    let bytes = result.get().len();
    if bytes <= limits::MAX_RESULT_BYTES {
        return result;
    }
    // A smaller one has become a file.
    let most = limits::MAX_FILED_RESULT_BYTES;
    tracing::warn!(job = %claimed.id, kind = %claimed.kind, bytes, most, "a result is too large to be kept");
    let note = json!({"not_kept": format!("the result has more than {most} bytes"), "bytes": bytes});
    to_raw_value(&note).unwrap_or_default()
}

/// Return the error of an attempt that was given back. A process that runs one suspect does not know whether its runner
/// shuts down, has no permit for it, or is gone.
fn why_given_back(reason: StopReason) -> &'static str {
    if reason == StopReason::GivenBack { "its process was stopped and gave the job back" } else { SHUT_DOWN }
}

/// Build the job of a follow-up. If it is not valid, return the verdict of the attempt that asked for it.
fn prepare(
    shared: &EngineState,
    claimed: &Claimed,
    follow_up: FollowUp,
    trace: Option<&TraceContext>,
) -> Result<NewJob, (Verdict, String)> {
    let kind = follow_up.kind.clone();
    let draft = Draft::of_follow_up(follow_up, claimed.options.batch, trace.cloned());
    shared.broker.prepare_follow_up(draft).map_err(|invalid| {
        let verdict = match &invalid {
            Invalid::Panicked(_) => Verdict::Panicked,
            Invalid::UnknownKind { .. } | Invalid::Payload { .. } | Invalid::Job { .. } => Verdict::Rejected,
        };
        (verdict, format!("the follow-up {kind} job cannot be enqueued: {}", invalid.in_full()))
    })
}

/// How the settlement of an attempt ended.
struct SettleEnd {
    /// The verdict that was written.
    verdict: Verdict,
    settled: Option<Settled>,
    /// The claim of the next job of the order key or limit key, and a moment before it was sent.
    next: Option<(Claim, std::time::Instant)>,
}

/// Write the verdict. The work is done, so keep trying while the process lives, until the verdict is written, another
/// attempt holds the job, or MySQL refuses this row for good. With a claimant, the next job of the order key or limit
/// key is claimed if it is in this queue.
async fn settle(shared: &EngineState, settlement: Settlement, mut claimant: Option<(&Claimant, &Name)>) -> SettleEnd {
    // Most are written at once, so the store gets this one and no copy.
    let mut settlement = Arc::new(settlement);
    let mut pause = Duration::from_millis(100);
    let mut lines = LinePace::new();
    let mut bare = false;
    loop {
        let asked = std::time::Instant::now();
        let written = match claimant {
            Some((claimant, queue)) if may_start(shared, queue) => {
                shared.store.settle_and_claim_next(Arc::clone(&settlement), claimant).await
            }
            _ => shared.store.settle(Arc::clone(&settlement)).await.map(|settled| (settled, None)),
        };
        let unsettled = |verdict| SettleEnd { verdict, settled: None, next: None };
        match written {
            Ok((settled, next)) => {
                let next = next.map(|claim| (claim, asked));
                return SettleEnd { verdict: settlement.verdict, settled: Some(settled), next };
            }
            // Perhaps it is the claim that MySQL refuses.
            Err(error) if error.is_about_the_row() && claimant.is_some() => {
                tracing::warn!(job = %settlement.id, %error, "cannot settle an attempt and claim the next job of its key");
                claimant = None;
                continue;
            }
            // Work that was done must not be lost for its log.
            Err(error) if error.is_about_the_row() && settlement.log.is_some() => {
                tracing::error!(job = %settlement.id, %error, "mysql refuses the outcome of an attempt, settling it without its log");
                Arc::make_mut(&mut settlement).log = None;
                continue;
            }
            Err(error) if error.is_about_the_row() && !bare => {
                tracing::error!(job = %settlement.id, %error, "mysql refuses the outcome of an attempt, settling it without");
                (settlement, bare) = (Arc::new(without_outcome(&settlement)), true);
                continue;
            }
            Err(error) if error.is_about_the_row() => {
                // The lease ends and the attempt counts as lost. That is late, but nothing wrong is recorded.
                tracing::error!(job = %settlement.id, %error, "mysql refuses the verdict of an attempt, its lease will end");
                return unsettled(settlement.verdict);
            }
            Err(error) => {
                if lines.next_line().is_some() {
                    tracing::warn!(job = %settlement.id, %error, "cannot settle yet, trying again");
                }
                shared.store_failed();
            }
        }
        tokio::select! {
            () = shared.give_up.cancelled() => return unsettled(settlement.verdict),
            () = tokio::time::sleep(pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)) => {}
        }
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// Build the settlement of an attempt whose outcome MySQL refuses to store. As a lost attempt the job would run again,
/// with the same outcome. Work that was done must not be done again either, so a success without its result fails the
/// job, and the error says why.
fn without_outcome(settlement: &Settlement) -> Settlement {
    let verdict = settlement.verdict;
    let why = format!(
        "the attempt ended as {verdict}, and MySQL refuses to store its outcome; the log of its runner says why"
    );
    let verdict = if verdict == Verdict::Succeeded { Verdict::Rejected } else { verdict };
    let (opened, result, follow_ups) = (None, None, Vec::new());
    let checkpoint = CheckpointUse::Unused;
    Settlement {
        verdict,
        error: Some(why),
        exchange: None,
        opened,
        result,
        follow_ups,
        checkpoint,
        ..settlement.clone()
    }
}

/// Tell the index and the listeners of events.
fn announce(shared: &EngineState, claimed: &Claimed, verdict: Verdict, settled: Option<Settled>) {
    match settled {
        Some(Settled::Done { state, execute_at, line, follow_ups, released }) => {
            if let (Some(execute_at), Some((queue, priority))) = (execute_at, line) {
                shared.broker.hint(claimed.id, &queue, priority, execute_at);
            }
            shared.broker.announce(&follow_ups);
            shared.start_or_hint(released);
            if verdict != Verdict::Succeeded {
                tracing::info!(job = %claimed.id, kind = %claimed.kind, attempt = claimed.attempt, %verdict, %state, "attempt ended");
            }
            shared.broker.events().emit(Event::Settled { id: claimed.id, verdict, state });
        }
        Some(Settled::NotOurs) => {
            tracing::warn!(job = %claimed.id, number = claimed.number, %verdict, "lease was lost, verdict dropped");
            metrics::counter!("tickr_leases_lost_total").increment(1);
            shared.broker.events().emit(Event::LeaseLost { id: claimed.id });
        }
        None => {}
    }
}

fn panic_cause(error: JoinError) -> String {
    error.try_into_panic().map_or_else(|_| "the task was cancelled".into(), panic_message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_limit_beyond_what_a_clock_can_count_ends_an_attempt_later_and_not_at_once() {
        assert!(deadline_of(Duration::from_secs(1)) < Instant::now() + Duration::from_secs(2));
        assert!(deadline_of(Duration::MAX) > Instant::now() + limits::MAX_TIMEOUT / 2);
    }

    #[test]
    fn a_job_without_a_place_is_looked_at_once_more_before_it_expires() {
        for (rest_ms, left_ms, within_ms) in [
            (60_000, None, 60_000),
            (60_000, Some(90_000), 60_000),
            (60_000, Some(30_000), 29_000),
            (500, Some(1_200), 200),
            (500, Some(1_000), 500),
            (500, Some(200), 500),
        ] {
            let within = within_expiry(Duration::from_millis(rest_ms), left_ms.map(Duration::from_millis));
            assert_eq!(within, Duration::from_millis(within_ms), "{left_ms:?}");
        }
    }
}
