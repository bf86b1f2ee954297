//! Canaries: a release of dead letters in steps goes on only while the released jobs pass, says why it stopped, and
//! survives the death of the runner that steers it. Pauses of bulk operations.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickr::handlers::{Context, Failure, Kind, Outcome, Registry};
use tickr::job::State;
use tokio_util::sync::CancellationToken;

use crate::operations::dead_letters;
use crate::support::browser::{Browser, button, field, heading, link};
use crate::support::program::{command, outcome, tickr as program};
use crate::support::{Runner, TestApp, eventually, short_lease};

/// Number of jobs that replays made.
const REPLAYS: &str = "SELECT COUNT(*) FROM jobs WHERE options LIKE '%replay_of%'";

/// A parcel, which is returned until the test has mended the address.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
struct Parcel {
    number: u32,
    /// Returned for ever.
    #[serde(default)]
    lost: bool,
    /// Returned now, and perhaps not at the next attempt.
    #[serde(default)]
    again: bool,
    /// Delivered before the door is open.
    #[serde(default)]
    early: bool,
    /// Not delivered today.
    #[serde(default)]
    later: bool,
}

impl Kind for Parcel {
    const NAME: &'static str = "parcel";
}

/// The address of all parcels, and the door behind it.
#[derive(Clone)]
struct Address {
    mended: Arc<AtomicBool>,
    /// A parcel that arrives waits until the door is open.
    door: CancellationToken,
}

impl Address {
    fn new() -> Self {
        Self { mended: Arc::default(), door: CancellationToken::new() }
    }

    fn mend(&self) {
        self.mended.store(true, Ordering::SeqCst);
    }

    fn kinds(&self) -> Registry {
        let mut own = Registry::new();
        let address = self.clone();
        own.register(move |parcel: Parcel, _: Context| {
            let address = address.clone();
            async move { address.deliver(parcel).await }
        });
        own
    }

    async fn deliver(&self, parcel: Parcel) -> Outcome {
        if !self.mended.load(Ordering::SeqCst) {
            return Err(Failure::reject("no such address"));
        }
        if !parcel.early {
            self.door.cancelled().await;
        }
        match parcel {
            Parcel { lost: true, .. } => Err(Failure::reject("no such address")),
            Parcel { again: true, .. } => Err(Failure::retry("the door is narrow")),
            Parcel { later: true, .. } => Err(Failure::snooze(Duration::from_secs(3_600), "closed today")),
            Parcel { .. } => Ok(().into()),
        }
    }
}

/// Start a tickr in which these parcels are dead letters of one group, and return the group.
async fn returned(address: &Address, parcels: impl IntoIterator<Item = Value>) -> (TestApp, String) {
    let tickr = TestApp::start_with(|_| {}, address.kinds()).await;
    let jobs = parcels.into_iter().map(|payload| json!({"kind": "parcel", "payload": payload}));
    let count = tickr.enqueue_many(jobs).await.len();
    tickr.until_count("SELECT COUNT(*) FROM dead_letters", i64::try_from(count).unwrap()).await;
    let groups = tickr.get("/v1/dead-letters/groups").await.body;
    let group = groups["data"][0]["fingerprint"].as_str().unwrap().to_owned();
    (tickr, group)
}

async fn release(tickr: &TestApp, group: &str, canary: Value) -> String {
    let body = json!({"action": "replay", "filter": {"fingerprint": group}, "canary": canary});
    let answer = tickr.post("/v1/operations", body).await;
    assert_eq!(answer.status, 202, "{:#}", answer.body);
    format!("/v1/operations/{}", answer.body["id"].as_str().unwrap())
}

async fn until(tickr: &TestApp, path: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    eventually(what, || async {
        let operation = tickr.get(path).await.body;
        holds(&operation).then_some(operation)
    })
    .await
}

