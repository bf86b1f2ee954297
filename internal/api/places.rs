//! Places for what lasts: open streams, imports under way. A key gets a share of them, so that one client cannot keep all
//! others out, and a part is kept for operators, who must be able to look when everything else is taken.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use uuid::Uuid;

use super::problem::{Code, Problem};

/// One key gets this part of all places.
const SHARE: usize = 4;
/// This part of all places is kept for operators.
const KEPT: usize = 8;

/// Places, of which there are only so many.
#[derive(Clone, Debug)]
pub struct Places {
    most: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// By keys that are no operator's.
    by_keys: HashMap<Uuid, usize>,
}

/// A place, for as long as it is held.
#[derive(Debug)]
pub(super) struct Place {
    key: Option<Uuid>,
    taken: Arc<Mutex<Taken>>,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// The key has its share, which is this large.
    Share(usize),
    /// All are taken that this caller may have.
    All,
}

impl Full {
    /// As an answer. `what` names what lasts, `setting` says what bounds it.
    pub(super) fn problem(self, what: &str, setting: &str) -> Problem {
        let detail = match self {
            Self::Share(share) => {
                format!("this key has {share} {what} open, its share of {setting}: close one, or come back later")
            }
            Self::All => format!("as many {what} are open as {setting} allows; come back later"),
        };
        Problem::new(Code::Overloaded, detail)
    }
}

impl Places {
    /// So many.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most, taken: Arc::default() }
    }

    /// Take a place. `key` is the key that asks, unless an operator does: with an `admin` key, a token of the
    /// configuration, or through an open API.
    pub(super) fn take(&self, key: Option<Uuid>) -> Result<Place, Full> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.all >= self.most {
            return Err(Full::All);
        }
        if let Some(key) = key {
            let own = taken.by_keys.get(&key).copied().unwrap_or(0);
            if own >= self.share() {
                return Err(Full::Share(own));
            }
            if taken.by_keys.values().sum::<usize>() >= self.most - self.kept() {
                return Err(Full::All);
            }
            taken.by_keys.insert(key, own + 1);
        }
        taken.all += 1;
        Ok(Place { key, taken: Arc::clone(&self.taken) })
    }

    fn share(&self) -> usize {
        (self.most / SHARE).max(1)
    }

    /// One at the least, unless there is but one.
    fn kept(&self) -> usize {
        (self.most / KEPT).max(1).min(self.most.saturating_sub(1))
    }
}

impl Drop for Place {
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
        let places = Places::new(16);
        let keys: Vec<Uuid> = (0..6).map(Uuid::from_u128).collect();
        let mut held = Vec::new();
        for key in &keys[..3] {
            held.extend((0..4).map(|_| places.take(Some(*key)).unwrap()));
            assert_eq!(places.take(Some(*key)).unwrap_err(), Full::Share(4));
        }
        held.extend((0..2).map(|_| places.take(Some(keys[3])).unwrap()));
        assert_eq!(places.take(Some(keys[3])).unwrap_err(), Full::All);
        held.extend((0..2).map(|_| places.take(None).unwrap()));
        assert_eq!(places.take(None).unwrap_err(), Full::All);
        // A place that is given back is free again, for its key too.
        held.remove(0);
        held.push(places.take(Some(keys[0])).unwrap());
        drop(held);
        assert!(places.taken.lock().unwrap().by_keys.is_empty());
        assert_eq!((0..17).map_while(|_| places.take(None).ok()).collect::<Vec<_>>().len(), 16);
    }

    #[test]
    fn few_places_are_shared_as_well_as_they_can_be() {
        for (most, by_one, by_all) in [(0, 0, 0), (1, 1, 1), (2, 1, 1), (4, 1, 3), (8, 2, 7)] {
            let places = Places::new(most);
            let one = (0..9).map_while(|_| places.take(Some(Uuid::nil())).ok()).collect::<Vec<_>>().len();
            let all = (0..9).filter_map(|key| places.take(Some(Uuid::from_u128(key))).ok()).collect::<Vec<_>>().len();
            assert_eq!((one, all), (by_one, by_all), "{most}");
        }
    }
}
