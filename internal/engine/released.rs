//! Starts jobs that are not held any more, because a job of this runner in front of them has ended.
//!
//! The way through Redis would cost the next job of an order key a round trip, and its jobs follow each other. So if a
//! seat is free, this runner starts the job itself. A seat is free only while no fetched job waits for one, so nothing is
//! overtaken. In a limited queue jobs may wait for a permit though a seat is free. There, and in every other case, the
//! index gets a hint as usual.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::sync::mpsc::UnboundedReceiver;

use super::EngineState;
use super::fetcher::FetchedJob;
use super::queue_order::is_paused;
use tickr_event::Event;
use tickr_job::Name;
use tickr_store::DueJob;

/// Start or hint the jobs that come, until the runner stops. The lock is for a loop that starts again after a panic.
pub(super) async fn start_until_stopped(
    shared: Arc<EngineState>,
    released: Arc<Mutex<UnboundedReceiver<DueJob>>>,
    start: impl Fn(FetchedJob),
) {
    let mut released = released.lock().await;
    loop {
        let job = tokio::select! {
            biased;
            () = shared.stop_fetching.cancelled() => break,
            job = released.recv() => job,
        };
        let Some(job) = job else { return };
        if let Some(fetched) = take(&shared, &job) {
            shared.broker.events().emit(Event::Rescheduled { id: job.id });
            start(fetched);
        } else {
            shared.broker.hint_released(&job);
        }
    }
    released.close();
    while let Some(job) = released.recv().await {
        shared.broker.hint_released(&job);
    }
}

/// Take what the start of this job needs. Return nothing if the job cannot start here at once.
fn take(shared: &EngineState, job: &DueJob) -> Option<FetchedJob> {
    let queue = shared.settings.queues.iter().position(|queue| *queue == job.queue)?;
    let is_due = job.execute_at <= shared.store.clock().now();
    let has_kind = shared.registry.runnable(job.kind.as_str()).is_some();
    if !is_due || !has_kind || shared.permits.are_scarce(queue) || !may_start(shared, &job.queue) {
        return None;
    }
    let seat = shared.workers.another_seat()?;
    let permit = shared.permits.take(queue)?;
    Some(FetchedJob { id: job.id, seat, permit })
}

/// Return whether this runner may start a job of this queue now, as far as its operator and its servers are concerned.
pub(super) fn may_start(shared: &EngineState, queue: &Name) -> bool {
    let settings = shared.operator_settings.now();
    !settings.drained
        && !is_paused(&settings, queue)
        && !shared.stop_fetching.is_cancelled()
        && shared.heartbeats.is_beating(shared.settings.lease)
        && !shared.store_trouble.is_known()
}
