//! Scenario `idle`: a runner without work, in its own process. It measures the processor time, the memory, and the
//! statements to the servers. Process data exist on Linux only; elsewhere only the servers are measured.

use std::time::{Duration, Instant};

use serde_json::json;

use super::environment::RunEnvironment;
use super::figure::Target;
use super::load::{KIND, payload, post};
use super::process::Process;
use super::result_row::{ResultRow, Samples};
use super::runner::Runner;
use super::wire::EncodedRequest;
use super::{Bench, BenchError, Scenario};
use crate::index::BareIndex;

/// Number of jobs that the runner completes before it idles. A runner that has done nothing holds less memory.
const BEFORE: u64 = 1_000;

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
        lines.push(line(self.mysql, "idle, statements to MySQL", "/s", &[Target::at_most(4.0)]));
        lines.push(line(self.redis, "idle, commands to Redis", "/s", &[Target::at_most(5.0)]));
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

    let process = runner.process();
    let cpu = || process.as_ref().and_then(Process::cpu);
    let cpu_before = cpu();
    let watch = RequestWatch::begin(&mut stage, &mut index).await?;
    if bench.ground.is_private() {
        stage.counter_connection.overhear().await?;
    }
    tokio::time::sleep(window).await;
    let overheard =
        if bench.ground.is_private() { Some(stage.counter_connection.statement_counts().await?) } else { None };
    let requests = watch.end(&mut stage, &mut index).await?;
    let (cpu_after, elapsed) = (cpu(), requests.seconds);
    let resident = process.as_ref().and_then(Process::resident_bytes);
    runner.stop().await?;
    let checked = stage.check(before_it, 0).await?;
    let again = checked.counted_before();

    if let (Some(before), Some(after), Some(bytes)) = (cpu_before, cpu_after, resident) {
        sampled.process_known = true;
        sampled.cpu.product(100.0 * after.saturating_sub(before).as_secs_f64() / elapsed, before_it, again);
        sampled.memory.product(bytes as f64 / 1e6, before_it, again);
    }
    if let Some(overheard) = overheard {
        sampled.statements_known = true;
        sampled.dequeues.product(overheard.taking_work as f64, before_it, again);
        sampled.looks.product(overheard.looking as f64 / elapsed, before_it, again);
    }
    sampled.mysql.product(requests.statements_per_second, before_it, checked);
    sampled.redis.product(requests.commands_per_second, before_it, again);
    stage.close().await
}

/// The counters of both servers at the begin of a time without work.
pub(super) struct RequestWatch {
    began: Instant,
    commands: u64,
    statements: u64,
}

/// The requests to both servers within a time, without those of the bench.
pub(super) struct Requests {
    /// Length of the time.
    pub(super) seconds: f64,
    pub(super) statements_per_second: f64,
    pub(super) commands_per_second: f64,
}

impl RequestWatch {
    pub(super) async fn begin(stage: &mut RunEnvironment<'_>, index: &mut BareIndex) -> Result<Self, BenchError> {
        let began = Instant::now();
        let (commands, counters) = (index.commands().await?, stage.counter_connection.counters().await?);
        Ok(Self { began, commands, statements: counters.questions })
    }

    pub(super) async fn end(
        self,
        stage: &mut RunEnvironment<'_>,
        index: &mut BareIndex,
    ) -> Result<Requests, BenchError> {
        let (counters, commands) = (stage.counter_connection.counters().await?, index.commands().await?);
        let seconds = self.began.elapsed().as_secs_f64();
        let per_second = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        Ok(Requests {
            seconds,
            statements_per_second: per_second(self.statements, counters.questions),
            commands_per_second: per_second(self.commands, commands),
        })
    }
}
