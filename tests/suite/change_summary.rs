//! The summary by which every process follows what other processes change.

use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::{AssertSqlSafe, Executor};
use tickr::job::{Actor, Name, RunnerId, Scope, State};
use tickr::prelude::*;
use tickr::store::{ChangeSummary, Store, StoreSettings};

use crate::search::rows_read;
use crate::support::{DEADLINE, TestApp, connect, drop_database, eventually, migrated_database, table_prefix};

async fn summary(tickr: &TestApp) -> ChangeSummary {
    let kinds: Vec<Name> = vec!["noop".parse().unwrap(), "sleep".parse().unwrap()];
    tickr.app.broker().store().change_summary(tickr.app.runner(), &kinds).await.unwrap()
}

/// A new value for each column of the tables of the settings that is compared. The revocation comes last: after it an API
/// key is compared no more.
const CHANGES: [(&str, &[(&str, &str)]); 2] = [
    (
        "queues",
        &[
            ("name", "'letters'"),
            ("priority", "priority + 1"),
            ("concurrency", "3"),
            ("paused_at", "UTC_TIMESTAMP(6), paused_by = 'eve'"),
            ("paused_by", "'ada'"),
            ("pause_reason", "'the provider is down'"),
            ("changed_at", "changed_at + INTERVAL 1 MICROSECOND"),
            ("changed_by", "'bob'"),
            ("version", "version + 1"),
        ],
    ),
    (
        "api_keys",
        &[
            ("id", "UNHEX(REPEAT('cd', 16))"),
            ("name", "'other'"),
            ("scope", "'admin'"),
            ("digest", "UNHEX(REPEAT('ab', 32))"),
            ("created_at", "created_at + INTERVAL 1 MICROSECOND"),
            ("created_by", "'bob'"),
            ("kinds", "'email'"),
            ("producer", "'shop'"),
            ("queues", "'pictures'"),
            ("revoked_at", "UTC_TIMESTAMP(6), revoked_by = 'eve'"),
        ],
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_change_of_a_queue_or_an_api_key_changes_the_summary() {
    let tickr = TestApp::start().await;
    let mut last = summary(&tickr).await.settings;
    assert_eq!(summary(&tickr).await.settings, last, "nothing has changed");
    tickr.post("/v1/queues/mail/pause", json!({})).await;
    tickr.post("/v1/queues/mail/resume", json!({})).await;
    let (name, store) = ("shop".parse().unwrap(), tickr.app.broker().store());
    store.make_api_key(&name, Scope::Read, rand::random(), &Actor::tickr()).await.unwrap();
    let mut mysql = tickr.mysql().await;
    for (table, columns) in CHANGES {
        // A column that is added later needs a line above.
        let sql = "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ?";
        let known: i64 = sqlx::query_scalar(sql).bind(table).fetch_one(&mut mysql).await.unwrap();
        let others = if table == "api_keys" { 2 } else { 0 };
        assert_eq!(known - others, columns.len() as i64, "{table}, without last_used_at and revoked_by of API keys");
        for (column, value) in columns {
            let sql = format!("UPDATE {table} SET {column} = {value}");
            let changed = mysql.execute(AssertSqlSafe(sql)).await.unwrap();
            assert_eq!(changed.rows_affected(), 1, "{table}.{column}");
            let now = summary(&tickr).await.settings;
            assert_ne!(now, last, "{table}.{column}");
            last = now;
        }
        mysql.execute(AssertSqlSafe(format!("DELETE FROM {table}"))).await.unwrap();
        let now = summary(&tickr).await.settings;
        assert_ne!(now, last, "a row of {table} is gone");
        last = now;
    }
    tickr.stop().await;
}

/// Each process compares the settings once a second. A deployment that makes an API key of its own each time leaves any
/// number of revoked ones, and a limit may have a thousand overrides.
#[tokio::test(flavor = "multi_thread")]
async fn the_summary_compares_no_revoked_api_keys_and_the_version_in_place_of_overrides() {
    let tickr = TestApp::start().await;
    let store = tickr.app.broker().store();
    let mut last = summary(&tickr).await.settings;
    let mut changes = async |is_seen: bool, what: &str| {
        let now = summary(&tickr).await.settings;
        assert_eq!(now != last, is_seen, "{what}");
        last = now;
    };
    // A limit that counts the running attempts already, so that no runner changes it.
    tickr
        .sql(
            "INSERT INTO limits (name, shared_by, concurrency, counted, changed_at, changed_by) \
             VALUES ('tenants', 'key', 5, TRUE, UTC_TIMESTAMP(6), 'test')",
        )
        .await;
    changes(true, "a limit is made").await;
    for most in [1, 2] {
        let limit = json!({"concurrency": 5, "overrides": {"a": {"concurrency": most}}});
        let set = tickr.put("/v1/limits/tenants", limit).await;
        assert_eq!(set.status, 200, "{:#}", set.body);
        changes(true, "an operator changes the overrides").await;
    }
    tickr.sql("UPDATE limits SET overrides = NULL").await;
    changes(false, "the overrides without their version").await;

    // With the first API key the API is closed to this test.
    for name in ["old", "shop"] {
        let name = name.parse().unwrap();
        store.make_api_key(&name, Scope::Read, rand::random(), &Actor::tickr()).await.unwrap();
        changes(true, "an API key is made").await;
    }
    store.revoke_api_key(&"old".parse().unwrap(), &Actor::tickr()).await.unwrap();
    changes(true, "an API key is revoked").await;
    tickr.sql("UPDATE api_keys SET name = 'older' WHERE revoked_at IS NOT NULL").await;
    changes(false, "a revoked API key is another one").await;
    tickr.stop().await;
}

/// Each process compares them once a second, and revoked ones stay for ever.
#[tokio::test(flavor = "multi_thread")]
async fn the_valid_api_keys_are_found_among_any_number_of_revoked_ones() {
    const REVOKED: i64 = 3_600;
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    let store = tickr.app.broker().store();
    for first in (1..=REVOKED).step_by(900) {
        tickr
            .sql(format!(
                "INSERT INTO api_keys (id, name, scope, digest, created_at, created_by, revoked_at, revoked_by) \
                 WITH RECURSIVE n (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM n WHERE n < {first} + 899) \
                 SELECT UNHEX(LPAD(HEX(n), 32, '0')), CONCAT('old-', n), 'read', UNHEX(SHA2(n, 256)), UTC_TIMESTAMP(6), \
                 'test', UTC_TIMESTAMP(6), 'test' FROM n"
            ))
            .await;
    }
    store.make_api_key(&"shop".parse().unwrap(), Scope::Read, rand::random(), &Actor::tickr()).await.unwrap();
    let names = |keys: Vec<tickr::store::ApiKey>| keys.into_iter().map(|key| key.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(store.api_keys().await.unwrap()), ["shop".to_owned(), format!("old-{REVOKED}")]);
    let listed = names(store.listed_keys().await.unwrap());
    assert_eq!((listed.len(), &*listed[0], &*listed[1]), (2_000, "shop", "old-3600"));
    // The loops of the runner read rows as well. In one of several tries hardly any does.
    let mut least = i64::MAX;
    for _ in 0..30 {
        let before = rows_read(&tickr).await;
        summary(&tickr).await;
        least = least.min(rows_read(&tickr).await - before);
        if least < REVOKED / 2 {
            break;
        }
    }
    println!("{least} rows were read for a summary");
    assert!(least < REVOKED / 2, "{least} rows were read for a summary");
    tickr.stop().await;
}

/// Each process with clients would otherwise have all processes read all settings once a minute, and look at all keys of
/// limits.
#[tokio::test(flavor = "multi_thread")]
async fn the_use_of_an_api_key_changes_no_summary_and_is_shown_at_once() {
    let tickr = TestApp::start().await;
    let (name, store) = ("shop".parse().unwrap(), tickr.app.broker().store());
    store.make_api_key(&name, Scope::Read, rand::random(), &Actor::tickr()).await.unwrap();
    let made = store.listed_keys().await.unwrap();
    assert_eq!((made.len(), made[0].last_used_at), (1, None));
    let before = summary(&tickr).await.settings;
    store.used_api_keys(vec![made[0].id]).await.unwrap();
    assert_eq!(summary(&tickr).await.settings, before);
    assert!(store.listed_keys().await.unwrap()[0].last_used_at.is_some());
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_summary_shows_a_drain_and_the_next_tick_of_its_kinds() {
    let tickr = TestApp::start().await;
    let first = summary(&tickr).await;
    assert_eq!((first.drained, first.next_tick), (false, None));
    let path = format!("/v1/runners/{}/drain", tickr.app.runner().as_str().replace('/', "%2F"));
    assert_eq!(tickr.post(&path, json!({})).await.status, 200);
    assert!(summary(&tickr).await.drained);

    // The schedule of a kind that the runner does not have comes first, and does not hide the other.
    let mail = json!({"to": "ada@example.com", "subject": "Hello", "text": "x"});
    for (name, schedule) in [
        ("first", json!({"cron": "0 0 1 1 *", "kind": "email", "payload": mail})),
        ("second", json!({"cron": "0 0 2 1 *", "kind": "noop"})),
    ] {
        let made = tickr.put(&format!("/v1/schedules/{name}"), &schedule).await;
        assert_eq!(made.status, 201, "{:#}", made.body);
    }
    let sql = "SELECT next_at FROM schedules WHERE name = 'second'";
    let next: tickr::job::Timestamp = sqlx::query_scalar(sql).fetch_one(&mut tickr.mysql().await).await.unwrap();
    assert_eq!(summary(&tickr).await.next_tick, Some(next));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_summary_shows_an_operation_that_no_runner_carries_out() {
    let (name, url) = migrated_database().await;
    let settings = StoreSettings { url: url.clone(), connections: 5, flushers: 1, table_prefix: table_prefix() };
    let store = Store::connect(&settings, DEADLINE).await.unwrap();
    let is_free = async || store.change_summary(&RunnerId::new_for_host("test"), &[]).await.unwrap().operation_is_free;
    let mut mysql = connect(&url).await;
    assert!(!is_free().await, "there is none");
    mysql
        .execute(
            "INSERT INTO operations (id, action, filter, params, actor, created_at, estimate, capped, lease_until) \
             VALUES (UNHEX(REPEAT('01', 16)), 'cancel', '{}', '{}', 'ada', UTC_TIMESTAMP(6), 0, FALSE, \
             UTC_TIMESTAMP(6) + INTERVAL 1 HOUR)",
        )
        .await
        .unwrap();
    assert!(!is_free().await, "a runner carries it out");
    mysql.execute("UPDATE operations SET lease_until = UTC_TIMESTAMP(6)").await.unwrap();
    assert!(is_free().await);
    mysql.execute("UPDATE operations SET state = 'done', ended_at = UTC_TIMESTAMP(6)").await.unwrap();
    assert!(!is_free().await, "it is done");
    drop(store);
    drop_database(&url, &name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_summary_shows_blocked_jobs_and_remote_workers() {
    let tickr = TestApp::start().await;
    let first = summary(&tickr).await;
    assert_eq!((first.jobs_blocked, first.remote_workers), (false, false));

    let parent = tickr.enqueue(json!({"kind": "noop", "payload": {}, "delay_ms": 600_000})).await;
    let child = tickr.enqueue(json!({"kind": "noop", "payload": {}, "after": [parent.to_string()]})).await;
    assert!(summary(&tickr).await.jobs_blocked);
    assert_eq!(tickr.post(&format!("/v1/jobs/{parent}/cancel"), json!({})).await.status, 200);
    tickr.until(child, State::Cancelled).await;
    assert!(!summary(&tickr).await.jobs_blocked);

    let declared = tickr.put("/v1/kinds/resize", json!({"queue": "pictures"})).await;
    assert_eq!(declared.status, 201, "{:#}", declared.body);
    let made = tickr.post("/v1/workers", json!({"name": "test", "kinds": ["resize"], "slots": 1})).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    assert!(summary(&tickr).await.remote_workers);
    tickr.sql("UPDATE runners SET stopped_at = UTC_TIMESTAMP(6) WHERE via = 'http'").await;
    assert!(!summary(&tickr).await.remote_workers);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_followed_while_a_table_of_the_summary_is_locked() {
    let tickr = TestApp::start().await;
    let other = tickr.another_with(|_| (), Registry::new()).await;
    let mut times = Vec::new();
    let mut operator = tickr.mysql().await;
    operator.execute("LOCK TABLES schedules WRITE").await.unwrap();
    for (verb, paused) in [("pause", true), ("resume", false), ("pause", true), ("resume", false)] {
        let mut settings = other.operator_settings().listen();
        let asked = Instant::now();
        assert_eq!(tickr.post(&format!("/v1/queues/mail/{verb}"), json!({})).await.status, 200);
        let heard = settings
            .wait_for(|settings| settings.queues.get("mail").is_some_and(|queue| queue.pause.is_some() == paused));
        tokio::time::timeout(DEADLINE, heard).await.unwrap().unwrap();
        let took = asked.elapsed();
        println!("the other process knew after {} ms", took.as_millis());
        times.push(took);
    }
    // With the summary alone, a comparison waits ten seconds for the table, and the four together take about a minute.
    // One of them may be quick, because a change can come just when a wait ends.
    assert!(times.iter().sum::<Duration>() < Duration::from_secs(24), "{times:?}");

    // The loops that look after a summary look without one, too.
    assert_eq!(tickr.post("/v1/queues/mail/pause", json!({})).await.status, 200);
    let id = tickr.enqueue(json!({"kind": "noop", "queue": "mail", "expires_in_ms": 300})).await;
    let mut mysql = tickr.mysql().await;
    let row = sqlx::query("INSERT INTO tickr_outbox (id, kind, payload) VALUES (?, 'noop', '{}')");
    row.bind(uuid::Uuid::now_v7()).execute(&mut mysql).await.unwrap();
    tickr.until(id, State::Failed).await;
    tickr.until_count("SELECT COUNT(*) FROM tickr_outbox", 0).await;
    operator.execute("UNLOCK TABLES").await.unwrap();
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_another_process_moves_ticks_within_three_seconds() {
    let tickr = TestApp::start().await;
    let yearly = json!({"cron": "0 0 1 1 *", "kind": "noop", "misfire_grace_ms": 60_000});
    let made = tickr.put("/v1/schedules/yearly", &yearly).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    let mut mysql = tickr.mysql().await;
    let mut took = Vec::new();
    for round in 1..=3_i64 {
        // After a look of its own, the ticker knows when the schedule is due next, and sleeps.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        mysql.execute("UPDATE schedules SET next_at = UTC_TIMESTAMP(6)").await.unwrap();
        let moved = Instant::now();
        eventually("the job of the tick", || async {
            (tickr.count("SELECT COUNT(*) FROM jobs").await == round).then_some(())
        })
        .await;
        took.push(moved.elapsed());
    }
    // Without the summary, each of the looks comes after almost ten seconds.
    assert!(fastest(&took) < Duration::from_secs(3), "{took:?}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_operation_that_another_process_starts_begins_within_three_seconds() {
    let tickr = TestApp::start().await;
    // This process makes operations, and its own runner is never told.
    let mut took = Vec::new();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        let started = tickr.post("/v1/operations", json!({"action": "cancel", "filter": {"queue": "mail"}})).await;
        assert_eq!(started.status, 202, "{:#}", started.body);
        let asked = Instant::now();
        let path = format!("/v1/operations/{}", started.body["id"].as_str().unwrap());
        eventually("the operation is over", || async {
            (tickr.get(&path).await.body["state"] == "done").then_some(())
        })
        .await;
        took.push(asked.elapsed());
    }
    // Without the summary, each of the looks comes after almost ten seconds.
    assert!(fastest(&took) < Duration::from_secs(3), "{took:?}");
    tickr.stop().await;
}

/// Return the shortest of these times. A busy machine may delay one of them, and a missing safeguard delays all.
fn fastest(took: &[Duration]) -> Duration {
    *took.iter().min().unwrap()
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Stamp;

impl Kind for Stamp {
    const NAME: &'static str = "stamp";
}

fn stamps() -> Registry {
    let mut kinds = Registry::new();
    kinds.register(async |_: Stamp, _: Context| Output::json(&()));
    kinds
}

/// Return a client of a process without a runner.
async fn stranger(tickr: &TestApp) -> Client {
    let (mysql, redis) = (tickr.config.mysql_url().unwrap(), tickr.config.redis_url().unwrap());
    let client = Client::connect(mysql.expose(), redis.expose())
        .redis_prefix(&tickr.config.redis_prefix)
        .table_prefix(tickr.config.table_prefix.as_str());
    client.kinds(stamps()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_job_of_another_process_begins_within_three_seconds_of_its_due_time() {
    let tickr = TestApp::start_with(|_| (), stamps()).await;
    let client = stranger(&tickr).await;
    let mut took = Vec::new();
    for _ in 0..4 {
        // The scheduler has looked, and found nothing that is due soon.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        // With a shorter delay, the client itself would tell Redis when the job is due.
        let job = client.enqueue(&Stamp).delay(Duration::from_millis(1_500)).await.unwrap();
        let asked = Instant::now();
        tickr.until(job.id, State::Completed).await;
        took.push(asked.elapsed());
    }
    // Without its small looks, the scheduler looks every five seconds.
    assert!(fastest(&took) < Duration::from_millis(3_200), "{took:?}");
    client.close().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_due_soon_of_a_process_without_a_runner_begins_at_its_due_time() {
    let tickr = TestApp::start_with(|_| (), stamps()).await;
    let client = stranger(&tickr).await;
    let mut late = Vec::new();
    for _ in 0..7 {
        let job = client.enqueue(&Stamp).delay(Duration::from_millis(150)).await.unwrap();
        tickr.until(job.id, State::Completed).await;
        let sql = format!(
            "SELECT TIMESTAMPDIFF(MICROSECOND, execute_at, started_at) DIV 1000 FROM attempts \
             WHERE job_id = UNHEX('{}')",
            job.id.uuid().simple()
        );
        late.push(tickr.count(sql).await);
    }
    late.sort_unstable();
    // The scheduler of the runner looked when the job before was due, and does so again a second later. A job that
    // waits for that is late by 800 ms. A busy machine may delay some jobs.
    assert!(late[3] < 300, "late by {late:?} ms");
    client.close().await;
    tickr.stop().await;
}
