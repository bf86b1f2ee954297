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
