//! `POST /v1/schedules/{name}/trigger`: fire a schedule now.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::Api;
use crate::http::auth::RequestActor;
use crate::http::body::{NamePath, QueryParams};
use crate::http::idempotency::{Key, ResponseContent, replay_stored, respond_to_outcome};
use crate::http::problem::{Code, Problem};
use crate::http::trace::RequestTrace;
use crate::schedules::failed;
use crate::schedules::words::OverlapWord;
use crate::view::JobView;
use tickr_broker::TriggerError;
use tickr_job::{Actor, Name, NewJob, Overlap, floor_ms};
use tickr_store::{Accepted, Answer, IdempotentOutcome, ResponseBuilder, TriggerOutcome};

/// Parameters of a trigger.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TriggerQuery {
    /// Overlap policy for this trigger. Default: that of the schedule.
    #[param(value_type = Option<OverlapWord>, inline)]
    overlap: Option<String>,
}

/// Fire a schedule now
///
/// Enqueue a job at once, also while the schedule is paused. The ticks of the schedule are not affected. 409 when the
/// overlap policy is `skip` and the previous job has not ended.
#[utoipa::path(
    post, path = "/v1/schedules/{name}/trigger", tag = "schedules", operation_id = "trigger_schedule",
    params(
        TriggerQuery,
        ("name" = String, Path, description = "The schedule's name", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$"),
    ),
    responses(
        (status = 201, description = "The job is accepted and durable", body = JobView, headers(("Location" = String))),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "previous_unfinished: `holder` has not ended; unreadable_schedule; nothing was written", body = Problem),
        (status = 422, description = "invalid_request, unknown_kind, invalid_payload", body = Problem),
    )
)]
pub(crate) async fn trigger(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    NamePath(name): NamePath,
    QueryParams(asked): QueryParams<TriggerQuery>,
    traced: RequestTrace,
    key: Key,
) -> Response {
    let answer = fire(&api, &who, &name, asked, &traced, key).await;
    traced.end_with("/v1/schedules/{name}/trigger", answer)
}

async fn fire(
    api: &Api,
    who: &Actor,
    name: &Name,
    asked: TriggerQuery,
    traced: &RequestTrace,
    key: Key,
) -> Result<Response, Problem> {
    let overlap = match asked.overlap.as_deref().map(|word| Overlap::from_word(word).ok_or(word)) {
        Some(Err(word)) => {
            let here = tickr_handlers::Problem::at("overlap", format!("{word:?} is not one of allow, skip, replace"));
            return Err(
                Problem::new(Code::InvalidRequest, "invalid overlap policy; `errors` says why").at("", vec![here])
            );
        }
        Some(Ok(overlap)) => Some(overlap),
        None => None,
    };
    let word = overlap.map_or("", Overlap::as_str);
    let idempotent = key.request(&format!("POST /v1/schedules/{name}/trigger {word}"), None)?;
    let build = |job: &NewJob| -> ResponseBuilder<Accepted> {
        let job = job.clone();
        Arc::new(move |accepted: &Accepted| {
            let mut job = job.clone();
            if let Some(by) = &mut job.options.schedule {
                by.tick_at = floor_ms(accepted.created_at);
            }
            let body = serde_json::to_string(&JobView::accepted(&job, accepted, Vec::new())).unwrap_or_default();
            Answer { status: StatusCode::CREATED.as_u16(), body }
        })
    };
    match api.broker.trigger_schedule(name, overlap, who, traced.0.trace_context(), idempotent.clone(), build).await {
        // The schedule may have been deleted since the request was carried out.
        Ok(IdempotentOutcome::Refused(TriggerOutcome::Missing)) => {
            replay_stored(api, idempotent, ResponseContent::Job, Problem::not_found("schedule", name)).await
        }
        Ok(outcome) => respond_to_outcome(outcome, ResponseContent::Job, |refused| {
            Err(match refused {
                TriggerOutcome::Busy(id, state) => Problem::new(
                    Code::PreviousUnfinished,
                    format!("the schedule's previous job {id} is {state}; `overlap=allow` fires all the same"),
                )
                .held_by_job(id, state),
                TriggerOutcome::Missing | TriggerOutcome::Fired(_) => Problem::not_found("schedule", name),
                TriggerOutcome::Changed => {
                    let detail = "the schedule is being changed at this moment; try again";
                    Problem::new(Code::StoreUnavailable, detail)
                }
            })
        }),
        Err(TriggerError::Invalid(invalid)) => {
            replay_stored(api, idempotent, ResponseContent::Job, Problem::invalid("", invalid)).await
        }
        Err(TriggerError::Store(error)) => Err(failed(api, name, error).await),
    }
}
