//! Remote workers: their requests for jobs on the way to the engine, their heartbeats, and their verdicts.
//!
//! An attempt that was claimed for a request and does not reach its worker is given back: the [`JobDelivery`] that carries
//! it does that when it is dropped before it was delivered.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::Broker;
use crate::leftovers::{ByToken, Leftovers, Return};
use tickr_event::Event;
use tickr_handlers::{FollowUp, Problem, RemoteVerdict};
use tickr_job::{
    AttemptToken, CallOutcome, JobId, Name, Progress, RetryPolicy, RunnerId, State, Timestamp, Verdict, limits,
};
use tickr_store::{
    Again, BegunFetch, CheckpointUse, Claimed, GiveBack, HANDED_OUT_WITHIN, HeldAttempt, LimitKey, NewCheckpoint,
    OverdueAttempt, Reading, Reaped, RemoteAttempt, RemoteFetch, Returned, Settled, Settlement, StoreError,
};

/// Time beyond its time limit for which an attempt may still be finished by its worker. From the limit on, heartbeats tell
/// the worker to stop it.
const TIMEOUT_GRACE: Duration = Duration::from_secs(10);

/// Time for which this process remembers that it told a worker to stop an attempt.
const TOLD_FOR: Duration = Duration::from_secs(2 * 3_600);

/// Time that every request waits, so that one that wants to wait for nothing gets the jobs that are due.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);

/// Time for which verdicts that were not written yet are waited for after the last one that was, and if none was. One
/// that another session holds up by a locked row must not delay the answer to the others, nor those that its worker
/// sends with its next call.
const VERDICT_PATIENCE: Duration = Duration::from_secs(2);
const LONELY_PATIENCE: Duration = Duration::from_secs(5);

/// Time for which a heartbeat tries to save checkpoints whose rows other sessions lock, and the pause between two
/// tries.
const CHECKPOINT_PATIENCE: Duration = Duration::from_millis(500);
const CHECKPOINT_PAUSE: Duration = Duration::from_millis(50);

/// Part of a lease for which a heartbeat waits for MySQL to save its checkpoints. Its client may wait for a sixth.
const SAVED_WITHIN: u32 = 10;

/// Time that a heartbeat has for the ends of attempts whose time is over. Its client may wait for a sixth of a lease
/// only, which is 1.7 seconds at the least.
const ENDING_PATIENCE: Duration = Duration::from_millis(200);

/// Time between two looks whether this process stops, and the time that a verdict under way has then.
const STOP_LOOK: Duration = Duration::from_millis(500);
const STOP_PATIENCE: Duration = Duration::from_secs(1);

/// Why attempts that did not reach their worker are given back, and those of a worker that has left.
const UNDELIVERED: &str = "its worker did not receive it, so no attempt is used";
const LIMITED: &str = "a limit changed while it was claimed, so no attempt is used";
const EXPIRED: &str = "it expired before it reached its worker";
const LEFT: &str = "its worker ended and gave it back";

/// A request for jobs that waits.
#[derive(Debug)]
pub struct Poll {
    /// The request.
    pub fetch: RemoteFetch,
    /// Most jobs to return.
    pub slots: usize,
    /// When the request ends without a job.
    pub until: Instant,
    /// True if the worker holds nothing, so that a suspect may be executed alone.
    pub idle: bool,
    /// The way back.
    pub answer: oneshot::Sender<JobDelivery>,
}

/// The two ends of the way from the API to the engine.
#[derive(Debug)]
pub(super) struct Polls {
    entrance: mpsc::UnboundedSender<Poll>,
    exit: Mutex<Option<mpsc::UnboundedReceiver<Poll>>>,
    limits: TimeLimits,
    pub(super) tasks: TaskTracker,
    endings: Mutex<HashMap<EndingKey, Ending>>,
    pub(super) leftovers: Leftovers,
}

