//! The timeline of a job: each wait has its cause, and the segments have no gap from the acceptance to the end.

use serde_json::{Value, json};
use tickr::handlers::Registry;
use tickr::job::{JobId, State};
use tokio_util::sync::CancellationToken;

use crate::support::browser::{Browser, link};
use crate::support::limits::set_and_wait;
use crate::support::program::{command, outcome, tickr as program};
use crate::support::{TestApp, broken, eventually, gated};

/// Read the timeline of a job, and check that its segments follow each other without a gap.
async fn timeline(tickr: &TestApp, id: JobId) -> Value {
    let answer = tickr.get(&format!("/v1/jobs/{id}/timeline")).await;
    assert_eq!(answer.status, 200, "{:#}", answer.body);
    let mut from = answer.body["from"].clone();
    for segment in answer.body["segments"].as_array().unwrap() {
        assert_eq!(segment["from"], from, "{:#}", answer.body);
        from = segment["to"].clone();
    }
    assert!(from.is_null() || from == answer.body["to"], "{:#}", answer.body);
    answer.body
}

/// Return the causes in their order, without those that took no time worth mentioning.
fn causes(timeline: &Value) -> Vec<&str> {
    let segments = timeline["segments"].as_array().unwrap().iter();
    segments.filter(|one| one["ms"].as_f64() > Some(20.0)).map(|one| one["cause"].as_str().unwrap()).collect()
}

fn total(timeline: &Value, cause: &str) -> u64 {
    timeline["total_ms"][cause].as_u64().unwrap_or_default()
}

fn segment<'t>(timeline: &'t Value, cause: &str) -> &'t Value {
    let segments = timeline["segments"].as_array().unwrap();
    segments.iter().find(|one| one["cause"] == cause).unwrap_or_else(|| panic!("no {cause} in {timeline:#}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_waits_for_its_time_and_for_a_paused_queue_and_backs_off_after_a_failure() {
    let mended = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, broken(&mended)).await;
    let retry = json!({"delays_ms": [700], "jitter": 0.0});
    let job = json!({"kind": "broken", "delay_ms": 600, "retry": retry, "max_attempts": 3});
    assert_eq!(tickr.post("/v1/queues/default/pause", json!({"reason": "a deploy"})).await.status, 200);
    let id = tickr.enqueue(job).await;
    // The queue stays paused until the job has been due for a while.
    let waiting = eventually("it has waited for the paused queue", || async {
        let now = timeline(&tickr, id).await;
        (total(&now, "queue_paused") > 500).then_some(now)
    })
    .await;
    assert_eq!(causes(&waiting), ["not_due", "queue_paused"], "{waiting:#}");
    let paused = segment(&waiting, "queue_paused");
    assert_eq!((&paused["to"], &paused["derived"]), (&Value::Null, &json!(true)), "{paused:#}");
    assert_eq!(paused["text"], "the queue was paused by anyone: a deploy");
    assert_eq!(tickr.post("/v1/queues/default/resume", json!({})).await.status, 200);
    tickr.until(id, State::Retrying).await;
    mended.cancel();
    tickr.until(id, State::Completed).await;

    let over = timeline(&tickr, id).await;
    let found = causes(&over);
    assert!(found.starts_with(&["not_due", "queue_paused"]) && found.contains(&"backoff"), "{over:#}");
    assert!((550..=650).contains(&total(&over, "not_due")), "{over:#}");
    assert!((650..=750).contains(&total(&over, "backoff")), "{over:#}");
    assert!(total(&over, "queue_paused") > 500, "{over:#}");
    let runs: Vec<&Value> =
        over["segments"].as_array().unwrap().iter().filter(|one| one["cause"] == "running").collect();
    assert_eq!(runs.len(), 2, "{over:#}");
    assert_eq!((&runs[0]["attempt"], &runs[1]["attempt"]), (&json!(1), &json!(2)));
    assert_eq!(segment(&over, "backoff")["derived"], false);
    let mut tool = command(&program(), tickr.dir.path(), &["jobs", "timeline", &id.to_string()]);
    tool.env("TICKR_URL", tickr.url(""));
    let (code, out, err) = outcome(tool).await;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    for part in ["not_due", "the queue was paused by anyone: a deploy", "backed off before attempt 2", "attempt 2 ran"]
    {
        assert!(out.contains(part), "{part} is not in:\n{out}");
    }
    tickr.stop().await;
}

