//! Tables in motion: what the store reads row by row and a handler writes down row by row.
//!
//! Store and handlers do not know each other, so the words between them live here: a [`Select`] goes down through a
//! [`RowSource`], a [`RowStream`] of typed [`Cell`]s comes back. Nothing here knows SQL or file formats.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use chrono::{NaiveDate, NaiveDateTime, SecondsFormat, Timelike};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::job::Timestamp;

/// Answers a [`Select`]. Implemented by the store over MySQL, by tests over memory.
pub trait RowSource: Send + Sync + 'static {
    /// Start reading. Returns at once; what goes wrong comes out of the stream. Dropping the stream stops the reading.
    fn open(&self, select: Select) -> RowStream;
}

/// A statement to read with.
#[derive(Clone, Debug)]
pub struct Select {
    /// What people call it; the only part of it that errors may show.
    pub name: String,
    /// One statement with a `?` for each value.
    pub sql: Arc<str>,
    /// A value for each `?`, in order.
    pub values: Vec<Cell>,
    /// How long it may run, from its first moment on the server to its last row; the reader's own slowness counts too.
    pub time_limit: Duration,
}

/// A column of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name or alias.
    pub name: String,
    /// What its cells are, mostly: an engine without strict types may still put a text where a number was announced.
    pub kind: ColumnKind,
}

/// What the cells of a column are.
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
    /// Do people expect its cells at the right edge?
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
    /// An exact decimal number, in the digits the server sent.
    Decimal(String),
    /// Text.
    Text(String),
    /// Text that the server knows to be JSON.
    Json(String),
    /// Bytes without a character set.
    Bytes(Vec<u8>),
    /// A day.
    Date(NaiveDate),
    /// A time of day or a span, as `[-]h:mm:ss[.ffffff]`: up to 838 hours, which no clock type holds.
    Time(String),
    /// Date and time in a zone that only the database's users know.
    DateTime(NaiveDateTime),
    /// A moment.
    Timestamp(Timestamp),
}

impl Cell {
    /// The cell as every text format shows it; empty for NULL.
    ///
    /// Bytes become lower-case hexadecimal, as `HEX()` in SQL does. Times are ISO 8601 with at least milliseconds; a
    /// moment ends in `Z`, a date and time without a known zone does not.
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

    /// About how much memory the cell holds beyond itself.
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

/// Why rows did not come, or stopped coming. Never holds the statement or its values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The server will not run this statement, today or tomorrow.
    #[error("the server refused it: {reason} (error {number})")]
    Refused {
        /// The server's error number.
        number: u16,
        /// What that number means, in our words: the server's own quote the statement.
        reason: &'static str,
    },
    /// The server sent something that cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// Not over within its time limit.
    #[error("it took longer than its time limit of {} s", .limit.as_secs_f64())]
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// Others are using every connection meant for this.
    #[error("every connection for reports is in use")]
    Busy,
    /// The server cannot be reached, broke off, or lacks something that it may have later.
    #[error("the server could not answer: {0}")]
    Unavailable(String),
    /// The reader wanted no more.
    #[error("it was stopped")]
    Stopped,
}

/// Rows on their way: columns first, then batches, then the end. The source reads ahead by a few batches and then
/// waits, so that memory does not grow with the table.
#[derive(Debug)]
pub struct RowStream {
    parts: mpsc::Receiver<Result<Part, SourceError>>,
    stop: CancellationToken,
}

/// What a source sends.
#[derive(Debug)]
pub enum Part {
    /// First, once.
    Columns(Arc<[Column]>),
    /// Some rows.
    Rows(Vec<Row>),
    /// Last: tells a complete table from one whose reader died.
    End,
}

/// The source's end of a [`RowStream`].
#[derive(Clone, Debug)]
pub struct RowSender {
    parts: mpsc::Sender<Result<Part, SourceError>>,
    stop: CancellationToken,
}

/// Batches that wait between source and reader.
const READ_AHEAD: usize = 4;

/// A stream and the end that feeds it.
#[must_use]
pub fn channel() -> (RowSender, RowStream) {
    let (sender, parts) = mpsc::channel(READ_AHEAD);
    let stop = CancellationToken::new();
    (RowSender { parts: sender, stop: stop.clone() }, RowStream { parts, stop })
}

impl RowStream {
    /// Cancel it to make the source stop at once, from anywhere, for instance while a blocking thread reads.
    #[must_use]
    pub fn stop_token(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// The next part, `None` behind the end. Blocks the thread: for writers that block anyway.
    ///
    /// # Errors
    /// What went wrong at the source; there is no next part behind it.
    ///
    /// # Panics
    /// Inside an async task.
    pub fn blocking_next(&mut self) -> Result<Option<Part>, SourceError> {
        Self::read(self.parts.blocking_recv())
    }

    /// The next part, `None` behind the end.
    ///
    /// # Errors
    /// What went wrong at the source; there is no next part behind it.
    pub async fn next(&mut self) -> Result<Option<Part>, SourceError> {
        Self::read(self.parts.recv().await)
    }

    fn read(received: Option<Result<Part, SourceError>>) -> Result<Option<Part>, SourceError> {
        match received {
            Some(Ok(Part::End)) => Ok(None),
            Some(part) => part.map(Some),
            None => Err(SourceError::Unavailable("the reading broke off".into())),
        }
    }
}

impl Drop for RowStream {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl RowSender {
    /// Send a part, waiting while the reader is behind.
    ///
    /// # Errors
    /// [`SourceError::Stopped`] when nobody reads any more.
    pub async fn send(&self, part: Result<Part, SourceError>) -> Result<(), SourceError> {
        self.parts.send(part).await.map_err(|_| SourceError::Stopped)
    }

    /// Resolves when the reader wants no more.
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
