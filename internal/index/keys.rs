//! Every Redis key that tickr uses. No other file may spell one.
//!
//! | key | type | holds |
//! |---|---|---|
//! | `{prefix}:epoch` | string | present while the index is complete; without it the index must be rebuilt |
//! | `{prefix}:sequence` | counter | raised at each whole look of a scheduler; when it falls, Redis went back in time |
//! | `{prefix}:waiting` | sorted set | `<lane>:<job id>` scored by due time, unix milliseconds, within the horizon |
//! | `{prefix}:ready:<lane>` | list | ids of due jobs, newest at the head, taken from the tail |
//! | `{prefix}:overflow` | hash | lane → position in MySQL's due order from which jobs were left out of a full list |
//! | `{prefix}:nudge:<runner>` | list, expires | wakes the fetcher of this runner out of its blocking pop |
//! | `{prefix}:refill:<lane>` | string, expires | the lock of a refill; names its owner |
//! | `{prefix}:events` | stream, capped, expires | cluster events (types, names, ids), written while a client listens |
//! | `{prefix}:listeners` | string, expires | present while a client listens to the events |
//! | `{prefix}:rights` | any, for a moment | the key on which `rights.rs` tries commands |
//!
//! The braces are part of the key. They make one hash tag, so that all keys are in one slot of a Redis cluster and one
//! script may use them all. The keys hold ids and due times only, never payloads. With several partitions
//! (`index_partitions`), each has these keys with its number behind the prefix, as in `{tickr/0}:epoch`; nudges, events
//! and listeners are in the first one.

use tickr_job::{Name, Priority, RunnerId};

/// A lane: one queue at one priority. Each lane has one ready list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(String);

impl Lane {
    /// Create the lane of a queue at a priority. The normal priority is left out of the name, so that the ready list of
    /// a queue without other priorities is simply `ready:<queue>`.
    #[must_use]
    pub fn new(queue: &Name, priority: Priority) -> Self {
        if priority == Priority::NORMAL {
            Self(queue.to_string())
        } else {
            Self(format!("{queue}:{}", priority.level()))
        }
    }

    /// Return the name of the lane in keys and members.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Return the partition that has this lane, of so many. All lanes of a queue are in one partition, so that the limit
    /// of a queue is about one of them.
    pub(super) fn partition(&self, partitions: usize) -> usize {
        if partitions < 2 {
            return 0;
        }
        let queue = self.0.split(':').next().unwrap_or_default();
        // FNV-1a. Every runner, of any version, must find the same one.
        let digest = queue.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
            (digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        usize::try_from(digest % partitions as u64).unwrap_or_default()
    }

    pub(super) fn from_stored(text: String) -> Self {
        Self(text)
    }

    /// Return every lane of these queues, by priority, then in the order of `queues`. The queue order is decided
    /// in `engine/queue_order.rs`.
    #[must_use]
    pub fn all_of(queues: &[Name]) -> Vec<Self> {
        Priority::all().flat_map(|priority| queues.iter().map(move |queue| Self::new(queue, priority))).collect()
    }
}

/// All keys under one prefix.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// Pattern that all keys match. Braces have no meaning in it, and the prefix holds no other special characters.
    pub(super) all: String,
    pub(super) epoch: String,
    pub(super) sequence: String,
    pub(super) waiting: String,
    pub(super) overflow: String,
    pub(super) events: String,
    pub(super) listeners: String,
    pub(super) rights: String,
    /// Start of the key of a ready list; the lane follows.
    pub(super) ready_prefix: String,
    refill_prefix: String,
    nudge_prefix: String,
}

impl Keys {
    /// Return the keys of each partition. An index of one partition has no number in its keys.
    pub(super) fn of_partitions(prefix: &str, partitions: usize) -> Vec<Self> {
        if partitions < 2 {
            return vec![Self::new(prefix)];
        }
        // A prefix has no slash, so no partition has the keys of another index.
        (0..partitions).map(|number| Self::new(&format!("{prefix}/{number}"))).collect()
    }

