//! Outcome of a handler: success with results, or failure.

use std::borrow::Cow;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::{FinishLater, Kind, RemoteVerdict};
use tickr_job::{Due, OnFailure, RetryPolicy, RetryRequest, Timestamp, limits};

/// Return value of a handler.
pub type Outcome = Result<Output, Failure>;

/// A success: an optional result to store with the job, and follow-up jobs to enqueue.
#[derive(Debug, Default)]
pub struct Output {
    result: Option<Box<RawValue>>,
    follow_ups: Vec<FollowUp>,
    /// Bytes of their payloads.
    follow_up_bytes: usize,
    later: Option<FinishLater>,
    ended: Option<RemoteVerdict>,
}

impl Output {
    /// Make a success with a result, which is stored with the job. JSON of more than 256 KiB becomes a report
    /// file, and the job's result names it; the most is 64 MiB. A larger result is not kept, and the job has a note in its
    /// place.
    ///
    /// # Errors
    /// [`Failure::Reject`] when the value cannot be written as JSON.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Outcome {
        let result = to_raw_value(value).map_err(|e| Failure::reject(format!("write the result as json: {e}")))?;
        Ok(Self { result: Some(result), ..Self::default() })
    }

    /// Return the result, if there is one.
    pub(crate) fn result(&self) -> Option<&RawValue> {
        self.result.as_deref()
    }

    /// Put another result in the place of this one.
    pub(crate) async fn replace_result(
        mut self,
        make: impl AsyncFnOnce(Box<RawValue>) -> Result<Box<RawValue>, Failure>,
    ) -> Outcome {
        if let Some(result) = self.result.take() {
            self.result = Some(make(result).await?);
        }
        Ok(self)
    }

    /// End the handler without a verdict: the system that got the finish key of the attempt sends it later
    /// ([`Context::finish_key`](super::Context::finish_key)). The worker is free meanwhile, and no stop of a runner concerns
    /// the attempt. Follow-up jobs belong to a success, so none can be added: the system that finishes the attempt, or a
    /// job after this one, enqueues them.
    #[must_use]
    pub fn finished_later(later: FinishLater) -> Self {
        Self { later: Some(later), ..Self::default() }
    }

    /// End the handler with the verdict of a receiver that no [`Failure`] can say.
    pub(crate) fn ended_as(verdict: RemoteVerdict) -> Self {
        Self { ended: Some(verdict), ..Self::default() }
    }

    /// Take the verdict of a receiver out, if the attempt ended with one.
    #[doc(hidden)]
    #[must_use]
    pub const fn take_verdict(&mut self) -> Option<RemoteVerdict> {
        self.ended.take()
    }

    /// Return how long another system may take, if it finishes the attempt.
    #[must_use]
    pub const fn later(&self) -> Option<FinishLater> {
        self.later
    }

    /// Add a follow-up job. It is enqueued in the transaction that stores this success: both are committed or neither
    /// is.
    ///
    /// At most 1,000 follow-up jobs are allowed, and 16 MiB of JSON in their payloads together. All of them are checked
    /// before the first is written.
    ///
    /// # Errors
    /// [`Failure::Reject`] when the payload cannot be written as JSON, when the follow-up jobs are too many or too large
    /// together, or when another system finishes the attempt.
    pub fn then<P: Kind>(self, payload: &P) -> Outcome {
        self.then_job(FollowUp::of(payload)?)
    }

    /// Do what [`then`](Self::then) does, for a follow-up job with options of its own.
    ///
    /// # Errors
    /// [`Failure::Reject`] when the follow-up jobs are too many or too large together, or when another system finishes the
    /// attempt.
    pub fn then_job(mut self, job: FollowUp) -> Outcome {
        if self.later.is_some() {
            let why = "another system finishes the attempt, so this handler cannot add a follow-up job";
            return Err(Failure::reject(format!("{why} ({})", job.kind)));
        }
        let (most, help) = (limits::MAX_FOLLOW_UPS, "let a follow-up job enqueue the rest");
        if self.follow_ups.len() >= most {
            return Err(Failure::reject(format!("a job may be followed by {most} jobs at most; {help}")));
        }
        let most = limits::MAX_FOLLOW_UP_BYTES;
        let bytes = self.follow_up_bytes + job.payload.get().len();
        if bytes > most {
            let what = "the payloads of the jobs that follow one job may have";
            return Err(Failure::reject(format!("{what} {most} bytes at most together; {help}")));
        }
        self.follow_up_bytes = bytes;
        self.follow_ups.push(job);
        Ok(self)
    }

    /// Add several follow-up jobs. All of them are accepted with the success, or none.
    ///
    /// # Errors
    /// [`Failure::Reject`] when the follow-up jobs are too many or too large together, or when another system finishes the
    /// attempt.
    pub fn then_all(self, jobs: impl IntoIterator<Item = FollowUp>) -> Outcome {
        jobs.into_iter().try_fold(self, Self::then_job)
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

/// A follow-up job, enqueued together with the success of another job. What is not set has the default of its kind.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FollowUp {
    /// Kind of the job, which must be registered.
    pub kind: Cow<'static, str>,
    /// Payload of the job, checked before it is written, as at enqueue: at most 1 MiB of JSON and 63 levels.
    pub payload: Box<RawValue>,
    /// Its options.
    pub options: FollowUpOptions,
}

