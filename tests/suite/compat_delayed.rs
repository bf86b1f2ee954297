//! Delayed messages: `POST /schedule` and `DELETE /cancel/{id}`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::Row;
use tickr::app::App;
use tickr::config::{Config, DelayedMessages};
use tickr::handlers::Registry;
use tickr::job::{JobId, State};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::program::{self, command, on_servers, outcome};
use crate::support::sink::Sink;
use crate::support::{TestApp, database, drop_database, eventually, http, make_api_key, servers};

/// An answer of an interface that the OpenAPI document does not have.
struct Answer {
    status: u16,
    media: String,
    body: Value,
}

impl Answer {
    /// Return the id of the scheduled message.
    fn message_id(&self) -> String {
        assert_eq!(self.status, 200, "{:#}", self.body);
        self.body["message_id"].as_str().unwrap().to_owned()
    }

    /// Return the status and the error of a problem that clients of this interface understand.
    fn refusal(&self) -> (u16, &str) {
        assert_eq!((self.media.as_str(), &self.body["success"]), ("application/problem+json", &json!(false)));
        assert_eq!(self.body["status"], self.status);
        (self.status, self.body["error"].as_str().unwrap())
    }
}

async fn call(app: &App, method: Method, path: &str, body: Option<&str>) -> Answer {
    let mut request = http().request(method, format!("http://{}{path}", app.addr()));
    if let Some(body) = body {
        request = request.body(body.to_owned());
    }
    read(request).await
}

async fn read(request: reqwest::RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let media = response.headers().get("content-type").map_or("", |value| value.to_str().unwrap()).to_owned();
    Answer { status: response.status().as_u16(), media, body: response.json().await.unwrap() }
}

async fn schedule(app: &App, content: Value, delay_seconds: u64) -> Answer {
    let body = json!({"content": content, "delay_seconds": delay_seconds}).to_string();
    call(app, Method::POST, "/schedule", Some(&body)).await
}

async fn cancel(app: &App, id: &str) -> Answer {
    call(app, Method::DELETE, &format!("/cancel/{id}"), None).await
}

fn to(sink: &Sink) -> impl Fn(&mut Config) {
    let url = sink.url();
    move |config| config.compat.delayed = Some(DelayedMessages { url: url.clone() })
}

