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
/// long as the search has taken: otherwise a long search would leave little time for the jobs that it finds.
const SKIPPED_FOR: Duration = Duration::from_secs(2);

/// The skipped jobs of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Skipped {
    until: DueCursor,
    /// When the search for their end began, and when one of them was last read.
    began: Instant,
    seen: Instant,
    goes_on: bool,
}

impl Skipped {
    /// Begin a search at this position.
    pub(super) fn new(until: DueCursor) -> Self {
        Self::new_at(until, Instant::now())
    }

    fn new_at(until: DueCursor, now: Instant) -> Self {
        Self { until, began: now, seen: now, goes_on: true }
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
        let began = if self.goes_on { self.began } else { now };
        *self = Self { until, began, seen: now, goes_on: true };
    }

    /// Note that their end is found.
    pub(super) fn end(&mut self) {
        self.end_at(Instant::now());
    }

    fn end_at(&mut self, now: Instant) {
        if self.goes_on {
            (self.seen, self.goes_on) = (now, false);
        }
    }

    /// Return whether the next look begins behind them.
    pub(super) fn is_kept(&self) -> bool {
        self.is_kept_at(Instant::now())
    }

    fn is_kept_at(&self, now: Instant) -> bool {
        let kept_for = if self.goes_on { SEARCHED_FOR } else { SKIPPED_FOR.max(self.seen - self.began) };
        now - self.seen < kept_for
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
    fn a_search_that_goes_on_behind_what_it_found_is_a_new_one() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut skipped = Skipped::new_at(DueCursor::FRONT, at(0));
        skipped.end_at(at(8_000));
        skipped.go_on_at(DueCursor::FRONT, at(9_000));
        skipped.end_at(at(9_100));
        assert_eq!([11_099, 11_100].map(|ms| skipped.is_kept_at(at(ms))), [true, false]);
    }
}
