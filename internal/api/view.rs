//! Jobs and attempts as the API shows them.

use std::collections::BTreeMap;

use chrono::SecondsFormat;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::handlers::Kind as _;
use crate::handlers::http::{HttpCallback, exchange_of_success};
use crate::job::{
    Attempt, DeadLetter, Exchange, ExchangeResponse, Job, JobId, NewJob, Progress, RetryPolicy, ScheduledBy, Standing,
    State, Timestamp, TraceContext, Verdict,
};
use crate::store::Accepted;

/// RFC 3339 in UTC with milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment(pub(super) Timestamp);

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.to_rfc3339_opts(SecondsFormat::Millis, true))
    }
}

/// Backoff of a job: `min(base_ms × factor^(n−1), cap_ms)` after the n-th failure, ± `jitter`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RetryView {
    /// Delay after the first failure.
    #[schema(example = 1000, minimum = 1, maximum = 86_400_000)]
    pub(super) base_ms: u64,
    /// Growth from one delay to the next.
    #[serde(default = "two")]
    #[schema(minimum = 1, maximum = 100)]
    pub(super) factor: f64,
    /// Longest delay.
    #[serde(default = "minute")]
    #[schema(minimum = 1, maximum = 604_800_000)]
    pub(super) cap_ms: u64,
    /// Share by which a delay varies in both directions.
    #[serde(default = "tenth")]
    #[schema(minimum = 0, maximum = 1)]
    pub(super) jitter: f64,
}

fn two() -> f64 {
    RetryPolicy::default().factor
}

fn minute() -> u64 {
    RetryPolicy::default().cap_ms
}

fn tenth() -> f64 {
    RetryPolicy::default().jitter
}

impl From<RetryView> for RetryPolicy {
    fn from(view: RetryView) -> Self {
        Self { base_ms: view.base_ms, factor: view.factor, cap_ms: view.cap_ms, jitter: view.jitter }
    }
}

impl From<RetryPolicy> for RetryView {
    fn from(policy: RetryPolicy) -> Self {
        Self { base_ms: policy.base_ms, factor: policy.factor, cap_ms: policy.cap_ms, jitter: policy.jitter }
    }
}

/// W3C Trace Context. What cannot be read as such is taken for nothing.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TraceView {
    /// `00-<trace id>-<span id>-<flags>`.
    #[schema(example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
    pub(super) traceparent: String,
    /// What other tracing systems want to find again, 512 bytes at the most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tracestate: Option<String>,
}

impl From<TraceContext> for TraceView {
    fn from(context: TraceContext) -> Self {
        Self { traceparent: context.place.to_string(), tracestate: context.state }
    }
}

impl TraceView {
    pub(super) fn context(&self) -> Option<TraceContext> {
        TraceContext::parse(&self.traceparent, self.tracestate.as_deref())
    }
}

/// A job.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct JobView {
    /// UUIDv7.
    pub(super) id: String,
    pub(super) kind: String,
    pub(super) queue: String,
    /// 0 runs first, 9 last.
    pub(super) priority: u8,
    #[schema(value_type = StateWord)]
    pub(super) state: State,
    /// The handler's input. Left out of listings.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(super) payload: Option<Box<RawValue>>,
    /// Attempts that count against `max_attempts`, the running one included.
    pub(super) attempt: u32,
    pub(super) max_attempts: u32,
    /// Time limit of one attempt, if the job has its own.
    pub(super) timeout_ms: Option<u64>,
    /// Backoff, if the job has its own.
    pub(super) retry: Option<RetryView>,
    pub(super) unique_key: Option<String>,
    /// The schedule that it comes from, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) schedule: Option<ScheduledByView>,
    /// Words to find it again. Left out when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(super) tags: Vec<String>,
    /// The trace that its attempts continue, if whoever enqueued it came with one or tickr records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) trace: Option<TraceView>,
    #[schema(value_type = String, format = DateTime)]
    pub(super) created_at: Moment,
    /// When it is, or last was, due.
    #[schema(value_type = String, format = DateTime)]
    pub(super) execute_at: Moment,
    /// Start of the open or last attempt.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(super) started_at: Option<Moment>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(super) finished_at: Option<Moment>,
    /// When a stop of the running attempt was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(super) cancel_requested_at: Option<Moment>,
    /// Why the last unsuccessful attempt ended; null once the job completed.
    pub(super) last_error: Option<String>,
    /// What the handler returned; null when it has not, or returned nothing. Left out of listings.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(super) result: Option<Option<Box<RawValue>>>,
    /// How far the running attempt says it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) progress: Option<ProgressView>,
    /// The failed job that it was made of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) replay_of: Option<String>,
    /// Of a failed job: its group, and what became of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dead_letter: Option<DeadLetterView>,
    /// In the answer to an enqueue: what stands in the way of the job as things are. Left out when nothing does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(super) warnings: Vec<String>,
    /// Every attempt in order, the open one last. Left out of listings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) attempts: Option<Vec<AttemptView>>,
}

