//! The JSON form of jobs and attempts.

use std::collections::BTreeMap;

use chrono::SecondsFormat;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use tickr_handlers::Kind as _;
use tickr_handlers::http::{HttpCallback, exchange_of_success};
use tickr_job::{
    Attempt, Checkpoint, DeadLetter, DeadLetterStatus, Exchange, ExchangeResponse, Job, JobId, NewJob, OnFailure,
    OnParentFailure, Progress, RetryPolicy, RetryRequest, ScheduledBy, State, Timestamp, TraceContext, UniqueUntil,
    Verdict,
};
use tickr_store::Accepted;

/// A time, written as RFC 3339 in UTC with milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(pub(crate) Timestamp);

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.to_rfc3339_opts(SecondsFormat::Millis, true))
    }
}

/// Backoff of a job. The delay after the n-th failure is `min(base_ms × factor^(n−1), cap_ms)`, or the n-th one of
/// `delays_ms`, varied by ± `jitter`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryView {
    /// Delay after the first failure, in milliseconds. Default: that of the kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = 1000, minimum = 1, maximum = 86_400_000)]
    pub(crate) base_ms: Option<u64>,
    /// Factor from one delay to the next. Default: that of the kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100)]
    pub(crate) factor: Option<f64>,
    /// Maximum delay, in milliseconds. Default: that of the kind, or `base_ms` if that is longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 604_800_000)]
    pub(crate) cap_ms: Option<u64>,
    /// Share by which a delay varies in both directions: 0.1 means ± 10 %. Default: that of the kind, and 0 with
    /// `delays_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1)]
    pub(crate) jitter: Option<f64>,
    /// Delays after the first failure, the second, and so on, in milliseconds. The last one repeats. Not together with
    /// `base_ms`, `factor` or `cap_ms`. With it, `max_attempts` is one more than there are delays by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1, max_items = 100, example = json!([1000, 2000, 4000]))]
    pub(crate) delays_ms: Option<Vec<u64>>,
}

impl From<RetryView> for RetryRequest {
    fn from(view: RetryView) -> Self {
        let RetryView { base_ms, factor, cap_ms, jitter, delays_ms } = view;
        Self { base_ms, factor, cap_ms, jitter, delays_ms }
    }
}

impl From<RetryRequest> for RetryView {
    fn from(retry: RetryRequest) -> Self {
        let RetryRequest { base_ms, factor, cap_ms, jitter, delays_ms } = retry;
        Self { base_ms, factor, cap_ms, jitter, delays_ms }
    }
}

impl From<RetryPolicy> for RetryView {
    fn from(policy: RetryPolicy) -> Self {
        RetryRequest::from(policy).into()
    }
}

/// W3C Trace Context. An invalid one is ignored.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TraceView {
    /// `00-<trace id>-<span id>-<flags>`.
    #[schema(example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
    pub(crate) traceparent: String,
    /// State of other tracing systems, 512 bytes at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tracestate: Option<String>,
}

impl From<TraceContext> for TraceView {
    fn from(context: TraceContext) -> Self {
        Self { traceparent: context.span_context.to_string(), tracestate: context.state }
    }
}

impl TraceView {
    pub(crate) fn context(&self) -> Option<TraceContext> {
        TraceContext::parse(&self.traceparent, self.tracestate.as_deref())
    }
}

