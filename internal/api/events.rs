//! Server-sent events: `/v1/jobs/{id}/events` follows one job to its end, `/v1/events` the whole cluster.
//!
//! The events of a job are derived from the store, so that none of its attempts is missed, whichever runners execute
//! them. The events of the cluster are sent by the runners as they happen and may have gaps; the stream reports each
//! gap.

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::sse::{Event as Message, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use utoipa::{IntoParams, ToSchema};

use crate::Api;
use crate::http::auth::PermitOwner;
use crate::http::body::{IdPath, QueryParams};
use crate::http::caller::Requester;
use crate::http::problem::{Code, Problem};
use crate::http::revocation::RequestRight;
use crate::http::shares::RequestPermit;
use crate::view::{Moment, StateWord, VerdictWord};
use tickr_broker::{Delivery, EventType, Listener, PastEvents, PastPage, PublishedEvent, StreamPosition, Watch};
use tickr_job::{Attempt, Job, JobId, Name, State as JobState, Timestamp, Verdict};

/// Interval of keep-alive comments on a stream without events.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Number of times that a client may fall behind before its stream ends.
const MAX_LAGS: usize = 3;
/// Header that keeps proxies from buffering a stream until it ends.
const ACCEL: HeaderName = HeaderName::from_static("x-accel-buffering");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The id of the last event that a client has received, if the client reconnects.
pub(super) struct LastEventId(Option<String>);

impl<S: Send + Sync> FromRequestParts<S> for LastEventId {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let given = parts.headers.get(LAST_EVENT_ID).and_then(|value| value.to_str().ok());
        Ok(Self(given.map(|given| given.trim().to_owned()).filter(|given| !given.is_empty())))
    }
}

/// Take the permit of a stream.
fn take_permit(api: &Api, sharing: &PermitOwner) -> Result<RequestPermit, Problem> {
    if *api.stopping.borrow() {
        return Err(Problem::new(
            Code::Stopping,
            "this runner is stopping and opens no more streams; use another runner",
        ));
    }
    api.streams.take(sharing.0).map_err(|full| full.problem("streams of events", "TICKR_HTTP_STREAMS"))
}

fn answer(messages: impl Stream<Item = Result<Message, Infallible>> + Send + 'static) -> Response {
    let stream = Sse::new(messages).keep_alive(KeepAlive::new().interval(HEARTBEAT));
    ([(ACCEL, HeaderValue::from_static("no"))], stream).into_response()
}

fn message(kind: &str, id: Option<String>, data: &impl Serialize) -> Message {
    let message = Message::default().event(kind).data(serde_json::to_string(data).unwrap_or_default());
    match id {
        Some(id) => message.id(id),
        None => message,
    }
}

/// Event `state`: the state of the job. Sent at the beginning and whenever one of these fields changes.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(super) struct StateEvent {
    /// Time of the event, by the clock of the database.
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    #[schema(value_type = StateWord)]
    state: JobState,
    /// Due time of the next attempt, or of the last one.
    #[schema(value_type = String, format = DateTime)]
    execute_at: Moment,
    priority: u8,
    /// Attempts used: those that count against `max_attempts`.
    attempt: u32,
    /// Time of the request to stop the running attempt.
    #[schema(value_type = Option<String>, format = DateTime)]
    cancel_requested_at: Option<Moment>,
}

/// Event `attempt`: an attempt has started or ended, or the job has expired.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AttemptEvent {
    /// Number of the attempt. The first is 1; every execution counts here.
    number: u32,
    /// Id of the runner that executes it, or that ended the job when it expired.
    runner: String,
    /// Null when the job expired.
    #[schema(value_type = Option<String>, format = DateTime)]
    started_at: Option<Moment>,
    /// Null when the event reports the start.
    #[schema(value_type = Option<String>, format = DateTime)]
    finished_at: Option<Moment>,
    /// Null when the event reports the start.
    #[schema(value_type = Option<VerdictWord>)]
    verdict: Option<Verdict>,
}

/// Event `progress`: the progress that the running attempt reported.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ProgressEvent {
    /// Time of the event, by the clock of the database.
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    #[schema(minimum = 0, maximum = 100)]
    percent: f64,
    note: Option<String>,
}

/// Event `end`: the job has ended. It is the last event of the stream.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EndEvent {
    #[schema(value_type = StateWord)]
    state: JobState,
    #[schema(value_type = Option<String>, format = DateTime)]
    finished_at: Option<Moment>,
}

