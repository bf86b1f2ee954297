//! Retention times of ended jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tickr_job::{Name, State};

/// Retention times of ended jobs, by end state, with exceptions for some kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Retention of completed jobs.
    pub completed: Duration,
    /// Retention of cancelled jobs.
    pub cancelled: Duration,
    /// Retention of failed jobs (dead letters).
    pub failed: Duration,
    /// Retention of discarded dead letters, from the time of the discard.
    pub discarded: Duration,
    /// Retention of the audit, which knows the jobs that operators deleted.
    pub audit: Duration,
    /// Kinds with retention times of their own.
    pub kinds: Arc<BTreeMap<Name, KindRetention>>,
}

/// Retention times for the jobs of one kind. Where one is absent, the general one applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindRetention {
    /// Retention of completed jobs.
    pub completed: Option<Duration>,
    /// Retention of cancelled jobs.
    pub cancelled: Option<Duration>,
    /// Retention of failed jobs.
    pub failed: Option<Duration>,
}

impl Retention {
    /// Return the same retention time for all ended jobs and the audit.
    #[must_use]
    pub fn all(age: Duration) -> Self {
        Self { completed: age, cancelled: age, failed: age, discarded: age, audit: age, kinds: Arc::default() }
    }

    /// Return the retention time of a job of this kind that ended in this state.
    pub(crate) fn for_end(&self, kind: Option<&str>, end: State) -> Duration {
        let own = kind.and_then(|kind| self.kinds.get(kind)).copied().unwrap_or_default();
        match end {
            State::Failed => own.failed.unwrap_or(self.failed),
            State::Cancelled => own.cancelled.unwrap_or(self.cancelled),
            _ => own.completed.unwrap_or(self.completed),
        }
    }

    fn of_kinds(&self) -> impl Iterator<Item = Duration> {
        self.kinds.values().flat_map(|kind| [kind.completed, kind.cancelled, kind.failed]).flatten()
    }

    fn each_of_ended(&self) -> impl Iterator<Item = Duration> {
        self.of_kinds().chain([self.completed, self.cancelled, self.failed])
    }

    /// Return all retention times of ended jobs, whatever their kinds and states. The shortest one comes first.
    #[must_use]
    pub fn times_of_ended(&self) -> BTreeSet<Duration> {
        self.each_of_ended().collect()
    }

    /// Return the shortest retention time of ended jobs. Retention removes nothing younger, except discarded dead
    /// letters.
    pub(crate) fn shortest_of_ended(&self) -> Duration {
        self.each_of_ended().fold(self.completed, Duration::min)
    }

    /// Return the shortest retention time, discarded dead letters included. Retention removes nothing younger.
    #[must_use]
    pub fn shortest(&self) -> Duration {
        self.shortest_of_ended().min(self.discarded)
    }

    /// Return the longest time that a job stays after its end. A failed job may be discarded on its last day, so both
    /// times add up.
    #[must_use]
    pub fn longest(&self) -> Duration {
        let failed = self.of_kinds().chain([self.failed]).fold(Duration::ZERO, Duration::max);
        [self.completed, self.cancelled, failed.saturating_add(self.discarded)]
            .into_iter()
            .fold(Duration::ZERO, Duration::max)
    }
}
