//! Time zones: conversion between moments and wall times.

use std::fmt;

use chrono::offset::LocalResult;
use chrono::{NaiveDateTime, Offset, TimeDelta, TimeZone};
use chrono_tz::{TZ_VARIANTS, Tz};

use super::super::Timestamp;
use super::super::suggest::nearest;

/// A time zone of the IANA database, such as `Europe/Warsaw`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Zone(Tz);

/// The error for a name that is not a time zone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a time zone of the IANA database{}", .near.map_or_else(
    || "; write one such as UTC or Europe/Warsaw".to_owned(),
    |near| format!("; did you mean {near}?"),
))]
pub struct UnknownZone {
    /// The time zone name that was probably meant.
    pub near: Option<&'static str>,
}

/// The moments at which a wall clock shows a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moments {
    One(Timestamp),
    /// The clock was set back: the first and the second moment.
    Two(Timestamp, Timestamp),
    /// The clock was set forward past this time.
    None,
}

impl Zone {
    /// Coordinated universal time: the default zone of a schedule.
    pub const UTC: Self = Self(Tz::UTC);

    /// Return the zone with this name.
    ///
    /// # Errors
    /// [`UnknownZone`], with the name that was probably meant.
    pub fn named(name: &str) -> Result<Self, UnknownZone> {
        name.parse().map(Self).map_err(|_| UnknownZone { near: near(name) })
    }

    /// Return the IANA name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// Format a moment as RFC 3339 with the offset of this zone.
    #[must_use]
    pub fn local(self, moment: Timestamp) -> String {
        moment.with_timezone(&self.0).to_rfc3339_opts(chrono::SecondsFormat::Millis, false)
    }

    /// Return the wall time at a moment.
    pub(super) fn wall(self, moment: Timestamp) -> NaiveDateTime {
        moment.with_timezone(&self.0).naive_local()
    }

    /// Return the moments at which a wall clock shows this time.
    pub(super) fn moments(self, wall: NaiveDateTime) -> Moments {
        match self.0.from_local_datetime(&wall) {
            LocalResult::Single(moment) => Moments::One(moment.to_utc()),
            LocalResult::Ambiguous(a, b) => Moments::Two(a.min(b).to_utc(), a.max(b).to_utc()),
            LocalResult::None => Moments::None,
        }
    }

    /// Return the moment of the clock change near this wall time, in whole seconds.
    pub(super) fn turn(self, wall: NaiveDateTime) -> Option<Timestamp> {
        // No clock is farther from UTC than fourteen hours, and none was ever changed by more than a day.
        let far = TimeDelta::hours(40);
        let (mut before, mut after) = ((wall - far).and_utc(), (wall + far).and_utc());
        let offset = |moment: Timestamp| self.0.offset_from_utc_datetime(&moment.naive_utc()).fix();
        let first = offset(before);
        if first == offset(after) {
            return None;
        }
        while after - before > TimeDelta::seconds(1) {
            let middle = before + TimeDelta::seconds((after - before).num_seconds() / 2);
            if offset(middle) == first {
                before = middle;
            } else {
                after = middle;
            }
        }
        Some(after)
    }

    /// Return true if the offset from UTC is the same at both moments.
    pub(super) fn is_quiet(self, from: Timestamp, to: Timestamp) -> bool {
        let offset = |moment: Timestamp| self.0.offset_from_utc_datetime(&moment.naive_utc()).fix();
        offset(from) == offset(to)
    }

    /// Return the wall time that the clocks would show at the moment of a change, without the change.
    pub(super) fn unturned(self, turn: Timestamp) -> NaiveDateTime {
        self.wall(turn - TimeDelta::seconds(1)) + TimeDelta::seconds(1)
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Find the name that was probably meant: the same letters in another case, a city without its region, or a typing
/// error.
fn near(name: &str) -> Option<&'static str> {
    let names = || TZ_VARIANTS.iter().map(|zone| zone.name());
    let city = |name: &str| name.rsplit('/').next().unwrap_or_default().replace(' ', "_").to_ascii_lowercase();
    let alike = names().find(|known| known.eq_ignore_ascii_case(name));
    let same_city = || names().find(|known| known.contains('/') && city(known) == city(name));
    let slip = || nearest(name, names());
    // In a long list of short names some name is near any word, so limit the length.
    alike.or_else(same_city).or_else(|| (3..=64).contains(&name.len()).then(slip).flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_that_is_none_is_answered_with_the_one_that_was_meant() {
        for (given, meant) in [
            ("europe/warsaw", Some("Europe/Warsaw")),
            ("Warsaw", Some("Europe/Warsaw")),
            ("New York", Some("America/New_York")),
            ("Europe/Warsow", Some("Europe/Warsaw")),
            ("utc", Some("UTC")),
            ("", None),
            ("the moon, dark side", None),
        ] {
            assert_eq!(Zone::named(given), Err(UnknownZone { near: meant }), "{given}");
        }
        assert_eq!(Zone::named("Asia/Kolkata").unwrap().name(), "Asia/Kolkata");
    }

    #[test]
    fn the_turn_of_the_clocks_is_found_to_the_second() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        for (zone, wall, turn) in [
            ("Europe/Warsaw", "2026-03-29T02:30:00", Some("2026-03-29T01:00:00Z")),
            ("Europe/Warsaw", "2026-10-25T02:30:00", Some("2026-10-25T01:00:00Z")),
            ("Australia/Lord_Howe", "2026-10-04T02:10:00", Some("2026-10-03T15:30:00Z")),
            ("America/New_York", "2026-03-08T02:00:00", Some("2026-03-08T07:00:00Z")),
            ("Asia/Kolkata", "2026-03-08T02:00:00", None),
        ] {
            let found = Zone::named(zone).unwrap().turn(wall.parse().unwrap());
            assert_eq!(found, turn.map(at), "{zone} {wall}");
        }
    }
}
