//! The HTTP API: a table of routes, one file per resource, errors as `application/problem+json`.
//!
//! Every function of tickr is available here first. The command line and the dashboard use only this API. The OpenAPI
//! document is generated from the same types and attributes as the routes.
//!
//! The folders `jobs/` and `schedules/` have the same names in `api/` and `store/`:
//!
//! - `http/`: what every resource needs from HTTP
//! - `compat/`: interfaces of other services, for clients that were written for them
//! - `jobs/`: jobs: enqueue, list, change, import, results, explanations
//! - `system/`: the state of tickr itself
//! - `schedules/`: schedules and their ticks
//! - `api_keys.rs`: API keys (`/v1/api-keys`)
//! - `attempts.rs`: reports and verdicts of systems that finish attempts (`/v1/attempts`)
//! - `audit.rs`: the actions of operators (`/v1/audit`)
//! - `batches.rs`: jobs that belong together, with callbacks (`/v1/batches`)
//! - `bulk.rs`: bulk operations (`/v1/operations`)
//! - `bulk_pauses.rs`: pauses of bulk operations
//! - `canary.rs`: the canary of a bulk operation
//! - `dead_letter_causes.rs`: why jobs failed for good in a range of time (`/v1/dead-letters/causes`)
//! - `dead_letters.rs`: dead letters and their groups, replay and discard (`/v1/dead-letters`)
//! - `events.rs`: server-sent events of one job and of the cluster (`/v1/events`)
//! - `kinds.rs`: the kinds of jobs, and the declarations of those that remote workers execute (`/v1/kinds`)
//! - `limits.rs`: limits by key (`/v1/limits`)
//! - `order_keys.rs`: the order keys that have jobs (`/v1/order-keys`)
//! - `outbox.rs`: jobs that other programs request with a plain INSERT (`/v1/outbox`)
//! - `queues.rs`: settings, pauses and counts of queues (`/v1/queues`)
//! - `reports.rs`: download of finished reports (`/v1/reports`)
//! - `runners.rs`: the runners, their jobs, drain and resume (`/v1/runners`)
//! - `view.rs`: the JSON form of jobs and attempts
//! - `workers.rs`: remote workers: registration, requests for jobs, heartbeats, verdicts (`/v1/workers`)

mod api_keys;
mod attempts;
mod audit;
mod batches;
mod bulk;
mod bulk_pauses;
mod canary;
mod compat;
mod dead_letter_causes;
mod dead_letters;
mod events;
mod http;
mod jobs;
mod kinds;
mod limits;
mod order_keys;
mod outbox;
mod queues;
mod reports;
mod runners;
mod schedules;
mod system;
mod view;
mod workers;

pub use api_keys::new_api_key;
pub use compat::CompatRoutes;
pub use http::auth::Tokens;
pub use http::awaited_queues::AwaitedQueues;
pub use http::failed_logins::{FailedLogins, Peer};
pub use http::pages::{beside_the_api, without_room};
pub use http::problem::{Code, Problem};
pub use http::problem_table::markdown as problems_as_markdown;
pub use http::shares::RequestPermits;
pub use jobs::warnings::Warnings;
pub use system::health::while_migrating;
pub use system::marks::KeptFor;
pub use system::metrics::Readings;
pub use system::readiness::Readiness;
pub use system::verify::Verifier;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{Html, Response};
use axum::routing::get;
use tokio::sync::{Semaphore, watch};
use utoipa::OpenApi;
use utoipa::openapi::{Content, RefOr};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use compat::refusal::Interface;
use http::answers::{json, operations, operations_of, parse_wait};
use http::problem::method_not_allowed;

use tickr_broker::{Broker, ClusterEvents, OperatorSettingsCopy, Watches};
use tickr_handlers::report::FinishedReports;
use tickr_index::Index;
use tickr_telemetry::Tracer;

