//! Scenario `lateness`: the start of each attempt minus its due time, as MySQL stored them. Jobs are enqueued ahead of
//! time and become due at an even rate. Other jobs wait beside them: half of those are in the index, the rest beyond
//! its horizon. The bare store has no lateness, so there is no comparison.

use std::time::{Duration, Instant};

use chrono::TimeDelta;

use super::environment::{LEAD, RunChecks, RunEnvironment, stop_all, until_whole};
use super::figure::{Target, percentile};
use super::held;
use super::load::{LANES, call, call_in_batches, insert_bare, jobs, payload};
use super::result_row::{ResultRow, Samples};
use super::{Bench, BenchError, Repetition, Scenario};
use crate::job::{Due, JobId, Timestamp, ceil_ms};

/// Number of jobs that run before the measurement, so that everything was used once.
const WARM_UP: u64 = 200;

/// The runners, the jobs that become due, and the jobs that wait.
pub(super) struct Shape {
    pub(super) name: String,
    /// Number of runners, and of the workers of each.
    pub(super) runners: usize,
    pub(super) workers: usize,
    pub(super) jobs: u64,
    pub(super) per_second: u64,
    pub(super) waiting: u64,
    /// Jobs that wait for order keys and limit keys.
    pub(super) keyed: u64,
    /// Targets of p50 and p99.
    pub(super) aims: [Option<Target>; 2],
    /// Target of the time of Redis, in percent of a core. Without one, its row is left out.
    pub(super) redis: Option<Target>,
}

/// The result of one run.
struct Measured {
    /// Lateness of every job in milliseconds, least first.
    late_ms: Vec<f64>,
    /// Processor time of Redis while the jobs fell due, in percent of a core.
    redis_percent: f64,
    /// Bytes of Redis for each job that waits for a key.
    held_bytes: Option<f64>,
    checked: RunChecks,
}

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let strict = [Some(Target::at_most(1.5)), Some(Target::at_most(4.0))];
    let calm = bench.jobs(2_000, 50);
    let (far, very_many) = (bench.pick(200_000, 2_000), bench.pick(1_000_000, 5_000));
    let shape = |jobs, per_second, waiting, aims| {
        let beside = if waiting > 0 { format!(", {waiting} waiting") } else { String::new() };
        let name = format!("lateness, {per_second}/s{beside}");
        let (runners, workers) = (1, bench.settings.workers);
        Shape { name, runners, workers, jobs, per_second, waiting, keyed: 0, aims, redis: None }
    };
    let mut lines = Vec::new();
    for shape in [
        shape(calm, 100, 0, strict),
        shape(calm, 100, far, strict),
        shape(bench.jobs(20_000, 500), 2_000, very_many, [None, Some(Target::at_most(25.0))]),
    ] {
        lines.extend(measure(bench, Scenario::Lateness, &shape).await?);
    }
    Ok(lines)
}

pub(super) async fn measure(
    bench: &Bench<'_>,
    scenario: Scenario,
    shape: &Shape,
) -> Result<Vec<ResultRow>, BenchError> {
    let [mut middle, mut tail, mut redis, mut of_held] = std::array::from_fn(|_| Samples::default());
    let mut knows_held_bytes = false;
    for round in bench.measured_rounds() {
        let Measured { late_ms, redis_percent, held_bytes, checked } = Box::pin(once(bench, shape, round)).await?;
        middle.product(percentile(&late_ms, 50.0), shape.jobs, checked);
        tail.product(percentile(&late_ms, 99.0), shape.jobs, checked.counted_before());
        redis.product(redis_percent, shape.jobs, checked.counted_before());
        if let Some(bytes) = held_bytes {
            of_held.product(bytes, shape.keyed, checked.counted_before());
            knows_held_bytes = true;
        }
    }
    let line = |samples: Samples, which: &str, unit: &'static str, aim: Option<Target>| {
        samples.line(scenario, format!("{}, {which}", shape.name), unit, aim.as_slice())
    };
    let [of_middle, of_tail] = shape.aims;
    let mut lines = vec![line(middle, "p50", "ms", of_middle), line(tail, "p99", "ms", of_tail)];
    if shape.redis.is_some() {
        lines.push(line(redis, "Redis, time of one core", "%", shape.redis));
    }
    if knows_held_bytes {
        let aim = Target::at_most(held::MAX_BYTES);
        lines.push(line(of_held, "Redis for each of these", "bytes", Some(aim)));
    }
    Ok(lines)
}

