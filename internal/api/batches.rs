//! `/v1/batches`: jobs that belong together, with callbacks that follow from their ends.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use utoipa::{IntoParams, ToSchema};

use crate::bulk::{OperationView, start_counted};
use crate::http::auth::RequestActor;
use crate::http::body::{BatchPath, Body, Object, QueryParams, or_default};
use crate::http::caller::Requester;
use crate::http::cursor::{Listing, page_size};
use crate::http::idempotency::{Key, ResponseContent, replay_stored, respond_to_outcome};
use crate::http::problem::{Code, Problem};
use crate::http::searches::run_with_seat;
use crate::http::trace::RequestTrace;
use crate::jobs::{BatchBody, NewJobBody, check_all_requested, json_answer, links_refused, prepare, prepare_all};
use crate::view::Moment;
use crate::{Api, json};
use tickr_job::{
    Action, BatchId, Choice, Due, Filter, JobId, NewJob, NewOperation, Operation, OperationParams, State as JobState,
    TraceContext, limits,
};
use tickr_store::{
    Batch, BatchCounts, BatchCreated, Callback, CallbackEvent, CancelMark, MAX_NESTED, MAX_NESTED_LEVELS,
    MAX_WITH_FAILURES, NewBatch,
};

/// Longest time for which the response to a cancel waits for the nested batches and the jobs.
const CANCEL_WAIT: Duration = Duration::from_secs(20);

/// A batch to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewBatchBody {
    /// Name of the batch, for people.
    #[schema(max_length = 200, example = "nightly invoices")]
    name: Option<String>,
    /// First jobs of the batch, at most 1,000, without unique keys. More are added by their field `batch`.
    #[serde(default, deserialize_with = "or_default")]
    #[schema(max_items = 1000, value_type = Option<Vec<NewJobBody>>)]
    jobs: Vec<Object<NewJobBody>>,
    /// True if the first jobs run one after the other: each also waits for the end of the job before it, as if its `after`
    /// named that one. Default: false.
    #[serde(default)]
    chain: bool,
    /// Job to enqueue when all jobs of the batch have completed, also if some of them had to be retried by an operator
    /// before.
    #[schema(value_type = Option<NewJobBody>)]
    on_success: Option<Object<NewJobBody>>,
    /// Job to enqueue when all jobs of the batch have ended for the first time.
    #[schema(value_type = Option<NewJobBody>)]
    on_complete: Option<Object<NewJobBody>>,
    /// Job to enqueue when the first job of the batch fails for good.
    #[schema(value_type = Option<NewJobBody>)]
    on_failure: Option<Object<NewJobBody>>,
    /// Batch in which this one is nested: it counts this batch as one job, and the callbacks of this batch as well. It
    /// must not have ended.
    #[schema(format = "uuid")]
    parent: Option<String>,
    /// True if the batch is closed at once: it ends with its last job. Jobs that run may still add others. Default:
    /// false.
    #[serde(default)]
    close: bool,
}

/// The state of a batch.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used; the value is the store's own type")]
pub(super) enum BatchStateWord {
    Open,
    Running,
    Cancelling,
    Succeeded,
    Failed,
    Cancelled,
}

/// A batch.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BatchView {
    /// Id of the batch, a UUIDv7.
    id: String,
    /// Name of the batch; null when there is none.
    name: Option<String>,
    /// `open`: it is not closed, so it does not end. `running`: it is closed and has unfinished jobs. `cancelling`: it
    /// was cancelled and has unfinished jobs. `succeeded`: all jobs have completed. `failed`: all jobs had ended, and
    /// some had not completed. `cancelled`: it was cancelled, and all jobs have ended.
    #[schema(value_type = BatchStateWord)]
    state: &'static str,
    /// Number of jobs. A nested batch counts as one. The counts are those of the moment of the response; the state and
    /// the times follow them within a tenth of a second, or within a second or two when a runner died.
    total: i64,
    /// Number of unfinished jobs.
    pending: i64,
    completed: i64,
    failed: i64,
    cancelled: i64,
    /// Batch in which this one is nested; null when there is none.
    parent: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Moment,
    #[schema(value_type = Option<String>, format = DateTime)]
    closed_at: Option<Moment>,
    /// When a job failed for good for the first time.
    #[schema(value_type = Option<String>, format = DateTime)]
    failed_at: Option<Moment>,
    #[schema(value_type = Option<String>, format = DateTime)]
    cancelled_at: Option<Moment>,
    /// When all jobs had ended for the first time.
    #[schema(value_type = Option<String>, format = DateTime)]
    completed_at: Option<Moment>,
    /// When all jobs had completed.
    #[schema(value_type = Option<String>, format = DateTime)]
    succeeded_at: Option<Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_success: Option<CallbackView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_complete: Option<CallbackView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_failure: Option<CallbackView>,
    /// Only in the response to the creation: the ids of the first jobs, in the order of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    jobs: Option<Vec<String>>,
}