/// An attempt and its verdict: the word and the error. Two verdicts with different errors are different.
type EndingKey = (JobId, AttemptToken, &'static str, Option<String>);

/// The way to the answer of a verdict that is being written. A call that repeats the verdict waits for the same answer.
type Ending = watch::Receiver<Option<Result<WorkerFinished, StoreError>>>;

/// A verdict that is being written. When this is dropped, a call that repeats the verdict begins anew.
struct UnderWay {
    polls: Arc<Polls>,
    key: EndingKey,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.polls.endings.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

impl Polls {
    pub(super) fn new(tasks: &TaskTracker) -> Self {
        let (entrance, exit) = mpsc::unbounded_channel();
        Self {
            entrance,
            exit: Mutex::new(Some(exit)),
            limits: TimeLimits::default(),
            tasks: tasks.clone(),
            endings: Mutex::default(),
            leftovers: Leftovers::default(),
        }
    }
}

/// What the clock of MySQL says about time limits, as far as this process knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockTrust {
    /// The clock was set, or MySQL stood still, within the last lease, or this process has not read when the clock was
    /// set before: time limits that look over may not be.
    Doubtful,
    /// This process has not watched the clock for long enough to end attempts by it.
    Unwatched,
    /// Attempts may be ended by it.
    Sure,
}

type JudgeOfClock = Box<dyn Fn(&Reading) -> ClockTrust + Send + Sync>;
type StepsOfClock = Box<dyn Fn(Timestamp) -> Duration + Send + Sync>;

/// The attempts of workers whose time is over. Age is measured by the clock of MySQL, which may be set. So a step ahead
/// that this process knows of is taken off the age of each attempt that started before it. And an attempt is ended only
/// when its worker was told to stop it long enough before.
///
/// The heartbeats of a worker may reach any process, and each process knows what it has told itself. What another
/// process has told follows from the heartbeat before, unless that process may have doubted the clock.
#[derive(Default)]
struct TimeLimits {
    clock: OnceLock<(JudgeOfClock, StepsOfClock)>,
    told: Mutex<HashMap<(JobId, AttemptToken), Instant>>,
    /// When a heartbeat came last while this process doubted the clock, so that no worker was told anything.
    doubted: Mutex<Option<Instant>>,
}

impl std::fmt::Debug for TimeLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TimeLimits")
    }
}

impl TimeLimits {
    fn judge(&self, reading: Option<&Reading>) -> ClockTrust {
        let trust = match (self.clock.get(), reading) {
            (Some((judge, _)), Some(reading)) => judge(reading),
            _ => ClockTrust::Sure,
        };
        if trust == ClockTrust::Doubtful {
            *self.doubted.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        trust
    }

    /// Return by how much the clock was set ahead since this moment of it, as far as this process knows.
    fn set_ahead_since(&self, moment: Timestamp) -> Duration {
        self.clock.get().map_or(Duration::ZERO, |(_, set_ahead_since)| set_ahead_since(moment))
    }

    /// Note that a worker is told to stop an attempt, and that it was told this long before as well. Return how long
    /// ago it was told first, as far as this process knows.
    fn tell(&self, id: JobId, token: AttemptToken, before: Duration) -> Duration {
        let now = Instant::now();
        let since = now.checked_sub(before).unwrap_or(now);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|_, since| since.elapsed() < TOLD_FOR);
        let first = told.entry((id, token)).or_insert(since);
        *first = since.min(*first);
        first.elapsed()
    }

    /// Return how long ago the worker of an attempt, which is over its time by this, was told to stop it by any
    /// process, at the least. Zero if nothing says that it was told.
    fn told_by_others(&self, overdue: &OverdueAttempt, over: Duration, lease: Duration) -> Duration {
        // The heartbeat before this one must have come after the time was over, and listed the attempt.
        let Some(before) = overdue.listed_before.filter(|before| *before <= over) else { return Duration::ZERO };
        let doubted = *self.doubted.lock().unwrap_or_else(PoisonError::into_inner);
        if doubted.is_some_and(|at| at.elapsed() < lease + TIMEOUT_GRACE) {
            return Duration::ZERO;
        }
        // A worker that keeps its lease has listed the attempt within the first lease after the end of its time.
        before.max(over.saturating_sub(lease))
    }
}

/// Attempts on their way to a worker. Those that are not delivered when this is dropped are given back.
#[derive(Debug)]
pub struct JobDelivery {
    broker: Broker,
    worker: Arc<RunnerId>,
    claimed: Vec<Claimed>,
    delivered: bool,
    /// When the attempts were claimed at the earliest, and until when they may be handed out.
    claimed_since: Option<(Instant, Duration)>,
    /// An operator has drained the worker.
    pub drained: bool,
}

impl JobDelivery {
    /// The attempts.
    #[must_use]
    pub fn claimed(&self) -> &[Claimed] {
        &self.claimed
    }

    /// Note that the attempts were claimed after this moment, for a worker with this lease. Those of a repeated request
    /// were claimed for the first one.
    pub fn note_claim(&mut self, since: Instant, lease: Duration) {
        self.claimed_since = Some((since, lease / HANDED_OUT_WITHIN));
    }

    /// Return an empty delivery in the place of one whose attempts were claimed so long ago that a heartbeat may give
    /// them back before the worker lists them. Those are given back.
    #[must_use]
    pub fn unless_old(self) -> Self {
        let Some((since, within)) = self.claimed_since.filter(|(since, within)| since.elapsed() >= *within) else {
            return self;
        };
        // The claim itself may have waited for a lock. So the clock of the database must say the same.
        let now = self.broker.store.clock().now();
        let is_old = |claimed: &Claimed| (now - claimed.started_at).to_std().is_ok_and(|age| age >= within);
        if !self.claimed.iter().any(is_old) {
            return self;
        }
        tracing::debug!(worker = %self.worker, ms = since.elapsed().as_millis(), "attempts are too old to hand out");
        self.broker.delivery(&self.worker, Vec::new(), self.drained)
    }