/// Wait until a runner has counted the outcomes several times more.
async fn counted_again(tickr: &TestApp, path: &str) -> Value {
    let mut last = tickr.get(path).await.body;
    for _ in 0..4 {
        let before = last["canary"]["counted_at"].clone();
        last = until(tickr, path, "the outcomes are counted again", |now| now["canary"]["counted_at"] != before).await;
    }
    last
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_moves_up_only_when_each_released_job_of_a_step_has_an_outcome() {
    let address = Address::new();
    let (tickr, group) = returned(&address, (0..40).map(|n| json!({"number": n}))).await;
    address.mend();
    let canary = json!({"steps": [{"rate": 50, "jobs": 4}, {"rate": 100, "jobs": 10}, {"rate": 200}]});
    let path = release(&tickr, &group, canary).await;
    until(&tickr, &path, "the first step waits", |now| now["canary"]["awaits_outcomes"] == true).await;
    // The released jobs stand before the door. However often their outcomes are counted, no further job is released.
    let waiting = counted_again(&tickr, &path).await;
    let seen = &waiting["canary"];
    assert_eq!((&seen["step"], &seen["released"], &waiting["done"]), (&json!(1), &json!(4), &json!(4)), "{waiting:#}");
    assert_eq!((&seen["outcomes"]["waiting"], &seen["outcomes"]["passed"]), (&json!(4), &json!(0)), "{waiting:#}");
    assert_eq!(tickr.count(REPLAYS).await, 4);

    address.door.cancel();
    let over = until(&tickr, &path, "the canary is over", |now| now["state"] != "running").await;
    assert_eq!((&over["state"], &over["done"]), (&json!("done"), &json!(40)), "{over:#}");
    let seen = &over["canary"];
    assert_eq!(
        (&seen["step"], &seen["released"], &seen["stopped"]),
        (&json!(3), &json!(26), &json!(false)),
        "{over:#}"
    );
    assert_eq!((&seen["outcomes"]["passed"], &seen["outcomes"]["waiting"]), (&json!(26), &json!(0)), "{over:#}");
    let made = tickr.get(&format!("{path}/made")).await.body;
    assert_eq!((&made["count"], &made["completed"]), (&json!(40), &json!(40)), "it ended with the last outcome");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_of_which_half_fail_again_stops_by_itself_and_says_why() {
    let address = Address::new();
    let parcels = (0..100).map(|n| json!({"number": n, "lost": n % 2 == 0}));
    let (tickr, group) = returned(&address, parcels).await;
    address.mend();
    address.door.cancel();
    let path = release(&tickr, &group, json!({"steps": [{"rate": 10, "jobs": 50}, {"rate": 200}]})).await;
    let over = until(&tickr, &path, "the canary is over", |now| now["state"] != "running").await;
    assert_eq!((&over["state"], &over["canary"]["stopped"]), (&json!("failed"), &json!(true)), "{over:#}");
    let why = over["last_error"].as_str().unwrap();
    assert!(why.starts_with("the canary stopped in step 1 of 2: "), "{why}");
    assert!(why.contains("released jobs failed again") && why.ends_with("the limit is 20 %"), "{why}");
    let outcomes = &over["canary"]["outcomes"];
    assert!(outcomes["failed"].as_u64().unwrap() >= 2 && outcomes["passed"].as_u64().unwrap() >= 2, "{over:#}");
    let done = over["done"].as_i64().unwrap();
    assert!(done < 50, "it stopped within its first step: {over:#}");
    // When the same group is released to the end, the stopped canary has released nothing more.
    let rest = release(&tickr, &group, json!({"steps": [{"rate": 1_000}], "max_failure_pct": 100})).await;
    let rest = until(&tickr, &rest, "the rest is released", |now| now["state"] == "done").await;
    assert_eq!(tickr.count(REPLAYS).await, done + rest["done"].as_i64().unwrap());

    let id = over["id"].as_str().unwrap();
    let acts = tickr.get(&format!("/v1/audit?target={id}")).await.body;
    let stop = &acts["data"][0];
    assert_eq!((&stop["action"], &stop["actor"]), (&json!("operation.stop"), &json!("tickr")), "{acts:#}");
    assert_eq!(stop["detail"]["reason"], why);
    assert_eq!(acts["data"][1]["detail"]["canary"]["max_failure_pct"], 20, "{acts:#}");
    tickr.stop().await;
}

/// Let the first step of four jobs pass while the canary is paused.
async fn paused_behind_its_first_step(tickr: &TestApp, address: &Address, path: &str) {
    until(tickr, path, "the first step waits", |now| now["canary"]["awaits_outcomes"] == true).await;
    let paused = tickr.post(&format!("{path}/pause"), json!({})).await.body;
    assert_eq!((&paused["done"], paused["paused_at"].is_string()), (&json!(4), true), "{paused:#}");
    address.door.cancel();
    tickr.until_idle().await;
}

/// The test writes into the row what a step back of the clock leaves there: a step that began an hour ahead.
#[tokio::test(flavor = "multi_thread")]
async fn a_canary_stops_by_itself_also_when_the_clock_was_set_back_since_its_step_began() {
    let address = Address::new();
    let parcels = (0..60).map(|n| json!({"number": n, "lost": n >= 4}));
    let (tickr, group) = returned(&address, parcels).await;
    address.mend();
    let path = release(&tickr, &group, json!({"steps": [{"rate": 20, "jobs": 4}, {"rate": 20}]})).await;
    paused_behind_its_first_step(&tickr, &address, &path).await;
    tickr
        .sql(
            "UPDATE operations SET canary_state = JSON_SET(canary_state, '$.step', 1, '$.released_before', 4, \
             '$.since', DATE_FORMAT(UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, '%Y-%m-%dT%H:%i:%s.%fZ'))",
        )
        .await;
    assert_eq!(tickr.post(&format!("{path}/resume"), json!({})).await.status, 200);
    let over = until(&tickr, &path, "the canary is over", |now| now["state"] != "running").await;
    assert_eq!((&over["state"], &over["canary"]["stopped"]), (&json!("failed"), &json!(true)), "{over:#}");
    assert!(over["canary"]["outcomes"]["failed"].as_u64().unwrap() >= 5, "{over:#}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs WHERE execute_at > UTC_TIMESTAMP(6)").await, 0, "due at once");
    tickr.until_idle().await;
    tickr.stop().await;
}

/// The test sets the times of the released dead letters ahead, as if the clock had been set back since.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_counts_no_job_of_the_one_before_when_the_clock_was_set_back_between_them() {
    let address = Address::new();
    let (tickr, group) = returned(&address, (0..40).map(|n| json!({"number": n}))).await;
    address.mend();
    let path = release(&tickr, &group, json!({"steps": [{"rate": 50, "jobs": 4}, {"rate": 200}]})).await;
    paused_behind_its_first_step(&tickr, &address, &path).await;
    tickr.sql("UPDATE dead_letters SET since = since + INTERVAL 1 HOUR WHERE operation IS NOT NULL").await;
    assert_eq!(tickr.post(&format!("{path}/resume"), json!({})).await.status, 200);
    let over = until(&tickr, &path, "the canary is over", |now| now["state"] != "running").await;
    assert_eq!((&over["state"], &over["done"]), (&json!("done"), &json!(40)), "{over:#}");
    let seen = &over["canary"];
    assert_eq!((&seen["released"], &seen["outcomes"]["passed"]), (&json!(36), &json!(36)), "{over:#}");
    tickr.stop().await;
}

