//! Scenario `keys`: a complete runner works off a backlog whose jobs have order keys, and one whose jobs all have the
//! same one. The figure beside the first is that of the same backlog without keys. Then jobs without keys become due,
//! alone and beside very many that wait for their order keys or are parked at limits.

use super::drain::product;
use super::environment::{RunChecks, RunEnvironment, rate, stop};
use super::figure::Target;
use super::lateness::{Shape, measure};
use super::load::{jobs, parts, payload};
use super::result_row::{ResultRow, Samples, deadlocks};
use super::{Bench, BenchError, Scenario};
use crate::job::{Due, OnFailure, Order, limits};

/// Jobs without keys that become due in a second.
const PER_SECOND: u64 = 100;
/// Most such jobs. They come at their rate, so a larger number only takes longer.
const MAX_DUE: u64 = 2_000;

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let (many, keys) = (bench.jobs(100_000, 2_000), bench.pick(10_000, 200));
    let one = bench.jobs(10_000, 200);
    let (mut of_many, mut of_one) = (Samples::default(), Samples::default());
    for round in bench.rounds() {
        let count = round.share_of(many);
        bench.progress.step("a backlog without keys", round);
        let mut stage = RunEnvironment::open(bench).await?;
        let (plain, plain_checked) = product(bench, &mut stage, count).await?;
        stage.close().await?;
        bench.progress.step("a backlog with many order keys", round);
        let (keyed, checked) = keyed(bench, count, keys).await?;
        bench.progress.step("a backlog with one order key", round);
        let alone = round.share_of(one);
        let (line, line_checked) = self::keyed(bench, alone, 1).await?;
        if round.counts() {
            of_many.bare(plain, plain_checked);
            of_many.product(keyed, count, checked);
            of_one.product(line, alone, line_checked);
        }
    }
    let name = format!("drain, noop, {keys} order keys, beside none");
    let mut lines = vec![
        of_many.line(Scenario::Keys, name, "jobs/s", &[Target::relative_to_bare(0.6)]),
        of_one.line(Scenario::Keys, "drain, noop, one order key", "jobs/s", &[Target::at_least(1_000.0)]),
    ];
    let (due, waiting) = (bench.jobs(MAX_DUE, 50).min(bench.pick(MAX_DUE, 50)), bench.jobs(1_000_000, 2_000));
    for (keyed, aim) in [(0, None), (waiting, Some(Target::at_most(5.0)))] {
        let beside = if keyed > 0 { format!(", {keyed} wait for keys") } else { String::new() };
        let name = format!("lateness without keys, {PER_SECOND}/s{beside}");
        let shape = Shape {
            name,
            runners: 1,
            workers: bench.settings.workers,
            jobs: due,
            per_second: PER_SECOND,
            waiting: 0,
            keyed,
            aims: [None, aim],
            redis: None,
        };
        lines.extend(Box::pin(measure(bench, Scenario::Keys, &shape)).await?);
    }
    let counted = deadlocks(Scenario::Keys, &lines);
    lines.extend(counted);
    Ok(lines)
}

async fn keyed(bench: &Bench<'_>, count: u64, keys: u64) -> Result<(f64, RunChecks), BenchError> {
    let mut stage = RunEnvironment::open(bench).await?;
    let mut jobs = jobs(count, &payload(bench.settings.payload_bytes)?, |_| Due::Now)?;
    for (number, job) in (0..).zip(&mut jobs) {
        let key = format!("key-{}", number % keys);
        job.options.order = Some(Order { key, on_failure: OnFailure::default() });
    }
    for part in parts(jobs, limits::MAX_BATCH) {
        stage.store.insert(part).await?;
    }
    let app = stage.app().await?;
    let ended = stage.until_ended(count).await?;
    stop(app).await;
    let (_, started) = stage.counter_connection.beginnings(stage.first).await?;
    let measured = (rate(count, started, ended)?, stage.check(count, 0).await?);
    stage.close().await?;
    Ok(measured)
}
