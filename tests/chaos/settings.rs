//! Settings of a run of the chaos program: from its environment, and from the command line of `cargo test`.

use std::time::Duration;

/// The MySQL of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// One server.
    One,
    /// A Galera cluster of three.
    Galera,
}

/// The Redis of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Index {
    /// One server.
    One,
    /// A master and a replica behind three sentinels.
    Sentinel,
}

/// Settings of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Seed of the faults and the load. The same seed draws the same faults; their effects differ from run to run.
    pub(crate) seed: u64,
    pub(crate) store: Store,
    pub(crate) index: Index,
    /// Duration from the first job to the last check.
    pub(crate) length: Duration,
    /// Whether to print every fault as it happens.
    pub(crate) tell: bool,
}

/// What `cargo test` wants from this program.
pub(crate) enum Wanted {
    Run(Settings),
    /// List the tests.
    List,
    /// Run other tests than this one.
    Others,
}

/// Name that the filters of `cargo test` are compared with.
pub(crate) const NAME: &str = "chaos";

impl Wanted {
    /// Read the environment (`CHAOS_SEED`, `CHAOS_MINUTES`, `CHAOS_STORE`, `CHAOS_INDEX`, `CHAOS_TELL`), and those
    /// arguments of the usual test harness that decide whether this test runs.
    pub(crate) fn read() -> Result<Self, String> {
        let mut filters = Vec::new();
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--list" => return Ok(Self::List),
                "--ignored" => return Ok(Self::Others),
                "--skip" if arguments.next().is_some_and(|skipped| NAME.contains(&skipped)) => {
                    return Ok(Self::Others);
                }
                // These options have a value of their own, which is not a filter.
                "--test-threads" | "--format" | "--color" | "--logfile" | "-Z" | "--shuffle-seed" => {
                    arguments.next();
                }
                flag if flag.starts_with('-') => {}
                filter => filters.push(filter.to_owned()),
            }
        }
        if !filters.is_empty() && !filters.iter().any(|filter| NAME.contains(filter.as_str())) {
            return Ok(Self::Others);
        }
        let seed = number("CHAOS_SEED")?.unwrap_or_else(|| rand::random_range(1..1_000_000));
        let minutes = number("CHAOS_MINUTES")?.unwrap_or(2).max(1);
        let store = match std::env::var("CHAOS_STORE").unwrap_or_default().as_str() {
            "" => Store::One,
            "galera" => Store::Galera,
            other => return Err(format!("CHAOS_STORE={other}: the only other store is galera")),
        };
        let index = match std::env::var("CHAOS_INDEX").unwrap_or_default().as_str() {
            "" => Index::One,
            "sentinel" => Index::Sentinel,
            other => return Err(format!("CHAOS_INDEX={other}: the only other index is sentinel")),
        };
        let tell = std::env::var_os("CHAOS_TELL").is_some_and(|text| !text.is_empty());
        Ok(Self::Run(Settings { seed, store, index, length: Duration::from_secs(60 * minutes), tell }))
    }
}

fn number(name: &str) -> Result<Option<u64>, String> {
    let text = std::env::var(name).unwrap_or_default();
    let number = (!text.is_empty()).then(|| text.parse().map_err(|e| format!("{name}={text}: {e}")));
    number.transpose()
}
