//! What every request has: an id, which the caller may give, and a line in the log.

use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument as _;
use uuid::Uuid;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id that a caller may give.
const LONGEST: usize = 128;

/// Give the request its id, say it in the answer and in every line of the log, and write a line of its own at level
/// debug: id, method, route, status and time. Routes, not paths, because people put secrets into paths; and never a
/// header, a query or a body.
pub(super) async fn log(request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = request.headers().get(REQUEST_ID).filter(|id| is_sane(id)).cloned();
    let id = id.or_else(|| HeaderValue::try_from(Uuid::now_v7().to_string()).ok());
    let shown = id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or("").to_owned();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = request.method().clone();
    let span = tracing::info_span!("request", request_id = shown);
    let mut response = next.run(request).instrument(span).await;
    tracing::debug!(
        target: "tickr::access",
        request_id = shown,
        method = method.as_str(),
        route = route.as_ref().map_or("-", MatchedPath::as_str),
        status = response.status().as_u16(),
        elapsed_ms = began.elapsed().as_secs_f64() * 1_000.0,
        "request"
    );
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// Printable, without what would break a line of a log or a field of it.
fn is_sane(id: &HeaderValue) -> bool {
    let bytes = id.as_bytes();
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(byte);
    (1..=LONGEST).contains(&bytes.len()) && bytes.iter().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_could_forge_a_line_are_not_taken() {
        let sane = |text: &str| is_sane(&HeaderValue::from_str(text).unwrap());
        assert!(sane("0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a") && sane("trace/1:a=b") && sane(&"x".repeat(128)));
        for odd in ["", "a b", "a\"b", "a\tb", "{}", "a,b", &"x".repeat(129)] {
            assert!(!sane(odd), "{odd}");
        }
    }
}
