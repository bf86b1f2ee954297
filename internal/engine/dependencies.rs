//! Lets jobs run, or cancels them, when their parents have ended.
//!
//! The transaction that ends a parent leaves a row for its children. A process that ends one looks at once; the summary
//! of changes tells the others, about once a second, so that the children go on when that process dies. From time to time
//! a runner looks at all blocked jobs, because a runner of an older version ends parents without such a row. It reads
//! nothing for that while the summary shows that no job is blocked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::EngineState;
use tickr_event::Event;
use tickr_job::JobId;
use tickr_store::{StoreError, ToldChildren};

/// Time between two pages of the look at all blocked jobs.
const RECHECK_EVERY: Duration = Duration::from_secs(5);
/// Pause after a look, so that the ends of many parents are told together.
const REST: Duration = Duration::from_millis(2);
/// Pause after an error.
const PAUSE: Duration = Duration::from_millis(500);

/// Tell children until the runner stops.
pub(super) async fn tell_until_stopped(shared: Arc<EngineState>) {
    let mut summaries = shared.operator_settings.summaries();
    let mut rechecked = Recheck { at: Instant::now(), after: None };
    loop {
        let look = tokio::select! {
            () = shared.stop_loops.cancelled() => break,
            () = shared.store.parents_ended() => true,
            changed = summaries.changed() => {
                if changed.is_err() {
                    break;
                }
                summaries.borrow_and_update().as_ref().is_some_and(|summary| summary.children_wait)
            }
        };
        if shared.store_trouble.is_known() {
            continue;
        }
        let pause = match look_and_recheck(&shared, look, &mut rechecked).await {
            Ok(()) => REST,
            Err(error) => {
                tracing::warn!(%error, "cannot tell jobs yet that their parents have ended");
                PAUSE
            }
        };
        tokio::select! {
            () = shared.stop_loops.cancelled() => break,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// The look at all blocked jobs: when the last page was read, and the job behind which the next one begins.
struct Recheck {
    at: Instant,
    after: Option<JobId>,
}

async fn look_and_recheck(shared: &EngineState, look: bool, recheck: &mut Recheck) -> Result<(), StoreError> {
    let told = if look { tell_all(shared).await } else { Ok(()) };
    if recheck.at.elapsed() >= RECHECK_EVERY {
        let mut after = None;
        if shared.operator_settings.may_have(|summary| summary.jobs_blocked) {
            let (told, next) = shared.store.recheck_blocked(recheck.after).await?;
            follow(shared, told);
            after = next;
        }
        *recheck = Recheck { at: Instant::now(), after };
    }
    told
}

async fn tell_all(shared: &EngineState) -> Result<(), StoreError> {
    while let Some(last) = shared.store.last_ended_parent().await? {
        let mut cancelled = false;
        loop {
            if shared.stop_loops.is_cancelled() {
                return Ok(());
            }
            let told = shared.store.tell_children(last).await?;
            let more = told.more;
            cancelled |= !told.cancelled.is_empty();
            follow(shared, told);
            if !more {
                break;
            }
        }
        // Children of the cancelled ones may wait.
        if !cancelled {
            break;
        }
    }
    Ok(())
}

fn follow(shared: &EngineState, told: ToldChildren) {
    for id in &told.cancelled {
        shared.broker.events().emit(Event::Cancelled { id: *id });
    }
    let now = shared.store.clock().now();
    let (due, later): (Vec<_>, Vec<_>) = told.released.into_iter().partition(|job| job.execute_at <= now);
    later.iter().for_each(|job| shared.broker.hint_released(job));
    shared.start_or_hint(due);
}
