//! Receivers of callbacks: the host of a callback is a key of its own accord. Limits count callbacks by it, and a breaker
//! stops calls to a host that fails again and again.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::StatusCode;
use reqwest::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::Row;
use tickr::handlers::{Context, Kind, Output, Registry};
use tickr::job::State;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::{self, Answer, TestApp, eventually};

/// A receiver on loopback. It counts its calls, and how many of them it answered at the same time.
struct Receiver {
    addr: SocketAddr,
    calls: Arc<Calls>,
    serving: JoinHandle<()>,
}

struct Calls {
    /// Status of the answers.
    status: AtomicU16,
    /// Number of calls so far.
    count: AtomicUsize,
    /// Calls that are not answered yet, and the most that ever were.
    open: Mutex<(usize, usize)>,
    /// Moments of the calls.
    at: Mutex<Vec<Instant>>,
    /// Calls are answered while this is true.
    answering: watch::Sender<bool>,
}

/// A call that is not answered yet. A call that the caller gave up is over as well.
struct Open(Arc<Calls>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.lock().unwrap().0 -= 1;
    }
}

impl Receiver {
    /// Start a receiver that answers 200 after this time.
    async fn start(takes: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let calls = Arc::new(Calls {
            status: AtomicU16::new(200),
            count: AtomicUsize::new(0),
            open: Mutex::default(),
            at: Mutex::default(),
            answering: watch::Sender::new(true),
        });
        let shared = Arc::clone(&calls);
        let answer = move || {
            let calls = Arc::clone(&shared);
            async move {
                calls.count.fetch_add(1, Ordering::SeqCst);
                calls.at.lock().unwrap().push(Instant::now());
                {
                    let mut open = calls.open.lock().unwrap();
                    open.0 += 1;
                    open.1 = open.1.max(open.0);
                }
                let _open = Open(Arc::clone(&calls));
                tokio::time::sleep(takes).await;
                let _ = calls.answering.subscribe().wait_for(|answering| *answering).await;
                StatusCode::from_u16(calls.status.load(Ordering::SeqCst)).unwrap()
            }
        };
        let app = axum::Router::new().fallback(answer);
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { addr, calls, serving }
    }

    /// Answer with this status from now on.
    fn answers(&self, status: u16) {
        self.calls.status.store(status, Ordering::SeqCst);
    }

    /// Leave calls without an answer, or answer them again.
    fn hangs(&self, hangs: bool) {
        self.calls.answering.send_replace(!hangs);
    }

    fn count(&self) -> usize {
        self.calls.count.load(Ordering::SeqCst)
    }

    fn open(&self) -> usize {
        self.calls.open.lock().unwrap().0
    }

    /// Return the most calls that were open at the same time.
    fn most(&self) -> usize {
        self.calls.open.lock().unwrap().1
    }

    fn host(&self) -> String {
        self.addr.to_string()
    }

    fn callback(&self) -> Value {
        self.callback_at("127.0.0.1")
    }

