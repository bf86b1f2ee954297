//! The permits of this runner: how many jobs of each queue may run here.
//!
//! A queue without a concurrency limit needs no permits. For a queue with a limit, this runner takes permits from MySQL
//! before it takes jobs (`store/attempts/permits.rs`), so that starting a job needs no further request. It requests
//! more when jobs had to wait for permits. It keeps one free permit, so that it can start the first new job at once,
//! and returns the others within a second or two.
//!
//! When a runner has been silent for its lease and four seconds, other runners may take its permits, except those of
//! attempts that are still open. So a permit is good only while heartbeats are answered (`heartbeat_history.rs`). After
//! a gap in them, no job starts on a permit until MySQL has confirmed it. Besides, every third of a lease this runner
//! reads its permits back from MySQL.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::heartbeat_history::HeartbeatHistory;
use super::{EngineState, limits};
use tickr_broker::OperatorSettings;
use tickr_job::Name;
use tickr_store::{MayJudge, PermitGrant, PermitRequest};

/// Time between two adjustments of the permits held to those used, before jitter.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time between two moments when a runner settles for the rounded-down share, so that a limit below the number of
/// runners does not leave a runner without permits for ever. It is not shorter, because no job runs on a permit on its
/// way from one runner to the next.
const YIELD_EVERY: Duration = Duration::from_secs(10);
/// Time for which a runner settles for that share. Longer than the pause between two requests of another runner.
const GIVES_WAY_FOR: Duration = Duration::from_millis(1_500);
/// Number of permits that stands for a queue without a limit.
const UNLIMITED: u32 = u32::MAX;
/// Time for which a permit that was in use is kept for the next job, although other runners want it.
const KEPT_FOR: Duration = Duration::from_millis(300);
/// Time between two checks whether a runner holds more than its share, while it has work for its permits and other
/// runners want some.
const SHARE_EVERY: Duration = Duration::from_millis(500);
/// Time for which a runner starts no jobs of a queue that had no limit until now. The other runners hear of the limit
/// within this time, and MySQL then counts their jobs. Longer than the pause between two reads of the settings.
const SETTLES_FOR: Duration = Duration::from_millis(1_500);
/// After this many claims in a row that found their job ended, the ready lists of the queue are searched for more ids
/// of ended jobs.
const STALE: u32 = 4;
/// The same for a queue without a limit. It has many claims at a time, so a few ids that were delivered twice are no sign
/// of more.
const STALE_UNLIMITED: u32 = 16;

/// The permits of one runner.
pub(super) struct Permits {
    queues: Vec<QueuePermits>,
    heartbeats: Arc<HeartbeatHistory>,
    lease: Duration,
    /// The fetcher waits, and skips at least one lane because its queue has no free permit.
    fetcher_waits: AtomicBool,
    /// Signals that a permit that the fetcher waits for is free.
    freed: Notify,
    /// Signals that jobs had to wait for permits, or that a permit was taken for a job of another runner.
    hungry: Notify,
}

struct QueuePermits {
    name: Name,
    counts: Mutex<PermitCounts>,
}

#[derive(Clone, Copy, Debug)]
struct PermitCounts {
    /// Number of jobs that may run here.
    granted: u32,
    /// Number of jobs that run, or are about to.
    used: u32,
    /// Number of permits recorded in MySQL; unknown after a call that failed.
    recorded: Option<u32>,
    /// The newest confirmation by MySQL. None when the permits cannot be relied upon.
    confirmed: Option<Confirmation>,
    /// The queue has just been given a limit, and no job starts until MySQL has answered after this moment.
    settles: Option<Instant>,
    /// Jobs had to wait for permits since the last request to MySQL.
    hungry: bool,
    /// When a job last ended here, or the first permit was granted.
    turned: Option<Instant>,
    /// Number of claims in a row that found their job ended.
    stale: u32,
}

/// A confirmation that MySQL holds a record of the permits.
#[derive(Clone, Copy, Debug)]
struct Confirmation {
    /// A moment before the request that confirmed them.
    since: Instant,
    /// Number of gaps of the heartbeat until then.
    gaps: u64,
}

