//! Reports against the real server.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection};
use tickr::config::{ParamType, ReportParam, ReportQuery, Statement};
use tickr::handlers::report::{Report, ReportSettings, Reports};
use tickr::handlers::{Context, ContextParts, Failure, Handler, ProgressSlot, Registry};
use tickr::job::{AttemptToken, JobId, State};
use tickr::store::ReportQueries;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::{DEADLINE, Pulse, Runner, TestApp, call, database, drop_database};

/// Return SQL for 10^power rows with their number as `n`, which works on every server and needs no table.
fn many(power: u32) -> String {
    let digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL \
                  SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    let tables: Vec<_> = (0..power).map(|at| format!("{digits} t{at}")).collect();
    let number: Vec<_> = (0..power).map(|at| format!("t{at}.d * {}", 10_u64.pow(at))).collect();
    format!("(SELECT {} AS n FROM {}) many", number.join(" + "), tables.join(" JOIN "))
}

/// A database, a folder and a source for one test.
struct Bench {
    admin: MySqlConnection,
    database: String,
    dir: tempfile::TempDir,
    source: Arc<ReportQueries>,
}

impl Bench {
    async fn new() -> Self {
        let (database, url) = database().await;
        let admin = MySqlConnection::connect(&url).await.unwrap();
        let source = ReportQueries::connect_lazy(&url, 2, true).unwrap();
        Self { admin, database, dir: tempfile::tempdir().unwrap(), source: Arc::new(source) }
    }

    async fn sql(&mut self, sql: &str) {
        self.admin.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.unwrap();
    }

    fn reports(&self, sql: &str) -> Reports {
        self.reports_with(sql, &[], Duration::from_secs(60))
    }

    /// Make a handler with one query called `q`, whose text parameters are bound in this order.
    fn reports_with(&self, sql: &str, parameters: &[&str], time_limit: Duration) -> Reports {
        let param = |name: &str| ReportParam {
            name: name.into(),
            kind: ParamType::String,
            required: false,
            default: None,
            min: None,
            max: None,
        };
        let mut names = parameters.to_vec();
        names.sort_unstable();
        names.dedup();
        let query = ReportQuery {
            title: "A query".into(),
            description: None,
            sql: sql.into(),
            // The parameters are positional already: these tests check what the server does, not how the configuration
            // is read.
            statement: Statement { sql: sql.into(), params: parameters.iter().map(|&name| name.to_owned()).collect() },
            params: names.into_iter().map(param).collect(),
        };
        let settings = ReportSettings {
            dir: self.dir.path().into(),
            time_limit,
            max_rows: 2_000_000,
            max_bytes: 1 << 30,
            queries: [("q".to_owned(), query)].into(),
        };
        Reports::new(settings, Arc::clone(&self.source) as Arc<_>)
    }

    /// Return the result of a query as JSON.
    async fn json(&self, sql: &str) -> Value {
        let result = run(self.reports(sql), json!({"query": "q", "format": "json"})).await.unwrap();
        serde_json::from_slice(&self.file(&result)).unwrap()
    }

    fn file(&self, result: &Value) -> Vec<u8> {
        fs::read(self.dir.path().join(result["file"].as_str().unwrap())).unwrap()
    }

    /// Return the number of statements that the server runs for the reports of this test at the moment.
    async fn running(&mut self) -> i64 {
        let sql = "SELECT COUNT(*) FROM information_schema.processlist
                   WHERE db = ? AND command = 'Execute' AND id <> CONNECTION_ID()";
        sqlx::query_scalar(sql).bind(&self.database).fetch_one(&mut self.admin).await.unwrap()
    }

    async fn end(mut self) {
        self.source.close().await;
        let drop = format!("DROP DATABASE {}", self.database);
        self.sql(&drop).await;
    }
}

async fn run_in(ctx: Context, reports: Reports, payload: Value) -> Result<Value, Failure> {
    let report: Report = serde_json::from_value(payload).unwrap();
    let (result, _) = reports.run(report, ctx).await?.into_parts();
    Ok(serde_json::from_str(result.unwrap().get()).unwrap())
}

