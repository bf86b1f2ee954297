//! Order keys: jobs with the same one run one at a time, in the order in which they were accepted.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sqlx::{Connection, Executor};
use tickr::config::Config;
use tickr::event::Event;
use tickr::handlers::{Context, Failure, Kind, Output, Registry};
use tickr::job::{
    Actor, AttemptToken, Bounds, Due, JobId, JobOptions, Limit, NewJob, OnConflict, OnFailure, Order, Priority,
    RunnerId, SharedBy, State, Verdict,
};
use tickr::store::{
    ActionOutcome, Again, CheckpointUse, Claim, Claimant, Claimed, Condition, Retention, Settled, Settlement, Store,
    StoreSettings,
};
use tokio::sync::broadcast::{self, error::TryRecvError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::program::{self, command, outcome};
use crate::support::{
    Proxy, Pulse, Runner, TestApp, bystander, connect, default_queue, drop_database, eventually, eventually_seen,
    halted, http, migrated_database, table_prefix, until_said, while_unavailable,
};

/// A job of a line. It notes its start and its end.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Link {
    key: String,
    n: usize,
    /// Number of attempts that fail before one succeeds.
    fails: u32,
    /// True if it runs until the test opens the gate.
    hold: bool,
    /// True if its first attempt snoozes.
    #[serde(default)]
    snoozes: bool,
}

impl Kind for Link {
    const NAME: &'static str = "link";
}

/// The log of the handlers.
#[derive(Default)]
struct Log {
    /// Key, number and whether this is the end of an attempt, in the order in which it was noted.
    notes: Mutex<Vec<(String, usize, bool)>>,
    gate: CancellationToken,
}

impl Log {
    fn registry(self: &Arc<Self>) -> Registry {
        let (mut registry, log) = (Registry::new(), Arc::clone(self));
        registry.register(move |link: Link, context: Context| {
            let log = Arc::clone(&log);
            async move {
                let note = |end| log.notes.lock().unwrap().push((link.key.clone(), link.n, end));
                note(false);
                if link.hold {
                    tokio::select! {
                        () = log.gate.cancelled() => {}
                        () = context.stopped() => {
                            note(true);
                            return Err(Failure::retry("told to stop"));
                        }
                    }
                }
                tokio::task::yield_now().await;
                note(true);
                if link.snoozes && log.starts(&link.key, link.n) == 1 {
                    return Err(Failure::snooze(Duration::from_millis(20), "in a moment"));
                }
                if context.attempt() <= link.fails { Err(Failure::retry("not yet")) } else { Ok(Output::default()) }
            }
        });
        registry
    }

    /// Count the starts of a job.
    fn starts(&self, key: &str, n: usize) -> usize {
        let notes = self.notes.lock().unwrap();
        notes.iter().filter(|(of, number, end)| of == key && *number == n && !end).count()
    }

    /// Check that no two attempts of a key overlapped, and return the numbers of each key in the order of their first
    /// starts.
    fn order(&self) -> BTreeMap<String, Vec<usize>> {
        let mut running: HashMap<String, usize> = HashMap::new();
        let mut order: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (key, n, end) in self.notes.lock().unwrap().iter() {
            if *end {
                assert_eq!(running.remove(key), Some(*n), "{key}");
            } else {
                let other = running.insert(key.clone(), *n);
                assert_eq!(other, None, "job {n} of {key} started while another one ran");
                let seen = order.entry(key.clone()).or_default();
                if seen.last() != Some(n) {
                    seen.push(*n);
                }
            }
        }
        order
    }
}

fn link(key: &str, n: usize) -> Value {
    json!({"kind": "link", "payload": {"key": key, "n": n, "fails": 0, "hold": false}, "order_key": key,
        "retry": {"base_ms": 20, "factor": 1.0}})
}

fn held(key: &str, n: usize) -> Value {
    let mut job = link(key, n);
    job["payload"]["hold"] = json!(true);
    job
}

fn failing(key: &str, n: usize) -> Value {
    let mut job = link(key, n);
    job["payload"]["fails"] = json!(100);
    job["max_attempts"] = json!(2);
    job
}

async fn start() -> (TestApp, Arc<Log>) {
    let log = Arc::<Log>::default();
    let tickr = TestApp::start_with(|config| config.workers = 16, log.registry()).await;
    (tickr, log)
}

