//! Keys of limits that another session keeps locked, as this process has found them.
//!
//! A runner that was suspended within a claim locks the keys of that claim, for as long as its connection lives. The
//! first transaction that needs one of them waits for it, for a second. Then the key is remembered, and later ones
//! leave it out, so they do not wait for the same key again and again.
//!
//! A key that other runners lock in turn is never free for a transaction that does not wait: it goes to the next one
//! that does. So only a wait renews what is remembered, and after ten seconds a transaction gets a key that is merely
//! busy. A transaction that waits holds locks of its own, and other keys wait for it. So a key for which a second wait
//! was in vain counts as locked for twice as long, and so on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time for which a key counts as locked after a transaction has waited for it in vain. It doubles with each wait.
const REMEMBERED: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(160);
/// Time after that for which the next mark of the key is twice as long.
const KEPT: Duration = Duration::from_secs(60);
/// Time after that within which a failed try renews nothing: it may have begun while the key still counted as locked. A
/// wait that began after it takes a second.
const UNDER_WAY: Duration = Duration::from_millis(500);
/// Most keys that are remembered.
const MAX_KEYS: usize = 4_096;

/// How long a key counts as locked.
#[derive(Clone, Copy, Debug)]
struct Mark {
    until: Instant,
    span: Duration,
}

impl Mark {
    fn new(now: Instant, span: Duration) -> Self {
        Self { until: now + span, span }
    }
}

/// The keys that were found locked.
#[derive(Debug)]
pub(crate) struct LockedKeys<K>(Mutex<BTreeMap<K, Mark>>);

impl<K> Default for LockedKeys<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord + Clone> LockedKeys<K> {
    /// Return whether any key counts as locked.
    pub(crate) fn has_some(&self) -> bool {
        let now = Instant::now();
        self.lock().values().any(|mark| now < mark.until)
    }

    /// Return those of these keys that count as locked.
    pub(crate) fn among(&self, keys: &[&K]) -> BTreeSet<K> {
        self.among_at(keys, Instant::now())
    }

    fn among_at(&self, keys: &[&K], now: Instant) -> BTreeSet<K> {
        let locked = self.lock();
        if locked.is_empty() {
            return BTreeSet::new();
        }
        let counts = |key: &K| locked.get(key).is_some_and(|mark| now < mark.until);
        keys.iter().copied().filter(|key| counts(key)).cloned().collect()
    }

    /// Note that this process has tried these keys and got those of them that are in `got`. It has waited for the
    /// others, unless they counted as locked. They count as locked from now on; those that did, no longer than before.
    pub(crate) fn note(&self, tried: &[&K], got: &BTreeSet<K>) {
        self.note_at(tried, got, Instant::now());
    }

    fn note_at(&self, tried: &[&K], got: &BTreeSet<K>, now: Instant) {
        let mut locked = self.lock();
        if locked.is_empty() && got.len() == tried.len() {
            return;
        }
        locked.retain(|key, mark| now < mark.until + KEPT && !got.contains(key));
        for key in tried.iter().filter(|key| !got.contains(**key)) {
            if let Some(mark) = locked.get_mut(*key) {
                if now >= mark.until + UNDER_WAY {
                    *mark = Mark::new(now, (2 * mark.span).min(LONGEST));
                }
            } else if locked.len() < MAX_KEYS {
                locked.insert((*key).clone(), Mark::new(now, REMEMBERED));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, Mark>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_counts_as_locked_until_it_is_got() {
        let [a, b] = ["a", "b"].map(str::to_owned);
        let (both, locked) = ([&a, &b], LockedKeys::default());
        locked.note(&both, &BTreeSet::from([b.clone()]));
        assert_eq!(locked.among(&both), BTreeSet::from([a.clone()]));
        locked.note(&[&b], &BTreeSet::from([b.clone()]));
        assert_eq!(locked.among(&both), BTreeSet::from([a.clone()]));
        locked.note(&both, &BTreeSet::from([a.clone(), b.clone()]));
        assert!(locked.among(&both).is_empty());
    }

    #[test]
    fn a_key_that_is_tried_and_not_waited_for_counts_as_locked_for_ten_seconds_in_all() {
        let (a, start, locked) = ("a".to_owned(), Instant::now(), LockedKeys::default());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let counts = |ms: u64| !locked.among_at(&[&a], at(ms)).is_empty();
        let fails = |ms: u64| locked.note_at(&[&a], &BTreeSet::new(), at(ms));
        // The last of these tries began just before the ten seconds were over.
        for ms in (0..=10_000).step_by(100) {
            assert_eq!(counts(ms), (1..10_000).contains(&ms), "{ms}");
            fails(ms);
        }
        fails(10_020);
        assert!(!counts(10_020));
        // So the next transaction waits, for a second and in vain.
        fails(11_020);
        assert_eq!([11_020, 31_019, 31_020].map(counts), [true, true, false]);
        for (waited, ends) in [(32_000, 72_000), (73_000, 153_000), (154_000, 314_000), (315_000, 475_000)] {
            fails(waited);
            assert_eq!([ends - 1, ends].map(counts), [true, false], "{ends}");
        }
        // A key that was free for a while counts as one that was never locked.
        fails(535_000);
        assert_eq!([544_999, 545_000].map(counts), [true, false]);
    }
}