/// The parts of the process that the API uses. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ApiParts {
    /// Accepts and changes jobs.
    pub broker: Broker,
    /// The index, for its health and its depth.
    pub index: Index,
    /// The settings that operators change while the process runs, API keys among them.
    pub operator_settings: OperatorSettingsCopy,
    /// Reads MySQL and Redis for the metrics page.
    pub readings: Readings,
    /// Checks whether MySQL answers and accepts writes; one check serves all probes that come at the same time.
    pub readiness: Readiness,
    /// Records the spans of the requests that enqueue jobs.
    pub tracer: Tracer,
    /// The API tokens of the configuration.
    pub tokens: Tokens,
    /// True when the listener is bound to loopback. The API is then open until the first API token or API key exists.
    pub loopback: bool,
    /// Names of this host besides `localhost` and its addresses, in lower case. An open API refuses requests under any
    /// other name.
    pub hosts: BTreeSet<String>,
    /// Maximum size of a request body, in bytes.
    pub body_limit_bytes: usize,
    /// True when this process only serves the API, so that an operator can look at a restored database.
    pub held: bool,
    /// Names of the schedules that the configuration of this runner declares.
    pub declared_schedules: Arc<BTreeSet<String>>,
    /// Maximum time in which a request body must arrive.
    pub body_timeout: Duration,
    /// How long records of the past are kept.
    pub kept: KeptFor,
    /// Finds finished reports on disk and in MySQL.
    pub reports: FinishedReports,
    /// Permits for downloads of reports from MySQL.
    pub downloads: RequestPermits,
    /// The events of the cluster.
    pub cluster_events: ClusterEvents,
    /// The jobs that open streams watch.
    pub watches: Watches,
    /// Permits for streams of events.
    pub streams: RequestPermits,
    /// Permits for requests of remote workers that wait for jobs.
    pub polls: RequestPermits,
    /// The queues for which they wait.
    pub awaited_queues: AwaitedQueues,
    /// Permits for requests that wait for results. They are no part of the others: clients must not keep the workers from
    /// jobs.
    pub result_waits: RequestPermits,
    /// Permits for imports.
    pub imports: RequestPermits,
    /// Permits for searches, counts and other heavy reads.
    pub searches: Arc<Semaphore>,
    /// Requests with unknown API keys, by address.
    pub failed_logins: Arc<FailedLogins>,
    /// Finds out why a new job would not run at present.
    pub warnings: Warnings,
    /// Runs the checks of `tickr verify` in the background.
    pub verifier: Verifier,
    /// True once the process has begun to stop.
    pub stopping: watch::Receiver<bool>,
    /// The interfaces of other services that this process serves.
    pub compat: CompatRoutes,
}

type Api = Arc<ApiParts>;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "tickr",
        description = "A durable job runner for teams on MySQL. Errors are application/problem+json with a stable code.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    components(schemas(
        events::StateEvent,
        events::AttemptEvent,
        events::ProgressEvent,
        events::EndEvent,
        events::ClusterEvent,
        events::GapEvent,
        jobs::import::ImportLine,
        jobs::import::ImportEnd,
    )),
    tags(
        (name = "jobs", description = "Enqueue, read, change and cancel jobs"),
        (name = "limits", description = "Limit how many jobs with the same limit key run at once or start in a period"),
        (name = "order keys", description = "Jobs with the same order key run one at a time, in their order"),
        (name = "attempts", description = "Report on and finish attempts that a handler left to another system"),
        (name = "workers", description = "Execute jobs in any language: register a worker, fetch jobs, report, finish"),
        (name = "outbox", description = "Jobs that other programs request with a plain INSERT in their own transactions"),
        (name = "batches", description = "Jobs that belong together, with callbacks when all have ended or one has failed"),
        (name = "queues", description = "Pause queues, set their priorities and limits"),
        (name = "schedules", description = "Enqueue jobs on a cron expression or at an interval"),
        (name = "dead letters", description = "Jobs that failed for good: read, replay, discard"),
        (name = "operations", description = "Apply one action to all jobs that match a filter"),
        (name = "events", description = "Server-sent events of one job or of the whole cluster"),
        (name = "kinds", description = "The kinds of jobs that can be enqueued, and the declarations of those that remote workers execute"),
        (name = "API keys", description = "API keys and their scopes"),
        (name = "system", description = "The state of tickr: runners, index, health, figures and checks"),
    ),
)]
struct Document;

