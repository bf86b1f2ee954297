//! `/v1/workers`: programs in other languages that execute jobs.
//!
//! A worker is a runner. Any tickr process serves any of its calls, because MySQL knows what it holds, and the token of an
//! attempt is the right to write about it. `docs/WORKERS.md` is the specification.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::pin::Pin;
use std::slice;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body as ResponseBody, Bytes, HttpBody};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http_body::Frame;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::http::auth::PermitOwner;
use crate::http::body::{Body, Object, PartsBody};
use crate::http::caller::WorkerRights;
use crate::http::follow_ups::{FollowUpBody, FollowUpRights};
use crate::http::problem::{Code, Problem};
use crate::http::revocation::RequestRight;
use crate::view::{Moment, StateWord};
use crate::{Api, json};
use tickr_broker::{JobDelivery, WorkerFinish, WorkerFinished, WorkerReport};
use tickr_handlers::{CheckedVerdict, KindDefaults, KnownKind, SentVerdict, VerdictWord, WrongVerdict, wrong_json};
use tickr_job::{AttemptToken, JobId, Name, Progress, RunnerId, State as JobState, is_terminal_control, limits};
use tickr_store::{BEATS_PER_LEASE, Claimed, NewWorker, RemoteFetch};

/// Most slots of a worker, and most jobs in one answer.
const MAX_SLOTS: u32 = 1_000;
const MAX_JOBS: u32 = 500;
/// Most kinds, and most queues, of a worker.
const MAX_NAMES: usize = 100;
/// Shortest, usual and longest lease of a worker.
const LEASE_MS: (u64, u64, u64) = (10_000, 60_000, 3_600_000);
/// Usual and longest time for which a request for jobs waits.
const WAIT_MS: (u64, u64) = (30_000, 60_000);
/// Most verdicts in one call.
const MAX_VERDICTS: usize = 500;
/// Most follow-up jobs of the verdicts of one call. 1 MiB has room for about 80,000 small ones, and one call must not
/// keep the writes of others waiting for them.
const MAX_FOLLOW_UPS_IN_CALL: usize = 4 * limits::MAX_FOLLOW_UPS;
/// Longest note, in characters.
const MAX_NOTE: usize = 120;
/// Most characters of the token of a verdict that are sent back.
const MAX_SHOWN_TOKEN: usize = 100;
/// Time for which the answer to a worker that gets nothing anyway is held back, so that it does not ask in a hurry.
const CALM: Duration = Duration::from_secs(1);

/// The right to write about one attempt: the job, the token of the attempt and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticket {
    id: JobId,
    token: AttemptToken,
    number: u32,
}

impl Ticket {
    /// The ticket of no attempt, in place of a text that is none.
    const NONE: Self =
        Self { id: JobId::from_uuid(Uuid::nil()), token: AttemptToken::from_uuid(Uuid::nil()), number: 0 };

    fn text(self) -> String {
        let mut bytes = [0; 36];
        bytes[..16].copy_from_slice(self.id.uuid().as_bytes());
        bytes[16..32].copy_from_slice(self.token.uuid().as_bytes());
        bytes[32..].copy_from_slice(&self.number.to_be_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    fn parse(text: &str) -> Option<Self> {
        let bytes: [u8; 36] = URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()?;
        Some(Self {
            id: JobId::from_uuid(Uuid::from_slice(&bytes[..16]).ok()?),
            token: AttemptToken::from_uuid(Uuid::from_slice(&bytes[16..32]).ok()?),
            number: u32::from_be_bytes(bytes[32..].try_into().ok()?),
        })
    }
}

/// A worker to register.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkerBody {
    /// Name of the program. The id of the worker begins with its first 15 letters of English, digits, `-` and `_`, or with
    /// `worker` if it has none.
    #[schema(min_length = 1, max_length = 64)]
    name: String,
    /// Name of its host, for operators.
    #[schema(max_length = 255)]
    host: Option<String>,
    /// Its process id, for operators.
    pid: Option<u32>,
    /// Version of the program, for operators.
    #[schema(max_length = 64)]
    version: Option<String>,
    /// Declared kinds that it executes.
    #[schema(min_items = 1, max_items = 100)]
    kinds: Vec<String>,
    /// Queues that it serves. Default: `default` and the queues of its kinds.
    #[schema(min_items = 1, max_items = 100)]
    queues: Option<Vec<String>>,
    /// Number of jobs that it executes at once.
    #[schema(minimum = 1, maximum = 1_000)]
    slots: u32,
    /// Time without a heartbeat after which its jobs are taken away, in milliseconds. Default: 60000.
    #[schema(minimum = 10_000, maximum = 3_600_000)]
    lease_ms: Option<u64>,
}

/// A worker that is registered.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct WorkerAnswer {
    /// Id of the worker: the `runner` of its attempts.
    id: String,
    /// Time without a heartbeat after which its jobs are taken away, in milliseconds.
    lease_ms: u64,
    /// Time between two heartbeats, in milliseconds.
    beat_ms: u64,
}

