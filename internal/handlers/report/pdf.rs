//! PDF: a table on A4 with its header on every page, page numbers, and an embedded font.
//!
//! The first rows decide the widths of the columns. When the columns do not fit, the wide ones get narrower first.
//! Their cells wrap to at most four lines; longer cells are cut with `…` and counted. DejaVu Sans (`fonts/`) covers
//! Latin, Greek, Cyrillic, Arabic, Hebrew, Armenian, Georgian and symbols. It has no Chinese, Japanese and Korean
//! characters, which are shown as boxes; use `html` for them. A PDF is for reading: it holds 50,000 rows and 40
//! columns, and is made in memory.

use std::collections::HashMap;
use std::io::Write as _;

use chrono::{Datelike, SecondsFormat, Timelike};
use krilla::Document;
use krilla::color::luma;
use krilla::geom::{PathBuilder, Point, Rect};
use krilla::metadata::{DateTime, Metadata};
use krilla::page::PageSettings;
use krilla::paint::Fill;
use krilla::surface::Surface;
use krilla::text::{Font, GlyphId, KrillaGlyph, TextDirection};
use skrifa::instance::{LocationRef, Size};
use skrifa::{FontRef, MetadataProvider};

use super::file::PartFile;
use super::rows::{Heading, TableWriter, WriteError, names};
use tickr_table::{Cell, Column, Row};

/// Most rows in a PDF.
pub(super) const MAX_ROWS: u64 = 50_000;
const MAX_COLUMNS: usize = 40;

static FONT: &[u8] = include_bytes!("fonts/DejaVuSans.ttf");

/// Sides of A4, in points.
const SHORT_SIDE: f32 = 595.0;
const LONG_SIDE: f32 = 842.0;
const MARGIN: f32 = 36.0;
const PADDING: f32 = 4.0;
/// Space between the bottom of the table and the page number, in points.
const FOOTER: f32 = 18.0;
const TITLE_SIZE: f32 = 14.0;
const SMALL_SIZE: f32 = 7.0;
/// Height of the title and the line below it, in points.
const HEADING: f32 = 44.0;
const LINES_PER_CELL: usize = 4;
/// Number of rows that decide the layout.
const SAMPLED_ROWS: usize = 200;
/// Largest width in points that a column may require when the layout is decided. A column may become wider if there is
/// room.
const WIDEST: f32 = 260.0;

/// Writer of a PDF file.
pub(super) struct Writer {
    file: PartFile,
    document: Document,
    heading: Heading,
    columns: Vec<Column>,
    type_case: TypeCase,
    /// Rows that arrived before the layout was decided.
    sample: Vec<Row>,
    layout: Option<Layout>,
    /// Rows of the current page, and their total height.
    page: Vec<LaidRow>,
    page_height: f32,
    pages: usize,
    rows: u64,
    cut_cells: u64,
}

/// Sizes for the whole document.
#[derive(Clone)]
struct Layout {
    width: f32,
    height: f32,
    font_size: f32,
    /// Left edge and width of each column.
    columns: Vec<(f32, f32)>,
    header: LaidRow,
}

/// A row broken into lines.
#[derive(Clone)]
struct LaidRow {
    cells: Vec<LaidCell>,
    height: f32,
}

#[derive(Clone)]
struct LaidCell {
    lines: Vec<String>,
    is_number: bool,
}

impl Writer {
    pub(super) fn begin(file: PartFile, columns: &[Column], heading: Heading) -> Result<Self, WriteError> {
        if columns.len() > MAX_COLUMNS {
            let count = columns.len();
            return Err(WriteError::Unfit(format!("{count} columns do not fit on a page, at most {MAX_COLUMNS} do")));
        }
        let mut document = Document::new();
        document.set_metadata(metadata(&heading));
        Ok(Self {
            file,
            document,
            heading,
            columns: columns.to_vec(),
            type_case: TypeCase::new()?,
            sample: Vec::new(),
            layout: None,
            page: Vec::new(),
            page_height: 0.0,
            pages: 0,
            rows: 0,
            cut_cells: 0,
        })
    }