async fn run(reports: Reports, payload: Value) -> Result<Value, Failure> {
    run_in(Context::detached("report"), reports, payload).await
}

/// Return the error of a query that must fail for good.
async fn rejection(reports: Reports) -> String {
    match run(reports, json!({"query": "q"})).await {
        Err(Failure::Reject { error }) => error,
        outcome => panic!("not rejected: {outcome:?}"),
    }
}

fn stoppable() -> (Context, CancellationToken) {
    let stop = CancellationToken::new();
    let ctx = Context::new(ContextParts {
        job: JobId::new(),
        kind: "report".parse().unwrap(),
        queue: "default".parse().unwrap(),
        attempt: 1,
        max_attempts: 5,
        token: AttemptToken::new(),
        deadline: tokio::time::Instant::now() + Duration::from_secs(60),
        started_at: chrono::Utc::now(),
        clock: (chrono::Utc::now(), tokio::time::Instant::now()),
        time_limit: Duration::from_secs(60),
        tags: Vec::new(),
        stop: stop.clone(),
        progress: ProgressSlot::default(),
        checkpoint: Default::default(),
        finish: Default::default(),
        trace: None,
        exchange: Default::default(),
        log: Default::default(),
        call: Default::default(),
    });
    (ctx, stop)
}

fn files(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Wait until this holds. It asks repeatedly, because servers tell only on request which statements run.
async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < deadline, "still not so: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Wait until the server runs no statement of the test, for three seconds at most, apart from stalls of the machine.
/// After five seconds it notices a closed socket by itself, and that would hide a missing cancel.
async fn soon_idle(bench: &mut Bench, machine: &Pulse) {
    let began = Instant::now();
    eventually("the server is idle", async || bench.running().await == 0).await;
    machine.assert_within(Duration::from_secs(3), began, "the server is idle");
}

#[tokio::test]
async fn every_column_type_arrives_exactly() {
    let mut bench = Bench::new().await;
    bench
        .sql(
            "CREATE TABLE t (
                nothing INT NULL, tiny TINYINT, flag TINYINT(1), seven TINYINT(1), utiny TINYINT UNSIGNED,
                uflag TINYINT(1) UNSIGNED, big BIGINT, ubig BIGINT UNSIGNED, f FLOAT, d DOUBLE,
                money DECIMAL(30, 10), yr YEAR, bits BIT(10),
                c CHAR(5), v VARCHAR(50), bin_v VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
                txt TEXT, latin VARCHAR(20) CHARACTER SET latin1, en ENUM('a','b'), st SET('x','y'),
                b BINARY(3), vb VARBINARY(10), bl BLOB, dt DATE, tm TIME, tm6 TIME(6), dtm DATETIME, dtm6 DATETIME(6),
                ts TIMESTAMP(3) NULL, js JSON) CHARACTER SET utf8mb4",
        )
        .await;
    bench
        .sql(
            r#"INSERT INTO t VALUES (NULL, -128, 1, 7, 255, 200, -9223372036854775808, 18446744073709551615, 0.1, 1e300,
                12345678901234567890.0123456789, 2026, b'1000000001', 'ab', '=1+1', 'Ünï', CONCAT('a', CHAR(10), '表🦀'),
                'é', 'b', 'x,y', X'00FF10', X'', X'DEADBEEF', '2026-11-21', '-838:59:59', '01:02:03.000004',
                '2026-11-21 08:00:00', '2026-11-21 08:00:00.123456', '2026-11-21 08:00:00.250', '{"a": [1, "x"]}')"#,
        )
        .await;
    bench.sql("INSERT INTO t (nothing) VALUES (1)").await;

    let mut answer = bench.json("SELECT * FROM t ORDER BY nothing").await;
    let js = answer[0]["js"].take();
    assert_eq!(
        answer[0],
        json!({
            "nothing": null, "tiny": -128, "flag": true, "seven": 7, "utiny": 255, "uflag": 200,
            "big": i64::MIN, "ubig": u64::MAX, "f": 0.1, "d": 1e300,
            "money": "12345678901234567890.0123456789", "yr": 2026, "bits": 513,
            "c": "ab", "v": "=1+1", "bin_v": "Ünï", "txt": "a\n表🦀", "latin": "é", "en": "b", "st": "x,y",
            "b": "00ff10", "vb": "", "bl": "deadbeef", "dt": "2026-11-21", "tm": "-838:59:59", "tm6": "01:02:03.000004",
            "dtm": "2026-11-21T08:00:00.000", "dtm6": "2026-11-21T08:00:00.123456", "ts": "2026-11-21T08:00:00.250Z",
            "js": null,
        })
    );
    // MariaDB stores JSON as text and does not mark it as JSON.
    let js = js.as_str().map_or(js.clone(), |text| serde_json::from_str(text).unwrap());
    assert_eq!(js, json!({"a": [1, "x"]}));
    let second = answer[1].as_object().unwrap();
    assert!(second.iter().all(|(name, value)| value.is_null() == (name != "nothing")), "{second:?}");

    bench.sql("SET SESSION sql_mode = ''; CREATE TABLE old (d DATE, dtm DATETIME)").await;
    bench.sql("INSERT INTO old VALUES ('0000-00-00', '0000-00-00'), ('2024-00-00', '2024-02-00 10:00:00')").await;
    assert_eq!(
        bench.json("SELECT * FROM old ORDER BY d").await,
        json!([{"d": null, "dtm": null}, {"d": "2024-00-00", "dtm": "2024-02-00 10:00:00"}])
    );
    bench.end().await;
}

