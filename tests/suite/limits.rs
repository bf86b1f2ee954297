//! Limits on clients: slow clients, too many clients, and request heads of any size. Each such client is cut off or
//! gets an error, and all others are served meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tickr::config::Config;
use tickr::handlers::Registry;
use tickr::job::JobId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::support::{DEADLINE, TestApp, contract, eventually};

fn impatient(config: &mut Config) {
    config.http_header_timeout = Duration::from_millis(500);
    config.http_body_timeout = Duration::from_millis(700);
    config.http_write_timeout = Duration::from_millis(700);
    config.http_idle_timeout = Duration::from_millis(900);
}

/// Enqueue a job as a client does that sends a request again without an answer. A server that stood still may take the
/// client for a slow one and cut it off.
async fn enqueue_patiently(tickr: &TestApp) {
    let key = JobId::new().to_string();
    eventually("the job is accepted", || async {
        let request = tickr.request(Method::POST, "/v1/jobs").header("idempotency-key", &key);
        let answer = request.json(&json!({"kind": "noop", "payload": {}})).send().await.ok()?;
        (answer.status() == 201).then_some(())
    })
    .await;
}

/// Read all that still comes on a connection until it is closed, whether it ends normally or with a reset.
async fn until_closed(socket: &mut TcpStream) -> String {
    let mut heard = Vec::new();
    let closed = async {
        let mut bytes = [0; 4096];
        while let Ok(1..) = socket.read(&mut bytes).await.inspect(|count| heard.extend_from_slice(&bytes[..*count])) {}
    };
    timeout(DEADLINE, closed).await.expect("the connection is closed");
    String::from_utf8_lossy(&heard).into_owned()
}

/// Make a connection until it was answered, three times at most. On a machine that stands still, a head may come too
/// late.
async fn answered(mut connection: impl AsyncFnMut() -> String) -> String {
    let mut said = String::new();
    for _ in 0..3 {
        said = connection().await;
        if !said.is_empty() {
            break;
        }
    }
    said
}

