//! The complete result of a bench: machine, servers, settings and figures.

use serde::Serialize;

use super::BenchSettings;
use super::result_row::ResultRow;
use super::servers::ServerFacts;

/// The output of `tickr bench --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// True when every job of every run completed exactly once, without a deadlock. Speed does not count.
    pub ok: bool,
    /// This build and this machine.
    pub machine: Machine,
    /// The servers.
    pub servers: ServerFacts,
    /// The settings of the bench.
    pub settings: BenchSettings,
    /// The figures.
    pub lines: Vec<ResultRow>,
}

/// The build and the machine, without which a figure means nothing.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Version of tickr.
    pub version: &'static str,
    /// `release`, or `debug`, whose figures say nothing about speed.
    pub build: &'static str,
    /// Operating system and architecture.
    pub system: String,
    /// Number of cores that this process may use.
    pub cores: usize,
}

impl Machine {
    fn this() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

impl Report {
    pub(super) fn new(settings: BenchSettings, servers: ServerFacts, lines: Vec<ResultRow>) -> Self {
        let ok = lines.iter().all(|line| line.exactly_once && line.deadlocks.is_none_or(|count| count == 0));
        Self { ok, machine: Machine::this(), servers, settings, lines }
    }

    /// The guarantees that were broken, one sentence each.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let of = |line: &ResultRow| {
            let lost = (!line.exactly_once).then(|| format!("{}: not every job completed exactly once", line.name));
            let deadlocks = line.deadlocks.filter(|count| *count > 0);
            lost.into_iter().chain(deadlocks.map(|count| format!("{}: {count} deadlocks", line.name)))
        };
        self.lines.iter().flat_map(of).collect()
    }
}
