//! Connections, and the one loop that runs statements on them.
//!
//! Rules that every caller gets from here, because each of them was somebody's outage:
//! - Work runs in a task of its own. A client that hangs up or a timeout that fires drops a *waiter*, never a future that
//!   is in the middle of a transaction: the driver would put such a connection back with the transaction still open.
//! - Every session is READ COMMITTED, UTC, utf8mb4, with a short lock wait.
//! - After an error the transaction is rolled back, also after a lock-wait timeout, which MySQL leaves open.
//! - Deadlocks and lost connections run the *whole* closure again, bounded and with jitter. The closure is told when an
//!   earlier run may have committed, so that it can recognise its own work.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::Rng;
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use sqlx::{ConnectOptions, Connection, MySqlConnection};

use super::error::{Fault, StoreError, fault};

/// The future of one run of a closure.
pub(super) type Step<'c, T> = Pin<Box<dyn Future<Output = Result<T, sqlx::Error>> + Send + 'c>>;

/// Most runs of one closure.
const MOST_RUNS: u32 = 8;
/// Longest run of one closure before its connection is given up: MySQL that answers nothing is MySQL that is out.
const RUN_LIMIT: Duration = Duration::from_secs(15);
/// A connection that rested for longer is asked for a sign of life before work is trusted to it. A network may have
/// forgotten it without a word to us, and the work would wait out its whole limit on it.
const RESTED: Duration = Duration::from_secs(1);
/// How long the first words on a connection may take: opening it, and what a start asks first.
pub(super) const FIRST_WORDS: Duration = Duration::from_secs(5);
/// How long the sign of life may take.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// What earlier runs of the same closure may have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Earlier {
    /// This is the first run, or no earlier one came as far as a commit.
    Nothing,
    /// An earlier run lost its connection and may have committed.
    MayHaveCommitted,
}

/// What every session is set to. The settings have the same names on MariaDB and MySQL when written as statements.
const SESSION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
const LOCK_WAIT: &str = "SET SESSION innodb_lock_wait_timeout = 5";

/// Open one connection outside the pool.
pub(super) async fn open(options: &MySqlConnectOptions) -> Result<MySqlConnection, sqlx::Error> {
    within(FIRST_WORDS, async {
        let mut conn = options.connect().await?;
        prepare_session(&mut conn).await?;
        Ok(conn)
    })
    .await
}

/// A connection whose server is silent for this long counts as lost, and is to be dropped with what was asked on it.
pub(super) async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    match tokio::time::timeout(limit, work).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let silence = format!("no answer within {} s", limit.as_secs());
            Err(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, silence)))
        }
    }
}

async fn prepare_session(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(SESSION).execute(&mut *conn).await?;
    sqlx::raw_sql(LOCK_WAIT).execute(&mut *conn).await?;
    Ok(())
}

/// A pool that rolls back every connection that comes back to it: the driver takes one back in the middle of a
/// transaction when a future is dropped at the wrong moment, and the next write on it would be acknowledged and vanish.
/// Public for the test that holds this guard against the driver.
#[doc(hidden)]
#[must_use]
pub fn rolled_back_on_release(options: MySqlPoolOptions) -> MySqlPoolOptions {
    options.after_release(|conn, _| {
        Box::pin(async move {
            let rollback = sqlx::raw_sql("ROLLBACK").execute(conn);
            match tokio::time::timeout(Duration::from_secs(1), rollback).await {
                Ok(done) => done.map(|_| true),
                Err(_) => Ok(false),
            }
        })
    })
}

/// The pool for everything that is not a group commit.
pub(super) fn pool(options: MySqlConnectOptions, size: u32) -> MySqlPool {
    rolled_back_on_release(MySqlPoolOptions::new())
        .max_connections(size)
        .acquire_timeout(Duration::from_secs(3))
        .idle_timeout(Duration::from_secs(600))
        // After a restart of MySQL every idle connection is dead: found out before its use, not by it. The round trip
        // does not matter here; the hot path has connections of its own.
        .test_before_acquire(true)
        .after_connect(|conn, _| Box::pin(async move { prepare_session(conn).await }))
        .connect_lazy_with(options)
}

