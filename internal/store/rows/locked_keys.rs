//! Keys of limits that another session keeps locked, as this process has found them.
//!
//! A runner that was suspended within a claim locks the keys of that claim, for as long as its connection lives. The
//! first transaction that needs one of them waits for it, for a second. Then the key counts as locked for ten seconds:
//! later transactions take it only if it is free at once, so they do not wait for the same key again and again.
//!
//! A key that other runners lock in turn is hardly ever free at once: it goes to the next one that waits. So only a
//! wait in vain for this very key marks it for so long, and after ten seconds a transaction waits for it again.
//!
//! A frozen runner may keep hundreds of keys, and each of them costs such waits. So after a wait in vain this process
//! rests for two seconds: it waits only for keys that it has had since. Any other key that is not free at once counts
//! as locked until the rest is over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time for which a key counts as locked after a transaction has waited for it in vain.
const REMEMBERED: Duration = Duration::from_secs(10);
/// Time after a wait in vain in which this process waits only for keys that it has had since. With waits of a second,
/// any number of locked keys takes a third of the time of a claim at most.
const REST: Duration = Duration::from_secs(2);
/// Most keys that are remembered.
const MAX_KEYS: usize = 4_096;

#[derive(Debug)]
struct Marks<K> {
    /// The keys that count as locked, each with the end of that.
    until: BTreeMap<K, Instant>,
    /// End of the rest after the newest wait in vain.
    rests_until: Option<Instant>,
    /// Keys that this process has had since that wait.
    had: BTreeSet<K>,
}

impl<K: Ord + Clone> Marks<K> {
    fn is_locked(&self, key: &K, now: Instant) -> bool {
        self.until.get(key).is_some_and(|until| now < *until)
    }

    fn rests_until(&self, now: Instant) -> Option<Instant> {
        self.rests_until.filter(|until| now < *until)
    }

    fn mark(&mut self, key: &K, until: Instant) {
        if let Some(known) = self.until.get_mut(key) {
            *known = until.max(*known);
        } else if self.until.len() < MAX_KEYS {
            self.until.insert(key.clone(), until);
        }
    }
}

/// The keys that a transaction locks while it waits, and those that it takes only if they are free at once.
type Split<'k, K> = (Vec<&'k K>, Vec<&'k K>);

/// The keys that were found locked.
#[derive(Debug)]
pub(crate) struct LockedKeys<K>(Mutex<Marks<K>>);

impl<K> Default for LockedKeys<K> {
    fn default() -> Self {
        Self(Mutex::new(Marks { until: BTreeMap::new(), rests_until: None, had: BTreeSet::new() }))
    }
}

impl<K: Ord + Clone> LockedKeys<K> {
    /// Return whether any key counts as locked.
    pub(crate) fn has_some(&self) -> bool {
        let now = Instant::now();
        self.lock().until.values().any(|until| now < *until)
    }

    /// Return those of these keys that count as locked.
    pub(crate) fn among(&self, keys: &[&K]) -> BTreeSet<K> {
        self.among_at(keys, Instant::now())
    }

    fn among_at(&self, keys: &[&K], now: Instant) -> BTreeSet<K> {
        let marks = self.lock();
        keys.iter().copied().filter(|key| marks.is_locked(key, now)).cloned().collect()
    }

    /// Return those of these keys for which a transaction is to wait that has got the keys in `got`.
    pub(crate) fn to_wait_for(&self, keys: &[&K], got: &BTreeSet<K>) -> BTreeSet<K> {
        self.to_wait_for_at(keys, got, Instant::now())
    }

    fn to_wait_for_at(&self, keys: &[&K], got: &BTreeSet<K>, now: Instant) -> BTreeSet<K> {
        let marks = self.lock();
        let rests = marks.rests_until(now).is_some();
        let may_wait = |key: &K| !marks.is_locked(key, now) && (!rests || marks.had.contains(key));
        keys.iter().copied().filter(|key| !got.contains(*key) && may_wait(key)).cloned().collect()
    }

