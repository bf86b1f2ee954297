//! The decision about due ticks.
//!
//! Usually one tick is due, a few milliseconds old. After an outage there may be millions. With every policy, the work
//! of one plan is bounded, and so is the number of rows written: the latest ticks get a row each, and the first row
//! stands for all ticks before them.

use std::time::Duration;

use chrono::TimeDelta;

use super::{Cadence, Misfire};
use crate::Timestamp;

/// Maximum number of rows of one plan; later ticks are planned next time.
const MAX_LINES: usize = 200;
/// Maximum number of missed ticks that get a row each although they do not fire.
const MAX_TOLD: usize = 100;
/// Maximum number of missed ticks that fire late if the policy is to fire all of them.
const MAX_FIRED: usize = 1_000;
/// Counting limit for ticks that share a row.
const MAX_COUNTED: u32 = 10_000;

/// The input of the planner.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// The first tick that is not processed yet.
    pub from: Timestamp,
    /// The current time, by the store's clock.
    pub now: Timestamp,
    /// The reason why no tick fires, if there is one.
    pub withheld: Option<SkipCause>,
}

/// The decisions about ticks, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The rows, in order of time.
    pub lines: Vec<Planned>,
    /// The first tick after the plan; `None` if no tick follows.
    pub next: Option<Timestamp>,
}

/// The decision about one tick, or about several that share a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Due time of the tick; of the first one if there are several.
    pub due_at: Timestamp,
    /// Number of ticks, at least: counting stops at ten thousand.
    pub count: u32,
    /// The decision.
    pub decision: TickDecision,
}

/// The decision about a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TickDecision {
    /// Create a job, unless the schedule's previous job prevents it.
    Fire,
    /// Create no job.
    Skip(SkipCause),
}

/// The reason why a tick created no job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipCause {
    /// No runner processed it in time.
    Missed,
    /// The schedule was paused.
    Paused,
    /// The schedule's previous job had not ended.
    Overlap,
    /// The kind no longer accepts the payload.
    Invalid,
    /// The schedule was changed after the tick was due and before it was processed.
    Changed,
}
words!(SkipCause {
    Missed => "missed", Paused => "paused", Overlap => "overlap", Invalid => "invalid", Changed => "changed"
});

/// Plan the ticks from `situation.from` to `situation.now`.
#[must_use]
pub fn plan(cadence: &Cadence, misfire: Misfire, grace: Duration, situation: Situation) -> Plan {
    let Situation { from, now, withheld } = situation;
    let just_after = now + TimeDelta::microseconds(1);
    // Ticks due at this moment or later are on time. If ticks are withheld, none is on time.
    let on_time = match withheld {
        Some(_) => just_after,
        None => now - TimeDelta::from_std(grace).unwrap_or(TimeDelta::zero()),
    };
    let skipped = TickDecision::Skip(withheld.unwrap_or(SkipCause::Missed));
    let (told, late) = match (withheld, misfire) {
        (None, Misfire::All) => (MAX_FIRED, TickDecision::Fire),
        _ => (MAX_TOLD, skipped),
    };
    let mut lines = Vec::new();
    let (count, latest) = latest(cadence, from, on_time, told);
    if count > 0 {
        lines.push(Planned { due_at: from, count, decision: skipped });
    }
    lines.extend(latest.iter().map(|due_at| Planned { due_at: *due_at, count: 1, decision: late }));
    if withheld.is_none()
        && misfire == Misfire::One
        && let Some(last) = lines.last_mut()
    {
        last.decision = TickDecision::Fire;
    }
    let mut next = match latest.last() {
        Some(last) => cadence.next_after(*last),
        None => Some(from),
    };
    while let Some(due_at) = next.filter(|due_at| *due_at <= now && lines.len() < MAX_LINES) {
        lines.push(Planned { due_at, count: 1, decision: TickDecision::Fire });
        next = cadence.next_after(due_at);
    }
    let mut plan = Plan { lines, next };
    plan.truncate(MAX_LINES);
    plan
}

impl Plan {
    /// Keep this many rows. Those behind them are planned next time.
    pub fn truncate(&mut self, rows: usize) {
        if let Some(first_beyond) = self.lines.get(rows) {
            self.next = Some(first_beyond.due_at);
            self.lines.truncate(rows);
        }
    }
}