#[tokio::test]
async fn an_empty_answer_still_has_its_columns() {
    let bench = Bench::new().await;
    let reports = bench.reports("SELECT 1 AS a, 'x' AS b FROM dual WHERE 1 = 0");
    let result = run(reports, json!({"query": "q"})).await.unwrap();
    assert_eq!(result["rows"], 0);
    assert_eq!(bench.file(&result), b"a,b\r\n");
    bench.end().await;
}

#[tokio::test]
async fn parameters_are_values_and_never_sql() {
    let bench = Bench::new().await;
    let attack = "x' OR '1'='1\\'; DROP TABLE t; --";
    let sql = "SELECT ? AS said, ? IS NULL AS absent, CHAR_LENGTH(?) AS n";
    let reports = bench.reports_with(sql, &["a", "b", "a"], Duration::from_secs(60));
    let result = run(reports, json!({"query": "q", "format": "json", "params": {"a": attack}})).await.unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&bench.file(&result)).unwrap(),
        json!([{"said": attack, "absent": 1, "n": attack.chars().count()}])
    );
    bench.end().await;
}

#[tokio::test]
async fn a_report_cannot_write() {
    let mut bench = Bench::new().await;
    bench.sql("CREATE TABLE t (n INT); INSERT INTO t VALUES (1)").await;
    for sql in [
        "UPDATE t SET n = 2",
        "DELETE FROM t",
        "INSERT INTO t VALUES (3)",
        "TRUNCATE TABLE t",
        "DROP TABLE t",
        "CREATE TABLE u (n INT)",
        "SELECT 1; DROP TABLE t",
    ] {
        let error = rejection(bench.reports(sql)).await;
        assert!(error.starts_with("report q: run the query: the server refused it: "), "{sql}: {error}");
        assert!(!error.contains("TABLE") && !error.contains("FROM"), "{error}");
        assert!(files(bench.dir.path()).is_empty());
    }
    // Nor can it write after a query that tries to undo the protection, on the same connection.
    let _ = run(bench.reports("SET SESSION TRANSACTION READ WRITE"), json!({"query": "q"})).await;
    rejection(bench.reports("UPDATE t SET n = 2")).await;
    assert_eq!(bench.json("SELECT n FROM t").await, json!([{"n": 1}]));
    bench.end().await;
}

