//! Connections to MySQL, and the one loop that runs statements on them.
//!
//! Every caller gets these rules from here. Each of them prevents a known kind of outage:
//! - Work runs in a task of its own. When a client hangs up or a timeout fires, only a *waiter* is dropped, never a
//!   future that is in the middle of a transaction. The driver would put such a connection back into the pool with its
//!   transaction still open.
//! - Every session is READ COMMITTED, UTC and utf8mb4, with short lock waits. It takes nothing from the server's
//!   defaults.
//! - After an error the transaction is rolled back. This includes a lock-wait timeout, after which MySQL leaves the
//!   transaction open.
//! - After a deadlock or a lost connection the *whole* closure runs again, a bounded number of times and with jitter.
//!   The closure is told when an earlier run may have committed, so that it can recognise its own rows.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rand::Rng;
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlPoolOptions};
use sqlx::pool::PoolConnection;
use sqlx::{ConnectOptions, Connection, MySql, MySqlConnection, Row};

use crate::sql::disk_room::DiskRoom;
use crate::sql::error::{
    Fault, StoreError, certainly_rolled_back, fault, is_out_of_statements, lacks_right, number, tell_outage,
    waited_for_lock,
};
use crate::sql::read_only::ReadOnlySightings;
use crate::sql::servers::{
    Blame, READ_ONLY, Servers, blame, blame_at_opening, check_member, check_writable, of_no_use, takes_writes,
};
use crate::sql::session::Session;
use crate::sql::topology::KnownTopology;
use crate::sql::write_probe;
use tickr_job::TablePrefix;

/// The future of one run of a closure.
pub(crate) type DbFuture<'c, T> = Pin<Box<dyn Future<Output = Result<T, sqlx::Error>> + Send + 'c>>;

/// Most runs of one closure.
const MAX_RUNS: u32 = 8;
/// Longest run of one closure. After that the connection is given up: a MySQL that does not answer counts as down.
const RUN_LIMIT: Duration = Duration::from_secs(15);
/// Idle time after which a connection is pinged before work runs on it. A firewall or load balancer may have dropped
/// the connection silently. Without the ping, the work would wait for its whole limit on a dead connection.
const RESTED: Duration = Duration::from_secs(1);
/// Time limit for opening a connection and for the first statements on it.
pub(crate) const FIRST_WORDS: Duration = Duration::from_secs(5);
/// Time for which an answer shows that a server works, although it takes no further connection.
const RECENT: Duration = Duration::from_secs(5);
/// Time limit for the ping of an idle connection.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// Effect that earlier runs of the same closure may have had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PriorRun {
    /// This is the first run, or no earlier run reached its commit.
    Nothing,
    /// An earlier run lost its connection and may have committed.
    MayHaveCommitted,
}

/// The settings of every session, whatever the server's own defaults are, in one text and one round trip. The driver
/// has set the time zone and the character set before. Without these settings, a session that did not commit by itself,
/// limited its results or read quotes differently would break guarantees without an error. [`Server`] needs the rows
/// that come back: the limit of a packet with what says whether the server takes writes, and a variable that MySQL does
/// not know, with which MariaDB says whether it is a node of a Galera cluster.
///
/// A process that froze in a transaction keeps its locks for as long as its connection lives. MariaDB ends a connection
/// that says nothing in a transaction, here after [`RUN_LIMIT`], when a living process has given up. This also concerns
/// transactions that wrote nothing: an update that waited for a lock keeps it, even if the row does not match any more.
/// MySQL has no such limit and reads a comment.
///
/// A server may limit the time of each statement. Such a limit ends a wait for a lock with another error than the
/// wait's own one, and then no caller learns that a row is locked. So the session has none: the calls have limits of
/// their own. MariaDB and MySQL have different names for it, and each reads a comment in the place of the other's.
const SESSION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
     SET SESSION autocommit = 1, completion_type = 0, sql_safe_updates = 0, sql_select_limit = 18446744073709551615, \
     sql_mode = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', \
     innodb_lock_wait_timeout = 5, lock_wait_timeout = 10 /*M!100300 , idle_transaction_timeout = 15, \
     max_statement_time = 0 */ /*!50708 , max_execution_time = 0 */; \
     SELECT CAST(@@max_allowed_packet AS SIGNED), CAST(@@GLOBAL.read_only AS CHAR), \
     CAST(@@GLOBAL.innodb_read_only AS CHAR); SHOW VARIABLES LIKE 'wsrep_on'";
/// Lock waits of a hurried connection (1 s), and of every other connection (5 s and 10 s). MySQL takes no shorter one.
const HURRIED: &str = "SET SESSION innodb_lock_wait_timeout = 1, lock_wait_timeout = 1";
const UNHURRIED: &str = "SET SESSION innodb_lock_wait_timeout = 5, lock_wait_timeout = 10";

