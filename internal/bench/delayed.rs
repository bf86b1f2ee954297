//! Scenario `delayed`: 600,000 messages that are due within one minute, 10,000 in each second. The rows show how late
//! their jobs start, and the processor time that Redis takes for it. Redis counts the time for all its users.

use super::figure::Target;
use super::lateness::{Shape, measure};
use super::result_row::ResultRow;
use super::{Bench, BenchError, Scenario};

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let shape = Shape {
        name: "messages due, 10,000/s".to_owned(),
        runners: 1,
        workers: bench.settings.workers,
        jobs: bench.jobs(600_000, 2_000),
        per_second: 10_000,
        waiting: 0,
        keyed: 0,
        aims: [None, Some(Target::at_most(250.0))],
        redis: Some(Target::at_most(10.0)),
    };
    measure(bench, Scenario::Delayed, &shape).await
}
