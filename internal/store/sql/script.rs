//! Sequences of statements, run in as few round trips as is useful.
//!
//! The same statements can be sent in two forms. In the *prepared* form each statement is one round trip with values in
//! binary. This is cheapest for the server when there are many rows. In the *text* form (`Text`) all statements are
//! one text and one round trip, with values as literals. This is cheapest for both sides when there are few rows,
//! because then the round trips cost more than the work, over a network much more. A batch of twenty rows would also
//! need a prepared statement of its own, or several of the sizes that are kept; a text needs no fixed sizes.
//!
//! On a node of a Galera cluster each statement of a text is a request of its own ([`is_in_cluster`]). There a
//! transaction may be aborted from outside at any moment, because another node has written the same row. MariaDB reports
//! that with the next statement, except between two statements of one request: it drops the first one with its
//! transaction, runs the second one outside of it, and commits that (seen with 10.11, in half of the conflicts).
//!
//! A text may end with its COMMIT though it depends on what its statements find. Then it has *guards*: values that are
//! NULL, in a column that takes none, unless the statement before has changed as many rows as it should ([`if_changed`]).
//! The server does not go on behind a failed statement, so nothing is committed.
//!
//! Literals cannot be broken out of. A text is put between quotes only if all of it is printable ASCII without quotes
//! and backslashes, whatever the server's SQL mode. Any other text is written in hexadecimal digits.

use std::io::Write as _;

use futures_util::TryStreamExt;
use sqlx::mysql::{MySqlQueryResult, MySqlRow};
use sqlx::{AssertSqlSafe, Either, Executor};
use uuid::Uuid;

use crate::sql::batches::{groups_by_bytes, padded, padded_len, placeholders, statement, tuples};
use crate::sql::connection::{has_room_for_statements, is_in_cluster, statement_bytes};
use crate::sql::datetimes::write_datetime;
use crate::sql::error::{corrupt, number};
use crate::sql::session::Session;
use tickr_job::Timestamp;

/// Most rows, and most bytes in them, for the text form, if the server has room for prepared statements.
const MAX_TEXT_ROWS: usize = 64;
const MAX_TEXT_BYTES: usize = 128 << 10;

/// The server's error for NULL in a column that takes none.
const NO_NULL: u16 = 1048;

/// Return the placeholder of a value for a column that takes no NULL, as a guard: the statement fails unless the one
/// before it in the same text has changed this many rows. An update counts the rows that it matched.
pub(crate) fn if_changed(rows: usize) -> String {
    format!("IF(ROW_COUNT() = {rows}, ?, NULL)")
}

/// Return whether a statement failed because of a guard. Its transaction is still open.
pub(crate) fn is_guarded(error: &sqlx::Error) -> bool {
    number(error) == Some(NO_NULL)
}

/// A value of a statement.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    Null,
    Number(i64),
    Id(Uuid),
    Text(&'a str),
    Bytes(&'a [u8]),
    Moment(Timestamp),
    /// A constant piece of SQL, such as a variable of the session. Only the text form has it.
    Expression(&'static str),
}

macro_rules! value_from {
    ($($from:ty => $value:expr),* $(,)?) => {
        $(impl<'a> From<$from> for Value<'a> {
            fn from(from: $from) -> Self {
                let value: fn($from) -> Value<'a> = $value;
                value(from)
            }
        })*
    };
}

value_from! {
    bool => |flag| Value::Number(flag.into()),
    u8 => |number| Value::Number(number.into()),
    u16 => |number| Value::Number(number.into()),
    u32 => |number| Value::Number(number.into()),
    i64 => Value::Number,
    Uuid => Value::Id,
    &'a str => Value::Text,
    &'a [u8] => Value::Bytes,
    Timestamp => Value::Moment,
}

impl<'a, T: Into<Value<'a>>> From<Option<T>> for Value<'a> {
    fn from(from: Option<T>) -> Self {
        from.map_or(Self::Null, Into::into)
    }
}

/// Result of one step of a script.
#[derive(Default)]
pub(crate) struct StepResult {
    /// Number of rows that it changed; for an update, number of rows that it matched.
    pub(crate) affected: u64,
    /// Rows that it returned.
    pub(crate) rows: Vec<MySqlRow>,
}

/// The form in which a script is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Prepared,
    Text,
}

