//! The broker: every write that concerns both servers. It commits to MySQL first, then sends a hint to Redis.
//!
//! The order matters. A job is durable before any other part of the system sees it. A lost hint only delays a job until
//! the reconciler finds it; it never loses one. So hints are sent in the background, in batches, and a failure to send
//! them is counted, not returned.
//!
//! Its files:
//! - `draft.rs`: a job as the caller describes it, and its checks.
//! - `deferred.rs`: attempts that other systems finish.
//! - `idempotency.rs`: idempotency keys and digests of requests.
//! - `hints.rs`: the background task that sends hints to the index.
//! - `lane_times.rs`: the due times to which this process has come.
//! - `leftovers.rs`: attempts of remote workers that are given back once their rows are free.
//! - `batches.rs`: batches of jobs.
//! - `object.rs`: a JSON object and nothing else.
//! - `outbox.rs`: moves jobs from the outbox.
//! - `other_versions.rs`: rows and ticks that are left to runners of another version.
//! - `queues.rs`: changes of queues.
//! - `remote_workers.rs`: requests, heartbeats and verdicts of remote workers.
//! - `schedules.rs`: changes and ticks of schedules.
//! - `operator_settings.rs`: this process's copy of the settings of operators.
//! - `cluster_events.rs`: the events of the whole cluster.
//! - `unique_fields.rs`: unique keys that are made from fields of the payload.
//! - `watches.rs`: the jobs that clients of this process watch.

mod batches;
mod cluster_events;
mod deferred;
mod draft;
mod hints;
mod idempotency;
mod lane_times;
mod leftovers;
mod object;
mod operator_settings;
mod other_versions;
mod outbox;
mod queues;
mod remote_workers;
mod schedules;
mod unique_fields;
mod watches;

pub use cluster_events::{ClusterEvents, Delivery, EventType, Listener, PastEvents, PastPage, PublishedEvent};
pub use deferred::Finished;
pub use draft::{Draft, Invalid, problem_of_due};
pub use hints::Wake;
pub use idempotency::{IdempotencyKey, InvalidKey};
pub use object::Object;
pub use operator_settings::{API_KEYS_HOLD, OperatorSettings, OperatorSettingsCopy};
pub use outbox::OutboxPass;
pub use remote_workers::{ClockTrust, JobDelivery, Poll, WorkerBeaten, WorkerFinish, WorkerFinished, WorkerReport};
pub use schedules::{TriggerError, check_schedule};
pub use tickr_index::StreamPosition;
pub use unique_fields::key_of_fields;
pub use watches::{Watch, Watches};

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use async_recursion::async_recursion as boxed;
use chrono::TimeDelta;
use metrics::Counter;
use serde_json::value::RawValue;
use tokio::sync::{Notify, watch};
use tokio_util::task::TaskTracker;

use hints::Hints;
use lane_times::LaneTimes;
use other_versions::LeftTicks;
use outbox::{FoundLocks, LockedRows};
use remote_workers::Polls;
use tickr_event::{Event, Events};
use tickr_handlers::{FollowUp, Problem, Registered, Registry};
use tickr_index::{Entry, Health, Index, Lane};
use tickr_job::{Actor, BatchId, JobId, JobOptions, Name, NewJob, Producer, State, Timestamp, TraceContext};
use tickr_store::{
    Accepted, ActionOutcome, BatchOutcome, Change, ChangeCondition, ChangeOutcome, Claimed, DueJob, EnqueueOutcome,
    EnqueueReceipts, EnqueueRefusal, EnqueuedJob, IdempotentOutcome, IdempotentRequest, JobAction, KeyHolder,
    LinkProblem, Original, Refusal, Remake, ResponseBuilder, Store, StoreError, UpdatedJob,
};
use tickr_telemetry::Meters;

/// Time for which the index hides a job that expired after its claim.
const EXPIRED_PAUSE: TimeDelta = TimeDelta::seconds(2);
/// From this number of problems on, no further follow-up job of a success is checked.
const MAX_FOLLOW_UP_PROBLEMS: usize = 20;