/// A request for jobs.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FetchBody {
    /// Most jobs to return: the free slots of the worker.
    #[schema(minimum = 1, maximum = 500)]
    slots: u32,
    /// Longest wait for the first job, in milliseconds. Default: 30000.
    #[schema(minimum = 0, maximum = 60_000)]
    wait_ms: Option<u64>,
    /// The tokens of all attempts of the worker whose verdicts are not answered yet. An attempt that is not listed did not
    /// reach the worker: its job is given back.
    #[schema(max_items = 1_000)]
    holding: Vec<String>,
    /// A UUID that is new for each request, and the same when the request is repeated because its answer was lost.
    #[schema(format = "uuid")]
    fetch_id: Uuid,
}

/// A job to execute.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FetchedJob {
    /// Id of the job, a UUIDv7. The same in each of its attempts.
    #[schema(format = "uuid")]
    id: String,
    kind: String,
    queue: String,
    #[schema(value_type = serde_json::Value)]
    payload: Box<RawValue>,
    /// Attempts used: those that count against `max_attempts`, this one included.
    attempt: u32,
    max_attempts: u32,
    /// The right to report on this attempt and to finish it. Opaque.
    token: String,
    /// Start of the attempt, by the clock of the database.
    #[schema(value_type = String, format = DateTime)]
    started_at: Moment,
    /// End of the time limit of the attempt.
    #[schema(value_type = String, format = DateTime)]
    deadline_at: Moment,
    /// Time limit of the attempt, in milliseconds.
    timeout_ms: u64,
    /// JSON that an earlier attempt saved. Absent if none did.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    checkpoint: Option<Box<RawValue>>,
    /// W3C Trace Context of the request that enqueued the job. Absent if it carried none.
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    tags: Vec<String>,
}

/// The answer to a request for jobs.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FetchAnswer {
    /// Jobs to execute, at most as many as were asked for. Their payloads and checkpoints have at most 4 MiB together,
    /// unless it is one job alone: the others come with the next requests. Empty when the wait is over.
    jobs: Vec<FetchedJob>,
    /// True while an operator keeps the worker drained: it gets no jobs.
    drain: bool,
    /// Time for which the request was here, in milliseconds. The rest of the time that the worker has waited is that of
    /// the way. An answer that was on its way for a quarter of the lease counts as lost: the worker begins none of its
    /// jobs.
    took_ms: u64,
}

/// An attempt that the worker holds.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HeldBody {
    /// Token of the attempt.
    token: String,
    /// Progress, 0 to 100 percent. A report that is not valid is left out and listed in `refused`.
    #[schema(value_type = Option<f64>)]
    percent: Option<Box<RawValue>>,
    /// Short description of the progress, at most 120 characters.
    #[schema(value_type = Option<String>)]
    note: Option<Box<RawValue>>,
    /// JSON with which the next attempt begins if this one does not succeed, at most 64 KiB and 64 levels deep. A null
    /// that is sent replaces an earlier checkpoint, too.
    #[serde(default, deserialize_with = "tickr_handlers::sent_checkpoint")]
    #[schema(value_type = Option<serde_json::Value>)]
    checkpoint: Option<Box<RawValue>>,
}

/// A heartbeat.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BeatBody {
    /// All attempts of the worker whose verdicts are not answered yet.
    #[schema(value_type = Vec<HeldBody>, max_items = 1_000)]
    holding: Vec<Object<HeldBody>>,
}

/// The answer to a heartbeat.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BeatAnswer {
    /// Attempts to stop: their job was cancelled, or their time is over. Finish them as `failed`; a cancelled job then ends
    /// as cancelled.
    cancel: Vec<String>,
    /// Attempts that the worker does not hold any more. Stop them; a verdict would change nothing.
    lost: Vec<String>,
    /// True while an operator keeps the worker drained.
    drain: bool,
    /// Reports that were left out because they are not valid. The leases were renewed all the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused: Vec<RefusedReport>,
    /// Attempts whose `percent`, `note` or `checkpoint` was not stored, such as because another session locks the row
    /// of the job in MySQL. The worker sends them with its next heartbeat again, unless it has newer ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    unsaved: Vec<String>,
}

/// A report of an attempt that was left out.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RefusedReport {
    /// Token of the attempt.
    token: String,
    /// `percent`, `note` or `checkpoint`.
    field: &'static str,
    /// What it must be.
    detail: &'static str,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(rename_all = "snake_case")]
pub(super) enum EndWord {
    Succeeded,
    Failed,
    Rejected,
    Snoozed,
    Released,
}

impl From<EndWord> for VerdictWord {
    fn from(word: EndWord) -> Self {
        match word {
            EndWord::Succeeded => Self::Succeeded,
            EndWord::Failed => Self::Failed,
            EndWord::Rejected => Self::Rejected,
            EndWord::Snoozed => Self::Snoozed,
            EndWord::Released => Self::Released,
        }
    }
}