/// Follow a job to its end
///
/// A stream of `state`, `attempt` and `progress` events, and one `end` event, after which it closes. Each start and end
/// of an attempt has an id. With `Last-Event-ID` the stream continues after that event, and none of them is missed. 204
/// when that event was the `end`. Later versions may add event types and fields: ignore what you do not know. Payloads,
/// results and errors are not sent.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/events", tag = "events", operation_id = "job_events",
    params(
        ("id" = Uuid, Path, description = "The job's id"),
        ("Last-Event-ID" = Option<String>, Header, description = "Id of the last event that the client received; the stream continues after it"),
    ),
    responses(
        (status = 200, description = "The events: `StateEvent`, `AttemptEvent`, `ProgressEvent` and `EndEvent` as their data", body = String, content_type = "text/event-stream"),
        (status = 204, description = "The client has already received the end of the job"),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
        (status = 429, description = "overloaded: too many streams or connections", body = Problem),
        (status = 503, description = "store_unavailable, stopping", body = Problem),
    )
)]
pub(super) async fn of_job(
    State(api): State<Api>,
    asker: Requester,
    (sharing, pass): (PermitOwner, RequestRight),
    IdPath(id): IdPath,
    LastEventId(last): LastEventId,
) -> Result<Response, Problem> {
    let permit = take_permit(&api, &sharing)?;
    // Watch before the first read, so that a change between the two is not missed.
    let watch = api.watches.watch(id);
    let (job, attempts) = api.broker.store().job(id).await?.ok_or_else(|| Problem::not_found("job", id))?;
    asker.require_access(&job)?;
    let mut reported = ReportedState::after(last.as_deref());
    if job.state.is_end() && last.is_some_and(|last| last == end_id(&job, &attempts)) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let messages = reported.next_events(&job, &attempts, api.broker.store().clock().now());
    let stream = JobStream {
        stopping: api.stopping.clone(),
        over: job.state.is_end(),
        api,
        id,
        watch,
        pass,
        reported,
        messages,
        _permit: permit,
    };
    Ok(answer(stream::unfold(stream, JobStream::next)))
}

/// The part of the history of a job that the stream has sent.
#[derive(Debug, Default)]
struct ReportedState {
    /// The last attempt whose end was sent.
    ended: u32,
    /// The last attempt whose start was sent.
    begun: u32,
    /// The time of that start in Unix milliseconds, which its id has too. Absent after other ids.
    begun_at: Option<i64>,
    state: Option<StateEvent>,
    progress: Option<(f64, Option<String>)>,
}

/// Return the id of the `end` event of a job. After a retry, the job ends with another id.
fn end_id(job: &Job, attempts: &[Attempt]) -> String {
    let last = attempts.last().map_or(0, |attempt| attempt.number);
    format!("{last}.end.{}", job.finished_at.map_or(0, |at| at.timestamp_millis()))
}

impl ReportedState {
    /// Continue after the event with this id; any other text means from the beginning.
    fn after(id: Option<&str>) -> Self {
        let last = id.and_then(|id| id.split_once('.')).and_then(|(number, what)| {
            let number: u32 = number.parse().ok()?;
            let (what, ms) = what.split_once('.').unwrap_or((what, ""));
            if what == "begin" {
                return Some((number.checked_sub(1)?, number, ms.parse().ok()));
            }
            Some((number, number, None))
        });
        let (ended, begun, begun_at) = last.unwrap_or_default();
        Self { ended, begun, begun_at, ..Self::default() }
    }

