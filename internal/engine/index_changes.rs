//! Records in MySQL when this runner lost Redis and when it had it again, for the marks on charts.

use std::time::Duration;

use super::EngineState;
use tickr_index::{Health, IndexStatus, RebuildTrigger};
use tickr_job::IndexChange;

/// Least time between two records. A Redis that comes and goes would fill the table otherwise.
const REST: Duration = Duration::from_secs(5);
/// Time between two attempts to write a record.
const AGAIN: Duration = Duration::from_secs(1);

pub(super) async fn record_until_stopped(shared: &EngineState) {
    let health = shared.index.health();
    // A runner that starts without Redis has lost it, too.
    let mut seen = Health::Rebuilding;
    loop {
        tokio::select! {
            () = shared.stop_loops.cancelled() => return,
            _ = health.other_than(seen) => {}
        }
        let status = health.status();
        if let Some(change) = change_to(&status, seen) {
            // The change came before this record, by as long as the last rest.
            let ago = chrono::TimeDelta::from_std(status.since.elapsed()).unwrap_or_default();
            let at = shared.store.clock().now() - ago;
            while let Err(error) = shared.store.record_index_change(&shared.runner, change, at).await {
                tracing::debug!(%error, "cannot record a change of the index");
                if stops_within(shared, AGAIN).await {
                    return;
                }
            }
            if stops_within(shared, REST).await {
                return;
            }
        }
        seen = status.health;
    }
}

/// Wait for this time, or until the loops are to stop. Return whether they are.
async fn stops_within(shared: &EngineState, time: Duration) -> bool {
    tokio::time::timeout(time, shared.stop_loops.cancelled()).await.is_ok()
}

/// Return the change from one condition to another one that is recorded, if it is.
fn change_to(now: &IndexStatus, seen: Health) -> Option<IndexChange> {
    match (seen, now.health) {
        (Health::Fast | Health::Rebuilding, Health::Degraded) => Some(IndexChange::Lost),
        (Health::Degraded, Health::Fast | Health::Rebuilding) => Some(IndexChange::Back),
        (Health::Fast, Health::Rebuilding) if now.cause == Some(RebuildTrigger::LostState) => {
            Some(IndexChange::Emptied)
        }
        _ => None,
    }
}
