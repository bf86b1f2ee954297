//! Time in tickr: UTC, microseconds in stored attempts, whole milliseconds for due times.

use chrono::{DateTime, TimeDelta, Utc};

/// A moment in UTC. Every decision uses the store's clock.
pub type Timestamp = DateTime<Utc>;

/// Round `moment` down to whole milliseconds: the due time of work that is due at once.
#[must_use]
pub fn floor_ms(moment: Timestamp) -> Timestamp {
    DateTime::from_timestamp_millis(moment.timestamp_millis()).unwrap_or(moment)
}

/// Round `moment` up to whole milliseconds: due times are never earlier than requested (G7).
#[must_use]
pub fn ceil_ms(moment: Timestamp) -> Timestamp {
    let floor = floor_ms(moment);
    // The whole millisecond of a leap second may lie behind it.
    if floor >= moment {
        return floor;
    }
    // Behind the last millisecond of the calendar there is none. A client may name such a moment.
    floor.checked_add_signed(TimeDelta::milliseconds(1)).unwrap_or(moment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_times_are_raised_never_lowered() {
        let at = |us| DateTime::from_timestamp_micros(us).unwrap();
        assert_eq!(ceil_ms(at(1_000_001)), at(1_001_000));
        assert_eq!(ceil_ms(at(1_000_000)), at(1_000_000));
        assert_eq!(floor_ms(at(1_000_999)), at(1_000_000));
        assert_eq!(ceil_ms(at(-1)), at(0));
        assert_eq!(ceil_ms(Timestamp::MAX_UTC), Timestamp::MAX_UTC);
    }
}
