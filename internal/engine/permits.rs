//! Permits of this runner: how many jobs of each queue may run here.
//!
//! A queue without a limit has as many as one likes. Of one with a limit this runner holds permits that it took from the
//! store ahead of the jobs (`store/permits.rs`), so that starting a job asks nobody. It asks for more when work was left
//! lying for want of them, keeps one to hear of new work, and gives the rest back within a second or two.
//!
//! Other runners take the permits of a runner that is silent for its lease and four seconds, but for those of attempts that
//! are still open. So a permit is good only while the heartbeat is answered (`rhythm.rs`): after any gap nothing starts on it until the store has confirmed it, and three
//! times in a lease it is looked up whatever happened.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::Shared;
use super::rhythm::Rhythm;
use crate::broker::Settings;
use crate::job::Name;
use crate::store::{MayJudge, PermitGrant, PermitRequest};

/// How often permits are brought in line with what they are used for, before jitter.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often a runner gives up what is beyond the smaller share, so that a limit below the number of runners is not kept by
/// one of them for ever. Not more often: until the next runner has the permit, nothing runs under it.
const YIELD_EVERY: Duration = Duration::from_secs(10);
/// For how long. Longer than the pause between two requests of another runner.
const GIVES_WAY_FOR: Duration = Duration::from_millis(1_500);
/// Permits of a queue without a limit.
const UNLIMITED: u32 = u32::MAX;
/// For how long a permit that was in use is kept for the next job, though other runners want it.
const KEPT_FOR: Duration = Duration::from_millis(300);
/// How often a runner with work for its permits looks whether it holds more than its share, while other runners want some.
const SHARE_EVERY: Duration = Duration::from_millis(500);
/// Claims of ended jobs in a row after which the lists of a queue are searched for more of them.
const STALE: u32 = 4;

/// The permits of one runner.
pub(super) struct Permits {
    queues: Vec<Held>,
    rhythm: Arc<Rhythm>,
    lease: Duration,
    /// The fetcher waits, and leaves some line alone for want of permits.
    fetcher_waits: AtomicBool,
    /// A permit is free again that the fetcher waits for.
    freed: Notify,
    /// Work was left lying for want of permits.
    hungry: Notify,
}

struct Held {
    name: Name,
    counts: Mutex<Counts>,
}

#[derive(Clone, Copy, Debug)]
struct Counts {
    /// So many may run here.
    granted: u32,
    /// So many run, or are about to.
    used: u32,
    /// So many are written down in the store; unknown after a call that failed.
    told: Option<u32>,
    /// When the store said so; absent when that cannot be relied upon.
    confirmed: Option<Confirmed>,
    /// Work was left lying since the store was last asked.
    hungry: bool,
    /// When a job last ended here, or the first permit came.
    turned: Option<Instant>,
    /// So many claims in a row found their job ended.
    stale: u32,
}

/// The store has written the permits down, or found them written down.
#[derive(Clone, Copy, Debug)]
struct Confirmed {
    /// A moment before that.
    since: Instant,
    /// The gaps of the heartbeat until then.
    gaps: u64,
}

impl Counts {
    /// So many may run here, as far as the store has confirmed it and no other runner can have taken it away since.
    fn good(&self, standing: Option<u64>, lease: Duration) -> u32 {
        let good = |confirmed: Confirmed| standing == Some(confirmed.gaps) && confirmed.since.elapsed() < lease;
        if self.granted == UNLIMITED || self.confirmed.is_some_and(good) { self.granted } else { 0 }
    }
}

impl Held {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to run one job of a queue, given back when it is dropped.
pub(super) struct Permit {
    permits: Arc<Permits>,
    queue: usize,
    /// The gaps of the heartbeat when it was taken; absent when the queue had no limit.
    gaps: Option<u64>,
    /// Did a job run under it? Not when this runner cannot run what it took, and another may be able to.
    ran: AtomicBool,
}

impl Permit {
    /// Does its queue have a limit, so that other runners take the permit when this one falls silent?
    pub(super) const fn is_limited(&self) -> bool {
        self.gaps.is_some()
    }

    /// Note what the claim under it came to: whether a job runs, or had ended already.
    pub(super) fn claimed(&self, runs: bool, had_ended: bool) {
        self.ran.store(runs, Ordering::Relaxed);
        if self.is_limited() {
            let mut counts = self.permits.queues[self.queue].counts();
            counts.stale = if had_ended { counts.stale.saturating_add(1) } else { 0 };
        }
    }

    /// The job under it is for a runner of another version, which may want this permit.
    pub(super) fn found_nothing_to_run(&self) {
        self.ran.store(false, Ordering::Relaxed);
    }