/// A job.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobView {
    /// Id of the job, a UUIDv7.
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) queue: String,
    /// Priority within the queue: 0 runs first, 9 last.
    pub(crate) priority: u8,
    #[schema(value_type = StateWord)]
    pub(crate) state: State,
    /// Input of the handler. Left out of listings.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) payload: Option<Box<RawValue>>,
    /// Attempts used: those that count against `max_attempts`, the running one included.
    pub(crate) attempt: u32,
    pub(crate) max_attempts: u32,
    /// Time limit of one attempt, in milliseconds; null for that of the kind. For a declared kind it is the one that
    /// the declaration had when the job was accepted.
    pub(crate) timeout_ms: Option<u64>,
    /// Backoff of the job; null for that of the kind, as with the time limit.
    pub(crate) retry: Option<RetryView>,
    pub(crate) unique_key: Option<String>,
    /// Set to `start` if the job gives up its unique key once it has started. Left out otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<UniqueUntilWord>)]
    pub(crate) unique_until: Option<UniqueUntil>,
    /// The unique key stays taken for at least this long after the job was accepted, in milliseconds. Left out when it
    /// is taken until the job ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unique_for_ms: Option<u64>,
    /// Requests with the same unique key put the job off at most until this long after it was accepted, in milliseconds.
    /// Left out when there is no such limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_wait_ms: Option<u64>,
    /// Order key. Left out when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) order_key: Option<String>,
    /// Limit key. Left out when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit_key: Option<String>,
    /// Host that the job calls, by which limits that are shared by host count it. Left out when its kind knows none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    /// What the final failure of the job does to the jobs behind it. Left out without an order key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<OnFailureWord>)]
    pub(crate) on_failure: Option<OnFailure>,
    /// True while the job waits for its turn: for a job in front of it with the same order key, for a limit, or for its
    /// parents. Left out otherwise, and in the response to an enqueue.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub(crate) held: bool,
    /// Parents of the job: it waits or waited for their ends. Left out when there are none, and for an API key with the
    /// scope `work`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) after: Vec<String>,
    /// What happens to the job when a parent does not complete. Left out without parents.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<OnParentFailureWord>)]
    pub(crate) on_parent_failure: Option<OnParentFailure>,
    /// Batch that counts the job. Left out when there is none, and for an API key with the scope `work`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) batch: Option<String>,
    /// Batch of which the job is a callback. Left out of other jobs, and for an API key with the scope `work`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) callback_of: Option<String>,
    /// Schedule and tick that made the job. Left out of other jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) schedule: Option<ScheduledByView>,
    /// Tags to find the job by. Left out when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) tags: Vec<String>,
    /// Trace that the attempts continue. It exists if the client sent one or tickr records traces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace: Option<TraceView>,
    #[schema(value_type = String, format = DateTime)]
    pub(crate) created_at: Moment,
    /// Due time of the next attempt, or of the last one.
    #[schema(value_type = String, format = DateTime)]
    pub(crate) execute_at: Moment,
    /// Time from which on no attempt starts any more. An operator's retry runs the job after it as well. Left out if the
    /// job does not expire.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) expires_at: Option<Moment>,
    /// Start of the running attempt, or of the last one that started; null when none has.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) started_at: Option<Moment>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) finished_at: Option<Moment>,
    /// Time of the request to stop the running attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) cancel_requested_at: Option<Moment>,
    /// Error of the last unsuccessful attempt; null once the job has completed.
    pub(crate) last_error: Option<String>,
    /// Result of the handler; null when there is none. Left out of listings.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) result: Option<Option<Box<RawValue>>>,
    /// Progress that the running attempt reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) progress: Option<ProgressView>,
    /// While another system works on the running attempt: the time at which the attempt times out, unless the system
    /// reports on it or finishes it before. Left out of listings.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) deferred_until: Option<Moment>,
    /// Newest checkpoint that the handler saved, with which the next attempt begins; until the job completes. Left out of
    /// listings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) checkpoint: Option<CheckpointView>,
    /// Id of the failed job that this job replays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) replay_of: Option<String>,
    /// The dead letter of a failed job: its group and its status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dead_letter: Option<DeadLetterView>,
    /// Only in the response to an enqueue: reasons why the job would not run at present. Left out when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) warnings: Vec<String>,
    /// Attempts in order, the running one last. A `number` without an attempt belongs to a cancel before the start. Of
    /// more than 1,000 ended attempts and such cancels, those before the last 1,000 are left out. Left out of listings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attempts: Option<Vec<AttemptView>>,
}

/// What the final failure of a job does to the jobs behind it with the same order key.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used; the value is the domain's own type")]
pub(crate) enum OnFailureWord {
    Block,
    Skip,
}

/// What happens to a job when a parent does not complete.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used; the value is the domain's own type")]
pub(crate) enum OnParentFailureWord {
    Cancel,
    Run,
    Hold,
}

