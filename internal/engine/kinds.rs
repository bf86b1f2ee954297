//! Follows the declared kinds whose receivers this runner calls. They come and go while the runner lives, unlike the kinds
//! of which it has a handler.
//!
//! After a change the runner claims with the new kinds and says so in its row. Jobs of a kind that is new here may have
//! been hidden from the index meanwhile, because no runner had their kind: the runner hints them again.

use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::mpsc::UnboundedSender;

use super::EngineState;
use tickr_job::{Name, Timestamp};
use tickr_store::{Claimant, Depth, DueCursor, DueJob, DueRange, StoreError};

/// Rows of a lane that are read for jobs of new kinds, and most of these that are hinted. The others come back to the
/// index by themselves. An id that the index has already is delivered twice, and its second claim drops it.
const PAGE: usize = 1_000;
const HINTED_AT_ONCE: usize = 100;

/// The entrance for the claims of this runner, with the kinds that it runs now.
pub(super) struct CurrentClaimant(RwLock<Arc<Claimant>>);

impl CurrentClaimant {
    pub(super) fn new(claimant: Claimant) -> Self {
        Self(RwLock::new(Arc::new(claimant)))
    }

    pub(super) fn now(&self) -> Arc<Claimant> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn replace(&self, claimant: Claimant) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(claimant);
    }
}

/// Follow the kinds until the runner stops. `claimed` are those with which the claimant was made.
pub(super) async fn follow_until_stopped(
    shared: &EngineState,
    claimant: &CurrentClaimant,
    let_go: UnboundedSender<DueJob>,
    mut claimed: Vec<Name>,
) {
    let mut settings = shared.operator_settings.listen();
    // The row was written with the kinds of the program, and with those that were declared by then.
    let mut written = shared.registry.names();
    loop {
        let kinds = shared.registry.runnable_names();
        if kinds != claimed {
            let fresh = shared.store.claimant(shared.runner.clone(), kinds.clone(), shared.settings.lease);
            claimant.replace(fresh.sending_to(let_go.clone()));
            let new: Vec<Name> = kinds.iter().filter(|kind| !claimed.contains(kind)).cloned().collect();
            tracing::info!(kinds = kinds.len(), new = new.len(), "the kinds that this runner runs have changed");
            claimed.clone_from(&kinds);
            if shared.settings.workers > 0
                && !new.is_empty()
                && let Err(error) = hint_due_jobs(shared, shared.settings.queues.clone(), &new).await
            {
                tracing::warn!(%error, "cannot look for jobs of new kinds, they start a few seconds later");
            }
        }
        // Without workers the runner executes no kind. Without a row, the heartbeat registers the runner soon.
        if kinds != written && shared.settings.workers > 0 {
            match shared.store.write_kinds_of_runner(&shared.runner, &kinds).await {
                Ok(true) => written = kinds,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "cannot write the kinds of this runner yet"),
            }
        }
        tokio::select! {
            () = shared.stop_loops.cancelled() => return,
            changed = settings.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

/// Hint the due jobs of these kinds in these queues.
pub(super) async fn hint_due_jobs(shared: &EngineState, queues: Vec<Name>, kinds: &[Name]) -> Result<(), StoreError> {
    let until: Timestamp = shared.store.clock().now();
    let lanes = shared.store.lines_of(queues).await?;
    let ranges = lanes.into_iter().map(|line| DueRange { line, after: DueCursor::FRONT, until }).collect();
    for page in shared.store.due_rows(ranges, PAGE, Depth::Waiting).await? {
        let new = page.jobs().filter(|job| kinds.contains(&job.kind)).take(HINTED_AT_ONCE);
        new.for_each(|job| shared.broker.hint_due(&job));
    }
    Ok(())
}
