//! Jobs that kill their runners: they end, and those that ran beside them hardly notice.

use std::time::Duration;

use serde_json::{Value, json};
use tickr::config::Config;
use tickr::handlers::Registry;
use tickr::job::{Actor, JobId, State};
use tickr::store::MOST_LOSSES;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::{Runner, TestApp, eventually};

/// A tickr that takes jobs, reaps and runs none of them.
async fn bystander() -> TestApp {
    TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await
}

fn job(kind: &str, payload: &Value) -> Value {
    // Those that were lost together come back together.
    json!({"kind": kind, "payload": payload, "retry": {"base_ms": 1, "factor": 1.0, "cap_ms": 1, "jitter": 0.0}})
}

/// A job whose last runner died under it, as far as the store knows.
async fn suspect(tickr: &TestApp, payload: &Value) -> JobId {
    let job = json!({"kind": "sleep", "payload": payload, "delay_ms": 3_600_000});
    let id = tickr.enqueue(job).await;
    let sql = "UPDATE owed SET losses = 1, execute_at = UTC_TIMESTAMP(3) WHERE id = ?";
    sqlx::query(sql).bind(id.uuid()).execute(&mut tickr.mysql().await).await.unwrap();
    tickr.app.broker().run_now(id, &Actor::tickr()).await.unwrap();
    id
}

async fn lost(tickr: &TestApp) -> i64 {
    tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'lost'").await
}

