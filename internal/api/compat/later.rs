//! Tasks of Later: `POST /create`, `/delete` and `/query`, with the fields of
//! <https://github.com/btfak/later>.
//!
//! A task is a job of the kind `later`, which the handler delivers as Later does. Later forgets a task once it is over,
//! so a job that has ended is unknown here. tickr still has it.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use crate::compat::accept::accept_job;
use crate::compat::any_case::AnyCase;
use crate::compat::cancel::{Cancelled, cancel_job};
use crate::http::body::{AnyMediaBody, or_default};
use crate::http::caller::Requester;
use crate::http::idempotency::Key;
use crate::http::problem::{Code, Problem};
use crate::http::trace::RequestTrace;
use crate::{Api, json};
use tickr_broker::Draft;
use tickr_handlers::Kind as _;
use tickr_handlers::later::LaterTask;
use tickr_job::{Attempt, Due, Job, JobId, State as JobState, Tag, limits};

/// The body of a request. Later takes names of fields in any case.
type LaterBody<T> = AnyMediaBody<AnyCase<T>>;

/// A task to create. As in Later, fields that are left out or null are empty, and other fields are ignored.
#[derive(Debug, Deserialize)]
pub(super) struct CreateBody {
    /// Class of the task.
    #[serde(default, deserialize_with = "or_default")]
    topic: String,
    /// Delay in seconds. Less than 0 means now.
    #[serde(default, deserialize_with = "or_default")]
    delay: i64,
    /// Number of retries after the first delivery.
    #[serde(default, deserialize_with = "or_default")]
    retry: u32,
    /// URL of the receiver.
    callback: String,
    /// Text for the receiver.
    #[serde(default, deserialize_with = "or_default")]
    content: String,
}

impl CreateBody {
    fn draft(self) -> Result<Draft, Problem> {
        let mut wrong = Vec::new();
        let longest = limits::MAX_AHEAD.as_secs();
        let delay = u64::try_from(self.delay).unwrap_or(0);
        if delay > longest {
            let detail = format!("must be at most {longest}, which is 366 days");
            wrong.push(tickr_handlers::Problem::at("/delay", detail));
        }
        if self.retry >= limits::MAX_ATTEMPTS {
            let detail = format!("must be 0 to {}", limits::MAX_ATTEMPTS - 1);
            wrong.push(tickr_handlers::Problem::at("/retry", detail));
        }
        if !wrong.is_empty() {
            return Err(Problem::new(Code::InvalidRequest, "the task is not valid; `errors` says why").at("", wrong));
        }
        let tag = format!("topic:{}", self.topic).parse::<Tag>();
        let task = LaterTask { topic: self.topic, callback: self.callback, content: self.content };
        let payload = serde_json::value::to_raw_value(&task);
        let payload = payload.map_err(|error| Problem::new(Code::InvalidJson, error.to_string()))?;
        Ok(Draft {
            due: Due::After(Duration::from_secs(delay)),
            max_attempts: Some(self.retry + 1),
            tags: tag.into_iter().map(Into::into).collect(),
            ..Draft::new(LaterTask::NAME, payload)
        })
    }
}

/// The id of a task, as the answer to its creation and as a request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TaskId {
    id: String,
}

/// Create a task.
pub(super) async fn create(
    State(api): State<Api>,
    asker: Requester,
    traced: RequestTrace,
    key: Key,
    body: Result<LaterBody<CreateBody>, Problem>,
) -> Response {
    let answer = accept_task(&api, &asker, &traced, key, body).await;
    traced.end_with("/create", answer)
}

async fn accept_task(
    api: &Api,
    asker: &Requester,
    traced: &RequestTrace,
    key: Key,
    body: Result<LaterBody<CreateBody>, Problem>,
) -> Result<Response, Problem> {
    let AnyMediaBody(AnyCase(body), text) = body?;
    let idempotent = key.request("POST /create", Some(&text))?;
    let prepare = || {
        let draft = Draft { trace: traced.0.trace_context().cloned(), ..body.draft()? };
        asker.may_enqueue(LaterTask::NAME, &draft.payload, "")?;
        asker.may_use_queue(draft.queue.as_deref().unwrap_or("default"), "")?;
        api.broker.prepare(draft).map_err(|invalid| in_fields_of_later(Problem::invalid("", invalid)))
    };
    accept_job(api, asker, idempotent, prepare(), |id| TaskId { id }).await
}

