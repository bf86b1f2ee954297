//! A slot of the history while it is open: what happens in it, queue by queue.

use std::collections::HashMap;

use crate::job::{Name, Tally};

/// Queues with a tally of their own. Callers may make up any number of names.
const MOST_QUEUES: usize = 200;

/// What happens in a slot of time, for at most two hundred queues one by one, and for all further ones together.
#[derive(Debug, Default)]
pub struct Slot {
    places: HashMap<Name, usize>,
    tallies: Vec<Tally>,
    other: Box<Tally>,
}

impl Slot {
    /// A slot in which these queues have a place, before any other comes.
    #[must_use]
    pub fn of(queues: impl IntoIterator<Item = Name>) -> Self {
        let mut slot = Self::default();
        for queue in queues {
            slot.tally(Some(&queue));
        }
        slot
    }

    /// The tally of a queue; of the further ones when it is not known.
    pub(super) fn tally(&mut self, queue: Option<&Name>) -> &mut Tally {
        let Some(queue) = queue else { return &mut self.other };
        if let Some(place) = self.places.get(queue) {
            return &mut self.tallies[*place];
        }
        if self.tallies.len() >= MOST_QUEUES {
            return &mut self.other;
        }
        // Once for each queue: whoever comes next finds it.
        let place = self.tallies.len();
        self.places.insert(queue.clone(), place);
        self.tallies.push(Tally::default());
        &mut self.tallies[place]
    }

    /// Make places for the queues of another slot.
    pub(super) fn add_places_of(&mut self, other: &Self) {
        self.tallies.reserve(other.tallies.len());
        for queue in other.places.keys() {
            self.tally(Some(queue));
        }
    }

    /// Every tally with its queue; that of the further ones has none.
    pub fn tallies(&self) -> impl Iterator<Item = (Option<&Name>, &Tally)> {
        let own = self.places.iter().map(|(queue, place)| (Some(queue), &self.tallies[*place]));
        own.chain([(None, &*self.other)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hundred_queues_have_a_place_and_all_others_share_one() {
        let name = |n: usize| -> Name { format!("q{n}").parse().unwrap() };
        let mut slot = Slot::of([name(999)]);
        for n in 0..1_000 {
            slot.tally(Some(&name(n))).accepted += 1;
        }
        slot.tally(None).failed += 1;
        assert_eq!(slot.places.len(), MOST_QUEUES);
        let of = |queue: Option<&Name>| slot.tallies().find(|(found, _)| *found == queue).unwrap().1;
        assert_eq!((of(Some(&name(999))).accepted, of(Some(&name(198))).accepted), (1, 1));
        assert_eq!((of(None).accepted, of(None).failed), (800, 1));
        assert_eq!(slot.tallies().map(|(_, tally)| tally.accepted).sum::<u64>(), 1_000);
    }
}
