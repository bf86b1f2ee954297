//! How the index is doing, as one runner sees it.

use tokio::sync::watch;

use crate::event::Health;

/// The shared cell of the condition: everybody who talks to Redis reports here, everybody who depends on it watches.
#[derive(Debug)]
pub struct IndexHealth {
    state: watch::Sender<Health>,
}

impl IndexHealth {
    pub(super) fn new() -> Self {
        // Nothing is known yet, so the first answer leads to a rebuild: of an index left by an earlier run it adds
        // only what is missing.
        Self { state: watch::Sender::new(Health::Rebuilding) }
    }

    /// The condition now.
    #[must_use]
    pub fn now(&self) -> Health {
        *self.state.borrow()
    }

    /// To be told of changes.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Health> {
        self.state.subscribe()
    }

    /// Redis failed somebody. Logged once, at the change. An index that has lost its state has answered: a Redis that
    /// was out and comes back empty is rebuilt like one that was flushed.
    pub fn failed(&self, error: &super::IndexError) {
        let to = match error {
            super::IndexError::Lost { .. } => Health::Rebuilding,
            super::IndexError::Unavailable { .. } | super::IndexError::Url => Health::Degraded,
        };
        self.set(to, &error.to_string());
    }

    /// Redis answered. After a time without it hints may be missing, so the way back leads through a rebuild.
    pub fn answered(&self) {
        if self.now() == Health::Degraded {
            self.set(Health::Rebuilding, "redis answers again");
        }
    }

    /// The rebuild is done.
    pub fn rebuilt(&self) {
        self.state.send_if_modified(|state| {
            let done = *state == Health::Rebuilding;
            if done {
                *state = Health::Fast;
                tracing::info!("index is whole");
            }
            done
        });
    }

    fn set(&self, to: Health, why: &str) {
        self.state.send_if_modified(|state| {
            let changed = *state != to;
            if changed {
                tracing::warn!(from = state.as_str(), to = to.as_str(), why, "index health changed");
                *state = to;
            }
            changed
        });
    }
}
