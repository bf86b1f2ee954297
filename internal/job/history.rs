//! Counts per time slot: the figures of a queue, the slot widths that are stored, and the slots that a chart shows.

use std::time::Duration;

use chrono::{DateTime, TimeDelta};

use super::{Histogram, Name, State, Timestamp, Verdict};

/// The series of the queues that have no series of their own. No [`Name`] begins with an underscore.
const OTHER: &str = "_other";

/// The subject of a series of figures.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Series {
    /// All queues together.
    All,
    /// The queues without a series of their own, together.
    Other,
    /// One queue.
    Queue(Name),
}

impl Series {
    /// Return the word used in the store and the API; empty for all queues together.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::All => "",
            Self::Other => OTHER,
            Self::Queue(name) => name.as_str(),
        }
    }

    /// Return the series of this word, if there is one.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "" => Some(Self::All),
            OTHER => Some(Self::Other),
            name => name.parse().ok().map(Self::Queue),
        }
    }
}

/// Counts of one slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of jobs accepted.
    pub accepted: u64,
    /// Number of jobs that completed.
    pub completed: u64,
    /// Number of attempts that failed, were rejected, timed out, panicked or were lost.
    pub failed: u64,
    /// Number of jobs that an attempt ended, in any end state, and of jobs that expired.
    pub ended: u64,
    /// Lateness (start − execute_at) of the attempts that started.
    pub lateness: Histogram,
    /// Run time of the handlers that finished.
    pub run: Histogram,
}

impl Tally {
    /// Count an attempt that was settled with this verdict and left its job in this state, or a job that expired.
    pub fn record_settled(&mut self, verdict: Verdict, state: State) {
        self.completed += u64::from(state == State::Completed);
        self.ended += u64::from(state.is_end());
        self.failed += u64::from(match verdict {
            Verdict::Failed | Verdict::Rejected | Verdict::TimedOut | Verdict::Panicked | Verdict::Lost => true,
            // A job that was stopped, postponed or never started has no failed attempt.
            Verdict::Succeeded | Verdict::Cancelled | Verdict::Interrupted | Verdict::Snoozed | Verdict::Expired => {
                false
            }
        });
    }

    /// Add the counts of another slot, queue or runner.
    pub fn add(&mut self, other: &Self) {
        self.accepted += other.accepted;
        self.completed += other.completed;
        self.failed += other.failed;
        self.ended += other.ended;
        self.lateness.add(&other.lateness);
        self.run.add(&other.run);
    }

    /// Return true if nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { accepted, completed, failed, ended, lateness, run } = self;
        [accepted, completed, failed, ended] == [&0; 4] && lateness.total() == 0 && run.total() == 0
    }
}

/// The figures of a slot in a chart, for all runners together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Same as in [`Tally`].
    pub accepted: u64,
    /// Same as in [`Tally`].
    pub completed: u64,
    /// Same as in [`Tally`].
    pub failed: u64,
    /// Same as in [`Tally`].
    pub ended: u64,
    /// Median and 99th percentile of the lateness, if any attempt started.
    pub lateness: Option<[Duration; 2]>,
    /// Median and 99th percentile of the run time, if any handler finished.
    pub run: Option<[Duration; 2]>,
}

/// The slot widths that are stored. Slots begin at multiples of their width since 1970, by the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlotWidth {
    /// Five seconds, for the last five minutes.
    FiveSeconds,
    /// One minute, for the last hour.
    Minute,
    /// Fifteen minutes, for the last day and for ranges of the last week.
    Quarter,
}

impl SlotWidth {
    /// All widths, from the finest to the widest.
    pub const ALL: [Self; 3] = [Self::FiveSeconds, Self::Minute, Self::Quarter];

    /// Return the width in seconds, which is also the key in the store.
    #[must_use]
    pub const fn seconds(self) -> u16 {
        match self {
            Self::FiveSeconds => 5,
            Self::Minute => 60,
            Self::Quarter => 900,
        }
    }

    /// Return the width.
    #[must_use]
    pub const fn width(self) -> TimeDelta {
        TimeDelta::seconds(self.seconds() as i64)
    }

    /// Return how long slots of this width are retained.
    #[must_use]
    pub const fn keep(self) -> TimeDelta {
        match self {
            Self::FiveSeconds => TimeDelta::minutes(10),
            Self::Minute => TimeDelta::hours(25),
            // A page about a range of the past can be read a week later.
            Self::Quarter => TimeDelta::days(8),
        }
    }

