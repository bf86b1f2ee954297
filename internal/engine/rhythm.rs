//! The rhythm of this runner's own heartbeat: may the silence of others be held against them?
//!
//! While MySQL is out nobody can renew, and when it is back every lease has lapsed, however alive its holder is. A
//! runner that was suspended wakes to the same sight. The heartbeat of such a runner has missed beats itself; so
//! whoever missed some does not judge others before a full lease of steady beats, in which everybody alive can renew.
//! A runner that starts beside a dead one missed nothing, and judges at once.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// When the heartbeat was answered.
#[derive(Default)]
pub(super) struct Rhythm(Mutex<Beats>);

#[derive(Clone, Copy, Default)]
struct Beats {
    /// The newest one.
    last: Option<Instant>,
    /// The first one after the newest interruption; absent when there was none.
    resumed: Option<Instant>,
}

impl Rhythm {
    /// Of a runner that found MySQL out when it started: that is an interruption too.
    pub(super) fn after_an_outage() -> Self {
        Self(Mutex::new(Beats { last: None, resumed: Some(Instant::now()) }))
    }

    /// A beat was answered now.
    pub(super) fn beaten(&self, lease: Duration) {
        self.lock(|beats| beats.beaten(Instant::now(), lease));
    }

    /// Some other call for the sake of the leases failed.
    pub(super) fn interrupted(&self) {
        self.lock(|beats| beats.resumed = Some(Instant::now()));
    }

    /// Has it been steady for a full lease?
    pub(super) fn is_steady(&self, lease: Duration) -> bool {
        self.lock(|beats| beats.is_steady(Instant::now(), lease))
    }

    fn lock<T>(&self, with: impl FnOnce(&mut Beats) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Beats {
    fn beaten(&mut self, now: Instant, lease: Duration) {
        if self.last.is_some_and(|last| is_gap(now - last, lease)) {
            self.resumed = Some(now);
        }
        self.last = Some(now);
    }

    fn is_steady(&self, now: Instant, lease: Duration) -> bool {
        let beats = self.last.is_some_and(|last| !is_gap(now.saturating_duration_since(last), lease));
        beats && self.resumed.is_none_or(|resumed| now.saturating_duration_since(resumed) >= lease)
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
            beats.beaten(at(*second), LEASE);
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
        rhythm.beaten(LEASE);
        assert!(rhythm.is_steady(LEASE));
        rhythm.interrupted();
        assert!(!rhythm.is_steady(LEASE));
        let rhythm = Rhythm::after_an_outage();
        rhythm.beaten(LEASE);
        assert!(!rhythm.is_steady(LEASE));
    }
}
