//! `/v1/jobs/{id}/result`: wait for a job to end.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};

use super::asker::Asker;
use super::body::{Asked, IdPath};
use super::pass::Pass;
use super::problem::{Code, Problem};
use super::view::StateWord;
use super::{Api, jobs, json, parse_wait};
use crate::event::Event;
use crate::job::State as JobState;

/// Longest wait of one request.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// How often the store is asked while another runner may be executing the job.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long to wait.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WaitQuery {
    /// How long to wait for the end, such as `500ms` or `30s`; at most 60 s. Without it the answer comes at once.
    #[param(example = "30s", pattern = "^0*(([0-9]{1,4}|[1-5][0-9]{4}|60000)ms|([0-9]|[1-5][0-9]|60)s|[01]m)$")]
    wait: Option<String>,
}

/// How a job ended, or that it has not.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ResultAnswer {
    /// The job.
    id: String,
    #[schema(value_type = StateWord)]
    state: JobState,
    /// What the handler returned.
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Box<RawValue>>,
    /// Why the last attempt failed.
    last_error: Option<String>,
}

/// Wait for a job's result
///
/// 200 when the job is over, 202 while it is not. 401 when the key is revoked meanwhile.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/result", tag = "jobs", operation_id = "job_result",
    params(("id" = Uuid, Path, description = "The job's id"), WaitQuery),
    responses(
        (status = 200, description = "The job is over", body = ResultAnswer),
        (status = 202, description = "The job is not over yet", body = ResultAnswer),
        (status = 401, description = "unauthorized", body = Problem),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_id, invalid_request", body = Problem),
        (status = 503, description = "store_unavailable", body = Problem),
    )
)]
pub(super) async fn result(
    State(api): State<Api>,
    asker: Asker,
    mut pass: Pass,
    IdPath(id): IdPath,
    Asked(asked): Asked<WaitQuery>,
) -> Result<Response, Problem> {
    let wait = match asked.wait.as_deref() {
        None => Duration::ZERO,
        Some(text) => parse_wait(text).filter(|wait| *wait <= LONGEST_WAIT).ok_or_else(|| {
            Problem::new(Code::InvalidRequest, "wait is a number with ms, s or m, such as 30s, and at most 60s")
        })?,
    };
    let deadline = Instant::now() + wait;
    let mut draining = api.draining.clone();
    // Listening before the first look: an end in between is not missed.
    let mut events = api.broker.events().listen();
    loop {
        let Some((job, _)) = api.broker.store().job(id).await? else { return Err(jobs::missing(id)) };
        asker.needs_to_see(&job)?;
        let over = job.state.is_end();
        let stopping = *draining.borrow_and_update();
        if over || Instant::now() >= deadline || stopping {
            let status = if over { StatusCode::OK } else { StatusCode::ACCEPTED };
            let answer =
                ResultAnswer { id: id.to_string(), state: job.state, result: job.result, last_error: job.last_error };
            return Ok(json(status, answer));
        }
        let next_look = (Instant::now() + LOOK_EVERY).min(deadline);
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(next_look) => break,
                _ = draining.changed() => break,
                () = pass.ends() => return Err(pass.refusal()),
                event = events.recv() => match event {
                    Ok(Event::Settled { id: ended, .. } | Event::Cancelled { id: ended }) if ended == id => break,
                    Ok(_) | Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {}
                    Err(tokio::sync::broadcast::error::RecvError::Closed) => {
                        tokio::time::sleep_until(next_look).await;
                        break;
                    }
                },
            }
        }
    }
}
