//! Two versions of a binary at once, as in every deploy: a job that one of them cannot read waits for the other, and
//! uses no attempt.

use std::collections::BTreeSet;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickr::broker::Draft;
use tickr::config::Config;
use tickr::handlers::{Context, Kind, Outcome, Output, Registry};
use tickr::job::{JobId, State};
use tokio_util::sync::CancellationToken;

use crate::support::{TestApp, answer, draft, eventually, http};

/// The older version of the kind `parcel`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OldParcel {
    to: String,
    /// A field that the newer version does not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    fax: Option<String>,
}

impl Kind for OldParcel {
    const NAME: &'static str = "parcel";
}

/// The newer version of the kind `parcel`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NewParcel {
    to: String,
    /// A field that the older version does not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    phone: Option<String>,
}

impl Kind for NewParcel {
    const NAME: &'static str = "parcel";
}

fn old() -> Registry {
    let mut registry = Registry::new();
    registry.register(|_: OldParcel, _: Context| async { Output::json("old") });
    registry
}

fn new() -> Registry {
    let mut registry = Registry::new();
    async fn deliver(_: NewParcel, ctx: Context) -> Outcome {
        tokio::time::sleep(Duration::from_millis(5)).await;
        Output::json(&json!({"by": "new", "attempt": ctx.attempt()}))
    }
    registry.register(deliver);
    registry
}

fn parcel(field: &str) -> Value {
    json!({"kind": "parcel", "payload": {"to": "Ada", field: "1"}})
}

/// Return a job with a single attempt, so that one used attempt ends it.
fn once(job: &Value) -> Draft {
    Draft { max_attempts: Some(1), ..draft(job) }
}

async fn accept(app: &tickr::app::App, draft: Draft) -> JobId {
    let job = app.broker().prepare(draft).unwrap();
    match app.broker().enqueue(job).await.unwrap() {
        tickr::broker::Enqueued::Accepted(accepted) => accepted.id,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_version_cannot_read_waits_for_the_other_and_burns_nothing() {
    let few = |config: &mut Config| config.workers = 8;
    let tickr = TestApp::start_with(few, old()).await;
    let newer = tickr.another_with(|_| {}, new()).await;
    let load = tickr.enqueue_many((0..150).map(|_| json!({"kind": "sleep", "payload": {"ms": 5}}))).await;
    let (mut for_new, mut for_old) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        for_new.push(accept(&newer, once(&parcel("phone"))).await);
        for_old.push(accept(&tickr.app, once(&parcel("fax"))).await);
    }
    // The older API cannot know what the newer one accepts.
    assert_eq!(tickr.post("/v1/jobs", parcel("phone")).await.status, 422);
    tickr.until_idle().await;
    let not_done = "SELECT COUNT(*) FROM jobs j WHERE NOT EXISTS (SELECT 1 FROM attempts a WHERE a.job_id = j.id AND \
                    a.end_state = 'completed')";
    assert_eq!(tickr.count(not_done).await, 0);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict NOT IN ('succeeded', 'snoozed')").await, 0);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded' AND burned <> 1").await, 0);
    // Each runner gives a job back once and leaves it alone after that, so the job does not go back and forth.
    let often = "SELECT COALESCE(MAX(n), 0) FROM (SELECT COUNT(*) AS n FROM attempts WHERE verdict = 'snoozed' GROUP BY job_id) a";
    assert_eq!(tickr.count(often).await, 1, "no job was given back, or one was given back more than once");
    for (ids, by) in [(&for_new, newer.runner()), (&for_old, tickr.app.runner())] {
        let mut met = 0;
        for id in ids {
            let job = tickr.job(*id).await;
            let attempts = job["attempts"].as_array().unwrap();
            met += attempts.len() - 1;
            assert_eq!(attempts.last().unwrap()["runner"], by.to_string(), "{job:#}");
            assert_eq!((&job["attempt"], &job["max_attempts"]), (&json!(1), &json!(1)), "{job:#}");
            if let Some(error) = attempts[0]["error"].as_str() {
                assert!(error.contains("unknown field") && error.contains("given back"), "{error}");
            }
        }
        assert!(met > 0, "no job met the runner that cannot read it");
    }
    drop(load);
    tickr.assert_sound().await;
    newer.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

