//! The loop that carries out bulk operations, at whichever runner they were requested.
//!
//! It leases operations that no runner carries out, and executes them batch by batch. Each batch is one transaction,
//! which also renews the lease. A token bucket keeps the rate: it allows several small batches a second, and after a
//! slow moment it catches up within bounds. If a runner dies, its lease ends; a runner that stops releases its
//! operations.
//!
//! A canary takes turns between its batches: the store counts the outcomes of the released jobs, and says how many more
//! may follow at which rate. Its progress is in its row, so the next runner continues where this one died.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::EngineState;
use tickr_job::Action;
use tickr_store::{BatchOutcome, ChangeSummary, MAX_OPERATED_JOBS, OperationLease, StoreError};

/// Time between two looks for operations that no runner carries out, while no summary of changes comes.
const LOOK_EVERY: Duration = Duration::from_millis(1_500);
/// Time between two looks while summaries say that there is none.
const LOOK_ANYWAY_AFTER: Duration = Duration::from_secs(10);
/// Time for which an operation stays with this runner without a batch.
const LEASE: Duration = Duration::from_secs(8);
/// Batches per second, at rates that need no more.
const BATCHES: f64 = 5.0;
/// Seconds of its rate that an operation may be behind and still catch up.
const BEHIND: f64 = 2.0;
/// Time between two turns of a canary.
const TURN_EVERY: Duration = Duration::from_millis(500);
/// Number of batches that may fail in a row before an operation fails.
const MAX_FAILURES: u32 = 20;
/// Pause after a batch that could do nothing, because other sessions lock the jobs that are left.
const LOCKED_RESTS: Duration = Duration::from_millis(250);
/// The longest such pause. The lease lasts longer.
const MAX_LOCKED_RESTS: Duration = Duration::from_secs(2);
/// The longest pause after a batch that has waited for a lock of another session. The lease is renewed for it.
const MAX_WAITED: Duration = Duration::from_secs(10);
/// Pause after a failed batch.
const PAUSE: Duration = Duration::from_secs(1);

/// Number of jobs that an operation may handle by now.
#[derive(Debug)]
struct Bucket {
    rate: Option<f64>,
    allowed: f64,
    filled: Instant,
}

impl Bucket {
    fn new(rate: Option<u32>, now: Instant) -> Self {
        Self { rate: rate.map(f64::from), allowed: 0.0, filled: now }
    }

    /// Return the number of jobs for a batch now; 0 when it is too early.
    fn take(&mut self, now: Instant) -> u32 {
        let Some(rate) = self.rate else { return MAX_OPERATED_JOBS };
        self.allowed =
            (self.allowed + rate * now.duration_since(self.filled).as_secs_f64()).min((rate * BEHIND).max(1.0));
        self.filled = now;
        // Use small batches at even intervals, not the jobs of a whole second at once.
        let worth_it = (rate / BATCHES).clamp(1.0, f64::from(MAX_OPERATED_JOBS));
        if self.allowed < worth_it { 0 } else { self.allowed.min(f64::from(MAX_OPERATED_JOBS)) as u32 }
    }

    /// Keep another rate from now on.
    fn change_rate(&mut self, rate: u32, now: Instant) {
        if self.rate != Some(f64::from(rate)) {
            *self = Self::new(Some(rate), now);
        }
    }

    fn spend(&mut self, jobs: u64) {
        if self.rate.is_some() {
            self.allowed -= jobs as f64;
        }
    }

    /// Return how long to wait before the next try.
    fn pause(&self) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        let worth_it = (rate / BATCHES).clamp(1.0, f64::from(MAX_OPERATED_JOBS));
        Duration::from_secs_f64(((worth_it - self.allowed) / rate).clamp(0.0, 1.0))
    }
}

struct Running {
    lease: OperationLease,
    bucket: Bucket,
    failures: u32,
    not_before: Instant,
    /// Pause after the next batch that can do nothing.
    rest: Duration,
    /// Set for a canary.
    turns: Option<Turns>,
}

/// The turns of a canary.
struct Turns {
    next: Instant,
    /// Number of jobs that may be released before the next turn.
    room: u64,
}

impl Running {
    fn new(lease: OperationLease, now: Instant) -> Self {
        let turns = lease.canary.then_some(Turns { next: now, room: 0 });
        Self { lease, bucket: Bucket::new(lease.rate, now), failures: 0, not_before: now, rest: LOCKED_RESTS, turns }
    }