/// Entry point for jobs and for actions on jobs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Broker {
    store: Store,
    registry: Arc<Registry>,
    events: Events,
    hints: Hints,
    lane_times: Arc<LaneTimes>,
    meters: Meters,
    /// Counters of accepted jobs, by kind. The handles are stored because looking them up is slow.
    accepted: Arc<HashMap<Name, Counter>>,
    polls: Arc<Polls>,
    outbox_nudge: Arc<Notify>,
    /// Rows of the outbox that found a lock of another session, each with the time of the next try.
    outbox_locked: Arc<Mutex<LockedRows>>,
    /// The locks of other sessions that rows of the outbox have found.
    outbox_locks: Arc<Mutex<FoundLocks>>,
    source_nudges: Arc<watch::Sender<u64>>,
    /// Ticks that are left to runners of another version.
    left_ticks: Arc<Mutex<LeftTicks>>,
}

/// Outcome of an enqueue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// The job was accepted.
    Accepted(Accepted),
    /// Nothing was written. This unfinished job of the same kind has the same unique key and is returned instead of a
    /// new one.
    Existing(KeyHolder),
    /// Nothing was written. This unfinished job of the same kind has the same unique key, and the request does not
    /// accept that.
    KeyConflict(KeyHolder),
    /// Nothing was written. The job cannot have a parent or the batch that it names.
    LinkRefused(LinkProblem),
}

impl Broker {
    /// Create a broker over both servers. `tasks` joins its hint task, which ends when the last clone is dropped.
    #[must_use]
    pub fn new(store: Store, index: Index, registry: Arc<Registry>, events: Events, tasks: &TaskTracker) -> Self {
        let clock = store.shared_clock();
        let hints = Hints::start(index, move || clock.now(), tasks);
        let counter = |kind: Name| {
            let counter = metrics::counter!("tickr_jobs_accepted_total", "kind" => kind.to_string());
            (kind, counter)
        };
        let accepted = Arc::new(registry.names().into_iter().map(counter).collect());
        schedules::begin_counting();
        Self {
            store,
            registry,
            events,
            hints,
            lane_times: Arc::default(),
            meters: Meters::default(),
            accepted,
            polls: Arc::new(Polls::new(tasks)),
            outbox_nudge: Arc::default(),
            outbox_locked: Arc::default(),
            outbox_locks: Arc::default(),
            source_nudges: Arc::default(),
            left_ticks: Arc::default(),
        }
    }

    /// Return the kinds of this process, and the declared ones that it knows.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Check a draft against its kind, and fill in the defaults.
    ///
    /// # Errors
    /// [`Invalid`], with everything that is wrong.
    pub fn prepare(&self, draft: Draft) -> Result<NewJob, Invalid> {
        draft.prepare(&self.registry, self.store.clock().now())
    }

    /// Do what [`prepare`](Self::prepare) does, for a job that follows work that is done: its due time may lie behind its
    /// expiry, and then it expires.
    ///
    /// # Errors
    /// [`Invalid`], with everything else that is wrong.
    pub fn prepare_follow_up(&self, draft: Draft) -> Result<NewJob, Invalid> {
        draft.prepare_follow_up(&self.registry, self.store.clock().now())
    }

    /// Check the jobs that follow a success of a program in another language. They continue this trace, and those that
    /// ask for it are in this batch.
    ///
    /// # Errors
    /// What is wrong with them, up to a bound, with pointers such as `/follow_ups/2/queue`.
    fn prepare_follow_ups(
        &self,
        follow_ups: Vec<FollowUp>,
        batch: Option<BatchId>,
        trace: Option<&TraceContext>,
    ) -> Result<Vec<NewJob>, Vec<Problem>> {
        let (mut jobs, mut problems) = (Vec::with_capacity(follow_ups.len()), Vec::new());
        for (place, follow_up) in follow_ups.into_iter().enumerate() {
            match self.prepare_follow_up(Draft::of_follow_up(follow_up, batch, trace.cloned())) {
                Ok(job) => jobs.push(job),
                Err(invalid) => problems.extend(invalid.problems_at(&format!("/follow_ups/{place}"))),
            }
            if problems.len() >= MAX_FOLLOW_UP_PROBLEMS {
                break;
            }
        }
        if problems.is_empty() { Ok(jobs) } else { Err(problems) }
    }

