//! The comparison of failed jobs with jobs that passed: what stands out comes first, noise is not shown, and neither is
//! anything that the schema of a kind calls sensitive.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickr::handlers::{Context, Failure, Kind, Registry};
use tokio_util::sync::CancellationToken;

use crate::operations::dead_letters;
use crate::search::encoded;
use crate::support::TestApp;
use crate::support::browser::{Browser, link};
use crate::support::program::{command, outcome, tickr as program};

/// Number of orders that fail: those with lower numbers.
const FAILED: u32 = 300;
const PASSED: u32 = 600;

/// An order, which fails by its number.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
struct Order {
    number: u32,
    region: String,
    shard: u32,
    #[schemars(extend("writeOnly" = true))]
    token: String,
    /// Lines of the order; orders of old clients have none.
    lines: Option<Vec<u32>>,
}

impl Kind for Order {
    const NAME: &'static str = "order";
}

fn orders() -> Registry {
    let mut own = Registry::new();
    own.register(|order: Order, _: Context| async move {
        if order.number < FAILED { Err(Failure::reject("the region is closed")) } else { Ok(().into()) }
    });
    own
}

/// Return the order with this number. Of the failing ones 95 % are from the region `eu`, of the others 30 %. Shards are
/// spread evenly over both. Of the failing ones 40 % have the tag `night`, of the others a third: samples of this size
/// differ as much by chance.
fn order(number: u32) -> Value {
    let failing = number < FAILED;
    let from_eu = if failing { !number.is_multiple_of(20) } else { number % 10 < 3 };
    let mut payload = json!({
        "number": number,
        "region": if from_eu { "eu" } else { "us" },
        "shard": number % 7,
        "token": if failing { "hush-of-failures" } else { "hush-of-others" },
    });
    if !failing || number.is_multiple_of(2) {
        payload["lines"] = json!([1, 2]);
    }
    let by_night = if failing { number % 5 < 2 } else { number.is_multiple_of(3) };
    let time = if by_night { "night" } else { "day" };
    json!({"kind": "order", "payload": payload, "tags": [time], "max_attempts": 1})
}

