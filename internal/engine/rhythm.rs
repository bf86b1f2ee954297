//! The rhythm of this runner's own heartbeat: may the silence of others be held against them?
//!
//! While MySQL is out nobody can renew, and when it is back every lease has lapsed, however alive its holder is. A
//! runner that was suspended wakes to the same sight. The heartbeat of such a runner has missed beats itself; so
//! whoever missed some does not judge others before a full lease of steady beats, in which everybody alive can renew.
//! A runner that starts beside a dead one missed nothing, and judges at once.
//!
//! The database's clock may be set as well: then leases look lapsed that are not, or the other way round. So each reading
//! of it is compared with the monotonic clock of this process, and a step counts as an interruption.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::TimeDelta;

use crate::store::Reading;

/// A step of the database's clock that is smaller than this, and than a quarter of a lease, does no harm.
const LARGEST_STEP: Duration = Duration::from_secs(2);

/// When the heartbeat was answered.
#[derive(Default)]
pub(super) struct Rhythm(Mutex<Beats>);

#[derive(Clone, Copy, Default)]
struct Beats {
    /// When the newest one that was answered was sent.
    last: Option<Instant>,
    /// The first one after the newest interruption; absent when there was none.
    resumed: Option<Instant>,
    /// How often it was interrupted for so long, or the clock set so far, that others may have judged this runner.
    gaps: u64,
    /// The newest reading of the database's clock.
    reading: Option<Reading>,
}

impl Rhythm {
    /// Of a runner that found MySQL out when it started: that is an interruption too.
    pub(super) fn after_an_outage() -> Self {
        Self(Mutex::new(Beats { resumed: Some(Instant::now()), ..Beats::default() }))
    }

    /// A beat that was sent at this moment was answered now.
    pub(super) fn beaten(&self, sent: Instant, lease: Duration) {
        self.lock(|beats| beats.beaten(sent, Instant::now(), lease));
    }

    /// Some other call for the sake of the leases failed.
    pub(super) fn interrupted(&self) {
        self.lock(|beats| beats.resumed = Some(Instant::now()));
    }

    /// Take note of a reading of the database's clock. By how much it was set since the one before, if it was.
    pub(super) fn read(&self, reading: &Reading, lease: Duration) -> Option<TimeDelta> {
        self.lock(|beats| beats.read(*reading, Instant::now(), lease))
    }

    /// Has it been steady for a full lease?
    pub(super) fn is_steady(&self, lease: Duration) -> bool {
        self.lock(|beats| beats.is_steady(Instant::now(), lease))
    }

    /// Are beats answered, as far as is known?
    pub(super) fn is_beating(&self, lease: Duration) -> bool {
        self.lock(|beats| beats.last.is_some_and(|last| !is_gap(last.elapsed(), lease)))
    }

    /// Can no other runner have judged this one since its last beat? Then the number of gaps so far: what was agreed with
    /// others under another number may have been taken away.
    pub(super) fn standing(&self, lease: Duration) -> Option<u64> {
        self.lock(|beats| beats.last.is_some_and(|last| last.elapsed() < lease).then_some(beats.gaps))
    }

