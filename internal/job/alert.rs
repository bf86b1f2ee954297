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

/// The last message of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastAlert {
    /// True if it said that the rule fired.
    pub firing: bool,
    /// Time since the last message that said so.
    pub fired_ago: Option<Duration>,
    /// Time since the message was sent, if its delivery has failed for good.
    pub undelivered_for: Option<Duration>,
}

/// Longest time after which a message whose delivery has failed for good is sent again.
const SEND_AGAIN: Duration = Duration::from_secs(5 * 60);

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

    /// Decide which message to send now. Within `cooldown` of the last message that the rule fired, no new alert is sent.
    ///
    /// A message whose delivery has failed for good is sent again after five minutes, or after `cooldown` if that is
    /// shorter: the receiver may be well again, and the operator may have changed its URL.
    #[must_use]
    pub fn judge(&self, measured: Measured, last: LastAlert, cooldown: Duration) -> Option<AlertChange> {
        let is_again_due = last.undelivered_for.is_some_and(|time| time >= cooldown.min(SEND_AGAIN));
        let is_calm = self.is_calm(measured);
        if last.firing {
            return is_calm.then_some(AlertChange::Resolved).or(is_again_due.then_some(AlertChange::Fired));
        }
        let rested = last.fired_ago.is_none_or(|ago| ago >= cooldown);
        if rested && self.is_crossed(measured) {
            return Some(AlertChange::Fired);
        }
        (is_again_due && is_calm).then_some(AlertChange::Resolved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn last(firing: bool, fired_ago: Option<Duration>, undelivered_for: Option<Duration>) -> LastAlert {
        LastAlert { firing, fired_ago, undelivered_for }
    }

    fn measured(open: u64, minutes: u64) -> Measured {
        Measured { open, oldest: Duration::from_secs(60 * minutes) }
    }

    #[test]
    fn a_threshold_fires_once_and_resolves_well_below() {
        let rule = AlertRule { kind: None, count: Some(100), age: None };
        let judge = |open, firing| rule.judge(measured(open, 0), last(firing, None, None), HOUR);
        assert_eq!(judge(99, false), None);
        assert_eq!(judge(100, false), Some(AlertChange::Fired));
        for still in [150, 100, 99, 80] {
            assert_eq!(judge(still, true), None, "{still}");
        }
        assert_eq!(judge(79, true), Some(AlertChange::Resolved));
        let first = AlertRule { count: Some(1), ..rule };
        assert_eq!(first.judge(measured(1, 0), last(true, None, None), HOUR), None);
        assert_eq!(first.judge(measured(0, 0), last(true, None, None), HOUR), Some(AlertChange::Resolved));
    }

    #[test]
    fn the_age_of_the_oldest_counts_as_well_and_nobody_is_told_again_within_the_cooldown() {
        let rule = AlertRule { kind: None, count: None, age: Some(HOUR) };
        let judge = |open, minutes, firing, ago| rule.judge(measured(open, minutes), last(firing, ago, None), HOUR);
        assert_eq!(judge(1, 59, false, None), None);
        assert_eq!(judge(1, 60, false, None), Some(AlertChange::Fired));
        assert_eq!(judge(0, 60, false, None), None);
        assert_eq!(judge(1, 60, false, Some(HOUR / 2)), None);
        assert_eq!(judge(1, 60, false, Some(HOUR)), Some(AlertChange::Fired));
        assert_eq!(judge(1, 5, true, Some(HOUR / 2)), Some(AlertChange::Resolved));
    }

    #[test]
    fn a_message_whose_delivery_failed_is_sent_again_while_it_is_true() {
        let rule = AlertRule { kind: None, count: Some(10), age: None };
        let judge = |open, firing, seconds, cooldown| {
            let failed = Some(Duration::from_secs(seconds));
            rule.judge(measured(open, 0), last(firing, failed, failed), cooldown)
        };
        assert_eq!(judge(10, true, 299, HOUR), None);
        assert_eq!(judge(10, true, 300, HOUR), Some(AlertChange::Fired));
        assert_eq!(judge(10, true, 20, Duration::from_secs(20)), Some(AlertChange::Fired));
        // The values are between the two thresholds.
        assert_eq!(judge(9, true, 300, HOUR), Some(AlertChange::Fired));
        assert_eq!(judge(9, false, 300, HOUR), None);
        // What the receiver does not know is over.
        assert_eq!(judge(0, true, 0, HOUR), Some(AlertChange::Resolved));
        assert_eq!(judge(0, false, 299, HOUR), None);
        assert_eq!(judge(0, false, 300, HOUR), Some(AlertChange::Resolved));
    }
}
