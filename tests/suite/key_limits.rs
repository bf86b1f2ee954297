//! Limits by key: how many jobs with the same limit key run at the same time, and how many start in a period.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::{Connection, Executor};
use tickr::app::App;
use tickr::config::Config;
use tickr::handlers::{Context, Failure, Kind, Output, Registry};
use tickr::job::{Actor, JobId, Name, RunnerId, State};
use tickr::store::{Claim, Store, StoreSettings};
use tickr::verify::{Check, verify};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::queues::stop_the_holder;
use crate::support::limits::{MOST_AT_ONCE, NO_ROWS_LEFT, set, set_and_wait, starts_within};
use crate::support::{
    self, DEADLINE, Owed, Proxy, Pulse, Runner, SHORT_LEASE, TestApp, bystander, eventually, eventually_seen, halted,
    seen_within, table_prefix,
};

/// A job that notes how many jobs with its key run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Call {
    key: String,
    ms: u64,
    /// Number of attempts that fail before one succeeds.
    #[serde(default)]
    fails: u32,
}

impl Kind for Call {
    const NAME: &'static str = "call";
}

/// What is noted about the jobs of one key.
#[derive(Clone, Copy, Default)]
struct OfKey {
    running: usize,
    /// The most that ever ran at once.
    most: usize,
    ended: usize,
}

/// The handlers' own record of the jobs of each key.
#[derive(Clone, Default)]
struct Calls {
    of: Arc<Mutex<BTreeMap<String, OfKey>>>,
    /// Number of jobs that may still end. Without it all may.
    ends: Option<Arc<Semaphore>>,
    /// Number of workers, for a test that lets jobs end one by one.
    workers: usize,
}

/// A job that runs. A handler that is dropped does not run any more either.
struct Running(Calls, String);

impl Drop for Running {
    fn drop(&mut self) {
        let mut all = self.0.of.lock().unwrap();
        let of = all.get_mut(&self.1).unwrap();
        of.running -= 1;
        of.ended += 1;
    }
}

impl Calls {
    fn begin(&self, key: &str) -> Running {
        let mut all = self.of.lock().unwrap();
        let of = all.entry(key.to_owned()).or_default();
        of.running += 1;
        of.most = of.running.max(of.most);
        Running(self.clone(), key.to_owned())
    }

    fn registry(&self) -> Registry {
        let (mut registry, calls) = (Registry::new(), self.clone());
        registry.register(move |call: Call, context: Context| {
            let running = calls.begin(&call.key);
            async move {
                tokio::time::sleep(Duration::from_millis(call.ms)).await;
                if let Some(ends) = &running.0.ends {
                    ends.acquire().await.unwrap().forget();
                }
                drop(running);
                if context.attempt() <= call.fails { Err(Failure::retry("not yet")) } else { Ok(Output::default()) }
            }
        });
        registry
    }

    /// Return the most jobs of a key that ever ran at once.
    fn most(&self, key: &str) -> usize {
        self.of.lock().unwrap().get(key).map_or(0, |of| of.most)
    }

    /// Return what is noted about the jobs of these keys at one moment.
    fn now<const N: usize>(&self, keys: [&str; N]) -> [OfKey; N] {
        let all = self.of.lock().unwrap();
        keys.map(|key| all.get(key).copied().unwrap_or_default())
    }
}

fn job(key: &str, ms: u64) -> Value {
    json!({"kind": "call", "payload": {"key": key, "ms": ms}, "limit_key": key})
}

