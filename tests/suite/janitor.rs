//! The janitor as a runner has it: it empties each table that it is responsible for, none of them waits for another, and
//! another runner takes its place.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::{AssertSqlSafe, Executor, MySqlConnection};
use tickr::app::engine_settings;
use tickr::config::Config;
use tickr::engine::{Engine, runner_of_this_process};
use tickr::handlers::Registry;
use tickr::job::State;
use tickr::telemetry::Tracer;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{TestApp, eventually};

/// Rows whose retention has ended.
const OLD: &str = "\
    INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, started_at, heartbeat_at, stopped_at) VALUES \
    ('old/1-abcdef', '0', '[]', '[]', 1, 30000, UTC_TIMESTAMP(6) - INTERVAL 900 DAY, UTC_TIMESTAMP(6) - INTERVAL 900 DAY, \
    UTC_TIMESTAMP(6) - INTERVAL 900 DAY); \
    INSERT INTO departures (id, jobs, size, at) VALUES (UNHEX('00000000000070008000000000000001'), 1, 2, \
    UTC_TIMESTAMP(6) - INTERVAL 900 DAY); \
    INSERT INTO audit (id, at, actor, action, target) VALUES (UNHEX('00000000000070008000000000000002'), \
    UTC_TIMESTAMP(6) - INTERVAL 900 DAY, 'old', 'queue.pause', 'old'); \
    INSERT INTO idempotency_keys (id, key_hash, request_hash, status, answer, created_at) VALUES \
    (UNHEX('00000000000070008000000000000003'), UNHEX(SHA2('old', 256)), UNHEX(SHA2('old', 256)), 200, '{}', \
    UTC_TIMESTAMP(6) - INTERVAL 900 DAY); \
    INSERT INTO ticks (schedule, due_at, outcome, cause, recorded_at, recorded_by) VALUES \
    ('old', UTC_TIMESTAMP(3) - INTERVAL 900 DAY, 'skipped', 'missed', UTC_TIMESTAMP(6) - INTERVAL 900 DAY, 'old'); \
    INSERT INTO unique_keys (kind, unique_key, job_id, held_until) VALUES \
    ('old', 'old', UNHEX('00000000000070008000000000000004'), UTC_TIMESTAMP(3) - INTERVAL 1 HOUR); \
    INSERT INTO outbox_rejected (id, kind, payload, rejected_at, reason) VALUES \
    (UNHEX('00000000000040008000000000000005'), 'old', '{}', UTC_TIMESTAMP(6) - INTERVAL 900 DAY, 'old'); \
    INSERT IGNORE INTO outbox_sources (name, runner, lease_until, calm_until, turn, copied) VALUES \
    ('old', 'old/1-abcdef', UTC_TIMESTAMP(6) - INTERVAL 8 DAY, UTC_TIMESTAMP(6), 1, ''), \
    ('with copied rows', 'old/1-abcdef', UTC_TIMESTAMP(6) - INTERVAL 8 DAY, UTC_TIMESTAMP(6), 1, REPEAT('x', 16)), \
    ('used', 'old/1-abcdef', UTC_TIMESTAMP(6) - INTERVAL 6 DAY, UTC_TIMESTAMP(6), 1, ''); \
    INSERT INTO tallies (lane, queue, kind, state, n, changed_at) VALUES \
    (3, 'old', 'old', 'completed', 0, NOW() - INTERVAL 400 DAY)";

/// Rows that a runner looks for once an hour, when none of their jobs are kept any more.
const OLD_KEYS: &str = "\
    INSERT INTO order_keys (order_key, head, tail) VALUES ('old', 2, 1); \
    INSERT INTO limit_keys (limit_name, limit_key, failed_at) VALUES ('old', 'old', NULL), \
    ('old', 'forgiven', UTC_TIMESTAMP(6) - INTERVAL 25 HOUR)";

/// The key of a host that failed a moment ago, and one whose breaker makes its next call later.
const FAILING: &str = "\
    INSERT INTO limit_keys (limit_name, limit_key, failures, failed_at, probe_at) VALUES \
    ('old', 'failing', 1, UTC_TIMESTAMP(6), NULL), \
    ('old', 'open', 9, UTC_TIMESTAMP(6) - INTERVAL 25 HOUR, UTC_TIMESTAMP(6) - INTERVAL 1 HOUR)";

/// Counts of all those rows.
const LEFT: [&str; 11] = [
    "SELECT COUNT(*) FROM runners WHERE id LIKE 'old/%'",
    "SELECT COUNT(*) FROM departures WHERE at < UTC_TIMESTAMP(6) - INTERVAL 800 DAY",
    "SELECT COUNT(*) FROM audit WHERE actor = 'old'",
    "SELECT COUNT(*) FROM idempotency_keys",
    "SELECT COUNT(*) FROM ticks",
    "SELECT COUNT(*) FROM unique_keys",
    "SELECT COUNT(*) FROM outbox_rejected",
    "SELECT COUNT(*) <> 2 FROM outbox_sources",
    "SELECT COUNT(*) FROM order_keys",
    "SELECT SIGN(COUNT(*)) FROM limit_keys WHERE limit_key IN ('old', 'forgiven')",
    "SELECT COUNT(*) FROM tallies WHERE lane > 0 AND queue = 'old'",
];