    /// May a job start on it now? Not when the runner stood still since it was taken, because another runner may have it.
    pub(super) fn is_good(&self) -> bool {
        self.gaps.is_none() || self.permits.standing() == self.gaps
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        {
            let mut counts = self.permits.queues[self.queue].counts();
            counts.used -= 1;
            if self.ran.load(Ordering::Relaxed) {
                counts.turned = Some(Instant::now());
            }
        }
        if self.permits.fetcher_waits.swap(false, Ordering::AcqRel) {
            self.permits.freed.notify_one();
        }
    }
}

impl Permits {
    /// Permits for these queues. A queue with a limit begins with none.
    pub(super) fn new(queues: &[Name], settings: &Settings, rhythm: Arc<Rhythm>, lease: Duration) -> Arc<Self> {
        let held = |name: &Name| {
            let granted = if limit(settings, name).is_some() { 0 } else { UNLIMITED };
            let counts =
                Counts { granted, used: 0, told: Some(0), confirmed: None, hungry: false, turned: None, stale: 0 };
            Held { name: name.clone(), counts: Mutex::new(counts) }
        };
        Arc::new(Self {
            queues: queues.iter().map(held).collect(),
            rhythm,
            lease,
            fetcher_waits: AtomicBool::new(false),
            freed: Notify::new(),
            hungry: Notify::new(),
        })
    }

    /// The gaps of the heartbeat so far, while no other runner can have judged this one since the last of them.
    fn standing(&self) -> Option<u64> {
        self.rhythm.standing(self.lease)
    }

    /// How many more jobs of this queue may start here; absent when there is no limit. Being told of none makes hungry.
    pub(super) fn room(&self, queue: usize) -> Option<usize> {
        let mut counts = self.queues[queue].counts();
        if counts.granted == UNLIMITED {
            return None;
        }
        let room = counts.good(self.standing(), self.lease).saturating_sub(counts.used);
        if room == 0 && !std::mem::replace(&mut counts.hungry, true) {
            self.hungry.notify_one();
        }
        Some(room as usize)
    }

    /// A permit to run a job of this queue, if there is one.
    pub(super) fn take(self: &Arc<Self>, queue: usize) -> Option<Permit> {
        let mut counts = self.queues[queue].counts();
        let gaps = if counts.granted == UNLIMITED { None } else { Some(self.standing()?) };
        (counts.used < counts.good(gaps, self.lease)).then(|| {
            counts.used += 1;
            Permit { permits: Arc::clone(self), queue, gaps, ran: AtomicBool::new(false) }
        })
    }

    /// Queues with a limit in whose lists several ids in a row were those of ended jobs.
    pub(super) fn stale_queues(&self) -> Vec<usize> {
        let stale = |queue: &usize| self.queues[*queue].counts().stale >= STALE;
        (0..self.queues.len()).filter(stale).collect()
    }

    /// The ids of ended jobs were dropped from the lists of this queue.
    pub(super) fn dropped_stale(&self, queue: usize) {
        self.queues[queue].counts().stale = 0;
    }

    /// Permits in use, of all queues.
    fn used(&self) -> u32 {
        self.queues.iter().map(|held| held.counts().used).sum()
    }

    /// The fetcher is about to wait. Said before it looks for room, so that no permit is freed unheard in between.
    pub(super) fn fetcher_waits(&self, waits: bool) {
        self.fetcher_waits.store(waits, Ordering::Release);
    }

