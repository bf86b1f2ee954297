//! `/v1/jobs`: enqueue, read, steer.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::body::{Asked, Body, IdPath, Object};
use super::problem::{Code, Problem};
use super::view::{JobView, RetryView, StateWord};
use super::{Api, json};
use crate::broker::{Draft, Enqueued};
use crate::handlers;
use crate::job::{self, Due, JobId, NewJob, limits};
use crate::store::{Filter, Moved};

/// A job to enqueue.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewJobBody {
    /// The kind: one of `/v1/kinds`.
    #[schema(example = "http", max_length = 64)]
    kind: String,
    /// The handler's input, as the kind's schema says; `{}` when left out.
    #[serde(default = "empty_object")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Box<RawValue>,
    /// The line to wait in; `default` when left out.
    #[schema(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    queue: Option<String>,
    /// Start at this moment (a past one means now). Not together with `delay_ms`.
    execute_at: Option<DateTime<Utc>>,
    /// Start this long after now. Not together with `execute_at`.
    #[schema(maximum = 31_622_400_000_u64)]
    delay_ms: Option<u64>,
    /// Attempts before the job fails, 1 to 100; the kind's own when left out.
    #[schema(minimum = 1, maximum = 100)]
    max_attempts: Option<u32>,
    /// Time limit of one attempt; the kind's own when left out.
    #[schema(minimum = 1, maximum = 86_400_000)]
    timeout_ms: Option<u64>,
    /// 0 runs first, 9 last; 5 when left out.
    #[schema(maximum = 9)]
    priority: Option<u8>,
    /// At most one unfinished job per (kind, key). If there is one, it is returned with 200 and nothing is written.
    #[schema(min_length = 1, max_length = 255)]
    unique_key: Option<String>,
    /// Backoff; the kind's own when left out.
    #[schema(value_type = Option<RetryView>)]
    retry: Option<Object<RetryView>>,
}

fn empty_object() -> Box<RawValue> {
    RawValue::from_string("{}".into()).unwrap_or_default()
}

impl NewJobBody {
    fn draft(self, prefix: &str) -> Result<Draft, Problem> {
        let due = match (self.execute_at, self.delay_ms) {
            (None, None) => Due::Now,
            (Some(moment), None) => Due::At(moment),
            (None, Some(ms)) => Due::After(Duration::from_millis(ms)),
            (Some(_), Some(_)) => {
                let both = handlers::Problem::at("/delay_ms", "give execute_at or delay_ms, not both");
                return Err(Problem::new(Code::InvalidRequest, "the job has two due times").at(prefix, vec![both]));
            }
        };
        Ok(Draft {
            kind: self.kind,
            payload: self.payload,
            queue: self.queue,
            due,
            priority: self.priority,
            max_attempts: self.max_attempts,
            timeout_ms: self.timeout_ms,
            retry: self.retry.map(|Object(retry)| retry.into()),
            unique_key: self.unique_key,
        })
    }
}

fn prepare(api: &Api, body: NewJobBody, prefix: &str) -> Result<NewJob, Problem> {
    let draft = body.draft(prefix)?;
    api.broker.prepare(draft).map_err(|invalid| Problem::invalid(prefix, invalid))
}

/// Enqueue a job
///
/// Answers after the job is committed. With a `unique_key` that an unfinished job has, answers 200 with that job.
#[utoipa::path(
    post, path = "/v1/jobs", tag = "jobs", operation_id = "enqueue_job", request_body = NewJobBody,
    responses(
        (status = 201, description = "Accepted and durable", body = JobView, headers(("Location" = String))),
        (status = 200, description = "An unfinished job has the unique key; nothing was written", body = JobView),
        (status = 400, description = "invalid_json, too_deep", body = Problem),
        (status = 401, description = "unauthorized", body = Problem),
        (status = 408, description = "request_timeout", body = Problem),
        (status = 413, description = "too_large", body = Problem),
        (status = 415, description = "unsupported_media_type", body = Problem),
        (status = 422, description = "invalid_request, unknown_kind, invalid_payload", body = Problem),
        (status = 429, description = "overloaded", body = Problem),
        (status = 503, description = "store_unavailable", body = Problem),
    )
)]
pub(super) async fn enqueue(State(api): State<Api>, Body(body): Body<NewJobBody>) -> Result<Response, Problem> {
    let job = prepare(&api, body, "")?;
    let view = job.clone();
    match api.broker.enqueue(job).await? {
        Enqueued::Accepted(accepted) => {
            let mut response = json(StatusCode::CREATED, JobView::accepted(&view, &accepted));
            if let Ok(location) = HeaderValue::try_from(format!("/v1/jobs/{}", accepted.id)) {
                response.headers_mut().insert(header::LOCATION, location);
            }
            Ok(response)
        }
        Enqueued::KeyTaken { holder } => read(&api, holder).await.map(|job| json(StatusCode::OK, job)),
    }
}

