//! The queues for which requests for jobs of remote workers wait at this process.
//!
//! One command to Redis names the lanes of all of them, so their number has a bound. A request for queues that are counted
//! already costs nothing and is always let in. One API key gets only a share, and a part is reserved for operators, as of
//! the requests that wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use uuid::Uuid;

use crate::http::problem::{Code, Problem};
use tickr_job::Name;

/// Most different queues for which requests wait at one process.
const MOST: usize = 1_000;
/// Share of one API key, and of all API keys but those of operators.
const SHARE: usize = MOST * 3 / 4;
const FOR_KEYS: usize = MOST * 7 / 8;

/// The queues, each with the number of requests that wait for it. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct AwaitedQueues(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    all: HashMap<Name, usize>,
    /// The same for all API keys together, without those of operators, which use up nothing of their part.
    of_keys: HashMap<Name, usize>,
    by_key: HashMap<Uuid, HashMap<Name, usize>>,
}

/// The queues of a request that waits. Dropping it takes them back.
#[derive(Debug)]
pub(crate) struct AwaitedByOne {
    owner: Option<Uuid>,
    queues: Arc<[Name]>,
    counts: Arc<Mutex<Counts>>,
}

/// The reason why a request may not wait for its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooManyQueues {
    /// They would be more than the share of its API key.
    Share,
    /// They would be more than this caller may bring the process to.
    All(usize),
}

impl TooManyQueues {
    /// Make the problem for the client.
    pub(crate) fn problem(self) -> Problem {
        let detail = match self {
            Self::Share => format!("requests with this API key would wait for more than {SHARE} different queues here"),
            Self::All(most) => format!("requests would wait for more than {most} different queues here"),
        };
        Problem::new(Code::Overloaded, format!("{detail}; try again later, or let these workers serve fewer queues"))
    }
}

impl AwaitedQueues {
    /// Count the queues of a request, each of which it names once. `owner` is the API key of the caller, and `None` for
    /// an operator.
    ///
    /// # Errors
    /// When they would be too many. None of them is counted then.
    pub(crate) fn take(&self, owner: Option<Uuid>, queues: &Arc<[Name]>) -> Result<AwaitedByOne, TooManyQueues> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Counts { all, of_keys, by_key } = &mut *counts;
        let with = |known: &HashMap<Name, usize>| {
            known.len() + queues.iter().filter(|queue| !known.contains_key(*queue)).count()
        };
        // A request for queues that are counted already is let in, whatever the shares are.
        if with(all) > all.len() {
            if let Some(key) = owner {
                if by_key.get(&key).map_or(queues.len(), with) > SHARE {
                    return Err(TooManyQueues::Share);
                }
                if with(of_keys) > FOR_KEYS {
                    return Err(TooManyQueues::All(FOR_KEYS));
                }
            }
            if with(all) > MOST {
                return Err(TooManyQueues::All(MOST));
            }
        }
        count(all, queues);
        if let Some(key) = owner {
            count(of_keys, queues);
            count(by_key.entry(key).or_default(), queues);
        }
        Ok(AwaitedByOne { owner, queues: Arc::clone(queues), counts: Arc::clone(&self.0) })
    }
}

impl Drop for AwaitedByOne {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let Counts { all, of_keys, by_key } = &mut *counts;
        give_back(all, &self.queues);
        let Some(key) = self.owner else { return };
        give_back(of_keys, &self.queues);
        if let Some(own) = by_key.get_mut(&key) {
            give_back(own, &self.queues);
            if own.is_empty() {
                by_key.remove(&key);
            }
        }
    }
}

fn count(counts: &mut HashMap<Name, usize>, queues: &[Name]) {
    for queue in queues {
        *counts.entry(queue.clone()).or_default() += 1;
    }
}

fn give_back(counts: &mut HashMap<Name, usize>, queues: &[Name]) {
    for queue in queues {
        if let Some(count) = counts.get_mut(queue) {
            *count -= 1;
            if *count == 0 {
                counts.remove(queue);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Make the names of these queues.
    fn queues(numbers: std::ops::Range<usize>) -> Arc<[Name]> {
        numbers.map(|number| format!("q{number}").parse().unwrap()).collect()
    }

    #[test]
    fn requests_wait_for_so_many_queues_and_those_that_are_known_cost_nothing() {
        let awaited = AwaitedQueues::default();
        let (one, other) = (Some(Uuid::from_u128(1)), Some(Uuid::from_u128(2)));
        let first = awaited.take(one, &queues(0..SHARE)).unwrap();
        let again = awaited.take(one, &queues(0..100)).unwrap();
        assert_eq!(awaited.take(one, &queues(SHARE..SHARE + 1)).unwrap_err(), TooManyQueues::Share);
        // The second API key has what the first one leaves, and the rest is for operators.
        let second = awaited.take(other, &queues(700..FOR_KEYS)).unwrap();
        let refused = awaited.take(other, &queues(FOR_KEYS..FOR_KEYS + 1)).unwrap_err();
        assert_eq!(refused, TooManyQueues::All(FOR_KEYS));
        awaited.take(other, &queues(0..FOR_KEYS)).unwrap();
        let operators = awaited.take(None, &queues(FOR_KEYS..MOST)).unwrap();
        assert_eq!(awaited.take(None, &queues(MOST..MOST + 1)).unwrap_err(), TooManyQueues::All(MOST));
        awaited.take(None, &queues(0..MOST)).unwrap();
        // A queue is free when the last request for it is over.
        drop((first, operators));
        assert_eq!(awaited.0.lock().unwrap().all.len(), 100 + FOR_KEYS - 700);
        drop((again, second));
        let counts = awaited.0.lock().unwrap();
        assert!(counts.all.is_empty() && counts.of_keys.is_empty() && counts.by_key.is_empty());
    }

    #[test]
    fn queues_of_operators_use_up_nothing_of_the_part_of_other_api_keys() {
        let awaited = AwaitedQueues::default();
        let one = Some(Uuid::from_u128(1));
        let _operators = awaited.take(None, &queues(0..900)).unwrap();
        let _keys = awaited.take(one, &queues(900..MOST)).unwrap();
        assert_eq!(awaited.take(one, &queues(MOST..MOST + 1)).unwrap_err(), TooManyQueues::All(MOST));
        let _known = awaited.take(one, &queues(0..900)).unwrap();
        assert_eq!(awaited.take(one, &queues(MOST..MOST + 1)).unwrap_err(), TooManyQueues::Share);
    }
}