/// A job that is snoozed again and again has any number of lines in the ledger.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_thousands_of_attempts_shows_how_it_ended_and_the_last_of_them() {
    let tickr = TestApp::start().await;
    let id = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(id, State::Completed).await;
    let bytes = format!("UNHEX('{}')", id.uuid().simple());
    tickr
        .sql(format!(
            "UPDATE attempts SET number = 1201 WHERE job_id = {bytes}; \
             INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict) \
             WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 200) \
             SELECT e.job_id, (a.n - 1) * 6 + b.n, 0, e.runner, e.execute_at, e.started_at, e.started_at, 'snoozed' \
             FROM attempts e JOIN n a JOIN n b ON b.n <= 6 WHERE e.job_id = {bytes} AND e.number = 1201"
        ))
        .await;
    let answer = tickr.get(&format!("/v1/jobs/{id}/timeline")).await;
    assert_eq!((answer.status, &answer.body["state"]), (200, &json!("completed")), "{:#}", answer.body);
    let job = tickr.job(id).await;
    assert_eq!(answer.body["to"], job["finished_at"]);
    let attempts = job["attempts"].as_array().unwrap();
    let [first, last] = [&attempts[0]["number"], &attempts[attempts.len() - 1]["number"]];
    assert_eq!((attempts.len(), first, last), (1_000, &json!(202), &json!(1_201)));
    assert_eq!((&job["state"], &attempts[999]["verdict"]), (&json!("completed"), &json!("succeeded")));
    let runs = answer.body["segments"].as_array().unwrap().iter().filter(|one| one["cause"] == "running");
    assert_eq!(runs.count(), 1_000);
    tickr.stop_broken("its attempts are made up").await;
}

