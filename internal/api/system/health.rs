//! `/livez` and `/readyz`.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use serde::Serialize;
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::http::observe::identify;
use crate::http::problem::method_not_allowed;
use crate::system::readiness::ReadinessCheck;
use crate::{Api, Code, Problem, json};

/// Return 200 while the process is alive
#[utoipa::path(get, path = "/livez", tag = "system", responses((status = 200, description = "Alive", body = String)))]
pub(crate) async fn livez() -> &'static str {
    "ok\n"
}

/// The readiness of this runner, with the reasons.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReadyAnswer {
    /// `ready`, `stopping`, `store_unavailable`, or `migrating` while the runner migrates the tables at its start.
    status: &'static str,
    /// True when MySQL answers and accepts writes.
    mysql: bool,
    /// Condition of the index: `fast`, `rebuilding` or `degraded`. It never makes the runner unready, because jobs run
    /// without Redis.
    index: &'static str,
    /// True when the settings of the MySQL server make a confirmed commit survive a power failure; null when MySQL does
    /// not answer.
    durable: Option<bool>,
    /// The settings that make commits not durable.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    weaknesses: Vec<String>,
    /// The topology behind the MySQL server: `single`, `galera`, `group_replication`, `semi_sync`, `async_replicas`, or
    /// `unknown` when the account may not read whether replicas follow. Absent when MySQL does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    topology: Option<&'static str>,
    /// The loss of acknowledged commits that a failover of this topology may bring. Absent if none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    topology_note: Option<&'static str>,
    /// True when this runner starts jobs. False while it is stopping or held, or when an operator has drained it
    /// (`/v1/runners`). A drain never makes the runner unready, because a drained runner still answers HTTP.
    takes_jobs: bool,
    /// True when this process only serves the API (setting `held`): it starts no job and runs no loop, for a look at a
    /// restored database. Absent otherwise.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    held: bool,
    /// A setting that makes Redis lose more data than necessary, such as an eviction policy, as far as Redis reports
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    index_weakness: Option<String>,
    /// The last failure of Redis, while `index` is `degraded`: Redis does not answer, or refuses a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    index_problem: Option<String>,
    /// Way in which the Redis server is found: `single`, `sentinel` or `cluster`. Absent while the runner migrates.
    #[serde(skip_serializing_if = "Option::is_none")]
    index_mode: Option<&'static str>,
    /// Host and port of the Redis server that holds the index, or the path of its socket. Absent before the first
    /// connection. Partitions of the index may be on several servers, with commas between.
    #[serde(skip_serializing_if = "Option::is_none")]
    index_server: Option<String>,
    /// Progress of the migration, while the status is `migrating`.
    #[serde(skip_serializing_if = "Option::is_none")]
    migration: Option<String>,
}

/// Build the router that serves while the runner migrates the tables at its start: the process is alive but not ready,
/// and every other route answers 503.
pub fn while_migrating(progress: watch::Receiver<String>) -> Router {
    let ready = async move || {
        let answer = ReadyAnswer {
            status: "migrating",
            mysql: true,
            index: "degraded",
            durable: None,
            weaknesses: Vec::new(),
            topology: None,
            topology_note: None,
            takes_jobs: false,
            held: false,
            index_weakness: None,
            index_problem: None,
            index_mode: None,
            index_server: None,
            migration: Some(progress.borrow().clone()),
        };
        json(StatusCode::SERVICE_UNAVAILABLE, answer)
    };
    let later = async || {
        Problem::new(Code::StoreUnavailable, "the tables are being migrated; /readyz shows the progress")
            .into_response()
    };
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(ready))
        .fallback(later)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn(identify))
}

/// Return 200 while this runner should get traffic
///
/// 503 only when MySQL does not answer or accepts no writes, when the tables are being migrated, or when the runner is
/// stopping. Probes that arrive within half a second share one check of MySQL.
#[utoipa::path(
    get, path = "/readyz", tag = "system",
    responses(
        (status = 200, description = "Ready", body = ReadyAnswer),
        (status = 503, description = "Stopping, migrating, or MySQL does not answer or accepts no writes", body = ReadyAnswer),
    )
)]
pub(crate) async fn readyz(State(api): State<Api>) -> Response {
    let stopping = *api.stopping.borrow();
    let ReadinessCheck { mysql, durability } = api.readiness.check().await;
    let status = match (stopping, mysql) {
        (true, _) => "stopping",
        (false, true) => "ready",
        (false, false) => "store_unavailable",
    };
    let answer = ReadyAnswer {
        status,
        mysql,
        index: api.index.health().now().as_str(),
        durable: durability.as_ref().map(|d| d.durable),
        topology: durability.as_ref().map(|d| d.topology.kind.as_str()),
        topology_note: durability.as_ref().and_then(|d| d.topology.note),
        weaknesses: durability.map(|d| d.weaknesses).unwrap_or_default(),
        takes_jobs: !stopping && !api.held && !api.operator_settings.now().drained,
        held: api.held,
        index_weakness: api.index.weakness(),
        index_problem: api.index.health().problem(),
        index_mode: Some(api.index.mode().as_str()),
        index_server: Some(api.index.servers().join(", ")).filter(|servers| !servers.is_empty()),
        migration: None,
    };
    let code = if status == "ready" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(code, answer)
}
