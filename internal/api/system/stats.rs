//! `/v1/stats`: counts by state and queue, lateness and rates.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::problem::Problem;
use crate::http::searches::run_with_seat;
use crate::view::Moment;
use crate::{Api, json};
use tickr_job::{State as JobState, Timestamp};
use tickr_store::{OpenBreaker, StoreError};

/// Counts and rates.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StatsAnswer {
    /// Time of this reading, by the clock of the database.
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    /// Number of jobs by state. Ended states count every job that ever ended so, including jobs that were deleted
    /// since.
    states: BTreeMap<String, i64>,
    /// Number of failed jobs that were not retried, replayed or discarded. `states.failed` counts all jobs that ever
    /// failed.
    open_dead_letters: u64,
    /// False when there are too many to count all; `open_dead_letters` is then a lower bound.
    open_dead_letters_exact: bool,
    /// Number of jobs by queue, then by state. A queue is left out when none of its jobs changed for longer than jobs
    /// are kept. Beside the queues with settings or a living runner there are at least the first 200 by name
    /// with unfinished jobs, and the first 200 by name with ended ones. `states` has the ended jobs of all queues.
    queues: BTreeMap<String, BTreeMap<String, i64>>,
    /// False when there are too many unfinished jobs to count all. Then about a hundred thousand are counted, and the
    /// more lanes (queue and priority) there are, the fewer of each. The counts of unfinished jobs are then lower
    /// bounds.
    exact: bool,
    /// Queues whose counts of unfinished jobs are lower bounds. The counts of all other queues are exact.
    floors: BTreeSet<String>,
    lateness: LatenessView,
    rates: RatesView,
    index: IndexView,
    /// Open breakers, at most 100: those whose next calls may start first.
    open_breakers: Vec<OpenBreakerView>,
}

/// A host to which no calls start, because its breaker is open.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OpenBreakerView {
    /// Limit that has the breaker.
    limit: String,
    host: String,
    /// Since when it is open.
    #[schema(value_type = String, format = DateTime)]
    since: Moment,
}

impl From<OpenBreaker> for OpenBreakerView {
    fn from(OpenBreaker { key, opened_at }: OpenBreaker) -> Self {
        Self { limit: key.limit.to_string(), host: key.key, since: Moment(opened_at) }
    }
}

/// Lateness: start − execute_at.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LatenessView {
    /// Median over the last minute on this runner, in milliseconds.
    p50_ms: Option<f64>,
    /// 99th percentile over the last minute on this runner, in milliseconds.
    p99_ms: Option<f64>,
    /// Time since the oldest overdue job became due, in milliseconds; 0 when no job is overdue.
    oldest_due_ms: i64,
    /// The same for each queue with overdue jobs.
    oldest_due_ms_by_queue: BTreeMap<String, i64>,
    /// Due time of the next job that is not due yet.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_due_at: Option<Moment>,
}

/// Rates over the last minute on this runner.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RatesView {
    /// Number of jobs accepted per second.
    accepted_per_second: f64,
    /// Number of attempts ended per second.
    ended_per_second: f64,
}

/// The index, as this runner sees it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct IndexView {
    /// Condition of the index: `fast`, `rebuilding` or `degraded`.
    health: &'static str,
}

/// Show counts by state and queue, lateness and rates
#[utoipa::path(
    get, path = "/v1/stats", tag = "system", operation_id = "show_stats",
    responses(
        (status = 200, description = "The counts and rates", body = StatsAnswer),
    )
)]
pub(crate) async fn show(State(api): State<Api>) -> Result<Response, Problem> {
    let store = api.broker.store().clone();
    let read = async move { Ok::<_, StoreError>((store.stats().await?, store.first_open_breakers().await?)) };
    let (stats, breakers) = run_with_seat(&api, read).await?;
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
    let since = |due: Timestamp| (stats.at - due).num_milliseconds().max(0);
    let answer = StatsAnswer {
        at: Moment(stats.at),
        states,
        open_dead_letters: stats.open_dead_letters.values().sum(),
        open_dead_letters_exact: stats.open_dead_letters_exact,
        queues,
        exact: stats.exact,
        floors,
        lateness: LatenessView {
            p50_ms: figures.lateness_p50_ms,
            p99_ms: figures.lateness_p99_ms,
            oldest_due_ms: stats.oldest_due.map_or(0, since),
            oldest_due_ms_by_queue: stats
                .oldest_due_by_queue
                .iter()
                .map(|(queue, due)| (queue.to_string(), since(*due)))
                .collect(),
            next_due_at: stats.next_due.map(Moment),
        },
        rates: RatesView {
            accepted_per_second: figures.accepted_per_second,
            ended_per_second: figures.ended_per_second,
        },
        index: IndexView { health: api.index.health().now().as_str() },
        open_breakers: breakers.into_iter().map(Into::into).collect(),
    };
    Ok(json(StatusCode::OK, answer))
}
