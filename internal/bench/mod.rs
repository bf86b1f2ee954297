//! `tickr bench`: the speed of this build on these servers, and the speed of the bare store in the same run for
//! comparison.
//!
//! A [`Scenario`] is measured several times. Each run gets its own database and key prefix, so that no run is slowed
//! down by the rows of an earlier one. The measured product is complete: an [`App`](crate::app::App) with its loops and
//! its API in this process. In turn with it, the bare store does the same work in full batches and nothing else.
//! Enqueues are timed by their callers. Everything that runs is timed by what MySQL stored. After every run the tables
//! must show that each job completed exactly once, and the server must not have counted a deadlock. Only that fails a
//! bench, because speed depends on the machine.
//!
//! - `figure.rs`: samples, their statistics and targets
//! - `result_row.rs`: one row of the result
//! - `report.rs`: the complete result
//! - `table.rs`: the result as text
//! - `servers.rs`: the servers, and the removal of everything that the bench created on them
//! - `environment.rs`: the environment of one run, with its checks
//! - `load.rs`: jobs, and the ways to enqueue them
//! - `wire.rs`: a minimal HTTP connection
//! - `enqueue.rs`: scenario `enqueue`
//! - `batch.rs`: scenario `batch`
//! - `drain.rs`: scenario `drain`
//! - `flow.rs`: scenario `flow`
//! - `lateness.rs`: scenario `lateness`
//! - `delayed.rs`: scenario `delayed`
//! - `callback.rs`: scenario `callback`
//! - `rebuild.rs`: scenario `rebuild`
//! - `idle.rs`: scenario `idle`
//! - `growth.rs`: scenario `growth`
//! - `keys.rs`, `held.rs`: scenario `keys`
//! - `limits.rs`, `flood.rs`, `shares.rs`, `tenants.rs`: scenario `limits`
//! - `batches.rs`: scenario `batches`
//! - `graphs.rs`: scenario `graphs`
//! - `outbox.rs`: scenario `outbox`
//! - `workers.rs`: scenario `workers`
//! - `runners.rs`: scenario `runners`
//! - `runner.rs`: a runner in its own process
//! - `process.rs`: processor time and memory of a process
//! - `progress.rs`: the progress bar

mod batch;
mod batches;
mod callback;
mod delayed;
mod drain;
mod enqueue;
mod environment;
mod figure;
mod flood;
mod flow;
mod graphs;
mod growth;
mod held;
mod idle;
mod keys;
mod lateness;
mod limits;
mod load;
mod outbox;
mod process;
mod progress;
mod rebuild;
mod report;
mod result_row;
mod runner;
mod runners;
mod servers;
mod shares;
mod table;
mod tenants;
mod wire;
mod workers;

pub use figure::{Figure, Target, TargetOf, TargetSide, percentile};
pub use report::{Machine, Report};
pub use result_row::ResultRow;
pub use servers::{BenchServers, ServerFacts};
pub use table::table;

use std::path::PathBuf;

use serde::Serialize;

use crate::app::StartError;
use crate::broker::Invalid;
use crate::index::IndexError;
use crate::store::StoreError;
use progress::Progress;

/// A measured part of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scenario {
    /// Enqueue jobs one by one, through the library and by POST.
    Enqueue,
    /// Enqueue batches by POST.
    Batch,
    /// Work off a backlog.
    Drain,
    /// Enqueue while a runner works off the jobs.
    Flow,
    /// Lateness: the delay between due time and start.
    Lateness,
    /// Messages that are due within one minute, 10,000 in each second.
    Delayed,
    /// Work off a backlog of callbacks to one receiver.
    Callback,
    /// Fill an empty index.
    Rebuild,
    /// A runner without work.
    Idle,
    /// Work off a backlog of jobs with order keys, and lateness beside jobs that wait for their keys.
    Keys,
    /// Limits by key: their cost, their use, and how keys share the workers.
    Limits,
    /// Work off a backlog in one batch of jobs, and cancel one.
    Batches,
    /// Work off random graphs of jobs with parents, and jobs without parents beside one.
    Graphs,
    /// Rows of the outbox become jobs.
    Outbox,
    /// Remote workers: the way of a job to their hands, work off a backlog, and requests that wait.
    Workers,
    /// Several runners on one store: work off a backlog, lateness, and the requests of all without work.
    Runners,
    /// Work off a backlog beside a long history.
    Growth,
}

impl Scenario {
    /// All scenarios except [`NAMED`](Self::NAMED) and [`Growth`](Self::Growth), which take minutes, in the order in
    /// which they run.
    pub const USUAL: [Self; 12] = [
        Self::Enqueue,
        Self::Batch,
        Self::Drain,
        Self::Keys,
        Self::Batches,
        Self::Graphs,
        Self::Outbox,
        Self::Flow,
        Self::Lateness,
        Self::Callback,
        Self::Rebuild,
        Self::Idle,
    ];

    /// Scenarios that are measured only when they are named.
    pub const NAMED: [Self; 4] = [Self::Delayed, Self::Limits, Self::Workers, Self::Runners];

    /// Name on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enqueue => "enqueue",
            Self::Batch => "batch",
            Self::Drain => "drain",
            Self::Flow => "flow",
            Self::Lateness => "lateness",
            Self::Delayed => "delayed",
            Self::Callback => "callback",
            Self::Rebuild => "rebuild",
            Self::Idle => "idle",
            Self::Keys => "keys",
            Self::Limits => "limits",
            Self::Batches => "batches",
            Self::Graphs => "graphs",
            Self::Outbox => "outbox",
            Self::Workers => "workers",
            Self::Runners => "runners",
            Self::Growth => "growth",
        }
    }
}