    /// Decide the layout if that has not happened yet, and place the rows that waited for it.
    fn settle(&mut self) -> Result<(), WriteError> {
        if self.layout.is_none() {
            self.layout = Some(Layout::decide(&self.columns, &self.sample, &mut self.type_case));
            for row in std::mem::take(&mut self.sample) {
                self.place(&row)?;
            }
        }
        Ok(())
    }

    fn place(&mut self, row: &[Cell]) -> Result<(), WriteError> {
        let Some(layout) = &self.layout else { return Ok(()) };
        let (laid, cut) = layout.lay(row, &self.columns, &mut self.type_case);
        self.cut_cells += cut;
        if self.page_height + laid.height > layout.room(self.pages == 0) && !self.page.is_empty() {
            self.draw_page(false)?;
        }
        self.page_height += laid.height;
        self.page.push(laid);
        Ok(())
    }

    /// Draw the current page, because it is full or the last one.
    fn draw_page(&mut self, is_last: bool) -> Result<(), WriteError> {
        let Some(layout) = &self.layout else { return Ok(()) };
        let is_first = self.pages == 0;
        self.pages += 1;
        let settings = PageSettings::from_wh(layout.width, layout.height)
            .ok_or_else(|| WriteError::Library("a page without a size".into()))?;
        let mut page = self.document.start_page_with(settings);
        let mut surface = page.surface();
        let mut pen = Pen { surface: &mut surface, type_case: &mut self.type_case };

        let mut top = MARGIN;
        if is_first {
            let made_at = self.heading.made_at.to_rfc3339_opts(SecondsFormat::Secs, true);
            let width = layout.width - 2.0 * MARGIN;
            let title = pen.type_case.fitted(&self.heading.title, TITLE_SIZE, width);
            pen.text(MARGIN, top + TITLE_SIZE, TITLE_SIZE, INK, &title);
            let below = format!("Query {}, made {made_at}", self.heading.query);
            pen.text(MARGIN, top + TITLE_SIZE + 14.0, SMALL_SIZE, GREY, &below);
            top += HEADING;
        }
        let (left, right) = layout.edges();
        pen.bar(left, top, right - left, layout.header.height, SHADE);
        pen.row(layout, &layout.header, top);
        top += layout.header.height;
        for row in &self.page {
            pen.row(layout, row, top);
            top += row.height;
            pen.bar(left, top - 0.2, right - left, 0.4, RULE);
        }
        if is_last {
            let count = format!("{} {}", self.rows, if self.rows == 1 { "row" } else { "rows" });
            pen.text(MARGIN, layout.height - MARGIN + SMALL_SIZE, SMALL_SIZE, GREY, &count);
        }
        let number = format!("page {}", self.pages);
        let x = layout.width - MARGIN - pen.type_case.width(&number, SMALL_SIZE);
        pen.text(x, layout.height - MARGIN + SMALL_SIZE, SMALL_SIZE, GREY, &number);

        surface.finish();
        page.finish();
        self.page.clear();
        self.page_height = 0.0;
        Ok(())
    }
}

impl TableWriter for Writer {
    fn row(&mut self, row: &[Cell]) -> Result<(), WriteError> {
        self.rows += 1;
        if self.layout.is_some() {
            return self.place(row);
        }
        self.sample.push(row.to_vec());
        if self.sample.len() >= SAMPLED_ROWS { self.settle() } else { Ok(()) }
    }

    fn finish(mut self: Box<Self>) -> Result<(PartFile, u64), WriteError> {
        self.settle()?;
        self.draw_page(true)?;
        let bytes = self.document.finish().map_err(|error| WriteError::Library(error.to_string()))?;
        self.file.write_all(&bytes)?;
        Ok((self.file, self.cut_cells))
    }
}

