//! The limit of open files of this process (`RLIMIT_NOFILE`).
//!
//! Shells and containers often start a program with a soft limit of 1,024, which protects programs that use `select`.
//! tickr uses none, and `http_connections` alone may be more. A process without a free file reaches no receiver, no
//! MySQL and no Redis, and a callback that cannot connect uses up an attempt.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;

/// Open files beside the connections of clients, workers and the store: Redis, logs, reports, libraries.
const OTHERS: usize = 256;
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
            "the process may have too few open files for http_connections and its own connections: callbacks would fail \
             when clients use them up; raise the hard limit (LimitNOFILE of systemd, ulimit -Hn) or set a lower \
             http_connections"
        );
    }
}

fn needed(config: &Config) -> u64 {
    let connections = config.mysql_connections as usize;
    let all = config.http_connections.saturating_add(config.workers).saturating_add(connections);
    u64::try_from(all.saturating_add(OTHERS)).unwrap_or(u64::MAX)
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