/// A callback of a batch.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CallbackView {
    /// Id of its job. The job exists once the callback is due.
    job_id: String,
    kind: String,
    queue: String,
}

impl BatchView {
    fn new(batch: &Batch) -> Self {
        let BatchCounts { total, completed, failed, cancelled } = batch.counts;
        let callback = |event| {
            let found = batch.callbacks.iter().find(|callback| callback.event == event);
            found.map(|Callback { job, .. }| CallbackView {
                job_id: job.id.to_string(),
                kind: job.kind.to_string(),
                queue: job.queue.to_string(),
            })
        };
        Self {
            id: batch.id.to_string(),
            name: batch.name.clone(),
            state: batch.state().as_str(),
            total,
            pending: batch.counts.pending(),
            completed,
            failed,
            cancelled,
            parent: batch.parent.map(|id| id.to_string()),
            created_at: Moment(batch.created.0),
            closed_at: batch.closed_at.map(Moment),
            failed_at: batch.failed_at.map(Moment),
            cancelled_at: batch.cancelled_at.map(Moment),
            completed_at: batch.completed_at.map(Moment),
            succeeded_at: batch.succeeded_at.map(Moment),
            on_success: callback(CallbackEvent::Success),
            on_complete: callback(CallbackEvent::Complete),
            on_failure: callback(CallbackEvent::Failure),
            jobs: None,
        }
    }
}

/// Create a batch
///
/// A batch counts the ends of its jobs, and enqueues its callbacks when all of them have ended or one has failed. Add jobs
/// with their field `batch`, from anywhere, then close the batch. A job of the batch can add others until it ends itself.
#[utoipa::path(
    post, path = "/v1/batches", tag = "batches", operation_id = "create_batch", request_body = NewBatchBody,
    responses(
        (status = 201, description = "The batch and its first jobs are accepted and durable", body = BatchView),
        (status = 409, description = "wrong_state: the parent has ended", body = Problem),
        (status = 422, description = "invalid_request, unknown_kind, invalid_payload: nothing was written", body = Problem),
    )
)]
pub(super) async fn create(
    State(api): State<Api>,
    asker: Requester,
    traced: RequestTrace,
    key: Key,
    Body(body, text): Body<NewBatchBody>,
) -> Response {
    let answer = create_one(&api, &asker, &traced, key, body, &text).await;
    traced.end_with("/v1/batches", answer)
}

async fn create_one(
    api: &Api,
    asker: &Requester,
    traced: &RequestTrace,
    key: Key,
    body: NewBatchBody,
    text: &[u8],
) -> Result<Response, Problem> {
    check_all_requested(api, &body.jobs, asker)?;
    let callbacks = [
        (CallbackEvent::Success, &body.on_success),
        (CallbackEvent::Complete, &body.on_complete),
        (CallbackEvent::Failure, &body.on_failure),
    ];
    for (event, callback) in callbacks {
        if let Some(Object(job)) = callback {
            job.check_requester(api, asker, &format!("/{}", event.field()))?;
        }
    }
    let idempotent = key.request("POST /v1/batches", Some(text))?;
    let new = match read(api, body, traced.0.trace_context()) {
        Ok(new) => new,
        Err(problem) => return replay_stored(api, idempotent, ResponseContent::Other, problem).await,
    };
    let batch = Batch {
        id: new.id,
        name: new.name.clone(),
        parent: new.parent,
        created: (chrono::DateTime::UNIX_EPOCH, asker.producer().actor().clone()),
        closed_at: None,
        cancelled_at: None,
        failed_at: None,
        completed_at: None,
        succeeded_at: None,
        counts: BatchCounts { total: new.jobs.len() as i64, ..BatchCounts::default() },
        callbacks: new.callbacks.clone(),
    };
    let closed = new.closed;
    let build = move |created: &BatchCreated| {
        let at = created.created_at;
        let batch = Batch { created: (at, batch.created.1.clone()), closed_at: closed.then_some(at), ..batch.clone() };
        let jobs = created.accepted.iter().map(|accepted| accepted.id.to_string()).collect();
        json_answer(StatusCode::CREATED, &BatchView { jobs: Some(jobs), ..BatchView::new(&batch) })
    };
    let outcome = api.broker.create_batch(new, asker.producer().actor(), idempotent, Arc::new(build)).await?;
    respond_to_outcome(outcome, ResponseContent::Other, |problems| {
        let problems = problems.iter().map(|(place, problem)| match place {
            Some(at) => (format!("/jobs/{at}"), problem),
            None => (String::new(), problem),
        });
        Err(links_refused(problems, "parent"))
    })
}

