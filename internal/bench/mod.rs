//! `tickr bench`: how fast this build is on these servers, beside what the bare store gives on them in the same run.
//!
//! A [`Scenario`] is measured several times. Each time it gets a stage: a database and a key prefix of its own,
//! so that no run pays for the last one's rows. The product under measurement is the whole of it, an
//! [`App`](crate::app::App) with its loops and its API in this process; beside it, in turn, the bare store does the same
//! work by whole batches and nothing else. Times are taken from the callers' side for enqueues and from what MySQL stored
//! for everything that runs. After every run the tables must show that each job completed exactly once, and the server
//! that nothing deadlocked; only that fails a bench, because speed depends on the machine.
//!
//! | file | noun |
//! |---|---|
//! | `figure`, `line`, `report`, `table` | samples and aims; one line of the result; the whole of it; how it looks |
//! | `ground`, `stage` | the servers, and what is swept up there; the place of one run, with its checks |
//! | `load`, `wire` | jobs and who hands them in; a connection that speaks just enough HTTP |
//! | `enqueue` `batch` `drain` `flow` `lateness` `rebuild` `idle` `growth` | one scenario each |
//! | `process` | what the system says about a process |
//! | `progress` | the bar |

mod batch;
mod drain;
mod enqueue;
mod figure;
mod flow;
mod ground;
mod growth;
mod idle;
mod lateness;
mod line;
mod load;
mod process;
mod progress;
mod rebuild;
mod report;
mod stage;
mod table;
mod wire;

pub use figure::{Aim, Figure, Of, Side, percentile};
pub use ground::{Ground, ServerFacts};
pub use line::Line;
pub use report::{Machine, Report};
pub use table::table;

use std::path::PathBuf;

use serde::Serialize;

use crate::app::StartError;
use crate::broker::Invalid;
use crate::index::IndexError;
use crate::store::StoreError;
use progress::Progress;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scenario {
    /// One job after the other, through the library and by POST.
    Enqueue,
    /// Batches by POST.
    Batch,
    /// Working off a backlog.
    Drain,
    /// Enqueue while draining.
    Flow,
    /// How late jobs start.
    Lateness,
    /// Feeding an empty index.
    Rebuild,
    /// A runner without work.
    Idle,
    /// Working off a backlog on top of a long history.
    Growth,
}

impl Scenario {
    /// All but [`Growth`](Self::Growth), which takes minutes, in the order in which they are run.
    pub const USUAL: [Self; 7] =
        [Self::Enqueue, Self::Batch, Self::Drain, Self::Flow, Self::Lateness, Self::Rebuild, Self::Idle];

    /// Its name on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enqueue => "enqueue",
            Self::Batch => "batch",
            Self::Drain => "drain",
            Self::Flow => "flow",
            Self::Lateness => "lateness",
            Self::Rebuild => "rebuild",
            Self::Idle => "idle",
            Self::Growth => "growth",
        }
    }
}

/// What is wanted.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// What to measure, in this order.
    pub scenarios: Vec<Scenario>,
    /// Measured repetitions.
    pub repeat: usize,
    /// Jobs of one run; each scenario's own number when absent.
    pub jobs: Option<u64>,
    /// Tiny runs without a warm-up, to see that everything works.
    pub short: bool,
    /// Bytes of each payload, at least [`LEAST_PAYLOAD`].
    pub payload_bytes: usize,
    /// Callers of the library at the same time.
    pub callers: usize,
    /// HTTP connections at the same time.
    pub connections: usize,
    /// Workers of the runner under measurement.
    pub workers: usize,
    /// The `tickr` command, for the runner that idles in a process of its own.
    #[serde(skip)]
    pub program: PathBuf,
}

/// The smallest payload there is: `{"pad":""}`.
pub const LEAST_PAYLOAD: usize = 10;

/// Why a bench could not be finished. A slow figure is no error.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An address cannot be used. The text does not quote it, as it may carry a password.
    #[error("the {0} url cannot be used: {1}")]
    Url(&'static str, String),
    /// The servers cannot be used.
    #[error("{cause}\ntried {place}")]
    Server {
        /// The server, without its password.
        place: String,
        /// Why.
        cause: String,
    },
    /// The runner under measurement could not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// MySQL failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Redis failed.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The load is not what the product takes.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The system refused something.
    #[error("{attempted}: {cause}")]
    Io {
        /// What was attempted.
        attempted: &'static str,
        /// The system's reason.
        cause: std::io::Error,
    },
    /// An answer that is no success.
    #[error("POST {path} was answered {status} instead of 201")]
    Answered {
        /// Where it was sent.
        path: &'static str,
        /// What came back.
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

/// Measure. Whoever drops the future, or gets an error, sweeps the [`Ground`] afterwards, when nothing runs any more.
///
/// # Errors
/// When the servers, the runner or the load fail. Slow figures and broken promises stand in the report.
pub async fn run(settings: &Settings, ground: &Ground) -> Result<Report, BenchError> {
    let facts = ground.look().await?;
    let bench = Bench { settings, ground, progress: Progress::of(settings) };
    let mut lines = Vec::new();
    for scenario in &settings.scenarios {
        bench.progress.begins(*scenario);
        lines.extend(match scenario {
            Scenario::Enqueue => enqueue::run(&bench).await?,
            Scenario::Batch => batch::run(&bench).await?,
            Scenario::Drain => drain::run(&bench).await?,
            Scenario::Flow => flow::run(&bench).await?,
            Scenario::Lateness => lateness::run(&bench).await?,
            Scenario::Rebuild => rebuild::run(&bench).await?,
            Scenario::Idle => idle::run(&bench).await?,
            Scenario::Growth => growth::run(&bench).await?,
        });
    }
    bench.progress.ends();
    Ok(Report::new(settings.clone(), facts, lines))
}

/// A bench in progress.
struct Bench<'a> {
    settings: &'a Settings,
    ground: &'a Ground,
    progress: Progress,
}

/// One repetition.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// From 1; 0 warms up.
    number: usize,
}

impl Round {
    /// Is it measured?
    fn counts(self) -> bool {
        self.number > 0
    }

    /// How many of `jobs` it does.
    fn share_of(self, jobs: u64) -> u64 {
        if self.counts() { jobs } else { (jobs / 10).max(1) }
    }
}

impl Bench<'_> {
    /// The repetitions, after one that only warms up.
    fn rounds(&self) -> impl Iterator<Item = Round> + use<> {
        let first = usize::from(self.settings.short);
        (first..=self.settings.repeat).map(|number| Round { number })
    }

    /// The repetitions of what brings its own warm-up.
    fn measured_rounds(&self) -> impl Iterator<Item = Round> + use<> {
        (1..=self.settings.repeat).map(|number| Round { number })
    }

    /// How many jobs, unless the settings say so: usually, and in a short run.
    fn jobs(&self, usual: u64, short: u64) -> u64 {
        self.settings.jobs.unwrap_or_else(|| self.pick(usual, short))
    }

    /// The usual value, or that of a short run.
    fn pick<T>(&self, usual: T, short: T) -> T {
        if self.settings.short { short } else { usual }
    }
}