    /// Rest, because other sessions lock all that is left. While that lasts, each rest is longer. A batch that has
    /// waited for a lock gives the other operations as much time as it `took`. Return the time of the rest.
    fn rests_for_locks(&mut self, took: Duration) -> Duration {
        let rest = self.rest.max(took.min(MAX_WAITED));
        self.not_before = Instant::now() + rest;
        self.rest = (2 * self.rest).min(MAX_LOCKED_RESTS);
        rest
    }

    /// Return the number of jobs for a batch now; 0 when it is too early.
    fn most(&mut self, now: Instant) -> u32 {
        let most = self.bucket.take(now);
        match &self.turns {
            Some(turns) => u32::try_from(turns.room).unwrap_or(most).min(most),
            None => most,
        }
    }

    /// Return how long to wait before the next try.
    fn pause(&self, now: Instant) -> Duration {
        let pause = match &self.turns {
            None => self.bucket.pause(),
            Some(turns) => {
                let until_turn = turns.next.saturating_duration_since(now);
                if turns.room == 0 { until_turn } else { self.bucket.pause().min(until_turn) }
            }
        };
        pause.max(self.not_before.saturating_duration_since(now))
    }
}

pub(super) async fn run_until_stopped(shared: Arc<EngineState>) {
    let mut running: Vec<Running> = Vec::new();
    let mut looked: Option<Instant> = None;
    let mut summaries = shared.operator_settings.summaries();
    loop {
        if looked.is_none_or(|looked| is_worth_a_look(summaries.borrow_and_update().as_deref(), looked)) {
            looked = Some(Instant::now());
            match shared.store.lease_operations(shared.runner.clone(), LEASE).await {
                Ok(taken) => running.extend(taken.into_iter().map(|lease| {
                    tracing::info!(operation = %lease.id, "operation taken");
                    Running::new(lease, Instant::now())
                })),
                Err(error) => tracing::debug!(%error, "cannot look for operations"),
            }
        }
        let mut pause = LOOK_EVERY;
        let mut kept = Vec::with_capacity(running.len());
        for mut one in running {
            if shared.stop_loops.is_cancelled() || batch(&shared, &mut one).await {
                pause = pause.min(one.pause(Instant::now()));
                kept.push(one);
            }
        }
        running = kept;
        tokio::select! {
            () = shared.stop_loops.cancelled() => break,
            () = tokio::time::sleep(pause) => {}
            Ok(()) = summaries.changed() => {}
        }
    }
    for one in running {
        if let Err(error) = shared.store.release_operation(one.lease).await {
            tracing::debug!(%error, "cannot release an operation; its lease will end");
        }
    }
}

/// Return whether there may be an operation that no runner carries out. `looked` is when the last look began.
fn is_worth_a_look(summary: Option<&ChangeSummary>, looked: Instant) -> bool {
    match summary.filter(|summary| summary.asked > looked && summary.asked.elapsed() < LOOK_EVERY) {
        Some(summary) => summary.operation_is_free || looked.elapsed() >= LOOK_ANYWAY_AFTER,
        None => looked.elapsed() >= LOOK_EVERY,
    }
}

/// Execute a batch if it is time for one. Return whether the operation continues here.
async fn batch(shared: &EngineState, one: &mut Running) -> bool {
    let now = Instant::now();
    if now < one.not_before {
        return true;
    }
    if one.turns.as_ref().is_some_and(|turns| turns.next <= now) {
        match shared.store.turn_canary(one.lease, LEASE).await {
            Ok(turn) if turn.over => {
                tell_end(one.lease, (turn.lost, turn.stopped));
                return false;
            }
            Ok(turn) if turn.waits_for_lock => {
                one.rests_for_locks(Duration::ZERO);
                return true;
            }
            Ok(turn) => {
                one.failures = 0;
                let now = Instant::now();
                one.bucket.change_rate(turn.rate, now);
                one.turns = Some(Turns { next: now + TURN_EVERY, room: turn.room });
            }
            Err(error) => return failed(shared, one, error).await,
        }
    }
    let most = one.most(now);
    if most == 0 {
        return true;
    }
    match advance(shared, one.lease, most).await {
        Ok(batched) => {
            one.failures = 0;
            if batched.waits_for_locks {
                let took = now.elapsed();
                let rest = one.rests_for_locks(took);
                if took + rest >= LEASE / 2 {
                    keep_over(shared, one.lease, rest).await;
                }
            } else {
                one.rest = LOCKED_RESTS;
            }
            one.bucket.spend(batched.handled);
            if let Some(turns) = &mut one.turns {
                turns.room = turns.room.saturating_sub(batched.handled);
            }
            metrics::counter!("tickr_operation_jobs_total").increment(batched.handled);
            let (over, lost) = (batched.over, batched.lost);
            shared.broker.announce_batch(batched).await;
            if over {
                tell_end(one.lease, (lost, false));
            }
            !over
        }
        Err(error) => failed(shared, one, error).await,
    }
}

