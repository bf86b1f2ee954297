//! The rules that decide when to send an alert about dead letters. Pure functions.

use std::time::Duration;

use super::Name;

/// A threshold of open dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertRule {
    /// Kind that the rule counts; all kinds together if absent.
    pub kind: Option<Name>,
    /// Number of open dead letters from which the rule fires.
    pub count: Option<u64>,
    /// Age of the oldest open dead letter from which the rule fires.
    pub age: Option<Duration>,
}

/// The current state of the dead letters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Number of open dead letters.
    pub open: u64,
    /// Time since the oldest of them failed.
    pub oldest: Duration,
}

/// The kind of message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlertChange {
    /// A threshold was reached.
    Fired,
    /// The values are clearly below the thresholds again.
    Resolved,
}

impl AlertRule {
    /// Return the name under which the store records the last message of this rule.
    #[must_use]
    pub fn name(&self) -> String {
        self.kind.as_ref().map_or("dead_letters".to_owned(), |kind| format!("dead_letters:{kind}"))
    }

    /// Return true if a threshold is reached.
    #[must_use]
    pub fn is_crossed(&self, measured: Measured) -> bool {
        let many = self.count.is_some_and(|count| measured.open >= count);
        let old = self.age.is_some_and(|age| measured.open > 0 && measured.oldest >= age);
        many || old
    }

    /// Return true if the values are clearly below the thresholds. The count must be a fifth below its threshold, so
    /// that one dead letter more or less does not alternate between firing and resolving.
    #[must_use]
    pub fn is_calm(&self, measured: Measured) -> bool {
        let few = self.count.is_none_or(|count| measured.open <= count.saturating_sub(1) * 4 / 5);
        let young = self.age.is_none_or(|age| measured.open == 0 || measured.oldest < age);
        few && young
    }

    /// Decide which message to send now. `firing` is true if the last message said that the rule fired. `fired_ago` is
    /// the time since that last happened; within `cooldown` of it, no new alert is sent.
    #[must_use]
    pub fn judge(
        &self,
        measured: Measured,
        firing: bool,
        fired_ago: Option<Duration>,
        cooldown: Duration,
    ) -> Option<AlertChange> {
        if firing {
            return self.is_calm(measured).then_some(AlertChange::Resolved);
        }
        let rested = fired_ago.is_none_or(|ago| ago >= cooldown);
        (rested && self.is_crossed(measured)).then_some(AlertChange::Fired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn measured(open: u64, minutes: u64) -> Measured {
        Measured { open, oldest: Duration::from_secs(60 * minutes) }
    }

    #[test]
    fn a_threshold_fires_once_and_resolves_well_below() {
        let rule = AlertRule { kind: None, count: Some(100), age: None };
        let judge = |open, firing| rule.judge(measured(open, 0), firing, None, HOUR);
        assert_eq!(judge(99, false), None);
        assert_eq!(judge(100, false), Some(AlertChange::Fired));
        for still in [150, 100, 99, 80] {
            assert_eq!(judge(still, true), None, "{still}");
        }
        assert_eq!(judge(79, true), Some(AlertChange::Resolved));
        let first = AlertRule { count: Some(1), ..rule };
        assert_eq!(first.judge(measured(1, 0), true, None, HOUR), None);
        assert_eq!(first.judge(measured(0, 0), true, None, HOUR), Some(AlertChange::Resolved));
    }

    #[test]
    fn the_age_of_the_oldest_counts_as_well_and_nobody_is_told_again_within_the_cooldown() {
        let rule = AlertRule { kind: None, count: None, age: Some(HOUR) };
        assert_eq!(rule.judge(measured(1, 59), false, None, HOUR), None);
        assert_eq!(rule.judge(measured(1, 60), false, None, HOUR), Some(AlertChange::Fired));
        assert_eq!(rule.judge(measured(0, 60), false, None, HOUR), None);
        assert_eq!(rule.judge(measured(1, 60), false, Some(HOUR / 2), HOUR), None);
        assert_eq!(rule.judge(measured(1, 60), false, Some(HOUR), HOUR), Some(AlertChange::Fired));
        assert_eq!(rule.judge(measured(1, 5), true, Some(HOUR / 2), HOUR), Some(AlertChange::Resolved));
    }
}
