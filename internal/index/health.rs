//! How the index is doing, as one runner sees it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::IndexError;
use crate::event::Health;

/// The shared cell of the condition. The index itself reports here whenever Redis fails it; everybody who depends on it
/// looks.
#[derive(Debug)]
pub struct IndexHealth {
    condition: watch::Sender<Condition>,
    /// How much was missing at the last comparison with the store, and when that was.
    drift: Mutex<Option<Drift>>,
}

/// Why the index is fed from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The runner started, and did not know what there is.
    Start,
    /// Redis had lost its state, or went back in time.
    LostState,
    /// Redis was out, and hints were dropped.
    Outage,
    /// An operator asked for it.
    Asked,
}

impl Cause {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::LostState => "lost_state",
            Self::Outage => "outage",
            Self::Asked => "asked",
        }
    }
}

/// A rebuild that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rebuilt {
    /// When it was done.
    pub at: Instant,
    /// Jobs that were missing and were hinted.
    pub jobs: usize,
    /// How long the feeding took.
    pub took: Duration,
    /// Why there was one.
    pub cause: Cause,
}

/// A comparison with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drift {
    /// When.
    pub at: Instant,
    /// Jobs that the index should have held and did not, or for another time. They were hinted again.
    pub jobs: usize,
}

/// How the index is doing, all at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Bearing {
    /// The condition.
    pub health: Health,
    /// Since when.
    pub since: Instant,
    /// Why it is being fed, while it is.
    pub cause: Option<Cause>,
    /// The last rebuild.
    pub last: Option<Rebuilt>,
    /// The last comparison.
    pub drift: Option<Drift>,
}

#[derive(Clone, Copy, Debug)]
struct Condition {
    health: Health,
    since: Instant,
    /// Why it is being fed, or was last.
    cause: Cause,
    /// Is what there is to be forgotten before it is fed?
    forget: bool,
    last: Option<Rebuilt>,
    /// How often Redis failed somebody. A rebuild that began before the last time has not seen what was missed since.
    troubles: u64,
    /// How often it did not answer, or refused.
    outages: u64,
}

impl IndexHealth {
    pub(super) fn new() -> Self {
        // Nothing is known yet, so the first answer leads to a rebuild: of an index left by an earlier run it adds
        // only what is missing.
        let (since, cause) = (Instant::now(), Cause::Start);
        let health = Health::Rebuilding;
        let condition = Condition { health, since, cause, forget: false, last: None, troubles: 0, outages: 0 };
        Self { condition: watch::Sender::new(condition), drift: Mutex::new(None) }
    }

    /// The condition now.
    #[must_use]
    pub fn now(&self) -> Health {
        self.condition.borrow().health
    }

    /// All that is known.
    #[must_use]
    pub fn bearing(&self) -> Bearing {
        let Condition { health, since, cause, last, .. } = *self.condition.borrow();
        let drift = *self.drift.lock().unwrap_or_else(PoisonError::into_inner);
        Bearing { health, since, cause: (health == Health::Rebuilding).then_some(cause), last, drift }
    }

    /// The index was compared with the store, and lacked so many jobs.
    pub fn compared(&self, jobs: usize) {
        *self.drift.lock().unwrap_or_else(PoisonError::into_inner) = Some(Drift { at: Instant::now(), jobs });
    }

    /// An operator asks for a rebuild from nothing. True when it begins with that; otherwise one is under way, or follows
    /// when Redis is back.
    pub fn ask_for_rebuild(&self) -> bool {
        self.condition.send_if_modified(|condition| {
            let fast = condition.health == Health::Fast;
            if fast {
                condition.forget = true;
                change(condition, Health::Rebuilding, Cause::Asked, "an operator asked for it");
            }
            fast
        })
    }

    /// A rebuild begins: should it begin with nothing? Asked once.
    pub fn begins_from_nothing(&self) -> bool {
        let mut forget = false;
        self.condition.send_if_modified(|condition| {
            forget = std::mem::take(&mut condition.forget);
            false
        });
        forget
    }

    /// How often Redis failed somebody so far.
    #[must_use]
    pub fn troubles(&self) -> u64 {
        self.condition.borrow().troubles
    }

    /// How often Redis did not answer somebody, or refused.
    #[must_use]
    pub fn outages(&self) -> u64 {
        self.condition.borrow().outages
    }

    /// Resolves when there was an outage since their count was `seen`, also when it is over by then.
    pub async fn out_since(&self, seen: u64) {
        // The sender lives as long as this, so there is always an answer.
        let _ = self.condition.subscribe().wait_for(|condition| condition.outages > seen).await;
    }

