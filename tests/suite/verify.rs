//! `tickr verify` (G11): it finds no fault in a system that keeps its promises, and finds each fault of one that does
//! not.

use std::collections::BTreeSet;
use std::time::Duration;

use redis::AsyncTypedCommands;
use serde_json::{Value, json};
use tickr::handlers::Registry;
use tickr::index::Health;
use tickr::job::{JobId, State};
use tickr::store::{MAX_SPARED, Retention};
use tickr::verify::{Check, Pace, Report, Sample, VerifySettings, VerifyVerdict, verify};

use crate::support::program::{Program, command, outcome, tickr};
use crate::support::{DEADLINE, TestApp, eventually, halted, http};

/// Return jobs with every possible outcome.
fn with_every_ending() -> Vec<Value> {
    let quick = json!({"base_ms": 1, "cap_ms": 2});
    let mut jobs = Vec::new();
    for n in 0..10 {
        jobs.extend([
            json!({"kind": "noop"}),
            json!({"kind": "noop", "delay_ms": n * 50}),
            json!({"kind": "noop", "priority": n % 10}),
            json!({"kind": "fail", "payload": {"times": 1}, "retry": quick}),
            json!({"kind": "fail", "max_attempts": 2, "retry": quick}),
            json!({"kind": "fail", "payload": {"permanent": true}}),
            json!({"kind": "sleep", "payload": {"ms": 20}, "timeout_ms": 5, "max_attempts": 1}),
            json!({"kind": "panic", "max_attempts": 1}),
            json!({"kind": "noop", "delay_ms": 600_000}),
            json!({"kind": "noop", "delay_ms": 3_600_000}),
            json!({"kind": "noop", "order_key": format!("line-{}", n % 3)}),
            json!({"kind": "fail", "payload": {"times": 1}, "retry": quick, "order_key": format!("line-{}", n % 3)}),
            json!({"kind": "panic", "max_attempts": 1, "order_key": format!("line-{}", n % 3)}),
            json!({"kind": "fail", "payload": {"permanent": true}, "order_key": "skips", "on_failure": "skip"}),
        ]);
    }
    jobs
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_system_that_keeps_its_promises_lights_no_check() {
    let queues = |config: &mut tickr::config::Config| {
        config.workers = 16;
        config.queues = ["default", "paused", "tight"].map(str::to_owned).into();
    };
    let tickr = TestApp::start_with(queues, Registry::new()).await;
    let other = tickr.another().await;
    // At the same time, operators use every action they have.
    let schedule = json!({"cron": "* * * * * *", "kind": "noop", "misfire_grace_ms": 60_000});
    let put = tickr.put("/v1/schedules/each-second", &schedule).await;
    assert_eq!(put.status, 201);
    let limit = tickr.patch("/v1/queues/tight", json!({"concurrency": 1})).await;
    assert_eq!(limit.status, 200);
    tickr.post("/v1/queues/paused/pause", json!({"reason": "a test"})).await;
    tickr.enqueue_many((0..20).map(|_| json!({"kind": "noop", "queue": "paused"}))).await;
    let narrow = |ms: u64| json!({"kind": "sleep", "queue": "tight", "payload": {"ms": ms}});
    tickr.enqueue_many([narrow(120_000), narrow(1), narrow(1)]).await;
    let operate = |body: Value| {
        let tickr = &tickr;
        async move {
            let answer = tickr.post("/v1/operations", body).await;
            assert_eq!(answer.status, 202, "{:#}", answer.body);
        }
    };
    let load = async {
        for round in 0..4 {
            operate(json!({"action": "delete", "filter": {"kind": "noop", "state": "completed"}, "rate": 200})).await;
            operate(json!({"action": "discard", "filter": {"kind": "panic"}, "reason": "known"})).await;
            operate(json!({"action": "replay", "filter": {"kind": "sleep"}})).await;
            operate(json!({"action": "retry", "filter": {"kind": "fail"}, "rate": 100})).await;
            tickr.post(&of_runner(other.runner(), "drain"), json!({})).await;
            let store = tickr.app.broker().store();
            let moment = Duration::from_millis(20);
            let keep =
                Retention { completed: moment, cancelled: moment, ..Retention::all(Duration::from_secs(86_400)) };
            store.purge_page(None, &keep).await.unwrap();
            let keep = Retention { discarded: Duration::ZERO, ..keep };
            store.purge_discarded(&keep).await.unwrap();
            tickr.post(&of_runner(other.runner(), "resume"), json!({})).await;
            let ids = tickr.enqueue_many(with_every_ending()).await;
            let keyed = (0..5).map(|n| json!({"kind": "noop", "delay_ms": 700, "unique_key": format!("{round}-{n}")}));
            let keyed = tickr.enqueue_many(keyed).await;
            let slow = tickr.enqueue_kind("sleep", json!({"ms": 60_000})).await;
            tickr.until(slow, State::Executing).await;
            for id in ids.iter().step_by(7).chain(keyed.first()).chain([&slow]) {
                tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
            }
            for id in ids.iter().skip(9).step_by(20) {
                tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await;
            }
            for id in ids.iter().skip(4).step_by(10) {
                tickr.post(&format!("/v1/jobs/{id}/retry"), json!({})).await;
            }
        }
    };
    let checks = async {
        let (store, index) = (tickr.app.broker().store(), tickr.app.index());
        let settings = halted::settings(&tickr.config, VerifySettings::PATIENCE, false);
        for _ in 0..5 {
            let report = verify(store, index, &settings, |_| {}).await.unwrap();
            assert!(report.ok, "{}", serde_json::to_string_pretty(&report).unwrap());
            assert_eq!(report.checks.len(), Check::ALL.len());
        }
    };
    tokio::join!(load, checks);
    // A runner that stops gives some of these jobs back.
    let slow = tickr.enqueue_many((0..30).map(|_| json!({"kind": "sleep", "payload": {"ms": 20_000}}))).await;
    tickr.until(slow[0], State::Executing).await;
    other.stop(tokio_util::sync::CancellationToken::new()).await;
    let rest = tickr.halt().await;
    let report = rest.verify(false).await;
    assert!(report.ok, "{}", serde_json::to_string_pretty(&report).unwrap());
    assert!(report.looked_at.jobs > 200 && report.looked_at.attempts > 100, "{:?}", report.looked_at);
    assert!(report.looked_at.scheduled > 20, "{:?}", report.looked_at);
    let count =
        async |sql: &'static str| -> i64 { sqlx::query_scalar(sql).fetch_one(&mut rest.mysql().await).await.unwrap() };
    assert!(count("SELECT COUNT(*) FROM ticks WHERE outcome = 'fired'").await > 0);
    assert!(count("SELECT COUNT(*) FROM departures").await > 0, "batches lost jobs to operators and retention");
    assert!(count("SELECT COUNT(*) FROM dead_letters WHERE standing = 'replayed'").await > 0);
    // No job is newer than this time.
    let mut settings = halted::settings(&rest.config, Duration::ZERO, false);
    settings.since = Some(rest.store.clock().now() + Duration::from_secs(60));
    let report = verify(&rest.store, &rest.index, &settings, |_| {}).await.unwrap();
    assert_eq!((report.ok, report.looked_at.jobs), (true, 0));
    rest.drop().await;
}

/// Return the path of an action on a runner. The name of the runner contains a slash.
fn of_runner(runner: &tickr::job::RunnerId, verb: &str) -> String {
    format!("/v1/runners/{}/{verb}", runner.as_str().replace('/', "%2F"))
}

/// SQL for a runner with nothing to do, which is listed and alive.
const IDLE_RUNNER: &str = "INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, started_at, heartbeat_at) \
     VALUES ('idle/1-abcdef', '0', '[\"noop\"]', '[\"default\"]', 4, 30000, UTC_TIMESTAMP(6), \
     UTC_TIMESTAMP(6) + INTERVAL 1 HOUR)";

#[tokio::test(flavor = "multi_thread")]
async fn a_seeded_fault_lights_its_check() {
    let tickr = TestApp::start().await;
    let quick = json!({"base_ms": 1, "cap_ms": 2});
    let done = tickr.enqueue_many((0..20).map(|_| json!({"kind": "noop"}))).await;
    let failed = json!({"kind": "fail", "max_attempts": 2, "retry": quick});
    let failed = tickr.enqueue_many(vec![failed; 10]).await;
    let waiting = |n: u64| json!({"kind": "noop", "delay_ms": 120_000 + n, "unique_key": format!("k{n}")});
    let waiting = tickr.enqueue_many((0..20).map(waiting)).await;
    let cancelled = tickr.enqueue(json!({"kind": "noop", "delay_ms": 60_000})).await;
    tickr.post(&format!("/v1/jobs/{cancelled}/cancel"), json!({})).await;
    tickr.until_count("SELECT COUNT(*) FROM owed", 20).await;
    eventually("the index knows them all", || async {
        (tickr.app.index().depth(&[]).await.unwrap().0 >= 20).then_some(())
    })
    .await;
    let rest = tickr.halt().await;
    // The test breaks and removes one job at a time, and a batch would rightly report that.
    rest.sql("UPDATE jobs SET batch_id = NULL, batch_size = NULL").await;
    rest.sql(IDLE_RUNNER).await;
    let clean = rest.verify(false).await;
    assert!(clean.ok, "{}", serde_json::to_string_pretty(&clean).unwrap());

    let mut redis = rest.redis().await;
    let scheduled = rest.key("waiting");
    let (mut done, mut failed, mut waiting) = (done.into_iter(), failed.into_iter(), waiting.into_iter());
    let (mut done, mut failed) = (|| done.next().unwrap(), || failed.next().unwrap());
    let mut waiting = || waiting.next().unwrap();
    let mut seeds: Vec<(Check, JobId, String)> = Vec::new();
    let mut seed = |check: Check, id: JobId, sql: &str| {
        seeds.push((check, id, sql.replace("ID", &format!("UNHEX('{}')", id.uuid().simple()))));
    };
    seed(Check::Lost, waiting(), "DELETE FROM unique_keys WHERE job_id = ID; DELETE FROM owed WHERE id = ID");
    seed(Check::Strange, done(), "DELETE FROM jobs WHERE id = ID");
    seed(Check::Strange, waiting(), "UPDATE owed SET max_attempts = 9 WHERE id = ID");
    let open = "UPDATE owed SET state = 'executing', attempt = 1, token = ID, runner = 'idle/1-abcdef', \
         execute_at = UTC_TIMESTAMP(3), started_at = UTC_TIMESTAMP(6), lease_until = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR \
         WHERE id = ID";
    let closed = "INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict) \
         SELECT id, 1, 1, 'x', created_at - INTERVAL 1 SECOND, created_at, created_at, 'failed' FROM jobs WHERE id = ID";
    seed(Check::OpenAttempt, waiting(), &format!("{open}; {closed}"));
    seed(Check::Contiguous, waiting(), "UPDATE owed SET attempt = 1 WHERE id = ID");
    seed(
        Check::Overlap,
        failed(),
        "UPDATE attempts a JOIN attempts b ON b.job_id = a.job_id AND b.number = 1 \
         SET a.execute_at = b.execute_at, a.started_at = b.started_at WHERE a.job_id = ID AND a.number = 2",
    );
    seed(
        Check::Completed,
        done(),
        "INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict, end_state) \
         SELECT job_id, 2, 1, runner, execute_at, finished_at, finished_at, 'succeeded', 'completed' FROM attempts WHERE job_id = ID",
    );
    seed(Check::Early, done(), "UPDATE attempts SET execute_at = started_at + INTERVAL 1 SECOND WHERE job_id = ID");
    seed(Check::Bounded, done(), "UPDATE attempts SET burned = 0 WHERE job_id = ID");
    seed(Check::Bounded, failed(), "UPDATE jobs SET max_attempts = 1 WHERE id = ID");
    seed(Check::Failed, failed(), "UPDATE jobs SET max_attempts = 5 WHERE id = ID");
    seed(Check::DeadLetter, failed(), "DELETE FROM dead_letters WHERE job_id = ID");
    seed(Check::Cancelled, cancelled, "UPDATE attempts SET cancel_requested_at = NULL WHERE job_id = ID");
    seed(
        Check::Final,
        done(),
        "INSERT INTO owed (id, kind, queue, priority, max_attempts, state, execute_at, attempt) \
         SELECT id, kind, queue, priority, max_attempts, 'retrying', UTC_TIMESTAMP(3) + INTERVAL 1 DAY, 1 FROM jobs WHERE id = ID",
    );
    seed(Check::UniqueKey, waiting(), "DELETE FROM unique_keys WHERE job_id = ID");
    seed(Check::UniqueKey, waiting(), "UPDATE unique_keys SET unique_key = 'another' WHERE job_id = ID");
    seed(
        Check::UniqueKey,
        done(),
        "INSERT INTO unique_keys (kind, unique_key, job_id) VALUES ('noop', 'left behind', ID)",
    );
    seed(Check::Order, waiting(), "UPDATE owed SET execute_at = '9999-12-31' WHERE id = ID");
    let place =
        "INSERT INTO order_places (job_id, order_key, place, due_at, blocks) VALUES (ID, 'k', 1, '2026-01-01', 0)";
    seed(Check::Order, done(), place);
    let without_place = r#"UPDATE jobs SET options = '{"order":{"key":"k","on_failure":"block"}}' WHERE id = ID"#;
    seed(Check::Order, waiting(), without_place);
    let headless = "INSERT INTO order_keys (order_key, head, tail) VALUES ('k', 1, 1) ON DUPLICATE KEY UPDATE head = 1";
    seed(Check::Order, done(), headless);
    seed(Check::Limit, waiting(), "UPDATE owed SET execute_at = '9999-12-30' WHERE id = ID");
    let stranded = "UPDATE owed SET execute_at = '9999-12-30' WHERE id = ID; \
         INSERT INTO limit_waits (job_id, limit_name, limit_key, queue, due_at) \
         VALUES (ID, 'removed', 'k', 'default', UTC_TIMESTAMP(3))";
    seed(Check::Limit, waiting(), stranded);
    let exceeded = "INSERT INTO limits (name, shared_by, concurrency, changed_at, changed_by) \
         VALUES ('seeded', 'key', 0, '2026-01-01', 'test'); \
         INSERT INTO limit_slots (limit_name, limit_key, job_id) VALUES ('seeded', 'k', ID)";
    seed(Check::Limit, waiting(), &format!("{open}; {exceeded}"));
    seed(Check::Parents, waiting(), "UPDATE owed SET execute_at = '9999-12-31 12:00:00' WHERE id = ID");
    seed(Check::Parents, done(), "INSERT INTO job_parents (parent_id, child_id) VALUES (ID, ID)");
    seed(Check::Parents, done(), "INSERT INTO blocked_jobs VALUES (ID, UTC_TIMESTAMP(3), 'cancel')");
    let forgotten = "UPDATE owed SET execute_at = '9999-12-31 12:00:00' WHERE id = ID; \
         INSERT INTO blocked_jobs VALUES (ID, UTC_TIMESTAMP(3), 'cancel')";
    seed(Check::Parents, waiting(), forgotten);
    let batch = |columns: &str, values: &str| {
        format!(
            "INSERT INTO batches (id, actor, created_at, {columns}) VALUES (ID, 'test', UTC_TIMESTAMP(6), {values})"
        )
    };
    seed(Check::BatchEnd, done(), &batch("total", "1"));
    seed(Check::BatchEnd, done(), &batch("closed_at", "UTC_TIMESTAMP(6)"));
    let member = "INSERT INTO batch_jobs (job_id, batch_id) VALUES (ID, ID)";
    seed(Check::BatchEnd, waiting(), &format!("{}; {member}", batch("total", "0")));
    let ended = |columns: &str, values: &str| {
        let now = "UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)";
        batch(&format!("closed_at, completed_at, {columns}"), &format!("{now}, {values}"))
    };
    // Counts whose sum fits, while those of the ended jobs do not.
    seed(Check::BatchEnd, done(), &format!("{}; {member}", ended("total, failed", "1, 1")));
    seed(Check::BatchEnd, failed(), &format!("{}; {member}", ended("total, completed", "1, 1")));
    seed(Check::BatchEnd, done(), &ended("succeeded_at, total, failed", "UTC_TIMESTAMP(6), 1, 1"));
    let callback = format!(
        r#"'[{{"event":"complete","id":"{}","kind":"noop","queue":"default","payload":{{}},"priority":5,"max_attempts":1}}]'"#,
        JobId::new()
    );
    seed(Check::BatchEnd, done(), &ended("callbacks", &callback));
    seed(Check::Batch, done(), "UPDATE jobs SET batch_id = ID, batch_size = 2 WHERE id = ID");
    let tick = "INSERT INTO ticks (schedule, due_at, outcome, job_id, recorded_at, recorded_by) VALUES \
         ('seeded', UTC_TIMESTAMP(3), 'fired', ID, UTC_TIMESTAMP(6), 'test')";
    seed(Check::Tick, JobId::new(), tick);
    seed(Check::Counted, done(), "UPDATE tallies SET n = n - 100 WHERE kind = 'noop' AND state = 'completed' LIMIT 1");
    seed(Check::Abandoned, waiting(), &open.replace("+ INTERVAL 1 HOUR", "- INTERVAL 3601 SECOND"));
    let of_the_gone = open.replace("idle/1-abcdef", "gone.w-abcdef");
    seed(Check::Departed, waiting(), &of_the_gone.replace("+ INTERVAL 1 HOUR", "- INTERVAL 3601 SECOND"));
    seed(Check::Overdue, waiting(), "UPDATE owed SET execute_at = UTC_TIMESTAMP(3) - INTERVAL 10 SECOND WHERE id = ID");
    seed(Check::IndexScore, waiting(), "UPDATE owed SET execute_at = execute_at + INTERVAL 5 SECOND WHERE id = ID");
    seed(Check::IndexMissing, waiting(), "");
    seed(Check::IndexExtra, waiting(), "");

    let mut lit: BTreeSet<Check> = BTreeSet::new();
    for (check, id, sql) in seeds {
        let member = format!("default:{id}");
        match check {
            Check::IndexMissing => drop(redis.zrem(&scheduled, &member).await.unwrap()),
            Check::IndexExtra => {
                let stranger = format!("default:{}", JobId::new());
                redis.zadd(&scheduled, stranger, 4_000_000_000_000_u64).await.unwrap();
            }
            // Only the tables should be wrong here, and not the index.
            Check::Overdue | Check::IndexScore => rest.sql(sql.clone()).await,
            _ => {
                rest.sql(sql.clone()).await;
                redis.zrem(&scheduled, &member).await.unwrap();
            }
        }
        let report = rest.verify(false).await;
        assert!(!report.ok, "{check:?}");
        let mut faults = report.faults();
        // The test removed the job from the index on purpose, and the job still waits.
        if check != Check::IndexMissing {
            faults.remove(&Check::IndexMissing);
        }
        assert!(faults.remove(&check).is_some(), "{sql}\n{}", serde_json::to_string_pretty(&report).unwrap());
        // A second success is also an attempt after the end.
        if check == Check::Completed {
            faults.remove(&Check::Final);
        }
        assert!(faults.is_empty(), "{check:?} {faults:?}\n{}", serde_json::to_string_pretty(&report).unwrap());
        lit.insert(check);
        // Remove the job before the next one.
        for (table, column) in [
            ("owed", "id"),
            ("jobs", "id"),
            ("attempts", "job_id"),
            ("unique_keys", "job_id"),
            ("ticks", "job_id"),
            ("dead_letters", "job_id"),
            ("order_places", "job_id"),
            ("job_parents", "child_id"),
            ("blocked_jobs", "job_id"),
            ("batches", "id"),
            ("batch_jobs", "job_id"),
        ] {
            rest.sql(format!("DELETE FROM {table} WHERE {column} = UNHEX('{}')", id.uuid().simple())).await;
        }
        redis.zrem(&scheduled, &member).await.unwrap();
        rest.sql("DELETE FROM order_keys").await;
        rest.sql("DELETE FROM limits; DELETE FROM limit_slots; DELETE FROM limit_keys; DELETE FROM limit_waits").await;
        if check == Check::Counted {
            rest.sql(sql.replace("- 100", "+ 100")).await;
        }
        if check == Check::IndexExtra {
            redis.zrembyscore(&scheduled, 4_000_000_000_000_u64, "+inf").await.unwrap();
        }
    }
    assert_eq!(lit, BTreeSet::from(Check::ALL));
    let clean = rest.verify(false).await;
    assert!(clean.ok, "{}", serde_json::to_string_pretty(&clean).unwrap());
    rest.drop().await;
}

/// The reaper gives back what a worker that has left still holds. A living worker with a lease of an hour does not delay
/// that for an hour, so the check does not wait for as long either.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_a_departed_worker_holds_is_found_beside_long_leases_and_not_while_it_may_be_given_back() {
    let tickr = TestApp::start().await;
    let id = tickr.enqueue(json!({"kind": "noop", "delay_ms": 600_000})).await;
    let rest = tickr.halt().await;
    rest.sql(IDLE_RUNNER).await;
    let worker = "INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, started_at, via, heartbeat_at, \
                  stopped_at) SELECT '{id}', '0', kinds, queues, 4, {lease}, started_at, 'http', {beat}, {stop} \
                  FROM runners WHERE id = 'idle/1-abcdef'";
    for (name, lease, beat, stop) in [
        ("long.w-abcdef", "3600000", "heartbeat_at", "NULL"),
        ("left.w-abcdef", "30000", "heartbeat_at", "UTC_TIMESTAMP(6)"),
        ("silent.w-abcdef", "30000", "UTC_TIMESTAMP(6) - INTERVAL 1 HOUR", "NULL"),
    ] {
        let row = worker.replace("{id}", name).replace("{lease}", lease);
        rest.sql(row.replace("{beat}", beat).replace("{stop}", stop)).await;
    }
    let faults = async |runner: &str, seconds: i32| {
        rest.sql(format!(
            "UPDATE owed SET state = 'executing', attempt = 1, token = id, runner = '{runner}', \
             execute_at = UTC_TIMESTAMP(3), started_at = UTC_TIMESTAMP(6), \
             lease_until = UTC_TIMESTAMP(6) - INTERVAL {seconds} SECOND WHERE id = UNHEX('{}')",
            id.uuid().simple()
        ))
        .await;
        let report = rest.verify(false).await;
        assert_eq!(report.finding(Check::Abandoned).faults, 0, "{}", pretty(&report));
        report.finding(Check::Departed).clone()
    };
    for runner in ["left.w-abcdef", "gone.w-abcdef"] {
        let found = faults(runner, 100).await;
        assert_eq!((found.faults, found.samples[0].job), (1, Some(id)), "{runner}");
        assert_eq!(faults(runner, 10).await.faults, 0, "{runner}: a reaper may still give it back");
        assert_eq!(faults(runner, -60).await.faults, 0, "{runner}: its lease holds");
    }
    // The reaper ends these as lost, once it may judge their holders.
    for runner in ["silent.w-abcdef", "long.w-abcdef"] {
        assert_eq!(faults(runner, 100).await.faults, 0, "{runner} has not left");
    }
    rest.sql("UPDATE runners SET stopped_at = UTC_TIMESTAMP(6) WHERE via = 'process'").await;
    assert_eq!(faults("left.w-abcdef", 100).await.faults, 0, "no process is alive that could give it back");
    rest.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_life_of_a_retried_job_is_compared_with_the_other_jobs_of_its_order_key() {
    let tickr = TestApp::start().await;
    let skips = json!({"kind": "fail", "payload": {"permanent": true}, "order_key": "k", "on_failure": "skip"});
    let blocks = json!({"kind": "fail", "payload": {"permanent": true}, "order_key": "k"});
    let next = json!({"kind": "noop", "order_key": "k"});
    let [skipped, between, blocker] = tickr.enqueue_many([skips, next, blocks]).await[..] else { panic!() };
    // The first one takes the last place with its second life, and the last one keeps its own.
    tickr.until(blocker, State::Failed).await;
    for id in [skipped, blocker] {
        assert_eq!(tickr.post(&format!("/v1/jobs/{id}/retry"), json!({})).await.status, 200);
    }
    tickr.until_attempts(blocker, 2).await;
    tickr.until(blocker, State::Failed).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{blocker}/discard"), json!({"reason": "no"})).await.status, 200);
    tickr.until_attempts(skipped, 2).await;
    tickr.until(skipped, State::Failed).await;
    let rest = tickr.halt().await;
    rest.sql(IDLE_RUNNER).await;
    let clean = rest.verify(false).await;
    assert!(clean.ok, "{}", serde_json::to_string_pretty(&clean).unwrap());
    let [skipped, between] = [skipped, between].map(|id| format!("UNHEX('{}')", id.uuid().simple()));
    for (number, columns) in [
        (1, "a.finished_at = b.started_at + INTERVAL 1 MICROSECOND"),
        // Behind its first life and in front of the job that was in front of its new place.
        (2, "a.started_at = c.finished_at, a.execute_at = c.execute_at"),
    ] {
        rest.sql("CREATE TABLE kept AS SELECT job_id, number, execute_at, started_at, finished_at FROM attempts").await;
        rest.sql(format!(
            "UPDATE attempts a JOIN attempts b ON b.job_id = {between} JOIN attempts c ON c.job_id = a.job_id \
             AND c.number = 1 SET {columns} WHERE a.job_id = {skipped} AND a.number = {number}"
        ))
        .await;
        let report = rest.verify(false).await;
        let lit: Vec<Check> = report.faults().into_keys().collect();
        assert_eq!(lit, [Check::Order], "{number} {}", serde_json::to_string_pretty(&report).unwrap());
        rest.sql(
            "UPDATE attempts a JOIN kept k ON k.job_id = a.job_id AND k.number = a.number \
             SET a.execute_at = k.execute_at, a.started_at = k.started_at, a.finished_at = k.finished_at",
        )
        .await;
        rest.sql("DROP TABLE kept").await;
    }
    rest.drop().await;
}

/// Each part of the rule about the attempts of a life is broken by itself, and a life that uses all that the rule
/// allows is no fault.
#[tokio::test(flavor = "multi_thread")]
async fn a_life_beyond_its_bounds_is_found_and_one_that_just_keeps_them_is_not() {
    let tickr = TestApp::start().await;
    let ids = tickr.enqueue_many((0..6).map(|_| json!({"kind": "noop", "max_attempts": 2}))).await;
    tickr.until_idle().await;
    let rest = tickr.halt().await;
    // One job at a time is broken, and a batch would rightly report that.
    rest.sql("UPDATE jobs SET batch_id = NULL, batch_size = NULL").await;
    // Rows in place of the real ones: the verdicts, how many attempts each row says were used up, and the end.
    let lived = async |id: JobId, most: u32, lines: &[(&str, u32, Option<&str>)]| {
        let hex = format!("UNHEX('{}')", id.uuid().simple());
        let mut sql = format!("UPDATE jobs SET max_attempts = {most} WHERE id = {hex}; ");
        sql += &format!("DELETE FROM attempts WHERE job_id = {hex}; DELETE FROM dead_letters WHERE job_id = {hex}; ");
        for (place, (verdict, burned, end)) in lines.iter().enumerate() {
            let error = if *verdict == "succeeded" { "NULL" } else { "'no'" };
            let end = end.map_or("NULL".to_owned(), |end| format!("'{end}'"));
            sql += &format!(
                "INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict, \
                 end_state, error) SELECT id, {}, {burned}, 'gone/1-abcdef', execute_at, \
                 created_at + INTERVAL {place} SECOND, created_at + INTERVAL {place} SECOND, '{verdict}', {end}, {error} \
                 FROM jobs WHERE id = {hex}; ",
                place + 1
            );
        }
        if lines.last().is_some_and(|(_, _, end)| *end == Some("failed")) {
            sql += &format!(
                "INSERT INTO dead_letters (job_id, kind, queue, fingerprint, failed_at, error, since) SELECT id, kind, \
                 queue, x'0123456789abcdef', created_at, 'no', created_at FROM jobs WHERE id = {hex}; "
            );
        }
        rest.sql(sql).await;
    };
    let failed = Some("failed");
    // Two lives of two attempts each: an operator's retry began the second.
    let twice = [("failed", 1, None), ("failed", 2, failed), ("failed", 1, None), ("failed", 2, failed)];
    lived(ids[0], 2, &twice).await;
    // Three losses in a row end a job. A runner that could not read it in between gave it back, which is no verdict.
    lived(ids[1], 9, &[("lost", 1, None), ("lost", 2, None), ("snoozed", 2, None), ("lost", 3, failed)]).await;
    // A hundred snoozes are allowed.
    let snoozes = |count: usize| {
        let mut lines = vec![("snoozed", 0, None); count];
        lines.push(("succeeded", 1, Some("completed")));
        lines
    };
    lived(ids[2], 2, &snoozes(MAX_SPARED as usize)).await;
    rest.sql("UPDATE tallies SET n = n - 2 WHERE kind = 'noop' AND state = 'completed' LIMIT 1").await;
    rest.sql("INSERT INTO tallies (lane, queue, kind, state, n) VALUES (9, 'default', 'noop', 'failed', 9)").await;
    let mut wrong = Vec::new();
    let kept = rest.verify(false).await;
    if !kept.ok {
        wrong.push(format!("a fault where there is none: {}", pretty(&kept)));
    }

    let broken = [
        ("used more", 2, vec![("failed", 1, None), ("failed", 2, None), ("failed", 3, failed)]),
        (
            "continued after",
            2,
            vec![("failed", 1, None), ("failed", 2, None), ("snoozed", 2, None), ("rejected", 3, failed)],
        ),
        ("losses in a row", 9, vec![("lost", 1, None), ("lost", 2, None), ("lost", 3, None), ("lost", 4, failed)]),
        ("101 snoozes", 2, snoozes(MAX_SPARED as usize + 1)),
        ("attempts used", 9, vec![("lost", 1, None), ("failed", 1, failed)]),
    ];
    for (what, most, lines) in broken {
        lived(ids[3], most, &lines).await;
        let report = rest.verify(false).await;
        let bounded = report.finding(Check::Bounded);
        let of_it = |sample: &&Sample| sample.job == Some(ids[3]) && sample.what.contains(what);
        if bounded.samples.iter().filter(of_it).count() == 0 {
            wrong.push(format!("not found: {what}"));
        }
    }
    // It failed before its attempts were used up.
    lived(ids[4], 9, &[("lost", 1, None), ("failed", 2, failed)]).await;
    let failed_early = rest.verify(false).await;
    if failed_early.finding(Check::Failed).samples.iter().all(|sample| sample.job != Some(ids[4])) {
        wrong.push("not found: a failure too early".to_owned());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    rest.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_repairs_the_index_and_ends_with_0_or_1() {
    let tickr = TestApp::start().await;
    let waiting = |n: u64| json!({"kind": "noop", "delay_ms": 300_000 + n});
    let ids = tickr.enqueue_many((0..30).map(waiting)).await;
    eventually("the index knows them all", || async {
        (tickr.app.index().depth(&[]).await.unwrap().0 == 30).then_some(())
    })
    .await;
    let rest = tickr.halt().await;
    let mut redis = rest.redis().await;
    let scheduled = rest.key("waiting");
    redis.zrem(&scheduled, format!("default:{}", ids[0])).await.unwrap();
    redis.zadd(&scheduled, format!("default:{}", ids[1]), 4_000_000_000_000_u64).await.unwrap();
    redis.zadd(&scheduled, format!("default:{}", JobId::new()), 4_000_000_000_000_u64).await.unwrap();

    let (code, out, err) = outcome(run(&rest, &["verify"])).await;
    assert_eq!(code, 1, "{out}{err}");
    for part in ["✗  index_missing", "✗  index_extra", "✗  index_score", "✓  lost", "promises were broken"] {
        assert!(out.contains(part), "{part}:\n{out}");
    }
    assert!(out.contains(&ids[0].to_string()) && err.contains("3 faults in 3 of"), "{out}{err}");
    let (code, out, err) = outcome(run(&rest, &["verify", "--repair", "--json"])).await;
    assert_eq!(code, 0, "{out}{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&report["ok"], &report["looked_at"]["jobs"]), (&json!(true), &json!(30)));
    let repaired: u64 =
        report["checks"].as_array().unwrap().iter().map(|check| check["repaired"].as_u64().unwrap()).sum();
    assert_eq!(repaired, 3, "{report:#}");
    let (code, out, _) = outcome(run(&rest, &["verify", "--since", "1h"])).await;
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("every promise that the tables can show was kept") && out.contains("30 scheduled"), "{out}");
    // A time before all dates means all jobs.
    let (code, out, err) = outcome(run(&rest, &["verify", "--since", "100000000d"])).await;
    assert!(code == 0 && out.contains("30 jobs"), "{code} {out}{err}");
    // Redis lost everything, including the epoch, and all of it is fed again.
    redis.del(&[rest.key("epoch"), scheduled.clone()][..]).await.unwrap();
    let (code, out, err) = outcome(run(&rest, &["verify", "--repair"])).await;
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("0 (30 repaired)"), "{out}");
    assert_eq!(redis.zcard(&scheduled).await.unwrap(), 30);
    rest.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_that_stops_at_too_many_differences_says_that_it_did_not_see_all() {
    const JOBS: usize = 14_000;
    let tickr = TestApp::start().await;
    tickr.enqueue_many((0..JOBS).map(|_| json!({"kind": "noop", "delay_ms": 600_000}))).await;
    eventually("the index knows them all", || async {
        (tickr.app.index().depth(&[]).await.unwrap().0 == JOBS).then_some(())
    })
    .await;
    let rest = tickr.halt().await;
    let mut redis = rest.redis().await;
    redis.del(rest.key("waiting")).await.unwrap();
    // The repair mends every difference that the check has seen, as the runners do after a flush.
    let report = rest.verify(true).await;
    let mended = redis.zcard(rest.key("waiting")).await.unwrap();
    assert!((1..JOBS).contains(&mended), "{mended}");
    assert_eq!((report.verdict, report.complete), (VerifyVerdict::Unchecked, false), "{}", pretty(&report));
    assert!(report.unchecked[0].contains("the rest was not compared"), "{}", pretty(&report));
    let report = rest.verify(true).await;
    assert_eq!((report.verdict, report.complete), (VerifyVerdict::Kept, true), "{}", pretty(&report));
    assert_eq!(redis.zcard(rest.key("waiting")).await.unwrap(), JOBS);
    rest.drop().await;
}

fn run(rest: &halted::Halted, args: &[&str]) -> tokio::process::Command {
    let mut command = command(&tickr(), rest.dir.path(), args);
    command
        .env("TICKR_MYSQL_URL", rest.config.mysql_url().unwrap().expose())
        .env("TICKR_REDIS_URL", rest.config.redis_url().unwrap().expose())
        .env("TICKR_REDIS_PREFIX", &rest.config.redis_prefix);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_the_tables_are_checked_all_the_same() {
    let tickr = TestApp::start_alone(|own| own.redis().kill9().unwrap(), |_| {}).await;
    tickr.enqueue_many((0..50).map(|_| json!({"kind": "noop"}))).await;
    tickr.until_idle().await;
    assert_eq!(tickr.app.index().health().now(), Health::Degraded);
    let settings = halted::settings(&tickr.config, Duration::from_secs(1), false);
    let report = verify(tickr.app.broker().store(), tickr.app.index(), &settings, |_| {}).await.unwrap();
    let told = serde_json::to_string_pretty(&report).unwrap();
    assert!(report.faults().is_empty(), "{told}");
    assert_eq!((report.verdict, report.ok, report.complete), (VerifyVerdict::Unchecked, false, false), "{told}");
    assert!(report.unchecked.len() == 1 && report.unchecked[0].starts_with("Redis does not answer"), "{told}");
    assert_eq!((report.looked_at.jobs, report.looked_at.attempts), (50, 50));
    for check in [Check::IndexMissing, Check::IndexExtra, Check::IndexScore] {
        assert!(report.finding(check).skipped.is_some());
    }
    // The command does not end with 0 then, and the check over HTTP is not ok either.
    let mut command = command(&crate::support::program::tickr(), tickr.dir.path(), &["verify", "--json"]);
    command
        .env("TICKR_MYSQL_URL", tickr.config.mysql_url().unwrap().expose())
        .env("TICKR_REDIS_URL", tickr.config.redis_url().unwrap().expose())
        .env("TICKR_REDIS_PREFIX", &tickr.config.redis_prefix);
    let (code, out, err) = outcome(command).await;
    let said: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &said["verdict"], &said["ok"]), (3, &json!("unchecked"), &json!(false)), "{out}{err}");
    let last = checked(&tickr, json!({})).await["report"].clone();
    assert_eq!((&last["verdict"], &last["ok"], &last["complete"]), (&json!("unchecked"), &json!(false), &json!(false)));
    tickr.redis_stays_out();
    tickr.stop().await;
}

fn pretty(report: &Report) -> String {
    serde_json::to_string_pretty(report).unwrap()
}

/// Run a check that reports a disagreement after it has lasted this long.
async fn check(tickr: &TestApp, patience: Duration) -> Report {
    let settings = halted::settings(&tickr.config, patience, false);
    verify(tickr.app.broker().store(), tickr.app.index(), &settings, |_| {}).await.unwrap()
}

/// Jobs that have to wait in spite of idle runners: of a paused queue, of a queue at its limit, for a drained runner,
/// and after their runners were lost.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_on_purpose_breaks_no_promise() {
    let queues = |config: &mut tickr::config::Config| {
        config.workers = 8;
        config.queues = ["default", "paused", "tight"].map(str::to_owned).into();
    };
    let tickr = TestApp::start_with(queues, Registry::new()).await;
    assert_eq!(tickr.post("/v1/queues/paused/pause", json!({})).await.status, 200);
    let limit = tickr.patch("/v1/queues/tight", json!({"concurrency": 1})).await;
    assert_eq!(limit.status, 200);
    let holder = tickr.enqueue(json!({"kind": "sleep", "queue": "tight", "payload": {"ms": 120_000}})).await;
    tickr.until(holder, State::Executing).await;
    tickr.enqueue_many((0..4).map(|_| json!({"kind": "noop", "queue": "tight"}))).await;
    tickr.enqueue_many((0..4).map(|_| json!({"kind": "noop", "queue": "paused"}))).await;
    let overdue = "UPDATE owed SET execute_at = UTC_TIMESTAMP(3) - INTERVAL 1 MINUTE WHERE state = 'waiting'";
    tickr.sql(overdue).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE state = 'waiting'").await, 8);
    let report = check(&tickr, Duration::from_secs(2)).await;
    assert_eq!(report.verdict, VerifyVerdict::Kept, "{}", pretty(&report));

    // When the runner is drained, no job has to start.
    assert_eq!(tickr.post(&of_runner(tickr.app.runner(), "drain"), json!({})).await.status, 200);
    tickr.app.operator_settings().listen().wait_for(|settings| settings.drained).await.unwrap();
    tickr.enqueue_many((0..3).map(|_| json!({"kind": "noop"}))).await;
    tickr.sql(overdue).await;
    let report = check(&tickr, Duration::from_secs(2)).await;
    assert_eq!(report.verdict, VerifyVerdict::Kept, "{}", pretty(&report));

    // An idle runner that does not start the jobs of an open queue is a fault.
    let rest = tickr.halt().await;
    rest.sql(IDLE_RUNNER).await;
    rest.sql("UPDATE owed SET losses = 2 WHERE queue = 'default' LIMIT 1").await;
    let report = rest.verify(false).await;
    assert_eq!(report.finding(Check::Overdue).faults, 2, "two of three, a third may wait: {}", pretty(&report));
    rest.sql("UPDATE owed SET execute_at = UTC_TIMESTAMP(3) - INTERVAL 1 HOUR WHERE losses = 2").await;
    assert_eq!(rest.verify(false).await.finding(Check::Overdue).faults, 3, "it may not wait for ever");
    rest.drop().await;
}

/// Carry an operation out to its end.
async fn carry_out(tickr: &TestApp, body: Value) {
    let started = tickr.post("/v1/operations", body).await;
    assert_eq!(started.status, 202, "{:#}", started.body);
    let path = format!("/v1/operations/{}", started.body["id"].as_str().unwrap());
    eventually("the operation is over", || async { (tickr.get(&path).await.body["state"] == "done").then_some(()) })
        .await;
}

/// A batch or a tick that lost ended jobs to an operator or to retention is complete in the sense of the promises. One
/// that lost jobs in another way is not.
#[tokio::test(flavor = "multi_thread")]
async fn what_operators_and_retention_remove_is_told_from_what_is_lost() {
    let tickr = TestApp::start().await;
    let day = Duration::from_secs(86_400);
    let kept = async |what: &str| {
        let report = check(&tickr, Duration::from_secs(1)).await;
        assert_eq!(report.verdict, VerifyVerdict::Kept, "{what}: {}", pretty(&report));
    };
    let batch = tickr.enqueue_many((0..4).map(|_| json!({"kind": "noop"}))).await;
    tickr.until_idle().await;
    for (removed, id) in batch.iter().take(2).enumerate() {
        carry_out(&tickr, json!({"action": "delete", "filter": {"ids": [id]}})).await;
        kept("an operator deleted one of a batch").await;
        assert_eq!(tickr.count("SELECT CAST(SUM(jobs) AS SIGNED) FROM departures").await, removed as i64 + 1);
    }
    // A third job that disappears counts as lost all the same.
    let third = batch[2].uuid().simple();
    let rows = |sign: &str| {
        format!(
            "CREATE TABLE IF NOT EXISTS aside AS SELECT * FROM jobs WHERE id = UNHEX('{third}'); \
             CREATE TABLE IF NOT EXISTS aside_too AS SELECT * FROM attempts WHERE job_id = UNHEX('{third}'); {sign}"
        )
    };
    tickr
        .sql(rows(&format!(
            "DELETE FROM jobs WHERE id = UNHEX('{third}'); DELETE FROM attempts WHERE job_id = UNHEX('{third}')"
        )))
        .await;
    let report = check(&tickr, Duration::from_secs(1)).await;
    assert_eq!(report.faults().into_keys().collect::<Vec<_>>(), [Check::Batch], "{}", pretty(&report));
    tickr.sql("INSERT INTO jobs SELECT * FROM aside; INSERT INTO attempts SELECT * FROM aside_too; DROP TABLE aside, aside_too").await;
    kept("it is back").await;
    // When the last job of the batch is deleted, the record of the departures goes as well.
    carry_out(&tickr, json!({"action": "delete", "filter": {"kind": "noop"}})).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM departures").await, 0);

    // Retention removes the failed jobs of a batch earlier than the completed ones, and discarded ones by their own
    // age.
    let store = tickr.app.broker().store();
    let fails = |n: u64| json!({"kind": "fail", "payload": {"permanent": true}, "tags": [format!("n{n}")]});
    let mixed = tickr.enqueue_many([fails(0), fails(1), json!({"kind": "noop"})]).await;
    tickr.until_idle().await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let discarded = tickr.post(&format!("/v1/jobs/{}/discard", mixed[0]), json!({"reason": "known"})).await;
    assert_eq!(discarded.status, 200);
    let keep = Retention { discarded: Duration::ZERO, ..Retention::all(day) };
    assert_eq!(store.purge_discarded(&keep).await.unwrap(), (1, false));
    kept("a discarded dead letter of a batch was purged").await;
    let keep = Retention { failed: Duration::ZERO, ..Retention::all(day) };
    assert_eq!(store.purge_page(None, &keep).await.unwrap().jobs, 1);
    kept("a failed job of a batch was purged").await;

    // The same for ticks.
    let schedule = json!({"cron": "0 0 1 1 *", "kind": "noop"});
    let put = tickr.put("/v1/schedules/yearly", &schedule).await;
    assert_eq!(put.status, 201);
    for _ in 0..2 {
        let fired = tickr.post("/v1/schedules/yearly/trigger", json!({})).await;
        assert_eq!(fired.status, 201, "{:#}", fired.body);
    }
    tickr.until_idle().await;
    let first = "SELECT COUNT(*) FROM ticks WHERE job_removed";
    let id: Vec<u8> = sqlx::query_scalar("SELECT job_id FROM ticks ORDER BY job_id LIMIT 1")
        .fetch_one(&mut tickr.mysql().await)
        .await
        .unwrap();
    let id = JobId::from_uuid(uuid::Uuid::from_slice(&id).unwrap());
    carry_out(&tickr, json!({"action": "delete", "filter": {"ids": [id]}})).await;
    assert_eq!(tickr.count(first).await, 1);
    kept("an operator deleted the job of a tick").await;
    tickr.sql("DELETE a FROM attempts a JOIN ticks t ON t.job_id = a.job_id; DELETE j FROM jobs j JOIN ticks t ON t.job_id = j.id").await;
    let report = check(&tickr, Duration::from_secs(1)).await;
    assert_eq!(report.finding(Check::Tick).faults, 1, "{}", pretty(&report));
    tickr.stop_broken("the job of a tick was deleted behind its back").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_job_of_a_tick_is_not_lost_though_another_version_wrote_its_options() {
    let tickr = TestApp::start().await;
    let put = tickr.put("/v1/schedules/yearly", json!({"cron": "0 0 1 1 *", "kind": "noop"})).await;
    assert_eq!(put.status, 201, "{:#}", put.body);
    let fired = tickr.post("/v1/schedules/yearly/trigger", json!({})).await;
    assert_eq!(fired.status, 201, "{:#}", fired.body);
    tickr.until_idle().await;
    tickr.sql("UPDATE jobs SET options = JSON_SET(options, '$.retry', 'odd', '$.timeout_ms', 'long')").await;
    carry_out(&tickr, json!({"action": "delete", "filter": {"kind": "noop"}})).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM ticks WHERE job_removed").await, 1);
    tickr.stop().await;
}

/// A job that ended while it was blocked and that an operator retried waits for no parent. An operator may delete the
/// callback of a batch.
#[tokio::test(flavor = "multi_thread")]
async fn what_operators_do_with_children_and_callbacks_breaks_no_promise() {
    let tickr = TestApp::start().await;
    let parent = tickr.enqueue(json!({"kind": "noop", "delay_ms": 600_000})).await;
    let child = tickr.enqueue(json!({"kind": "noop", "after": [parent.to_string()]})).await;
    for action in ["cancel", "retry"] {
        let done = tickr.post(&format!("/v1/jobs/{child}/{action}"), json!({})).await;
        assert_eq!(done.status, 200, "{action}: {:#}", done.body);
    }
    tickr.until(child, State::Completed).await;
    let batch = tickr.post("/v1/batches", json!({"close": true, "on_complete": {"kind": "noop", "payload": {}}})).await;
    assert_eq!(batch.status, 201, "{:#}", batch.body);
    let callback: JobId = batch.body["on_complete"]["job_id"].as_str().unwrap().parse().unwrap();
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'", 2).await;
    carry_out(&tickr, json!({"action": "delete", "filter": {"ids": [callback]}})).await;
    assert_eq!(tickr.get(&format!("/v1/jobs/{callback}")).await.status, 404);
    let report = check(&tickr, Duration::from_secs(1)).await;
    assert_eq!(report.verdict, VerifyVerdict::Kept, "{}", pretty(&report));

    // Without the record of its deletion the callback is missing. An audit that is kept for less time than jobs may
    // have had one.
    tickr.sql("UPDATE audit SET action = 'purged' WHERE action = 'job.delete'").await;
    let report = check(&tickr, Duration::from_secs(1)).await;
    assert_eq!(report.finding(Check::BatchEnd).faults, 1, "{}", pretty(&report));
    let mut settings = halted::settings(&tickr.config, Duration::from_secs(1), false);
    settings.retention.audit = Duration::ZERO;
    let report = verify(tickr.app.broker().store(), tickr.app.index(), &settings, |_| {}).await.unwrap();
    assert_eq!(report.verdict, VerifyVerdict::Kept, "{}", pretty(&report));
    tickr.sql("UPDATE audit SET action = 'job.delete' WHERE action = 'purged'").await;

    // A second start before the end of the parent, without an end before it, is a fault.
    let of_child = format!("job_id = UNHEX('{}')", child.uuid().simple());
    tickr.sql(format!("UPDATE attempts SET end_state = NULL WHERE {of_child} AND number = 1")).await;
    let report = check(&tickr, Duration::from_secs(1)).await;
    assert_eq!(report.finding(Check::Parents).faults, 1, "{}", pretty(&report));
    tickr.sql(format!("UPDATE attempts SET end_state = 'cancelled' WHERE {of_child} AND number = 1")).await;
    tickr.stop().await;
}

/// The failed job of a batch keeps the batch for longer than its callback. The configuration of the check may have a
/// longer retention than the runner that removed the callback.
#[tokio::test(flavor = "multi_thread")]
async fn a_callback_that_retention_has_removed_is_not_missing() {
    let tickr = TestApp::start().await;
    let batch = tickr.post("/v1/batches", json!({"on_complete": {"kind": "noop", "payload": {}}})).await;
    assert_eq!(batch.status, 201, "{:#}", batch.body);
    let (id, callback) = (batch.body["id"].as_str().unwrap(), batch.body["on_complete"]["job_id"].as_str().unwrap());
    let callback: JobId = callback.parse().unwrap();
    tickr.enqueue(json!({"kind": "fail", "payload": {"permanent": true}, "batch": id})).await;
    assert_eq!(tickr.post(&format!("/v1/batches/{id}/close"), json!({})).await.status, 200);
    eventually("the callback has ended", || async {
        let job = tickr.get(&format!("/v1/jobs/{callback}")).await;
        (job.body["state"] == "completed").then_some(())
    })
    .await;
    let store = tickr.app.broker().store();
    let keep = Retention { completed: Duration::ZERO, ..Retention::all(Duration::from_secs(86_400)) };
    eventually("the callback is removed", || async {
        store.purge_page(None, &keep).await.unwrap();
        (tickr.get(&format!("/v1/jobs/{callback}")).await.status == 404).then_some(())
    })
    .await;
    let report = check(&tickr, Duration::from_secs(1)).await;
    assert_eq!(report.verdict, VerifyVerdict::Kept, "{}", pretty(&report));
    // Without the record of its removal it is missing.
    tickr.sql("DELETE FROM departures").await;
    let report = check(&tickr, Duration::from_secs(1)).await;
    assert_eq!(report.finding(Check::BatchEnd).faults, 1, "{}", pretty(&report));
    tickr.stop_broken("the record of a removal is gone").await;
}

/// An application made the id two hours ago, and its row waited in the outbox since then.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_of_young_jobs_looks_at_those_that_waited_in_an_outbox() {
    let tickr = TestApp::start().await;
    let later = json!({"kind": "noop", "delay_ms": 3_600_000});
    let young = tickr.enqueue(later.clone()).await;
    let old = chrono::Utc::now() - chrono::TimeDelta::hours(2);
    let seconds = u64::try_from(old.timestamp()).unwrap();
    let id = uuid::Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, seconds, 0));
    tickr
        .sql(format!(
            "INSERT INTO tickr_outbox (id, kind, payload, options) VALUES \
             (UNHEX('{}'), 'noop', '{{}}', '{{\"delay_ms\": 3600000}}')",
            id.simple()
        ))
        .await;
    let waited = JobId::from_uuid(id);
    eventually("the row is a job", || async {
        (tickr.get(&format!("/v1/jobs/{waited}")).await.status == 200).then_some(())
    })
    .await;
    let mut settings = halted::settings(&tickr.config, Duration::from_secs(1), false);
    settings.since = Some(chrono::Utc::now() - chrono::TimeDelta::hours(1));
    let look = async || verify(tickr.app.broker().store(), tickr.app.index(), &settings, |_| {}).await.unwrap();
    let report = look().await;
    assert_eq!((report.verdict, report.looked_at.jobs), (VerifyVerdict::Kept, 2), "{}", pretty(&report));
    for job in [young, waited] {
        tickr.sql(format!("DELETE FROM owed WHERE id = UNHEX('{}')", job.uuid().simple())).await;
    }
    let report = look().await;
    assert_eq!(report.finding(Check::Lost).faults, 2, "{}", pretty(&report));
    tickr.stop_broken("jobs were lost on purpose").await;
}

