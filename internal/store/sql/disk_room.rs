//! Whether the server lately had no room for what this process wrote.
//!
//! A probe changes its row in place, which needs no new page of its table. So a server whose disk is full may carry it
//! out, and refuse every statement that adds rows. Only those statements show that.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::sql::error::lacks_room;

/// Time for which a server counts as full after it had no room. A runner tries a verdict that waits again within this
/// time, so the server counts as full for as long as one waits.
const FULL_FOR: Duration = Duration::from_secs(5);

/// The time at which the server last had no room.
#[derive(Debug, Default)]
pub(crate) struct DiskRoom(Mutex<Option<Instant>>);

impl DiskRoom {
    /// Note the error of a write, if it says that the server had no room. The caller leaves out the errors of reads: a
    /// read may fill a temporary table, and writes go on all the same.
    pub(crate) fn note(&self, error: &sqlx::Error) {
        if lacks_room(error) {
            self.note_at(Instant::now());
        }
    }

    /// Return whether the server had no room in the last five seconds.
    pub(crate) fn was_missing(&self) -> bool {
        self.was_missing_at(Instant::now())
    }

    fn note_at(&self, now: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    fn was_missing_at(&self, now: Instant) -> bool {
        let missed = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        missed.is_some_and(|missed| now.saturating_duration_since(missed) < FULL_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_counts_as_full_for_five_seconds_after_each_write_without_room() {
        let (room, start) = (DiskRoom::default(), Instant::now());
        let after = |ms| start + Duration::from_millis(ms);
        room.note(&sqlx::Error::PoolTimedOut);
        assert!(!room.was_missing_at(start), "another error");
        room.note_at(start);
        assert_eq!([0, 4_999, 5_000].map(|ms| room.was_missing_at(after(ms))), [true, true, false]);
        room.note_at(after(4_000));
        assert_eq!([8_999, 9_000].map(|ms| room.was_missing_at(after(ms))), [true, false]);
    }
}
