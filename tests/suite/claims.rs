//! Claims and the attempts that they open: a search finds open attempts however many jobs wait, and a claim without an
//! answer uses up no attempt.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, Row};
use tickr::config::Config;
use tickr::handlers::{Context, Kind, Output, Registry};
use tickr::job::{JobId, State};
use tickr::services::{Options, Services};
use tickr::store::with_prefix;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::limits::set_and_wait;
use crate::support::{Runner, TestApp, answer, eventually, eventually_seen, http, is_full, table_prefix};

/// Configure a tickr that accepts jobs and reaps, but runs no job.
fn bystander(config: &mut Config) {
    config.queues = vec!["elsewhere".into()];
    config.lease = Duration::from_secs(5);
}

/// Do the same as [`bystander`], with the lease of [`PATIENT`].
fn patient_bystander(config: &mut Config) {
    bystander(config);
    config.lease = Duration::from_secs(15);
}

/// A lease for tests in which MySQL stands still. It ends meanwhile, but a busy machine that stalls for some seconds
/// when MySQL is back does not let it end again.
const PATIENT: (&str, &str) = ("TICKR_LEASE", "15s");

/// Fill the tables with this many jobs that are due in a month. Their ids lie before, among and after those of all
/// other jobs: they are spread evenly, and the first four bytes of all of them are below `end`. They are made in the
/// order of their ids, because rows at random places would take MySQL an hour.
async fn far_jobs(tickr: &TestApp, count: u64, end: u64) {
    const PAGE: u64 = 100_000;
    let mut mysql = tickr.mysql().await;
    let digit = "(SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 \
                 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    let page = format!(
        "INSERT INTO jobs (id, kind, queue, priority, max_attempts, payload, execute_at, created_at) \
         SELECT CONCAT(UNHEX(LPAD(HEX(FLOOR((? + n) * {end} / ?)), 8, '0')), UNHEX(LPAD(HEX(? + n), 24, '0'))), \
         'noop', 'far', 5, 5, '{{}}', UTC_TIMESTAMP(3) + INTERVAL 30 DAY, UTC_TIMESTAMP(6) FROM (SELECT a.d + 10 * b.d \
         + 100 * c.d + 1000 * e.d + 10000 * f.d AS n FROM {digit} a, {digit} b, {digit} c, {digit} e, {digit} f) places \
         WHERE ? + n < ? ORDER BY n"
    );
    for first in (0..count).step_by(PAGE as usize) {
        let page =
            sqlx::query(AssertSqlSafe(page.as_str())).bind(first).bind(count).bind(first).bind(first).bind(count);
        assert_eq!(page.execute(&mut mysql).await.unwrap().rows_affected(), PAGE.min(count - first));
    }
    let mut after = vec![0_u8];
    loop {
        let page = "INSERT INTO owed (id, kind, queue, priority, max_attempts, state, execute_at) \
                    SELECT id, kind, queue, priority, max_attempts, 'waiting', execute_at FROM jobs \
                    WHERE queue = 'far' AND id > ? ORDER BY id LIMIT 200000";
        if sqlx::query(page).bind(&after).execute(&mut mysql).await.unwrap().rows_affected() == 0 {
            break;
        }
        after = sqlx::query_scalar("SELECT MAX(id) FROM owed WHERE queue = 'far'").fetch_one(&mut mysql).await.unwrap();
    }
    mysql.execute("ANALYZE TABLE owed, jobs").await.unwrap();
}