    /// Split these keys into those that a transaction locks while it waits for `missing`, and those that it takes after
    /// that if they are free at once. It has had the keys in `got` a moment before.
    pub(crate) fn split<'k>(&self, keys: &[&'k K], got: &BTreeSet<K>, missing: &BTreeSet<K>) -> Split<'k, K> {
        self.split_at(keys, got, missing, Instant::now())
    }

    fn split_at<'k>(&self, keys: &[&'k K], got: &BTreeSet<K>, missing: &BTreeSet<K>, now: Instant) -> Split<'k, K> {
        let marks = self.lock();
        // Any other key may be one that this process is not to wait for in a rest.
        let waits = |key: &K| missing.contains(key) || (got.contains(key) && !marks.is_locked(key, now));
        keys.iter().copied().partition(|key| waits(key))
    }

    /// Note that this process has tried these keys and got those of them that are in `got`. These do not count as
    /// locked any more. The others do until the end of a rest, unless they were free since it began.
    pub(crate) fn note(&self, tried: &[&K], got: &BTreeSet<K>) {
        self.note_at(tried, got, Instant::now());
    }

    fn note_at(&self, tried: &[&K], got: &BTreeSet<K>, now: Instant) {
        let mut marks = self.lock();
        marks.until.retain(|key, until| now < *until && !got.contains(key));
        let Some(rests_until) = marks.rests_until(now) else { return };
        if marks.had.len() < MAX_KEYS {
            marks.had.extend(got.iter().cloned());
        }
        for key in tried.iter().copied().filter(|key| !got.contains(*key)) {
            if !marks.had.contains(key) {
                marks.mark(key, rests_until);
            }
        }
    }

    /// Note that a transaction has waited for this key in vain. It counts as locked from now on.
    pub(crate) fn waited_in_vain(&self, key: &K) {
        self.waited_in_vain_at(key, Instant::now());
    }

    fn waited_in_vain_at(&self, key: &K, now: Instant) {
        let mut marks = self.lock();
        marks.mark(key, now + REMEMBERED);
        marks.rests_until = Some(now + REST);
        marks.had.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Marks<K>> {
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
        locked.waited_in_vain(&a);
        assert_eq!(locked.among(&both), BTreeSet::from([a.clone()]));
        locked.note(&[&b], &BTreeSet::from([b.clone()]));
        assert_eq!(locked.among(&both), BTreeSet::from([a.clone()]));
        locked.note(&both, &BTreeSet::from([a.clone(), b.clone()]));
        assert!(locked.among(&both).is_empty() && !locked.has_some());
    }

    #[test]
    fn a_key_that_is_tried_and_not_waited_for_counts_as_locked_for_ten_seconds_in_all() {
        let (a, start, locked) = ("a".to_owned(), Instant::now(), LockedKeys::default());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let waits = |ms: u64| !locked.to_wait_for_at(&[&a], &BTreeSet::new(), at(ms)).is_empty();
        for from in [0, 11_000, 22_000] {
            locked.waited_in_vain_at(&a, at(from));
            for ms in (from..from + 10_900).step_by(100) {
                assert_eq!(waits(ms), ms >= from + 10_000, "{ms}");
                locked.note_at(&[&a], &BTreeSet::new(), at(ms));
            }
        }
    }

    #[test]
    fn a_key_that_is_merely_busy_counts_as_locked_for_no_longer_than_the_rest_after_the_wait_for_another() {
        let [a, b, c] = ["a", "b", "c"].map(str::to_owned);
        let (all, start, locked) = ([&a, &b, &c], Instant::now(), LockedKeys::default());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let (nothing, only_b) = (BTreeSet::new(), BTreeSet::from([b.clone()]));
        // Without a wait in vain none counts as locked.
        locked.note_at(&all, &nothing, at(0));
        assert_eq!(locked.to_wait_for_at(&all, &only_b, at(0)), BTreeSet::from([a.clone(), c.clone()]));
        locked.waited_in_vain_at(&a, at(0));
        // It has had `b` since, and so it waits for it.
        locked.note_at(&all, &only_b, at(1));
        locked.note_at(&all, &nothing, at(2));
        assert_eq!(locked.to_wait_for_at(&all, &nothing, at(3)), only_b);
        assert_eq!(locked.among_at(&all, at(3)), BTreeSet::from([a.clone(), c.clone()]));
        assert_eq!(locked.to_wait_for_at(&all, &nothing, at(1_999)), only_b);
        assert_eq!(locked.to_wait_for_at(&all, &nothing, at(2_000)), BTreeSet::from([b.clone(), c.clone()]));
        assert_eq!(locked.among_at(&all, at(2_000)), BTreeSet::from([a.clone()]));
    }

    #[test]
    fn a_wait_in_a_rest_locks_no_key_that_is_neither_waited_for_nor_free() {
        let [a, b, c, d] = ["a", "b", "c", "d"].map(str::to_owned);
        let (all, start, locked) = ([&a, &b, &c, &d], Instant::now(), LockedKeys::default());
        let at = |ms: u64| start + Duration::from_millis(ms);
        locked.waited_in_vain_at(&a, at(0));
        locked.note_at(&[&c], &BTreeSet::from([c.clone()]), at(1));
        // `b` is met for the first time, and is not free. So it may be kept like `a`, and only `c` is worth a wait.
        let got = BTreeSet::from([d.clone()]);
        let missing = locked.to_wait_for_at(&all, &got, at(2));
        assert_eq!(missing, BTreeSet::from([c.clone()]));
        assert_eq!(locked.split_at(&all, &got, &missing, at(2)), (vec![&c, &d], vec![&a, &b]));
        // A key that counts as locked is not waited for, even if it was free a moment before.
        let got = BTreeSet::from([a.clone(), d.clone()]);
        assert_eq!(locked.split_at(&all, &got, &missing, at(2)), (vec![&c, &d], vec![&a, &b]));
    }

    #[test]
    fn any_number_of_locked_keys_takes_a_third_of_the_time_in_waits() {
        let keys: Vec<String> = (0..300).map(|n| format!("{n}")).collect();
        let (all, start, locked): (Vec<&String>, _, _) = (keys.iter().collect(), Instant::now(), LockedKeys::default());
        let (mut ms, mut waited) = (0, 0);
        while ms < 60_000 {
            let now = start + Duration::from_millis(ms);
            if let Some(key) = locked.to_wait_for_at(&all, &BTreeSet::new(), now).first() {
                (ms, waited) = (ms + 1_000, waited + 1_000);
                locked.waited_in_vain_at(key, start + Duration::from_millis(ms));
            }
            locked.note_at(&all, &BTreeSet::new(), start + Duration::from_millis(ms));
            ms += 10;
        }
        assert!((19_000..=21_000).contains(&waited), "{waited} ms of a minute");
    }
}
