//! The pace of lines about a condition that lasts: one at its begin, and then one every 30 seconds.

use std::time::{Duration, Instant};

/// Time between two log lines about the same condition.
const SAID_EVERY: Duration = Duration::from_secs(30);

/// Decides which of many lines about the same condition are written.
#[derive(Debug, Default)]
pub struct LinePace {
    said: Option<Instant>,
    left_out: u64,
}

impl LinePace {
    /// Make the pace of a condition of which no line was written yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { said: None, left_out: 0 }
    }

    /// Return whether the next line is to be written now: then the number of those that were left out before it. If
    /// not, it counts as left out.
    pub fn next_line(&mut self) -> Option<u64> {
        self.line_at(Instant::now())
    }

    /// Note that the condition is over, so that the first line about the next one is written. Return whether there was
    /// a line about this one.
    pub fn end(&mut self) -> bool {
        std::mem::take(self).said.is_some()
    }

    fn line_at(&mut self, now: Instant) -> Option<u64> {
        if self.said.is_some_and(|said| now.saturating_duration_since(said) < SAID_EVERY) {
            self.left_out += 1;
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_lines_one_in_thirty_seconds_is_written_and_the_others_are_counted() {
        let (mut pace, start) = (LinePace::new(), Instant::now());
        let mut line = |ms: u64| pace.line_at(start + Duration::from_millis(ms));
        assert_eq!([line(0), line(1), line(29_999)], [Some(0), None, None]);
        assert_eq!([line(30_000), line(30_001), line(90_000)], [Some(2), None, Some(1)]);
        assert!(pace.end() && !pace.end(), "there was a line");
        assert_eq!(pace.line_at(start + Duration::from_millis(90_001)), Some(0), "another condition began");
    }
}
