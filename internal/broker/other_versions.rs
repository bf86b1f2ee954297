//! Work that this version cannot read, and that a living runner of another version may be able to read: rows of the
//! outbox and ticks of schedules. It stays where it is for a while. The engine has the same for claimed jobs.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tickr_handlers::{Registered, Registry};
use tickr_job::{Name, Timestamp};
use tickr_store::Reader;

/// Longest time for which such work is left to runners of another version. A deploy takes less.
pub(crate) const LEFT_AT_MOST: Duration = Duration::from_secs(600);

/// Return whether a living runner of another version has this kind, so that it may be able to read what this one cannot.
pub(crate) fn another_may_read(readers: &[Reader], registry: &Registry, kind: &str) -> bool {
    let (own, ours) = (registry.get(kind).map(Registered::edition), registry.editions());
    let differs = |reader: &Reader| match &reader.editions {
        Some(theirs) => theirs.options != ours.options || theirs.kinds.get(kind) != own.as_ref(),
        None => true,
    };
    readers.iter().any(|reader| reader.kinds.iter().any(|known| known.as_str() == kind) && differs(reader))
}

/// The schedules whose next tick this process leaves to runners of another version.
#[derive(Debug, Default)]
pub(crate) struct LeftTicks {
    /// Each with that tick, and the time when this process first left it.
    left: HashMap<Name, (Timestamp, Instant)>,
}

impl LeftTicks {
    /// Return whether to leave this tick for now. False when another version has had the time to fire it.
    pub(crate) fn leave(&mut self, schedule: &Name, tick_at: Timestamp, now: Instant) -> bool {
        // Another runner has processed the ticks that are not met again.
        self.left.retain(|_, (_, since)| now.saturating_duration_since(*since) < 2 * LEFT_AT_MOST);
        match self.left.get(schedule) {
            Some((left, since)) if *left == tick_at => now.saturating_duration_since(*since) < LEFT_AT_MOST,
            _ => {
                tracing::info!(%schedule, "cannot make the job of a tick, left to a runner of another version");
                self.left.insert(schedule.clone(), (tick_at, now));
                true
            }
        }
    }

    /// Return how long ago this process first left this tick. Zero if it did not.
    pub(crate) fn left_for(&self, schedule: &Name, tick_at: Timestamp, now: Instant) -> Duration {
        let left = self.left.get(schedule).filter(|(left, _)| *left == tick_at);
        left.map_or(Duration::ZERO, |(_, since)| now.saturating_duration_since(*since))
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn each_tick_is_left_for_ten_minutes() {
        let (mut left, start, tick) = (LeftTicks::default(), Instant::now(), Timestamp::UNIX_EPOCH);
        let nightly: Name = "nightly".parse().unwrap();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!([0, 1, 599, 600].map(|seconds| left.leave(&nightly, tick, at(seconds))), [true, true, true, false]);
        // The next tick has a time of its own, and so has another schedule.
        let next = tick + TimeDelta::seconds(1);
        assert_eq!([tick, next].map(|tick| left.left_for(&nightly, tick, at(600)).as_secs()), [600, 0]);
        assert_eq!([601, 1_200, 1_201].map(|seconds| left.leave(&nightly, next, at(seconds))), [true, true, false]);
        assert!(left.leave(&"hourly".parse().unwrap(), next, at(1_201)));
        // What was not met again is forgotten.
        left.leave(&"hourly".parse().unwrap(), next, at(5_000));
        assert_eq!(left.left.len(), 1);
    }
}