    /// Queues of which this runner may hold permits in the store.
    fn limited(&self) -> Vec<Name> {
        let limited = self.queues.iter().filter(|held| held.counts().granted != UNLIMITED);
        limited.map(|held| held.name.clone()).collect()
    }
}

fn limit(settings: &Settings, queue: &Name) -> Option<u32> {
    settings.queues.get(queue).and_then(|set| set.concurrency)
}

/// Keep the permits in line with what operators have set and with what is used, and wake the fetcher when it matters.
pub(super) async fn keep_until_stopped(shared: Arc<Shared>) {
    tokio::join!(in_line(&shared), tell_fetcher(&shared));
}

/// Wake the fetcher for permits that are free again. Beside the other loop, which may wait for MySQL, because a permit that
/// the fetcher has not heard of looks like one without work.
async fn tell_fetcher(shared: &Shared) {
    loop {
        tokio::select! {
            () = shared.stop_loops.cancelled() => break,
            () = shared.permits.freed.notified() => nudge(shared).await,
        }
    }
}

/// Ask the store for what this runner lacks, and give back what it does not use.
async fn in_line(shared: &Shared) {
    let permits = &shared.permits;
    let mut settings = shared.controls.listen();
    let mut turns: Vec<Turn> = permits.queues.iter().map(|_| Turn::new()).collect();
    let mut looked_up = Instant::now();
    loop {
        let now = settings.borrow_and_update().clone();
        if looked_up.elapsed() >= shared.settings.lease / 3 {
            looked_up = Instant::now();
            look_up(shared).await;
        }
        let mut room = false;
        for (held, turn) in permits.queues.iter().zip(&mut turns) {
            room |= keep(shared, held, &now, turn).await;
        }
        if room && permits.fetcher_waits.swap(false, Ordering::AcqRel) {
            nudge(shared).await;
        }
        let pause = LOOK_EVERY.mul_f64(0.9 + 0.2 * rand::random::<f64>());
        let changed = async {
            // Settings are read every second; only a change of them matters here.
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
            () = changed => nudge(shared).await,
            () = permits.hungry.notified() => {}
        }
    }
}

/// Give back what is held, after the last job.
pub(super) async fn give_back(shared: &Shared) {
    let limited = shared.permits.limited();
    if limited.is_empty() {
        return;
    }
    let given = shared.store.return_permits(limited, &shared.runner);
    match tokio::time::timeout(Duration::from_secs(1), given).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "cannot give permits back; they end with the heartbeat"),
        Err(_) => tracing::debug!("mysql does not take permits back in time; they end with the heartbeat"),
    }
}

/// Look up whether the permits that this runner relies upon are still written down, all in one statement. What is not is
/// asked for anew. After a gap of the heartbeat this is not enough, because another runner may be about to take them.
async fn look_up(shared: &Shared) {
    let Some(gaps) = shared.permits.standing() else { return };
    let relied_upon = |held: &&Held| {
        let counts = held.counts();
        counts.granted != UNLIMITED && counts.confirmed.is_some_and(|confirmed| confirmed.gaps == gaps)
    };
    let held: Vec<(&Held, Option<u32>)> =
        shared.permits.queues.iter().filter(relied_upon).map(|held| (held, held.counts().told)).collect();
    if held.is_empty() {
        return;
    }
    let since = Instant::now();
    let names = held.iter().map(|(held, _)| held.name.clone()).collect();
    match shared.store.permits_of(&shared.runner, names).await {
        Ok(found) => {
            for (held, told) in held {
                let written = found.get(held.name.as_str()).copied().unwrap_or(0);
                let mut counts = held.counts();
                if told.is_some_and(|told| written >= told) {
                    counts.confirmed = Some(Confirmed { since, gaps });
                } else {
                    tracing::warn!(queue = %held.name, written, "permits of a queue are gone, asking for new ones");
                    (counts.confirmed, counts.told) = (None, None);
                }
            }
        }
        Err(error) => tracing::debug!(%error, "cannot look permits up"),
    }
}

/// What the loop remembers of a queue.
struct Turn {
    /// When the store may be asked again, of which others have all that there is.
    again: Instant,
    /// When it was asked last.
    asked: Instant,
    /// Did this runner hold any permit then?
    had: bool,
    /// Was one of them in use lately?
    lately: bool,
    /// When to give up what is beyond the smaller share, should others lack some; and until when it does so.
    yields: Instant,
    gives_way_until: Instant,
}

impl Turn {
    fn new() -> Self {
        let now = Instant::now();
        let mut turn = Self { again: now, asked: now, had: false, lately: false, yields: now, gives_way_until: now };
        turn.begin();
        turn
    }

    fn begin(&mut self) {
        self.yields = Instant::now() + YIELD_EVERY.mul_f64(0.5 + rand::random::<f64>());
    }

    /// Is it time to give way? For long enough that another runner asks meanwhile. A runner that holds nothing has nothing to
    /// give, and would refuse what another one has just given up for it.
    fn yields_now(&mut self, holds: bool) -> bool {
        let now = Instant::now();
        if now >= self.yields && !holds {
            self.begin();
        } else if now >= self.yields {
            self.gives_way_until = now + GIVES_WAY_FOR;
            self.yields = self.gives_way_until;
            self.yields += YIELD_EVERY.mul_f64(0.5 + rand::random::<f64>());
        }
        now < self.gives_way_until
    }
}