/// Start a runner whose janitor makes many rounds, and which counts as started this many days ago.
async fn runner(tickr: &TestApp, days: u32) -> Engine {
    runner_with(tickr, days, Duration::from_millis(100)).await
}

/// Start a runner with half this time to half as much again between two rounds of its janitor.
async fn runner_with(tickr: &TestApp, days: u32, janitor_every: Duration) -> Engine {
    let config = Config { retention_completed: Duration::ZERO, purge_hours: None, ..tickr.config.clone() };
    let id = runner_of_this_process();
    let mut settings = engine_settings(&config, id.clone(), Tracer::off(), None, None);
    settings.janitor_every = janitor_every;
    let (app, registry) = (&tickr.app, Arc::new(Registry::new()));
    let settings_copy = app.operator_settings().clone();
    let engine = Engine::start(app.broker().clone(), app.index().clone(), settings_copy, registry, settings).unwrap();
    let mut mysql = tickr.mysql().await;
    let elder = "UPDATE runners SET started_at = started_at - INTERVAL ? DAY WHERE id = ?";
    loop {
        let changed = sqlx::query(elder).bind(days).bind(id.as_str()).execute(&mut mysql).await.unwrap();
        if changed.rows_affected() == 1 {
            return engine;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Start a tickr whose own runner removes nothing while the test runs.
async fn without_purges(change: impl FnOnce(&mut Config)) -> TestApp {
    let now = chrono::Utc::now();
    let hours = [now + chrono::TimeDelta::hours(10), now + chrono::TimeDelta::hours(11)];
    let hours = format!("{}-{}", hours[0].format("%H:%M"), hours[1].format("%H:%M"));
    let keep = Duration::from_secs(90 * 86_400);
    let configure = |config: &mut Config| {
        config.purge_hours = Some(hours.parse().unwrap());
        (config.retention_completed, config.retention_failed, config.retention_ticks) = (keep, keep, keep);
        config.retention_discarded = keep;
        change(config);
    };
    TestApp::start_with(configure, Registry::new()).await
}

/// Lock rows in a transaction, until the session says COMMIT.
async fn locked(tickr: &TestApp, rows: &[&str]) -> MySqlConnection {
    let mut session = tickr.mysql().await;
    session.execute("START TRANSACTION").await.unwrap();
    for row in rows {
        let sql = format!("SELECT 1 FROM {row} FOR UPDATE");
        assert_eq!(session.fetch_all(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap().len(), 1, "{row}");
    }
    session
}

#[tokio::test(flavor = "multi_thread")]
async fn the_removal_of_ended_jobs_holds_up_the_removal_from_no_other_table() {
    let tickr = without_purges(|_| {}).await;
    let done = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(done, State::Completed).await;
    // A page of ended jobs that waits for a lock takes even longer than the turn of a table with millions of them.
    // The removal leaves out a job whose own row is locked.
    let job = format!("attempts WHERE job_id = UNHEX('{}')", done.uuid().simple());
    let mut session = locked(&tickr, &[job.as_str()]).await;
    let runner = runner(&tickr, 1).await;
    tickr.until_said("DELETE t FROM (SELECT CAST", 1).await;
    tickr.sql(OLD).await;
    for sql in LEFT {
        tickr.until_count(sql, 0).await;
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1, "the removal of jobs still waits");
    session.execute("COMMIT").await.unwrap();
    tickr.until_count("SELECT COUNT(*) FROM jobs", 0).await;
    runner.stop(Duration::ZERO, CancellationToken::new()).await;
    tickr.stop_broken("rows of jobs that never were, and a job that went before its time").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_the_janitor_that_wait_leave_connections_to_the_other_loops() {
    // With seven connections there are three for the loops.
    let tickr = without_purges(|config| config.mysql_connections = 7).await;
    let done = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(done, State::Completed).await;
    tickr.sql(OLD).await;
    // The removal leaves out a job whose own row is locked.
    let job = format!("attempts WHERE job_id = UNHEX('{}')", done.uuid().simple());
    let answer = "idempotency_keys WHERE id = UNHEX('00000000000070008000000000000003')";
    let act = "audit WHERE id = UNHEX('00000000000070008000000000000002')";
    let mut session = locked(&tickr, &[job.as_str(), answer, act]).await;
    let runner = runner(&tickr, 1).await;
    // The first pages come within 150 ms. A call of a loop that gets no connection then fails after three seconds, and
    // pages wait for a lock for five.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        tickr.app.broker().store().is_eldest(tickr.app.runner()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    session.execute("COMMIT").await.unwrap();
    for sql in LEFT {
        tickr.until_count(sql, 0).await;
    }
    tickr.until_count("SELECT COUNT(*) FROM jobs", 0).await;
    runner.stop(Duration::ZERO, CancellationToken::new()).await;
    tickr.stop_broken("rows of jobs that never were, and a job that went before its time").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_janitor_empties_its_tables_and_another_carries_on() {
    let tickr = without_purges(|_| {}).await;
    let done = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(done, State::Completed).await;
    tickr.sql(OLD).await;
    tickr.sql(OLD_KEYS).await;
    tickr.sql(FAILING).await;
    for sql in LEFT {
        assert_eq!(tickr.count(sql).await, 1, "{sql}");
    }
    let (first, second) = (runner(&tickr, 2).await, runner(&tickr, 1).await);
    for sql in LEFT {
        tickr.until_count(sql, 0).await;
    }
    tickr.until_count("SELECT COUNT(*) FROM jobs", 0).await;

    // The first runner has just looked through the keys, so these stay until the second one does. It becomes the eldest
    // when the first one goes away.
    tickr.sql(OLD_KEYS).await;
    first.stop(Duration::ZERO, CancellationToken::new()).await;
    tickr.sql(OLD).await;
    for sql in LEFT {
        tickr.until_count(sql, 0).await;
    }
    second.stop(Duration::ZERO, CancellationToken::new()).await;
    eventually("both runners are unregistered", || async {
        (tickr.count("SELECT COUNT(*) FROM runners WHERE stopped_at IS NULL").await == 1).then_some(())
    })
    .await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM limit_keys").await, 2, "hosts that fail are not forgotten");
    tickr.stop_broken("rows of jobs that never were, and a job that went before its time").await;
}

/// An application makes the ids of its rows in the outbox, by its own clock.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_id_is_hours_ahead_is_removed_when_its_retention_has_ended() {
    let tickr = without_purges(|_| {}).await;
    // The outbox takes ids within a day of the INSERT.
    let ahead = chrono::Utc::now() + chrono::TimeDelta::hours(12);
    let ms = u128::from(ahead.timestamp_millis().unsigned_abs());
    for (n, kind, payload) in [(1, "noop", "{}"), (2, "fail", "{\"permanent\": true}")] {
        let id = Uuid::from_u128((ms << 80) | (0x7 << 76) | (0x8 << 60) | n);
        let insert = sqlx::query("INSERT INTO tickr_outbox (id, kind, payload) VALUES (?, ?, ?)");
        insert.bind(id).bind(kind).bind(payload).execute(&mut tickr.mysql().await).await.unwrap();
    }
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE end_state IN ('completed', 'failed')", 2).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM distant_ids").await, 2);
    let runner = runner(&tickr, 1).await;
    tickr.until_count("SELECT COUNT(*) FROM jobs", 1).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM distant_ids").await, 1);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM dead_letters").await, 1, "failed jobs are kept for longer");
    runner.stop(Duration::ZERO, CancellationToken::new()).await;
    tickr.stop_broken("a job that went before its time").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_old_ticks_of_the_first_schedule_hold_up_the_removal_of_no_other() {
    let tickr = without_purges(|_| {}).await;
    // Five pages of the first schedule, and one tick of another one behind them.
    let ticks = "INSERT INTO ticks (schedule, due_at, outcome, cause, recorded_at, recorded_by)";
    let old = "'skipped', 'missed', UTC_TIMESTAMP(6) - INTERVAL 800 DAY, 'old'";
    tickr
        .sql(format!(
            "{ticks} WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 200) \
             SELECT 'a-poll', UTC_TIMESTAMP(3) - INTERVAL 900 DAY + INTERVAL (a.n * 25 + b.n) SECOND, {old} \
             FROM n a JOIN n b ON b.n <= 25"
        ))
        .await;
    tickr.sql(format!("{ticks} VALUES ('nightly', UTC_TIMESTAMP(3) - INTERVAL 900 DAY, {old})")).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM ticks").await, 5_001);
    // The next round begins three seconds after the first one at the earliest, so five of them take twelve seconds.
    let runner = runner_with(&tickr, 1, Duration::from_secs(6)).await;
    tickr.until_count("SELECT COUNT(*) < 5001 FROM ticks", 1).await;
    let began = Instant::now();
    tickr.until_count("SELECT COUNT(*) FROM ticks", 0).await;
    assert!(began.elapsed() < Duration::from_secs(10), "one round removes all of them: {:?}", began.elapsed());
    runner.stop(Duration::ZERO, CancellationToken::new()).await;
    tickr.stop_broken("ticks of schedules that never were").await;
}