impl PermitCounts {
    /// Return how many jobs may run here: the granted permits while MySQL has confirmed them and no other runner can
    /// have taken them since, otherwise 0. `gaps_now` is the current number of heartbeat gaps.
    fn usable(&self, gaps_now: Option<u64>, lease: Duration) -> u32 {
        let good = |confirmed: Confirmation| gaps_now == Some(confirmed.gaps) && confirmed.since.elapsed() < lease;
        let may_start = self.settles.is_none() && self.confirmed.is_some_and(good);
        if self.granted == UNLIMITED || may_start { self.granted } else { 0 }
    }
}

impl QueuePermits {
    fn counts(&self) -> MutexGuard<'_, PermitCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to run one job of a queue. Dropping it frees the permit.
pub(super) struct Permit {
    permits: Arc<Permits>,
    queue: usize,
    /// Number of heartbeat gaps when the permit was taken. None when the queue had no limit.
    gaps: Option<u64>,
    /// A job ran on this permit. False when this runner cannot run the job that it took; another runner may be able to.
    ran: AtomicBool,
}

impl Permit {
    /// Return whether the queue has a limit, so that other runners may take the permit when this runner falls silent.
    const fn is_limited(&self) -> bool {
        self.gaps.is_some()
    }

    /// Return whether other jobs may wait for this permit.
    pub(super) fn is_scarce(&self) -> bool {
        self.is_limited() || self.permits.are_scarce(self.queue)
    }

    /// Return the queue of the job that runs on the permit.
    pub(super) fn queue(&self) -> &Name {
        &self.permits.queues[self.queue].name
    }

    /// Record the result of the claim made with this permit: whether a job runs, and whether the job had already ended.
    pub(super) fn record_claim(&self, runs: bool, had_ended: bool) {
        self.ran.store(runs, Ordering::Relaxed);
        let mut counts = self.permits.queues[self.queue].counts();
        counts.stale = if had_ended { counts.stale.saturating_add(1) } else { 0 };
    }

    /// Record that the job taken with this permit is for a runner of another version, which may want the permit.
    pub(super) fn mark_unused(&self) {
        self.ran.store(false, Ordering::Relaxed);
    }

    /// Return whether a job may start on this permit now. Not if the heartbeat had a gap since the permit was taken,
    /// because another runner may have it by now. And not if the limit of the queue was set or lowered since, until
    /// enough jobs have ended.
    pub(super) fn is_usable(&self) -> bool {
        if self.gaps.is_some() && self.permits.confirmed_gaps() != self.gaps {
            return false;
        }
        let counts = self.permits.queues[self.queue].counts();
        counts.granted == UNLIMITED || (counts.settles.is_none() && counts.used <= counts.granted)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        {
            let mut counts = self.permits.queues[self.queue].counts();
            counts.used -= 1;
            if self.ran.load(Ordering::Relaxed) {
                counts.turned = Some(Instant::now());
            } else if self.is_limited() {
                // The job is for another runner. While this one tries it again and again, the permit is unused only
                // between two tries, so that is the moment to give the permit away.
                self.permits.hungry.notify_one();
            }
        }
        if self.permits.fetcher_waits.swap(false, Ordering::AcqRel) {
            self.permits.freed.notify_one();
        }
    }
}

impl Permits {
    /// Create the permits of these queues. A queue with a limit starts with none.
    pub(super) fn new(
        queues: &[Name],
        settings: &OperatorSettings,
        heartbeats: Arc<HeartbeatHistory>,
        lease: Duration,
    ) -> Arc<Self> {
        let held = |name: &Name| {
            let granted = if limit(settings, name).is_some() { 0 } else { UNLIMITED };
            let counts = PermitCounts {
                granted,
                used: 0,
                recorded: Some(0),
                confirmed: None,
                settles: None,
                hungry: false,
                turned: None,
                stale: 0,
            };
            QueuePermits { name: name.clone(), counts: Mutex::new(counts) }
        };
        Arc::new(Self {
            queues: queues.iter().map(held).collect(),
            heartbeats,
            lease,
            fetcher_waits: AtomicBool::new(false),
            freed: Notify::new(),
            hungry: Notify::new(),
        })
    }

