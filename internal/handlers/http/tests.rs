//! Tests of the handler against real receivers on loopback.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap as Headers, Method as Verb, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{TimeDelta, Utc};
use hmac::{Hmac, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::{CallSlot, ContextParts, ExchangeSlot, FinishKeyStore, FinishSlot};
use tickr_job::{CallOutcome, Push, Verdict};

/// One received request.
#[derive(Clone, Debug)]
struct Received {
    method: Verb,
    uri: Uri,
    headers: Headers,
    body: Bytes,
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Received>>>);

impl Log {
    fn all(&self) -> Vec<Received> {
        self.0.lock().unwrap().clone()
    }
}

/// Start a receiver that records every request. The path of the request decides its response.
async fn receiver() -> (SocketAddr, Log) {
    let log = Log::default();
    let app = Router::new().fallback(answer).with_state(log.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    (address, log)
}

async fn answer(State(log): State<Log>, method: Verb, uri: Uri, headers: Headers, body: Bytes) -> Response {
    let path = uri.path().to_owned();
    log.0.lock().unwrap().push(Received { method, uri, headers, body });
    match path.as_str() {
        "/later" => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "33")], "slow down").into_response(),
        "/date" => {
            let date = (Utc::now() + chrono::TimeDelta::seconds(90)).format("%a, %d %b %Y %H:%M:%S GMT").to_string();
            (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", date)]).into_response()
        }
        "/away" => (StatusCode::FOUND, [("location", "/ok")]).into_response(),
        "/code" => (StatusCode::OK, [("content-type", "application/json")], r#"{"code": 101}"#).into_response(),
        "/late-code" => format!(r#"{{"pad": "{}", "code": 100}}"#, "x".repeat(60_000)).into_response(),
        "/too-late-code" => format!(r#"{{"pad": "{}", "code": 100}}"#, "x".repeat(70_000)).into_response(),
        "/padded-code" => format!(r#"{{"code": 100}}{}"#, " ".repeat(70_000)).into_response(),
        "/echo" | "/late-echo" => {
            let id = log.0.lock().unwrap().last().unwrap().headers["x-request-id"].to_str().unwrap().to_owned();
            let pad = "x".repeat(if path == "/late-echo" { 3_000 } else { 0 });
            // As PHP writes it.
            let body = format!(r#"{{"pad": "{pad}", "code": "{}"}}"#, id.replace('/', r"\/"));
            let media = format!("application/json; id={id}");
            (StatusCode::OK, [("content-type", media), ("x-request-id", id)], body).into_response()
        }
        "/dirty" => (StatusCode::OK, [("content-type", "text/html")], "\u{1b}[2J<b>\0").into_response(),
        "/endless" => {
            let chunks = futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 8_192])));
            Body::from_stream(chunks).into_response()
        }
        path => match path.trim_start_matches('/').parse() {
            Ok(status) => (StatusCode::from_u16(status).unwrap(), "because").into_response(),
            Err(_) => "thanks".into_response(),
        },
    }
}

fn handler(secrets: Vec<SigningSecret>) -> HttpHandler {
    let secrets = CallbackSecrets::usual(secrets);
    HttpHandler::new(CallbackSettings { secrets, allow_private: true, ..CallbackSettings::default() }).unwrap()
}

/// Make a call, and return what it says about the receiver.
async fn said_of_receiver(handler: &HttpHandler, payload: Value) -> Option<CallOutcome> {
    let call = CallSlot::default();
    let ctx = Context::new(ContextParts { call: call.clone(), ..ContextParts::detached("http") });
    let _ = handler.run(serde_json::from_value(payload).unwrap(), ctx).await;
    call.get()
}

async fn call(handler: &HttpHandler, payload: Value) -> Outcome {
    handler.run(serde_json::from_value(payload).unwrap(), Context::detached("http")).await
}

fn result(outcome: Outcome) -> Value {
    serde_json::from_str(outcome.unwrap().into_parts().0.unwrap().get()).unwrap()
}

fn text(failure: &Failure) -> &str {
    match failure {
        Failure::Retry { error } | Failure::Reject { error } => error,
        Failure::Snooze { reason, .. } => reason,
    }
}

#[tokio::test]
async fn a_callback_arrives_signed_and_named() {
    let (address, log) = receiver().await;
    let keys = [vec![1_u8; 32], vec![2_u8; 24]];
    let handler = handler(keys.iter().map(|key| SigningSecret::new(key)).collect());
    let raw = format!(
        r#"{{"url":"http://{address}/in?a=1","headers":{{"X-Mine":"yes"}},"body":{{"n": 12345678901234567890123,  "s":"ü"}}}}"#
    );
    let ctx = Context::detached("http");
    let (id, token) = (ctx.job_id().to_string(), ctx.token().to_string());
    let result = result(handler.run(serde_json::from_str(&raw).unwrap(), ctx).await);
    assert_eq!((&result["status"], &result["body_snippet"]), (&json!(200), &json!("thanks")));
    assert!(result["duration_ms"].is_u64() && result["content_type"].as_str().unwrap().starts_with("text/plain"));

    let received = log.all().pop().unwrap();
    let header = |name: &str| received.headers[name].to_str().unwrap().to_owned();
    assert_eq!((received.method.as_str(), received.uri.to_string().as_str()), ("POST", "/in?a=1"));
    assert_eq!(header("content-type"), "application/json");
    assert_eq!(header("user-agent"), format!("tickr/{}", env!("CARGO_PKG_VERSION")));
    assert_eq!(header("x-mine"), "yes");
    assert_eq!((header("tickr-job-id"), header("webhook-id")), (id.clone(), id.clone()));
    assert_eq!((header("tickr-attempt"), header("tickr-attempt-token")), ("1".to_owned(), token));
    // The body is unchanged byte for byte: no number is rounded and no space is lost.
    assert_eq!(received.body, r#"{"n": 12345678901234567890123,  "s":"ü"}"#);

    let timestamp = header("webhook-timestamp");
    assert!((Utc::now().timestamp() - timestamp.parse::<i64>().unwrap()).abs() < 30);
    let signatures: Vec<String> = header("webhook-signature").split(' ').map(str::to_owned).collect();
    let expected = keys.map(|key| {
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
        mac.update(&[format!("{id}.{timestamp}.").as_bytes(), &received.body].concat());
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    });
    assert_eq!(signatures, expected);
}

#[tokio::test]
async fn a_callback_is_signed_at_the_time_of_the_database() {
    let (address, log) = receiver().await;
    for hours in [-2, 2] {
        // The clock of this host is hours ahead of the database, or hours behind it.
        let database = Utc::now() + TimeDelta::hours(hours);
        let ctx = Context::new(ContextParts { clock: (database, Instant::now()), ..ContextParts::detached("http") });
        let payload = json!({"url": format!("http://{address}/in"), "body": {}});
        let handler = handler(vec![SigningSecret::new(&[1; 32])]);
        handler.run(serde_json::from_value(payload).unwrap(), ctx).await.unwrap();
        let received = log.all().pop().unwrap();
        let signed_at = received.headers["webhook-timestamp"].to_str().unwrap().parse::<i64>().unwrap();
        assert!((signed_at - database.timestamp()).abs() < 60, "{signed_at}, and the database says {database}");
    }
}

#[tokio::test]
async fn a_date_to_retry_after_is_compared_with_the_clock_of_the_database() {
    // The clock of this host is two hours ahead, and the answer has no `Date`.
    let database = Utc::now() - TimeDelta::hours(2);
    let until = (database + TimeDelta::seconds(1_000)).format("%a, %d %b %Y %H:%M:%S GMT");
    let answer = format!("HTTP/1.1 503 Busy\r\nretry-after: {until}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let payload = json!({"url": format!("http://{}/", listener.local_addr().unwrap())});
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let _ = socket.read(&mut [0; 4_096]).await.unwrap();
        socket.write_all(answer.as_bytes()).await.unwrap();
    });
    let ctx = Context::new(ContextParts { clock: (database, Instant::now()), ..ContextParts::detached("http") });
    let outcome = handler(Vec::new()).run(serde_json::from_value(payload).unwrap(), ctx).await;
    let Err(Failure::Snooze { delay, .. }) = outcome else { panic!("no snooze") };
    assert!((900..=1_000).contains(&delay.as_secs()), "{delay:?}");
}

#[tokio::test]
async fn without_secrets_and_body_nothing_is_claimed() {
    let (address, log) = receiver().await;
    for method in ["GET", "HEAD", "DELETE", "PUT", "PATCH"] {
        let url = format!("http://{address}/");
        call(&handler(Vec::new()), json!({"url": url, "method": method, "headers": {"user-agent": "mine"}}))
            .await
            .unwrap();
        let received = log.all().pop().unwrap();
        assert_eq!(received.method.as_str(), method);
        assert_eq!(received.headers["user-agent"], "mine");
        for absent in ["content-type", "webhook-id", "webhook-signature", "webhook-timestamp"] {
            assert!(!received.headers.contains_key(absent), "{absent}");
        }
    }
}

#[tokio::test]
async fn statuses_become_verdicts() {
    let (address, log) = receiver().await;
    let handler = handler(Vec::new());
    let url = |path: &str| json!({"url": format!("http://{address}{path}?token=canary"), "body": 1});
    for path in ["/408", "/429", "/500", "/502", "/503"] {
        let failure = call(&handler, url(path)).await.unwrap_err();
        assert!(matches!(failure, Failure::Retry { .. }), "{path}: {failure:?}");
        assert!(text(&failure).contains(&path[1..]) && text(&failure).contains("because"));
        assert!(!text(&failure).contains("canary") && !text(&failure).contains("token"));
    }
    for path in ["/400", "/401", "/404", "/410", "/422"] {
        let failure = call(&handler, url(path)).await.unwrap_err();
        assert!(matches!(failure, Failure::Reject { .. }), "{path}: {failure:?}");
        assert!(!text(&failure).contains("canary"));
    }
    let later = call(&handler, url("/later")).await.unwrap_err();
    assert!(matches!(&later, Failure::Snooze { delay, .. } if delay.as_secs() == 33), "{later:?}");
    let date = call(&handler, url("/date")).await.unwrap_err();
    assert!(matches!(&date, Failure::Snooze { delay, .. } if (88..=90).contains(&delay.as_secs())), "{date:?}");

    let before = log.all().len();
    let away = call(&handler, url("/away")).await.unwrap_err();
    assert!(matches!(&away, Failure::Reject { error } if error.contains("redirects are not followed")), "{away:?}");
    assert_eq!(log.all().len(), before + 1);
}

#[tokio::test]
async fn what_was_sent_is_hidden_wherever_the_receiver_sends_it_back() {
    let (address, _log) = receiver().await;
    let handler = handler(Vec::new());
    let secret = "abcdefgh/12345678";
    for (path, rule) in [
        ("echo", Value::Null),
        ("echo", json!({"at": "/code", "success": [1]})),
        ("late-echo", json!({"at": "/code", "success": [1]})),
    ] {
        let mut payload = json!({"url": format!("http://{address}/{path}"), "body": {}});
        payload["headers"] = json!({"x-request-id": secret, "content-type": "application/json"});
        if !rule.is_null() {
            payload["answer"] = rule;
        }
        let slot = ExchangeSlot::default();
        let ctx = Context::new(ContextParts { exchange: slot.clone(), ..ContextParts::detached("http") });
        let outcome = handler.run(serde_json::from_value(payload).unwrap(), ctx).await;
        let exchange = slot.take().unwrap();
        let said = match outcome {
            Ok(output) => output.into_parts().0.unwrap().get().to_owned(),
            Err(failure) => text(&failure).to_owned(),
        };
        let all = format!("{said} {}", serde_json::to_string(&exchange).unwrap());
        for part in ["abcdefgh", "12345678"] {
            assert!(!all.contains(part), "{path}: {all}");
        }
        let headers = exchange.response.unwrap().headers;
        assert_eq!(
            (headers["x-request-id"].as_str(), headers["content-type"].as_str()),
            ("***", "application/json; id=***")
        );
        assert!(said.contains("***"), "{path}: {said}");
    }
}

#[tokio::test]
async fn of_a_large_or_dirty_body_a_short_clean_piece_is_kept() {
    let (address, _log) = receiver().await;
    let handler = handler(Vec::new());
    let endless = timeout(Duration::from_secs(10), call(&handler, json!({"url": format!("http://{address}/endless")})));
    assert_eq!(result(endless.await.unwrap())["body_snippet"], "x".repeat(2_000));
    let dirty = result(call(&handler, json!({"url": format!("http://{address}/dirty")})).await);
    assert_eq!(dirty["body_snippet"], "\u{fffd}[2J<b>\u{fffd}");
    assert_eq!(dirty["content_type"], "text/html");
}

/// Start a raw TCP receiver. It answers each connection with `first`, then sends one byte every 20 ms.
async fn dripping(first: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let _ = socket.read(&mut [0; 4_096]).await;
                let _ = socket.write_all(first.as_bytes()).await;
                while socket.write_all(b"a").await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn an_answer_that_drips_ends_at_the_limit() {
    let handler = handler(Vec::new());
    let started = Instant::now();
    let silent = dripping("HTTP/1.1 200 OK\r\nx-slow: ").await;
    let failure = call(&handler, json!({"url": format!("http://{silent}/"), "timeout_ms": 300})).await.unwrap_err();
    assert!(
        matches!(&failure, Failure::Retry { error } if error.contains("did not answer within 300 ms")),
        "{failure:?}"
    );

    // The status is known. Waiting for the rest of the body cannot change the outcome.
    let slow = dripping("HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n").await;
    let result = result(call(&handler, json!({"url": format!("http://{slow}/"), "timeout_ms": 300})).await);
    assert!(result["body_snippet"].as_str().unwrap().starts_with("aaa"));
    let failing = dripping("HTTP/1.1 500 Oh\r\ncontent-length: 9999\r\n\r\n").await;
    let failure = call(&handler, json!({"url": format!("http://{failing}/"), "timeout_ms": 300})).await.unwrap_err();
    assert!(matches!(failure, Failure::Retry { .. }));
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_stop_aborts_the_request() {
    let address = dripping("HTTP/1.1 200 OK\r\nx-slow: ").await;
    let ctx = Context::detached("http");
    let stop = ctx.stop_token();
    let payload = serde_json::from_value(json!({"url": format!("http://{address}/")})).unwrap();
    let handler = handler(Vec::new());
    let (outcome, ()) = tokio::join!(handler.run(payload, ctx), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        stop.cancel();
    });
    assert!(matches!(outcome.unwrap_err(), Failure::Retry { error } if error.contains("stopped")));
}

/// Make calls that are stopped ever later, until one is stopped after its status has come: while its body drips.
async fn stopped_while_the_body_comes(status: &'static str, payload: Value) -> Outcome {
    let address = dripping(status).await;
    let handler = handler(Vec::new());
    for wait_ms in [50, 200, 800, 2_500] {
        let ctx = Context::detached("http");
        let stop = ctx.stop_token();
        let mut payload = payload.clone();
        payload["url"] = json!(format!("http://{address}/"));
        let (outcome, ()) = tokio::join!(handler.run(serde_json::from_value(payload).unwrap(), ctx), async {
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
            stop.cancel();
        });
        match outcome {
            Err(failure) if text(&failure).contains("stopped") => {}
            outcome => return outcome,
        }
    }
    panic!("every call was stopped before its status had come, or was thrown away");
}

#[tokio::test]
async fn a_stop_while_the_body_of_a_202_is_read_keeps_the_202() {
    let finish = json!({"finish": {"within_ms": 60_000}});
    let accepted = "HTTP/1.1 202 Accepted\r\ncontent-length: 9999\r\n\r\n";
    let output = stopped_while_the_body_comes(accepted, finish).await.unwrap();
    assert_eq!(output.later(), Some(FinishLater::within(Duration::from_secs(60))));
    let ok = "HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n";
    assert_eq!(result(stopped_while_the_body_comes(ok, json!({})).await)["status"], 200);
    // Without the end of a body that decides, the answer says nothing.
    let rule = json!({"answer": {"at": "/code", "success": [100], "otherwise": "success"}});
    let failure = stopped_while_the_body_comes(ok, rule).await.unwrap_err();
    assert!(text(&failure).contains("broke off"), "{failure:?}");
}

#[tokio::test]
async fn a_receiver_that_is_not_there_or_not_trusted_is_retried() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let handler = handler(Vec::new());
    let failure = call(&handler, json!({"url": format!("http://{closed}/?token=canary")})).await.unwrap_err();
    assert!(matches!(&failure, Failure::Retry { error } if error.contains("refused") && !error.contains("canary")));

    // HTTPS works up to the certificate without a provider installed in the process.
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let tls = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![key.cert.der().clone()], key.signing_key.into())
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        while let Ok((socket, _)) = listener.accept().await {
            let _ = acceptor.accept(socket).await;
        }
    });
    let failure = call(&handler, json!({"url": format!("https://localhost:{}/", address.port())})).await.unwrap_err();
    assert!(matches!(&failure, Failure::Retry { error } if error.contains("certificate")), "{failure:?}");
}