/// Kill a runner with 250 open attempts behind this many jobs of next month. All attempts are lost within the lease
/// plus five seconds. The ids of these years begin with 019 and 01A, so two fifths of the jobs lie before theirs: more
/// than the walk through all rows passes in that time.
async fn lost_behind(tickr: TestApp, far: u64) {
    far_jobs(&tickr, far, 1 << 26).await;
    let env = [("TICKR_WORKERS", "256"), ("TICKR_LEASE", "5s")];
    let mut runner = Runner::start(&tickr, &env);
    let job = json!({"kind": "sleep", "payload": {"ms": 600_000}});
    let ids = tickr.enqueue_many((0..250).map(|_| job.clone())).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE queue = 'default' AND state = 'executing'", 250).await;
    runner.kill9();
    let killed: chrono::DateTime<chrono::Utc> =
        sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut tickr.mysql().await).await.unwrap();
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE verdict = 'lost'", 250).await;
    let last: chrono::DateTime<chrono::Utc> =
        sqlx::query_scalar("SELECT MAX(finished_at) FROM attempts").fetch_one(&mut tickr.mysql().await).await.unwrap();
    println!("250 attempts behind {far} jobs were lost within {} ms", (last - killed).num_milliseconds());
    assert!(last - killed < chrono::TimeDelta::seconds(10), "{}", last - killed);
    for id in &ids[..3] {
        assert_eq!(tickr.verdicts(*id).await, ["lost"]);
    }
    // No batch of claims is left to check.
    tickr.until_count("SELECT COUNT(*) FROM claim_batches", 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_of_a_killed_runner_are_found_behind_any_number_of_jobs() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    lost_behind(tickr, if is_full() { 200_000 } else { 20_000 }).await;
}

/// Do the same as [`lost_behind`] on a server of its own with a buffer pool of 1 GiB, which holds a part of the jobs.
/// Its data is on a disk, because memory may not have room for it.
async fn lost_behind_millions(far: u64) {
    let disk = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let options = Options::ephemeral_under(disk).mysql_flag("--innodb-buffer-pool-size=1G");
    let tickr = TestApp::start_on_own(Services::start(&options).unwrap(), bystander).await;
    lost_behind(tickr, far).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "fills a table for minutes; TICKR_FAR_JOBS sets how many jobs wait"]
async fn attempts_of_a_killed_runner_are_found_behind_eight_million_jobs() {
    let far = std::env::var("TICKR_FAR_JOBS").ok().and_then(|far| far.parse().ok()).unwrap_or(8_000_000);
    lost_behind_millions(far).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "fills a table for a quarter of an hour"]
async fn attempts_of_a_killed_runner_are_found_behind_twenty_million_jobs() {
    lost_behind_millions(20_000_000).await;
}

/// Return a text in which the names of the tables have no prefix, in a run of the tests with one.
fn without_prefix(text: &str) -> String {
    let prefix = table_prefix();
    if prefix.is_empty() { text.to_owned() } else { text.replace(prefix.as_str(), "") }
}

/// Return a statement of the general log with the constants that it was sent. The log of MariaDB has two backslashes
/// and `xFF` for a byte that is no text, and that of MySQL has the byte. Both become a hexadecimal constant here.
fn with_hexadecimal_constants(logged: &[u8]) -> String {
    let (mut text, mut rest) = (Vec::new(), logged);
    while let Some(open) = rest.iter().position(|byte| *byte == b'\'') {
        let is_hexadecimal = open > 0 && rest[open - 1].eq_ignore_ascii_case(&b'x');
        text.extend_from_slice(&rest[..open]);
        rest = &rest[open + 1..];
        let (mut value, mut length, mut binary) = (Vec::new(), 0, false);
        while let Some(&byte) = rest.get(length).filter(|byte| **byte != b'\'') {
            let digits = rest[length..].strip_prefix(br"\\x").and_then(|digits| digits.get(..2));
            let code = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
            let (known, bytes) = match (byte, code) {
                (_, Some(code)) => (code, 5),
                (b'\\', None) => match rest.get(length + 1) {
                    Some(b'0') => (0, 2),
                    Some(b'n') => (b'\n', 2),
                    Some(b'r') => (b'\r', 2),
                    Some(b'Z') => (0x1a, 2),
                    Some(other) => (*other, 2),
                    None => (byte, 1),
                },
                (_, None) => (byte, 1),
            };
            binary |= code.is_some() || !byte.is_ascii();
            value.push(known);
            length += bytes;
        }
        if binary && !is_hexadecimal {
            let digits: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
            text.extend(format!("x'{digits}'").bytes());
        } else {
            text.extend_from_slice(b"'");
            text.extend_from_slice(&rest[..length]);
            text.extend_from_slice(b"'");
        }
        rest = rest.get(length + 1..).unwrap_or_default();
    }
    text.extend_from_slice(rest);
    String::from_utf8_lossy(&text).into_owned()
}

