//! Keys of limits that another session keeps locked, as this process has found them.
//!
//! A runner that was suspended within a claim locks the keys of that claim, for as long as its connection lives. The
//! first transaction that needs one of them waits for it, for a second. Then the key is remembered, and later ones
//! leave it out, so they do not wait for the same key again and again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time for which a key counts as locked after the last try.
const REMEMBERED: Duration = Duration::from_secs(10);
/// Most keys that are remembered.
const MAX_KEYS: usize = 4_096;

/// The keys, with the time of the last try.
#[derive(Debug)]
pub(crate) struct LockedKeys<K>(Mutex<BTreeMap<K, Instant>>);

impl<K> Default for LockedKeys<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord + Clone> LockedKeys<K> {
    /// Return whether any key counts as locked.
    pub(crate) fn has_some(&self) -> bool {
        self.lock().values().any(|tried| tried.elapsed() < REMEMBERED)
    }

    /// Return those of these keys that count as locked.
    pub(crate) fn among(&self, keys: &[&K]) -> BTreeSet<K> {
        let locked = self.lock();
        if locked.is_empty() {
            return BTreeSet::new();
        }
        let counts = |key: &K| locked.get(key).is_some_and(|tried| tried.elapsed() < REMEMBERED);
        keys.iter().copied().filter(|key| counts(key)).cloned().collect()
    }

    /// Note that this process has tried these keys and got those of them that are in `got`. The others count as locked.
    pub(crate) fn note(&self, tried: &[&K], got: &BTreeSet<K>) {
        let mut locked = self.lock();
        if locked.is_empty() && got.len() == tried.len() {
            return;
        }
        locked.retain(|key, tried| tried.elapsed() < REMEMBERED && !got.contains(key));
        for key in tried.iter().filter(|key| !got.contains(**key)) {
            if locked.len() < MAX_KEYS || locked.contains_key(*key) {
                locked.insert((*key).clone(), Instant::now());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, Instant>> {
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
}
