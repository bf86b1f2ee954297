//! The ward: where suspects run alone.
//!
//! A job whose last runner died under it may be what killed it. It runs with the whole runner to itself, so that its next
//! crash takes no neighbour along. Whoever is still alive after the probation gets company again, but only of jobs that
//! are not suspects: so a crash costs each innocent job one attempt at most, however often its culprit is tried.
//!
//! One suspect at a time. The ward asks for every slot of the runner at once. The semaphore is fair, so nothing new is
//! fetched meanwhile, and what runs holds the ward up for its patience at most: then the suspect goes back to the index
//! for a moment, where another runner may be quicker. A suspect that has been put off for long enough goes ahead beside
//! whatever runs, rather than starve. The ward never waits for a slot while it holds one, and a worker gives its slot
//! up when it hands a suspect over: neither can wait for the other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use super::service::is_paused;
use super::{Shared, executor, worker};
use crate::job::JobId;
use crate::store::{Claim, Claimant, DueJob};

/// Most suspects that wait here; others wait in the index.
const MOST_WAITING: usize = 16;
/// Most suspects remembered, so that a flood of them costs no memory.
const MOST_KNOWN: usize = 4_096;
/// How long the runner's other jobs get to end before a suspect is put off.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a suspect is alone. What crashes later takes along only jobs that have lost no attempt yet.
const PROBATION: Duration = Duration::from_secs(5);
/// How long an emptied runner serves one suspect after the other, before others get a turn.
const LONGEST_TURN: Duration = Duration::from_secs(5);
/// How long a suspect is put off when there is no room for it, at the least; and up to twice that.
const PUT_OFF: Duration = Duration::from_secs(2);
/// How long the runner is left alone after others outlasted the patience, at the least; and up to twice that.
const RESPITE: Duration = Duration::from_secs(6);
/// A suspect that has been put off for this many leases goes ahead beside jobs that are not suspects, and after the larger
/// number beside suspects too.
const MOST_LEASES: u32 = 2;
const MOST_LEASES_FOR_SUSPECTS: u32 = 10;
/// Suspects that nobody has brought again for this long are forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10 * 60);

/// The entrance to the ward, and what it remembers of suspects.
pub(super) struct Ward {
    entrance: mpsc::Sender<DueJob>,
    known: Mutex<HashMap<JobId, Known>>,
}

#[derive(Clone, Copy)]
struct Known {
    /// When this runner saw it first.
    since: Instant,
    /// When it is offered again; absent while it waits here.
    rests_until: Option<Instant>,
}

impl Ward {
    /// A ward, and the way in which [`watch_until_stopped`] hears of arrivals.
    pub(super) fn new() -> (Self, mpsc::Receiver<DueJob>) {
        let (entrance, arrivals) = mpsc::channel(MOST_WAITING);
        (Self { entrance, known: Mutex::default() }, arrivals)
    }

    /// Take a suspect in, or put it off when the ward is full or closed.
    pub(super) fn admit(&self, shared: &Shared, job: DueJob) {
        {
            let mut known = self.lock();
            if known.len() >= MOST_KNOWN {
                known.retain(|_, suspect| suspect.since.elapsed() < FORGOTTEN_AFTER);
            }
            let room = known.len() < MOST_KNOWN;
            match known.get_mut(&job.id) {
                // It waits here already; the index delivered it twice.
                Some(Known { rests_until: None, .. }) => return,
                Some(suspect) => suspect.rests_until = None,
                None if room => {
                    known.insert(job.id, Known { since: Instant::now(), rests_until: None });
                }
                None => {}
            }
        }
        if let Err(refused) = self.entrance.try_send(job) {
            self.put_off(shared, refused.into_inner(), jittered(PUT_OFF));
        }
    }

