//! Jobs that expire: none starts at its expiry or later, by the clock of MySQL, and each that did not start ends as a
//! dead letter in a group of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::{Connection, Executor};
use tickr::handlers::{Context, Kind, Output, Registry};
use tickr::job::{JobId, State};
use tokio_util::sync::CancellationToken;

use crate::support::limits::set_and_wait;
use crate::support::{EventStream, TestApp, Told, gated};

/// Attempts that started at the expiry of their job or later. The line of an expired job is no attempt.
pub(crate) const LATE: &str = "SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE a.expired IS NULL AND \
     a.started_at >= CAST(REPLACE(REPLACE(JSON_VALUE(j.options, '$.expires_at'), 'T', ' '), 'Z', '') AS DATETIME(6))";

/// Jobs that ended as expired before their expiry.
pub(crate) const TOO_SOON: &str = "SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE a.expired AND \
     a.finished_at < CAST(REPLACE(REPLACE(JSON_VALUE(j.options, '$.expires_at'), 'T', ' '), 'Z', '') AS DATETIME(6))";

/// A job that counts its starts.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
struct Counted {}

impl Kind for Counted {
    const NAME: &'static str = "counted";
}

fn counted(starts: &Arc<AtomicUsize>) -> Registry {
    let (mut registry, starts) = (Registry::new(), Arc::clone(starts));
    registry.register(move |_: Counted, _: Context| {
        starts.fetch_add(1, Ordering::SeqCst);
        async { Ok(Output::default()) }
    });
    registry
}

/// Start a runner that serves the queue `slow` as well.
async fn start(own: Registry) -> TestApp {
    let queues = ["default", "slow"].map(str::to_owned);
    TestApp::start_with(|config| config.queues = queues.into(), own).await
}

async fn pause(tickr: &TestApp, queue: &str) {
    let paused = tickr.post(&format!("/v1/queues/{queue}/pause"), json!({"reason": "test"})).await;
    assert_eq!(paused.status, 200, "{:#}", paused.body);
}