async fn remove(tickr: &TestApp, name: &str) {
    let answer = support::call(&tickr.url(""), Method::DELETE, &format!("/v1/limits/{name}"), "", None).await;
    assert_eq!(answer.status, 204, "{:#}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_holds_for_each_key_over_all_runners_and_is_used_up() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|config| config.workers = 16, calls.registry()).await;
    let other = tickr.another_with(|_| {}, calls.registry()).await;
    set_and_wait(&tickr, "per-tenant", json!({"concurrency": 2})).await;
    let began = Instant::now();
    let jobs = (0..30).flat_map(|_| ["a", "b", "c"].map(|key| job(key, 100)));
    tickr.enqueue_many(jobs).await;
    let free = tickr.enqueue(json!({"kind": "call", "payload": {"key": "free", "ms": 1}})).await;
    tickr.until(free, State::Completed).await;
    tickr.until_idle().await;
    for key in ["a", "b", "c"] {
        assert_eq!(calls.most(key), 2, "{key}");
    }
    // 30 jobs of 100 ms, two at a time, take one and a half seconds.
    println!("{:?} for work of 1.5 s", began.elapsed());
    tickr.assert_each_ran_once(91).await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_no_period_start_more_jobs_than_the_rate_and_its_burst() {
    let calls = Calls::default();
    let tickr = TestApp::start_alone_with(|_| {}, calls.registry()).await;
    let other = tickr.another_with(|_| {}, calls.registry()).await;
    let rate = json!({"rate": {"starts": 25, "period_ms": 1_000, "burst": 10}});
    set_and_wait(&tickr, "per-tenant", rate).await;
    tickr.enqueue_many((0..100).map(|_| job("a", 1))).await;
    // Redis has no part in the rate: it forgets everything twice.
    for started in [30, 60] {
        tickr.until_count(format!("SELECT COUNT(*) >= {started} FROM attempts"), 1).await;
        tickr.flush_redis().await;
    }
    tickr.until_idle().await;
    let (within, took) = starts_within(&tickr, "TRUE", 1_000).await;
    println!("at most {within} starts in a second, {took} ms for work of 3.6 s");
    assert!(within <= 35, "{within} in a second");
    other.stop(CancellationToken::new()).await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_each_ran_once(100).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_that_all_jobs_share_holds_for_a_whole_queue_or_kind() {
    let calls = Calls::default();
    let queues = |config: &mut Config| config.queues = vec!["default".to_owned(), "mail".to_owned()];
    let tickr = TestApp::start_with(queues, calls.registry()).await;
    let other = tickr.another_with(|_| {}, calls.registry()).await;
    let rate = json!({"starts": 25, "period_ms": 1_000, "burst": 5});
    let of_queue = json!({"queue": "mail", "shared_by": "all", "rate": rate});
    let of_kind = json!({"kind": "noop", "shared_by": "all", "rate": rate});
    tokio::join!(set_and_wait(&tickr, "of-queue", of_queue), set_and_wait(&tickr, "of-kind", of_kind));
    let call = |queue: &str| json!({"kind": "call", "payload": {"key": queue, "ms": 1}, "queue": queue});
    tickr.enqueue_many((0..60).flat_map(|_| [call("mail"), json!({"kind": "noop"}), call("default")])).await;
    tickr.until_idle().await;
    // A slow machine takes as long for the jobs without a rate. But none of them is parked.
    let parked = "SELECT COUNT(*) FROM limit_holds h JOIN jobs j ON j.id = h.job_id \
                  WHERE j.queue = 'default' AND j.kind = 'call'";
    let free = tickr.count(parked).await;
    assert_eq!(free, 0, "jobs without a rate were parked");
    for which in ["j.queue = 'mail'", "j.kind = 'noop'"] {
        let (within, took_ms) = starts_within(&tickr, which, 1_000).await;
        println!("{which}: at most {within} starts in a second, {took_ms} ms");
        assert!(within <= 30, "{which}: {within} in a second");
        // Six start at once, and the others one by one, every 40 ms.
        assert!(took_ms >= 2_000, "{which}: {took_ms} ms");
    }
    other.stop(CancellationToken::new()).await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_each_ran_once(180).await;
    tickr.stop().await;
}

/// Return the time of MySQL.
async fn clock(tickr: &TestApp) -> String {
    let now = "SELECT CAST(UTC_TIMESTAMP(6) AS CHAR)";
    sqlx::query_scalar(now).fetch_one(&mut tickr.mysql().await).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_limit_holds_on_every_runner_within_two_seconds() {
    let ends = Arc::new(Semaphore::new(0));
    let calls = Calls { ends: Some(Arc::clone(&ends)), ..Calls::default() };
    let patient = |config: &mut Config| (config.workers, config.lease) = (4, Duration::from_secs(60));
    let tickr = TestApp::start_with(patient, calls.registry()).await;
    let other = tickr.another_with(|_| {}, calls.registry()).await;
    let pulse = Pulse::start(&tickr).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 6})).await;
    tickr.enqueue_many((0..60).map(|_| job("a", 200))).await;
    // That takes workers of both runners.
    eventually("six run", || async { (calls.now(["a"])[0].running == 6).then_some(()) }).await;

    set(&tickr, "l", json!({"concurrency": 2})).await;
    let held = format!("CAST('{}' AS DATETIME(6)) + INTERVAL 2 SECOND", clock(&tickr).await);
    ends.add_permits(40);
    eventually("forty have ended, and two run", || async {
        let [of] = calls.now(["a"]);
        ((of.ended, of.running) == (40, 2)).then_some(())
    })
    .await;
    let raised = clock(&tickr).await;

    set(&tickr, "l", json!({"concurrency": 7})).await;
    let answered = Instant::now();
    eventually("seven run", || async { (calls.now(["a"])[0].running == 7).then_some(()) }).await;
    // The last question came up to a tenth of a second after the start.
    pulse.assert_within(Duration::from_millis(2_100), answered, "a raised limit starts more");

    // What is left need not wait.
    ends.add_permits(60);
    tickr.until_idle().await;
    let later = format!("started_at > {held} AND started_at < '{raised}'");
    let started = tickr.count(format!("SELECT COUNT(*) FROM attempts WHERE {later}")).await;
    let most = tickr
        .count(format!(
            "SELECT CAST(COALESCE(MAX(n), 0) AS SIGNED) FROM (SELECT (SELECT COUNT(*) FROM attempts b \
             WHERE b.started_at <= a.started_at AND b.finished_at > a.started_at) n FROM attempts a WHERE {later}) x"
        ))
        .await;
    println!("{started} jobs started from two seconds after the limit was lowered on, up to {most} at once");
    assert_eq!((started > 0, most), (true, 2), "{started} started");
    other.stop(CancellationToken::new()).await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_each_ran_once(60).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_or_removed_limit_holds_within_seconds() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|config| config.workers = 32, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    tickr.enqueue_many((0..12).map(|_| job("a", 600_000))).await;
    let executing = "SELECT COUNT(*) FROM owed WHERE state = 'executing'";
    tickr.until_count(executing, 1).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 11).await;
    set(&tickr, "l", json!({"concurrency": 4})).await;
    tickr.until_count(executing, 4).await;
    set(&tickr, "l", json!({"concurrency": 1, "overrides": {"a": {"concurrency": 6}}})).await;
    tickr.until_count(executing, 6).await;
    // A handler begins a moment after its claim.
    eventually("six run", || async { (calls.most("a") == 6).then_some(()) }).await;
    // A lower limit stops no job and starts none.
    set(&tickr, "l", json!({"concurrency": 2})).await;
    tickr.enqueue_many((0..2).map(|_| job("b", 600_000))).await;
    tickr.until_count(executing, 8).await;
    assert_eq!(calls.most("a"), 6);
    remove(&tickr, "l").await;
    tickr.until_count(executing, 14).await;
    for id in tickr.get("/v1/jobs?state=executing&limit=100").await.body["data"].as_array().unwrap() {
        tickr.post(&format!("/v1/jobs/{}/cancel", id["id"].as_str().unwrap()), json!({})).await;
    }
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_limit_counts_the_attempts_that_run() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|config| config.workers = 16, calls.registry()).await;
    let running = tickr.enqueue_many((0..3).map(|_| job("a", 600_000))).await;
    let executing = "SELECT COUNT(*) FROM owed WHERE state = 'executing'";
    tickr.until_count(executing, 3).await;
    set(&tickr, "l", json!({"concurrency": 4})).await;
    tickr.enqueue_many((0..5).map(|_| job("a", 600_000))).await;
    tickr.until_count(executing, 4).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_slots WHERE kept_until IS NULL", 4).await;
    // A handler begins a moment after its claim.
    eventually("four run", || async { (calls.most("a") == 4).then_some(()) }).await;
    // A slot of an attempt that began before the limit is free when that attempt ends.
    tickr.post(&format!("/v1/jobs/{}/cancel", running[0]), json!({})).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 3).await;
    tickr.until_count(executing, 4).await;
    assert_eq!(calls.most("a"), 4);
    tickr.halt_broken("jobs run").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_job_says_why_it_waits_and_follows_its_operator() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|_| {}, calls.registry()).await;
    set_and_wait(&tickr, "per-tenant", json!({"kind": "call", "shared_by": "parent", "concurrency": 1})).await;
    let first =
        tickr.enqueue(json!({"kind": "call", "payload": {"key": "a", "ms": 600_000}, "limit_key": "t/1"})).await;
    tickr.until(first, State::Executing).await;
    let call = |key: &str| json!({"kind": "call", "payload": {"key": "a", "ms": 1}, "limit_key": key});
    let second = tickr.enqueue(call("t/2")).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 1).await;
    tickr.until_metric("tickr_parked_jobs 1").await;
    let third = tickr.enqueue(call("t")).await;
    let other = tickr.enqueue(call("u/1")).await;
    tickr.until(other, State::Completed).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 2).await;

    let parked = tickr.job(second).await;
    assert_eq!(
        (&parked["state"], &parked["held"], &parked["limit_key"]),
        (&json!("waiting"), &json!(true), &json!("t/2"))
    );
    let explained = tickr.get(&format!("/v1/jobs/{second}/explain")).await;
    assert_eq!(explained.body["reasons"][0]["code"], "limit_reached", "{:#}", explained.body);
    let text = explained.body["summary"].as_str().unwrap();
    assert!(text.contains("per-tenant") && text.contains("key t:") && text.contains(&first.to_string()), "{text}");
    let keys = tickr.get("/v1/limits/per-tenant/keys").await;
    let of_t = &keys.body["data"][0];
    assert_eq!(
        (&of_t["key"], &of_t["running"], &of_t["parked"]),
        (&json!("t"), &json!(1), &json!(2)),
        "{:#}",
        keys.body
    );
    let found = tickr.get("/v1/jobs?q=limit:t/2").await;
    assert_eq!(found.body["data"].as_array().unwrap().len(), 1, "{:#}", found.body);
    assert_eq!(found.body["data"][0]["id"], json!(second.to_string()));

    // It cannot be run before its turn, but cancelled, and its priority can be changed.
    let refused = tickr.post(&format!("/v1/jobs/{second}/run-now"), json!({})).await;
    assert_eq!((refused.status, refused.code()), (409, "wrong_state"), "{:#}", refused.body);
    assert_eq!(tickr.post(&format!("/v1/jobs/{second}/cancel"), json!({})).await.status, 200);
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 1).await;
    tickr.assert_sound().await;
    tickr.post(&format!("/v1/jobs/{first}/cancel"), json!({})).await;
    tickr.until(third, State::Completed).await;
    assert_eq!(calls.most("a"), 2, "jobs of two tenants");
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_job_that_was_made_due_shows_that_due_time() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|_| {}, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    let first = tickr.enqueue(job("a", 600_000)).await;
    tickr.until(first, State::Executing).await;
    let mut delayed = job("a", 1);
    (delayed["delay_ms"], delayed["unique_key"]) = (json!(3_600_000), json!("k"));
    let second = tickr.enqueue(delayed.clone()).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{second}/run-now"), json!({})).await.status, 200);
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 1).await;
    let explained = tickr.get(&format!("/v1/jobs/{second}/explain")).await.body;
    let codes: Vec<&Value> = explained["reasons"].as_array().unwrap().iter().map(|reason| &reason["code"]).collect();
    assert_eq!(codes, ["limit_reached"], "{explained:#}");
    let moment = |value: &Value| serde_json::from_value::<chrono::DateTime<chrono::Utc>>(value.clone()).unwrap();
    let parked = tickr.job(second).await;
    let due_at = moment(&parked["execute_at"]);
    assert!(due_at <= moment(&explained["at"]), "{parked:#}");
    // So do a list, and the answers to requests that find the unique key of the job taken.
    let listed = tickr.get("/v1/jobs?state=waiting").await.body;
    assert_eq!(moment(&listed["data"][0]["execute_at"]), due_at, "{listed:#}");
    let again = tickr.post("/v1/jobs", &delayed).await;
    let receipts = tickr.post("/v1/jobs/batch", json!({"jobs": [delayed]})).await;
    for (status, answer) in [(again.status, &again.body), (receipts.status, &receipts.body["jobs"][0])] {
        assert_eq!((status, &answer["id"]), (200, &json!(second)), "{answer:#}");
        assert_eq!(moment(&answer["execute_at"]), due_at, "{answer:#}");
    }
    cancel_all(&tickr, [second, first]).await;
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_all_share_counts_jobs_without_keys() {
    let ends = Arc::new(Semaphore::new(0));
    let calls = Calls { ends: Some(Arc::clone(&ends)), ..Calls::default() };
    let tickr = TestApp::start_with(|_| {}, calls.registry()).await;
    set_and_wait(&tickr, "calls", json!({"kind": "call", "shared_by": "all", "concurrency": 3})).await;
    tickr.enqueue_many((0..30).map(|_| json!({"kind": "call", "payload": {"key": "a", "ms": 20}}))).await;
    tickr.enqueue_many((0..30).map(|_| json!({"kind": "noop"}))).await;
    eventually("three jobs run", || async { (calls.most("a") == 3).then_some(()) }).await;
    ends.add_permits(1_000);
    tickr.until_idle().await;
    assert_eq!(calls.most("a"), 3);
    tickr.assert_each_ran_once(60).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_gives_its_slot_back_and_takes_another() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|_| {}, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    let retry = json!({"base_ms": 3_600_000, "factor": 1.0, "cap_ms": 3_600_000});
    let fails = json!({"kind": "call", "payload": {"key": "a", "ms": 1, "fails": 1}, "limit_key": "a", "retry": retry});
    let first = tickr.enqueue(fails).await;
    tickr.until(first, State::Retrying).await;
    let second = tickr.enqueue(job("a", 1)).await;
    tickr.until(second, State::Completed).await;
    assert_eq!(tickr.job(first).await["state"], "retrying", "the second did not wait for the retry");
    assert_eq!(tickr.post(&format!("/v1/jobs/{first}/run-now"), json!({})).await.status, 200);
    tickr.until(first, State::Completed).await;
    assert_eq!(calls.most("a"), 1);
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_while_redis_is_flushed_and_runners_are_killed() {
    let tickr = TestApp::start_alone(|_| {}, bystander).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 3})).await;
    let of_default = [("TICKR_QUEUES", "default"), ("TICKR_LEASE", "2s"), ("TICKR_WORKERS", "8")];
    let mut runners = vec![Runner::start(&tickr, &of_default), Runner::start(&tickr, &of_default)];
    for runner in &runners {
        runner.base().await;
    }
    let sleep = |n: usize| json!({"kind": "sleep", "payload": {"ms": 50}, "limit_key": format!("k{}", n % 2)});
    tickr.enqueue_many((0..240).map(sleep)).await;
    for round in 1..=3 {
        let sql: &'static str = Box::leak(
            format!("SELECT COUNT(*) >= {} FROM attempts WHERE verdict = 'succeeded'", round * 54).into_boxed_str(),
        );
        tickr.until_count(sql, 1).await;
        tickr.flush_redis().await;
        runners.remove(0).signal("KILL");
        runners.push(Runner::start(&tickr, &of_default));
    }
    tickr.until_idle().await;
    let succeeded = "SELECT COUNT(DISTINCT job_id) FROM attempts WHERE verdict = 'succeeded'";
    assert_eq!(tickr.count(succeeded).await, 240);
    // A lost attempt has its slot until it is reaped.
    let most = "SELECT CAST(MAX(n) AS SIGNED) FROM (SELECT (SELECT COUNT(*) FROM attempts b \
         JOIN job_limit_keys k ON k.job_id = b.job_id WHERE k.limit_key = l.limit_key \
         AND b.started_at <= a.started_at AND b.finished_at > a.started_at) n \
         FROM attempts a JOIN job_limit_keys l ON l.job_id = a.job_id) x";
    assert_eq!(tickr.count(most).await, 3);
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    drop(runners);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_by_key_holds_after_its_holder_slept() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    let of_default = [("TICKR_QUEUES", "default"), ("TICKR_LEASE", "2s"), ("TICKR_WORKERS", "4")];
    let runners = [Runner::start(&tickr, &of_default), Runner::start(&tickr, &of_default)];
    for runner in &runners {
        runner.base().await;
    }
    let sleep = json!({"kind": "sleep", "payload": {"ms": 300}, "limit_key": "k"});
    tickr.enqueue_many((0..32).map(|_| sleep.clone())).await;
    let [holder, heir] = stop_the_holder(&tickr, runners).await;
    let stopped = Instant::now();
    // Its slot is free when its attempt is recorded as lost.
    let by_heir =
        format!("SELECT COUNT(*) FROM attempts a JOIN runners r ON r.id = a.runner WHERE r.pid = {}", heir.pid());
    let before = tickr.count(&by_heir).await;
    eventually("the heir has the slot", || async { (tickr.count(&by_heir).await >= before + 2).then_some(()) }).await;
    // The holder goes on when the heir has long had the slot, and while there are jobs that it could start.
    tokio::time::sleep((SHORT_LEASE + Duration::from_secs(7)).saturating_sub(stopped.elapsed())).await;
    assert!(tickr.count(PARKED).await > 0, "all jobs had ended before the holder went on");
    holder.signal("CONT");
    tickr.until_idle().await;
    assert_eq!(tickr.count(MOST_AT_ONCE).await, 1);
    assert!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'lost'").await > 0, "the holder lost nothing");
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    drop((holder, heir));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_limits_are_refused_with_all_their_problems() {
    let tickr = TestApp::start().await;
    let put = async |name: &str, body: Value| {
        support::call(&tickr.url(""), Method::PUT, &format!("/v1/limits/{name}"), "", Some(body)).await
    };
    let cases = [
        (json!({}), vec![""]),
        (json!({"concurrency": 0}), vec!["/concurrency"]),
        (json!({"kind": "Not A Name", "queue": "", "concurrency": 1}), vec!["/kind", "/queue"]),
        (json!({"rate": {"starts": 0, "period_ms": 0}}), vec!["/rate/starts", "/rate/period_ms"]),
        (json!({"concurrency": 1, "overrides": {"": {"concurrency": 1}}}), vec!["/overrides/"]),
        (json!({"shared_by": "all", "fair": true}), vec!["/fair"]),
        (json!({"concurrency": 1, "overrides": {"a": {"weight": 2}}}), vec!["/overrides/a/weight"]),
        (json!({"fair": true, "overrides": {"a": {"weight": 0}}}), vec!["/overrides/a/weight"]),
        (json!({"shared_by": "all", "concurrency": 1, "overrides": {"a": {"concurrency": 1}}}), vec!["/overrides"]),
        (
            json!({"shared_by": "parent", "concurrency": 1, "overrides": {"a/b": {"concurrency": 1}}}),
            vec!["/overrides/a~1b"],
        ),
    ];
    for (body, pointers) in cases {
        let answer = put("l", body.clone()).await;
        assert_eq!((answer.status, answer.pointers()), (422, pointers), "{body}: {:#}", answer.body);
    }
    assert_eq!(put("l", json!({"concurrency": 1, "more": 1})).await.status, 422);
    assert_eq!(put("Not A Name", json!({"concurrency": 1})).await.status, 422);
    assert_eq!(tickr.get("/v1/limits/l").await.status, 404);
    assert_eq!(tickr.get("/v1/limits/l/keys").await.status, 404);
    let made = put("l", json!({"concurrency": 1})).await;
    assert_eq!(made.status, 201);
    let same = put("l", json!({"concurrency": 1})).await;
    assert_eq!((same.status, same.header("etag")), (200, made.header("etag")));
    let changed = put("l", json!({"rate": {"starts": 5, "period_ms": 1_000}})).await;
    assert_ne!(changed.header("etag"), made.header("etag"));
    assert_eq!((changed.status, &changed.body["rate"]["burst"]), (200, &json!(1)));
    let long = "k".repeat(256);
    let answer = tickr.post("/v1/jobs", json!({"kind": "noop", "limit_key": long})).await;
    assert_eq!((answer.status, answer.pointers()), (422, vec!["/limit_key"]));
    remove(&tickr, "l").await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM audit WHERE action IN ('limit.set', 'limit.remove')").await, 3);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parked_jobs_start_in_the_order_in_which_they_were_due() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|_| {}, calls.registry()).await;
    let other = tickr.another_with(|_| {}, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    // The later ones come while the first ones are let go one after the other.
    for _ in 0..24 {
        tickr.enqueue_many((0..2).map(|_| job("a", 5))).await;
    }
    tickr.until_idle().await;
    // Ids grow with the time, and with the position in a batch. A runner may look at a job, and find no room for it, after
    // another one has let a later job go: so what counts is which jobs were parked when a later one was let go, or
    // started without a wait.
    let overtaken = "SELECT CONCAT(HEX(b.job_id), ' was parked at ', h.parked_at, ', let go at ', h.released_at, \
                     '; ', HEX(a.job_id), ' was let go at ', COALESCE(g.released_at, '-'), ', started at ', a.started_at) \
                     FROM attempts a JOIN attempts b ON b.started_at > a.started_at AND b.job_id < a.job_id \
                     JOIN limit_holds h ON h.job_id = b.job_id LEFT JOIN limit_holds g ON g.job_id = a.job_id \
                     WHERE h.parked_at < COALESCE(g.released_at, a.started_at)";
    let overtaken: Vec<String> = sqlx::query_scalar(overtaken).fetch_all(&mut tickr.mysql().await).await.unwrap();
    assert_eq!(overtaken, Vec::<String>::new());
    assert!(tickr.count("SELECT COUNT(*) FROM limit_holds").await >= 10, "few jobs were parked");
    tickr.assert_each_ran_once(48).await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parked_jobs_of_a_paused_queue_keep_no_slot_from_others() {
    let calls = Calls::default();
    let queues = |config: &mut tickr::config::Config| config.queues = vec!["default".to_owned(), "mail".to_owned()];
    let tickr = TestApp::start_with(queues, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    let first = tickr.enqueue(job("a", 600_000)).await;
    tickr.until(first, State::Executing).await;
    let in_mail = json!({"kind": "call", "payload": {"key": "a", "ms": 1}, "limit_key": "a", "queue": "mail"});
    let mail = tickr.enqueue(in_mail.clone()).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 1).await;
    assert_eq!(tickr.post("/v1/queues/mail/pause", json!({})).await.status, 200);
    let second = tickr.enqueue(job("a", 1)).await;
    tickr.post(&format!("/v1/jobs/{first}/cancel"), json!({})).await;
    tickr.until(second, State::Completed).await;
    assert_eq!(tickr.job(mail).await["state"], "waiting");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM limit_waits WHERE queue = 'mail'").await, 1, "it was not let go");
    assert_eq!(tickr.post("/v1/queues/mail/resume", json!({})).await.status, 200);
    tickr.until(mail, State::Completed).await;
    assert_eq!(calls.most("a"), 1);
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_parked_jobs_of_a_paused_queue_leave_the_line_and_come_back_after_the_pause() {
    let calls = Calls::default();
    let queues = |config: &mut Config| config.queues = vec!["default".to_owned(), "mail".to_owned()];
    let tickr = TestApp::start_with(queues, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    let first = tickr.enqueue(job("a", 600_000)).await;
    tickr.until(first, State::Executing).await;
    let in_mail = || json!({"kind": "call", "payload": {"key": "a", "ms": 0}, "limit_key": "a", "queue": "mail"});
    let next = tickr.enqueue(in_mail()).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 1).await;
    // Behind a parked job they are parked at once.
    tickr.enqueue_many((0..559).map(|_| in_mail())).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 560).await;
    assert_eq!(tickr.post("/v1/queues/mail/pause", json!({})).await.status, 200);
    tickr.until_count("SELECT COUNT(*) <= 512 FROM limit_waits WHERE queue = 'mail'", 1).await;
    // The others are due, and nothing starts them.
    let due = "SELECT COUNT(*) >= 48 FROM owed WHERE queue = 'mail' AND execute_at <= UTC_TIMESTAMP(3)";
    assert_eq!(tickr.count(due).await, 1);
    let explained = tickr.get(&format!("/v1/jobs/{next}/explain")).await.body;
    assert_eq!(explained["reasons"][0]["code"], "queue_paused", "{explained:#}");
    let second = tickr.enqueue(job("a", 1)).await;
    cancel(&tickr, first).await;
    tickr.until(second, State::Completed).await;
    let started = "SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.queue = 'mail'";
    assert_eq!(tickr.count(started).await, 0);
    tickr.assert_sound().await;

    assert_eq!(tickr.post("/v1/queues/mail/resume", json!({})).await.status, 200);
    // Those that were let go are parked again, a few at a time, which takes a slow machine a while.
    for left in [130, 70] {
        let due = "SELECT COUNT(*) <= {left} FROM owed WHERE queue = 'mail' AND execute_at <= UTC_TIMESTAMP(3)";
        tickr.until_count(due.replace("{left}", &left.to_string()), 1).await;
    }
    // All of them count, parked or not.
    eventually("some have run", || async { (tickr.count(started).await >= 5).then_some(()) }).await;
    assert_eq!(calls.most("a"), 1);
    set(&tickr, "l", json!({"concurrency": 100})).await;
    tickr.until_idle().await;
    assert_eq!(tickr.count(started).await, 560);
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_finds_no_fault_while_the_jobs_of_a_removed_limit_are_let_go_or_their_queue_is_paused() {
    let calls = Calls::default();
    let queues = |config: &mut tickr::config::Config| config.queues = vec!["default".to_owned(), "mail".to_owned()];
    let tickr = TestApp::start_with(queues, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    let first = tickr.enqueue(job("a", 600_000)).await;
    tickr.until(first, State::Executing).await;
    let in_mail = json!({"kind": "call", "payload": {"key": "a", "ms": 1}, "limit_key": "a", "queue": "mail"});
    let mail = tickr.enqueue(in_mail).await;
    let second = tickr.enqueue(job("a", 1)).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 2).await;
    assert_eq!(tickr.post("/v1/queues/mail/pause", json!({})).await.status, 200);
    remove(&tickr, "l").await;
    // The check most likely begins before the first sweep without the limit.
    tickr.assert_sound().await;
    tickr.until(second, State::Completed).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM limit_waits WHERE queue = 'mail'").await, 1);
    tickr.assert_sound().await;
    assert_eq!(tickr.post("/v1/queues/mail/resume", json!({})).await.status, 200);
    tickr.until(mail, State::Completed).await;
    tickr.post(&format!("/v1/jobs/{first}/cancel"), json!({})).await;
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_finds_no_fault_in_the_parked_jobs_of_a_removed_limit_while_their_key_is_locked() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|_| {}, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    let first = tickr.enqueue(job("a", 600_000)).await;
    tickr.until(first, State::Executing).await;
    let second = tickr.enqueue(job("a", 1)).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 1).await;
    let mut session = tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    let lock = "SELECT limit_key FROM limit_keys WHERE limit_name = 'l' AND limit_key = 'a' FOR UPDATE";
    session.fetch_one(lock).await.unwrap();
    remove(&tickr, "l").await;
    let settings = halted::settings(&tickr.config, Duration::ZERO, false);
    let report = verify(tickr.app.broker().store(), tickr.app.index(), &settings, |_| {}).await.unwrap();
    assert_eq!(report.finding(Check::Limit).faults, 0, "{:?}", report.finding(Check::Limit));
    let told = report.unchecked.iter().any(|why| why.contains("another session locks them"));
    assert!(told, "{:?}", report.unchecked);
    session.execute("ROLLBACK").await.unwrap();
    tickr.until(second, State::Completed).await;
    tickr.post(&format!("/v1/jobs/{first}/cancel"), json!({})).await;
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_is_free_only_after_its_attempt_has_ended() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|config| config.workers = 16, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 2})).await;
    let long = tickr.enqueue(job("a", 600_000)).await;
    tickr.until(long, State::Executing).await;
    // Runs of the sweep, while slots are freed and taken.
    for _ in 0..3 {
        // A slot that nothing will free but the sweep, beside one of an attempt that runs.
        tickr
            .sql("INSERT INTO limit_slots (limit_name, limit_key, job_id) VALUES ('l', 'a', UNHEX(REPEAT('00', 16)))")
            .await;
        let short = tickr.enqueue(job("a", 1)).await;
        tickr.until(short, State::Completed).await;
        tickr.until_count("SELECT COUNT(*) FROM limit_slots WHERE job_id = UNHEX(REPEAT('00', 16))", 0).await;
    }
    let ids = format!("UNHEX('{}')", long.uuid().simple());
    let slot: &'static str =
        Box::leak(format!("SELECT COUNT(*) FROM limit_slots WHERE job_id = {ids}").into_boxed_str());
    assert_eq!(tickr.count(slot).await, 1);
    assert_eq!(tickr.job(long).await["state"], "executing");
    cancel(&tickr, long).await;
    tickr.until(long, State::Cancelled).await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.stop().await;
}

