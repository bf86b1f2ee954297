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
/// it is tried again. That try waits for the lock.
type SetAside = BTreeMap<BatchId, Instant>;

/// The time of the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextLook {
    /// There may be more batches, and some were counted. What other sessions lock, or what cannot be counted, must not
    /// be looked for without a pause.
    AtOnce,
    /// After a rest, because a batch was left to another session, which may not have seen the last change of it.
    Soon,
    /// When something has changed.
    AfterChanges,
}

/// Count until the runner stops.
pub(super) async fn count_until_stopped(shared: Arc<EngineState>) {
    let mut summaries = shared.operator_settings.summaries();
    let mut set_aside = SetAside::new();
    let mut next = NextLook::AfterChanges;
    loop {
        tokio::select! {
            () = shared.stop_loops.cancelled() => break,
            () = shared.store.batches_changed() => {}
            () = std::future::ready(()), if next != NextLook::AfterChanges => {}
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
            next = NextLook::AfterChanges;
            continue;
        }
        let counted = count(&shared, &mut set_aside).await;
        next = *counted.as_ref().unwrap_or(&NextLook::AfterChanges);
        let pause = match counted {
            Ok(NextLook::AtOnce) => Duration::ZERO,
            Ok(NextLook::Soon | NextLook::AfterChanges) => REST,
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

/// Count the batches that one look finds.
async fn count(shared: &EngineState, set_aside: &mut SetAside) -> Result<NextLook, StoreError> {
    let (mut failed, mut any_counted, mut any_left) = (None, false, false);
    let ChangedBatches { batches: changed, more } =
        shared.store.changed_batches(set_aside.keys().copied().collect()).await?;
    let now = Instant::now();
    set_aside.retain(|batch, until| now < *until || changed.contains(batch));
    for batch in in_turn(changed, set_aside, rand::random()) {
        let rests_until = set_aside.get(&batch).copied();
        if rests_until.is_some_and(|until| Instant::now() < until) {
            continue;
        }
        // A batch that cannot be counted must not hold up those behind it. Without MySQL, none of them can be.
        match count_one(shared, batch, rests_until.is_some()).await {
            Ok(true) => {
                any_counted = true;
                set_aside.remove(&batch);
            }
            // Another runner may be counting it. The next look waits for the lock.
            Ok(false) if rests_until.is_none() => {
                any_left = true;
                set_aside.insert(batch, Instant::now());
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
    let next = if more && any_counted {
        NextLook::AtOnce
    } else if any_left {
        NextLook::Soon
    } else {
        NextLook::AfterChanges
    };
    failed.map_or(Ok(next), Err)
}

/// Return the batches in the order of their counts. `first` chooses the one to begin with: all runners find the same
/// ones, and share the work if each begins at another place. Each of those that are set aside may cost some seconds, so
/// they come last.
fn in_turn(changed: Vec<BatchId>, set_aside: &SetAside, first: u32) -> Vec<BatchId> {
    let (before, mut others): (Vec<BatchId>, Vec<BatchId>) =
        changed.into_iter().partition(|batch| set_aside.contains_key(batch));
    let place = (first as usize).checked_rem(others.len()).unwrap_or(0);
    others.rotate_left(place);
    others.extend(before);
    others
}

/// Add up all that has changed in a batch. Returns false if another session locks it, or with `waits` keeps it locked.
async fn count_one(shared: &EngineState, batch: BatchId, waits: bool) -> Result<bool, StoreError> {
    while !shared.stop_loops.is_cancelled() {
        let Some(counted) = shared.broker.count_batch(batch, waits).await? else { return Ok(false) };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_to_begin_at_counts_every_batch_once_and_locked_ones_last() {
        let changed: Vec<BatchId> = (0..5).map(|_| BatchId::new()).collect();
        let set_aside = SetAside::from([(changed[1], Instant::now())]);
        let others = [changed[0], changed[2], changed[3], changed[4]];
        for first in 0..9 {
            let turns = in_turn(changed.clone(), &set_aside, first);
            assert_eq!(turns[0], others[first as usize % 4], "the first one of {first}");
            assert_eq!(turns[4], changed[1], "the locked one");
            let all = |batches: &[BatchId]| batches.iter().copied().collect::<std::collections::BTreeSet<_>>();
            assert_eq!((turns.len(), all(&turns)), (5, all(&changed)));
        }
        assert_eq!(in_turn(vec![changed[1]], &set_aside, 7), [changed[1]]);
        assert!(in_turn(Vec::new(), &set_aside, 7).is_empty());
    }
}
