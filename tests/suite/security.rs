//! Limits of an API key: its client cannot read or replace the jobs of other clients, use it after it was revoked, take
//! every stream, or enqueue other kinds. And limits of an API without API keys, against web pages and proxies.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::stream;
use reqwest::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickr::config::{Config, Flags};
use tickr::handlers::{Context, Failure, Kind, Output, Registry};
use tickr::job::{JobId, State};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::documents::document;
use crate::support::program::{command, outcome, tickr as program};
use crate::support::{
    Answer, DEADLINE, Pulse, Runner, TestApp, answer, call, contract, eventually, http, make_api_key,
};

/// Content of a job that only its producer may see.
const CANARY: &str = "Bearer CANARY-SHOP-SECRET";
/// Longest time until a revoked API key is refused everywhere, for open requests too.
const REVOKED: Duration = Duration::from_secs(2);

async fn post(url: &str, path: &str, key: &str, body: Value) -> Answer {
    call(url, Method::POST, path, key, Some(body)).await
}

async fn get(url: &str, path: &str, key: &str) -> Answer {
    call(url, Method::GET, path, key, None).await
}

/// Wait until this runner answers with this status for the API key.
async fn knows(url: &str, key: &str, status: u16) {
    eventually("the other runner knows of the key", || async {
        (get(url, "/v1/whoami", key).await.status == status).then_some(())
    })
    .await;
}

/// Send an import of these lines at once. Return its answer, line by line.
async fn import(url: &str, query: &str, key: &str, lines: &[Value]) -> Vec<Value> {
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let request = http().post(format!("{url}/v1/jobs/import{query}")).bearer_auth(key);
    let response = request.header("Content-Type", "application/x-ndjson").body(body).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let text = response.text().await.unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &lines[..lines.len() - 1] {
        contract::fits_schema("ImportLine", line);
    }
    lines
}

