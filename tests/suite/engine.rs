//! The path of a job through the engine, on real servers.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::AsyncTypedCommands;
use serde_json::json;
use tickr::event::Event;
use tickr::handlers::Registry;
use tickr::job::State;
use tickr::store::{Purged, Retention};

use crate::support::TestApp;

#[tokio::test(flavor = "multi_thread")]
async fn a_job_travels_from_http_to_done_and_leaves_its_attempt() {
    let tickr = TestApp::start().await;
    let id = tickr.enqueue_kind("noop", json!({})).await;
    let job = tickr.until(id, State::Completed).await;
    assert_eq!(job["attempt"], 1);
    assert_eq!(job["attempts"].as_array().unwrap().len(), 1);
    let attempt = &job["attempts"][0];
    assert_eq!((&attempt["number"], &attempt["verdict"]), (&json!(1), &json!("succeeded")));
    assert_eq!(attempt["runner"], tickr.app.runner().as_str());
    assert!(attempt["started_at"].as_str() >= job["execute_at"].as_str());
    assert!(attempt["finished_at"].as_str() >= attempt["started_at"].as_str());
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_job_is_retried_at_times_written_in_mysql_until_it_is_spent() {
    let tickr = TestApp::start().await;
    let retry = json!({"base_ms": 20, "factor": 1.0, "cap_ms": 20});
    let mends = tickr.enqueue(json!({"kind": "fail", "payload": {"times": 2}, "retry": retry})).await;
    let spent = tickr.enqueue(json!({"kind": "fail", "max_attempts": 3, "retry": retry})).await;
    let job = tickr.until(mends, State::Completed).await;
    let verdicts: Vec<&str> =
        job["attempts"].as_array().unwrap().iter().map(|a| a["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["failed", "failed", "succeeded"]);
    let job = tickr.until(spent, State::Failed).await;
    assert_eq!((&job["attempt"], &job["max_attempts"]), (&json!(3), &json!(3)));
    assert_eq!(job["last_error"], "failed on request, attempt 3");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flushing_redis_while_jobs_wait_loses_none_and_runs_each_once() {
    let tickr = TestApp::start_with(|config| config.workers = 32, Registry::new()).await;
    let jobs: Vec<_> = (0..1_000).map(|n| json!({"kind": "noop", "delay_ms": 300 + n % 700})).collect();
    let answer = tickr.post("/v1/jobs/batch", json!({"jobs": jobs})).await;
    assert_eq!(answer.status, 201);
    let mut redis = tickr.redis().await;
    for _ in 0..5 {
        // Only this test's keys: its neighbours share the server.
        let keys = [tickr.key("epoch"), tickr.key("waiting"), tickr.key("ready:default"), tickr.key("overflow")];
        tickr
            .event("a rebuild", async { redis.del(&keys[..]).await.map(drop).unwrap() }, |event| {
                matches!(event, Event::Rebuilt { .. }).then_some(())
            })
            .await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tickr.until_idle().await;
    let runs: BTreeMap<i64, i64> = sqlx::query_as(
        "SELECT n, CAST(COUNT(*) AS SIGNED) FROM (SELECT COUNT(*) AS n FROM attempts GROUP BY job_id) c GROUP BY n",
    )
    .fetch_all(&mut tickr.mysql().await)
    .await
    .unwrap()
    .into_iter()
    .collect();
    assert_eq!(runs, BTreeMap::from([(1, 1_000)]));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE started_at < execute_at").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_removes_ended_jobs_by_age_and_nothing_else() {
    let tickr = TestApp::start().await;
    let done = tickr.enqueue_kind("noop", json!({})).await;
    let failed = tickr.enqueue(json!({"kind": "fail", "payload": {"permanent": true}})).await;
    let waits = tickr.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await;
    tickr.until(done, State::Completed).await;
    tickr.until(failed, State::Failed).await;
    let store = tickr.app.broker().store();
    let (day, moment) = (Duration::from_secs(86_400), Duration::from_millis(1));
    // Ids are compared with the clock in milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let keep_all = Retention { completed: day, failed: day };
    assert_eq!(store.purge_page(None, keep_all).await.unwrap(), Purged { jobs: 0, next: None });
    let keep_failed = Retention { completed: moment, failed: day };
    assert_eq!(store.purge_page(None, keep_failed).await.unwrap(), Purged { jobs: 1, next: None });
    assert_eq!(tickr.get(&format!("/v1/jobs/{done}")).await.status, 404);
    // A dead letter that an operator brought back is not old any more, whatever its ledger says.
    let answer = tickr.post(&format!("/v1/jobs/{failed}/retry"), json!({})).await;
    assert_eq!(answer.status, 200, "{:#}", answer.body);
    tickr.until(failed, State::Failed).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let keep_none = Retention { completed: moment, failed: moment };
    assert_eq!(store.purge_page(None, keep_none).await.unwrap(), Purged { jobs: 1, next: None });
    assert_eq!(tickr.job(waits).await["state"], "waiting");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts").await, 0);
    tickr.stop().await;
}
