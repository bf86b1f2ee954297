//! `/v1/jobs/{id}/attempts/{number}/log`: the lines that were written during an attempt.

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::Api;
use crate::http::body::AttemptPath;
use crate::http::caller::Requester;
use crate::http::problem::{Code, Problem};

/// Show the log of an attempt
///
/// The newest lines that the handler wrote, at most 16 KiB, oldest first. When earlier lines were dropped, the first
/// line says how many. `log_bytes` of an attempt says whether it has a log. A key with the scope `enqueue` may read the
/// logs of the jobs whose payload it may see.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/attempts/{number}/log", tag = "jobs", operation_id = "show_attempt_log",
    params(
        ("id" = Uuid, Path, description = "The job's id"),
        ("number" = u32, Path, description = "Number of the attempt, 1 for the first", minimum = 1),
    ),
    responses(
        (status = 200, description = "The lines, in UTF-8", body = String, content_type = "text/plain"),
        (status = 404, description = "not_found: there is no such job, or the attempt has no log", body = Problem),
        (status = 422, description = "invalid_id, invalid_request", body = Problem),
    )
)]
pub(crate) async fn show(
    State(api): State<Api>,
    asker: Requester,
    AttemptPath(id, number): AttemptPath,
) -> Result<Response, Problem> {
    let store = api.broker.store();
    let Some((job, _)) = store.job(id).await? else { return Err(Problem::not_found("job", id)) };
    asker.require_access(&job)?;
    let log = store.attempt_log(id, number).await?;
    let log = log.ok_or_else(|| Problem::new(Code::NotFound, format!("attempt {number} of job {id} has no log")))?;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    Ok(([(header::CONTENT_TYPE, plain)], log).into_response())
}