#[tokio::test]
async fn private_targets_are_rejected_before_anything_is_sent() {
    let (address, log) = receiver().await;
    let handler = HttpHandler::new(CallbackSettings::default()).unwrap();
    for url in [format!("http://{address}/"), format!("http://localhost:{}/", address.port())] {
        let failure = call(&handler, json!({"url": url})).await.unwrap_err();
        assert!(matches!(&failure, Failure::Reject { error } if error.contains("not allowed")), "{failure:?}");
    }
    assert!(log.all().is_empty());
}

/// Lookup that answers each call for a name with the next of its lists.
struct Rebinding {
    answers: HashMap<&'static str, Vec<Vec<IpAddr>>>,
    asked: AtomicUsize,
}

impl Lookup for Rebinding {
    fn lookup(&self, host: String) -> std::pin::Pin<Box<dyn Future<Output = std::io::Result<Vec<SocketAddr>>> + Send>> {
        let turn = self.asked.fetch_add(1, Ordering::SeqCst);
        let lists = &self.answers[host.as_str()];
        let list = &lists[turn % lists.len()];
        Box::pin(std::future::ready(Ok(list.iter().map(|ip| SocketAddr::new(*ip, 0)).collect())))
    }
}

/// A stand-in for the public internet: 127.0.0.2 is outside, everything else is inside.
fn outside_is_two(address: IpAddr) -> Result<(), &'static str> {
    if address.to_string() == "127.0.0.2" { Ok(()) } else { Err("inner") }
}