/// The time at which a job gives up its unique key.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used; the value is the domain's own type")]
pub(crate) enum UniqueUntilWord {
    End,
    Start,
}

/// The part of a job that the caller may see.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum SeenJob {
    /// The whole job.
    Own(Box<JobView>),
    /// Id and state of another producer's job.
    Foreign(ForeignJobView),
}

/// The view of another producer's job for a key with the scope `enqueue`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ForeignJobView {
    /// Id of the job, a UUIDv7.
    id: String,
    #[schema(value_type = StateWord)]
    state: State,
    /// Always true: the job has more fields than this API key may see.
    foreign: bool,
}

impl ForeignJobView {
    pub(crate) fn new(id: JobId, state: State) -> Self {
        Self { id: id.to_string(), state, foreign: true }
    }
}

/// The tick of a schedule.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ScheduledByView {
    /// Name of the schedule.
    pub(crate) name: String,
    /// Due time of the tick, or the time at which the schedule was triggered by hand.
    #[schema(value_type = String, format = DateTime)]
    pub(crate) tick_at: Moment,
}

impl From<ScheduledBy> for ScheduledByView {
    fn from(by: ScheduledBy) -> Self {
        Self { name: by.name.to_string(), tick_at: Moment(by.tick_at) }
    }
}

/// A failed job as a dead letter.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeadLetterView {
    /// Fingerprint of the group of dead letters with the same cause: 16 hexadecimal digits. See
    /// `/v1/dead-letters/groups`.
    pub(crate) fingerprint: String,
    #[schema(value_type = String, format = DateTime)]
    pub(crate) failed_at: Moment,
    #[schema(value_type = DeadLetterStatusWord)]
    pub(crate) status: DeadLetterStatus,
    /// Time since which it has this status.
    #[schema(value_type = String, format = DateTime)]
    pub(crate) since: Moment,
    /// Id of the job that replayed it.
    pub(crate) replayed_as: Option<String>,
    /// Caller that replayed or discarded it.
    pub(crate) by: Option<String>,
    /// Reason of the discard.
    pub(crate) reason: Option<String>,
}

impl From<DeadLetter> for DeadLetterView {
    fn from(dead_letter: DeadLetter) -> Self {
        Self {
            fingerprint: dead_letter.fingerprint.to_string(),
            failed_at: Moment(dead_letter.failed_at),
            status: dead_letter.status,
            since: Moment(dead_letter.since),
            replayed_as: dead_letter.replayed_as.map(|id| id.to_string()),
            by: dead_letter.by,
            reason: dead_letter.reason,
        }
    }
}

/// The status of a dead letter.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used; the value is the domain's own type")]
pub(crate) enum DeadLetterStatusWord {
    Open,
    Replayed,
    Discarded,
}

/// The progress that a running attempt reported.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProgressView {
    /// Progress in percent, 0 to 100.
    pub(crate) percent: f64,
    /// Short description of the progress.
    pub(crate) note: Option<String>,
}

impl From<Progress> for ProgressView {
    fn from(Progress { percent, note }: Progress) -> Self {
        Self { percent, note }
    }
}

/// JSON that a handler saved while it ran.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CheckpointView {
    /// The JSON, at most 64 KiB.
    #[schema(value_type = serde_json::Value)]
    pub(crate) content: Box<RawValue>,
    /// Time when it was saved.
    #[schema(value_type = String, format = DateTime)]
    pub(crate) saved_at: Moment,
}

impl From<Checkpoint> for CheckpointView {
    fn from(Checkpoint { content, saved_at }: Checkpoint) -> Self {
        Self { content, saved_at: Moment(saved_at) }
    }
}