    /// Return the number of heartbeat gaps so far. None when another runner may have called this one dead since the
    /// last answered heartbeat.
    fn confirmed_gaps(&self) -> Option<u64> {
        self.heartbeats.confirmed_gaps(self.lease)
    }

    /// Return how many more jobs of this queue may start here; None when it has no limit. An answer of 0 makes this
    /// runner request more permits.
    pub(super) fn room(&self, queue: usize) -> Option<usize> {
        let mut counts = self.queues[queue].counts();
        if counts.granted == UNLIMITED {
            return None;
        }
        let room = counts.usable(self.confirmed_gaps(), self.lease).saturating_sub(counts.used);
        if room == 0 && !std::mem::replace(&mut counts.hungry, true) {
            self.hungry.notify_one();
        }
        Some(room as usize)
    }

    /// Take a permit to run a job of this queue, if one is free.
    pub(super) fn take(self: &Arc<Self>, queue: usize) -> Option<Permit> {
        let mut counts = self.queues[queue].counts();
        let gaps = if counts.granted == UNLIMITED { None } else { Some(self.confirmed_gaps()?) };
        (counts.used < counts.usable(gaps, self.lease)).then(|| {
            counts.used += 1;
            Permit { permits: Arc::clone(self), queue, gaps, ran: AtomicBool::new(false) }
        })
    }

    /// Return whether the queue has a limit now, so that jobs may wait for its permits.
    pub(super) fn are_scarce(&self, queue: usize) -> bool {
        self.queues[queue].counts().granted != UNLIMITED
    }

    /// Return the queues whose ready lists recently gave several ids of ended jobs in a row.
    pub(super) fn stale_queues(&self) -> Vec<usize> {
        let stale = |queue: &usize| {
            let counts = self.queues[*queue].counts();
            counts.stale >= if counts.granted == UNLIMITED { STALE_UNLIMITED } else { STALE }
        };
        (0..self.queues.len()).filter(stale).collect()
    }

    /// Note that the ids of ended jobs were dropped from the ready lists of this queue.
    pub(super) fn clear_stale(&self, queue: usize) {
        self.queues[queue].counts().stale = 0;
    }

    /// Return the number of permits in use, over all queues.
    fn used(&self) -> u32 {
        self.queues.iter().map(|held| held.counts().used).sum()
    }

    /// Note that the fetcher is about to wait. It calls this before it looks for room, so that it hears of every permit
    /// that is freed in between.
    pub(super) fn fetcher_waits(&self, waits: bool) {
        self.fetcher_waits.store(waits, Ordering::Release);
    }

