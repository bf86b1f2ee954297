//! The HTTP API: a table of routes, one file per resource, errors as `application/problem+json`.
//!
//! Everything tickr can do is here first; the command line and the dashboard speak only this. The OpenAPI document is
//! made from the same types and attributes as the routes.

mod asker;
mod audit;
mod auth;
mod body;
mod catalogue;
mod change;
mod cursor;
mod dead;
mod docs;
mod etag;
mod events;
mod explain;
mod filter;
mod forecast;
mod guesses;
mod health;
mod history;
mod import;
mod index;
mod jobs;
mod keys;
mod kinds;
mod metrics;
mod observe;
mod once;
mod operations;
mod origin;
mod pass;
mod places;
mod problem;
mod queues;
mod readiness;
mod reports;
mod results;
mod runners;
mod schedules;
mod searches;
mod stats;
mod trace;
mod verify;
mod view;
mod warnings;

pub use auth::Tokens;
pub use catalogue::markdown as problems_as_markdown;
pub use guesses::{Guesses, Peer};
pub(crate) use health::while_migrating;
pub use keys::new_key;
pub use metrics::Readings;
pub use places::Places;
pub use problem::{Code, Problem};
pub use readiness::Readiness;
pub use verify::Verifier;
pub use warnings::Warnings;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tokio::sync::{Semaphore, watch};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi;
use utoipa::openapi::{Content, RefOr};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::broker::{Broker, Controls, Feed, Watches};
use crate::handlers::report::FinishedReports;
use crate::index::Index;
use crate::telemetry::Tracer;

/// What the API needs.
#[derive(Clone, Debug)]
pub struct ApiParts {
    /// The way in for jobs.
    pub broker: Broker,
    /// For its health.
    pub index: Index,
    /// What operators have set; the keys of the API among it.
    pub controls: Controls,
    /// What the metrics page reads from both servers.
    pub readings: Readings,
    /// Looks whether MySQL is there, for all probes together.
    pub readiness: Readiness,
    /// Records the requests that enqueue.
    pub tracer: Tracer,
    /// Tokens of the configuration.
    pub tokens: Tokens,
    /// Is the API reached from this host alone? Then it is open until there are tokens or keys.
    pub loopback: bool,
    /// Names of this host beside `localhost` and its addresses, in lower case. An open API is reached by no other.
    pub hosts: BTreeSet<String>,
    /// Largest request body, in bytes.
    pub body_limit_bytes: usize,
    /// Names of the schedules that this runner's own configuration declares.
    pub declared_schedules: Arc<BTreeSet<String>>,
    /// Longest time in which a body must have arrived.
    pub body_timeout: Duration,
    /// Finished reports.
    pub reports: FinishedReports,
    /// Reports that may be read from MySQL at the same time.
    pub downloads: Places,
    /// What happens in the cluster.
    pub feed: Feed,
    /// Jobs that somebody watches.
    pub watches: Watches,
    /// Streams of events that may still be opened.
    pub streams: Places,
    /// Imports that may still be begun.
    pub imports: Places,
    /// Searches and counts that may still be begun.
    pub searches: Arc<Semaphore>,
    /// Keys that were tried in vain.
    pub guesses: Arc<Guesses>,
    /// What stands in the way of new jobs.
    pub warnings: Warnings,
    /// Checks everything in the background.
    pub verifier: Verifier,
    /// True once the process has begun to stop.
    pub draining: watch::Receiver<bool>,
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
        import::ImportLine,
        import::ImportEnd,
    )),
    tags(
        (name = "jobs", description = "Enqueue, read and steer jobs"),
        (name = "queues", description = "Pause, priorities and limits"),
        (name = "schedules", description = "Jobs that come by the clock"),
        (name = "dead letters", description = "Jobs that failed for good: read, replay, discard"),
        (name = "bulk operations", description = "What is done to many jobs at once"),
        (name = "events", description = "Hear what happens, as server-sent events"),
        (name = "kinds", description = "What can be enqueued"),
        (name = "keys", description = "Who may call"),
        (name = "operations", description = "How tickr is doing"),
    ),
)]
struct Document;

