//! Statements for many rows with few different texts.
//!
//! A prepared statement is reused only if its text is the same. A statement for a batch of 173 rows would have a text
//! of its own. So lists are padded, and row groups are cut, to powers of two. This leaves a handful of texts.

use std::fmt::Write as _;

use sqlx::mysql::{MySql, MySqlArguments};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Encode, Type};
use uuid::Uuid;

use crate::sql::connection::statement_bytes;

/// Most rows in one statement.
pub(crate) const MAX_ROWS: usize = 256;

/// Number of bytes that count as one more row of a batch, if rows are large.
pub(crate) const BYTES_PER_ROW: usize = 16 << 10;

/// Build a statement from constant pieces only. Values are always bound.
pub(crate) fn statement(sql: String) -> Query<'static, MySql, MySqlArguments> {
    sqlx::query(AssertSqlSafe(sql))
}

/// Cut `rows` into groups whose sizes are powers of two, largest first.
pub(crate) fn groups<T>(mut rows: &[T]) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        if rows.is_empty() {
            return None;
        }
        let mut size = MAX_ROWS;
        while size > rows.len() {
            size /= 2;
        }
        let (group, rest) = rows.split_at(size);
        rows = rest;
        Some(group)
    })
}

/// Cut `rows` like [`groups`], but so that no group exceeds the largest size of a statement. `bytes` returns the size
/// of one row.
pub(crate) fn groups_by_bytes<T>(mut rows: &[T], bytes: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    let most = statement_bytes();
    std::iter::from_fn(move || {
        if rows.is_empty() {
            return None;
        }
        let mut total = 0;
        let mut fit = 0;
        while fit < rows.len() && fit < MAX_ROWS && (fit == 0 || total + bytes(&rows[fit]) <= most) {
            total += bytes(&rows[fit]);
            fit += 1;
        }
        // The largest power of two that fits.
        let size = 1 << fit.ilog2();
        let (group, rest) = rows.split_at(size);
        rows = rest;
        Some(group)
    })
}

/// Return the number of placeholders in an IN list for `count` values: the next power of two. The extra placeholders
/// repeat the last value, which changes nothing.
pub(crate) fn padded_len(count: usize) -> usize {
    count.max(1).next_power_of_two()
}

/// Return `(?,?,…)` with this many placeholders.
pub(crate) fn placeholders(count: usize) -> String {
    let mut text = String::with_capacity(2 * count + 2);
    text.push('(');
    for at in 0..count {
        text.push_str(if at == 0 { "?" } else { ",?" });
    }
    text.push(')');
    text
}

/// Return `row, row, …`: the same tuple this many times.
pub(crate) fn tuples(tuple: &str, count: usize) -> String {
    let mut text = String::with_capacity((tuple.len() + 1) * count);
    for at in 0..count {
        let _ = write!(text, "{}{tuple}", if at == 0 { "" } else { "," });
    }
    text
}

/// Iterate over the values of a padded IN list: `values`, then the last one repeated.
pub(crate) fn padded<T: Copy>(values: &[T]) -> impl Iterator<Item = T> + '_ {
    let missing = padded_len(values.len()) - values.len();
    values.iter().copied().chain(values.last().into_iter().copied().cycle().take(missing))
}

/// A statement with its values.
pub(crate) type Sql = Query<'static, MySql, MySqlArguments>;

/// Bind the values of a padded IN list.
pub(crate) fn bind_padded<'t, T: Copy + Encode<'t, MySql> + Type<MySql>>(query: Sql, values: &[T]) -> Sql {
    padded(values).fold(query, Query::bind)
}

/// Build a statement with a list of ids between `sql` and `tail`.
pub(crate) fn in_list(sql: &str, ids: &[Uuid], tail: &str) -> Sql {
    bind_padded(statement(format!("{sql} {}{tail}", placeholders(padded_len(ids.len())))), ids)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn groups_keep_order_and_use_few_sizes(count in 0_usize..2_000) {
            let rows: Vec<usize> = (0..count).collect();
            let groups: Vec<&[usize]> = groups(&rows).collect();
            prop_assert!(groups.iter().all(|g| g.len().is_power_of_two() && g.len() <= MAX_ROWS));
            prop_assert_eq!(groups.concat(), rows);
        }

        #[test]
        fn large_rows_make_small_groups(sizes in prop::collection::vec(1_usize..(6 << 20), 0..600)) {
            let groups: Vec<&[usize]> = groups_by_bytes(&sizes, |size| *size).collect();
            prop_assert!(groups.iter().all(|g| g.len().is_power_of_two() && g.len() <= MAX_ROWS));
            prop_assert!(groups.iter().all(|g| g.len() == 1 || g.iter().sum::<usize>() <= statement_bytes()));
            prop_assert_eq!(groups.concat(), sizes);
        }

        #[test]
        fn padding_repeats_the_last_value(count in 1_usize..300) {
            let values: Vec<usize> = (0..count).collect();
            let list: Vec<usize> = padded(&values).collect();
            prop_assert_eq!(list.len(), padded_len(count));
            prop_assert_eq!(&list[..count], &values[..]);
            prop_assert!(list[count..].iter().all(|v| *v == count - 1));
        }
    }

    #[test]
    fn texts() {
        assert_eq!(placeholders(3), "(?,?,?)");
        assert_eq!(tuples("(?,?)", 2), "(?,?),(?,?)");
    }
}
