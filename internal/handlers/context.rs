//! A running handler's view of its attempt.

use std::any::Any;
use std::fmt::{self, Display};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::TimeDelta;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Level;

use super::{Failure, FinishKey, FinishLater, FinishSlot};
use tickr_job::{
    AttemptToken, CallOutcome, Checkpoint, Exchange, JobId, Name, Progress, Timestamp, TraceContext, Verdict, limits,
};
use tickr_telemetry::{AttemptLog, LogScope, in_log_scope};

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
    /// Start of the attempt, by the clock of the database.
    pub started_at: Timestamp,
    /// A moment by the clock of the database, and the same moment by the monotonic clock of this process. The wall
    /// clock of this host may be wrong.
    pub clock: (Timestamp, Instant),
    /// Time limit of the attempt.
    pub time_limit: Duration,
    /// Tags of the job.
    pub tags: Vec<String>,
    /// Cancelled when the attempt should stop: after a cancel, at shutdown, at the deadline, or when the lease is lost.
    pub stop: CancellationToken,
    /// Newest progress, from which the heartbeat writes it to the store.
    pub progress: ProgressSlot,
    /// Checkpoint of the job.
    pub checkpoint: CheckpointSlot,
    /// Key with which another system may finish the attempt.
    pub finish: FinishSlot,
    /// Span context of the attempt within the trace of its job.
    pub trace: Option<TraceContext>,
    /// Last exchange with another service, from which it is written to the attempt.
    pub exchange: ExchangeSlot,
    /// How the call to the job's host ended, for the breaker of that host.
    pub call: CallSlot,
    /// The log of the attempt.
    pub log: AttemptLog,
}

/// How the call of an attempt to the job's host ended, if the handler said so.
#[derive(Clone, Debug, Default)]
pub struct CallSlot(Arc<Mutex<CallSaid>>);

#[derive(Clone, Copy, Debug, Default)]
struct CallSaid {
    outcome: Option<CallOutcome>,
    /// Whether the handler has said that it makes the call itself, and has not made it yet.
    is_to_come: bool,
}

impl CallSlot {
    /// Overwrite the outcome.
    pub fn put(&self, outcome: CallOutcome) {
        self.lock().outcome = Some(outcome);
    }

    /// Return the outcome, if there is one.
    #[must_use]
    pub fn get(&self) -> Option<CallOutcome> {
        self.lock().outcome
    }

    /// Return the outcome of an attempt with this verdict. Without a word of the handler, a success counts as an answer,
    /// and an attempt that timed out as a failed call, unless the handler has made none.
    #[must_use]
    pub fn after(&self, verdict: Verdict) -> Option<CallOutcome> {
        let said = *self.lock();
        said.outcome.or(match verdict {
            Verdict::Succeeded => Some(CallOutcome::Answered),
            Verdict::TimedOut if !said.is_to_come => Some(CallOutcome::Failed),
            _ => None,
        })
    }

    fn lock(&self) -> MutexGuard<'_, CallSaid> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

/// The checkpoint of an attempt: the one with which it began, and the newest one that its handler saved. It is overwritten
/// in memory, written to the store a few times a second, and at the latest with the verdict. The default has no store.
#[derive(Clone, Default)]
pub struct CheckpointSlot(Arc<CheckpointCell>);

#[derive(Default)]
struct CheckpointCell {
    newest: Mutex<Newest>,
    /// Version of the newest content that is in the store.
    saved: AtomicU64,
    /// Notified when that has changed.
    was_saved: Notify,
    /// Wakes the loop that writes to the store. None: there is no store.
    wake: Option<Arc<Notify>>,
}

#[derive(Default)]
struct Newest {
    /// The content with which the attempt began, or the newest one since.
    content: Option<Arc<str>>,
    /// Number of saves of this attempt.
    version: u64,
    /// When the first content was saved that is not in the store.
    since: Option<std::time::Instant>,
}

/// A checkpoint that is not in the store yet.
#[derive(Clone)]
pub struct UnsavedCheckpoint {
    /// The JSON text.
    pub content: Arc<str>,
    /// Its number among the checkpoints of the attempt, from 1.
    pub version: u64,
    /// When the handler saved the first content that is not in the store.
    pub since: std::time::Instant,
}

impl fmt::Debug for CheckpointSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Like a payload, the content must not appear in logs.
        f.debug_struct("CheckpointSlot").field("saves", &self.lock().version).finish_non_exhaustive()
    }
}

