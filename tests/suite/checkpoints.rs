//! Checkpoints: what a handler saved is there when the next attempt begins, whatever ended the one before.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickr::config::{Config, ServerUrl};
use tickr::handlers::{Context, Failure, Kind, Outcome, Output, Registry};
use tickr::job::{AttemptToken, JobId, State};
use tickr::store::NewCheckpoint;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::support::{DEADLINE, Proxy, Runner, TestApp, bystander, eventually, gated, make_suspects};

/// A job whose first attempt saves a checkpoint and ends in this way.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Resumed {
    end: End,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum End {
    Retry,
    Reject,
    Snooze,
    Panic,
    TimeOut,
    Interrupt,
    TooLarge,
}

impl Kind for Resumed {
    const NAME: &'static str = "resumed";
}

async fn resumed(job: Resumed, ctx: Context) -> Outcome {
    if let Some(from) = ctx.checkpoint::<Value>()? {
        return Output::json(&from);
    }
    ctx.save_checkpoint("an earlier one")?;
    ctx.save_checkpoint(&json!({"row": 7, "note": "Grüße, \u{1f980}"}))?;
    match job.end {
        End::Retry => Err(Failure::retry("on purpose")),
        End::Reject => Err(Failure::reject("on purpose")),
        End::Snooze => Err(Failure::snooze(Duration::from_millis(1), "on purpose")),
        End::Panic => panic!("on purpose"),
        End::TimeOut | End::Interrupt => {
            ctx.checkpoint_saved().await?;
            ctx.stopped().await;
            Err(Failure::retry("told to stop"))
        }
        End::TooLarge => Ok(ctx.save_checkpoint(&"x".repeat(64 * 1024 - 1)).map(|()| Output::default())?),
    }
}

fn kinds() -> Registry {
    let mut kinds = Registry::new();
    kinds.register(resumed);
    kinds
}

fn job(end: End) -> Value {
    let retry = json!({"base_ms": 1, "factor": 1.0, "cap_ms": 1, "jitter": 0.0});
    json!({"kind": "resumed", "payload": {"end": end}, "timeout_ms": 500, "retry": retry})
}

/// The checkpoint of [`resumed`].
fn row_seven() -> Value {
    json!({"row": 7, "note": "Grüße, \u{1f980}"})
}

/// Take this many permits, which handlers give.
async fn taken(permits: &Semaphore, many: u32) {
    let taken = tokio::time::timeout(DEADLINE, permits.acquire_many(many)).await;
    taken.expect("a handler gives a permit in time").unwrap().forget();
}