/// Make a handler whose names are resolved by `lookup`.
fn guarded(judge: fn(IpAddr) -> Result<(), &'static str>, lookup: impl Lookup) -> HttpHandler {
    let rule = Rule { judge, ..Rule::new(false, Vec::new()) };
    HttpHandler::with_guard(CallbackSecrets::default(), rule, 8, Arc::new(lookup), rustls::RootCertStore::empty())
        .unwrap()
}

/// Start a receiver that counts connections, answers 204 and closes.
async fn counting(address: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(address).await.unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = socket.read(&mut [0; 4_096]).await;
            let _ = socket.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await;
        }
    });
    (address, count)
}

#[tokio::test]
async fn a_call_blames_the_receiver_for_what_the_receiver_did() {
    let (address, _) = receiver().await;
    let inner = vec![vec!["127.0.0.1".parse().unwrap()]; 2];
    let lookup = Rebinding { answers: HashMap::from([("inner.example", inner)]), asked: AtomicUsize::new(0) };
    let handler = guarded(outside_is_two, lookup);
    // The guard refuses a name at the connection, and an address before it.
    for host in ["inner.example", "127.0.0.1"] {
        let url = format!("http://{host}:{}/ok", address.port());
        assert_eq!(said_of_receiver(&handler, json!({"url": url})).await, None, "{host}");
    }
    let handler = HttpHandler::new(CallbackSettings { allow_private: true, ..CallbackSettings::default() }).unwrap();
    for (path, said) in [
        ("ok", CallOutcome::Answered),
        ("away", CallOutcome::Answered),
        ("later", CallOutcome::Failed),
        ("date", CallOutcome::Failed),
    ] {
        let url = format!("http://{address}/{path}");
        assert_eq!(said_of_receiver(&handler, json!({"url": url})).await, Some(said), "{path}");
    }
    // Nothing listens there.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let url = format!("http://{gone}/");
    assert_eq!(said_of_receiver(&handler, json!({"url": url})).await, Some(CallOutcome::Failed));
}

