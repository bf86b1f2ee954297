//! Every route of the HTTP API, with its status codes and headers. For every test of this program, the harness checks
//! that each answer fits `/openapi.json`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Executor as _};
use tickr::event::Event;
use tickr::handlers::Registry;
use tickr::job::{JobId, State};
use tokio_util::sync::CancellationToken;

use crate::support::{TestApp, answer, eventually, http};

/// Long enough that the job is not due before its test ends.
const LATER_MS: u64 = 3_600_000;

async fn later(tickr: &TestApp) -> JobId {
    tickr.enqueue(json!({"kind": "noop", "delay_ms": LATER_MS})).await
}

/// Enqueue a job that runs until it is told to stop, and wait until it runs.
async fn running(tickr: &TestApp) -> JobId {
    let id = tickr.enqueue_kind("sleep", json!({"ms": 600_000})).await;
    tickr.until(id, State::Executing).await;
    id
}

fn moment(value: &Value) -> DateTime<Utc> {
    let text = value.as_str().unwrap();
    assert!(text.len() == 24 && text.ends_with('Z'), "{text} is not RFC 3339 in UTC with milliseconds");
    text.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn enqueue_answers_201_with_the_job_and_where_it_is() {
    let tickr = TestApp::start().await;
    let asked = json!({
        "kind": "noop", "payload": {"text": "ü€😀\u{0}", "n": 1.50}, "queue": "mail.high", "delay_ms": LATER_MS,
        "max_attempts": 7, "timeout_ms": 1_234, "priority": 2, "unique_key": "k-1",
        "retry": {"base_ms": 10, "factor": 1.5, "cap_ms": 20, "jitter": 0.0},
    });
    let answer = tickr.post("/v1/jobs", asked.clone()).await;
    assert_eq!((answer.status, answer.header("x-content-type-options")), (201, "nosniff"));
    let mut job = answer.body;
    // No runner serves the queue. Only the receipt says so.
    assert!(job.as_object_mut().unwrap().remove("warnings").is_some());
    assert_eq!(answer.headers["location"], format!("/v1/jobs/{}", job["id"].as_str().unwrap()));
    for field in ["kind", "payload", "queue", "max_attempts", "timeout_ms", "priority", "unique_key", "retry"] {
        assert_eq!(job[field], asked[field], "{field}");
    }
    assert_eq!((&job["state"], &job["attempt"], &job["attempts"]), (&json!("waiting"), &json!(0), &json!([])));
    let wait = moment(&job["execute_at"]) - moment(&job["created_at"]);
    assert!((0..=1).contains(&(wait.num_milliseconds() - LATER_MS as i64)), "{wait}");

    let id: JobId = job["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(uuid::Uuid::parse_str(&id.to_string()).unwrap().get_version_num(), 7);
    let read = tickr.get(answer.headers["location"].to_str().unwrap()).await;
    assert_eq!((read.status, &read.body), (200, &job), "the receipt equals what a later read returns");

    // With the same unique key the answer is the unfinished job, and nothing is written.
    let again = tickr.post("/v1/jobs", asked).await;
    assert_eq!((again.status, &again.body["id"]), (200, &job["id"]));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1);

    // All fields but the kind may be left out, and a time may be in any zone.
    let bare = tickr.post("/v1/jobs", json!({"kind": "noop"})).await.body;
    assert_eq!((&bare["payload"], &bare["queue"], &bare["priority"]), (&json!({}), &json!("default"), &json!(5)));
    let at = (Utc::now() + Duration::from_secs(3_600)).with_timezone(&chrono::FixedOffset::east_opt(7_200).unwrap());
    let dated = tickr.post("/v1/jobs", json!({"kind": "noop", "execute_at": at.to_rfc3339()})).await;
    assert_eq!(dated.status, 201);
    let raised = moment(&dated.body["execute_at"]) - at.with_timezone(&Utc);
    assert!((0..1_000).contains(&raised.num_microseconds().unwrap()), "never early: {raised}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_answered_in_order_and_is_all_or_nothing() {
    let tickr = TestApp::start().await;
    let job = |n: usize| json!({"kind": "noop", "payload": {"n": n}, "delay_ms": LATER_MS + n as u64 * 1_000});
    let answer = tickr.post("/v1/jobs/batch", json!({"jobs": (0..1_000).map(job).collect::<Vec<_>>()})).await;
    assert_eq!(answer.status, 201);
    let receipts = answer.body["jobs"].as_array().unwrap();
    assert_eq!(receipts.len(), 1_000);
    assert!(receipts.is_sorted_by_key(|receipt| moment(&receipt["execute_at"])));
    for n in [0, 1, 499, 999] {
        let id = receipts[n]["id"].as_str().unwrap().parse().unwrap();
        let job = tickr.job(id).await;
        assert_eq!((&job["payload"]["n"], &job["execute_at"]), (&json!(n), &receipts[n]["execute_at"]));
    }
    let one = tickr.post("/v1/jobs/batch", json!({"jobs": [job(0)]})).await;
    assert_eq!((one.status, one.body["jobs"].as_array().unwrap().len()), (201, 1));

    // One bad job of three: none is written, and every problem names the job that it is in.
    let mixed = json!({"jobs": [
        job(1), {"kind": "sleep", "payload": {"ms": "long"}}, {"kind": "noop", "max_attempts": 0},
    ]});
    let answer = tickr.post("/v1/jobs/batch", mixed).await;
    assert_eq!((answer.status, answer.code()), (422, "invalid_payload"));
    assert_eq!(answer.pointers(), ["/jobs/1/payload/ms", "/jobs/2/max_attempts"]);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1_001);

    // A unique key that is held, or occurs twice in one batch, fails the whole batch if the job has `on_conflict:
    // reject`.
    let keyed = |key: &str| json!({"kind": "noop", "delay_ms": LATER_MS, "unique_key": key, "on_conflict": "reject"});
    assert_eq!(tickr.post("/v1/jobs/batch", json!({"jobs": [keyed("a"), keyed("b")]})).await.status, 201);
    for (jobs, refusal) in [
        (json!([keyed("c"), keyed("b")]), (409, "unique_key_taken")),
        (json!([keyed("d"), keyed("d")]), (422, "invalid_request")),
    ] {
        let answer = tickr.post("/v1/jobs/batch", json!({"jobs": jobs})).await;
        assert_eq!((answer.status, answer.code()), refusal);
        assert_eq!(answer.pointers(), ["/jobs/1/unique_key"]);
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1_003);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed").await, 1_003);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_listing_walks_by_pages_newest_first_without_gap_or_repetition() {
    let tickr = TestApp::start().await;
    let mut sent = Vec::new();
    for batch in 0..3 {
        let job = |n: usize| {
            let queue = if n.is_multiple_of(3) { "third" } else { "default" };
            json!({"kind": if batch == 1 { "sleep" } else { "noop" }, "payload": {"ms": 1}, "queue": queue, "delay_ms": LATER_MS})
        };
        let answer = tickr.post("/v1/jobs/batch", json!({"jobs": (0..100).map(job).collect::<Vec<_>>()})).await;
        sent.extend(answer.body["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()));
    }
    sent.reverse();
    let cancelled = &sent[7];
    assert_eq!(tickr.post(&format!("/v1/jobs/{cancelled}/cancel"), json!({})).await.status, 200);

    let walk = async |filter: &str, limit: usize| {
        let (mut seen, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let from = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
            let page = tickr.get(&format!("/v1/jobs?limit={limit}{filter}{from}")).await;
            assert_eq!(page.status, 200, "{:#}", page.body);
            let data = page.body["data"].as_array().unwrap();
            assert!(data.len() <= limit);
            assert!(
                data.iter().all(|job| ["payload", "result", "attempts"].iter().all(|field| job.get(field).is_none()))
            );
            seen.extend(data.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
            cursor = page.body["next_cursor"].as_str().map(str::to_owned);
            if cursor.is_none() {
                return seen;
            }
        }
    };
    for limit in [1, 7, 50, 200] {
        assert_eq!(walk("", limit).await, sent, "in pages of {limit}");
    }
    assert_eq!(walk("&kind=sleep", 33).await, sent[100..200]);
    let third = walk("&queue=third", 7).await;
    assert_eq!(third.len(), 3 * 34);
    assert_eq!(walk("&queue=third&kind=sleep", 10).await.len(), 34);
    assert_eq!(walk("&state=cancelled", 10).await, std::slice::from_ref(cancelled));
    assert_eq!(walk("&state=waiting", 100).await.len(), 299);
    assert_eq!(walk("&kind=nobody", 100).await, [""; 0]);

    // A cursor belongs to its filter, and a made-up cursor is refused.
    let page = tickr.get("/v1/jobs?limit=5").await;
    let cursor = page.body["next_cursor"].as_str().unwrap();
    for wrong in [format!("queue=third&cursor={cursor}"), "cursor=AAAA".into(), format!("cursor={cursor}A")] {
        let answer = tickr.get(&format!("/v1/jobs?{wrong}")).await;
        assert_eq!((answer.status, answer.code()), (422, "invalid_cursor"), "{wrong}");
    }
    // Jobs that arrive during a walk do not disturb it.
    later(&tickr).await;
    let rest = tickr.get(&format!("/v1/jobs?limit=200&cursor={cursor}")).await;
    assert_eq!(rest.body["data"][0]["id"], sent[5]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_whose_moment_a_client_changed_is_refused() {
    let tickr = TestApp::start().await;
    for job in [json!({"kind": "fail", "payload": {"permanent": true}}), json!({"kind": "panic", "max_attempts": 1})] {
        let id = tickr.enqueue(job).await;
        tickr.until(id, State::Failed).await;
    }
    tickr
        .sql(
            "INSERT INTO ticks (schedule, due_at, outcome, cause, recorded_at, recorded_by) VALUES \
             ('old', UTC_TIMESTAMP(3), 'skipped', 'missed', UTC_TIMESTAMP(6), 'old'), \
             ('old', UTC_TIMESTAMP(3) - INTERVAL 1 HOUR, 'skipped', 'missed', UTC_TIMESTAMP(6), 'old'); \
             INSERT INTO outbox_rejected (id, kind, payload, rejected_at, reason) VALUES \
             (UNHEX('00000000000040008000000000000005'), 'old', '{}', UTC_TIMESTAMP(6), 'old'), \
             (UNHEX('00000000000040008000000000000006'), 'old', '{}', UTC_TIMESTAMP(6), 'old')",
        )
        .await;
    // The years 144,000, 75,000 and -144,000, which chrono has and MySQL has not.
    for (path, at, byte) in
        [("/v1/schedules/old/ticks", 1, 0x10), ("/v1/dead-letters/groups", 0, 0x20), ("/v1/outbox/rejected", 0, 0xc0)]
    {
        let first = tickr.get(&format!("{path}?limit=1")).await;
        let cursor = first.body["next_cursor"].as_str().unwrap();
        assert_eq!(tickr.get(&format!("{path}?limit=1&cursor={cursor}")).await.status, 200, "{path}");
        let mut bytes = URL_SAFE_NO_PAD.decode(cursor).unwrap();
        bytes[at] = byte;
        let answer = tickr.get(&format!("{path}?limit=1&cursor={}", URL_SAFE_NO_PAD.encode(bytes))).await;
        assert_eq!((answer.status, answer.code()), (422, "invalid_cursor"), "{path}: {:#}", answer.body);
    }
    tickr.stop_broken("ticks and rows of the outbox were written by hand").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_200_when_over_202_while_not_and_the_waiter_is_woken() {
    let tickr = TestApp::start().await;
    let id = tickr.enqueue_kind("sleep", json!({"ms": 400})).await;
    let path = format!("/v1/jobs/{id}/result");
    let early = tickr.get(&path).await;
    assert_eq!((early.status, &early.body["result"]), (202, &Value::Null));
    let began = Instant::now();
    let short = tickr.get(&format!("{path}?wait=50ms")).await;
    assert!(short.status == 200 || began.elapsed() >= Duration::from_millis(50));
    let waited = tickr.get(&format!("{path}?wait=30s")).await;
    assert_eq!(waited.status, 200);
    let job = tickr.job(id).await;
    let late = Utc::now() - moment(&job["finished_at"]);
    assert!(late < chrono::TimeDelta::seconds(10), "woken {late} after the end");
    let expected = json!({"id": id.to_string(), "state": "completed", "result": {"slept_ms": 400}, "last_error": null});
    assert_eq!(waited.body, expected);
    assert_eq!(tickr.get(&path).await.body, expected, "the result stays readable");

    // The job is cancelled, first without a waiting client and then with one.
    let id = later(&tickr).await;
    let path = format!("/v1/jobs/{id}/result?wait=30s");
    let (answer, ()) = tokio::join!(tickr.get(&path), async {
        assert_eq!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 200);
    });
    assert_eq!((answer.status, &answer.body["state"]), (200, &json!("cancelled")));

    let id = tickr.enqueue_kind("fail", json!({"permanent": true})).await;
    let failed = tickr.get(&format!("/v1/jobs/{id}/result?wait=30s")).await;
    assert_eq!((&failed.body["state"], &failed.body["last_error"]), (&json!("failed"), &json!("rejected on request")));

    for wrong in
        ["wait=30", "wait=-1s", "wait=s", "wait=", "wait=61s", "wait=1h", "patience=1s", "wait=99999999999999999999s"]
    {
        let answer = tickr.get(&format!("/v1/jobs/{id}/result?{wrong}")).await;
        assert_eq!((answer.status, answer.code()), (422, "invalid_request"), "{wrong}");
        assert_eq!(answer.pointers(), [wrong.split('=').next().unwrap()], "{:#}", answer.body);
    }
    let nobody = tickr.get(&format!("/v1/jobs/{}/result?wait=30s", JobId::new())).await;
    assert_eq!((nobody.status, nobody.code()), (404, "not_found"));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_retry_and_run_now_answer_by_the_state_of_the_job() {
    let tickr = TestApp::start().await;
    let steer = async |id: JobId, verb: &str| tickr.post(&format!("/v1/jobs/{id}/{verb}"), json!({})).await;
    let refused = async |id: JobId, verb: &str, state: &str| {
        let answer = steer(id, verb).await;
        assert_eq!((answer.status, answer.code()), (409, "wrong_state"), "{verb} of a job that is {state}");
        assert_eq!(answer.body["current_state"], state);
    };

    // A waiting job is cancelled for good, then retried, then made due at once.
    let id = later(&tickr).await;
    refused(id, "retry", "waiting").await;
    let cancelled = steer(id, "cancel").await;
    assert_eq!((cancelled.status, &cancelled.body["state"]), (200, &json!("cancelled")));
    moment(&cancelled.body["finished_at"]);
    refused(id, "cancel", "cancelled").await;
    refused(id, "run-now", "cancelled").await;
    let revived = steer(id, "retry").await;
    assert_eq!(revived.status, 200);
    tickr.until(id, State::Completed).await;
    for verb in ["cancel", "retry", "run-now"] {
        refused(id, verb, "completed").await;
    }
    let id = later(&tickr).await;
    assert_eq!(steer(id, "run-now").await.status, 200);
    tickr.until(id, State::Completed).await;

    // An executing job: it is asked to stop, and then it stops.
    let id = running(&tickr).await;
    refused(id, "retry", "executing").await;
    refused(id, "run-now", "executing").await;
    let asked = steer(id, "cancel").await;
    assert_eq!(asked.status, 202);
    let job = tickr.until(id, State::Cancelled).await;
    assert_eq!(job["attempts"][0]["verdict"], "cancelled");

    // A retrying job cannot be retried by an operator, but it can be made due at once. A failed job gets a full set of
    // attempts.
    let slow = json!({"base_ms": 3_600_000, "cap_ms": 3_600_000});
    let id = tickr.enqueue(json!({"kind": "fail", "max_attempts": 2, "retry": slow})).await;
    tickr.until(id, State::Retrying).await;
    refused(id, "retry", "retrying").await;
    assert_eq!(steer(id, "run-now").await.status, 200);
    let failed = tickr.until(id, State::Failed).await;
    assert_eq!(failed["attempts"].as_array().unwrap().len(), 2);
    refused(id, "cancel", "failed").await;
    assert_eq!(steer(id, "retry").await.status, 200);
    let again = tickr.until(id, State::Retrying).await;
    assert_eq!((&again["attempt"], &again["attempts"][2]["number"]), (&json!(1), &json!(3)));
    let answer = steer(id, "cancel").await;
    assert_eq!((answer.status, &answer.body["state"]), (200, &json!("cancelled")));

    for verb in ["cancel", "retry", "run-now"] {
        let missing = steer(JobId::new(), verb).await;
        assert_eq!((missing.status, missing.code()), (404, "not_found"));
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stats_add_up_to_the_jobs_there_are() {
    let tickr = TestApp::start().await;
    for _ in 0..3 {
        later(&tickr).await;
    }
    let cancelled = later(&tickr).await;
    tickr.post(&format!("/v1/jobs/{cancelled}/cancel"), json!({})).await;
    let done = tickr.enqueue(json!({"kind": "noop", "queue": "default"})).await;
    tickr.until(done, State::Completed).await;
    let failed = tickr.enqueue_kind("fail", json!({"permanent": true})).await;
    tickr.until(failed, State::Failed).await;
    let busy = running(&tickr).await;
    tickr.enqueue(json!({"kind": "noop", "queue": "elsewhere", "delay_ms": LATER_MS})).await;

    let stats = tickr.get("/v1/stats").await.body;
    let states = json!({"waiting": 4, "executing": 1, "retrying": 0, "completed": 1, "failed": 1, "cancelled": 1});
    assert_eq!(stats["states"], states);
    assert_eq!(stats["exact"], true);
    let by_queue: i64 = stats["queues"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|counts| counts.as_object().unwrap().values())
        .map(|count| count.as_i64().unwrap())
        .sum();
    assert_eq!(by_queue, tickr.count("SELECT COUNT(*) FROM jobs").await);
    assert_eq!(stats["queues"]["elsewhere"], json!({"waiting": 1}));
    assert_eq!(stats["lateness"]["oldest_due_ms"], 0);
    assert!(moment(&stats["lateness"]["next_due_at"]) > moment(&stats["at"]));
    assert!(stats["lateness"]["p50_ms"].as_f64().unwrap() >= 0.0, "never early");
    assert!(stats["rates"]["accepted_per_second"].as_f64().unwrap() > 0.0);
    tickr.post(&format!("/v1/jobs/{busy}/cancel"), json!({})).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_come_with_schemas_that_say_what_enqueue_enforces() {
    let tickr = TestApp::start().await;
    let kinds = tickr.get("/v1/kinds").await.body;
    let kinds = kinds["data"].as_array().unwrap();
    let names: Vec<&str> = kinds.iter().map(|kind| kind["kind"].as_str().unwrap()).collect();
    assert_eq!(names, ["abort", "email", "fail", "hoard", "http", "noop", "panic", "report", "sleep", "spin", "steps"]);
    for kind in kinds {
        assert_eq!(kind["schema"]["$schema"], "https://json-schema.org/draft/2020-12/schema");
        assert!(jsonschema::validator_for(&kind["schema"]).is_ok(), "{}", kind["kind"]);
        assert!(kind["max_attempts"].as_u64().unwrap() >= 1 && kind["timeout_ms"].as_u64().unwrap() >= 1);
    }
    let sleep = kinds.iter().find(|kind| kind["kind"] == "sleep").unwrap();
    let validator = jsonschema::validator_for(&sleep["schema"]).unwrap();
    for (payload, status) in
        [(json!({"ms": 1}), 201), (json!({"ms": -1}), 422), (json!({}), 422), (json!({"ms": 1, "x": 1}), 422)]
    {
        assert_eq!(validator.is_valid(&payload), status == 201);
        assert_eq!(tickr.post("/v1/jobs", json!({"kind": "sleep", "payload": payload})).await.status, status);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runners_and_health_tell_who_serves() {
    let tickr = TestApp::start().await;
    // The heartbeat inserts the row of the runner a moment after the start.
    let runner = eventually("the runner is listed", async || {
        let runner = tickr.get("/v1/runners").await.body["data"][0].take();
        (!runner.is_null()).then_some(runner)
    })
    .await;
    assert_eq!(runner["id"], tickr.app.runner().as_str());
    assert_eq!((&runner["workers"], &runner["queues"]), (&json!(4), &json!(["default"])));
    assert_eq!(runner["stopped_at"], Value::Null);
    let other = tickr.another().await;
    let name = other.runner().to_string();
    eventually("both are listed", async || {
        let runners = tickr.get("/v1/runners").await.body;
        (runners["data"].as_array().unwrap().len() == 2).then_some(())
    })
    .await;
    other.stop(tokio_util::sync::CancellationToken::new()).await;
    eventually("the stopped runner is struck off", async || {
        let runners = tickr.get("/v1/runners").await.body;
        let gone = runners["data"].as_array().unwrap().iter().find(|runner| runner["id"] == name.as_str()).cloned();
        gone.filter(|runner| !runner["stopped_at"].is_null())
    })
    .await;

    let alive = tickr.get("/livez").await;
    assert_eq!((alive.status, &alive.body), (200, &json!("ok\n")));
    let ready = eventually("the index is whole", async || {
        let ready = tickr.get("/readyz").await;
        (ready.body["index"] == "fast").then_some(ready)
    })
    .await;
    assert_eq!((ready.status, &ready.body["status"], &ready.body["mysql"]), (200, &json!("ready"), &json!(true)));
    let id = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(id, State::Completed).await;
    let metrics = tickr.get("/metrics").await;
    assert!(metrics.header("content-type").starts_with("text/plain; version=0.0.4"));
    assert!(metrics.body.as_str().unwrap().contains("tickr_jobs_accepted_total"));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_turns_red_while_a_runner_stops_and_waiters_are_let_go() {
    let tickr = TestApp::start_with(|config| config.shutdown_grace = Duration::from_secs(20), Registry::new()).await;
    let id = tickr.enqueue_kind("sleep", json!({"ms": 1_500})).await;
    tickr.until(id, State::Executing).await;
    let (ready, result) = (tickr.url("/readyz"), tickr.url(&format!("/v1/jobs/{id}/result?wait=60s")));
    let waiter = tokio::spawn(async move { answer(http().get(result)).await });
    let mut events = tickr.app.broker().events().listen();
    let TestApp { app, .. } = tickr;
    let stopping = tokio::spawn(app.stop(tokio_util::sync::CancellationToken::new()));
    while !matches!(events.recv().await, Ok(Event::RunnerStopping) | Err(_)) {}
    let red = answer(http().get(ready)).await;
    assert_eq!((red.status, &red.body["status"]), (503, &json!("stopping")));
    // The waiting client gets its answer at once, so that it does not delay the stop.
    assert!(matches!(waiter.await.unwrap().status, 200 | 202));
    stopping.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_calls_that_may_only_make_a_limit_or_a_kind_one_makes_it() {
    let tickr = TestApp::start().await;
    let other = tickr.another().await;
    for (path, field, row) in [
        ("/v1/limits/x", "concurrency", "limits WHERE name = 'x'"),
        ("/v1/kinds/x", "max_attempts", "declared_kinds WHERE name = 'x'"),
    ] {
        let urls = [tickr.url(path), format!("http://{}{path}", other.addr())];
        let call = |value: usize| {
            let put = http().put(&urls[value % 2]).header("if-none-match", "*");
            answer(put.json(&json!({field: value})))
        };
        // An INSERT waits for this lock of the gap, and a read for an update does not. So two calls find no row.
        let mut session = tickr.mysql().await;
        session.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION").await.unwrap();
        session.execute(AssertSqlSafe(format!("SELECT * FROM {row} FOR UPDATE"))).await.unwrap();
        let others = async {
            tickr.until_lock_waits(2..).await;
            session.execute("ROLLBACK").await.unwrap();
            join_all((3..=20).map(call)).await
        };
        let (first, second, mut answers) = tokio::join!(call(1), call(2), others);
        answers.extend([first, second]);
        let (made, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 201);
        assert_eq!(made.len(), 1, "{path}: {made:?}");
        assert!(refused.iter().all(|answer| answer.status == 412), "{path}: {refused:?}");
        let stored = tickr.count(format!("SELECT CAST({field} AS SIGNED) FROM {row}")).await;
        assert_eq!(made[0].body[field], json!(stored), "{path}");
    }
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_reports_are_downloads_and_nothing_else_is() {
    let query: fn(&mut tickr::config::Config) = |config| {
        let sql = "SELECT 1 AS a, '<b>' AS b";
        let query = tickr::config::ReportQuery {
            title: "One".into(),
            description: None,
            sql: sql.into(),
            statement: tickr::config::Statement::parse(sql).unwrap(),
            params: Vec::new(),
        };
        config.reports.queries.insert("one".into(), query);
    };
    let tickr = TestApp::start_with(query, Registry::new()).await;
    std::fs::write(tickr.dir.path().join("secret.csv"), "secret").unwrap();
    for (format, media) in
        [("csv", "text/csv"), ("json", "application/json"), ("html", "text/html"), ("pdf", "application/pdf")]
    {
        let id = tickr.enqueue_kind("report", json!({"query": "one", "format": format})).await;
        let job = tickr.until(id, State::Completed).await;
        let file = job["result"]["file"].as_str().unwrap_or_else(|| panic!("{job:#}")).to_owned();
        let response = http().get(tickr.url(&format!("/v1/reports/{file}"))).send().await.unwrap();
        assert_eq!(response.status(), 200);
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert!(header("content-type").starts_with(media), "{}", header("content-type"));
        assert_eq!(header("content-disposition"), format!("attachment; filename=\"{file}\""));
        assert_eq!(header("x-content-type-options"), "nosniff");
        let written = std::fs::read(tickr.config.reports_dir.join(&file)).unwrap();
        assert_eq!(header("content-length"), written.len().to_string());
        assert_eq!(response.bytes().await.unwrap(), written);
        assert_eq!(tickr.get(&format!("/v1/reports/{file}")).await.status, 200);
    }
    for trick in [
        "..%2Fsecret.csv",
        "%2e%2e%2fsecret.csv",
        "..%5Csecret.csv",
        "%2Fetc%2Fpasswd",
        "..",
        ".",
        "secret.csv",
        "nothing.csv",
        "%00",
        "a%00.csv",
        "%FF%FE",
        ".hidden",
        "one%2F..%2F..%2Fsecret.csv",
        &"x".repeat(5_000),
    ] {
        let (status, head, body) =
            raw(&tickr, &format!("GET /v1/reports/{trick} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
                .await;
        assert_eq!(status, 404, "{trick}: {head}");
        assert!(head.contains("application/problem+json"), "{trick}: {head}");
        assert!(body.contains("\"code\":\"not_found\""), "{trick}: {body}");
    }
    tickr.stop().await;
}

/// Send the request as raw bytes, because a client library would normalise it. Return the status, head and body of the
/// answer.
async fn raw(tickr: &TestApp, request: &str) -> (u16, String, String) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut socket = tokio::net::TcpStream::connect(tickr.app.addr()).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (status, head.to_ascii_lowercase(), body.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_tokens_everything_but_health_asks_for_one() {
    let tickr =
        TestApp::start_with(|config| config.api_tokens = vec!["tok-one".into(), "tok-two".into()], Registry::new())
            .await;
    let id = JobId::new();
    let paths = [
        "/v1/jobs",
        &format!("/v1/jobs/{id}"),
        &format!("/v1/jobs/{id}/result"),
        "/v1/kinds",
        "/v1/stats",
        "/v1/runners",
        "/v1/reports/x.csv",
        "/metrics",
        "/openapi.json",
        "/docs",
        "/nowhere",
    ];
    for path in paths {
        let answer = tickr.get(path).await;
        assert_eq!(
            (answer.status, answer.code(), answer.header("www-authenticate")),
            (401, "unauthorized", "Bearer"),
            "{path}"
        );
    }
    let post = |token: Option<&str>| {
        let request = http().post(tickr.url("/v1/jobs")).json(&json!({"kind": "noop"}));
        match token {
            Some(token) => request.header("authorization", token.to_owned()),
            None => request,
        }
    };
    for token in
        [None, Some(""), Some("tok-one"), Some("Bearer"), Some("Bearer "), Some("Bearer tok"), Some("Basic tok-one")]
    {
        assert_eq!(answer(post(token)).await.status, 401, "{token:?}");
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 0);
    for token in ["Bearer tok-one", "bearer tok-two"] {
        assert_eq!(answer(post(Some(token))).await.status, 201, "{token}");
    }
    for path in ["/livez", "/readyz"] {
        assert_eq!(tickr.get(path).await.status, 200, "{path}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_methods_and_paths_are_problems_too() {
    let tickr = TestApp::start().await;
    let id = later(&tickr).await;
    for (method, path, allowed) in [
        ("DELETE", "/v1/jobs".to_owned(), vec!["GET", "HEAD", "POST"]),
        ("PUT", format!("/v1/jobs/{id}"), vec!["GET", "HEAD", "PATCH"]),
        ("GET", format!("/v1/jobs/{id}/cancel"), vec!["POST"]),
        ("POST", "/v1/stats".to_owned(), vec!["GET", "HEAD"]),
        ("POST", "/livez".to_owned(), vec!["GET", "HEAD"]),
        ("POST", "/openapi.json".to_owned(), vec!["GET", "HEAD"]),
    ] {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let answer = answer(http().request(method.clone(), tickr.url(&path))).await;
        assert_eq!((answer.status, answer.code()), (405, "method_not_allowed"), "{method} {path}");
        let allow: BTreeSet<&str> = answer.header("allow").split(',').map(str::trim).collect();
        assert_eq!(allow, allowed.into_iter().collect(), "{method} {path}");
    }
    for path in ["/v1", "/v1/", "/v1/jobs/", "/v2/jobs", "/job", &format!("/v1/jobs/{id}/unknown"), "/v1/reports/"] {
        let answer = tickr.get(path).await;
        assert_eq!((answer.status, answer.code()), (404, "not_found"), "{path}");
    }
    let page = tickr.get("/docs").await;
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").starts_with("text/html"));
    assert!(page.body.as_str().unwrap().contains("/v1/jobs/{id}/run-now"));
    assert!(page.header("content-security-policy").contains("default-src 'none'"));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_enqueued_through_the_crate_is_there_over_http_also_after_a_restart() {
    let tickr = TestApp::start().await;
    let payload = serde_json::value::to_raw_value(&json!({"n": 1})).unwrap();
    let mut draft = tickr::broker::Draft::new("noop", payload);
    draft.due = tickr::job::Due::After(Duration::from_millis(1_500));
    let id = tickr.enqueue_draft(draft).await;
    let before = tickr.job(id).await;
    assert_eq!((&before["payload"], &before["state"]), (&json!({"n": 1}), &json!("waiting")));
    let tickr = tickr.restart().await;
    let after = tickr.until(id, State::Completed).await;
    assert_eq!(after["execute_at"], before["execute_at"]);
    tickr.stop().await;
}
