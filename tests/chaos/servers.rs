//! The pair of servers that a run has to itself, and a way in that no fault closes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection};
use tickr::services::{Address, Options, Server, Services};

/// The database of the run.
const DATABASE: &str = "chaos";
/// The account of the runners. Unlike root's, it is subject to a read-only server and to the limit on connections.
pub(crate) const ACCOUNT: &str = "runner";

/// The servers. They end with this value, and with this program, also when it is killed.
#[derive(Clone)]
pub(crate) struct Servers {
    services: Arc<Services>,
}

impl Servers {
    /// Start both in `dir`, which keeps what they leave behind. `durable` ones sync every commit and write a binlog, as a
    /// primary in production does.
    pub(crate) async fn start(dir: PathBuf, template: &Path, durable: bool) -> anyhow::Result<Self> {
        let mut options = Options::persistent(dir).durable(durable).template_dir(template);
        if durable {
            options =
                ["--log-bin=binlog", "--sync-binlog=1", "--server-id=1"].into_iter().fold(options, Options::mysql_flag);
        }
        let services = tokio::task::spawn_blocking(move || Services::start(&options)).await??;
        let servers = Self { services: Arc::new(services) };
        let mut root = MySqlConnection::connect(&servers.services.mysql_url("mysql")).await?;
        for sql in [
            format!("CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"),
            format!("CREATE USER '{ACCOUNT}'@'localhost'"),
            format!("GRANT ALL PRIVILEGES ON {DATABASE}.* TO '{ACCOUNT}'@'localhost'"),
        ] {
            root.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await?;
        }
        Ok(servers)
    }

    pub(crate) fn mysql_socket(&self) -> anyhow::Result<PathBuf> {
        socket(self.services.mysql())
    }

    pub(crate) fn redis_socket(&self) -> anyhow::Result<PathBuf> {
        socket(self.services.redis())
    }

    /// The tables, straight, with full rights.
    pub(crate) fn mysql_url(&self) -> String {
        self.services.mysql_url(DATABASE)
    }

    pub(crate) fn redis_url(&self) -> String {
        self.services.redis_url()
    }

    /// A connection past every proxy, with full rights.
    pub(crate) async fn root(&self) -> anyhow::Result<MySqlConnection> {
        let url = self.mysql_url();
        let opened = tokio::time::timeout(Duration::from_secs(5), MySqlConnection::connect(&url));
        Ok(opened.await.context("mysql does not let root in")??)
    }

    pub(crate) async fn sql(&self, sql: impl Into<String>) -> anyhow::Result<()> {
        let sql = sql.into();
        let text = sql.clone();
        let mut root = self.root().await?;
        tokio::time::timeout(Duration::from_secs(10), root.execute(sqlx::raw_sql(AssertSqlSafe(sql))))
            .await
            .with_context(|| text.clone())?
            .context(text)?;
        Ok(())
    }

    /// A command to Redis, past every proxy.
    pub(crate) async fn redis<T: redis::FromRedisValue>(&self, words: &[&str]) -> anyhow::Result<T> {
        let client = redis::Client::open(self.redis_url())?;
        let mut conn = client.get_multiplexed_async_connection().await?;
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        Ok(command.query_async(&mut conn).await?)
    }

    /// Do something to MySQL that takes a while.
    pub(crate) async fn with_mysql(&self, act: impl Fn(&Server) -> Outcome + Send + 'static) -> anyhow::Result<()> {
        let services = Arc::clone(&self.services);
        Ok(tokio::task::spawn_blocking(move || act(services.mysql())).await??)
    }

    /// Do something to Redis that takes a while.
    pub(crate) async fn with_redis(&self, act: impl Fn(&Server) -> Outcome + Send + 'static) -> anyhow::Result<()> {
        let services = Arc::clone(&self.services);
        Ok(tokio::task::spawn_blocking(move || act(services.redis())).await??)
    }

    /// Remove what Redis wrote to disk, so that it starts empty.
    pub(crate) fn forget_snapshot(&self) -> anyhow::Result<()> {
        match std::fs::remove_file(self.services.folder().join("dump.rdb")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => bail!("dump.rdb: {error}"),
            _ => Ok(()),
        }
    }
}

type Outcome = Result<(), tickr::services::ServicesError>;

fn socket(server: &Server) -> anyhow::Result<PathBuf> {
    match server.address() {
        Address::Socket(path) => Ok(path.clone()),
        Address::Tcp(_) => bail!("the folder's path is too long for sockets"),
    }
}
