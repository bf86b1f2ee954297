//! A running handler's view of its attempt.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use tickr_job::{AttemptToken, Exchange, JobId, Name, Progress, TraceContext};

/// A handler's view of its own attempt. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    parts: Arc<ContextParts>,
    /// Value of a higher layer, which this layer cannot name: the client of the runner.
    attached: Option<Arc<dyn Any + Send + Sync>>,
}

/// The values behind a [`Context`]. The executor makes them; tests of handlers use [`Context::detached`].
#[derive(Debug)]
pub struct ContextParts {
    /// Id of the job.
    pub job: JobId,
    /// Kind of the job.
    pub kind: Name,
    /// Queue of the job.
    pub queue: Name,
    /// Number of this attempt among those that count, 1 for the first.
    pub attempt: u32,
    /// Number of attempts that the job may use.
    pub max_attempts: u32,
    /// The fencing token of this attempt.
    pub token: AttemptToken,
    /// Time when the attempt is stopped as timed out.
    pub deadline: Instant,
    /// Cancelled when the attempt should stop: after a cancel, at shutdown, at the deadline, or when the lease is lost.
    pub stop: CancellationToken,
    /// Newest progress, from which the heartbeat writes it to the store.
    pub progress: ProgressSlot,
    /// Span context of the attempt within the trace of its job.
    pub trace: Option<TraceContext>,
    /// Last exchange with another service, from which it is written to the attempt.
    pub exchange: ExchangeSlot,
}

/// The last exchange of an attempt with another service. It stays in memory until the attempt ends.
#[derive(Clone, Debug, Default)]
pub struct ExchangeSlot(Arc<Mutex<Option<Exchange>>>);

impl ExchangeSlot {
    /// Overwrite the exchange.
    pub fn put(&self, exchange: Exchange) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(exchange);
    }

    /// Take the exchange out, if there is one.
    #[must_use]
    pub fn take(&self) -> Option<Exchange> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The newest progress of an attempt. It is overwritten in memory and written to the store about once a second.
#[derive(Clone, Debug, Default)]
pub struct ProgressSlot(Arc<Mutex<Option<Progress>>>);

impl ProgressSlot {
    /// Overwrite the newest progress.
    pub fn put(&self, progress: Progress) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
    }

    /// Put back progress that was taken and could not be written, unless the handler has reported newer progress since.
    pub fn put_back(&self, progress: Progress) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(progress);
    }

    /// Take the newest progress out, if there is any that was not taken yet.
    #[must_use]
    pub fn take(&self) -> Option<Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Context {
    /// Make a context of these values.
    #[must_use]
    pub fn new(parts: ContextParts) -> Self {
        Self { parts: Arc::new(parts), attached: None }
    }

    /// Attach a value of a higher layer.
    #[doc(hidden)]
    #[must_use]
    pub fn with(self, attached: Arc<dyn Any + Send + Sync>) -> Self {
        Self { attached: Some(attached), ..self }
    }

    /// Return the attached value, if it has this type.
    #[doc(hidden)]
    #[must_use]
    pub fn attached<T: Any>(&self) -> Option<&T> {
        self.attached.as_deref().and_then(|attached| attached.downcast_ref())
    }

    /// Make a context without a store, for unit tests of handlers. It is the first of five attempts and has one minute
    /// of time.
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

    /// The job's id. It is the same in all attempts, so that systems which a handler changes can recognise a
    /// repetition.
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

    /// Number of this attempt among those that count, 1 for the first.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.parts.attempt
    }

    /// Number of attempts that the job may use before it fails.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.parts.max_attempts
    }

    /// True when the job fails unless this attempt succeeds.
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.parts.attempt >= self.parts.max_attempts
    }

    /// The fencing token of this attempt. Every attempt has another. A system that remembers the newest token it saw
    /// can refuse a late writer.
    #[must_use]
    pub fn token(&self) -> AttemptToken {
        self.parts.token
    }

    /// W3C Trace Context of the job, to be sent to other systems as `traceparent` and `tracestate`. `None` when the
    /// client that enqueued the job sent none and tickr records no traces.
    #[must_use]
    pub fn trace(&self) -> Option<&TraceContext> {
        self.parts.trace.as_ref()
    }

    /// The text of the `traceparent` header; see [`Context::trace`].
    #[must_use]
    pub fn traceparent(&self) -> Option<String> {
        self.parts.trace.as_ref().map(|context| context.span_context.to_string())
    }

    /// Time when the attempt is stopped as timed out.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.parts.deadline
    }

    /// Time left until the deadline, zero when it has passed.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.parts.deadline.saturating_duration_since(Instant::now())
    }

    /// True when the handler should stop: after a cancel, at the end of the shutdown grace, past the deadline, or when
    /// the lease is lost. Long loops check it between steps; async code waits on [`Context::stopped`].
    #[must_use]
    pub fn should_stop(&self) -> bool {
        self.parts.stop.is_cancelled()
    }

    /// Wait until the handler should stop. A handler that does not return soon after is dropped at its next await.
    pub async fn stopped(&self) {
        self.parts.stop.cancelled().await;
    }

    /// The cancellation token behind [`Context::stopped`], for code that takes one.
    #[must_use]
    pub fn stop_token(&self) -> CancellationToken {
        self.parts.stop.clone()
    }

    /// Keep the last request to another service and its response. They are stored with the attempt unless it succeeds.
    /// They must not contain credentials.
    pub(super) fn keep_exchange(&self, exchange: Exchange) {
        self.parts.exchange.put(exchange);
    }

    /// Report progress: 0 to 100 percent and a short note. It is shown with the job. Frequent calls are cheap.
    pub fn progress(&self, percent: f64, note: impl Into<String>) {
        // Control characters become spaces: the note is shown in terminals, and its JSON must fit its column.
        let mut note: String = note.into().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        note.truncate(note.floor_char_boundary(120));
        let note = if note.is_empty() { None } else { Some(note) };
        let percent = if percent.is_finite() { percent.clamp(0.0, 100.0) } else { 0.0 };
        self.parts.progress.put(Progress { percent, note });
    }
}
