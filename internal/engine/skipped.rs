//! Due jobs at the front of a lane that a look in MySQL skips, because it may not take them: jobs of kinds that it does
//! not have, and jobs of locked keys of limits, among others.
//!
//! There may be any number of them, so the looks search their end page by page, and each goes on where the last one has
//! stopped. The jobs behind them are then taken from that place, until the front is read again: a job that may be taken
//! may have come there.

use std::time::{Duration, Instant};

use tickr_store::DueCursor;

/// The longest interruption of a search.
const SEARCHED_FOR: Duration = Duration::from_secs(10);
/// Shortest time for which skipped jobs are not read again after their end was found. They are not read again for as
/// long as the search from the front has taken: otherwise a long search would leave little time for the jobs that it
/// finds. Searches that go on behind their end do not prolong that: there may be one again and again, and a job in
/// front would wait for ever.
const SKIPPED_FOR: Duration = Duration::from_secs(2);

/// The skipped jobs of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Skipped {
    until: DueCursor,
    /// When the search for their end began at the front, and when one of them was last read.
    began: Instant,
    seen: Instant,
    goes_on: bool,
    /// When the front is read again. Absent until their end was found for the first time.
    front_at: Option<Instant>,
}

impl Skipped {
    /// Begin a search at this position.
    pub(super) fn new(until: DueCursor) -> Self {
        Self::new_at(until, Instant::now())
    }

    fn new_at(until: DueCursor, now: Instant) -> Self {
        Self { until, began: now, seen: now, goes_on: true, front_at: None }
    }

    /// Return the position from which to read on.
    pub(super) fn until(&self) -> DueCursor {
        self.until
    }

    /// Return whether their end is not found yet.
    pub(super) fn goes_on(&self) -> bool {
        self.goes_on
    }

    /// Note that the jobs up to this position are skipped, and that their end is not found yet.
    pub(super) fn go_on(&mut self, until: DueCursor) {
        self.go_on_at(until, Instant::now());
    }

    fn go_on_at(&mut self, until: DueCursor, now: Instant) {
        *self = Self { until, seen: now, goes_on: true, ..*self };
    }

    /// Note that their end is found.
    pub(super) fn end(&mut self) {
        self.end_at(Instant::now());
    }

    fn end_at(&mut self, now: Instant) {
        self.goes_on = false;
        self.front_at.get_or_insert(now + SKIPPED_FOR.max(now - self.began));
    }

    /// Return whether the next look begins behind them.
    pub(super) fn is_kept(&self) -> bool {
        self.is_kept_at(Instant::now())
    }

    fn is_kept_at(&self, now: Instant) -> bool {
        match self.front_at {
            Some(front_at) if !self.goes_on => now < front_at,
            _ => now - self.seen < SEARCHED_FOR,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_goes_on_for_as_long_as_its_pages_follow_each_other_and_leaves_as_much_time_for_what_it_finds() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut skipped = Skipped::new_at(DueCursor::FRONT, at(0));
        // A page every five seconds, for a minute.
        for ms in (5_000..=60_000).step_by(5_000) {
            assert!(skipped.is_kept_at(at(ms)), "{ms}");
            skipped.go_on_at(DueCursor::FRONT, at(ms));
        }
        skipped.end_at(at(61_000));
        // What is taken afterwards does not renew it.
        skipped.end_at(at(70_000));
        assert_eq!([61_000, 121_999, 122_000].map(|ms| skipped.is_kept_at(at(ms))), [true, true, false]);
        // A search that was interrupted begins at the front again.
        let skipped = Skipped::new_at(DueCursor::FRONT, at(0));
        assert_eq!([9_999, 10_000].map(|ms| skipped.is_kept_at(at(ms))), [true, false]);
    }

    #[test]
    fn searches_behind_what_was_found_put_off_the_next_look_at_the_front_by_no_more_than_they_take() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut skipped = Skipped::new_at(DueCursor::FRONT, at(0));
        skipped.end_at(at(100));
        // Before each pause of two seconds is over, there is another page of jobs that are skipped.
        let mut ms = 100;
        while skipped.is_kept_at(at(ms)) {
            assert!(ms < 4_000, "the front is not read again");
            skipped.go_on_at(DueCursor::FRONT, at(ms + 500));
            skipped.end_at(at(ms + 600));
            ms += 1_900;
        }
        // A search that goes on is not broken off, and the front is read when it has ended.
        let mut skipped = Skipped::new_at(DueCursor::FRONT, at(0));
        skipped.end_at(at(8_000));
        skipped.go_on_at(DueCursor::FRONT, at(15_000));
        assert!(skipped.is_kept_at(at(17_000)));
        skipped.end_at(at(17_000));
        assert!(!skipped.is_kept_at(at(17_000)));
    }
}