/// Jobs to enqueue together.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchBody {
    /// 1 to 1,000 jobs.
    #[schema(min_items = 1, max_items = 1000, value_type = Vec<NewJobBody>)]
    jobs: Vec<Object<NewJobBody>>,
}

/// The receipt of a batch.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BatchAnswer {
    /// In the order of the request.
    jobs: Vec<Receipt>,
}

/// The receipt of one job of a batch.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Receipt {
    /// The new job.
    id: String,
    /// When it is due.
    #[schema(value_type = String, format = DateTime)]
    execute_at: super::view::Moment,
}

/// Enqueue many jobs, all or none
#[utoipa::path(
    post, path = "/v1/jobs/batch", tag = "jobs", operation_id = "enqueue_batch", request_body = BatchBody,
    responses(
        (status = 201, description = "All accepted and durable", body = BatchAnswer),
        (status = 400, description = "invalid_json, too_deep", body = Problem),
        (status = 401, description = "unauthorized", body = Problem),
        (status = 409, description = "key_taken: nothing was written", body = Problem),
        (status = 408, description = "request_timeout", body = Problem),
        (status = 413, description = "too_large", body = Problem),
        (status = 415, description = "unsupported_media_type", body = Problem),
        (status = 422, description = "invalid_request, unknown_kind, invalid_payload: nothing was written", body = Problem),
        (status = 429, description = "overloaded", body = Problem),
        (status = 503, description = "store_unavailable", body = Problem),
    )
)]
pub(super) async fn enqueue_batch(State(api): State<Api>, Body(body): Body<BatchBody>) -> Result<Response, Problem> {
    let count = body.jobs.len();
    if count == 0 || count > limits::MAX_BATCH {
        let here = handlers::Problem::at("/jobs", format!("must be 1 to {} jobs, not {count}", limits::MAX_BATCH));
        return Err(Problem::new(Code::InvalidRequest, "the batch has the wrong size").at("", vec![here]));
    }
    let mut jobs = Vec::with_capacity(count);
    let mut first: Option<Problem> = None;
    for (place, Object(body)) in body.jobs.into_iter().enumerate() {
        match prepare(&api, body, &format!("/jobs/{place}")) {
            Ok(job) => jobs.push(job),
            // Collect what is wrong with every job, up to a page of it.
            Err(problem) => match &mut first {
                None => first = Some(problem),
                Some(first) if first.errors.len() < 50 => first.errors.extend(problem.errors),
                Some(_) => {}
            },
        }
    }
    if let Some(problem) = first {
        return Err(problem);
    }
    let keyed = jobs.iter().any(|job| job.unique_key.is_some());
    let accepted = if keyed { api.broker.enqueue_keyed(jobs).await? } else { Ok(api.broker.enqueue_all(jobs).await?) };
    match accepted {
        Ok(accepted) => {
            let receipt = |receipt: crate::store::Accepted| Receipt {
                id: receipt.id.to_string(),
                execute_at: super::view::Moment(receipt.execute_at),
            };
            Ok(json(StatusCode::CREATED, BatchAnswer { jobs: accepted.into_iter().map(receipt).collect() }))
        }
        Err(taken) => {
            let here = |(place, holder): (usize, JobId)| {
                handlers::Problem::at(format!("/jobs/{place}/unique_key"), format!("is held by job {holder}"))
            };
            let problem =
                Problem::new(Code::KeyTaken, "unfinished jobs have some of the unique keys; nothing was written");
            Err(problem.at("", taken.into_iter().map(here).collect()))
        }
    }
}