/// Make the handler of a declared kind.
fn pushing(http: HttpHandler, url: &str) -> PushHandler {
    let (answer_within, follow_ups) = (Duration::from_secs(5), Vec::new());
    let push = Push { url: url.to_owned(), secret: None, answer_within, lease: None, follow_ups };
    PushHandler::new(Arc::new(http), push).unwrap()
}

#[tokio::test]
async fn a_push_that_is_refused_here_says_nothing_about_its_receiver() {
    let said = async |http: HttpHandler, url: &str| {
        let call = CallSlot::default();
        let ctx = Context::new(ContextParts { call: call.clone(), ..ContextParts::detached("pushed") });
        let outcome = pushing(http, url).run(RawValue::NULL.to_owned(), ctx).await;
        assert!(matches!(outcome, Err(Failure::Retry { .. })), "{outcome:?}");
        call.get()
    };
    // The guard refuses a name at the connection, and an address before it.
    for url in ["http://inner.example:9/", "http://127.0.0.1:9/"] {
        let inner = vec![vec!["127.0.0.1".parse().unwrap()]];
        let lookup = Rebinding { answers: HashMap::from([("inner.example", inner)]), asked: AtomicUsize::new(0) };
        assert_eq!(said(guarded(outside_is_two, lookup), url).await, Some(CallOutcome::NotMade), "{url}");
    }
    // Nothing listens there.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    assert_eq!(said(handler(Vec::new()), &format!("http://{gone}/")).await, Some(CallOutcome::Failed));
}

