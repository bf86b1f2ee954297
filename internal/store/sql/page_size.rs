//! The number of rows that one transaction of a loop takes.
//!
//! A transaction that lasts for longer than its limit is rolled back. If the next one took as many rows, a loop would
//! never get on while MySQL answers slowly, or while it refuses transactions of so many bytes.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::sql::error::StoreError;

/// A transaction that lasts for this long is followed by smaller ones. The limit of one is 15 s.
const SLOW: Duration = Duration::from_secs(5);
/// A transaction that is over before this time is followed by larger ones. One with twice as many rows is not slow.
const QUICK: Duration = Duration::from_millis(2_500);

/// Quick transactions after which a size is tried again that MySQL did not carry out. If it were tried at once, every
/// second transaction of large rows would fail.
const TRIED_AGAIN: u32 = 64;

/// A number of rows that follows the time that MySQL needs for them.
#[derive(Debug)]
pub(crate) struct PageSize {
    most: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    now: u32,
    /// The smallest size that MySQL did not carry out.
    failed: Option<u32>,
    /// Quick transactions since then.
    quick: u32,
}

impl PageSize {
    /// Begin with the largest number.
    pub(crate) const fn new(most: u32) -> Self {
        Self { most, state: Mutex::new(State { now: most, failed: None, quick: 0 }) }
    }

    /// Return the number of rows for the next transaction.
    pub(crate) fn get(&self) -> u32 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).now
    }

    /// Learn from a transaction that began at this moment and has ended with this outcome.
    pub(crate) fn learn<T>(&self, began: Instant, outcome: &Result<T, StoreError>) {
        self.follow(began.elapsed(), outcome.as_ref().is_err_and(StoreError::is_transient));
    }

    /// Learn from a transaction of this many rows, which may be fewer than it was allowed. Its time says nothing about its
    /// size: a few rows need nearly as many answers as many of them here. So only one that MySQL did not carry out is
    /// followed by smaller ones, and each other one counts for larger ones.
    pub(crate) fn learn_of<T>(&self, rows: u32, outcome: &Result<T, StoreError>) {
        self.follow_part(rows, outcome.as_ref().is_err_and(StoreError::is_transient));
    }

    /// `failed` tells that MySQL did not carry the transaction out, perhaps because it had too many rows.
    fn follow(&self, took: Duration, failed: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if failed {
            let rows = state.now;
            state.shrink_below(rows);
        } else if took >= SLOW {
            state.now = (state.now / 2).max(1);
        } else if took < QUICK {
            state.grow(self.most);
        }
    }

    fn follow_part(&self, rows: u32, failed: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = rows.clamp(1, state.now);
        if failed {
            // The failure of a single row has another cause than the size.
            if rows > 1 {
                state.shrink_below(rows);
            }
        } else if rows > state.now / 2 {
            // A transaction of few rows says nothing about larger ones.
            state.grow(self.most);
        }
    }
}

impl State {
    /// MySQL did not carry out a transaction of this many rows.
    fn shrink_below(&mut self, rows: u32) {
        *self = Self { now: (rows / 2).max(1), failed: Some(rows), quick: 0 };
    }

    /// A transaction was quick.
    fn grow(&mut self, most: u32) {
        self.quick = self.quick.saturating_add(1);
        let larger = self.now.saturating_mul(2).min(most);
        if self.quick >= TRIED_AGAIN {
            self.failed = None;
        }
        if self.failed.is_none_or(|failed| larger < failed) {
            self.now = larger;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_shrink_while_mysql_is_slow_and_grow_again_when_it_is_quick() {
        let page = PageSize::new(512);
        page.follow(SLOW, false);
        page.follow(SLOW, false);
        assert_eq!(page.get(), 128);
        page.follow(QUICK, false);
        assert_eq!(page.get(), 128, "this size is right");
        for _ in 0..20 {
            page.follow(Duration::ZERO, true);
        }
        assert_eq!(page.get(), 1);
        for _ in 0..TRIED_AGAIN + 20 {
            page.follow(Duration::ZERO, false);
        }
        assert_eq!(page.get(), 512);
    }

    #[test]
    fn a_page_that_was_not_full_shrinks_by_its_own_rows_and_grows_by_none() {
        let page = PageSize::new(400);
        page.follow_part(1, true);
        assert_eq!(page.get(), 400, "a single row is never too many");
        page.follow_part(64, true);
        assert_eq!(page.get(), 32, "half of the rows that failed, not half of those that were allowed");
        for _ in 0..TRIED_AGAIN + 20 {
            page.follow_part(16, false);
        }
        assert_eq!(page.get(), 32, "few rows say nothing about more of them");
        for _ in 0..TRIED_AGAIN + 20 {
            page.follow_part(400, false);
        }
        assert_eq!(page.get(), 400);
    }

    #[test]
    fn a_size_that_mysql_refused_is_tried_again_only_after_many_quick_pages() {
        let page = PageSize::new(512);
        let fits = |rows: u32| rows <= 100;
        let (mut refused, mut done) = (0, 0);
        for _ in 0..1_000 {
            let rows = page.get();
            page.follow(Duration::ZERO, !fits(rows));
            (refused, done) = if fits(rows) { (refused, done + rows) } else { (refused + 1, done) };
        }
        assert!(refused < 20 && done > 60_000, "{refused} refused, {done} rows done");
    }
}
