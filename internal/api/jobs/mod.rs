//! `/v1/jobs`: enqueue, list, count, show, cancel, retry, run now, and the children of a job.
//!
//! - `attempt_log.rs`: the log of an attempt (`/v1/jobs/{id}/attempts/{number}/log`)
//! - `change.rs`: change the due time or the priority of a waiting job (`PATCH /v1/jobs/{id}`)
//! - `differences.rs`: the traits that failed jobs have more often than others (`/v1/jobs/differences`)
//! - `explain.rs`: the reasons why a job does not run (`/v1/jobs/{id}/explain`)
//! - `import.rs`: enqueue any number of jobs from NDJSON (`/v1/jobs/import`)
//! - `result.rs`: wait for the result of a job (`/v1/jobs/{id}/result`)
//! - `survey.rs`: how many jobs of a filter there are, by time and by their facts (`/v1/jobs/survey`)
//! - `timeline.rs`: the life of a job as segments of time (`/v1/jobs/{id}/timeline`)
//! - `warnings.rs`: warnings in the response to an enqueue

pub(super) mod attempt_log;
pub(super) mod change;
pub(super) mod differences;
pub(super) mod explain;
pub(super) mod import;
pub(super) mod result;
pub(super) mod survey;
pub(super) mod timeline;
pub(super) mod warnings;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use crate::http::auth::RequestActor;
use crate::http::body::{Body, IdPath, Object, QueryParams, empty_object, or_default};
use crate::http::caller::Requester;
use crate::http::cursor::{Listing, page_size, read_page_size};
use crate::http::etag::{IfNoneMatch, respond_with_etag};
use crate::http::filter::{filter_query, refused};
use crate::http::idempotency::{Key, ResponseContent, replay_stored, respond_to_outcome};
use crate::http::problem::{Code, Problem};
use crate::http::searches::run_with_seat;
use crate::http::trace::RequestTrace;
use crate::view::{ForeignJobView, JobView, Moment, RetryView, SeenJob, TraceView};
use crate::{Api, json};
use tickr_broker::Draft;
use tickr_job::{
    Actor, Among, BatchId, Due, Filter, JobId, Name, NewJob, OnConflict, OnFailure, OnParentFailure, Producer,
    State as JobState, TraceContext, UniqueUntil, limits, moment_of_id,
};
use tickr_store::{
    ActionOutcome, Answer, EnqueueReceipts, EnqueueRefusal, EnqueuedJob, IdempotentOutcome, IdempotentRequest,
    JobAction, JobPage, KeyHolder, LinkProblem, ResponseBuilder, SearchOrder, UpdatedJob,
};

