//! The faults: what can happen to servers, connections and runners, how long it lasts, and how it is repaired.

use std::fmt;
use std::time::Duration;

use anyhow::Context as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;
use sqlx::{Executor as _, MySqlConnection, Row as _};
use tickr::services::Server;

use crate::driver;
use crate::enqueue::Enqueue;
use crate::proxy::{Mode, Proxy};
use crate::request::{Answer, Request};
use crate::runner::{LEASE, Order};
use crate::servers::ACCOUNT;
use crate::world::World;

/// One kind of fault. The number after each kind is its weight in the draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    RedisFlushed,
    RedisKilled,
    RedisStale,
    RedisKeyDeleted,
    RedisEvicts,
    RedisFull,
    RedisReadOnly,
    RedisPaused,
    RedisClientsKilled,
    RedisAnswersLost,
    RedisLineBad,
    MysqlKilled,
    MysqlPaused,
    MysqlFrozenLong,
    MysqlGloballyLocked,
    MysqlConnectionsKilled,
    MysqlRowsLocked,
    MysqlTableLocked,
    MysqlReadOnly,
    MysqlRefusesConnections,
    MysqlClockAdvanced,
    MysqlCommitAnswersLost,
    MysqlLineBad,
    RunnerKilled,
    RunnerPaused,
    RunnerStopped,
    RunnerStoppedTwice,
    RunnerDrained,
    QueuePaused,
    ClockTurned,
    JobAborts,
    JobIsPoison,
    NodeIsolated,
    QuorumLost,
}

use What::{
    ClockTurned, JobAborts, JobIsPoison, MysqlClockAdvanced, MysqlCommitAnswersLost, MysqlConnectionsKilled,
    MysqlFrozenLong, MysqlGloballyLocked, MysqlKilled, MysqlLineBad, MysqlPaused, MysqlReadOnly,
    MysqlRefusesConnections, MysqlRowsLocked, MysqlTableLocked, NodeIsolated, QueuePaused, QuorumLost,
    RedisAnswersLost, RedisClientsKilled, RedisEvicts, RedisFlushed, RedisFull, RedisKeyDeleted, RedisKilled,
    RedisLineBad, RedisPaused, RedisReadOnly, RedisStale, RunnerDrained, RunnerKilled, RunnerPaused, RunnerStopped,
    RunnerStoppedTwice,
};

const WEIGHTS: [(What, u32); 32] = [
    (RedisFlushed, 4),
    (RedisKilled, 4),
    (RedisStale, 3),
    (RedisKeyDeleted, 3),
    (RedisEvicts, 2),
    (RedisFull, 2),
    (RedisReadOnly, 3),
    (RedisPaused, 2),
    (RedisClientsKilled, 2),
    (RedisAnswersLost, 3),
    (RedisLineBad, 5),
    (MysqlKilled, 4),
    (MysqlPaused, 3),
    (MysqlFrozenLong, 1),
    (MysqlGloballyLocked, 1),
    (MysqlConnectionsKilled, 3),
    (MysqlRowsLocked, 3),
    (MysqlTableLocked, 1),
    (MysqlReadOnly, 3),
    (MysqlRefusesConnections, 2),
    (MysqlClockAdvanced, 3),
    (MysqlCommitAnswersLost, 5),
    (MysqlLineBad, 6),
    (RunnerKilled, 5),
    (RunnerPaused, 4),
    (RunnerStopped, 3),
    (RunnerStoppedTwice, 2),
    (RunnerDrained, 3),
    (QueuePaused, 3),
    (ClockTurned, 3),
    (JobAborts, 2),
    (JobIsPoison, 1),
];

/// Longest time for which a runner tries one call to a MySQL that is silent, in milliseconds: one run of 15 s
/// (`RUN_LIMIT` in `internal/store/sql/connection.rs`), and then two runs that can open no connection within 5 s
/// (`FIRST_WORDS`). Under a global read lock MySQL answers, and a call may wait for the lock several times, 10 s each.
const LONGEST_CALL_MS: u64 = 15_000 + 2 * 5_000;
/// Ends of the range of long freezes, in milliseconds. With the shortest one, each call that began before is given up
/// while MySQL still stands still, with a margin for a busy machine.
const LONG_FREEZES_MS: std::ops::Range<u64> = LONGEST_CALL_MS + 3_000..45_000;
/// The freeze at the start of a short run is shorter than this, and that of a long run is not.
const SHORT_RUN_FREEZES_TO_MS: u64 = 32_000;

