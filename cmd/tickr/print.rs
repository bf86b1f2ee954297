//! What the commands print: tables for people, and words out of JSON.

use std::io::IsTerminal as _;

use comfy_table::{Table, presets};
use serde_json::Value;

/// A table without lines, which greps and copies well.
pub(crate) fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    table
}

/// Percent-encoded. Ids and names are plain; anything else must reach the API as it is, to be refused there, and must
/// not lead to another path.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// A text field; empty when it is missing or null.
pub(crate) fn text(value: &Value, field: &str) -> String {
    value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// A number field; 0 when it is missing.
pub(crate) fn number(value: &Value, field: &str) -> u64 {
    value.get(field).and_then(Value::as_u64).unwrap_or_default()
}

/// Without control characters: an error text must not be able to steer the terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The beginning of a text, where a table would not fit the terminal otherwise. What is piped elsewhere is whole.
pub(crate) fn brief(text: &str, most: usize) -> String {
    let text = printable(text);
    if std::io::stdout().is_terminal() { text.chars().take(most).collect() } else { text }
}

/// A duration as people say it.
pub(crate) fn said(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{ms} ms"),
        10_000..120_000 => format!("{} s", ms / 1_000),
        120_000..7_200_000 => format!("{} m", ms / 60_000),
        _ => format!("{} h", ms / 3_600_000),
    }
}