/// Point at the fields of the request: the payload of the job has the same names.
fn in_fields_of_later(mut problem: Problem) -> Problem {
    for error in &mut problem.errors {
        if let Some(field) = error.pointer.strip_prefix("/payload") {
            error.pointer = field.to_owned();
        }
    }
    problem
}

/// Delete a task. The answer has no body. A delivery under way is stopped and not repeated.
pub(super) async fn delete(
    State(api): State<Api>,
    asker: Requester,
    body: Result<LaterBody<TaskId>, Problem>,
) -> Response {
    match delete_task(&api, &asker, body).await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(problem) => problem.into_response(),
    }
}

async fn delete_task(api: &Api, asker: &Requester, body: Result<LaterBody<TaskId>, Problem>) -> Result<(), Problem> {
    let (job, _) = find(api, asker, body).await?;
    match cancel_job(api, job.id, true, asker.producer().actor()).await? {
        Cancelled::Done => Ok(()),
        Cancelled::Refused(_) | Cancelled::Missing => Err(Problem::not_found("task", job.id)),
    }
}

/// A task, in the words of Later. Times are seconds since 1970.
#[derive(Serialize)]
struct QueryAnswer<'a> {
    id: String,
    topic: &'a str,
    /// Due time of the first delivery, or of the first of the last thousand.
    execute_time: i64,
    max_retry: u32,
    /// Number of deliveries that failed.
    has_retry: u32,
    callback: &'a str,
    content: &'a str,
    /// Time of the creation. The name is spelt as in Later.
    creat_time: i64,
}

/// Show a task that is not over.
pub(super) async fn query(
    State(api): State<Api>,
    asker: Requester,
    body: Result<LaterBody<TaskId>, Problem>,
) -> Response {
    match show(&api, &asker, body).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    }
}

async fn show(api: &Api, asker: &Requester, body: Result<LaterBody<TaskId>, Problem>) -> Result<Response, Problem> {
    let (job, attempts) = find(api, asker, body).await?;
    let task = job.payload.as_ref().and_then(|payload| serde_json::from_str::<LaterTask>(payload.get()).ok());
    let task = task.ok_or_else(|| Problem::new(Code::Internal, "the stored task cannot be read"))?;
    let first_due = attempts.first().map_or(job.execute_at, |first| first.execute_at);
    let running = u32::from(job.state == JobState::Executing);
    Ok(json(
        StatusCode::OK,
        QueryAnswer {
            id: job.id.to_string(),
            topic: &task.topic,
            execute_time: first_due.timestamp(),
            max_retry: job.max_attempts.saturating_sub(1),
            has_retry: job.attempt.saturating_sub(running),
            callback: &task.callback,
            content: &task.content,
            creat_time: job.created_at.timestamp(),
        },
    ))
}

/// Find the task that a request names, unless it is over.
async fn find(
    api: &Api,
    asker: &Requester,
    body: Result<LaterBody<TaskId>, Problem>,
) -> Result<(Job, Vec<Attempt>), Problem> {
    let AnyMediaBody(AnyCase(TaskId { id }), _) = body?;
    if id.is_empty() {
        let here = tickr_handlers::Problem::at("/id", "must be the id of a task");
        return Err(Problem::new(Code::InvalidRequest, "the request names no task").at("", vec![here]));
    }
    let unknown = || Problem::not_found("task", id.chars().take(64).collect::<String>());
    let id: JobId = id.parse().map_err(|_| unknown())?;
    let (job, attempts) = api.broker.store().job(id).await?.ok_or_else(unknown)?;
    if job.kind.as_str() != LaterTask::NAME || job.state.is_end() {
        return Err(unknown());
    }
    asker.require_access(&job)?;
    Ok((job, attempts))
}
