//! Connections for everything that is not a group commit, in five pools, so that one kind of caller cannot starve another:
//! a flood of searches must not stop the reaper, and a flood of enqueues with unique keys must not stop an operator.
//!
//! Every method of the [`Store`](super::Store) says which pool it uses. Their sum is `mysql_connections`; those for
//! the content of reports come on top.

use super::link::{Pool, Target};

/// What a caller of the store is. Each kind has connections of its own.
#[derive(Clone)]
pub(super) struct Pools {
    /// What operators set (keys, queues, drain) and what each process reads of it every second: short statements only.
    pub(super) controls: Pool,
    /// What every runner does by itself: reaper, reconciler, ticker, operator, janitor, permits, alerts, recorder,
    /// readiness. Each is one task and uses one connection at a time.
    pub(super) loops: Pool,
    /// What clients change apart from plain enqueues: jobs with keys, cancels, retries, operations, schedules.
    pub(super) steering: Pool,
    /// What clients read.
    pub(super) reads: Pool,
    /// The content of reports, which is large: its statements hold up no others.
    pub(super) reports: Pool,
}

/// Connections for the content of reports, beside those that are split. A runner that makes and serves none opens none.
pub(super) const FOR_REPORTS: u32 = 2;

/// How many connections each pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// For what operators set.
    pub controls: u32,
    /// For what every runner does by itself.
    pub loops: u32,
    /// For what clients change, plain enqueues apart.
    pub steering: u32,
    /// For what clients read.
    pub reads: u32,
}

impl Split {
    /// The smallest number of connections that can be split.
    pub const LEAST: u32 = 5;
    /// There are no more loops than this, so further connections would never be used.
    const MOST_LOOPS: u32 = 12;

    /// Searches and counts of clients that may run at the same time: they leave a connection to the quick reads, if there is more
    /// than one.
    #[must_use]
    pub fn searches(self) -> u32 {
        (self.reads - 1).clamp(1, 4)
    }

    /// Split `total` connections. Fewer than [`LEAST`](Self::LEAST) count as that many.
    #[must_use]
    pub fn of(total: u32) -> Self {
        let total = total.max(Self::LEAST);
        // With two, an operator whose change waits for a locked row does not hold up the reading of the others.
        let controls = if total < 8 { 1 } else { 2 };
        let shared = total - controls;
        let steering = (shared * 2 / 7).max(1);
        let reads = (shared * 5 / 14).max(1);
        let loops = (shared - steering - reads).min(Self::MOST_LOOPS);
        Self { controls, loops, steering, reads: shared - steering - loops }
    }
}

impl Pools {
    /// Split `total` connections. None is opened before it is needed.
    pub(super) fn new(target: &Target, total: u32) -> Self {
        let Split { controls, loops, steering, reads } = Split::of(total);
        let pool = |size| Pool::new(target, size);
        Self {
            controls: pool(controls),
            loops: pool(loops),
            steering: pool(steering),
            reads: pool(reads),
            reports: pool(FOR_REPORTS),
        }
    }

    /// Each pool and its name.
    pub(super) fn each(&self) -> [(&'static str, &Pool); 5] {
        [
            ("controls", &self.controls),
            ("loops", &self.loops),
            ("steering", &self.steering),
            ("reads", &self.reads),
            ("reports", &self.reports),
        ]
    }

    /// Say goodbye on every connection.
    pub(super) async fn close(&self) {
        futures_util::future::join_all(self.each().map(|(_, pool)| pool.connections().close())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pool_has_a_connection_and_their_sum_is_what_was_asked_for() {
        for total in Split::LEAST..=1_024 {
            let split = Split::of(total);
            let Split { controls, loops, steering, reads } = split;
            assert_eq!(controls + loops + steering + reads, total, "{split:?}");
            assert!(controls >= 1 && loops >= 2 && steering >= 1 && reads >= 1, "{split:?}");
        }
        assert_eq!(Split::of(16), Split { controls: 2, loops: 5, steering: 4, reads: 5 });
        assert_eq!(Split::of(1), Split::of(Split::LEAST));
        assert_eq!([5, 16, 1_024].map(|total| Split::of(total).searches()), [1, 4, 4]);
    }
}