    /// Return a callback to this receiver, with the host written in this way.
    fn callback_at(&self, host: &str) -> Value {
        json!({"kind": "http", "payload": {"url": format!("http://{host}:{}/in", self.addr.port())}})
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn set(tickr: &TestApp, name: &str, limit: Value) -> Answer {
    let path = format!("/v1/limits/{name}");
    let answer = support::call(&tickr.url(""), Method::PUT, &path, "", Some(limit)).await;
    assert!(matches!(answer.status, 200 | 201), "{:#}", answer.body);
    answer
}

/// Set a limit, and wait until every runner follows it.
async fn set_and_wait(tickr: &TestApp, name: &str, limit: Value) {
    set(tickr, name, limit).await;
    eventually("the limit holds", || async {
        (tickr.get(&format!("/v1/limits/{name}")).await.body["counted"] == true).then_some(())
    })
    .await;
}

/// Return the row of this host in the list of keys, or null.
async fn key_of(tickr: &TestApp, name: &str, host: &str) -> Value {
    let keys = tickr.get(&format!("/v1/limits/{name}/keys")).await;
    assert_eq!(keys.status, 200, "{:#}", keys.body);
    keys.body["data"].as_array().unwrap().iter().find(|row| row["key"] == host).cloned().unwrap_or_default()
}

const PARKED: &str = "SELECT COUNT(*) FROM limit_waits";
const NO_ROWS_LEFT: &str = "SELECT (SELECT COUNT(*) FROM limit_slots) + (SELECT COUNT(*) FROM limit_waits)";

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_for_each_host_holds_over_all_runners_however_the_host_is_written() {
    let tickr = TestApp::start_with(|config| config.workers = 16, Registry::new()).await;
    let other = tickr.another_with(|_| {}, Registry::new()).await;
    let [one, two, free] = [30, 30, 30].map(|ms| Receiver::start(Duration::from_millis(ms)));
    let (one, two, free) = tokio::join!(one, two, free);
    let own = json!({free.host(): {"concurrency": 5}});
    set_and_wait(&tickr, "per-host", json!({"kind": "http", "shared_by": "host", "concurrency": 2, "overrides": own}))
        .await;
    let ways = ["127.0.0.1", "2130706433", "0x7f.1", "0177.0.0.1", "[::ffff:127.0.0.1]", "127.0.0.1."];
    let to_one = (0..60).map(|n| one.callback_at(ways[n % ways.len()]));
    let jobs = to_one.chain((0..60).flat_map(|_| [two.callback(), free.callback()]));
    tickr.enqueue_many(jobs).await;
    tickr.until_idle().await;
    assert_eq!((one.most(), two.most(), free.most()), (2, 2, 5));
    assert_eq!((one.count(), two.count(), free.count()), (60, 60, 60));
    tickr.assert_each_ran_once(180).await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_holds_for_each_host() {
    let tickr = TestApp::start_with(|_| {}, Registry::new()).await;
    let other = tickr.another_with(|_| {}, Registry::new()).await;
    let (one, two) = tokio::join!(Receiver::start(Duration::ZERO), Receiver::start(Duration::ZERO));
    let rate = json!({"starts": 20, "period_ms": 1_000, "burst": 2});
    set_and_wait(&tickr, "per-host", json!({"shared_by": "host", "rate": rate})).await;
    let ids = tickr.enqueue_many((0..60).flat_map(|_| [one.callback(), two.callback()])).await;
    tickr.until_idle().await;
    for (first, receiver) in [(0, &one), (1, &two)] {
        let mut starts = Vec::new();
        for id in ids.iter().skip(first).step_by(2) {
            let row = sqlx::query("SELECT started_at FROM attempts WHERE job_id = ?").bind(id.uuid());
            let row = row.fetch_one(&mut tickr.mysql().await).await.unwrap();
            starts.push(row.get::<chrono::DateTime<chrono::Utc>, _>("started_at"));
        }
        starts.sort();
        let within = |from: &chrono::DateTime<chrono::Utc>| {
            starts.iter().filter(|at| **at >= *from && (**at - *from).num_milliseconds() < 1_000).count()
        };
        let most = starts.iter().map(within).max().unwrap();
        assert!(most <= 22, "{most} starts in a second");
        assert_eq!(receiver.count(), 60);
    }
    other.stop(CancellationToken::new()).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_hangs_holds_its_share_of_workers_and_delays_no_other() {
    let tickr = TestApp::start_with(|config| config.workers = 8, Registry::new()).await;
    let (slow, fast) = tokio::join!(Receiver::start(Duration::ZERO), Receiver::start(Duration::from_millis(5)));
    set_and_wait(&tickr, "per-host", json!({"kind": "http", "shared_by": "host", "concurrency": 2})).await;
    // Until the runner knows that the limit is counted, jobs are parked for a second.
    latencies(&tickr, &fast).await;
    let alone = latencies(&tickr, &fast).await;
    slow.hangs(true);
    tickr.enqueue_many((0..200).map(|_| slow.callback())).await;
    eventually("the slow host holds its share", || async { (slow.open() == 2).then_some(()) }).await;
    let beside = latencies(&tickr, &fast).await;
    println!("slowest of 100 callbacks: {alone:?} alone, {beside:?} beside a host that hangs");
    assert_eq!((slow.open(), slow.count()), (2, 2), "calls to the slow host hold two workers");
    assert_eq!(tickr.count(PARKED).await, 198);
    slow.hangs(false);
    tickr.until_idle().await;
    assert_eq!((slow.most(), slow.count()), (2, 200));
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

/// Make 100 callbacks, ten at a time, and return the longest time that one took by the ledger, from its due time on.
async fn latencies(tickr: &TestApp, receiver: &Receiver) -> Duration {
    let mut longest = 0;
    for _ in 0..10 {
        let ids = tickr.enqueue_many((0..10).map(|_| receiver.callback())).await;
        for id in ids {
            tickr.until(id, State::Completed).await;
            let sql = "SELECT TIMESTAMPDIFF(MICROSECOND, execute_at, finished_at) FROM attempts WHERE job_id = ?";
            let took: i64 = sqlx::query_scalar(sql).bind(id.uuid()).fetch_one(&mut tickr.mysql().await).await.unwrap();
            longest = longest.max(took);
        }
    }
    Duration::from_micros(longest.unsigned_abs())
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_by_host_by_key_and_order_keys_hold_together() {
    let tickr = TestApp::start_with(|config| config.workers = 16, Registry::new()).await;
    let other = tickr.another_with(|_| {}, Registry::new()).await;
    let (one, two) =
        tokio::join!(Receiver::start(Duration::from_millis(20)), Receiver::start(Duration::from_millis(20)));
    set_and_wait(&tickr, "per-host", json!({"shared_by": "host", "concurrency": 3})).await;
    set_and_wait(&tickr, "per-tenant", json!({"concurrency": 2})).await;
    let jobs = (0..120).map(|n: usize| {
        let mut job = if n % 2 == 0 { one.callback() } else { two.callback() };
        match n % 3 {
            0 => job["limit_key"] = json!("tenant"),
            1 => job["order_key"] = json!(format!("order-{}", n % 4)),
            _ => {}
        }
        job
    });
    tickr.enqueue_many(jobs).await;
    tickr.until_idle().await;
    assert!(one.most() <= 3 && two.most() <= 3, "{} and {} at once", one.most(), two.most());
    let overlaps = |table: &str, column: &str| {
        format!(
            "SELECT CAST(MAX(n) AS SIGNED) FROM (SELECT (SELECT COUNT(*) FROM attempts b \
             JOIN {table} k ON k.job_id = b.job_id WHERE k.{column} = l.{column} \
             AND b.started_at <= a.started_at AND b.finished_at > a.started_at) n \
             FROM attempts a JOIN {table} l ON l.job_id = a.job_id) x"
        )
    };
    assert_eq!(tickr.count(overlaps("job_limit_keys", "limit_key")).await, 2);
    tickr.assert_each_ran_once(120).await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

/// A job of a kind that declares its host.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Push {
    gateway: String,
}

impl Kind for Push {
    const NAME: &'static str = "push";

    fn host(&self) -> Option<String> {
        Some(self.gateway.clone())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_counts_by_the_host_of_its_payload() {
    let mut registry = Registry::new();
    registry.register(|_: Push, _: Context| async { Ok(Output::default()) });
    let tickr = TestApp::start_with(|_| {}, registry).await;
    let receiver = Receiver::start(Duration::ZERO).await;
    let later = |url: &str| json!({"kind": "http", "payload": {"url": url}, "delay_ms": 3_600_000});
    for (url, host) in [
        ("https://Example.COM/a?b#c", "example.com"),
        ("https://example.com:443", "example.com"),
        ("http://example.com:8080/", "example.com:8080"),
        ("https://b\u{fc}cher.example./", "xn--bcher-kva.example"),
        ("http://[2001:DB8::1]:81/", "[2001:db8::1]:81"),
        ("http:\\\\example.com\\x", "example.com"),
    ] {
        let id = tickr.enqueue(later(url)).await;
        assert_eq!(tickr.job(id).await["host"], host, "{url}");
    }
    let long = format!("https://{}.example/", "a".repeat(1_900));
    let answer = tickr.post("/v1/jobs", later(&long)).await;
    assert!(answer.status == 422 || answer.body["host"].as_str().unwrap().len() == 255, "{:#}", answer.body);
    let found = tickr.get("/v1/jobs?q=host:example.com").await;
    assert_eq!(found.body["data"].as_array().unwrap().len(), 3, "{:#}", found.body);

    set_and_wait(&tickr, "per-host", json!({"shared_by": "host", "concurrency": 1})).await;
    receiver.hangs(true);
    let first = tickr.enqueue(receiver.callback()).await;
    tickr.until(first, State::Executing).await;
    let second = tickr.enqueue(receiver.callback()).await;
    tickr.until_count(PARKED, 1).await;
    let explained = tickr.get(&format!("/v1/jobs/{second}/explain")).await;
    assert_eq!(explained.body["reasons"][0]["code"], "limit_reached", "{:#}", explained.body);
    assert!(explained.body["summary"].as_str().unwrap().contains(&receiver.host()), "{:#}", explained.body);
    let row = key_of(&tickr, "per-host", &receiver.host()).await;
    assert_eq!((&row["running"], &row["parked"]), (&json!(1), &json!(1)), "{row:#}");
    // Jobs without a host, and those of a kind that names another one, have room.
    let none = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(none, State::Completed).await;
    assert!(tickr.job(none).await.get("host").is_none());
    let push = tickr.enqueue_kind("push", json!({"gateway": "push.example"})).await;
    assert_eq!(tickr.until(push, State::Completed).await["host"], "push.example");
    let same = tickr.enqueue_kind("push", json!({"gateway": receiver.host()})).await;
    tickr.until_count(PARKED, 2).await;
    receiver.hangs(false);
    tickr.until(same, State::Completed).await;

    // A replay with another payload counts by the host of that.
    receiver.answers(400);
    let failed = tickr.enqueue(receiver.callback()).await;
    tickr.until(failed, State::Failed).await;
    receiver.answers(200);
    let payload = receiver.callback_at("localhost")["payload"].clone();
    let made = tickr.post(&format!("/v1/jobs/{failed}/replay"), json!({"payload": payload})).await;
    assert_eq!(made.body["host"], format!("localhost:{}", receiver.addr.port()), "{:#}", made.body);
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE execute_at < UTC_TIMESTAMP()", 0).await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_limits_for_hosts_are_refused() {
    let tickr = TestApp::start().await;
    for (limit, pointers) in [
        (json!({"shared_by": "host"}), vec![""]),
        (
            json!({"shared_by": "host", "concurrency": 1, "overrides": {"Example.com": {"concurrency": 2}}}),
            vec!["/overrides/Example.com"],
        ),
        (
            json!({"shared_by": "host", "concurrency": 1, "overrides": {"https://a.example": {"concurrency": 2}}}),
            vec!["/overrides/https:~1~1a.example"],
        ),
    ] {
        let answer = tickr.put("/v1/limits/l", &limit).await;
        assert_eq!((answer.status, answer.pointers()), (422, pointers), "{limit}: {:#}", answer.body);
    }
    let own = json!({"example.com:8443": {"concurrency": 2}, "[2001:db8::1]": {"rate": {"starts": 1, "period_ms": 1}}});
    set(&tickr, "l", json!({"shared_by": "host", "concurrency": 1, "overrides": own})).await;
    tickr.stop().await;
}
