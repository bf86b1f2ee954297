//! Turns of changes that may wait for the lock of one row.
//!
//! Another session may hold a row for seconds, such as a runner that froze in a transaction. Each change that waits for
//! the row holds a connection, and many clients may ask for the same row at once: about a unique key, a parent, a
//! batch, an operation or a schedule. So a change takes turns for all rows that it may wait for before it takes a
//! connection. Those that wait for their turn hold none, and changes of other rows go on.
//!
//! Most of these rows admit one transaction at a time anyway, so the turns cost little.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use crate::sql::error::StoreError;
use tickr_job::{BatchId, JobId, Name, NewJob};

/// Longest wait for a turn: longer than one wait for a lock.
const PATIENCE: Duration = Duration::from_secs(8);

/// What a change may have to wait for. A change takes its turns in this order, so two of them never wait for each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Subject {
    /// A schedule.
    Schedule(Name),
    /// A bulk operation.
    Operation(Uuid),
    /// An order key.
    OrderKey(String),
    /// A kind and a unique key.
    UniqueKey(String, String),
    /// A job that is changed, or a parent of new jobs.
    Job(JobId),
    /// A batch.
    Batch(BatchId),
    /// Any row of an enqueue. All enqueues together leave a connection to other changes, however many rows are locked.
    Enqueue,
    /// Any row of a change of what exists. All of them together leave a connection to enqueues.
    Change,
}

/// Return what an enqueue of these jobs may have to wait for.
pub(crate) fn subjects_of(jobs: &[NewJob]) -> BTreeSet<Subject> {
    let mut subjects = BTreeSet::from([Subject::Enqueue]);
    for job in jobs {
        subjects.extend(keys_of(job));
        subjects.extend(job.options.after.iter().copied().map(Subject::Job));
        subjects.extend(job.options.batch.map(Subject::Batch));
    }
    subjects
}

/// Return the keys of this new job. Its insert may have to wait for their rows.
pub(crate) fn keys_of(job: &NewJob) -> impl Iterator<Item = Subject> {
    let unique = job.unique_key.iter().map(|key| Subject::UniqueKey(job.kind.to_string(), key.clone()));
    unique.chain(job.options.order.iter().map(|order| Subject::OrderKey(order.key.clone())))
}

/// The turns of one pool.
#[derive(Debug)]
pub(crate) struct Turns {
    connections: usize,
    /// The free turns of those subjects that some change takes or waits for.
    taken: Mutex<HashMap<Subject, Arc<Semaphore>>>,
}

impl Turns {
    /// Create the turns of a pool with so many connections.
    pub(super) fn new(connections: u32) -> Self {
        Self { connections: usize::try_from(connections).unwrap_or(usize::MAX), taken: Mutex::default() }
    }

    /// Return how many changes may be about a subject at a time.
    fn room(&self, subject: &Subject) -> usize {
        let room = match subject {
            Subject::Schedule(_)
            | Subject::Operation(_)
            | Subject::OrderKey(_)
            | Subject::UniqueKey(..)
            | Subject::Job(_) => self.connections / 4,
            // Enqueues into one batch do not wait for each other.
            Subject::Batch(_) => self.connections / 2,
            Subject::Enqueue | Subject::Change => self.connections.saturating_sub(1),
        };
        room.clamp(1, Semaphore::MAX_PERMITS)
    }

    /// Wait for a turn of each of these subjects. The turns end when the answer is dropped.
    pub(crate) async fn take(
        self: &Arc<Self>,
        subjects: BTreeSet<Subject>,
        attempted: &'static str,
    ) -> Result<Vec<Turn>, StoreError> {
        let waiting = async {
            let mut turns = Vec::with_capacity(subjects.len());
            for subject in subjects {
                turns.push(Turn::take(self, subject).await);
            }
            turns
        };
        tokio::time::timeout(PATIENCE, waiting).await.map_err(|_| StoreError::Overloaded { attempted })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Subject, Arc<Semaphore>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A turn of one subject, or the wait for it.
pub(crate) struct Turn {
    turns: Arc<Turns>,
    subject: Subject,
    /// Present until this is dropped.
    free: Option<Arc<Semaphore>>,
    /// Absent while this waits.
    permit: Option<OwnedSemaphorePermit>,
}

impl Turn {
    async fn take(turns: &Arc<Turns>, subject: Subject) -> Self {
        let room = turns.room(&subject);
        let free = {
            let mut taken = turns.lock();
            Arc::clone(taken.entry(subject.clone()).or_insert_with(|| Arc::new(Semaphore::new(room))))
        };
        let mut turn = Self { turns: Arc::clone(turns), subject, free: Some(Arc::clone(&free)), permit: None };
        // It is never closed.
        turn.permit = free.acquire_owned().await.ok();
        turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        drop((self.permit.take(), self.free.take()));
        let mut taken = self.turns.lock();
        // No other change takes it or waits for it.
        if taken.get(&self.subject).is_some_and(|free| Arc::strong_count(free) == 1) {
            taken.remove(&self.subject);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn about(key: &str) -> BTreeSet<Subject> {
        BTreeSet::from([Subject::UniqueKey("noop".into(), key.into()), Subject::Enqueue])
    }

    #[tokio::test]
    async fn a_change_waits_for_the_turn_of_its_subject_and_others_do_not() {
        let turns = Arc::new(Turns::new(4));
        let first = turns.take(about("a"), "test").await.unwrap();
        let mut second = Box::pin(turns.take(about("a"), "test"));
        assert!(second.as_mut().now_or_never().is_none());
        let other = turns.take(about("b"), "test").await.unwrap();
        drop(first);
        let second = second.await.unwrap();

        // Locked keys, however many, leave a connection to changes.
        let third = turns.take(about("c"), "test").await.unwrap();
        assert!(turns.take(about("d"), "test").now_or_never().is_none());
        let change = turns.take(BTreeSet::from([Subject::Job(JobId::new()), Subject::Change]), "test").await;
        // A caller that goes away while it waits leaves nothing behind.
        assert!(turns.take(about("a"), "test").now_or_never().is_none());
        drop((second, other, third, change));
        assert!(turns.lock().is_empty());
    }
}
