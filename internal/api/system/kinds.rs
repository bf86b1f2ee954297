//! `/v1/kinds`: the registered kinds and the schemas of their payloads.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use crate::view::RetryView;
use crate::{Api, json};

/// The registered kinds.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KindsAnswer {
    /// Kinds, in the order of their names.
    data: Vec<KindView>,
}

/// One registered kind.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KindView {
    /// Name of the kind.
    kind: String,
    /// Default number of attempts of a job.
    max_attempts: u32,
    /// Default time limit of one attempt, in milliseconds.
    timeout_ms: u64,
    /// Default backoff of a job.
    retry: RetryView,
    /// JSON Schema (2020-12) of the payload.
    #[schema(value_type = Object)]
    schema: serde_json::Value,
}

/// List the kinds with their payload schemas
#[utoipa::path(
    get, path = "/v1/kinds", tag = "kinds", operation_id = "list_kinds",
    responses(
        (status = 200, description = "The kinds that this runner has", body = KindsAnswer),
    )
)]
pub(crate) async fn list(State(api): State<Api>) -> Response {
    let view = |kind: &tickr_handlers::Registered| KindView {
        kind: kind.name().to_string(),
        max_attempts: kind.defaults().max_attempts,
        timeout_ms: u64::try_from(kind.defaults().timeout.as_millis()).unwrap_or(u64::MAX),
        retry: kind.defaults().retry.clone().into(),
        schema: kind.schema().clone(),
    };
    json(StatusCode::OK, KindsAnswer { data: api.broker.registry().iter().map(view).collect() })
}
