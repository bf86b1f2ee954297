//! `/v1/jobs/{id}/result`: wait for the end of a job and return its result.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};

use crate::http::auth::PermitOwner;
use crate::http::body::{IdPath, QueryParams};
use crate::http::caller::Requester;
use crate::http::problem::{Code, Problem};
use crate::http::revocation::RequestRight;
use crate::view::StateWord;
use crate::{Api, json, parse_wait};
use tickr_broker::Watch;
use tickr_event::Event;
use tickr_job::State as JobState;

/// Maximum wait of one request.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Shortest time between two reads of a job that changes, unless this runner saw its end.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Parameters of a wait.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitQuery {
    /// Maximum time to wait for the end of the job, such as `500ms` or `30s`; at most 60 s. Default: respond at once.
    #[param(example = "30s", pattern = "^0*(([0-9]{1,4}|[1-5][0-9]{4}|60000)ms|([0-9]|[1-5][0-9]|60)s|[01]m)$")]
    wait: Option<String>,
}

/// The state of a job, with its result if it has ended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResultAnswer {
    /// Id of the job.
    id: String,
    #[schema(value_type = StateWord)]
    state: JobState,
    /// Result of the handler; null when there is none.
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Box<RawValue>>,
    /// Error of the last unsuccessful attempt.
    last_error: Option<String>,
}

/// Wait for a job's result
///
/// 200 when the job has ended, 202 while it has not. 401 when the API key is revoked during the wait. One API key gets
/// at most a quarter of the requests that may wait here.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/result", tag = "jobs", operation_id = "job_result",
    params(("id" = Uuid, Path, description = "The job's id"), WaitQuery),
    responses(
        (status = 200, description = "The job has ended", body = ResultAnswer),
        (status = 202, description = "The job has not ended yet", body = ResultAnswer),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_id, invalid_request", body = Problem),
        (status = 429, description = "overloaded: too many requests wait here", body = Problem),
    )
)]
pub(crate) async fn result(
    State(api): State<Api>,
    asker: Requester,
    (sharing, mut pass): (PermitOwner, RequestRight),
    IdPath(id): IdPath,
    QueryParams(asked): QueryParams<WaitQuery>,
) -> Result<Response, Problem> {
    let wait = match asked.wait.as_deref() {
        None => Duration::ZERO,
        Some(text) => wait_of(text)?,
    };
    let deadline = Instant::now() + wait;
    let mut stop = api.stopping.clone();
    // Listen before the first read, so that an end between the two is not missed. One statement reads all watched jobs,
    // so a wait for a job that does not change costs nothing.
    let mut events = api.broker.events().listen();
    let mut watch = (!wait.is_zero()).then(|| api.watches.watch(id));
    let (mut permit, mut listening) = (None, true);
    loop {
        let Some((job, _)) = api.broker.store().job(id).await? else { return Err(Problem::not_found("job", id)) };
        asker.require_access(&job)?;
        let over = job.state.is_end();
        let stopping = *stop.borrow_and_update();
        if over || Instant::now() >= deadline || stopping {
            let status = if over { StatusCode::OK } else { StatusCode::ACCEPTED };
            let answer =
                ResultAnswer { id: id.to_string(), state: job.state, result: job.result, last_error: job.last_error };
            return Ok(json(status, answer));
        }
        if permit.is_none() {
            let taken = api.result_waits.take(sharing.0);
            permit = Some(taken.map_err(|full| full.problem("requests that wait for results", "this server"))?);
        }
        let next_look = (Instant::now() + LOOK_EVERY).min(deadline);
        let mut changed = false;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(if changed { next_look } else { deadline }) => break,
                _ = stop.changed() => break,
                () = pass.wait_until_revoked() => return Err(pass.refusal()),
                () = change_of(&mut watch), if !changed => changed = true,
                event = events.recv(), if listening => match event {
                    Ok(Event::Settled { id: ended, .. } | Event::Cancelled { id: ended }) if ended == id => break,
                    // The watch sees the changes of missed events as well.
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => listening = false,
                },
            }
        }
    }
}

/// Read the longest wait that a request asks for.
fn wait_of(text: &str) -> Result<Duration, Problem> {
    parse_wait(text).filter(|wait| *wait <= MAX_WAIT).ok_or_else(|| {
        let detail = "must be a number with ms, s or m, such as 30s, and at most 60s";
        let here = tickr_handlers::Problem::at("wait", detail);
        Problem::new(Code::InvalidRequest, format!("wait {detail}")).at("", vec![here])
    })
}

/// Wait until the job may have changed.
async fn change_of(watch: &mut Option<Watch>) {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}
