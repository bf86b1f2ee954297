//! Bulk operations: one action on many jobs, requested by an operator.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Actor, Canary, CanaryState, Filter, Priority, State, Timestamp};

/// The action on each job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Cancel the job: a waiting job ends, an executing job is asked to stop.
    Cancel,
    /// Run a failed or cancelled job again.
    Retry,
    /// Make a waiting job due now.
    RunNow,
    /// Give a waiting job another due time.
    Reschedule,
    /// Give a waiting job another priority.
    SetPriority,
    /// Remove an ended job.
    Delete,
    /// Create a new job from a dead letter.
    Replay,
    /// Discard the dead letter: it is not to be replayed.
    Discard,
}
words!(Action {
    Cancel => "cancel",
    Retry => "retry",
    RunNow => "run_now",
    Reschedule => "reschedule",
    SetPriority => "set_priority",
    Delete => "delete",
    Replay => "replay",
    Discard => "discard",
});

impl Action {
    /// Return the name in the audit for this action on one job.
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

    /// Return the part of all jobs that this action can apply to.
    #[must_use]
    pub const fn among(self) -> Among {
        match self {
            Self::Cancel | Self::RunNow | Self::Reschedule | Self::SetPriority => Among::Owed,
            Self::Retry | Self::Delete | Self::Replay | Self::Discard => Among::Ended,
        }
    }

    /// Return the effect on a job in this state, or `None` if the action leaves the job unchanged.
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

    /// Return whether the action gives jobs another due time. It leaves jobs out that wait for their turn, because they
    /// get a due time then.
    #[must_use]
    pub const fn sets_due_time(self) -> bool {
        matches!(self, Self::RunNow | Self::Reschedule)
    }
}

/// A part of all jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among {
    /// All jobs.
    All,
    /// Unfinished ones.
    Owed,
    /// Ended jobs.
    Ended,
}

/// The parameters of an action.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OperationParams {
    /// Due time, for `reschedule`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execute_at: Option<Timestamp>,
    /// Priority, for `set_priority`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Reason; required for `discard`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// State of a bulk operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    /// Waits for a runner, or is in progress.
    Running,
    /// Every job that matches the filter was processed.
    Done,
    /// Stopped on request.
    Cancelled,
    /// Could not continue; `last_error` has the reason.
    Failed,
}
words!(OperationState {
    Running => "running",
    Done => "done",
    Cancelled => "cancelled",
    Failed => "failed",
});

/// A requested bulk operation.
#[derive(Clone, Debug)]
pub struct NewOperation {
    /// Id made with the request, so that a repeated write recognises its own row.
    pub id: Uuid,
    /// The action on each job.
    pub action: Action,
    /// The jobs to process.
    pub filter: Filter,
    /// The parameters of the action.
    pub params: OperationParams,
    /// Jobs per second; unlimited if absent.
    pub rate: Option<u32>,
    /// The steps, for a replay that releases dead letters as a canary.
    pub canary: Option<Canary>,
}

/// Highest rate of a bulk operation, in jobs per second.
pub const MAX_RATE: u32 = 10_000;

/// A bulk operation as the store knows it.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Id of the operation.
    pub id: Uuid,
    /// The action on each job.
    pub action: Action,
    /// The jobs to process.
    pub filter: Filter,
    /// The parameters of the action.
    pub params: OperationParams,
    /// Jobs per second; unlimited if absent.
    pub rate: Option<u32>,
    /// State of the operation.
    pub state: OperationState,
    /// The actor that requested it.
    pub actor: Actor,
    /// Time of the request. Jobs created later are not processed.
    pub created_at: Timestamp,
    /// Time when a runner first took it.
    pub started_at: Option<Timestamp>,
    /// Time when it ended.
    pub ended_at: Option<Timestamp>,
    /// Number of jobs that the action changed.
    pub done: u64,
    /// Number of jobs left unchanged because of their state.
    pub skipped: u64,
    /// Number of jobs for which the action failed.
    pub failed: u64,
    /// Number of matching jobs at the start, as far as they were counted.
    pub estimate: u64,
    /// True if counting stopped at its limit, so that more jobs may match.
    pub capped: bool,
    /// The reason for the latest failure.
    pub last_error: Option<String>,
    /// The runner that carries it out, if one does.
    pub runner: Option<String>,
    /// The time when an operator paused it, and the operator; absent unless it is paused.
    pub paused: Option<(Timestamp, Actor)>,
    /// The steps and the progress of a canary.
    pub canary: Option<(Canary, CanaryState)>,
}
