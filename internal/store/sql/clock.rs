//! An estimate of the database's clock that needs no query.
//!
//! One clock decides when work is due: that of the database (G7). This estimate is only used for the length of a sleep,
//! to measure the error of the index's clock, and to tell which new jobs have distant ids (`rows/jobs.rs`). The claim
//! itself compares the times on the server. Between two samples the estimate follows the monotonic clock, so it does
//! not move when the wall clock of this host is set.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use sqlx::Row;

use crate::sql::session::Session;
use tickr_job::Timestamp;

/// The best sample of the database's clock.
#[derive(Debug)]
pub struct StoreClock {
    anchor: Mutex<Anchor>,
}

#[derive(Clone, Copy, Debug)]
struct Anchor {
    taken: Instant,
    moment: Timestamp,
    /// The greatest error of the sample: half its round trip.
    error: Duration,
}

/// One reading of the database's clock.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// A moment before the server read its clock, by the monotonic clock of this process.
    pub sent: Instant,
    /// A moment after the server read its clock, by the monotonic clock of this process.
    pub received: Instant,
    /// The time of the database.
    pub moment: Timestamp,
}

/// Growth of the error, in seconds for each second since the sample: clocks drift, and are adjusted.
const DRIFT: f64 = 0.000_5;
/// If two readings differ by more than their errors and this, the clock was set between them.
const SLACK: TimeDelta = TimeDelta::milliseconds(100);

impl StoreClock {
    pub(crate) fn starting_at(sent: Instant, received: Instant, moment: Timestamp) -> Self {
        Self { anchor: Mutex::new(Anchor::new(sent, received, moment)) }
    }

    /// Use a reading of the database's clock as the new sample, unless the current one is better. `sent` and `received`
    /// are the times of the request and of the answer. A single answer that was delayed must not falsify the estimate.
    pub(crate) fn sample(&self, sent: Instant, received: Instant, moment: Timestamp) {
        let sample = Anchor::new(sent, received, moment);
        let mut anchor = self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        let aged = anchor.error + received.saturating_duration_since(anchor.taken).mul_f64(DRIFT);
        // Two samples that cannot both be right show that the clock was set.
        let contradicts = (sample.moment - anchor.at(sample.taken)).abs() > delta(sample.error + aged) + SLACK;
        if sample.error <= aged || contradicts {
            *anchor = sample;
        }
    }

    /// The reading on which the estimate is based.
    #[must_use]
    pub fn reading(&self) -> Reading {
        let Anchor { taken, moment, error } = *self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        Reading { sent: taken.checked_sub(error).unwrap_or(taken), received: taken + error, moment }
    }

    /// The estimated time of the database now. The error is about half a round trip.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.at(Instant::now())
    }

    /// The estimated time of the database at a past or future moment of this process.
    #[must_use]
    pub fn at(&self, when: Instant) -> Timestamp {
        self.anchor.lock().unwrap_or_else(PoisonError::into_inner).at(when)
    }

    /// Return whether this moment of the database may have come by now. An error of the estimate counts as if it had.
    #[must_use]
    pub fn may_have_come(&self, moment: Timestamp) -> bool {
        self.may_have_come_at(moment, Instant::now())
    }

    fn may_have_come_at(&self, moment: Timestamp, when: Instant) -> bool {
        let anchor = *self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        let error = anchor.error + when.saturating_duration_since(anchor.taken).mul_f64(DRIFT);
        moment <= anchor.at(when) + delta(error)
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

/// Begin a transaction and read the server's clock in one round trip. The driver does not know of this transaction: the
/// caller ends it with a COMMIT, and after an error the connection is rolled back.
pub(crate) async fn begin(conn: &mut Session<'_>, clock: &StoreClock) -> Result<Timestamp, sqlx::Error> {
    let sent = Instant::now();
    let row = sqlx::raw_sql("BEGIN; SELECT UTC_TIMESTAMP(6)").fetch_one(conn).await?;
    let now = row.try_get(0)?;
    clock.sample(sent, Instant::now(), now);
    Ok(now)
}

/// Read the server's clock, and update the estimate with it.
pub(crate) async fn read_clock(conn: &mut Session<'_>, clock: &StoreClock) -> Result<Timestamp, sqlx::Error> {
    let sent = Instant::now();
    // As text: a server whose room for prepared statements is taken tells the time as well.
    let now: Timestamp = sqlx::raw_sql("SELECT UTC_TIMESTAMP(6)").fetch_one(conn).await?.try_get(0)?;
    clock.sample(sent, Instant::now(), now);
    Ok(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_was_held_up_does_not_move_the_clock_until_knowledge_has_aged() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let at = |ms| chrono::DateTime::from_timestamp_millis(ms).unwrap();
        let clock = StoreClock::starting_at(start, start + ms(2), at(1_000_001));
        // This answer was delayed by 800 ms on its way back. It would move the clock back by 399 ms.
        clock.sample(start + ms(1_000), start + ms(1_800), at(1_001_001));
        assert_eq!(clock.at(start + ms(2_000)), at(1_002_000));
        // An accurate sample replaces the old one.
        clock.sample(start + ms(3_000), start + ms(3_002), at(1_003_101));
        assert_eq!(clock.at(start + ms(3_001)), at(1_003_101));
        // A clock that was set back by an hour is accepted at once, although this sample has a longer round trip.
        clock.sample(start + ms(3_100), start + ms(3_110), at(1_003_205 - 3_600_000));
        assert_eq!(clock.at(start + ms(3_105)), at(1_003_205 - 3_600_000));
    }

    #[test]
    fn a_moment_may_have_come_as_soon_as_the_error_of_the_estimate_allows() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let at = |ms| chrono::DateTime::from_timestamp_millis(ms).unwrap();
        // Half a round trip of 4 ms, and 1 ms of drift in 2 s.
        let clock = StoreClock::starting_at(start, start + ms(4), at(1_000_002));
        let may_have_come = |moment| clock.may_have_come_at(at(moment), start + ms(2_002));
        assert_eq!([1_002_001, 1_002_004, 1_002_006].map(may_have_come), [true, true, false]);
    }
}