/// A claim first looks for limits that apply to its jobs. A job that another session makes due after that look counts
/// against its limit as well: a retry whose time comes, a job that is let go, one that an operator runs now.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_becomes_due_while_it_is_claimed_counts_against_its_limit() {
    let calls = Calls::default();
    let served = |config: &mut Config| config.queues = vec!["served".into()];
    let tickr = TestApp::start_with(served, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    let in_queue = |mut job: Value, queue: &str| {
        job["queue"] = json!(queue);
        job
    };
    let holder = tickr.enqueue(in_queue(job("a", 600_000), "served")).await;
    tickr.until(holder, State::Executing).await;
    let mut late = in_queue(job("a", 1), "claimed-by-the-test");
    late["delay_ms"] = json!(3_600_000);
    let late = tickr.enqueue(late).await;
    let queue: Name = "claimed-by-the-test".parse().unwrap();
    let kinds = vec!["call".parse().unwrap()];
    let store = tickr.app.broker().store();
    let claimant = store.claimant(RunnerId::new_for_host("test"), kinds, Duration::from_secs(30));

    let mut other = tickr.mysql().await;
    let mut tx = other.begin().await.unwrap();
    let make_due = "UPDATE owed SET execute_at = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND WHERE id = ?";
    sqlx::query(make_due).bind(late.uuid()).execute(&mut *tx).await.unwrap();
    let mut claim = tokio::spawn(async move { claimant.claim(late, &queue).await.unwrap() });
    // The claim has looked for limits once it waits for the row, or once it is over.
    let early = tokio::select! {
        () = tickr.until_said("UPDATE owed FORCE INDEX", 1) => None,
        claim = &mut claim => Some(claim.unwrap()),
    };
    tx.commit().await.unwrap();
    let claim = match early {
        Some(claim) => claim,
        None => claim.await.unwrap(),
    };
    assert!(!matches!(claim, Claim::Won(_)), "{claim:?}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE state = 'executing'").await, 1);
    assert_eq!(tickr.post(&format!("/v1/jobs/{late}/cancel"), json!({})).await.status, 200);
    cancel(&tickr, holder).await;
    tickr.until(holder, State::Cancelled).await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_job_starts_under_the_former_values_of_a_changed_rate() {
    let calls = Calls::default();
    let served = |config: &mut Config| config.queues = vec!["served".into()];
    let tickr = TestApp::start_with(served, calls.registry()).await;
    let rate = |burst: u32| json!({"rate": {"starts": 2, "period_ms": 3_600_000, "burst": burst}});
    set_and_wait(&tickr, "l", rate(8)).await;
    let url = tickr.config.mysql_url().unwrap().expose().to_owned();
    let settings = StoreSettings { url, connections: 6, flushers: 1, table_prefix: table_prefix() };
    let store = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
    let former = Arc::new(store.limits().await.unwrap());
    set(&tickr, "l", rate(0)).await;
    let in_queue = |queue: &str| {
        let mut job = job("a", 1);
        job["queue"] = json!(queue);
        job
    };
    let first = tickr.enqueue(in_queue("served")).await;
    tickr.until(first, State::Completed).await;
    let next = tickr.enqueue(in_queue("claimed-by-the-test")).await;
    let queue: Name = "claimed-by-the-test".parse().unwrap();
    let kinds = vec!["call".parse().unwrap()];
    let claimant = store.claimant(RunnerId::new_for_host("test"), kinds, Duration::from_secs(30));
    // Under the former rate eight more could start.
    store.follow_limits(&former, std::time::Instant::now());
    let claim = claimant.claim(next, &queue).await.unwrap();
    assert!(matches!(claim, Claim::NotDue(_) | Claim::Parked), "{claim:?}");
    let claim = claimant.claim(next, &queue).await.unwrap();
    assert!(matches!(claim, Claim::Parked | Claim::NotDue(_)), "{claim:?}");
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 1).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{next}/cancel"), json!({})).await.status, 200);
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    drop(claimant);
    store.close().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_were_let_go_for_a_slow_rate_follow_a_faster_one() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|_| {}, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"rate": {"starts": 1, "period_ms": 40_000, "burst": 0}})).await;
    tickr.enqueue_many((0..5).map(|_| job("a", 1))).await;
    // Two batches of claims that run side by side may start any of them first.
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'", 1).await;
    // The next one has the due time of its turn by now, 40 seconds ahead, and the others are parked.
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 3).await;
    set(&tickr, "l", json!({"rate": {"starts": 100, "period_ms": 1_000}})).await;
    tickr.until_idle().await;
    let took = tickr.count("SELECT TIMESTAMPDIFF(SECOND, MIN(started_at), MAX(started_at)) FROM attempts").await;
    assert!(took < 35, "{took} s");
    // No row of a key is left once a start of its rate is allowed at once.
    eventually("the key is forgotten", || async {
        tickr.app.broker().store().forget_limit_keys(None).await.unwrap();
        (tickr.count("SELECT COUNT(*) FROM limit_keys").await == 0).then_some(())
    })
    .await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_turn_of_a_job_that_is_cancelled_or_put_off_goes_to_the_next_one() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|_| {}, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"rate": {"starts": 1, "period_ms": 15_000, "burst": 0}})).await;
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    tickr.enqueue_many((0..3).flat_map(|_| ["a", "b"].map(|key| job(key, 1)))).await;
    let succeeded = "SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'";
    tickr.until_count(succeeded, 2).await;
    // Of each key one job has started, one has the due time of its turn, and one is parked.
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 2).await;
    let let_go = async |key: &str| {
        let sql = format!(
            "SELECT o.id FROM owed o JOIN job_limit_keys l ON l.job_id = o.id \
             WHERE l.limit_key = '{key}' AND o.execute_at < '9999-01-01'"
        );
        let id: uuid::Uuid =
            sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&mut tickr.mysql().await).await.unwrap();
        JobId::from_uuid(id)
    };
    cancel(&tickr, let_go("a").await).await;
    let put_off = let_go("b").await;
    let answer = tickr.patch(&format!("/v1/jobs/{put_off}"), json!({"delay_ms": 3_600_000})).await;
    assert_eq!(answer.status, 200, "{:#}", answer.body);
    tickr.until_count(succeeded, 4).await;
    let stalled = i64::try_from(pulse.stalled_since(began).as_micros()).unwrap();
    for key in ["a", "b"] {
        let took = tickr.count(format!(
            "SELECT TIMESTAMPDIFF(MICROSECOND, MIN(a.started_at), MAX(a.started_at)) FROM attempts a \
             JOIN job_limit_keys l ON l.job_id = a.job_id WHERE l.limit_key = '{key}' AND a.verdict = 'succeeded'"
        ));
        let took = took.await;
        println!("{took} µs between the starts of the key {key}, beside stalls of {stalled} µs");
        // The slot of the job would be kept until five seconds after its turn.
        assert!(took >= 14_900_000 && took - stalled < 19_900_000, "{key}: {took} µs, beside stalls of {stalled} µs");
    }
    cancel(&tickr, put_off).await;
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_job_that_was_made_due_starts_when_its_limit_is_removed() {
    // Within a minute, so that the next job is let go, and longer than this test takes.
    const PERIOD_MS: u64 = 55_000;
    let calls = Calls::default();
    let tickr = TestApp::start_with(|_| {}, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"rate": {"starts": 1, "period_ms": PERIOD_MS, "burst": 0}})).await;
    let first = tickr.enqueue(job("a", 1)).await;
    tickr.until(first, State::Completed).await;
    let mut delayed = job("a", 1);
    delayed["delay_ms"] = json!(3_600_000);
    let second = tickr.enqueue(delayed).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{second}/run-now"), json!({})).await.status, 200);
    // It is let go with the due time of its turn.
    tickr.until_count("SELECT COUNT(*) FROM limit_slots WHERE kept_until IS NOT NULL", 1).await;
    // Each change of settings is followed by two sweeps of all keys, which park it and let it go again.
    for other in ["one", "two"] {
        set_and_wait(&tickr, other, json!({"queue": "other", "concurrency": 1})).await;
    }
    let due = tickr.count("SELECT COUNT(*) FROM owed WHERE execute_at < UTC_TIMESTAMP(6) + INTERVAL 1 MINUTE").await;
    assert_eq!(due, 1, "it is due at its turn: {:#}", tickr.job(second).await);
    remove(&tickr, "l").await;
    tickr.until(second, State::Completed).await;
    let took = tickr.count("SELECT TIMESTAMPDIFF(SECOND, MIN(started_at), MAX(started_at)) FROM attempts").await;
    assert!(took < 50, "{took} s: at its turn");
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.stop().await;
}