/// The faults that only a cluster has, beside the others.
const OF_CLUSTERS: [(What, u32); 2] = [(NodeIsolated, 6), (QuorumLost, 3)];

/// The part of the run that a fault affects. Two faults that overlap affect different parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    Redis,
    RedisLines,
    Mysql,
    MysqlLines,
    Runners,
    Queues,
    Clocks,
    Jobs,
}

/// One drawn fault, with all its details decided.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) what: What,
    /// Numbers of the affected runners, for faults of runners.
    runners: Vec<usize>,
    mode: Mode,
    /// Number of repetitions, for faults that can be counted.
    times: usize,
    /// Number of seconds by which a clock is wrong.
    seconds: i64,
    lasts: Duration,
    seed: u64,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what.name())?;
        match self.what {
            RedisLineBad | MysqlLineBad => write!(f, " ({:?}, runners {:?})", self.mode, self.runners)?,
            RedisAnswersLost | MysqlCommitAnswersLost => write!(f, " ({}, runners {:?})", self.times, self.runners)?,
            RunnerKilled | RunnerPaused | RunnerStopped | RunnerStoppedTwice => {
                write!(f, " (runners {:?})", self.runners)?;
            }
            ClockTurned => write!(f, " ({:+} s, runners {:?})", self.seconds, self.runners)?,
            MysqlClockAdvanced => write!(f, " (by {} s)", self.advance())?,
            _ => {}
        }
        write!(f, " for {} ms", self.lasts.as_millis())
    }
}

impl What {
    /// Return the name for reports.
    pub(crate) fn name(self) -> String {
        let mut words = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_uppercase() && !words.is_empty() {
                words.push('_');
            }
            words.push(letter.to_ascii_lowercase());
        }
        words
    }

    fn scene(self) -> Scene {
        match self {
            RedisFlushed | RedisKilled | RedisStale | RedisKeyDeleted | RedisEvicts | RedisFull | RedisReadOnly
            | RedisPaused | RedisClientsKilled => Scene::Redis,
            RedisAnswersLost | RedisLineBad => Scene::RedisLines,
            MysqlKilled
            | MysqlPaused
            | MysqlFrozenLong
            | MysqlGloballyLocked
            | MysqlConnectionsKilled
            | MysqlRowsLocked
            | MysqlTableLocked
            | MysqlReadOnly
            | MysqlRefusesConnections
            | NodeIsolated
            | QuorumLost => Scene::Mysql,
            MysqlCommitAnswersLost | MysqlLineBad => Scene::MysqlLines,
            RunnerKilled | RunnerPaused | RunnerStopped | RunnerStoppedTwice | RunnerDrained => Scene::Runners,
            QueuePaused => Scene::Queues,
            ClockTurned | MysqlClockAdvanced => Scene::Clocks,
            JobAborts | JobIsPoison => Scene::Jobs,
        }
    }

    /// Return the range of its duration, in milliseconds.
    fn lasts(self) -> std::ops::Range<u64> {
        let lease = LEASE.as_millis() as u64;
        match self {
            RedisFlushed | RedisKeyDeleted | RedisClientsKilled | RunnerKilled | RunnerStopped | RunnerStoppedTwice => {
                100..500
            }
            RedisKilled => 0..10_000,
            RedisStale | RedisEvicts | RedisFull | RedisReadOnly => 1_000..4_000,
            RedisPaused | RedisLineBad => 500..6_000,
            RedisAnswersLost | MysqlCommitAnswersLost => 500..3_000,
            MysqlKilled => 0..5_000,
            MysqlPaused | MysqlRowsLocked | MysqlTableLocked | MysqlLineBad => 500..7_000,
            MysqlFrozenLong | MysqlGloballyLocked => LONG_FREEZES_MS,
            MysqlConnectionsKilled | MysqlReadOnly | MysqlRefusesConnections => 1_000..4_000,
            // Also longer than the lease plus the 5 s after which other runners take the jobs of a silent runner.
            RunnerPaused => lease + 500..lease + 9_000,
            RunnerDrained | QueuePaused => 500..4_000,
            ClockTurned => 2_000..6_000,
            MysqlClockAdvanced => 500..2_000,
            JobAborts | JobIsPoison => 500..2_000,
            // Long enough that the other nodes notice, and shorter than that.
            NodeIsolated => 1_000..15_000,
            QuorumLost => 3_000..20_000,
        }
    }
}