/// The ids of the audit are made by the hosts of runners, and their clocks decide nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_by_a_host_whose_clock_is_hours_behind_is_counted() {
    let tickr = TestApp::start().await;
    let mut evidence = tickr.app.broker().store().evidence(None).await.unwrap();
    assert_eq!(evidence.retries_meanwhile().await.unwrap(), 0);
    let behind = (chrono::Utc::now() - chrono::TimeDelta::hours(20)).timestamp_millis();
    for (id, at) in [(behind, "UTC_TIMESTAMP(6)"), (behind + 1, "UTC_TIMESTAMP(6) - INTERVAL 20 HOUR")] {
        tickr
            .sql(format!(
                "INSERT INTO audit (id, at, actor, action, target) VALUES \
                 (UNHEX('{id:012x}70008000000000000001'), {at}, 'test', 'job.retry', 'a job')"
            ))
            .await;
    }
    assert_eq!(evidence.retries_meanwhile().await.unwrap(), 1, "the time of MySQL tells which of them is new");
    tickr.stop().await;
}

/// A row that this binary cannot read hides no other fault, and is always reported.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_cannot_be_read_is_told_and_is_not_green() {
    let tickr = TestApp::start().await;
    let done = tickr.enqueue_kind("noop", json!({})).await;
    let other = tickr.enqueue(json!({"kind": "noop", "delay_ms": 86_400_000})).await;
    let batch = tickr.post("/v1/batches", json!({})).await.body["id"].as_str().unwrap().to_owned();
    assert_eq!(tickr.put("/v1/limits/calls", json!({"concurrency": 1})).await.status, 201);
    tickr.until(done, State::Completed).await;
    let rest = tickr.halt().await;
    rest.sql(format!("UPDATE jobs SET kind = 'Not A Name' WHERE id = UNHEX('{}')", done.uuid().simple())).await;
    let (code, out, err) = outcome(run(&rest, &["verify", "--json"])).await;
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["verdict"], &report["complete"]), (3, &json!("unchecked"), &json!(false)), "{out}{err}");
    let why = report["unchecked"][0].as_str().unwrap();
    assert!(why.starts_with("1 rows could not be read") && why.contains(&done.to_string()), "{why}");
    // A real fault is found as well, and decides the result. A later version has written a batch and a limit.
    rest.sql(format!("DELETE FROM owed WHERE id = UNHEX('{}')", other.uuid().simple())).await;
    let later =
        r#"UPDATE batches SET callbacks = '[{"event":"later"}]'; UPDATE limits SET overrides = '{"a":{"new":1}}'"#;
    rest.sql(later).await;
    let (code, out, err) = outcome(run(&rest, &["verify"])).await;
    assert_eq!(code, 1, "{out}{err}");
    assert!(out.contains("not checked: 3 rows") && out.contains("promises were broken"), "{out}{err}");
    assert!(out.contains("limits calls") && out.contains(&format!("batches {batch}")), "{out}");
    // So is one that was found before MySQL failed.
    rest.sql("DROP TABLE ticks").await;
    let (code, out, err) = outcome(run(&rest, &["verify", "--json"])).await;
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["verdict"]), (1, &json!("broken")), "{out}{err}");
    let lost = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == "lost").unwrap();
    assert_eq!(lost["faults"], 1, "{out}");
    let unchecked = report["unchecked"].as_array().unwrap();
    assert!(unchecked.contains(&json!("MySQL failed before the tables were read")), "{out}");
    assert!(err.contains("ticks"), "the error is told: {err}");
    rest.drop().await;
}