fn metadata(heading: &Heading) -> Metadata {
    let at = heading.made_at;
    // Month to second are below 60. The year is that of this server's clock, so it fits as well.
    let small = |number: u32| u8::try_from(number).unwrap_or_default();
    let date = DateTime::new(u16::try_from(at.year()).unwrap_or_default())
        .month(small(at.month()))
        .day(small(at.day()))
        .hour(small(at.hour()))
        .minute(small(at.minute()))
        .second(small(at.second()))
        .utc_offset_hour(0)
        .utc_offset_minute(0);
    Metadata::new().title(heading.title.clone()).creator("tickr".into()).creation_date(date)
}

impl Layout {
    fn decide(columns: &[Column], sample: &[Row], type_case: &mut TypeCase) -> Self {
        let font_size = match columns.len() {
            0..=10 => 8.0,
            11..=16 => 7.0,
            _ => 6.0,
        };
        let mut wanted: Vec<f32> = names(columns).map(|name| type_case.width(name, font_size)).collect();
        for row in sample {
            for (width, cell) in wanted.iter_mut().zip(row) {
                for line in cell.text().lines() {
                    *width = width.max(type_case.width(line, font_size).min(LONG_SIDE));
                }
            }
        }
        // A small reserve, because later rows may be a little wider.
        let wanted: Vec<f32> = wanted.iter().map(|width| width * 1.02 + 2.0 * PADDING).collect();

        let needed: f32 = wanted.iter().map(|width| width.min(WIDEST)).sum();
        let is_portrait = needed <= SHORT_SIDE - 2.0 * MARGIN;
        let (width, height) = if is_portrait { (SHORT_SIDE, LONG_SIDE) } else { (LONG_SIDE, SHORT_SIDE) };
        let widths = shared(&wanted, width - 2.0 * MARGIN);
        let mut left = MARGIN;
        let places = widths
            .into_iter()
            .map(|width| {
                left += width;
                (left - width, width)
            })
            .collect();
        let header = LaidRow { cells: Vec::new(), height: 0.0 };
        let mut layout = Self { width, height, font_size, columns: places, header };
        let cells: Row = names(columns).map(|name| Cell::Text(name.to_owned())).collect();
        (layout.header, _) = layout.lay(&cells, columns, type_case);
        layout
    }

    /// Height for the rows of a page.
    fn room(&self, is_first: bool) -> f32 {
        let heading = if is_first { HEADING } else { 0.0 };
        self.height - 2.0 * MARGIN - heading - self.header.height - FOOTER
    }

    fn edges(&self) -> (f32, f32) {
        let right = self.columns.last().map_or(MARGIN, |(left, width)| left + width);
        (MARGIN, right)
    }

    fn line_height(&self) -> f32 {
        self.font_size * 1.25
    }

    /// Break the cells of a row into lines. Also return the number of cells that had to be cut.
    fn lay(&self, row: &[Cell], columns: &[Column], type_case: &mut TypeCase) -> (LaidRow, u64) {
        let mut cut = 0;
        let cells: Vec<_> = row
            .iter()
            .zip(columns)
            .zip(&self.columns)
            .map(|((cell, column), (_, width))| {
                let (lines, is_cut) = type_case.wrapped(&cell.text(), self.font_size, width - 2.0 * PADDING);
                cut += u64::from(is_cut);
                LaidCell { lines, is_number: column.kind.is_number() }
            })
            .collect();
        let lines = cells.iter().map(|cell| cell.lines.len()).max().unwrap_or(0).max(1);
        // At most four lines.
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let height = lines as f32 * self.line_height() + 2.0 * PADDING;
        (LaidRow { cells, height }, cut)
    }
}

