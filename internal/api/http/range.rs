//! Ranges of time in query strings: `from` and `to`.

use chrono::TimeDelta;

use crate::http::filter::refused;
use crate::http::problem::Problem;
use tickr_job::{Timestamp, query};

/// The longest range of a chart, of marks and of causes.
pub(crate) const MAX_RANGE: TimeDelta = TimeDelta::days(7);

/// Return the moment of a parameter, and add a problem to `problems` if it is none.
pub(crate) fn read_moment(
    name: &str,
    text: Option<&str>,
    problems: &mut Vec<tickr_handlers::Problem>,
) -> Option<Timestamp> {
    let moment = query::moment(text?);
    if moment.is_none() {
        let detail = "must be a time such as 2026-11-01 or 2026-11-01T10:00:00Z, not before 1970";
        problems.push(tickr_handlers::Problem::at(name, detail));
    }
    moment
}

/// Return the range of `from` and `to`, or nothing when both are absent.
pub(crate) fn read_range(
    from: Option<&str>,
    to: Option<&str>,
    longest: TimeDelta,
) -> Result<Option<(Timestamp, Timestamp)>, Problem> {
    if from.is_none() && to.is_none() {
        return Ok(None);
    }
    let mut problems = Vec::new();
    let moments = (read_moment("from", from, &mut problems), read_moment("to", to, &mut problems));
    for (name, text) in [("from", from), ("to", to)] {
        if text.is_none() {
            problems.push(tickr_handlers::Problem::at(name, "is missing: a range has a from and a to"));
        }
    }
    match moments {
        (Some(from), Some(to)) if from >= to => {
            problems.push(tickr_handlers::Problem::at("to", "must be later than from"));
        }
        (Some(from), Some(to)) if to - from > longest => {
            let detail = format!("must be at most {} hours after from", longest.num_hours());
            problems.push(tickr_handlers::Problem::at("to", detail));
        }
        (Some(from), Some(to)) if problems.is_empty() => return Ok(Some((from, to))),
        _ => {}
    }
    Err(refused(problems))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_two_ends_in_their_order_and_is_not_too_long() {
        let read = |from, to| read_range(from, to, MAX_RANGE);
        assert!(matches!(read(None, None), Ok(None)));
        let (day, week) = (Some("2026-11-01"), Some("2026-11-08T00:00:00Z"));
        assert!(matches!(read(day, week), Ok(Some((from, to))) if to - from == MAX_RANGE));
        for (from, to) in [
            (day, None),
            (None, day),
            (day, day),
            (week, day),
            (day, Some("2026-11-08T00:00:00.001Z")),
            (Some("yesterday"), week),
            (day, Some("")),
        ] {
            assert!(read(from, to).is_err(), "{from:?} {to:?}");
        }
    }
}
