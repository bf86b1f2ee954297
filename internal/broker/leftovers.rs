//! Attempts of remote workers that could not be given back yet, because other sessions lock their rows.
//!
//! One task of a process tries them again, one token after the other and without a wait for a lock. So however many
//! workers leave, and however often they say so, locked rows take one connection at a time, and that for a moment.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Broker;
use crate::remote_workers::unless_stopped;
use tickr_job::{AttemptToken, JobId, RunnerId};
use tickr_store::Returned;

/// Pause before each round of tries.
const PAUSE: Duration = Duration::from_millis(250);
/// Time for which an attempt is tried again. After that it is left to the reaper, if its worker has left, and to the
/// requests and heartbeats of its worker otherwise.
const TRIED_FOR: Duration = Duration::from_secs(60);
/// Most attempts that are tried again, which bounds the memory.
const MOST: usize = 10_000;

/// Why attempts of a remote worker are given back, and which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Return {
    pub(super) why: &'static str,
    pub(super) which: Returned,
}

/// Attempts by their tokens.
pub(super) type ByToken = Vec<(AttemptToken, Vec<JobId>)>;

/// The attempts that are tried again.
#[derive(Debug, Default)]
pub(super) struct Leftovers(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    attempts: HashMap<(AttemptToken, JobId), Leftover>,
    /// A task tries them.
    is_tried: bool,
}

#[derive(Debug)]
struct Leftover {
    worker: RunnerId,
    how: Return,
    until: Instant,
}

/// Attempts of one token that are tried together.
#[derive(Debug, PartialEq, Eq)]
struct Try {
    token: AttemptToken,
    worker: RunnerId,
    how: Return,
    ids: Vec<JobId>,
}

impl Leftovers {
    /// Keep these attempts, as far as there is room. An attempt is kept once, however often it is left. Return true if
    /// the caller has to start the task that tries them.
    fn keep(&self, worker: &RunnerId, attempts: ByToken, how: Return) -> bool {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + TRIED_FOR;
        for (token, ids) in attempts {
            for id in ids {
                let is_full = kept.attempts.len() >= MOST;
                match kept.attempts.get_mut(&(token, id)) {
                    // Its worker has left since.
                    Some(known) if how.which == Returned::All => known.how = how,
                    Some(_) => {}
                    None if is_full => {}
                    None => drop(kept.attempts.insert((token, id), Leftover { worker: worker.clone(), how, until })),
                }
            }
        }
        !kept.attempts.is_empty() && !std::mem::replace(&mut kept.is_tried, true)
    }

    /// Return the attempts whose time is not over, by token. Without any, the task that tries them has to end.
    fn to_try(&self) -> Vec<Try> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        kept.attempts.retain(|_, left| now < left.until);
        kept.is_tried = !kept.attempts.is_empty();
        let mut found: HashMap<(AttemptToken, Return), Try> = HashMap::new();
        for ((token, id), Leftover { worker, how, .. }) in &kept.attempts {
            let new = || Try { token: *token, worker: worker.clone(), how: *how, ids: Vec::new() };
            found.entry((*token, *how)).or_insert_with(new).ids.push(*id);
        }
        found.into_values().collect()
    }

    /// Forget those of these attempts that are not left any more. One whose worker has left during the try is tried
    /// once more, because the try may have left out what reached the worker.
    fn forget(&self, token: AttemptToken, how: Return, tried: &[JobId], left: &[(AttemptToken, Vec<JobId>)]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for id in tried.iter().filter(|id| !left.iter().any(|(_, ids)| ids.contains(id))) {
            if let Entry::Occupied(known) = kept.attempts.entry((token, *id))
                && known.get().how == how
            {
                known.remove();
            }
        }
    }

    /// Forget all of them: this process stops.
    fn give_up(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Kept::default();
    }
}

impl Broker {
    /// Try again to give these attempts back, until no other session locks their rows.
    pub(super) fn give_back_later(&self, worker: &RunnerId, attempts: ByToken, how: Return) {
        if self.polls.leftovers.keep(worker, attempts, how) {
            let broker = self.clone();
            self.polls.tasks.spawn(async move {
                // If the time of this process is over first, another one gives them back.
                if unless_stopped(&broker.polls.tasks, broker.try_leftovers()).await.is_none() {
                    broker.polls.leftovers.give_up();
                }
            });
        }
    }

    async fn try_leftovers(&self) {
        loop {
            tokio::time::sleep(PAUSE).await;
            let to_try = self.polls.leftovers.to_try();
            if to_try.is_empty() {
                return;
            }
            for Try { token, worker, how, ids } in to_try {
                let left = self.give_back(&worker, vec![(token, ids.clone())], how).await;
                self.polls.leftovers.forget(token, how, &ids, &left);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_that_is_left_again_and_again_is_tried_once_a_round() {
        let leftovers = Leftovers::default();
        let (worker, token, id) = (RunnerId::from_stored("w".to_owned()), AttemptToken::new(), JobId::new());
        let unreached = Return { why: "lost on its way", which: Returned::Unreached };
        let all = Return { why: "left", which: Returned::All };
        let keep = |how| leftovers.keep(&worker, vec![(token, vec![id])], how);
        assert!(keep(unreached), "the first one starts the task");
        for how in [all, unreached, all] {
            assert!(!keep(how));
        }
        let once = Try { token, worker: worker.clone(), how: all, ids: vec![id] };
        assert_eq!(leftovers.to_try(), [once], "its worker has left");
        leftovers.forget(token, all, &[id], &[(token, vec![id])]);
        assert_eq!(leftovers.to_try().len(), 1, "its row is still locked");
        leftovers.forget(token, unreached, &[id], &[]);
        assert_eq!(leftovers.to_try().len(), 1, "its worker has left during a try that may have left it out");
        leftovers.forget(token, all, &[id], &[]);
        assert!(leftovers.to_try().is_empty());
        assert!(keep(all), "the task has ended");
        leftovers.give_up();
        leftovers.keep(&worker, vec![(token, (0..=MOST).map(|_| JobId::new()).collect())], all);
        assert_eq!(leftovers.to_try()[0].ids.len(), MOST);
    }
}
