//! The times of a schedule's ticks: a cron expression in a time zone, or an interval.
//!
//! Wall clocks change twice a year. A cron expression that names hours refers to the wall clock, so a policy decides
//! about a time that does not exist and a time that exists twice. An expression that runs in every hour names no hours
//! and refers to elapsed time: it ticks whenever the clock matches, and the policy does not apply.

use std::time::Duration;

use chrono::{NaiveDateTime, TimeDelta, Timelike};
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use serde::{Deserialize, Serialize};

use super::super::Timestamp;
use super::zone::{Moments, Zone};

/// Maximum number of wall times examined for one tick. Wall times without a tick are rare: after each one the search
/// jumps past the clock change that it fell into.
const MAX_STEPS: usize = 1_000;

/// Policy for clock changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dst {
    /// Tick once: at the first moment after the gap for a time that does not exist, and at the first occurrence of a
    /// time that exists twice.
    #[default]
    Once,
    /// Do not tick, in both cases.
    Skip,
    /// Tick at every occurrence on the clock, and once for a time that does not exist.
    Both,
}

/// A cron expression of five fields, or of six with seconds first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronExpression {
    text: String,
    cron: Box<Cron>,
    /// True if it runs in every hour.
    hourly: bool,
}

/// The fields of an expression, each with its permitted values.
const FIELDS: [(&str, &str); 6] = [
    ("second", "0 to 59"),
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day", "1 to 31 or L"),
    ("month", "1 to 12 or JAN to DEC"),
    ("weekday", "0 to 7 (0 and 7 are Sunday) or SUN to SAT"),
];

fn parse_cron(text: &str) -> Result<Cron, ()> {
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    parser.parse(text).map_err(drop)
}

/// Describe the invalid field of a refused expression. It is found by trying each field with stars in the others.
fn what_is_wrong(text: &str) -> String {
    let given: Vec<&str> = text.split_whitespace().collect();
    let names = match given.len() {
        5 => &FIELDS[1..],
        6 => &FIELDS[..],
        count => {
            let fields = if count == 1 { "field" } else { "fields" };
            return format!(
                "is not a cron expression: it has {count} {fields}, and takes five (minute hour day month weekday), or six with the second first, \
                 like 30 4 * * MON-FRI"
            );
        }
    };
    for (place, field) in given.iter().enumerate() {
        let mut alone = vec!["*"; given.len()];
        alone[place] = field;
        if parse_cron(&alone.join(" ")).is_err() {
            let (name, takes) = names[place];
            let shown: String = field.chars().take(40).collect();
            return format!(
                "is not a cron expression: {shown} is its {name}, which takes {takes}, * for each, lists 1,2, ranges 1-5 and steps */2"
            );
        }
    }
    "is not a cron expression: no time matches all of its fields".to_owned()
}

impl CronExpression {
    /// Longest text.
    pub const MAX_BYTES: usize = 255;

    /// Parse an expression.
    ///
    /// # Errors
    /// A short description of the problem.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.len() > Self::MAX_BYTES {
            return Err(format!("must be at most {} bytes", Self::MAX_BYTES));
        }
        let cron = parse_cron(text).map_err(|()| what_is_wrong(text))?;
        let hourly = cron.pattern.hours.values().len() == 24;
        Ok(Self { text: text.to_owned(), cron: Box::new(cron), hourly })
    }

    /// Return the expression as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Describe the expression in English.
    #[must_use]
    pub fn describe(&self) -> String {
        self.cron.describe()
    }

    /// Return the minutes of an hour and the seconds of a minute at which it runs.
    pub(super) fn faces(&self) -> (Vec<u32>, Vec<u32>) {
        let values = |values: Vec<u16>| values.into_iter().map(u32::from).collect();
        (values(self.cron.pattern.minutes.values()), values(self.cron.pattern.seconds.values()))
    }

    /// Return the first wall time that matches after this one, or at it if `inclusive`.
    fn wall_from(&self, wall: NaiveDateTime, inclusive: bool) -> Option<NaiveDateTime> {
        self.cron.find_next_occurrence(&wall, inclusive).ok()
    }
}

/// The times at which a schedule ticks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cadence {
    /// Whenever a wall clock in `zone` matches `cron`.
    Cron {
        /// The expression.
        cron: CronExpression,
        /// The time zone of the wall clock.
        zone: Zone,
        /// Policy for clock changes.
        dst: Dst,
    },
    /// At a fixed interval, counted from a fixed moment, so that it does not drift.
    Every {
        /// The interval, whole milliseconds, at least a second.
        every: Duration,
        /// The first tick, from which all others are counted.
        anchor: Timestamp,
    },
}

