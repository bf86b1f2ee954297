//! Connections, and the one loop that runs statements on them.
//!
//! Rules that every caller gets from here, because each of them was somebody's outage:
//! - Work runs in a task of its own. A client that hangs up or a timeout that fires drops a *waiter*, never a future that
//!   is in the middle of a transaction: the driver would put such a connection back with the transaction still open.
//! - Every session is READ COMMITTED, UTC, utf8mb4, with short lock waits, and takes nothing from the server's defaults.
//! - After an error the transaction is rolled back, also after a lock-wait timeout, which MySQL leaves open.
//! - Deadlocks and lost connections run the *whole* closure again, bounded and with jitter. The closure is told when an
//!   earlier run may have committed, so that it can recognise its own work.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::Rng;
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use sqlx::{ConnectOptions, Connection, MySqlConnection, Row};

use super::error::{
    Fault, StoreError, certainly_rolled_back, fault, is_out_of_statements, number, tell_outage, waited_for_lock,
};

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

/// What every session is set to, whatever the server's own defaults are, in one text and one round trip: the driver has set
/// zone and character set by then. A session that committed nothing by itself, limited its answers or read quotes in another
/// way would break promises without an error. The row that comes back is what [`Server`] needs to know.
const SESSION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
     SET SESSION autocommit = 1, completion_type = 0, sql_safe_updates = 0, sql_select_limit = 18446744073709551615, \
     sql_mode = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', \
     innodb_lock_wait_timeout = 5, lock_wait_timeout = 10; \
     SELECT CAST(@@max_allowed_packet AS SIGNED)";
/// How long a hurried connection waits for a lock, and how long any other does.
const HURRIED: &str = "SET SESSION innodb_lock_wait_timeout = 1, lock_wait_timeout = 1";
const UNHURRIED: &str = "SET SESSION innodb_lock_wait_timeout = 5, lock_wait_timeout = 10";

/// Most bytes of values in one statement, however much the server takes.
const MOST_BYTES: usize = 4 << 20;
/// A statement may have so many at the least: below them the server refuses tickr at its start.
const LEAST_BYTES: usize = 64 << 10;
/// Texts that a connection keeps prepared: more than there are, if the server has room for them.
const MOST_TEXTS: usize = 1_024;
/// With room for fewer texts than this none is kept: each would be thrown out before it is used again.
const LEAST_TEXTS: usize = 32;

/// What a server takes. Read with every connection, because a failover may lead to another server.
#[derive(Debug)]
pub(super) struct Server {
    packet: AtomicUsize,
    texts: AtomicUsize,
}

tokio::task_local! {
    /// Most bytes of values in one statement of the step that runs here.
    static STATEMENT_BYTES: usize;
}

/// Most bytes of values in one statement, for the server that the running step talks to.
pub(super) fn statement_bytes() -> usize {
    STATEMENT_BYTES.try_with(|bytes| *bytes).unwrap_or(MOST_BYTES)
}

impl Server {
    fn unknown() -> Self {
        Self { packet: AtomicUsize::new(usize::MAX), texts: AtomicUsize::new(MOST_TEXTS) }
    }

    /// Largest packet that it takes.
    pub(super) fn packet(&self) -> usize {
        self.packet.load(Ordering::Relaxed)
    }

    /// A quarter of a packet: values may be written as twice as many digits, and statements have words as well.
    pub(super) fn statement_bytes(&self) -> usize {
        (self.packet() / 4).clamp(LEAST_BYTES, MOST_BYTES)
    }

    /// It has room for `most` prepared statements, and this process has `connections`. Three quarters of the room are left to
    /// other runners and other programs.
    pub(super) fn share_statements(&self, most: usize, connections: usize) {
        self.texts.store(Self::worth_keeping(most / 4 / connections.max(1)), Ordering::Relaxed);
    }

