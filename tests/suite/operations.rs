//! Bulk operations: each action changes exactly the jobs of its filter, keeps its rate, stops when it is cancelled, and
//! survives the death of the runner that carries it out.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::future::{join_all, select_all};
use serde_json::{Value, json};
use sqlx::{Connection, Executor};
use tickr::handlers::Registry;
use tickr::job::{
    Action, Actor, DeadLetterStatus, Filter, JobId, NewJob, NewOperation, OperationParams, RunnerId, State,
};
use tickr::store::{Answer as Kept, Counted, OperationLease, Original, Store, StoreError, StoreSettings};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::search::encoded;
use crate::support::limits::set_and_wait;
use crate::support::{
    self, Proxy, Runner, TestApp, database, drop_database, eventually, gated, halted, http, migrated_database,
    short_lease, table_prefix,
};

const LATER_MS: u64 = 86_400_000;
/// The table of the ten digits, `d`.
pub(crate) const DIGITS: &str = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL \
                      SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";

/// Return SQL that inserts failed jobs of a queue that no runner serves.
pub(crate) fn dead_letters(count: u32) -> String {
    format!(
        "INSERT INTO jobs (id, kind, queue, priority, max_attempts, payload, execute_at, created_at) \
         SELECT UNHEX(CONCAT(LPAD(HEX(1780000000000 + n), 12, '0'), '70008000000000000000')), 'noop', 'parked', 5, 1, '{{}}', \
         '2026-06-01', '2026-06-01' FROM (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n FROM {DIGITS} a, {DIGITS} b, \
         {DIGITS} c, {DIGITS} e) s WHERE n < {count}; \
         INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict, end_state, error) \
         SELECT id, 1, 1, 'gone/1-x', execute_at, created_at, created_at, 'failed', 'failed', 'no' FROM jobs; \
         INSERT INTO dead_letters (job_id, kind, queue, fingerprint, failed_at, error, since) \
         SELECT id, kind, queue, x'0123456789abcdef', created_at, 'no', created_at FROM jobs; \
         INSERT INTO tallies (lane, queue, kind, state, n) VALUES (0, 'parked', 'noop', 'failed', {count})"
    )
}

async fn start(tickr: &TestApp, body: Value) -> Uuid {
    let answer = tickr.post("/v1/operations", body).await;
    assert_eq!(answer.status, 202, "{:#}", answer.body);
    assert_eq!(answer.header("etag"), "", "an operation changes all the time, and no request takes its tag");
    answer.body["id"].as_str().unwrap().parse().unwrap()
}

async fn show(tickr: &TestApp, id: Uuid) -> Value {
    let answer = tickr.get(&format!("/v1/operations/{id}")).await;
    assert_eq!(answer.status, 200, "{:#}", answer.body);
    answer.body
}

async fn until_over(tickr: &TestApp, id: Uuid) -> Value {
    eventually("the operation is over", || async {
        let operation = show(tickr, id).await;
        (operation["state"] != "running").then_some(operation)
    })
    .await
}

/// Carry an operation out to its end. Return the numbers of jobs done, skipped and failed.
async fn carried_out(tickr: &TestApp, body: Value) -> (u64, u64, u64) {
    let id = start(tickr, body).await;
    let operation = until_over(tickr, id).await;
    assert_eq!(operation["state"], "done", "{operation:#}");
    let number = |field: &str| operation[field].as_u64().unwrap();
    (number("done"), number("skipped"), number("failed"))
}

