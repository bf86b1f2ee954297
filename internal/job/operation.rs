//! What operators ask to be done to many jobs at once.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Actor, Filter, Priority, State, Timestamp};

/// What is done to each job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Stop it: one that waits ends, one that runs is asked to stop.
    Cancel,
    /// Give a failed or cancelled one a new life.
    Retry,
    /// Make one that waits due now.
    RunNow,
    /// Give one that waits another due time.
    Reschedule,
    /// Give one that waits another priority.
    SetPriority,
    /// Remove one that has ended.
    Delete,
    /// Make a new job of a dead letter.
    Replay,
    /// Take it out of the dead letters.
    Discard,
}

impl Action {
    /// Every action.
    pub const ALL: [Self; 8] = [
        Self::Cancel,
        Self::Retry,
        Self::RunNow,
        Self::Reschedule,
        Self::SetPriority,
        Self::Delete,
        Self::Replay,
        Self::Discard,
    ];

    /// The word used in the tables and the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Retry => "retry",
            Self::RunNow => "run_now",
            Self::Reschedule => "reschedule",
            Self::SetPriority => "set_priority",
            Self::Delete => "delete",
            Self::Replay => "replay",
            Self::Discard => "discard",
        }
    }

    /// The action behind a word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.as_str() == word)
    }

    /// The audit's name for doing it to one job.
    #[must_use]
    pub const fn act(self) -> &'static str {
        match self {
            Self::Cancel => "job.cancel",
            Self::Retry => "job.retry",
            Self::RunNow => "job.run_now",
            Self::Reschedule => "job.reschedule",
            Self::SetPriority => "job.set_priority",
            Self::Delete => "job.delete",
            Self::Replay => "job.replay",
            Self::Discard => "job.discard",
        }
    }

    /// Which jobs it can be done to at all.
    #[must_use]
    pub const fn among(self) -> Among {
        match self {
            Self::Cancel | Self::RunNow | Self::Reschedule | Self::SetPriority => Among::Owed,
            Self::Retry | Self::Delete | Self::Replay | Self::Discard => Among::Ended,
        }
    }

    /// What would become of a job in this state; nothing when it would be left as it is.
    #[must_use]
    pub const fn effect(self, state: State) -> Option<&'static str> {
        match (self, state) {
            (Self::Cancel, State::Executing) => Some("asked to stop"),
            (Self::Cancel, State::Waiting | State::Retrying) => Some("cancelled"),
            (Self::RunNow, State::Waiting | State::Retrying) => Some("due now"),
            (Self::Reschedule, State::Waiting | State::Retrying) => Some("due at another time"),
            (Self::SetPriority, State::Waiting | State::Retrying) => Some("of another priority"),
            (Self::Retry, State::Failed | State::Cancelled) => Some("waiting again"),
            (Self::Delete, State::Completed | State::Failed | State::Cancelled) => Some("removed"),
            (Self::Replay, State::Failed) => Some("replayed as a new job"),
            (Self::Discard, State::Failed) => Some("discarded"),
            _ => None,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Part of all jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among {
    /// All of them.
    All,
    /// Unfinished ones.
    Owed,
    /// Those that have ended.
    Ended,
}

/// What an action needs beside the jobs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OperationParams {
    /// The due time of a reschedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execute_at: Option<Timestamp>,
    /// The priority of a set_priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Why; a discard needs one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Where an operation is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    /// Waits for a runner, or is being carried out.
    Running,
    /// Every job of its filter was looked at.
    Done,
    /// Stopped on request.
    Cancelled,
    /// Could not be carried on; its last error says why.
    Failed,
}

impl OperationState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Running, Self::Done, Self::Cancelled, Self::Failed];

    /// The word used in the tables and the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }

    /// The state behind a word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// An operation as it is asked for.
#[derive(Clone, Debug)]
pub struct NewOperation {
    /// Made with the request, so that a repeated write recognises its own row.
    pub id: Uuid,
    /// What is done to each job.
    pub action: Action,
    /// Which jobs.
    pub filter: Filter,
    /// What the action needs.
    pub params: OperationParams,
    /// Jobs per second; as fast as it goes when absent.
    pub rate: Option<u32>,
}

/// Fastest rate of an operation, in jobs per second.
pub const MOST_RATE: u32 = 10_000;

/// An operation as the store knows it.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Its identity.
    pub id: Uuid,
    /// What is done to each job.
    pub action: Action,
    /// Which jobs.
    pub filter: Filter,
    /// What the action needs.
    pub params: OperationParams,
    /// Jobs per second.
    pub rate: Option<u32>,
    /// Where it is in its life.
    pub state: OperationState,
    /// Who asked.
    pub actor: Actor,
    /// When it was asked for; later jobs are not its business.
    pub created_at: Timestamp,
    /// When a runner first took it.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Jobs that it was done to.
    pub done: u64,
    /// Jobs that were left as they are, because of their state.
    pub skipped: u64,
    /// Jobs that it could not be done to.
    pub failed: u64,
    /// How many there were at the start, as far as they were counted.
    pub estimate: u64,
    /// There may have been more.
    pub capped: bool,
    /// Why it failed for the last job that it failed for.
    pub last_error: Option<String>,
    /// Who carries it out, if somebody does.
    pub runner: Option<String>,
}
