//! Jobs that wait for their keys while others are measured: one half behind the first job of an order key, which is due
//! in a day, the other half parked at a rate of one start a day. They cost Redis nothing: its contents are measured
//! before and after.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::environment::RunEnvironment;
use super::limits::limit;
use super::load::{call_in_batches, jobs, payload};
use super::{Bench, BenchError};
use crate::app::App;
use crate::index::BareIndex;
use crate::job::{Bounds, Due, JobOptions, OnFailure, Order, Rate};

const DAY: Duration = Duration::from_secs(86_400);
/// Number of jobs that are in memory at the same time.
const PAGE: u64 = 20_000;

/// Most bytes of Redis for each held job. What a runner keeps in Redis for itself may grow a little meanwhile.
pub(super) const MAX_BYTES: f64 = 1.0;
/// Longest time for which Redis may still have what the jobs left behind when they were parked.
const SETTLING: Duration = Duration::from_secs(5);

/// What the held jobs took.
#[derive(Default)]
pub(super) struct Held {
    /// Number of other jobs that have run for it: one of each limit key, which uses up its rate.
    pub(super) ran: u64,
    /// Bytes by which the contents of Redis have grown for each job. Absent on servers that others use.
    pub(super) redis_bytes: Option<f64>,
}

/// Enqueue this many jobs and wait until each of them is held.
pub(super) async fn fill(
    bench: &Bench<'_>,
    stage: &mut RunEnvironment<'_>,
    app: &App,
    count: u64,
) -> Result<Held, BenchError> {
    if count == 0 {
        return Ok(Held::default());
    }
    let mut redis = stage.index()?.bare().await?;
    let before = redis.dataset_bytes().await?;
    let keys = bench.pick(1_000_u64, 10).min(count);
    let (ordered, parked) = (count / 2, count - count / 2);
    let first = keys.min(ordered);
    let in_order = |options: &mut JobOptions, number: u64| {
        options.order = Some(Order { key: format!("key-{}", number % keys), on_failure: OnFailure::default() });
    };
    enqueue(bench, app, 0..first, Due::After(DAY), in_order).await?;
    enqueue(bench, app, first..ordered, Due::Now, in_order).await?;

    let rate = Rate { starts: 1, period_ms: 86_400_000, burst: 0 };
    stage.set_limit(limit(Bounds { rate: Some(rate), ..Bounds::default() }, false)?).await?;
    stage.until_limits_count().await?;
    let limited = |options: &mut JobOptions, number: u64| {
        options.limit_key = Some(format!("key-{}", number % keys));
    };
    enqueue(bench, app, 0..keys, Due::Now, limited).await?;
    stage.until_ended(keys).await?;
    enqueue(bench, app, 0..parked, Due::Now, limited).await?;
    stage.until_parked(|_, held| held.jobs >= parked).await?;
    let redis_bytes = if bench.ground.is_private() { Some(growth(&mut redis, before, count).await?) } else { None };
    Ok(Held { ran: keys, redis_bytes })
}

/// Return by how many bytes for each of these jobs the contents of Redis have grown, once it has forgotten those that
/// waited in it until they were parked.
async fn growth(redis: &mut BareIndex, before: u64, count: u64) -> Result<f64, BenchError> {
    let asked = Instant::now();
    loop {
        let grown = redis.dataset_bytes().await?.saturating_sub(before) as f64 / count as f64;
        if grown <= MAX_BYTES || asked.elapsed() > SETTLING {
            return Ok(grown);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Enqueue a job for each of these numbers.
async fn enqueue(
    bench: &Bench<'_>,
    app: &App,
    numbers: Range<u64>,
    due: Due,
    set_key: impl Fn(&mut JobOptions, u64),
) -> Result<(), BenchError> {
    let payload = payload(bench.settings.payload_bytes)?;
    let mut next = numbers.start;
    while next < numbers.end {
        let count = PAGE.min(numbers.end - next);
        let mut page = jobs(count, &payload, |_| due)?;
        for (number, job) in (next..).zip(&mut page) {
            set_key(&mut job.options, number);
        }
        call_in_batches(app.broker(), page).await?;
        next += count;
        bench.progress.update(next, numbers.end);
    }
    Ok(())
}