/// Return the routes, and the OpenAPI document as far as the routes describe themselves.
fn routes() -> (Router<Api>, utoipa::openapi::OpenApi) {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(jobs::enqueue, jobs::list))
        .routes(routes!(jobs::enqueue_batch))
        .routes(routes!(jobs::count))
        .routes(routes!(jobs::survey::show))
        .routes(routes!(jobs::differences::of_filter))
        .routes(routes!(jobs::import::import))
        .routes(routes!(jobs::show, jobs::change::change))
        .routes(routes!(jobs::cancel))
        .routes(routes!(jobs::retry))
        .routes(routes!(jobs::run_now))
        .routes(routes!(jobs::children))
        .routes(routes!(dead_letters::list))
        .routes(routes!(dead_letters::groups))
        .routes(routes!(dead_letter_causes::list))
        .routes(routes!(dead_letters::group))
        .routes(routes!(jobs::differences::of_group))
        .routes(routes!(dead_letters::replay))
        .routes(routes!(dead_letters::discard))
        .routes(routes!(bulk::start, bulk::list))
        .routes(routes!(bulk::show))
        .routes(routes!(bulk::made))
        .routes(routes!(bulk::cancel))
        .routes(routes!(bulk_pauses::pause))
        .routes(routes!(bulk_pauses::resume))
        .routes(routes!(jobs::result::result))
        .routes(routes!(jobs::attempt_log::show))
        .routes(routes!(jobs::explain::show))
        .routes(routes!(jobs::timeline::show))
        .routes(routes!(limits::list))
        .routes(routes!(limits::show, limits::put, limits::remove))
        .routes(routes!(limits::keys))
        .routes(routes!(limits::close_breaker))
        .routes(routes!(order_keys::list))
        .routes(routes!(outbox::show))
        .routes(routes!(outbox::nudge))
        .routes(routes!(outbox::rejected))
        .routes(routes!(outbox::replay))
        .routes(routes!(outbox::discard))
        .routes(routes!(attempts::report))
        .routes(routes!(attempts::finish))
        .routes(routes!(workers::register))
        .routes(routes!(workers::leave))
        .routes(routes!(workers::fetch))
        .routes(routes!(workers::beat))
        .routes(routes!(workers::finish))
        .routes(routes!(batches::create, batches::list))
        .routes(routes!(batches::show))
        .routes(routes!(batches::close))
        .routes(routes!(batches::cancel))
        .routes(routes!(batches::retry))
        .routes(routes!(queues::list))
        .routes(routes!(queues::show, queues::change))
        .routes(routes!(queues::backlog))
        .routes(routes!(queues::pause))
        .routes(routes!(queues::resume))
        .routes(routes!(events::of_job))
        .routes(routes!(events::of_cluster))
        .routes(routes!(kinds::list))
        .routes(routes!(kinds::show, kinds::put, kinds::remove))
        .routes(routes!(system::stats::show))
        .routes(routes!(system::redis_index::show))
        .routes(routes!(system::redis_index::rebuild))
        .routes(routes!(system::verify::show, system::verify::start))
        .routes(routes!(runners::list))
        .routes(routes!(runners::show))
        .routes(routes!(runners::drain))
        .routes(routes!(runners::resume))
        .routes(routes!(system::forecast::forecast))
        .routes(routes!(system::history::show))
        .routes(routes!(system::history::queues))
        .routes(routes!(system::marks::show))
        .routes(routes!(system::tick_strips::show))
        .routes(routes!(audit::list))
        .routes(routes!(api_keys::list))
        .routes(routes!(api_keys::make, api_keys::revoke))
        .routes(routes!(http::auth::whoami))
        .routes(routes!(schedules::list))
        .routes(routes!(schedules::show, schedules::put, schedules::delete))
        .routes(routes!(schedules::preview::preview))
        .routes(routes!(schedules::pause))
        .routes(routes!(schedules::resume))
        .routes(routes!(schedules::trigger::trigger))
        .routes(routes!(schedules::ticks::ticks))
        .routes(routes!(reports::download))
        .routes(routes!(system::health::livez))
        .routes(routes!(system::health::readyz))
        .routes(routes!(system::metrics::page))
        .split_for_parts()
}

