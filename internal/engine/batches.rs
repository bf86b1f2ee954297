//! Counts the jobs of batches, ends batches, starts their callbacks, and finishes their cancels.
//!
//! The transactions that accept and end jobs only leave rows with what has changed. A process that has written such rows
//! adds them up within a few hundredths of a second; the summary of changes tells the others, about once a second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::EngineState;
use tickr_job::{Actor, BatchId};
use tickr_store::{CancelMark, ChangedBatches, StoreError};

/// Pause after a look, so that many changes of a batch are added up together.
const REST: Duration = Duration::from_millis(50);
/// Time after which a batch is counted again that another session had locked. The others do not wait for it meanwhile.
const LOCKED_RESTS: Duration = Duration::from_secs(10);
/// Time after which a batch is counted again whose count failed.
const FAILED_RESTS: Duration = Duration::from_secs(1);
/// Pause after an error.
const PAUSE: Duration = Duration::from_millis(500);

/// Batches that could not be counted the last time, mostly because another session locked them, each with the moment when
/// it is tried again.
type SetAside = BTreeMap<BatchId, Instant>;

/// Count until the runner stops.
pub(super) async fn count_until_stopped(shared: Arc<EngineState>) {
    let mut summaries = shared.operator_settings.summaries();
    let mut set_aside = SetAside::new();
    // The last look found as much as one look takes, so it may have left some.
    let mut more = false;
    loop {
        tokio::select! {
            () = shared.stop_loops.cancelled() => break,
            () = shared.store.batches_changed() => {}
            () = std::future::ready(()), if more => {}
            changed = summaries.changed() => {
                if changed.is_err() {
                    break;
                }
                if !summaries.borrow_and_update().as_ref().is_some_and(|summary| summary.batches_changed) {
                    continue;
                }
            }
        }
        if shared.store_trouble.is_known() {
            more = false;
            continue;
        }
        let counted = count(&shared, &mut set_aside).await;
        more = matches!(counted, Ok(true));
        let pause = match counted {
            Ok(true) => Duration::ZERO,
            Ok(false) => REST,
            Err(error) => {
                tracing::warn!(%error, "cannot count the jobs of batches yet");
                PAUSE
            }
        };
        tokio::select! {
            () = shared.stop_loops.cancelled() => break,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Count the batches that one look finds. Returns true if there may be more of them, and some of these were counted:
/// what other sessions lock, or what cannot be counted, must not be looked for without a pause.
async fn count(shared: &EngineState, set_aside: &mut SetAside) -> Result<bool, StoreError> {
    let (mut failed, mut any_counted) = (None, false);
    let ChangedBatches { batches: changed, more } =
        shared.store.changed_batches(set_aside.keys().copied().collect()).await?;
    let now = Instant::now();
    set_aside.retain(|batch, until| now < *until || changed.contains(batch));
    // Each of those that were locked may cost some seconds again, so they come last.
    let (before, others): (Vec<BatchId>, Vec<BatchId>) =
        changed.into_iter().partition(|batch| set_aside.contains_key(batch));
    for batch in others.into_iter().chain(before) {
        if set_aside.get(&batch).is_some_and(|until| Instant::now() < *until) {
            continue;
        }
        // A batch that cannot be counted must not hold up those behind it. Without MySQL, none of them can be.
        match count_one(shared, batch).await {
            Ok(true) => {
                any_counted = true;
                set_aside.remove(&batch);
            }
            Ok(false) => {
                tracing::debug!(%batch, "another session locks a batch, the others are counted before it is tried again");
                set_aside.insert(batch, Instant::now() + LOCKED_RESTS);
            }
            Err(error) => {
                if shared.store_trouble.is_known() {
                    return Err(error);
                }
                tracing::debug!(%batch, %error, "the others are counted before it is tried again");
                set_aside.insert(batch, Instant::now() + FAILED_RESTS);
                failed = Some(error);
            }
        }
    }
    failed.map_or(Ok(more && any_counted), Err)
}

/// Add up all that has changed in a batch. Returns false if another session locks it.
async fn count_one(shared: &EngineState, batch: BatchId) -> Result<bool, StoreError> {
    while !shared.stop_loops.is_cancelled() {
        let Some(counted) = shared.broker.count_batch(batch).await? else { return Ok(false) };
        if counted.ended {
            tracing::info!(%batch, "all jobs of a batch have ended");
        }
        if !counted.more {
            break;
        }
    }
    Ok(true)
}

/// Finish cancels until the runner stops. The process that was asked for a cancel carries it out. Another one goes on if
/// that one dies. A cancel may wait for locks of other sessions, so no count of a batch waits for it.
pub(super) async fn finish_cancels_until_stopped(shared: Arc<EngineState>) {
    let mut summaries = shared.operator_settings.summaries();
    loop {
        tokio::select! {
            () = shared.stop_loops.cancelled() => break,
            changed = summaries.changed() => {
                if changed.is_err() {
                    break;
                }
            }
        }
        let told = summaries.borrow_and_update().as_ref().is_some_and(|summary| summary.batches_changed);
        if told
            && !shared.store_trouble.is_known()
            && let Err(error) = finish_cancels(&shared).await
        {
            tracing::warn!(%error, "cannot cancel the jobs of a batch yet");
        }
    }
}

async fn finish_cancels(shared: &EngineState) -> Result<(), StoreError> {
    let mut failed = None;
    for batch in shared.store.cancelled_batches().await? {
        // The others go on, as in `count`.
        if let Err(error) = finish_cancel(shared, batch).await {
            if shared.store_trouble.is_known() {
                return Err(error);
            }
            tracing::debug!(%batch, %error, "the others are cancelled before it is tried again");
            failed = Some(error);
        }
    }
    failed.map_or(Ok(()), Err)
}

async fn finish_cancel(shared: &EngineState, batch: BatchId) -> Result<(), StoreError> {
    // The row outlives the end of the batch by some seconds. An operator may have retried a job of it since.
    if shared.store.finish_batch_cancel(batch).await? {
        return Ok(());
    }
    let mut batches = vec![batch];
    // The nested batches are marked one by one, and the process that did this may have died in between.
    let tickr = Actor::tickr();
    for nested in shared.store.unmarked_nested(batch).await? {
        if shared.store.cancel_batch(nested, &tickr).await? == CancelMark::Marked {
            batches.extend(shared.store.mark_nested(nested, &tickr, &shared.stop_loops).await?);
        }
    }
    // Jobs that are locked are tried again with the next look, so that other batches do not wait for them.
    if shared.broker.cancel_batch_jobs(&batches, &shared.stop_loops, false).await? {
        shared.store.finish_batch_cancel(batch).await?;
    }
    Ok(())
}
