//! Scenario `flow`: callers (by default 32) enqueue jobs one by one through the library while a runner completes them.
//! The time is taken from the first acceptance to the last commit, by the server's clock. For comparison, the bare
//! store inserts, claims and settles the same rows at the same time.

use super::environment::{RunChecks, RunEnvironment, rate, rate_of, stop, until_whole};
use super::figure::Target;
use super::load::{LANES, call, flow_bare, jobs, payload};
use super::result_row::{ResultRow, Samples};
use super::{Bench, BenchError, Scenario};
use crate::job::Due;

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let all = bench.jobs(150_000, 1_000);
    let mut samples = Samples::default();
    for round in bench.rounds() {
        let jobs = round.share_of(all);
        bench.progress.step("bare inserts, claims and settles", round);
        let (bare, bare_checked) = bare(bench, jobs).await?;
        bench.progress.step("callers and a runner", round);
        let (sample, checked) = product(bench, jobs).await?;
        if round.counts() {
            samples.bare(bare, bare_checked);
            samples.product(sample, jobs, checked);
        }
    }
    let name = format!("flow, {} callers and a runner", bench.settings.callers);
    Ok(vec![samples.line(Scenario::Flow, name, "jobs/s", &[Target::at_least(15_000.0)])])
}

async fn bare(bench: &Bench<'_>, count: u64) -> Result<(f64, RunChecks), BenchError> {
    let mut stage = RunEnvironment::open(bench).await?;
    let jobs = jobs(count, &payload(bench.settings.payload_bytes)?, |_| Due::Now)?;
    let elapsed = flow_bare(stage.lanes(LANES).await?, jobs).await?;
    let checked = stage.check(count, 0).await?;
    stage.close().await?;
    Ok((rate_of(count, elapsed), checked))
}

async fn product(bench: &Bench<'_>, count: u64) -> Result<(f64, RunChecks), BenchError> {
    let payload = payload(bench.settings.payload_bytes)?;
    let mut stage = RunEnvironment::open(bench).await?;
    let app = stage.app().await?;
    until_whole(&app).await?;
    call(app.broker(), bench.settings.callers, count, &payload).await?;
    let ended = stage.until_ended(count).await?;
    stop(app).await;
    let (accepted, _) = stage.counter_connection.beginnings(stage.first).await?;
    let checked = stage.check(count, 0).await?;
    stage.close().await?;
    Ok((rate(count, accepted, ended)?, checked))
}
