//! The loop that writes rows from their source into a file, the same for all formats, and its limits.

use std::io;

use super::file::PartFile;
#[cfg(feature = "pdf")]
use super::pdf;
#[cfg(feature = "xlsx")]
use super::xlsx;
use super::{Format, csv, html, json};
use tickr_job::Timestamp;
use tickr_table::{Cell, Column, Part, RowStream, SourceError};

/// Writer of one table in one format. It blocks, so it runs on a blocking thread.
pub(super) trait TableWriter {
    /// Write the next row, which has a cell for each column.
    fn row(&mut self, row: &[Cell]) -> Result<(), WriteError>;

    /// Bytes written to the file so far, or 0 for a format that writes everything at the end.
    fn bytes(&self) -> u64 {
        0
    }

    /// Write the end of the file. Return the file and the number of cells that were cut to fit.
    fn finish(self: Box<Self>) -> Result<(PartFile, u64), WriteError>;
}

/// Texts around the rows of a report.
#[derive(Clone, Debug)]
pub(super) struct Heading {
    /// Title of the report.
    pub(super) title: String,
    /// Name of the query.
    pub(super) query: String,
    /// Time when the report was made.
    pub(super) made_at: Timestamp,
}

/// Limits of a report's size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) max_rows: u64,
    pub(super) max_bytes: u64,
}

/// Least size of a cell in a format that writes everything at the end, in bytes: that of a number. [`Cell::size_bytes`]
/// counts texts alone.
const LEAST_CELL_BYTES: usize = 8;

/// A complete file that does not have its visible name yet.
#[derive(Debug)]
pub(super) struct Poured {
    pub(super) file: PartFile,
    pub(super) rows: u64,
    pub(super) cut_cells: u64,
}

/// Reason why a format could not write a table.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    /// The disk returned an error.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The format cannot hold this table.
    #[error("{0}")]
    Unfit(String),
    /// The library of the format returned an error.
    #[error("{0}")]
    #[cfg_attr(not(any(feature = "pdf", feature = "xlsx")), expect(dead_code, reason = "only their libraries fail"))]
    Library(String),
}

/// Reason why a report was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum PourError {
    #[error("run the query: {0}")]
    Source(#[from] SourceError),
    #[error("write the file: {0}")]
    Write(#[from] WriteError),
    #[error("{0}")]
    TooLarge(String),
}

/// Write every row of `stream` into `file`. After each batch, call `progress` with the numbers of rows and bytes.
pub(super) fn pour(
    mut stream: RowStream,
    file: PartFile,
    format: Format,
    heading: Heading,
    limits: Limits,
    progress: impl Fn(u64, u64),
) -> Result<Poured, PourError> {
    let Some(Part::Columns(columns)) = stream.blocking_next()? else {
        return Err(WriteError::Unfit("the query returns no table".into()).into());
    };
    if columns.is_empty() {
        return Err(WriteError::Unfit("the query returns no columns".into()).into());
    }
    let mut writer = open(format, file, &columns, heading)?;

    let max_rows = limits.max_rows.min(format.max_rows());
    let least = if format.writes_at_end() { LEAST_CELL_BYTES } else { 0 };
    let (mut rows, mut cell_bytes) = (0, 0);
    while let Some(part) = stream.blocking_next()? {
        let Part::Rows(batch) = part else { continue };
        for row in batch {
            if rows == max_rows {
                return Err(PourError::TooLarge(too_many_rows(format, limits)));
            }
            writer.row(&row)?;
            rows += 1;
            // The limit also holds for formats that write at the end: for them the size of the cells counts.
            cell_bytes += row.iter().map(|cell| cell.size_bytes().max(least)).sum::<usize>() as u64;
            if cell_bytes.max(writer.bytes()) > limits.max_bytes {
                return Err(PourError::TooLarge(too_many_bytes(limits)));
            }
        }
        progress(rows, cell_bytes.max(writer.bytes()));
    }

    let (file, cut_cells) = writer.finish()?;
    if file.bytes() > limits.max_bytes {
        return Err(PourError::TooLarge(too_many_bytes(limits)));
    }
    file.sync().map_err(WriteError::from)?;
    Ok(Poured { file, rows, cut_cells })
}

fn open(
    format: Format,
    file: PartFile,
    columns: &[Column],
    heading: Heading,
) -> Result<Box<dyn TableWriter>, WriteError> {
    Ok(match format {
        Format::Csv => Box::new(csv::Writer::begin(file, columns)?),
        Format::Json => Box::new(json::Writer::begin(file, columns)?),
        Format::Html => Box::new(html::Writer::begin(file, columns, heading)?),
        #[cfg(feature = "xlsx")]
        Format::Xlsx => Box::new(xlsx::Writer::begin(file, columns, &heading)?),
        #[cfg(feature = "pdf")]
        Format::Pdf => Box::new(pdf::Writer::begin(file, columns, heading)?),
        #[cfg(not(all(feature = "pdf", feature = "xlsx")))]
        other => return Err(WriteError::Unfit(other.missing().unwrap_or_default())),
    })
}

fn too_many_rows(format: Format, limits: Limits) -> String {
    if format.max_rows() < limits.max_rows {
        format!("more than {} rows, which is all that {} holds; csv and json hold more", format.max_rows(), format)
    } else {
        format!("more than {} rows, the limit of reports", limits.max_rows)
    }
}

fn too_many_bytes(limits: Limits) -> String {
    format!("larger than {} bytes, the limit of reports", limits.max_bytes)
}

/// Names of the columns, in order.
pub(super) fn names(columns: &[Column]) -> impl Iterator<Item = &str> {
    columns.iter().map(|column| column.name.as_str())
}

#[cfg(all(test, feature = "pdf", feature = "xlsx"))]
mod tests {
    use std::cell::Cell as Slot;

    use super::super::testing::{column, try_pour};
    use super::*;
    use tickr_table::ColumnKind;

    #[test]
    fn a_report_of_numbers_that_is_too_large_ends_before_its_last_row_in_every_format() {
        let columns = [column("n", ColumnKind::Integer), column("m", ColumnKind::Integer)];
        let rows: Vec<_> = (0..2_000).map(|_| vec![Cell::Integer(7_777_777), Cell::Integer(7_777_777)]).collect();
        let limits = Limits { max_rows: u64::MAX, max_bytes: 8_000 };
        for format in Format::ALL {
            let written = Slot::new(0);
            let poured = try_pour("A title", format, &columns, rows.clone(), limits, |rows, _| written.set(rows));
            assert!(matches!(poured, Err(PourError::TooLarge(_))), "{format}: {poured:?}");
            assert!(written.get() < 1_000, "{format}: {}", written.get());
        }
    }
}