/// A job to enqueue.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewJobBody {
    /// Name of the kind, one of `/v1/kinds`.
    #[schema(example = "http", max_length = 64)]
    kind: String,
    /// Input of the handler. It must fit the schema of the kind. Default: `{}`.
    #[serde(default = "empty_object")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Box<RawValue>,
    /// Name of the queue. Default: `default`.
    #[schema(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    queue: Option<String>,
    /// Time at which the job becomes due; a past time means now, and the limit is 366 days ahead. Not together with
    /// `delay_ms`.
    execute_at: Option<DateTime<Utc>>,
    /// Delay in milliseconds after which the job becomes due, at most 366 days. Not together with `execute_at`.
    #[schema(maximum = 31_622_400_000_u64)]
    delay_ms: Option<u64>,
    /// Time from which on no attempt of the job starts any more. If the job has not ended by then and does not run, it
    /// fails without a further attempt. Later than its due time, and at most 366 days ahead. Not together with
    /// `expires_in_ms`.
    expires_at: Option<DateTime<Utc>>,
    /// The same as a time after the acceptance, in milliseconds. Not together with `expires_at`.
    #[schema(minimum = 1, maximum = 31_622_400_000_u64)]
    expires_in_ms: Option<u64>,
    /// Number of attempts before the job fails, 1 to 100. Default: that of the kind.
    #[schema(minimum = 1, maximum = 100)]
    max_attempts: Option<u32>,
    /// Time limit of one attempt, in milliseconds. Default: that of the kind.
    #[schema(minimum = 1, maximum = 86_400_000)]
    timeout_ms: Option<u64>,
    /// Priority within the queue: 0 runs first, 9 last. Default: 5.
    #[schema(maximum = 9)]
    priority: Option<u8>,
    /// Unique key. At most one unfinished job of a kind has a given unique key; `on_conflict` says what happens
    /// otherwise.
    #[schema(min_length = 1, max_length = 255)]
    unique_key: Option<String>,
    /// Fields of the payload that make the unique key, as JSON pointers. Jobs of a kind with the same pointers and equal
    /// values have the same unique key. Instead of `unique_key`.
    #[serde(default, deserialize_with = "or_default")]
    #[schema(value_type = Option<Vec<String>>, max_items = 10, example = json!(["/to"]))]
    unique_fields: Vec<String>,
    /// Action when an unfinished job of this kind has the unique key. `return` responds with that job and writes
    /// nothing. `reject` responds with 409. `replace` cancels that job, unless it executes, and accepts the new one.
    /// `postpone` responds with that job and puts it off to the due time of this request, unless it executes. Default:
    /// `return`. Only with `unique_key` or `unique_fields`.
    #[schema(value_type = Option<OnConflictWord>)]
    on_conflict: Option<OnConflict>,
    /// When the job gives up its unique key. `end`: when it ends. `start`: once its first attempt has started, the next
    /// job that asks gets the key, so that work requested during a run is not lost. Default: `end`. Only with
    /// `unique_key` or `unique_fields`.
    #[schema(value_type = Option<crate::view::UniqueUntilWord>)]
    unique_until: Option<UniqueUntil>,
    /// The unique key stays taken for at least this long after the job was accepted, in milliseconds, also when the job
    /// completes before. A job that fails or is cancelled frees its key at once. Only with `unique_key` or `unique_fields`.
    #[schema(minimum = 1, maximum = 31_622_400_000_u64)]
    unique_for_ms: Option<u64>,
    /// Requests with the same unique key put the job off at most until this long after its acceptance, in milliseconds.
    /// Only with `on_conflict` `postpone`.
    #[schema(minimum = 1, maximum = 31_622_400_000_u64)]
    max_wait_ms: Option<u64>,
    /// Order key. Jobs with the same order key run one at a time, in the order in which they were accepted, whatever
    /// their kinds and queues are. A job that waits for its next attempt keeps its place.
    #[schema(min_length = 1, max_length = 255)]
    order_key: Option<String>,
    /// Limit key. The limits that operators set at `/v1/limits` count the jobs with the same limit key. A `/` makes the
    /// part before it the parent, as in `tenant-7/user-42`.
    #[schema(min_length = 1, max_length = 255)]
    limit_key: Option<String>,
    /// What the final failure of the job does to the jobs behind it. `block`: they wait until the failed job is
    /// retried, replayed, discarded or deleted. `skip`: the next one runs. Default: `block`. Only with `order_key`.
    #[schema(value_type = Option<crate::view::OnFailureWord>)]
    on_failure: Option<OnFailure>,
    /// Parents of the job, at most 100: it waits until all of them have ended. Ids of jobs; in `/v1/jobs/batch` and
    /// `/v1/batches` also positions of earlier jobs of the same request, counted from 0. Not together with `order_key`.
    #[serde(default, deserialize_with = "or_default")]
    #[schema(value_type = Option<Vec<ParentBody>>, max_items = 100)]
    after: Vec<ParentBody>,
    /// What happens to the job when a parent fails for good or is cancelled. `cancel`: it is cancelled. `run`: it runs as
    /// if the parent had completed. `hold`: it waits until the parent has been retried and has completed. Default:
    /// `cancel`. Only with `after`.
    #[schema(value_type = Option<crate::view::OnParentFailureWord>)]
    on_parent_failure: Option<OnParentFailure>,
    /// Batch that counts the job, one of `/v1/batches`. It must not have ended.
    #[schema(format = "uuid")]
    batch: Option<String>,
    /// Backoff between attempts. Default: that of the kind.
    #[schema(value_type = Option<RetryView>)]
    retry: Option<Object<RetryView>>,
    /// Tags to find the job by, at most ten.
    #[serde(default, deserialize_with = "or_default")]
    #[schema(value_type = Option<Vec<String>>, max_items = 10, example = json!(["tenant:42"]))]
    tags: Vec<String>,
    /// Trace that the attempts continue. Default: the trace of the request's `traceparent` header.
    #[schema(value_type = Option<TraceView>)]
    trace: Option<Object<TraceView>>,
}

/// A parent of a job: the id of a job, or the position of an earlier job of the same request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a parent is the id of a job, or the position of an earlier job of the same request")]
pub(crate) enum ParentBody {
    Place(u64),
    Id(String),
}

impl ParentBody {
    fn id(&self, earlier: &[Option<JobId>]) -> Result<JobId, String> {
        match self {
            Self::Id(text) => text
                .parse()
                .map_err(|_| "must be the id of a job, such as 019a8b7c-5d3e-7f10-8a2b-3c4d5e6f7a8b".to_owned()),
            Self::Place(_) if earlier.is_empty() => {
                Err("there is no earlier job in this request: give the id of a job".to_owned())
            }
            Self::Place(place) => match usize::try_from(*place).ok().and_then(|place| earlier.get(place)) {
                Some(Some(id)) => Ok(*id),
                Some(None) => Err(format!("job {place} of this request is not valid")),
                None => Err(format!("must be the position of an earlier job: less than {}", earlier.len())),
            },
        }
    }
}

/// Action when an unfinished job has the unique key.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used; the value is the domain's own type")]
pub(crate) enum OnConflictWord {
    Return,
    Reject,
    Replace,
    Postpone,
}

impl NewJobBody {
    /// Refuse the job if the caller's API key may not enqueue its kind, or not in its queue. `prefix` points at the job in
    /// the body.
    pub(crate) fn check_requester(&self, api: &Api, asker: &Requester, prefix: &str) -> Result<(), Problem> {
        asker.may_enqueue(&self.kind, &self.payload, prefix)?;
        if !asker.has_queues() {
            return Ok(());
        }
        let kind = api.broker.registry().find(&self.kind);
        let of_kind = kind.as_ref().and_then(|kind| kind.queue()).map_or("default", Name::as_str);
        asker.may_use_queue(self.queue.as_deref().unwrap_or(of_kind), prefix)
    }

