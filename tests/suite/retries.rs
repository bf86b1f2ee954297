//! What happens after an attempt that does not succeed.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tickr::config::KindConfig;
use tickr::handlers::{Context, Kind, Registry};
use tickr::job::{JobId, State};
use tickr::store::MAX_SPARED;

use crate::support::{SHORT_LEASE, TestApp, eventually, short_lease};

/// Return the milliseconds between the end of the newest attempt and the next execution, as MySQL has them.
async fn delay_ms(tickr: &TestApp, id: JobId) -> i64 {
    sqlx::query_scalar(
        "SELECT TIMESTAMPDIFF(MICROSECOND, a.finished_at, o.execute_at) DIV 1000 FROM owed o \
         JOIN attempts a ON a.job_id = o.id AND a.number = o.attempt WHERE o.id = ?",
    )
    .bind(id.uuid())
    .fetch_one(&mut tickr.mysql().await)
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_policy_doubles_from_a_second_and_its_times_stand_in_mysql() {
    let tickr = TestApp::start().await;
    let id = tickr.enqueue_kind("fail", json!({})).await;
    for (attempt, middle) in [(1, 1_000), (2, 2_000), (3, 4_000)] {
        let job = tickr.until_attempts(id, attempt).await;
        assert_eq!(job["state"], "retrying");
        let delay = delay_ms(&tickr, id).await;
        assert!((middle * 9 / 10 - 1..=middle * 11 / 10 + 1).contains(&delay), "{delay} ms after attempt {attempt}");
        // The test has read the delay and does not wait for it.
        assert_eq!(tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await.status, 200);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_overrides_the_policy_and_a_job_overrides_its_kind() {
    let quick = KindConfig {
        max_attempts: Some(2),
        retry_base: Some(Duration::from_millis(40)),
        retry_cap: Some(Duration::from_millis(40)),
        ..KindConfig::default()
    };
    let tickr = TestApp::start_with(|config| config.kinds.extend([("fail".into(), quick)]), Registry::new()).await;
    let as_its_kind = tickr.enqueue_kind("fail", json!({})).await;
    let own = json!({"base_ms": 600_000, "factor": 1.0, "cap_ms": 600_000, "jitter": 0.0});
    let as_it_asks = tickr.enqueue(json!({"kind": "fail", "retry": own, "max_attempts": 7})).await;
    let job = tickr.until(as_its_kind, State::Failed).await;
    assert_eq!((&job["max_attempts"], job["attempts"].as_array().unwrap().len()), (&json!(2), 2));
    let job = tickr.until(as_it_asks, State::Retrying).await;
    assert_eq!(job["max_attempts"], 7);
    assert!((599_999..=600_001).contains(&delay_ms(&tickr, as_it_asks).await));
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_delays_is_kept_to_the_millisecond_and_says_how_many_attempts_there_are() {
    let tickr = TestApp::start().await;
    let table = json!({"delays_ms": [3_000, 700_000, 20_000]});
    let id = tickr.enqueue(json!({"kind": "fail", "retry": table})).await;
    let job = tickr.job(id).await;
    assert_eq!(
        (&job["max_attempts"], &job["retry"]),
        (&json!(4), &json!({"delays_ms": [3_000, 700_000, 20_000], "jitter": 0.0}))
    );
    for (attempt, expected) in [(1, 3_000), (2, 700_000), (3, 20_000)] {
        tickr.until_attempts(id, attempt).await;
        let delay = delay_ms(&tickr, id).await;
        assert!((expected..=expected + 1).contains(&delay), "{delay} ms after attempt {attempt}");
        assert_eq!(tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await.status, 200);
    }
    tickr.until(id, State::Failed).await;
    // With more attempts than delays, the last delay repeats.
    let longer = tickr.enqueue(json!({"kind": "fail", "retry": {"delays_ms": [30_000]}, "max_attempts": 3})).await;
    for attempt in 1..=2 {
        tickr.until_attempts(longer, attempt).await;
        assert!((30_000..=30_001).contains(&delay_ms(&tickr, longer).await));
        assert_eq!(tickr.post(&format!("/v1/jobs/{longer}/run-now"), json!({})).await.status, 200);
    }
    tickr.until(longer, State::Failed).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_job_leaves_out_of_its_backoff_is_that_of_its_kind() {
    let own = KindConfig {
        retry_base: Some(Duration::from_secs(7)),
        retry_cap: Some(Duration::from_secs(90_000)),
        retry_factor: Some(3.0),
        ..KindConfig::default()
    };
    let tickr = TestApp::start_with(|config| config.kinds.extend([("fail".into(), own)]), Registry::new()).await;
    let id = tickr.enqueue(json!({"kind": "fail", "retry": {"base_ms": 10_000, "jitter": 0.0}})).await;
    let expected = json!({"base_ms": 10_000, "factor": 3.0, "cap_ms": 90_000_000, "jitter": 0.0});
    assert_eq!(tickr.job(id).await["retry"], expected);
    for (attempt, expected) in [(1, 10_000), (2, 30_000), (3, 90_000)] {
        tickr.until_attempts(id, attempt).await;
        assert!((expected..=expected + 1).contains(&delay_ms(&tickr, id).await), "after attempt {attempt}");
        assert_eq!(tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await.status, 200);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permanent_failure_and_a_job_of_one_attempt_fail_at_once() {
    let tickr = TestApp::start().await;
    let permanent = tickr.enqueue_kind("fail", json!({"permanent": true})).await;
    let single = tickr.enqueue(json!({"kind": "fail", "max_attempts": 1})).await;
    let job = tickr.until(permanent, State::Failed).await;
    assert_eq!((&job["attempt"], &job["max_attempts"]), (&json!(1), &json!(5)));
    assert_eq!(tickr.verdicts(permanent).await, ["rejected"]);
    tickr.until(single, State::Failed).await;
    assert_eq!(tickr.verdicts(single).await, ["failed"]);
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snooze_burns_no_attempt() {
    let tickr = TestApp::start().await;
    let id = tickr.enqueue_kind("fail", json!({"snooze_ms": 600_000})).await;
    let job = tickr.until_attempts(id, 1).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("waiting"), &json!(0)));
    assert_eq!(tickr.verdicts(id).await, ["snoozed"]);
    assert!((599_999..=600_002).contains(&delay_ms(&tickr, id).await));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snoozes_are_bounded_and_then_count_as_failures() {
    let tickr = TestApp::start().await;
    let job = json!({"kind": "fail", "payload": {"snooze_ms": 0}, "max_attempts": 2});
    let id = tickr.enqueue(job).await;
    let job = tickr.until(id, State::Failed).await;
    let verdicts = tickr.verdicts(id).await;
    assert_eq!(verdicts.len(), MAX_SPARED as usize + 2);
    assert!(verdicts[..MAX_SPARED as usize].iter().all(|verdict| verdict == "snoozed"));
    assert_eq!(verdicts[MAX_SPARED as usize..], ["failed", "failed"]);
    assert_eq!(job["attempt"], 2);
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_by_an_operator_gives_all_snoozes_back() {
    let tickr = TestApp::start().await;
    let job = json!({"kind": "fail", "payload": {"snooze_ms": 0}, "max_attempts": 1});
    let id = tickr.enqueue(job).await;
    let mut expected = vec!["snoozed"; MAX_SPARED as usize];
    expected.push("failed");
    for life in 1..=2 {
        tickr.until_attempts(id, expected.len() * life).await;
        tickr.until(id, State::Failed).await;
        assert_eq!(tickr.verdicts(id).await, expected.repeat(life));
        if life == 1 {
            assert_eq!(tickr.post(&format!("/v1/jobs/{id}/retry"), json!({})).await.status, 200);
        }
    }
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_panics_leave_every_worker_alive() {
    let tickr = TestApp::start().await;
    let panics = (0..100).map(|_| json!({"kind": "panic", "max_attempts": 1}));
    let ids = tickr.enqueue_many(panics).await;
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'panicked'").await, 100);
    assert_eq!(tickr.job(ids[0]).await["last_error"], "panicked: panicked on request");
    // As many jobs run at the same time as there are workers.
    let sleepers = tickr.enqueue_many((0..4).map(|_| json!({"kind": "sleep", "payload": {"ms": 60_000}}))).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 4).await;
    for id in sleepers {
        tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    }
    tickr.until_idle().await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_over_its_time_limit_is_stopped_and_one_that_does_not_listen_is_dropped() {
    let tickr = TestApp::start().await;
    let job = |stubborn| json!({"kind": "sleep", "payload": {"ms": 600_000, "stubborn": stubborn}, "timeout_ms": 100, "max_attempts": 1});
    let (polite, stubborn) = (tickr.enqueue(job(false)).await, tickr.enqueue(job(true)).await);
    for (id, most_ms) in [(polite, 1_900), (stubborn, 10_000)] {
        let job = tickr.until(id, State::Failed).await;
        assert_eq!(job["last_error"], "timed out after 100 ms");
        assert_eq!(tickr.verdicts(id).await, ["timed_out"]);
        let took_ms: i64 = sqlx::query_scalar(
            "SELECT TIMESTAMPDIFF(MICROSECOND, started_at, finished_at) DIV 1000 FROM attempts WHERE job_id = ?",
        )
        .bind(id.uuid())
        .fetch_one(&mut tickr.mysql().await)
        .await
        .unwrap();
        assert!((100..most_ms).contains(&took_ms), "{took_ms} ms");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_handler_that_blocks_its_thread_holds_up_nobody_else_and_loses_no_lease() {
    let tickr = TestApp::start_with(short_lease, Registry::new()).await;
    let blocking = json!({"kind": "spin", "payload": {"ms": 4_000}, "timeout_ms": 100, "max_attempts": 1});
    let id = tickr.enqueue(blocking).await;
    tickr.until(id, State::Executing).await;
    let beside = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(beside, State::Completed).await;
    let job = tickr.until(id, State::Failed).await;
    assert_eq!(tickr.verdicts(id).await, ["timed_out"], "{job:#}");
    // The attempt ends only when the handler has really ended.
    let ran_ms =
        "SELECT TIMESTAMPDIFF(MICROSECOND, started_at, finished_at) DIV 1000 FROM attempts WHERE verdict = 'timed_out'";
    assert!((3_900..8_000).contains(&tickr.count(ran_ms).await));
    // This is longer than a lease. The heartbeat has a thread of its own.
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'lost'").await, 0);
    tickr.stop().await;
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Stuck {
    ms: u64,
}

impl Kind for Stuck {
    const NAME: &'static str = "stuck";
}

/// Start and end of the executions, as the handlers saw them.
type Log = Arc<Mutex<Vec<(Instant, Instant)>>>;

/// Return a kind that blocks a thread and records its times.
fn stuck() -> (Registry, Log) {
    let (mut own, log) = (Registry::new(), Log::default());
    let writes = Arc::clone(&log);
    own.register(move |job: Stuck, _: Context| {
        let log = Arc::clone(&writes);
        async move {
            let began = Instant::now();
            std::thread::sleep(Duration::from_millis(job.ms));
            log.lock().unwrap().push((began, Instant::now()));
            Ok(().into())
        }
    });
    (own, log)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn attempts_of_a_handler_that_blocks_beyond_its_time_limit_never_overlap() {
    let (own, log) = stuck();
    let tickr = TestApp::start_with(|_| {}, own).await;
    let retry = json!({"base_ms": 1, "factor": 1.0, "cap_ms": 1});
    // Longer than the grace for handlers that are told to stop, and shorter than that grace plus a lease.
    let job = json!({"kind": "stuck", "payload": {"ms": 3_200}, "timeout_ms": 100, "max_attempts": 3, "retry": retry});
    let id = tickr.enqueue(job).await;
    tickr.until(id, State::Failed).await;
    assert_eq!(tickr.verdicts(id).await, ["timed_out"; 3]);
    let log = log.lock().unwrap().clone();
    assert_eq!(log.len(), 3);
    for pair in log.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "the next began {:?} before the end", pair[0].1 - pair[1].0);
    }
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_that_blocks_for_ever_gives_its_slot_back_after_a_lease() {
    let (own, _) = stuck();
    let tickr = TestApp::start_with(|config| (config.workers, config.lease) = (1, SHORT_LEASE), own).await;
    let job = json!({"kind": "stuck", "payload": {"ms": 9_000}, "timeout_ms": 100, "max_attempts": 1});
    let id = tickr.enqueue(job).await;
    tickr.until(id, State::Executing).await;
    let behind = tickr.enqueue_kind("noop", json!({})).await;
    let began = Instant::now();
    tickr.until(behind, State::Completed).await;
    // The time limit, the grace of two seconds and the lease of two, less the moments before the test saw the job
    // executing.
    assert!((3..8).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    // Its verdict is written at about the same time.
    tickr.until(id, State::Failed).await;
    assert_eq!(tickr.verdicts(id).await, ["timed_out"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_no_longer_decodes_is_rejected() {
    let tickr = TestApp::start().await;
    let id = tickr.enqueue(json!({"kind": "sleep", "payload": {"ms": 1}, "delay_ms": 3_600_000})).await;
    tickr.sql("UPDATE jobs SET payload = '{\"ms\": \"long\"}'").await;
    tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await;
    let job = tickr.until(id, State::Failed).await;
    assert_eq!(tickr.verdicts(id).await, ["rejected"]);
    assert!(job["last_error"].as_str().unwrap().starts_with("read the payload as sleep: invalid type"), "{job:#}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_by_an_operator_gives_all_attempts_back() {
    let tickr = TestApp::start().await;
    let retry = json!({"base_ms": 1, "factor": 1.0, "cap_ms": 1});
    let id = tickr.enqueue(json!({"kind": "fail", "payload": {"times": 2}, "max_attempts": 2, "retry": retry})).await;
    let job = tickr.until(id, State::Failed).await;
    assert_eq!(job["attempt"], 2);
    // It fails twice before the retry and twice after it.
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/retry"), json!({})).await.status, 200);
    tickr.until_attempts(id, 4).await;
    let job = tickr.until(id, State::Failed).await;
    assert_eq!(job["attempt"], 2);
    let numbers: Vec<_> = job["attempts"].as_array().unwrap().iter().map(|attempt| attempt["number"].clone()).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);

    let cancelled = tickr.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{cancelled}/cancel"), json!({})).await.status, 200);
    assert_eq!(tickr.post(&format!("/v1/jobs/{cancelled}/retry"), json!({})).await.status, 200);
    let job = tickr.until(cancelled, State::Completed).await;
    assert_eq!(job["attempt"], 1);
    // A completed job stays completed.
    let answer = tickr.post(&format!("/v1/jobs/{cancelled}/retry"), json!({})).await;
    assert_eq!((answer.status, &answer.body["current_state"]), (409, &json!("completed")));
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_may_be_interrupted_however_often_it_snoozed_before_an_operator_retried_it() {
    let tickr = TestApp::start_with(|config| config.shutdown_grace = Duration::ZERO, Registry::new()).await;
    let id = tickr.enqueue(json!({"kind": "fail", "payload": {"snooze_ms": 0}, "max_attempts": 1})).await;
    tickr.until(id, State::Failed).await;
    tickr.sql("UPDATE jobs SET kind = 'sleep', payload = '{\"ms\": 600000}'").await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/retry"), json!({})).await.status, 200);
    tickr.until(id, State::Executing).await;
    let tickr = tickr.restart().await;
    let verdicts = eventually("the interrupted attempt is in the ledger", || async {
        let verdicts = tickr.verdicts(id).await;
        (verdicts.len() > MAX_SPARED as usize + 1).then_some(verdicts)
    })
    .await;
    assert_eq!(verdicts[MAX_SPARED as usize + 1], "interrupted");
    tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    tickr.until(id, State::Cancelled).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_job_that_cannot_be_read_fails_alone() {
    let tickr = TestApp::start().await;
    let jobs: Vec<_> = (0..60).map(|_| json!({"kind": "noop", "delay_ms": 3_600_000})).collect();
    let answer = tickr.post("/v1/jobs/batch", json!({"jobs": jobs})).await;
    let ids: Vec<JobId> = answer.body["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["id"].as_str().unwrap().parse().unwrap())
        .collect();
    let bad = ids[30];
    sqlx::query("UPDATE jobs SET options = '{broken' WHERE id = ?")
        .bind(bad.uuid())
        .execute(&mut tickr.mysql().await)
        .await
        .unwrap();
    // All jobs are due at once, so that they share their claims.
    tickr.sql("UPDATE owed SET execute_at = UTC_TIMESTAMP(3)").await;
    tickr.until_idle().await;
    let ends: Vec<(String, i64)> = sqlx::query_as("SELECT verdict, COUNT(*) FROM attempts GROUP BY verdict ORDER BY 1")
        .fetch_all(&mut tickr.mysql().await)
        .await
        .unwrap();
    assert_eq!(ends, [("succeeded".to_owned(), 59), ("rejected".to_owned(), 1)]);
    tickr.stop().await;
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Chatty {}

impl Kind for Chatty {
    const NAME: &'static str = "chatty";
}

#[tokio::test(flavor = "multi_thread")]
async fn no_progress_note_costs_a_job_its_lease() {
    let mut own = Registry::new();
    own.register(|_: Chatty, ctx: Context| async move {
        // The handler runs for three leases, and each note would not fit its column once it is written as JSON.
        for step in 0..60 {
            ctx.progress(f64::from(step + 1), "\"".repeat(200));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(().into())
    });
    let tickr = TestApp::start_with(|config| config.lease = Duration::from_secs(1), own).await;
    let id = tickr.enqueue_kind("chatty", json!({})).await;
    // The note is too long and dropped, the percentage is kept.
    eventually("the progress is seen", || async {
        tickr.job(id).await["progress"]["percent"].as_f64().filter(|percent| *percent > 0.0)
    })
    .await;
    let job = tickr.until(id, State::Completed).await;
    assert_eq!(job["attempts"].as_array().unwrap().len(), 1, "{job:#}");
    tickr.stop().await;
}