    fn lock<T>(&self, with: impl FnOnce(&mut Beats) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Beats {
    fn beaten(&mut self, sent: Instant, now: Instant, lease: Duration) {
        if self.last.is_some_and(|last| is_gap(now.saturating_duration_since(last), lease)) {
            self.resumed = Some(now);
            self.gaps += 1;
        }
        self.last = Some(sent);
    }

    fn read(&mut self, reading: Reading, now: Instant, lease: Duration) -> Option<TimeDelta> {
        let before = self.reading.replace(reading)?;
        let step = step(&before, &reading)?;
        let largest = LARGEST_STEP.min(lease / 4);
        (step.abs() > TimeDelta::from_std(largest).unwrap_or_default()).then(|| {
            self.resumed = Some(now);
            self.gaps += 1;
            step
        })
    }

    fn is_steady(&self, now: Instant, lease: Duration) -> bool {
        let beats = self.last.is_some_and(|last| !is_gap(now.saturating_duration_since(last), lease));
        beats && self.resumed.is_none_or(|resumed| now.saturating_duration_since(resumed) >= lease)
    }
}

/// By how much the clock was set between two readings, at the least. Each was taken at some moment between its request and
/// its answer, so a reading that was held up proves little.
fn step(before: &Reading, after: &Reading) -> Option<TimeDelta> {
    let shown = after.moment - before.moment;
    let delta = |duration| TimeDelta::from_std(duration).ok();
    // Read at the same time by two loops, they may be in either order.
    let shortest = delta(after.sent.saturating_duration_since(before.received))?
        - delta(before.received.saturating_duration_since(after.sent))?;
    let longest = delta(after.received.saturating_duration_since(before.sent))?
        - delta(before.sent.saturating_duration_since(after.received))?;
    if shown > longest {
        Some(shown - longest)
    } else if shown < shortest {
        Some(shown - shortest)
    } else {
        Some(TimeDelta::zero())
    }
}

/// Beats are a third of a lease apart. An outage that lets leases lapse is longer than two thirds, because every lease
/// has beats at its first and at its second third.
fn is_gap(pause: Duration, lease: Duration) -> bool {
    pause > lease.mul_f64(0.6)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn beaten_at(seconds: &[u64], now: u64) -> bool {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut beats = Beats::default();
        for second in seconds {
            beats.beaten(at(*second), at(*second), LEASE);
        }
        beats.is_steady(at(now), LEASE)
    }

    #[test]
    fn a_runner_judges_from_its_first_beat_on_until_beats_are_missing() {
        assert!(!beaten_at(&[], 5));
        assert!(beaten_at(&[0], 1));
        assert!(beaten_at(&[0, 10, 20, 30], 40));
        assert!(!beaten_at(&[0, 10], 29));
    }

    #[test]
    fn after_a_gap_it_waits_a_full_lease() {
        assert!(!beaten_at(&[0, 10, 35], 36));
        assert!(!beaten_at(&[0, 10, 35, 45, 55, 64], 64));
        assert!(beaten_at(&[0, 10, 35, 45, 55, 65], 65));
        assert!(!beaten_at(&[0, 10, 35, 45, 80, 90, 100, 109], 109));
    }

    #[test]
    fn a_failed_call_is_an_interruption() {
        let rhythm = Rhythm::default();
        rhythm.beaten(Instant::now(), LEASE);
        assert!(rhythm.is_steady(LEASE));
        rhythm.interrupted();
        assert!(!rhythm.is_steady(LEASE));
        let rhythm = Rhythm::after_an_outage();
        rhythm.beaten(Instant::now(), LEASE);
        assert!(!rhythm.is_steady(LEASE));
    }

    #[test]
    fn what_was_agreed_before_a_gap_stands_no_more() {
        let (start, rhythm) = (Instant::now(), Rhythm::default());
        assert_eq!(rhythm.standing(LEASE), None);
        rhythm.beaten(start, LEASE);
        assert_eq!(rhythm.standing(LEASE), Some(0));
        // Sent long ago: others may have judged this runner since.
        let ago = |seconds| start.checked_sub(Duration::from_secs(seconds)).unwrap();
        let rhythm = Rhythm::default();
        rhythm.beaten(ago(31), LEASE);
        assert_eq!((rhythm.standing(LEASE), rhythm.is_beating(LEASE)), (None, false));
        rhythm.beaten(start, LEASE);
        assert_eq!((rhythm.standing(LEASE), rhythm.is_beating(LEASE)), (Some(1), true));
    }

    #[test]
    fn a_clock_that_is_set_is_an_interruption_and_an_answer_that_is_held_up_is_none() {
        let start = Instant::now();
        let reading = |sent_ms, received_ms, shows_ms: i64| Reading {
            sent: start + Duration::from_millis(sent_ms),
            received: start + Duration::from_millis(received_ms),
            moment: chrono::DateTime::from_timestamp_millis(1_000_000 + shows_ms).unwrap(),
        };
        let mut beats = Beats::default();
        beats.beaten(start, start, LEASE);
        let mut read = |reading| beats.read(reading, start + Duration::from_secs(1), LEASE);
        assert_eq!(read(reading(0, 10, 5)), None);
        assert_eq!(read(reading(2_000, 2_010, 2_004)), None);
        // Held up for eight seconds on its way back, and the next one on its way there.
        assert_eq!(read(reading(4_000, 12_000, 4_001)), None);
        assert_eq!(read(reading(13_000, 21_000, 21_000)), None);
        // Two loops that read at the same time.
        assert_eq!(read(reading(20_000, 20_002, 20_001)), None);
        assert_eq!(read(reading(22_000, 22_002, 22_001 + 31_000)).map(|step| step.num_seconds()), Some(30));
        assert_eq!(read(reading(24_000, 24_002, 24_001 + 31_000)), None);
        assert_eq!(read(reading(26_000, 26_002, 26_001 - 3_600_000)).map(|step| step.num_seconds()), Some(-3_630));
        assert_eq!(beats.gaps, 2);
        assert!(!beats.is_steady(start + Duration::from_secs(2), LEASE));
    }
}