/// Return `wanted` if it fits into `room`. Otherwise the narrow columns get their width, and the wide ones share the
/// rest equally.
fn shared(wanted: &[f32], room: f32) -> Vec<f32> {
    if wanted.iter().sum::<f32>() <= room {
        return wanted.to_vec();
    }
    let mut sorted = wanted.to_vec();
    sorted.sort_by(f32::total_cmp);
    let (mut left, mut count) = (room, sorted.len());
    for width in sorted {
        #[expect(clippy::cast_precision_loss, reason = "at most 40 columns")]
        let part = left / count as f32;
        if width > part {
            return wanted.iter().map(|width| width.min(part)).collect();
        }
        left -= width;
        count -= 1;
    }
    wanted.to_vec()
}

const INK: u8 = 0x1b;
const GREY: u8 = 0x6e;
const RULE: u8 = 0xd1;
const SHADE: u8 = 0xec;

/// Drawing state of one page.
struct Pen<'p, 's> {
    surface: &'p mut Surface<'s>,
    type_case: &'p mut TypeCase,
}

impl Pen<'_, '_> {
    fn row(&mut self, layout: &Layout, row: &LaidRow, top: f32) {
        for (cell, (left, width)) in row.cells.iter().zip(&layout.columns) {
            let mut base = top + PADDING + layout.font_size * 0.95;
            for line in &cell.lines {
                let x = if cell.is_number {
                    left + width - PADDING - self.type_case.width(line, layout.font_size)
                } else {
                    left + PADDING
                };
                self.text(x, base, layout.font_size, INK, line);
                base += layout.line_height();
            }
        }
    }

    fn text(&mut self, x: f32, base: f32, size: f32, shade: u8, text: &str) {
        if text.is_empty() {
            return;
        }
        self.ink(shade);
        let (at, font) = (Point::from_xy(x, base), self.type_case.font.clone());
        if text.chars().all(stands_alone) {
            // Shaping costs more than everything else, and these letters do not need it.
            let glyphs = self.type_case.glyphs(text);
            self.surface.draw_glyphs(at, &glyphs, font, text, size, false);
        } else {
            self.surface.draw_text(at, font, size, text, false, TextDirection::Auto);
        }
    }

    fn bar(&mut self, x: f32, y: f32, width: f32, height: f32, shade: u8) {
        let Some(rect) = Rect::from_xywh(x, y, width, height) else { return };
        let mut path = PathBuilder::new();
        path.push_rect(rect);
        if let Some(path) = path.finish() {
            self.ink(shade);
            self.surface.draw_path(&path);
        }
    }

    fn ink(&mut self, shade: u8) {
        self.surface.set_fill(Some(Fill { paint: luma::Color::new(shade).into(), ..Fill::default() }));
    }
}

/// True when the character is always one glyph, drawn left to right, independent of its neighbours: Latin, Greek,
/// Cyrillic, punctuation, symbols.
fn stands_alone(c: char) -> bool {
    matches!(c, '\u{20}'..='\u{2ff}' | '\u{370}'..='\u{482}' | '\u{48a}'..='\u{58f}'
              | '\u{1e00}'..='\u{200a}' | '\u{2010}'..='\u{2027}' | '\u{2030}'..='\u{205f}'
              | '\u{2070}'..='\u{20cf}' | '\u{2100}'..='\u{2bff}')
}

/// The font, and the widths of its letters.
struct TypeCase {
    font: Font,
    reference: FontRef<'static>,
    /// Glyph of each letter, and its width as a fraction of the font size.
    letters: HashMap<char, (GlyphId, f32)>,
}

impl TypeCase {
    fn new() -> Result<Self, WriteError> {
        let unreadable = || WriteError::Library("the embedded font cannot be read".into());
        Ok(Self {
            font: Font::new(FONT.into(), 0).ok_or_else(unreadable)?,
            reference: FontRef::new(FONT).map_err(|_| unreadable())?,
            letters: HashMap::new(),
        })
    }

