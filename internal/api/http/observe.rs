//! The duration of each request for the metrics page, and its id, which its log lines carry.

use std::collections::HashMap;
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use metrics::Histogram;
use tower_http::catch_panic::CatchPanicLayer;

use crate::http::problem::{Code, Problem};
use tickr_telemetry::{LogScope, in_log_scope};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Maximum length of an id that is accepted from the client.
const MAX_ID_BYTES: usize = 128;

/// Methods that have a label of their own. A client may send any other method, and all of those share one label.
const METHODS: [Method; 7] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS];
const METHOD_WORDS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "other"];
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
/// Label of paths that match no route.
const NO_ROUTE: &str = "_other";

/// Answer requests whose handler panics, and observe all of them.
pub(crate) fn observed<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    let panicked = CatchPanicLayer::custom(|_| {
        Problem::new(Code::Internal, "internal error while handling the request").into_response()
    });
    // Observed from outside, so that the answer to a request that panicked has the id of its log lines.
    router.layer(panicked).layer(middleware::from_fn(observe))
}

/// Give a request its id without measuring it: before the start is over, there is nothing that records the measures.
pub(crate) async fn identify(request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    identified(id, next.run(request)).await
}

/// Write the id of a request into its log lines and its response.
async fn identified(id: HeaderValue, answer: impl Future<Output = Response>) -> Response {
    let scope = LogScope::Request { id: id.to_str().unwrap_or("").into() };
    let mut response = in_log_scope(scope, answer).await;
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// Measure a request from its head to the head of its response.
async fn observe(request: Request, next: Next) -> Response {
    let began = Instant::now();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = METHODS.iter().position(|known| known == request.method()).unwrap_or(METHODS.len());
    let id = request_id(request.headers());
    identified(id, async {
        let response = next.run(request).await;
        let (took, status) = (began.elapsed(), response.status().as_u16());
        let route = route.as_ref().map_or(NO_ROUTE, MatchedPath::as_str);
        let class = usize::from(status / 100).clamp(1, CLASSES.len()) - 1;
        handle(route, method, class).record(took.as_secs_f64());
        let elapsed_ms = took.as_millis() as u64;
        tracing::debug!(target: "tickr::access", method = METHOD_WORDS[method], route, status, elapsed_ms, "request answered");
        response
    })
    .await
}

/// Return the id of the client if it is safe to log, or a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    // Printable, and without characters that would break a log line or one of its fields.
    let legal = |b: &u8| b.is_ascii_alphanumeric() || b"-_.:/+=@".contains(b);
    let fits = |value: &&HeaderValue| (1..=MAX_ID_BYTES).contains(&value.len()) && value.as_bytes().iter().all(legal);
    let own = || HeaderValue::from_str(&uuid::Uuid::now_v7().to_string());
    headers.get(REQUEST_ID).filter(fits).cloned().or_else(|| own().ok()).unwrap_or(HeaderValue::from_static("none"))
}

type Handles = [[OnceLock<Histogram>; CLASSES.len()]; METHOD_WORDS.len()];

/// Return the histogram of these labels. Creating one costs more than looking it up, and every request needs one.
fn handle(route: &str, method: usize, class: usize) -> Histogram {
    // By route: there are few route templates, and they are fixed when the program is built.
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
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn a_request_whose_handler_panics_is_answered_with_its_id() {
        async fn panics() -> &'static str {
            panic!("on request")
        }
        let router: Router = observed(Router::new().route("/", get(panics)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let serving = tokio::spawn(async move { axum::serve(listener, router).await });
        let request = "GET / HTTP/1.1\r\nhost: localhost\r\nx-request-id: mine\r\nconnection: close\r\n\r\n";
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
        assert!(answer.contains("\r\nx-request-id: mine\r\n") && answer.contains("\"code\":\"internal\""), "{answer}");
        serving.abort();
    }

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
