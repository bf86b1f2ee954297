//! Rows of the scenario `limits` about a tenant that floods the queue, and the jobs of another one that come meanwhile:
//! how long these wait under a fair limit, compared with their wait without the flood, and how long they wait without a
//! rule and after an operator has set one.

use std::iter;
use std::time::{Duration, Instant};

use super::environment::{RunChecks, RunEnvironment, STALLED, stop, until_whole};
use super::figure::{Target, percentile};
use super::limits::limit;
use super::load::call_in_batches;
use super::result_row::{ResultRow, Samples};
use super::tenants::{self, WORKERS};
use super::{Bench, BenchError, Repetition, Scenario};
use crate::app::App;
use crate::job::{Bounds, JobId, Limit};

/// Time between two jobs beside the flood under a fair limit, and the most of them.
const BESIDE: (Duration, u64) = (Duration::from_secs(1), 60);
/// The same for the flood in which an operator sets a rule.
const BESIDE_RULED: (Duration, u64) = (Duration::from_millis(100), 100);
/// Most jobs of that flood. Without a rule, all of it goes before the other jobs.
const MAX_RULED: u64 = 20_000;
/// Fewest jobs beside a flood.
const FEWEST: u64 = 5;

/// A flood in which an operator may have set a rule.
struct Ruled {
    /// p50 and p99 of the wait of the other jobs, in milliseconds.
    waits_ms: [f64; 2],
    /// Time from the rule to the start of the first of the other jobs, in milliseconds.
    helped_after_ms: Option<f64>,
    checked: RunChecks,
}

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let flood = bench.jobs(100_000, 3_000);
    let ruled = bench.jobs(MAX_RULED, 500).min(MAX_RULED);
    let half = WORKERS as u32 / 2;
    let rules = [
        ("no rule".to_owned(), None),
        ("fair set meanwhile".to_owned(), Some(limit(Bounds::default(), true)?)),
        (
            format!("concurrency {half} set meanwhile"),
            Some(limit(Bounds { concurrency: Some(half), ..Bounds::default() }, false)?),
        ),
    ];
    let mut of_fair: [Samples; 2] = Default::default();
    let mut of_rules: [[Samples; 3]; 3] = Default::default();
    for round in bench.rounds() {
        let (alone, beside, checked) = Box::pin(beside_a_flood(bench, round.share_of(flood), round)).await?;
        if round.counts() {
            for (((samples, alone), beside), checked) in
                of_fair.iter_mut().zip(alone).zip(beside).zip(for_rows(checked))
            {
                samples.bare(alone, RunChecks::default());
                samples.product(beside, flood, checked);
            }
        }
        for ((name, rule), samples) in rules.iter().zip(&mut of_rules) {
            bench.progress.step(&format!("a flood of one key, {name}"), round);
            let measured = Box::pin(in_a_flood(bench, round.share_of(ruled), rule.as_ref())).await?;
            if round.counts() {
                let times = measured.waits_ms.into_iter().chain(measured.helped_after_ms);
                for ((samples, time), checked) in samples.iter_mut().zip(times).zip(for_rows(measured.checked)) {
                    samples.product(time, ruled, checked);
                }
            }
        }
    }
    let mut rows = Vec::new();
    let aims = [Vec::new(), vec![Target::at_most_of_bare(2.0)]];
    for ((samples, which), aims) in of_fair.into_iter().zip(["p50", "p99"]).zip(aims) {
        let name = format!("wait of a key, {which}, fair, in a flood of {flood}, beside none");
        rows.push(samples.line(Scenario::Limits, name, "ms", &aims));
    }
    for ((rule, set), [p50, p99, helped]) in rules.iter().zip(of_rules) {
        for (samples, which) in [(p50, "p50"), (p99, "p99")] {
            let name = format!("wait of a key, {which}, in a flood of {ruled}, {rule}");
            rows.push(samples.line(Scenario::Limits, name, "ms", &[]));
        }
        if set.is_some() {
            rows.push(helped.line(Scenario::Limits, format!("{rule}, to the next start of the key"), "ms", &[]));
        }
    }
    Ok(rows)
}

/// The checks of a run for its rows. Its deadlocks count in the first one.
fn for_rows(checked: RunChecks) -> impl Iterator<Item = RunChecks> {
    iter::once(checked).chain(iter::repeat(checked.counted_before()))
}

