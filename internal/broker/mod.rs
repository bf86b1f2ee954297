//! Every write that concerns both servers: commit to the store, then hint to the index.
//!
//! The order is the whole point. A job is durable before anybody hears of it, and a hint that is lost on the way is a
//! delay that the reconciler ends, never a lost job. So hints are sent behind the caller's back, in batches, and their
//! failure is counted, not returned.

mod draft;
mod hints;

pub use draft::{Draft, Invalid};
pub use hints::Wake;

use std::sync::Arc;

use tokio_util::task::TaskTracker;

use crate::event::{Event, Events};
use crate::handlers::Registry;
use crate::index::{Entry, Index, Line};
use crate::job::{JobId, Name, NewJob};
use crate::store::{Accepted, DueJob, Keyed, Moved, Store, StoreError};
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
}

/// What became of an enqueue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// Accepted.
    Accepted(Accepted),
    /// An unfinished job of the same kind has the same unique key; nothing was written.
    KeyTaken {
        /// The job that has it.
        holder: JobId,
    },
}

/// Jobs of a batch, by place, whose unique keys are held, and by which unfinished jobs.
pub type KeysTaken = Vec<(usize, JobId)>;

impl Broker {
    /// A broker over both servers. Its hint task is joined through `tasks` and ends when the last clone is dropped.
    #[must_use]
    pub fn new(store: Store, index: Index, registry: Arc<Registry>, events: Events, tasks: &TaskTracker) -> Self {
        let hints = Hints::start(index, tasks);
        Self { store, registry, events, hints, meters: Meters::default() }
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
        let no_receipt =
            || StoreError::Corrupt { attempted: "enqueue a job", cause: "the store gave no receipt".into() };
        if job.unique_key.is_none() {
            let accepted = self.enqueue_all(vec![job]).await?.pop();
            return accepted.map(Enqueued::Accepted).ok_or_else(no_receipt);
        }
        match self.enqueue_keyed(vec![job]).await? {
            Ok(mut accepted) => accepted.pop().map(Enqueued::Accepted).ok_or_else(no_receipt),
            Err(mut taken) => {
                let (_, holder) = taken.pop().ok_or_else(no_receipt)?;
                Ok(Enqueued::KeyTaken { holder })
            }
        }
    }

    /// Accept jobs some of which have unique keys, all or none. When unfinished jobs hold some of the keys, nothing is
    /// written and the inner error says which jobs of the batch, by place, and who holds their keys.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses.
    pub async fn enqueue_keyed(&self, jobs: Vec<NewJob>) -> Result<Result<Vec<Accepted>, KeysTaken>, StoreError> {
        Ok(match self.store.insert_keyed(jobs).await? {
            Keyed::Accepted(accepted) => {
                self.announce(&accepted);
                Ok(accepted)
            }
            Keyed::Taken(taken) => Err(taken),
        })
    }

    /// Accept jobs without unique keys, all or none, in this order. Durable when it returns.
    ///
    /// # Errors
    /// When the store cannot be reached, is overloaded or refuses.
    pub async fn enqueue_all(&self, jobs: Vec<NewJob>) -> Result<Vec<Accepted>, StoreError> {
        debug_assert!(jobs.iter().all(|job| job.unique_key.is_none()), "keyed jobs go one by one");
        let accepted = self.store.insert(jobs).await?;
        self.announce(&accepted);
        Ok(accepted)
    }

    /// Stop a job (G9).
    ///
    /// # Errors
    /// When the store cannot be reached or refuses.
    pub async fn cancel(&self, id: JobId) -> Result<Moved, StoreError> {
        let moved = self.store.cancel(id).await?;
        match moved {
            // Its entry stays in the index until it pops; the claim drops it.
            Moved::Done(_) => self.events.emit(Event::Cancelled { id }),
            Moved::Asked => self.events.emit(Event::CancelRequested { id }),
            Moved::Waits(_) | Moved::Refused(_) | Moved::Missing => {}
        }
        Ok(moved)
    }

    /// Give a failed or cancelled job a new life.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses.
    pub async fn retry(&self, id: JobId) -> Result<Moved, StoreError> {
        let moved = self.store.retry(id).await?;
        if let Moved::Waits(accepted) = &moved {
            self.hints.send(entry(accepted));
        }
        Ok(moved)
    }

    /// Make a waiting job due now.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses.
    pub async fn run_now(&self, id: JobId) -> Result<Moved, StoreError> {
        let moved = self.store.run_now(id).await?;
        if let Moved::Waits(accepted) = &moved {
            self.hints.send(entry(accepted));
        }
        Ok(moved)
    }

    /// Tell the index of a job that waits, for the engine: a retry, a snooze, something popped too early.
    pub fn hint(&self, id: JobId, queue: &Name, priority: crate::job::Priority, execute_at: crate::job::Timestamp) {
        self.hints.send(Entry { id, line: Line::new(queue, priority), execute_at });
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
        }
        metrics::counter!("tickr_jobs_accepted_total").increment(accepted.len() as u64);
        self.meters.accepted(accepted.len() as u64);
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

fn entry(accepted: &Accepted) -> Entry {
    Entry { id: accepted.id, line: Line::new(&accepted.queue, accepted.priority), execute_at: accepted.execute_at }
}
