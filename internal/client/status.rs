//! [`JobStatus`], a job as a client reads it.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use tickr_job::{Job, JobId, State};

/// A job as a client reads it.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct JobStatus {
    /// Id of the job.
    pub id: JobId,
    /// Name of the kind.
    pub kind: String,
    /// Name of the queue.
    pub queue: String,
    /// State of the job.
    pub state: State,
    /// Number of attempts used so far.
    pub attempt: u32,
    /// Error of the last unsuccessful attempt.
    #[serde(default)]
    pub last_error: Option<String>,
    /// Result that the handler returned, as JSON.
    #[serde(default)]
    pub result: Option<Box<RawValue>>,
}

impl JobStatus {
    /// Read the result as a value of this type. `None` when there is no result or it is of another type.
    #[must_use]
    pub fn result_as<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_str(self.result.as_ref()?.get()).ok()
    }
}

impl From<Job> for JobStatus {
    fn from(job: Job) -> Self {
        Self {
            id: job.id,
            kind: job.kind.to_string(),
            queue: job.queue.to_string(),
            state: job.state,
            attempt: job.attempt,
            last_error: job.last_error,
            result: job.result,
        }
    }
}
