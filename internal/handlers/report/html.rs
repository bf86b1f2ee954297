//! HTML: one page without other files. It has no scripts, links or images. Its style is in its head, for screen and
//! paper; the header row repeats on every sheet. All texts go through maud, which escapes them.

use std::io::{BufWriter, Write};

use chrono::SecondsFormat;
use maud::{DOCTYPE, PreEscaped, html};

use super::file::PartFile;
use super::rows::{Heading, TableWriter, WriteError};
use tickr_table::{Cell, Column, ColumnKind};

const STYLE: &str = "
body { font: 14px/1.4 system-ui, sans-serif; color: #1b1f24; margin: 2rem; }
h1 { font-size: 1.4rem; margin: 0; } p { color: #59636e; margin: .2rem 0 1rem; }
table { border-collapse: collapse; } th, td { border: 1px solid #d1d9e0; padding: .25rem .5rem; vertical-align: top; }
th { background: #f0f2f4; text-align: left; position: sticky; top: 0; }
td { white-space: pre-wrap; overflow-wrap: anywhere; min-width: 5rem; } tr:nth-child(even) td { background: #f9fafb; }
td.n, td.t { white-space: nowrap; min-width: 0; font-variant-numeric: tabular-nums; } .n { text-align: right; }
.null { color: #818b98; font-style: italic; }
@media print { body { margin: 0; font-size: 10px; } thead { display: table-header-group; } tr { break-inside: avoid; }
th { position: static; } @page { margin: 12mm; } }
";

/// Writer of an HTML file.
pub(super) struct Writer {
    out: BufWriter<PartFile>,
    kinds: Vec<ColumnKind>,
    rows: u64,
}

impl Writer {
    pub(super) fn begin(file: PartFile, columns: &[Column], heading: Heading) -> Result<Self, WriteError> {
        let Heading { title, query, made_at } = heading;
        let head = html! {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="referrer" content="no-referrer";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
        };
        let top = html! {
            h1 { (title) }
            p { "Query " (query) ", made " (made_at.to_rfc3339_opts(SecondsFormat::Secs, true)) }
        };
        let header = html! {
            thead { tr { @for Column { name, kind } in columns { th scope="col" class=[class(*kind)] { (name) } } } }
        };
        let mut out = BufWriter::new(file);
        // maud writes complete elements, but the rows of these elements come later.
        writeln!(out, "{}<html lang=\"en\">{}<body>{}<table>{}<tbody>", DOCTYPE.0, head.0, top.0, header.0)?;
        Ok(Self { out, kinds: columns.iter().map(|column| column.kind).collect(), rows: 0 })
    }
}

impl TableWriter for Writer {
    fn row(&mut self, row: &[Cell]) -> Result<(), WriteError> {
        self.rows += 1;
        let cells = self.kinds.iter().zip(row);
        let row = html! {
            tr {
                @for (kind, cell) in cells {
                    @if *cell == Cell::Null {
                        td class="null" { "NULL" }
                    } @else {
                        td class=[class(*kind)] { (cell.text()) }
                    }
                }
            }
        };
        Ok(writeln!(self.out, "{}", row.0)?)
    }

    fn bytes(&self) -> u64 {
        self.out.get_ref().bytes()
    }

    fn finish(mut self: Box<Self>) -> Result<(PartFile, u64), WriteError> {
        let rows = self.rows;
        let count = html! { p { (rows) @if rows == 1 { " row" } @else { " rows" } } };
        writeln!(self.out, "</tbody></table>{}</body></html>", count.0)?;
        let file = self.out.into_inner().map_err(|error| WriteError::Io(error.into_error()))?;
        Ok((file, 0))
    }
}

/// Class of a column. Numbers are aligned to the right. Numbers and times are not broken over lines.
fn class(kind: ColumnKind) -> Option<&'static str> {
    match kind {
        ColumnKind::Integer | ColumnKind::Float | ColumnKind::Decimal => Some("n"),
        ColumnKind::Date | ColumnKind::Time | ColumnKind::DateTime | ColumnKind::Timestamp => Some("t"),
        ColumnKind::Bool | ColumnKind::Text | ColumnKind::Json | ColumnKind::Bytes => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::super::testing::{column, every_cell, render, render_as};
    use super::*;

    #[test]
    fn every_text_is_escaped() {
        let attack = "<script>alert(1)</script>\" onload='x' & </title></style>";
        let columns = [column(attack, ColumnKind::Text)];
        let bytes = render_as(attack, Format::Html, &columns, vec![vec![Cell::Text(attack.into())]]);
        let page = String::from_utf8(bytes).unwrap();
        assert!(!page.contains("<script"), "{page}");
        assert_eq!(page.matches("&lt;script&gt;alert(1)").count(), 4, "title, headline, column, cell");
        assert_eq!(page.matches("</style>").count(), 1);
        assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("src="));
    }

    #[test]
    fn a_page_is_complete() {
        let (columns, row) = every_cell();
        let page = String::from_utf8(render(Format::Html, &columns, vec![row])).unwrap();
        assert!(page.starts_with("<!DOCTYPE html><html"), "{page}");
        assert!(
            page.contains("<td class=\"null\">NULL</td>") && page.contains("<td class=\"n\">18446744073709551615</td>")
        );
        assert!(page.contains("<p>1 row</p>") && page.trim_end().ends_with("</html>"));
    }
}
