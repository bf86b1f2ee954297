//! Rows in transit: the store reads them one by one, and a handler writes them one by one.
//!
//! Store and handlers do not know each other, so their common types are here. A [`Select`] goes to a [`RowSource`], and
//! a [`RowStream`] of typed [`Cell`]s comes back. This module contains no SQL and no file formats.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use chrono::{NaiveDate, NaiveDateTime, SecondsFormat, Timelike};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use tickr_job::Timestamp;

/// A source of rows for a [`Select`]. Implemented by the store over MySQL, and by tests in memory.
pub trait RowSource: Send + Sync + 'static {
    /// Start reading and return at once. Errors come out of the stream. Dropping the stream stops the reading.
    fn open(&self, select: Select) -> RowStream;
}

/// A statement to execute.
#[derive(Clone, Debug)]
pub struct Select {
    /// Name of the statement for people. It is the only part that errors may show.
    pub name: String,
    /// One statement with a `?` for each value.
    pub sql: Arc<str>,
    /// A value for each `?`, in order.
    pub values: Vec<Cell>,
    /// Time limit from the start on the server to the last row. A slow reader uses up this time too.
    pub time_limit: Duration,
}

/// A column of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name or alias.
    pub name: String,
    /// Usual type of its cells. An engine without strict types may return a text in a column of numbers.
    pub kind: ColumnKind,
}

/// Type of the cells of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// [`Cell::Bool`].
    Bool,
    /// [`Cell::Integer`] or [`Cell::Unsigned`].
    Integer,
    /// [`Cell::Float`].
    Float,
    /// [`Cell::Decimal`].
    Decimal,
    /// [`Cell::Text`].
    Text,
    /// [`Cell::Json`].
    Json,
    /// [`Cell::Bytes`].
    Bytes,
    /// [`Cell::Date`].
    Date,
    /// [`Cell::Time`].
    Time,
    /// [`Cell::DateTime`].
    DateTime,
    /// [`Cell::Timestamp`].
    Timestamp,
}

impl ColumnKind {
    /// Return true if people expect its cells to be right-aligned.
    #[must_use]
    pub fn is_number(self) -> bool {
        match self {
            Self::Integer | Self::Float | Self::Decimal => true,
            Self::Bool
            | Self::Text
            | Self::Json
            | Self::Bytes
            | Self::Date
            | Self::Time
            | Self::DateTime
            | Self::Timestamp => false,
        }
    }
}

/// One row: a cell for each column.
pub type Row = Vec<Cell>;

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// No value.
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A whole number of an unsigned column; may be larger than an `i64`.
    Unsigned(u64),
    /// A binary floating point number.
    Float(f64),
    /// An exact decimal number, with the digits that the server sent.
    Decimal(String),
    /// Text.
    Text(String),
    /// Text that the server marks as JSON.
    Json(String),
    /// Bytes without a character set.
    Bytes(Vec<u8>),
    /// A day.
    Date(NaiveDate),
    /// A time of day or a span, as `[-]h:mm:ss[.ffffff]`: up to 838 hours, which no clock type can store.
    Time(String),
    /// Date and time in a zone that only the users of the database know.
    DateTime(NaiveDateTime),
    /// A moment.
    Timestamp(Timestamp),
}

impl Cell {
    /// Return the cell as every text format shows it; empty for NULL.
    ///
    /// Bytes become lower-case hexadecimal, as with `HEX()` in SQL. Times are ISO 8601 with at least milliseconds. A
    /// moment ends in `Z`; a date and time without a known zone does not.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Null => Cow::Borrowed(""),
            Self::Bool(value) => Cow::Borrowed(if *value { "true" } else { "false" }),
            Self::Integer(value) => Cow::Owned(value.to_string()),
            Self::Unsigned(value) => Cow::Owned(value.to_string()),
            Self::Float(value) => Cow::Owned(value.to_string()),
            Self::Decimal(text) | Self::Text(text) | Self::Json(text) | Self::Time(text) => Cow::Borrowed(text),
            Self::Bytes(bytes) => Cow::Owned(hex(bytes)),
            Self::Date(date) => Cow::Owned(date.to_string()),
            Self::DateTime(at) if at.nanosecond().is_multiple_of(1_000_000) => {
                Cow::Owned(at.format("%Y-%m-%dT%H:%M:%S%.3f").to_string())
            }
            Self::DateTime(at) => Cow::Owned(at.format("%Y-%m-%dT%H:%M:%S%.6f").to_string()),
            Self::Timestamp(at) if at.nanosecond().is_multiple_of(1_000_000) => {
                Cow::Owned(at.to_rfc3339_opts(SecondsFormat::Millis, true))
            }
            Self::Timestamp(at) => Cow::Owned(at.to_rfc3339_opts(SecondsFormat::Micros, true)),
        }
    }

    /// Return the approximate memory that the cell uses beyond itself, in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        match self {
            Self::Decimal(text) | Self::Text(text) | Self::Json(text) | Self::Time(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Null
            | Self::Bool(_)
            | Self::Integer(_)
            | Self::Unsigned(_)
            | Self::Float(_)
            | Self::Date(_)
            | Self::DateTime(_)
            | Self::Timestamp(_) => 0,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The reason why rows did not come, or stopped coming. Never contains the statement or its values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The server permanently refuses this statement.
    #[error("the server refused it: {reason} (error {number})")]
    Refused {
        /// The server's error number.
        number: u16,
        /// Meaning of that number in fixed words. The server's own message may quote the statement.
        reason: &'static str,
    },
    /// The server sent something that cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// Not finished within its time limit.
    #[error("it took longer than its time limit of {} s", .limit.as_secs_f64())]
    TimedOut {
        /// The time limit.
        limit: Duration,
    },
    /// Every connection for reports is in use.
    #[error("every connection for reports is in use")]
    Busy,
    /// The server cannot be reached, disconnected, or temporarily lacks a resource.
    #[error("the server could not answer: {0}")]
    Unavailable(String),
    /// The reader stopped reading.
    #[error("it was stopped")]
    Stopped,
}

