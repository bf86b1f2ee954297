//! Outboxes in databases of applications: a job exists exactly if the transaction there was committed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use chrono::{DateTime, NaiveDateTime, TimeDelta, TimeZone, Utc};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection};
use tickr::app::check_pending;
use tickr::config::{Config, Outbox, ServerUrl};
use tickr::handlers::Registry;
use tickr::job::{JobId, RunnerId, State};
use tickr::services::Services;
use tickr::store::{OUTBOX_SCHEMA, OutboxSource, SourceCopy, Store, StoreSettings, TakeOver};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::program::{Program, command, outcome, tickr as program};
use crate::support::{
    DEADLINE, Proxy, Runner, TestApp, bystander, call, connect, database, drop_database, eventually, eventually_seen,
    http, migrated_database, server_options, table_prefix, until_said,
};

/// The database of an application with its outbox.
struct Shop {
    url: String,
    name: String,
    /// Its server, if no other test uses it.
    own: Option<Services>,
}

impl Shop {
    /// Make one on the server of the other tests.
    async fn beside() -> Self {
        let (name, url) = database().await;
        Self::with_table(name, url, None).await
    }

    /// Make one on a server of its own.
    async fn alone() -> Self {
        let own = Services::start(&server_options()).unwrap();
        let url = own.mysql_url("shop");
        Store::create_database(&url).await.unwrap();
        Self::with_table("shop".to_owned(), url, Some(own)).await
    }

    async fn with_table(name: String, url: String, own: Option<Services>) -> Self {
        connect(&url).await.execute(OUTBOX_SCHEMA).await.unwrap();
        Self { url, name, own }
    }

    fn server(&self) -> &Services {
        self.own.as_ref().expect("only a shop with a server of its own may touch it")
    }

    async fn mysql(&self) -> MySqlConnection {
        connect(&self.url).await
    }

    /// Open a connection whose locks are those of rows alone, so they keep no other session from inserting.
    async fn locking(&self) -> MySqlConnection {
        let mut conn = self.mysql().await;
        conn.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
        conn
    }

    async fn sql(&self, sql: impl Into<String>) {
        self.mysql().await.execute(sqlx::raw_sql(AssertSqlSafe(sql.into()))).await.unwrap();
    }

    async fn count(&self) -> i64 {
        sqlx::query_scalar("SELECT COUNT(*) FROM tickr_outbox").fetch_one(&mut self.mysql().await).await.unwrap()
    }

    /// Wait until no row waits.
    async fn until_empty(&self) {
        eventually_seen("the outbox of the application is empty", || async {
            match self.count().await {
                0 => Ok(()),
                rows => Err(rows),
            }
        })
        .await;
    }

    async fn end(self) {
        if self.own.is_none() {
            drop_database(&self.url, &self.name).await;
        }
    }
}

/// Configure an outbox of an application.
fn outbox(config: &mut Config, name: &str, url: &str) {
    let mysql_url = Config::for_tests(url, "redis://unused").mysql_url.unwrap();
    config.outboxes.insert(name.parse().unwrap(), Outbox { mysql_url });
}

async fn start_with(shop: &Shop) -> TestApp {
    let url = shop.url.clone();
    TestApp::start_with(move |config| outbox(config, "shop", &url), Registry::new()).await
}

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

/// Wait until the row is a job, and then until the job is in this state.
async fn until(tickr: &TestApp, id: Uuid, state: State) -> Value {
    let path = format!("/v1/jobs/{id}");
    eventually("the row is a job", || async { (tickr.get(&path).await.status == 200).then_some(()) }).await;
    tickr.until(JobId::from_uuid(id), state).await
}

/// Return the state of an outbox of an application as the API shows it.
async fn seen(tickr: &TestApp, name: &str) -> Value {
    let state = tickr.get("/v1/outbox").await;
    assert_eq!(state.status, 200, "{:#}", state.body);
    let sources = state.body["sources"].as_array().unwrap();
    sources.iter().find(|source| source["name"] == name).cloned().unwrap_or(Value::Null)
}

/// Wait until an outbox cannot be read for a reason with this text.
async fn until_error(tickr: &TestApp, name: &str, part: &str) -> Value {
    eventually_seen(&format!("the outbox {name} says {part}"), || async {
        let source = seen(tickr, name).await;
        if source["error"].as_str().is_some_and(|error| error.contains(part)) { Ok(source) } else { Err(source) }
    })
    .await
}

/// Note each row that is inserted into the outbox of tickr. A row that is copied twice is noted twice, also if it became a
/// job in between.
async fn note_copies(tickr: &TestApp) {
    tickr.sql("CREATE TABLE copies (id BINARY(16) NOT NULL)").await;
    tickr.sql("CREATE TRIGGER note AFTER INSERT ON tickr_outbox FOR EACH ROW INSERT INTO copies VALUES (NEW.id)").await;
}