fn ok(_: usize, _: &Value) -> (u16, String) {
    (200, "thanks".to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_message_arrives_once_on_two_runners_and_never_before_its_time() {
    let late = arrivals(300, Duration::ZERO).await;
    // A machine that runs other tests beside this one is slow with many of them. A runner that waits for a poll of some
    // seconds is slow with all.
    assert!(late[late.len() / 10] < TimeDelta::seconds(4), "nearly all of them are late: {late:?}");
}

/// `cargo test --test suite -- --ignored compat_`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for itself"]
async fn whole_1000_messages_arrive_within_50_milliseconds() {
    let late = arrivals(1_000, Duration::from_millis(20)).await;
    let (median, p99, last) = (late[late.len() / 2], late[late.len() * 99 / 100], late[late.len() - 1]);
    println!("1,000 messages: {median} late in the median, p99 {p99}, the latest {last}");
    assert!(last <= TimeDelta::milliseconds(50), "{last}");
}

/// Schedule messages, one after each pause, with delays of up to two seconds. Return how late they were, shortest first.
async fn arrivals(count: u64, pause: Duration) -> Vec<TimeDelta> {
    let sink = Sink::start(ok).await;
    let tickr = TestApp::start_with(to(&sink), Registry::new()).await;
    let other = tickr.another_with(to(&sink), Registry::new()).await;
    let began = Instant::now();
    let ask = async |n: u64| {
        tokio::time::sleep_until(began + pause * u32::try_from(n).unwrap()).await;
        let asked = Utc::now();
        schedule(if n.is_multiple_of(2) { &tickr.app } else { &other }, json!({"n": n}), n % 3).await.message_id();
        asked
    };
    let asked: Vec<DateTime<Utc>> = join_all((0..count).map(ask)).await;
    tickr.until_idle().await;
    let mut due = BTreeMap::new();
    let sql = "SELECT job_id, execute_at FROM attempts WHERE number = 1";
    for row in sqlx::query(sql).fetch_all(&mut tickr.mysql().await).await.unwrap() {
        due.insert(row.get::<uuid::Uuid, _>("job_id"), row.get::<chrono::NaiveDateTime, _>("execute_at").and_utc());
    }
    let calls = sink.calls();
    assert_eq!(calls.len() as u64, count);
    let arrived: BTreeMap<u64, DateTime<Utc>> =
        calls.iter().map(|call| (call.body["content"]["n"].as_u64().unwrap(), call.at)).collect();
    assert_eq!(arrived.len() as u64, count, "each once");
    for (n, at) in arrived {
        let delay = TimeDelta::seconds(i64::try_from(n % 3).unwrap());
        let asked = asked[usize::try_from(n).unwrap()];
        assert!(at >= asked + delay, "message {n} of {asked} arrived at {at}");
    }
    let late = calls.iter().map(|call| {
        let job: JobId = call.headers["tickr-job-id"].to_str().unwrap().parse().unwrap();
        call.at - due[&job.uuid()]
    });
    let mut late: Vec<TimeDelta> = late.collect();
    late.sort_unstable();
    // Both times are of one machine.
    assert!(late[0] >= TimeDelta::zero(), "a message arrived before it was due: {}", late[0]);
    assert!(calls.iter().all(|call| call.body.as_object().unwrap().len() == 1), "the body is the content alone");
    assert!(calls.iter().all(|call| call.headers.contains_key("tickr-job-id")));
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
    late
}

/// The delay between the end of the newest attempt and the next one, in milliseconds.
async fn delay_ms(tickr: &TestApp, id: JobId) -> i64 {
    let sql = "SELECT TIMESTAMPDIFF(MICROSECOND, a.finished_at, o.execute_at) DIV 1000 AS ms FROM owed o \
               JOIN attempts a ON a.job_id = o.id AND a.number = o.attempt WHERE o.id = ?";
    sqlx::query(sql).bind(id.uuid()).fetch_one(&mut tickr.mysql().await).await.unwrap().get("ms")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_that_fails_with_5xx_is_repeated_after_1_2_4_8_and_16_seconds() {
    for last in [200, 503] {
        let sink = Sink::start(move |number, _| (if number < 5 { 500 } else { last }, String::new())).await;
        let tickr = TestApp::start_with(to(&sink), Registry::new()).await;
        let message = schedule(&tickr.app, json!("Happy Birthday!"), 0).await.message_id();
        let id: JobId = message.parse().unwrap();
        for (attempt, expected) in [(1, 1_000), (2, 2_000), (3, 4_000), (4, 8_000), (5, 16_000)] {
            tickr.until_attempts(id, attempt).await;
            assert_eq!(delay_ms(&tickr, id).await, expected, "after attempt {attempt}");
            assert_eq!(tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await.status, 200);
        }
        tickr.until(id, if last == 200 { State::Completed } else { State::Failed }).await;
        assert_eq!(sink.calls().len(), 6);
        assert!(sink.calls().iter().all(|call| call.body == json!({"content": "Happy Birthday!"})));
        let said = if last == 200 { "Already sent" } else { "Failed" };
        assert_eq!(cancel(&tickr.app, &message).await.refusal(), (409, said));
        tickr.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_that_fails_with_4xx_is_not_repeated() {
    let sink = Sink::start(|_, _| (400, "no such user".to_owned())).await;
    let tickr = TestApp::start_with(to(&sink), Registry::new()).await;
    let message = schedule(&tickr.app, json!(7), 0).await.message_id();
    let job = tickr.until(message.parse().unwrap(), State::Failed).await;
    assert_eq!(job["attempts"][0]["verdict"], "rejected", "{job:#}");
    assert_eq!(sink.calls().len(), 1);
    assert_eq!(cancel(&tickr.app, &message).await.refusal(), (409, "Failed"));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_and_a_delivery_at_the_same_moment_never_both_win() {
    race(100, 3).await;
}

/// `cargo test --test suite -- --ignored compat_`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute; the suite has a smaller one"]
async fn ten_thousand_cancels_and_deliveries_at_the_same_moment_never_both_win() {
    race(250, 40).await;
}

/// Let cancels and deliveries of `lanes` times `each` messages race.
async fn race(lanes: u64, each: u64) {
    let sink = Sink::start(ok).await;
    let tickr = TestApp::start_with(to(&sink), Registry::new()).await;
    let other = tickr.another_with(to(&sink), Registry::new()).await;
    let runners = [&tickr.app, &other];
    let try_one = async |n: u64| {
        let asked = Instant::now();
        let message = schedule(runners[rand::random_range(0..2)], json!(n), 1).await.message_id();
        // The moment at which its delivery begins, or a moment before or after.
        tokio::time::sleep_until(asked + Duration::from_micros(rand::random_range(980_000..1_040_000))).await;
        let answer = eventually("an answer that is not to come back", || async {
            let answer = cancel(runners[rand::random_range(0..2)], &message).await;
            (![429, 503].contains(&answer.status)).then_some(answer)
        });
        let answer = answer.await;
        let cancelled = answer.status == 200;
        if !cancelled {
            assert!(matches!(answer.refusal(), (409, "Being sent" | "Already sent")), "{:#}", answer.body);
        }
        (n, cancelled)
    };
    let lanes = (0..lanes).map(async |lane| {
        let mut tries = Vec::new();
        for n in 0..each {
            tries.push(try_one(lane * each + n).await);
        }
        tries
    });
    let tries = join_all(lanes).await.concat();
    tickr.until_idle().await;
    let mut calls = BTreeMap::<u64, usize>::new();
    for call in sink.calls() {
        assert!(call.answered.is_some(), "a delivery under way is not cut off");
        *calls.entry(call.body["content"].as_u64().unwrap()).or_default() += 1;
    }
    let cancelled = tries.iter().filter(|(_, cancelled)| *cancelled).count();
    println!("{cancelled} of {} messages were cancelled", tries.len());
    assert!(cancelled > 0 && cancelled < tries.len(), "both win sometimes");
    for (n, cancelled) in tries {
        assert_eq!(calls.get(&n).copied().unwrap_or(0), usize::from(!cancelled), "message {n}, cancelled: {cancelled}");
    }
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_can_be_cancelled_twice_but_not_while_it_is_sent() {
    let sink = Sink::start(ok).await;
    let tickr = TestApp::start_with(to(&sink), Registry::new()).await;
    let waiting = schedule(&tickr.app, json!("x"), 7_200).await.message_id();
    for _ in 0..2 {
        let answer = cancel(&tickr.app, &waiting).await;
        assert_eq!((answer.status, &answer.body), (200, &json!({"success": true})));
    }
    // A message that waits for its next attempt can be cancelled as well.
    tickr.until(waiting.parse().unwrap(), State::Cancelled).await;

    sink.holds(true);
    let sent = schedule(&tickr.app, json!("y"), 0).await.message_id();
    eventually("the delivery has begun", || async { (!sink.calls().is_empty()).then_some(()) }).await;
    assert_eq!(cancel(&tickr.app, &sent).await.refusal(), (409, "Being sent"));
    sink.holds(false);
    tickr.until(sent.parse().unwrap(), State::Completed).await;
    assert_eq!(cancel(&tickr.app, &sent).await.refusal(), (409, "Already sent"));
    assert_eq!(sink.calls().len(), 1);
    assert!(sink.calls()[0].answered.is_some());

    // Only messages are cancelled here.
    let job = tickr.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await;
    for unknown in ["msg-123", "0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a", &job.to_string()] {
        assert_eq!(
            cancel(&tickr.app, unknown).await.refusal(),
            (404, format!("there is no message {unknown}").as_str())
        );
    }
    assert_eq!(tickr.post(&format!("/v1/jobs/{job}/cancel"), json!({})).await.status, 200);
    tickr.stop().await;
}

/// Start a service that takes each message, and hangs up without an answer. Return its URL, and the count of messages.
async fn hangs_up() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/in", listener.local_addr().unwrap());
    let taken = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&taken);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (mut text, mut piece) = (Vec::new(), [0; 4096]);
            while let Ok(read @ 1..) = stream.read(&mut piece).await {
                text.extend_from_slice(&piece[..read]);
                if text.ends_with(br#"{"content":"x"}"#) {
                    count.fetch_add(1, Ordering::SeqCst);
                    break;
                }
            }
        }
    });
    (url, taken)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_service_hung_up_can_be_cancelled_although_it_arrived() {
    let (url, taken) = hangs_up().await;
    let to_it = move |config: &mut Config| config.compat.delayed = Some(DelayedMessages { url: url.clone() });
    let tickr = TestApp::start_with(to_it, Registry::new()).await;
    let message = schedule(&tickr.app, json!("x"), 0).await.message_id();
    let id: JobId = message.parse().unwrap();
    for attempt in 1..5 {
        tickr.until_attempts(id, attempt).await;
        // Refused if the short pause has ended by itself.
        tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await;
    }
    // The next pause has 16 seconds, in which also a slow machine sends the cancel.
    tickr.until_attempts(id, 5).await;
    assert_eq!(taken.load(Ordering::SeqCst), 5, "each delivery arrived");
    let answer = cancel(&tickr.app, &message).await;
    assert_eq!((answer.status, &answer.body), (200, &json!({"success": true})));
    tickr.until(id, State::Cancelled).await;
    tickr.until_idle().await;
    assert_eq!(taken.load(Ordering::SeqCst), 5, "no call begins after the cancel");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_not_valid_are_refused_with_400_and_the_fields_of_both_kinds_of_clients() {
    let sink = Sink::start(ok).await;
    let tickr = TestApp::start_with(to(&sink), Registry::new()).await;
    for (body, pointer) in [
        ("", None),
        ("{", None),
        ("[]", Some("")),
        ("{}", Some("/content")),
        (r#"{"content": "x"}"#, Some("/delay_seconds")),
        (r#"{"delay_seconds": 1}"#, Some("/content")),
        (r#"{"content": "x", "delay_seconds": -1}"#, Some("/delay_seconds")),
        (r#"{"content": "x", "delay_seconds": "soon"}"#, Some("/delay_seconds")),
        (r#"{"content": "x", "delay_seconds": 31622401}"#, Some("/delay_seconds")),
        (r#"{"content": "x", "delay_seconds": 1, "to": "ada"}"#, Some("/to")),
    ] {
        let answer = call(&tickr.app, Method::POST, "/schedule", Some(body)).await;
        let (status, error) = answer.refusal();
        assert!(status == 400 && !error.is_empty(), "{body}: {:#}", answer.body);
        if let Some(pointer) = pointer {
            let pointers: Vec<&str> =
                answer.body["errors"].as_array().unwrap().iter().map(|e| e["pointer"].as_str().unwrap()).collect();
            assert!(pointers.contains(&pointer), "{body}: {:#}", answer.body);
        }
    }
    let large = json!({"content": "x".repeat(2 << 20), "delay_seconds": 0}).to_string();
    let answer = call(&tickr.app, Method::POST, "/schedule", Some(&large)).await;
    assert_eq!((answer.refusal().0, &answer.body["code"]), (400, &json!("too_large")));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 0);
    let form = http().post(tickr.url("/schedule")).header("content-type", "application/x-www-form-urlencoded");
    let longest = read(form.body(r#"{"content": null, "delay_seconds": 31622400}"#)).await.message_id();
    assert_eq!(cancel(&tickr.app, &longest).await.status, 200);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_scheduled_twice_with_one_idempotency_key_is_one_message() {
    let sink = Sink::start(ok).await;
    let tickr = TestApp::start_with(to(&sink), Registry::new()).await;
    let once = async |body: &str| {
        let request = http().post(tickr.url("/schedule")).header("idempotency-key", "birthday-42");
        read(request.body(body.to_owned())).await
    };
    let first = once(r#"{"content": "x", "delay_seconds": 0}"#).await.message_id();
    assert_eq!(once(r#"{"content": "x", "delay_seconds": 0}"#).await.message_id(), first);
    let other = once(r#"{"content": "y", "delay_seconds": 0}"#).await;
    assert_eq!((other.refusal().0, &other.body["code"]), (400, &json!("idempotency_conflict")));
    tickr.until_idle().await;
    assert_eq!(sink.calls().len(), 1);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_need_an_api_key_that_may_enqueue_and_the_setting() {
    let sink = Sink::start(ok).await;
    let tickr = TestApp::start_with(to(&sink), Registry::new()).await;
    let admin = make_api_key(&tickr.url(""), "", "admin", json!({"scope": "admin"})).await;
    let make = async |name: &str, key: Value| make_api_key(&tickr.url(""), &admin, name, key).await;
    let (reader, producer) =
        (make("reader", json!({"scope": "read"})).await, make("shop", json!({"scope": "enqueue"})).await);
    let mailer = make("mailer", json!({"scope": "enqueue", "kinds": ["email"]})).await;
    let asked = async |key: &str, method: Method, path: &str| {
        let request = tickr.with_key(key, method.clone(), path);
        let body = r#"{"content": "x", "delay_seconds": 3600}"#;
        read(if method == Method::POST { request.body(body) } else { request }).await
    };
    // Clients of this interface understand each of these refusals, also one that comes before the handler.
    assert_eq!(asked("wrong", Method::POST, "/schedule").await.refusal().0, 401);
    assert_eq!(asked(&reader, Method::POST, "/schedule").await.refusal().0, 403);
    assert_eq!(asked(&mailer, Method::POST, "/schedule").await.refusal().0, 403);
    assert_eq!(asked(&admin, Method::PUT, "/schedule").await.refusal().0, 405);
    let message = asked(&producer, Method::POST, "/schedule").await.message_id();
    assert_eq!(asked(&reader, Method::DELETE, &format!("/cancel/{message}")).await.refusal().0, 403);
    assert_eq!(asked(&admin, Method::GET, &format!("/cancel/{message}")).await.refusal().0, 405);
    assert_eq!(asked(&producer, Method::DELETE, &format!("/cancel/{message}")).await.status, 200);
    tickr.stop().await;

    let without = TestApp::start().await;
    assert_eq!(schedule(&without.app, json!("x"), 0).await.status, 404);
    without.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_cannot_be_called_is_named_at_the_start() {
    let (name, mysql) = database().await;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tickr.toml"), "[compat.delayed]\nurl = \"http://127.0.0.1:9/in\"\n").unwrap();
    let mut serve = command(&program::tickr(), dir.path(), &["serve", "--http-addr", "127.0.0.1:0"]);
    on_servers(&mut serve, &mysql, &servers().redis_url(), &name);
    let (code, _, said) = outcome(serve).await;
    assert_eq!(code, 2, "{said}");
    for part in ["the url of [compat.delayed] cannot be called", "callback_allow"] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    drop_database(&mysql, &name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_hold_behind_a_pause_a_drain_a_limit_and_while_mysql_stands_still() {
    let sink = Sink::start(ok).await;
    let patient = |config: &mut Config| {
        to(&sink)(config);
        // After the standstill a busy machine needs some seconds until the runner has written its verdict.
        config.lease = Duration::from_secs(10);
    };
    let tickr = TestApp::start_alone(|_| {}, patient).await;
    let ask = async |path: String| {
        let answer = tickr.post(&path, json!({})).await;
        assert_eq!(answer.status, 200, "{:#}", answer.body);
    };
    assert_eq!(tickr.patch("/v1/queues/default", json!({"concurrency": 1})).await.status, 200);
    let runner = format!("/v1/runners/{}", tickr.app.runner().as_str().replace('/', "%2F"));

    // Messages that are due but wait for a resume, and then for a runner that takes work, can be cancelled.
    ask("/v1/queues/default/pause".into()).await;
    let paused = schedule(&tickr.app, json!("paused"), 0).await.message_id();
    assert_eq!(cancel(&tickr.app, &paused).await.status, 200);
    ask(format!("{runner}/drain")).await;
    ask("/v1/queues/default/resume".into()).await;
    let drained = schedule(&tickr.app, json!("drained"), 0).await.message_id();
    assert_eq!(cancel(&tickr.app, &drained).await.status, 200);
    ask(format!("{runner}/resume")).await;

    // One message is being sent, and the next one waits behind the limit.
    sink.holds(true);
    let sent = schedule(&tickr.app, json!("sent"), 0).await.message_id();
    eventually("the delivery has begun", || async { (sink.calls().len() == 1).then_some(()) }).await;
    let behind = schedule(&tickr.app, json!("behind"), 0).await.message_id();
    let kept = schedule(&tickr.app, json!("kept"), 0).await.message_id();
    assert_eq!(cancel(&tickr.app, &behind).await.status, 200);
    assert_eq!(cancel(&tickr.app, &sent).await.refusal(), (409, "Being sent"));

    // The service answers while MySQL stands still for longer than the limits of a transaction. The delivery counts, and
    // requests are refused in the words of this interface.
    tickr.services().mysql().pause().unwrap();
    sink.holds(false);
    assert_eq!(cancel(&tickr.app, &kept).await.refusal().0, 503);
    tokio::time::sleep(Duration::from_secs(17)).await;
    tickr.services().mysql().resume().unwrap();
    for message in [&sent, &kept] {
        tickr.until(message.parse().unwrap(), State::Completed).await;
    }
    tickr.until_idle().await;
    let calls = sink.calls();
    let contents: Vec<&str> = calls.iter().map(|call| call.body["content"].as_str().unwrap()).collect();
    assert_eq!(contents, ["sent", "kept"]);
    tickr.stop().await;
}
