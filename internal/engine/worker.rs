//! A worker: one of the runner's fixed slots. It takes a due id, claims the job and has it executed.
//!
//! Each job has a task of its own, which holds a worker from before the id is taken until the handler has returned.
//! Then MySQL writes the verdict, and the worker takes its next job meanwhile. So the number of handlers that run at
//! once is never larger than the number of workers, and short jobs do not wait for the commits of those before them.
//! The number of verdicts on their way to MySQL is bounded as well ([`Workers::until_settling`]).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use futures_util::FutureExt;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use super::fetcher::FetchedJob;
use super::permits::Permit;
use super::reaper::announce;
use super::{EngineState, executor, suspects};
use tickr_job::{JobId, Verdict};
use tickr_store::{Claim, Claimant, Claimed, StoreError};

/// Time for which the index hides a job whose kind has no handler in this runner, before it is offered again. The long
/// one holds when no living runner has a handler. The short one holds when another runner has one; that runner then
/// only has to take the id before this one does.
const NOBODYS_KIND_PAUSE: TimeDelta = TimeDelta::seconds(5);
const OTHERS_KIND_PAUSE_MS: i64 = 100;

/// Shortest time for which the index keeps a job that it delivered too early.
const NOT_DUE_PAUSE: TimeDelta = TimeDelta::milliseconds(3);

/// Most verdicts of one worker, on average, that are on their way to MySQL. A runner that dies before they are written
/// runs these jobs again.
const SETTLING_PER_WORKER: usize = 4;
/// The same for a runner, unless it has more workers than that. Larger batches need prepared statements, and a server
/// whose room for these is taken must not stop a runner.
const MAX_SETTLING: usize = 64;

/// The workers of a runner.
pub(super) struct Workers {
    free: Arc<Semaphore>,
    settling: Semaphore,
    most_settling: usize,
}

/// One worker, busy with a job until it is dropped.
pub(super) type Worker = OwnedSemaphorePermit;

impl Workers {
    pub(super) fn new(workers: usize) -> Self {
        let most_settling = (workers * SETTLING_PER_WORKER).min(MAX_SETTLING.max(workers)).max(1);
        Self { free: Arc::new(Semaphore::new(workers)), settling: Semaphore::new(most_settling), most_settling }
    }

    /// Wait for a free worker.
    pub(super) async fn free(&self) -> Result<Worker, AcquireError> {
        Arc::clone(&self.free).acquire_owned().await
    }

    /// Return another free worker, if there is one.
    pub(super) fn another_free(&self) -> Option<Worker> {
        Arc::clone(&self.free).try_acquire_owned().ok()
    }

    /// Free the worker of an attempt whose handler has returned, as soon as there is room for one more verdict on its
    /// way to MySQL. The caller holds the room until the verdict is written.
    pub(super) async fn until_settling(&self, worker: Option<Worker>) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        let room = self.settling.acquire().await.ok();
        drop(worker);
        room
    }

    /// Return the number of verdicts on their way to MySQL.
    pub(super) fn settling(&self) -> usize {
        self.most_settling - self.settling.available_permits()
    }
}

/// Claim a job and act on the result of the claim.
pub(super) async fn work(shared: Arc<EngineState>, claimant: Claimant, job: FetchedJob) {
    let FetchedJob { id, worker, permit } = job;
    // A panic of a handler does not come here, and this code should not panic. If it does, the job loses an attempt, but
    // the runner does not lose a worker: the lease of the attempt is no longer renewed, and the reaper ends the attempt.
    if AssertUnwindSafe(claim(&shared, &claimant, id, worker, &permit)).catch_unwind().await.is_err() {
        tracing::error!(job = %id, "a worker panicked, it continues with the next job");
        metrics::counter!("tickr_loop_panics_total", "loop" => "worker").increment(1);
        shared.store_failed();
    }
}

/// Claim a job that was popped, and act on the result of the claim.
async fn claim(shared: &EngineState, claimant: &Claimant, id: JobId, worker: Worker, permit: &Permit) {
    if shared.unread.postpone(shared, id).await {
        return;
    }
    // The lease starts at some moment after this one.
    let asked = Instant::now();
    let claim = claimant.claim(id).await;
    shared.attempt_metrics.record_claimed(asked.elapsed());
    permit.record_claim(matches!(claim, Ok(Claim::Won(_) | Claim::Suspect(_))), matches!(claim, Ok(Claim::Gone)));
    match claim {
        Ok(Claim::Won(claimed)) if !permit.is_usable() => give_back(shared, &claimed).await,
        claim => handle_claim(shared, claimant, id, claim, (asked, worker, permit)).await,
    }
    if shared.unread.is_resting(id) {
        permit.mark_unused();
    }
}

/// Give the job back: the heartbeat had a gap after the permit for this job was taken, so another runner may run a job
/// on that permit by now. If this call fails, the lease ends and the attempt counts as lost.
async fn give_back(shared: &EngineState, claimed: &Claimed) {
    tracing::warn!(job = %claimed.id, queue = %claimed.queue, "the permit may be gone, giving the job back");
    let why = "the heartbeat of the runner had a gap before the job could start";
    match shared.store.give_back(claimed.token, vec![claimed.id], why).await {
        Ok(given) => given.iter().for_each(|given| announce(shared, given, Verdict::Interrupted)),
        Err(error) => tracing::warn!(job = %claimed.id, %error, "cannot give a job back"),
    }
}

/// Act on the result of a claim. `asked` is a moment before the claim was sent.
async fn handle_claim(
    shared: &EngineState,
    claimant: &Claimant,
    id: JobId,
    claim: Result<Claim, StoreError>,
    (asked, worker, permit): (Instant, Worker, &Permit),
) {
    match claim {
        Ok(Claim::Won(claimed)) => executor::execute(shared, *claimed, asked, Some(worker)).await,
        Ok(Claim::Unreadable(unreadable)) => executor::refuse(shared, *unreadable).await,
        Ok(Claim::NotDue(mut job)) => {
            // Offer it a little after it is due, in case this runner's estimate of MySQL's clock is ahead. Otherwise
            // the index would deliver it too early again.
            job.execute_at = job.execute_at.max(shared.store.clock().now() + NOT_DUE_PAUSE);
            shared.broker.hint_due(&job);
        }
        Ok(Claim::OtherKind(mut job)) => {
            // Only the index gets the later time. In MySQL the job stays due, for any runner that has its kind.
            let pause = if shared.runs_elsewhere(&job.kind) {
                TimeDelta::milliseconds(OTHERS_KIND_PAUSE_MS / 2 + rand::random_range(0..OTHERS_KIND_PAUSE_MS))
            } else {
                NOBODYS_KIND_PAUSE
            };
            job.execute_at = shared.store.clock().now() + pause;
            shared.broker.hint_due(&job);
        }
        Ok(Claim::Suspect(job)) => Box::pin(suspects::run_or_put_off(shared, claimant, job, permit)).await,
        Ok(Claim::Gone) => metrics::counter!("tickr_claims_dropped_total").increment(1),
        Err(error) => {
            tracing::warn!(job = %id, %error, "cannot claim a job");
            shared.store_failed();
            // The id is gone from the index. Either the job still waits in MySQL, and the reconciler puts it back; or
            // the claim was committed and its answer was lost, and the reaper gives the attempt back.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
