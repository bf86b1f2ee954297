//! Output of the commands: tables for operators, and texts and numbers read from JSON.

use std::io::IsTerminal as _;

use comfy_table::{ColumnConstraint, Table, Width, presets};
use serde_json::Value;
use tickr::job::is_terminal_control;

use crate::json::Json;

/// Make a table without borders, which is easy to grep and to copy.
pub(crate) fn table<'h>(header: impl IntoIterator<Item = &'h str>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    table
}

/// Percent-encode a part of a path. Ids and names contain plain characters only. Every other text must reach the API
/// unchanged, so that the API refuses it, and must not lead to another path.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Read a text field. It is empty when the field is missing or null.
pub(crate) fn text(value: &Value, field: &str) -> String {
    value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Read a number field. It is 0 when the field is missing.
pub(crate) fn number(value: &Value, field: &str) -> u64 {
    value.get(field).and_then(Value::as_u64).unwrap_or_default()
}

/// Put a text on one line, without control characters and marks of writing direction. For texts from producers and
/// handlers.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if is_terminal_control(c) { ' ' } else { c }).collect()
}

/// Write out every character that could control a terminal or reverse the direction of a line. JSON keeps its meaning:
/// such characters occur only within its strings, where the escape stands for the same character.
pub(crate) fn harmless(text: String) -> String {
    let written_out = |c: char| is_terminal_control(c) && !matches!(c, '\n' | '\t');
    if !text.contains(written_out) {
        return text;
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if written_out(c) {
            safe.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            safe.push(c);
        }
    }
    safe
}

// These macros have the names of those in the standard library, so that no command can print without the protection.
// Much of the printed text comes from producers, handlers and the services that they called.
macro_rules! print {
    ($($said:tt)*) => { ::std::print!("{}", $crate::print::harmless(::std::format!($($said)*))) };
}
macro_rules! println {
    () => { ::std::println!() };
    ($($said:tt)*) => { ::std::println!("{}", $crate::print::harmless(::std::format!($($said)*))) };
}
// The macro of the standard library panics when standard error is closed or its disk is full. That would change the
// exit code, and end a command whose output can still be written.
macro_rules! eprintln {
    ($($said:tt)*) => {{
        let said = $crate::print::harmless(::std::format!($($said)*));
        let _ = ::std::io::Write::write_fmt(&mut ::std::io::stderr(), ::std::format_args!("{said}\n"));
    }};
}

/// The blanks on both sides of what is in a column of a table.
const PADDING: u16 = 2;

/// A list that is printed page by page, so that a long one does not fill the memory.
pub(crate) struct Listing {
    header: &'static [&'static str],
    as_json: bool,
    /// The widths of the columns so far. Empty before the first page.
    widths: Vec<u16>,
    /// True once a row was printed as JSON.
    has_rows: bool,
}

impl Listing {
    pub(crate) fn new(header: &'static [&'static str], as_json: bool) -> Self {
        Self { header, as_json, widths: Vec::new(), has_rows: false }
    }

    /// Print the rows of a page, in a table or as JSON. No column is narrower than on the pages before.
    pub(crate) fn print_page(&mut self, rows: &[Json], cells: impl Fn(&Value) -> Vec<String>) {
        if self.as_json {
            for row in rows {
                let row = format!("{row:#}").replace('\n', "\n  ");
                print!("{}\n  {row}", if self.has_rows { "," } else { "[" });
                self.has_rows = true;
            }
            return;
        }
        let is_first = self.widths.is_empty();
        if rows.is_empty() && !is_first {
            return;
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        if is_first {
            table.set_header(self.header.iter().copied());
        }
        table.add_rows(rows.iter().map(|row| cells(row)));
        for (at, width) in self.widths.iter().enumerate() {
            if let Some(column) = table.column_mut(at) {
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width.saturating_add(PADDING))));
            }
        }
        println!("{table}");
        let before = std::mem::replace(&mut self.widths, table.column_max_content_widths());
        for (width, before) in self.widths.iter_mut().zip(before) {
            *width = before.max(*width);
        }
    }

    /// End the list.
    pub(crate) fn end(self) {
        if self.as_json {
            println!("{}", if self.has_rows { "\n]" } else { "[]" });
        }
    }
}

/// The first characters of a text, so that a table fits the terminal. Output to a pipe or a file keeps the whole text.
pub(crate) fn brief(text: &str, most: usize) -> String {
    let text = printable(text);
    if std::io::stdout().is_terminal() { text.chars().take(most).collect() } else { text }
}

/// A duration in readable units.
pub(crate) fn duration_text(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{ms} ms"),
        10_000..120_000 => format!("{} s", ms / 1_000),
        120_000..7_200_000 => format!("{} m", ms / 60_000),
        _ => format!("{} h", ms / 3_600_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_steers_nothing_and_json_stays_the_same_json() {
        let odd = "a\u{9b}2J\u{1b}]0;x\u{7}b\u{202e}c\u{2066}d\u{200f}e\u{2028}f\u{feff}\tg\r\nä🦀";
        let value = serde_json::json!({"payload": odd, "n": [1, null]});
        for text in [format!("{value}"), format!("{value:#}"), odd.to_owned()] {
            let safe = harmless(text.clone());
            assert!(!safe.contains(|c: char| is_terminal_control(c) && !matches!(c, '\n' | '\t')), "{safe:?}");
            if text != odd {
                assert_eq!(serde_json::from_str::<Value>(&safe).unwrap(), value);
            }
        }
        assert!(harmless(odd.to_owned()).starts_with("a\\u009b2J\\u001b]0;x\\u0007b\\u202ec"));
        assert!(!printable(odd).contains(is_terminal_control));
        assert_eq!(harmless("plain\n\tä🦀".to_owned()), "plain\n\tä🦀");
    }
}
