//! Batches: jobs that belong together, with callbacks that follow from their ends.

use std::collections::BTreeSet;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::{Executor, Row};
use tickr::config::Config;
use tickr::handlers::{Context, FollowUp, Kind, Output, Registry};
use tickr::job::{Actor, BatchId, JobId, State};
use tickr::store::{CancelMark, Retention};
use tokio_util::sync::CancellationToken;

use crate::support::limits::set_and_wait;
use crate::support::{Halt, Owed, Proxy, Pulse, Runner, TestApp, broken, bystander, eventually, gated};

async fn create(tickr: &TestApp, body: Value) -> Value {
    let made = tickr.post("/v1/batches", body).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    made.body
}

async fn show(tickr: &TestApp, batch: &Value) -> Value {
    tickr.get(&format!("/v1/batches/{}", batch["id"].as_str().unwrap())).await.body
}

async fn act(tickr: &TestApp, batch: &Value, verb: &str) -> Value {
    let done = tickr.post(&format!("/v1/batches/{}/{verb}", batch["id"].as_str().unwrap()), json!({})).await;
    assert!(done.status < 300, "{verb}: {:#}", done.body);
    done.body
}

async fn until(tickr: &TestApp, batch: &Value, state: &str) -> Value {
    eventually(&format!("the batch is {state}"), || async {
        let batch = show(tickr, batch).await;
        (batch["state"] == state).then_some(batch)
    })
    .await
}

fn job_of(batch: &Value, event: &str) -> JobId {
    batch[event]["job_id"].as_str().unwrap().parse().unwrap()
}

async fn exists(tickr: &TestApp, id: JobId) -> bool {
    tickr.get(&format!("/v1/jobs/{id}")).await.status == 200
}

fn callbacks() -> Value {
    json!({
        "on_success": {"kind": "noop", "payload": {}},
        "on_complete": {"kind": "noop", "payload": {}},
        "on_failure": {"kind": "noop", "payload": {}},
    })
}

fn with(mut body: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("not an object: {more}") };
    body.as_object_mut().unwrap().extend(more);
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_ends_after_its_last_job_and_starts_each_callback_once() {
    let tickr = TestApp::start().await;
    let other = tickr.another().await;
    let jobs: Vec<Value> = (0..20).map(|_| json!({"kind": "noop", "payload": {}})).collect();
    let batch = create(&tickr, with(callbacks(), json!({"name": "invoices", "jobs": jobs}))).await;
    assert_eq!(
        (&batch["state"], &batch["total"], batch["jobs"].as_array().unwrap().len()),
        (&json!("open"), &json!(20), 20)
    );
    let id = batch["id"].as_str().unwrap();
    // The counts are those of this moment, also before a runner has added them up.
    assert_eq!(show(&tickr, &batch).await["total"], 20);
    for _ in 0..10 {
        let member = tickr.enqueue(json!({"kind": "noop", "payload": {}, "batch": id})).await;
        assert_eq!(tickr.job(member).await["batch"], *id);
    }
    let more = (0..20).map(|_| json!({"kind": "noop", "payload": {}, "batch": id}));
    tickr.enqueue_many(more).await;
    eventually("all have completed", || async { (show(&tickr, &batch).await["completed"] == 50).then_some(()) }).await;
    // It is open, so it has not ended.
    let open = show(&tickr, &batch).await;
    assert_eq!((&open["state"], &open["pending"], &open["completed_at"]), (&json!("open"), &json!(0), &Value::Null));
    assert!(!exists(&tickr, job_of(&batch, "on_complete")).await);
    let closed = act(&tickr, &batch, "close").await;
    assert!(!closed["closed_at"].is_null());
    let ended = until(&tickr, &batch, "succeeded").await;
    assert_eq!((&ended["total"], &ended["completed"], &ended["failed"]), (&json!(50), &json!(50), &json!(0)));
    let complete = tickr.until(job_of(&batch, "on_complete"), State::Completed).await;
    assert_eq!(complete["callback_of"], *id);
    tickr.until(job_of(&batch, "on_success"), State::Completed).await;
    assert!(!exists(&tickr, job_of(&batch, "on_failure")).await);
    act(&tickr, &batch, "close").await;
    let late = tickr.post("/v1/jobs", json!({"kind": "noop", "payload": {}, "batch": id})).await;
    assert_eq!((late.status, late.code(), late.pointers()), (409, "wrong_state", vec!["/batch"]), "{:#}", late.body);
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 52);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM batch_changes").await, 0);

    let listed = tickr.get("/v1/batches?limit=10").await.body;
    assert_eq!((&listed["data"][0]["name"], &listed["next_cursor"]), (&json!("invoices"), &Value::Null));
    assert_eq!(tickr.get("/v1/batches?unfinished=true").await.body["data"], json!([]));
    let members = tickr.get(&format!("/v1/jobs?batch={id}&limit=200")).await.body;
    assert_eq!(members["data"].as_array().unwrap().len(), 50);
    let counted = tickr.get(&format!("/v1/jobs/count?q=batch:{id}%20state:completed")).await.body;
    assert_eq!(counted["count"], 50);
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_told_once_and_a_retry_of_the_batch_leads_to_success() {
    let mended = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, broken(&mended)).await;
    let fails = json!({"kind": "broken", "payload": {}, "max_attempts": 1});
    let jobs = vec![fails.clone(), fails, json!({"kind": "noop", "payload": {}})];
    let batch = create(&tickr, with(callbacks(), json!({"jobs": jobs, "close": true}))).await;
    let ended = until(&tickr, &batch, "failed").await;
    assert_eq!((&ended["completed"], &ended["failed"], &ended["pending"]), (&json!(1), &json!(2), &json!(0)));
    tickr.until(job_of(&batch, "on_failure"), State::Completed).await;
    tickr.until(job_of(&batch, "on_complete"), State::Completed).await;
    assert!(!exists(&tickr, job_of(&batch, "on_success")).await);
    tickr.assert_sound().await;
    mended.cancel();
    let operation = act(&tickr, &batch, "retry").await;
    assert_eq!((&operation["action"], &operation["filter"]["state"]), (&json!("retry"), &json!("failed")));
    let ended = until(&tickr, &batch, "succeeded").await;
    assert_eq!((&ended["completed"], &ended["failed"]), (&json!(3), &json!(0)));
    tickr.until(job_of(&batch, "on_success"), State::Completed).await;
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 6);
    tickr.stop().await;
}

/// The first failure starts its callback, and no later one does, also when the job of the callback was removed since:
/// then its id is free again.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_failure_and_a_second_end_start_no_second_callback() {
    let tickr = TestApp::start_with(|_| {}, broken(&CancellationToken::new())).await;
    let store = tickr.app.broker().store();
    let bad = json!({"kind": "broken", "payload": {}, "max_attempts": 1});
    let counted = |failed: u32| {
        format!("SELECT COUNT(*) FROM batches WHERE failed = {failed} AND NOT EXISTS (SELECT 1 FROM batch_changes)")
    };
    let batch = create(&tickr, with(callbacks(), json!({"jobs": [bad]}))).await;
    let until_told = async |event: &str| {
        eventually("the job of the callback is there", || async {
            exists(&tickr, job_of(&batch, event)).await.then_some(())
        })
        .await;
        tickr.until(job_of(&batch, event), State::Completed).await;
    };
    until_told("on_failure").await;
    let fails = |mut job: Value| {
        job["batch"] = batch["id"].clone();
        tickr.enqueue(job)
    };
    fails(bad.clone()).await;
    tickr.until_count(counted(2), 1).await;
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 3);
    // What retention does later.
    let until_left = async |jobs: i64, failed: Duration| {
        eventually("old jobs are removed", || async {
            store.purge_page(None, &Retention { failed, ..Retention::all(Duration::ZERO) }).await.unwrap();
            (tickr.count("SELECT COUNT(*) FROM jobs").await == jobs).then_some(())
        })
        .await;
    };
    until_left(0, Duration::ZERO).await;
    let last = fails(bad.clone()).await;
    tickr.until_count(counted(3), 1).await;
    assert!(!exists(&tickr, job_of(&batch, "on_failure")).await);
    // The batch ends, and once more after a retry that fails as well.
    act(&tickr, &batch, "close").await;
    until_told("on_complete").await;
    until_left(1, Duration::from_secs(3_600)).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{last}/retry"), json!({})).await.status, 200);
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE end_state = 'failed'", 2).await;
    tickr.until_count(counted(3), 1).await;
    tickr.until_idle().await;
    for event in ["on_complete", "on_failure", "on_success"] {
        assert!(!exists(&tickr, job_of(&batch, event)).await, "{event}");
    }
    until_left(0, Duration::ZERO).await;
    assert_eq!(store.purge_batches(None, Duration::ZERO).await.unwrap().0, 1);
    tickr.stop().await;
}

/// Adds this many jobs of its own kind to its batch, each with one less.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Grow {
    left: u32,
}

impl Kind for Grow {
    const NAME: &'static str = "grow";
}