/// Run a job. Return how long it waited, in microseconds by the ledger, and how many other jobs started meanwhile.
async fn run_another(tickr: &TestApp, job: Value) -> (i64, i64) {
    let id = tickr.enqueue(job).await;
    tickr.until(id, State::Completed).await;
    let sql = "SELECT TIMESTAMPDIFF(MICROSECOND, o.execute_at, o.started_at), (SELECT COUNT(*) FROM attempts f \
               WHERE f.started_at > o.execute_at AND f.started_at < o.started_at) FROM attempts o WHERE o.job_id = ?";
    sqlx::query_as(sql).bind(id.uuid()).fetch_one(&mut tickr.mysql().await).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_one_key_does_not_delay_the_jobs_of_another() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|config| config.workers = 8, calls.registry()).await;
    set_and_wait(&tickr, "fair", json!({"fair": true})).await;
    let (mut alone, mut beside, mut without, mut all_passed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let without_key = || json!({"kind": "call", "payload": {"key": "free", "ms": 1}});
    for _ in 0..11 {
        alone.push(run_another(&tickr, job("other", 1)).await.0);
    }
    // Eight workers need more than four seconds for them.
    let mut flood = 450;
    tickr.enqueue_many((0..flood).map(|_| job("flood", 80))).await;
    // From here on most jobs of the flood are parked. None of them is ahead of the others.
    let parked = "SELECT COUNT(*) FROM limit_waits WHERE limit_key = 'flood'";
    tickr.until_count("SELECT COUNT(*) > 180 FROM limit_waits", 1).await;
    for n in 0..11 {
        // On a slow machine the flood would be over before the last of the other jobs. So many of its jobs wait that a
        // job behind all of them is passed by more than the check below allows.
        if tickr.count(parked).await < 180 {
            flood += 200;
            tickr.enqueue_many((0..200).map(|_| job("flood", 80))).await;
        }
        let (waited, passed) = run_another(&tickr, job("other", 1)).await;
        println!("{passed} jobs of the flood started before job {n}");
        beside.push(waited);
        all_passed.push(passed);
        without.push(run_another(&tickr, without_key()).await.0);
    }
    assert!(tickr.count(parked).await > 0, "the flood is over");
    // Those that were let go before it, for eight workers. A job that is held up on its way to a worker for a third of a
    // second is passed by more of them, which happens on a busy machine. Behind the flood it would be passed by all.
    all_passed.sort_unstable();
    assert!(
        all_passed[7] <= 24 && all_passed[10] <= 150,
        "jobs of the flood that started before others: {all_passed:?}"
    );
    let median = |mut waits: Vec<i64>| {
        waits.sort_unstable();
        waits[waits.len() / 2]
    };
    let (alone, beside, without) = (median(alone), median(beside), median(without));
    println!("median waits: {alone} us alone, {beside} us beside the flood, {without} us there without a key");
    // All workers are busy, so a job waits until one of the flood ends. What else holds jobs up on a busy machine does so
    // to those without a limit as well.
    let usual = alone.max(without);
    assert!(beside <= 2 * usual + 80_000, "{beside} us beside the flood, {alone} us alone, {without} us without a key");
    tickr.until_idle().await;
    tickr.assert_each_ran_once(flood + 33).await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.stop().await;
}

/// Counts the keys with parked jobs.
const KEYS_THAT_WAIT: &str = "SELECT COUNT(DISTINCT limit_key) FROM limit_waits";

/// Let so many of the jobs end that run, and wait until all workers are busy again. Return how many of each key have
/// ended.
async fn end(calls: &Calls, ends: &Semaphore, count: usize) -> BTreeMap<String, usize> {
    let ended = || calls.of.lock().unwrap().values().map(|of| of.ended).sum::<usize>();
    let wanted = ended() + count;
    ends.add_permits(count);
    // A slow machine first parks the jobs of the flood that are due, which is not seen here.
    seen_within(4 * DEADLINE, &format!("all workers are busy after {wanted} have ended"), || async {
        let of = calls.of.lock().unwrap().clone();
        let (running, ended): (usize, usize) =
            of.values().fold((0, 0), |(running, ended), of| (running + of.running, ended + of.ended));
        if (running, ended) == (calls.workers, wanted) {
            Ok(of.into_iter().map(|(key, of)| (key, of.ended)).collect())
        } else {
            Err(format!("{running} run, and {ended} have ended"))
        }
    })
    .await
}

