//! Marks on charts: events that may be the reason why figures changed.

use chrono::TimeDelta;
use uuid::Uuid;

use super::{Action, Actor, Name, RunnerId, Timestamp};

/// Events of several runners that are this close to the first of them are one mark.
const TOGETHER: TimeDelta = TimeDelta::seconds(30);

/// An event of the cluster with its time, by the store's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Time of the event, or of the first of several.
    pub at: Timestamp,
    /// The event.
    pub event: MarkedEvent,
}

/// An event that charts mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkedEvent {
    /// Runners of one version started, one soon after the other.
    RunnersStarted {
        /// Number of runners.
        runners: u32,
        /// Their version.
        version: String,
        /// The version of the runner that started before them, if it is another one.
        previous_version: Option<String>,
    },
    /// Runners were found dead: they stopped sending heartbeats. Its time is that of the last heartbeat.
    RunnersLost {
        /// The first of them.
        runner: RunnerId,
        /// Number of runners.
        runners: u32,
    },
    /// An operator paused a queue, or changed the reason of its pause.
    QueuePaused {
        /// The queue.
        queue: Name,
        /// The operator.
        by: Actor,
        /// The reason, if the operator gave one.
        reason: Option<String>,
    },
    /// An operator resumed a queue.
    QueueResumed {
        /// The queue.
        queue: Name,
        /// The operator.
        by: Actor,
    },
    /// A bulk operation began that makes many jobs run: a replay, a retry, or a run at once.
    OperationStarted {
        /// Id of the bulk operation.
        operation: Uuid,
        /// What it does with each job.
        action: Action,
        /// True for a canary.
        is_canary: bool,
        /// The operator.
        by: Actor,
    },
    /// The index changed, as these runners saw it.
    IndexChanged {
        /// The change.
        change: IndexChange,
        /// Number of runners.
        runners: u32,
    },
}

/// A change of the condition of Redis that a runner records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexChange {
    /// Redis did not answer, or refused.
    Lost,
    /// Redis takes writes again.
    Back,
    /// Redis answered, and its data was gone.
    Emptied,
}
words!(IndexChange {
    Lost => "lost",
    Back => "back",
    Emptied => "emptied",
});

/// The start of a runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerStart {
    /// Time of the start.
    pub at: Timestamp,
    /// Version of its binary.
    pub version: String,
}

/// Return the marks of the starts from `from` on, oldest first. Earlier starts say which version ran before.
#[must_use]
pub fn marks_of_starts(mut starts: Vec<RunnerStart>, from: Timestamp) -> Vec<Mark> {
    starts.sort_by_key(|start| start.at);
    let mut marks: Vec<Mark> = Vec::new();
    let mut before: Option<String> = None;
    for RunnerStart { at, version } in starts {
        let same = before.as_ref() == Some(&version);
        if let Some(Mark { at: first, event: MarkedEvent::RunnersStarted { runners, .. } }) = marks.last_mut()
            && same
            && at - *first <= TOGETHER
        {
            *runners += 1;
            continue;
        }
        let previous_version = if same { None } else { before.replace(version.clone()) };
        if at >= from {
            marks.push(Mark { at, event: MarkedEvent::RunnersStarted { runners: 1, version, previous_version } });
        }
    }
    marks
}

/// Return the marks of runners that were found dead, oldest first. Each comes with the time of its last heartbeat.
#[must_use]
pub fn marks_of_losses(mut losses: Vec<(Timestamp, RunnerId)>) -> Vec<Mark> {
    losses.sort_by_key(|(at, _)| *at);
    let mut marks: Vec<Mark> = Vec::new();
    for (at, runner) in losses {
        if let Some(Mark { at: first, event: MarkedEvent::RunnersLost { runners, .. } }) = marks.last_mut()
            && at - *first <= TOGETHER
        {
            *runners += 1;
            continue;
        }
        marks.push(Mark { at, event: MarkedEvent::RunnersLost { runner, runners: 1 } });
    }
    marks
}

