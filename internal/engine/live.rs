//! The attempts that run in this process right now: what the heartbeat renews and what can be told to stop.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use metrics::Gauge;
use tokio_util::sync::CancellationToken;

use super::Shared;
use crate::handlers::ProgressSlot;
use crate::job::{AttemptToken, JobId};
use crate::store::LiveAttempt;

/// Why an attempt is told to stop. The first reason stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Somebody cancelled the job.
    Cancel,
    /// The attempt outlived its time limit.
    Deadline,
    /// The runner shuts down.
    Shutdown,
    /// The lease is gone: whatever the handler does now, it may not write.
    LeaseLost,
}

/// The switch that stops one attempt.
#[derive(Clone, Debug, Default)]
pub(super) struct Stop {
    token: CancellationToken,
    reason: Arc<AtomicU8>,
}

impl Stop {
    pub(super) fn token(&self) -> &CancellationToken {
        &self.token
    }

    pub(super) fn now(&self, reason: StopReason) {
        let code = match reason {
            StopReason::Cancel => 1,
            StopReason::Deadline => 2,
            StopReason::Shutdown => 3,
            StopReason::LeaseLost => 4,
        };
        // Whoever comes second changes nothing: the verdict follows what made the handler stop.
        let _ = self.reason.compare_exchange(0, code, Ordering::SeqCst, Ordering::SeqCst);
        self.token.cancel();
    }

    pub(super) fn reason(&self) -> Option<StopReason> {
        match self.reason.load(Ordering::SeqCst) {
            1 => Some(StopReason::Cancel),
            2 => Some(StopReason::Deadline),
            3 => Some(StopReason::Shutdown),
            4 => Some(StopReason::LeaseLost),
            _ => None,
        }
    }
}

struct Running {
    token: AttemptToken,
    stop: Stop,
    progress: ProgressSlot,
    /// A moment before the newest claim or renewal of its lease.
    leased: Instant,
    /// A moment before its claim.
    since: Instant,
    /// Its verdict is on its way: the store may end the lease at any moment, by our own hand.
    settling: bool,
}

/// The place of an attempt among those that run here. Held by the code that runs it, and given up however that ends, a
/// panic included: the lease of an attempt that nothing runs must not be renewed.
#[must_use]
pub(super) struct Seat<'a> {
    live: &'a Live,
    id: JobId,
    token: AttemptToken,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.live.remove(self.id, self.token);
    }
}

/// All running attempts. A plain mutex: it is held for moments, also by the heartbeat's own thread.
pub(super) struct Live {
    attempts: Mutex<HashMap<JobId, Running>>,
    /// How many they are, with those of other runners in this process.
    busy: Gauge,
    /// The runner's grace is over. Read and written under the lock, so that no attempt slips in between.
    closed: AtomicBool,
}

impl Default for Live {
    fn default() -> Self {
        let busy = metrics::gauge!("tickr_worker_slots_busy");
        // Nobody is busy is an answer as well.
        busy.increment(0.0);
        Self { attempts: Mutex::default(), busy, closed: AtomicBool::default() }
    }
}