    fn letter(&mut self, c: char) -> (GlyphId, f32) {
        *self.letters.entry(c).or_insert_with(|| {
            let glyph = self.reference.charmap().map(c).unwrap_or_default();
            let metrics = self.reference.glyph_metrics(Size::unscaled(), LocationRef::default());
            let width = metrics.advance_width(glyph).unwrap_or_default();
            (GlyphId::new(glyph.to_u32()), width / self.font.units_per_em())
        })
    }

    /// Width of `text`. It is an approximation for text that is shaped.
    fn width(&mut self, text: &str, size: f32) -> f32 {
        text.chars().map(|c| self.letter(c).1).sum::<f32>() * size
    }

    fn glyphs(&mut self, text: &str) -> Vec<KrillaGlyph> {
        text.char_indices()
            .map(|(at, c)| {
                let (glyph, width) = self.letter(c);
                KrillaGlyph::new(glyph, width, 0.0, 0.0, 0.0, at..at + c.len_utf8(), None)
            })
            .collect()
    }

    /// Fit `text` on one line; cut it if necessary.
    fn fitted(&mut self, text: &str, size: f32, width: f32) -> String {
        let (mut lines, _) = self.wrapped_to(text, size, width, 1);
        lines.pop().unwrap_or_default()
    }

    fn wrapped(&mut self, text: &str, size: f32, width: f32) -> (Vec<String>, bool) {
        self.wrapped_to(text, size, width, LINES_PER_CELL)
    }

    /// Break `text` into at most `most` lines, after spaces and some punctuation where possible. Return the lines, and
    /// true if the text was cut.
    fn wrapped_to(&mut self, text: &str, size: f32, width: f32, most: usize) -> (Vec<String>, bool) {
        let mut lines = Vec::new();
        for paragraph in text.lines() {
            let mut rest: String = paragraph.chars().map(printable).collect();
            loop {
                let end = self.line_end(&rest, size, width);
                let is_whole = end == rest.len();
                if lines.len() + 1 == most && !is_whole {
                    lines.push(self.with_ellipsis(&rest, size, width));
                    return (lines, true);
                }
                if lines.len() == most {
                    // Another paragraph follows, and there is no line left for it.
                    if let Some(last) = lines.pop() {
                        lines.push(self.with_ellipsis(&last, size, width));
                    }
                    return (lines, true);
                }
                lines.push(rest[..end].trim_end().to_owned());
                if is_whole {
                    break;
                }
                rest = rest[end..].trim_start().to_owned();
            }
        }
        (lines, false)
    }

    /// End of the first line of `text`: after the last space or punctuation that fits, or within a long word.
    fn line_end(&mut self, text: &str, size: f32, width: f32) -> usize {
        let mut used = 0.0;
        let mut space = None;
        for (at, c) in text.char_indices() {
            used += self.letter(c).1 * size;
            // A space may exceed the edge. At least one letter must be accepted, or the loop in `wrapped_to` would
            // never end.
            if used > width && at > 0 && c != ' ' {
                return space.unwrap_or(at);
            }
            if matches!(c, ' ' | '-' | '/' | ',' | ';') {
                space = Some(at + c.len_utf8());
            }
        }
        text.len()
    }

    fn with_ellipsis(&mut self, text: &str, size: f32, width: f32) -> String {
        let room = width - self.letter('…').1 * size;
        let mut used = 0.0;
        let mut line: String = text
            .chars()
            .take_while(|c| {
                used += self.letter(*c).1 * size;
                used <= room
            })
            .collect();
        line.truncate(line.trim_end_matches([' ', '…']).len());
        line.push('…');
        line
    }
}