/// Return the marks of changes that runners recorded, oldest first.
#[must_use]
pub fn marks_of_index_changes(mut changes: Vec<(Timestamp, IndexChange)>) -> Vec<Mark> {
    changes.sort_by_key(|(at, _)| *at);
    let mut marks: Vec<Mark> = Vec::new();
    for (at, change) in changes {
        let same =
            marks.iter_mut().rev().take_while(|mark| at - mark.at <= TOGETHER).find_map(|mark| match &mut mark.event {
                MarkedEvent::IndexChanged { change: marked, runners } if *marked == change => Some(runners),
                _ => None,
            });
        match same {
            Some(runners) => *runners += 1,
            None => marks.push(Mark { at, event: MarkedEvent::IndexChanged { change, runners: 1 } }),
        }
    }
    marks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        chrono::DateTime::from_timestamp(1_800_000_000 + second, 0).unwrap()
    }

    /// Return the marks as (second, runners, version, previous version).
    fn starts(starts: &[(i64, &str)], from: i64) -> Vec<(i64, u32, String, Option<String>)> {
        let starts = starts.iter().map(|(second, version)| RunnerStart { at: at(*second), version: (*version).into() });
        let seen = |mark: Mark| match mark.event {
            MarkedEvent::RunnersStarted { runners, version, previous_version } => {
                ((mark.at - at(0)).num_seconds(), runners, version, previous_version)
            }
            other => panic!("{other:?}"),
        };
        marks_of_starts(starts.collect(), at(from)).into_iter().map(seen).collect()
    }

    #[test]
    fn runners_of_a_version_that_start_together_are_one_mark_and_the_first_says_what_ran_before() {
        let one = |second, runners, before: Option<&str>| (second, runners, "1".to_owned(), before.map(str::to_owned));
        let two = |second, runners, before: Option<&str>| (second, runners, "2".to_owned(), before.map(str::to_owned));
        assert_eq!(starts(&[(0, "1"), (10, "1"), (30, "1"), (31, "1")], 0), [one(0, 3, None), one(31, 1, None)]);
        // Out of order, and the old version ran long before the chart begins.
        assert_eq!(starts(&[(510, "2"), (500, "2"), (0, "1")], 400), [two(500, 2, Some("1"))]);
        // A runner of the old version starts again during the deploy.
        assert_eq!(
            starts(&[(0, "1"), (500, "2"), (505, "1"), (510, "2")], 400),
            [two(500, 1, Some("1")), one(505, 1, Some("2")), two(510, 1, Some("1"))]
        );
        assert!(starts(&[(0, "1"), (10, "1")], 400).is_empty());
    }

    #[test]
    fn runners_that_are_lost_together_are_one_mark_with_the_name_of_the_first() {
        let runner = |name: &str| RunnerId::from_stored(name.to_owned());
        let losses = [(31, "c"), (0, "a"), (30, "b")].map(|(second, name)| (at(second), runner(name)));
        let lost = |second, name, runners| Mark {
            at: at(second),
            event: MarkedEvent::RunnersLost { runner: runner(name), runners },
        };
        assert_eq!(marks_of_losses(losses.to_vec()), [lost(0, "a", 2), lost(31, "c", 1)]);
    }

    #[test]
    fn changes_that_several_runners_saw_are_one_mark() {
        let (lost, back) = (IndexChange::Lost, IndexChange::Back);
        let changes = [(3, lost), (0, lost), (8, back), (9, lost), (10, back), (90, lost)];
        let marks = marks_of_index_changes(changes.map(|(second, change)| (at(second), change)).to_vec());
        let seen: Vec<_> = marks
            .iter()
            .map(|mark| match mark.event {
                MarkedEvent::IndexChanged { change, runners } => ((mark.at - at(0)).num_seconds(), change, runners),
                _ => panic!("{mark:?}"),
            })
            .collect();
        assert_eq!(seen, [(0, lost, 3), (8, back, 2), (90, lost, 1)]);
        for change in IndexChange::ALL {
            assert_eq!(IndexChange::from_word(change.as_str()), Some(change));
        }
    }
}