    /// Note that the attempts are on the wire.
    pub fn delivered(&mut self) {
        self.delivered = true;
    }
}

impl Drop for JobDelivery {
    fn drop(&mut self) {
        if self.delivered || self.claimed.is_empty() {
            return;
        }
        let (broker, worker) = (self.broker.clone(), Arc::clone(&self.worker));
        let attempts = self.claimed.iter().map(|claimed| (claimed.token, claimed.id));
        let attempts = grouped(attempts);
        let how = Return { why: UNDELIVERED, which: Returned::Unreached };
        self.broker.polls.tasks.spawn(async move { broker.give_back_unreached(&worker, attempts, how).await });
    }
}

/// A verdict about an attempt.
#[derive(Clone, Debug)]
pub struct WorkerFinish {
    /// The job.
    pub id: JobId,
    /// The token of the attempt.
    pub token: AttemptToken,
    /// The number of the execution.
    pub number: u32,
    /// The verdict.
    pub verdict: RemoteVerdict,
    /// The newest lines of its log.
    pub log: Option<String>,
    /// JSON with which the next attempt begins.
    pub checkpoint: Option<Arc<str>>,
    /// Jobs to enqueue with the success.
    pub follow_ups: Vec<FollowUp>,
    /// Why the caller may not enqueue them. None of them is enqueued unless this is empty.
    pub refused: Vec<Problem>,
}

/// The answer to a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerFinished {
    /// The attempt has this verdict, now or by the same call before, and the job is in this state.
    Settled(State),
    /// The attempt had ended otherwise. Nothing was changed.
    LeaseLost,
    /// There is no such job, or the caller may not work on its kind and queue and does not hold the attempt.
    Unknown,
    /// The verdict is not written yet: another session locks the row of the job, or it cannot be read. The attempt
    /// waits for it.
    Locked,
    /// The follow-up jobs of the verdict cannot be enqueued. Nothing was changed, and the attempt waits for a verdict.
    Refused(Vec<Problem>),
}

/// An attempt that a worker lists in its heartbeat.
#[derive(Clone, Debug)]
pub struct WorkerReport {
    /// The job.
    pub id: JobId,
    /// The token of the attempt.
    pub token: AttemptToken,
    /// Its progress.
    pub progress: Option<Progress>,
    /// A checkpoint to save, as JSON.
    pub checkpoint: Option<Arc<str>>,
}

/// The answer to the heartbeat of a worker.
#[derive(Clone, Debug, Default)]
pub struct WorkerBeaten {
    /// Attempts that it should stop.
    pub cancel: BTreeSet<(JobId, AttemptToken)>,
    /// Attempts that it does not hold any more.
    pub lost: BTreeSet<(JobId, AttemptToken)>,
    /// Attempts whose progress or checkpoint was not written, because another session locks their rows.
    pub unsaved: BTreeSet<(JobId, AttemptToken)>,
    /// An operator has drained it.
    pub drained: bool,
}

impl Broker {
    /// Return the exit of the requests for jobs that wait. The engine takes it once, at its start.
    #[must_use]
    pub fn polls(&self) -> Option<mpsc::UnboundedReceiver<Poll>> {
        self.polls.exit.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Let attempts of workers be ended by MySQL's clock only as far as this says. `set_ahead_since` says by how much
    /// that clock was set ahead since a moment of it. The engine sets both once, at its start.
    pub fn judge_clock_by(
        &self,
        judge: impl Fn(&Reading) -> ClockTrust + Send + Sync + 'static,
        set_ahead_since: impl Fn(Timestamp) -> Duration + Send + Sync + 'static,
    ) {
        let _ = self.polls.limits.clock.set((Box::new(judge), Box::new(set_ahead_since)));
    }

    /// Begin a request for jobs, and give back what did not reach the worker. Returns nothing if it is not registered.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn begin_fetch(
        &self,
        worker: RunnerId,
        fetch: Uuid,
        held: Vec<(JobId, AttemptToken)>,
        wait: Duration,
    ) -> Result<Option<BegunFetch>, StoreError> {
        let begun = self.store.begin_fetch(worker.clone(), fetch, held, wait).await?;
        let Some(mut begun) = begun else { return Ok(None) };
        let undelivered = std::mem::take(&mut begun.undelivered);
        if !undelivered.is_empty() {
            self.give_back_undelivered(&worker, undelivered).await;
        }
        Ok(Some(begun))
    }

    /// Carry attempts to a worker, or an empty answer. Those whose jobs have expired since their claim are left out.
    /// Their claims are undone, unless the worker may execute them.
    #[must_use]
    pub fn delivery(&self, worker: &Arc<RunnerId>, claimed: Vec<Claimed>, drained: bool) -> JobDelivery {
        let clock = self.store.clock();
        let has_expired = |claimed: &Claimed| claimed.expires_at.is_some_and(|at| clock.may_have_come(at));
        let (expired, claimed): (Vec<Claimed>, Vec<Claimed>) = claimed.into_iter().partition(has_expired);
        if !expired.is_empty() {
            let (broker, worker) = (self.clone(), Arc::clone(worker));
            let attempts = grouped(expired.iter().map(|claimed| (claimed.token, claimed.id)));
            let how = Return { why: EXPIRED, which: Returned::Undone };
            self.polls.tasks.spawn(async move { broker.give_back_unreached(&worker, attempts, how).await });
        }
        let (broker, worker) = (self.clone(), Arc::clone(worker));
        JobDelivery { broker, worker, claimed, delivered: false, claimed_since: None, drained }
    }

