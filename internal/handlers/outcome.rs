//! Outcome of a handler: success with results, or failure.

use std::time::Duration;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::Kind;
use tickr_job::limits;

/// Return value of a handler.
pub type Outcome = Result<Output, Failure>;

/// A success: an optional result to store with the job, and follow-up jobs to enqueue.
#[derive(Debug, Default)]
pub struct Output {
    result: Option<Box<RawValue>>,
    follow_ups: Vec<FollowUp>,
}

impl Output {
    /// Make a success with a result, which is stored with the job. At most 256 KiB of JSON.
    ///
    /// # Errors
    /// [`Failure::Reject`] when the value cannot be written as JSON.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Outcome {
        let result = to_raw_value(value).map_err(|e| Failure::reject(format!("write the result as json: {e}")))?;
        Ok(Self { result: Some(result), follow_ups: Vec::new() })
    }

    /// Add a follow-up job. It is enqueued in the transaction that stores this success: both are committed or neither
    /// is.
    ///
    /// At most 1,000 follow-up jobs are allowed. All of them are checked before the first is written.
    ///
    /// # Errors
    /// [`Failure::Reject`] when the payload cannot be written as JSON, or when there are too many follow-up jobs.
    pub fn then<P: Kind>(mut self, payload: &P) -> Outcome {
        let most = limits::MAX_FOLLOW_UPS;
        if self.follow_ups.len() >= most {
            let help = "let a follow-up job enqueue the rest";
            return Err(Failure::reject(format!("a job may be followed by {most} jobs at most; {help}")));
        }
        let payload = to_raw_value(payload)
            .map_err(|e| Failure::reject(format!("write the payload of the follow-up {} job: {e}", P::NAME)))?;
        self.follow_ups.push(FollowUp { kind: P::NAME, payload });
        Ok(self)
    }

    /// The result and the follow-up jobs.
    #[must_use]
    pub fn into_parts(self) -> (Option<Box<RawValue>>, Vec<FollowUp>) {
        (self.result, self.follow_ups)
    }
}

impl From<()> for Output {
    fn from((): ()) -> Self {
        Self::default()
    }
}

/// A follow-up job, enqueued together with the success of another job.
#[derive(Debug)]
pub struct FollowUp {
    /// Kind of the job, which must be registered.
    pub kind: &'static str,
    /// Payload of the job, checked before it is written, as at enqueue.
    pub payload: Box<RawValue>,
}

/// Reason why an attempt did not succeed. The variant decides what happens next. The texts are stored with the attempt,
/// cut to 2,000 bytes, and shown to operators: never put secrets into them.
///
/// Every error converts into [`Failure::Retry`], so `?` retries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Another attempt may succeed. Burns this attempt.
    Retry {
        /// The action that was tried, and the error.
        error: String,
    },
    /// No attempt can succeed: the job fails now, without a retry.
    Reject {
        /// The action that was tried, and the error.
        error: String,
    },
    /// The work cannot be done now. The job runs again after the delay and uses no attempt. The number of snoozes of a
    /// job is limited.
    Snooze {
        /// Time to wait before the next attempt.
        delay: Duration,
        /// Reason for the delay.
        reason: String,
    },
}

impl Failure {
    /// Make a failure after which another attempt may succeed.
    pub fn retry(error: impl Into<String>) -> Self {
        Self::Retry { error: error.into() }
    }

    /// Make a failure after which no attempt can succeed.
    pub fn reject(error: impl Into<String>) -> Self {
        Self::Reject { error: error.into() }
    }

    /// Make a request to run the job again after `delay`, without using an attempt.
    pub fn snooze(delay: Duration, reason: impl Into<String>) -> Self {
        Self::Snooze { delay, reason: reason.into() }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        // `{:#}` keeps the chain of causes in one line.
        Self::retry(format!("{:#}", error.into()))
    }
}
