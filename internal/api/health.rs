//! `/livez`, `/readyz`.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use serde::Serialize;
use tokio::sync::watch;
use utoipa::ToSchema;

use super::readiness::Look;
use super::{Api, Code, Problem, json};

/// Is the process alive?
#[utoipa::path(get, path = "/livez", tag = "operations", responses((status = 200, description = "Alive", body = String)))]
pub(super) async fn livez() -> &'static str {
    "ok\n"
}

/// Whether this runner should get traffic, and why.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReadyAnswer {
    /// `ready`, `draining`, `store_unavailable`, or `migrating` while the start brings the tables to the shape it needs.
    status: &'static str,
    /// Does MySQL answer, and take writes?
    mysql: bool,
    /// `fast`, `rebuilding` or `degraded`. Never makes the answer red: jobs run without Redis.
    index: &'static str,
    /// Do the MySQL server's settings make an acknowledged commit survive a power cut? Null when it does not answer.
    durable: Option<bool>,
    /// If not durable: which settings are to blame.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    weaknesses: Vec<String>,
    /// Does this runner start jobs? Not while it is asked to drain (`/v1/runners`). Never makes the answer red: it answers
    /// HTTP like any other.
    takes_jobs: bool,
    /// What makes Redis forget more than it must, such as an eviction policy. As far as Redis tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    index_weakness: Option<String>,
    /// What the migration is doing, while the status is `migrating`.
    #[serde(skip_serializing_if = "Option::is_none")]
    migration: Option<String>,
}

/// What is answered while the start migrates the tables: alive, not ready, and everything else later.
pub(crate) fn while_migrating(stage: watch::Receiver<String>) -> Router {
    let ready = async move || {
        let answer = ReadyAnswer {
            status: "migrating",
            mysql: true,
            index: "degraded",
            durable: None,
            weaknesses: Vec::new(),
            takes_jobs: false,
            index_weakness: None,
            migration: Some(stage.borrow().clone()),
        };
        json(StatusCode::SERVICE_UNAVAILABLE, answer)
    };
    let later = async || {
        Problem::new(Code::StoreUnavailable, "the tables are being migrated; /readyz says how far").into_response()
    };
    Router::new().route("/livez", get(livez)).route("/readyz", get(ready)).fallback(later)
}

/// Should this runner get traffic?
///
/// Red only when MySQL does not answer, takes no writes, its tables are being migrated, or the runner is stopping. Probes that
/// come within half a second share one look at MySQL.
#[utoipa::path(
    get, path = "/readyz", tag = "operations",
    responses(
        (status = 200, description = "Ready", body = ReadyAnswer),
        (status = 503, description = "Draining, migrating, or MySQL does not answer or takes no writes", body = ReadyAnswer),
    )
)]
pub(super) async fn readyz(State(api): State<Api>) -> Response {
    let draining = *api.draining.borrow();
    let Look { mysql, durability } = api.readiness.look().await;
    let status = match (draining, mysql) {
        (true, _) => "draining",
        (false, true) => "ready",
        (false, false) => "store_unavailable",
    };
    let answer = ReadyAnswer {
        status,
        mysql,
        index: api.index.health().now().as_str(),
        durable: durability.as_ref().map(|d| d.durable),
        weaknesses: durability.map(|d| d.weaknesses).unwrap_or_default(),
        takes_jobs: !draining && !api.controls.now().drained,
        index_weakness: api.index.weakness(),
        migration: None,
    };
    let code = if status == "ready" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(code, answer)
}
