//! Schedules: each tick is processed exactly once, by any number of runners, whatever happens to them. A tick that does
//! not fire is recorded with its reason.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sqlx::Executor;
use tickr::app::App;
use tickr::config::ServerUrl;
use tickr::event::Event;
use tickr::handlers::Registry;
use tickr::job::{
    Actor, Due, JobId, JobOptions, NewJob, OnConflict, OnFailure, Order, Overlap, Planned, Priority, ScheduleDraft,
    State, TickDecision,
};
use tickr::store::{Condition, PlannedLine, PutOutcome, ScheduleOrigin, Scheduled, Store, StoreSettings, TickPlan};
use tickr::telemetry::Tracer;
use tokio_util::sync::CancellationToken;

use crate::support::{
    self, Answer, DEADLINE, Proxy, Runner, SHORT_LEASE, TestApp, answer, drop_database, eventually, halted, http,
    migrated_database, table_prefix,
};

/// Return a schedule that ticks every second.
fn every_second() -> Value {
    json!({"cron": "* * * * * *", "kind": "noop", "misfire_grace_ms": 60_000})
}

/// Return a schedule that does not tick while a test runs.
fn yearly() -> Value {
    json!({"cron": "0 0 1 1 *", "kind": "noop"})
}

fn with(mut schedule: Value, more: Value) -> Value {
    if let (Value::Object(schedule), Value::Object(more)) = (&mut schedule, more) {
        schedule.extend(more);
    }
    schedule
}