async fn rows(tickr: &TestApp) -> i64 {
    tickr.count("SELECT COUNT(*) FROM checkpoints").await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_attempt_begins_with_the_newest_checkpoint_whatever_ended_the_one_before() {
    let tickr = TestApp::start_with(|_| {}, kinds()).await;
    for (end, verdict) in [
        (End::Retry, "failed"),
        (End::Snooze, "snoozed"),
        (End::Panic, "panicked"),
        (End::TimeOut, "timed_out"),
        (End::TooLarge, "failed"),
    ] {
        let id = tickr.enqueue(job(end)).await;
        let done = tickr.until(id, State::Completed).await;
        assert_eq!(done["result"], row_seven(), "{end:?}: {done:#}");
        assert_eq!(tickr.verdicts(id).await, [verdict, "succeeded"], "{end:?}");
        assert_eq!(done.get("checkpoint"), None, "a completed job keeps none: {done:#}");
        if matches!(end, End::TooLarge) {
            let error = done["attempts"][0]["error"].as_str().unwrap();
            assert_eq!(error, "the checkpoint has 65537 bytes, and 65536 are allowed");
        }
    }
    assert_eq!(rows(&tickr).await, 0);
    tickr.stop().await;
}

/// A job that saves checkpoints until it is told to stop.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Counting {}

impl Kind for Counting {
    const NAME: &'static str = "counting";
}

async fn counting(_: Counting, ctx: Context) -> Outcome {
    for count in 0.. {
        ctx.save_checkpoint(&count)?;
        tokio::select! {
            () = ctx.stopped() => break,
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
    }
    Ok(Output::default())
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_are_saved_again_after_mysql_failed_a_runner_that_takes_no_work() {
    let open = CancellationToken::new();
    let kinds = || {
        let mut kinds = gated(&open);
        kinds.register(counting);
        kinds
    };
    let behind = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], kinds()).await;
    let proxy = Proxy::start(behind.config.mysql_url().unwrap().expose()).await;
    let through = |config: &mut Config| {
        config.mysql_url = Some(ServerUrl::mysql(&proxy.url()).unwrap());
        (config.queues, config.lease) = (vec!["default".into()], Duration::from_secs(30));
    };
    let runner = behind.another_with(through, kinds()).await;
    let ids = behind.enqueue_many(["gate", "counting"].map(|kind| json!({"kind": kind, "payload": {}}))).await;
    for id in &ids {
        behind.until(*id, State::Executing).await;
    }
    let path = format!("/v1/runners/{}/drain", runner.runner().as_str().replace('/', "%2F"));
    assert_eq!(behind.post(&path, json!({})).await.status, 200);
    let mut settings = runner.operator_settings().listen();
    settings.wait_for(|settings| settings.drained).await.unwrap();
    proxy.refuse("COMMIT", 3100, usize::MAX);
    open.cancel();
    // A verdict is tried eight times within two seconds. Then the runner knows that MySQL fails.
    tokio::time::sleep(Duration::from_secs(4)).await;
    proxy.pass();
    behind.until(ids[0], State::Completed).await;
    // The drained runner asks MySQL for no work, and saves checkpoints all the same.
    let saved = async || behind.count("SELECT CAST(content AS SIGNED) FROM checkpoints").await;
    let before = saved().await;
    eventually("a newer checkpoint is saved", || async { (saved().await > before).then_some(()) }).await;
    runner.stop(CancellationToken::new()).await;
    behind.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_job_keeps_its_checkpoint_for_the_retry_of_an_operator_and_loses_it_when_it_is_deleted() {
    let tickr = TestApp::start_with(|_| {}, kinds()).await;
    let retried = tickr.enqueue(job(End::Reject)).await;
    let deleted = tickr.enqueue(job(End::Reject)).await;
    for id in [retried, deleted] {
        let failed = tickr.until(id, State::Failed).await;
        assert_eq!(failed["checkpoint"]["content"], row_seven(), "{failed:#}");
        assert!(failed["checkpoint"]["saved_at"].is_string(), "{failed:#}");
    }
    assert_eq!(rows(&tickr).await, 2);
    let listed = tickr.get("/v1/jobs?kind=resumed").await.body;
    assert_eq!(listed["jobs"][0].get("checkpoint"), None, "{listed:#}");

    assert_eq!(tickr.post(&format!("/v1/jobs/{retried}/retry"), json!({})).await.status, 200);
    assert_eq!(tickr.until(retried, State::Completed).await["result"], row_seven());
    let deletes = json!({"action": "delete", "filter": {"kind": "resumed", "state": "failed"}});
    let asked = tickr.post("/v1/operations", deletes).await;
    assert_eq!(asked.status, 202, "{:#}", asked.body);
    tickr.until_count("SELECT COUNT(*) FROM checkpoints", 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deploy_interrupts_a_job_and_the_next_runner_continues_at_its_checkpoint() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], kinds()).await;
    let first = tickr.another_with(|config| config.queues = vec!["default".into()], kinds()).await;
    let mut interrupted = job(End::Interrupt);
    interrupted["timeout_ms"] = json!(60_000);
    let id = tickr.enqueue(interrupted).await;
    tickr.until_count("SELECT COUNT(*) FROM checkpoints", 1).await;
    let now = CancellationToken::new();
    now.cancel();
    first.stop(now).await;
    let second = tickr.another_with(|config| config.queues = vec!["default".into()], kinds()).await;
    assert_eq!(tickr.until(id, State::Completed).await["result"], row_seven());
    assert_eq!(tickr.verdicts(id).await, ["interrupted", "succeeded"]);
    second.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_kills_two_runners_continues_at_its_checkpoint_also_in_a_process_of_its_own() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let id = tickr.enqueue_kind("steps", json!({"steps": 9, "ms": 5, "abort_before": [3, 5]})).await;
    for deaths in 0..2 {
        let mut runner = Runner::start(&tickr, &[]);
        assert_eq!(runner.exit_code().await, None, "a signal ended it");
        eventually(&format!("{} attempts are lost", deaths + 1), || lost(&tickr, id, deaths + 1)).await;
    }
    let runner = Runner::start(&tickr, &[]);
    let done = tickr.until(id, State::Completed).await;
    assert_eq!(done["result"], json!({"done": 9, "began_at": [0, 3, 5]}), "{done:#}");
    assert_eq!(tickr.verdicts(id).await, ["lost", "lost", "succeeded"]);
    drop(runner);
    tickr.stop().await;
}

/// Return whether this many attempts of the job are lost.
async fn lost(tickr: &TestApp, id: JobId, wanted: usize) -> Option<()> {
    let lost = tickr.verdicts(id).await.iter().filter(|verdict| *verdict == "lost").count();
    (lost == wanted).then_some(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_saves_its_checkpoints_in_its_own_process() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let steps = json!({"kind": "steps", "payload": {"steps": 400, "ms": 20}, "delay_ms": 3_600_000});
    let id = tickr.enqueue(steps).await;
    make_suspects(&mut tickr.mysql().await, &[id]).await;
    let runner = Runner::start(&tickr, &[]);
    tickr.app.broker().run_now(id, &tickr::job::Actor::tickr()).await.unwrap();
    tickr.until_count("SELECT COUNT(*) FROM checkpoints", 1).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM runners WHERE parent IS NOT NULL").await, 1);
    tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    tickr.until(id, State::Cancelled).await;
    drop(runner);
    tickr.stop().await;
}

/// A job that saves a checkpoint, waits until MySQL has it, says so, and waits for the test.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Careful {}

impl Kind for Careful {
    const NAME: &'static str = "careful";
}

fn careful(saved: &Arc<Semaphore>, go: &Arc<Notify>) -> Registry {
    let (saved, go) = (Arc::clone(saved), Arc::clone(go));
    let mut kinds = Registry::new();
    kinds.register(move |_: Careful, ctx: Context| {
        let (saved, go) = (Arc::clone(&saved), Arc::clone(&go));
        async move {
            for n in 1..=2 {
                ctx.save_checkpoint(&n)?;
                ctx.checkpoint_saved().await?;
                saved.add_permits(1);
                go.notified().await;
            }
            Ok(().into())
        }
    });
    kinds
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoint_saved_returns_when_mysql_has_the_newest_one() {
    let (saved, go) = (Arc::new(Semaphore::new(0)), Arc::new(Notify::new()));
    let tickr = TestApp::start_with(|_| {}, careful(&saved, &go)).await;
    let id = tickr.enqueue_kind("careful", json!({})).await;
    for n in 1..=2 {
        taken(&saved, 1).await;
        let found = tickr.count("SELECT CAST(content AS SIGNED) FROM checkpoints").await;
        assert_eq!(found, n);
        go.notify_one();
    }
    tickr.until(id, State::Completed).await;
    assert_eq!(rows(&tickr).await, 0);
    tickr.stop().await;
}

#[tokio::test]
async fn a_handler_that_is_tested_alone_waits_for_no_store() {
    let ctx = Context::detached("careful");
    ctx.save_checkpoint(&1).unwrap();
    tokio::time::timeout(Duration::from_secs(10), ctx.checkpoint_saved()).await.expect("it returns at once").unwrap();
    assert_eq!(ctx.checkpoint::<i32>().unwrap(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_lost_its_job_saves_no_checkpoint() {
    let (saved, go) = (Arc::new(Semaphore::new(0)), Arc::new(Notify::new()));
    let tickr = TestApp::start_with(|_| {}, careful(&saved, &go)).await;
    let id = tickr.enqueue_kind("careful", json!({})).await;
    taken(&saved, 1).await;
    let store = tickr.app.broker().store();
    let late = |token| NewCheckpoint { id, token, content: "\"late\"".into(), version: 1 };
    assert!(store.save_checkpoints(vec![late(AttemptToken::new())]).await.unwrap().is_empty());
    assert_eq!(tickr.count("SELECT COUNT(*) FROM checkpoints WHERE content = '1'").await, 1);
    let token = sqlx::query_scalar("SELECT token FROM owed WHERE id = ?").bind(id.uuid());
    let token: uuid::Uuid = token.fetch_one(&mut tickr.mysql().await).await.unwrap();
    let holder = late(AttemptToken::from_uuid(token));
    assert_eq!(store.save_checkpoints(vec![holder]).await.unwrap().len(), 1);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM checkpoints WHERE content = '\"late\"'").await, 1);
    go.notify_one();
    taken(&saved, 1).await;
    go.notify_one();
    tickr.until(id, State::Completed).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_delays_no_checkpoint_of_another_job() {
    let (saved, go) = (Arc::new(Semaphore::new(0)), Arc::new(Notify::new()));
    let tickr = TestApp::start_with(|_| {}, careful(&saved, &go)).await;
    let locked = tickr.enqueue_kind("careful", json!({})).await;
    taken(&saved, 1).await;
    let mut session = tickr.mysql().await;
    let mut holder = sqlx::Connection::begin(&mut session).await.unwrap();
    let lock = sqlx::query("SELECT id FROM owed WHERE id = ? FOR UPDATE").bind(locked.uuid());
    lock.fetch_one(&mut *holder).await.unwrap();
    // The first job saves its second checkpoint, which cannot be written.
    go.notify_one();
    let other = tickr.enqueue_kind("careful", json!({})).await;
    taken(&saved, 1).await;
    let sql = "SELECT COUNT(*) FROM checkpoints WHERE content = '1'";
    assert_eq!(tickr.count(sql).await, 2, "the other job was saved, and the first one has its first checkpoint");
    holder.rollback().await.unwrap();
    taken(&saved, 1).await;
    go.notify_waiters();
    go.notify_one();
    taken(&saved, 1).await;
    go.notify_waiters();
    go.notify_one();
    for id in [locked, other] {
        tickr.until(id, State::Completed).await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_large_checkpoints_that_end_together_are_saved_with_their_verdicts() {
    const JOBS: usize = 200;
    let (begun, go) = (Arc::new(Semaphore::new(0)), CancellationToken::new());
    let mut kinds = Registry::new();
    let (said, gate) = (Arc::clone(&begun), go.clone());
    kinds.register(move |_: Careful, ctx: Context| {
        let (begun, go) = (Arc::clone(&said), gate.clone());
        async move {
            if ctx.checkpoint::<String>()?.is_some_and(|kept| kept.len() == 60_000) {
                return Ok(().into());
            }
            begun.add_permits(1);
            go.cancelled().await;
            ctx.save_checkpoint(&"x".repeat(60_000))?;
            Err(Failure::retry("on purpose"))
        }
    });
    let tickr = TestApp::start_with(|config| config.workers = JOBS, kinds).await;
    let retry = json!({"base_ms": 1, "factor": 1.0, "cap_ms": 1, "jitter": 0.0});
    tickr.enqueue_many((0..JOBS).map(|_| json!({"kind": "careful", "payload": {}, "retry": retry}))).await;
    taken(&begun, JOBS as u32).await;
    go.cancel();
    tickr.until_idle().await;
    let ended = "SELECT COUNT(*) FROM attempts WHERE end_state = 'completed' AND number = 2";
    assert_eq!(tickr.count(ended).await, JOBS as i64);
    assert_eq!(rows(&tickr).await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_wait_for_mysql_and_are_saved_when_it_is_back() {
    let (saved, go) = (Arc::new(Semaphore::new(0)), Arc::new(Notify::new()));
    let tickr = TestApp::start_alone_with(|config| config.lease = Duration::from_secs(30), careful(&saved, &go)).await;
    let id = tickr.enqueue_kind("careful", json!({})).await;
    taken(&saved, 1).await;
    tickr.services().mysql().pause().unwrap();
    go.notify_one();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(saved.available_permits(), 0, "MySQL stands still");
    tickr.services().mysql().resume().unwrap();
    taken(&saved, 1).await;
    assert_eq!(tickr.count("SELECT CAST(content AS SIGNED) FROM checkpoints").await, 2);
    go.notify_one();
    tickr.until(id, State::Completed).await;
    tickr.stop().await;
}