/// Let jobs end one by one until this many keys have parked jobs. The runner parks jobs of a fair limit from the moment
/// when it has learned that all workers are busy.
async fn end_until_keys_wait(tickr: &TestApp, calls: &Calls, ends: &Semaphore, keys: i64) {
    eventually_seen(&format!("{keys} keys have parked jobs"), || async {
        end(calls, ends, 1).await;
        let waiting = tickr.count(KEYS_THAT_WAIT).await;
        if waiting == keys { Ok(()) } else { Err(format!("{waiting} have")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_fair_limit_share_the_workers_by_their_weights() {
    // Ends in a window, and ends at a time. The first window may begin before the runner follows the weights. Rounded
    // parts of five workers, with two jobs on their way, would be five jobs for one: at least four of the workers.
    const WINDOW: usize = 216;
    const AT_ONCE: usize = 3;
    let ends = Arc::new(Semaphore::new(0));
    let calls = Calls { ends: Some(Arc::clone(&ends)), workers: 5, ..Calls::default() };
    let patient = |config: &mut Config| (config.workers, config.lease) = (5, Duration::from_secs(60));
    let tickr = TestApp::start_with(patient, calls.registry()).await;
    set_and_wait(&tickr, "fair", json!({"fair": true, "overrides": {"heavy": {"weight": 3}}})).await;
    // All jobs of one key are due before those of the other.
    tickr.enqueue_many((0..120).map(|_| job("heavy", 1))).await;
    end_until_keys_wait(&tickr, &calls, &ends, 1).await;
    tickr.enqueue_many((0..380).map(|n| job(if n < 210 { "heavy" } else { "light" }, 1))).await;
    end_until_keys_wait(&tickr, &calls, &ends, 2).await;
    let mut jobs = 500;
    let mut windows: Vec<f64> = Vec::new();
    while windows.last().is_none_or(|ratio| !(2.7..=3.3).contains(ratio)) {
        assert!(windows.len() < 3, "not shared by the weights: {windows:?}");
        if !windows.is_empty() {
            // Each window uses jobs up, and must not use up those of a key.
            tickr.enqueue_many((0..260).map(|n| job(if n < 150 { "heavy" } else { "light" }, 1))).await;
            jobs += 260;
        }
        // The workers of each key, added up. Their ends would tell less: which jobs end next is up to the test, and jobs
        // of one key may run for longer than those of the other only because they began last.
        let (mut heavy, mut light) = (0, 0);
        for _ in 0..WINDOW / AT_ONCE {
            end(&calls, &ends, AT_ONCE).await;
            let [of_heavy, of_light] = calls.now(["heavy", "light"]);
            (heavy, light) = (heavy + of_heavy.running, light + of_light.running);
        }
        assert_eq!(tickr.count(KEYS_THAT_WAIT).await, 2, "the jobs of a key were used up");
        windows.push(heavy as f64 / light as f64);
    }
    println!("workers of the heavy key for each of the light one, in windows: {windows:?}");
    ends.add_permits(1_000);
    tickr.until_idle().await;
    tickr.assert_each_ran_once(jobs).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "has the whole number of keys; the suite has a smaller one, of two runners"]
async fn keys_of_a_fair_limit_without_weights_get_equal_parts() {
    keys_get_equal_parts::<20>(1, 700).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_fair_limit_get_equal_parts_of_the_workers_of_two_runners() {
    // The keys are more than the workers.
    keys_get_equal_parts::<10>(2, 240).await;
}

/// Let this many keys, one of them with a flood of so many jobs, share eight workers of one or two runners.
async fn keys_get_equal_parts<const KEYS: usize>(runners: usize, flood: usize) {
    let ends = Arc::new(Semaphore::new(0));
    let calls = Calls { ends: Some(Arc::clone(&ends)), workers: 8, ..Calls::default() };
    let patient = |config: &mut Config| (config.workers, config.lease) = (8 / runners, Duration::from_secs(60));
    let tickr = TestApp::start_with(patient, calls.registry()).await;
    let mut others = Vec::new();
    for _ in 1..runners {
        others.push(tickr.another_with(patient, calls.registry()).await);
    }
    set_and_wait(&tickr, "fair", json!({"fair": true})).await;
    // One tenant floods the queue before the others come.
    tickr.enqueue_many((0..flood).map(|_| job("tenant-0", 1))).await;
    end_until_keys_wait(&tickr, &calls, &ends, 1).await;
    // The first jobs of the next tenant start before the others wait.
    let of = |key: usize| if key == 1 { 50 } else { 25 };
    let jobs: Vec<Value> =
        (1..KEYS).flat_map(|key| (0..of(key)).map(move |_| job(&format!("tenant-{key}"), 1))).collect();
    let all_jobs = flood + jobs.len();
    tickr.enqueue_many(jobs).await;
    end_until_keys_wait(&tickr, &calls, &ends, i64::try_from(KEYS).unwrap()).await;
    // The jobs of the flood that were let go before the others came end first.
    for _ in 0..KEYS / 4 {
        end(&calls, &ends, 8).await;
    }
    let before = end(&calls, &ends, 0).await;
    // Eight jobs of each key, if they get equal parts.
    let mut now = BTreeMap::new();
    for _ in 0..KEYS {
        now = end(&calls, &ends, 8).await;
    }
    let waiting = tickr.count(KEYS_THAT_WAIT).await;
    assert_eq!(waiting, i64::try_from(KEYS).unwrap(), "the jobs of a key were used up: {before:?} {now:?}");
    let ended = now.iter().map(|(key, count)| (count - before.get(key).copied().unwrap_or(0)) as f64);
    let ended: Vec<f64> = ended.collect();
    // Jain's index: 1 if all of n keys got the same, 1/n if one of them got everything.
    let all: f64 = ended.iter().sum();
    let jain = all * all / (KEYS as f64 * ended.iter().map(|ended| ended * ended).sum::<f64>());
    println!("Jain's index {jain:.3} of {ended:?}");
    assert!(jain >= 0.95, "{jain:.3} of {ended:?}");
    ends.add_permits(1_000);
    tickr.until_idle().await;
    tickr.assert_each_ran_once(i64::try_from(all_jobs).unwrap()).await;
    if runners > 1 {
        let ran = "SELECT COUNT(DISTINCT runner) FROM attempts WHERE runner <> ''";
        assert_eq!(tickr.count(ran).await, i64::try_from(runners).unwrap(), "all runners worked");
    }
    for other in others {
        other.stop(CancellationToken::new()).await;
    }
    tickr.stop().await;
}

/// No list in Redis lets the keys take their turns then.
#[tokio::test(flavor = "multi_thread")]
async fn without_redis_few_jobs_of_a_flood_start_before_the_jobs_of_another_key() {
    Flood::start(8, 200).await.passes_others(3).await;
}

/// Sixteen jobs of the flood are on their way then. They were due before all others, and one look for one free worker
/// would find no other job.
#[tokio::test(flavor = "multi_thread")]
async fn on_many_workers_without_redis_the_jobs_on_their_way_alone_start_before_another_key() {
    Flood::start(64, 300).await.passes_others(3).await;
}

/// A flood on a runner without Redis. All workers are busy with it, and its other jobs are parked.
struct Flood {
    tickr: TestApp,
    calls: Calls,
    ends: Arc<Semaphore>,
    jobs: i64,
}

impl Flood {
    async fn start(workers: usize, jobs: i64) -> Self {
        let ends = Arc::new(Semaphore::new(0));
        let calls = Calls { ends: Some(Arc::clone(&ends)), workers, ..Calls::default() };
        let patient = |config: &mut Config| (config.workers, config.lease) = (workers, Duration::from_secs(60));
        let tickr = TestApp::start_alone_with(patient, calls.registry()).await;
        set_and_wait(&tickr, "fair", json!({"fair": true})).await;
        tickr.enqueue_many((0..jobs).map(|_| job("flood", 1))).await;
        end_until_keys_wait(&tickr, &calls, &ends, 1).await;
        tickr.services().redis().kill9().unwrap();
        Self { tickr, calls, ends, jobs }
    }

    /// Enqueue a job of another key, and let jobs end one by one until it starts. Return how many ended.
    async fn pass(&self) -> usize {
        /// Those on their way, a quarter as many as there are workers or two, and some by chance.
        const MOST: usize = 40;
        let [before] = self.calls.now(["other"]);
        self.tickr.enqueue(job("other", 1)).await;
        for passed in 0..MOST {
            let [other] = self.calls.now(["other"]);
            if other.running + other.ended > before.running + before.ended {
                return passed;
            }
            end(&self.calls, &self.ends, 1).await;
        }
        panic!("{MOST} jobs ended before a job of the other key started");
    }

    async fn passes_others(self, others: i64) {
        let mut all_passed = Vec::new();
        for _ in 0..others {
            all_passed.push(self.pass().await);
        }
        println!("ends of other jobs before each job of the other key: {all_passed:?}");
        // More than may end before a job of the other key starts.
        let waiting = "SELECT COUNT(*) > 40 FROM limit_waits WHERE limit_key = 'flood'";
        assert_eq!(self.tickr.count(waiting).await, 1, "the flood is over");
        self.end(others).await;
    }

    /// Give so many of the parked jobs their due times, as if they had been accepted before any other was parked.
    async fn unpark(&self, jobs: u32) {
        self.tickr
            .sql(format!(
                "UPDATE owed o JOIN (SELECT job_id, due_at FROM limit_waits WHERE limit_key = 'flood' \
                 ORDER BY due_at DESC, job_id DESC LIMIT {jobs}) w ON w.job_id = o.id SET o.execute_at = w.due_at"
            ))
            .await;
        self.tickr
            .sql("DELETE w FROM limit_waits w JOIN owed o ON o.id = w.job_id WHERE o.execute_at < '9999-01-01'")
            .await;
    }

    async fn end(self, others: i64) {
        self.tickr.services().redis().start_again().unwrap();
        self.ends.add_permits(1_000);
        self.tickr.until_idle().await;
        self.tickr.assert_each_ran_once(self.jobs + others).await;
        self.tickr.until_count(NO_ROWS_LEFT, 0).await;
        self.tickr.stop().await;
    }
}

/// A claim parks one job, and the worker for which it looked stays idle meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn without_redis_the_jobs_of_a_flood_that_are_not_parked_yet_are_parked_together() {
    let flood = Flood::start(8, 250).await;
    flood.unpark(150).await;
    let before: chrono::DateTime<chrono::Utc> =
        sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut flood.tickr.mysql().await).await.unwrap();
    let passed = flood.pass().await;
    let parked = "SELECT COUNT(*), COUNT(DISTINCT parked_at) FROM limit_waits WHERE parked_at > ?";
    let (parked, moments): (i64, i64) =
        sqlx::query_as(parked).bind(before).fetch_one(&mut flood.tickr.mysql().await).await.unwrap();
    println!("{passed} ends of other jobs, {parked} jobs were parked at {moments} moments");
    assert!(parked > 120, "{parked} jobs were parked");
    assert!(moments < 20, "{parked} jobs were parked at {moments} moments");
    flood.end(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_jobs_behind_parked_ones_of_their_key_are_parked_without_a_claim() {
    let flood = Flood::start(4, 160).await;
    let (tickr, store) = (&flood.tickr, flood.tickr.app.broker().store());
    flood.unpark(50).await;
    let other = tickr.enqueue(job("other", 1)).await;
    // The first of them was let go a moment ago.
    let due =
        "SELECT id FROM owed WHERE state = 'waiting' AND execute_at <= UTC_TIMESTAMP(3) AND id <> ? ORDER BY id DESC";
    let mut mysql = tickr.mysql().await;
    let due: Vec<uuid::Uuid> = sqlx::query_scalar(due).bind(other.uuid()).fetch_all(&mut mysql).await.unwrap();
    let slot = "INSERT INTO limit_slots (limit_name, limit_key, job_id, kept_until) \
                VALUES ('fair', 'flood', ?, UTC_TIMESTAMP(6) + INTERVAL 60 SECOND)";
    sqlx::query(slot).bind(due[0]).execute(&mut mysql).await.unwrap();
    let ids: Vec<JobId> = due.iter().copied().map(JobId::from_uuid).chain([other]).collect();
    let parked = store.park_behind_others(&ids).await.unwrap();
    assert!((49..ids.len() - 1).contains(&parked), "{parked} of {} were parked", ids.len());
    for id in [JobId::from_uuid(due[0]), other] {
        let waits = sqlx::query_scalar("SELECT COUNT(*) FROM limit_waits WHERE job_id = ?").bind(id.uuid());
        let waits: i64 = waits.fetch_one(&mut mysql).await.unwrap();
        assert_eq!(waits, 0, "{id} was parked");
    }
    assert_eq!(store.park_behind_others(&ids).await.unwrap(), 0, "parked again");
    drop(mysql);
    flood.end(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_key_may_not_use_of_a_fair_limit_is_left_to_the_others() {
    let ends = Arc::new(Semaphore::new(0));
    let calls = Calls { ends: Some(Arc::clone(&ends)), workers: 8, ..Calls::default() };
    let patient = |config: &mut Config| (config.workers, config.lease) = (8, Duration::from_secs(60));
    let tickr = TestApp::start_with(patient, calls.registry()).await;
    set_and_wait(&tickr, "fair", json!({"fair": true, "overrides": {"narrow": {"concurrency": 1}}})).await;
    tickr.enqueue_many((0..30).map(|_| job("narrow", 1))).await;
    tickr.until_count(KEYS_THAT_WAIT, 1).await;
    tickr.enqueue_many((0..170).map(|_| job("wide", 1))).await;
    end_until_keys_wait(&tickr, &calls, &ends, 2).await;
    // With half of the workers for each key, some would be idle from the next sweep on.
    for _ in 0..20 {
        end(&calls, &ends, 4).await;
    }
    assert_eq!(tickr.count(KEYS_THAT_WAIT).await, 2, "the jobs of a key were used up");
    assert_eq!(calls.most("narrow"), 1);
    ends.add_permits(1_000);
    tickr.until_idle().await;
    tickr.assert_each_ran_once(200).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_that_are_set_together_are_followed_together() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|_| {}, calls.registry()).await;
    // The sweep says at the same moment of all of them that they are counted.
    tokio::join!(set(&tickr, "one", json!({"concurrency": 1})), set(&tickr, "two", json!({"concurrency": 1})));
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    let id = tickr.enqueue(job("a", 1)).await;
    tickr.until(id, State::Completed).await;
    // The settings are read anew every 30 s in any case.
    pulse.assert_within(Duration::from_secs(20), began, "the limits are followed");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_was_suspended_when_a_limit_was_set_follows_it_at_once() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["other".to_owned()], Registry::new()).await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let url = proxy.url();
    let environment = [
        ("TICKR_QUEUES", "default"),
        ("TICKR_LEASE", "30s"),
        ("TICKR_WORKERS", "4"),
        ("TICKR_MYSQL_URL", url.as_str()),
    ];
    let asleep = Runner::start(&tickr, &environment);
    asleep.base().await;
    let warm = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(warm, State::Completed).await;
    asleep.signal("STOP");
    // When it continues, it is told for half a second of no change of the settings.
    proxy.silent_from("SELECT UTC_TIMESTAMP(6) AS now");
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    let long = json!({"kind": "sleep", "payload": {"ms": 600_000}, "limit_key": "a"});
    let ids = tickr.enqueue_many((0..6).map(|_| long.clone())).await;
    asleep.signal("CONT");
    eventually_seen("one of them runs and five are parked", || async {
        let parked = tickr.count("SELECT COUNT(*) FROM limit_waits").await;
        let running = tickr.count("SELECT COUNT(*) FROM owed WHERE state = 'executing'").await;
        if (running, parked) == (1, 5) { Ok(()) } else { Err(format!("{running} run and {parked} are parked")) }
    })
    .await;
    for id in ids {
        tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    }
    tickr.until_idle().await;
    tickr.assert_sound().await;
    drop(asleep);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_with_an_order_key_and_a_limit_key_follows_both() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|_| {}, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    let first = tickr.enqueue(job("a", 600_000)).await;
    tickr.until(first, State::Executing).await;
    let ordered = || json!({"kind": "call", "payload": {"key": "a", "ms": 5}, "limit_key": "a", "order_key": "o"});
    let line = tickr.enqueue_many((0..6).map(|_| ordered())).await;
    // The head of the line is parked, the others are held behind it.
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 1).await;
    let code = async |id| tickr.get(&format!("/v1/jobs/{id}/explain")).await.body["reasons"][0]["code"].clone();
    assert_eq!((code(line[0]).await, code(line[1]).await), (json!("limit_reached"), json!("behind_key")));
    let of_key = tickr.get("/v1/order-keys").await.body["data"][0].clone();
    let shown = tickr.job(line[0]).await["execute_at"].clone();
    assert_eq!((&of_key["head"]["id"], &of_key["head"]["since"]), (&json!(line[0]), &shown), "{of_key:#}");
    tickr.assert_sound().await;
    // The next one is at the head when that one is cancelled, and finds no room either.
    tickr.post(&format!("/v1/jobs/{}/cancel", line[0]), json!({})).await;
    eventually("the next one is parked", || async { (code(line[1]).await == json!("limit_reached")).then_some(()) })
        .await;
    tickr.assert_sound().await;
    tickr.post(&format!("/v1/jobs/{first}/cancel"), json!({})).await;
    tickr.until_idle().await;
    assert_eq!(calls.most("a"), 1);
    let overtaken = "SELECT COUNT(*) FROM attempts a JOIN attempts b ON b.started_at > a.started_at AND b.job_id < a.job_id \
         WHERE a.verdict = 'succeeded' AND b.verdict = 'succeeded'";
    assert_eq!(tickr.count(overtaken).await, 0);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'").await, 5);
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

/// Enqueue jobs of a kind that only this runner knows.
async fn enqueue_through(app: &App, jobs: impl Iterator<Item = Value>) {
    let url = format!("http://{}", app.addr());
    let batch = json!({"jobs": jobs.collect::<Vec<_>>()});
    let answer = support::call(&url, Method::POST, "/v1/jobs/batch", "", Some(batch)).await;
    assert_eq!(answer.status, 201, "{:#}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_by_key_holds_after_mysql_stood_still() {
    let calls = Calls::default();
    let tickr = TestApp::start_alone(|_| {}, bystander).await;
    let of_default = |config: &mut tickr::config::Config| config.queues = vec!["default".to_owned()];
    let runners = [
        tickr.another_with(of_default, calls.registry()).await,
        tickr.another_with(of_default, calls.registry()).await,
    ];
    set_and_wait(&tickr, "l", json!({"concurrency": 2})).await;
    enqueue_through(&runners[0], (0..100).map(|n| job(if n % 2 == 0 { "a" } else { "b" }, 50))).await;
    tickr.until_count("SELECT COUNT(*) > 30 FROM attempts", 1).await;
    // Longer than the leases, the waits for locks and the time for which a slot is kept.
    tickr.services().mysql().pause().unwrap();
    tokio::time::sleep(Duration::from_secs(18)).await;
    tickr.services().mysql().resume().unwrap();
    tickr.until_idle().await;
    assert_eq!((calls.most("a"), calls.most("b")), (2, 2));
    assert_eq!(tickr.count("SELECT COUNT(DISTINCT job_id) FROM attempts WHERE verdict = 'succeeded'").await, 100);
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    for runner in runners {
        runner.stop(CancellationToken::new()).await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_and_behind_a_backlog_limited_jobs_start_within_their_limit() {
    limited_jobs_behind_a_backlog().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "has the whole size with TICKR_TEST_FULL, which `make test-long` sets"]
async fn without_redis_and_behind_the_whole_backlog_limited_jobs_start_within_their_limit() {
    limited_jobs_behind_a_backlog().await;
}

async fn limited_jobs_behind_a_backlog() {
    let ends = Arc::new(Semaphore::new(0));
    let calls = Calls { ends: Some(Arc::clone(&ends)), ..Calls::default() };
    let tickr = TestApp::start_alone(|_| {}, |config| config.queues = vec!["other".to_owned()]).await;
    let of_default = |config: &mut tickr::config::Config| config.queues = vec!["default".to_owned()];
    let runners = [
        tickr.another_with(of_default, calls.registry()).await,
        tickr.another_with(of_default, calls.registry()).await,
    ];
    set_and_wait(&tickr, "l", json!({"concurrency": 2})).await;
    let backlog = if support::is_full() { 200_000 } else { 20_000 };
    Owed { queue: "'elsewhere'", ..Owed::overdue(backlog) }.insert_waiting(&tickr, 1).await;
    tickr.services().redis().kill9().unwrap();
    enqueue_through(&runners[0], (0..40).map(|_| job("a", 5))).await;
    eventually("two jobs run", || async { (calls.most("a") == 2).then_some(()) }).await;
    ends.add_permits(1_000);
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'", 40).await;
    assert_eq!(calls.most("a"), 2);
    Owed::remove(&tickr).await;
    tickr.services().redis().start_again().unwrap();
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    for runner in runners {
        runner.stop(CancellationToken::new()).await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_by_key_holds_in_a_limited_queue_with_drains_deletions_a_pause_and_heavy_readers() {
    let ends = Arc::new(Semaphore::new(10));
    let calls = Calls { ends: Some(Arc::clone(&ends)), ..Calls::default() };
    let tickr = TestApp::start_with(|config| config.queues = vec!["other".to_owned()], calls.registry()).await;
    let of_default = |config: &mut tickr::config::Config| config.queues = vec!["default".to_owned()];
    let runners = [
        tickr.another_with(of_default, calls.registry()).await,
        tickr.another_with(of_default, calls.registry()).await,
    ];
    let operate = async |method: Method, path: &str, body: Option<Value>| {
        let answer = support::call(&tickr.url(""), method, path, "", body).await;
        assert!(matches!(answer.status, 200 | 202), "{path}: {:#}", answer.body);
        answer
    };
    let drain = async |runner: &App, word: &str| {
        let path = format!("/v1/runners/{}/{word}", runner.runner().to_string().replace('/', "%2F"));
        operate(Method::POST, &path, Some(json!({}))).await;
    };
    let until_done = async |jobs: usize| {
        eventually("more jobs are done", || async {
            let done = "SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'";
            (tickr.count(done).await >= i64::try_from(jobs).unwrap()).then_some(())
        })
        .await;
    };
    // Three of the four that the two keys may run at once. Most jobs have the first key.
    operate(Method::PATCH, "/v1/queues/default", Some(json!({"concurrency": 3}))).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 2})).await;
    // Twice as many as may read at the same time.
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let (http, url) = (support::http(), tickr.url("/v1/jobs/count?q=payload.key:a"));
            tokio::spawn(async move {
                loop {
                    let _ = http.get(&url).send().await;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            })
        })
        .collect();

    let accepted = tickr.enqueue_many((0..120).map(|n| job(if n % 5 == 0 { "b" } else { "a" }, 60))).await;
    until_done(10).await;
    drain(&runners[0], "drain").await;
    // The last ones of the batch: all of them wait, as no job ends before both operations are over.
    for action in ["cancel", "delete"] {
        let parked = json!({"action": action, "filter": {"ids": &accepted[80..]}});
        let operation = operate(Method::POST, "/v1/operations", Some(parked)).await.body["id"].clone();
        let path = format!("/v1/operations/{}", operation.as_str().unwrap());
        let over = eventually("the operation is over", || async {
            let operation = tickr.get(&path).await.body;
            (operation["state"] == "done").then_some(operation)
        });
        assert_eq!(over.await["done"], 40, "{action}");
    }
    ends.add_permits(1_000);
    until_done(35).await;
    drain(&runners[0], "resume").await;
    drain(&runners[1], "drain").await;
    operate(Method::POST, "/v1/queues/default/pause", Some(json!({}))).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 0).await;
    operate(Method::POST, "/v1/queues/default/resume", None).await;
    until_done(60).await;
    drain(&runners[1], "resume").await;
    tickr.until_idle().await;
    readers.iter().for_each(tokio::task::JoinHandle::abort);

    tickr.assert_each_ran_once(80).await;
    assert_eq!(calls.most("a"), 2);
    let at_once = "SELECT CAST(MAX(n) AS SIGNED) FROM (SELECT (SELECT COUNT(*) FROM attempts b \
         WHERE b.started_at <= a.started_at AND b.finished_at > a.started_at) n FROM attempts a) x";
    // On a slow machine a third job may never run beside two others.
    assert!((2..=3).contains(&tickr.count(at_once).await), "the limit of the queue");
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    for runner in runners {
        runner.stop(CancellationToken::new()).await;
    }
    tickr.stop().await;
}

/// Set a limit that all jobs share, and one for each key.
async fn two_limits(tickr: &TestApp) {
    let all = json!({"kind": "call", "shared_by": "all", "concurrency": 2});
    let (all, key) = (set_and_wait(tickr, "a-all", all), set_and_wait(tickr, "b-key", json!({"concurrency": 1})));
    tokio::join!(all, key);
}

async fn cancel(tickr: &TestApp, id: JobId) {
    let answer = tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    assert!(matches!(answer.status, 200 | 202), "{:#}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_under_two_limits_keeps_its_place_in_the_lines_of_both() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|_| {}, calls.registry()).await;
    two_limits(&tickr).await;
    let first = tickr.enqueue(job("A", 600_000)).await;
    tickr.until(first, State::Executing).await;
    // Ten jobs have room under the limit of all, and wait for their key. A sweep lets one of them go in a second, which
    // brings it into the other line. So some are in this line until all jobs of other keys have started.
    tickr.enqueue_many((0..10).map(|_| job("A", 1))).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_waits WHERE limit_name = 'b-key'", 10).await;
    let other = tickr.enqueue(job("B", 600_000)).await;
    tickr.until(other, State::Executing).await;
    // Five of them take longer than a busy machine needs to bring a job from one line into the other.
    tickr.enqueue_many((0..12).map(|n| job(&format!("C{n}"), 500))).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_waits WHERE limit_name = 'a-all'", 12).await;
    cancel(&tickr, first).await;
    tickr.until_count("SELECT COUNT(*) FROM owed", 1).await;
    let ended = "SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'";
    assert_eq!(tickr.count(ended).await, 22, "all but the other one");
    cancel(&tickr, other).await;
    tickr.until_idle().await;
    // They were due before those that wait for the limit of all.
    let before = "SELECT COUNT(*) FROM attempts o JOIN job_limit_keys k ON k.job_id = o.job_id JOIN attempts l \
         ON l.started_at > o.started_at JOIN job_limit_keys a ON a.job_id = l.job_id AND a.limit_key = 'A' \
         WHERE k.limit_key LIKE 'C%' AND l.job_id = (SELECT MIN(job_id) FROM job_limit_keys w \
         WHERE w.limit_key = 'A' AND w.job_id > (SELECT MIN(job_id) FROM job_limit_keys f WHERE f.limit_key = 'A'))";
    let before = tickr.count(before).await;
    println!("{before} jobs started before one that was due before them");
    assert!(before <= 5, "{before} jobs started before one that was due before them");
    assert_eq!(calls.most("A"), 1);
    assert!(at_once(&tickr).await <= 2, "the limit of all");
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

/// Return the most attempts that ever ran at the same time, by the ledger.
async fn at_once(tickr: &TestApp) -> i64 {
    let most = "SELECT CAST(MAX(n) AS SIGNED) FROM (SELECT (SELECT COUNT(*) FROM attempts b \
         WHERE b.started_at <= a.started_at AND b.finished_at > a.started_at) n FROM attempts a) x";
    tickr.count(most).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_without_room_leaves_the_slots_of_a_shared_limit_to_the_keys_behind_it() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|_| {}, calls.registry()).await;
    two_limits(&tickr).await;
    let held = tickr.enqueue_many(["x", "y"].map(|key| job(key, 600_000))).await;
    for id in &held {
        tickr.until(*id, State::Executing).await;
    }
    let long = tickr.enqueue(job("A", 600_000)).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 1).await;
    tickr.enqueue_many((0..70).map(|_| job("A", 1))).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_waits WHERE limit_name = 'a-all'", 71).await;
    let other = tickr.enqueue(job("B", 1)).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 72).await;
    // One slot after the other: with two at once, a short job of the flood may start before the long one.
    cancel(&tickr, held[0]).await;
    tickr.until(long, State::Executing).await;
    cancel(&tickr, held[1]).await;
    // A job of the flood that a sweep lets go each second would take more than a minute to get out of the way.
    let began = Instant::now();
    tickr.until(other, State::Completed).await;
    println!("{:?} behind 70 jobs without room", began.elapsed());
    tickr.until_count("SELECT COUNT(*) FROM limit_waits WHERE limit_name = 'b-key'", 70).await;
    cancel(&tickr, long).await;
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'").await, 71);
    assert_eq!(calls.most("A"), 1);
    assert!(at_once(&tickr).await <= 2, "the limit of all");
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_due_time_a_client_puts_off_does_not_start_with_a_faster_rate() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|_| {}, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"rate": {"starts": 1, "period_ms": 40_000, "burst": 0}})).await;
    tickr.enqueue_many((0..5).map(|_| job("a", 1))).await;
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'", 1).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 3).await;
    // The one that was let go, for its turn in 40 seconds.
    let ahead = "SELECT id FROM owed WHERE execute_at < '9999-01-01'";
    let id: uuid::Uuid = sqlx::query_scalar(ahead).fetch_one(&mut tickr.mysql().await).await.unwrap();
    let id = JobId::from_uuid(id);
    let change = Some(json!({"delay_ms": 3_600_000}));
    let answer = support::call(&tickr.url(""), Method::PATCH, &format!("/v1/jobs/{id}"), "", change).await;
    assert_eq!(answer.status, 200, "{:#}", answer.body);
    let due_at = tickr.job(id).await["execute_at"].clone();
    set(&tickr, "l", json!({"rate": {"starts": 100, "period_ms": 1_000}})).await;
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'", 4).await;
    // Each change of settings is followed by two sweeps of all keys.
    for runner in ["one", "two"] {
        set_and_wait(&tickr, runner, json!({"queue": "other", "concurrency": 1})).await;
    }
    let job = tickr.job(id).await;
    let expected = (&json!("waiting"), &Value::Null, &due_at);
    assert_eq!((&job["state"], &job["held"], &job["execute_at"]), expected, "{job:#}");
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 200);
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_put_off_before_its_turn_is_parked_with_its_new_due_time() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|_| {}, calls.registry()).await;
    let rate = |period_ms: u64| json!({"rate": {"starts": 1, "period_ms": period_ms, "burst": 0}});
    // Within a minute, so that the next job of each key is let go.
    set_and_wait(&tickr, "l", rate(55_000)).await;
    tickr.enqueue_many(["a", "b"].map(|key| job(key, 1))).await;
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'", 2).await;
    let ids = tickr.enqueue_many(["a", "b"].map(|key| job(key, 1))).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_slots WHERE kept_until IS NOT NULL", 2).await;

    // Longer than the machine may stand still before both are put off.
    let due_at = chrono::DateTime::from_timestamp_millis(chrono::Utc::now().timestamp_millis() + 10_000).unwrap();
    let answer = tickr.patch(&format!("/v1/jobs/{}", ids[0]), json!({"execute_at": due_at})).await;
    assert_eq!(answer.status, 200, "{:#}", answer.body);
    let reschedule = json!({"action": "reschedule", "filter": {"ids": [ids[1]]}, "execute_at": due_at});
    assert_eq!(tickr.post("/v1/operations", reschedule).await.status, 202);
    // At this time they find no room, and are let go for their turns once more.
    let again =
        "SELECT COUNT(*) FROM limit_holds WHERE released_at > due_at AND due_at > parked_at + INTERVAL 1 SECOND";
    tickr.until_count(again, 2).await;
    // Under this rate their turns are more than a minute ahead, so they stay parked.
    set(&tickr, "l", rate(600_000)).await;
    for id in &ids {
        let parked = eventually("it is parked", || async {
            let job = tickr.job(*id).await;
            (job["held"] == true).then_some(job)
        })
        .await;
        let shown: chrono::DateTime<chrono::Utc> = serde_json::from_value(parked["execute_at"].clone()).unwrap();
        assert_eq!(shown, due_at, "{parked:#}");
    }
    cancel_all(&tickr, ids).await;
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_a_changed_limit_does_not_cover_any_more_go_on() {
    let calls = Calls::default();
    let queues = ["by-queue", "by-kind", "by-key"];
    let served = move |config: &mut Config| config.queues = queues.map(str::to_owned).to_vec();
    let tickr = TestApp::start_with(served, calls.registry()).await;
    // A rate keeps the others parked whatever slots are free.
    let rate = json!({"starts": 1, "period_ms": 3_600_000, "burst": 0});
    let before = [
        json!({"queue": "by-queue", "rate": rate}),
        json!({"queue": "by-kind", "kind": "call", "concurrency": 1}),
        json!({"queue": "by-key", "shared_by": "all", "rate": rate}),
    ];
    for (name, limit) in queues.iter().zip(before) {
        set_and_wait(&tickr, name, limit).await;
    }
    let in_queue = |queue: &str, ms: u64| {
        let mut job = job("a", ms);
        job["queue"] = json!(queue);
        if queue == "by-key" {
            job["limit_key"] = Value::Null;
        }
        job
    };
    let mut held = Vec::new();
    for queue in queues {
        held.push(tickr.enqueue(in_queue(queue, 600_000)).await);
    }
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 3).await;
    tickr.enqueue_many(queues.iter().flat_map(|queue| (0..6).map(move |_| in_queue(queue, 1)))).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 18).await;
    let after = [
        json!({"queue": "elsewhere", "rate": rate}),
        json!({"queue": "by-kind", "kind": "noop", "concurrency": 1}),
        json!({"queue": "by-key", "rate": rate}),
    ];
    for (name, limit) in queues.iter().zip(after) {
        set(&tickr, name, limit).await;
    }
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'", 18).await;
    assert_eq!(
        tickr.count("SELECT COUNT(*) FROM owed WHERE state = 'executing'").await,
        3,
        "those that hold the slots"
    );
    for id in held {
        cancel(&tickr, id).await;
    }
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_set_back_after_a_limit_was_set_holds_no_job_up() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|_| {}, calls.registry()).await;
    // By the clock of the database, the change of the limit lies an hour ahead. It counts after three seconds, in which
    // the machine may stand still.
    eventually("the change of a limit that does not count yet lies ahead", || async {
        set(&tickr, "l", json!({"concurrency": 1})).await;
        tickr.sql("UPDATE limits SET changed_at = changed_at + INTERVAL 1 HOUR WHERE NOT counted").await;
        let ahead = "SELECT COUNT(*) FROM limits WHERE changed_at > UTC_TIMESTAMP(6) + INTERVAL 50 MINUTE";
        if tickr.count(ahead).await == 1 {
            return Some(());
        }
        remove(&tickr, "l").await;
        None
    })
    .await;
    let id = tickr.enqueue(job("a", 1)).await;
    tickr.until(id, State::Completed).await;
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_version_of_a_removed_limit_changes_none_that_has_its_name() {
    let tickr = TestApp::start().await;
    let first = set(&tickr, "l", json!({"concurrency": 1})).await.header("etag").to_owned();
    remove(&tickr, "l").await;
    set(&tickr, "l", json!({"concurrency": 2})).await;
    let put = support::http()
        .put(tickr.url("/v1/limits/l"))
        .header("if-match", &first)
        .json(&json!({"concurrency": 3}))
        .send()
        .await
        .unwrap();
    assert_eq!(put.status().as_u16(), 412);
    assert_eq!(tickr.get("/v1/limits/l").await.body["concurrency"], 2);
    tickr.stop().await;
}

