//! The outbox: a job exists exactly if the transaction of the application was committed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, NaiveDateTime, SecondsFormat, TimeDelta, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sqlx::{Connection, Executor, MySqlConnection};
use tickr::config::Config;
use tickr::handlers::{Context, Kind, Registry};
use tickr::job::limits::MAX_PAYLOAD_BYTES;
use tickr::job::{Due, JobId, JobOptions, NewJob, OnConflict, Priority, State};
use tickr::store::{PrepareRow, PreparedRow, Store, StoreSettings};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{
    Proxy, Pulse, TestApp, call, connect, database, drop_database, eventually, gated, make_api_key, migrated_database,
    table_prefix,
};

/// Insert a row as an application does.
async fn insert(conn: &mut MySqlConnection, id: Uuid, kind: &str, payload: &str) {
    sqlx::query("INSERT INTO tickr_outbox (id, kind, payload) VALUES (?, ?, ?)")
        .bind(id)
        .bind(kind)
        .bind(payload)
        .execute(conn)
        .await
        .unwrap();
}

async fn insert_with(conn: &mut MySqlConnection, id: Uuid, kind: &str, options: Value) {
    sqlx::query("INSERT INTO tickr_outbox (id, kind, payload, options) VALUES (?, ?, '{}', ?)")
        .bind(id)
        .bind(kind)
        .bind(options.to_string())
        .execute(conn)
        .await
        .unwrap();
}

/// Wait until the row is a job, and then until the job is in this state.
async fn until(tickr: &TestApp, id: JobId, state: State) -> Value {
    let path = format!("/v1/jobs/{id}");
    eventually("the row is a job", || async { (tickr.get(&path).await.status == 200).then_some(()) }).await;
    tickr.until(id, state).await
}

const WAITING: &str = "SELECT COUNT(*) FROM tickr_outbox";

#[tokio::test(flavor = "multi_thread")]
async fn a_job_exists_exactly_if_the_transaction_was_committed() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    app.execute("CREATE TABLE orders (number INT PRIMARY KEY)").await.unwrap();
    let (dropped, kept) = (Uuid::now_v7(), Uuid::now_v7());
    for (number, id) in [(1, dropped), (2, kept)] {
        let mut tx = app.begin().await.unwrap();
        sqlx::query("INSERT INTO orders VALUES (?)").bind(number).execute(&mut *tx).await.unwrap();
        insert(&mut tx, id, "noop", "{}").await;
        if id == kept { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
    }
    // The id of the row is the id of the job.
    let job = until(&tickr, JobId::from_uuid(kept), State::Completed).await;
    assert_eq!((&job["kind"], &job["queue"]), (&json!("noop"), &json!("default")));
    assert_eq!(tickr.get(&format!("/v1/jobs/{dropped}")).await.status, 404);
    assert_eq!(tickr.count(WAITING).await, 0);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1);
    // The application repeats its transaction, because it got no answer to its COMMIT.
    insert(&mut app, kept, "noop", "{}").await;
    tickr.until_count(WAITING, 0).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM outbox_rejected").await, 0, "nothing is wrong with the row");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts").await, 1);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_may_have_every_option_of_a_job() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let id = Uuid::now_v7();
    let options = json!({"priority": 2, "max_attempts": 7, "timeout_ms": 9_000, "retry": {"delays_ms": [5]},
        "unique_key": "u", "unique_until": "start", "order_key": "o", "on_failure": "skip", "limit_key": "l",
        "tags": ["a"], "expires_in_ms": 3_600_000});
    sqlx::query(
        "INSERT INTO tickr_outbox (id, kind, payload, queue, execute_at, options) \
         VALUES (?, 'noop', '{\"pad\":\"x\"}', 'mail', UTC_TIMESTAMP(3) + INTERVAL 30 MINUTE, ?)",
    )
    .bind(id)
    .bind(options.to_string())
    .execute(&mut app)
    .await
    .unwrap();
    tickr.until_count(WAITING, 0).await;
    let job = tickr.job(JobId::from_uuid(id)).await;
    for field in [
        "priority",
        "max_attempts",
        "timeout_ms",
        "unique_key",
        "unique_until",
        "order_key",
        "on_failure",
        "limit_key",
        "tags",
    ] {
        assert_eq!(job[field], options[field], "{field}");
    }
    assert_eq!(
        (&job["queue"], &job["payload"], &job["state"]),
        (&json!("mail"), &json!({"pad": "x"}), &json!("waiting"))
    );
    let moment = |value: &Value| value.as_str().unwrap().parse::<chrono::DateTime<chrono::Utc>>().unwrap();
    assert!((moment(&job["execute_at"]) - moment(&job["created_at"])).num_minutes() >= 29);
    assert!((moment(&job["expires_at"]) - moment(&job["created_at"])).num_minutes() == 60);
    tickr.stop().await;
}

/// A program that fills in all options writes `null` for those that it has no value for.
#[tokio::test(flavor = "multi_thread")]
async fn an_option_of_a_row_that_is_null_counts_as_left_out() {
    let tickr = TestApp::start().await;
    let id = Uuid::now_v7();
    let mut options = json!({});
    for option in [
        "delay_ms",
        "expires_at",
        "expires_in_ms",
        "priority",
        "max_attempts",
        "timeout_ms",
        "retry",
        "unique_key",
        "unique_fields",
        "on_conflict",
        "unique_until",
        "unique_for_ms",
        "max_wait_ms",
        "order_key",
        "limit_key",
        "on_failure",
        "after",
        "on_parent_failure",
        "batch",
        "tags",
        "trace",
    ] {
        options[option] = Value::Null;
    }
    insert_with(&mut tickr.mysql().await, id, "noop", options).await;
    tickr.until_count(WAITING, 0).await;
    assert_eq!(tickr.get("/v1/outbox/rejected").await.body["data"], json!([]));
    until(&tickr, JobId::from_uuid(id), State::Completed).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_whose_expiry_passed_while_it_waited_becomes_a_job_that_expired() {
    let tickr = TestApp::start().await;
    let id = Uuid::now_v7();
    let minutes_ago = |minutes| chrono::Utc::now() - chrono::TimeDelta::minutes(minutes);
    sqlx::query("INSERT INTO tickr_outbox (id, kind, payload, options, created_at) VALUES (?, 'noop', '{}', ?, ?)")
        .bind(id)
        .bind(json!({"expires_at": minutes_ago(30)}).to_string())
        .bind(minutes_ago(60).naive_utc())
        .execute(&mut tickr.mysql().await)
        .await
        .unwrap();
    tickr.until_count(WAITING, 0).await;
    let job = until(&tickr, JobId::from_uuid(id), State::Failed).await;
    assert_eq!((&job["attempt"], &job["attempts"][0]["verdict"]), (&json!(0), &json!("expired")), "{job:#}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM outbox_rejected").await, 0);
    tickr.stop().await;
}

/// Return an id that was made at this moment.
fn id_of(moment: DateTime<Utc>) -> Uuid {
    let ms = u128::from(moment.timestamp_millis().unsigned_abs());
    Uuid::from_u128((ms << 80) | (0x7 << 76) | (0x8 << 60) | 1)
}

/// Return the jobs of a filter, read page by page.
async fn listed(tickr: &TestApp, query: &str) -> Vec<Uuid> {
    tickr.walk(query, 1).await.into_iter().map(tickr::JobId::uuid).collect()
}