/// Return the latest ticks before `end`, at most `most`, and the number of ticks before them. `from` is a tick.
fn latest(cadence: &Cadence, from: Timestamp, end: Timestamp, most: usize) -> (u32, Vec<Timestamp>) {
    let ticks_from = |start: Timestamp, most: usize| -> Vec<Timestamp> {
        let first = if start <= from { Some(from) } else { cadence.next_after(start - TimeDelta::microseconds(1)) };
        std::iter::successors(first, |tick| cadence.next_after(*tick))
            .take_while(|tick| *tick < end)
            .take(most)
            .collect()
    };
    let all = ticks_from(from, most + 1);
    if all.len() <= most {
        return (0, all);
    }
    // Search for a moment with at least as many ticks after it as wanted, and not many more. The number of ticks
    // changes in steps of one, so such a moment exists.
    let (mut too_early, mut too_late) = (from, end);
    let mut found = Vec::new();
    while too_late - too_early > TimeDelta::milliseconds(1) {
        let middle = too_early + (too_late - too_early) / 2;
        found = ticks_from(middle, 4 * most);
        match found.len() {
            few if few < most => too_late = middle,
            many if many == 4 * most => too_early = middle,
            _ => break,
        }
    }
    let latest = found.split_off(found.len().saturating_sub(most));
    let Some(first) = latest.first() else { return (0, all) };
    (count(cadence, from, *first), latest)
}

/// Count the ticks from `from`, which is a tick, up to `end`.
fn count(cadence: &Cadence, from: Timestamp, end: Timestamp) -> u32 {
    let ticks = std::iter::successors(Some(from), |tick| cadence.next_after(*tick)).take_while(|tick| *tick < end);
    u32::try_from(ticks.take(MAX_COUNTED as usize).count()).unwrap_or(MAX_COUNTED)
}

