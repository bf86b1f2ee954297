//! Permits of this runner: how many jobs of each queue may run here.
//!
//! A queue without a limit has as many as one likes. Of one with a limit this runner holds permits that it took from the
//! store ahead of the jobs (`store/permits.rs`), so that starting a job asks nobody. It asks for more when work was left
//! lying for want of them, keeps one to hear of new work, and gives the rest back within a second or two.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::Shared;
use crate::broker::Settings;
use crate::job::Name;
use crate::store::{PermitGrant, PermitRequest};

/// How often permits are brought in line with what they are used for, before jitter.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// One request in so many gives up what is beyond the smaller share, so that a limit below the number of runners is not
/// kept by one of them for ever.
const YIELDS: u32 = 10;
/// Permits of a queue without a limit.
const UNLIMITED: u32 = u32::MAX;

/// The permits of one runner.
pub(super) struct Permits {
    queues: Vec<Held>,
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
    /// So many are written down in the store.
    told: u32,
    /// Work was left lying since the store was last asked.
    hungry: bool,
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
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.queues[self.queue].counts().used -= 1;
        if self.permits.fetcher_waits.swap(false, Ordering::AcqRel) {
            self.permits.freed.notify_one();
        }
    }
}

impl Permits {
    /// Permits for these queues. A queue with a limit begins with none.
    pub(super) fn new(queues: &[Name], settings: &Settings) -> Arc<Self> {
        let held = |name: &Name| {
            let granted = if limit(settings, name).is_some() { 0 } else { UNLIMITED };
            Held { name: name.clone(), counts: Mutex::new(Counts { granted, used: 0, told: 0, hungry: false }) }
        };
        let queues = queues.iter().map(held).collect();
        Arc::new(Self { queues, fetcher_waits: AtomicBool::new(false), freed: Notify::new(), hungry: Notify::new() })
    }

    /// How many more jobs of this queue may start here; absent when there is no limit. Being told of none makes hungry.
    pub(super) fn room(&self, queue: usize) -> Option<usize> {
        let mut counts = self.queues[queue].counts();
        if counts.granted == UNLIMITED {
            return None;
        }
        let room = counts.granted.saturating_sub(counts.used);
        if room == 0 && !std::mem::replace(&mut counts.hungry, true) {
            self.hungry.notify_one();
        }
        Some(room as usize)
    }

    /// A permit to run a job of this queue, if there is one.
    pub(super) fn take(self: &Arc<Self>, queue: usize) -> Option<Permit> {
        let mut counts = self.queues[queue].counts();
        (counts.used < counts.granted).then(|| {
            counts.used += 1;
            Permit { permits: Arc::clone(self), queue }
        })
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
    let permits = &shared.permits;
    let mut settings = shared.controls.listen();
    // When the store may be asked again about a queue of which others have all that there is.
    let mut again = vec![Instant::now(); permits.queues.len()];
    loop {
        let now = settings.borrow_and_update().clone();
        let mut room = false;
        for (held, again) in permits.queues.iter().zip(&mut again) {
            room |= keep(&shared, held, &now, again).await;
        }
        if room && permits.fetcher_waits.swap(false, Ordering::AcqRel) {
            nudge(&shared).await;
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
            () = changed => nudge(&shared).await,
            () = permits.freed.notified() => nudge(&shared).await,
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

/// Bring the permits of one queue in line. True when there is room that the fetcher may have missed.
async fn keep(shared: &Shared, held: &Held, settings: &Settings, again: &mut Instant) -> bool {
    let limit = limit(settings, &held.name);
    let workers = u32::try_from(shared.settings.workers).unwrap_or(u32::MAX);
    // Who takes no new work needs no more than it uses.
    let free = if settings.drained { 0 } else { workers.saturating_sub(shared.permits.used()) };
    let other = |(queue, runner): &(Name, String)| *queue == held.name && runner.as_str() != shared.runner.as_str();
    let others_want = settings.wanting.iter().any(other);
    let (asked, before) = {
        let mut counts = held.counts();
        let before = *counts;
        let Counts { granted, used, told, hungry } = before;
        let wanted = match limit {
            None if granted == UNLIMITED => return false,
            None => used,
            Some(limit) => {
                // One more than is used, so that the first of something new starts at once, and asks for more.
                let more = if hungry { free } else { free.min(u32::from(!others_want)) };
                used.saturating_add(more).min(limit.max(used))
            }
        };
        // What has ended must not stay written down, or others wait for it.
        let in_line = granted == wanted && !(others_want && granted > used);
        let in_vain = wanted > granted && Instant::now() < *again;
        if granted != UNLIMITED && limit.is_some() && told == granted.max(used) && (in_line || in_vain) {
            counts.hungry = hungry && in_vain;
            return false;
        }
        // Nothing starts while the store is asked, or it would not know of it.
        (counts.granted, counts.hungry) = (used, false);
        (PermitRequest { used, wanted, yielding: rand::random_ratio(1, YIELDS) }, before)
    };
    let answer = shared.store.take_permits(&held.name, &shared.runner, asked).await;
    let mut counts = held.counts();
    match answer {
        Ok(PermitGrant::Unlimited) => counts.granted = UNLIMITED,
        Ok(PermitGrant::Permits(permits)) => {
            (counts.granted, counts.told) = (permits, permits.max(asked.used));
            if permits < asked.wanted {
                *again = Instant::now() + LOOK_EVERY;
            }
        }
        Err(error) => {
            tracing::debug!(queue = %held.name, %error, "cannot bring permits in line");
            // A limit that this runner has just heard of holds from now on, whoever can be asked.
            counts.granted = if before.granted == UNLIMITED { 0 } else { before.granted };
        }
    }
    counts.granted > counts.used
}

/// Wake the fetcher wherever it waits: what it may take has changed.
async fn nudge(shared: &Shared) {
    shared.broker.wake().fetcher_may_look();
    if let Err(error) = shared.index.nudge(&shared.runner).await {
        tracing::debug!(%error, "cannot wake the fetcher");
    }
}
