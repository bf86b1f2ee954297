//! Scenario `idle`: a runner without work, in its own process. It measures the processor time, the memory, and the
//! statements to the servers. Process data exist on Linux only; elsewhere only the servers are measured.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

use super::environment::RunEnvironment;
use super::figure::Target;
use super::load::{KIND, payload, post};
use super::process::Process;
use super::result_row::{ResultRow, Samples};
use super::wire::EncodedRequest;
use super::{Bench, BenchError, Scenario};

/// Time limit for a start, and for a stop.
const LIMIT: Duration = Duration::from_secs(30);
/// Number of jobs that the runner completes before it idles. A runner that has done nothing holds less memory.
const BEFORE: u64 = 1_000;
/// Statements of the bench itself within the measured time. Those of the second number start and end the general log.
const OWN_QUESTIONS: u64 = 1;
const LISTENING_QUESTIONS: u64 = 5;

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let mut sampled = IdleSamples::default();
    for round in bench.measured_rounds() {
        bench.progress.step("a runner without work", round);
        once(bench, &mut sampled).await?;
    }
    Ok(sampled.lines())
}

#[derive(Default)]
struct IdleSamples {
    /// Percent of one core. Only where the operating system provides it.
    cpu: Samples,
    memory: Samples,
    process_known: bool,
    /// Statements that take work. Only on servers that other programs do not use.
    dequeues: Samples,
    looks: Samples,
    statements_known: bool,
    mysql: Samples,
    redis: Samples,
}

impl IdleSamples {
    fn lines(self) -> Vec<ResultRow> {
        let line = |samples: Samples, name: &str, unit, aims: &[Target]| samples.line(Scenario::Idle, name, unit, aims);
        let mut lines = Vec::new();
        if self.process_known {
            lines.push(line(self.cpu, "idle, time of one core", "%", &[Target::at_most(1.0)]));
            lines.push(line(self.memory, "idle, resident memory", "MB", &[Target::at_most(40.0)]));
        }
        if self.statements_known {
            lines.push(line(self.dequeues, "idle, statements that take work", "", &[Target::at_most(0.0)]));
            lines.push(line(self.looks, "idle, reads of unfinished jobs", "/s", &[]));
        }
        lines.push(line(self.mysql, "idle, statements to MySQL", "/s", &[]));
        lines.push(line(self.redis, "idle, commands to Redis", "/s", &[]));
        lines
    }
}

async fn once(bench: &Bench<'_>, sampled: &mut IdleSamples) -> Result<(), BenchError> {
    let (settle, window) = bench
        .pick((Duration::from_secs(5), Duration::from_secs(25)), (Duration::from_millis(200), Duration::from_secs(1)));
    let before_it = bench.pick(BEFORE, 50);
    let mut stage = RunEnvironment::open(bench).await?;
    let mut runner = Runner::start(bench, &stage).await?;
    let payload = payload(bench.settings.payload_bytes)?;
    let body = json!({"kind": KIND, "payload": payload}).to_string();
    post(runner.addr, 8, before_it, EncodedRequest::new("/v1/jobs", &body)).await?;
    stage.until_ended(before_it).await?;
    let mut index = stage.index()?.bare().await?;
    tokio::time::sleep(settle).await;

    let process = runner.child.id().and_then(Process::find);
    let cpu = || process.as_ref().and_then(Process::cpu);
    let (began, cpu_before) = (Instant::now(), cpu());
    let (commands, counters) = (index.commands().await?, stage.counter_connection.counters().await?);
    if bench.ground.is_private() {
        stage.counter_connection.overhear().await?;
    }
    tokio::time::sleep(window).await;
    let overheard =
        if bench.ground.is_private() { Some(stage.counter_connection.statement_counts().await?) } else { None };
    let (counters_after, commands_after) = (stage.counter_connection.counters().await?, index.commands().await?);
    let (cpu_after, elapsed) = (cpu(), began.elapsed().as_secs_f64());
    let resident = process.as_ref().and_then(Process::resident_bytes);
    runner.stop().await?;
    let checked = stage.check(before_it, 0).await?;
    let again = checked.counted_before();

    if let (Some(before), Some(after), Some(bytes)) = (cpu_before, cpu_after, resident) {
        sampled.process_known = true;
        sampled.cpu.product(100.0 * after.saturating_sub(before).as_secs_f64() / elapsed, before_it, again);
        sampled.memory.product(bytes as f64 / 1e6, before_it, again);
    }
    let mut own = OWN_QUESTIONS;
    if let Some(overheard) = overheard {
        own += LISTENING_QUESTIONS;
        sampled.statements_known = true;
        sampled.dequeues.product(overheard.taking_work as f64, before_it, again);
        sampled.looks.product(overheard.looking as f64 / elapsed, before_it, again);
    }
    let questions = (counters_after.questions - counters.questions).saturating_sub(own);
    sampled.mysql.product(questions as f64 / elapsed, before_it, checked);
    sampled.redis.product((commands_after - commands) as f64 / elapsed, before_it, again);
    stage.close().await
}

/// A `tickr serve` in its own process.
struct Runner {
    child: Child,
    addr: std::net::SocketAddr,
    _log: Lines<BufReader<ChildStderr>>,
}

impl Runner {
    async fn start(bench: &Bench<'_>, stage: &RunEnvironment<'_>) -> Result<Self, BenchError> {
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
        let mut child = command.spawn().map_err(BenchError::io("start the idle runner"))?;
        let log = child.stderr.take().ok_or_else(|| BenchError::Failed("the runner has no log".to_owned()))?;
        let mut log = BufReader::new(log).lines();
        let addr = tokio::time::timeout(LIMIT, address_in(&mut log)).await;
        let late = |_| BenchError::Failed(format!("the runner does not listen after {} s", LIMIT.as_secs()));
        Ok(Self { addr: addr.map_err(late)??, child, _log: log })
    }

    /// Send SIGTERM and wait until the process has ended.
    async fn stop(&mut self) -> Result<(), BenchError> {
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