/// Wait until the log has this many starts of the key.
async fn until_started(log: &Log, key: &str, count: usize) {
    let starts = || log.notes.lock().unwrap().iter().filter(|(of, _, end)| of == key && !end).count();
    eventually("the jobs started", || async { (starts() >= count).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_with_one_order_key_run_one_at_a_time_in_the_order_of_acceptance() {
    const LINES: usize = 8;
    const OF_EACH: usize = 36;
    let (tickr, log) = start().await;
    let more = [tickr.another_with(|_| {}, log.registry()).await, tickr.another_with(|_| {}, log.registry()).await];
    let line = |k: usize| {
        let tickr = &tickr;
        async move {
            let key = format!("line-{k}");
            for n in 0..OF_EACH {
                let mut job = link(&key, n);
                job["payload"]["fails"] = json!(u32::from(n % 4 == 0));
                job["payload"]["snoozes"] = json!(n % 7 == 3);
                job["priority"] = json!(n % 10);
                tickr.enqueue(job).await;
            }
        }
    };
    futures_util::future::join_all((0..LINES).map(line)).await;
    tickr.until_idle().await;
    let order = log.order();
    assert_eq!(order.len(), LINES);
    for (key, numbers) in order {
        assert_eq!(numbers, (0..OF_EACH).collect::<Vec<_>>(), "{key}");
    }
    // Five of each line kept their places while they snoozed.
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'snoozed'").await, LINES as i64 * 5);
    for app in more {
        app.stop(CancellationToken::new()).await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_batches_and_of_single_requests_keep_their_order() {
    let (tickr, log) = start().await;
    let mut n = 0;
    for round in 0..30 {
        let size = 1 + round % 7;
        let jobs: Vec<Value> = (n..n + size).flat_map(|n| [link("a", n), link("b", n)]).collect();
        n += size;
        tickr.enqueue_many(jobs).await;
    }
    tickr.until_idle().await;
    let order = log.order();
    for key in ["a", "b"] {
        assert_eq!(order[key], (0..n).collect::<Vec<_>>(), "{key}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_job_is_left_behind_when_jobs_are_accepted_while_those_in_front_end() {
    let (tickr, log) = start().await;
    // Each line becomes empty again and again, at the moment when the next job arrives.
    let caller = |k: usize| {
        let tickr = &tickr;
        async move {
            for n in 0..40 {
                tickr.enqueue(link(&format!("line-{}", k % 4), k * 1_000 + n)).await;
            }
        }
    };
    futures_util::future::join_all((0..12).map(caller)).await;
    tickr.until_idle().await;
    let order = log.order();
    assert_eq!(order.values().map(Vec::len).sum::<usize>(), 12 * 40);
    for numbers in order.values() {
        for caller in 0..12 {
            let own: Vec<usize> = numbers.iter().copied().filter(|n| n / 1_000 == caller).collect();
            assert!(own.is_sorted(), "{own:?}");
        }
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_fails_for_good_blocks_its_key_until_it_is_dealt_with_or_skips() {
    let (tickr, log) = start().await;
    // Retried: it runs again at its place.
    let [first, second] = tickr.enqueue_many([failing("retry", 0), link("retry", 1)]).await[..] else { panic!() };
    tickr.until(first, State::Failed).await;
    let reasons = tickr.get(&format!("/v1/jobs/{second}/explain")).await.body;
    assert_eq!(reasons["reasons"][0]["code"], "behind_key", "{reasons:#}");
    let text = reasons["reasons"][0]["text"].as_str().unwrap();
    assert!(text.contains(&format!("job {first} failed and blocks the key")), "{text}");
    let job = tickr.job(second).await;
    assert_eq!((&job["state"], &job["held"], &job["order_key"]), (&json!("waiting"), &json!(true), &json!("retry")));
    assert_eq!(tickr.post(&format!("/v1/jobs/{first}/retry"), json!({})).await.status, 200);
    tickr.until_attempts(first, 4).await;
    tickr.until(first, State::Failed).await;
    assert_eq!(tickr.job(second).await["held"], true);

    // Discarded: the next one goes.
    assert_eq!(tickr.post(&format!("/v1/jobs/{first}/discard"), json!({"reason": "no"})).await.status, 200);
    tickr.until(second, State::Completed).await;

    // Replayed with another payload: the new job takes the place.
    let [first, second] = tickr.enqueue_many([failing("replay", 0), link("replay", 1)]).await[..] else { panic!() };
    tickr.until(first, State::Failed).await;
    let payload = json!({"key": "replay", "n": 7, "fails": 0, "hold": false});
    let made = tickr.post(&format!("/v1/jobs/{first}/replay"), json!({"payload": payload})).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    tickr.until(second, State::Completed).await;
    assert_eq!(log.order()["replay"], [0, 7, 1]);

    // Deleted: the next one goes, and the index is told of it.
    let [first, second] = tickr.enqueue_many([failing("delete", 0), link("delete", 1)]).await[..] else { panic!() };
    tickr.until(first, State::Failed).await;
    let delete = async {
        let body = json!({"action": "delete", "filter": {"q": format!("id:{first}")}});
        let started = tickr.post("/v1/operations", body).await;
        assert_eq!(started.status, 202, "{:#}", started.body);
    };
    let is_hinted = |event: &Event| matches!(event, Event::Rescheduled { id } if *id == second).then_some(());
    tickr.event("the hint of the next job", delete, is_hinted).await;
    tickr.until(second, State::Completed).await;

    // Purged: the runner is told which job goes next.
    let [first, second] = tickr.enqueue_many([failing("purge", 0), link("purge", 1)]).await[..] else { panic!() };
    tickr.until(first, State::Failed).await;
    // Ids are compared with the clock in milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let day = Duration::from_secs(86_400);
    let keep = &Retention { failed: Duration::from_millis(1), ..Retention::all(day) };
    let purged = tickr.app.broker().store().purge_page(None, keep).await.unwrap();
    assert_eq!(purged.released.iter().map(|job| job.id).collect::<Vec<_>>(), [second]);
    purged.released.iter().for_each(|job| tickr.app.broker().hint_released(job));
    tickr.until(second, State::Completed).await;

    // Skipping.
    let mut skips = failing("skip", 0);
    skips["on_failure"] = json!("skip");
    skips["payload"]["snoozes"] = json!(true);
    let [first, second] = tickr.enqueue_many([skips, link("skip", 1)]).await[..] else { panic!() };
    tickr.until(second, State::Completed).await;
    assert_eq!(tickr.job(first).await["state"], "failed");
    assert_eq!(log.order()["skip"], [0, 1], "a snooze and retries come before the next job");
    assert_eq!(log.starts("skip", 0), 3);
    tickr.stop().await;
}

/// Read the listing of order keys to its end. Return the entries by order key, and the number of pages.
async fn listed(tickr: &TestApp, blocked: bool) -> (BTreeMap<String, Value>, usize) {
    let (mut entries, mut pages, mut after) = (BTreeMap::new(), 0, String::new());
    loop {
        let page = tickr.get(&format!("/v1/order-keys?blocked={blocked}{after}")).await;
        assert_eq!(page.status, 200, "{:#}", page.body);
        pages += 1;
        for entry in page.body["data"].as_array().unwrap() {
            entries.insert(entry["key"].as_str().unwrap().to_owned(), entry.clone());
        }
        let Some(next) = page.body["next"].as_str() else { return (entries, pages) };
        after = format!("&after={next}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn order_keys_with_jobs_name_their_heads_and_a_failed_head_is_found() {
    let (tickr, log) = start().await;
    let jobs = [held("busy", 0), link("busy", 1), link("busy", 2), failing("stuck", 0), link("stuck", 1)];
    let ids = tickr.enqueue_many(jobs).await;
    let mut far = link("far", 0);
    far["delay_ms"] = json!(3_600_000);
    let far = tickr.enqueue(far).await;
    tickr.until(ids[0], State::Executing).await;
    tickr.until(ids[3], State::Failed).await;

    let (entries, _) = listed(&tickr, false).await;
    assert_eq!(entries.keys().collect::<Vec<_>>(), ["busy", "far", "stuck"]);
    let view = |key: &str| {
        let entry = &entries[key];
        (entry["head"]["id"].clone(), entry["head"]["state"].clone(), entry["waiting"].clone())
    };
    assert_eq!(view("busy"), (json!(ids[0]), json!("executing"), json!(2)));
    assert_eq!(view("stuck"), (json!(ids[3]), json!("failed"), json!(1)));
    assert_eq!(view("far"), (json!(far), json!("waiting"), json!(0)));
    let far_due = tickr.job(far).await["execute_at"].clone();
    assert_eq!((&entries["far"]["head"]["since"], &entries["far"]["waiting_since"]), (&far_due, &Value::Null));
    let ended = tickr.job(ids[3]).await["finished_at"].clone();
    assert_eq!(entries["stuck"]["head"]["since"], ended);
    let due = tickr.job(ids[1]).await["execute_at"].clone();
    assert_eq!(entries["busy"]["waiting_since"], due, "{:#}", entries["busy"]);
    let only: Vec<String> = listed(&tickr, true).await.0.into_keys().collect();
    assert_eq!(only, ["stuck"]);
    tickr.until_metric("tickr_order_keys_blocked 1").await;
    let mut list = command(&program::tickr(), tickr.dir.path(), &["order-keys", "--blocked"]);
    list.env("TICKR_URL", tickr.url(""));
    let (code, printed, err) = outcome(list).await;
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(
        printed.contains("stuck") && printed.contains(&ids[3].to_string()) && !printed.contains("busy"),
        "{printed}"
    );

    // Keys whose jobs have all ended cost no page more than its bound, however many there are.
    let digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL \
                  SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    tickr
        .sql(format!(
            "INSERT INTO order_keys (order_key, head, tail) SELECT CONCAT('e', a.d, b.d, c.d, e.d), 2, 1 \
             FROM {digits} a, {digits} b, {digits} c, {digits} e"
        ))
        .await;
    let (entries, pages) = listed(&tickr, false).await;
    assert_eq!((entries.len(), pages), (3, 3));
    let (entries, pages) = listed(&tickr, true).await;
    assert_eq!((entries.len(), pages), (1, 3));

    // After an operator has dealt with the failed job, its key is held up no more.
    assert_eq!(tickr.post(&format!("/v1/jobs/{}/discard", ids[3]), json!({"reason": "no"})).await.status, 200);
    log.gate.cancel();
    tickr.until(ids[4], State::Completed).await;
    tickr.until(ids[2], State::Completed).await;
    assert_eq!(listed(&tickr, true).await.0.len(), 0);
    tickr.until_metric("tickr_order_keys_blocked 0").await;
    let left: Vec<String> = listed(&tickr, false).await.0.into_keys().collect();
    assert_eq!(left, ["far"]);
    for wrong in [format!("after={}", "k".repeat(256)), "blocked=perhaps".to_owned(), "limit=3".to_owned()] {
        assert_eq!(tickr.get(&format!("/v1/order-keys?{wrong}")).await.status, 422, "{wrong}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_lets_the_next_job_go_and_a_later_retry_goes_to_the_tail() {
    let (tickr, log) = start().await;
    let jobs = tickr.enqueue_many([held("c", 0), link("c", 1), link("c", 2), held("c", 3)]).await;
    let [running, waiting, next, last] = jobs[..] else { panic!() };
    until_started(&log, "c", 1).await;
    // One in the middle leaves no hole, and has no time in the year 9999.
    let cancelled = tickr.post(&format!("/v1/jobs/{waiting}/cancel"), json!({})).await;
    assert_eq!((cancelled.status, &cancelled.body["state"]), (200, &json!("cancelled")));
    assert!(!cancelled.body.to_string().contains("9999"), "{:#}", cancelled.body);
    assert_eq!(tickr.job(next).await["held"], true);
    // The one that runs.
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    assert_eq!(tickr.post(&format!("/v1/jobs/{running}/cancel"), json!({})).await.status, 202);
    tickr.until(next, State::Completed).await;
    pulse.assert_within(Duration::from_secs(15), began, "the next job ran after the cancel");
    until_started(&log, "c", 3).await;
    // Those that were cancelled take the last places.
    for id in [waiting, running] {
        assert_eq!(tickr.post(&format!("/v1/jobs/{id}/retry"), json!({})).await.status, 200);
        assert_eq!(tickr.job(id).await["held"], true);
    }
    log.gate.cancel();
    for id in [last, waiting, running] {
        tickr.until(id, State::Completed).await;
    }
    assert_eq!(log.order()["c"], [0, 2, 3, 1, 0]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_held_is_not_made_due_and_costs_redis_nothing() {
    let (tickr, log) = start().await;
    let first = tickr.enqueue(held("h", 0)).await;
    until_started(&log, "h", 1).await;
    let ids = tickr.enqueue_many((1..=250).map(|n| link("h", n))).await;
    // The hint of a later job comes after all that those jobs might have sent to Redis.
    let marker = tickr.enqueue(json!({"kind": "noop"})).await;
    tickr.until(marker, State::Completed).await;
    eventually_seen("Redis has none of them", || async {
        let index = tickr.get("/v1/index").await.body;
        let has_none = index["redis"]["ready"] == 0 && index["redis"]["waiting"] == 0;
        if has_none { Ok(()) } else { Err(index) }
    })
    .await;
    let reasons = tickr.get(&format!("/v1/jobs/{}/explain", ids[249])).await.body;
    let text = reasons["summary"].as_str().unwrap();
    let says =
        format!("250 jobs with the same order key must end before it; the first is job {first}, which is executing");
    assert_eq!(text, says);

    for path in ["/v1/stats", "/v1/forecast", "/v1/queues", "/v1/jobs?q=order:h&limit=200", "/v1/index"] {
        let body = tickr.get(path).await.body.to_string();
        assert!(!body.contains("9999-"), "{path}: {body}");
    }
    let found = tickr.get("/v1/jobs?q=order:h&limit=200").await.body;
    assert_eq!(found["data"].as_array().unwrap().len(), 200);
    assert_eq!(tickr.get("/v1/jobs/count?order_key=h&state=waiting").await.body["count"], 250);
    assert_eq!(tickr.get("/v1/jobs/count?q=order:other").await.body["count"], 0);

    let path = format!("/v1/jobs/{}", ids[9]);
    let refused = tickr.post(&format!("{path}/run-now"), json!({})).await;
    assert_eq!((refused.status, refused.code()), (409, "wrong_state"), "{:#}", refused.body);
    let patch = |body: Value| crate::support::answer(http().patch(tickr.url(&path)).json(&body));
    let refused = patch(json!({"delay_ms": 1_000})).await;
    assert_eq!((refused.status, refused.code()), (409, "wrong_state"), "{:#}", refused.body);
    let changed = patch(json!({"priority": 0})).await;
    assert_eq!((changed.status, &changed.body["priority"]), (200, &json!(0)), "{:#}", changed.body);
    for action in [json!({"action": "run_now"}), json!({"action": "reschedule", "execute_at": "2026-01-01T00:00:00Z"})]
    {
        let mut body = action;
        body["filter"] = json!({"state": "waiting"});
        assert_eq!(tickr.post("/v1/operations", body.clone()).await.status, 202, "{body}");
    }
    eventually("the operations are over", || async {
        let all = tickr.get("/v1/operations").await.body;
        let over = |one: &Value| !matches!(one["state"].as_str(), Some("pending" | "running"));
        all["data"].as_array().unwrap().iter().all(over).then_some(())
    })
    .await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE YEAR(execute_at) = 9999").await, 250);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM operations WHERE done = 0 AND skipped = 250").await, 2);
    log.gate.cancel();
    tickr.until_idle().await;
    assert_eq!(log.order()["h"], (0..=250).collect::<Vec<_>>());
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_due_time_holds_when_a_job_is_at_the_head_and_the_jobs_behind_wait_for_it() {
    let (tickr, log) = start().await;
    let mut later = link("t", 0);
    later["delay_ms"] = json!(1_500);
    let began = Instant::now();
    let [first, second] = tickr.enqueue_many([later, link("t", 1)]).await[..] else { panic!() };
    tickr.until(second, State::Completed).await;
    assert!(began.elapsed() >= Duration::from_millis(1_500));
    assert_eq!(tickr.job(first).await["state"], "completed");
    // Behind another job, a due time that lies ahead still holds.
    let mut later = link("t", 3);
    later["delay_ms"] = json!(1_500);
    let began = Instant::now();
    let third = tickr.enqueue_many([link("t", 2), later]).await[1];
    tickr.until(third, State::Completed).await;
    assert!(began.elapsed() >= Duration::from_millis(1_500));
    assert_eq!(log.order()["t"], [0, 1, 2, 3]);
    // And when the job in front was cancelled.
    let (mut far, mut later) = (link("t", 4), link("t", 5));
    (far["delay_ms"], later["delay_ms"]) = (json!(3_600_000), json!(1_500));
    let began = Instant::now();
    let [far, later] = tickr.enqueue_many([far, later]).await[..] else { panic!() };
    assert_eq!(tickr.post(&format!("/v1/jobs/{far}/cancel"), json!({})).await.status, 200);
    tickr.until(later, State::Completed).await;
    assert!(began.elapsed() >= Duration::from_millis(1_500));
    tickr.stop().await;
}

/// A worker that ends a job of a key runs the next one of the key for a moment without a new claim. It must not keep
/// going while a more urgent job waits, for the worker or for the only permit of the queue.
async fn an_urgent_job_has_its_turn(workers: usize, limit: Option<u32>) {
    let tickr = TestApp::start_with(|config| config.workers = workers, Registry::new()).await;
    if let Some(limit) = limit {
        let set = tickr.patch("/v1/queues/default", json!({"concurrency": limit})).await;
        assert_eq!(set.status, 200, "{:#}", set.body);
    }
    let of_key = json!({"kind": "sleep", "payload": {"ms": 30}, "order_key": "k"});
    let jobs = tickr.enqueue_many((0..150).map(|_| of_key.clone())).await;
    tickr.until(jobs[3], State::Completed).await;
    let urgent = tickr.enqueue(json!({"kind": "noop", "priority": 0})).await;
    tickr.until(urgent, State::Completed).await;
    let left = tickr.count("SELECT COUNT(*) FROM owed").await;
    // A busy machine lets some more of them run before the urgent one is accepted and claimed.
    assert!(left > 20, "only {left} jobs of the key were left");
    tickr.until_idle().await;
    tickr.assert_each_ran_once(151).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_urgent_job_does_not_wait_until_a_key_has_no_more_jobs() {
    an_urgent_job_has_its_turn(1, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_urgent_job_of_a_limited_queue_does_not_wait_until_a_key_has_no_more_jobs() {
    an_urgent_job_has_its_turn(8, Some(1)).await;
}

/// Jobs that follow each other with the same key leave the index alone: it would only be told of each of them and lose it
/// a moment later.
#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_of_a_key_follow_each_other_without_a_hint_to_the_index() {
    let (tickr, log) = start().await;
    let mut events = tickr.app.broker().events().listen();
    tickr.enqueue_many((0..100).map(|n| link("k", n))).await;
    tickr.until_idle().await;
    assert_eq!(log.order()["k"], (0..100).collect::<Vec<_>>());
    let released = released(&mut events);
    // A runner that is busy at the wrong moment lets a job go the usual way.
    assert!(released < 90, "{released} of 100 jobs went the usual way");
    tickr.stop().await;
}

/// A fetcher that waits for an id holds one seat, so the next job of a key has a seat of its own also when the turn of
/// the key on the first one is over.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_key_that_take_longer_than_a_turn_follow_each_other_on_an_idle_runner() {
    let (tickr, _) = start().await;
    let mut events = tickr.app.broker().events().listen();
    tickr.enqueue_many((0..20).map(|_| json!({"kind": "sleep", "payload": {"ms": 40}, "order_key": "k"}))).await;
    tickr.until_idle().await;
    let released = released(&mut events);
    assert!(released < 10, "{released} of 20 jobs went the usual way");
    tickr.assert_each_ran_once(20).await;
    tickr.stop().await;
}

/// Count the jobs that were let go and not claimed together with the end of the job in front of them.
fn released(events: &mut broadcast::Receiver<Event>) -> usize {
    let mut released = 0;
    loop {
        match events.try_recv() {
            Ok(event) => released += usize::from(matches!(event, Event::Rescheduled { .. })),
            Err(TryRecvError::Empty) => return released,
            Err(lost) => panic!("events were not seen: {lost}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_goes_on_within_the_lease_and_five_seconds_after_its_runner_was_killed() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    // No stall of the machine may end the lease of a runner that lives.
    let (env, lease_s) = ([("TICKR_WORKERS", "16"), ("TICKR_LEASE", "6s")], 6);
    let mut doomed = Runner::start(&tickr, &env);
    doomed.base().await;
    let sleep = |key: usize, ms: u64| json!({"kind": "sleep", "payload": {"ms": ms}, "order_key": format!("k{key}")});
    tickr.enqueue_many((0..10).flat_map(|key| [sleep(key, 600_000), sleep(key, 0), sleep(key, 0)])).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 10).await;
    let other = Runner::start(&tickr, &env);
    other.base().await;
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    let now = "SELECT UTC_TIMESTAMP(6)";
    let killed: chrono::NaiveDateTime = sqlx::query_scalar(now).fetch_one(&mut tickr.mysql().await).await.unwrap();
    doomed.kill9();
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE verdict = 'lost'", 10).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 10).await;
    // By the clock of MySQL, from the kill to the last start of the ten lost jobs.
    let after_ms = "SELECT TIMESTAMPDIFF(MICROSECOND, ?, MAX(started_at)) DIV 1000 FROM owed WHERE state = 'executing'";
    let after_ms: i64 = sqlx::query_scalar(after_ms).bind(killed).fetch_one(&mut tickr.mysql().await).await.unwrap();
    println!("all lines went on after {after_ms} ms");
    let bound_ms = (lease_s + 5) * 1_000 + pulse.leeway_ms(began, lease_s);
    assert!(after_ms <= bound_ms, "{after_ms} ms of {bound_ms} ms");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE state = 'executing' AND attempt = 2").await, 10);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE YEAR(execute_at) = 9999").await, 20);
    let found = tickr.get("/v1/jobs?state=executing&limit=100").await.body;
    let ids: Vec<JobId> =
        found["data"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().parse().unwrap()).collect();
    for id in ids {
        tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    }
    tickr.until_idle().await;
    drop(other);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_order_keys_are_refused_with_their_place() {
    let (tickr, _) = start().await;
    let cases = [
        (json!({"order_key": ""}), "/order_key"),
        (json!({"order_key": "k".repeat(256)}), "/order_key"),
        (json!({"on_failure": "skip"}), "/on_failure"),
    ];
    for (wish, pointer) in cases {
        let mut job = json!({"kind": "noop"});
        job.as_object_mut().unwrap().extend(wish.as_object().unwrap().clone());
        let refused = tickr.post("/v1/jobs", job).await;
        assert_eq!((refused.status, refused.code()), (422, "invalid_request"), "{:#}", refused.body);
        assert_eq!(refused.pointers(), [pointer]);
    }
    let refused = tickr.post("/v1/jobs", json!({"kind": "noop", "order_key": "k", "on_failure": "ignore"})).await;
    assert_eq!(refused.status, 422, "{:#}", refused.body);
    // Keys are compared as bytes.
    let ids = tickr.enqueue_many(["k", "K", "k "].map(|key| json!({"kind": "noop", "order_key": key}))).await;
    for id in ids {
        tickr.until(id, State::Completed).await;
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM order_keys").await, 3);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_whose_row_is_locked_delays_the_jobs_of_no_other_key() {
    let (tickr, log) = start().await;
    tickr.enqueue(held("locked", 0)).await;
    until_started(&log, "locked", 1).await;
    let mut holder = tickr.mysql().await;
    let mut lock = holder.begin().await.unwrap();
    lock.execute("SELECT * FROM order_keys WHERE order_key = 'locked' FOR UPDATE").await.unwrap();
    let job = link("locked", 1);
    let waits = while_unavailable(async || tickr.post("/v1/jobs", &job).await);
    let others = async {
        // The job that holds the locked key ends, and its verdict waits.
        log.gate.cancel();
        let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
        for n in 0..20 {
            tickr.enqueue(link("free", n)).await;
        }
        println!("20 jobs of another key were accepted after {:?}", began.elapsed());
        let completed = "SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'";
        tickr.until_count(completed, 20).await;
        pulse.assert_within(Duration::from_secs(15), began, "and ran after");
        assert_eq!(tickr.count("SELECT COUNT(*) FROM owed").await, 1);
        lock.rollback().await.unwrap();
    };
    let (accepted, ()) = tokio::join!(waits, others);
    assert_eq!(accepted.status, 201, "{:#}", accepted.body);
    tickr.until_idle().await;
    assert_eq!(log.order()["locked"], [0, 1]);
    tickr.stop().await;
}

/// A runner that freezes in the end of a job keeps the row of its order key.
#[tokio::test(flavor = "multi_thread")]
async fn cancels_that_wait_for_a_locked_order_key_hold_up_no_other_change() {
    let tickr = TestApp::start().await;
    let job = json!({"kind": "noop", "order_key": "k", "delay_ms": 3_600_000});
    let ids = tickr.enqueue_many(vec![job; 8]).await;
    let mut session = tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    session.execute("SELECT * FROM order_keys WHERE order_key = 'k' FOR UPDATE").await.unwrap();
    let paths = ids.iter().map(|id| format!("/v1/jobs/{id}/cancel")).collect::<Vec<_>>();
    let cancels = join_all(paths.iter().map(|path| async { tickr.post(path, json!({})).await.status }));
    let answers = tickr.goes_on_beside(cancels, &mut session).await;
    assert_eq!(answers, [200; 8]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_killed_its_runners_to_the_end_lets_the_next_one_go_if_it_skips() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    // No stall of the machine may end the attempt before the runner is killed.
    let mut doomed = Runner::start(&tickr, &[("TICKR_LEASE", "6s")]);
    doomed.base().await;
    let sleep = json!({"kind": "sleep", "payload": {"ms": 600_000}, "order_key": "k", "on_failure": "skip"});
    let next = json!({"kind": "noop", "order_key": "k"});
    let [first, next] = tickr.enqueue_many([sleep, next]).await[..] else { panic!() };
    tickr.until(first, State::Executing).await;
    tickr.sql("UPDATE owed SET losses = 2 WHERE state = 'executing'").await;
    doomed.kill9();
    tickr.until(first, State::Failed).await;
    let other = Runner::start(&tickr, &[]);
    tickr.until(next, State::Completed).await;
    drop(other);
    tickr.stop_broken("two of the losses are only counted").await;
}

/// A store behind a proxy, without an engine: the test itself claims the jobs of a key and ends them.
struct Line {
    store: Store,
    claimant: Claimant,
    proxy: Proxy,
    url: String,
    name: String,
}

/// Return jobs with this order key.
fn noops(key: &str, count: usize) -> Vec<NewJob> {
    let order = || Order { key: key.to_owned(), on_failure: OnFailure::default() };
    let job = |_| NewJob {
        id: JobId::new(),
        kind: "noop".parse().unwrap(),
        queue: default_queue().clone(),
        payload: RawValue::from_string("{}".into()).unwrap(),
        due: Due::Now,
        expires: None,
        priority: Priority::NORMAL,
        max_attempts: 5,
        unique_key: None,
        on_conflict: OnConflict::Reject,
        host: None,
        options: JobOptions { order: Some(order()), ..JobOptions::default() },
        batch: None,
    };
    (0..count).map(job).collect()
}

impl Line {
    async fn start() -> Self {
        let (name, url) = migrated_database().await;
        let proxy = Proxy::start(&url).await;
        let settings = StoreSettings { url: proxy.url(), connections: 4, flushers: 1, table_prefix: table_prefix() };
        let store = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
        store.migrate().await.unwrap();
        let kinds = vec!["noop".parse().unwrap()];
        let claimant = store.claimant(RunnerId::new_for_host("test"), kinds, Duration::from_secs(30));
        Self { store, claimant, proxy, url, name }
    }

    async fn claimed(&self, id: JobId) -> Claimed {
        match self.claimant.claim(id, default_queue()).await.unwrap() {
            Claim::Won(claimed) => *claimed,
            other => panic!("{other:?}"),
        }
    }

    /// Accept these jobs, and end the first one. Return the second one, whose claim knows those behind it, and all ids.
    async fn second_of(&self, jobs: Vec<NewJob>) -> (Claimed, Vec<JobId>) {
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        self.store.insert(jobs).await.unwrap();
        let first = self.claimed(ids[0]).await;
        (self.end(&first).await.1.expect("the second job"), ids)
    }

    /// End the attempt as a success, and claim the next job of its key.
    async fn end(&self, claimed: &Claimed) -> (Settled, Option<Claimed>) {
        let success = Settlement {
            id: claimed.id,
            token: claimed.token,
            number: claimed.number,
            opened: Some(claimed.opened()),
            verdict: Verdict::Succeeded,
            error: None,
            exchange: None,
            log: None,
            result: None,
            follow_ups: Vec::new(),
            again: Again::Now,
            call: None,
            checkpoint: CheckpointUse::Unused,
        };
        let (settled, next) = self.store.settle_and_claim_next(success, &self.claimant).await.unwrap();
        let next = next.map(|claim| match claim {
            Claim::Won(claimed) => *claimed,
            other => panic!("{other:?}"),
        });
        (settled, next)
    }

    /// End the attempt, which no other job follows at once. Return the jobs that were let go.
    async fn end_alone(&self, claimed: &Claimed) -> Vec<JobId> {
        let (settled, next) = self.end(claimed).await;
        let Settled::Done { state: State::Completed, released, .. } = settled else { panic!("{settled:?}") };
        assert_eq!(next.map(|next| next.id), None);
        assert_eq!(self.store.unanswered_claims(), 0);
        released.into_iter().map(|job| job.id).collect()
    }

    async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&mut connect(&self.url).await).await.unwrap()
    }

    async fn stop(self) {
        halted::assert_sound_without_index(&self.url, &self.name).await;
        drop(self.claimant);
        self.store.close().await;
        drop_database(&self.url, &self.name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_of_a_key_follow_each_other_with_one_request_each() {
    let line = Line::start().await;
    // More than are read ahead at once.
    let (mut running, ids) = line.second_of(noops("k", 40)).await;
    let mut requests = Vec::new();
    for next in &ids[2..] {
        let before = line.proxy.requests();
        let (settled, claimed) = line.end(&running).await;
        requests.push(line.proxy.requests() - before);
        assert!(matches!(settled, Settled::Done { state: State::Completed, .. }), "{settled:?}");
        running = claimed.expect("the next job");
        assert_eq!((running.id, running.number, running.attempt), (*next, 1, 1));
        // The reaper finds the attempt if this process dies now.
        let listed = "SELECT COUNT(*) FROM claim_batches b JOIN owed o ON o.token = b.token AND o.id = b.ids \
                      AND o.state = 'executing'";
        assert_eq!(line.count(listed).await, 1);
    }
    // After a rest, a connection is tried and the limits are read besides.
    let of_one = requests.iter().filter(|requests| **requests == 1).count();
    assert!(of_one > 30, "{requests:?}");
    assert_eq!(line.end_alone(&running).await, []);
    assert_eq!(line.count("SELECT CAST(SUM(n) AS SIGNED) FROM tallies").await, 40);
    assert_eq!(line.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'").await, 40);
    // No attempt overlaps another one: the order is checked here.
    line.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_in_one_request_writes_nothing_unless_token_cancel_and_head_are_as_they_were() {
    let line = Line::start().await;
    let mut mysql = connect(&line.url).await;
    // Another attempt has the job.
    let (running, ids) = line.second_of(noops("token", 3)).await;
    let set = "UPDATE owed SET token = ? WHERE id = ?";
    let other = AttemptToken::new();
    sqlx::query(set).bind(other.uuid()).bind(running.id.uuid()).execute(&mut mysql).await.unwrap();
    let (settled, next) = line.end(&running).await;
    assert!(matches!(settled, Settled::NotOurs) && next.is_none(), "{settled:?} {next:?}");
    assert_eq!(line.count("SELECT COUNT(*) FROM attempts").await, 1);
    assert_eq!(line.count("SELECT COUNT(*) FROM owed WHERE YEAR(execute_at) = 9999").await, 1);
    assert_eq!(line.count("SELECT CAST(head AS SIGNED) FROM order_keys").await, 2);
    // Its own attempt ends once.
    sqlx::query(set).bind(running.token.uuid()).bind(running.id.uuid()).execute(&mut mysql).await.unwrap();
    let next = line.end(&running).await.1.expect("the next job");
    assert_eq!((next.id, line.end_alone(&next).await), (ids[2], vec![]));
    assert_eq!(line.count("SELECT COUNT(*) FROM attempts").await, 3);

    // A client asks the job to stop.
    let (running, ids) = line.second_of(noops("cancel", 3)).await;
    assert_eq!(line.store.cancel(running.id, &Actor::tickr()).await.unwrap(), ActionOutcome::StopRequested);
    assert_eq!(line.end_alone(&running).await, ids[2..]);
    let asked = "SELECT COUNT(*) FROM attempts WHERE end_state = 'completed' AND cancel_requested_at IS NOT NULL";
    assert_eq!(line.count(asked).await, 1);
    assert_eq!(line.end_alone(&line.claimed(ids[2]).await).await, []);

    // The head is not at the job. No version of tickr moves it while the job runs, so this is done by hand.
    let (running, ids) = line.second_of(noops("head", 3)).await;
    mysql.execute("UPDATE order_keys SET head = head + 1 WHERE order_key = 'head'").await.unwrap();
    assert_eq!(line.end_alone(&running).await, []);
    assert_eq!(line.count("SELECT COUNT(*) FROM owed WHERE YEAR(execute_at) = 9999").await, 1);
    mysql.execute("UPDATE owed SET execute_at = UTC_TIMESTAMP(3)").await.unwrap();
    assert_eq!(line.end_alone(&line.claimed(ids[2]).await).await, []);
    assert_eq!(line.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'").await, 9);
    line.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_has_left_its_place_behind_the_one_that_runs_does_not_start_there() {
    let line = Line::start().await;
    let (running, ids) = line.second_of(noops("k", 4)).await;
    // A cancelled job that an operator lets run again has the last place.
    assert_eq!(line.store.cancel(ids[2], &Actor::tickr()).await.unwrap(), ActionOutcome::Done(State::Cancelled));
    assert!(matches!(line.store.retry(ids[2], &Actor::tickr()).await.unwrap(), ActionOutcome::Waits(_)));
    let next = line.end(&running).await.1.expect("the job behind it");
    assert_eq!((next.id, line.store.unanswered_claims()), (ids[3], 0));
    let last = line.end(&next).await.1.expect("the job with the last place");
    assert_eq!((last.id, last.attempt), (ids[2], 1));
    assert_eq!(line.end_alone(&last).await, []);
    line.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_behind_the_one_that_runs_that_may_not_follow_at_once_is_let_go_and_not_claimed() {
    let line = Line::start().await;
    type Change = fn(&mut NewJob);
    let cases: [(&str, Change); 5] = [
        ("another queue", |job| job.queue = "other".parse().unwrap()),
        ("another kind", |job| job.kind = "sleep".parse().unwrap()),
        ("its last attempt", |job| job.max_attempts = 1),
        ("due later", |job| job.due = Due::After(Duration::from_secs(600))),
        ("limited", |_| {}),
    ];
    for (case, change) in cases {
        let mut jobs = noops(case, 3);
        change(&mut jobs[2]);
        let (running, ids) = line.second_of(jobs).await;
        if case == "limited" {
            let limit = Limit {
                name: "m".parse().unwrap(),
                kind: None,
                queue: None,
                shared_by: SharedBy::Key,
                fair: false,
                breaker: None,
                bounds: Bounds { concurrency: Some(1), ..Bounds::default() },
                overrides: BTreeMap::new(),
            };
            line.store.set_limit(limit, Condition::Any, &Actor::tickr()).await.unwrap();
            let limits = line.store.limits().await.unwrap();
            line.store.follow_limits(&Arc::new(limits), std::time::Instant::now());
        }
        assert_eq!(line.end_alone(&running).await, ids[2..], "{case}");
        assert_eq!(line.count("SELECT COUNT(*) FROM owed WHERE state <> 'waiting'").await, 0, "{case}");
        let is_due = line.count("SELECT COUNT(*) FROM owed WHERE execute_at <= UTC_TIMESTAMP(6)").await;
        assert_eq!(is_due, i64::from(case != "due later"), "{case}");
        assert!(matches!(line.store.cancel(ids[2], &Actor::tickr()).await.unwrap(), ActionOutcome::Done(_)));
    }
    line.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_in_one_request_that_is_not_answered_counts_once_and_gives_the_next_job_back() {
    let line = Line::start().await;
    let (running, ids) = line.second_of(noops("k", 4)).await;
    line.proxy.cut_after("COMMIT");
    let (settled, next) = line.end(&running).await;
    assert!(matches!(settled, Settled::Done { state: State::Completed, .. }) && next.is_none(), "{settled:?} {next:?}");
    assert_eq!((line.proxy.cuts(), line.store.unanswered_claims()), (1, 1));
    let given = line.store.give_back_unanswered().await.unwrap();
    assert_eq!(given.iter().map(|given| given.id).collect::<Vec<_>>(), ids[2..3]);
    let again = line.claimed(ids[2]).await;
    assert_eq!((again.number, again.attempt), (2, 1));
    let last = line.end(&again).await.1.expect("the last job");
    assert_eq!((last.id, line.end_alone(&last).await), (ids[3], vec![]));
    assert_eq!(line.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'").await, 4);
    line.stop().await;
}

/// MySQL may begin with a request whose client has gone, after it has answered a request that came later.
#[tokio::test(flavor = "multi_thread")]
async fn a_next_job_is_given_back_also_if_mysql_claims_it_after_a_look_in_vain() {
    let line = Line::start().await;
    let (running, ids) = line.second_of(noops("k", 3)).await;
    line.proxy.cut_after("COMMIT");
    let (settled, next) = line.end(&running).await;
    assert!(matches!(settled, Settled::Done { state: State::Completed, .. }) && next.is_none(), "{settled:?} {next:?}");
    // Until the second one, the claim is not there.
    let other_token = "UPDATE owed SET token = REVERSE(token) WHERE state = 'executing'";
    connect(&line.url).await.execute(other_token).await.unwrap();
    assert!(line.store.give_back_unanswered().await.unwrap().is_empty());
    assert_eq!(line.store.unanswered_claims(), 1);
    connect(&line.url).await.execute(other_token).await.unwrap();
    let given = line.store.give_back_unanswered().await.unwrap();
    assert_eq!(given.iter().map(|given| given.id).collect::<Vec<_>>(), ids[2..3]);
    let again = line.claimed(ids[2]).await;
    assert_eq!((again.number, again.attempt), (2, 1));
    assert_eq!(line.end_alone(&again).await, vec![]);
    line.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_in_one_request_that_waits_for_the_next_job_locks_no_tally() {
    let line = Line::start().await;
    let (running, ids) = line.second_of(noops("k", 3)).await;
    let mut operator = connect(&line.url).await;
    let mut held = operator.begin().await.unwrap();
    let lock = "SELECT id FROM owed WHERE id = ? FOR UPDATE";
    sqlx::query(lock).bind(ids[2].uuid()).execute(&mut *held).await.unwrap();
    let ((_, next), ()) = tokio::join!(line.end(&running), async {
        until_said(&line.url, &line.name, "UPDATE owed", 1).await;
        let tallies = connect(&line.url).await.fetch_all("SELECT n FROM tallies FOR UPDATE NOWAIT").await.unwrap();
        assert_eq!(tallies.len(), 1);
        held.rollback().await.unwrap();
    });
    let next = next.expect("the next job");
    assert_eq!((next.id, line.end_alone(&next).await), (ids[2], vec![]));
    line.stop().await;
}

/// Return the job of this number in a line. Most note their starts, and some of these fail or snooze first. Each tenth
/// is in another queue.
fn of_line(line: usize, n: usize) -> Value {
    let key = format!("line-{line}");
    if n % 10 == 9 {
        return json!({"kind": "sleep", "payload": {"ms": 20}, "queue": "other", "order_key": key});
    }
    let mut job = link(&key, n);
    job["payload"]["fails"] = json!(u32::from(n % 6 == 5));
    job["payload"]["snoozes"] = json!(n % 7 == 3);
    job
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_holds_while_commits_get_no_answer_a_runner_dies_and_redis_is_flushed() {
    const LINES: usize = 30;
    const OF_EACH: usize = 40;
    let log = Arc::<Log>::default();
    let patient = |config: &mut Config| (config.workers, config.lease) = (16, Duration::from_secs(10));
    let tickr = TestApp::start_alone_with(patient, log.registry()).await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let through = Config::for_tests(&proxy.url(), "redis://unused");
    let behind = tickr.another_with(|config| config.mysql_url = through.mysql_url, log.registry()).await;
    // Every tenth job of a line runs in one of two processes, of which one is killed.
    let of_other = [("TICKR_QUEUES", "other"), ("TICKR_LEASE", "2s"), ("TICKR_WORKERS", "8")];
    let (mut doomed, survivor) = (Runner::start(&tickr, &of_other), Runner::start(&tickr, &of_other));
    tokio::join!(doomed.base(), survivor.base());
    let over = CancellationToken::new();
    let cuts = async {
        while !over.is_cancelled() {
            proxy.cut_after("COMMIT");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        proxy.pass();
    };
    let work = async {
        tickr.enqueue_many((0..OF_EACH).flat_map(|n| (0..LINES).map(move |line| of_line(line, n)))).await;
        tickr.until_count("SELECT COUNT(*) >= 400 FROM attempts WHERE verdict = 'succeeded'", 1).await;
        doomed.kill9();
        tickr.flush_redis().await;
        tickr.until_idle().await;
        over.cancel();
    };
    tokio::join!(work, cuts);
    println!("{} commits got no answer", proxy.cuts());
    assert!(proxy.cuts() >= 5, "{}", proxy.cuts());
    let order = log.order();
    assert_eq!(order.len(), LINES);
    for (key, numbers) in order {
        assert_eq!(numbers, (0..OF_EACH).filter(|n| n % 10 != 9).collect::<Vec<_>>(), "{key}");
    }
    drop(survivor);
    behind.stop(CancellationToken::new()).await;
    // The ledger of all jobs is checked here.
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes many minutes; TICKR_ORDER_JOBS sets the number of jobs, a million unless set"]
async fn a_million_jobs_of_ten_thousand_keys_keep_their_order_through_kills_and_flushes() {
    const LEASE_S: i64 = 2;
    let jobs: usize = std::env::var("TICKR_ORDER_JOBS").map_or(1_000_000, |text| text.parse().unwrap());
    let (lines, of_each) = ((jobs / 100).max(1), 100);
    let log = Arc::<Log>::default();
    let patient = |config: &mut Config| (config.workers, config.lease) = (64, Duration::from_secs(15));
    let tickr = TestApp::start_alone_with(patient, log.registry()).await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let through = Config::for_tests(&proxy.url(), "redis://unused");
    let behind = tickr.another_with(|config| config.mysql_url = through.mysql_url, log.registry()).await;
    // Every tenth job of a line runs in one of three processes, which are killed in turn.
    let of_other = [("TICKR_QUEUES", "other"), ("TICKR_LEASE", "2s"), ("TICKR_WORKERS", "32")];
    let mut runners: Vec<Runner> = (0..3).map(|_| Runner::start(&tickr, &of_other)).collect();
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    let over = CancellationToken::new();
    let mut kills: Vec<(chrono::NaiveDateTime, u32)> = Vec::new();
    let work = async {
        let all: Vec<(usize, usize)> = (0..of_each).flat_map(|n| (0..lines).map(move |line| (line, n))).collect();
        for part in all.chunks(1_000) {
            tickr.enqueue_many(part.iter().map(|(line, n)| of_line(*line, *n))).await;
        }
        println!("all were accepted after {:?}", began.elapsed());
        let (mut left, mut moved) = (i64::MAX, Instant::now());
        while left > 0 {
            let now = tickr.count("SELECT COUNT(*) FROM owed").await;
            if now < left {
                (left, moved) = (now, Instant::now());
            }
            assert!(moved.elapsed() < Duration::from_secs(60), "{left} jobs are left and none ended for a minute");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        println!("all had ended after {:?}", began.elapsed());
        over.cancel();
    };
    // The faults go on until the last job has ended.
    let faults = async {
        while !over.is_cancelled() {
            // Answers to commits are lost all the time.
            for _ in 0..50 {
                proxy.cut_after("COMMIT");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            tickr.flush_redis().await;
            let doomed = kills.len() % 3;
            let now = "SELECT UTC_TIMESTAMP(6)";
            let killed = sqlx::query_scalar(now).fetch_one(&mut tickr.mysql().await).await.unwrap();
            kills.push((killed, runners[doomed].pid()));
            runners[doomed].kill9();
            runners[doomed] = Runner::start(&tickr, &of_other);
        }
        proxy.pass();
    };
    tokio::join!(work, faults);
    println!("{} runners were killed, and {} commits got no answer", kills.len(), proxy.cuts());
    // No overlap and no inversion by the handlers' own log.
    let order = log.order();
    assert_eq!(order.len(), lines);
    for (key, numbers) in order {
        assert_eq!(numbers, (0..of_each).filter(|n| n % 10 != 9).collect::<Vec<_>>(), "{key}");
    }
    let (lost, after_ms) = lines_after_kills(&tickr, &kills).await;
    println!("{lost} lines stood still after the kills, for {after_ms} ms at most");
    assert!(lost > 0, "no killed runner had a job");
    let bound_ms = (LEASE_S + 5) * 1_000 + pulse.leeway_ms(began, LEASE_S);
    assert!(after_ms <= bound_ms, "{after_ms} ms of {bound_ms} ms");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM order_keys WHERE head <= tail").await, 0);
    drop(runners);
    behind.stop(CancellationToken::new()).await;
    // The ledger is checked here.
    tickr.stop().await;
}

/// Return how many lines lost the attempt of their head to these kills of processes, and the longest time from a kill to
/// the next start of such a line, in milliseconds by the clock of MySQL. A job that was lost twice in a row waits for a
/// process of its own, so its line does not count.
async fn lines_after_kills(tickr: &TestApp, kills: &[(chrono::NaiveDateTime, u32)]) -> (usize, i64) {
    let sql = "SELECT a.runner, (SELECT MIN(b.started_at) FROM order_places p JOIN order_places q \
               ON q.order_key = p.order_key JOIN attempts b ON b.job_id = q.job_id WHERE p.job_id = a.job_id \
               AND b.runner <> '' AND b.started_at > a.started_at) FROM attempts a WHERE a.verdict = 'lost' \
               AND NOT EXISTS (SELECT 1 FROM attempts e WHERE e.job_id = a.job_id AND e.number = a.number - 1 \
               AND e.verdict = 'lost')";
    let losses: Vec<(String, Option<chrono::NaiveDateTime>)> =
        sqlx::query_as(sql).fetch_all(&mut tickr.mysql().await).await.unwrap();
    let (mut lost, mut longest) = (0, 0);
    for (killed, pid) in kills {
        // The id of a runner has the one of its process.
        let process = format!("/{pid}-");
        for (_, next) in losses.iter().filter(|(runner, _)| runner.contains(&process)) {
            lost += 1;
            longest = longest.max((next.expect("the line went on") - *killed).num_milliseconds());
        }
    }
    (lost, longest)
}