fn growing() -> Registry {
    let mut registry = Registry::new();
    registry.register(|grow: Grow, _: Context| async move {
        let mut output = Output::default();
        for _ in 0..grow.left {
            output = output.then_job(FollowUp::of(&Grow { left: grow.left - 1 })?.in_batch())?;
        }
        Ok(output)
    });
    registry
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_closed_batch_add_others_and_the_batch_waits_for_them() {
    let tickr = TestApp::start_with(|_| {}, growing()).await;
    let other = tickr.another_with(|_| {}, growing()).await;
    let body = json!({"jobs": [{"kind": "grow", "payload": {"left": 4}}], "close": true,
                      "on_complete": {"kind": "noop", "payload": {}}});
    let batch = create(&tickr, body).await;
    let ended = until(&tickr, &batch, "succeeded").await;
    // 1 + 4 + 4·3 + 4·3·2 + 4·3·2·1
    assert_eq!(ended["total"], 65);
    tickr.until(job_of(&batch, "on_complete"), State::Completed).await;
    let early = "SELECT COUNT(*) FROM jobs c JOIN batch_jobs b JOIN attempts a ON a.job_id = b.job_id \
                 WHERE c.kind = 'noop' AND a.finished_at > c.created_at";
    assert_eq!(tickr.count(early).await, 0);
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nested_batch_counts_as_one_job_of_its_parent_with_its_callbacks() {
    let mended = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, broken(&mended)).await;
    let outer = create(&tickr, callbacks()).await;
    let jobs: Vec<Value> = (0..3).map(|_| json!({"kind": "noop", "payload": {}})).collect();
    let slow = json!({"kind": "sleep", "payload": {"ms": 300}});
    let inner = create(&tickr, json!({"parent": outer["id"], "jobs": jobs, "close": true, "on_complete": slow})).await;
    let bad = json!({"kind": "broken", "payload": {}, "max_attempts": 1});
    let failing = create(&tickr, json!({"parent": outer["id"], "jobs": [bad], "close": true})).await;
    act(&tickr, &outer, "close").await;
    until(&tickr, &inner, "succeeded").await;
    until(&tickr, &failing, "failed").await;
    let ended = until(&tickr, &outer, "failed").await;
    // Two batches and the callback of the first one.
    assert_eq!((&ended["total"], &ended["completed"], &ended["failed"]), (&json!(3), &json!(2), &json!(1)));
    let nested = tickr.job(job_of(&inner, "on_complete")).await;
    assert_eq!((&nested["state"], &nested["batch"]), (&json!("completed"), &outer["id"]));
    tickr.until(job_of(&outer, "on_failure"), State::Completed).await;
    let listed = tickr.get(&format!("/v1/batches?parent={}", outer["id"].as_str().unwrap())).await.body;
    assert_eq!(listed["data"].as_array().unwrap().len(), 2);
    mended.cancel();
    act(&tickr, &failing, "retry").await;
    until(&tickr, &failing, "succeeded").await;
    until(&tickr, &outer, "succeeded").await;
    tickr.until(job_of(&outer, "on_success"), State::Completed).await;
    tickr.stop().await;
}

/// Two levels of nested batches, with one that has no failure, and a failed job that is in none of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_of_a_batch_reaches_the_failed_jobs_of_its_nested_batches() {
    let mended = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, broken(&mended)).await;
    let bad = json!({"kind": "broken", "payload": {}, "max_attempts": 1});
    let noop = json!({"kind": "noop", "payload": {}});
    let outer = create(&tickr, json!({"jobs": [bad, noop], "on_success": noop})).await;
    let middle = create(&tickr, json!({"parent": outer["id"], "jobs": [noop]})).await;
    let inner = create(&tickr, json!({"parent": middle["id"], "jobs": [bad, bad], "close": true})).await;
    let fine = create(&tickr, json!({"parent": outer["id"], "jobs": [noop], "close": true})).await;
    let beside = create(&tickr, json!({"jobs": [bad], "close": true})).await;
    act(&tickr, &middle, "close").await;
    act(&tickr, &outer, "close").await;
    for (batch, state) in
        [(&fine, "succeeded"), (&inner, "failed"), (&middle, "failed"), (&outer, "failed"), (&beside, "failed")]
    {
        until(&tickr, batch, state).await;
    }
    let lost = tickr.enqueue(bad).await;
    tickr.until(lost, State::Failed).await;
    mended.cancel();
    let path = format!("/v1/batches/{}/retry", outer["id"].as_str().unwrap());
    let retry = || tickr.request(reqwest::Method::POST, &path).header("idempotency-key", "retry-all").json(&json!({}));
    let operation = crate::support::answer(retry()).await;
    assert_eq!(operation.status, 202, "{:#}", operation.body);
    let named: Vec<&Value> =
        operation.body["filter"]["choices"][0]["of"].as_array().unwrap().iter().map(|one| &one["batch"]).collect();
    assert_eq!(named, [&outer["id"], &middle["id"], &inner["id"]]);
    for batch in [&inner, &middle, &outer] {
        until(&tickr, batch, "succeeded").await;
    }
    tickr.until(job_of(&outer, "on_success"), State::Completed).await;
    let id = operation.body["id"].as_str().unwrap();
    let ended = eventually("the operation has ended", || async {
        let operation = tickr.get(&format!("/v1/operations/{id}")).await.body;
        (operation["state"] == "done").then_some(operation)
    })
    .await;
    assert_eq!((&ended["done"], &ended["failed"]), (&json!(3), &json!(0)), "{ended:#}");
    // A repeated request has the same answer, although nothing has failed any more.
    let again = crate::support::answer(retry()).await;
    assert_eq!((again.status, &again.body["id"]), (202, &operation.body["id"]));
    assert_eq!(tickr.job(lost).await["state"], "failed");
    assert_eq!(show(&tickr, &beside).await["state"], "failed");
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_of_a_batch_leaves_its_cancelled_nested_batches_alone() {
    let mended = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, broken(&mended)).await;
    let bad = json!({"kind": "broken", "payload": {}, "max_attempts": 1});
    let outer = create(&tickr, json!({"jobs": [bad]})).await;
    let nested = create(&tickr, json!({"parent": outer["id"], "jobs": [bad]})).await;
    let below = create(&tickr, json!({"parent": nested["id"], "jobs": [bad], "close": true})).await;
    until(&tickr, &below, "failed").await;
    eventually("its own job and the batch below count as failed", || async {
        (show(&tickr, &nested).await["failed"] == 2).then_some(())
    })
    .await;
    act(&tickr, &nested, "cancel").await;
    until(&tickr, &nested, "cancelled").await;
    act(&tickr, &outer, "close").await;
    until(&tickr, &outer, "failed").await;
    mended.cancel();
    let operation = act(&tickr, &outer, "retry").await;
    assert_eq!(operation["filter"]["batch"], outer["id"], "{operation:#}");
    let path = format!("/v1/operations/{}", operation["id"].as_str().unwrap());
    let ended = eventually("the operation has ended", || async {
        let operation = tickr.get(&path).await.body;
        (operation["state"] == "done").then_some(operation)
    })
    .await;
    assert_eq!((&ended["done"], &ended["failed"]), (&json!(1), &json!(0)), "{ended:#}");
    eventually("the job of the outer batch has completed", || async {
        (show(&tickr, &outer).await["completed"] == 1).then_some(())
    })
    .await;
    assert_eq!((&show(&tickr, &nested).await["failed"], &show(&tickr, &below).await["failed"]), (&json!(2), &json!(1)));
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_of_a_batch_with_too_many_nested_ones_is_refused() {
    let tickr = TestApp::start().await;
    let outer = create(&tickr, json!({})).await;
    let path = format!("/v1/batches/{}/retry", outer["id"].as_str().unwrap());
    let nested = |first: u32, last: u32, failed: u32| {
        format!(
            "INSERT INTO batches (id, actor, created_at, parent, total, failed) \
             WITH RECURSIVE n (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM n WHERE n < {last}) \
             SELECT UNHEX(CONCAT('0190000000007000', LPAD(HEX(n), 16, '0'))), 'test', UTC_TIMESTAMP(6), \
             UNHEX(REPLACE('{}', '-', '')), 1, {failed} FROM n",
            outer["id"].as_str().unwrap()
        )
    };
    tickr.sql(nested(1, 100, 1)).await;
    let most = tickr.post(&path, json!({})).await;
    assert_eq!(most.status, 202, "{:#}", most.body);
    assert_eq!(most.body["filter"]["choices"][0]["of"].as_array().unwrap().len(), 101);
    tickr.sql(nested(101, 101, 1)).await;
    let refused = tickr.post(&path, json!({})).await;
    assert_eq!((refused.status, refused.code()), (422, "too_many"), "{:#}", refused.body);
    // The failed jobs of the batch itself can be retried all the same.
    let alone = tickr.post(&format!("{path}?nested=false"), json!({})).await;
    assert_eq!((alone.status, &alone.body["filter"]["batch"]), (202, &outer["id"]), "{:#}", alone.body);
    // Without failures they are only looked at, and there may be ten thousand, those that succeeded included.
    tickr.sql("UPDATE batches SET failed = 0, succeeded_at = UTC_TIMESTAMP(6) WHERE parent IS NOT NULL").await;
    // MariaDB ends a recursion after 1,000 rows.
    for first in (102..=10_000).step_by(900) {
        tickr.sql(nested(first, (first + 899).min(10_000), 0)).await;
    }
    assert_eq!(tickr.post(&path, json!({})).await.status, 202);
    tickr.sql(nested(10_001, 10_001, 0)).await;
    let refused = tickr.post(&path, json!({})).await;
    assert_eq!((refused.status, refused.code()), (422, "too_many"), "{:#}", refused.body);
    assert_eq!(tickr.post(&format!("{path}?nested=true"), json!({})).await.status, 422);
    // One inside the other, a hundred levels with the outermost one.
    let deepest = create(&tickr, json!({})).await;
    let path = format!("/v1/batches/{}/retry", deepest["id"].as_str().unwrap());
    let levels = |first: u32, last: u32| {
        format!(
            "INSERT INTO batches (id, actor, created_at, parent) \
             WITH RECURSIVE n (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM n WHERE n < {last}) \
             SELECT UNHEX(CONCAT('0190000000007001', LPAD(HEX(n), 16, '0'))), 'test', UTC_TIMESTAMP(6), \
             IF(n = 1, UNHEX(REPLACE('{}', '-', '')), UNHEX(CONCAT('0190000000007001', LPAD(HEX(n - 1), 16, '0')))) \
             FROM n",
            deepest["id"].as_str().unwrap()
        )
    };
    tickr.sql(levels(1, 99)).await;
    assert_eq!(tickr.post(&path, json!({})).await.status, 202);
    tickr.sql(levels(100, 100)).await;
    let refused = tickr.post(&path, json!({})).await;
    assert_eq!((refused.status, refused.code()), (422, "too_many"), "{:#}", refused.body);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM operations").await, 4);
    tickr.sql("DELETE FROM batches").await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_removal_of_old_batches_reads_none_that_is_too_young() {
    let tickr = TestApp::start().await;
    let store = tickr.app.broker().store();
    // More than one page of batches that were made a moment ago, and one page of old ones that stay open.
    let batches = |ago: u32| {
        format!(
            "INSERT INTO batches (id, actor, created_at) \
             WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 300) \
             SELECT UNHEX(CONCAT(LPAD(HEX((UNIX_TIMESTAMP() - {ago}) * 1000), 12, '0'), '70008000', LPAD(HEX(n), 12, '0'))), \
             'test', UTC_TIMESTAMP(6) - INTERVAL {ago} SECOND FROM n"
        )
    };
    tickr.sql(batches(0)).await;
    let hour = Duration::from_secs(3_600);
    assert_eq!(store.purge_batches(None, hour).await.unwrap(), (0, None));
    tickr.sql(batches(7_200)).await;
    let (gone, next) = store.purge_batches(None, hour).await.unwrap();
    assert!(gone == 0 && next.is_some());
    assert_eq!(store.purge_batches(next, hour).await.unwrap(), (0, None));
    tickr.sql("DELETE FROM batches").await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outer_batch_is_kept_as_long_as_its_nested_ones_and_counts_a_later_success() {
    let mended = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, broken(&mended)).await;
    let store = tickr.app.broker().store();
    let noop = json!({"kind": "noop", "payload": {}});
    let outer = create(&tickr, json!({"on_success": noop})).await;
    let bad = json!({"kind": "broken", "payload": {}, "max_attempts": 1});
    let nested = create(&tickr, json!({"parent": outer["id"], "jobs": [bad], "close": true})).await;
    act(&tickr, &outer, "close").await;
    until(&tickr, &outer, "failed").await;
    // The nested batch has its failed job. The outer one has no job of its own.
    assert_eq!(store.purge_batches(None, Duration::ZERO).await.unwrap().0, 0);
    mended.cancel();
    act(&tickr, &nested, "retry").await;
    until(&tickr, &nested, "succeeded").await;
    until(&tickr, &outer, "succeeded").await;
    tickr.until(job_of(&outer, "on_success"), State::Completed).await;
    tickr.until_idle().await;
    // Once the jobs are gone, the nested batch goes first.
    eventually("the jobs are removed", || async {
        store.purge_page(None, &Retention::all(Duration::ZERO)).await.unwrap();
        (tickr.count("SELECT COUNT(*) FROM jobs").await == 0).then_some(())
    })
    .await;
    for left in [1, 0] {
        assert_eq!(store.purge_batches(None, Duration::ZERO).await.unwrap().0, 1);
        assert_eq!(tickr.count("SELECT COUNT(*) FROM batches").await, left);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_without_jobs_ends_when_it_is_closed() {
    let tickr = TestApp::start().await;
    let at_once = create(&tickr, with(callbacks(), json!({"close": true}))).await;
    until(&tickr, &at_once, "succeeded").await;
    tickr.until(job_of(&at_once, "on_success"), State::Completed).await;
    let later = create(&tickr, callbacks()).await;
    act(&tickr, &later, "close").await;
    until(&tickr, &later, "succeeded").await;
    tickr.until(job_of(&later, "on_complete"), State::Completed).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_cancel_of_a_batch_no_job_of_it_starts() {
    let open = CancellationToken::new();
    let kinds = || {
        let mut kinds = gated(&open);
        kinds.register(|_: Grow, _: Context| async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Output::default().then_job(FollowUp::of(&Grow { left: 1 })?.in_batch())
        });
        kinds
    };
    let tickr = TestApp::start_with(|config| config.workers = 8, kinds()).await;
    let other = tickr.another_with(|config| config.workers = 8, kinds()).await;
    let batch = create(&tickr, callbacks()).await;
    let id = batch["id"].as_str().unwrap();
    let nested =
        create(&tickr, json!({"parent": id, "jobs": [{"kind": "noop", "payload": {}, "delay_ms": 600_000}]})).await;
    let held = tickr.enqueue(json!({"kind": "gate", "payload": {}, "batch": id})).await;
    tickr.until(held, State::Executing).await;
    // Jobs that wait for themselves, for their time, for a key, for a parent and for their next attempt.
    let mut jobs: Vec<Value> = Vec::new();
    for n in 0..300 {
        jobs.push(json!({"kind": "grow", "payload": {"left": 1}, "batch": id}));
        if n % 4 == 0 {
            jobs.push(json!({"kind": "noop", "payload": {}, "batch": id, "delay_ms": 600_000}));
            jobs.push(json!({"kind": "sleep", "payload": {"ms": 5}, "batch": id, "order_key": "k"}));
            jobs.push(json!({"kind": "noop", "payload": {}, "batch": id, "after": [held.to_string()]}));
            let retry = json!({"delays_ms": [100_000]});
            jobs.push(json!({"kind": "fail", "payload": {"times": 9}, "batch": id, "retry": retry}));
        }
    }
    for part in jobs.chunks(500) {
        tickr.enqueue_many(part.to_vec()).await;
    }
    let answer = act(&tickr, &batch, "cancel").await;
    let now = "SELECT CAST(UNIX_TIMESTAMP(UTC_TIMESTAMP(6)) * 1000000 AS SIGNED)";
    let answered = tickr.count(now).await;
    assert!(["cancelling", "cancelled"].contains(&answer["state"].as_str().unwrap()), "{answer:#}");
    let refused = tickr.post("/v1/jobs", json!({"kind": "noop", "payload": {}, "batch": id})).await;
    assert_eq!((refused.status, refused.code()), (409, "wrong_state"), "{:#}", refused.body);
    let ended = until(&tickr, &batch, "cancelled").await;
    assert_eq!(ended["pending"], 0);
    until(&tickr, &nested, "cancelled").await;
    // Its handler was asked to stop.
    tickr.until(held, State::Cancelled).await;
    let late = format!(
        "SELECT COUNT(*) FROM batch_jobs b JOIN attempts a ON a.job_id = b.job_id \
         WHERE a.runner <> '' AND UNIX_TIMESTAMP(a.started_at) * 1000000 > {answered}"
    );
    assert_eq!(tickr.count(late).await, 0);
    tickr.until(job_of(&batch, "on_complete"), State::Completed).await;
    assert!(!exists(&tickr, job_of(&batch, "on_success")).await);
    tickr.until_count("SELECT COUNT(*) FROM batch_cancels", 0).await;
    let again = tickr.post(&format!("/v1/batches/{id}/cancel"), json!({})).await;
    assert_eq!((again.status, again.code()), (409, "wrong_state"), "{:#}", again.body);
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_batches_are_refused_with_the_field_and_nothing_is_written() {
    let tickr = TestApp::start().await;
    let noop = json!({"kind": "noop", "payload": {}});
    let job = |more: Value| with(noop.clone(), more);
    let id = JobId::new().to_string();
    for (body, pointer) in [
        (json!({"name": "x".repeat(201)}), "/name"),
        (json!({"parent": "x"}), "/parent"),
        (json!({"parent": id}), "/parent"),
        (json!({"jobs": [job(json!({"unique_key": "u"}))]}), "/jobs/0/unique_key"),
        (json!({"jobs": [job(json!({"batch": id}))]}), "/jobs/0/batch"),
        (json!({"jobs": [noop, job(json!({"after": [id]}))]}), "/jobs/1/after"),
        (json!({"on_success": job(json!({"unique_key": "u"}))}), "/on_success/unique_key"),
        (json!({"on_complete": job(json!({"after": [id]}))}), "/on_complete/after"),
        (json!({"on_failure": job(json!({"batch": id}))}), "/on_failure/batch"),
        (json!({"on_failure": job(json!({"execute_at": "2026-12-01T00:00:00Z"}))}), "/on_failure/execute_at"),
    ] {
        let refused = tickr.post("/v1/batches", body.clone()).await;
        assert_eq!(refused.status, 422, "{body:#}: {:#}", refused.body);
        assert_eq!(refused.pointers(), [pointer], "{:#}", refused.body);
    }
    let refused = tickr.post("/v1/batches", json!({"on_success": {"kind": "nope", "payload": {}}})).await;
    assert_eq!((refused.status, refused.code()), (422, "unknown_kind"), "{:#}", refused.body);
    assert_eq!(tickr.count("SELECT (SELECT COUNT(*) FROM batches) + (SELECT COUNT(*) FROM jobs)").await, 0);
    for (verb, method) in [("", "GET"), ("/close", "POST"), ("/cancel", "POST"), ("/retry", "POST")] {
        let path = format!("/v1/batches/{id}{verb}");
        let missing = if method == "GET" { tickr.get(&path).await } else { tickr.post(&path, json!({})).await };
        assert_eq!((missing.status, missing.code()), (404, "not_found"), "{method} {path}: {:#}", missing.body);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_with_its_key_creates_one_batch() {
    let tickr = TestApp::start().await;
    let body = json!({"jobs": [{"kind": "noop", "payload": {}}], "close": true, "on_complete": {"kind": "noop", "payload": {}}});
    let mut ids = BTreeSet::new();
    for _ in 0..3 {
        let request = tickr.request(reqwest::Method::POST, "/v1/batches").header("idempotency-key", "k").json(&body);
        let answer = crate::support::answer(request).await;
        assert_eq!(answer.status, 201, "{:#}", answer.body);
        ids.insert(answer.body["id"].as_str().unwrap().to_owned());
    }
    assert_eq!(ids.len(), 1);
    tickr.until_idle().await;
    tickr.until_count("SELECT COUNT(*) FROM jobs", 2).await;
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callbacks_are_started_once_whichever_runner_counts_and_redis_forgets() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    let mut others = Vec::new();
    for _ in 0..2 {
        others.push(tickr.another().await);
    }
    let mut batches = Vec::new();
    for n in 0..16 {
        let jobs: Vec<Value> = (0..=n % 5).map(|_| json!({"kind": "noop", "payload": {}})).collect();
        batches.push(create(&tickr, with(callbacks(), json!({"jobs": jobs, "close": true}))).await);
        if n % 6 == 0 {
            tickr.flush_redis().await;
        }
    }
    for batch in &batches {
        until(&tickr, batch, "succeeded").await;
        tickr.until(job_of(batch, "on_success"), State::Completed).await;
        tickr.until(job_of(batch, "on_complete"), State::Completed).await;
    }
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs WHERE options LIKE '%callback_of%'").await, 32);
    let soon = "SELECT COUNT(*) FROM batches b WHERE TIMESTAMPDIFF(MICROSECOND, (SELECT MAX(a.finished_at) FROM attempts a \
                JOIN batch_jobs m ON m.job_id = a.job_id WHERE m.batch_id = b.id), b.completed_at) > 5000000";
    assert_eq!(tickr.count(soon).await, 0);
    for other in others {
        other.stop(CancellationToken::new()).await;
    }
    tickr.stop().await;
}

/// Rows that must all be zero when every batch and every parent has ended.
const LEFT: &str = "SELECT (SELECT COUNT(*) FROM batch_changes) + (SELECT COUNT(*) FROM parent_ends) \
                    + (SELECT COUNT(*) FROM blocked_jobs) + (SELECT COUNT(*) FROM batches WHERE completed_at IS NULL)";

/// Create a closed batch of a chain and some jobs beside it.
async fn small_batch(tickr: &TestApp) -> Value {
    let mut jobs: Vec<Value> = (0..6).map(|_| json!({"kind": "noop", "payload": {}})).collect();
    jobs.extend((5..10).map(|front| json!({"kind": "noop", "payload": {}, "after": [front]})));
    create(tickr, with(callbacks(), json!({"jobs": jobs, "close": true}))).await
}

/// Check that each of these batches succeeded and that its callbacks ran once.
async fn assert_each_told_once(tickr: &TestApp, batches: &[Value]) {
    for batch in batches {
        let ended = until(tickr, batch, "succeeded").await;
        assert_eq!((&ended["total"], &ended["completed"]), (&json!(11), &json!(11)), "{ended:#}");
        for event in ["on_success", "on_complete"] {
            let callback = tickr.until(job_of(batch, event), State::Completed).await;
            let ran = callback["attempts"].as_array().unwrap().iter().filter(|line| line["verdict"] == "succeeded");
            assert_eq!(ran.count(), 1, "{callback:#}");
        }
        assert!(!exists(tickr, job_of(batch, "on_failure")).await);
    }
    tickr.until_idle().await;
    tickr.until_count(LEFT, 0).await;
    let callbacks = tickr.count("SELECT COUNT(*) FROM jobs WHERE options LIKE '%callback_of%'").await;
    assert_eq!(callbacks, 2 * batches.len() as i64);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_commit_answers_neither_lose_nor_double_an_end() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let url = Config::for_tests(&proxy.url(), "redis://unused").mysql_url;
    let served = |config: &mut Config| (config.mysql_url, config.queues) = (url, vec!["default".into()]);
    let through = tickr.another_with(served, Registry::new()).await;
    let mut batches = Vec::new();
    while proxy.cuts() < 25 {
        let cuts = proxy.cuts();
        proxy.cut_after("COMMIT");
        batches.push(small_batch(&tickr).await);
        eventually("an answer is lost", || async { (proxy.cuts() > cuts).then_some(()) }).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    proxy.pass();
    assert_each_told_once(&tickr, &batches).await;
    through.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

/// Kill runners while they end the last jobs of batches, this many times.
async fn kill_runners(kills: u32) {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let env = [("TICKR_WORKERS", "4"), ("TICKR_LEASE", "3s")];
    let mut batches = Vec::new();
    for _ in 0..kills {
        let mut runner = Runner::start(&tickr, &env);
        runner.base().await;
        let before = tickr.count("SELECT COUNT(*) FROM attempts").await;
        batches.push(small_batch(&tickr).await);
        tickr.until_count(format!("SELECT COUNT(*) > {before} FROM attempts"), 1).await;
        tokio::time::sleep(Duration::from_micros(rand::random_range(0..60_000))).await;
        runner.kill9();
    }
    let runner = Runner::start(&tickr, &env);
    assert_each_told_once(&tickr, &batches).await;
    drop(runner);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runners_killed_at_any_moment_neither_lose_nor_double_an_end() {
    kill_runners(6).await;
}

/// The request that writes the end of a job and, with it, the change of its batch. The COMMIT is in the same request,
/// or some requests later.
const SETTLE: &str = "INSERT INTO attempts";

/// The requests of the transaction that counts the last end of a batch, each with its number from the begin of the
/// transaction on: the lock of the batch, behind a read of its callbacks, the removal of the changes, and the callbacks.
const COUNT: [(&str, usize); 3] =
    [("SELECT id, name, parent", 2), ("DELETE FROM batch_changes", 1), ("INSERT INTO jobs", 1)];

/// A place at which everything halts before a runner is killed: before a request arrives, before its answer, or before
/// the answer to its COMMIT.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// At this end of the eleven of a batch.
    Settle(usize, Halt),
    /// At this request of [`COUNT`].
    Count(usize, Halt),
}

/// All places: the second to the eleventh end, and the count of the last one.
fn all_steps() -> Vec<Step> {
    let moments = [Halt::Before, Halt::After, Halt::AfterCommit];
    let ends = (2..=11).flat_map(|nth| moments.map(|moment| Step::Settle(nth, moment)));
    ends.chain((0..COUNT.len()).flat_map(|at| moments.map(|moment| Step::Count(at, moment)))).collect()
}

/// Create a closed batch of eleven jobs in a chain, so that each has an end of its own. The last one also waits for
/// `held`, however that one ends.
async fn chained_batch(tickr: &TestApp, held: Option<JobId>) -> Value {
    let jobs = (0..11).map(|n| {
        let mut parents: Vec<Value> = if n == 0 { Vec::new() } else { vec![json!(n - 1)] };
        let mut job = json!({"kind": "noop", "payload": {}});
        if let Some(held) = held.filter(|_| n == 10) {
            parents.push(json!(held.to_string()));
            job["on_parent_failure"] = json!("run");
        }
        job["after"] = json!(parents);
        job
    });
    let jobs: Vec<Value> = jobs.collect();
    create(tickr, with(callbacks(), json!({"jobs": jobs, "close": true}))).await
}

fn hex_of(batch: &Value) -> String {
    batch["id"].as_str().unwrap().replace('-', "")
}

/// Let everything halt at an end of a batch.
async fn halt_at_an_end(tickr: &TestApp, proxy: &Proxy, nth: usize, moment: Halt) -> Value {
    proxy.halt_at(SETTLE, nth, moment);
    let batch = chained_batch(tickr, None).await;
    eventually("everything halts at an end", || async { proxy.has_halted().then_some(()) }).await;
    batch
}

/// Let everything halt at a request of the count of the last end of a batch. The process of the test counts as well,
/// and may be faster. Then the next batch is tried.
async fn halt_at_a_count(
    tickr: &TestApp,
    proxy: &Proxy,
    (text, nth): (&'static str, usize),
    moment: Halt,
) -> Vec<Value> {
    let mut batches = Vec::new();
    for _ in 0..20 {
        let held = tickr.enqueue(json!({"kind": "noop", "payload": {}, "delay_ms": 3_600_000})).await;
        let batch = chained_batch(tickr, Some(held)).await;
        let counted = format!(
            "SELECT COUNT(*) FROM batches WHERE id = UNHEX('{}') AND completed = 10 \
             AND NOT EXISTS (SELECT 1 FROM batch_changes)",
            hex_of(&batch)
        );
        tickr.until_count(counted, 1).await;
        proxy.halt_at(text, nth, moment);
        assert_eq!(tickr.post(&format!("/v1/jobs/{held}/cancel"), json!({})).await.status, 200);
        let halted = eventually("everything halts at a count, or the batch has ended", || async {
            if proxy.has_halted() {
                return Some(true);
            }
            (show(tickr, &batch).await["state"] == "succeeded").then_some(false)
        });
        let halted = halted.await;
        batches.push(batch);
        if halted {
            return batches;
        }
        // Otherwise the next batch would halt at the count of its first ends.
        proxy.halt_at("no request begins like this", 1, moment);
        proxy.let_in();
    }
    panic!("no count of the runner halts at {text}");
}

/// Kill runners at each step of the last ten ends of batches and of the count of the last one, this many times.
async fn kill_runners_at_each_step(kills: usize) {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let url = proxy.url();
    let env = [("TICKR_MYSQL_URL", url.as_str()), ("TICKR_WORKERS", "1"), ("TICKR_LEASE", "2s")];
    let (steps, mut batches, mut met) = (all_steps(), Vec::new(), BTreeSet::new());
    for kill in 0..kills {
        let mut runner = Runner::start(&tickr, &env);
        runner.base().await;
        // The batches before have ended. A job that is lost again and again would fail as the cause.
        tickr.until_count(LEFT, 0).await;
        tickr.until_count("SELECT COUNT(*) FROM owed", 0).await;
        // The first few are far from each other, and each comes up once before the first one comes up again.
        let at = kill * 35 % steps.len();
        let is_met = match steps[at] {
            Step::Settle(nth, moment) => {
                batches.push(halt_at_an_end(&tickr, &proxy, nth, moment).await);
                Some(nth)
            }
            Step::Count(request, moment) => {
                batches.extend(halt_at_a_count(&tickr, &proxy, COUNT[request], moment).await);
                None
            }
        };
        runner.kill9();
        // What the killed runner has sent and what has not arrived is lost with it.
        proxy.forget_connections();
        proxy.let_in();
        let batch = batches.last().expect("a batch was made");
        let left = "SELECT COUNT(*) FROM batch_jobs b JOIN owed o ON o.id = b.job_id WHERE b.batch_id = UNHEX";
        let left = usize::try_from(tickr.count(format!("{left}('{}')", hex_of(batch))).await).unwrap();
        // The end at which everything halted is written or not. A count comes after all ends.
        if is_met.map_or(left == 0, |nth| left + nth == 11 || left + nth == 12) {
            met.insert(at);
        }
        // The next runner need not wait for the end of the lease.
        tickr
            .sql(format!(
                "UPDATE runners SET heartbeat_at = heartbeat_at - INTERVAL 1 MINUTE WHERE pid = {}; \
                 UPDATE owed SET lease_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE state = 'executing'",
                runner.pid()
            ))
            .await;
    }
    let missed: Vec<Step> = (0..steps.len()).filter(|at| !met.contains(at)).map(|at| steps[at]).collect();
    println!("{kills} runners were killed, at {} of {} steps", met.len(), steps.len());
    // A runner that got an end of another batch in between met a step that was not meant.
    assert!(met.len() * 5 >= kills.min(steps.len()) * 4, "{kills} kills, but not at {missed:?}");
    assert!(kills < 10 * steps.len() || missed.is_empty(), "{kills} kills, but not at {missed:?}");
    let runner = Runner::start(&tickr, &env[1..]);
    assert_each_told_once(&tickr, &batches).await;
    drop(runner);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runners_killed_at_steps_of_the_last_ends_neither_lose_nor_double_a_callback() {
    kill_runners_at_each_step(5).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "kills a thousand runners, which takes about an hour"]
async fn a_thousand_runners_killed_at_each_step_of_the_last_ends_neither_lose_nor_double_a_callback() {
    kill_runners_at_each_step(1_000).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "kills a thousand runners, which takes about half an hour"]
async fn a_thousand_killed_runners_neither_lose_nor_double_an_end() {
    kill_runners(1_000).await;
}

/// Return the number of the next change of counts, by making one that changes nothing.
async fn next_change(tickr: &TestApp, batch: &Value) -> u64 {
    let change = "INSERT INTO batch_changes (batch_id, total, completed, failed, cancelled) VALUES (?, 0, 0, 0, 0)";
    let id: BatchId = serde_json::from_value(batch["id"].clone()).unwrap();
    sqlx::query(change).bind(id.uuid()).execute(&mut tickr.mysql().await).await.unwrap().last_insert_id()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ends_of_one_commit_change_the_counts_of_their_batch_once() {
    const JOBS: u64 = 128;
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|config| config.workers = 128, gated(&open)).await;
    let jobs: Vec<Value> = (0..JOBS).map(|_| json!({"kind": "gate", "payload": {}})).collect();
    let batch = create(&tickr, with(callbacks(), json!({"jobs": jobs, "close": true}))).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 128).await;
    let before = next_change(&tickr, &batch).await;
    // All of them end now, and a commit writes many ends.
    open.cancel();
    let ended = until(&tickr, &batch, "succeeded").await;
    assert_eq!(ended["completed"], JOBS);
    let changes = next_change(&tickr, &batch).await - before - 1;
    println!("{changes} changes of counts for {JOBS} ends");
    assert!((1..=JOBS / 4).contains(&changes), "{changes} changes for {JOBS} ends");
    tickr.until_count("SELECT COUNT(*) FROM batch_changes", 0).await;
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callbacks_of_a_large_batch_start_once_and_within_a_second_of_its_last_end() {
    let workers = |config: &mut Config| config.workers = 32;
    let tickr = TestApp::start_with(workers, Registry::new()).await;
    let one = tickr.another_with(workers, Registry::new()).await;
    let others = [one, tickr.another_with(workers, Registry::new()).await];
    let pulse = Pulse::start(&tickr).await;
    let began = tokio::time::Instant::now();
    let batch = create(&tickr, callbacks()).await;
    let job = json!({"kind": "noop", "payload": {}, "batch": batch["id"]});
    tickr.enqueue_many(std::iter::repeat_n(job, 3_000)).await;
    act(&tickr, &batch, "close").await;
    tickr.until_idle().await;
    let ended = until(&tickr, &batch, "succeeded").await;
    assert_eq!((&ended["total"], &ended["completed"]), (&json!(3_000), &json!(3_000)), "{ended:#}");
    for event in ["on_success", "on_complete"] {
        tickr.until(job_of(&batch, event), State::Completed).await;
    }
    tickr.assert_each_ran_once(3_002).await;
    let runners = tickr.count("SELECT COUNT(DISTINCT runner) FROM attempts").await;
    assert!(runners > 1, "one runner did everything");
    let late = "SELECT CAST(MAX(TIMESTAMPDIFF(MICROSECOND, (SELECT MAX(m.finished_at) FROM batch_jobs b \
                JOIN attempts m ON m.job_id = b.job_id), a.started_at)) DIV 1000 AS SIGNED) \
                FROM jobs j JOIN attempts a ON a.job_id = j.id WHERE j.options LIKE '%callback_of%'";
    let late_ms = tickr.count(late).await;
    println!("the callbacks started {late_ms} ms after the last end");
    assert!(late_ms >= 0, "a callback started before the last end");
    pulse.assert_prompt(late_ms, began);
    for other in others {
        other.stop(CancellationToken::new()).await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_come_into_a_batch_in_every_way_in_which_jobs_are_accepted() {
    let tickr = TestApp::start().await;
    let batch = create(&tickr, callbacks()).await;
    let id = batch["id"].as_str().unwrap();
    let unique = json!({"kind": "noop", "payload": {}, "batch": id, "unique_key": "u", "delay_ms": 600_000});
    let holder = tickr.enqueue(unique.clone()).await;
    // An answer in place of a new job adds none.
    assert_eq!(tickr.post("/v1/jobs", &unique).await.status, 200);
    let replaced = tickr.enqueue(with(unique, json!({"on_conflict": "replace", "delay_ms": 0}))).await;
    tickr.until(replaced, State::Completed).await;
    tickr.until(holder, State::Cancelled).await;
    for _ in 0..2 {
        let once = json!({"kind": "noop", "payload": {}, "batch": id});
        let request = tickr.request(reqwest::Method::POST, "/v1/jobs").header("idempotency-key", "one").json(&once);
        assert_eq!(crate::support::answer(request).await.status, 201);
    }
    let gone = JobId::new();
    let lines =
        [json!({"kind": "noop", "batch": id, "order_key": "k"}), json!({"kind": "noop", "batch": gone.to_string()})];
    let lines = lines.map(|line| line.to_string()).join("\n");
    let imported = tickr
        .request(reqwest::Method::POST, "/v1/jobs/import?on_error=continue")
        .header("content-type", "application/x-ndjson")
        .body(lines)
        .send()
        .await
        .unwrap();
    let imported = imported.text().await.unwrap();
    assert!(imported.contains("there is no batch"), "{imported}");
    let (row, wrong) = (uuid::Uuid::now_v7(), uuid::Uuid::now_v7());
    for (row, batch) in [(row, id.to_owned()), (wrong, gone.to_string())] {
        tickr
            .sql(format!(
                "INSERT INTO tickr_outbox (id, kind, payload, options) \
                 VALUES (UNHEX('{}'), 'noop', '{{}}', '{{\"batch\":\"{batch}\"}}')",
                row.simple()
            ))
            .await;
    }
    tickr.until_count("SELECT COUNT(*) FROM tickr_outbox", 0).await;
    tickr.until(JobId::from_uuid(row), State::Completed).await;
    tickr.until_count("SELECT COUNT(*) FROM outbox_rejected WHERE reason LIKE '%there is no batch%'", 1).await;
    act(&tickr, &batch, "close").await;
    let ended = until(&tickr, &batch, "failed").await;
    // The replaced one was cancelled.
    assert_eq!(
        (&ended["total"], &ended["completed"], &ended["cancelled"]),
        (&json!(5), &json!(4), &json!(1)),
        "{ended:#}"
    );
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_of_an_import_into_a_batch_that_is_over_says_wrong_state() {
    let tickr = TestApp::start().await;
    let (open, ended, cancelled) =
        (create(&tickr, json!({})).await, create(&tickr, json!({})).await, create(&tickr, json!({})).await);
    act(&tickr, &ended, "close").await;
    until(&tickr, &ended, "succeeded").await;
    act(&tickr, &cancelled, "cancel").await;
    let missing = json!(JobId::new().to_string());
    let batches = [&open["id"], &ended["id"], &cancelled["id"], &missing];
    let lines = batches.map(|batch| json!({"kind": "noop", "batch": batch, "delay_ms": 600_000}).to_string());
    let import = async || {
        let request = tickr
            .request(reqwest::Method::POST, "/v1/jobs/import?on_error=continue")
            .header("content-type", "application/x-ndjson")
            .header("idempotency-key", "lines");
        let text = request.body(lines.join("\n")).send().await.unwrap().text().await.unwrap();
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>()
    };
    let (first, again) = (import().await, import().await);
    for answers in [&first, &again] {
        let problems = answers.iter().take(4).map(|line| (&line["problem"]["status"], &line["problem"]["code"]));
        let over = (&json!(409), &json!("wrong_state"));
        let expected = [(&Value::Null, &Value::Null), over, over, (&json!(422), &json!("invalid_request"))];
        assert_eq!(problems.collect::<Vec<_>>(), expected, "{answers:#?}");
    }
    assert_eq!((&again[0]["id"], &again[0]["replayed"]), (&first[0]["id"], &json!(true)), "{again:#?}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_and_cancelled_jobs_count_and_removed_ones_stay_counted() {
    let tickr = TestApp::start().await;
    let later = json!({"kind": "noop", "payload": {}, "delay_ms": 600_000});
    let jobs = vec![later.clone(), with(later.clone(), json!({"delay_ms": 100, "expires_in_ms": 200})), later];
    assert_eq!(tickr.post("/v1/queues/default/pause", json!({})).await.status, 200);
    let batch = create(&tickr, json!({"jobs": jobs, "close": true})).await;
    let id = batch["id"].as_str().unwrap();
    let cancelled = batch["jobs"][0].as_str().unwrap();
    assert_eq!(tickr.post(&format!("/v1/jobs/{cancelled}/cancel"), json!({})).await.status, 200);
    eventually("one expired and one is cancelled", || async {
        let now = show(&tickr, &batch).await;
        (now["failed"] == 1 && now["cancelled"] == 1).then_some(())
    })
    .await;
    // A bulk operation cancels and removes jobs of the batch.
    let filter = json!({"batch": id});
    for action in ["cancel", "delete"] {
        let started = tickr.post("/v1/operations", json!({"action": action, "filter": filter})).await;
        assert_eq!(started.status, 202, "{:#}", started.body);
        let path = format!("/v1/operations/{}", started.body["id"].as_str().unwrap());
        eventually("the operation is over", || async {
            (tickr.get(&path).await.body["state"] == "done").then_some(())
        })
        .await;
    }
    let ended = until(&tickr, &batch, "failed").await;
    assert_eq!(
        (&ended["failed"], &ended["cancelled"], &ended["total"]),
        (&json!(1), &json!(2), &json!(3)),
        "{ended:#}"
    );
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 0);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM batch_jobs").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_added_while_its_batch_ends_is_refused_or_counted() {
    let tickr = TestApp::start().await;
    let (mut added, mut refused) = (0, 0);
    for round in 0..40_u64 {
        let batch = create(&tickr, json!({"jobs": [{"kind": "sleep", "payload": {"ms": 3}}], "close": true})).await;
        tokio::time::sleep(Duration::from_millis(round * 7 % 140)).await;
        let adds = (0..6)
            .map(|_| tickr.post("/v1/jobs", json!({"kind": "sleep", "payload": {"ms": 1}, "batch": batch["id"]})));
        for answer in futures_util::future::join_all(adds).await {
            match answer.status {
                201 => added += 1,
                409 => refused += 1,
                other => panic!("{other}: {:#}", answer.body),
            }
        }
    }
    tickr.until_idle().await;
    tickr.until_count(LEFT, 0).await;
    println!("{added} added, {refused} refused");
    assert!(added > 10 && refused > 10, "{added} added, {refused} refused");
    let late = "SELECT COUNT(*) FROM batch_jobs m JOIN attempts a ON a.job_id = m.job_id JOIN batches b ON b.id = m.batch_id \
                WHERE a.finished_at > b.completed_at";
    assert_eq!(tickr.count(late).await, 0);
    assert_eq!(tickr.count("SELECT CAST(SUM(total) AS SIGNED) FROM batches").await, 40 + added);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_any_number_of_nested_batches() {
    let tickr = TestApp::start().await;
    let outer = create(&tickr, json!({})).await;
    let id = outer["id"].as_str().unwrap();
    // As many as two pages of them, written at once.
    tickr
        .sql(format!(
            "INSERT INTO batches (id, parent, actor, created_at) WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL \
             SELECT n + 1 FROM n WHERE n < 600) SELECT UNHEX(LEFT(SHA2(n, 256), 32)), UNHEX(REPLACE('{id}', '-', '')), 'test', \
             UTC_TIMESTAMP(6) FROM n"
        ))
        .await;
    tickr.sql(format!("UPDATE batches SET total = 600 WHERE id = UNHEX(REPLACE('{id}', '-', ''))")).await;
    act(&tickr, &outer, "cancel").await;
    // The response comes after the marks. A runner that finds a cancel broken off goes on with it five seconds later.
    assert_eq!(tickr.count("SELECT COUNT(*) FROM batches WHERE cancelled_at IS NOT NULL").await, 601);
    until(&tickr, &outer, "cancelled").await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_whose_process_died_after_the_first_mark_reaches_the_nested_batches() {
    let tickr = TestApp::start().await;
    let outer = create(&tickr, json!({})).await;
    let jobs = json!([{"kind": "noop", "payload": {}, "delay_ms": 600_000}]);
    let nested = create(&tickr, json!({"parent": outer["id"], "jobs": jobs})).await;
    let inner = create(&tickr, json!({"parent": nested["id"], "jobs": jobs})).await;
    // What the first transaction of the cancel leaves.
    let id = format!("UNHEX(REPLACE('{}', '-', ''))", outer["id"].as_str().unwrap());
    tickr
        .sql(format!(
            "UPDATE batches SET cancelled_at = UTC_TIMESTAMP(6), closed_at = UTC_TIMESTAMP(6) WHERE id = {id}; \
             INSERT INTO batch_cancels (batch_id, touched_at) VALUES ({id}, UTC_TIMESTAMP(6) - INTERVAL 6 SECOND)"
        ))
        .await;
    for batch in [&inner, &nested, &outer] {
        until(&tickr, batch, "cancelled").await;
    }
    for batch in [&inner, &nested] {
        tickr.until(batch["jobs"][0].as_str().unwrap().parse().unwrap(), State::Cancelled).await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_whose_time_is_up_while_it_marks_nested_batches_is_finished_by_a_runner() {
    let tickr = TestApp::start().await;
    let outer = create(&tickr, json!({})).await;
    for _ in 0..3 {
        create(&tickr, json!({"parent": outer["id"]})).await;
    }
    let id: BatchId = serde_json::from_value(outer["id"].clone()).unwrap();
    let (by, stop) = (Actor::tickr(), CancellationToken::new());
    let broker = tickr.app.broker();
    assert_eq!(broker.store().cancel_batch(id, &by).await.unwrap(), CancelMark::Marked);
    // No other runner goes on with it yet.
    tickr.sql("UPDATE batch_cancels SET touched_at = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR").await;
    stop.cancel();
    assert!(!broker.cancel_marked_batch(id, &by, &stop).await.unwrap());
    assert_eq!(tickr.count("SELECT COUNT(*) FROM batches WHERE cancelled_at IS NOT NULL").await, 1);
    tickr.sql("UPDATE batch_cancels SET touched_at = '2026-01-01'").await;
    until(&tickr, &outer, "cancelled").await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM batches WHERE cancelled_at IS NOT NULL").await, 4);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_of_a_batch_that_ends_at_this_moment_answers_409() {
    let tickr = TestApp::start().await;
    let batch = create(&tickr, json!({})).await;
    tickr.until_count("SELECT COUNT(*) FROM batch_changes", 0).await;
    let mut session = tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    let end = "UPDATE batches SET closed_at = UTC_TIMESTAMP(6), completed_at = UTC_TIMESTAMP(6), \
               succeeded_at = UTC_TIMESTAMP(6)";
    session.execute(end).await.unwrap();
    let cancel = format!("/v1/batches/{}/cancel", batch["id"].as_str().unwrap());
    let ends = async {
        tickr.until_said("SELECT cancelled_at IS NOT NULL", 1).await;
        session.execute("COMMIT").await.unwrap();
    };
    let (answer, ()) = tokio::join!(tickr.post(&cancel, json!({})), ends);
    assert_eq!((answer.status, answer.code()), (409, "wrong_state"), "{:#}", answer.body);
    assert!(answer.body["detail"].as_str().unwrap().contains("it is succeeded"), "{:#}", answer.body);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM batches WHERE cancelled_at IS NOT NULL").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_waits_for_a_lock_holds_up_the_count_of_no_batch() {
    let tickr = TestApp::start().await;
    let batch = create(&tickr, json!({})).await;
    let job = json!({"kind": "noop", "payload": {}, "batch": batch["id"], "unique_key": "u", "delay_ms": 600_000});
    let job = tickr.enqueue(job).await;
    let mut session = tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    let key = "SELECT * FROM unique_keys WHERE unique_key = 'u' FOR UPDATE";
    assert!(session.fetch_optional(key).await.unwrap().is_some());
    // The process that was asked for the cancel has died after the mark.
    let id = format!("UNHEX(REPLACE('{}', '-', ''))", batch["id"].as_str().unwrap());
    tickr
        .sql(format!(
            "UPDATE batches SET cancelled_at = UTC_TIMESTAMP(6), closed_at = UTC_TIMESTAMP(6) WHERE id = {id}; \
             INSERT INTO batch_cancels (batch_id, touched_at) VALUES ({id}, UTC_TIMESTAMP(6) - INTERVAL 6 SECOND)"
        ))
        .await;
    // The runner waits five seconds for the unique key. On a busy machine a count may take longer than that.
    let mut counted_meanwhile = false;
    for _ in 0..3 {
        tickr.until_said("DELETE k FROM", 1).await;
        let other = create(&tickr, json!({"close": true, "on_success": {"kind": "noop", "payload": {}}})).await;
        until(&tickr, &other, "succeeded").await;
        tickr.until(job_of(&other, "on_success"), State::Completed).await;
        let sessions = session.fetch_all("SHOW PROCESSLIST").await.unwrap();
        counted_meanwhile = sessions.iter().any(|row| {
            let text = |name| row.try_get_unchecked::<Option<Vec<u8>>, _>(name).unwrap().unwrap_or_default();
            text("db") == tickr.database().as_bytes() && text("Info").starts_with(b"DELETE k FROM")
        });
        if counted_meanwhile {
            break;
        }
        tickr.sql("UPDATE batch_cancels SET touched_at = '2026-01-01'").await;
    }
    assert!(counted_meanwhile, "each count came after the wait");
    session.execute("ROLLBACK").await.unwrap();
    tickr.until(job, State::Cancelled).await;
    until(&tickr, &batch, "cancelled").await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follow_up_job_of_a_cancelled_batch_is_sound_in_its_order_until_it_is_cancelled() {
    let open = CancellationToken::new();
    let mut kinds = Registry::new();
    let opened = open.clone();
    kinds.register(move |_: Grow, _: Context| {
        let opened = opened.clone();
        async move {
            opened.cancelled().await;
            // One behind a job of another batch, and one at the head of its key.
            Output::default().then_all([
                FollowUp::of(&Grow { left: 0 })?.in_batch().order_key("busy"),
                FollowUp::of(&Grow { left: 0 })?.in_batch().order_key("free"),
            ])
        }
    });
    let tickr = TestApp::start_with(|_| {}, kinds).await;
    tickr.enqueue(json!({"kind": "noop", "payload": {}, "order_key": "busy", "delay_ms": 600_000})).await;
    let batch = create(&tickr, json!({"jobs": [{"kind": "grow", "payload": {"left": 0}}]})).await;
    let ids: Vec<JobId> = serde_json::from_value(batch["jobs"].clone()).unwrap();
    tickr.until(ids[0], State::Executing).await;
    // The process that marked the batch is slow to cancel its jobs, and no other one begins yet.
    let id = format!("UNHEX(REPLACE('{}', '-', ''))", batch["id"].as_str().unwrap());
    tickr
        .sql(format!(
            "UPDATE batches SET cancelled_at = UTC_TIMESTAMP(6), closed_at = UTC_TIMESTAMP(6) WHERE id = {id}; \
             INSERT INTO batch_cancels (batch_id, touched_at) VALUES ({id}, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR)"
        ))
        .await;
    open.cancel();
    tickr.until(ids[0], State::Completed).await;
    let blocked = "SELECT COUNT(*) FROM owed WHERE execute_at = '9999-12-31 12:00:00'";
    assert_eq!(tickr.count(blocked).await, 2);
    tickr.assert_sound().await;
    tickr.sql("UPDATE batch_cancels SET touched_at = '2026-01-01'").await;
    until(&tickr, &batch, "cancelled").await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_takes_the_place_of_a_failed_job_in_its_batch() {
    let mended = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, broken(&mended)).await;
    let jobs = json!([{"kind": "broken", "payload": {}, "max_attempts": 1}, {"kind": "noop", "payload": {}}]);
    let batch = create(&tickr, with(callbacks(), json!({"jobs": jobs, "close": true}))).await;
    until(&tickr, &batch, "failed").await;
    mended.cancel();
    let replayed = tickr.post(&format!("/v1/jobs/{}/replay", batch["jobs"][0].as_str().unwrap()), json!({})).await;
    assert_eq!((replayed.status, &replayed.body["batch"]), (201, &batch["id"]), "{:#}", replayed.body);
    let ended = until(&tickr, &batch, "succeeded").await;
    assert_eq!(
        (&ended["total"], &ended["completed"], &ended["failed"]),
        (&json!(2), &json!(2), &json!(0)),
        "{ended:#}"
    );
    tickr.until(job_of(&batch, "on_success"), State::Completed).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_retried_in_a_cancelled_batch_may_add_others() {
    let tickr = TestApp::start_with(|_| {}, growing()).await;
    let grow = json!({"kind": "grow", "payload": {"left": 2}, "delay_ms": 600_000});
    let batch = create(&tickr, json!({"jobs": [grow], "close": true})).await;
    act(&tickr, &batch, "cancel").await;
    until(&tickr, &batch, "cancelled").await;
    let member = batch["jobs"][0].as_str().unwrap();
    assert_eq!(tickr.post(&format!("/v1/jobs/{member}/retry"), json!({})).await.status, 200);
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'", 5).await;
    eventually("the batch has counted them", || async {
        let now = show(&tickr, &batch).await;
        (now["completed"] == 5 && now["pending"] == 0).then_some(())
    })
    .await;
    assert_eq!(show(&tickr, &batch).await["state"], "cancelled");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_retried_in_a_cancelled_batch_is_not_cancelled_again() {
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, gated(&open)).await;
    let job = json!({"kind": "gate", "payload": {}, "delay_ms": 600_000});
    let batch = create(&tickr, json!({"jobs": [job], "close": true})).await;
    let id: BatchId = batch["id"].as_str().unwrap().parse().unwrap();
    act(&tickr, &batch, "cancel").await;
    until(&tickr, &batch, "cancelled").await;
    let member: JobId = batch["jobs"][0].as_str().unwrap().parse().unwrap();
    assert_eq!(tickr.post(&format!("/v1/jobs/{member}/retry"), json!({})).await.status, 200);
    tickr.until(member, State::Executing).await;
    // The row of the cancel is still there, and old enough for a runner that goes on with it.
    tickr.sql("UPDATE batch_cancels SET touched_at = touched_at - INTERVAL 10 SECOND").await;
    tickr.until_count("SELECT COUNT(*) FROM batch_cancels", 0).await;
    // A runner that has read the row before goes on now.
    assert!(tickr.app.broker().cancel_batch_jobs(&[id], &CancellationToken::new(), false).await.unwrap());
    let asked = "SELECT COUNT(*) FROM owed WHERE cancel_requested_at IS NOT NULL";
    assert_eq!(tickr.count(asked).await, 0);
    assert_eq!(tickr.job(member).await["state"], "executing");
    open.cancel();
    tickr.until(member, State::Completed).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_does_not_end_while_a_job_is_being_added() {
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, gated(&open)).await;
    let batch = create(&tickr, json!({"jobs": [{"kind": "gate", "payload": {}}], "close": true})).await;
    let first: JobId = batch["jobs"][0].as_str().unwrap().parse().unwrap();
    tickr.until(first, State::Executing).await;
    // The request has looked at the batch, and waits for this table in the middle of its transaction.
    let mut other = tickr.mysql().await;
    other.execute("LOCK TABLES job_tags WRITE").await.unwrap();
    let job = json!({"kind": "noop", "payload": {}, "batch": batch["id"], "tags": ["t"]});
    let add = tickr.post("/v1/jobs", job);
    let meanwhile = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        open.cancel();
        tickr.until_count("SELECT COUNT(*) FROM attempts", 1).await;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let ended = tickr.count("SELECT COUNT(*) FROM batches WHERE completed_at IS NOT NULL").await;
        other.execute("UNLOCK TABLES").await.unwrap();
        ended
    };
    let (added, ended) = tokio::join!(add, meanwhile);
    assert_eq!((added.status, ended), (201, 0), "{:#}", added.body);
    let ended = until(&tickr, &batch, "succeeded").await;
    assert_eq!(ended["total"], 2);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_that_a_dead_runner_left_are_counted_within_seconds() {
    let tickr = TestApp::start().await;
    let began = std::time::Instant::now();
    tickr
        .sql(
            "INSERT INTO batches (id, actor, created_at, closed_at) \
             VALUES (UNHEX(LEFT(SHA2('b', 256), 32)), 'test', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)); \
             INSERT INTO batch_changes (batch_id, total, completed, failed, cancelled) \
             VALUES (UNHEX(LEFT(SHA2('b', 256), 32)), 3, 2, 0, 0), (UNHEX(LEFT(SHA2('b', 256), 32)), 0, 1, 0, 0)",
        )
        .await;
    tickr.until_count("SELECT COUNT(*) FROM batches WHERE succeeded_at IS NOT NULL", 1).await;
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    tickr.stop().await;
}

/// A look finds 256 batches, and the next one follows at once. A look that was not followed at once would mostly come a
/// second later.
#[tokio::test(flavor = "multi_thread")]
async fn many_small_batches_that_end_together_are_counted_without_a_rest_between_looks() {
    const BATCHES: usize = 800;
    const REST_US: i64 = 400_000;
    let tickr = TestApp::start().await;
    let id = |n: usize| format!("UNHEX('{n:032x}')");
    let made = |n| format!("({}, 'test', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))", id(n));
    let changed = |n| format!("({}, 1, 1, 0, 0)", id(n));
    let list = |row: &dyn Fn(usize) -> String| (1..=BATCHES).map(row).collect::<Vec<_>>().join(",");
    // All changes are committed together, as by the ends of a large commit.
    tickr
        .sql(format!(
            "INSERT INTO batches (id, actor, created_at, closed_at) VALUES {}; \
             INSERT INTO batch_changes (batch_id, total, completed, failed, cancelled) VALUES {}",
            list(&made),
            list(&changed)
        ))
        .await;
    tickr.until_count("SELECT COUNT(*) FROM batches WHERE succeeded_at IS NOT NULL", BATCHES as i64).await;
    let mut gaps_us = Vec::new();
    // Each look begins at a place of its own.
    for last in (256..BATCHES).step_by(256) {
        let range = |from, to| format!("FROM batches WHERE id BETWEEN {} AND {}", id(from), id(to));
        let before = format!("(SELECT MAX(completed_at) {})", range(last - 255, last));
        let after = format!("(SELECT MIN(completed_at) {})", range(last + 1, BATCHES.min(last + 256)));
        let gap = format!("SELECT TIMESTAMPDIFF(MICROSECOND, {before}, {after})");
        gaps_us.push(tickr.count(gap).await);
    }
    println!("{gaps_us:?} microseconds between the last batch of a look and the first one of the next");
    assert!(gaps_us.iter().all(|gap| *gap >= 0), "a look is not one for 256 batches: {gaps_us:?}");
    // The machine may stand still between two of them.
    let short = gaps_us.iter().filter(|gap| **gap < REST_US).count();
    assert!(short * 2 > gaps_us.len(), "{gaps_us:?}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_told_also_when_its_job_is_retried_before_a_runner_counts() {
    let tickr = TestApp::start().await;
    let jobs = json!([{"kind": "noop", "payload": {}, "delay_ms": 600_000}]);
    let batch = create(&tickr, with(callbacks(), json!({"jobs": jobs}))).await;
    // What the end of the job and its retry leave when both are committed before the next count.
    let id = format!("UNHEX(REPLACE('{}', '-', ''))", batch["id"].as_str().unwrap());
    tickr
        .sql(format!(
            "INSERT INTO batch_changes (batch_id, total, completed, failed, cancelled) \
             VALUES ({id}, 0, 0, 1, 0), ({id}, 0, 0, -1, 0)"
        ))
        .await;
    let told = job_of(&batch, "on_failure");
    eventually("the callback is enqueued", || async { exists(&tickr, told).await.then_some(()) }).await;
    assert_eq!(show(&tickr, &batch).await["failed"], 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_cannot_be_counted_holds_up_no_other() {
    let tickr = TestApp::start().await;
    let bad = create(&tickr, with(callbacks(), json!({}))).await;
    tickr.until_count("SELECT COUNT(*) FROM batch_changes", 0).await;
    // No runner can read its callbacks, so its change stays the oldest one.
    let id = format!("UNHEX(REPLACE('{}', '-', ''))", bad["id"].as_str().unwrap());
    tickr
        .sql(format!(
            "UPDATE batches SET callbacks = CONCAT('?', callbacks) WHERE id = {id}; \
             INSERT INTO batch_changes (batch_id, total, completed, failed, cancelled) VALUES ({id}, 0, 0, 0, 0)"
        ))
        .await;
    let good = create(&tickr, json!({"jobs": [{"kind": "noop", "payload": {}}], "close": true})).await;
    until(&tickr, &good, "succeeded").await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM batch_changes").await, 1);
    tickr.sql(format!("UPDATE batches SET callbacks = SUBSTRING(callbacks, 2) WHERE id = {id}")).await;
    tickr.until_count("SELECT COUNT(*) FROM batch_changes", 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_locked_holds_up_the_count_of_no_other() {
    let tickr = TestApp::start().await;
    let locked = create(&tickr, callbacks()).await;
    tickr.until_count("SELECT COUNT(*) FROM batch_changes", 0).await;
    // A runner that freezes while it counts a batch keeps its row. The change of the batch stays the oldest one.
    let id = format!("UNHEX(REPLACE('{}', '-', ''))", locked["id"].as_str().unwrap());
    let mut session = tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    let row = format!("SELECT id FROM batches WHERE id = {id} FOR UPDATE");
    sqlx::query(sqlx::AssertSqlSafe(row)).fetch_one(&mut session).await.unwrap();
    // It has more changes than one look reads.
    let changes = vec![format!("({id}, 0, 0, 0, 0)"); 2_500].join(",");
    tickr
        .sql(format!("INSERT INTO batch_changes (batch_id, total, completed, failed, cancelled) VALUES {changes}"))
        .await;
    for _ in 0..2 {
        let good = create(&tickr, json!({"jobs": [{"kind": "noop", "payload": {}}], "close": true})).await;
        until(&tickr, &good, "succeeded").await;
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM batch_changes").await, 2_500);
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_count("SELECT COUNT(*) FROM batch_changes", 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_cannot_be_read_keeps_no_other_job_of_its_batch_from_being_cancelled() {
    let tickr = TestApp::start().await;
    let waits = json!({"kind": "noop", "payload": {}, "delay_ms": 3_600_000});
    let batch = create(&tickr, json!({"jobs": [waits, waits, waits], "close": true})).await;
    let ids: Vec<JobId> = serde_json::from_value(batch["jobs"].clone()).unwrap();
    let kind = |kind: &str| format!("UPDATE owed SET kind = '{kind}' WHERE id = UNHEX('{}')", ids[0].uuid().simple());
    tickr.sql(kind("No Kind")).await;
    tickr.post(&format!("/v1/batches/{}/cancel", batch["id"].as_str().unwrap()), json!({})).await;
    for id in &ids[1..] {
        tickr.until(*id, State::Cancelled).await;
    }
    tickr.sql(kind("noop")).await;
    tickr.until(ids[0], State::Cancelled).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_locked_keeps_no_other_job_of_its_batch_from_being_cancelled() {
    let tickr = TestApp::start().await;
    let waits = json!({"kind": "noop", "payload": {}, "delay_ms": 3_600_000});
    let ordered = with(waits.clone(), json!({"order_key": "o"}));
    let batch = create(&tickr, json!({"jobs": [waits, ordered, waits], "close": true})).await;
    let ids: Vec<JobId> = serde_json::from_value(batch["jobs"].clone()).unwrap();
    // Runners that freeze in a transaction keep such locks.
    let mut session = tickr.mysql().await;
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    session.execute("BEGIN").await.unwrap();
    let row = sqlx::query("SELECT id FROM owed WHERE id = ? FOR UPDATE").bind(ids[0].uuid());
    row.fetch_one(&mut session).await.unwrap();
    let key = "SELECT * FROM order_keys WHERE order_key = 'o' FOR UPDATE";
    assert!(session.fetch_optional(key).await.unwrap().is_some());
    let cancel = format!("/v1/batches/{}/cancel", batch["id"].as_str().unwrap());
    let answer = tickr.post(&cancel, json!({})).await;
    assert_eq!(answer.status, 202, "two jobs may still start: {:#}", answer.body);
    tickr.until(ids[2], State::Cancelled).await;
    for id in &ids[..2] {
        assert_eq!(tickr.job(*id).await["state"], "waiting");
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM batch_cancels").await, 1);
    session.execute("ROLLBACK").await.unwrap();
    for id in &ids[..2] {
        tickr.until(*id, State::Cancelled).await;
    }
    until(&tickr, &batch, "cancelled").await;
    tickr.until_count("SELECT COUNT(*) FROM batch_cancels", 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_freezes_in_the_cancel_of_a_batch_keeps_no_other_from_cancelling_its_jobs() {
    let tickr = TestApp::start().await;
    let waits = json!({"kind": "noop", "payload": {}, "delay_ms": 3_600_000});
    let batch = create(&tickr, json!({"jobs": [waits, waits], "close": true})).await;
    let ids: Vec<JobId> = serde_json::from_value(batch["jobs"].clone()).unwrap();
    let id = format!("UNHEX(REPLACE('{}', '-', ''))", batch["id"].as_str().unwrap());
    tickr
        .sql(format!(
            "UPDATE batches SET cancelled_at = UTC_TIMESTAMP(6) WHERE id = {id}; \
             INSERT INTO batch_cancels (batch_id, touched_at) VALUES ({id}, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR)"
        ))
        .await;
    // The frozen one was about to commit.
    let mut session = tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    let row = format!("SELECT * FROM batch_cancels WHERE batch_id = {id} FOR UPDATE");
    sqlx::query(sqlx::AssertSqlSafe(row)).fetch_one(&mut session).await.unwrap();
    let answer = tickr.post(&format!("/v1/batches/{}/cancel", batch["id"].as_str().unwrap()), json!({})).await;
    assert_eq!(answer.status, 200, "{:#}", answer.body);
    for id in &ids {
        assert_eq!(tickr.job(*id).await["state"], "cancelled");
    }
    session.execute("ROLLBACK").await.unwrap();
    tickr.sql("UPDATE batch_cancels SET touched_at = '2026-01-01'").await;
    tickr.until_count("SELECT COUNT(*) FROM batch_cancels", 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_of_a_batch_with_thousands_of_locked_jobs_waits_for_their_locks_once() {
    let tickr = TestApp::start().await;
    let batch = create(&tickr, callbacks()).await;
    let job = json!({"kind": "noop", "payload": {}, "delay_ms": 3_600_000, "order_key": "o", "batch": batch["id"]});
    tickr.enqueue_many(std::iter::repeat_n(job, 2_001)).await;
    let mut session = tickr.mysql().await;
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    session.execute("BEGIN").await.unwrap();
    let key = "SELECT * FROM order_keys WHERE order_key = 'o' FOR UPDATE";
    assert!(session.fetch_optional(key).await.unwrap().is_some());
    let batches: [BatchId; 1] = [serde_json::from_value(batch["id"].clone()).unwrap()];
    let stop = CancellationToken::new();
    // One wait takes five seconds, and there are three parts.
    let cancel = tickr.app.broker().cancel_batch_jobs(&batches, &stop, true);
    let all = tokio::time::timeout(Duration::from_secs(10), cancel).await.expect("it waits once");
    assert!(!all.unwrap());
    session.execute("ROLLBACK").await.unwrap();
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_holds_with_a_paused_queue_a_limit_a_drained_runner_and_a_backlog_of_others() {
    let tickr = TestApp::start_with(|config| config.workers = 8, Registry::new()).await;
    let other = tickr.another().await;
    let runner = other.runner().to_string().replace('/', "%2F");
    let drained = tickr.post(&format!("/v1/runners/{runner}/drain"), json!({"reason": "test"})).await;
    assert_eq!(drained.status, 200, "{:#}", drained.body);
    set_and_wait(&tickr, "per-tenant", json!({"concurrency": 1})).await;
    Owed { queue: "'elsewhere'", ..Owed::overdue(10_000) }.insert_waiting(&tickr, 1).await;
    assert_eq!(tickr.post("/v1/queues/default/pause", json!({})).await.status, 200);
    let root = json!({"kind": "sleep", "payload": {"ms": 5}, "limit_key": "t"});
    let child = |parent: u32| with(root.clone(), json!({"after": [parent], "on_parent_failure": "run"}));
    let mut jobs = vec![root.clone(); 6];
    jobs.extend((0..6).map(child));
    let batch = create(&tickr, with(callbacks(), json!({"jobs": jobs, "close": true}))).await;
    // One parent is cancelled and removed while the queue is paused.
    let gone = batch["jobs"][0].as_str().unwrap();
    assert_eq!(tickr.post(&format!("/v1/jobs/{gone}/cancel"), json!({})).await.status, 200);
    tickr.until_count("SELECT COUNT(*) FROM parent_ends", 0).await;
    let deleted = tickr.post("/v1/operations", json!({"action": "delete", "filter": {"ids": [gone]}})).await;
    assert_eq!(deleted.status, 202, "{:#}", deleted.body);
    tickr.until_count(format!("SELECT COUNT(*) FROM jobs WHERE id = UNHEX(REPLACE('{gone}', '-', ''))"), 0).await;
    assert_eq!(show(&tickr, &batch).await["pending"], 11);
    assert_eq!(tickr.post("/v1/queues/default/resume", json!({})).await.status, 200);
    let ended = until(&tickr, &batch, "failed").await;
    assert_eq!(
        (&ended["completed"], &ended["cancelled"], &ended["total"]),
        (&json!(11), &json!(1), &json!(12)),
        "{ended:#}"
    );
    tickr.until(job_of(&batch, "on_complete"), State::Completed).await;
    let overlaps = "SELECT COUNT(*) FROM attempts a JOIN attempts b ON b.job_id > a.job_id AND b.started_at < a.finished_at \
                    AND b.finished_at > a.started_at JOIN job_limit_keys k ON k.job_id = a.job_id \
                    JOIN job_limit_keys l ON l.job_id = b.job_id WHERE a.runner <> '' AND b.runner <> ''";
    assert_eq!(tickr.count(overlaps).await, 0);
    Owed::remove(&tickr).await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}
