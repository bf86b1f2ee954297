//! Jobs of tenants for the scenario `limits`. Each has the key of its tenant and keeps a worker for 50 ms. So a backlog
//! lasts by the workers of the runner, which the tenants share, and not by the speed of the machine.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::environment::RunEnvironment;
use super::load::{jobs as plain_jobs, payload};
use super::{Bench, BenchError};
use crate::app::App;
use crate::config::Config;
use crate::handlers::{Context, Kind, Outcome, Registry};
use crate::job::{Due, NewJob};

/// Number of workers of the runner: the default of tickr.
pub(super) const WORKERS: usize = 64;
/// Time for which a job keeps its worker, in milliseconds.
const LENGTH_MS: u64 = 50;

/// A job that only keeps a worker. It accepts any fields, so that the settings choose the payload's size.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Nap {}

impl Kind for Nap {
    const NAME: &'static str = "nap";
}

async fn nap(_: Nap, _ctx: Context) -> Outcome {
    tokio::time::sleep(Duration::from_millis(LENGTH_MS)).await;
    Ok(().into())
}

/// Start a runner for such jobs.
pub(super) async fn runner(stage: &RunEnvironment<'_>) -> Result<App, BenchError> {
    let mut kinds = Registry::new();
    kinds.register(nap);
    Ok(App::start(&Config { workers: WORKERS, ..stage.config().clone() }, kinds).await?)
}

/// Make jobs, each with the key that belongs to its number.
pub(super) fn jobs(bench: &Bench<'_>, count: u64, key: impl Fn(u64) -> String) -> Result<Vec<NewJob>, BenchError> {
    let mut made = plain_jobs(count, &payload(bench.settings.payload_bytes)?, |_| Due::Now)?;
    for (number, job) in (0..).zip(&mut made) {
        job.kind = Nap::NAME.parse().map_err(|_| BenchError::Failed("the name of a kind".to_owned()))?;
        job.options.limit_key = Some(key(number));
    }
    Ok(made)
}

/// The time in which the runner works off this many jobs, if its workers are never idle.
pub(super) fn shortest_time(jobs: u64) -> Duration {
    Duration::from_micros(jobs * LENGTH_MS * 1_000 / WORKERS as u64)
}
