//! How the index is doing, as one runner sees it.

use tokio::sync::watch;

use super::IndexError;
use crate::event::Health;

/// The shared cell of the condition. The index itself reports here whenever Redis fails it; everybody who depends on it
/// looks.
#[derive(Debug)]
pub struct IndexHealth {
    condition: watch::Sender<Condition>,
}

#[derive(Clone, Copy, Debug)]
struct Condition {
    health: Health,
    /// How often Redis failed somebody. A rebuild that began before the last time has not seen what was missed since.
    troubles: u64,
    /// How often it did not answer, or refused.
    outages: u64,
}

impl IndexHealth {
    pub(super) fn new() -> Self {
        // Nothing is known yet, so the first answer leads to a rebuild: of an index left by an earlier run it adds
        // only what is missing.
        Self { condition: watch::Sender::new(Condition { health: Health::Rebuilding, troubles: 0, outages: 0 }) }
    }

    /// The condition now.
    #[must_use]
    pub fn now(&self) -> Health {
        self.condition.borrow().health
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
            change(condition, to, &error.to_string());
        });
    }

    /// Redis took a write. After a time without it hints may be missing, so the way back leads through a rebuild.
    ///
    /// That it answers is not enough: a replica and a Redis without memory answer questions too, and a runner that took
    /// them for healthy would go back and forth.
    pub(super) fn wrote(&self) {
        self.condition.send_if_modified(|condition| {
            condition.health == Health::Degraded && change(condition, Health::Rebuilding, "redis takes writes again")
        });
    }

    /// A rebuild is done that began when [`troubles`](Self::troubles) was `seen`. False when it must be done again,
    /// because Redis failed somebody meanwhile.
    pub fn rebuilt(&self, seen: u64) -> bool {
        self.condition.send_if_modified(|condition| {
            let done = condition.health == Health::Rebuilding && condition.troubles == seen;
            if done {
                condition.health = Health::Fast;
                tracing::info!("index is whole");
            }
            done
        })
    }
}

fn change(condition: &mut Condition, to: Health, why: &str) -> bool {
    let changed = condition.health != to;
    if changed {
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
        assert!(!health.rebuilt(seen));
        assert_eq!(health.now(), Health::Rebuilding);
        assert!(health.rebuilt(health.troubles()));
        assert_eq!(health.now(), Health::Fast);
    }

    #[test]
    fn only_a_write_ends_an_outage_and_a_rebuild_follows() {
        let health = IndexHealth::new();
        health.failed(&OUT);
        assert!(!health.rebuilt(health.troubles()));
        assert_eq!(health.now(), Health::Degraded);
        health.wrote();
        assert_eq!(health.now(), Health::Rebuilding);
    }
}