const REPLAYS: &str = "SELECT COUNT(*) FROM jobs WHERE options LIKE '%replay_of%'";

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_of_ten_thousand_dead_letters_keeps_its_rate_and_can_be_stopped() {
    let tickr = TestApp::start().await;
    tickr.sql(dead_letters(10_000)).await;
    let id = start(&tickr, json!({"action": "replay", "filter": {"kind": "noop"}, "rate": 500})).await;
    let running = show(&tickr, id).await;
    assert_eq!((&running["estimate"], &running["estimate_capped"]), (&json!(10_000), &json!(true)));
    assert_eq!(running["eta_s"], Value::Null, "there may be more jobs than were counted");
    eventually("it has run for four seconds", || async { (tickr.count(REPLAYS).await >= 2_000).then_some(()) }).await;

    let stopped = tickr.post(&format!("/v1/operations/{id}/cancel"), json!({})).await;
    assert_eq!((stopped.status, &stopped.body["state"]), (200, &json!("cancelled")), "{:#}", stopped.body);
    let moved = tickr.count(REPLAYS).await;
    assert!(moved < 9_000, "{moved}");
    assert_eq!(stopped.body["done"], moved);
    // The rate counts all replays after the first batch, over the time since that batch, by the database's times.
    let later = "SELECT COUNT(*) FROM jobs WHERE options LIKE '%replay_of%' AND created_at > \
                 (SELECT MIN(created_at) FROM jobs WHERE options LIKE '%replay_of%')";
    let span = "SELECT TIMESTAMPDIFF(MICROSECOND, MIN(created_at), MAX(created_at)) FROM jobs WHERE options LIKE '%replay_of%'";
    let rate = tickr.count(later).await as f64 * 1_000_000.0 / tickr.count(span).await as f64;
    // A busy machine may be slower, but nothing makes the operation faster.
    assert!((300.0..=575.0).contains(&rate), "{rate} in a second");

    // When the runner has carried out another operation, it has finished with all earlier ones.
    let left = "SELECT LOWER(HEX(job_id)) FROM dead_letters WHERE standing = 'open' ORDER BY job_id DESC LIMIT 1";
    let one: String = sqlx::query_scalar(left).fetch_one(&mut tickr.mysql().await).await.unwrap();
    let one: Uuid = one.parse().unwrap();
    assert_eq!(carried_out(&tickr, json!({"action": "replay", "filter": {"ids": [one]}})).await, (1, 0, 0));
    assert_eq!(tickr.count(REPLAYS).await, moved + 1);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM dead_letters WHERE standing = 'replayed'").await, moved + 1);
    assert_eq!(tickr.count("SELECT COUNT(DISTINCT replayed_as) FROM dead_letters").await, moved + 1);
    let again = tickr.post(&format!("/v1/operations/{id}/cancel"), json!({})).await;
    assert_eq!((again.status, again.code()), (409, "wrong_state"));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_about_operations_carry_no_tag_of_a_job() {
    let tickr = TestApp::start().await;
    let job = tickr.post("/v1/jobs", json!({"kind": "noop", "delay_ms": LATER_MS})).await;
    assert!(!job.header("etag").is_empty(), "an answer about a job has its tag");
    let body = json!({"action": "cancel", "filter": {"kind": "noop"}, "rate": 1});
    let send = async |path: &str, key: &str| {
        let request = http().post(tickr.url(path)).header("idempotency-key", key).json(&body);
        support::answer(request).await
    };
    let started = send("/v1/operations", "start").await;
    let cancel = format!("/v1/operations/{}/cancel", started.body["id"].as_str().unwrap());
    until_over(&tickr, started.body["id"].as_str().unwrap().parse().unwrap()).await;
    // The same request gets the stored answer, which is built from its text alone.
    let again = send("/v1/operations", "start").await;
    assert_eq!((again.status, again.header("idempotency-replayed")), (202, "true"), "{:#}", again.body);
    assert_eq!(again.body, started.body);
    let second = send("/v1/operations", "another").await;
    let cancelled =
        send(&cancel.replace(started.body["id"].as_str().unwrap(), second.body["id"].as_str().unwrap()), "stop").await;
    for answer in [&started, &again, &second, &cancelled] {
        assert_eq!(answer.header("etag"), "", "{} {:#}", answer.status, answer.body);
        assert_eq!(answer.header("location"), "", "{} {:#}", answer.status, answer.body);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_action_does_what_it_says_to_the_jobs_of_its_filter() {
    let tickr = TestApp::start().await;
    let waiting = |tag: &str| json!({"kind": "noop", "tags": [tag], "delay_ms": LATER_MS});
    tickr.enqueue_many((0..25).map(|n| waiting(if n % 5 == 0 { "five" } else { "other" }))).await;
    let fives = json!({"tag": "five"});

    let dry =
        tickr.post("/v1/operations", json!({"action": "cancel", "filter": {"q": "tag:five"}, "dry_run": true})).await;
    assert_eq!(
        (dry.status, &dry.body["count"], &dry.body["capped"]),
        (200, &json!(5), &json!(false)),
        "{:#}",
        dry.body
    );
    assert_eq!(dry.body["sample"].as_array().unwrap().len(), 5);
    assert_eq!(dry.body["sample"][0]["would_be"], "cancelled");
    assert_eq!(
        (&dry.body["would_change"], &dry.body["would_skip"], &dry.body["rate"]),
        (&json!(5), &json!([]), &Value::Null)
    );
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed").await, 25);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM operations").await, 0);

    // A past time of any year means now.
    let past = json!({"action": "reschedule", "filter": fives, "execute_at": "0001-01-01T00:00:00Z", "dry_run": true});
    assert_eq!(tickr.post("/v1/operations", past).await.status, 200);

    assert_eq!(carried_out(&tickr, json!({"action": "set_priority", "filter": fives, "priority": 1})).await, (5, 0, 0));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE priority = 1").await, 5);
    let shown = tickr.get("/v1/jobs?tag=five&limit=1").await.body;
    assert_eq!(shown["data"][0]["priority"], 1);
    let moment = "2026-12-24T12:00:00Z";
    assert_eq!(
        carried_out(&tickr, json!({"action": "reschedule", "filter": fives, "execute_at": moment})).await,
        (5, 0, 0)
    );
    assert_eq!(tickr.get("/v1/jobs/count?due_after=2026-12-24&due_before=2026-12-25").await.body["count"], 5);
    assert_eq!(carried_out(&tickr, json!({"action": "cancel", "filter": {"tag": "five"}})).await, (5, 0, 0));
    // Ended jobs are not in the selection.
    assert_eq!(carried_out(&tickr, json!({"action": "cancel", "filter": {"tag": "five"}})).await, (0, 0, 0));
    assert_eq!(
        carried_out(&tickr, json!({"action": "run_now", "filter": {"state": "waiting", "tag": "other"}})).await,
        (20, 0, 0)
    );
    tickr.until_idle().await;
    assert_eq!(carried_out(&tickr, json!({"action": "retry", "filter": {"q": "state:cancelled"}})).await, (5, 0, 0));
    tickr.until_idle().await;
    assert_eq!(tickr.get("/v1/jobs/count?state=completed").await.body["count"], 25);

    // Jobs that fail again are not retried again, and a retried job is not selected twice.
    tickr.enqueue_many((0..6).map(|_| json!({"kind": "fail", "payload": {"permanent": true}}))).await;
    tickr.until_idle().await;
    assert_eq!(carried_out(&tickr, json!({"action": "retry", "filter": {"q": "dead_letter:open"}})).await, (6, 0, 0));
    tickr.until_idle().await;
    let dead = tickr.get("/v1/dead-letters/groups").await.body["data"][0].clone();
    assert_eq!(dead["open"], 6);
    let body = json!({"action": "discard", "filter": {"fingerprint": dead["fingerprint"]}, "reason": "known"});
    assert_eq!(carried_out(&tickr, body).await, (6, 0, 0));
    assert_eq!(tickr.get("/v1/dead-letters").await.body["data"], json!([]));
    let discarded = tickr.get("/v1/dead-letters?status=discarded").await.body;
    assert_eq!(discarded["data"][0]["dead_letter"]["reason"], "known");
    tickr.assert_sound().await;

    let target = discarded["data"][0]["id"].as_str().unwrap().to_owned();
    let acts = tickr.get(&format!("/v1/audit?target={target}")).await.body;
    assert_eq!(acts["data"][0]["action"], "job.discard");
    assert!(acts["data"][0]["detail"]["operation"].is_string(), "{acts:#}");
    let started = tickr.count("SELECT COUNT(*) FROM audit WHERE action = 'operation.start'").await;
    assert_eq!(started, tickr.count("SELECT COUNT(*) FROM operations").await);

    assert_eq!(carried_out(&tickr, json!({"action": "delete", "all": true})).await, (31, 0, 0));
    for table in ["jobs", "attempts", "job_tags", "dead_letters"] {
        let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("SELECT COUNT(*) FROM {table}")))
            .fetch_one(&mut tickr.mysql().await)
            .await
            .unwrap();
        assert_eq!(count, 0, "{table}");
    }
    let listed = tickr.get("/v1/operations?state=done&limit=2").await.body;
    assert_eq!(listed["data"][0]["action"], "delete");
    assert!(listed["next_cursor"].is_string());
    tickr.stop().await;
}

/// The row in `owed` of a job that waits for a turn has a due time in the year 9999.
#[tokio::test(flavor = "multi_thread")]
async fn a_due_time_selects_jobs_that_wait_for_a_turn_by_the_one_that_they_show() {
    let tickr = TestApp::start().await;
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    let sleep = json!({"kind": "sleep", "payload": {"ms": 600_000}, "limit_key": "a", "order_key": "o"});
    let runs = tickr.enqueue(sleep).await;
    tickr.until(runs, State::Executing).await;
    let parked = tickr.enqueue(json!({"kind": "noop", "limit_key": "a"})).await;
    let made_due = tickr.enqueue(json!({"kind": "noop", "limit_key": "a", "delay_ms": LATER_MS})).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{made_due}/run-now"), json!({})).await.status, 200);
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 2).await;
    let held = tickr.enqueue(json!({"kind": "noop", "order_key": "o"})).await;
    let blocked = tickr.enqueue(json!({"kind": "noop", "after": [runs.to_string()]})).await;
    let later = tickr.enqueue(json!({"kind": "noop", "delay_ms": LATER_MS})).await;

    let soon = vec![blocked, held, made_due, parked, runs];
    let (between, before) = (Utc::now() + TimeDelta::hours(2), Utc::now() - TimeDelta::hours(2));
    for id in soon.iter().copied().chain([later]) {
        let job = tickr.job(id).await;
        let due: DateTime<Utc> = serde_json::from_value(job["execute_at"].clone()).unwrap();
        assert_eq!((due > before, due < between), (true, id != later), "{job:#}");
    }
    let [before, between] = [before, between].map(|at| at.to_rfc3339_opts(chrono::SecondsFormat::Secs, true));
    for (query, wanted) in [
        (format!("q={}", encoded("due:<2h")), soon.clone()),
        (format!("q={}", encoded("due:>2h")), vec![later]),
        (format!("q={}", encoded("-due:<2h")), vec![later]),
        (format!("due_after={before}&due_before={between}"), soon),
        (format!("due_after={between}&state=waiting"), vec![later]),
        (format!("due_before={before}"), Vec::new()),
    ] {
        assert_eq!(tickr.walk(&query, 3).await, wanted, "{query}");
    }
    assert_eq!(carried_out(&tickr, json!({"action": "cancel", "filter": {"q": "due:>2h"}})).await, (1, 0, 0));
    assert_eq!(tickr.job(later).await["state"], "cancelled");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed").await, 5);
    // The line that closes a job which waited for its turn has the time of its end. The job shows the other due time.
    let ordered = tickr.enqueue(json!({"kind": "noop", "order_key": "o", "delay_ms": LATER_MS})).await;
    let shown = tickr.job(ordered).await["execute_at"].clone();
    assert_eq!(tickr.post(&format!("/v1/jobs/{ordered}/cancel"), json!({})).await.status, 200);
    assert_eq!(tickr.job(ordered).await["execute_at"], shown);
    for (query, wanted) in [("due:>2h", vec![ordered, later]), ("due:<2h state:cancelled", Vec::new())] {
        assert_eq!(tickr.walk(&format!("q={}", encoded(query)), 3).await, wanted, "{query}");
    }
    for id in [blocked, runs] {
        assert!(matches!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 200 | 202));
    }
    tickr.until_idle().await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_last_page_that_is_full_names_no_next_one() {
    let tickr = TestApp::start().await;
    let failed = tickr.enqueue_kind("fail", json!({"permanent": true})).await;
    tickr.until(failed, State::Failed).await;
    let started = tickr.post("/v1/operations", json!({"action": "run_now", "all": true})).await;
    assert_eq!(started.status, 202, "{:#}", started.body);
    for list in ["/v1/operations", "/v1/dead-letters/groups"] {
        let page = tickr.get(&format!("{list}?limit=1")).await.body;
        assert_eq!((page["data"].as_array().unwrap().len(), &page["next_cursor"]), (1, &Value::Null), "{page:#}");
    }

    assert_eq!(tickr.put("/v1/limits/calls", json!({"concurrency": 1})).await.status, 201);
    let keys = async |count: u32, after: &str| {
        let row = |key: u32| format!("('calls', 'k{key:03}', UNHEX(REPEAT('00', 16)))");
        let rows = (0..count).map(row).collect::<Vec<_>>().join(", ");
        // A sweep may remove these slots at any time, because there are no jobs that hold them.
        eventually("a full page of keys", async || {
            tickr.sql(format!("INSERT IGNORE INTO limit_slots (limit_name, limit_key, job_id) VALUES {rows}")).await;
            let page = tickr.get(&format!("/v1/limits/calls/keys{after}")).await.body;
            let size = page["data"].as_array().unwrap().len();
            (size == (count as usize).min(200) || !after.is_empty() && size == 1).then_some(page)
        })
        .await
    };
    assert_eq!(keys(200, "").await["next"], Value::Null);
    assert_eq!(keys(201, "").await["next"], "k199");
    assert_eq!(keys(201, "?after=k199").await["data"][0]["key"], "k200");
    tickr.stop().await;
}

