//! What a running handler may ask and say.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::job::{AttemptToken, Exchange, JobId, Name, Progress, TraceContext};

/// The handler's view of its own attempt. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    parts: Arc<ContextParts>,
}

/// Everything a [`Context`] knows. Made by the executor; handler tests use [`Context::detached`].
#[derive(Debug)]
pub struct ContextParts {
    /// The job.
    pub job: JobId,
    /// Its kind.
    pub kind: Name,
    /// Its queue.
    pub queue: Name,
    /// Which attempt counts now, 1 for the first.
    pub attempt: u32,
    /// How many may be burned.
    pub max_attempts: u32,
    /// The fencing token of this attempt.
    pub token: AttemptToken,
    /// When the attempt is stopped as timed out.
    pub deadline: Instant,
    /// Cancelled when the attempt should stop: cancel, shutdown, deadline, lost lease.
    pub stop: CancellationToken,
    /// Where progress is left for the heartbeat to pick up.
    pub progress: ProgressSlot,
    /// Where the attempt stands in its job's trace.
    pub trace: Option<TraceContext>,
    /// Where what was said to another service is left for the ledger.
    pub exchange: ExchangeSlot,
}

/// What an attempt said to another service last, kept in memory until the attempt ends.
#[derive(Clone, Debug, Default)]
pub struct ExchangeSlot(Arc<Mutex<Option<Exchange>>>);

impl ExchangeSlot {
    /// Overwrite it.
    pub fn put(&self, exchange: Exchange) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(exchange);
    }

    /// Take it, if anything was said.
    #[must_use]
    pub fn take(&self) -> Option<Exchange> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The newest progress of an attempt, overwritten in memory and written to the store about once a second.
#[derive(Clone, Debug, Default)]
pub struct ProgressSlot(Arc<Mutex<Option<Progress>>>);

impl ProgressSlot {
    /// Overwrite the newest progress.
    pub fn put(&self, progress: Progress) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
    }

    /// Put back what was taken and could not be written, unless something newer was said meanwhile.
    pub fn put_back(&self, progress: Progress) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(progress);
    }

    /// The newest progress, if there is any that was not taken yet.
    #[must_use]
    pub fn take(&self) -> Option<Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Context {
    /// A context of these parts.
    #[must_use]
    pub fn new(parts: ContextParts) -> Self {
        Self { parts: Arc::new(parts) }
    }

    /// A context that belongs to no store: for the unit tests of handlers. One minute of time, first of five attempts.
    ///
    /// # Panics
    /// When `kind` is not a legal name.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a constant of the caller's own test")]
    pub fn detached(kind: &str) -> Self {
        Self::new(ContextParts {
            job: JobId::new(),
            kind: kind.parse().expect("a legal kind name"),
            queue: "default".parse().expect("a legal queue name"),
            attempt: 1,
            max_attempts: 5,
            token: AttemptToken::new(),
            deadline: Instant::now() + Duration::from_secs(60),
            stop: CancellationToken::new(),
            progress: ProgressSlot::default(),
            trace: None,
            exchange: ExchangeSlot::default(),
        })
    }

    /// The job's id: the same over all attempts, so that the systems a handler changes can recognise a repetition.
    #[must_use]
    pub fn job_id(&self) -> JobId {
        self.parts.job
    }

    /// The job's kind.
    #[must_use]
    pub fn kind(&self) -> &Name {
        &self.parts.kind
    }

    /// The job's queue.
    #[must_use]
    pub fn queue(&self) -> &Name {
        &self.parts.queue
    }

    /// Which attempt counts now, 1 for the first.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.parts.attempt
    }

    /// How many attempts may be burned before the job fails.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.parts.max_attempts
    }

    /// Is this the last attempt before the job fails?
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.parts.attempt >= self.parts.max_attempts
    }

    /// The fencing token of this attempt: another for every attempt. Systems that remember the newest token they saw
    /// can refuse a late writer.
    #[must_use]
    pub fn token(&self) -> AttemptToken {
        self.parts.token
    }

    /// The trace that the job was enqueued in, for calls to other systems: as W3C Trace Context, to be sent on as
    /// `traceparent` and `tracestate`. None when whoever enqueued it said nothing and nobody records.
    #[must_use]
    pub fn trace(&self) -> Option<&TraceContext> {
        self.parts.trace.as_ref()
    }

    /// As [`Context::trace`], the text of the `traceparent` header alone.
    #[must_use]
    pub fn traceparent(&self) -> Option<String> {
        self.parts.trace.as_ref().map(|context| context.place.to_string())
    }

    /// When the attempt is stopped as timed out.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.parts.deadline
    }

    /// Time left until the deadline; zero when it has passed.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.parts.deadline.saturating_duration_since(Instant::now())
    }

    /// Should the handler stop? True after a cancel, at the end of the shutdown grace, past the deadline or when the
    /// lease is lost. Long loops ask between steps; async code waits on [`Context::stopped`].
    #[must_use]
    pub fn should_stop(&self) -> bool {
        self.parts.stop.is_cancelled()
    }

    /// Resolves when the handler should stop. A handler that does not return soon after is dropped at its next await.
    pub async fn stopped(&self) {
        self.parts.stop.cancelled().await;
    }

    /// The token behind [`Context::stopped`], to hand on to code that takes one.
    #[must_use]
    pub fn stop_token(&self) -> CancellationToken {
        self.parts.stop.clone()
    }

    /// Keep what was said to another service and what it answered, for the attempt if it does not succeed. Never with
    /// credentials in it.
    pub(super) fn keep_exchange(&self, exchange: Exchange) {
        self.parts.exchange.put(exchange);
    }

    /// Say how far the work is: 0 to 100 percent and a few words. Shown with the job; cheap to call often.
    pub fn progress(&self, percent: f64, note: impl Into<String>) {
        // Without control characters: the note is shown in terminals, and its JSON must fit its column.
        let mut note: String = note.into().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        if note.len() > 120 {
            let end = (0..=120).rev().find(|at| note.is_char_boundary(*at)).unwrap_or(0);
            note.truncate(end);
        }
        let note = if note.is_empty() { None } else { Some(note) };
        let percent = if percent.is_finite() { percent.clamp(0.0, 100.0) } else { 0.0 };
        self.parts.progress.put(Progress { percent, note });
    }
}