/// Number of parked jobs, and of those that execute.
const PARKED: &str = "SELECT COUNT(*) FROM limit_waits";
const EXECUTING: &str = "SELECT COUNT(*) FROM owed WHERE state = 'executing'";

async fn cancel_all(tickr: &TestApp, ids: impl IntoIterator<Item = JobId>) {
    for id in ids {
        cancel(tickr, id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lowered_limit_holds_for_jobs_that_were_let_go_before() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|config| config.workers = 8, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    let jobs = tickr.enqueue_many((0..40).map(|_| job("a", 600_000))).await;
    tickr.until_count(PARKED, 39).await;
    // No worker is free for the jobs that are let go.
    let fillers = tickr.enqueue_many((0..7).map(|_| json!({"kind": "sleep", "payload": {"ms": 600_000}}))).await;
    tickr.until_count(EXECUTING, 8).await;
    set(&tickr, "l", json!({"concurrency": 40})).await;
    tickr.until_count("SELECT COUNT(*) >= 30 FROM limit_slots WHERE kept_until > UTC_TIMESTAMP(6)", 1).await;
    set(&tickr, "l", json!({"concurrency": 1})).await;
    cancel_all(&tickr, fillers).await;
    tickr.until_count(PARKED, 39).await;
    assert_eq!(calls.most("a"), 1);
    // The next one is let go by the limit of now.
    let mut running = Vec::new();
    for id in &jobs {
        if tickr.job(*id).await["state"] == "executing" {
            running.push(*id);
        }
    }
    assert_eq!(running.len(), 1);
    cancel(&tickr, running[0]).await;
    tickr.until_count(PARKED, 38).await;
    tickr.until_count(EXECUTING, 1).await;
    assert_eq!(calls.most("a"), 1);
    cancel_all(&tickr, jobs.into_iter().filter(|id| *id != running[0])).await;
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_that_ends_lets_jobs_go_by_the_limit_of_now() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
    // A machine that stands still must not end the lease.
    let runner = Runner::start(&tickr, &[("TICKR_WORKERS", "16"), ("TICKR_LEASE", "60s")]);
    runner.base().await;
    set_and_wait(&tickr, "l", json!({"concurrency": 10})).await;
    let long = |ms: u64| json!({"kind": "sleep", "payload": {"ms": ms}, "limit_key": "a"});
    let mut of_suspect = long(600_000);
    of_suspect["delay_ms"] = json!(3_600_000);
    let suspect = tickr.enqueue(of_suspect).await;
    support::make_suspects(&mut tickr.mysql().await, &[suspect]).await;
    tickr.app.broker().run_now(suspect, &Actor::tickr()).await.unwrap();
    tickr.until(suspect, State::Executing).await;
    // Its process has read the limit, which is lowered while nine others run and ten wait.
    let jobs = tickr.enqueue_many((0..19).map(|_| long(600_000))).await;
    tickr.until_count(PARKED, 10).await;
    set(&tickr, "l", json!({"concurrency": 1})).await;
    let (running, waiting): (Vec<JobId>, Vec<JobId>) = {
        let (mut running, mut waiting) = (Vec::new(), Vec::new());
        for id in jobs {
            let executes = tickr.job(id).await["state"] == "executing";
            if executes { &mut running } else { &mut waiting }.push(id);
        }
        (running, waiting)
    };
    assert_eq!((running.len(), waiting.len()), (9, 10));
    cancel_all(&tickr, running).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_slots", 1).await;
    // The suspect itself may have waited a moment for its limit.
    let let_go = format!("SELECT COUNT(*) FROM limit_holds WHERE job_id <> UNHEX('{}')", suspect.uuid().simple());
    assert_eq!(tickr.count(&*let_go).await, 0, "none was let go");
    cancel(&tickr, suspect).await;
    tickr.until(suspect, State::Cancelled).await;
    tickr.until_count(EXECUTING, 1).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_slots WHERE kept_until IS NULL", 1).await;
    assert_eq!(tickr.count(&*let_go).await, 1, "one was let go");
    cancel_all(&tickr, waiting).await;
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    drop(runner);
    tickr.stop().await;
}

/// 1. A process of its own claims a suspect, which is under no limit. The COMMIT is under way for seconds.
/// 2. An operator sets a limit of one. Another runner counts the attempts that run: it sees that of another job alone.
/// 3. The COMMIT is done. The process starts no handler, and gives the job back before it ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_whose_commit_took_long_follows_a_limit_that_was_counted_meanwhile() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let url = proxy.url();
    let environment = [("TICKR_QUEUES", "default"), ("TICKR_LEASE", "30s"), ("TICKR_MYSQL_URL", url.as_str())];
    let runner = Runner::start(&tickr, &environment);
    runner.base().await;
    let long = |queue: &str| json!({"kind": "sleep", "payload": {"ms": 600_000}, "limit_key": "a", "queue": queue});
    let other = tickr.enqueue(long("elsewhere")).await;
    tickr.until(other, State::Executing).await;
    let mut of_suspect = long("default");
    of_suspect["delay_ms"] = json!(3_600_000);
    let suspect = tickr.enqueue(of_suspect).await;
    support::make_suspects(&mut tickr.mysql().await, &[suspect]).await;
    proxy.hold_back("INSERT INTO claim_batches");
    tickr.app.broker().run_now(suspect, &Actor::tickr()).await.unwrap();
    eventually("the claim is held back", || async { proxy.holds_one_back().then_some(()) }).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    proxy.pass_held_back();
    tickr.until_count(PARKED, 1).await;
    assert_eq!(tickr.count(EXECUTING).await, 1);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'interrupted'").await, 1);
    cancel_all(&tickr, [suspect, other]).await;
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    drop(runner);
    tickr.stop().await;
}

/// Lock these rows of `owed` with a session of the test.
async fn lock_owed(session: &mut sqlx::MySqlConnection, ids: &[JobId]) {
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    session.execute("BEGIN").await.unwrap();
    for id in ids {
        let found = sqlx::query("SELECT id FROM owed FORCE INDEX (PRIMARY) WHERE id = ? FOR UPDATE").bind(id.uuid());
        assert!(found.fetch_optional(&mut *session).await.unwrap().is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_waited_for_a_row_follows_a_limit_that_was_set_meanwhile() {
    let calls = Calls::default();
    let patient = |config: &mut Config| (config.workers, config.lease) = (16, Duration::from_secs(60));
    let tickr = TestApp::start_with(patient, calls.registry()).await;
    assert_eq!(tickr.post("/v1/queues/default/pause", json!({})).await.status, 200);
    let jobs = tickr.enqueue_many((0..10).map(|_| job("a", 600_000))).await;
    let mut session = tickr.mysql().await;
    // All of them, because several claims may take the jobs: none may start before the limit, which would count it.
    lock_owed(&mut session, &jobs).await;
    assert_eq!(tickr.post("/v1/queues/default/resume", json!({})).await.status, 200);
    tickr.until_said("UPDATE owed", 1).await;
    // A claim waits for five seconds at most, and the attempts of a limit are counted three to five seconds after it is
    // set. Here they are counted at once: none runs.
    set(&tickr, "l", json!({"concurrency": 1})).await;
    tickr.sql("UPDATE limits SET counted = TRUE").await;
    // The claim that waits is older than the time in which a claim is sure of its limits.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_count(PARKED, 9).await;
    // The handler begins a moment after its claim.
    eventually("one job runs", || async { (calls.most("a") > 0).then_some(()) }).await;
    assert_eq!((calls.most("a"), tickr.count(EXECUTING).await), (1, 1));
    cancel_all(&tickr, jobs).await;
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_the_next_job_of_an_order_key_follows_a_limit_that_was_set_while_it_waited() {
    let calls = Calls { ends: Some(Arc::new(Semaphore::new(0))), ..Calls::default() };
    let tickr = TestApp::start_with(|config| config.workers = 16, calls.registry()).await;
    let ordered = |key: &str, ms: u64, order: &str| {
        let payload = json!({"key": key, "ms": ms});
        json!({"kind": "call", "payload": payload, "limit_key": "a", "order_key": order})
    };
    let ahead = tickr.enqueue_many(["one", "two"].map(|order| ordered("ahead", 1, order))).await;
    for id in ahead {
        tickr.until(id, State::Executing).await;
    }
    let next = tickr.enqueue_many(["one", "two"].map(|order| ordered("next", 600_000, order))).await;
    let mut session = tickr.mysql().await;
    lock_owed(&mut session, &next).await;
    calls.ends.as_ref().unwrap().add_permits(2);
    tickr.until_said("UPDATE owed", 1).await;
    // See the test above.
    set(&tickr, "l", json!({"concurrency": 1})).await;
    tickr.sql("UPDATE limits SET counted = TRUE").await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_count(PARKED, 1).await;
    tickr.until_count(EXECUTING, 1).await;
    // The handler begins a moment after its claim.
    eventually("one job runs", || async { (calls.most("next") > 0).then_some(()) }).await;
    assert_eq!(calls.most("next"), 1);
    cancel_all(&tickr, next).await;
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parked_jobs_of_a_paused_queue_take_no_share_of_a_fair_limit() {
    let calls = Calls::default();
    let queues = |config: &mut Config| {
        config.queues = vec!["default".to_owned(), "mail".to_owned()];
        config.workers = 8;
    };
    let tickr = TestApp::start_with(queues, calls.registry()).await;
    // Their tenants wait for a slow rate of their own when their queue is paused.
    set_and_wait(
        &tickr,
        "fair",
        json!({"fair": true, "rate": {"starts": 1, "period_ms": 600_000}, "overrides":
        {"busy": {"rate": {"starts": 100_000, "period_ms": 1_000}}}}),
    )
    .await;
    let in_mail = |key: usize| {
        let key = format!("tenant-{key}");
        json!({"kind": "call", "payload": {"key": key, "ms": 1}, "limit_key": key, "queue": "mail"})
    };
    let mail = tickr.enqueue_many((0..36).map(|n| in_mail(n / 3))).await;
    tickr.until_count("SELECT COUNT(DISTINCT limit_key) FROM limit_waits", 12).await;
    assert_eq!(tickr.post("/v1/queues/mail/pause", json!({})).await.status, 200);
    let busy = tickr.enqueue_many((0..24).map(|_| job("busy", 600_000))).await;
    eventually_seen("the only key whose jobs may start has nearly all workers", || async {
        let running = tickr.count(EXECUTING).await;
        if running >= 7 { Ok(()) } else { Err(format!("{running} of 8 workers")) }
    })
    .await;
    cancel_all(&tickr, busy).await;
    // One of each tenant has ended.
    for id in mail {
        tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    }
    tickr.until_idle().await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

/// Lock a key of the limit `l` with a session of the test, as a runner that was suspended within a claim.
async fn lock_key(tickr: &TestApp, session: &mut sqlx::MySqlConnection, key: &str) {
    tickr.sql(format!("INSERT IGNORE INTO limit_keys (limit_name, limit_key) VALUES ('l', '{key}')")).await;
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    session.execute("BEGIN").await.unwrap();
    let lock = sqlx::query(
        "SELECT limit_key FROM limit_keys FORCE INDEX (PRIMARY) WHERE limit_name = 'l' AND limit_key = ? FOR UPDATE",
    );
    assert_eq!(lock.bind(key.as_bytes()).fetch_all(session).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_key_holds_up_the_jobs_of_no_other_key() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|config| config.workers = 8, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    let first = tickr.enqueue(job("b", 600_000)).await;
    tickr.until(first, State::Executing).await;
    let second = tickr.enqueue(job("b", 1)).await;
    tickr.until_count(PARKED, 1).await;
    // A runner that was suspended within a claim of the key `a`: it has the key, and a slot that only a sweep frees. The
    // slot of `b` is freed by a sweep alone as well, because the end of its attempt is lost with its runner.
    let orphan = "INSERT INTO limit_slots (limit_name, limit_key, job_id) VALUES ('l', 'a', UNHEX(REPEAT('00', 16)))";
    let mut session = tickr.mysql().await;
    lock_key(&tickr, &mut session, "a").await;
    tickr.sql(orphan).await;
    let id = first.uuid().simple();
    tickr.sql(format!("UPDATE limit_slots SET job_id = UNHEX(REPEAT('11', 16)) WHERE job_id = UNHEX('{id}')")).await;
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    tickr.until(second, State::Completed).await;
    // One wait for a lock is 5 s, and a transaction is repeated eight times.
    pulse.assert_within(Duration::from_secs(12), began, "the other key goes on");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM limit_slots WHERE limit_key = 'a'").await, 1);
    session.execute("ROLLBACK").await.unwrap();
    cancel(&tickr, first).await;
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_parked_job_holds_up_no_other_job_of_its_key_and_no_other_key() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|config| config.workers = 8, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    let running = [tickr.enqueue(job("a", 600_000)).await, tickr.enqueue(job("b", 600_000)).await];
    tickr.until_count(EXECUTING, 2).await;
    let parked = [
        tickr.enqueue(job("a", 1)).await,
        tickr.enqueue(job("a", 1)).await,
        tickr.enqueue(job("a", 1)).await,
        tickr.enqueue(job("b", 1)).await,
    ];
    tickr.until_count(PARKED, 4).await;
    let mut session = tickr.mysql().await;
    lock_owed(&mut session, &parked[..1]).await;
    // The slot of `b` is freed by a sweep alone, because the end of its attempt is lost with its runner.
    let id = running[1].uuid().simple();
    tickr.sql(format!("UPDATE limit_slots SET job_id = UNHEX(REPEAT('11', 16)) WHERE job_id = UNHEX('{id}')")).await;
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    cancel(&tickr, running[0]).await;
    for id in &parked[1..] {
        tickr.until(*id, State::Completed).await;
    }
    // One wait for a lock is 5 s, and a transaction is repeated eight times.
    pulse.assert_within(Duration::from_secs(12), began, "the other jobs go on");
    assert_eq!(tickr.count(PARKED).await, 1);
    session.execute("ROLLBACK").await.unwrap();
    tickr.until(parked[0], State::Completed).await;
    cancel(&tickr, running[1]).await;
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_limit_that_cannot_be_counted_holds_up_the_sweeps_of_no_other_limit() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|config| config.workers = 8, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"kind": "call", "concurrency": 1})).await;
    let sleep = json!({"kind": "sleep", "payload": {"ms": 600_000}, "limit_key": "a"});
    let running = [tickr.enqueue(job("b", 600_000)).await, tickr.enqueue(sleep).await];
    tickr.until_count(EXECUTING, 2).await;
    let parked = tickr.enqueue(job("b", 1)).await;
    tickr.until_count(PARKED, 1).await;
    tickr.sql("INSERT IGNORE INTO limit_keys (limit_name, limit_key) VALUES ('m', 'a')").await;
    let mut session = tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    let locked = session.fetch_all("SELECT * FROM limit_keys WHERE limit_name = 'm' AND limit_key = 'a' FOR UPDATE");
    assert_eq!(locked.await.unwrap().len(), 1);
    set(&tickr, "m", json!({"kind": "sleep", "concurrency": 1})).await;
    tickr.until_said("SELECT limit_name, limit_key FROM limit_keys", 1).await;
    // The slot of `b` is freed by a sweep alone, because the end of its attempt is lost with its runner.
    let id = running[0].uuid().simple();
    tickr.sql(format!("UPDATE limit_slots SET job_id = UNHEX(REPEAT('11', 16)) WHERE job_id = UNHEX('{id}')")).await;
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    tickr.until(parked, State::Completed).await;
    // One wait for a lock is 5 s, and a transaction is repeated eight times.
    pulse.assert_within(Duration::from_secs(12), began, "the other limit is swept");
    assert_eq!(tickr.get("/v1/limits/m").await.body["counted"], false);
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_count("SELECT COUNT(*) FROM limits WHERE name = 'm' AND counted", 1).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM limit_slots WHERE limit_name = 'm'").await, 1);
    cancel_all(&tickr, running).await;
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_slots_of_a_locked_key_hide_no_slot_that_a_sweep_frees() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|config| config.workers = 8, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    let running = tickr.enqueue(job("b", 600_000)).await;
    tickr.until(running, State::Executing).await;
    let parked = tickr.enqueue(job("b", 1)).await;
    tickr.until_count(PARKED, 1).await;
    let mut session = tickr.mysql().await;
    lock_key(&tickr, &mut session, "a").await;
    let slots: Vec<String> = (0..1_100).map(|n| format!("('l', 'a', UNHEX(LPAD('{n}', 32, '0')))")).collect();
    tickr.sql(format!("INSERT INTO limit_slots (limit_name, limit_key, job_id) VALUES {}", slots.join(","))).await;
    // The slot of `b` is freed by a sweep alone, because the end of its attempt is lost with its runner.
    let id = running.uuid().simple();
    tickr.sql(format!("UPDATE limit_slots SET job_id = UNHEX(REPEAT('11', 16)) WHERE job_id = UNHEX('{id}')")).await;
    tickr.until(parked, State::Completed).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM limit_slots WHERE limit_key = 'a'").await, 1_100);
    session.execute("ROLLBACK").await.unwrap();
    cancel(&tickr, running).await;
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_key_holds_up_no_claim_of_another_key_or_without_a_key() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|config| config.workers = 16, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 8})).await;
    let mut session = tickr.mysql().await;
    lock_key(&tickr, &mut session, "a").await;
    let free = || json!({"kind": "call", "payload": {"key": "free", "ms": 1}});
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    for _ in 0..4 {
        // They come together, so that the same claims have jobs of all sorts.
        let jobs = (0..4).flat_map(|_| [job("a", 1), job("b", 1), free()]);
        let jobs = tickr.enqueue_many(jobs).await;
        for (_, id) in jobs.iter().enumerate().filter(|(place, _)| place % 3 != 0) {
            tickr.until(*id, State::Completed).await;
        }
    }
    // Each claim that waited for the key took 5 s at least.
    pulse.assert_within(Duration::from_secs(10), began, "the other jobs go on");
    assert_eq!(calls.most("a"), 0);
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_each_ran_once(48).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_of_a_locked_key_that_end_hold_up_the_ends_of_no_other_key() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|config| config.workers = 16, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 2, "overrides": {"b": {"concurrency": 1}}})).await;
    let running = tickr.enqueue_many((0..2).map(|_| job("a", 600_000))).await;
    tickr.until_count(EXECUTING, 2).await;
    let mut session = tickr.mysql().await;
    lock_key(&tickr, &mut session, "a").await;
    // One after the other, so that each of the two writers of such ends meets the lock.
    for id in running {
        cancel(&tickr, id).await;
        tickr.until(id, State::Cancelled).await;
    }
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    for id in tickr.enqueue_many((0..20).map(|_| job("b", 1))).await {
        tickr.until(id, State::Completed).await;
    }
    // With a sweep for each end, they take a second each.
    pulse.assert_within(Duration::from_secs(10), began, "the ends of the other key");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM limit_slots WHERE limit_key = 'a'").await, 2);
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_another_session_is_making_holds_up_the_jobs_of_no_other_key() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|config| config.workers = 16, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 8})).await;
    // A runner that was suspended while it claimed the first job of the key `a`.
    let mut session = tickr.mysql().await;
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    session.execute("BEGIN").await.unwrap();
    session.execute("INSERT INTO limit_keys (limit_name, limit_key) VALUES ('l', 'a')").await.unwrap();
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    for n in 0..4 {
        // They come together, so that one claim needs a key that is being made, one that is new, and one that is there.
        let new = format!("new-{n}");
        let ids = tickr.enqueue_many(["a", new.as_str(), "b"].map(|key| job(key, 1))).await;
        for id in &ids[1..] {
            tickr.until(*id, State::Completed).await;
        }
    }
    // Each claim that waited for the key took 5 s at least.
    pulse.assert_within(Duration::from_secs(10), began, "the other jobs go on");
    assert_eq!(calls.most("a"), 0);
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_each_ran_once(12).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_the_jobs_of_a_locked_key_hold_up_no_job_behind_them() {
    let tickr = TestApp::start_alone(|_| {}, |config| config.workers = 4).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 50})).await;
    let mut session = tickr.mysql().await;
    lock_key(&tickr, &mut session, "a").await;
    tickr.services().redis().kill9().unwrap();
    let noop = |key: &str| json!({"kind": "noop", "limit_key": key});
    // Far more than one look for due jobs reads.
    tickr.enqueue_many((0..300).map(|_| noop("a"))).await;
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    for _ in 0..3 {
        let behind = tickr.enqueue(noop("b")).await;
        tickr.until(behind, State::Completed).await;
    }
    pulse.assert_within(Duration::from_secs(15), began, "the jobs behind those of the locked key");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts").await, 3);
    // Without Redis, too, the others start when the key is free.
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'").await, 303);
    tickr.services().redis().start_again().unwrap();
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.stop().await;
}