    /// Return the queues of which this runner may hold permits in MySQL.
    fn limited(&self) -> Vec<Name> {
        let limited = self.queues.iter().filter(|held| held.counts().granted != UNLIMITED);
        limited.map(|held| held.name.clone()).collect()
    }
}

fn limit(settings: &OperatorSettings, queue: &Name) -> Option<u32> {
    settings.queues.get(queue).and_then(|set| set.concurrency)
}

/// Adjust the permits to the settings of the operators and to what is in use, and wake the fetcher when it may start
/// more.
pub(super) async fn keep_until_stopped(shared: Arc<EngineState>) {
    tokio::join!(
        adjust_until_stopped(&shared),
        wake_fetcher_until_stopped(&shared),
        limits::sweep_until_stopped(&shared)
    );
}

/// Wake the fetcher when a permit is free again. This runs beside the loop that waits for MySQL: until the fetcher
/// hears of a free permit, that loop would count the permit as unused.
async fn wake_fetcher_until_stopped(shared: &EngineState) {
    loop {
        tokio::select! {
            () = shared.stop_loops.cancelled() => break,
            () = shared.permits.freed.notified() => wake_fetcher(shared).await,
        }
    }
}

/// Request the permits that this runner lacks from MySQL, and return those that it does not use.
async fn adjust_until_stopped(shared: &EngineState) {
    let permits = &shared.permits;
    let mut settings = shared.operator_settings.listen();
    let mut turns: Vec<QueueTurn> = permits.queues.iter().map(|_| QueueTurn::new()).collect();
    let mut looked_up = Instant::now();
    loop {
        let now = settings.borrow_and_update().clone();
        if looked_up.elapsed() >= shared.settings.lease / 3 {
            looked_up = Instant::now();
            confirm_permits(shared).await;
        }
        let mut room = false;
        for (held, turn) in permits.queues.iter().zip(&mut turns) {
            room |= adjust(shared, held, &now, turn).await;
        }
        if room && permits.fetcher_waits.swap(false, Ordering::AcqRel) {
            wake_fetcher(shared).await;
        }
        let pause = LOOK_EVERY.mul_f64(0.9 + 0.2 * rand::random::<f64>());
        let changed = async {
            // The settings are read again every second. Only changes of queues matter here.
            loop {
                if settings.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
                if settings.borrow().queues != now.queues {
                    return;
                }
            }
        };
        tokio::select! {
            () = shared.stop_loops.cancelled() => break,
            () = tokio::time::sleep(pause) => {}
            () = changed => wake_fetcher(shared).await,
            () = permits.hungry.notified() => {}
        }
    }
}

/// Return all permits to MySQL, after the last job.
pub(super) async fn give_back(shared: &EngineState) {
    let limited = shared.permits.limited();
    if limited.is_empty() {
        return;
    }
    let given = shared.store.return_permits(limited, &shared.runner);
    match tokio::time::timeout(Duration::from_secs(1), given).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "cannot return permits, other runners will take them over"),
        Err(_) => tracing::debug!("mysql did not take permits back in time, other runners will take them over"),
    }
}

/// Read the permits that this runner relies upon back from MySQL, in one statement. Those that MySQL no longer records
/// are requested again. After a gap of the heartbeat this check is not enough, because another runner may be about to
/// take the permits.
async fn confirm_permits(shared: &EngineState) {
    let Some(gaps) = shared.permits.confirmed_gaps() else { return };
    let relied_upon = |held: &&QueuePermits| {
        let counts = held.counts();
        counts.granted != UNLIMITED && counts.confirmed.is_some_and(|confirmed| confirmed.gaps == gaps)
    };
    let held: Vec<(&QueuePermits, Option<u32>)> =
        shared.permits.queues.iter().filter(relied_upon).map(|held| (held, held.counts().recorded)).collect();
    if held.is_empty() {
        return;
    }
    let since = Instant::now();
    let names = held.iter().map(|(held, _)| held.name.clone()).collect();
    match shared.store.permits_of(&shared.runner, names).await {
        Ok(found) => {
            for (held, recorded) in held {
                let written = found.get(held.name.as_str()).copied().unwrap_or(0);
                let mut counts = held.counts();
                if recorded.is_some_and(|recorded| written >= recorded) {
                    counts.confirmed = Some(Confirmation { since, gaps });
                } else {
                    tracing::warn!(queue = %held.name, written, "mysql no longer records the permits of a queue, requesting new ones");
                    (counts.confirmed, counts.recorded) = (None, None);
                }
            }
        }
        Err(error) => tracing::debug!(%error, "cannot read permits"),
    }
}

/// State that the loop keeps for a queue.
struct QueueTurn {
    /// When to send the next request, after other runners were found to hold all permits there are.
    again: Instant,
    /// When the last request was sent.
    asked: Instant,
    /// When to send the next request after one that failed, so that a queue whose row is locked does not hold up the
    /// others all the time.
    retry: Instant,
    /// This runner held a permit at that time.
    had: bool,
    /// A job ran on one of them shortly before.
    recently_used: bool,
    /// The limit that MySQL last answered for.
    limit: Option<u32>,
    /// When to settle for the rounded-down share, if other runners want permits; and until when that lasts.
    yields: Instant,
    yields_until: Instant,
}

impl QueueTurn {
    fn new() -> Self {
        let now = Instant::now();
        let mut turn = Self {
            again: now,
            asked: now,
            retry: now,
            had: false,
            recently_used: false,
            limit: None,
            yields: now,
            yields_until: now,
        };
        turn.begin();
        turn
    }