    /// Does it wait or rest here? Then there is no point in claiming it.
    pub(super) fn keeps(&self, id: JobId) -> bool {
        let known = self.lock();
        known.get(&id).is_some_and(|suspect| suspect.rests_until.is_none_or(|until| Instant::now() < until))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Back to the index for a while. In the store it stays due, for whoever has room for it.
    fn put_off(&self, shared: &Shared, mut job: DueJob, pause: Duration) {
        if let Some(suspect) = self.lock().get_mut(&job.id) {
            suspect.rests_until = Some(Instant::now() + pause);
        }
        job.execute_at = shared.store.clock().now() + TimeDelta::from_std(pause).unwrap_or_default();
        shared.broker.hint_due(&job);
    }

    fn waited(&self, id: JobId) -> Duration {
        self.lock().get(&id).map(|suspect| suspect.since.elapsed()).unwrap_or_default()
    }

    fn forget(&self, id: JobId) {
        self.lock().remove(&id);
    }
}

/// Run what the ward takes in, one at a time, until the runner fetches nothing more; then give back what still waits.
pub(super) async fn watch_until_stopped(
    shared: Arc<Shared>,
    claimant: Claimant,
    slots: Arc<Semaphore>,
    tasks: TaskTracker,
    mut arrivals: mpsc::Receiver<DueJob>,
) {
    let ward = &shared.ward;
    let mut crowded_until = Instant::now();
    let mut running: Vec<JoinHandle<()>> = Vec::new();
    loop {
        let job = tokio::select! {
            biased;
            () = shared.stop_fetching.cancelled() => break,
            job = arrivals.recv() => job,
        };
        let Some(job) = job else { break };
        running.retain(|run| !run.is_finished());
        if Instant::now() >= crowded_until {
            if let Some(mut held) = empty_runner(&shared, &slots).await {
                let turn = Instant::now();
                let mut next = Some(job);
                while let Some(job) = next.take() {
                    run(&shared, &claimant, &tasks, job, &mut held, &mut running).await;
                    let alone = held.num_permits() == shared.settings.workers;
                    if alone && turn.elapsed() < LONGEST_TURN && !shared.stop_fetching.is_cancelled() {
                        next = arrivals.try_recv().ok();
                    }
                }
                continue;
            }
            crowded_until = Instant::now() + jittered(RESPITE);
        }
        let most = if running.is_empty() { MOST_LEASES } else { MOST_LEASES_FOR_SUSPECTS };
        if ward.waited(job.id) < shared.settings.lease * most {
            ward.put_off(&shared, job, jittered(PUT_OFF));
        } else if let Some(mut held) = whatever_is_free(&shared, &slots).await {
            tracing::warn!(job = %job.id, "a suspect has waited long enough and starts beside others");
            run(&shared, &claimant, &tasks, job, &mut held, &mut running).await;
        } else {
            ward.put_off(&shared, job, Duration::ZERO);
        }
    }
    arrivals.close();
    while let Some(job) = arrivals.recv().await {
        ward.put_off(&shared, job, Duration::ZERO);
    }
}

/// Every slot of the runner, unless others outlast the patience or the runner stops.
async fn empty_runner(shared: &Shared, slots: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    let all = u32::try_from(shared.settings.workers).unwrap_or(u32::MAX);
    tokio::select! {
        biased;
        () = shared.stop_fetching.cancelled() => None,
        held = tokio::time::timeout(PATIENCE, Arc::clone(slots).acquire_many_owned(all)) => held.ok()?.ok(),
    }
}

/// The next slot, and all that are free with it, so that nobody new joins.
async fn whatever_is_free(shared: &Shared, slots: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    let mut held = tokio::select! {
        biased;
        () = shared.stop_fetching.cancelled() => return None,
        slot = Arc::clone(slots).acquire_owned() => slot.ok()?,
    };
    while let Ok(slot) = Arc::clone(slots).try_acquire_owned() {
        held.merge(slot);
    }
    Some(held)
}

/// Claim a suspect and execute it. Returns when it has ended, and all slots are in `held` again; or when it is past its
/// probation, and keeps a slot of its own.
async fn run(
    shared: &Arc<Shared>,
    claimant: &Claimant,
    tasks: &TaskTracker,
    job: DueJob,
    held: &mut OwnedSemaphorePermit,
    running: &mut Vec<JoinHandle<()>>,
) {
    // A suspect keeps to what is set about its queue and its runner, like any other job.
    let settings = shared.controls.now();
    let unwanted = settings.drained || is_paused(&settings, &job.queue);
    let Some(permit) = shared.permits.take_of(&job.queue).filter(|_| !unwanted) else {
        return shared.ward.put_off(shared, job, jittered(PUT_OFF));
    };
    let asked = Instant::now();
    let claim = claimant.claim_suspect(job.id).await;
    shared.ward.forget(job.id);
    let claimed = match claim {
        Ok(Claim::Won(claimed)) => *claimed,
        other => return worker::take_up(shared, job.id, other, asked).await,
    };
    tracing::info!(job = %claimed.id, kind = %claimed.kind, number = claimed.number, "its last runner died under it: runs alone");
    metrics::counter!("tickr_suspects_total").increment(1);
    let mut executing = tasks.spawn({
        let shared = Arc::clone(shared);
        async move {
            executor::execute(&shared, claimed, asked).await;
            drop(permit);
        }
    });
    tokio::select! {
        _ = &mut executing => return,
        () = tokio::time::sleep(PROBATION) => {}
        () = shared.stop_fetching.cancelled() => {}
    }
    let own = held.split(1);
    running.push(tasks.spawn(async move {
        let _ = executing.await;
        drop(own);
    }));
}

fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(1.0 + rand::random::<f64>())
}
