//! Durations in the configuration: one whole number and one unit.

use std::time::Duration;

use super::error::Wrong;

const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Parse a duration within the limits, both included.
///
/// A number without a unit is refused: if 30 is read as milliseconds instead of seconds, the mistake can stay unnoticed
/// for a long time.
pub(super) fn between(text: &str, least: Duration, most: Duration) -> Result<Duration, Wrong> {
    let right = || format!("write a duration from {} to {}", show(least), show(most));
    let duration =
        parse(text).map_err(|wrong| Wrong::new(wrong, format!("{}, like 250ms, 30s, 15m, 24h or 7d", right())))?;
    if duration < least || duration > most {
        return Err(Wrong::new("out of range", right()));
    }
    Ok(duration)
}

/// Parse a duration such as `250ms`, `30s` or `7d`.
///
/// # Errors
/// A short description of the problem.
pub fn parse(text: &str) -> Result<Duration, &'static str> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err("not a duration, which is a whole number and a unit");
    }
    let unit = unit.trim_start();
    if unit.is_empty() {
        return Err("the unit is missing, which is one of ms, s, m, h, d");
    }
    let Some((_, unit_ms)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err("the unit is unknown, which is one of ms, s, m, h, d");
    };
    let ms = number.parse::<u64>().ok().and_then(|n| n.checked_mul(*unit_ms)).ok_or("too long to count")?;
    Ok(Duration::from_millis(ms))
}

/// Format the duration in its largest exact unit, so that parsing it returns the same value.
pub(super) fn show(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if ms == 0 {
        return "0s".to_owned();
    }
    let (unit, unit_ms) = UNITS.into_iter().rev().find(|(_, unit_ms)| ms.is_multiple_of(*unit_ms)).unwrap_or(UNITS[0]);
    format!("{}{unit}", ms / unit_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_unit() {
        for (text, ms) in [("250ms", 250), ("30s", 30_000), ("15m", 900_000), ("24h", 86_400_000), ("7 d", 604_800_000)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn shows_what_reads_back() {
        for text in ["250ms", "1500ms", "30s", "90s", "15m", "25h", "7d", "0s"] {
            assert_eq!(show(parse(text).unwrap()), text);
        }
    }

    #[test]
    fn says_which_units_exist() {
        let wrong = between("30", Duration::ZERO, Duration::from_secs(60)).unwrap_err();
        assert!(wrong.wrong.contains("ms, s, m, h, d"), "{wrong:?}");
        for text in ["", "s", "-1s", "1.5s", "30 sec", "30S", "99999999999999999999d", "18446744073709551615d"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn keeps_to_the_limits() {
        let limits = (Duration::from_secs(2), Duration::from_secs(3600));
        assert!(between("2s", limits.0, limits.1).is_ok() && between("1h", limits.0, limits.1).is_ok());
        let wrong = between("61m", limits.0, limits.1).unwrap_err();
        assert_eq!(wrong.right, "write a duration from 2s to 1h");
    }
}