/// Each page has its own snapshot. Tables may be altered between two pages, and changes between them are no faults.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_holds_nothing_between_two_pages_and_believes_no_difference_between_them() {
    let tickr = TestApp::start().await;
    let failed = tickr.enqueue(json!({"kind": "fail", "payload": {"permanent": true}})).await;
    tickr.until(failed, State::Failed).await;
    // 4,500 jobs that ended last month make three pages.
    let digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL \
                  SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    let id = "UNHEX(CONCAT(LPAD(HEX(1780000000000 + n), 12, '0'), '70008000000000000000'))";
    tickr
        .sql(format!(
            "INSERT INTO jobs (id, kind, queue, priority, max_attempts, payload, execute_at, created_at) \
             SELECT {id}, 'noop', 'parked', 5, 1, '{{}}', '2026-06-01', '2026-06-01' FROM \
             (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n FROM {digits} a, {digits} b, {digits} c, {digits} e) s \
             WHERE n < 4500 AND n <> 10; \
             INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict, end_state) \
             SELECT id, 1, 1, 'gone/1-x', execute_at, created_at, created_at, 'succeeded', 'completed' FROM jobs WHERE queue = 'parked'; \
             INSERT INTO tallies (lane, queue, kind, state, n) VALUES (9, 'parked', 'noop', 'completed', 4600)"
        ))
        .await;
    let mut pages = 0;
    let settings = halted::settings(&tickr.config, Duration::from_secs(1), false);
    // Three things happen between the pages: a batch is accepted whose first job lies before the rows read so far, a
    // job that was read as failed is retried, and a table is altered.
    let meanwhile = async |page: u32| match page {
        1 => {
            let job = "kind, queue, priority, max_attempts, payload, execute_at, created_at, batch_id, batch_size";
            let values = "'noop', 'parked', 5, 1, '{}', UTC_TIMESTAMP(3), UTC_TIMESTAMP(6)";
            let first = id.replace('n', "10");
            let second = id.replace('n', "4490").replace("70008000", "70008001");
            tickr
                .sql(format!(
                    "SET lock_wait_timeout = 2; ALTER TABLE attempts COMMENT = 'altered'; \
                     SET @first = {first}; SET @second = {second}; START TRANSACTION; \
                     INSERT INTO jobs (id, {job}) VALUES (@first, {values}, @first, 2), (@second, {values}, @first, 2); \
                     INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict, end_state) \
                     SELECT id, 1, 1, 'gone/1-x', execute_at, created_at, created_at, 'succeeded', 'completed' FROM jobs \
                     WHERE batch_id = @first; COMMIT"
                ))
                .await;
        }
        3 => {
            tickr.post("/v1/queues/default/pause", json!({})).await;
            assert_eq!(tickr.post(&format!("/v1/jobs/{failed}/retry"), json!({})).await.status, 200);
            // The retries of a bulk operation record the time when its transaction began, and become visible when it
            // ends.
            tickr.sql("UPDATE audit SET at = at - INTERVAL 20 SECOND WHERE action = 'job.retry'").await;
        }
        _ => {}
    };
    let report = verify(tickr.app.broker().store(), tickr.app.index(), &settings, |_| {
        pages += 1;
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(meanwhile(pages)));
    });
    let report = report.await.unwrap();
    assert!(pages >= 3, "{pages} pages");
    assert_eq!(report.verdict, VerifyVerdict::Kept, "{}", pretty(&report));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_index_lacks_shows_in_the_gauge_of_drift() {
    let tickr = TestApp::start().await;
    let ids = tickr.enqueue_many((0..40).map(|n| json!({"kind": "noop", "delay_ms": 6_000 + n}))).await;
    let rest = tickr.halt().await;
    let mut serve = run(&rest, &["serve"]);
    serve.env("TICKR_HTTP_ADDR", "127.0.0.1:0").env("TICKR_TEST_KINDS", "1").env("TICKR_LOG_FORMAT", "json");
    let mut runner = Program::spawn(serve);
    let url = runner.url().await + "/metrics";
    let drift = || async {
        let page = http().get(&url).send().await.unwrap().text().await.unwrap();
        let line = page.lines().find(|line| line.starts_with("tickr_index_drift "))?.to_owned();
        Some(line.rsplit_once(' ')?.1.parse::<f64>().unwrap())
    };
    // After the rebuild, the reconciler finds no entry missing.
    eventually("the index is in step", || async { (drift().await? == 0.0).then_some(()) }).await;
    let mut redis = rest.redis().await;
    for id in &ids[..30] {
        redis.zrem(rest.key("waiting"), format!("default:{id}")).await.unwrap();
    }
    eventually("the gauge shows the loss", || async { (drift().await? > 0.0).then_some(()) }).await;
    eventually("the gauge shows the repair", || async { (drift().await? == 0.0).then_some(()) }).await;
    runner.signal("TERM").await;
    assert!(runner.ends().await.success());
    rest.drop().await;
}

