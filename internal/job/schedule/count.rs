//! The number of ticks between two moments, without a step for each of them: a schedule of every second has 86,400 a
//! day.

use chrono::{NaiveDateTime, TimeDelta, Timelike};

use super::cadence::CronExpression;
use super::{Cadence, Zone};
use crate::Timestamp;

/// The distance around an hour within which the clocks must not change, so that its ticks can be counted from the clock
/// face. A time inside a gap ticks at the end of the gap, and no clock was ever changed by more than a day.
const QUIET: TimeDelta = TimeDelta::hours(26);

impl Cadence {
    /// Return the number of ticks at `from` or later and before `to`. For a cron expression this takes one step for
    /// each hour that has ticks, and one step for each tick near a clock change.
    #[must_use]
    pub fn ticks_between(&self, from: Timestamp, to: Timestamp) -> u64 {
        match self {
            Self::Every { every, anchor } => {
                let Some(step) = i64::try_from(every.as_micros()).ok().filter(|step| *step > 0) else { return 0 };
                // The anchor is the first tick.
                let before = |moment: Timestamp| {
                    let passed = (moment - *anchor).num_microseconds().unwrap_or(0).max(0);
                    passed.unsigned_abs().div_ceil(step.unsigned_abs())
                };
                before(to).saturating_sub(before(from))
            }
            Self::Cron { cron, zone, .. } => self.count_by_hours(cron, *zone, from, to),
        }
    }

    fn count_by_hours(&self, cron: &CronExpression, zone: Zone, from: Timestamp, to: Timestamp) -> u64 {
        let (mut count, mut cursor) = (0, from);
        let moment = TimeDelta::microseconds(1);
        while let Some(tick) = self.next_after(cursor - moment).filter(|tick| *tick < to) {
            let wall = zone.wall(tick);
            let end = (tick + TimeDelta::seconds(i64::from(3_600 - wall.num_seconds_from_midnight() % 3_600))).min(to);
            if zone.is_quiet(tick - QUIET, end + QUIET) {
                count += cron.in_one_hour(wall, end - tick);
            } else {
                count += self.after(tick - moment).take_while(|tick| *tick < end).count() as u64;
            }
            cursor = end;
        }
        count
    }
}

impl CronExpression {
    /// Return the number of matching times in `length` from `wall`, which matches itself, within one hour: the matching
    /// days and hours apply to each matching minute, and those to each matching second.
    fn in_one_hour(&self, wall: NaiveDateTime, length: TimeDelta) -> u64 {
        let start = i64::from(wall.num_seconds_from_midnight() % 3_600);
        let end = start + length.num_seconds() + i64::from(length.subsec_nanos() > 0);
        let (minutes, seconds) = self.faces();
        let of_minute = |minute: &u32| {
            let first = i64::from(*minute) * 60;
            if start <= first && first + 60 <= end {
                return seconds.len();
            }
            seconds.iter().filter(|second| (start..end).contains(&(first + i64::from(**second)))).count()
        };
        minutes.iter().map(of_minute).sum::<usize>() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::Dst;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn cron(text: &str, zone: &str, dst: Dst) -> Cadence {
        Cadence::Cron { cron: CronExpression::parse(text).unwrap(), zone: Zone::named(zone).unwrap(), dst }
    }

    fn walked(cadence: &Cadence, from: Timestamp, to: Timestamp) -> u64 {
        cadence.after(from - TimeDelta::microseconds(1)).take_while(|tick| *tick < to).count() as u64
    }

    #[test]
    fn a_day_of_seconds_is_counted_also_when_it_is_23_or_25_hours_long() {
        let each = cron("* * * * * *", "Europe/Warsaw", Dst::Once);
        for (from, to, ticks) in [
            ("2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z", 86_400),
            // Local midnights around the clock changes.
            ("2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", 23 * 3_600),
            ("2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", 25 * 3_600),
            ("2026-11-21T10:00:00.500Z", "2026-11-21T10:00:02.500Z", 2),
            ("2026-11-21T10:00:00Z", "2026-11-21T10:00:00Z", 0),
        ] {
            assert_eq!(each.ticks_between(at(from), at(to)), ticks, "{from}");
        }
        // At half past two there is no tick, or there are two, or one.
        let night = ("2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z");
        for (dst, ticks) in [(Dst::Once, 1), (Dst::Skip, 0), (Dst::Both, 2)] {
            let half_past_two = cron("30 2 * * *", "Europe/Warsaw", dst);
            assert_eq!(half_past_two.ticks_between(at(night.0), at(night.1)), ticks);
        }
        let every = Cadence::Every { every: Duration::from_secs(1), anchor: at("2026-11-21T12:00:00.250Z") };
        assert_eq!(every.ticks_between(at("2026-11-21T00:00:00Z"), at("2026-11-22T00:00:00Z")), 43_200);
    }

    proptest! {
        /// The count equals the number of ticks that a walk finds, in any zone, across all clock changes.
        #[test]
        fn a_count_is_what_a_walk_finds(
            text in prop::sample::select(vec![
                "*/7 * * * *", "30 2 * * *", "15,45 1-3 * * 0", "*/20 5,59 * * * *", "0 0 1 * *", "0 */5 * * *", "* 2 * * *",
            ]),
            zone in prop::sample::select(vec![
                "UTC", "Europe/Warsaw", "Australia/Lord_Howe", "Asia/Kolkata", "America/New_York", "Pacific/Apia",
            ]),
            dst in prop::sample::select(vec![Dst::Once, Dst::Skip, Dst::Both]),
            // Around the clock changes of 2026, and in 2011, when Samoa left out a day.
            start in prop::sample::select(vec![
                "2026-03-28T00:00:00Z", "2026-10-24T00:00:00Z", "2026-04-04T00:00:00Z", "2026-10-03T00:00:00Z",
                "2026-07-01T00:00:00Z", "2011-12-29T00:00:00Z", "2026-03-07T00:00:00Z",
            ]),
            offset_ms in 0..172_800_000_i64,
            length_ms in 0..90_000_000_i64,
        ) {
            let from = at(start) + TimeDelta::milliseconds(offset_ms);
            let to = from + TimeDelta::milliseconds(length_ms);
            let cadence = cron(text, zone, dst);
            prop_assert_eq!(cadence.ticks_between(from, to), walked(&cadence, from, to));
        }

        #[test]
        fn a_count_of_an_interval_is_what_a_walk_finds(
            every_ms in 1_000..50_000_u64, anchor_ms in -200_000..200_000_i64, length_ms in 0..500_000_i64,
        ) {
            let from = at("2026-11-21T10:00:00Z");
            let cadence = Cadence::Every {
                every: Duration::from_millis(every_ms), anchor: from + TimeDelta::milliseconds(anchor_ms),
            };
            let to = from + TimeDelta::milliseconds(length_ms);
            prop_assert_eq!(cadence.ticks_between(from, to), walked(&cadence, from, to));
        }
    }
}