/// A canary counts outcomes by the dead letters that it released and by the new jobs.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_whose_outcomes_a_canary_counts_are_not_removed_before_its_next_step() {
    let address = Address::new();
    let parcels = (0..6).map(|n| json!({"number": n, "early": n == 0}));
    let (tickr, group) = returned(&address, parcels).await;
    address.mend();
    let path = release(&tickr, &group, json!({"steps": [{"rate": 50, "jobs": 2}, {"rate": 100}]})).await;
    let seen = until(&tickr, &path, "one of the first step has passed", |now| {
        let outcomes = &now["canary"]["outcomes"];
        (&outcomes["passed"], &outcomes["waiting"]) == (&json!(1), &json!(1))
    })
    .await;
    // Of the first step, the failed jobs and the new job that has completed.
    let delete = json!({"action": "delete", "filter": {"q": "kind:parcel dead_letter:replayed"}});
    let passed = json!({"action": "delete", "filter": {"q": "kind:parcel state:completed"}});
    for (body, skipped) in [(delete.clone(), 2), (passed, 1)] {
        let deleted = tickr.post("/v1/operations", body).await.body;
        let deleted = format!("/v1/operations/{}", deleted["id"].as_str().unwrap());
        let deleted = until(&tickr, &deleted, "the delete is over", |now| now["state"] == "done").await;
        assert_eq!((&deleted["done"], &deleted["skipped"]), (&json!(0), &json!(skipped)), "{deleted:#}");
    }
    let still = counted_again(&tickr, &path).await;
    assert_eq!((&still["canary"]["step"], &still["done"]), (&json!(1), &json!(2)), "{still:#}");
    assert_eq!(still["canary"]["outcomes"], seen["canary"]["outcomes"], "{still:#}");

    address.door.cancel();
    until(&tickr, &path, "the canary is over", |now| now["state"] == "done").await;
    let deleted = tickr.post("/v1/operations", delete).await.body;
    let deleted = format!("/v1/operations/{}", deleted["id"].as_str().unwrap());
    let deleted = until(&tickr, &deleted, "the last delete is over", |now| now["state"] == "done").await;
    assert_eq!(deleted["done"], 6, "{deleted:#}");
    tickr.stop().await;
}

