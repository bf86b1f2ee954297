//! Bad input: each sort is answered with a problem document and a stable code, nothing of it is accepted, and the next
//! good request works.

use std::time::Duration;

use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tickr::config::Config;
use tickr::handlers::Registry;
use tickr::job::State;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::support::{Answer, TestApp, answer, contract, eventually, http, open_transactions};

/// A request, and the answer that it must get.
struct Case {
    what: &'static str,
    body: String,
    status: u16,
    code: &'static str,
    /// Pointer of the first error; `None` if the problem has no place.
    pointer: Option<&'static str>,
}

fn case(what: &'static str, body: impl Into<String>, status: u16, code: &'static str) -> Case {
    Case { what, body: body.into(), status, code, pointer: None }
}

fn at(what: &'static str, body: impl Into<String>, code: &'static str, pointer: &'static str) -> Case {
    Case { what, body: body.into(), status: 422, code, pointer: Some(pointer) }
}

/// Return a noop job with one more field, as text, because a JSON value cannot express many of these errors.
fn with(field: &str, value: &str) -> String {
    format!(r#"{{"kind": "noop", "{field}": {value}}}"#)
}

/// Return the time in some hours as JSON.
fn ahead(hours: i64) -> String {
    json!(chrono::Utc::now() + chrono::TimeDelta::hours(hours)).to_string()
}

fn bad_jobs() -> Vec<Case> {
    let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let mut cases = vec![
        // Not JSON.
        case("an empty body", "", 400, "invalid_json"),
        case("blanks", "  \n", 400, "invalid_json"),
        case("half an object", r#"{"kind": "noop""#, 400, "invalid_json"),
        case("a second value", r#"{"kind": "noop"} {}"#, 400, "invalid_json"),
        case("a comma too many", r#"{"kind": "noop",}"#, 400, "invalid_json"),
        case("single quotes", "{'kind': 'noop'}", 400, "invalid_json"),
        case("NaN", with("delay_ms", "NaN"), 400, "invalid_json"),
        case("a byte order mark", "\u{feff}{\"kind\": \"noop\"}", 400, "invalid_json"),
        case("a raw NUL in a string", "{\"kind\": \"no\0op\"}", 400, "invalid_json"),
        case("a raw line break in a string", "{\"kind\": \"no\nop\"}", 400, "invalid_json"),
        case("a number beyond all floats", with("delay_ms", "1e400"), 400, "invalid_json"),
        case("a lone surrogate in the kind", r#"{"kind": "\ud800"}"#, 400, "invalid_json"),
        case("a lone surrogate in the key", with("unique_key", r#""\udc00x""#), 400, "invalid_json"),
        case("form data", "kind=noop", 400, "invalid_json"),
        // Too deep, at any place.
        case("5,000 levels", deep(5_000), 400, "too_deep"),
        case("5,000 levels in the payload", with("payload", &deep(5_000)), 400, "too_deep"),
        case("65 levels in all", with("payload", &deep(64)), 400, "too_deep"),
        case("levels that never close", "[".repeat(100_000), 400, "too_deep"),
        // JSON, but not a job.
        at("null", "null", "invalid_request", ""),
        at("a number", "1", "invalid_request", ""),
        at("a list", "[[]]", "invalid_request", ""),
        at(
            "a job without its field names",
            r#"["noop",{},null,null,null,null,null,null,null,null]"#,
            "invalid_request",
            "",
        ),
        at("no kind", "{}", "invalid_request", "/kind"),
        at("a kind that is no string", r#"{"kind": 7}"#, "invalid_request", "/kind"),
        at("an unknown field", with("colour", "1"), "invalid_request", "/colour"),
        at("a misspelt field", with("max_attempt", "1"), "invalid_request", "/max_attempt"),
        at("a field twice", r#"{"kind": "noop", "kind": "sleep"}"#, "invalid_request", ""),
        at("the payload twice", r#"{"kind": "noop", "payload": {}, "payload": {}}"#, "invalid_request", ""),
        // Kinds.
        at("an unknown kind", r#"{"kind": "nobody"}"#, "unknown_kind", "/kind"),
        at("an empty kind", r#"{"kind": ""}"#, "unknown_kind", "/kind"),
        at("a kind in capitals", r#"{"kind": "NOOP"}"#, "unknown_kind", "/kind"),
        at("a kind with a NUL", r#"{"kind": "noop\u0000"}"#, "unknown_kind", "/kind"),
        at("SQL for a kind", r#"{"kind": "noop'; DROP TABLE jobs; --"}"#, "unknown_kind", "/kind"),
        at("a very long kind", format!(r#"{{"kind": "{}"}}"#, "ü".repeat(50_000)), "unknown_kind", "/kind"),
        // Payloads.
        at("a payload that is no object", with("payload", "[]"), "invalid_payload", "/payload"),
        at("a payload that is null", with("payload", "null"), "invalid_payload", "/payload"),
        at("a lone surrogate in the payload", with("payload", r#"{"a": "\ud800"}"#), "invalid_payload", "/payload/a"),
        at(
            "a number beyond all floats in the payload",
            with("payload", r#"{"a": 1e400}"#),
            "invalid_payload",
            "/payload/a",
        ),
    ];
    let sleep = |what, payload: &str, pointer| {
        at(what, format!(r#"{{"kind": "sleep", "payload": {payload}}}"#), "invalid_payload", pointer)
    };
    cases.extend([
        sleep("a field of the wrong type", r#"{"ms": "long"}"#, "/payload/ms"),
        sleep("a missing field", "{}", "/payload"),
        sleep("an unknown field of the payload", r#"{"ms": 1, "colour": 2}"#, "/payload"),
        sleep("a negative time", r#"{"ms": -1}"#, "/payload/ms"),
        sleep("a time that is too long", r#"{"ms": 1e18}"#, "/payload/ms"),
        sleep("a payload field twice", r#"{"ms": 1, "ms": 2}"#, "/payload"),
    ]);
    let mail = |what, payload: Value, pointer| {
        at(what, json!({"kind": "email", "payload": payload}).to_string(), "invalid_payload", pointer)
    };
    cases.extend([
        mail(
            "a header line in a subject",
            json!({"to": "a@b.c", "subject": "x\r\nBcc: d@e.f", "text": "t"}),
            "/payload/subject",
        ),
        mail("an address that is none", json!({"to": "nobody", "subject": "x", "text": "t"}), "/payload/to"),
    ]);
    cases.push(at(
        "a callback to a file",
        r#"{"kind": "http", "payload": {"url": "file:///etc/passwd"}}"#,
        "invalid_payload",
        "/payload/url",
    ));
    cases.push(at(
        "a report that is not configured",
        r#"{"kind": "report", "payload": {"query": "salaries"}}"#,
        "invalid_payload",
        "/payload/query",
    ));
    for (field, values) in [
        ("delay_ms", &["-1", "1e18", "1000000000000000000", "1.5", "\"1\"", "18446744073709551616", "31622400001"][..]),
        (
            "execute_at",
            &[
                "\"9999-12-31T23:59:59Z\"",
                "\"2026-02-30T00:00:00Z\"",
                "\"2026-01-01\"",
                "\"2026-01-01T00:00:00\"",
                "\"tomorrow\"",
                "\"\"",
                "1767225600",
                "\"+12026-01-01T00:00:00Z\"",
            ],
        ),
        ("max_attempts", &["0", "101", "-1", "1.5", "99999999999"]),
        ("priority", &["10", "-1", "256", "\"high\""]),
        ("timeout_ms", &["0", "86400001", "-5"]),
        ("queue", &["\"Bad Name!\"", "\"\"", "\"-x\"", "\"a\\u0000\"", "\"ä\"", "7"]),
        ("unique_key", &["\"\"", "7"]),
    ] {
        let pointer: &'static str = Box::leak(format!("/{field}").into_boxed_str());
        for value in values {
            let what = Box::leak(format!("{field} of {value}").into_boxed_str());
            cases.push(at(what, with(field, value), "invalid_request", pointer));
        }
    }
    let long = "k".repeat(256);
    cases.extend([
        at("a queue of 65 letters", with("queue", &format!("\"{}\"", "q".repeat(65))), "invalid_request", "/queue"),
        at("a key of 256 bytes", with("unique_key", &format!("\"{long}\"")), "invalid_request", "/unique_key"),
        at(
            "a unique key of 128 wide letters",
            with("unique_key", &format!("\"{}\"", "ü".repeat(128))),
            "invalid_request",
            "/unique_key",
        ),
        at(
            "both times",
            r#"{"kind": "noop", "delay_ms": 1, "execute_at": "2026-01-01T00:00:00Z"}"#,
            "invalid_request",
            "/delay_ms",
        ),
        at(
            "a backoff that shrinks",
            with("retry", r#"{"base_ms": 1, "factor": 0.5}"#),
            "invalid_request",
            "/retry/factor",
        ),
        at("an expiry of no time", with("expires_in_ms", "0"), "invalid_request", "/expires_in_ms"),
        at("an absurd expiry", with("expires_in_ms", "31622400001"), "invalid_request", "/expires_in_ms"),
        at("a due time too far ahead", with("execute_at", &ahead(366 * 24 + 23)), "invalid_request", "/execute_at"),
        at(
            "a due time at the end of the calendar, and an expiry",
            r#"{"kind": "noop", "execute_at": "+262142-12-31T23:59:59.9995Z", "expires_in_ms": 1000}"#,
            "invalid_request",
            "/execute_at",
        ),
        at("an expiry too far ahead", with("expires_at", &ahead(366 * 24 + 23)), "invalid_request", "/expires_at"),
        at("an expiry hours ago", with("expires_at", &ahead(-23)), "invalid_request", "/expires_at"),
        at("an expiry long ago", with("expires_at", r#""2020-01-01T00:00:00Z""#), "invalid_request", "/expires_at"),
        at(
            "two expiries",
            r#"{"kind": "noop", "expires_in_ms": 1, "expires_at": "2026-01-01T00:00:00Z"}"#,
            "invalid_request",
            "/expires_in_ms",
        ),
        at(
            "an expiry before the start",
            r#"{"kind": "noop", "delay_ms": 5000, "expires_in_ms": 5000}"#,
            "invalid_request",
            "/expires_in_ms",
        ),
        at(
            "an expiry of some time before the start at a time",
            format!(r#"{{"kind": "noop", "execute_at": {}, "expires_in_ms": 1000}}"#, ahead(1)),
            "invalid_request",
            "/expires_in_ms",
        ),
        at(
            "an expiry at a time before the start after a delay",
            format!(r#"{{"kind": "noop", "delay_ms": 7200000, "expires_at": {}}}"#, ahead(1)),
            "invalid_request",
            "/expires_at",
        ),
        at("a backoff of no time", with("retry", r#"{"base_ms": 0}"#), "invalid_request", "/retry/base_ms"),
        at("a backoff without field names", with("retry", "[1, 2, 3, 0.1]"), "invalid_request", "/retry"),
        at(
            "two kinds of backoff",
            with("retry", r#"{"base_ms": 1, "delays_ms": [1]}"#),
            "invalid_request",
            "/retry/delays_ms",
        ),
        at("an empty table of delays", with("retry", r#"{"delays_ms": []}"#), "invalid_request", "/retry/delays_ms"),
        at(
            "a table with a delay of no time",
            with("retry", r#"{"delays_ms": [5, 0]}"#),
            "invalid_request",
            "/retry/delays_ms",
        ),
        at("a table with words", with("retry", r#"{"delays_ms": ["1s"]}"#), "invalid_request", "/retry/delays_ms/0"),
        at("an unknown word in the backoff", with("retry", r#"{"base_ms": 1, "x": 1}"#), "invalid_request", "/retry/x"),
    ]);
    cases
}

fn bad_batches() -> Vec<Case> {
    let jobs = |jobs: &str| format!(r#"{{"jobs": {jobs}}}"#);
    let many = vec![r#"{"kind":"noop"}"#; 1_001].join(",");
    vec![
        at("an empty batch", jobs("[]"), "invalid_request", "/jobs"),
        at("1,001 jobs", jobs(&format!("[{many}]")), "invalid_request", "/jobs"),
        at("no jobs", "{}", "invalid_request", "/jobs"),
        at("jobs that are no list", jobs("{}"), "invalid_request", "/jobs"),
        at("a bare list", r#"[[{"kind": "noop"}]]"#, "invalid_request", ""),
        at(
            "a job as a list",
            jobs(r#"[["noop",{},null,null,null,null,null,null,null,null]]"#),
            "invalid_request",
            "/jobs/0",
        ),
        at("a job that is none", jobs(r#"[{"kind": "noop"}, 7]"#), "invalid_request", "/jobs/1"),
        at("an unknown field", jobs(r#"[{"kind": "noop", "colour": 1}]"#), "invalid_request", "/jobs/0/colour"),
        at("an unknown kind in a batch", jobs(r#"[{"kind": "noop"}, {"kind": "x"}]"#), "unknown_kind", "/jobs/1/kind"),
        at("a bad payload in a batch", jobs(r#"[{"kind": "sleep"}]"#), "invalid_payload", "/jobs/0/payload"),
        case("a batch that is not JSON", r#"{"jobs": ["#, 400, "invalid_json"),
    ]
}

async fn send(tickr: &TestApp, path: &str, body: impl Into<reqwest::Body>) -> Answer {
    answer(http().post(tickr.url(path)).header(CONTENT_TYPE, "application/json").body(body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_bad_input_has_its_code_and_changes_nothing() {
    let tickr = TestApp::start().await;
    let mut wrong = Vec::new();
    for (path, cases) in [("/v1/jobs", bad_jobs()), ("/v1/jobs/batch", bad_batches())] {
        for Case { what, body, status, code, pointer } in cases {
            let got = send(&tickr, path, body.clone()).await;
            let first = got.pointers().first().map(|pointer| (*pointer).to_owned());
            let fits =
                (got.status, got.code()) == (status, code) && pointer.is_none_or(|p| first.as_deref() == Some(p));
            if !fits {
                wrong.push(format!("{what}: {} {} {first:?}, not {status} {code} {pointer:?}", got.status, got.code()));
            }
            let shown = got.body.to_string();
            assert!(shown.len() < 20_000, "{what}: the answer repeats {} bytes", shown.len());
            for leak in ["SELECT", "INSERT", "sqlx", "panicked", ".rs:"] {
                assert!(!shown.contains(leak), "{what}: {shown}");
            }
            // The OpenAPI document refuses the same bodies, as far as a schema can.
            let read: Option<Value> = serde_json::from_str(&body).ok();
            if let Some(read) = read.filter(|_| code == "invalid_request" && pointer != Some("/delay_ms")) {
                let dates = ["/execute_at", "/expires_at", "/kind", "/payload", "/retry/factor"];
                let by_schema = !pointer.is_some_and(|p| dates.contains(&p))
                    && !["twice", "wide", "two ", "before the start", "a table with a delay"]
                        .iter()
                        .any(|part| what.contains(part));
                if by_schema && contract::request_fits("POST", path, &read) != Some(false) {
                    wrong.push(format!("{what}: the OpenAPI document allows it"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    for table in ["SELECT COUNT(*) FROM jobs", "SELECT COUNT(*) FROM owed", "SELECT COUNT(*) FROM unique_keys"] {
        assert_eq!(tickr.count(table).await, 0);
    }
    let id = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(id, State::Completed).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_but_legal_input_is_taken_as_it_is() {
    let tickr = TestApp::start().await;
    let levels = format!("{}{}", r#"{"a":["#.repeat(31), "]}".repeat(31));
    for (what, body) in [
        ("63 levels", with("payload", &levels)),
        ("a NUL in a key", with("unique_key", r#""a\u0000b""#)),
        ("a key of 255 bytes", with("unique_key", &format!("\"{}\"", "k".repeat(255)))),
        ("a key in emoji", with("unique_key", r#""😀\ud83d\ude00""#)),
        ("a NUL and a private letter in the payload", with("payload", r#"{"a": "\u0000", "\ue000": 1}"#)),
        ("a field twice in a free payload", with("payload", r#"{"a": 1, "a": 2}"#)),
        ("a huge integer", with("payload", r#"{"a": 123456789012345678901234567890, "b": -0.0, "c": 1e300}"#)),
        ("brackets in strings", with("payload", &format!(r#"{{"a": "{}"}}"#, "[{".repeat(1_000)))),
        ("a time long past", with("execute_at", "\"1970-01-01T00:00:00Z\"")),
        ("a time before 1970", with("execute_at", "\"1969-12-31T23:59:59Z\"")),
        ("the zero time of some languages", with("execute_at", "\"0001-01-01T00:00:00Z\"")),
        ("a due time almost a year ahead", with("execute_at", &ahead(366 * 24 - 1))),
        (
            "an expiry after a past due time",
            format!(r#"{{"kind": "noop", "execute_at": "0001-01-01T00:00:00Z", "expires_at": {}}}"#, ahead(1)),
        ),
        ("a time in another zone, with nanoseconds", with("execute_at", "\"2026-01-01T01:02:03.123456789+05:30\"")),
        ("a leap second", with("execute_at", "\"2016-12-31T23:59:60Z\"")),
        ("no delay", with("delay_ms", "0")),
        ("the longest delay", with("delay_ms", "31622400000")),
        (
            "nulls for what may be left out",
            r#"{"kind": "noop", "queue": null, "delay_ms": null, "retry": null, "priority": null}"#.into(),
        ),
    ] {
        let answer = send(&tickr, "/v1/jobs", body.clone()).await;
        assert_eq!(answer.status, 201, "{what}: {:#}", answer.body);
        let sent: Value = serde_json::from_str(&body).unwrap();
        let job = tickr.job(answer.body["id"].as_str().unwrap().parse().unwrap()).await;
        if !sent["payload"].is_null() {
            assert_eq!(job["payload"], sent["payload"], "{what}");
        }
        if !sent["unique_key"].is_null() {
            assert_eq!(job["unique_key"], sent["unique_key"], "{what}");
        }
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_null_in_a_body_counts_as_a_field_left_out_wherever_the_document_allows_it() {
    let tickr = TestApp::start().await;
    let job = json!({"kind": "noop", "tags": null, "unique_fields": null, "after": null, "delay_ms": 3_600_000});
    assert_eq!(tickr.post("/v1/jobs", &job).await.status, 201);
    let callback = json!({"kind": "noop", "tags": null, "after": null});
    assert_eq!(tickr.post("/v1/batches", json!({"jobs": null, "on_complete": callback})).await.status, 201);
    let schedule = json!({"every_ms": 3_600_000, "kind": "noop", "tags": null});
    assert_eq!(tickr.put("/v1/schedules/hourly", schedule).await.status, 201);
    assert_eq!(tickr.put("/v1/limits/calls", json!({"concurrency": 1, "overrides": null})).await.status, 201);
    let filter = json!({"ids": null, "payload": null, "kind": "noop"});
    let mut operation = json!({"action": "cancel", "all": null, "filter": filter, "dry_run": true});
    let dry = tickr.post("/v1/operations", &operation).await;
    assert_eq!((dry.status, &dry.body["count"]), (200, &json!(1)), "{:#}", dry.body);
    operation["dry_run"] = Value::Null;
    assert_eq!(tickr.post("/v1/operations", &operation).await.status, 202);
    // Any other value of a wrong type is refused at its place.
    let wrong = tickr.post("/v1/jobs", json!({"kind": "noop", "tags": "a"})).await;
    assert_eq!((wrong.status, wrong.code(), wrong.pointers()), (422, "invalid_request", vec!["/tags"]));
    // An operation on all jobs still wants a word for it.
    let all = tickr.post("/v1/operations", json!({"action": "cancel", "all": null})).await;
    assert_eq!((all.status, all.code()), (422, "invalid_request"));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_declared_json_is_read_as_json() {
    let tickr = TestApp::start().await;
    for path in ["/v1/jobs", "/v1/jobs/batch"] {
        for media in
            [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("application/jsonx"), Some("")]
        {
            let request = http().post(tickr.url(path)).body(r#"{"kind": "noop"}"#);
            let request = match media {
                Some(media) => request.header(CONTENT_TYPE, media),
                None => request,
            };
            let got = answer(request).await;
            assert_eq!((got.status, got.code()), (415, "unsupported_media_type"), "{path} {media:?}");
        }
    }
    for media in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.shop+json"] {
        let request = http().post(tickr.url("/v1/jobs")).header(CONTENT_TYPE, media).body(r#"{"kind": "noop"}"#);
        assert_eq!(answer(request).await.status, 201, "{media}");
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 3);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_whose_fields_may_all_be_left_out_may_be_left_out_itself() {
    let tickr = TestApp::start().await;
    let failed = tickr.enqueue_kind("fail", json!({"permanent": true})).await;
    tickr.until(failed, State::Failed).await;
    let schedule = json!({"every_ms": 3_600_000, "kind": "noop"});
    assert_eq!(tickr.put("/v1/schedules/hourly", schedule).await.status, 201);
    let runner = tickr.app.runner().to_string().replace('/', "%2F");
    let paths = [
        ("/v1/queues/mail/pause".to_owned(), 200),
        ("/v1/schedules/hourly/pause".to_owned(), 200),
        (format!("/v1/runners/{runner}/drain"), 200),
        ("/v1/verify".to_owned(), 202),
        (format!("/v1/jobs/{failed}/replay"), 201),
    ];
    for (path, status) in &paths {
        // A body that is declared or is there must be right.
        let text = answer(http().post(tickr.url(path)).body("{}")).await;
        assert_eq!((text.status, text.code()), (415, "unsupported_media_type"), "{path}");
        let blank = send(&tickr, path, "  ").await;
        assert_eq!((blank.status, blank.code()), (400, "invalid_json"), "{path}");
        let got = answer(http().post(tickr.url(path))).await;
        assert_eq!(got.status, *status, "{path}: {:#}", got.body);
    }
    for (path, status) in &paths[..4] {
        assert_eq!(send(&tickr, path, "").await.status, *status, "{path}");
    }
    // Where a field is required, the body is.
    let bare = answer(http().post(tickr.url("/v1/jobs"))).await;
    assert_eq!((bare.status, bare.code()), (415, "unsupported_media_type"));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_body_is_refused_with_the_name_of_its_encoding() {
    let tickr = TestApp::start().await;
    let enqueue = |path: &str, media: &'static str, encoding: &'static str| {
        let request = http().post(tickr.url(path)).header(CONTENT_TYPE, media).header("content-encoding", encoding);
        answer(request.body(r#"{"kind": "noop"}"#))
    };
    for (path, media) in [
        ("/v1/jobs", "application/json"),
        ("/v1/jobs/batch", "application/json"),
        ("/v1/jobs/import", "application/x-ndjson"),
    ] {
        let got = enqueue(path, media, "gzip").await;
        assert_eq!((got.status, got.code()), (415, "unsupported_media_type"), "{path}");
        assert!(got.body["detail"].as_str().unwrap().contains("Content-Encoding: gzip"), "{:#}", got.body);
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 0);
    assert_eq!(enqueue("/v1/jobs", "application/json", "Identity").await.status, 201);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_has_parameters_refuses_others_and_ignores_a_header_that_it_does_not_take() {
    let tickr = TestApp::start().await;
    let id = tickr.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await;
    let cancel = |query: &str| http().post(tickr.url(&format!("/v1/jobs/{id}/cancel{query}")));
    let refused = answer(cancel("?force=1")).await;
    assert_eq!((refused.status, refused.code()), (422, "invalid_request"), "{:#}", refused.body);
    // A call that has no parameters ignores them.
    assert_eq!(answer(http().get(tickr.url(&format!("/v1/jobs/{id}?force=1")))).await.status, 200);
    assert_eq!(answer(cancel("").header("if-match", "\"another\"")).await.status, 200);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_beyond_the_limit_is_answered_413_however_it_is_sent() {
    let tickr = TestApp::start().await;
    let job = format!(r#"{{"kind": "noop", "payload": {{"a": "{}"}}}}"#, "x".repeat(3 << 20));
    for path in ["/v1/jobs", "/v1/jobs/batch"] {
        let whole = send(&tickr, path, job.clone()).await;
        assert_eq!((whole.status, whole.code()), (413, "too_large"));
        let chunks: Vec<Result<String, std::io::Error>> =
            job.as_bytes().chunks(10_000).map(|chunk| Ok(String::from_utf8_lossy(chunk).into_owned())).collect();
        let chunked = send(&tickr, path, reqwest::Body::wrap_stream(futures_util::stream::iter(chunks))).await;
        assert_eq!((chunked.status, chunked.code()), (413, "too_large"), "chunked");
    }
    // Bodies just within the limit, and just beyond it.
    let limit = tickr.config.body_limit_bytes;
    let shell = with("payload", r#"{"a": ""}"#).len();
    for (size, status) in [(limit, 201), (limit + 1, 413)] {
        let body = with("payload", &format!(r#"{{"a": "{}"}}"#, "x".repeat(size - shell)));
        assert_eq!(body.len(), size);
        assert_eq!(send(&tickr, "/v1/jobs", body).await.status, status, "{size} bytes");
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_ids_and_queries_are_told_apart_from_missing_jobs() {
    let tickr = TestApp::start().await;
    let ids = [
        "1",
        "x",
        "null",
        "0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8",
        "0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8aa",
        "0192f8c07f3a7c4e9d5b3e2a1f0c9b8a",
        "%7B0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a%7D",
        "%FF",
        "%00",
        "..%2Fstats",
        "'%20OR%201=1",
    ];
    for id in ids {
        for path in [format!("/v1/jobs/{id}"), format!("/v1/jobs/{id}/result")] {
            let got = tickr.get(&path).await;
            assert_eq!((got.status, got.code()), (422, "invalid_id"), "{path}");
        }
        for verb in ["cancel", "retry", "run-now"] {
            let got = tickr.post(&format!("/v1/jobs/{id}/{verb}"), json!({})).await;
            assert_eq!((got.status, got.code()), (422, "invalid_id"), "{id} {verb}");
        }
        for path in
            ["operations/{}", "operations/{}/made", "dead-letters/groups/{}", "dead-letters/groups/{}/differences"]
        {
            let path = format!("/v1/{}", path.replace("{}", id));
            let got = tickr.get(&path).await;
            assert_eq!((got.status, got.code()), (422, "invalid_id"), "{path}");
        }
    }
    // Bytes that are no text, in every other path with a parameter.
    for verb in ["cancel", "pause", "resume"] {
        let got = tickr.post(&format!("/v1/operations/%FF/{verb}"), json!({})).await;
        assert_eq!((got.status, got.code()), (422, "invalid_id"), "{verb}");
    }
    for (verb, body) in [("report", json!({})), ("finish", json!({"verdict": "succeeded"}))] {
        let got = tickr.post(&format!("/v1/attempts/%FF/{verb}"), body).await;
        assert_eq!((got.status, got.code()), (404, "not_found"), "{verb}: {:#}", got.body);
    }
    for query in [
        "state=done",
        "state=",
        "state=WAITING",
        "limit=0",
        "limit=201",
        "limit=-1",
        "limit=x",
        "limit=",
        "kind=Bad%20Name",
        "queue=a%00",
        "colour=red",
        "limit=1&limit=2",
        "queue=%FF",
    ] {
        let got = tickr.get(&format!("/v1/jobs?{query}")).await;
        assert_eq!((got.status, got.code()), (422, "invalid_request"), "{query}");
    }
    for cursor in ["", "x", "%00", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", &"A".repeat(5_000)] {
        let got = tickr.get(&format!("/v1/jobs?cursor={cursor}")).await;
        assert_eq!((got.status, got.code()), (422, "invalid_cursor"), "{cursor}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_have_ids_and_problems_as_the_api_has() {
    let tickr = TestApp::start().await;
    for (path, status) in [("/", 200), ("/queues", 200), ("/ui/app.js", 200), ("/no-such-page", 404)] {
        let request = tickr.request(Method::GET, path).header("accept", "text/html").header("x-request-id", "mine");
        let page = request.send().await.unwrap();
        assert_eq!((page.status().as_u16(), page.headers()["x-request-id"].to_str().unwrap()), (status, "mine"));
        assert!(page.headers()[CONTENT_TYPE].to_str().unwrap().starts_with("text/"), "{path}");
    }
    for (method, path, status, code) in [
        (Method::POST, "/queues", 405, "method_not_allowed"),
        (Method::DELETE, "/", 405, "method_not_allowed"),
        (Method::GET, "/ui/nothing.js", 404, "not_found"),
        (Method::GET, "/ui/v-0/nothing.js", 404, "not_found"),
    ] {
        let refused = answer(tickr.request(method, path)).await;
        assert_eq!((refused.status, refused.code()), (status, code), "{path}: {:#}", refused.body);
        assert!(!refused.header("x-request-id").is_empty(), "{path}");
        assert_eq!(refused.header("allow").is_empty(), status == 404, "{path}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_hang_or_leave_hold_nobody_up_and_leave_nothing() {
    let tickr = TestApp::start().await;
    let head = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"kind\"";
    let mut hanging = Vec::new();
    for opening in ["", "POST /v1/jo", "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n", head] {
        for _ in 0..50 {
            let mut socket = TcpStream::connect(tickr.app.addr()).await.unwrap();
            socket.write_all(opening.as_bytes()).await.unwrap();
            hanging.push(socket);
        }
    }
    // There are 200 of these clients, and all other clients are served.
    let id = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(id, State::Completed).await;
    // These clients disconnect in the middle of a request. Others disconnect before they get the answer.
    drop(hanging);
    let body = r#"{"kind":"noop","queue":"left"}"#;
    for _ in 0..50 {
        let mut socket = TcpStream::connect(tickr.app.addr()).await.unwrap();
        let length = body.len();
        let request = format!(
            "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        socket.write_all(request.as_bytes()).await.unwrap();
    }
    // Jobs are complete or absent, and no connection to the store is lost: more requests at once than there are
    // connections are served.
    let some = async |n: u64| tickr.enqueue(json!({"kind": "noop", "payload": {"n": n}})).await;
    futures_util::future::join_all((0..32).map(some)).await;
    let jobs = tickr.count("SELECT COUNT(*) FROM jobs").await;
    assert!((33..=83).contains(&jobs), "{jobs}");
    for torn in [
        "SELECT COUNT(*) FROM jobs j LEFT JOIN owed o ON o.id = j.id LEFT JOIN attempts a ON a.job_id = j.id \
         WHERE o.id IS NULL AND a.job_id IS NULL",
        "SELECT COUNT(*) FROM owed o LEFT JOIN jobs j ON j.id = o.id WHERE j.id IS NULL",
    ] {
        assert_eq!(tickr.count(torn).await, 0);
    }
    eventually("no transaction is left open", async || {
        let open = open_transactions(tickr.config.mysql_url().unwrap().expose()).await;
        open.iter().all(|transaction| transaction.command != "Sleep").then_some(())
    })
    .await;

    // A request that continues after a pause is still answered.
    let mut slow = TcpStream::connect(tickr.app.addr()).await.unwrap();
    slow.write_all(
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n",
    )
    .await
    .unwrap();
    slow.write_all(b"Content-Length: 15\r\n\r\n").await.unwrap();
    for byte in br#"{"kind":"noop"}"# {
        slow.write_all(&[*byte]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut heard = String::new();
    slow.read_to_string(&mut heard).await.unwrap();
    assert!(heard.starts_with("HTTP/1.1 201"), "{heard}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_told_in_words_what_would_be_right() {
    const MOMENT: &str = "must be a moment in RFC 3339 with an offset, like 2027-01-01T10:00:00Z";
    let tickr = TestApp::start().await;
    let job = |field: &str, value: Value| json!({"kind": "noop", field: value});
    let cases = [
        (job("execute_at", json!("2027-01-01 10:00:00")), "/execute_at", MOMENT),
        (job("execute_at", json!("2027-01-01")), "/execute_at", MOMENT),
        (job("execute_at", json!("2027-01-01T10:00:00")), "/execute_at", MOMENT),
        (job("execute_at", json!("tomorrow")), "/execute_at", MOMENT),
        (job("execute_at", json!("1800000000")), "/execute_at", MOMENT),
        (job("execute_at", json!(1_800_000_000)), "/execute_at", MOMENT),
        (job("execute_at", json!("Fri, 01 Jan 2027 10:00:00 GMT")), "/execute_at", MOMENT),
        (job("delay_ms", json!(-5)), "/delay_ms", "must be a whole number of milliseconds, 0 or more, not -5"),
        (job("delay_ms", json!(1.5)), "/delay_ms", "must be a whole number of milliseconds, 0 or more, not 1.5"),
        (job("delay_ms", json!("10s")), "/delay_ms", "must be a whole number of milliseconds, 0 or more, not \"10s\""),
        (job("priority", json!("high")), "/priority", "must be a whole number, 0 or more, not \"high\""),
        (job("tags", json!("a")), "/tags", "must be an array, not \"a\""),
        (
            job("on_conflict", json!("ignore")),
            "/on_conflict",
            "must be one of return, reject, replace, postpone, not ignore",
        ),
        (json!({"payload": {}}), "/kind", "is required"),
    ];
    for (body, pointer, detail) in cases {
        let answer = tickr.post("/v1/jobs", body.clone()).await;
        let told: Vec<(&str, &str)> = answer.body["errors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|error| (error["pointer"].as_str().unwrap(), error["detail"].as_str().unwrap()))
            .collect();
        assert_eq!((answer.status, told), (422, vec![(pointer, detail)]), "{body}");
    }
    // Several fields with the wrong type at once.
    let many = json!({"kind": 7, "delay_ms": "soon", "execute_at": "tomorrow", "priority": -1, "surplus": true});
    let mut pointers = tickr.post("/v1/jobs", many).await;
    let mut told = pointers.pointers();
    told.sort_unstable();
    assert_eq!(told, ["/delay_ms", "/execute_at", "/kind", "/priority", "/surplus"]);
    pointers = tickr.get("/v1/jobs?limit=abc").await;
    assert_eq!((pointers.status, pointers.code(), pointers.pointers()), (422, "invalid_request", vec!["limit"]));
    assert_eq!(pointers.body["errors"][0]["detail"], "must be a whole number, 0 or more");
    pointers = tickr.get("/v1/jobs?lim=1").await;
    assert_eq!((pointers.status, pointers.pointers()), (422, vec!["lim"]));
    // No text of a parser that is meant for programmers reaches a client.
    for body in ["", "{", "[1,2]", "7", r#"{"kind":"noop"} x"#, r#"{"kind":"noop","delay_ms":1e3}"#] {
        let answer = send(&tickr, "/v1/jobs", body).await;
        let said = answer.body.to_string();
        for word in ["EOF", "u64", "struct", "expected value"] {
            assert!(!said.contains(word), "{body}: {said}");
        }
    }
    for (cron, words) in [
        ("61 * * * *", "61 is its minute, which takes 0 to 59"),
        ("* 25 * * *", "25 is its hour, which takes 0 to 23"),
        ("* * *", "it has 3 fields, and takes five"),
        ("a b c d e", "a is its minute"),
        ("* * 0 * *", "0 is its day"),
    ] {
        let schedule = json!({"cron": cron, "zone": "UTC", "kind": "noop"});
        for refused in [
            tickr.post("/v1/schedules/preview", json!({"cron": cron, "zone": "UTC"})).await,
            tickr.put("/v1/schedules/odd", schedule).await,
        ] {
            assert_eq!((refused.status, refused.pointers()), (422, vec!["/cron"]), "{cron}: {:#}", refused.body);
            let detail = refused.body["errors"][0]["detail"].as_str().unwrap();
            assert!(detail.contains(words), "{cron}: {detail}");
            let said = refused.body.to_string();
            assert!(!said.contains("Component") && !said.contains("years"), "{cron}: {said}");
        }
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_nothing_would_run_is_accepted_with_a_warning() {
    let tickr = TestApp::start().await;
    let plain = tickr.post("/v1/jobs", json!({"kind": "noop"})).await;
    assert_eq!((plain.status, plain.body.get("warnings")), (201, None));
    let lost = tickr.post("/v1/jobs", json!({"kind": "noop", "queue": "mails"})).await;
    let warning = "no living runner serves the queue mails; the job waits for one that does";
    assert_eq!((lost.status, &lost.body["warnings"]), (201, &json!([warning])));
    assert_eq!(tickr.post("/v1/queues/default/pause", json!({"reason": "upkeep"})).await.status, 200);
    let jobs: Vec<Value> = ["default", "mails", "mails"].map(|queue| json!({"kind": "noop", "queue": queue})).into();
    let batch = tickr.post("/v1/jobs/batch", json!({"jobs": jobs})).await;
    let warnings = batch.body["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].as_str().unwrap().ends_with(": upkeep"), "{warnings:?}");
    tickr.post("/v1/queues/default/resume", json!({})).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_only_drained_runners_could_run_is_accepted_with_a_warning() {
    let tickr = TestApp::start().await;
    let runner = tickr.app.runner().as_str().replace('/', "%2F");
    assert_eq!(tickr.post(&format!("/v1/runners/{runner}/drain"), json!({})).await.status, 200);
    let warned = tickr.post("/v1/jobs", json!({"kind": "noop"})).await;
    let warning = "every living runner that serves default and has the kind noop is drained; \
                   the job waits until one is resumed";
    assert_eq!((warned.status, &warned.body["warnings"]), (201, &json!([warning])));
    // Another runner has a view of its own, and takes the job.
    let other = tickr.another().await;
    let plain = answer(http().post(format!("http://{}/v1/jobs", other.addr())).json(&json!({"kind": "noop"}))).await;
    assert_eq!((plain.status, plain.body.get("warnings")), (201, None), "{:#}", plain.body);
    tickr.until_idle().await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_needs_a_setting_is_refused_with_the_name_of_the_setting() {
    let nowhere = |config: &mut Config| (config.outbox_dir, config.smtp) = (None, None);
    let tickr = TestApp::start_with(nowhere, Registry::new()).await;
    let refused = async |kind: &str| {
        let mail = json!({"to": "ada@example.com", "subject": "s", "text": "t"});
        let answer = tickr.post("/v1/jobs", json!({"kind": kind, "payload": mail})).await;
        assert_eq!((answer.status, answer.code()), (422, "unknown_kind"), "{:#}", answer.body);
        answer.body["detail"].as_str().unwrap().to_owned()
    };
    let email = refused("email").await;
    assert!(email.contains("for email, set [smtp] or outbox_dir"), "{email}");
    let other = refused("emails").await;
    assert!(!other.contains("outbox_dir"), "{other}");
    tickr.stop().await;
}