/// As much of a job as the caller may see.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum SeenJob {
    /// All of it.
    Own(Box<JobView>),
    /// Of another producer's job.
    Foreign(ForeignJobView),
}

/// Another producer's job, as a key with the scope `enqueue` sees it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ForeignJobView {
    /// UUIDv7.
    id: String,
    #[schema(value_type = StateWord)]
    state: State,
    /// Always true: there is more to the job than this key may see.
    foreign: bool,
}

impl ForeignJobView {
    pub(super) fn of(id: JobId, state: State) -> Self {
        Self { id: id.to_string(), state, foreign: true }
    }
}

/// The tick of a schedule.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ScheduledByView {
    /// The schedule's name.
    pub(super) name: String,
    /// When it was due, or when somebody pulled the trigger.
    #[schema(value_type = String, format = DateTime)]
    pub(super) tick_at: Moment,
}

impl From<ScheduledBy> for ScheduledByView {
    fn from(by: ScheduledBy) -> Self {
        Self { name: by.name.to_string(), tick_at: Moment(by.tick_at) }
    }
}

/// A failed job as a dead letter.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DeadLetterView {
    /// Failures with the same cause: 16 hex digits. See `/v1/dead/groups`.
    pub(super) fingerprint: String,
    #[schema(value_type = String, format = DateTime)]
    pub(super) failed_at: Moment,
    #[schema(value_type = StandingWord)]
    pub(super) standing: Standing,
    /// Since when it stands so.
    #[schema(value_type = String, format = DateTime)]
    pub(super) since: Moment,
    /// The job that was made of it.
    pub(super) replayed_as: Option<String>,
    /// Who replayed or discarded it.
    pub(super) by: Option<String>,
    /// Why it was discarded.
    pub(super) reason: Option<String>,
}

impl From<DeadLetter> for DeadLetterView {
    fn from(letter: DeadLetter) -> Self {
        Self {
            fingerprint: letter.fingerprint.to_string(),
            failed_at: Moment(letter.failed_at),
            standing: letter.standing,
            since: Moment(letter.since),
            replayed_as: letter.replayed_as.map(|id| id.to_string()),
            by: letter.by,
            reason: letter.reason,
        }
    }
}

/// What became of a dead letter.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used; the value is the domain's own type")]
pub(super) enum StandingWord {
    Open,
    Replayed,
    Discarded,
}

/// How far a running attempt says it is.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ProgressView {
    /// 0 to 100.
    pub(super) percent: f64,
    /// A few words.
    pub(super) note: Option<String>,
}

impl From<Progress> for ProgressView {
    fn from(Progress { percent, note }: Progress) -> Self {
        Self { percent, note }
    }
}

/// One execution of a job.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AttemptView {
    /// 1 for the first; every execution counts here.
    pub(super) number: u32,
    /// The process that ran it.
    pub(super) runner: String,
    #[schema(value_type = String, format = DateTime)]
    pub(super) execute_at: Moment,
    #[schema(value_type = String, format = DateTime)]
    pub(super) started_at: Moment,
    /// Null while it runs.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(super) finished_at: Option<Moment>,
    /// Null while it runs.
    #[schema(value_type = Option<VerdictWord>)]
    pub(super) verdict: Option<Verdict>,
    pub(super) error: Option<String>,
    /// Only on a lost attempt: what its runner reported after its lease had been taken away. Evidence, without effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) late_note: Option<String>,
    /// Of an `http` job: what was sent and what came back, without credentials. Absent when it never came to a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exchange: Option<ExchangeView>,
}