/// Return the statements in the server's general log that read or write the owed rows.
async fn statements(mysql: &mut MySqlConnection) -> BTreeSet<String> {
    let rows =
        mysql.fetch_all("SELECT argument FROM mysql.general_log WHERE command_type IN ('Execute', 'Query')").await;
    let texts = rows.unwrap().into_iter().map(|row| {
        let text: Vec<u8> = row.try_get_unchecked(0).unwrap();
        without_prefix(&with_hexadecimal_constants(&text))
    });
    let pieces: Vec<String> = texts.flat_map(|text| split(&text)).collect();
    let about_owed = |text: &String| {
        let begins = ["SELECT", "UPDATE", "DELETE", "INSERT"].iter().any(|word| text.starts_with(word));
        begins && text.contains("owed") && !text.contains("information_schema") && !text.starts_with("INSERT INTO owed")
    };
    pieces.into_iter().filter(about_owed).collect()
}

/// Return the names under which a statement knows the table of unfinished jobs: its own, and its aliases.
fn names_of_owed(text: &str) -> BTreeSet<String> {
    const NO_ALIAS: [&str; 16] = [
        "ON",
        "WHERE",
        "SET",
        "FORCE",
        "USE",
        "LEFT",
        "JOIN",
        "INNER",
        "ORDER",
        "GROUP",
        "LIMIT",
        "USING",
        "STRAIGHT_JOIN",
        "FOR",
        "UNION",
        "CROSS",
    ];
    let words: Vec<&str> = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let mut names = BTreeSet::from(["owed".to_owned()]);
    for (place, _) in words.iter().enumerate().filter(|(_, word)| **word == "owed") {
        let next = words[place + 1..].iter().find(|word| !word.is_empty() && **word != "AS");
        names.extend(next.filter(|word| !NO_ALIAS.contains(word)).map(|word| (*word).to_owned()));
    }
    names
}

/// Split a text into statements. Constants may hold any byte, also a semicolon.
fn split(text: &str) -> Vec<String> {
    let (mut statements, mut statement) = (Vec::new(), String::new());
    let (mut quoted, mut escaped) = (false, false);
    for c in text.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '\'' => quoted = !quoted,
            ';' if !quoted => {
                statements.push(std::mem::take(&mut statement));
                continue;
            }
            _ => {}
        }
        statement.push(c);
    }
    statements.push(statement);
    statements.into_iter().map(|statement| statement.trim().to_owned()).collect()
}

/// Rows of next month in the test of plans, and the most that a plan may read. The estimate for a page of 5,000 rows is
/// up to twice as large, and the one for the whole index may be half of it.
const FAR: u64 = 60_000;
const MANY: u64 = 20_000;

/// Return whether a plan reads a table as a whole, or a large part of it.
fn reads_the_whole(how: &str, rows: u64) -> bool {
    how == "ALL" || (matches!(how, "index" | "range") && rows > MANY)
}

/// Texts of the statements of loops that have work only now and then: the walk for a silent runner of an older version,
/// expiries, limits by key, order keys, and parents.
const LOOPS: [&str; 5] = [" AND id <= ", "expir", "limit_", "order_places", "job_parents"];