/// Statements to be run in this order.
pub(crate) struct Script<'a> {
    form: Form,
    statements: Vec<Statement<'a>>,
    steps: usize,
}

struct Statement<'a> {
    step: usize,
    sql: String,
    values: Vec<Value<'a>>,
}

impl<'a> Script<'a> {
    /// Start a script for this number of rows with this number of bytes in them.
    pub(crate) fn about(rows: usize, bytes: usize) -> Self {
        let few = rows <= MAX_TEXT_ROWS && bytes <= MAX_TEXT_BYTES;
        // A server whose room for prepared statements is taken, perhaps by another program, must not stop a runner.
        let text = few || (!has_room_for_statements() && bytes <= statement_bytes());
        let form = if text { Form::Text } else { Form::Prepared };
        Self { form, statements: Vec::new(), steps: 0 }
    }

    /// Start a script that is one text whatever its size, for statements whose sizes are seldom the same twice.
    pub(crate) fn as_text() -> Self {
        Self { form: Form::Text, statements: Vec::new(), steps: 0 }
    }

    /// Return whether all statements are sent as one text, in one request.
    pub(crate) fn is_one_request(&self) -> bool {
        self.form == Form::Text
    }

    /// Add a step: one statement with a placeholder for each value.
    pub(crate) fn push(&mut self, sql: impl Into<String>, values: Vec<Value<'a>>) {
        // Every question mark counts as a placeholder, so `sql` must not have one in a constant.
        self.statements.push(Statement { step: self.steps, sql: sql.into(), values });
        self.steps += 1;
    }

    /// Add a step that inserts `items`: `head`, then `tuple` for each item, then `tail`. `bytes` returns the size of an
    /// item, and `values` appends the values for the placeholders of its tuple.
    pub(crate) fn insert<T>(
        &mut self,
        [head, tuple, tail]: [&str; 3],
        items: &[T],
        bytes: impl Fn(&T) -> usize,
        values: impl Fn(&T, &mut Vec<Value<'a>>),
    ) {
        let as_text = (self.form == Form::Text && !items.is_empty()).then_some(items);
        let prepared = if as_text.is_some() { &[] } else { items };
        let step = self.steps;
        for group in as_text.into_iter().chain(groups_by_bytes(prepared, bytes)) {
            let mut list = Vec::with_capacity(group.len() * tuple.len() / 2);
            for item in group {
                values(item, &mut list);
            }
            let sql = format!("{head} {} {tail}", tuples(tuple, group.len()));
            self.statements.push(Statement { step, sql, values: list });
        }
        self.steps += 1;
    }

    /// Return the placeholders of an IN list for these values, and the values to bind to them.
    pub(crate) fn list<T: Copy + Into<Value<'a>>>(&self, list: &[T]) -> (String, Vec<Value<'a>>) {
        match self.form {
            Form::Text => {
                (placeholders(list.len().max(1)), Self::or_null(list.iter().copied().map(Into::into).collect()))
            }
            Form::Prepared => {
                (placeholders(padded_len(list.len())), Self::or_null(padded(list).map(Into::into).collect()))
            }
        }
    }