/// Note that a batch or a turn failed. Return whether the operation continues here.
async fn failed(shared: &EngineState, one: &mut Running, error: StoreError) -> bool {
    // Until the lease ends, another try is possible. After that, another runner may have taken the operation over.
    tracing::warn!(operation = %one.lease.id, %error, "a batch of an operation failed");
    one.failures += 1;
    one.not_before = Instant::now() + PAUSE;
    if error.is_transient() || one.failures < MAX_FAILURES {
        return true;
    }
    match shared.store.fail_operation(one.lease, error.to_string()).await {
        Ok(ended) => !ended,
        Err(error) => {
            tracing::warn!(operation = %one.lease.id, %error, "cannot end an operation that fails");
            false
        }
    }
}

/// Renew the lease of an operation before a rest. It runs from the begin of a batch, and other runners would take the
/// operation within the rest and wait for the same lock.
async fn keep_over(shared: &EngineState, lease: OperationLease, rest: Duration) {
    if let Err(error) = shared.store.keep_operation(lease, rest + LEASE).await {
        tracing::debug!(operation = %lease.id, %error, "cannot renew the lease of an operation");
    }
}

fn tell_end(lease: OperationLease, (lost, stopped): (bool, bool)) {
    if lost {
        tracing::info!(operation = %lease.id, "operation left: it was cancelled or paused, or another runner has it");
    } else if stopped {
        tracing::warn!(operation = %lease.id, "a canary stopped, because too many of its jobs failed again");
    } else {
        tracing::info!(operation = %lease.id, "operation ended");
    }
}

/// Handle the next `most` jobs of an operation.
async fn advance(shared: &EngineState, lease: OperationLease, most: u32) -> Result<BatchOutcome, StoreError> {
    // Only a replay makes jobs, and needs to know their kinds.
    let living_kinds = match lease.action {
        Action::Replay => shared.store.unstopped_runners().await?.served.kinds(),
        _ => HashSet::new(),
    };
    shared.store.advance_operation(lease, most, LEASE, shared.broker.remaker(living_kinds)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_evenly_and_caught_up_within_bounds() {
        let start = Instant::now();
        let mut bucket = Bucket::new(Some(500), start);
        let (mut moved, mut batches) = (0, 0);
        for ms in (0..10_000).step_by(20) {
            let most = bucket.take(start + Duration::from_millis(ms));
            assert!(most <= MAX_OPERATED_JOBS);
            bucket.spend(u64::from(most));
            moved += most;
            batches += u32::from(most > 0);
        }
        assert!((4_800..=5_000).contains(&moved), "{moved}");
        assert!((40..=55).contains(&batches), "{batches}");
        // The jobs of a ten-second stall are not all caught up.
        let mut caught_up = 0;
        for step in 0..50 {
            let most = bucket.take(start + Duration::from_secs(20) + Duration::from_millis(step));
            bucket.spend(u64::from(most));
            caught_up += most;
        }
        assert!((900..=1_030).contains(&caught_up), "{caught_up}");
    }

    #[test]
    fn one_in_a_second_is_one_in_a_second_and_no_rate_is_as_fast_as_it_goes() {
        let start = Instant::now();
        let mut slow = Bucket::new(Some(1), start);
        assert_eq!(slow.take(start), 0);
        assert_eq!(slow.pause(), Duration::from_secs(1));
        assert_eq!(slow.take(start + Duration::from_secs(1)), 1);
        let mut free = Bucket::new(None, start);
        assert_eq!((free.take(start), free.pause()), (MAX_OPERATED_JOBS, Duration::ZERO));
    }
}