/// The options of a follow-up job.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FollowUpOptions {
    /// Name of the queue. Default: `default`.
    pub queue: Option<String>,
    /// When the job is due, from the time at which the success is stored.
    pub due: Due,
    /// When the job expires.
    pub expires: Option<Due>,
    /// Priority from 0 (first) to 9 (last).
    pub priority: Option<u8>,
    /// Number of attempts, 1 to 100.
    pub max_attempts: Option<u32>,
    /// Time limit of one attempt.
    pub timeout: Option<Duration>,
    /// Delays between attempts. What is left out is that of the kind.
    pub retry: Option<RetryRequest>,
    /// Order key.
    pub order_key: Option<String>,
    /// What the final failure of the job does to the jobs behind it with the same order key.
    pub on_failure: Option<OnFailure>,
    /// Limit key.
    pub limit_key: Option<String>,
    /// True if the batch of the job that ends counts the follow-up job as well.
    pub in_batch: bool,
    /// Tags.
    pub tags: Vec<String>,
}

impl Default for FollowUpOptions {
    fn default() -> Self {
        Self {
            queue: None,
            due: Due::Now,
            expires: None,
            priority: None,
            max_attempts: None,
            timeout: None,
            retry: None,
            order_key: None,
            on_failure: None,
            limit_key: None,
            in_batch: false,
            tags: Vec::new(),
        }
    }
}

impl FollowUp {
    /// Make a follow-up job with this payload.
    ///
    /// # Errors
    /// [`Failure::Reject`] when the payload cannot be written as JSON.
    pub fn of<P: Kind>(payload: &P) -> Result<Self, Failure> {
        let payload = to_raw_value(payload)
            .map_err(|e| Failure::reject(format!("write the payload of the follow-up {} job: {e}", P::NAME)))?;
        Ok(Self { kind: Cow::Borrowed(P::NAME), payload, options: FollowUpOptions::default() })
    }

    /// Add the job to the batch of the job that ends, so that the batch does not end before it. Without a batch, this
    /// changes nothing.
    #[must_use]
    pub const fn in_batch(mut self) -> Self {
        self.options.in_batch = true;
        self
    }

    /// Set the queue. Default: `default`.
    #[must_use]
    pub fn queue(mut self, name: impl Into<String>) -> Self {
        self.options.queue = Some(name.into());
        self
    }

    /// Let the job be due this long after the success is stored.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.options.due = Due::After(delay);
        self
    }

    /// Let the job be due at this moment. A moment in the past means now.
    #[must_use]
    pub fn at(mut self, moment: Timestamp) -> Self {
        self.options.due = Due::At(moment);
        self
    }

    /// Let the job expire this long after the success is stored: no attempt starts then or later. A job that is due only
    /// after that is accepted, because the work before it is done, and expires.
    #[must_use]
    pub fn expires_in(mut self, time: Duration) -> Self {
        self.options.expires = Some(Due::After(time));
        self
    }

    /// Set the priority, 0 (first) to 9 (last). Default: 5.
    #[must_use]
    pub fn priority(mut self, level: u8) -> Self {
        self.options.priority = Some(level);
        self
    }

    /// Set the number of attempts before the job fails, 1 to 100. Default: that of the kind.
    #[must_use]
    pub fn max_attempts(mut self, most: u32) -> Self {
        self.options.max_attempts = Some(most);
        self
    }

    /// Set the time limit of one attempt. Default: that of the kind.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.options.timeout = Some(limit);
        self
    }

    /// Set the delays between attempts. Default: those of the kind.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.options.retry = Some(policy.into());
        self
    }

    /// Set the order key: jobs with the same one run one at a time, in the order of their acceptance. Follow-up jobs of
    /// one success are accepted in the order in which they were added.
    #[must_use]
    pub fn order_key(mut self, key: impl Into<String>) -> Self {
        self.options.order_key = Some(key.into());
        self
    }

    /// Set what the final failure of the job does to the jobs behind it. Only together with an order key.
    #[must_use]
    pub fn on_failure(mut self, action: OnFailure) -> Self {
        self.options.on_failure = Some(action);
        self
    }

    /// Set the limit key: the limits that operators set count the jobs with the same one.
    #[must_use]
    pub fn limit_key(mut self, key: impl Into<String>) -> Self {
        self.options.limit_key = Some(key.into());
        self
    }

    /// Add a tag to find the job by. At most ten.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.options.tags.push(tag.into());
        self
    }
}

/// Time for which a job is given back that the settings of this runner do not allow.
const OTHER_SETTINGS_REST: Duration = Duration::from_secs(5);

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

    /// Give a job back that was accepted with other settings than those of this runner. While an operator changes the
    /// settings of one runner after another, another runner may have them. If none has, the job fails after a hundred
    /// such attempts.
    pub(crate) fn other_settings(reason: impl Into<String>) -> Self {
        Self::snooze(OTHER_SETTINGS_REST, reason)
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        // `{:#}` keeps the chain of causes in one line.
        Self::retry(format!("{:#}", error.into()))
    }
}
