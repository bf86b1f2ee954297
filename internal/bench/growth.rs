//! Scenario `growth`: work off a backlog beside a long history and many waiting jobs. For comparison, the same on empty
//! tables.

use super::environment::RunEnvironment;
use super::figure::Target;
use super::result_row::{ResultRow, Samples};
use super::{Bench, BenchError, Repetition, Scenario, drain};
use crate::store::Growth;

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let growth = Growth {
        finished: bench.pick(5_000_000, 20_000),
        waiting: bench.pick(1_000_000, 5_000),
        payload_bytes: bench.settings.payload_bytes,
    };
    let (jobs, rows) = (bench.jobs(300_000, 2_000), growth.finished + growth.waiting);
    let (mut grown, mut share) = (Samples::default(), Samples::default());
    bench.progress.step("filling the tables", Repetition { number: 1 });
    let mut stage = RunEnvironment::open(bench).await?;
    let mut filled = 0;
    let told = |more| {
        filled += more;
        bench.progress.update(filled, rows);
    };
    stage.store.grow(growth, told).await?;
    for round in bench.measured_rounds() {
        bench.progress.step("bare, on grown tables", round);
        stage.again().await?;
        let (bare, bare_checked) = drain::bare(bench, &mut stage, jobs).await?;
        bench.progress.step("a runner, on grown tables", round);
        stage.again().await?;
        let (long, long_checked) = drain::product(bench, &mut stage, jobs).await?;
        bench.progress.step("a runner, on empty tables", round);
        let mut empty = RunEnvironment::open(bench).await?;
        let (short, short_checked) = drain::product(bench, &mut empty, jobs).await?;
        empty.close().await?;
        grown.bare(bare, bare_checked);
        grown.product(long, jobs, long_checked);
        share.product(long / short, jobs, long_checked.counted_before().and(short_checked));
    }
    stage.close().await?;
    let name = format!("drain, {} finished and {} waiting", growth.finished, growth.waiting);
    Ok(vec![
        grown.line(Scenario::Growth, name, "jobs/s", &[]),
        share.line(Scenario::Growth, "growth: share of the drain on empty tables", "", &[Target::at_least(0.8)]),
    ])
}
