//! Connections for everything that is not a group commit, in eight pools, so that one group of callers cannot starve
//! another. A flood of searches must not stop the reaper, and a flood of enqueues with unique keys must not stop an
//! operator.
//!
//! Every method of the [`Store`](crate::Store) names the pool that it uses. The sizes of the first four pools
//! add up to `mysql_connections`. The connections for the content of reports, for the outboxes of applications and for
//! remote workers are extra.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::sql::connection::{DbFuture, Pool, PriorRun, Target, transact};
use crate::sql::error::StoreError;
use crate::sql::session::Session;
use crate::sql::turns::{Subject, Turns};

/// The pools, one for each group of callers.
#[derive(Clone)]
pub(crate) struct Pools {
    /// For operators' settings (API keys, queues, drain), which every process also reads once a second. Short
    /// statements only.
    pub(crate) controls: Pool,
    /// For the background loops of every runner: reaper, reconciler, ticker, bulk operations, janitor, permits, alerts,
    /// recorder, readiness, the runners of the metrics, and the summary of changes. Each uses one connection at a time,
    /// and the janitor as many as `purges` says.
    pub(crate) loops: Pool,
    /// For changes by clients other than plain enqueues: jobs with keys, cancels, retries, bulk operations, schedules.
    pub(crate) steering: Pool,
    /// For reads by clients.
    pub(crate) reads: Pool,
    /// For the content of reports. It is large, so it has connections of its own and does not delay other statements.
    pub(crate) reports: Pool,
    /// For copies from the outboxes of applications. Their loops may be many, and delay no other loop.
    pub(crate) sources: Pool,
    /// For the requests of remote workers (claims and the reads of their verdicts), and for the calls that single attempts
    /// make: finish keys, deferrals, the checkpoint with which one begins. There may be thousands, and they delay nothing
    /// else.
    pub(crate) workers: Pool,
    /// For the heartbeats of remote workers and their checkpoints, and for the loop that serves their requests. Claims
    /// that wait for a lock delay neither, and statements on these connections wait for one for a second only.
    /// Checkpoints are saved by one heartbeat at a time, so those that wait for a lock leave a connection to the others.
    pub(crate) beats: Pool,
    /// The turns of changes by clients that may wait for the same row.
    pub(crate) turns: Arc<Turns>,
    /// Held by the one that tries a write.
    pub(crate) probe: Arc<tokio::sync::Mutex<()>>,
    /// Number of connections for the loops that the janitor may use at the same time.
    pub(crate) purges: usize,
}

/// Number of connections for the content of reports, in addition to those that are split. A runner that neither makes
/// nor serves reports opens none of them.
pub(crate) const FOR_REPORTS: u32 = 2;
/// Number of connections for copies from the outboxes of applications, in addition to those that are split. A runner
/// without such outboxes opens none of them.
pub(crate) const FOR_SOURCES: u32 = 2;
/// Number of connections for the requests of remote workers and the calls of single attempts, in addition to those that are
/// split. A runner that has neither opens none of them.
pub(crate) const FOR_WORKERS: u32 = 8;
/// Number of connections for the heartbeats of remote workers, in addition to those that are split. A runner that no
/// worker calls opens none of them.
pub(crate) const FOR_BEATS: u32 = 2;

/// Number of connections in each pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSizes {
    /// For operators' settings.
    pub controls: u32,
    /// For the background loops of every runner.
    pub loops: u32,
    /// For changes by clients other than plain enqueues.
    pub steering: u32,
    /// For reads by clients.
    pub reads: u32,
}

impl PoolSizes {
    /// The smallest number of connections that can be split.
    pub const LEAST: u32 = 5;
    /// Most connections for the loops, which do not all use one at the same time.
    const MAX_LOOPS: u32 = 12;

    /// Return the number of searches, counts and other heavy reads of clients that may run at the same time. One connection stays free for
    /// quick reads, if there is more than one.
    #[must_use]
    pub fn searches(self) -> u32 {
        (self.reads - 1).clamp(1, 4)
    }