/// A dry run counts the jobs that would change, not the jobs that match.
#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_tells_what_would_change_from_what_would_be_left_and_why() {
    let tickr = TestApp::start().await;
    let fails = || json!({"kind": "fail", "payload": {"permanent": true}, "tags": ["night"]});
    let failed = tickr.enqueue_many((0..4).map(|_| fails())).await;
    tickr.enqueue_many((0..3).map(|_| json!({"kind": "noop", "tags": ["night"]}))).await;
    let waits =
        tickr.enqueue_many((0..2).map(|_| json!({"kind": "noop", "tags": ["night"], "delay_ms": LATER_MS}))).await;
    tickr.until_count("SELECT COUNT(*) FROM owed", 2).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{}/cancel", waits[0]), json!({})).await.status, 200);
    assert_eq!(tickr.post(&format!("/v1/jobs/{}/replay", failed[0]), json!({})).await.status, 201);
    tickr.until_count("SELECT COUNT(*) FROM owed", 1).await;

    let body = json!({"action": "retry", "filter": {"tag": "night"}, "rate": 7, "dry_run": true});
    let dry = tickr.post("/v1/operations", body).await.body;
    // Four jobs failed. One of them was replayed as a job with the same tag, which failed as well. One job was
    // cancelled.
    assert_eq!((&dry["count"], &dry["would_change"], &dry["rate"]), (&json!(9), &json!(5), &json!(7)), "{dry:#}");
    let skipped = json!([{"jobs": 3, "reason": "completed"}, {"jobs": 1, "reason": "replayed already"}]);
    assert_eq!(dry["would_skip"], skipped, "{dry:#}");
    let done = carried_out(&tickr, json!({"action": "retry", "filter": {"tag": "night"}})).await;
    assert_eq!(done, (5, 4, 0), "the operation changes exactly these");
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE execute_at <= UTC_TIMESTAMP(3)", 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_leaves_jobs_out_that_wait_for_their_turn_as_the_operation_does() {
    let tickr = TestApp::start().await;
    let ordered = json!({"kind": "noop", "delay_ms": LATER_MS, "order_key": "line"});
    let (head, held) = (tickr.enqueue(ordered.clone()).await, tickr.enqueue(ordered).await);
    let moment = Utc::now() + TimeDelta::hours(12);
    let filter = json!({"kind": "noop"});
    for body in [
        json!({"action": "reschedule", "filter": filter, "execute_at": moment}),
        json!({"action": "run_now", "filter": filter}),
    ] {
        let mut dry = body.clone();
        dry["dry_run"] = json!(true);
        let dry = tickr.post("/v1/operations", dry).await.body;
        assert_eq!((&dry["count"], &dry["would_change"]), (&json!(2), &json!(1)), "{dry:#}");
        assert_eq!(dry["would_skip"], json!([{"jobs": 1, "reason": "held"}]), "{dry:#}");
        let sample = dry["sample"].as_array().unwrap();
        let would_be = |id: JobId| &sample.iter().find(|job| job["id"] == json!(id)).unwrap()["would_be"];
        assert!(would_be(head).is_string() && would_be(held).is_null(), "{dry:#}");
        assert_eq!(carried_out(&tickr, body).await, (1, 1, 0), "the operation changes exactly these");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reschedule_leaves_jobs_out_that_expire_by_their_new_due_time() {
    let tickr = TestApp::start().await;
    let stays = json!({"kind": "noop", "delay_ms": LATER_MS / 2});
    let expires = json!({"kind": "noop", "delay_ms": LATER_MS / 2, "expires_in_ms": LATER_MS});
    let (stays, expires) = (tickr.enqueue(stays).await, tickr.enqueue(expires).await);
    let before = tickr.job(expires).await["execute_at"].clone();
    let moment = Utc::now() + TimeDelta::days(2);
    let mut body = json!({"action": "reschedule", "filter": {"kind": "noop"}, "execute_at": moment, "dry_run": true});
    let dry = tickr.post("/v1/operations", &body).await.body;
    assert_eq!(dry["would_change"], 1, "{dry:#}");
    assert_eq!(dry["would_skip"], json!([{"jobs": 1, "reason": "expired by then"}]), "{dry:#}");
    let would_be = |id: JobId| dry["sample"].as_array().unwrap().iter().find(|job| job["id"] == json!(id)).unwrap();
    assert_eq!(would_be(expires)["would_be"], Value::Null, "{dry:#}");
    assert_eq!(would_be(stays)["would_be"], "due at another time", "{dry:#}");
    body["dry_run"] = json!(false);
    assert_eq!(carried_out(&tickr, body.clone()).await, (1, 1, 0), "as a PATCH of one job would be refused");
    assert_eq!(tickr.job(expires).await["execute_at"], before);
    let due_at: DateTime<Utc> = serde_json::from_value(tickr.job(stays).await["execute_at"].clone()).unwrap();
    assert!(due_at >= moment, "{due_at}");
    // Before its expiry it may be due at any time.
    body["execute_at"] = json!(Utc::now() + TimeDelta::hours(23));
    assert_eq!(carried_out(&tickr, body).await, (2, 0, 0));
    tickr.stop().await;
}

/// The priority that an operation sets belongs to the job, even after its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_priority_that_an_operation_set_outlives_the_end_of_the_job() {
    let tickr = TestApp::start().await;
    let job = json!({"kind": "fail", "payload": {"permanent": true}, "tags": ["urgent"], "delay_ms": LATER_MS});
    let id = tickr.enqueue(job).await;
    let filter = json!({"tag": "urgent"});
    assert_eq!(
        carried_out(&tickr, json!({"action": "set_priority", "filter": filter, "priority": 0})).await,
        (1, 0, 0)
    );
    assert_eq!(carried_out(&tickr, json!({"action": "run_now", "filter": filter})).await, (1, 0, 0));
    tickr.until(id, State::Failed).await;
    assert_eq!(tickr.job(id).await["priority"], 0);
    // A retry starts with this priority.
    tickr.post("/v1/queues/default/pause", json!({})).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/retry"), json!({})).await.status, 200);
    assert_eq!(tickr.count("SELECT CAST(priority AS SIGNED) FROM jobs").await, 0);
    assert_eq!(tickr.job(id).await["priority"], 0);
    tickr.stop().await;
}