async fn put_with(app: &App, name: &str, headers: &[(&'static str, &str)], schedule: &Value) -> Answer {
    let mut request = http().put(format!("http://{}/v1/schedules/{name}", app.addr())).json(schedule);
    for (header, value) in headers {
        request = request.header(*header, *value);
    }
    answer(request).await
}

async fn put(tickr: &TestApp, name: &str, schedule: &Value) -> Value {
    let put = put_with(&tickr.app, name, &[], schedule).await;
    assert!(matches!(put.status, 200 | 201), "{:#}", put.body);
    put.body
}

async fn ticks(tickr: &TestApp, name: &str) -> Vec<Value> {
    let answer = tickr.get(&format!("/v1/schedules/{name}/ticks?limit=200")).await;
    assert_eq!(answer.status, 200, "{:#}", answer.body);
    let mut ticks = answer.body["data"].as_array().unwrap().clone();
    ticks.reverse();
    ticks
}

/// Wait for the first tick in the ledger.
async fn first_tick(tickr: &TestApp, name: &str) -> Value {
    eventually(&format!("{name} ticks"), || async { ticks(tickr, name).await.into_iter().next() }).await
}

/// Move a schedule's next tick this many seconds into the past, as if no runner had been up since.
async fn set_back(tickr: &TestApp, name: &str, seconds: u32) {
    tickr
        .sql(format!(
            "UPDATE schedules SET next_at = TIMESTAMP(DATE_FORMAT(UTC_TIMESTAMP() - INTERVAL {seconds} SECOND, \
             '%Y-%m-%d %H:%i:%s')) WHERE name = '{name}'"
        ))
        .await;
}

fn id(value: &Value) -> JobId {
    value.as_str().unwrap().parse().unwrap()
}

/// Check that no second between the first and the last tick of a schedule is missing, that each tick fired, and that
/// each has its own job.
async fn assert_seamless(tickr: &TestApp) {
    assert_eq!(
        tickr.count("SELECT COUNT(*) FROM ticks WHERE outcome <> 'fired' OR number <> 0 OR ticks <> 1").await,
        0
    );
    let torn = "SELECT COUNT(*) FROM (SELECT schedule, CAST(TIMESTAMPDIFF(SECOND, MIN(due_at), MAX(due_at)) + 1 AS SIGNED) \
         AS seconds, COUNT(*) AS ticks FROM ticks GROUP BY schedule) t WHERE seconds <> ticks";
    assert_eq!(tickr.count(torn).await, 0);
    assert_eq!(tickr.count("SELECT COUNT(*) - COUNT(DISTINCT job_id) FROM ticks").await, 0);
    // In these tests, only schedules make jobs.
    assert_eq!(tickr.count("SELECT (SELECT COUNT(*) FROM ticks) - (SELECT COUNT(*) FROM jobs)").await, 0);
    assert_eq!(
        tickr.count("SELECT COUNT(*) FROM ticks t LEFT JOIN jobs j ON j.id = t.job_id WHERE j.id IS NULL").await,
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn two_runners_fire_two_hundred_ticks_of_a_second_exactly_once_each() {
    let tickr = TestApp::start().await;
    let other = tickr.another().await;
    let names: Vec<String> = (0..40).map(|n| format!("second-{n}")).collect();
    let put = |(n, name): (usize, &String)| {
        let (name, app) = (name.clone(), if n.is_multiple_of(2) { &tickr.app } else { &other });
        async move { assert_eq!(put_with(app, &name, &[], &every_second()).await.status, 201) }
    };
    join_all(names.iter().enumerate().map(put)).await;
    tickr.until_count("SELECT COUNT(*) >= 200 FROM ticks", 1).await;
    // The deletion stops the schedules. All ticks so far are there, each of them once.
    let stopped = join_all(names.iter().map(|name| delete_of(&tickr, name))).await;
    assert!(stopped.iter().all(|answer| answer.status == 204));
    assert_seamless(&tickr).await;
    let jobs = tickr.count("SELECT COUNT(*) FROM jobs").await;
    assert!(jobs >= 200, "{jobs}");
    tickr.until_idle().await;
    tickr.assert_each_ran_once(jobs).await;
    let late = "SELECT CAST(ROUND(1000 * MAX(TIMESTAMPDIFF(MICROSECOND, due_at, recorded_at))) AS SIGNED) FROM ticks";
    let mean = "SELECT CAST(ROUND(1000 * AVG(TIMESTAMPDIFF(MICROSECOND, due_at, recorded_at))) AS SIGNED) FROM ticks";
    let ms = |ns: i64| ns as f64 / 1e6;
    println!(
        "{jobs} ticks, {:.1} ms late on average, {:.1} at most",
        ms(tickr.count(mean).await),
        ms(tickr.count(late).await)
    );
    let runners = "SELECT COUNT(DISTINCT recorded_by) FROM ticks WHERE recorded_by NOT LIKE 'runner:%'";
    assert_eq!(tickr.count(runners).await, 0);
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

async fn delete_of(tickr: &TestApp, name: &str) -> Answer {
    tickr.delete(&format!("/v1/schedules/{name}")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_killed_in_the_middle_neither_loses_nor_doubles_a_tick() {
    let without = |config: &mut tickr::config::Config| (config.test_kinds, config.lease) = (false, SHORT_LEASE);
    let tickr = TestApp::start_with(without, Registry::new()).await;
    // The runner of this process does not have the kind, so the other runners process all ticks.
    let mut doomed = Runner::start(&tickr, &[]);
    let base = doomed.base().await;
    let heir = Runner::start(&tickr, &[]);
    heir.base().await;
    for n in 0..10 {
        let request = http().put(format!("{base}/v1/schedules/second-{n}")).json(&every_second());
        assert_eq!(answer(request).await.status, 201);
    }
    tickr.until_count("SELECT COUNT(*) >= 20 FROM ticks", 1).await;
    doomed.kill9();
    let before = tickr.count("SELECT COUNT(*) FROM ticks").await;
    eventually("the heir goes on", || async {
        (tickr.count("SELECT COUNT(*) FROM ticks").await >= before + 40).then_some(())
    })
    .await;
    for n in 0..10 {
        assert_eq!(delete_of(&tickr, &format!("second-{n}")).await.status, 204);
    }
    assert_seamless(&tickr).await;
    tickr.until_idle().await;
    tickr.assert_sound().await;
    drop(heir);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tick_whose_commit_is_not_answered_fires_once() {
    let behind = TestApp::start_with(|config| config.test_kinds = false, Registry::new()).await;
    let proxy = Proxy::start(behind.config.mysql_url().unwrap().expose()).await;
    let through = behind
        .another_with(
            |config| {
                config.mysql_url = Some(ServerUrl::mysql(&proxy.url()).unwrap());
                config.test_kinds = true;
            },
            Registry::new(),
        )
        .await;
    for n in 0..5 {
        let slow = json!({"cron": "* * * * * *", "kind": "noop", "misfire_grace_ms": 60_000, "queue": "unserved"});
        assert_eq!(put_with(&through, &format!("second-{n}"), &[], &slow).await.status, 201);
    }
    // First the last write of a tick, after which only its COMMIT follows; then the COMMIT itself.
    for text in ["UPDATE schedules SET next_at", "COMMIT", "UPDATE schedules SET next_at", "COMMIT", "COMMIT"] {
        let cuts = proxy.cuts();
        proxy.cut_after(text);
        eventually("an answer is lost", || async { (proxy.cuts() > cuts).then_some(()) }).await;
    }
    let before = behind.count("SELECT COUNT(*) FROM ticks").await;
    eventually("ticks go on", || async {
        (behind.count("SELECT COUNT(*) FROM ticks").await >= before + 10).then_some(())
    })
    .await;
    for n in 0..5 {
        assert_eq!(delete_of(&behind, &format!("second-{n}")).await.status, 204);
    }
    assert_seamless(&behind).await;
    through.stop(CancellationToken::new()).await;
    behind.stop().await;
}

/// MySQL may refuse a transaction for its size, as in group replication, or may not end it in time.
#[tokio::test(flavor = "multi_thread")]
async fn ticks_that_mysql_refuses_together_fire_in_smaller_transactions() {
    let behind = TestApp::start_with(|config| config.test_kinds = false, Registry::new()).await;
    let proxy = Proxy::start(behind.config.mysql_url().unwrap().expose()).await;
    let through = behind
        .another_with(
            |config| {
                config.mysql_url = Some(ServerUrl::mysql(&proxy.url()).unwrap());
                config.test_kinds = true;
            },
            Registry::new(),
        )
        .await;
    let unserved = with(yearly(), json!({"queue": "unserved"}));
    assert_eq!(put_with(&through, "many", &[], &unserved).await.status, 201);
    // A hundred ticks are due at once. MySQL refuses all of them three times, and then three times half of them.
    proxy.refuse("SELECT name, version, next_at, paused_at, last_job FROM schedules", 3100, 6);
    behind
        .sql(
            "UPDATE schedules SET cron = '* * * * * *', misfire = 'all', next_at = \
             TIMESTAMP(DATE_FORMAT(UTC_TIMESTAMP() - INTERVAL 100 SECOND, '%Y-%m-%d %H:%i:%s'))",
        )
        .await;
    behind.until_count("SELECT COUNT(*) >= 100 FROM ticks WHERE outcome = 'fired'", 1).await;
    assert!(proxy.is_through());
    assert_eq!(delete_of(&behind, "many").await.status, 204);
    let largest = "SELECT MAX(n) FROM (SELECT COUNT(*) AS n FROM ticks GROUP BY recorded_at) w";
    let largest = behind.count(largest).await;
    // A quarter, and then perhaps the half, if a slow machine has added the ticks of some seconds.
    assert!((20..=70).contains(&largest), "{largest} records in one transaction");
    assert_seamless(&behind).await;
    through.stop(CancellationToken::new()).await;
    behind.stop().await;
}

/// One by one, the cancels of these jobs would take longer than one transaction may last.
#[tokio::test(flavor = "multi_thread")]
async fn ticks_that_replace_many_waiting_jobs_fire_also_when_mysql_is_slow() {
    const SCHEDULES: usize = 12;
    const JOBS: i64 = 16;
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let settings = StoreSettings { url: proxy.url(), connections: 4, flushers: 1, table_prefix: table_prefix() };
    let store = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
    let by = Actor::tickr();
    let mut rows = Vec::new();
    for n in 0..SCHEDULES {
        let draft = ScheduleDraft {
            cron: Some("0 0 1 1 *".to_owned()),
            ..ScheduleDraft::new("noop", RawValue::from_string("{}".to_owned()).unwrap())
        };
        let (name, schedule) = (format!("s{n}").parse().unwrap(), draft.check(store.clock().now()).unwrap());
        match store.put_schedule(name, schedule, ScheduleOrigin::Api, Condition::Any, &by).await.unwrap() {
            PutOutcome::Created(row) => rows.push(row),
            other => panic!("{other:?}"),
        }
    }
    let plans = |overlap, seconds: Range<i64>| {
        let plan = |row: &Scheduled| {
            let mut row = row.clone();
            row.schedule.overlap = overlap;
            let line = |second| {
                let due_at = DateTime::from_timestamp(1_780_000_000 + second, 0).unwrap();
                let planned = Planned { due_at, count: 1, decision: TickDecision::Fire };
                PlannedLine { planned, job: Some(waiting_job(&row)), reason: None }
            };
            TickPlan { lines: seconds.clone().map(line).collect(), next: row.next_at, row }
        };
        rows.iter().map(plan).collect::<Vec<_>>()
    };
    let made = store.tick(plans(Overlap::Allow, 0..JOBS), &by).await.unwrap();
    let all = SCHEDULES * JOBS as usize;
    assert_eq!(made.accepted.len(), all);
    proxy.delay(Duration::from_millis(30));
    let ticked = store.tick(plans(Overlap::Replace, JOBS..JOBS + 1), &by).await;
    proxy.delay(Duration::ZERO);
    let ticked = ticked.unwrap();
    assert_eq!((ticked.cancelled.len(), ticked.accepted.len()), (all, SCHEDULES), "{ticked:?}");
    let mut mysql = support::connect(&url).await;
    let errors = sqlx::query_scalar("SELECT error FROM attempts WHERE end_state = 'cancelled'");
    let errors: Vec<String> = errors.fetch_all(&mut mysql).await.unwrap();
    let told = ticked.accepted.iter().map(|job| format!("replaced by job {}", job.id)).collect::<BTreeSet<_>>();
    assert_eq!((errors.len(), errors.into_iter().collect()), (all, told), "each says which job replaced it");
    halted::assert_sound_without_index(&url, &name).await;
    drop(store);
    drop_database(&url, &name).await;
}

/// Return a job of this schedule.
fn waiting_job(row: &Scheduled) -> NewJob {
    NewJob {
        id: JobId::new(),
        kind: row.schedule.template.kind.clone(),
        queue: row.schedule.template.queue.clone(),
        payload: row.schedule.template.payload.clone(),
        due: Due::Now,
        expires: None,
        priority: Priority::NORMAL,
        max_attempts: 5,
        unique_key: None,
        on_conflict: OnConflict::Reject,
        host: None,
        options: JobOptions {
            // Those of one schedule run one after the other.
            order: Some(Order { key: row.name.to_string(), on_failure: OnFailure::Block }),
            ..JobOptions::default()
        },
        batch: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_whose_last_job_is_locked_holds_up_no_other_schedule() {
    let tickr = TestApp::start().await;
    let locked = with(every_second(), json!({"overlap": "skip", "queue": "unserved"}));
    put(&tickr, "locked", &locked).await;
    let last = id(&first_tick(&tickr, "locked").await["job_id"]);
    // A runner that freezes while it claims or settles the job keeps this lock.
    let mut session = tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    let row = sqlx::query("SELECT id FROM owed WHERE id = ? FOR UPDATE").bind(last.uuid());
    row.fetch_one(&mut session).await.unwrap();
    let ticks_of_locked = "SELECT COUNT(*) FROM ticks WHERE schedule = 'locked'";
    let before = tickr.count(ticks_of_locked).await;
    put(&tickr, "other", &with(every_second(), json!({"overlap": "allow"}))).await;
    let fired = "SELECT COUNT(*) >= 3 FROM ticks WHERE schedule = 'other' AND outcome = 'fired'";
    tickr.until_count(fired, 1).await;
    // Whether its last job has ended cannot be said yet, so its ticks stay due.
    assert_eq!(tickr.count(ticks_of_locked).await, before);
    session.execute("ROLLBACK").await.unwrap();
    let later = format!("SELECT COUNT(*) > {before} FROM ticks WHERE schedule = 'locked'");
    tickr.until_count(later, 1).await;
    let kept = "SELECT COUNT(*) FROM ticks WHERE schedule = 'locked' AND outcome = 'fired'";
    assert_eq!(tickr.count(kept).await, 1);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tick_that_is_not_due_by_the_clock_of_mysql_is_not_written() {
    let tickr = TestApp::start().await;
    put(&tickr, "yearly", &yearly()).await;
    let store = tickr.app.broker().store();
    let row = store.schedule("yearly".parse().unwrap()).await.unwrap().unwrap();
    let before = row.next_at;
    // The ticker planned this tick, and then the clock of MySQL was set back by a year.
    let planned = before.unwrap() + TimeDelta::seconds(1);
    let by = Actor::runner(tickr.app.runner());
    let ticked = tickr.app.broker().tick(vec![row], planned, &by, &Tracer::off()).await.unwrap();
    assert_eq!((ticked.overtaken, ticked.lines.len()), (1, 0), "{ticked:?}");
    let row = store.schedule("yearly".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(row.next_at, before, "it stays due then");
    assert_eq!(tickr.count("SELECT (SELECT COUNT(*) FROM ticks) + (SELECT COUNT(*) FROM jobs)").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_says_which_tick_it_comes_from_and_a_tick_which_job_it_made() {
    let tickr = TestApp::start().await;
    let wishes = json!({"queue": "default", "priority": 3, "max_attempts": 2, "timeout_ms": 5_000,
        "retry": {"base_ms": 7}, "payload": {"n": 1}});
    put(&tickr, "nightly", &with(every_second(), wishes)).await;
    let tick = first_tick(&tickr, "nightly").await;
    assert_eq!((&tick["outcome"], &tick["cause"], &tick["manual"]), (&json!("fired"), &Value::Null, &json!(false)));
    let job = tickr.until(id(&tick["job_id"]), State::Completed).await;
    assert_eq!(job["schedule"], json!({"name": "nightly", "tick_at": tick["due_at"]}));
    assert_eq!((&job["priority"], &job["max_attempts"], &job["timeout_ms"]), (&json!(3), &json!(2), &json!(5_000)));
    assert_eq!((&job["retry"]["base_ms"], &job["payload"]), (&json!(7), &json!({"n": 1})));
    // It never fires early, by the database's clock.
    assert_eq!(tickr.count("SELECT COUNT(*) FROM ticks WHERE recorded_at < due_at").await, 0);
    let metrics = tickr.get("/metrics").await.body;
    let metrics = metrics.as_str().unwrap();
    let mut fired = metrics.lines().filter(|line| line.starts_with("tickr_schedule_ticks_total{outcome=\"fired\""));
    assert!(fired.any(|line| !line.ends_with(" 0")), "{metrics}");
    assert!(metrics.contains("tickr_schedule_lateness_seconds_bucket"), "{metrics}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ticks_of_a_schedule_with_an_order_key_run_one_at_a_time_in_tick_order() {
    let tickr = TestApp::start().await;
    let other = tickr.another().await;
    let ordered = json!({"kind": "sleep", "payload": {"ms": 30}, "order_key": "customer:42", "on_failure": "skip"});
    put(&tickr, "ordered", &with(yearly(), ordered)).await;
    // Some ticks are due at once, so that one transaction makes their jobs. The next ones come one by one.
    tickr
        .sql(
            "UPDATE schedules SET cron = '* * * * * *', misfire = 'all', next_at = \
             TIMESTAMP(DATE_FORMAT(UTC_TIMESTAMP() - INTERVAL 12 SECOND, '%Y-%m-%d %H:%i:%s'))",
        )
        .await;
    tickr.until_count("SELECT COUNT(*) >= 15 FROM ticks WHERE outcome = 'fired'", 1).await;
    // A trigger takes its place behind them.
    let triggered = tickr.post("/v1/schedules/ordered/trigger", json!({})).await;
    assert_eq!((triggered.status, &triggered.body["order_key"]), (201, &json!("customer:42")), "{:#}", triggered.body);
    assert_eq!(delete_of(&tickr, "ordered").await.status, 204);
    tickr.until_idle().await;
    let jobs = tickr.count("SELECT COUNT(*) FROM ticks WHERE outcome = 'fired'").await;
    tickr.assert_each_ran_once(jobs).await;
    // Jobs that started before the one in front had ended: in the order of the ticks, and in that of the starts.
    for (ticks, order) in [("t.number = 0", "t.due_at"), ("TRUE", "a.started_at")] {
        let early = format!(
            "SELECT COUNT(*) FROM (SELECT a.started_at, LAG(a.finished_at) OVER (ORDER BY {order}) AS ended \
             FROM ticks t JOIN attempts a ON a.job_id = t.job_id WHERE {ticks}) w WHERE started_at < ended"
        );
        assert_eq!(tickr.count(early).await, 0, "{order}");
    }
    let job = tickr.job(id(&ticks(&tickr, "ordered").await[0]["job_id"])).await;
    assert_eq!((&job["order_key"], &job["on_failure"]), (&json!("customer:42"), &json!("skip")));
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_whose_order_key_is_locked_holds_up_no_other_schedule() {
    let tickr = TestApp::start().await;
    put(&tickr, "locked", &with(every_second(), json!({"order_key": "k", "queue": "unserved"}))).await;
    first_tick(&tickr, "locked").await;
    let mut session = tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    session.execute("SELECT order_key FROM order_keys WHERE order_key = 'k' FOR UPDATE").await.unwrap();
    let ticks_of_locked = "SELECT COUNT(*) FROM ticks WHERE schedule = 'locked'";
    let before = tickr.count(ticks_of_locked).await;
    put(&tickr, "other", &with(every_second(), json!({"order_key": "l"}))).await;
    tickr.until_count("SELECT COUNT(*) >= 3 FROM ticks WHERE schedule = 'other' AND outcome = 'fired'", 1).await;
    assert_eq!(tickr.count(ticks_of_locked).await, before);
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_count(format!("SELECT COUNT(*) > {before} FROM ticks WHERE schedule = 'locked'"), 1).await;
    // Its ticks stayed due: none of them was lost.
    let lost = "SELECT COUNT(*) FROM ticks WHERE schedule = 'locked' AND outcome <> 'fired'";
    assert_eq!(tickr.count(lost).await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_whose_order_key_another_session_is_making_holds_up_no_other_schedule() {
    let tickr = TestApp::start().await;
    // A runner that freezes in an enqueue with a new order key keeps a row that no other session can see.
    let mut session = tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    session.execute("INSERT INTO order_keys (order_key, head, tail) VALUES ('k', 1, 0)").await.unwrap();
    put(&tickr, "locked", &with(every_second(), json!({"order_key": "k", "queue": "unserved"}))).await;
    put(&tickr, "other", &with(every_second(), json!({"order_key": "l"}))).await;
    tickr.until_count("SELECT COUNT(*) >= 3 FROM ticks WHERE schedule = 'other' AND outcome = 'fired'", 1).await;
    // Less than one wait for a lock.
    let late = "SELECT COUNT(*) FROM ticks WHERE schedule = 'other' AND recorded_at > due_at + INTERVAL 4 SECOND";
    assert_eq!(tickr.count(late).await, 0);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM ticks WHERE schedule = 'locked'").await, 0);
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_count("SELECT COUNT(*) > 0 FROM ticks WHERE schedule = 'locked'", 1).await;
    // Its ticks stayed due: none of them was lost.
    let lost = "SELECT COUNT(*) FROM ticks WHERE schedule = 'locked' AND outcome <> 'fired'";
    assert_eq!(tickr.count(lost).await, 0);
    tickr.stop().await;
}

/// A runner that freezes while it fires ticks keeps the rows of schedules, and one that freezes in an enqueue keeps
/// order keys.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_wait_for_a_locked_schedule_or_the_key_of_a_trigger_hold_up_no_other_change() {
    let tickr = TestApp::start().await;
    let schedule = with(yearly(), json!({"order_key": "k", "overlap": "allow", "queue": "unserved"}));
    let names: Vec<String> = (0..8).map(|n| format!("yearly-{n}")).collect();
    for name in &names {
        put(&tickr, name, &schedule).await;
    }
    let send = async |name: &str, verb: &str| {
        let path = format!("/v1/schedules/{name}/{verb}");
        tickr.post(&path, json!({})).await.status
    };
    assert_eq!(send(&names[0], "trigger").await, 201);
    let mut session = tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    session.execute("SELECT name FROM schedules WHERE name = 'yearly-0' FOR UPDATE").await.unwrap();
    let waiting = join_all((0..8).map(|_| send(&names[0], "pause")));
    assert_eq!(tickr.goes_on_beside(waiting, &mut session).await, [200_u16; 8]);
    session.execute("BEGIN").await.unwrap();
    session.execute("SELECT order_key FROM order_keys WHERE order_key = 'k' FOR UPDATE").await.unwrap();
    let waiting = join_all(names.iter().map(|name| send(name, "trigger")));
    assert_eq!(tickr.goes_on_beside(waiting, &mut session).await, [201_u16; 8]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_job_of_a_tick_has_the_limit_key_and_tags_of_its_schedule_and_expires() {
    let tickr = TestApp::start().await;
    let keys = json!({"limit_key": "tenant:7", "tags": ["nightly", "tenant:7", "nightly"], "expires_in_ms": 400});
    let unserved = with(every_second(), json!({"queue": "unserved"}));
    let shown = put(&tickr, "keyed", &with(unserved.clone(), keys.clone())).await;
    assert_eq!((&shown["limit_key"], &shown["expires_in_ms"]), (&json!("tenant:7"), &json!(400)));
    assert_eq!((&shown["tags"], &shown["order_key"]), (&json!(["nightly", "tenant:7"]), &Value::Null));
    // A binary from before these fields must not be able to read them.
    assert_eq!(tickr.count("SELECT COUNT(*) FROM schedules WHERE options LIKE '[%'").await, 1);
    let job = tickr.job(id(&first_tick(&tickr, "keyed").await["job_id"])).await;
    assert_eq!((&job["limit_key"], &job["tags"]), (&json!("tenant:7"), &json!(["nightly", "tenant:7"])));
    let moment = |field: &str| job[field].as_str().unwrap().parse::<chrono::DateTime<chrono::Utc>>().unwrap();
    let lives = (moment("expires_at") - moment("created_at")).num_milliseconds();
    assert!((400..=401).contains(&lives), "{lives}");
    let expired = tickr.until(id(&job["id"]), State::Failed).await;
    assert_eq!(expired["attempts"][0]["verdict"], "expired", "{expired:#}");
    let found = tickr.get("/v1/jobs?q=tag:nightly%20limit:tenant:7&limit=200").await.body;
    assert!(!found["data"].as_array().unwrap().is_empty(), "{found:#}");

    // The same definition changes nothing, and one without the fields takes them away.
    let tag = tickr.get("/v1/schedules/keyed").await.header("etag").to_owned();
    let same = put_with(&tickr.app, "keyed", &[], &with(unserved.clone(), keys)).await;
    assert_eq!((same.status, same.header("etag")), (200, tag.as_str()));
    let plain = put(&tickr, "keyed", &unserved).await;
    assert_eq!((&plain["limit_key"], &plain["expires_in_ms"]), (&Value::Null, &Value::Null));
    assert_eq!((&plain["tags"], &plain["on_failure"]), (&json!([]), &Value::Null));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM schedules WHERE options IS NULL").await, 1);
    assert_eq!(delete_of(&tickr, "keyed").await.status, 204);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_is_made_changed_and_deleted_only_as_its_caller_expects() {
    let tickr = TestApp::start().await;
    let made = put_with(&tickr.app, "nightly", &[("If-None-Match", "*")], &yearly()).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    let tag = made.header("etag").to_owned();
    assert!(!made.body["description"].as_str().unwrap().is_empty());
    assert_eq!(made.body["next_runs"].as_array().unwrap().len(), 5);
    assert_eq!(made.body["created_by"], "anyone");

    assert_eq!(put_with(&tickr.app, "nightly", &[("If-None-Match", "*")], &yearly()).await.status, 412);
    // A PUT with the same content changes nothing, not even the tag.
    let same = put_with(&tickr.app, "nightly", &[], &yearly()).await;
    assert_eq!((same.status, same.header("etag")), (200, tag.as_str()));
    let other = with(yearly(), json!({"overlap": "skip"}));
    let stale = put_with(&tickr.app, "nightly", &[("If-Match", "\"1-1\"")], &other).await;
    assert_eq!((stale.status, stale.code()), (412, "precondition_failed"));
    let changed = put_with(&tickr.app, "nightly", &[("If-Match", &tag)], &other).await;
    assert_eq!((changed.status, &changed.body["overlap"]), (200, &json!("skip")));
    assert_ne!(changed.header("etag"), tag);
    assert_eq!(changed.body["next_at"], made.body["next_at"]);
    assert_eq!(put_with(&tickr.app, "nightly", &[("If-Match", &tag)], &yearly()).await.status, 412);
    assert_eq!(put_with(&tickr.app, "other", &[("If-Match", "*")], &yearly()).await.status, 412);
    let broken = put_with(&tickr.app, "nightly", &[("If-Match", "unquoted")], &yearly()).await;
    assert_eq!((broken.status, broken.pointers()), (422, vec!["if-match"]));
    let weak = format!("W/{}", changed.header("etag"));
    assert_eq!(put_with(&tickr.app, "nightly", &[("If-Match", &weak)], &yearly()).await.status, 412);
    assert_eq!(tickr.get("/v1/schedules/nightly").await.header("etag"), changed.header("etag"));
    assert_eq!(tickr.get("/v1/schedules/other").await.status, 404);

    let request = tickr.request(Method::DELETE, "/v1/schedules/nightly").header("If-Match", tag);
    assert_eq!(answer(request).await.status, 412);
    assert_eq!(delete_of(&tickr, "nightly").await.status, 204);
    assert_eq!(delete_of(&tickr, "nightly").await.status, 404);
    let audit = tickr.get("/v1/audit?target=nightly").await.body;
    let actions: Vec<&str> =
        audit["data"].as_array().unwrap().iter().map(|act| act["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["schedule.delete", "schedule.put", "schedule.put"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_whose_payload_is_only_spelt_differently_changes_nothing() {
    let tickr = TestApp::start().await;
    let put = async |payload: &str| {
        let schedule = format!(r#"{{"cron": "0 0 1 1 *", "kind": "noop", "payload": {payload}}}"#);
        let request = tickr.request(Method::PUT, "/v1/schedules/yearly").body(schedule);
        answer(request.header("Content-Type", "application/json")).await
    };
    let made = put(r#"{"url":"https://example.com/","n":[1,{"a":null,"b":1.50}]}"#).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    let tag = made.header("etag");
    let spelt = put("{ \"n\" : [ 1, {\"b\":1.50, \"a\":null} ],\n \"\\u0075rl\": \"https:\\/\\/example.com/\" }").await;
    assert_eq!((spelt.status, spelt.header("etag")), (200, tag), "{:#}", spelt.body);
    let records = "SELECT COUNT(*) FROM audit WHERE action = 'schedule.put'";
    assert_eq!(tickr.count(records).await, 1);
    // As for idempotency keys, numbers are what was written.
    let other = put(r#"{"url":"https://example.com/","n":[1,{"a":null,"b":1.5}]}"#).await;
    assert_ne!(other.header("etag"), tag);
    assert_eq!(tickr.count(records).await, 2);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_schedule_is_said_all_at_once_and_where() {
    let tickr = TestApp::start().await;
    let bad = |schedule: Value| {
        let app = &tickr.app;
        async move {
            let put = put_with(app, "bad", &[], &schedule).await;
            assert_eq!(put.status, 422, "{schedule} {:#}", put.body);
            put
        }
    };
    for (more, pointers) in [
        (json!({"cron": "0 0 30 2 *"}), vec!["/cron"]),
        (json!({"cron": "nonsense"}), vec!["/cron"]),
        (json!({"cron": null}), vec!["/cron"]),
        (json!({"every_ms": 60_000}), vec!["/every_ms"]),
        (json!({"cron": null, "every_ms": 999}), vec!["/every_ms"]),
        (json!({"cron": null, "every_ms": 60_000, "dst": "skip"}), vec!["/dst"]),
        (json!({"zone": "Europe/Warsow", "queue": "No", "priority": 10}), vec!["/zone", "/queue", "/priority"]),
        (json!({"dst": "sometimes"}), vec!["/dst"]),
        (json!({"unknown": 1}), vec!["/unknown"]),
        (json!({"retry": {"base_ms": 5, "cap_ms": 1}}), vec!["/retry/cap_ms"]),
        (json!({"kind": "sleep", "payload": {"ms": "long"}}), vec!["/payload/ms"]),
        (json!({"order_key": "", "limit_key": "k".repeat(256)}), vec!["/order_key", "/limit_key"]),
        (json!({"on_failure": "skip"}), vec!["/on_failure"]),
        (json!({"order_key": "k", "on_failure": "wait"}), vec!["/on_failure"]),
        (json!({"expires_in_ms": 0}), vec!["/expires_in_ms"]),
        (json!({"misfire": "skip", "misfire_grace_ms": 99}), vec!["/misfire_grace_ms"]),
        (json!({"expires_in_ms": 31_622_400_001_u64}), vec!["/expires_in_ms"]),
        (json!({"tags": ["nightly", "two words"]}), vec!["/tags/1"]),
        (json!({"tags": (0..11).map(|n| format!("t{n}")).collect::<Vec<_>>()}), vec!["/tags"]),
    ] {
        let put = bad(with(yearly(), more.clone())).await;
        assert_eq!(put.pointers(), pointers, "{more}");
    }
    // The document names the bound of a `misfire_grace_ms`.
    let least = with(yearly(), json!({"misfire": "skip", "misfire_grace_ms": 100}));
    put(&tickr, "least", &least).await;
    let document = tickr.get("/openapi.json").await.body;
    let grace = &document["components"]["schemas"]["ScheduleBody"]["properties"]["misfire_grace_ms"]["description"];
    let grace = grace.as_str().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(grace.contains("At least 100 with `misfire` `skip`"), "{grace}");
    let unknown = bad(with(yearly(), json!({"kind": "nobody-has-it"}))).await;
    assert_eq!((unknown.code(), unknown.pointers()), ("unknown_kind", vec!["/kind"]));
    let zone = bad(with(yearly(), json!({"zone": "Europe/Warsow"}))).await;
    assert!(zone.body["errors"][0]["detail"].as_str().unwrap().contains("Europe/Warsaw"), "{:#}", zone.body);
    for name in ["Nightly", "-x", &"x".repeat(65)] {
        assert_eq!(put_with(&tickr.app, name, &[], &yearly()).await.status, 422, "{name}");
    }
    for (path, status) in [
        ("/v1/schedules?limit=0", 422),
        ("/v1/schedules?cursor=AAAA", 422),
        ("/v1/schedules/none", 404),
        ("/v1/schedules/none/ticks", 404),
        ("/v1/schedules/none/ticks?outcome=lost", 422),
    ] {
        assert_eq!(tickr.get(path).await.status, status, "{path}");
    }
    for (path, status) in [("pause", 404), ("resume", 404), ("trigger", 404), ("trigger?overlap=maybe", 422)] {
        assert_eq!(tickr.post(&format!("/v1/schedules/none/{path}"), json!({})).await.status, status, "{path}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preview_shows_what_happens_when_clocks_are_turned() {
    let tickr = TestApp::start().await;
    let preview = async |body: Value| tickr.post("/v1/schedules/preview", body).await;
    let runs = async |dst: &str, from: &str| -> Vec<String> {
        let body = json!({"cron": "30 2 * * *", "zone": "Europe/Warsaw", "dst": dst, "from": from, "count": 3});
        let answer = preview(body).await;
        assert_eq!(answer.status, 200, "{:#}", answer.body);
        let runs = answer.body["next_runs"].as_array().unwrap();
        runs.iter().map(|run| run["local"].as_str().unwrap().replace(":00.000", "")).collect()
    };
    let spring = "2027-03-27T12:00:00Z";
    let after = ["2027-03-29T02:30+02:00", "2027-03-30T02:30+02:00", "2027-03-31T02:30+02:00"];
    assert_eq!(runs("once", spring).await, ["2027-03-28T03:00+02:00", after[0], after[1]]);
    assert_eq!(runs("skip", spring).await, after);
    assert_eq!(runs("both", spring).await, ["2027-03-28T03:00+02:00", after[0], after[1]]);
    let autumn = "2027-10-30T12:00:00Z";
    let (first, second) = ("2027-10-31T02:30+02:00", "2027-10-31T02:30+01:00");
    let after = ["2027-11-01T02:30+01:00", "2027-11-02T02:30+01:00", "2027-11-03T02:30+01:00"];
    assert_eq!(runs("once", autumn).await, [first, after[0], after[1]]);
    assert_eq!(runs("skip", autumn).await, after);
    assert_eq!(runs("both", autumn).await, [first, second, after[0]]);
    let every = preview(
        json!({"every_ms": 90_000, "anchor": "2026-01-01T00:00:00Z", "from": "2026-01-01T00:01:00Z", "count": 2}),
    );
    let every = every.await.body;
    assert_eq!(every["next_runs"][1]["at"], "2026-01-01T00:03:00.000Z", "{every:#}");
    assert_eq!(preview(json!({"cron": "* * * * *", "count": 101})).await.pointers(), ["/count"]);
    assert_eq!(preview(json!({})).await.pointers(), ["/cron"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preview_shows_the_ticks_that_a_put_at_the_same_moment_makes() {
    let tickr = TestApp::start().await;
    let first = async |times: Value| -> DateTime<Utc> {
        let shown = tickr.post("/v1/schedules/preview", times).await;
        assert_eq!(shown.status, 200, "{:#}", shown.body);
        shown.body["next_runs"][0]["at"].as_str().unwrap().parse().unwrap()
    };
    let shown = first(json!({"every_ms": 3_600_000})).await;
    // No tick comes before the declaration.
    let from_long_ago = first(json!({"every_ms": 3_600_000, "from": "2026-01-01T00:00:00Z"})).await;
    let made = put(&tickr, "hourly", &json!({"every_ms": 3_600_000, "kind": "noop"})).await;
    let made: DateTime<Utc> = made["next_at"].as_str().unwrap().parse().unwrap();
    for shown in [shown, from_long_ago] {
        assert!((made - shown).abs() < TimeDelta::minutes(1), "{shown} in the preview, {made} in the schedule");
    }
    // A tick at the time from which ticks are listed is one of them.
    let every = json!({"every_ms": 90_000, "anchor": "2026-01-01T00:00:00Z", "from": "2026-01-01T00:01:30Z"});
    assert_eq!(first(every).await.to_rfc3339(), "2026-01-01T00:01:30+00:00");
    let cron = json!({"cron": "30 1 0 1 1 *", "from": "2027-01-01T00:01:30Z"});
    assert_eq!(first(cron).await.to_rfc3339(), "2027-01-01T00:01:30+00:00");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_it_is_paused_its_ticks_pass_and_say_so() {
    let tickr = TestApp::start().await;
    put(&tickr, "nightly", &with(every_second(), json!({"misfire": "all"}))).await;
    first_tick(&tickr, "nightly").await;
    let pause = async |reason: &str| tickr.post("/v1/schedules/nightly/pause", json!({"reason": reason})).await;
    let paused = pause("the disk is full").await;
    assert_eq!((paused.status, &paused.body["paused"]["reason"]), (200, &json!("the disk is full")));
    // A second pause keeps the first reason.
    assert_eq!(pause("another reason").await.body["paused"]["reason"], "the disk is full");
    let fired = tickr.count("SELECT COUNT(*) FROM ticks WHERE outcome = 'fired'").await;
    tickr.until_count("SELECT COUNT(*) >= 2 FROM ticks WHERE cause = 'paused'", 1).await;
    // Ticks that were not processed before the resume count as paused as well, whatever the misfire policy.
    tickr.sql("UPDATE schedules SET paused_at = paused_at - INTERVAL 1 HOUR").await;
    let resumed = tickr.post("/v1/schedules/nightly/resume", json!({})).await;
    assert_eq!((resumed.status, &resumed.body["paused"]), (200, &Value::Null));
    tickr.until_count(
        "SELECT COUNT(*) >= 1 FROM ticks WHERE outcome = 'fired' AND due_at > (SELECT MAX(due_at) FROM ticks WHERE cause = 'paused')",
        1,
    )
    .await;
    let all = ticks(&tickr, "nightly").await;
    let is = |tick: &&Value, cause: &str| tick["cause"] == cause;
    let skipped: Vec<&Value> = all.iter().filter(|tick| is(tick, "paused")).collect();
    assert!(skipped.iter().all(|tick| tick["reason"] == "paused by anyone: the disk is full"), "{skipped:#?}");
    let before = all.iter().take_while(|tick| tick["outcome"] == "fired").count();
    assert!(i64::try_from(before).unwrap() == fired, "{fired} {all:#?}");
    assert_eq!(
        tickr.count("SELECT COUNT(*) FROM audit WHERE target = 'nightly' AND action LIKE 'schedule.%e'").await,
        2
    );
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_fires_now_once_for_its_key_and_also_while_paused() {
    let tickr = TestApp::start().await;
    put(&tickr, "nightly", &yearly()).await;
    tickr.post("/v1/schedules/nightly/pause", json!({})).await;
    let fired = tickr.post("/v1/schedules/nightly/trigger", json!({})).await;
    assert_eq!(fired.status, 201, "{:#}", fired.body);
    assert_eq!(fired.header("location"), format!("/v1/jobs/{}", fired.body["id"].as_str().unwrap()));
    let job = tickr.until(id(&fired.body["id"]), State::Completed).await;
    assert_eq!(job["schedule"], fired.body["schedule"]);
    let keyed = async || {
        let request = http().post(tickr.url("/v1/schedules/nightly/trigger")).header("Idempotency-Key", "k");
        answer(request).await
    };
    let (first, second) = tokio::join!(keyed(), keyed());
    assert_eq!((first.status, second.status, &first.body["id"]), (201, 201, &second.body["id"]));
    let lines = ticks(&tickr, "nightly").await;
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().all(|tick| tick["manual"] == true && tick["recorded_by"] == "anyone"), "{lines:#?}");
    assert_eq!(lines[0]["due_at"], job["schedule"]["tick_at"]);
    let shown = tickr.get("/v1/schedules/nightly").await.body;
    assert_eq!((&shown["last_job"], &shown["last_tick"]["job_id"]), (&first.body["id"], &first.body["id"]));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tick_does_not_fire_while_the_previous_job_has_not_ended_if_it_says_skip() {
    let tickr = TestApp::start().await;
    let slow = json!({"kind": "sleep", "payload": {"ms": 600_000}, "overlap": "skip"});
    put(&tickr, "slow", &with(every_second(), slow)).await;
    let first = id(&first_tick(&tickr, "slow").await["job_id"]);
    tickr.until(first, State::Executing).await;
    tickr.until_count("SELECT COUNT(*) >= 2 FROM ticks WHERE cause = 'overlap'", 1).await;
    let lines = ticks(&tickr, "slow").await;
    let why = lines.last().unwrap()["reason"].as_str().unwrap();
    assert!(why.contains(&first.to_string()), "{why}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1);
    // A trigger does not fire either, except with `overlap=allow`.
    let refused = tickr.post("/v1/schedules/slow/trigger", json!({})).await;
    assert_eq!((refused.status, refused.code()), (409, "previous_unfinished"));
    assert_eq!((&refused.body["holder"], &refused.body["current_state"]), (&json!(first), &json!("executing")));
    assert_eq!(tickr.post("/v1/schedules/slow/pause", json!({})).await.status, 200);
    assert_eq!(tickr.post("/v1/schedules/slow/trigger?overlap=allow", json!({})).await.status, 201);
    // When the job has ended, the next tick fires.
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 2);
    for id in all_jobs(&tickr).await {
        tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    }
    tickr.until_idle().await;
    assert_eq!(tickr.post("/v1/schedules/slow/resume", json!({})).await.status, 200);
    tickr.until_count("SELECT COUNT(*) FROM jobs", 3).await;
    tickr.stop().await;
}

/// Trigger a schedule with this overlap policy. Return the job, once it executes.
async fn trigger(tickr: &TestApp, name: &str, overlap: &str) -> JobId {
    let fired = tickr.post(&format!("/v1/schedules/{name}/trigger?overlap={overlap}"), json!({})).await;
    assert_eq!(fired.status, 201, "{:#}", fired.body);
    let job = id(&fired.body["id"]);
    tickr.until(job, State::Executing).await;
    job
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_beside_which_a_trigger_fired_is_still_in_the_way_of_a_tick() {
    let tickr = TestApp::start().await;
    let slow = with(yearly(), json!({"kind": "sleep", "payload": {"ms": 600_000}}));
    put(&tickr, "slow", &with(slow.clone(), json!({"overlap": "skip"}))).await;
    let first = trigger(&tickr, "slow", "allow").await;
    let beside = trigger(&tickr, "slow", "allow").await;
    tickr.post(&format!("/v1/jobs/{beside}/cancel"), json!({})).await;
    tickr.until(beside, State::Cancelled).await;
    set_back(&tickr, "slow", 1).await;
    let tick = eventually("the schedule ticks", || async {
        ticks(&tickr, "slow").await.into_iter().find(|tick| tick["manual"] == false)
    })
    .await;
    assert_eq!(tick["cause"], "overlap", "{tick:#}");
    assert!(tick["reason"].as_str().unwrap().contains(&first.to_string()), "{tick:#}");
    let refused = tickr.post("/v1/schedules/slow/trigger", json!({})).await;
    assert_eq!((refused.code(), &refused.body["holder"]), ("previous_unfinished", &json!(first)));

    // So is a job that ran before the policy was changed.
    put(&tickr, "lax", &slow).await;
    let older = trigger(&tickr, "lax", "allow").await;
    let newer = trigger(&tickr, "lax", "allow").await;
    tickr.post(&format!("/v1/jobs/{newer}/cancel"), json!({})).await;
    tickr.until(newer, State::Cancelled).await;
    put(&tickr, "lax", &with(slow, json!({"overlap": "skip"}))).await;
    let refused = tickr.post("/v1/schedules/lax/trigger", json!({})).await;
    assert_eq!((refused.code(), &refused.body["holder"]), ("previous_unfinished", &json!(older)));
    trigger(&tickr, "lax", "replace").await;
    tickr.until(older, State::Cancelled).await;
    for id in all_jobs(&tickr).await {
        tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    }
    tickr.until_idle().await;
    tickr.stop().await;
}

async fn all_jobs(tickr: &TestApp) -> Vec<String> {
    let jobs = tickr.get("/v1/jobs?limit=200").await.body;
    jobs["data"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tick_takes_the_place_of_the_previous_job_if_it_says_replace() {
    let tickr = TestApp::start().await;
    // A waiting job is cancelled.
    let waiting = json!({"queue": "unserved", "overlap": "replace"});
    put(&tickr, "waiting", &with(every_second(), waiting)).await;
    let first = id(&first_tick(&tickr, "waiting").await["job_id"]);
    let job = tickr.until(first, State::Cancelled).await;
    assert!(job["last_error"].as_str().unwrap().starts_with("replaced by job "), "{job:#}");
    assert_eq!(delete_of(&tickr, "waiting").await.status, 204);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed").await, 1);
    // An executing job is asked to stop.
    let running = json!({"kind": "sleep", "payload": {"ms": 600_000}, "overlap": "replace"});
    put(&tickr, "running", &with(every_second(), running)).await;
    let first = id(&first_tick(&tickr, "running").await["job_id"]);
    let job = tickr.until(first, State::Cancelled).await;
    assert!(job["attempts"].as_array().map_or(0, Vec::len) <= 1, "{job:#}");
    assert_eq!(delete_of(&tickr, "running").await.status, 204);
    for id in all_jobs(&tickr).await {
        tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    }
    tickr.until_idle().await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_outage_each_policy_does_what_it_says_and_writes_little() {
    let tickr = TestApp::start().await;
    // Twenty ticks are missed: those since a minute ago.
    let missed = |policy: &str| {
        let grace_ms = if policy == "skip" { 1_000 } else { 0 };
        let more = json!({"misfire": policy, "misfire_grace_ms": grace_ms, "queue": "unserved"});
        with(with(yearly(), json!({"cron": "*/3 * * * * *"})), more)
    };
    for policy in ["skip", "one", "all"] {
        put(&tickr, policy, &missed(policy)).await;
    }
    put(&tickr, "long", &with(missed("skip"), json!({"cron": "* * * * * *", "misfire": "skip"}))).await;
    put(&tickr, "many", &with(missed("all"), json!({"cron": "* * * * * *"}))).await;
    // The pause keeps jobs away. Each transaction below resumes a schedule and moves it into the past, so that one pass
    // finds all its missed ticks. It also deletes the ticks that were recorded as paused until then: the ledger refuses
    // a second line for the same tick.
    let names = ["skip", "one", "all", "long", "many"];
    join_all(names.iter().map(|name| tickr.post_pause(name))).await;
    for (name, seconds) in [("skip", 60), ("one", 60), ("all", 60), ("long", 30 * 86_400), ("many", 86_400)] {
        tickr
            .sql(format!(
                "START TRANSACTION; \
                 UPDATE schedules SET paused_at = NULL, paused_by = NULL, pause_reason = NULL, last_at = NULL, next_at = \
                 TIMESTAMP(DATE_FORMAT(UTC_TIMESTAMP() - INTERVAL {seconds} SECOND, '%Y-%m-%d %H:%i:00')) WHERE name = '{name}'; \
                 DELETE FROM ticks WHERE schedule = '{name}'; \
                 COMMIT"
            ))
            .await;
    }
    let began = Instant::now();
    let behind = "SELECT CONCAT_WS(' ', UTC_TIMESTAMP(6), name, next_at) FROM schedules \
                  WHERE next_at <= UTC_TIMESTAMP() - INTERVAL 5 SECOND";
    let mut mysql = tickr.mysql().await;
    loop {
        let behind: Vec<String> = sqlx::query_scalar(behind).fetch_all(&mut mysql).await.unwrap();
        if behind.is_empty() {
            break;
        }
        // A month of ticks, one a second, is much to compute for a program that is built for tests on a busy machine.
        assert!(began.elapsed() < 4 * DEADLINE, "behind: {behind:#?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for name in names {
        assert_eq!(delete_of(&tickr, name).await.status, 204);
    }
    // These are the ticks of the outage. Ticks after it are on time or late by milliseconds.
    let fired = "SELECT COUNT(*) FROM ticks WHERE outcome = 'fired' AND due_at < recorded_at - INTERVAL 5 SECOND AND schedule = ";
    let late = async |name: &str| tickr.count(format!("{fired}'{name}'")).await;
    assert_eq!(late("skip").await, 0);
    assert!(late("all").await >= 18, "{}", late("all").await);
    let ones = ticks(&tickr, "one").await;
    let first_fired = ones.iter().position(|tick| tick["outcome"] == "fired").unwrap();
    assert!(first_fired >= 18 && ones[..first_fired].iter().all(|tick| tick["cause"] == "missed"), "{ones:#?}");
    assert_eq!(late("long").await, 0);
    let lines = tickr.count("SELECT COUNT(*) FROM ticks WHERE schedule = 'long'").await;
    assert!(lines < 150, "{lines}");
    assert_eq!(tickr.count("SELECT CAST(MAX(ticks) AS SIGNED) FROM ticks WHERE schedule = 'long'").await, 10_000);
    let many = late("many").await;
    assert!((950..=1_000).contains(&many), "{many}");
    tickr.stop().await;
}

impl TestApp {
    async fn post_pause(&self, name: &&str) {
        assert_eq!(self.post(&format!("/v1/schedules/{name}/pause"), json!({})).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_its_kind_does_not_take_any_more_is_skipped_and_told_without_end_of_the_runner() {
    let tickr = TestApp::start().await;
    put(&tickr, "old", &with(every_second(), json!({"kind": "sleep", "payload": {"ms": 0}}))).await;
    // An older binary, whose kind allowed this payload, has accepted it.
    tickr.sql("UPDATE schedules SET payload = '{\"ms\": \"long\"}'").await;
    tickr.until_count("SELECT COUNT(*) >= 2 FROM ticks WHERE cause = 'invalid'", 1).await;
    let lines = ticks(&tickr, "old").await;
    let why = lines.last().unwrap()["reason"].as_str().unwrap();
    assert!(why.contains("/ms"), "{why}");
    let refused = tickr.post("/v1/schedules/old/trigger", json!({})).await;
    assert_eq!((refused.status, refused.code(), refused.pointers()), (422, "invalid_payload", vec!["/payload/ms"]));
    // A schedule that no runner can read does not delay the others.
    tickr.sql("UPDATE schedules SET zone = 'Atlantis/Capital', next_at = '2020-01-01'").await;
    put(&tickr, "new", &every_second()).await;
    assert_eq!(first_tick(&tickr, "new").await["outcome"], "fired");
    assert_eq!(delete_of(&tickr, "old").await.status, 204);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_that_cannot_be_read_or_written_stop_no_other_however_many_they_are() {
    let tickr = TestApp::start().await;
    // There are more such schedules than one pass reads, and all of them come first.
    for n in 0..70 {
        put(&tickr, &format!("bad-{n}"), &yearly()).await;
    }
    put(&tickr, "refused", &yearly()).await;
    let mut refused = String::new();
    // Its next ticks are in the ledger already, as after a restore that went wrong.
    for second in 0..30 {
        refused += &format!(
            "INSERT INTO ticks (schedule, due_at, outcome, cause, recorded_at, recorded_by) VALUES ('refused', \
             TIMESTAMP(DATE_FORMAT(UTC_TIMESTAMP(), '%Y-%m-%d %H:%i:%s')) + INTERVAL {second} SECOND, 'skipped', 'missed', \
             UTC_TIMESTAMP(6), 'test');"
        );
    }
    tickr.sql(refused).await;
    tickr
        .sql(
            "UPDATE schedules SET zone = 'Atlantis/Capital', next_at = '2020-01-01' WHERE name LIKE 'bad-%'; \
             UPDATE schedules SET cron = '* * * * * *', misfire = 'all', \
             next_at = TIMESTAMP(DATE_FORMAT(UTC_TIMESTAMP(), '%Y-%m-%d %H:%i:%s')) + INTERVAL 1 SECOND WHERE name = 'refused'",
        )
        .await;
    put(&tickr, "good", &every_second()).await;
    tickr.until_count("SELECT COUNT(*) >= 3 FROM ticks WHERE schedule = 'good' AND outcome = 'fired'", 1).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM ticks WHERE schedule = 'refused' AND outcome = 'fired'").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_of_a_foreign_kind_is_left_to_a_runner_that_has_it() {
    let tickr = TestApp::start_with(|config| config.test_kinds = false, Registry::new()).await;
    let other = tickr.another_with(|config| config.test_kinds = true, Registry::new()).await;
    let (runner, name) = (other.runner().to_string(), "foreign");
    assert_eq!(put_with(&other, name, &[], &every_second()).await.status, 201);
    put(
        &tickr,
        "own",
        &json!({"cron": "* * * * * *", "kind": "http", "payload": {"url": "http://127.0.0.1:1/"}, "queue": "unserved"}),
    )
    .await;
    let tick = first_tick(&tickr, name).await;
    assert_eq!(tick["recorded_by"], format!("runner:{runner}"));
    other.stop(CancellationToken::new()).await;
    let before = tickr.count("SELECT COUNT(*) FROM ticks WHERE schedule = 'foreign'").await;
    tickr.until_count("SELECT COUNT(*) >= 2 FROM ticks WHERE schedule = 'own'", 1).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM ticks WHERE schedule = 'foreign'").await, before);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_takes_effect_at_once_and_what_was_due_before_it_gets_its_line() {
    let tickr = TestApp::start().await;
    put(&tickr, "nightly", &yearly()).await;
    put(&tickr, "nightly", &every_second()).await;
    first_tick(&tickr, "nightly").await;
    let other = tickr.another().await;
    assert_eq!(put_with(&other, "nightly", &[], &yearly()).await.status, 200);
    other.stop(CancellationToken::new()).await;
    // Ticks that no runner had processed before the change are skipped by it. Each second has its line.
    assert_eq!(tickr.count("SELECT COUNT(*) FROM ticks WHERE cause IS NOT NULL AND cause <> 'changed'").await, 0);
    let gaps = "SELECT CAST(TIMESTAMPDIFF(SECOND, MIN(due_at), MAX(due_at + INTERVAL ticks SECOND)) - SUM(ticks) \
         AS SIGNED) FROM ticks";
    assert_eq!(tickr.count(gaps).await, 0);
    let fired = tickr.count("SELECT COUNT(*) FROM ticks WHERE outcome = 'fired'").await;
    assert!(fired > 0);
    let own = "SELECT COUNT(DISTINCT j.id) FROM ticks t JOIN jobs j ON j.id = t.job_id";
    assert_eq!((tickr.count(own).await, tickr.count("SELECT COUNT(*) FROM jobs").await), (fired, fired));
    let before = ticks(&tickr, "nightly").await;
    // No runner processed these ticks, and the change leaves them out.
    let paused = tickr.post("/v1/schedules/nightly/pause", json!({})).await;
    assert_eq!(paused.status, 200);
    tickr.sql("UPDATE schedules SET kind = 'nobody-has-it', paused_at = NULL, paused_by = NULL").await;
    set_back(&tickr, "nightly", 600).await;
    put(&tickr, "nightly", &with(yearly(), json!({"cron": "0 0 2 1 *"}))).await;
    let passed: Vec<Value> = ticks(&tickr, "nightly").await.into_iter().filter(|tick| !before.contains(tick)).collect();
    assert_eq!(passed.len(), 1, "{passed:#?}");
    assert_eq!((&passed[0]["cause"], &passed[0]["reason"]), (&json!("changed"), &json!("changed by anyone")));
    // If a name is used again, its ticks continue after the last recorded tick of that name, whatever the clock says.
    assert_eq!(delete_of(&tickr, "nightly").await.status, 204);
    tickr.sql("UPDATE ticks SET due_at = '2049-06-01' WHERE cause = 'changed' ORDER BY due_at LIMIT 1").await;
    let again = put(&tickr, "nightly", &yearly()).await;
    assert_eq!(again["next_at"], "2050-01-01T00:00:00.000Z");
    tickr.stop().await;
}

/// Such a ledger is what a deleted schedule leaves behind when the clock of MySQL is set back.
#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_is_made_again_and_changed_ticks_behind_the_ledger_of_its_name() {
    let tickr = TestApp::start().await;
    tickr
        .sql(
            "INSERT INTO ticks (schedule, due_at, outcome, cause, recorded_at, recorded_by) VALUES \
             ('nightly', '2049-06-01', 'skipped', 'missed', UTC_TIMESTAMP(6), 'gone/1-abcdef')",
        )
        .await;
    assert_eq!(put(&tickr, "nightly", &yearly()).await["next_at"], "2050-01-01T00:00:00.000Z");
    // From the present time on, the next tick of either would be one that the ledger has.
    for (cron, next) in [("0 0 1 6 *", "2050-06-01T00:00:00.000Z"), ("0 0 2 1 *", "2050-01-02T00:00:00.000Z")] {
        let changed = put(&tickr, "nightly", &with(yearly(), json!({"cron": cron}))).await;
        assert_eq!(changed["next_at"], next, "{changed:#}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interval_ticks_from_its_anchor_and_a_change_of_its_job_does_not_move_it() {
    let tickr = TestApp::start().await;
    let every = json!({"every_ms": 3_600_000, "kind": "noop"});
    let made = put(&tickr, "hourly", &every).await;
    let moment = |value: &Value| value.as_str().unwrap().parse::<chrono::DateTime<chrono::Utc>>().unwrap();
    assert_eq!(moment(&made["next_at"]) - moment(&made["anchor"]), chrono::TimeDelta::hours(1));
    let changed = put(&tickr, "hourly", &with(every.clone(), json!({"priority": 1}))).await;
    assert_eq!((&changed["next_at"], &changed["anchor"]), (&made["next_at"], &made["anchor"]));
    let moved = put(&tickr, "hourly", &with(every.clone(), json!({"anchor": "2026-01-01T00:17:00Z"}))).await;
    assert!(moved["next_at"].as_str().unwrap().ends_with(":17:00.000Z"), "{moved:#}");
    let quick = put(&tickr, "hourly", &with(every, json!({"every_ms": 1_000}))).await;
    first_tick(&tickr, "hourly").await;
    tickr.until_count("SELECT COUNT(*) >= 3 FROM ticks", 1).await;
    let ms = moment(&quick["anchor"]).timestamp_subsec_millis();
    for tick in ticks(&tickr, "hourly").await {
        assert_eq!(moment(&tick["due_at"]).timestamp_subsec_millis(), ms);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn listings_go_on_where_they_stopped() {
    let tickr = TestApp::start().await;
    for n in 0..5 {
        put(&tickr, &format!("s{n}"), &yearly()).await;
    }
    let mut names = Vec::new();
    let mut path = "/v1/schedules?limit=2".to_owned();
    loop {
        let page = tickr.get(&path).await.body;
        names.extend(page["data"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/v1/schedules?limit=2&cursor={cursor}");
    }
    assert_eq!(names, ["s0", "s1", "s2", "s3", "s4"]);
    for n in 0..6 {
        let cause =
            if n % 2 == 0 { "NULL, x'00000000000000000000000000000001', 'fired'" } else { "'missed', NULL, 'skipped'" };
        tickr
            .sql(format!(
                "INSERT INTO ticks (schedule, due_at, number, cause, job_id, outcome, recorded_at, recorded_by) VALUES \
                 ('s0', '2026-01-01 00:00:0{}', {}, {cause}, UTC_TIMESTAMP(6), 'test')",
                n / 2,
                n % 2
            ))
            .await;
    }
    for (filter, wanted) in [("", 6), ("&outcome=fired", 3), ("&outcome=skipped", 3)] {
        let (mut seen, mut path) = (BTreeSet::new(), format!("/v1/schedules/s0/ticks?limit=2{filter}"));
        loop {
            let page = tickr.get(&path).await.body;
            for tick in page["data"].as_array().unwrap() {
                assert!(seen.insert((tick["due_at"].to_string(), tick["manual"].to_string())));
            }
            let Some(cursor) = page["next_cursor"].as_str() else { break };
            path = format!("/v1/schedules/s0/ticks?limit=2{filter}&cursor={cursor}");
        }
        assert_eq!(seen.len(), wanted, "{filter}");
    }
    // Retention removes ticks by age, schedule by schedule.
    let store = tickr.app.broker().store();
    tickr.sql("UPDATE ticks SET recorded_at = '2026-01-01' WHERE number = 0").await;
    let (gone, next) = store.purge_ticks(None, Duration::from_secs(86_400)).await.unwrap();
    assert_eq!((gone, next.as_deref()), (3, Some("s0")));
    assert_eq!(store.purge_ticks(Some("s0".into()), Duration::ZERO).await.unwrap(), (0, None));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM ticks").await, 3);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_schedule_that_cannot_be_read_hides_no_other() {
    let tickr = TestApp::start().await;
    for name in ["a", "b", "c"] {
        put(&tickr, name, &yearly()).await;
    }
    tickr.sql("UPDATE schedules SET zone = 'Atlantis/Capital' WHERE name = 'b'").await;
    let names = |page: &Value| -> Vec<String> {
        page["data"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
    };
    let all = tickr.get("/v1/schedules").await;
    assert_eq!((all.status, names(&all.body)), (200, vec!["a".to_owned(), "c".to_owned()]), "{:#}", all.body);
    let told = all.body["unreadable"].as_array().unwrap();
    assert_eq!((told.len(), &told[0]["name"]), (1, &json!("b")));
    let reason = told[0]["reason"].as_str().unwrap();
    assert!(reason.starts_with("zone Atlantis/Capital"), "{reason}");
    // A listing continues after a page that has only such schedules.
    let mut cursor = String::new();
    let mut seen = Vec::new();
    for readable in [1, 0, 1] {
        let page = tickr.get(&format!("/v1/schedules?limit=1{cursor}")).await.body;
        assert_eq!(
            (page["data"].as_array().unwrap().len(), page["unreadable"].as_array().unwrap().len()),
            (readable, 1 - readable)
        );
        seen.extend(names(&page));
        cursor = page["next_cursor"].as_str().map(|next| format!("&cursor={next}")).unwrap_or_default();
    }
    assert_eq!((seen, cursor.as_str()), (vec!["a".to_owned(), "c".to_owned()], ""));
    let refused = [
        tickr.get("/v1/schedules/b").await,
        tickr.get("/v1/schedules/b/ticks").await,
        tickr.post("/v1/schedules/b/pause", json!({})).await,
        tickr.post("/v1/schedules/b/resume", json!({})).await,
        tickr.post("/v1/schedules/b/trigger", json!({})).await,
    ];
    for answer in refused {
        assert_eq!((answer.status, answer.code()), (409, "unreadable_schedule"), "{:#}", answer.body);
        assert!(answer.body["detail"].as_str().unwrap().contains("zone Atlantis/Capital"), "{:#}", answer.body);
    }
    assert_eq!(delete_of(&tickr, "b").await.status, 204);
    assert_eq!(tickr.get("/v1/schedules").await.body["unreadable"], json!([]));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_cannot_be_read_is_replaced_by_a_put_and_by_a_start() {
    let tickr = TestApp::start().await;
    let unreadable = "UPDATE schedules SET zone = 'Atlantis/Capital', overlap = 'skip', next_at = '2020-01-01'";
    let of_api = put_with(&tickr.app, "of-api", &[], &yearly()).await;
    assert_eq!(tickr.post("/v1/schedules/of-api/pause", json!({"reason": "closed"})).await.status, 200);
    tickr.sql(unreadable).await;
    let stale = put_with(&tickr.app, "of-api", &[("if-match", "\"1-1\"")], &yearly()).await;
    assert_eq!(stale.code(), "precondition_failed");
    let put = put_with(&tickr.app, "of-api", &[("if-match", of_api.header("etag"))], &yearly()).await;
    assert_eq!(put.status, 200, "{:#}", put.body);
    assert_eq!((&put.body["zone"], &put.body["overlap"]), (&json!("UTC"), &json!("allow")));
    assert_eq!(put.body["next_at"], of_api.body["next_at"]);
    assert_eq!(
        (&put.body["paused"]["reason"], &put.body["created_at"]),
        (&json!("closed"), &of_api.body["created_at"])
    );

    let file = tickr.dir.path().join("schedules.toml");
    std::fs::write(&file, "[schedules.of-file]\ncron = \"0 0 1 1 *\"\nkind = \"noop\"\n").unwrap();
    let flags = tickr::config::Flags::default();
    let loaded = tickr::config::Config::load(&flags, std::iter::empty(), Some(file)).unwrap();
    let schedules = loaded.config.schedules;
    let start = async || {
        let other = tickr.another_with(|config| config.schedules = schedules.clone(), Registry::new()).await;
        other.stop(CancellationToken::new()).await;
    };
    start().await;
    tickr.sql(format!("{unreadable} WHERE name = 'of-file'")).await;
    start().await;
    let shown = tickr.get("/v1/schedules/of-file").await;
    assert_eq!((shown.status, &shown.body["zone"]), (200, &json!("UTC")), "{:#}", shown.body);
    assert_eq!(shown.body["next_at"], of_api.body["next_at"]);
    assert_eq!(tickr.get("/v1/schedules").await.body["unreadable"], json!([]));
    tickr.stop().await;
}

/// There are as many of them as a page has, and all come first.
#[tokio::test(flavor = "multi_thread")]
async fn seventy_schedules_that_cannot_be_read_hide_no_other() {
    let tickr = TestApp::start().await;
    put(&tickr, "readable", &yearly()).await;
    for n in 0..70 {
        put(&tickr, &format!("broken-{n:02}"), &yearly()).await;
    }
    tickr.sql("UPDATE schedules SET zone = 'Atlantis/Capital' WHERE name LIKE 'broken-%'").await;
    let (mut seen, mut broken, mut pages, mut cursor) = (Vec::new(), 0, 0, String::new());
    loop {
        let page = tickr.get(&format!("/v1/schedules?limit=50{cursor}")).await;
        assert_eq!(page.status, 200, "{:#}", page.body);
        seen.extend(page.body["data"].as_array().unwrap().iter().map(|row| row["name"].clone()));
        broken += page.body["unreadable"].as_array().unwrap().len();
        pages += 1;
        let Some(next) = page.body["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!((seen, broken, pages), (vec![json!("readable")], 70, 2));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_configuration_declares_is_there_after_the_start_and_only_the_configuration_changes_it() {
    let declared = |toml: &str| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tickr.toml");
        std::fs::write(&path, toml).unwrap();
        let loaded = tickr::config::Config::load(&tickr::config::Flags::default(), std::iter::empty(), Some(path));
        loaded.unwrap().config.schedules
    };
    let file = "[schedules.nightly]\ncron = \"0 3 * * *\"\nzone = \"Europe/Warsaw\"\nkind = \"sleep\"\n\
        payload = '{\"ms\": 1}'\noverlap = \"skip\"\n[schedules.often]\nevery = \"1h\"\nkind = \"noop\"\n";
    let schedules = declared(file);
    let tickr = TestApp::start_with(|config| config.schedules = schedules, Registry::new()).await;
    let shown = tickr.get("/v1/schedules/nightly").await.body;
    assert_eq!(
        (&shown["origin"], &shown["zone"], &shown["overlap"]),
        (&json!("config"), &json!("Europe/Warsaw"), &json!("skip"))
    );
    let often = tickr.get("/v1/schedules/often").await;
    let refused = put_with(&tickr.app, "nightly", &[], &yearly()).await;
    assert_eq!((refused.status, refused.code()), (409, "declared_in_config"));
    assert_eq!(delete_of(&tickr, "nightly").await.code(), "declared_in_config");
    assert_eq!(tickr.delete("/v1/schedules/nightly?undeclared=true").await.code(), "declared_in_config");
    assert_eq!(tickr.post("/v1/schedules/nightly/trigger", json!({})).await.status, 201);
    assert_eq!(tickr.post("/v1/schedules/nightly/pause", json!({})).await.status, 200);

    // A restart changes nothing about a schedule whose declaration stayed the same: not its ticks, its pause or its
    // tag.
    let tickr = tickr.restart().await;
    let again = tickr.get("/v1/schedules/often").await;
    assert_eq!((&again.body["next_at"], again.header("etag")), (&often.body["next_at"], often.header("etag")));
    assert!(!tickr.get("/v1/schedules/nightly").await.body["paused"].is_null());

    // While a new configuration is rolled out, schedules that it leaves out continue. Afterwards they can be deleted.
    let schedules = declared("[schedules.nightly]\ncron = \"0 4 * * *\"\nkind = \"noop\"\n");
    let new = tickr.another_with(|config| config.schedules = schedules, Registry::new()).await;
    let shown = tickr.get("/v1/schedules/nightly").await.body;
    assert_eq!((&shown["cron"], &shown["updated_by"]), (&json!("0 4 * * *"), &json!("config")));
    assert_eq!(tickr.get("/v1/schedules/often").await.status, 200);
    let gone = answer(http().delete(format!("http://{}/v1/schedules/often", new.addr()))).await;
    assert_eq!(gone.status, 409);
    let gone = answer(http().delete(format!("http://{}/v1/schedules/often?undeclared=true", new.addr()))).await;
    assert_eq!(gone.status, 204);
    new.stop(CancellationToken::new()).await;

    // Errors that only the registry of kinds can find are reported with their line as well.
    let schedules = declared(
        "\n[schedules.nightly]\ncron = \"0 4 * * *\"\nkind = \"sleep\"\npayload = '{}'\n[schedules.x]\nevery = \"1h\"\nkind = \"none\"\n",
    );
    let mut config = tickr.config.clone();
    config.schedules = schedules;
    let error = App::start(&config, Registry::new()).await.unwrap_err().to_string();
    for part in ["schedules.nightly.payload (", "line 2)", "schedules.x.kind (", "line 6)"] {
        assert!(error.contains(part), "{error}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_by_replacement_reaches_a_handler_of_the_same_process_at_once() {
    let tickr = TestApp::start().await;
    put(&tickr, "slow", &with(yearly(), json!({"kind": "sleep", "payload": {"ms": 600_000}, "overlap": "replace"})))
        .await;
    let first = id(&tickr.post("/v1/schedules/slow/trigger", json!({})).await.body["id"]);
    tickr.until(first, State::Executing).await;
    tickr
        .event(
            "the stop of the first",
            async { assert_eq!(tickr.post("/v1/schedules/slow/trigger", json!({})).await.status, 201) },
            |event| matches!(event, Event::CancelRequested { id } if *id == first).then_some(()),
        )
        .await;
    tickr.until(first, State::Cancelled).await;
    for id in all_jobs(&tickr).await {
        tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    }
    tickr.until_idle().await;
    tickr.assert_sound().await;
    tickr.stop().await;
}
