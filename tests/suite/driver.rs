//! Hazards of the database drivers. Each is reproduced with the bare crate, beside the guard that tickr has against it.
//! If a test fails here after an upgrade of sqlx or redis, that is good news: the hazard is gone, and the message names
//! the guard that can go with it.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use redis::AsyncTypedCommands;
use sqlx::mysql::{MySqlConnectOptions, MySqlDatabaseError, MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection};
use tickr::config::{Config, ServerUrl};
use tickr::handlers::Registry;
use tickr::services::Services;
use tickr::store::{PoolGuard, StoreSettings};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::redis_group::open;
use crate::support::{TestApp, connect, database, drop_database, eventually, server_options, table_prefix};

/// Poll a future this many times, with enough time in between for one answer of the server, and drop it. A client that
/// hangs up does the same to it, and so does a timeout.
async fn cancelled_at<F: Future>(polls: u32, future: F) {
    let mut future = pin!(future);
    for _ in 0..polls {
        if future.as_mut().now_or_never().is_some() {
            return;
        }
        tokio::time::sleep(Duration::from_micros(300)).await;
    }
}

/// Create a database with a table of two rows, both zero.
async fn counters() -> (String, String) {
    let (name, url) = database().await;
    let mut conn = connect(&url).await;
    conn.execute("CREATE TABLE counters (id INT PRIMARY KEY, n INT NOT NULL)").await.unwrap();
    conn.execute("INSERT INTO counters VALUES (1, 0), (2, 0)").await.unwrap();
    (name, url)
}

async fn counter(url: &str, id: i32) -> i32 {
    sqlx::query_scalar("SELECT n FROM counters WHERE id = ?").bind(id).fetch_one(&mut connect(url).await).await.unwrap()
}

fn one_connection() -> MySqlPoolOptions {
    // The test round trip is off, because it would let a cancelled `begin` get further.
    MySqlPoolOptions::new().max_connections(1).test_before_acquire(false)
}

