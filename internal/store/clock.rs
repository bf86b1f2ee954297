//! The store's clock, as far as this process can tell without asking.
//!
//! One clock decides when work is due: the database's (G7). This estimate only tells how long to sleep and how far the
//! index's clock is off; the claim itself compares on the server. It runs on the monotonic clock between samples, so a
//! step of this host's wall clock does not move it.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use chrono::TimeDelta;

use crate::job::Timestamp;

/// The newest sample of the database's clock.
#[derive(Debug)]
pub struct StoreClock {
    anchor: Mutex<(Instant, Timestamp)>,
}

impl StoreClock {
    pub(super) fn starting_at(sampled: Instant, moment: Timestamp) -> Self {
        Self { anchor: Mutex::new((sampled, moment)) }
    }

    /// Take over a reading of the database's clock whose request left at `sent` and whose answer came at `received`.
    pub(super) fn sample(&self, sent: Instant, received: Instant, moment: Timestamp) {
        let middle = sent + received.saturating_duration_since(sent) / 2;
        *self.anchor.lock().unwrap_or_else(PoisonError::into_inner) = (middle, moment);
    }

    /// What the database's clock shows now, to about half a round trip.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.at(Instant::now())
    }

    /// What the database's clock showed, or will show, at a moment of this process.
    #[must_use]
    pub fn at(&self, when: Instant) -> Timestamp {
        let (anchor, moment) = *self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        let delta = |d| TimeDelta::from_std(d).unwrap_or(TimeDelta::MAX);
        match when.checked_duration_since(anchor) {
            Some(later) => moment + delta(later),
            None => moment - delta(anchor.duration_since(when)),
        }
    }
}