/// A runner looks at the newest released jobs alone when it counts outcomes.
#[tokio::test(flavor = "multi_thread")]
async fn a_canary_ends_only_when_the_oldest_of_thousands_of_jobs_has_an_outcome_too() {
    let tickr = TestApp::start_with(|config| config.workers = 8, Registry::new()).await;
    // The oldest dead letter is one of a queue that no runner serves.
    let parked = "UPDATE jobs SET queue = 'parked' ORDER BY id LIMIT 1; \
                  INSERT INTO tallies (lane, queue, kind, state, n) VALUES (0, 'parked', 'noop', 'failed', 1)";
    tickr.sql(format!("{}; {parked}", dead_letters(4_100).replace("'parked'", "'default'"))).await;
    let path = release(&tickr, "0123456789abcdef", json!({"steps": [{"rate": 1_000}]})).await;
    // One after the other, because a busy machine needs longer for all of them than a test waits for one event.
    for completed in [500, 1_000, 1_500, 2_000, 2_500, 3_000, 3_500, 4_000, 4_099] {
        eventually(&format!("{completed} jobs have completed"), || async {
            let sql = "SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'";
            (tickr.count(sql).await >= completed).then_some(())
        })
        .await;
    }
    let still = counted_again(&tickr, &path).await;
    assert_eq!((&still["state"], &still["done"]), (&json!("running"), &json!(4_100)), "{still:#}");
    assert_eq!(still["canary"]["awaits_outcomes"], true, "{still:#}");
    let cancelled = json!({"action": "cancel", "filter": {"queue": "parked"}});
    assert_eq!(tickr.post("/v1/operations", cancelled).await.status, 202);
    until(&tickr, &path, "the canary is over", |now| now["state"] == "done").await;
    tickr.stop().await;
}

/// Jobs with many attempts would otherwise keep a canary going that fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attempt_of_a_released_job_counts_as_a_failure_until_the_job_passes() {
    let address = Address::new();
    let parcels = (0..60).map(|n| json!({"number": n, "again": true}));
    let (tickr, group) = returned(&address, parcels).await;
    address.mend();
    address.door.cancel();
    let path = release(&tickr, &group, json!({"steps": [{"rate": 20, "jobs": 30}, {"rate": 200}]})).await;
    let over = until(&tickr, &path, "the canary is over", |now| now["state"] != "running").await;
    assert_eq!((&over["state"], &over["canary"]["stopped"]), (&json!("failed"), &json!(true)), "{over:#}");
    let outcomes = &over["canary"]["outcomes"];
    assert_eq!(outcomes["failed"], 0, "no job has failed for good: {over:#}");
    assert!(outcomes["retrying"].as_u64().unwrap() >= 5, "{over:#}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_attempt_is_no_failure_when_its_job_is_put_off_afterwards() {
    let address = Address::new();
    let (tickr, group) = returned(&address, (0..6).map(|n| json!({"number": n, "early": true, "later": true}))).await;
    address.mend();
    assert_eq!(tickr.post("/v1/queues/default/pause", json!({})).await.status, 200);
    let path = release(&tickr, &group, json!({"steps": [{"rate": 50, "jobs": 6}, {"rate": 200}]})).await;
    tickr.until_count(REPLAYS, 6).await;
    // The runner of the first attempts has died, and the second attempts are put off.
    tickr
        .sql(
            "INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict) \
             SELECT id, 1, 1, 'gone/1-abcdef', execute_at, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 'lost' FROM owed",
        )
        .await;
    tickr.sql("UPDATE owed SET state = 'retrying', attempt = 1, losses = 1").await;
    assert_eq!(tickr.post("/v1/queues/default/resume", json!({})).await.status, 200);
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE verdict = 'snoozed'", 6).await;
    let seen = counted_again(&tickr, &path).await;
    let outcomes = &seen["canary"]["outcomes"];
    assert_eq!((&seen["state"], &outcomes["waiting"]), (&json!("running"), &json!(6)), "{seen:#}");
    assert_eq!((&outcomes["retrying"], &outcomes["failed"]), (&json!(0), &json!(0)), "{seen:#}");
    tickr.stop_broken("attempts that never were").await;
}