/// A store of finish keys that never answers, and is awaited when it has a permit.
#[derive(Debug)]
struct NoStore(tokio::sync::Semaphore);

impl FinishKeyStore for NoStore {
    fn store(
        &self,
        _: [u8; 32],
        _: Option<FinishLater>,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        self.0.add_permits(1);
        Box::pin(std::future::pending())
    }
}

/// Run a handler until it waits for `called`, then stop it. Return what an attempt says about the receiver whose time is
/// over then.
async fn said_when_stopped(
    finish: FinishSlot,
    called: &tokio::sync::Semaphore,
    run: impl AsyncFn(Context) -> Outcome,
) -> Option<CallOutcome> {
    let call = CallSlot::default();
    let ctx = Context::new(ContextParts { call: call.clone(), finish, ..ContextParts::detached("any") });
    let stop = ctx.stop_token();
    let (outcome, ()) = tokio::join!(run(ctx), async {
        let waits = timeout(Duration::from_secs(20), called.acquire()).await;
        waits.expect("the handler does not wait").unwrap().forget();
        stop.cancel();
    });
    outcome.unwrap_err();
    call.after(Verdict::TimedOut)
}

#[tokio::test]
async fn an_attempt_whose_time_is_over_before_its_call_says_nothing_about_the_receiver() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let accepted = Arc::new(tokio::sync::Semaphore::new(0));
    let counted = Arc::clone(&accepted);
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((socket, _)) = silent.accept().await {
            open.push(socket);
            counted.add_permits(1);
        }
    });
    let payload = json!({"url": url, "finish": {"within_ms": 60_000}});
    let callback =
        async |ctx: Context| handler(Vec::new()).run(serde_json::from_value(payload.clone()).unwrap(), ctx).await;
    let push = async |ctx: Context| pushing(handler(Vec::new()), &url).run(RawValue::NULL.to_owned(), ctx).await;
    let store = Arc::new(NoStore(tokio::sync::Semaphore::new(0)));
    let unstored = || FinishSlot::stored_in(Arc::clone(&store) as Arc<dyn FinishKeyStore>);
    assert_eq!(said_when_stopped(unstored(), &store.0, &callback).await, None);
    assert_eq!(said_when_stopped(unstored(), &store.0, &push).await, None);
    // A receiver that was called and did not answer is one that fails.
    let failed = Some(CallOutcome::Failed);
    assert_eq!(said_when_stopped(FinishSlot::default(), &accepted, &callback).await, failed);
    assert_eq!(said_when_stopped(FinishSlot::default(), &accepted, &push).await, failed);
}

#[tokio::test]
async fn a_name_that_changes_its_address_reaches_only_checked_ones() {
    let (trap, trapped) = counting("127.0.0.1:0".parse().unwrap()).await;
    let (_, outside) = counting(SocketAddr::new("127.0.0.2".parse().unwrap(), trap.port())).await;
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let answers = vec![
        vec![ip("127.0.0.2")],
        vec![ip("127.0.0.1")],
        vec![ip("127.0.0.1"), ip("127.0.0.2"), ip("::ffff:127.0.0.1")],
        vec![ip("::1"), ip("127.0.0.1")],
    ];
    let lookup = Rebinding { answers: HashMap::from([("rebind.example", answers)]), asked: AtomicUsize::new(0) };
    let handler = guarded(outside_is_two, lookup);
    let mut verdicts = Vec::new();
    for _ in 0..4 {
        verdicts.push(call(&handler, json!({"url": format!("http://rebind.example:{}/", trap.port())})).await);
    }
    assert!(verdicts[0].is_ok() && verdicts[2].is_ok(), "{verdicts:?}");
    for refused in [&verdicts[1], &verdicts[3]] {
        let Err(Failure::Reject { error }) = refused else { panic!("{refused:?}") };
        assert!(error.contains("inner") && !error.contains("127."), "{error}");
    }
    assert_eq!((trapped.load(Ordering::SeqCst), outside.load(Ordering::SeqCst)), (0, 2));
}

