//! Checks of a callback that its schema cannot express.

use std::time::Duration;

use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};

use super::guard::{Rule, check_host};
use super::{AnswerRule, HttpCallback, Method, Problem};

/// Longest value of a header, in bytes.
const HEADER_VALUE_BYTES: usize = 4_096;

/// Headers of the connection and its framing, which are not part of the request.
const CONNECTION_HEADERS: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Return all problems of a callback.
pub(super) fn problems(callback: &HttpCallback, rule: &Rule, longest: Duration) -> Vec<Problem> {
    let mut problems: Vec<Problem> = url(&callback.url, rule).err().into_iter().collect();
    let mut seen = Vec::new();
    for (name, value) in &callback.headers {
        let pointer = format!("/headers/{}", escape(name));
        if let Err(detail) = header(name, value) {
            problems.push(Problem::at(pointer, detail));
        } else if seen.contains(&name.to_ascii_lowercase()) {
            problems.push(Problem::at(pointer, "is given twice: case makes no difference"));
        }
        seen.push(name.to_ascii_lowercase());
    }
    if callback.body.is_some() && matches!(callback.method, Method::Get | Method::Head) {
        problems.push(Problem::at("/body", "must be absent: a GET or HEAD request has no body"));
    }
    if callback.timeout_ms.is_some_and(|ms| Duration::from_millis(ms) > longest) {
        let most = longest.as_millis();
        let detail = format!("must be at most {most}: an operator may raise the setting callback_timeout up to 24h");
        problems.push(Problem::at("/timeout_ms", detail));
    }
    problems.extend(callback.answer.iter().flat_map(AnswerRule::problems));
    problems
}

/// Check the URL of a receiver.
pub(super) fn url(text: &str, rule: &Rule) -> Result<(), Problem> {
    let wrong = |detail: String| Err(Problem::at("/url", detail));
    // The URL parser drops tabs and line breaks silently. A client that sends them does not mean the URL that remains.
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return wrong("must not contain spaces or control characters".to_owned());
    }
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(error) => return wrong(format!("must be an absolute URL: {error}")),
    };
    if !matches!(url.scheme(), "http" | "https") {
        return wrong("must be an http or https URL".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return wrong("must not contain a user name or password".to_owned());
    }
    if url.port() == Some(0) {
        return wrong("must not name port 0".to_owned());
    }
    check_host(&url, rule).or_else(|refused| wrong(refused.to_string()))
}

fn header(name: &str, value: &str) -> Result<(), String> {
    if HeaderName::from_bytes(name.as_bytes()).is_err() {
        return Err("is not a legal header name".to_owned());
    }
    let name = name.to_ascii_lowercase();
    if CONNECTION_HEADERS.contains(&name.as_str()) {
        return Err("belongs to the connection and cannot be set".to_owned());
    }
    if name.starts_with("webhook-") || name.starts_with("tickr-") {
        return Err("is set by tickr and cannot be given".to_owned());
    }
    if value.len() > HEADER_VALUE_BYTES {
        return Err(format!("must be at most {HEADER_VALUE_BYTES} bytes long"));
    }
    // The HTTP library would send bytes beyond ASCII. Receivers do not agree on their meaning.
    if !value.is_ascii() || HeaderValue::from_str(value).is_err() {
        return Err("must consist of printable ASCII characters".to_owned());
    }
    Ok(())
}

/// Escape a name as one step of a JSON pointer.
fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pointers(payload: serde_json::Value) -> Vec<String> {
        let callback: HttpCallback = serde_json::from_value(payload).unwrap();
        problems(&callback, &Rule::new(false, Vec::new()), Duration::from_secs(30))
            .into_iter()
            .map(|problem| problem.pointer)
            .collect()
    }

    #[test]
    fn urls_are_absolute_web_addresses_without_credentials() {
        for good in
            ["https://example.com/a?b=c#d", "http://example.com:8080", "HTTPS://EXAMPLE.com", "https://пример.рф/"]
        {
            assert!(pointers(json!({"url": good})).is_empty(), "{good}");
        }
        for bad in [
            "",
            "example.com",
            "/relative",
            "//example.com/",
            "ftp://example.com/",
            "file:///etc/passwd",
            "gopher://example.com/",
            "data:text/plain,x",
            "https://user@example.com/",
            "https://user:password@example.com/",
            "https://:password@example.com/",
            "https://example.com@127.0.0.1/",
            "https://example.com:0/",
            "https://example.com:99999/",
            "https://exam\tple.com/",
            "https://example.com/\r\nx: y",
            " https://example.com/",
            "https://",
            "http://127.0.0.1/",
            "http://[::ffff:10.0.0.1]/",
        ] {
            assert_eq!(pointers(json!({"url": bad})), ["/url"], "{bad}");
        }
    }

    #[test]
    fn only_the_callers_own_headers_may_be_given() {
        let with = |name: &str, value: &str| pointers(json!({"url": "https://example.com/", "headers": {name: value}}));
        for good in ["authorization", "X-Trace", "content-type", "User-Agent", "cookie"] {
            assert!(with(good, "some value; x=1").is_empty(), "{good}");
        }
        for bad in [
            "Host",
            "content-length",
            "Transfer-Encoding",
            "connection",
            "TE",
            "upgrade",
            "webhook-id",
            "Webhook-Signature",
            "tickr-attempt",
            "bad name",
            "bad:name",
            "x\r\ny",
            "",
        ] {
            assert_eq!(with(bad, "x"), [format!("/headers/{bad}")], "{bad}");
        }
        assert_eq!(with("x/~", "a\nb"), ["/headers/x~1~0"]);
        for bad in ["a\r\nx-evil: 1", "a\0b", "naïve", &"x".repeat(4_097)] {
            assert_eq!(with("x-a", bad), ["/headers/x-a"], "{bad}");
        }
        let twice = json!({"url": "https://example.com/", "headers": {"X-A": "1", "x-a": "2"}});
        assert_eq!(pointers(twice), ["/headers/x-a"]);
    }

    #[test]
    fn a_get_request_has_no_body() {
        assert_eq!(pointers(json!({"url": "https://example.com/", "method": "GET", "body": {}})), ["/body"]);
        assert!(pointers(json!({"url": "https://example.com/", "method": "GET", "body": null})).is_empty());
        assert!(pointers(json!({"url": "https://example.com/", "method": "DELETE", "body": [1]})).is_empty());
    }
}
