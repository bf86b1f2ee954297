//! A part of the day, in UTC.

use std::fmt;
use std::str::FromStr;

use chrono::NaiveTime;

/// A part of the day, such as `01:00-05:30`. It may cross midnight: `22:00-04:00`. The times are in UTC, because the
/// database shows times in UTC; an operator in a zone with summer time must set different hours in summer and winter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    from: NaiveTime,
    until: NaiveTime,
}

impl Hours {
    /// Return true if this time of day is within the hours. The end is excluded.
    #[must_use]
    pub fn contain(self, time: NaiveTime) -> bool {
        if self.from < self.until {
            (self.from..self.until).contains(&time)
        } else {
            time >= self.from || time < self.until
        }
    }
}

impl FromStr for Hours {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (from, until) = text.split_once('-').ok_or(())?;
        let time = |text: &str| NaiveTime::parse_from_str(text.trim(), "%H:%M").map_err(drop);
        let (from, until) = (time(from)?, time(until)?);
        if from == until { Err(()) } else { Ok(Self { from, until }) }
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.from.format("%H:%M"), self.until.format("%H:%M"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_may_go_over_midnight() {
        let at = |text: &str| NaiveTime::parse_from_str(text, "%H:%M").unwrap();
        let hours = |text: &str| text.parse::<Hours>();
        let day: Hours = hours("01:00-05:30").unwrap();
        assert!(
            day.contain(at("01:00"))
                && day.contain(at("05:29"))
                && !day.contain(at("05:30"))
                && !day.contain(at("00:59"))
        );
        let night: Hours = hours("22:00 - 04:00").unwrap();
        assert!(night.contain(at("23:59")) && night.contain(at("00:00")) && !night.contain(at("04:00")));
        assert_eq!(night.to_string(), "22:00-04:00");
        for bad in ["", "1-5", "01:00", "25:00-26:00", "01:00-01:00", "a-b"] {
            assert!(hours(bad).is_err(), "{bad}");
        }
    }
}