/// Which jobs to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Only jobs in this state.
    #[param(value_type = Option<StateWord>, inline)]
    state: Option<String>,
    /// Only jobs of this kind.
    #[param(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    kind: Option<String>,
    /// Only jobs of this queue.
    #[param(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    queue: Option<String>,
    /// Jobs in one page, 1 to 200.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// Where to go on, as the last page said. Belongs to its filter.
    cursor: Option<String>,
}

/// A page of jobs.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ListAnswer {
    /// Newest first.
    data: Vec<JobView>,
    /// Where to go on; null at the end. A page may be short, or empty, and still have one: a page looks at a bounded
    /// number of rows.
    next_cursor: Option<String>,
}

/// List jobs, newest first
#[utoipa::path(
    get, path = "/v1/jobs", tag = "jobs", operation_id = "list_jobs", params(ListQuery),
    responses(
        (status = 200, description = "A page of jobs, without payloads, results and attempts", body = ListAnswer),
        (status = 401, description = "unauthorized", body = Problem),
        (status = 422, description = "invalid_request, invalid_cursor", body = Problem),
        (status = 503, description = "store_unavailable", body = Problem),
    )
)]
pub(super) async fn list(State(api): State<Api>, Asked(asked): Asked<ListQuery>) -> Result<Response, Problem> {
    let mut problems = Vec::new();
    let mut wrong = |name: &str, detail: String| problems.push(handlers::Problem::at(name, detail));
    let state = match asked.state.as_deref().map(|word| job::State::from_word(word).ok_or(word)) {
        Some(Err(word)) => {
            let words: Vec<&str> = job::State::ALL.iter().map(|state| state.as_str()).collect();
            wrong("state", format!("{word:?} is not one of {}", words.join(", ")));
            None
        }
        Some(Ok(state)) => Some(state),
        None => None,
    };
    let mut name = |field: &str, text: Option<&str>| match text.map(str::parse::<job::Name>) {
        Some(Err(e)) => {
            wrong(field, e.to_string());
            None
        }
        Some(Ok(name)) => Some(name),
        None => None,
    };
    let filter =
        Filter { state, kind: name("kind", asked.kind.as_deref()), queue: name("queue", asked.queue.as_deref()) };
    let limit = asked.limit.unwrap_or(50);
    if !(1..=200).contains(&limit) {
        wrong("limit", "must be 1 to 200".into());
    }
    if !problems.is_empty() {
        return Err(
            Problem::new(Code::InvalidRequest, "the listing asks for something it cannot have").at("", problems)
        );
    }
    let before = match &asked.cursor {
        None => None,
        Some(cursor) => Some(read_cursor(cursor, &filter).ok_or_else(|| {
            Problem::new(Code::InvalidCursor, "use next_cursor of a page with the same filter, unchanged")
        })?),
    };
    let page = api.broker.store().list(filter.clone(), before, limit).await?;
    let data = page.jobs.into_iter().map(|job| JobView::read(job, None)).collect();
    Ok(json(StatusCode::OK, ListAnswer { data, next_cursor: page.next.map(|id| write_cursor(id, &filter)) }))
}

/// A cursor is the last id seen and a seal of the filter, so that it cannot go on in another listing.
fn write_cursor(id: JobId, filter: &Filter) -> String {
    let mut bytes = id.uuid().as_bytes().to_vec();
    bytes.extend_from_slice(&seal(filter));
    URL_SAFE_NO_PAD.encode(bytes)
}

fn read_cursor(cursor: &str, filter: &Filter) -> Option<JobId> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    let (id, sealed) = bytes.split_at_checked(16)?;
    if sealed != seal(filter) {
        return None;
    }
    Uuid::from_slice(id).ok().map(JobId::from_uuid)
}

fn seal(filter: &Filter) -> [u8; 6] {
    let text = format!("{:?}", (filter.state.map(job::State::as_str), &filter.kind, &filter.queue));
    let digest = Sha256::digest(text.as_bytes());
    std::array::from_fn(|at| digest[at])
}