    fn draft(self, prefix: &str, trace: Option<&TraceContext>, earlier: &[Option<JobId>]) -> Result<Draft, Problem> {
        let mut wrong = Vec::new();
        let mut after = Vec::with_capacity(self.after.len());
        for (place, parent) in self.after.iter().enumerate() {
            match parent.id(earlier) {
                Ok(id) => after.push(id),
                Err(why) => wrong.push(tickr_handlers::Problem::at(format!("/after/{place}"), why)),
            }
        }
        let batch = self.batch.as_ref().map(|text| text.parse::<BatchId>()).transpose();
        if batch.is_err() {
            wrong.push(tickr_handlers::Problem::at("/batch", "must be the id of a batch, one of /v1/batches"));
        }
        let (Ok(batch), true) = (batch, wrong.is_empty()) else {
            return Err(Problem::new(Code::InvalidRequest, "the job is not valid; `errors` says why").at(prefix, wrong));
        };
        let due = due(self.execute_at, self.delay_ms, prefix)?.unwrap_or(Due::Now);
        let expires = expiry(self.expires_at, self.expires_in_ms, prefix)?;
        Ok(Draft {
            kind: self.kind,
            payload: self.payload,
            queue: self.queue,
            due,
            expires,
            priority: self.priority,
            max_attempts: self.max_attempts,
            timeout_ms: self.timeout_ms,
            retry: self.retry.map(|Object(retry)| retry.into()),
            unique_key: self.unique_key,
            unique_fields: self.unique_fields,
            on_conflict: self.on_conflict,
            unique_until: self.unique_until,
            unique_for_ms: self.unique_for_ms,
            max_wait_ms: self.max_wait_ms,
            order_key: self.order_key,
            limit_key: self.limit_key,
            on_failure: self.on_failure,
            after,
            on_parent_failure: self.on_parent_failure,
            batch,
            tags: self.tags,
            trace: self.trace.and_then(|Object(own)| own.context()).or_else(|| trace.cloned()),
        })
    }
}

/// Return the due time that a body gives in one of two ways, if it gives one.
pub(crate) fn due(
    execute_at: Option<DateTime<Utc>>,
    delay_ms: Option<u64>,
    prefix: &str,
) -> Result<Option<Due>, Problem> {
    match (execute_at, delay_ms) {
        (None, None) => Ok(None),
        (Some(moment), None) => Ok(Some(Due::At(moment))),
        (None, Some(ms)) => Ok(Some(Due::After(Duration::from_millis(ms)))),
        (Some(_), Some(_)) => {
            let both = tickr_handlers::Problem::at("/delay_ms", "give execute_at or delay_ms, not both");
            Err(Problem::new(Code::InvalidRequest, "the job has two due times").at(prefix, vec![both]))
        }
    }
}

/// Return the expiry that a body gives in one of two ways, if it gives one.
fn expiry(at: Option<DateTime<Utc>>, in_ms: Option<u64>, prefix: &str) -> Result<Option<Due>, Problem> {
    match (at, in_ms) {
        (None, None) => Ok(None),
        (Some(moment), None) => Ok(Some(Due::At(moment))),
        (None, Some(ms)) => Ok(Some(Due::After(Duration::from_millis(ms)))),
        (Some(_), Some(_)) => {
            let both = tickr_handlers::Problem::at("/expires_in_ms", "give expires_at or expires_in_ms, not both");
            Err(Problem::new(Code::InvalidRequest, "the job expires at two times").at(prefix, vec![both]))
        }
    }
}

pub(crate) fn prepare(
    api: &Api,
    body: NewJobBody,
    prefix: &str,
    trace: Option<&TraceContext>,
    earlier: &[Option<JobId>],
) -> Result<NewJob, Problem> {
    let draft = body.draft(prefix, trace, earlier)?;
    api.broker.prepare(draft).map_err(|invalid| Problem::invalid(prefix, invalid))
}

/// Accept jobs, at most once if the request has an idempotency key. `build` builds the response from the receipts.
pub(crate) async fn accept(
    api: &Api,
    producer: &Producer,
    jobs: Vec<NewJob>,
    idempotent: Option<IdempotentRequest>,
    shows: ResponseContent,
    build: ResponseBuilder<EnqueueReceipts>,
    taken: impl FnOnce(&[(usize, KeyHolder)]) -> Problem,
) -> Result<Response, Problem> {
    let place = |at: usize| if shows == ResponseContent::Job { String::new() } else { format!("/jobs/{at}") };
    let outcome = api.broker.enqueue_request(producer, jobs, idempotent, build).await?;
    let shows = match &outcome {
        IdempotentOutcome::First { done: Some(receipts), .. }
            if shows == ResponseContent::Job && receipts.accepted().any(|accepted| accepted.held) =>
        {
            ResponseContent::HeldJob
        }
        _ => shows,
    };
    respond_to_outcome(outcome, shows, |refusal| {
        Err(match refusal {
            EnqueueRefusal::KeysTaken(holders) => taken(&holders),
            EnqueueRefusal::Links(problems) => {
                links_refused(problems.iter().map(|(at, problem)| (place(*at), problem)), "batch")
            }
        })
    })
}

