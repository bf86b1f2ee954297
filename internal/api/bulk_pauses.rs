//! `/v1/operations/{id}/pause` and `/resume`: pauses of bulk operations.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use crate::Api;
use crate::bulk::{OperationView, id_of};
use crate::http::auth::RequestActor;
use crate::http::body::PathText;
use crate::http::idempotency::{Key, ResponseContent, respond_to_outcome};
use crate::http::problem::{Code, Problem};
use crate::jobs::json_answer;
use tickr_job::{Actor, Operation};
use tickr_store::{OperationPause, PauseOperation};

/// Pause a bulk operation
///
/// After the response it changes no more jobs until it is resumed. It keeps its position, and a canary its step. A
/// paused release still holds its group: another one is refused.
#[utoipa::path(
    post, path = "/v1/operations/{id}/pause", tag = "operations", operation_id = "pause_operation",
    params(("id" = Uuid, Path, description = "The id of the bulk operation")),
    responses(
        (status = 200, description = "Paused", body = OperationView),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "wrong_state: the bulk operation has ended", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
    )
)]
pub(super) async fn pause(
    State(api): State<Api>,
    PathText(text): PathText,
    RequestActor(who): RequestActor,
    key: Key,
) -> Result<Response, Problem> {
    change(&api, &text, PauseOperation::Pause, &who, key).await
}

/// Resume a paused bulk operation
#[utoipa::path(
    post, path = "/v1/operations/{id}/resume", tag = "operations", operation_id = "resume_operation",
    params(("id" = Uuid, Path, description = "The id of the bulk operation")),
    responses(
        (status = 200, description = "The bulk operation is not paused", body = OperationView),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "wrong_state: the bulk operation has ended", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
    )
)]
pub(super) async fn resume(
    State(api): State<Api>,
    PathText(text): PathText,
    RequestActor(who): RequestActor,
    key: Key,
) -> Result<Response, Problem> {
    change(&api, &text, PauseOperation::Resume, &who, key).await
}

async fn change(api: &Api, text: &str, change: PauseOperation, by: &Actor, key: Key) -> Result<Response, Problem> {
    let id = id_of(text)?;
    let (call, verb) = match change {
        PauseOperation::Pause => ("pause", "paused"),
        PauseOperation::Resume => ("resume", "resumed"),
    };
    let idempotent = key.request(&format!("POST /v1/operations/{id}/{call}"), None)?;
    let now = api.broker.store().clock().now();
    let build = move |operation: &Operation| json_answer(StatusCode::OK, &OperationView::new(operation, now));
    let outcome = api.broker.store().pause_operation(id, change, by, idempotent, Arc::new(build)).await?;
    respond_to_outcome(outcome, ResponseContent::Other, |refused| {
        Err(match refused {
            OperationPause::Over(state) => Problem::new(
                Code::WrongState,
                format!("only a running bulk operation can be {verb}; this one is {}", state.as_str()),
            ),
            OperationPause::Missing | OperationPause::Done(_) => Problem::not_found("bulk operation", id),
        })
    })
}