/// The end of an attempt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EndBody {
    /// Token of the attempt.
    token: String,
    /// `succeeded`; `failed`: another attempt may succeed; `rejected`: no attempt can succeed; `snoozed`: the job runs
    /// again after `delay_ms`, and no attempt is used; `released`: the worker gives the job back, and no attempt is used.
    verdict: EndWord,
    /// Result to store with the job, at most 256 KiB of JSON, 64 levels deep. Only with `succeeded`.
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Box<RawValue>>,
    /// Why the attempt did not succeed, for operators: at most 2,000 characters, without secrets. Required with `failed`,
    /// `rejected` and `snoozed`.
    #[schema(max_length = 2_000)]
    error: Option<String>,
    /// Time until the job runs again, in milliseconds. Required with `snoozed`. With `failed` it replaces the backoff.
    #[schema(minimum = 0, maximum = 31_622_400_000_u64)]
    delay_ms: Option<u64>,
    /// The newest lines that the attempt logged, at most 16 KiB.
    #[schema(max_length = 16_384)]
    log: Option<String>,
    /// JSON with which the next attempt begins, at most 64 KiB and 64 levels deep. A null that is sent replaces an earlier
    /// checkpoint, too.
    #[serde(default, deserialize_with = "tickr_handlers::sent_checkpoint")]
    #[schema(value_type = Option<serde_json::Value>)]
    checkpoint: Option<Box<RawValue>>,
    /// Jobs to enqueue: they exist exactly if the attempt has this success. Only with `succeeded`. They need the right to
    /// enqueue: the header `tickr-enqueue-authorization` holds an API key with the scope `enqueue`, unless that of the
    /// call is an `admin` one.
    #[schema(value_type = Option<Vec<FollowUpBody>>, max_items = 1_000)]
    follow_ups: Option<Vec<Box<RawValue>>>,
}

/// Ends of attempts.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EndsBody {
    /// Verdicts, of any attempts.
    #[schema(value_type = Vec<EndBody>, min_items = 1, max_items = 500)]
    verdicts: Vec<Box<RawValue>>,
}

/// What has become true of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(rename_all = "snake_case")]
pub(super) enum EndResultWord {
    /// The attempt has this verdict, now or by the same call before.
    Settled,
    /// The attempt had ended otherwise, such as by the end of its lease. Nothing was changed.
    LeaseLost,
    /// No job has this token, or the API key may not work on its job and the attempt has ended.
    Unknown,
    /// The verdict is not valid. Nothing was changed, and the attempt still waits for a verdict.
    Refused,
    /// The verdict is not written yet, because another session locks the row of the job in MySQL, the row cannot be
    /// read, or the verdicts before it in the call have too many follow-up jobs. The attempt still waits for it: the
    /// worker sends it again after a pause.
    Locked,
}

/// The answer to one verdict.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EndResult {
    /// Token of the attempt.
    token: String,
    result: EndResultWord,
    /// State of the job, with `settled`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<StateWord>)]
    state: Option<JobState>,
    /// What is wrong with the verdict, with `refused`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    errors: Vec<RefusedField>,
}

/// A field of a verdict that is not valid.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RefusedField {
    /// Name of the field, or the path to it, such as `follow_ups/2/queue`. Empty for the verdict as a whole.
    field: String,
    /// What it must be.
    detail: String,
}

impl From<tickr_handlers::Problem> for RefusedField {
    fn from(problem: tickr_handlers::Problem) -> Self {
        Self { field: problem.pointer.trim_start_matches('/').to_owned(), detail: problem.detail }
    }
}

/// The answer to verdicts.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EndsAnswer {
    /// One result for each verdict, in their order.
    results: Vec<EndResult>,
}

/// The worker in the path.
pub(super) struct WorkerPath(RunnerId);

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for WorkerPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut axum::http::request::Parts, state: &S) -> Result<Self, Problem> {
        let path: Result<Path<String>, PathRejection> = Path::from_request_parts(parts, state).await;
        let Path(text) = path.map_err(|e| Problem::new(Code::NotFound, e.body_text()))?;
        let id = RunnerId::from_stored(text);
        if id.as_str().len() > RunnerId::MAX_LEN || !id.as_str().is_ascii() { Err(missing(&id)) } else { Ok(Self(id)) }
    }
}

fn missing(id: &RunnerId) -> Problem {
    Problem::new(Code::NotFound, format!("no worker {id} is registered, or not any more: register again"))
}

fn invalid(what: &str, problems: Vec<tickr_handlers::Problem>) -> Problem {
    Problem::new(Code::InvalidRequest, format!("invalid {what}; `errors` says why")).at("", problems)
}