/// The next runner goes on in the step in which the first one died, and releases no job twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_canary_survives_the_death_of_the_runner_that_steers_it() {
    let tickr = TestApp::start_with(short_lease, Registry::new()).await;
    // More than the first two steps release.
    tickr.sql(dead_letters(300).replace("'parked'", "'default'")).await;
    let group = "0123456789abcdef";
    let mut runner = Runner::start(&tickr, &[]);
    runner.base().await;
    let pid = format!("/{}-", runner.pid());
    // The killed runner takes the jobs along that it executes, and these have one attempt.
    let steps = json!([{"rate": 20, "jobs": 10}, {"rate": 50, "jobs": 200}, {"rate": 500}]);
    let canary = json!({"steps": steps, "max_failure_pct": 100});
    let path = loop {
        let path = release(&tickr, group, canary.clone()).await;
        let taken = until(&tickr, &path, "a runner has taken it", |now| now["runner"].is_string()).await;
        if taken["runner"].as_str().unwrap().contains(&pid) {
            break path;
        }
        // The runner of the test's own process was first, so try again.
        tickr.post(&format!("{path}/cancel"), json!({})).await;
    };
    let seen = until(&tickr, &path, "the second step is under way", |now| {
        now["canary"]["step"] == 2 && now["canary"]["released"].as_u64() > Some(20)
    })
    .await;
    runner.kill9();
    assert_eq!(seen["state"], "running", "{seen:#}");
    let steps = RefCell::new(Vec::new());
    let over = eventually("the canary is over", || async {
        let now = tickr.get(&path).await.body;
        steps.borrow_mut().push(now["canary"]["step"].as_u64().unwrap());
        (now["state"] != "running").then_some(now)
    })
    .await;
    let steps = steps.into_inner();
    assert_eq!((&over["state"], &over["canary"]["step"]), (&json!("done"), &json!(3)), "{over:#}");
    assert!(steps.is_sorted() && steps[0] == 2, "it went on where it was: {steps:?}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM dead_letters WHERE standing = 'replayed'").await, 300);
    assert_eq!(tickr.count("SELECT COUNT(DISTINCT replayed_as) FROM dead_letters").await, 300);
    assert_eq!(tickr.count(REPLAYS).await, 300);
    assert_eq!(tickr.count("SELECT CAST(SUM(done) AS SIGNED) FROM operations").await, 300);
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_operation_changes_no_job_until_it_is_resumed() {
    let address = Address::new();
    let (tickr, group) = returned(&address, (0..60).map(|n| json!({"number": n}))).await;
    address.mend();
    address.door.cancel();
    let start = json!({"action": "replay", "filter": {"fingerprint": group}, "rate": 10});
    let begun = tickr.post("/v1/operations", start.clone()).await.body;
    let path = format!("/v1/operations/{}", begun["id"].as_str().unwrap());
    until(&tickr, &path, "it is under way", |now| now["done"].as_u64() > Some(2)).await;
    let paused = tickr.post(&format!("{path}/pause"), json!({})).await;
    assert_eq!((paused.status, &paused.body["state"]), (200, &json!("running")), "{:#}", paused.body);
    assert!(paused.body["paused_at"].is_string() && paused.body["paused_by"].is_string(), "{:#}", paused.body);
    assert_eq!(paused.body["runner"], Value::Null, "{:#}", paused.body);
    let again = tickr.post(&format!("{path}/pause"), json!({})).await;
    assert_eq!((again.status, &again.body["paused_at"]), (200, &paused.body["paused_at"]), "{:#}", again.body);
    let second = tickr.post("/v1/operations", start).await;
    assert_eq!((second.status, second.code()), (409, "release_running"), "a paused release holds its group");
    // When a runner has carried out another operation, it has looked for free ones, and left the paused one alone.
    let other = tickr.post("/v1/operations", json!({"action": "cancel", "filter": {"kind": "noop"}})).await.body;
    let other = format!("/v1/operations/{}", other["id"].as_str().unwrap());
    until(&tickr, &other, "another operation is over", |now| now["state"] == "done").await;
    let still = tickr.get(&path).await.body;
    assert_eq!(still["done"], paused.body["done"], "{still:#}");
    assert_eq!(tickr.count(REPLAYS).await, still["done"].as_i64().unwrap());

    let resumed = tickr.post(&format!("{path}/resume"), json!({})).await;
    assert_eq!((resumed.status, &resumed.body["paused_at"]), (200, &Value::Null), "{:#}", resumed.body);
    let over = until(&tickr, &path, "it is over", |now| now["state"] == "done").await;
    assert_eq!(over["done"], 60, "{over:#}");
    assert_eq!(tickr.count(REPLAYS).await, 60);
    for call in ["pause", "resume"] {
        let late = tickr.post(&format!("{path}/{call}"), json!({})).await;
        assert_eq!((late.status, late.code()), (409, "wrong_state"), "{call}");
        let missing = format!("/v1/operations/0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a/{call}");
        assert_eq!(tickr.post(&missing, json!({})).await.status, 404, "{call}");
        assert_eq!(tickr.post(&format!("/v1/operations/x/{call}"), json!({})).await.status, 422, "{call}");
    }
    let acts = tickr.get(&format!("/v1/audit?target={}", begun["id"].as_str().unwrap())).await.body;
    let acts: Vec<&str> = acts["data"].as_array().unwrap().iter().map(|act| act["action"].as_str().unwrap()).collect();
    assert_eq!(acts, ["operation.resume", "operation.pause", "operation.start"]);
    tickr.stop().await;
}

