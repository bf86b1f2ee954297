//! The limit of open files of this process (`RLIMIT_NOFILE`).
//!
//! Shells and containers often start a program with a soft limit of 1,024, which protects programs that use `select`.
//! tickr uses none, and `http_connections` alone may be more. A process without a free file reaches no receiver, no
//! MySQL and no Redis, and a callback that cannot connect uses up an attempt.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;

/// Open files beside the connections of clients, workers, receivers and the store: Redis, logs, reports, libraries.
const OTHERS: usize = 256;
/// Most idle connections that callbacks keep, and the same for a runner with many workers: more than [`FEW_WORKERS`].
/// `clients.rs` of the kind `http` has these bounds and the next two.
const MAX_IDLE: usize = 4_096;
const MAX_IDLE_OF_MANY: usize = 8_192;
const FEW_WORKERS: usize = 512;
/// Most receivers to which connections are kept. To each of them there is one for each worker at most.
const MAX_PLACES: usize = 1_024;
/// Limit to which a start raises a lower one, as the unit of the Debian package does. The hard limit may be a billion,
/// and some programs that a handler starts close every file that they could have.
const ENOUGH: u64 = 16_384;

/// Raise the soft limit as far as this configuration needs and the hard limit allows. Warn when that is too little.
pub(super) fn raise(config: &Config) {
    let needed = needed(config);
    let before = getrlimit(Resource::Nofile);
    let after = raised(before, needed.max(ENOUGH));
    let limit = match setrlimit(Resource::Nofile, after) {
        Ok(()) => after.current,
        Err(_) => before.current,
    };
    if let Some(limit) = limit.filter(|limit| *limit < needed) {
        tracing::warn!(
            limit,
            needed,
            "the process may have too few open files for http_connections, its own connections and those that callbacks \
             keep: callbacks would fail when these are used up; raise the hard limit (LimitNOFILE of systemd, ulimit -Hn) \
             or set lower http_connections or workers"
        );
    }
}

/// Return the number of files that the process may have open at the same time.
fn needed(config: &Config) -> u64 {
    let connections = config.mysql_connections as usize;
    // A call that opens a connection of its own leaves the idle ones to the others.
    let callbacks = config.workers.saturating_add(idle(config.workers));
    let all = config.http_connections.saturating_add(callbacks).saturating_add(connections);
    u64::try_from(all.saturating_add(OTHERS)).unwrap_or(u64::MAX)
}

/// Return the most idle connections that the callbacks of so many workers keep.
fn idle(workers: usize) -> usize {
    let all = if workers > FEW_WORKERS { MAX_IDLE_OF_MANY } else { MAX_IDLE };
    workers.saturating_mul(MAX_PLACES).min(all)
}

/// Return the limits with a soft one of at least this, or the hard one if that is less. `None` is no limit.
fn raised(limits: Rlimit, wanted: u64) -> Rlimit {
    let reachable = limits.maximum.map_or(wanted, |maximum| wanted.min(maximum));
    Rlimit { current: limits.current.map(|current| current.max(reachable)), ..limits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warning_counts_the_idle_connections_that_callbacks_keep() {
        let needed = |workers| {
            let config = Config { workers, http_connections: 2_048, mysql_connections: 16, ..Config::defaults() };
            needed(&config) - 2_048 - 16 - 256
        };
        let few = FEW_WORKERS as u64;
        assert_eq!([0, 1, 3].map(needed), [0, 1 + 1_024, 3 + 3 * 1_024]);
        assert_eq!([64, FEW_WORKERS].map(needed), [64 + 4_096, few + 4_096]);
        assert_eq!([FEW_WORKERS + 1, 4_096].map(needed), [few + 1 + 8_192, 4_096 + 8_192]);
        // A usual runner has enough after a start.
        assert!(needed(4_096) + 2_048 + 16 + 256 <= ENOUGH);
        // The kind has the bounds.
        let of_kind = concat!(env!("CARGO_MANIFEST_DIR"), "/internal/handlers/http/clients.rs");
        let of_kind = std::fs::read_to_string(of_kind).unwrap();
        for bound in [
            "MAX_IDLE: usize = 4_096;",
            "MAX_IDLE_OF_MANY: usize = 8_192;",
            "FEW_WORKERS: usize = 512;",
            "MAX_PLACES: usize = 1_024;",
        ] {
            assert!(of_kind.contains(bound), "{bound} of the kind http has changed, and needs to change here");
        }
    }

    #[test]
    fn a_limit_is_raised_to_the_hard_one_at_most_and_never_lowered() {
        for (current, maximum, after) in [
            (Some(1_024), Some(524_288), Some(16_384)),
            (Some(1_024), Some(4_096), Some(4_096)),
            (Some(1_024), None, Some(16_384)),
            (Some(65_536), Some(65_536), Some(65_536)),
            (None, None, None),
        ] {
            let limits = Rlimit { current, maximum };
            assert_eq!(raised(limits, 16_384), Rlimit { current: after, maximum });
        }
    }
}