/// Register a worker
///
/// A worker registers when it starts, and again after 404. It is a runner: `/v1/runners` lists it, and operators drain it
/// there. Its kinds must be declared.
#[utoipa::path(
    post, path = "/v1/workers", tag = "workers", operation_id = "register_worker", request_body = WorkerBody,
    responses(
        (status = 201, description = "The worker is registered", body = WorkerAnswer),
        (status = 403, description = "forbidden: the API key may not work on these kinds or queues", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(super) async fn register(
    State(api): State<Api>,
    rights: WorkerRights,
    Body(body, _): Body<WorkerBody>,
) -> Result<Response, Problem> {
    require_loops(&api)?;
    let worker = checked(&api, body, &rights).map_err(|problems| invalid("worker", problems))?;
    rights.check(&worker.kinds, &worker.queues)?;
    let lease_ms = u64::try_from(worker.lease.as_millis()).unwrap_or(u64::MAX);
    let answer = WorkerAnswer { id: worker.id.to_string(), lease_ms, beat_ms: lease_ms / u64::from(BEATS_PER_LEASE) };
    api.broker.store().register_worker(worker).await?;
    Ok(json(StatusCode::CREATED, answer))
}

fn checked(api: &Api, body: WorkerBody, rights: &WorkerRights) -> Result<NewWorker, Vec<tickr_handlers::Problem>> {
    let WorkerBody { name, host, pid, version, kinds, queues, slots, lease_ms } = body;
    let mut problems = Vec::new();
    let mut wrong = |pointer: String, detail: String| problems.push(tickr_handlers::Problem::at(pointer, detail));
    let texts = [("/name", Some(&name), 64), ("/host", host.as_ref(), 255), ("/version", version.as_ref(), 64)];
    for (pointer, text, most) in texts {
        if text.is_some_and(|text| text.chars().count() > most || text.chars().any(is_terminal_control)) {
            wrong(pointer.to_owned(), format!("must have at most {most} characters, and no control characters"));
        }
    }
    if name.trim().is_empty() {
        wrong("/name".to_owned(), "must not be empty".to_owned());
    }
    if !(1..=MAX_SLOTS).contains(&slots) {
        wrong("/slots".to_owned(), format!("must be 1 to {MAX_SLOTS}"));
    }
    let lease_ms = lease_ms.unwrap_or(LEASE_MS.1);
    if !(LEASE_MS.0..=LEASE_MS.2).contains(&lease_ms) {
        wrong("/lease_ms".to_owned(), format!("must be {} to {}", LEASE_MS.0, LEASE_MS.2));
    }
    let registry = api.broker.registry();
    let (mut of_kinds, mut of_queues): (Vec<Name>, Vec<Name>) = (Vec::new(), Vec::new());
    if !(1..=MAX_NAMES).contains(&kinds.len()) {
        wrong("/kinds".to_owned(), format!("must be 1 to {MAX_NAMES} kinds"));
    }
    for (place, kind) in kinds.iter().take(MAX_NAMES).enumerate() {
        let found = registry.find(kind);
        let why = match &found {
            None => Some("is not declared: declare it with PUT /v1/kinds/{kind}"),
            Some(KnownKind::Compiled(_)) => Some("is a kind that runners execute"),
            Some(KnownKind::Declared(kind)) if kind.runs_here() => {
                Some("is a kind whose receiver runners call: declare it with \"run\": \"pull\" to fetch its jobs")
            }
            Some(KnownKind::Declared(_)) => None,
        };
        let Some(declared) = found.filter(|_| why.is_none()) else {
            wrong(format!("/kinds/{place}"), why.unwrap_or_default().to_owned());
            continue;
        };
        if !of_kinds.contains(declared.name()) {
            of_kinds.push(declared.name().clone());
        }
        of_queues.extend(declared.queue().cloned());
    }
    match queues {
        None => {
            of_queues.extend("default".parse::<Name>().ok());
            rights.choose_queues(&mut of_queues);
        }
        Some(given) => {
            of_queues.clear();
            if !(1..=MAX_NAMES).contains(&given.len()) {
                wrong("/queues".to_owned(), format!("must be 1 to {MAX_NAMES} queues"));
            }
            for (place, queue) in given.iter().take(MAX_NAMES).enumerate() {
                match queue.parse::<Name>() {
                    Ok(queue) => of_queues.push(queue),
                    Err(error) => wrong(format!("/queues/{place}"), error.to_string()),
                }
            }
        }
    }
    of_queues.sort();
    of_queues.dedup();
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(NewWorker {
        id: RunnerId::new_for_worker(&name),
        version: version.unwrap_or_default(),
        host,
        pid,
        kinds: of_kinds,
        queues: of_queues,
        slots,
        lease: Duration::from_millis(lease_ms),
    })
}

/// Refuse the calls of workers in a held process, which starts no job and leaves open attempts as they are. A worker sends
/// them again, also those with results.
fn require_loops(api: &Api) -> Result<(), Problem> {
    if !api.held {
        return Ok(());
    }
    let detail = "this process is held: it hands out no jobs and takes no results; send the request to another process, \
                  or to this one after a start without the setting held";
    Err(Problem::new(Code::Stopping, detail))
}

/// Refuse a worker that an API key of other kinds or queues has registered: to this caller it does not exist.
async fn require_rights(api: &Api, rights: &WorkerRights, id: &RunnerId) -> Result<(), Problem> {
    if rights.are_unlimited() {
        return Ok(());
    }
    match api.broker.store().kinds_and_queues_of_worker(id).await? {
        Some((kinds, queues)) if rights.cover(&kinds, &queues) => Ok(()),
        _ => Err(missing(id)),
    }
}

/// Fetch jobs
///
/// Waits until there is a job that the worker executes, and returns at most as many as it has free slots. The attempts are
/// committed before they are returned. A worker has one request for jobs at a time: a new one ends an earlier one. When an
/// answer is lost, the worker sends the same request again and gets the same jobs. Every attempt that a request does not
/// list in `holding` is given back at once, and no attempt is used. 401 when the API key is revoked during the wait.
#[utoipa::path(
    post, path = "/v1/workers/{id}/fetch", tag = "workers", operation_id = "fetch_jobs", request_body = FetchBody,
    params(("id" = String, Path, description = "The worker's id")),
    responses(
        (status = 200, description = "The jobs, or none when the wait is over", body = FetchAnswer),
        (status = 404, description = "not_found: register again", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
        (status = 429, description = "overloaded: too many requests wait here, or for too many queues", body = Problem),
    )
)]
pub(super) async fn fetch(
    State(api): State<Api>,
    rights: WorkerRights,
    (sharing, mut pass): (PermitOwner, RequestRight),
    WorkerPath(id): WorkerPath,
    Body(body, _): Body<FetchBody>,
) -> Result<Response, Problem> {
    let came = Instant::now();
    require_loops(&api)?;
    require_rights(&api, &rights, &id).await?;
    let FetchBody { slots, wait_ms, holding, fetch_id } = body;
    let wait_ms = wait_ms.unwrap_or(WAIT_MS.0);
    let mut problems = Vec::new();
    let mut wrong = |pointer: String, detail: String| problems.push(tickr_handlers::Problem::at(pointer, detail));
    if !(1..=MAX_JOBS).contains(&slots) {
        wrong("/slots".to_owned(), format!("must be 1 to {MAX_JOBS}"));
    }
    if wait_ms > WAIT_MS.1 {
        wrong("/wait_ms".to_owned(), format!("must be 0 to {}", WAIT_MS.1));
    }
    if holding.len() > MAX_SLOTS as usize {
        wrong("/holding".to_owned(), format!("must be at most {MAX_SLOTS}"));
    }
    let tickets = tickets_in(holding.iter().map(String::as_str), &mut wrong);
    if !problems.is_empty() {
        return Err(invalid("request for jobs", problems));
    }
    // Like a stream, the request keeps its place until it is answered.
    let _permit = api.polls.take(sharing.0).map_err(|none| none.problem("requests that wait", "http_polls"))?;
    let wait = Duration::from_millis(wait_ms);
    let held = tickets.into_iter().map(|ticket| (ticket.id, ticket.token)).collect();
    let Some(begun) = api.broker.begin_fetch(id.clone(), fetch_id, held, wait).await? else {
        return Err(missing(&id));
    };
    let drained = begun.worker.drained;
    if begun.repeated && !begun.again.is_empty() {
        let mut delivery = api.broker.delivery(&begun.worker.id, begun.again, drained);
        // The worker may have got them before, and this request may be a late copy. So they are not given back when this
        // answer does not reach it.
        delivery.delivered();
        delivery.note_claim(begun.claimed_since, begun.worker.lease);
        return deliver(&api, delivery, came).await;
    }
    // A suspect is executed alone, and a repeated request gets nothing new.
    if drained || begun.holds_suspect || begun.repeated {
        pass.wait_for(until_calm(&api, wait)).await?;
        return deliver(&api, api.broker.delivery(&begun.worker.id, Vec::new(), drained), came).await;
    }
    let request = RemoteFetch { worker: begun.worker, id: fetch_id };
    let _queues = match api.awaited_queues.take(sharing.0, &request.worker.queues) {
        Ok(queues) => queues,
        Err(too_many) => {
            api.broker.store().refuse_fetch(&request).await?;
            return Err(too_many.problem());
        }
    };
    let waiting = api.broker.wait_for_jobs(request, slots as usize, wait, begun.holds == 0);
    let Some(waiting) = waiting else {
        return Err(Problem::new(Code::Stopping, "this runner is shutting down; send the request to another one"));
    };
    // Jobs that come after the API key was revoked go back when their delivery is dropped.
    let Ok(delivery) = pass.wait_for(waiting).await? else {
        let detail = "the claim of jobs for this request got no answer; send the same request again";
        return Err(Problem::new(Code::StoreUnavailable, detail));
    };
    deliver(&api, delivery, came).await
}

/// Wait for a moment, unless the process stops.
async fn until_calm(api: &Api, wait: Duration) {
    let mut stopping = api.stopping.clone();
    tokio::select! {
        () = tokio::time::sleep(wait.min(CALM)) => {}
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
}

fn tickets_in<'t>(texts: impl Iterator<Item = &'t str>, wrong: &mut impl FnMut(String, String)) -> Vec<Ticket> {
    let mut tickets = Vec::new();
    for (place, text) in texts.enumerate() {
        match Ticket::parse(text) {
            Some(ticket) => tickets.push(ticket),
            None => wrong(format!("/holding/{place}"), "is no token of an attempt".to_owned()),
        }
    }
    tickets
}

/// Build the response with these attempts to a request that came then. They are given back if it is dropped before its
/// body is on the wire.
async fn deliver(api: &Api, delivery: JobDelivery, came: Instant) -> Result<Response, Problem> {
    let mut checkpoints: HashMap<JobId, Box<RawValue>> = HashMap::new();
    for claimed in delivery.claimed().iter().filter(|claimed| claimed.has_checkpoint()) {
        if let Some(checkpoint) = api.broker.store().checkpoint(claimed.id).await? {
            checkpoints.insert(claimed.id, checkpoint.content);
        }
    }
    // What this process loses after this moment counts as the way to the worker.
    let took_ms = u64::try_from(came.elapsed().as_millis()).unwrap_or(u64::MAX);
    // MySQL may have kept this process waiting since the claim.
    let delivery = delivery.unless_old();
    let registry = api.broker.registry();
    let timeout = |claimed: &Claimed| {
        let of_kind = || {
            let kind = registry.find(claimed.kind.as_str());
            kind.map_or_else(|| KindDefaults::default().timeout, |kind| kind.defaults().timeout)
        };
        claimed.options.time_limit_ms().map_or_else(of_kind, Duration::from_millis)
    };
    let jobs = delivery.claimed().iter().map(|claimed| {
        let timeout = timeout(claimed);
        FetchedJob {
            id: claimed.id.to_string(),
            kind: claimed.kind.to_string(),
            queue: claimed.queue.to_string(),
            payload: claimed.payload.clone(),
            attempt: claimed.attempt,
            max_attempts: claimed.max_attempts,
            token: Ticket { id: claimed.id, token: claimed.token, number: claimed.number }.text(),
            started_at: Moment(claimed.started_at),
            deadline_at: Moment(claimed.started_at + timeout),
            timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
            checkpoint: checkpoints.remove(&claimed.id),
            traceparent: claimed.options.trace.as_ref().map(|trace| trace.span_context.to_string()),
            tags: claimed.options.tags.iter().map(ToString::to_string).collect(),
        }
    });
    let answer = FetchAnswer { jobs: jobs.collect(), drain: delivery.drained, took_ms };
    let text = serde_json::to_vec(&answer).unwrap_or_default();
    let body = ResponseBody::new(OnTheWire { bytes: Some(text.into()), delivery });
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// The body of a response with attempts. The server drops it without reading it when the connection is gone.
struct OnTheWire {
    bytes: Option<Bytes>,
    delivery: JobDelivery,
}

impl HttpBody for OnTheWire {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = self.bytes.take();
        if bytes.is_some() {
            self.delivery.delivered();
        }
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// Send a heartbeat
///
/// It renews the lease of the worker and those of the attempts that it lists, and says which of them to stop. A worker
/// sends one every `beat_ms`, and repeats one that fails within seconds.
#[utoipa::path(
    post, path = "/v1/workers/{id}/beat", tag = "workers", operation_id = "beat", request_body = BeatBody,
    params(("id" = String, Path, description = "The worker's id")),
    responses(
        (status = 200, description = "The leases are renewed", body = BeatAnswer),
        (status = 404, description = "not_found: register again", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(super) async fn beat(
    State(api): State<Api>,
    rights: WorkerRights,
    WorkerPath(id): WorkerPath,
    PartsBody(body): PartsBody<BeatBody>,
) -> Result<Response, Problem> {
    // Also the time for which MySQL keeps the check of its rights waiting is one in which attempts arrive.
    let came = Instant::now();
    require_loops(&api)?;
    require_rights(&api, &rights, &id).await?;
    let mut problems = Vec::new();
    let mut wrong = |pointer: String, detail: String| problems.push(tickr_handlers::Problem::at(pointer, detail));
    if body.holding.len() > MAX_SLOTS as usize {
        wrong("/holding".to_owned(), format!("must be at most {MAX_SLOTS}"));
    }
    let (mut reports, mut texts, mut refused) = (Vec::new(), HashMap::new(), Vec::new());
    for (place, Object(HeldBody { token, percent, note, checkpoint })) in body.holding.into_iter().enumerate() {
        let Some(ticket) = Ticket::parse(&token) else {
            wrong(format!("/holding/{place}/token"), "is no token of an attempt".to_owned());
            continue;
        };
        // A report that is not valid must not cost the leases of all attempts of the worker.
        let mut refuse = |field, detail| refused.push(RefusedReport { token: token.clone(), field, detail });
        let percent = percent.and_then(|percent| {
            let valid = serde_json::from_str::<f64>(percent.get()).ok().filter(|value| (0.0..=100.0).contains(value));
            if valid.is_none() {
                refuse("percent", "must be a number, 0 to 100");
            }
            valid
        });
        let note = note.and_then(|note| {
            let fits = |note: &String| note.chars().count() <= MAX_NOTE && !note.chars().any(char::is_control);
            let valid = serde_json::from_str::<String>(note.get()).ok().filter(fits);
            if valid.is_none() {
                refuse("note", "must be a text of at most 120 characters, without control characters");
            }
            valid
        });
        let checkpoint = checkpoint.filter(|checkpoint| {
            let text = checkpoint.get();
            let wrong = if text.len() > limits::MAX_CHECKPOINT_BYTES {
                Some("must have at most 65536 bytes")
            } else {
                wrong_json(checkpoint)
            };
            if let Some(wrong) = wrong {
                refuse("checkpoint", wrong);
            }
            wrong.is_none()
        });
        let progress = (percent.is_some() || note.is_some())
            .then(|| Progress { percent: percent.unwrap_or(0.0), note: note.filter(|note| !note.is_empty()) });
        let checkpoint = checkpoint.map(|checkpoint| Arc::from(Box::<str>::from(checkpoint)));
        reports.push(WorkerReport { id: ticket.id, token: ticket.token, progress, checkpoint });
        // A worker may list two attempts of one job: one whose verdict got no answer, and the next one.
        texts.insert((ticket.id, ticket.token), token);
    }
    if !problems.is_empty() {
        return Err(invalid("heartbeat", problems));
    }
    let Some(beaten) = api.broker.beat_of_worker(id.clone(), reports, came).await? else { return Err(missing(&id)) };
    let words = |attempts: BTreeSet<(JobId, AttemptToken)>| {
        attempts.iter().filter_map(|attempt| texts.get(attempt).cloned()).collect()
    };
    let (lost, unsaved): (Vec<String>, Vec<String>) = (words(beaten.lost), words(beaten.unsaved));
    let mut cancel: Vec<String> = words(beaten.cancel);
    cancel.retain(|token| !lost.contains(token));
    Ok(json(StatusCode::OK, BeatAnswer { cancel, lost, drain: beaten.drained, refused, unsaved }))
}

/// Finish attempts
///
/// Each verdict has a result of its own: one that is not valid keeps no other from being written. A repeated call with
/// the same verdicts changes nothing, enqueues nothing more and has the same results, so a call that got no answer can
/// be sent again. The token is the right: the worker need not be registered any more.
#[utoipa::path(
    post, path = "/v1/workers/{id}/finish", tag = "workers", operation_id = "finish_attempts",
    request_body = EndsBody,
    params(
        ("id" = String, Path, description = "The worker's id"),
        ("tickr-enqueue-authorization" = Option<String>, Header,
            description = "`Bearer` and the API key that may enqueue the follow-up jobs of the verdicts"),
    ),
    responses(
        (status = 200, description = "One result for each verdict", body = EndsAnswer),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(super) async fn finish(
    State(api): State<Api>,
    rights: WorkerRights,
    may_follow: FollowUpRights,
    WorkerPath(_): WorkerPath,
    PartsBody(body): PartsBody<EndsBody>,
) -> Result<Response, Problem> {
    require_loops(&api)?;
    let mut problems = Vec::new();
    if !(1..=MAX_VERDICTS).contains(&body.verdicts.len()) {
        problems.push(tickr_handlers::Problem::at("/verdicts", format!("must be 1 to {MAX_VERDICTS}")));
    }
    if !problems.is_empty() {
        return Err(invalid("verdicts", problems));
    }
    let mut jobs = 0;
    let verdicts: Vec<ReadVerdict> = body.verdicts.into_iter().map(|text| read(&text, &mut jobs)).collect();
    let has_follow_ups = verdicts.iter().flatten().any(|(_, checked)| !checked.follow_ups.is_empty());
    let right = if has_follow_ups { Some(may_follow.open(&api).await?) } else { None };
    let (mut given, mut finishes) = (Vec::new(), Vec::new());
    for read in verdicts {
        match read {
            Ok((token, CheckedVerdict { verdict, log, checkpoint, mut follow_ups })) => {
                let Ticket { id, token: of_attempt, number } = Ticket::parse(&token).unwrap_or(Ticket::NONE);
                let checkpoint = checkpoint.map(|checkpoint| Arc::from(Box::<str>::from(checkpoint)));
                let refused = right.as_ref().map(|right| right.check(&api, &mut follow_ups, |_| false));
                finishes.push(WorkerFinish {
                    id,
                    token: of_attempt,
                    number,
                    verdict,
                    log,
                    checkpoint,
                    follow_ups,
                    refused: refused.unwrap_or_default(),
                });
                given.push(Ok(token));
            }
            Err(answered) => given.push(Err(answered)),
        }
    }
    let settings = api.operator_settings.now();
    let limited = |queue: &Name| settings.queues.get(queue).is_some_and(|set| set.concurrency.is_some());
    let may = |kind: &Name, queue: &Name| rights.cover(slice::from_ref(kind), slice::from_ref(queue));
    let mut finished = api.broker.finish_remotely(finishes, limited, may).await?.into_iter();
    let results = given.into_iter().map(|given| {
        let token = match given {
            Ok(token) => token,
            Err(answered) => return answered,
        };
        let (result, state) = match finished.next().unwrap_or(WorkerFinished::Unknown) {
            WorkerFinished::Settled(state) => (EndResultWord::Settled, Some(state)),
            WorkerFinished::LeaseLost => (EndResultWord::LeaseLost, None),
            WorkerFinished::Unknown => (EndResultWord::Unknown, None),
            WorkerFinished::Locked => (EndResultWord::Locked, None),
            WorkerFinished::Refused(problems) => {
                let errors = problems.into_iter().map(RefusedField::from).collect();
                return EndResult { token, result: EndResultWord::Refused, state: None, errors };
            }
        };
        EndResult { token, result, state, errors: Vec::new() }
    });
    Ok(json(StatusCode::OK, EndsAnswer { results: results.collect() }))
}

/// A verdict with the token of its attempt, or the answer to one that is not valid or comes too early.
type ReadVerdict = Result<(String, CheckedVerdict), EndResult>;

/// Read a verdict and check it. The other verdicts of the call depend on it only by the number of its follow-up jobs:
/// `jobs` counts those of the call so far.
fn read(text: &RawValue, jobs: &mut usize) -> ReadVerdict {
    let refused = |errors| EndResult { token: token_in(text), result: EndResultWord::Refused, state: None, errors };
    let mut reader = serde_json::Deserializer::from_str(text.get());
    let parsed: Result<Object<EndBody>, _> = serde_path_to_error::deserialize(&mut reader);
    let Object(EndBody { token, verdict, result, error, delay_ms, log, checkpoint, follow_ups }) =
        parsed.map_err(|error| refused(vec![RefusedField::from(tickr_handlers::Problem::in_json(error))]))?;
    let own = follow_ups.as_ref().map_or(0, Vec::len);
    if own > 0 && *jobs > 0 && *jobs + own > MAX_FOLLOW_UPS_IN_CALL {
        return Err(EndResult { token, result: EndResultWord::Locked, state: None, errors: Vec::new() });
    }
    *jobs += own;
    let sent = SentVerdict { verdict: verdict.into(), result, error, delay_ms, log, checkpoint, follow_ups };
    let checked = sent.check().map_err(|wrong| {
        let field = |(field, detail): WrongVerdict| RefusedField { field: field.into_owned(), detail };
        refused(wrong.into_iter().map(field).collect())
    })?;
    Ok((token, checked))
}

/// Return the token of a verdict that is not valid, as far as it has one.
fn token_in(text: &RawValue) -> String {
    // The rest may be anything, and nested to any depth.
    let members: HashMap<String, Box<RawValue>> = serde_json::from_str(text.get()).unwrap_or_default();
    let token: Option<String> = members.get("token").and_then(|token| serde_json::from_str(token.get()).ok());
    token.unwrap_or_default().chars().take(MAX_SHOWN_TOKEN).collect()
}

/// End the registration of a worker
///
/// What it still holds is given back, and no attempt is used. A worker calls this when it stops.
#[utoipa::path(
    delete, path = "/v1/workers/{id}", tag = "workers", operation_id = "leave",
    params(("id" = String, Path, description = "The worker's id")),
    responses(
        (status = 204, description = "The worker is gone"),
        (status = 404, description = "not_found", body = Problem),
    )
)]
pub(super) async fn leave(
    State(api): State<Api>,
    rights: WorkerRights,
    WorkerPath(id): WorkerPath,
) -> Result<Response, Problem> {
    require_loops(&api)?;
    require_rights(&api, &rights, &id).await?;
    if api.broker.unregister_worker(id.clone()).await? {
        Ok(StatusCode::NO_CONTENT.into_response())
    } else {
        Err(missing(&id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_again_and_nothing_else_is_one() {
        let ticket = Ticket { id: JobId::new(), token: AttemptToken::new(), number: 70_000 };
        let text = ticket.text();
        assert_eq!(Ticket::parse(&text), Some(ticket));
        assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{text}");
        for wrong in ["", "x", &text[1..], &format!("{text}A"), &format!("{}=", &text[..47])] {
            assert_eq!(Ticket::parse(wrong), None, "{wrong}");
        }
    }
}
