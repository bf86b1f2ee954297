//! Every write that concerns both servers: commit to the store, then hint to the index.
//!
//! The order is the whole point. A job is durable before anybody hears of it, and a hint that is lost on the way is a
//! delay that the reconciler ends, never a lost job. So hints are sent behind the caller's back, in batches, and their
//! failure is counted, not returned.

mod controls;
mod draft;
mod feed;
mod hints;
mod idempotency;
mod queues;
mod schedules;
mod watches;

pub use crate::index::FeedId;
pub use controls::{Controls, KEYS_HOLD, Settings};
pub use draft::{Draft, Invalid, problem_of_due};
pub use feed::{Feed, Happening, Listener, Told, What};
pub use hints::Wake;
pub use idempotency::{IdempotencyKey, InvalidKey};
pub use schedules::TriggerError;
pub use watches::{Watch, Watches};

use std::collections::HashMap;
use std::sync::Arc;

use metrics::Counter;
use serde_json::value::RawValue;
use tokio_util::task::TaskTracker;

use crate::event::{Event, Events};
use crate::handlers::Registry;
use crate::index::{Entry, Health, Index, Line};
use crate::job::{Actor, JobId, JobOptions, Name, NewJob, Producer, State};
use crate::store::{
    Accepted, Batched, Change, Changed, DueJob, Holder, Holds, Keyed, Moved, Once, Original, Outcome, Placed, Receipts,
    Refusal, Remake, Steer, Steered, Store, StoreError, Wording,
};
use crate::telemetry::Meters;
use hints::Hints;

/// The way in for jobs and for what people ask of them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Broker {
    store: Store,
    registry: Arc<Registry>,
    events: Events,
    hints: Hints,
    meters: Meters,
    /// Accepted jobs by kind, the handles at hand.
    accepted: Arc<HashMap<Name, Counter>>,
}

/// What became of an enqueue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// Accepted.
    Accepted(Accepted),
    /// This unfinished job of the same kind has the same unique key, and stands for the one that was asked for. Nothing
    /// was written.
    Held(Holder),
    /// This unfinished job of the same kind has the same unique key and is in the way. Nothing was written.
    KeyTaken(Holder),
}

impl Broker {
    /// A broker over both servers. Its hint task is joined through `tasks` and ends when the last clone is dropped.
    #[must_use]
    pub fn new(store: Store, index: Index, registry: Arc<Registry>, events: Events, tasks: &TaskTracker) -> Self {
        let hints = Hints::start(index, tasks);
        let counter = |kind: Name| {
            let counter = metrics::counter!("tickr_jobs_accepted_total", "kind" => kind.to_string());
            (kind, counter)
        };
        let accepted = Arc::new(registry.names().into_iter().map(counter).collect());
        Self { store, registry, events, hints, meters: Meters::default(), accepted }
    }

    /// The kinds this process knows.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Check a draft against its kind and fill in what it leaves open.
    ///
    /// # Errors
    /// [`Invalid`] with everything that is wrong.
    pub fn prepare(&self, draft: Draft) -> Result<NewJob, Invalid> {
        draft.prepare(&self.registry)
    }

    /// Accept one job. Durable when it returns.
    ///
    /// # Errors
    /// When the store cannot be reached, is overloaded or refuses.
    pub async fn enqueue(&self, job: NewJob) -> Result<Enqueued, StoreError> {
        let first = match self.enqueue_keyed(vec![job]).await? {
            Keyed::Accepted(mut receipts) => receipts.placed.pop().map(|placed| match placed {
                Placed::New(accepted) => Enqueued::Accepted(accepted),
                Placed::Held(holder) => Enqueued::Held(holder),
            }),
            Keyed::Taken(mut taken) => taken.pop().map(|(_, holder)| Enqueued::KeyTaken(holder)),
        };
        first.ok_or_else(|| StoreError::Corrupt {
            attempted: "enqueue a job",
            cause: "the store gave no receipt".into(),
        })
    }

    /// Accept jobs without unique keys, all or none, in this order. Durable when it returns.
    ///
    /// # Errors
    /// When the store cannot be reached, is overloaded or refuses.
    pub async fn enqueue_all(&self, jobs: Vec<NewJob>) -> Result<Vec<Accepted>, StoreError> {
        debug_assert!(jobs.iter().all(|job| job.unique_key.is_none()), "keyed jobs go to enqueue_keyed");
        let accepted = self.store.insert(jobs).await?;
        self.announce(&accepted);
        Ok(accepted)
    }

    /// Accept jobs that may have unique keys, all or none, in this order. Durable when it returns. Jobs whose keys
    /// unfinished jobs have are treated as each wishes; when one of them may not be accepted, nothing is written.
    ///
    /// # Errors
    /// When the store cannot be reached, is overloaded or refuses.
    pub async fn enqueue_keyed(&self, jobs: Vec<NewJob>) -> Result<Keyed, StoreError> {
        self.enqueue_keyed_for(&Producer::tickr(), jobs).await
    }

