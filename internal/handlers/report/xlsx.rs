//! XLSX for Excel, LibreOffice and Numbers, in constant memory: rows go to a temporary file next to the report.
//!
//! Numbers, booleans, days and times keep their types, as far as a spreadsheet can hold them. A spreadsheet computes
//! with 15 digits and counts days from 1900; values beyond these limits become text, so that they do not change. Texts
//! are written as texts, never as formulas. A cell holds 32,767 characters; longer texts end in `…` and are counted as
//! cut.

use std::error::Error as _;
use std::io::{BufWriter, Write};

use chrono::{Datelike, NaiveDate, NaiveDateTime, NaiveTime, Timelike};
use rust_xlsxwriter::{
    Color, DocProperties, ExcelDateTime, Format as CellFormat, FormatAlign, FormatBorder, Workbook, Worksheet,
    XlsxError,
};

use super::file::PartFile;
use super::rows::{Heading, TableWriter, WriteError, names};
use crate::panicked::caught;
use tickr_table::{Cell, Column};

/// Most rows in a sheet, without its header.
pub(super) const MAX_ROWS: u64 = 1_048_575;
/// Most UTF-16 units that Excel holds in a cell.
const MAX_CELL_UNITS: usize = 32_767;
/// Most digits that a spreadsheet keeps.
const MAX_DIGITS: usize = 15;
/// Number of rows that decide the widths of the columns. `WIDEST` is the largest width, in characters.
const SAMPLED_ROWS: u32 = 200;
const WIDEST: usize = 60;
/// Start of the panic of the library when its temporary file takes no more, such as on a full disk.
const DISK_PANIC: &str = "Couldn't write to xml file";

/// Writer of a workbook.
pub(super) struct Writer {
    file: PartFile,
    workbook: Workbook,
    formats: Formats,
    widths: Vec<usize>,
    row: u32,
    cut_cells: u64,
}

struct Formats {
    date: CellFormat,
    datetime: CellFormat,
    /// One format for each number of decimal places, so that 12.30 keeps its zero.
    decimals: Vec<CellFormat>,
}

impl Writer {
    pub(super) fn begin(file: PartFile, columns: &[Column], heading: &Heading) -> Result<Self, WriteError> {
        let mut workbook = Workbook::new();
        workbook.set_tempdir(file.dir()).map_err(library)?;
        workbook.set_properties(&DocProperties::new().set_title(&heading.title).set_author("tickr"));
        let header = CellFormat::new()
            .set_bold()
            .set_align(FormatAlign::Left)
            .set_background_color(Color::RGB(0x00F0_F2F4))
            .set_border_bottom(FormatBorder::Thin);
        let sheet = workbook.add_worksheet_with_constant_memory().map_err(library)?;
        sheet.set_name("Report").map_err(library)?;
        sheet.set_freeze_panes(1, 0).map_err(library)?;
        sheet.set_repeat_rows(0, 0).map_err(library)?;
        for (column, name) in (0..).zip(names(columns)) {
            sheet.write_string_with_format(0, column, shortened(name).0, &header).map_err(library)?;
        }
        let formats = Formats {
            date: CellFormat::new().set_num_format("yyyy-mm-dd"),
            datetime: CellFormat::new().set_num_format("yyyy-mm-dd hh:mm:ss.000"),
            decimals: (0..=MAX_DIGITS)
                .map(|places| match places {
                    0 => CellFormat::new().set_num_format("0"),
                    places => CellFormat::new().set_num_format(format!("0.{}", "0".repeat(places))),
                })
                .collect(),
        };
        // Leave room for the filter button in the header.
        let widths = names(columns).map(|name| name.chars().count() + 3).collect();
        Ok(Self { file, workbook, formats, widths, row: 0, cut_cells: 0 })
    }
}

impl TableWriter for Writer {
    fn row(&mut self, row: &[Cell]) -> Result<(), WriteError> {
        without_disk_panics(|| self.add(row))
    }

    fn finish(self: Box<Self>) -> Result<(PartFile, u64), WriteError> {
        without_disk_panics(|| self.save())
    }
}

impl Writer {
    fn add(&mut self, row: &[Cell]) -> Result<(), WriteError> {
        self.row += 1;
        if self.row <= SAMPLED_ROWS {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.text().chars().take(WIDEST).count() + 1);
            }
        }
        let sheet = self.workbook.worksheet_from_index(0).map_err(library)?;
        for (column, cell) in (0..).zip(row) {
            let is_cut = write(sheet, self.row, column, cell, &self.formats).map_err(library)?;
            self.cut_cells += u64::from(is_cut);
        }
        Ok(())
    }

    fn save(mut self) -> Result<(PartFile, u64), WriteError> {
        let sheet = self.workbook.worksheet_from_index(0).map_err(library)?;
        for (column, width) in (0..).zip(&self.widths) {
            // At most `WIDEST`, so it is exact as a float.
            #[expect(clippy::cast_precision_loss, reason = "a small number")]
            sheet.set_column_width(column, (*width).min(WIDEST) as f64).map_err(library)?;
        }
        let last = u16::try_from(self.widths.len()).unwrap_or(u16::MAX).saturating_sub(1);
        sheet.autofilter(0, 0, self.row, last).map_err(library)?;
        let mut out = BufWriter::new(&mut self.file);
        self.workbook.save_to_writer(&mut out).map_err(library)?;
        out.flush()?;
        drop(out);
        Ok((self.file, self.cut_cells))
    }
}

