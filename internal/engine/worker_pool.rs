//! The workers of a runner: how many handlers run at once, and how many jobs may be claimed or settled besides.
//!
//! A job takes three things in turn:
//! - a *seat*, before its id is taken from the index and until its handler has returned
//! - a *worker*, while its handler runs
//! - room for its verdict, while MySQL writes it
//!
//! There are as many seats as workers, so a claimed job starts at once. When handlers are much shorter than a claim, the
//! workers would mostly wait for claims, and each claim would share its commit with few others. So the pool adds seats:
//! as many as there are jobs that the workers finish while MySQL answers one claim (Little's law). A job claimed ahead
//! then waits about as long as a claim takes. If it waits much longer, because handlers have become slow, its claim is
//! undone and the extra seats go.
//!
//! A runner that dies loses the attempts of all jobs that it claimed. So a job on its last attempt is claimed only when a
//! worker is free for it, and nothing is claimed ahead for a while after a runner died.
//!
//! No seat is added for few workers: a runner with one worker starts jobs in their order.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use metrics::Gauge;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Most verdicts of one worker, on average, that are on their way to MySQL. A runner that dies before they are written
/// runs these jobs again.
const SETTLING_PER_WORKER: usize = 8;
/// Most extra seats for one worker.
const AHEAD_PER_WORKER: usize = 4;
/// Most extra seats of a runner, and most verdicts on their way to MySQL of a runner that has no more workers than that:
/// the largest batch.
const MAX_AHEAD: usize = 256;
/// Fewest workers of a runner that claims ahead.
const MIN_WORKERS: usize = 8;
/// Mean time of a handler from which nothing is claimed ahead: waiting for a claim is a small part of it.
const LONG: Duration = Duration::from_millis(50);
/// Longest time of a claim that counts. A slow MySQL must not make jobs wait longer in this runner.
const MAX_CLAIM: Duration = Duration::from_millis(20);
/// Longest wait of a claimed job for a worker, while the workers are busy with handlers.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);
/// Time for which nothing is claimed ahead after a job had to be given back, and after a sign that runners die: a runner
/// that dies loses every attempt that it claimed, and jobs that lose two in a row are suspects.
const PAUSE: Duration = Duration::from_secs(10);
const PAUSE_AFTER_LOSS: Duration = Duration::from_secs(60);
/// Time without the end of a handler after which the extra seats go: what is known about the handlers is old.
const QUIET: Duration = Duration::from_millis(200);
/// The weight of one handler or claim in the mean is one in this many.
const WEIGHT: f64 = 32.0;
/// Number of handlers that end between two adjustments.
const ADJUST_EVERY: u32 = 16;

/// The right to claim a job and to run its handler.
pub(super) type Seat = OwnedSemaphorePermit;

/// The workers of a runner.
pub(super) struct WorkerPool {
    workers: usize,
    seats: Arc<Semaphore>,
    free: Semaphore,
    settling: Semaphore,
    most_settling: usize,
    ahead: Mutex<Ahead>,
    /// The numbers of `ahead`, to be read without its lock: each job needs them.
    extra: AtomicUsize,
    excess: AtomicUsize,
    /// Metric of busy workers; it includes those of other runners in this process.
    busy: Gauge,
}

/// What is known about the handlers and the claims of this runner, and the seats that follow from it.
#[derive(Debug, Default)]
struct Ahead {
    /// Number of extra seats, and how many of them go as soon as they are free.
    seats: usize,
    excess: usize,
    /// Mean time of a handler and of a claim, in seconds.
    run: Option<f64>,
    claim: Option<f64>,
    /// Number of handlers that ended since the last adjustment, and when the last one did.
    ended: u32,
    last_end: Option<Instant>,
    /// Nothing is claimed ahead until then.
    off_until: Option<Instant>,
}

/// One worker, busy until it is dropped.
pub(super) struct Worker<'a> {
    _worker: SemaphorePermit<'a>,
    busy: &'a Gauge,
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        self.busy.decrement(1.0);
    }
}

impl WorkerPool {
    pub(super) fn new(workers: usize) -> Self {
        let most_settling = (workers * SETTLING_PER_WORKER).min(MAX_AHEAD.max(workers)).max(1);
        let busy = metrics::gauge!("tickr_busy_workers");
        // Show the metric from the start, with the value 0.
        busy.increment(0.0);
        Self {
            workers,
            seats: Arc::new(Semaphore::new(workers)),
            free: Semaphore::new(workers),
            settling: Semaphore::new(most_settling),
            most_settling,
            ahead: Mutex::default(),
            extra: AtomicUsize::default(),
            excess: AtomicUsize::default(),
            busy,
        }
    }

