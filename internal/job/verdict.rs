//! The result of an attempt.

use serde::{Deserialize, Serialize};

/// The verdict on one attempt. Different from the [`State`](super::State) of its job: a `failed` attempt may leave a
/// job `retrying`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The handler returned its result.
    Succeeded,
    /// The handler failed in a way that another attempt may solve.
    Failed,
    /// The handler reported that no retry can help.
    Rejected,
    /// The attempt exceeded its time limit and was stopped.
    TimedOut,
    /// The handler panicked; the worker continues.
    Panicked,
    /// The attempt was asked to stop by a cancel, and stopped.
    Cancelled,
    /// The runner shut down and gave the job back. Uses no attempt.
    Interrupted,
    /// The runner died or lost its lease. Written by the reaper.
    Lost,
    /// The handler requested to run later. Uses no attempt.
    Snoozed,
    /// The job expired before it started. No handler ran. Uses no attempt.
    Expired,
}
words!(Verdict {
    Succeeded => "succeeded",
    Failed => "failed",
    Rejected => "rejected",
    TimedOut => "timed_out",
    Panicked => "panicked",
    Cancelled => "cancelled",
    Interrupted => "interrupted",
    Lost => "lost",
    Snoozed => "snoozed",
    Expired => "expired",
});

impl Verdict {
    /// Return true if this verdict counts against `max_attempts`.
    #[must_use]
    pub const fn burns_attempt(self) -> bool {
        match self {
            Self::Interrupted | Self::Snoozed | Self::Expired => false,
            Self::Succeeded
            | Self::Failed
            | Self::Rejected
            | Self::TimedOut
            | Self::Panicked
            | Self::Cancelled
            | Self::Lost => true,
        }
    }
}