/// A request to another service, and its answer.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ExchangeView {
    #[schema(example = "POST")]
    method: String,
    /// Without the values of its query and what looks like a token in its path: `***` stands for them.
    #[schema(example = "https://example.com/orders?key=***")]
    url: String,
    /// How long the answer, or its absence, took; null when the attempt was stopped before.
    took_ms: Option<u64>,
    /// Null when none came; `error` of the attempt says why.
    response: Option<ExchangeResponseView>,
}

/// The answer.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ExchangeResponseView {
    status: u16,
    /// Those that help to find a cause, in lower case.
    headers: BTreeMap<String, String>,
    /// The first 2,000 bytes, as text. What was sent as a credential and came back is `***`.
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

/// Where a job is in its life.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used; the value is the domain's own type")]
pub(super) enum StateWord {
    Waiting,
    Executing,
    Retrying,
    Completed,
    Failed,
    Cancelled,
}

/// What an attempt came to.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used; the value is the domain's own type")]
pub(super) enum VerdictWord {
    Succeeded,
    Failed,
    Rejected,
    TimedOut,
    Panicked,
    Cancelled,
    Interrupted,
    Lost,
    Snoozed,
}

impl JobView {
    /// A job that was accepted a moment ago.
    pub(super) fn accepted(job: &NewJob, accepted: &Accepted, warnings: Vec<String>) -> Self {
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
            retry: job.options.retry.map(Into::into),
            unique_key: job.unique_key.clone(),
            schedule: job.options.schedule.clone().map(Into::into),
            tags: job.options.tags.iter().map(ToString::to_string).collect(),
            trace: job.options.trace.clone().map(Into::into),
            created_at: Moment(accepted.created_at),
            execute_at: Moment(accepted.execute_at),
            started_at: None,
            finished_at: None,
            cancel_requested_at: None,
            last_error: None,
            result: Some(None),
            progress: None,
            replay_of: job.options.replay_of.map(|id| id.to_string()),
            dead_letter: None,
            warnings,
            attempts: Some(Vec::new()),
        }
    }

    /// A job read from the store, with its attempts unless it is one of many.
    pub(super) fn read(job: Job, mut attempts: Option<Vec<Attempt>>) -> Self {
        // A success keeps its answer once, as the result.
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
            retry: job.options.retry.map(Into::into),
            unique_key: job.unique_key,
            schedule: job.options.schedule.map(Into::into),
            tags: job.options.tags.iter().map(ToString::to_string).collect(),
            trace: job.options.trace.map(Into::into),
            created_at: Moment(job.created_at),
            execute_at: Moment(job.execute_at),
            started_at: job.started_at.map(Moment),
            finished_at: job.finished_at.map(Moment),
            cancel_requested_at: job.cancel_requested_at.map(Moment),
            last_error: job.last_error,
            result: attempts.is_some().then_some(job.result),
            progress: job.progress.map(ProgressView::from),
            replay_of: job.options.replay_of.map(|id| id.to_string()),
            dead_letter: job.letter.map(DeadLetterView::from),
            warnings: Vec::new(),
            attempts: attempts.map(|attempts| attempts.into_iter().map(AttemptView::from).collect()),
        }
    }
}

impl From<Attempt> for AttemptView {
    fn from(attempt: Attempt) -> Self {
        Self {
            number: attempt.number,
            runner: attempt.runner.to_string(),
            execute_at: Moment(attempt.execute_at),
            started_at: Moment(attempt.started_at),
            finished_at: attempt.finished_at.map(Moment),
            verdict: attempt.verdict,
            error: attempt.error,
            late_note: attempt.late_note,
            exchange: attempt.exchange.map(ExchangeView::from),
        }
    }
}
