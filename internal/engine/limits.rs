//! The sweep of limits by key: it mends what settlements have not done.
//!
//! A settlement frees the slots of its attempt and lets parked jobs go. When a runner died in between, when an operator
//! raised or removed a limit, or when a job that was let go did not start, the sweep does it. Any runner may sweep; the
//! locks of the keys keep two of them from letting the same job go.

use std::time::Duration;

use super::EngineState;
use tickr_store::LimitSweep;

/// Sweep after each summary of changes that shows a limit in use, about once a second, and as soon as the attempts of a
/// new limit can be counted.
pub(super) async fn sweep_until_stopped(shared: &EngineState) {
    let mut summaries = shared.operator_settings.summaries();
    let (mut sweep, mut settings, mut changed_before) = (LimitSweep::default(), String::new(), false);
    loop {
        let counts = tokio::select! {
            () = shared.stop_loops.cancelled() => break,
            changed = summaries.changed() => if changed.is_err() {
                return;
            } else {
                false
            },
            () = after(shared.store.until_limits_are_counted()) => true,
        };
        // A sweep that comes early is none of those that follow a summary.
        let latest = if counts { summaries.borrow().clone() } else { summaries.borrow_and_update().clone() };
        let Some(summary) = latest else { continue };
        // In a process that has just started, a fair limit has no share. So its jobs start without slots, and no
        // summary would ever show that the limit is in use.
        let in_use = summary.limits_in_use || shared.store.lacks_shares();
        let mut changed = false;
        if !counts {
            // The limits of this process are read after the summary that shows a change, so the next sweep is sure to
            // know them.
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