    fn new(tag: &str) -> Self {
        let key = |name: &str| format!("{{{tag}}}:{name}");
        Self {
            all: key("*"),
            epoch: key("epoch"),
            sequence: key("sequence"),
            waiting: key("waiting"),
            overflow: key("overflow"),
            events: key("events"),
            listeners: key("listeners"),
            rights: key("rights"),
            ready_prefix: key("ready:"),
            refill_prefix: key("refill:"),
            nudge_prefix: key("nudge:"),
        }
    }

    /// Return the type of a key, as Redis calls it. None for a key that tickr does not use.
    pub(super) fn type_of(&self, key: &str) -> Option<&'static str> {
        let prefixes = [(&self.ready_prefix, "list"), (&self.nudge_prefix, "list"), (&self.refill_prefix, "string")];
        let fixed = [
            (&self.epoch, "string"),
            (&self.sequence, "string"),
            (&self.waiting, "zset"),
            (&self.overflow, "hash"),
            (&self.events, "stream"),
            (&self.listeners, "string"),
        ];
        let of_prefix = prefixes.into_iter().find(|(prefix, _)| key.starts_with(*prefix));
        of_prefix.or_else(|| fixed.into_iter().find(|(name, _)| *name == key)).map(|(_, kind)| kind)
    }

    pub(super) fn ready(&self, line: &Lane) -> String {
        format!("{}{}", self.ready_prefix, line.0)
    }

    pub(super) fn nudge(&self, runner: &RunnerId) -> String {
        format!("{}{runner}", self.nudge_prefix)
    }

    pub(super) fn refill(&self, line: &Lane) -> String {
        format!("{}{}", self.refill_prefix, line.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_share_one_hash_tag() {
        let keys = Keys::new("tickr");
        let line = Lane::new(&"mail".parse().unwrap(), Priority::NORMAL);
        assert_eq!(keys.ready(&line), "{tickr}:ready:mail");
        for key in [&keys.epoch, &keys.sequence, &keys.waiting, &keys.overflow, &keys.ready(&line), &keys.refill(&line)]
        {
            assert!(key.starts_with("{tickr}:"), "{key}");
        }
    }

    #[test]
    fn each_queue_is_in_one_partition_and_the_queues_are_in_all_of_them() {
        let queues: Vec<Name> = (0..100).map(|n| format!("q{n}").parse().unwrap()).collect();
        let mut sizes = [0; 4];
        for queue in &queues {
            let own: Vec<usize> = Priority::all().map(|level| Lane::new(queue, level).partition(4)).collect();
            assert!(own.iter().all(|other| *other == own[0]), "{queue}: {own:?}");
            sizes[own[0]] += 1;
        }
        assert!(sizes.iter().all(|size| *size > 10), "{sizes:?}");
        // Written down, because runners of different versions must agree.
        let place = |queue: &str| Lane::new(&queue.parse().unwrap(), Priority::NORMAL).partition(4);
        assert_eq!(["default", "mail", "reports"].map(place), [2, 2, 0]);
        assert_eq!(Lane::new(&queues[0], Priority::NORMAL).partition(1), 0);
        let keys = Keys::of_partitions("tickr", 2);
        assert_eq!([&keys[0].epoch, &keys[1].waiting], ["{tickr/0}:epoch", "{tickr/1}:waiting"]);
        assert_eq!(Keys::of_partitions("tickr", 1)[0].epoch, "{tickr}:epoch");
    }

    #[test]
    fn urgent_lines_come_first() {
        let queues: Vec<Name> = vec!["a".parse().unwrap(), "b".parse().unwrap()];
        let lines = Lane::all_of(&queues);
        assert_eq!(lines.len(), 20);
        assert_eq!((lines[0].as_str(), lines[1].as_str()), ("a:0", "b:0"));
        assert_eq!((lines[10].as_str(), lines[11].as_str()), ("a", "b"));
    }
}