/// Say which parents or batches jobs cannot have. Each problem comes with the pointer to its job. `of_batch` is the field
/// that names a batch there.
pub(crate) fn links_refused<'a>(problems: impl Iterator<Item = (String, &'a LinkProblem)>, of_batch: &str) -> Problem {
    let problems: Vec<(String, &LinkProblem)> = problems.take(20).collect();
    let over = |problem: &LinkProblem| matches!(problem, LinkProblem::EndedBatch(_) | LinkProblem::CancelledBatch(_));
    let (code, detail) = if problems.iter().all(|(_, problem)| over(problem)) {
        (Code::WrongState, "the batch has ended or was cancelled; nothing was written")
    } else {
        (Code::InvalidRequest, "a parent or a batch does not exist; nothing was written")
    };
    let errors = problems.into_iter().map(|(pointer, problem)| {
        let field = if matches!(problem, LinkProblem::UnknownParent(_)) { "after" } else { of_batch };
        tickr_handlers::Problem::at(format!("{pointer}/{field}"), problem.to_string())
    });
    Problem::new(code, detail).at("", errors.collect())
}

pub(crate) fn json_answer(status: StatusCode, body: &impl Serialize) -> Answer {
    Answer { status: status.as_u16(), body: serde_json::to_string(body).unwrap_or_default() }
}

/// Enqueue a job
///
/// The response is sent after the job is committed. When an unfinished job has the `unique_key`, `on_conflict` decides.
/// A key with the scope `enqueue` learns only the id and the state of another producer's job, and may not replace it.
#[utoipa::path(
    post, path = "/v1/jobs", tag = "jobs", operation_id = "enqueue_job", request_body = NewJobBody,
    responses(
        (status = 201, description = "The job is accepted and durable", body = JobView, headers(("Location" = String))),
        (status = 200, description = "An unfinished job has the unique key; nothing was written", body = SeenJob),
        (status = 409, description = "unique_key_taken: `holder` has the unique key; wrong_state: the batch has ended or was cancelled. Nothing was written", body = Problem),
        (status = 422, description = "invalid_request, unknown_kind, invalid_payload", body = Problem),
        (status = 429, description = "overloaded", body = Problem),
    )
)]
pub(crate) async fn enqueue(
    State(api): State<Api>,
    asker: Requester,
    traced: RequestTrace,
    key: Key,
    Body(body, text): Body<NewJobBody>,
) -> Response {
    let answer = enqueue_one(&api, &asker, &traced, key, body, &text).await;
    traced.end_with("/v1/jobs", answer)
}

async fn enqueue_one(
    api: &Api,
    asker: &Requester,
    traced: &RequestTrace,
    key: Key,
    body: NewJobBody,
    text: &[u8],
) -> Result<Response, Problem> {
    body.check_requester(api, asker, "")?;
    let idempotent = key.request("POST /v1/jobs", Some(text))?;
    let job = match prepare(api, body, "", traced.0.trace_context(), &[]) {
        Ok(job) => job,
        Err(problem) => return replay_stored(api, idempotent, ResponseContent::Job, problem).await,
    };
    let asked = job.clone();
    let warnings = api.warnings.about(api.broker.store(), &api.operator_settings, std::slice::from_ref(&job)).await;
    let build = move |receipts: &EnqueueReceipts| match (receipts.jobs.first(), receipts.holder.as_deref()) {
        (Some(EnqueuedJob::New(accepted)), _) => {
            json_answer(StatusCode::CREATED, &JobView::accepted(&asked, accepted, warnings.clone()))
        }
        (_, Some((job, attempts))) => json_answer(StatusCode::OK, &JobView::read(job.clone(), Some(attempts.clone()))),
        (Some(EnqueuedJob::Existing(holder)), None) => {
            json_answer(StatusCode::OK, &ForeignJobView::new(holder.id, holder.state))
        }
        // The store returns either a receipt or a holder, so this does not happen.
        (None, None) => json_answer(StatusCode::OK, &()),
    };
    accept(api, asker.producer(), vec![job], idempotent, ResponseContent::Job, Arc::new(build), |taken| {
        let detail = taken.first().map_or(String::new(), |(_, holder)| held_detail(holder, "; nothing was written"));
        let problem = Problem::new(Code::UniqueKeyTaken, detail)
            .at("", taken.iter().map(|held| unique_key_taken("", held)).collect());
        taken.first().map_or(problem.clone(), |(_, holder)| problem.held_by(holder))
    })
    .await
}

/// Say why the unique key is taken.
pub(crate) fn held_detail(holder: &KeyHolder, rest: &str) -> String {
    if holder.state.is_end() {
        return format!("a job that completed holds this unique key until its unique_for_ms is over{rest}");
    }
    let why = "; that job belongs to another producer, so only its producer or an admin key may replace or \
               postpone it";
    format!("an unfinished job has this unique key{rest}{}", if holder.foreign { why } else { "" })
}

pub(crate) fn unique_key_taken(prefix: &str, (_, holder): &(usize, KeyHolder)) -> tickr_handlers::Problem {
    let whose = if holder.foreign { " of another producer" } else { "" };
    tickr_handlers::Problem::at(
        format!("{prefix}/unique_key"),
        format!("is taken by job {}{whose}, which is {}", holder.id, holder.state),
    )
}