    fn ahead(&self) -> MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wait for a free seat.
    pub(super) async fn seat(&self) -> Result<Seat, AcquireError> {
        loop {
            let seat = Arc::clone(&self.seats).acquire_owned().await?;
            if let Some(seat) = self.unless_excess(seat) {
                return Ok(seat);
            }
        }
    }

    /// Return another free seat, if there is one.
    pub(super) fn another_seat(&self) -> Option<Seat> {
        loop {
            let seat = Arc::clone(&self.seats).try_acquire_owned().ok()?;
            if let Some(seat) = self.unless_excess(seat) {
                return Some(seat);
            }
        }
    }

    /// Remove this seat if it is one too many, otherwise return it.
    fn unless_excess(&self, seat: Seat) -> Option<Seat> {
        if self.excess.load(Ordering::Acquire) == 0 {
            return Some(seat);
        }
        let mut ahead = self.ahead();
        if ahead.excess == 0 {
            return Some(seat);
        }
        ahead.excess -= 1;
        ahead.seats -= 1;
        self.publish(&ahead);
        seat.forget();
        None
    }

    /// Return the number of seats, taken or free, without those that go.
    pub(super) fn seats(&self) -> usize {
        let ahead = self.ahead();
        self.workers + ahead.seats - ahead.excess
    }

    /// Return whether a job may have to wait for a worker after its claim.
    pub(super) fn is_ahead(&self) -> bool {
        self.extra.load(Ordering::Acquire) > 0
    }

    /// Wait for a free worker.
    pub(super) async fn worker(&self) -> Worker<'_> {
        // The semaphore is never closed, so this waits until a worker is free.
        loop {
            if let Ok(worker) = self.free.acquire().await {
                self.busy.increment(1.0);
                return Worker { _worker: worker, busy: &self.busy };
            }
        }
    }

    /// Return whether a worker is free.
    pub(super) fn has_free_worker(&self) -> bool {
        self.free.available_permits() > 0
    }

    /// Free the worker and the seat of an attempt whose handler has returned, as soon as there is room for one more
    /// verdict on its way to MySQL. The caller holds the room until the verdict is written.
    pub(super) async fn until_settling(&self, held: (Option<Worker<'_>>, Option<Seat>)) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        let room = self.settling.acquire().await.ok();
        drop(held);
        room
    }

    /// Return whether the workers wait until MySQL has written verdicts.
    pub(super) fn wait_for_verdicts(&self) -> bool {
        self.settling.available_permits() == 0
    }

    /// Return the number of verdicts on their way to MySQL.
    pub(super) fn settling(&self) -> usize {
        self.most_settling - self.settling.available_permits()
    }

    /// Record how long MySQL took to answer a claim.
    pub(super) fn record_claim(&self, took: Duration) {
        let mut ahead = self.ahead();
        ahead.claim = Some(mean(ahead.claim, took.min(MAX_CLAIM)));
    }

    /// Record how long a handler ran, and adjust the seats now and then.
    pub(super) fn record_run(&self, took: Duration) {
        let mut ahead = self.ahead();
        ahead.run = Some(mean(ahead.run, took));
        ahead.last_end = Some(Instant::now());
        ahead.ended += 1;
        if ahead.ended >= ADJUST_EVERY {
            ahead.ended = 0;
            let wanted = ahead.wanted(self.workers, Instant::now());
            self.set_ahead(&mut ahead, wanted);
        }
    }

    /// Record that a claimed job had to wait too long for a worker: claim nothing ahead for a while.
    pub(super) fn record_waited_too_long(&self) {
        self.pause_ahead(PAUSE);
    }

    /// Record that a job was left because it has one attempt left: claim nothing ahead for a while, so that each such job
    /// need not be claimed twice.
    pub(super) fn record_last_attempt(&self) {
        self.pause_ahead(PAUSE);
    }

    /// Record that a runner died, perhaps of one of its jobs: claim nothing ahead for a while.
    pub(super) fn record_loss(&self) {
        self.pause_ahead(PAUSE_AFTER_LOSS);
    }

    fn pause_ahead(&self, pause: Duration) {
        let mut ahead = self.ahead();
        ahead.off_until = ahead.off_until.max(Some(Instant::now() + pause));
        self.set_ahead(&mut ahead, 0);
    }

    /// Take the extra seats back if no handler has ended lately.
    pub(super) fn drop_ahead_if_quiet(&self) {
        let mut ahead = self.ahead();
        if ahead.seats > ahead.excess && ahead.last_end.is_none_or(|end| end.elapsed() > QUIET) {
            self.set_ahead(&mut ahead, 0);
        }
    }

    /// Add seats, or remove some. Those that are taken now go when they are free.
    fn set_ahead(&self, ahead: &mut Ahead, wanted: usize) {
        let added = wanted.saturating_sub(ahead.seats);
        ahead.seats = ahead.seats.max(wanted);
        ahead.excess = ahead.seats - wanted;
        // Before the seats can be taken: a job on an extra seat is not claimed for its last attempt.
        self.publish(ahead);
        self.seats.add_permits(added);
    }

    fn publish(&self, ahead: &Ahead) {
        self.extra.store(ahead.seats, Ordering::Release);
        self.excess.store(ahead.excess, Ordering::Release);
    }
}

