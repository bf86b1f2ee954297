//! Moves jobs from the outbox, where other programs requested them with a plain INSERT.
//!
//! While nothing is inserted, the summary of changes says when there is a row. The runner that sees it first becomes the
//! leader: it looks about ten times a second while rows come, twice a second when none has come for ten seconds, and leads no
//! longer when none has come for ten minutes. If the leader dies, another runner follows when its lease is over. A process
//! that is nudged through the API moves the rows at once, leader or not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::EngineState;
use tickr_store::StoreError;

/// Time between two looks of the leader while rows come.
const LOOK_EVERY: Duration = Duration::from_millis(104);
/// Time between two looks of the leader when nothing was inserted for [`BUSY_FOR`]. An idle runner with an outbox of an
/// application must stay below ten statements a second.
const LOOK_RARELY: Duration = Duration::from_millis(500);
/// Time after the last row for which the leader looks often.
const BUSY_FOR: Duration = Duration::from_secs(10);
/// A look that takes long is not repeated before this many times its duration.
const REST: u32 = 5;
/// Lease of the leader.
const LEASE: Duration = Duration::from_secs(5);
/// Time between two renewals of the lease.
const RENEW_EVERY: Duration = Duration::from_secs(2);
/// Time for which the leader goes on looking when nothing is inserted.
const LEADS_FOR: Duration = Duration::from_secs(600);
/// Pause after an error.
const PAUSE: Duration = Duration::from_millis(500);

/// Move rows until the runner stops.
pub(super) async fn move_until_stopped(shared: Arc<EngineState>) {
    let mut summaries = shared.operator_settings.summaries();
    let mut led: Option<Led> = None;
    // The last look has left rows for want of time.
    let mut unfinished = false;
    loop {
        // A leader looks by itself. Every runner looks when it is nudged or when a summary shows rows.
        let next_look = led.as_ref().map(Led::next_look);
        let nudged = tokio::select! {
            () = shared.stop_loops.cancelled() => break,
            () = shared.broker.outbox_nudged() => true,
            () = std::future::ready(()), if unfinished => true,
            () = async {
                match next_look {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            } => false,
            changed = summaries.changed() => {
                if changed.is_err() {
                    break;
                }
                if !summaries.borrow_and_update().as_ref().is_some_and(|summary| summary.outbox_waits) {
                    continue;
                }
                if led.is_none() {
                    led = lead(&shared).await;
                }
                true
            }
        };
        if shared.store_trouble.is_known() {
            (led, unfinished) = (None, false);
            continue;
        }
        if let Some(leads) = &led
            && leads.renewed.elapsed() >= RENEW_EVERY
        {
            let last_row = leads.last_row;
            led = lead(&shared).await.map(|new| Led { last_row, ..new });
        }
        let began = Instant::now();
        match look(&shared, nudged).await {
            Ok(looked) => {
                unfinished = looked.unfinished;
                if let Some(leads) = &mut led {
                    leads.looked(looked.found, began.elapsed());
                }
            }
            Err(error) => {
                unfinished = false;
                tracing::debug!(%error, "cannot move rows of the outbox yet");
                tokio::select! {
                    () = shared.stop_loops.cancelled() => break,
                    () = tokio::time::sleep(PAUSE) => {}
                }
            }
        }
        if led.as_ref().is_some_and(|leads| leads.last_row.elapsed() > LEADS_FOR) {
            led = None;
            leave(&shared).await;
        }
    }
    if led.is_some() {
        leave(&shared).await;
    }
}

/// The state of a leader.
struct Led {
    renewed: Instant,
    last_row: Instant,
    next_look: Instant,
}

impl Led {
    fn next_look(&self) -> Instant {
        self.next_look
    }

    fn looked(&mut self, found: bool, took: Duration) {
        let now = Instant::now();
        if found {
            self.last_row = now;
        }
        let every = if self.last_row.elapsed() < BUSY_FOR { LOOK_EVERY } else { LOOK_RARELY };
        // Deleted rows that the server has not purged yet make a look slow. Then it must not become a load.
        self.next_look = now + every.max(took * REST).min(Duration::from_secs(1)).saturating_sub(took.min(every));
    }
}

/// Become or stay the leader. Nothing if another runner is, or if MySQL does not answer.
async fn lead(shared: &EngineState) -> Option<Led> {
    let now = Instant::now();
    match shared.store.lead_outbox(&shared.runner, LEASE).await {
        Ok(true) => Some(Led { renewed: now, last_row: now, next_look: now }),
        Ok(false) => None,
        Err(error) => {
            tracing::debug!(%error, "cannot lead the outbox");
            None
        }
    }
}

async fn leave(shared: &EngineState) {
    if let Err(error) = shared.store.leave_outbox(&shared.runner).await {
        tracing::debug!(%error, "cannot leave the outbox, the lease ends by itself");
    }
}

/// What a look at the outbox has met.
#[derive(Clone, Copy, Default)]
struct Looked {
    /// There were rows.
    found: bool,
    /// Some of them stay for want of time. The next look follows at once.
    unfinished: bool,
}

/// Move the rows that are there, page by page. The rows of a page that are moved one by one have a bounded time, so
/// that those of the next pages need not wait for all of them. `expects` says that there probably are rows.
async fn look(shared: &EngineState, expects: bool) -> Result<Looked, StoreError> {
    let mut looked = Looked::default();
    if !expects && !shared.store.outbox_has_rows().await? {
        return Ok(looked);
    }
    let mut after = None;
    loop {
        let pass = shared.broker.move_outbox(after).await?;
        looked.found |= pass.moved > 0 || !pass.rejected.is_empty();
        looked.unfinished |= pass.unfinished;
        after = pass.next;
        if after.is_none() || shared.stop_loops.is_cancelled() {
            return Ok(looked);
        }
    }
}
