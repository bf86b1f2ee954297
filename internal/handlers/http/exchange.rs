//! The request and the response of a callback as operators may see them: without signature, token and the payload's
//! headers, and without secret parts of the URL.

use std::collections::BTreeMap;

use reqwest::Url;
use reqwest::header::HeaderMap;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::response::printable;
use super::sent_back::without;
use super::{HttpCallback, Method};
use tickr_job::{Exchange, ExchangeResponse};

/// Headers of a response that help to find a cause.
const SHOWN_HEADERS: [&str; 11] = [
    "content-type",
    "content-length",
    "date",
    "retry-after",
    "server",
    "via",
    "cf-ray",
    "traceparent",
    "x-amzn-requestid",
    "x-correlation-id",
    "x-request-id",
];
/// Longest header value that is kept, in bytes.
const HEADER_BYTES: usize = 120;
/// Longest URL that is kept, in bytes.
const URL_BYTES: usize = 500;
/// Longest endpoint in an error, in bytes.
const ENDPOINT_BYTES: usize = 200;
/// Path segments of at least this length that mix letters and digits may be tokens.
const TOKEN_CHARS: usize = 16;
/// Replacement for a hidden part.
const HIDDEN: &str = "***";

/// The exchange of a request that has no response yet.
pub(super) fn request(method: Method, url: &Url) -> Exchange {
    Exchange {
        method: reqwest::Method::from(method).to_string(),
        url: printable(shown(url).as_bytes(), URL_BYTES),
        took_ms: None,
        response: None,
    }
}

/// The URL of a receiver as every caller may see it: without possible secrets.
#[must_use]
pub fn shown_url(url: &str) -> String {
    Url::parse(url).map(|url| printable(shown(&url).as_bytes(), URL_BYTES)).unwrap_or_default()
}

/// The headers of a response that are kept, without the values in `secrets`, which were sent to the receiver.
pub(super) fn headers(headers: &HeaderMap, secrets: &[String]) -> BTreeMap<String, String> {
    let kept = |name: &str| {
        let value = printable(without(headers.get(name)?.as_bytes(), secrets).as_bytes(), HEADER_BYTES);
        Some((name.to_owned(), value))
    };
    SHOWN_HEADERS.into_iter().filter_map(kept).collect()
}

/// The URL without possible secrets: values of the query, and tokens in the path. Names of parameters stay, because
/// they show what is called.
fn shown(url: &Url) -> String {
    let mut text = place(url);
    for (at, (name, _)) in url.query_pairs().enumerate() {
        text.push(if at == 0 { '?' } else { '&' });
        text.push_str(if is_token(&name) { HIDDEN } else { &name });
        text.push('=');
        text.push_str(HIDDEN);
    }
    text
}

/// Scheme, host, port and path, without tokens in the path.
fn place(url: &Url) -> String {
    let mut text = url.origin().ascii_serialization();
    for segment in url.path_segments().into_iter().flatten() {
        text.push('/');
        text.push_str(if is_token(segment) { HIDDEN } else { segment });
    }
    text
}

/// The endpoint of a URL for the errors of a callback: nothing of its query, user or fragment.
pub(super) fn endpoint(url: &Url) -> String {
    printable(place(url).as_bytes(), ENDPOINT_BYTES)
}

fn is_token(text: &str) -> bool {
    let mixed = text.chars().any(|c| c.is_ascii_digit()) && text.chars().any(char::is_alphabetic);
    (mixed && text.len() >= TOKEN_CHARS) || text.len() > 4 * TOKEN_CHARS
}

/// The fields that the result of a successful callback has about its response.
#[derive(Deserialize)]
struct Result {
    status: u16,
    duration_ms: u64,
    content_type: Option<String>,
    #[serde(default)]
    body_snippet: String,
}

/// The exchange of a callback that succeeded, made of its payload and its result. A success stores no exchange of its
/// own.
#[must_use]
pub fn exchange_of_success(payload: &RawValue, result: &RawValue) -> Option<Exchange> {
    let callback: HttpCallback = serde_json::from_str(payload.get()).ok()?;
    let answer: Result = serde_json::from_str(result.get()).ok()?;
    let mut exchange = request(callback.method, &Url::parse(&callback.url).ok()?);
    exchange.took_ms = Some(answer.duration_ms);
    exchange.response = Some(ExchangeResponse {
        status: answer.status,
        headers: answer.content_type.map(|media| ("content-type".to_owned(), media)).into_iter().collect(),
        body: answer.body_snippet,
    });
    Some(exchange)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_a_url_are_not_shown() {
        for (url, expected) in [
            ("https://example.com/orders/42", "https://example.com/orders/42"),
            (
                "https://hooks.example.com:8443/services/T0001/xk2j9fq0s8dk3lq9x",
                "https://hooks.example.com:8443/services/T0001/***",
            ),
            ("https://a.example/?token=abc&a=1#frag", "https://a.example/?token=***&a=***"),
            ("https://a.example/x?eyJhbGciOiJIUzI1NiJ9", "https://a.example/x?***=***"),
            ("https://user:secret@a.example/", "https://a.example/"),
        ] {
            assert_eq!(shown(&Url::parse(url).unwrap()), expected, "{url}");
        }
        for (url, expected) in [
            ("https://user:secret@a.example:8443/orders/42?token=abc#frag", "https://a.example:8443/orders/42"),
            ("http://a.example/services/T0001/xk2j9fq0s8dk3lq9x/", "http://a.example/services/T0001/***/"),
            ("https://a.example", "https://a.example/"),
        ] {
            assert_eq!(endpoint(&Url::parse(url).unwrap()), expected, "{url}");
        }
    }

    #[test]
    fn a_success_is_shown_from_its_result() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let payload = raw(r#"{"url":"https://a.example/in?key=s3cr3t","headers":{"authorization":"Bearer s3cr3t"}}"#);
        let result = raw(r#"{"status":201,"duration_ms":12,"content_type":"text/plain","body_snippet":"ok"}"#);
        let exchange = exchange_of_success(&payload, &result).unwrap();
        let text = serde_json::to_string(&exchange).unwrap();
        assert_eq!(
            text,
            r#"{"method":"POST","url":"https://a.example/in?key=***","took_ms":12,"response":{"status":201,"headers":{"content-type":"text/plain"},"body":"ok"}}"#
        );
        assert_eq!(exchange_of_success(&payload, &raw("null")), None);
    }
}
