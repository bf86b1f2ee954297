//! Ends jobs that did not start before their expiry.
//!
//! The claim decides by the clock of the database that such a job does not start. This loop only writes the end, so it
//! may come a moment later. The summary of changes says when there is something to do: a look costs nothing more.

use super::EngineState;
use tickr_event::Event;
use tickr_job::{State, Verdict};
use tickr_store::ExpiredJobs;

/// End expired jobs after each summary of changes that shows some, about once a second.
pub(super) async fn end_until_stopped(shared: &EngineState) {
    let mut summaries = shared.operator_settings.summaries();
    loop {
        tokio::select! {
            () = shared.stop_loops.cancelled() => break,
            changed = summaries.changed() => if changed.is_err() {
                return;
            },
        }
        let some = summaries.borrow_and_update().as_ref().is_some_and(|summary| summary.expired);
        while some && !shared.stop_loops.is_cancelled() && !shared.store_trouble.is_known() {
            match shared.store.end_expired(&shared.runner).await {
                Ok(expired) => {
                    let more = expired.more;
                    tell(shared, expired);
                    if !more {
                        break;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot end expired jobs yet");
                    break;
                }
            }
        }
    }
}

fn tell(shared: &EngineState, expired: ExpiredJobs) {
    if !expired.ended.is_empty() {
        tracing::info!(jobs = expired.ended.len(), "jobs expired before they started");
    }
    for job in expired.ended {
        shared.attempt_metrics.record_ended(&job.kind, Verdict::Expired);
        shared.broker.meters().record_settled(Some(&job.queue), Verdict::Expired, State::Failed);
        let (verdict, state) = (Verdict::Expired, State::Failed);
        shared.broker.events().emit(Event::Settled { id: job.id, verdict, state });
    }
    shared.start_or_hint(expired.released);
}