    /// Give attempts back that were claimed for a worker, and for which a limit had no room after the COMMIT.
    pub fn give_back_unstarted(&self, worker: &Arc<RunnerId>, attempts: Vec<(AttemptToken, Vec<JobId>)>) {
        let (broker, worker) = (self.clone(), Arc::clone(worker));
        let how = Return { why: LIMITED, which: Returned::Unreached };
        self.polls.tasks.spawn(async move { broker.give_back_unreached(&worker, attempts, how).await });
    }

    /// Hand a request to the engine. Returns nothing if this process has no engine or stops.
    pub fn wait_for_jobs(
        &self,
        fetch: RemoteFetch,
        slots: usize,
        wait: Duration,
        idle: bool,
    ) -> Option<oneshot::Receiver<JobDelivery>> {
        let (answer, answered) = oneshot::channel();
        let poll = Poll { fetch, slots, until: Instant::now() + wait.max(SHORTEST_WAIT), idle, answer };
        self.polls.entrance.send(poll).ok().map(|()| answered)
    }

    /// Give attempts back that did not reach their worker. No attempt is used. A failure, or a row that another session
    /// locks, costs time: the next request of the worker, or the end of the lease, has the same effect.
    async fn give_back_undelivered(&self, worker: &RunnerId, attempts: Vec<(AttemptToken, Vec<JobId>)>) {
        self.give_back(worker, attempts, Return { why: UNDELIVERED, which: Returned::All }).await;
    }

    /// Give attempts back, except those that may have reached their worker: it has listed them, or it has sent its
    /// request again and got them from another process. The heartbeats of the worker say what becomes of those.
    async fn give_back_unreached(&self, worker: &RunnerId, attempts: ByToken, how: Return) {
        let left = self.give_back(worker, attempts, how).await;
        self.give_back_later(worker, left, how);
    }

    /// Give attempts back, without a wait for rows that other sessions lock. Returns those whose rows are locked, and
    /// those for which MySQL could not be used.
    pub(super) async fn give_back(&self, worker: &RunnerId, attempts: ByToken, how: Return) -> ByToken {
        let (mut queues, mut left) = (BTreeSet::new(), Vec::new());
        let Return { why, which } = how;
        for (token, ids) in attempts {
            let locked = match self.store.give_back_free(worker, token, ids.clone(), why, which).await {
                Ok(GiveBack { given, locked }) => {
                    let undone = which == Returned::Undone;
                    queues.extend(if undone { self.hint_undone(&given) } else { self.tell_given_back(&given) });
                    locked
                }
                // They are tried again in a moment, or by the next request of their worker.
                Err(error) if error.is_transient() => {
                    tracing::debug!(%error, "cannot give attempts of a remote worker back yet");
                    ids
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot give attempts of a remote worker back");
                    Vec::new()
                }
            };
            if !locked.is_empty() {
                left.push((token, locked));
            }
        }
        for queue in queues {
            self.recount(&queue, worker).await;
        }
        left
    }

    /// Count the permits of a worker in this queue again. It has no effect in a queue without a limit.
    async fn recount(&self, queue: &Name, worker: &RunnerId) {
        if let Err(error) = self.store.recount_permits(queue, worker).await {
            tracing::warn!(%error, "cannot count the permits of a worker yet");
        }
    }

    /// Tell of attempts of remote workers that the reaper has given back.
    pub fn note_given_back(&self, given: &[Reaped]) {
        self.tell_given_back(given);
    }

    /// Tell of attempts that were given back. Returns the queues of their jobs.
    fn tell_given_back(&self, given: &[Reaped]) -> BTreeSet<Name> {
        metrics::counter!("tickr_remote_given_back_total").increment(given.len() as u64);
        given.iter().for_each(|reaped| self.announce_given_back(reaped));
        given.iter().map(|reaped| reaped.queue.clone()).collect()
    }

    /// Hint jobs whose claims were undone, because they expired. No attempt has ended, so there is nothing to announce,
    /// unless a cancel came before: then the job has ended. Returns the queues of the jobs.
    fn hint_undone(&self, undone: &[Reaped]) -> BTreeSet<Name> {
        for reaped in undone {
            if reaped.state.is_end() {
                self.announce_given_back(reaped);
                continue;
            }
            let Settled::Done { execute_at, line, released, .. } = &reaped.settled else { continue };
            released.iter().for_each(|job| self.hint_released(job));
            if let (Some(execute_at), Some((queue, priority))) = (execute_at, line) {
                self.hint_expired(reaped.id, queue, *priority, *execute_at);
            }
        }
        undone.iter().map(|reaped| reaped.queue.clone()).collect()
    }

