//! A replica of MySQL is promoted that did not have the last commits: what that costs, and what it does not.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Executor, MySqlConnection, Row};
use tickr::config::{Config, ServerUrl};
use tickr::event::Event;
use tickr::handlers::{Context, Kind, Output, Registry};
use tickr::job::{JobId, State};
use tickr::services::{Address, Options, Services, Transport};
use tokio_util::sync::CancellationToken;

use crate::support::{Relay, TestApp, answer, connect, eventually, http};

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
        let options = Options::ephemeral_under(Path::new(env!("CARGO_TARGET_TMPDIR")))
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

    /// Follow everything that the primary commits from now on, without making it wait.
    async fn follow(&self, primary: &Self) {
        let status = if self.mariadb { "SHOW MASTER STATUS" } else { "SHOW BINARY LOG STATUS" };
        let status = primary.root().await.fetch_one(status).await.unwrap();
        let (file, position): (String, u64) = (status.get(0), status.get(1));
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