/// Settings of a bench.
#[derive(Clone, Debug, Serialize)]
pub struct BenchSettings {
    /// Scenarios to measure, in this order.
    pub scenarios: Vec<Scenario>,
    /// Number of measured repetitions.
    pub repeat: usize,
    /// Jobs of one run. Default: each scenario's own number.
    pub jobs: Option<u64>,
    /// True for tiny runs without a warm-up, to check that everything works.
    pub short: bool,
    /// Bytes of each payload, at least [`LEAST_PAYLOAD`].
    pub payload_bytes: usize,
    /// Number of concurrent callers of the library.
    pub callers: usize,
    /// Number of concurrent HTTP connections.
    pub connections: usize,
    /// Number of workers of the measured runner.
    pub workers: usize,
    /// Time for which the private MySQL holds each group of commits, in milliseconds. Zero on other servers.
    pub commit_delay_ms: u64,
    /// The `tickr` command, for the idle runner in its own process.
    #[serde(skip)]
    pub program: PathBuf,
}

/// Size in bytes of the smallest payload: `{"pad":""}`.
pub const LEAST_PAYLOAD: usize = 10;

/// Reason why a bench could not be finished. A slow figure is not an error.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An address cannot be used. The text does not quote it, because it may contain a password.
    #[error("the {0} url cannot be used: {1}")]
    Url(&'static str, String),
    /// A server cannot be used.
    #[error("{cause}\ntried {place}")]
    Server {
        /// The server, without its password.
        place: String,
        /// The reason.
        cause: String,
    },
    /// The measured runner could not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// MySQL failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Redis failed.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The product refused the jobs of the bench.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The operating system returned an error.
    #[error("{attempted}: {cause}")]
    Io {
        /// The action that was tried.
        attempted: &'static str,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// A response that is not a success.
    #[error("POST {path} was answered {status} instead of 201")]
    Answered {
        /// Path of the request.
        path: &'static str,
        /// Status of the response.
        status: u16,
    },
    /// A part of the bench failed.
    #[error("{0}")]
    Failed(String),
}

impl BenchError {
    fn io(attempted: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |cause| Self::Io { attempted, cause }
    }
}

impl From<tokio::task::JoinError> for BenchError {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::Failed(format!("a task of the bench ended early: {error}"))
    }
}

/// Run a bench. After an error, or when the future was dropped, call [`BenchServers::sweep`] as soon as no task of the
/// bench runs any more.
///
/// # Errors
/// When the servers, the runner or the load fail. Slow figures and broken guarantees are in the report, not in the
/// error.
pub async fn run(settings: &BenchSettings, ground: &BenchServers) -> Result<Report, BenchError> {
    let facts = ground.look().await?;
    let bench = Bench { settings, ground, progress: Progress::new(settings) };
    let mut lines = Vec::new();
    for scenario in &settings.scenarios {
        bench.progress.begin(*scenario);
        lines.extend(match scenario {
            Scenario::Enqueue => Box::pin(enqueue::run(&bench)).await?,
            Scenario::Batch => Box::pin(batch::run(&bench)).await?,
            Scenario::Drain => Box::pin(drain::run(&bench)).await?,
            Scenario::Flow => flow::run(&bench).await?,
            Scenario::Lateness => Box::pin(lateness::run(&bench)).await?,
            Scenario::Delayed => delayed::run(&bench).await?,
            Scenario::Callback => Box::pin(callback::run(&bench)).await?,
            Scenario::Rebuild => Box::pin(rebuild::run(&bench)).await?,
            Scenario::Idle => Box::pin(idle::run(&bench)).await?,
            Scenario::Keys => Box::pin(keys::run(&bench)).await?,
            Scenario::Limits => Box::pin(limits::run(&bench)).await?,
            Scenario::Batches => Box::pin(batches::run(&bench)).await?,
            Scenario::Graphs => Box::pin(graphs::run(&bench)).await?,
            Scenario::Outbox => Box::pin(outbox::run(&bench)).await?,
            Scenario::Workers => Box::pin(workers::run(&bench)).await?,
            Scenario::Runners => Box::pin(runners::run(&bench)).await?,
            Scenario::Growth => Box::pin(growth::run(&bench)).await?,
        });
    }
    bench.progress.finish();
    Ok(Report::new(settings.clone(), facts, lines))
}

/// A running bench.
struct Bench<'a> {
    settings: &'a BenchSettings,
    ground: &'a BenchServers,
    progress: Progress,
}

/// One repetition.
#[derive(Clone, Copy, Debug)]
struct Repetition {
    /// Number from 1. Repetition 0 only warms up.
    number: usize,
}

impl Repetition {
    /// True for a measured repetition, false for the warm-up.
    fn counts(self) -> bool {
        self.number > 0
    }

    /// The part of `jobs` that this repetition runs.
    fn share_of(self, jobs: u64) -> u64 {
        if self.counts() { jobs } else { (jobs / 10).max(1) }
    }
}

impl Bench<'_> {
    /// The repetitions, after one that only warms up.
    fn rounds(&self) -> impl Iterator<Item = Repetition> + use<> {
        let first = usize::from(self.settings.short);
        (first..=self.settings.repeat).map(|number| Repetition { number })
    }

    /// The repetitions of a scenario that has its own warm-up.
    fn measured_rounds(&self) -> impl Iterator<Item = Repetition> + use<> {
        (1..=self.settings.repeat).map(|number| Repetition { number })
    }

    /// Number of jobs of a run: that of the settings, else `usual` or, in a short run, `short`.
    fn jobs(&self, usual: u64, short: u64) -> u64 {
        self.settings.jobs.unwrap_or_else(|| self.pick(usual, short))
    }

    /// Return the usual value, or the one of a short run.
    fn pick<T>(&self, usual: T, short: T) -> T {
        if self.settings.short { short } else { usual }
    }
}