/// Most bytes of values in one statement, even if the server accepts more.
const MAX_BYTES: usize = 4 << 20;
/// Smallest limit for the bytes of values in one statement. If the server accepts less, tickr refuses to start.
const LEAST_BYTES: usize = 64 << 10;
/// Most prepared statements kept per connection: more than there are different statements, if the server has room for
/// them.
const MAX_TEXTS: usize = 1_024;
/// If the server has room for fewer prepared statements per connection than this, none is kept: each would be evicted
/// before it is used again.
const LEAST_TEXTS: usize = 32;

/// Limits of a MySQL server. They are read with every new connection, because a failover may lead to another server.
#[derive(Debug)]
pub(crate) struct Server {
    packet: AtomicUsize,
    texts: AtomicUsize,
    clustered: AtomicBool,
    /// The replicas or the cluster behind it.
    pub(crate) topology: KnownTopology,
    /// When a connection last led to a server that takes no writes.
    read_only: ReadOnlySightings,
    /// Whether it had no room for a write a moment ago.
    pub(crate) room: DiskRoom,
}

/// What the server of the running step accepts.
#[derive(Clone, Copy)]
struct StatementLimits {
    /// Most bytes of values in one statement.
    bytes: usize,
    /// Whether the server has room for prepared statements.
    prepared: bool,
    /// Whether the server is a node of a Galera cluster.
    clustered: bool,
}

tokio::task_local! {
    static LIMITS: StatementLimits;
}

/// Return the most bytes of values in one statement, for the server that the running step uses.
pub(crate) fn statement_bytes() -> usize {
    LIMITS.try_with(|limits| limits.bytes).unwrap_or(MAX_BYTES)
}

/// Return whether the server that the running step uses has room for prepared statements, as far as is known.
pub(crate) fn has_room_for_statements() -> bool {
    LIMITS.try_with(|limits| limits.prepared).unwrap_or(true)
}

/// Return whether the server that the running step uses is a node of a Galera cluster.
pub(crate) fn is_in_cluster() -> bool {
    LIMITS.try_with(|limits| limits.clustered).unwrap_or(false)
}

impl Server {
    fn unknown() -> Self {
        let (packet, texts) = (AtomicUsize::new(usize::MAX), AtomicUsize::new(MAX_TEXTS));
        let (read_only, room) = (ReadOnlySightings::default(), DiskRoom::default());
        let topology = KnownTopology::default();
        Self { packet, texts, clustered: AtomicBool::new(false), topology, read_only, room }
    }

    /// Return the largest packet that the server accepts, in bytes.
    pub(crate) fn packet(&self) -> usize {
        self.packet.load(Ordering::Relaxed)
    }

    /// Return a quarter of the packet size. A value may be written as hexadecimal digits, twice its length, and the
    /// text of the statement needs space too.
    pub(crate) fn statement_bytes(&self) -> usize {
        (self.packet() / 4).clamp(LEAST_BYTES, MAX_BYTES)
    }

    fn limits(&self) -> StatementLimits {
        StatementLimits {
            bytes: self.statement_bytes(),
            prepared: self.texts.load(Ordering::Relaxed) > 0,
            clustered: self.clustered.load(Ordering::Relaxed),
        }
    }

    /// Set the number of prepared statements per connection. The server has room for `most` of them, and this process
    /// has `connections` connections. Three quarters of the room are left to other runners and other programs.
    pub(crate) fn share_statements(&self, most: usize, connections: usize) {
        self.texts.store(Self::worth_keeping(most / 4 / connections.max(1)), Ordering::Relaxed);
    }

    /// Keep half as many prepared statements on each connection, because the server had no room for another one.
    fn keep_fewer(&self) {
        let halve = |texts: usize| Some(Self::worth_keeping(texts / 2));
        let _ = self.texts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, halve);
    }

    fn worth_keeping(texts: usize) -> usize {
        if texts < LEAST_TEXTS { 0 } else { texts.min(MAX_TEXTS) }
    }
}

/// The addresses and options of the servers, the known limits of the one in use, and the prefix of the tables there.
#[derive(Clone)]
pub(crate) struct Target {
    servers: Arc<Servers>,
    pub(crate) server: Arc<Server>,
    pub(crate) prefix: TablePrefix,
}

impl Target {
    /// Build a target of at least one server. Its limits are unknown until the first connection.
    pub(crate) fn new(each: Vec<MySqlConnectOptions>, prefix: TablePrefix) -> Self {
        // [`SESSION`] sets the SQL mode, so the driver must not. The time zone and the character set of a URL are for
        // reports: here they would change texts and shift times.
        let usual = |options: MySqlConnectOptions| {
            let options = options.timezone(Some("+00:00".to_owned())).charset("utf8mb4");
            options.pipes_as_concat(false).no_engine_substitution(false)
        };
        let servers = Arc::new(Servers::new(each.into_iter().map(usual).collect()));
        Self { servers, server: Arc::new(Server::unknown()), prefix }
    }