fn read(api: &Api, body: NewBatchBody, trace: Option<&TraceContext>) -> Result<NewBatch, Problem> {
    let wrong = |pointer: &str, detail: String| {
        let here = tickr_handlers::Problem::at(pointer, detail);
        Problem::new(Code::InvalidRequest, "invalid batch; `errors` says why").at("", vec![here])
    };
    let name = body.name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    if name
        .as_ref()
        .is_some_and(|name| name.chars().count() > limits::MAX_BATCH_NAME || name.chars().any(char::is_control))
    {
        let most = limits::MAX_BATCH_NAME;
        return Err(wrong("/name", format!("must have at most {most} characters, and no control characters")));
    }
    let parent: Option<BatchId> = match body.parent.map(|text| text.parse()).transpose() {
        Ok(parent) => parent,
        Err(_) => return Err(wrong("/parent", "must be the id of a batch, one of /v1/batches".to_owned())),
    };
    let jobs =
        if body.jobs.is_empty() { Vec::new() } else { prepare_all(api, BatchBody::of(body.jobs, body.chain), trace)? };
    for (place, job) in jobs.iter().enumerate() {
        if job.unique_key.is_some() {
            let why = "may not be given here: add the job with POST /v1/jobs and its field `batch`".to_owned();
            return Err(wrong(&format!("/jobs/{place}/unique_key"), why));
        }
        if job.options.batch.is_some() {
            return Err(wrong(&format!("/jobs/{place}/batch"), "may not be given here: it is this batch".to_owned()));
        }
    }
    let mut callbacks = Vec::new();
    for (event, asked) in [
        (CallbackEvent::Success, body.on_success),
        (CallbackEvent::Complete, body.on_complete),
        (CallbackEvent::Failure, body.on_failure),
    ] {
        let Some(Object(asked)) = asked else { continue };
        let prefix = format!("/{}", event.field());
        let job = prepare(api, asked, &prefix, trace, &[])?;
        if let Some((field, why)) = refused_in_callback(&job) {
            return Err(wrong(&format!("{prefix}/{field}"), why.to_owned()));
        }
        callbacks.push(Callback { event, job });
    }
    Ok(NewBatch { id: BatchId::new(), name, parent, callbacks, closed: body.close, jobs })
}

/// Return the option that a callback may not have, and why.
fn refused_in_callback(job: &NewJob) -> Option<(&'static str, &'static str)> {
    if job.unique_key.is_some() {
        Some(("unique_key", "may not be given: a callback is enqueued at most once"))
    } else if !job.options.after.is_empty() {
        Some(("after", "may not be given: a callback waits for the jobs of its batch"))
    } else if job.options.batch.is_some() {
        Some(("batch", "may not be given: the callbacks of a nested batch belong to its parent"))
    } else if matches!(job.due, Due::At(_)) {
        Some(("execute_at", "may not be given: use delay_ms, which counts from the event"))
    } else if matches!(job.expires, Some(Due::At(_))) {
        Some(("expires_at", "may not be given: use expires_in_ms, which counts from the event"))
    } else {
        None
    }
}

/// Show a batch
///
/// An API key with the scope `work` may not, because the batch names the jobs of its callbacks.
#[utoipa::path(
    get, path = "/v1/batches/{id}", tag = "batches", operation_id = "show_batch",
    params(("id" = Uuid, Path, description = "The batch's id")),
    responses(
        (status = 200, description = "The batch", body = BatchView),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
    )
)]
pub(super) async fn show(State(api): State<Api>, BatchPath(id): BatchPath) -> Result<Response, Problem> {
    let batch = api.broker.store().batch(id).await?.ok_or_else(|| Problem::not_found("batch", id))?;
    Ok(json(StatusCode::OK, BatchView::new(&batch)))
}

