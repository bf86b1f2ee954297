//! The number of rows that one transaction of a loop takes.
//!
//! A transaction that lasts for longer than its limit is rolled back. If the next one took as many rows, a loop would
//! never get on while MySQL answers slowly.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::sql::error::StoreError;

/// A transaction that lasts for this long is followed by smaller ones. The limit of one is 15 s.
const SLOW: Duration = Duration::from_secs(5);
/// A transaction that is over before this time is followed by larger ones. One with twice as many rows is not slow.
const QUICK: Duration = Duration::from_millis(2_500);

/// A number of rows that follows the time that MySQL needs for them.
#[derive(Debug)]
pub(crate) struct PageSize {
    most: u32,
    now: AtomicU32,
}

impl PageSize {
    /// Begin with the largest number.
    pub(crate) const fn new(most: u32) -> Self {
        Self { most, now: AtomicU32::new(most) }
    }

    /// Return the number of rows for the next transaction.
    pub(crate) fn get(&self) -> u32 {
        self.now.load(Ordering::Relaxed)
    }

    /// Learn from a transaction that began at this moment and has ended with this outcome.
    pub(crate) fn learn<T>(&self, began: Instant, outcome: &Result<T, StoreError>) {
        self.follow(began.elapsed(), outcome.as_ref().is_err_and(StoreError::is_transient));
    }

    /// `failed` tells that MySQL did not carry the transaction out, perhaps because it had too many rows.
    fn follow(&self, took: Duration, failed: bool) {
        let now = self.get();
        let next = if failed || took >= SLOW {
            (now / 2).max(1)
        } else if took < QUICK {
            now.saturating_mul(2).min(self.most)
        } else {
            now
        };
        self.now.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_shrink_while_mysql_is_slow_and_grow_again_when_it_is_quick() {
        let page = PageSize::new(512);
        page.follow(Duration::from_secs(15), true);
        page.follow(SLOW, false);
        assert_eq!(page.get(), 128);
        page.follow(QUICK, false);
        assert_eq!(page.get(), 128, "this size is right");
        for _ in 0..20 {
            page.follow(Duration::ZERO, true);
        }
        assert_eq!(page.get(), 1);
        for _ in 0..20 {
            page.follow(Duration::ZERO, false);
        }
        assert_eq!(page.get(), 512);
    }
}