/// A delete removes jobs as a whole, however many attempts they have, and only the jobs of the filter.
#[tokio::test(flavor = "multi_thread")]
async fn a_delete_takes_every_line_of_its_jobs_and_no_other() {
    let tickr = TestApp::start().await;
    tickr.sql(dead_letters(150)).await;
    // Each job has 250 attempts: 37,500 together, which is more than one transaction removes.
    tickr
        .sql(format!(
            "UPDATE attempts SET number = 250, burned = 1; \
             INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict) \
             SELECT j.id, n.n, 0, 'gone/1-x', j.execute_at, j.created_at, j.created_at, 'interrupted' FROM jobs j, \
             (SELECT a.d + 10 * b.d + 100 * c.d + 1 AS n FROM {DIGITS} a, {DIGITS} b, {DIGITS} c) n WHERE n.n < 250"
        ))
        .await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts").await, 37_500);
    let keep = tickr.enqueue(json!({"kind": "noop", "tags": ["other"]})).await;
    tickr.until(keep, State::Completed).await;
    // A lock keeps the last jobs for now. As many attempts as fit into one transaction are removed before them, and the
    // deletion is visible.
    let mut other = tickr.mysql().await;
    let mut held = other.begin().await.unwrap();
    let last = "SELECT number FROM attempts WHERE job_id = (SELECT MAX(job_id) FROM dead_letters) FOR UPDATE";
    assert_eq!(sqlx::query(last).fetch_all(&mut *held).await.unwrap().len(), 250);
    let before_the_last = async {
        tickr.until_count("SELECT COUNT(*) FROM attempts", 37_501 - 20_000).await;
        held.rollback().await.unwrap();
    };
    let deleted = carried_out(&tickr, json!({"action": "delete", "filter": {"queue": "parked"}}));
    assert_eq!(tokio::join!(deleted, before_the_last).0, (150, 0, 0));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts").await, 1);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM dead_letters").await, 0);
    tickr.stop().await;
}

/// A search for ended jobs reads the ledger in parts. A job may have more lines than fit into a part.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_finds_ended_jobs_of_thousands_of_lines() {
    let tickr = TestApp::start().await;
    let ids = tickr.enqueue_many((0..3).map(|_| json!({"kind": "noop", "payload": {"pad": "x"}}))).await;
    tickr.until_idle().await;
    // The job in the middle was snoozed 5,000 times.
    let bytes = format!("UNHEX('{}')", ids[1].uuid().simple());
    tickr
        .sql(format!(
            "UPDATE attempts SET number = 5001 WHERE job_id = {bytes}; \
             INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict) \
             SELECT a.job_id, n.n + 1, 0, a.runner, a.execute_at, a.started_at, a.started_at, 'snoozed' FROM attempts a, \
             (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n FROM {DIGITS} a, {DIGITS} b, {DIGITS} c, {DIGITS} e) n \
             WHERE n.n < 5000 AND a.job_id = {bytes} AND a.number = 5001"
        ))
        .await;
    for filter in [json!({"state": "completed"}), json!({"state": "completed", "payload": {"pad": "x"}})] {
        let dry = tickr.post("/v1/operations", json!({"action": "delete", "filter": filter, "dry_run": true})).await;
        assert_eq!(dry.body["count"], 3, "{filter}: {:#}", dry.body);
    }
    assert_eq!(carried_out(&tickr, json!({"action": "delete", "filter": {"state": "completed"}})).await, (3, 0, 0));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_cannot_be_meant_is_refused_and_a_key_starts_it_once() {
    let tickr = TestApp::start().await;
    let far = chrono::Utc::now() + chrono::TimeDelta::hours(366 * 24 + 1);
    let (one, two) = (Uuid::now_v7(), Uuid::now_v7());
    for (body, pointers) in [
        (json!({"action": "cancel"}), vec!["/filter"]),
        (json!({"action": "cancel", "filter": {}}), vec!["/filter"]),
        (json!({"action": "cancel", "filter": {"q": ""}}), vec!["/filter"]),
        (json!({"action": "cancel", "filter": {"kind": "noop"}, "all": true}), vec!["/all"]),
        (json!({"action": "bury", "all": true}), vec!["/action"]),
        (json!({"action": "cancel", "all": true, "rate": 0}), vec!["/rate"]),
        (json!({"action": "discard", "all": true}), vec!["/reason"]),
        (json!({"action": "reschedule", "all": true}), vec!["/execute_at"]),
        (json!({"action": "reschedule", "all": true, "execute_at": far}), vec!["/execute_at"]),
        (json!({"action": "cancel", "all": true, "priority": 3}), vec!["/priority"]),
        (json!({"action": "replay", "filter": {"q": "dead_letter:discarded"}}), vec!["/filter"]),
        (
            json!({"action": "cancel", "filter": {"q": "kind:noop bogus:1", "ids": ["x"]}}),
            vec!["/filter/q", "/filter/ids/0"],
        ),
        (
            json!({"action": "cancel", "filter": {"payload": {"a..b": 1, "c": [1]}}}),
            vec!["/filter/payload/a..b", "/filter/payload/c"],
        ),
        (json!({"action": "cancel", "filter": {"colour": "red"}}), vec!["/filter/colour"]),
        // Every condition must hold, and these name two values for one thing.
        (
            json!({"action": "cancel", "filter": {"q": "payload.tenant:42", "payload": {"tenant": 43}}}),
            vec!["/filter/payload/tenant"],
        ),
        (
            json!({"action": "cancel", "filter": {"payload": {"user.id": 1, "\"user\".id": 2}}}),
            vec!["/filter/payload/user.id"],
        ),
        (json!({"action": "cancel", "filter": {"q": format!("id:{one}"), "ids": [two]}}), vec!["/filter/ids"]),
    ] {
        let answer = tickr.post("/v1/operations", body.clone()).await;
        assert_eq!((answer.status, answer.code()), (422, "invalid_request"), "{body}");
        assert_eq!(answer.pointers(), pointers, "{body}");
    }
    for (path, status) in [("x", 422), ("0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a", 404)] {
        assert_eq!(tickr.get(&format!("/v1/operations/{path}")).await.status, status);
        assert_eq!(tickr.post(&format!("/v1/operations/{path}/cancel"), json!({})).await.status, status);
    }
    let send = || {
        let client = http();
        let sent = client.post(tickr.url("/v1/operations")).header("idempotency-key", "once");
        crate::support::answer(sent.json(&json!({"action": "cancel", "filter": {"payload": {"a": 1}}})))
    };
    let (one, two) = tokio::join!(send(), send());
    assert_eq!((one.status, two.status), (202, 202));
    assert_eq!(one.body["id"], two.body["id"]);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM operations").await, 1);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM audit").await, 1);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_was_accepted_gets_its_answer_again_while_too_many_run() {
    let tickr = TestApp::start().await;
    let body = json!({"action": "cancel", "filter": {"kind": "noop"}});
    let send = |key: &'static str| {
        let request = http().post(tickr.url("/v1/operations")).header("idempotency-key", key);
        support::answer(request.json(&body))
    };
    let first = send("first").await;
    assert_eq!(first.status, 202, "{:#}", first.body);
    // As many as may run at the same time, and none of them goes on.
    tickr
        .sql(
            "INSERT INTO operations (id, action, filter, params, actor, created_at, estimate, capped, paused_at, paused_by, \
             lease_until) WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 50) \
             SELECT UNHEX(LEFT(SHA2(n, 256), 32)), 'cancel', '{}', '{}', 'test', UTC_TIMESTAMP(6), 0, FALSE, \
             UTC_TIMESTAMP(6), 'test', '9999-12-31' FROM n",
        )
        .await;
    let again = send("first").await;
    assert_eq!((again.status, again.header("idempotency-replayed")), (202, "true"), "{:#}", again.body);
    assert_eq!(again.body, first.body);
    let second = send("second").await;
    assert_eq!((second.status, second.code()), (429, "overloaded"), "{:#}", second.body);
    tickr.stop().await;
}

