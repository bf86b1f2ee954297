//! Code of a kind that panics: in its payload type, in its check, in its handler, wherever it is called from. A panic
//! costs the attempt or the request, and nothing else.

use reqwest::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use tickr::handlers::{Context, Handler, Kind, Outcome, Output, Problem, Registry};
use tickr::job::{JobId, State};

use crate::support::program::example;
use crate::support::{Runner, TestApp, call, eventually, http};

/// A payload type that panics for some texts, as a hand-written `Deserialize` with an `unwrap` does.
#[derive(Serialize, JsonSchema)]
struct Fragile {
    text: String,
}

impl<'de> Deserialize<'de> for Fragile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Plain {
            text: String,
        }
        let Plain { text } = Plain::deserialize(deserializer)?;
        assert!(text != "boom", "cannot read boom");
        Ok(Self { text })
    }
}

impl Kind for Fragile {
    const NAME: &'static str = "fragile";
}

struct Glass;

impl Handler for Glass {
    type Payload = Fragile;

    fn check(&self, payload: &Fragile) -> Vec<Problem> {
        assert!(payload.text != "crack", "cannot check crack");
        Vec::new()
    }

    async fn run(&self, payload: Fragile, _ctx: Context) -> Outcome {
        match payload.text.strip_prefix("then ") {
            Some(next) => Output::default().then(&Fragile { text: next.to_owned() }),
            None => Output::json(&payload.text),
        }
    }
}

fn glass() -> Registry {
    let mut registry = Registry::new();
    registry.register_handler(Glass);
    registry
}

fn fragile(text: &str) -> Value {
    json!({"kind": "fragile", "payload": {"text": text}, "max_attempts": 1})
}