    /// Do what [`prepare`](Self::prepare) does, for a kind that this process only enqueues.
    ///
    /// # Errors
    /// [`Invalid`], with everything that is wrong.
    pub fn prepare_as(&self, draft: Draft, kind: &Registered) -> Result<NewJob, Invalid> {
        draft.prepare_as(kind, self.store.clock().now())
    }

    /// Accept one job. It is durable when this returns.
    ///
    /// # Errors
    /// When MySQL cannot be reached, is overloaded or refuses.
    #[boxed]
    pub async fn enqueue(&self, job: NewJob) -> Result<Enqueued, StoreError> {
        let first = match self.enqueue_unique(&Producer::tickr(), vec![job]).await? {
            EnqueueOutcome::Accepted(mut receipts) => receipts.jobs.pop().map(|placed| match placed {
                EnqueuedJob::New(accepted) => Enqueued::Accepted(accepted),
                EnqueuedJob::Existing(holder) => Enqueued::Existing(holder),
            }),
            EnqueueOutcome::Refused(EnqueueRefusal::KeysTaken(mut taken)) => {
                taken.pop().map(|(_, holder)| Enqueued::KeyConflict(holder))
            }
            EnqueueOutcome::Refused(EnqueueRefusal::Links(mut problems)) => {
                problems.pop().map(|(_, problem)| Enqueued::LinkRefused(problem))
            }
        };
        first.ok_or_else(|| StoreError::corrupt("enqueue a job", "the store returned no receipt"))
    }

    /// Accept jobs without unique keys, parents and batches: all or none, in this order. They are durable when this
    /// returns.
    ///
    /// # Errors
    /// When MySQL cannot be reached, is overloaded or refuses.
    #[boxed]
    pub async fn enqueue_all(&self, jobs: Vec<NewJob>) -> Result<Vec<Accepted>, StoreError> {
        debug_assert!(!jobs.iter().any(is_keyed), "jobs with unique keys, parents or batches go to enqueue_unique");
        let accepted = self.store.insert(jobs).await?;
        self.announce(&accepted);
        Ok(accepted)
    }

    /// Accept jobs that may have unique keys, parents or batches: all or none, in this order. They are durable when
    /// this returns. If an unfinished job already has one of the unique keys, the `on_conflict` of the new job decides.
    /// It shows and replaces only jobs that the producer may reach. If it refuses one of the jobs, nothing is written.
    ///
    /// # Errors
    /// When MySQL cannot be reached, is overloaded or refuses.
    #[boxed]
    pub async fn enqueue_unique(&self, producer: &Producer, jobs: Vec<NewJob>) -> Result<EnqueueOutcome, StoreError> {
        let keyed = if jobs.iter().any(is_keyed) {
            self.store.insert_unique(producer.clone(), jobs).await?
        } else {
            EnqueueOutcome::Accepted(EnqueueReceipts::new(self.store.insert(jobs).await?))
        };
        if let EnqueueOutcome::Accepted(receipts) = &keyed {
            self.announce_keyed(receipts).await;
        }
        Ok(keyed)
    }

    /// Accept the jobs of a request, as [`enqueue_unique`](Self::enqueue_unique) does, at most once if the
    /// request has an idempotency key (G8). `build` builds the response from the receipts. With an idempotency key, the
    /// response is stored and returned for repeated requests.
    ///
    /// # Errors
    /// When MySQL cannot be reached, is overloaded or refuses.
    #[boxed]
    pub async fn enqueue_request(
        &self,
        producer: &Producer,
        jobs: Vec<NewJob>,
        idempotent: Option<IdempotentRequest>,
        build: ResponseBuilder<EnqueueReceipts>,
    ) -> Result<IdempotentOutcome<EnqueueReceipts, EnqueueRefusal>, StoreError> {
        let Some(idempotent) = idempotent else {
            return Ok(match self.enqueue_unique(producer, jobs).await? {
                EnqueueOutcome::Accepted(receipts) => {
                    let answer = build(&receipts);
                    IdempotentOutcome::First { done: Some(receipts), answer }
                }
                EnqueueOutcome::Refused(refusal) => IdempotentOutcome::Refused(refusal),
            });
        };
        let outcome = self.store.insert_idempotent(producer.clone(), jobs, idempotent, build).await?;
        if let IdempotentOutcome::First { done: Some(receipts), .. } = &outcome {
            self.announce_keyed(receipts).await;
        }
        Ok(outcome)
    }