/// Insert a runner of another binary that has just sent its last heartbeat, and takes no job. `editions` is what its
/// row says of its payload types.
async fn ghost(tickr: &TestApp, lease: Duration, editions: Option<&str>) {
    let editions = editions.map_or("NULL".to_owned(), |text| format!("'{text}'"));
    tickr
        .sql(format!(
            "INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, started_at, heartbeat_at, kind_schemas) VALUES \
             ('ghost/1-x', '9.9.9', '[\"parcel\"]', '[\"default\"]', 4, {}, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), {editions})",
            lease.as_millis()
        ))
        .await;
}

/// Make two jobs that the runner of this test cannot read: one because of its payload, one because of its options.
async fn riddles(tickr: &TestApp) -> [JobId; 2] {
    let later = json!({"kind": "parcel", "payload": {"to": "Ada"}, "max_attempts": 1, "delay_ms": 3_600_000});
    let (payload, options) = (tickr.enqueue(later.clone()).await, tickr.enqueue(later).await);
    let hex = |id: JobId| id.to_string().replace('-', "");
    let set = async |id: JobId, column: &str, value: &str| {
        tickr.sql(format!("UPDATE jobs SET {column} = '{value}' WHERE id = UNHEX('{}')", hex(id))).await;
    };
    set(payload, "payload", r#"{"to":"Ada","phone":"1"}"#).await;
    set(options, "options", r#"{"retry":{"base_ms":5,"shape":"odd"},"tags":["kept"]}"#).await;
    for id in [payload, options] {
        assert_eq!(tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await.status, 200);
    }
    [payload, options]
}

#[tokio::test(flavor = "multi_thread")]
async fn when_no_living_version_can_read_a_job_it_fails_within_its_bound_and_says_so() {
    let tickr = TestApp::start_with(|_| {}, old()).await;
    // With no other runner, the jobs fail at once.
    for (id, begins) in riddles(&tickr).await.into_iter().zip(["read the payload as parcel:", "read the stored job:"]) {
        let job = tickr.until(id, State::Failed).await;
        let error = job["last_error"].as_str().unwrap();
        assert_eq!(job["attempts"].as_array().unwrap().len(), 1, "{job:#}");
        assert!(error.starts_with(begins) && error.contains("no living runner of another version"), "{error}");
        assert!(error.contains("unknown field `"), "{error}");
    }
    // A runner of an older binary, with unknown types, dies. The jobs that waited for it fail within its lease plus ten
    // seconds.
    let lease = Duration::from_secs(4);
    ghost(&tickr, lease, None).await;
    let ids = riddles(&tickr).await;
    for id in ids {
        let job = tickr.until_attempts(id, 1).await;
        assert_eq!((&job["attempts"][0]["verdict"], &job["state"]), (&json!("snoozed"), &json!("waiting")), "{job:#}");
    }
    // The API shows a job that cannot run, as far as this binary understands it.
    assert_eq!(tickr.job(ids[1]).await["tags"], json!(["kept"]));
    assert_eq!(tickr.get("/v1/jobs").await.status, 200);
    for id in ids {
        let job = tickr.until(id, State::Failed).await;
        let verdicts: Vec<&Value> =
            job["attempts"].as_array().unwrap().iter().map(|attempt| &attempt["verdict"]).collect();
        assert_eq!(verdicts, ["snoozed", "rejected"], "not claimed while the other runner counted as alive: {job:#}");
    }
    let late = "SELECT CAST(MAX(TIMESTAMPDIFF(MICROSECOND, r.heartbeat_at, d.failed_at)) AS SIGNED) FROM runners r \
                JOIN dead_letters d WHERE r.id = 'ghost/1-x'";
    let late = Duration::from_micros(u64::try_from(tickr.count(late).await).unwrap());
    assert!(late >= lease && late <= lease + Duration::from_secs(10), "{late:?}");

    // A runner with the same types could not read the jobs either.
    let own = "SELECT COUNT(*) FROM runners WHERE kind_schemas LIKE '%\"parcel\"%'";
    assert_eq!(tickr.count(own).await, 1);
    tickr.sql("UPDATE runners g JOIN runners o ON o.id <> g.id SET g.kind_schemas = o.kind_schemas, g.heartbeat_at = UTC_TIMESTAMP(6) WHERE g.id = 'ghost/1-x'").await;
    for id in riddles(&tickr).await {
        let job = tickr.until(id, State::Failed).await;
        assert_eq!(job["attempts"].as_array().unwrap().len(), 1, "{job:#}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_every_living_version_has_refused_fails_though_all_of_them_live() {
    let tickr = TestApp::start_with(|config| config.workers = 2, old()).await;
    let newer = tickr.another_with(|_| {}, new()).await;
    let id = tickr.enqueue(json!({"kind": "parcel", "payload": {"to": "Ada"}, "delay_ms": 3_600_000})).await;
    tickr.sql("UPDATE jobs SET payload = '{\"to\":\"Ada\",\"pigeon\":1}'").await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await.status, 200);
    let job = tickr.until(id, State::Failed).await;
    let attempts = job["attempts"].as_array().unwrap();
    let verdicts: Vec<&Value> = attempts.iter().map(|attempt| &attempt["verdict"]).collect();
    assert_eq!(verdicts, ["snoozed", "rejected"], "{job:#}");
    let runners: BTreeSet<&str> = attempts.iter().map(|attempt| attempt["runner"].as_str().unwrap()).collect();
    assert_eq!(runners.len(), 2, "each of them tried: {job:#}");
    newer.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tick_that_one_version_cannot_fire_is_left_to_the_other_while_it_lives() {
    let lease = Duration::from_secs(4);
    let brief = |config: &mut Config| config.lease = lease;
    let tickr = TestApp::start_with(brief, old()).await;
    let newer = tickr.another_with(brief, new()).await;
    // The first runner leads the ticks.
    let put = async |app: &tickr::app::App, name: &str, kind: &str, payload: Value| {
        // The other version is gone for longer than the grace of the schedule "strict" before it counts as gone.
        let (misfire, grace) = if name == "strict" { ("skip", 1_000) } else { ("all", 60_000) };
        let schedule = json!({
            "cron": "* * * * * *", "kind": kind, "payload": payload, "misfire": misfire, "misfire_grace_ms": grace
        });
        let put = answer(http().put(format!("http://{}/v1/schedules/{name}", app.addr())).json(&schedule)).await;
        assert_eq!(put.status, 201, "{:#}", put.body);
    };
    put(&tickr.app, "plain", "noop", json!({})).await;
    tickr.until_count("SELECT COUNT(*) >= 2 FROM ticks", 1).await;
    put(&newer, "for-new", "parcel", json!({"to": "Ada", "phone": "1"})).await;
    put(&newer, "strict", "parcel", json!({"to": "Ada", "phone": "1"})).await;
    put(&tickr.app, "for-old", "parcel", json!({"to": "Ada", "fax": "1"})).await;
    for name in ["for-new", "strict", "for-old"] {
        let done = format!(
            "SELECT COUNT(*) >= 5 FROM ticks t JOIN attempts a ON a.job_id = t.job_id AND a.end_state = 'completed' \
             WHERE t.schedule = '{name}'"
        );
        tickr.until_count(done, 1).await;
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM ticks WHERE outcome <> 'fired' AND schedule <> 'strict'").await, 0);
    assert_eq!(tickr.delete("/v1/schedules/for-old").await.status, 204);

    // The newer version is gone. It counts as living for its lease, and then the ticks are recorded as skipped.
    let gone = newer.runner().to_string();
    newer.stop(CancellationToken::new()).await;
    tickr.until_count("SELECT COUNT(*) > 0 FROM ticks WHERE schedule = 'for-new' AND cause = 'invalid'", 1).await;
    let early = format!(
        "SELECT COUNT(*) FROM ticks t JOIN runners r ON r.id = '{gone}' WHERE t.cause = 'invalid' \
         AND t.recorded_at < r.heartbeat_at + INTERVAL r.lease_ms * 1000 MICROSECOND"
    );
    assert_eq!(tickr.count(early).await, 0);
    let told = tickr.get("/v1/schedules/for-new/ticks?outcome=skipped&limit=1").await.body;
    assert!(told["data"][0]["reason"].as_str().unwrap().contains("phone"), "{told:#}");
    tickr.until_count("SELECT COUNT(*) > 0 FROM ticks WHERE schedule = 'strict' AND cause = 'invalid'", 1).await;
    let late = "SELECT COUNT(*) FROM ticks WHERE schedule = 'strict' AND cause = 'missed' \
         AND due_at > (SELECT MAX(due_at) FROM ticks WHERE schedule = 'strict' AND outcome = 'fired') \
         AND due_at < (SELECT MIN(due_at) FROM ticks WHERE schedule = 'strict' AND cause = 'invalid')";
    assert_eq!(tickr.count(late).await, 0, "a tick that is left is not late because of that");
    let torn = "SELECT COUNT(*) FROM ticks WHERE schedule = 'plain' AND outcome <> 'fired'";
    assert_eq!(tickr.count(torn).await, 0, "a schedule that is left delays no other");
    for name in ["for-new", "strict", "plain"] {
        assert_eq!(tickr.delete(&format!("/v1/schedules/{name}")).await.status, 204);
    }
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_for_a_worker_of_the_other_version_is_no_fault() {
    let tickr = TestApp::start_with(|_| {}, old()).await;
    let slow = |config: &mut Config| {
        (config.workers, config.queues) = (1, vec!["default".into(), "slow".into()]);
    };
    let newer = tickr.another_with(slow, new()).await;
    let busy = tickr.enqueue(json!({"kind": "sleep", "queue": "slow", "payload": {"ms": 600_000}})).await;
    tickr.until(busy, State::Executing).await;
    let id = accept(&newer, once(&parcel("phone"))).await;
    let job = tickr.until_attempts(id, 1).await;
    assert_eq!((&job["attempts"][0]["verdict"], &job["state"]), (&json!("snoozed"), &json!("waiting")), "{job:#}");
    // The checker looks at jobs that have been due for more than six seconds.
    let late = "SELECT COUNT(*) FROM owed WHERE kind = 'parcel' AND execute_at < UTC_TIMESTAMP(6) - INTERVAL 7 SECOND";
    tickr.until_count(late, 1).await;
    eventually("all workers that could run it are busy", || async {
        let why = tickr.get(&format!("/v1/jobs/{id}/explain")).await.body;
        (why["reasons"][0]["code"] == "workers_busy").then_some(())
    })
    .await;
    tickr.assert_sound().await;
    tickr.post(&format!("/v1/jobs/{busy}/cancel"), json!({})).await;
    tickr.until(id, State::Completed).await;
    newer.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_before_a_rollout_knows_both_directions() {
    let tickr = TestApp::start_with(|_| {}, old()).await;
    let check = async |own: Registry| tickr::app::check_pending(&tickr.config, own, |_| {}).await.unwrap();
    // The same binary is checked again: no runner is of another version.
    let same = check(old()).await;
    assert!(same.kinds.is_empty() && same.to_string().contains("no unfinished jobs"), "{same}");
    // A newer binary is checked: the running runner could not read what it accepts.
    let newer = check(new()).await;
    assert_eq!((newer.kinds.len(), newer.kinds["parcel"].other_versions, newer.failing()), (1, 1, 0), "{newer:?}");
    assert!(newer.to_string().contains("parcel: another version in 1 living runner"), "{newer}");
    // The newer binary could not read two waiting jobs: one because of its payload, one because of the options of a
    // still newer version.
    let later = json!({"kind": "parcel", "payload": {"to": "Ada", "fax": "1"}, "delay_ms": 3_600_000});
    tickr.enqueue(later).await;
    let later = json!({"kind": "noop", "delay_ms": 3_600_000});
    tickr.enqueue(later).await;
    tickr.sql("UPDATE jobs SET options = '{\"retry\":{\"shape\":\"odd\"}}' WHERE kind = 'noop'").await;
    let newer = check(new()).await;
    assert_eq!(newer.failing(), 2, "{newer:?}");
    assert_eq!(newer.kinds["noop"].problems[0].pointer, "/options");
    assert!(newer.to_string().contains("1 would be rejected, once no living runner of another version"), "{newer}");
    // Nothing is known about the types of an older binary.
    tickr.sql("UPDATE runners SET kind_schemas = NULL").await;
    assert_eq!(check(old()).await.kinds["parcel"].other_versions, 1);
    tickr.stop().await;
}
