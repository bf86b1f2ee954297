//! The queue order: the order in which a runner takes from its lanes.
//!
//! Between levels it is strict: the lanes of a more urgent level are emptied first. A level is the priority of the
//! queue, then the priority of the job. Within a level the queues take turns. One fetch in ten uses another order, so
//! that no level starves: every second of these starts with the least urgent level, the others start with each level in
//! turn.

use tickr_broker::OperatorSettings;
use tickr_index::{FetchOrder, Lane};
use tickr_job::{Name, Priority};
use tickr_store::DueLane;

/// One turn in this many is for levels that the strict order might never serve.
const SHARE: u64 = 10;

/// A lane that this runner serves.
#[derive(Clone, Debug)]
struct ServedLane {
    line: Lane,
    /// Position of its queue.
    queue: usize,
    priority: Priority,
}

/// The lanes of one runner, and the number of the current turn.
#[derive(Clone, Debug)]
pub(super) struct QueueOrder {
    queues: Vec<Name>,
    lines: Vec<ServedLane>,
    /// Positions of lanes, level by level, the most urgent level first.
    levels: Vec<Vec<usize>>,
    /// Paused queues, by position.
    paused: Vec<bool>,
    turn: u64,
}

impl QueueOrder {
    /// Create the order for all lanes of these queues.
    pub(super) fn new(queues: &[Name], settings: &OperatorSettings) -> Self {
        let line = |queue: usize, priority| ServedLane { line: Lane::new(&queues[queue], priority), queue, priority };
        let lines = (0..queues.len()).flat_map(|queue| Priority::all().map(move |priority| line(queue, priority)));
        let lines = lines.collect();
        let paused = vec![false; queues.len()];
        let mut queue_order = Self { queues: queues.to_vec(), lines, levels: Vec::new(), paused, turn: 0 };
        queue_order.follow(settings);
        queue_order
    }

    /// Apply the current settings of the operators.
    pub(super) fn follow(&mut self, settings: &OperatorSettings) {
        let priority = |queue: &Name| settings.queues.get(queue).map_or(Priority::NORMAL, |set| set.priority);
        let of_queues: Vec<Priority> = self.queues.iter().map(priority).collect();
        self.paused = self.queues.iter().map(|queue| is_paused(settings, queue)).collect();
        let mut levels = std::collections::BTreeMap::<(Priority, Priority), Vec<usize>>::new();
        for (place, served) in self.lines.iter().enumerate() {
            levels.entry((of_queues[served.queue], served.priority)).or_default().push(place);
        }
        self.levels = levels.into_values().collect();
    }

    /// Return every lane, by position.
    pub(super) fn lines(&self) -> Vec<Lane> {
        self.lines.iter().map(|served| served.line.clone()).collect()
    }

    /// Return the lane at this position as MySQL knows it.
    pub(super) fn due_line(&self, place: usize) -> DueLane {
        let ServedLane { queue, priority, .. } = self.lines[place];
        DueLane { queue: self.queues[queue].clone(), priority }
    }

    /// Return the position of a lane.
    pub(super) fn place_of(&self, lane: &DueLane) -> Option<usize> {
        let is_it = |served: &ServedLane| served.priority == lane.priority && self.queues[served.queue] == lane.queue;
        self.lines.iter().position(is_it)
    }

    /// Return the position of a lane's queue.
    pub(super) fn queue_of(&self, line: usize) -> usize {
        self.lines[line].queue
    }

    /// Return all lanes of a queue, the most urgent first, whatever room it has.
    pub(super) fn whole_queue(&self, queue: usize) -> FetchOrder {
        let lines: Vec<usize> = (0..self.lines.len()).filter(|place| self.lines[*place].queue == queue).collect();
        FetchOrder { groups: vec![None; lines.len()], lines, room: Vec::new() }
    }

    /// Return whether the queue at this position is paused.
    pub(super) fn is_paused(&self, queue: usize) -> bool {
        self.paused[queue]
    }

    /// Return the order of the next turn. `room` returns how many jobs of a queue may start, or None without a limit.
    /// The flag says whether a lane was skipped because its queue has no room.
    pub(super) fn next_turn(&mut self, room: impl Fn(usize) -> Option<usize>) -> (FetchOrder, bool) {
        self.turn += 1;
        let share = self.turn.is_multiple_of(SHARE).then_some(self.turn / SHARE);
        self.order(share, room)
    }

    /// Return the strict order, used by the blocking fetch.
    pub(super) fn strict(&self, room: impl Fn(usize) -> Option<usize>) -> (FetchOrder, bool) {
        self.order(None, room)
    }