impl Live {
    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, Running>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take in an attempt, for as long as its seat is held. One whose claim was under way when the grace ended is told to
    /// stop at once.
    pub(super) fn insert(
        &self,
        id: JobId,
        token: AttemptToken,
        leased: Instant,
        stop: Stop,
        progress: ProgressSlot,
    ) -> Seat<'_> {
        let mut attempts = self.lock();
        if self.closed.load(Ordering::Relaxed) {
            stop.now(StopReason::Shutdown);
        }
        if attempts.insert(id, Running { token, stop, progress, leased, since: leased, settling: false }).is_none() {
            self.busy.increment(1.0);
        }
        Seat { live: self, id, token }
    }

    /// The handler is done and the verdict is being written. The lease is still renewed, because MySQL may be out for
    /// longer than it lasts; but not finding it any more is no longer news.
    pub(super) fn settling(&self, id: JobId, token: AttemptToken) {
        if let Some(running) = self.lock().get_mut(&id).filter(|running| running.token == token) {
            running.settling = true;
        }
    }

    /// Forget an attempt, unless a newer one of the same job has taken its place.
    fn remove(&self, id: JobId, token: AttemptToken) {
        let mut attempts = self.lock();
        if attempts.get(&id).is_some_and(|running| running.token == token) {
            attempts.remove(&id);
            self.busy.decrement(1.0);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// The jobs that run here.
    pub(super) fn ids(&self) -> HashSet<JobId> {
        self.lock().keys().copied().collect()
    }

    /// What the heartbeat tells the store, the longest running first: of very many only the first are shown to people.
    pub(super) fn for_the_heartbeat(&self) -> Vec<LiveAttempt> {
        let attempts = self.lock();
        let live = |(id, running): (&JobId, &Running)| {
            let (token, leased) = (running.token, running.leased);
            let attempt = LiveAttempt { id: *id, token, progress: running.progress.take(), leased };
            (running.since, attempt)
        };
        let mut live: Vec<(Instant, LiveAttempt)> = attempts.iter().map(live).collect();
        drop(attempts);
        live.sort_unstable_by_key(|(since, attempt)| (*since, attempt.id));
        live.into_iter().map(|(_, attempt)| attempt).collect()
    }

    /// Tell one attempt to stop, if it runs here; with `token`, only if it is that attempt.
    pub(super) fn stop(&self, id: JobId, token: Option<AttemptToken>, reason: StopReason) -> bool {
        let attempts = self.lock();
        let meant = |running: &&Running| !running.settling && token.is_none_or(|token| token == running.token);
        let running = attempts.get(&id).filter(meant);
        running.map(|running| running.stop.now(reason)).is_some()
    }

    /// The leases of these attempts were renewed by a request that left at `sent`.
    pub(super) fn renewed(&self, renewed: &[LiveAttempt], sent: Instant) {
        let mut attempts = self.lock();
        for attempt in renewed {
            if let Some(running) = attempts.get_mut(&attempt.id).filter(|running| running.token == attempt.token) {
                running.leased = sent;
            }
        }
    }

    /// Stop every attempt whose lease was last renewed longer than `lease` ago: somebody else may have started its job.
    /// How many were told now.
    pub(super) fn stop_expired(&self, lease: Duration) -> usize {
        let attempts = self.lock();
        let expired = attempts.values().filter(|running| {
            !running.settling && running.leased.elapsed() >= lease && running.stop.reason().is_none()
        });
        expired.map(|running| running.stop.now(StopReason::LeaseLost)).count()
    }

    /// Keep progress that could not be written, unless there is newer.
    pub(super) fn put_back(&self, unwritten: &[LiveAttempt]) {
        let attempts = self.lock();
        for attempt in unwritten {
            if let (Some(running), Some(progress)) = (attempts.get(&attempt.id), &attempt.progress) {
                running.progress.put_back(progress.clone());
            }
        }
    }

    /// The grace is over: tell every attempt to stop, and those that still come; how many were told.
    pub(super) fn close(&self) -> usize {
        let attempts = self.lock();
        self.closed.store(true, Ordering::Relaxed);
        for running in attempts.values() {
            running.stop.now(StopReason::Shutdown);
        }
        attempts.len()
    }
}

/// A cancel that came in through this process reaches its handler at once, without waiting for the heartbeat's look.
pub(super) async fn pass_on_cancels(shared: Arc<Shared>) {
    let mut cancels = shared.broker.events().cancels();
    loop {
        tokio::select! {
            () = shared.stop_loops.cancelled() => return,
            cancel = cancels.recv() => match cancel {
                Ok(id) => {
                    shared.live.stop(id, None, StopReason::Cancel);
                }
                Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {}
                Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
            },
        }
    }
}
