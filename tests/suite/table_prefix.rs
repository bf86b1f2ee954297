//! `table_prefix`: tickr in a database that other programs use as well, and beside another tickr.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, MySqlConnection, Row as _};
use tickr::app::{App, StartError, engine_settings};
use tickr::config::{Alerts, Config, Threshold};
use tickr::engine::{Engine, runner_of_this_process};
use tickr::handlers::{Kind, Registry};
use tickr::job::{JobId, State, TablePrefix};
use tickr::services::Services;
use tickr::store::{MigrateSettings, Store, StoreError, StoreSettings};
use tickr::telemetry::Tracer;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::limits::set_and_wait;
use crate::support::program::{command, outcome, tickr as program};
use crate::support::{Runner, SHORT_LEASE, TestApp, call, eventually, server_options};

/// The tables of Laravel's migrations for jobs, batches, failed jobs, the cache and users, with a row in each.
const LARAVEL: &str = "\
    CREATE TABLE migrations (id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, migration VARCHAR(255) NOT NULL, \
    batch INT NOT NULL); \
    CREATE TABLE jobs (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, queue VARCHAR(255) NOT NULL, \
    payload LONGTEXT NOT NULL, attempts TINYINT UNSIGNED NOT NULL, reserved_at INT UNSIGNED NULL, \
    available_at INT UNSIGNED NOT NULL, created_at INT UNSIGNED NOT NULL, KEY jobs_queue_index (queue)); \
    CREATE TABLE job_batches (id VARCHAR(255) NOT NULL PRIMARY KEY, name VARCHAR(255) NOT NULL, \
    total_jobs INT NOT NULL, pending_jobs INT NOT NULL, failed_jobs INT NOT NULL, failed_job_ids LONGTEXT NOT NULL, \
    options MEDIUMTEXT NULL, cancelled_at INT NULL, created_at INT NOT NULL, finished_at INT NULL); \
    CREATE TABLE failed_jobs (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, uuid VARCHAR(255) NOT NULL UNIQUE, \
    connection TEXT NOT NULL, queue TEXT NOT NULL, payload LONGTEXT NOT NULL, exception LONGTEXT NOT NULL, \
    failed_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP); \
    CREATE TABLE cache (`key` VARCHAR(255) NOT NULL PRIMARY KEY, value MEDIUMTEXT NOT NULL, expiration INT NOT NULL); \
    CREATE TABLE users (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, name VARCHAR(255) NOT NULL); \
    INSERT INTO migrations (migration, batch) VALUES ('0001_01_01_000002_create_jobs_table', 1); \
    INSERT INTO jobs (queue, payload, attempts, available_at, created_at) VALUES ('default', '{}', 0, 1, 1); \
    INSERT INTO job_batches VALUES ('b', 'import', 1, 1, 0, '[]', NULL, NULL, 1, NULL); \
    INSERT INTO failed_jobs (uuid, connection, queue, payload, exception, failed_at) \
    VALUES ('u', 'database', 'default', '{}', 'no', '2026-01-01'); \
    INSERT INTO cache VALUES ('laravel_cache_x', 's:1:\"x\";', 1); \
    INSERT INTO users (name) VALUES ('Ada')";
const OF_LARAVEL: [&str; 6] = ["cache", "failed_jobs", "job_batches", "jobs", "migrations", "users"];

/// The names of tables that are no column, alias or word of a statement. A statement that has one of them means the
/// table.
const NO_COLUMNS: [&str; 26] = [
    "_sqlx_migrations",
    "attempt_logs",
    "batch_jobs",
    "blocked_jobs",
    "clock_steps",
    "dead_letters",
    "deferred_attempts",
    "departures",
    "distant_ids",
    "idempotency_keys",
    "index_changes",
    "job_expiries",
    "job_limit_keys",
    "job_parents",
    "job_tags",
    "limit_keys",
    "limit_slots",
    "order_places",
    "outbox_leader",
    "outbox_rejected",
    "parent_ends",
    "queue_permits",
    "runners",
    "tallies",
    "unique_keys",
    "verifications",
];
/// Names that may be a column or an alias. Behind these words they are tables.
const ALSO_COLUMNS: [&str; 14] = [
    "alerts",
    "api_keys",
    "attempts",
    "audit",
    "batches",
    "checkpoints",
    "jobs",
    "limits",
    "operations",
    "owed",
    "queues",
    "samples",
    "schedules",
    "ticks",
];
const BEFORE_TABLES: [&str; 6] = ["from", "join", "straight_join", "into", "update", "table"];