#[tokio::test(flavor = "multi_thread")]
async fn no_loop_reads_the_owed_rows_as_a_whole() {
    // The log has the values of a statement only if it was on when the statement was prepared.
    let logs = ["--general-log=1", "--log-output=TABLE"];
    let tickr = TestApp::start_on_servers_with(&logs, |_| {}, bystander).await;
    far_jobs(&tickr, FAR, 1 << 32).await;
    let mut mysql = tickr.mysql().await;
    // At its start the bystander walked through a table without rows, to its end.
    mysql.execute("TRUNCATE TABLE mysql.general_log").await.unwrap();
    // One runner works, one dies, and an older one is silent.
    let works = Runner::start(&tickr, &[("TICKR_WORKERS", "8")]);
    let retry = json!({"base_ms": 1, "factor": 1.0, "cap_ms": 1});
    tickr.enqueue_many((0..50).map(|_| json!({"kind": "noop"}))).await;
    tickr.enqueue_many((0..5).map(|_| json!({"kind": "fail", "payload": {"times": 1}, "retry": retry}))).await;
    let mut dies = Runner::start(&tickr, &[("TICKR_WORKERS", "8"), ("TICKR_QUEUES", "dying")]);
    let job = json!({"kind": "sleep", "queue": "dying", "payload": {"ms": 600_000}});
    tickr.enqueue_many((0..8).map(|_| job.clone())).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE queue = 'dying' AND state = 'executing'", 8).await;
    tickr
        .sql(
            "INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, started_at, heartbeat_at) \
             VALUES ('gone/1-abcdef', '0', '[]', '[]', 1, 5000, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) - INTERVAL 6 SECOND)",
        )
        .await;
    dies.kill9();
    // The loops behind expiries, limits by key, order keys and parents have work as well. The blocked jobs are looked
    // at every five seconds.
    set_and_wait(&tickr, "per-tenant", json!({"concurrency": 1})).await;
    let expires = tickr.enqueue(json!({"kind": "noop", "queue": "nowhere", "expires_in_ms": 500})).await;
    let sleep = |ms: u64| json!({"kind": "sleep", "payload": {"ms": ms}});
    let with = |name: &str, key: &str| {
        let mut job = sleep(200);
        job[name] = json!(key);
        job
    };
    tickr.enqueue_many((0..4).map(|_| with("limit_key", "one"))).await;
    tickr.enqueue_many((0..4).map(|_| with("order_key", "one"))).await;
    let parent = tickr.enqueue(sleep(7_000)).await;
    tickr.enqueue(json!({"kind": "noop", "after": [parent.to_string()]})).await;
    tickr.until(expires, State::Failed).await;
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE verdict = 'lost'", 8).await;
    let whole = "SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'";
    tickr.until_count(whole, 65).await;
    mysql.execute("SET GLOBAL general_log = 0").await.unwrap();

    let found = statements(&mut mysql).await;
    // Leave out the statements of tests and operators, and the bounded searches of the API.
    let loops = found.iter().filter(|text| {
        let asked = ["SELECT COUNT(*) FROM owed", "SELECT MAX(id)", "SELECT queue, state, COUNT(*)", "EXPLAIN"];
        !asked.iter().any(|begins| text.starts_with(begins)) && !text.contains("INSERT INTO runners")
    });
    // A view has no indexes.
    mysql.execute(AssertSqlSafe(format!("USE {}", tickr.database()))).await.unwrap();
    let explained = |text: &str| {
        AssertSqlSafe(format!("EXPLAIN FORMAT=TRADITIONAL {}", with_prefix(&tickr.config.table_prefix, text)))
    };
    let (mut read, mut claims, mut skipped) = (0, 0, Vec::new());
    for text in loops {
        let plan = match mysql.fetch_all(sqlx::raw_sql(explained(text))).await {
            Ok(plan) => plan,
            Err(error) => {
                skipped.push(format!("{error}: {text}"));
                continue;
            }
        };
        let names = names_of_owed(text);
        for row in plan {
            let of = |column: &str| {
                let text: Option<Vec<u8>> = row.try_get_unchecked(column).unwrap();
                String::from_utf8_lossy(&text.unwrap_or_default()).into_owned()
            };
            let (table, how) = (without_prefix(&of("table")), of("type"));
            let rows: u64 = of("rows").parse().unwrap_or(0);
            if !names.contains(&table) {
                continue;
            }
            read += 1;
            claims += usize::from(text.starts_with("UPDATE owed"));
            // The end of a page of the walk. It reads as many rows as the page has, but an estimate may cover all
            // behind it.
            let is_page = text.starts_with("SELECT id FROM owed FORCE INDEX (PRIMARY) WHERE id > ")
                && text.contains(" ORDER BY id LIMIT 1 OFFSET ");
            assert!(is_page || !reads_the_whole(&how, rows), "{how} of {rows} rows: {text}");
        }
    }
    println!("{read} plans, {claims} of them of claims and renewals");
    assert!(read > 5 && claims > 0, "{found:#?}");
    assert!(skipped.is_empty(), "{} statements have no plan: {skipped:#?}", skipped.len());
    for begins in LOOPS {
        assert!(found.iter().any(|text| text.contains(begins)), "{begins} is not in {found:#?}");
    }
    // Check the check itself: it must flag a scan of the whole table, and a walk through the whole primary key. MySQL
    // estimates no rows for an index that a statement forces, so there the walk is found by the run on MariaDB alone.
    let server: String = sqlx::query_scalar("SELECT VERSION()").fetch_one(&mut mysql).await.unwrap();
    let estimates = server.contains("MariaDB");
    for whole in [
        "SELECT id FROM owed WHERE state = 'executing' AND lease_until < UTC_TIMESTAMP(6)",
        "SELECT id, kind FROM owed FORCE INDEX (PRIMARY) WHERE id > x'00000000000000000000000000000000' \
         AND state = 'executing' ORDER BY id",
    ] {
        let plan = &mysql.fetch_all(sqlx::raw_sql(explained(whole))).await.unwrap()[0];
        let word = |column: &str| {
            let text: Option<Vec<u8>> = plan.try_get_unchecked(column).unwrap();
            String::from_utf8(text.unwrap()).unwrap()
        };
        let (how, rows) = (word("type"), word("rows"));
        println!("{how} of {rows} rows: {whole}");
        let unknown = how == "range" && !estimates;
        assert!(unknown || reads_the_whole(&how, rows.parse().unwrap()), "{how} of {rows} rows: {whole}");
    }
    drop(works);
    tickr.stop().await;
}

