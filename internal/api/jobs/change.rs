//! `PATCH /v1/jobs/{id}`: change the due time, the priority or the payload of a waiting job.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use chrono::{DateTime, SecondsFormat, Utc};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::Api;
use crate::http::auth::RequestActor;
use crate::http::body::{Body, IdPath};
use crate::http::etag::{self, IfMatch};
use crate::http::idempotency::{Key, ResponseContent, replay_stored, respond_to_outcome};
use crate::http::problem::{Code, Problem};
use crate::jobs::{due, json_answer};
use crate::view::JobView;
use tickr_broker::{Draft, Invalid, problem_of_due};
use tickr_job::{Attempt, Job, JobId, Priority, Timestamp};
use tickr_store::{Change, ChangeCondition, ChangeOutcome, NewPayload, UpdatedJob};

/// The changes to a job. A field that is left out stays as it is; at least one must be given.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(min_properties = 1)]
pub(crate) struct ChangeBody {
    /// New due time; a past time means now, and the limit is 366 days ahead. Not together with `delay_ms`.
    execute_at: Option<DateTime<Utc>>,
    /// New due time as a delay from now, in milliseconds. Not together with `execute_at`.
    #[schema(maximum = 31_622_400_000_u64)]
    delay_ms: Option<u64>,
    /// New priority: 0 runs first, 9 last.
    #[schema(maximum = 9)]
    priority: Option<u8>,
    /// New input of the handler. It must fit the schema of the kind. A unique key stays as it is, also one that was made
    /// from fields of the payload.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
}

/// Read a value that may be `null`: a payload of `null` is one, too.
fn given<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(value).map(Some)
}

impl ChangeBody {
    fn read(&self, payload: Option<NewPayload>, now: Timestamp) -> Result<Change, Problem> {
        let mut problems = Vec::new();
        let asked = due(self.execute_at, self.delay_ms, "")?;
        problems.extend(asked.and_then(|asked| problem_of_due(asked, now)));
        let priority = self.priority.map(Priority::try_from).transpose();
        if let Err(wrong) = priority {
            problems.push(tickr_handlers::Problem::at("/priority", wrong));
        }
        if asked.is_none() && self.priority.is_none() && payload.is_none() {
            problems.push(tickr_handlers::Problem::at("", "must name execute_at, delay_ms, priority or payload"));
        }
        match priority {
            Ok(priority) if problems.is_empty() => Ok(Change { due: asked, priority, payload }),
            _ => Err(Problem::new(Code::InvalidRequest, "invalid change of a job; `errors` says why").at("", problems)),
        }
    }
}

/// Check a payload against the kind of a job.
async fn checked(api: &Api, id: JobId, payload: Box<RawValue>) -> Result<NewPayload, Problem> {
    let (job, _) = api.broker.store().job(id).await?.ok_or_else(|| Problem::not_found("job", id))?;
    let draft = Draft::new(job.kind.as_str(), payload);
    let job = api.broker.prepare(draft).map_err(unfit)?;
    Ok(NewPayload { text: job.payload, host: job.host })
}

/// Make the problem for a payload that does not fit the kind of its job, or whose kind is gone. The body names no kind.
fn unfit(invalid: Invalid) -> Problem {
    if !matches!(invalid, Invalid::UnknownKind { .. }) {
        return Problem::invalid("", invalid);
    }
    let detail = "cannot be checked: the kind of the job is not registered; see /v1/kinds";
    let here = tickr_handlers::Problem::at("/payload", detail);
    Problem::new(Code::UnknownKind, invalid.to_string()).at("", vec![here])
}

/// Make the problem for a new due time that is not before the expiry of the job. `pointer` points at the due time.
fn too_late(pointer: &str, expires_at: Timestamp) -> Problem {
    let expires_at = expires_at.to_rfc3339_opts(SecondsFormat::Millis, true);
    let detail = format!("the new due time must be before the job expires, at {expires_at}: it would never start");
    let here = tickr_handlers::Problem::at(pointer, format!("must be before {expires_at}, when the job expires"));
    Problem::new(Code::InvalidRequest, detail).at("", vec![here])
}

/// Change the due time, the priority or the payload of a waiting job
///
/// The job must be waiting or retrying. With `If-Match`, only if the job still has one of the given ETags.
#[utoipa::path(
    patch, path = "/v1/jobs/{id}", tag = "jobs", operation_id = "change_job", request_body = ChangeBody,
    params(
        ("id" = Uuid, Path, description = "The job's id"),
        ("If-Match" = Option<String>, Header, description = "Change the job only if it has one of these ETags",
            pattern = r#"^(\*|(W/)?"[!#-~]*"( *, *(W/)?"[!#-~]*")*)$"#),
    ),
    responses(
        (status = 200, description = "Changed", body = JobView),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "wrong_state: the job is running or has ended", body = Problem),
        (status = 412, description = "precondition_failed: the job has another ETag now; nothing was changed", body = Problem),
        (status = 422, description = "invalid_id, invalid_request, unknown_kind, invalid_payload", body = Problem),
    )
)]
pub(crate) async fn change(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    IdPath(id): IdPath,
    IfMatch(tags): IfMatch,
    key: Key,
    Body(body, text): Body<ChangeBody>,
) -> Result<Response, Problem> {
    let idempotent = key.request(&format!("PATCH /v1/jobs/{id}"), Some(&text))?;
    let payload = match &body.payload {
        Some(payload) => match checked(&api, id, payload.clone()).await {
            Ok(payload) => Some(payload),
            // The job or its kind may be gone since the request was carried out.
            Err(problem) => return replay_stored(&api, idempotent, ResponseContent::Job, problem).await,
        },
        None => None,
    };
    let due_field = if body.execute_at.is_some() { "/execute_at" } else { "/delay_ms" };
    let change = body.read(payload, api.broker.store().clock().now())?;
    let condition = tags?.map(|tags| -> ChangeCondition {
        Arc::new(move |job: &Job, attempts: &[Attempt]| tags.match_strongly(&etag::compute(&text_of(job, attempts))))
    });
    let build = |updated: &UpdatedJob| {
        json_answer(StatusCode::OK, &JobView::read(updated.job.clone(), Some(updated.attempts.clone())))
    };
    let outcome = api.broker.change(id, change, &who, condition, idempotent, Arc::new(build)).await?;
    respond_to_outcome(outcome, ResponseContent::Job, |refused| {
        Err(match refused {
            ChangeOutcome::Refused(state) => {
                let detail = format!("only a waiting or retrying job can be changed; this one is {state}");
                Problem::new(Code::WrongState, detail).in_state(state)
            }
            ChangeOutcome::Held(state) => {
                let detail = "the job waits for its turn, so its due time cannot be changed: for a job in front of it, a limit or its parents";
                Problem::new(Code::WrongState, detail).in_state(state)
            }
            ChangeOutcome::AfterExpiry(expires_at) => too_late(due_field, expires_at),
            ChangeOutcome::Unmet => {
                let detail = "the job no longer has an ETag of If-Match; nothing was changed; read the job again";
                Problem::new(Code::PreconditionFailed, detail)
            }
            ChangeOutcome::Done(_) | ChangeOutcome::Missing => Problem::not_found("job", id),
        })
    })
}

fn text_of(job: &Job, attempts: &[Attempt]) -> String {
    serde_json::to_string(&JobView::read(job.clone(), Some(attempts.to_vec()))).unwrap_or_default()
}