/// Write one cell. Return true when it had to be cut.
fn write(sheet: &mut Worksheet, row: u32, column: u16, cell: &Cell, formats: &Formats) -> Result<bool, XlsxError> {
    let number = |sheet: &mut Worksheet, number: f64| sheet.write_number(row, column, number).map(|_| ());
    match cell {
        // NULL stays an empty cell.
        Cell::Null => Ok(()),
        Cell::Bool(value) => sheet.write_boolean(row, column, *value).map(|_| ()),
        Cell::Float(value) => number(sheet, *value),
        #[expect(clippy::cast_precision_loss, reason = "at most 15 digits")]
        Cell::Integer(value) if value.unsigned_abs() < 10_u64.pow(15) => number(sheet, *value as f64),
        #[expect(clippy::cast_precision_loss, reason = "at most 15 digits")]
        Cell::Unsigned(value) if *value < 10_u64.pow(15) => number(sheet, *value as f64),
        Cell::Decimal(digits) => match decimal(digits) {
            Some((value, places)) => {
                sheet.write_number_with_format(row, column, value, &formats.decimals[places]).map(|_| ())
            }
            None => return text(sheet, row, column, digits),
        },
        Cell::Date(date) => match excel(*date, None) {
            Some(day) => sheet.write_datetime_with_format(row, column, &day, &formats.date).map(|_| ()),
            None => return text(sheet, row, column, &cell.text()),
        },
        Cell::DateTime(_) | Cell::Timestamp(_) => {
            match date_time(cell).and_then(|at| excel(at.date(), Some(at.time()))) {
                Some(at) => sheet.write_datetime_with_format(row, column, &at, &formats.datetime).map(|_| ()),
                None => return text(sheet, row, column, &cell.text()),
            }
        }
        Cell::Integer(_) | Cell::Unsigned(_) | Cell::Text(_) | Cell::Json(_) | Cell::Bytes(_) | Cell::Time(_) => {
            return text(sheet, row, column, &cell.text());
        }
    }
    .map(|()| false)
}

fn text(sheet: &mut Worksheet, row: u32, column: u16, text: &str) -> Result<bool, XlsxError> {
    let (text, is_cut) = shortened(text);
    sheet.write_string(row, column, text)?;
    Ok(is_cut)
}

/// Date and time of a cell in UTC, because spreadsheets have no time zones.
fn date_time(cell: &Cell) -> Option<NaiveDateTime> {
    match cell {
        Cell::DateTime(at) => Some(*at),
        Cell::Timestamp(at) => Some(at.naive_utc()),
        _ => None,
    }
}

/// The value and its number of decimal places, if a spreadsheet can hold all digits.
fn decimal(digits: &str) -> Option<(f64, usize)> {
    let count = digits.bytes().filter(u8::is_ascii_digit).count();
    let places = digits.split_once('.').map_or(0, |(_, places)| places.len());
    (count <= MAX_DIGITS).then(|| digits.parse().ok()).flatten().map(|value| (value, places))
}

/// Excel takes 1900 for a leap year. All spreadsheets agree on days from March 1900 on, so days from 1901 on are used.
fn excel(date: NaiveDate, time: Option<NaiveTime>) -> Option<ExcelDateTime> {
    let year = u16::try_from(date.year()).ok().filter(|year| *year > 1900)?;
    let (month, day) = (u8::try_from(date.month()).ok()?, u8::try_from(date.day()).ok()?);
    let day = ExcelDateTime::from_ymd(year, month, day).ok()?;
    let Some(time) = time else { return Some(day) };
    let (hour, minute) = (u16::try_from(time.hour()).ok()?, u8::try_from(time.minute()).ok()?);
    let milli = u16::try_from(time.nanosecond() / 1_000_000).ok()?;
    day.and_hms_milli(hour, minute, u8::try_from(time.second()).ok()?, milli).ok()
}

/// Return the part of `text` that fits into a cell, and true if it was cut.
fn shortened(text: &str) -> (String, bool) {
    // No character has more UTF-16 units than UTF-8 bytes.
    if text.len() <= MAX_CELL_UNITS || text.encode_utf16().count() <= MAX_CELL_UNITS {
        return (text.to_owned(), false);
    }
    let mut units = 1;
    let fits = text.chars().take_while(|c| {
        units += c.len_utf16();
        units <= MAX_CELL_UNITS
    });
    (fits.chain(['…']).collect(), true)
}