#[tokio::test]
async fn an_error_tells_its_number_and_not_the_statement() {
    let bench = Bench::new().await;
    for (sql, number) in
        [("SELEC secret_word", 1064), ("SELECT secret_word", 1054), ("SELECT 1 FROM secret_word", 1146)]
    {
        let error = rejection(bench.reports(sql)).await;
        assert!(error.contains(&format!("(error {number})")) && !error.contains("secret_word"), "{error}");
    }
    bench.end().await;
}

#[tokio::test]
async fn a_query_ends_at_its_time_limit() {
    let mut bench = Bench::new().await;
    let scan = format!("SELECT COUNT(*) FROM {} WHERE SHA2(n, 256) = 'x'", many(9));
    let (machine, name, url) = Pulse::apart().await;
    for sql in ["SELECT SLEEP(30) AS slept", &scan] {
        let started = Instant::now();
        let reports = bench.reports_with(sql, &[], Duration::from_secs(1));
        let outcome = run(reports, json!({"query": "q"})).await;
        let Err(Failure::Retry { error }) = outcome else { panic!("{outcome:?}") };
        assert!(error.contains("time limit of 1 s"), "{error}");
        // The server itself ends the statement: tickr would have waited 2 s longer for it.
        machine.assert_within(Duration::from_millis(2_800), started, "the query ends");
        assert!(files(bench.dir.path()).is_empty());
        soon_idle(&mut bench, &machine).await;
    }
    drop_database(&url, &name).await;
    bench.end().await;
}