/// The runner that carries the operation out is killed. Another one continues, and no job is moved twice or left out.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_survives_the_death_of_its_runner() {
    let tickr = TestApp::start_with(short_lease, Registry::new()).await;
    tickr.sql(dead_letters(1_200)).await;
    let mut runner = Runner::start(&tickr, &[]);
    runner.base().await;
    let pid = format!("/{}-", runner.pid());
    let operation = loop {
        let id = start(&tickr, json!({"action": "replay", "filter": {"queue": "parked"}, "rate": 200})).await;
        let holder = eventually("a runner has taken it", || async {
            show(&tickr, id).await["runner"].as_str().map(str::to_owned)
        })
        .await;
        if holder.contains(&pid) {
            break id;
        }
        // The runner of the test's own process finished first, so try again.
        tickr.post(&format!("/v1/operations/{id}/cancel"), json!({})).await;
    };
    eventually("it is under way", || async {
        (show(&tickr, operation).await["done"].as_u64() > Some(50)).then_some(())
    })
    .await;
    runner.kill9();
    let over = until_over(&tickr, operation).await;
    assert_eq!(over["state"], "done", "{over:#}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM dead_letters WHERE standing = 'replayed'").await, 1_200);
    assert_eq!(tickr.count(REPLAYS).await, 1_200);
    assert_eq!(tickr.count("SELECT COUNT(DISTINCT replayed_as) FROM dead_letters").await, 1_200);
    let done = "SELECT CAST(SUM(done) AS SIGNED) FROM operations";
    assert_eq!(tickr.count(done).await, 1_200);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_of_a_kind_that_only_another_runner_has_leaves_no_dead_letter() {
    let open = CancellationToken::new();
    open.cancel();
    let tickr = TestApp::start().await;
    tickr.sql(dead_letters(200).replace("'noop'", "'gate'").replace("'parked'", "'default'")).await;
    // An operator had declared the kind when the jobs were accepted.
    let of_kind = r#"{"of_kind":{"timeout_ms":60000,"retry":{}}}"#;
    tickr.sql(format!("UPDATE jobs SET host = 'mail.example', options = '{of_kind}'")).await;
    let replay = |id: &Uuid| json!({"action": "replay", "filter": {"ids": [id]}});
    let failed: Vec<Uuid> =
        sqlx::query_scalar("SELECT id FROM jobs ORDER BY id").fetch_all(&mut tickr.mysql().await).await.unwrap();
    let mut failed = failed.iter();
    let mut next = || failed.next().expect("a failed job is left");
    // While no living runner has the kind, the dead letter stays.
    assert_eq!(carried_out(&tickr, replay(next())).await, (0, 0, 1));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM dead_letters WHERE standing = 'open'").await, 200);
    let newer = tickr.another_with(|_| {}, gated(&open)).await;
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE kinds LIKE '%gate%'", 1).await;
    // Either runner may carry an operation out. The one that does not know the kind must have done so.
    let here = format!("SELECT COUNT(*) FROM operations WHERE runner = '{}'", tickr.app.runner());
    let before = tickr.count(here.clone()).await;
    let mut replayed = 0;
    while tickr.count(here.clone()).await < before + 3 {
        assert_eq!(carried_out(&tickr, replay(next())).await, (1, 0, 0));
        replayed += 1;
    }
    tickr.until_count(&format!("{REPLAYS} AND id NOT IN (SELECT id FROM owed)"), replayed).await;
    // A runner without the kind cannot ask it for the host of the call.
    assert_eq!(tickr.count(format!("{REPLAYS} AND host = 'mail.example'")).await, 3);
    assert_eq!(tickr.count(format!("{REPLAYS} AND options LIKE '%of_kind%'")).await, 0);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM dead_letters WHERE standing = 'open'").await, 200 - replayed);
    newer.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

/// The answer to the COMMIT of a batch is lost. The jobs of the batch are not moved again, and none is left out.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_commit_in_a_batch_neither_repeats_nor_skips_a_job() {
    let (name, url) = database().await;
    let proxy = Proxy::start(&url).await;
    let settings = StoreSettings { url: proxy.url(), connections: 4, flushers: 1, table_prefix: table_prefix() };
    let store = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
    store.migrate().await.unwrap();
    let mut mysql = crate::support::connect(&url).await;
    sqlx::Executor::execute(&mut mysql, sqlx::raw_sql(sqlx::AssertSqlSafe(dead_letters(50)))).await.unwrap();
    let operation = NewOperation {
        id: Uuid::now_v7(),
        action: Action::Replay,
        filter: Filter { state: Some(State::Failed), dead_letter: Some(DeadLetterStatus::Open), ..Filter::default() },
        params: OperationParams::default(),
        rate: None,
        canary: None,
    };
    let word = |_: &tickr::job::Operation| Kept { status: 202, body: "{}".into() };
    proxy.cut_after("COMMIT");
    store.start_operation((operation, Counted::default()), &Actor::anyone(), None, Arc::new(word)).await.unwrap();
    let lease = Duration::from_secs(60);
    let runner = RunnerId::new_for_host("test");
    let taken = store.lease_operations(runner.clone(), lease).await.unwrap();
    assert_eq!(taken.len(), 1, "the operation was started once, though the answer was lost");
    assert!(store.lease_operations(runner, lease).await.unwrap().is_empty(), "the operation was leased once");
    let remake = |original: &Original| {
        Ok(NewJob {
            id: JobId::new(),
            kind: original.kind.clone(),
            queue: original.queue.clone(),
            payload: original.payload.clone(),
            due: tickr::job::Due::Now,
            expires: None,
            priority: original.priority,
            max_attempts: original.max_attempts,
            unique_key: None,
            on_conflict: tickr::job::OnConflict::default(),
            host: None,
            options: tickr::job::JobOptions { replay_of: Some(original.id), ..Default::default() },
            batch: None,
        })
    };
    for _ in 0..10 {
        proxy.cut_after("COMMIT");
        let batched = store.advance_operation(taken[0], 7, lease, Arc::new(remake)).await.unwrap();
        if batched.over {
            break;
        }
    }
    assert!(proxy.cuts() >= 4, "{}", proxy.cuts());
    let count = async |sql: &'static str| -> i64 {
        sqlx::query_scalar(sql).fetch_one(&mut crate::support::connect(&url).await).await.unwrap()
    };
    assert_eq!(count("SELECT COUNT(*) FROM jobs").await, 100);
    assert_eq!(count("SELECT COUNT(DISTINCT replayed_as) FROM dead_letters").await, 50);
    assert_eq!(count("SELECT CAST(done AS SIGNED) FROM operations WHERE state = 'done'").await, 50);
    halted::assert_sound_without_index(&url, &name).await;
    drop(store);
    drop_database(&url, &name).await;
}

/// Start an operation on failed jobs, and lease it.
async fn leased(store: &Store, action: Action, lease: Duration) -> OperationLease {
    let operation = NewOperation {
        id: Uuid::now_v7(),
        action,
        filter: Filter { state: Some(State::Failed), ..Filter::default() },
        params: OperationParams::default(),
        rate: None,
        canary: None,
    };
    let word = |_: &tickr::job::Operation| Kept { status: 202, body: "{}".into() };
    store.start_operation((operation, Counted::default()), &Actor::anyone(), None, Arc::new(word)).await.unwrap();
    store.lease_operations(RunnerId::new_for_host("test"), lease).await.unwrap()[0]
}

/// Carry out the next batch of 200 jobs, as a runner does. Return the number of its jobs and whether it was the last.
async fn next_batch(store: &Store, held: OperationLease, lease: Duration) -> Result<(u64, bool), StoreError> {
    let remake = |original: &Original| Ok(original.unchanged());
    let batched = store.advance_operation(held, 200, lease, Arc::new(remake)).await?;
    assert!(!batched.lost, "{batched:?}");
    Ok((batched.handled, batched.over))
}

