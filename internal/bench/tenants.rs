//! Jobs of tenants for the scenario `limits`. Each has the key of its tenant and keeps a worker for 50 ms on average. So
//! a backlog lasts by the workers of the runner, which the tenants share, and not by the speed of the machine.
//!
//! The length of a job follows from its number: 25 to 75 ms, each as often as the others among any [`LENGTHS`] jobs that
//! follow each other. If all took 50 ms, all workers of a backlog would begin and end in step, and a job of another key
//! would wait for up to 50 ms for the first of them to end. Work of real tenants ends at any time. As each key has jobs
//! of all lengths, keys with equal parts of the workers have equal numbers of starts.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::environment::RunEnvironment;
use super::load::{jobs as plain_jobs, payload};
use super::{Bench, BenchError};
use crate::app::App;
use crate::config::Config;
use crate::handlers::{Context, Kind, Outcome, Registry};
use crate::job::{Due, NewJob};

/// Number of workers of the runner: the default of tickr.
pub(super) const WORKERS: usize = 64;
/// Mean time for which a job keeps its worker, and the shortest one, in milliseconds.
const LENGTH_MS: u64 = 50;
const SHORTEST_MS: u64 = 25;
/// Number of different lengths, one millisecond apart: up to 75 ms.
const LENGTHS: u64 = 2 * (LENGTH_MS - SHORTEST_MS) + 1;
/// Step from the length of a job to that of the next one. It has no factor in common with their number, so all lengths
/// have their turns, and neighbours differ.
const STEP: u64 = 20;
/// Bytes of the smallest payload: `{"ms":50,"pad":""}`.
const LEAST_NAP: usize = 18;

/// A job that only keeps a worker. It accepts further fields, so that the settings choose the payload's size.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Nap {
    /// Time for which it keeps the worker, in milliseconds.
    ms: u64,
}

impl Kind for Nap {
    const NAME: &'static str = "nap";
}

async fn nap(nap: Nap, _ctx: Context) -> Outcome {
    tokio::time::sleep(Duration::from_millis(nap.ms)).await;
    Ok(().into())
}

/// Return the length of the job with this number, in milliseconds.
fn length_ms(number: u64) -> u64 {
    SHORTEST_MS + number * STEP % LENGTHS
}

/// Start a runner for such jobs.
pub(super) async fn runner(stage: &RunEnvironment<'_>) -> Result<App, BenchError> {
    let mut kinds = Registry::new();
    kinds.register(nap);
    Ok(App::start(&Config { workers: WORKERS, ..stage.config().clone() }, kinds).await?)
}

/// Make jobs, each with the key that belongs to its number.
pub(super) fn jobs(bench: &Bench<'_>, count: u64, key: impl Fn(u64) -> String) -> Result<Vec<NewJob>, BenchError> {
    let bytes = bench.settings.payload_bytes;
    let mut made = plain_jobs(count, &payload(bytes)?, |_| Due::Now)?;
    let mut payloads = Vec::new();
    for number in 0..LENGTHS {
        let pad = "x".repeat(bytes.saturating_sub(LEAST_NAP));
        let text = format!("{{\"ms\":{},\"pad\":\"{pad}\"}}", length_ms(number));
        payloads.push(RawValue::from_string(text).map_err(|e| BenchError::Failed(e.to_string()))?);
    }
    for ((number, payload), job) in (0..).zip(payloads.iter().cycle()).zip(&mut made) {
        job.payload.clone_from(payload);
        job.kind = Nap::NAME.parse().map_err(|_| BenchError::Failed("the name of a kind".to_owned()))?;
        job.options.limit_key = Some(key(number));
    }
    Ok(made)
}

/// The time in which the runner works off this many jobs, if its workers are never idle. It counts each job with the
/// mean length.
pub(super) fn shortest_time(jobs: u64) -> Duration {
    Duration::from_micros(jobs * LENGTH_MS * 1_000 / WORKERS as u64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn lengths_vary_evenly_about_their_mean() {
        for first in [0, 7, 100_000] {
            let lengths: Vec<u64> = (first..first + LENGTHS).map(length_ms).collect();
            assert_eq!(lengths.iter().copied().collect::<BTreeSet<_>>(), (25..=75).collect::<BTreeSet<_>>());
            assert_eq!(lengths.iter().sum::<u64>(), LENGTHS * LENGTH_MS);
        }
    }
}
