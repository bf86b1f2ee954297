//! The flags of a canary, and its progress as a line: `tickr dead-letters release` and `tickr operations`.

use clap::{Arg, ArgAction, ArgMatches, value_parser};
use serde_json::{Map, Value, json};

use crate::print::{number, text};

/// The arguments of commands that may release dead letters as a canary.
pub(crate) fn args() -> [Arg; 4] {
    [
        Arg::new("canary")
            .long("canary")
            .action(ArgAction::SetTrue)
            .conflicts_with("rate")
            .help("Release in steps of rising rates, and stop when too many of the released jobs fail again"),
        Arg::new("step")
            .long("step")
            .value_name("RATE[:JOBS]")
            .action(ArgAction::Append)
            .value_parser(step)
            .requires("canary")
            .help(
                "A step: jobs per second, and how many jobs; the last one releases the rest [default: 5, 20 and 100]",
            ),
        Arg::new("max-failure-pct")
            .long("max-failure-pct")
            .value_name("N")
            .value_parser(value_parser!(u8).range(0..=100))
            .requires("canary")
            .help("Stop when more than this percentage of a step fails again [default: 20]"),
        Arg::new("min-outcomes")
            .long("min-outcomes")
            .value_name("N")
            .value_parser(value_parser!(u32))
            .requires("canary")
            .help("Outcomes from which on the percentage counts [default: 5]"),
    ]
}

/// Read a step: `5:50` or `100`.
fn step(text: &str) -> Result<Value, String> {
    let (rate, jobs) = match text.split_once(':') {
        Some((rate, jobs)) => (rate, Some(jobs)),
        None => (text, None),
    };
    let number = |text: &str| text.parse::<u32>().map_err(|_| format!("{text:?} is no number of jobs"));
    let mut step = Map::new();
    step.insert("rate".to_owned(), json!(number(rate)?));
    if let Some(jobs) = jobs {
        step.insert("jobs".to_owned(), json!(number(jobs)?));
    }
    Ok(Value::Object(step))
}

/// Return the canary that the flags ask for, as the API wants it.
pub(crate) fn given(matches: &ArgMatches) -> Option<Value> {
    if !matches.get_flag("canary") {
        return None;
    }
    let mut canary = Map::new();
    if let Some(steps) = matches.get_many::<Value>("step") {
        canary.insert("steps".to_owned(), steps.cloned().collect());
    }
    if let Some(pct) = matches.get_one::<u8>("max-failure-pct") {
        canary.insert("max_failure_pct".to_owned(), json!(pct));
    }
    if let Some(outcomes) = matches.get_one::<u32>("min-outcomes") {
        canary.insert("min_outcomes".to_owned(), json!(outcomes));
    }
    Some(Value::Object(canary))
}

/// Say how far the canary of an operation is: `step 2 of 3: 40 passed, 1 failed again, 9 waiting`.
pub(crate) fn progress(operation: &Value) -> Option<String> {
    let canary = operation.get("canary").filter(|canary| canary.is_object())?;
    let steps = canary.get("steps").and_then(Value::as_array).map_or(0, Vec::len);
    let outcomes = canary.get("outcomes").unwrap_or(&Value::Null);
    let failed = number(outcomes, "failed") + number(outcomes, "retrying");
    let paused = if text(operation, "paused_at").is_empty() { "" } else { ", paused" };
    Some(format!(
        "step {} of {steps}: {} passed, {failed} failed again, {} waiting{paused}",
        number(canary, "step"),
        number(outcomes, "passed"),
        number(outcomes, "waiting"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_a_rate_and_perhaps_a_number_of_jobs() {
        assert_eq!(step("5:50"), Ok(json!({"rate": 5, "jobs": 50})));
        assert_eq!(step("100"), Ok(json!({"rate": 100})));
        for wrong in ["", "5:", ":5", "fast", "5:50:1", "-1"] {
            assert!(step(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_progress_of_a_canary_counts_failed_attempts_as_failures() {
        let outcomes = json!({"passed": 40, "failed": 1, "retrying": 2, "waiting": 9, "cancelled": 0});
        let mut operation = json!({"canary": {"step": 2, "steps": [{}, {}, {}], "outcomes": outcomes}});
        assert_eq!(progress(&operation).unwrap(), "step 2 of 3: 40 passed, 3 failed again, 9 waiting");
        operation["paused_at"] = json!("2026-11-27T00:00:00Z");
        assert_eq!(progress(&operation).unwrap(), "step 2 of 3: 40 passed, 3 failed again, 9 waiting, paused");
        assert_eq!(progress(&json!({"canary": null})), None);
    }
}