/// A ready list is first in, first out. A job that was let go and went to its tail would wait for all the others. The
/// slot that is kept for it would be lost after five seconds, and so on with the next one.
#[tokio::test(flavor = "multi_thread")]
async fn parked_jobs_start_before_the_jobs_of_their_queue_that_were_due_later() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|config| config.workers = 4, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    let first = tickr.enqueue(job("k", 600_000)).await;
    tickr.until(first, State::Executing).await;
    tickr.enqueue_many((0..12).map(|_| job("k", 100))).await;
    tickr.until_count(PARKED, 12).await;
    let free = json!({"kind": "call", "payload": {"key": "free", "ms": 100}});
    tickr.enqueue_many((0..300).map(|_| free.clone())).await;
    // The runner has come to jobs that were due after the parked ones.
    eventually("jobs without a key run", || async { (calls.now(["free"])[0].ended >= 3).then_some(()) }).await;
    cancel(&tickr, first).await;
    tickr.until_idle().await;
    let before = "SELECT COUNT(*) FROM attempts a LEFT JOIN job_limit_keys k ON k.job_id = a.job_id \
                  WHERE k.job_id IS NULL AND a.started_at < (SELECT MAX(b.started_at) FROM attempts b \
                  JOIN job_limit_keys l ON l.job_id = b.job_id)";
    let before = tickr.count(before).await;
    println!("{before} jobs without a key started before the last parked one");
    // The parked ones follow each other on one worker, in a good second. Meanwhile the others start a hundred.
    assert!(before < 190, "{before} jobs that were due later");
    assert_eq!(calls.most("k"), 1);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'").await, 312);
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.stop().await;
}

