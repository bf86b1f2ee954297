//! The task of one job: it claims the job and has it executed. [`worker_pool`](super::worker_pool) says what it holds
//! meanwhile.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use futures_util::FutureExt;

use super::fetcher::FetchedJob;
use super::permits::Permit;
use super::worker_pool::{PATIENCE, Seat, Worker};
use super::{EngineState, executor, suspects};
use tickr_job::JobId;
use tickr_store::{Claim, Claimant, StoreError};

/// Time for which the index hides a job whose kind has no handler in this runner, before it is offered again. The long
/// one holds when no living runner of its queue has a handler. The short one holds when another one has; that runner
/// then only has to take the id before this one does.
const NOBODYS_KIND_PAUSE: TimeDelta = TimeDelta::seconds(5);
const OTHERS_KIND_PAUSE_MS: i64 = 100;

/// Shortest time for which the index keeps a job that it delivered too early.
const NOT_DUE_PAUSE: TimeDelta = TimeDelta::milliseconds(3);

/// The seat, the worker and the permit with which a job was fetched.
pub(super) struct HeldSeat<'a> {
    /// Free again when the handler has returned.
    pub(super) seat: Seat,
    /// The worker, if it was taken before the claim.
    pub(super) worker: Option<Worker<'a>>,
    /// Without it, the handler does not start.
    pub(super) permit: &'a Permit,
    /// Claims the next job of an order key or a limit key.
    pub(super) claimant: &'a Claimant,
    /// When the job was fetched with whose permit this one runs.
    pub(super) since: Instant,
}

/// The next job of an order key or a limit key, which was claimed when a job in front of it ended. It runs on the same
/// permit.
pub(super) struct Successor {
    pub(super) claim: Claim,
    /// A moment before the claim was sent.
    pub(super) asked: Instant,
    pub(super) seat: Seat,
}

/// Claim a job and act on the result of the claim.
pub(super) async fn work(shared: Arc<EngineState>, claimant: Arc<Claimant>, job: FetchedJob) {
    let FetchedJob { id, seat, permit } = job;
    let work = std::pin::pin!(claim(&shared, &claimant, id, seat, &permit));
    if panics(id, work).await {
        shared.store_failed();
    }
}

/// Run the work on a job. Return whether it panicked.
///
/// A panic of a handler does not come here, and this code should not panic. If it does, the job loses an attempt, but
/// the runner does not lose a worker: the lease of the attempt is no longer renewed, and the reaper ends the attempt.
async fn panics(id: JobId, work: impl Future<Output = ()>) -> bool {
    let panicked = AssertUnwindSafe(work).catch_unwind().await.is_err();
    if panicked {
        tracing::error!(job = %id, "a worker panicked, it continues with the next job");
        metrics::counter!("tickr_loop_panics_total", "loop" => "worker").increment(1);
    }
    panicked
}

/// Claim a job that was popped, and act on the result of the claim.
async fn claim(shared: &EngineState, claimant: &Claimant, id: JobId, seat: Seat, permit: &Permit) {
    if shared.unread.postpone(shared, id).await {
        return;
    }
    // The lease starts at some moment after this one.
    let mut asked = Instant::now();
    let since = asked;
    let queue = permit.queue();
    let ahead = shared.workers.is_ahead();
    let mut claim = if ahead { claimant.claim_ahead(id, queue).await } else { claimant.claim(id, queue).await };
    let mut worker = None;
    if let Ok(Claim::LastAttempt(job)) = &claim {
        shared.workers.record_last_attempt();
        worker = tokio::select! {
            worker = shared.workers.worker() => Some(worker),
            () = shared.stop_fetching.cancelled() => None,
            () = tokio::time::sleep(PATIENCE) => None,
        };
        if worker.is_none() {
            shared.broker.hint_first(job.id, &job.queue, job.priority, job.execute_at);
            permit.mark_unused();
            return;
        }
        asked = Instant::now();
        claim = claimant.claim(id, queue).await;
    }
    let took = asked.elapsed();
    if let Ok(Claim::Won(claimed)) = &claim {
        shared.broker.note_claimed(claimed);
    }
    shared.attempt_metrics.record_claimed(took);
    shared.workers.record_claim(took);
    permit.record_claim(matches!(claim, Ok(Claim::Won(_) | Claim::Suspect(_))), matches!(claim, Ok(Claim::Gone)));
    let held = HeldSeat { seat, worker, permit, claimant, since };
    let mut next = handle_claim(shared, claimant, id, claim, (asked, held)).await;
    while let Some(Successor { claim, asked, seat }) = next {
        let held = HeldSeat { seat, worker: None, permit, claimant, since };
        next = match claim {
            Claim::Won(claimed) => executor::execute(shared, *claimed, asked, Some(held)).await,
            Claim::Unreadable(unreadable) => {
                executor::refuse(shared, *unreadable).await;
                None
            }
            _ => None,
        };
    }
    if shared.unread.is_resting(id) {
        permit.mark_unused();
    }
}

/// Act on the result of a claim. `asked` is a moment before the claim was sent. Return the job that follows it.
async fn handle_claim(
    shared: &EngineState,
    claimant: &Claimant,
    id: JobId,
    claim: Result<Claim, StoreError>,
    (asked, held): (Instant, HeldSeat<'_>),
) -> Option<Successor> {
    let permit = held.permit;
    match claim {
        Ok(Claim::Won(claimed)) => return executor::execute(shared, *claimed, asked, Some(held)).await,
        Ok(Claim::Unreadable(unreadable)) => executor::refuse(shared, *unreadable).await,
        Ok(Claim::NotDue(mut job)) => {
            // Offer it a little after it is due, in case this runner's estimate of MySQL's clock is ahead. Otherwise
            // the index would deliver it too early again.
            job.execute_at = job.execute_at.max(shared.store.clock().now() + NOT_DUE_PAUSE);
            shared.broker.hint_due(&job);
        }
        Ok(Claim::OtherKind(mut job)) => {
            // Only the index gets the later time. In MySQL the job stays due, for any runner that has its kind.
            let pause = if shared.is_served(&job.queue, &job.kind) {
                TimeDelta::milliseconds(OTHERS_KIND_PAUSE_MS / 2 + rand::random_range(0..OTHERS_KIND_PAUSE_MS))
            } else {
                NOBODYS_KIND_PAUSE
            };
            job.execute_at = shared.store.clock().now() + pause;
            shared.broker.hint_due(&job);
        }
        Ok(Claim::Suspect(job)) => Box::pin(suspects::run_or_put_off(shared, claimant, job, permit)).await,
        // A job that has a worker is claimed for its last attempt as well, so the claim does not return this.
        Ok(Claim::LastAttempt(job)) => shared.broker.hint_due(&job),
        // It comes back when its limit has room.
        Ok(Claim::Parked) => {}
        Ok(Claim::Gone) => metrics::counter!("tickr_claims_dropped_total").increment(1),
        Err(error) => {
            shared.claim_failed(id, &error);
            // The id is gone from the index. Either the job still waits in MySQL, and the reconciler puts it back; or
            // the claim was committed and its answer was lost, and the reaper gives the attempt back.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_in_the_work_on_a_job_ends_with_that_job() {
        assert!(!panics(JobId::new(), async {}).await);
        assert!(panics(JobId::new(), async { panic!("on purpose") }).await);
    }
}