impl Cadence {
    /// Shortest interval.
    pub const MIN_EVERY: Duration = Duration::from_secs(1);
    /// Longest interval: a leap year.
    pub const MAX_EVERY: Duration = Duration::from_secs(366 * 24 * 60 * 60);

    /// Return the first tick after a moment, or `None` if there is none before the year 5000.
    #[must_use]
    pub fn next_after(&self, moment: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Cron { cron, zone, dst } => next_of(cron, *zone, *dst, moment),
            Self::Every { every, anchor } => {
                let step = i64::try_from(every.as_millis()).ok().filter(|step| *step > 0)?;
                if moment < *anchor {
                    return Some(*anchor);
                }
                let steps = (moment - *anchor).num_milliseconds() / step + 1;
                anchor.checked_add_signed(TimeDelta::try_milliseconds(steps.checked_mul(step)?)?)
            }
        }
    }

    /// Return the ticks after a moment, in order.
    pub fn after(&self, moment: Timestamp) -> impl Iterator<Item = Timestamp> {
        std::iter::successors(self.next_after(moment), |tick| self.next_after(*tick))
    }

    /// Describe the cadence in English.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Cron { cron, zone, .. } => format!("{} ({zone})", cron.describe().trim_end_matches('.')),
            Self::Every { every, .. } => format!("Every {}", in_words(*every)),
        }
    }
}

