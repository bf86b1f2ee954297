//! CSV after RFC 4180: UTF-8, CRLF, a header line, and quotes only where they are needed.
//!
//! There is no byte order mark, because programs read it as part of the first column's name. Without it, Excel guesses
//! another encoding when it opens the file by a double click; for Excel, use `xlsx`.
//!
//! Texts that a spreadsheet would execute get an apostrophe in front (CSV injection, CVE-2021-41270). Values that are
//! numbers in the database, such as -5, stay unchanged. Programs that need every byte unchanged should use `json`.

use std::borrow::Cow;
use std::io::BufWriter;

use super::file::PartFile;
use super::rows::{TableWriter, WriteError, names};
use tickr_table::{Cell, Column};

/// Writer of a CSV file.
pub(super) struct Writer {
    csv: ::csv::Writer<BufWriter<PartFile>>,
}

impl Writer {
    pub(super) fn begin(file: PartFile, columns: &[Column]) -> Result<Self, WriteError> {
        let mut csv = ::csv::WriterBuilder::new()
            .terminator(::csv::Terminator::CRLF)
            // A single empty field is quoted, so that a row with one NULL is not an empty line.
            .quote_style(::csv::QuoteStyle::Necessary)
            .from_writer(BufWriter::new(file));
        csv.write_record(names(columns).map(|name| harmless(name.into()).into_owned())).map_err(io)?;
        Ok(Self { csv })
    }
}

impl TableWriter for Writer {
    fn row(&mut self, row: &[Cell]) -> Result<(), WriteError> {
        for cell in row {
            let text = cell.text();
            let text = match cell {
                Cell::Text(_) | Cell::Json(_) => harmless(text),
                Cell::Null
                | Cell::Bool(_)
                | Cell::Integer(_)
                | Cell::Unsigned(_)
                | Cell::Float(_)
                | Cell::Decimal(_)
                | Cell::Bytes(_)
                | Cell::Date(_)
                | Cell::Time(_)
                | Cell::DateTime(_)
                | Cell::Timestamp(_) => text,
            };
            self.csv.write_field(text.as_bytes()).map_err(io)?;
        }
        self.csv.write_record(None::<&[u8]>).map_err(io)
    }

    fn bytes(&self) -> u64 {
        self.csv.get_ref().get_ref().bytes()
    }

    fn finish(self: Box<Self>) -> Result<(PartFile, u64), WriteError> {
        let buffer = self.csv.into_inner().map_err(|error| WriteError::Io(error.into_error()))?;
        let file = buffer.into_inner().map_err(|error| WriteError::Io(error.into_error()))?;
        Ok((file, 0))
    }
}

fn io(error: ::csv::Error) -> WriteError {
    WriteError::Io(error.into())
}

/// Characters that end a cell: line breaks, and the separators that spreadsheets use in other languages. Such a
/// spreadsheet splits a line at them, although the comma separates the fields here.
const SEPARATORS: [char; 5] = ['\n', '\r', '\t', ';', '|'];