#[tokio::test]
async fn a_stopped_report_ends_on_the_server_too() {
    let mut bench = Bench::new().await;
    let rows = format!("SELECT n, REPEAT('x', 50) AS x FROM {}", many(7));
    let (machine, name, url) = Pulse::apart().await;
    for sql in [rows.as_str(), "SELECT SLEEP(30)"] {
        // The report is asked to stop.
        let (ctx, stop) = stoppable();
        let running = tokio::spawn(run_in(ctx, bench.reports(sql), json!({"query": "q"})));
        eventually("the query runs", async || bench.running().await == 1).await;
        stop.cancel();
        let outcome = running.await.unwrap();
        assert!(matches!(outcome, Err(Failure::Retry { .. })), "{outcome:?}");
        assert!(files(bench.dir.path()).is_empty());
        soon_idle(&mut bench, &machine).await;

        // The report is dropped without a request to stop.
        let (ctx, _stop) = stoppable();
        let running = tokio::spawn(run_in(ctx, bench.reports(sql), json!({"query": "q"})));
        eventually("the query runs", async || bench.running().await == 1).await;
        running.abort();
        soon_idle(&mut bench, &machine).await;
        eventually("the file is gone", async || files(bench.dir.path()).is_empty()).await;
    }
    // The pool has two connections, and neither was lost.
    for _ in 0..4 {
        assert_eq!(bench.json("SELECT 1 AS one").await, json!([{"one": 1}]));
    }
    drop_database(&url, &name).await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_report_does_not_need_its_size_in_memory() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
    let query = |name: &str, power| {
        let sql = format!("SELECT n, REPEAT('x', 8000) AS x, n / 3 AS third FROM {}", many(power));
        format!("[reports.queries.{name}]\ntitle = \"Rows\"\nsql = \"{sql}\"\n")
    };
    let file = tickr.dir.path().join("tickr.toml");
    fs::write(&file, query("short", 1) + &query("long", 4)).unwrap();
    // Other tests use memory of this process. A long lease keeps a busy machine from interrupting the attempt.
    let runner = Runner::start(&tickr, &[("TICKR_CONFIG", file.to_str().unwrap()), ("TICKR_LEASE", "30s")]);
    let base = runner.base().await;
    let made = async |query: &str| {
        // Only the runner knows the queries.
        let job = json!({"kind": "report", "payload": {"query": query}});
        let accepted = call(&base, Method::POST, "/v1/jobs", "", Some(job)).await;
        assert_eq!(accepted.status, 201, "{:#}", accepted.body);
        let id = accepted.body["id"].as_str().unwrap().parse().unwrap();
        let asked = Instant::now();
        // A slow machine takes long for a long report.
        loop {
            let mut job = tickr.job(id).await;
            if job["state"] == "completed" {
                return job["result"].take();
            }
            assert!(asked.elapsed() < 4 * DEADLINE, "the report is not made: {job:#}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    made("short").await;
    let before_kib = runner.peak_memory_kib();
    let result = made("long").await;
    let grown_kib = runner.peak_memory_kib() - before_kib;
    assert_eq!(result["rows"], 10_000);
    assert!(result["bytes"].as_u64().unwrap() > 80_000_000, "{result}");
    assert!(grown_kib < 64 << 10, "{grown_kib} KiB");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_without_a_connection_wait_without_attempts_and_leave_the_workers_to_other_jobs() {
    // One worker for the report that runs, and one for the reports that wait and for other jobs.
    let tickr = other_jobs_run_beside_waiting_reports(2, None).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_without_a_connection_leave_the_permits_of_a_limited_queue_to_other_jobs() {
    let tickr = other_jobs_run_beside_waiting_reports(4, Some(2)).await;
    tickr.stop().await;
}

/// Start a runner with this many workers, one connection for reports and perhaps a limit of its queue. Run other jobs
/// while one report runs and twenty wait for the connection, and then the reports.
async fn other_jobs_run_beside_waiting_reports(workers: usize, limit: Option<u32>) -> TestApp {
    // The query runs until the test gives its lock away.
    let sql = "SELECT GET_LOCK(CONCAT('report ', DATABASE()), 50) AS got";
    let query = ReportQuery {
        title: "Locked".into(),
        description: None,
        sql: sql.into(),
        statement: Statement { sql: sql.into(), params: Vec::new() },
        params: Vec::new(),
    };
    let change = |config: &mut tickr::config::Config| {
        (config.workers, config.reports.connections) = (workers, 1);
        config.reports.queries.insert("locked".into(), query);
    };
    let tickr = TestApp::start_with(change, Registry::new()).await;
    let mut holder = tickr.mysql().await;
    let got: i64 = sqlx::query_scalar(sql).fetch_one(&mut holder).await.unwrap();
    assert_eq!(got, 1);
    if let Some(limit) = limit {
        let set = tickr.patch("/v1/queues/default", json!({"concurrency": limit})).await;
        assert_eq!(set.status, 200, "{:#}", set.body);
        tickr.until_count("SELECT COUNT(*) FROM queue_permits WHERE queue = 'default' AND permits > 0", 1).await;
    }

    let report = json!({"kind": "report", "payload": {"query": "locked"}});
    let reports = tickr.enqueue_many(std::iter::repeat_n(report, 21)).await;
    // One of them runs. Each of the others has come to a worker and was put off.
    let put_off = "SELECT COUNT(*) FROM owed o JOIN jobs j ON j.id = o.id WHERE o.execute_at > j.execute_at";
    tickr.until_count(put_off, 20).await;
    // Another runner could make them now, so they count as due.
    let told = tickr.get("/v1/queues/default/backlog").await.body;
    let [due, executing] = ["due", "executing"].map(|part| told[part].as_i64().unwrap());
    assert!((20..=21).contains(&(due + executing)), "{told:#}");
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    let noop = json!({"kind": "noop", "payload": {}});
    for other in tickr.enqueue_many(std::iter::repeat_n(noop, 20)).await {
        tickr.until(other, State::Completed).await;
    }
    // Reports that waited with the last worker or permit would hold it for a second each.
    pulse.assert_within(Duration::from_secs(8), began, "twenty other jobs");

    holder.close().await.unwrap();
    for id in reports {
        let job = tickr.until(id, State::Completed).await;
        assert_eq!((&job["attempt"], job["attempts"].as_array().unwrap().len()), (&json!(1), 1), "{job:#}");
    }
    tickr
}