impl Fault {
    /// Make a freeze of MySQL that is longer than a runner tries a silent one. Such a fault is rarely drawn and takes
    /// long, so each run begins with one. A run of at most five minutes has a shorter freeze.
    pub(crate) fn long_freeze(rng: &mut StdRng, length: Duration) -> Self {
        let what = if rng.random() { MysqlFrozenLong } else { MysqlGloballyLocked };
        let std::ops::Range { start, end } = LONG_FREEZES_MS;
        let is_long = length > Duration::from_secs(300);
        let range = if is_long { SHORT_RUN_FREEZES_TO_MS..end } else { start..SHORT_RUN_FREEZES_TO_MS };
        let lasts = Duration::from_millis(rng.random_range(range));
        let (runners, mode, times, seconds) = (Vec::new(), Mode::Pass, 0, 0);
        Self { what, runners, mode, times, seconds, lasts, seed: rng.random() }
    }

    /// Return the number of seconds by which the clock of MySQL is set ahead. It is more than a lease. The clock is
    /// never set back, because the checks at the end compare times. `tickr verify` excuses only a step that a runner
    /// noticed, and another fault may keep all of them from noticing it.
    fn advance(&self) -> i64 {
        3 + self.seconds.abs() % 60
    }

    /// Return the MySQL server that is affected.
    fn node(&self, world: &World) -> usize {
        usize::try_from(self.seed % world.servers.nodes() as u64).unwrap_or_default()
    }

    /// Return the other MySQL servers.
    fn other_nodes(&self, world: &World) -> impl Iterator<Item = usize> {
        let node = self.node(world);
        (0..world.servers.nodes()).filter(move |other| *other != node)
    }

