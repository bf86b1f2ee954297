//! Rows of the scenario `keys` about limits by key: what a limit costs jobs with many keys, how much of a limit and of a
//! rate is used while work waits, and how long a job waits beside the flood of another key.

use std::collections::BTreeMap;
use std::time::Duration;

use super::drain::product;
use super::environment::{RunChecks, RunEnvironment, rate, stop, until_whole};
use super::figure::{Target, percentile};
use super::load::{jobs, payload};
use super::result_row::{ResultRow, Samples};
use super::{Bench, BenchError, Repetition, Scenario};
use crate::job::{Actor, Bounds, Due, JobId, Limit, NewJob, Rate, SharedBy, limits};
use crate::store::Condition;

/// Length of a job of the limited key.
const JOB: Duration = Duration::from_millis(500);
/// Time between two jobs beside the flood.
const BESIDE_EVERY: Duration = Duration::from_millis(200);

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let (many, keys) = (bench.jobs(100_000, 2_000), bench.pick(10_000, 200));
    let (flood, beside) = (bench.pick(100_000, 3_000), bench.pick(60, 5));
    let (at_once, starts) = (10, 200);
    let (few, rated) = (bench.jobs(300, 20), bench.jobs(2_000, 200));
    let [mut of_many, mut of_limit, mut of_rate, mut of_flood] = std::array::from_fn(|_| Samples::default());
    for round in bench.rounds() {
        let count = round.share_of(many);
        bench.progress.step("a backlog without limits", round);
        let mut stage = RunEnvironment::open(bench).await?;
        let (plain, plain_checked) = product(bench, &mut stage, count).await?;
        stage.close().await?;
        bench.progress.step("a backlog with many limit keys", round);
        let bounds = Bounds { concurrency: Some(100), ..Bounds::default() };
        let (limited, checked) = work_off(bench, limit(bounds, false)?, count, keys, None).await?;
        bench.progress.step("a backlog of one key with a limit", round);
        let bounds = Bounds { concurrency: Some(at_once), ..Bounds::default() };
        let (of_key, key_checked) = work_off(bench, limit(bounds, false)?, round.share_of(few), 1, Some(JOB)).await?;
        bench.progress.step("a backlog of one key with a rate", round);
        let rate = Rate { starts, period_ms: 1_000, burst: Rate::default_burst(starts, 1_000) };
        let bounds = Bounds { rate: Some(rate), ..Bounds::default() };
        let (at_rate, rate_checked) = work_off(bench, limit(bounds, false)?, round.share_of(rated), 1, None).await?;
        let (waited, flood_checked) = Box::pin(beside_a_flood(bench, flood, beside, round)).await?;
        if round.counts() {
            of_many.bare(plain, plain_checked);
            of_many.product(limited, count, checked);
            let most = f64::from(at_once) / JOB.as_secs_f64();
            of_limit.product(100.0 * of_key / most, few, key_checked);
            of_rate.product(100.0 * at_rate / f64::from(starts), rated, rate_checked);
            of_flood.product(waited, flood, flood_checked);
        }
    }
    let line = |samples: Samples, name: String, unit, aims: &[Target]| samples.line(Scenario::Keys, name, unit, aims);
    Ok(vec![
        line(
            of_many,
            format!("drain, noop, {keys} limit keys, beside none"),
            "jobs/s",
            &[Target::relative_to_bare(0.6)],
        ),
        line(of_limit, format!("use of a limit of {at_once} jobs of 500 ms"), "%", &[Target::at_least(95.0)]),
        line(of_rate, format!("use of a rate of {starts}/s"), "%", &[Target::at_least(98.0)]),
        line(of_flood, format!("lateness beside a flood of {flood}, fair, p99"), "ms", &[]),
    ])
}

fn limit(bounds: Bounds, fair: bool) -> Result<Limit, BenchError> {
    Ok(Limit {
        name: "bench".parse().map_err(|_| BenchError::Failed("the name of a limit".to_owned()))?,
        kind: None,
        queue: None,
        shared_by: SharedBy::Key,
        fair,
        breaker: None,
        bounds,
        overrides: BTreeMap::new(),
    })
}