    /// Cancel, retry or run a job now, at most once if the request has an idempotency key. `build` builds the response
    /// from the result. With an idempotency key, the response is stored and returned for repeated requests.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn act(
        &self,
        id: JobId,
        action: JobAction,
        by: &Actor,
        idempotent: Option<IdempotentRequest>,
        build: ResponseBuilder<UpdatedJob>,
    ) -> Result<IdempotentOutcome<ActionOutcome>, StoreError> {
        let outcome = self.store.act(id, action, by, idempotent, build).await?;
        if let IdempotentOutcome::First { done: Some(done), .. } = &outcome {
            self.announce_action(id, done).await;
        }
        Ok(outcome)
    }

    /// Cancel a job (G9).
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn cancel(&self, id: JobId, by: &Actor) -> Result<ActionOutcome, StoreError> {
        let outcome = self.store.cancel(id, by).await?;
        self.announce_action(id, &outcome).await;
        Ok(outcome)
    }

    /// Let a failed or cancelled job run again.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn retry(&self, id: JobId, by: &Actor) -> Result<ActionOutcome, StoreError> {
        let outcome = self.store.retry(id, by).await?;
        self.announce_action(id, &outcome).await;
        Ok(outcome)
    }

    /// Make a waiting job due now.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn run_now(&self, id: JobId, by: &Actor) -> Result<ActionOutcome, StoreError> {
        let outcome = self.store.run_now(id, by).await?;
        self.announce_action(id, &outcome).await;
        Ok(outcome)
    }

    /// Build the new job for a replay of `original`: the same job with all its attempts, or with another payload. It is
    /// checked against the kind as this process knows it.
    ///
    /// # Errors
    /// [`Invalid`] when the kind is not known here or the payload does not fit it any more.
    pub fn remake(&self, original: &Original, payload: Option<Box<RawValue>>) -> Result<NewJob, Invalid> {
        remake(&self.registry, original, payload, self.store.clock().now())
    }

    /// Create a new job from a failed one, which stays failed and is linked with it. `build` builds the response from
    /// the receipt.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn replay(
        &self,
        id: JobId,
        job: NewJob,
        by: &Actor,
        idempotent: Option<IdempotentRequest>,
        build: ResponseBuilder<Accepted>,
    ) -> Result<IdempotentOutcome<Result<Accepted, Refusal>>, StoreError> {
        let outcome = self.store.replay(id, job, by, idempotent, build).await?;
        if let IdempotentOutcome::First { done: Some(Ok(accepted)), .. } = &outcome {
            self.announce(std::slice::from_ref(accepted));
        }
        Ok(outcome)
    }

    /// Change the due time, the priority or the payload of a waiting job if `condition` holds, at most once if there is
    /// an idempotency key. `build` builds the response from the changed job.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn change(
        &self,
        id: JobId,
        change: Change,
        by: &Actor,
        condition: Option<ChangeCondition>,
        idempotent: Option<IdempotentRequest>,
        build: ResponseBuilder<UpdatedJob>,
    ) -> Result<IdempotentOutcome<ChangeOutcome>, StoreError> {
        let outcome = self.store.change_job(id, change, by, condition, idempotent, build).await?;
        if let IdempotentOutcome::First { done: Some(ChangeOutcome::Done(outcome)), .. } = &outcome {
            self.announce_action(id, outcome).await;
        }
        Ok(outcome)
    }

    /// Return the function that does what [`remake`](Self::remake) does, for a bulk operation. A job of a kind that only
    /// other runners have is made again as it was accepted, with the defaults of these runners: the runner that starts
    /// it checks its payload. `living_kinds` are the kinds of all living runners.
    #[must_use]
    pub fn remaker(&self, living_kinds: HashSet<Name>) -> Remake {
        let (registry, store) = (Arc::clone(&self.registry), self.store.clone());
        Arc::new(move |original| {
            if registry.find(original.kind.as_str()).is_none() && living_kinds.contains(&original.kind) {
                let mut job = original.unchanged();
                // A former declaration may have given it these. The runners that have a handler have their own.
                job.options.of_kind = None;
                return Ok(job);
            }
            remake(&registry, original, None, store.clock().now()).map_err(|invalid| {
                let first = match &invalid {
                    Invalid::Payload { problems, .. } | Invalid::Job { problems } => problems.first(),
                    Invalid::UnknownKind { .. } => None,
                    Invalid::Panicked(panicked) => return format!("{invalid}: {}", panicked.message),
                };
                first.map_or(invalid.to_string(), |first| format!("{invalid}: {} {}", first.pointer, first.detail))
            })
        })
    }

    /// Publish the results of one batch of a bulk operation to the listeners of events and to the index.
    #[boxed]
    pub async fn announce_batch(&self, batched: BatchOutcome) {
        self.announce(&batched.accepted);
        for accepted in batched.waits.iter().filter(|accepted| !accepted.held) {
            self.hints.send(entry(accepted));
        }
        self.hint_heads(&batched.cancelled).await;
        self.hint_heads(&batched.discarded).await;
        batched.released.iter().for_each(|job| self.hint_released(job));
        for id in batched.cancelled {
            self.events.emit(Event::Cancelled { id });
        }
        for id in batched.stop_requested {
            self.events.emit(Event::CancelRequested { id });
        }
    }

    /// Hint the jobs that may run now because these have ended, or do not block their order keys any more. It is no
    /// error if they cannot be read: the reconciler finds them within seconds.
    #[boxed]
    pub async fn hint_heads(&self, ended: &[JobId]) {
        if ended.is_empty() {
            return;
        }
        match self.store.heads_of(ended).await {
            Ok(heads) => heads.iter().for_each(|head| self.hint_released(head)),
            Err(error) => tracing::debug!(%error, "cannot read the heads of order keys"),
        }
    }

    /// Hint a job that is not held any more. If it was due before the jobs that this process now claims from its ready
    /// list, it goes to the front of the list, and otherwise to the tail.
    ///
    /// Where a fair limit applies it goes to the tail in any case. The workers divide by the numbers of jobs on their way,
    /// so these take turns: at the front, the jobs of the key that has waited longest would leave the others no worker.
    pub fn hint_released(&self, job: &DueJob) {
        self.events.emit(Event::Rescheduled { id: job.id });
        if !self.store.shares_fairly(&job.kind, &job.queue)
            && self.lane_times.goes_first(&job.queue, job.priority, job.execute_at)
        {
            self.hint_first(job.id, &job.queue, job.priority, job.execute_at);
        } else {
            self.hint_due(job);
        }
    }

    /// Note that this process has claimed a job that it found in the index or in MySQL. A job that was let go a moment
    /// before tells nothing about the due times of the jobs in its ready list, and is not noted.
    pub fn note_claimed(&self, job: &Claimed) {
        if !job.was_parked() && job.options.order.is_none() {
            self.lane_times.note(&job.queue, job.priority, job.execute_at);
        }
    }

    async fn announce_action(&self, id: JobId, outcome: &ActionOutcome) {
        match outcome {
            // The entry stays in the index until it is popped; then its claim finds the job cancelled and drops the id.
            ActionOutcome::Done(State::Cancelled) => {
                self.events.emit(Event::Cancelled { id });
                self.hint_heads(&[id]).await;
            }
            ActionOutcome::StopRequested => self.events.emit(Event::CancelRequested { id }),
            ActionOutcome::Waits(accepted) => {
                self.events.emit(Event::Rescheduled { id });
                if !accepted.held {
                    self.hints.send(entry(accepted));
                }
            }
            ActionOutcome::Done(_)
            | ActionOutcome::Refused(_)
            | ActionOutcome::Held(_)
            | ActionOutcome::UniqueKeyTaken { .. }
            | ActionOutcome::Missing => {}
        }
    }

    /// Hint a waiting job to the index: after a retry, a snooze or a release, or when it was popped too early. A job
    /// that was just accepted is hinted by [`announce`](Self::announce).
    pub fn hint(&self, id: JobId, queue: &Name, priority: tickr_job::Priority, execute_at: tickr_job::Timestamp) {
        self.hints.send(Entry { id, line: Lane::new(queue, priority), execute_at });
    }

    /// Hint a due job that a runner of this process has taken and not started: it goes to the front of its ready list.
    pub fn hint_first(&self, id: JobId, queue: &Name, priority: tickr_job::Priority, execute_at: tickr_job::Timestamp) {
        self.hints.send_first(Entry { id, line: Lane::new(queue, priority), execute_at });
    }

    /// Put due jobs at the front of their ready lists, in this order. It is no error if Redis does not answer: in MySQL
    /// the jobs are first in the due order, and the reconciler puts them back into the index.
    #[boxed]
    pub async fn put_first(&self, index: &Index, entries: &[Entry]) {
        if !entries.is_empty() && index.health().now() != Health::Degraded && index.put_first(entries).await.is_err() {
            metrics::counter!("tickr_hints_lost_total").increment(entries.len() as u64);
        }
        self.wake().fetcher_may_look();
    }

    /// Hint a job whose last time to start may have come. No claim takes it, and its end is written soon. It comes back
    /// in case MySQL's clock was set back.
    pub fn hint_expired(&self, id: JobId, queue: &Name, priority: tickr_job::Priority, execute_at: Timestamp) {
        let later = self.store.clock().now() + EXPIRED_PAUSE;
        self.hint(id, queue, priority, execute_at.max(later));
    }

    /// Do what [`hint`](Self::hint) does, for a row read from MySQL.
    pub fn hint_due(&self, job: &DueJob) {
        self.hint(job.id, &job.queue, job.priority, job.execute_at);
    }

    /// Publish committed jobs to the listeners of events and to the index. A job that is held is not hinted: it is
    /// hinted when it is released.
    pub fn announce(&self, accepted: &[Accepted]) {
        // Most ends of attempts bring no jobs.
        if accepted.is_empty() {
            return;
        }
        for receipt in accepted {
            self.events.emit(Event::Accepted { id: receipt.id });
            if !receipt.held {
                self.hints.send(entry(receipt));
            }
            match self.accepted.get(&receipt.kind) {
                Some(counter) => counter.increment(1),
                // A declared kind. Operators declare a bounded number of them.
                None => metrics::counter!("tickr_jobs_accepted_total", "kind" => receipt.kind.to_string()).increment(1),
            }
        }
        self.meters.record_accepted(accepted.iter().map(|receipt| &receipt.queue));
    }

    async fn announce_keyed(&self, receipts: &EnqueueReceipts) {
        for id in &receipts.replaced {
            self.events.emit(Event::Cancelled { id: *id });
        }
        self.announce(&receipts.accepted().cloned().collect::<Vec<_>>());
        for postponed in &receipts.postponed {
            self.events.emit(Event::Rescheduled { id: postponed.id });
            if !postponed.held {
                self.hints.send(entry(postponed));
            }
        }
        self.hint_heads(&receipts.replaced).await;
    }

    /// Return the signals that wake the scheduler, the ticker and a fetcher that works without Redis.
    #[must_use]
    pub fn wake(&self) -> &Wake {
        self.hints.wake()
    }

    /// Return the metrics of the last minutes.
    #[must_use]
    pub fn meters(&self) -> &Meters {
        &self.meters
    }

    /// Return the event bus of this process.
    #[must_use]
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Return the store, for reading.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }
}

/// Return whether the job is accepted in a transaction of its own, which may refuse it.
fn is_keyed(job: &NewJob) -> bool {
    job.unique_key.is_some() || job.options.has_links()
}

fn remake(
    registry: &Registry,
    original: &Original,
    payload: Option<Box<RawValue>>,
    now: Timestamp,
) -> Result<NewJob, Invalid> {
    let payload = payload.unwrap_or_else(|| original.payload.clone());
    // The draft checks the kind and the payload. All other values were checked when the original was accepted, and stay
    // the same.
    let mut job = Draft::new(original.kind.as_str(), payload).prepare(registry, now)?;
    job.queue = original.queue.clone();
    job.priority = original.priority;
    job.max_attempts = original.max_attempts;
    job.unique_key = original.unique_key.clone();
    // A replay is accepted now, so it keeps what a declared kind says now.
    job.options = JobOptions { of_kind: job.options.of_kind, ..original.options_of_replay() };
    Ok(job)
}

fn entry(accepted: &Accepted) -> Entry {
    Entry { id: accepted.id, line: Lane::new(&accepted.queue, accepted.priority), execute_at: accepted.execute_at }
}