/// Group replication, for example, takes no transaction of more than 150 MB.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_an_operation_that_mysql_refuses_is_followed_by_smaller_ones() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let settings = StoreSettings { url: proxy.url(), connections: 4, flushers: 1, table_prefix: table_prefix() };
    let store = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
    let mut mysql = support::connect(&url).await;
    mysql.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(dead_letters(200)))).await.unwrap();
    let lease = Duration::from_secs(60);
    let held = leased(&store, Action::Replay, lease).await;
    // Each batch is tried three times. Those of 200 and of 100 jobs are refused.
    proxy.refuse("COMMIT", 3100, 6);
    for _ in 0..2 {
        let refused = next_batch(&store, held, lease).await.unwrap_err();
        assert!(refused.is_transient(), "{refused}");
    }
    assert!(proxy.is_through());
    let handled = eventually("a batch is carried out", || async {
        // The server may still be rolling back the last one.
        let (handled, _) = next_batch(&store, held, lease).await.unwrap();
        (handled > 0).then_some(handled)
    })
    .await;
    assert_eq!(handled, 50);
    while !next_batch(&store, held, lease).await.unwrap().1 {}
    let count = async |sql: &'static str| -> i64 {
        sqlx::query_scalar(sql).fetch_one(&mut support::connect(&url).await).await.unwrap()
    };
    assert_eq!(count("SELECT COUNT(DISTINCT replayed_as) FROM dead_letters").await, 200);
    assert_eq!(count("SELECT CAST(done AS SIGNED) FROM operations WHERE skipped = 0 AND failed = 0").await, 200);
    halted::assert_sound_without_index(&url, &name).await;
    drop(store);
    drop_database(&url, &name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_replays_or_deletes_takes_eight_mebibytes_of_payloads() {
    let (name, url) = migrated_database().await;
    let settings = StoreSettings { url: url.clone(), connections: 4, flushers: 1, table_prefix: table_prefix() };
    let store = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
    let mut mysql = support::connect(&url).await;
    mysql.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(dead_letters(20)))).await.unwrap();
    // The largest payload that tickr accepts, of 1 MiB.
    let large = "UPDATE jobs SET payload = CONCAT('{\"a\":\"', REPEAT('x', 1048568), '\"}')";
    mysql.execute(large).await.unwrap();
    let lease = Duration::from_secs(60);
    for action in [Action::Replay, Action::Delete] {
        let held = leased(&store, action, lease).await;
        for expected in [(8, false), (8, false), (4, true)] {
            assert_eq!(next_batch(&store, held, lease).await.unwrap(), expected, "{action:?}");
        }
    }
    let exact = "SELECT COUNT(*) FROM operations WHERE state = 'done' AND done = 20 AND skipped = 0 AND failed = 0";
    let exact: i64 = sqlx::query_scalar(exact).fetch_one(&mut mysql).await.unwrap();
    let left: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM jobs").fetch_one(&mut mysql).await.unwrap();
    assert_eq!((exact, left), (2, 20), "the jobs that the replay made are left");
    halted::assert_sound_without_index(&url, &name).await;
    drop(store);
    drop_database(&url, &name).await;
}

