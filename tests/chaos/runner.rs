//! One of the three runners. Its keeper starts the process again whenever it ends, as a service manager does.

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::clock::Clock;
use crate::journal::History;
use crate::kinds;
use crate::ledger::Ledger;
use crate::locked;
use crate::proxy::{Protocol, Proxy};
use crate::servers::{ACCOUNT, Servers};

/// Settings of every runner, apart from its servers. The lease is the shortest that tickr allows.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
const ENVIRONMENT: [(&str, &str); 10] = [
    ("TICKR_HTTP_ADDR", "127.0.0.1:0"),
    ("TICKR_LEASE", "2s"),
    ("TICKR_SHUTDOWN_GRACE", "5s"),
    ("TICKR_WORKERS", "16"),
    ("TICKR_QUEUES", "default,side,narrow,paced"),
    ("TICKR_MYSQL_CONNECTIONS", "6"),
    ("TICKR_CALLBACK_ALLOW_PRIVATE", "true"),
    ("TICKR_TEST_KINDS", "true"),
    ("TICKR_LOG", "info"),
    ("RUST_BACKTRACE", "1"),
];
/// Longest time for a stop: the grace period, the ordered stop after it, and a margin for a busy machine.
const STOP_LIMIT: Duration = Duration::from_secs(40);

/// A runner with its proxies and its clock.
pub(crate) struct Runner {
    pub(crate) number: usize,
    /// One proxy for each MySQL server.
    pub(crate) mysql: Vec<Proxy>,
    pub(crate) redis: Proxy,
    pub(crate) clock: Clock,
    addr: watch::Receiver<Option<SocketAddr>>,
    orders: mpsc::Sender<Order>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

/// Something to do to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Kill,
    Pause,
    Resume,
    Terminate,
    /// Stop for good: the keeper does not start it again.
    Retire,
}

impl Order {
    fn signal(self) -> &'static str {
        match self {
            Self::Kill => "KILL",
            Self::Pause => "STOP",
            Self::Resume => "CONT",
            Self::Terminate | Self::Retire => "TERM",
        }
    }
}

impl Runner {
    /// Start a runner and its proxies. With `apart` it begins with another MySQL server than the other runners.
    pub(crate) async fn start(
        number: usize,
        servers: &Servers,
        apart: bool,
        dir: &Path,
        ledger: &Arc<Ledger>,
        faketime: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let mut mysql = Vec::new();
        for socket in servers.mysql_sockets()? {
            mysql.push(Proxy::start(&socket, Protocol::Mysql).await?);
        }
        let mut addresses: Vec<String> = mysql.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
        let first = if apart { number % addresses.len() } else { 0 };
        addresses.rotate_left(first);
        let redis = Proxy::start(&servers.redis_socket()?, Protocol::Redis).await?;
        let (addr_tx, addr) = watch::channel(None);
        let (orders, taken) = mpsc::channel(8);
        let own = dir.join(format!("runner{number}"));
        std::fs::create_dir_all(&own)?;
        let clock = Clock::new(own.join("clock"));
        clock.turn(0)?;
        let keeper = Keeper {
            number,
            dir: own,
            clock: faketime.map(|library| clock.environment(library)).unwrap_or_default(),
            journal: dir.join("journal"),
            mysql_url: format!("mysql://{ACCOUNT}@{}/chaos?ssl-mode=disabled", addresses.join(",")),
            // Sentinels give out addresses, so no proxy stands between.
            redis_url: match servers.watched() {
                Some(watched) => watched.url()?,
                None => format!("redis://127.0.0.1:{}/", redis.port()),
            },
            addr: addr_tx,
            ledger: Arc::clone(ledger),
        };
        let keeper = tokio::spawn(keeper.keep(taken));
        Ok(Self { number, mysql, redis, clock, addr, orders, keeper: Mutex::new(Some(keeper)) })
    }

    /// Return the number of answers that its proxies lost.
    pub(crate) fn lost(&self) -> usize {
        self.mysql.iter().chain([&self.redis]).map(Proxy::lost).sum()
    }

    /// Return the address of its API, unless it is down.
    pub(crate) fn addr(&self) -> Option<SocketAddr> {
        *self.addr.borrow()
    }

