//! The printed tables.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::bench::{Bench, Row, Sample};

impl Bench {
    /// Print a comparison as Markdown and remove its samples.
    pub(crate) fn report(&mut self, title: &str, phases: &[&'static str]) {
        let samples = std::mem::take(&mut self.samples);
        let scans: BTreeSet<&'static str> = samples
            .iter()
            .flat_map(|(_, phases)| phases.keys())
            .copied()
            .filter(|phase| phase.starts_with("due scan"))
            .collect();
        println!("\n## {title}\n");
        let rate = |sample: &Sample| Some(sample.figure);
        print_table("jobs/s, median (lowest–highest)", &samples, phases, 0, rate);
        print_table("server CPU, µs for each job", &samples, phases, 1, |sample| sample.server_cpu_us);
        print_table("redo, bytes for each job", &samples, phases, 0, |sample| sample.redo_bytes);
        print_table("due scan, ms", &samples, &scans.into_iter().collect::<Vec<_>>(), 2, rate);
        let mut deadlocks = String::new();
        for (row, phases) in &samples {
            let sum: u64 = phases.values().flatten().map(|sample| sample.deadlocks).sum();
            if sum > 0 {
                let _ = write!(deadlocks, " {row}: {sum}");
            }
        }
        println!("deadlocks:{}", if deadlocks.is_empty() { " none" } else { &deadlocks });
    }
}

/// Print one figure of all samples, with one line for each row of the comparison.
fn print_table(
    figure: &str,
    samples: &[Row],
    phases: &[&'static str],
    decimals: usize,
    pick: impl Fn(&Sample) -> Option<f64>,
) {
    if phases.is_empty() {
        return;
    }
    println!("| {figure} | {} |", phases.join(" | "));
    println!("|---|{}", "---|".repeat(phases.len()));
    for (row, by_phase) in samples.iter().filter(|(row, _)| row.as_str() != "loading") {
        let cells: Vec<_> = phases
            .iter()
            .map(|phase| {
                let mut values: Vec<_> = by_phase.get(phase).into_iter().flatten().filter_map(&pick).collect();
                values.sort_by(f64::total_cmp);
                match (values.first(), values.get(values.len() / 2), values.last()) {
                    (Some(&low), Some(&median), Some(&high)) => {
                        let show = |value| thousands(value, decimals);
                        format!("{} ({}–{})", show(median), show(low), show(high))
                    }
                    _ => "–".to_owned(),
                }
            })
            .collect();
        println!("| {row} | {} |", cells.join(" | "));
    }
    println!();
}

/// Format a figure with a comma between thousands.
fn thousands(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (n, digit) in whole.chars().enumerate() {
        if n > 0 && (whole.len() - n).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + fraction
}
