//! The due times to which this process has come, by lane.
//!
//! A job that a limit by key held for a while may be older than all jobs of its ready list. At the tail of the list it
//! would wait behind all of them, and the slot that is kept for it would be given to another one meanwhile. At the front,
//! it could overtake jobs that are older than it. So each process notes the due time of the job that it claimed last in
//! the ordinary way: the jobs behind that one in the list were due later.

use std::array;
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock};

use tickr_job::{Name, Priority, Timestamp};

/// Most queues of which the due times are known. A process that serves more forgets all of them now and then: until
/// the next claim in a queue, jobs of that queue go to the tail of their lists.
const MAX_QUEUES: usize = 1_000;
/// Number of priorities.
const LEVELS: usize = Priority::LAST.level() as usize + 1;
/// Most jobs that go to the front of a lane between two ordinary claims. The front of a list has no high water, and a
/// sweep may let any number of jobs of a removed limit go.
const MAX_FIRST: u32 = 10_000;

/// The due times of the jobs that were claimed last, by queue and priority. Every claim that wins a job writes one, so
/// that waits for no lock of another claim.
#[derive(Debug, Default)]
pub(super) struct LaneTimes {
    of_queues: RwLock<HashMap<Name, [LaneTime; LEVELS]>>,
}

#[derive(Debug)]
struct LaneTime {
    /// Due time of the job that was claimed last in the ordinary way, in unix milliseconds. `i64::MIN` if none was.
    last_ms: AtomicI64,
    /// Number of jobs that went to the front since then.
    first: AtomicU32,
}

impl Default for LaneTime {
    fn default() -> Self {
        Self { last_ms: AtomicI64::new(i64::MIN), first: AtomicU32::new(0) }
    }
}

impl LaneTimes {
    /// Note that a job with this due time was claimed in the ordinary way. So no job is left at the front of the list.
    ///
    /// The last claim counts and not the one of the newest job: a clock that was set back, or a job that came late into
    /// the index, must not change the order for longer than until the next claim.
    pub(super) fn note(&self, queue: &Name, priority: Priority, due_at: Timestamp) {
        let note = |time: &LaneTime| {
            time.last_ms.store(due_at.timestamp_millis(), Ordering::Relaxed);
            time.first.store(0, Ordering::Relaxed);
        };
        if self.look(queue, priority, note).is_some() {
            return;
        }
        {
            let mut of_queues = self.of_queues.write().unwrap_or_else(PoisonError::into_inner);
            if of_queues.len() >= MAX_QUEUES {
                of_queues.clear();
            }
            of_queues.entry(queue.clone()).or_insert_with(|| array::from_fn(|_| LaneTime::default()));
        }
        self.look(queue, priority, note);
    }

    /// Return whether a job with this due time goes to the front of its lane, and count it if so: it was due before the
    /// one that was claimed last.
    pub(super) fn goes_first(&self, queue: &Name, priority: Priority, due_at: Timestamp) -> bool {
        let goes_first = |time: &LaneTime| {
            due_at.timestamp_millis() < time.last_ms.load(Ordering::Relaxed)
                && time.first.load(Ordering::Relaxed) < MAX_FIRST
                && time.first.fetch_add(1, Ordering::Relaxed) < MAX_FIRST
        };
        self.look(queue, priority, goes_first).unwrap_or(false)
    }

    fn look<T>(&self, queue: &Name, priority: Priority, look: impl FnOnce(&LaneTime) -> T) -> Option<T> {
        let of_queues = self.of_queues.read().unwrap_or_else(PoisonError::into_inner);
        of_queues.get(queue)?.get(usize::from(priority.level())).map(look)
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    fn at(ms: i64) -> Timestamp {
        DateTime::from_timestamp_millis(1_700_000_000_000 + ms).unwrap()
    }

    #[test]
    fn a_job_goes_first_if_a_job_of_its_lane_that_was_due_later_was_claimed_last() {
        let (mail, other): (Name, Name) = ("mail".parse().unwrap(), "other".parse().unwrap());
        let (normal, urgent) = (Priority::NORMAL, Priority::try_from(0).unwrap());
        let times = LaneTimes::default();
        assert!(!times.goes_first(&mail, normal, at(0)), "nothing was claimed");
        times.note(&mail, normal, at(10));
        assert!(times.goes_first(&mail, normal, at(9)));
        assert!(!times.goes_first(&mail, normal, at(10)), "both were due at the same time");
        assert!(!times.goes_first(&mail, urgent, at(9)) && !times.goes_first(&other, normal, at(9)), "of another lane");
        times.note(&mail, normal, at(5));
        assert!(!times.goes_first(&mail, normal, at(9)), "the last claim counts");
    }

    #[test]
    fn a_bounded_number_of_jobs_go_first_before_an_ordinary_job_has_its_turn() {
        let (times, mail): (LaneTimes, Name) = (LaneTimes::default(), "mail".parse().unwrap());
        for _ in 0..2 {
            times.note(&mail, Priority::NORMAL, at(10));
            let first = (0..2 * MAX_FIRST).filter(|_| times.goes_first(&mail, Priority::NORMAL, at(0))).count();
            assert_eq!(first, MAX_FIRST as usize);
        }
    }

    #[test]
    fn the_times_of_a_bounded_number_of_queues_are_kept() {
        let times = LaneTimes::default();
        for n in 0..3 * MAX_QUEUES {
            times.note(&format!("q{n}").parse().unwrap(), Priority::LAST, at(0));
        }
        assert!(times.of_queues.read().unwrap().len() <= MAX_QUEUES);
    }
}