    fn order(&self, share: Option<u64>, room: impl Fn(usize) -> Option<usize>) -> (FetchOrder, bool) {
        let count = self.levels.len();
        let levels: Vec<usize> = match share {
            None => (0..count).collect(),
            Some(share) if share.is_multiple_of(2) => (0..count).rev().collect(),
            // From one level down to the last, then the more urgent ones. Each such turn starts with another level.
            Some(share) => {
                let first = count - 1 - usize::try_from(share / 2).unwrap_or(0) % count;
                (first..count).chain(0..first).collect()
            }
        };
        let rooms: Vec<Option<usize>> = (0..self.queues.len()).map(room).collect();
        // Queues with a limit are groups: their lanes share the room of the queue.
        let limited: Vec<usize> = (0..self.queues.len()).filter(|queue| rooms[*queue].is_some()).collect();
        let mut order = FetchOrder {
            room: limited.iter().map(|queue| rooms[*queue].unwrap_or(0)).collect(),
            ..FetchOrder::default()
        };
        let mut left_alone = false;
        for level in levels {
            let lines = &self.levels[level];
            let first = usize::try_from(self.turn).unwrap_or(0) % lines.len();
            for place in lines[first..].iter().chain(&lines[..first]) {
                let queue = self.lines[*place].queue;
                if self.paused[queue] {
                    continue;
                }
                if rooms[queue] == Some(0) {
                    left_alone = true;
                    continue;
                }
                order.lines.push(*place);
                order.groups.push(limited.binary_search(&queue).ok());
            }
        }
        (order, left_alone)
    }
}

/// Return whether this queue is paused.
pub(super) fn is_paused(settings: &OperatorSettings, queue: &Name) -> bool {
    settings.queues.get(queue).is_some_and(|set| set.pause.is_some())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use tickr_job::Actor;
    use tickr_store::{Pause, QueueSetting};

    fn names(names: &[&str]) -> Vec<Name> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    fn set(settings: &mut OperatorSettings, name: &str, priority: u8, paused: bool) {
        let now = chrono::Utc::now();
        let name: Name = name.parse().unwrap();
        let setting = QueueSetting {
            name: name.clone(),
            priority: priority.try_into().unwrap(),
            concurrency: None,
            pause: paused.then(|| Pause { at: now, by: Actor::tickr(), reason: None }),
            changed: (now, Actor::tickr()),
            version: 1,
        };
        settings.queues.insert(name, setting);
    }

    /// Return the lanes of an order as text.
    fn words(queue_order: &QueueOrder, order: &FetchOrder) -> Vec<String> {
        let lines = queue_order.lines();
        order.lines.iter().map(|place| lines[*place].as_str().to_owned()).collect()
    }

    #[test]
    fn queues_go_by_their_priority_then_jobs_by_theirs_and_equals_take_turns() {
        let mut settings = OperatorSettings::default();
        let mut queue_order = QueueOrder::new(&names(&["a", "b"]), &settings);
        let first = |queue_order: &mut QueueOrder| {
            let (order, _) = queue_order.next_turn(|_| None);
            words(queue_order, &order)
        };
        let (one, other) = (first(&mut queue_order), first(&mut queue_order));
        assert_eq!((one.len(), other.len()), (20, 20));
        assert!(one[0].ends_with(":0") && other[0].ends_with(":0") && one[0] != other[0], "{one:?} {other:?}");

        set(&mut settings, "b", 1, false);
        queue_order.follow(&settings);
        let order = first(&mut queue_order);
        assert_eq!((order[0].as_str(), order[9].as_str(), order[10].as_str()), ("b:0", "b:9", "a:0"));

        set(&mut settings, "b", 1, true);
        queue_order.follow(&settings);
        assert!(first(&mut queue_order).iter().all(|line| !line.starts_with('b')));
        set(&mut settings, "a", 5, true);
        queue_order.follow(&settings);
        assert_eq!(first(&mut queue_order), Vec::<String>::new());
    }

    #[test]
    fn no_level_starves_however_much_the_others_have() {
        let mut queue_order = QueueOrder::new(&names(&["a"]), &OperatorSettings::default());
        // Every lane always has work: each turn serves the first lane of its order.
        let mut served: HashMap<String, u32> = HashMap::new();
        for _ in 0..4_000 {
            let (order, _) = queue_order.next_turn(|_| None);
            *served.entry(words(&queue_order, &order)[0].clone()).or_default() += 1;
        }
        assert_eq!(served.len(), 10, "{served:?}");
        assert!(
            served["a:0"] >= 3_600 && served["a:9"] >= 200 && served.values().all(|turns| *turns >= 20),
            "{served:?}"
        );
    }

    #[test]
    fn lines_of_a_limited_queue_share_its_room() {
        let queue_order = QueueOrder::new(&names(&["a", "b", "c"]), &OperatorSettings::default());
        let (order, left_alone) = queue_order.strict(|queue| [None, Some(3), Some(0)][queue]);
        assert!(left_alone);
        assert_eq!((order.lines.len(), &order.room), (20, &vec![3, 0]));
        for (line, group) in order.lines.iter().zip(&order.groups) {
            assert_eq!(*group, [None, Some(0), Some(1)][queue_order.queue_of(*line)]);
        }
    }
}