fn id_of(answer: &Answer) -> String {
    answer.body["id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unique_key_shows_and_replaces_only_what_its_own_producer_made() {
    let tickr = TestApp::start().await;
    let url = tickr.url("");
    let admin = make_api_key(&url, "", "ops", json!({"scope": "admin"})).await;
    let shop = make_api_key(&url, &admin, "shop", json!({"scope": "enqueue"})).await;
    let shop2 = make_api_key(&url, &admin, "shop-2", json!({"scope": "enqueue", "producer": "shop"})).await;
    let mallory = make_api_key(&url, &admin, "mallory", json!({"scope": "enqueue"})).await;
    let board = make_api_key(&url, &admin, "board", json!({"scope": "read"})).await;
    let job = |payload: Value, on_conflict: &str| json!({"kind": "noop", "payload": payload, "unique_key": "order-1001", "on_conflict": on_conflict, "delay_ms": 3_600_000});
    let first = post(&url, "/v1/jobs", &shop, job(json!({"authorization": CANARY}), "return")).await;
    assert_eq!(first.status, 201);
    let (first, path) = (id_of(&first), format!("/v1/jobs/{}", id_of(&first)));
    let other = json!({"iban": "XX00"});

    // Another producer learns that the unique key is taken, the id of the job that holds it and its state, but none of
    // its content.
    let stranger = json!({"id": first, "state": "waiting", "foreign": true});
    let mut told = Vec::new();
    for key in [None, Some("k")] {
        for _ in 0..2 {
            let request =
                http().post(format!("{url}/v1/jobs")).bearer_auth(&mallory).json(&job(other.clone(), "return"));
            let request = match key {
                Some(key) => request.header("Idempotency-Key", key),
                None => request,
            };
            let held = answer(request).await;
            assert_eq!((held.status, &held.body), (200, &stranger));
            told.push(held);
        }
    }
    let shown = get(&url, &path, &mallory).await;
    assert_eq!((shown.status, &shown.body), (200, &stranger));
    told.push(shown);
    for more in ["/result", "/result?wait=5s", "/events"] {
        let refused = get(&url, &format!("{path}{more}"), &mallory).await;
        assert_eq!((refused.status, refused.code()), (403, "forbidden"), "{more}");
        told.push(refused);
    }
    let batch = post(&url, "/v1/jobs/batch", &mallory, json!({"jobs": [job(other.clone(), "return")]})).await;
    assert_eq!((batch.status, &batch.body), (200, &json!({"jobs": [{"id": first, "existing": true}]})));
    let lines = import(&url, "", &mallory, &[job(other.clone(), "return")]).await;
    assert_eq!(lines[0], json!({"line": 1, "id": first, "existing": true}));

    // It cannot end that job either, with any `on_conflict`.
    for on_conflict in ["reject", "replace", "postpone"] {
        let taken = post(&url, "/v1/jobs", &mallory, job(other.clone(), on_conflict)).await;
        assert_eq!((taken.status, taken.code(), &taken.body["holder"]), (409, "unique_key_taken", &json!(first)));
        assert!(taken.body["detail"].as_str().unwrap().contains("another producer"), "{:#}", taken.body);
        let batch = post(&url, "/v1/jobs/batch", &mallory, json!({"jobs": [job(other.clone(), on_conflict)]})).await;
        assert_eq!((batch.status, batch.code()), (409, "unique_key_taken"));
        let lines = import(&url, "?on_error=continue", &mallory, &[job(other.clone(), on_conflict)]).await;
        assert_eq!(lines[0]["problem"]["code"], "unique_key_taken");
        told.extend([taken, batch]);
    }
    for said in &told {
        assert!(!said.body.to_string().contains("CANARY"), "{:#}", said.body);
    }
    assert_eq!(get(&url, &path, &admin).await.body["state"], "waiting");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM audit WHERE action = 'job.replace'").await, 0);

    // The producer itself, its other API key, operators and readers see the whole job.
    for key in [&shop, &shop2, &admin] {
        let held = post(&url, "/v1/jobs", key, job(other.clone(), "return")).await;
        assert_eq!((held.status, &held.body["payload"]), (200, &json!({"authorization": CANARY})));
    }
    for key in [&shop, &shop2, &admin, &board] {
        assert_eq!(get(&url, &path, key).await.body["payload"], json!({"authorization": CANARY}));
        assert_eq!(get(&url, &format!("{path}/result"), key).await.status, 202);
    }
    // They may replace the job, and the audit log records the actor, the job and its replacement.
    let second = post(&url, "/v1/jobs", &shop2, job(other.clone(), "replace")).await;
    assert_eq!((second.status, get(&url, &path, &shop).await.body["state"].clone()), (201, json!("cancelled")));
    let third = post(&url, "/v1/jobs", &admin, job(other.clone(), "replace")).await;
    assert_eq!(third.status, 201);
    let audit = get(&url, "/v1/audit?limit=2", &admin).await.body;
    let acts: Vec<_> = audit["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|act| {
            (act["action"].clone(), act["actor"].clone(), act["target"].clone(), act["detail"]["replaced_by"].clone())
        })
        .collect();
    assert_eq!(
        acts,
        [
            (json!("job.replace"), json!("key:ops"), json!(id_of(&second)), json!(id_of(&third))),
            (json!("job.replace"), json!("key:shop-2"), json!(first), json!(id_of(&second))),
        ]
    );
    // A job of an operator belongs to the operator.
    assert_eq!(post(&url, "/v1/jobs", &shop, job(other.clone(), "return")).await.body["foreign"], true);

    // After its end, the job is shown as before. An ordinary job is shown to each API key that knows its id.
    assert_eq!(get(&url, &path, &mallory).await.body, json!({"id": first, "state": "cancelled", "foreign": true}));
    let plain = post(&url, "/v1/jobs", &shop, json!({"kind": "noop", "payload": other, "delay_ms": 3_600_000})).await;
    assert_eq!(get(&url, &format!("/v1/jobs/{}", id_of(&plain)), &mallory).await.body["payload"], other);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_cancels_the_jobs_whose_ids_it_was_given_and_no_job_of_another() {
    let tickr = TestApp::start().await;
    let url = tickr.url("");
    let admin = make_api_key(&url, "", "ops", json!({"scope": "admin"})).await;
    let shop = make_api_key(&url, &admin, "shop", json!({"scope": "enqueue"})).await;
    let mallory = make_api_key(&url, &admin, "mallory", json!({"scope": "enqueue"})).await;
    let board = make_api_key(&url, &admin, "board", json!({"scope": "read"})).await;
    let job = |unique_key: Option<&str>| json!({"kind": "noop", "unique_key": unique_key, "delay_ms": 3_600_000});
    let keyed = post(&url, "/v1/jobs", &shop, job(Some("order-1"))).await;
    let path = format!("/v1/jobs/{}", id_of(&keyed));
    // Mallory learns the id of the job by guessing its unique key.
    let told = post(&url, "/v1/jobs", &mallory, job(Some("order-1"))).await;
    assert_eq!(told.body["id"], keyed.body["id"]);
    for (key, query) in [(&mallory, ""), (&mallory, "?unless=executing"), (&board, "")] {
        let refused = post(&url, &format!("{path}/cancel{query}"), key, json!({})).await;
        assert_eq!((refused.status, refused.code()), (403, "forbidden"), "{:#}", refused.body);
    }
    assert_eq!(get(&url, &path, &admin).await.body["state"], "waiting");
    for other in ["retry", "run-now"] {
        assert_eq!(post(&url, &format!("{path}/{other}"), &shop, json!({})).await.status, 403, "{other}");
    }
    let ended = post(&url, &format!("{path}/cancel"), &shop, json!({})).await;
    assert_eq!((ended.status, &ended.body["state"]), (200, &json!("cancelled")));
    // The id of a job without a unique key is known only to those whom its producer told.
    let plain = post(&url, "/v1/jobs", &shop, job(None)).await;
    let ended = post(&url, &format!("/v1/jobs/{}/cancel", id_of(&plain)), &mallory, json!({})).await;
    assert_eq!(ended.status, 200);
    let missing = post(&url, &format!("/v1/jobs/{}/cancel", JobId::new()), &shop, json!({})).await;
    assert_eq!((missing.status, missing.code()), (404, "not_found"));
    let audit = get(&url, "/v1/audit?limit=2", &admin).await.body;
    let actors: Vec<&Value> = audit["data"].as_array().unwrap().iter().map(|act| &act["actor"]).collect();
    assert_eq!(actors, [&json!("key:mallory"), &json!("key:shop")]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_keeps_its_producer_through_retries_and_replays_and_has_none_of_older_binaries() {
    let tickr = TestApp::start().await;
    let url = tickr.url("");
    let admin = make_api_key(&url, "", "ops", json!({"scope": "admin"})).await;
    let shop = make_api_key(&url, &admin, "shop", json!({"scope": "enqueue"})).await;
    let mallory = make_api_key(&url, &admin, "mallory", json!({"scope": "enqueue"})).await;
    let fails = json!({"kind": "fail", "payload": {"permanent": true}, "unique_key": "u", "max_attempts": 1});
    let job = post(&url, "/v1/jobs", &shop, fails).await;
    let path = format!("/v1/jobs/{}", id_of(&job));
    let until = async |path: &str, state: State| {
        eventually("the job is there", || async {
            (get(&url, path, &admin).await.body["state"] == state.as_str()).then_some(())
        })
        .await;
    };
    until(&path, State::Failed).await;
    let sees = async |path: &str, key: &str| get(&url, path, key).await.body["foreign"].is_null();
    assert!(sees(&path, &shop).await && !sees(&path, &mallory).await);

    assert_eq!(post(&url, &format!("{path}/retry"), &admin, json!({})).await.status, 200);
    until(&path, State::Failed).await;
    assert!(sees(&path, &shop).await && !sees(&path, &mallory).await);
    let replayed = post(&url, &format!("{path}/replay"), &admin, json!({"payload": {"times": 0}})).await;
    assert_eq!(replayed.status, 201, "{:#}", replayed.body);
    let path = format!("/v1/jobs/{}", id_of(&replayed));
    assert!(sees(&path, &shop).await && !sees(&path, &mallory).await);

    // The producer of a job that an older binary accepted is unknown, so only operators can reach the job.
    let later = json!({"kind": "noop", "unique_key": "old", "delay_ms": 3_600_000, "on_conflict": "replace"});
    let old = post(&url, "/v1/jobs", &shop, later.clone()).await;
    tickr.sql("UPDATE jobs SET options = NULL WHERE unique_key = 'old'").await;
    let taken = post(&url, "/v1/jobs", &shop, later.clone()).await;
    assert_eq!((taken.status, &taken.body["holder"]), (409, &json!(id_of(&old))));
    assert_eq!(post(&url, "/v1/jobs", &admin, later).await.status, 201);
    tickr.stop().await;
}

/// An import whose lines are sent one after the other.
struct Slow {
    lines: mpsc::Sender<String>,
    answer: tokio::task::JoinHandle<(Vec<Value>, Instant)>,
}

impl Slow {
    fn begin(url: &str, key: &str) -> Self {
        let (lines, receiver) = mpsc::channel::<String>(8);
        let body = stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|line| (Ok::<_, std::io::Error>(line), receiver))
        });
        let request = http().post(format!("{url}/v1/jobs/import")).bearer_auth(key);
        let request =
            request.header("Content-Type", "application/x-ndjson").body(reqwest::Body::wrap_stream(body)).send();
        let answer = tokio::spawn(async move {
            let response = request.await.unwrap();
            assert_eq!(response.status(), 200);
            let text = response.text().await.unwrap();
            (text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), Instant::now())
        });
        Self { lines, answer }
    }

    async fn send(&self, tag: &str, count: usize) {
        let line = json!({"kind": "noop", "tags": [tag], "delay_ms": 3_600_000});
        self.lines.send(format!("{line}\n").repeat(count)).await.unwrap();
    }

    async fn end(self) -> (Vec<Value>, Instant) {
        tokio::time::timeout(DEADLINE, self.answer).await.expect("the import ends").unwrap()
    }
}