/// Paths of probes and scrapes. A process that is only busy answers them as well: a supervisor would end it otherwise,
/// and operators would not see the reason.
pub const PROBES: [&str; 3] = ["/livez", "/readyz", "/metrics"];

/// Add 429 to every other operation: `app/server.rs` limits the number of open connections, so any of these requests
/// can be refused.
fn describe_connection_limit(document: &mut utoipa::openapi::OpenApi) {
    let others = document.paths.paths.iter_mut().filter(|(path, _)| !PROBES.contains(&path.as_str()));
    for operation in others.flat_map(|(_, item)| operations_of(item)) {
        http::problem::add_problems(operation, &[("429", "overloaded: too many open connections")]);
    }
}

/// Give responses that are problems their media type, which the attributes of the routes leave out for brevity.
fn describe_problems(document: &mut utoipa::openapi::OpenApi) {
    for response in operations(document).flat_map(|operation| operation.responses.responses.values_mut()) {
        let RefOr::T(response) = response else { continue };
        for (media, content) in std::mem::take(&mut response.content) {
            let is_problem = matches!(&content, RefOr::T(Content { schema: Some(RefOr::Ref(schema)), .. })
                if schema.ref_location == "#/components/schemas/Problem");
            let media = if is_problem { "application/problem+json".to_owned() } else { media };
            response.content.insert(media, content);
        }
    }
}

/// Return the OpenAPI document, as served at `/openapi.json`.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    let (_, mut document) = routes();
    http::body::describe(&mut document);
    http::idempotency::describe(&mut document);
    http::auth::describe(&mut document);
    http::etag::describe(&mut document);
    describe_connection_limit(&mut document);
    describe_problems(&mut document);
    document
}

/// The OpenAPI document and the page that shows it. They do not change while the process runs. They are made at the
/// first request for one of them, because that takes some megabytes for a moment, and most processes are never asked.
struct Documents {
    text: Bytes,
    page: Bytes,
}

impl Documents {
    fn new(api: &ApiParts) -> Self {
        let document = openapi();
        let page = system::docs::page(&document, api.broker.registry());
        Self { text: serde_json::to_vec(&document).unwrap_or_default().into(), page: page.into() }
    }
}

/// Build the router of the whole API.
pub fn router(parts: ApiParts) -> Router {
    let api = Arc::new(parts);
    let (routes, _) = routes();
    let documents = Arc::<OnceLock<Documents>>::default();
    let for_text = Arc::clone(&documents);
    let text = async move |State(api): State<Api>| {
        let media = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        ([media], for_text.get_or_init(|| Documents::new(&api)).text.clone())
    };
    let page = async move |State(api): State<Api>| Html(documents.get_or_init(|| Documents::new(&api)).page.clone());
    let routes = routes
        .merge(compat::routes(&api.compat))
        .route("/openapi.json", get(text))
        .route("/docs", get(page))
        .route("/docs/problems/{code}", get(system::docs::problem))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(Arc::clone(&api), surround));
    http::observe::observed(routes).with_state(api)
}

/// Do for every request what its route need not do. This is one layer, because each layer copies the services below it
/// for each request.
async fn surround(State(api): State<Api>, request: Request, next: Next) -> Response {
    let interface = Interface::of(&api.compat, request.uri().path());
    let response = http::auth::check(&api, request, next).await;
    let mut response = compat::refusal::translate(interface, response).await;
    set_default_headers(&api, &mut response);
    response
}

/// Set the headers that every response carries, and tell the readiness of requests that could not reach MySQL.
fn set_default_headers(api: &Api, response: &mut Response) {
    if response.extensions().get() == Some(&Code::StoreUnavailable) {
        api.readiness.note_failure();
    }
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(
        "default-src 'none'; img-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
    ));
    if *api.stopping.borrow() {
        // The runner is stopping: tell a client that keeps the connection alive to send its next request elsewhere.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
}

async fn not_found() -> Problem {
    Problem::new(Code::NotFound, "this path does not exist; /openapi.json lists the paths")
}
