//! What a job became, and what was done about it.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{DeadLetter, Exchange, JobId, JobOptions, Name, Priority, RunnerId, State, Timestamp, Verdict};

/// A job as the store knows it.
#[derive(Clone, Debug, Serialize)]
pub struct Job {
    /// Its identity.
    pub id: JobId,
    /// Picks the handler.
    pub kind: Name,
    /// The line it waits in.
    pub queue: Name,
    /// Urgency within the queue.
    pub priority: Priority,
    /// Where it is in its life.
    pub state: State,
    /// The handler's input; left out of listings.
    pub payload: Option<Box<RawValue>>,
    /// Attempts burned so far, the running one included; given-back and snoozed attempts do not count.
    pub attempt: u32,
    /// Attempts that may be burned before the job fails.
    pub max_attempts: u32,
    /// At most one unfinished job per (kind, key).
    pub unique_key: Option<String>,
    /// The rarer wishes.
    pub options: JobOptions,
    /// When the store accepted it.
    pub created_at: Timestamp,
    /// When it is, or last was, due.
    pub execute_at: Timestamp,
    /// Start of the open or last attempt.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// When a cancel of the running attempt was asked for.
    pub cancel_requested_at: Option<Timestamp>,
    /// Why its last unsuccessful attempt ended.
    pub last_error: Option<String>,
    /// What the handler returned.
    pub result: Option<Box<RawValue>>,
    /// How far the running attempt says it is.
    pub progress: Option<Progress>,
    /// What is known of it as a dead letter, while it is failed.
    pub letter: Option<DeadLetter>,
}

/// One execution of a job: a line of the ledger, or the open attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// 1 for the first execution; every execution counts here, also those that burned nothing.
    pub number: u32,
    /// The process that ran it.
    pub runner: RunnerId,
    /// When it was due.
    pub execute_at: Timestamp,
    /// When it was claimed, by the store's clock.
    pub started_at: Timestamp,
    /// When it was settled; absent while it runs.
    pub finished_at: Option<Timestamp>,
    /// What it came to; absent while it runs.
    pub verdict: Option<Verdict>,
    /// Why it did not succeed.
    pub error: Option<String>,
    /// What its runner reported after its lease had been taken away. Evidence, without effect.
    pub late_note: Option<String>,
    /// What it said to another service, and what that answered.
    pub exchange: Option<Exchange>,
}

/// How far a running attempt says it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// 0 to 100.
    pub percent: f64,
    /// A few words for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}