/// Follow a stream of events, and return the time when it ended.
fn follow(url: String, key: &str) -> tokio::task::JoinHandle<Instant> {
    let request = http().get(url);
    let request = if key.is_empty() { request } else { request.bearer_auth(key) };
    tokio::spawn(async move {
        let mut response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        while response.chunk().await.unwrap().is_some() {}
        Instant::now()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_imports_and_waits_end_with_their_key_on_every_runner() {
    let tickr = TestApp::start().await;
    let other = tickr.another().await;
    let pulse = Pulse::start(&tickr).await;
    let urls = [tickr.url(""), format!("http://{}", other.addr())];
    let anonymous = follow(format!("{}/v1/events", urls[0]), "");
    let elsewhere = follow(format!("{}/v1/events", urls[1]), "");
    eventually("both streams are open", || async {
        (tickr.count("SELECT 1").await == 1 && !anonymous.is_finished()).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;

    // Streams that were opened without an API key end when the first one is made.
    let admin = make_api_key(&urls[0], "", "ops", json!({"scope": "admin"})).await;
    let made = Instant::now();
    for stream in [anonymous, elsewhere] {
        let ended = tokio::time::timeout(DEADLINE, stream).await.expect("the stream ends").unwrap();
        let took = pulse.time_between(made, ended);
        assert!(took < REVOKED, "{took:?}");
    }

    let shop = make_api_key(&urls[0], &admin, "shop", json!({"scope": "enqueue"})).await;
    let board = make_api_key(&urls[0], &admin, "board", json!({"scope": "read"})).await;
    let fleet = make_api_key(&urls[0], &admin, "fleet", json!({"scope": "work"})).await;
    let later = json!({"kind": "noop", "delay_ms": 3_600_000});
    let id = id_of(&post(&urls[0], "/v1/jobs", &shop, later).await);
    let declared = call(&urls[0], Method::PUT, "/v1/kinds/resize", &admin, Some(json!({"queue": "pictures"}))).await;
    assert_eq!(declared.status, 201, "{:#}", declared.body);
    for url in &urls {
        knows(url, &shop, 200).await;
        knows(url, &board, 200).await;
        knows(url, &fleet, 200).await;
        knows(url, &admin, 200).await;
    }
    let (mut streams, mut waits, mut busy, mut idle) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut kept = Vec::new();
    for url in &urls {
        for (path, key) in [("/v1/events".to_owned(), &board), (format!("/v1/jobs/{id}/events"), &shop)] {
            streams.push(follow(format!("{url}{path}"), key));
        }
        kept.push(follow(format!("{url}/v1/events"), &admin));
        let wait = http().get(format!("{url}/v1/jobs/{id}/result?wait=30s")).bearer_auth(&shop);
        waits.push(tokio::spawn(async move { (answer(wait).await, Instant::now()) }));
        // A remote worker waits for jobs.
        let worker = json!({"name": "test", "kinds": ["resize"], "slots": 1});
        let path = format!("/v1/workers/{}/fetch", id_of(&post(&urls[0], "/v1/workers", &fleet, worker).await));
        let wanted = json!({"slots": 1, "wait_ms": 30_000, "holding": [], "fetch_id": uuid::Uuid::now_v7()});
        let fetch = http().post(format!("{url}{path}")).bearer_auth(&fleet).json(&wanted);
        waits.push(tokio::spawn(async move { (answer(fetch).await, Instant::now()) }));
        busy.push(Slow::begin(url, &shop));
        idle.push(Slow::begin(url, &shop));
    }
    for import in busy.iter().chain(&idle) {
        import.send("before", 500).await;
        // The next part has begun, and is not complete.
        import.send("after", 1).await;
    }
    tickr.until_count("SELECT COUNT(*) FROM job_tags WHERE tag = 'before'", 2_000).await;

    for name in ["shop", "board", "fleet"] {
        assert_eq!(call(&urls[0], Method::DELETE, &format!("/v1/api-keys/{name}"), &admin, None).await.status, 200);
    }
    let revoked = Instant::now();
    let soon = |ended: Instant, what: &str| {
        let took = pulse.time_between(revoked, ended);
        println!("{what} ended {} ms after the API key", took.as_millis());
        assert!(took < REVOKED, "{what}: {took:?}");
    };
    for stream in streams {
        soon(tokio::time::timeout(DEADLINE, stream).await.expect("the stream ends").unwrap(), "a stream");
    }
    for wait in waits {
        let (refused, ended) = tokio::time::timeout(DEADLINE, wait).await.expect("the wait ends").unwrap();
        assert_eq!((refused.status, refused.code()), (401, "unauthorized"));
        soon(ended, "a wait");
    }
    for import in idle {
        let (lines, ended) = import.end().await;
        soon(ended, "an idle import");
        let end = lines.last().unwrap();
        contract::fits_schema("ImportEnd", end);
        assert_eq!((&end["complete"], &end["accepted"]), (&json!(false), &json!(500)));
        assert_eq!(end["problem"]["code"], "unauthorized");
    }
    // A client that continues to send was ended as well: its lines are not accepted.
    for import in busy {
        let line = json!({"kind": "noop", "tags": ["after"], "delay_ms": 3_600_000});
        let _ = import.lines.send(format!("{line}\n").repeat(500)).await;
        let (lines, ended) = import.end().await;
        soon(ended, "an import");
        assert_eq!(lines.last().unwrap()["problem"]["code"], "unauthorized");
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM job_tags WHERE tag = 'after'").await, 0);
    // Clients with other API keys are not affected.
    assert!(kept.iter().all(|stream| !stream.is_finished()));
    kept.iter().for_each(tokio::task::JoinHandle::abort);
    other.stop(Default::default()).await;
    tickr.stop().await;
}

/// A request whose head was let in, and whose body is not complete.
struct Begun {
    socket: tokio::net::TcpStream,
    rest: String,
}

impl Begun {
    /// Send the head and half of the body. The server asks for the body once it has let the head in.
    async fn send(tickr: &TestApp, line: &str, key: &str, body: &Value) -> Self {
        let (body, length) = (body.to_string(), body.to_string().len());
        let auth = if key.is_empty() { String::new() } else { format!("Authorization: Bearer {key}\r\n") };
        let head = format!(
            "{line} HTTP/1.1\r\nHost: 127.0.0.1\r\n{auth}Content-Type: application/json\r\n\
             Content-Length: {length}\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
        );
        let mut socket = tokio::net::TcpStream::connect(tickr.app.addr()).await.unwrap();
        socket.write_all(head.as_bytes()).await.unwrap();
        let mut asked = [0; 25];
        tokio::time::timeout(DEADLINE, socket.read_exact(&mut asked)).await.expect("a word about the body").unwrap();
        assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
        let (half, rest) = body.split_at(length / 2);
        socket.write_all(half.as_bytes()).await.unwrap();
        Self { socket, rest: rest.to_owned() }
    }

    /// Send the rest of the body, if the server still takes it. Return the answer.
    async fn end(mut self) -> String {
        let _ = self.socket.write_all(self.rest.as_bytes()).await;
        self.answer().await
    }

    /// Return the answer to the request as it is.
    async fn answer(mut self) -> String {
        let mut answer = Vec::new();
        // The connection of an answer that came before the body may be reset after it.
        let read = tokio::time::timeout(DEADLINE, self.socket.read_to_end(&mut answer)).await;
        let _ = read.expect("an answer");
        String::from_utf8_lossy(&answer).into_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_body_is_under_way_does_nothing_after_its_key_has_ended() {
    let tickr = TestApp::start().await;
    let url = tickr.url("");
    let job = json!({"kind": "noop", "delay_ms": 3_600_000});
    let anonymous = Begun::send(&tickr, "POST /v1/jobs", "", &job).await;
    let admin = make_api_key(&url, "", "ops", json!({"scope": "admin"})).await;
    let old = make_api_key(&url, &admin, "old", json!({"scope": "admin"})).await;
    knows(&url, &old, 200).await;
    knows(&url, "", 401).await;
    let answer = anonymous.end().await;
    assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains("since this request began"), "{answer}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 0);

    let back = Begun::send(&tickr, "PUT /v1/api-keys/back", &old, &json!({"scope": "admin"})).await;
    let kept = Begun::send(&tickr, "POST /v1/jobs", &admin, &job).await;
    assert_eq!(call(&url, Method::DELETE, "/v1/api-keys/old", &admin, None).await.status, 200);
    knows(&url, &old, 401).await;
    let answer = back.end().await;
    assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains("was revoked"), "{answer}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM api_keys WHERE name = 'back'").await, 0);
    // Requests with other API keys are not affected.
    let answer = kept.end().await;
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finish_key_that_no_attempt_has_is_refused_before_its_body_is_read() {
    let tickr = TestApp::start().await;
    make_api_key(&tickr.url(""), "", "ops", json!({"scope": "admin"})).await;
    let path = format!("/v1/attempts/fin_{}", "0".repeat(64));
    for verb in ["report", "finish"] {
        let body = json!({"checkpoint": "x".repeat(60_000)});
        let answer = Begun::send(&tickr, &format!("POST {path}/{verb}"), "", &body).await.answer().await;
        assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("no attempt"), "{answer}");
        // A client that sends everything first gets the answer as well.
        let whole =
            http().post(format!("{}{path}/{verb}", tickr.url(""))).json(&json!({"result": "x".repeat(250_000)}));
        let refused = crate::support::answer(whole).await;
        assert_eq!((refused.status, refused.code()), (404, "not_found"), "{verb}: {:#}", refused.body);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_takes_a_share_of_streams_and_imports_and_leaves_room_for_others_and_operators() {
    let tickr = TestApp::start_with(|config: &mut Config| config.http_streams = 8, Registry::new()).await;
    let url = tickr.url("");
    let admin = make_api_key(&url, "", "ops", json!({"scope": "admin"})).await;
    let id = id_of(&post(&url, "/v1/jobs", &admin, json!({"kind": "noop", "delay_ms": 3_600_000})).await);
    let events = format!("{url}/v1/jobs/{id}/events");
    let open = async |key: &str| {
        let response = http().get(&events).bearer_auth(key).send().await.unwrap();
        if response.status() == 200 { Ok(response) } else { Err(response.status().as_u16()) }
    };
    let mut keys = Vec::new();
    for n in 0..5 {
        keys.push(
            make_api_key(
                &url,
                &admin,
                &format!("key-{n}"),
                json!({"scope": if n % 2 == 0 { "enqueue" } else { "read" }}),
            )
            .await,
        );
    }
    // One API key may use a quarter of the streams, all of them together seven eighths, and the last eighth is for
    // operators.
    let mut held = Vec::new();
    for (n, key) in keys.iter().enumerate() {
        let mut own = 0;
        while let Ok(stream) = open(key).await {
            held.push(stream);
            own += 1;
        }
        assert_eq!(own, [2, 2, 2, 1, 0][n], "key {n}");
        let refused = answer(http().get(&events).bearer_auth(key)).await;
        assert_eq!((refused.status, refused.code(), refused.header("retry-after")), (429, "overloaded", "1"));
        let share = refused.body["detail"].as_str().unwrap().contains("its share of TICKR_HTTP_STREAMS");
        assert_eq!(share, n < 3, "{:#}", refused.body);
    }
    held.push(open(&admin).await.expect("an operator gets a stream"));
    assert_eq!(open(&admin).await.unwrap_err(), 429);
    // Closed streams make room for new ones.
    drop(held);
    let again = eventually("there is room again", || async { open(&keys[4]).await.ok() }).await;
    drop(again);

    // Sixteen imports may run at once, four per API key.
    let mut imports = Vec::new();
    for _ in 0..4 {
        let import = Slow::begin(&url, &keys[0]);
        import.send("slow", 500).await;
        imports.push(import);
    }
    tickr.until_count("SELECT COUNT(*) FROM job_tags WHERE tag = 'slow'", 2_000).await;
    let request = http().post(format!("{url}/v1/jobs/import")).header("Content-Type", "application/x-ndjson");
    let refused = answer(request.bearer_auth(&keys[0]).body("")).await;
    assert_eq!((refused.status, refused.code()), (429, "overloaded"));
    assert!(refused.body["detail"].as_str().unwrap().contains("its share"), "{:#}", refused.body);
    for key in [&keys[2], &admin] {
        let lines = import(&url, "", key, &[json!({"kind": "noop"})]).await;
        assert_eq!(lines.last().unwrap()["complete"], true);
    }
    for import in imports {
        import.answer.abort();
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_takes_a_share_of_the_requests_that_wait_for_results_also_with_few_connections() {
    let tickr = TestApp::start_with(|config: &mut Config| config.http_connections = 16, Registry::new()).await;
    let url = tickr.url("");
    let admin = make_api_key(&url, "", "ops", json!({"scope": "admin"})).await;
    let board = make_api_key(&url, &admin, "board", json!({"scope": "read"})).await;
    let wall = make_api_key(&url, &admin, "wall", json!({"scope": "read"})).await;
    let later = json!({"kind": "noop", "delay_ms": 3_600_000});
    let id = id_of(&post(&url, "/v1/jobs", &admin, later).await);
    let result = format!("/v1/jobs/{id}/result");
    let wait = |key: &str, time: &str| answer(http().get(format!("{url}{result}?wait={time}")).bearer_auth(key));
    // Sixteen requests may wait, four of them with one API key. So one of five is answered at once.
    let mut waiting: JoinSet<Answer> = (0..5).map(|_| wait(&board, "20s")).collect();
    let refused = waiting.join_next().await.unwrap().unwrap();
    assert_eq!((refused.status, refused.code(), refused.header("retry-after")), (429, "overloaded", "1"));
    let share = "this API key has 4 requests that wait for results open";
    assert!(refused.body["detail"].as_str().unwrap().contains(share), "{:#}", refused.body);
    // Another API key has places of its own, and a request that does not wait needs none.
    assert_eq!(wait(&wall, "300ms").await.status, 202);
    assert_eq!(get(&url, &result, &board).await.status, 202);
    // The end of the job answers the other four.
    assert_eq!(post(&url, &format!("/v1/jobs/{id}/cancel"), &admin, json!({})).await.status, 200);
    while let Some(ended) = waiting.join_next().await {
        assert_eq!(ended.unwrap().status, 200);
    }
    tickr.stop().await;
}

/// Send a request as raw text. Return the status of its answer and the answer.
async fn raw(tickr: &TestApp, request: &str) -> (u16, String) {
    let mut socket = tokio::net::TcpStream::connect(tickr.app.addr()).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(DEADLINE, socket.read_to_end(&mut answer)).await.expect("an answer").unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    (answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0), answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_api_refuses_pages_of_other_sites_proxies_and_hosts_that_cannot_be_read() {
    let tickr = TestApp::start().await;
    let ask = async |headers: &str| {
        raw(&tickr, &format!("GET /v1/stats HTTP/1.1\r\n{headers}Connection: close\r\n\r\n")).await
    };
    for (headers, status) in [
        ("Host: 127.0.0.1:7070\r\n", 200),
        ("Host: localhost\r\nSec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\n", 200),
        ("Host: localhost\r\nSec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\n", 200),
        (
            "Host: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n",
            200,
        ),
        ("Host: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n", 403),
        ("Host: localhost\r\nSec-Fetch-Site: same-site\r\nSec-Fetch-Mode: cors\r\n", 403),
        (
            "Host: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n",
            403,
        ),
        ("Host: localhost\r\nX-Forwarded-For: 192.0.2.1\r\n", 403),
        ("Host: localhost\r\nX-Forwarded-Proto: https\r\n", 403),
        ("Host: localhost\r\nForwarded: for=192.0.2.1\r\n", 403),
        ("Host: a{b.evil.example:7599\r\n", 403),
        ("Host: a`b.evil.example\r\n", 403),
        ("Host: a\"b.evil.example\r\n", 403),
        ("Host: x@127.0.0.1\r\n", 403),
        ("Host:\r\n", 403),
        ("Host: localhost\r\nHost: evil.example\r\n", 403),
        ("Host: localhost\r\nHost: localhost\r\n", 403),
        ("Host: evil.example\r\n", 403),
        ("Host: 0.0.0.0:7070\r\n", 403),
    ] {
        let (got, answer) = ask(headers).await;
        assert_eq!(got, status, "{headers:?}: {answer}");
        if status == 403 {
            assert!(
                answer.contains("tickr api-keys create") && answer.contains("\"forbidden\""),
                "{headers:?}: {answer}"
            );
        }
    }
    // An HTTP/1.0 client sends no Host header.
    assert_eq!(raw(&tickr, "GET /v1/stats HTTP/1.0\r\n\r\n").await.0, 200);
    // Health checks are open to all clients.
    let probe = "GET /livez HTTP/1.1\r\nHost: tickr.svc\r\nX-Forwarded-For: 192.0.2.1\r\nConnection: close\r\n\r\n";
    assert_eq!(raw(&tickr, probe).await.0, 200);
    // With an API key, the origin of the request does not matter.
    let admin = make_api_key(&tickr.url(""), "", "ops", json!({"scope": "admin"})).await;
    let keyed = "Host: jobs.example\r\nX-Forwarded-For: 192.0.2.1\r\nSec-Fetch-Site: cross-site\r\n";
    assert_eq!(ask(&format!("{keyed}Authorization: Bearer {admin}\r\n")).await.0, 200);
    tickr.stop().await;
}

/// Return the headers that nginx adds with this configuration to a request for this host. Without a line about `Host` it
/// names the target of `proxy_pass`.
fn headers_of_nginx(configuration: &str, host: &str) -> String {
    let values = |directive: &'static str| {
        configuration.lines().filter_map(move |line| line.trim().strip_prefix(directive)?.strip_suffix(';'))
    };
    let target = values("proxy_pass http://").next().unwrap().to_owned();
    let (name, _) = host.split_once(':').unwrap_or((host, ""));
    let mut headers = BTreeMap::from([("Host", target)]);
    for (header, value) in values("proxy_set_header ").filter_map(|line| line.split_once(' ')) {
        let value = match value {
            "\"\"" => continue,
            "$host" => name,
            "$proxy_add_x_forwarded_for" => "192.0.2.1",
            other => panic!("nginx would set {header} to {other}"),
        };
        headers.insert(header, value.to_owned());
    }
    headers.into_iter().map(|(header, value)| format!("{header}: {value}\r\n")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_in_front_needs_an_api_key_and_nothing_else() {
    let nginx = document("docs/OPERATIONS.md").block("nginx");
    for line in [
        "proxy_http_version 1.1;",
        "proxy_buffering off;",
        "proxy_request_buffering off;",
        "proxy_read_timeout 90s;",
        "client_max_body_size 0;",
    ] {
        assert!(nginx.lines().any(|one| one.trim() == line), "{line}");
    }
    let tickr = TestApp::start().await;
    // A client may ask the proxy for any host, such as a name of the machine on which both run.
    let get = "GET /v1/stats HTTP/1.1\r\nConnection: close\r\n";
    for asked_for in ["tickr.example.com", "localhost", "127.0.0.1:7070"] {
        let (status, answer) = raw(&tickr, &format!("{get}{}\r\n", headers_of_nginx(&nginx, asked_for))).await;
        assert_eq!(status, 403, "the API is open, and a client asks for {asked_for}: {answer}");
    }
    let added = headers_of_nginx(&nginx, "tickr.example.com");
    let through = async |method: &str, path: &str, headers: &str, body: &str| {
        let length = format!("Content-Length: {}\r\nConnection: close\r\n", body.len());
        raw(&tickr, &format!("{method} {path} HTTP/1.1\r\n{added}{headers}{length}\r\n{body}")).await
    };
    let admin = make_api_key(&tickr.url(""), "", "ops", json!({"scope": "admin"})).await;
    let key = format!("Authorization: Bearer {admin}\r\n");
    let typed = format!("{key}Content-Type: application/json\r\n");
    assert_eq!(through("GET", "/v1/stats", &key, "").await.0, 200);
    assert_eq!(through("GET", "/", "", "").await.0, 200, "the pages need no API key");
    let (status, made) = through("POST", "/v1/jobs", &typed, r#"{"kind": "noop", "delay_ms": 200}"#).await;
    assert_eq!(status, 201, "{made}");
    let (_, body) = made.split_once("\r\n\r\n").unwrap();
    let job: Value = serde_json::from_str(body).unwrap();
    let (status, events) = through("GET", &format!("/v1/jobs/{}/events", job["id"].as_str().unwrap()), &key, "").await;
    assert_eq!(status, 200);
    assert!(
        events.to_ascii_lowercase().contains("x-accel-buffering: no\r\n") && events.contains("event: end"),
        "{events}"
    );
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_for_some_kinds_enqueues_no_others() {
    let tickr = TestApp::start().await;
    let url = tickr.url("");
    let admin = make_api_key(&url, "", "ops", json!({"scope": "admin"})).await;
    let shop = make_api_key(&url, &admin, "shop", json!({"scope": "enqueue", "kinds": ["noop", "http", "noop"]})).await;
    let (noop, email) = (json!({"kind": "noop"}), json!({"kind": "email", "payload": {"to": "a@example.com"}}));
    assert_eq!(post(&url, "/v1/jobs", &shop, noop.clone()).await.status, 201);
    let refused = post(&url, "/v1/jobs", &shop, email.clone()).await;
    assert_eq!((refused.status, refused.code(), refused.pointers()), (403, "forbidden", vec!["/kind"]));
    assert!(refused.body["errors"][0]["detail"].as_str().unwrap().contains("http, noop"), "{:#}", refused.body);
    // Unknown kinds are refused in the same way, so the client learns nothing about the kinds that exist.
    assert_eq!(post(&url, "/v1/jobs", &shop, json!({"kind": "nowhere"})).await.status, 403);

    let batch = post(&url, "/v1/jobs/batch", &shop, json!({"jobs": [noop, {"kind": ""}, email]})).await;
    assert_eq!(
        (batch.status, batch.code(), batch.pointers()),
        (403, "forbidden", vec!["/jobs/1/kind", "/jobs/2/kind"])
    );
    let lines = import(&url, "?on_error=continue", &shop, &[noop.clone(), email.clone(), noop.clone()]).await;
    let codes: Vec<_> = lines[..3].iter().map(|line| line["problem"]["code"].as_str()).collect();
    assert_eq!(codes, [None, Some("forbidden"), None]);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs WHERE kind <> 'noop'").await, 0);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 3);
    assert_ne!(post(&url, "/v1/jobs", &admin, email).await.status, 403);

    // Limits on kinds are for producers only, and errors name their field.
    for (key, pointers) in [
        (json!({"scope": "read", "kinds": ["noop"]}), vec!["/kinds"]),
        (json!({"scope": "admin", "producer": "shop"}), vec!["/producer"]),
        (json!({"scope": "enqueue", "kinds": []}), vec!["/kinds"]),
        (json!({"scope": "enqueue", "kinds": ["noop", "No"], "producer": "a b"}), vec!["/kinds/1", "/producer"]),
    ] {
        let wrong = call(&url, Method::PUT, "/v1/api-keys/x", &admin, Some(key.clone())).await;
        assert_eq!((wrong.status, wrong.code(), wrong.pointers()), (422, "invalid_request", pointers), "{key}");
    }

    // The command line creates such API keys, and shows them.
    let run = async |args: &[&str]| {
        let mut command = command(&program(), tickr.dir.path(), args);
        command.env("TICKR_URL", &url).env("TICKR_TOKEN", &admin);
        command.env("TICKR_MYSQL_URL", tickr.config.mysql_url().unwrap().expose());
        outcome(command).await
    };
    for (name, more) in [("cli", None), ("store", Some("--in-store"))] {
        let mut args =
            vec!["api-keys", "create", name, "--scope", "enqueue", "--kinds", "http,report", "--producer", "shop"];
        args.extend(more);
        let (code, out, err) = run(&args).await;
        assert_eq!(code, 0, "{err}");
        knows(&url, out.trim(), 200).await;
        assert_eq!(post(&url, "/v1/jobs", out.trim(), noop.clone()).await.status, 403);
        let keys = get(&url, "/v1/api-keys", &admin).await.body;
        let made = keys["data"].as_array().unwrap().iter().find(|key| key["name"] == name).unwrap();
        assert_eq!((&made["kinds"], &made["producer"]), (&json!(["http", "report"]), &json!("shop")));
    }
    let (_, list, _) = run(&["api-keys", "list"]).await;
    assert!(list.contains("KINDS") && list.contains("http,report"), "{list}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_body_takes_no_more_room_than_a_page() {
    let tickr = TestApp::start_with(|config: &mut Config| config.body_limit_bytes = 1 << 20, Registry::new()).await;
    let many = |one: Value, count: usize| vec![one; count];
    for (what, job) in [
        ("recipients", json!({"kind": "email", "payload": {"to": many(json!("x"), 6_000), "subject": "", "text": ""}})),
        (
            "attachments",
            json!({"kind": "email", "payload":
            {"to": "a@b.example", "subject": "", "text": "", "attachments": many(json!({}), 8_000)}}),
        ),
        (
            "a long name",
            json!({"kind": "email", "payload":
            {"to": "a@b.example", "subject": "", "text": "", "headers": {"x".repeat(100_000): "1"}}}),
        ),
        ("tags", json!({"kind": "noop", "tags": many(json!(" "), 10)})),
    ] {
        for (path, body) in [("/v1/jobs", job.clone()), ("/v1/jobs/batch", json!({"jobs": [job.clone(), job]}))] {
            if body.to_string().len() > 1 << 20 {
                continue;
            }
            let refused = tickr.post(path, body).await;
            assert_eq!(refused.status, 422, "{what}");
            let (size, errors) = (refused.body.to_string().len(), refused.body["errors"].as_array().unwrap());
            assert!(size < 64 << 10, "{what}: {size} bytes");
            if errors.len() > 50 {
                let last = errors[50]["detail"].as_str().unwrap();
                assert!(errors.len() == 51 && last.ends_with("more errors are not listed"), "{what}: {last}");
            }
        }
    }
    let thousand = json!({"jobs": many(json!({"kind": "x"}), 1_000)});
    let refused = tickr.post("/v1/jobs/batch", thousand).await;
    assert_eq!(refused.body["errors"][50]["detail"], "950 more errors are not listed");
    tickr.stop().await;
}

/// A job that ends with the text of its payload: as its result, or as the error of its attempt.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Echo {
    text: String,
    fails: bool,
}

impl Kind for Echo {
    const NAME: &'static str = "echo";
}

fn echoes() -> Registry {
    let mut registry = Registry::new();
    registry.register(|echo: Echo, _: Context| async move {
        if echo.fails { Err(Failure::reject(echo.text)) } else { Output::json(&echo.text) }
    });
    registry
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_command_prints_steers_no_terminal() {
    let tickr = TestApp::start_with(|_| {}, echoes()).await;
    let steering = "a\u{9b}2Jb\u{85}\u{202e}c\u{2066}d\u{2069}\u{1b}]0;x\u{7}";
    let steers = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}')
    };
    let job = json!({"kind": "noop", "payload": {"text": steering, steering: 1}, "unique_key": steering, "delay_ms": 3_600_000});
    let id = tickr.enqueue(job).await;
    let pause = http().post(tickr.url("/v1/queues/mail/pause")).json(&json!({"reason": steering}));
    assert!(answer(pause.header("Tickr-Actor", "ada@\u{202e}x".as_bytes())).await.status < 300);
    let stored = tickr.count("SELECT COUNT(*) FROM audit WHERE actor = 'anyone (ada@x)'").await;
    assert_eq!(stored, 1, "the audit log has the name without the control character");
    let echo = |fails: bool| json!({"kind": "echo", "payload": {"text": steering, "fails": fails}, "max_attempts": 1});
    let (done, failed) = (tickr.enqueue(echo(false)).await, tickr.enqueue(echo(true)).await);
    assert_eq!(tickr.until(done, State::Completed).await["result"], steering, "the API has the result as it is");
    let error = tickr.until(failed, State::Failed).await["attempts"][0]["error"].clone();
    assert!(error.as_str().unwrap().contains('\u{202e}'), "the API has the error as it is: {error}");
    let (done, failed) = (done.to_string(), failed.to_string());
    for args in [
        vec!["jobs", "show", &done],
        vec!["jobs", "show", &failed],
        vec!["jobs", "list", "--state", "failed"],
        vec!["jobs", "watch", &done],
        vec!["jobs", "watch", &failed],
        vec!["dead-letters", "list"],
        vec!["dead-letters", "show", &failed],
        vec!["dead-letters", "groups"],
        vec!["top", "--once"],
        vec!["jobs", "show", &id.to_string()],
        vec!["jobs", "show", &id.to_string(), "--json"],
        vec!["jobs", "list"],
        vec!["jobs", "list", "--json"],
        vec!["jobs", "list", "--query", steering],
        vec!["queues", "show", "mail"],
        vec!["queues", "show", "mail", "--json"],
        vec!["queues", "list"],
    ] {
        let mut command = command(&program(), tickr.dir.path(), &args);
        command.env("TICKR_URL", tickr.url(""));
        let (_, out, err) = outcome(command).await;
        for said in [&out, &err] {
            assert!(!said.contains(steers), "{args:?}: {said:?}");
        }
        if args == ["jobs", "show", &done] || args == ["jobs", "show", &failed] {
            let word = if args[2] == done { "result" } else { "#1" };
            assert!(out.contains(word) && out.contains("]0;x"), "{args:?}: {out}");
        }
        if args.contains(&"--json") && args.contains(&"show") && args.contains(&"jobs") {
            let shown: Value = serde_json::from_str(&out).unwrap();
            assert_eq!(shown["payload"]["text"], steering, "JSON has the same text in another encoding");
        }
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_are_tried_in_vain_are_slowed_and_good_ones_are_not() {
    let tickr = TestApp::start().await;
    let url = tickr.url("");
    let admin = make_api_key(&url, "", "ops", json!({"scope": "admin"})).await;
    let mut took = Vec::new();
    for n in 0..10 {
        let began = Instant::now();
        assert_eq!(get(&url, "/v1/stats", &format!("tickr_guess-{n}")).await.status, 401);
        took.push(began.elapsed());
    }
    // Five are answered at once, and each of the others a tenth of a second later than the one before.
    assert!(took[9] >= Duration::from_millis(500), "{took:?}");
    assert!(took.iter().all(|took| *took < DEADLINE), "{took:?}");
    let fast = async |key: &str, status: u16| {
        let mut best = DEADLINE;
        for _ in 0..5 {
            let began = Instant::now();
            assert_eq!(get(&url, "/v1/whoami", key).await.status, status);
            best = best.min(began.elapsed());
        }
        best
    };
    // A valid API key from the same address is not slowed down, and neither is a client that sends none.
    let (good, none) = (fast(&admin, 200).await, fast("", 401).await);
    assert!(good < Duration::from_millis(400) && none < Duration::from_millis(400), "{good:?} {none:?}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_tried_in_vain_is_logged_with_its_address() {
    let tickr = TestApp::start().await;
    let runner =
        Runner::start(&tickr, &[("TICKR_API_TOKENS", "a-token-of-this-test-0123456789"), ("TICKR_QUEUES", "none")]);
    let guess = "tickr_guess-of-this-test";
    assert_eq!(get(&runner.base().await, "/v1/stats", guess).await.status, 401);
    let said = "refused an API key that is unknown or revoked";
    runner.until_log(said).await;
    let log = runner.log();
    let line = log.lines().find(|line| line.contains(said)).unwrap();
    assert!(line.contains("WARN") && line.contains("127.0.0.1") && line.contains("tries=1"), "{line}");
    assert!(!log.contains(guess), "the log has the key itself: {log}");
    drop(runner);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mails_name_only_senders_and_recipients_that_the_configuration_allows() {
    let limited = |config: &mut Config| {
        config.email_senders = vec!["localhost".into(), "shop.example".into()];
        config.email_recipients = vec!["shop.example".into(), "ann@example.com".into()];
    };
    let tickr = TestApp::start_with(limited, Registry::new()).await;
    let send = async |changes: Value| {
        let mut mail = json!({"to": "ann@example.com", "subject": "hi", "text": "hello"});
        for (name, value) in changes.as_object().unwrap() {
            mail[name] = value.clone();
        }
        tickr.post("/v1/jobs", json!({"kind": "email", "payload": mail})).await
    };
    for (changes, pointer) in [
        (json!({"from": "ceo@victim.example"}), "/payload/from"),
        (json!({"to": ["ann@example.com", "eve@evil.example"]}), "/payload/to/1"),
        (json!({"bcc": "bob@example.com"}), "/payload/bcc"),
    ] {
        let refused = send(changes).await;
        assert_eq!((refused.status, refused.pointers()), (422, vec![pointer]));
        let detail = refused.body["errors"][0]["detail"].as_str().unwrap();
        assert!(detail.contains("TICKR_EMAIL_"), "{detail}");
    }
    let good = send(json!({"from": "Jobs <jobs@shop.example>", "cc": "x@shop.example"})).await;
    assert_eq!(good.status, 201, "{:#}", good.body);
    tickr.until(id_of(&good).parse().unwrap(), State::Completed).await;

    // A job that was accepted before the limits existed is subject to them when it runs.
    let id = id_of(
        &tickr
            .post(
                "/v1/jobs",
                json!({"kind": "email", "delay_ms": 3_600_000,
        "payload": {"to": "ann@example.com", "subject": "hi", "text": "hello"}}),
            )
            .await,
    );
    tickr
        .sql(format!(
            "UPDATE jobs SET payload = REPLACE(payload, 'ann@example.com', 'eve@evil.example') WHERE id = UNHEX('{}')",
            id.replace('-', "")
        ))
        .await;
    tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await;
    let failed = tickr.until(id.parse().unwrap(), State::Failed).await;
    assert!(failed["last_error"].as_str().unwrap().contains("TICKR_EMAIL_RECIPIENTS"), "{failed:#}");
    tickr.stop().await;
}

#[test]
fn a_start_warns_of_mysql_on_other_machines_whose_certificate_is_not_checked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tickr.toml");
    let warned = |host: &str, query: &str| {
        let url = |user: &str| format!("mysql_url = \"mysql://{user}:CANARY@{host}/{user}{query}\"\n");
        let text = format!("{}[reports]\n{}[outboxes.shop]\n{}", url("tickr"), url("reader"), url("shop"));
        std::fs::write(&file, text).unwrap();
        let loaded = Config::load(&Flags::default(), std::iter::empty(), Some(file.clone())).unwrap();
        for warning in &loaded.warnings {
            let said = warning.to_string();
            assert!(said.contains("ssl-mode=VERIFY_IDENTITY") && !said.contains("CANARY"), "{said}");
        }
        loaded.warnings.into_iter().map(|warning| warning.setting).collect::<Vec<_>>()
    };
    let all = ["mysql_url", "reports.mysql_url", "outboxes.shop.mysql_url"];
    assert_eq!(warned("db.internal", ""), all);
    assert_eq!(warned("10.0.0.7:3306", "?ssl-mode=REQUIRED"), all);
    for (host, query) in [("db.internal", "?ssl-mode=VERIFY_IDENTITY"), ("localhost", ""), ("127.0.0.1:3306", "")] {
        assert!(warned(host, query).is_empty(), "{host}{query}");
    }
}

/// The URL of a receiver may have a token in its query or in its path.
#[test]
fn debug_of_the_configuration_shows_no_secret_in_the_url_of_a_receiver() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tickr.toml");
    let text = "mysql_url = \"mysql://u@h/tickr\"\n[alerts]\nurl = \"https://a.example/hook?token=CANARY\"\n\
                dead_letters = 1\n[compat.delayed]\nurl = \"https://b.example/CANARY/in?token=CANARY\"\n";
    std::fs::write(&file, text).unwrap();
    let config = Config::load(&Flags::default(), std::iter::empty(), Some(file)).unwrap().config;
    let (alerts, delayed) = (config.alerts.as_ref().unwrap(), config.compat.delayed.as_ref().unwrap());
    assert!(alerts.url.contains("CANARY") && delayed.url.contains("CANARY"));
    for shown in [format!("{config:?}"), format!("{alerts:?}"), format!("{delayed:?}")] {
        assert!(shown.contains("https://***") && !shown.contains("CANARY"), "{shown}");
    }
}