/// Replace tabs and control characters by spaces, because they have no glyph.
fn printable(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::super::testing::{NO_LIMITS, column, every_cell, refused, render, try_render};
    use super::*;
    use tickr_table::ColumnKind;

    fn type_case() -> TypeCase {
        TypeCase::new().unwrap()
    }

    fn pages(bytes: &[u8]) -> usize {
        String::from_utf8_lossy(bytes).matches("/Type/Page/").count()
    }

    #[test]
    fn a_document_is_whole_and_has_its_pages() {
        let (columns, row) = every_cell();
        let bytes = render(Format::Pdf, &columns, vec![row]);
        assert!(bytes.starts_with(b"%PDF-") && bytes.trim_ascii_end().ends_with(b"%%EOF"));
        assert_eq!(pages(&bytes), 1);

        let columns = [column("n", ColumnKind::Integer), column("text", ColumnKind::Text)];
        let rows = (0..1_000).map(|n| vec![Cell::Integer(n), Cell::Text(format!("row {n}"))]).collect();
        let bytes = render(Format::Pdf, &columns, rows);
        assert!((15..30).contains(&pages(&bytes)), "{}", pages(&bytes));
        assert_eq!(pages(&render(Format::Pdf, &columns, vec![])), 1, "also without rows");
    }

    #[test]
    fn a_long_cell_wraps_and_then_ends_in_an_ellipsis() {
        let mut type_case = type_case();
        let text = "the quick brown fox jumps over the lazy dog ".repeat(20);
        let (lines, is_cut) = type_case.wrapped(&text, 8.0, 100.0);
        assert!(is_cut && lines.len() == LINES_PER_CELL && lines[3].ends_with('…'), "{lines:?}");
        assert!(lines[0].starts_with("the quick"), "{lines:?}");
        for line in &lines {
            assert!(type_case.width(line, 8.0) <= 100.0, "{line}");
        }

        let (lines, is_cut) = type_case.wrapped(&"W".repeat(50), 8.0, 100.0);
        assert!(is_cut && lines.iter().all(|line| type_case.width(line, 8.0) <= 100.0), "{lines:?}");
        assert_eq!(type_case.wrapped("one\ntwo\tthree", 8.0, 100.0), (vec!["one".into(), "two three".into()], false));
        let (lines, is_cut) = type_case.wrapped("1\n2\n3\n4\n5", 8.0, 100.0);
        assert!(is_cut && lines == ["1", "2", "3", "4…"], "{lines:?}");
        assert_eq!(type_case.wrapped("", 8.0, 100.0), (vec![], false));
        assert_eq!(type_case.wrapped("WWW", 8.0, 1.0).0.len(), 3, "always one letter at least");
    }

    #[test]
    fn cut_cells_are_counted() {
        let columns = [column("t", ColumnKind::Text)];
        let rows = vec![vec![Cell::Text("long ".repeat(1_000))], vec![Cell::Text("short".into())]];
        let (_, poured) = try_render("A title", Format::Pdf, &columns, rows, NO_LIMITS).unwrap();
        assert_eq!((poured.rows, poured.cut_cells), (2, 1));
    }

    #[test]
    fn wide_columns_give_way_first() {
        assert_eq!(shared(&[10.0, 20.0], 100.0), [10.0, 20.0]);
        assert_eq!(shared(&[10.0, 200.0, 300.0], 110.0), [10.0, 50.0, 50.0]);
        assert_eq!(shared(&[90.0, 90.0], 100.0), [50.0, 50.0]);
    }

    #[test]
    fn too_many_columns_are_refused() {
        let columns: Vec<_> = (0..41).map(|n| column(&format!("c{n}"), ColumnKind::Text)).collect();
        assert!(refused(Format::Pdf, &columns, vec![]).contains("41 columns do not fit"));
    }

    #[test]
    fn letters_that_join_are_shaped() {
        assert!("Größe — 5 € → Ωж".chars().all(stands_alone));
        assert!(!"سلام".chars().all(stands_alone) && !"שלום".chars().all(stands_alone));
        assert!(!"e\u{301}".chars().all(stands_alone));
        let rows = ["سلام", "שלום", "e\u{301}", "表", "🦀"].map(|text| vec![Cell::Text(text.into())]).into();
        assert!(render(Format::Pdf, &[column("t", ColumnKind::Text)], rows).starts_with(b"%PDF-"));
    }
}
