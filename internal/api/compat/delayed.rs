//! Delayed messages: `POST /schedule` and `DELETE /cancel/{id}`.
//!
//! A message is a job of the kind `http` with a tag. tickr delivers it to the URL of `[compat.delayed]` as
//! `{"content": …}`. A delivery that fails with 5xx is repeated after 1, 2, 4, 8 and 16 seconds. A message can be
//! cancelled until its delivery begins: the claim of an attempt and a cancel lock the same row, so exactly one of them
//! wins.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use crate::compat::accept::accept_job;
use crate::compat::cancel::{Cancelled, cancel_job};
use crate::http::body::{AnyMediaBody, PathText};
use crate::http::caller::Requester;
use crate::http::idempotency::Key;
use crate::http::problem::{Code, Problem};
use crate::http::trace::RequestTrace;
use crate::{Api, json};
use tickr_broker::Draft;
use tickr_handlers::Kind as _;
use tickr_handlers::http::HttpCallback;
use tickr_job::{Due, JobId, RetryRequest, State as JobState, limits};

/// Tag of the jobs that are messages.
const TAG: &str = "compat:delayed";
/// Delays before the repetitions of a delivery.
const RETRY_DELAYS_MS: [u64; 5] = [1_000, 2_000, 4_000, 8_000, 16_000];

/// A message to deliver.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScheduleBody {
    /// Content of the message: any JSON.
    content: Box<RawValue>,
    /// Delay of the delivery in seconds, at most 366 days.
    delay_seconds: u64,
}

/// The body that the receiver gets.
#[derive(Serialize)]
struct Delivery<'a> {
    content: &'a RawValue,
}

/// The receipt of a message.
#[derive(Serialize)]
struct ScheduleAnswer {
    message_id: String,
}

/// Accept a message, to be delivered after a delay.
pub(super) async fn schedule(
    State(api): State<Api>,
    asker: Requester,
    traced: RequestTrace,
    key: Key,
    body: Result<AnyMediaBody<ScheduleBody>, Problem>,
) -> Response {
    let answer = accept_message(&api, &asker, &traced, key, body).await;
    traced.end_with("/schedule", answer)
}

async fn accept_message(
    api: &Api,
    asker: &Requester,
    traced: &RequestTrace,
    key: Key,
    body: Result<AnyMediaBody<ScheduleBody>, Problem>,
) -> Result<Response, Problem> {
    let AnyMediaBody(body, text) = body?;
    let idempotent = key.request("POST /schedule", Some(&text))?;
    // The route exists only with a URL.
    let url = api.compat.delayed_url.as_deref().unwrap_or_default();
    let callback = HttpCallback::post(url, &Delivery { content: &body.content });
    let payload = callback.and_then(|callback| serde_json::value::to_raw_value(&callback));
    let payload = payload.map_err(|error| Problem::new(Code::InvalidJson, error.to_string()))?;
    asker.may_enqueue(HttpCallback::NAME, &payload, "")?;
    asker.may_use_queue("default", "")?;
    let prepare = || {
        let longest = limits::MAX_AHEAD.as_secs();
        if body.delay_seconds > longest {
            let detail = format!("must be at most {longest}, which is 366 days");
            let here = tickr_handlers::Problem::at("/delay_seconds", detail);
            return Err(Problem::new(Code::InvalidRequest, "invalid delay; `errors` says why").at("", vec![here]));
        }
        let draft = Draft {
            due: Due::After(Duration::from_secs(body.delay_seconds)),
            max_attempts: Some(1 + RETRY_DELAYS_MS.len() as u32),
            retry: Some(RetryRequest { delays_ms: Some(RETRY_DELAYS_MS.to_vec()), ..RetryRequest::default() }),
            tags: vec![TAG.to_owned()],
            trace: traced.0.trace_context().cloned(),
            ..Draft::new(HttpCallback::NAME, payload)
        };
        api.broker.prepare(draft).map_err(|invalid| Problem::invalid("", invalid))
    };
    accept_job(api, asker, idempotent, prepare(), |message_id| ScheduleAnswer { message_id }).await
}

/// Cancel a message, unless its delivery has begun. To cancel it twice is no error.
pub(super) async fn cancel(State(api): State<Api>, asker: Requester, PathText(id): PathText) -> Response {
    match cancel_message(&api, &asker, &id).await {
        Ok(()) => json(StatusCode::OK, json!({"success": true})),
        Err(problem) => problem.into_response(),
    }
}

async fn cancel_message(api: &Api, asker: &Requester, id: &str) -> Result<(), Problem> {
    let unknown = || Problem::not_found("message", id.chars().take(64).collect::<String>());
    let id: JobId = id.parse().map_err(|_| unknown())?;
    let (job, _) = api.broker.store().job(id).await?.ok_or_else(unknown)?;
    if !job.options.tags.iter().any(|tag| tag.as_str() == TAG) {
        return Err(unknown());
    }
    asker.require_access(&job)?;
    let why = match cancel_job(api, id, false, asker.producer().actor()).await? {
        Cancelled::Done | Cancelled::Refused(JobState::Cancelled) => return Ok(()),
        Cancelled::Missing => return Err(unknown()),
        Cancelled::Refused(state) => (state, said_of(state)),
    };
    Err(Problem::new(Code::WrongState, why.1).in_state(why.0))
}

/// Say why a message in this state cannot be cancelled, in the words of this interface.
const fn said_of(state: JobState) -> &'static str {
    match state {
        JobState::Completed => "Already sent",
        JobState::Failed => "Failed",
        _ => "Being sent",
    }
}