    /// Return the events that have not been sent.
    fn next_events(&mut self, job: &Job, attempts: &[Attempt], now: Timestamp) -> VecDeque<Message> {
        let mut messages = VecDeque::new();
        for attempt in attempts {
            let number = attempt.number;
            let event = |ended: bool| AttemptEvent {
                number,
                runner: attempt.runner.to_string(),
                started_at: attempt.started_at.map(Moment),
                finished_at: attempt.finished_at.filter(|_| ended).map(Moment),
                verdict: attempt.verdict.filter(|_| ended),
            };
            let started_at = attempt.started_at.map(|at| at.timestamp_millis());
            // After a claim that was undone, the next one has the same number and another time.
            let begins_anew = number == self.begun
                && number > self.ended
                && self.begun_at.is_some_and(|begun_at| started_at.is_some_and(|at| at != begun_at));
            if number > self.begun || begins_anew {
                // Nothing started when the job expired.
                if let Some(at) = started_at {
                    messages.push_back(message("attempt", Some(format!("{number}.begin.{at}")), &event(false)));
                }
                self.begun = number;
                self.progress = None;
            }
            if number == self.begun {
                self.begun_at = started_at;
            }
            if attempt.finished_at.is_some() && number > self.ended {
                messages.push_back(message("attempt", Some(format!("{number}.done")), &event(true)));
                self.ended = number;
            }
        }
        let at = Moment(now);
        let state = StateEvent {
            // The time of the event does not count as a change.
            at: self.state.as_ref().map_or(at, |state| state.at),
            state: job.state,
            execute_at: Moment(job.execute_at),
            priority: job.priority.level(),
            attempt: job.attempt,
            cancel_requested_at: job.cancel_requested_at.map(Moment),
        };
        if self.state.as_ref() != Some(&state) {
            let state = StateEvent { at, ..state };
            messages.push_back(message("state", None, &state));
            self.state = Some(state);
        }
        let progress = job.progress.as_ref().map(|progress| (progress.percent, progress.note.clone()));
        if let Some((percent, note)) = progress.clone().filter(|_| self.progress != progress) {
            messages.push_back(message("progress", None, &ProgressEvent { at, percent, note }));
            self.progress = progress;
        }
        if job.state.is_end() {
            let end = EndEvent { state: job.state, finished_at: job.finished_at.map(Moment) };
            messages.push_back(message("end", Some(end_id(job, attempts)), &end));
        }
        messages
    }
}

/// An open stream of the events of one job.
struct JobStream {
    api: Api,
    id: JobId,
    watch: Watch,
    stopping: watch::Receiver<bool>,
    pass: RequestRight,
    reported: ReportedState,
    messages: VecDeque<Message>,
    over: bool,
    _permit: RequestPermit,
}

impl JobStream {
    async fn next(mut self) -> Option<(Result<Message, Infallible>, Self)> {
        loop {
            // Checked before each message, because a stream with many messages never waits below.
            if !self.pass.is_good() {
                return None;
            }
            if let Some(message) = self.messages.pop_front() {
                return Some((Ok(message), self));
            }
            if self.over || *self.stopping.borrow_and_update() {
                return None;
            }
            tokio::select! {
                () = self.watch.changed() => {}
                _ = self.stopping.changed() => continue,
                () = self.pass.wait_until_revoked() => return None,
            }
            match self.api.broker.store().job(self.id).await {
                Ok(Some((job, attempts))) => {
                    self.messages = self.reported.next_events(&job, &attempts, self.api.broker.store().clock().now());
                    self.over = job.state.is_end();
                }
                // The job was deleted after its retention.
                Ok(None) => self.over = true,
                // The client reconnects with its last id and misses nothing.
                Err(_) => self.over = true,
            }
        }
    }
}

/// Filter of the cluster's events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventsQuery {
    /// Only events about jobs of this kind.
    #[param(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    kind: Option<String>,
    /// Only events about this queue or its jobs.
    #[param(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    queue: Option<String>,
    /// Only events about this schedule.
    #[param(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    schedule: Option<String>,
    /// Only events of these types, separated by commas, such as `settled,cancelled`.
    #[param(pattern = "^[a-z_]+(,[a-z_]+)*$", example = "settled,cancelled")]
    r#type: Option<String>,
}

/// The parsed filter of a client.
#[derive(Debug, Default)]
struct EventFilter {
    kind: Option<Name>,
    queue: Option<Name>,
    schedule: Option<Name>,
    types: Option<BTreeSet<&'static str>>,
}

impl EventFilter {
    fn read(asked: &EventsQuery) -> Result<Self, Problem> {
        let mut problems = Vec::new();
        let mut name = |field: &str, text: Option<&str>| {
            let parsed = text.map(str::parse::<Name>).transpose();
            parsed.unwrap_or_else(|e| {
                problems.push(tickr_handlers::Problem::at(field, e.to_string()));
                None
            })
        };
        let (kind, queue) = (name("kind", asked.kind.as_deref()), name("queue", asked.queue.as_deref()));
        let schedule = name("schedule", asked.schedule.as_deref());
        let mut types = None;
        if let Some(text) = &asked.r#type {
            let words: Vec<&'static str> = EventType::ALL.into_iter().map(EventType::as_str).collect();
            let mut wanted = BTreeSet::new();
            for word in text.split(',') {
                match words.iter().find(|known| **known == word) {
                    Some(known) => drop(wanted.insert(*known)),
                    None => {
                        let detail = format!("{word:?} is not one of {}", words.join(", "));
                        problems.push(tickr_handlers::Problem::at("type", detail));
                    }
                }
            }
            types = Some(wanted);
        }
        if problems.is_empty() {
            Ok(Self { kind, queue, schedule, types })
        } else {
            Err(Problem::new(Code::InvalidRequest, "invalid filter of events; `errors` says why").at("", problems))
        }
    }

    fn matches(&self, event: &PublishedEvent) -> bool {
        // The lost events may have matched any filter.
        event.event_type == EventType::Gap
            || self.types.as_ref().is_none_or(|types| types.contains(event.event_type.as_str()))
                && (self.kind.is_none() || self.kind == event.kind)
                && (self.queue.is_none() || self.queue == event.queue)
                && (self.schedule.is_none() || self.schedule == event.schedule)
    }
}