/// An application makes ids before its INSERT, by its own clock, and goes on while no runner moves its rows.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_found_by_the_time_of_its_acceptance_however_distant_its_id_is() {
    const DAY_MS: u64 = 86_400_000;
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let now = Utc::now();
    let (old, ahead) = (id_of(now - TimeDelta::hours(1)), id_of(now + TimeDelta::hours(23)));
    // An older binary has removed a job with this id, and has left the row.
    let left = format!("INSERT INTO distant_ids VALUES (UNHEX(REPLACE('{old}', '-', '')), '2026-01-01')");
    tickr.sql(left).await;
    for id in [old, ahead] {
        insert_with(&mut app, id, "noop", json!({"delay_ms": DAY_MS, "tags": ["late"]})).await;
    }
    tickr.until_count(WAITING, 0).await;
    let near = tickr.enqueue(json!({"kind": "noop", "delay_ms": DAY_MS})).await.uuid();
    assert_eq!(tickr.count("SELECT COUNT(*) FROM distant_ids").await, 2);

    let text = |moment: DateTime<Utc>| moment.to_rfc3339_opts(SecondsFormat::Millis, true);
    let (since, until) = (text(now - TimeDelta::minutes(10)), text(now + TimeDelta::minutes(10)));
    for (filter, wanted) in [
        (format!("created_after={since}"), vec![ahead, near, old]),
        (format!("created_before={until}"), vec![ahead, near, old]),
        (format!("created_after={since}&created_before={until}"), vec![ahead, near, old]),
        (format!("created_after={since}&state=waiting&kind=noop"), vec![ahead, near, old]),
        (format!("created_after={since}&tag=late"), vec![ahead, old]),
        (format!("created_after={since}&state=completed"), vec![]),
        (format!("created_before={since}"), vec![]),
        (format!("created_after={until}"), vec![]),
    ] {
        assert_eq!(listed(&tickr, &filter).await, wanted, "{filter}");
        let oldest_first: Vec<Uuid> = wanted.iter().rev().copied().collect();
        assert_eq!(listed(&tickr, &format!("sort=oldest&{filter}")).await, oldest_first, "{filter}");
        let count = tickr.get(&format!("/v1/jobs/count?{filter}")).await.body;
        assert_eq!(count, json!({"count": wanted.len(), "capped": false}), "{filter}");
        let survey = tickr.get(&format!("/v1/jobs/survey?{filter}")).await.body;
        assert_eq!((&survey["jobs"], &survey["exact"]), (&json!(wanted.len()), &json!(true)), "{filter}: {survey:#}");
    }

    // Each of them is in the bar of its acceptance.
    let range = format!("created_after={}&created_before={until}", text(now - TimeDelta::hours(20)));
    let survey = tickr.get(&format!("/v1/jobs/survey?{range}")).await.body;
    assert_eq!((&survey["jobs"], &survey["step_ms"]), (&json!(3), &json!(1_800_000)), "{survey:#}");
    for bar in survey["bars"].as_array().unwrap().iter().filter(|bar| bar["states"] != json!({})) {
        let from: DateTime<Utc> = bar["from"].as_str().unwrap().parse().unwrap();
        assert!(from + TimeDelta::minutes(30) > now, "{survey:#}");
    }

    // An operation changes the jobs that were accepted before its start.
    let operate = async |body: Value| {
        let started = tickr.post("/v1/operations", body).await;
        assert_eq!(started.status, 202, "{:#}", started.body);
        let path = format!("/v1/operations/{}", started.body["id"].as_str().unwrap());
        let over = eventually("the operation is over", || async {
            let shown = tickr.get(&path).await.body;
            (shown["state"] != "running").then_some(shown)
        })
        .await;
        over["done"].as_u64().unwrap()
    };
    assert_eq!(operate(json!({"action": "cancel", "filter": {"ids": [ahead]}})).await, 1);
    assert_eq!(operate(json!({"action": "cancel", "filter": {"created_after": since, "tag": "late"}})).await, 1);
    assert_eq!(operate(json!({"action": "delete", "filter": {"state": "cancelled"}})).await, 2);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM distant_ids").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_become_a_job_is_kept_with_the_reason_and_runs_after_a_fix() {
    let open = CancellationToken::new();
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let gate = Uuid::now_v7();
    insert(&mut app, gate, "gate", "{}").await;
    let bad = [
        (Uuid::now_v7(), "noop", "{".to_owned(), "the payload is not JSON"),
        (Uuid::now_v7(), "fail", r#"{"times": "many"}"#.to_owned(), "/times"),
        (Uuid::new_v4(), "noop", "{}".to_owned(), "UUIDv7"),
        (Uuid::now_v7(), "noop", format!("\"{}\"", "x".repeat(1 << 20)), "1048576 are allowed"),
    ];
    for (id, kind, payload, _) in &bad {
        insert(&mut app, *id, kind, payload).await;
    }
    insert_with(&mut app, Uuid::now_v7(), "noop", json!({"priority": 11})).await;
    // They hold up no good row.
    let good = Uuid::now_v7();
    insert(&mut app, good, "noop", "{}").await;
    until(&tickr, JobId::from_uuid(good), State::Completed).await;
    tickr.until_count("SELECT COUNT(*) FROM outbox_rejected", 6).await;
    assert_eq!(tickr.count(WAITING).await, 0);
    let page = tickr.get("/v1/outbox/rejected?limit=4").await;
    let next = page.body["next_cursor"].as_str().unwrap().to_owned();
    let more = tickr.get(&format!("/v1/outbox/rejected?limit=4&cursor={next}")).await;
    let rows: Vec<Value> =
        [&page, &more].iter().flat_map(|page| page.body["data"].as_array().unwrap().clone()).collect();
    assert_eq!((rows.len(), &more.body["next_cursor"]), (6, &Value::Null));
    for (id, _, payload, part) in &bad {
        let row = rows.iter().find(|row| row["id"] == id.to_string()).unwrap();
        assert!(row["reason"].as_str().unwrap().contains(part), "{}", row["reason"]);
        assert!(payload.starts_with(row["payload"].as_str().unwrap()));
    }
    assert!(rows.iter().any(|row| row["reason"].as_str().unwrap().contains("/priority")));
    assert_eq!(tickr.get("/v1/outbox").await.body["rejected"], 6);
    tickr.until_metric("tickr_outbox_rejected 6").await;
    assert_eq!(tickr.get(&format!("/v1/outbox/rejected?cursor={}", &next[1..])).await.status, 422);

    // A row that is still wrong is rejected again. One whose kind is there now becomes a job.
    let replay = async |id: Uuid| tickr.post(&format!("/v1/outbox/rejected/{id}/replay"), json!({})).await.status;
    assert_eq!(replay(bad[0].0).await, 204);
    tickr.until_count("SELECT COUNT(*) FROM outbox_rejected", 6).await;
    let newer = tickr.another_with(|_| {}, gated(&open)).await;
    assert_eq!(replay(gate).await, 204);
    open.cancel();
    until(&tickr, JobId::from_uuid(gate), State::Completed).await;
    for (id, ..) in &bad {
        assert_eq!(tickr.delete(&format!("/v1/outbox/rejected/{id}")).await.status, 204);
    }
    assert_eq!((replay(bad[0].0).await, tickr.count("SELECT COUNT(*) FROM outbox_rejected").await), (404, 1));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM audit WHERE action LIKE 'outbox.%'").await, 6);
    newer.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

/// The row was rejected by the version that runs, and is replayed in the middle of a deploy.
#[tokio::test(flavor = "multi_thread")]
async fn a_replayed_row_is_left_to_a_living_runner_of_another_version() {
    let open = CancellationToken::new();
    open.cancel();
    let tickr = TestApp::start().await;
    let id = Uuid::now_v7();
    insert(&mut tickr.mysql().await, id, "gate", "{}").await;
    // This runner leads from here on, so it is the first to see the replayed row.
    tickr.until_count("SELECT COUNT(*) FROM outbox_rejected", 1).await;
    tickr.sql("UPDATE outbox_rejected SET created_at = created_at - INTERVAL 11 MINUTE").await;
    let newer = tickr.another_with(|_| {}, gated(&open)).await;
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE kinds LIKE '%gate%'", 1).await;
    assert_eq!(tickr.post(&format!("/v1/outbox/rejected/{id}/replay"), json!({})).await.status, 204);
    until(&tickr, JobId::from_uuid(id), State::Completed).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM outbox_rejected").await, 0);
    newer.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

/// A store without a runner, so that nothing but the test moves rows.
async fn store_at(url: &str) -> Store {
    let settings = StoreSettings { url: url.to_owned(), connections: 5, flushers: 1, table_prefix: table_prefix() };
    Store::connect(&settings, Duration::from_secs(10)).await.unwrap()
}

/// Many rows of a kind that no runner has, with a good one in the middle and one behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_bad_rows_is_rejected_in_time_however_late_each_answer_is() {
    const ROWS: usize = 700;
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let store = store_at(&proxy.url()).await;
    let mut mysql = connect(&url).await;
    let ids: Vec<Uuid> = (0..ROWS).map(|_| Uuid::now_v7()).collect();
    let good = [ids[ROWS / 2], ids[ROWS - 1]];
    let kind = |id: &Uuid| if good.contains(id) { "noop" } else { "unknown" };
    let rows: Vec<String> =
        ids.iter().map(|id| format!("(UNHEX('{}'), '{}', '{{}}')", id.simple(), kind(id))).collect();
    let sql = format!("INSERT INTO tickr_outbox (id, kind, payload) VALUES {}", rows.join(","));
    mysql.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(sql))).await.unwrap();
    // One of them was rejected before.
    let sql =
        "INSERT INTO outbox_rejected (id, kind, payload, rejected_at, reason) VALUES (?, 'x', '', '2026-01-01', 'x')";
    sqlx::query(sql).bind(ids[3]).execute(&mut mysql).await.unwrap();
    let reason_of = |id: Uuid| format!("no kind of {id} is called “it's \\ ?”");
    let prepare: PrepareRow = Arc::new(move |row, _| {
        if row.kind != "noop" {
            return PreparedRow::Unfit(reason_of(row.id));
        }
        PreparedRow::Job(Box::new(NewJob {
            id: JobId::from_uuid(row.id),
            kind: row.kind.parse().unwrap(),
            queue: "default".parse().unwrap(),
            payload: RawValue::from_string(row.payload).unwrap(),
            due: Due::Now,
            expires: None,
            priority: Priority::NORMAL,
            max_attempts: 5,
            unique_key: None,
            on_conflict: OnConflict::Reject,
            host: None,
            options: JobOptions::default(),
            batch: None,
        }))
    });
    // The transaction of a page may last for 15 s.
    proxy.delay(Duration::from_millis(20));
    let before = proxy.requests();
    let page = store.move_outbox_page(None, prepare, HashSet::new()).await.unwrap();
    println!("{} requests for a page", proxy.requests() - before);
    assert_eq!((page.accepted.len(), page.rejected.len(), page.next), (2, ROWS - 2, None));
    assert!(proxy.requests() - before < 200, "{} requests", proxy.requests() - before);
    proxy.delay(Duration::ZERO);
    let kept: Vec<(Uuid, String, String)> =
        sqlx::query_as("SELECT id, kind, reason FROM outbox_rejected ORDER BY id").fetch_all(&mut mysql).await.unwrap();
    let wanted = ids.iter().filter(|id| !good.contains(id));
    let wanted: Vec<_> = wanted.map(|id| (*id, "unknown".to_owned(), reason_of(*id))).collect();
    assert!(kept == wanted, "{:?}", kept.iter().zip(&wanted).find(|(kept, wanted)| kept != wanted));
    let waiting: i64 = sqlx::query_scalar(WAITING).fetch_one(&mut mysql).await.unwrap();
    assert_eq!(waiting, 0);
    store.close().await;
    drop_database(&url, &name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_too_large_are_rejected_a_few_at_a_time() {
    let (name, url) = migrated_database().await;
    let store = store_at(&url).await;
    let ids = [(); 3].map(|()| Uuid::now_v7());
    for id in ids {
        let sql = "INSERT INTO tickr_outbox (id, kind, payload) VALUES (?, 'noop', REPEAT('x', 3 * 1024 * 1024))";
        sqlx::query(sql).bind(id).execute(&mut connect(&url).await).await.unwrap();
    }
    let mut after = None;
    for (place, id) in ids.into_iter().enumerate() {
        let prepare: PrepareRow = Arc::new(|_, _| PreparedRow::ForAnother);
        let page = store.move_outbox_page(after, prepare, HashSet::new()).await.unwrap();
        assert_eq!(page.rejected.iter().map(|(row, _)| *row).collect::<Vec<_>>(), [id]);
        assert_eq!(page.next, (place < 2).then_some(id));
        after = page.next;
    }
    store.close().await;
    drop_database(&url, &name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_large_rows_locks_few_of_those_that_it_does_not_take() {
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let store = store_at(&proxy.url()).await;
    let mut mysql = connect(&url).await;
    let ids: Vec<Uuid> = (0..40).map(|_| Uuid::now_v7()).collect();
    for id in &ids {
        let sql = "INSERT INTO tickr_outbox (id, kind, payload) VALUES (?, 'noop', REPEAT('x', 900 * 1024))";
        sqlx::query(sql).bind(id).execute(&mut mysql).await.unwrap();
    }
    // The rows of the page are locked, and are not read yet.
    proxy.hold_back("SELECT id, kind, payload");
    let mover = store.clone();
    let moved = tokio::spawn(async move {
        let prepare: PrepareRow = Arc::new(|_, _| PreparedRow::ForAnother);
        mover.move_outbox_page(None, prepare, HashSet::new()).await
    });
    eventually("the rows are locked", || async { proxy.holds_one_back().then_some(()) }).await;
    let free: Vec<Uuid> = sqlx::query_scalar("SELECT id FROM tickr_outbox ORDER BY id FOR UPDATE SKIP LOCKED")
        .fetch_all(&mut mysql)
        .await
        .unwrap();
    assert!(free.len() >= 20 && !free.contains(&ids[3]), "{} rows of 40 are free", free.len());
    proxy.pass_held_back();
    let page = moved.await.unwrap().unwrap();
    // Four of them have less than 4 MiB.
    assert_eq!((page.left, page.next), (4, Some(ids[3])));
    store.close().await;
    drop_database(&url, &name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_with_an_impossible_date_is_rejected_and_shown() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    // A session that is not strict stores what is no date.
    app.execute("SET SESSION sql_mode = ''").await.unwrap();
    let [wrong, zero, good, former] = [(); 4].map(|()| Uuid::now_v7());
    for (id, at) in [(wrong, "2026-10-00 12:00:00"), (zero, "0000-00-00 00:00:00")] {
        let sql = "INSERT INTO tickr_outbox (id, kind, payload, execute_at) VALUES (?, 'noop', '{}', ?)";
        sqlx::query(sql).bind(id).bind(at).execute(&mut app).await.unwrap();
    }
    insert(&mut app, good, "noop", "{}").await;
    until(&tickr, JobId::from_uuid(good), State::Completed).await;
    tickr.until_count("SELECT COUNT(*) FROM outbox_rejected", 2).await;
    // One that an earlier version has kept as it was.
    let sql = "INSERT INTO outbox_rejected (id, kind, payload, execute_at, created_at, rejected_at, reason) VALUES \
               (?, 'noop', '{}', '2026-10-00 12:00:00', '0000-00-00 00:00:00', '2026-01-01', 'former')";
    sqlx::query(sql).bind(former).execute(&mut app).await.unwrap();
    let page = tickr.get("/v1/outbox/rejected").await;
    assert_eq!(page.status, 200, "{:#}", page.body);
    let rows = page.body["data"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[2]["id"]), (3, &json!(former)), "{:#}", page.body);
    for row in rows {
        assert_eq!(row["execute_at"], Value::Null, "{row:#}");
        let reason = if row["id"] == json!(former) { "former" } else { "the column execute_at is no time" };
        assert_eq!(row["reason"], reason, "{row:#}");
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM outbox_rejected WHERE execute_at IS NULL").await, 2);
    assert_eq!(tickr.count(WAITING).await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_whose_options_are_an_array_is_rejected() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let trace = json!({"trace": ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", null]});
    for options in [json!([600_000]), json!([]), json!({"retry": [[5]]}), trace] {
        insert_with(&mut app, Uuid::now_v7(), "noop", options).await;
    }
    tickr.until_count("SELECT COUNT(*) FROM outbox_rejected", 4).await;
    for row in tickr.get("/v1/outbox/rejected").await.body["data"].as_array().unwrap() {
        let reason = row["reason"].as_str().unwrap();
        assert!(reason.contains("the options cannot be read") && reason.contains("expected an object"), "{reason}");
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_mysql_refuses_as_a_job_is_rejected_and_holds_up_no_other() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    tickr.sql("ALTER TABLE jobs ADD CONSTRAINT no_poison CHECK (payload NOT LIKE '%poison%')").await;
    let ids: Vec<Uuid> = (0..5).map(|_| Uuid::now_v7()).collect();
    let mut tx = app.begin().await.unwrap();
    insert(&mut tx, ids[0], "noop", r#"{"pad":"poison"}"#).await;
    insert_with(&mut tx, ids[1], "noop", json!({"unique_key": "u"})).await;
    sqlx::query("UPDATE tickr_outbox SET payload = '{\"pad\":\"poison\"}' WHERE id = ?")
        .bind(ids[1])
        .execute(&mut *tx)
        .await
        .unwrap();
    for id in &ids[2..] {
        insert(&mut tx, *id, "noop", "{}").await;
    }
    tx.commit().await.unwrap();
    for id in &ids[2..] {
        until(&tickr, JobId::from_uuid(*id), State::Completed).await;
    }
    tickr.until_count("SELECT COUNT(*) FROM outbox_rejected", 2).await;
    for row in tickr.get("/v1/outbox/rejected").await.body["data"].as_array().unwrap() {
        assert!(row["reason"].as_str().unwrap().contains("MySQL refuses the job"), "{row:#}");
    }
    assert_eq!((tickr.count(WAITING).await, tickr.count("SELECT COUNT(*) FROM jobs").await), (0, 3));
    tickr.stop().await;
}

/// Longest time from a row to the end of its job beside a transaction that stays open.
const BESIDE_OPEN: Duration = Duration::from_secs(2);

/// Insert a row again and again, twenty times at least, while the transaction of another program stays open for this
/// long. After each of them, this many rows become jobs at once: MySQL cannot purge them while the transaction reads.
async fn insert_beside_an_open_transaction(lasts: Duration, every: Duration, burst: usize) {
    let tickr = TestApp::start().await;
    let (mut slow, mut quick) = (tickr.mysql().await, tickr.mysql().await);
    // The runner leads from here on.
    let before = Uuid::now_v7();
    insert(&mut quick, before, "noop", "{}").await;
    until(&tickr, JobId::from_uuid(before), State::Completed).await;
    let pulse = Pulse::start(&tickr).await;
    let first = Uuid::now_v7();
    slow.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT").await.unwrap();
    insert(&mut slow, first, "noop", "{}").await;
    let (began, mut rows, mut slowest) = (tokio::time::Instant::now(), 0, Duration::ZERO);
    while rows < 20 || began.elapsed() < lasts {
        let (id, inserted) = (Uuid::now_v7(), tokio::time::Instant::now());
        insert(&mut quick, id, "noop", "{}").await;
        until(&tickr, JobId::from_uuid(id), State::Completed).await;
        let took = pulse.time_since(inserted);
        assert!(took < BESIDE_OPEN, "row {rows} took {took:?} beside stalls of the machine");
        slowest = slowest.max(took);
        if burst > 0 {
            let mut tx = quick.begin().await.unwrap();
            for _ in 0..burst {
                insert(&mut tx, Uuid::now_v7(), "noop", "{}").await;
            }
            tx.commit().await.unwrap();
            tickr.until_count(WAITING, 0).await;
        }
        tokio::time::sleep_until(inserted + every).await;
        rows += 1;
    }
    println!("{rows} rows in {:?} beside an open transaction, {slowest:?} for the slowest", began.elapsed());
    assert_eq!(tickr.get(&format!("/v1/jobs/{first}")).await.status, 404);
    slow.execute("COMMIT").await.unwrap();
    until(&tickr, JobId::from_uuid(first), State::Completed).await;
    tickr.until_idle().await;
    tickr.assert_each_ran_once(2 + rows * (1 + burst as i64)).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_stays_open_delays_no_other_row() {
    insert_beside_an_open_transaction(Duration::ZERO, Duration::ZERO, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "keeps a transaction open for eleven minutes"]
async fn a_transaction_that_stays_open_for_ten_minutes_delays_no_other_row() {
    insert_beside_an_open_transaction(Duration::from_secs(660), Duration::from_secs(20), 500).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unique_keys_and_order_keys_of_rows_mean_what_they_mean_elsewhere() {
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, gated(&open)).await;
    let mut app = tickr.mysql().await;
    let ids: Vec<Uuid> = (0..3).map(|_| Uuid::now_v7()).collect();
    insert_with(&mut app, ids[0], "gate", json!({"unique_key": "u"})).await;
    until(&tickr, JobId::from_uuid(ids[0]), State::Executing).await;
    insert_with(&mut app, ids[1], "gate", json!({"unique_key": "u"})).await;
    insert_with(&mut app, ids[2], "gate", json!({"unique_key": "u", "on_conflict": "reject"})).await;
    tickr.until_count(WAITING, 0).await;
    let rejected = tickr.get("/v1/outbox/rejected").await;
    let reason = rejected.body["data"][0]["reason"].as_str().unwrap();
    assert!(reason.contains(&ids[0].to_string()) && reason.contains("executing"), "{reason}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1);
    open.cancel();

    let mut tx = app.begin().await.unwrap();
    let line: Vec<Uuid> = (0..50).map(|_| Uuid::now_v7()).collect();
    for id in line.iter().rev() {
        insert_with(&mut tx, *id, "noop", json!({"order_key": "o"})).await;
    }
    tx.commit().await.unwrap();
    tickr.until_count(WAITING, 0).await;
    tickr.until_idle().await;
    let order: Vec<Uuid> = sqlx::query_scalar("SELECT job_id FROM order_places WHERE order_key = 'o' ORDER BY place")
        .fetch_all(&mut app)
        .await
        .unwrap();
    assert_eq!(order, line);
    tickr.stop().await;
}

/// Three runners and a flood of nudges move the same rows, while applications commit and roll back.
#[tokio::test(flavor = "multi_thread")]
async fn each_committed_row_becomes_one_job_whoever_moves_it() {
    let tickr = TestApp::start().await;
    let others = [tickr.another().await, tickr.another().await];
    let urls: Vec<String> =
        std::iter::once(tickr.url("")).chain(others.iter().map(|other| format!("http://{}", other.addr()))).collect();
    let stop = CancellationToken::new();
    let nudging = urls.iter().map(|url| {
        let (url, stop) = (url.clone(), stop.clone());
        tokio::spawn(async move {
            while !stop.is_cancelled() {
                assert_eq!(call(&url, reqwest::Method::POST, "/v1/outbox/nudge", "", None).await.status, 204);
            }
        })
    });
    let nudging: Vec<_> = nudging.collect();
    let applications = (0..8).map(|n| {
        let tickr = &tickr;
        async move {
            let mut app = tickr.mysql().await;
            let mut kept = 0;
            for turn in 0..20_i64 {
                let mut tx = app.begin().await.unwrap();
                for _ in 0..3 {
                    insert(&mut tx, Uuid::now_v7(), "noop", "{}").await;
                }
                if (turn + n) % 4 == 0 {
                    tx.rollback().await.unwrap();
                } else {
                    tx.commit().await.unwrap();
                    kept += 3;
                }
            }
            kept
        }
    });
    let kept: i64 = futures_util::future::join_all(applications).await.iter().sum();
    tickr.until_count(WAITING, 0).await;
    stop.cancel();
    for task in nudging {
        task.await.unwrap();
    }
    tickr.until_idle().await;
    assert_eq!(kept, 8 * 15 * 3);
    tickr.assert_each_ran_once(kept).await;
    for other in others {
        other.stop(CancellationToken::new()).await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_whose_commit_is_not_answered_neither_loses_nor_doubles_a_row() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let url = Config::for_tests(&proxy.url(), "redis://unused").mysql_url;
    let served = |config: &mut Config| (config.mysql_url, config.queues) = (url, vec!["default".into()]);
    let through = tickr.another_with(served, Registry::new()).await;
    let mut app = tickr.mysql().await;
    let ids: Vec<Uuid> = (0..20).map(|_| Uuid::now_v7()).collect();
    for chunk in ids.chunks(4) {
        for id in chunk {
            insert(&mut app, *id, "noop", "{}").await;
        }
        proxy.cut_after("COMMIT");
        let _ = through.broker().move_outbox(None).await;
    }
    tickr.until_count(WAITING, 0).await;
    tickr.until_idle().await;
    tickr.assert_each_ran_once(20).await;
    through.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_moved_soon_after_their_leader_has_died() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let ghost = "INSERT INTO outbox_leader VALUES (1, 'ghost/1-00000000', UTC_TIMESTAMP(6) + INTERVAL 5 SECOND) \
                 ON DUPLICATE KEY UPDATE runner = VALUES(runner), lease_until = VALUES(lease_until)";
    app.execute(ghost).await.unwrap();
    let (id, began) = (Uuid::now_v7(), Instant::now());
    insert(&mut app, id, "noop", "{}").await;
    until(&tickr, JobId::from_uuid(id), State::Completed).await;
    println!("{:?} after its leader died", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    // When the lease of the dead one is over, this runner looks ten times a second.
    tickr.until_count("SELECT COUNT(*) FROM outbox_leader WHERE lease_until < UTC_TIMESTAMP(6)", 1).await;
    let next = Uuid::now_v7();
    insert(&mut app, next, "noop", "{}").await;
    until(&tickr, JobId::from_uuid(next), State::Completed).await;
    eventually("this runner leads", || async {
        (tickr.get("/v1/outbox").await.body["leader"] == tickr.app.runner().to_string()).then_some(())
    })
    .await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_whose_kind_only_another_runner_has_is_left_to_it() {
    let open = CancellationToken::new();
    open.cancel();
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let first = Uuid::now_v7();
    insert(&mut app, first, "noop", "{}").await;
    until(&tickr, JobId::from_uuid(first), State::Completed).await;
    // This runner leads now, and the other one has a kind that it does not know.
    let newer = tickr.another_with(|_| {}, gated(&open)).await;
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE kinds LIKE '%gate%'", 1).await;
    let id = Uuid::now_v7();
    insert(&mut app, id, "gate", "{}").await;
    until(&tickr, JobId::from_uuid(id), State::Completed).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM outbox_rejected").await, 0);
    newer.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_waits_for_a_parent_that_only_another_runner_can_read() {
    let open = CancellationToken::new();
    open.cancel();
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let first = Uuid::now_v7();
    insert(&mut app, first, "noop", "{}").await;
    until(&tickr, JobId::from_uuid(first), State::Completed).await;
    // This runner leads. It can read the child and not the parent, which the other one takes some seconds later.
    let newer = tickr.another_with(|_| {}, gated(&open)).await;
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE kinds LIKE '%gate%'", 1).await;
    let (parent, child) = (Uuid::now_v7(), Uuid::now_v7());
    let mut tx = app.begin().await.unwrap();
    insert(&mut tx, parent, "gate", "{}").await;
    insert_with(&mut tx, child, "noop", json!({"after": [parent]})).await;
    tx.commit().await.unwrap();
    for id in [parent, child] {
        until(&tickr, JobId::from_uuid(id), State::Completed).await;
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM outbox_rejected").await, 0);
    newer.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_stays_while_the_row_of_its_parent_is_held() {
    let tickr = TestApp::start().await;
    let (mut app, mut other) = (tickr.mysql().await, tickr.mysql().await);
    let (parent, child) = (Uuid::now_v7(), Uuid::now_v7());
    app.execute("BEGIN").await.unwrap();
    insert(&mut app, parent, "noop", "{}").await;
    insert_with(&mut app, child, "noop", json!({"after": [parent]})).await;
    // This session waits for the row of the parent, and gets it with the COMMIT. So every runner finds it held.
    let waits = tokio::spawn(async move {
        other.execute("BEGIN").await.unwrap();
        let hold = sqlx::query("SELECT id FROM tickr_outbox WHERE id = ? FOR UPDATE").bind(parent);
        hold.fetch_one(&mut other).await.unwrap();
        other
    });
    tickr.until_said("SELECT id FROM tickr_outbox WHERE", 1).await;
    app.execute("COMMIT").await.unwrap();
    let mut other = waits.await.unwrap();
    for _ in 0..3 {
        tickr.app.broker().move_outbox(None).await.unwrap();
    }
    let found = (tickr.count(WAITING).await, tickr.count("SELECT COUNT(*) FROM outbox_rejected").await);
    other.execute("ROLLBACK").await.unwrap();
    assert_eq!(found, (2, 0));
    until(&tickr, JobId::from_uuid(child), State::Completed).await;
    assert_eq!(tickr.job(JobId::from_uuid(parent)).await["state"], "completed");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM outbox_rejected").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_waits_for_the_job_that_was_the_answer_to_the_row_of_its_parent() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let later = json!({"kind": "noop", "unique_key": "u", "unique_for_ms": 3_600_000, "delay_ms": 3_600_000});
    let holder = tickr.enqueue(later).await;
    let rows: Vec<Uuid> = (0..6).map(|_| Uuid::now_v7()).collect();
    let [first, second] = [0, 3].map(|parent| JobId::from_uuid(rows[parent]));
    let mut tx = app.begin().await.unwrap();
    insert_with(&mut tx, rows[0], "noop", json!({"unique_key": "u"})).await;
    insert_with(&mut tx, rows[1], "noop", json!({"after": [first]})).await;
    tx.commit().await.unwrap();
    tickr.until_count(WAITING, 0).await;
    // The answer is known for as long as the answers to requests are, and to every runner.
    insert_with(&mut app, rows[2], "noop", json!({"after": [first, holder]})).await;
    for child in &rows[1..3] {
        let waits = until(&tickr, JobId::from_uuid(*child), State::Waiting).await;
        assert_eq!((&waits["held"], &waits["after"]), (&json!(true), &json!([holder])), "{waits:#}");
    }
    assert_eq!(tickr.post(&format!("/v1/jobs/{holder}/run-now"), json!({})).await.status, 200);
    for child in &rows[1..3] {
        tickr.until(JobId::from_uuid(*child), State::Completed).await;
    }

    // A job that has completed, holds its unique key and was removed is an answer as well.
    delete(&tickr, holder).await;
    let mut tx = app.begin().await.unwrap();
    insert_with(&mut tx, rows[3], "noop", json!({"unique_key": "u"})).await;
    insert_with(&mut tx, rows[4], "noop", json!({"after": [second]})).await;
    tx.commit().await.unwrap();
    let child = until(&tickr, JobId::from_uuid(rows[4]), State::Completed).await;
    assert_eq!(child["after"], json!([holder]));

    // The application repeats its transaction, and this time the row becomes a job.
    insert_with(&mut app, rows[3], "noop", json!({"delay_ms": 3_600_000})).await;
    insert_with(&mut app, rows[5], "noop", json!({"after": [second]})).await;
    let waits = until(&tickr, JobId::from_uuid(rows[5]), State::Waiting).await;
    assert_eq!((&waits["held"], &waits["after"]), (&json!(true), &json!([second])), "{waits:#}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM outbox_rejected").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_is_rejected_with_the_answer_to_the_row_of_its_parent_when_that_job_is_gone() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let holder = tickr.enqueue(json!({"kind": "noop", "unique_key": "u", "delay_ms": 3_600_000})).await;
    let (parent, child) = (Uuid::now_v7(), Uuid::now_v7());
    insert_with(&mut app, parent, "noop", json!({"unique_key": "u"})).await;
    tickr.until_count(WAITING, 0).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{holder}/cancel"), json!({})).await.status, 200);
    delete(&tickr, holder).await;
    insert_with(&mut app, child, "noop", json!({"after": [parent]})).await;
    tickr.until_count("SELECT COUNT(*) FROM outbox_rejected", 1).await;
    let rejected = tickr.get("/v1/outbox/rejected").await.body;
    let reason = rejected["data"][0]["reason"].as_str().unwrap();
    let said = format!("there is no job {holder}");
    assert!(reason.starts_with(&said) && reason.contains(&format!("the answer to the row {parent}")), "{reason}");
    tickr.stop().await;
}

/// An application repeats its transaction after an operator has removed the job.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_row_whose_removed_job_keeps_its_unique_key_holds_up_no_other_row() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let ids = [Uuid::now_v7(), Uuid::now_v7()];
    let unique = |key: &str| json!({"unique_key": key, "unique_for_ms": 3_600_000});
    insert_with(&mut app, ids[0], "noop", unique("u")).await;
    until(&tickr, JobId::from_uuid(ids[0]), State::Completed).await;
    delete(&tickr, JobId::from_uuid(ids[0])).await;
    let mut tx = app.begin().await.unwrap();
    insert_with(&mut tx, ids[0], "noop", unique("u")).await;
    insert_with(&mut tx, ids[1], "noop", unique("v")).await;
    tx.commit().await.unwrap();
    until(&tickr, JobId::from_uuid(ids[1]), State::Completed).await;
    tickr.until_count(WAITING, 0).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM outbox_rejected").await, 0, "nothing is wrong with the row");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1);
    tickr.stop().await;
}

/// An application repeats its transaction after both of its jobs were removed.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_is_rejected_whose_parent_was_answered_with_the_removed_job_of_the_row_itself() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let (parent, child) = (Uuid::now_v7(), Uuid::now_v7());
    let waits = json!({"unique_key": "u", "delay_ms": 3_600_000});
    let replaces = json!({"unique_key": "u", "unique_for_ms": 3_600_000, "on_conflict": "replace", "after": [parent],
        "on_parent_failure": "run"});
    insert_with(&mut app, parent, "noop", waits.clone()).await;
    insert_with(&mut app, child, "noop", replaces.clone()).await;
    until(&tickr, JobId::from_uuid(child), State::Completed).await;
    for id in [child, parent] {
        delete(&tickr, JobId::from_uuid(id)).await;
    }
    insert_with(&mut app, parent, "noop", waits).await;
    tickr.until_count(WAITING, 0).await;
    app.execute("UPDATE unique_keys SET held_until = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND").await.unwrap();
    insert_with(&mut app, child, "noop", replaces).await;
    tickr.until_count("SELECT COUNT(*) FROM outbox_rejected", 1).await;
    let rejected = tickr.get("/v1/outbox/rejected").await.body;
    let reason = rejected["data"][0]["reason"].as_str().unwrap();
    assert!(reason.starts_with(&format!("there is no job {child}")), "{reason}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 0);
    tickr.stop().await;
}

/// Delete a job by a bulk operation.
async fn delete(tickr: &TestApp, id: JobId) {
    tickr.until_count("SELECT COUNT(*) FROM parent_ends", 0).await;
    let filter = json!({"ids": [id.to_string()]});
    let started = tickr.post("/v1/operations", json!({"action": "delete", "filter": filter})).await;
    assert_eq!(started.status, 202, "{:#}", started.body);
    let row = id.uuid().simple();
    tickr.until_count(format!("SELECT COUNT(*) FROM jobs WHERE id = UNHEX('{row}')"), 0).await;
}

/// A row that names a row behind it would wait for ever if that one names it as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_whose_parent_is_behind_it_is_rejected() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let ids = [Uuid::now_v7(), Uuid::now_v7()];
    let mut tx = app.begin().await.unwrap();
    insert_with(&mut tx, ids[0], "noop", json!({"after": [ids[1]]})).await;
    insert_with(&mut tx, ids[1], "noop", json!({"after": [ids[0]]})).await;
    tx.commit().await.unwrap();
    tickr.until_count("SELECT COUNT(*) FROM outbox_rejected", 2).await;
    assert_eq!(tickr.count(WAITING).await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_names_itself_as_a_parent_is_rejected() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let ids = [Uuid::now_v7(), Uuid::now_v7()];
    // A program names all rows of its transaction.
    let mut tx = app.begin().await.unwrap();
    insert(&mut tx, ids[0], "noop", "{}").await;
    insert_with(&mut tx, ids[1], "noop", json!({"after": ids})).await;
    tx.commit().await.unwrap();
    tickr.until_count("SELECT COUNT(*) FROM outbox_rejected", 1).await;
    let rejected = tickr.get("/v1/outbox/rejected").await.body;
    assert_eq!(rejected["data"][0]["id"], ids[1].to_string());
    let reason = rejected["data"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("names itself in after"), "{reason}");
    assert_eq!((tickr.count(WAITING).await, tickr.count("SELECT COUNT(*) FROM jobs").await), (0, 1));
    until(&tickr, JobId::from_uuid(ids[0]), State::Completed).await;
    tickr.stop().await;
}

/// Time from a COMMIT to the start of its job when the caller nudges.
const NUDGED_WITHIN_MS: i64 = 50;

#[tokio::test(flavor = "multi_thread")]
async fn a_nudge_starts_jobs_within_milliseconds_and_needs_the_right_key() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    // Another runner leads and does not look. Without a nudge, its rows are moved after three seconds.
    app.execute(
        "INSERT INTO outbox_leader VALUES (1, 'ghost/1-00000000', UTC_TIMESTAMP(6) + INTERVAL 1 HOUR) \
         ON DUPLICATE KEY UPDATE runner = VALUES(runner), lease_until = VALUES(lease_until)",
    )
    .await
    .unwrap();
    let mut late: Vec<i64> = Vec::new();
    // On a busy machine most of them start later. The best one shows what the nudge itself takes.
    while late.len() < 20 || (late.len() < 100 && late.iter().all(|ms| *ms > NUDGED_WITHIN_MS)) {
        let id = Uuid::now_v7();
        insert(&mut app, id, "noop", "{}").await;
        let committed = chrono::Utc::now();
        assert_eq!(tickr.post("/v1/outbox/nudge", json!({})).await.status, 204);
        let job = until(&tickr, JobId::from_uuid(id), State::Completed).await;
        let started: chrono::DateTime<chrono::Utc> = job["started_at"].as_str().unwrap().parse().unwrap();
        late.push((started - committed).num_milliseconds());
    }
    late.sort_unstable();
    let (best, median, p90) = (late[0], late[late.len() / 2], late[late.len() * 9 / 10]);
    println!("started {best} ms (best), {median} ms (median), {p90} ms (p90) after the COMMIT");
    assert!(best <= NUDGED_WITHIN_MS && median < 1_000, "{late:?}");
    let url = tickr.url("");
    let admin = make_api_key(&url, "", "ops", json!({"scope": "admin"})).await;
    let shop = make_api_key(&url, &admin, "shop", json!({"scope": "enqueue"})).await;
    let board = make_api_key(&url, &admin, "board", json!({"scope": "read"})).await;
    let asks = async |key: &str, method: reqwest::Method, path: &str| call(&url, method, path, key, None).await.status;
    assert_eq!(asks(&shop, reqwest::Method::POST, "/v1/outbox/nudge").await, 204);
    assert_eq!(asks(&board, reqwest::Method::POST, "/v1/outbox/nudge").await, 403);
    assert_eq!(asks(&shop, reqwest::Method::GET, "/v1/outbox/rejected").await, 403);
    assert_eq!(asks(&board, reqwest::Method::GET, "/v1/outbox/rejected").await, 200);
    assert_eq!(asks(&board, reqwest::Method::DELETE, &format!("/v1/outbox/rejected/{}", Uuid::now_v7())).await, 403);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_become_jobs_without_redis_too() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    tickr.services().redis().stop().unwrap();
    let mut app = tickr.mysql().await;
    for _ in 0..5 {
        let id = Uuid::now_v7();
        insert(&mut app, id, "noop", "{}").await;
        until(&tickr, JobId::from_uuid(id), State::Completed).await;
    }
    tickr.services().redis().start_again().unwrap();
    tickr.stop().await;
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Paid {
    #[schemars(range(max = 9_999))]
    order: u32,
}

impl Kind for Paid {
    const NAME: &'static str = "paid";
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_in_rust_enqueues_in_a_transaction_of_the_caller() {
    let mut own = Registry::new();
    own.register(|_: Paid, _: Context| async { Ok(().into()) });
    let tickr = TestApp::start_with(|_| {}, own).await;
    let mysql = tickr.config.mysql_url().unwrap().expose().to_owned();
    let redis = tickr.config.redis_url().unwrap().expose().to_owned();
    let prefix = tickr.config.table_prefix.as_str();
    let beside = tickr::Client::connect(&mysql, &redis).table_prefix(prefix).await.unwrap();
    let remote = tickr::Client::http(&tickr.url(""), None).unwrap().with_table_prefix(prefix).unwrap();
    let mut app = tickr.mysql().await;
    // Another database of the same server is selected, as in an application with tables of its own.
    let (name, _) = database().await;
    for (n, client) in [tickr.app.client(), beside.clone(), remote].into_iter().enumerate() {
        let is_remote = n == 2;
        if !is_remote {
            app.execute(sqlx::AssertSqlSafe(format!("USE {name}"))).await.unwrap();
        } else {
            app.execute(sqlx::AssertSqlSafe(format!("USE {}", tickr.database()))).await.unwrap();
        }
        let mut tx = app.begin().await.unwrap();
        let dropped = client.enqueue_in(&mut tx, &Paid { order: 1 }).await.unwrap();
        tx.rollback().await.unwrap();
        let mut tx = app.begin().await.unwrap();
        let kept =
            client.enqueue(&Paid { order: 2 }).tag("a").priority(1).order_key("o").within(&mut tx).await.unwrap();
        tx.commit().await.unwrap();
        client.nudge().await.unwrap();
        let job = until(&tickr, kept, State::Completed).await;
        assert_eq!((&job["tags"], &job["priority"], &job["order_key"]), (&json!(["a"]), &json!(1), &json!("o")));
        assert_eq!(client.status(dropped).await.unwrap().map(|job| job.id), None);
        // What is wrong is refused before it is written, and the transaction goes on.
        let mut tx = app.begin().await.unwrap();
        let refused = client.enqueue(&Paid { order: 10_000 }).within(&mut tx).await;
        assert_eq!(refused.is_err(), !is_remote, "{refused:?}");
        let twice = client.enqueue(&Paid { order: 1 }).idempotency_key("k").within(&mut tx).await;
        assert!(twice.unwrap_err().to_string().contains("/idempotency_key"));
        tx.rollback().await.unwrap();
    }
    beside.close().await;
    tickr.stop().await;
    drop_database(&mysql, &name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_due_time_finer_than_a_millisecond_is_rounded_up_in_a_row() {
    let mut own = Registry::new();
    own.register(|_: Paid, _: Context| async { Ok(().into()) });
    let tickr = TestApp::start_with(|_| {}, own).await;
    let mut app = tickr.mysql().await;
    let second = Utc::now().timestamp() + 3_600;
    for (asked_ns, stored_ns) in [(300_000, 1_000_000), (900_000, 1_000_000), (2_000_000, 2_000_000)] {
        let [asked, stored] = [asked_ns, stored_ns].map(|ns| DateTime::from_timestamp(second, ns).unwrap());
        let mut tx = app.begin().await.unwrap();
        let job = tickr.app.client().enqueue(&Paid { order: 1 }).execute_at(asked).within(&mut tx).await.unwrap();
        let due = sqlx::query_scalar::<_, NaiveDateTime>("SELECT execute_at FROM tickr_outbox WHERE id = ?");
        assert_eq!(due.bind(job.uuid()).fetch_one(&mut *tx).await.unwrap(), stored.naive_utc());
        tx.rollback().await.unwrap();
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_no_caller_announces_starts_within_the_bound_of_recovery() {
    let mut own = Registry::new();
    own.register(|_: Paid, _: Context| async { Ok(().into()) });
    let tickr = TestApp::start_with(|_| {}, own).await;
    let (client, mut app, pulse) = (tickr.app.client(), tickr.mysql().await, Pulse::start(&tickr).await);
    // At first another runner leads, whose lease lasts and which does not look. Then its lease is over.
    let lease = [(true, "UTC_TIMESTAMP(6) + INTERVAL 1 HOUR"), (false, "'1970-01-01'")];
    for (leader_is_silent, lease_until) in lease {
        let ghost = format!(
            "INSERT INTO outbox_leader VALUES (1, 'ghost/1-00000000', {lease_until}) \
             ON DUPLICATE KEY UPDATE runner = VALUES(runner), lease_until = VALUES(lease_until)"
        );
        tickr.sql(ghost).await;
        let mut tx = app.begin().await.unwrap();
        let id = client.enqueue_in(&mut tx, &Paid { order: 1 }).await.unwrap();
        let commits = tokio::time::Instant::now();
        tx.commit().await.unwrap();
        until(&tickr, id, State::Completed).await;
        let what = format!("a job that is not announced, leader silent: {leader_is_silent}");
        pulse.assert_within(Duration::from_secs(6), commits, &what);
    }
    tickr.stop().await;
}

/// Return the ids of jobs with the order key `o`, in the order of their places.
async fn in_order(tickr: &TestApp) -> Vec<Uuid> {
    let sql = "SELECT job_id FROM order_places WHERE order_key = 'o' ORDER BY place";
    sqlx::query_scalar(sql).fetch_all(&mut tickr.mysql().await).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_one_transaction_keep_their_order_whatever_else_they_have_and_when_one_is_held() {
    let tickr = TestApp::start().await;
    assert_eq!(tickr.post("/v1/queues/default/pause", json!({})).await.status, 200);
    let mut app = tickr.mysql().await;
    let rows: Vec<Uuid> = (0..6).map(|_| Uuid::now_v7()).collect();
    // Rows with unique keys are moved one by one.
    let mut tx = app.begin().await.unwrap();
    for (n, id) in rows[..3].iter().enumerate() {
        let unique = if n == 1 { Value::Null } else { json!(format!("u{n}")) };
        insert_with(&mut tx, *id, "noop", json!({"order_key": "o", "unique_key": unique})).await;
    }
    tx.commit().await.unwrap();
    tickr.until_count("SELECT COUNT(*) FROM jobs", 3).await;
    assert_eq!(in_order(&tickr).await, rows[..3]);

    // Another session holds the first row of the second transaction, as it does at the moment of its COMMIT.
    let mut tx = app.begin().await.unwrap();
    for id in &rows[3..] {
        insert_with(&mut tx, *id, "noop", json!({"order_key": "o"})).await;
    }
    let free = Uuid::now_v7();
    insert_with(&mut tx, free, "noop", json!({"order_key": "other"})).await;
    let mut session = tickr.mysql().await;
    // The session waits for the row and has it first, because the runners skip rows that are held.
    let hold = async {
        session.execute("BEGIN").await.unwrap();
        let row = sqlx::query("SELECT 'held', id FROM tickr_outbox WHERE id = ? FOR UPDATE").bind(rows[3]);
        row.fetch_one(&mut session).await.unwrap();
    };
    let commit = async {
        tickr.until_said("SELECT 'held'", 1).await;
        tx.commit().await.unwrap();
    };
    tokio::join!(hold, commit);
    until(&tickr, JobId::from_uuid(free), State::Waiting).await;
    assert_eq!(in_order(&tickr).await, rows[..3]);
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_count(WAITING, 0).await;
    assert_eq!(in_order(&tickr).await, rows);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_whose_unique_key_is_locked_holds_up_no_other_row() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let holder = json!({"kind": "noop", "payload": {}, "unique_key": "a", "delay_ms": 3_600_000});
    tickr.enqueue(holder).await;
    let mut session = tickr.mysql().await;
    // Otherwise it locks the gap as well, and with it all new keys.
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    session.execute("BEGIN").await.unwrap();
    assert!(session.fetch_optional("SELECT * FROM unique_keys FOR UPDATE").await.unwrap().is_some());
    let ids = [Uuid::now_v7(), Uuid::now_v7()];
    let mut tx = app.begin().await.unwrap();
    insert_with(&mut tx, ids[0], "noop", json!({"unique_key": "a"})).await;
    insert_with(&mut tx, ids[1], "noop", json!({"unique_key": "b"})).await;
    tx.commit().await.unwrap();
    until(&tickr, JobId::from_uuid(ids[1]), State::Completed).await;
    assert_eq!(tickr.count(WAITING).await, 1);
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_count(WAITING, 0).await;
    tickr.stop().await;
}

/// Return options with which the newest row of this unique key takes the place of the others.
fn replacing(unique_key: &str, mut more: Value) -> Value {
    let mut options = json!({"unique_key": unique_key, "on_conflict": "replace", "delay_ms": 3_600_000});
    options.as_object_mut().unwrap().append(more.as_object_mut().unwrap());
    options
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_row_with_the_unique_key_of_a_row_that_is_locked_takes_its_place() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let holder = |key: &str| json!({"kind": "noop", "payload": {}, "unique_key": key, "delay_ms": 3_600_000});
    let head = json!({"kind": "noop", "payload": {}, "order_key": "o", "delay_ms": 3_600_000});
    tickr.enqueue_many([head, holder("u"), holder("other")]).await;
    let mut session = tickr.mysql().await;
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    session.execute("BEGIN").await.unwrap();
    for lock in [
        "SELECT * FROM order_keys WHERE order_key = 'o' FOR UPDATE",
        "SELECT * FROM unique_keys WHERE kind = 'noop' AND unique_key = 'other' FOR UPDATE",
    ] {
        assert!(session.fetch_optional(lock).await.unwrap().is_some());
    }
    // One row waits for its lock. After that, locked rows are tried without a wait, and soon again.
    insert_with(&mut app, Uuid::now_v7(), "noop", json!({"unique_key": "other"})).await;
    tickr.until_lock_waits(1..).await;
    let (older, newer, free) = (Uuid::now_v7(), Uuid::now_v7(), Uuid::now_v7());
    let mut tx = app.begin().await.unwrap();
    insert_with(&mut tx, older, "noop", replacing("u", json!({"order_key": "o"}))).await;
    insert_with(&mut tx, newer, "noop", replacing("u", json!({}))).await;
    insert_with(&mut tx, free, "noop", json!({"unique_key": "free"})).await;
    tx.commit().await.unwrap();
    until(&tickr, JobId::from_uuid(free), State::Completed).await;
    // From the second look on, the older row is known to be locked.
    for n in 0..3 {
        let next = Uuid::now_v7();
        insert_with(&mut app, next, "noop", json!({"unique_key": format!("free-{n}")})).await;
        until(&tickr, JobId::from_uuid(next), State::Completed).await;
    }
    assert_eq!(tickr.count(WAITING).await, 3);
    session.execute("ROLLBACK").await.unwrap();
    until(&tickr, JobId::from_uuid(newer), State::Waiting).await;
    until(&tickr, JobId::from_uuid(older), State::Cancelled).await;
    tickr.sql("DELETE FROM tickr_outbox").await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_row_with_the_unique_key_of_a_row_that_waits_or_is_held_takes_its_place() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let [parent, child, behind_child, held, behind_held, free] = [(); 6].map(|()| Uuid::now_v7());
    let mut tx = app.begin().await.unwrap();
    insert_with(&mut tx, parent, "noop", json!({"delay_ms": 3_600_000})).await;
    insert_with(&mut tx, child, "noop", replacing("u", json!({"after": [parent]}))).await;
    insert_with(&mut tx, behind_child, "noop", replacing("u", json!({}))).await;
    insert_with(&mut tx, held, "noop", replacing("v", json!({}))).await;
    insert_with(&mut tx, behind_held, "noop", replacing("v", json!({}))).await;
    insert_with(&mut tx, free, "noop", json!({"unique_key": "free"})).await;
    // Two sessions wait for two of the rows and have them first, because the runners skip rows that are held.
    let hold = async |row: Uuid| {
        let mut session = tickr.mysql().await;
        session.execute("BEGIN").await.unwrap();
        let row = sqlx::query("SELECT 'held', id FROM tickr_outbox WHERE id = ? FOR UPDATE").bind(row);
        row.fetch_one(&mut session).await.unwrap();
        session
    };
    let commit = async {
        tickr.until_said("SELECT 'held'", 2).await;
        tx.commit().await.unwrap();
    };
    let (mut of_parent, mut of_row, ()) = tokio::join!(hold(parent), hold(held), commit);
    until(&tickr, JobId::from_uuid(free), State::Completed).await;
    assert_eq!(tickr.count(WAITING).await, 5);
    for session in [&mut of_parent, &mut of_row] {
        session.execute("ROLLBACK").await.unwrap();
    }
    tickr.until_count(WAITING, 0).await;
    for (older, newer) in [(child, behind_child), (held, behind_held)] {
        tickr.until(JobId::from_uuid(newer), State::Waiting).await;
        tickr.until(JobId::from_uuid(older), State::Cancelled).await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_whose_order_key_is_locked_holds_up_no_other_row() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let head = json!({"kind": "noop", "payload": {}, "order_key": "a", "delay_ms": 3_600_000});
    tickr.enqueue(head).await;
    let mut session = tickr.mysql().await;
    // Otherwise it locks the gap as well, and with it all new keys.
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    session.execute("BEGIN").await.unwrap();
    let lock = "SELECT * FROM order_keys WHERE order_key = 'a' FOR UPDATE";
    assert!(session.fetch_optional(lock).await.unwrap().is_some());
    let ids = [Uuid::now_v7(), Uuid::now_v7(), Uuid::now_v7()];
    let mut tx = app.begin().await.unwrap();
    insert_with(&mut tx, ids[0], "noop", json!({"order_key": "a"})).await;
    insert_with(&mut tx, ids[1], "noop", json!({"order_key": "b"})).await;
    insert_with(&mut tx, ids[2], "noop", json!({"tags": ["free"]})).await;
    tx.commit().await.unwrap();
    for id in &ids[1..] {
        until(&tickr, JobId::from_uuid(*id), State::Completed).await;
    }
    // Rows that come later do not wait for it either, nor does one pass it that is behind it.
    let later = [Uuid::now_v7(), Uuid::now_v7()];
    insert_with(&mut app, later[0], "noop", json!({"order_key": "a"})).await;
    insert_with(&mut app, later[1], "noop", json!({"tags": ["free"]})).await;
    until(&tickr, JobId::from_uuid(later[1]), State::Completed).await;
    assert_eq!(tickr.count(WAITING).await, 2);
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_count(WAITING, 0).await;
    let places = "SELECT job_id FROM order_places WHERE order_key = 'a' AND place > 1 ORDER BY place";
    let places: Vec<Uuid> = sqlx::query_scalar(places).fetch_all(&mut app).await.unwrap();
    assert_eq!(places, [ids[0], later[0]]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_many_locked_order_keys_hold_up_no_other_row_for_more_than_one_wait() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let head = |n: u32| json!({"kind": "noop", "payload": {}, "order_key": format!("k{n}"), "delay_ms": 3_600_000});
    tickr.enqueue_many((0..20).map(head)).await;
    // A runner that freezes while it settles jobs keeps the keys of all of them.
    let mut session = tickr.mysql().await;
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    session.execute("BEGIN").await.unwrap();
    assert_eq!(session.fetch_all("SELECT * FROM order_keys FOR UPDATE").await.unwrap().len(), 20);
    let mut tx = app.begin().await.unwrap();
    for n in 0..20 {
        insert_with(&mut tx, Uuid::now_v7(), "noop", json!({"order_key": format!("k{n}")})).await;
    }
    tx.commit().await.unwrap();
    for options in [json!({"order_key": "free"}), json!({}), json!({"tags": ["free"]})] {
        let id = Uuid::now_v7();
        insert_with(&mut app, id, "noop", options).await;
        until(&tickr, JobId::from_uuid(id), State::Completed).await;
    }
    assert_eq!(tickr.count(WAITING).await, 20);
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_count(WAITING, 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_whose_order_keys_another_session_is_making_hold_up_no_other_row() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    // A runner that freezes in an enqueue with new order keys keeps rows that no other session can see.
    let mut session = tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    let keys = "INSERT INTO order_keys (order_key, head, tail) VALUES \
                ('k0', 1, 0), ('k1', 1, 0), ('k2', 1, 0), ('k3', 1, 0), ('k4', 1, 0), ('k5', 1, 0)";
    session.execute(keys).await.unwrap();
    let (first, plain) = (Uuid::now_v7(), Uuid::now_v7());
    let mut tx = app.begin().await.unwrap();
    insert_with(&mut tx, first, "noop", json!({"order_key": "k0"})).await;
    insert(&mut tx, plain, "noop", "{}").await;
    for n in 1..6 {
        insert_with(&mut tx, Uuid::now_v7(), "noop", json!({"order_key": format!("k{n}")})).await;
    }
    tx.commit().await.unwrap();
    until(&tickr, JobId::from_uuid(plain), State::Completed).await;
    // Rows that come later wait for one lock at most, and none passes the row that is in front of it.
    let (behind, later, began) = (Uuid::now_v7(), Uuid::now_v7(), Instant::now());
    insert_with(&mut app, behind, "noop", json!({"order_key": "k0"})).await;
    insert_with(&mut app, later, "noop", json!({"tags": ["free"]})).await;
    until(&tickr, JobId::from_uuid(later), State::Completed).await;
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert_eq!(tickr.count(WAITING).await, 7);
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_count(WAITING, 0).await;
    let places = "SELECT job_id FROM order_places WHERE order_key = 'k0' ORDER BY place";
    let places: Vec<Uuid> = sqlx::query_scalar(places).fetch_all(&mut app).await.unwrap();
    assert_eq!(places, [first, behind]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_locked_batch_hold_up_no_row_behind_them_for_more_than_one_wait() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let batch = tickr.post("/v1/batches", json!({"on_complete": {"kind": "noop", "payload": {}}})).await;
    assert_eq!(batch.status, 201, "{:#}", batch.body);
    let batch = batch.body["id"].as_str().unwrap();
    let mut session = tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    let lock = format!("SELECT id FROM batches WHERE id = UNHEX(REPLACE('{batch}', '-', '')) FOR UPDATE");
    sqlx::query(sqlx::AssertSqlSafe(lock)).fetch_one(&mut session).await.unwrap();
    let began = Instant::now();
    let mut tx = app.begin().await.unwrap();
    for _ in 0..10 {
        insert_with(&mut tx, Uuid::now_v7(), "noop", json!({"batch": batch})).await;
    }
    let free = Uuid::now_v7();
    insert_with(&mut tx, free, "noop", json!({"unique_key": "free"})).await;
    tx.commit().await.unwrap();
    until(&tickr, JobId::from_uuid(free), State::Completed).await;
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(tickr.count(WAITING).await, 10);
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_count(WAITING, 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_need_different_locked_rows_hold_up_no_row_behind_them_for_more_than_one_wait() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let parent = json!({"kind": "noop", "payload": {}, "delay_ms": 3_600_000});
    let parents = tickr.enqueue_many((0..4).map(|_| parent.clone())).await;
    let holder = |n: u32| json!({"kind": "noop", "payload": {}, "unique_key": format!("u{n}"), "delay_ms": 3_600_000});
    tickr.enqueue_many((0..3).map(holder)).await;
    let batch = tickr.post("/v1/batches", json!({"on_complete": {"kind": "noop", "payload": {}}})).await;
    assert_eq!(batch.status, 201, "{:#}", batch.body);
    // A runner that freezes in a transaction keeps many rows.
    let mut session = tickr.mysql().await;
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    session.execute("BEGIN").await.unwrap();
    assert_eq!(session.fetch_all("SELECT id FROM owed FOR UPDATE").await.unwrap().len(), 7);
    assert_eq!(session.fetch_all("SELECT unique_key FROM unique_keys FOR UPDATE").await.unwrap().len(), 3);
    assert_eq!(session.fetch_all("SELECT id FROM batches FOR UPDATE").await.unwrap().len(), 1);
    let began = Instant::now();
    let mut tx = app.begin().await.unwrap();
    for parent in parents {
        insert_with(&mut tx, Uuid::now_v7(), "noop", json!({"after": [parent]})).await;
    }
    for n in 0..3 {
        insert_with(&mut tx, Uuid::now_v7(), "noop", json!({"unique_key": format!("u{n}")})).await;
    }
    insert_with(&mut tx, Uuid::now_v7(), "noop", json!({"batch": batch.body["id"]})).await;
    let free = Uuid::now_v7();
    insert_with(&mut tx, free, "noop", json!({"unique_key": "free"})).await;
    tx.commit().await.unwrap();
    until(&tickr, JobId::from_uuid(free), State::Completed).await;
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert_eq!(tickr.count(WAITING).await, 8);
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_count(WAITING, 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locked_rows_in_several_pages_hold_up_no_row_behind_them_for_more_than_one_wait() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let holder = |n: u32| json!({"kind": "noop", "payload": {}, "unique_key": format!("u{n}"), "delay_ms": 3_600_000});
    tickr.enqueue_many((0..3).map(holder)).await;
    let mut session = tickr.mysql().await;
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    session.execute("BEGIN").await.unwrap();
    assert_eq!(session.fetch_all("SELECT unique_key FROM unique_keys FOR UPDATE").await.unwrap().len(), 3);
    let large = format!("{{}}{}", " ".repeat(MAX_PAYLOAD_BYTES - 2));
    let began = Instant::now();
    let mut tx = app.begin().await.unwrap();
    for n in 0..3 {
        insert_with(&mut tx, Uuid::now_v7(), "noop", json!({"unique_key": format!("u{n}")})).await;
        // More than a page may have.
        for _ in 0..5 {
            insert(&mut tx, Uuid::now_v7(), "noop", &large).await;
        }
    }
    let free = Uuid::now_v7();
    insert_with(&mut tx, free, "noop", json!({"unique_key": "free"})).await;
    tx.commit().await.unwrap();
    until(&tickr, JobId::from_uuid(free), State::Completed).await;
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    assert_eq!(tickr.count(WAITING).await, 3);
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_count(WAITING, 0).await;
    tickr.stop().await;
}

/// Rows of a batch are moved one by one, each in a transaction of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_starts_while_thousands_of_rows_of_a_batch_in_front_of_it_are_moved_and_orders_hold() {
    // The row behind them is in the third page.
    const ROWS: usize = 2_100;
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let batch = tickr.post("/v1/batches", json!({"on_complete": {"kind": "noop", "payload": {}}})).await;
    assert_eq!(batch.status, 201, "{:#}", batch.body);
    let member = json!({"batch": batch.body["id"], "delay_ms": 3_600_000});
    let ids: Vec<Uuid> = (0..ROWS).map(|_| Uuid::now_v7()).collect();
    let (ordered, parent, child, older, newer) = (ids[900], ids[901], Uuid::now_v7(), ids[902], Uuid::now_v7());
    let (behind, plain) = (Uuid::now_v7(), Uuid::now_v7());
    let with = |more: Value| {
        let mut options = member.clone();
        options.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        options
    };
    let mut tx = app.begin().await.unwrap();
    for rows in ids.chunks(500) {
        let places = vec!["(?, 'noop', '{}', ?)"; rows.len()].join(",");
        let sql = format!("INSERT INTO tickr_outbox (id, kind, payload, options) VALUES {places}");
        let insert = rows.iter().fold(sqlx::query(sqlx::AssertSqlSafe(sql)), |insert, id| {
            let options = match *id {
                id if id == ordered => with(json!({"order_key": "o"})),
                id if id == older => with(json!({"unique_key": "u"})),
                _ => member.clone(),
            };
            insert.bind(*id).bind(options.to_string())
        });
        insert.execute(&mut *tx).await.unwrap();
    }
    // In a later page each: what has to wait for a row in front, and what has not.
    insert_with(&mut tx, behind, "noop", json!({"order_key": "o", "delay_ms": 3_600_000})).await;
    insert_with(&mut tx, child, "noop", json!({"after": [parent]})).await;
    insert_with(&mut tx, newer, "noop", json!({"unique_key": "u", "on_conflict": "replace"})).await;
    insert(&mut tx, plain, "noop", "{}").await;
    tx.commit().await.unwrap();
    until(&tickr, JobId::from_uuid(plain), State::Completed).await;
    let left = tickr.count(WAITING).await;
    println!("{left} of {ROWS} rows are still in the outbox");
    assert!(left > 1_000, "{left}");
    // None of them stays for ever. Moving them all takes long, so the application takes most of them back.
    for rows in ids[..600].chunks(100).chain(ids[1_000..].chunks(100)) {
        let places = vec!["?"; rows.len()].join(",");
        let sql = format!("DELETE FROM tickr_outbox WHERE id IN ({places})");
        let delete = rows.iter().fold(sqlx::query(sqlx::AssertSqlSafe(sql)), |delete, id| delete.bind(*id));
        delete.execute(&mut app).await.unwrap();
    }
    tickr.until_count(WAITING, 0).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM outbox_rejected").await, 0);
    assert_eq!(in_order(&tickr).await, [ordered, behind]);
    assert_eq!(tickr.job(JobId::from_uuid(child)).await["after"], json!([parent]));
    tickr.until(JobId::from_uuid(newer), State::Completed).await;
    tickr.until(JobId::from_uuid(older), State::Cancelled).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_unique_key_holds_up_no_other_row_of_the_same_batch_for_more_than_one_wait() {
    let tickr = TestApp::start().await;
    let mut app = tickr.mysql().await;
    let batch = tickr.post("/v1/batches", json!({"on_complete": {"kind": "noop", "payload": {}}})).await;
    assert_eq!(batch.status, 201, "{:#}", batch.body);
    tickr.enqueue(json!({"kind": "noop", "payload": {}, "unique_key": "u", "delay_ms": 3_600_000})).await;
    let mut session = tickr.mysql().await;
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    session.execute("BEGIN").await.unwrap();
    assert_eq!(session.fetch_all("SELECT unique_key FROM unique_keys FOR UPDATE").await.unwrap().len(), 1);
    let began = Instant::now();
    let (locked, free) = (Uuid::now_v7(), Uuid::now_v7());
    let mut tx = app.begin().await.unwrap();
    insert_with(&mut tx, locked, "noop", json!({"batch": batch.body["id"], "unique_key": "u"})).await;
    insert_with(&mut tx, free, "noop", json!({"batch": batch.body["id"], "unique_key": "free"})).await;
    tx.commit().await.unwrap();
    until(&tickr, JobId::from_uuid(free), State::Completed).await;
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    assert_eq!(tickr.count(WAITING).await, 1);
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_count(WAITING, 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_waits_for_a_lock_takes_turns_with_enqueues_and_leaves_a_connection_to_changes() {
    // Two of these are for changes.
    let tickr = TestApp::start_with(|config| config.mysql_connections = 9, Registry::new()).await;
    let mut app = tickr.mysql().await;
    let holder = |n: u32| json!({"kind": "noop", "payload": {}, "unique_key": format!("u{n}"), "delay_ms": 3_600_000});
    tickr.enqueue_many((0..2).map(holder)).await;
    let other = tickr.enqueue(json!({"kind": "noop", "payload": {}, "delay_ms": 3_600_000})).await;
    let mut session = tickr.mysql().await;
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    session.execute("BEGIN").await.unwrap();
    assert_eq!(session.fetch_all("SELECT unique_key FROM unique_keys FOR UPDATE").await.unwrap().len(), 2);
    let enqueue = tickr.post("/v1/jobs", holder(0));
    let changes = async {
        tickr.until_lock_waits(1..).await;
        let (keyed, plain) = (Uuid::now_v7(), Uuid::now_v7());
        let mut tx = app.begin().await.unwrap();
        insert_with(&mut tx, keyed, "noop", json!({"unique_key": "u1"})).await;
        insert(&mut tx, plain, "noop", "{}").await;
        tx.commit().await.unwrap();
        // The page is moved, so it is the turn of the other row.
        until(&tickr, JobId::from_uuid(plain), State::Completed).await;
        let began = Instant::now();
        let changed = tickr.patch(&format!("/v1/jobs/{other}"), json!({"priority": 1})).await;
        assert_eq!(changed.status, 200, "{:#}", changed.body);
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        session.execute("ROLLBACK").await.unwrap();
    };
    let (answer, ()) = tokio::join!(enqueue, changes);
    assert_eq!(answer.status, 200, "{:#}", answer.body);
    tickr.until_count(WAITING, 0).await;
    tickr.stop().await;
}