impl Planned {
    /// Return true if counting stopped at its limit, so that the row may stand for more ticks.
    #[must_use]
    pub const fn counts_no_further(&self) -> bool {
        self.count >= MAX_COUNTED
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{CronExpression, Dst, Zone};

    const GRACE: Duration = Duration::from_secs(10);

    fn at(ms: i64) -> Timestamp {
        chrono::DateTime::from_timestamp_millis(1_800_000_000_000 + ms).unwrap()
    }

    fn every(ms: u64) -> Cadence {
        Cadence::Every { every: Duration::from_millis(ms), anchor: at(0) }
    }

    /// Return the plan as text: the time in seconds, and the decision.
    fn told(cadence: &Cadence, misfire: Misfire, now_ms: i64, withheld: Option<SkipCause>) -> (Vec<String>, i64) {
        let made = plan(cadence, misfire, GRACE, Situation { from: at(0), now: at(now_ms), withheld });
        let line = |line: &Planned| {
            let decision = match line.decision {
                TickDecision::Fire => "fire".to_owned(),
                TickDecision::Skip(cause) => cause.to_string(),
            };
            let count = if line.count == 1 { String::new() } else { format!(" x{}", line.count) };
            format!("{} {decision}{count}", (line.due_at - at(0)).num_seconds())
        };
        (made.lines.iter().map(line).collect(), (made.next.unwrap() - at(0)).num_seconds())
    }

    #[test]
    fn a_tick_on_time_fires_whatever_the_policy() {
        for misfire in [Misfire::Skip, Misfire::One, Misfire::All] {
            assert_eq!(told(&every(60_000), misfire, 5, None), (vec!["0 fire".to_owned()], 60));
            assert_eq!(told(&every(60_000), misfire, 10_000, None), (vec!["0 fire".to_owned()], 60));
            assert_eq!(told(&every(60_000), misfire, -1, None), (vec![], 0));
        }
    }

    #[test]
    fn ticks_that_were_missed_are_skipped_or_the_last_of_them_fires_or_all() {
        let hourly = every(3_600_000);
        let now = 3 * 3_600_000 - 1;
        let expect = |decisions: [&str; 3]| {
            let times = ["0", "3600", "7200"];
            (
                times.iter().zip(decisions).map(|(time, decision)| format!("{time} {decision}")).collect::<Vec<_>>(),
                10_800,
            )
        };
        assert_eq!(told(&hourly, Misfire::Skip, now, None), expect(["missed", "missed", "missed"]));
        assert_eq!(told(&hourly, Misfire::One, now, None), expect(["missed", "missed", "fire"]));
        assert_eq!(told(&hourly, Misfire::All, now, None), expect(["fire", "fire", "fire"]));
        for misfire in [Misfire::Skip, Misfire::One, Misfire::All] {
            assert_eq!(told(&hourly, misfire, now, Some(SkipCause::Paused)), expect(["paused"; 3]));
        }
        // A tick that is on time fires in addition.
        assert_eq!(told(&hourly, Misfire::Skip, 7_205_000, None), expect(["missed", "missed", "fire"]));
        assert_eq!(told(&hourly, Misfire::One, 7_205_000, None), expect(["missed", "fire", "fire"]));
    }

    #[test]
    fn a_month_of_seconds_makes_few_lines() {
        let month = 30 * 86_400_000;
        let (lines, next) = told(&every(1_000), Misfire::Skip, month, None);
        assert_eq!(lines[0], "0 missed x10000");
        // A hundred missed ticks, and those of the last ten seconds.
        assert_eq!((lines.len(), next), (1 + 100 + 11, month / 1_000 + 1));
        let (lines, next) = told(&every(1_000), Misfire::All, month, None);
        assert_eq!((lines.len(), &lines[1]), (200, &format!("{} fire", month / 1_000 - 10 - 1_000)));
        assert_eq!(next, month / 1_000 - 10 - 1_000 + 199);
    }

    #[test]
    fn a_burst_long_ago_is_counted_and_not_walked() {
        let zone = Zone::UTC;
        // Every second of one day of the year, after two years without a runner.
        let cron = CronExpression::parse("* * * 1 1 *").unwrap();
        let cadence = Cadence::Cron { cron, zone, dst: Dst::Once };
        let from = cadence.next_after(at(0)).unwrap();
        let now = from + TimeDelta::days(2 * 366 + 10);
        let made = plan(&cadence, Misfire::One, GRACE, Situation { from, now, withheld: None });
        assert_eq!((made.lines.len(), made.lines[0].count), (101, 10_000));
        assert_eq!(made.lines[100].decision, TickDecision::Fire);
        assert!(made.next.unwrap() > now);
    }

    proptest! {
        #[test]
        fn every_tick_is_seen_to_exactly_once(
            step in 1_000_u64..100_000,
            now in -5_000_i64..3_000_000,
            misfire in prop::sample::select(&Misfire::ALL),
            withheld in prop::option::of(Just(SkipCause::Paused)),
            cut in 1..MAX_LINES + 2,
        ) {
            let cadence = every(step);
            let (mut from, mut seen, mut fired) = (at(0), 0_u32, 0);
            loop {
                let mut made = plan(&cadence, misfire, GRACE, Situation { from, now: at(now), withheld });
                prop_assert!(made.lines.len() <= MAX_LINES);
                // A transaction may have room for the first rows only.
                made.truncate(cut);
                let mut expected = from;
                for line in &made.lines {
                    prop_assert_eq!(line.due_at, expected);
                    expected = at(0) + TimeDelta::milliseconds(i64::try_from(step).unwrap() * i64::from(seen + line.count));
                    seen += line.count;
                    fired += u32::from(line.decision == TickDecision::Fire);
                    prop_assert!(line.due_at <= at(now));
                }
                from = made.next.unwrap();
                prop_assert_eq!(from, expected);
                if from > at(now) {
                    break;
                }
            }
            let ticks = if now < 0 { 0 } else { u32::try_from(now / i64::try_from(step).unwrap()).unwrap() + 1 };
            prop_assert_eq!(seen, ticks);
            if withheld.is_some() {
                prop_assert_eq!(fired, 0);
            } else if misfire == Misfire::All {
                let on_time = 10_000 / u32::try_from(step).unwrap() + 1;
                prop_assert!(fired >= ticks.min(1_000) && fired <= 1_000 + on_time);
            }
        }
    }
}