/// An event of the cluster. It has only names, ids, states and numbers.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ClusterEvent {
    /// Time of the event, by the clock of the database.
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    /// Id of the runner that sent it.
    runner: String,
    /// Id of the job that the event is about, if any. For a tick: the job that it fired; left out when it was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    /// Kind of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// Queue of the job, or the queue that the event is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    /// Schedule that the event is about, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<String>,
    /// New ETag of the queue or schedule, without the quotes. Pausing a schedule does not change its ETag.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// True when the queue or schedule is paused now.
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<bool>,
    /// Due time of a tick. When several ticks share a record, the due time of the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    due_at: Option<Moment>,
    /// Reason why a tick was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    /// Number of the attempt, with `started`.
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u32>,
    /// Verdict on the attempt, with `settled`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<VerdictWord>)]
    verdict: Option<Verdict>,
    /// State of the job after the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<StateWord>)]
    state: Option<JobState>,
    /// Number of attempts (`reaped`), of jobs that were put back (`rebuilt`), or of ticks that share a record
    /// (`schedule_ticked`).
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    /// Condition of the index: `fast`, `rebuilding` or `degraded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    health: Option<String>,
}

impl From<&PublishedEvent> for ClusterEvent {
    fn from(event: &PublishedEvent) -> Self {
        Self {
            at: Moment(event.at),
            runner: event.runner.to_string(),
            job: event.job.map(|id| id.to_string()),
            kind: event.kind.as_ref().map(ToString::to_string),
            queue: event.queue.as_ref().map(ToString::to_string),
            schedule: event.schedule.as_ref().map(ToString::to_string),
            version: event.version.clone(),
            paused: event.paused,
            due_at: event.due_at.map(Moment),
            cause: event.cause.clone(),
            number: event.number,
            verdict: event.verdict,
            state: event.state,
            count: event.count,
            health: event.health.clone(),
        }
    }
}

/// A gap: events may be missing at this point.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct GapEvent {
    /// Reason of the gap. `behind`: this client was too slow. `flood`: too many events happened at once in a runner.
    /// `redis`: Redis does not answer, so only the events of this runner arrive. `lost`: Redis was out for this runner or
    /// for another one, has lost events, or this runner stood still; from here on the events of all runners arrive again.
    /// It also comes in front of events whose kinds and queues a runner could not read. `forgotten`: the event of
    /// `Last-Event-ID`, or one behind it that this client was still to get, is no longer stored, 10,000 others follow it,
    /// or Redis does not answer.
    reason: &'static str,
    /// Number of missing events, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
}

