//! The attempts that run in this process now: the heartbeat renews their leases, and each of them can be told to stop.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::EngineState;
use tickr_handlers::{CheckpointSlot, FinishSlot, ProgressSlot};
use tickr_job::{AttemptToken, IdHashes, JobId};
use tickr_store::{LiveAttempt, NewCheckpoint};

/// Reason for which an attempt is told to stop. The first reason counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The job was cancelled.
    Cancel,
    /// The attempt exceeded its time limit.
    Deadline,
    /// The runner stops.
    Shutdown,
    /// The process that runs one suspect gives it back: its runner told it to, or is gone.
    GivenBack,
    /// The lease was lost. The handler is told to stop, and is dropped after two seconds. A verdict that comes after the
    /// attempt was taken away becomes a note.
    LeaseLost,
}

/// The switch that stops one attempt.
#[derive(Clone, Debug, Default)]
pub(super) struct StopSwitch {
    token: CancellationToken,
    reason: Arc<AtomicU8>,
}

impl StopSwitch {
    pub(super) fn token(&self) -> &CancellationToken {
        &self.token
    }

    pub(super) fn trigger(&self, reason: StopReason) {
        let code = match reason {
            StopReason::Cancel => 1,
            StopReason::Deadline => 2,
            StopReason::Shutdown => 3,
            StopReason::LeaseLost => 4,
            StopReason::GivenBack => 5,
        };
        // A second reason changes nothing: the verdict follows from the reason that stopped the handler.
        let _ = self.reason.compare_exchange(0, code, Ordering::SeqCst, Ordering::SeqCst);
        self.token.cancel();
    }

    pub(super) fn reason(&self) -> Option<StopReason> {
        match self.reason.load(Ordering::SeqCst) {
            1 => Some(StopReason::Cancel),
            2 => Some(StopReason::Deadline),
            3 => Some(StopReason::Shutdown),
            4 => Some(StopReason::LeaseLost),
            5 => Some(StopReason::GivenBack),
            _ => None,
        }
    }
}

struct Running {
    token: AttemptToken,
    stop: StopSwitch,
    progress: ProgressSlot,
    checkpoint: CheckpointSlot,
    finish: FinishSlot,
    /// A moment before the claim or the newest renewal of the lease.
    leased: Instant,
    /// A moment before the claim.
    since: Instant,
    /// The verdict is being written: at any moment this runner itself may end the lease.
    settling: bool,
}

/// Membership of an attempt in [`LiveAttempts`]. The code that runs the attempt holds it and drops it at its end, also
/// in a panic: the lease of an attempt that no longer runs must not be renewed.
#[must_use]
pub(super) struct LiveGuard<'a> {
    live: &'a LiveAttempts,
    id: JobId,
    token: AttemptToken,
}

impl Drop for LiveGuard<'_> {
    fn drop(&mut self) {
        self.live.remove(self.id, self.token);
    }
}

/// All running attempts. A plain mutex is enough, because it is held for moments only. The heartbeat thread locks it as
/// well.
#[derive(Default)]
pub(super) struct LiveAttempts {
    attempts: Mutex<HashMap<JobId, Running, IdHashes>>,
    /// Why no attempt may start any more, once the grace period of the runner is over. Read and written under the lock,
    /// so that no attempt starts unnoticed in between.
    closed: OnceLock<StopReason>,
}

/// The attempts that were told to stop at the end of the grace period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ToldToStop {
    /// Those whose handlers still run.
    pub(super) running: usize,
    /// Those that have ended and whose verdicts MySQL does not have yet. They go on trying to write them.
    pub(super) settling: usize,
}

