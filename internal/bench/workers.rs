//! Scenario `workers`: remote workers, which speak the protocol of docs/WORKERS.md over connections of their own, and a
//! runner in its own process. It measures the time from an enqueue to the hand of a worker, jobs per second in batches
//! and one by one, and the cost of requests that wait. The workers share the cores with the runner and the servers.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::environment::{RunChecks, RunEnvironment, rate};
use super::figure::{Target, percentile};
use super::load::{join, payload, post};
use super::process::Process;
use super::result_row::{ResultRow, Samples};
use super::runner::Runner;
use super::wire::{EncodedRequest, KeepAliveConnection};
use super::{Bench, BenchError, LEAST_PAYLOAD, Scenario};

/// The kind of the jobs, and its queue, which the runner does not serve.
const KIND: &str = "remote_noop";
const QUEUE: &str = "remote";
/// Lease of the workers. No run lasts so long that a worker would have to send a heartbeat.
const LEASE_MS: u64 = 600_000;
/// Longest wait of a request for jobs.
const WAIT_MS: u64 = 60_000;
/// Rate of the enqueues, and the connections over which they go.
const PER_SECOND: u64 = 100;
const PRODUCERS: u64 = 4;
/// Jobs that a worker fetches at once, and workers of one slot.
const TOGETHER: usize = 32;
const SINGLE: usize = 64;
/// Jobs in one request of the backlog.
const BATCH: u64 = 500;
/// Longest wait for the last job.
const LAST: Duration = Duration::from_secs(60);

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let line =
        |samples: Samples, name: String, unit, aims: &[Target]| samples.line(Scenario::Workers, name, unit, aims);
    let waiting = bench.pick(100, 10);
    let (mut middle, mut tail) = (Samples::default(), Samples::default());
    let jobs = bench.jobs(2_000, 50);
    for round in bench.measured_rounds() {
        bench.progress.step("an enqueue to the hand of a worker", round);
        let (ms, checked) = Box::pin(to_the_hand(bench, waiting, jobs)).await?;
        middle.product(percentile(&ms, 50.0), jobs, checked);
        tail.product(percentile(&ms, 99.0), jobs, checked.counted_before());
    }
    let name = |which: &str| format!("enqueue to a remote worker, {PER_SECOND}/s, {waiting} polls, {which}");
    let mut lines = vec![
        line(middle, name("p50"), "ms", &[Target::at_most(3.0)]),
        line(tail, name("p99"), "ms", &[Target::at_most(10.0)]),
    ];

    let batches = bench.settings.callers.min(bench.pick(usize::MAX, 4));
    let single = bench.pick(SINGLE, 8);
    for (name, workers, together, jobs, bound) in [
        ("in batches of 32", batches, TOGETHER, bench.jobs(200_000, 1_000), 10_000.0),
        ("of one slot", single, 1, bench.jobs(40_000, 500), 2_000.0),
    ] {
        let name = format!("drain, noop, {workers} remote workers {name}");
        let jobs = jobs.div_ceil(BATCH) * BATCH;
        let mut samples = Samples::default();
        for round in bench.measured_rounds() {
            bench.progress.step(&name, round);
            let (speed, checked) = Box::pin(drain(bench, workers, together, jobs)).await?;
            samples.product(speed, jobs, checked);
        }
        lines.push(line(samples, name, "jobs/s", &[Target::at_least(bound)]));
    }

    let polls = bench.pick(1_000, 20);
    let (mut cpu, mut memory, mut known) = (Samples::default(), Samples::default(), false);
    for round in bench.measured_rounds() {
        bench.progress.step("polls that wait", round);
        let (used, checked) = Box::pin(waiting_polls(bench, polls)).await?;
        if let Some((percent, bytes)) = used {
            known = true;
            cpu.product(percent, 1, checked);
            memory.product(bytes as f64 / 1e6, 1, checked.counted_before());
        }
    }
    if known {
        lines.push(line(cpu, format!("{polls} polls that wait, time of one core"), "%", &[Target::at_most(2.0)]));
        lines.push(line(memory, format!("{polls} polls that wait, memory"), "MB", &[Target::at_most(100.0)]));
    }
    Ok(lines)
}

/// A runner that serves no queue of the workers, with the declared kind.
async fn runner(bench: &Bench<'_>, stage: &RunEnvironment<'_>) -> Result<Runner, BenchError> {
    let runner = Runner::start(bench, stage).await?;
    let mut wire = KeepAliveConnection::open(runner.addr).await?;
    let body = json!({ "queue": QUEUE, "max_attempts": 5 }).to_string();
    expect(wire.call("PUT", &format!("/v1/kinds/{KIND}"), &body).await?, &[200, 201], "declare a kind")?;
    Ok(runner)
}

fn expect(answer: (u16, Vec<u8>), statuses: &[u16], attempted: &str) -> Result<Vec<u8>, BenchError> {
    let (status, body) = answer;
    if statuses.contains(&status) {
        return Ok(body);
    }
    Err(BenchError::Failed(format!("{attempted}: status {status}, {}", String::from_utf8_lossy(&body))))
}