/// Follow the events of the whole cluster
///
/// Events arrive as they happen, from about a second after the first client connected. About jobs: `accepted`,
/// `started`, `settled`, `cancel_requested`, `cancelled`, `rescheduled`, `deferred`, `lease_lost`. About queues: `queue_changed`,
/// `queue_paused`, `queue_resumed`. About schedules: `schedule_put`, `schedule_paused`, `schedule_resumed`,
/// `schedule_deleted`, `schedule_ticked`. About runners: `reaped`, `rebuilt`, `index_health`, `runner_stopping`.
/// Later versions may add event types and fields: ignore what you do not know.
///
/// A `gap` event says that events are missing: above about ten thousand events a second, for a client that is too slow,
/// while Redis does not answer and only the events of this runner arrive, when Redis has lost events or is back, when
/// this runner stood still, or when a runner could not read the kinds and queues of its events. After a gap, read again
/// what you show.
/// With `Last-Event-ID` the stream continues after that event, or sends `reset` when the event is no longer stored or
/// 10,000 others follow it. Payloads, results, errors and reasons are not sent.
#[utoipa::path(
    get, path = "/v1/events", tag = "events", operation_id = "cluster_events",
    params(
        EventsQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "Id of the last event that the client received; the stream continues after it"),
    ),
    responses(
        (status = 200, description = "The events, with `ClusterEvent` as their data, or `GapEvent` of a `gap` or `reset`", body = String, content_type = "text/event-stream"),
        (status = 422, description = "invalid_request", body = Problem),
        (status = 429, description = "overloaded: too many streams or connections", body = Problem),
        (status = 503, description = "stopping", body = Problem),
    )
)]
pub(super) async fn of_cluster(
    State(api): State<Api>,
    (sharing, pass): (PermitOwner, RequestRight),
    QueryParams(asked): QueryParams<EventsQuery>,
    LastEventId(last): LastEventId,
) -> Result<Response, Problem> {
    let filter = EventFilter::read(&asked)?;
    let permit = take_permit(&api, &sharing)?;
    // Listen before the past events are read, so that no event falls between the two.
    let listener = api.cluster_events.listen().await;
    let mut messages = VecDeque::new();
    let past = last.and_then(|last| match last.parse::<StreamPosition>() {
        Ok(last) => Some(api.cluster_events.past(last)),
        Err(_) => {
            messages.push_back(message("reset", None, &gap("forgotten", None)));
            None
        }
    });
    let (stopping, reached) = (api.stopping.clone(), StreamPosition::START);
    let stream = ClusterStream { stopping, pass, listener, filter, messages, past, reached, lags: 0, _permit: permit };
    Ok(answer(stream::unfold(stream, ClusterStream::next)))
}

const fn gap(reason: &'static str, count: Option<u64>) -> GapEvent {
    GapEvent { reason, count }
}

fn event_message(id: Option<StreamPosition>, event: &PublishedEvent) -> Message {
    if event.event_type == EventType::Gap {
        let reason = if event.cause.as_deref() == Some(PublishedEvent::LOST) { "lost" } else { "flood" };
        return message("gap", id.map(|id| id.to_string()), &gap(reason, event.count));
    }
    message(event.event_type.as_str(), id.map(|id| id.to_string()), &ClusterEvent::from(event))
}

/// An open stream of the events of the cluster.
struct ClusterStream {
    listener: Listener,
    filter: EventFilter,
    messages: VecDeque<Message>,
    /// The past events that were not read yet, of a client that comes back.
    past: Option<PastEvents>,
    /// Id of the newest past event that was read. Live events up to it are dropped, because they were already sent.
    reached: StreamPosition,
    stopping: watch::Receiver<bool>,
    pass: RequestRight,
    /// Number of times that the client fell behind since it was last up to date.
    lags: usize,
    _permit: RequestPermit,
}

impl ClusterStream {
    async fn next(mut self) -> Option<(Result<Message, Infallible>, Self)> {
        loop {
            if !self.pass.is_good() {
                return None;
            }
            if let Some(message) = self.messages.pop_front() {
                return Some((Ok(message), self));
            }
            if *self.stopping.borrow_and_update() || self.lags >= MAX_LAGS {
                return None;
            }
            if let Some(past) = &mut self.past {
                let page = tokio::select! {
                    page = past.next_page() => page,
                    _ = self.stopping.changed() => continue,
                    () = self.pass.wait_until_revoked() => return None,
                };
                self.take_page(page);
                continue;
            }
            if self.listener.is_up_to_date() {
                self.lags = 0;
            }
            let heard = tokio::select! {
                heard = self.listener.next() => heard,
                _ = self.stopping.changed() => continue,
                () = self.pass.wait_until_revoked() => return None,
            };
            match heard {
                Ok(Delivery::Event(id, event)) => {
                    if id.is_none_or(|id| id > self.reached) && self.filter.matches(&event) {
                        self.messages.push_back(event_message(id, &event));
                    }
                }
                Ok(Delivery::Gap) => self.messages.push_back(message("gap", None, &gap("redis", None))),
                Ok(Delivery::Lost) => self.messages.push_back(message("gap", None, &gap("lost", None))),
                Err(RecvError::Lagged(count)) => {
                    self.lags += 1;
                    self.messages.push_back(message("gap", None, &gap("behind", Some(count))));
                }
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// Send the past events of a page. Without a page they cannot be told, and the client begins anew.
    fn take_page(&mut self, page: Option<PastPage>) {
        let Some(page) = page else {
            self.past = None;
            self.messages.push_back(message("reset", None, &gap("forgotten", None)));
            return;
        };
        self.reached = page.last;
        if page.is_last {
            self.past = None;
        }
        let wanted = page.events.iter().filter(|(_, event)| self.filter.matches(event));
        self.messages.extend(wanted.map(|(id, event)| event_message(Some(*id), event)));
    }
}
