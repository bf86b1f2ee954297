//! What the commands print: tables for people, and words out of JSON.

use std::io::IsTerminal as _;

use comfy_table::{Table, presets};
use serde_json::Value;
use tickr::job::steers;

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

/// On one line, without control characters and marks of writing direction: for what others have written.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if steers(c) { ' ' } else { c }).collect()
}

/// What is about to be printed, with every character written out that steers a terminal or turns a line around. Within JSON
/// that is the same text in other words: there such characters stand in strings alone.
pub(crate) fn harmless(text: String) -> String {
    let written_out = |c: char| steers(c) && !matches!(c, '\n' | '\t');
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

// The macros of the standard library under their own names, so that no command can forget it: much of what is printed came
// from producers, handlers and the services that they called.
macro_rules! print {
    ($($said:tt)*) => { ::std::print!("{}", $crate::print::harmless(::std::format!($($said)*))) };
}
macro_rules! println {
    () => { ::std::println!() };
    ($($said:tt)*) => { ::std::println!("{}", $crate::print::harmless(::std::format!($($said)*))) };
}
macro_rules! eprintln {
    ($($said:tt)*) => { ::std::eprintln!("{}", $crate::print::harmless(::std::format!($($said)*))) };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_steers_nothing_and_json_stays_the_same_json() {
        let odd = "a\u{9b}2J\u{1b}]0;x\u{7}b\u{202e}c\u{2066}d\u{200f}e\u{2028}f\u{feff}\tg\r\nä🦀";
        let value = serde_json::json!({"payload": odd, "n": [1, null]});
        for text in [format!("{value}"), format!("{value:#}"), odd.to_owned()] {
            let safe = harmless(text.clone());
            assert!(!safe.contains(|c: char| steers(c) && !matches!(c, '\n' | '\t')), "{safe:?}");
            if text != odd {
                assert_eq!(serde_json::from_str::<Value>(&safe).unwrap(), value);
            }
        }
        assert!(harmless(odd.to_owned()).starts_with("a\\u009b2J\\u001b]0;x\\u0007b\\u202ec"));
        assert!(!printable(odd).contains(steers));
        assert_eq!(harmless("plain\n\tä🦀".to_owned()), "plain\n\tä🦀");
    }
}
