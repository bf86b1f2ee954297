//! Unique keys that outlive their jobs for a time (`unique_for_ms`), or pass on when their jobs start (`unique_until`),
//! and jobs that later requests put off (`on_conflict: postpone`).

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use reqwest::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::{Connection, Executor, Row};
use tickr::app::App;
use tickr::config::Config;
use tickr::handlers::{Context, Kind, Output, Registry};
use tickr::job::{JobId, State};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::limits::set_and_wait;
use crate::support::{
    Answer, Proxy, TestApp, answer, eventually, eventually_seen, gated, http, is_full, short_lease, while_unavailable,
};

const HOUR_MS: u64 = 3_600_000;

/// A job that notes when it starts, and takes a moment.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Touch {}

impl Kind for Touch {
    const NAME: &'static str = "touch";
}

type Starts = Arc<Mutex<Vec<(JobId, Instant)>>>;

fn touch(starts: &Starts) -> Registry {
    let (mut registry, starts) = (Registry::new(), Arc::clone(starts));
    registry.register(move |_: Touch, context: Context| {
        starts.lock().unwrap().push((context.job_id(), Instant::now()));
        async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok(Output::default())
        }
    });
    registry
}

async fn post(app: &App, body: &Value) -> Answer {
    answer(http().post(format!("http://{}/v1/jobs", app.addr())).json(body)).await
}