    fn announce_given_back(&self, reaped: &Reaped) {
        self.meters.record_settled(Some(&reaped.queue), Verdict::Interrupted, reaped.state);
        if let Settled::Done { execute_at, line, released, .. } = &reaped.settled {
            released.iter().for_each(|job| self.hint_released(job));
            if let (Some(execute_at), Some((queue, priority))) = (execute_at, line) {
                if *execute_at <= self.store.clock().now() {
                    self.hint_first(reaped.id, queue, *priority, *execute_at);
                } else {
                    // It was given back so often that it comes back later.
                    self.hint(reaped.id, queue, *priority, *execute_at);
                }
            }
        }
        let (verdict, state) = (Verdict::Interrupted, reaped.state);
        self.events.emit(Event::Settled { id: reaped.id, verdict, state });
    }

    /// Record the heartbeat of a worker, which came here at `arrived`. Returns nothing if it is not registered.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn beat_of_worker(
        &self,
        worker: RunnerId,
        reports: Vec<WorkerReport>,
        arrived: Instant,
    ) -> Result<Option<WorkerBeaten>, StoreError> {
        let checkpoints: Vec<NewCheckpoint> = reports
            .iter()
            .filter_map(|report| {
                let content = Arc::clone(report.checkpoint.as_ref()?);
                Some(NewCheckpoint { id: report.id, token: report.token, content, version: 0 })
            })
            .collect();
        let held =
            reports.into_iter().map(|WorkerReport { id, token, progress, .. }| HeldAttempt { id, token, progress });
        let timeouts = Arc::new(self.registry.timeouts());
        let Some(beat) = self.store.beat_of_worker(worker.clone(), held.collect(), timeouts, arrived).await? else {
            return Ok(None);
        };
        let lost: BTreeSet<(JobId, AttemptToken)> = beat.lost.into_iter().collect();
        let mut unsaved: BTreeSet<(JobId, AttemptToken)> = beat.unsaved.into_iter().collect();
        unsaved.extend(self.save_reported(checkpoints, &lost, beat.lease).await);
        if !beat.undelivered.is_empty() {
            self.give_back_undelivered(&worker, beat.undelivered).await;
        }
        let mut beaten =
            WorkerBeaten { cancel: beat.cancel_requested.into_iter().collect(), lost, unsaved, drained: beat.drained };
        let trust = self.polls.limits.judge(beat.reading.as_ref());
        let until = Instant::now() + ENDING_PATIENCE;
        for overdue in beat.overdue {
            let id = overdue.attempt.id;
            let Some((token, number, _)) = overdue.attempt.open.clone() else { continue };
            if trust == ClockTrust::Doubtful {
                continue;
            }
            let set_ahead = self.polls.limits.set_ahead_since(overdue.started_at);
            let Some(over) = overdue.over.checked_sub(set_ahead) else { continue };
            let told_before = self.polls.limits.told_by_others(&overdue, over, beat.lease);
            let told_for = self.polls.limits.tell(id, token, told_before);
            if trust != ClockTrust::Sure || told_for < TIMEOUT_GRACE {
                beaten.cancel.insert((id, token));
                continue;
            }
            if over < TIMEOUT_GRACE {
                beaten.cancel.insert((id, token));
                continue;
            }
            let ms = overdue.timeout.as_millis();
            let again = Again::Backoff(self.policy_of(&overdue.attempt), rand::random());
            let error = Some(format!("timed out after {ms} ms"));
            let settlement = settlement((id, token, number), Verdict::TimedOut, error, None, again);
            let ended = self.settle_apart(&overdue.attempt, settlement);
            let ended = match tokio::time::timeout_at(until.into(), ended).await {
                Ok(Err(error)) if !may_wait(&error) => return Err(error),
                Ok(Ok(ended)) => ended,
                Ok(Err(_)) | Err(_) => WorkerFinished::Locked,
            };
            if ended == WorkerFinished::Locked {
                // Another session locks its row, the row cannot be read, or MySQL is slow. The end is written later, and
                // a later heartbeat says so.
                beaten.cancel.insert((id, token));
                continue;
            }
            self.recount(&overdue.attempt.queue, &worker).await;
            beaten.cancel.remove(&(id, token));
            beaten.lost.insert((id, token));
        }
        Ok(Some(beaten))
    }

    /// End the registration of a worker, and give back what it still holds. Returns false if it is not registered.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn unregister_worker(&self, worker: RunnerId) -> Result<bool, StoreError> {
        let Some(attempts) = self.store.unregister_worker(worker.clone()).await? else { return Ok(false) };
        let how = Return { why: LEFT, which: Returned::All };
        let left = self.give_back(&worker, attempts, how).await;
        // Another session locks their rows, and the worker does not wait for that. If this process gives up or dies,
        // the reaper gives them back.
        self.give_back_later(&worker, left, how);
        Ok(true)
    }

    /// Save the checkpoints of a heartbeat, without those of attempts that are lost. A row that another session locks
    /// is tried again for a moment. Returns the attempts whose checkpoints were not saved: the leases are renewed all the
    /// same, so neither a failure nor a slow MySQL fails the heartbeat.
    async fn save_reported(
        &self,
        mut left: Vec<NewCheckpoint>,
        lost: &BTreeSet<(JobId, AttemptToken)>,
        lease: Duration,
    ) -> Vec<(JobId, AttemptToken)> {
        left.retain(|new| !lost.contains(&(new.id, new.token)));
        let end = Instant::now() + lease / SAVED_WITHIN;
        let until = end.min(Instant::now() + CHECKPOINT_PATIENCE);
        while !left.is_empty() {
            match self.store.save_reported_checkpoints(left.clone(), end).await {
                Ok(Some(saved)) => {
                    let saved: HashSet<(JobId, AttemptToken)> = saved.iter().map(|new| (new.id, new.token)).collect();
                    left.retain(|new| !saved.contains(&(new.id, new.token)));
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, jobs = left.len(), "cannot save checkpoints of a remote worker");
                    break;
                }
            }
            if Instant::now() >= until {
                break;
            }
            if !left.is_empty() {
                tokio::time::sleep(CHECKPOINT_PAUSE).await;
            }
        }
        left.iter().map(|new| (new.id, new.token)).collect()
    }

    /// Give attempts their verdicts, in this order. A repeated call with the same verdicts has the same answers. `limited`
    /// says which queues have a limit. A verdict that a locked row holds up does not delay the answer to the others. The
    /// token of an open attempt is the right to finish it. Of any other attempt the caller is told, and a note is kept,
    /// only if it `may` work on the kind and the queue: a token that is made up names such an attempt, too.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses. Some of the verdicts may be written then; the call may be repeated.
    pub async fn finish_remotely(
        &self,
        finishes: Vec<WorkerFinish>,
        limited: impl Fn(&Name) -> bool,
        may: impl Fn(&Name, &Name) -> bool,
    ) -> Result<Vec<WorkerFinished>, StoreError> {
        let known = self.store.remote_attempts(finishes.iter().map(|finish| finish.id).collect()).await?;
        let mut recount: BTreeSet<(Name, RunnerId)> = BTreeSet::new();
        let mut writing = Vec::with_capacity(finishes.len());
        for finish in finishes {
            let holds = |attempt: &&RemoteAttempt| {
                attempt.open.as_ref().is_some_and(|(token, ..)| *token == finish.token)
                    || may(&attempt.kind, &attempt.queue)
            };
            let attempt = known.found.get(&finish.id).filter(holds);
            if let Some(attempt) = attempt
                && let Some((_, _, runner)) = &attempt.open
                && limited(&attempt.queue)
            {
                recount.insert((attempt.queue.clone(), runner.clone()));
            }
            let waits = known.unreadable.contains(&(finish.id, finish.token));
            writing.push(self.finish_one(attempt, finish, waits));
        }
        // All of them share the group commit of settlements.
        let answers = answers_to(writing).await;
        for (queue, runner) in recount {
            self.recount(&queue, &runner).await;
        }
        answers
    }

    async fn finish_one(
        &self,
        attempt: Option<&RemoteAttempt>,
        finish: WorkerFinish,
        waits: bool,
    ) -> Result<WorkerFinished, StoreError> {
        let Some(attempt) = attempt else {
            return Ok(if waits { WorkerFinished::Locked } else { WorkerFinished::Unknown });
        };
        let is_open = attempt.open.as_ref().is_some_and(|(token, ..)| *token == finish.token);
        let jobs = if finish.refused.is_empty() {
            self.prepare_follow_ups(finish.follow_ups, attempt.batch, attempt.trace.as_ref())
        } else {
            Err(finish.refused)
        };
        let (verdict, result, error, again) = parts_of(finish.verdict, || self.policy_of(attempt));
        let mut settlement = settlement((finish.id, finish.token, finish.number), verdict, error, result, again);
        if jobs.is_err()
            && let Some(ending) = self.ending_of(&key_of(&settlement))
        {
            return answer_in(ending).await;
        }
        settlement.follow_ups = match jobs {
            Ok(jobs) => jobs,
            // The success may be a repetition, and rights and kinds may have changed since. An attempt that has ended
            // gets no other verdict, so this writes nothing, and its answer says how the attempt ended.
            Err(_) if !is_open => Vec::new(),
            Err(problems) => return Ok(WorkerFinished::Refused(problems)),
        };
        settlement.log = finish.log;
        settlement.checkpoint = finish.checkpoint.map_or(CheckpointUse::Unused, CheckpointUse::Unsaved);
        self.settle_apart(attempt, settlement).await
    }

    /// Settle an attempt of a worker in a task of its own, which goes on when the caller waits no more: another session
    /// may lock the row, and all that follows the end of an attempt must follow it then as well. A verdict that is
    /// under way is not handed in again. The caller counts the permits of the worker again; without one the task does.
    async fn settle_apart(
        &self,
        attempt: &RemoteAttempt,
        settlement: Settlement,
    ) -> Result<WorkerFinished, StoreError> {
        let key = key_of(&settlement);
        let (ending, begun) = {
            let mut endings = self.polls.endings.lock().unwrap_or_else(PoisonError::into_inner);
            match endings.entry(key.clone()) {
                Entry::Occupied(under_way) => (under_way.get().clone(), None),
                Entry::Vacant(place) => {
                    let (tell, ending) = watch::channel(None);
                    place.insert(ending.clone());
                    (ending, Some((tell, UnderWay { polls: Arc::clone(&self.polls), key })))
                }
            }
        };
        if let Some((tell, under_way)) = begun {
            let (broker, attempt) = (self.clone(), attempt.clone());
            let mut settling = Box::pin(async move {
                let settled = broker.settle_remote(&attempt, settlement);
                let Some(settled) = unless_stopped(&broker.polls.tasks, settled).await else { return };
                drop(under_way);
                if tell.send(Some(settled)).is_err()
                    && let Some((_, _, runner)) = &attempt.open
                {
                    broker.recount(&attempt.queue, runner).await;
                }
            });
            // Hand it in before the verdicts behind it.
            if (&mut settling).now_or_never().is_none() {
                self.polls.tasks.spawn(settling);
            }
        }
        answer_in(ending).await
    }

    /// Return the way to the answer of this verdict, if it is being written.
    fn ending_of(&self, key: &EndingKey) -> Option<Ending> {
        self.polls.endings.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Settle an attempt of a worker, and tell the index and the listeners of events.
    async fn settle_remote(
        &self,
        attempt: &RemoteAttempt,
        settlement: Settlement,
    ) -> Result<WorkerFinished, StoreError> {
        let (id, verdict) = (settlement.id, settlement.verdict);
        let is_open = attempt.open.as_ref().is_some_and(|(token, ..)| *token == settlement.token);
        let slots: Arc<[LimitKey]> = if is_open { Arc::clone(&attempt.slots) } else { Arc::default() };
        // As for a handler of this process, the time until the verdict is written is no part of it. An outage after which
        // the worker has to send its verdict again is.
        let ran = self.run_time_of(attempt);
        let settled = self.store.settle_and_free(settlement, slots).await;
        if let Err(error @ StoreError::Corrupt { .. }) = &settled {
            tracing::error!(job = %id, %error, "cannot read the row of an attempt of a remote worker, its end waits");
        }
        match settled? {
            Settled::NotOurs => {
                metrics::counter!("tickr_leases_lost_total").increment(1);
                Ok(WorkerFinished::LeaseLost)
            }
            Settled::Done { state, execute_at, line, follow_ups, released } => {
                if is_open {
                    match ran {
                        Some(ran) => self.meters.record_ended(&attempt.queue, ran, Some((verdict, state))),
                        None => self.meters.record_settled(Some(&attempt.queue), verdict, state),
                    }
                    let kind = attempt.kind.to_string();
                    if let Some(ran) = ran {
                        metrics::histogram!("tickr_run_seconds", "kind" => kind.clone()).record(ran.as_secs_f64());
                    }
                    metrics::counter!("tickr_attempts_total", "kind" => kind, "verdict" => verdict.as_str())
                        .increment(1);
                }
                if let (Some(execute_at), Some((queue, priority))) = (execute_at, line) {
                    self.hint(id, &queue, priority, execute_at);
                }
                self.announce(&follow_ups);
                released.iter().for_each(|job| self.hint_released(job));
                self.events.emit(Event::Settled { id, verdict, state });
                Ok(WorkerFinished::Settled(state))
            }
        }
    }

    /// Return for how long an attempt has run, by the clock of MySQL, which says when it started. Steps ahead of that
    /// clock that this process knows of are no part of it. Returns nothing if the clock was set back behind the start.
    fn run_time_of(&self, attempt: &RemoteAttempt) -> Option<Duration> {
        let started_at = attempt.started_at?;
        let age = (self.store.clock().now() - started_at).to_std().ok()?;
        Some(age.saturating_sub(self.polls.limits.set_ahead_since(started_at)))
    }

    fn policy_of(&self, attempt: &RemoteAttempt) -> RetryPolicy {
        let of_kind = || self.registry.find(attempt.kind.as_str()).map(|kind| kind.defaults().retry.clone());
        attempt.retry.clone().or_else(of_kind).unwrap_or_default()
    }
}

