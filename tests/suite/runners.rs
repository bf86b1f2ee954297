//! Runners as operators see them: the jobs of their workers, and drain.

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::Connection;
use tickr::app::App;
use tickr::config::ServerUrl;
use tickr::handlers::Registry;
use tickr::job::{JobId, State};
use tokio_util::sync::CancellationToken;

use crate::support::{Answer, DEADLINE, TestApp, eventually};

fn path(app: &App, rest: &str) -> String {
    format!("/v1/runners/{}{rest}", app.runner().as_str().replace('/', "%2F"))
}

/// Return a runner as the list shows it.
async fn shown(tickr: &TestApp, app: &App) -> Value {
    listed(tickr, app.runner().as_str()).await
}

async fn listed(tickr: &TestApp, id: &str) -> Value {
    let listed = tickr.get("/v1/runners").await;
    assert_eq!(listed.status, 200, "{:#}", listed.body);
    let data = listed.body["data"].as_array().unwrap();
    data.iter().find(|runner| runner["id"] == id).unwrap().clone()
}

/// Return the ids of the jobs that its workers run.
fn jobs(runner: &Value) -> Vec<JobId> {
    runner["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().parse().unwrap()).collect()
}

async fn drain(tickr: &TestApp, app: &App, reason: &str) -> Answer {
    let drained = tickr.post(&path(app, "/drain"), json!({"reason": reason})).await;
    assert_eq!((drained.status, &drained.body["state"]), (200, &json!("draining")), "{:#}", drained.body);
    drained
}

/// Wait until the process knows whether it may take work.
async fn heard(app: &App, drained: bool) {
    let mut settings = app.operator_settings().listen();
    let heard = settings.wait_for(|settings| settings.drained == drained);
    tokio::time::timeout(DEADLINE, heard).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_is_registered_before_it_answers() {
    let tickr = TestApp::start().await;
    // The list takes no new row for a while.
    let mut operator = tickr.mysql().await;
    let mut held = operator.begin().await.unwrap();
    sqlx::query("SELECT id FROM runners FOR UPDATE").fetch_all(&mut *held).await.unwrap();
    let mut start = Box::pin(tickr.another_with(|_| {}, Registry::new()));
    let early = tokio::time::timeout(Duration::from_millis(1_500), &mut start).await;
    assert!(early.is_err(), "it answers, and no other runner knows that it can read its jobs");
    held.rollback().await.unwrap();
    let other = start.await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM runners WHERE stopped_at IS NULL").await, 2);
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_of_runners_shows_who_they_are_and_what_runs_on_their_workers() {
    let tickr = TestApp::start_with(|config| config.workers = 4, Registry::new()).await;
    let other = tickr.another_with(|config| config.queues = vec!["mail".into()], Registry::new()).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let id = tickr.enqueue_kind("sleep", json!({"ms": 60_000})).await;
        tickr.until(id, State::Executing).await;
        ids.push(id);
    }
    // This comes before the next heartbeat.
    let runner = shown(&tickr, &tickr.app).await;
    assert_eq!(jobs(&runner), ids, "the longest running job first");
    let first = &runner["jobs"][0];
    assert_eq!((&first["kind"], &first["queue"]), (&json!("sleep"), &json!("default")));
    assert_eq!((&first["attempt"], &first["max_attempts"]), (&json!(1), &json!(5)));
    let attempt = tickr.job(ids[0]).await["attempts"][0].clone();
    assert_eq!(first["started_at"], attempt["started_at"]);
    assert_eq!((&runner["more"], &runner["state"]), (&json!(false), &json!("working")));
    assert_eq!((&runner["pid"], &runner["draining"]), (&json!(std::process::id()), &Value::Null));
    assert!(!runner["host"].as_str().unwrap().is_empty());
    assert_eq!(shown(&tickr, &other).await["jobs"], json!([]));

    // Runner and database run on the same host.
    eventually("the clock was compared", || async {
        let runner = tickr.get(&path(&tickr.app, "")).await.body;
        runner["clock_skew_ms"].as_i64().map(|ms| assert!(ms.abs() < 1_000, "{ms}"))
    })
    .await;
    let nobody = tickr.get("/v1/runners/nowhere%2F1-00000000").await;
    assert_eq!((nobody.status, nobody.code()), (404, "not_found"));

    for id in ids {
        tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    }
    tickr.until_idle().await;
    assert_eq!(shown(&tickr, &tickr.app).await["jobs"], json!([]));
    let other_id = other.runner().to_string();
    other.stop(Default::default()).await;
    let stopped = listed(&tickr, &other_id).await;
    assert_eq!((&stopped["state"], &stopped["jobs"]), (&json!("stopped"), &json!([])));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_long_backlog_what_runs_shows_with_the_next_heartbeat_and_never_more_than_two_hundred() {
    let tickr = TestApp::start_with(
        |config| {
            config.workers = 210;
            config.lease = std::time::Duration::from_secs(3);
        },
        Registry::new(),
    )
    .await;
    // More due jobs of a queue that no runner serves come first than the runner looks at.
    tickr.enqueue_many((0..2_500).map(|_| json!({"kind": "noop", "queue": "nowhere"}))).await;
    tickr.sql("UPDATE owed SET execute_at = execute_at - INTERVAL 1 HOUR").await;
    let first = tickr.enqueue_kind("sleep", json!({"ms": 120_000})).await;
    tickr.until(first, State::Executing).await;
    eventually("it shows", || async {
        let runner = tickr.get(&path(&tickr.app, "")).await.body;
        (jobs(&runner) == [first]).then(|| assert_eq!(runner["more"], false))
    })
    .await;
    tickr.enqueue_many((0..205).map(|_| json!({"kind": "sleep", "payload": {"ms": 120_000}}))).await;
    eventually("all of them run", || async {
        let runner = shown(&tickr, &tickr.app).await;
        (runner["busy_workers"] == 206).then_some(())
    })
    .await;
    let runner = shown(&tickr, &tickr.app).await;
    assert_eq!((jobs(&runner).len(), &runner["more"]), (200, &json!(true)));
    assert_eq!(jobs(&runner)[0], first);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_runner_starts_nothing_finishes_what_it_runs_and_stays_ready() {
    let tickr = TestApp::start().await;
    let mut apps = vec![tickr.another().await];
    // Another runner has no Redis and reads from the store.
    let without = |config: &mut tickr::config::Config| {
        config.redis_url = Some(ServerUrl::redis("redis://127.0.0.1:1").unwrap());
    };
    apps.push(tickr.another_with(without, Registry::new()).await);
    let long = tickr.enqueue_kind("sleep", json!({"ms": 3_000})).await;
    let runs = tickr.until(long, State::Executing).await;
    let its_runner = runs["attempts"][0]["runner"].as_str().unwrap().to_owned();

    for app in [&tickr.app, &apps[0], &apps[1]] {
        let view = drain(&tickr, app, "kernel update").await.body;
        assert_eq!((&view["draining"]["by"], &view["draining"]["reason"]), (&json!("anyone"), &json!("kernel update")));
    }
    for app in [&tickr.app, &apps[0], &apps[1]] {
        heard(app, true).await;
    }
    let ids = tickr.enqueue_many((0..30).map(|_| json!({"kind": "noop"}))).await;
    // A running job continues to its end, on its runner.
    let done = tickr.until(long, State::Completed).await;
    assert_eq!(done["attempts"][0]["runner"], its_runner.as_str());
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE state = 'waiting'").await, 30);
    let ready = tickr.get("/readyz").await;
    assert_eq!((ready.status, &ready.body["takes_jobs"]), (200, &json!(false)), "{:#}", ready.body);
    // A busy machine may make all runners silent for a moment.
    let why = eventually("the reason is that the runners are drained", || async {
        let why = tickr.get(&format!("/v1/jobs/{}/explain", ids[0])).await.body;
        (why["reasons"][0]["code"] == "runners_draining").then_some(why)
    })
    .await;
    assert!(why["summary"].as_str().unwrap().contains("kernel update"), "{why:#}");
    assert_eq!(tickr.get("/v1/queues/default").await.body["runners"], 0);
    // None of this is a fault.
    tickr.assert_sound().await;

    // One of the runners takes all jobs.
    let resumed = tickr.post(&path(&apps[0], "/resume"), json!({})).await;
    assert_eq!((resumed.status, &resumed.body["draining"]), (200, &Value::Null), "{:#}", resumed.body);
    for id in ids {
        let job = tickr.until(id, State::Completed).await;
        assert_eq!(job["attempts"][0]["runner"], apps[0].runner().as_str());
    }
    // A repeated request changes nothing, and is not recorded in the audit log.
    drain(&tickr, &tickr.app, "kernel update").await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM audit WHERE action = 'runner.drain'").await, 3);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM audit WHERE action = 'runner.resume'").await, 1);

    let gone = apps.remove(0);
    let its_path = path(&gone, "/drain");
    gone.stop(Default::default()).await;
    let refused = tickr.post(&its_path, json!({})).await;
    assert_eq!((refused.status, refused.code()), (409, "runner_stopped"));
    let nobody = tickr.post("/v1/runners/nowhere%2F1-00000000/drain", json!({})).await;
    assert_eq!((nobody.status, nobody.code()), (404, "not_found"));
    let wrong = tickr.post(&path(&tickr.app, "/drain"), json!({"reason": "x".repeat(256)})).await;
    assert_eq!((wrong.status, wrong.pointers()), (422, vec!["/reason"]));
    for app in apps {
        app.stop(Default::default()).await;
    }
    tickr.stop().await;
}
