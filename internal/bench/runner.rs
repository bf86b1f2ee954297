//! A runner in its own process, for what is measured of a process.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

use super::environment::RunEnvironment;
use super::process::Process;
use super::{Bench, BenchError};

/// Time limit for a start, and for a stop.
const LIMIT: Duration = Duration::from_secs(30);

/// A `tickr serve` in its own process.
pub(super) struct Runner {
    child: Child,
    pub(super) addr: std::net::SocketAddr,
    _log: Lines<BufReader<ChildStderr>>,
}

impl Runner {
    pub(super) async fn start(bench: &Bench<'_>, stage: &RunEnvironment<'_>) -> Result<Self, BenchError> {
        let mut command = Command::new(&bench.settings.program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TICKR_")) {
            command.env_remove(name);
        }
        let config = stage.config();
        command
            .args(["serve", "--http-addr", "127.0.0.1:0", "--log", "info", "--log-format", "json", "--test-kinds"])
            .args(["--shutdown-notice", "0s"])
            // Not as arguments, which every account of the machine may read.
            .env("TICKR_MYSQL_URL", config.mysql_url().map_err(crate::app::StartError::from)?.expose())
            .env("TICKR_REDIS_URL", config.redis_url().map_err(crate::app::StartError::from)?.expose())
            .env("TICKR_REDIS_PREFIX", &config.redis_prefix)
            .env("TICKR_TABLE_PREFIX", config.table_prefix.as_str())
            // A `tickr.toml` in the current folder of the operator must not apply.
            .current_dir(std::env::temp_dir())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(BenchError::io("start the runner"))?;
        let log = child.stderr.take().ok_or_else(|| BenchError::Failed("the runner has no log".to_owned()))?;
        let mut log = BufReader::new(log).lines();
        let addr = tokio::time::timeout(LIMIT, address_in(&mut log)).await;
        let late = |_| BenchError::Failed(format!("the runner does not listen after {} s", LIMIT.as_secs()));
        Ok(Self { addr: addr.map_err(late)??, child, _log: log })
    }

    /// Return its processor time and memory. `None` where there is no `/proc`.
    pub(super) fn process(&self) -> Option<Process> {
        self.child.id().and_then(Process::find)
    }

    /// Send SIGTERM and wait until the process has ended.
    pub(super) async fn stop(&mut self) -> Result<(), BenchError> {
        if let Some(pid) = self.child.id() {
            let asked = Command::new("sh").args(["-c", "kill -s TERM $0", &pid.to_string()]).status().await;
            asked.map_err(BenchError::io("stop the runner"))?;
        }
        let ended = tokio::time::timeout(LIMIT, self.child.wait()).await;
        let late = |_| BenchError::Failed(format!("the runner does not stop within {} s", LIMIT.as_secs()));
        ended.map_err(late)?.map_err(BenchError::io("wait for the runner"))?;
        Ok(())
    }
}

/// Read the address on which the runner listens from its log.
async fn address_in(log: &mut Lines<BufReader<ChildStderr>>) -> Result<std::net::SocketAddr, BenchError> {
    let mut last = String::new();
    while let Some(line) = log.next_line().await.map_err(BenchError::io("read the runner's log"))? {
        let entry: Value = serde_json::from_str(&line).unwrap_or_default();
        if let Some(addr) = entry.get("addr").and_then(Value::as_str).and_then(|addr| addr.parse().ok()) {
            return Ok(addr);
        }
        last = line;
    }
    Err(BenchError::Failed(format!("the runner ended before it listened; last line of its log: {last}")))
}
