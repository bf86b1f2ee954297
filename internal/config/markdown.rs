//! The configuration table of the documentation, made from the same tables as the parsers.

use std::fmt::Write as _;

use super::alerts::{ALERTS, THRESHOLD};
use super::compat::{DELAYED, LATER};
use super::kinds::KINDS;
use super::outboxes::OUTBOX;
use super::param_draft::PARAM;
use super::reports::{QUERY, REPORTS};
use super::schedules::SCHEDULES;
use super::setting::{Secrecy, Setting, Shape};
use super::settings::SETTINGS;
use super::smtp::SMTP;

/// Return every setting as Markdown: one table for flags, environment and file, and one for each section of the file.
pub fn markdown_table() -> String {
    let mut out = String::from("| Setting | Flag | Environment | Default | Meaning |\n|---|---|---|---|---|\n");
    for setting in SETTINGS {
        let with_value = |flag| match setting.shape {
            Shape::Switch => flag,
            Shape::One | Shape::List | Shape::Pairs => format!("{flag} {}", setting.value),
        };
        let flag = code(setting.flag().map(with_value).as_deref());
        let env = code(setting.env("").as_deref());
        // Writing to a String cannot fail.
        let _ =
            writeln!(out, "| `{}` | {flag} | {env} | {} | {} |", setting.name, code(setting.default), meaning(setting));
    }
    section(&mut out, "smtp", "[smtp]", SMTP);
    section(&mut out, "kinds", "[kinds.<kind>]", KINDS);
    section(&mut out, "alerts", "[alerts]", ALERTS);
    section(&mut out, "", "[alerts.kinds.<kind>]", THRESHOLD);
    section(&mut out, "reports", "[reports]", REPORTS);
    section(&mut out, "", "[reports.queries.<name>]", QUERY);
    section(&mut out, "", "[[reports.queries.<name>.params]]", PARAM);
    section(&mut out, "", "[schedules.<name>]", SCHEDULES);
    section(&mut out, "outboxes.<name>", "[outboxes.<name>]", OUTBOX);
    section(&mut out, "compat.delayed", "[compat.delayed]", DELAYED);
    section(&mut out, "compat.later", "[compat.later]", LATER);
    out
}

fn section<T>(out: &mut String, name: &str, heading: &str, settings: &[Setting<T>]) {
    let _ = write!(out, "\n`{heading}`\n\n| Key | Value | Default | Meaning |\n|---|---|---|---|\n");
    for setting in settings {
        let env = setting.env(name).map(|env| format!("; also `{env}`")).unwrap_or_default();
        let default = code(setting.default);
        let _ = writeln!(out, "| `{}` | {} | {default} | {}{env} |", setting.name, setting.value, meaning(setting));
    }
}

fn code(text: Option<&str>) -> String {
    text.map(|text| format!("`{text}`")).unwrap_or_default()
}

fn meaning<T>(setting: &Setting<T>) -> String {
    let secret = if setting.secrecy == Secrecy::Public { "" } else { " (secret)" };
    format!("{}{secret}", setting.doc.replace('|', "\\|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_a_row_of_the_right_width() {
        let table = markdown_table();
        for setting in SETTINGS {
            let row = table.lines().find(|line| line.starts_with(&format!("| `{}` |", setting.name))).unwrap();
            assert_eq!(row.matches(" |").count(), 5, "{row}");
            assert!(row.contains(&setting.env("").unwrap()) && row.contains(setting.default.unwrap_or("")), "{row}");
        }
        assert!(table.contains("| `lease` | `--lease DURATION` | `TICKR_LEASE` | `30s` | Time after"));
        assert!(table.contains("also `TICKR_SMTP_PASSWORD`") && table.contains("`[[reports.queries.<name>.params]]`"));
    }
}