    /// It had no room for another prepared statement: keep half as many on each connection.
    fn keep_fewer(&self) {
        let halve = |texts: usize| Some(Self::worth_keeping(texts / 2));
        let _ = self.texts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, halve);
    }

    fn worth_keeping(texts: usize) -> usize {
        if texts < LEAST_TEXTS { 0 } else { texts.min(MOST_TEXTS) }
    }
}

/// Where connections lead, and what is known of the server there.
#[derive(Clone)]
pub(super) struct Target {
    options: MySqlConnectOptions,
    pub(super) server: Arc<Server>,
}

impl Target {
    /// Nothing is known of the server before the first connection.
    pub(super) fn new(options: MySqlConnectOptions) -> Self {
        // The session's own text sets the mode.
        let options = options.pipes_as_concat(false).no_engine_substitution(false);
        Self { options, server: Arc::new(Server::unknown()) }
    }

    fn options(&self) -> MySqlConnectOptions {
        self.options.clone().statement_cache_capacity(self.server.texts.load(Ordering::Relaxed))
    }
}

/// Open one connection outside the pools.
pub(super) async fn open(target: &Target) -> Result<MySqlConnection, sqlx::Error> {
    within(FIRST_WORDS, async {
        let mut conn = target.options().connect().await?;
        prepare_session(&mut conn, &target.server).await?;
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

async fn prepare_session(conn: &mut MySqlConnection, server: &Server) -> Result<(), sqlx::Error> {
    let row = sqlx::raw_sql(SESSION).fetch_one(conn).await?;
    let packet: i64 = row.try_get(0)?;
    server.packet.store(usize::try_from(packet).unwrap_or(usize::MAX), Ordering::Relaxed);
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

/// Connections for what is not a group commit, of one kind of caller.
#[derive(Clone)]
pub(super) struct Pool {
    connections: MySqlPool,
    target: Target,
}

impl Pool {
    /// None of them is opened before it is needed.
    pub(super) fn new(target: &Target, size: u32) -> Self {
        let server = Arc::clone(&target.server);
        let connections = rolled_back_on_release(MySqlPoolOptions::new())
            .max_connections(size)
            .acquire_timeout(Duration::from_secs(3))
            .idle_timeout(Duration::from_secs(600))
            // After a restart of MySQL every idle connection is dead: found out before its use, not by it. The round trip
            // does not matter here; the hot path has connections of its own.
            .test_before_acquire(true)
            .after_connect(move |conn, _| {
                let server = Arc::clone(&server);
                Box::pin(async move { prepare_session(conn, &server).await })
            })
            .connect_lazy_with(target.options());
        Self { connections, target: target.clone() }
    }

    /// The driver's own pool.
    pub(super) fn connections(&self) -> &MySqlPool {
        &self.connections
    }

    /// The server has no room for another prepared statement: connections that are opened from now on keep fewer.
    fn keep_fewer(&self) {
        self.target.server.keep_fewer();
        self.connections.set_connect_options(self.target.options());
    }
}

/// Run `step` in one transaction on a connection of the pool, in a task of its own.
pub(super) async fn transact<T, F>(pool: &Pool, attempted: &'static str, step: F) -> Result<T, StoreError>
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
pub(super) async fn on_pool<T, F>(pool: &Pool, attempted: &'static str, step: F) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: for<'c> Fn(&'c mut MySqlConnection, Earlier) -> Step<'c, T> + Send + Sync + 'static,
{
    let pool = pool.clone();
    let task = tokio::spawn(async move {
        let mut pace = Pace::new(attempted);
        loop {
            let outcome = match pool.connections.acquire().await {
                Err(e) => Err(e),
                Ok(mut conn) => {
                    let bytes = pool.target.server.statement_bytes();
                    let work = STATEMENT_BYTES.scope(bytes, step(&mut conn, pace.earlier));
                    let outcome = within(RUN_LIMIT, work).await;
                    if outcome.as_ref().is_err_and(is_out_of_statements) {
                        pool.keep_fewer();
                    }
                    if outcome.as_ref().is_err_and(ends_connection) {
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

/// Is a connection useless after this? A packet that is too large ends it as well.
fn ends_connection(error: &sqlx::Error) -> bool {
    fault(error) == Fault::Reconnect || number(error) == Some(1153)
}

/// A connection of its own, reopened when it breaks: for the group commits and the heartbeat, which are tasks that
/// nobody cancels and which must not wait for the pool.
pub(super) struct Link {
    target: Target,
    conn: Option<MySqlConnection>,
    /// When the connection was last heard of.
    heard: Instant,
    /// Is it to wait for locks for a second only? And has the open connection been told so?
    hurried: bool,
    told_hurried: bool,
}

impl Link {
    pub(super) fn new(target: Target) -> Self {
        Self { target, conn: None, heard: Instant::now(), hurried: false, told_hurried: false }
    }

    /// From now on, wait for locks for a second only; or, if not hurried, as long as other connections do.
    pub(super) fn hurry(&mut self, hurried: bool) {
        self.hurried = hurried;
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
                Err(e) => pace.after(&e).await?,
            }
        }
    }

    /// As [`run`](Self::run), but come back with nothing as soon as `step` has waited for a lock in vain. It is rolled back
    /// by then.
    pub(super) async fn run_unless_locked<T, F>(
        &mut self,
        attempted: &'static str,
        step: F,
    ) -> Result<Option<T>, StoreError>
    where
        F: for<'c> Fn(&'c mut MySqlConnection, Earlier) -> Step<'c, T>,
    {
        let mut pace = Pace::new(attempted);
        loop {
            match self.once(&step, pace.earlier).await {
                Ok(value) => return Ok(Some(value)),
                Err(e) if waited_for_lock(&e) => return Ok(None),
                Err(e) => pace.after(&e).await?,
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

    /// One run. After an error the connection is rolled back, or closed.
    async fn once<T, F>(&mut self, step: &F, earlier: Earlier) -> Result<T, sqlx::Error>
    where
        F: for<'c> Fn(&'c mut MySqlConnection, Earlier) -> Step<'c, T>,
    {
        let outcome = self.talk(step, earlier).await;
        if let Err(e) = &outcome {
            if is_out_of_statements(e) {
                self.target.server.keep_fewer();
            }
            if ends_connection(e) || !self.rolled_back().await {
                self.conn = None;
            }
        }
        outcome
    }

    async fn talk<T, F>(&mut self, step: &F, earlier: Earlier) -> Result<T, sqlx::Error>
    where
        F: for<'c> Fn(&'c mut MySqlConnection, Earlier) -> Step<'c, T>,
    {
        if self.heard.elapsed() > RESTED && !self.is_alive().await {
            self.conn = None;
        }
        let conn = match &mut self.conn {
            Some(conn) => conn,
            empty => {
                let conn = open(&self.target).await?;
                self.told_hurried = false;
                empty.insert(conn)
            }
        };
        if self.told_hurried != self.hurried {
            let text = if self.hurried { HURRIED } else { UNHURRIED };
            within(FIRST_WORDS, sqlx::raw_sql(text).execute(&mut *conn)).await?;
            self.told_hurried = self.hurried;
        }
        let bytes = self.target.server.statement_bytes();
        let outcome = within(RUN_LIMIT, STATEMENT_BYTES.scope(bytes, step(conn, earlier))).await;
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
            Fault::Unfit | Fault::Refused | Fault::Duplicate => {
                return Err(StoreError::from_driver(self.attempted, error));
            }
            Fault::Again => {
                if !certainly_rolled_back(error) {
                    self.earlier = Earlier::MayHaveCommitted;
                }
                metrics::counter!("tickr_store_repeats_total", "cause" => "conflict").increment(1);
            }
            Fault::Reconnect => {
                tell_outage(self.attempted, error);
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