impl fmt::Debug for UnsavedCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnsavedCheckpoint").field("version", &self.version).finish_non_exhaustive()
    }
}

impl CheckpointSlot {
    /// Make a slot that wakes the loop which writes to the store.
    #[must_use]
    pub fn waking(wake: Arc<Notify>) -> Self {
        Self(Arc::new(CheckpointCell { wake: Some(wake), ..CheckpointCell::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, Newest> {
        self.0.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Set the checkpoint with which the attempt begins.
    pub fn begin_with(&self, checkpoint: Option<Checkpoint>) {
        self.lock().content = checkpoint.map(|checkpoint| Box::<str>::from(checkpoint.content).into());
    }

    fn put(&self, content: Arc<str>) {
        let mut newest = self.lock();
        newest.content = Some(content);
        newest.version += 1;
        newest.since.get_or_insert_with(std::time::Instant::now);
        drop(newest);
        if let Some(wake) = &self.0.wake {
            wake.notify_one();
        }
    }

    fn content(&self) -> Option<Arc<str>> {
        self.lock().content.clone()
    }

    /// Return whether the handler has saved a checkpoint in this attempt.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.lock().version > 0
    }

    /// Return the newest checkpoint, if it is not in the store yet.
    #[must_use]
    pub fn unsaved(&self) -> Option<UnsavedCheckpoint> {
        let newest = self.lock();
        let since = newest.since?;
        newest.content.clone().map(|content| UnsavedCheckpoint { content, version: newest.version, since })
    }

    /// Record that the checkpoint with this version is in the store.
    pub fn record_saved(&self, version: u64) {
        let mut newest = self.lock();
        newest.since = (newest.version > version).then(std::time::Instant::now);
        drop(newest);
        self.0.saved.fetch_max(version, Ordering::SeqCst);
        self.0.was_saved.notify_waiters();
    }

    /// Wait until the newest checkpoint is in the store. Without a store there is nothing to wait for.
    pub async fn until_saved(&self) {
        if self.0.wake.is_none() {
            return;
        }
        let wanted = self.lock().version;
        loop {
            // It hears of every save from here on, so none is missed between the look and the wait.
            let was_saved = self.0.was_saved.notified();
            if self.0.saved.load(Ordering::SeqCst) >= wanted {
                return;
            }
            was_saved.await;
        }
    }
}

/// Reason why a checkpoint cannot be saved.
#[derive(Debug)]
#[non_exhaustive]
pub enum CheckpointError {
    /// It cannot be written as JSON.
    Json(serde_json::Error),
    /// It has more than 64 KiB of JSON.
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The attempt has to stop: see [`Context::should_stop`].
    Stopped,
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(_) => f.write_str("the checkpoint cannot be written as JSON"),
            Self::TooLarge { bytes } => {
                write!(f, "the checkpoint has {bytes} bytes, and {} are allowed", limits::MAX_CHECKPOINT_BYTES)
            }
            Self::Stopped => f.write_str("the attempt has to stop, so its checkpoint was not saved in time"),
        }
    }
}

impl std::error::Error for CheckpointError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Json(error) => Some(error),
            Self::TooLarge { .. } | Self::Stopped => None,
        }
    }
}