    /// As [`enqueue_keyed`](Self::enqueue_keyed), for a producer that may not reach the jobs of all others.
    ///
    /// # Errors
    /// When the store cannot be reached, is overloaded or refuses.
    pub async fn enqueue_keyed_for(&self, producer: &Producer, jobs: Vec<NewJob>) -> Result<Keyed, StoreError> {
        let keyed = if jobs.iter().any(|job| job.unique_key.is_some()) {
            self.store.insert_keyed_for(producer.clone(), jobs).await?
        } else {
            Keyed::Accepted(Receipts::of(self.store.insert(jobs).await?))
        };
        self.announce_keyed(&keyed);
        Ok(keyed)
    }

    /// As [`enqueue_keyed`](Self::enqueue_keyed), at most once for the key of `once` (G8). `word` words the receipts as the
    /// answer that is given to whoever asks again.
    ///
    /// # Errors
    /// When the store cannot be reached, is overloaded or refuses.
    pub async fn enqueue_once(
        &self,
        jobs: Vec<NewJob>,
        once: Once,
        word: Wording<Receipts>,
    ) -> Result<Outcome<Keyed>, StoreError> {
        self.enqueue_once_for(&Producer::tickr(), jobs, once, word).await
    }

    /// As [`enqueue_once`](Self::enqueue_once), for a producer that may not reach the jobs of all others.
    ///
    /// # Errors
    /// When the store cannot be reached, is overloaded or refuses.
    pub async fn enqueue_once_for(
        &self,
        producer: &Producer,
        jobs: Vec<NewJob>,
        once: Once,
        word: Wording<Receipts>,
    ) -> Result<Outcome<Keyed>, StoreError> {
        let outcome = self.store.insert_once_for(producer.clone(), jobs, once, word).await?;
        if let Outcome::First { done: Some(keyed), .. } = &outcome {
            self.announce_keyed(keyed);
        }
        Ok(outcome)
    }

    /// Cancel, retry or run a job now, at most once for the key of `once`. `word` words what was done as the answer that
    /// is given to whoever asks again.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses.
    pub async fn steer_once(
        &self,
        id: JobId,
        steer: Steer,
        by: &Actor,
        once: Once,
        word: Wording<Steered>,
    ) -> Result<Outcome<Moved>, StoreError> {
        let outcome = self.store.steer_once(id, steer, by, once, word).await?;
        if let Outcome::First { done: Some(moved), .. } = &outcome {
            self.announce_move(id, moved);
        }
        Ok(outcome)
    }

    /// Stop a job (G9).
    ///
    /// # Errors
    /// When the store cannot be reached or refuses.
    pub async fn cancel(&self, id: JobId, by: &Actor) -> Result<Moved, StoreError> {
        let moved = self.store.cancel(id, by).await?;
        self.announce_move(id, &moved);
        Ok(moved)
    }

    /// Give a failed or cancelled job a new life.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses.
    pub async fn retry(&self, id: JobId, by: &Actor) -> Result<Moved, StoreError> {
        let moved = self.store.retry(id, by).await?;
        self.announce_move(id, &moved);
        Ok(moved)
    }

    /// Make a waiting job due now.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses.
    pub async fn run_now(&self, id: JobId, by: &Actor) -> Result<Moved, StoreError> {
        let moved = self.store.run_now(id, by).await?;
        self.announce_move(id, &moved);
        Ok(moved)
    }

    /// The new job that a replay of `original` makes: the same work with all its attempts, or with another payload,
    /// checked as this process knows the kind.
    ///
    /// # Errors
    /// [`Invalid`] when the kind is not known here or the payload does not fit it any more.
    pub fn remake(&self, original: &Original, payload: Option<Box<RawValue>>) -> Result<NewJob, Invalid> {
        remake(&self.registry, original, payload)
    }

    /// Make a new job of a failed one, which stays failed and is linked with it. `word` words the receipt as the answer.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses.
    pub async fn replay(
        &self,
        id: JobId,
        job: NewJob,
        by: &Actor,
        once: Option<Once>,
        word: Wording<Accepted>,
    ) -> Result<Outcome<Result<Accepted, Refusal>>, StoreError> {
        let outcome = self.store.replay(id, job, by, once, word).await?;
        if let Outcome::First { done: Some(Ok(accepted)), .. } = &outcome {
            self.announce(std::slice::from_ref(accepted));
        }
        Ok(outcome)
    }

    /// Change when a waiting job is due, or how urgent it is, if `condition` holds; at most once if there is a key.
    /// `word` words the job as it is then as the answer.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses.
    pub async fn change(
        &self,
        id: JobId,
        change: Change,
        by: &Actor,
        condition: Option<Holds>,
        once: Option<Once>,
        word: Wording<Steered>,
    ) -> Result<Outcome<Changed>, StoreError> {
        let outcome = self.store.change_job(id, change, by, condition, once, word).await?;
        if let Outcome::First { done: Some(Changed::Done(moved)), .. } = &outcome {
            self.announce_move(id, moved);
        }
        Ok(outcome)
    }

