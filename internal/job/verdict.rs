//! The result of an attempt.

use std::fmt;

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
}

impl Verdict {
    /// All verdicts, in the order of the column's definition.
    pub const ALL: [Self; 9] = [
        Self::Succeeded,
        Self::Failed,
        Self::Rejected,
        Self::TimedOut,
        Self::Panicked,
        Self::Cancelled,
        Self::Interrupted,
        Self::Lost,
        Self::Snoozed,
    ];

    /// Return true if this verdict counts against `max_attempts`.
    #[must_use]
    pub const fn burns_attempt(self) -> bool {
        match self {
            Self::Interrupted | Self::Snoozed => false,
            Self::Succeeded
            | Self::Failed
            | Self::Rejected
            | Self::TimedOut
            | Self::Panicked
            | Self::Cancelled
            | Self::Lost => true,
        }
    }

    /// Return the word used in the tables, the API and the logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
            Self::TimedOut => "timed_out",
            Self::Panicked => "panicked",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
            Self::Lost => "lost",
            Self::Snoozed => "snoozed",
        }
    }

    /// Return the verdict of a word read from the store.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verdict| verdict.as_str() == word)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