    /// Return the queue that is paused.
    fn queue(&self) -> &'static str {
        if self.seed.is_multiple_of(2) { "side" } else { driver::NARROW }
    }

    /// Draw a fault that affects another part than `other` does.
    pub(crate) fn draw(rng: &mut StdRng, world: &World, other: Option<&Fault>) -> Self {
        let runners = world.runners.len();
        let of_clusters: &[(What, u32)] = if world.servers.nodes() > 1 { &OF_CLUSTERS } else { &[] };
        let weights = [&WEIGHTS[..], of_clusters].concat();
        let what = loop {
            let what = weights.choose_weighted(rng, |(_, weight)| *weight).map_or(RedisFlushed, |(what, _)| *what);
            // With sentinels, runners have no proxies in front of Redis.
            let possible = world.servers.watched().is_none() || what.scene() != Scene::RedisLines;
            if possible && other.is_none_or(|other| other.what.scene() != what.scene()) {
                break what;
            }
        };
        let everybody: Vec<usize> = (0..runners).collect();
        let many = matches!(what.scene(), Scene::RedisLines | Scene::MysqlLines) && rng.random_ratio(1, 3);
        let one = rng.random_range(0..runners);
        let mode = match rng.random_range(0..4) {
            0 => Mode::Delay(Duration::from_millis(rng.random_range(10..300))),
            1 => Mode::Stall,
            2 => Mode::Cut,
            _ => Mode::HalfOpen,
        };
        Self {
            what,
            runners: if many { everybody } else { vec![one] },
            mode,
            times: rng.random_range(1..6),
            seconds: rng.random_range(1..=7_200) * if rng.random() { 1 } else { -1 },
            lasts: Duration::from_millis(rng.random_range(what.lasts())),
            seed: rng.random(),
        }
    }

    /// Begin the fault, let it last, and end it.
    pub(crate) async fn happen(&self, world: &World) -> anyhow::Result<()> {
        let mut rng = StdRng::seed_from_u64(self.seed);
        self.begin(world, &mut rng).await.with_context(|| format!("begin {self}"))?;
        let lasted = matches!(
            self.what,
            MysqlConnectionsKilled
                | MysqlRowsLocked
                | MysqlTableLocked
                | MysqlGloballyLocked
                | MysqlRefusesConnections
                | RunnerDrained
        );
        if !lasted {
            tokio::time::sleep(self.lasts).await;
        }
        self.end(world).await.with_context(|| format!("end {self}"))
    }

    async fn begin(&self, world: &World, rng: &mut StdRng) -> anyhow::Result<()> {
        let servers = &world.servers;
        let node = self.node(world);
        if let Some(watched) = servers.watched().filter(|_| self.what.scene() == Scene::Redis) {
            watched.aim_at_master().await?;
        }
        match self.what {
            RedisFlushed => servers.redis(&["FLUSHALL"]).await,
            RedisKilled => {
                servers.forget_snapshot()?;
                servers.with_redis(Server::kill9).await
            }
            RedisStale => servers.redis(&["SAVE"]).await,
            RedisKeyDeleted => {
                let keys: Vec<String> = servers.redis(&["KEYS", "*"]).await?;
                let Some(key) = keys.choose(rng) else { return Ok(()) };
                servers.redis::<()>(&["DEL", key]).await
            }
            RedisEvicts => {
                servers.redis::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await?;
                servers.redis(&["CONFIG", "SET", "maxmemory", "1"]).await
            }
            RedisFull => {
                servers.redis::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await?;
                servers.redis(&["CONFIG", "SET", "maxmemory", "1"]).await
            }
            RedisReadOnly => match servers.watched() {
                Some(watched) => {
                    watched.fail_over().await;
                    Ok(())
                }
                // No server listens on that port. So Redis acts as a demoted primary that cannot reach the new primary.
                None => servers.redis(&["REPLICAOF", "127.0.0.1", "1"]).await,
            },
            RedisPaused => servers.with_redis(Server::pause).await,
            RedisClientsKilled => servers.redis::<i64>(&["CLIENT", "KILL", "TYPE", "normal"]).await.map(|_| ()),
            RedisAnswersLost | MysqlCommitAnswersLost => {
                self.each_line(world, |line| line.lose(self.times));
                Ok(())
            }
            RedisLineBad | MysqlLineBad => {
                self.each_line(world, |line| line.set(self.mode));
                Ok(())
            }
            MysqlKilled => servers.with_mysql(node, Server::kill9).await,
            MysqlPaused | MysqlFrozenLong => servers.with_mysql(node, Server::pause).await,
            NodeIsolated => servers.sql(node, "SET GLOBAL wsrep_provider_options = 'gmcast.isolate=1'").await,
            QuorumLost => {
                for other in self.other_nodes(world) {
                    servers.with_mysql(other, Server::pause).await?;
                }
                Ok(())
            }
            // A backup does this while it copies tables of an engine other than InnoDB.
            MysqlGloballyLocked => self.lock(world, "FLUSH TABLES WITH READ LOCK").await,
            MysqlConnectionsKilled => self.kill_connections(world, rng).await,
            MysqlRowsLocked => self.lock(world, "SELECT id FROM owed ORDER BY id LIMIT 500 FOR UPDATE").await,
            MysqlTableLocked => self.lock(world, "LOCK TABLES owed WRITE").await,
            MysqlReadOnly => servers.sql(node, "SET GLOBAL read_only = ON").await,
            MysqlRefusesConnections => self.refuse_connections(world, rng).await,
            ClockTurned => self.turn_clocks(world, self.seconds),
            MysqlClockAdvanced => servers.advance_clock(self.advance()),
            RunnerDrained => self.drain(world, rng).await,
            QueuePaused => {
                let path = format!("/v1/queues/{}/pause", self.queue());
                until_done(world, rng, Request::post(path).with(json!({"reason": "chaos"}))).await
            }
            RunnerKilled => self.each_runner(world, Order::Kill).await,
            RunnerPaused => self.each_runner(world, Order::Pause).await,
            RunnerStopped => self.each_runner(world, Order::Terminate).await,
            RunnerStoppedTwice => {
                self.each_runner(world, Order::Terminate).await?;
                tokio::time::sleep(Duration::from_millis(rng.random_range(50..500))).await;
                self.each_runner(world, Order::Terminate).await
            }
            JobAborts | JobIsPoison => {
                let poison = self.what == JobIsPoison;
                let name = format!("{}-{}", self.what.name(), self.seed);
                if poison {
                    world.ledger.write(|book| book.poison.insert(name.clone()));
                }
                let times = if poison { 1_000 } else { 1 };
                let payload = json!({"name": name, "ms": 20, "first": "abort", "times": times});
                let job = json!({"kind": "record", "payload": payload, "max_attempts": 10, "retry": driver::quick()});
                Enqueue::job(name, job).once().send(world, rng).await;
                Ok(())
            }
        }
    }

    async fn end(&self, world: &World) -> anyhow::Result<()> {
        let servers = &world.servers;
        let node = self.node(world);
        match self.what {
            RedisKilled => servers.with_redis(Server::start_again).await,
            RedisStale => {
                servers.with_redis(|redis| redis.kill9().and_then(|()| redis.start_again())).await?;
                servers.forget_snapshot()
            }
            RedisEvicts | RedisFull => servers.redis(&["CONFIG", "SET", "maxmemory", "0"]).await,
            RedisReadOnly if servers.watched().is_some() => Ok(()),
            RedisReadOnly => servers.redis(&["REPLICAOF", "NO", "ONE"]).await,
            RedisPaused => servers.with_redis(Server::resume).await,
            RedisAnswersLost | MysqlCommitAnswersLost => {
                self.each_line(world, |line| line.lose(0));
                Ok(())
            }
            RedisLineBad | MysqlLineBad => {
                self.each_line(world, |line| line.set(Mode::Pass));
                Ok(())
            }
            MysqlKilled => servers.with_mysql(node, Server::start_again).await,
            MysqlPaused | MysqlFrozenLong => servers.with_mysql(node, Server::resume).await,
            NodeIsolated => servers.sql(node, "SET GLOBAL wsrep_provider_options = 'gmcast.isolate=0'").await,
            QuorumLost => {
                for other in self.other_nodes(world) {
                    servers.with_mysql(other, Server::resume).await?;
                }
                Ok(())
            }
            QueuePaused => {
                let mut rng = StdRng::seed_from_u64(self.seed);
                until_done(world, &mut rng, Request::post(format!("/v1/queues/{}/resume", self.queue()))).await
            }
            MysqlReadOnly => servers.sql(node, "SET GLOBAL read_only = OFF").await,
            ClockTurned => self.turn_clocks(world, 0),
            RunnerPaused => self.each_runner(world, Order::Resume).await,
            RedisFlushed
            | RedisKeyDeleted
            | RedisClientsKilled
            | MysqlConnectionsKilled
            | MysqlRowsLocked
            | MysqlTableLocked
            | MysqlGloballyLocked
            | MysqlRefusesConnections
            | MysqlClockAdvanced
            | RunnerDrained
            | RunnerKilled
            | RunnerStopped
            | RunnerStoppedTwice
            | JobAborts
            | JobIsPoison => Ok(()),
        }
    }

    fn turn_clocks(&self, world: &World, seconds: i64) -> anyhow::Result<()> {
        for number in &self.runners {
            world.runners[*number].clock.turn(seconds)?;
        }
        Ok(())
    }

    fn each_line(&self, world: &World, act: impl Fn(&Proxy)) {
        let all = self.seed.is_multiple_of(2);
        if self.what.scene() == Scene::MysqlLines {
            world.outbox_lines.iter().for_each(&act);
        }
        for runner in self.runners.iter().map(|number| &world.runners[*number]) {
            if self.what.scene() != Scene::MysqlLines {
                act(&runner.redis);
            } else if all {
                runner.mysql.iter().for_each(&act);
            } else {
                act(&runner.mysql[self.node(world)]);
            }
        }
    }

    async fn each_runner(&self, world: &World, order: Order) -> anyhow::Result<()> {
        for number in &self.runners {
            world.runners[*number].order(order).await;
        }
        Ok(())
    }

    /// Drain one runner for the duration of the fault. If the process ends meanwhile, its drain ends with it.
    async fn drain(&self, world: &World, rng: &mut StdRng) -> anyhow::Result<()> {
        let listing = world.call(rng, Request::get("/v1/runners")).await;
        let Answer::Said(200, page) = listing else { return Ok(()) };
        let living = page["data"].as_array().into_iter().flatten().filter(|runner| runner["state"] == "running");
        let ids: Vec<&str> = living.filter_map(|runner| runner["id"].as_str()).collect();
        let Some(id) = ids.choose(rng) else { return Ok(()) };
        let path = format!("/v1/runners/{id}");
        let _ = world.call(rng, Request::post(format!("{path}/drain")).with(json!({"reason": "chaos"}))).await;
        tokio::time::sleep(self.lasts).await;
        until_done(world, rng, Request::post(format!("{path}/resume"))).await
    }

    /// Kill connections one by one for the duration of the fault.
    async fn kill_connections(&self, world: &World, rng: &mut StdRng) -> anyhow::Result<()> {
        let mut root = world.servers.root_of(self.node(world)).await?;
        let end = tokio::time::Instant::now() + self.lasts;
        while tokio::time::Instant::now() < end {
            kill_one_connection(&mut root, rng).await?;
            tokio::time::sleep(Duration::from_millis(rng.random_range(20..200))).await;
        }
        Ok(())
    }

    /// Kill all connections and let only a few clients reconnect for the duration of the fault.
    async fn refuse_connections(&self, world: &World, rng: &mut StdRng) -> anyhow::Result<()> {
        // All statements use one connection, because MySQL could refuse a second one of root as well.
        let mut root = world.servers.root_of(self.node(world)).await?;
        root.execute("SET GLOBAL max_connections = 10").await?;
        let mut killed = Ok(true);
        for _ in 0..100 {
            killed = kill_one_connection(&mut root, rng).await;
            if !matches!(killed, Ok(true)) {
                break;
            }
        }
        tokio::time::sleep(self.lasts).await;
        // This runs even after an error, because nothing else would raise the limit again.
        root.execute("SET GLOBAL max_connections = 500").await?;
        killed.map(drop)
    }

    /// Hold locks for the duration of the fault.
    async fn lock(&self, world: &World, sql: &'static str) -> anyhow::Result<()> {
        let mut root = world.servers.root_of(self.node(world)).await?;
        root.execute("START TRANSACTION").await?;
        let locked = tokio::time::timeout(Duration::from_secs(10), root.execute(sqlx::raw_sql(sql))).await;
        if matches!(locked, Ok(Ok(_))) {
            tokio::time::sleep(self.lasts).await;
        }
        // When this connection ends, MySQL releases the locks, even after an error. The connection is dropped and not
        // closed, because over TLS a close waits for a closing message that MySQL 9.7 does not send.
        drop(root);
        Ok(())
    }
}