    /// Return the number of pages that the janitor may remove at the same time. Three tables grow with the jobs and the
    /// calls. The other loops, such as the reaper, have at least half of the connections.
    #[must_use]
    pub(crate) fn purges(self) -> u32 {
        (self.loops / 2).clamp(1, 3)
    }

    /// Split `total` connections. Totals below [`LEAST`](Self::LEAST) are raised to it.
    #[must_use]
    pub fn new(total: u32) -> Self {
        let total = total.max(Self::LEAST);
        // With two connections, an operator's change that waits for a locked row does not delay the other processes'
        // reads of the settings.
        let controls = if total < 8 { 1 } else { 2 };
        let shared = total - controls;
        let steering = (shared * 2 / 7).max(1);
        let reads = (shared * 5 / 14).max(1);
        let loops = (shared - steering - reads).min(Self::MAX_LOOPS);
        Self { controls, loops, steering, reads: shared - steering - loops }
    }
}

impl Pools {
    /// Build the pools with `total` connections. No connection is opened before it is needed.
    pub(crate) fn new(target: &Target, total: u32) -> Self {
        let sizes = PoolSizes::new(total);
        let PoolSizes { controls, loops, steering, reads } = sizes;
        let pool = |size| Pool::new(target, size);
        Self {
            controls: pool(controls),
            loops: pool(loops),
            steering: pool(steering),
            reads: pool(reads),
            reports: pool(FOR_REPORTS),
            sources: pool(FOR_SOURCES),
            workers: pool(FOR_WORKERS),
            beats: Pool::hurried(target, FOR_BEATS),
            turns: Arc::new(Turns::new(steering)),
            probe: Arc::default(),
            purges: sizes.purges() as usize,
        }
    }

    /// Return each pool with its name.
    pub(crate) fn each(&self) -> [(&'static str, &Pool); 8] {
        [
            ("controls", &self.controls),
            ("loops", &self.loops),
            ("steering", &self.steering),
            ("reads", &self.reads),
            ("reports", &self.reports),
            ("sources", &self.sources),
            ("workers", &self.workers),
            ("beats", &self.beats),
        ]
    }

    /// Close all connections in an orderly way.
    pub(crate) async fn close(&self) {
        futures_util::future::join_all(self.each().map(|(_, pool)| pool.close())).await;
    }
}

/// Run `step` in one transaction on a connection for changes, as [`transact`] does, once it is the turn of this change.
pub(crate) async fn transact_in_turn<T, F>(
    pools: &Pools,
    subjects: BTreeSet<Subject>,
    attempted: &'static str,
    step: F,
) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: for<'c> Fn(&'c mut Session<'_>, PriorRun) -> DbFuture<'c, T> + Send + Sync + 'static,
{
    let turns = pools.turns.take(subjects, attempted).await?;
    transact(&pools.steering, attempted, move |conn, earlier| {
        // The task of the transaction keeps the turns, also when its caller goes away.
        let _kept = &turns;
        step(conn, earlier)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pool_has_a_connection_and_their_sum_is_what_was_asked_for() {
        for total in PoolSizes::LEAST..=1_024 {
            let split = PoolSizes::new(total);
            let PoolSizes { controls, loops, steering, reads } = split;
            assert_eq!(controls + loops + steering + reads, total, "{split:?}");
            assert!(controls >= 1 && loops >= 2 && steering >= 1 && reads >= 1, "{split:?}");
            // Purges leave a connection to the reaper and the other loops.
            assert!(split.purges() >= 1 && split.purges() < loops, "{split:?}");
        }
        assert_eq!(PoolSizes::new(16), PoolSizes { controls: 2, loops: 5, steering: 4, reads: 5 });
        // docs/OPERATIONS.md says from which total on a change that waits leaves a connection to the others.
        assert_eq!([8, 9].map(|total| PoolSizes::new(total).steering), [1, 2]);
        assert_eq!(PoolSizes::new(1), PoolSizes::new(PoolSizes::LEAST));
        assert_eq!([5, 16, 1_024].map(|total| PoolSizes::new(total).searches()), [1, 4, 4]);
        assert_eq!([5, 16, 1_024].map(|total| PoolSizes::new(total).purges()), [1, 2, 3]);
    }
}
