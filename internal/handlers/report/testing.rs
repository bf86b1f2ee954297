//! Tables in memory for tests of the writers, and the files that come of them.

use std::time::Duration;

use chrono::DateTime;

use super::file::PartFile;
use super::rows::{Heading, Limits, PourError, Poured, pour};
use super::{Context, Format};
use tickr_table::{Cell, Column, ColumnKind, Part, Row, RowSource, RowStream, Select, SourceError};

/// A source that answers every select with the same rows.
pub(super) struct Memory {
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Row>,
    pub(super) end: Result<(), SourceError>,
    /// True to send nothing after the rows, not even the end.
    pub(super) hangs: bool,
}

impl RowSource for Memory {
    fn open(&self, _: Select) -> RowStream {
        let (sender, stream) = tickr_table::channel();
        let (columns, rows) = (self.columns.clone(), self.rows.clone());
        let (end, hangs) = (self.end.clone(), self.hangs);
        tokio::spawn(async move {
            sender.send(Ok(Part::Columns(columns.into()))).await?;
            for batch in rows.chunks(100) {
                sender.send(Ok(Part::Rows(batch.to_vec()))).await?;
            }
            if hangs {
                sender.stopped().await;
            }
            sender.send(end.map(|()| Part::End)).await
        });
        stream
    }
}

pub(super) fn column(name: &str, kind: ColumnKind) -> Column {
    Column { name: name.into(), kind }
}

/// One cell of each kind, with values that are easy to damage.
pub(super) fn every_cell() -> (Vec<Column>, Row) {
    let day = "2026-11-21".parse().unwrap();
    let moment = |micros| DateTime::from_timestamp_micros(micros).unwrap();
    [
        (column("null", ColumnKind::Text), Cell::Null),
        (column("bool", ColumnKind::Bool), Cell::Bool(true)),
        (column("integer", ColumnKind::Integer), Cell::Integer(i64::MIN)),
        (column("unsigned", ColumnKind::Integer), Cell::Unsigned(u64::MAX)),
        (column("float", ColumnKind::Float), Cell::Float(0.1)),
        (column("decimal", ColumnKind::Decimal), Cell::Decimal("-12345678901234567890.10".into())),
        (column("text", ColumnKind::Text), Cell::Text("<script>alert('=1+1')</script> \u{1} ünï \"q\"\n表".into())),
        (column("json", ColumnKind::Json), Cell::Json("{\"a\": [1, null]}".into())),
        (column("bytes", ColumnKind::Bytes), Cell::Bytes(vec![0, 0xff, 0x10])),
        (column("date", ColumnKind::Date), Cell::Date(day)),
        (column("time", ColumnKind::Time), Cell::Time("-838:59:59".into())),
        (column("datetime", ColumnKind::DateTime), Cell::DateTime(day.and_hms_micro_opt(23, 59, 59, 123_456).unwrap())),
        (column("timestamp", ColumnKind::Timestamp), Cell::Timestamp(moment(1_795_248_000_250_000))),
    ]
    .into_iter()
    .unzip()
}

pub(super) fn try_render(
    title: &str,
    format: Format,
    columns: &[Column],
    rows: Vec<Row>,
    limits: Limits,
) -> Result<(Vec<u8>, Poured), PourError> {
    try_pour(title, format, columns, rows, limits, |_, _| {})
}

/// As [`try_render`], and call `progress` after each batch.
pub(super) fn try_pour(
    title: &str,
    format: Format,
    columns: &[Column],
    rows: Vec<Row>,
    limits: Limits,
    progress: impl Fn(u64, u64),
) -> Result<(Vec<u8>, Poured), PourError> {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = runtime.enter();
    let source = Memory { columns: columns.to_vec(), rows, end: Ok(()), hangs: false };
    let stream = source.open(Select {
        name: "test".into(),
        sql: "".into(),
        values: Vec::new(),
        time_limit: Duration::from_secs(60),
    });
    let file = PartFile::create(dir.path(), "test", Context::detached("report").token()).unwrap();
    let made_at = DateTime::from_timestamp(1_795_248_000, 0).unwrap();
    let heading = Heading { title: title.into(), query: "test".into(), made_at };
    let poured = pour(stream, file, format, heading, limits, progress)?;
    let part = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    Ok((std::fs::read(part).unwrap(), poured))
}

pub(super) const NO_LIMITS: Limits = Limits { max_rows: u64::MAX, max_bytes: u64::MAX };

pub(super) fn render_as(title: &str, format: Format, columns: &[Column], rows: Vec<Row>) -> Vec<u8> {
    try_render(title, format, columns, rows, NO_LIMITS).unwrap().0
}

/// The bytes of the file.
pub(super) fn render(format: Format, columns: &[Column], rows: Vec<Row>) -> Vec<u8> {
    render_as("A title", format, columns, rows)
}

/// The error of a table that cannot be written.
pub(super) fn refused(format: Format, columns: &[Column], rows: Vec<Row>) -> String {
    try_render("A title", format, columns, rows, NO_LIMITS).unwrap_err().to_string()
}