/// One execution of a job. The expiry of a job is listed as well, with the verdict `expired`: nothing was executed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AttemptView {
    /// Number of the attempt. The first is 1; every execution counts here.
    pub(crate) number: u32,
    /// Id of the runner that executed it, or that ended the job when it expired.
    pub(crate) runner: String,
    #[schema(value_type = String, format = DateTime)]
    pub(crate) execute_at: Moment,
    /// Null when the job expired.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) started_at: Option<Moment>,
    /// Null while the attempt is running.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) finished_at: Option<Moment>,
    /// Null while the attempt is running.
    #[schema(value_type = Option<VerdictWord>)]
    pub(crate) verdict: Option<Verdict>,
    pub(crate) error: Option<String>,
    /// Only on a lost attempt: the verdict that its runner reported after its lease had been taken away. It is kept as
    /// evidence and changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) late_note: Option<String>,
    /// Only for `http` jobs: the request and the response, without credentials. Left out when no request was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exchange: Option<ExchangeView>,
    /// Size of the log in bytes. Left out when the attempt has none: it wrote no line, it has not ended, or it was lost.
    /// `/v1/jobs/{id}/attempts/{number}/log` returns the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 16384)]
    pub(crate) log_bytes: Option<u32>,
}

/// A request to another service, and its response.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ExchangeView {
    #[schema(example = "POST")]
    method: String,
    /// URL of the request. `***` stands for the values of its query and for parts of its path that look like tokens.
    #[schema(example = "https://example.com/orders?key=***")]
    url: String,
    /// Time until the response or the failure, in milliseconds; null when the attempt was stopped before.
    took_ms: Option<u64>,
    /// Response; null when none came. `error` of the attempt then says why.
    response: Option<ExchangeResponseView>,
}

/// The response of another service.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ExchangeResponseView {
    status: u16,
    /// Headers that help to find a cause, with names in lower case.
    headers: BTreeMap<String, String>,
    /// First 2,000 bytes of the body, as text. Credentials of the request that the body repeats are replaced by `***`.
    body: String,
}

impl From<Exchange> for ExchangeView {
    fn from(exchange: Exchange) -> Self {
        let response = |response: ExchangeResponse| ExchangeResponseView {
            status: response.status,
            headers: response.headers,
            body: response.body,
        };
        let Exchange { method, url, took_ms, response: answer } = exchange;
        Self { method, url, took_ms, response: answer.map(response) }
    }
}

/// The state of a job.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used; the value is the domain's own type")]
pub(crate) enum StateWord {
    Waiting,
    Executing,
    Retrying,
    Completed,
    Failed,
    Cancelled,
}

/// The verdict on an attempt.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used; the value is the domain's own type")]
pub(crate) enum VerdictWord {
    Succeeded,
    Failed,
    Rejected,
    TimedOut,
    Panicked,
    Cancelled,
    Interrupted,
    Lost,
    Snoozed,
    Expired,
}

impl JobView {
    /// Build the view of a job that was just accepted.
    pub(crate) fn accepted(job: &NewJob, accepted: &Accepted, warnings: Vec<String>) -> Self {
        Self {
            id: job.id.to_string(),
            kind: job.kind.to_string(),
            queue: job.queue.to_string(),
            priority: job.priority.level(),
            state: State::Waiting,
            payload: Some(job.payload.clone()),
            attempt: 0,
            max_attempts: job.max_attempts,
            timeout_ms: job.options.timeout_ms,
            retry: job.options.retry.clone().map(RetryView::from),
            unique_key: job.unique_key.clone(),
            unique_until: Some(job.options.unique_until).filter(|until| *until == UniqueUntil::Start),
            unique_for_ms: job.options.unique_for_ms,
            max_wait_ms: job.options.max_wait_ms,
            order_key: job.options.order.as_ref().map(|order| order.key.clone()),
            limit_key: job.options.limit_key.clone(),
            host: job.host.clone(),
            on_failure: job.options.order.as_ref().map(|order| order.on_failure),
            held: accepted.held,
            after: job.options.after.iter().map(ToString::to_string).collect(),
            on_parent_failure: Some(job.options.on_parent_failure).filter(|_| !job.options.after.is_empty()),
            batch: job.options.batch.map(|id| id.to_string()),
            callback_of: job.options.callback_of.map(|id| id.to_string()),
            schedule: job.options.schedule.clone().map(Into::into),
            tags: job.options.tags.iter().map(ToString::to_string).collect(),
            trace: job.options.trace.clone().map(Into::into),
            created_at: Moment(accepted.created_at),
            execute_at: Moment(accepted.execute_at),
            expires_at: job.expires_at(accepted.created_at).map(Moment),
            started_at: None,
            finished_at: None,
            cancel_requested_at: None,
            last_error: None,
            result: Some(None),
            progress: None,
            deferred_until: None,
            checkpoint: None,
            replay_of: job.options.replay_of.map(|id| id.to_string()),
            dead_letter: None,
            warnings,
            attempts: Some(Vec::new()),
        }
    }

