//! Dead letters: jobs that failed for good, until an operator replays or discards them.

use serde::{Deserialize, Serialize};

use super::{Fingerprint, JobId, Timestamp};

/// Status of a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadLetterStatus {
    /// Not handled yet.
    Open,
    /// Replayed: a new job was created from it.
    Replayed,
    /// Discarded: an operator decided that nothing is to be done.
    Discarded,
}
words!(DeadLetterStatus {
    Open => "open",
    Replayed => "replayed",
    Discarded => "discarded",
});

/// The data of a failed job beyond its attempts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeadLetter {
    /// Group of the dead letter.
    pub fingerprint: Fingerprint,
    /// Time when the job failed.
    pub failed_at: Timestamp,
    /// Status of the dead letter.
    pub status: DeadLetterStatus,
    /// Time when the status was set.
    pub since: Timestamp,
    /// The job that was created by the replay.
    pub replayed_as: Option<JobId>,
    /// The actor that replayed or discarded it.
    pub by: Option<String>,
    /// Reason for the discard.
    pub reason: Option<String>,
}