    /// Replace an empty list by a list of NULL, which equals nothing.
    fn or_null(values: Vec<Value<'a>>) -> Vec<Value<'a>> {
        if values.is_empty() { vec![Value::Null] } else { values }
    }

    /// Return all statements as one text, to be sent with others.
    pub(crate) fn into_text(self) -> Result<String, sqlx::Error> {
        to_text(&self.statements)
    }

    /// Run the script. Return the result of each step.
    pub(crate) async fn run(self, conn: &mut Session<'_>) -> Result<Vec<StepResult>, sqlx::Error> {
        let mut done: Vec<StepResult> = (0..self.steps).map(|_| StepResult::default()).collect();
        match self.form {
            Form::Text => {
                let at_once = if is_in_cluster() { 1 } else { self.statements.len().max(1) };
                for statements in self.statements.chunks(at_once) {
                    let mut answers = sqlx::raw_sql(AssertSqlSafe(to_text(statements)?)).fetch_many(&mut *conn);
                    // Each statement ends with its row count, in the order of the statements. A failed statement is the
                    // last one.
                    let mut step = statements.iter().map(|statement| statement.step);
                    let mut at = step.next();
                    while let Some(answer) = answers.try_next().await? {
                        let Some(done) = at.and_then(|at| done.get_mut(at)) else { break };
                        if done.take(answer) {
                            at = step.next();
                        }
                    }
                }
            }
            Form::Prepared => {
                for pending in self.statements {
                    let Some(done) = done.get_mut(pending.step) else { continue };
                    if pending.values.is_empty() {
                        // Some servers cannot prepare BEGIN.
                        done.affected +=
                            sqlx::raw_sql(AssertSqlSafe(pending.sql)).execute(&mut *conn).await?.rows_affected();
                        continue;
                    }
                    let mut query = statement(pending.sql);
                    for value in pending.values {
                        query = match value {
                            Value::Null => query.bind(None::<&str>),
                            Value::Number(number) => query.bind(number),
                            Value::Id(id) => query.bind(id),
                            Value::Text(text) => query.bind(text),
                            Value::Bytes(bytes) => query.bind(bytes),
                            // A parameter of the type TIMESTAMP would end in 2038.
                            Value::Moment(moment) => query.bind(moment.naive_utc()),
                            Value::Expression(_) => return Err(corrupt("an expression in a prepared statement")),
                        };
                    }
                    let mut answers = conn.fetch_many(query);
                    while let Some(answer) = answers.try_next().await? {
                        done.take(answer);
                    }
                }
            }
        }
        Ok(done)
    }
}

/// Return these statements as one text.
fn to_text(statements: &[Statement<'_>]) -> Result<String, sqlx::Error> {
    let size = statements.iter().map(|pending| pending.sql.len() + 32 * pending.values.len()).sum();
    let mut text = Vec::with_capacity(size);
    for pending in statements {
        if !text.is_empty() {
            text.push(b';');
        }
        let mut pieces = pending.sql.split('?');
        text.extend_from_slice(pieces.next().unwrap_or_default().as_bytes());
        let mut values = pending.values.iter();
        for piece in pieces {
            let value = values.next().ok_or_else(|| corrupt("a placeholder without a value"))?;
            value.write_literal(&mut text);
            text.extend_from_slice(piece.as_bytes());
        }
        if values.next().is_some() {
            return Err(corrupt("a value without a placeholder"));
        }
    }
    String::from_utf8(text).map_err(|error| corrupt(error.to_string()))
}

/// Run one statement as text and return its rows. A loop whose failure would stop a runner reads like this, because a
/// server whose room for prepared statements is taken answers it as well.
pub(crate) async fn rows_as_text(
    conn: &mut Session<'_>,
    sql: impl Into<String>,
    values: Vec<Value<'_>>,
) -> Result<Vec<MySqlRow>, sqlx::Error> {
    let mut script = Script::as_text();
    script.push(sql, values);
    Ok(script.run(conn).await?.pop().unwrap_or_default().rows)
}

impl StepResult {
    /// Add one answer to the result. Return whether it was the last one of its statement.
    fn take(&mut self, answer: Either<MySqlQueryResult, MySqlRow>) -> bool {
        match answer {
            Either::Left(end) => {
                self.affected += end.rows_affected();
                true
            }
            Either::Right(row) => {
                self.rows.push(row);
                false
            }
        }
    }
}

impl Value<'_> {
    /// Append the value as a literal. A batch of small jobs has a dozen of them for each job, so ids and moments are
    /// written without a formatter.
    fn write_literal(&self, text: &mut Vec<u8>) {
        match self {
            Self::Null => text.extend_from_slice(b"NULL"),
            Self::Expression(sql) => text.extend_from_slice(sql.as_bytes()),
            Self::Number(number) => {
                // Writing to a vector does not fail.
                let _ = write!(text, "{number}");
            }
            Self::Id(id) => write_hex(text, id.as_bytes()),
            Self::Bytes(bytes) => write_hex(text, bytes),
            Self::Text(plain) if plain.bytes().all(|b| matches!(b, b' '..=b'~') && b != b'\'' && b != b'\\') => {
                text.push(b'\'');
                text.extend_from_slice(plain.as_bytes());
                text.push(b'\'');
            }
            Self::Text(other) => {
                text.extend_from_slice(b"_utf8mb4 ");
                write_hex(text, other.as_bytes());
            }
            Self::Moment(moment) => {
                text.push(b'\'');
                write_datetime(text, *moment);
                text.push(b'\'');
            }
        }
    }
}

/// The two hexadecimal digits of each byte.
static HEX: [[u8; 2]; 256] = {
    let digits = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < pairs.len() {
        pairs[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    pairs
};

fn write_hex(text: &mut Vec<u8>, bytes: &[u8]) {
    text.extend_from_slice(b"x'");
    let start = text.len();
    text.resize(start + 2 * bytes.len(), 0);
    for (pair, byte) in text[start..].chunks_exact_mut(2).zip(bytes) {
        pair.copy_from_slice(&HEX[usize::from(*byte)]);
    }
    text.push(b'\'');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn said(values: Vec<Value<'_>>) -> String {
        let mut script = Script::about(1, 0);
        script.push(format!("SELECT {}", placeholders(values.len())), values);
        to_text(&script.statements).unwrap()
    }

    #[test]
    fn values_are_literals() {
        let moment = chrono::DateTime::from_timestamp_micros(1_700_000_000_000_007).unwrap();
        let values = vec![
            Value::Null,
            Value::from(-3_i64),
            Value::from(true),
            Value::from(Uuid::from_u128(0xab)),
            Value::from(moment),
            Value::from("{\"a\": 1}"),
        ];
        let text = "SELECT (NULL,-3,1,x'000000000000000000000000000000ab','2023-11-14 22:13:20.000007','{\"a\": 1}')";
        assert_eq!(said(values), text);
    }

    #[test]
    fn every_byte_has_its_two_digits() {
        for byte in 0..=u8::MAX {
            assert_eq!(said(vec![Value::Bytes(&[byte])]), format!("SELECT (x'{byte:02x}')"));
        }
        assert_eq!(said(vec![Value::Bytes(&[])]), "SELECT (x'')");
    }

    #[test]
    fn every_place_has_its_value() {
        for values in [vec![], vec![Value::Null; 2]] {
            let mut script = Script::about(1, 0);
            script.push("SELECT ?", values);
            assert!(to_text(&script.statements).is_err());
        }
    }

    #[test]
    fn few_rows_are_spoken_in_one_statement_and_many_prepared_in_sizes_that_are_kept() {
        let sizes = |count: usize| {
            let items: Vec<i64> = (0..).take(count).collect();
            let mut script = Script::about(count, 0);
            script.insert(["INSERT INTO t VALUES", "(?)", ""], &items, |_| 8, |item, list| list.push((*item).into()));
            script.statements.iter().map(|pending| pending.values.len()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(0), [] as [usize; 0]);
        assert_eq!(sizes(63), [63]);
        assert_eq!(sizes(65), [64, 1]);
        let mut large = Script::about(2, MAX_TEXT_BYTES + 1);
        let (places, values) = large.list(&[1_i64, 2, 3]);
        assert_eq!((places.as_str(), values.len()), ("(?,?,?,?)", 4));
        large.push("DO ?", vec![Value::Null]);
        assert_eq!(large.form, Form::Prepared);
        assert_eq!(Script::about(2, 0).list::<i64>(&[]).0, "(?)");
    }

    proptest! {
        #[test]
        fn bytes_are_written_in_hexadecimal_digits(bytes in any::<Vec<u8>>()) {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            prop_assert_eq!(said(vec![Value::Bytes(&bytes)]), format!("SELECT (x'{digits}')"));
        }

        #[test]
        fn no_text_ends_its_literal(text in any::<String>()) {
            let as_text = said(vec![Value::Text(&text)]);
            let inner = as_text.strip_prefix("SELECT (").and_then(|s| s.strip_suffix(')')).unwrap();
            if let Some(digits) = inner.strip_prefix("_utf8mb4 x'").and_then(|s| s.strip_suffix('\'')) {
                prop_assert!(digits.bytes().all(|b| b.is_ascii_hexdigit()));
                prop_assert_eq!(digits.len(), 2 * text.len());
            } else {
                prop_assert_eq!(inner, format!("'{text}'"));
                prop_assert!(!text.contains(['\'', '\\']) && text.is_ascii());
            }
        }
    }
}