    /// Build the view of a job from the store. `attempts` is `None` in listings.
    pub(crate) fn read(job: Job, mut attempts: Option<Vec<Attempt>>) -> Self {
        // MySQL stores the response of a successful `http` job only once, as the result.
        let last = attempts.as_mut().and_then(|attempts| attempts.last_mut());
        if let Some(last) = last.filter(|last| last.verdict == Some(Verdict::Succeeded)) {
            let both = job.payload.as_ref().zip(job.result.as_ref());
            let both = both.filter(|_| job.kind.as_str() == HttpCallback::NAME);
            last.exchange = both.and_then(|(payload, result)| exchange_of_success(payload, result));
        }
        Self {
            id: job.id.to_string(),
            kind: job.kind.to_string(),
            queue: job.queue.to_string(),
            priority: job.priority.level(),
            state: job.state,
            payload: job.payload,
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            timeout_ms: job.options.timeout_ms,
            retry: job.options.retry.map(RetryView::from),
            unique_key: job.unique_key,
            unique_until: Some(job.options.unique_until).filter(|until| *until == UniqueUntil::Start),
            unique_for_ms: job.options.unique_for_ms,
            max_wait_ms: job.options.max_wait_ms,
            on_failure: job.options.order.as_ref().map(|order| order.on_failure),
            order_key: job.options.order.map(|order| order.key),
            limit_key: job.options.limit_key,
            host: job.host,
            held: job.held,
            on_parent_failure: Some(job.options.on_parent_failure).filter(|_| !job.options.after.is_empty()),
            after: job.options.after.iter().map(ToString::to_string).collect(),
            batch: job.options.batch.map(|id| id.to_string()),
            callback_of: job.options.callback_of.map(|id| id.to_string()),
            schedule: job.options.schedule.map(Into::into),
            tags: job.options.tags.iter().map(ToString::to_string).collect(),
            trace: job.options.trace.map(Into::into),
            created_at: Moment(job.created_at),
            execute_at: Moment(job.execute_at),
            expires_at: job.options.expires_at.map(Moment),
            started_at: job.started_at.map(Moment),
            finished_at: job.finished_at.map(Moment),
            cancel_requested_at: job.cancel_requested_at.map(Moment),
            last_error: job.last_error,
            result: attempts.is_some().then_some(job.result),
            progress: job.progress.map(ProgressView::from),
            deferred_until: job.deferred_until.map(Moment),
            checkpoint: job.checkpoint.map(CheckpointView::from),
            replay_of: job.options.replay_of.map(|id| id.to_string()),
            dead_letter: job.dead_letter.map(DeadLetterView::from),
            warnings: Vec::new(),
            attempts: attempts.map(|attempts| attempts.into_iter().map(AttemptView::from).collect()),
        }
    }

    /// Leave out the parents of the job and its batches.
    pub(crate) fn without_links(self) -> Self {
        Self { after: Vec::new(), batch: None, callback_of: None, ..self }
    }
}

impl From<Attempt> for AttemptView {
    fn from(attempt: Attempt) -> Self {
        Self {
            number: attempt.number,
            runner: attempt.runner.to_string(),
            execute_at: Moment(attempt.execute_at),
            started_at: attempt.started_at.map(Moment),
            finished_at: attempt.finished_at.map(Moment),
            verdict: attempt.verdict,
            error: attempt.error,
            late_note: attempt.late_note,
            exchange: attempt.exchange.map(ExchangeView::from),
            log_bytes: attempt.log_bytes,
        }
    }
}
