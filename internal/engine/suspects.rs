//! The quarantine: how this runner executes suspects, which are jobs that lost two attempts in a row because their
//! runners died.
//!
//! A suspect runs in a process of its own ([`child`](super::child)), beside the other jobs. So its crash ends no other
//! job, and its exit status says at once what happened. While it runs it keeps the worker and the permit with
//! which it was fetched, so `workers` and concurrency limits hold. Only a few suspects run at a time, so that ordinary
//! jobs always have the larger part of the workers. A suspect that finds no room goes back to the index for a moment,
//! without a claim.
//!
//! A program that embeds the library cannot start such a process, because tickr does not control its `main`. There a
//! suspect runs in the runner itself, one at a time.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::TimeDelta;

use super::child::ChildEnd;
use super::permits::Permit;
use super::worker_pool::PATIENCE;
use super::{EngineState, child, executor};
use tickr_job::JobId;
use tickr_store::{Claim, Claimant, DueJob};

/// Most processes for suspects at a time. They are also limited to half of the workers, rounded up.
const MAX_CHILDREN: usize = 8;
/// Shortest time for which a suspect is put off when there is no room for it. The longest is twice that.
const PUT_OFF: Duration = Duration::from_secs(2);
/// The same when many suspects are put off. Twice this time is less than the delay that the reconciler takes for a
/// wrong score.
const CROWDED_PUT_OFF: Duration = Duration::from_secs(4);
const CROWD: usize = 256;
/// Most put-off suspects that are remembered, which bounds the memory.
const MAX_KNOWN: usize = 4_096;
/// After this many processes in a row that ended by themselves without a report, tickr stops starting them. The program
/// may run under an interpreter or in a sandbox.
const MAX_MUTE: u32 = 3;
/// Longest rest of a runner with a single worker between two suspects.
const MAX_REST: Duration = Duration::from_secs(5);

/// The room for suspects, and the suspects that are put off.
pub(super) struct Suspects {
    most: usize,
    running: Mutex<HashSet<JobId>>,
    /// Suspects that are put off, each with the moment when that ends.
    resting: Mutex<HashMap<JobId, Instant>>,
    /// With a single worker: when the next suspect may start. Until then the worker is for ordinary jobs.
    closed_until: Mutex<Option<Instant>>,
    /// No processes can be started for suspects: they run in this one.
    no_children: AtomicBool,
    /// Number of processes in a row that ended by themselves without a report.
    mute: AtomicU32,
}

/// Room for one suspect. Dropping it frees the room.
struct SuspectSlot<'a> {
    suspects: &'a Suspects,
    id: JobId,
    since: Instant,
}

/// Result of a request for room.
enum Admission<'a> {
    /// There is room.
    Admitted(SuspectSlot<'a>),
    /// There is no room now.
    Full,
    /// The job runs here already: the index delivered it twice.
    AlreadyRunning,
}

impl Suspects {
    /// Create the room for suspects beside `workers`. Without processes of their own only one may run at a time.
    pub(super) fn new(workers: usize, in_children: bool) -> Self {
        // Show the metric from the start, with the value 0.
        metrics::gauge!("tickr_suspects_running").increment(0.0);
        let most = if in_children { workers.div_ceil(2).min(MAX_CHILDREN) } else { 1 };
        Self {
            most,
            running: Mutex::default(),
            resting: Mutex::default(),
            closed_until: Mutex::default(),
            no_children: AtomicBool::new(!in_children),
            mute: AtomicU32::new(0),
        }
    }

    /// Return whether the job runs here or is put off, so that there is no point in claiming it.
    pub(super) fn is_resting(&self, id: JobId) -> bool {
        lock(&self.running).contains(&id) || lock(&self.resting).get(&id).is_some_and(|until| Instant::now() < *until)
    }

    /// Return the number of suspects that run now.
    pub(super) fn running(&self) -> usize {
        lock(&self.running).len()
    }