async fn resume(tickr: &TestApp, queue: &str) {
    assert_eq!(tickr.post(&format!("/v1/queues/{queue}/resume"), json!({})).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_did_not_start_in_time_fails_in_a_group_of_its_own_and_an_operator_may_run_it() {
    let tickr = start(Registry::new()).await;
    pause(&tickr, "slow").await;
    let jobs = (0..3).map(|n| {
        json!({"kind": "noop", "payload": {}, "queue": "slow", "expires_in_ms": 300 + n, "unique_key": format!("u{n}")})
    });
    let ids: Vec<JobId> = {
        let mut ids = Vec::new();
        for job in jobs {
            ids.push(tickr.enqueue(job).await);
        }
        ids
    };
    let shown = tickr.job(ids[0]).await;
    let moment = |field: &Value| field.as_str().unwrap().parse::<chrono::DateTime<chrono::Utc>>().unwrap();
    let time = (moment(&shown["expires_at"]) - moment(&shown["created_at"])).num_milliseconds();
    assert!((300..=301).contains(&time), "{time}");
    for id in &ids {
        let job = tickr.until(*id, State::Failed).await;
        assert!(job["last_error"].as_str().unwrap().starts_with("expired: it did not start before 20"), "{job:#}");
        // Nothing was executed, and no attempt was used.
        assert_eq!((&job["attempt"], &job["attempts"][0]["verdict"]), (&json!(0), &json!("expired")));
        assert_eq!(job["attempts"].as_array().unwrap().len(), 1);
    }
    let groups = tickr.get("/v1/dead-letters/groups").await;
    let groups = groups.body["data"].as_array().unwrap().clone();
    assert_eq!((groups.len(), &groups[0]["open"]), (1, &json!(3)), "{groups:#?}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM job_expiries").await, 0);
    // Their unique keys are free again.
    assert_eq!(tickr.count("SELECT COUNT(*) FROM unique_keys").await, 0);

    // The operator's retry and replay do not expire.
    assert_eq!(tickr.post(&format!("/v1/jobs/{}/retry", ids[0]), json!({})).await.status, 200);
    let replayed = tickr.post(&format!("/v1/jobs/{}/replay", ids[1]), json!({})).await;
    assert_eq!((replayed.status, &replayed.body["expires_at"]), (201, &Value::Null), "{:#}", replayed.body);
    let replayed: JobId = replayed.body["id"].as_str().unwrap().parse().unwrap();
    resume(&tickr, "slow").await;
    tickr.until(ids[0], State::Completed).await;
    tickr.until(replayed, State::Completed).await;
    assert_eq!(tickr.verdicts(ids[0]).await, ["expired", "succeeded"]);
    tickr.stop().await;
}

/// Return the ids of the events about attempts of a job that has ended, and the data of the last one.
async fn events_about_attempts(tickr: &TestApp, id: JobId) -> (Vec<String>, Value) {
    let mut told = EventStream::open(&tickr.url(&format!("/v1/jobs/{id}/events")), None).await.rest().await;
    told.retain(|event| event.kind == "attempt");
    (told.iter().map(Told::number_and_word).collect(), told.last().unwrap().data.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_expired_shows_no_start_of_its_own() {
    let tickr = start(Registry::new()).await;
    pause(&tickr, "slow").await;
    let never = json!({"kind": "noop", "payload": {}, "queue": "slow", "expires_in_ms": 300});
    let never = tickr.enqueue(never).await;
    let fails =
        json!({"kind": "fail", "payload": {"times": 9}, "retry": {"delays_ms": [600_000]}, "expires_in_ms": 2_000});
    let fails = tickr.enqueue(fails).await;
    let job = tickr.until(never, State::Failed).await;
    let line = &job["attempts"][0];
    assert_eq!((&job["started_at"], &line["started_at"]), (&Value::Null, &Value::Null), "{job:#}");
    assert_eq!((&line["verdict"], &line["finished_at"]), (&json!("expired"), &job["finished_at"]), "{job:#}");
    let (ids, last) = events_about_attempts(&tickr, never).await;
    assert_eq!(ids, ["1.done"]);
    assert_eq!((&last["started_at"], &last["verdict"]), (&Value::Null, &json!("expired")));
    let timeline = tickr.get(&format!("/v1/jobs/{never}/timeline")).await.body;
    let mut causes = timeline["segments"].as_array().unwrap().iter().map(|segment| &segment["cause"]);
    assert!(causes.all(|cause| cause != "running"), "{timeline:#}");

    // An attempt that ran before shows its start, and the error says that there was one.
    let job = tickr.until(fails, State::Failed).await;
    let [first, last] = job["attempts"].as_array().unwrap().as_slice() else { panic!("{job:#}") };
    assert_eq!((&job["started_at"], &last["started_at"]), (&first["started_at"], &Value::Null), "{job:#}");
    assert!(first["started_at"].as_str() < job["expires_at"].as_str(), "{job:#}");
    let error = job["last_error"].as_str().unwrap();
    assert!(error.starts_with("expired: no attempt of it succeeded before 20"), "{error}");
    assert_eq!(events_about_attempts(&tickr, fails).await.0, ["1.begin", "1.done", "2.done"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_attempt_starts_at_the_expiry_or_later_on_any_runner() {
    let tickr = TestApp::start_with(|config| config.workers = 4, Registry::new()).await;
    let other = tickr.another_with(|config| config.workers = 4, Registry::new()).await;
    // Eight workers can do a part of these in time. The others expire at any moment between their due time and a start.
    let mut jobs = Vec::new();
    for n in 0..600_u32 {
        let delay = (n % 20) * 10;
        let margin = if n % 3 == 0 { 600_000 } else { 1 + n % 150 };
        jobs.push(json!({"kind": "sleep", "payload": {"ms": 5}, "delay_ms": delay, "expires_in_ms": delay + margin}));
    }
    let retry = json!({"delays_ms": [50]});
    jobs.extend(
        (0..40).map(|_| json!({"kind": "fail", "payload": {"times": 9}, "retry": retry, "expires_in_ms": 400})),
    );
    tickr.enqueue_many(jobs).await;
    tickr.until_idle().await;
    let ended =
        async |state: &str| tickr.count(format!("SELECT COUNT(*) FROM attempts WHERE end_state = '{state}'")).await;
    let (completed, failed) = (ended("completed").await, ended("failed").await);
    println!("{completed} completed, {failed} expired or failed");
    assert_eq!(completed + failed, 640);
    let expired = tickr.count("SELECT COUNT(*) FROM attempts WHERE expired").await;
    assert!(completed >= 200 && expired > 0, "{completed} completed, {expired} expired");
    assert_eq!(tickr.count(LATE).await, 0);
    assert_eq!(tickr.count(TOO_SOON).await, 0);
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_handler_starts_after_the_expiry_when_the_answer_to_its_claim_comes_late() {
    let starts = Arc::<AtomicUsize>::default();
    let tickr = TestApp::start_with(|_| {}, counted(&starts)).await;
    let mut holder = tickr.mysql().await;
    let mut held = holder.begin().await.unwrap();
    // The end of a claim waits for this lock. The attempt has its time of start by then.
    held.execute("SELECT * FROM claim_batches FOR UPDATE").await.unwrap();
    let job = json!({"kind": "counted", "payload": {}, "expires_in_ms": 1_500});
    let jobs = tickr.enqueue_many((0..3).map(|_| job.clone())).await;
    tickr.until_said("INSERT INTO claim_batches", 1).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE expires_at > UTC_TIMESTAMP(6)", 0).await;
    held.rollback().await.unwrap();
    for id in jobs {
        let job = tickr.until(id, State::Failed).await;
        assert_eq!((&job["attempt"], tickr.verdicts(id).await), (&json!(0), vec!["expired".to_owned()]));
    }
    assert_eq!(starts.load(Ordering::SeqCst), 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_attempt_goes_on_after_the_expiry_and_a_retry_does_not_start() {
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, gated(&open)).await;
    let runs = tickr.enqueue(json!({"kind": "gate", "payload": {}, "expires_in_ms": 2_000})).await;
    tickr.until(runs, State::Executing).await;
    let fails =
        json!({"kind": "fail", "payload": {"times": 9}, "retry": {"delays_ms": [600_000]}, "expires_in_ms": 2_000});
    let fails = tickr.enqueue(fails).await;
    tickr.until(fails, State::Retrying).await;
    let job = tickr.until(fails, State::Failed).await;
    assert_eq!(tickr.verdicts(fails).await, ["failed", "expired"]);
    assert!(job["last_error"].as_str().unwrap().starts_with("expired:"), "{job:#}");
    // The other one expired at about the same time, and its handler still runs.
    assert_eq!(tickr.job(runs).await["state"], "executing");
    open.cancel();
    tickr.until(runs, State::Completed).await;
    // Its row goes with the next look at it.
    tickr.until_count("SELECT COUNT(*) FROM job_expiries", 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_job_lets_the_next_one_of_its_order_key_go_on() {
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, gated(&open)).await;
    pause(&tickr, "slow").await;
    let first = tickr.enqueue(json!({"kind": "gate", "payload": {}, "order_key": "a"})).await;
    // This one expires while it is held, and the first of the other key while its queue is paused.
    let held = tickr.enqueue(json!({"kind": "noop", "payload": {}, "order_key": "a", "expires_in_ms": 200})).await;
    let last = tickr.enqueue(json!({"kind": "noop", "payload": {}, "order_key": "a"})).await;
    let head = json!({"kind": "noop", "payload": {}, "order_key": "b", "queue": "slow", "expires_in_ms": 200});
    let head = tickr.enqueue(head).await;
    let next = tickr.enqueue(json!({"kind": "noop", "payload": {}, "order_key": "b"})).await;
    tickr.until(held, State::Failed).await;
    tickr.until(head, State::Failed).await;
    tickr.until(next, State::Completed).await;
    assert_eq!(
        (tickr.job(first).await["state"].clone(), tickr.job(last).await["state"].clone()),
        (json!("executing"), json!("waiting"))
    );
    open.cancel();
    tickr.until(last, State::Completed).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_parked_at_its_limit_expires() {
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, gated(&open)).await;
    set_and_wait(&tickr, "per-tenant", json!({"concurrency": 1})).await;
    let job = |expires: Option<u64>| json!({"kind": "gate", "payload": {}, "limit_key": "a", "expires_in_ms": expires});
    let first = tickr.enqueue(job(None)).await;
    tickr.until(first, State::Executing).await;
    let parked = tickr.enqueue(job(Some(1_500))).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 1).await;
    tickr.until(parked, State::Failed).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM limit_waits").await, 0);
    assert_eq!(tickr.job(first).await["state"], "executing");
    open.cancel();
    tickr.until(first, State::Completed).await;
    tickr.stop().await;
}

/// Many more expired jobs than one look ends, in front of a job that does not expire.
#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_expired_jobs_end_within_seconds_and_hold_up_no_other() {
    let tickr = start(Registry::new()).await;
    pause(&tickr, "slow").await;
    for _ in 0..5 {
        let many = (0..1_000).map(|_| json!({"kind": "noop", "payload": {}, "queue": "slow", "expires_in_ms": 1}));
        tickr.enqueue_many(many).await;
    }
    let began = Instant::now();
    let other = tickr.enqueue(json!({"kind": "noop", "payload": {}, "queue": "slow"})).await;
    tickr.until_count("SELECT COUNT(*) FROM dead_letters", 5_000).await;
    println!("{:?} for the rest of 5,000", began.elapsed());
    // A page for each summary of changes, one in a second, would take 20 s.
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    resume(&tickr, "slow").await;
    tickr.until(other, State::Completed).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_expire_without_redis_too() {
    let tickr = TestApp::start_alone(|_| {}, |config| config.lease = Duration::from_secs(5)).await;
    tickr.services().redis().stop().unwrap();
    pause(&tickr, "slow").await;
    let job = tickr.enqueue(json!({"kind": "noop", "payload": {}, "queue": "slow", "expires_in_ms": 100})).await;
    let runs = tickr.enqueue(json!({"kind": "noop", "payload": {}, "expires_in_ms": 60_000})).await;
    tickr.until(job, State::Failed).await;
    tickr.until(runs, State::Completed).await;
    tickr.services().redis().start_again().unwrap();
    tickr.stop().await;
}
