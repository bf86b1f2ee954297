//! Byte sizes: a whole number of bytes, KiB, MiB or GiB.

use super::error::Wrong;

const UNITS: [(&str, u64); 5] = [("", 1), ("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// Parse a size in bytes within the limits, both included.
pub(super) fn between(text: &str, least: u64, most: u64) -> Result<u64, Wrong> {
    let right = || format!("write a size from {} to {}", show(least), show(most));
    let size = parse(text).map_err(|wrong| Wrong::new(wrong, format!("{}, like 65536, 256KiB or 1MiB", right())))?;
    if size < least || size > most {
        return Err(Wrong::new("out of range", right()));
    }
    Ok(size)
}

fn parse(text: &str) -> Result<u64, &'static str> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err("not a size, which is a whole number with or without a unit");
    }
    // KB and MB are refused, because they are used for both 1000 and 1024.
    let Some((_, bytes)) = UNITS.iter().find(|(name, _)| *name == unit.trim_start()) else {
        return Err("the unit is unknown, which is one of B, KiB, MiB, GiB");
    };
    number.parse::<u64>().ok().and_then(|n| n.checked_mul(*bytes)).ok_or("too large to count")
}

/// Format the size in its largest exact unit.
pub(super) fn show(bytes: u64) -> String {
    let exact = |(_, unit): &(&str, u64)| bytes > 0 && bytes.is_multiple_of(*unit);
    let (unit, unit_bytes) = UNITS.into_iter().rev().find(exact).unwrap_or(UNITS[0]);
    format!("{}{unit}", bytes / unit_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_shows_binary_units() {
        for (text, bytes) in
            [("0", 0), ("65536", 65_536), ("256KiB", 262_144), ("256 KiB", 262_144), ("1MiB", 1_048_576)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        assert_eq!(show(262_144), "256KiB");
        assert_eq!(show(1_048_576), "1MiB");
        assert_eq!(show(1_025), "1025B");
    }

    #[test]
    fn refuses_ambiguous_units_and_nonsense() {
        for text in ["", "KiB", "1KB", "1M", "-1", "1.5MiB", "99999999999GiB"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(between("2MiB", 1_024, 1 << 20).is_err());
    }
}