/// Jobs to enqueue together.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchBody {
    /// Jobs to enqueue, 1 to 1,000.
    #[schema(min_items = 1, max_items = 1000, value_type = Vec<NewJobBody>)]
    jobs: Vec<Object<NewJobBody>>,
    /// True if the jobs run one after the other: each also waits for the end of the job before it, as if its `after` named
    /// that one. `on_parent_failure` says what happens when that one fails. Behind the first job a unique key takes
    /// `on_conflict` `reject` or `replace` alone. Default: false.
    #[serde(default)]
    chain: bool,
}

impl BatchBody {
    pub(crate) const fn of(jobs: Vec<Object<NewJobBody>>, chain: bool) -> Self {
        Self { jobs, chain }
    }
}

/// The receipt of a batch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchAnswer {
    /// Receipts in the order of the request.
    jobs: Vec<Receipt>,
    /// Reasons why some of the jobs would not run at present. Left out when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    warnings: Vec<String>,
}

/// The receipt of one job of a batch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Receipt {
    /// Id of the job.
    id: String,
    /// Due time of the job. Left out for another producer's job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    execute_at: Option<crate::view::Moment>,
    /// True when this is not a new job: an unfinished job, or an earlier job of this batch, has the unique key.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    existing: bool,
}

/// Enqueue many jobs, all or none
#[utoipa::path(
    post, path = "/v1/jobs/batch", tag = "jobs", operation_id = "enqueue_batch", request_body = BatchBody,
    responses(
        (status = 201, description = "All accepted and durable", body = BatchAnswer),
        (status = 200, description = "Unfinished jobs have all the unique keys; nothing was written", body = BatchAnswer),
        (status = 409, description = "unique_key_taken; wrong_state: a batch has ended or was cancelled. Nothing was written", body = Problem),
        (status = 422, description = "invalid_request, unknown_kind, invalid_payload: nothing was written", body = Problem),
        (status = 429, description = "overloaded", body = Problem),
    )
)]
pub(crate) async fn enqueue_batch(
    State(api): State<Api>,
    asker: Requester,
    traced: RequestTrace,
    key: Key,
    Body(body, text): Body<BatchBody>,
) -> Response {
    let answer = enqueue_all(&api, &asker, &traced, key, body, &text).await;
    traced.end_with("/v1/jobs/batch", answer)
}

async fn enqueue_all(
    api: &Api,
    asker: &Requester,
    traced: &RequestTrace,
    key: Key,
    body: BatchBody,
    text: &[u8],
) -> Result<Response, Problem> {
    check_all_requested(api, &body.jobs, asker)?;
    let idempotent = key.request("POST /v1/jobs/batch", Some(text))?;
    let jobs = match prepare_all(api, body, traced.0.trace_context()) {
        Ok(jobs) => jobs,
        Err(problem) => return replay_stored(api, idempotent, ResponseContent::Other, problem).await,
    };
    let warnings = api.warnings.about(api.broker.store(), &api.operator_settings, &jobs).await;
    let build = move |receipts: &EnqueueReceipts| {
        let receipt = |placed: &EnqueuedJob| match placed {
            EnqueuedJob::New(accepted) => (accepted.id, Some(accepted.execute_at), false),
            EnqueuedJob::Existing(holder) => (holder.id, Some(holder.execute_at).filter(|_| !holder.foreign), true),
        };
        let receipt = |placed: &EnqueuedJob| {
            let (id, execute_at, existing) = receipt(placed);
            Receipt { id: id.to_string(), execute_at: execute_at.map(crate::view::Moment), existing }
        };
        let status = if receipts.accepted().next().is_some() { StatusCode::CREATED } else { StatusCode::OK };
        let jobs = receipts.jobs.iter().map(receipt).collect();
        json_answer(status, &BatchAnswer { jobs, warnings: warnings.clone() })
    };
    accept(api, asker.producer(), jobs, idempotent, ResponseContent::Other, Arc::new(build), |taken| {
        let here = |held: &(usize, KeyHolder)| unique_key_taken(&format!("/jobs/{}", held.0), held);
        let problem =
            Problem::new(Code::UniqueKeyTaken, "unfinished jobs have some of the unique keys; nothing was written");
        problem.at("", taken.iter().map(here).collect())
    })
    .await
}

/// Refuse the batch if the caller's API key may not enqueue one of its jobs, because of its kind or its queue.
pub(crate) fn check_all_requested(api: &Api, jobs: &[Object<NewJobBody>], asker: &Requester) -> Result<(), Problem> {
    let mut refused: Option<Problem> = None;
    for (place, Object(job)) in jobs.iter().enumerate().take(limits::MAX_BATCH) {
        match (job.check_requester(api, asker, &format!("/jobs/{place}")), &mut refused) {
            (Ok(()), _) => {}
            (Err(problem), None) => refused = Some(problem),
            (Err(problem), Some(refused)) => refused.join(&problem),
        }
    }
    refused.map_or(Ok(()), Err)
}