/// A pause takes effect in any step, and the canary goes on in the step that it had.
#[tokio::test(flavor = "multi_thread")]
async fn a_canary_that_was_paused_goes_on_in_its_step_and_one_that_is_cancelled_ends() {
    let address = Address::new();
    let (tickr, group) = returned(&address, (0..30).map(|n| json!({"number": n}))).await;
    address.mend();
    let path = release(&tickr, &group, json!({"steps": [{"rate": 50, "jobs": 5}, {"rate": 100}]})).await;
    until(&tickr, &path, "the first step waits", |now| now["canary"]["awaits_outcomes"] == true).await;
    let paused = tickr.post(&format!("{path}/pause"), json!({})).await.body;
    assert!(paused["paused_at"].is_string(), "{paused:#}");
    // The outcomes that it waited for are there. A paused canary does not begin the next step all the same.
    address.door.cancel();
    tickr.until_idle().await;
    let other = tickr.post("/v1/operations", json!({"action": "cancel", "filter": {"kind": "noop"}})).await.body;
    let other = format!("/v1/operations/{}", other["id"].as_str().unwrap());
    until(&tickr, &other, "another operation is over", |now| now["state"] == "done").await;
    let still = tickr.get(&path).await.body;
    assert_eq!((&still["canary"]["step"], &still["done"]), (&json!(1), &json!(5)), "{still:#}");
    tickr.post(&format!("{path}/resume"), json!({})).await;
    let moved = until(&tickr, &path, "the second step has begun", |now| now["canary"]["step"] == 2).await;
    let cancelled = tickr.post(&format!("{path}/cancel"), json!({})).await;
    if cancelled.status == 200 {
        assert_eq!(cancelled.body["state"], "cancelled", "{moved:#}");
    } else {
        assert_eq!(tickr.get(&path).await.body["state"], "done", "only its end can be earlier");
    }
    tickr.stop().await;
}

