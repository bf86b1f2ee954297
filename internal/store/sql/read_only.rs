//! Sightings of a server that takes no writes.
//!
//! Behind one address there may be a proxy. After a failover it leads new connections to the new primary, and may leave
//! open ones at the former primary, which still answers reads with what may be old. So after a refused write, and after
//! a connection was opened to a server that takes no writes, each connection of that time is opened anew before its
//! next use.
//!
//! While the only server is read-only, reads go on. A connection that has just been opened is used for [`RENEWED`], so
//! that an outage of writes costs each connection of the pools one opening in that time, however many reads there are.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::sql::error::is_read_only;

/// Age from which a connection is opened anew after a sighting.
const RENEWED: Duration = Duration::from_secs(1);

/// The newest sighting of a server that takes no writes.
#[derive(Debug, Default)]
pub(crate) struct ReadOnlySightings {
    last: Mutex<Option<Instant>>,
}

impl ReadOnlySightings {
    /// Note that a connection led to a server that takes no writes.
    pub(crate) fn note(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Note this failure of a statement, if it says that the server takes no writes.
    pub(crate) fn note_error(&self, error: &sqlx::Error) {
        if is_read_only(error) {
            self.note();
        }
    }

    /// Return whether a connection of this age has to be opened anew. The driver counts the age from the end of the
    /// opening, so a connection that is a little younger than a sighting may be the one that led to it.
    pub(crate) fn concerns(&self, age: Duration) -> bool {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| age >= RENEWED && age + RENEWED > last.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sighting_concerns_the_connections_of_its_time_and_no_later_ones() {
        let seen = ReadOnlySightings::default();
        assert!(!seen.concerns(Duration::from_secs(3_600)), "nothing was seen");
        seen.note_error(&sqlx::Error::PoolTimedOut);
        assert!(!seen.concerns(Duration::from_secs(3_600)), "another error");
        seen.note();
        assert!(seen.concerns(Duration::from_secs(3_600)));
        // This one was opened a moment ago. A server that stays read-only is asked by it for a second.
        assert!(!seen.concerns(Duration::from_millis(10)));
        let Some(before) = Instant::now().checked_sub(Duration::from_secs(60)) else { return };
        *seen.last.lock().unwrap() = Some(before);
        assert!(!seen.concerns(Duration::from_secs(30)), "it was opened after the sighting");
        assert!(seen.concerns(Duration::from_secs(90)));
    }
}