impl ContextParts {
    #[expect(clippy::expect_used, reason = "a constant of the caller's own test")]
    pub(crate) fn detached(kind: &str) -> Self {
        Self {
            job: JobId::new(),
            kind: kind.parse().expect("a legal kind name"),
            queue: "default".parse().expect("a legal queue name"),
            attempt: 1,
            max_attempts: 5,
            token: AttemptToken::new(),
            deadline: Instant::now() + Duration::from_secs(60),
            started_at: chrono::Utc::now(),
            clock: (chrono::Utc::now(), Instant::now()),
            time_limit: Duration::from_secs(60),
            tags: Vec::new(),
            stop: CancellationToken::new(),
            progress: ProgressSlot::default(),
            checkpoint: CheckpointSlot::default(),
            finish: FinishSlot::default(),
            trace: None,
            exchange: ExchangeSlot::default(),
            call: CallSlot::default(),
            log: AttemptLog::default(),
        }
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
    pub fn detached(kind: &str) -> Self {
        Self::new(ContextParts::detached(kind))
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

    /// Start of the attempt, by the clock of the database.
    pub(crate) fn started_at(&self) -> Timestamp {
        self.parts.started_at
    }

    /// Return the time now, by the clock of the database. The wall clock of this host decides nothing.
    pub(crate) fn now(&self) -> Timestamp {
        let (moment, taken) = self.parts.clock;
        moment + TimeDelta::from_std(taken.elapsed()).unwrap_or_default()
    }

    /// Time limit of the attempt.
    pub(crate) fn time_limit(&self) -> Duration {
        self.parts.time_limit
    }

    /// Tags of the job.
    pub(crate) fn tags(&self) -> &[String] {
        &self.parts.tags
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

    /// Return the checkpoint of the job: the newest one that this attempt saved, else the last one of an earlier attempt.
    /// `None` in a job that has saved none, so the handler begins from the start.
    ///
    /// # Errors
    /// When the JSON does not fit the type, because another version of the handler saved it.
    pub fn checkpoint<T: DeserializeOwned>(&self) -> Result<Option<T>, serde_json::Error> {
        self.parts.checkpoint.content().map(|content| serde_json::from_str(&content)).transpose()
    }

    /// Save a checkpoint, with which the next attempt of the job begins. It replaces the last one. Frequent calls are cheap:
    /// only the newest one is written to MySQL, within about a quarter of a second, and at the latest with the verdict of
    /// the attempt. If the runner dies before that, the next attempt gets the one before.
    ///
    /// A job that completes loses its checkpoint. A job that failed or was cancelled keeps it, for an operator's retry.
    ///
    /// # Errors
    /// When the value cannot be written as JSON or has more than 64 KiB.
    pub fn save_checkpoint<T: Serialize + ?Sized>(&self, value: &T) -> Result<(), CheckpointError> {
        let content = serde_json::to_string(value).map_err(CheckpointError::Json)?;
        if content.len() > limits::MAX_CHECKPOINT_BYTES {
            return Err(CheckpointError::TooLarge { bytes: content.len() });
        }
        self.parts.checkpoint.put(content.into());
        Ok(())
    }

    /// Wait until MySQL has the newest checkpoint, before a step that must not be repeated. It takes milliseconds, or as
    /// long as MySQL is out. In a context without a store, as in a test of the handler alone, it returns at once.
    ///
    /// # Errors
    /// [`CheckpointError::Stopped`] when the attempt has to stop first.
    pub async fn checkpoint_saved(&self) -> Result<(), CheckpointError> {
        tokio::select! {
            () = self.parts.checkpoint.until_saved() => Ok(()),
            () = self.stopped() => Err(CheckpointError::Stopped),
        }
    }

    /// Return the key with which another system finishes this attempt. The same in each call. It is stored before this
    /// returns, so the system may use it at once. It takes milliseconds, or as long as MySQL is out. The handler then
    /// returns [`Output::finished_later`](super::Output::finished_later).
    ///
    /// # Errors
    /// [`Failure::Retry`] when the key cannot be stored, or the attempt has to stop first.
    pub async fn finish_key(&self) -> Result<FinishKey, Failure> {
        self.parts.finish.key(None).await.cloned()
    }

    /// Return the key as [`finish_key`](Self::finish_key) does, for a system that works on the attempt as soon as it reports,
    /// though the handler has not heard its answer. So the death of this runner does not end such an attempt.
    pub(crate) async fn finish_key_for(&self, later: FinishLater) -> Result<FinishKey, Failure> {
        self.parts.finish.key(Some(later)).await.cloned()
    }

    /// Set the checkpoint with which the attempt begins, for unit tests of handlers.
    ///
    /// # Panics
    /// When the value cannot be written as JSON.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a value of the caller's own test")]
    pub fn with_checkpoint<T: Serialize + ?Sized>(self, value: &T) -> Self {
        let content = RawValue::from_string(serde_json::to_string(value).expect("a value that can be written as JSON"));
        let content = content.expect("JSON that was just written");
        self.parts.checkpoint.begin_with(Some(Checkpoint { content, saved_at: chrono::DateTime::UNIX_EPOCH }));
        self
    }

    /// Say that the host of the job did not answer, or cannot serve calls now. Several such calls in a row open the breaker
    /// of the host, if a limit has one. Without a word, a success counts as an answer, an attempt that timed out as a failed
    /// call, and every other attempt not at all.
    pub fn host_failed(&self) {
        self.parts.call.put(CallOutcome::Failed);
    }

    /// Say that the host of the job answered, although the attempt does not succeed.
    pub fn host_answered(&self) {
        self.parts.call.put(CallOutcome::Answered);
    }

    /// Say that the call to the host was refused here. If it was the one that decides about an open breaker, the next one
    /// waits for another pause.
    pub(super) fn host_is_not_called(&self) {
        self.parts.call.put(CallOutcome::NotMade);
    }

    /// Say that the call to the host is still to come, and that the handler says when it
    /// [begins](Self::host_call_begins). An attempt whose time is over before its call says nothing about the host.
    pub(super) fn host_call_is_to_come(&self) {
        self.parts.call.lock().is_to_come = true;
    }

    /// Say that the call to the host is made now.
    pub(super) fn host_call_begins(&self) {
        self.parts.call.lock().is_to_come = false;
    }

    /// Keep the last request to another service and its response. They are stored with the attempt unless it succeeds.
    /// They must not contain credentials.
    pub(super) fn keep_exchange(&self, exchange: Exchange) {
        self.parts.exchange.put(exchange);
    }

    /// Add a line of the level `INFO` to the log that is stored with the attempt, and to no other log. The job's page and
    /// `tickr jobs log` show it. The log keeps the newest 16 KiB of lines. Line breaks are written as `\n`, and a line of
    /// more than 4 KiB is cut.
    ///
    /// The lines of `tracing` and of `log` get there by themselves. This is for handlers that use neither.
    ///
    /// ```
    /// # let ctx = tickr_handlers::Context::detached("import");
    /// ctx.log(format_args!("read {} of {} rows", 200, 1_000));
    /// ```
    pub fn log(&self, message: impl Display) {
        self.parts.log.write(Level::INFO, message);
    }

    /// Make `work` write its lines for this attempt. For a task that the handler starts, because a spawned task does not
    /// inherit this: its lines would name no job and would not be stored with the attempt.
    ///
    /// ```no_run
    /// # async fn work() {}
    /// # async fn handler(ctx: tickr_handlers::Context) {
    /// let task = tokio::spawn(ctx.in_scope(async {
    ///     tracing::info!("a line of this attempt");
    /// }));
    /// # let _ = task.await;
    /// # }
    /// ```
    pub fn in_scope<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        let ContextParts { job, kind, queue, attempt, trace, log, .. } = &*self.parts;
        let scope = LogScope::Attempt {
            job: *job,
            kind: kind.clone(),
            queue: queue.clone(),
            attempt: *attempt,
            span_context: trace.as_ref().map(|context| context.span_context),
            log: log.clone(),
        };
        in_log_scope(scope, work)
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
