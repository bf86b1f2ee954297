//! A worker: one of the runner's fixed slots. Takes a due id, claims it, has it executed, takes the next.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use futures_util::FutureExt;
use tokio::sync::{Mutex, mpsc};

use super::fetcher::Ticket;
use super::permits::Permit;
use super::reaper::announce;
use super::{Shared, executor, suspects};
use crate::job::{JobId, Verdict};
use crate::store::{Claim, Claimant, Claimed, StoreError};

/// How long the index forgets a job that this runner has no handler for, before it is offered again: when no runner has
/// one, and when another has, which must then only win the race for it.
const NOBODYS_KIND_PAUSE: TimeDelta = TimeDelta::seconds(5);
const OTHERS_KIND_PAUSE_MS: i64 = 100;

/// How long the index keeps a job that it delivered too early, at the least.
const NOT_DUE_PAUSE: TimeDelta = TimeDelta::milliseconds(3);

pub(super) async fn work_until_closed(
    shared: Arc<Shared>,
    claimant: Claimant,
    queue: Arc<Mutex<mpsc::Receiver<Ticket>>>,
) {
    loop {
        // The guard is dropped at the end of the statement: one worker waits on the channel, the others on the lock.
        let ticket = queue.lock().await.recv().await;
        let Some(Ticket { id, slot, permit }) = ticket else { return };
        // Code of kinds cannot panic here; ours should not. If it does, it costs this job an attempt, and not the runner a
        // worker: the lease of an attempt without its code ends, and is searched for.
        if AssertUnwindSafe(work(&shared, &claimant, id, &permit)).catch_unwind().await.is_err() {
            tracing::error!(job = %id, "a worker panicked and goes on with the next job");
            metrics::counter!("tickr_loop_panics_total", "loop" => "worker").increment(1);
            shared.store_failed();
        }
        drop((slot, permit));
    }
}

/// Claim a job that was popped, and do what the answer says.
async fn work(shared: &Shared, claimant: &Claimant, id: JobId, permit: &Permit) {
    if shared.unread.puts_off(shared, id).await {
        return;
    }
    // The lease runs from some moment after this one.
    let asked = Instant::now();
    let claim = claimant.claim(id).await;
    shared.gauges.claimed(asked.elapsed());
    permit.claimed(matches!(claim, Ok(Claim::Won(_) | Claim::Suspect(_))), matches!(claim, Ok(Claim::Gone)));
    match claim {
        Ok(Claim::Won(claimed)) if !permit.is_good() => stand_back(shared, &claimed).await,
        claim => take_up(shared, claimant, id, claim, (asked, permit)).await,
    }
    if shared.unread.rests(id) {
        permit.found_nothing_to_run();
    }
}

/// This runner stood still after it had taken the permit for this job, and another may run one on it by now: give the job
/// back. Should that fail, the lease ends and the attempt is lost.
async fn stand_back(shared: &Shared, claimed: &Claimed) {
    tracing::warn!(job = %claimed.id, queue = %claimed.queue, "the permit may be gone, giving the job back");
    let why = "the runner stood still before it could start the job";
    match shared.store.give_back(claimed.token, vec![claimed.id], why).await {
        Ok(given) => given.iter().for_each(|given| announce(shared, given, Verdict::Interrupted)),
        Err(error) => tracing::warn!(job = %claimed.id, %error, "cannot give a job back"),
    }
}

/// Do what the answer to a claim, asked for after the moment `asked`, says.
async fn take_up(
    shared: &Shared,
    claimant: &Claimant,
    id: JobId,
    claim: Result<Claim, StoreError>,
    (asked, permit): (Instant, &Permit),
) {
    match claim {
        Ok(Claim::Won(claimed)) => executor::execute(shared, *claimed, asked).await,
        Ok(Claim::Unreadable(unreadable)) => executor::refuse(shared, *unreadable).await,
        Ok(Claim::NotDue(mut job)) => {
            // A little later than it is due, should our idea of the store's clock be ahead: no ping-pong.
            job.execute_at = job.execute_at.max(shared.store.clock().now() + NOT_DUE_PAUSE);
            shared.broker.hint_due(&job);
        }
        Ok(Claim::OtherKind(mut job)) => {
            // Only the index is told of the later time; in the store the job stays due for whoever knows its kind.
            let pause = if shared.runs_elsewhere(&job.kind) {
                TimeDelta::milliseconds(OTHERS_KIND_PAUSE_MS / 2 + rand::random_range(0..OTHERS_KIND_PAUSE_MS))
            } else {
                NOBODYS_KIND_PAUSE
            };
            job.execute_at = shared.store.clock().now() + pause;
            shared.broker.hint_due(&job);
        }
        Ok(Claim::Suspect(job)) => Box::pin(suspects::take_in(shared, claimant, job, permit)).await,
        Ok(Claim::Gone) => metrics::counter!("tickr_claims_dropped_total").increment(1),
        Err(error) => {
            tracing::warn!(job = %id, %error, "cannot claim");
            shared.store_failed();
            // The id is gone from the index. Either the job still waits in the store, and the reconciler brings it
            // back, or the claim was committed and its answer lost, and the reaper gives that attempt back.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
