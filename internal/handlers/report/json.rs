//! JSON: one array with one object per row, each on its own line, written while the rows arrive.
//!
//! Numbers keep all their digits, also above 2^53, where JavaScript rounds. A DECIMAL is a string, because most readers
//! would turn it into a binary float, which cannot hold 0.10 exactly. JSON columns are embedded, not quoted. NULL is
//! null. Everything else is text as in all formats: bytes in hexadecimal, times in ISO 8601.

use std::collections::HashSet;
use std::io::{BufWriter, Write};

use serde_json::value::RawValue;

use super::file::PartFile;
use super::rows::{TableWriter, WriteError, names};
use tickr_table::{Cell, Column};

/// Writer of a JSON file.
pub(super) struct Writer {
    out: BufWriter<PartFile>,
    /// Name of each column as a JSON string, with a colon.
    keys: Vec<String>,
    is_first: bool,
}

impl Writer {
    pub(super) fn begin(file: PartFile, columns: &[Column]) -> Result<Self, WriteError> {
        let mut seen = HashSet::new();
        if let Some(twice) = names(columns).find(|name| !seen.insert(*name)) {
            let twice = format!("the query returns two columns called {twice}, and a json object holds one of them");
            return Err(WriteError::Unfit(twice));
        }
        let keys = names(columns).map(|name| format!("{}:", quoted(name))).collect();
        let mut out = BufWriter::new(file);
        out.write_all(b"[")?;
        Ok(Self { out, keys, is_first: true })
    }
}

impl TableWriter for Writer {
    fn row(&mut self, row: &[Cell]) -> Result<(), WriteError> {
        let start: &[u8] = if self.is_first { b"\n{" } else { b",\n{" };
        self.out.write_all(start)?;
        self.is_first = false;
        for (at, (key, cell)) in self.keys.iter().zip(row).enumerate() {
            if at > 0 {
                self.out.write_all(b",")?;
            }
            self.out.write_all(key.as_bytes())?;
            value(&mut self.out, cell)?;
        }
        Ok(self.out.write_all(b"}")?)
    }

    fn bytes(&self) -> u64 {
        self.out.get_ref().bytes()
    }

    fn finish(mut self: Box<Self>) -> Result<(PartFile, u64), WriteError> {
        self.out.write_all(b"\n]\n")?;
        let file = self.out.into_inner().map_err(|error| WriteError::Io(error.into_error()))?;
        Ok((file, 0))
    }
}

fn value(out: &mut impl Write, cell: &Cell) -> Result<(), WriteError> {
    match cell {
        Cell::Null => out.write_all(b"null")?,
        Cell::Bool(_) | Cell::Integer(_) | Cell::Unsigned(_) => out.write_all(cell.text().as_bytes())?,
        // JSON has no infinite numbers. serde_json writes null for them.
        Cell::Float(number) => serde_json::to_writer(out, number).map_err(std::io::Error::from)?,
        Cell::Json(text) => match serde_json::from_str::<&RawValue>(text) {
            Ok(json) => out.write_all(json.get().as_bytes())?,
            Err(_) => out.write_all(quoted(text).as_bytes())?,
        },
        Cell::Decimal(_)
        | Cell::Text(_)
        | Cell::Bytes(_)
        | Cell::Date(_)
        | Cell::Time(_)
        | Cell::DateTime(_)
        | Cell::Timestamp(_) => out.write_all(quoted(&cell.text()).as_bytes())?,
    }
    Ok(())
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::Format;
    use super::super::testing::{column, every_cell, refused, render};
    use tickr_table::ColumnKind;

    #[test]
    fn every_kind_of_value_is_exact() {
        let (columns, row) = every_cell();
        let bytes = render(Format::Json, &columns, vec![row]);
        let back: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(
            back,
            json!([{
                "null": null, "bool": true, "integer": -9_223_372_036_854_775_808_i64,
                "unsigned": 18_446_744_073_709_551_615_u64, "float": 0.1, "decimal": "-12345678901234567890.10",
                "text": "<script>alert('=1+1')</script> \u{1} ünï \"q\"\n表", "json": {"a": [1, null]},
                "bytes": "00ff10", "date": "2026-11-21", "time": "-838:59:59",
                "datetime": "2026-11-21T23:59:59.123456", "timestamp": "2026-11-21T08:00:00.250Z",
            }])
        );
        assert!(String::from_utf8(bytes).unwrap().contains("18446744073709551615"));
    }

    #[test]
    fn no_rows_are_an_empty_array() {
        let bytes = render(Format::Json, &[column("a", ColumnKind::Text)], vec![]);
        assert_eq!(serde_json::from_slice::<Value>(&bytes).unwrap(), json!([]));
    }

    #[test]
    fn a_column_is_not_lost_behind_another() {
        let error = refused(Format::Json, &[column("a", ColumnKind::Text), column("a", ColumnKind::Text)], vec![]);
        assert!(error.contains("two columns called a"), "{error}");
    }
}