/// Show a job with its attempts
#[utoipa::path(
    get, path = "/v1/jobs/{id}", tag = "jobs", operation_id = "show_job", params(("id" = Uuid, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The job", body = JobView),
        (status = 401, description = "unauthorized", body = Problem),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
        (status = 503, description = "store_unavailable", body = Problem),
    )
)]
pub(super) async fn show(State(api): State<Api>, IdPath(id): IdPath) -> Result<Response, Problem> {
    read(&api, id).await.map(|job| json(StatusCode::OK, job))
}

pub(super) async fn read(api: &Api, id: JobId) -> Result<JobView, Problem> {
    let found = api.broker.store().job(id).await?;
    found.map(|(job, attempts)| JobView::read(job, Some(attempts))).ok_or_else(|| missing(id))
}

pub(super) fn missing(id: JobId) -> Problem {
    Problem::new(Code::NotFound, format!("there is no job {id}"))
}

/// Cancel a job
///
/// 200: it waited and will never start. 202: it runs and was asked to stop. 409: it is over already.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/cancel", tag = "jobs", operation_id = "cancel_job", params(("id" = Uuid, Path, description = "The job's id")),
    responses(
        (status = 200, description = "Cancelled; it will never start", body = JobView),
        (status = 202, description = "Running; its handler was asked to stop", body = JobView),
        (status = 401, description = "unauthorized", body = Problem),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "wrong_state: it is over", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
        (status = 503, description = "store_unavailable", body = Problem),
    )
)]
pub(super) async fn cancel(State(api): State<Api>, IdPath(id): IdPath) -> Result<Response, Problem> {
    let moved = api.broker.cancel(id).await?;
    steered(&api, id, moved, "a job that has ended cannot be cancelled").await
}

/// Retry a failed or cancelled job
///
/// Gives it a full set of attempts. 409 for jobs in any other state.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/retry", tag = "jobs", operation_id = "retry_job", params(("id" = Uuid, Path, description = "The job's id")),
    responses(
        (status = 200, description = "Waiting again", body = JobView),
        (status = 401, description = "unauthorized", body = Problem),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "wrong_state", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
        (status = 503, description = "store_unavailable", body = Problem),
    )
)]
pub(super) async fn retry(State(api): State<Api>, IdPath(id): IdPath) -> Result<Response, Problem> {
    let moved = api.broker.retry(id).await?;
    steered(&api, id, moved, "only a failed or cancelled job, whose unique key is free, can be retried").await
}

/// Run a waiting job now
///
/// Makes a waiting or retrying job due at once. 409 for jobs in any other state.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/run-now", tag = "jobs", operation_id = "run_job_now", params(("id" = Uuid, Path, description = "The job's id")),
    responses(
        (status = 200, description = "Due now", body = JobView),
        (status = 401, description = "unauthorized", body = Problem),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "wrong_state", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
        (status = 503, description = "store_unavailable", body = Problem),
    )
)]
pub(super) async fn run_now(State(api): State<Api>, IdPath(id): IdPath) -> Result<Response, Problem> {
    let moved = api.broker.run_now(id).await?;
    steered(&api, id, moved, "only a waiting or retrying job can be run now").await
}

async fn steered(api: &Api, id: JobId, moved: Moved, refusal: &str) -> Result<Response, Problem> {
    match moved {
        Moved::Done(_) | Moved::Waits(_) => Ok(json(StatusCode::OK, read(api, id).await?)),
        Moved::Asked => Ok(json(StatusCode::ACCEPTED, read(api, id).await?)),
        Moved::Refused(state) => {
            Err(Problem::new(Code::WrongState, format!("{refusal}; this one is {state}")).in_state(state))
        }
        Moved::Missing => Err(missing(id)),
    }
}

impl IntoResponse for JobView {
    fn into_response(self) -> Response {
        json(StatusCode::OK, self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_belong_to_their_filter() {
        let (all, failed) = (Filter::default(), Filter { state: Some(job::State::Failed), ..Filter::default() });
        let id = JobId::new();
        let cursor = write_cursor(id, &all);
        assert_eq!(read_cursor(&cursor, &all), Some(id));
        assert_eq!(read_cursor(&cursor, &failed), None);
        for forged in ["", "x", "AAAA", &cursor[1..], &format!("{cursor}A")] {
            assert_eq!(read_cursor(forged, &all), None, "{forged}");
        }
    }
}
