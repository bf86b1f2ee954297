//! Jobs and attempts as the store knows them.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{DeadLetter, Exchange, JobId, JobOptions, Name, Priority, RunnerId, State, Timestamp, Verdict};

/// A job as the store knows it.
#[derive(Clone, Debug, Serialize)]
pub struct Job {
    /// Id of the job.
    pub id: JobId,
    /// Kind, which selects the handler.
    pub kind: Name,
    /// Queue in which the job waits.
    pub queue: Name,
    /// Urgency within the queue.
    pub priority: Priority,
    /// State of the job.
    pub state: State,
    /// The handler's input; absent in listings.
    pub payload: Option<Box<RawValue>>,
    /// Attempts used so far, including the running one. Interrupted and snoozed attempts do not count.
    pub attempt: u32,
    /// Attempts that may be used before the job fails.
    pub max_attempts: u32,
    /// Unique key: at most one unfinished job exists per (kind, unique key).
    pub unique_key: Option<String>,
    /// Host that the job calls, if its kind knows one.
    pub host: Option<String>,
    /// The less common options.
    pub options: JobOptions,
    /// Time when the store accepted the job.
    pub created_at: Timestamp,
    /// Current due time, or the due time of the last attempt.
    pub execute_at: Timestamp,
    /// True if it waits for a job in front of it with the same order key.
    pub held: bool,
    /// Start of the open attempt, or of the last one that started.
    pub started_at: Option<Timestamp>,
    /// Time when the job ended.
    pub finished_at: Option<Timestamp>,
    /// Time when a cancel of the running attempt was requested.
    pub cancel_requested_at: Option<Timestamp>,
    /// Error of the last unsuccessful attempt.
    pub last_error: Option<String>,
    /// The handler's result.
    pub result: Option<Box<RawValue>>,
    /// Progress that the running attempt reported.
    pub progress: Option<Progress>,
    /// The newest checkpoint, until the job completes. Left out of listings.
    pub checkpoint: Option<Checkpoint>,
    /// The time at which the open attempt times out, if another system finishes it. Left out of listings.
    pub deferred_until: Option<Timestamp>,
    /// The dead letter, while the job is failed.
    pub dead_letter: Option<DeadLetter>,
}

/// One execution of a job: a finished attempt or the open one. The expiry of a job is listed as well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Number of the execution, counted from 1. Executions that used up no attempt count too.
    pub number: u32,
    /// The runner that executed it, or that ended the job when it expired.
    pub runner: RunnerId,
    /// Time when it was due.
    pub execute_at: Timestamp,
    /// Time when it was claimed, by the store's clock; absent for an expiry, for which nothing started.
    pub started_at: Option<Timestamp>,
    /// Time when it was settled; absent while it runs.
    pub finished_at: Option<Timestamp>,
    /// Verdict; absent while it runs.
    pub verdict: Option<Verdict>,
    /// Reason for a verdict other than success.
    pub error: Option<String>,
    /// Report that the runner sent after it had lost the lease. It is evidence only and has no effect.
    pub late_note: Option<String>,
    /// The attempt's request to another service, with the response.
    pub exchange: Option<Exchange>,
    /// Size of its log in bytes, if it has one.
    pub log_bytes: Option<u32>,
}

/// JSON that a handler saved while it ran, for the next attempt of the job to begin with.
#[derive(Clone, Serialize)]
pub struct Checkpoint {
    /// The JSON, at most [`MAX_CHECKPOINT_BYTES`](crate::limits::MAX_CHECKPOINT_BYTES).
    pub content: Box<RawValue>,
    /// Time when it was saved, by the store's clock.
    pub saved_at: Timestamp,
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Like a payload, the content must not appear in logs.
        f.debug_struct("Checkpoint")
            .field("bytes", &self.content.get().len())
            .field("saved_at", &self.saved_at)
            .finish()
    }
}

/// Progress that a running attempt reported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// 0 to 100.
    pub percent: f64,
    /// A short note for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A report of progress, in which a system may leave out what has not changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProgressReport {
    /// 0 to 100.
    pub percent: Option<f64>,
    /// A short note for people. An empty one removes the note before.
    pub note: Option<String>,
}

impl ProgressReport {
    /// Return the progress after this report. What it leaves out stays as it was before, if anything was reported.
    #[must_use]
    pub fn after(self, before: Option<Progress>) -> Progress {
        let (percent, note) = before.map_or((0.0, None), |before| (before.percent, before.note));
        Progress { percent: self.percent.unwrap_or(percent), note: self.note.or(note).filter(|note| !note.is_empty()) }
    }
}