/// Before its first sweep, a process knows no share of a fair limit. The jobs of the limit start without slots then, so
/// nothing else would show that the limit is in use.
#[tokio::test(flavor = "multi_thread")]
async fn a_fair_limit_holds_after_a_restart_of_the_only_runner() {
    let tickr = TestApp::start_with(|config| config.workers = 4, Registry::new()).await;
    set_and_wait(&tickr, "fair", json!({"fair": true})).await;
    let tickr = tickr.restart().await;
    let sleep = |key: &str| json!({"kind": "sleep", "payload": {"ms": 100}, "limit_key": key});
    // Four workers need six seconds for them.
    tickr.enqueue_many((0..240).map(|_| sleep("a"))).await;
    tickr.until_count("SELECT COUNT(*) > 110 FROM limit_waits WHERE limit_key = 'a'", 1).await;
    let keys = tickr.get("/v1/limits/fair/keys").await.body;
    assert_eq!(keys["data"][0]["key"], "a", "{keys:#}");
    let other = tickr.enqueue(sleep("b")).await;
    tickr.until(other, State::Completed).await;
    let waiting = tickr.count("SELECT COUNT(*) FROM limit_waits WHERE limit_key = 'a'").await;
    println!("{waiting} jobs of the flood were parked when the other one was done");
    assert!(waiting > 0, "the flood was worked off before");
    tickr.until_idle().await;
    tickr.assert_each_ran_once(241).await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_job_of_a_fair_limit_says_that_its_share_is_used() {
    let ends = Arc::new(Semaphore::new(0));
    let calls = Calls { ends: Some(Arc::clone(&ends)), workers: 4, ..Calls::default() };
    let patient = |config: &mut Config| (config.workers, config.lease) = (4, Duration::from_secs(60));
    let tickr = TestApp::start_with(patient, calls.registry()).await;
    set_and_wait(&tickr, "fair", json!({"fair": true})).await;
    let ids = tickr.enqueue_many((0..60).map(|_| job("a", 1))).await;
    end_until_keys_wait(&tickr, &calls, &ends, 1).await;
    let last = ids[59];
    let text = eventually_seen("the last job is parked", || async {
        let explained = tickr.get(&format!("/v1/jobs/{last}/explain")).await.body;
        if explained["reasons"][0]["code"] == "limit_reached" {
            Ok(explained["summary"].as_str().unwrap().to_owned())
        } else {
            end(&calls, &ends, 1).await;
            Err(format!("{explained:#}"))
        }
    })
    .await;
    assert!(text.contains("its share of the workers is used: "), "{text}");
    assert!(text.contains(" run or are about to start (such as "), "{text}");
    assert!(!text.contains("changed a moment ago"), "{text}");
    ends.add_permits(1_000);
    tickr.until_idle().await;
    tickr.assert_each_ran_once(60).await;
    tickr.stop().await;
}

/// The due time of a job that a rate lets go is its turn, which is later than the due times of all jobs behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_a_rate_keeps_its_place_in_the_line_when_the_slot_that_was_kept_for_it_is_lost() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|config| config.workers = 2, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"rate": {"starts": 10, "period_ms": 1_000}})).await;
    let ids = tickr.enqueue_many((0..60).map(|_| job("a", 1))).await;
    eventually("some have started", || async { (calls.now(["a"])[0].ended >= 8).then_some(()) }).await;
    // All workers are busy for longer than the five seconds for which slots are kept.
    let hold = json!({"kind": "call", "payload": {"key": "free", "ms": 600_000}});
    let held = tickr.enqueue_many((0..2).map(|_| hold.clone())).await;
    eventually("all workers are busy", || async { (calls.now(["free"])[0].running == 2).then_some(()) }).await;
    // Two jobs at a time are on their way. When four are, the first two have lost their slots.
    let let_go = "SELECT COUNT(*) >= 4 FROM owed WHERE state = 'waiting' AND execute_at < '9999-01-01'";
    tickr.until_count(let_go, 1).await;
    cancel_all(&tickr, held).await;
    tickr.until_idle().await;
    let sql = "SELECT job_id FROM attempts ORDER BY started_at";
    let started: Vec<uuid::Uuid> = sqlx::query_scalar(sql).fetch_all(&mut tickr.mysql().await).await.unwrap();
    let places = started.iter().filter_map(|started| ids.iter().position(|id| id.uuid() == *started));
    let places: Vec<usize> = places.collect();
    println!("started in this order: {places:?}");
    let mut furthest = 0;
    for place in &places {
        assert!(furthest < place + 20, "job {place} started after job {furthest}: {places:?}");
        furthest = furthest.max(*place);
    }
    assert_eq!(places.len(), 60);
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn running_jobs_that_a_changed_limit_does_not_cover_any_more_keep_no_slot_of_it() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|_| {}, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"kind": "call", "concurrency": 1})).await;
    let first = tickr.enqueue(job("k", 600_000)).await;
    tickr.until(first, State::Executing).await;
    let slots = "SELECT COUNT(*) FROM limit_slots WHERE kept_until IS NULL";
    tickr.until_count(slots, 1).await;

    set_and_wait(&tickr, "l", json!({"kind": "noop", "concurrency": 1})).await;
    let other = tickr.enqueue(json!({"kind": "noop", "limit_key": "k"})).await;
    tickr.until(other, State::Completed).await;
    assert_eq!(tickr.job(first).await["state"], "executing");

    // Back again, it counts the job that runs.
    set_and_wait(&tickr, "l", json!({"kind": "call", "concurrency": 1})).await;
    tickr.until_count(slots, 1).await;
    let second = tickr.enqueue(job("k", 1)).await;
    tickr.until_count(PARKED, 1).await;
    cancel(&tickr, first).await;
    tickr.until(second, State::Completed).await;
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_limit_that_mysql_refuses_to_count_ends_the_sweeps_of_no_other_limit() {
    let calls = Calls::default();
    let tickr = TestApp::start_with(|_| {}, calls.registry()).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    // The text is too long for its column.
    let refuses = "CREATE TRIGGER refuses BEFORE UPDATE ON limits FOR EACH ROW \
                   SET NEW.kind = IF(NEW.name = 'broken' AND NEW.counted, REPEAT('x', 200), NEW.kind)";
    tickr.sql(refuses).await;
    set(&tickr, "broken", json!({"kind": "noop", "concurrency": 1})).await;
    let began = Instant::now();
    // A limit is counted three seconds after it was set. A few rounds come before that, and a few after it.
    while began.elapsed() < Duration::from_secs(6) {
        // A slot that nothing will free but the sweep.
        tickr
            .sql("INSERT INTO limit_slots (limit_name, limit_key, job_id) VALUES ('l', 'a', UNHEX(REPEAT('00', 16)))")
            .await;
        let short = tickr.enqueue(job("a", 1)).await;
        tickr.until(short, State::Completed).await;
    }
    assert_eq!(tickr.get("/v1/limits/broken").await.body["counted"], false);
    tickr.sql("DROP TRIGGER refuses").await;
    let late = tickr.enqueue(json!({"kind": "noop", "limit_key": "k"})).await;
    tickr.until(late, State::Completed).await;
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.stop().await;
}