    fn begin(&mut self) {
        self.yields = Instant::now() + YIELD_EVERY.mul_f64(0.5 + rand::random::<f64>());
    }

    /// Return whether this runner now settles for the rounded-down share. That lasts long enough for another runner to
    /// send a request. A runner without permits skips it: it has none to give, and would refuse those that another
    /// runner just gave up for it.
    fn yields_now(&mut self, holds: bool) -> bool {
        let now = Instant::now();
        if now >= self.yields && !holds {
            self.begin();
        } else if now >= self.yields {
            self.yields_until = now + GIVES_WAY_FOR;
            self.yields = self.yields_until;
            self.yields += YIELD_EVERY.mul_f64(0.5 + rand::random::<f64>());
        }
        now < self.yields_until
    }
}

/// Adjust the permits of one queue. Return true when there is room that the fetcher may not know of.
async fn adjust(shared: &EngineState, held: &QueuePermits, settings: &OperatorSettings, turn: &mut QueueTurn) -> bool {
    let limit = limit(settings, &held.name);
    let seats = u32::try_from(shared.workers.seats()).unwrap_or(u32::MAX);
    // A drained runner takes no new work, so it needs only the permits in use.
    // A job whose handler has returned keeps its permit until MySQL has written its verdict, but not its seat.
    let settling = u32::try_from(shared.workers.settling()).unwrap_or(u32::MAX);
    let running = shared.permits.used().saturating_sub(settling);
    let free = if settings.drained { 0 } else { seats.saturating_sub(running) };
    let other = |(queue, runner): &(Name, String)| *queue == held.name && runner.as_str() != shared.runner.as_str();
    let others_want = settings.wanting.iter().any(other);
    // While heartbeats are not answered, other runners may call this one dead and take whatever it is granted.
    let Some(gaps) = shared.permits.confirmed_gaps() else { return false };
    let since = Instant::now();
    if since < turn.retry {
        return false;
    }
    let (asked, settled) = {
        let mut counts = held.counts();
        let PermitCounts { granted, used, recorded, confirmed, settles, hungry, turned, .. } = *counts;
        // Between two consecutive jobs a permit looks unused for a moment.
        let recently_used = turned.is_some_and(|turned| turned.elapsed() < KEPT_FOR);
        let wanted = match limit {
            None if granted == UNLIMITED => return false,
            None => used,
            Some(limit) => {
                // One more than is in use: it starts the first new job at once, and a job that then waits makes this
                // runner request more.
                let more = match (hungry, others_want) {
                    // No job of the queue used the free permits lately. Other runners may have a job for them. After a
                    // request without an answer, MySQL may still record free permits of which this runner knows
                    // nothing, so it gives them back before it asks again.
                    (_, true) if (granted > used || recorded.is_none()) && !recently_used => 0,
                    (true, _) => free,
                    (false, true) => free.min(u32::from(recently_used)),
                    (false, false) => free.min(1),
                };
                used.saturating_add(more).min(limit.max(used))
            }
        };
        // Permits of ended jobs must not stay recorded, or other runners wait for them.
        let idle = granted > used && !recently_used;
        let has_share = granted == wanted && !(others_want && (idle || turn.asked.elapsed() >= SHARE_EVERY));
        let in_vain = wanted > granted && since < turn.again;
        let settles = if granted == UNLIMITED { Some(since + SETTLES_FOR) } else { settles };
        let settled = settles.is_some_and(|settles| since >= settles);
        let settling = settles.is_some() && !settled;
        let relied_upon =
            confirmed.is_some_and(|confirmed| confirmed.gaps == gaps) && recorded == Some(granted.max(used));
        // A runner that is never short of jobs would go on with the permits of the former limit.
        let same_limit = limit == turn.limit && !settled;
        if granted != UNLIMITED && limit.is_some() && relied_upon && same_limit && (has_share || in_vain) {
            counts.hungry = hungry && (in_vain || settling);
            return false;
        }
        counts.settles = settles;
        // No job starts during the request: MySQL would not know of it.
        (counts.granted, counts.hungry) = (used, false);
        let yielding = others_want && turn.yields_now(granted > 0);
        (turn.asked, turn.had) = (since, granted > 0);
        turn.recently_used = recently_used;
        (PermitRequest { used, wanted, yielding }, settled)
    };
    let (heartbeats, lease) = (Arc::clone(&shared.heartbeats), shared.settings.lease);
    let may_judge: MayJudge = Arc::new(move |reading, theirs| {
        heartbeats.record_clock(reading, lease);
        heartbeats.may_call_dead(lease, theirs)
    });
    let answer = shared.store.take_permits(&held.name, &shared.runner, asked, may_judge).await;
    let mut counts = held.counts();
    match answer {
        Ok(PermitGrant::Unlimited) => {
            (counts.granted, counts.settles) = (UNLIMITED, None);
            turn.limit = None;
        }
        Ok(PermitGrant::Permits(permits)) => {
            (counts.granted, counts.recorded) = (permits, Some(permits.max(asked.used)));
            if settled {
                counts.settles = None;
            }
            turn.limit = limit;
            // If a gap came after the request was sent, `gaps` is out of date and the permits do not count as good.
            counts.confirmed = Some(Confirmation { since, gaps });
            if permits < asked.wanted {
                turn.again = Instant::now() + LOOK_EVERY;
            } else if permits == 0 && turn.had && others_want {
                // The permit was of no use here. This runner may keep popping an id that it cannot run, and would then
                // request the permit again before any other runner.
                turn.again = Instant::now() + GIVES_WAY_FOR;
            }
            if !turn.had && permits > 0 {
                turn.begin();
                counts.turned = Some(Instant::now());
            } else if turn.recently_used || counts.turned.is_some_and(|turned| turned >= since) {
                // No job could start during the request.
                counts.turned = Some(Instant::now());
            }
        }
        Err(error) => {
            tracing::debug!(queue = %held.name, %error, "cannot adjust permits");
            // Whether or not MySQL carried out the call, it records at least the permits in use. And if the queue has
            // just been given a limit, the limit holds from now on.
            (counts.granted, counts.recorded) = (asked.used, None);
            turn.retry = Instant::now() + LOOK_EVERY;
        }
    }
    counts.usable(shared.permits.confirmed_gaps(), lease) > counts.used
}

