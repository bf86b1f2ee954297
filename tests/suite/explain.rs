//! The reasons why a job does not run, the forecast, and the check of what a new binary could not read.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use serde_json::{Value, json};
use tickr::config::{Config, KindConfig};
use tickr::handlers::Registry;
use tickr::job::{JobId, State};

use crate::support::program::{command, outcome, tickr as program};
use crate::support::{TestApp, eventually, http};

/// Return the codes of the reasons, in their order.
async fn reasons(tickr: &TestApp, id: JobId) -> Vec<String> {
    let told = tickr.get(&format!("/v1/jobs/{id}/explain")).await;
    assert_eq!(told.status, 200, "{:#}", told.body);
    let reasons = told.body["reasons"].as_array().unwrap();
    assert_eq!(told.body["summary"], reasons[0]["text"]);
    reasons.iter().map(|reason| reason["code"].as_str().unwrap().to_owned()).collect()
}

async fn summary(tickr: &TestApp, id: JobId) -> String {
    tickr.get(&format!("/v1/jobs/{id}/explain")).await.body["summary"].as_str().unwrap().to_owned()
}

/// Send a body with PUT or PATCH.
async fn send(request: reqwest::RequestBuilder, body: Value) {
    let answer = crate::support::answer(request.json(&body)).await;
    assert_eq!(answer.status, 200, "{:#}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_reason_why_a_job_waits_is_told_in_order() {
    let tickr = TestApp::start_with(
        |config| {
            config.queues = vec!["default".into(), "mail".into(), "narrow".into()];
            config.workers = 2;
            // On a busy machine a heartbeat may be late by more than the lease of other tests.
            config.lease = Duration::from_secs(10);
        },
        Registry::new(),
    )
    .await;
    let http = http();

    let later = tickr.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await;
    assert_eq!(reasons(&tickr, later).await, ["not_due"]);
    assert!(summary(&tickr, later).await.starts_with("it is due in 59 m"), "{}", summary(&tickr, later).await);

    let pause = http.post(tickr.url("/v1/queues/mail/pause")).header("tickr-actor", "ada");
    send(pause, json!({"reason": "provider is down"})).await;
    let paused = tickr.enqueue(json!({"kind": "noop", "queue": "mail"})).await;
    assert_eq!(reasons(&tickr, paused).await[0], "queue_paused");
    let why = summary(&tickr, paused).await;
    assert!(why.contains("by anyone (ada): provider is down"), "{why}");

    let lost = tickr.enqueue(json!({"kind": "noop", "queue": "nowhere"})).await;
    assert_eq!(reasons(&tickr, lost).await, ["queue_not_served"]);

    // The job is of a kind that only a stopped runner had.
    tickr.sql(format!("UPDATE jobs SET kind = 'gone' WHERE id = UNHEX(REPLACE('{lost}', '-', ''))")).await;
    tickr
        .sql(format!("UPDATE owed SET kind = 'gone', queue = 'default' WHERE id = UNHEX(REPLACE('{lost}', '-', ''))"))
        .await;
    tickr.sql(format!("UPDATE jobs SET queue = 'default' WHERE id = UNHEX(REPLACE('{lost}', '-', ''))")).await;
    assert_eq!(reasons(&tickr, lost).await[0], "kind_unknown");

    // The job failed, and waits for its next attempt.
    let retry = json!({"base_ms": 3_600_000, "cap_ms": 3_600_000});
    let fails = json!({"kind": "fail", "payload": {"times": 9}, "retry": retry});
    let retrying = tickr.enqueue(fails).await;
    tickr.until(retrying, State::Retrying).await;
    assert_eq!(reasons(&tickr, retrying).await, ["retrying"]);
    let why = summary(&tickr, retrying).await;
    assert!(why.starts_with("attempt 1 of 5 did not succeed: ") && why.contains("the next is due in"), "{why}");

    // Every worker is busy, one queue is at its limit, and other jobs come first.
    send(http.patch(tickr.url("/v1/queues/narrow")), json!({"concurrency": 1})).await;
    let runs = tickr.enqueue(json!({"kind": "sleep", "payload": {"ms": 600_000}, "queue": "narrow"})).await;
    tickr.until(runs, State::Executing).await;
    assert_eq!(reasons(&tickr, runs).await, ["executing"]);
    let ahead = tickr.enqueue(json!({"kind": "noop", "queue": "narrow"})).await;
    let behind = tickr.enqueue(json!({"kind": "noop", "queue": "narrow"})).await;
    assert_eq!(reasons(&tickr, ahead).await, ["queue_full"]);
    assert_eq!(reasons(&tickr, behind).await, ["queue_full", "behind"]);
    let other = tickr.enqueue(json!({"kind": "sleep", "payload": {"ms": 600_000}})).await;
    tickr.until(other, State::Executing).await;
    // Wait until the runner has reported how busy it is.
    let waits = tickr.enqueue(json!({"kind": "noop"})).await;
    // The next heartbeat of the runner writes the truth again.
    eventually("all workers are said to be busy", || async {
        tickr.sql("UPDATE runners SET busy = slots").await;
        (reasons(&tickr, waits).await[0] == "workers_busy").then_some(())
    })
    .await;
    // Its last two runners died while they executed it.
    tickr.sql(format!("UPDATE owed SET losses = 2 WHERE id = UNHEX(REPLACE('{waits}', '-', ''))")).await;
    assert_eq!(reasons(&tickr, waits).await[1], "runs_alone");
    eventually("the runner is said to have stopped", || async {
        tickr.sql("UPDATE runners SET stopped_at = UTC_TIMESTAMP(6)").await;
        (reasons(&tickr, waits).await[0] == "no_runner").then_some(())
    })
    .await;
    tickr.sql("UPDATE runners SET stopped_at = NULL, busy = 0").await;

    tickr.post(&format!("/v1/jobs/{runs}/cancel"), json!({})).await;
    tickr.post(&format!("/v1/jobs/{other}/cancel"), json!({})).await;
    let ended = tickr.until(ahead, State::Completed).await;
    assert_eq!(ended["state"], "completed");
    assert_eq!(reasons(&tickr, ahead).await, ["ended"]);
    assert!(summary(&tickr, ahead).await.contains("completed"));
    assert_eq!(tickr.get(&format!("/v1/jobs/{}/explain", JobId::new())).await.status, 404);
    tickr.stop().await;
}

/// A worker with a lease of five minutes sends a heartbeat every 100 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_runner_counts_as_alive_until_its_own_lease_is_over() {
    let elsewhere = |config: &mut Config| {
        config.queues = vec!["elsewhere".into()];
        config.lease = Duration::from_secs(30);
    };
    let tickr = TestApp::start_with(elsewhere, Registry::new()).await;
    assert_eq!(tickr.put("/v1/kinds/resize", json!({"queue": "pictures"})).await.status, 201);
    for (name, queue, lease_ms) in [("long", "pictures", 300_000), ("short", "thumbs", 10_000)] {
        let worker = json!({"name": name, "kinds": ["resize"], "queues": [queue], "slots": 1, "lease_ms": lease_ms});
        assert_eq!(tickr.post("/v1/workers", worker).await.status, 201);
    }
    let heard = |seconds: u32| {
        format!("UPDATE runners SET heartbeat_at = UTC_TIMESTAMP(6) - INTERVAL {seconds} SECOND WHERE via = 'http'")
    };
    for queue in ["pictures", "thumbs"] {
        assert_eq!(tickr.post(&format!("/v1/queues/{queue}/pause"), json!({})).await.status, 200);
    }
    let waits = tickr.enqueue_kind("resize", json!(1)).await;
    let short = tickr.enqueue(json!({"kind": "resize", "payload": 1, "queue": "thumbs"})).await;

    tickr.sql(heard(15)).await;
    assert_eq!(reasons(&tickr, short).await, ["queue_paused", "queue_not_served"]);
    tickr.sql(heard(90)).await;
    assert_eq!(reasons(&tickr, waits).await, ["queue_paused"]);
    tickr.sql(heard(310)).await;
    assert_eq!(reasons(&tickr, waits).await, ["queue_paused", "queue_not_served"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_forecast_counts_what_becomes_due_hour_by_hour() {
    let tickr = TestApp::start().await;
    let minutes = |minutes: i64| json!({"kind": "noop", "execute_at": Utc::now() + TimeDelta::minutes(minutes)});
    tickr.enqueue_many([30, 40, 90, 90, 90, 60 * 24 + 30].map(minutes)).await;
    let forecast = tickr.get("/v1/forecast").await.body;
    let hours: Vec<u64> =
        forecast["hours"].as_array().unwrap().iter().map(|hour| hour["jobs"].as_u64().unwrap()).collect();
    assert_eq!((hours.len(), &hours[..3], hours.iter().sum::<u64>()), (24, &[2, 3, 0][..], 5));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_forecast_counts_the_ticks_of_active_schedules_hour_by_hour() {
    let tickr = TestApp::start().await;
    let put = async |name: &str, schedule: Value| {
        let put = tickr.put(&format!("/v1/schedules/{name}"), &schedule).await;
        assert_eq!(put.status, 201);
    };
    let soon = Utc::now() + TimeDelta::minutes(90);
    put("hourly", json!({"every_ms": 3_600_000, "anchor": soon, "kind": "noop"})).await;
    put("each-second", json!({"cron": "* * * * * *", "zone": "Europe/Warsaw", "kind": "noop"})).await;
    put("paused", json!({"cron": "* * * * * *", "kind": "noop"})).await;
    put("broken", json!({"cron": "* * * * * *", "kind": "noop"})).await;
    put("yearly", json!({"every_ms": 31_536_000_000_u64, "anchor": soon + TimeDelta::days(3), "kind": "noop"})).await;
    assert_eq!(tickr.post("/v1/schedules/paused/pause", json!({})).await.status, 200);
    tickr.sql("UPDATE schedules SET cron = 'now and then' WHERE name = 'broken'").await;
    // No runner ticks for this kind, so no job is made while the test looks.
    tickr.sql("UPDATE schedules SET kind = 'elsewhere'").await;
    let forecast = tickr.get("/v1/forecast").await;
    assert_eq!(forecast.status, 200, "{:#}", forecast.body);
    let hours = forecast.body["hours"].as_array().unwrap();
    let ticks: Vec<u64> = hours.iter().map(|hour| hour["ticks"].as_u64().unwrap()).collect();
    // The first tick of the hourly schedule is in the second hour, and then there is one in each hour.
    assert_eq!((ticks[0], ticks[1], ticks[23], ticks.iter().sum::<u64>()), (3_600, 3_601, 3_601, 86_400 + 23));
    assert!(hours.iter().all(|hour| hour["more_ticks"] == false && hour["more"] == false));
    assert_eq!(forecast.body["unreadable_schedules"], 1);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_before_a_rollout_names_a_schedule_whose_retry_its_kind_would_refuse() {
    let tickr = TestApp::start().await;
    let schedule = json!({"cron": "0 0 1 1 *", "kind": "sleep", "payload": {"ms": 1}, "retry": {"cap_ms": 2_000}});
    let put = tickr.put("/v1/schedules/capped", &schedule).await;
    assert_eq!(put.status, 201, "{:#}", put.body);
    let mut config = tickr.config.clone();
    let check =
        async |config: &Config| tickr::app::check_pending(config, Registry::new(), |_| {}).await.unwrap().schedules;
    let now = check(&config).await;
    assert_eq!((now.checked, now.failing), (1, 0), "{now:?}");
    // The first delay of the kind is to be longer than the longest one of the schedule.
    let slow = KindConfig { retry_base: Some(Duration::from_secs(5)), ..KindConfig::default() };
    config.kinds.insert("sleep".into(), slow);
    let then = check(&config).await;
    assert_eq!((then.checked, then.failing), (1, 1), "{then:?}");
    let problem = &then.problems[0];
    assert_eq!((problem.schedule.as_str(), problem.pointer.as_deref()), ("capped", Some("/retry/cap_ms")), "{then:?}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_before_a_rollout_lists_what_this_binary_would_reject() {
    let tickr = TestApp::start().await;
    let sleeps = (0..250).map(|_| json!({"kind": "sleep", "payload": {"ms": 1}, "delay_ms": 3_600_000}));
    let ids = tickr.enqueue_many(sleeps).await;
    tickr.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await;
    let run = async |args: &[&str]| {
        let mut check = command(&program(), tickr.dir.path(), args);
        check.env("TICKR_MYSQL_URL", tickr.config.mysql_url().unwrap().expose()).env("TICKR_TEST_KINDS", "1");
        outcome(check).await
    };
    for (name, kind, payload) in [
        ("fine", "sleep", json!({"ms": 1})),
        ("stale", "sleep", json!({"ms": 1})),
        ("broken", "noop", json!({})),
        ("foreign", "noop", json!({})),
    ] {
        let schedule = json!({"cron": "0 0 1 1 *", "kind": kind, "payload": payload});
        let put = tickr.put(&format!("/v1/schedules/{name}"), &schedule).await;
        assert_eq!(put.status, 201);
    }
    let (code, out, err) = run(&["check", "--pending"]).await;
    assert!(out.contains("schedules: 4, all can be read"), "{out}{err}");
    assert!(code == 0 && out.contains("sleep: 250 unfinished, all can be read"), "{out}{err}");

    // An older binary, with another payload type, accepted these jobs.
    let hex = |id: &JobId| id.to_string().replace('-', "");
    for id in &ids[..7] {
        tickr.sql(format!("UPDATE jobs SET payload = '{{\"ms\":\"soon\"}}' WHERE id = UNHEX('{}')", hex(id))).await;
    }
    for table in ["jobs", "owed"] {
        tickr.sql(format!("UPDATE {table} SET kind = 'retired' WHERE id = UNHEX('{}')", hex(&ids[9]))).await;
    }
    let (code, out, err) = run(&["check", "--pending"]).await;
    assert_eq!(code, 1, "{out}{err}");
    assert!(err.contains("7 of 251 unfinished jobs would be rejected"), "{err}");
    for part in
        ["sleep: 249 unfinished, 7 would be rejected", "/ms: ", "(7 jobs)", "retired: 1 unfinished, not in this binary"]
    {
        assert!(out.contains(part), "{part} is not in\n{out}");
    }
    let (code, out, _) = run(&["check", "--pending", "--json"]).await;
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, &found["kinds"]["sleep"]["failing"], &found["kinds"]["retired"]["known"]),
        (1, &json!(7), &json!(false))
    );
    assert_eq!(found["kinds"]["sleep"]["problems"][0]["samples"].as_array().unwrap().len(), 5);
    assert_eq!(found["schedules"], json!({"checked": 4, "failing": 0, "unknown": 0, "problems": []}));

    // Nothing was changed, and the jobs that this binary cannot run have used no attempt.
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE state = 'waiting' AND attempt = 0").await, 251);

    // This binary could not carry out the next tick of these schedules.
    tickr.sql("UPDATE schedules SET payload = '{\"ms\":\"soon\"}' WHERE name = 'stale'").await;
    tickr.sql("UPDATE schedules SET cron = 'now and then' WHERE name = 'broken'").await;
    tickr.sql("UPDATE schedules SET kind = 'retired' WHERE name = 'foreign'").await;
    let (code, out, err) = run(&["check", "--pending"]).await;
    assert_eq!(code, 1, "{out}{err}");
    assert!(err.contains("7 of 251 unfinished jobs and 2 of 4 schedules would be rejected"), "{err}");
    for part in [
        "schedules: 4, 2 would make no job",
        "broken: \"now and then\" is not a cron expression",
        "stale: /ms: ",
        "foreign: its kind retired is not in this binary, so it waits for a runner that has it",
    ] {
        assert!(out.contains(part), "{part} is not in\n{out}");
    }
    let (_, out, _) = run(&["check", "--pending", "--json"]).await;
    let found = &serde_json::from_str::<Value>(&out).unwrap()["schedules"];
    assert_eq!((&found["checked"], &found["failing"], &found["unknown"]), (&json!(4), &json!(2), &json!(1)));
    let told: Vec<_> =
        found["problems"].as_array().unwrap().iter().map(|p| (&p["schedule"], &p["kind"], &p["pointer"])).collect();
    let (broken, foreign, stale) = (json!("broken"), json!("foreign"), json!("stale"));
    let (retired, sleep, payload) = (json!("retired"), json!("sleep"), json!("/ms"));
    assert_eq!(
        told,
        [(&broken, &Value::Null, &Value::Null), (&foreign, &retired, &Value::Null), (&stale, &sleep, &payload)]
    );
    // Now only the schedules are wrong.
    tickr.sql("DELETE FROM owed").await;
    let (code, _, err) = run(&["check", "--pending"]).await;
    assert!(code == 1 && err.contains("2 of 4 schedules would make no job"), "{err}");
    tickr.sql("DELETE FROM schedules WHERE name <> 'foreign'").await;
    let (code, out, _) = run(&["check", "--pending"]).await;
    assert!(code == 0 && out.contains("schedules: 1, 1 of kinds that are not in this binary"), "{out}");
    assert_eq!(run(&["check"]).await.0, 2);
    tickr.stop_broken("owed rows were deleted").await;
}