/// Request a check, and wait for its end.
async fn checked(tickr: &TestApp, body: Value) -> Value {
    let asked = tickr.post("/v1/verify", body).await;
    assert_eq!((asked.status, &asked.body["started"]), (202, &json!(true)), "{:#}", asked.body);
    let id = asked.body["check"]["id"].clone();
    eventually("the check ends", || async {
        let shown = tickr.get("/v1/verify").await;
        assert_eq!(shown.status, 200, "{:#}", shown.body);
        (shown.body["last"]["id"] == id).then(|| shown.body["last"].clone())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_that_was_asked_for_over_http_finds_what_the_command_finds_one_at_a_time() {
    let tickr = TestApp::start().await;
    assert_eq!(tickr.get("/v1/verify").await.body, json!({"running": null, "last": null}));
    for _ in 0..5 {
        tickr.enqueue_kind("noop", json!({})).await;
    }
    tickr.until_idle().await;
    let last = checked(&tickr, json!({})).await;
    let report = &last["report"];
    assert_eq!((&report["ok"], &report["complete"], &last["failure"]), (&json!(true), &json!(true), &json!(null)));
    assert_eq!((&report["verdict"], &report["unchecked"]), (&json!("kept"), &json!([])));
    assert_eq!((&report["looked_at"]["jobs"], &last["by"]), (&json!(5), &json!("anyone")));
    let checks = report["checks"].as_array().unwrap();
    assert_eq!(checks.len(), Check::ALL.len());
    assert!(checks.iter().all(|check| check["verdict"] == "holds"), "{report:#}");

    // This job is neither owed nor ended. The index is correct, so the check ends as soon as everything is read.
    let lost = tickr.enqueue(json!({"kind": "noop", "delay_ms": 86_400_000})).await;
    tickr.sql(format!("DELETE FROM owed WHERE id = UNHEX(REPLACE('{lost}', '-', ''))")).await;
    let report = checked(&tickr, json!({})).await["report"].clone();
    assert_eq!(report["ok"], false);
    let found = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == "lost").unwrap();
    assert_eq!((&found["verdict"], &found["faults"]), (&json!("broken"), &json!(1)));
    assert_eq!(found["examples"][0]["job"], lost.to_string());
    // The job was made before this time, so the check does not look at it.
    let since = chrono::Utc::now() + chrono::TimeDelta::hours(1);
    assert_eq!(checked(&tickr, json!({"since": since})).await["report"]["looked_at"]["jobs"], 0);
    for wrong in ["yesterday", "2026-11-01", "9999-12-31T23:59:59-01:00", "0000-01-01T00:00:00+23:00"] {
        let refused = tickr.post("/v1/verify", json!({"since": wrong})).await;
        assert_eq!((refused.status, refused.pointers()), (422, vec!["/since"]), "{wrong}");
    }
    // A leap second is a time as well.
    assert_eq!(checked(&tickr, json!({"since": "2016-12-31T23:59:60Z"})).await["failure"], json!(null));

    // Only one check runs in the cluster at a time: another runner has one under way, and dies.
    tickr
        .sql(
            "INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, started_at, heartbeat_at) \
             VALUES ('elsewhere/1-00000000', '', '[]', '[]', 1, 30000, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))",
        )
        .await;
    tickr
        .sql(
            "INSERT INTO verifications (id, runner, started_at, started_by, expires_at, under_way) VALUES \
             (UNHEX(REPEAT('f', 32)), 'elsewhere/1-00000000', UTC_TIMESTAMP(6), 'ada', UTC_TIMESTAMP(6) + INTERVAL 5 MINUTE, 1)",
        )
        .await;
    let asked = tickr.post("/v1/verify", json!({})).await;
    assert_eq!((asked.status, &asked.body["started"]), (202, &json!(false)), "{:#}", asked.body);
    assert_eq!(asked.body["check"]["by"], "ada");
    assert_eq!(tickr.get("/v1/verify").await.body["running"]["runner"], "elsewhere/1-00000000");
    // Its id makes it the oldest now. It ended without a result.
    tickr.sql("UPDATE verifications SET id = UNHEX(REPEAT('0', 32)) WHERE under_way = 1").await;
    tickr.sql("UPDATE runners SET stopped_at = UTC_TIMESTAMP(6) WHERE id = 'elsewhere/1-00000000'").await;
    assert_eq!(tickr.get("/v1/verify").await.body["running"], json!(null));
    checked(&tickr, json!({})).await;
    let ended = "SELECT COUNT(*) FROM verifications WHERE under_way IS NULL \
                 AND failure = 'its runner stopped, or its time ran out'";
    assert_eq!(tickr.count(ended).await, 1);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM audit WHERE action = 'verify.start'").await, 5);

    // Old checks are removed.
    for _ in 0..25 {
        tickr
            .sql(
                "INSERT INTO verifications (id, runner, started_at, started_by, expires_at, finished_at, failure) \
                 SELECT UNHEX(REPLACE(UUID(), '-', '')), '', UTC_TIMESTAMP(6), '', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), ''",
            )
            .await;
    }
    let asked = tickr.post("/v1/verify", json!({})).await;
    assert_eq!(asked.status, 202);
    assert!(tickr.count("SELECT COUNT(*) FROM verifications").await <= 21);
    // A running check does not delay the stop.
    tickr.stop_broken("a job without its owed row").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gentle_check_stops_when_its_time_is_over_and_says_what_it_did_not_look_at() {
    let tickr = TestApp::start().await;
    tickr.enqueue_many((0..3_000).map(|_| json!({"kind": "noop", "queue": "nowhere"}))).await;
    let settings = VerifySettings {
        pace: Pace::Gentle { limit: Duration::ZERO, all: Duration::from_secs(60) },
        ..halted::settings(&tickr.config, VerifySettings::PATIENCE, false)
    };
    let report = verify(tickr.app.broker().store(), tickr.app.index(), &settings, |_| {}).await.unwrap();
    assert_eq!((report.complete, report.ok, report.verdict), (false, false, VerifyVerdict::Unchecked), "{report:?}");
    assert!(report.looked_at.jobs < 3_000, "{:?}", report.looked_at);
    assert!(
        report.faults().is_empty()
            && report.finding(Check::Batch).skipped.is_some()
            && report.finding(Check::Lost).skipped.is_none()
    );
    assert!(report.unchecked.iter().any(|why| why.contains("time was over")), "{:?}", report.unchecked);
    tickr.stop().await;
}

/// The time of the whole check ends while a difference between Redis and MySQL is looked at again.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_whose_time_ends_reports_the_faults_that_it_has_found() {
    let tickr = TestApp::start().await;
    let later = json!({"kind": "noop", "delay_ms": 86_400_000});
    let lost = tickr.enqueue(later).await;
    let hidden = tickr.enqueue(json!({"kind": "noop", "delay_ms": 300_000})).await;
    let rest = tickr.halt().await;
    rest.sql(format!("DELETE FROM owed WHERE id = UNHEX('{}')", lost.uuid().simple())).await;
    rest.redis().await.zrem(rest.key("waiting"), format!("default:{hidden}")).await.unwrap();
    rest.sql(IDLE_RUNNER).await;
    let settings = VerifySettings {
        pace: Pace::Gentle { limit: Duration::from_secs(60), all: Duration::from_secs(6) },
        ..halted::settings(&rest.config, Duration::from_secs(600), false)
    };
    let checking = verify(&rest.store, &rest.index, &settings, |_| {});
    let report = tokio::time::timeout(DEADLINE, checking).await.expect("the check ends").unwrap();
    assert_eq!(report.faults().into_iter().collect::<Vec<_>>(), [(Check::Lost, 1)], "{}", pretty(&report));
    assert_eq!((report.verdict, report.complete), (VerifyVerdict::Broken, false), "{}", pretty(&report));
    assert!(report.unchecked.iter().any(|why| why.contains("Redis was compared")), "{:?}", report.unchecked);
    assert!(report.finding(Check::IndexMissing).skipped.is_some(), "{}", pretty(&report));
    rest.drop().await;
}
