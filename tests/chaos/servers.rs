//! The MySQL and Redis servers of one run, and direct connections that no fault closes. MySQL is one server, or a Galera
//! cluster of three (`galera`). Redis is one server, or two behind sentinels (`sentinels`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection};
use tickr::services::{Address, Options, Server, Services};

use crate::clock::Clock;
use crate::galera;
use crate::sentinels::Watched;

/// Name of the database of the run.
const DATABASE: &str = "chaos";
/// MySQL account of the runners. Unlike root, it is subject to a read-only server and to the limit on connections.
pub(crate) const ACCOUNT: &str = "runner";

/// The servers. They end when this value is dropped, and when this program ends, even if it is killed.
#[derive(Clone)]
pub(crate) struct Servers {
    /// The nodes of MySQL. Redis is the one beside the first node.
    nodes: Arc<[Services]>,
    /// Redis behind sentinels, in place of the one beside the first node.
    watched: Option<Arc<Watched>>,
    /// The clock of MySQL and the number of seconds by which it is ahead; `None` without libfaketime.
    clock: Option<Arc<(Clock, AtomicI64)>>,
}

impl Servers {
    /// Start both servers in `dir`, which keeps their files. `durable` servers sync every commit and write a binlog, as
    /// a primary in production does.
    pub(crate) async fn start(
        dir: PathBuf,
        template: &Path,
        durable: bool,
        faketime: Option<&Path>,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&dir)?;
        let clock = faketime.map(|library| (Clock::new(dir.join("clock")), library));
        let mut options = options(dir, template, durable);
        if let Some((clock, library)) = &clock {
            clock.turn(0)?;
            let environment = clock.environment(library);
            options =
                environment.into_iter().fold(options, |options, (name, value)| options.mysql_environment(name, value));
        }
        let services = tokio::task::spawn_blocking(move || Services::start(&options)).await??;
        let clock = clock.map(|(clock, _)| Arc::new((clock, AtomicI64::new(0))));
        Self { nodes: Arc::new([services]), watched: None, clock }.with_account().await
    }

    /// Start a cluster in `dir`. Its nodes have the clock of the machine.
    pub(crate) async fn start_cluster(dir: PathBuf, template: &Path, durable: bool) -> anyhow::Result<Self> {
        let each = |number: usize| {
            let dir = dir.join(format!("n{number}"));
            std::fs::create_dir_all(&dir).map(|()| options(dir, template, durable))
        };
        let each: Vec<Options> = (0..galera::NODES).map(each).collect::<Result<_, _>>()?;
        let nodes = tokio::task::spawn_blocking(move || tickr::services::start_galera(&each)).await??;
        Self { nodes: nodes.into(), watched: None, clock: None }.with_account().await
    }

    /// Use a Redis behind sentinels from now on.
    pub(crate) async fn with_sentinels(self, dir: &Path) -> anyhow::Result<Self> {
        Ok(Self { watched: Some(Arc::new(Watched::start(dir).await?)), ..self })
    }

    /// Return Redis behind sentinels, if this run has that.
    pub(crate) fn watched(&self) -> Option<&Watched> {
        self.watched.as_deref()
    }

    /// Make the database and the account of the runners.
    async fn with_account(self) -> anyhow::Result<Self> {
        let mut root = MySqlConnection::connect(&self.nodes[0].mysql_url("mysql")).await?;
        for sql in [
            format!("CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"),
            format!("CREATE USER '{ACCOUNT}'@'localhost'"),
            format!("GRANT ALL PRIVILEGES ON {DATABASE}.* TO '{ACCOUNT}'@'localhost'"),
        ] {
            root.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
        }
        Ok(self)
    }

    /// Return the number of MySQL servers.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn mysql_sockets(&self) -> anyhow::Result<Vec<PathBuf>> {
        self.nodes.iter().map(|node| socket(node.mysql())).collect()
    }

    pub(crate) fn redis_socket(&self) -> anyhow::Result<PathBuf> {
        socket(self.nodes[0].redis())
    }

    /// Return the URL for a direct connection to the tables on the first server, with full rights.
    pub(crate) fn mysql_url(&self) -> String {
        self.nodes[0].mysql_url(DATABASE)
    }

    /// Return the URL for a process that no fault of a connection concerns.
    pub(crate) fn redis_url(&self) -> anyhow::Result<String> {
        self.watched().map_or_else(|| Ok(self.nodes[0].redis_url()), Watched::url)
    }

    /// Set the clock of MySQL forward by this many seconds, for good.
    pub(crate) fn advance_clock(&self, seconds: i64) -> anyhow::Result<()> {
        let Some(clock) = &self.clock else { return Ok(()) };
        let ahead = clock.1.fetch_add(seconds, Ordering::SeqCst) + seconds;
        Ok(clock.0.turn(ahead)?)
    }

    /// Open a connection to a server that bypasses every proxy, with full rights.
    pub(crate) async fn root_of(&self, node: usize) -> anyhow::Result<MySqlConnection> {
        let url = self.nodes[node].mysql_url(DATABASE);
        let opened = tokio::time::timeout(Duration::from_secs(5), MySqlConnection::connect(&url));
        Ok(opened.await.context("mysql does not let root in")??)
    }

    /// Open such a connection to the first server that answers. It sees everything that was committed before, on any
    /// server.
    pub(crate) async fn root(&self) -> anyhow::Result<MySqlConnection> {
        if self.nodes() == 1 {
            return self.root_of(0).await;
        }
        let mut failed = Ok(());
        for node in 0..self.nodes() {
            let looked = tokio::time::timeout(Duration::from_secs(3), async {
                let mut root = self.root_of(node).await?;
                galera::see_all(&mut root).await?;
                anyhow::Ok(root)
            });
            match looked.await {
                Ok(Ok(root)) => return Ok(root),
                Ok(Err(error)) => failed = Err(error),
                Err(_) => failed = Err(anyhow::anyhow!("node {node} does not answer")),
            }
        }
        failed.and_then(|()| bail!("there is no node"))
    }

    pub(crate) async fn sql(&self, node: usize, sql: impl Into<String>) -> anyhow::Result<()> {
        let sql = sql.into();
        let text = sql.clone();
        let mut root = self.root_of(node).await?;
        tokio::time::timeout(Duration::from_secs(10), root.execute(sqlx::raw_sql(AssertSqlSafe(sql))))
            .await
            .with_context(|| text.clone())?
            .context(text)?;
        Ok(())
    }

    /// Send a command to Redis that bypasses every proxy.
    pub(crate) async fn redis<T: redis::FromRedisValue>(&self, words: &[&str]) -> anyhow::Result<T> {
        let url = self.watched().map_or_else(|| Ok(self.nodes[0].redis_url()), Watched::hit_url)?;
        let client = redis::Client::open(url)?;
        let mut conn = client.get_multiplexed_async_connection().await?;
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        Ok(command.query_async(&mut conn).await?)
    }

    /// Run an operation on a MySQL server that takes a while.
    pub(crate) async fn with_mysql(
        &self,
        node: usize,
        act: impl Fn(&Server) -> Outcome + Send + 'static,
    ) -> anyhow::Result<()> {
        let nodes = Arc::clone(&self.nodes);
        Ok(tokio::task::spawn_blocking(move || act(nodes[node].mysql())).await??)
    }

    /// Run an operation on Redis that takes a while.
    pub(crate) async fn with_redis(&self, act: impl Fn(&Server) -> Outcome + Send + 'static) -> anyhow::Result<()> {
        let servers = self.clone();
        Ok(tokio::task::spawn_blocking(move || act(servers.redis_server())).await??)
    }

    fn redis_server(&self) -> &Server {
        self.watched().map_or_else(|| self.nodes[0].redis(), Watched::hit)
    }

    /// Remove the files that Redis wrote, so that it starts empty.
    pub(crate) fn forget_snapshot(&self) -> anyhow::Result<()> {
        match std::fs::remove_file(self.redis_server().log().with_file_name("dump.rdb")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => bail!("dump.rdb: {error}"),
            _ => Ok(()),
        }
    }
}

fn options(dir: PathBuf, template: &Path, durable: bool) -> Options {
    let options = Options::persistent(dir).durable(durable).template_dir(template);
    let flags: &[&str] = if durable { &["--log-bin=binlog", "--sync-binlog=1", "--server-id=1"] } else { &[] };
    flags.iter().copied().fold(options, Options::mysql_flag)
}

type Outcome = Result<(), tickr::services::ServicesError>;

fn socket(server: &Server) -> anyhow::Result<PathBuf> {
    match server.address() {
        Address::Socket(path) => Ok(path.clone()),
        Address::Tcp(_) => bail!("the folder's path is too long for sockets"),
    }
}