const LOST_AGAIN: &str =
    "SELECT COUNT(*) FROM (SELECT job_id FROM attempts WHERE verdict = 'lost' GROUP BY job_id HAVING COUNT(*) > 1) a";

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_aborts_its_runners_fails_and_its_neighbours_lose_one_attempt_at_most() {
    let tickr = bystander().await;
    // Longer than a crash takes to come, so that the first one takes neighbours along.
    let good = tickr.enqueue_many((0..10).map(|_| job("sleep", &json!({"ms": 400})))).await;
    let culprit = tickr.enqueue(job("abort", &json!({"after_ms": 50}))).await;
    let rest = tickr.enqueue_many((0..40).map(|_| job("sleep", &json!({"ms": 50})))).await;
    let began = Instant::now();
    let mut deaths = 0;
    let mut runner = Runner::start(&tickr, &[("TICKR_WORKERS", "16")]);
    while tickr.job(culprit).await["state"] != "failed" {
        if runner.has_ended() {
            deaths += 1;
            runner = Runner::start(&tickr, &[("TICKR_WORKERS", "16")]);
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{deaths} deaths and no end:\n{}", runner.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tickr.until_idle().await;
    println!("{deaths} deaths, {} attempts lost, all over after {:?}", lost(&tickr).await, began.elapsed());
    assert_eq!(deaths, MOST_LOSSES);
    assert_eq!(tickr.verdicts(culprit).await, vec!["lost"; MOST_LOSSES as usize]);
    assert!(lost(&tickr).await > i64::from(MOST_LOSSES), "nobody ran beside it");
    for id in good.into_iter().chain(rest) {
        let verdicts = tickr.verdicts(id).await;
        assert!(verdicts == ["succeeded"] || verdicts == ["lost", "succeeded"], "{verdicts:?}");
    }
    tickr.assert_sound().await;
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_aborts_late_hits_only_neighbours_that_have_lost_nothing_yet() {
    let tickr = bystander().await;
    let mut late = job("abort", &json!({"after_ms": 7_000}));
    late["max_attempts"] = json!(2);
    let culprit = tickr.enqueue(late).await;
    let mut good = Vec::new();
    let began = Instant::now();
    let mut runner = Runner::start(&tickr, &[("TICKR_WORKERS", "4")]);
    let mut deaths = 0;
    while tickr.job(culprit).await["state"] != "failed" {
        // There is always company, if it is let in.
        if tickr.count("SELECT COUNT(*) FROM owed WHERE kind = 'sleep' AND state <> 'executing'").await < 4 {
            good.extend(tickr.enqueue_many((0..4).map(|_| job("sleep", &json!({"ms": 300})))).await);
        }
        if runner.has_ended() {
            deaths += 1;
            runner = Runner::start(&tickr, &[("TICKR_WORKERS", "4")]);
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{deaths} deaths and no end:\n{}", runner.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tickr.until_idle().await;
    println!("{} good jobs, {} attempts lost, {:?}", good.len(), lost(&tickr).await, began.elapsed());
    assert_eq!(tickr.verdicts(culprit).await, ["lost", "lost"]);
    // Both times: the second crash came after its probation, with company.
    assert!(lost(&tickr).await > 3, "nobody ran beside it");
    assert_eq!(tickr.count(LOST_AGAIN).await, 1, "more than the culprit lost two attempts");
    for id in good {
        assert_eq!(tickr.job(id).await["state"], "completed");
    }
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn suspects_run_alone_one_after_the_other_and_others_run_again_after_them() {
    let tickr = TestApp::start_with(|config| config.workers = 8, Registry::new()).await;
    let mut suspects = Vec::new();
    for _ in 0..4 {
        suspects.push(suspect(&tickr, &json!({"ms": 200})).await);
    }
    tickr.enqueue_many((0..30).map(|_| json!({"kind": "sleep", "payload": {"ms": 100}}))).await;
    tickr.until_idle().await;
    for id in suspects {
        let beside: i64 = sqlx::query_scalar(
            "SELECT COUNT(*) FROM attempts s JOIN attempts a ON a.job_id <> s.job_id AND a.started_at < s.finished_at \
             AND s.started_at < a.finished_at WHERE s.job_id = ?",
        )
        .bind(id.uuid())
        .fetch_one(&mut tickr.mysql().await)
        .await
        .unwrap();
        assert_eq!(beside, 0, "{id} had company");
    }
    tickr.assert_each_ran_once(34).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_gets_its_turn_beside_a_neighbour_that_does_not_end() {
    let tickr = TestApp::start_with(|config| config.workers = 2, Registry::new()).await;
    let neighbour = tickr.enqueue_kind("sleep", json!({"ms": 600_000})).await;
    tickr.until(neighbour, State::Executing).await;
    let began = Instant::now();
    let suspect = suspect(&tickr, &json!({"ms": 10})).await;
    // Others run while it is put off.
    let fresh = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(fresh, State::Completed).await;
    tickr.until(suspect, State::Completed).await;
    println!("a suspect waited {:?} for its turn", began.elapsed());
    assert!(began.elapsed() >= Duration::from_secs(4), "it did not wait");
    assert_eq!(tickr.job(neighbour).await["state"], "executing");
    tickr.post(&format!("/v1/jobs/{neighbour}/cancel"), json!({})).await;
    tickr.until(neighbour, State::Cancelled).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_gives_suspects_back_that_wait_for_their_turn() {
    let tickr = bystander().await;
    let busy = |config: &mut Config| {
        (config.workers, config.queues) = (2, vec!["default".into()]);
        config.shutdown_grace = Duration::ZERO;
    };
    let runner = tickr.another_with(busy, Registry::new()).await;
    let neighbour = tickr.enqueue_kind("sleep", json!({"ms": 600_000})).await;
    tickr.until(neighbour, State::Executing).await;
    let mut suspects = Vec::new();
    for _ in 0..20 {
        suspects.push(suspect(&tickr, &json!({"ms": 10})).await);
    }
    // Some are in the ward by the time its patience is being tried.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let began = Instant::now();
    runner.stop(CancellationToken::new()).await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE state = 'waiting'").await, 21);
    tickr.post(&format!("/v1/jobs/{neighbour}/cancel"), json!({})).await;
    let runner = tickr.another_with(busy, Registry::new()).await;
    for id in suspects {
        tickr.until(id, State::Completed).await;
        assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    }
    tickr.assert_sound().await;
    runner.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_a_suspect_waits_for_its_turn_without_spinning() {
    let tickr = TestApp::start_alone(|own| own.redis().kill9().unwrap(), |config| config.workers = 2).await;
    let neighbour = tickr.enqueue_kind("sleep", json!({"ms": 600_000})).await;
    tickr.until(neighbour, State::Executing).await;
    let began = Instant::now();
    let suspect = suspect(&tickr, &json!({"ms": 10})).await;
    let mut mysql = tickr.mysql().await;
    let mut asked = async || -> u64 {
        let row: (String, String) =
            sqlx::query_as("SHOW GLOBAL STATUS LIKE 'Questions'").fetch_one(&mut mysql).await.unwrap();
        row.1.parse().unwrap()
    };
    let before = asked().await;
    // Through the pool, so without more questions than the runner's own.
    eventually("the suspect is done", || async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        (tickr.job(suspect).await["state"] == "completed").then_some(())
    })
    .await;
    let per_second = (asked().await - before) as f64 / began.elapsed().as_secs_f64();
    println!("done after {:?}, {per_second:.0} questions/s", began.elapsed());
    assert!(per_second < 200.0, "{per_second} questions/s");
    tickr.post(&format!("/v1/jobs/{neighbour}/cancel"), json!({})).await;
    tickr.until(neighbour, State::Cancelled).await;
    tickr.stop().await;
}