fn prefix(text: &str) -> TablePrefix {
    text.parse().unwrap()
}

fn servers() -> Services {
    Services::start(&server_options()).unwrap()
}

/// Make a database on these servers. Return its URL.
async fn shared(own: &Services, sql: &'static str) -> String {
    let url = own.mysql_url("shared");
    Store::create_database(&url).await.unwrap();
    if !sql.is_empty() {
        open(&url).await.execute(sqlx::raw_sql(sql)).await.unwrap();
    }
    url
}

async fn open(url: &str) -> MySqlConnection {
    MySqlConnection::connect(url).await.unwrap()
}

async fn tables(url: &str) -> Vec<String> {
    let sql = "SELECT CAST(table_name AS CHAR) FROM information_schema.tables WHERE table_schema = DATABASE()";
    let mut found: Vec<String> = sqlx::query_scalar(sql).fetch_all(&mut open(url).await).await.unwrap();
    found.sort_unstable();
    found
}

/// Return the shape and the checksum of each table of Laravel.
async fn laravel(url: &str) -> Vec<String> {
    let mut conn = open(url).await;
    let mut seen = Vec::new();
    for table in OF_LARAVEL {
        let shape: (String, String) =
            sqlx::query_as(AssertSqlSafe(format!("SHOW CREATE TABLE {table}"))).fetch_one(&mut conn).await.unwrap();
        let row = sqlx::raw_sql(AssertSqlSafe(format!("CHECKSUM TABLE {table} EXTENDED"))).fetch_one(&mut conn).await;
        let sum: i64 = row.unwrap().try_get(1).unwrap();
        seen.push(format!("{} {sum}", shape.1));
    }
    seen
}

async fn store(url: &str, prefix: TablePrefix) -> Store {
    let settings = StoreSettings { url: url.to_owned(), connections: 5, flushers: 1, table_prefix: prefix };
    Store::connect(&settings, Duration::from_secs(10)).await.unwrap()
}

async fn migrate(url: &str, prefix: TablePrefix, beside_another: bool) -> Result<(), StoreError> {
    let store = store(url, prefix).await;
    let migrated = store.migrate_with(&MigrateSettings { beside_another, ..MigrateSettings::default() }).await;
    store.close().await;
    migrated
}

/// Return the statement without texts in quotes, in words.
fn words(statement: &str) -> Vec<String> {
    let mut bare = String::new();
    for (n, piece) in statement.replace("\\'", "").split('\'').enumerate() {
        bare.push_str(if n % 2 == 0 { piece } else { " 'x' " });
    }
    let parts = bare.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'));
    parts.filter(|part| !part.is_empty()).map(str::to_ascii_lowercase).collect()
}

