//! The deletion of rows at a source, some of which other sessions lock.

use std::collections::BTreeSet;

use rand::seq::SliceRandom;
use uuid::Uuid;

/// Lists into which rows are split after a try of them has waited in vain. Each wait takes a second, and each statement
/// a way to the source and back. With this number one locked row among a thousand costs two more waits and 64
/// statements at most.
const LISTS: usize = 32;
/// Further waits after which the deletion is given up until later.
const MAX_WAITS: usize = 3;

/// Rows that are deleted a few at a time, after the deletion of many together has waited for a locked one.
#[derive(Default)]
pub(super) struct Deletion {
    /// Lists of rows that are still to be tried, the next one last.
    lists: Vec<Vec<Uuid>>,
    waits: usize,
    /// Rows that are still there.
    left: BTreeSet<Uuid>,
}

impl Deletion {
    /// Begin with rows of which another session locks one at least. The only one is not tried again.
    pub(super) fn of(ids: &[Uuid]) -> Self {
        let mut deletion = Self::default();
        deletion.split(ids);
        deletion
    }

    /// Return the rows that are tried next, together.
    pub(super) fn next_list(&mut self) -> Option<Vec<Uuid>> {
        if self.waits >= MAX_WAITS {
            self.left.extend(self.lists.drain(..).flatten());
        }
        self.lists.pop()
    }

    /// Note that the try of these rows has waited in vain.
    pub(super) fn waited(&mut self, ids: &[Uuid]) {
        self.waits += 1;
        self.split(ids);
    }

    /// Return the rows that are still there.
    pub(super) fn into_left(self) -> BTreeSet<Uuid> {
        self.left
    }

    fn split(&mut self, ids: &[Uuid]) {
        if let [id] = ids {
            self.left.insert(*id);
            return;
        }
        let size = ids.len().div_ceil(LISTS).max(1);
        let mut lists: Vec<Vec<Uuid>> = ids.chunks(size).map(<[Uuid]>::to_vec).collect();
        // If this is given up, another list is the first the next time. So each row has its turn, whatever is locked.
        lists.shuffle(&mut rand::rng());
        self.lists.extend(lists);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Delete rows of which these are locked. Return the number of statements and of waits, and the rows that are left.
    fn run(ids: &[Uuid], locked: &[Uuid]) -> (usize, usize, BTreeSet<Uuid>) {
        let (mut deletion, mut statements) = (Deletion::of(ids), 0);
        while let Some(ids) = deletion.next_list() {
            statements += 1;
            if ids.iter().any(|id| locked.contains(id)) {
                deletion.waited(&ids);
            }
        }
        (statements, deletion.waits, deletion.into_left())
    }

    #[test]
    fn one_locked_row_costs_the_deletion_of_a_thousand_others_two_waits_and_few_statements() {
        let ids: Vec<Uuid> = (1..=1_000).map(Uuid::from_u128).collect();
        for locked in [ids[0], ids[500], ids[991]] {
            assert_eq!(run(&ids, &[locked]), (64, 2, BTreeSet::from([locked])));
        }
        // The last list is shorter.
        assert_eq!(run(&ids, &[ids[999]]), (40, 2, BTreeSet::from([ids[999]])));
        assert_eq!(run(&ids[..2], &[ids[0]]), (2, 1, BTreeSet::from([ids[0]])));
        assert_eq!(run(&ids[..1], &[ids[0]]), (0, 0, BTreeSet::from([ids[0]])));
        assert_eq!(run(&[], &[]), (0, 0, BTreeSet::new()));
    }

    #[test]
    fn a_deletion_is_given_up_after_three_waits_and_each_row_that_is_not_locked_has_its_turn() {
        let ids: Vec<Uuid> = (1..=1_000).map(Uuid::from_u128).collect();
        assert_eq!(run(&ids, &ids), (3, 3, ids.iter().copied().collect()));
        // Each list of the first deletion has a locked row.
        let locked: Vec<Uuid> = ids.iter().copied().step_by(10).collect();
        let mut left = ids;
        for _ in 0..10_000 {
            let (_, waits, still) = run(&left, &locked);
            assert!(waits <= 3, "{waits}");
            left = still.into_iter().collect();
            if left == locked {
                return;
            }
        }
        panic!("{} rows are left", left.len());
    }
}
