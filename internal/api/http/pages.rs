//! The routes beside the API, such as those of the dashboard: their responses have what those of the API have. So do
//! the refusals of requests for which there is no room.

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};

use crate::http::observe::identify;
use crate::http::problem::{Code, Problem, method_not_allowed};

/// Give each response of these routes an id, and a problem to those that have no page and no file.
pub fn beside_the_api(pages: Router) -> Router {
    pages
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn(explain))
        .layer(middleware::from_fn(identify))
}

/// Return the routes of a client whose connection is one too many: each request gets 429.
pub fn without_room() -> Router {
    let refuse = async || {
        let detail = "this runner has as many open connections as the setting http_connections \
                      (TICKR_HTTP_CONNECTIONS) allows";
        Problem::new(Code::Overloaded, detail)
    };
    Router::new().fallback(refuse).layer(middleware::from_fn(identify))
}

async fn explain(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    // A response with a type has its own explanation.
    if response.status() == StatusCode::NOT_FOUND && !response.headers().contains_key(header::CONTENT_TYPE) {
        response = Problem::new(Code::NotFound, "this path has no page and no file").into_response();
    }
    if response.status().is_client_error() {
        let headers = response.headers_mut();
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    }
    response
}