/// The time for which a job was parked is recorded when it is let go, so it is known after the end of the job.
#[tokio::test(flavor = "multi_thread")]
async fn the_wait_for_a_limit_is_recorded_for_the_attempt_that_it_held_up() {
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, gated(&open)).await;
    set_and_wait(&tickr, "tenants", json!({"concurrency": 1})).await;
    let job = json!({"kind": "gate", "limit_key": "tenant-7"});
    let first = tickr.enqueue(job.clone()).await;
    tickr.until(first, State::Executing).await;
    let second = tickr.enqueue(job).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 1).await;
    let parked = eventually("it has waited for a while", || async {
        let now = timeline(&tickr, second).await;
        (total(&now, "limit") > 300).then_some(now)
    })
    .await;
    assert_eq!(segment(&parked, "limit")["to"], Value::Null, "{parked:#}");
    let records =
        |id: JobId| format!("SELECT COUNT(*) FROM limit_holds WHERE job_id = x'{}'", id.to_string().replace('-', ""));
    assert_eq!(tickr.count(records(second)).await, 0, "nothing is recorded before it is let go");
    open.cancel();
    tickr.until(second, State::Completed).await;
    let over = timeline(&tickr, second).await;
    let limit = segment(&over, "limit");
    assert_eq!((&limit["limit"], &limit["attempt"]), (&json!("tenants"), &json!(1)), "{over:#}");
    assert_eq!((&limit["derived"], &limit["text"]), (&json!(false), &json!("waited for room at the limit tenants")));
    assert!(total(&over, "limit") > 300, "{over:#}");
    assert_eq!(tickr.count(records(second)).await, 1);
    // A job without a limit was not parked, and nothing was recorded for it.
    let plain = tickr.enqueue(json!({"kind": "noop"})).await;
    tickr.until(plain, State::Completed).await;
    assert_eq!((total(&timeline(&tickr, plain).await, "limit"), tickr.count(records(plain)).await), (0, 0));
    // The record goes with its job.
    let delete = json!({"action": "delete", "filter": {"ids": [second]}});
    assert_eq!(tickr.post("/v1/operations", delete).await.status, 202);
    tickr.until_count(records(second), 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_for_parents_and_behind_an_order_key_end_when_the_turn_comes() {
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, gated(&open)).await;
    let head = tickr.enqueue(json!({"kind": "gate", "order_key": "parcel-1"})).await;
    tickr.until(head, State::Executing).await;
    let behind = tickr.enqueue(json!({"kind": "noop", "order_key": "parcel-1"})).await;
    let child = tickr.enqueue(json!({"kind": "noop", "after": [head]})).await;
    for (id, cause) in [(behind, "order_key"), (child, "parents")] {
        let waits = eventually("it has waited for a while", || async {
            let now = timeline(&tickr, id).await;
            (total(&now, cause) > 200).then_some(now)
        })
        .await;
        assert_eq!(causes(&waits), [cause], "{waits:#}");
    }
    open.cancel();
    for (id, cause) in [(behind, "order_key"), (child, "parents")] {
        tickr.until(id, State::Completed).await;
        let over = timeline(&tickr, id).await;
        assert!(total(&over, cause) > 200, "{over:#}");
        assert_eq!(segment(&over, cause)["derived"], false, "{over:#}");
        assert_eq!(over["segments"].as_array().unwrap().last().unwrap()["cause"], "running", "{over:#}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_without_another_cause_was_for_a_worker_and_a_retry_ends_the_time_after_the_end() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["mail".parse().unwrap()], Registry::new()).await;
    let orphan = tickr.enqueue(json!({"kind": "noop"})).await;
    let waits = eventually("it has waited for a while", || async {
        let now = timeline(&tickr, orphan).await;
        (total(&now, "worker") > 200).then_some(now)
    })
    .await;
    assert_eq!(causes(&waits), ["worker"], "{waits:#}");
    assert_eq!(segment(&waits, "worker")["derived"], true);
    assert_eq!(tickr.post(&format!("/v1/jobs/{orphan}/cancel"), json!({})).await.status, 200);
    let cancelled = timeline(&tickr, orphan).await;
    assert_eq!((&cancelled["state"], total(&cancelled, "running")), (&json!("cancelled"), 0), "{cancelled:#}");

    let failed = tickr.enqueue(json!({"kind": "fail", "queue": "mail", "payload": {"permanent": true}})).await;
    let first = tickr.until(failed, State::Failed).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{failed}/retry"), json!({})).await.status, 200);
    eventually("it has failed again", || async {
        let job = tickr.job(failed).await;
        (job["state"] == "failed" && job["finished_at"] != first["finished_at"]).then_some(())
    })
    .await;
    let over = timeline(&tickr, failed).await;
    let found: Vec<&str> =
        over["segments"].as_array().unwrap().iter().map(|one| one["cause"].as_str().unwrap()).collect();
    assert!(found.contains(&"ended") && found.iter().filter(|cause| **cause == "running").count() == 2, "{over:#}");
    for (path, status) in [("x", 422), ("0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a", 404)] {
        assert_eq!(tickr.get(&format!("/v1/jobs/{path}/timeline")).await.status, status);
    }
    tickr.stop().await;
}

/// The bars have one scale: the share of a bar is the share of its segment.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_a_job_draws_its_time_to_scale_and_leads_to_its_attempts() {
    let Some(browser) = Browser::shared().await else { return };
    let mended = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, broken(&mended)).await;
    let retry = json!({"delays_ms": [600], "jitter": 0.0});
    let id = tickr.enqueue(json!({"kind": "broken", "delay_ms": 300, "retry": retry, "max_attempts": 3})).await;
    tickr.until(id, State::Retrying).await;
    mended.cancel();
    tickr.until(id, State::Completed).await;
    let over = timeline(&tickr, id).await;
    let whole: f64 = over["segments"].as_array().unwrap().iter().map(|one| one["ms"].as_f64().unwrap()).sum();
    let wanted = segment(&over, "backoff")["ms"].as_f64().unwrap() / whole;
    let page = browser.page(&tickr.url("")).await;
    page.visit(&format!("/jobs/{id}")).await;
    for width in [390, 1_440, 2_560] {
        page.size(width, 900).await;
        page.reads("Where its time went").await;
        page.reads("Backed off before attempt 2").await;
        let drawn: f64 = page
            .eval(
                "(() => { const row = document.querySelector('[data-cause=backoff] .track'); \
                 return row.firstElementChild.getBoundingClientRect().width / row.getBoundingClientRect().width; })()",
            )
            .await;
        assert!((drawn - wanted).abs() < 0.01, "{width} px: {drawn} of {wanted}");
        assert!(page.overflow().await.is_empty(), "{width} px");
    }
    page.click(&link("Attempt 2 ran")).await;
    page.until("the attempt is in sight", "location.hash === '#attempt-2'").await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}
