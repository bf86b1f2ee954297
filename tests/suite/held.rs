//! The drill for a restored backup: a process that is held shows what a backup believes unfinished and starts nothing,
//! and the normal start afterwards runs all of it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::{AssertSqlSafe, Executor, MySqlConnection};
use tickr::config::{Config, ServerUrl};
use tickr::handlers::{Context, Kind, Output, Registry};
use tickr::job::{JobId, State};
use tokio_util::sync::CancellationToken;

use crate::support::program::{self, command, on_servers, outcome};
use crate::support::{TestApp, call, connect, database, drop_database, eventually_late, http, unique_name};

/// Longest wait for leases to be over, or for the reaper of a runner that has just started.
const LATE: Duration = Duration::from_secs(90);

/// A job that notes where it ran.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Step {
    n: u32,
    /// True if it runs until the test opens the gate.
    #[serde(default)]
    wait: bool,
}

impl Kind for Step {
    const NAME: &'static str = "step";
}

/// The record of the world outside the database, which no restore takes back.
#[derive(Default)]
struct Record {
    /// The place and the number of each start.
    starts: Mutex<Vec<(&'static str, u32)>>,
    gate: CancellationToken,
}

impl Record {
    fn registry(self: &Arc<Self>, place: &'static str) -> Registry {
        let (mut registry, record) = (Registry::new(), Arc::clone(self));
        registry.register(move |step: Step, _: Context| {
            let record = Arc::clone(&record);
            async move {
                record.starts.lock().unwrap().push((place, step.n));
                if step.wait {
                    record.gate.cancelled().await;
                }
                Ok(Output::default())
            }
        });
        registry
    }

    /// Return the jobs that ran in one place, each as often as it did, sorted.
    fn at(&self, place: &str) -> Vec<u32> {
        let mut found: Vec<u32> =
            self.starts.lock().unwrap().iter().filter(|(at, _)| *at == place).map(|(_, n)| *n).collect();
        found.sort_unstable();
        found
    }
}

/// Copy all tables of a tickr to a new database, all at one moment, as a dump of a snapshot does. Return the name and
/// the URL of the copy.
async fn back_up(tickr: &TestApp) -> (String, String) {
    let (copy, url) = database().await;
    let from = tickr.database();
    let mut conn = <MySqlConnection as sqlx::Connection>::connect(&url).await.unwrap();
    let tables = "SELECT CAST(table_name AS CHAR) FROM information_schema.tables WHERE table_schema = ?";
    let tables: Vec<String> = sqlx::query_scalar(tables).bind(from).fetch_all(&mut conn).await.unwrap();
    assert!(tables.len() > 20, "{tables:?}");
    // A generated column takes no value.
    let columns = "SELECT CAST(column_name AS CHAR) FROM information_schema.columns WHERE table_schema = ? \
                   AND table_name = ? AND COALESCE(generation_expression, '') = '' ORDER BY ordinal_position";
    let (mut create, mut locks, mut fill) = (String::new(), Vec::new(), String::new());
    for table in tables {
        let columns: Vec<String> =
            sqlx::query_scalar(columns).bind(from).bind(&table).fetch_all(&mut conn).await.unwrap();
        let list = columns.iter().map(|column| format!("`{column}`")).collect::<Vec<_>>().join(", ");
        create += &format!("CREATE TABLE {copy}.{table} LIKE {from}.{table}; ");
        locks.push(format!("{from}.{table} READ, {copy}.{table} WRITE"));
        fill += &format!("INSERT INTO {copy}.{table} ({list}) SELECT {list} FROM {from}.{table}; ");
    }
    // While the tables are locked no transaction is half in the copy.
    let sql = format!("{create} LOCK TABLES {}; {fill} UNLOCK TABLES", locks.join(", "));
    conn.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
    (copy, url)
}

/// The restored database, in which tests count rows.
struct Restored {
    name: String,
    config: Config,
    dir: tempfile::TempDir,
}

impl Restored {
    fn url(&self) -> &str {
        self.config.mysql_url().unwrap().expose()
    }

    async fn count(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut connect(self.url()).await).await.unwrap()
    }

    async fn until_count(&self, what: &str, sql: &str, wanted: i64) {
        eventually_late(LATE, what, || async { (self.count(sql).await == wanted).then_some(()) }).await;
    }

