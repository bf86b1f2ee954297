//! MySQL as the source of truth: its faults under load, and the promises that hold all the same. After each test the
//! tables are sound, and every job has run as often as it should.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, Row};
use tickr::app::App;
use tickr::broker::Broker;
use tickr::config::{Config, ServerUrl};
use tickr::handlers::Registry;
use tickr::job::{JobId, Producer, State};
use tickr::services::{Options, Services};
use tickr::store::{EnqueueOutcome, Store, StoreSettings};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::limits::set_and_wait;
use crate::support::{
    Answer, DEADLINE, Proxy, Runner, SHORT_LEASE, TestApp, answer, connect, draft, eventually, eventually_seen, http,
    make_api_key, server_options, table_prefix, unique_name,
};

/// Configure a tickr that accepts jobs and runs none of them.
fn bystander(config: &mut Config) {
    config.queues = vec!["elsewhere".into()];
}

/// Enqueue without a pause until `over`, one to three jobs at a time, some with unique keys. Return the accepted jobs,
/// and the number of refused requests.
async fn load(broker: &Broker, over: &CancellationToken) -> (Vec<JobId>, usize) {
    let (mut accepted, mut refused) = (Vec::new(), 0);
    while !over.is_cancelled() {
        let key = rand::random::<bool>().then(|| uuid::Uuid::new_v4().to_string());
        let jobs = (0..rand::random_range(1..=3)).map(|n| {
            json!({"kind": "noop", "delay_ms": rand::random_range(0..60), "unique_key": key.clone().filter(|_| n == 0)})
        });
        let jobs = jobs.map(|job| broker.prepare(draft(&job)).unwrap()).collect();
        let answer = match key {
            Some(_) => broker.enqueue_unique(&Producer::tickr(), jobs).await.map(|answer| match answer {
                EnqueueOutcome::Accepted(receipts) => receipts.accepted().cloned().collect(),
                EnqueueOutcome::Refused(refusal) => panic!("the key is its own: {refusal:?}"),
            }),
            None => broker.enqueue_all(jobs).await,
        };
        match answer {
            Ok(receipts) => accepted.extend(receipts.iter().map(|receipt| receipt.id)),
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                refused += 1;
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    (accepted, refused)
}

/// Check that every accepted job is completed and none ran twice. Return the number of attempts that were lost because
/// the answer to their claim did not arrive.
async fn assert_done(tickr: &TestApp, accepted: &[JobId]) -> i64 {
    tickr.until_idle().await;
    let completed: Vec<uuid::Uuid> = sqlx::query_scalar("SELECT job_id FROM attempts WHERE end_state = 'completed'")
        .fetch_all(&mut tickr.mysql().await)
        .await
        .unwrap();
    let completed: HashSet<uuid::Uuid> = completed.into_iter().collect();
    for id in accepted {
        assert!(completed.contains(&id.uuid()), "{id}");
    }
    let jobs = tickr.count("SELECT COUNT(*) FROM jobs").await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'").await, jobs);
    // A claim that was committed without an answer is given back: no handler has started.
    let others = "SELECT COUNT(*) FROM attempts WHERE verdict NOT IN ('succeeded', 'lost') \
                  AND NOT (verdict = 'interrupted' AND error LIKE 'its claim was not answered%')";
    assert_eq!(tickr.count(others).await, 0);
    tickr.assert_sound().await;
    tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'lost'").await
}

/// Check the answer to a request while MySQL is out.
fn assert_out(answer: &Answer) {
    assert_eq!((answer.status, answer.code()), (503, "store_unavailable"), "{:#}", answer.body);
    assert_eq!(answer.header("retry-after"), "1");
    let said = answer.body.to_string().to_lowercase();
    for leak in ["sql:", "select", "insert", "update", "socket", "errno", "os error"] {
        assert!(!said.contains(leak), "{said}");
    }
}

/// Return the processor time that a process has used.
#[cfg(target_os = "linux")]
pub(crate) fn used(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name of the process may contain anything, so read behind it: user and system time are the 12th and 13th
    // field, in hundredths of a second.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|text| text.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn used(_: u32) -> Duration {
    Duration::ZERO
}

#[tokio::test(flavor = "multi_thread")]
async fn while_mysql_is_out_the_api_says_so_nothing_spins_and_what_runs_keeps_its_verdict() {
    let tickr = TestApp::start_alone(|_| {}, bystander).await;
    let env = [("TICKR_LEASE", "30s"), ("TICKR_WORKERS", "16"), ("TICKR_LOG", "info")];
    let mut runner = Runner::start(&tickr, &env);
    // Its heartbeats are overdue soon after the begin of the outage.
    let mut overdue = Runner::start(&tickr, &[("TICKR_LEASE", "3s"), ("TICKR_QUEUES", "elsewhere"), env[2]]);
    overdue.base().await;
    let base = runner.base().await;
    let client = http();
    let ask = async |path: &str| answer(client.get(format!("{base}{path}"))).await;
    let sleep = json!({"kind": "sleep", "payload": {"ms": 1_500}});
    let running = tickr.enqueue_many((0..10).map(|_| sleep.clone())).await;
    // These jobs become due in the middle of the outage.
    let due = tickr.enqueue_many((0..50).map(|n| json!({"kind": "noop", "delay_ms": 2_000 + n * 40}))).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 10).await;
    assert_eq!(ask("/readyz").await.status, 200);
    assert_eq!(ask(&format!("/v1/jobs/{}", running[0])).await.status, 200);

    tickr.services().mysql().kill9().unwrap();
    let out = Instant::now();
    let job = json!({"kind": "noop"});
    let post = async |path: &str, body: &Value| answer(client.post(format!("{base}{path}")).json(body)).await;
    assert_out(&post("/v1/jobs", &job).await);
    assert!(out.elapsed() < Duration::from_secs(2), "{:?}", out.elapsed());
    let (keyed, batch) = (json!({"kind": "noop", "unique_key": "k"}), json!({"jobs": [job]}));
    let (show, cancel) = (format!("/v1/jobs/{}", due[0]), format!("/v1/jobs/{}/cancel", due[0]));
    let nothing = json!({});
    let answers = tokio::join!(
        post("/v1/jobs", &keyed),
        post("/v1/jobs/batch", &batch),
        post(&cancel, &nothing),
        ask(&show),
        ask("/v1/jobs"),
        ask("/v1/stats"),
    );
    // This takes longer than one refused connection, because the pool tries for a while.
    assert!(out.elapsed() < Duration::from_secs(8), "{:?}", out.elapsed());
    for answer in [&answers.0, &answers.1, &answers.2, &answers.3, &answers.4, &answers.5] {
        assert_out(answer);
    }
    // A check of MySQL is used for half a second. This probe comes later, so its check is newer.
    let ready = ask("/readyz").await;
    assert_eq!((ready.status, &ready.body["status"]), (503, &json!("store_unavailable")));
    assert_eq!(ask("/livez").await.status, 200);

    let (before, lines) = (used(runner.pid()), runner.log().lines().count());
    let watched = Instant::now();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (used, lines) = (used(runner.pid()) - before, runner.log().lines().count() - lines);
    let share = used.as_secs_f64() / watched.elapsed().as_secs_f64();
    println!("while mysql is out: {:.1} % of a core, {lines} log lines in 3 s", share * 100.0);
    assert!(share < 0.2, "{share}");
    // Ten verdicts, a heartbeat, a reaper and a reconciler wait. Each of them logs that now and then.
    assert!(lines < 60, "{lines} lines:\n{}", runner.log());
    let said = |runner: &Runner, words: [&str; 2]| {
        runner.log().lines().filter(|line| words.iter().any(|words| line.contains(words))).count()
    };
    // One line at the first failure, and one every thirty seconds. Eight requests were refused until now.
    let beats = said(&overdue, ["heartbeat failed", "the heartbeat got no answer in time"]);
    assert!((1..=2).contains(&beats), "{beats} lines:\n{}", overdue.log());
    let refusals = said(&runner, ["request refused"; 2]);
    assert!((1..=2).contains(&refusals), "{refusals} lines:\n{}", runner.log());

    tickr.services().mysql().start_again().unwrap();
    let back = Instant::now();
    for id in running.iter().chain(&due) {
        tickr.until(*id, State::Completed).await;
    }
    println!("all done {:?} after mysql was back", back.elapsed());
    assert!(back.elapsed() < Duration::from_secs(10), "{:?}", back.elapsed());
    eventually("the runner is ready", || async { (ask("/readyz").await.status == 200).then_some(()) }).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict <> 'succeeded'").await, 0);
    tickr.assert_each_ran_once(60).await;
    overdue.until_log("the heartbeat is answered again").await;
    for runner in [&mut runner, &mut overdue] {
        runner.signal("TERM");
        assert_eq!(runner.exit_code().await, Some(0), "{}", runner.log());
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_killed_one_by_one_under_load_lose_nothing_and_double_nothing() {
    let tickr = TestApp::start_alone(|_| {}, |config| (config.workers, config.lease) = (16, SHORT_LEASE)).await;
    let over = CancellationToken::new();
    let mut killed = 0;
    let kill = async {
        let mut killer = tickr.mysql().await;
        let own: u64 = sqlx::query_scalar("SELECT CONNECTION_ID()").fetch_one(&mut killer).await.unwrap();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(2) || (killed <= 60 && began.elapsed() < DEADLINE) {
            for row in killer.fetch_all("SHOW PROCESSLIST").await.unwrap() {
                let (id, command): (u64, String) = (number(&row), row.try_get("Command").unwrap());
                if id != own && command != "Daemon" {
                    // The connection may have ended by itself.
                    killed += usize::from(killer.execute(AssertSqlSafe(format!("KILL {id}"))).await.is_ok());
                    tokio::time::sleep(Duration::from_millis(15)).await;
                }
            }
        }
        over.cancel();
    };
    let broker = tickr.app.broker();
    let (one, other, ()) = tokio::join!(load(broker, &over), load(broker, &over), kill);
    let (accepted, refused) = ([one.0, other.0].concat(), one.1 + other.1);
    let lost = assert_done(&tickr, &accepted).await;
    println!("{} jobs, {killed} connections killed, {refused} enqueues refused, {lost} claims lost", accepted.len());
    assert!(killed > 50 && accepted.len() > 50, "{killed} killed, {} accepted", accepted.len());
    // A killed connection is replaced and its work repeated. A client sees an error only if that fails three times in a
    // row.
    assert!(refused + lost as usize <= accepted.len() / 50, "{refused} refused, {lost} lost");
    tickr.stop().await;
}

/// Read the id in a row of the process list. Its type differs between servers.
fn number(row: &sqlx::mysql::MySqlRow) -> u64 {
    row.try_get::<u64, _>("Id").or_else(|_| row.try_get::<i64, _>("Id").map(|id| id as u64)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_lost_under_load_lose_nothing_and_double_nothing() {
    let behind = TestApp::start_alone(|_| {}, bystander).await;
    let proxy = Proxy::start(behind.config.mysql_url().unwrap().expose()).await;
    let through = |config: &mut Config| {
        config.mysql_url = Some(ServerUrl::mysql(&proxy.url()).unwrap());
        (config.workers, config.queues) = (16, vec!["default".into()]);
    };
    let runner = behind.another_with(through, Registry::new()).await;
    let over = CancellationToken::new();
    let mut looker = behind.mysql().await;
    let lose = async {
        while proxy.cuts() < 20 {
            // The commits of inserts and settles, and the writes of claims, which are not committed yet.
            for text in ["COMMIT", "BEGIN;UPDATE owed FORCE INDEX"] {
                let cuts = proxy.cuts();
                proxy.cut_after(text);
                eventually("an answer is lost", || async { (proxy.cuts() > cuts).then_some(()) }).await;
                // A call gives up after three losses, so wait until the calls so far have succeeded before the next
                // loss.
                let last: Option<Vec<u8>> =
                    sqlx::query_scalar("SELECT MAX(id) FROM jobs").fetch_one(&mut looker).await.unwrap();
                let (mut owed, cut) = (1, Instant::now());
                while owed > 0 {
                    assert!(cut.elapsed() < crate::support::DEADLINE, "{owed} jobs do not end");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    owed = sqlx::query_scalar("SELECT COUNT(*) FROM owed WHERE id <= ?")
                        .bind(&last)
                        .fetch_one(&mut looker)
                        .await
                        .unwrap();
                }
            }
        }
        over.cancel();
    };
    let broker = runner.broker();
    let (one, other, ()) = tokio::join!(load(broker, &over), load(broker, &over), lose);
    let (accepted, refused) = ([one.0, other.0].concat(), one.1 + other.1);
    let lost = assert_done(&behind, &accepted).await;
    println!("{} jobs, {} answers lost, {refused} enqueues refused, {lost} claims lost", accepted.len(), proxy.cuts());
    assert!(accepted.len() > 100, "{}", accepted.len());
    assert_eq!((refused, lost), (0, 0), "the next run of the call repairs each loss");
    assert_eq!(behind.count("SELECT COUNT(*) FROM jobs").await, accepted.len() as i64);
    runner.stop(CancellationToken::new()).await;
    behind.stop().await;
}

/// Hold the locks of `sql` for longer than any lock wait of tickr, while `work` runs.
async fn while_locked<T>(tickr: &TestApp, sql: &'static str, work: impl Future<Output = T>) -> T {
    let mut holder = tickr.mysql().await;
    let mut held = holder.begin().await.unwrap();
    held.execute(sql).await.unwrap();
    let release = async {
        // The sessions of tickr wait five seconds for a lock.
        tokio::time::sleep(Duration::from_millis(5_600)).await;
        held.rollback().await.unwrap();
    };
    let (done, ()) = tokio::join!(work, release);
    done
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_waits_that_time_out_leave_no_half_and_are_repeated() {
    let tickr = TestApp::start_with(|config| config.lease = Duration::from_secs(30), Registry::new()).await;
    let jobs = tickr.enqueue_many((0..8).map(|_| json!({"kind": "sleep", "payload": {"ms": 300}}))).await;
    // This job is due later, so that its row in the tallies is new when it ends.
    let waits = tickr.enqueue(json!({"kind": "noop", "queue": "mail", "delay_ms": 600_000})).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 4).await;
    // These are the last rows that a settle and a cancel write, so everything before them has to be undone and done
    // again.
    let cancelled = while_locked(&tickr, "SELECT * FROM tallies FOR UPDATE", async {
        let began = Instant::now();
        let answer = tickr.post(&format!("/v1/jobs/{waits}/cancel"), json!({})).await;
        (answer.status, began.elapsed())
    });
    let (status, took) = cancelled.await;
    assert_eq!(status, 200);
    println!("cancelled after {took:?}");
    assert!(took > Duration::from_secs(5), "it waited for the lock: {took:?}");
    tickr.until_idle().await;
    for id in &jobs {
        assert_eq!(tickr.verdicts(*id).await, ["succeeded"], "{id}");
    }
    tickr.assert_sound().await;

    // These are the first rows, so nothing is written before them.
    let next = tickr.enqueue_many((0..4).map(|_| json!({"kind": "sleep", "payload": {"ms": 300}}))).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 4).await;
    let path = format!("/v1/jobs/{}/cancel", next[0]);
    let answer = while_locked(&tickr, "SELECT * FROM owed FOR UPDATE", tickr.post(&path, json!({}))).await;
    assert!([202, 409].contains(&answer.status), "{:#}", answer.body);
    tickr.until_idle().await;
    for id in &next[1..] {
        assert_eq!(tickr.verdicts(*id).await, ["succeeded"], "{id}");
    }
    tickr.assert_sound().await;
    tickr.stop().await;
}

/// Make an account without special rights, because servers refuse such accounts first. Return the URL with its login.
async fn ordinary_url(tickr: &TestApp) -> String {
    ordinary_account(&mut tickr.mysql().await, tickr.config.mysql_url().unwrap().expose()).await
}

/// Make this account. `url` has the login of an administrator.
async fn ordinary_account(administrator: &mut MySqlConnection, url: &str) -> String {
    for host in ["localhost", "127.0.0.1"] {
        let sql = format!("CREATE USER app@'{host}'; GRANT ALL ON `t%`.* TO app@'{host}'");
        administrator.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
    }
    let (before, after) = url.split_once("://").unwrap().1.split_once('@').unwrap();
    assert!(before.starts_with("root"));
    format!("mysql://app@{after}")
}

/// Start a tickr that logs in with an account without special rights.
async fn ordinary(tickr: &TestApp, change: impl FnOnce(&mut Config)) -> App {
    let url = ServerUrl::mysql(&ordinary_url(tickr).await).unwrap();
    let change = |config: &mut Config| {
        config.mysql_url = Some(url);
        (config.workers, config.queues, config.lease) = (8, vec!["default".into()], Duration::from_secs(30));
        change(config);
    };
    tickr.another_with(change, Registry::new()).await
}

async fn ask(app: &App, path: &str) -> Answer {
    answer(http().get(format!("http://{}{path}", app.addr()))).await
}

async fn post(app: &App, path: &str, body: &Value) -> Answer {
    answer(http().post(format!("http://{}{path}", app.addr())).json(body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_server_is_an_outage_that_ends() {
    let tickr = TestApp::start_alone(|_| {}, bystander).await;
    let runner = ordinary(&tickr, |_| {}).await;
    let running = tickr.enqueue_many((0..4).map(|_| json!({"kind": "sleep", "payload": {"ms": 500}}))).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 4).await;
    tickr.sql("SET GLOBAL read_only = 1").await;
    assert_out(&post(&runner, "/v1/jobs", &json!({"kind": "noop"})).await);
    assert_out(&post(&runner, "/v1/jobs", &json!({"kind": "noop", "unique_key": "k"})).await);
    assert_out(&post(&runner, &format!("/v1/jobs/{}/cancel", running[0]), &json!({})).await);
    // Reads still work. Readiness fails, so that a load balancer chooses another runner.
    assert_eq!(ask(&runner, &format!("/v1/jobs/{}", running[0])).await.status, 200);
    let ready = ask(&runner, "/readyz").await;
    assert_eq!((ready.status, &ready.body["mysql"]), (503, &json!(false)));
    // A start does not take it for a missing right.
    runner.broker().store().check_rights().await.unwrap();
    // Jobs that become due meanwhile are not claimed and dropped again and again. (The administrator may still write.)
    let due = tickr.enqueue_many((0..100).map(|_| json!({"kind": "noop"}))).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts").await, 0);

    tickr.sql("SET GLOBAL read_only = 0").await;
    let back = Instant::now();
    for id in running.iter().chain(&due) {
        tickr.until(*id, State::Completed).await;
    }
    assert!(back.elapsed() < Duration::from_secs(10), "{:?}", back.elapsed());
    tickr.assert_each_ran_once(104).await;
    assert_eq!(ask(&runner, "/readyz").await.status, 200);
    runner.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

/// Without a write no heartbeat is written, so the figures of runners show a fleet that is dead. The alerts about them
/// leave out runners whose `tickr_up` is 0 (`metrics::a_runner_that_is_cut_off_takes_part_in_no_alert_about_the_fleet`).
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_no_writes_is_down_in_the_metrics() {
    let tickr = TestApp::start_alone(|_| {}, bystander).await;
    let url = ordinary_url(&tickr).await;
    // A process of its own, because the metrics of this one have those of other tests as well.
    let runner = Runner::start(&tickr, &[("TICKR_MYSQL_URL", url.as_str())]);
    let base = runner.base().await;
    let figure = async |series: &str| -> Option<f64> {
        let page = http().get(format!("{base}/metrics")).send().await.unwrap().text().await.unwrap();
        page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    };
    let up = "tickr_up{server=\"mysql\"}";
    tickr.sql("SET GLOBAL read_only = 1").await;
    // The first reading sets it before these, and the counts go on: only writes are refused.
    for read in ["tickr_runners", "tickr_oldest_due_seconds"] {
        eventually(read, || async { figure(read).await.map(drop) }).await;
        assert_eq!(figure(up).await, Some(0.0), "{}", runner.log());
    }
    tickr.sql("SET GLOBAL read_only = 0").await;
    eventually("MySQL is up again", || async { (figure(up).await == Some(1.0)).then_some(()) }).await;
    drop(runner);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_is_removed_during_an_outage_holds_no_job_up_after_it() {
    // Within a minute, so that the next job is let go, and longer than this test takes.
    const PERIOD_MS: u64 = 55_000;
    let own = Services::start(&server_options()).unwrap();
    let name = unique_name();
    let url = own.mysql_url(&name);
    Store::create_database(&url).await.unwrap();
    let settings = StoreSettings { url: url.clone(), connections: 6, flushers: 1, table_prefix: table_prefix() };
    let store = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
    store.migrate().await.unwrap();
    store.close().await;
    let mut administrator = connect(&url).await;
    let account = ServerUrl::mysql(&ordinary_account(&mut administrator, &url).await).unwrap();
    // This runner is alone: another one with a login that may write would sweep in its place.
    let change = |config: &mut Config| {
        (config.mysql_url, config.lease) = (Some(account), Duration::from_secs(30));
    };
    let tickr = TestApp::start_in(own, &name, change).await;
    set_and_wait(&tickr, "l", json!({"rate": {"starts": 1, "period_ms": PERIOD_MS, "burst": 0}})).await;
    tickr.enqueue_many((0..2).map(|_| json!({"kind": "noop", "limit_key": "a"}))).await;
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'", 1).await;
    // The other one is let go with the due time of its turn.
    tickr.until_count("SELECT COUNT(*) FROM limit_slots WHERE kept_until IS NOT NULL", 1).await;

    // The runner learns of the outage when this job ends.
    let ends = tickr.enqueue(json!({"kind": "sleep", "payload": {"ms": 1_000}})).await;
    tickr.until(ends, State::Executing).await;
    administrator.execute("SET GLOBAL read_only = 1").await.unwrap();
    administrator.execute("DELETE FROM limits WHERE name = 'l'").await.unwrap();
    // Reads work, so several summaries of changes come meanwhile, about one in a second. The first two show the change.
    tokio::time::sleep(Duration::from_secs(5)).await;
    administrator.execute("SET GLOBAL read_only = 0").await.unwrap();
    tickr.until_idle().await;
    let took = tickr.count("SELECT TIMESTAMPDIFF(SECOND, MIN(started_at), MAX(started_at)) FROM attempts").await;
    assert!(took < 40, "{took} s: at its turn");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_free_connection_is_an_outage_that_ends() {
    let tickr = TestApp::start_alone(|_| {}, bystander).await;
    let runner = ordinary(&tickr, |_| {}).await;
    let running = tickr.enqueue_many((0..4).map(|_| json!({"kind": "sleep", "payload": {"ms": 500}}))).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 4).await;
    // The limit is as low as a server allows. Other sessions take all connections, and then those of the runner are
    // closed.
    let mut own = tickr.mysql().await;
    let mut others = Vec::new();
    for _ in 0..10 {
        others.push(tickr.mysql().await);
    }
    own.execute("SET GLOBAL max_connections = 10").await.unwrap();
    for row in own.fetch_all("SHOW PROCESSLIST").await.unwrap() {
        if row.try_get::<String, _>("User").unwrap() == "app" {
            let _ = own.execute(AssertSqlSafe(format!("KILL {}", number(&row)))).await;
        }
    }
    assert_out(&post(&runner, "/v1/jobs", &json!({"kind": "noop"})).await);
    assert_out(&ask(&runner, &format!("/v1/jobs/{}", running[0])).await);
    assert_eq!(ask(&runner, "/readyz").await.status, 503);
    own.execute("SET GLOBAL max_connections = 500").await.unwrap();
    for id in &running {
        tickr.until(*id, State::Completed).await;
    }
    eventually("the runner is ready", || async { (ask(&runner, "/readyz").await.status == 200).then_some(()) }).await;
    let answer = post(&runner, "/v1/jobs", &json!({"kind": "noop"})).await;
    assert_eq!(answer.status, 201, "{:#}", answer.body);
    tickr.until_idle().await;
    tickr.assert_each_ran_once(5).await;
    runner.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_binary_log_would_refuse_every_write_is_refused_at_the_start() {
    let options = server_options();
    let options = ["--log-bin=binlog", "--server-id=1", "--binlog-format=STATEMENT"]
        .into_iter()
        .fold(options, Options::mysql_flag);
    let own = Services::start(&options).unwrap();
    let url = own.mysql_url("statement");
    Store::create_database(&url).await.unwrap();
    let settings = StoreSettings { url, connections: 2, flushers: 1, table_prefix: table_prefix() };
    let refused = Store::connect(&settings, Duration::from_secs(10)).await.unwrap_err();
    assert!(!refused.is_transient(), "{refused}");
    let said = refused.to_string();
    assert!(said.contains("binlog_format is STATEMENT") && said.contains("ROW"), "{said}");
    // With row format, the binary log is accepted.
    let mut root = crate::support::connect(&own.mysql_url("statement")).await;
    root.execute("SET GLOBAL binlog_format = 'ROW'").await.unwrap();
    let store = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
    store.migrate().await.unwrap();
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn results_outlive_a_password_that_is_changed_while_they_come() {
    let tickr = TestApp::start_alone(|_| {}, bystander).await;
    let runner = ordinary(&tickr, |config| config.workers = 20).await;
    let running = tickr.enqueue_many((0..20).map(|_| json!({"kind": "sleep", "payload": {"ms": 1_500}}))).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 20).await;
    let password = async |password: &str| {
        for host in ["localhost", "127.0.0.1"] {
            tickr.sql(format!("ALTER USER app@'{host}' IDENTIFIED BY '{password}'")).await;
        }
    };
    let mut own = tickr.mysql().await;
    password("another").await;
    let changed = Instant::now();
    for row in own.fetch_all("SHOW PROCESSLIST").await.unwrap() {
        if row.try_get::<String, _>("User").unwrap() == "app" {
            let _ = own.execute(AssertSqlSafe(format!("KILL {}", number(&row)))).await;
        }
    }
    // For clients it is an outage as well.
    assert_out(&post(&runner, "/v1/jobs", &json!({"kind": "noop"})).await);
    assert_out(&post(&runner, "/v1/jobs", &json!({"kind": "noop", "unique_key": "k"})).await);
    assert_out(&ask(&runner, &format!("/v1/jobs/{}", running[0])).await);
    assert_eq!(ask(&runner, "/readyz").await.status, 503);
    tokio::time::sleep_until(changed + Duration::from_secs(5)).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts").await, 0, "no runner could write a result");
    password("").await;
    for id in &running {
        tickr.until(*id, State::Completed).await;
        assert_eq!(tickr.verdicts(*id).await, ["succeeded"], "{id}");
    }
    tickr.assert_each_ran_once(20).await;
    runner.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

/// Errors with which servers and proxies refuse a connection: a wrong password, a host that may not connect, a host
/// that is blocked after errors, a database that is not there, and a proxy without a backend.
const CONNECTION_ERRORS: [u16; 5] = [1045, 1130, 1129, 1049, 9002];

#[tokio::test(flavor = "multi_thread")]
async fn results_outlive_each_error_with_which_connections_are_refused() {
    let behind = TestApp::start_alone(|_| {}, bystander).await;
    let proxy = Proxy::start(behind.config.mysql_url().unwrap().expose()).await;
    let through = |config: &mut Config| {
        config.mysql_url = Some(ServerUrl::mysql(&proxy.url()).unwrap());
        (config.workers, config.queues, config.lease) = (4, vec!["default".into()], Duration::from_secs(30));
    };
    let runner = behind.another_with(through, Registry::new()).await;
    let mut own = behind.mysql().await;
    let own_id: u64 = sqlx::query_scalar("SELECT CONNECTION_ID()").fetch_one(&mut own).await.unwrap();
    let mut done = 0;
    for error in CONNECTION_ERRORS {
        let sleep = json!({"kind": "sleep", "payload": {"ms": 1_500}});
        let running = behind.enqueue_many((0..4).map(|_| sleep.clone())).await;
        behind.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 4).await;
        let refused = proxy.refused_connections();
        proxy.refuse_connections(error);
        let began = Instant::now();
        for row in own.fetch_all("SHOW PROCESSLIST").await.unwrap() {
            if number(&row) != own_id && row.try_get::<String, _>("Command").unwrap() != "Daemon" {
                let _ = own.execute(AssertSqlSafe(format!("KILL {}", number(&row)))).await;
            }
        }
        eventually("the runner is turned away", || async { (proxy.refused_connections() > refused + 2).then_some(()) })
            .await;
        assert_out(&post(&runner, "/v1/jobs", &json!({"kind": "noop"})).await);
        // The jobs end meanwhile.
        tokio::time::sleep_until(began + Duration::from_millis(1_900)).await;
        assert!(behind.count("SELECT COUNT(*) FROM attempts").await < done + 4, "{error}: a result came through");
        proxy.let_in();
        for id in &running {
            behind.until(*id, State::Completed).await;
            assert_eq!(behind.verdicts(*id).await, ["succeeded"], "{error}: {id}");
        }
        done += 4;
    }
    behind.assert_each_ran_once(done).await;
    runner.stop(CancellationToken::new()).await;
    behind.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn results_outlive_a_right_that_is_taken_away_while_they_come() {
    let tickr = TestApp::start_alone(|_| {}, bystander).await;
    let url = ordinary_url(&tickr).await;
    let env = [("TICKR_MYSQL_URL", url.as_str()), ("TICKR_LEASE", "30s"), ("TICKR_WORKERS", "8")];
    let mut runner = Runner::start(&tickr, &env);
    let running = tickr.enqueue_many((0..4).map(|_| json!({"kind": "sleep", "payload": {"ms": 1_500}}))).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 4).await;
    let rights = async |change: &str| {
        for host in ["localhost", "127.0.0.1"] {
            tickr.sql(format!("{change} app@'{host}'")).await;
        }
    };
    rights("REVOKE INSERT ON `t%`.* FROM").await;
    // A session keeps the rights in its database that it had when it connected.
    let mut own = tickr.mysql().await;
    for row in own.fetch_all("SHOW PROCESSLIST").await.unwrap() {
        if row.try_get::<String, _>("User").unwrap() == "app" {
            let _ = own.execute(AssertSqlSafe(format!("KILL {}", number(&row)))).await;
        }
    }
    // MySQL refuses all four, and the runner says so once for each.
    eventually_seen("four results are refused", async || {
        let log = runner.log();
        let refused = |line: &&str| line.contains(" job=") && line.contains("INSERT command denied");
        if log.lines().filter(refused).count() >= 4 { Ok(()) } else { Err(log) }
    })
    .await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts").await, 0, "no runner could write a result");
    rights("GRANT INSERT ON `t%`.* TO").await;
    for id in &running {
        tickr.until(*id, State::Completed).await;
        assert_eq!(tickr.verdicts(*id).await, ["succeeded"], "{id}");
    }
    tickr.assert_each_ran_once(4).await;
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0), "{}", runner.log());
    tickr.stop().await;
}

/// Errors of servers, clusters and proxies that can write nothing now and may be able to later: a proxy without a
/// backend, a proxy or a cluster's gate with an error of its own, a group that lost its quorum, a binary log whose disk
/// is full.
const FOREIGN_ERRORS: [u16; 5] = [9001, 1105, 3100, 1026, 1598];

#[tokio::test(flavor = "multi_thread")]
async fn errors_that_tickr_does_not_know_are_outages_that_lose_no_result_and_double_nothing() {
    let behind = TestApp::start_alone(|_| {}, bystander).await;
    let proxy = Proxy::start(behind.config.mysql_url().unwrap().expose()).await;
    let through = |config: &mut Config| {
        config.mysql_url = Some(ServerUrl::mysql(&proxy.url()).unwrap());
        (config.workers, config.queues, config.lease) = (16, vec!["default".into()], Duration::from_secs(30));
    };
    let runner = behind.another_with(through, Registry::new()).await;
    let over = CancellationToken::new();
    let faults = async {
        for error in FOREIGN_ERRORS {
            // First the commit is refused and not done, then refused but done. After that, BEGIN is refused.
            proxy.refuse("COMMIT", error, 9);
            eventually("commits are refused", || async { proxy.is_through().then_some(()) }).await;
            proxy.refuse_what_is_done("COMMIT", error, 2);
            eventually("commits are made and refused", || async { proxy.is_through().then_some(()) }).await;
            proxy.refuse("BEGIN", error, 30);
            eventually("transactions are refused", || async { proxy.is_through().then_some(()) }).await;
            // The next error comes when the callers were let in again.
            let known = behind.count("SELECT COUNT(*) FROM jobs").await;
            eventually("jobs are accepted again", || async {
                (behind.count("SELECT COUNT(*) FROM jobs").await > known + 3).then_some(())
            })
            .await;
        }
        over.cancel();
    };
    let broker = runner.broker();
    let (one, other, ()) = tokio::join!(load(broker, &over), load(broker, &over), faults);
    let (accepted, refused) = ([one.0, other.0].concat(), one.1 + other.1);
    let lost = assert_done(&behind, &accepted).await;
    println!("{} jobs, {refused} enqueues refused, {lost} attempts lost", accepted.len());
    assert!(accepted.len() > 10 && refused > 0, "{} {refused}", accepted.len());
    assert_eq!(lost, 0, "no result was thrown away");
    runner.stop(CancellationToken::new()).await;
    behind.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_waits_for_as_long_as_mysql_takes_none_and_no_longer_than_its_job_is_there() {
    let behind = TestApp::start_alone(|_| {}, bystander).await;
    let proxy = Proxy::start(behind.config.mysql_url().unwrap().expose()).await;
    let through = |config: &mut Config| {
        config.mysql_url = Some(ServerUrl::mysql(&proxy.url()).unwrap());
        (config.workers, config.queues, config.lease) = (2, vec!["default".into()], Duration::from_secs(30));
    };
    let runner = behind.another_with(through, Registry::new()).await;
    let sleep = json!({"kind": "sleep", "payload": {"ms": 2_000}});
    let jobs = behind.enqueue_many([sleep.clone(), sleep]).await;
    behind.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 2).await;
    // The gate of a cluster refuses every commit, and all other statements work.
    proxy.refuse("COMMIT", 3100, usize::MAX);
    let answer = post(&runner, "/v1/jobs", &json!({"kind": "noop"})).await;
    assert_out(&answer);
    // Readiness depends on a commit as well.
    let ready = ask(&runner, "/readyz").await;
    assert_eq!((ready.status, &ready.body["status"]), (503, &json!("store_unavailable")));
    // An operator deletes one of the two jobs meanwhile.
    let hex = jobs[0].uuid().simple();
    behind.sql(format!("DELETE FROM owed WHERE id = x'{hex}'; DELETE FROM jobs WHERE id = x'{hex}'")).await;
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    assert_eq!(behind.count("SELECT COUNT(*) FROM attempts").await, 0);
    proxy.pass();
    eventually("the runner is ready", || async { (ask(&runner, "/readyz").await.status == 200).then_some(()) }).await;
    behind.until(jobs[1], State::Completed).await;
    assert_eq!(behind.verdicts(jobs[1]).await, ["succeeded"]);
    // Both workers are free again: two jobs run at the same time.
    let next = behind.enqueue_many((0..2).map(|_| json!({"kind": "sleep", "payload": {"ms": 2_500}}))).await;
    behind.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 2).await;
    for id in next {
        behind.until(id, State::Completed).await;
    }
    assert_eq!(behind.count("SELECT COUNT(*) FROM attempts WHERE verdict <> 'succeeded'").await, 0);
    runner.stop(CancellationToken::new()).await;
    behind.stop_broken("rows were deleted behind the back of a runner").await;
}

/// Lets a runner log each claim that fails. At the level `info` it logs one of them in thirty seconds.
const EACH_CLAIM: (&str, &str) = ("TICKR_LOG", "info,tickr_engine=debug");

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_whose_commits_are_refused_fetches_no_job_until_one_succeeds() {
    const DUE: usize = 200;
    let behind = TestApp::start_alone(|_| {}, bystander).await;
    let proxy = Proxy::start(behind.config.mysql_url().unwrap().expose()).await;
    let url = proxy.url();
    let env = [("TICKR_MYSQL_URL", url.as_str()), ("TICKR_LEASE", "30s"), ("TICKR_WORKERS", "8"), EACH_CLAIM];
    let mut runner = Runner::start(&behind, &env);
    runner.base().await;
    let first = behind.enqueue(json!({"kind": "noop"})).await;
    behind.until(first, State::Completed).await;
    proxy.refuse("COMMIT", 3100, usize::MAX);
    let due = behind.enqueue_many((0..DUE).map(|_| json!({"kind": "noop"}))).await;
    runner.until_log("cannot claim a job").await;
    // A runner that takes MySQL for mended at once would try each of the jobs in this time.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let tried = runner.log().matches("cannot claim a job").count();
    println!("{tried} of {DUE} jobs were tried");
    assert!(tried < DUE / 5, "{tried} jobs were tried");
    assert_eq!(behind.count("SELECT COUNT(*) FROM attempts").await, 1);
    proxy.pass();
    for id in &due {
        behind.until(*id, State::Completed).await;
    }
    assert_eq!(behind.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'").await, 1 + DUE as i64);
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0), "{}", runner.log());
    behind.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_whose_claims_alone_are_refused_slows_down_until_one_succeeds() {
    const DUE: usize = 200;
    let behind = TestApp::start_alone(|_| {}, bystander).await;
    let proxy = Proxy::start(behind.config.mysql_url().unwrap().expose()).await;
    let url = proxy.url();
    let env = [("TICKR_MYSQL_URL", url.as_str()), ("TICKR_LEASE", "30s"), ("TICKR_WORKERS", "8"), EACH_CLAIM];
    let mut runner = Runner::start(&behind, &env);
    runner.base().await;
    let first = behind.enqueue(json!({"kind": "noop"})).await;
    behind.until(first, State::Completed).await;
    // The account has lost a right on this table. The write of a probe needs another one.
    proxy.refuse("INSERT INTO claim_batches", 1142, usize::MAX);
    let due = behind.enqueue_many((0..DUE).map(|_| json!({"kind": "noop"}))).await;
    runner.until_log("cannot claim a job").await;
    // A runner without a pause tries each of the jobs in this time.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let log = runner.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("cannot claim a job")).collect();
    let warnings = lines.iter().filter(|line| line.contains("WARN")).count();
    println!("{} of {DUE} jobs were tried, {warnings} warnings", lines.len());
    assert!(lines.len() < DUE / 2, "{} jobs were tried", lines.len());
    assert_eq!(warnings, 1, "{log}");
    proxy.pass();
    for id in &due {
        behind.until(*id, State::Completed).await;
    }
    assert_eq!(behind.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'").await, 1 + DUE as i64);
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0), "{}", runner.log());
    behind.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_whose_results_find_no_room_is_not_ready_and_fetches_no_job() {
    let behind = TestApp::start_alone(|_| {}, bystander).await;
    let proxy = Proxy::start(behind.config.mysql_url().unwrap().expose()).await;
    let url = proxy.url();
    // Verdicts of 64 jobs may wait in such a runner while it runs eight more.
    let env = [("TICKR_MYSQL_URL", url.as_str()), ("TICKR_LEASE", "30s"), ("TICKR_WORKERS", "8")];
    let mut runner = Runner::start(&behind, &env);
    let base = runner.base().await;
    let client = http();
    let ready = async || answer(client.get(format!("{base}/readyz"))).await.status;
    eventually("the runner is ready", || async { (ready().await == 200).then_some(()) }).await;
    // The disk has no room for new rows. A change of a row that is there needs none.
    proxy.refuse("INSERT INTO attempts", 1114, usize::MAX);
    let due = behind.enqueue_many((0..100).map(|_| json!({"kind": "sleep", "payload": {"ms": 150}}))).await;
    runner.until_log("cannot settle yet").await;
    eventually("the runner is not ready", || async { (ready().await == 503).then_some(()) }).await;
    let claimed = async || behind.count("SELECT COUNT(*) FROM owed WHERE state = 'executing'").await;
    let before = claimed().await;
    // Waiting verdicts are tried again each two seconds, and each time the write of a probe succeeds.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let after = claimed().await;
    println!("{before} jobs were claimed, {after} after a while");
    // Eight claims may have been under way.
    assert!(after <= before + 8, "{before} jobs were claimed, {after} after a while");
    assert_eq!(ready().await, 503);
    proxy.pass();
    for id in &due {
        behind.until(*id, State::Completed).await;
    }
    eventually("the runner is ready", || async { (ready().await == 200).then_some(()) }).await;
    behind.assert_each_ran_once(100).await;
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0), "{}", runner.log());
    behind.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_that_wait_in_mysql_take_one_connection_from_the_loops() {
    let tickr = TestApp::start_alone(|_| {}, bystander).await;
    assert_eq!(tickr.get("/readyz").await.status, 200);
    // The table of the row that a probe changes. Nothing else uses it here.
    let mut session = tickr.mysql().await;
    session.execute(sqlx::raw_sql("LOCK TABLES cluster_locks WRITE")).await.unwrap();
    let over = CancellationToken::new();
    let probes = async {
        while !over.is_cancelled() {
            let _ = tickr.get("/readyz").await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let looks = async {
        eventually("a probe hears of it", || async { (tickr.get("/readyz").await.status == 503).then_some(()) }).await;
        // A probe is given up by its caller after two seconds. In this time three more callers come.
        tokio::time::sleep(Duration::from_secs(7)).await;
        // Other loops use a connection for a moment.
        eventually_seen("one connection at most is in use", || async {
            let pools = tickr.app.broker().store().pool_use();
            let loops = pools.iter().find(|pool| pool.pool == "loops").unwrap();
            if loops.busy <= 1 { Ok(()) } else { Err(format!("{loops:?}")) }
        })
        .await;
        over.cancel();
    };
    tokio::join!(probes, looks);
    session.execute(sqlx::raw_sql("UNLOCK TABLES")).await.unwrap();
    eventually("the runner is ready", || async { (tickr.get("/readyz").await.status == 200).then_some(()) }).await;
    tickr.stop().await;
}

/// Return server defaults that change the meaning of statements, turn autocommit off, or leave little room.
fn strange_defaults() -> Vec<&'static str> {
    let mode = if std::env::var_os("TICKR_MYSQLD").is_some_and(|path| !path.is_empty()) {
        "--sql-mode=ANSI,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE"
    } else {
        "--sql-mode=ORACLE,EMPTY_STRING_IS_NULL,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE"
    };
    vec![
        mode,
        "--autocommit=0",
        "--completion-type=1",
        "--max-allowed-packet=1M",
        "--max-prepared-stmt-count=100",
        "--lock-wait-timeout=100000",
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_own_defaults_change_nothing_and_its_limits_are_kept() {
    let tickr = TestApp::start_on_servers_with(&strange_defaults(), |_| {}, |config| config.workers = 16).await;
    // One request is larger than a packet, and many requests at once are as large together.
    let text = "x".repeat(450);
    let small = (0..500).map(|n| json!({"kind": "noop", "payload": {"n": n, "text": text}}));
    let batch = tickr.post("/v1/jobs/batch", json!({"jobs": small.collect::<Vec<_>>()})).await;
    assert_eq!(batch.status, 201, "{:#}", batch.body);
    let large = "\u{e4}".repeat(100_000);
    let calls = (0..20).map(|n| {
        let key = (n % 4 == 0).then(|| format!("k{n}"));
        let job = json!({"kind": "noop", "payload": {"text": large}, "unique_key": key});
        tickr.post("/v1/jobs", job)
    });
    for answer in futures_util::future::join_all(calls).await {
        assert_eq!(answer.status, 201, "{:#}", answer.body);
    }
    // Quotes and backslashes keep their meaning for tickr, and an empty text is not NULL.
    let odd = json!({"kind": "noop", "payload": {"text": "it's \\ \"x\" || '' `y`"}, "unique_key": "o'c\\\""});
    let id = tickr.enqueue(odd.clone()).await;
    assert_eq!(tickr.until(id, State::Completed).await["payload"], odd["payload"]);
    tickr.until_idle().await;
    tickr.assert_each_ran_once(521).await;
    // Acknowledged changes were committed, so every other session sees them.
    let schedule = json!({"every_ms": 3_600_000, "kind": "noop"});
    let put = tickr.put("/v1/schedules/hourly", &schedule).await;
    assert!(put.status < 300, "{:#}", put.body);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM schedules").await, 1);
    // The same holds for writes outside transactions, such as the row of the runner.
    tickr.until_count("SELECT COUNT(*) FROM runners", 1).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_charset_and_a_time_zone_of_the_mysql_url_change_no_text_and_no_time() {
    let mut plain = String::new();
    let with_both = |config: &mut Config| {
        config.mysql_url().unwrap().expose().clone_into(&mut plain);
        let and = if plain.contains('?') { '&' } else { '?' };
        let url = format!("{plain}{and}charset=latin1&timezone=-05:00");
        config.mysql_url = Some(ServerUrl::mysql(&url).unwrap());
    };
    let tickr = TestApp::start_with(with_both, Registry::new()).await;
    let mut app = connect(&plain).await;
    let (good, bad) = (uuid::Uuid::now_v7(), uuid::Uuid::now_v7());
    let payload = json!({"text": "\u{142}\u{1f600}"});
    for (id, payload) in [(good, payload.to_string()), (bad, "no JSON \u{142}\u{1f600}".to_owned())] {
        let sql = "INSERT INTO tickr_outbox (id, kind, payload) VALUES (?, 'noop', ?)";
        sqlx::query(sql).bind(id).bind(payload).execute(&mut app).await.unwrap();
    }
    let path = format!("/v1/jobs/{good}");
    let job = eventually("the row is a job", async || {
        let job = tickr.get(&path).await;
        (job.status == 200).then_some(job.body)
    })
    .await;
    assert_eq!(job["payload"], payload, "{job:#}");
    let rejected = eventually("the other row is rejected", async || {
        let page = tickr.get("/v1/outbox/rejected").await.body;
        page["data"].as_array().unwrap().first().cloned()
    })
    .await;
    assert_eq!((&rejected["id"], &rejected["payload"]), (&json!(bad), &json!("no JSON \u{142}\u{1f600}")));
    // A session of another time zone would tell when it was inserted five hours off.
    let at: chrono::DateTime<chrono::Utc> = rejected["created_at"].as_str().unwrap().parse().unwrap();
    assert!((chrono::Utc::now() - at).abs() < chrono::TimeDelta::hours(1), "{rejected:#}");
    tickr.stop().await;
}

/// Time for which a table is locked as an ALTER or a backup locks it: as long as it takes a claim to be given up, when
/// it waits for as long as a run of it may.
const TABLE_LOCKED: Duration = Duration::from_secs(28);
/// Longest wait for such a lock: ten seconds, and three for a busy machine. A run is given up only after 15 s.
const MAX_TABLE_WAIT_SECONDS: u64 = 13;

#[tokio::test(flavor = "multi_thread")]
async fn no_statement_waits_for_a_locked_table_for_longer_than_its_caller() {
    // By the server's own default, statements would wait for a day. On other machines a lease ends meanwhile.
    let busy = |config: &mut Config| (config.workers, config.lease) = (16, Duration::from_secs(90));
    let tickr = TestApp::start_on_servers_with(&["--lock-wait-timeout=100000"], |_| {}, busy).await;
    let over = CancellationToken::new();
    let (mut longest, mut most) = (0, 0);
    let lock = async {
        let mut own = tickr.mysql().await;
        let id: u64 = sqlx::query_scalar("SELECT CONNECTION_ID()").fetch_one(&mut own).await.unwrap();
        own.execute(sqlx::raw_sql("LOCK TABLES owed WRITE")).await.unwrap();
        let locked = Instant::now();
        while locked.elapsed() < TABLE_LOCKED {
            let sessions = own.fetch_all(sqlx::raw_sql("SHOW PROCESSLIST")).await.unwrap();
            let waits = sessions.iter().filter(|row| {
                let state: Option<String> = row.try_get("State").unwrap();
                number(row) != id && state.is_some_and(|state| state.starts_with("Waiting for table metadata lock"))
            });
            let seconds: Vec<u64> = waits.map(waited).collect();
            most = most.max(seconds.len());
            longest = longest.max(seconds.into_iter().max().unwrap_or(0));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        own.execute(sqlx::raw_sql("UNLOCK TABLES")).await.unwrap();
        over.cancel();
    };
    let broker = tickr.app.broker();
    let (one, other, ()) = tokio::join!(load(broker, &over), load(broker, &over), lock);
    println!("{most} sessions waited at once, the longest for {longest} s");
    assert!(most > 1 && longest > 4, "{most} sessions waited, the longest for {longest} s");
    assert!(longest <= MAX_TABLE_WAIT_SECONDS, "a statement waited for {longest} s");
    let lost = assert_done(&tickr, &[one.0, other.0].concat()).await;
    assert_eq!(lost, 0, "the leases were longer");
    tickr.stop().await;
}

/// Read for how many seconds a session in the process list has done what it does. The type differs between servers.
fn waited(row: &sqlx::mysql::MySqlRow) -> u64 {
    let seconds = row.try_get::<i32, _>("Time").map(i64::from).or_else(|_| row.try_get::<i64, _>("Time"));
    seconds.unwrap().unsigned_abs()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_carry_the_largest_job_is_refused_at_the_start() {
    let tickr = TestApp::start_alone(|_| {}, bystander).await;
    tickr.sql("SET GLOBAL max_allowed_packet = 524288").await;
    let refused = App::start(&tickr.config, Registry::new()).await.unwrap_err().to_string();
    assert!(refused.contains("max_allowed_packet is 524288 bytes") && refused.contains("body_limit"), "{refused}");
    let mut small = tickr.config.clone();
    small.body_limit_bytes = 64 << 10;
    App::start(&small, Registry::new()).await.unwrap().stop(CancellationToken::new()).await;
    tickr.sql("SET GLOBAL max_allowed_packet = 16777216; SET GLOBAL max_prepared_stmt_count = 10").await;
    let refused = App::start(&tickr.config, Registry::new()).await.unwrap_err().to_string();
    assert!(refused.contains("max_prepared_stmt_count is 10"), "{refused}");
    tickr.sql("SET GLOBAL max_prepared_stmt_count = 16382").await;
    tickr.stop().await;
}

/// Other programs may take all the room that the server has for prepared statements.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_accepted_and_run_while_the_server_prepares_no_statement() {
    let tickr = TestApp::start_alone(|_| {}, |config| config.workers = 256).await;
    tickr.sql("SET GLOBAL max_prepared_stmt_count = 0").await;
    for _ in 0..5 {
        tickr.enqueue_many((0..1_000).map(|_| json!({"kind": "noop"}))).await;
        let mut own = tickr.mysql().await;
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while own.fetch_one("SELECT COUNT(*) FROM owed").await.unwrap().get::<i64, _>(0) > 0 {
            assert!(tokio::time::Instant::now() < deadline, "the jobs do not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    tickr.sql("SET GLOBAL max_prepared_stmt_count = 16382").await;
    tickr.assert_each_ran_once(5_000).await;
    tickr.stop().await;
}

/// A runner that could not read the API keys would accept a revoked one for ten seconds, and then none.
#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_is_refused_while_the_server_prepares_no_statement() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    let base = tickr.url("");
    let kept = make_api_key(&base, "", "kept", json!({"scope": "admin"})).await;
    let revoked = make_api_key(&base, &kept, "revoked", json!({"scope": "admin"})).await;
    let status = async |key: &str| answer(http().get(tickr.url("/v1/whoami")).bearer_auth(key)).await.status;
    assert_eq!((status(&kept).await, status(&revoked).await), (200, 200));
    // New connections have no statement that was prepared earlier.
    let mut own = tickr.mysql().await;
    own.execute("SET GLOBAL max_prepared_stmt_count = 0").await.unwrap();
    let others = "SELECT CAST(CONCAT('KILL ', id) AS CHAR) FROM information_schema.processlist \
                  WHERE db = DATABASE() AND id <> CONNECTION_ID()";
    for row in own.fetch_all(others).await.unwrap() {
        // It may have ended by itself.
        own.execute(AssertSqlSafe(row.get::<String, _>(0))).await.ok();
    }
    own.execute("UPDATE api_keys SET revoked_at = UTC_TIMESTAMP(6), revoked_by = 'test' WHERE name = 'revoked'")
        .await
        .unwrap();
    eventually_seen("the revoked key is refused", async || match status(&revoked).await {
        401 => Ok(()),
        other => Err(other),
    })
    .await;
    assert_eq!(status(&kept).await, 200);
    own.execute("SET GLOBAL max_prepared_stmt_count = 16382").await.unwrap();
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_room_for_prepared_statements_is_taken_is_used_without_new_connections_all_the_time() {
    let tickr = TestApp::start_alone(|_| {}, |config| config.workers = 256).await;
    let wave = async || {
        let keyed = (0..40).map(|n| json!({"kind": "noop", "unique_key": format!("{n}"), "tags": ["t"]}));
        tickr.enqueue_many(keyed.chain((0..200).map(|_| json!({"kind": "noop"})))).await;
        // All checks use one connection, because a connection for each check would be counted as well.
        let mut own = tickr.mysql().await;
        let deadline = tokio::time::Instant::now() + 2 * DEADLINE;
        while own.fetch_one("SELECT COUNT(*) FROM owed").await.unwrap().get::<i64, _>(0) > 0 {
            assert!(tokio::time::Instant::now() < deadline, "the jobs do not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let row = own.fetch_one("SHOW GLOBAL STATUS LIKE 'Connections'").await.unwrap();
        row.try_get::<String, _>(1).unwrap().parse::<i64>().unwrap()
    };
    wave().await;
    tickr.sql("SET GLOBAL max_prepared_stmt_count = 40").await;
    // Each time that the server refuses a statement, new connections keep half as many. On a busy machine a loop may come
    // late to its first statement, so the waves go on until two of them in a row open hardly a connection.
    let mut connections = vec![wave().await];
    let quiet = |connections: &[i64]| match *connections {
        [.., first, _, last] => last - first < 30,
        _ => false,
    };
    while !quiet(&connections) {
        assert!(connections.len() < 12, "connections are opened over and over: {connections:?}");
        connections.push(wave().await);
    }
    println!("{connections:?}");
    tickr.sql("SET GLOBAL max_prepared_stmt_count = 16382").await;
    tickr.assert_each_ran_once(240 * (1 + i64::try_from(connections.len()).unwrap())).await;
    tickr.stop().await;
}
