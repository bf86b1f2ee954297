//! Remote workers: programs in other languages that fetch jobs over HTTP, from any tickr process.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{Connection, Executor};
use tickr::app::App;
use tickr::config::{Config, ServerUrl};
use tickr::handlers::Registry;
use tickr::job::{JobId, State};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::limits::set;
use crate::support::{
    Answer, DEADLINE, Halt, Owed, Proxy, Pulse, Runner, TestApp, answer, eventually, http, open_transactions,
    short_lease,
};

/// A worker of a test, which calls any process.
struct Worker {
    id: String,
}

impl Worker {
    /// Register a worker for the kind `resize`, which the test has declared.
    async fn register(tickr: &TestApp, slots: u32) -> Self {
        Self::register_as(tickr, json!({"name": "test", "kinds": ["resize"], "slots": slots})).await
    }

    async fn register_as(tickr: &TestApp, body: Value) -> Self {
        let made = tickr.post("/v1/workers", body).await;
        assert_eq!(made.status, 201, "{:#}", made.body);
        assert_eq!(made.body["beat_ms"].as_u64().unwrap(), made.body["lease_ms"].as_u64().unwrap() / 3);
        Self { id: made.body["id"].as_str().unwrap().to_owned() }
    }

    /// Shorten the lease, because a worker cannot ask for less than ten seconds.
    async fn lease_ms(&self, tickr: &TestApp, ms: u32) {
        tickr.sql(format!("UPDATE runners SET lease_ms = {ms} WHERE id = '{}'", self.id)).await;
    }

    /// Let the leases of the worker and of all open attempts be this long, from now on. A test fetches before: no
    /// answer hands out what was claimed a quarter of a lease ago, and the machine may stand still for as long.
    async fn lease_from_now(&self, tickr: &TestApp, ms: u32) {
        let attempts =
            format!("lease_until = UTC_TIMESTAMP(6) + INTERVAL {ms}000 MICROSECOND WHERE state = 'executing'");
        let worker = format!("lease_ms = {ms}, heartbeat_at = UTC_TIMESTAMP(6) WHERE id = '{}'", self.id);
        tickr.sql(format!("UPDATE owed SET {attempts}; UPDATE runners SET {worker}")).await;
    }

    async fn call(&self, at: SocketAddr, verb: &str, body: Value) -> Answer {
        let url = format!("http://{at}/v1/workers/{}/{verb}", self.id);
        answer(http().post(url).json(&body)).await
    }

    /// Fetch with a new id. Return the jobs.
    async fn fetch(&self, at: SocketAddr, slots: u32, wait_ms: u64, holding: &[&Value]) -> Vec<Value> {
        self.fetch_as(Uuid::now_v7(), at, slots, wait_ms, holding).await
    }

    async fn fetch_as(&self, id: Uuid, at: SocketAddr, slots: u32, wait_ms: u64, holding: &[&Value]) -> Vec<Value> {
        let holding: Vec<&Value> = holding.iter().map(|job| &job["token"]).collect();
        let body = json!({"slots": slots, "wait_ms": wait_ms, "holding": holding, "fetch_id": id});
        let fetched = self.call(at, "fetch", body).await;
        assert_eq!(fetched.status, 200, "{:#}", fetched.body);
        fetched.body["jobs"].as_array().unwrap().clone()
    }

    async fn beat(&self, at: SocketAddr, holding: &[&Value]) -> Value {
        let holding: Vec<Value> = holding.iter().map(|job| json!({"token": job["token"]})).collect();
        let beaten = self.call(at, "beat", json!({"holding": holding})).await;
        assert_eq!(beaten.status, 200, "{:#}", beaten.body);
        beaten.body
    }

    /// Finish one attempt. Return its result. Repeat the verdict while it is not written yet, as clients do: a machine
    /// that stands still takes the time that the answer waits for it.
    async fn finish(&self, at: SocketAddr, job: &Value, verdict: Value) -> Value {
        eventually("the verdict is written", || async {
            let result = self.finish_once(at, job, verdict.clone()).await;
            (result["result"] != "locked").then_some(result)
        })
        .await
    }

    async fn finish_once(&self, at: SocketAddr, job: &Value, mut verdict: Value) -> Value {
        verdict["token"] = job["token"].clone();
        let finished = self.call(at, "finish", json!({"verdicts": [verdict]})).await;
        assert_eq!(finished.status, 200, "{:#}", finished.body);
        finished.body["results"][0].clone()
    }
}

async fn started() -> TestApp {
    started_with(|_| {}).await
}

async fn started_with(change: impl FnOnce(&mut Config)) -> TestApp {
    // It executes no job of these tests, and soon judges the workers that do.
    let short = |config: &mut Config| {
        short_lease(config);
        change(config);
    };
    let tickr = TestApp::start_with(short, Registry::new()).await;
    let declared = tickr.put("/v1/kinds/resize", json!({"queue": "pictures", "retry": {"base_ms": 10}})).await;
    assert_eq!(declared.status, 201, "{:#}", declared.body);
    tickr
}

/// Wait until this is the newest request of a worker for jobs.
async fn until_asked(tickr: &TestApp, fetch: Uuid) {
    tickr.until_count(format!("SELECT COUNT(*) FROM runners WHERE fetch_id = x'{}'", fetch.simple()), 1).await;
}

/// Wait until the process ends attempts by the clock of MySQL. It does not before it has read when that clock was set,
/// nor for a moment after a gap in its own heartbeats.
async fn until_limits_are_followed(tickr: &TestApp, worker: &Worker, kind: &str) {
    let at = tickr.app.addr();
    tickr.enqueue(json!({"kind": kind, "payload": "over", "timeout_ms": 1})).await;
    let over = worker.fetch(at, 1, 20_000, &[]).await.pop().unwrap();
    eventually("the worker is told to stop what is over", || async {
        (worker.beat(at, &[&over]).await["cancel"] == json!([over["token"]])).then_some(())
    })
    .await;
    assert_eq!(worker.finish(at, &over, json!({"verdict": "succeeded"})).await["result"], "settled");
}

fn id_of(job: &Value) -> JobId {
    job["id"].as_str().unwrap().parse().unwrap()
}

/// Send a request for jobs on a connection of its own, without reading its answer.
async fn sent_fetch(at: SocketAddr, worker: &Worker, body: &Value) -> TcpStream {
    let mut socket = TcpStream::connect(at).await.unwrap();
    let body = body.to_string();
    let head = format!(
        "POST /v1/workers/{}/fetch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        worker.id,
        body.len()
    );
    socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    socket
}

/// Make the id of a request that its worker makes after another one: ids tell milliseconds.
fn later_than(earlier: Uuid) -> Uuid {
    loop {
        let id = Uuid::now_v7();
        if id.as_bytes()[..6] > earlier.as_bytes()[..6] {
            return id;
        }
    }
}

/// Make an API key. Return its secret.
async fn api_key(tickr: &TestApp, admin: Option<&str>, name: &str, body: Value) -> String {
    let request = tickr.request(Method::PUT, &format!("/v1/api-keys/{name}")).json(&body);
    let made = answer(if let Some(admin) = admin { request.bearer_auth(admin) } else { request }).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    made.body["token"].as_str().unwrap().to_owned()
}

async fn called(at: SocketAddr, method: Method, path: String, key: String, body: Value) -> Answer {
    let url = format!("http://{at}{path}");
    answer(http().request(method, url).bearer_auth(key).json(&body)).await
}