/// Send text one byte at a time, repeatedly, until the server closes the connection.
async fn dribble(tickr: &TestApp, opening: &str, drop: &str) -> String {
    let mut socket = TcpStream::connect(tickr.app.addr()).await.unwrap();
    socket.write_all(opening.as_bytes()).await.unwrap();
    let (mut reader, mut writer) = socket.into_split();
    let drip = drop.to_owned();
    let dripping = tokio::spawn(async move {
        while writer.write_all(drip.as_bytes()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
    });
    let mut heard = Vec::new();
    // A reset is as good an end as any other.
    let _ = timeout(DEADLINE, reader.read_to_end(&mut heard)).await.expect("the connection is closed");
    dripping.abort();
    String::from_utf8_lossy(&heard).into_owned()
}

/// Request much data and read none of it.
async fn never_read(tickr: &TestApp) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut socket = socket.connect(tickr.app.addr()).await.unwrap();
    let asked = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(2_000);
    let (_reader, mut writer) = socket.split();
    // Either all requests are sent, or the connection breaks on the way.
    let _ = writer.write_all(asked.as_bytes()).await;
    // A write to a connection that was cut off fails.
    timeout(DEADLINE, async {
        while writer.write_all(b"\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("the connection is cut off");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_heads_bodies_and_readers_are_cut_off_while_everybody_else_is_served() {
    let tickr = TestApp::start_with(impatient, Registry::new()).await;
    let post = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{";
    let over = Arc::new(AtomicBool::new(false));
    let served = async {
        let mut jobs = 0;
        while !over.load(Ordering::SeqCst) {
            enqueue_patiently(&tickr).await;
            jobs += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        jobs
    };
    let slow = async {
        let heads = futures_util::future::join_all((0..20).map(|_| dribble(&tickr, "GET / HTTP/1.1\r\nX-Slow: ", "a")));
        let bodies =
            futures_util::future::join_all((0..20).map(|_| answered(async || dribble(&tickr, post, " ").await)));
        let resting = futures_util::future::join_all((0..20).map(|_| {
            answered(async || {
                let mut socket = TcpStream::connect(tickr.app.addr()).await.unwrap();
                socket.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
                until_closed(&mut socket).await
            })
        }));
        let silent = futures_util::future::join_all(
            (0..5).map(|_| async { until_closed(&mut TcpStream::connect(tickr.app.addr()).await.unwrap()).await }),
        );
        let readers = futures_util::future::join_all((0..5).map(|_| never_read(&tickr)));
        let outcome = tokio::join!(heads, bodies, resting, silent, readers);
        over.store(true, Ordering::SeqCst);
        outcome
    };
    let (jobs, (heads, bodies, resting, silent, _)) = tokio::join!(served, slow);
    assert!(heads.iter().all(String::is_empty), "{heads:?}");
    for said in &bodies {
        assert!(said.starts_with("HTTP/1.1 408") && said.contains("request_timeout"), "{said}");
    }
    assert!(resting.iter().all(|said| said.starts_with("HTTP/1.1 200")), "{resting:?}");
    assert!(silent.iter().all(String::is_empty), "{silent:?}");
    // A connection that rests between two questions would be closed, so the tables are asked.
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'", jobs).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, jobs);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_cut_off_long_before_one_that_rests() {
    let patient = |config: &mut Config| {
        config.http_write_timeout = Duration::from_millis(700);
        config.http_idle_timeout = Duration::from_secs(600);
    };
    let tickr = TestApp::start_with(patient, Registry::new()).await;
    never_read(&tickr).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_bound_on_connections_clients_are_told_and_then_let_in_again() {
    let tickr = TestApp::start_with(|config| config.http_connections = 5, Registry::new()).await;
    let mut held = Vec::new();
    for _ in 0..5 {
        let mut socket = TcpStream::connect(tickr.app.addr()).await.unwrap();
        socket.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        assert!(socket.read(&mut [0; 512]).await.unwrap() > 0);
        held.push(socket);
    }
    for _ in 0..3 {
        let mut socket = TcpStream::connect(tickr.app.addr()).await.unwrap();
        socket.write_all(b"GET /v1/stats HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let said = until_closed(&mut socket).await;
        let (head, body) = said.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 429") && head.contains("retry-after: 1"), "{said}");
        assert!(head.contains("\r\nx-request-id: "), "{said}");
        let body: Value = serde_json::from_str(body).unwrap();
        let mut headers = reqwest::header::HeaderMap::new();
        headers.insert("content-type", "application/problem+json".parse().unwrap());
        contract::hold("GET", "/v1/stats", 429, &headers, &body);
        assert_eq!(body["code"], "overloaded");
    }
    // The accepted connections are served as before, and each that closes makes room for another.
    held[0].write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    assert!(held[0].read(&mut [0; 512]).await.unwrap() > 0);
    drop(held);
    eventually("there is room again", async || {
        let mut socket = TcpStream::connect(tickr.app.addr()).await.unwrap();
        socket.write_all(b"GET /v1/stats HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
        until_closed(&mut socket).await.starts_with("HTTP/1.1 200").then_some(())
    })
    .await;
    tickr.stop().await;
}

/// A supervisor ends a process whose probes fail, also a healthy one that has as many clients as it may have.
#[tokio::test(flavor = "multi_thread")]
async fn probes_are_answered_also_beyond_the_bound_on_connections() {
    let tickr = TestApp::start_with(|config| config.http_connections = 5, Registry::new()).await;
    let mut held = Vec::new();
    for _ in 0..5 {
        let mut socket = TcpStream::connect(tickr.app.addr()).await.unwrap();
        socket.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        assert!(socket.read(&mut [0; 512]).await.unwrap() > 0);
        held.push(socket);
    }
    let mut silent = TcpStream::connect(tickr.app.addr()).await.unwrap();
    for (asked, status) in [
        ("GET /livez", "200"),
        ("GET /readyz", "200"),
        ("HEAD /readyz", "200"),
        ("GET /metrics", "200"),
        ("GET /v1/stats", "429"),
        ("POST /livez", "429"),
    ] {
        // On a machine that stands still, MySQL may answer too late for readiness, and the head may come too late.
        eventually(&format!("{asked} gets {status}"), async || {
            let mut socket = TcpStream::connect(tickr.app.addr()).await.unwrap();
            let head = format!("{asked} HTTP/1.1\r\nHost: localhost\r\nx-request-id: mine\r\n\r\n");
            socket.write_all(head.as_bytes()).await.unwrap();
            let said = until_closed(&mut socket).await;
            let fits = said.starts_with(&format!("HTTP/1.1 {status} "));
            assert!(
                !fits || said.contains("connection: close\r\n") && said.contains("x-request-id: mine\r\n"),
                "{said}"
            );
            fits.then_some(())
        })
        .await;
    }
    // A client that asks for nothing does not keep its place beyond the bound.
    assert_eq!(until_closed(&mut silent).await, "");
    drop(held);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_that_are_too_large_or_broken_are_answered_or_closed_and_never_stumbled_over() {
    let tickr = TestApp::start_with(impatient, Registry::new()).await;
    let get =
        |path: &str, more: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n");
    let post = |more: &str, body: &str| {
        format!(
            "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n{more}\r\n{body}"
        )
    };
    let job = r#"{"kind":"noop"}"#;
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("a long path", get(&format!("/{}", "a".repeat(60_000)), "").into(), &["404"]),
        ("a path beyond all bounds", get(&format!("/{}", "a".repeat(300_000)), "").into(), &["414", "431"]),
        ("a long query", get(&format!("/v1/jobs?cursor={}", "a".repeat(50_000)), "").into(), &["422"]),
        ("99 headers", get("/livez", &"X-A: b\r\n".repeat(97)).into(), &["200"]),
        ("1,000 headers", get("/livez", &"X-A: b\r\n".repeat(1_000)).into(), &["431"]),
        ("one huge header", get("/livez", &format!("X-A: {}\r\n", "b".repeat(1 << 20))).into(), &["431"]),
        ("two lengths", post("Content-Length: 15\r\nContent-Length: 16\r\n", job).into(), &["400"]),
        ("a length that is no number", post("Content-Length: x\r\n", job).into(), &["400"]),
        ("a negative length", post("Content-Length: -1\r\n", job).into(), &["400"]),
        ("a length beyond all numbers", post("Content-Length: 99999999999999999999999\r\n", job).into(), &["400"]),
        ("an unknown encoding", post("Transfer-Encoding: magic\r\n", job).into(), &["400"]),
        ("chunks that are none", post("Transfer-Encoding: chunked\r\n", "zz\r\nnothing\r\n").into(), &["400"]),
        ("a NUL in a header", get("/livez", "X-A: a\0b\r\n").into(), &["400"]),
        ("a header without a name", get("/livez", ": b\r\n").into(), &["400"]),
        (
            "bytes that are no text in the path",
            b"GET /v1/jobs/\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n".into(),
            &["400"],
        ),
        (
            "bytes that are no text in the body",
            {
                let mut bytes = post("Content-Length: 17\r\n", "{\"kind\":\"no").into_bytes();
                bytes.extend_from_slice(b"\xff\xfeop\"}");
                bytes
            },
            &["400"],
        ),
        ("another protocol", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), &["400", ""]),
        ("a greeting of TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".repeat(20), &["400", ""]),
        ("noise", (0..=255).cycle().take(10_000).collect(), &["400", ""]),
        (
            "an unknown method",
            b"FROB /v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".into(),
            &["405"],
        ),
        (
            "a path that is none",
            b"GET v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".into(),
            &["400", "404"],
        ),
    ];
    for (what, bytes, expected) in cases {
        let said = answered(async || {
            let mut socket = TcpStream::connect(tickr.app.addr()).await.unwrap();
            // A request that is refused early may be refused before all of it is sent.
            let _ = socket.write_all(&bytes).await;
            until_closed(&mut socket).await
        })
        .await;
        let status = said.split(' ').nth(1).unwrap_or("");
        assert!(expected.contains(&status), "{what}: {:?}", said.chars().take(300).collect::<String>());
        assert!(!said.contains(" 500 ") && !said.contains("internal error"), "{what}: {said}");
    }
    enqueue_patiently(&tickr).await;
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'", 1).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1);
    tickr.stop().await;
}
