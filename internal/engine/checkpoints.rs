//! Saves the checkpoints of attempts that run, and reads the one with which an attempt begins.
//!
//! A handler overwrites its checkpoint in memory. This loop writes the newest ones together, a few times a second at
//! most, fenced by the tokens of their attempts. The settlement of an attempt saves the last one with the verdict, and an
//! attempt that is left to another system is left with it. So only the death of the runner can lose one, and then the last
//! fraction of a second.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::EngineState;
use super::live::StopSwitch;
use tickr_handlers::CheckpointSlot;
use tickr_job::Checkpoint;
use tickr_store::Claimed;
use tickr_telemetry::LinePace;

/// Time between the beginnings of two passes.
const SPACING: Duration = Duration::from_millis(250);
/// Pause after an error.
const PAUSE: Duration = Duration::from_millis(500);
/// Checkpoints that one transaction saves at most.
const PAGE: usize = 64;
/// Bytes of checkpoints that one transaction saves at most, but one checkpoint at least.
const PAGE_BYTES: usize = 1 << 20;

/// Save checkpoints until the runner stops.
pub(super) async fn save_until_stopped(shared: &EngineState) {
    let (stop, mut lines) = (&shared.stop_loops, LinePace::new());
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = shared.save_checkpoints.notified() => {}
        }
        let began = Instant::now();
        let pause = match save(shared, &mut lines).await {
            Pass::Done => SPACING.saturating_sub(began.elapsed()),
            Pass::Unfinished => {
                shared.save_checkpoints.notify_one();
                PAUSE
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// End of a pass.
enum Pass {
    /// Every checkpoint is saved whose attempt still holds its job.
    Done,
    /// Some are not saved yet.
    Unfinished,
}

/// Return the newest checkpoint of an attempt that its runner leaves, if it is not in the store yet. No pass begins with it
/// any more. A pass that has begun may still write an older one, and the token does not keep that from coming last, because
/// the attempt stays open: so wait for the end of the pass.
pub(super) async fn unsaved_after_pass(shared: &EngineState, checkpoint: &CheckpointSlot) -> Option<Arc<str>> {
    checkpoint.unsaved()?;
    tokio::select! {
        _pass = shared.saving.lock() => {}
        () = shared.give_up.cancelled() => {}
    }
    checkpoint.unsaved().map(|newest| newest.content)
}

async fn save(shared: &EngineState, lines: &mut LinePace) -> Pass {
    let _pass = shared.saving.lock().await;
    let mut unsaved = shared.live.unsaved_checkpoints().into_iter().peekable();
    let mut outcome = Pass::Done;
    while unsaved.peek().is_some() {
        if shared.store_trouble.is_known() {
            return Pass::Unfinished;
        }
        let (mut page, mut bytes) = (Vec::new(), 0);
        while let Some(new) =
            unsaved.next_if(|new| page.is_empty() || page.len() < PAGE && bytes + new.content.len() <= PAGE_BYTES)
        {
            bytes += new.content.len();
            page.push(new);
        }
        let asked = page.len();
        match shared.store.save_checkpoints(page).await {
            Ok(saved) => {
                lines.end();
                shared.live.record_saved(&saved);
                // The row is locked, or the lease is lost: then the heartbeat stops the attempt.
                if saved.len() < asked {
                    outcome = Pass::Unfinished;
                }
            }
            Err(error) => {
                if let Some(left_out) = lines.next_line() {
                    tracing::warn!(%error, left_out, "cannot save checkpoints yet");
                }
                return Pass::Unfinished;
            }
        }
    }
    outcome
}

/// Read the checkpoint with which the attempt begins, however long MySQL takes: without it the handler would begin from
/// the start. Returns nothing if the attempt is told to stop first.
pub(super) async fn read(shared: &EngineState, claimed: &Claimed, stop: &StopSwitch) -> Option<Checkpoint> {
    if !claimed.has_checkpoint() {
        return None;
    }
    let mut lines = LinePace::new();
    loop {
        let read = tokio::select! {
            read = shared.store.checkpoint(claimed.id) => read,
            () = stop.token().cancelled() => return None,
        };
        match read {
            Ok(checkpoint) => return checkpoint,
            Err(error) if error.is_transient() => {
                if lines.next_line().is_some() {
                    tracing::warn!(%error, "cannot read the checkpoint of a job yet");
                }
            }
            Err(error) => {
                tracing::error!(%error, "cannot read the checkpoint of a job, beginning from the start");
                return None;
            }
        }
        tokio::select! {
            () = stop.token().cancelled() => return None,
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}
