//! The whole of a bench: where it ran, how, and what came out.

use serde::Serialize;

use super::Settings;
use super::ground::ServerFacts;
use super::line::Line;

/// What `tickr bench --json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Did every job of every run complete exactly once, without a deadlock? Speed has no say in it.
    pub ok: bool,
    /// This build and this machine.
    pub machine: Machine,
    /// The servers.
    pub servers: ServerFacts,
    /// What was asked for.
    pub settings: Settings,
    /// The results.
    pub lines: Vec<Line>,
}

/// The build and the machine that a figure is worth something on.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// tickr's version.
    pub version: &'static str,
    /// `release`, or `debug`, whose figures mean nothing.
    pub build: &'static str,
    /// The operating system and the architecture.
    pub system: String,
    /// Cores that this process may use.
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
    pub(super) fn new(settings: Settings, servers: ServerFacts, lines: Vec<Line>) -> Self {
        let ok = lines.iter().all(|line| line.exactly_once && line.deadlocks.is_none_or(|count| count == 0));
        Self { ok, machine: Machine::this(), servers, settings, lines }
    }

    /// What was promised and not kept, a sentence each.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let of = |line: &Line| {
            let lost = (!line.exactly_once).then(|| format!("{}: not every job completed exactly once", line.name));
            let deadlocks = line.deadlocks.filter(|count| *count > 0);
            lost.into_iter().chain(deadlocks.map(|count| format!("{}: {count} deadlocks", line.name)))
        };
        self.lines.iter().flat_map(of).collect()
    }
}