    /// Return the beginning of the slot that contains this moment.
    #[must_use]
    pub fn floor(self, moment: Timestamp) -> Timestamp {
        let width = i64::from(self.seconds());
        let second = moment.timestamp().div_euclid(width) * width;
        DateTime::from_timestamp(second, 0).unwrap_or(moment)
    }
}

/// The time range of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Five minutes in steps of five seconds.
    FiveMinutes,
    /// An hour in steps of a minute.
    Hour,
    /// A day in steps of fifteen minutes.
    Day,
}
words!(Span {
    FiveMinutes => "5m",
    Hour => "1h",
    Day => "24h",
});

/// The time that a chart is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// A span that ends now.
    Span(Span),
    /// From the first moment up to the second, which comes later.
    Range(Timestamp, Timestamp),
}

/// Most steps of a minute that a range has. A longer range has steps of fifteen minutes.
const MAX_MINUTES: i32 = 180;

/// Time after the end of a slot when every runner counts as having written it.
const WRITTEN: TimeDelta = TimeDelta::seconds(2);

/// The slots that a chart shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Width of a slot.
    pub step: SlotWidth,
    /// Beginning of the first slot.
    pub from: Timestamp,
    /// Number of slots.
    pub steps: usize,
    /// The moment up to which runners have written their counts. If the last slot ends later, it is still open.
    pub written: Timestamp,
}

impl Span {
    /// Return the slots of a chart drawn at this moment. A wide slot would be long out of date at its end, so the last
    /// slot may still be open. It appears as soon as runners have written its first five seconds.
    #[must_use]
    pub fn window(self, now: Timestamp) -> Window {
        let (step, steps) = match self {
            Self::FiveMinutes => (SlotWidth::FiveSeconds, 60),
            Self::Hour => (SlotWidth::Minute, 60),
            Self::Day => (SlotWidth::Quarter, 96),
        };
        let written = SlotWidth::FiveSeconds.floor(now - WRITTEN);
        // The slot that contains the last five seconds that were written.
        let last = step.floor(written - SlotWidth::FiveSeconds.width());
        let from = last - step.width() * (steps as i32 - 1);
        Window { step, from, steps, written }
    }
}

impl Extent {
    /// Return the slots of a chart drawn at this moment. Those of a range are all slots that share time with it. They
    /// are minutes if the range is short and minutes are still retained.
    #[must_use]
    pub fn window(self, now: Timestamp) -> Window {
        let (from, to) = match self {
            Self::Span(span) => return span.window(now),
            Self::Range(from, to) => (from, to),
        };
        let minute = SlotWidth::Minute;
        let retained = minute.floor(from) >= now - minute.keep();
        let step = if retained && to - from <= minute.width() * MAX_MINUTES { minute } else { SlotWidth::Quarter };
        let written = SlotWidth::FiveSeconds.floor(now - WRITTEN);
        // Nothing is known of later slots.
        let newest = written - SlotWidth::FiveSeconds.width();
        let last = step.floor(newest.min(to - TimeDelta::microseconds(1)));
        let first = step.floor(from).min(last);
        let passed = (last - first).num_seconds() / i64::from(step.seconds());
        Window { step, from: first, steps: usize::try_from(passed).unwrap_or(0) + 1, written }
    }
}

impl Window {
    /// Return the beginning of each slot.
    pub fn moments(self) -> impl Iterator<Item = Timestamp> {
        (0..self.steps).map(move |step| self.from + self.step.width() * step as i32)
    }

    /// Return the index of the slot that begins at this moment.
    #[must_use]
    pub fn place(self, moment: Timestamp) -> Option<usize> {
        let place = (moment - self.from).num_seconds().checked_div_euclid(i64::from(self.step.seconds()))?;
        usize::try_from(place).ok().filter(|place| *place < self.steps)
    }

    /// Return how much of the last slot has passed. `counted` is the end of its newest figures.
    #[must_use]
    pub fn last(self, counted: Option<Timestamp>) -> Duration {
        let began = self.from + self.step.width() * (self.steps as i32 - 1);
        let passed = self.written.max(counted.unwrap_or(self.written)) - began;
        passed.min(self.step.width()).to_std().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        format!("2026-03-29T{text}Z").parse().unwrap()
    }