    fn admit(&self, id: JobId, workers: usize) -> Admission<'_> {
        let most = if self.no_children.load(Ordering::Relaxed) { 1 } else { self.most };
        let closed = *lock(&self.closed_until);
        let mut running = lock(&self.running);
        if running.contains(&id) {
            return Admission::AlreadyRunning;
        }
        let rests = workers == 1 && closed.is_some_and(|until| Instant::now() < until);
        if rests || running.len() >= most {
            return Admission::Full;
        }
        running.insert(id);
        metrics::gauge!("tickr_suspects_running").increment(1.0);
        Admission::Admitted(SuspectSlot { suspects: self, id, since: Instant::now() })
    }

    /// Note that a suspect is put off. Return for how long.
    fn begin_rest(&self, id: JobId) -> Duration {
        let mut resting = lock(&self.resting);
        if resting.len() >= MAX_KNOWN {
            let now = Instant::now();
            resting.retain(|_, until| now < *until);
        }
        let least = if resting.len() < CROWD { PUT_OFF } else { CROWDED_PUT_OFF };
        let pause = least.mul_f64(1.0 + rand::random::<f64>());
        if resting.len() < MAX_KNOWN {
            resting.insert(id, Instant::now() + pause);
        }
        pause
    }
}

impl Drop for SuspectSlot<'_> {
    fn drop(&mut self) {
        // Rest for as long as the suspect ran, so that suspects take at most half of a single worker's time.
        let rest = self.since.elapsed().min(MAX_REST);
        *lock(&self.suspects.closed_until) = Some(Instant::now() + rest);
        lock(&self.suspects.running).remove(&self.id);
        metrics::gauge!("tickr_suspects_running").decrement(1.0);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Run a suspect with the slot and the permit that its worker holds, or put it off.
pub(super) async fn run_or_put_off(shared: &EngineState, claimant: &Claimant, job: DueJob, permit: &Permit) {
    // Drains and pauses hold for suspects as for any other job.
    let settings = shared.operator_settings.now();
    let unwanted = settings.drained || super::queue_order::is_paused(&settings, &job.queue);
    if shared.stop_fetching.is_cancelled() {
        // Another runner may take it at once.
        return shared.broker.hint_due(&job);
    }
    let place = if unwanted { Admission::Full } else { shared.suspects.admit(job.id, shared.settings.workers) };
    let _room = match place {
        Admission::Admitted(room) => room,
        Admission::Full => return put_off(shared, job),
        Admission::AlreadyRunning => return metrics::counter!("tickr_claims_dropped_total").increment(1),
    };
    lock(&shared.suspects.resting).remove(&job.id);
    metrics::counter!("tickr_suspects_total").increment(1);
    let program = shared.settings.child.as_ref().filter(|_| !shared.suspects.no_children.load(Ordering::Relaxed));
    let Some(program) = program else { return run_here(shared, claimant, job).await };
    // It runs elsewhere, but it counts as one of the handlers of this runner.
    let worker = tokio::time::timeout(PATIENCE, shared.workers.worker()).await;
    let Ok(worker) = worker else { return put_off(shared, job) };
    let ended = child::run(shared, program, &job, permit).await;
    drop(worker);
    if !matches!(ended, Ok(ChildEnd::Mute { .. })) {
        shared.suspects.mute.store(0, Ordering::Relaxed);
    }
    match ended {
        Ok(ChildEnd::Settled | ChildEnd::Dead) => {}
        Ok(ChildEnd::Gone) => metrics::counter!("tickr_claims_dropped_total").increment(1),
        Ok(ChildEnd::NotBegun { why }) => {
            if !shared.stop_fetching.is_cancelled() {
                tracing::warn!(job = %job.id, why, "the process for a suspect did not claim it, trying again later");
            }
            put_off(shared, job);
        }
        Ok(ChildEnd::Mute { why }) => {
            tracing::warn!(job = %job.id, why, "the process for a suspect ended without a report, trying again later");
            if shared.suspects.mute.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_MUTE {
                run_here_from_now_on(shared, &why);
            }
            put_off(shared, job);
        }
        Err(error) => {
            tracing::warn!(job = %job.id, %error, "cannot start a process for a suspect, trying again later");
            if child::is_for_good(&error) {
                run_here_from_now_on(shared, &error.to_string());
            }
            put_off(shared, job);
        }
    }
}

/// Run suspects in this runner from now on. A suspect that runs beside other jobs is better than one that never runs.
fn run_here_from_now_on(shared: &EngineState, why: &str) {
    tracing::error!(why, "cannot start processes for suspects: they run in this runner from now on, one at a time");
    shared.suspects.no_children.store(true, Ordering::Relaxed);
}

/// Run a suspect without a process of its own: beside ordinary jobs, but never beside another suspect of this runner.
async fn run_here(shared: &EngineState, claimant: &Claimant, job: DueJob) {
    let asked = Instant::now();
    match claimant.claim_suspect(job.id).await {
        Ok(Claim::Won(claimed)) => {
            tracing::info!(job = %claimed.id, kind = %claimed.kind, number = claimed.number, "running a suspect beside other jobs");
            executor::execute(shared, *claimed, asked, None).await;
        }
        // This claim accepts suspects and last attempts, so it returns neither.
        Ok(Claim::Suspect(job) | Claim::LastAttempt(job)) => put_off(shared, job),
        Ok(Claim::Unreadable(unreadable)) => executor::refuse(shared, *unreadable).await,
        Ok(Claim::NotDue(job) | Claim::OtherKind(job)) => shared.broker.hint_due(&job),
        Ok(Claim::Gone) => metrics::counter!("tickr_claims_dropped_total").increment(1),
        // It comes back when its limit has room.
        Ok(Claim::Parked) => {}
        Err(error) => {
            shared.claim_failed(job.id, &error);
        }
    }
}

/// Put the job back into the index with a later time. In MySQL it stays due, for a runner that has room for it.
fn put_off(shared: &EngineState, mut job: DueJob) {
    let pause = shared.suspects.begin_rest(job.id);
    job.execute_at = shared.store.clock().now() + TimeDelta::from_std(pause).unwrap_or_default();
    shared.broker.hint_due(&job);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(suspects: &Suspects, workers: usize) -> Option<SuspectSlot<'_>> {
        match suspects.admit(JobId::new(), workers) {
            Admission::Admitted(room) => Some(room),
            Admission::Full | Admission::AlreadyRunning => None,
        }
    }

    #[test]
    fn suspects_have_half_of_the_workers_at_the_most_and_few_processes() {
        for (workers, most) in [(1, 1), (2, 1), (3, 2), (16, 8), (256, 8)] {
            let suspects = Suspects::new(workers, true);
            let rooms: Vec<_> = std::iter::from_fn(|| room(&suspects, workers)).collect();
            assert_eq!((rooms.len(), suspects.running()), (most, most), "{workers} workers");
        }
        let here = Suspects::new(256, false);
        let first = room(&here, 256);
        assert!(first.is_some() && room(&here, 256).is_none(), "one at a time");
        drop(first);
        assert!(room(&here, 256).is_some());
    }

    #[test]
    fn a_suspect_that_is_delivered_twice_runs_once() {
        let (suspects, id) = (Suspects::new(16, true), JobId::new());
        let first = suspects.admit(id, 16);
        assert!(matches!(suspects.admit(id, 16), Admission::AlreadyRunning));
        drop(first);
        assert!(matches!(suspects.admit(id, 16), Admission::Admitted(_)));
    }

    #[test]
    fn a_single_worker_rests_from_suspects_for_as_long_as_one_ran() {
        let suspects = Suspects::new(1, true);
        let mut first = room(&suspects, 1).unwrap();
        first.since = Instant::now().checked_sub(Duration::from_secs(3)).unwrap();
        drop(first);
        assert!(room(&suspects, 1).is_none());
        let rest = lock(&suspects.closed_until).unwrap().saturating_duration_since(Instant::now());
        assert!(rest > Duration::from_secs(2) && rest < Duration::from_secs(4), "{rest:?}");
        *lock(&suspects.closed_until) = Some(Instant::now());
        assert!(room(&suspects, 1).is_some());
    }
}
