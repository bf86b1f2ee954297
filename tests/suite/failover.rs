//! A replica of MySQL is promoted that did not have the last commits: what that costs, and what it does not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Executor, MySqlConnection, Row};
use tickr::app::App;
use tickr::config::{Config, ServerUrl};
use tickr::event::Event;
use tickr::handlers::{Context, Kind, Output, Registry};
use tickr::job::{JobId, State};
use tickr::services::{Address, Services, Transport};
use tickr::store::{OutboxSource, Store, StoreSettings};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::support::limits::{MOST_AT_ONCE, set_and_wait};
use crate::support::{
    Proxy, Relay, Runner, TestApp, answer, connect, drop_database, eventually, http, migrated_database, server_options,
    table_prefix,
};

/// A job that counts its executions by its name.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Counted {
    name: String,
    #[serde(default)]
    ms: u64,
}

impl Kind for Counted {
    const NAME: &'static str = "counted";
}

/// Executions by the name of the job.
type Runs = Arc<Mutex<BTreeMap<String, usize>>>;

fn counted(runs: &Runs) -> Registry {
    let runs = Arc::clone(runs);
    let mut kinds = Registry::new();
    kinds.register(move |job: Counted, _: Context| {
        *runs.lock().unwrap().entry(job.name).or_default() += 1;
        async move {
            tokio::time::sleep(Duration::from_millis(job.ms)).await;
            Ok(Output::default())
        }
    });
    kinds
}

fn job(name: &str, ms: u64, delay_ms: u64) -> Value {
    json!({"kind": "counted", "payload": {"name": name, "ms": ms}, "delay_ms": delay_ms})
}

/// One of the two MySQL servers, and the words of its flavour about replication.
struct Server {
    services: Services,
    port: u16,
    mariadb: bool,
}

impl Server {
    async fn start(id: u32) -> Self {
        let options = server_options()
            .transport(Transport::Tcp)
            .mysql_flag("--log-bin=binlog")
            .mysql_flag("--binlog-format=ROW")
            .mysql_flag(format!("--server-id={id}"));
        let services = Services::start(&options).unwrap();
        let Address::Tcp(port) = *services.mysql().address() else { panic!("a replica reaches its primary by port") };
        let mut root = connect(&services.mysql_url("mysql")).await;
        let version: String = sqlx::query_scalar("SELECT VERSION()").fetch_one(&mut root).await.unwrap();
        // Both servers get this account, so that one URL leads to either.
        for sql in ["CREATE USER 'both'@'%' IDENTIFIED BY 'of-them'", "GRANT ALL PRIVILEGES ON *.* TO 'both'@'%'"] {
            root.execute(sql).await.unwrap();
        }
        Self { services, port, mariadb: version.contains("MariaDB") }
    }

    async fn root(&self) -> MySqlConnection {
        connect(&self.services.mysql_url("mysql")).await
    }

    async fn sql(&self, sql: String) {
        self.root()
            .await
            .execute(sqlx::raw_sql(AssertSqlSafe(sql.clone())))
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e}"));
    }

    /// Return the file of the binary log, and the place in it, at which this server writes.
    async fn place(&self) -> (String, u64) {
        let status = if self.mariadb { "SHOW MASTER STATUS" } else { "SHOW BINARY LOG STATUS" };
        let status = self.root().await.fetch_one(status).await.unwrap();
        (status.get(0), status.get(1))
    }

    /// Follow everything that the primary commits from now on, without making it wait.
    async fn follow(&self, primary: &Self) {
        let (file, position) = primary.place().await;
        let port = primary.port;
        self.sql(if self.mariadb {
            format!(
                "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={port}, MASTER_USER='both', \
                 MASTER_PASSWORD='of-them', MASTER_LOG_FILE='{file}', MASTER_LOG_POS={position}; START SLAVE"
            )
        } else {
            format!(
                "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={port}, SOURCE_USER='both', \
                 SOURCE_PASSWORD='of-them', SOURCE_LOG_FILE='{file}', SOURCE_LOG_POS={position}, \
                 GET_SOURCE_PUBLIC_KEY=1; START REPLICA"
            )
        })
        .await;
    }

    /// Stop following. What the primary commits from now on never arrives.
    async fn fall_behind(&self) {
        self.sql(if self.mariadb { "STOP SLAVE" } else { "STOP REPLICA" }.to_owned()).await;
    }

    async fn start_to_follow(&self) {
        self.sql(if self.mariadb { "START SLAVE" } else { "START REPLICA" }.to_owned()).await;
    }

    async fn become_the_primary(&self) {
        self.sql(if self.mariadb { "RESET SLAVE ALL" } else { "RESET REPLICA ALL" }.to_owned()).await;
    }
}