    #[test]
    fn five_minutes_end_with_the_last_slot_that_everybody_has_written() {
        let window = Span::FiveMinutes.window(at("12:00:11.9"));
        assert_eq!((window.written, window.steps), (at("12:00:05"), 60));
        assert_eq!(window.moments().last(), Some(at("12:00:00")));
        assert_eq!(window.from, at("11:55:05"));
        assert_eq!(Span::FiveMinutes.window(at("12:00:12")).moments().last(), Some(at("12:00:05")));
        assert_eq!(window.last(None), Duration::from_secs(5));
        // A runner wrote early: this does not make the slot wider.
        assert_eq!(window.last(Some(at("12:00:10"))), Duration::from_secs(5));
    }

    #[test]
    fn the_last_of_the_wide_steps_may_be_open() {
        let window = Span::Hour.window(at("12:00:12"));
        assert_eq!((window.from, window.moments().count()), (at("11:01:00"), 60));
        assert_eq!((window.moments().last(), window.last(None)), (Some(at("12:00:00")), Duration::from_secs(10)));
        assert_eq!(window.last(Some(at("12:00:15"))), Duration::from_secs(15));
        // Nothing is known about the new minute yet.
        let window = Span::Hour.window(at("12:00:06"));
        assert_eq!((window.moments().last(), window.last(None)), (Some(at("11:59:00")), Duration::from_secs(60)));
        let window = Span::Day.window(at("12:14:59"));
        assert_eq!((window.moments().last(), window.moments().count()), (Some(at("12:00:00")), 96));
        assert_eq!(window.last(None), Duration::from_secs(14 * 60 + 55));
    }

    #[test]
    fn the_slots_of_a_range_are_those_that_share_time_with_it() {
        let slots = |from: &str, to: &str, now: &str| {
            let window = Extent::Range(at(from), at(to)).window(at(now));
            (window.step, window.from, window.steps, window.last(None))
        };
        let (minute, quarter) = (SlotWidth::Minute, SlotWidth::Quarter);
        let whole = Duration::from_secs(60);
        assert_eq!(slots("10:00:30", "10:02:00", "12:00:00"), (minute, at("10:00:00"), 2, whole));
        assert_eq!(slots("10:00:30", "10:02:00.5", "12:00:00"), (minute, at("10:00:00"), 3, whole));
        assert_eq!(slots("08:59:00", "12:00:00", "12:30:00").0, quarter);
        // The end of the range is still to come, or its beginning.
        assert_eq!(slots("11:58:00", "12:30:00", "12:00:12"), (minute, at("11:58:00"), 3, Duration::from_secs(10)));
        assert_eq!(slots("12:10:00", "12:30:00", "12:00:12").1, at("12:00:00"));
        // A week later the minutes are gone.
        let later = at("12:00:00") + TimeDelta::days(7);
        let window = Extent::Range(at("10:07:00"), at("10:31:00")).window(later);
        assert_eq!((window.step, window.from, window.steps), (quarter, at("10:00:00"), 3));
        assert!(later - window.from < quarter.keep());
        let week = Extent::Range(at("12:00:00"), later).window(later);
        assert_eq!(week.steps, 672);
        assert_eq!(Extent::Span(Span::Hour).window(later), Span::Hour.window(later));
    }

    #[test]
    fn steps_have_places() {
        let window = Span::Hour.window(at("12:30:30"));
        for (place, moment) in window.moments().enumerate() {
            assert_eq!(window.place(moment), Some(place));
            assert_eq!(SlotWidth::Minute.floor(moment + TimeDelta::seconds(59)), moment);
        }
        assert_eq!(window.place(window.from - TimeDelta::seconds(1)), None);
        assert_eq!(window.place(at("12:31:00")), None);
    }

    #[test]
    fn every_span_is_kept() {
        for span in Span::ALL {
            let now = at("12:00:00");
            let window = span.window(now);
            assert!(now - window.from < window.step.keep(), "{span}");
            assert_eq!(Span::from_word(span.as_str()), Some(span));
        }
        assert_eq!(Span::from_word("1d"), None);
        for series in [Series::All, Series::Other, Series::Queue("mail".parse().unwrap())] {
            assert_eq!(Series::from_word(series.as_str()), Some(series));
        }
        assert_eq!(Series::from_word("_mine"), None);
    }

    #[test]
    fn a_verdict_counts_once_and_interruptions_do_not() {
        let mut tally = Tally::default();
        assert!(tally.is_empty());
        for verdict in Verdict::ALL {
            tally.record_settled(verdict, State::Retrying);
        }
        tally.record_settled(Verdict::Failed, State::Failed);
        tally.record_settled(Verdict::Succeeded, State::Completed);
        tally.record_settled(Verdict::Cancelled, State::Cancelled);
        assert_eq!((tally.completed, tally.failed, tally.ended), (1, 6, 3));
    }
}