    pub(crate) async fn until_up(&self) -> SocketAddr {
        let mut addr = self.addr.clone();
        loop {
            if let Some(addr) = *addr.borrow_and_update() {
                return addr;
            }
            if addr.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    pub(crate) async fn order(&self, order: Order) {
        let _ = self.orders.send(order).await;
    }

    /// Stop the runner for good and wait for its end.
    pub(crate) async fn retire(&self) {
        self.order(Order::Retire).await;
        let keeper = locked(&self.keeper).take();
        if let Some(keeper) = keeper {
            let _ = keeper.await;
        }
    }
}

struct Keeper {
    number: usize,
    dir: PathBuf,
    /// Environment variables that make the process use the runner's own clock.
    clock: Vec<(&'static str, PathBuf)>,
    journal: PathBuf,
    mysql_url: String,
    redis_url: String,
    addr: watch::Sender<Option<SocketAddr>>,
    ledger: Arc<Ledger>,
}

/// The end of the process that was ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Nothing,
    Kill,
    Stop { asked: Instant },
}

impl Keeper {
    async fn keep(self, mut orders: mpsc::Receiver<Order>) {
        loop {
            // Orders that came while no process ran are void.
            while let Ok(order) = orders.try_recv() {
                if order == Order::Retire {
                    return;
                }
            }
            match self.one_life(&mut orders).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => self.ledger.complain(format!("runner {}: {error:#}", self.number)),
            }
            // A service manager waits as well, and the pause lets the other runners notice that this one is gone.
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    /// Run one process from its start to its end. Return whether it was the last one.
    async fn one_life(&self, orders: &mut mpsc::Receiver<Order>) -> anyhow::Result<bool> {
        let log = self.dir.join("log");
        let from = std::fs::metadata(&log).map_or(0, |log| log.len());
        let mut child = self.spawn(&log)?;
        // Keep standard input open while the process lives. `wait` would close it, and a runner stops when its standard
        // input ends.
        let _stdin = child.stdin.take();
        let pid = child.id().context("a process that was just started has an id")?;
        let mut expected = Expected::Nothing;
        let mut last = false;
        let mut looks = tokio::time::interval(Duration::from_millis(50));
        let status = loop {
            let overdue = async {
                match expected {
                    Expected::Stop { asked } => tokio::time::sleep_until(asked + STOP_LIMIT).await,
                    Expected::Nothing | Expected::Kill => std::future::pending().await,
                }
            };
            tokio::select! {
                status = child.wait() => break status?,
                Some(order) = orders.recv() => {
                    signal(&child, order.signal()).await;
                    match order {
                        Order::Kill => expected = Expected::Kill,
                        Order::Terminate | Order::Retire => {
                            last |= order == Order::Retire;
                            // A second signal makes the stop faster, but the limit counts from the first signal.
                            if !matches!(expected, Expected::Stop { .. }) {
                                expected = Expected::Stop { asked: Instant::now() };
                            }
                        }
                        Order::Pause | Order::Resume => {}
                    }
                }
                _ = looks.tick(), if self.addr.borrow().is_none() && expected == Expected::Nothing => {
                    let addr = address(&log, from);
                    if addr.is_some() {
                        self.addr.send_replace(addr);
                    }
                }
                () = overdue => {
                    let limit = STOP_LIMIT.as_secs();
                    self.ledger.complain(format!("runner {} (process {pid}) did not stop within {limit} s", self.number));
                    child.kill().await?;
                    expected = Expected::Kill;
                }
            }
        };
        let was_up = self.addr.send_replace(None).is_some();
        if let Some(complaint) = self.judge(status, pid, expected, was_up) {
            self.ledger.complain(format!("runner {} (process {pid}) {complaint}", self.number));
        }
        Ok(last)
    }

    /// Return what is wrong with the end of a process.
    fn judge(&self, status: ExitStatus, pid: u32, expected: Expected, was_up: bool) -> Option<String> {
        const ABORT: i32 = 6;
        const KILL: i32 = 9;
        const TERMINATE: i32 = 15;
        if status.signal() == Some(ABORT) {
            let history = History::read(&self.journal).unwrap_or_default();
            if history.aborted.contains(&pid) {
                self.ledger.aborted();
                return None;
            }
        }
        match expected {
            Expected::Kill if status.signal() == Some(KILL) => None,
            Expected::Stop { .. } if status.success() => None,
            // The second signal of a stop came to the next process, which had only just begun.
            Expected::Stop { .. } if !was_up && status.signal() == Some(TERMINATE) => None,
            // The runner could not reach MySQL for as long as it tries, reported that, and exited so that the keeper
            // starts it again.
            Expected::Nothing if !was_up && status.code() == Some(1) => None,
            Expected::Nothing => Some(format!("ended by itself: {status}")),
            Expected::Kill | Expected::Stop { .. } => Some(format!("ended with {status} after {expected:?}")),
        }
    }

    fn spawn(&self, log: &Path) -> anyhow::Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        let mut command = Command::new(std::env::current_exe()?);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TICKR_") {
                command.env_remove(name);
            }
        }
        command
            .current_dir(&self.dir)
            .envs(ENVIRONMENT)
            .envs(self.clock.iter().cloned())
            .env("TICKR_MYSQL_URL", &self.mysql_url)
            .env("TICKR_REDIS_URL", &self.redis_url)
            .env(kinds::ROLE, &self.journal)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            // If its parent dies while it is paused, the kernel sends it SIGHUP, because its process group is then
            // orphaned.
            .process_group(0)
            .kill_on_drop(true);
        Ok(command.spawn()?)
    }
}

/// Read the address of the newest process from the log.
fn address(log: &Path, from: u64) -> Option<SocketAddr> {
    let bytes = std::fs::read(log).ok()?;
    let text = String::from_utf8_lossy(bytes.get(usize::try_from(from).ok()?..)?);
    text.lines().find_map(|line| line.split_once("listening addr=")?.1.trim().parse().ok())
}

async fn signal(child: &Child, name: &str) {
    // Without an id the process has already ended, and its keeper is about to notice.
    if let Some(pid) = child.id() {
        let _ = Command::new("sh").args(["-c", "kill -s $0 $1", name, &pid.to_string()]).status().await;
    }
}