/// Call the library. An error of the disk may disappear later, so it must not end the attempt as a panic.
fn without_disk_panics<T>(call: impl FnOnce() -> Result<T, WriteError>) -> Result<T, WriteError> {
    match caught(call) {
        Ok(done) => done,
        Err(message) if message.starts_with(DISK_PANIC) => Err(WriteError::Io(std::io::Error::other(message))),
        Err(message) => std::panic::resume_unwind(Box::new(message)),
    }
}

fn library(error: XlsxError) -> WriteError {
    // A disk error may disappear later. Every other error would come again.
    match error.source().and_then(|cause| cause.downcast_ref::<std::io::Error>()) {
        Some(cause) => WriteError::Io(std::io::Error::new(cause.kind(), cause.to_string())),
        None => match error {
            XlsxError::IoError(error) => WriteError::Io(error),
            error => WriteError::Library(error.to_string()),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Read};

    use super::super::Format;
    use super::super::testing::{column, every_cell, render};
    use super::*;
    use tickr_table::ColumnKind;

    /// The XML of the sheet, unpacked from the file.
    fn sheet(bytes: Vec<u8>) -> String {
        let mut archive = zip::ZipArchive::new(Cursor::new(bytes)).unwrap();
        let mut xml = String::new();
        archive.by_name("xl/worksheets/sheet1.xml").unwrap().read_to_string(&mut xml).unwrap();
        xml
    }

    #[test]
    fn values_keep_their_types_or_become_text() {
        let (columns, row) = every_cell();
        let xml = sheet(render(Format::Xlsx, &columns, vec![row]));
        assert!(!xml.contains("<f>"), "no formulas: {xml}");
        for part in [
            "<t>null</t>",                     // a header
            "t=\"b\"><v>1</v>",                // a real boolean
            "<t>-9223372036854775808</t>",     // too many digits
            "<t>18446744073709551615</t>",     // too many digits
            "<v>0.1</v>",                      // a real number
            "<t>-12345678901234567890.10</t>", // too many digits
            "&lt;script&gt;alert('=1+1')&lt;/script&gt; _x0001_ ünï \"q\"",
            "<t>00ff10</t>",
            "<v>46347</v>",    // 2026-11-21 as Excel counts days
            "<v>46347.999989", // and a time on it
            "<autoFilter ref=\"A1:M2\"/>",
            "state=\"frozen\"",
        ] {
            assert!(xml.contains(part), "{part} is missing in {xml}");
        }
    }

    #[test]
    fn a_decimal_shows_its_places_and_a_formula_stays_text() {
        let columns = [column("d", ColumnKind::Decimal), column("t", ColumnKind::Text)];
        let row = vec![Cell::Decimal("12.30".into()), Cell::Text("=HYPERLINK(\"http://x\")".into())];
        let xml = sheet(render(Format::Xlsx, &columns, vec![row]));
        assert!(xml.contains("<v>12.3</v>") && xml.contains("<t>=HYPERLINK(\"http://x\")</t>"), "{xml}");
        assert!(!xml.contains("<f>") && !xml.contains("hyperlink"), "{xml}");
    }

    #[test]
    fn the_longest_text_fits_by_excels_measure() {
        assert_eq!(shortened(&"x".repeat(32_767)), ("x".repeat(32_767), false));
        let (text, is_cut) = shortened(&"🦀".repeat(20_000));
        assert!(is_cut && text.ends_with('…') && text.encode_utf16().count() <= MAX_CELL_UNITS);
        let columns = [column("t", ColumnKind::Text)];
        let xml = sheet(render(Format::Xlsx, &columns, vec![vec![Cell::Text("é".repeat(40_000))]]));
        assert_eq!(xml.matches('é').count(), 32_766);
    }

    #[test]
    fn a_full_disk_is_an_error_of_the_disk_and_any_other_panic_stays_one() {
        let full = || -> std::io::Result<()> { Err(std::io::ErrorKind::StorageFull.into()) };
        let writes = || {
            full().expect(DISK_PANIC);
            Ok(())
        };
        let error = without_disk_panics(writes).unwrap_err();
        assert!(matches!(&error, WriteError::Io(cause) if cause.to_string().contains("StorageFull")), "{error}");
        let other = caught(|| without_disk_panics(|| -> Result<(), _> { panic!("another one") }).is_ok());
        assert_eq!(other, Err("another one".to_owned()));
    }

    #[test]
    fn days_that_excel_cannot_count_become_text() {
        let day = |text: &str| Cell::Date(text.parse().unwrap());
        let columns = [column("d", ColumnKind::Date)];
        let rows = ["1000-01-01", "1900-12-31", "9999-12-31"].map(|text| vec![day(text)]).into();
        let xml = sheet(render(Format::Xlsx, &columns, rows));
        assert!(xml.contains("<t>1000-01-01</t>") && xml.contains("<v>2958465</v>"), "{xml}");
    }
}