/// Wake the fetcher, whether it waits for MySQL or for Redis: what it may take has changed.
async fn wake_fetcher(shared: &EngineState) {
    shared.broker.wake().fetcher_may_look();
    if let Err(error) = shared.index.nudge(&shared.runner).await {
        tracing::debug!(%error, "cannot wake the fetcher");
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_permit_that_was_taken_for_a_job_of_another_runner_is_looked_at_at_once() {
        let lease = Duration::from_secs(30);
        let heartbeats = Arc::new(HeartbeatHistory::default());
        heartbeats.record_beat(Instant::now(), lease);
        let queue: Name = "one".parse().unwrap();
        let permits = Permits::new(&[queue], &OperatorSettings::default(), heartbeats, lease);
        {
            let mut counts = permits.queues[0].counts();
            (counts.granted, counts.confirmed) = (1, Some(Confirmation { since: Instant::now(), gaps: 0 }));
        }
        let mut woken = Vec::new();
        for runs in [true, false] {
            let permit = permits.take(0).unwrap();
            permit.record_claim(runs, false);
            drop(permit);
            woken.push(permits.hungry.notified().now_or_never().is_some());
            assert_eq!(permits.queues[0].counts().turned.take().is_some(), runs, "a job ran on it");
        }
        assert_eq!(woken, [false, true]);
    }

    #[test]
    fn a_runner_without_permits_gives_way_to_nobody() {
        let mut turn = QueueTurn::new();
        turn.yields = Instant::now();
        assert!(!turn.yields_now(false));
        assert!(turn.yields > Instant::now(), "its time comes again, and is not saved up for the next permit");
        turn.yields = Instant::now();
        assert!(turn.yields_now(true));
        assert!(turn.yields_now(false), "what was given up is not taken back at once");
    }
}