impl LiveAttempts {
    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, Running, IdHashes>> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Add an attempt, for as long as the returned value is held. If the grace period ended while the attempt was
    /// claimed, it is told to stop at once.
    pub(super) fn insert(
        &self,
        id: JobId,
        token: AttemptToken,
        leased: Instant,
        stop: StopSwitch,
        (progress, checkpoint, finish): (ProgressSlot, CheckpointSlot, FinishSlot),
    ) -> LiveGuard<'_> {
        let mut attempts = self.lock();
        if let Some(reason) = self.closed.get() {
            stop.trigger(*reason);
        }
        let (since, settling) = (leased, false);
        attempts.insert(id, Running { token, stop, progress, checkpoint, finish, leased, since, settling });
        LiveGuard { live: self, id, token }
    }

    /// Note that the handler has returned and the verdict is being written. The lease is still renewed, because MySQL
    /// may be out for longer than the lease lasts. But a lease that is gone is no longer reported as lost.
    pub(super) fn mark_settling(&self, id: JobId, token: AttemptToken) {
        if let Some(running) = self.lock().get_mut(&id).filter(|running| running.token == token) {
            running.settling = true;
        }
    }

    /// Remove an attempt, unless a newer attempt of the same job has replaced it.
    fn remove(&self, id: JobId, token: AttemptToken) {
        let mut attempts = self.lock();
        if attempts.get(&id).is_some_and(|running| running.token == token) {
            attempts.remove(&id);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Return the jobs that run here.
    pub(super) fn ids(&self) -> HashSet<JobId> {
        self.lock().keys().copied().collect()
    }

    /// Return the attempts for the heartbeat, the longest-running first: the API shows only the first ones of very
    /// many.
    pub(super) fn to_heartbeat(&self) -> Vec<LiveAttempt> {
        let attempts = self.lock();
        let live = |(id, running): (&JobId, &Running)| {
            let (token, leased, has_finish_key) = (running.token, running.leased, running.finish.is_made());
            let attempt = LiveAttempt { id: *id, token, progress: running.progress.take(), leased, has_finish_key };
            (running.since, attempt)
        };
        let mut live: Vec<(Instant, LiveAttempt)> = attempts.iter().map(live).collect();
        drop(attempts);
        live.sort_unstable_by_key(|(since, attempt)| (*since, attempt.id));
        live.into_iter().map(|(_, attempt)| attempt).collect()
    }

    /// Return the checkpoints that are not in the store yet, those that have waited longest first. An attempt whose verdict
    /// is being written saves its own with it.
    pub(super) fn unsaved_checkpoints(&self) -> Vec<NewCheckpoint> {
        let attempts = self.lock();
        let running = attempts.iter().filter(|(_, running)| !running.settling);
        let mut unsaved: Vec<(Instant, NewCheckpoint)> = running
            .filter_map(|(id, running)| {
                let newest = running.checkpoint.unsaved()?;
                let (content, version) = (newest.content, newest.version);
                Some((newest.since, NewCheckpoint { id: *id, token: running.token, content, version }))
            })
            .collect();
        drop(attempts);
        unsaved.sort_unstable_by_key(|(since, new)| (*since, new.id));
        unsaved.into_iter().map(|(_, new)| new).collect()
    }

    /// Record that these checkpoints are in the store.
    pub(super) fn record_saved(&self, saved: &[NewCheckpoint]) {
        let attempts = self.lock();
        for new in saved {
            if let Some(running) = attempts.get(&new.id).filter(|running| running.token == new.token) {
                running.checkpoint.record_saved(new.version);
            }
        }
    }

    /// Tell an attempt of this job to stop, if one runs here. With `token`, only if it is that attempt. Return whether
    /// it was told.
    pub(super) fn stop(&self, id: JobId, token: Option<AttemptToken>, reason: StopReason) -> bool {
        let attempts = self.lock();
        let meant = |running: &&Running| !running.settling && token.is_none_or(|token| token == running.token);
        let running = attempts.get(&id).filter(meant);
        running.map(|running| running.stop.trigger(reason)).is_some()
    }

    /// Record that the leases of these attempts were renewed by a request sent at `sent`.
    pub(super) fn record_renewals(&self, renewed: &[LiveAttempt], sent: Instant) {
        let mut attempts = self.lock();
        for attempt in renewed {
            if let Some(running) = attempts.get_mut(&attempt.id).filter(|running| running.token == attempt.token) {
                running.leased = sent;
            }
        }
    }

    /// Return whether the lease of this attempt was renewed less than `lease` ago.
    pub(super) fn is_leased(&self, id: JobId, token: AttemptToken, lease: Duration) -> bool {
        let attempts = self.lock();
        attempts.get(&id).is_some_and(|running| running.token == token && running.leased.elapsed() < lease)
    }

    /// Stop every attempt whose lease was last renewed at least `lease` ago, because another runner may have started
    /// its job. Return how many were told to stop now.
    pub(super) fn stop_expired(&self, lease: Duration) -> usize {
        let attempts = self.lock();
        let expired = attempts.values().filter(|running| {
            !running.settling && running.leased.elapsed() >= lease && running.stop.reason().is_none()
        });
        expired.map(|running| running.stop.trigger(StopReason::LeaseLost)).count()
    }

    /// Keep progress that could not be written, unless there is newer progress.
    pub(super) fn put_back(&self, unwritten: &[LiveAttempt]) {
        let attempts = self.lock();
        for attempt in unwritten {
            if let (Some(running), Some(progress)) = (attempts.get(&attempt.id), &attempt.progress) {
                running.progress.put_back(progress.clone());
            }
        }
    }

    /// Tell all attempts to stop, and those that are added later: the grace period is over. Return how many were told.
    pub(super) fn close(&self, reason: StopReason) -> ToldToStop {
        let attempts = self.lock();
        let _ = self.closed.set(reason);
        for running in attempts.values() {
            running.stop.trigger(reason);
        }
        let settling = attempts.values().filter(|running| running.settling).count();
        ToldToStop { running: attempts.len() - settling, settling }
    }
}

/// Pass cancel requests that came through this process to their handlers at once, without waiting for the heartbeat.
pub(super) async fn forward_cancels(shared: Arc<EngineState>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_whose_code_panics_or_is_dropped_is_renewed_no_more() {
        let live = LiveAttempts::default();
        let insert =
            |id| live.insert(id, AttemptToken::new(), Instant::now(), StopSwitch::default(), Default::default());
        let (panics, ends, runs) = (JobId::new(), JobId::new(), JobId::new());
        let still = insert(runs);
        let renewed =
            |live: &LiveAttempts| live.to_heartbeat().iter().map(|attempt| attempt.id).collect::<HashSet<_>>();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _attempt = insert(panics);
            assert_eq!(renewed(&live), [panics, runs].into());
            panic!("on purpose");
        }));
        assert!(panicked.is_err());
        drop(insert(ends));
        assert_eq!(renewed(&live), [runs].into());
        drop(still);
        assert!(renewed(&live).is_empty());
    }

    #[test]
    fn an_attempt_whose_verdict_waits_is_not_counted_as_one_that_runs_at_a_stop() {
        let (live, ids) = (LiveAttempts::default(), [JobId::new(), JobId::new(), JobId::new()]);
        let stops = [StopSwitch::default(), StopSwitch::default(), StopSwitch::default()];
        let token = AttemptToken::new();
        let insert = |n: usize| live.insert(ids[n], token, Instant::now(), stops[n].clone(), Default::default());
        let _attempts = (insert(0), insert(1));
        live.mark_settling(ids[1], token);
        assert_eq!(live.close(StopReason::Shutdown), ToldToStop { running: 1, settling: 1 });
        let _late = insert(2);
        assert_eq!([0, 2].map(|n| stops[n].reason()), [Some(StopReason::Shutdown); 2]);
    }

    #[test]
    fn the_end_of_an_old_attempt_leaves_the_new_one_of_its_job() {
        let (live, id) = (LiveAttempts::default(), JobId::new());
        let insert = || live.insert(id, AttemptToken::new(), Instant::now(), StopSwitch::default(), Default::default());
        let (old, new) = (insert(), insert());
        drop(old);
        assert!(live.ids().contains(&id), "its lease is still renewed");
        drop(new);
        assert!(live.ids().is_empty());
    }
}