#[tokio::test]
async fn a_connection_that_is_used_again_goes_where_it_was_allowed_to_go() {
    let trap = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = trap.local_addr().unwrap().port();
    let outside = TcpListener::bind(("127.0.0.2", port)).await.unwrap();
    let (trapped, accepted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for (listener, count) in [(trap, Arc::clone(&trapped)), (outside, Arc::clone(&accepted))] {
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                // Keep the connection open for two requests.
                for _ in 0..2 {
                    let _ = socket.read(&mut [0; 4_096]).await;
                    let _ = socket.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
                }
            }
        });
    }
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    // After its first answer the name resolves to an inner address.
    let answers = vec![vec![ip("127.0.0.2")], vec![ip("127.0.0.1")], vec![ip("127.0.0.1")], vec![ip("127.0.0.1")]];
    let lookup = Rebinding { answers: HashMap::from([("rebind.example", answers)]), asked: AtomicUsize::new(0) };
    let handler = guarded(outside_is_two, lookup);
    let mut verdicts = Vec::new();
    for _ in 0..3 {
        verdicts.push(call(&handler, json!({"url": format!("http://rebind.example:{port}/")})).await);
        // A separate task returns the connection to the pool.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(verdicts[0].is_ok() && verdicts[1].is_ok(), "{verdicts:?}");
    assert!(matches!(&verdicts[2], Err(Failure::Reject { error }) if error.contains("inner")), "{verdicts:?}");
    assert_eq!((trapped.load(Ordering::SeqCst), accepted.load(Ordering::SeqCst)), (0, 1));
}

/// Lookup that finds every name on this machine.
struct Wildcard;

impl Lookup for Wildcard {
    fn lookup(&self, _: String) -> std::pin::Pin<Box<dyn Future<Output = std::io::Result<Vec<SocketAddr>>> + Send>> {
        Box::pin(std::future::ready(Ok(vec![SocketAddr::from(([127, 0, 0, 1], 0))])))
    }
}