/// A remote worker on one connection.
struct Worker {
    id: String,
    wire: KeepAliveConnection,
}

#[derive(Deserialize)]
struct Registered {
    id: String,
}

#[derive(Deserialize)]
struct FetchedJobs {
    jobs: Vec<FetchedJob>,
}

#[derive(Deserialize)]
struct FetchedJob {
    token: String,
    payload: Box<RawValue>,
}

fn read<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, BenchError> {
    serde_json::from_slice(body).map_err(|error| BenchError::Failed(format!("an answer to a worker: {error}")))
}

impl Worker {
    async fn register(addr: SocketAddr, slots: usize) -> Result<Self, BenchError> {
        let mut wire = KeepAliveConnection::open(addr).await?;
        let body = json!({ "name": "bench", "kinds": [KIND], "queues": [QUEUE], "slots": slots, "lease_ms": LEASE_MS });
        let answer = wire.call("POST", "/v1/workers", &body.to_string()).await?;
        let Registered { id } = read(&expect(answer, &[201], "register a worker")?)?;
        Ok(Self { id, wire })
    }

    async fn fetch(&mut self, slots: usize) -> Result<Vec<FetchedJob>, BenchError> {
        let body = format!(r#"{{"slots":{slots},"wait_ms":{WAIT_MS},"holding":[],"fetch_id":"{}"}}"#, Uuid::new_v4());
        let answer = self.wire.call("POST", &format!("/v1/workers/{}/fetch", self.id), &body).await?;
        let FetchedJobs { jobs } = read(&expect(answer, &[200], "fetch jobs")?)?;
        Ok(jobs)
    }

    async fn finish(&mut self, jobs: &[FetchedJob]) -> Result<(), BenchError> {
        let verdicts: Vec<String> =
            jobs.iter().map(|job| format!(r#"{{"token":"{}","verdict":"succeeded"}}"#, job.token)).collect();
        let body = format!(r#"{{"verdicts":[{}]}}"#, verdicts.join(","));
        let answer = self.wire.call("POST", &format!("/v1/workers/{}/finish", self.id), &body).await?;
        expect(answer, &[200], "finish jobs").map(drop)
    }
}

/// Register workers, each on its own connection.
async fn register(addr: SocketAddr, workers: usize, slots: usize) -> Result<Vec<Worker>, BenchError> {
    let mut registering = JoinSet::new();
    for _ in 0..workers {
        registering.spawn(Worker::register(addr, slots));
    }
    let mut registered = Vec::with_capacity(workers);
    while let Some(worker) = registering.join_next().await {
        registered.push(worker??);
    }
    Ok(registered)
}

/// The part of a payload that numbers the job.
#[derive(Deserialize)]
struct Numbered {
    n: usize,
}

/// Enqueue jobs at an even rate while polls wait. Return the time from the start of each enqueue to the arrival of the job
/// at a worker, in milliseconds, sorted.
async fn to_the_hand(bench: &Bench<'_>, polls: usize, jobs: u64) -> Result<(Vec<f64>, RunChecks), BenchError> {
    // The first jobs open connections of the runner, so they are not measured.
    let warm_up = bench.pick(100, 10);
    let all = warm_up + jobs;
    let mut stage = RunEnvironment::open(bench).await?;
    let mut runner = runner(bench, &stage).await?;
    let asked: Arc<Vec<OnceLock<Instant>>> = Arc::new((0..all).map(|_| OnceLock::new()).collect());
    let (arrived, mut arrivals) = mpsc::unbounded_channel::<(usize, Instant)>();
    let mut working: JoinSet<Result<(), BenchError>> = JoinSet::new();
    for mut worker in register(runner.addr, polls, 1).await? {
        let arrived = arrived.clone();
        working.spawn(async move {
            loop {
                let fetched = worker.fetch(1).await?;
                let now = Instant::now();
                for job in &fetched {
                    let Numbered { n } = read(job.payload.get().as_bytes())?;
                    // The receiver is gone when the run is over.
                    let _ = arrived.send((n, now));
                }
                if !fetched.is_empty() {
                    worker.finish(&fetched).await?;
                }
            }
        });
    }
    let pad = "x".repeat(bench.settings.payload_bytes.saturating_sub(LEAST_PAYLOAD + 10));
    let mut producing: JoinSet<Result<(), BenchError>> = JoinSet::new();
    let begin = Instant::now() + Duration::from_millis(500);
    for producer in 0..PRODUCERS {
        let (asked, pad, addr) = (Arc::clone(&asked), pad.clone(), runner.addr);
        producing.spawn(async move {
            let mut wire = KeepAliveConnection::open(addr).await?;
            for n in (producer..all).step_by(PRODUCERS as usize) {
                let turn = begin + Duration::from_micros(n * 1_000_000 / PER_SECOND);
                tokio::time::sleep_until(turn.into()).await;
                let body = format!(r#"{{"kind":"{KIND}","payload":{{"n":{n},"pad":"{pad}"}}}}"#);
                if let Some(slot) = asked.get(n as usize) {
                    let _ = slot.set(Instant::now());
                }
                expect(wire.call("POST", "/v1/jobs", &body).await?, &[201], "enqueue a job")?;
            }
            Ok(())
        });
    }
    let mut ms: Vec<f64> = Vec::new();
    let mut seen = 0;
    while seen < all {
        let received = tokio::time::timeout(LAST, arrivals.recv()).await;
        let Ok(Some((n, at))) = received else {
            if let Some(ended) = working.try_join_next() {
                ended??;
            }
            return Err(BenchError::Failed(format!("{seen} of {all} jobs reached a worker, and none for a minute")));
        };
        seen += 1;
        let since = asked.get(n).and_then(OnceLock::get).map(|asked| at.duration_since(*asked).as_secs_f64() * 1e3);
        ms.extend(since.filter(|_| n as u64 >= warm_up));
    }
    join(producing).await?;
    stage.until_ended(all).await?;
    working.shutdown().await;
    runner.stop().await?;
    let mut checked = stage.check(all, 0).await?;
    checked.exactly_once &= ms.len() as u64 == jobs;
    stage.close().await?;
    ms.sort_by(f64::total_cmp);
    Ok((ms, checked))
}

/// Let workers work off a backlog. Return the jobs per second.
async fn drain(bench: &Bench<'_>, workers: usize, together: usize, jobs: u64) -> Result<(f64, RunChecks), BenchError> {
    let payload = payload(bench.settings.payload_bytes)?;
    let mut stage = RunEnvironment::open(bench).await?;
    let mut runner = runner(bench, &stage).await?;
    let batch: Vec<_> = (0..BATCH).map(|_| json!({ "kind": KIND, "payload": payload })).collect();
    let body = EncodedRequest::new("/v1/jobs/batch", &json!({ "jobs": batch }).to_string());
    post(runner.addr, 4, jobs / BATCH, body).await?;
    let mut working: JoinSet<Result<(), BenchError>> = JoinSet::new();
    for mut worker in register(runner.addr, workers, together).await? {
        working.spawn(async move {
            loop {
                let fetched = worker.fetch(together).await?;
                if !fetched.is_empty() {
                    worker.finish(&fetched).await?;
                }
            }
        });
    }
    let ended = tokio::select! {
        ended = stage.until_ended(jobs) => ended?,
        failed = working.join_next() => {
            let failed = failed.map(|failed| failed.unwrap_or_else(|error| Err(error.into())));
            return Err(failed.and_then(Result::err).unwrap_or_else(|| BenchError::Failed("a worker ended".to_owned())));
        }
    };
    working.shutdown().await;
    let (_, started) = stage.counter_connection.beginnings(stage.first).await?;
    runner.stop().await?;
    let speed = rate(jobs, started, ended)?;
    let checked = stage.check(jobs, 0).await?;
    stage.close().await?;
    Ok((speed, checked))
}

/// Percent of one core, and resident bytes.
type Used = Option<(f64, u64)>;

/// Let requests for jobs wait, and measure the process of the runner meanwhile. One job at the end shows that they do wait.
async fn waiting_polls(bench: &Bench<'_>, polls: usize) -> Result<(Used, RunChecks), BenchError> {
    let (settle, window) = bench
        .pick((Duration::from_secs(5), Duration::from_secs(30)), (Duration::from_millis(500), Duration::from_secs(1)));
    let mut stage = RunEnvironment::open(bench).await?;
    let mut runner = runner(bench, &stage).await?;
    let mut working: JoinSet<Result<(), BenchError>> = JoinSet::new();
    for mut worker in register(runner.addr, polls, 1).await? {
        working.spawn(async move {
            loop {
                let fetched = worker.fetch(1).await?;
                if !fetched.is_empty() {
                    worker.finish(&fetched).await?;
                }
            }
        });
    }
    tokio::time::sleep(settle).await;
    let process = runner.process();
    let cpu = || process.as_ref().and_then(Process::cpu);
    let (began, before) = (Instant::now(), cpu());
    tokio::time::sleep(window).await;
    let (after, elapsed) = (cpu(), began.elapsed().as_secs_f64());
    let resident = process.as_ref().and_then(Process::resident_bytes);
    let used = before
        .zip(after)
        .zip(resident)
        .map(|((before, after), bytes)| (100.0 * after.saturating_sub(before).as_secs_f64() / elapsed, bytes));
    let mut wire = KeepAliveConnection::open(runner.addr).await?;
    let body = json!({ "kind": KIND, "payload": {} }).to_string();
    expect(wire.call("POST", "/v1/jobs", &body).await?, &[201], "enqueue a job")?;
    stage.until_ended(1).await?;
    if let Some(ended) = working.try_join_next() {
        ended??;
    }
    working.shutdown().await;
    runner.stop().await?;
    let checked = stage.check(1, 0).await?;
    stage.close().await?;
    Ok((used, checked))
}