/// Cancel `begin` at each of its stages, and write with one statement after each. Return whether every acknowledged
/// write stays.
async fn acknowledged_writes_stay(url: &str, guarded: bool) -> bool {
    for polls in 1..=12 {
        let pool: MySqlPool = one_connection().connect(url).await.unwrap();
        let begin = async {
            let mut conn = pool.acquire().await.unwrap();
            if guarded {
                let mut guard = PoolGuard::new(conn);
                guard.connection().begin().await.unwrap();
            } else {
                conn.begin().await.unwrap();
            }
        };
        cancelled_at(polls, begin).await;
        // The pool takes the connection back in a task of its own.
        let written = sqlx::query("UPDATE counters SET n = n + 1 WHERE id = 1").execute(&pool).await.unwrap();
        assert_eq!(written.rows_affected(), 1);
        let acknowledged = counter(url, 1).await;
        pool.close().await;
        let mut conn = connect(url).await;
        let kept: i32 = sqlx::query_scalar("SELECT n FROM counters WHERE id = 1").fetch_one(&mut conn).await.unwrap();
        conn.execute("UPDATE counters SET n = 0 WHERE id = 1").await.unwrap();
        if (acknowledged, kept) != (1, 1) {
            return false;
        }
    }
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_begin_makes_a_later_acknowledged_write_vanish_unless_its_connection_is_closed() {
    let (name, url) = counters().await;
    let mut stayed = 0;
    while stayed < 20 && acknowledged_writes_stay(&url, false).await {
        stayed += 1;
    }
    assert!(
        stayed < 20,
        "sqlx returns no connection with an open transaction any more: PoolGuard in store/sql/connection.rs may go"
    );
    for _ in 0..10 {
        assert!(acknowledged_writes_stay(&url, true).await);
    }
    drop_database(&url, &name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_new_statements_in_transactions_kill_a_pool_unless_a_task_of_their_own_runs_them() {
    let (name, url) = counters().await;
    let options = || MySqlPoolOptions::new().max_connections(4).acquire_timeout(Duration::from_millis(500));
    // The statement has a text that the connection has not prepared yet, and three values.
    let statement = |round: u32, spawned: bool| {
        AssertSqlSafe(format!("SELECT n + ? + ? + ? + {round} FROM counters WHERE {spawned}"))
    };
    let pool: MySqlPool = options().connect(&url).await.unwrap();
    let mut dead = None;
    for round in 0..400 {
        match pool.begin().await {
            Ok(mut tx) => {
                let query = sqlx::query(statement(round, false)).bind(1).bind(2).bind(3);
                cancelled_at(1 + round % 3, query.fetch_all(&mut *tx)).await;
            }
            Err(sqlx::Error::PoolTimedOut) => {
                dead = Some(round);
                break;
            }
            // The connection was in the middle of another exchange.
            Err(_) => {}
        }
    }
    println!("a pool of 4 is dead after {dead:?} dropped statements");
    assert!(
        dead.is_some(),
        "sqlx survives dropped statements in transactions: store/sql/connection.rs need not run transactions in tasks of their own"
    );

    // store/sql/connection.rs does this: only the waiting caller is dropped, not the transaction.
    let pool: MySqlPool = options().connect(&url).await.unwrap();
    for round in 0..200 {
        let pool = pool.clone();
        let task = tokio::spawn(async move {
            let mut tx = pool.begin().await?;
            sqlx::query(statement(round, true)).bind(1).bind(2).bind(3).fetch_all(&mut *tx).await?;
            tx.commit().await
        });
        cancelled_at(1 + round % 3, task).await;
    }
    for _ in 0..8 {
        let mut tx = pool.begin().await.unwrap();
        tx.execute("SELECT 1").await.unwrap();
        tx.commit().await.unwrap();
    }
    pool.close().await;
    drop_database(&url, &name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upsert_does_not_tell_who_won_and_a_plain_insert_does() {
    let (name, url) = counters().await;
    let mut conn = connect(&url).await;
    let upsert = "INSERT INTO counters VALUES (3, 0) ON DUPLICATE KEY UPDATE id = id";
    let first = conn.execute(upsert).await.unwrap().rows_affected();
    let second = conn.execute(upsert).await.unwrap().rows_affected();
    assert_eq!(
        (first, second),
        (1, 1),
        "rows_affected tells a new row from an old one: take_key in store/jobs/insert.rs may be an upsert"
    );
    let refused = conn.execute("INSERT INTO counters VALUES (3, 0)").await.unwrap_err();
    assert_eq!(error_number(&refused), Some(1062));
    // The same protocol flag has another effect: a write that changes no row counts as one.
    let matched = conn.execute("UPDATE counters SET n = n WHERE id = 1").await.unwrap().rows_affected();
    assert_eq!(matched, 1, "rows_affected counts changed rows now: no write may rely on either");
    drop_database(&url, &name).await;
}

fn error_number(error: &sqlx::Error) -> Option<u16> {
    let sqlx::Error::Database(database) = error else { return None };
    database.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_wait_timeout_leaves_the_transaction_open_until_it_is_rolled_back() {
    for rolled_back in [false, true] {
        let (name, url) = counters().await;
        let mut holder = connect(&url).await;
        let mut held = holder.begin().await.unwrap();
        held.execute("UPDATE counters SET n = 7 WHERE id = 2").await.unwrap();
        let mut conn = connect(&url).await;
        conn.execute("SET SESSION innodb_lock_wait_timeout = 1").await.unwrap();
        conn.execute("BEGIN").await.unwrap();
        conn.execute("UPDATE counters SET n = 1 WHERE id = 1").await.unwrap();
        let timeout = conn.execute("UPDATE counters SET n = 1 WHERE id = 2").await.unwrap_err();
        assert_eq!(error_number(&timeout), Some(1205));
        if rolled_back {
            conn.execute("ROLLBACK").await.unwrap();
        }
        conn.execute("COMMIT").await.unwrap();
        let half = counter(&url, 1).await;
        assert_eq!(
            half,
            i32::from(!rolled_back),
            "the server rolls back after a lock-wait timeout: rolled_back in store/sql/connection.rs may go"
        );
        held.rollback().await.unwrap();
        drop_database(&url, &name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocking_pop_on_a_usual_connection_gives_up_early_and_swallows_the_next_element() {
    let own = Services::start(&server_options()).unwrap();
    let client = redis::Client::open(own.redis_url()).unwrap();
    let mut other = open(&own.redis_url()).await;

    let mut usual = client.get_multiplexed_async_connection().await.unwrap();
    let began = Instant::now();
    let popped = usual.brpop("list", 5.0).await;
    let gave_up = began.elapsed();
    assert!(
        popped.is_err() && gave_up < Duration::from_secs(4),
        "a blocking pop may block for as long as it says ({gave_up:?}): index/fetch.rs needs no timeout of its own"
    );
    // The server still counts this connection as waiting, and sends it an element that is never read.
    other.lpush("list", "swallowed").await.unwrap();
    eventually("the element is gone", || {
        let mut other = other.clone();
        async move { (other.llen("list").await.unwrap() == 0).then_some(()) }
    })
    .await;

    // index/fetch.rs does this: its connection waits longer than the server is asked to block.
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(6)));
    let mut patient = client.get_multiplexed_async_connection_with_config(&patient).await.unwrap();
    let pop = tokio::spawn(async move { patient.brpop("other", 1.0).await });
    assert_eq!(pop.await.unwrap().unwrap(), None);
    other.lpush("other", "kept").await.unwrap();
    assert_eq!(other.llen("other").await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_managed_connection_stays_with_a_server_that_became_read_only() {
    let own = Services::start(&server_options()).unwrap();
    let client = redis::Client::open(own.redis_url()).unwrap();
    let mut managed = redis::aio::ConnectionManager::new(client.clone()).await.unwrap();
    let id = async |conn: &mut redis::aio::ConnectionManager| {
        redis::cmd("CLIENT").arg("ID").query_async::<i64>(conn).await.unwrap()
    };
    let before = id(&mut managed).await;
    // A failover leaves the old master demoted. No server listens on that port.
    let mut other = open(&own.redis_url()).await;
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg("1").query_async::<()>(&mut other).await.unwrap();
    for _ in 0..20 {
        let refused = managed.set("key", "value").await.unwrap_err();
        assert_eq!(refused.code(), Some("READONLY"));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        id(&mut managed).await,
        before,
        "ConnectionManager reconnects after READONLY: the index need not drop its client by itself"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_drivers_options_print_the_password_and_nothing_of_ours_does() {
    const PASSWORD: &str = "correct-horse-battery";
    let url = format!("mysql://somebody:{PASSWORD}@127.0.0.1:3306/tickr");
    let options: MySqlConnectOptions = url.parse().unwrap();
    assert!(
        format!("{options:?}").contains(PASSWORD),
        "MySqlConnectOptions keeps its password to itself: the Debug forms in store/ may be derived"
    );
    let settings = StoreSettings { url: url.clone(), connections: 1, flushers: 1, table_prefix: table_prefix() };
    let server = ServerUrl::mysql(&url).unwrap();
    let redis = format!("redis://:{PASSWORD}@127.0.0.1:6379/");
    let config = Config::for_tests(&url, &redis);
    for said in [format!("{settings:?}"), format!("{server:?} {server}"), format!("{config:?}")] {
        assert!(!said.contains(PASSWORD), "{said}");
    }

    let tickr = TestApp::start().await;
    let mut root = tickr.mysql().await;
    if !version(&mut root).await.contains("MariaDB") {
        // Without TLS, MySQL accepts passwords only by a method that the driver is built without.
        tickr.stop().await;
        return;
    }
    let account = format!("u{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
    for host in ["localhost", "127.0.0.1"] {
        tickr.sql(format!("CREATE USER {account}@'{host}' IDENTIFIED BY '{PASSWORD}'")).await;
        tickr.sql(format!("GRANT ALL ON `t%`.* TO {account}@'{host}'")).await;
    }
    let url = tickr.config.mysql_url().unwrap().expose().to_owned();
    let (_, rest) = url.split_once('@').unwrap();
    let url = ServerUrl::mysql(&format!("mysql://{account}:{PASSWORD}@{rest}")).unwrap();
    let app = tickr.another_with(|config| config.mysql_url = Some(url), Registry::new()).await;
    for said in [format!("{app:?}"), format!("{:?}", app.broker()), format!("{:?}", app.broker().store())] {
        assert!(!said.contains(PASSWORD), "{said}");
    }
    app.stop(CancellationToken::new()).await;
    for host in ["localhost", "127.0.0.1"] {
        tickr.sql(format!("DROP USER {account}@'{host}'")).await;
    }
    // A failed login names the account, not the password.
    let url = ServerUrl::mysql(&format!("mysql://{account}:{PASSWORD}@{rest}")).unwrap();
    let mut config = tickr.config.clone();
    config.mysql_url = Some(url);
    let refused = tickr::app::App::start(&config, Registry::new()).await.unwrap_err();
    for said in [format!("{refused:?}"), refused.to_string()] {
        assert!(said.contains(&account) && !said.contains(PASSWORD), "{said}");
    }
    tickr.stop().await;
}

async fn version(conn: &mut MySqlConnection) -> String {
    sqlx::query_scalar("SELECT VERSION()").fetch_one(conn).await.unwrap()
}
