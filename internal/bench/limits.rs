//! Scenario `limits`: what a limit costs jobs with many limit keys, how much of a limit and of a rate is used while
//! work waits, and whether a rate holds. `flood.rs` and `shares.rs` have the rows about keys that share the workers.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::TimeDelta;

use super::drain::product;
use super::environment::{RunChecks, RunEnvironment, rate, stop};
use super::figure::Target;
use super::load::{jobs, parts, payload};
use super::result_row::{ResultRow, Samples, deadlocks};
use super::{Bench, BenchError, Scenario, flood, shares};
use crate::job::{Bounds, Due, Limit, NewJob, Rate, SharedBy, Timestamp, limits};

/// Length of a job of the limited key.
const JOB: Duration = Duration::from_millis(500);
/// Fewest and most jobs of that key. They last by the limit, so a larger number only takes longer.
const LIMITED: (u64, u64) = (20, 300);
/// Starts in a second of a key with a rate.
const STARTS: u32 = 200;
/// Fewest and most jobs of that key. The burst is spent with the fewest as well.
const RATED: (u64, u64) = (100, 2_000);

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let mut rows = Box::pin(of_backlogs(bench)).await?;
    rows.extend(Box::pin(flood::run(bench)).await?);
    rows.extend(Box::pin(shares::run(bench)).await?);
    let counted = deadlocks(Scenario::Limits, &rows);
    rows.extend(counted);
    Ok(rows)
}

async fn of_backlogs(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let (many, keys) = (bench.jobs(100_000, 2_000), bench.pick(10_000, 200));
    let few = bench.jobs(LIMITED.1, LIMITED.0).clamp(LIMITED.0, bench.pick(LIMITED.1, LIMITED.0));
    let rated = bench.jobs(RATED.1, RATED.0).clamp(RATED.0, bench.pick(RATED.1, RATED.0));
    let at_once = 10;
    let rate = Rate { starts: STARTS, period_ms: 1_000, burst: Rate::default_burst(STARTS, 1_000) };
    let most_starts = STARTS + rate.burst;
    let [mut of_many, mut of_limit, mut of_rate, mut of_window] = std::array::from_fn(|_| Samples::default());
    for round in bench.rounds() {
        let count = round.share_of(many);
        bench.progress.step("a backlog without limits", round);
        let mut stage = RunEnvironment::open(bench).await?;
        let (plain, plain_checked) = product(bench, &mut stage, count).await?;
        stage.close().await?;
        bench.progress.step("a backlog with many limit keys", round);
        let bounds = Bounds { concurrency: Some(100), ..Bounds::default() };
        let limited = work_off(bench, limit(bounds, false)?, count, keys, None).await?;
        bench.progress.step("a backlog of one key with a limit", round);
        let bounds = Bounds { concurrency: Some(at_once), ..Bounds::default() };
        let of_key = work_off(bench, limit(bounds, false)?, round.share_of(few), 1, Some(JOB)).await?;
        bench.progress.step("a backlog of one key with a rate", round);
        let bounds = Bounds { rate: Some(rate), ..Bounds::default() };
        let at_rate = work_off(bench, limit(bounds, false)?, round.share_of(rated), 1, None).await?;
        if round.counts() {
            of_many.bare(plain, plain_checked);
            of_many.product(limited.per_second, count, limited.checked);
            let most = f64::from(at_once) / JOB.as_secs_f64();
            of_limit.product(100.0 * of_key.per_second / most, few, of_key.checked);
            of_rate.product(100.0 * use_of(rate, &at_rate.starts), rated, at_rate.checked);
            let worst = most_within(TimeDelta::milliseconds(rate.period_ms.into()), &at_rate.starts);
            let mut checked = at_rate.checked.counted_before();
            checked.exactly_once &= worst <= u64::from(most_starts);
            of_window.product(worst as f64, rated, checked);
        }
    }
    let line = |samples: Samples, name: String, unit, aims: &[Target]| samples.line(Scenario::Limits, name, unit, aims);
    Ok(vec![
        line(
            of_many,
            format!("drain, noop, {keys} limit keys, beside none"),
            "jobs/s",
            &[Target::relative_to_bare(0.6)],
        ),
        line(of_limit, format!("use of a limit of {at_once} jobs of 500 ms"), "%", &[Target::at_least(95.0)]),
        line(of_rate, format!("use of a rate of {STARTS}/s after its burst"), "%", &[Target::at_least(98.0)]),
        line(
            of_window,
            format!("most starts in any second, {STARTS}/s and {} at once", rate.burst),
            "",
            &[Target::at_most(most_starts.into())],
        ),
    ])
}

