//! Which looks for due jobs in MySQL leave out the jobs of locked keys of limits.
//!
//! The claims of such jobs have no effect, and there may be any number of them in front of other jobs. But only a claim
//! finds out that a key is free again, so some looks take them all the same.

use std::time::{Duration, Instant};

/// Time between two looks that take them.
const TRIED_EVERY: Duration = Duration::from_secs(2);
/// The longest such time, while jobs are skipped in any lane. A search behind skipped jobs may take longer than the
/// other time, and jobs that it found are to be taken before the next one begins.
const TRIED_AT_LEAST: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
pub(super) struct LockedJobs {
    /// When a look last took them.
    tried: Option<Instant>,
    left_out: bool,
}

impl LockedJobs {
    /// Begin a look. `known` says whether any key counts as locked, and `skips` whether jobs are skipped in any lane.
    /// Return whether this look takes jobs of locked keys.
    pub(super) fn begin_look(&mut self, known: bool, skips: bool) -> bool {
        let pause = if skips { TRIED_AT_LEAST } else { TRIED_EVERY };
        self.left_out = known && self.tried.is_some_and(|tried| tried.elapsed() < pause);
        let tries = known && !self.left_out;
        if tries {
            self.tried = Some(Instant::now());
        }
        tries
    }

    /// Return whether this look leaves them out.
    pub(super) fn are_left_out(&self) -> bool {
        self.left_out
    }
}