const BURNED: &str = "SELECT COUNT(*) FROM attempts WHERE verdict = 'lost' OR end_state = 'failed'";

/// Wait until every job of the tables has ended. On a busy machine all together may take longer than the deadline, so
/// it counts from the last job that ended.
async fn until_all_ended(tickr: &TestApp) {
    let mut left = i64::MAX;
    while left > 0 {
        left = eventually_seen("another job has ended", || async {
            match tickr.app.broker().store().stats().await {
                Ok(stats) => {
                    let now: i64 = stats.owed.iter().map(|group| group.jobs).sum();
                    if now < left { Ok(now) } else { Err(format!("{now} jobs have not")) }
                }
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
    }
}

/// Freeze MySQL until every claim under way is given up, while jobs with a single attempt arrive.
async fn frozen(tickr: &TestApp, freeze: impl AsyncFnOnce(&TestApp)) {
    let runner = Runner::start(tickr, &[("TICKR_WORKERS", "16"), PATIENT]);
    runner.base().await;
    // The jobs become due one after the other, so that some claim is under way at every moment.
    let job = |n: u64| json!({"kind": "noop", "max_attempts": 1, "delay_ms": n * 4});
    let ids = tickr.enqueue_many((0..1_000).map(job)).await;
    eventually("claims are under way", || async {
        (tickr.count("SELECT COUNT(*) FROM attempts").await > 100).then_some(())
    })
    .await;
    freeze(tickr).await;
    until_all_ended(tickr).await;
    assert_eq!(tickr.count(BURNED).await, 0, "an attempt was used up though no handler had run");
    assert_eq!(
        tickr.count("SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'").await,
        i64::try_from(ids.len()).unwrap()
    );
    let given_back = tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'interrupted'").await;
    println!("{given_back} attempts of claims were carried out after they had been given up, and given back");
    tickr.until_count("SELECT COUNT(*) FROM claim_batches", 0).await;
    tickr.assert_sound().await;
}

/// Long enough for a claim to be given up while the server does not answer: one run of fifteen seconds and two connects
/// of five.
const SILENT: Duration = Duration::from_secs(28);
/// The same while the server answers, but not to a write: three runs.
const LOCKED: Duration = Duration::from_secs(50);

#[tokio::test(flavor = "multi_thread")]
async fn a_mysql_that_stands_still_for_longer_than_every_limit_burns_no_attempt() {
    let tickr = TestApp::start_alone(|_| {}, patient_bystander).await;
    frozen(&tickr, async |tickr| {
        tickr.services().mysql().pause().unwrap();
        tokio::time::sleep(SILENT).await;
        tickr.services().mysql().resume().unwrap();
    })
    .await;
    tickr.stop().await;
}

/// A job whose handler writes into a journal of the test.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Noted {}

impl Kind for Noted {
    const NAME: &'static str = "noted";
}

/// Callers that enqueue all the time, and the time for which MySQL stands still meanwhile.
const CALLERS: usize = 16;
const FROZEN: Duration = Duration::from_secs(40);

#[tokio::test(flavor = "multi_thread")]
async fn a_mysql_frozen_under_sixteen_callers_costs_no_single_attempt() {
    let tickr = TestApp::start_alone(|_| {}, patient_bystander).await;
    let journal = Arc::new(Mutex::new(BTreeMap::<JobId, usize>::new()));
    let noted = Arc::clone(&journal);
    let mut kinds = Registry::new();
    kinds.register(move |_: Noted, ctx: Context| {
        *noted.lock().unwrap().entry(ctx.job_id()).or_default() += 1;
        async { Ok(Output::default()) }
    });
    let serves = |config: &mut Config| (config.workers, config.queues) = (16, vec!["default".into()]);
    let runner = tickr.another_with(serves, kinds).await;
    let url = format!("http://{}/v1/jobs", runner.addr());

    let over = CancellationToken::new();
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (url, over) = (url.clone(), over.clone());
        callers.spawn(async move {
            let (client, mut accepted, mut refused) = (http(), Vec::<JobId>::new(), 0);
            while !over.is_cancelled() {
                let job = json!({"kind": "noted", "max_attempts": 1});
                let answer = answer(client.post(&url).json(&job)).await;
                if answer.status == 201 {
                    accepted.push(answer.body["id"].as_str().unwrap().parse().unwrap());
                } else {
                    assert_eq!((answer.status, answer.code()), (503, "store_unavailable"), "{:#}", answer.body);
                    refused += 1;
                }
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            (accepted, refused)
        });
    }
    let ran = || journal.lock().unwrap().len();
    eventually("the callers are under way", || async { (ran() > 100).then_some(()) }).await;
    tickr.services().mysql().pause().unwrap();
    tokio::time::sleep(FROZEN).await;
    let before = ran();
    tickr.services().mysql().resume().unwrap();
    eventually("jobs run again", || async { (ran() > before + 100).then_some(()) }).await;
    over.cancel();
    let (mut accepted, mut refused) = (BTreeSet::new(), 0);
    while let Some(caller) = callers.join_next().await {
        let (mine, no) = caller.unwrap();
        accepted.extend(mine);
        refused += no;
    }
    until_all_ended(&tickr).await;
    assert_eq!(tickr.count(BURNED).await, 0, "an attempt was used up");
    // The handlers' own notes agree. Those whose answer did not arrive may have been accepted as well.
    let journal = journal.lock().unwrap().clone();
    assert!(journal.values().all(|times| *times == 1), "{journal:?}");
    let missing: Vec<_> = accepted.iter().filter(|id| !journal.contains_key(id)).collect();
    assert!(missing.is_empty(), "accepted, and never run: {missing:?}");
    let jobs = tickr.count("SELECT COUNT(*) FROM jobs").await;
    assert_eq!(jobs, i64::try_from(journal.len()).unwrap());
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'").await, jobs);
    println!("{} jobs accepted, {refused} requests refused, {jobs} jobs run once, 0 lost", accepted.len());
    runner.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute"]
async fn a_global_lock_that_outlasts_every_limit_burns_no_attempt() {
    let tickr = TestApp::start_alone(|_| {}, patient_bystander).await;
    frozen(&tickr, async |tickr| {
        let mut mysql = tickr.mysql().await;
        mysql.execute("FLUSH TABLES WITH READ LOCK").await.unwrap();
        tokio::time::sleep(LOCKED).await;
        mysql.execute("UNLOCK TABLES").await.unwrap();
    })
    .await;
    tickr.stop().await;
}

/// Wait until the gauge `tickr_fetching` of this process has this value.
async fn until_fetching(base: &str, value: u8) {
    let wanted = format!("tickr_fetching {value}");
    eventually(&wanted, || async {
        let page = http().get(format!("{base}/metrics")).send().await.unwrap().text().await.unwrap();
        page.lines().any(|line| line == wanted).then_some(())
    })
    .await;
}

/// The fetcher of such a process waits for a worker for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_without_a_worker_tells_whether_its_heartbeat_is_answered() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let runner = Runner::start(&tickr, &[("TICKR_WORKERS", "0"), ("TICKR_LEASE", "3s")]);
    let base = runner.base().await;
    until_fetching(&base, 1).await;
    let mut lock = tickr.mysql().await;
    let mut held = lock.begin().await.unwrap();
    sqlx::query("SELECT id FROM runners FOR UPDATE").fetch_all(&mut *held).await.unwrap();
    until_fetching(&base, 0).await;
    held.rollback().await.unwrap();
    until_fetching(&base, 1).await;
    drop(runner);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_whose_heartbeat_is_not_answered_takes_no_new_work_until_it_is() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let runner = Runner::start(&tickr, &[("TICKR_WORKERS", "4"), ("TICKR_LEASE", "3s")]);
    let first = tickr.enqueue(json!({"kind": "noop"})).await;
    tickr.until(first, State::Completed).await;
    // Everything works except the heartbeat.
    let mut lock = tickr.mysql().await;
    let mut held = lock.begin().await.unwrap();
    sqlx::query("SELECT id FROM runners FOR UPDATE").fetch_all(&mut *held).await.unwrap();
    runner.until_log("the heartbeat is not answered").await;
    until_fetching(&runner.base().await, 0).await;
    let ids = tickr.enqueue_many((0..20).map(|_| json!({"kind": "noop"}))).await;
    // Longer than any pause of the fetcher.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts").await, 1, "{}", runner.log());
    held.rollback().await.unwrap();
    for id in ids {
        tickr.until(id, State::Completed).await;
    }
    runner.until_log("the heartbeat is answered again").await;
    tickr.assert_each_ran_once(21).await;
    drop(runner);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_lost_attempt_that_cannot_be_ended_does_not_keep_the_others_lost() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let mut runner = Runner::start(&tickr, &[("TICKR_WORKERS", "20")]);
    let job = json!({"kind": "sleep", "payload": {"ms": 600_000}});
    let mut ids = tickr.enqueue_many((0..20).map(|_| job.clone())).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 20).await;
    // The ledger already has a row for this attempt, as after a restore that went wrong.
    ids.sort_unstable();
    let bad = "INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict) \
               SELECT id, attempt, 1, runner, execute_at, started_at, started_at, 'failed' FROM owed WHERE id = ?";
    sqlx::query(bad).bind(ids[0].uuid()).execute(&mut tickr.mysql().await).await.unwrap();
    runner.kill9();
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE verdict = 'lost'", 19).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE state = 'executing'").await, 1);
    tickr.stop_broken("the ledger has a row of an open attempt").await;
}