pub(crate) fn prepare_all(api: &Api, body: BatchBody, trace: Option<&TraceContext>) -> Result<Vec<NewJob>, Problem> {
    let count = body.jobs.len();
    if count == 0 || count > limits::MAX_BATCH {
        let here =
            tickr_handlers::Problem::at("/jobs", format!("must be 1 to {} jobs, not {count}", limits::MAX_BATCH));
        return Err(Problem::new(Code::InvalidRequest, "invalid size of a batch; `errors` says why").at("", vec![here]));
    }
    let mut jobs = Vec::with_capacity(count);
    let mut first: Option<Problem> = None;
    // Collect the errors of all jobs, up to the limit of a response.
    let mut wrong = |problem: Problem| match &mut first {
        None => first = Some(problem),
        Some(first) => first.join(&problem),
    };
    let mut ids: Vec<Option<JobId>> = Vec::with_capacity(count);
    let mut keys: HashMap<(Name, String), usize> = HashMap::new();
    for (place, Object(mut one)) in body.jobs.into_iter().enumerate() {
        let prefix = format!("/jobs/{place}");
        if body.chain
            && let Some(before) = ids.last()
        {
            // Behind a job that is not valid any id will do, because the request is refused.
            let before = before.unwrap_or_else(JobId::new);
            if one.after.iter().all(|parent| parent.id(&ids) != Ok(before)) {
                one.after.push(ParentBody::Id(before.to_string()));
            }
        }
        let job = match prepare(api, one, &prefix, trace, &ids) {
            Ok(job) => job,
            Err(problem) => {
                ids.push(None);
                wrong(problem);
                continue;
            }
        };
        ids.push(Some(job.id));
        if let Some(key) = &job.unique_key {
            let first = *keys.entry((job.kind.clone(), key.clone())).or_insert(place);
            if let Some(why) = job.on_conflict.problem_in_chain().filter(|_| body.chain && place > 0) {
                let here = tickr_handlers::Problem::at("/unique_key", why);
                let detail = "another job may answer in place of a job of the chain";
                wrong(Problem::new(Code::InvalidRequest, detail).at(&prefix, vec![here]));
            } else if first < place && job.on_conflict != OnConflict::Return {
                let here =
                    tickr_handlers::Problem::at("/unique_key", format!("is also the unique key of /jobs/{first}"));
                let detail = "a job can neither reject, replace nor postpone another one of its own batch";
                wrong(Problem::new(Code::InvalidRequest, detail).at(&prefix, vec![here]));
            }
        }
        jobs.push(job);
    }
    first.map_or(Ok(jobs), Err)
}

filter_query! {
    /// Filter and page of a listing of jobs.
    ListQuery {
        /// Number of jobs in one page, 1 to 200.
        #[param(minimum = 1, maximum = 200, default = 50)]
        limit: Option<u32>,
        /// `next_cursor` of the last page. It is valid only with the same filter and order.
        cursor: Option<String>,
        /// Order of the jobs by the times in their ids. A row of the outbox may have an id that its application made
        /// long before the acceptance. Default: `newest` first.
        #[param(inline)]
        sort: Option<SortWord>,
    }
}

/// An order of jobs by the times in their ids.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SortWord {
    /// The job with the newest id first.
    #[default]
    Newest,
    /// The job with the oldest id first.
    Oldest,
}

impl From<SortWord> for SearchOrder {
    fn from(word: SortWord) -> Self {
        match word {
            SortWord::Newest => Self::NewestFirst,
            SortWord::Oldest => Self::OldestFirst,
        }
    }
}

filter_query! {
    /// Filter of a count of jobs.
    CountQuery {}
}

/// A page of jobs.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ListAnswer {
    /// Jobs, in the order that was asked for.
    pub(crate) data: Vec<JobView>,
    /// Cursor of the next page; null on the last page. A page may be short or empty and still have a cursor, because
    /// one page reads only a bounded number of rows.
    pub(crate) next_cursor: Option<String>,
    /// Number of jobs that this page looked at.
    pub(crate) searched: u64,
    /// Time in the id up to which this page searched, from the newest or from the oldest id on; null on the last page.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) searched_to: Option<Moment>,
}

impl ListAnswer {
    pub(crate) fn new(page: JobPage, listing: &Listing) -> Self {
        Self {
            data: page.jobs.into_iter().map(|job| JobView::read(job, None)).collect(),
            next_cursor: page.next.map(|id| listing.cursor(id.uuid().as_bytes())),
            searched: page.looked_at,
            searched_to: page.next.and_then(|id| moment_of_id(id.uuid())).map(Moment),
        }
    }
}