    /// The condition, once it is another than `seen`.
    pub async fn other_than(&self, seen: Health) -> Health {
        let mut condition = self.condition.subscribe();
        // The sender lives as long as this, so there is always an answer.
        condition.wait_for(|condition| condition.health != seen).await.map_or(seen, |condition| condition.health)
    }

    /// Redis failed somebody. Logged once, at the change. An index that has lost its state has answered: a Redis that
    /// was out and comes back empty is rebuilt like one that was flushed.
    pub(super) fn failed(&self, error: &IndexError) {
        let to = match error {
            IndexError::Lost { .. } => Health::Rebuilding,
            IndexError::Unavailable { .. } | IndexError::Url => Health::Degraded,
        };
        self.condition.send_modify(|condition| {
            condition.troubles += 1;
            condition.outages += u64::from(to == Health::Degraded);
            change(condition, to, Cause::LostState, &error.to_string());
        });
    }

    /// Redis took a write. After a time without it hints may be missing, so the way back leads through a rebuild.
    ///
    /// That it answers is not enough: a replica and a Redis without memory answer questions too, and a runner that took
    /// them for healthy would go back and forth.
    pub(super) fn wrote(&self) {
        self.condition.send_if_modified(|condition| {
            condition.health == Health::Degraded
                && change(condition, Health::Rebuilding, Cause::Outage, "redis takes writes again")
        });
    }

    /// A rebuild is done that began when [`troubles`](Self::troubles) was `seen`, took so long and hinted so many jobs.
    /// False when it must be done again, because Redis failed somebody meanwhile.
    pub fn rebuilt(&self, seen: u64, jobs: usize, took: Duration) -> bool {
        self.condition.send_if_modified(|condition| {
            let done = condition.health == Health::Rebuilding && condition.troubles == seen;
            if done {
                let at = Instant::now();
                condition.health = Health::Fast;
                condition.since = at;
                condition.last = Some(Rebuilt { at, jobs, took, cause: condition.cause });
                tracing::info!("index is whole");
            }
            done
        })
    }
}

/// `cause` is why it is being fed, if that is what it changes to.
fn change(condition: &mut Condition, to: Health, cause: Cause, why: &str) -> bool {
    let changed = condition.health != to;
    if changed {
        condition.since = Instant::now();
        if to == Health::Rebuilding {
            condition.cause = cause;
        }
        tracing::warn!(from = condition.health.as_str(), to = to.as_str(), why, "index health changed");
        condition.health = to;
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: IndexError = IndexError::Unavailable { attempted: "ask", cause: String::new() };

    #[test]
    fn a_rebuild_that_redis_failed_somebody_during_does_not_count() {
        let health = IndexHealth::new();
        let seen = health.troubles();
        // A hint fails while the rebuild reads the store, and Redis is back before it ends.
        health.failed(&OUT);
        health.wrote();
        assert_eq!(health.now(), Health::Rebuilding);
        assert!(!health.rebuilt(seen, 0, Duration::ZERO));
        assert_eq!(health.now(), Health::Rebuilding);
        assert!(health.rebuilt(health.troubles(), 0, Duration::ZERO));
        assert_eq!(health.now(), Health::Fast);
    }

    #[test]
    fn only_a_write_ends_an_outage_and_a_rebuild_follows() {
        let health = IndexHealth::new();
        health.failed(&OUT);
        assert!(!health.rebuilt(health.troubles(), 0, Duration::ZERO));
        assert_eq!(health.now(), Health::Degraded);
        health.wrote();
        assert_eq!(health.now(), Health::Rebuilding);
    }

    #[test]
    fn a_rebuild_remembers_why_there_was_one() {
        let health = IndexHealth::new();
        assert_eq!(health.bearing().cause, Some(Cause::Start));
        assert!(!health.ask_for_rebuild(), "one is under way");
        assert!(health.rebuilt(0, 7, Duration::from_millis(5)));
        let last = health.bearing().last.unwrap();
        assert_eq!((last.cause, last.jobs, health.bearing().cause), (Cause::Start, 7, None));

        assert!(!health.begins_from_nothing());
        assert!(health.ask_for_rebuild());
        assert!(health.begins_from_nothing() && !health.begins_from_nothing());
        // The state is forgotten on purpose, and somebody notices.
        health.failed(&IndexError::Lost { attempted: "look" });
        assert_eq!(health.bearing().cause, Some(Cause::Asked));
        assert!(health.rebuilt(health.troubles(), 8, Duration::ZERO));
        assert_eq!(health.bearing().last.unwrap().cause, Cause::Asked);

        health.failed(&OUT);
        assert!(!health.ask_for_rebuild(), "nothing can be fed");
        health.wrote();
        assert_eq!(health.bearing().cause, Some(Cause::Outage));
    }
}