/// Start a tickr in which so many orders have failed and passed, and return the group of the failed ones.
async fn ordered(failed: u32, passed: u32) -> (TestApp, String) {
    let tickr = TestApp::start_with(|_| {}, orders()).await;
    tickr.enqueue_many((0..failed).chain(FAILED..FAILED + passed).map(order)).await;
    tickr.until_idle().await;
    let groups = tickr.get("/v1/dead-letters/groups").await.body;
    let group = groups["data"][0]["fingerprint"].as_str().unwrap().to_owned();
    assert_eq!(groups["data"][0]["open"], failed, "{groups:#}");
    (tickr, group)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_most_failures_and_few_successes_have_comes_first_and_noise_is_not_shown() {
    let (tickr, group) = ordered(FAILED, PASSED).await;
    let answer = tickr.get(&format!("/v1/dead-letters/groups/{group}/differences")).await;
    assert_eq!(answer.status, 200, "{:#}", answer.body);
    let sample = |jobs: u32| json!({"jobs": jobs, "payloads": jobs, "capped": false});
    assert_eq!((&answer.body["failed"], &answer.body["passed"]), (&sample(FAILED), &sample(PASSED)));
    let found = answer.body["differences"].as_array().unwrap();
    let first = &found[0];
    assert_eq!((&first["attribute"], &first["value"]), (&json!("payload.region"), &json!("eu")), "{found:#?}");
    assert_eq!((&first["failed"], &first["passed"]), (&json!(285), &json!(180)), "{first:#}");
    assert_eq!((first["failed_share"].as_f64(), first["passed_share"].as_f64()), (Some(0.95), Some(0.3)));
    // The shares of the two samples differ by 0.65. The least difference that agrees with them is smaller.
    assert!((0.5..0.6).contains(&first["at_least"].as_f64().unwrap()), "{first:#}");
    // Half of the failed orders have no lines.
    let second = &found[1];
    assert_eq!((&second["attribute"], &second["lacking"]), (&json!("payload.lines"), &json!(true)), "{found:#?}");
    assert!(second.get("value").is_none() && second["q"].is_null(), "{second:#}");
    assert_eq!(found.len(), 2, "shards, runners and queues are spread alike, tags nearly: {found:#?}");
    assert!(answer.body["compared"].as_u64().unwrap() >= 10, "they were compared: {:#}", answer.body);

    // The words of a value lead to its jobs.
    let words = format!("group:{group} {}", first["q"].as_str().unwrap());
    let counted = tickr.get(&format!("/v1/jobs/count?q={}", words.replace(' ', "%20").replace('"', "%22"))).await.body;
    assert_eq!(counted["count"], 285, "{words}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_choice_of_states_causes_or_errors_leaves_jobs_that_passed_to_compare() {
    let tickr = TestApp::start_with(|_| {}, orders()).await;
    tickr.enqueue_many((0..60).chain(FAILED..FAILED + 60).map(order)).await;
    tickr.until_idle().await;
    let groups = tickr.get("/v1/dead-letters/groups").await.body;
    let group = groups["data"][0]["fingerprint"].as_str().unwrap();
    for words in [
        format!("group:{group}|00000000000000ff"),
        "-state:completed".to_owned(),
        "state:failed|cancelled -deadlock kind:order|noop".to_owned(),
        "error:closed|deadlock -dead_letter:discarded".to_owned(),
    ] {
        let answer = tickr.get(&format!("/v1/jobs/differences?q={}", encoded(&words))).await.body;
        assert_eq!((&answer["failed"]["jobs"], &answer["passed"]["jobs"]), (&json!(60), &json!(60)), "{words}");
        let found = answer["differences"].as_array().unwrap();
        assert!(found.iter().any(|one| one["attribute"] == "payload.region"), "{words}: {answer:#}");
    }
    // A choice of other facts holds for both samples.
    let answer = tickr.get(&format!("/v1/jobs/differences?q={}", encoded("-payload.region:us"))).await.body;
    assert_eq!((&answer["failed"]["jobs"], &answer["passed"]["jobs"]), (&json!(57), &json!(18)), "{answer:#}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_value_that_the_schema_calls_sensitive_is_compared() {
    let (tickr, group) = ordered(60, 60).await;
    // Every failed order has the same token, and no other has it. So it would come first.
    for path in [format!("/v1/dead-letters/groups/{group}/differences"), "/v1/jobs/differences?kind=order".to_owned()] {
        let answer = tickr.get(&path).await.body;
        assert_eq!(answer["differences"][0]["attribute"], "payload.region", "{answer:#}");
        assert!(!answer.to_string().contains("token") && !answer.to_string().contains("hush"), "{answer:#}");
    }
    tickr.stop().await;

    // A runner that does not know the kind does not know its secrets either.
    let tickr = TestApp::start().await;
    tickr.sql(dead_letters(40).replace("'noop'", "'secret'").replace("'{}'", "'{\"pin\": \"1234\"}'")).await;
    // As many jobs passed with another number, so the one of the failed jobs would stand out.
    tickr
        .sql(
            "INSERT INTO jobs (id, kind, queue, priority, max_attempts, payload, execute_at, created_at) \
             SELECT UNHEX(CONCAT(LEFT(HEX(id), 12), '70018000000000000000')), kind, 'passed', priority, max_attempts, \
             '{\"pin\": \"9876\"}', execute_at, created_at FROM jobs; \
             INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict, end_state) \
             SELECT id, 1, 1, 'gone/1-x', execute_at, created_at, created_at, 'succeeded', 'completed' FROM jobs \
             WHERE queue = 'passed'; \
             INSERT INTO tallies (lane, queue, kind, state, n) VALUES (0, 'passed', 'secret', 'completed', 40)",
        )
        .await;
    let answer = tickr.get("/v1/dead-letters/groups/0123456789abcdef/differences").await.body;
    assert_eq!((&answer["failed"]["jobs"], &answer["passed"]["jobs"]), (&json!(40), &json!(40)), "{answer:#}");
    assert!(!answer.to_string().contains("1234") && !answer.to_string().contains("pin"), "{answer:#}");
    tickr.stop().await;
}

/// Keys, tags, hosts, queues and attempts are compared as well, and the other conditions of the filter hold for both
/// samples.
#[tokio::test(flavor = "multi_thread")]
async fn tags_keys_and_attempts_of_failed_jobs_are_compared_within_the_filter() {
    let tickr = TestApp::start().await;
    let job = |n: u32, fails: bool| {
        let mut job = if fails {
            json!({"kind": "fail", "payload": {"permanent": true}, "tags": ["shop", "red"], "limit_key": "tenant-7"})
        } else {
            json!({"kind": "fail", "payload": {"times": 0}, "tags": ["shop"]})
        };
        if n.is_multiple_of(2) && !fails {
            job["limit_key"] = json!("tenant-8");
        }
        job
    };
    tickr.enqueue_many((0..60).map(|n| job(n, true)).chain((0..60).map(|n| job(n, false)))).await;
    // Jobs without the tag of the filter are in neither sample.
    tickr.enqueue_many((0..30).map(|_| json!({"kind": "fail", "payload": {"times": 0}, "tags": ["red"]}))).await;
    tickr.until_idle().await;
    let answer = tickr.get("/v1/jobs/differences?q=tag:shop%20finished:%3C1h").await;
    assert_eq!(answer.status, 200, "{:#}", answer.body);
    assert_eq!((&answer.body["failed"]["jobs"], &answer.body["passed"]["jobs"]), (&json!(60), &json!(60)));
    let found: Vec<(String, Value)> = answer.body["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["attribute"].as_str().unwrap().to_owned(), one["value"].clone()))
        .collect();
    for wanted in [("tag", json!("red")), ("limit_key", json!("tenant-7")), ("payload.permanent", json!(true))] {
        assert!(found.contains(&(wanted.0.to_owned(), wanted.1.clone())), "{wanted:?} {found:#?}");
    }
    assert!(!found.iter().any(|(_, value)| *value == "shop"), "both samples have the tag of the filter: {found:#?}");
    tickr.stop().await;
}

/// The failed jobs expired in a queue that no runner serves. A runner ended them, and executed none.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_expired_before_their_first_attempt_are_blamed_on_no_runner() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
    let other = tickr.another_with(|config| config.queues = vec!["default".into()], Registry::new()).await;
    tickr.enqueue_many((0..20).map(|_| json!({"kind": "noop"}))).await;
    tickr.until_idle().await;
    other.stop(CancellationToken::new()).await;
    tickr.enqueue_many((0..20).map(|_| json!({"kind": "noop", "expires_in_ms": 300}))).await;
    tickr.until_count("SELECT COUNT(*) FROM dead_letters", 20).await;
    let answer = tickr.get("/v1/jobs/differences?kind=noop").await.body;
    assert_eq!((&answer["failed"]["jobs"], &answer["passed"]["jobs"]), (&json!(20), &json!(20)), "{answer:#}");
    let found = answer["differences"].as_array().unwrap();
    let found: Vec<&str> = found.iter().map(|one| one["attribute"].as_str().unwrap()).collect();
    assert_eq!(found, ["attempts"], "{answer:#}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_comparison_looks_at_a_bounded_number_of_jobs_and_says_at_how_many() {
    let tickr = TestApp::start().await;
    tickr.sql(dead_letters(2_300)).await;
    let answer = tickr.get("/v1/dead-letters/groups/0123456789abcdef/differences").await.body;
    assert_eq!((&answer["failed"]["jobs"], &answer["failed"]["capped"]), (&json!(2_000), &json!(true)), "{answer:#}");
    assert_eq!((&answer["passed"]["jobs"], &answer["differences"]), (&json!(0), &json!([])), "{answer:#}");
    assert!(answer["from"].as_str().unwrap().starts_with("2026-05-31T23:55:00"), "{answer:#}");
    for (path, status, code) in [
        ("/v1/dead-letters/groups/00000000000000ff/differences", 404, "not_found"),
        ("/v1/dead-letters/groups/x/differences", 422, "invalid_id"),
        ("/v1/jobs/differences?state=completed", 422, "invalid_request"),
        ("/v1/jobs/differences?colour=red", 422, "invalid_request"),
    ] {
        let answer = tickr.get(path).await;
        assert_eq!((answer.status, answer.code()), (status, code), "{path}");
    }
    let nothing = tickr.get("/v1/jobs/differences?kind=email").await.body;
    assert_eq!((&nothing["failed"]["jobs"], &nothing["from"]), (&json!(0), &Value::Null), "{nothing:#}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_a_group_shows_what_is_different_and_leads_to_the_jobs() {
    let Some(browser) = Browser::shared().await else { return };
    let (tickr, group) = ordered(60, 60).await;
    let page = browser.page(&tickr.url("")).await;
    page.visit(&format!("/dead-letters/{group}")).await;
    for width in [390, 1_440, 2_560] {
        page.size(width, 900).await;
        page.reads("payload.region").await;
        page.reads("95 %").await;
        assert!(page.overflow().await.is_empty(), "{width} px");
    }
    page.reads_not("hush-of-failures").await;
    let mut tool = command(&program(), tickr.dir.path(), &["dead-letters", "compare", &group]);
    tool.env("TICKR_URL", tickr.url(""));
    let (code, out, err) = outcome(tool).await;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(
        out.lines().nth(1).is_some_and(|line| line.trim_start().starts_with("payload.region") && line.contains("95 %")),
        "{out}"
    );
    page.click(&link("eu").near("payload.region")).await;
    page.until("the jobs are listed", "document.querySelectorAll('main tr[data-row]').length > 0").await;
    let address = page.address().await;
    assert!(address.contains("payload.region") && address.contains(&group), "{address}");
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}

/// A number that a JavaScript number would change is shown as the jobs have it.
#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_stands_out_is_shown_as_the_jobs_have_it() {
    let Some(browser) = Browser::shared().await else { return };
    let tickr = TestApp::start_with(|_| {}, orders()).await;
    let of_account = |number: u32| {
        let mut order = order(number);
        order["payload"]["account"] = if number < FAILED { json!(9_007_199_254_740_993_u64) } else { json!(7) };
        order
    };
    tickr.enqueue_many((0..60).chain(FAILED..FAILED + 60).map(of_account)).await;
    tickr.until_idle().await;
    let groups = tickr.get("/v1/dead-letters/groups").await.body;
    let page = browser.page(&tickr.url("")).await;
    page.visit(&format!("/dead-letters/{}", groups["data"][0]["fingerprint"].as_str().unwrap())).await;
    let value =
        "document.querySelector('[data-difference=\"payload.account\"] td[data-label=Value]')?.innerText.trim()";
    page.until("it is exact", &format!("{value} === '9007199254740993'")).await;
    page.assert_calm();
    drop(page);
    tickr.stop().await;
}