/// The routes, and the OpenAPI document that describes them.
fn described() -> (Router<Api>, utoipa::openapi::OpenApi) {
    let (routes, mut document) = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(jobs::enqueue, jobs::list))
        .routes(routes!(jobs::enqueue_batch))
        .routes(routes!(jobs::count))
        .routes(routes!(import::import))
        .routes(routes!(jobs::show, change::change))
        .routes(routes!(jobs::cancel))
        .routes(routes!(jobs::retry))
        .routes(routes!(jobs::run_now))
        .routes(routes!(dead::list))
        .routes(routes!(dead::groups))
        .routes(routes!(dead::group))
        .routes(routes!(dead::replay))
        .routes(routes!(dead::discard))
        .routes(routes!(operations::start, operations::list))
        .routes(routes!(operations::show))
        .routes(routes!(operations::cancel))
        .routes(routes!(results::result))
        .routes(routes!(explain::show))
        .routes(routes!(queues::list))
        .routes(routes!(queues::show, queues::change))
        .routes(routes!(queues::pause))
        .routes(routes!(queues::resume))
        .routes(routes!(events::of_job))
        .routes(routes!(events::of_cluster))
        .routes(routes!(kinds::list))
        .routes(routes!(stats::show))
        .routes(routes!(index::show))
        .routes(routes!(index::rebuild))
        .routes(routes!(verify::show, verify::start))
        .routes(routes!(runners::list))
        .routes(routes!(runners::show))
        .routes(routes!(runners::drain))
        .routes(routes!(runners::resume))
        .routes(routes!(forecast::forecast))
        .routes(routes!(history::show))
        .routes(routes!(history::queues))
        .routes(routes!(audit::list))
        .routes(routes!(keys::list))
        .routes(routes!(keys::make, keys::revoke))
        .routes(routes!(auth::whoami))
        .routes(routes!(schedules::list))
        .routes(routes!(schedules::show, schedules::put, schedules::delete))
        .routes(routes!(schedules::preview))
        .routes(routes!(schedules::pause))
        .routes(routes!(schedules::resume))
        .routes(routes!(schedules::trigger))
        .routes(routes!(schedules::ticks))
        .routes(routes!(reports::download))
        .routes(routes!(health::livez))
        .routes(routes!(health::readyz))
        .routes(routes!(metrics::page))
        .split_for_parts();
    once::describe(&mut document);
    auth::describe(&mut document);
    etag::describe(&mut document);
    describe_crowds(&mut document);
    describe_problems(&mut document);
    (routes, document)
}

/// Whatever is asked, there may be no room for whoever asks: `app/server.rs` bounds the connections.
fn describe_crowds(document: &mut utoipa::openapi::OpenApi) {
    for operation in operations(document) {
        let responses = &mut operation.responses.responses;
        responses
            .entry("429".to_owned())
            .or_insert_with(|| RefOr::T(problem::describe_problem("overloaded: too many open connections")));
    }
}

fn operations(document: &mut utoipa::openapi::OpenApi) -> impl Iterator<Item = &mut utoipa::openapi::path::Operation> {
    let items = document.paths.paths.values_mut();
    items.flat_map(|item| [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete]).flatten()
}

/// Problems have a media type of their own, which the attributes of the routes leave out for brevity.
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

/// The OpenAPI document, as served at `/openapi.json`.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    described().1
}

/// The whole API as one service.
pub fn router(parts: ApiParts) -> Router {
    let api = Arc::new(parts);
    let (routes, document) = described();
    // Made once: neither changes while the process runs.
    let page: Arc<str> = docs::page(&document, api.broker.registry()).into();
    let text: Bytes = serde_json::to_vec(&document).unwrap_or_default().into();
    let shown = move || {
        let page = Arc::clone(&page);
        async move { Html(page.to_string()) }
    };
    let media = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    routes
        .route("/openapi.json", get(move || async move { ([media], text) }))
        .route("/docs", get(shown))
        .route("/docs/problems/{code}", get(docs::problem))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(Arc::clone(&api), auth::check))
        .layer(middleware::from_fn_with_state(Arc::clone(&api), dress))
        .layer(middleware::from_fn(observe::observe))
        .layer(CatchPanicLayer::custom(|_| {
            Problem::new(Code::Internal, "the request made tickr stumble").into_response()
        }))
        .with_state(api)
}

/// Headers that every answer carries.
async fn dress(State(api): State<Api>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(
        "default-src 'none'; img-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
    ));
    if *api.draining.borrow() {
        // Whoever keeps the connection for its next request should make that request elsewhere.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn not_found() -> Problem {
    Problem::new(Code::NotFound, "there is nothing at this path; /openapi.json lists what there is")
}

/// Whoever asks what a path takes reads it in the Allow header, and so does whoever guessed wrong.
async fn method_not_allowed(method: Method) -> Response {
    if method == Method::OPTIONS {
        return StatusCode::NO_CONTENT.into_response();
    }
    let detail = "this path does not take that method; the Allow header says which it takes";
    Problem::new(Code::MethodNotAllowed, detail).into_response()
}

/// Parse a duration such as `30s`, `500ms` or `2m` from a query string.
fn parse_wait(text: &str) -> Option<Duration> {
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().ok()?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_secs(number.checked_mul(60)?)),
        _ => None,
    }
}

/// An answer with a status and a JSON body.
fn json<T: serde::Serialize>(status: StatusCode, body: T) -> Response {
    (status, Json(body)).into_response()
}