/// Repeat the request until a runner has carried it out, or answers that its target does not exist any more.
pub(crate) async fn until_done(world: &World, rng: &mut StdRng, request: Request) -> anyhow::Result<()> {
    let end = tokio::time::Instant::now() + Duration::from_secs(90);
    loop {
        let answer = world.call(rng, request.clone()).await;
        match answer {
            Answer::Said(200 | 201 | 204 | 404 | 409, _) => return Ok(()),
            _ if tokio::time::Instant::now() > end => anyhow::bail!("{request:?} was answered with {answer:?}"),
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Kill one connection of a runner, or of the application with the outbox. Return whether there was one.
async fn kill_one_connection(root: &mut MySqlConnection, rng: &mut StdRng) -> anyhow::Result<bool> {
    // Use SHOW PROCESSLIST, because MySQL 9.7 cannot list a statement that contains binary data in information_schema
    // (its error 3854).
    let mut found = Vec::new();
    for row in root.fetch_all("SHOW PROCESSLIST").await? {
        if row.try_get::<&str, _>("User")? == ACCOUNT && row.try_get::<&str, _>("Command")? != "Killed" {
            // One server returns the id as a signed number, the other as an unsigned number.
            found.push(row.try_get::<u64, _>("Id").or_else(|_| row.try_get::<i64, _>("Id").map(i64::cast_unsigned))?);
        }
    }
    let Some(id) = found.choose(rng) else { return Ok(false) };
    // The connection may have ended meanwhile, which is as good.
    let _ = root.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(format!("KILL {id}")))).await;
    Ok(true)
}
