//! How a handler ends.

use std::time::Duration;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::Kind;
use crate::job::limits;

/// What a handler returns.
pub type Outcome = Result<Output, Failure>;

/// A success: an optional result kept with the job, and jobs to enqueue with it.
#[derive(Debug, Default)]
pub struct Output {
    result: Option<Box<RawValue>>,
    follow_ups: Vec<FollowUp>,
}

impl Output {
    /// A result to keep with the job, at most 256 KiB of JSON.
    ///
    /// # Errors
    /// [`Failure::Reject`] when the value cannot be written as JSON.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Outcome {
        let result = to_raw_value(value).map_err(|e| Failure::reject(format!("write the result as json: {e}")))?;
        Ok(Self { result: Some(result), follow_ups: Vec::new() })
    }

    /// Also enqueue a job of another kind, in the same transaction as this success: both happen or neither does.
    ///
    /// At most a thousand jobs may follow one. All of them are checked before the first is written.
    ///
    /// # Errors
    /// [`Failure::Reject`] when the payload cannot be written as JSON, or when there are too many.
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

/// A job to enqueue together with the success of another.
#[derive(Debug)]
pub struct FollowUp {
    /// Its kind, which must be registered.
    pub kind: &'static str,
    /// Its payload, checked like any other before it is written.
    pub payload: Box<RawValue>,
}

/// Why an attempt did not succeed, and whether another may. Texts are kept with the attempt and shown to people, cut
/// to 2,000 bytes: never put secrets into them.
///
/// Any error converts into [`Failure::Retry`], so `?` does what one expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Another attempt may succeed. Burns one.
    Retry {
        /// What was attempted and what went wrong.
        error: String,
    },
    /// No attempt can succeed: the job fails now.
    Reject {
        /// What was attempted and what went wrong.
        error: String,
    },
    /// Not now: run again after the delay. Burns no attempt (bounded: a job may not snooze for ever).
    Snooze {
        /// How long to wait.
        delay: Duration,
        /// Why.
        reason: String,
    },
}

impl Failure {
    /// Another attempt may succeed.
    pub fn retry(error: impl Into<String>) -> Self {
        Self::Retry { error: error.into() }
    }

    /// No attempt can succeed.
    pub fn reject(error: impl Into<String>) -> Self {
        Self::Reject { error: error.into() }
    }

    /// Run again after `delay`, without burning an attempt.
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