    /// As [`remake`](Self::remake), for a whole operation.
    #[must_use]
    pub fn remaker(&self) -> Remake {
        let registry = Arc::clone(&self.registry);
        Arc::new(move |original| {
            remake(&registry, original, None).map_err(|invalid| {
                let first = match &invalid {
                    Invalid::Payload { problems, .. } | Invalid::Job { problems } => problems.first(),
                    Invalid::UnknownKind { .. } => None,
                    Invalid::Panicked(panicked) => return format!("{invalid}: {}", panicked.message),
                };
                first.map_or(invalid.to_string(), |first| format!("{invalid}: {} {}", first.pointer, first.detail))
            })
        })
    }

    /// Tell listeners and the index of what a batch of an operation did.
    pub fn announce_batch(&self, batched: Batched) {
        self.announce(&batched.accepted);
        for accepted in &batched.waits {
            self.hints.send(entry(accepted));
        }
        for id in batched.cancelled {
            self.events.emit(Event::Cancelled { id });
        }
        for id in batched.asked {
            self.events.emit(Event::CancelRequested { id });
        }
    }

    fn announce_move(&self, id: JobId, moved: &Moved) {
        match moved {
            // Its entry stays in the index until it pops; the claim drops it.
            Moved::Done(State::Cancelled) => self.events.emit(Event::Cancelled { id }),
            Moved::Asked => self.events.emit(Event::CancelRequested { id }),
            Moved::Waits(accepted) => {
                self.events.emit(Event::Rescheduled { id });
                self.hints.send(entry(accepted));
            }
            Moved::Done(_) | Moved::Refused(_) | Moved::Missing => {}
        }
    }

    /// Tell the index of a job that waits, for the engine: a retry, a snooze, something popped too early.
    pub fn hint(&self, id: JobId, queue: &Name, priority: crate::job::Priority, execute_at: crate::job::Timestamp) {
        self.hints.send(Entry { id, line: Line::new(queue, priority), execute_at });
    }

    /// Tell the index of due jobs that are to be taken next, the first of them first. A Redis that does not answer is no
    /// error: the store has them at the beginning of its due order, and the reconciler brings them back.
    pub async fn put_first(&self, index: &Index, entries: &[Entry]) {
        if !entries.is_empty() && index.health().now() != Health::Degraded && index.put_first(entries).await.is_err() {
            metrics::counter!("tickr_hints_lost_total").increment(entries.len() as u64);
        }
        self.wake().fetcher_may_look();
    }

    /// As [`hint`](Self::hint), of a row read from the store.
    pub fn hint_due(&self, job: &DueJob) {
        self.hint(job.id, &job.queue, job.priority, job.execute_at);
    }

    /// Tell listeners and the index of committed jobs.
    pub fn announce(&self, accepted: &[Accepted]) {
        for receipt in accepted {
            self.events.emit(Event::Accepted { id: receipt.id });
            self.hints.send(entry(receipt));
            // Only kinds of this registry are accepted.
            if let Some(counter) = self.accepted.get(&receipt.kind) {
                counter.increment(1);
            }
        }
        self.meters.accepted(accepted.iter().map(|receipt| &receipt.queue));
    }

    fn announce_keyed(&self, keyed: &Keyed) {
        let Keyed::Accepted(receipts) = keyed else { return };
        for id in &receipts.replaced {
            self.events.emit(Event::Cancelled { id: *id });
        }
        self.announce(&receipts.accepted().cloned().collect::<Vec<_>>());
    }

    /// What wakes the scheduler and a fetcher that does without Redis.
    #[must_use]
    pub fn wake(&self) -> &Wake {
        self.hints.wake()
    }

    /// The figures of the last minutes.
    #[must_use]
    pub fn meters(&self) -> &Meters {
        &self.meters
    }

    /// The bus.
    #[must_use]
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// The store, for reading.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }
}

fn remake(registry: &Registry, original: &Original, payload: Option<Box<RawValue>>) -> Result<NewJob, Invalid> {
    let payload = payload.unwrap_or_else(|| original.payload.clone());
    // The draft checks kind and payload; the rest was checked when the original was accepted, and stays as it is.
    let mut job = Draft::new(original.kind.as_str(), payload).prepare(registry)?;
    job.queue = original.queue.clone();
    job.priority = original.priority;
    job.max_attempts = original.max_attempts;
    job.unique_key = original.unique_key.clone();
    // It is no second job of the tick that made the first.
    job.options = JobOptions { replay_of: Some(original.id), schedule: None, ..original.options.clone() };
    Ok(job)
}

fn entry(accepted: &Accepted) -> Entry {
    Entry { id: accepted.id, line: Line::new(&accepted.queue, accepted.priority), execute_at: accepted.execute_at }
}