/// List jobs
#[utoipa::path(
    get, path = "/v1/jobs", tag = "jobs", operation_id = "list_jobs", params(ListQuery),
    responses(
        (status = 200, description = "A page of jobs, without payloads, results and attempts", body = ListAnswer),
        (status = 422, description = "invalid_request, invalid_cursor", body = Problem),
    )
)]
pub(crate) async fn list(
    State(api): State<Api>,
    QueryParams(asked): QueryParams<ListQuery>,
) -> Result<Response, Problem> {
    let words = asked.words();
    let mut problems = Vec::new();
    let filter = words.read(api.broker.store().clock().now(), "").unwrap_or_else(|wrong| {
        problems = wrong;
        Filter::default()
    });
    let limit = read_page_size(asked.limit, &mut problems);
    if !problems.is_empty() {
        return Err(refused(problems));
    }
    let sort = asked.sort.unwrap_or_default();
    // The default order keeps the digest of the cursors that clients have.
    let listing = match sort {
        SortWord::Newest => Listing::new("jobs", &words),
        SortWord::Oldest => Listing::new("jobs, oldest first", &words),
    };
    let place = listing.id(asked.cursor.as_deref())?.map(JobId::from_uuid);
    let (store, plain) = (api.broker.store().clone(), filter == Filter::default());
    let read = async move { store.list_in_order(filter, Among::All, sort.into(), place, limit).await };
    // Without a filter, MySQL reads the jobs by primary key, which is cheap and needs no permit.
    let page = if plain { read.await? } else { run_with_seat(&api, read).await? };
    Ok(json(StatusCode::OK, ListAnswer::new(page, &listing)))
}

/// The number of jobs that match a filter.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CountAnswer {
    /// Number of jobs found.
    count: u64,
    /// True when there may be more: a count stops at ten thousand jobs, or after a bounded number of rows.
    capped: bool,
}

/// Count jobs
///
/// The filters are those of the listing. A count stops at ten thousand jobs and reads a bounded number of rows. Each
/// runner executes a few searches and counts at a time and refuses the others with 429 `overloaded`.
#[utoipa::path(
    get, path = "/v1/jobs/count", tag = "jobs", operation_id = "count_jobs", params(CountQuery),
    responses(
        (status = 200, description = "The count", body = CountAnswer),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(crate) async fn count(
    State(api): State<Api>,
    QueryParams(asked): QueryParams<CountQuery>,
) -> Result<Response, Problem> {
    let filter = asked.words().read(api.broker.store().clock().now(), "").map_err(refused)?;
    let store = api.broker.store().clone();
    let counted = run_with_seat(&api, async move { store.count(filter).await }).await?;
    Ok(json(StatusCode::OK, CountAnswer { count: counted.jobs, capped: counted.capped }))
}

/// Show a job with its attempts
///
/// A key with the scope `enqueue` sees its producer's jobs, and any job without a unique key whose id it knows. Of
/// another producer's job with a unique key, it sees only the id and the state. A key with the scope `work` sees the
/// same of the jobs whose ids it knows, and is not told their parents and batches.
#[utoipa::path(
    get, path = "/v1/jobs/{id}", tag = "jobs", operation_id = "show_job",
    params(
        ("id" = Uuid, Path, description = "The job's id"),
        ("If-None-Match" = Option<String>, Header, description = "Respond with 304 if the job has one of these ETags"),
    ),
    responses(
        (status = 200, description = "The job", body = SeenJob),
        (status = 304, description = "The job has not changed: it has one of the given ETags", headers(("ETag" = String))),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
    )
)]
pub(crate) async fn show(
    State(api): State<Api>,
    asker: Requester,
    IdPath(id): IdPath,
    known: IfNoneMatch,
) -> Result<Response, Problem> {
    let (job, attempts) = api.broker.store().job(id).await?.ok_or_else(|| Problem::not_found("job", id))?;
    Ok(known.not_modified_if_match(respond_with_etag(StatusCode::OK, &asker.show(job, attempts))))
}

/// Page of the children of a job.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ChildrenQuery {
    /// Number of jobs in one page, 1 to 200.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the last page.
    cursor: Option<String>,
}

/// A page of the children of a job.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChildrenAnswer {
    /// The children, in the order of their ids.
    data: Vec<ChildView>,
    /// Cursor of the next page; null on the last page.
    next_cursor: Option<String>,
}

/// A job that waits or waited for a parent.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChildView {
    id: String,
    #[schema(value_type = crate::view::StateWord)]
    state: JobState,
}

/// List the children of a job: those that wait or waited for its end
#[utoipa::path(
    get, path = "/v1/jobs/{id}/children", tag = "jobs", operation_id = "list_children",
    params(("id" = Uuid, Path, description = "The job's id"), ChildrenQuery),
    responses(
        (status = 200, description = "A page of jobs", body = ChildrenAnswer),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_id, invalid_request, invalid_cursor", body = Problem),
    )
)]
pub(crate) async fn children(
    State(api): State<Api>,
    IdPath(id): IdPath,
    QueryParams(asked): QueryParams<ChildrenQuery>,
) -> Result<Response, Problem> {
    let limit = page_size(asked.limit)?;
    let listing = Listing::new("children", &id);
    let after = listing.id(asked.cursor.as_deref())?.map(JobId::from_uuid);
    let mut children = api.broker.store().children_of(id, after, limit + 1).await?;
    let more = children.len() > limit as usize;
    if children.is_empty() && api.broker.store().job(id).await?.is_none() {
        return Err(Problem::not_found("job", id));
    }
    children.truncate(limit as usize);
    let next_cursor = children.last().filter(|_| more).map(|(last, _)| listing.cursor(last.uuid().as_bytes()));
    let data = children.into_iter().map(|(id, state)| ChildView { id: id.to_string(), state }).collect();
    Ok(json(StatusCode::OK, ChildrenAnswer { data, next_cursor }))
}