/// Bring the permits of one queue in line. True when there is room that the fetcher may have missed.
async fn keep(shared: &Shared, held: &Held, settings: &Settings, turn: &mut Turn) -> bool {
    let limit = limit(settings, &held.name);
    let workers = u32::try_from(shared.settings.workers).unwrap_or(u32::MAX);
    // Who takes no new work needs no more than it uses.
    let free = if settings.drained { 0 } else { workers.saturating_sub(shared.permits.used()) };
    let other = |(queue, runner): &(Name, String)| *queue == held.name && runner.as_str() != shared.runner.as_str();
    let others_want = settings.wanting.iter().any(other);
    // While the heartbeat is not answered others may count this runner as gone, with whatever it is given.
    let Some(gaps) = shared.permits.standing() else { return false };
    let since = Instant::now();
    let asked = {
        let mut counts = held.counts();
        let Counts { granted, used, told, confirmed, hungry, turned, .. } = *counts;
        // Between two jobs that follow each other the permit looks unused for a moment.
        let lately = turned.is_some_and(|turned| turned.elapsed() < KEPT_FOR);
        let wanted = match limit {
            None if granted == UNLIMITED => return false,
            None => used,
            Some(limit) => {
                // One more than is used, so that the first of something new starts at once, and asks for more.
                let more = match (hungry, others_want) {
                    // It has permits that no job of the queue used lately: other runners may find one.
                    (_, true) if granted > used && !lately => 0,
                    (true, _) => free,
                    (false, true) => free.min(u32::from(lately)),
                    (false, false) => free.min(1),
                };
                used.saturating_add(more).min(limit.max(used))
            }
        };
        // What has ended must not stay written down, or others wait for it.
        let idle = granted > used && !lately;
        let in_line = granted == wanted && !(others_want && (idle || turn.asked.elapsed() >= SHARE_EVERY));
        let in_vain = wanted > granted && Instant::now() < turn.again;
        let relied_upon = confirmed.is_some_and(|confirmed| confirmed.gaps == gaps) && told == Some(granted.max(used));
        if granted != UNLIMITED && limit.is_some() && relied_upon && (in_line || in_vain) {
            counts.hungry = hungry && in_vain;
            return false;
        }
        // Nothing starts while the store is asked, or it would not know of it.
        (counts.granted, counts.hungry) = (used, false);
        let yielding = others_want && turn.yields_now(granted > 0);
        (turn.asked, turn.had) = (since, granted > 0);
        turn.lately = lately || used > 0;
        PermitRequest { used, wanted, yielding }
    };
    let (rhythm, lease) = (Arc::clone(&shared.rhythm), shared.settings.lease);
    let may_judge: MayJudge = Arc::new(move |reading, theirs| {
        rhythm.read(reading, lease);
        rhythm.is_steady(lease, theirs)
    });
    let answer = shared.store.take_permits(&held.name, &shared.runner, asked, may_judge).await;
    let mut counts = held.counts();
    match answer {
        Ok(PermitGrant::Unlimited) => counts.granted = UNLIMITED,
        Ok(PermitGrant::Permits(permits)) => {
            (counts.granted, counts.told) = (permits, Some(permits.max(asked.used)));
            // A gap since the question shows when this is looked at.
            counts.confirmed = Some(Confirmed { since, gaps });
            if permits < asked.wanted {
                turn.again = Instant::now() + LOOK_EVERY;
            } else if permits == 0 && turn.had && others_want {
                // It was of no use here. What this runner pops and cannot run would make it ask again at once, before
                // any other does.
                turn.again = Instant::now() + GIVES_WAY_FOR;
            }
            if !turn.had && permits > 0 {
                turn.begin();
                counts.turned = Some(Instant::now());
            } else if turn.lately {
                // No job could start meanwhile.
                counts.turned = Some(Instant::now());
            }
        }
        Err(error) => {
            tracing::debug!(queue = %held.name, %error, "cannot bring permits in line");
            // Whether or not the call was carried out, as many as were used are written down. And a limit that this runner
            // has just heard of holds from now on.
            (counts.granted, counts.told) = (asked.used, None);
        }
    }
    counts.good(shared.permits.standing(), lease) > counts.used
}

/// Wake the fetcher wherever it waits: what it may take has changed.
async fn nudge(shared: &Shared) {
    shared.broker.wake().fetcher_may_look();
    if let Err(error) = shared.index.nudge(&shared.runner).await {
        tracing::debug!(%error, "cannot wake the fetcher");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runner_without_permits_gives_way_to_nobody() {
        let mut turn = Turn::new();
        turn.yields = Instant::now();
        assert!(!turn.yields_now(false));
        assert!(turn.yields > Instant::now(), "its time comes again, and is not saved up for the next permit");
        turn.yields = Instant::now();
        assert!(turn.yields_now(true));
        assert!(turn.yields_now(false), "what was given up is not taken back at once");
    }
}