impl Ahead {
    /// Return the number of extra seats for this many workers: the jobs that they finish during one claim.
    fn wanted(&self, workers: usize, now: Instant) -> usize {
        let (Some(run), Some(claim)) = (self.run, self.claim) else { return 0 };
        let off = self.off_until.is_some_and(|until| now < until);
        if off || workers < MIN_WORKERS || run >= LONG.as_secs_f64() {
            return 0;
        }
        // A handler that takes no time at all would ask for any number of seats; `as` saturates.
        let most = (workers * AHEAD_PER_WORKER).min(MAX_AHEAD);
        ((workers as f64 * claim / run) as usize).min(most)
    }
}

fn mean(before: Option<f64>, took: Duration) -> f64 {
    let took = took.as_secs_f64();
    before.map_or(took, |before| before + (took - before) / WEIGHT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead(run_ms: f64, claim_ms: f64) -> Ahead {
        Ahead { run: Some(run_ms / 1e3), claim: Some(claim_ms / 1e3), ..Ahead::default() }
    }

    #[test]
    fn seats_are_added_for_the_jobs_that_end_during_a_claim_and_for_short_ones_alone() {
        let now = Instant::now();
        for (workers, run_ms, claim_ms, seats) in [
            (16, 0.01, 4.0, 64),
            (16, 4.0, 4.0, 16),
            (16, 32.0, 4.0, 2),
            (16, 50.0, 4.0, 0),
            (7, 0.01, 4.0, 0),
            (8, 0.0, 4.0, 32),
            (64, 0.01, 4.0, 256),
            (1_024, 0.01, 4.0, 256),
        ] {
            assert_eq!(ahead(run_ms, claim_ms).wanted(workers, now), seats, "{workers} {run_ms}");
        }
        assert_eq!(Ahead::default().wanted(16, now), 0, "nothing is known yet");
        let off = Ahead { off_until: Some(now + PAUSE), ..ahead(0.01, 4.0) };
        assert_eq!((off.wanted(16, now), off.wanted(16, now + PAUSE)), (0, 64));
    }

    #[test]
    fn nothing_is_claimed_ahead_for_a_minute_after_a_runner_died() {
        let pool = WorkerPool::new(16);
        let run = || {
            pool.record_claim(Duration::from_millis(4));
            (0..ADJUST_EVERY).for_each(|_| pool.record_run(Duration::from_micros(10)));
            pool.seats()
        };
        assert_eq!(run(), 80);
        pool.record_loss();
        pool.record_waited_too_long();
        assert_eq!((pool.seats(), run()), (16, 16));
        let ahead = pool.ahead();
        let now = Instant::now();
        assert_eq!((ahead.wanted(16, now + PAUSE), ahead.wanted(16, now + PAUSE_AFTER_LOSS)), (0, 64));
    }

    #[tokio::test]
    async fn seats_that_are_taken_go_when_they_are_free() {
        let pool = WorkerPool::new(8);
        pool.record_claim(Duration::from_millis(4));
        (0..ADJUST_EVERY).for_each(|_| pool.record_run(Duration::from_micros(10)));
        assert_eq!(pool.seats(), 40);
        let mut taken: Vec<Seat> = std::iter::from_fn(|| pool.another_seat()).collect();
        assert_eq!(taken.len(), 40);
        assert!(pool.is_ahead());
        pool.record_waited_too_long();
        assert_eq!(pool.seats(), 8);
        assert!(pool.is_ahead(), "they are taken still");
        taken.truncate(5);
        let free: Vec<Seat> = std::iter::from_fn(|| pool.another_seat()).collect();
        assert_eq!(free.len(), 3);
        assert!(!pool.is_ahead());
    }
}