/// Insert jobs with a payload that makes the type panic. Another binary has accepted them.
async fn booms(tickr: &TestApp, count: usize) -> Vec<JobId> {
    let later = |_| json!({"kind": "fragile", "payload": {"text": "x"}, "max_attempts": 1, "delay_ms": 3_600_000});
    let ids = tickr.enqueue_many((0..count).map(later)).await;
    tickr.sql("UPDATE jobs SET payload = '{\"text\":\"boom\"}' WHERE kind = 'fragile'").await;
    for id in &ids {
        assert_eq!(tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await.status, 200);
    }
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn a_type_that_panics_over_a_payload_costs_the_attempt_and_no_worker() {
    let tickr = TestApp::start_with(|config| config.workers = 2, glass()).await;
    // There are more of these jobs than workers.
    let bad = booms(&tickr, 3).await;
    let good = tickr.enqueue_many((0..10).map(|_| json!({"kind": "noop"}))).await;
    for id in bad {
        let job = tickr.until(id, State::Failed).await;
        let attempt = &job["attempts"][0];
        assert_eq!(attempt["verdict"], "panicked", "{job:#}");
        assert!(attempt["error"].as_str().unwrap().contains("cannot read boom"), "{job:#}");
    }
    for id in good {
        tickr.until(id, State::Completed).await;
    }
    // Both workers are still alive: two jobs run at the same time.
    let naps = tickr.enqueue_many((0..2).map(|_| json!({"kind": "sleep", "payload": {"ms": 1_000}}))).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 2).await;
    for id in naps {
        tickr.until(id, State::Completed).await;
    }
    tickr.assert_sound().await;
    let stopped = tickr.stop().await;
    assert_eq!((stopped.given_back, stopped.abandoned), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_that_panics_refuses_the_request_and_harms_nothing() {
    let tickr = TestApp::start_with(|_| {}, glass()).await;
    for text in ["boom", "crack"] {
        let one = tickr.post("/v1/jobs", fragile(text)).await;
        assert_eq!((one.status, one.code()), (422, "invalid_payload"), "{:#}", one.body);
        let detail = one.body["detail"].as_str().unwrap();
        assert!(detail.contains("the kind fragile panicked") && !detail.contains(text), "{detail}");
        let jobs = json!({"jobs": [{"kind": "noop"}, fragile(text), {"kind": "noop"}]});
        let batch = tickr.post("/v1/jobs/batch", jobs).await;
        assert_eq!((batch.status, batch.code()), (422, "invalid_payload"), "{:#}", batch.body);

        // In an import, the line is answered with its problem and its part is not written, as with any other problem.
        let lines: String = [json!({"kind": "noop"}), fragile(text), json!({"kind": "noop"})]
            .iter()
            .map(|line| format!("{line}\n"))
            .collect();
        let request = http().post(tickr.url("/v1/jobs/import")).header("Content-Type", "application/x-ndjson");
        let response = request.body(lines).send().await.unwrap();
        assert_eq!(response.status(), 200);
        let answered = response.text().await.unwrap();
        let answered: Vec<Value> = answered.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&answered[0]["line"], &answered[0]["problem"]["code"]), (&json!(2), &json!("invalid_payload")));
        let end = answered.last().unwrap();
        assert_eq!((&end["accepted"], &end["lines"], &end["rejected"]), (&json!(0), &json!(3), &json!(1)), "{end:#}");

        let schedule = json!({"cron": "0 0 1 1 *", "kind": "fragile", "payload": {"text": text}});
        let put = tickr.put("/v1/schedules/odd", &schedule).await;
        assert_eq!((put.status, put.code()), (422, "invalid_payload"), "{:#}", put.body);
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 0);
    let fine = tickr.enqueue(fragile("fine")).await;
    tickr.until(fine, State::Completed).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_that_panics_writes_nothing_of_the_payload_into_the_log() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
    let program = example("version_old").await;
    for format in ["text", "json"] {
        let runner = Runner::start_program(&tickr, &program, &[("TICKR_LOG_FORMAT", format)]);
        let refused = call(&runner.base().await, Method::POST, "/v1/jobs", "", Some(fragile("canary"))).await;
        assert_eq!((refused.status, refused.code()), (422, "invalid_payload"), "{:#}", refused.body);
        runner.until_log("the code of a kind panicked while it checked a payload").await;
        let log = runner.log();
        // The place of the panic is told.
        assert!(log.contains("tests/versions/runner.rs:") && !log.contains("canary"), "{log}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follow_up_and_a_replay_whose_check_panics_are_not_written() {
    let tickr = TestApp::start_with(|_| {}, glass()).await;
    let mut parents = Vec::new();
    for text in ["then boom", "then crack"] {
        let id = tickr.enqueue(fragile(text)).await;
        let job = tickr.until(id, State::Failed).await;
        assert_eq!(job["attempts"][0]["verdict"], "panicked", "{job:#}");
        let error = job["last_error"].as_str().unwrap();
        assert!(error.contains("the follow-up fragile job") && error.contains("cannot "), "{error}");
        parents.push(id);
    }
    let fine = tickr.enqueue(fragile("then fine")).await;
    tickr.until(fine, State::Completed).await;
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 4);

    let payload = json!({"payload": {"text": "crack"}});
    let replay = tickr.post(&format!("/v1/jobs/{}/replay", parents[0]), payload).await;
    assert_eq!((replay.status, replay.code()), (422, "invalid_payload"), "{:#}", replay.body);
    // A bulk operation meets one such job among others, and continues.
    tickr.sql("UPDATE jobs SET payload = '{\"text\":\"crack\"}' WHERE payload LIKE '%then boom%'").await;
    tickr.sql("UPDATE jobs SET payload = '{\"text\":\"good\"}' WHERE payload LIKE '%then crack%'").await;
    let body = json!({"action": "replay", "filter": {"kind": "fragile"}});
    let begun = tickr.post("/v1/operations", body).await;
    assert_eq!(begun.status, 202, "{:#}", begun.body);
    let path = format!("/v1/operations/{}", begun.body["id"].as_str().unwrap());
    let over = eventually("the operation is over", || async {
        let operation = tickr.get(&path).await.body;
        (operation["state"] != "running").then_some(operation)
    })
    .await;
    assert_eq!((&over["state"], &over["done"], &over["failed"]), (&json!("done"), &json!(1), &json!(1)), "{over:#}");
    tickr.until_idle().await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_whose_payload_panics_stops_no_other_and_says_so() {
    let tickr = TestApp::start_with(|_| {}, glass()).await;
    let put = async |name: &str, schedule: Value| {
        let put = tickr.put(&format!("/v1/schedules/{name}"), &schedule).await;
        assert_eq!(put.status, 201, "{:#}", put.body);
    };
    // This schedule is always due first.
    put(
        "a-odd",
        json!({"cron": "* * * * * *", "kind": "fragile", "payload": {"text": "x"}, "misfire_grace_ms": 60_000}),
    )
    .await;
    put("b-even", json!({"cron": "* * * * * *", "kind": "noop", "misfire_grace_ms": 60_000})).await;
    tickr.sql("UPDATE schedules SET payload = '{\"text\":\"boom\"}' WHERE name = 'a-odd'").await;
    let fired = "SELECT LEAST(COUNT(*), 3) FROM ticks WHERE schedule = 'b-even' AND job_id IS NOT NULL AND due_at > \
                 (SELECT MIN(due_at) FROM ticks WHERE schedule = 'a-odd' AND cause = 'invalid')";
    tickr.until_count(fired, 3).await;
    let ticks = tickr.get("/v1/schedules/a-odd/ticks").await.body;
    let skipped = ticks["data"].as_array().unwrap().iter().find(|tick| tick["outcome"] == "skipped").unwrap();
    assert!(skipped["reason"].as_str().unwrap().contains("cannot read boom"), "{skipped:#}");
    // A trigger by hand gives the same answer as an enqueue.
    let trigger = tickr.post("/v1/schedules/a-odd/trigger", json!({})).await;
    assert_eq!((trigger.status, trigger.code()), (422, "invalid_payload"), "{:#}", trigger.body);
    for name in ["a-odd", "b-even"] {
        assert_eq!(tickr.delete(&format!("/v1/schedules/{name}")).await.status, 204);
    }
    tickr.until_idle().await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_before_a_rollout_tells_of_a_panic_like_of_any_other_problem() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], glass()).await;
    booms(&tickr, 2).await;
    let found = tickr::app::check_pending(&tickr.config, glass(), |_| {}).await.unwrap();
    let kind = &found.kinds["fragile"];
    assert_eq!((kind.jobs, kind.failing, kind.problems.len()), (2, 2, 1), "{found:?}");
    assert!(kind.problems[0].detail.contains("cannot read boom"), "{found:?}");
    tickr.stop().await;
}
