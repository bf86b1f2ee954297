//! The store's clock, as far as this process can tell without asking.
//!
//! One clock decides when work is due: the database's (G7). This estimate only tells how long to sleep and how far the
//! index's clock is off; the claim itself compares on the server. It runs on the monotonic clock between samples, so a
//! step of this host's wall clock does not move it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::TimeDelta;

use crate::job::Timestamp;

/// The best sample of the database's clock.
#[derive(Debug)]
pub struct StoreClock {
    anchor: Mutex<Anchor>,
}

#[derive(Clone, Copy, Debug)]
struct Anchor {
    taken: Instant,
    moment: Timestamp,
    /// How far off the sample may be: half its round trip.
    error: Duration,
}

/// One reading of the database's clock.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// A moment of this process before it was taken.
    pub sent: Instant,
    /// A moment of this process after it was taken.
    pub received: Instant,
    /// What the clock showed.
    pub moment: Timestamp,
}

/// How much less is known about the database's clock for every second since the sample: clocks drift, and are stepped.
const DRIFT: f64 = 0.000_5;
/// Two readings that differ by more than what is known of their errors, and this much, are of a clock that was set.
const SLACK: TimeDelta = TimeDelta::milliseconds(100);

impl StoreClock {
    pub(super) fn starting_at(sent: Instant, received: Instant, moment: Timestamp) -> Self {
        Self { anchor: Mutex::new(Anchor::new(sent, received, moment)) }
    }

    /// Take over a reading of the database's clock whose request left at `sent` and whose answer came at `received`,
    /// unless what is known is better. One answer that was held up must not throw the estimate off.
    pub(super) fn sample(&self, sent: Instant, received: Instant, moment: Timestamp) {
        let sample = Anchor::new(sent, received, moment);
        let mut anchor = self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        let aged = anchor.error + received.saturating_duration_since(anchor.taken).mul_f64(DRIFT);
        // What cannot both be true shows a clock that was set.
        let contradicts = (sample.moment - anchor.at(sample.taken)).abs() > delta(sample.error + aged) + SLACK;
        if sample.error <= aged || contradicts {
            *anchor = sample;
        }
    }

    /// The reading that the estimate rests on.
    #[must_use]
    pub fn reading(&self) -> Reading {
        let Anchor { taken, moment, error } = *self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        Reading { sent: taken.checked_sub(error).unwrap_or(taken), received: taken + error, moment }
    }

    /// What the database's clock shows now, to about half a round trip.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.at(Instant::now())
    }

    /// What the database's clock showed, or will show, at a moment of this process.
    #[must_use]
    pub fn at(&self, when: Instant) -> Timestamp {
        self.anchor.lock().unwrap_or_else(PoisonError::into_inner).at(when)
    }
}

fn delta(duration: Duration) -> TimeDelta {
    TimeDelta::from_std(duration).unwrap_or(TimeDelta::MAX)
}

impl Anchor {
    fn new(sent: Instant, received: Instant, moment: Timestamp) -> Self {
        let error = received.saturating_duration_since(sent) / 2;
        Self { taken: sent + error, moment, error }
    }

    fn at(&self, when: Instant) -> Timestamp {
        match when.checked_duration_since(self.taken) {
            Some(later) => self.moment + delta(later),
            None => self.moment - delta(self.taken.duration_since(when)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_was_held_up_does_not_move_the_clock_until_knowledge_has_aged() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let at = |ms| chrono::DateTime::from_timestamp_millis(ms).unwrap();
        let clock = StoreClock::starting_at(start, start + ms(2), at(1_000_001));
        // Held up for 800 ms on the way back: it would put the clock 399 ms behind.
        clock.sample(start + ms(1_000), start + ms(1_800), at(1_001_001));
        assert_eq!(clock.at(start + ms(2_000)), at(1_002_000));
        // A good one is taken.
        clock.sample(start + ms(3_000), start + ms(3_002), at(1_003_101));
        assert_eq!(clock.at(start + ms(3_001)), at(1_003_101));
        // A clock that was set an hour back is believed at once, though its reading took longer.
        clock.sample(start + ms(3_100), start + ms(3_110), at(1_003_205 - 3_600_000));
        assert_eq!(clock.at(start + ms(3_105)), at(1_003_205 - 3_600_000));
    }
}
