//! Attempts that another system finishes: a receiver answers 202 and sends the verdict later, through any runner.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::State as Shared;
use axum::http::{HeaderMap, StatusCode};
use futures_util::future::join_all;
use reqwest::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::Executor;
use tickr::config::{Config, ServerUrl};
use tickr::event::Event;
use tickr::handlers::{Context, Failure, FinishLater, FollowUp, Kind, Output, Registry};
use tickr::job::{JobId, State};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::limits::set_and_wait;
use crate::support::{Answer, Owed, Proxy, Runner, TestApp, answer, bystander, eventually, http, short_lease};

/// A receiver that answers 202 and keeps the finish keys.
struct Slow {
    addr: SocketAddr,
    seen: Arc<Seen>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    keys: Mutex<VecDeque<String>>,
    /// A call to make before the answer: the base URL of the API.
    finish_first: Mutex<Option<String>>,
}

impl Slow {
    async fn start() -> Self {
        async fn accept(Shared(seen): Shared<Arc<Seen>>, headers: HeaderMap) -> StatusCode {
            let key = headers["tickr-finish-key"].to_str().unwrap().to_owned();
            let base = seen.finish_first.lock().unwrap().clone();
            if let Some(base) = base {
                let finished = http().post(format!("{base}/v1/attempts/{key}/finish"));
                let finished = answer(finished.json(&json!({"verdict": "succeeded", "result": "at once"}))).await;
                assert_eq!(finished.status, 200, "{:#}", finished.body);
            }
            seen.keys.lock().unwrap().push_back(key);
            StatusCode::ACCEPTED
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let seen = Arc::<Seen>::default();
        let app = axum::Router::new().fallback(accept).with_state(Arc::clone(&seen));
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { addr, seen, serving }
    }

    /// Return a job that the receiver may finish within this time, and reports within that one.
    fn job(&self, within_ms: u64, report_within_ms: Option<u64>) -> Value {
        let url = format!("http://{}/work", self.addr);
        let finish = json!({"within_ms": within_ms, "report_within_ms": report_within_ms});
        let retry = json!({"base_ms": 1, "factor": 1.0, "cap_ms": 1, "jitter": 0.0});
        json!({"kind": "http", "payload": {"url": url, "finish": finish}, "retry": retry})
    }

    /// Wait for the next call, and return its key.
    async fn key(&self) -> String {
        eventually("the receiver is called", || async { self.seen.keys.lock().unwrap().pop_front() }).await
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl TestApp {
    async fn report(&self, key: &str, body: Value) -> Answer {
        self.post(&format!("/v1/attempts/{key}/report"), body).await
    }

    async fn finish(&self, key: &str, body: Value) -> Answer {
        self.post(&format!("/v1/attempts/{key}/finish"), body).await
    }

    /// Wait until the runner has left the attempt to the receiver.
    async fn until_deferred(&self, id: JobId) -> Value {
        eventually("the attempt is deferred", || async {
            let job = self.job(id).await;
            job["deferred_until"].is_string().then_some(job)
        })
        .await
    }
}

fn succeeded() -> Value {
    json!({"verdict": "succeeded", "result": {"rows": 7}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_answers_202_and_finishes_the_attempt_later_through_any_runner() {
    let tickr = TestApp::start_with(|config| config.workers = 1, Registry::new()).await;
    let receiver = Slow::start().await;
    let id = tickr.enqueue(receiver.job(60_000, None)).await;
    let key = receiver.key().await;
    let job = tickr.until_deferred(id).await;
    assert_eq!(job["state"], "executing", "{job:#}");
    assert!(!job.to_string().contains(&key), "{job:#}");
    // The only worker is free meanwhile.
    let other = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(other, State::Completed).await;

    let reported = tickr.report(&key, json!({"percent": 40, "note": "halfway"})).await;
    assert_eq!((reported.status, &reported.body["cancel_requested"]), (200, &json!(false)), "{:#}", reported.body);
    assert_eq!(reported.body["job"], id.to_string());
    assert_eq!(tickr.job(id).await["progress"], json!({"percent": 40.0, "note": "halfway"}));
    tickr.until_metric("tickr_deferred_attempts 1").await;
    let why = tickr.get(&format!("/v1/jobs/{id}/explain")).await.body;
    assert!(why["summary"].as_str().unwrap().contains("another system works on it"), "{why:#}");

    let runner = tickr.another().await;
    let url = format!("http://{}/v1/attempts/{key}/finish", runner.addr());
    for _ in 0..2 {
        // Nothing changes when the call is repeated.
        let finished = answer(http().post(&url).json(&succeeded())).await;
        assert_eq!((finished.status, &finished.body["state"]), (200, &json!("completed")), "{:#}", finished.body);
    }
    let done = tickr.until(id, State::Completed).await;
    assert_eq!((&done["result"], done.get("deferred_until")), (&json!({"rows": 7}), None), "{done:#}");
    assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    let refused = tickr.finish(&key, json!({"verdict": "rejected", "error": "no"})).await;
    assert_eq!((refused.status, refused.code()), (409, "attempt_ended"));
    assert_eq!(tickr.report(&key, json!({})).await.status, 409);
    runner.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_another_system_finishes_wants_no_worker_of_its_queue() {
    let elsewhere = |config: &mut tickr::config::Config| config.queues = vec!["elsewhere".into()];
    let tickr = TestApp::start_with(elsewhere, Registry::new()).await;
    let receiver = Slow::start().await;
    let runner = tickr.another_with(|config| config.queues = vec!["default".into()], Registry::new()).await;
    let mut deferred = Vec::new();
    for _ in 0..3 {
        let id = tickr.enqueue(receiver.job(600_000, None)).await;
        deferred.push((id, receiver.key().await));
        tickr.until_deferred(id).await;
    }
    let demand = async || {
        let told = tickr.get("/v1/queues/default/backlog").await.body;
        ["wanted_workers", "due", "executing"].map(|part| told[part].as_i64().unwrap())
    };
    assert_eq!(demand().await, [0, 0, 0]);
    // The jobs that come now find no runner.
    runner.stop(CancellationToken::new()).await;
    tickr.enqueue_many((0..5).map(|_| json!({"kind": "noop"}))).await;
    assert_eq!(demand().await, [5, 5, 0]);
    assert_eq!(tickr.patch("/v1/queues/default", json!({"concurrency": 2})).await.status, 200);
    assert_eq!(demand().await, [2, 5, 0]);
    for (id, key) in deferred {
        assert_eq!(tickr.finish(&key, succeeded()).await.status, 200);
        tickr.until(id, State::Completed).await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_a_stop_nor_the_death_of_its_runner_interrupts_a_deferred_attempt() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let receiver = Slow::start().await;
    let stopped = tickr.another_with(|config| config.queues = vec!["default".into()], Registry::new()).await;
    let first = tickr.enqueue(receiver.job(600_000, None)).await;
    let first_key = receiver.key().await;
    tickr.until_deferred(first).await;
    stopped.stop(CancellationToken::new()).await;

    let mut killed = Runner::start(&tickr, &[("TICKR_CALLBACK_ALLOW_PRIVATE", "true")]);
    let second = tickr.enqueue(receiver.job(600_000, None)).await;
    let second_key = receiver.key().await;
    tickr.until_deferred(second).await;
    killed.kill9();
    // The reaper has looked at what the dead runner left.
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE stopped_at IS NULL", 1).await;
    for (id, key) in [(first, first_key), (second, second_key)] {
        assert_eq!(tickr.verdicts(id).await, ["open"]);
        assert_eq!(tickr.finish(&key, succeeded()).await.status, 200);
        tickr.until(id, State::Completed).await;
        assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_of_which_nothing_is_heard_times_out_and_its_key_opens_no_later_one() {
    let tickr = TestApp::start_with(short_lease, Registry::new()).await;
    let receiver = Slow::start().await;
    let id = tickr.enqueue(receiver.job(60_000, Some(1_000))).await;
    let old = receiver.key().await;
    let new = receiver.key().await;
    assert_ne!(old, new);
    tickr.until_deferred(id).await;
    let job = tickr.job(id).await;
    assert_eq!(job["attempts"][0]["verdict"], "timed_out", "{job:#}");
    assert_eq!(job["attempts"][0]["error"], "nothing was heard of it for 1000 ms");
    for refused in [tickr.report(&old, json!({})).await, tickr.finish(&old, succeeded()).await] {
        assert_eq!((refused.status, refused.code()), (409, "attempt_ended"), "{:#}", refused.body);
    }
    assert_eq!(tickr.finish(&new, succeeded()).await.status, 200);
    tickr.until(id, State::Completed).await;
    assert_eq!(tickr.verdicts(id).await, ["timed_out", "succeeded"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_keep_an_attempt_alive_until_its_deadline_and_carry_its_checkpoint() {
    let tickr = TestApp::start_with(short_lease, Registry::new()).await;
    let receiver = Slow::start().await;
    let began = Instant::now();
    let mut job = receiver.job(5_000, Some(2_000));
    job["max_attempts"] = json!(1);
    let id = tickr.enqueue(job).await;
    let key = receiver.key().await;
    let refused = eventually("the deadline", || async {
        let reported = tickr.report(&key, json!({"checkpoint": {"row": 3}})).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        (reported.status != 200).then_some(reported)
    })
    .await;
    assert_eq!(refused.code(), "attempt_ended");
    assert!(began.elapsed() >= Duration::from_secs(5), "{:?}", began.elapsed());
    let failed = tickr.until(id, State::Failed).await;
    assert_eq!(failed["last_error"], "it was not finished within 5000 ms", "{failed:#}");
    assert_eq!(failed["checkpoint"]["content"], json!({"row": 3}));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_keeps_what_it_leaves_out() {
    let tickr = TestApp::start().await;
    let receiver = Slow::start().await;
    let id = tickr.enqueue(receiver.job(60_000, None)).await;
    let key = receiver.key().await;
    tickr.until_deferred(id).await;
    for (body, shows) in [
        (json!({"note": "begun"}), json!({"percent": 0.0, "note": "begun"})),
        (json!({"percent": 40}), json!({"percent": 40.0, "note": "begun"})),
        (json!({"note": "second pass"}), json!({"percent": 40.0, "note": "second pass"})),
        (json!({"checkpoint": {"row": 3}}), json!({"percent": 40.0, "note": "second pass"})),
        (json!({"percent": null, "note": ""}), json!({"percent": 40.0, "note": null})),
    ] {
        assert_eq!(tickr.report(&key, body).await.status, 200);
        assert_eq!(tickr.job(id).await["progress"], shows);
    }
    assert_eq!(tickr.finish(&key, succeeded()).await.status, 200);
    tickr.stop().await;
}

/// A runner that freezes in a batch cancel keeps the rows of executing jobs.
#[tokio::test(flavor = "multi_thread")]
async fn reports_that_wait_for_a_locked_job_hold_up_no_other_change() {
    let tickr = TestApp::start().await;
    let receiver = Slow::start().await;
    let id = tickr.enqueue(receiver.job(60_000, None)).await;
    let key = receiver.key().await;
    tickr.until_deferred(id).await;
    let mut session = tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    let lock = sqlx::query("SELECT id FROM owed WHERE id = ? FOR UPDATE").bind(id.uuid());
    lock.fetch_one(&mut session).await.unwrap();
    let waiting = join_all((0..8).map(|_| async { tickr.report(&key, json!({})).await.status }));
    assert_eq!(tickr.goes_on_beside(waiting, &mut session).await, [200_u16; 8]);
    assert_eq!(tickr.finish(&key, succeeded()).await.status, 200);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_the_other_system_with_its_next_report() {
    let tickr = TestApp::start().await;
    let receiver = Slow::start().await;
    let id = tickr.enqueue(receiver.job(60_000, None)).await;
    let key = receiver.key().await;
    tickr.until_deferred(id).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 202);
    let reported = tickr.report(&key, json!({})).await;
    assert_eq!(reported.body["cancel_requested"], true, "{:#}", reported.body);
    let finished = tickr.finish(&key, json!({"verdict": "failed", "error": "stopped on request"})).await;
    assert_eq!(finished.body["state"], "cancelled", "{:#}", finished.body);
    tickr.until(id, State::Cancelled).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_has_ended_counts_as_one_of_another_system_no_more() {
    let tickr = TestApp::start().await;
    let receiver = Slow::start().await;
    let counted = "SELECT COUNT(*) FROM deferred_attempts WHERE look_at IS NOT NULL";
    let marked = "SELECT COUNT(*) FROM owed WHERE links & 16 <> 0";
    let stays = tickr.enqueue(receiver.job(3_600_000, None)).await;
    let kept = receiver.key().await;
    tickr.until_deferred(stays).await;
    let id = tickr.enqueue(receiver.job(3_600_000, Some(1_800_000))).await;
    for verdict in [
        json!({"verdict": "released"}),
        json!({"verdict": "failed", "error": "a disk"}),
        json!({"verdict": "failed", "error": "stopped on request"}),
    ] {
        let key = receiver.key().await;
        tickr.until_deferred(id).await;
        assert_eq!((tickr.count(counted).await, tickr.count(marked).await), (2, 2));
        let is_last = verdict["error"] == "stopped on request";
        if is_last {
            assert_eq!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 202);
        }
        let finished = tickr.finish(&key, verdict).await;
        assert_eq!(finished.status, 200, "{:#}", finished.body);
        if is_last {
            assert_eq!((tickr.count(counted).await, tickr.count(marked).await), (1, 1));
        }
    }
    tickr.until(id, State::Cancelled).await;
    assert_eq!(tickr.finish(&kept, succeeded()).await.body["state"], "completed");
    assert_eq!(tickr.count(counted).await, 0);
    tickr.until_metric("tickr_deferred_attempts 0").await;
    // The keys still find their attempts.
    assert_eq!(tickr.count("SELECT COUNT(*) FROM deferred_attempts").await, 4);
    assert_eq!(tickr.finish(&kept, succeeded()).await.status, 200);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verdict_of_another_system_has_its_usual_consequence() {
    let tickr = TestApp::start().await;
    let receiver = Slow::start().await;
    let id = tickr.enqueue(receiver.job(60_000, None)).await;
    let snoozed = json!({"verdict": "snoozed", "error": "busy", "delay_ms": 1_000});
    assert_eq!(tickr.finish(&receiver.key().await, snoozed).await.body["state"], "waiting");
    let failed = json!({"verdict": "failed", "error": "a disk"});
    assert_eq!(tickr.finish(&receiver.key().await, failed).await.body["state"], "retrying");
    let rejected = json!({"verdict": "rejected", "error": "no such order"});
    assert_eq!(tickr.finish(&receiver.key().await, rejected).await.body["state"], "failed");
    let job = tickr.until(id, State::Failed).await;
    assert_eq!((&job["last_error"], &job["attempt"]), (&json!("no such order"), &json!(2)), "{job:#}");
    assert_eq!(tickr.verdicts(id).await, ["snoozed", "failed", "rejected"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finish_that_comes_before_the_answer_of_the_receiver_counts() {
    let tickr = TestApp::start().await;
    let receiver = Slow::start().await;
    *receiver.seen.finish_first.lock().unwrap() = Some(format!("http://{}", tickr.app.addr()));
    let ids = tickr.enqueue_many((0..20).map(|_| receiver.job(60_000, None))).await;
    tickr.until_idle().await;
    for id in ids {
        assert_eq!(tickr.until(id, State::Completed).await["result"], "at once");
        assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finish_key_needs_no_api_key_and_an_unknown_one_opens_nothing() {
    let tickr = TestApp::start_with(|config| config.api_tokens = vec!["canary-token".into()], Registry::new()).await;
    let receiver = Slow::start().await;
    let sent = tickr.with_key("canary-token", Method::POST, "/v1/jobs").json(&receiver.job(60_000, None));
    assert_eq!(answer(sent).await.status, 201);
    let key = receiver.key().await;
    assert_eq!(tickr.get("/v1/jobs").await.status, 401);
    assert_eq!(tickr.report(&key, json!({})).await.status, 200);
    let mut other: Vec<u8> = key.clone().into_bytes();
    other[10] = if other[10] == b'0' { b'1' } else { b'0' };
    let other = String::from_utf8(other).unwrap();
    for wrong in ["fin_", "x", &other, &key[..key.len() - 1], &key.to_uppercase()] {
        let refused = tickr.finish(wrong, succeeded()).await;
        assert_eq!((refused.status, refused.code()), (404, "not_found"), "{wrong}");
    }
    let stored = tickr.count("SELECT COUNT(*) FROM deferred_attempts WHERE LENGTH(finish_key) = 32").await;
    assert_eq!(stored, 1);
    assert_eq!(tickr.finish(&key, succeeded()).await.status, 200);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mysql_that_goes_away_before_a_callback_uses_no_attempt() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let through = |config: &mut Config| {
        config.mysql_url = Some(ServerUrl::mysql(&proxy.url()).unwrap());
        config.queues = vec!["default".into()];
    };
    let runner = tickr.another_with(through, Registry::new()).await;
    let receiver = Slow::start().await;
    // After three broken connections the store says that MySQL is out. So it says that twice.
    proxy.refuse("INSERT INTO deferred_attempts", 1053, 7);
    let mut job = receiver.job(60_000, None);
    job["max_attempts"] = json!(1);
    let id = tickr.enqueue(job).await;
    let key = receiver.key().await;
    assert!(proxy.is_through(), "MySQL was out");
    assert_eq!(tickr.finish(&key, succeeded()).await.body["state"], "completed");
    assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    assert_eq!(receiver.seen.keys.lock().unwrap().len(), 0, "there was one call");
    runner.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_with_a_finish_key_that_fail_have_documented_answers() {
    let tickr = TestApp::start().await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let through = |config: &mut Config| config.mysql_url = Some(ServerUrl::mysql(&proxy.url()).unwrap());
    let runner = tickr.another_with(through, Registry::new()).await;
    let key = format!("fin_{}", "0".repeat(64));
    proxy.refuse("SELECT d.job_id", 1053, usize::MAX);
    for (verb, body) in [("report", json!({})), ("finish", succeeded())] {
        // Each answer is compared with the OpenAPI document.
        let call = || http().post(format!("http://{}/v1/attempts/{key}/{verb}", runner.addr())).json(&body);
        let out = answer(call()).await;
        assert_eq!((out.status, out.code()), (503, "store_unavailable"), "{verb}: {:#}", out.body);
        let foreign = answer(call().header("sec-fetch-site", "cross-site")).await;
        assert_eq!((foreign.status, foreign.code()), (403, "forbidden"), "{verb}: {:#}", foreign.body);
    }
    proxy.pass();
    runner.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_reports_and_ends_of_attempts_are_refused_with_every_position() {
    let tickr = TestApp::start_with(|config| config.body_limit_bytes = 1 << 20, Registry::new()).await;
    let receiver = Slow::start().await;
    tickr.enqueue(receiver.job(60_000, None)).await;
    let key = receiver.key().await;
    for (body, pointers) in [
        (json!({"verdict": "succeeded", "error": "x", "delay_ms": 5}), vec!["/error", "/delay_ms"]),
        (json!({"verdict": "failed", "result": 1}), vec!["/result", "/error"]),
        (json!({"verdict": "snoozed", "error": "later"}), vec!["/delay_ms"]),
        (json!({"verdict": "rejected", "error": " "}), vec!["/error"]),
        (json!({"verdict": "succeeded", "result": "x".repeat(262_143)}), vec!["/result"]),
    ] {
        let refused = tickr.finish(&key, body).await;
        assert_eq!((refused.status, refused.code(), refused.pointers()), (422, "invalid_request", pointers));
    }
    assert_eq!(tickr.finish(&key, json!({"verdict": "lost", "error": "x"})).await.status, 422);
    let wrong = json!({"percent": 101, "note": "x".repeat(121), "checkpoint": "x".repeat(65_536)});
    let refused = tickr.report(&key, wrong).await;
    assert_eq!(refused.pointers(), ["/percent", "/note", "/checkpoint"], "{:#}", refused.body);
    let refused = tickr.post("/v1/jobs", receiver.job(999, Some(604_800_001))).await;
    assert_eq!(refused.pointers(), ["/payload/finish/report_within_ms", "/payload/finish/within_ms"]);
    assert_eq!(tickr.finish(&key, succeeded()).await.status, 200);
    tickr.until_idle().await;
    tickr.stop().await;
}

/// A job whose handler asks for a key, or forgets to.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Approval {
    asks: bool,
}

impl Kind for Approval {
    const NAME: &'static str = "approval";
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_of_your_own_leaves_its_attempt_to_another_system_and_its_job_keeps_its_places() {
    let keys = Arc::new(Mutex::new(VecDeque::new()));
    let mut kinds = Registry::new();
    let sent = Arc::clone(&keys);
    kinds.register(move |job: Approval, ctx: Context| {
        let sent = Arc::clone(&sent);
        async move {
            ctx.save_checkpoint("asks")?;
            ctx.log("asked");
            if job.asks {
                let key = ctx.finish_key().await?;
                assert_eq!(ctx.finish_key().await?, key, "an attempt has one key");
                sent.lock().unwrap().push_back(key.expose().to_owned());
                // The runner stores checkpoints a quarter of a second apart, so the next one is not stored by itself.
                ctx.checkpoint_saved().await?;
                ctx.save_checkpoint("asked")?;
            }
            Ok(Output::finished_later(FinishLater::within(Duration::from_secs(60))))
        }
    });
    let tickr = TestApp::start_with(|_| {}, kinds).await;
    let forgetful = tickr.enqueue_kind("approval", json!({"asks": false})).await;
    let failed = tickr.until(forgetful, State::Failed).await;
    assert!(failed["last_error"].as_str().unwrap().contains("gave it no finish key"), "{failed:#}");

    set_and_wait(&tickr, "one", json!({"concurrency": 1})).await;
    let job =
        |key: &str| json!({"kind": "approval", "payload": {"asks": true}, "limit_key": "tenant", "order_key": key});
    let ids = [tickr.enqueue(job("a")).await, tickr.enqueue(job("a")).await, tickr.enqueue(job("b")).await];
    for nth in 1..=3 {
        let key = eventually("a handler asks", || async { keys.lock().unwrap().pop_front() }).await;
        tickr.until_count("SELECT COUNT(*) FROM deferred_attempts WHERE look_at IS NOT NULL", 1).await;
        // The limit counts the attempt, and the order key waits for it.
        assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE state = 'executing'").await, 1, "{nth}");
        assert_eq!(tickr.count("SELECT COUNT(*) FROM checkpoints").await, 2, "that of the failed job, and this one");
        let newest = r#"SELECT COUNT(*) FROM checkpoints WHERE content = '"asked"'"#;
        assert_eq!(tickr.count(newest).await, 1, "the newest one was left with the attempt");
        assert_eq!(tickr.count("SELECT COUNT(*) FROM attempt_logs").await, 1 + nth, "the log is there meanwhile");
        assert_eq!(tickr.finish(&key, json!({"verdict": "succeeded"})).await.status, 200);
    }
    for id in ids {
        tickr.until(id, State::Completed).await;
    }
    tickr.until_idle().await;
    let deletes = json!({"action": "delete", "filter": {"kind": "approval"}});
    assert_eq!(tickr.post("/v1/operations", deletes).await.status, 202);
    tickr.until_count("SELECT COUNT(*) FROM jobs", 0).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM deferred_attempts").await, 0);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempt_logs").await, 0);
    tickr.stop().await;
}

#[test]
fn a_handler_that_leaves_its_attempt_to_another_system_cannot_add_follow_up_jobs() {
    let left = || Output::finished_later(FinishLater::within(Duration::from_secs(60)));
    let follow_up = || FollowUp::of(&Approval { asks: false }).unwrap();
    for refused in
        [left().then(&Approval { asks: false }), left().then_job(follow_up()), left().then_all([follow_up()])]
    {
        let failure = refused.unwrap_err();
        assert!(matches!(&failure, Failure::Reject { error } if error.contains("approval")), "{failure:?}");
    }
    assert!(left().then_all([]).is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_whose_attempt_was_finished_before_it_saved_its_checkpoint_frees_its_worker() {
    let (keys, finished) = (Arc::new(Mutex::new(VecDeque::new())), Arc::new(Semaphore::new(0)));
    let mut kinds = Registry::new();
    let (sent, heard) = (Arc::clone(&keys), Arc::clone(&finished));
    kinds.register(move |_: Approval, ctx: Context| {
        let (sent, heard) = (Arc::clone(&sent), Arc::clone(&heard));
        async move {
            let key = ctx.finish_key().await?;
            sent.lock().unwrap().push_back(key.expose().to_owned());
            heard.acquire().await.unwrap().forget();
            ctx.save_checkpoint("sent")?;
            Ok(Output::finished_later(FinishLater::within(Duration::from_secs(60))))
        }
    });
    let tickr = TestApp::start_with(|config| config.workers = 1, kinds).await;
    let id = tickr.enqueue_kind("approval", json!({"asks": true})).await;
    let key = eventually("the handler asks", || async { keys.lock().unwrap().pop_front() }).await;
    assert_eq!(tickr.finish(&key, succeeded()).await.status, 200);
    finished.add_permits(1);
    let other = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(other, State::Completed).await;
    assert_eq!(tickr.until(id, State::Completed).await["result"], succeeded()["result"]);
    assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM checkpoints").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_was_finished_before_its_handler_returned_keeps_its_log_and_is_not_deferred() {
    let base = Arc::<Mutex<String>>::default();
    let api = Arc::clone(&base);
    let mut kinds = Registry::new();
    kinds.register(move |_: Approval, ctx: Context| {
        let base = api.lock().unwrap().clone();
        async move {
            ctx.log("sent");
            let key = ctx.finish_key().await?;
            let finish = http().post(format!("{base}/v1/attempts/{}/finish", key.expose()));
            assert_eq!(answer(finish.json(&succeeded())).await.status, 200);
            Ok(Output::finished_later(FinishLater::within(Duration::from_secs(60))))
        }
    });
    let tickr = TestApp::start_with(|config| config.workers = 1, kinds).await;
    *base.lock().unwrap() = format!("http://{}", tickr.app.addr());
    let mut events = tickr.app.broker().events().listen();
    let id = tickr.enqueue_kind("approval", json!({"asks": true})).await;
    tickr.until(id, State::Completed).await;
    tickr.until_count("SELECT COUNT(*) FROM attempt_logs WHERE log LIKE '%sent%'", 1).await;
    // Its only worker is free again, so the runner has done with the attempt.
    let other = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(other, State::Completed).await;
    while let Ok(event) = events.try_recv() {
        assert!(!matches!(event, Event::Deferred { .. }), "{event:?}");
    }
    assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_mysql_refuses_keeps_no_attempt_from_being_deferred() {
    let keys = Arc::new(Mutex::new(VecDeque::new()));
    let mut kinds = Registry::new();
    let sent = Arc::clone(&keys);
    kinds.register(move |_: Approval, ctx: Context| {
        let sent = Arc::clone(&sent);
        async move {
            ctx.log("x".repeat(1_000));
            let key = ctx.finish_key().await?;
            sent.lock().unwrap().push_back(key.expose().to_owned());
            Ok(Output::finished_later(FinishLater::within(Duration::from_secs(60))))
        }
    });
    let tickr = TestApp::start_with(|_| {}, kinds).await;
    tickr.sql("ALTER TABLE attempt_logs MODIFY log TINYTEXT NOT NULL").await;
    let id = tickr.enqueue_kind("approval", json!({"asks": true})).await;
    tickr.until_deferred(id).await;
    let key = keys.lock().unwrap().pop_front().unwrap();
    assert_eq!(tickr.finish(&key, succeeded()).await.status, 200);
    tickr.until(id, State::Completed).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempt_logs").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deferred_attempt_outlives_a_pause_a_drain_a_backlog_and_a_mysql_that_stands_still_for_longer_than_its_report()
 {
    let tickr = TestApp::start_alone(|_| {}, |config| config.lease = Duration::from_secs(10)).await;
    let receiver = Slow::start().await;
    let limit = tickr.patch("/v1/queues/default", json!({"concurrency": 1})).await;
    assert_eq!(limit.status, 200, "{:#}", limit.body);
    Owed { queue: "'elsewhere'", ..Owed::overdue(50_000) }.insert(&tickr, 1).await;
    let ids = tickr.enqueue_many((0..2).map(|_| receiver.job(600_000, Some(3_000)))).await;
    let keys = [receiver.key().await, receiver.key().await];
    for id in &ids {
        tickr.until_deferred(*id).await;
    }
    assert_eq!(tickr.post("/v1/queues/default/pause", json!({})).await.status, 200);
    let runner = tickr.app.runner().as_str().replace('/', "%2F");
    assert_eq!(tickr.post(&format!("/v1/runners/{runner}/drain"), json!({})).await.status, 200);
    for key in &keys {
        assert_eq!(tickr.report(key, json!({})).await.status, 200);
    }
    tickr.services().mysql().pause().unwrap();
    // Longer than the lease and than the time between two reports.
    tokio::time::sleep(Duration::from_secs(12)).await;
    tickr.services().mysql().resume().unwrap();
    tickr.until_count("SELECT COUNT(*) FROM deferred_attempts WHERE look_at <= UTC_TIMESTAMP(6)", 2).await;
    // The runner looks once a second, and must end neither attempt yet.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for key in &keys {
        // The systems have a lease's time to report again.
        eventually("a report is heard", || async {
            let reported = tickr.report(key, json!({})).await;
            assert_ne!(reported.status, 409, "{:#}", reported.body);
            (reported.status == 200).then_some(())
        })
        .await;
    }
    for key in &keys {
        assert_eq!(tickr.finish(key, succeeded()).await.status, 200);
    }
    for id in &ids {
        tickr.until(*id, State::Completed).await;
        assert_eq!(tickr.verdicts(*id).await, ["succeeded"]);
    }
    Owed::remove(&tickr).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_limit_counts_the_attempts_that_a_receiver_finishes_later() {
    let tickr = TestApp::start_with(short_lease, Registry::new()).await;
    let receiver = Slow::start().await;
    let job = || {
        let mut job = receiver.job(60_000, None);
        job["limit_key"] = json!("a");
        job
    };
    let (mut ids, mut keys) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let id = tickr.enqueue(job()).await;
        keys.push(receiver.key().await);
        tickr.until_deferred(id).await;
        ids.push(id);
    }
    // The reaper forgets the batches of claims whose attempts have all ended or are left to others.
    tickr.until_count("SELECT COUNT(*) FROM claim_batches", 0).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 2})).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM limit_slots").await, 2);
    let third = tickr.enqueue(job()).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 1).await;
    assert_eq!(tickr.finish(&keys[0], succeeded()).await.status, 200);
    let key = receiver.key().await;
    tickr.until_deferred(third).await;
    for key in [&keys[1], &key] {
        assert_eq!(tickr.finish(key, succeeded()).await.status, 200);
    }
    tickr.until_idle().await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_follow_a_finish_that_comes_later_once_and_need_an_api_key() {
    const FOLLOWED: &str = "SELECT COUNT(*) FROM jobs WHERE kind = 'noop'";
    let tickr = TestApp::start().await;
    let receiver = Slow::start().await;
    let id = tickr.enqueue(receiver.job(60_000, None)).await;
    let key = receiver.key().await;
    tickr.until_deferred(id).await;
    let made = async |admin: Option<&str>, name: &str, body: Value| {
        let request = tickr.request(Method::PUT, &format!("/v1/api-keys/{name}")).json(&body);
        let made = answer(if let Some(admin) = admin { request.bearer_auth(admin) } else { request }).await;
        assert_eq!(made.status, 201, "{:#}", made.body);
        made.body["token"].as_str().unwrap().to_owned()
    };
    // This call comes while the API is open, and its body when it is not any more.
    let (at, body) = (tickr.app.addr(), r#"{"verdict": "succeeded", "follow_ups": [{"kind": "noop"}]}"#);
    let mut socket = TcpStream::connect(at).await.unwrap();
    let head = format!(
        "POST /v1/attempts/{key}/finish HTTP/1.1\r\nhost: {at}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut asked = [0; 25];
    socket.read_exact(&mut asked).await.unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
    let admin = made(None, "root", json!({"scope": "admin"})).await;
    socket.write_all(body.as_bytes()).await.unwrap();
    let mut refused = String::new();
    socket.read_to_string(&mut refused).await.unwrap();
    assert!(refused.starts_with("HTTP/1.1 403 ") && refused.contains("/follow_ups"), "{refused}");
    let work = made(Some(&admin), "work", json!({"scope": "work"})).await;
    let shop = made(Some(&admin), "shop", json!({"scope": "enqueue", "kinds": ["noop"]})).await;
    let finish = async |right: Option<&str>, jobs: Value| {
        let body = json!({"verdict": "succeeded", "follow_ups": jobs});
        let request = tickr.request(Method::POST, &format!("/v1/attempts/{key}/finish")).json(&body);
        answer(match right {
            Some(right) => request.header("tickr-enqueue-authorization", format!("Bearer {right}")),
            None => request,
        })
        .await
    };
    // A proxy may have filled this header.
    let by_caller = tickr.request(Method::POST, &format!("/v1/attempts/{key}/finish")).bearer_auth(&shop);
    let by_caller = by_caller.json(&json!({"verdict": "succeeded", "follow_ups": [{"kind": "noop"}]}));
    assert_eq!(answer(by_caller).await.status, 403);
    for (right, jobs, pointer) in [
        (None, json!([{"kind": "noop"}]), "/follow_ups"),
        (Some(work.as_str()), json!([{"kind": "noop"}]), "/follow_ups"),
        (Some(shop.as_str()), json!([{"kind": "noop"}, {"kind": "email"}]), "/follow_ups/1/kind"),
    ] {
        let refused = finish(right, jobs).await;
        assert_eq!((refused.status, refused.code(), refused.pointers()), (403, "forbidden", vec![pointer]));
    }
    let wrong = finish(Some(&shop), json!([{"kind": "noop"}, {"kind": "noop", "priority": 12}])).await;
    assert_eq!((wrong.status, wrong.pointers()), (422, vec!["/follow_ups/1/priority"]), "{:#}", wrong.body);
    assert_eq!(tickr.count(FOLLOWED).await, 0);
    for _ in 0..2 {
        let finished = finish(Some(&shop), json!([{"kind": "noop"}, {"kind": "noop"}])).await;
        assert_eq!((finished.status, &finished.body["state"]), (200, &json!("completed")), "{:#}", finished.body);
    }
    assert_eq!(tickr.count(FOLLOWED).await, 2);
    // A repetition has the same answer when the API key is revoked, is left out, or a kind is gone since.
    assert_eq!(answer(tickr.request(Method::DELETE, "/v1/api-keys/shop").bearer_auth(&admin)).await.status, 200);
    for (right, kind) in [(Some(&shop), "noop"), (None, "noop"), (Some(&admin), "nothing")] {
        let finished = finish(right.map(String::as_str), json!([{"kind": kind}])).await;
        assert_eq!((finished.status, &finished.body["state"]), (200, &json!("completed")), "{:#}", finished.body);
    }
    assert_eq!(tickr.count(FOLLOWED).await, 2);
    tickr.stop().await;
}