#[tokio::test]
async fn calls_to_ever_new_hosts_leave_a_bounded_number_of_connections_open() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (open, accepted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (opened, counted) = (Arc::clone(&open), Arc::clone(&accepted));
    tokio::spawn(async move {
        // The receiver never closes a connection.
        while let Ok((mut socket, _)) = listener.accept().await {
            opened.fetch_add(1, Ordering::SeqCst);
            counted.fetch_add(1, Ordering::SeqCst);
            let open = Arc::clone(&opened);
            tokio::spawn(async move {
                while socket.read(&mut [0; 4_096]).await.is_ok_and(|bytes| bytes > 0) {
                    let _ = socket.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
                }
                open.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    let rule = Rule { judge: |_| Ok(()), ..Rule::new(false, Vec::new()) };
    let roots = rustls::RootCertStore::empty();
    let handler = HttpHandler::with_guard(CallbackSecrets::default(), rule, 64, Arc::new(Wildcard), roots).unwrap();
    let to = |host: usize| json!({"url": format!("http://h{host}.test:{port}/")});
    for host in 0..300 {
        call(&handler, to(host)).await.unwrap();
    }
    let closed = timeout(Duration::from_secs(10), async {
        while open.load(Ordering::SeqCst) > 64 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    closed.await.unwrap_or_else(|_| panic!("{} connections are open", open.load(Ordering::SeqCst)));
    // The first receivers have their places, and their connections are used again.
    let before = accepted.load(Ordering::SeqCst);
    for _ in 0..10 {
        call(&handler, to(0)).await.unwrap();
        // A separate task returns the connection to the pool.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(accepted.load(Ordering::SeqCst), before);
}

#[tokio::test]
async fn a_receiver_that_offers_http_2_is_called_over_one_connection() {
    let key = rcgen::generate_simple_self_signed(["hooks.example".to_owned()]).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(key.cert.der().clone()).unwrap();
    let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![key.cert.der().clone()], key.signing_key.into())
        .unwrap();
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (accepted, called) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (connections, calls) = (Arc::clone(&accepted), Arc::clone(&called));
    tokio::spawn(async move {
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        while let Ok((socket, _)) = listener.accept().await {
            connections.fetch_add(1, Ordering::SeqCst);
            let (acceptor, calls) = (acceptor.clone(), Arc::clone(&calls));
            tokio::spawn(async move {
                let stream = acceptor.accept(socket).await.unwrap();
                assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
                let answer = hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                    assert_eq!(request.version(), hyper::Version::HTTP_2);
                    calls.fetch_add(1, Ordering::SeqCst);
                    std::future::ready(Ok::<_, std::convert::Infallible>(hyper::Response::new(Body::from("thanks"))))
                });
                let io = hyper_util::rt::TokioIo::new(stream);
                let executor = hyper_util::rt::TokioExecutor::new();
                let _ = hyper::server::conn::http2::Builder::new(executor).serve_connection(io, answer).await;
            });
        }
    });
    let answers = HashMap::from([("hooks.example", vec![vec!["127.0.0.2".parse().unwrap()]])]);
    let lookup = Rebinding { answers, asked: AtomicUsize::new(0) };
    let rule = Rule { judge: outside_is_two, ..Rule::new(false, Vec::new()) };
    let handler = HttpHandler::with_guard(CallbackSecrets::default(), rule, 8, Arc::new(lookup), roots).unwrap();
    let payload = json!({"url": format!("https://hooks.example:{port}/in"), "body": {"n": 1}});
    // The client knows that the receiver speaks HTTP/2 only after the first response.
    call(&handler, payload.clone()).await.unwrap();
    let outcomes = futures_util::future::join_all((1..50).map(|_| call(&handler, payload.clone()))).await;
    assert!(outcomes.iter().all(Result::is_ok), "{:?}", outcomes.iter().find(|outcome| outcome.is_err()));
    assert_eq!(called.load(Ordering::SeqCst), 50);
    assert_eq!(accepted.load(Ordering::SeqCst), 1, "connections");
}

#[test]
fn the_schema_describes_the_payload() {
    let mut registry = super::super::Registry::new();
    registry.register_handler(handler(Vec::new()));
    let kind = registry.get("http").unwrap();
    let pointers = |payload: Value| {
        kind.check(&serde_json::value::to_raw_value(&payload).unwrap())
            .unwrap()
            .into_iter()
            .map(|p| p.pointer)
            .collect::<Vec<_>>()
    };
    let full = json!({"method": "PUT", "url": "https://example.com/", "headers": {"a": "b"}, "body": [1, null], "timeout_ms": 5});
    assert!(pointers(full).is_empty());
    assert!(pointers(json!({"url": "https://example.com/", "body": null})).is_empty());
    assert_eq!(pointers(json!({"url": "https://example.com/", "method": "TRACE"})), ["/method"]);
    assert_eq!(pointers(json!({"url": "https://example.com/", "timeout_ms": 86_400_001})), ["/timeout_ms"]);
    assert_eq!(pointers(json!({"url": "https://example.com/", "timeout_ms": 30_001})), ["/timeout_ms"]);
    assert_eq!(pointers(json!({"url": "https://example.com/", "uri": 1})), [""]);
}

#[tokio::test]
async fn the_body_decides_if_the_callback_says_so() {
    let (address, log) = receiver().await;
    let handler = handler(Vec::new());
    let outcome = async |path: &str, rule: Value| {
        let mut payload = json!({"url": format!("http://{address}/{path}"), "body": {}});
        if !rule.is_null() {
            let mut whole = json!({"at": "/code", "success": [100]});
            whole.as_object_mut().unwrap().extend(rule.as_object().unwrap().clone());
            payload["answer"] = whole;
        }
        call(&handler, payload).await
    };
    assert!(outcome("code", Value::Null).await.is_ok());
    let failure = outcome("code", json!({})).await.unwrap_err();
    assert!(matches!(failure, Failure::Retry { .. }), "{failure:?}");
    assert!(text(&failure).contains("answered 200 OK with 101 at /code"), "{}", text(&failure));
    assert!(outcome("code", json!({"success": [101]})).await.is_ok());
    let snoozed = outcome("code", json!({"snooze": [101]})).await;
    assert!(matches!(snoozed, Err(Failure::Snooze { delay, .. }) if delay.as_secs() == 60));
    assert!(matches!(outcome("code", json!({"reject": [101]})).await, Err(Failure::Reject { .. })));
    assert!(outcome("late-code", json!({})).await.is_ok());
    // A body that is longer than what is read is no JSON, also if it begins with some.
    for path in ["too-late-code", "padded-code"] {
        assert!(matches!(outcome(path, json!({})).await, Err(Failure::Retry { .. })), "{path}");
    }
    assert!(matches!(outcome("404", json!({})).await, Err(Failure::Reject { .. })));
    let any = json!({"any_status": true, "otherwise": "retry"});
    assert!(matches!(outcome("404", any).await, Err(Failure::Retry { .. })));
    assert_eq!(log.all().len(), 10);
}

/// Start a raw TCP receiver that answers each connection with this text and closes it.
async fn breaking_off(text: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket.read(&mut [0; 4_096]).await;
            let _ = socket.write_all(text.as_bytes()).await;
        }
    });
    address
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_no_answer_if_its_body_decides() {
    let handler = handler(Vec::new());
    let address = breaking_off("HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n{\"co").await;
    let url = format!("http://{address}/");
    for otherwise in ["reject", "success", "snooze"] {
        let rule = json!({"at": "/code", "success": [100], "otherwise": otherwise});
        let failure = call(&handler, json!({"url": url, "answer": rule})).await.unwrap_err();
        assert!(matches!(failure, Failure::Retry { .. }), "{otherwise}: {failure:?}");
        assert!(text(&failure).contains("broke off"), "{failure:?}");
    }
    // The status says enough if the body does not decide.
    assert_eq!(result(call(&handler, json!({"url": url})).await)["status"], 200);
    // The body of a refusal decides only if the rule says so.
    let address = breaking_off("HTTP/1.1 404 Not Found\r\ncontent-length: 9999\r\n\r\n{\"co").await;
    let refused = async |any_status| {
        let rule = json!({"at": "/code", "success": [100], "any_status": any_status});
        call(&handler, json!({"url": format!("http://{address}/"), "answer": rule})).await.unwrap_err()
    };
    assert!(matches!(refused(false).await, Failure::Reject { .. }));
    assert!(matches!(refused(true).await, Failure::Retry { .. }));
}

#[tokio::test]
async fn a_callback_that_was_accepted_with_a_longer_time_limit_is_made_within_that_of_the_runner() {
    let (address, log) = receiver().await;
    // Nothing answers here.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings =
        CallbackSettings { allow_private: true, longest: Duration::from_secs(2), ..CallbackSettings::default() };
    let handler = HttpHandler::new(settings).unwrap();
    let payload = |address: SocketAddr| json!({"url": format!("http://{address}/ok"), "timeout_ms": 3_600_000});
    call(&handler, payload(address)).await.unwrap();
    assert_eq!(log.all().len(), 1);
    let failure = call(&handler, payload(silent.local_addr().unwrap())).await.unwrap_err();
    assert!(text(&failure).contains("did not answer within 2000 ms"), "{failure:?}");
}

#[test]
fn a_word_that_headers_repeat_is_one_secret() {
    let words = "aaaaaaaa ".repeat(450) + "bbbbbbbb short";
    let headers = (0..32).map(|n| (format!("x-{n}"), words.clone())).collect();
    let callback = HttpCallback { headers, ..HttpCallback::post("https://example.com/", &()).unwrap() };
    assert_eq!(secrets_of(&callback, &HeaderMap::new()), ["aaaaaaaa", "bbbbbbbb"]);
}

#[test]
fn the_parts_of_a_cookie_and_of_a_signature_are_secrets_by_themselves() {
    let headers = BTreeMap::from([
        ("cookie".to_owned(), "sid=abcdefgh1234; lang=en".to_owned()),
        ("authorization".to_owned(), r#"Sig a="hmac",s="QUJDREVGR0g=""#.to_owned()),
    ]);
    let callback = HttpCallback { headers, ..HttpCallback::post("https://example.com/", &()).unwrap() };
    let mut sent = HeaderMap::new();
    sent.insert("webhook-signature", HeaderValue::from_static("v1,SUpLTE1OT1A="));
    let secrets = secrets_of(&callback, &sent);
    // A word as a whole, as it was sent, stays one of them.
    for secret in ["abcdefgh1234", "sid=abcdefgh1234;", "QUJDREVGR0g", "SUpLTE1OT1A", "v1,SUpLTE1OT1A="] {
        assert!(secrets.iter().any(|word| word == secret), "{secret} is not among {secrets:?}");
    }
    assert!(secrets.iter().all(|word| !["sid", "lang=en", "hmac", "v1"].contains(&word.as_str())), "{secrets:?}");
}

#[tokio::test]
async fn an_authority_of_your_own_is_trusted_and_a_longer_answer_awaited_if_the_operator_says_so() {
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let pem = key.cert.pem();
    let tls = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![key.cert.der().clone()], key.signing_key.into())
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        while let Ok((socket, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // A caller that does not trust the certificate breaks the handshake off.
                let Ok(mut stream) = acceptor.accept(socket).await else { return };
                let mut asked = [0; 4_096];
                let _ = stream.read(&mut asked).await;
                let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n").await;
                let _ = stream.shutdown().await;
            });
        }
    });
    let settings = |authorities: &str| CallbackSettings {
        allow_private: true,
        longest: Duration::from_secs(3_600),
        authorities: authorities.as_bytes().to_vec(),
        ..CallbackSettings::default()
    };
    let payload = json!({"url": format!("https://localhost:{port}/in"), "timeout_ms": 3_600_000});
    let trusting = HttpHandler::new(settings(&pem)).unwrap();
    assert_eq!(trusting.defaults().timeout, Duration::from_secs(7_200));
    call(&trusting, payload.clone()).await.unwrap();
    let failure = call(&HttpHandler::new(settings("")).unwrap(), payload.clone()).await.unwrap_err();
    assert!(text(&failure).contains("certificate"), "{failure:?}");
    let usual = HttpHandler::new(CallbackSettings { allow_private: true, ..CallbackSettings::default() }).unwrap();
    let refused = usual.check(&serde_json::from_value(payload).unwrap());
    assert!(refused.len() == 1 && refused[0].detail.contains("must be at most 30000"), "{refused:?}");
    for wrong in ["not PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        let refused = HttpHandler::new(settings(wrong)).err().unwrap().to_string();
        assert!(refused.contains("callback_ca_file"), "{refused}");
    }
}