/// Run `step` in one transaction on a connection of the pool, in a task of its own.
pub(super) async fn transact<T, F>(pool: &MySqlPool, attempted: &'static str, step: F) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: for<'c> Fn(&'c mut MySqlConnection, Earlier) -> Step<'c, T> + Send + Sync + 'static,
{
    let step = Arc::new(step);
    on_pool(pool, attempted, move |conn, earlier| Box::pin(in_transaction(conn, earlier, Arc::clone(&step)))).await
}

async fn in_transaction<T, F>(conn: &mut MySqlConnection, earlier: Earlier, step: Arc<F>) -> Result<T, sqlx::Error>
where
    F: for<'c> Fn(&'c mut MySqlConnection, Earlier) -> Step<'c, T>,
{
    let mut tx = conn.begin().await?;
    let value = step(&mut tx, earlier).await?;
    tx.commit().await?;
    Ok(value)
}

/// Run `step` on a connection of the pool without a transaction around it: reads, and single statements.
pub(super) async fn on_pool<T, F>(pool: &MySqlPool, attempted: &'static str, step: F) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: for<'c> Fn(&'c mut MySqlConnection, Earlier) -> Step<'c, T> + Send + Sync + 'static,
{
    let pool = pool.clone();
    let task = tokio::spawn(async move {
        let mut pace = Pace::new(attempted);
        loop {
            let outcome = match pool.acquire().await {
                Err(e) => Err(e),
                Ok(mut conn) => {
                    let outcome = within(RUN_LIMIT, step(&mut conn, pace.earlier)).await;
                    if outcome.as_ref().is_err_and(|e| fault(e) == Fault::Reconnect) {
                        // Nobody knows what such a connection would answer next: close it instead of releasing it.
                        conn.close_on_drop();
                    }
                    outcome
                }
            };
            match outcome {
                Ok(value) => return Ok(value),
                Err(e) => pace.after(&e).await?,
            }
        }
    });
    match task.await {
        Ok(outcome) => outcome,
        Err(e) => Err(StoreError::Refused { attempted, cause: e.to_string() }),
    }
}

/// A connection of its own, reopened when it breaks: for the group commits and the heartbeat, which are tasks that
/// nobody cancels and which must not wait for the pool.
pub(super) struct Link {
    options: MySqlConnectOptions,
    conn: Option<MySqlConnection>,
    /// When the connection was last heard of.
    heard: Instant,
}

impl Link {
    pub(super) fn new(options: MySqlConnectOptions) -> Self {
        Self { options, conn: None, heard: Instant::now() }
    }

    /// Run `step`, reopening the connection and repeating as often as the rules allow.
    pub(super) async fn run<T, F>(&mut self, attempted: &'static str, step: F) -> Result<T, StoreError>
    where
        F: for<'c> Fn(&'c mut MySqlConnection, Earlier) -> Step<'c, T>,
    {
        let mut pace = Pace::new(attempted);
        loop {
            match self.once(&step, pace.earlier).await {
                Ok(value) => return Ok(value),
                Err(e) => {
                    if fault(&e) == Fault::Reconnect || !self.rolled_back().await {
                        self.conn = None;
                    }
                    pace.after(&e).await?;
                }
            }
        }
    }

    /// Close the connection, whatever it is doing; the next call opens another.
    pub(super) fn disconnect(&mut self) {
        self.conn = None;
    }

    /// End whatever transaction a failed step left behind, now: the driver would do it with the next statement, and on a
    /// quiet evening that is hours with the locks held.
    async fn rolled_back(&mut self) -> bool {
        let Some(conn) = &mut self.conn else { return true };
        let rollback = sqlx::raw_sql("ROLLBACK").execute(conn);
        matches!(tokio::time::timeout(Duration::from_secs(1), rollback).await, Ok(Ok(_)))
    }

    async fn once<T, F>(&mut self, step: &F, earlier: Earlier) -> Result<T, sqlx::Error>
    where
        F: for<'c> Fn(&'c mut MySqlConnection, Earlier) -> Step<'c, T>,
    {
        if self.heard.elapsed() > RESTED && !self.is_alive().await {
            self.conn = None;
        }
        let conn = match &mut self.conn {
            Some(conn) => conn,
            empty => empty.insert(open(&self.options).await?),
        };
        let outcome = within(RUN_LIMIT, step(conn, earlier)).await;
        self.heard = Instant::now();
        outcome
    }

    async fn is_alive(&mut self) -> bool {
        let Some(conn) = &mut self.conn else { return true };
        matches!(tokio::time::timeout(SIGN_OF_LIFE, conn.ping()).await, Ok(Ok(())))
    }
}

/// Decides after each failed run whether there is another, and waits in between.
struct Pace {
    attempted: &'static str,
    runs: u32,
    earlier: Earlier,
}

impl Pace {
    fn new(attempted: &'static str) -> Self {
        Self { attempted, runs: 0, earlier: Earlier::Nothing }
    }

    async fn after(&mut self, error: &sqlx::Error) -> Result<(), StoreError> {
        self.runs += 1;
        match fault(error) {
            // Our own rows: the first run's commit arrived after all. The next run recognises them.
            Fault::Duplicate if self.earlier == Earlier::MayHaveCommitted => {}
            Fault::Final | Fault::Duplicate => return Err(StoreError::from_driver(self.attempted, error)),
            Fault::Again => metrics::counter!("tickr_store_repeats_total", "cause" => "conflict").increment(1),
            Fault::Reconnect => {
                // Three tries tell a killed connection from a server that is out; the caller knows how to wait longer.
                // The pool has tried for seconds by itself.
                if self.runs >= 3 || matches!(error, sqlx::Error::PoolTimedOut) {
                    return Err(StoreError::from_driver(self.attempted, error));
                }
                self.earlier = Earlier::MayHaveCommitted;
                metrics::counter!("tickr_store_repeats_total", "cause" => "line").increment(1);
            }
        }
        if self.runs >= MOST_RUNS {
            return Err(StoreError::from_driver(self.attempted, error));
        }
        tracing::debug!(attempted = self.attempted, run = self.runs, %error, "store call is repeated");
        let most = 10_u64 << self.runs.min(6);
        let wait = rand::rng().random_range(1..=most);
        tokio::time::sleep(Duration::from_millis(wait)).await;
        Ok(())
    }
}