async fn assert_each_copied_once(tickr: &TestApp, rows: i64) {
    assert_eq!(tickr.count("SELECT COUNT(DISTINCT id) FROM copies").await, rows, "rows that were copied");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM copies").await, rows, "copies of them");
    tickr.sql("DROP TRIGGER note").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_committed_on_another_server_becomes_one_job_and_a_rolled_back_one_none() {
    let shop = Shop::alone().await;
    let tickr = start_with(&shop).await;
    let mut app = shop.mysql().await;
    app.execute("CREATE TABLE orders (number INT PRIMARY KEY)").await.unwrap();
    let (dropped, kept) = (Uuid::now_v7(), Uuid::now_v7());
    for (number, id) in [(1, dropped), (2, kept)] {
        let mut tx = app.begin().await.unwrap();
        sqlx::query("INSERT INTO orders VALUES (?)").bind(number).execute(&mut *tx).await.unwrap();
        insert(&mut tx, id, "noop", "{}").await;
        if id == kept { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
    }
    let job = until(&tickr, kept, State::Completed).await;
    assert_eq!((&job["kind"], &job["queue"]), (&json!("noop"), &json!("default")));
    assert_eq!(tickr.get(&format!("/v1/jobs/{dropped}")).await.status, 404);
    shop.until_empty().await;
    // The application repeats its transaction, because it got no answer to its COMMIT.
    insert(&mut app, kept, "noop", "{}").await;
    shop.until_empty().await;
    tickr.until_count("SELECT COUNT(*) FROM tickr_outbox", 0).await;
    tickr.assert_each_ran_once(1).await;
    let source = eventually("it is up", || async { Some(seen(&tickr, "shop").await).filter(|it| it["up"] == true) });
    let source = source.await;
    assert_eq!(source["leader"], tickr.app.runner().to_string());
    assert_eq!((&source["waiting"], &source["error"]), (&json!(0), &Value::Null));
    tickr.until_metric("tickr_outbox_source_up{source=\"shop\"} 1").await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_column_arrives_whatever_time_zone_mode_and_further_columns_the_application_has() {
    let shop = Shop::beside().await;
    shop.sql("ALTER TABLE tickr_outbox ADD COLUMN remark VARCHAR(20) NULL AFTER id").await;
    let tickr = start_with(&shop).await;
    let mut app = shop.mysql().await;
    app.execute("SET SESSION time_zone = '+11:00', sql_mode = 'ANSI'").await.unwrap();
    let id = Uuid::now_v7();
    let options = json!({"priority": 2, "tags": ["its"], "order_key": "ö\\"});
    sqlx::query(
        "INSERT INTO tickr_outbox (id, remark, kind, payload, queue, execute_at, options) \
         VALUES (?, 'a', 'noop', ?, 'mail', UTC_TIMESTAMP(3) + INTERVAL 30 MINUTE, ?)",
    )
    .bind(id)
    .bind("{\"pad\":\"it's \\\\ \u{1F600}?\"}")
    .bind(options.to_string())
    .execute(&mut app)
    .await
    .unwrap();
    shop.until_empty().await;
    tickr.until_count("SELECT COUNT(*) FROM tickr_outbox", 0).await;
    let rejected = tickr.get("/v1/outbox/rejected").await;
    assert_eq!(rejected.body["data"], json!([]));
    let job = until(&tickr, id, State::Waiting).await;
    assert_eq!((&job["queue"], &job["payload"]), (&json!("mail"), &json!({"pad": "it's \\ \u{1F600}?"})));
    for field in ["priority", "tags", "order_key"] {
        assert_eq!(job[field], options[field], "{field}");
    }
    let moment = |value: &Value| value.as_str().unwrap().parse::<chrono::DateTime<chrono::Utc>>().unwrap();
    assert!((moment(&job["execute_at"]) - moment(&job["created_at"])).num_minutes() >= 29, "{job:#}");
    tickr.stop().await;
    shop.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_and_a_locked_row_at_the_source_delay_no_other_row() {
    let shop = Shop::beside().await;
    let tickr = start_with(&shop).await;
    note_copies(&tickr).await;
    let (mut slow, mut locks, mut quick) = (shop.mysql().await, shop.locking().await, shop.mysql().await);
    let (open, locked) = (Uuid::now_v7(), Uuid::now_v7());
    slow.execute("BEGIN").await.unwrap();
    insert(&mut slow, open, "noop", "{}").await;
    locks.execute("BEGIN").await.unwrap();
    insert(&mut locks, locked, "noop", "{}").await;
    locks.execute("COMMIT AND CHAIN").await.unwrap();
    // Whether the row was copied before it was locked or not, it becomes one job.
    locks.execute("SELECT id FROM tickr_outbox FOR UPDATE SKIP LOCKED").await.unwrap();
    for _ in 0..20 {
        let id = Uuid::now_v7();
        insert(&mut quick, id, "noop", "{}").await;
        until(&tickr, id, State::Completed).await;
    }
    assert_eq!(tickr.get(&format!("/v1/jobs/{open}")).await.status, 404);
    slow.execute("COMMIT").await.unwrap();
    locks.execute("COMMIT").await.unwrap();
    for id in [open, locked] {
        until(&tickr, id, State::Completed).await;
    }
    shop.until_empty().await;
    tickr.assert_each_ran_once(22).await;
    assert_each_copied_once(&tickr, 22).await;
    tickr.stop().await;
    shop.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_copied_and_locked_at_the_source_is_not_copied_again() {
    let shop = Shop::beside().await;
    let tickr = start_with(&shop).await;
    note_copies(&tickr).await;
    let (mut app, mut locks) = (shop.mysql().await, shop.locking().await);
    let stuck = Uuid::now_v7();
    app.execute("BEGIN").await.unwrap();
    insert(&mut app, stuck, "noop", "{}").await;
    // This session waits for the row, so it has the lock as soon as the row is committed.
    let locking = tokio::spawn(async move {
        locks.execute("BEGIN").await.unwrap();
        let lock = sqlx::query("SELECT id FROM tickr_outbox WHERE id = ? FOR UPDATE").bind(stuck);
        assert_eq!(lock.fetch_all(&mut locks).await.unwrap().len(), 1);
        locks
    });
    until_said(&shop.url, &shop.name, "SELECT id FROM tickr_outbox WHERE id", 1).await;
    app.execute("COMMIT").await.unwrap();
    let mut locks = locking.await.unwrap();
    until(&tickr, stuck, State::Completed).await;
    for _ in 0..8 {
        let id = Uuid::now_v7();
        insert(&mut app, id, "noop", "{}").await;
        until(&tickr, id, State::Completed).await;
    }
    eventually("only the locked row is left", || async { (shop.count().await == 1).then_some(()) }).await;
    // Another runner takes the source over meanwhile and knows the list.
    let other = tickr.another().await;
    let url = format!("http://{}", other.addr());
    assert_eq!(call(&url, reqwest::Method::POST, "/v1/outbox/nudge", "", None).await.status, 204);
    eventually("the other runner has the source", || async {
        (seen(&tickr, "shop").await["leader"] == other.runner().to_string()).then_some(())
    })
    .await;
    let last = Uuid::now_v7();
    insert(&mut app, last, "noop", "{}").await;
    until(&tickr, last, State::Completed).await;
    eventually("only the locked row is left", || async { (shop.count().await == 1).then_some(()) }).await;
    locks.execute("COMMIT").await.unwrap();
    shop.until_empty().await;
    tickr.assert_each_ran_once(10).await;
    assert_each_copied_once(&tickr, 10).await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
    shop.end().await;
}

/// The deletion of copied rows at a source.
const DELETE: &str = "DELETE t FROM (SELECT";

/// Answers are lost between a runner and either server: to the copy, to its COMMIT, to the deletion at the source, and to
/// the removal from the list. The source also refuses deletions of rows that were copied.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_of_either_server_neither_loses_nor_doubles_a_row() {
    let shop = Shop::beside().await;
    let tickr = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
    note_copies(&tickr).await;
    let store = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let source = Proxy::start(&shop.url).await;
    let served = |config: &mut Config| {
        config.mysql_url = Config::for_tests(&store.url(), "redis://unused").mysql_url;
        config.queues = vec!["default".into()];
        outbox(config, "shop", &source.url());
    };
    let through = tickr.another_with(served, Registry::new()).await;
    let mut app = shop.mysql().await;
    let mut rows = 0;
    for round in 0..2 {
        for (proxy, text, refused) in [
            (&source, DELETE, false),
            (&source, DELETE, true),
            (&store, "UPDATE outbox_sources SET turn = ?", false),
            (&store, "COMMIT", false),
            (&store, "UPDATE outbox_sources SET copied = ''", false),
            (&source, "SELECT id, LEFT(kind", false),
        ] {
            let cuts = proxy.cuts();
            if refused {
                proxy.refuse(text, 1_053, 1);
            } else {
                proxy.cut_after(text);
            }
            for _ in 0..3 {
                insert(&mut app, Uuid::now_v7(), "noop", "{}").await;
                rows += 1;
            }
            eventually(&format!("the answer to {text} is lost, round {round}"), || async {
                (proxy.cuts() > cuts).then_some(())
            })
            .await;
            shop.until_empty().await;
        }
    }
    tickr.until_count("SELECT COUNT(*) FROM tickr_outbox", 0).await;
    tickr.until_idle().await;
    tickr.assert_each_ran_once(rows).await;
    assert_each_copied_once(&tickr, rows).await;
    through.stop(CancellationToken::new()).await;
    tickr.stop().await;
    shop.end().await;
}

/// Commit orders with jobs until `over`, and roll some back. After a COMMIT without an answer, look whether it was done.
/// Return the number of committed rows.
async fn sell(url: String, over: CancellationToken) -> i64 {
    let (mut kept, mut conn, mut unsure) = (0, None, Vec::<Uuid>::new());
    while !over.is_cancelled() || !unsure.is_empty() {
        let sold: Result<(), sqlx::Error> = async {
            let mut open = match conn.take() {
                Some(open) => open,
                None => MySqlConnection::connect(&url).await?,
            };
            if let Some(id) = unsure.first() {
                let sql = "SELECT COUNT(*) FROM sold WHERE id = ?";
                let found: i64 = sqlx::query_scalar(sql).bind(id).fetch_one(&mut open).await?;
                kept += if found > 0 { i64::try_from(unsure.len()).unwrap() } else { 0 };
                unsure.clear();
            }
            let ids: Vec<Uuid> = (0..rand::random_range(1..=3)).map(|_| Uuid::now_v7()).collect();
            let mut tx = open.begin().await?;
            for id in &ids {
                sqlx::query("INSERT INTO sold VALUES (?)").bind(id).execute(&mut *tx).await?;
                sqlx::query("INSERT INTO tickr_outbox (id, kind, payload) VALUES (?, 'noop', '{}')")
                    .bind(id)
                    .execute(&mut *tx)
                    .await?;
            }
            if rand::random_range(0..4) > 0 {
                unsure.clone_from(&ids);
                tx.commit().await?;
                unsure.clear();
                kept += i64::try_from(ids.len()).unwrap();
            } else {
                tx.rollback().await?;
            }
            conn = Some(open);
            Ok(())
        }
        .await;
        if sold.is_err() {
            println!("the server of the application is away");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    kept
}

const SOLD: &str = "CREATE TABLE sold (id BINARY(16) NOT NULL PRIMARY KEY)";

#[tokio::test(flavor = "multi_thread")]
async fn runners_and_servers_killed_at_any_moment_neither_lose_nor_double_a_row() {
    let shop = Shop::alone().await;
    shop.sql(SOLD).await;
    let tickr = TestApp::start_alone(|_| {}, bystander).await;
    note_copies(&tickr).await;
    let file = tickr.dir.path().join("tickr.toml");
    std::fs::write(&file, "[outboxes.shop]\n").unwrap();
    let env = [("TICKR_CONFIG", file.to_str().unwrap()), ("TICKR_OUTBOXES_SHOP_MYSQL_URL", &shop.url)];
    let mut runners = [Runner::start(&tickr, &env), Runner::start(&tickr, &env)];
    for runner in &runners {
        runner.base().await;
    }
    let over = CancellationToken::new();
    let selling: Vec<_> = (0..3).map(|_| tokio::spawn(sell(shop.url.clone(), over.clone()))).collect();
    for round in 0..6 {
        tokio::time::sleep(Duration::from_millis(rand::random_range(200..900))).await;
        match round % 3 {
            0 => {
                let leader = seen(&tickr, "shop").await["leader"].as_str().unwrap_or_default().to_owned();
                let at = runners.iter().position(|runner| leader.contains(&format!("/{}-", runner.pid()))).unwrap_or(0);
                runners[at].kill9();
                runners[at] = Runner::start(&tickr, &env);
            }
            1 => {
                shop.server().mysql().kill9().unwrap();
                shop.server().mysql().start_again().unwrap();
            }
            _ => {
                tickr.services().mysql().kill9().unwrap();
                tickr.services().mysql().start_again().unwrap();
            }
        }
    }
    over.cancel();
    let mut kept = 0;
    for task in selling {
        kept += task.await.unwrap();
    }
    shop.until_empty().await;
    tickr.until_count("SELECT COUNT(*) FROM tickr_outbox", 0).await;
    tickr.until_idle().await;
    println!("{kept} rows");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, kept);
    assert_each_copied_once(&tickr, kept).await;
    drop(runners);
    tickr.stop().await;
}

/// Nudges at three runners make each of them take the source over, while applications commit and roll back.
#[tokio::test(flavor = "multi_thread")]
async fn each_committed_row_is_copied_once_whichever_runner_is_nudged() {
    let shop = Shop::beside().await;
    shop.sql(SOLD).await;
    let tickr = start_with(&shop).await;
    note_copies(&tickr).await;
    let others = [tickr.another().await, tickr.another().await];
    let urls: Vec<String> =
        std::iter::once(tickr.url("")).chain(others.iter().map(|other| format!("http://{}", other.addr()))).collect();
    let over = CancellationToken::new();
    let nudging: Vec<_> = urls
        .into_iter()
        .map(|url| {
            let over = over.clone();
            tokio::spawn(async move {
                while !over.is_cancelled() {
                    assert_eq!(call(&url, reqwest::Method::POST, "/v1/outbox/nudge", "", None).await.status, 204);
                }
            })
        })
        .collect();
    let done = CancellationToken::new();
    let selling: Vec<_> = (0..4).map(|_| tokio::spawn(sell(shop.url.clone(), done.clone()))).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    done.cancel();
    let mut kept = 0;
    for task in selling {
        kept += task.await.unwrap();
    }
    shop.until_empty().await;
    over.cancel();
    for task in nudging {
        task.await.unwrap();
    }
    tickr.until_count("SELECT COUNT(*) FROM tickr_outbox", 0).await;
    tickr.until_idle().await;
    println!("{kept} rows");
    tickr.assert_each_ran_once(kept).await;
    assert_each_copied_once(&tickr, kept).await;
    for other in others {
        other.stop(CancellationToken::new()).await;
    }
    tickr.stop().await;
    shop.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nudged_runner_takes_the_source_over_and_starts_jobs_within_milliseconds() {
    let shop = Shop::beside().await;
    let tickr = start_with(&shop).await;
    let mut app = shop.mysql().await;
    eventually("the source is up", || async { (seen(&tickr, "shop").await["up"] == true).then_some(()) }).await;
    let mut late = Vec::new();
    for _ in 0..10 {
        // Another runner has the source and does not look.
        tickr
            .sql(
                "UPDATE outbox_sources SET runner = 'ghost/1-00000000', turn = turn + 1, \
                 lease_until = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, calm_until = '1970-01-01'",
            )
            .await;
        let id = Uuid::now_v7();
        insert(&mut app, id, "noop", "{}").await;
        let committed = chrono::Utc::now();
        assert_eq!(tickr.post("/v1/outbox/nudge", json!({})).await.status, 204);
        let job = until(&tickr, id, State::Completed).await;
        let started: chrono::DateTime<chrono::Utc> = job["started_at"].as_str().unwrap().parse().unwrap();
        late.push((started - committed).num_milliseconds());
    }
    late.sort_unstable();
    println!("started {} ms (median), {} ms (worst) after the COMMIT", late[5], late[9]);
    assert!(late[5] < 1_000, "{late:?}");
    tickr.stop().await;
    shop.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_runner_follows_soon_after_the_one_with_the_source_has_died() {
    let shop = Shop::beside().await;
    let tickr = start_with(&shop).await;
    eventually("the source is up", || async { (seen(&tickr, "shop").await["up"] == true).then_some(()) }).await;
    tickr
        .sql(
            "UPDATE outbox_sources SET runner = 'ghost/1-00000000', turn = turn + 1, \
             lease_until = UTC_TIMESTAMP(6) + INTERVAL 5 SECOND",
        )
        .await;
    let (id, began) = (Uuid::now_v7(), Instant::now());
    insert(&mut shop.mysql().await, id, "noop", "{}").await;
    until(&tickr, id, State::Completed).await;
    println!("{:?} after its leader died", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    tickr.stop().await;
    shop.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_down_delays_neither_the_start_nor_another_source() {
    let (down, up) = (Shop::alone().await, Shop::beside().await);
    down.server().mysql().stop().unwrap();
    let urls = (down.url.clone(), up.url.clone());
    let began = Instant::now();
    let tickr = TestApp::start_with(
        move |config| {
            outbox(config, "down", &urls.0);
            // Packets to this address are lost.
            outbox(config, "lost", "mysql://shop@192.0.2.1:3306/shop");
            outbox(config, "up", &urls.1);
        },
        Registry::new(),
    )
    .await;
    println!("started after {:?}", began.elapsed());
    let (there, here) = (Uuid::now_v7(), Uuid::now_v7());
    insert(&mut up.mysql().await, there, "noop", "{}").await;
    insert(&mut tickr.mysql().await, here, "noop", "{}").await;
    for id in [there, here] {
        until(&tickr, id, State::Completed).await;
    }
    let source = until_error(&tickr, "down", "cannot connect").await;
    assert_eq!((&source["up"], &source["leader"]), (&json!(false), &Value::Null), "{source:#}");
    assert!(source["failing_since"].is_string(), "{source:#}");
    tickr.until_metric("tickr_outbox_source_up{source=\"down\"} 0").await;
    tickr.until_metric("tickr_outbox_source_up{source=\"up\"} 1").await;
    down.server().mysql().start_again().unwrap();
    let late = Uuid::now_v7();
    insert(&mut down.mysql().await, late, "noop", "{}").await;
    until(&tickr, late, State::Completed).await;
    eventually("it is up again", || async {
        let source = seen(&tickr, "down").await;
        (source["up"] == true && source["error"].is_null() && source["failing_since"].is_null()).then_some(())
    })
    .await;
    tickr.stop().await;
    up.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_the_outbox_cannot_hold_is_rejected_with_its_source_and_holds_up_no_other() {
    let shop = Shop::beside().await;
    shop.sql(
        "ALTER TABLE tickr_outbox MODIFY kind VARCHAR(300) CHARACTER SET utf8mb4 NOT NULL, MODIFY payload LONGBLOB NULL, \
         MODIFY created_at DATETIME(6) NULL DEFAULT CURRENT_TIMESTAMP(6)",
    )
    .await;
    let tickr = start_with(&shop).await;
    tickr.sql("ALTER TABLE tickr_outbox ADD CONSTRAINT no_poison CHECK (payload NOT LIKE '%poison%')").await;
    let mut app = shop.mysql().await;
    let now = "UTC_TIMESTAMP(6)";
    let bad = [
        ("noop", "x'7b22ff227d'".to_owned(), now, "the column payload is not UTF-8"),
        ("noop", format!("REPEAT('x', {})", 2 << 20), now, "1048576 are allowed"),
        ("grüße", "'{}'".to_owned(), now, "the kind is not a name"),
        ("noop", "NULL".to_owned(), now, "the payload is not JSON"),
        ("noop", "'{}'".to_owned(), "NULL", "created_at"),
        ("noop", "'{}'".to_owned(), "'9999-01-01 00:00:00'", "created_at"),
        ("noop", "'{\"pad\": \"poison\"}'".to_owned(), now, "MySQL refuses the row"),
        ("unknown", "'{}'".to_owned(), now, "no kind is called"),
    ];
    let mut tx = app.begin().await.unwrap();
    for (kind, payload, created_at, _) in &bad {
        let sql = format!(
            "INSERT INTO tickr_outbox (id, kind, payload, created_at) VALUES (?, '{kind}', {payload}, {created_at})"
        );
        sqlx::query(AssertSqlSafe(sql)).bind(Uuid::now_v7()).execute(&mut *tx).await.unwrap();
    }
    let good = Uuid::now_v7();
    sqlx::query("INSERT INTO tickr_outbox (id, kind, payload, created_at) VALUES (?, 'noop', '{}', UTC_TIMESTAMP(6))")
        .bind(good)
        .execute(&mut *tx)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    until(&tickr, good, State::Completed).await;
    let rejected = i64::try_from(bad.len()).unwrap();
    tickr.until_count("SELECT COUNT(*) FROM outbox_rejected WHERE copied_from = 'shop'", rejected).await;
    shop.until_empty().await;
    let page = tickr.get("/v1/outbox/rejected").await;
    let rows = page.body["data"].as_array().unwrap();
    for (_, _, _, part) in &bad {
        let row = rows.iter().find(|row| row["reason"].as_str().unwrap().contains(part));
        assert_eq!(row.unwrap_or_else(|| panic!("{part} in {rows:#?}"))["source"], "shop");
    }
    tickr.stop().await;
    shop.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_table_column_or_right_and_a_replica_are_named() {
    let shop = Shop::alone().await;
    let base = shop.url.clone();
    let as_root = |database: &str| shop.server().mysql_url(database);
    for database in ["blank", "narrow", "alien"] {
        Store::create_database(&as_root(database)).await.unwrap();
    }
    let narrow = OUTBOX_SCHEMA.replace("    options    TEXT         NULL,\n", "");
    connect(&as_root("narrow")).await.execute(sqlx::raw_sql(AssertSqlSafe(narrow))).await.unwrap();
    let alien = OUTBOX_SCHEMA.replace("BINARY(16)  ", "CHAR(36)");
    connect(&as_root("alien")).await.execute(sqlx::raw_sql(AssertSqlSafe(alien))).await.unwrap();
    shop.sql(
        "CREATE USER looker@'%' IDENTIFIED BY 'canary'; GRANT SELECT ON shop.tickr_outbox TO looker@'%'; \
         CREATE USER mover@'%' IDENTIFIED BY 'canary'; GRANT SELECT, DELETE ON shop.tickr_outbox TO mover@'%'; \
         CREATE USER wiper@'%' IDENTIFIED BY 'canary'; GRANT DELETE ON shop.tickr_outbox TO wiper@'%'",
    )
    .await;
    let account = |user: &str, password: &str| {
        let (_, rest) = base.split_once("://").unwrap();
        let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
        format!("mysql://{user}:{password}@{place}")
    };
    let wanted = [
        ("blank", as_root("blank"), "tickr outbox schema"),
        ("narrow", as_root("narrow"), "a column is missing"),
        ("alien", as_root("alien"), "not BINARY(16)"),
        ("nowhere", as_root("nowhere"), "the database is missing"),
        ("looker", account("looker", "canary"), "GRANT SELECT, DELETE"),
        ("wiper", account("wiper", "canary"), "GRANT SELECT, DELETE"),
        ("wrong", account("mover", "wrong-canary"), "refuses the account or its password"),
    ];
    let outboxes = wanted.clone();
    let change = move |config: &mut Config| {
        for (name, url, _) in &outboxes {
            outbox(config, name, url);
        }
    };
    let tickr = TestApp::start_with(change, Registry::new()).await;
    for (name, _, part) in &wanted {
        let source = until_error(&tickr, name, part).await;
        assert!(!source.to_string().contains("canary"), "{source:#}");
    }
    // The command reports the same, and is content with the rights that the document names.
    let mut config = tickr.config.clone();
    outbox(&mut config, "mover", &account("mover", "canary"));
    let found = check_pending(&config, Registry::new(), |_| {}).await.unwrap();
    for (name, _, part) in &wanted {
        let problem = found.outboxes[*name].as_ref().unwrap();
        assert!(problem.contains(part), "{name}: {problem}");
    }
    assert_eq!(found.outboxes["mover"], None);
    let refusal = found.refusal().unwrap();
    assert!(refusal.contains("7 of 8 outboxes cannot be read"), "{refusal}");
    assert!(!format!("{found} {found:?}").contains("canary"));

    shop.sql("SET GLOBAL read_only = 1").await;
    let mut replica = OutboxSource::new(&account("mover", "canary")).unwrap();
    let error = replica.check().await.unwrap_err().to_string();
    assert!(error.contains("name the primary"), "{error}");
    shop.sql("SET GLOBAL read_only = 0").await;
    replica.check().await.unwrap();
    // A right that comes later is enough.
    shop.sql("GRANT SELECT, DELETE ON shop.tickr_outbox TO looker@'%'").await;
    eventually("it is up", || async { (seen(&tickr, "looker").await["up"] == true).then_some(()) }).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_outbox_of_a_tickr_is_no_source_and_keeps_its_rows() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
    let url = tickr.config.mysql_url().unwrap().clone();
    // The configuration refuses two texts that name one database, but one server may have several names.
    let own = |config: &mut Config| drop(config.outboxes.insert("own".parse().unwrap(), Outbox { mysql_url: url }));
    let other = tickr.another_with(own, Registry::new()).await;
    until_error(&tickr, "own", "it is the outbox in the database of a tickr").await;
    let id = Uuid::now_v7();
    insert(&mut tickr.mysql().await, id, "noop", "{}").await;
    until(&tickr, id, State::Waiting).await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_lost_the_source_copies_and_deletes_nothing_that_it_read_before() {
    let shop = Shop::beside().await;
    let tickr = TestApp::start().await;
    let store = tickr.app.broker().store();
    let name = "shop".parse().unwrap();
    let how = TakeOver { lease: Duration::from_secs(60), calm: Duration::ZERO, nudged: true };
    let (old, new) = (RunnerId::new_for_host("old"), RunnerId::new_for_host("new"));
    let id = Uuid::now_v7();
    insert(&mut shop.mysql().await, id, "noop", "{\"pad\": \"first\"}").await;

    let turn = store.take_source(&name, &old, how).await.unwrap().unwrap();
    let mut source = OutboxSource::new(&shop.url).unwrap();
    let page = source.page(&turn.copied.iter().copied().collect()).await.unwrap();
    assert_eq!(page.rows.iter().map(|row| row.id).collect::<Vec<_>>(), [id]);
    // Another runner takes over, copies the row and deletes it.
    let newer = store.take_source(&name, &new, how).await.unwrap().unwrap();
    assert!(newer.copied.is_empty());
    let copy = |turn| SourceCopy { turn, rows: page.rows.clone(), left: Vec::new(), until: page.until };
    let next = store.copy_rows(&name, &new, copy(newer.number)).await.unwrap();
    assert_eq!(next, Some(newer.number + 1));
    assert_eq!(store.copy_rows(&name, &old, copy(turn.number)).await.unwrap(), None);
    // A runner that takes over now knows what was copied.
    let third = store.take_source(&name, &old, how).await.unwrap().unwrap();
    assert_eq!(third.copied, [id]);
    assert_eq!(source.delete(&[id], page.until).await.unwrap().len(), 0);
    assert_eq!(shop.count().await, 0);
    until(&tickr, id, State::Completed).await;
    // The application inserts another row with the id. A deletion of the first one that comes late leaves it.
    insert(&mut shop.mysql().await, id, "noop", "{\"pad\": \"second\"}").await;
    assert_eq!(source.delete(&[id], page.until).await.unwrap().len(), 0);
    assert_eq!(shop.count().await, 1);
    // Without a nudge, no runner takes a source from a living runner.
    let gentle = TakeOver { nudged: false, ..how };
    assert_eq!(store.take_source(&name, &new, gentle).await.unwrap(), None);
    tickr.assert_each_ran_once(1).await;
    tickr.stop().await;
    shop.end().await;
}

/// A transaction has a row in the first page and one in a later page, and is committed between the two.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_transaction_that_is_committed_between_two_pages_are_copied_in_their_order() {
    let shop = Shop::beside().await;
    let tickr = start_with(&shop).await;
    tickr.sql("CREATE TABLE copies (n INT PRIMARY KEY AUTO_INCREMENT, id BINARY(16) NOT NULL)").await;
    tickr
        .sql("CREATE TRIGGER note AFTER INSERT ON tickr_outbox FOR EACH ROW INSERT INTO copies (id) VALUES (NEW.id)")
        .await;
    let (mut slow, mut quick) = (shop.mysql().await, shop.mysql().await);
    let (first, parent) = (Uuid::now_v7(), Uuid::now_v7());
    let others: Vec<Uuid> = (0..1_100).map(|_| Uuid::now_v7()).collect();
    let child = Uuid::now_v7();
    slow.execute("BEGIN").await.unwrap();
    insert(&mut slow, parent, "noop", "{}").await;
    let after = json!({"after": [parent]}).to_string();
    let sql = "INSERT INTO tickr_outbox (id, kind, payload, options) VALUES (?, 'noop', '{}', ?)";
    sqlx::query(sql).bind(child).bind(after).execute(&mut slow).await.unwrap();
    // The copy of the first page waits for this row, which no runner has read yet.
    let mut holds = tickr.mysql().await;
    holds.execute("BEGIN").await.unwrap();
    insert(&mut holds, first, "noop", "{}").await;
    let rows: Vec<String> = std::iter::once(&first)
        .chain(&others)
        .map(|id| format!("(UNHEX('{}'), 'noop', '{{}}', UTC_TIMESTAMP(3) + INTERVAL 1 HOUR)", id.simple()))
        .collect();
    let sql = format!("INSERT INTO tickr_outbox (id, kind, payload, execute_at) VALUES {}", rows.join(","));
    quick.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
    tickr.until_lock_waits(1..).await;
    slow.execute("COMMIT").await.unwrap();
    holds.execute("ROLLBACK").await.unwrap();
    shop.until_empty().await;
    until(&tickr, child, State::Completed).await;
    let mut mysql = tickr.mysql().await;
    let mut place = async |id: Uuid| -> i32 {
        sqlx::query_scalar("SELECT n FROM copies WHERE id = ?").bind(id).fetch_one(&mut mysql).await.unwrap()
    };
    let (parent, child) = (place(parent).await, place(child).await);
    assert!(parent < child, "copies {parent} and {child}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM outbox_rejected").await, 0);
    tickr.sql("DROP TRIGGER note").await;
    tickr.stop().await;
    shop.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_copied_before_a_runner_waits_for_a_copied_row_that_is_locked() {
    let shop = Shop::alone().await;
    let tickr = TestApp::start().await;
    note_copies(&tickr).await;
    let store = tickr.app.broker().store();
    let name = "shop".parse().unwrap();
    let former = RunnerId::new_for_host("former");
    let how = TakeOver { lease: Duration::from_secs(60), calm: Duration::ZERO, nudged: true };
    let (locked, next) = (Uuid::now_v7(), Uuid::now_v7());
    insert(&mut shop.mysql().await, locked, "noop", "{}").await;
    // A runner has copied the row and died.
    let turn = store.take_source(&name, &former, how).await.unwrap().unwrap();
    let mut source = OutboxSource::new(&shop.url).unwrap();
    source.check().await.unwrap();
    let page = source.page(&turn.copied.iter().copied().collect()).await.unwrap();
    assert!(!page.more);
    let copy = SourceCopy { turn: turn.number, rows: page.rows, left: Vec::new(), until: page.until };
    store.copy_rows(&name, &former, copy).await.unwrap().unwrap();
    let mut locks = shop.locking().await;
    locks.execute("BEGIN").await.unwrap();
    let lock = sqlx::query("SELECT id FROM tickr_outbox WHERE id = ? FOR UPDATE").bind(locked);
    assert_eq!(lock.fetch_all(&mut locks).await.unwrap().len(), 1);
    // A deletion of this row alone waits once.
    let deletions = async |conn: &mut MySqlConnection| -> u64 {
        let sql = "SHOW GLOBAL STATUS LIKE 'Com_delete_multi'";
        let (_, count): (String, String) = sqlx::query_as(sql).fetch_one(conn).await.unwrap();
        count.parse().unwrap()
    };
    let mut monitor = shop.mysql().await;
    // The connection is in use, so the deletion opens no other one.
    source.page(&[locked].into()).await.unwrap();
    let before = deletions(&mut monitor).await;
    assert_eq!(source.delete(&[locked], page.until).await.unwrap().into_iter().collect::<Vec<_>>(), [locked]);
    assert_eq!(deletions(&mut monitor).await - before, 1);
    // One among many others does not let these be deleted one by one.
    let mut many: Vec<Uuid> = (0..299).map(|_| Uuid::now_v7()).collect();
    many.push(locked);
    assert_eq!(source.delete(&many, page.until).await.unwrap().into_iter().collect::<Vec<_>>(), [locked]);
    let statements = deletions(&mut monitor).await - before - 1;
    assert!((4..=45).contains(&statements), "{statements}");
    // Another row comes, and a runner takes the source over.
    insert(&mut shop.mysql().await, next, "noop", "{}").await;
    let url = shop.url.clone();
    let other = tickr.another_with(move |config| outbox(config, "shop", &url), Registry::new()).await;
    let api = format!("http://{}", other.addr());
    assert_eq!(call(&api, reqwest::Method::POST, "/v1/outbox/nudge", "", None).await.status, 204);
    until_said(&shop.url, &shop.name, DELETE, 1).await;
    let copied: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM copies WHERE id = ?")
        .bind(next)
        .fetch_one(&mut tickr.mysql().await)
        .await
        .unwrap();
    assert_eq!(copied, 1, "the deletion came before the copy");
    locks.execute("COMMIT").await.unwrap();
    shop.until_empty().await;
    for id in [locked, next] {
        until(&tickr, id, State::Completed).await;
    }
    tickr.assert_each_ran_once(2).await;
    assert_each_copied_once(&tickr, 2).await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
    shop.end().await;
}

/// The source answers the question for new rows later than the lease ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_runner_keeps_a_source_whose_answer_takes_longer_than_its_lease() {
    let shop = Shop::beside().await;
    let proxy = Proxy::start(&shop.url).await;
    let url = proxy.url();
    let tickr = TestApp::start_with(move |config| outbox(config, "shop", &url), Registry::new()).await;
    eventually("the source is up", || async { (seen(&tickr, "shop").await["up"] == true).then_some(()) }).await;
    proxy.hold_back("SELECT id, COALESCE(LENGTH(payload)");
    eventually("the answer is late", || async { proxy.holds_one_back().then_some(()) }).await;
    let id = Uuid::now_v7();
    insert(&mut shop.mysql().await, id, "noop", "{}").await;
    let mut mysql = tickr.mysql().await;
    let mut lease = async || -> (NaiveDateTime, NaiveDateTime, Option<String>) {
        let sql = "SELECT lease_until, calm_until, error FROM outbox_sources WHERE name = 'shop'";
        sqlx::query_as(sql).fetch_one(&mut mysql).await.unwrap()
    };
    let (before, ..) = lease().await;
    // The lease of 5 s began before the question, which is given up after 10 s.
    let limit = Instant::now() + DEADLINE;
    loop {
        let (until, calm, error) = lease().await;
        assert_eq!(error, None, "the runner has left the source");
        if until > before + TimeDelta::seconds(4) {
            assert_eq!(calm, until, "a nudged runner would take the source and ask the same question");
            break;
        }
        assert!(Instant::now() < limit, "the lease ends at {until}, as before the question");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    proxy.pass_held_back();
    until(&tickr, id, State::Completed).await;
    shop.until_empty().await;
    tickr.stop().await;
    shop.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_with_large_rows_is_read_a_little_at_a_time() {
    let shop = Shop::alone().await;
    let mut mysql = shop.mysql().await;
    for _ in 0..100 {
        let sql = "INSERT INTO tickr_outbox (id, kind, payload) VALUES (?, 'noop', REPEAT('x', 1024 * 1024))";
        sqlx::query(sql).bind(Uuid::now_v7()).execute(&mut mysql).await.unwrap();
    }
    let mut source = OutboxSource::new(&shop.url).unwrap();
    source.check().await.unwrap();
    let mut reads = async || -> u64 {
        let sql = "SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_read_requests'";
        let (_, count): (String, String) = sqlx::query_as(sql).fetch_one(&mut mysql).await.unwrap();
        count.parse().unwrap()
    };
    let before = reads().await;
    for _ in 0..3 {
        let page = source.page(&BTreeSet::new()).await.unwrap();
        assert_eq!((page.rows.len(), page.more), (4, true));
    }
    // Each row has more than 64 pages of 16 KiB.
    let read = reads().await - before;
    println!("{read} pages were read for three times four rows of 1 MiB");
    assert!(read < 10_000, "{read} pages for three times four rows");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failure_the_next_page_of_a_source_has_one_row() {
    let shop = Shop::beside().await;
    let proxy = Proxy::start(&shop.url).await;
    let mut mysql = shop.mysql().await;
    for _ in 0..8 {
        insert(&mut mysql, Uuid::now_v7(), "noop", "{}").await;
    }
    let mut source = OutboxSource::new(&proxy.url()).unwrap();
    // The server stops a statement that takes too long.
    proxy.refuse("SELECT id, COALESCE(LENGTH(payload)", 3_024, 1);
    assert!(source.page(&BTreeSet::new()).await.is_err());
    let mut sizes = Vec::new();
    for _ in 0..3 {
        let page = source.page(&BTreeSet::new()).await.unwrap();
        sizes.push((page.rows.len(), page.more));
    }
    assert_eq!(sizes, [(1, true), (4, true), (8, false)]);
    shop.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_due_time_finer_than_a_millisecond_is_rounded_up_by_the_copy() {
    let shop = Shop::beside().await;
    shop.sql("ALTER TABLE tickr_outbox MODIFY execute_at DATETIME(6) NULL").await;
    let tickr = start_with(&shop).await;
    let id = Uuid::now_v7();
    let second = Utc::now().timestamp() + 3_600;
    let due = Utc.timestamp_opt(second, 300_000).unwrap();
    sqlx::query("INSERT INTO tickr_outbox (id, kind, payload, execute_at) VALUES (?, 'noop', '{}', ?)")
        .bind(id)
        .bind(due.naive_utc())
        .execute(&mut shop.mysql().await)
        .await
        .unwrap();
    let job = until(&tickr, id, State::Waiting).await;
    let stored: DateTime<Utc> = job["execute_at"].as_str().unwrap().parse().unwrap();
    assert_eq!(stored, Utc.timestamp_opt(second, 1_000_000).unwrap());
    tickr.stop().await;
    shop.end().await;
}

/// Return the number of statements that the server has received from its clients.
async fn questions(conn: &mut MySqlConnection) -> u64 {
    let sql = "SHOW GLOBAL STATUS LIKE 'Questions'";
    let (_, count): (String, String) = sqlx::query_as(sql).fetch_one(conn).await.unwrap();
    count.parse().unwrap()
}

/// Count the statements a second over this time: those that the server of tickr receives, and those of the application.
async fn statements_a_second(own: &mut MySqlConnection, source: &mut MySqlConnection, lasts: Duration) -> [f64; 2] {
    let (before, began) = ([questions(own).await, questions(source).await], Instant::now());
    tokio::time::sleep(lasts).await;
    let after = [questions(own).await, questions(source).await];
    let elapsed = began.elapsed().as_secs_f64();
    // One of them is the question itself.
    [0, 1].map(|at| (after[at] - before[at] - 1) as f64 / elapsed)
}

/// Start a runner alone on its server, with the outbox of this application and the usual lease.
async fn start_alone_with(shop: &Shop) -> TestApp {
    let url = shop.url.clone();
    let usual = move |config: &mut Config| {
        outbox(config, "shop", &url);
        // Tests have a shorter lease, which is renewed more often.
        config.lease = Config::defaults().lease;
    };
    let tickr = TestApp::start_alone(|_| {}, usual).await;
    eventually("the source is up", || async { (seen(&tickr, "shop").await["up"] == true).then_some(()) }).await;
    tickr
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_runner_with_an_outbox_asks_both_servers_ten_times_a_second_at_most() {
    let shop = Shop::alone().await;
    let tickr = start_alone_with(&shop).await;
    let (mut own, mut source) = (tickr.mysql().await, shop.mysql().await);
    // The loops have finished what they do once after a start.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let [own, source] = statements_a_second(&mut own, &mut source, Duration::from_secs(12)).await;
    println!("{own:.1} statements a second to the server of tickr, {source:.1} to that of the application");
    assert!(source >= 0.5, "it looks for rows");
    assert!(own + source <= 10.0, "{own} and {source} statements a second");
    tickr.stop().await;
}

/// The runner leads both outboxes: that of tickr and that of the application.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_runner_that_has_moved_rows_asks_both_servers_ten_times_a_second_at_most() {
    let shop = Shop::alone().await;
    let tickr = start_alone_with(&shop).await;
    let (mut own, mut source) = (tickr.mysql().await, shop.mysql().await);
    let mut ids: Vec<Uuid> = (0..4).map(|_| Uuid::now_v7()).collect();
    for app in [&mut own, &mut source] {
        for id in ids.drain(..2) {
            insert(app, id, "noop", "{}").await;
            until(&tickr, id, State::Completed).await;
        }
    }
    let (quiet, runner) = (Instant::now(), tickr.app.runner().to_string());
    eventually("the runner leads", || async {
        (tickr.get("/v1/outbox").await.body["leader"] == runner.as_str()).then_some(())
    })
    .await;
    // Rows may come again, so it looks often for a while: ten looks a second into each of the two tables.
    let often = statements_a_second(&mut own, &mut source, Duration::from_secs(3)).await;
    tokio::time::sleep_until((quiet + Duration::from_secs(12)).into()).await;
    let idle = statements_a_second(&mut own, &mut source, Duration::from_secs(12)).await;
    println!("statements a second to the server of tickr and to that of the application: {often:.1?}, then {idle:.1?}");
    assert!(idle[1] >= 0.5, "it looks for rows");
    assert!(idle.iter().sum::<f64>() <= 10.0, "{idle:?} statements a second");
    // It still leads, and looks often again from the first row on.
    assert_eq!(tickr.get("/v1/outbox").await.body["leader"], runner.as_str());
    for app in [&mut own, &mut source] {
        let (id, inserted) = (Uuid::now_v7(), Instant::now());
        insert(app, id, "noop", "{}").await;
        until(&tickr, id, State::Completed).await;
        assert!(inserted.elapsed() < Duration::from_secs(6), "{:?} after a quiet time", inserted.elapsed());
    }
    let again = statements_a_second(&mut own, &mut source, Duration::from_secs(3)).await;
    // Slow looks rest longer, so a busy machine has fewer of them.
    for at in [0, 1] {
        assert!(often[at].min(again[at]) >= 1.5 * idle[at], "{often:?}, {idle:?}, {again:?}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lag_of_a_source_is_measured_by_its_clock_alone() {
    let shop = Shop::beside().await;
    let mut app = shop.mysql().await;
    // The session of the application has a clock that is a day ahead.
    app.execute("SET SESSION timestamp = UNIX_TIMESTAMP() + 86400, time_zone = '-03:00'").await.unwrap();
    insert(&mut app, Uuid::now_v7(), "noop", "{}").await;
    let mut source = OutboxSource::new(&shop.url).unwrap();
    assert_eq!(source.backlog().await.unwrap().oldest_us, 0);
    shop.sql("UPDATE tickr_outbox SET created_at = NOW(6) - INTERVAL 90 SECOND").await;
    let backlog = source.backlog().await.unwrap();
    assert_eq!(backlog.waiting, 1);
    assert!((90_000_000..120_000_000).contains(&backlog.oldest_us), "{backlog:?}");
    shop.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lag_of_copied_rows_begins_with_the_copy() {
    let (name, url) = migrated_database().await;
    let settings = StoreSettings { url: url.clone(), connections: 5, flushers: 1, table_prefix: table_prefix() };
    let store = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
    let mut mysql = connect(&url).await;
    mysql
        .execute(
            "INSERT INTO tickr_outbox (id, kind, payload, created_at, copied_from, copied_at) \
             VALUES (REPEAT('x', 16), 'noop', '{}', NOW(6) - INTERVAL 1 HOUR, 'shop', NOW(6))",
        )
        .await
        .unwrap();
    let state = store.outbox_state().await.unwrap();
    assert!(state.waiting == 1 && state.oldest_us < 60_000_000, "{state:?}");
    store.close().await;
    drop_database(&url, &name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_password_of_an_outbox_appears_nowhere() {
    let shop = Shop::alone().await;
    let tickr = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
    shop.sql("CREATE USER mover@'%' IDENTIFIED BY 'other'; GRANT SELECT, DELETE ON shop.tickr_outbox TO mover@'%'")
        .await;
    let (_, rest) = shop.url.split_once("://").unwrap();
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    let text = format!(
        "[outboxes.wrong]\nmysql_url = \"mysql://mover:canary@{place}\"\n[outboxes.away]\nmysql_url = \
         \"mysql://mover:canary@127.0.0.1:1/shop?ssl-mode=DISABLED&ssl-key=canary\"\n"
    );
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tickr.toml"), text).unwrap();
    let run = |args: &[&str]| {
        let mut run = command(&program(), dir.path(), args);
        crate::support::program::on_servers(
            &mut run,
            tickr.config.mysql_url().unwrap().expose(),
            tickr.config.redis_url().unwrap().expose(),
            &tickr.config.redis_prefix,
        );
        run.env("TICKR_LOG", "debug");
        run
    };
    let mut serve = Program::spawn(run(&["serve", "--http-addr", "127.0.0.1:0"]));
    let url = serve.url().await;
    let state = eventually("both outboxes say what is wrong", || async {
        let state = http().get(format!("{url}/v1/outbox")).send().await.unwrap().text().await.unwrap();
        (state.matches("\"failing_since\":\"").count() == 2).then_some(state)
    })
    .await;
    let metrics = http().get(format!("{url}/metrics")).send().await.unwrap().text().await.unwrap();
    let mut said = format!("{state}{metrics}{}", serve.said());
    for args in [&["config"][..], &["check", "--pending"], &["outbox", "show", "--url", &url]] {
        let (_, out, err) = outcome(run(args)).await;
        assert!(out.contains("wrong"), "{args:?}: {out}{err}");
        said.push_str(&out);
        said.push_str(&err);
    }
    assert!(said.contains("away") && !said.contains("canary"), "{said}");
    serve.ends_well().await;
    let broken: Result<ServerUrl, _> = ServerUrl::mysql("mysql://mover:can/ary@h/d");
    assert!(!format!("{broken:?}").contains("ary"));
    tickr.stop().await;
}