    /// Return the options of the server of this turn.
    fn options(&self, turn: u64) -> MySqlConnectOptions {
        self.servers.options(turn).clone().statement_cache_capacity(self.server.texts.load(Ordering::Relaxed))
    }

    /// Return the present turn of the servers. It changes when another server is used.
    pub(crate) fn turn(&self) -> u64 {
        self.servers.turn()
    }

    /// Return the name of the database. It is the same on each server.
    pub(crate) fn database(&self) -> Option<String> {
        self.servers.options(0).get_database().map(str::to_owned)
    }
}

/// Open one connection outside the pools.
pub(crate) async fn open(target: &Target) -> Result<Session<'static>, sqlx::Error> {
    Ok(Session::new(open_driver(target).await?, target.prefix.clone()))
}

/// Open one connection outside the pools, for statements that must reach the server unchanged.
pub(crate) async fn open_driver(target: &Target) -> Result<MySqlConnection, sqlx::Error> {
    open_somewhere(target).await.map(|(_, conn)| conn)
}

/// Open one connection to the server in use. When that one cannot be used, go on to the next one, and try each once.
/// Return also the turn. When none can be used, the error is that of the first one.
async fn open_somewhere(target: &Target) -> Result<(u64, MySqlConnection), sqlx::Error> {
    let servers = &target.servers;
    let mut first = None;
    for _ in 0..servers.len() {
        let turn = servers.turn();
        match open_at(target, turn).await {
            Ok(conn) => {
                servers.answered(turn);
                return Ok((turn, conn));
            }
            Err(error) => {
                judge_opening(target, turn, &error).await;
                first.get_or_insert(error);
                if servers.turn() == turn {
                    break;
                }
            }
        }
    }
    Err(first.unwrap_or(sqlx::Error::PoolTimedOut))
}

/// Open one connection to the server of this turn, and check that it can be used.
async fn open_at(target: &Target, turn: u64) -> Result<MySqlConnection, sqlx::Error> {
    within(FIRST_WORDS, async {
        let mut conn = target.options(turn).connect().await?;
        let writes = prepare_session(&mut conn, &target.server).await?;
        if target.servers.are_many() {
            if !writes {
                return Err(of_no_use(READ_ONLY));
            }
            check_member(&mut conn).await?;
        } else if !writes {
            target.server.read_only.note();
        }
        Ok(conn)
    })
    .await
}

/// Go on to the next server if the error of a statement says that this one cannot be used.
async fn judge(target: &Target, turn: u64, error: &sqlx::Error) {
    settle_blame(target, turn, error, blame(error)).await;
}

/// Go on to the next server if no connection can be opened to this one.
async fn judge_opening(target: &Target, turn: u64, error: &sqlx::Error) {
    let answered = target.servers.answered_within(turn, RECENT);
    settle_blame(target, turn, error, blame_at_opening(error, answered)).await;
}

/// Act on what an error says about a server. A doubt is settled by a write on a new connection, by one caller for all:
/// a statement that is slow, or that has an error of its own, must not lead a whole process to another server.
async fn settle_blame(target: &Target, turn: u64, error: &sqlx::Error, blame: Blame) {
    let servers = &target.servers;
    if !servers.are_many() {
        return;
    }
    match blame {
        Blame::None => {}
        Blame::Certain => servers.leave(turn, error),
        Blame::Doubtful => {
            let _alone = servers.doubt.lock().await;
            if servers.turn() != turn || servers.proved_within(turn, SIGN_OF_LIFE) {
                return;
            }
            match try_write(target, turn).await {
                Ok(()) => servers.proved(turn),
                Err(failure) => {
                    let answered = servers.answered_within(turn, RECENT);
                    if blame_at_opening(&failure, answered) != Blame::None {
                        servers.leave(turn, error);
                    }
                }
            }
        }
    }
}

/// Change a row and commit, on a new connection to the server of this turn.
async fn try_write(target: &Target, turn: u64) -> Result<(), sqlx::Error> {
    let conn = open_at(target, turn).await?;
    let mut conn = Session::new(conn, target.prefix.clone());
    // The tables may not be there yet, or a cluster may have chosen another transaction. A row that stays locked says
    // the opposite: only probes change it, so an earlier one of them cannot commit.
    let works = |error| matches!(fault(error), Fault::Refused | Fault::Again) && !waited_for_lock(error);
    match within(FIRST_WORDS, write_probe::write(&mut conn)).await {
        Err(error) if works(&error) => Ok(()),
        Err(error) if matches!(error, sqlx::Error::Database(_)) => Err(sqlx::Error::Io(std::io::Error::other(error))),
        outcome => outcome,
    }
}

