//! Receivers of callbacks: the host of a callback is a key of its own accord. Limits count callbacks by it, and a breaker
//! stops calls to a host that fails again and again.

use std::collections::BTreeMap;
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
use tickr::app::App;
use tickr::config::Config;
use tickr::handlers::{Context, Failure, FinishLater, Kind, Output, Registry};
use tickr::job::State;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::limits::{NO_ROWS_LEFT, set, set_and_wait, until_counted};
use crate::support::program;
use crate::support::{self, Answer, DEADLINE, Proxy, Pulse, Runner, TestApp, bystander, eventually};

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

/// Return the row of this host in the list of keys, or null.
async fn key_of(tickr: &TestApp, name: &str, host: &str) -> Value {
    let keys = tickr.get(&format!("/v1/limits/{name}/keys")).await;
    assert_eq!(keys.status, 200, "{:#}", keys.body);
    keys.body["data"].as_array().unwrap().iter().find(|row| row["key"] == host).cloned().unwrap_or_default()
}

const EXECUTING: &str = "SELECT COUNT(*) FROM owed WHERE state = 'executing'";
const PARKED: &str = "SELECT COUNT(*) FROM limit_waits";

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
    let to_one = (0..24).map(|n| one.callback_at(ways[n % ways.len()]));
    let jobs = to_one.chain((0..24).flat_map(|_| [two.callback(), free.callback()]));
    for host in [&one, &two, &free] {
        host.hangs(true);
    }
    tickr.enqueue_many(jobs).await;
    eventually("each host is called as often at a time as its limit allows", || async {
        ((one.open(), two.open(), free.open()) == (2, 2, 5)).then_some(())
    })
    .await;
    for host in [&one, &two, &free] {
        host.hangs(false);
    }
    tickr.until_idle().await;
    assert_eq!((one.most(), two.most(), free.most()), (2, 2, 5));
    assert_eq!((one.count(), two.count(), free.count()), (24, 24, 24));
    tickr.assert_each_ran_once(72).await;
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
    let ids = tickr.enqueue_many((0..50).flat_map(|_| [one.callback(), two.callback()])).await;
    tickr.until_idle().await;
    let mut mysql = tickr.mysql().await;
    for (first, receiver) in [(0, &one), (1, &two)] {
        let mut starts = Vec::new();
        for id in ids.iter().skip(first).step_by(2) {
            let row = sqlx::query("SELECT started_at FROM attempts WHERE job_id = ?").bind(id.uuid());
            let row = row.fetch_one(&mut mysql).await.unwrap();
            starts.push(row.get::<chrono::DateTime<chrono::Utc>, _>("started_at"));
        }
        starts.sort();
        let within = |from: &chrono::DateTime<chrono::Utc>| {
            starts.iter().filter(|at| **at >= *from && (**at - *from).num_milliseconds() < 1_000).count()
        };
        let most = starts.iter().map(within).max().unwrap();
        assert!(most <= 22, "{most} starts in a second");
        assert_eq!(receiver.count(), 50);
    }
    other.stop(CancellationToken::new()).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_hangs_holds_its_share_of_workers_and_delays_no_other() {
    // The calls to the host that hangs go on for as long as the test measures.
    let patient = |config: &mut Config| (config.workers, config.callback_timeout) = (8, Duration::from_secs(280));
    let tickr = TestApp::start_with(patient, Registry::new()).await;
    let (slow, fast) = tokio::join!(Receiver::start(Duration::ZERO), Receiver::start(Duration::from_millis(5)));
    set_and_wait(&tickr, "per-host", json!({"kind": "http", "shared_by": "host", "concurrency": 2})).await;
    // Until the runner knows that the limit is counted, jobs are parked for a second.
    sweeps().await;
    let alone = latencies(&tickr, &fast).await;
    slow.hangs(true);
    tickr.enqueue_many((0..40).map(|_| slow.callback())).await;
    eventually("the slow host holds its share", || async { (slow.open() == 2).then_some(()) }).await;
    tickr.until_count(PARKED, 38).await;
    // The machine may be busier than it was before, for a while.
    let mut tries = Vec::new();
    loop {
        let beside = latencies(&tickr, &fast).await;
        println!("5 and 9 of 10 callbacks took up to {alone:?} alone, {beside:?} beside a host that hangs");
        if beside.iter().zip(alone).all(|(beside, alone)| *beside <= 2 * alone + Duration::from_millis(100)) {
            break;
        }
        tries.push(beside);
        assert!(tries.len() < 4, "{tries:?} beside a host that hangs, {alone:?} alone");
    }
    assert_eq!((slow.open(), slow.count()), (2, 2), "calls to the slow host hold two workers");
    assert_eq!(tickr.count(PARKED).await, 38);
    slow.hangs(false);
    tickr.until_idle().await;
    assert_eq!((slow.most(), slow.count()), (2, 40));
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

/// Make 90 callbacks, three at a time, and return the times that 5 and 9 of 10 of them took at most, by the ledger and
/// from their due times on.
async fn latencies(tickr: &TestApp, receiver: &Receiver) -> [Duration; 2] {
    let (mut mysql, mut took) = (tickr.mysql().await, Vec::<i64>::new());
    for _ in 0..20 {
        let ids = tickr.enqueue_many((0..3).map(|_| receiver.callback())).await;
        for id in ids {
            tickr.until(id, State::Completed).await;
            let sql = "SELECT TIMESTAMPDIFF(MICROSECOND, execute_at, finished_at) FROM attempts WHERE job_id = ?";
            took.push(sqlx::query_scalar(sql).bind(id.uuid()).fetch_one(&mut mysql).await.unwrap());
        }
    }
    took.sort_unstable();
    [took.len() / 2, took.len() * 9 / 10].map(|at| Duration::from_micros(took[at].unsigned_abs()))
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_by_host_by_key_and_order_keys_hold_together() {
    let tickr = TestApp::start_with(|config| config.workers = 16, Registry::new()).await;
    let other = tickr.another_with(|_| {}, Registry::new()).await;
    let (one, two) =
        tokio::join!(Receiver::start(Duration::from_millis(20)), Receiver::start(Duration::from_millis(20)));
    set_and_wait(&tickr, "per-host", json!({"shared_by": "host", "concurrency": 3})).await;
    set_and_wait(&tickr, "per-tenant", json!({"concurrency": 2})).await;
    let jobs = (0..72).map(|n: usize| {
        let mut job = if n.is_multiple_of(2) { one.callback() } else { two.callback() };
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
    tickr.assert_each_ran_once(72).await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

/// A job of a kind that declares its host.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Push {
    gateway: String,
    /// The end of its call.
    #[serde(default)]
    ends: String,
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
        (json!({"concurrency": 1, "breaker": {}}), vec!["/breaker"]),
        (
            json!({"shared_by": "host", "breaker": {"failures": 0, "pause_ms": 99}}),
            vec!["/breaker/failures", "/breaker/pause_ms"],
        ),
        (
            json!({"shared_by": "host", "breaker": {"pause_ms": 1_000, "max_pause_ms": 999}}),
            vec!["/breaker/max_pause_ms"],
        ),
        (json!({"shared_by": "host", "breaker": {"max_pause_ms": 86_400_001}}), vec!["/breaker/max_pause_ms"]),
    ] {
        let answer = tickr.put("/v1/limits/l", &limit).await;
        assert_eq!((answer.status, answer.pointers()), (422, pointers), "{limit}: {:#}", answer.body);
    }
    let own = json!({"example.com:8443": {"concurrency": 2}, "[2001:db8::1]": {"rate": {"starts": 1, "period_ms": 1}}});
    set(&tickr, "l", json!({"shared_by": "host", "concurrency": 1, "overrides": own})).await;
    for (breaker, whole) in [
        (json!({}), json!({"failures": 5, "pause_ms": 10_000, "max_pause_ms": 600_000})),
        (json!({"pause_ms": 900_000}), json!({"failures": 5, "pause_ms": 900_000, "max_pause_ms": 900_000})),
    ] {
        let set = set(&tickr, "l", json!({"shared_by": "host", "breaker": breaker})).await;
        assert_eq!(set.body["breaker"], whole);
    }
    assert_eq!(tickr.post("/v1/limits/none/close-breaker", json!({"host": "a"})).await.status, 404);
    tickr.stop().await;
}

/// A limit with a breaker that opens after this many failures.
fn with_breaker(failures: u32, pause_ms: u32, max_pause_ms: u32) -> Value {
    let breaker = json!({"failures": failures, "pause_ms": pause_ms, "max_pause_ms": max_pause_ms});
    json!({"kind": "http", "shared_by": "host", "concurrency": 1, "breaker": breaker})
}

impl Receiver {
    /// Return a callback that has one attempt.
    fn once(&self) -> Value {
        let mut job = self.callback();
        job["max_attempts"] = json!(1);
        job
    }

    async fn until_count(&self, count: usize) {
        eventually(&format!("{count} calls"), || async { (self.count() >= count).then_some(()) }).await;
    }
}

/// Wait until the breaker of this host has this state, and return its row.
async fn until_breaker(tickr: &TestApp, host: &str, state: &str) -> Value {
    eventually(&format!("the breaker of {host} is {state}"), || async {
        let row = key_of(tickr, "per-host", host).await;
        (row["breaker"]["state"] == state).then_some(row)
    })
    .await
}

async fn close(tickr: &TestApp, host: &str) -> Answer {
    tickr.post("/v1/limits/per-host/close-breaker", json!({"host": host})).await
}

/// Make one call to a receiver that answers with an error, whose breaker opens after one failure.
async fn open_breaker_of(tickr: &TestApp, receiver: &Receiver) {
    receiver.answers(503);
    let id = tickr.enqueue(receiver.once()).await;
    tickr.until(id, State::Failed).await;
    until_breaker(tickr, &receiver.host(), "open").await;
}

/// Let several rounds of the sweep pass, in which the runners would find what may start.
async fn sweeps() {
    tokio::time::sleep(Duration::from_millis(2_500)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_breaker_opens_after_its_failures_and_parked_jobs_burn_no_attempt() {
    let tickr = TestApp::start_with(|config| config.workers = 8, Registry::new()).await;
    let other = tickr.another_with(|_| {}, Registry::new()).await;
    let (down, up) = tokio::join!(Receiver::start(Duration::ZERO), Receiver::start(Duration::ZERO));
    set_and_wait(&tickr, "per-host", with_breaker(3, 600_000, 600_000)).await;
    // Two failures, then an answer: the failures are counted in a row.
    for (status, state, failures) in
        [(500, State::Failed, 1), (500, State::Failed, 2), (200, State::Completed, 0), (500, State::Failed, 1)]
    {
        down.answers(status);
        let id = tickr.enqueue(down.once()).await;
        tickr.until(id, state).await;
        let sql = "SELECT COUNT(*) FROM limit_keys WHERE failures > 0 AND opened_at IS NOT NULL";
        assert_eq!(tickr.count(sql).await, 0, "open after {failures}");
        let counted = format!(
            "SELECT CAST(COALESCE(MAX(failures), 0) AS SIGNED) FROM limit_keys WHERE limit_key = '{}'",
            down.host()
        );
        tickr.until_count(counted, failures).await;
    }
    let jobs = tickr.enqueue_many((0..20).map(|_| down.once())).await;
    let open = until_breaker(&tickr, &down.host(), "open").await;
    assert_eq!(down.count(), 6, "the third failure in a row is the last call");
    tickr.enqueue_many((0..40).map(|_| up.callback())).await;
    tickr.until_count(PARKED, 18).await;
    tickr.until_count("SELECT COUNT(*) FROM jobs j LEFT JOIN owed o ON o.id = j.id WHERE o.id IS NOT NULL", 18).await;
    sweeps().await;
    assert_eq!((down.count(), up.count()), (6, 40));
    let attempts = "SELECT COUNT(*) FROM attempts a JOIN limit_waits w ON w.job_id = a.job_id";
    assert_eq!(tickr.count(attempts).await, 0, "parked jobs have no attempts");

    // What an operator sees.
    let breaker = &open["breaker"];
    assert_eq!(breaker["failures"], 3, "{open:#}");
    assert!(breaker["last_error"].as_str().unwrap().contains("answered 500"), "{open:#}");
    let at = |field: &str| breaker[field].as_str().unwrap().parse::<chrono::DateTime<chrono::Utc>>().unwrap();
    assert_eq!((at("next_call_at") - at("since")).num_seconds(), 600, "{open:#}");
    let last = jobs.last().unwrap();
    let explained = tickr.get(&format!("/v1/jobs/{last}/explain")).await;
    assert_eq!(explained.body["reasons"][0]["code"], "breaker_open", "{:#}", explained.body);
    let text = explained.body["summary"].as_str().unwrap();
    assert!(text.contains(&down.host()) && text.contains("answered 500"), "{text}");
    eventually("the metrics count it", || async {
        let text = support::http().get(tickr.url("/metrics")).send().await.unwrap().text().await.unwrap();
        let says = |line: &str| text.lines().any(|said| said == line);
        // Other tests of this process open breakers as well.
        let opened = text.lines().any(|said| said.starts_with("tickr_breaker_openings_total{limit=\"per-host\"} "));
        (says("tickr_breakers_open 1") && opened).then_some(())
    })
    .await;

    // An operator closes it.
    down.answers(200);
    let closed = close(&tickr, &down.host()).await;
    assert_eq!((closed.status, &closed.body["closed"]), (200, &json!(true)), "{:#}", closed.body);
    tickr.until_idle().await;
    assert_eq!((down.count(), down.most()), (24, 1));
    let again = close(&tickr, &down.host()).await;
    assert_eq!((again.status, &again.body["closed"]), (200, &json!(false)), "{:#}", again.body);
    assert_eq!(close(&tickr, "unknown.example").await.body["closed"], false);
    let audit = tickr.get("/v1/audit?target=per-host").await;
    let acts: Vec<&Value> = audit.body["data"].as_array().unwrap().iter().collect();
    let acts: Vec<_> = acts.iter().filter(|act| act["action"] == "limit.close_breaker").collect();
    assert_eq!(acts.len(), 1, "{:#}", audit.body);
    assert_eq!((&acts[0]["actor"], &acts[0]["detail"]["host"]), (&json!("anyone"), &json!(down.host())));
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_breaker_opens_also_after_the_clock_was_set_back() {
    let tickr = TestApp::start_with(|_| {}, Registry::new()).await;
    let down = Receiver::start(Duration::ZERO).await;
    down.answers(500);
    // By the clock of the database, the limit gets its breaker in an hour. The runner reads it when the limit counts,
    // which is after three seconds, in which the machine may stand still.
    eventually("a limit that does not count yet gets its breaker in an hour", || async {
        set(&tickr, "per-host", with_breaker(3, 600_000, 600_000)).await;
        tickr.sql("UPDATE limits SET breaker_since = breaker_since + INTERVAL 1 HOUR WHERE NOT counted").await;
        let ahead = "SELECT COUNT(*) FROM limits WHERE breaker_since > UTC_TIMESTAMP(6) + INTERVAL 50 MINUTE";
        if tickr.count(ahead).await == 1 {
            return Some(());
        }
        assert_eq!(tickr.delete("/v1/limits/per-host").await.status, 204);
        None
    })
    .await;
    until_counted(&tickr, "per-host").await;
    for _ in 0..3 {
        let id = tickr.enqueue(down.once()).await;
        tickr.until(id, State::Failed).await;
    }
    until_breaker(&tickr, &down.host(), "open").await;
    let parked = tickr.enqueue(down.once()).await;
    tickr.until_count(PARKED, 1).await;
    assert_eq!(down.count(), 3);
    assert_eq!(tickr.post(&format!("/v1/jobs/{parked}/cancel"), json!({})).await.status, 200);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_that_are_about_a_call_open_no_breaker() {
    let tickr = TestApp::start_with(|_| {}, Registry::new()).await;
    let receiver = Receiver::start(Duration::ZERO).await;
    set_and_wait(&tickr, "per-host", with_breaker(1, 600_000, 600_000)).await;
    for (calls, status) in [400, 401, 404, 410, 422, 302].into_iter().enumerate() {
        receiver.answers(status);
        let id = tickr.enqueue(receiver.once()).await;
        tickr.until(id, State::Failed).await;
        assert_eq!(receiver.count(), calls + 1, "{status}");
        tickr.until_count(NO_ROWS_LEFT, 0).await;
        assert_eq!(tickr.count("SELECT COUNT(*) FROM limit_keys WHERE failures > 0").await, 0, "{status}");
    }
    // What the receiver cannot do now opens it.
    for status in [500, 503, 429, 408] {
        receiver.answers(status);
        let id = tickr.enqueue(receiver.once()).await;
        tickr.until(id, State::Failed).await;
        until_breaker(&tickr, &receiver.host(), "open").await;
        assert_eq!(close(&tickr, &receiver.host()).await.body["closed"], true, "{status}");
    }
    // So does a receiver that does not answer in time, and one that is gone.
    let (slow, gone) = tokio::join!(Receiver::start(Duration::ZERO), Receiver::start(Duration::ZERO));
    slow.hangs(true);
    let mut impatient = slow.once();
    impatient["payload"]["timeout_ms"] = json!(2_000);
    tickr.enqueue(impatient).await;
    let row = until_breaker(&tickr, &slow.host(), "open").await;
    assert!(row["breaker"]["last_error"].as_str().unwrap().contains("did not answer"), "{row:#}");
    let mut late = gone.once();
    late["timeout_ms"] = json!(2_000);
    gone.hangs(true);
    tickr.enqueue(late).await;
    until_breaker(&tickr, &gone.host(), "open").await;
    close(&tickr, &gone.host()).await;
    let (host, job) = (gone.host(), gone.once());
    gone.serving.abort();
    eventually("it is gone", || async { tokio::net::TcpStream::connect(&host).await.err() }).await;
    tickr.enqueue(job).await;
    let row = until_breaker(&tickr, &host, "open").await;
    assert!(row["breaker"]["last_error"].as_str().unwrap().contains("could not be called"), "{row:#}");
    tickr.stop_broken("breakers are open").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_the_guard_refuses_opens_no_breaker() {
    let closed = |config: &mut tickr::config::Config| config.callback_allow_private = false;
    let tickr = TestApp::start_with(closed, Registry::new()).await;
    // This runner accepts the jobs, and the other one runs them.
    let open = |config: &mut tickr::config::Config| {
        (config.callback_allow_private, config.queues) = (true, vec!["other".to_owned()]);
    };
    let other = tickr.another_with(open, Registry::new()).await;
    let receiver = Receiver::start(Duration::ZERO).await;
    set_and_wait(&tickr, "per-host", with_breaker(1, 600_000, 600_000)).await;
    for host in ["localhost", "127.0.0.1", "localhost"] {
        let job = receiver.callback_at(host);
        let accepted =
            support::call(&format!("http://{}", other.addr()), Method::POST, "/v1/jobs", "", Some(job)).await;
        assert_eq!(accepted.status, 201, "{:#}", accepted.body);
        let id = accepted.body["id"].as_str().unwrap().parse().unwrap();
        let error = tickr.until(id, State::Failed).await["last_error"].as_str().unwrap().to_owned();
        assert!(error.contains("not allowed"), "{error}");
    }
    assert_eq!(receiver.count(), 0);
    other.stop(CancellationToken::new()).await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM limit_keys WHERE failures > 0").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_call_at_a_time_decides_over_two_runners() {
    let tickr = TestApp::start_with(|config| config.workers = 16, Registry::new()).await;
    let other = tickr.another_with(|_| {}, Registry::new()).await;
    let receiver = Receiver::start(Duration::ZERO).await;
    let mut limit = with_breaker(1, 400, 60_000);
    limit["concurrency"] = json!(10);
    set_and_wait(&tickr, "per-host", limit).await;
    open_breaker_of(&tickr, &receiver).await;
    receiver.hangs(true);
    tickr.enqueue_many((0..40).map(|_| receiver.callback())).await;
    receiver.until_count(2).await;
    sweeps().await;
    assert_eq!((receiver.count(), receiver.open()), (2, 1), "one call decides");
    tickr.until_count(PARKED, 39).await;
    until_breaker(&tickr, &receiver.host(), "half_open").await;
    receiver.answers(200);
    receiver.hangs(false);
    tickr.until_idle().await;
    assert_eq!(receiver.count(), 41);
    assert!(receiver.most() <= 10, "{} at once", receiver.most());
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts").await, 41);
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pause_doubles_up_to_the_longest_and_no_call_comes_before_its_end() {
    let tickr = TestApp::start_with(|_| {}, Registry::new()).await;
    let other = tickr.another_with(|_| {}, Registry::new()).await;
    let receiver = Receiver::start(Duration::ZERO).await;
    receiver.answers(500);
    set_and_wait(&tickr, "per-host", with_breaker(1, 700, 2_000)).await;
    tickr.enqueue_many((0..6).map(|_| receiver.once())).await;
    let pauses = [700, 1_400, 2_000, 2_000, 2_000];
    // The pause after each failure, as far as it was seen: while the machine stands still, one may pass unseen.
    let (mut seen, mut mysql, began) = (BTreeMap::<i64, i64>::new(), tickr.mysql().await, Instant::now());
    let now = "SELECT CAST(failures AS SIGNED), CAST(pause_ms AS SIGNED) FROM limit_keys WHERE pause_ms IS NOT NULL";
    while !seen.contains_key(&6) {
        assert!(began.elapsed() < 2 * DEADLINE, "there are not six failures: {seen:?}");
        seen.extend(sqlx::query_as::<_, (i64, i64)>(now).fetch_all(&mut mysql).await.unwrap());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(seen.len() > 3, "{seen:?}");
    for (failures, pause) in &seen {
        let wanted = pauses[usize::try_from(failures - 1).unwrap().min(4)];
        assert_eq!(*pause, i64::try_from(wanted).unwrap(), "{seen:?}");
    }
    receiver.until_count(6).await;
    let at = receiver.calls.at.lock().unwrap().clone();
    let gaps: Vec<Duration> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    println!("pauses of {pauses:?} ms took {gaps:?}");
    for (gap, pause) in gaps.iter().zip(pauses) {
        assert!(*gap >= Duration::from_millis(pause), "{gap:?} instead of {pause} ms");
    }
    tickr.until_count("SELECT COUNT(*) FROM attempts", 6).await;
    tickr.until_idle().await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_to_decide_and_lost_its_runner_is_made_again() {
    let tickr = TestApp::start_alone(|_| {}, bystander).await;
    let receiver = Receiver::start(Duration::ZERO).await;
    set_and_wait(&tickr, "per-host", with_breaker(1, 500, 60_000)).await;
    // The lease is longer than a stall of the machine, which must not end the call.
    let env = [("TICKR_QUEUES", "default"), ("TICKR_LEASE", "8s"), ("TICKR_CALLBACK_ALLOW_PRIVATE", "true")];
    let first = Runner::start(&tickr, &env);
    first.base().await;
    open_breaker_of(&tickr, &receiver).await;
    receiver.hangs(true);
    let jobs = tickr.enqueue_many((0..3).map(|_| receiver.callback())).await;
    receiver.until_count(2).await;
    let second = Runner::start(&tickr, &env);
    second.base().await;
    assert_eq!((receiver.count(), tickr.count(EXECUTING).await), (2, 1));
    let (pulse, killed) = (Pulse::start(&tickr).await, Instant::now());
    first.signal("KILL");
    receiver.answers(200);
    receiver.hangs(false);
    receiver.until_count(3).await;
    // A lease of 8 s, and another one after a stall of the machine.
    pulse.assert_within(Duration::from_secs(27), killed, "the next call");
    tickr.until_count("SELECT COUNT(*) FROM owed", 0).await;
    assert_eq!(receiver.count(), 5);
    let mut lost = 0;
    for job in jobs {
        lost += tickr.verdicts(job).await.iter().filter(|verdict| *verdict == "lost").count();
    }
    assert_eq!(lost, 1);
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    drop((first, second));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_breaker_outlives_a_flush_and_an_outage_of_redis() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    let (one, two) = tokio::join!(Receiver::start(Duration::ZERO), Receiver::start(Duration::ZERO));
    set_and_wait(&tickr, "per-host", with_breaker(1, 600_000, 600_000)).await;
    open_breaker_of(&tickr, &one).await;
    tickr.enqueue_many((0..5).map(|_| one.callback())).await;
    tickr.until_count(PARKED, 5).await;
    tickr.flush_redis().await;
    tickr.enqueue_many((0..5).map(|_| one.callback())).await;
    tickr.until_count(PARKED, 10).await;
    sweeps().await;
    assert_eq!(one.count(), 1);

    tickr.services().redis().kill9().unwrap();
    tickr.enqueue_many((0..5).map(|_| one.callback())).await;
    tickr.until_count(PARKED, 15).await;
    sweeps().await;
    assert_eq!(one.count(), 1);
    one.answers(200);
    assert_eq!(close(&tickr, &one.host()).await.body["closed"], true);
    // A breaker opens, and the call that decides is made, while Redis is out.
    set_and_wait(&tickr, "per-host", with_breaker(1, 400, 400)).await;
    open_breaker_of(&tickr, &two).await;
    two.answers(200);
    tickr.enqueue_many((0..5).map(|_| two.callback())).await;
    tickr.until_count("SELECT COUNT(*) FROM owed", 0).await;
    assert_eq!((one.count(), two.count()), (16, 6));
    tickr.services().redis().start_again().unwrap();
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_breaker_or_limit_lets_its_jobs_go_and_is_forgotten() {
    let tickr = TestApp::start_with(|_| {}, Registry::new()).await;
    let other = tickr.another_with(|_| {}, Registry::new()).await;
    let receiver = Receiver::start(Duration::ZERO).await;
    let limit = with_breaker(1, 600_000, 600_000);
    set_and_wait(&tickr, "per-host", limit.clone()).await;
    for way in ["the breaker", "the limit"] {
        open_breaker_of(&tickr, &receiver).await;
        tickr.enqueue_many((0..10).map(|_| receiver.callback())).await;
        tickr.until_count(PARKED, 10).await;
        receiver.answers(200);
        let (pulse, removed) = (Pulse::start(&tickr).await, Instant::now());
        if way == "the breaker" {
            set(&tickr, "per-host", json!({"kind": "http", "shared_by": "host", "concurrency": 1})).await;
        } else {
            assert_eq!(tickr.delete("/v1/limits/per-host").await.status, 204);
        }
        tickr.until_count(PARKED, 0).await;
        pulse.assert_within(Duration::from_secs(3 * 2), removed, &format!("the jobs go on without {way}"));
        tickr.until_idle().await;
        // Set again, it is closed. The other runner follows it within two seconds.
        set_and_wait(&tickr, "per-host", limit.clone()).await;
        sweeps().await;
        let before = receiver.count();
        let id = tickr.enqueue(receiver.callback()).await;
        tickr.until(id, State::Completed).await;
        assert_eq!(receiver.count(), before + 1);
    }
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_of_its_own_says_how_its_calls_ended() {
    let mut registry = Registry::new();
    registry.register(|push: Push, ctx: Context| async move {
        match push.ends.as_str() {
            "failed" => ctx.host_failed(),
            "answered" => ctx.host_answered(),
            "late" => ctx.stopped().await,
            "well" => return Ok(Output::default()),
            _ => {}
        }
        Err(Failure::reject(push.ends))
    });
    let tickr = TestApp::start_with(|_| {}, registry).await;
    let breaker = json!({"failures": 2, "pause_ms": 600_000});
    set_and_wait(&tickr, "per-host", json!({"shared_by": "host", "breaker": breaker})).await;
    let push = async |ends: &str| {
        let payload = json!({"gateway": "push.example", "ends": ends});
        // The others end before their time is over, also on a machine that stands still.
        let ms = if ends == "late" { 300 } else { 60_000 };
        let job = json!({"kind": "push", "payload": payload, "timeout_ms": ms, "max_attempts": 1});
        let id = tickr.enqueue(job).await;
        eventually("it ended or is parked", || async {
            let job = tickr.job(id).await;
            (job["finished_at"].is_string() || job["held"] == true).then_some(job)
        })
        .await
    };
    let failures = async |count: i64| {
        tickr.until_count(NO_ROWS_LEFT, 0).await;
        let sql = "SELECT CAST(COALESCE(MAX(failures), 0) AS SIGNED) FROM limit_keys";
        assert_eq!(tickr.count(sql).await, count);
    };
    for (ends, count) in
        [("failed", 1), ("an error of its own", 1), ("answered", 0), ("late", 1), ("well", 0), ("late", 1)]
    {
        push(ends).await;
        failures(count).await;
    }
    push("failed").await;
    until_breaker(&tickr, "push.example", "open").await;
    assert_eq!(push("well").await["held"], true);
    close(&tickr, "push.example").await;
    tickr.until_idle().await;
    tickr.stop().await;
}

/// More jobs than are let go at once. Those that stay parked must not push the others back into the line.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_breaker_has_closed_jobs_start_before_those_that_are_still_parked() {
    const JOBS: i64 = 700;
    // Tests in one process share the counters, so this name is that of no other limit.
    const LIMIT: &str = "breaker-before-parked";
    let mut registry = Registry::new();
    registry.register(|push: Push, ctx: Context| async move {
        if push.ends == "failed" {
            ctx.host_failed();
            return Err(Failure::reject("no answer"));
        }
        ctx.host_answered();
        Ok(Output::default())
    });
    let tickr = TestApp::start_with(|config| config.workers = 16, registry).await;
    // No number: the attempts have slots for the ends of their calls only.
    let breaker = json!({"failures": 1, "pause_ms": 600_000});
    set_and_wait(&tickr, LIMIT, json!({"shared_by": "host", "breaker": breaker})).await;
    let push = |ends: &str| json!({"kind": "push", "payload": {"gateway": "push.example", "ends": ends}});
    let failed = tickr.enqueue(push("failed")).await;
    tickr.until(failed, State::Failed).await;
    eventually("the breaker is open", || async {
        let row = key_of(&tickr, LIMIT, "push.example").await;
        (row["breaker"]["state"] == "open").then_some(())
    })
    .await;
    tickr.enqueue_many((0..JOBS).map(|_| push("well"))).await;
    tickr.until_count(PARKED, JOBS).await;
    let host = json!({"host": "push.example"});
    assert_eq!(tickr.post(&format!("/v1/limits/{LIMIT}/close-breaker"), host).await.status, 200);
    tickr.until_idle().await;
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'", JOBS).await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    // None of those that were let go was parked again behind the others.
    let metrics = support::http().get(tickr.url("/metrics")).send().await.unwrap().text().await.unwrap();
    let counter = format!("tickr_jobs_parked_total{{limit=\"{LIMIT}\"}} ");
    let parked: i64 = metrics.lines().find_map(|line| line.strip_prefix(&counter)).unwrap().parse().unwrap();
    assert!(parked < JOBS + JOBS / 10, "{JOBS} jobs were parked {parked} times");
    tickr.assert_sound().await;
    tickr.stop().await;
}

/// A page of keys has few of those whose calls have failed.
#[tokio::test(flavor = "multi_thread")]
async fn the_list_of_keys_shows_a_breaker_behind_hundreds_of_hosts_that_have_failed() {
    let tickr = TestApp::start().await;
    let breaker = json!({"failures": 5, "pause_ms": 600_000});
    set_and_wait(&tickr, "per-host", json!({"shared_by": "host", "breaker": breaker})).await;
    tickr
        .sql(
            "INSERT INTO limit_keys (limit_name, limit_key, failures, failed_at, opened_at, pause_ms, probe_at) \
             WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 400) \
             SELECT 'per-host', CONCAT('host-', LPAD(n, 3, '0')), 5, UTC_TIMESTAMP(6), \
             IF(n IN (1, 400), UTC_TIMESTAMP(6), NULL), IF(n IN (1, 400), 600000, NULL), \
             IF(n IN (1, 400), UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, NULL) FROM n",
        )
        .await;
    for host in ["host-001", "host-400"] {
        assert_eq!(key_of(&tickr, "per-host", host).await["breaker"]["state"], "open");
    }
    let keys = tickr.get("/v1/limits/per-host/keys").await;
    assert_eq!(keys.body["data"].as_array().unwrap().len(), 2, "{:#}", keys.body);
    tickr.stop().await;
}

/// The first statement that counts the end of a call.
const COUNTS: &str = "UPDATE limit_keys SET failures";
const FAILURES: &str = "SELECT CAST(COALESCE(MAX(failures), 0) AS SIGNED) FROM limit_keys";
const OPEN: &str = "SELECT COUNT(*) FROM limit_keys WHERE opened_at IS NOT NULL";

/// Start a runner that serves the queue `default` through this proxy.
async fn runner_through(tickr: &TestApp, proxy: &Proxy, kinds: Registry) -> App {
    let url = Config::for_tests(&proxy.url(), "redis://unused").mysql_url;
    tickr.another_with(|config| (config.mysql_url, config.queues) = (url, vec!["default".into()]), kinds).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_counts_once_when_the_answer_to_its_commit_is_lost() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
    let receiver = Receiver::start(Duration::ZERO).await;
    set_and_wait(&tickr, "per-host", with_breaker(5, 600_000, 600_000)).await;
    let mut job = receiver.callback();
    job["retry"] = json!({"base_ms": 1, "factor": 1.0, "cap_ms": 1, "jitter": 0.0});
    for next_attempt_runs in [false, true] {
        let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
        let through = runner_through(&tickr, &proxy, Registry::new()).await;
        let before = receiver.count();
        receiver.answers(503);
        let mut other = None;
        let id = if next_attempt_runs {
            proxy.cut_commit_of_and_hold(COUNTS);
            let id = tickr.enqueue(job.clone()).await;
            eventually("the answer is lost", || async { (proxy.cuts() == 1).then_some(()) }).await;
            // Another runner makes the next call before the first runner hears that its answer is lost.
            receiver.hangs(true);
            let serves = |config: &mut Config| config.queues = vec!["default".into()];
            other = Some(tickr.another_with(serves, Registry::new()).await);
            receiver.until_count(before + 2).await;
            proxy.let_in();
            id
        } else {
            proxy.cut_commit_of(COUNTS);
            let mut once = job.clone();
            once["max_attempts"] = json!(1);
            let id = tickr.enqueue(once).await;
            tickr.until(id, State::Failed).await;
            id
        };
        // At the end of its stop the runner has written everything.
        through.stop(CancellationToken::new()).await;
        assert_eq!((proxy.cuts(), tickr.count(FAILURES).await), (1, 1), "{next_attempt_runs}");
        receiver.answers(200);
        receiver.hangs(false);
        if let Some(other) = other {
            tickr.until(id, State::Completed).await;
            other.stop(CancellationToken::new()).await;
        }
        tickr.until_count(NO_ROWS_LEFT, 0).await;
        tickr.sql("UPDATE limit_keys SET failures = 0, failed_at = NULL, last_error = NULL").await;
    }
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_call_of_a_deferred_attempt_counts_once_after_a_lost_answer() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
    let breaker = json!({"failures": 5, "pause_ms": 600_000});
    set_and_wait(&tickr, "per-host", json!({"shared_by": "host", "breaker": breaker})).await;
    let keys: Arc<Mutex<Vec<String>>> = Arc::default();
    let sent = Arc::clone(&keys);
    let mut kinds = Registry::new();
    kinds.register(move |_: Push, ctx: Context| {
        let sent = Arc::clone(&sent);
        async move {
            ctx.host_failed();
            let key = ctx.finish_key().await?;
            sent.lock().unwrap().push(key.expose().to_owned());
            Ok(Output::finished_later(FinishLater::within(Duration::from_secs(60))))
        }
    });
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let through = runner_through(&tickr, &proxy, kinds).await;
    proxy.cut_commit_of(COUNTS);
    let job = json!({"kind": "push", "payload": {"gateway": "push.example"}});
    let accepted = support::call(&format!("http://{}", through.addr()), Method::POST, "/v1/jobs", "", Some(job)).await;
    assert_eq!(accepted.status, 201, "{:#}", accepted.body);
    eventually("the answer is lost", || async { (proxy.cuts() == 1).then_some(()) }).await;
    // At the end of its stop the runner has written everything.
    through.stop(CancellationToken::new()).await;
    assert_eq!(tickr.count(FAILURES).await, 1);
    let key = keys.lock().unwrap().pop().unwrap();
    let finished = tickr.post(&format!("/v1/attempts/{key}/finish"), json!({"verdict": "succeeded"})).await;
    assert_eq!(finished.status, 200, "{:#}", finished.body);
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_finished_before_its_answer_counts_once_for_its_breaker() {
    /// Finish the attempt with this key.
    async fn finish(base: &str, key: &str) {
        let finish = support::http().post(format!("{base}/v1/attempts/{key}/finish"));
        let finished = support::answer(finish.json(&json!({"verdict": "succeeded"}))).await;
        assert_eq!(finished.status, 200, "{:#}", finished.body);
    }

    let (base, keys) = (Arc::<Mutex<String>>::default(), Arc::<Mutex<Vec<String>>>::default());
    let (api, sent) = (Arc::clone(&base), Arc::clone(&keys));
    let mut kinds = Registry::new();
    kinds.register(move |job: Push, ctx: Context| {
        let (base, sent) = (api.lock().unwrap().clone(), Arc::clone(&sent));
        async move {
            if job.ends == "fails" {
                ctx.host_failed();
                return Err(Failure::reject("the host is down"));
            }
            let key = ctx.finish_key().await?.expose().to_owned();
            if job.ends == "early" {
                finish(&base, &key).await;
            } else {
                ctx.host_failed();
                sent.lock().unwrap().push(key);
            }
            Ok(Output::finished_later(FinishLater::within(Duration::from_secs(60))))
        }
    });
    let tickr = TestApp::start_with(|_| {}, kinds).await;
    *base.lock().unwrap() = format!("http://{}", tickr.app.addr());
    let breaker = json!({"failures": 3, "pause_ms": 1_000});
    set_and_wait(&tickr, "per-host", json!({"shared_by": "host", "breaker": breaker})).await;
    let push = |ends: &str| json!({"kind": "push", "payload": {"gateway": "push.example", "ends": ends}});
    // The failures are not in a row.
    for (ends, state, failures) in
        [("fails", State::Failed, 1), ("early", State::Completed, 0), ("fails", State::Failed, 1)]
    {
        let id = tickr.enqueue(push(ends)).await;
        tickr.until(id, state).await;
        tickr.until_count(FAILURES, failures).await;
    }
    // A deferral has counted its call as a failure. The finish takes nothing back.
    let id = tickr.enqueue(push("later")).await;
    tickr.until_count(FAILURES, 2).await;
    let key = eventually("the handler sends its key", || async { keys.lock().unwrap().pop() }).await;
    finish(&format!("http://{}", tickr.app.addr()), &key).await;
    tickr.until(id, State::Completed).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_slots", 0).await;
    assert_eq!(tickr.count(FAILURES).await, 2);
    tickr.enqueue(push("fails")).await;
    tickr.until_count(OPEN, 1).await;
    // The call after the pause closes the breaker, and the others follow at once.
    tickr.enqueue_many((0..20).map(|_| push("early"))).await;
    tickr.until_count(OPEN, 0).await;
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_sets_shows_and_closes_breakers() {
    let tickr = TestApp::start().await;
    let receiver = Receiver::start(Duration::ZERO).await;
    let run = async |args: &[&str]| {
        let mut command = program::command(&program::tickr(), tickr.dir.path(), args);
        command.env("TICKR_URL", tickr.url(""));
        let (code, out, err) = program::outcome(command).await;
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        out
    };
    let limit = ["limits", "set", "per-host", "--shared-by", "host", "--concurrency", "2"];
    run(&[&limit[..], &["--breaker", "1", "--breaker-pause", "1h", "--breaker-max-pause", "2h"]].concat()).await;
    let set = tickr.get("/v1/limits/per-host").await.body;
    assert_eq!(set["breaker"], json!({"failures": 1, "pause_ms": 3_600_000, "max_pause_ms": 7_200_000}));
    set_and_wait(&tickr, "per-host", json!({"shared_by": "host", "concurrency": 2, "breaker": set["breaker"]})).await;
    open_breaker_of(&tickr, &receiver).await;
    let parked = tickr.enqueue(receiver.callback()).await;
    tickr.until_count(PARKED, 1).await;
    let keys = run(&["limits", "keys", "per-host"]).await;
    for part in ["BREAKER", "open", "answered 503", &receiver.host()] {
        assert!(keys.contains(part), "{part} is not in:\n{keys}");
    }
    receiver.answers(200);
    assert!(run(&["limits", "close", "per-host", &receiver.host()]).await.contains("is closed now"));
    tickr.until(parked, State::Completed).await;
    assert!(run(&["limits", "close", "per-host", &receiver.host()]).await.contains("was not open"));
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_is_judged_by_the_value_in_the_body() {
    let tickr = TestApp::start_with(|config| config.callback_allow_private = true, Registry::new()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    // It answers 200 to everything: first that it is busy, then that it has failed once, then that all is well.
    let calls = Arc::new(AtomicUsize::new(0));
    let answer = move || {
        let call = calls.fetch_add(1, Ordering::SeqCst);
        let code = ["busy", "failed", "done"][call.min(2)];
        async move { axum::Json(json!({"result": {"code": code}})) }
    };
    let long = || async { format!("{{\"code\": 100}}{}", " ".repeat(70_000)) };
    let app = axum::Router::new().route("/long", axum::routing::any(long)).fallback(answer);
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let rule = json!({"at": "/result/code", "success": ["done"], "retry": ["failed"], "snooze": ["busy"], "snooze_ms": 1_000,
                      "otherwise": "reject"});
    let payload = json!({"url": format!("http://{addr}/"), "answer": rule});
    let id = tickr.enqueue(json!({"kind": "http", "payload": payload, "retry": {"delays_ms": [10]}})).await;
    let job = tickr.until(id, State::Completed).await;
    assert_eq!(tickr.verdicts(id).await, ["snoozed", "failed", "succeeded"]);
    // A snooze uses no attempt.
    assert_eq!(job["attempt"], 2);
    // A body of more than 64 KiB is no JSON, also if it begins with some.
    let rule = json!({"at": "/code", "success": [100], "otherwise": "reject"});
    let payload = json!({"url": format!("http://{addr}/long"), "answer": rule});
    let long = tickr.until(tickr.enqueue(json!({"kind": "http", "payload": payload})).await, State::Failed).await;
    assert!(long["last_error"].as_str().unwrap().contains("answered 200 OK with no JSON"), "{long:#}");
    let wrong = json!({"url": format!("http://{addr}/"), "answer": {"at": "code"}});
    let refused = tickr.post("/v1/jobs", json!({"kind": "http", "payload": wrong})).await;
    assert_eq!((refused.status, refused.code()), (422, "invalid_payload"), "{:#}", refused.body);
    assert_eq!(refused.pointers(), ["/payload/answer/at", "/payload/answer"], "{:#}", refused.body);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_decides_is_read_to_its_end_and_one_that_breaks_off_decides_nothing() {
    let tickr = TestApp::start_with(|config| config.callback_allow_private = true, Registry::new()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    // It breaks its first answer off, and takes longer over the second one than tickr waits for a body that decides
    // nothing.
    let receiver = tokio::spawn(async move {
        for (first, pause, rest) in
            [("{\"co", Duration::ZERO, ""), ("{\"code\"", Duration::from_millis(5_500), ": 100}")]
        {
            let (mut socket, _) = listener.accept().await.unwrap();
            assert!(socket.read(&mut [0; 65_536]).await.unwrap() > 0);
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 13\r\nconnection: close\r\n\r\n";
            socket.write_all(format!("{head}{first}").as_bytes()).await.unwrap();
            tokio::time::sleep(pause).await;
            socket.write_all(rest.as_bytes()).await.unwrap();
        }
    });
    let rule = json!({"at": "/code", "success": [100], "otherwise": "reject"});
    let payload = json!({"url": format!("http://{addr}/"), "answer": rule, "timeout_ms": 20_000});
    let id = tickr.enqueue(json!({"kind": "http", "payload": payload, "retry": {"delays_ms": [10]}})).await;
    let job = eventually("the job ends", || async {
        let job = tickr.job(id).await;
        (job["state"] == "completed" || job["state"] == "failed").then_some(job)
    })
    .await;
    assert_eq!(tickr.verdicts(id).await, ["failed", "succeeded"], "{job:#}");
    assert!(job["attempts"][0]["error"].as_str().unwrap().contains("its body broke off"), "{job:#}");
    receiver.await.unwrap();
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_job_that_is_sent_to_another_host_leaves_the_line_of_the_former_one() {
    let tickr = TestApp::start().await;
    let (down, up) = tokio::join!(Receiver::start(Duration::ZERO), Receiver::start(Duration::ZERO));
    set_and_wait(&tickr, "per-host", with_breaker(1, 3_600_000, 3_600_000)).await;
    open_breaker_of(&tickr, &down).await;
    let parked = tickr.enqueue(down.callback()).await;
    tickr.until_count(PARKED, 1).await;
    // Another payload for the same host changes nothing about the line.
    let same = tickr.patch(&format!("/v1/jobs/{parked}"), json!({"payload": down.callback()["payload"]})).await;
    assert_eq!(same.status, 200, "{:#}", same.body);
    assert_eq!(tickr.count(PARKED).await, 1);
    let moved = tickr.patch(&format!("/v1/jobs/{parked}"), json!({"payload": up.callback()["payload"]})).await;
    assert_eq!((moved.status, &moved.body["host"]), (200, &json!(up.host())), "{:#}", moved.body);
    tickr.until(parked, State::Completed).await;
    assert_eq!((down.count(), up.count()), (1, 1));
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}