/// Make a limit for all jobs with limit keys.
pub(super) fn limit(bounds: Bounds, fair: bool) -> Result<Limit, BenchError> {
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

/// A backlog that a runner has worked off.
struct WorkedOff {
    per_second: f64,
    /// Times at which the jobs started, in their order.
    starts: Vec<Timestamp>,
    checked: RunChecks,
}

/// Work off a backlog under a limit.
async fn work_off(
    bench: &Bench<'_>,
    limit: Limit,
    count: u64,
    keys: u64,
    length: Option<Duration>,
) -> Result<WorkedOff, BenchError> {
    let mut stage = RunEnvironment::open(bench).await?;
    stage.set_limit(limit).await?;
    // A new limit parks what comes in its first seconds, and those jobs are claimed twice.
    let app = stage.app_without_work().await?;
    stage.until_limits_count().await?;
    stop(app).await;
    let mut jobs = jobs(count, &payload(bench.settings.payload_bytes)?, |_| Due::Now)?;
    with_keys(&mut jobs, keys, length)?;
    for part in parts(jobs, limits::MAX_BATCH) {
        stage.store.insert(part).await?;
    }
    let app = stage.app().await?;
    let ended = stage.until_ended(count).await?;
    stop(app).await;
    let starts = stage.counter_connection.starts(stage.first).await?;
    let mut starts: Vec<Timestamp> = starts.into_iter().map(|(_, at)| at).collect();
    starts.sort_unstable();
    let per_second = rate(count, starts.first().copied(), ended)?;
    let checked = stage.check(count, 0).await?;
    stage.close().await?;
    Ok(WorkedOff { per_second, starts, checked })
}

/// Return which part of a rate these starts used from the moment at which the burst was spent. `starts` are in the
/// order of time.
fn use_of(rate: Rate, starts: &[Timestamp]) -> f64 {
    let spent = usize::try_from(rate.burst).unwrap_or(usize::MAX);
    // The first start is even with the rate. Behind it comes the burst.
    let Some([from, between @ .., to]) = starts.get(spent..) else { return 0.0 };
    let even_us = rate.interval_us() as f64 * (between.len() + 1) as f64;
    even_us / (*to - *from).num_microseconds().unwrap_or(i64::MAX).max(1) as f64
}

/// Return the most starts in any period of this length, wherever it begins. `starts` are in the order of time.
fn most_within(period: TimeDelta, starts: &[Timestamp]) -> u64 {
    let (mut end, mut most) = (0, 0);
    for (begin, from) in starts.iter().enumerate() {
        while starts.get(end).is_some_and(|at| *at - *from < period) {
            end += 1;
        }
        most = most.max(end - begin);
    }
    most as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(times_ms: &[i64]) -> Vec<Timestamp> {
        times_ms.iter().map(|ms| chrono::DateTime::from_timestamp_millis(*ms).unwrap()).collect()
    }

    #[test]
    fn the_use_of_a_rate_counts_from_the_last_start_of_the_burst() {
        // One every 100 ms, and two more at once.
        let rate = Rate { starts: 10, period_ms: 1_000, burst: 2 };
        assert_eq!(use_of(rate, &starts(&[0, 0, 0, 100, 200, 300])), 1.0);
        assert_eq!(use_of(rate, &starts(&[0, 0, 0, 200, 400, 600])), 0.5);
        assert_eq!(use_of(rate, &starts(&[0, 0, 0])), 0.0, "nothing started after the burst");
        assert_eq!(use_of(rate, &starts(&[])), 0.0);
    }

    #[test]
    fn the_worst_period_may_begin_at_any_start_and_ends_before_its_length() {
        let second = TimeDelta::seconds(1);
        assert_eq!(most_within(second, &starts(&[0, 500, 900, 1_000, 1_400, 1_899, 1_900, 4_000])), 4);
        assert_eq!(most_within(second, &starts(&[0, 1_000, 2_000])), 1);
        assert_eq!(most_within(second, &[]), 0);
    }
}