/// The query of a cancel.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct CancelParams {
    /// With `executing`, a job that is running is left alone: the response is 409 `wrong_state`. So a delivery that is
    /// under way is not cut off.
    #[param(inline)]
    unless: Option<UnlessWord>,
}

/// The state in which a cancel leaves a job alone.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UnlessWord {
    Executing,
}

/// Cancel a job
///
/// 200: the job was waiting, and no further attempt starts. 202: the job is running and was asked to stop. 409: the job
/// has ended, or is running and the query says `unless=executing`. A key with the scope `enqueue` may cancel every job
/// that it may see.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/cancel", tag = "jobs", operation_id = "cancel_job",
    params(("id" = Uuid, Path, description = "The job's id"), CancelParams),
    responses(
        (status = 200, description = "Cancelled: no further attempt of the job starts", body = JobView),
        (status = 202, description = "The job is running, and its handler was asked to stop", body = JobView),
        (status = 404, description = "not_found", body = Problem),
        (status = 403, description = "forbidden: the job belongs to another producer", body = Problem),
        (status = 409, description = "wrong_state: the job has ended, or is running and `unless` says to leave it alone", body = Problem),
        (status = 422, description = "invalid_id, invalid_request", body = Problem),
    )
)]
pub(crate) async fn cancel(
    State(api): State<Api>,
    asker: Requester,
    IdPath(id): IdPath,
    QueryParams(params): QueryParams<CancelParams>,
    key: Key,
) -> Result<Response, Problem> {
    let action = match params.unless {
        None => JobAction::Cancel,
        Some(UnlessWord::Executing) => JobAction::CancelUnlessExecuting,
    };
    if !asker.sees_every_job() {
        let Some((job, _)) = api.broker.store().job(id).await? else {
            let idempotent = key.request(&call_of(id, action), None)?;
            return replay_stored(&api, idempotent, ResponseContent::Job, Problem::not_found("job", id)).await;
        };
        asker.require_access(&job)?;
    }
    act_on_job(&api, id, action, asker.producer().actor(), key).await
}

/// Retry a failed or cancelled job
///
/// Give the job a full set of attempts. 409 for a job in any other state, and while another job has its unique key.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/retry", tag = "jobs", operation_id = "retry_job", params(("id" = Uuid, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The job waits again", body = JobView),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "wrong_state, unique_key_taken: `holder` has the unique key; nothing was written", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
    )
)]
pub(crate) async fn retry(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    IdPath(id): IdPath,
    key: Key,
) -> Result<Response, Problem> {
    act_on_job(&api, id, JobAction::Retry, &who, key).await
}

/// Run a waiting job now
///
/// Make a waiting or retrying job due at once. 409 for a job in any other state.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/run-now", tag = "jobs", operation_id = "run_job_now", params(("id" = Uuid, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The job is due now", body = JobView),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "wrong_state", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
    )
)]
pub(crate) async fn run_now(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    IdPath(id): IdPath,
    key: Key,
) -> Result<Response, Problem> {
    act_on_job(&api, id, JobAction::RunNow, &who, key).await
}

/// Return the call that an idempotency key of this action is bound to.
fn call_of(id: JobId, action: JobAction) -> String {
    let word = match action {
        JobAction::Cancel => "cancel",
        JobAction::CancelUnlessExecuting => "cancel?unless=executing",
        JobAction::Retry => "retry",
        JobAction::RunNow => "run-now",
    };
    format!("POST /v1/jobs/{id}/{word}")
}

async fn act_on_job(api: &Api, id: JobId, action: JobAction, who: &Actor, key: Key) -> Result<Response, Problem> {
    let refusal = match action {
        JobAction::Cancel => "a job that has ended cannot be cancelled",
        JobAction::CancelUnlessExecuting => "only a waiting or retrying job is cancelled with unless=executing",
        JobAction::Retry => "only a failed or cancelled job that was not replayed can be retried",
        JobAction::RunNow => "only a waiting or retrying job can be run now",
    };
    let refused = |outcome: ActionOutcome| match outcome {
        ActionOutcome::Refused(state) => {
            Problem::new(Code::WrongState, format!("{refusal}; this one is {state}")).in_state(state)
        }
        ActionOutcome::Held(state) => {
            let detail =
                "the job waits for its turn: behind its order key, for a limit or for its parents; explain says which";
            Problem::new(Code::WrongState, detail).in_state(state)
        }
        ActionOutcome::UniqueKeyTaken { holder, state } => {
            let detail = format!("job {holder} has the unique key and is {state}; nothing was written");
            let mut problem = Problem::new(Code::UniqueKeyTaken, detail).in_state(state);
            problem.holder = Some(holder.to_string());
            problem
        }
        _ => Problem::not_found("job", id),
    };
    let status = |outcome: &ActionOutcome| {
        if *outcome == ActionOutcome::StopRequested { StatusCode::ACCEPTED } else { StatusCode::OK }
    };
    let idempotent = key.request(&call_of(id, action), None)?;
    let build = move |updated: &UpdatedJob| {
        json_answer(status(&updated.outcome), &JobView::read(updated.job.clone(), Some(updated.attempts.clone())))
    };
    let outcome = api.broker.act(id, action, who, idempotent, Arc::new(build)).await?;
    respond_to_outcome(outcome, ResponseContent::Job, |outcome| Err(refused(outcome)))
}