/// Wait for the answer of a verdict that is being written.
async fn answer_in(mut ending: Ending) -> Result<WorkerFinished, StoreError> {
    let ended = ending.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
    // Without an answer, the process stops.
    ended.unwrap_or(Ok(WorkerFinished::Locked))
}

/// Wait for a settlement, but only for a moment when this process stops. The row may stay locked for long.
pub(super) async fn unless_stopped<T>(tasks: &TaskTracker, settled: impl Future<Output = T>) -> Option<T> {
    let stopped = async {
        while !tasks.is_closed() {
            tokio::time::sleep(STOP_LOOK).await;
        }
        tokio::time::sleep(STOP_PATIENCE).await;
    };
    tokio::select! {
        biased;
        done = settled => Some(done),
        () = stopped => None,
    }
}

/// Wait for the answers to verdicts. Those that do not come for a while are [`WorkerFinished::Locked`], and beside others
/// so are those for which MySQL could not be used. So are those whose rows cannot be read. Their verdicts may be written
/// later.
async fn answers_to(
    writing: Vec<impl Future<Output = Result<WorkerFinished, StoreError>>>,
) -> Result<Vec<WorkerFinished>, StoreError> {
    let mut answers = vec![WorkerFinished::Locked; writing.len()];
    let numbered = writing.into_iter().enumerate().map(|(place, answer)| async move { (place, answer.await) });
    let mut numbered: FuturesUnordered<_> = numbered.collect();
    let (mut answered, mut transient, mut refused) = (false, None, None);
    let mut until = Instant::now() + LONELY_PATIENCE;
    while let Ok(Some((place, answer))) = tokio::time::timeout_at(until.into(), numbered.next()).await {
        match answer {
            Ok(answer) => {
                answers[place] = answer;
                answered = true;
                until = Instant::now() + VERDICT_PATIENCE;
            }
            Err(error) if error.is_transient() => transient = Some(error),
            // An operator has to repair its row. The others have their verdicts.
            Err(error) if may_wait(&error) => answered = true,
            Err(error) => refused = Some(error),
        }
    }
    if let Some(error) = refused {
        return Err(error);
    }
    match transient {
        Some(error) if !answered => Err(error),
        _ => Ok(answers),
    }
}