/// Give the jobs limit keys, and let them take `length` each.
fn with_keys(jobs: &mut [NewJob], keys: u64, length: Option<Duration>) -> Result<(), BenchError> {
    for (number, job) in (0_u64..).zip(jobs) {
        job.options.limit_key = Some(format!("key-{}", number % keys));
        if let Some(length) = length {
            job.kind = "sleep".parse().map_err(|_| BenchError::Failed("the name of a kind".to_owned()))?;
            let text = format!("{{\"ms\": {}}}", length.as_millis());
            job.payload = serde_json::value::RawValue::from_string(text).unwrap_or_default();
        }
    }
    Ok(())
}

async fn insert(stage: &RunEnvironment<'_>, mut jobs: Vec<NewJob>) -> Result<(), BenchError> {
    while !jobs.is_empty() {
        let rest = jobs.split_off(jobs.len().min(limits::MAX_BATCH));
        stage.store.insert(std::mem::replace(&mut jobs, rest)).await?;
    }
    Ok(())
}

async fn set(stage: &RunEnvironment<'_>, limit: Limit) -> Result<(), BenchError> {
    stage.store.set_limit(limit, Condition::Any, &Actor::command()).await.map(drop).map_err(Into::into)
}

/// Work off a backlog under a limit. Return the jobs per second.
async fn work_off(
    bench: &Bench<'_>,
    limit: Limit,
    count: u64,
    keys: u64,
    length: Option<Duration>,
) -> Result<(f64, RunChecks), BenchError> {
    let mut stage = RunEnvironment::open(bench).await?;
    set(&stage, limit).await?;
    let mut jobs = jobs(count, &payload(bench.settings.payload_bytes)?, |_| Due::Now)?;
    with_keys(&mut jobs, keys, length)?;
    insert(&stage, jobs).await?;
    let app = stage.app().await?;
    let ended = stage.until_ended(count).await?;
    stop(app).await;
    let (_, started) = stage.counter_connection.beginnings(stage.first).await?;
    let measured = (rate(count, started, ended)?, stage.check(count, 0).await?);
    stage.close().await?;
    Ok(measured)
}

/// Let one key flood the queue, and enqueue jobs of another one beside it. Return the p99 of their lateness in
/// milliseconds.
async fn beside_a_flood(
    bench: &Bench<'_>,
    flood: u64,
    beside: u64,
    round: Repetition,
) -> Result<(f64, RunChecks), BenchError> {
    bench.progress.step("a flood of one key, and another key beside it", round);
    let mut stage = RunEnvironment::open(bench).await?;
    set(&stage, limit(Bounds::default(), true)?).await?;
    let app = stage.app().await?;
    until_whole(&app).await?;
    let payload = payload(bench.settings.payload_bytes)?;
    let mut flooding = jobs(flood, &payload, |_| Due::Now)?;
    with_keys(&mut flooding, 1, None)?;
    let broker = app.broker().clone();
    while !flooding.is_empty() {
        let rest = flooding.split_off(flooding.len().min(limits::MAX_BATCH));
        broker.enqueue_all(std::mem::replace(&mut flooding, rest)).await?;
    }
    let first = JobId::new();
    for mut job in jobs(beside, &payload, |_| Due::Now)? {
        job.id = JobId::new();
        job.options.limit_key = Some("beside".to_owned());
        broker.enqueue_all(vec![job]).await?;
        tokio::time::sleep(BESIDE_EVERY).await;
    }
    stage.until_ended(flood + beside).await?;
    stop(app).await;
    let late_us = stage.counter_connection.lateness_us(first).await?;
    let mut late_ms: Vec<f64> = late_us.into_iter().map(|us| us as f64 / 1e3).collect();
    late_ms.sort_by(f64::total_cmp);
    let checked = stage.check(flood + beside, 0).await?;
    stage.close().await?;
    Ok((percentile(&late_ms, 99.0), checked))
}
