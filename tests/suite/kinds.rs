//! The built-in kinds through a whole tickr: from the API to the receiver.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State as Shared;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::Utc;
use hmac::{Hmac, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tickr::config::{CallbackSecret, Config, Flags, ReportQuery, Smtp, SmtpTls, Statement};
use tickr::handlers::Registry;
use tickr::job::State;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::support::smtp_sink::{SinkOptions, SmtpSink};
use crate::support::{TestApp, eventually, lasting_addr};

/// One received call.
#[derive(Clone)]
struct Call {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

impl Call {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name}")).to_str().unwrap()
    }
}

/// A service that receives callbacks, gives the prepared answers and records the calls.
struct Receiver {
    addr: SocketAddr,
    state: Arc<Received>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct Received {
    calls: Mutex<Vec<Call>>,
    answers: Mutex<VecDeque<(u16, Option<&'static str>)>>,
}

impl Receiver {
    /// Start a receiver that gives these answers in this order, and then 200.
    async fn start(answers: &[(u16, Option<&'static str>)]) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), answers)
    }

    fn on(listener: TcpListener, answers: &[(u16, Option<&'static str>)]) -> Self {
        let addr = listener.local_addr().unwrap();
        let state =
            Arc::new(Received { answers: Mutex::new(answers.iter().copied().collect()), ..Received::default() });
        let app = axum::Router::new().fallback(take).with_state(Arc::clone(&state));
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { addr, state, serving }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    fn calls(&self) -> Vec<Call> {
        self.state.calls.lock().unwrap().clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn take(
    Shared(state): Shared<Arc<Received>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    state.calls.lock().unwrap().push(Call { method, path: uri.to_string(), headers, body });
    let (status, retry_after) = state.answers.lock().unwrap().pop_front().unwrap_or((200, None));
    let headers = retry_after.map(|seconds| [("retry-after", seconds)]);
    (
        StatusCode::from_u16(status).unwrap(),
        headers.map(|headers| headers.into_response().headers().clone()).unwrap_or_default(),
        "thank you",
    )
        .into_response()
}

const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

fn signing(config: &mut Config) {
    let flags = Flags::default().with("callback_secret", SECRET);
    config.callback_secret = Config::load(&flags, std::iter::empty(), None).unwrap().config.callback_secret;
}

/// Check a signature as the specification of Standard Webhooks describes it for receivers.
fn verify(call: &Call, secret: &str) -> bool {
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let (id, at) = (call.header("webhook-id"), call.header("webhook-timestamp"));
    let age = Utc::now().timestamp() - at.parse::<i64>().unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    mac.update(&[id.as_bytes(), b".", at.as_bytes(), b".", &call.body].concat());
    let right = mac.finalize().into_bytes();
    let mut given = call.header("webhook-signature").split(' ').filter_map(|one| one.strip_prefix("v1,"));
    age.abs() < 300 && given.any(|signature| STANDARD.decode(signature).unwrap()[..] == right[..])
}

fn verdicts(job: &Value) -> Vec<&str> {
    job["attempts"].as_array().unwrap().iter().map(|attempt| attempt["verdict"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_arrives_signed_and_its_answer_is_kept() {
    let tickr = TestApp::start_with(signing, Registry::new()).await;
    let receiver = Receiver::start(&[]).await;
    let body = json!({"order": 7, "note": "ü€😀", "price": 1.50});
    let url = receiver.url("/hook?a=1");
    let id = tickr.enqueue_kind("http", json!({"url": url, "headers": {"x-shop": "north"}, "body": body})).await;
    let job = tickr.until(id, State::Completed).await;
    assert_eq!(job["result"]["status"], 200);
    assert!(job["result"].to_string().contains("thank you"), "{}", job["result"]);

    let calls = receiver.calls();
    assert_eq!(calls.len(), 1);
    let call = &calls[0];
    assert_eq!((call.method.as_str(), call.path.as_str()), ("POST", "/hook?a=1"));
    assert_eq!(call.header("content-type"), "application/json");
    assert_eq!(serde_json::from_slice::<Value>(&call.body).unwrap(), body);
    assert_eq!((call.header("x-shop"), call.header("webhook-id")), ("north", id.to_string().as_str()));
    assert_eq!(call.header("tickr-attempt"), "1");
    assert!(!call.header("tickr-attempt-token").is_empty());
    assert!(verify(call, SECRET));
    assert!(!verify(call, "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"));
    let mut forged = call.clone();
    forged.body = Bytes::from_static(b"{}");
    assert!(!verify(&forged, SECRET));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_receiver_gets_signatures_by_its_own_secrets_alone() {
    let [own, old, below] = [(); 3].map(|()| CallbackSecret::generate());
    let hosts = format!("127.0.0.1={own},127.0.0.1={old},*.localhost={below}");
    let flags = Flags::default().with("callback_secret", SECRET).with("callback_host_secrets", hosts);
    let secrets = Config::load(&flags, std::iter::empty(), None).unwrap().config;
    let set = |config: &mut Config| {
        config.callback_secret = secrets.callback_secret;
        config.callback_host_secrets = secrets.callback_host_secrets;
    };
    let tickr = TestApp::start_with(set, Registry::new()).await;
    let receiver = Receiver::start(&[]).await;
    let port = receiver.addr.port();
    // One receiver has several names. The host name in the URL decides which secrets are used.
    let all = [SECRET, &own, &old, &below];
    for (host, signing) in [("127.0.0.1", vec![1, 2]), ("localhost", vec![0]), ("shop.localhost", vec![3])] {
        let url = format!("http://{host}:{port}/{host}");
        let id = tickr.enqueue(json!({"kind": "http", "payload": {"url": url, "body": {}}, "max_attempts": 1})).await;
        let job = eventually("the job has ended", || async {
            let job = tickr.job(id).await;
            (!job["finished_at"].is_null()).then_some(job)
        })
        .await;
        // Not every resolver knows the names below localhost.
        if host == "shop.localhost" && job["state"] == "failed" {
            println!("{}", job["last_error"]);
            continue;
        }
        assert_eq!(job["state"], "completed", "{job:#}");
        let call = receiver.calls().pop().unwrap();
        assert_eq!(call.path, format!("/{host}"));
        let verified: Vec<usize> = (0..all.len()).filter(|place| verify(&call, all[*place])).collect();
        assert_eq!(verified, signing, "{host}");
        assert_eq!(call.header("webhook-signature").split(' ').count(), signing.len());
    }
    tickr.stop().await;
}

/// Answer 500 with the received headers, as some services do while they are debugged, and then 201.
async fn echo(Shared(calls): Shared<Arc<Mutex<u32>>>, headers: HeaderMap) -> Response {
    let mut calls = calls.lock().unwrap();
    *calls += 1;
    let status = if *calls == 1 { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::CREATED };
    (status, [("x-request-id", "r-7"), ("set-cookie", "session=1")], format!("{headers:?}")).into_response()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exchange_of_each_attempt_is_shown_without_anything_secret() {
    let tickr = TestApp::start_with(signing, Registry::new()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let calls = Arc::new(Mutex::new(0));
    let app = axum::Router::new().fallback(echo).with_state(calls);
    let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let payload = json!({
        "url": format!("http://{addr}/orders/7/k3yk3yk3yk3yk3y1?token=queryqueryquery&a=1"),
        "headers": {"authorization": "Bearer headerheaderheader"},
        "body": {},
    });
    let retry = json!({"base_ms": 20, "factor": 1.0, "cap_ms": 20});
    let id = tickr.enqueue(json!({"kind": "http", "payload": payload, "retry": retry})).await;
    let job = tickr.until(id, State::Completed).await;
    let [first, second] = [&job["attempts"][0]["exchange"], &job["attempts"][1]["exchange"]];
    let url = format!("http://{addr}/orders/7/***?token=***&a=***");
    for (exchange, status) in [(first, 500), (second, 201)] {
        assert_eq!((&exchange["method"], &exchange["url"]), (&json!("POST"), &json!(url)), "{exchange:#}");
        assert_eq!(exchange["response"]["status"], status);
        assert!(exchange["took_ms"].is_u64());
        assert!(exchange["response"]["headers"]["content-type"].as_str().unwrap().starts_with("text/plain"));
        let body = exchange["response"]["body"].as_str().unwrap();
        assert!(body.contains("tickr-job-id") && body.len() <= 2_000, "{body}");
    }
    assert_eq!(first["response"]["headers"]["x-request-id"], "r-7");
    assert_eq!(first["response"]["headers"]["set-cookie"], Value::Null);
    // The secrets are not in the tables either, in none of the columns that keep text of the receiver.
    let told = "CONCAT(COALESCE(exchange, ''), COALESCE(error, ''), COALESCE(result, ''))";
    for secret in ["headerheaderheader", "queryqueryquery", "k3yk3yk3yk3yk3y1", "v1,"] {
        let sql = format!("SELECT COUNT(*) FROM attempts WHERE {told} LIKE '%{secret}%'");
        assert_eq!(tickr.count(sql).await, 0, "{secret}");
    }
    serving.abort();

    // No server answers there, and the job still shows the address.
    let closed = lasting_addr();
    let payload = json!({"url": format!("http://{closed}/")});
    let id = tickr.enqueue(json!({"kind": "http", "payload": payload, "max_attempts": 1})).await;
    let job = tickr.until(id, State::Failed).await;
    let exchange = &job["attempts"][0]["exchange"];
    assert_eq!((&exchange["url"], &exchange["response"]), (&json!(format!("http://{closed}/")), &Value::Null));
    // Jobs of other kinds show no exchange.
    let id = tickr.enqueue_kind("noop", json!({})).await;
    let job = tickr.until(id, State::Completed).await;
    assert_eq!(job["attempts"][0].get("exchange"), None);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_decides_by_its_status_what_becomes_of_the_job() {
    let tickr = TestApp::start_with(signing, Registry::new()).await;
    let retry = json!({"base_ms": 20, "factor": 1.0, "cap_ms": 20});
    let callback = async |receiver: &Receiver, max_attempts: u32| {
        let payload = json!({"url": receiver.url("/"), "body": {}});
        tickr.enqueue(json!({"kind": "http", "payload": payload, "retry": retry, "max_attempts": max_attempts})).await
    };
    // The receiver asks to come back later. That is a snooze: it uses no attempt, and the job waits at least that long.
    let busy = Receiver::start(&[(503, Some("1"))]).await;
    let id = callback(&busy, 1).await;
    let job = tickr.until(id, State::Completed).await;
    assert_eq!(verdicts(&job), ["snoozed", "succeeded"]);
    assert_eq!((&job["attempt"], &job["max_attempts"]), (&json!(1), &json!(1)));
    let times: Vec<chrono::DateTime<Utc>> = job["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a["started_at"].as_str().unwrap().parse().unwrap())
        .collect();
    assert!(times[1] - times[0] >= chrono::TimeDelta::seconds(1), "{times:?}");
    // The id stays the same, so that a receiver recognises the repetition. The token changes, so that it can refuse a
    // late call.
    let calls = busy.calls();
    assert_eq!(calls[0].header("webhook-id"), calls[1].header("webhook-id"));
    assert_ne!(calls[0].header("tickr-attempt-token"), calls[1].header("tickr-attempt-token"));
    assert!(calls.iter().all(|call| verify(call, SECRET)));

    let broken = Receiver::start(&[(500, None), (502, None)]).await;
    let job = tickr.until(callback(&broken, 5).await, State::Completed).await;
    assert_eq!(verdicts(&job), ["failed", "failed", "succeeded"]);

    let gone = Receiver::start(&[(410, None)]).await;
    let job = tickr.until(callback(&gone, 5).await, State::Failed).await;
    assert_eq!(verdicts(&job), ["rejected"]);
    assert!(job["last_error"].as_str().unwrap().contains("410"));
    assert_eq!(gone.calls().len(), 1);

    // No server listens, and the job is retried until one does.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let slow = json!({"base_ms": 50, "factor": 1.0, "cap_ms": 50});
    let payload = json!({"url": format!("http://{addr}/"), "body": {}});
    let id = tickr.enqueue(json!({"kind": "http", "payload": payload, "retry": slow, "max_attempts": 100})).await;
    tickr.until(id, State::Retrying).await;
    let late = Receiver::on(TcpListener::bind(addr).await.unwrap(), &[]);
    let job = tickr.until(id, State::Completed).await;
    assert_eq!((verdicts(&job)[0], late.calls().len()), ("failed", 1));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callbacks_stay_outside_unless_the_operator_allows_more() {
    let tickr = TestApp::start_with(|config| config.callback_allow_private = false, Registry::new()).await;
    let receiver = Receiver::start(&[]).await;
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0"] {
        let url = format!("http://{host}:{}/", receiver.addr.port());
        let answer = tickr.post("/v1/jobs", json!({"kind": "http", "payload": {"url": url}})).await;
        if answer.status == 201 {
            let id = answer.body["id"].as_str().unwrap().parse().unwrap();
            let job = tickr.until(id, State::Failed).await;
            assert_eq!(verdicts(&job), ["rejected"], "{host}");
        } else {
            assert_eq!((answer.status, answer.pointers()), (422, vec!["/payload/url"]), "{host}");
        }
    }
    assert_eq!(receiver.calls().len(), 0);
    tickr.stop().await;
}

fn with_report(config: &mut Config) {
    let sql = "SELECT 7 AS number, 'ü, \"quoted\"' AS text, '=1+1' AS formula";
    let statement = Statement::parse(sql).unwrap();
    let query =
        ReportQuery { title: "Sample".into(), description: None, sql: sql.into(), statement, params: Vec::new() };
    config.reports.queries.insert("sample".into(), query);
}

/// Return the name and the decoded attachment of a mail.
fn attachment(mail: &str) -> (String, Vec<u8>) {
    let mail = mail.replace("\r\n", "\n");
    let boundary = mail.split_once("boundary=\"").unwrap().1.split_once('"').unwrap().0.to_owned();
    let part =
        mail.split(&format!("--{boundary}")).find(|part| part.contains("Content-Disposition: attachment")).unwrap();
    let (head, body) = part.trim_start().split_once("\n\n").unwrap();
    assert!(head.contains("base64"), "{head}");
    (head.to_owned(), STANDARD.decode(body.replace('\n', "")).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_with_email_is_followed_by_the_mail_that_carries_it() {
    let tickr = TestApp::start_with(with_report, Registry::new()).await;
    let payload = json!({
        "query": "sample", "format": "csv",
        "email": {"to": ["ada@example.com"], "cc": ["bob@example.com"], "subject": "Your figures", "text": "Attached."},
    });
    let id = tickr.enqueue_kind("report", payload).await;
    let report = tickr.until(id, State::Completed).await;
    tickr.until_idle().await;
    let list = tickr.get("/v1/jobs?kind=email").await.body;
    let mail = &list["data"][0];
    assert_eq!((list["data"].as_array().unwrap().len(), &mail["state"]), (1, &json!("completed")), "{mail:#}");

    let outbox = tickr.config.outbox_dir.clone().unwrap();
    let files: Vec<_> = std::fs::read_dir(outbox).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1);
    assert_eq!(files[0].file_stem().unwrap().to_str(), mail["id"].as_str());
    let text = std::fs::read_to_string(&files[0]).unwrap();
    for line in ["To: ada@example.com", "Cc: bob@example.com", "Subject: Your figures"] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    let file = report["result"]["file"].as_str().unwrap();
    let (head, bytes) = attachment(&text);
    assert!(head.contains(file), "{head}");
    assert_eq!(bytes, std::fs::read(tickr.config.reports_dir.join(file)).unwrap());
    let rows = String::from_utf8(bytes).unwrap();
    assert!(rows.contains("\"ü, \"\"quoted\"\"\"") && !rows.contains(",=1+1"), "{rows}");
    assert_eq!(report["result"]["rows"], 1);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_whose_mail_cannot_be_sent_is_refused_before_its_query_runs() {
    let nowhere = |config: &mut Config| {
        with_report(config);
        (config.outbox_dir, config.smtp) = (None, None);
    };
    let without = TestApp::start_with(nowhere, Registry::new()).await;
    let with = TestApp::start_with(with_report, Registry::new()).await;
    // A mail server, and no sender for mails that name none.
    let senderless = |config: &mut Config| {
        with_report(config);
        (config.outbox_dir, config.smtp) = (None, Some(Smtp { from: None, ..smtp(9, 1) }));
    };
    let senderless = TestApp::start_with(senderless, Registry::new()).await;
    for (tickr, to, pointer) in [
        (&without, "ada@example.com", "/payload/email"),
        (&senderless, "ada@example.com", "/payload/email"),
        (&with, "ada@bücher.example", "/payload/email/to/0"),
    ] {
        let payload = json!({"query": "sample", "email": {"to": [to]}});
        let answer = tickr.post("/v1/jobs", json!({"kind": "report", "payload": payload})).await;
        assert_eq!((answer.status, answer.pointers()), (422, vec![pointer]), "{:#}", answer.body);
    }
    let plain = without.enqueue_kind("report", json!({"query": "sample"})).await;
    without.until(plain, State::Completed).await;
    without.stop().await;
    senderless.stop().await;
    with.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_of_a_query_that_its_runner_does_not_have_is_given_back_and_made_later() {
    let tickr = TestApp::start_with(with_report, Registry::new()).await;
    let report = json!({"kind": "report", "payload": {"query": "sample"}, "max_attempts": 1, "delay_ms": 3_600_000});
    let id = tickr.enqueue(report).await;
    // As if another runner had accepted it, whose settings have a query more.
    let name = async |from: &str, to: &str| {
        let id = id.to_string().replace('-', "");
        let sql = format!("UPDATE jobs SET payload = REPLACE(payload, '{from}', '{to}') WHERE id = UNHEX('{id}')");
        tickr.sql(sql).await;
    };
    name("sample", "newest").await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await.status, 200);
    let job = eventually("an attempt has ended", || async {
        let job = tickr.job(id).await;
        job["attempts"][0]["verdict"].is_string().then_some(job)
    })
    .await;
    assert_eq!(job["attempts"][0]["verdict"], "snoozed", "{job:#}");
    assert!(job["attempts"].to_string().contains("there is no such query"), "{job:#}");
    name("newest", "sample").await;
    let job = tickr.until(id, State::Completed).await;
    assert_eq!(job["attempt"], 1, "the attempts before used none: {job:#}");
    tickr.stop().await;
}

/// The settings of a mail server on this machine.
fn smtp(port: u16, connections: u32) -> Smtp {
    Smtp {
        host: "127.0.0.1".into(),
        port,
        tls: SmtpTls::None,
        username: None,
        password: None,
        from: Some("Shop <shop@example.com>".into()),
        connections,
        timeout: Duration::from_secs(5),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mails_without_a_connection_wait_without_attempts_and_leave_the_workers_to_other_jobs() {
    let gate = Arc::new(Semaphore::new(0));
    let sink = SmtpSink::start(SinkOptions { gate: Some(Arc::clone(&gate)), ..SinkOptions::default() }).await;
    let smtp = Smtp { timeout: Duration::from_secs(100), ..smtp(sink.address.port(), 1) };
    let change = |config: &mut Config| {
        config.workers = 3;
        (config.outbox_dir, config.smtp) = (None, Some(smtp));
    };
    let tickr = TestApp::start_with(change, Registry::new()).await;
    let mail = json!({"kind": "email", "max_attempts": 1,
        "payload": {"to": "ada@example.com", "subject": "hi", "text": "hello"}});
    let mails = tickr.enqueue_many(std::iter::repeat_n(mail, 8)).await;
    // The server holds one of them. Each of the others has come to a worker and was put off.
    let put_off = "SELECT COUNT(*) FROM owed o JOIN jobs j ON j.id = o.id WHERE o.execute_at > j.execute_at";
    tickr.until_count(put_off, 7).await;
    let noop = json!({"kind": "noop", "payload": {}});
    for other in tickr.enqueue_many(std::iter::repeat_n(noop, 10)).await {
        tickr.until(other, State::Completed).await;
    }
    assert!(sink.mails().is_empty(), "the server holds the first mail");
    gate.add_permits(1);
    for id in mails {
        let job = tickr.until(id, State::Completed).await;
        assert_eq!(verdicts(&job), ["succeeded"], "{job:#}");
    }
    assert_eq!((sink.mails().len(), sink.most_open()), (8, 1));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mails_go_out_over_smtp_and_its_answers_decide() {
    let sink = SmtpSink::start(SinkOptions::default()).await;
    let port = sink.address.port();
    let change = move |config: &mut Config| (config.outbox_dir, config.smtp) = (None, Some(smtp(port, 2)));
    let tickr = TestApp::start_with(change, Registry::new()).await;
    let retry = json!({"base_ms": 20, "factor": 1.0, "cap_ms": 20});
    let send = async |to: &str| {
        let payload = json!({
            "to": to, "subject": "Grüße", "text": "Hello.\n.dot\n", "html": "<b>Hello</b>", "bcc": "hidden@example.com",
        });
        tickr.enqueue(json!({"kind": "email", "payload": payload, "retry": retry, "max_attempts": 2})).await
    };
    let id = send("ada@example.com").await;
    let job = tickr.until(id, State::Completed).await;
    assert!(job["result"].is_object(), "{job:#}");
    let mails = sink.mails();
    assert_eq!(mails.len(), 1);
    assert_eq!(mails[0].sender, "shop@example.com");
    assert_eq!(mails[0].recipients, ["ada@example.com", "hidden@example.com"]);
    let text = String::from_utf8(mails[0].bytes.clone()).unwrap();
    assert!(text.contains("From: Shop <shop@example.com>") && text.contains("\r\n.dot"), "{text}");
    assert!(text.contains("multipart/alternative") && !text.contains("hidden@example.com"), "{text}");
    assert!(text.contains(&id.to_string()), "the message id is the job's, over all attempts");

    let job = tickr.until(send("nouser@example.com").await, State::Failed).await;
    assert_eq!(verdicts(&job), ["rejected"], "5xx is final");
    assert!(job["last_error"].as_str().unwrap().contains("550"));
    let job = tickr.until(send("tempfail@example.com").await, State::Failed).await;
    assert_eq!(verdicts(&job), ["failed", "failed"], "4xx is tried again");
    assert_eq!(sink.mails().len(), 1);
    tickr.stop().await;
}
