//! The jobs that a batch starts when its jobs have ended or one has failed.
//!
//! Each is checked and has its id when the batch is created, and is stored with the batch. So it is inserted at most
//! once, whatever is repeated.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::sql::error::corrupt;
use tickr_job::{BatchId, Due, JobId, JobOptions, Name, NewJob, OnConflict, Priority};

/// What a callback follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallbackEvent {
    /// All jobs of the batch have completed.
    Success,
    /// All jobs of the batch have ended, for the first time.
    Complete,
    /// A job of the batch has failed for good, for the first time.
    Failure,
}

impl CallbackEvent {
    /// All events.
    pub const ALL: [Self; 3] = [Self::Success, Self::Complete, Self::Failure];

    /// Return the name of the field of the API that has the callback.
    #[must_use]
    pub const fn field(self) -> &'static str {
        match self {
            Self::Success => "on_success",
            Self::Complete => "on_complete",
            Self::Failure => "on_failure",
        }
    }
}

/// A callback of a batch.
#[derive(Clone, Debug)]
pub struct Callback {
    /// What it follows from.
    pub event: CallbackEvent,
    /// The job. Its times count from the event.
    pub job: NewJob,
}

/// A callback as it is stored.
#[derive(Serialize, Deserialize)]
struct StoredCallback {
    event: CallbackEvent,
    id: JobId,
    kind: Name,
    queue: Name,
    payload: Box<RawValue>,
    priority: u8,
    max_attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_in_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(default)]
    options: JobOptions,
}

/// Return the text in which callbacks are stored, or nothing if there are none.
pub(super) fn to_text(callbacks: &[Callback]) -> Result<Option<String>, sqlx::Error> {
    if callbacks.is_empty() {
        return Ok(None);
    }
    let ms = |due: Due| match due {
        Due::After(time) => Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        Due::Now | Due::At(_) => None,
    };
    let stored: Vec<StoredCallback> = callbacks
        .iter()
        .map(|Callback { event, job }| StoredCallback {
            event: *event,
            id: job.id,
            kind: job.kind.clone(),
            queue: job.queue.clone(),
            payload: job.payload.clone(),
            priority: job.priority.level(),
            max_attempts: job.max_attempts,
            delay_ms: ms(job.due),
            expires_in_ms: job.expires.and_then(ms),
            host: job.host.clone(),
            options: job.options.clone(),
        })
        .collect();
    serde_json::to_string(&stored).map(Some).map_err(|error| sqlx::Error::Encode(Box::new(error)))
}

/// Read the callbacks of a batch. Those of a nested batch belong to its parent, so that the parent does not end before
/// them.
pub(super) fn from_text(
    text: Option<&str>,
    batch: BatchId,
    parent: Option<BatchId>,
) -> Result<Vec<Callback>, sqlx::Error> {
    let Some(text) = text else { return Ok(Vec::new()) };
    let stored: Vec<StoredCallback> =
        serde_json::from_str(text).map_err(|error| corrupt(format!("callbacks of a batch: {error}")))?;
    stored
        .into_iter()
        .map(|stored| {
            let after = |ms| Due::After(Duration::from_millis(ms));
            let job = NewJob {
                id: stored.id,
                kind: stored.kind,
                queue: stored.queue,
                payload: stored.payload,
                due: stored.delay_ms.map_or(Due::Now, after),
                expires: stored.expires_in_ms.map(after),
                priority: Priority::try_from(stored.priority).map_err(corrupt)?,
                max_attempts: stored.max_attempts,
                unique_key: None,
                on_conflict: OnConflict::default(),
                host: stored.host,
                options: JobOptions { callback_of: Some(batch), batch: parent, ..stored.options },
                batch: None,
            };
            Ok(Callback { event: stored.event, job })
        })
        .collect()
}