/// A stream of rows: columns first, then batches, then the end. The source reads ahead by a few batches and then waits,
/// so that memory does not grow with the table.
#[derive(Debug)]
pub struct RowStream {
    parts: mpsc::Receiver<Result<Part, SourceError>>,
    stop: CancellationToken,
}

/// An item of the stream.
#[derive(Debug)]
pub enum Part {
    /// The first item, sent once.
    Columns(Arc<[Column]>),
    /// Some rows.
    Rows(Vec<Row>),
    /// The last item. It distinguishes a complete table from one whose source died.
    End,
}

/// The source's end of a [`RowStream`].
#[derive(Clone, Debug)]
pub struct RowSender {
    parts: mpsc::Sender<Result<Part, SourceError>>,
    stop: CancellationToken,
}

/// Number of batches that wait between source and reader.
const READ_AHEAD: usize = 4;

/// Return a stream and its sending end.
#[must_use]
pub fn channel() -> (RowSender, RowStream) {
    let (sender, parts) = mpsc::channel(READ_AHEAD);
    let stop = CancellationToken::new();
    (RowSender { parts: sender, stop: stop.clone() }, RowStream { parts, stop })
}

impl RowStream {
    /// Return a token that stops the source at once when cancelled. It works from any thread, for instance while a
    /// blocking thread reads.
    #[must_use]
    pub fn stop_token(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Return the next part, or `None` after the end. Blocks the thread, for writers that block anyway.
    ///
    /// # Errors
    /// The [`SourceError`] of the source. No part follows it.
    ///
    /// # Panics
    /// If called inside an async task.
    pub fn blocking_next(&mut self) -> Result<Option<Part>, SourceError> {
        Self::read(self.parts.blocking_recv())
    }

    /// Return the next part, or `None` after the end.
    ///
    /// # Errors
    /// The [`SourceError`] of the source. No part follows it.
    pub async fn next(&mut self) -> Result<Option<Part>, SourceError> {
        Self::read(self.parts.recv().await)
    }

    fn read(received: Option<Result<Part, SourceError>>) -> Result<Option<Part>, SourceError> {
        match received {
            Some(Ok(Part::End)) => Ok(None),
            Some(part) => part.map(Some),
            None => Err(SourceError::Unavailable("the rows stopped before the end".into())),
        }
    }
}

impl Drop for RowStream {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl RowSender {
    /// Send a part. Wait while the reader is behind.
    ///
    /// # Errors
    /// [`SourceError::Stopped`] if the reader has gone.
    pub async fn send(&self, part: Result<Part, SourceError>) -> Result<(), SourceError> {
        self.parts.send(part).await.map_err(|_| SourceError::Stopped)
    }

    /// Wait until the reader stops reading.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    #[test]
    fn cells_read_the_same_in_every_text_format() {
        let moment = DateTime::from_timestamp_micros(1_000_001).unwrap();
        for (cell, text) in [
            (Cell::Null, ""),
            (Cell::Unsigned(u64::MAX), "18446744073709551615"),
            (Cell::Float(0.1), "0.1"),
            (Cell::Decimal("12.30".into()), "12.30"),
            (Cell::Bytes(vec![0, 0xff]), "00ff"),
            (Cell::Timestamp(moment), "1970-01-01T00:00:01.000001Z"),
            (Cell::DateTime(DateTime::from_timestamp_millis(1_500).unwrap().naive_utc()), "1970-01-01T00:00:01.500"),
        ] {
            assert_eq!(cell.text(), text);
        }
    }

    #[tokio::test]
    async fn a_source_that_dies_does_not_pass_for_one_that_is_done() {
        let (sender, mut stream) = channel();
        sender.send(Ok(Part::Rows(vec![vec![Cell::Null]]))).await.unwrap();
        drop(sender);
        assert!(matches!(stream.next().await, Ok(Some(Part::Rows(_)))));
        assert!(matches!(stream.next().await, Err(SourceError::Unavailable(_))));
    }

    #[tokio::test]
    async fn dropping_the_stream_tells_the_source() {
        let (sender, stream) = channel();
        drop(stream);
        sender.stopped().await;
        assert_eq!(sender.send(Ok(Part::End)).await, Err(SourceError::Stopped));
    }
}