/// Binaries from before migration 0053 lease an operation whose `lease_until` is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_binary_that_knows_no_canary_and_no_pause_leaves_both_alone() {
    let address = Address::new();
    let (tickr, group) = returned(&address, (0..20).map(|n| json!({"number": n}))).await;
    address.mend();
    let old = "SELECT COUNT(*) FROM operations WHERE state = 'running' AND lease_until < '9999-01-01'";
    let path = release(&tickr, &group, json!({"steps": [{"rate": 50, "jobs": 5}, {"rate": 100}]})).await;
    until(&tickr, &path, "the first step waits", |now| now["canary"]["awaits_outcomes"] == true).await;
    assert_eq!(tickr.count(old).await, 0, "no lease of a canary ends for such a binary");
    assert_eq!(tickr.post(&format!("{path}/pause"), json!({})).await.status, 200);
    assert_eq!(tickr.count(old).await, 0);
    assert_eq!(tickr.post(&format!("{path}/resume"), json!({})).await.status, 200);
    assert_eq!(tickr.count(old).await, 0);
    assert_eq!(tickr.post(&format!("{path}/cancel"), json!({})).await.status, 200);
    address.door.cancel();

    let plain = json!({"action": "replay", "filter": {"fingerprint": group}, "rate": 1});
    let plain = tickr.post("/v1/operations", plain).await.body;
    let path = format!("/v1/operations/{}", plain["id"].as_str().unwrap());
    assert_eq!(tickr.post(&format!("{path}/pause"), json!({})).await.status, 200);
    assert_eq!(tickr.count(old).await, 0, "no lease of a paused operation ends for such a binary");
    assert_eq!(tickr.post(&format!("{path}/resume"), json!({})).await.status, 200);
    assert_eq!(tickr.count(old).await, 1, "a resumed one may be carried out by any binary");
    assert_eq!(tickr.post(&format!("{path}/cancel"), json!({})).await.status, 200);
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_that_cannot_be_meant_is_refused_and_one_without_fields_has_the_usual_steps() {
    let tickr = TestApp::start().await;
    let group = json!({"fingerprint": "00000000000000ff"});
    let with = |canary: Value| json!({"action": "replay", "filter": group, "canary": canary});
    let step = |rate: u32| json!({"rate": rate});
    for (body, pointers) in [
        (json!({"action": "retry", "filter": group, "canary": {}}), vec!["/canary"]),
        (json!({"action": "replay", "filter": group, "canary": {}, "rate": 5}), vec!["/rate"]),
        (with(json!({"steps": []})), vec!["/canary/steps"]),
        (with(json!({"steps": vec![step(1); 11]})), vec!["/canary/steps"]),
        (with(json!({"steps": [step(0), step(20_000)]})), vec!["/canary/steps/0/rate", "/canary/steps/1/rate"]),
        (with(json!({"steps": [step(20), step(5)]})), vec!["/canary/steps/1/rate"]),
        (with(json!({"steps": [{"rate": 5, "jobs": 0}, step(5)]})), vec!["/canary/steps/0/jobs"]),
        (with(json!({"steps": [{"rate": 5, "jobs": 9}]})), vec!["/canary/steps/0/jobs"]),
        (with(json!({"max_failure_pct": 101})), vec!["/canary/max_failure_pct"]),
        (with(json!({"min_outcomes": 0})), vec!["/canary/min_outcomes"]),
        (with(json!({"colour": "yellow"})), vec!["/canary/colour"]),
    ] {
        let answer = tickr.post("/v1/operations", &body).await;
        assert_eq!((answer.status, answer.code()), (422, "invalid_request"), "{body}");
        assert_eq!(answer.pointers(), pointers, "{body}");
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM operations").await, 0);
    let begun = tickr.post("/v1/operations", with(json!({}))).await.body;
    let steps = json!([{"rate": 5, "jobs": 50}, {"rate": 20, "jobs": 200}, {"rate": 100, "jobs": null}]);
    assert_eq!((&begun["canary"]["steps"], &begun["rate"]), (&steps, &json!(100)), "{begun:#}");
    assert_eq!((&begun["canary"]["max_failure_pct"], &begun["canary"]["min_outcomes"]), (&json!(20), &json!(5)));
    // A group without dead letters has nothing to wait for.
    let path = format!("/v1/operations/{}", begun["id"].as_str().unwrap());
    until(&tickr, &path, "it is over", |now| now["state"] == "done").await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_released_as_a_canary_from_the_command_line() {
    let address = Address::new();
    let parcels = (0..60).map(|n| json!({"number": n, "lost": n >= 12}));
    let (tickr, group) = returned(&address, parcels).await;
    address.mend();
    address.door.cancel();
    let run = async |args: &[&str]| {
        let mut tool = command(&program(), tickr.dir.path(), args);
        tool.env("TICKR_URL", tickr.url(""));
        outcome(tool).await
    };
    let canary = ["--canary", "--step", "20:10", "--step", "20:40", "--step", "100", "--max-failure-pct", "30"];
    let release = [&["dead-letters", "release", &group], &canary[..]].concat();
    let (code, out, err) = run(&[&release[..], &["--dry-run"]].concat()).await;
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.lines().any(|line| line.starts_with("would_change") && line.ends_with(" 60")), "{out}");
    assert_eq!(tickr.count(REPLAYS).await, 0);
    let (code, out, err) = run(&[&release[..], &["--watch", "--reason", "the address was mended"]].concat()).await;
    assert_eq!(code, 1, "{out}{err}");
    assert!(out.contains("step 1 of 3: ") && out.contains(" failed again"), "{out}");
    assert!(err.contains("the canary stopped in step 2 of 3") && err.contains("the limit is 30 %"), "{err}");
    assert!(tickr.count(REPLAYS).await <= 50, "the third step never began");

    let start = ["operations", "start", "replay", "--kind", "parcel", "--canary", "--step", "1", "--json"];
    let (code, out, err) = run(&start).await;
    assert_eq!(code, 0, "{out}{err}");
    let id = serde_json::from_str::<Value>(&out).unwrap()["id"].as_str().unwrap().to_owned();
    let (code, out, _) = run(&["operations", "pause", &id]).await;
    assert!(code == 0 && out.contains("paused_by"), "{out}");
    let (code, out, _) = run(&["operations", "resume", &id]).await;
    assert!(code == 0 && !out.contains("paused_by"), "{out}");
    assert_eq!(run(&["operations", "cancel", &id]).await.0, 0);
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_releases_a_canary_in_the_dashboard_holds_it_and_reads_why_it_stopped() {
    let Some(browser) = Browser::shared().await else { return };
    let address = Address::new();
    let (tickr, group) = returned(&address, (0..40).map(|n| json!({"number": n, "lost": n >= 8}))).await;
    address.mend();
    let page = browser.page(&tickr.url("")).await;
    page.visit(&format!("/dead-letters/{group}")).await;
    page.click(&button("Release as a canary")).await;
    page.reads("Would be").await;
    // Neither a fraction nor a separator of thousands makes steps of its parts.
    for wrong in ["2.5, 20", "1,000"] {
        page.fill(&field("Jobs per second in each step"), wrong).await;
        page.until("it is refused", "document.querySelector('#canary-rates').matches(':invalid')").await;
    }
    page.fill(&field("Jobs per second in each step"), "1, 2, 50").await;
    page.until("it is accepted", "document.querySelector('#canary-rates').matches(':valid')").await;
    page.fill(&field("Reason"), "the address was mended").await;
    page.click(&button("Release as a canary")).await;
    page.reads("1/s").await;
    page.reads("the rest").await;
    page.until(
        "released jobs wait for their outcome",
        "/[1-9]\\d* waiting/.test(document.querySelector('[data-canary]')?.innerText)",
    )
    .await;
    page.click(&link("Details")).await;
    page.has(&heading("Replay")).await;
    page.reads("1 → 2 → 50/s").await;
    page.click(&button("Pause")).await;
    page.reads("The operation is paused").await;
    let path = page.address().await;
    page.follow("/operations").await;
    page.until("the list says so", "document.querySelector('main tr[data-row] .badge')?.innerText === 'paused'").await;
    page.follow(&path).await;
    page.click(&button("Resume")).await;
    page.reads("The operation runs again").await;
    // The first step passes. Of the second one too many fail.
    address.door.cancel();
    page.reads("It stopped by itself").await;
    page.reads("stopped here").await;
    page.reads("the canary stopped in step").await;
    for width in [390, 1_440, 2_560] {
        page.size(width, 900).await;
        assert!(page.overflow().await.is_empty(), "{width} px");
    }
    page.assert_calm();
    drop(page);
    let operation = tickr.get("/v1/operations").await.body["data"][0].clone();
    assert_eq!((&operation["state"], &operation["canary"]["stopped"]), (&json!("failed"), &json!(true)));
    assert_eq!(operation["reason"], "the address was mended");
    tickr.until_idle().await;
    let unfinished = tickr.get(&format!("/v1/jobs/count?state={}", State::Waiting)).await.body;
    assert_eq!(unfinished["count"], 0, "{unfinished:#}");
    tickr.stop().await;
}
