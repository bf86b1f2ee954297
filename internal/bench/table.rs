//! The result of a bench as text.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

use super::Report;
use super::figure::{Figure, TargetOf, TargetSide};
use super::result_row::{ResultRow, TargetResult};

/// Format the report: a header, a table with one row per figure, and notes.
#[must_use]
pub fn table(report: &Report) -> String {
    let mut text = header(report);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["", "MEDIAN", "RANGE", "BARE", "RATIO", "AIM", "JOBS", "ONCE", "DEADLOCKS"]);
    for line in &report.lines {
        table.add_row(row(line));
    }
    for column in [1, 2, 3, 4, 6, 8] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let _ = writeln!(text, "\n{table}\n");
    let _ = writeln!(
        text,
        "BARE is the bare store on the same servers in the same run: the same rows in full batches, without a runner.\n\
         ONCE means that every job completed exactly once, or waits exactly once if it was not to run."
    );
    text
}

fn header(report: &Report) -> String {
    let (machine, servers) = (&report.machine, &report.servers);
    let mut text = format!(
        "tickr {} ({} build) on {}, {} cores · MySQL {} · Redis {}\n",
        machine.version, machine.build, machine.system, machine.cores, servers.mysql, servers.redis
    );
    let settings = &report.settings;
    let _ = writeln!(
        text,
        "{} of each, payload {} bytes, {} workers, {} callers, {} connections",
        if settings.repeat == 1 { "1 run".to_owned() } else { format!("{} runs", settings.repeat) },
        settings.payload_bytes,
        settings.workers,
        settings.callers,
        settings.connections
    );
    if servers.durable {
        text.push_str("every acknowledged commit is synced to disk\n");
    } else {
        let _ = writeln!(text, "commits are NOT synced to disk ({}): do not compare", servers.weaknesses.join("; "));
    }
    if settings.commit_delay_ms > 0 {
        let _ = writeln!(text, "MySQL holds each group of commits for {} ms", settings.commit_delay_ms);
    }
    if machine.build != "release" {
        text.push_str("this is not a release build: the figures say nothing about speed\n");
    }
    text
}

fn row(line: &ResultRow) -> [String; 9] {
    let dash = || "–".to_owned();
    [
        line.name.clone(),
        format!("{} {}", number(line.figure.median), line.unit).trim().to_owned(),
        range(&line.figure),
        line.bare.as_ref().map_or_else(dash, |bare| number(bare.median)),
        line.ratio.map_or_else(dash, |ratio| format!("{ratio:.2}")),
        line.aims.iter().map(aim).collect::<Vec<_>>().join("  "),
        line.jobs.to_string(),
        if line.exactly_once { "✓".to_owned() } else { "✗".to_owned() },
        line.deadlocks.map_or_else(|| "?".to_owned(), |count| count.to_string()),
    ]
}

fn aim(aim: &TargetResult) -> String {
    let sign = match aim.aim.side {
        TargetSide::AtLeast => "≥",
        TargetSide::AtMost => "≤",
    };
    let of = match aim.aim.of {
        TargetOf::Median => "",
        TargetOf::Ratio => " of bare",
    };
    let mark = match aim.met {
        Some(true) => " ✓",
        Some(false) => " ✗",
        None => "",
    };
    format!("{sign} {}{of}{mark}", number(aim.aim.bound))
}

fn range(figure: &Figure) -> String {
    if figure.samples.len() < 2 { "–".to_owned() } else { format!("{}–{}", number(figure.min), number(figure.max)) }
}

/// Format a number: large ones without decimals and with commas between thousands, small ones with up to two decimals.
fn number(value: f64) -> String {
    if value.abs() < 100.0 {
        let text = format!("{value:.2}");
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{BenchSettings, Scenario, ServerFacts, Target};

    #[test]
    fn numbers_are_for_reading() {
        for (value, text) in [
            (0.0, "0"),
            (0.6, "0.6"),
            (1.234, "1.23"),
            (25.0, "25"),
            (100.4, "100"),
            (1_000.0, "1,000"),
            (30_000.0, "30,000"),
            (1_234_567.8, "1,234,568"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn aims_say_what_they_are_about() {
        let met = |aim, met| super::aim(&TargetResult { aim, met });
        assert_eq!(met(Target::at_least(30_000.0), Some(true)), "≥ 30,000 ✓");
        assert_eq!(met(Target::relative_to_bare(0.6), Some(false)), "≥ 0.6 of bare ✗");
        assert_eq!(met(Target::at_most(1.5), None), "≤ 1.5");
        assert_eq!(met(Target::at_most_of_bare(2.0), Some(true)), "≤ 2 of bare ✓");
    }

    #[test]
    fn the_head_names_a_delay_of_commits_if_there_is_one() {
        let head = |commit_delay_ms| {
            let settings = BenchSettings {
                scenarios: vec![Scenario::Drain],
                repeat: 1,
                jobs: None,
                short: true,
                payload_bytes: 200,
                callers: 1,
                connections: 1,
                workers: 1,
                commit_delay_ms,
                program: "tickr".into(),
            };
            let servers = ServerFacts {
                name: "tickr_bench_0".to_owned(),
                mysql: "10.11".to_owned(),
                redis: "7.0".to_owned(),
                durable: true,
                weaknesses: Vec::new(),
            };
            header(&Report::new(settings, servers, Vec::new()))
        };
        assert!(head(20).contains("\nMySQL holds each group of commits for 20 ms\n"), "{}", head(20));
        assert!(!head(0).contains("holds"), "{}", head(0));
    }

    #[test]
    fn a_range_takes_two() {
        assert_eq!(range(&Figure::from_samples(vec![1.0])), "–");
        assert_eq!(range(&Figure::from_samples(vec![2_000.0, 1_000.0])), "1,000–2,000");
    }
}