async fn stop(other: App) {
    other.stop(CancellationToken::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_executes_a_job_from_its_enqueue_to_its_result() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 4).await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let job = json!({"kind": "resize", "payload": {"path": "a.png"}, "tags": ["eu"], "timeout_ms": 120_000,
        "trace": {"traceparent": trace}});
    // The request waits before the job is there.
    let request = Uuid::now_v7();
    let (jobs, id) = tokio::join!(worker.fetch_as(request, at, 4, 20_000, &[]), async {
        until_asked(&tickr, request).await;
        tickr.enqueue(job).await
    });
    assert_eq!(jobs.len(), 1, "{jobs:#?}");
    let job = &jobs[0];
    assert_eq!((id_of(job), &job["kind"], &job["queue"]), (id, &json!("resize"), &json!("pictures")));
    assert_eq!((&job["payload"], &job["tags"]), (&json!({"path": "a.png"}), &json!(["eu"])));
    assert_eq!((&job["attempt"], &job["max_attempts"], &job["timeout_ms"]), (&json!(1), &json!(5), &json!(120_000)));
    assert!(job["deadline_at"].as_str().unwrap() > job["started_at"].as_str().unwrap());
    assert!(job["traceparent"].as_str().unwrap().contains("4bf92f3577b34da6a3ce929d0e0e4736"));

    // The attempt was committed before it was handed out, for this worker.
    let seen = tickr.job(id).await;
    assert_eq!((&seen["state"], &seen["attempts"][0]["runner"]), (&json!("executing"), &json!(worker.id)));
    let body = json!({"holding": [{"token": job["token"], "percent": 40.0, "note": "half", "checkpoint": {"row": 7}}]});
    let beaten = worker.call(at, "beat", body).await;
    assert_eq!(beaten.body, json!({"cancel": [], "lost": [], "drain": false}));
    assert_eq!(tickr.job(id).await["progress"]["percent"], 40.0);
    let listed = tickr.get("/v1/runners").await.body;
    let listed =
        listed["data"].as_array().unwrap().iter().find(|runner| runner["id"] == json!(worker.id)).unwrap().clone();
    assert_eq!((&listed["via"], &listed["workers"], &listed["busy_workers"]), (&json!("http"), &json!(4), &json!(1)));

    // The first attempt fails, and the next begins with its checkpoint.
    let failed = worker.finish(at, job, json!({"verdict": "failed", "error": "no disk", "log": "a line"})).await;
    assert_eq!((&failed["result"], &failed["state"]), (&json!("settled"), &json!("retrying")));
    let again = worker.fetch(at, 4, 20_000, &[]).await;
    assert_eq!((&again[0]["attempt"], &again[0]["checkpoint"]), (&json!(2), &json!({"row": 7})));
    let done = json!({"verdict": "succeeded", "result": {"bytes": 12}});
    let finished = worker.finish(at, &again[0], done.clone()).await;
    assert_eq!((&finished["result"], &finished["state"]), (&json!("settled"), &json!("completed")));
    // The same verdict has the same answer, another one has not.
    assert_eq!(worker.finish(at, &again[0], done).await, finished);
    let other = worker.finish(at, &again[0], json!({"verdict": "rejected", "error": "no"})).await;
    assert_eq!(other["result"], "lease_lost");
    let ended = tickr.job(id).await;
    assert_eq!((&ended["state"], &ended["result"]), (&json!("completed"), &json!({"bytes": 12})));
    assert_eq!(tickr.verdicts(id).await, ["failed", "succeeded"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_does_not_wait_gets_the_jobs_that_are_due() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 1).await;
    assert_eq!(worker.fetch(at, 1, 0, &[]).await, Vec::<Value>::new());
    let job = tickr.enqueue_kind("resize", json!(1)).await;
    // The index hears of the job a moment after its commit.
    let fetched = eventually("the job is delivered", || async { worker.fetch(at, 1, 0, &[]).await.pop() }).await;
    assert_eq!(id_of(&fetched), job);
    worker.finish(at, &fetched, json!({"verdict": "succeeded"})).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_jobs_reach_a_worker_in_answers_of_a_few_mebibytes() {
    const JOBS: usize = 60;
    let tickr = started_with(|config| config.body_limit_bytes = 1 << 20).await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 100).await;
    let payload = "x".repeat(200 * 1_024);
    for _ in 0..JOBS / 5 {
        tickr.enqueue_many((0..5).map(|_| json!({"kind": "resize", "payload": payload}))).await;
    }
    let lane = tickr.key("ready:pictures");
    eventually("all jobs are in the index", || async {
        let length: usize = redis::cmd("LLEN").arg(&lane).query_async(&mut tickr.redis().await).await.unwrap();
        (length >= JOBS).then_some(())
    })
    .await;
    let (mut done, mut answers) = (HashSet::new(), Vec::new());
    while done.len() < JOBS {
        let body = json!({"slots": 100, "wait_ms": 20_000, "holding": [], "fetch_id": Uuid::now_v7()});
        let fetched = worker.call(at, "fetch", body).await;
        assert_eq!(fetched.status, 200, "{:#}", fetched.body);
        let (jobs, bytes) = (fetched.body["jobs"].as_array().unwrap(), fetched.body.to_string().len());
        assert!(!jobs.is_empty() && bytes < 5 << 20, "{} jobs in {bytes} bytes", jobs.len());
        answers.push(jobs.len());
        for job in jobs {
            assert_eq!(job["attempt"], 1);
            assert_eq!(worker.finish(at, job, json!({"verdict": "succeeded"})).await["state"], "completed");
            assert!(done.insert(id_of(job)), "{answers:?}");
        }
    }
    println!("{JOBS} jobs of 200 KiB came in answers with {answers:?} jobs");
    assert!(answers.len() > 2 && answers[0] > 1, "{answers:?}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_verdict_has_its_answer_also_when_the_job_was_cancelled_meanwhile() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 1).await;
    for verdict in [
        json!({"verdict": "released"}),
        json!({"verdict": "snoozed", "error": "busy", "delay_ms": 3_600_000}),
        json!({"verdict": "failed", "error": "later", "delay_ms": 3_600_000}),
    ] {
        let id = tickr.enqueue_kind("resize", json!(1)).await;
        let jobs = worker.fetch(at, 1, 20_000, &[]).await;
        assert_eq!(worker.finish(at, &jobs[0], verdict.clone()).await["result"], "settled", "{verdict}");
        assert_eq!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 200);
        let again = worker.finish(at, &jobs[0], verdict.clone()).await;
        assert_eq!((&again["result"], &again["state"]), (&json!("settled"), &json!("cancelled")), "{verdict}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn verdicts_of_every_sort_have_the_effect_that_they_have_for_runners() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 10).await;
    let jobs = tickr.enqueue_many((0..4).map(|n| json!({"kind": "resize", "payload": n}))).await;
    let mut held = Vec::new();
    while held.len() < 4 {
        let listed: Vec<&Value> = held.iter().collect();
        let more = worker.fetch(at, 10, 5_000, &listed).await;
        held.extend(more);
    }
    held.sort_by_key(|job| job["payload"].as_i64());
    let verdict = |place: usize, body: Value| {
        let mut body = body;
        body["token"] = held[place]["token"].clone();
        body
    };
    let body = json!({"verdicts": [
        verdict(0, json!({"verdict": "rejected", "error": "no such picture"})),
        verdict(1, json!({"verdict": "snoozed", "error": "busy", "delay_ms": 3_600_000})),
        verdict(2, json!({"verdict": "released"})),
        {"token": "AAAA", "verdict": "succeeded"},
        verdict(3, json!({"verdict": "failed", "error": "later", "delay_ms": 3_600_000})),
    ]});
    let first = worker.call(at, "finish", body.clone()).await.body;
    let results: Vec<(&str, &str)> = first["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|result| (result["result"].as_str().unwrap(), result["state"].as_str().unwrap_or("")))
        .collect();
    assert_eq!(
        results,
        [
            ("settled", "failed"),
            ("settled", "waiting"),
            ("settled", "waiting"),
            ("unknown", ""),
            ("settled", "retrying")
        ]
    );
    assert_eq!(worker.call(at, "finish", body).await.body, first, "a repeated call has the same results");
    // What was released is there at once, and no attempt is used.
    let again = worker.fetch(at, 1, 20_000, &[]).await;
    assert_eq!((id_of(&again[0]), &again[0]["attempt"]), (jobs[2], &json!(1)));
    worker.finish(at, &again[0], json!({"verdict": "succeeded"})).await;
    assert_eq!(tickr.verdicts(jobs[2]).await, ["interrupted", "succeeded"]);
    tickr.stop().await;
}

/// Return JSON that is nested this deep.
fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |inner, _| json!([inner]))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verdict_that_is_not_valid_is_refused_alone() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 10).await;
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let job = worker.fetch(at, 10, 20_000, &[]).await.pop().unwrap();
    let with_token = |mut verdict: Value| {
        verdict["token"] = job["token"].clone();
        verdict
    };
    let wrong = [
        (with_token(json!({"verdict": "failed"})), vec!["error"]),
        (with_token(json!({"verdict": "snoozed", "error": "x"})), vec!["delay_ms"]),
        (with_token(json!({"verdict": "succeeded", "error": "x", "delay_ms": 1})), vec!["error", "delay_ms"]),
        (with_token(json!({"verdict": "rejected", "error": "x", "result": 1})), vec!["result"]),
        (with_token(json!({"verdict": "failed", "error": "x", "checkpoint": "x".repeat(70_000)})), vec!["checkpoint"]),
        (with_token(json!({"verdict": "succeeded", "result": nested(65)})), vec!["result"]),
        (with_token(json!({"verdict": "failed", "error": "x", "checkpoint": nested(65)})), vec!["checkpoint"]),
        (with_token(json!({"verdict": "done"})), vec!["verdict"]),
        (with_token(json!({"verdict": "succeeded", "state": "ok"})), vec!["state"]),
        (json!({"verdict": "succeeded"}), vec!["token"]),
        (json!("succeeded"), vec![""]),
    ];
    let mut verdicts: Vec<Value> = wrong.iter().map(|(verdict, _)| verdict.clone()).collect();
    verdicts.push(with_token(json!({"verdict": "failed", "error": "a disk", "checkpoint": {"at": 7}})));
    // Not through `answer`, which lets no request be accepted that does not fit the document.
    let url = format!("http://{at}/v1/workers/{}/finish", worker.id);
    let finished = http().post(url).json(&json!({"verdicts": verdicts})).send().await.unwrap();
    assert_eq!(finished.status(), 200);
    let finished: Value = finished.json().await.unwrap();
    let results = finished["results"].as_array().unwrap();
    for (result, (verdict, fields)) in results.iter().zip(&wrong) {
        let errors = result["errors"].as_array().unwrap();
        let named: Vec<&str> = errors.iter().map(|error| error["field"].as_str().unwrap()).collect();
        assert_eq!((&result["result"], &named), (&json!("refused"), fields), "{verdict:#}: {result:#}");
        assert!(errors.iter().all(|error| !error["detail"].as_str().unwrap().is_empty()), "{result:#}");
        assert_eq!(result["token"], verdict.get("token").cloned().unwrap_or(json!("")));
    }
    let last = results.last().unwrap();
    assert_eq!((&last["result"], &last["state"], last.get("errors")), (&json!("settled"), &json!("retrying"), None));
    // The next attempt begins with the checkpoint of the verdict.
    let again = worker.fetch(at, 1, 20_000, &[]).await.pop().unwrap();
    assert_eq!((id_of(&again), &again["checkpoint"]), (id, &json!({"at": 7})));
    worker.finish(at, &again, json!({"verdict": "succeeded"})).await;
    assert_eq!(tickr.verdicts(id).await, ["failed", "succeeded"]);
    for (body, pointer) in [(json!({"verdicts": []}), "/verdicts"), (json!({"verdicts": 1}), "/verdicts")] {
        let refused = worker.call(at, "finish", body).await;
        assert_eq!((refused.status, refused.pointers()), (422, vec![pointer]));
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waited_for_a_worker_of_its_kind_starts_when_the_worker_asks() {
    let tickr = started().await;
    let at = tickr.app.addr();
    assert_eq!(tickr.put("/v1/kinds/crop", json!({"queue": "pictures"})).await.status, 201);
    let crops = json!({"name": "crop", "kinds": ["crop"], "queues": ["pictures"], "slots": 1});
    let other = Worker::register_as(&tickr, crops).await;
    let waiting = tokio::spawn(async move { other.fetch(at, 1, 60_000, &[]).await });
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE fetch_id IS NOT NULL", 1).await;
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let key = tickr.key("waiting");
    // The request for the other kind met the job, and hid it.
    eventually("the job is hidden", || async {
        let mut redis = tickr.redis().await;
        let hidden: Vec<String> = redis::cmd("ZRANGE").arg(&key).arg(0).arg(-1).query_async(&mut redis).await.unwrap();
        hidden.iter().any(|entry| entry.contains(&id.to_string())).then_some(())
    })
    .await;
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    let worker = Worker::register(&tickr, 1).await;
    let job = worker.fetch(at, 1, 20_000, &[]).await.pop().unwrap();
    assert_eq!(id_of(&job), id);
    pulse.assert_within(Duration::from_millis(2_500), began, "the job comes before its pause is over");
    worker.finish(at, &job, json!({"verdict": "succeeded"})).await;
    waiting.abort();
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_kind_no_runner_of_its_queue_has_is_looked_at_every_few_seconds() {
    let tickr = started_with(|config| config.queues = vec!["elsewhere".to_owned()]).await;
    let at = tickr.app.addr();
    assert_eq!(tickr.put("/v1/kinds/crop", json!({"queue": "pictures"})).await.status, 201);
    // The kind turns from workers to a receiver, which the process calls, but not for this queue.
    let push = json!({"queue": "pictures", "run": {"push": {"url": "http://127.0.0.1:9/jobs"}}});
    let declared = tickr.put("/v1/kinds/resize", push).await;
    assert_eq!(declared.status, 200, "{:#}", declared.body);
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE kinds LIKE '%\"resize\"%'", 1).await;
    let crops = json!({"name": "crop", "kinds": ["crop"], "queues": ["pictures"], "slots": 1});
    let other = Worker::register_as(&tickr, crops).await;
    let waiting = tokio::spawn(async move { other.fetch(at, 1, 60_000, &[]).await });
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE fetch_id IS NOT NULL", 1).await;
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let key = tickr.key("waiting");
    // A job that a runner of its queue executes is hidden for a fifth of a second at most.
    eventually("the job is hidden for seconds", || async {
        let mut redis = tickr.redis().await;
        let mut all = redis::cmd("ZRANGE");
        let all = all.arg(&key).arg(0).arg(-1).arg("WITHSCORES");
        let hidden: Vec<(String, f64)> = all.query_async(&mut redis).await.unwrap();
        let far = chrono::Utc::now().timestamp_millis() as f64 + 1_000.0;
        hidden.iter().any(|(entry, due)| entry.contains(&id.to_string()) && *due > far).then_some(())
    })
    .await;
    waiting.abort();
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 200);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_a_queue_is_seen_behind_more_workers_of_others_than_are_listed() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let only = json!({"name": "test", "kinds": ["resize"], "queues": ["pictures"], "slots": 1});
    let worker = Worker::register_as(&tickr, only).await;
    let row = |n: usize| {
        format!(
            "('many{n}.w', '', '[\"crop\"]', '[\"others\"]', 1, 3600000, UTC_TIMESTAMP(6) + INTERVAL 1 SECOND, \
             UTC_TIMESTAMP(6), TRUE, 'http')"
        )
    };
    let rows: Vec<String> = (0..1_001).map(row).collect();
    let columns = "id, version, kinds, queues, slots, lease_ms, started_at, heartbeat_at, claim_batches, via";
    tickr.sql(format!("INSERT INTO runners ({columns}) VALUES {}", rows.join(", "))).await;
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    assert_eq!(tickr.get("/v1/queues/pictures/backlog").await.body["runners"], 1);
    let why = tickr.get(&format!("/v1/jobs/{id}/explain")).await.body;
    let codes: Vec<&Value> = why["reasons"].as_array().unwrap().iter().map(|reason| &reason["code"]).collect();
    assert!(codes.iter().all(|code| **code != "queue_not_served" && **code != "kind_unknown"), "{why:#}");
    tickr.sql("DELETE FROM runners WHERE id LIKE 'many%'").await;
    let job = worker.fetch(at, 1, 20_000, &[]).await.pop().unwrap();
    worker.finish(at, &job, json!({"verdict": "succeeded"})).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_worker_that_died_run_again_after_its_lease() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let (dead, living) = (Worker::register(&tickr, 1).await, Worker::register(&tickr, 1).await);
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let held = dead.fetch(at, 1, 20_000, &[]).await;
    assert_eq!(held.len(), 1);
    // It dies just after a heartbeat. Its verdict comes when another worker has the job.
    let (pulse, killed, lease) = (Pulse::start(&tickr).await, Instant::now(), 8);
    dead.lease_from_now(&tickr, lease * 1_000).await;
    let again = living.fetch(at, 1, 60_000, &[]).await;
    assert_eq!((id_of(&again[0]), &again[0]["attempt"]), (id, &json!(2)));
    // After a stall of the machine, the process judges the worker a lease later.
    let leeway = u64::try_from(pulse.leeway_ms(killed, lease.into())).unwrap();
    let bound = Duration::from_secs(u64::from(lease) + 5) + Duration::from_millis(leeway);
    pulse.assert_within(bound, killed, "the job runs again");
    let late = dead.finish(at, &held[0], json!({"verdict": "succeeded", "result": "late"})).await;
    assert_eq!(late["result"], "lease_lost");
    // A worker that was silent for two leases is not registered any more.
    let beaten = dead.call(at, "beat", json!({"holding": [{"token": held[0]["token"]}]})).await;
    let lost = beaten.status == 200 && beaten.body["lost"] == json!([held[0]["token"]]);
    assert!(lost || beaten.status == 404, "{}: {:#}", beaten.status, beaten.body);
    assert_eq!(living.finish(at, &again[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    assert_eq!(tickr.verdicts(id).await, ["lost", "succeeded"]);
    assert!(tickr.job(id).await["attempts"][0]["late_note"].as_str().unwrap().contains("late"));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stall_in_which_only_the_short_lease_of_a_worker_ends_costs_it_no_attempt() {
    // The process has a lease of 15 s, beside which the stall below is no gap.
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    let at = tickr.app.addr();
    let declared = tickr.put("/v1/kinds/resize", json!({"queue": "pictures", "retry": {"base_ms": 10}})).await;
    assert_eq!(declared.status, 201, "{:#}", declared.body);
    let (dead, living) = (Worker::register(&tickr, 1).await, Worker::register(&tickr, 1).await);
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    assert_eq!(dead.fetch(at, 1, 20_000, &[]).await.len(), 1);
    // It judges the holder of a shorter lease, once it has watched for long enough.
    dead.lease_from_now(&tickr, 2_000).await;
    tickr.until_attempts(id, 1).await;
    let held = living.fetch(at, 1, 20_000, &[]).await.remove(0);
    assert_eq!(id_of(&held), id);
    // MySQL stands still for longer than the lease of the living worker. A look of the process waits for it. It takes less
    // than a fifth of the lease of the process, in which no call of it fails.
    living.lease_from_now(&tickr, 2_000).await;
    tickr.services().mysql().pause().unwrap();
    tokio::time::sleep(Duration::from_millis(2_700)).await;
    tickr.services().mysql().resume().unwrap();
    // The worker tries its heartbeat again a third of its lease later at most.
    tokio::time::sleep(Duration::from_millis(660)).await;
    assert_eq!(living.beat(at, &[&held]).await["lost"], json!([]));
    assert_eq!(living.finish(at, &held, json!({"verdict": "succeeded"})).await["state"], "completed");
    assert_eq!(tickr.verdicts(id).await, ["lost", "succeeded"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_beat_keeps_the_lease_and_brings_cancels_and_time_limits() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 2).await;
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let slow = tickr.enqueue(json!({"kind": "resize", "payload": 2, "timeout_ms": 1, "max_attempts": 1})).await;
    let mut held = worker.fetch(at, 2, 20_000, &[]).await;
    while held.len() < 2 {
        let more = worker.fetch(at, 1, 20_000, &held.iter().collect::<Vec<_>>()).await;
        held.extend(more);
    }
    held.sort_by_key(|job| job["payload"].as_i64());
    // Longer than a stall of the machine, and shorter than the heartbeats go on.
    worker.lease_from_now(&tickr, 8_000).await;
    let (began, mut told) = (Instant::now(), false);
    // The time of the second one is over, so the worker is told to stop it. It does not, and loses the attempt ten
    // seconds later. The lease of the first one goes on.
    loop {
        let beaten = worker.beat(at, &[&held[0], &held[1]]).await;
        if beaten["lost"] == json!([held[1]["token"]]) {
            break;
        }
        assert_eq!(beaten["lost"], json!([]), "{beaten:#}");
        // After a gap in its own heartbeats, the process does not know for a moment what is over.
        let says_nothing = beaten["cancel"] == json!([]);
        assert!(says_nothing || beaten["cancel"] == json!([held[1]["token"]]), "{beaten:#}");
        told |= !says_nothing;
        assert!(began.elapsed() < 2 * DEADLINE, "the attempt is not lost: {beaten:#}");
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    assert!(told && began.elapsed() >= Duration::from_secs(10), "lost after {:?}", began.elapsed());
    assert_eq!(tickr.verdicts(slow).await, ["timed_out"]);
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 202);
    let beaten = worker.beat(at, &[&held[0]]).await;
    assert_eq!(beaten, json!({"cancel": [held[0]["token"]], "lost": [], "drain": false}));
    let stopped = worker.finish(at, &held[0], json!({"verdict": "failed", "error": "stopped"})).await;
    assert_eq!(stopped["state"], "cancelled");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_beat_that_lists_two_attempts_of_one_job_takes_the_earlier_one_alone_for_lost() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 2).await;
    for over in [false, true] {
        let limit = if over { 1 } else { 300_000 };
        let id = tickr.enqueue(json!({"kind": "resize", "payload": 1, "timeout_ms": limit})).await;
        let former = worker.fetch(at, 2, 20_000, &[]).await.pop().unwrap();
        // The answer to this verdict does not reach the worker, which goes on to list the attempt.
        assert_eq!(worker.finish(at, &former, json!({"verdict": "released"})).await["state"], "waiting");
        let held = worker.fetch(at, 1, 20_000, &[&former]).await.pop().unwrap();
        assert_eq!(id_of(&held), id);
        if !over {
            for listed in [[&former, &held], [&held, &former]] {
                let beaten = worker.beat(at, &listed).await;
                assert_eq!(beaten, json!({"cancel": [], "lost": [former["token"]], "drain": false}));
            }
            assert_eq!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 202);
        }
        // The job was cancelled, or the time of its attempt is over.
        for listed in [[&former, &held], [&held, &former]] {
            let beaten = eventually("the worker is told to stop the later one", || async {
                let beaten = worker.beat(at, &listed).await;
                assert_eq!(beaten["lost"], json!([former["token"]]), "{beaten:#}");
                // After a gap in its own heartbeats, the process does not know for a moment what is over.
                (beaten["cancel"] != json!([])).then_some(beaten)
            })
            .await;
            assert_eq!(beaten, json!({"cancel": [held["token"]], "lost": [former["token"]], "drain": false}));
        }
        assert_eq!(worker.finish(at, &held, json!({"verdict": "succeeded"})).await["result"], "settled");
        assert_eq!(tickr.verdicts(id).await[0], "interrupted");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_keeps_the_time_limit_and_the_backoff_of_a_declaration_that_is_changed_or_deleted() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let hour = 3_600_000_u64;
    let retry = json!({"base_ms": hour, "cap_ms": hour});
    let declared = json!({"queue": "pictures", "timeout_ms": hour, "retry": retry, "max_attempts": 2});
    assert_eq!(tickr.put("/v1/kinds/crop", declared).await.status, 201);
    let worker = Worker::register_as(&tickr, json!({"name": "test", "kinds": ["crop"], "slots": 2})).await;
    until_limits_are_followed(&tickr, &worker, "crop").await;
    tickr.enqueue_many((0..2).map(|n| json!({"kind": "crop", "payload": n}))).await;
    let running = worker.fetch(at, 1, 20_000, &[]).await.pop().unwrap();
    assert_eq!(running["timeout_ms"], hour);
    // The attempt has run for ten minutes, which is more than the default and within its limit.
    tickr.sql("UPDATE owed SET started_at = started_at - INTERVAL 10 MINUTE WHERE state = 'executing'").await;
    let goes_on = json!({"cancel": [], "lost": [], "drain": false});
    assert_eq!(worker.beat(at, &[&running]).await, goes_on);
    assert_eq!(tickr.put("/v1/kinds/crop", json!({"queue": "pictures", "timeout_ms": 1_000})).await.status, 200);
    assert_eq!(worker.beat(at, &[&running]).await, goes_on);
    assert_eq!(tickr.delete("/v1/kinds/crop").await.status, 204);
    assert_eq!(worker.beat(at, &[&running]).await, goes_on);
    let waited = worker.fetch(at, 1, 20_000, &[&running]).await.pop().unwrap();
    assert_eq!(waited["timeout_ms"], hour);
    let failed = worker.finish(at, &waited, json!({"verdict": "failed", "error": "no disk"})).await;
    assert_eq!(failed["state"], "retrying");
    let later = "SELECT COUNT(*) FROM owed WHERE execute_at > UTC_TIMESTAMP(6) + INTERVAL 30 MINUTE";
    assert_eq!(tickr.count(later).await, 1);
    let rejected = worker.finish(at, &running, json!({"verdict": "rejected", "error": "no picture"})).await;
    assert_eq!(rejected["state"], "failed");
    // A replay is accepted with what the kind says now.
    assert_eq!(tickr.put("/v1/kinds/crop", json!({"queue": "pictures", "timeout_ms": 7_000})).await.status, 201);
    let replayed = tickr.post(&format!("/v1/jobs/{}/replay", id_of(&running)), json!({})).await;
    assert_eq!(replayed.status, 201, "{:#}", replayed.body);
    let again = worker.fetch(at, 1, 20_000, &[]).await.pop().unwrap();
    assert_eq!((&again["timeout_ms"], &again["payload"]), (&json!(7_000), &running["payload"]));
    worker.finish(at, &again, json!({"verdict": "succeeded"})).await;
    tickr.stop_broken("an attempt was dated back, to before its due time").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_is_not_valid_costs_no_lease_and_the_largest_result_arrives() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 2).await;
    tickr.enqueue_many((0..2).map(|n| json!({"kind": "resize", "payload": n}))).await;
    let mut held: Vec<Value> = Vec::new();
    while held.len() < 2 {
        let more = worker.fetch(at, 2, 20_000, &held.iter().collect::<Vec<_>>()).await;
        held.extend(more);
    }
    tickr.sql("UPDATE owed SET lease_until = UTC_TIMESTAMP(6) + INTERVAL 1 SECOND").await;
    let bad = json!({"token": held[0]["token"], "percent": 101, "note": "a\u{7}b", "checkpoint": "x".repeat(70_000)});
    let beaten = worker.call(at, "beat", json!({"holding": [bad, {"token": held[1]["token"], "percent": 7}]})).await;
    assert_eq!(beaten.status, 200, "{:#}", beaten.body);
    let refused: Vec<&str> =
        beaten.body["refused"].as_array().unwrap().iter().map(|report| report["field"].as_str().unwrap()).collect();
    assert_eq!(refused, ["percent", "note", "checkpoint"]);
    let renewed = "SELECT COUNT(*) FROM owed WHERE lease_until > UTC_TIMESTAMP(6) + INTERVAL 30 SECOND";
    assert_eq!(tickr.count(renewed).await, 2);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE progress IS NOT NULL").await, 1);

    // Neither does a report of another type, or one that is nested too deep. They do not go through `answer`, which
    // lets no request be accepted that does not fit the document.
    for (report, field) in [
        (r#""percent": "50""#.to_owned(), "percent"),
        (r#""percent": [0]"#.to_owned(), "percent"),
        (r#""note": 5"#.to_owned(), "note"),
        (r#""note": "\ud800""#.to_owned(), "note"),
        (format!(r#""checkpoint": {}"#, nested(65)), "checkpoint"),
    ] {
        tickr.sql("UPDATE owed SET lease_until = UTC_TIMESTAMP(6) + INTERVAL 20 SECOND").await;
        let [bad, good] = [&held[0]["token"], &held[1]["token"]];
        let body = format!(r#"{{"holding": [{{"token": {bad}, {report}}}, {{"token": {good}}}]}}"#);
        let request = http().post(format!("http://{at}/v1/workers/{}/beat", worker.id));
        let beaten = request.header("content-type", "application/json").body(body).send().await.unwrap();
        assert_eq!(beaten.status(), 200, "{report}");
        let beaten: Value = beaten.json().await.unwrap();
        let refused = beaten["refused"].as_array().unwrap();
        assert_eq!((refused.len(), &refused[0]["token"], &refused[0]["field"]), (1, bad, &json!(field)), "{report}");
        assert_eq!(tickr.count(renewed).await, 2, "{report}");
    }

    // 256 KiB with its quotes, which is also the largest size of other bodies.
    let result = "x".repeat(256 * 1024 - 2);
    assert_eq!(
        worker.finish(at, &held[0], json!({"verdict": "succeeded", "result": result})).await["result"],
        "settled"
    );
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE LENGTH(result) = 262144").await, 1);
    // The depth counts from the result, not from the body around it.
    let deep = worker.finish(at, &held[1], json!({"verdict": "succeeded", "result": nested(64)})).await;
    assert_eq!(deep["result"], "settled", "{deep:#}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_is_null_replaces_the_one_before() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 1).await;
    tickr.enqueue(json!({"kind": "resize", "payload": 1, "max_attempts": 4})).await;
    let failed = json!({"verdict": "failed", "error": "again", "delay_ms": 0});
    let first = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    assert_eq!(first.get("checkpoint"), None, "{first:#}");
    let save = async |job: &Value, checkpoint: Value| {
        let held = json!({"token": job["token"], "percent": null, "note": null, "checkpoint": checkpoint});
        let beaten = worker.call(at, "beat", json!({"holding": [held]})).await;
        assert_eq!((beaten.status, beaten.body.get("refused")), (200, None), "{:#}", beaten.body);
    };

    // In a heartbeat.
    save(&first, json!({"page": 7})).await;
    save(&first, Value::Null).await;
    worker.finish(at, &first, failed.clone()).await;
    let second = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    assert_eq!(second.get("checkpoint"), Some(&Value::Null), "{second:#}");

    // With the verdict. A checkpoint that is left out keeps the one before.
    save(&second, json!({"page": 8})).await;
    worker.finish(at, &second, failed.clone()).await;
    let third = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    assert_eq!(third["checkpoint"], json!({"page": 8}));
    let mut with_null = failed;
    with_null["checkpoint"] = Value::Null;
    worker.finish(at, &third, with_null).await;
    let fourth = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    assert_eq!(fourth.get("checkpoint"), Some(&Value::Null), "{fourth:#}");
    worker.finish(at, &fourth, json!({"verdict": "succeeded"})).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_worker_gets_no_job_and_keeps_those_that_it_has() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 2).await;
    tickr.enqueue_kind("resize", json!(1)).await;
    let held = worker.fetch(at, 1, 20_000, &[]).await;
    let (began, listed, request) = (Instant::now(), [&held[0]], Uuid::now_v7());
    let ((), empty) = tokio::join!(
        async {
            until_asked(&tickr, request).await;
            let drained = tickr.post(&format!("/v1/runners/{}/drain", worker.id), json!({"reason": "deploy"})).await;
            assert_eq!((drained.status, &drained.body["state"]), (200, &json!("draining")), "{:#}", drained.body);
        },
        worker.fetch_as(request, at, 1, 60_000, &listed),
    );
    assert_eq!(empty, Vec::<Value>::new());
    assert!(began.elapsed() < Duration::from_secs(30), "the drain ends the wait: {:?}", began.elapsed());
    let waits = tickr.enqueue_kind("resize", json!(2)).await;
    until_ready(&tickr, waits).await;
    assert_eq!(worker.fetch(at, 1, 500, &[&held[0]]).await, Vec::<Value>::new());
    assert_eq!(worker.beat(at, &[&held[0]]).await["drain"], true);
    let explained = tickr.get(&format!("/v1/jobs/{waits}/explain")).await.body;
    assert_eq!(explained["reasons"][0]["code"], "runners_draining", "{explained:#}");
    assert_eq!(worker.finish(at, &held[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    assert_eq!(tickr.post(&format!("/v1/runners/{}/resume", worker.id), json!({})).await.status, 200);
    assert_eq!(id_of(&worker.fetch(at, 1, 20_000, &[]).await[0]), waits);
    tickr.stop_broken("an attempt is open").await;
}

/// The worker talks to one process, and the operator to another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_and_a_drain_through_another_process_reach_a_worker_within_two_seconds() {
    const WITHIN: Duration = Duration::from_secs(2);
    let tickr = started().await;
    let (at, other) = (tickr.app.addr(), tickr.another().await);
    let elsewhere = async |path: String| {
        let sent = http().post(format!("http://{}{path}", other.addr())).json(&json!({"reason": "deploy"}));
        answer(sent).await
    };
    let worker = Worker::register(&tickr, 2).await;
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let held = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    assert_eq!(worker.beat(at, &[&held]).await, json!({"cancel": [], "lost": [], "drain": false}));
    let pulse = Pulse::start(&tickr).await;
    let began = Instant::now();
    let cancelled = answer(http().post(format!("http://{}/v1/jobs/{id}/cancel", other.addr())).json(&json!({}))).await;
    assert_eq!(cancelled.status, 202, "{:#}", cancelled.body);
    // The first heartbeat after these two seconds brings it, whatever its interval is.
    eventually("a heartbeat brings the cancel", || async {
        (worker.beat(at, &[&held]).await["cancel"] == json!([held["token"]])).then_some(())
    })
    .await;
    pulse.assert_within(WITHIN, began, "the cancel reaches the worker");
    let stopped = worker.finish(at, &held, json!({"verdict": "failed", "error": "stopped"})).await;
    assert_eq!(stopped["state"], "cancelled");

    let request = Uuid::now_v7();
    let asks = json!({"slots": 1, "wait_ms": 60_000, "holding": [], "fetch_id": request});
    let (began, told) = tokio::join!(
        async {
            until_asked(&tickr, request).await;
            let began = Instant::now();
            let drained = elsewhere(format!("/v1/runners/{}/drain", worker.id)).await;
            assert_eq!((drained.status, &drained.body["state"]), (200, &json!("draining")), "{:#}", drained.body);
            began
        },
        worker.call(at, "fetch", asks),
    );
    pulse.assert_within(WITHIN, began, "the drain ends the wait of the worker");
    assert_eq!((told.status, &told.body["jobs"], &told.body["drain"]), (200, &json!([]), &json!(true)));
    assert_eq!(worker.beat(at, &[]).await["drain"], true);
    stop(other).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_leaves_gives_its_jobs_back_and_uses_no_attempt() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let (gone, stays) = (Worker::register(&tickr, 3).await, Worker::register(&tickr, 3).await);
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let held = gone.fetch(at, 3, 20_000, &[]).await;
    assert_eq!(held.len(), 1);
    assert_eq!(tickr.delete(&format!("/v1/workers/{}", gone.id)).await.status, 204);
    let again = stays.fetch(at, 3, 20_000, &[]).await;
    assert_eq!((id_of(&again[0]), &again[0]["attempt"]), (id, &json!(1)));
    assert_eq!(gone.finish(at, &held[0], json!({"verdict": "succeeded"})).await["result"], "lease_lost");
    for (verb, body) in
        [("fetch", json!({"slots": 1, "holding": [], "fetch_id": Uuid::now_v7()})), ("beat", json!({"holding": []}))]
    {
        assert_eq!(gone.call(at, verb, body).await.status, 404, "{verb}");
    }
    assert_eq!(stays.finish(at, &again[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    assert_eq!(tickr.verdicts(id).await, ["interrupted", "succeeded"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_worker_that_left_still_held_comes_back_unused_also_when_the_process_that_it_told_dies() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let mut told = Runner::start(&tickr, &[]);
    let base = told.base().await;
    let gone = Worker::register(&tickr, 1).await;
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    assert_eq!(gone.fetch(at, 1, 20_000, &[]).await.len(), 1);
    // The lease of the attempt goes on for a minute, and is not what brings the job back.
    let mut frozen = tickr.mysql().await;
    sqlx::raw_sql("BEGIN").execute(&mut frozen).await.unwrap();
    let lock = "SELECT id FROM owed WHERE id = ? FOR UPDATE";
    sqlx::query(lock).bind(id.uuid()).fetch_one(&mut frozen).await.unwrap();
    let left = answer(http().delete(format!("{base}/v1/workers/{}", gone.id))).await;
    assert_eq!(left.status, 204, "{:#}", left.body);
    assert_eq!(tickr.verdicts(id).await, ["open"], "the row is locked");
    told.kill9();
    sqlx::raw_sql("ROLLBACK").execute(&mut frozen).await.unwrap();
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'waiting'", 1).await;
    let next = Worker::register(&tickr, 1).await;
    let again = next.fetch(at, 1, 20_000, &[]).await.remove(0);
    assert_eq!((id_of(&again), &again["attempt"]), (id, &json!(1)));
    assert_eq!(next.finish(at, &again, json!({"verdict": "succeeded"})).await["state"], "completed");
    assert_eq!(tickr.verdicts(id).await, ["interrupted", "succeeded"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_limit_of_an_attempt_ends_it_ten_seconds_after_any_process_told_its_worker() {
    let tickr = started().await;
    let other = tickr.another_with(short_lease, Registry::new()).await;
    let (here, there) = (tickr.app.addr(), other.addr());
    let lease = json!({"name": "test", "kinds": ["resize"], "slots": 1, "lease_ms": 20_000});
    let worker = Worker::register_as(&tickr, lease).await;
    // One process tells the worker to stop what is over, and its next heartbeat reaches the other one this much later.
    // Returns whether that one has ended the attempt.
    let ends_there = async |seconds: u32| {
        tickr.enqueue(json!({"kind": "resize", "payload": 1, "timeout_ms": 1, "max_attempts": 1})).await;
        let held = worker.fetch(here, 1, 20_000, &[]).await.pop().unwrap();
        // Nobody has told the worker of these seconds.
        tickr.sql("UPDATE owed SET started_at = started_at - INTERVAL 12 SECOND WHERE state = 'executing'").await;
        eventually("the worker is told to stop what is over", || async {
            (worker.beat(here, &[&held]).await["cancel"] == json!([held["token"]])).then_some(())
        })
        .await;
        let passed = format!("INTERVAL {seconds} SECOND WHERE");
        tickr
            .sql(format!(
                "UPDATE owed SET started_at = started_at - {passed} state = 'executing'; \
                 UPDATE runners SET heartbeat_at = heartbeat_at - {passed} id = '{}'",
                worker.id
            ))
            .await;
        worker.beat(there, &[&held]).await;
        // A verdict that comes after the end changes nothing.
        worker.finish(there, &held, json!({"verdict": "succeeded"})).await["result"] == "lease_lost"
    };
    // After a gap in its own heartbeats, the other process does not know for a moment what is over.
    eventually("the other process ends the attempt", || async { ends_there(11).await.then_some(()) }).await;
    assert!(!ends_there(0).await, "the worker was told a moment before");
    let ended = "SELECT COUNT(*) FROM attempts WHERE verdict = 'timed_out'";
    assert_eq!(tickr.count(ended).await, 1);
    stop(other).await;
    tickr.stop_broken("an attempt was dated back, to before its due time").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stop_of_a_process_interrupts_no_job_of_a_worker_and_ends_its_wait_at_once() {
    let tickr = started().await;
    let other = tickr.another().await;
    let there = other.addr();
    let worker = Worker::register(&tickr, 2).await;
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let held = worker.fetch(there, 2, 20_000, &[]).await;
    assert_eq!(id_of(&held[0]), id);
    let (began, listed, request) = (Instant::now(), [&held[0]], Uuid::now_v7());
    let (waited, ()) = tokio::join!(worker.fetch_as(request, there, 1, 60_000, &listed), async {
        until_asked(&tickr, request).await;
        stop(other).await;
    });
    assert_eq!(waited, Vec::<Value>::new());
    assert!(began.elapsed() < Duration::from_secs(40), "the stop ends the wait: {:?}", began.elapsed());
    let at = tickr.app.addr();
    assert_eq!(worker.beat(at, &[&held[0]]).await["lost"], json!([]));
    assert_eq!(worker.finish(at, &held[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_a_request_whose_client_is_gone_before_the_answer_is_given_back_at_once() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let (gone, stays) = (Worker::register(&tickr, 1).await, Worker::register(&tickr, 1).await);
    let body = json!({"slots": 1, "wait_ms": 60_000, "holding": [], "fetch_id": Uuid::now_v7()});
    let mut socket = sent_fetch(at, &gone, &body).await;
    tickr
        .until_count(format!("SELECT COUNT(*) FROM runners WHERE id = '{}' AND fetch_id IS NOT NULL", gone.id), 1)
        .await;
    // Hold the row of the worker, so that its claim is under way while its client goes.
    let mut conn = tickr.mysql().await;
    sqlx::raw_sql("BEGIN").execute(&mut conn).await.unwrap();
    let lock = "SELECT id FROM runners WHERE id = ? FOR UPDATE";
    sqlx::query(lock).bind(&gone.id).execute(&mut conn).await.unwrap();
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    tickr.until_lock_waits(1..).await;
    // The process closes the connection of a client that is gone, and drops its request.
    socket.shutdown().await.unwrap();
    let closed = tokio::time::timeout(DEADLINE, socket.read_to_end(&mut Vec::new())).await.expect("it is closed");
    assert_eq!(closed.unwrap_or(0), 0, "the request has no answer");
    sqlx::raw_sql("COMMIT").execute(&mut conn).await.unwrap();
    let began = Instant::now();
    let again = stays.fetch(at, 1, 30_000, &[]).await;
    assert_eq!((id_of(&again[0]), &again[0]["attempt"]), (id, &json!(1)));
    assert!(began.elapsed() < Duration::from_secs(25), "not by the end of a lease: {:?}", began.elapsed());
    assert_eq!(stays.finish(at, &again[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    assert_eq!(tickr.verdicts(id).await, ["interrupted", "succeeded"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_the_next_request_does_not_list_is_given_back_at_once_whatever_process_it_goes_to() {
    let tickr = started().await;
    let other = tickr.another().await;
    let worker = Worker::register(&tickr, 2).await;
    let ids = tickr.enqueue_many((0..2).map(|n| json!({"kind": "resize", "payload": n}))).await;
    let mut held = worker.fetch(tickr.app.addr(), 2, 20_000, &[]).await;
    while held.len() < 2 {
        held.extend(worker.fetch(tickr.app.addr(), 1, 20_000, &held.iter().collect::<Vec<_>>()).await);
    }
    // The worker lists one of them: the other one did not reach it.
    let began = Instant::now();
    let again = worker.fetch(other.addr(), 1, 30_000, &[&held[0]]).await;
    assert_eq!((id_of(&again[0]), &again[0]["attempt"]), (id_of(&held[1]), &json!(1)));
    assert_ne!(again[0]["token"], held[1]["token"]);
    assert!(began.elapsed() < Duration::from_secs(25), "not by the end of a lease: {:?}", began.elapsed());
    for job in [&held[0], &again[0]] {
        assert_eq!(worker.finish(other.addr(), job, json!({"verdict": "succeeded"})).await["state"], "completed");
    }
    let stale = worker.finish(tickr.app.addr(), &held[1], json!({"verdict": "succeeded"})).await;
    assert_eq!(stale["result"], "lease_lost", "the attempt that was given back is another one");
    // The process has given it back, with the verdict of a release.
    let released = json!({"verdict": "released", "checkpoint": {"at": 7}});
    assert_eq!(worker.finish(tickr.app.addr(), &held[1], released).await["result"], "lease_lost");
    assert_eq!(tickr.verdicts(id_of(&held[1])).await, ["interrupted", "succeeded"]);
    assert_eq!(tickr.verdicts(id_of(&held[0])).await, ["succeeded"]);
    assert_eq!(ids.len(), 2);
    stop(other).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_never_arrives_comes_back_later_each_time_and_uses_no_attempt() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 1).await;
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    // A client that cannot read the answers lists nothing.
    for number in 1..=101 {
        assert_eq!(worker.fetch(at, 1, 30_000, &[]).await.len(), 1, "{number}");
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts").await, 100);
    // The next two requests give it back, each for longer than the one before. The claim keeps the due time.
    for (number, ms) in [(101, 850), (102, 1_700)] {
        worker.fetch(at, 1, 0, &[]).await;
        let late = format!(
            "SELECT COUNT(*) FROM owed o JOIN attempts a ON a.job_id = o.id AND a.number = {number} \
             AND a.verdict = 'interrupted' WHERE o.execute_at >= a.finished_at + INTERVAL {ms}000 MICROSECOND"
        );
        assert_eq!(tickr.count(late).await, 1, "after attempt {number}");
        if number == 101 {
            assert_eq!(worker.fetch(at, 1, 30_000, &[]).await.len(), 1);
        }
    }
    let job = worker.fetch(at, 1, 30_000, &[]).await.pop().unwrap();
    assert_eq!((id_of(&job), &job["attempt"]), (id, &json!(1)));
    assert_eq!(worker.finish(at, &job, json!({"verdict": "succeeded"})).await["state"], "completed");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_at_the_last_number_of_an_attempt_keeps_no_other_job_from_its_worker() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let ids = tickr.enqueue_many((0..3).map(|n| json!({"kind": "resize", "payload": n}))).await;
    let of_first = format!("WHERE id = x'{}'", ids[0].uuid().simple());
    tickr.sql(format!("UPDATE owed SET attempt = 65535, spared = 65535 {of_first}")).await;
    let worker = Worker::register(&tickr, 3).await;
    let mut held = worker.fetch(at, 3, 30_000, &[]).await;
    while held.len() < 2 {
        held.extend(worker.fetch(at, 2, 30_000, &held.iter().collect::<Vec<_>>()).await);
    }
    let mut got: Vec<JobId> = held.iter().map(id_of).collect();
    got.sort_unstable();
    assert_eq!(got, ids[1..]);
    for job in &held {
        assert_eq!(worker.finish(at, job, json!({"verdict": "succeeded"})).await["state"], "completed");
    }
    // A cancel ends it: its line takes the place of the last attempt.
    let of_first = of_first.replace("id =", "job_id =");
    tickr
        .sql(
            "INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict) \
             SELECT id, attempt, 0, 'gone', jobs.execute_at, created_at, created_at, 'snoozed' \
             FROM owed JOIN jobs USING (id) WHERE attempt = 65535",
        )
        .await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{}/cancel", ids[0]), json!({})).await.status, 200);
    let ends = format!("SELECT COUNT(*) FROM attempts {of_first} AND number = 65535 AND end_state = 'cancelled'");
    assert_eq!(tickr.count(ends).await, 1);
    // The check of all promises finds no line in front of it.
    tickr.sql(format!("UPDATE attempts SET number = 1 {of_first}")).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_again_gets_the_same_jobs_and_nothing_new_from_any_process() {
    let tickr = started().await;
    let other = tickr.another().await;
    let worker = Worker::register(&tickr, 10).await;
    tickr.enqueue_kind("resize", json!(1)).await;
    let request = Uuid::now_v7();
    let first = worker.fetch_as(request, tickr.app.addr(), 10, 20_000, &[]).await;
    let more = tickr.enqueue_many((0..5).map(|n| json!({"kind": "resize", "payload": n}))).await;
    until_ready(&tickr, more[4]).await;
    let again = worker.fetch_as(request, other.addr(), 10, 20_000, &[]).await;
    let known = |jobs: &[Value]| jobs.iter().map(|job| (job["id"].clone(), job["token"].clone())).collect::<Vec<_>>();
    assert_eq!(known(&again), known(&first));
    assert_eq!(again[0]["payload"], first[0]["payload"]);
    assert_eq!(worker.fetch_as(request, other.addr(), 10, 0, &[&first[0]]).await, Vec::<Value>::new());
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE state = 'executing'").await, 1);
    assert_eq!(worker.finish(other.addr(), &first[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    stop(other).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_copy_of_a_request_or_a_heartbeat_gives_no_attempt_back() {
    let tickr = started().await;
    let other = tickr.another().await;
    let (at, there) = (tickr.app.addr(), other.addr());
    let worker = Worker::register(&tickr, 3).await;
    let first = Uuid::now_v7();
    tickr.enqueue_kind("resize", json!(1)).await;
    let ended = worker.fetch_as(first, there, 1, 20_000, &[]).await.remove(0);
    assert_eq!(worker.finish(there, &ended, json!({"verdict": "succeeded"})).await["state"], "completed");
    tickr.enqueue_kind("resize", json!(2)).await;
    let held = worker.fetch(there, 1, 20_000, &[]).await.remove(0);
    // The process that was suspended reads the first request now.
    assert_eq!(worker.fetch_as(first, at, 1, 0, &[]).await, Vec::<Value>::new());
    assert_eq!(tickr.job(id_of(&held)).await["state"], "executing");
    // A request that no process has answered, and that the worker has given up, is not known.
    assert_eq!(worker.fetch(there, 1, 0, &[&held]).await, Vec::<Value>::new());
    assert_eq!(worker.fetch(at, 1, 0, &[]).await, Vec::<Value>::new());
    assert_eq!(tickr.job(id_of(&held)).await["state"], "executing", "it was listed, so it has arrived");
    // The attempt began 40 s ago, and a heartbeat listed it just now.
    tickr.sql("UPDATE owed SET started_at = started_at - INTERVAL 40 SECOND WHERE state = 'executing'").await;
    worker.beat(there, &[&held]).await;
    worker.beat(at, &[]).await;
    worker.beat(at, &[]).await;
    assert_eq!(worker.finish(at, &held, json!({"verdict": "succeeded"})).await["result"], "settled");
    assert_eq!(tickr.verdicts(id_of(&held)).await, ["succeeded"]);
    // What no heartbeat lists for half a lease is given back all the same.
    let lost = tickr.enqueue_kind("resize", json!(3)).await;
    let held = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    worker.beat(at, &[&held]).await;
    tickr.sql("UPDATE owed SET lease_until = lease_until - INTERVAL 40 SECOND, started_at = started_at - INTERVAL 50 SECOND \
               WHERE state = 'executing'")
        .await;
    worker.beat(at, &[]).await;
    assert_eq!(tickr.job(lost).await["state"], "waiting");
    stop(other).await;
    tickr.stop_broken("attempts were dated back, to before their due times").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_copy_of_a_request_takes_no_attempt_away_whose_job_has_expired_since_its_start() {
    let tickr = started().await;
    let other = tickr.another().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 1).await;
    let id = tickr.enqueue(json!({"kind": "resize", "payload": 1, "expires_in_ms": 3_600_000})).await;
    let request = Uuid::now_v7();
    let held = worker.fetch_as(request, at, 1, 20_000, &[]).await.remove(0);
    worker.beat(at, &[&held]).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE expires_at IS NOT NULL AND state = 'executing'").await, 1);
    expire(&tickr).await;
    // A process that was suspended reads the request now. Its stop waits for what it has begun.
    assert_eq!(worker.fetch_as(request, other.addr(), 1, 0, &[]).await, Vec::<Value>::new());
    stop(other).await;
    assert_eq!(worker.beat(at, &[&held]).await, json!({"cancel": [], "lost": [], "drain": false}));
    assert_eq!(worker.finish(at, &held, json!({"verdict": "succeeded"})).await["result"], "settled");
    assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_for_a_request_that_a_newer_one_has_replaced_starts_nothing() {
    let tickr = started().await;
    let other = tickr.another().await;
    let worker = Worker::register(&tickr, 1).await;
    let at = tickr.app.addr();
    let first = tokio::spawn({
        let worker = Worker { id: worker.id.clone() };
        async move { worker.fetch(at, 1, 6_000, &[]).await }
    });
    let before = format!("SELECT COUNT(*) FROM runners WHERE id = '{}' AND fetch_id IS NOT NULL", worker.id);
    tickr.until_count(before, 1).await;
    // Both requests wait, each at another process.
    let newer = Uuid::now_v7();
    let second = tokio::spawn({
        let (worker, there) = (Worker { id: worker.id.clone() }, other.addr());
        async move { worker.fetch_as(newer, there, 1, 20_000, &[]).await }
    });
    until_asked(&tickr, newer).await;
    // Both processes take an id.
    let ids = tickr.enqueue_many((0..2).map(|n| json!({"kind": "resize", "payload": n}))).await;
    let got = second.await.unwrap();
    assert_eq!(first.await.unwrap(), Vec::<Value>::new(), "the first request was replaced");
    assert_eq!(got.len(), 1);
    assert_eq!(worker.finish(at, &got[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    let rest = worker.fetch(at, 1, 20_000, &[]).await;
    assert_eq!(worker.finish(at, &rest[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    for id in ids {
        assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    }
    stop(other).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_copy_of_a_request_that_no_process_has_seen_gives_nothing_back_that_was_claimed_since() {
    let tickr = started().await;
    let other = tickr.another().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 2).await;
    // The worker has given this request up, and a process that was suspended has it still. The same holds for one that
    // is older than those that are remembered.
    let given_up = Uuid::now_v7();
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let held = worker.fetch_as(later_than(given_up), at, 1, 20_000, &[]).await.remove(0);
    assert_eq!(worker.fetch_as(given_up, other.addr(), 1, 0, &[]).await, Vec::<Value>::new());
    assert_eq!(tickr.job(id).await["state"], "executing", "the worker executes it");
    assert_eq!(worker.finish(at, &held, json!({"verdict": "succeeded"})).await["result"], "settled");
    assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    // A request that was made later says what did not arrive.
    tickr.enqueue_kind("resize", json!(2)).await;
    let lost = Uuid::now_v7();
    let first = worker.fetch_as(lost, at, 1, 20_000, &[]).await.remove(0);
    let again = worker.fetch_as(later_than(lost), at, 1, 20_000, &[]).await.remove(0);
    assert_eq!((id_of(&again), &again["attempt"]), (id_of(&first), &json!(1)));
    assert_ne!(again["token"], first["token"]);
    assert_eq!(worker.finish(at, &again, json!({"verdict": "succeeded"})).await["state"], "completed");
    stop(other).await;
    tickr.stop().await;
}

/// Make the id of a request of this version, with the first or the last time that such an id can tell.
fn request_of(version: u8, is_last: bool, number: u8) -> Uuid {
    let mut bytes = [if is_last { 0xff } else { 0 }; 16];
    (bytes[6], bytes[8], bytes[15]) = (version << 4, 0x80, number);
    Uuid::from_bytes(bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_did_not_arrive_comes_back_with_the_next_request_if_an_id_tells_no_time() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 1).await;
    // Read as ids of version 7, each of the later ones would look older than the one before it.
    for (number, versions) in (0..).zip([(4, 4), (4, 7), (7, 4), (1, 1)]) {
        let (lost, next) = (request_of(versions.0, true, number), request_of(versions.1, false, number));
        let id = tickr.enqueue_kind("resize", json!(number)).await;
        let first = worker.fetch_as(lost, at, 1, 20_000, &[]).await.remove(0);
        let again = worker.fetch_as(next, at, 1, 20_000, &[]).await;
        assert_eq!(again.iter().map(id_of).collect::<Vec<_>>(), [id], "{versions:?}");
        assert_eq!((id_of(&first), &again[0]["attempt"]), (id, &json!(1)));
        assert_eq!(worker.finish(at, &again[0], json!({"verdict": "succeeded"})).await["state"], "completed");
        assert_eq!(tickr.verdicts(id).await, ["interrupted", "succeeded"], "{versions:?}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_clock_is_set_back_goes_on_and_its_heartbeats_give_back_what_did_not_arrive() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 2).await;
    let lost = tickr.enqueue_kind("resize", json!(1)).await;
    // The clock was ahead by far until this request.
    assert_eq!(worker.fetch_as(request_of(7, true, 0), at, 1, 20_000, &[]).await.len(), 1);
    let id = tickr.enqueue_kind("resize", json!(2)).await;
    let held = worker.fetch(at, 2, 20_000, &[]).await.remove(0);
    assert_eq!(id_of(&held), id, "the worker gets what is due");
    assert_eq!(tickr.job(lost).await["state"], "executing", "the newer request looks like a copy that comes late");
    aged(&tickr, 45).await;
    silent(&tickr, 20).await;
    worker.beat(at, &[&held]).await;
    let again = worker.fetch(at, 1, 20_000, &[&held]).await.remove(0);
    assert_eq!((id_of(&again), &again["attempt"]), (lost, &json!(1)));
    for job in [&held, &again] {
        assert_eq!(worker.finish(at, job, json!({"verdict": "succeeded"})).await["state"], "completed");
    }
    assert_eq!(tickr.verdicts(lost).await, ["interrupted", "succeeded"]);
    tickr.stop_broken("attempts were dated back, to before their due times").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_gives_nothing_back_that_another_one_has_handed_out_again() {
    let tickr = started().await;
    let first = tickr.another().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 1).await;
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let held = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    let released = json!({"verdict": "released", "checkpoint": {"row": 7}});
    assert_eq!(worker.finish(at, &held, released).await["result"], "settled");
    // The attempt is committed, and the answer of the first process waits for its checkpoint.
    let mut operator = tickr.mysql().await;
    operator.execute("LOCK TABLES checkpoints WRITE").await.unwrap();
    let body = json!({"slots": 1, "wait_ms": 20_000, "holding": [], "fetch_id": Uuid::now_v7()});
    let socket = sent_fetch(first.addr(), &worker, &body).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 1).await;
    // The worker gives this answer up. The process would give the job back, and another session locks its row.
    let mut frozen = tickr.mysql().await;
    frozen.execute("BEGIN").await.unwrap();
    let lock = "SELECT id FROM owed WHERE id = ? FOR UPDATE";
    sqlx::query(lock).bind(id.uuid()).fetch_one(&mut frozen).await.unwrap();
    drop(socket);
    operator.execute("UNLOCK TABLES").await.unwrap();
    let fetched = worker.call(at, "fetch", body).await;
    let again = &fetched.body["jobs"][0];
    assert_eq!(id_of(again), id);
    frozen.execute("ROLLBACK").await.unwrap();
    // It tries again and again, also for a moment after it was told to stop.
    stop(first).await;
    assert_eq!(tickr.job(id).await["state"], "executing");
    assert_eq!(worker.finish(at, again, json!({"verdict": "succeeded"})).await["result"], "settled");
    assert_eq!(tickr.verdicts(id).await, ["interrupted", "succeeded"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_is_not_listed_beside_another_of_its_answer_did_not_arrive() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 4).await;
    tickr.enqueue_many((0..2).map(|n| json!({"kind": "resize", "payload": n}))).await;
    // Each request gives back what the one before it got.
    let held = loop {
        let jobs = worker.fetch(at, 2, 10_000, &[]).await;
        if jobs.len() == 2 {
            break jobs;
        }
    };
    // It is not given back now, because another session locks its row.
    let mut frozen = tickr.mysql().await;
    frozen.execute("BEGIN").await.unwrap();
    let lock = "SELECT id FROM owed WHERE id = ? FOR UPDATE";
    sqlx::query(lock).bind(id_of(&held[1]).uuid()).fetch_one(&mut frozen).await.unwrap();
    assert_eq!(worker.fetch(at, 1, 0, &[&held[0]]).await, Vec::<Value>::new());
    frozen.execute("ROLLBACK").await.unwrap();
    let again = worker.fetch(at, 1, 20_000, &[&held[0]]).await;
    assert_eq!(again.iter().map(id_of).collect::<Vec<_>>(), [id_of(&held[1])], "the next request gives it back");
    assert_eq!(again[0]["attempt"], 1);
    for job in [&held[0], &again[0]] {
        assert_eq!(worker.finish(at, job, json!({"verdict": "succeeded"})).await["state"], "completed");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_never_arrived_comes_back_within_the_lease_of_a_worker_that_fetches_no_more() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let lease = Duration::from_secs(12);
    let own = json!({"name": "test", "kinds": ["resize"], "slots": 1, "lease_ms": 12_000});
    let worker = Worker::register_as(&tickr, own).await;
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let began = Instant::now();
    let lost = worker.fetch(at, 1, 20_000, &[]).await;
    assert_eq!(lost.len(), 1);
    let (pulse, claimed) = (Pulse::start(&tickr).await, Instant::now());
    eventually("the heartbeats give it back", || async {
        worker.beat(at, &[]).await;
        (tickr.job(id).await["state"] == State::Waiting.as_str()).then_some(())
    })
    .await;
    // However many heartbeats come before.
    assert!(began.elapsed() >= lease * 2 / 3, "not before two thirds of the lease: {:?}", began.elapsed());
    pulse.assert_within(lease, claimed, "it comes back within the lease");
    // It was given back: the end of a lease would have used the attempt.
    let again = worker.fetch(at, 1, 20_000, &[]).await;
    assert_eq!((id_of(&again[0]), &again[0]["attempt"]), (id, &json!(1)));
    assert_eq!(worker.finish(at, &again[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    tickr.stop().await;
}

/// Let each job that expires do so now. A short time until then may be over before a worker has the job.
async fn expire(tickr: &TestApp) {
    let now = "UPDATE owed SET expires_at = UTC_TIMESTAMP(3) WHERE expires_at IS NOT NULL";
    tickr.sql(format!("{now}; UPDATE job_expiries SET look_at = UTC_TIMESTAMP(3)")).await;
}

/// Let the attempts that execute be so many seconds old, under a lease of a minute.
async fn aged(tickr: &TestApp, seconds: u32) {
    aged_under(tickr, 60, seconds).await;
}

/// Let the attempts that execute be so many seconds old, under a lease of so many.
async fn aged_under(tickr: &TestApp, lease: u32, seconds: u32) {
    let sql = "UPDATE owed SET started_at = UTC_TIMESTAMP(6) - INTERVAL {age} SECOND, \
               lease_until = UTC_TIMESTAMP(6) + INTERVAL {lease} SECOND - INTERVAL {age} SECOND \
               WHERE state = 'executing'";
    tickr.sql(sql.replace("{age}", &seconds.to_string()).replace("{lease}", &lease.to_string())).await;
}

/// Let the newest heartbeat of each worker be so many seconds old.
async fn silent(tickr: &TestApp, seconds: u32) {
    let sql = "UPDATE runners SET heartbeat_at = UTC_TIMESTAMP(6) - INTERVAL {age} SECOND WHERE via = 'http'";
    tickr.sql(sql.replace("{age}", &seconds.to_string())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_was_never_listed_is_given_back_only_after_two_thirds_of_a_lease() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 1).await;
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let held = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    // Two heartbeats left just before this answer arrived, almost half a lease after the claim. The second one was on
    // its way for a moment.
    aged(&tickr, 32).await;
    silent(&tickr, 12).await;
    worker.beat(at, &[]).await;
    assert_eq!(tickr.job(id).await["state"], "executing", "the worker has it");
    assert_eq!(worker.beat(at, &[&held]).await["lost"], json!([]));
    assert_eq!(worker.finish(at, &held, json!({"verdict": "succeeded"})).await["result"], "settled");
    assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    // An answer to a worker with a longer lease may be on its way for longer.
    let long = json!({"name": "test", "kinds": ["resize"], "slots": 1, "lease_ms": 600_000});
    let worker = Worker::register_as(&tickr, long).await;
    let id = tickr.enqueue_kind("resize", json!(2)).await;
    assert_eq!(worker.fetch(at, 1, 20_000, &[]).await.len(), 1);
    aged_under(&tickr, 600, 250).await;
    silent(&tickr, 50).await;
    worker.beat(at, &[]).await;
    assert_eq!(tickr.job(id).await["state"], "executing");
    aged_under(&tickr, 600, 450).await;
    silent(&tickr, 200).await;
    worker.beat(at, &[]).await;
    assert_eq!(tickr.job(id).await["state"], "waiting");
    tickr.stop_broken("attempts were dated back, to before their due times").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_heartbeat_after_an_outage_gives_nothing_back_that_was_listed_before_it() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 1).await;
    let date_back = "UPDATE owed SET lease_until = lease_until - INTERVAL 35 SECOND, \
                     started_at = started_at - INTERVAL 40 SECOND WHERE state = 'executing'";
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let held = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    worker.beat(at, &[&held]).await;
    // MySQL was away for more than half a lease. The first heartbeat after that is a copy from before the attempt.
    tickr.sql(date_back).await;
    silent(&tickr, 35).await;
    worker.beat(at, &[]).await;
    assert_eq!(tickr.job(id).await["state"], "executing");
    assert_eq!(worker.beat(at, &[&held]).await["lost"], json!([]));
    assert_eq!(worker.finish(at, &held, json!({"verdict": "succeeded"})).await["result"], "settled");
    assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    // What the heartbeat before has left out as well is given back.
    let id = tickr.enqueue_kind("resize", json!(2)).await;
    let held = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    worker.beat(at, &[&held]).await;
    tickr.sql(date_back).await;
    silent(&tickr, 15).await;
    worker.beat(at, &[]).await;
    assert_eq!(tickr.job(id).await["state"], "waiting");
    tickr.stop_broken("attempts were dated back, to before their due times").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stood_still_keeps_the_attempt_whose_answer_it_reads_beside_its_first_heartbeat() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 1).await;
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    // The program stands still for two thirds of a lease before it reads this answer.
    let held = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    aged(&tickr, 45).await;
    silent(&tickr, 40).await;
    // Then it sends its heartbeat, and reads the answer while the heartbeat is on its way.
    worker.beat(at, &[]).await;
    assert_eq!(tickr.job(id).await["state"], "executing", "one heartbeat after a silence says nothing");
    assert_eq!(worker.beat(at, &[&held]).await["lost"], json!([]));
    assert_eq!(worker.finish(at, &held, json!({"verdict": "succeeded"})).await["result"], "settled");
    assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    // What the heartbeat before has left out as well did not arrive.
    let lost = tickr.enqueue_kind("resize", json!(2)).await;
    assert_eq!(worker.fetch(at, 1, 20_000, &[]).await.len(), 1);
    aged(&tickr, 45).await;
    silent(&tickr, 20).await;
    worker.beat(at, &[]).await;
    assert_eq!(tickr.job(lost).await["state"], "waiting");
    tickr.stop_broken("attempts were dated back, to before their due times").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_that_waits_gives_nothing_back_that_was_young_when_it_came() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 1).await;
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let url = ServerUrl::mysql(&proxy.url()).unwrap();
    let through = tickr.another_with(|config| config.mysql_url = Some(url), Registry::new()).await;
    let held = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    silent(&tickr, 15).await;
    // The heartbeat left before the attempt arrived, and waits here until the attempt is old. It would wait for a
    // locked row for a second only, in which a machine that stands still ages nothing.
    proxy.halt_at("UPDATE runners SET heartbeat_at = UTC_TIMESTAMP(6), busy = LEAST(", 1, Halt::Held);
    tokio::join!(worker.beat(through.addr(), &[]), async {
        eventually("the heartbeat waits", || async { proxy.has_halted().then_some(()) }).await;
        aged(&tickr, 40).await;
        proxy.let_in();
    });
    assert_eq!(tickr.job(id).await["state"], "executing");
    assert_eq!(worker.finish(at, &held, json!({"verdict": "succeeded"})).await["result"], "settled");
    assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    stop(through).await;
    tickr.stop_broken("attempts were dated back, to before their due times").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_that_waits_for_the_rights_of_its_key_gives_nothing_back_that_was_young_when_it_came() {
    let tickr = started().await;
    let at = tickr.app.addr();
    tickr.enqueue_kind("resize", json!(1)).await;
    let admin = api_key(&tickr, None, "root", json!({"scope": "admin"})).await;
    let limits = json!({"scope": "work", "kinds": ["resize"], "queues": ["pictures"]});
    let key = api_key(&tickr, Some(&admin), "limited", limits).await;
    let own = json!({"name": "w", "kinds": ["resize"], "slots": 1});
    let made = called(at, Method::POST, "/v1/workers".to_owned(), key.clone(), own).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    let worker = made.body["id"].as_str().unwrap().to_owned();
    let call =
        |verb: &str, body: Value| called(at, Method::POST, format!("/v1/workers/{worker}/{verb}"), key.clone(), body);
    let fetch = json!({"slots": 1, "wait_ms": 20_000, "holding": [], "fetch_id": Uuid::now_v7()});
    let token = call("fetch", fetch).await.body["jobs"][0]["token"].clone();
    silent(&tickr, 20).await;
    let mut operator = tickr.mysql().await;
    operator.execute("LOCK TABLES runners WRITE").await.unwrap();
    // The heartbeat left before the attempt arrived. It waits until the attempt is old, before anything is written.
    let (beaten, ()) = tokio::join!(call("beat", json!({"holding": []})), async {
        tickr.until_said("SELECT kinds, queues FROM runners", 1).await;
        aged(&tickr, 40).await;
        operator.execute("UNLOCK TABLES").await.unwrap();
    });
    assert_eq!(beaten.status, 200, "{:#}", beaten.body);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE state = 'executing'").await, 1);
    let verdicts = json!({"verdicts": [{"token": token, "verdict": "succeeded"}]});
    assert_eq!(call("finish", verdicts).await.body["results"][0]["result"], "settled");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'").await, 1);
    tickr.stop_broken("attempts were dated back, to before their due times").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_hands_out_no_attempt_that_a_heartbeat_may_give_back() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 1).await;
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let request = Uuid::now_v7();
    let lost = worker.fetch_as(request, at, 1, 20_000, &[]).await.remove(0);
    aged(&tickr, 29).await;
    // The heartbeat that leaves before this answer arrives gives the attempt back.
    assert_eq!(worker.fetch_as(request, at, 1, 0, &[]).await, Vec::<Value>::new());
    assert_eq!(tickr.job(id).await["state"], "executing", "a worker that got the first answer keeps it");
    // The next request says that it did not arrive.
    let again = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    assert_eq!((id_of(&again), &again["attempt"]), (id, &json!(1)));
    assert_ne!(again["token"], lost["token"]);
    assert_eq!(worker.finish(at, &again, json!({"verdict": "succeeded"})).await["state"], "completed");
    assert_eq!(tickr.verdicts(id).await, ["interrupted", "succeeded"]);
    tickr.stop_broken("attempts were dated back, to before their due times").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_mysql_holds_up_for_a_quarter_of_a_lease_hands_nothing_out() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 1).await;
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let held = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    let released = json!({"verdict": "released", "checkpoint": {"row": 7}});
    assert_eq!(worker.finish(at, &held, released).await["result"], "settled");
    worker.beat(at, &[]).await;
    // Its other three quarters are longer than a stall of the machine.
    worker.lease_ms(&tickr, 16_000).await;
    let mut operator = tickr.mysql().await;
    operator.execute("LOCK TABLES checkpoints WRITE").await.unwrap();
    // The attempt is committed, and the answer waits for its checkpoint.
    let (jobs, ()) = tokio::join!(worker.fetch(at, 1, 20_000, &[]), async {
        let old = "SELECT COUNT(*) FROM owed WHERE state = 'executing' \
                   AND started_at < UTC_TIMESTAMP(6) - INTERVAL 4200000 MICROSECOND";
        tickr.until_count(old, 1).await;
        operator.execute("UNLOCK TABLES").await.unwrap();
    });
    assert_eq!(jobs, Vec::<Value>::new());
    worker.lease_ms(&tickr, 60_000).await;
    let again = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    assert_eq!((id_of(&again), &again["attempt"]), (id, &json!(1)));
    assert_eq!(again["checkpoint"], json!({"row": 7}));
    assert_eq!(worker.finish(at, &again, json!({"verdict": "succeeded"})).await["state"], "completed");
    assert_eq!(tickr.verdicts(id).await, ["interrupted", "interrupted", "succeeded"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_answer_is_as_old_as_the_first_claim_of_its_attempts() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 1).await;
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let held = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    let released = json!({"verdict": "released", "checkpoint": {"row": 7}});
    assert_eq!(worker.finish(at, &held, released).await["result"], "settled");
    let request = Uuid::now_v7();
    let held = worker.fetch_as(request, at, 1, 20_000, &[]).await.remove(0);
    // A quarter of the lease is 15 s. It ends while the repeated answer waits for the checkpoint.
    aged(&tickr, 12).await;
    let mut operator = tickr.mysql().await;
    operator.execute("LOCK TABLES checkpoints WRITE").await.unwrap();
    let (jobs, ()) = tokio::join!(worker.fetch_as(request, at, 1, 0, &[]), async {
        let old = "SELECT COUNT(*) FROM owed WHERE state = 'executing' \
                   AND started_at < UTC_TIMESTAMP(6) - INTERVAL 16 SECOND";
        tickr.until_count(old, 1).await;
        operator.execute("UNLOCK TABLES").await.unwrap();
    });
    assert_eq!(jobs, Vec::<Value>::new());
    assert_eq!(worker.beat(at, &[&held]).await["lost"], json!([]), "a worker that got the first answer keeps it");
    assert_eq!(worker.finish(at, &held, json!({"verdict": "succeeded"})).await["result"], "settled");
    assert_eq!(tickr.verdicts(id).await, ["interrupted", "succeeded"]);
    tickr.stop_broken("attempts were dated back, to before their due times").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_says_how_long_its_request_was_here() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 1).await;
    let began = Instant::now();
    let body = json!({"slots": 1, "wait_ms": 700, "holding": [], "fetch_id": Uuid::now_v7()});
    let fetched = worker.call(at, "fetch", body).await;
    let took = Duration::from_millis(fetched.body["took_ms"].as_u64().unwrap());
    assert!(took >= Duration::from_millis(700) && took <= began.elapsed(), "{took:?} of {:?}", began.elapsed());
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pauses_limits_and_order_keys_hold_for_remote_workers() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 10).await;
    assert_eq!(tickr.patch("/v1/queues/pictures", json!({"concurrency": 2})).await.status, 200);
    // Each of three runs under the limit of the queue.
    tickr.enqueue_many((0..3).map(|n| json!({"kind": "resize", "payload": n}))).await;
    let mut held: Vec<Value> = Vec::new();
    while held.len() < 2 {
        held.extend(worker.fetch(at, 10, 20_000, &held.iter().collect::<Vec<_>>()).await);
    }
    assert_eq!(held.len(), 2, "the limit is two");
    let listed: Vec<&Value> = held.iter().collect();
    assert_eq!(worker.fetch(at, 10, 1_500, &listed).await, Vec::<Value>::new(), "the queue is full");
    assert_eq!(worker.finish(at, &held[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    let third = worker.fetch(at, 10, 20_000, &[&held[1]]).await;
    assert_eq!(third.len(), 1);
    for job in [&held[1], &third[0]] {
        worker.finish(at, job, json!({"verdict": "succeeded"})).await;
    }
    tickr.until_count("SELECT CAST(COALESCE(SUM(permits), 0) AS SIGNED) FROM queue_permits", 0).await;
    assert_eq!(tickr.patch("/v1/queues/pictures", json!({"concurrency": null})).await.status, 200);

    assert_eq!(tickr.post("/v1/queues/pictures/pause", json!({})).await.status, 200);
    let paused = tickr.enqueue_kind("resize", json!("paused")).await;
    until_ready(&tickr, paused).await;
    assert_eq!(worker.fetch(at, 1, 1_500, &[]).await, Vec::<Value>::new());
    assert_eq!(tickr.post("/v1/queues/pictures/resume", json!({})).await.status, 200);
    let resumed = worker.fetch(at, 1, 20_000, &[]).await;
    worker.finish(at, &resumed[0], json!({"verdict": "succeeded"})).await;

    let ordered = |n: u32| json!({"kind": "resize", "payload": n, "order_key": "one"});
    let ids = tickr.enqueue_many((0..2).map(ordered)).await;
    let first = worker.fetch(at, 10, 20_000, &[]).await;
    assert_eq!((first.len(), id_of(&first[0])), (1, ids[0]));
    assert_eq!(worker.fetch(at, 10, 1_000, &[&first[0]]).await, Vec::<Value>::new());
    worker.finish(at, &first[0], json!({"verdict": "succeeded"})).await;
    let second = worker.fetch(at, 10, 20_000, &[]).await;
    assert_eq!(id_of(&second[0]), ids[1]);
    worker.finish(at, &second[0], json!({"verdict": "succeeded"})).await;

    // A limit by key frees its slot with the verdict.
    let limit = json!({"kind": "resize", "concurrency": 1});
    assert_eq!(tickr.put("/v1/limits/one", limit).await.status, 201);
    eventually("the limit counts", || async {
        (tickr.get("/v1/limits/one").await.body["counted"] == true).then_some(())
    })
    .await;
    let keyed = |n: u32| json!({"kind": "resize", "payload": n, "limit_key": "k"});
    tickr.enqueue_many((0..2).map(keyed)).await;
    let first = worker.fetch(at, 10, 20_000, &[]).await;
    assert_eq!(first.len(), 1);
    assert_eq!(worker.fetch(at, 10, 1_000, &[&first[0]]).await, Vec::<Value>::new());
    worker.finish(at, &first[0], json!({"verdict": "succeeded"})).await;
    let second = worker.fetch(at, 10, 20_000, &[]).await;
    assert_eq!(worker.finish(at, &second[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_waited_for_its_worker_follows_a_limit_that_was_set_meanwhile() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 2).await;
    assert_eq!(tickr.post("/v1/queues/pictures/pause", json!({})).await.status, 200);
    let keyed = |n: u32| json!({"kind": "resize", "payload": n, "limit_key": "k"});
    tickr.enqueue_many((0..2).map(keyed)).await;
    let fetched = tokio::spawn({
        let worker = Worker { id: worker.id.clone() };
        async move { worker.fetch(at, 2, 30_000, &[]).await }
    });
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE fetch_id IS NOT NULL", 1).await;
    let mut session = tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    let row = sqlx::query("SELECT id FROM runners WHERE id = ? FOR UPDATE").bind(&worker.id);
    assert!(row.fetch_optional(&mut session).await.unwrap().is_some());
    assert_eq!(tickr.post("/v1/queues/pictures/resume", json!({})).await.status, 200);
    tickr.until_said("SELECT id FROM runners", 1).await;
    // A claim waits for five seconds at most, and the attempts of a limit are counted three to five seconds after it is set.
    set(&tickr, "l", json!({"kind": "resize", "concurrency": 1})).await;
    tickr.sql("UPDATE limits SET counted = TRUE").await;
    // The claim that waits is older than the time in which a claim is sure of its limits.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    session.execute("ROLLBACK").await.unwrap();
    let jobs = fetched.await.unwrap();
    assert_eq!(jobs.len(), 1, "{jobs:#?}");
    assert_eq!(worker.fetch(at, 1, 1_000, &[&jobs[0]]).await, Vec::<Value>::new());
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 1).await;
    assert_eq!(worker.finish(at, &jobs[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    let second = worker.fetch(at, 1, 20_000, &[]).await;
    assert_eq!(worker.finish(at, &second[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    tickr.stop().await;
}

/// Fetch jobs for this worker until the task ends, and finish each at once.
fn work_off(worker: Worker, at: SocketAddr, wait_ms: u64) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            for job in worker.fetch(at, 2, wait_ms, &[]).await {
                worker.finish(at, &job, json!({"verdict": "succeeded"})).await;
            }
        }
    })
}

/// Wait until this many jobs have completed, and beat for the worker meanwhile. Each heartbeat is answered soon. Stalls
/// of the machine do not count.
async fn until_completed(tickr: &TestApp, wanted: i64, within: Duration, beats: &Worker) {
    let pulse = Pulse::start(tickr).await;
    let (began, completed) = (Instant::now(), "SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'");
    loop {
        let asked = Instant::now();
        beats.beat(tickr.app.addr(), &[]).await;
        let took = pulse.time_since(asked);
        assert!(took < Duration::from_secs(2), "a heartbeat took {took:?}");
        let done = tickr.count(completed).await;
        if done >= wanted {
            return;
        }
        assert!(pulse.time_since(began) < within, "{done} of {wanted} jobs have completed after {within:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_another_session_locks_holds_up_no_other_job_and_no_heartbeat() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let mut completed = 0;
    for limit in ["none", "of the queue", "by key"] {
        let queue_limit = json!({"concurrency": if limit == "of the queue" { json!(10) } else { Value::Null }});
        assert_eq!(tickr.patch("/v1/queues/pictures", queue_limit).await.status, 200);
        if limit == "by key" {
            let limit = json!({"kind": "resize", "concurrency": 10});
            assert_eq!(tickr.put("/v1/limits/ten", limit).await.status, 201);
            eventually("the limit counts", || async {
                (tickr.get("/v1/limits/ten").await.body["counted"] == true).then_some(())
            })
            .await;
        }
        let job = |n: u32| json!({"kind": "resize", "payload": n, "limit_key": "k"});
        let ids = tickr.enqueue_many((0..6).map(job)).await;
        let mut frozen = tickr.mysql().await;
        sqlx::raw_sql("BEGIN").execute(&mut frozen).await.unwrap();
        let lock = "SELECT id FROM owed WHERE id = ? FOR UPDATE";
        sqlx::query(lock).bind(ids[0].uuid()).fetch_one(&mut frozen).await.unwrap();
        let mut tasks = Vec::new();
        for _ in 0..3 {
            tasks.push(work_off(Worker::register(&tickr, 2).await, at, 500));
        }
        let beats = Worker::register(&tickr, 1).await;
        until_completed(&tickr, completed + 5, Duration::from_secs(5), &beats).await;
        assert_eq!(tickr.job(ids[0]).await["state"], "waiting", "a limit: {limit}");
        sqlx::raw_sql("ROLLBACK").execute(&mut frozen).await.unwrap();
        completed += 6;
        until_completed(&tickr, completed, Duration::from_secs(20), &beats).await;
        for id in ids {
            assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
        }
        // Between two requests, so that none of them is given up with jobs on their way.
        tasks.iter().for_each(JoinHandle::abort);
    }
    tickr.stop().await;
}

/// Wait for an answer, and fail if it takes longer than this, apart from stalls of the machine.
async fn answered_within(pulse: &Pulse, within: Duration, what: &str, call: impl Future<Output = Answer>) -> Answer {
    let asked = Instant::now();
    let answer = tokio::time::timeout(DEADLINE, call).await.unwrap_or_else(|_| panic!("no answer to {what}"));
    let took = pulse.time_since(asked);
    assert!(took < within, "{what} took {took:?}");
    answer
}

/// Call a worker's verb, and fail if the answer takes longer than this, apart from stalls of the machine.
async fn called_within(
    pulse: &Pulse,
    within: Duration,
    worker: &Worker,
    at: SocketAddr,
    verb: &str,
    body: Value,
) -> Value {
    let called = answered_within(pulse, within, verb, worker.call(at, verb, body)).await;
    assert_eq!(called.status, 200, "{verb}: {:#}", called.body);
    called.body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_another_session_locks_costs_no_other_attempt_of_its_worker_its_lease_or_its_verdict() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let lease = json!({"name": "test", "kinds": ["resize"], "slots": 4, "lease_ms": 10_000});
    let worker = Worker::register_as(&tickr, lease.clone()).await;
    let ids = tickr.enqueue_many((0..3).map(|n| json!({"kind": "resize", "payload": n}))).await;
    let mut held = worker.fetch(at, 3, 10_000, &[]).await;
    while held.len() < 3 {
        let more = worker.fetch(at, 3, 10_000, &held.iter().collect::<Vec<_>>()).await;
        held.extend(more);
    }
    let locked = held.iter().find(|job| id_of(job) == ids[0]).unwrap();
    let free: Vec<&Value> = held.iter().filter(|job| id_of(job) != ids[0]).collect();
    // The heartbeats of a second worker share the connections of the first one's.
    let other = Worker::register_as(&tickr, lease).await;
    let mut frozen = tickr.mysql().await;
    sqlx::raw_sql("BEGIN").execute(&mut frozen).await.unwrap();
    let lock = "SELECT id FROM owed WHERE id = ? FOR UPDATE";
    sqlx::query(lock).bind(ids[0].uuid()).fetch_one(&mut frozen).await.unwrap();
    let pulse = Pulse::start(&tickr).await;
    // More than two leases, in which every reaper looks several times.
    let until = Instant::now() + Duration::from_secs(25);
    let mut alone = 0;
    while Instant::now() < until {
        let holding = held.iter().map(|job| json!({"token": job["token"], "percent": 50.0, "checkpoint": {"row": 1}}));
        let body = json!({"holding": holding.collect::<Vec<_>>()});
        let idle = json!({"holding": []});
        let within = Duration::from_secs(4);
        let (beaten, _) = tokio::join!(
            called_within(&pulse, within, &worker, at, "beat", body),
            called_within(&pulse, within, &other, at, "beat", idle),
        );
        assert_eq!((&beaten["lost"], &beaten["cancel"]), (&json!([]), &json!([])), "{beaten:#}");
        // Its report was not stored, and the answer says so. On a machine that stands still, others may be late.
        assert!(beaten["unsaved"].as_array().unwrap().contains(&locked["token"]), "{beaten:#}");
        alone += u32::from(beaten["unsaved"] == json!([locked["token"]]));
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    assert!(alone > 0, "the reports of the others are stored");
    for job in &free {
        assert_eq!(tickr.job(id_of(job)).await["progress"]["percent"], 50.0);
        assert_eq!(tickr.verdicts(id_of(job)).await, ["open"]);
    }
    let verdicts: Vec<Value> = held.iter().map(|job| json!({"token": job["token"], "verdict": "succeeded"})).collect();
    // Verdicts share a write, which waits some seconds for a row that it finds locked for the first time. A client
    // repeats a call within ten seconds.
    let began = Instant::now();
    loop {
        let body = json!({"verdicts": verdicts});
        let finished = called_within(&pulse, Duration::from_secs(8), &worker, at, "finish", body).await;
        let results = finished["results"].as_array().unwrap();
        let place = held.iter().position(|job| id_of(job) == ids[0]).unwrap();
        assert_eq!(results[place], json!({"token": locked["token"], "result": "locked"}), "{finished:#}");
        if results.iter().filter(|result| result["result"] == "settled").count() == 2 {
            break;
        }
        assert!(pulse.time_since(began) < Duration::from_secs(15), "{finished:#}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    sqlx::raw_sql("ROLLBACK").execute(&mut frozen).await.unwrap();
    for id in &ids[1..] {
        assert_eq!(tickr.verdicts(*id).await, ["succeeded"]);
    }
    // Its lease could not be renewed: either its verdict or the end of its lease came first.
    let last = worker.finish(at, locked, json!({"verdict": "succeeded"})).await;
    assert!(["settled", "lease_lost"].contains(&last["result"].as_str().unwrap()), "{last:#}");
    if last["result"] == "lease_lost" {
        let again = worker.fetch(at, 1, 20_000, &[]).await;
        worker.finish(at, &again[0], json!({"verdict": "succeeded"})).await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_another_session_locks_delays_no_end_of_a_worker_and_no_job_that_did_not_arrive() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 4).await;
    let ids = tickr.enqueue_many((0..2).map(|n| json!({"kind": "resize", "payload": n}))).await;
    // Each request gives back what the one before it got.
    while worker.fetch(at, 2, 10_000, &[]).await.len() < 2 {}
    let mut frozen = tickr.mysql().await;
    sqlx::raw_sql("BEGIN").execute(&mut frozen).await.unwrap();
    let lock = "SELECT id FROM owed WHERE id = ? FOR UPDATE";
    sqlx::query(lock).bind(ids[0].uuid()).fetch_one(&mut frozen).await.unwrap();
    let pulse = Pulse::start(&tickr).await;
    // The next request lists neither of them, so both are given back. One of them can be. A wait for the other one
    // takes five seconds.
    let body = json!({"slots": 4, "wait_ms": 20_000, "holding": [], "fetch_id": Uuid::now_v7()});
    let within = Duration::from_secs(4);
    let fetched = answered_within(&pulse, within, "fetch", worker.call(at, "fetch", body)).await;
    let jobs = fetched.body["jobs"].as_array().unwrap();
    assert_eq!(jobs.iter().map(id_of).collect::<Vec<_>>(), [ids[1]], "{:#}", fetched.body);
    // A program has some seconds for its end.
    let leave = tickr.request(Method::DELETE, &format!("/v1/workers/{}", worker.id));
    assert_eq!(answered_within(&pulse, within, "the leave", answer(leave)).await.status, 204);
    // However often it says so, the locked row takes no connection from the loops of the process. A job expires while
    // it waits for a worker.
    for _ in 0..40 {
        assert_eq!(tickr.delete(&format!("/v1/workers/{}", worker.id)).await.status, 204);
    }
    let mut most = 0;
    for _ in 0..20 {
        most = most.max(tickr.lock_waits().await);
    }
    assert_eq!(most, 0, "sessions that wait for the row");
    let late = tickr.enqueue(json!({"kind": "resize", "payload": 2, "expires_in_ms": 1_000})).await;
    let began = Instant::now();
    tickr.until(late, State::Failed).await;
    pulse.assert_within(Duration::from_secs(20), began, "the end of the job that expired");
    sqlx::raw_sql("ROLLBACK").execute(&mut frozen).await.unwrap();
    // Both come back without an attempt used, and no lease has to end.
    eventually("both wait again", || async {
        (tickr.count("SELECT COUNT(*) FROM owed WHERE state = 'waiting'").await == 2).then_some(())
    })
    .await;
    let (next, mut done) = (Worker::register(&tickr, 4).await, 0);
    while done < 2 {
        for job in next.fetch(at, 4, 10_000, &[]).await {
            assert_eq!(job["attempt"], 1, "{job:#}");
            next.finish(at, &job, json!({"verdict": "succeeded"})).await;
            done += 1;
        }
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_whose_checkpoint_mysql_refuses_renews_its_leases_and_says_so() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 1).await;
    let id = tickr.enqueue(json!({"kind": "resize", "payload": 1})).await;
    let job = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    let body = json!({"holding": [{"token": job["token"], "checkpoint": {"row": 1}}]});
    let refuses = "CREATE TRIGGER refuses BEFORE INSERT ON checkpoints FOR EACH ROW \
                   SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'";
    tickr.sql(refuses).await;
    let beaten = worker.call(at, "beat", body.clone()).await;
    let expected = (200, &json!([job["token"]]));
    assert_eq!((beaten.status, &beaten.body["unsaved"]), expected, "{:#}", beaten.body);
    tickr.sql("DROP TRIGGER refuses").await;
    // Another session may lock the row for a moment.
    eventually("the checkpoint is saved", || async {
        worker.call(at, "beat", body.clone()).await.body.get("unsaved").is_none().then_some(())
    })
    .await;
    assert_eq!(tickr.verdicts(id).await, ["open"]);
    worker.finish(at, &job, json!({"verdict": "succeeded"})).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_table_of_checkpoints_holds_up_no_heartbeat_of_another_worker() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let mut held = Vec::new();
    for n in 0..12 {
        let worker = Worker::register(&tickr, 1).await;
        tickr.enqueue(json!({"kind": "resize", "payload": n})).await;
        let job = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
        held.push((worker, job));
    }
    let other = Worker::register(&tickr, 1).await;
    let mut operator = tickr.mysql().await;
    operator.execute("LOCK TABLES checkpoints READ").await.unwrap();
    let saves = async |worker: &Worker, job: &Value| {
        let body = json!({"holding": [{"token": job["token"], "checkpoint": {"row": 1}}]});
        let beaten = worker.call(at, "beat", body).await;
        assert_eq!((beaten.status, &beaten.body["lost"]), (200, &json!([])), "{:#}", beaten.body);
        beaten.body.get("unsaved").is_none()
    };
    let each = held.iter().map(|(worker, job)| saves(worker, job));
    let mut together = Box::pin(futures_util::future::join_all(each));
    // Each save waits for the lock for a second. Heartbeats have two connections, and saves take one of them.
    let saving = "SELECT COUNT(*) FROM information_schema.processlist \
                  WHERE state LIKE 'Waiting for table%' AND info LIKE 'INSERT INTO %checkpoints (job_id%'";
    let mut most = 0;
    let saved = loop {
        tokio::select! {
            saved = &mut together => break saved,
            waiting = async { (other.beat(at, &[]).await, tickr.count(saving).await).1 } => most = most.max(waiting),
        }
    };
    assert_eq!(saved, [false; 12]);
    assert!(most < 2, "{most} saves wait for the lock at once");
    operator.execute("UNLOCK TABLES").await.unwrap();
    for (worker, job) in &held {
        eventually("the checkpoint is saved", || async { saves(worker, job).await.then_some(()) }).await;
        assert_eq!(worker.finish(at, job, json!({"verdict": "succeeded"})).await["result"], "settled");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_cannot_be_read_costs_no_other_attempt_of_its_worker_its_beat_or_verdict() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 3).await;
    let ids = tickr.enqueue_many((0..3).map(|n| json!({"kind": "resize", "payload": n}))).await;
    let mut held: Vec<Value> = Vec::new();
    while held.len() < 3 {
        let more = worker.fetch(at, 3, 10_000, &held.iter().collect::<Vec<_>>()).await;
        held.extend(more);
    }
    held.sort_by_key(id_of);
    let bad = id_of(&held[0]).uuid().simple();
    let name = async |table: &str, kind: &str| {
        tickr.sql(format!("UPDATE {table} SET kind = '{kind}' WHERE id = UNHEX('{bad}')")).await;
    };
    // First one of its two rows cannot be read, and then neither of them can.
    for table in ["owed", "jobs"] {
        name(table, "Not A Name").await;
        let holding = held.iter().map(|job| json!({"token": job["token"], "checkpoint": {"row": 1}}));
        let body = json!({"holding": holding.collect::<Vec<_>>()});
        // Another session may lock one of the other rows for a moment.
        eventually("the checkpoints of the others are saved", || async {
            let beaten = worker.call(at, "beat", body.clone()).await;
            assert_eq!((beaten.status, &beaten.body["lost"]), (200, &json!([])), "{:#}", beaten.body);
            (beaten.body["unsaved"] == json!([held[0]["token"]])).then_some(())
        })
        .await;
        let verdicts = held[..2].iter().map(|job| json!({"token": job["token"], "verdict": "succeeded"}));
        let body = json!({"verdicts": verdicts.collect::<Vec<_>>()});
        eventually("the verdict of the other one is written", || async {
            let finished = worker.call(at, "finish", body.clone()).await;
            assert_eq!(finished.status, 200, "{:#}", finished.body);
            assert_eq!(finished.body["results"][0]["result"], "locked", "{:#}", finished.body);
            (finished.body["results"][1]["result"] == "settled").then_some(())
        })
        .await;
        held.remove(1);
    }
    for table in ["owed", "jobs"] {
        name(table, "resize").await;
    }
    assert_eq!(worker.finish(at, &held[0], json!({"verdict": "succeeded"})).await["result"], "settled");
    for id in ids {
        assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verdict_that_is_written_after_its_answer_has_all_that_follows_it() {
    let tickr = started().await;
    let at = tickr.app.addr();
    // The tests of this process share its metrics, so the kind is this test's own.
    assert_eq!(tickr.put("/v1/kinds/answered-late", json!({"queue": "pictures"})).await.status, 201);
    let worker = Worker::register_as(&tickr, json!({"name": "late", "kinds": ["answered-late"], "slots": 4})).await;
    let id = tickr.enqueue(json!({"kind": "answered-late", "payload": 1})).await;
    let job = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    let mut frozen = tickr.mysql().await;
    sqlx::raw_sql("BEGIN").execute(&mut frozen).await.unwrap();
    let lock = "SELECT id FROM owed WHERE id = ? FOR UPDATE";
    sqlx::query(lock).bind(id.uuid()).fetch_one(&mut frozen).await.unwrap();
    // The repetition joins the verdict that is under way.
    for _ in 0..2 {
        assert_eq!(worker.finish_once(at, &job, json!({"verdict": "succeeded"})).await["result"], "locked");
    }
    sqlx::raw_sql("ROLLBACK").execute(&mut frozen).await.unwrap();
    tickr.until_metric("tickr_attempts_total{kind=\"answered-late\",verdict=\"succeeded\"} 1").await;
    assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    tickr.stop().await;
}

/// Read a figure of the metrics page. Zero if the page has no such line.
async fn figure(tickr: &TestApp, series: &str) -> f64 {
    let page = http().get(tickr.url("/metrics")).send().await.unwrap().text().await.unwrap();
    page.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_run_time_of_a_worker_is_in_the_metrics_of_its_kind_and_the_history_of_its_queue() {
    let tickr = started().await;
    let at = tickr.app.addr();
    // The tests of this process share its metrics, so the kind is this test's own.
    assert_eq!(tickr.put("/v1/kinds/timed-remotely", json!({"queue": "pictures"})).await.status, 201);
    let worker = Worker::register_as(&tickr, json!({"name": "timed", "kinds": ["timed-remotely"], "slots": 4})).await;
    let began = Instant::now();
    let id = tickr.enqueue(json!({"kind": "timed-remotely", "payload": 1})).await;
    let job = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    aged(&tickr, 20).await;
    // A repetition is no further attempt.
    for _ in 0..2 {
        assert_eq!(worker.finish(at, &job, json!({"verdict": "succeeded"})).await["result"], "settled");
    }
    let count = "tickr_run_seconds_count{kind=\"timed-remotely\"}";
    tickr.until_metric(&format!("{count} 1")).await;
    let ran = figure(&tickr, "tickr_run_seconds_sum{kind=\"timed-remotely\"}").await;
    let longest = 20.0 + began.elapsed().as_secs_f64();
    assert!((19.9..=longest).contains(&ran), "{ran} s, and at most {longest} s");
    let median = eventually("the history has the run time", || async {
        let history = tickr.get("/v1/history?span=5m&queue=pictures").await.body;
        history["points"]["run_p50_ms"].as_array().unwrap().iter().find_map(Value::as_f64)
    })
    .await;
    // The history keeps times in steps of a few per cent.
    assert!((18_000.0..=longest * 1_100.0).contains(&median), "{median} ms, and at most {longest} s");
    assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    tickr.stop_broken("its attempt was made older than its job").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_over_and_that_another_session_locks_delays_no_heartbeat() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 4).await;
    tickr.enqueue(json!({"kind": "resize", "payload": 1})).await;
    let job = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    worker.finish(at, &job, json!({"verdict": "succeeded"})).await;
    let mut frozen = tickr.mysql().await;
    sqlx::raw_sql("BEGIN").execute(&mut frozen).await.unwrap();
    let lock = "SELECT id FROM claim_batches WHERE runner = ? FOR UPDATE";
    let locked = sqlx::query(lock).bind(&worker.id).fetch_all(&mut frozen).await.unwrap();
    assert_eq!(locked.len(), 1, "no heartbeat has come since its end");
    // A heartbeat waits for a lock for a second.
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    for _ in 0..4 {
        worker.beat(at, &[]).await;
    }
    pulse.assert_within(Duration::from_secs(3), began, "four heartbeats");
    sqlx::raw_sql("ROLLBACK").execute(&mut frozen).await.unwrap();
    eventually("a heartbeat deletes the batch", || async {
        worker.beat(at, &[]).await;
        (tickr.count("SELECT COUNT(*) FROM claim_batches").await == 0).then_some(())
    })
    .await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_of_a_worker_that_is_gone_delays_no_lost_attempt_of_another() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let gone = Worker::register(&tickr, 1).await;
    gone.lease_ms(&tickr, 1_000).await;
    // A claim for a worker locks its row like this.
    let mut frozen = tickr.mysql().await;
    sqlx::raw_sql("BEGIN").execute(&mut frozen).await.unwrap();
    let lock = "SELECT id FROM runners WHERE id = ? LOCK IN SHARE MODE";
    sqlx::query(lock).bind(&gone.id).fetch_one(&mut frozen).await.unwrap();
    // Longer than the two leases after which the reaper takes it for gone, and a look of the reaper.
    tickr
        .until_count(
            "SELECT COUNT(*) FROM runners WHERE via = 'http' AND heartbeat_at < UTC_TIMESTAMP(6) - INTERVAL 6 SECOND",
            1,
        )
        .await;
    let dead = Worker::register(&tickr, 1).await;
    let id = tickr.enqueue(json!({"kind": "resize", "payload": 1})).await;
    assert_eq!(dead.fetch(at, 1, 20_000, &[]).await.len(), 1);
    dead.lease_from_now(&tickr, 4_000).await;
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    tickr.until_attempts(id, 1).await;
    assert_eq!(tickr.verdicts(id).await[0], "lost");
    pulse.assert_within(Duration::from_secs(15), began, "the attempt is lost");
    sqlx::raw_sql("ROLLBACK").execute(&mut frozen).await.unwrap();
    let next = Worker::register(&tickr, 1).await;
    let job = next.fetch(at, 1, 20_000, &[]).await.remove(0);
    next.finish(at, &job, json!({"verdict": "succeeded"})).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_a_limit_that_another_session_locks_holds_up_no_other_key_of_workers() {
    let tickr = started().await;
    let at = tickr.app.addr();
    assert_eq!(tickr.put("/v1/limits/ten", json!({"kind": "resize", "concurrency": 10})).await.status, 201);
    eventually("the limit counts", || async {
        (tickr.get("/v1/limits/ten").await.body["counted"] == true).then_some(())
    })
    .await;
    tickr.sql("INSERT INTO limit_keys (limit_name, limit_key) VALUES ('ten', 'a')").await;
    let mut frozen = tickr.mysql().await;
    sqlx::raw_sql("BEGIN").execute(&mut frozen).await.unwrap();
    let lock = "SELECT limit_key FROM limit_keys WHERE limit_name = 'ten' AND limit_key = 'a' FOR UPDATE";
    sqlx::query(lock).fetch_one(&mut frozen).await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..4 {
        tasks.push(work_off(Worker::register(&tickr, 4).await, at, 500));
    }
    let beats = Worker::register(&tickr, 1).await;
    let job = |key: &str| json!({"kind": "resize", "payload": 1, "limit_key": key});
    let ids = tickr.enqueue_many((0..10).flat_map(|_| ["a", "b"].map(job))).await;
    // A claim that waited for the key was repeated for 40 s, with all its jobs.
    until_completed(&tickr, 10, Duration::from_secs(10), &beats).await;
    let waiting = "SELECT COUNT(*) FROM owed o JOIN job_limit_keys k ON k.job_id = o.id WHERE k.limit_key = 'a' \
                   AND o.state = 'waiting'";
    assert_eq!(tickr.count(waiting).await, 10);
    sqlx::raw_sql("ROLLBACK").execute(&mut frozen).await.unwrap();
    until_completed(&tickr, 20, Duration::from_secs(20), &beats).await;
    for id in ids {
        assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    }
    tasks.iter().for_each(JoinHandle::abort);
    tickr.stop().await;
}

/// Start with a limit by key for the kind `resize`, whose queue has a limit as well.
async fn started_with_both_limits() -> TestApp {
    let tickr = started().await;
    assert_eq!(tickr.patch("/v1/queues/pictures", json!({"concurrency": 50})).await.status, 200);
    assert_eq!(tickr.put("/v1/limits/ten", json!({"kind": "resize", "concurrency": 10})).await.status, 201);
    eventually("the limit counts", || async {
        (tickr.get("/v1/limits/ten").await.body["counted"] == true).then_some(())
    })
    .await;
    tickr
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_a_worker_that_waits_for_a_key_of_a_limit_keeps_no_queue_locked() {
    let tickr = started_with_both_limits().await;
    let at = tickr.app.addr();
    tickr.sql("INSERT INTO limit_keys (limit_name, limit_key) VALUES ('ten', 'a')").await;
    let mut frozen = tickr.mysql().await;
    sqlx::raw_sql("BEGIN").execute(&mut frozen).await.unwrap();
    let lock = "SELECT limit_key FROM limit_keys WHERE limit_name = 'ten' AND limit_key = 'a' FOR UPDATE";
    sqlx::query(lock).fetch_one(&mut frozen).await.unwrap();
    let task = work_off(Worker::register(&tickr, 1).await, at, 500);
    let beats = Worker::register(&tickr, 1).await;
    tickr.enqueue(json!({"kind": "resize", "payload": 1, "limit_key": "a"})).await;
    let waiting = async || -> HashSet<String> {
        let open = open_transactions(tickr.config.mysql_url().unwrap().expose()).await;
        open.into_iter().filter(|open| open.state == "LOCK WAIT").map(|open| open.id).collect()
    };
    // Only a look counts before and after which the same claim waits: it may have the queue before its wait, and has it
    // again after that.
    eventually("the queue is looked at while a claim waits for the key", || async {
        let before = waiting().await;
        let mut other = tickr.mysql().await;
        sqlx::raw_sql("BEGIN").execute(&mut other).await.unwrap();
        let queue = other.fetch_all("SELECT name FROM queues WHERE name = 'pictures' FOR UPDATE NOWAIT").await;
        sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
        let counts = !before.is_disjoint(&waiting().await);
        if counts {
            assert_eq!(queue.unwrap().len(), 1);
        }
        counts.then_some(())
    })
    .await;
    sqlx::raw_sql("ROLLBACK").execute(&mut frozen).await.unwrap();
    until_completed(&tickr, 1, Duration::from_secs(20), &beats).await;
    task.abort();
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_locked_keys_of_a_limit_hold_up_no_other_key_of_workers_in_a_limited_queue() {
    let tickr = started_with_both_limits().await;
    let at = tickr.app.addr();
    let keys: Vec<String> = (0..40).map(|n| format!("a{n}")).collect();
    let rows: Vec<String> = keys.iter().map(|key| format!("('ten', '{key}')")).collect();
    tickr.sql(format!("INSERT INTO limit_keys (limit_name, limit_key) VALUES {}", rows.join(","))).await;
    let mut frozen = tickr.mysql().await;
    let begin = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; BEGIN";
    sqlx::raw_sql(begin).execute(&mut frozen).await.unwrap();
    // tickr locks rows alone, and not the gaps between them, so other sessions can make rows of other keys.
    let lock = "SELECT limit_key FROM limit_keys WHERE limit_name = 'ten' FOR UPDATE";
    assert_eq!(frozen.fetch_all(lock).await.unwrap().len(), 40);
    // Few jobs for each claim, so that no claim finds many of the keys.
    let mut tasks = Vec::new();
    for _ in 0..2 {
        tasks.push(work_off(Worker::register(&tickr, 1).await, at, 500));
    }
    let beats = Worker::register(&tickr, 1).await;
    let job = |key: &str| json!({"kind": "resize", "payload": 1, "limit_key": key});
    tickr.enqueue_many(keys.iter().map(|key| job(key))).await;
    for done in 1..=4 {
        tickr.enqueue(job("b")).await;
        // Each of these keys costs a wait of a second, again and again.
        until_completed(&tickr, done, Duration::from_secs(10), &beats).await;
    }
    sqlx::raw_sql("ROLLBACK").execute(&mut frozen).await.unwrap();
    until_completed(&tickr, 44, Duration::from_secs(20), &beats).await;
    tasks.iter().for_each(JoinHandle::abort);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_another_session_has_not_made_after_all_holds_up_no_job_of_a_worker_in_a_limited_queue() {
    let tickr = started_with_both_limits().await;
    let at = tickr.app.addr();
    let mut frozen = tickr.mysql().await;
    sqlx::raw_sql("BEGIN").execute(&mut frozen).await.unwrap();
    let insert = "INSERT INTO limit_keys (limit_name, limit_key) VALUES ('ten', 'a')";
    sqlx::raw_sql(insert).execute(&mut frozen).await.unwrap();
    let task = work_off(Worker::register(&tickr, 1).await, at, 500);
    let beats = Worker::register(&tickr, 1).await;
    tickr.enqueue(json!({"kind": "resize", "payload": 1, "limit_key": "a"})).await;
    // The key counts as locked after this wait, and its row is gone.
    tickr.until_lock_waits(1..).await;
    tickr.until_lock_waits(..1).await;
    sqlx::raw_sql("ROLLBACK").execute(&mut frozen).await.unwrap();
    // The job comes back after three seconds, and the key counts as locked for ten.
    until_completed(&tickr, 1, Duration::from_secs(8), &beats).await;
    task.abort();
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_another_session_locks_holds_up_no_other_queue_of_workers() {
    let tickr = started().await;
    let at = tickr.app.addr();
    assert_eq!(tickr.patch("/v1/queues/pictures", json!({"concurrency": 10})).await.status, 200);
    let mut frozen = tickr.mysql().await;
    sqlx::raw_sql("BEGIN").execute(&mut frozen).await.unwrap();
    sqlx::raw_sql("SELECT name FROM queues WHERE name = 'pictures' FOR UPDATE").execute(&mut frozen).await.unwrap();
    let both = json!({"name": "test", "kinds": ["resize"], "queues": ["pictures", "other"], "slots": 2});
    let mut tasks = Vec::new();
    for _ in 0..10 {
        tasks.push(work_off(Worker::register_as(&tickr, both.clone()).await, at, 500));
    }
    let stuck = tickr.enqueue_many((0..20).map(|n| json!({"kind": "resize", "payload": n}))).await;
    let beats = Worker::register(&tickr, 1).await;
    for _ in 0..20 {
        tickr.enqueue(json!({"kind": "resize", "payload": 1, "queue": "other"})).await;
    }
    until_completed(&tickr, 20, Duration::from_secs(5), &beats).await;
    let of_stuck = "SELECT COUNT(*) FROM owed WHERE queue = 'pictures' AND state = 'waiting'";
    assert_eq!(tickr.count(of_stuck).await, 20);
    sqlx::raw_sql("ROLLBACK").execute(&mut frozen).await.unwrap();
    until_completed(&tickr, 40, Duration::from_secs(20), &beats).await;
    for id in stuck {
        assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    }
    tasks.iter().for_each(JoinHandle::abort);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_that_a_living_worker_does_not_use_is_free_for_others() {
    let tickr = started().await;
    let at = tickr.app.addr();
    assert_eq!(tickr.patch("/v1/queues/pictures", json!({"concurrency": 1})).await.status, 200);
    let both = json!({"name": "test", "kinds": ["resize"], "queues": ["pictures", "other"], "slots": 1});
    let busy = Worker::register_as(&tickr, both).await;
    let long = tickr.enqueue(json!({"kind": "resize", "payload": 1, "queue": "other"})).await;
    let held = busy.fetch(at, 1, 20_000, &[]).await;
    assert_eq!(id_of(&held[0]), long);
    // The process died that was to give the permit of an ended attempt back. The worker lives, with a job of another queue.
    let sql = "INSERT INTO queue_permits (queue, runner, permits, wanting) VALUES ('pictures'";
    tickr.sql(format!("{sql}, '{}', 1, FALSE)", busy.id)).await;
    let id = tickr.enqueue_kind("resize", json!(2)).await;
    let other = Worker::register(&tickr, 1).await;
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    let jobs = other.fetch(at, 1, 20_000, &[]).await;
    assert_eq!(jobs.iter().map(id_of).collect::<Vec<_>>(), [id]);
    pulse.assert_within(Duration::from_secs(5), began, "the permit is free");
    let permits = |of: &Worker| format!("SELECT COUNT(*) FROM queue_permits WHERE runner = '{}'", of.id);
    assert_eq!((tickr.count(permits(&busy)).await, tickr.count(permits(&other)).await), (0, 1));
    // The permit of an attempt that is open is not free.
    let last = tickr.enqueue_kind("resize", json!(3)).await;
    until_ready(&tickr, last).await;
    let third = Worker::register(&tickr, 1).await;
    assert_eq!(third.fetch(at, 1, 1_500, &[]).await, Vec::<Value>::new());
    for (worker, job) in [(&busy, &held[0]), (&other, &jobs[0])] {
        assert_eq!(worker.finish(at, job, json!({"verdict": "succeeded"})).await["state"], "completed");
    }
    let last = third.fetch(at, 1, 20_000, &[]).await;
    assert_eq!(third.finish(at, &last[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_at_the_limit_of_a_queue_whose_answer_is_lost_is_delivered_all_the_same() {
    let tickr = started().await;
    assert_eq!(tickr.patch("/v1/queues/pictures", json!({"concurrency": 1})).await.status, 200);
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let url = ServerUrl::mysql(&proxy.url()).unwrap();
    let through = tickr.another_with(|config| config.mysql_url = Some(url), Registry::new()).await;
    let worker = Worker::register(&tickr, 1).await;
    proxy.cut_commit_of("SELECT concurrency FROM queues WHERE name");
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    let jobs = worker.fetch(through.addr(), 1, 30_000, &[]).await;
    assert_eq!(jobs.iter().map(id_of).collect::<Vec<_>>(), [id]);
    pulse.assert_within(Duration::from_secs(5), began, "the job is delivered");
    assert_eq!(proxy.cuts(), 1);
    assert_eq!(worker.finish(through.addr(), &jobs[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    stop(through).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_is_handed_to_a_worker_that_holds_nothing_and_alone() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 5).await;
    let suspect = tickr.enqueue(json!({"kind": "resize", "payload": 0, "delay_ms": 3_600_000})).await;
    tickr.sql("UPDATE owed SET losses = 2, attempt = 2").await;
    tickr.enqueue_kind("resize", json!(1)).await;
    let first = worker.fetch(at, 5, 20_000, &[]).await;
    assert_eq!(first.len(), 1);
    assert_eq!(tickr.post(&format!("/v1/jobs/{suspect}/run-now"), json!({})).await.status, 200);
    until_ready(&tickr, suspect).await;
    assert_eq!(worker.fetch(at, 5, 2_000, &[&first[0]]).await, Vec::<Value>::new(), "the worker is not idle");
    let why = tickr.get(&format!("/v1/jobs/{suspect}/explain")).await.body["summary"].to_string();
    assert!(why.contains("it runs alone, when a remote worker holds no other job"), "{why}");
    worker.finish(at, &first[0], json!({"verdict": "succeeded"})).await;
    let alone = worker.fetch(at, 5, 20_000, &[]).await;
    assert_eq!((alone.len(), id_of(&alone[0])), (1, suspect));
    let beside = tickr.enqueue_kind("resize", json!(2)).await;
    until_ready(&tickr, beside).await;
    assert_eq!(worker.fetch(at, 4, 2_000, &[&alone[0]]).await, Vec::<Value>::new(), "a suspect runs alone");
    assert_eq!(worker.finish(at, &alone[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    let next = worker.fetch(at, 5, 20_000, &[]).await;
    assert_eq!(worker.finish(at, &next[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    tickr.stop_broken("the test has written losses without their attempts").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_gets_a_worker_to_itself_while_all_workers_have_jobs() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 4).await;
    let suspect = tickr.enqueue(json!({"kind": "resize", "payload": 0, "delay_ms": 3_600_000})).await;
    tickr.sql("UPDATE owed SET losses = 2, attempt = 2").await;
    tickr.enqueue_many((0..8).map(|_| json!({"kind": "resize", "payload": 1}))).await;
    let mut held = worker.fetch(at, 4, 20_000, &[]).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{suspect}/run-now"), json!({})).await.status, 200);
    let given_up = Instant::now() + 2 * DEADLINE;
    // The worker always has a free slot and always holds jobs, and there are always more of them.
    let alone = loop {
        assert!(Instant::now() < given_up, "no worker is kept free for the suspect");
        tickr.enqueue_kind("resize", json!(1)).await;
        let first = held.remove(0);
        assert_eq!(worker.finish(at, &first, json!({"verdict": "succeeded"})).await["result"], "settled");
        let holding: Vec<&Value> = held.iter().collect();
        let mut finished = 0;
        let fetched = {
            let others = async {
                for job in &holding {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    assert_eq!(worker.finish(at, job, json!({"verdict": "succeeded"})).await["result"], "settled");
                    finished += 1;
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                fetched = worker.fetch(at, 4 - u32::try_from(holding.len()).unwrap(), 20_000, &holding) => fetched,
                () = others => unreachable!(),
            }
        };
        held.drain(..finished);
        if fetched.iter().any(|job| id_of(job) == suspect) {
            break fetched;
        }
        held.extend(fetched);
    };
    assert_eq!(alone.len(), 1, "it runs alone");
    assert_eq!(worker.finish(at, &alone[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    // The last verdict may have been written before this worker had the answer to it, so the ledger says what ran.
    let beside = format!(
        "SELECT COUNT(*) FROM attempts s JOIN attempts a ON a.job_id <> s.job_id AND a.started_at < s.finished_at \
         AND a.finished_at > s.started_at WHERE s.job_id = x'{0}' AND s.end_state = 'completed'",
        suspect.uuid().simple()
    );
    assert_eq!(tickr.count(beside).await, 0, "it ran alone");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE state = 'executing'").await, 0, "it ran alone");
    while tickr.count("SELECT COUNT(*) FROM owed").await > 0 {
        for job in &worker.fetch(at, 4, 1_000, &[]).await {
            worker.finish(at, job, json!({"verdict": "succeeded"})).await;
        }
    }
    tickr.stop_broken("the test has written losses without their attempts").await;
}

/// Wait until the index delivers a job of the queue `pictures`.
async fn until_ready(tickr: &TestApp, id: JobId) {
    let lane = tickr.key("ready:pictures");
    eventually("the job is in the index", || async {
        let mut redis = tickr.redis().await;
        let ids: Vec<String> = redis::cmd("LRANGE").arg(&lane).arg(0).arg(-1).query_async(&mut redis).await.unwrap();
        ids.contains(&id.to_string()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_gets_a_worker_to_itself_also_when_requests_are_shorter_than_jobs() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 4).await;
    let suspect = tickr.enqueue(json!({"kind": "resize", "payload": 0, "delay_ms": 3_600_000})).await;
    tickr.sql("UPDATE owed SET losses = 2, attempt = 2").await;
    tickr.enqueue_many((0..2).map(|_| json!({"kind": "resize", "payload": 1}))).await;
    let mut fetched = worker.fetch(at, 2, 20_000, &[]).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{suspect}/run-now"), json!({})).await.status, 200);
    until_ready(&tickr, suspect).await;
    tickr.enqueue_many((0..250).map(|_| json!({"kind": "resize", "payload": 1}))).await;
    // The worker asks for 200 ms at most, and each job takes it longer.
    let mut held = Vec::<(Instant, Value)>::new();
    let given_up = Instant::now() + 2 * DEADLINE;
    while !fetched.iter().any(|job| id_of(job) == suspect) {
        assert!(Instant::now() < given_up, "no worker is kept free for the suspect");
        held.extend(fetched.drain(..).map(|job| (Instant::now() + Duration::from_millis(700), job)));
        let ended: Vec<(Instant, Value)> = held.extract_if(.., |(until, _)| *until < Instant::now()).collect();
        for (_, job) in &ended {
            assert_eq!(worker.finish(at, job, json!({"verdict": "succeeded"})).await["result"], "settled");
        }
        let holding: Vec<&Value> = held.iter().map(|(_, job)| job).collect();
        if holding.len() == 4 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        }
        fetched = worker.fetch(at, 4 - u32::try_from(holding.len()).unwrap(), 200, &holding).await;
    }
    assert_eq!((fetched.len(), held.len()), (1, 0), "it runs alone");
    assert_eq!(worker.finish(at, &fetched[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    // After it, the worker gets the others again.
    let left = tickr.count("SELECT COUNT(*) FROM owed").await;
    assert!(left > 125, "the suspect had to wait until most of the jobs behind it were over, {left} are left");
    let others = worker.fetch(at, 4, 20_000, &[]).await;
    assert!(!others.is_empty(), "{left} are left");
    for job in &others {
        worker.finish(at, job, json!({"verdict": "succeeded"})).await;
    }
    tickr.stop_broken("the test has written losses without their attempts").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_gets_a_worker_to_itself_also_when_every_request_takes_several_jobs() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 4).await;
    let suspect = tickr.enqueue(json!({"kind": "resize", "payload": 0, "delay_ms": 3_600_000})).await;
    tickr.sql("UPDATE owed SET losses = 2, attempt = 2").await;
    tickr.enqueue_many((0..4).map(|_| json!({"kind": "resize", "payload": 1}))).await;
    let mut held = worker.fetch(at, 4, 20_000, &[]).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{suspect}/run-now"), json!({})).await.status, 200);
    until_ready(&tickr, suspect).await;
    tickr.enqueue_many((0..250).map(|_| json!({"kind": "resize", "payload": 1}))).await;
    // No request waits for long, and none comes while the worker has a free slot and holds jobs. The pause and the
    // verdicts take less time than the suspect waits for the next request, also on a slow machine.
    for round in 0.. {
        if held.iter().any(|job| id_of(job) == suspect) {
            break;
        }
        assert!(round < 60, "no worker is kept free for the suspect");
        tokio::time::sleep(Duration::from_millis(100)).await;
        let worker = &worker;
        let ends = held.iter().map(|job| async move {
            assert_eq!(worker.finish(at, job, json!({"verdict": "succeeded"})).await["result"], "settled");
        });
        futures_util::future::join_all(ends).await;
        held = worker.fetch(at, 4, 200, &[]).await;
    }
    assert_eq!(held.len(), 1, "it runs alone");
    assert_eq!(worker.finish(at, &held[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    // After it, the worker gets the others again.
    let left = tickr.count("SELECT COUNT(*) FROM owed").await;
    let others = worker.fetch(at, 4, if left > 0 { 20_000 } else { 0 }, &[]).await;
    assert_eq!(others.is_empty(), left == 0, "{left} are left");
    for job in &others {
        worker.finish(at, job, json!({"verdict": "succeeded"})).await;
    }
    tickr.stop_broken("the test has written losses without their attempts").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_that_was_put_off_is_tried_again_before_the_jobs_behind_it() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 2).await;
    let suspect = tickr.enqueue(json!({"kind": "resize", "payload": 0, "delay_ms": 3_600_000})).await;
    tickr.sql("UPDATE owed SET losses = 2, attempt = 2").await;
    tickr.enqueue_kind("resize", json!("long")).await;
    let long = worker.fetch(at, 1, 20_000, &[]).await.pop().unwrap();
    assert_eq!(tickr.post(&format!("/v1/jobs/{suspect}/run-now"), json!({})).await.status, 200);
    // It is the first of its lane, and the others come behind it.
    until_ready(&tickr, suspect).await;
    tickr.enqueue_many((0..800).map(|_| json!({"kind": "resize", "payload": 1}))).await;
    let working = tokio::spawn({
        let (worker, long) = (Worker { id: worker.id.clone() }, long.clone());
        async move {
            loop {
                for job in worker.fetch(at, 1, 20_000, &[&long]).await {
                    if id_of(&job) == suspect {
                        // A further request that does not name the job would say that it never arrived.
                        return job;
                    }
                    // Each job takes a moment, so that the others behind the suspect are not gone before its pause.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    worker.finish(at, &job, json!({"verdict": "succeeded"})).await;
                }
            }
        }
    });
    // The worker is kept free for as long as that may last, and then gets the others.
    tickr.until_count("SELECT COUNT(*) > 0 FROM attempts WHERE end_state = 'completed'", 1).await;
    worker.finish(at, &long, json!({"verdict": "succeeded"})).await;
    let job = tokio::time::timeout(2 * DEADLINE, working).await.expect("the suspect starts").unwrap();
    let left = tickr.count("SELECT COUNT(*) FROM owed").await;
    assert!(left > 400, "{left} jobs are left behind the suspect");
    assert_eq!(worker.finish(at, &job, json!({"verdict": "succeeded"})).await["state"], "completed");
    tickr.stop_broken("the test has written losses without their attempts").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_for_which_no_worker_is_free_costs_few_claims_while_redis_is_out() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    assert_eq!(tickr.put("/v1/kinds/resize", json!({"queue": "pictures"})).await.status, 201);
    let at = tickr.app.addr();
    let suspect = tickr.enqueue(json!({"kind": "resize", "payload": 0, "delay_ms": 3_600_000})).await;
    tickr.sql("UPDATE owed SET losses = 2, attempt = 2").await;
    let mut working = Vec::new();
    for _ in 0..2 {
        let worker = Worker::register(&tickr, 2).await;
        tickr.enqueue_kind("resize", json!(1)).await;
        let held = worker.fetch(at, 1, 20_000, &[]).await.pop().unwrap();
        working.push((worker, held));
    }
    tickr.services().redis().kill9().unwrap();
    tickr.redis_stays_out();
    eventually("the index is degraded", || async {
        (tickr.get("/v1/index").await.body["health"] == "degraded").then_some(())
    })
    .await;
    let polls: Vec<JoinHandle<Vec<Value>>> = working
        .iter()
        .map(|(worker, held)| (Worker { id: worker.id.clone() }, held.clone()))
        .map(|(worker, held)| tokio::spawn(async move { worker.fetch(at, 1, 60_000, &[&held]).await }))
        .collect();
    let long = "SELECT COUNT(*) FROM runners WHERE polls_until > UTC_TIMESTAMP(6) + INTERVAL 30 SECOND";
    tickr.until_count(long, 2).await;
    // Every claim begins a transaction.
    let begins_in_three_seconds = || async {
        let begins = || async {
            let row: (String, String) = sqlx::query_as("SHOW GLOBAL STATUS LIKE 'Com_begin'")
                .fetch_one(&mut tickr.mysql().await)
                .await
                .unwrap();
            row.1.parse::<i64>().unwrap()
        };
        let before = begins().await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        begins().await - before
    };
    // A stall of the machine makes a count smaller, and what waited for its end makes the next one larger.
    let without = begins_in_three_seconds().await.max(begins_in_three_seconds().await);
    tickr.sql(format!("UPDATE owed SET execute_at = UTC_TIMESTAMP(6) WHERE id = x'{}'", suspect.uuid().simple())).await;
    let with = begins_in_three_seconds().await.min(begins_in_three_seconds().await);
    println!("{without} transactions in three seconds, {with} with a suspect");
    // One worker is set aside, and its attempts are counted five times a second.
    assert!(with - without < 45, "{without} transactions in three seconds, {with} with a suspect");
    for (worker, held) in &working {
        assert_eq!(worker.finish(at, held, json!({"verdict": "succeeded"})).await["state"], "completed");
    }
    let (first, place, others) = futures_util::future::select_all(polls).await;
    let alone = first.unwrap();
    assert_eq!(alone.iter().map(id_of).collect::<Vec<_>>(), [suspect]);
    assert_eq!(working[place].0.finish(at, &alone[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    others.iter().for_each(JoinHandle::abort);
    tickr.stop_broken("the test has written losses without their attempts").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_get_their_jobs_while_redis_is_out() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    assert_eq!(tickr.put("/v1/kinds/resize", json!({"queue": "pictures"})).await.status, 201);
    let at = tickr.app.addr();
    let worker = Worker::register(&tickr, 3).await;
    tickr.services().redis().kill9().unwrap();
    tickr.redis_stays_out();
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let held = worker.fetch(at, 3, 30_000, &[]).await;
    assert_eq!(id_of(&held[0]), id);
    assert_eq!(worker.finish(at, &held[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_out_a_worker_gets_its_jobs_behind_any_number_of_jobs_of_another_kind() {
    let tickr = TestApp::start_alone(|_| {}, |config| config.queues = vec!["elsewhere".into()]).await;
    assert_eq!(tickr.put("/v1/kinds/resize", json!({"queue": "pictures"})).await.status, 201);
    let worker = Worker::register(&tickr, 1).await;
    tickr.services().redis().kill9().unwrap();
    tickr.redis_stays_out();
    // More than the pages that are read in a row, and no worker has their kind.
    Owed { queue: "'pictures'", ..Owed::overdue(12_000) }.insert(&tickr, 1).await;
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let held = worker.fetch(tickr.app.addr(), 1, 30_000, &[]).await;
    assert_eq!(id_of(&held[0]), id);
    worker.finish(tickr.app.addr(), &held[0], json!({"verdict": "succeeded"})).await;
    Owed::remove(&tickr).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_out_the_jobs_of_a_locked_key_hold_up_no_job_of_a_worker_behind_them() {
    let tickr = TestApp::start_alone(|_| {}, |config| config.queues = vec!["elsewhere".into()]).await;
    let at = tickr.app.addr();
    assert_eq!(tickr.put("/v1/kinds/resize", json!({"queue": "pictures"})).await.status, 201);
    assert_eq!(tickr.put("/v1/limits/fifty", json!({"kind": "resize", "concurrency": 50})).await.status, 201);
    eventually("the limit counts", || async {
        (tickr.get("/v1/limits/fifty").await.body["counted"] == true).then_some(())
    })
    .await;
    tickr.sql("INSERT INTO limit_keys (limit_name, limit_key) VALUES ('fifty', 'a')").await;
    let mut frozen = tickr.mysql().await;
    sqlx::raw_sql("BEGIN").execute(&mut frozen).await.unwrap();
    let lock = "SELECT limit_key FROM limit_keys WHERE limit_name = 'fifty' AND limit_key = 'a' FOR UPDATE";
    sqlx::query(lock).fetch_one(&mut frozen).await.unwrap();
    let worker = Worker::register(&tickr, 4).await;
    tickr.services().redis().kill9().unwrap();
    tickr.redis_stays_out();
    let job = |key: &str| json!({"kind": "resize", "payload": 1, "limit_key": key});
    // More than rest at any time after a claim that had no effect.
    tickr.enqueue_many((0..2_000).map(|_| job("a"))).await;
    let behind = tickr.enqueue(job("b")).await;
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    let held = worker.fetch(at, 4, 30_000, &[]).await;
    assert_eq!(held.iter().map(id_of).collect::<Vec<_>>(), [behind]);
    pulse.assert_within(Duration::from_secs(15), began, "the job behind those of the locked key");
    assert_eq!(worker.finish(at, &held[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    sqlx::raw_sql("ROLLBACK").execute(&mut frozen).await.unwrap();
    let held = worker.fetch(at, 4, 30_000, &[]).await;
    assert!(!held.is_empty(), "the others start when the key is free");
    for job in &held {
        assert_eq!(worker.finish(at, job, json!({"verdict": "succeeded"})).await["state"], "completed");
    }
    tickr.stop_broken("the test leaves jobs behind").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_without_workers_serves_remote_workers_and_runs_no_job_itself() {
    let tickr = started_with(|config| config.workers = 0).await;
    let at = tickr.app.addr();
    let only = json!({"name": "test", "kinds": ["resize"], "queues": ["pictures"], "slots": 1});
    let worker = Worker::register_as(&tickr, only).await;
    let remote = tickr.enqueue_kind("resize", json!(1)).await;
    let own = tickr.enqueue_kind("noop", json!({})).await;
    let job = worker.fetch(at, 1, 20_000, &[]).await.pop().unwrap();
    assert_eq!(id_of(&job), remote);
    assert_eq!(worker.finish(at, &job, json!({"verdict": "succeeded"})).await["state"], "completed");
    let why = tickr.get(&format!("/v1/jobs/{own}/explain")).await.body;
    assert_eq!(why["reasons"][0]["code"], "queue_not_served", "{why:#}");
    // A schedule fires, so the loops run that do the work of the cluster.
    let every = json!({"every_ms": 1_000, "kind": "resize", "payload": 2});
    assert_eq!(tickr.put("/v1/schedules/often", every).await.status, 201);
    let job = worker.fetch(at, 1, 20_000, &[]).await.pop().unwrap();
    worker.finish(at, &job, json!({"verdict": "succeeded"})).await;
    assert_eq!(tickr.request(Method::DELETE, "/v1/schedules/often").send().await.unwrap().status(), 204);
    // Another tick may have come before that.
    while tickr.count("SELECT COUNT(*) FROM owed WHERE kind = 'resize'").await > 0 {
        for job in &worker.fetch(at, 1, 1_000, &[]).await {
            worker.finish(at, job, json!({"verdict": "succeeded"})).await;
        }
    }
    assert_eq!(
        tickr.count("SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.kind = 'noop'").await,
        0
    );
    let runner = tickr.another_with(|config| config.workers = 2, Registry::new()).await;
    tickr.until(own, State::Completed).await;
    stop(runner).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_with_the_scope_work_may_work_and_nothing_else() {
    let tickr = started().await;
    let key = |name: &str, scope: &str| {
        tickr.request(Method::PUT, &format!("/v1/api-keys/{name}")).json(&json!({"scope": scope}))
    };
    let admin = answer(key("boss", "admin")).await;
    assert_eq!(admin.status, 201, "{:#}", admin.body);
    let boss = admin.body["token"].as_str().unwrap().to_owned();
    let made = answer(key("php", "work").bearer_auth(&boss)).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    let work = made.body["token"].as_str().unwrap().to_owned();
    let with = |method: Method, path: &str, body: Value| {
        let request = tickr.with_key(&work, method, path).json(&body);
        async move { answer(request).await }
    };
    let body = json!({"name": "php", "kinds": ["resize"], "slots": 1});
    let registered = with(Method::POST, "/v1/workers", body.clone()).await;
    assert_eq!(registered.status, 201, "{:#}", registered.body);
    let id = registered.body["id"].as_str().unwrap();
    let fetch = json!({"slots": 1, "wait_ms": 0, "holding": [], "fetch_id": Uuid::now_v7()});
    assert_eq!(with(Method::POST, &format!("/v1/workers/{id}/fetch"), fetch).await.status, 200);
    assert_eq!(with(Method::POST, &format!("/v1/workers/{id}/beat"), json!({"holding": []})).await.status, 200);
    for (method, path, body) in [
        (Method::POST, "/v1/jobs", json!({"kind": "resize", "payload": 1})),
        (Method::PUT, "/v1/kinds/other", json!({})),
        (Method::GET, "/v1/runners", json!({})),
    ] {
        let refused = with(method.clone(), path, body).await;
        assert_eq!((refused.status, refused.code()), (403, "forbidden"), "{method} {path}");
    }
    let enqueue = answer(key("shop", "enqueue").bearer_auth(&boss)).await.body["token"].as_str().unwrap().to_owned();
    let refused = answer(tickr.with_key(&enqueue, Method::POST, "/v1/workers").json(&body)).await;
    assert_eq!(refused.status, 403);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_requests_than_may_wait_are_told_to_come_back() {
    let tickr = started_with(|config| config.http_polls = 1).await;
    let at = tickr.app.addr();
    let (first, second) = (Worker::register(&tickr, 1).await, Worker::register(&tickr, 1).await);
    let waiting = tokio::spawn({
        let first = Worker { id: first.id.clone() };
        async move { first.fetch(at, 1, 20_000, &[]).await }
    });
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE fetch_id IS NOT NULL", 1).await;
    let body = json!({"slots": 1, "wait_ms": 0, "holding": [], "fetch_id": Uuid::now_v7()});
    let refused = second.call(at, "fetch", body).await;
    assert_eq!((refused.status, refused.code()), (429, "overloaded"), "{:#}", refused.body);
    assert!(!refused.header("retry-after").is_empty());
    // Requests that wait for results have places of their own.
    let job = tickr.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await;
    assert_eq!(tickr.get(&format!("/v1/jobs/{job}/result?wait=1ms")).await.status, 202);
    tickr.enqueue_kind("resize", json!(1)).await;
    let held = waiting.await.unwrap();
    assert_eq!(first.finish(at, &held[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_for_more_queues_than_a_process_serves_are_told_to_come_back() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let register = async |number: u32| {
        let queues: Vec<String> = (0..100).map(|queue| format!("q{number}-{queue}")).collect();
        Worker::register_as(&tickr, json!({"name": "many", "kinds": ["resize"], "queues": queues, "slots": 1})).await
    };
    let mut waiting = Vec::new();
    for number in 0..10 {
        let worker = register(number).await;
        let waits = Worker { id: worker.id.clone() };
        let call = async move {
            loop {
                let body = json!({"slots": 1, "wait_ms": 60_000, "holding": [], "fetch_id": Uuid::now_v7()});
                let fetched = waits.call(at, "fetch", body).await;
                // The worker below may have had the room for a moment.
                if fetched.status != 429 {
                    return fetched.body["jobs"].clone();
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        waiting.push((worker, tokio::spawn(call)));
    }
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE fetch_id IS NOT NULL", 10).await;
    let more = register(10).await;
    let refused = eventually("there is no room for the queues of another worker", || async {
        let body = json!({"slots": 1, "wait_ms": 0, "holding": [], "fetch_id": Uuid::now_v7()});
        let fetched = more.call(at, "fetch", body).await;
        (fetched.status != 200).then_some(fetched)
    })
    .await;
    assert_eq!((refused.status, refused.code()), (429, "overloaded"), "{:#}", refused.body);
    assert!(!refused.header("retry-after").is_empty());
    // The checker takes a refused worker for none that waits.
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE fetch_id IS NOT NULL AND polls_until IS NULL", 1).await;
    // Queues for which requests wait anyway cost nothing, and the jobs of all of them reach their workers.
    assert_eq!(register(0).await.fetch(at, 1, 0, &[]).await, Vec::<Value>::new());
    let (last, waits) = waiting.pop().unwrap();
    tickr.enqueue(json!({"kind": "resize", "payload": 1, "queue": "q9-99"})).await;
    let held = waits.await.unwrap();
    assert_eq!(last.finish(at, &held[0], json!({"verdict": "succeeded"})).await["state"], "completed");
    waiting.iter().for_each(|(_, waits)| waits.abort());
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_api_key_leaves_waits_to_other_api_keys_and_to_operators() {
    let tickr = started_with(|config| config.http_polls = 8).await;
    let at = tickr.app.addr();
    let admin = api_key(&tickr, None, "root", json!({"scope": "admin"})).await;
    let fleet = api_key(&tickr, Some(&admin), "fleet", json!({"scope": "work"})).await;
    let small = api_key(&tickr, Some(&admin), "small", json!({"scope": "work"})).await;
    let register = async |key: &str| {
        let worker = json!({"name": "w", "kinds": ["resize"], "slots": 1, "lease_ms": 60_000});
        let made = called(at, Method::POST, "/v1/workers".to_owned(), key.to_owned(), worker).await;
        assert_eq!(made.status, 201, "{:#}", made.body);
        made.body["id"].as_str().unwrap().to_owned()
    };
    let fetch = |worker: String, key: &str, wait_ms: u32| {
        let body = json!({"slots": 1, "wait_ms": wait_ms, "holding": [], "fetch_id": Uuid::now_v7()});
        called(at, Method::POST, format!("/v1/workers/{worker}/fetch"), key.to_owned(), body)
    };
    let mut waiting = Vec::new();
    for _ in 0..6 {
        waiting.push(tokio::spawn(fetch(register(&fleet).await, &fleet, 60_000)));
    }
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE fetch_id IS NOT NULL", 6).await;
    let refused = fetch(register(&fleet).await, &fleet, 0).await;
    assert_eq!((refused.status, refused.code()), (429, "overloaded"), "{:#}", refused.body);
    // The second API key has the seventh place, and the last one is kept for operators.
    waiting.push(tokio::spawn(fetch(register(&small).await, &small, 60_000)));
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE fetch_id IS NOT NULL", 7).await;
    assert_eq!(fetch(register(&small).await, &small, 0).await.status, 429);
    let operators = fetch(register(&admin).await, &admin, 0).await;
    assert_eq!(operators.status, 200, "{:#}", operators.body);
    assert!(waiting.iter().all(|wait| !wait.is_finished()), "all seven requests were let in, and wait");
    waiting.iter().for_each(JoinHandle::abort);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_work_key_learns_no_id_of_a_parent_or_a_batch() {
    let tickr = started().await;
    let parent = tickr.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await;
    let parents = json!([parent]);
    let open = tickr.post("/v1/batches", json!({"name": "open"})).await.body["id"].clone();
    let job = json!({"kind": "resize", "payload": 1, "after": parents, "batch": open});
    let child = tickr.enqueue(job).await;
    let callback = json!({"kind": "resize", "payload": 2});
    let batch = json!({"jobs": [{"kind": "noop", "payload": {}}], "close": true, "on_complete": callback});
    let batch = tickr.post("/v1/batches", batch).await;
    assert_eq!(batch.status, 201, "{:#}", batch.body);
    let batch = batch.body;
    let callback = batch["on_complete"]["job_id"].as_str().unwrap();
    eventually("the callback is enqueued", || async {
        (tickr.get(&format!("/v1/jobs/{callback}")).await.status == 200).then_some(())
    })
    .await;
    let admin = api_key(&tickr, None, "root", json!({"scope": "admin"})).await;
    let shop = api_key(&tickr, Some(&admin), "shop", json!({"scope": "enqueue"})).await;
    let work = api_key(&tickr, Some(&admin), "work", json!({"scope": "work", "kinds": ["resize"]})).await;
    for (key, told) in [(&admin, true), (&shop, true), (&work, false)] {
        let see = async |path: String| answer(tickr.with_key(key, Method::GET, &path)).await;
        let (child, callback) = (see(format!("/v1/jobs/{child}")).await, see(format!("/v1/jobs/{callback}")).await);
        // Each of them sees the job itself.
        assert_eq!((&child.body["payload"], &callback.body["payload"]), (&json!(1), &json!(2)), "{:#}", child.body);
        let links = [&child.body["after"], &child.body["batch"], &callback.body["callback_of"]];
        let expected = if told { [&parents, &open, &batch["id"]] } else { [&Value::Null; 3] };
        assert_eq!(links, expected, "{:#} {:#}", child.body, callback.body);
        let shown = see(format!("/v1/batches/{}", batch["id"].as_str().unwrap())).await;
        assert_eq!(shown.status, if told { 200 } else { 403 }, "{:#}", shown.body);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_says_what_it_executes_and_is_told_what_is_wrong() {
    let tickr = started().await;
    let good = json!({"name": "php", "kinds": ["resize"], "slots": 1});
    for (field, value, pointer) in [
        ("name", json!(" "), "/name"),
        ("kinds", json!([]), "/kinds"),
        ("kinds", json!(["resize", "noop"]), "/kinds/1"),
        ("kinds", json!(["nothing"]), "/kinds/0"),
        ("queues", json!(["No"]), "/queues/0"),
        ("slots", json!(0), "/slots"),
        ("slots", json!(1_001), "/slots"),
        ("lease_ms", json!(9_999), "/lease_ms"),
        ("lease_ms", json!(3_600_001), "/lease_ms"),
    ] {
        let mut body = good.clone();
        body[field] = value;
        let refused = tickr.post("/v1/workers", body).await;
        assert_eq!((refused.status, refused.pointers()), (422, vec![pointer]), "{field}");
    }
    let worker = Worker::register_as(&tickr, good).await;
    let listed = tickr.get(&format!("/v1/runners/{}", worker.id)).await.body;
    assert_eq!(listed["queues"], json!(["default", "pictures"]));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_wait_cost_no_statement_each() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    assert_eq!(tickr.put("/v1/kinds/resize", json!({"queue": "pictures"})).await.status, 201);
    let at = tickr.app.addr();
    let questions = || async {
        let row: (String, String) =
            sqlx::query_as("SHOW GLOBAL STATUS LIKE 'Questions'").fetch_one(&mut tickr.mysql().await).await.unwrap();
        row.1.parse::<i64>().unwrap()
    };
    let in_four_seconds = || async {
        let before = questions().await;
        // The time over which statements are counted.
        tokio::time::sleep(Duration::from_secs(4)).await;
        questions().await - before
    };
    // A stall of the machine makes a count smaller, and what waited for its end makes the next one larger.
    let without = in_four_seconds().await.max(in_four_seconds().await);
    let mut waiting = Vec::new();
    for _ in 0..60 {
        let worker = Worker::register(&tickr, 1).await;
        waiting.push(tokio::spawn(async move { worker.fetch(at, 1, 60_000, &[]).await }));
    }
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE fetch_id IS NOT NULL", 60).await;
    let with = in_four_seconds().await.min(in_four_seconds().await);
    assert!(with - without < 100, "{without} statements without, {with} with sixty requests");
    println!("{without} statements in four seconds without requests, {with} with sixty that wait");
    // Nor do requests for a result: each reads its job when it begins, and once more.
    let job = tickr.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await;
    let mut results = Vec::new();
    for _ in 0..60 {
        let asked = http().get(format!("http://{at}/v1/jobs/{job}/result?wait=60s"));
        results.push(tokio::spawn(asked.send()));
    }
    let more = in_four_seconds().await - with;
    println!("{more} statements more with sixty requests for a result");
    assert!(more < 1_400, "{more} statements more with sixty requests for a result");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    results.iter().for_each(tokio::task::JoinHandle::abort);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_limited_to_kinds_and_queues_works_on_nothing_else() {
    let tickr = started().await;
    let at = tickr.app.addr();
    assert_eq!(tickr.put("/v1/kinds/secret", json!({})).await.status, 201);
    let admin = api_key(&tickr, None, "root", json!({"scope": "admin"})).await;
    let limits = json!({"scope": "work", "kinds": ["resize"], "queues": ["pictures", "more"]});
    let limited = api_key(&tickr, Some(&admin), "limited", limits).await;
    let all = api_key(&tickr, Some(&admin), "all", json!({"scope": "work"})).await;
    let register = |key: &str, body: Value| called(at, Method::POST, "/v1/workers".to_owned(), key.to_owned(), body);

    let worker = json!({"name": "w", "kinds": ["resize", "secret"], "queues": ["pictures", "default"], "slots": 1});
    let refused = register(&limited, worker).await;
    assert_eq!((refused.status, &refused.body["code"]), (403, &json!("forbidden")));
    let told: Vec<&str> =
        refused.body["errors"].as_array().unwrap().iter().map(|e| e["pointer"].as_str().unwrap()).collect();
    assert_eq!(told, ["/kinds", "/queues"]);
    // Without queues it serves those of its kinds that the key may use, and not `default`.
    let own = register(&limited, json!({"name": "w", "kinds": ["resize"], "slots": 1})).await;
    assert_eq!(own.status, 201, "{:#}", own.body);
    let own = own.body["id"].as_str().unwrap().to_owned();
    let served = format!(r#"SELECT COUNT(*) FROM runners WHERE id = '{own}' AND queues = '["pictures"]'"#);
    assert_eq!(tickr.count(served).await, 1);

    // The worker of another key does not exist for this one, whatever it wants of it.
    let other = register(&all, json!({"name": "o", "kinds": ["secret"], "slots": 1})).await;
    let other = other.body["id"].as_str().unwrap().to_owned();
    let fetch = json!({"slots": 1, "wait_ms": 0, "holding": [], "fetch_id": Uuid::now_v7()});
    for (method, verb, body) in [
        (Method::POST, "/fetch", fetch.clone()),
        (Method::POST, "/beat", json!({"holding": []})),
        (Method::DELETE, "", json!({})),
    ] {
        let call =
            |id: &str| called(at, method.clone(), format!("/v1/workers/{id}{verb}"), limited.clone(), body.clone());
        assert_eq!(call(&other).await.status, 404, "{verb}");
        assert!(call(&own).await.status < 300, "{verb}");
    }
    let still =
        called(at, Method::POST, format!("/v1/workers/{other}/beat"), all.clone(), json!({"holding": []})).await;
    assert_eq!(still.status, 200, "no call of the other key ended it");

    // A token that names an attempt of another kind tells the key nothing of its job.
    let job = json!({"kind": "secret", "payload": 1});
    assert_eq!(called(at, Method::POST, "/v1/jobs".to_owned(), admin, job).await.status, 201);
    let fetch = json!({"slots": 1, "wait_ms": 20_000, "holding": [], "fetch_id": Uuid::now_v7()});
    let fetched = called(at, Method::POST, format!("/v1/workers/{other}/fetch"), all.clone(), fetch).await;
    let token = fetched.body["jobs"][0]["token"].as_str().unwrap().to_owned();
    let finish = |worker: &str, key: &str, token: &str| {
        let verdicts = json!({"verdicts": [{"token": token, "verdict": "succeeded"}]});
        called(at, Method::POST, format!("/v1/workers/{worker}/finish"), key.to_owned(), verdicts)
    };
    let result = |answer: Answer| answer.body["results"][0].clone();
    assert_eq!(result(finish(&other, &all, &token).await)["result"], "settled");
    let mut made_up = URL_SAFE_NO_PAD.decode(&token).unwrap();
    made_up[16..32].copy_from_slice(Uuid::new_v4().as_bytes());
    for token in [token.as_str(), &URL_SAFE_NO_PAD.encode(made_up)] {
        let told = result(finish(&own, &limited, token).await);
        assert_eq!((&told["result"], told.get("state")), (&json!("unknown"), None), "{told:#}");
    }
    assert_eq!(result(finish(&other, &all, &token).await)["state"], "completed", "a repetition");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_leave_has_the_same_answer_for_a_key_with_and_without_limits() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let admin = api_key(&tickr, None, "root", json!({"scope": "admin"})).await;
    let limits = json!({"scope": "work", "kinds": ["resize"], "queues": ["pictures"]});
    let limited = api_key(&tickr, Some(&admin), "limited", limits).await;
    let elsewhere = json!({"scope": "work", "kinds": ["resize"], "queues": ["elsewhere"]});
    let elsewhere = api_key(&tickr, Some(&admin), "elsewhere", elsewhere).await;
    let all = api_key(&tickr, Some(&admin), "all", json!({"scope": "work"})).await;
    for key in [&limited, &all] {
        let worker = json!({"name": "w", "kinds": ["resize"], "queues": ["pictures"], "slots": 1});
        let made = called(at, Method::POST, "/v1/workers".to_owned(), key.clone(), worker).await;
        assert_eq!(made.status, 201, "{:#}", made.body);
        let path = format!("/v1/workers/{}", made.body["id"].as_str().unwrap());
        for _ in 0..2 {
            let left = called(at, Method::DELETE, path.clone(), key.clone(), json!({})).await;
            assert_eq!(left.status, 204, "{:#}", left.body);
        }
        // The worker of another key does not exist for this one, also after its end.
        assert_eq!(called(at, Method::DELETE, path.clone(), elsewhere.clone(), json!({})).await.status, 404);
        let fetch = json!({"slots": 1, "wait_ms": 0, "holding": [], "fetch_id": Uuid::now_v7()});
        for (verb, body) in [("fetch", fetch), ("beat", json!({"holding": []}))] {
            let refused = called(at, Method::POST, format!("{path}/{verb}"), key.clone(), body).await;
            assert_eq!(refused.status, 404, "{verb}");
        }
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_limited_to_queues_enqueues_nowhere_else() {
    let tickr = started().await;
    let at = tickr.app.addr();
    let admin = api_key(&tickr, None, "root", json!({"scope": "admin"})).await;
    let key = api_key(&tickr, Some(&admin), "shop", json!({"scope": "enqueue", "queues": ["pictures"]})).await;
    let send = |path: &str, body: Value| called(at, Method::POST, path.to_owned(), key.clone(), body);
    let job = |queue: &str| json!({"kind": "resize", "payload": 1, "queue": queue});
    // Each way in which jobs are enqueued, with a job that may be there and one that may not.
    let plain = json!({"kind": "resize", "payload": 1});
    assert_eq!(send("/v1/jobs", plain).await.status, 201, "the default queue of the kind");
    assert_eq!(send("/v1/jobs", job("pictures")).await.status, 201);
    let refused = send("/v1/jobs", job("mail")).await;
    assert_eq!((refused.status, &refused.body["errors"][0]["pointer"]), (403, &json!("/queue")), "{:#}", refused.body);
    assert_eq!(send("/v1/jobs", json!({"kind": "noop", "payload": {}})).await.status, 403, "the queue default");
    let both = json!({"jobs": [job("pictures"), job("mail")]});
    let refused = send("/v1/jobs/batch", both.clone()).await;
    assert_eq!((refused.status, &refused.body["errors"][0]["pointer"]), (403, &json!("/jobs/1/queue")));
    assert_eq!(send("/v1/batches", both).await.status, 403);
    let callback = json!({"jobs": [job("pictures")], "on_complete": job("mail"), "close": true});
    let refused = send("/v1/batches", callback).await;
    assert_eq!((refused.status, &refused.body["errors"][0]["pointer"]), (403, &json!("/on_complete/queue")));
    let url = format!("http://{at}/v1/jobs/import");
    let lines = format!("{}\n{}\n", job("pictures"), job("mail"));
    let import = http().post(url).bearer_auth(&key).header("content-type", "application/x-ndjson");
    let told = import.body(lines).send().await.unwrap().text().await.unwrap();
    assert!(told.contains("/queue") && told.contains("forbidden"), "{told}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs WHERE queue <> 'pictures'").await, 0);
    assert!(tickr.count("SELECT COUNT(*) FROM jobs").await >= 2);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_expires_between_its_claim_and_the_answer_reaches_no_worker() {
    let tickr = started().await;
    let (at, expired) = (tickr.app.addr(), "SELECT COUNT(*) FROM owed WHERE expires_at > UTC_TIMESTAMP(6)");
    let worker = Worker::register(&tickr, 4).await;
    let job = |ms: u32| json!({"kind": "resize", "payload": {"path": "a.png"}, "expires_in_ms": ms});
    let both = ["interrupted", "expired"];
    let claims = "INSERT INTO claim_batches";
    // A claim waits for a lock for five seconds at most. If the machine stands still, the job may expire before its
    // claim, or the claim may end before the job expires, and the next job is tried.
    let mut tries = 0;
    loop {
        let mut holder = tickr.mysql().await;
        let mut held = holder.begin().await.unwrap();
        // The end of the claim waits for this lock. The attempt has its time of start by then.
        held.execute("SELECT * FROM claim_batches FOR UPDATE").await.unwrap();
        let late = tickr.enqueue(job(2_500)).await;
        let (jobs, is_under_way) = tokio::join!(worker.fetch(at, 4, 4_000, &[]), async {
            tokio::select! {
                () = tickr.until_said(claims, 1) => {}
                () = tickr.until_count(expired, 0) => {}
            }
            tickr.until_count(expired, 0).await;
            let look = tokio::time::timeout(Duration::from_millis(500), tickr.until_said(claims, 1));
            let is_under_way = look.await.is_ok();
            held.rollback().await.unwrap();
            is_under_way
        });
        assert_eq!(jobs, Vec::<Value>::new());
        let in_time = tokio::time::timeout(Duration::from_secs(10), tickr.until(late, State::Failed)).await.is_ok();
        if !in_time {
            // The machine stood still, and the request ended before its claim. The next one says that it got nothing.
            assert_eq!(worker.fetch(at, 4, 0, &[]).await, Vec::<Value>::new());
        }
        let ended = tickr.until(late, State::Failed).await;
        assert_eq!(ended["attempt"], 0, "{ended:#}");
        // The claim is undone, so the dead letter is one of those that never started.
        if in_time {
            assert_eq!(tickr.verdicts(late).await, ["expired"]);
            let error = ended["last_error"].as_str().unwrap();
            assert!(error.starts_with("expired: it did not start before "), "{ended:#}");
        }
        if in_time && is_under_way {
            break;
        }
        tries += 1;
        assert!(tries < 5, "no claim was under way when its job expired");
    }

    // The answer that the worker asks for once more does not name it either.
    let again = tickr.enqueue(job(3_600_000)).await;
    let fetch = Uuid::now_v7();
    assert_eq!(worker.fetch_as(fetch, at, 4, 20_000, &[]).await.len(), 1);
    expire(&tickr).await;
    assert_eq!(worker.fetch_as(fetch, at, 4, 4_000, &[]).await, Vec::<Value>::new());
    // The worker may have got the first answer. Its next requests say that it has not. One that comes while another
    // session locks the row leaves the attempt to the next one.
    eventually("a request gives the attempt back", || async {
        assert_eq!(worker.fetch(at, 4, 0, &[]).await, Vec::<Value>::new());
        (tickr.verdicts(again).await == both).then_some(())
    })
    .await;
    let ended = tickr.until(again, State::Failed).await;
    assert_eq!((&ended["attempt"], tickr.verdicts(again).await), (&json!(0), both.map(str::to_owned).to_vec()));
    tickr.stop().await;
}

/// Declare the kind of the jobs that follow in these tests. No worker executes it.
async fn declare_upload(tickr: &TestApp) {
    let schema = json!({"type": "object", "properties": {"file": {"type": "string"}}, "required": ["file"]});
    let declared = tickr.put("/v1/kinds/upload", json!({"queue": "uploads", "schema": schema})).await;
    assert_eq!(declared.status, 201, "{:#}", declared.body);
}

fn upload(number: usize) -> Value {
    json!({"kind": "upload", "payload": {"file": format!("{number}.png")}})
}

fn success_with(follow_ups: &[Value]) -> Value {
    json!({"verdict": "succeeded", "result": 7, "follow_ups": follow_ups})
}

async fn uploads(tickr: &TestApp) -> i64 {
    tickr.count("SELECT COUNT(*) FROM jobs WHERE kind = 'upload' AND queue = 'uploads'").await
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_follow_a_success_exactly_if_it_counts_and_once_however_often_it_is_sent() {
    let tickr = started().await;
    let at = tickr.app.addr();
    declare_upload(&tickr).await;
    let worker = Worker::register(&tickr, 2).await;
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    // The second request does not list the first attempt, which is given back.
    let late = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    let held = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    assert_eq!((id_of(&late), id_of(&held)), (id, id));
    let done = success_with(&[upload(1), upload(2)]);
    assert_eq!(worker.finish(at, &late, done.clone()).await["result"], "lease_lost");
    assert_eq!(uploads(&tickr).await, 0, "the verdict did not count");

    let (one, other) = tokio::join!(worker.finish(at, &held, done.clone()), worker.finish(at, &held, done.clone()));
    assert_eq!((&one["result"], &one["state"]), (&json!("settled"), &json!("completed")));
    assert_eq!(worker.finish(at, &held, done).await, one);
    assert_eq!((other, uploads(&tickr).await), (one, 2));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_follow_a_success_are_in_its_batch_and_continue_its_trace() {
    let tickr = started().await;
    let at = tickr.app.addr();
    declare_upload(&tickr).await;
    let worker = Worker::register(&tickr, 1).await;
    let trace = json!({"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"});
    let job = json!({"kind": "resize", "payload": 1, "trace": trace});
    let batch = tickr.post("/v1/batches", json!({"jobs": [job], "close": true})).await;
    assert_eq!(batch.status, 201, "{:#}", batch.body);
    let batch = batch.body["id"].clone();
    let held = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    let mut inside = upload(1);
    inside["in_batch"] = json!(true);
    inside["tags"] = json!(["inside"]);
    let done = worker.finish(at, &held, success_with(&[inside, upload(2)])).await;
    assert_eq!(done["state"], "completed", "{done:#}");
    let jobs = tickr.get("/v1/jobs?kind=upload").await.body["data"].as_array().unwrap().clone();
    assert_eq!(jobs.len(), 2);
    for job in jobs {
        let job = tickr.job(id_of(&job)).await;
        let expected = if job["tags"] == json!(["inside"]) { &batch } else { &Value::Null };
        assert_eq!(&job["batch"], expected, "{job:#}");
        assert!(job["trace"].to_string().contains("4bf92f3577b34da6a3ce929d0e0e4736"), "{job:#}");
    }
    let shown = tickr.get(&format!("/v1/batches/{}", batch.as_str().unwrap())).await.body;
    assert_eq!((&shown["total"], &shown["completed_at"]), (&json!(2), &Value::Null), "{shown:#}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follow_up_job_that_is_not_valid_refuses_its_verdict_alone_and_says_which() {
    let tickr = started().await;
    let at = tickr.app.addr();
    declare_upload(&tickr).await;
    let worker = Worker::register(&tickr, 2).await;
    tickr.enqueue_many((0..2).map(|n| json!({"kind": "resize", "payload": n}))).await;
    let first = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    let second = worker.fetch(at, 1, 20_000, &[&first]).await.remove(0);
    let of = |job: &Value, mut verdict: Value| {
        verdict["token"] = job["token"].clone();
        verdict
    };
    let with = |field: &str, value: Value| {
        let mut job = upload(2);
        job[field] = value;
        job
    };
    let wrong = [
        (json!({"kind": "nothing"}), "follow_ups/1/kind"),
        (json!({"kind": "upload"}), "follow_ups/1/payload"),
        (json!({"kind": "upload", "payload": {"file": 7}}), "follow_ups/1/payload/file"),
        (with("queue", json!("No Queue")), "follow_ups/1/queue"),
        (with("unique_key", json!("a")), "follow_ups/1/unique_key"),
        (with("delay_ms", json!(40_000_000_000_u64)), "follow_ups/1/delay_ms"),
        (json!(["upload"]), "follow_ups/1"),
    ];
    let bad = wrong.iter().map(|(job, _)| of(&first, success_with(&[upload(1), job.clone()])));
    let mut verdicts: Vec<Value> = bad.collect();
    verdicts.push(of(&first, json!({"verdict": "failed", "error": "no disk", "follow_ups": [upload(1)]})));
    verdicts.push(of(&second, success_with(&[upload(3)])));
    // Not through `answer`, which lets no request be accepted that does not fit the document.
    let url = format!("http://{at}/v1/workers/{}/finish", worker.id);
    let finished = http().post(url).json(&json!({"verdicts": verdicts})).send().await.unwrap();
    let finished: Value = finished.json().await.unwrap();
    let results = finished["results"].as_array().unwrap();
    let fields = wrong.iter().map(|(_, field)| *field).chain(["follow_ups"]);
    for (result, field) in results.iter().zip(fields) {
        assert_eq!((&result["result"], &result["token"]), (&json!("refused"), &first["token"]), "{result:#}");
        let named = result["errors"][0]["field"].as_str().unwrap();
        assert!(named.starts_with(field), "{named} {field}");
    }
    assert_eq!(results[wrong.len() + 1]["result"], "settled", "{finished:#}");
    assert_eq!(uploads(&tickr).await, 1, "those of the second job");
    // The first attempt still waits for a verdict.
    let done = worker.finish(at, &first, success_with(&[upload(1)])).await;
    assert_eq!((&done["result"], uploads(&tickr).await), (&json!("settled"), 2));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_success_has_at_most_a_thousand_follow_up_jobs_and_a_call_four_thousand() {
    let tickr = started().await;
    let at = tickr.app.addr();
    declare_upload(&tickr).await;
    let worker = Worker::register(&tickr, 1).await;
    tickr.enqueue_kind("resize", json!(1)).await;
    let held = worker.fetch(at, 1, 20_000, &[]).await.remove(0);
    let many: Vec<Value> = (0..1_001).map(upload).collect();
    let mut verdict = success_with(&many);
    verdict["token"] = held["token"].clone();
    let url = format!("http://{at}/v1/workers/{}/finish", worker.id);
    let refused = http().post(url).json(&json!({"verdicts": [verdict]})).send().await.unwrap();
    let refused: Value = refused.json().await.unwrap();
    assert_eq!(refused["results"][0]["result"], "refused", "{refused:#}");
    assert_eq!(refused["results"][0]["errors"][0]["field"], "follow_ups");
    assert_eq!(uploads(&tickr).await, 0);
    assert_eq!(worker.finish(at, &held, success_with(&many[1..])).await["result"], "settled");
    assert_eq!(uploads(&tickr).await, 1_000);

    // Verdicts with jobs beyond the bound wait. These have tokens of no attempt, so nothing is stored.
    let job = json!({"kind": "noop"});
    let of = |jobs: usize| json!({"token": "x", "verdict": "succeeded", "follow_ups": vec![job.clone(); jobs]});
    for (sent, expected) in [
        (vec![1_000, 1_000, 1_000, 1_000, 1, 0], vec!["unknown", "unknown", "unknown", "unknown", "locked", "unknown"]),
        (vec![5_000, 1, 0], vec!["refused", "locked", "unknown"]),
    ] {
        let verdicts: Vec<Value> = sent.into_iter().map(of).collect();
        let url = format!("http://{at}/v1/workers/{}/finish", worker.id);
        let answered = http().post(url).json(&json!({"verdicts": verdicts})).send().await.unwrap();
        let answered: Value = answered.json().await.unwrap();
        let words = answered["results"].as_array().unwrap().iter().map(|result| result["result"].as_str().unwrap());
        assert_eq!(words.collect::<Vec<_>>(), expected);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_follow_need_a_key_that_may_enqueue_each_of_them() {
    let tickr = started().await;
    let at = tickr.app.addr();
    declare_upload(&tickr).await;
    tickr.enqueue_many((0..2).map(|n| json!({"kind": "resize", "payload": n}))).await;
    let admin = api_key(&tickr, None, "root", json!({"scope": "admin"})).await;
    let work = api_key(&tickr, Some(&admin), "work", json!({"scope": "work", "kinds": ["resize"]})).await;
    let limits = json!({"scope": "enqueue", "kinds": ["upload"], "queues": ["uploads"]});
    let shop = api_key(&tickr, Some(&admin), "shop", limits).await;
    let other = api_key(&tickr, Some(&admin), "other", json!({"scope": "enqueue", "kinds": ["noop"]})).await;
    let own = json!({"name": "w", "kinds": ["resize"], "queues": ["pictures"], "slots": 2});
    let made = called(at, Method::POST, "/v1/workers".to_owned(), work.clone(), own).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    let path = format!("/v1/workers/{}", made.body["id"].as_str().unwrap());
    let (mut held, mut tokens) = (Vec::new(), Vec::new());
    while held.len() < 2 {
        let fetch = json!({"slots": 2, "wait_ms": 20_000, "holding": tokens, "fetch_id": Uuid::now_v7()});
        let fetched = called(at, Method::POST, format!("{path}/fetch"), work.clone(), fetch).await;
        held.extend(fetched.body["jobs"].as_array().unwrap().clone());
        tokens = held.iter().map(|job| job["token"].clone()).collect();
    }
    let finish = async |caller: &str, second: Option<&str>, token: &Value, follow_ups: &[Value]| {
        let mut verdict = success_with(follow_ups);
        verdict["token"] = token.clone();
        let request = http().post(format!("http://{at}{path}/finish")).bearer_auth(caller);
        let request = request.json(&json!({"verdicts": [verdict]}));
        let finished = answer(match second {
            Some(key) => request.header("tickr-enqueue-authorization", format!("Bearer {key}")),
            None => request,
        });
        let finished = finished.await;
        assert_eq!(finished.status, 200, "{:#}", finished.body);
        finished.body["results"][0].clone()
    };
    let mut elsewhere = upload(1);
    elsewhere["queue"] = json!("pictures");
    for (second, follow_ups, field) in [
        (None, vec![upload(1)], "follow_ups"),
        (Some(work.as_str()), vec![upload(1)], "follow_ups"),
        (Some("of-nothing"), vec![upload(1)], "follow_ups"),
        (Some(other.as_str()), vec![upload(1)], "follow_ups/0/kind"),
        (Some(shop.as_str()), vec![upload(1), json!({"kind": "noop"})], "follow_ups/1/kind"),
        (Some(shop.as_str()), vec![upload(1), elsewhere], "follow_ups/1/queue"),
    ] {
        let refused = finish(&work, second, &tokens[0], &follow_ups).await;
        assert_eq!((&refused["result"], &refused["errors"][0]["field"]), (&json!("refused"), &json!(field)));
    }
    assert_eq!(uploads(&tickr).await, 0);
    // Both attempts still wait for their verdicts.
    let one = finish(&work, Some(&shop), &tokens[0], &[upload(1)]).await;
    assert_eq!(one["result"], "settled", "{one:#}");
    let other = finish(&admin, None, &tokens[1], &[upload(2)]).await;
    assert_eq!(other["result"], "settled", "{other:#}");
    assert_eq!(uploads(&tickr).await, 2);
    // Repetitions have the same answers when the API key is revoked, is left out, or the kind is another one since.
    let revoked = answer(http().delete(format!("http://{at}/v1/api-keys/shop")).bearer_auth(&admin)).await;
    assert_eq!(revoked.status, 200, "{:#}", revoked.body);
    assert_eq!(finish(&work, Some(&shop), &tokens[0], &[upload(1)]).await, one);
    assert_eq!(finish(&work, None, &tokens[0], &[upload(1)]).await, one);
    assert_eq!(finish(&admin, None, &tokens[1], &[json!({"kind": "nothing"})]).await, other);
    assert_eq!(uploads(&tickr).await, 2);
    tickr.stop().await;
}
