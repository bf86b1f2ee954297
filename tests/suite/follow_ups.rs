//! Follow-up jobs: accepted with the success of the job before them, all or none, with options of their own.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickr::handlers::{Context, FollowUp, Kind, Output, Registry};
use tickr::job::{OnFailure, RetryPolicy, State};

use crate::support::TestApp;

/// A job with this many follow-up jobs.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Parent {
    followers: u32,
    /// Whether its kind refuses the last of them.
    #[serde(default)]
    and_a_bad_one: bool,
}

impl Kind for Parent {
    const NAME: &'static str = "parent";
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Child {
    #[schemars(range(max = 9_999))]
    n: u32,
}

impl Kind for Child {
    const NAME: &'static str = "child";
}

#[tokio::test(flavor = "multi_thread")]
async fn at_most_a_thousand_jobs_follow_one_and_all_are_checked_before_any_is_written() {
    let mut family = Registry::new();
    family.register(|parent: Parent, _: Context| async move {
        let mut output = Output::default();
        for n in 0..parent.followers {
            output = output.then(&Child { n })?;
        }
        if parent.and_a_bad_one { output.then(&Child { n: 10_000 }) } else { Ok(output) }
    });
    family.register(|_: Child, _: Context| async { Ok(().into()) });
    let tickr = TestApp::start_with(|_| {}, family).await;
    let parent = async |payload: Value, state: State| {
        let id = tickr.enqueue_kind("parent", payload).await;
        tickr.until(id, state).await
    };
    let children = async || tickr.count("SELECT COUNT(*) FROM jobs WHERE kind = 'child'").await;
    for (payload, says) in [
        (json!({"followers": 1_001}), "1000 jobs at most"),
        (json!({"followers": 999, "and_a_bad_one": true}), "the follow-up child job cannot be enqueued"),
    ] {
        let job = parent(payload, State::Failed).await;
        assert_eq!(job["attempts"][0]["verdict"], "rejected", "{job:#}");
        assert!(job["last_error"].as_str().unwrap().contains(says), "{job:#}");
        assert_eq!(children().await, 0);
    }
    parent(json!({"followers": 1_000}), State::Completed).await;
    assert_eq!(children().await, 1_000);
    tickr.until_idle().await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

/// Follows itself with jobs of these order keys, for this many generations.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Spread {
    keys: Vec<String>,
    left: u32,
}

impl Kind for Spread {
    const NAME: &'static str = "spread";
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follow_up_job_has_the_options_that_its_handler_gives_it() {
    let mut family = Registry::new();
    family.register(|_: Parent, _: Context| async {
        let child = FollowUp::of(&Child { n: 1 })?
            .queue("mail")
            .delay(Duration::from_secs(60))
            .expires_in(Duration::from_secs(120))
            .priority(2)
            .max_attempts(7)
            .timeout(Duration::from_secs(9))
            .retry(RetryPolicy::table([Duration::from_secs(4)]))
            .order_key("customer-7")
            .on_failure(OnFailure::Skip)
            .limit_key("tenant-7")
            .tag("a")
            .tag("b");
        Output::default().then_job(child)
    });
    family.register(|_: Child, _: Context| async { Ok(().into()) });
    let tickr = TestApp::start_with(|_| {}, family).await;
    let parent = tickr.enqueue_kind("parent", json!({"followers": 1})).await;
    let parent = tickr.until(parent, State::Completed).await;
    let listed = tickr.get("/v1/jobs?q=kind:child").await;
    let child = tickr.job(listed.body["data"][0]["id"].as_str().unwrap().parse().unwrap()).await;
    let shown = |name: &str| child[name].clone();
    assert_eq!((shown("queue"), shown("priority"), shown("max_attempts")), (json!("mail"), json!(2), json!(7)));
    assert_eq!((shown("timeout_ms"), shown("retry")), (json!(9_000), json!({"delays_ms": [4_000], "jitter": 0.0})));
    assert_eq!(
        (shown("order_key"), shown("on_failure"), shown("limit_key")),
        (json!("customer-7"), json!("skip"), json!("tenant-7"))
    );
    assert_eq!(shown("tags"), json!(["a", "b"]));
    let moment = |value: &Value| value.as_str().unwrap().parse::<chrono::DateTime<chrono::Utc>>().unwrap();
    let after = |name: &str| (moment(&child[name]) - moment(&child["created_at"])).num_milliseconds();
    assert!((60_000..=60_001).contains(&after("execute_at")) && (120_000..=120_001).contains(&after("expires_at")));
    // The times count from the moment at which the success was stored.
    assert!((moment(&child["created_at"]) - moment(&parent["finished_at"])).num_milliseconds().abs() < 1_000);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follow_up_job_with_a_wrong_option_rejects_its_parent_and_none_is_written() {
    let mut family = Registry::new();
    family.register(|_: Parent, _: Context| async {
        Output::default().then_all([FollowUp::of(&Child { n: 1 })?, FollowUp::of(&Child { n: 2 })?.queue("No Queue")])
    });
    family.register(|_: Child, _: Context| async { Ok(().into()) });
    let tickr = TestApp::start_with(|_| {}, family).await;
    let parent = tickr.enqueue_kind("parent", json!({"followers": 1})).await;
    let parent = tickr.until(parent, State::Failed).await;
    let error = parent["last_error"].as_str().unwrap();
    assert!(error.starts_with("the follow-up child job cannot be enqueued: the job is not valid: /queue"), "{error}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs WHERE kind = 'child'").await, 0);
    tickr.stop().await;
}

/// A job that is followed by this many with as many bytes each.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Large {
    followers: u32,
    bytes: usize,
    #[serde(default)]
    text: String,
}

impl Kind for Large {
    const NAME: &'static str = "large";
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follow_up_job_that_is_too_large_rejects_its_parent_and_none_is_written() {
    let mut family = Registry::new();
    family.register(|job: Large, _: Context| async move {
        let follower = FollowUp::of(&Large { followers: 0, bytes: 0, text: "x".repeat(job.bytes) })?;
        Output::default().then_all((0..job.followers).map(|_| follower.clone()))
    });
    let tickr = TestApp::start_with(|_| {}, family).await;
    for (followers, bytes, says) in [
        (
            1,
            1 << 20,
            "the follow-up large job cannot be enqueued: the job is not valid: /payload is larger than 1048576",
        ),
        (17, (1 << 20) - 100, "16777216 bytes at most together; let a follow-up job enqueue the rest"),
    ] {
        let parent = tickr.enqueue_kind("large", json!({"followers": followers, "bytes": bytes})).await;
        let parent = tickr.until(parent, State::Failed).await;
        assert_eq!(parent["attempts"][0]["verdict"], "rejected", "{parent:#}");
        assert!(parent["last_error"].as_str().unwrap().contains(says), "{parent:#}");
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 2);
    // What a client may send may follow, too.
    let parent = tickr.enqueue_kind("large", json!({"followers": 1, "bytes": (1 << 20) - 100})).await;
    tickr.until(parent, State::Completed).await;
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 4);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follow_up_job_that_is_due_after_its_expiry_expires_and_its_parent_completes() {
    let mut family = Registry::new();
    family.register(|_: Parent, _: Context| async {
        let (hour, second) = (Duration::from_secs(3_600), Duration::from_secs(1));
        let at = FollowUp::of(&Child { n: 1 })?.at(chrono::Utc::now() + hour).expires_in(second);
        let after = FollowUp::of(&Child { n: 2 })?.delay(hour).expires_in(second);
        Output::default().then_all([at, after])
    });
    family.register(|_: Child, _: Context| async { Ok(().into()) });
    let tickr = TestApp::start_with(|_| {}, family).await;
    let parent = tickr.enqueue_kind("parent", json!({"followers": 2})).await;
    tickr.until(parent, State::Completed).await;
    let listed = tickr.get("/v1/jobs?q=kind:child").await;
    let children = listed.body["data"].as_array().unwrap();
    assert_eq!(children.len(), 2, "{:#}", listed.body);
    for child in children {
        let id = child["id"].as_str().unwrap().parse().unwrap();
        tickr.until(id, State::Failed).await;
        assert_eq!(tickr.verdicts(id).await, ["expired"]);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn follow_up_jobs_of_one_order_key_run_in_the_order_in_which_they_were_added_behind_their_parent() {
    let (mut family, ran) = (Registry::new(), Arc::<Mutex<Vec<u32>>>::default());
    family.register(|parent: Parent, _: Context| async move {
        let children = (1..=parent.followers).map(|n| Ok(FollowUp::of(&Child { n })?.order_key("a")));
        Output::default().then_all(children.collect::<Result<Vec<_>, tickr::Failure>>()?)
    });
    let log = Arc::clone(&ran);
    family.register(move |child: Child, _: Context| {
        log.lock().unwrap().push(child.n);
        async { Ok(().into()) }
    });
    let tickr = TestApp::start_with(|_| {}, family).await;
    let parent = json!({"kind": "parent", "payload": {"followers": 50}, "order_key": "a"});
    // It is accepted with the parent, so it is in front of the follow-up jobs.
    let behind = json!({"kind": "child", "payload": {"n": 0}, "order_key": "a", "delay_ms": 200});
    tickr.enqueue_many([parent, behind]).await;
    tickr.until_idle().await;
    assert_eq!(*ran.lock().unwrap(), (0..=50).collect::<Vec<u32>>());
    tickr.stop().await;
}

/// Two successes, each of which needs the order key of the other one for a follow-up job, wait for each other unless both
/// lock their keys in one order.
#[tokio::test(flavor = "multi_thread")]
async fn follow_up_jobs_with_each_others_order_keys_cause_no_deadlock() {
    let mut family = Registry::new();
    family.register(|spread: Spread, _: Context| async move {
        if spread.left == 0 {
            return Ok(Output::default());
        }
        let next = Spread { left: spread.left - 1, ..spread.clone() };
        let mut keys = spread.keys.clone();
        keys.rotate_left(spread.left as usize % spread.keys.len());
        let follow_up = FollowUp::of(&Spread { keys: keys.clone(), ..next })?.order_key(keys[0].clone());
        Output::default().then_job(follow_up)
    });
    // Servers of its own, because the counter of deadlocks is that of the server.
    let tickr = TestApp::start_alone_with(|config| config.workers = 32, family).await;
    let keys: Vec<String> = (0..6).map(|n| format!("key-{n}")).collect();
    let jobs = (0..90).map(|n: usize| {
        let mut keys = keys.clone();
        keys.rotate_left(n % 6);
        let key = keys[0].clone();
        json!({"kind": "spread", "payload": {"keys": keys, "left": 10}, "order_key": key})
    });
    tickr.enqueue_many(jobs).await;
    // Each job that ends has a successor, so only the attempts tell a busy machine from a deadlock.
    tickr.until_count("SELECT COUNT(*) FROM attempts", 90 * 11).await;
    tickr.until_idle().await;
    tickr.assert_each_ran_once(90 * 11).await;
    let deadlocks: Vec<(String, String)> =
        sqlx::query_as("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'").fetch_all(&mut tickr.mysql().await).await.unwrap();
    // MySQL has no such counter. There a deadlock would only be slow.
    assert!(deadlocks.iter().all(|(_, count)| count == "0"), "{deadlocks:?}");
    tickr.stop().await;
}