/// Run `work` with a time limit. If the server is silent for longer, its connection counts as lost: the caller must
/// drop the connection and the work on it.
pub(crate) async fn within<T>(
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

/// Send the settings of a session, and read what its server accepts. Return whether the server takes writes.
async fn prepare_session(conn: &mut MySqlConnection, server: &Server) -> Result<bool, sqlx::Error> {
    let rows = sqlx::raw_sql(SESSION).fetch_all(conn).await?;
    let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let packet: i64 = first.try_get(0)?;
    let clustered = match rows.get(1) {
        Some(row) => row.try_get::<String, _>(1)?.eq_ignore_ascii_case("ON"),
        None => false,
    };
    server.clustered.store(clustered, Ordering::Relaxed);
    server.packet.store(usize::try_from(packet).unwrap_or(usize::MAX), Ordering::Relaxed);
    takes_writes(first, 1)
}

/// A connection that was taken out of a pool. It is closed when it is dropped, unless [`release`](Self::release) was
/// called. When a future is dropped at the wrong moment or panics, the driver would return a connection in the middle of
/// a transaction. The next write on it would be acknowledged and then lost. This type is public for the test that checks
/// this guard against the driver.
#[doc(hidden)]
pub struct PoolGuard {
    conn: PoolConnection<MySql>,
    is_clean: bool,
}

impl PoolGuard {
    /// Guard a connection.
    #[must_use]
    pub fn new(conn: PoolConnection<MySql>) -> Self {
        Self { conn, is_clean: false }
    }

    /// Return the connection.
    pub fn connection(&mut self) -> &mut MySqlConnection {
        &mut self.conn
    }

    /// Give the connection back to its pool. The caller knows that no transaction is open on it.
    pub fn release(mut self) {
        self.is_clean = true;
    }
}

impl Drop for PoolGuard {
    fn drop(&mut self) {
        if !self.is_clean {
            self.conn.close_on_drop();
        }
    }
}

/// Pooled connections for one group of callers. Group commits do not use them.
#[derive(Clone)]
pub(crate) struct Pool {
    opened: Arc<RwLock<OpenedPool>>,
    target: Target,
}

/// The driver's pool of the connections to one server.
struct OpenedPool {
    /// The turn of that server.
    turn: u64,
    connections: MySqlPool,
    /// Each connection waits for a lock for one second only.
    hurried: bool,
    /// Pools of servers that were left, while work on their connections goes on.
    left: Vec<MySqlPool>,
}

impl OpenedPool {
    fn new(target: &Target, size: u32, hurried: bool) -> Self {
        let (limits, seen) = (Arc::clone(&target.server), Arc::clone(&target.server));
        let turn = target.turn();
        let connections = MySqlPoolOptions::new()
            .max_connections(size)
            .acquire_timeout(Duration::from_secs(3))
            .idle_timeout(Duration::from_secs(600))
            // After a restart of MySQL every idle connection is dead. The ping finds this out before the connection is
            // used. Its extra round trip does not matter here, because the hot path has connections of its own.
            .test_before_acquire(true)
            .after_connect(move |conn, _| {
                let limits = Arc::clone(&limits);
                Box::pin(async move {
                    let writes = prepare_session(conn, &limits).await?;
                    if hurried {
                        sqlx::raw_sql(HURRIED).execute(conn).await?;
                    }
                    // Reads go on while the only server takes no writes. Last, so that the sighting is about as old as
                    // the connection.
                    if !writes {
                        limits.read_only.note();
                    }
                    Ok(())
                })
            })
            // Behind a proxy, a connection may lead to a former primary for ever, and read what is old.
            .before_acquire(move |_, connection| {
                let is_usable = !seen.read_only.concerns(connection.age);
                Box::pin(async move { Ok(is_usable) })
            })
            .connect_lazy_with(target.options(turn));
        Self { turn, connections, hurried, left: Vec::new() }
    }
}

impl Pool {
    /// Build a pool. No connection is opened before it is needed.
    pub(crate) fn new(target: &Target, size: u32) -> Self {
        Self { opened: Arc::new(RwLock::new(OpenedPool::new(target, size, false))), target: target.clone() }
    }

    /// Build a pool whose connections wait for a lock for one second only.
    pub(crate) fn hurried(target: &Target, size: u32) -> Self {
        Self { opened: Arc::new(RwLock::new(OpenedPool::new(target, size, true))), target: target.clone() }
    }

    /// Return the driver's own pool.
    pub(crate) fn connections(&self) -> MySqlPool {
        self.opened().1
    }

    /// Return the present turn, and the driver's pool of the connections to its server.
    fn opened(&self) -> (u64, MySqlPool) {
        let opened = self.opened.read().unwrap_or_else(PoisonError::into_inner);
        let (turn, connections) = (opened.turn, opened.connections.clone());
        drop(opened);
        if turn == self.target.turn() || connections.is_closed() {
            return (turn, connections);
        }
        let mut opened = self.opened.write().unwrap_or_else(PoisonError::into_inner);
        if opened.turn != self.target.turn() && !opened.connections.is_closed() {
            let size = opened.connections.options().get_max_connections();
            let opened_there = OpenedPool::new(&self.target, size, opened.hurried);
            let mut replaced = std::mem::replace(&mut *opened, opened_there);
            replaced.left.retain(|pool| pool.size() > 0);
            replaced.left.push(replaced.connections.clone());
            opened.left = replaced.left;
            // The connections in use end with the work on them.
            tokio::spawn(async move { replaced.connections.close().await });
        }
        (opened.turn, opened.connections.clone())
    }

    /// Take a connection to the server in use. When that one cannot be used, go on to the next one, and try each once.
    /// Return also the turn. When none can be used, the error is that of the first one.
    async fn acquire(&self) -> Result<(u64, PoolConnection<MySql>), sqlx::Error> {
        let servers = &self.target.servers;
        let mut first = None;
        for _ in 0..servers.len() {
            let (turn, connections) = self.opened();
            let error = match connections.acquire().await {
                Ok(conn) if !servers.are_many() => return Ok((turn, conn)),
                // Each time, because a server that has become a replica still answers reads, with what may be old.
                Ok(mut conn) => match within(SIGN_OF_LIFE, check_writable(&mut conn)).await {
                    Ok(()) => {
                        servers.answered(turn);
                        return Ok((turn, conn));
                    }
                    Err(error) => {
                        conn.close_on_drop();
                        judge(&self.target, turn, &error).await;
                        error
                    }
                },
                Err(error) => {
                    judge_opening(&self.target, turn, &error).await;
                    error
                }
            };
            first.get_or_insert(error);
            if servers.turn() == turn {
                break;
            }
        }
        Err(first.unwrap_or(sqlx::Error::PoolTimedOut))
    }

    /// Close all connections in an orderly way.
    pub(crate) async fn close(&self) {
        let (connections, left) = {
            let opened = self.opened.read().unwrap_or_else(PoisonError::into_inner);
            (opened.connections.clone(), opened.left.clone())
        };
        connections.close().await;
        for pool in left {
            pool.close().await;
        }
    }

    /// Make new connections keep fewer prepared statements, because the server has no room for another one.
    fn keep_fewer(&self) {
        self.target.server.keep_fewer();
        let opened = self.opened.read().unwrap_or_else(PoisonError::into_inner);
        opened.connections.set_connect_options(self.target.options(opened.turn));
    }
}

/// Run `step` in one transaction on a connection of the pool, in a task of its own.
pub(crate) async fn transact<T, F>(pool: &Pool, attempted: &'static str, step: F) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: for<'c> Fn(&'c mut Session<'_>, PriorRun) -> DbFuture<'c, T> + Send + Sync + 'static,
{
    run_of(pool, attempted, Frame::Transaction, step).await.and_then(|done| done.ok_or_else(|| no_value(attempted)))
}

/// Do what [`transact`] does, but return nothing as soon as a lock wait of `step` has timed out, after seconds instead of
/// the better part of a minute. The step has been rolled back by then.
pub(crate) async fn transact_unless_locked<T, F>(
    pool: &Pool,
    attempted: &'static str,
    step: F,
) -> Result<Option<T>, StoreError>
where
    T: Send + 'static,
    F: for<'c> Fn(&'c mut Session<'_>, PriorRun) -> DbFuture<'c, T> + Send + Sync + 'static,
{
    run_of(pool, attempted, Frame::TransactionUnlessLocked, step).await
}

/// Run `step` on a connection of the pool without a transaction around it, for reads and for single statements.
pub(crate) async fn on_pool<T, F>(pool: &Pool, attempted: &'static str, step: F) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: for<'c> Fn(&'c mut Session<'_>, PriorRun) -> DbFuture<'c, T> + Send + Sync + 'static,
{
    run_of(pool, attempted, Frame::Nothing, step).await.and_then(|done| done.ok_or_else(|| no_value(attempted)))
}

fn no_value(attempted: &'static str) -> StoreError {
    StoreError::refused(attempted, "the step returned no value".to_owned())
}

/// The statements around a step.
#[derive(Clone, Copy)]
enum Frame {
    Nothing,
    Transaction,
    TransactionUnlessLocked,
}

/// A step without its types. It keeps its value.
type UntypedStep = Box<dyn for<'c> Fn(&'c mut Session<'_>, PriorRun) -> DbFuture<'c, ()> + Send + Sync>;

/// Run `step` within a frame. Nothing if the frame gave up.
///
/// The loop that runs a step, and the task around it, do not depend on the types of the step. So the compiler makes them
/// once, in this crate. It would otherwise make them for each of the two hundred steps, and again in each crate that
/// calls one.
async fn run_of<T, F>(pool: &Pool, attempted: &'static str, frame: Frame, step: F) -> Result<Option<T>, StoreError>
where
    T: Send + 'static,
    F: for<'c> Fn(&'c mut Session<'_>, PriorRun) -> DbFuture<'c, T> + Send + Sync + 'static,
{
    let value: Arc<Mutex<Option<T>>> = Arc::default();
    let kept = Arc::clone(&value);
    let untyped: UntypedStep = Box::new(move |conn, earlier| {
        let (work, kept) = (step(conn, earlier), Arc::clone(&kept));
        Box::pin(async move {
            let done = work.await?;
            *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            Ok(())
        })
    });
    let is_done = run_untyped(pool, attempted, frame, untyped).await?;
    let done = value.lock().unwrap_or_else(PoisonError::into_inner).take();
    Ok(done.filter(|_| is_done))
}

tokio::task_local! {
    static IS_HEAVY: bool;
}

/// Run a heavy read: a search, a count or another read whose cost the client chooses. MySQL goes on with a statement that
/// tickr has given up, so a repeat would only add another one.
pub async fn heavy_read<T>(read: impl Future<Output = T>) -> T {
    IS_HEAVY.scope(true, read).await
}

/// Return whether a step that failed may run again on another connection, as far as its cost is concerned.
fn may_repeat(is_heavy: bool, frame: Frame, error: &sqlx::Error) -> bool {
    let timed_out = matches!(error, sqlx::Error::Io(cause) if cause.kind() == std::io::ErrorKind::TimedOut);
    !(is_heavy && timed_out && matches!(frame, Frame::Nothing))
}

/// Run a step within a frame, in a task of its own. False if the frame gave up.
fn run_untyped(
    pool: &Pool,
    attempted: &'static str,
    frame: Frame,
    step: UntypedStep,
) -> Pin<Box<dyn Future<Output = Result<bool, StoreError>> + Send>> {
    let pool = pool.clone();
    let is_heavy = IS_HEAVY.try_with(|is_heavy| *is_heavy).unwrap_or(false);
    let work = async move {
        let mut pace = Repetition::new(attempted);
        loop {
            let outcome = match pool.acquire().await {
                Err(e) => Err(e),
                Ok((turn, conn)) => {
                    let mut guard = PoolGuard::new(conn);
                    let mut session = Session::on(guard.connection(), pool.target.prefix.clone());
                    let work = framed(frame, &mut session, pace.earlier, &step);
                    let work = LIMITS.scope(pool.target.server.limits(), work);
                    let outcome = within(RUN_LIMIT, work).await;
                    drop(session);
                    // A step that succeeded has ended its transaction. After some errors the next answer on the
                    // connection is unpredictable, so it is closed instead of released.
                    let is_clean = match &outcome {
                        Ok(_) => true,
                        Err(e) if ends_connection(e) => false,
                        Err(_) => rolled_back(guard.connection()).await,
                    };
                    if is_clean {
                        guard.release();
                    }
                    if outcome.as_ref().is_err_and(is_out_of_statements) {
                        pool.keep_fewer();
                    }
                    if let Err(error) = &outcome {
                        if !matches!(frame, Frame::Nothing) {
                            pool.target.server.room.note(error);
                        }
                        pool.target.server.read_only.note_error(error);
                        judge(&pool.target, turn, error).await;
                        // Another server does not have the read that this one may go on with.
                        if !may_repeat(is_heavy, frame, error) && turn == pool.target.turn() {
                            return Err(StoreError::from_driver(attempted, error));
                        }
                    }
                    outcome
                }
            };
            match outcome {
                Ok(is_done) => return Ok(is_done),
                Err(e) => pace.after(&e).await?,
            }
        }
    };
    Box::pin(async move {
        match tokio::spawn(work).await {
            Ok(outcome) => outcome,
            Err(e) => Err(StoreError::refused(attempted, e.to_string())),
        }
    })
}

async fn framed(
    frame: Frame,
    conn: &mut Session<'_>,
    earlier: PriorRun,
    step: &UntypedStep,
) -> Result<bool, sqlx::Error> {
    match frame {
        Frame::Nothing => step(conn, earlier).await.map(|()| true),
        Frame::Transaction => in_transaction(conn, earlier, step).await.map(|()| true),
        Frame::TransactionUnlessLocked => match in_transaction(conn, earlier, step).await {
            // The locks that it has are not kept until the next statement.
            Err(error) if waited_for_lock(&error) && rolled_back(conn.driver()).await => Ok(false),
            done => done.map(|()| true),
        },
    }
}

async fn in_transaction(conn: &mut Session<'_>, earlier: PriorRun, step: &UntypedStep) -> Result<(), sqlx::Error> {
    let mut tx = conn.begin().await?;
    step(&mut tx, earlier).await?;
    tx.commit().await
}

/// Roll back the transaction that a failed step may have left open. The driver would do so only with the next
/// statement; on a quiet system the locks would be held until then, perhaps for hours.
async fn rolled_back(conn: &mut MySqlConnection) -> bool {
    let rollback = sqlx::raw_sql("ROLLBACK").execute(conn);
    matches!(tokio::time::timeout(Duration::from_secs(1), rollback).await, Ok(Ok(_)))
}

/// Return whether the connection is unusable after this error. MySQL also closes it after a packet that is too large
/// (1153). And a session keeps the rights in its database that its account had when it connected, so only another
/// session can use a right that was given since.
fn ends_connection(error: &sqlx::Error) -> bool {
    fault(error) == Fault::Reconnect || number(error) == Some(1153) || lacks_right(error)
}

/// A dedicated connection that is reopened when it breaks. The group commits and the heartbeat use one each: they are
/// tasks that are never cancelled and that must not wait for a pool.
pub(crate) struct DedicatedConnection {
    target: Target,
    conn: Option<Session<'static>>,
    /// The turn of the servers in which the connection was opened.
    turn: u64,
    /// Time when the connection was opened, and that of the last answer on it.
    opened: Instant,
    heard: Instant,
    /// `hurried`: wait for locks for one second only. `told_hurried`: the setting of the open session.
    hurried: bool,
    told_hurried: bool,
}

impl DedicatedConnection {
    pub(crate) fn new(target: Target) -> Self {
        let now = Instant::now();
        Self { target, conn: None, turn: 0, opened: now, heard: now, hurried: false, told_hurried: false }
    }

    /// Set the lock wait for the next runs: one second if `hurried`, otherwise as long as on other connections.
    pub(crate) fn hurry(&mut self, hurried: bool) {
        self.hurried = hurried;
    }

    /// Run `step`. Reopen the connection and repeat the step as the rules of this module allow.
    pub(crate) async fn run<T, F>(&mut self, attempted: &'static str, step: F) -> Result<T, StoreError>
    where
        F: for<'c> Fn(&'c mut Session<'_>, PriorRun) -> DbFuture<'c, T>,
    {
        let mut pace = Repetition::new(attempted);
        loop {
            match self.once(&step, pace.earlier).await {
                Ok(value) => return Ok(value),
                Err(e) => pace.after(&e).await?,
            }
        }
    }

    /// Run `step` as [`run`](Self::run) does, but return nothing as soon as a lock wait of `step` has timed out. The
    /// step has been rolled back by then.
    pub(crate) async fn run_unless_locked<T, F>(
        &mut self,
        attempted: &'static str,
        step: F,
    ) -> Result<Option<T>, StoreError>
    where
        F: for<'c> Fn(&'c mut Session<'_>, PriorRun) -> DbFuture<'c, T>,
    {
        let mut pace = Repetition::new(attempted);
        loop {
            match self.once(&step, pace.earlier).await {
                Ok(value) => return Ok(Some(value)),
                Err(e) if waited_for_lock(&e) => return Ok(None),
                Err(e) => pace.after(&e).await?,
            }
        }
    }

    /// Close the connection, even during a statement. The next call opens another.
    pub(crate) fn disconnect(&mut self) {
        self.conn = None;
    }

    /// Roll back the open connection, if there is one.
    async fn rolled_back(&mut self) -> bool {
        match &mut self.conn {
            Some(conn) => rolled_back(conn.driver()).await,
            None => true,
        }
    }

    /// Run `step` once. After an error, roll the connection back or close it.
    async fn once<T, F>(&mut self, step: &F, earlier: PriorRun) -> Result<T, sqlx::Error>
    where
        F: for<'c> Fn(&'c mut Session<'_>, PriorRun) -> DbFuture<'c, T>,
    {
        let outcome = self.talk(step, earlier).await;
        if let Err(e) = &outcome {
            if is_out_of_statements(e) {
                self.target.server.keep_fewer();
            }
            self.target.server.room.note(e);
            self.target.server.read_only.note_error(e);
            // A connection that could not be opened was judged when it was opened.
            if self.conn.is_some() {
                judge(&self.target, self.turn, e).await;
            }
            if ends_connection(e) || !self.rolled_back().await {
                self.conn = None;
            }
        }
        outcome
    }

    async fn talk<T, F>(&mut self, step: &F, earlier: PriorRun) -> Result<T, sqlx::Error>
    where
        F: for<'c> Fn(&'c mut Session<'_>, PriorRun) -> DbFuture<'c, T>,
    {
        let is_elsewhere = self.turn != self.target.turn();
        let is_of_before = self.target.server.read_only.concerns(self.opened.elapsed());
        if is_elsewhere || is_of_before || (self.heard.elapsed() > RESTED && !self.is_alive().await) {
            self.conn = None;
        }
        let conn = match &mut self.conn {
            Some(conn) => conn,
            empty => {
                let (turn, conn) = open_somewhere(&self.target).await?;
                (self.turn, self.told_hurried, self.opened) = (turn, false, Instant::now());
                empty.insert(Session::new(conn, self.target.prefix.clone()))
            }
        };
        if self.told_hurried != self.hurried {
            let text = if self.hurried { HURRIED } else { UNHURRIED };
            within(FIRST_WORDS, sqlx::raw_sql(text).execute(conn.driver())).await?;
            self.told_hurried = self.hurried;
        }
        let limits = self.target.server.limits();
        let outcome = within(RUN_LIMIT, LIMITS.scope(limits, step(conn, earlier))).await;
        self.heard = Instant::now();
        outcome
    }

    async fn is_alive(&mut self) -> bool {
        let Some(conn) = &mut self.conn else { return true };
        let are_many = self.target.servers.are_many();
        let sign = async {
            let conn = conn.driver();
            if are_many { check_writable(conn).await } else { conn.ping().await }
        };
        matches!(tokio::time::timeout(SIGN_OF_LIFE, sign).await, Ok(Ok(())))
    }
}

/// The repetition of a failed step: the decision whether it runs again, and the wait before that.
struct Repetition {
    attempted: &'static str,
    runs: u32,
    /// Runs that ended with a broken connection.
    breaks: u32,
    earlier: PriorRun,
}

impl Repetition {
    fn new(attempted: &'static str) -> Self {
        Self { attempted, runs: 0, breaks: 0, earlier: PriorRun::Nothing }
    }

    async fn after(&mut self, error: &sqlx::Error) -> Result<(), StoreError> {
        self.runs += 1;
        match fault(error) {
            // The duplicate is our own row: an earlier run has committed without an answer. The next run recognises it.
            Fault::Duplicate if self.earlier == PriorRun::MayHaveCommitted => {}
            Fault::Unfit | Fault::Refused | Fault::Duplicate => {
                return Err(StoreError::from_driver(self.attempted, error));
            }
            Fault::Again => {
                if !certainly_rolled_back(error) {
                    self.earlier = PriorRun::MayHaveCommitted;
                }
                metrics::counter!("tickr_store_repeats_total", "cause" => "conflict").increment(1);
            }
            Fault::Reconnect => {
                tell_outage(self.attempted, error);
                self.breaks += 1;
                // Three tries distinguish a killed connection from a server that is down. Runs that ended with a
                // conflict say nothing about that. The caller can wait longer if it wants to. After a timeout of the
                // pool there is no other try, because the pool itself has tried for seconds.
                if self.breaks >= 3 || matches!(error, sqlx::Error::PoolTimedOut) {
                    return Err(StoreError::from_driver(self.attempted, error));
                }
                self.earlier = PriorRun::MayHaveCommitted;
                metrics::counter!("tickr_store_repeats_total", "cause" => "line").increment(1);
            }
        }
        if self.runs >= MAX_RUNS {
            return Err(StoreError::from_driver(self.attempted, error));
        }
        tracing::debug!(attempted = self.attempted, run = self.runs, %error, "store call is repeated");
        let most = 10_u64 << self.runs.min(6);
        let wait = rand::rng().random_range(1..=most);
        tokio::time::sleep(Duration::from_millis(wait)).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::error::again;

    fn broken() -> sqlx::Error {
        sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into())
    }

    #[tokio::test]
    async fn conflicts_use_up_no_try_of_a_broken_connection() {
        let mut pace = Repetition::new("write nothing");
        for conflict in [again("a"), again("b")] {
            pace.after(&conflict).await.unwrap();
        }
        // The connection may break twice. The third time the server counts as down.
        pace.after(&broken()).await.unwrap();
        pace.after(&broken()).await.unwrap();
        assert!(pace.after(&broken()).await.is_err_and(|error| error.is_transient()));
    }

    #[tokio::test]
    async fn a_heavy_read_that_timed_out_is_not_repeated() {
        let timed_out = within(Duration::ZERO, std::future::pending::<Result<(), _>>()).await.unwrap_err();
        assert!(!may_repeat(true, Frame::Nothing, &timed_out));
        // Other reads, transactions and other errors are repeated as ever.
        assert!(may_repeat(false, Frame::Nothing, &timed_out) && may_repeat(true, Frame::Transaction, &timed_out));
        assert!(may_repeat(true, Frame::Nothing, &broken()));
    }

    #[tokio::test]
    async fn conflicts_and_broken_connections_together_end_a_call() {
        let mut pace = Repetition::new("write nothing");
        pace.after(&broken()).await.unwrap();
        for _ in 2..MAX_RUNS {
            pace.after(&again("a")).await.unwrap();
        }
        assert!(pace.after(&again("a")).await.is_err_and(|error| error.is_transient()));
    }
}
