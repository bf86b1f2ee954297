//! Every Redis key that tickr uses. Nothing else may spell one.
//!
//! | key | type | holds |
//! |---|---|---|
//! | `{prefix}:epoch` | string | present while the index is whole; its absence means "rebuild me" |
//! | `{prefix}:beat` | counter | raised at every look of a scheduler: who sees it fall knows that Redis went back in time |
//! | `{prefix}:waiting` | sorted set | `<line>:<job id>` scored by due time, unix milliseconds, within the horizon |
//! | `{prefix}:ready:<line>` | list | ids of due jobs, newest at the head, taken from the tail |
//! | `{prefix}:overflow` | hash | line → place in the store's due order from which jobs were left out of a full list |
//! | `{prefix}:nudge:<runner>` | list, expires | wakes the fetcher of this runner out of its blocking pop |
//! | `{prefix}:refill:<line>` | string, expires | the name of whoever is refilling this line |
//! | `{prefix}:events` | stream, capped, expires | what happened, by words, names and ids; only while somebody listens |
//! | `{prefix}:listeners` | string, expires | present while somebody listens to the events |
//!
//! The braces are part of the key: they make one hash tag, so that all keys live in one slot of a cluster and one script
//! may touch them all. Ids and due times only, never payloads.

use crate::job::{Name, Priority, RunnerId};

/// A queue at one priority: what one ready list holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line(String);

impl Line {
    /// The line of a queue at a priority. The normal priority goes without saying, so that the list of a queue that
    /// knows no others is simply `ready:<queue>`.
    #[must_use]
    pub fn new(queue: &Name, priority: Priority) -> Self {
        if priority == Priority::NORMAL {
            Self(queue.to_string())
        } else {
            Self(format!("{queue}:{}", priority.level()))
        }
    }

    /// The line as it stands in keys and members.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn from_stored(text: String) -> Self {
        Self(text)
    }

    /// Every line of these queues, by priority, then as listed. Who is served when is for `engine/service.rs` to say.
    #[must_use]
    pub fn of_queues(queues: &[Name]) -> Vec<Self> {
        Priority::all().flat_map(|priority| queues.iter().map(move |queue| Self::new(queue, priority))).collect()
    }
}

/// The key catalogue under one prefix.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    pub(super) epoch: String,
    pub(super) beat: String,
    pub(super) waiting: String,
    pub(super) overflow: String,
    pub(super) events: String,
    pub(super) listeners: String,
    /// Before the line of a ready list.
    pub(super) ready_prefix: String,
    refill_prefix: String,
    nudge_prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        let key = |name: &str| format!("{{{prefix}}}:{name}");
        Self {
            epoch: key("epoch"),
            beat: key("beat"),
            waiting: key("waiting"),
            overflow: key("overflow"),
            events: key("events"),
            listeners: key("listeners"),
            ready_prefix: key("ready:"),
            refill_prefix: key("refill:"),
            nudge_prefix: key("nudge:"),
        }
    }

    pub(super) fn ready(&self, line: &Line) -> String {
        format!("{}{}", self.ready_prefix, line.0)
    }

    pub(super) fn nudge(&self, runner: &RunnerId) -> String {
        format!("{}{runner}", self.nudge_prefix)
    }

    pub(super) fn refill(&self, line: &Line) -> String {
        format!("{}{}", self.refill_prefix, line.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_share_one_hash_tag() {
        let keys = Keys::new("tickr");
        let line = Line::new(&"mail".parse().unwrap(), Priority::NORMAL);
        assert_eq!(keys.ready(&line), "{tickr}:ready:mail");
        for key in [&keys.epoch, &keys.beat, &keys.waiting, &keys.overflow, &keys.ready(&line), &keys.refill(&line)] {
            assert!(key.starts_with("{tickr}:"), "{key}");
        }
    }

    #[test]
    fn urgent_lines_come_first() {
        let queues: Vec<Name> = vec!["a".parse().unwrap(), "b".parse().unwrap()];
        let lines = Line::of_queues(&queues);
        assert_eq!(lines.len(), 20);
        assert_eq!((lines[0].as_str(), lines[1].as_str()), ("a:0", "b:0"));
        assert_eq!((lines[10].as_str(), lines[11].as_str()), ("a", "b"));
    }
}