/// Measure one run.
async fn once(bench: &Bench<'_>, shape: &Shape, round: Repetition) -> Result<Measured, BenchError> {
    let payload = payload(bench.settings.payload_bytes)?;
    let mut stage = RunEnvironment::open(bench).await?;
    bench.progress.step(&format!("{}: filling", shape.name), round);
    let now = stage.store.clock().now();
    let waiting = jobs(shape.waiting, &payload, |number| Due::At(now + far(number)))?;
    insert_bare(stage.lanes(LANES).await?, waiting).await?;
    let apps = stage.apps(shape.runners, shape.workers).await?;
    for app in &apps {
        until_whole(app).await?;
    }
    // The others take the jobs that this one accepts.
    let app = &apps[0];
    let held::Held { ran, redis_bytes: held_bytes } = Box::pin(held::fill(bench, &mut stage, app, shape.keyed)).await?;
    let warm_up = bench.pick(WARM_UP, 20);
    call(app.broker(), 2, warm_up, &payload).await?;
    stage.until_ended(ran + warm_up).await?;

    bench.progress.step(&shape.name, round);
    let measured = JobId::new();
    // Enqueueing takes time, which grows with the number of jobs and is long when other tests run.
    let begin = stage.store.clock().now() + bench.pick(LEAD, LEAD * 2) + Duration::from_micros(200 * shape.jobs);
    let due = jobs(shape.jobs, &payload, |number| Due::At(due_at(begin, number, shape.per_second)))?;
    call_in_batches(app.broker(), due).await?;
    if stage.store.clock().now() > begin {
        return Err(BenchError::Failed("the jobs were not enqueued before they were due".to_owned()));
    }
    let mut redis = stage.index()?.bare().await?;
    // No job ends before the first one is due. With very many of them that is longer than a run may make no progress.
    let ahead = begin - stage.store.clock().now();
    tokio::time::sleep(ahead.to_std().unwrap_or_default()).await;
    let (watched, used) = (Instant::now(), redis.processor_time().await?);
    let done = ran + warm_up + shape.jobs;
    stage.until_ended(done).await?;
    let used = redis.processor_time().await?.saturating_sub(used);
    let redis_percent = 100.0 * used.as_secs_f64() / watched.elapsed().as_secs_f64();
    stop_all(apps).await;
    let late_us = stage.counter_connection.lateness_us(measured).await?;
    let mut late_ms: Vec<f64> = late_us.into_iter().map(|us| us as f64 / 1e3).collect();
    late_ms.sort_by(f64::total_cmp);
    let mut checked = stage.check(done, shape.waiting + shape.keyed).await?;
    // No job may be early (G7), and none of the measured jobs may be missing.
    checked.exactly_once &= late_ms.len() as u64 == shape.jobs && late_ms.first().is_none_or(|first| *first >= 0.0);
    stage.close().await?;
    Ok(Measured { late_ms, redis_percent, held_bytes, checked })
}

/// Due times at an even rate, in whole milliseconds.
fn due_at(begin: Timestamp, number: u64, per_second: u64) -> Timestamp {
    ceil_ms(begin + Duration::from_micros(number * 1_000_000 / per_second.max(1)))
}

/// Due time of a job that waits: one half in 10 to 14 minutes, the other half in 1 to 30 days.
fn far(number: u64) -> TimeDelta {
    let place = i64::try_from(number / 2).unwrap_or(0);
    if number.is_multiple_of(2) {
        TimeDelta::minutes(10) + TimeDelta::milliseconds(place % 240_000)
    } else {
        TimeDelta::days(1) + TimeDelta::milliseconds(place * 7_919 % 2_500_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_times_are_spread_evenly_and_others_stay_away() {
        let begin = chrono::DateTime::from_timestamp_millis(1_000).unwrap();
        let at = |number| due_at(begin, number, 2_000).timestamp_millis();
        assert_eq!([at(0), at(1), at(2), at(2_000)], [1_000, 1_001, 1_001, 2_000]);
        for number in (0..1_000_000).step_by(997) {
            assert!(far(number) >= TimeDelta::minutes(10) && far(number) <= TimeDelta::days(31), "{number}");
        }
    }
}
