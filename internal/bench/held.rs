//! Jobs that wait for their keys while others are measured: one half behind the first job of an order key, which is due
//! in a day, the other half parked at a rate of one start a day.

use std::ops::Range;
use std::time::Duration;

use super::environment::RunEnvironment;
use super::limits::limit;
use super::load::{call_in_batches, jobs, payload};
use super::{Bench, BenchError};
use crate::app::App;
use crate::job::{Bounds, Due, JobOptions, OnFailure, Order, Rate};

const DAY: Duration = Duration::from_secs(86_400);
/// Number of jobs that are in memory at the same time.
const PAGE: u64 = 20_000;

/// Enqueue this many jobs and wait until each of them is held. Return how many others have run for it: one of each
/// limit key, which uses up its rate.
pub(super) async fn fill(
    bench: &Bench<'_>,
    stage: &mut RunEnvironment<'_>,
    app: &App,
    count: u64,
) -> Result<u64, BenchError> {
    if count == 0 {
        return Ok(0);
    }
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
    Ok(keys)
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
