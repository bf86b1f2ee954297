//! Scenario `drain`: a complete runner works off a backlog of due jobs and writes the full history. The time is taken
//! from the first claim to the last commit, by the server's clock, and includes the filling of the index. For
//! comparison, the bare store claims and settles the same rows.

use super::environment::{RunChecks, RunEnvironment, rate, rate_of, stop};
use super::figure::Target;
use super::load::{LANES, insert_bare, jobs, payload, work_off_bare};
use super::result_row::{ResultRow, Samples};
use super::{Bench, BenchError, Scenario};
use crate::job::{Due, JobId};

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let all = bench.jobs(300_000, 2_000);
    let mut samples = Samples::default();
    for round in bench.rounds() {
        let jobs = round.share_of(all);
        bench.progress.step("bare claims and settles", round);
        let mut stage = RunEnvironment::open(bench).await?;
        let (bare, bare_checked) = bare(bench, &mut stage, jobs).await?;
        stage.close().await?;
        bench.progress.step("a runner on a backlog", round);
        let mut stage = RunEnvironment::open(bench).await?;
        let (sample, checked) = product(bench, &mut stage, jobs).await?;
        stage.close().await?;
        if round.counts() {
            samples.bare(bare, bare_checked);
            samples.product(sample, jobs, checked);
        }
    }
    let aims = [Target::at_least(30_000.0), Target::relative_to_bare(0.6)];
    Ok(vec![samples.line(Scenario::Drain, "drain, noop, full history", "jobs/s", &aims)])
}

pub(super) async fn bare(
    bench: &Bench<'_>,
    stage: &mut RunEnvironment<'_>,
    count: u64,
) -> Result<(f64, RunChecks), BenchError> {
    let ids = fill(bench, stage, count).await?;
    let elapsed = work_off_bare(stage.lanes(LANES).await?, ids).await?;
    Ok((rate_of(count, elapsed), stage.check(count, 0).await?))
}

pub(super) async fn product(
    bench: &Bench<'_>,
    stage: &mut RunEnvironment<'_>,
    count: u64,
) -> Result<(f64, RunChecks), BenchError> {
    fill(bench, stage, count).await?;
    let app = stage.app().await?;
    let ended = stage.until_ended(count).await?;
    stop(app).await;
    let (_, started) = stage.counter_connection.beginnings(stage.first).await?;
    Ok((rate(count, started, ended)?, stage.check(count, 0).await?))
}

/// Insert a backlog of due jobs. Return their ids.
pub(super) async fn fill(bench: &Bench<'_>, stage: &RunEnvironment<'_>, count: u64) -> Result<Vec<JobId>, BenchError> {
    let jobs = jobs(count, &payload(bench.settings.payload_bytes)?, |_| Due::Now)?;
    let ids = jobs.iter().map(|job| job.id).collect();
    insert_bare(stage.lanes(LANES).await?, jobs).await?;
    Ok(ids)
}