/// Return the table of tickr that this statement names without a prefix, if there is one.
fn unprefixed(statement: &str) -> Option<String> {
    let words = words(statement);
    let table = |(at, word): (usize, &String)| {
        let (qualifier, _) = word.split_once('.').unwrap_or((word, ""));
        let before = at.checked_sub(1).and_then(|before| words.get(before)).map_or("", String::as_str);
        let column = at >= 2 && before == "update" && words[at - 2] == "key";
        let stands_there = BEFORE_TABLES.contains(&before) && !column;
        let named = NO_COLUMNS.contains(&qualifier) || (ALSO_COLUMNS.contains(&word.as_str()) && stands_there);
        named.then(|| word.clone())
    };
    words.iter().enumerate().find_map(table)
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl Kind for Nothing {
    const NAME: &'static str = "noop";
}

/// Read a page of each list and screen.
async fn look_at_everything(tickr: &TestApp, job: JobId) {
    for path in [
        "/v1/jobs",
        "/v1/jobs?q=state:failed%20kind:fail",
        "/v1/jobs?q=tag:red",
        "/v1/jobs?q=payload.times:1",
        "/v1/jobs/count?q=kind:noop",
        "/v1/jobs/count",
        "/v1/jobs/survey",
        "/v1/jobs?sort=oldest&q=-kind:fail",
        "/v1/stats",
        "/v1/history?span=5m",
        "/v1/history/queues?span=5m",
        "/v1/history/marks",
        "/v1/history/marks?queue=default",
        "/v1/history/marks?from=2026-11-01&to=2026-11-02",
        "/v1/history/ticks?schedules=often",
        "/v1/forecast",
        "/v1/kinds",
        "/v1/queues",
        "/v1/queues/default",
        "/v1/runners",
        "/v1/schedules",
        "/v1/limits",
        "/v1/limits/narrow/keys",
        "/v1/order-keys",
        "/v1/batches",
        "/v1/dead-letters",
        "/v1/dead-letters/groups",
        "/v1/dead-letters/causes?from=2026-11-01&to=2026-11-02",
        "/v1/operations",
        "/v1/outbox",
        "/v1/outbox/rejected",
        "/v1/api-keys",
        "/v1/audit",
        "/v1/audit?from=2026-11-01&to=2026-11-02",
        "/v1/index",
        "/v1/verify",
        "/readyz",
    ] {
        let answer = tickr.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {:#}", answer.body);
    }
    for path in ["", "/explain", "/children", "/result", "/attempts/1/log"] {
        let answer = tickr.get(&format!("/v1/jobs/{job}{path}")).await;
        assert!(matches!(answer.status, 200 | 202 | 204 | 404), "{path}: {:#}", answer.body);
    }
}

/// Use each feature that has tables of its own, and wait until its jobs have run.
async fn use_everything(tickr: &TestApp) {
    let id = |value: &Value| value["id"].as_str().unwrap().parse::<JobId>().unwrap();
    // Schedules, with their ticks.
    let schedule = json!({"every_ms": 1_000, "kind": "noop"});
    assert_eq!(tickr.put("/v1/schedules/often", schedule).await.status, 201);
    assert_eq!(tickr.post("/v1/schedules/often/trigger", json!({})).await.status, 201);
    // Order keys, unique keys, tags, limits by key and limits of queues.
    set_and_wait(tickr, "narrow", json!({"concurrency": 1})).await;
    assert_eq!(tickr.patch("/v1/queues/slow", json!({"concurrency": 2, "priority": 3})).await.status, 200);
    let key = |name: &str, n: u64| json!({"kind": "sleep", "payload": {"ms": n}, name: "k", "tags": ["red"]});
    tickr.enqueue_many((0..5).flat_map(|n| [key("order_key", n), key("limit_key", n)])).await;
    let unique = json!({"kind": "noop", "unique_key": "u", "delay_ms": 600_000});
    let held = tickr.enqueue(unique.clone()).await;
    assert_eq!(tickr.post("/v1/jobs", unique).await.status, 200);
    assert_eq!(tickr.patch(&format!("/v1/jobs/{held}"), json!({"priority": 1})).await.status, 200);
    assert_eq!(tickr.post(&format!("/v1/jobs/{held}/cancel"), json!({})).await.status, 200);
    // Idempotency keys and expiry.
    for _ in 0..2 {
        let request = tickr.request(Method::POST, "/v1/jobs").header("idempotency-key", "i");
        let answer = crate::support::answer(request.json(&json!({"kind": "noop", "expires_in_ms": 600_000}))).await;
        assert_eq!(answer.status, 201, "{:#}", answer.body);
    }
    // Batches with callbacks, one of them cancelled, and dependencies.
    let callback = json!({"kind": "noop", "payload": {}});
    let jobs = json!([{"kind": "noop"}, {"kind": "fail", "payload": {"times": 9, "permanent": true}}]);
    let whole = json!({"jobs": jobs, "close": true, "on_complete": callback, "on_failure": callback});
    let batch = tickr.post("/v1/batches", whole).await;
    assert_eq!(batch.status, 201, "{:#}", batch.body);
    let waits = json!({"jobs": [{"kind": "noop", "delay_ms": 600_000}]});
    let cancelled = tickr.post("/v1/batches", waits).await.body["id"].as_str().unwrap().to_owned();
    assert!(tickr.post(&format!("/v1/batches/{cancelled}/cancel"), json!({})).await.status < 300);
    let parent = tickr.enqueue_kind("sleep", json!({"ms": 100})).await;
    let child = tickr.enqueue(json!({"kind": "noop", "after": [parent.to_string()]})).await;
    // Dead letters, with all that can be done to them.
    let fails = json!({"kind": "fail", "payload": {"times": 9, "permanent": true}});
    let [retried, replayed, discarded] = [0; 3].map(|_| tickr.enqueue(fails.clone()));
    let (retried, replayed, discarded) = (retried.await, replayed.await, discarded.await);
    for job in [retried, replayed, discarded] {
        tickr.until(job, State::Failed).await;
    }
    assert_eq!(tickr.post(&format!("/v1/jobs/{retried}/retry"), json!({})).await.status, 200);
    assert_eq!(tickr.post(&format!("/v1/jobs/{replayed}/replay"), json!({})).await.status, 201);
    assert_eq!(tickr.post(&format!("/v1/jobs/{discarded}/discard"), json!({"reason": "a test"})).await.status, 200);
    // The outbox: an INSERT as the document has it, the client in a transaction, and a row that is rejected.
    let mut app = open(tickr.config.mysql_url().unwrap().expose()).await;
    let row = Uuid::now_v7();
    let insert = "INSERT INTO tickr_outbox (id, kind, payload) VALUES (?, 'noop', '{}')";
    sqlx::query(insert).bind(row).execute(&mut app).await.unwrap();
    let insert = "INSERT INTO tickr_outbox (id, kind, payload) VALUES (?, 'unknown kind', '{}')";
    sqlx::query(insert).bind(Uuid::now_v7()).execute(&mut app).await.unwrap();
    let remote = tickr::Client::http(&tickr.url(""), None).unwrap();
    let mut sent = vec![JobId::from_uuid(row)];
    for client in [tickr.app.client(), remote.with_table_prefix(tickr.config.table_prefix.as_str()).unwrap()] {
        let mut transaction = app.begin().await.unwrap();
        sent.push(client.enqueue_in(&mut transaction, &Nothing {}).await.unwrap());
        transaction.commit().await.unwrap();
    }
    tickr.app.client().nudge().await.unwrap();
    for job in sent {
        let path = format!("/v1/jobs/{job}");
        eventually("the row is a job", || async { (tickr.get(&path).await.status == 200).then_some(()) }).await;
        tickr.until(job, State::Completed).await;
    }
    let rejected = tickr.get("/v1/outbox/rejected").await.body["data"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(tickr.delete(&format!("/v1/outbox/rejected/{rejected}")).await.status, 204);
    // Bulk operations.
    let filter = json!({"kind": "fail"});
    for body in [json!({"action": "replay", "filter": filter}), json!({"action": "delete", "filter": {"tag": "red"}})] {
        let operation = tickr.post("/v1/operations", body).await;
        assert_eq!(operation.status, 202, "{:#}", operation.body);
        let path = format!("/v1/operations/{}", operation.body["id"].as_str().unwrap());
        eventually("the operation is over", || async {
            (tickr.get(&path).await.body["state"] == "done").then_some(())
        })
        .await;
    }
    // A pause, a drain, an API key.
    for path in ["/v1/queues/default/pause", "/v1/queues/default/resume"] {
        assert_eq!(tickr.post(path, json!({})).await.status, 200, "{path}");
    }
    tickr.until(child, State::Completed).await;
    let ticks = "/v1/schedules/often/ticks";
    eventually("it ticks", || async { tickr.get(ticks).await.body["data"].get(1).cloned() }).await;
    assert_eq!(tickr.delete("/v1/schedules/often").await.status, 204);
    let path = format!("/v1/batches/{}", id(&batch.body));
    eventually("the batch ends", || async { (tickr.get(&path).await.body["state"] == "failed").then_some(()) }).await;
    tickr.until_idle().await;
    look_at_everything(tickr, child).await;
}

/// Run the janitor until a completed job is gone.
async fn purge(tickr: &TestApp, job: JobId) {
    let config = Config { retention_completed: Duration::ZERO, ..tickr.config.clone() };
    let mut settings = engine_settings(&config, runner_of_this_process(), Tracer::off(), None, None);
    settings.janitor_every = Duration::from_millis(50);
    let (app, registry) = (&tickr.app, Arc::new(Registry::new()));
    let operators = app.operator_settings().clone();
    let engine = Engine::start(app.broker().clone(), app.index().clone(), operators, registry, settings).unwrap();
    let store = tickr.app.broker().store();
    eventually("the job is removed", || async { store.job(job).await.unwrap().is_none().then_some(()) }).await;
    engine.stop(Duration::from_secs(5), CancellationToken::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tickr_with_a_prefix_shares_the_database_of_laravel_and_touches_only_its_tables() {
    let own = servers();
    let url = shared(&own, LARAVEL).await;
    let before = laravel(&url).await;
    let mut log = open(&url).await;
    for setting in ["SET GLOBAL log_output = 'TABLE'", "SET GLOBAL general_log = 1"] {
        log.execute(setting).await.unwrap();
    }
    let configure = |config: &mut Config| {
        (config.table_prefix, config.lease) = (prefix("tickr_"), SHORT_LEASE);
        config.alerts = Some(Alerts {
            url: "http://127.0.0.1:1/".to_owned(),
            queue: "alerts".to_owned(),
            cooldown: Duration::from_secs(3_600),
            all: Threshold { dead_letters: Some(100_000), dead_letter_age: None },
            kinds: BTreeMap::new(),
        });
    };
    let tickr = TestApp::start_in(own, "shared", configure).await;
    use_everything(&tickr).await;
    let done = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(done, State::Completed).await;
    // Another process: it executes a job that killed its runners, in a process of its own.
    let runner = Runner::start(&tickr, &[("TICKR_QUEUES", "deadly")]);
    let deadly = json!({"kind": "abort", "queue": "deadly", "max_attempts": 3, "payload": {}});
    let deadly = tickr.enqueue(deadly).await;
    eventually("the first attempt is open", || async { (tickr.job(deadly).await["attempt"] == 1).then_some(()) }).await;
    let mut heirs = vec![runner];
    for _ in 0..2 {
        heirs.push(Runner::start(&tickr, &[("TICKR_QUEUES", "deadly")]));
        tickr.until_attempts(deadly, heirs.len() - 1).await;
    }
    tickr.until(deadly, State::Failed).await;
    drop(heirs);
    // The commands that reach the tables without the API.
    let config = &tickr.config;
    let run = async |args: &[&str]| {
        let mut command = command(&program(), tickr.dir.path(), args);
        let (mysql, redis) = (config.mysql_url().unwrap().expose(), config.redis_url().unwrap().expose());
        command.env("TICKR_MYSQL_URL", mysql).env("TICKR_REDIS_URL", redis).env("TICKR_TEST_KINDS", "1");
        command.env("TICKR_REDIS_PREFIX", &config.redis_prefix);
        let (code, out, err) = outcome(command).await;
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        out
    };
    run(&["migrate", "--table-prefix", "tickr_"]).await;
    run(&["verify", "--table-prefix", "tickr_"]).await;
    run(&["check", "--pending", "--table-prefix", "tickr_"]).await;
    let made = ["api-keys", "create", "first", "--scope", "admin", "--in-store", "--table-prefix", "tickr_"];
    let key = run(&made).await.trim().to_owned();
    eventually("the key is known", || async {
        let answer = call(&tickr.url(""), Method::GET, "/v1/stats", "", None).await;
        (answer.status == 401).then_some(())
    })
    .await;
    assert_eq!(call(&tickr.url(""), Method::GET, "/v1/stats", &key, None).await.status, 200);
    tickr.assert_sound().await;
    purge(&tickr, done).await;
    log.execute("SET GLOBAL general_log = 0").await.unwrap();

    let all = tables(&url).await;
    let foreign: Vec<&str> = all.iter().map(String::as_str).filter(|name| !name.starts_with("tickr_")).collect();
    assert_eq!(foreign, OF_LARAVEL);
    assert_eq!(all.len() - foreign.len(), 52, "{all:?}");
    assert_eq!(laravel(&url).await, before);
    // MySQL has the constraints of a database in one list.
    let named = "SELECT CAST(constraint_name AS CHAR) FROM information_schema.table_constraints \
                 WHERE table_schema = DATABASE() AND constraint_type = 'CHECK'";
    let named: Vec<String> = sqlx::query_scalar(named).fetch_all(&mut log).await.unwrap();
    assert!(named.len() > 20 && named.iter().all(|name| name.starts_with("tickr_")), "{named:?}");

    let said =
        log.fetch_all("SELECT argument FROM mysql.general_log WHERE command_type IN ('Execute', 'Prepare', 'Query')");
    let said: BTreeSet<String> = said.await.unwrap().into_iter().map(|row| text(&row)).collect();
    let of_tickr =
        said.iter().filter(|text| !text.starts_with("SHOW CREATE TABLE") && !text.starts_with("CHECKSUM TABLE"));
    let wrong: Vec<(&String, String)> = of_tickr.filter_map(|said| Some((said, unprefixed(said)?))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Each table was in use, or the test would prove nothing about it. One is used by locks on a node of
    // Galera, and by transactions that begin with another word.
    let verbs = ["SELECT", "INSERT", "UPDATE", "DELETE"];
    let used: BTreeSet<String> = said
        .iter()
        .filter(|said| verbs.iter().any(|verb| said.starts_with(verb)))
        .flat_map(|said| words(said))
        .collect();
    let may_be_unused = |name: &String| !name.starts_with("tickr_") || name == "tickr_cluster_locks";
    let unused: Vec<&String> = all.iter().filter(|name| !may_be_unused(name) && !used.contains(*name)).collect();
    assert!(unused.is_empty(), "{unused:?}");
    tickr.stop_broken("its janitor has removed callbacks of batches before their time").await;
}

fn text(row: &sqlx::mysql::MySqlRow) -> String {
    String::from_utf8_lossy(&row.try_get_unchecked::<Vec<u8>, _>(0).unwrap()).into_owned()
}

#[test]
fn the_check_of_the_log_finds_statements_without_a_prefix() {
    for wrong in [
        "SELECT 1 FROM jobs",
        "update owed set x = 'a'",
        "SELECT 1 FROM tickr_owed o STRAIGHT_JOIN jobs j",
        "DELETE FROM tickr_x WHERE report_parts.id = 1 AND unique_keys.a = 1",
    ] {
        assert!(unprefixed(wrong).is_some(), "{wrong}");
    }
    for right in [
        "SELECT COUNT(*) AS jobs FROM tickr_jobs",
        "INSERT INTO tickr_departures (jobs) VALUES (1) ON DUPLICATE KEY UPDATE jobs = jobs + 1",
        "SELECT 'FROM jobs' FROM tickr_runners r WHERE r.queues = 1",
    ] {
        assert_eq!(unprefixed(right), None, "{right}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tickrs_with_two_prefixes_in_one_database_and_one_redis_do_not_see_one_another() {
    let own = servers();
    let url = shared(&own, "").await;
    let redis = own.redis_url();
    let config = |name: &str| {
        let flags = tickr::config::Flags::default().with("mysql_url", url.clone()).with("redis_url", redis.clone());
        let flags = flags.with("table_prefix", name).with("http_addr", "127.0.0.1:0").with("test_kinds", "true");
        Config::load(&flags, std::iter::empty(), None).unwrap().config
    };
    let (first, second) = (config("a_"), config("b_"));
    assert_eq!((first.redis_prefix.as_str(), second.redis_prefix.as_str()), ("tickr.a_", "tickr.b_"));
    let one = App::start(&first, Registry::new()).await.unwrap();
    migrate(&url, prefix("b_"), true).await.unwrap();
    let two = App::start(&second, Registry::new()).await.unwrap();

    // The same unique key, order key and schedule in both. The second request may come after the end of the first job.
    let mut accepted = Vec::new();
    for app in [&one, &two] {
        let base = format!("http://{}", app.addr());
        let job = json!({"kind": "sleep", "payload": {"ms": 50}, "unique_key": "u", "order_key": "o"});
        let answer = call(&base, Method::POST, "/v1/jobs", "", Some(job.clone())).await;
        assert_eq!(answer.status, 201, "{:#}", answer.body);
        let answer = call(&base, Method::POST, "/v1/jobs", "", Some(job)).await;
        assert!(matches!(answer.status, 200 | 201), "{:#}", answer.body);
        accepted.push(if answer.status == 201 { 202 } else { 201 });
        let schedule = json!({"cron": "0 0 1 1 *", "kind": "noop"});
        let answer = call(&base, Method::PUT, "/v1/schedules/s", "", Some(schedule)).await;
        assert_eq!(answer.status, 201, "{:#}", answer.body);
        let many: Vec<Value> = (0..200).map(|_| json!({"kind": "noop"})).collect();
        let answer = call(&base, Method::POST, "/v1/jobs/batch", "", Some(json!({"jobs": many}))).await;
        assert_eq!(answer.status, 201, "{:#}", answer.body);
    }
    let mut conn = open(&url).await;
    for ((app, name), accepted) in [(&one, "a_"), (&two, "b_")].into_iter().zip(accepted) {
        eventually("all jobs have ended", || async {
            app.broker().store().stats().await.unwrap().owed.is_empty().then_some(())
        })
        .await;
        let base = format!("http://{}", app.addr());
        let runners = call(&base, Method::GET, "/v1/runners", "", None).await.body;
        assert_eq!(runners["data"].as_array().unwrap().len(), 1, "{runners:#}");
        assert_eq!(runners["data"][0]["id"], app.runner().to_string());
        let counted =
            format!("SELECT CAST(COUNT(*) AS SIGNED) FROM {name}attempts WHERE verdict = 'succeeded' AND runner = ?");
        let counted = sqlx::query_scalar::<_, i64>(AssertSqlSafe(counted)).bind(app.runner().as_str());
        assert_eq!(counted.fetch_one(&mut conn).await.unwrap(), accepted, "{name}");
    }
    // A client in Rust finds the tables and the keys by the prefix alone.
    let client = tickr::Client::connect(&url, &redis).table_prefix("b_").await.unwrap();
    let job = client.enqueue(&Nothing {}).await.unwrap();
    eventually("the job runs", || async {
        let status = client.status(job.id).await.unwrap()?;
        (status.state == State::Completed).then_some(())
    })
    .await;
    assert_eq!(
        call(&format!("http://{}", one.addr()), Method::GET, &format!("/v1/jobs/{}", job.id), "", None).await.status,
        404
    );
    client.close().await;
    assert!(tickr::Client::connect(&url, &redis).table_prefix("B-").await.is_err());
    one.stop(CancellationToken::new()).await;
    two.stop(CancellationToken::new()).await;
    let all = tables(&url).await;
    assert_eq!(all.len(), 104, "{all:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn migrations_of_two_prefixes_do_not_wait_for_each_other() {
    let own = servers();
    let url = shared(&own, "").await;
    migrate(&url, prefix("a_"), false).await.unwrap();
    // A process that migrates the tables of the first prefix and never ends. MySQL may still be closing the connection of
    // the migration above, which has the lock.
    let mut conn = open(&url).await;
    let lock = "SELECT GET_LOCK(CONCAT('tickr migrate ', LEFT(SHA2(CONCAT('shared', CHAR(0), 'a_'), 256), 32)), 30)";
    let held: i64 = sqlx::query_scalar(lock).fetch_one(&mut conn).await.unwrap();
    assert_eq!(held, 1);
    conn.execute("DELETE FROM a_migrations WHERE version > 20").await.unwrap();
    let waits = tokio::time::timeout(Duration::from_secs(3), migrate(&url, prefix("a_"), false)).await;
    assert!(waits.is_err(), "the lock of the test is not that of the migration: {waits:?}");
    tokio::time::timeout(Duration::from_secs(60), migrate(&url, prefix("b_"), true)).await.unwrap().unwrap();
    // MySQL may have closed the socket before the driver does. The lock ends with the connection.
    let _ = conn.close().await;
    migrate(&url, prefix("a_"), false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_prefix_is_refused_and_makes_no_second_installation() {
    let own = servers();
    let url = shared(&own, LARAVEL).await;
    // Without a prefix, the tables of the other program are in the way. The operator is told of the setting.
    let refused = migrate(&url, TablePrefix::default(), false).await.unwrap_err().to_string();
    assert!(refused.contains("a table jobs that is not tickr's") && refused.contains("table_prefix"), "{refused}");
    assert_eq!(tables(&url).await, OF_LARAVEL);
    migrate(&url, prefix("tickr_"), false).await.unwrap();
    let before = tables(&url).await;

    // Another prefix, a forgotten one, and the start of a runner.
    let text = "has the tables of a tickr with table_prefix = \"tickr_\", and none of one with";
    let second = "both would have the table tickr_outbox";
    for (name, ours, then) in
        [("ticker_", "table_prefix = \"ticker_\"", "--beside-another"), ("", "no table_prefix", second)]
    {
        let refused = migrate(&url, name.parse().unwrap_or_default(), false).await.unwrap_err().to_string();
        assert!(refused.contains(&format!("{text} {ours}")) && refused.contains(then), "{refused}");
    }
    let mut config = Config::for_tests(&url, &own.redis_url());
    config.table_prefix = prefix("ticker_");
    let Err(StartError::StoreRefused(refused, _)) = App::start(&config, Registry::new()).await else {
        panic!("it started on no tables")
    };
    assert!(refused.to_string().contains(text), "{refused}");
    assert_eq!(tables(&url).await, before);

    // Two tickrs that would share a table are refused whatever the operator says.
    migrate(&url, prefix("shop_"), true).await.unwrap();
    let refused = migrate(&url, prefix("shop_batch_"), true).await.unwrap_err().to_string();
    assert!(refused.contains("both would have the table shop_batch_jobs"), "{refused}");
    let refused = migrate(&url, TablePrefix::default(), true).await.unwrap_err().to_string();
    assert!(refused.contains(second), "{refused}");

    // Once the tables are there, nothing more has to be said.
    for name in ["tickr_", "shop_"] {
        migrate(&url, prefix(name), false).await.unwrap();
    }
    // A ledger of the same driver, of another program, is not taken for one of tickr.
    let other = shared_by_a_program_with_the_driver(&own).await;
    migrate(&other, prefix("tickr_"), false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_changes_the_prefix_by_renaming_the_tables() {
    let own = servers();
    let url = shared(&own, LARAVEL).await;
    let (old, new) = (prefix("a_"), prefix("b_"));
    let mut config = Config::for_tests(&url, &own.redis_url());
    config.table_prefix = old;
    let app = App::start(&config, Registry::new()).await.unwrap();
    let base = format!("http://{}", app.addr());
    let job = json!({"kind": "noop", "delay_ms": 3_000});
    let job = call(&base, Method::POST, "/v1/jobs", "", Some(job)).await.body["id"].as_str().unwrap().to_owned();
    app.stop(CancellationToken::new()).await;
    let of_tickr = tables(&url).await.into_iter().filter_map(|name| name.strip_prefix("a_").map(str::to_owned));
    let renames: Vec<String> = of_tickr.map(|name| format!("a_{name} TO b_{name}")).collect();
    open(&url)
        .await
        .execute(sqlx::raw_sql(AssertSqlSafe(format!("RENAME TABLE {}", renames.join(", ")))))
        .await
        .unwrap();
    config.table_prefix = new;
    let app = App::start(&config, Registry::new()).await.unwrap();
    let path = format!("/v1/jobs/{job}");
    eventually("the job runs", || async {
        let job = call(&format!("http://{}", app.addr()), Method::GET, &path, "", None).await.body;
        (job["state"] == "completed").then_some(())
    })
    .await;
    app.stop(CancellationToken::new()).await;
}

async fn shared_by_a_program_with_the_driver(own: &Services) -> String {
    let url = own.mysql_url("other");
    Store::create_database(&url).await.unwrap();
    let ledger = "CREATE TABLE _sqlx_migrations (version BIGINT PRIMARY KEY, description TEXT NOT NULL, \
                  installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, success BOOLEAN NOT NULL, \
                  checksum BLOB NOT NULL, execution_time BIGINT NOT NULL); \
                  INSERT INTO _sqlx_migrations VALUES (1, 'users', DEFAULT, TRUE, REPEAT('x', 48), 1)";
    open(&url).await.execute(sqlx::raw_sql(ledger)).await.unwrap();
    url
}

#[tokio::test]
async fn a_bad_prefix_is_refused_together_with_every_other_bad_setting() {
    let dir = tempfile::tempdir().unwrap();
    for bad in ["Tickr_", "_tickr", "tickr-", "a;DROP TABLE jobs", "a_prefix_of_21_letters"] {
        let mut command =
            command(&program(), dir.path(), &["serve", "--mysql-url", "mysql://h/d", "--redis-url", "redis://h"]);
        command.env("TICKR_TABLE_PREFIX", bad).env("TICKR_WORKERS", "many");
        let (code, _, said) = outcome(command).await;
        assert_ne!(code, 0);
        for named in ["table_prefix", "TICKR_TABLE_PREFIX", "1 to 20 of a-z, 0-9 and _", "workers"] {
            assert!(said.contains(named), "{bad}: {said}");
        }
    }
    std::fs::write(dir.path().join("tickr.toml"), "table_prefix = \"shop_\"\n").unwrap();
    let (code, out, said) = outcome(command(&program(), dir.path(), &["config"])).await;
    assert_eq!(code, 0, "{said}");
    assert!(out.contains("shop_") && out.contains("tickr.shop_"), "{out}");
}
