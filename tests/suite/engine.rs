//! The path of a job through the engine, on real servers.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::AsyncTypedCommands;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tickr::event::Event;
use tickr::handlers::{Context, Failure, Kind, Output, Registry};
use tickr::job::{Actor, State};
use tickr::store::{ActionOutcome, KindRetention, Purged, Retention};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::{DEADLINE, TestApp, draft, eventually, gated, http};

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
        // Only this test's Redis keys are deleted, because other tests share the server.
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
async fn no_job_begins_before_its_time() {
    let tickr = TestApp::start_with(|config| config.workers = 16, Registry::new()).await;
    tickr.enqueue_many((0..500).map(|n| json!({"kind": "noop", "delay_ms": n * 2}))).await;
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE started_at < execute_at").await, 0);
    tickr.assert_each_ran_once(500).await;
    tickr.stop().await;
}

/// Return the median of start − execute_at in milliseconds, by MySQL's own times.
async fn median_lateness_ms(tickr: &TestApp) -> f64 {
    let mut late: Vec<i64> = sqlx::query_scalar(
        "SELECT TIMESTAMPDIFF(MICROSECOND, execute_at, started_at) FROM attempts ORDER BY started_at DESC LIMIT 30",
    )
    .fetch_all(&mut tickr.mysql().await)
    .await
    .unwrap();
    late.sort_unstable();
    late[late.len() / 2] as f64 / 1_000.0
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_runner_starts_jobs_when_they_are_due() {
    for (what, delay) in [("delayed", Some(40)), ("immediate", None)] {
        let tickr = TestApp::start().await;
        // The first job of a process is a warm-up, because it opens connections and prepares statements.
        let first = tickr.enqueue_kind("noop", json!({})).await;
        tickr.until(first, State::Completed).await;
        for _ in 0..30 {
            let mut events = tickr.app.broker().events().listen();
            let id = tickr.enqueue_draft(draft(&json!({"kind": "noop", "delay_ms": delay}))).await;
            let settled = async {
                while !matches!(events.recv().await, Ok(Event::Settled { id: settled, .. }) if settled == id) {}
            };
            tokio::time::timeout(DEADLINE, settled).await.unwrap();
        }
        let median = median_lateness_ms(&tickr).await;
        println!("median lateness of 30 {what} jobs, one after another: {median:.2} ms");
        // The bound allows for a debug build beside other tests. `tickr bench` measures the real figure.
        assert!(median < 50.0, "{what}: {median} ms");
        tickr.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_worker_takes_the_urgent_first_and_equals_in_their_order() {
    let tickr = TestApp::start_with(|config| config.workers = 1, Registry::new()).await;
    let first = tickr.enqueue_kind("sleep", json!({"ms": 400})).await;
    tickr.until(first, State::Executing).await;
    let priorities = [9, 5, 0, 5, 9, 0, 3, 5];
    let jobs = priorities.map(|priority| json!({"kind": "noop", "priority": priority}));
    let ids = tickr.enqueue_many(jobs).await;
    tickr.until_idle().await;
    let ran: Vec<uuid::Uuid> = sqlx::query_scalar("SELECT job_id FROM attempts ORDER BY started_at")
        .fetch_all(&mut tickr.mysql().await)
        .await
        .unwrap();
    let wanted = [2, 5, 6, 1, 3, 7, 0, 4].map(|at| ids[at].uuid());
    assert_eq!(ran[1..], wanted);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_serves_only_its_queues() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["mail".into()], Registry::new()).await;
    let other = tickr.enqueue(json!({"kind": "noop"})).await;
    let ours = tickr.enqueue(json!({"kind": "noop", "queue": "mail"})).await;
    tickr.until(ours, State::Completed).await;
    assert_eq!(tickr.job(other).await["state"], "waiting");
    let second = tickr.another_with(|config| config.queues = vec!["default".into()], Registry::new()).await;
    let job = tickr.until(other, State::Completed).await;
    assert_eq!(job["attempts"][0]["runner"], second.runner().as_str());
    second.stop(CancellationToken::new()).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Later {}

impl Kind for Later {
    const NAME: &'static str = "later";
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_unknown_to_a_runner_waits_for_one_that_knows_it() {
    let tickr = TestApp::start_with(|config| config.workers = 1, Registry::new()).await;
    let id = tickr.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await;
    tickr.sql("UPDATE owed SET kind = 'later'; UPDATE jobs SET kind = 'later'").await;
    tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await;
    // There is one worker and one lane. So a job that ran after it shows that the runner has seen it and put it aside.
    for _ in 0..3 {
        let behind = tickr.enqueue_kind("noop", json!({})).await;
        tickr.until(behind, State::Completed).await;
    }
    let job = tickr.job(id).await;
    assert_eq!((&job["state"], &job["attempt"], &job["attempts"]), (&json!("waiting"), &json!(0), &json!([])));

    let mut own = Registry::new();
    own.register(|_: Later, _: Context| async { Ok(().into()) });
    let knows_it = tickr.another_with(|_| {}, own).await;
    let job = tickr.until(id, State::Completed).await;
    assert_eq!(job["attempts"].as_array().unwrap().len(), 1);
    assert_eq!(job["attempts"][0]["runner"], knows_it.runner().as_str());
    knows_it.stop(CancellationToken::new()).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Parent {
    fail_first: bool,
}

impl Kind for Parent {
    const NAME: &'static str = "parent";
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Child {
    number: u32,
}

impl Kind for Child {
    const NAME: &'static str = "child";
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Orphan {}

impl Kind for Orphan {
    const NAME: &'static str = "orphan";
}

#[tokio::test(flavor = "multi_thread")]
async fn follow_up_jobs_and_the_result_are_committed_with_the_success_or_not_at_all() {
    let mut own = Registry::new();
    own.register(|parent: Parent, ctx: Context| async move {
        if parent.fail_first && ctx.attempt() == 1 {
            // This follow-up job is made, and discarded together with the attempt.
            let _ = Output::default().then(&Child { number: 0 })?;
            return Err(Failure::retry("not yet"));
        }
        let family = Output::json(&json!({"children": 3}))?;
        family.then(&Child { number: 1 })?.then(&Child { number: 2 })?.then(&Child { number: 3 })
    });
    own.register(|child: Child, _: Context| async move { Output::json(&child.number) });
    // The follow-up job is of a kind that this binary does not have.
    own.register(|_: Orphan, _: Context| async { Output::default().then(&Later {}) });
    let tickr = TestApp::start_with(|_| {}, own).await;

    let retry = json!({"base_ms": 1, "factor": 1.0, "cap_ms": 1});
    let parent = json!({"kind": "parent", "payload": {"fail_first": true}, "retry": retry});
    let id = tickr.enqueue(parent).await;
    let job = tickr.until(id, State::Completed).await;
    assert_eq!(job["result"], json!({"children": 3}));
    tickr.until_idle().await;
    let mut results: Vec<String> =
        sqlx::query_scalar("SELECT a.result FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.kind = 'child'")
            .fetch_all(&mut tickr.mysql().await)
            .await
            .unwrap();
    results.sort();
    assert_eq!(results, ["1", "2", "3"]);

    let orphan = tickr.enqueue_kind("orphan", json!({})).await;
    let job = tickr.until(orphan, State::Failed).await;
    assert_eq!(tickr.verdicts(orphan).await, ["rejected"]);
    assert!(job["last_error"].as_str().unwrap().contains("follow-up later job"), "{job:#}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 5);
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_visible_while_a_job_runs_and_its_result_is_kept() {
    let tickr = TestApp::start().await;
    let id = tickr.enqueue_kind("sleep", json!({"ms": 3_000})).await;
    let job = eventually("the job tells its progress", || async {
        let job = tickr.job(id).await;
        (!job["progress"].is_null()).then_some(job)
    })
    .await;
    assert_eq!(job["state"], "executing");
    let percent = job["progress"]["percent"].as_f64().unwrap();
    assert!(percent > 0.0 && percent < 100.0, "{percent}");
    assert_eq!(job["progress"]["note"], "sleeping");
    let job = tickr.until(id, State::Completed).await;
    assert_eq!(job["result"], json!({"slept_ms": 3_000}));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_job_that_waited_never_starts() {
    let tickr = TestApp::start().await;
    let id = tickr.enqueue(json!({"kind": "noop", "delay_ms": 500})).await;
    let behind = tickr.enqueue(json!({"kind": "noop", "delay_ms": 600})).await;
    let answer = tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    assert_eq!((answer.status, &answer.body["state"]), (200, &json!("cancelled")));
    tickr.until(behind, State::Completed).await;
    assert_eq!(tickr.job(id).await["attempts"], json!([]));
    let answer = tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    assert_eq!((answer.status, &answer.body["current_state"]), (409, &json!("cancelled")));
    let answer = tickr.post(&format!("/v1/jobs/{behind}/cancel"), json!({})).await;
    assert_eq!((answer.status, &answer.body["current_state"]), (409, &json!("completed")));
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_is_stopped_by_a_cancel_through_any_runner() {
    let tickr = TestApp::start().await;
    let other = tickr.another_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
    let client = http();
    for base in [tickr.app.addr(), other.addr()] {
        let id = tickr.enqueue_kind("sleep", json!({"ms": 600_000})).await;
        tickr.until(id, State::Executing).await;
        let asked = Instant::now();
        let response = client.post(format!("http://{base}/v1/jobs/{id}/cancel")).send().await.unwrap();
        assert_eq!(response.status(), 202);
        let job = tickr.until(id, State::Cancelled).await;
        let took = asked.elapsed();
        println!("stopped {took:?} after the cancel");
        // The promise is two seconds. The rest is for a machine that runs other tests.
        assert!(took < Duration::from_secs(4), "{took:?}");
        assert_eq!(tickr.verdicts(id).await, ["cancelled"]);
        assert_eq!(job["attempt"], 1);
    }
    other.stop(CancellationToken::new()).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_races_the_start_keeps_what_it_answered() {
    let tickr = TestApp::start().await;
    let answers = futures_util::future::join_all((0..100).map(|_| async {
        let id = tickr.enqueue_kind("sleep", json!({"ms": 20})).await;
        (id, tickr.app.broker().cancel(id, &Actor::tickr()).await.unwrap())
    }))
    .await;
    tickr.until_idle().await;
    let mut tally = BTreeMap::new();
    for (id, answer) in answers {
        let verdicts = tickr.verdicts(id).await;
        let state = tickr.job(id).await["state"].clone();
        *tally.entry(format!("{answer:?}")).or_insert(0) += 1;
        match answer {
            ActionOutcome::Done(State::Cancelled) => assert_eq!((verdicts.len(), state), (0, json!("cancelled"))),
            ActionOutcome::StopRequested => assert!(state == "cancelled" || state == "completed", "{state}"),
            ActionOutcome::Refused(State::Completed) => assert_eq!(state, "completed"),
            unexpected => panic!("{unexpected:?}"),
        }
    }
    println!("{tally:?}");
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_now_makes_a_far_job_due_and_is_refused_for_one_that_ended() {
    let tickr = TestApp::start().await;
    let answer = tickr.post("/v1/jobs", json!({"kind": "noop", "delay_ms": 86_400_000})).await;
    assert_eq!(answer.status, 201);
    let location = answer.headers["location"].to_str().unwrap();
    let id = location.strip_prefix("/v1/jobs/").unwrap().parse().unwrap();
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await.status, 200);
    tickr.until(id, State::Completed).await;
    let answer = tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await;
    assert_eq!((answer.status, &answer.body["current_state"]), (409, &json!("completed")));
    tickr.assert_sound().await;
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
    let purged = |jobs| Purged { jobs, next: None, released: Vec::new() };
    let keep_all = &Retention::all(day);
    assert_eq!(store.purge_page(None, keep_all).await.unwrap(), purged(0));
    let keep_failed = &Retention { completed: moment, ..Retention::all(day) };
    assert_eq!(store.purge_page(None, keep_failed).await.unwrap(), purged(1));
    assert_eq!(tickr.get(&format!("/v1/jobs/{done}")).await.status, 404);
    // A dead letter that an operator retried is young again, whatever its ledger says.
    let answer = tickr.post(&format!("/v1/jobs/{failed}/retry"), json!({})).await;
    assert_eq!(answer.status, 200, "{:#}", answer.body);
    tickr.until(failed, State::Failed).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    // The retention of a kind overrides the general one.
    let kind = KindRetention { failed: Some(moment), ..KindRetention::default() };
    let kinds = std::sync::Arc::new([("noop".parse().unwrap(), kind)].into());
    let keep_other = &Retention { kinds, ..Retention::all(day) };
    assert_eq!(store.purge_page(None, keep_other).await.unwrap(), purged(0));
    let kinds = std::sync::Arc::new([("fail".parse().unwrap(), kind)].into());
    let keep_none = &Retention { kinds, ..Retention::all(day) };
    assert_eq!(store.purge_page(None, keep_none).await.unwrap(), purged(1));
    assert_eq!(tickr.job(waits).await["state"], "waiting");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_runner_leaves_what_it_cannot_start_to_another() {
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|config| config.workers = 2, gated(&open)).await;
    tickr.enqueue_many((0..8).map(|_| json!({"kind": "gate"}))).await;
    let executing = "SELECT COUNT(*) FROM owed WHERE state = 'executing'";
    tickr.until_count(executing, 2).await;
    // Any other job that the first runner had taken would wait for its workers, which are busy until all jobs run.
    let other = tickr.another_with(|config| config.workers = 6, gated(&open)).await;
    tickr.until_count(executing, 8).await;
    let shares = "SELECT COUNT(*) FROM (SELECT runner FROM owed GROUP BY runner HAVING COUNT(*) IN (2, 6)) AS shares";
    assert_eq!(tickr.count(shares).await, 2);
    open.cancel();
    tickr.until_idle().await;
    tickr.assert_each_ran_once(8).await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

/// Returns a long text as its result.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Talk {
    word: String,
}

impl Kind for Talk {
    const NAME: &'static str = "talk";
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_whose_result_mysql_refuses_is_not_lost_and_not_repeated() {
    let mut kinds = Registry::new();
    kinds.register(|talk: Talk, _: Context| async move { Output::json(&json!({"said": talk.word})) });
    let tickr = TestApp::start_with(|config| config.workers = 8, kinds).await;
    // A server that is not set up for such results refuses them in the same way.
    tickr.sql("ALTER TABLE attempts ADD CONSTRAINT no_long_word CHECK (result IS NULL OR LENGTH(result) < 40)").await;
    let talk = |word: &str| json!({"kind": "talk", "payload": {"word": word}});
    let ids =
        tickr.enqueue_many((0..10).map(|n| talk(if n == 3 { "much longer than the others say" } else { "yes" }))).await;
    for (n, id) in ids.iter().enumerate() {
        let job = tickr.until(*id, if n == 3 { State::Failed } else { State::Completed }).await;
        assert_eq!(job["attempts"].as_array().unwrap().len(), 1, "{job:#}");
        if n == 3 {
            let said = job["last_error"].as_str().unwrap();
            assert!(said.contains("ended as succeeded") && said.contains("refuses to store"), "{said}");
            assert_eq!(job["attempts"][0]["verdict"], "rejected");
        }
    }
    tickr.stop().await;
}