/// Return whether an attempt may wait for its end after this error: MySQL is out, or its row cannot be read.
const fn may_wait(error: &StoreError) -> bool {
    error.is_transient() || matches!(error, StoreError::Corrupt { .. })
}

/// Return what the settlement of a verdict consists of.
pub(super) fn parts_of(
    verdict: RemoteVerdict,
    policy: impl FnOnce() -> RetryPolicy,
) -> (Verdict, Option<Box<RawValue>>, Option<String>, Again) {
    let after = |delay: Duration| Again::After(delay.min(limits::MAX_AHEAD));
    match verdict {
        RemoteVerdict::Succeeded(result) => (Verdict::Succeeded, result, None, Again::Now),
        RemoteVerdict::Failed(error, delay) => {
            let again = delay.map_or_else(|| Again::Backoff(policy(), rand::random()), after);
            (Verdict::Failed, None, Some(error), again)
        }
        RemoteVerdict::Rejected(error) => (Verdict::Rejected, None, Some(error), Again::Now),
        RemoteVerdict::Snoozed(delay, error) => (Verdict::Snoozed, None, Some(error), after(delay)),
        RemoteVerdict::Released(error) => (Verdict::Interrupted, None, Some(error), Again::NowWithinBounds),
    }
}

fn settlement(
    (id, token, number): (JobId, AttemptToken, u32),
    verdict: Verdict,
    error: Option<String>,
    result: Option<Box<RawValue>>,
    again: Again,
) -> Settlement {
    Settlement {
        id,
        token,
        number,
        opened: None,
        verdict,
        error: error.map(limits::cut),
        exchange: None,
        log: None,
        result,
        follow_ups: Vec::new(),
        again,
        call: None::<CallOutcome>,
        checkpoint: CheckpointUse::Unused,
    }
}

/// Return what tells the verdict of an attempt from its other ones.
fn key_of(settlement: &Settlement) -> EndingKey {
    (settlement.id, settlement.token, settlement.verdict.as_str(), settlement.error.clone())
}

fn grouped(attempts: impl Iterator<Item = (AttemptToken, JobId)>) -> ByToken {
    let mut found: BTreeMap<Uuid, Vec<JobId>> = BTreeMap::new();
    for (token, id) in attempts {
        found.entry(token.uuid()).or_default().push(id);
    }
    found.into_iter().map(|(token, ids)| (AttemptToken::from_uuid(token), ids)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_with_different_errors_are_written_apart() {
        let attempt = (JobId::new(), AttemptToken::new(), 1);
        let key =
            |verdict, error: &str| key_of(&settlement(attempt, verdict, Some(error.to_owned()), None, Again::Now));
        let first = key(Verdict::Failed, "no disk");
        assert_eq!(key(Verdict::Failed, "no disk"), first, "a repetition waits for the answer of the first call");
        assert_ne!(key(Verdict::Failed, "no network"), first);
        assert_ne!(key(Verdict::Rejected, "no disk"), first);
    }
}