/// Enqueue jobs of a key alone, and again in the flood of another key. Return p50 and p99 of their waits, alone and in
/// the flood, in milliseconds.
async fn beside_a_flood(
    bench: &Bench<'_>,
    flood: u64,
    round: Repetition,
) -> Result<([f64; 2], [f64; 2], RunChecks), BenchError> {
    let (every, most) = BESIDE;
    let every = bench.pick(every, every / 20);
    let count = number_beside(flood, every, most);
    bench.progress.step("one key alone, fair", round);
    let mut stage = RunEnvironment::open(bench).await?;
    stage.set_limit(limit(Bounds::default(), true)?).await?;
    let app = tenants::runner(&stage).await?;
    until_whole(&app).await?;
    stage.until_limits_count().await?;
    // The runner may learn a moment later that the limit is in force.
    trickle(bench, &app, 1, every).await?;
    stage.until_ended(1).await?;
    let first = trickle(bench, &app, count, every).await?;
    stage.until_ended(1 + count).await?;
    let alone = p50_and_p99(&waits_ms(&mut stage, first).await?);
    bench.progress.step("a flood of one key, fair, and another key", round);
    flood_with(bench, &app, flood).await?;
    let first = trickle(bench, &app, count, every).await?;
    let all = 1 + 2 * count + flood;
    stage.until_ended(all).await?;
    stop(app).await;
    let beside = p50_and_p99(&waits_ms(&mut stage, first).await?);
    let checked = stage.check(all, 0).await?;
    stage.close().await?;
    Ok((alone, beside, checked))
}

/// Let one key flood the queue, set the rule, if there is one, and enqueue jobs of another key.
async fn in_a_flood(bench: &Bench<'_>, flood: u64, rule: Option<&Limit>) -> Result<Ruled, BenchError> {
    let (every, most) = BESIDE_RULED;
    let every = bench.pick(every, every / 5);
    let count = number_beside(flood, every, most);
    let mut stage = RunEnvironment::open(bench).await?;
    let app = tenants::runner(&stage).await?;
    until_whole(&app).await?;
    flood_with(bench, &app, flood).await?;
    let mut helped_after_ms = None;
    if let Some(rule) = rule {
        stage.set_limit(rule.clone()).await?;
        let first = trickle(bench, &app, 1, every).await?;
        helped_after_ms = Some(until_started(&mut stage, first).await?);
    }
    let first = trickle(bench, &app, count, every).await?;
    let all = flood + u64::from(rule.is_some()) + count;
    stage.until_ended(all).await?;
    stop(app).await;
    let waits_ms = p50_and_p99(&waits_ms(&mut stage, first).await?);
    let checked = stage.check(all, 0).await?;
    stage.close().await?;
    Ok(Ruled { waits_ms, helped_after_ms, checked })
}

/// The number of jobs that come, one in each `every`, in two thirds of the time of a flood.
fn number_beside(flood: u64, every: Duration, most: u64) -> u64 {
    let number = tenants::shortest_time(flood).as_micros() * 2 / 3 / every.as_micros().max(1);
    u64::try_from(number).unwrap_or(most).clamp(FEWEST, most)
}

async fn flood_with(bench: &Bench<'_>, app: &App, count: u64) -> Result<(), BenchError> {
    call_in_batches(app.broker(), tenants::jobs(bench, count, |_| "flood".to_owned())?).await
}

/// Enqueue jobs of the other key, one in each `every`. Return an id that is smaller than theirs.
async fn trickle(bench: &Bench<'_>, app: &App, count: u64, every: Duration) -> Result<JobId, BenchError> {
    let first = JobId::new();
    for mut job in tenants::jobs(bench, count, |_| "other".to_owned())? {
        job.id = JobId::new();
        app.broker().enqueue_all(vec![job]).await?;
        tokio::time::sleep(every).await;
    }
    Ok(first)
}

/// Wait until the job behind `first` has run. Return how long it waited, in milliseconds.
async fn until_started(stage: &mut RunEnvironment<'_>, first: JobId) -> Result<f64, BenchError> {
    let asked = Instant::now();
    loop {
        if let Some(waited) = waits_ms(stage, first).await?.first() {
            return Ok(*waited);
        }
        if asked.elapsed() > STALLED {
            return Err(BenchError::Failed("a job does not start within a minute after a rule was set".to_owned()));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Read how long each job behind `first` waited from its acceptance to its start, in milliseconds, sorted.
async fn waits_ms(stage: &mut RunEnvironment<'_>, first: JobId) -> Result<Vec<f64>, BenchError> {
    let started = stage.counter_connection.started_jobs(first).await?;
    let wait_us = started.iter().map(|job| (job.started - job.accepted).num_microseconds().unwrap_or(i64::MAX));
    let mut waits_ms: Vec<f64> = wait_us.map(|us| us as f64 / 1e3).collect();
    waits_ms.sort_by(f64::total_cmp);
    Ok(waits_ms)
}

fn p50_and_p99(sorted: &[f64]) -> [f64; 2] {
    [percentile(sorted, 50.0), percentile(sorted, 99.0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_beside_a_flood_come_while_it_lasts() {
        // 64 workers need 78 s for a flood of 100,000 jobs.
        assert_eq!(number_beside(100_000, BESIDE.0, BESIDE.1), 52);
        assert_eq!(number_beside(MAX_RULED, BESIDE_RULED.0, BESIDE_RULED.1), 100);
        assert_eq!(number_beside(1, BESIDE.0, BESIDE.1), FEWEST);
        assert_eq!(number_beside(100_000_000, BESIDE.0, BESIDE.1), BESIDE.1);
    }
}