/// Return the URL of either server, through the relay.
fn through(relay: &Relay, database: &str) -> ServerUrl {
    let port = relay.port();
    ServerUrl::mysql(&format!("mysql://both:of-them@127.0.0.1:{port}/{database}?ssl-mode=DISABLED")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_replica_loses_what_it_did_not_have_and_nothing_else() {
    let (primary, replica) = (Server::start(1).await, Server::start(2).await);
    replica.follow(&primary).await;
    let relay = Relay::start().await;
    relay.lead_to_port(primary.port);
    let Server { services, .. } = primary;
    let behind = |config: &mut Config| {
        let database = config.mysql_url().unwrap().expose().rsplit('/').next().unwrap().to_owned();
        config.mysql_url = Some(through(&relay, &database));
        config.queues = vec!["elsewhere".into()];
    };
    let tickr = TestApp::start_on_own(services, behind).await;
    let runs = Runs::default();
    let runner = tickr.another_with(|config| config.queues = vec!["default".into()], counted(&runs)).await;
    let base = format!("http://{}", runner.addr());
    let enqueue = async |job: Value| {
        let answer = answer(http().post(format!("{base}/v1/jobs")).json(&job)).await;
        (answer.status == 201).then(|| answer.body["id"].as_str().unwrap().parse::<JobId>().unwrap())
    };

    // The replica has these jobs, the first ones with their ends.
    let mut before = Vec::new();
    for n in 0..20 {
        before.push(enqueue(job(&format!("before {n}"), 0, 0)).await.expect("it is accepted"));
    }
    for id in &before {
        tickr.until(*id, State::Completed).await;
    }
    let mut again = Vec::new();
    for n in 0..10 {
        again.push(enqueue(job(&format!("again {n}"), 0, 3_000)).await.expect("it is accepted"));
    }
    let across = enqueue(job("across", 4_000, 3_000)).await.expect("it is accepted");
    let url = tickr.config.mysql_url().unwrap().expose().to_owned();
    let name = url.rsplit('/').next().unwrap().split('?').next().unwrap();
    eventually("the replica has them", || async {
        let sql = format!("SELECT (SELECT COUNT(*) FROM {name}.owed), (SELECT COUNT(*) FROM {name}.attempts)");
        let row = replica.root().await.fetch_one(sqlx::raw_sql(AssertSqlSafe(sql))).await.ok()?;
        ((row.get::<i64, _>(0), row.get::<i64, _>(1)) == (11, 20)).then_some(())
    })
    .await;
    replica.fall_behind().await;

    // The primary alone has the ends of these, and more jobs that it acknowledged.
    for id in &again {
        tickr.until(*id, State::Completed).await;
    }
    tickr.until(across, State::Executing).await;
    let mut gone = Vec::new();
    for n in 0..10 {
        gone.push(enqueue(job(&format!("gone {n}"), 0, 600_000)).await.expect("it is accepted"));
    }
    tickr.services().mysql().kill9().unwrap();
    replica.become_the_primary().await;
    relay.lead_to_port(replica.port);

    // Both runners go on by themselves.
    let after = eventually("a job is accepted again", || enqueue(job("after", 0, 0))).await;
    for id in again.iter().chain([&across, &after]) {
        tickr.until(*id, State::Completed).await;
    }
    for id in &before {
        assert_eq!(tickr.verdicts(*id).await, ["succeeded"]);
    }
    for id in &gone {
        let answer = answer(http().get(format!("{base}/v1/jobs/{id}"))).await;
        assert_eq!(answer.status, 404, "{:#}", answer.body);
    }
    // What had ended after the replica fell behind ran twice, and nothing else did.
    let mut wanted = BTreeMap::from([("across".to_owned(), 2), ("after".to_owned(), 1)]);
    wanted.extend((0..20).map(|n| (format!("before {n}"), 1)));
    wanted.extend((0..10).map(|n| (format!("again {n}"), 2)));
    assert_eq!(*runs.lock().unwrap(), wanted);

    // Redis still has the jobs that are gone, until it is fed again.
    let rebuild = async {
        assert_eq!(tickr.post("/v1/index/rebuild", json!({})).await.status, 202);
    };
    tickr.event("a rebuild", rebuild, |event| matches!(event, Event::Rebuilt { .. }).then_some(())).await;
    tickr.assert_sound().await;
    runner.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

/// Two servers, one of which follows the other, and the URL that names both.
struct Pair {
    first: Server,
    second: Server,
    url: ServerUrl,
}

impl Pair {
    async fn start() -> Self {
        let (first, second) = (Server::start(1).await, Server::start(2).await);
        second.follow(&first).await;
        second.take_writes(false).await;
        // Not an administrator, who may write to a server that is read-only.
        first.sql("CREATE DATABASE pair CHARACTER SET utf8mb4 COLLATE utf8mb4_bin".to_owned()).await;
        first.sql("CREATE USER 'runner'@'%' IDENTIFIED BY 'of-it'".to_owned()).await;
        first.sql("GRANT ALL PRIVILEGES ON pair.* TO 'runner'@'%'".to_owned()).await;
        let url = format!("mysql://runner:of-it@127.0.0.1:{},127.0.0.1:{}/pair", first.port, second.port);
        Self { first, second, url: ServerUrl::mysql(&url).unwrap() }
    }
}

impl Server {
    async fn take_writes(&self, takes: bool) {
        let variable = if self.mariadb { "read_only" } else { "super_read_only" };
        self.sql(format!("SET GLOBAL {variable} = {}", u8::from(!takes))).await;
        if takes {
            self.sql("SET GLOBAL read_only = 0".to_owned()).await;
        }
    }

    /// Wait until this server has everything that the primary has committed by now.
    async fn catch_up(&self, primary: &Self) {
        let (file, position) = primary.place().await;
        let wait = if self.mariadb { "MASTER_POS_WAIT" } else { "SOURCE_POS_WAIT" };
        let sql = format!("SELECT {wait}('{file}', {position}, 20)");
        let waited: Option<i64> =
            sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut self.root().await).await.unwrap();
        assert!(waited.is_some_and(|events| events >= 0), "the replica did not catch up: {waited:?}");
    }

    /// Return a number from the tables of the runners, or 0 before they are there.
    async fn count(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&mut self.root().await).await.unwrap_or(0)
    }

    async fn until_count(&self, sql: &str, wanted: i64) {
        eventually(sql, || async { (self.count(sql).await == wanted).then_some(()) }).await;
    }
}

/// Return the names of jobs that a limit of two concerns.
fn limited_names(turn: &str) -> Vec<String> {
    (0..8).map(|n| format!("{turn}-limited-{n}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn runners_with_two_servers_in_their_url_use_the_one_that_takes_writes() {
    let Pair { first, second, url } = Pair::start().await;
    let own = Services::start(&server_options()).unwrap();
    let tickr = TestApp::start_on_own(own, |config| {
        config.mysql_url = Some(url);
        config.table_prefix = tickr::job::TablePrefix::default();
        config.queues = vec!["elsewhere".into()];
    })
    .await;
    let runs = Runs::default();
    let runner = tickr.another_with(|config| config.queues = vec!["default".into()], counted(&runs)).await;
    let mut names = Vec::new();
    let mut accept = async |name: String| {
        let job = job(&name, 0, 0);
        let sent = tokio::time::Instant::now();
        let id = eventually("a job is accepted", || async {
            // A request that was not answered may have been accepted, so it is repeated with its key.
            let request = http().post(format!("http://{}/v1/jobs", runner.addr())).header("idempotency-key", &name);
            let answer = answer(request.json(&job)).await;
            (answer.status == 201).then(|| answer.body["id"].as_str().unwrap().parse::<JobId>().unwrap())
        })
        .await;
        tickr.until(id, State::Completed).await;
        names.push(name);
        sent.elapsed()
    };
    let accept_limited = async |turn: &str| {
        for name in limited_names(turn) {
            let mut job = job(&name, 100, 0);
            job["limit_key"] = json!("k");
            eventually("a job is accepted", || async {
                let request = http().post(format!("http://{}/v1/jobs", runner.addr())).header("idempotency-key", &name);
                (answer(request.json(&job)).await.status == 201).then_some(())
            })
            .await;
        }
    };
    set_and_wait(&tickr, "l", json!({"concurrency": 2})).await;
    for n in 0..10 {
        accept(format!("first-{n}")).await;
    }
    let ended = "SELECT COUNT(*) FROM pair.attempts";
    second.until_count(ended, 10).await;

    // The first server becomes a replica of the second one. It still answers reads.
    first.take_writes(false).await;
    second.catch_up(&first).await;
    second.fall_behind().await;
    second.become_the_primary().await;
    first.follow(&second).await;
    // A process that reads from this server from now on does not find the jobs, and the test asks both processes.
    first.fall_behind().await;
    second.take_writes(true).await;
    let took = accept("second-0".to_owned()).await;
    println!("a job was accepted and done {took:?} after its server had become a replica");
    assert!(took < Duration::from_secs(15), "{took:?}");
    for n in 1..10 {
        accept(format!("second-{n}")).await;
    }
    accept_limited("second").await;
    first.start_to_follow().await;
    second.until_count("SELECT (SELECT COUNT(*) FROM pair.owed) + (SELECT COUNT(*) FROM pair.limit_slots)", 0).await;
    first.catch_up(&second).await;

    // The second server dies, and the first one is promoted again.
    second.services.mysql().kill9().unwrap();
    first.fall_behind().await;
    first.become_the_primary().await;
    first.take_writes(true).await;
    let took = accept("third-0".to_owned()).await;
    println!("a job was accepted and done {took:?} after its server had died");
    assert!(took < Duration::from_secs(15), "{took:?}");
    accept_limited("third").await;
    first.until_count("SELECT COUNT(*) FROM pair.owed", 0).await;
    names.extend(["second", "third"].into_iter().flat_map(limited_names));
    let wanted: BTreeMap<String, usize> = names.iter().map(|name| (name.clone(), 1)).collect();
    assert_eq!(*runs.lock().unwrap(), wanted, "each job ran once");
    // The limit is a row of MySQL, and so both servers have it in turn.
    let mut pair = connect(&first.services.mysql_url("pair")).await;
    let most: i64 = sqlx::query_scalar(MOST_AT_ONCE).fetch_one(&mut pair).await.unwrap();
    assert_eq!(most, 2);
    let metrics = http().get(format!("http://{}/metrics", runner.addr())).send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("\ntickr_store_server_changes_total "), "{metrics}");
    tickr.assert_sound().await;
    runner.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_does_not_start_at_a_server_that_only_reads_and_says_why() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    // The one server of the URL is a replica, or a primary that was demoted.
    tickr.sql("SET GLOBAL read_only = 1").await;
    let mut refused = Runner::start(&tickr, &[]);
    assert_eq!(refused.exit_code().await, Some(1), "{}", refused.log());
    let log = refused.log();
    let name: String = sqlx::query_scalar("SELECT @@hostname").fetch_one(&mut tickr.mysql().await).await.unwrap();
    let reason = format!("the server {name} takes no writes (read_only on), so it is a replica");
    for part in [reason.as_str(), "name the primary in mysql_url", "SET GLOBAL read_only = OFF", "\nthe server is "] {
        assert!(log.contains(part), "{part}: {log}");
    }
    // A start waits for the end of a failover. The remedy that the reason names is enough.
    let runner = Runner::start(&tickr, &[]);
    let waits = "the mysql server takes no writes, waiting";
    eventually("the start waits", || async { runner.log().contains(waits).then_some(()) }).await;
    tickr.sql("SET GLOBAL read_only = OFF").await;
    let ready = answer(http().get(format!("{}/readyz", runner.base().await))).await;
    assert_eq!(ready.status, 200, "{:#}", ready.body);
    drop(runner);
    tickr.stop().await;
}

/// Behind one address, a proxy leads new connections to the new primary and leaves the open ones at the former one.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_refused_write_no_read_asks_the_former_primary_behind_a_proxy() {
    let Pair { first, second, .. } = Pair::start().await;
    let relay = Relay::start().await;
    relay.lead_to_port(first.port);
    let url = format!("mysql://runner:of-it@127.0.0.1:{}/pair", relay.port());
    let own = Services::start(&server_options()).unwrap();
    let tickr = TestApp::start_on_own(own, |config| {
        config.mysql_url = Some(ServerUrl::mysql(&url).unwrap());
        config.table_prefix = tickr::job::TablePrefix::default();
        config.queues = vec!["elsewhere".into()];
    })
    .await;
    let accept = async |name: &str| {
        let job = json!({"kind": "noop", "delay_ms": 3_600_000});
        let id = eventually("a job is accepted", || async {
            // A request that was not answered may have been accepted, so it is repeated with its key.
            let answer = answer(http().post(tickr.url("/v1/jobs")).header("idempotency-key", name).json(&job)).await;
            (answer.status == 201).then(|| answer.body["id"].as_str().unwrap().to_owned())
        })
        .await;
        format!("/v1/jobs/{id}")
    };
    // More readers at a time than there are connections for reads, so that each of these is used.
    let read_by_many = async |path: &str| {
        let answers = futures_util::future::join_all((0..64).map(|_| tickr.get(path))).await;
        answers.into_iter().map(|answer| answer.status).collect::<Vec<_>>()
    };
    let before = accept("before").await;
    assert_eq!(read_by_many(&before).await, [200; 64]);
    // A connection that is younger than a second may be used until it is as old.
    tokio::time::sleep(Duration::from_secs(1)).await;

    first.take_writes(false).await;
    second.catch_up(&first).await;
    second.fall_behind().await;
    second.become_the_primary().await;
    second.take_writes(true).await;
    relay.lead_to_port(second.port);
    // The former primary stores nothing any more. This write may have got a new connection, which leads to the new
    // primary. Then the process learns of the failover by the next one, which its heartbeat makes at the latest.
    let after = accept("after").await;
    assert_eq!(first.count("SELECT COUNT(*) FROM pair.jobs").await, 1, "the former primary took a write");
    eventually("no read asks the former primary", || async { (read_by_many(&after).await == [200; 64]).then_some(()) })
        .await;
    assert_eq!(read_by_many(&after).await, [200; 64], "a read asked the former primary again");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readyz_says_what_a_failover_may_lose() {
    let Pair { first, second, url } = Pair::start().await;
    let own = Services::start(&server_options()).unwrap();
    let tickr = TestApp::start_on_own(own, |config| {
        config.mysql_url = Some(url);
        config.table_prefix = tickr::job::TablePrefix::default();
        config.queues = vec!["elsewhere".into()];
    })
    .await;
    let until_told = async |kind: &str, note: Option<&str>| {
        eventually(&format!("{kind}: {note:?}"), || async {
            let told = tickr.get("/readyz").await.body;
            let is_noted = match note {
                Some(part) => told["topology_note"].as_str().is_some_and(|note| note.contains(part)),
                None => told["topology_note"].is_null(),
            };
            (told["topology"] == kind && is_noted).then_some(())
        })
        .await;
    };
    if !first.mariadb {
        // The account has rights in its database alone.
        until_told("unknown", Some("may not read whether replicas follow")).await;
        tickr.stop().await;
        return;
    }
    until_told("async_replicas", Some("follow asynchronously")).await;
    second.fall_behind().await;
    second.sql("SET GLOBAL rpl_semi_sync_slave_enabled = 1".to_owned()).await;
    second.start_to_follow().await;
    for setting in ["timeout = 100", "enabled = 1"] {
        first.sql(format!("SET GLOBAL rpl_semi_sync_master_{setting}")).await;
    }
    until_told("semi_sync", Some("a failover loses nothing")).await;
    // A commit that no replica acknowledges in time ends the waiting. Readiness commits, and its promise has changed.
    second.fall_behind().await;
    until_told("async_replicas", Some("does not wait now")).await;
    first.sql("SET GLOBAL rpl_semi_sync_master_enabled = 0".to_owned()).await;
    until_told("single", None).await;
    tickr.stop().await;
}

/// Errors of a server that answers and can do nothing: a node of Galera without its cluster, a gate of a cluster, and a
/// proxy without a server behind it.
const OF_NO_USE: [u16; 3] = [1047, 3100, 9001];

/// A runner whose URL has two addresses, which lead to one server.
struct TwoAddresses {
    tickr: TestApp,
    one: Proxy,
    other: Proxy,
    runner: App,
    runs: Runs,
}

impl TwoAddresses {
    async fn start() -> Self {
        let tickr = TestApp::start_alone(|_| {}, |config| config.queues = vec!["elsewhere".into()]).await;
        let url = tickr.config.mysql_url().unwrap().expose();
        let (one, other) = (Proxy::start(url).await, Proxy::start(url).await);
        let (first, second) = (one.url(), other.url());
        let (start, end) = first.rsplit_once('/').unwrap();
        let (_, second) = second.rsplit_once('/').and_then(|(start, _)| start.rsplit_once('@')).unwrap();
        let both = ServerUrl::mysql(&format!("{start},{second}/{end}")).unwrap();
        let runs = Runs::default();
        let through = |config: &mut Config| {
            config.mysql_url = Some(both);
            config.queues = vec!["default".into()];
        };
        let runner = tickr.another_with(through, counted(&runs)).await;
        Self { tickr, one, other, runner, runs }
    }

    /// Enqueue a job at the runner until it is accepted, and wait until it is done.
    async fn run(&self, name: String) {
        let id = eventually("a job is accepted", || async {
            let request = http().post(format!("http://{}/v1/jobs", self.runner.addr()));
            let request = request.header("idempotency-key", &name).json(&job(&name, 0, 0));
            let answer = answer(request).await;
            (answer.status == 201).then(|| answer.body["id"].as_str().unwrap().parse::<JobId>().unwrap())
        })
        .await;
        self.tickr.until(id, State::Completed).await;
    }

    async fn stop(self) {
        for (name, times) in self.runs.lock().unwrap().iter() {
            assert_eq!(*times, 1, "{name}");
        }
        self.runner.stop(CancellationToken::new()).await;
        self.tickr.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_answers_with_errors_alone_is_left_for_the_next_one_of_the_url() {
    let addresses = TwoAddresses::start().await;
    addresses.run("before".to_owned()).await;
    // Each of them refuses every transaction in turn.
    for (turn, error) in OF_NO_USE.into_iter().enumerate() {
        let (one, other) = (&addresses.one, &addresses.other);
        let (refuses, works) = if turn % 2 == 0 { (one, other) } else { (other, one) };
        works.pass();
        refuses.refuse("COMMIT", error, usize::MAX);
        addresses.run(format!("at-{error}")).await;
    }
    addresses.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_answers_and_commits_nothing_is_left_for_the_next_one() {
    let Pair { first, second, url } = Pair::start().await;
    if !first.mariadb {
        println!("skipped: MySQL needs a plugin for commits that wait for a replica");
        return;
    }
    let own = Services::start(&server_options()).unwrap();
    let tickr = TestApp::start_on_own(own, |config| {
        config.mysql_url = Some(url);
        config.table_prefix = tickr::job::TablePrefix::default();
        config.queues = vec!["elsewhere".into()];
    })
    .await;
    assert_eq!(tickr.get("/readyz").await.status, 200);
    second.catch_up(&first).await;
    second.fall_behind().await;
    second.become_the_primary().await;
    second.take_writes(true).await;
    // The first server answers, and its commits wait for a replica that it does not have.
    for setting in ["timeout = 3600000", "wait_no_slave = 1", "enabled = 1"] {
        first.sql(format!("SET GLOBAL rpl_semi_sync_master_{setting}")).await;
    }
    let ready = async || tickr.get("/readyz").await.status;
    eventually("readiness needs a commit", || async { (ready().await == 503).then_some(()) }).await;
    eventually("the runner is ready with the second server", || async { (ready().await == 200).then_some(()) }).await;
    let accepted = tickr.post("/v1/jobs", json!({"kind": "noop", "delay_ms": 3_600_000})).await;
    assert_eq!(accepted.status, 201, "{:#}", accepted.body);
    assert_eq!(second.count("SELECT COUNT(*) FROM pair.jobs").await, 1);
    first.sql("SET GLOBAL rpl_semi_sync_master_enabled = 0".to_owned()).await;
    tickr.stop_broken("the first server has rows that the second one lacks").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_reached_by_its_ipv6_address() {
    let Ok(listener) = TcpListener::bind("[::1]:0").await else {
        println!("skipped: this machine has no IPv6");
        return;
    };
    let (name, url) = migrated_database().await;
    let proxy = Proxy::start(&url).await;
    let proxied = proxy.url();
    let (login, rest) = proxied.split_once("127.0.0.1:").unwrap();
    let (port, rest) = rest.split_once('/').unwrap();
    let behind = format!("127.0.0.1:{port}");
    let url_of_ipv6 = format!("{login}[::1]:{}/{rest}", listener.local_addr().unwrap().port());
    let relay = tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = TcpStream::connect(&behind).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
        }
    });
    Store::create_database(&url_of_ipv6).await.unwrap();
    let settings =
        StoreSettings { url: url_of_ipv6.clone(), connections: 5, flushers: 1, table_prefix: table_prefix() };
    let store = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
    assert!(store.is_migrated().await.unwrap());
    store.close().await;
    // The outbox of an application has a URL of its own. It is reached, and this database is one of a tickr.
    let reached = OutboxSource::new(&url_of_ipv6).unwrap().check().await.unwrap_err();
    assert!(reached.to_string().contains("moves its rows itself"), "{reached}");
    relay.abort();
    drop_database(&url, &name).await;
}

/// Errors of one statement: an error that tickr does not know, a killed statement, no room for a prepared one.
const OF_ONE_STATEMENT: [u16; 3] = [1105, 1317, 1461];

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_one_statement_leads_no_process_to_another_server() {
    let addresses = TwoAddresses::start().await;
    for error in OF_ONE_STATEMENT {
        addresses.one.refuse("COMMIT", error, 1);
        addresses.run(format!("at-{error}")).await;
        assert!(addresses.one.is_through(), "a commit was refused");
    }
    assert_eq!(addresses.other.requests(), 0, "the second server was asked");
    addresses.stop().await;
}
