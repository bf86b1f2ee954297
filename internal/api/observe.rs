//! What every request leaves behind: its time on the metrics page, and an id by which its log lines are found.

use std::collections::HashMap;
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use metrics::Histogram;

use crate::telemetry::{LogScope, in_log_scope};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id that is taken over from a caller.
const MOST_ID_BYTES: usize = 128;

/// Methods that have a label of their own: a caller may make up any number of them.
const METHODS: [Method; 7] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS];
const METHOD_WORDS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "other"];
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
/// The label of paths that no route has.
const NO_ROUTE: &str = "_other";

/// Measure a request, from its head to its answer's.
pub(super) async fn observe(request: Request, next: Next) -> Response {
    let began = Instant::now();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = METHODS.iter().position(|known| known == request.method()).unwrap_or(METHODS.len());
    let id = request_id(request.headers());
    let scope = LogScope::Request { id: id.to_str().unwrap_or("").into() };
    let mut response = in_log_scope(scope, async {
        let response = next.run(request).await;
        let (took, status) = (began.elapsed(), response.status().as_u16());
        let route = route.as_ref().map_or(NO_ROUTE, MatchedPath::as_str);
        let class = usize::from(status / 100).clamp(1, CLASSES.len()) - 1;
        handle(route, method, class).record(took.as_secs_f64());
        let elapsed_ms = took.as_millis() as u64;
        tracing::debug!(target: "tickr::access", method = METHOD_WORDS[method], route, status, elapsed_ms, "request answered");
        response
    })
    .await;
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// The caller's own id, if it is one that may stand in a log, or a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    // Printable, without what would break a line of a log or a field of it.
    let legal = |b: &u8| b.is_ascii_alphanumeric() || b"-_.:/+=@".contains(b);
    let fits = |value: &&HeaderValue| (1..=MOST_ID_BYTES).contains(&value.len()) && value.as_bytes().iter().all(legal);
    let own = || HeaderValue::from_str(&uuid::Uuid::now_v7().to_string());
    headers.get(REQUEST_ID).filter(fits).cloned().or_else(|| own().ok()).unwrap_or(HeaderValue::from_static("none"))
}

type Handles = [[OnceLock<Histogram>; CLASSES.len()]; METHOD_WORDS.len()];

/// The histogram of these labels. To make one costs more than to find it, and there is one request for each enqueue.
fn handle(route: &str, method: usize, class: usize) -> Histogram {
    // By route: templates are few, and fixed when the program is built.
    static KNOWN: RwLock<Option<HashMap<String, Box<Handles>>>> = RwLock::new(None);
    let make = || {
        let labels = [
            ("route", route.to_owned()),
            ("method", METHOD_WORDS[method].to_owned()),
            ("status", CLASSES[class].to_owned()),
        ];
        metrics::histogram!("tickr_http_request_seconds", &labels)
    };
    if let Some(handles) = KNOWN.read().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(|map| map.get(route))
    {
        return handles[method][class].get_or_init(make).clone();
    }
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    let handles = known.get_or_insert_default().entry(route.to_owned()).or_default();
    handles[method][class].get_or_init(make).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_id_that_may_stand_in_a_log_is_taken_over() {
        let id = |text: &'static str| {
            let headers = HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_static(text))]);
            request_id(&headers)
        };
        assert_eq!(id("a-1_b.C"), "a-1_b.C");
        for bad in ["", "a b", "a\"b", "{}", "a;b"] {
            let made = id(bad);
            assert!(made.len() == 36 && made != bad, "{bad:?}");
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }
}
