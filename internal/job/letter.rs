//! Dead letters: jobs that failed for good, until somebody sees to them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Fingerprint, JobId, Timestamp};

/// What became of a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Nobody has seen to it yet.
    Open,
    /// A new job was made of it.
    Replayed,
    /// Somebody decided that nothing is to be done.
    Discarded,
}

impl Standing {
    /// Every standing.
    pub const ALL: [Self; 3] = [Self::Open, Self::Replayed, Self::Discarded];

    /// The word used in the tables and the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Replayed => "replayed",
            Self::Discarded => "discarded",
        }
    }

    /// The standing behind a word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|standing| standing.as_str() == word)
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What is known of a failed job beyond its ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeadLetter {
    /// Its group.
    pub fingerprint: Fingerprint,
    /// When it failed.
    pub failed_at: Timestamp,
    /// What became of it.
    pub standing: Standing,
    /// Since when.
    pub since: Timestamp,
    /// The job that was made of it.
    pub replayed_as: Option<JobId>,
    /// Who replayed or discarded it.
    pub by: Option<String>,
    /// Why it was discarded.
    pub reason: Option<String>,
}
