//! Logs: lines that a log collector can rely on, without any secrets.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use tickr::handlers::Registry;
use tickr::job::State;
use tickr::telemetry::log_fields_table;

use crate::support::limits::set_and_wait;
use crate::support::program::{Program, command, outcome, tickr};
use crate::support::sink::Sink;
use crate::support::{Runner, TestApp, eventually, http};

/// Texts that must not appear anywhere, grouped by the place where they were given.
const CANARIES: &[&str] = &[
    "canary-redis-password",
    "canary-api-token",
    "canary-smtp-password",
    // The base64 form of a secret, as it is configured
    "Y2FuYXJ5LWNhbGxiYWNrLXNlY3JldC0xMjM0NQ",
    "Y2FuYXJ5LW9mLWEtc2luZ2xlLWhvc3QtMTIzNA",
    "canary-otlp-header",
    "canary-payload",
    "canary-result",
    "canary-mail",
    "canary-query",
    "canary-callback-header",
    "canary-report-param",
    "canary-idempotency",
    "canary-bearer",
];

const CONFIG: &str = r#"
[smtp]
host = "127.0.0.1"
port = 1
tls = "none"
username = "tickr"
from = "tickr@example.com"

[reports.queries.one]
title = "One"
sql = "SELECT :word AS word"
params = [{ name = "word", type = "string" }]
"#;

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_and_no_payload_shows_in_the_log_or_the_metrics_at_any_level() {
    let store = TestApp::start_with(|config| config.queues = vec!["nowhere".into()], Registry::new()).await;
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tickr.toml"), CONFIG).unwrap();
    let mut serve = command(&tickr(), dir.path(), &["serve"]);
    serve
        .env("TICKR_MYSQL_URL", store.config.mysql_url().unwrap().expose())
        // No server listens there, so every call fails and logs the reason.
        .env("TICKR_REDIS_URL", "redis://tickr:canary-redis-password@127.0.0.1:1/0")
        .env("TICKR_HTTP_ADDR", "127.0.0.1:0")
        .env("TICKR_TEST_KINDS", "1")
        .env("TICKR_LEASE", "2s")
        .env("TICKR_API_TOKENS", "canary-api-token-of-this-test")
        .env("TICKR_SMTP_PASSWORD", "canary-smtp-password")
        .env("TICKR_CALLBACK_SECRET", "whsec_Y2FuYXJ5LWNhbGxiYWNrLXNlY3JldC0xMjM0NQ==")
        .env("TICKR_CALLBACK_HOST_SECRETS", "127.0.0.1=whsec_Y2FuYXJ5LW9mLWEtc2luZ2xlLWhvc3QtMTIzNA==")
        .env("TICKR_CALLBACK_ALLOW_PRIVATE", "1")
        .env("TICKR_OTLP_ENDPOINT", "http://127.0.0.1:1")
        .env("TICKR_OTLP_HEADERS", "x-key=canary-otlp-header")
        .env("TICKR_LOG", "trace,sqlx::query=trace,hyper::proto=trace,reqwest::connect=trace,tickr=trace")
        .env("TICKR_LOG_FORMAT", "json");
    let mut program = Program::spawn(serve);
    let line = program.says("\"message\":\"listening\"").await;
    let (_, addr) = line.split_once("\"addr\":\"").unwrap();
    let base = format!("http://{}", &addr[..addr.find('"').unwrap()]);

    let send = async |path: &str, body: Value, token: &str, trace: &str| {
        let request = http()
            .post(format!("{base}{path}"))
            .bearer_auth(token)
            .header("traceparent", trace)
            .header("idempotency-key", format!("canary-idempotency-{}", uuid::Uuid::new_v4()))
            .header("x-request-id", "night-shift-1");
        let answer = request.json(&body).send().await.unwrap();
        assert_eq!(answer.headers()["x-request-id"], "night-shift-1");
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let sink = format!("{base}/v1/jobs?q=canary-query");
    let jobs = [
        json!({"kind": "noop"}),
        json!({"kind": "fail", "payload": {"times": 1}, "retry": {"base_ms": 1}}),
        json!({"kind": "fail", "payload": {"permanent": true}}),
        json!({"kind": "panic", "max_attempts": 1}),
        json!({"kind": "sleep", "payload": {"ms": 60_000}, "timeout_ms": 50, "max_attempts": 1}),
        json!({"kind": "email", "max_attempts": 1,
            "payload": {"to": "canary-mail@example.com", "subject": "canary-mail", "text": "canary-mail"}}),
        json!({"kind": "http", "max_attempts": 1, "unique_key": "canary-payload",
            "payload": {"url": sink, "headers": {"x-k": "canary-callback-header"}, "body": {"a": "canary-payload"}}}),
        json!({"kind": "report", "max_attempts": 1,
            "payload": {"query": "one", "params": {"word": "canary-report-param"}, "format": "json"}}),
    ];
    for job in &jobs {
        let (status, body) = send("/v1/jobs", job.clone(), "canary-api-token-of-this-test", trace).await;
        assert_eq!(status, 201, "{job:#} {body:#}");
    }
    // The answer to a refused request quotes no more than the answer to an accepted one.
    let wrong = json!({"kind": "sleep", "payload": {"ms": "canary-payload"}});
    assert_eq!(send("/v1/jobs", wrong, "canary-api-token-of-this-test", trace).await.0, 422);
    assert_eq!(send("/v1/jobs", json!({"kind": "noop"}), "canary-bearer", trace).await.0, 401);
    eventually("everything has ended", || async {
        let ended = store.count("SELECT COUNT(*) FROM attempts WHERE end_state IS NOT NULL").await;
        (ended == jobs.len() as i64).then_some(())
    })
    .await;
    // A row of the outbox that does not fit its kind: the reason quotes the value. Either of the two runners may move a
    // row, so the test inserts rows until this one has rejected one.
    eventually("this runner has rejected a row of the outbox", || async {
        let (id, payload) = (uuid::Uuid::now_v7().simple(), json!({"ms": "canary-payload"}));
        let row = format!("(UNHEX('{id}'), 'sleep', '{payload}')");
        store.sql(format!("INSERT INTO tickr_outbox (id, kind, payload) VALUES {row}")).await;
        let nudge = http().post(format!("{base}/v1/outbox/nudge")).bearer_auth("canary-api-token-of-this-test");
        assert_eq!(nudge.send().await.unwrap().status(), 204);
        program.said().contains("a row of the outbox was rejected").then_some(())
    })
    .await;
    let page = http().get(format!("{base}/metrics")).bearer_auth("canary-api-token-of-this-test").send().await.unwrap();
    let page = page.text().await.unwrap();
    program.signal("TERM").await;
    assert!(program.ends().await.success());
    let log = program.said();
    for canary in CANARIES {
        assert!(!page.contains(canary), "{canary} is on the metrics page");
        let line = log.lines().find(|line| line.contains(canary));
        assert!(line.is_none(), "{canary} is in the log: {line:?}");
    }
    // The log has the expected lines, at every level.
    assert!(log.contains("request answered") && log.contains("attempt ended"), "{log}");

    let lines: Vec<Map<String, Value>> =
        log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect();
    for line in &lines {
        for field in ["timestamp", "level", "target", "message"] {
            assert!(line[field].as_str().is_some_and(|text| !text.is_empty() || field == "message"), "{line:?}");
        }
        chrono::DateTime::parse_from_rfc3339(line["timestamp"].as_str().unwrap()).unwrap();
    }
    let of = |message: &str| lines.iter().filter(|line| line["message"] == message).collect::<Vec<_>>();
    let answered = of("request answered");
    assert!(answered.iter().any(|line| {
        line["request_id"] == "night-shift-1"
            && line["route"] == "/v1/jobs"
            && line["status"] == 201
            && line["method"] == "POST"
    }));
    let ended = of("attempt ended");
    assert!(ended.len() >= 5, "{ended:?}");
    for line in ended {
        for field in ["runner", "job", "kind", "queue", "verdict", "state"] {
            assert!(line[field].is_string(), "{field} of {line:?}");
        }
        assert!(line["attempt"].is_u64() && line["trace_id"] == trace[3..35], "{line:?}");
    }
    store.stop().await;
}

/// The error of the attempt has the URL without its query, and the start of the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_breaker_that_opens_logs_neither_the_answer_nor_the_path() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["nowhere".into()], Registry::new()).await;
    let echo = Sink::start(|_, body| (500, body.to_string())).await;
    set_and_wait(&tickr, "per-host", json!({"kind": "http", "shared_by": "host", "breaker": {"failures": 1}})).await;
    let env = [
        ("TICKR_QUEUES", "default"),
        ("TICKR_LEASE", "15s"),
        ("TICKR_CALLBACK_ALLOW_PRIVATE", "true"),
        ("TICKR_LOG", "trace"),
    ];
    let mut runner = Runner::start(&tickr, &env);
    let payload = json!({"url": format!("{}/canary-path", echo.url()), "body": {"a": "canary-payload"}});
    let id = tickr.enqueue(json!({"kind": "http", "max_attempts": 1, "payload": payload})).await;
    tickr.until(id, State::Failed).await;
    let error = tickr.get(&format!("/v1/jobs/{id}")).await.body["last_error"].as_str().unwrap().to_owned();
    assert!(error.contains("canary-path") && error.contains("canary-payload"), "{error}");
    runner.until_log("a breaker opened").await;
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0));
    let log = runner.log();
    let line = log.lines().find(|line| line.contains("canary"));
    assert!(line.is_none(), "the payload or the path is in the log: {line:?}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_shows_no_password() {
    let dir = tempfile::tempdir().unwrap();
    let mut serve = command(&tickr(), dir.path(), &["migrate"]);
    serve.env("TICKR_MYSQL_URL", "mysql://tickr:canary-mysql-password@127.0.0.1:1/tickr").env("TICKR_LOG", "trace");
    let (code, out, err) = outcome(serve).await;
    assert_eq!(code, 1, "{out}{err}");
    assert!(err.contains("127.0.0.1:1") && !err.contains("canary") && !out.contains("canary"), "{out}{err}");
}

#[test]
fn the_documents_have_the_fields_of_this_binary() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/LOGS.md")).unwrap();
    let (_, rest) = page.split_once("<!-- log fields: made from internal/telemetry/logs.rs -->\n").unwrap();
    let (table, _) = rest.split_once("<!-- end of log fields -->").unwrap();
    assert_eq!(table.trim(), log_fields_table().trim());
}