/// Put an apostrophe before every piece of `text` that a spreadsheet could take for a formula, at whichever separator
/// it splits.
fn harmless(text: Cow<'_, str>) -> Cow<'_, str> {
    let odd_start = text.starts_with(['\r', '\n', '\t']);
    if !odd_start && !text.split(SEPARATORS).any(is_formula) {
        return text;
    }
    let mut safe = String::with_capacity(text.len() + 4);
    if odd_start {
        safe.push('\'');
    }
    for piece in text.split_inclusive(SEPARATORS) {
        if is_formula(piece) {
            safe.push('\'');
        }
        safe.push_str(piece);
    }
    Cow::Owned(safe)
}

/// True for a text that a spreadsheet may take for a formula. Spreadsheets skip leading spaces of all kinds and quotes,
/// and accept the full-width forms of the signs.
fn is_formula(piece: &str) -> bool {
    let skipped = |c: char| c.is_whitespace() || matches!(c, '"' | '\u{200b}' | '\u{feff}' | '\u{0}');
    piece.trim_start_matches(skipped).starts_with(['=', '+', '-', '@', '＝', '＋', '－', '＠'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Format;
    use super::super::testing::{column, render};
    use super::*;
    use tickr_table::ColumnKind;

    fn text(text: &str) -> Cell {
        Cell::Text(text.into())
    }

    #[test]
    fn odd_texts_come_back_as_they_were() {
        let odd = ["a,b", "say \"hi\"", "two\r\nlines", "ünïcödé 表 🦀", "", " spaced ", "semi;colon"];
        let columns = [column("n", ColumnKind::Integer), column("odd, \"name\"", ColumnKind::Text)];
        let rows = odd.iter().enumerate().map(|(n, odd)| vec![Cell::Integer(n as i64), text(odd)]).collect();
        let bytes = render(Format::Csv, &columns, rows);

        let mut reader = ::csv::Reader::from_reader(bytes.as_slice());
        assert_eq!(reader.headers().unwrap(), vec!["n", "odd, \"name\""]);
        let back: Vec<_> = reader.records().map(|record| record.unwrap()[1].to_owned()).collect();
        assert_eq!(back, odd);
        assert!(bytes.ends_with(b"\r\n") && bytes.starts_with(b"n,"));
    }

    #[test]
    fn formulas_are_disarmed_and_numbers_are_not() {
        for (cell, expected) in [
            (text("=1+1"), "'=1+1"),
            (text("+49 30 1234"), "'+49 30 1234"),
            (text("-5"), "'-5"),
            (text("@SUM(A1)"), "'@SUM(A1)"),
            (text("\t=1"), "'\t'=1"),
            (text("\r=1"), "'\r'=1"),
            (text("\t"), "'\t"),
            (text(" \u{a0}\u{3000}=1"), "' \u{a0}\u{3000}=1"),
            (text("\u{feff}=1"), "'\u{feff}=1"),
            (text("＝1"), "'＝1"),
            (text("fine\n=1\nfine"), "fine\n'=1\nfine"),
            // Cases for other separators.
            (text("x;=1+1"), "x;'=1+1"),
            (text("x\t=1+1"), "x\t'=1+1"),
            (text("x|-1"), "x|'-1"),
            (text("x;\"=1+1\""), "x;'\"=1+1\""),
            (text("x; \t\"\"@a;b"), "x; \t'\"\"@a;b"),
            (text("\"=1"), "'\"=1"),
            (text(";;"), ";;"),
            (text("a=1"), "a=1"),
            (text("2-1"), "2-1"),
            (Cell::Json("-1".into()), "'-1"),
            (Cell::Integer(-5), "-5"),
            (Cell::Decimal("-0.50".into()), "-0.50"),
            (Cell::Float(-1.5), "-1.5"),
            (Cell::Time("-01:00:00".into()), "-01:00:00"),
            (Cell::Null, ""),
        ] {
            let bytes = render(Format::Csv, &[column("=x", ColumnKind::Text)], vec![vec![cell.clone()]]);
            let mut reader = ::csv::Reader::from_reader(bytes.as_slice());
            assert_eq!(&reader.headers().unwrap()[0], "'=x");
            assert_eq!(&reader.records().next().unwrap().unwrap()[0], expected, "{cell:?}");
        }
    }

    proptest! {
        #[test]
        fn no_piece_of_a_line_is_a_formula_whatever_it_is_split_at(
            cells in prop::collection::vec("[x1=+@＝;|\t\"' ,\n\r\u{feff}-]{0,12}", 2),
        ) {
            let columns = [column("a", ColumnKind::Text), column("b", ColumnKind::Text)];
            let bytes = render(Format::Csv, &columns, vec![cells.iter().map(|cell| text(cell)).collect()]);
            let mut reader = ::csv::Reader::from_reader(bytes.as_slice());
            let record = reader.records().next().unwrap().unwrap();
            // A program that splits at commas reads the original values, apart from the apostrophes.
            for (cell, back) in cells.iter().zip(&record) {
                prop_assert_eq!(back.replace('\'', ""), cell.replace('\'', ""));
                prop_assert!(!is_formula(back), "{back:?}");
            }
            // A spreadsheet with another separator takes quotes for part of the text, or ignores them.
            let file = std::str::from_utf8(&bytes).unwrap();
            for separator in [';', '|', '\t'] {
                for line in file.split(['\n', '\r']) {
                    for (at, piece) in line.split(separator).enumerate() {
                        prop_assert!(at == 0 || !is_formula(piece), "{piece:?} of {line:?} at {separator:?}");
                    }
                }
            }
        }
    }
}