/// The batches whose failed jobs are retried.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RetryQuery {
    /// With `false`, only the failed jobs of the batch itself, and none of nested batches.
    nested: Option<bool>,
}

/// Page of the batches.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct BatchesQuery {
    /// Only batches that are nested in this one.
    #[param(format = "uuid")]
    parent: Option<String>,
    /// With `true`, only batches that have not ended.
    unfinished: Option<bool>,
    /// Number of batches in one page, 1 to 200.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the last page.
    cursor: Option<String>,
}

/// A page of batches.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BatchesAnswer {
    /// Batches, the newest first.
    data: Vec<BatchView>,
    /// Cursor of the next page; null on the last page.
    next_cursor: Option<String>,
}

/// List batches, the newest first
#[utoipa::path(
    get, path = "/v1/batches", tag = "batches", operation_id = "list_batches", params(BatchesQuery),
    responses(
        (status = 200, description = "A page of batches", body = BatchesAnswer),
        (status = 422, description = "invalid_request, invalid_cursor", body = Problem),
    )
)]
pub(super) async fn list(
    State(api): State<Api>,
    QueryParams(asked): QueryParams<BatchesQuery>,
) -> Result<Response, Problem> {
    let limit = page_size(asked.limit)?;
    let Ok(parent) = asked.parent.as_deref().map(str::parse::<BatchId>).transpose() else {
        let here = tickr_handlers::Problem::at("parent", "must be the id of a batch");
        return Err(Problem::new(Code::InvalidRequest, "the query is not valid").at("", vec![here]));
    };
    let unfinished = asked.unfinished.unwrap_or(false);
    let listing = Listing::new("batches", &(parent, unfinished));
    let before = listing.id(asked.cursor.as_deref())?.map(BatchId::from_uuid);
    let store = api.broker.store().clone();
    let found = async move { store.batches(parent, unfinished, before, limit + 1).await };
    let mut batches = run_with_seat(&api, found).await?;
    let more = batches.len() > limit as usize;
    batches.truncate(limit as usize);
    let next_cursor = batches.last().filter(|_| more).map(|batch| listing.cursor(batch.id.uuid().as_bytes()));
    Ok(json(StatusCode::OK, BatchesAnswer { data: batches.iter().map(BatchView::new).collect(), next_cursor }))
}

/// Close a batch
///
/// No job is expected from outside any more: the batch ends with its last job. Until then its jobs may add others. To close
/// a batch again changes nothing.
#[utoipa::path(
    post, path = "/v1/batches/{id}/close", tag = "batches", operation_id = "close_batch",
    params(("id" = Uuid, Path, description = "The batch's id")),
    responses(
        (status = 200, description = "The batch is closed", body = BatchView),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
    )
)]
pub(super) async fn close(
    State(api): State<Api>,
    asker: Requester,
    BatchPath(id): BatchPath,
) -> Result<Response, Problem> {
    let missing = || Problem::not_found("batch", id);
    api.broker.close_batch(id, asker.producer().actor()).await?.ok_or_else(missing)?;
    let batch = api.broker.store().batch(id).await?.ok_or_else(missing)?;
    Ok(json(StatusCode::OK, BatchView::new(&batch)))
}

