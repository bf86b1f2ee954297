//! `/v1/stats`: how tickr is doing.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::problem::Problem;
use super::searches::seated;
use super::view::Moment;
use super::{Api, json};
use crate::job::State as JobState;

/// Counts and figures.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StatsAnswer {
    /// The database's clock at the reading.
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    /// Jobs by state. Ended states count everything that ever ended so, also what retention has deleted since.
    states: BTreeMap<String, i64>,
    /// Failed jobs that were neither retried, replayed nor discarded. `states.failed` counts all that ever failed.
    open_failures: u64,
    /// False when there are so many that their count is a floor.
    open_failures_exact: bool,
    /// Jobs by queue, then state. Queues that no job has changed for longer than jobs are kept are left out.
    queues: BTreeMap<String, BTreeMap<String, i64>>,
    /// False when there are so many unfinished jobs that only a part of them was counted: about a hundred thousand, fewer of each
    /// line the more lines there are. Their counts here are then floors.
    exact: bool,
    /// The queues whose counts of unfinished jobs are floors; those of the others are exact.
    floors: BTreeSet<String>,
    lateness: LatenessView,
    rates: RatesView,
    index: IndexView,
}

/// Lateness: start − execute_at.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LatenessView {
    /// Median over the last minute on this runner, in milliseconds.
    p50_ms: Option<f64>,
    /// 99th percentile over the last minute on this runner, in milliseconds.
    p99_ms: Option<f64>,
    /// How long the oldest overdue job has been due, in milliseconds; 0 when none is.
    oldest_due_ms: i64,
    /// When the next job that is not due yet is due.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_due_at: Option<Moment>,
}

/// Rates over the last minute on this runner.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RatesView {
    /// Jobs accepted per second.
    accepted_per_second: f64,
    /// Attempts ended per second.
    ended_per_second: f64,
}

/// The index, as this runner sees it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct IndexView {
    /// `fast`, `rebuilding` or `degraded`.
    health: &'static str,
}

/// Show counts by state and queue, lateness and rates
#[utoipa::path(
    get, path = "/v1/stats", tag = "operations", operation_id = "show_stats",
    responses(
        (status = 200, description = "A reading", body = StatsAnswer),
        (status = 401, description = "unauthorized", body = Problem),
        (status = 503, description = "store_unavailable", body = Problem),
    )
)]
pub(super) async fn show(State(api): State<Api>) -> Result<Response, Problem> {
    let store = api.broker.store().clone();
    let stats = seated(&api, async move { store.stats().await }).await?;
    let mut states: BTreeMap<String, i64> = JobState::ALL.iter().map(|state| (state.to_string(), 0)).collect();
    let mut queues: BTreeMap<String, BTreeMap<String, i64>> = BTreeMap::new();
    for count in stats.owed.iter().chain(&stats.ended) {
        *states.entry(count.state.to_string()).or_default() += count.jobs;
        *queues.entry(count.queue.to_string()).or_default().entry(count.state.to_string()).or_default() += count.jobs;
    }
    for (state, jobs) in &stats.ended_elsewhere {
        *states.entry(state.to_string()).or_default() += jobs;
    }
    let floors: BTreeSet<String> = stats
        .owed
        .iter()
        .map(|count| &count.queue)
        .filter(|queue| !stats.is_exact_about(queue))
        .map(ToString::to_string)
        .collect();
    let figures = api.broker.meters().read();
    let answer = StatsAnswer {
        at: Moment(stats.at),
        states,
        open_failures: stats.open_failures.values().sum(),
        open_failures_exact: stats.open_failures_exact,
        queues,
        exact: stats.exact,
        floors,
        lateness: LatenessView {
            p50_ms: figures.lateness_p50_ms,
            p99_ms: figures.lateness_p99_ms,
            oldest_due_ms: stats.oldest_due.map_or(0, |due| (stats.at - due).num_milliseconds().max(0)),
            next_due_at: stats.next_due.map(Moment),
        },
        rates: RatesView {
            accepted_per_second: figures.accepted_per_second,
            ended_per_second: figures.ended_per_second,
        },
        index: IndexView { health: api.index.health().now().as_str() },
    };
    Ok(json(StatusCode::OK, answer))
}
