//! The sweep of limits by key: it mends what settlements have not done.
//!
//! A settlement frees the slots of its attempt and lets parked jobs go. When a runner died in between, when an operator
//! raised or removed a limit, or when a job that was let go did not start, the sweep does it. Any runner may sweep; the
//! locks of the keys keep two of them from letting the same job go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::EngineState;
use tickr_store::LimitSweep;

/// Shortest time between two sweeps because of other limits. An operator who sets a thousand limits in a row causes no
/// thousand sweeps of all keys: those after a summary find the rest.
const EARLY_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// When a sweep begins.
enum Start {
    /// After a summary of changes, about once a second.
    Summary,
    /// As soon as this process has read limits that differ from those before: the jobs that a raised limit lets go need
    /// not wait for the next summary.
    OtherLimits,
    /// As soon as the attempts of a new limit can be counted.
    Count,
}

/// Sweep while a limit is in use, until the loops of this process stop.
pub(super) async fn sweep_until_stopped(shared: &EngineState) {
    let (mut summaries, mut copies) = (shared.operator_settings.summaries(), shared.operator_settings.listen());
    let (mut sweep, mut settings, mut changed_before) = (LimitSweep::default(), String::new(), false);
    let (mut limits, mut early_at) = (Arc::clone(&copies.borrow_and_update().limits), Instant::now());
    loop {
        let start = tokio::select! {
            () = shared.stop_loops.cancelled() => break,
            changed = copies.changed() => {
                let latest = Arc::clone(&copies.borrow_and_update().limits);
                if changed.is_err() {
                    return;
                }
                if std::mem::replace(&mut limits, Arc::clone(&latest)) == latest || early_at.elapsed() < EARLY_AGAIN_AFTER
                {
                    continue;
                }
                early_at = Instant::now();
                Start::OtherLimits
            },
            changed = summaries.changed() => match changed {
                Ok(()) => Start::Summary,
                Err(_) => return,
            },
            () = after(shared.store.until_limits_are_counted()) => Start::Count,
        };
        // A sweep that comes early is none of those that follow a summary.
        let latest = match start {
            Start::Summary => summaries.borrow_and_update().clone(),
            Start::OtherLimits | Start::Count => summaries.borrow().clone(),
        };
        let Some(summary) = latest else { continue };
        // In a process that has just started, a fair limit has no share. So its jobs start without slots, and no
        // summary would ever show that the limit is in use.
        let in_use = summary.limits_in_use || shared.store.lacks_shares();
        let mut changed = matches!(start, Start::OtherLimits);
        if matches!(start, Start::Summary) {
            // The limits of this process are read after the summary that shows a change, so the next sweep is sure to
            // know them. It also finds the jobs of runners that knew the old limits for a moment longer.
            let changes = std::mem::replace(&mut settings, summary.settings.clone()) != summary.settings;
            let before = std::mem::replace(&mut changed_before, changes);
            changed = changes || before;
        }
        let uncounted = shared.operator_settings.now().limits.iter().any(|set| !set.counted);
        let trouble = shared.store_trouble.is_known();
        if trouble && changed {
            // The sweeps that follow a change are still to come after the outage.
            settings.clear();
        }
        if (!in_use && !uncounted) || trouble {
            continue;
        }
        let tell = |let_go| shared.start_or_hint(let_go);
        match shared.store.sweep_limits(std::mem::take(&mut sweep), changed, tell).await {
            Ok(next) => sweep = next,
            Err(error) => {
                settings.clear();
                tracing::debug!(%error, "cannot sweep the limits");
            }
        }
    }
}

/// Wait for this time, or for ever.
async fn after(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}