/// Cancel a batch with all of its jobs
///
/// Waiting jobs end, running ones are asked to stop, and nested batches are cancelled as well. After the response 200 no job
/// of the batch starts. 202: there are so many jobs that some are still being cancelled; call again, or read the batch until
/// it is `cancelled`.
#[utoipa::path(
    post, path = "/v1/batches/{id}/cancel", tag = "batches", operation_id = "cancel_batch",
    params(("id" = Uuid, Path, description = "The batch's id")),
    responses(
        (status = 200, description = "No job of the batch starts any more", body = BatchView),
        (status = 202, description = "Some jobs are still being cancelled", body = BatchView),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "wrong_state: the batch has ended", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
    )
)]
pub(super) async fn cancel(
    State(api): State<Api>,
    asker: Requester,
    BatchPath(id): BatchPath,
) -> Result<Response, Problem> {
    let store = api.broker.store();
    let missing = || Problem::not_found("batch", id);
    let by = asker.producer().actor().clone();
    match store.cancel_batch(id, &by).await? {
        CancelMark::Marked => {}
        CancelMark::Missing => return Err(missing()),
        CancelMark::Ended => {
            let state = store.batch(id).await?.ok_or_else(missing)?.state().as_str();
            return Err(Problem::new(Code::WrongState, format!("the batch has ended; it is {state}")));
        }
    }
    // The task goes on when the caller hangs up.
    let stop = CancellationToken::new();
    let (broker, stopped) = (api.broker.clone(), stop.clone());
    let cancelling = tokio::spawn(async move { broker.cancel_marked_batch(id, &by, &stopped).await });
    let all = match tokio::time::timeout(CANCEL_WAIT, cancelling).await {
        Ok(Ok(done)) => done?,
        Ok(Err(_)) => false,
        Err(_) => {
            // A runner goes on after a few seconds.
            stop.cancel();
            false
        }
    };
    let batch = store.batch(id).await?.ok_or_else(missing)?;
    Ok(json(if all { StatusCode::OK } else { StatusCode::ACCEPTED }, BatchView::new(&batch)))
}

/// Describe a retry of a batch, with its bounds.
fn about_retry() -> String {
    format!(
        "Starts a bulk operation that gives each of them a full set of attempts, also those of nested batches that are not \
         cancelled. When all jobs of the batch have completed after that, `on_success` is enqueued. 422 `too_many`: there \
         are more than {MAX_NESTED} nested batches or {MAX_NESTED_LEVELS} levels, or more than {MAX_WITH_FAILURES} of them \
         have failed jobs. Then retry nested batches, or send `nested=false`."
    )
}

/// Retry the failed jobs of a batch
#[utoipa::path(
    post, path = "/v1/batches/{id}/retry", tag = "batches", operation_id = "retry_batch", description = about_retry(),
    params(("id" = Uuid, Path, description = "The batch's id"), RetryQuery),
    responses(
        (status = 202, description = "The bulk operation is accepted", body = OperationView),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_id, invalid_request, too_many", body = Problem),
        (status = 429, description = "overloaded: fifty bulk operations have not ended, paused ones included, or this runner is at its limit of heavy reads", body = Problem),
    )
)]
pub(super) async fn retry(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    BatchPath(id): BatchPath,
    QueryParams(query): QueryParams<RetryQuery>,
    key: Key,
) -> Result<Response, Problem> {
    let with_nested = query.nested.unwrap_or(true);
    let alone = if with_nested { "" } else { "?nested=false" };
    let idempotent = key.request(&format!("POST /v1/batches/{id}/retry{alone}"), None)?;
    let store = api.broker.store();
    if store.batch(id).await?.is_none() {
        return replay_stored(&api, idempotent, ResponseContent::Other, Problem::not_found("batch", id)).await;
    }
    let nested = if with_nested { store.nested_with_failures(id).await? } else { Some(Vec::new()) };
    let Some(nested) = nested else {
        let detail = format!(
            "there are more than {MAX_NESTED} nested batches or {MAX_NESTED_LEVELS} levels, or more than {MAX_WITH_FAILURES} of them have \
             failed jobs; retry nested batches, or send nested=false to retry the failed jobs of the batch itself"
        );
        return replay_stored(&api, idempotent, ResponseContent::Other, Problem::new(Code::TooMany, detail)).await;
    };
    let failed = Filter { state: Some(JobState::Failed), ..Filter::default() };
    let filter = if nested.is_empty() {
        Filter { batch: Some(id), ..failed }
    } else {
        Filter { choices: vec![Choice::of_batches(std::iter::once(id).chain(nested))], ..failed }
    };
    let now = store.clock().now();
    let new = NewOperation {
        id: JobId::new().uuid(),
        action: Action::Retry,
        filter,
        params: OperationParams::default(),
        rate: None,
        canary: None,
    };
    let build = move |operation: &Operation| json_answer(StatusCode::ACCEPTED, &OperationView::new(operation, now));
    let outcome = start_counted(&api, new, &who, idempotent, Arc::new(build)).await?;
    // Only a release of a group is refused.
    respond_to_outcome(outcome, ResponseContent::Other, |_| {
        Err(Problem::new(Code::Internal, "MySQL refused a bulk operation for an unknown reason"))
    })
}