    /// Run `tickr verify`. Return its exit code and all that it printed.
    async fn verify(&self) -> (i32, String) {
        let mut verify = command(&program::tickr(), self.dir.path(), &["verify"]);
        on_servers(&mut verify, self.url(), self.config.redis_url().unwrap().expose(), &self.config.redis_prefix);
        let (code, said, wrong) = outcome(verify).await;
        (code, said + &wrong)
    }
}

/// Rows that a loop of a runner changes: open attempts, ended ones, ticks, rows of the outbox, all that is owed, the
/// history of the charts, and bulk operations.
const STATE: [&str; 8] = [
    "SELECT COUNT(*) FROM owed WHERE state = 'executing'",
    "SELECT COUNT(*) FROM owed",
    "SELECT COUNT(*) FROM attempts",
    "SELECT COUNT(*) FROM ticks",
    "SELECT COUNT(*) FROM tickr_outbox",
    "SELECT COUNT(*) FROM schedules WHERE next_at < UTC_TIMESTAMP(6)",
    "SELECT COUNT(*) FROM samples",
    "SELECT COUNT(*) FROM operations",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_backup_starts_nothing_while_held_and_all_that_it_owes_after_it() {
    let record = Arc::<Record>::default();
    // One worker: the job at the gate keeps the others waiting.
    let tickr = TestApp::start_with(|config| config.workers = 1, record.registry("before")).await;
    let step = |n: u32, wait: bool| json!({"kind": "step", "payload": {"n": n, "wait": wait}});
    for n in 0..3 {
        let id = tickr.enqueue(step(n, false)).await;
        tickr.until(id, State::Completed).await;
    }
    let ticking = json!({"cron": "* * * * * *", "kind": "noop", "queue": "elsewhere", "misfire": "skip"});
    let put = tickr.put("/v1/schedules/ticking", ticking).await;
    assert_eq!(put.status, 201, "{:#}", put.body);
    let open = tickr.enqueue(step(10, true)).await;
    tickr.until(open, State::Executing).await;
    let mut unfinished = BTreeSet::from([open]);
    for n in [11, 12] {
        unfinished.insert(tickr.enqueue(step(n, false)).await);
    }
    let (name, url) = back_up(&tickr).await;
    let mut config = tickr.config.clone();
    config.mysql_url = Some(ServerUrl::mysql(&url).unwrap());
    config.redis_prefix = unique_name();
    let restored = Restored { name, config, dir: tempfile::tempdir().unwrap() };

    // What happens after the moment of the backup is in no backup.
    record.gate.cancel();
    for id in &unfinished {
        tickr.until(*id, State::Completed).await;
    }
    let younger = tickr.enqueue(step(40, false)).await;
    tickr.until(younger, State::Completed).await;

    // A transaction of an application that the backup has.
    let from_outbox = JobId::new();
    sqlx::query("INSERT INTO tickr_outbox (id, kind, payload) VALUES (?, 'step', '{\"n\": 20}')")
        .bind(from_outbox.uuid())
        .execute(&mut connect(restored.url()).await)
        .await
        .unwrap();
    let held = {
        let config = restored.config.clone();
        let hold = move |changed: &mut Config| *changed = Config { held: true, workers: 4, ..config };
        tickr.another_with(hold, record.registry("held")).await
    };
    let base = format!("http://{}", held.addr());
    let get = async |path: &str| call(&base, Method::GET, path, "", None).await;
    let ready = get("/readyz").await;
    assert_eq!(
        (ready.status, &ready.body["held"], &ready.body["takes_jobs"]),
        (200, &json!(true), &json!(false)),
        "{:#}",
        ready.body
    );
    // A backup is older than the leases of its runners: from now on none of them seems alive.
    let alive = "SELECT COUNT(*) FROM runners WHERE stopped_at IS NULL \
                 AND heartbeat_at >= UTC_TIMESTAMP(6) - INTERVAL lease_ms * 1000 MICROSECOND";
    restored.until_count("the runners of the backup are silent", alive, 0).await;
    // A figure that is older than any that the charts keep, as those of an old backup are.
    sqlx::query(
        "INSERT INTO samples \
         (step, at, queue, runner, counted_to, accepted, completed, failed, ended, lateness, run_time) \
         VALUES (5, '2020-01-01 00:00:00', '', 'old', '2020-01-01 00:00:05', 1, 1, 0, 1, '', '')",
    )
    .execute(&mut connect(restored.url()).await)
    .await
    .unwrap();
    let mut before = Vec::new();
    for sql in STATE {
        before.push(restored.count(sql).await);
    }
    assert!(before[0] >= 1 && before[5] == 1, "{before:?}");

    // The lists of the API name what the backup believes unfinished.
    let mut listed = BTreeSet::new();
    for state in ["waiting", "executing"] {
        let page = get(&format!("/v1/jobs?kind=step&state={state}")).await;
        assert_eq!(page.status, 200, "{:#}", page.body);
        let ids = page.body["data"].as_array().unwrap().iter();
        listed.extend(ids.map(|job| job["id"].as_str().unwrap().parse::<JobId>().unwrap()));
    }
    assert_eq!(listed, unfinished);
    assert_eq!(get(&format!("/v1/jobs/{younger}")).await.status, 404);
    assert_eq!(http().get(format!("{base}/")).send().await.unwrap().status(), 200, "the dashboard");
    let worker = json!({"name": "w", "kinds": ["step"], "slots": 1});
    let refused = call(&base, Method::POST, "/v1/workers", "", Some(worker)).await;
    assert_eq!((refused.status, refused.code()), (503, "stopping"), "{:#}", refused.body);
    let cancel = json!({"action": "cancel", "filter": {"kind": "elsewhere"}});
    let refused = call(&base, Method::POST, "/v1/operations", "", Some(cancel)).await;
    assert_eq!((refused.status, refused.code()), (503, "stopping"), "{:#}", refused.body);
    let cancel = json!({"action": "cancel", "filter": {"kind": "step"}, "dry_run": true});
    let dry = call(&base, Method::POST, "/v1/operations", "", Some(cancel)).await;
    assert_eq!((dry.status, &dry.body["would_change"]), (200, &json!(3)), "{:#}", dry.body);
    let (code, said) = restored.verify().await;
    assert_eq!(code, 0, "{said}");

    // By now every loop would have had its turn, the reaper too: it ends an attempt 5 s after its lease at the latest.
    let over =
        "SELECT COUNT(*) FROM owed WHERE state = 'executing' AND lease_until >= UTC_TIMESTAMP(6) - INTERVAL 8 SECOND";
    restored.until_count("the leases of the backup are over", over, 0).await;
    for (sql, before) in STATE.into_iter().zip(before) {
        assert_eq!(restored.count(sql).await, before, "{sql}");
    }
    assert_eq!(record.at("held"), [0; 0]);
    assert!(!tickr::app::index_of(&restored.config).unwrap().is_whole().await.unwrap(), "the held process fed Redis");
    held.stop(CancellationToken::new()).await;

    // The normal start ends the hold.
    let after = {
        let config = restored.config.clone();
        tickr.another_with(move |changed: &mut Config| *changed = config, record.registry("after")).await
    };
    restored.until_count("the rows of the outbox are jobs", "SELECT COUNT(*) FROM tickr_outbox", 0).await;
    restored.until_count("all jobs have ended", "SELECT COUNT(*) FROM owed WHERE kind = 'step'", 0).await;
    restored.until_count("the schedule goes on", STATE[5], 0).await;
    assert_eq!(record.at("before"), [0, 1, 2, 10, 11, 12, 40]);
    // Those of the backup ran before and after it, under the same ids. What had ended did not run again.
    assert_eq!(record.at("after"), [10, 11, 12, 20]);
    let shown = call(&format!("http://{}", after.addr()), Method::GET, &format!("/v1/jobs/{open}"), "", None).await;
    let verdicts: Vec<&str> =
        shown.body["attempts"].as_array().unwrap().iter().filter_map(|attempt| attempt["verdict"].as_str()).collect();
    assert_eq!(verdicts, ["lost", "succeeded"], "{:#}", shown.body);
    let (code, said) = restored.verify().await;
    assert_eq!(code, 0, "{said}");
    after.stop(CancellationToken::new()).await;
    drop_database(restored.url(), &restored.name).await;
    tickr.stop().await;
}