fn ids(answers: &[Answer]) -> BTreeSet<&str> {
    answers.iter().map(|answer| answer.body["id"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unique_key_stays_taken_for_its_time_after_its_job_completed() {
    let tickr = TestApp::start().await;
    let job = |mode: &str| json!({"kind": "noop", "unique_key": "k", "unique_for_ms": HOUR_MS, "on_conflict": mode});
    let first = tickr.post("/v1/jobs", job("return")).await;
    assert_eq!((first.status, &first.body["unique_for_ms"]), (201, &json!(HOUR_MS)));
    let id = first.body["id"].as_str().unwrap().parse().unwrap();
    tickr.until(id, State::Completed).await;

    let second = tickr.post("/v1/jobs", job("return")).await;
    assert_eq!(
        (second.status, &second.body["id"], &second.body["state"]),
        (200, &first.body["id"], &json!("completed"))
    );
    for mode in ["reject", "replace"] {
        let refused = tickr.post("/v1/jobs", job(mode)).await;
        assert_eq!((refused.status, refused.code()), (409, "unique_key_taken"), "{:#}", refused.body);
        assert_eq!((&refused.body["holder"], &refused.body["current_state"]), (&first.body["id"], &json!("completed")));
        assert!(refused.body["detail"].as_str().unwrap().contains("until its unique_for_ms is over"));
    }
    // A request that would not keep the key for long finds it taken as well; another kind has keys of its own.
    let plain = tickr.post("/v1/jobs", json!({"kind": "noop", "unique_key": "k"})).await;
    assert_eq!((plain.status, &plain.body["id"]), (200, &first.body["id"]));
    let other = tickr.post("/v1/jobs", json!({"kind": "sleep", "payload": {"ms": 0}, "unique_key": "k"})).await;
    assert_eq!(other.status, 201);
    tickr.until_idle().await;
    tickr.assert_sound().await;

    // Its time is kept when the job itself is gone.
    let removed = tickr.post("/v1/operations", json!({"action": "delete", "filter": {"kind": "noop"}})).await;
    assert!(removed.status < 300, "{:#}", removed.body);
    tickr.until_count("SELECT COUNT(*) FROM jobs WHERE kind = 'noop'", 0).await;
    let gone = tickr.post("/v1/jobs", job("return")).await;
    assert_eq!((gone.status, &gone.body["id"], &gone.body["state"]), (200, &first.body["id"], &json!("completed")));

    // The time runs out.
    tickr.sql("UPDATE unique_keys SET held_until = UTC_TIMESTAMP(3) WHERE held_until IS NOT NULL").await;
    let next = tickr.post("/v1/jobs", job("return")).await;
    assert_eq!(next.status, 201, "{:#}", next.body);
    assert_ne!(next.body["id"], first.body["id"]);
    tickr.until_idle().await;
    assert_eq!(tickr.post("/v1/jobs", job("return")).await.body["id"], next.body["id"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_failed_or_was_cancelled_frees_its_unique_key_at_once() {
    let tickr = TestApp::start().await;
    let later = json!({"kind": "noop", "unique_key": "k", "unique_for_ms": HOUR_MS, "delay_ms": HOUR_MS});
    let first = tickr.enqueue(later.clone()).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{first}/cancel"), json!({})).await.status, 200);
    let second = tickr.enqueue(later).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{second}/cancel"), json!({})).await.status, 200);

    let failing = json!({"kind": "fail", "payload": {"times": 9}, "unique_key": "k", "unique_for_ms": HOUR_MS, "max_attempts": 1});
    let failed = tickr.enqueue(failing.clone()).await;
    tickr.until(failed, State::Failed).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM unique_keys").await, 0);
    // The retry of an operator takes the key again, for the time that the job was accepted with.
    assert_eq!(tickr.post(&format!("/v1/jobs/{failed}/retry"), json!({})).await.status, 200);
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_of_an_operator_does_not_begin_the_time_of_a_unique_key_again() {
    let tickr = TestApp::start().await;
    let job = |key: &str| json!({"kind": "fail", "payload": {"times": 9}, "max_attempts": 1, "unique_key": key, "unique_for_ms": HOUR_MS});
    let (over, rest) = (tickr.enqueue(job("over")).await, tickr.enqueue(job("rest")).await);
    for id in [over, rest] {
        tickr.until(id, State::Failed).await;
    }
    tickr.sql("UPDATE jobs SET created_at = created_at - INTERVAL 2 HOUR WHERE unique_key = 'over'").await;
    tickr.sql("UPDATE jobs SET created_at = created_at - INTERVAL 30 MINUTE WHERE unique_key = 'rest'").await;

    // The retries complete with another payload.
    assert_eq!(tickr.post("/v1/queues/default/pause", json!({})).await.status, 200);
    for id in [over, rest] {
        assert_eq!(tickr.post(&format!("/v1/jobs/{id}/retry"), json!({})).await.status, 200);
        assert_eq!(tickr.patch(&format!("/v1/jobs/{id}"), json!({"payload": {"times": 0}})).await.status, 200);
    }
    let until = |end: &str| {
        format!("SELECT COUNT(*) FROM unique_keys WHERE unique_key = 'rest' AND held_until < UTC_TIMESTAMP() + {end}")
    };
    assert_eq!(tickr.count(until("INTERVAL 31 MINUTE")).await, 1);
    assert_eq!(tickr.count(until("INTERVAL 20 MINUTE")).await, 0);
    // A job that is unfinished when its time is over holds the key until it ends.
    assert_eq!(tickr.post("/v1/jobs", job("over")).await.body["id"], json!(over));
    assert_eq!(tickr.post("/v1/queues/default/resume", json!({})).await.status, 200);
    for id in [over, rest] {
        tickr.until(id, State::Completed).await;
    }
    let next = tickr.post("/v1/jobs", job("over")).await;
    assert_eq!(next.status, 201, "{:#}", next.body);
    let kept = tickr.post("/v1/jobs", job("rest")).await;
    assert_eq!((kept.status, &kept.body["id"]), (200, &json!(rest)), "{:#}", kept.body);
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_whose_unique_key_another_job_took_names_that_job() {
    let tickr = TestApp::start().await;
    let failing =
        |key: &str| json!({"kind": "fail", "payload": {"permanent": true}, "unique_key": key, "tags": ["night"]});
    let (taken, free) = (tickr.enqueue(failing("taken")).await, tickr.enqueue(failing("free")).await);
    tickr.until(taken, State::Failed).await;
    tickr.until(free, State::Failed).await;
    let later = json!({"kind": "fail", "payload": {"permanent": true}, "unique_key": "taken", "delay_ms": HOUR_MS});
    let holder = tickr.enqueue(later).await;
    let refused = tickr.post(&format!("/v1/jobs/{taken}/retry"), json!({})).await;
    assert_eq!((refused.status, refused.code()), (409, "unique_key_taken"), "{:#}", refused.body);
    assert_eq!(
        (&refused.body["holder"], &refused.body["current_state"]),
        (&json!(holder.to_string()), &json!("waiting"))
    );
    assert_eq!(tickr.job(taken).await["state"], "failed");

    // A bulk retry says the same about this job, and retries the other one.
    tickr.post("/v1/queues/default/pause", json!({})).await;
    let asked = json!({"action": "retry", "filter": {"tag": "night"}});
    let asked = tickr.post("/v1/operations", asked).await;
    let url = format!("/v1/operations/{}", asked.body["id"].as_str().unwrap());
    let done = eventually("the operation is over", || async {
        let operation = tickr.get(&url).await.body;
        (operation["state"] == "done").then_some(operation)
    })
    .await;
    assert_eq!((&done["done"], &done["failed"]), (&json!(1), &json!(1)), "{done:#}");
    let said = done["last_error"].as_str().unwrap();
    assert!(said.contains(&taken.to_string()) && said.contains(&format!("job {holder} has its unique key")), "{said}");
    assert_eq!(tickr.job(free).await["state"], "waiting");

    // Once the holder has ended, the job can run again.
    assert_eq!(tickr.post(&format!("/v1/jobs/{holder}/cancel"), json!({})).await.status, 200);
    assert_eq!(tickr.post(&format!("/v1/jobs/{taken}/retry"), json!({})).await.status, 200);
    tickr.post("/v1/queues/default/resume", json!({})).await;
    tickr.until(taken, State::Failed).await;
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_callers_on_two_runners_get_one_job_for_each_window() {
    let tickr = TestApp::start().await;
    let other = tickr.another().await;
    let mut made = 0;
    for _ in 0..2 {
        let call = async |n: usize| {
            let job = json!({"kind": "noop", "unique_key": "k", "unique_for_ms": HOUR_MS});
            let mut answers = Vec::new();
            for round in 0..4 {
                let app = if (n + round).is_multiple_of(2) { &tickr.app } else { &other };
                answers.push(while_unavailable(async || post(app, &job).await).await);
            }
            answers
        };
        let answers: Vec<Answer> = join_all((0..50).map(call)).await.into_iter().flatten().collect();
        made += 1;
        assert_eq!(ids(&answers).len(), 1);
        assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 1);
        assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 201)));
        assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, made);
        tickr.until_idle().await;
        tickr.assert_sound().await;
        tickr.sql("UPDATE unique_keys SET held_until = UTC_TIMESTAMP(3)").await;
    }
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_requested_while_a_job_runs_becomes_one_job_of_its_own() {
    request_while_jobs_run().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "has the whole size with TICKR_TEST_FULL, which `make test-long` sets"]
async fn work_requested_ten_thousand_times_while_jobs_run_becomes_jobs_of_its_own() {
    request_while_jobs_run().await;
}

/// Let fifty callers request the same work again and again on two runners, while its jobs run.
async fn request_while_jobs_run() {
    let rounds = if is_full() { 200 } else { 6 };
    let starts = Starts::default();
    let tickr = TestApp::start_with(|_| {}, touch(&starts)).await;
    let other = tickr.another_with(|_| {}, touch(&starts)).await;
    // Below, a request may wait for the key for longer than a job runs. Here each one comes while a handler runs.
    let work = json!({"kind": "touch", "payload": {}, "unique_key": "alone", "unique_until": "start"});
    for accepted in 1..=5 {
        assert_eq!(tickr.post("/v1/jobs", work.clone()).await.status, 201, "request {accepted}");
        let begun = || async { (starts.lock().unwrap().len() == accepted).then_some(()) };
        eventually("its handler runs", begun).await;
    }
    tickr.until_idle().await;
    starts.lock().unwrap().clear();
    let caller = async |n: usize| {
        let mut requests = Vec::new();
        for round in 0..rounds {
            let app = if (n + round).is_multiple_of(2) { &tickr.app } else { &other };
            let asked = Instant::now();
            let job = json!({"kind": "touch", "payload": {}, "unique_key": "k", "unique_until": "start"});
            // A caller that waits for a connection for three seconds gets 503, and asks again as clients do. The count
            // of starts below shows that nothing was changed.
            let answer = eventually_seen("an answer", || async {
                let answer = post(app, &job).await;
                if answer.status == 503 { Err(answer.body) } else { Ok(answer) }
            })
            .await;
            assert!(matches!(answer.status, 200 | 201), "{:#}", answer.body);
            requests.push((asked, answer.body["id"].as_str().unwrap().to_owned(), answer.status));
        }
        requests
    };
    let requests: Vec<(Instant, String, u16)> = join_all((0..50).map(caller)).await.into_iter().flatten().collect();
    tickr.until_idle().await;
    let made = requests.iter().filter(|(.., status)| *status == 201).count();
    let starts = starts.lock().unwrap().clone();
    assert!(made > 1, "the requests came while jobs ran");
    assert_eq!(starts.len(), made);
    // No request is lost: the handler of the job that is its answer starts after it. The attempt's `started_at` may be
    // earlier, because it is the time of the claim, and other requests see a claim only once it is committed.
    let starts: HashMap<JobId, Instant> = starts.into_iter().collect();
    for (asked, id, _) in &requests {
        let started = starts[&id.parse().unwrap()];
        let early = asked.saturating_duration_since(started);
        assert!(*asked < started, "the handler of the answer {id} started {early:?} before the request");
    }
    // Never do two jobs wait: each one was accepted after the start of the one before. Times of acceptance are whole
    // milliseconds.
    let rows = sqlx::query(
        "SELECT j.created_at, a.started_at FROM jobs j JOIN attempts a ON a.job_id = j.id AND a.number = 1 \
         WHERE j.unique_key = 'k' ORDER BY a.started_at",
    )
    .fetch_all(&mut tickr.mysql().await)
    .await
    .unwrap();
    let times: Vec<(chrono::NaiveDateTime, chrono::NaiveDateTime)> =
        rows.iter().map(|row| (row.get("created_at"), row.get("started_at"))).collect();
    assert_eq!(times.len(), made);
    for pair in times.windows(2) {
        assert!(pair[1].0 + chrono::TimeDelta::milliseconds(1) > pair[0].1, "{pair:?}");
    }
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_unique_until_its_start_holds_its_key_while_it_waits() {
    let tickr = TestApp::start().await;
    let job = json!({"kind": "noop", "unique_key": "k", "unique_until": "start", "delay_ms": HOUR_MS});
    let first = tickr.enqueue(job.clone()).await;
    let again = tickr.post("/v1/jobs", job.clone()).await;
    assert_eq!((again.status, &again.body["id"]), (200, &json!(first)));
    assert_eq!(again.body["unique_until"], "start");

    // It runs: the next request gets the key, and both jobs end.
    let slow = json!({"kind": "sleep", "payload": {"ms": 1_500}, "unique_key": "k", "unique_until": "start"});
    let running = tickr.enqueue(slow.clone()).await;
    tickr.until(running, State::Executing).await;
    let next = tickr.post("/v1/jobs", slow).await;
    assert_eq!(next.status, 201, "{:#}", next.body);
    let found = tickr.get("/v1/jobs?kind=sleep&unique_key=k").await.body;
    assert_eq!(found["data"].as_array().unwrap().len(), 2);
    tickr.assert_sound().await;
    // A request that comes meanwhile is the job that holds the key now, also for jobs that are unique until their end.
    let plain = tickr.post("/v1/jobs", json!({"kind": "noop", "unique_key": "k"})).await;
    assert_eq!((plain.status, &plain.body["id"]), (200, &json!(first)));
    // A job that is retried after a cancel has not started either.
    tickr.until_count("SELECT COUNT(*) FROM owed", 1).await;
    for path in [format!("jobs/{first}/cancel"), "queues/default/pause".to_owned(), format!("jobs/{first}/retry")] {
        assert_eq!(tickr.post(&format!("/v1/{path}"), json!({})).await.status, 200, "{path}");
    }
    let again = tickr.post("/v1/jobs", job).await;
    assert_eq!((again.status, &again.body["id"]), (200, &json!(first)), "{:#}", again.body);
    assert_eq!(tickr.post(&format!("/v1/jobs/{first}/cancel"), json!({})).await.status, 200);
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_and_a_replay_get_the_key_of_a_job_that_is_unique_until_its_start_and_has_started() {
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, gated(&open)).await;
    let keyed = |kind: &str, key: &str, more: Value| {
        let mut job = json!({"kind": kind, "payload": {}, "unique_key": key, "unique_until": "start"});
        job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        job
    };
    let once = |kind: &str, key: &str| keyed(kind, key, json!({"timeout_ms": 50, "max_attempts": 1}));
    // Two holders run, and two wait for their second attempts.
    let keys = [("gate", "a"), ("gate", "b"), ("fail", "c"), ("fail", "d")];
    let (mut failed, mut holders) = (Vec::new(), Vec::new());
    for (kind, key) in keys {
        let id = tickr.enqueue(once(kind, key)).await;
        tickr.until(id, State::Failed).await;
        failed.push(id);
        let holder = tickr.enqueue(keyed(kind, key, json!({"retry": {"delays_ms": [600_000]}}))).await;
        tickr.until(holder, if kind == "gate" { State::Executing } else { State::Retrying }).await;
        holders.push(holder);
    }
    assert_eq!(tickr.post("/v1/queues/default/pause", json!({})).await.status, 200);
    for (place, id) in failed.iter().enumerate() {
        let (action, status) = if place % 2 == 0 { ("retry", 200) } else { ("replay", 201) };
        let answer = tickr.post(&format!("/v1/jobs/{id}/{action}"), json!({})).await;
        assert_eq!(answer.status, status, "{action} {place}: {:#}", answer.body);
        // It holds the key now, because it has not started.
        let (kind, key) = keys[place];
        let next = tickr.post("/v1/jobs", keyed(kind, key, json!({}))).await;
        assert_eq!((next.status, &next.body["id"]), (200, &answer.body["id"]), "{action} {place}");
    }
    tickr.assert_sound().await;
    for holder in &holders[2..] {
        assert_eq!(tickr.post(&format!("/v1/jobs/{holder}/cancel"), json!({})).await.status, 200);
    }
    open.cancel();
    assert_eq!(tickr.post("/v1/queues/default/resume", json!({})).await.status, 200);
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM unique_keys").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_put_off_expires_no_earlier_than_the_newest_request() {
    let tickr = TestApp::start().await;
    let job = |delay_ms: u64, more: Value| {
        let mut job = json!({"kind": "noop", "unique_key": "k", "on_conflict": "postpone", "delay_ms": delay_ms});
        job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        job
    };
    let hours = |n: u64| json!({"expires_in_ms": n * HOUR_MS});
    let id = tickr.enqueue(job(HOUR_MS, hours(2))).await;
    let moment = |value: &Value| -> DateTime<Utc> { serde_json::from_value(value.clone()).unwrap() };
    let expires = async || Some(tickr.job(id).await["expires_at"].clone()).filter(|at| !at.is_null());
    let first = moment(&expires().await.unwrap());
    // The first one moves no due time, and the last one would expire before.
    for (delay, asked, more) in [(3, 3, 1), (3 * HOUR_MS, 4, 2), (4 * HOUR_MS, 5, 3), (HOUR_MS, 2, 3)] {
        assert_eq!(tickr.post("/v1/jobs", job(delay, hours(asked))).await.status, 200);
        let moved = moment(&expires().await.unwrap()) - first;
        assert!((moved - chrono::TimeDelta::hours(more)).num_seconds().abs() < 60, "{delay}: {moved}");
    }
    // A due time at which it would not start any more is refused.
    let refused = tickr.patch(&format!("/v1/jobs/{id}"), json!({"delay_ms": 6 * HOUR_MS})).await;
    assert_eq!((refused.status, refused.code()), (422, "invalid_request"), "{:#}", refused.body);
    // A request without an expiry is not to be forgotten.
    assert_eq!(tickr.post("/v1/jobs", job(7 * HOUR_MS, json!({}))).await.status, 200);
    assert_eq!(expires().await, None);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM job_expiries").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_puts_off_a_job_without_an_expiry_does_not_write_one() {
    let tickr = TestApp::start().await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let through = Config::for_tests(&proxy.url(), "redis://unused");
    let behind = tickr.another_with(|config| config.mysql_url = through.mysql_url, Registry::new()).await;
    let job = |key: &str, delay_ms: u64, expires_in_ms: Option<u64>| {
        json!({"kind": "noop", "unique_key": key, "on_conflict": "postpone", "delay_ms": delay_ms,
            "expires_in_ms": expires_in_ms})
    };
    let (stays, expires) = (job("stays", HOUR_MS, None), job("expires", HOUR_MS, Some(9 * HOUR_MS)));
    for first in [&stays, &expires] {
        assert_eq!(post(&behind, first).await.status, 201);
    }
    // The runner repeats a transaction after a deadlock. The proxy says whether the statement came.
    proxy.refuse("UPDATE owed SET expires_at", 1213, 1);
    assert_eq!(post(&behind, &job("stays", 2 * HOUR_MS, None)).await.status, 200);
    assert!(!proxy.is_through(), "the expiry of a job without one was written");
    assert_eq!(post(&behind, &job("expires", 2 * HOUR_MS, Some(9 * HOUR_MS))).await.status, 200);
    assert!(proxy.is_through(), "the expiry of a job with one was not written");
    behind.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_with_equal_fields_of_the_payload_are_one_job() {
    let tickr = TestApp::start().await;
    let job =
        |payload: Value| json!({"kind": "noop", "payload": payload, "unique_fields": ["/n"], "delay_ms": HOUR_MS});
    let first = tickr.post("/v1/jobs", job(json!({"n": 1}))).await;
    assert_eq!(first.status, 201, "{:#}", first.body);
    assert!(first.body["unique_key"].as_str().unwrap().starts_with("fields:"));
    let same = tickr.post("/v1/jobs", job(json!({"n": 1}))).await;
    assert_eq!((same.status, &same.body["id"]), (200, &first.body["id"]));
    assert_eq!(tickr.post("/v1/jobs", job(json!({"n": 2}))).await.status, 201);
    // The jobs of a batch decide one by one, and those of an import as well.
    let batch = json!({"jobs": [job(json!({"n": 3})), job(json!({"n": 3})), job(json!({"n": 1}))]});
    let batch = tickr.post("/v1/jobs/batch", batch).await;
    assert_eq!(batch.status, 201, "{:#}", batch.body);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed").await, 3);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_times_of_unique_keys_are_checked_and_end() {
    let tickr = TestApp::start().await;
    for (members, pointer) in [
        (json!({"unique_for_ms": 1}), "/unique_for_ms"),
        (json!({"unique_until": "start"}), "/unique_until"),
        (json!({"unique_key": "k", "unique_for_ms": 0}), "/unique_for_ms"),
        (json!({"unique_key": "k", "unique_for_ms": 31_622_400_001_u64}), "/unique_for_ms"),
        (json!({"unique_key": "k", "unique_until": "never"}), "/unique_until"),
        (json!({"unique_key": "k", "unique_fields": ["/n"]}), "/unique_fields"),
        (json!({"unique_fields": ["/missing"]}), "/unique_fields/0"),
        (json!({"unique_fields": vec!["/n"; 11]}), "/unique_fields"),
    ] {
        let mut job = json!({"kind": "noop"});
        job.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        let refused = tickr.post("/v1/jobs", job).await;
        assert!(matches!(refused.status, 400 | 422), "{members}: {:#}", refused.body);
        assert!(refused.body.to_string().contains(pointer), "{members}: {:#}", refused.body);
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 0);

    let key = |name: &str, delay: u64| json!({"kind": "noop", "unique_key": name, "unique_for_ms": 31_622_400_000_u64, "delay_ms": delay});
    tickr.enqueue_many([key("over", 0), key("taken", 0), key("unfinished", HOUR_MS)]).await;
    tickr.until_count("SELECT COUNT(*) FROM owed", 1).await;
    tickr.sql("UPDATE unique_keys SET held_until = UTC_TIMESTAMP(3) WHERE unique_key <> 'taken'").await;
    tickr.until_count("SELECT COUNT(*) FROM unique_keys WHERE held_until > UTC_TIMESTAMP(3)", 1).await;
    let forgotten = tickr.app.broker().store().forget_unique_keys(None).await.unwrap();
    assert_eq!(forgotten, (1, None));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM unique_keys WHERE unique_key IN ('taken', 'unfinished')").await, 2);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unique_keys_hold_behind_a_pause_a_drain_a_limit_and_while_mysql_stands_still() {
    let tickr = TestApp::start_alone(|_| {}, short_lease).await;
    let ask = async |path: String| {
        let answer = tickr.post(&path, json!({})).await;
        assert_eq!(answer.status, 200, "{:#}", answer.body);
    };
    let limited = tickr.patch("/v1/queues/default", json!({"concurrency": 1})).await;
    assert_eq!(limited.status, 200);
    let slow = json!({"kind": "sleep", "payload": {"ms": 1_500}, "unique_key": "k", "unique_until": "start"});
    let runner = format!("/v1/runners/{}", tickr.app.runner().as_str().replace('/', "%2F"));

    // It waits for a resume, and then for a runner that takes work: all requests are one job.
    ask("/v1/queues/default/pause".into()).await;
    let first = tickr.enqueue(slow.clone()).await;
    assert_eq!(tickr.post("/v1/jobs", slow.clone()).await.body["id"], json!(first));
    ask(format!("{runner}/drain")).await;
    ask("/v1/queues/default/resume".into()).await;
    assert_eq!(tickr.post("/v1/jobs", slow.clone()).await.body["id"], json!(first));
    tickr.assert_sound().await;
    ask(format!("{runner}/resume")).await;
    tickr.until(first, State::Executing).await;
    // The next one waits behind the limit.
    let second = tickr.post("/v1/jobs", slow.clone()).await;
    assert_eq!(second.status, 201, "{:#}", second.body);
    assert_eq!(tickr.post("/v1/jobs", slow).await.body["id"], second.body["id"]);
    tickr.assert_sound().await;

    // A job of a batch is deleted when it has ended, and its key keeps its time.
    let kept = |key: &str| json!({"kind": "noop", "unique_key": key, "unique_for_ms": HOUR_MS});
    let batch = tickr.enqueue_many([kept("a"), kept("b")]).await;
    tickr.until_idle().await;
    let delete = json!({"action": "delete", "filter": {"ids": [batch[0].to_string()]}});
    let deleted = tickr.post("/v1/operations", delete).await;
    assert!(deleted.status < 300, "{:#}", deleted.body);
    tickr.until_count("SELECT COUNT(*) FROM jobs WHERE kind = 'noop'", 1).await;
    assert_eq!(tickr.post("/v1/jobs", kept("a")).await.body["id"], json!(batch[0]));

    // MySQL stands still for longer than the limits of a transaction, while callers ask.
    let caller = async || {
        for _ in 0..200 {
            let asked = tickr.post("/v1/jobs", kept("w")).await;
            match asked.status {
                200 | 201 => return asked.body["id"].clone(),
                429 | 503 => tokio::time::sleep(Duration::from_millis(300)).await,
                other => panic!("{other}: {:#}", asked.body),
            }
        }
        panic!("MySQL is back, and the key is not had");
    };
    tickr.services().mysql().pause().unwrap();
    let freeze = async {
        tokio::time::sleep(Duration::from_secs(17)).await;
        tickr.services().mysql().resume().unwrap();
    };
    let (ids, ()) = tokio::join!(join_all((0..10).map(|_| caller())), freeze);
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs WHERE unique_key = 'w'").await, 1);
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_put_a_waiting_job_off_but_not_beyond_its_longest_wait() {
    let tickr = TestApp::start().await;
    let asks = |delay_ms: u64| json!({"kind": "noop", "unique_key": "k", "on_conflict": "postpone", "delay_ms": delay_ms, "max_wait_ms": 2 * HOUR_MS});
    let due = |answer: &Answer| -> DateTime<Utc> { serde_json::from_value(answer.body["execute_at"].clone()).unwrap() };
    let first = tickr.post("/v1/jobs", asks(HOUR_MS)).await;
    assert_eq!((first.status, &first.body["max_wait_ms"]), (201, &json!(2 * HOUR_MS)), "{:#}", first.body);
    let later = tickr.post("/v1/jobs", asks(HOUR_MS + HOUR_MS / 2)).await;
    assert_eq!((later.status, &later.body["id"], &later.body["state"]), (200, &first.body["id"], &json!("waiting")));
    let moved = (due(&later) - due(&first)).num_milliseconds();
    assert!(moved >= 1_800_000, "it was put off by {moved} ms");
    let read = tickr.get(&format!("/v1/jobs/{}", first.body["id"].as_str().unwrap())).await;
    assert_eq!(read.body["execute_at"], later.body["execute_at"]);

    // A request that would be due earlier leaves the job where it is, and the longest wait is the end.
    for delay_ms in [0, HOUR_MS] {
        let earlier = tickr.post("/v1/jobs", asks(delay_ms)).await;
        assert_eq!((earlier.status, &earlier.body["execute_at"]), (200, &later.body["execute_at"]));
    }
    let created: DateTime<Utc> = serde_json::from_value(first.body["created_at"].clone()).unwrap();
    let mut much_later = asks(5 * HOUR_MS);
    much_later["max_wait_ms"] = json!(9 * HOUR_MS);
    for job in [asks(3 * HOUR_MS), much_later] {
        let last = tickr.post("/v1/jobs", job).await;
        let waits = (due(&last) - created).num_milliseconds();
        assert!((7_200_000..=7_200_001).contains(&waits), "it waits for {waits} ms");
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1);

    // A job that executes is not put off, and nothing else is written.
    let sleep = json!({"kind": "sleep", "payload": {"ms": 600_000}, "unique_key": "k", "on_conflict": "postpone"});
    let runs = tickr.enqueue(sleep.clone()).await;
    tickr.until(runs, State::Executing).await;
    let refused = tickr.post("/v1/jobs", sleep).await;
    assert_eq!((refused.status, refused.code()), (409, "unique_key_taken"), "{:#}", refused.body);
    tickr.post(&format!("/v1/jobs/{runs}/cancel"), json!({})).await;

    let wrong = [
        json!({"kind": "noop", "unique_key": "k", "max_wait_ms": 5}),
        json!({"kind": "noop", "unique_key": "k", "on_conflict": "replace", "max_wait_ms": 5}),
        json!({"kind": "noop", "unique_key": "k", "on_conflict": "postpone", "max_wait_ms": 0}),
    ];
    for job in wrong {
        let answer = tickr.post("/v1/jobs", job).await;
        assert_eq!((answer.status, answer.pointers()), (422, vec!["/max_wait_ms"]), "{:#}", answer.body);
    }
    let twice = tickr.post("/v1/jobs/batch", json!({"jobs": [asks(1), asks(2)]})).await;
    assert_eq!((twice.status, twice.pointers()), (422, vec!["/jobs/1/unique_key"]), "{:#}", twice.body);
    let id = first.body["id"].as_str().unwrap();
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await.status, 200);
    tickr.until_idle().await;
    assert_eq!(tickr.post("/v1/jobs", asks(0)).await.status, 201, "the key is free again");
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_behind_one_that_puts_a_job_off_in_its_batch_is_answered_with_that_job() {
    let tickr = TestApp::start().await;
    let asks = |delay_ms: u64| json!({"kind": "noop", "unique_key": "k", "on_conflict": "postpone", "delay_ms": delay_ms, "max_wait_ms": 2 * HOUR_MS});
    let holder = tickr.enqueue(asks(HOUR_MS)).await;
    // The third one waits for the answer to the second.
    let other = json!({"kind": "noop", "after": [1]});
    let jobs = json!({"jobs": [asks(5 * HOUR_MS), {"kind": "noop", "unique_key": "k"}, other]});
    let send = async |key: Option<&str>| {
        let request = tickr.request(Method::POST, "/v1/jobs/batch").json(&jobs);
        answer(key.into_iter().fold(request, |request, key| request.header("idempotency-key", key))).await
    };
    let plain = send(None).await;
    let keyed = send(Some("b")).await;
    let replayed = send(Some("b")).await;
    assert_eq!((replayed.header("idempotency-replayed"), &replayed.body), ("true", &keyed.body));
    let held = tickr.job(holder).await;
    for sent in [plain, keyed] {
        assert_eq!(sent.status, 201, "{:#}", sent.body);
        let receipt = json!({"id": holder, "execute_at": held["execute_at"], "existing": true});
        assert_eq!([&sent.body["jobs"][0], &sent.body["jobs"][1]], [&receipt; 2]);
        let third = tickr.job(sent.body["jobs"][2]["id"].as_str().unwrap().parse().unwrap()).await;
        assert_eq!(third["after"], json!([holder]));
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 3);
    tickr.stop().await;
}

/// Let fifty callers post four times each, in turn to both runners, and return all answers. On a slow machine they wait
/// for the same row for so long that some are told to come back.
async fn ask_fifty_times(apps: [&App; 2], job: impl Fn(usize) -> Value) -> Vec<Answer> {
    let job = &job;
    let call = async |n: usize| {
        let mut answers = Vec::new();
        for round in 0..4 {
            let answer = eventually("an answer that is not to come back", || async {
                let answer = post(apps[(n + round) % 2], &job(n)).await;
                (answer.status != 503).then_some(answer)
            });
            answers.push(answer.await);
        }
        answers
    };
    join_all((0..50).map(call)).await.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_fifty_callers_put_off_starts_once_and_not_before_its_last_due_time() {
    let tickr = TestApp::start().await;
    let other = tickr.another().await;
    // The first due time passes while the others put the job off.
    let delayed =
        |delay_ms: usize| json!({"kind": "noop", "unique_key": "k", "on_conflict": "postpone", "delay_ms": delay_ms});
    let asks = |n: usize| delayed(5_000 + 10 * n);
    assert_eq!(post(&tickr.app, &delayed(2_000)).await.status, 201);
    let answers = ask_fifty_times([&tickr.app, &other], asks).await;
    assert!(
        answers.iter().all(|answer| answer.status == 200),
        "{:?}",
        answers.iter().find(|answer| answer.status != 200)
    );
    assert_eq!(ids(&answers).len(), 1);
    let last: DateTime<Utc> =
        answers.iter().map(|answer| serde_json::from_value(answer.body["execute_at"].clone()).unwrap()).max().unwrap();
    tickr.until_idle().await;
    let job = tickr.get(&format!("/v1/jobs/{}", ids(&answers).first().unwrap())).await;
    let started: DateTime<Utc> = serde_json::from_value(job.body["started_at"].clone()).unwrap();
    assert!(started >= last, "it started at {started} and was due at {last}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts").await, 1);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1);
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_puts_a_job_off_while_it_starts_makes_the_next_job() {
    let tickr = TestApp::start().await;
    let other = tickr.another().await;
    for round in 0..3 {
        // The longest wait is over at once, so the job starts while the callers put it off.
        let job = |_| {
            let key = format!("k{round}");
            json!({"kind": "noop", "unique_key": key, "unique_until": "start", "on_conflict": "postpone",
                   "delay_ms": 5_000, "max_wait_ms": 1})
        };
        let answers = ask_fifty_times([&tickr.app, &other], job).await;
        let refused = answers.iter().find(|answer| !matches!(answer.status, 200 | 201));
        assert!(refused.is_none(), "{refused:?}");

        let made = answers.iter().filter(|answer| answer.status == 201).count();
        assert_eq!(ids(&answers).len(), made);
    }
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, tickr.count("SELECT COUNT(*) FROM attempts").await);
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_put_off_behind_a_pause_a_flush_and_an_order_key() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    assert_eq!(tickr.post("/v1/queues/default/pause", json!({})).await.status, 200);
    let job =
        |delay_ms: u64| json!({"kind": "noop", "unique_key": "k", "on_conflict": "postpone", "delay_ms": delay_ms});
    let first = tickr.post("/v1/jobs", job(0)).await;
    assert_eq!(first.status, 201, "{:#}", first.body);
    tickr.flush_redis().await;
    let later = tickr.post("/v1/jobs", job(3_000)).await;
    assert_eq!((later.status, &later.body["id"]), (200, &first.body["id"]));
    let due: DateTime<Utc> = serde_json::from_value(later.body["execute_at"].clone()).unwrap();

    // A job behind another one of its order key has no due time yet. It stays held and starts after that one.
    let ordered = |key: &str, delay_ms: u64| json!({"kind": "noop", "order_key": "o", "unique_key": key, "on_conflict": "postpone", "delay_ms": delay_ms});
    let head = tickr.post("/v1/jobs", ordered("head", 0)).await;
    let held = tickr.post("/v1/jobs", ordered("held", 0)).await;
    assert_eq!((head.status, held.status), (201, 201), "{:#}", held.body);
    let put_off = tickr.post("/v1/jobs", ordered("held", 2_000)).await;
    assert_eq!((put_off.status, &put_off.body["id"]), (200, &held.body["id"]), "{:#}", put_off.body);
    assert_eq!(put_off.body["held"], true, "{:#}", put_off.body);

    assert_eq!(tickr.post("/v1/queues/default/resume", json!({})).await.status, 200);
    tickr.until_idle().await;
    let path = |answer: &Answer| format!("/v1/jobs/{}", answer.body["id"].as_str().unwrap());
    let started = async |answer: &Answer| -> DateTime<Utc> {
        let job = tickr.get(&path(answer)).await;
        assert_eq!((&job.body["state"], &job.body["attempt"]), (&json!("completed"), &json!(1)), "{:#}", job.body);
        serde_json::from_value(job.body["started_at"].clone()).unwrap()
    };
    assert!(started(&first).await >= due);
    assert!(started(&held).await >= started(&head).await);
    tickr.stop().await;
}

/// Put a job off that waits for the end of another one, let that one end, and check when the job starts.
async fn put_off_and_let_go(tickr: &TestApp, waiting: &Value, open: &CancellationToken) {
    let later = json!({"kind": "noop", "unique_key": "k", "on_conflict": "postpone", "delay_ms": 1_500});
    let put_off = tickr.post("/v1/jobs", later).await;
    assert_eq!((put_off.status, &put_off.body["id"]), (200, &waiting["id"]), "{:#}", put_off.body);
    let due: DateTime<Utc> = serde_json::from_value(put_off.body["execute_at"].clone()).unwrap();
    let before: DateTime<Utc> = serde_json::from_value(waiting["execute_at"].clone()).unwrap();
    assert!(due >= before + chrono::TimeDelta::milliseconds(1_500), "{before} and {due}");
    open.cancel();
    let id: JobId = waiting["id"].as_str().unwrap().parse().unwrap();
    let job = tickr.until(id, State::Completed).await;
    let started: DateTime<Utc> = serde_json::from_value(job["started_at"].clone()).unwrap();
    assert!(started >= due, "due at {due}: {job:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_parked_at_a_limit_is_put_off_as_well() {
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, gated(&open)).await;
    set_and_wait(&tickr, "per-tenant", json!({"concurrency": 1})).await;
    let first = tickr.enqueue(json!({"kind": "gate", "payload": {}, "limit_key": "a"})).await;
    tickr.until(first, State::Executing).await;
    let again = "SELECT COUNT(*) FROM limit_waits w JOIN jobs j ON j.id = w.job_id WHERE w.due_at > j.execute_at";
    let job = |delay: u64| json!({"kind": "noop", "limit_key": "a", "unique_key": "k", "on_conflict": "postpone", "delay_ms": delay});
    let waiting = tickr.post("/v1/jobs", job(0)).await;
    assert_eq!(waiting.status, 201, "{:#}", waiting.body);
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 1).await;
    // It is parked again at its new due time, because the limit still has no room.
    let later = tickr.post("/v1/jobs", job(300)).await;
    assert_eq!(later.status, 200, "{:#}", later.body);
    tickr.until_count(again, 1).await;
    put_off_and_let_go(&tickr, &waiting.body, &open).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_for_its_parents_is_put_off_as_well() {
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, gated(&open)).await;
    let parent = tickr.enqueue(json!({"kind": "gate", "payload": {}})).await;
    tickr.until(parent, State::Executing).await;
    let job = json!({"kind": "noop", "after": [parent.to_string()], "unique_key": "k", "on_conflict": "postpone"});
    let waiting = tickr.post("/v1/jobs", job).await;
    assert_eq!((waiting.status, &waiting.body["held"]), (201, &json!(true)), "{:#}", waiting.body);
    put_off_and_let_go(&tickr, &waiting.body, &open).await;
    tickr.stop().await;
}

/// A runner that freezes in a transaction keeps such a lock.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_wait_for_a_locked_unique_key_hold_up_no_other_change() {
    let tickr = TestApp::start().await;
    let job = |key: &str| json!({"kind": "noop", "unique_key": key, "on_conflict": "postpone", "delay_ms": HOUR_MS});
    let (locked, other) = (tickr.enqueue(job("k")).await, tickr.enqueue(job("other")).await);
    let mut holder = tickr.mysql().await;
    let mut held = holder.begin().await.unwrap();
    held.execute("SELECT * FROM unique_keys WHERE kind = 'noop' AND unique_key = 'k' FOR UPDATE").await.unwrap();
    let waiting = join_all((0..20).map(|_| tickr.post("/v1/jobs", job("k"))));
    let changes = async {
        tickr.until_lock_waits(1..).await;
        let began = Instant::now();
        let changed = tickr.patch(&format!("/v1/jobs/{other}"), json!({"priority": 1})).await;
        assert_eq!(changed.status, 200, "{:#}", changed.body);
        let made = tickr.post("/v1/jobs", job("another")).await;
        assert_eq!(made.status, 201, "{:#}", made.body);
        let cancelled = tickr.post(&format!("/v1/jobs/{other}/cancel"), json!({})).await;
        assert_eq!(cancelled.status, 200, "{:#}", cancelled.body);
        let took = began.elapsed();
        held.rollback().await.unwrap();
        took
    };
    let (answers, took) = tokio::join!(waiting, changes);
    assert!(took < Duration::from_secs(3), "{took:?}");
    for answer in answers {
        assert_eq!((answer.status, &answer.body["id"]), (200, &json!(locked)), "{:#}", answer.body);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_and_replays_that_wait_for_a_locked_unique_key_hold_up_no_other_change() {
    let tickr = TestApp::start().await;
    let job = |payload: Value| json!({"kind": "fail", "payload": payload, "unique_key": "k", "delay_ms": 0});
    let mut failed = Vec::new();
    for _ in 0..4 {
        failed.push(tickr.enqueue(job(json!({"permanent": true}))).await);
        tickr.until(*failed.last().unwrap(), State::Failed).await;
    }
    let holder = tickr.enqueue(json!({"kind": "fail", "payload": {}, "unique_key": "k", "delay_ms": HOUR_MS})).await;
    let mut session = tickr.mysql().await;
    for verb in ["retry", "replay"] {
        session.execute("BEGIN").await.unwrap();
        session.execute("SELECT * FROM unique_keys WHERE kind = 'fail' AND unique_key = 'k' FOR UPDATE").await.unwrap();
        let paths = failed.iter().map(|id| format!("/v1/jobs/{id}/{verb}")).collect::<Vec<_>>();
        let calls = join_all(paths.iter().map(|path| async { tickr.post(path, json!({})).await }));
        for answer in tickr.goes_on_beside(calls, &mut session).await {
            let (status, code) = (answer.status, answer.code());
            assert_eq!((status, code, &answer.body["holder"]), (409, "unique_key_taken", &json!(holder)), "{verb}");
        }
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_a_lost_commit_put_off_is_the_answer_after_it_started() {
    let starts = Starts::default();
    let tickr = TestApp::start_with(|_| {}, touch(&starts)).await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let through = Config::for_tests(&proxy.url(), "redis://unused");
    let elsewhere = |config: &mut Config| {
        config.mysql_url = through.mysql_url;
        config.queues = vec!["nothing".into()];
    };
    let cut = tickr.another_with(elsewhere, touch(&starts)).await;
    let job = json!({"kind": "touch", "unique_key": "k", "on_conflict": "postpone"});
    for round in 1..=3 {
        assert_eq!(tickr.post("/v1/queues/default/pause", json!({})).await.status, 200);
        let first = tickr.post("/v1/jobs", job.clone()).await;
        assert_eq!(first.status, 201, "{:#}", first.body);
        let path = format!("/v1/jobs/{}", first.body["id"].as_str().unwrap());

        // MySQL commits the new due time, and its answer is lost. Before the runner can ask again, the job has ended.
        proxy.cut_and_hold("COMMIT");
        let cuts = proxy.cuts();
        let again = async { post(&cut, &job).await };
        let ends = async {
            eventually("the answer is lost", || async { (proxy.cuts() > cuts).then_some(()) }).await;
            assert_eq!(tickr.post("/v1/queues/default/resume", json!({})).await.status, 200);
            tickr.until_idle().await;
            proxy.let_in();
        };
        let (again, ()) = tokio::join!(again, ends);
        assert_eq!((again.status, &again.body["id"]), (200, &first.body["id"]), "{:#}", again.body);
        let ended = tickr.get(&path).await;
        assert_eq!(ended.body["execute_at"], again.body["execute_at"], "{:#}", ended.body);
        assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, round);
    }
    cut.stop(CancellationToken::new()).await;
    tickr.stop().await;
}
