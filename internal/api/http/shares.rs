//! Permits for long requests: open streams, imports, downloads, waits of remote workers. One API key gets only a share
//! of them, so that one client cannot lock out all others. A part is reserved for operators, who must be able to look
//! when all other permits are taken.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use uuid::Uuid;

use crate::http::problem::{Code, Problem};

/// Share of one API key, in quarters of the permits.
const SHARE: usize = 1;
/// The same where one API key is usually that of a whole fleet of workers.
const SHARE_OF_FLEET: usize = 3;
/// One permit in this many is reserved for operators.
const RESERVED_SHARE: usize = 8;

/// A bounded number of permits. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RequestPermits {
    most: usize,
    /// Share of one API key, in quarters.
    quarters: usize,
    taken: Arc<Mutex<TakenPermits>>,
}

#[derive(Debug, Default)]
struct TakenPermits {
    all: usize,
    /// Permits by API key, without those of operators.
    by_keys: HashMap<Uuid, usize>,
}

/// A permit. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct RequestPermit {
    key: Option<Uuid>,
    taken: Arc<Mutex<TakenPermits>>,
}

/// The reason why no permit is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPermit {
    /// The API key has used its share, which is this large.
    Share(usize),
    /// All permits that this caller may take are taken.
    All,
}

impl NoPermit {
    /// Make the problem for the client. `what` names the requests that take permits, `setting` names the limit.
    pub(crate) fn problem(self, what: &str, setting: &str) -> Problem {
        let detail = match self {
            Self::Share(share) => {
                format!("this API key has {share} {what} open, its share of {setting}: close one, or try again later")
            }
            Self::All => format!("all {what} that {setting} allows are open; try again later"),
        };
        Problem::new(Code::Overloaded, detail)
    }
}

impl RequestPermits {
    /// Create this many permits, of which one API key gets at most a quarter.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most, quarters: SHARE, taken: Arc::default() }
    }

    /// Create this many permits, of which one API key gets at most three quarters.
    #[must_use]
    pub fn for_fleets(most: usize) -> Self {
        Self { quarters: SHARE_OF_FLEET, ..Self::new(most) }
    }

    /// Take a permit. `key` is the API key of the caller. It is `None` for an operator: a caller with an `admin` key, a
    /// token of the configuration, or an open API.
    pub(crate) fn take(&self, key: Option<Uuid>) -> Result<RequestPermit, NoPermit> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.all >= self.most {
            return Err(NoPermit::All);
        }
        if let Some(key) = key {
            let own = taken.by_keys.get(&key).copied().unwrap_or(0);
            if own >= self.share() {
                return Err(NoPermit::Share(own));
            }
            if taken.by_keys.values().sum::<usize>() >= self.most - self.reserved() {
                return Err(NoPermit::All);
            }
            taken.by_keys.insert(key, own + 1);
        }
        taken.all += 1;
        Ok(RequestPermit { key, taken: Arc::clone(&self.taken) })
    }

    /// At least one is left for other API keys, unless there are too few.
    fn share(&self) -> usize {
        let others = self.most.saturating_sub(self.reserved() + 1);
        (self.most * self.quarters / 4).min(others).max(1)
    }

    /// At least one is reserved, unless there is only one permit.
    fn reserved(&self) -> usize {
        (self.most / RESERVED_SHARE).max(1).min(self.most.saturating_sub(1))
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all -= 1;
        if let Some(key) = self.key
            && let Some(own) = taken.by_keys.get_mut(&key)
        {
            *own -= 1;
            if *own == 0 {
                taken.by_keys.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_gets_a_quarter_all_keys_leave_an_eighth_and_operators_get_everything() {
        let places = RequestPermits::new(16);
        let keys: Vec<Uuid> = (0..6).map(Uuid::from_u128).collect();
        let mut held = Vec::new();
        for key in &keys[..3] {
            held.extend((0..4).map(|_| places.take(Some(*key)).unwrap()));
            assert_eq!(places.take(Some(*key)).unwrap_err(), NoPermit::Share(4));
        }
        held.extend((0..2).map(|_| places.take(Some(keys[3])).unwrap()));
        assert_eq!(places.take(Some(keys[3])).unwrap_err(), NoPermit::All);
        held.extend((0..2).map(|_| places.take(None).unwrap()));
        assert_eq!(places.take(None).unwrap_err(), NoPermit::All);
        // A permit that is given back is free again, for its API key too.
        held.remove(0);
        held.push(places.take(Some(keys[0])).unwrap());
        drop(held);
        assert!(places.taken.lock().unwrap().by_keys.is_empty());
        assert_eq!((0..17).map_while(|_| places.take(None).ok()).collect::<Vec<_>>().len(), 16);
    }

    #[test]
    fn few_places_are_shared_as_well_as_they_can_be() {
        for (most, by_one, by_all) in [(0, 0, 0), (1, 1, 1), (2, 1, 1), (4, 1, 3), (8, 2, 7)] {
            assert_eq!(taken(&RequestPermits::new(most)), (by_one, by_all), "{most}");
        }
    }

    #[test]
    fn a_fleet_gets_three_quarters_and_leaves_places_to_others() {
        for (most, by_one, by_all) in [(0, 0, 0), (1, 1, 1), (2, 1, 1), (3, 1, 2), (4, 2, 3), (8, 6, 7), (16, 12, 14)] {
            assert_eq!(taken(&RequestPermits::for_fleets(most)), (by_one, by_all), "{most}");
        }
    }

    /// Return how many permits one API key gets when the others have none, and how many different keys get then in all.
    fn taken(places: &RequestPermits) -> (usize, usize) {
        let one: Vec<RequestPermit> = (0..20).map_while(|_| places.take(Some(Uuid::nil())).ok()).collect();
        let by_one = one.len();
        drop(one);
        let all = (0..20).filter_map(|key| places.take(Some(Uuid::from_u128(key))).ok()).collect::<Vec<_>>();
        (by_one, all.len())
    }
}
