//! An open slot of the history: the counts of the current period by queue.

use std::collections::HashMap;

use tickr_job::{Name, Tally};

/// Maximum number of queues with a tally of their own. Clients may use any number of queue names.
const MAX_QUEUES: usize = 200;

/// Counts of one period: separate tallies for at most two hundred queues, and one tally for all other queues together.
#[derive(Debug, Default)]
pub struct Slot {
    places: HashMap<Name, usize>,
    tallies: Vec<Tally>,
    other: Box<Tally>,
}

impl Slot {
    /// Make a slot with positions for these queues, before other queues can take them.
    #[must_use]
    pub fn new(queues: impl IntoIterator<Item = Name>) -> Self {
        let mut slot = Self::default();
        for queue in queues {
            slot.tally(Some(&queue));
        }
        slot
    }

    /// Return the tally of a queue. If the queue is unknown or there is no position left, return the common tally.
    pub(super) fn tally(&mut self, queue: Option<&Name>) -> &mut Tally {
        let Some(queue) = queue else { return &mut self.other };
        if let Some(place) = self.places.get(queue) {
            return &mut self.tallies[*place];
        }
        if self.tallies.len() >= MAX_QUEUES {
            return &mut self.other;
        }
        // This happens once per queue; later calls find the position above.
        let place = self.tallies.len();
        self.places.insert(queue.clone(), place);
        self.tallies.push(Tally::default());
        &mut self.tallies[place]
    }

    /// Add positions for the queues of another slot.
    pub(super) fn add_places_of(&mut self, other: &Self) {
        self.tallies.reserve(other.tallies.len());
        for queue in other.places.keys() {
            self.tally(Some(queue));
        }
    }

    /// Return every tally with its queue. The common tally has none.
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
        let mut slot = Slot::new([name(999)]);
        for n in 0..1_000 {
            slot.tally(Some(&name(n))).accepted += 1;
        }
        slot.tally(None).failed += 1;
        assert_eq!(slot.places.len(), MAX_QUEUES);
        let of = |queue: Option<&Name>| slot.tallies().find(|(found, _)| *found == queue).unwrap().1;
        assert_eq!((of(Some(&name(999))).accepted, of(Some(&name(198))).accepted), (1, 1));
        assert_eq!((of(None).accepted, of(None).failed), (800, 1));
        assert_eq!(slot.tallies().map(|(_, tally)| tally.accepted).sum::<u64>(), 1_000);
    }
}
