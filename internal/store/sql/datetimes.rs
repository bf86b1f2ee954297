//! Datetimes in the text form, written and read by hand: `2023-11-14 22:13:20.000007`.
//!
//! chrono interprets its pattern anew for each value, which is a tenth of a runner's own work when batches are small.

use std::io::Write as _;

use chrono::{Datelike, NaiveDate, NaiveDateTime, Timelike};
use sqlx::error::BoxDynError;
use sqlx::mysql::{MySqlTypeInfo, MySqlValueRef};
use sqlx::{Decode, MySql, Type};

use tickr_job::Timestamp;

/// Length of a datetime with microseconds.
const WITH_MICROSECONDS: usize = 26;

/// A column of the type DATETIME. It reads what the driver reads for a [`Timestamp`], and reads text faster.
pub(crate) struct Datetime(pub(crate) Timestamp);

impl Type<MySql> for Datetime {
    fn type_info() -> MySqlTypeInfo {
        <Timestamp as Type<MySql>>::type_info()
    }

    fn compatible(ty: &MySqlTypeInfo) -> bool {
        <Timestamp as Type<MySql>>::compatible(ty)
    }
}

impl<'r> Decode<'r, MySql> for Datetime {
    fn decode(value: MySqlValueRef<'r>) -> Result<Self, BoxDynError> {
        // A value in binary has at most 12 bytes, and a text at least 19. The driver reads all other forms.
        let text = <&[u8] as Decode<'r, MySql>>::decode(value.clone())?;
        match read_datetime(text) {
            Some(moment) => Ok(Self(moment.and_utc())),
            None => <Timestamp as Decode<'r, MySql>>::decode(value).map(Self),
        }
    }
}

/// Append the moment with microseconds. What is shorter than a microsecond is cut off.
pub(crate) fn write_datetime(text: &mut Vec<u8>, moment: Timestamp) {
    let moment = moment.naive_utc();
    let (year, nanoseconds) = (moment.year(), moment.nanosecond());
    let year = u32::try_from(year).ok().filter(|year| *year <= 9_999 && nanoseconds < 1_000_000_000);
    let Some(year) = year else {
        // No column holds such a year. A leap second has more nanoseconds. Writing to a vector does not fail.
        let _ = write!(text, "{}", moment.format("%Y-%m-%d %H:%M:%S%.6f"));
        return;
    };
    let mut form = *b"0000-00-00 00:00:00.000000";
    let fields = [
        (0..4, year),
        (5..7, moment.month()),
        (8..10, moment.day()),
        (11..13, moment.hour()),
        (14..16, moment.minute()),
        (17..19, moment.second()),
        (20..WITH_MICROSECONDS, nanoseconds / 1_000),
    ];
    for (place, value) in fields {
        let mut left = value;
        for digit in form[place].iter_mut().rev() {
            // One digit, so it fits.
            *digit = b'0' + (left % 10) as u8;
            left /= 10;
        }
    }
    text.extend_from_slice(&form);
}

/// Read a moment with no, three or six digits behind the second. Return nothing for any other text.
fn read_datetime(text: &[u8]) -> Option<NaiveDateTime> {
    let number = |digits: &[u8]| {
        digits.iter().try_fold(0, |number: u32, digit| {
            let digit = digit.wrapping_sub(b'0');
            if digit < 10 { Some(number * 10 + u32::from(digit)) } else { None }
        })
    };
    let (whole, fraction) = text.split_at_checked(19)?;
    let microseconds = match fraction {
        [] => 0,
        [b'.', digits @ ..] if digits.len() == 3 => number(digits)? * 1_000,
        [b'.', digits @ ..] if digits.len() == 6 => number(digits)?,
        _ => return None,
    };
    let between = [whole[4], whole[7], whole[10], whole[13], whole[16]];
    if between != *b"-- ::" {
        return None;
    }
    let year = i32::try_from(number(&whole[..4])?).ok()?;
    let date = NaiveDate::from_ymd_opt(year, number(&whole[5..7])?, number(&whole[8..10])?)?;
    date.and_hms_micro_opt(number(&whole[11..13])?, number(&whole[14..16])?, number(&whole[17..])?, microseconds)
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use proptest::prelude::*;

    use super::*;

    fn written(moment: Timestamp) -> String {
        let mut text = Vec::new();
        write_datetime(&mut text, moment);
        String::from_utf8(text).unwrap()
    }

    fn as_chrono_writes(moment: Timestamp) -> String {
        moment.format("%Y-%m-%d %H:%M:%S%.6f").to_string()
    }

    fn as_chrono_reads(text: &str) -> Option<NaiveDateTime> {
        NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S%.f").ok()
    }

    #[test]
    fn days_of_four_hundred_years_are_written_and_read_as_chrono_does() {
        for day in 0..146_097 {
            let moment = DateTime::from_timestamp_micros(day * 86_400_590_417).unwrap();
            let text = written(moment);
            assert_eq!(text, as_chrono_writes(moment));
            assert_eq!(read_datetime(text.as_bytes()), Some(moment.naive_utc()));
        }
    }

    #[test]
    fn what_no_column_holds_is_written_as_chrono_does() {
        // The last one is a leap second.
        for (seconds, nanoseconds) in [(253_402_300_800, 0), (-62_167_219_201, 999_999_999), (59, 1_500_000_000)] {
            let moment = DateTime::from_timestamp(seconds, nanoseconds).unwrap();
            assert_eq!(written(moment), as_chrono_writes(moment));
        }
    }

    #[test]
    fn other_texts_are_left_to_the_driver() {
        let others = [
            "",
            "2023-11-14",
            "2023-11-14 22:13:2",
            "2023-11-14T22:13:20",
            "2023-11-14 22:13:20.",
            "2023-11-14 22:13:20.1",
            "2023-11-14 22:13:20.0000071",
            "2023-02-29 22:13:20",
            "0000-00-00 00:00:00",
            "+023-11-14 22:13:20",
            "2023-11-14 22:13:60",
            "2023-11-14 22:13:20.00000ä",
        ];
        for other in others {
            assert_eq!(read_datetime(other.as_bytes()), None, "{other}");
        }
        // The longest value in binary.
        assert_eq!(read_datetime(&[11, 231, 7, 11, 14, 22, 13, 20, 7, 0, 0, 0]), None);
    }

    proptest! {
        #[test]
        fn moments_are_written_as_chrono_writes_them(
            seconds in -62_167_219_200_i64..=253_402_300_799,
            nanoseconds in 0_u32..1_000_000_000,
        ) {
            let moment = DateTime::from_timestamp(seconds, nanoseconds).unwrap();
            prop_assert_eq!(written(moment), as_chrono_writes(moment));
        }

        #[test]
        fn moments_are_read_as_chrono_reads_them(
            text in "[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{3}([0-9]{3})?)?",
        ) {
            // chrono reads a leap second as well.
            let read = as_chrono_reads(&text).filter(|moment| moment.nanosecond() < 1_000_000_000);
            prop_assert_eq!(read_datetime(text.as_bytes()), read);
        }

        #[test]
        fn stored_moments_are_read_as_chrono_reads_them(
            microseconds in 0_i64..=253_402_300_799_999_999,
            digits in prop::sample::select(vec![19_usize, 23, 26]),
        ) {
            let text = written(DateTime::from_timestamp_micros(microseconds).unwrap());
            let read = read_datetime(&text.as_bytes()[..digits]);
            prop_assert!(read.is_some());
            prop_assert_eq!(read, as_chrono_reads(&text[..digits]));
        }
    }
}