/// Return a duration in its largest exact unit.
fn in_words(every: Duration) -> String {
    let ms = every.as_millis();
    let units = [("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000), ("millisecond", 1)];
    let (word, unit) = units.into_iter().find(|(_, unit)| ms.is_multiple_of(*unit)).unwrap_or(("millisecond", 1));
    if ms == unit { word.to_owned() } else { format!("{} {word}s", ms / unit) }
}

fn next_of(cron: &CronExpression, zone: Zone, dst: Dst, moment: Timestamp) -> Option<Timestamp> {
    // Ticks are at whole seconds.
    let moment = moment.with_nanosecond(0)?;
    let repeats = cron.hourly || dst == Dst::Both;
    let wall = zone.wall(moment);
    let mut again = None;
    if let Moments::Two(first, _) = zone.moments(wall)
        && first == moment
        && repeats
        && let Some(turn) = zone.turn(wall)
        && let Some(wall) = cron.wall_from(zone.wall(turn), true)
        && let Moments::Two(_, second) = zone.moments(wall)
    {
        // The clock will be set back before it passes the repeated period, so the repetition comes first.
        again = Some(second);
    }
    let onward = onward(cron, zone, dst, moment, wall);
    match (onward, again) {
        (Some(onward), Some(again)) => Some(onward.min(again)),
        (onward, again) => onward.or(again),
    }
}

/// Return the first tick after `moment` whose wall time is later than `wall`.
fn onward(
    cron: &CronExpression,
    zone: Zone,
    dst: Dst,
    moment: Timestamp,
    mut wall: NaiveDateTime,
) -> Option<Timestamp> {
    let mut inclusive = false;
    for _ in 0..MAX_STEPS {
        wall = cron.wall_from(wall, inclusive)?;
        inclusive = false;
        let ticks = match zone.moments(wall) {
            Moments::One(at) => [Some(at), None],
            Moments::Two(first, second) => {
                let ticks = match dst {
                    _ if cron.hourly => [Some(first), Some(second)],
                    Dst::Both => [Some(first), Some(second)],
                    Dst::Once => [Some(first), None],
                    Dst::Skip => [None, None],
                };
                if !ticks.iter().flatten().any(|tick| *tick > moment) {
                    // The same holds for the whole period that the clock shows twice, so skip it.
                    wall = zone.unturned(zone.turn(wall)?);
                    inclusive = true;
                }
                ticks
            }
            Moments::None => {
                let turn = zone.turn(wall)?;
                wall = zone.wall(turn);
                inclusive = true;
                [Some(turn).filter(|_| !cron.hourly && dst != Dst::Skip), None]
            }
        };
        if let Some(tick) = ticks.into_iter().flatten().find(|tick| *tick > moment) {
            return Some(tick);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use chrono::{Datelike, NaiveDate};
    use proptest::prelude::*;

    use super::*;

    fn cadence(text: &str, zone: &str, dst: Dst) -> Cadence {
        Cadence::Cron { cron: CronExpression::parse(text).unwrap(), zone: Zone::named(zone).unwrap(), dst }
    }

    /// Return the ticks of one local day and the morning after, as local time without the date and the seconds.
    fn ticks(text: &str, zone: &str, dst: Dst, day: &str) -> Vec<String> {
        let date: NaiveDate = day.parse().unwrap();
        let from = (date.and_hms_opt(0, 0, 0).unwrap() - TimeDelta::hours(30)).and_utc();
        let zone_of = Zone::named(zone).unwrap();
        let of_the_day = |tick: &Timestamp| zone_of.wall(*tick).date() == date;
        let short = |tick: Timestamp| {
            let local = zone_of.local(tick);
            format!("{}{}", &local[11..16], &local[23..])
        };
        let ticks = cadence(text, zone, dst);
        ticks.after(from).take_while(|tick| zone_of.wall(*tick).date() <= date).filter(of_the_day).map(short).collect()
    }

    const WARSAW: &str = "Europe/Warsaw";
    const NEW_YORK: &str = "America/New_York";
    const LORD_HOWE: &str = "Australia/Lord_Howe";

    #[test]
    fn a_time_that_does_not_exist_ticks_once_after_the_gap_or_not_at_all() {
        for (zone, text, day, once) in [
            (WARSAW, "30 2 * * *", "2026-03-29", vec!["03:00+02:00"]),
            (NEW_YORK, "30 2 * * *", "2026-03-08", vec!["03:00-04:00"]),
            (LORD_HOWE, "10 2 * * *", "2026-10-04", vec!["02:30+11:00"]),
            // All ticks that fall into the gap happen together.
            (WARSAW, "*/15 2 * * *", "2026-03-29", vec!["03:00+02:00"]),
            (WARSAW, "30 1,2,3 * * *", "2026-03-29", vec!["01:30+01:00", "03:00+02:00", "03:30+02:00"]),
        ] {
            assert_eq!(ticks(text, zone, Dst::Once, day), once, "{zone} {text}");
            assert_eq!(ticks(text, zone, Dst::Both, day), once, "{zone} {text}");
        }
        for (zone, text, day) in [
            (WARSAW, "30 2 * * *", "2026-03-29"),
            (NEW_YORK, "0 2 * * *", "2026-03-08"),
            (LORD_HOWE, "29 2 * * *", "2026-10-04"),
        ] {
            assert_eq!(ticks(text, zone, Dst::Skip, day), [""; 0], "{zone} {text}");
        }
        assert_eq!(ticks("30 1,2,3 * * *", WARSAW, Dst::Skip, "2026-03-29"), ["01:30+01:00", "03:30+02:00"]);
    }

    #[test]
    fn a_time_that_exists_twice_ticks_the_first_time_both_times_or_not_at_all() {
        for (zone, text, day, first, second) in [
            (WARSAW, "30 2 * * *", "2026-10-25", "02:30+02:00", "02:30+01:00"),
            (NEW_YORK, "0 1 * * *", "2026-11-01", "01:00-04:00", "01:00-05:00"),
            (LORD_HOWE, "45 1 * * *", "2026-04-05", "01:45+11:00", "01:45+10:30"),
        ] {
            assert_eq!(ticks(text, zone, Dst::Once, day), [first], "{zone}");
            assert_eq!(ticks(text, zone, Dst::Both, day), [first, second], "{zone}");
            assert_eq!(ticks(text, zone, Dst::Skip, day), [""; 0], "{zone}");
        }
        // The whole hour is repeated, not each of its times in turn.
        let both = ["02:00+02:00", "02:30+02:00", "02:00+01:00", "02:30+01:00"];
        assert_eq!(ticks("*/30 2 * * *", WARSAW, Dst::Both, "2026-10-25"), both);
        assert_eq!(ticks("*/30 2 * * *", WARSAW, Dst::Once, "2026-10-25"), both[..2]);
        // Half an hour is repeated, with only the ticks within it.
        assert_eq!(ticks("15,45 1 * * *", LORD_HOWE, Dst::Both, "2026-04-05").len(), 3);
    }

    #[test]
    fn an_expression_that_runs_in_every_hour_goes_by_the_passing_of_time() {
        for dst in [Dst::Once, Dst::Skip, Dst::Both] {
            for (day, hours) in [("2026-03-29", 23), ("2026-10-25", 25), ("2026-06-01", 24)] {
                assert_eq!(ticks("0 * * * *", WARSAW, dst, day).len(), hours, "{day}");
                assert_eq!(ticks("*/20 * * * *", WARSAW, dst, day).len(), 3 * hours, "{day}");
                assert_eq!(ticks("30 0 * * * *", WARSAW, dst, day).len(), hours, "{day}");
            }
        }
        assert_eq!(ticks("0 * * * *", "UTC", Dst::Once, "2026-10-25").len(), 24);
    }

    #[test]
    fn from_within_the_hour_that_comes_again_everything_is_found() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        // 02:40 for the first time.
        let first = at("2026-10-25T00:40:00Z");
        let next = |dst, moment| cadence("30 2 * * *", WARSAW, dst).next_after(moment).unwrap();
        assert_eq!(next(Dst::Both, first), at("2026-10-25T01:30:00Z"));
        assert_eq!(next(Dst::Once, first), at("2026-10-26T01:30:00Z"));
        // 02:10 for the second time.
        let second = at("2026-10-25T01:10:00Z");
        assert_eq!(next(Dst::Both, second), at("2026-10-25T01:30:00Z"));
        assert_eq!(next(Dst::Once, second), at("2026-10-26T01:30:00Z"));
        assert_eq!(next(Dst::Skip, second), at("2026-10-26T01:30:00Z"));
        // A cron expression for every second of the hour, of which none is left.
        let every_second = cadence("* * 2 * * *", WARSAW, Dst::Once);
        assert_eq!(every_second.next_after(second).unwrap(), at("2026-10-26T01:00:00Z"));
    }

    #[test]
    fn what_never_comes_has_no_next_tick() {
        let now = "2026-11-21T00:00:00Z".parse().unwrap();
        for text in ["0 0 30 2 *", "0 0 31 4,6,9,11 *"] {
            assert_eq!(cadence(text, WARSAW, Dst::Once).next_after(now), None, "{text}");
        }
        assert!(cadence("0 0 29 2 *", WARSAW, Dst::Once).next_after(now).unwrap().year() == 2028);
    }

    #[test]
    fn expressions_have_five_or_six_fields() {
        for good in ["* * * * *", "*/5 * * * * *", "0 9 L * *", "0 9 * * MON#2", "@daily"] {
            assert!(CronExpression::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "* * * *", "0 0 0 1 1 * 2030", "61 * * * *", "a b c d e", "0 0 0 0 0", &"* ".repeat(200)] {
            assert!(CronExpression::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_interval_counts_from_its_anchor_and_does_not_drift() {
        let at = |ms| chrono::DateTime::from_timestamp_millis(ms).unwrap();
        let every = Cadence::Every { every: Duration::from_millis(1_500), anchor: at(10_000) };
        for (moment, next) in [(0, 10_000), (9_999, 10_000), (10_000, 11_500), (11_499, 11_500), (1_000_000, 1_001_500)]
        {
            assert_eq!(every.next_after(at(moment)), Some(at(next)), "{moment}");
        }
        assert_eq!(every.describe(), "Every 1500 milliseconds");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn ticks_increase_and_none_lies_between_two(
            zone in prop::sample::select(vec![WARSAW, NEW_YORK, LORD_HOWE, "UTC", "America/Havana", "Africa/Casablanca"]),
            text in prop::sample::select(vec!["*/7 * * * *", "30 2 * * *", "*/20 1-3 * * *", "0 0 * * *", "15 30 */3 * * *"]),
            dst in prop::sample::select(vec![Dst::Once, Dst::Skip, Dst::Both]),
            from in 1_760_000_000_i64..1_830_000_000,
            back in 1_i64..7_200,
        ) {
            let cadence = cadence(text, zone, dst);
            let from = chrono::DateTime::from_timestamp(from, 0).unwrap();
            let mut before = from;
            for tick in cadence.after(from).take(60) {
                prop_assert!(tick > before);
                // The result is the same from every moment in between.
                let asked = (tick - TimeDelta::seconds(back)).max(before);
                prop_assert_eq!(cadence.next_after(asked), Some(tick));
                before = tick;
            }
        }

        #[test]
        fn once_is_once_on_every_local_date(
            zone in prop::sample::select(vec![WARSAW, NEW_YORK, LORD_HOWE, "UTC", "America/Havana", "America/Santiago"]),
            minute in 0_u32..60,
            hour in 0_u32..24,
        ) {
            let cadence = cadence(&format!("{minute} {hour} * * *"), zone, Dst::Once);
            let zone = Zone::named(zone).unwrap();
            let mut date = NaiveDate::from_ymd_opt(2024, 12, 31).unwrap();
            let from = date.and_hms_opt(23, 59, 59).unwrap();
            let Moments::One(from) = zone.moments(from) else { return Ok(()) };
            for tick in cadence.after(from).take(3 * 365) {
                date = date.succ_opt().unwrap();
                prop_assert_eq!(zone.wall(tick).date(), date);
            }
        }
    }
}