/// All of these jobs together would take longer than one transaction may last.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_an_operation_commits_what_is_done_in_time_while_mysql_answers_slowly() {
    const JOBS: i64 = 100;
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let settings = StoreSettings { url: proxy.url(), connections: 4, flushers: 1, table_prefix: table_prefix() };
    let store = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
    let mut mysql = support::connect(&url).await;
    mysql.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(dead_letters(JOBS as u32)))).await.unwrap();
    let operation = NewOperation {
        id: Uuid::now_v7(),
        action: Action::Retry,
        filter: Filter { state: Some(State::Failed), ..Filter::default() },
        params: OperationParams::default(),
        rate: None,
        canary: None,
    };
    let word = |_: &tickr::job::Operation| Kept { status: 202, body: "{}".into() };
    store.start_operation((operation, Counted::default()), &Actor::anyone(), None, Arc::new(word)).await.unwrap();
    let lease = Duration::from_secs(60);
    let held = store.lease_operations(RunnerId::new_for_host("test"), lease).await.unwrap()[0];
    let remake = Arc::new(|_: &Original| Err::<NewJob, String>("a retry makes no jobs".to_owned()));
    let count = async |sql: &'static str| -> i64 {
        sqlx::query_scalar(sql).fetch_one(&mut support::connect(&url).await).await.unwrap()
    };
    proxy.delay(Duration::from_millis(30));
    let batched = store.advance_operation(held, 200, lease, remake.clone()).await.unwrap();
    proxy.delay(Duration::ZERO);
    let some = count("SELECT COUNT(*) FROM owed").await;
    assert!((1..JOBS).contains(&some) && !batched.over, "{some} jobs, {batched:?}");
    assert_eq!((batched.handled as i64, count("SELECT CAST(done AS SIGNED) FROM operations").await), (some, some));
    while !store.advance_operation(held, 200, lease, remake.clone()).await.unwrap().over {}
    // Each job is retried once, and none is left out.
    assert_eq!(count("SELECT COUNT(*) FROM owed").await, JOBS);
    assert_eq!(count("SELECT COUNT(*) FROM audit WHERE action = 'job.retry'").await, JOBS);
    assert_eq!(count("SELECT CAST(done AS SIGNED) FROM operations WHERE skipped = 0 AND failed = 0").await, JOBS);
    halted::assert_sound_without_index(&url, &name).await;
    drop(store);
    drop_database(&url, &name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_job_holds_up_no_other_job_of_an_operation_and_is_handled_once_when_it_is_free() {
    let tickr = TestApp::start().await;
    // Two batches and a bit.
    let job = |n: u32| match n {
        5 => json!({"kind": "noop", "tags": ["wild"], "delay_ms": LATER_MS, "order_key": "o"}),
        _ => json!({"kind": "noop", "tags": ["wild"], "delay_ms": LATER_MS}),
    };
    let ids = tickr.enqueue_many((0..450).map(job)).await;
    let mut session = tickr.mysql().await;
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    let filter = json!({"tag": "wild"});
    for (action, locks_key) in [
        (json!({"action": "set_priority", "filter": filter, "priority": 1}), false),
        (json!({"action": "cancel", "filter": filter}), true),
    ] {
        // A runner that freezes while it claims or settles jobs keeps such locks.
        session.execute("BEGIN").await.unwrap();
        for id in [ids[3], ids[300]] {
            let row = sqlx::query("SELECT id FROM owed WHERE id = ? FOR UPDATE").bind(id.uuid());
            row.fetch_one(&mut session).await.unwrap();
        }
        let mut locked = 2;
        if locks_key {
            let key = "SELECT * FROM order_keys WHERE order_key = 'o' FOR UPDATE";
            assert!(session.fetch_optional(key).await.unwrap().is_some());
            locked += 1;
        }
        let id = start(&tickr, action).await;
        let others = eventually("the others are done", || async {
            let operation = show(&tickr, id).await;
            (operation["done"] == 450 - locked).then_some(operation)
        })
        .await;
        assert_eq!((&others["state"], &others["skipped"]), (&json!("running"), &json!(0)), "{others:#}");
        session.execute("ROLLBACK").await.unwrap();
        let over = until_over(&tickr, id).await;
        assert_eq!(
            (&over["state"], &over["done"], &over["skipped"], &over["failed"]),
            (&json!("done"), &json!(450), &json!(0), &json!(0)),
            "{over:#}"
        );
        if !locks_key {
            assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE priority = 1").await, 450);
        }
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_no_longer_matches_when_its_lock_ends_is_left_as_it_is() {
    let tickr = TestApp::start().await;
    let job = json!({"kind": "noop", "payload": {"plan": "old"}, "delay_ms": LATER_MS});
    let ids = tickr.enqueue_many((0..5).map(|_| job.clone())).await;
    let filter = json!({"q": "state:waiting payload.plan:old"});
    let mut session = tickr.mysql().await;
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    for (action, changed, others) in [
        (json!({"action": "set_priority", "filter": filter, "priority": 1}), ids[1], 4),
        (json!({"action": "cancel", "filter": filter}), ids[2], 3),
    ] {
        session.execute("BEGIN").await.unwrap();
        let row = sqlx::query("SELECT id FROM owed WHERE id = ? FOR UPDATE").bind(changed.uuid());
        row.fetch_one(&mut session).await.unwrap();
        let id = start(&tickr, action).await;
        eventually("the others are done", || async { (show(&tickr, id).await["done"] == others).then_some(()) }).await;
        let change = sqlx::query("UPDATE jobs SET payload = '{\"plan\": \"new\"}' WHERE id = ?").bind(changed.uuid());
        change.execute(&mut session).await.unwrap();
        session.execute("COMMIT").await.unwrap();
        let over = until_over(&tickr, id).await;
        assert_eq!(
            (&over["state"], &over["done"], &over["skipped"], &over["failed"]),
            (&json!("done"), &json!(others), &json!(1), &json!(0)),
            "{over:#}"
        );
        assert_eq!(tickr.job(changed).await["state"], "waiting");
    }
    assert_ne!(tickr.job(ids[1]).await["priority"], 1);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed").await, 2);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_job_that_no_longer_matches_when_a_delete_has_its_lock_is_kept() {
    let tickr = TestApp::start().await;
    let ids = tickr.enqueue_many((0..3).map(|_| json!({"kind": "noop", "payload": {"plan": "old"}}))).await;
    tickr.until_idle().await;
    let mut session = tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    let row = sqlx::query("SELECT id FROM jobs WHERE id = ? FOR UPDATE").bind(ids[1].uuid());
    row.fetch_one(&mut session).await.unwrap();
    let delete = json!({"action": "delete", "filter": {"q": "state:completed payload.plan:old"}});
    let id = start(&tickr, delete).await;
    // The batch has found all three.
    tickr.until_said("SELECT id FROM jobs FORCE INDEX", 1).await;
    let change = sqlx::query("UPDATE jobs SET payload = '{\"plan\": \"new\"}' WHERE id = ?").bind(ids[1].uuid());
    change.execute(&mut session).await.unwrap();
    session.execute("COMMIT").await.unwrap();
    let over = until_over(&tickr, id).await;
    assert_eq!((&over["state"], &over["done"]), (&json!("done"), &json!(2)), "{over:#}");
    assert_eq!(tickr.job(ids[1]).await["state"], "completed");
    tickr.stop().await;
}

/// A start counts up to a hundred thousand rows, as a dry run does.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_of_an_operation_is_refused_while_heavy_reads_take_every_seat() {
    // With so few connections a runner has one seat for heavy reads.
    let tickr = TestApp::start_with(|config| config.mysql_connections = 10, Registry::new()).await;
    let batch = tickr.post("/v1/batches", json!({"jobs": [{"kind": "noop", "payload": {}}], "close": true})).await.body;
    let retry = format!("/v1/batches/{}/retry", batch["id"].as_str().unwrap());
    tickr.until_idle().await;
    let body = |dry_run: bool| json!({"action": "cancel", "filter": {"kind": "noop"}, "dry_run": dry_run});
    let mut session = tickr.mysql().await;
    session.execute("LOCK TABLES jobs WRITE").await.unwrap();
    // One of these waits for the table and keeps the seat, so the other one is refused.
    let dry_runs = [true, true].map(|dry_run| Box::pin(tickr.post("/v1/operations", body(dry_run))));
    let (refused, _, waiting) = select_all(dry_runs).await;
    assert_eq!((refused.status, refused.code()), (429, "overloaded"), "{:#}", refused.body);
    for (path, body) in [("/v1/operations", body(false)), (retry.as_str(), json!({}))] {
        let started = tickr.post(path, body).await;
        assert_eq!((started.status, started.code()), (429, "overloaded"), "{path}: {:#}", started.body);
    }
    session.execute("UNLOCK TABLES").await.unwrap();
    for counted in join_all(waiting).await {
        assert_eq!(counted.status, 200, "{:#}", counted.body);
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM operations").await, 0);
    assert_eq!(tickr.post(&retry, json!({})).await.status, 202);
    assert_eq!(carried_out(&tickr, body(false)).await, (0, 0, 0));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_whose_row_a_frozen_runner_locks_holds_up_no_other_operation() {
    let tickr = TestApp::start().await;
    let jobs = (0..10).map(|_| json!({"kind": "noop", "tags": ["wild"], "delay_ms": LATER_MS}));
    tickr.enqueue_many(jobs).await;
    // One in front of every other operation and one behind them. Their leases are over soon.
    let frozen = [Uuid::from_u128(1), Uuid::max()];
    let insert = "INSERT INTO operations (id, action, filter, params, actor, created_at, estimate, capped, runner, \
                  token, lease_until) VALUES (?, 'cancel', '{\"tags\":[\"none\"]}', '{}', 'test', UTC_TIMESTAMP(6), \
                  0, FALSE, 'frozen/1-x', ?, UTC_TIMESTAMP(6) + INTERVAL 3 SECOND)";
    let mut session = tickr.mysql().await;
    for id in frozen {
        sqlx::query(insert).bind(id).bind(Uuid::new_v4()).execute(&mut session).await.unwrap();
    }
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    session.execute("BEGIN").await.unwrap();
    for id in frozen {
        let row = sqlx::query_scalar("SELECT runner FROM operations WHERE id = ? FOR UPDATE").bind(id);
        let runner: String = row.fetch_one(&mut session).await.unwrap();
        assert_eq!(runner, "frozen/1-x");
    }
    tickr.until_count("SELECT COUNT(*) FROM operations WHERE lease_until < UTC_TIMESTAMP(6)", 2).await;
    for done in [10, 0] {
        let id = start(&tickr, json!({"action": "cancel", "filter": {"tag": "wild"}})).await;
        let over = until_over(&tickr, id).await;
        assert_eq!((&over["state"], &over["done"]), (&json!("done"), &json!(done)), "{over:#}");
    }
    session.execute("ROLLBACK").await.unwrap();
    for id in frozen {
        assert_eq!(until_over(&tickr, id).await["state"], "done");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_unique_key_row_or_next_job_of_an_order_key_holds_up_no_other_job_of_an_operation() {
    let tickr = TestApp::start().await;
    let job = |n: u32| match n {
        2 => json!({"kind": "noop", "tags": ["wild"], "delay_ms": LATER_MS, "order_key": "o"}),
        3 => json!({"kind": "noop", "tags": ["wild"], "delay_ms": LATER_MS, "unique_key": "u"}),
        _ => json!({"kind": "noop", "tags": ["wild"], "delay_ms": LATER_MS}),
    };
    let ids = tickr.enqueue_many((0..30).map(job)).await;
    let next = json!({"kind": "noop", "delay_ms": LATER_MS, "order_key": "o"});
    let next = tickr.enqueue(next).await;
    let mut session = tickr.mysql().await;
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    for (action, locked) in [("cancel", 2), ("retry", 1)] {
        // Runners that freeze in an enqueue, in a change of a job or in a retry keep such locks.
        session.execute("BEGIN").await.unwrap();
        if action == "cancel" {
            let key = "SELECT * FROM unique_keys WHERE unique_key = 'u' LOCK IN SHARE MODE";
            assert!(session.fetch_optional(key).await.unwrap().is_some());
            let row = sqlx::query("SELECT id FROM owed WHERE id = ? FOR UPDATE").bind(next.uuid());
            row.fetch_one(&mut session).await.unwrap();
        } else {
            let row = sqlx::query("SELECT id FROM jobs WHERE id = ? FOR UPDATE").bind(ids[5].uuid());
            row.fetch_one(&mut session).await.unwrap();
        }
        let id = start(&tickr, json!({"action": action, "filter": {"tag": "wild"}})).await;
        let others = eventually("the others are done", || async {
            let operation = show(&tickr, id).await;
            (operation["done"] == 30 - locked).then_some(operation)
        })
        .await;
        assert_eq!((&others["state"], &others["skipped"]), (&json!("running"), &json!(0)), "{others:#}");
        session.execute("ROLLBACK").await.unwrap();
        let over = until_over(&tickr, id).await;
        assert_eq!(
            (&over["state"], &over["done"], &over["skipped"], &over["failed"]),
            (&json!("done"), &json!(30), &json!(0), &json!(0)),
            "{over:#}"
        );
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_key_that_is_locked_holds_up_no_other_job_of_an_operation_however_many_jobs_it_has() {
    let tickr = TestApp::start().await;
    // More jobs of the key than an operation can leave one by one, in front of the others.
    let job = |n: u32| {
        let tags = if n.is_multiple_of(50) || n >= 1_100 { json!(["wild", "few"]) } else { json!(["wild"]) };
        match n {
            0..1_100 => json!({"kind": "noop", "queue": "parked", "tags": tags, "order_key": "o"}),
            _ => json!({"kind": "noop", "queue": "parked", "tags": tags}),
        }
    };
    for first in [0, 560] {
        tickr.enqueue_many((first..first + 560).map(job)).await;
    }
    let mut session = tickr.mysql().await;
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    for (action, tag, all) in [("cancel", "wild", 1_120), ("retry", "few", 42)] {
        session.execute("BEGIN").await.unwrap();
        let key = "SELECT * FROM order_keys WHERE order_key = 'o' FOR UPDATE";
        assert!(session.fetch_optional(key).await.unwrap().is_some());
        let id = start(&tickr, json!({"action": action, "filter": {"tag": tag}})).await;
        let others = eventually("the others are done", || async {
            let operation = show(&tickr, id).await;
            (operation["done"] == 20).then_some(operation)
        })
        .await;
        assert_eq!((&others["state"], &others["skipped"]), (&json!("running"), &json!(0)), "{others:#}");
        session.execute("ROLLBACK").await.unwrap();
        let over = until_over(&tickr, id).await;
        assert_eq!(
            (&over["state"], &over["done"], &over["skipped"], &over["failed"]),
            (&json!("done"), &json!(all), &json!(0), &json!(0)),
            "{over:#}"
        );
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed").await, 42);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM audit WHERE action = 'job.retry'").await, 42);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_keeps_its_operation_while_it_rests_after_a_wait_for_a_locked_row() {
    let tickr = TestApp::start().await;
    tickr.sql(dead_letters(10)).await;
    let mut session = tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    let last = "SELECT number FROM attempts WHERE job_id = (SELECT MAX(job_id) FROM dead_letters) FOR UPDATE";
    assert!(session.fetch_optional(last).await.unwrap().is_some());
    let id = start(&tickr, json!({"action": "delete", "filter": {"queue": "parked"}})).await;
    // A batch that waits for the row does so for five seconds, and rests for as long. A lease without a rest ends eight
    // seconds after the begin of the batch.
    let kept = "SELECT COUNT(*) FROM operations WHERE lease_until > UTC_TIMESTAMP(6) + INTERVAL 9 SECOND";
    tickr.until_count(kept, 1).await;
    assert_eq!(show(&tickr, id).await["state"], "running");
    session.execute("ROLLBACK").await.unwrap();
    let over = until_over(&tickr, id).await;
    assert_eq!((&over["state"], &over["done"]), (&json!("done"), &json!(10)), "{over:#}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_whose_operation_another_one_has_taken_does_not_take_it_for_ended() {
    let (name, url) = migrated_database().await;
    let settings = StoreSettings { url: url.clone(), connections: 4, flushers: 1, table_prefix: table_prefix() };
    let store = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
    let operation = NewOperation {
        id: Uuid::now_v7(),
        action: Action::Cancel,
        filter: Filter::default(),
        params: OperationParams::default(),
        rate: None,
        canary: None,
    };
    let word = |_: &tickr::job::Operation| Kept { status: 202, body: "{}".into() };
    store.start_operation((operation, Counted::default()), &Actor::anyone(), None, Arc::new(word)).await.unwrap();
    let (first, second) = (RunnerId::new_for_host("first"), RunnerId::new_for_host("second"));
    let lost = store.lease_operations(first, Duration::ZERO).await.unwrap();
    let held = eventually("the lease is over", || async {
        let taken = store.lease_operations(second.clone(), Duration::from_secs(60)).await.unwrap();
        taken.first().copied()
    })
    .await;
    let lease = Duration::from_secs(60);
    let remake = Arc::new(|_: &Original| Err::<NewJob, String>("a cancel makes no jobs".to_owned()));
    let batched = store.advance_operation(lost[0], 7, lease, remake.clone()).await.unwrap();
    assert!(batched.over && batched.lost, "{batched:?}");
    let batched = store.advance_operation(held, 7, lease, remake).await.unwrap();
    assert!(batched.over && !batched.lost, "{batched:?}");
    drop(store);
    drop_database(&url, &name).await;
}

/// A runner that freezes in a batch keeps the row of its operation.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_wait_for_a_locked_operation_hold_up_no_other_change() {
    let tickr = TestApp::start().await;
    tickr.enqueue_many((0..30).map(|_| json!({"kind": "noop", "tags": ["wild"], "delay_ms": LATER_MS}))).await;
    let mut session = tickr.mysql().await;
    for verb in ["pause", "cancel"] {
        let id = start(&tickr, json!({"action": "cancel", "filter": {"tag": "wild"}, "rate": 1})).await;
        let path = |verb: &str| format!("/v1/operations/{id}/{verb}");
        let paused = tickr.post(&path("pause"), json!({})).await;
        assert_eq!(paused.status, 200, "{:#}", paused.body);
        session.execute("BEGIN").await.unwrap();
        let lock = sqlx::query("SELECT id FROM operations WHERE id = ? FOR UPDATE").bind(id);
        lock.fetch_one(&mut session).await.unwrap();
        let waiting = join_all((0..8).map(|_| async { tickr.post(&path(verb), json!({})).await.status }));
        let mut answers = tickr.goes_on_beside(waiting, &mut session).await;
        answers.sort_unstable();
        // Only a running operation can be cancelled.
        assert_eq!(answers, if verb == "pause" { [200_u16; 8] } else { [200, 409, 409, 409, 409, 409, 409, 409] });
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_gives_an_operation_back_or_ends_it_waits_for_no_session_that_locks_it() {
    let (name, url) = migrated_database().await;
    let settings = StoreSettings { url: url.clone(), connections: 4, flushers: 1, table_prefix: table_prefix() };
    let store = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
    let operation = NewOperation {
        id: Uuid::now_v7(),
        action: Action::Cancel,
        filter: Filter::default(),
        params: OperationParams::default(),
        rate: None,
        canary: None,
    };
    let word = |_: &tickr::job::Operation| Kept { status: 202, body: "{}".into() };
    store.start_operation((operation, Counted::default()), &Actor::anyone(), None, Arc::new(word)).await.unwrap();
    let runner = RunnerId::new_for_host("runner");
    let held = store.lease_operations(runner.clone(), Duration::from_secs(60)).await.unwrap()[0];
    let mut session = support::connect(&url).await;
    let lock = "SELECT id FROM operations FOR UPDATE";
    session.execute("BEGIN").await.unwrap();
    session.fetch_one(lock).await.unwrap();
    let at_once = async {
        store.release_operation(held).await.unwrap();
        assert!(!store.fail_operation(held, "it fails".into()).await.unwrap());
    };
    // A wait for a lock takes five seconds.
    tokio::time::timeout(Duration::from_secs(4), at_once).await.unwrap();
    session.execute("ROLLBACK").await.unwrap();

    store.release_operation(held).await.unwrap();
    let held = store.lease_operations(runner, Duration::from_secs(60)).await.unwrap()[0];
    assert!(store.fail_operation(held, "it fails".into()).await.unwrap());
    let failed = session.fetch_all("SELECT id FROM operations WHERE state = 'failed'").await.unwrap();
    assert_eq!(failed.len(), 1);
    drop(store);
    drop_database(&url, &name).await;
}
