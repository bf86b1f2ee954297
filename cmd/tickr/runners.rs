//! `tickr runners` and `tickr runners drain|resume`: list the runners, and choose which of them take new work, through
//! the API.

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};

use crate::CommandResult;
use crate::client::{self, Client};
use crate::print::{duration_text, encoded, number, printable, table, text};

pub(crate) fn command() -> Command {
    let flag = |name: &'static str, help: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    let id =
        || Arg::new("id").required(true).value_name("RUNNER").help("The runner's id, as listed by `tickr runners`");
    let reason = Arg::new("reason").long("reason").value_name("TEXT").help("Reason, shown to other operators");
    let verb = |word: &'static str, about: &'static str| {
        client::args(Command::new(word).about(about).arg(id()).arg(flag("json", "Print JSON")))
    };
    client::args(
        Command::new("runners")
            .about("List the runners: their queues and kinds, busy workers and last heartbeats")
            .long_about(
                "List the runners, newest first. A runner is `silent` when its last heartbeat is older than its lease: \
                 other runners take over its jobs, and soon after it counts as stopped.",
            )
            .arg(flag("all", "Include runners that stopped or were found dead, up to 200 runners in all"))
            .arg(flag("json", "Print JSON"))
            .args_conflicts_with_subcommands(true)
            .subcommand(
                verb("drain", "Drain a runner: within 2 s it takes no new work, and it finishes its running jobs")
                    .arg(reason),
            )
            .subcommand(verb("resume", "Let a drained runner take new work again")),
    )
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    if let Some((verb, matches)) = matches.subcommand() {
        return switch(verb, matches);
    }
    let client = Client::from_matches(matches)?;
    let mut answer = crate::run_to_end(client.get("/v1/runners"))??.into_value();
    let mut runners = match answer.get_mut("data").map(Value::take) {
        Some(Value::Array(runners)) => runners,
        _ => Vec::new(),
    };
    if !matches.get_flag("all") {
        runners.retain(|runner| state(runner) != "stopped");
    }
    if matches.get_flag("json") {
        println!("{:#}", Value::Array(runners));
    } else {
        print(&runners);
    }
    Ok(())
}

/// Drain or resume one runner.
fn switch(verb: &str, matches: &ArgMatches) -> CommandResult {
    let client = Client::from_matches(matches)?;
    let id = encoded(matches.get_one::<String>("id").map_or("", String::as_str));
    let reason = matches.try_get_one::<String>("reason").ok().flatten();
    let body = reason.map_or_else(|| json!({}), |reason| json!({"reason": reason}));
    let runner = crate::run_to_end(client.post(&format!("/v1/runners/{id}/{verb}"), &body, None))??;
    if matches.get_flag("json") {
        println!("{runner:#}");
    } else {
        print(&[runner.into_value()]);
    }
    Ok(())
}

/// The state of a runner, in one word.
pub(crate) fn state(runner: &Value) -> &'static str {
    if runner.get("stopped_at").is_some_and(|at| !at.is_null()) {
        return "stopped";
    }
    if number(runner, "heartbeat_age_ms") > number(runner, "lease_ms") {
        return "silent";
    }
    if runner.get("draining").is_some_and(|drain| !drain.is_null()) { "draining" } else { "running" }
}

fn print(runners: &[Value]) {
    let mut table = table(["RUNNER", "VERSION", "STATE", "BUSY WORKERS", "HEARTBEAT", "STARTED", "QUEUES", "KINDS"]);
    for runner in runners {
        let names = |field: &str| {
            let names = runner.get(field).and_then(Value::as_array).into_iter().flatten();
            printable(&names.filter_map(Value::as_str).collect::<Vec<_>>().join(","))
        };
        table.add_row([
            printable(&text(runner, "id")),
            printable(&text(runner, "version")),
            state(runner).to_owned(),
            format!("{}/{}", number(runner, "busy_workers"), number(runner, "workers")),
            format!("{} ago", duration_text(number(runner, "heartbeat_age_ms"))),
            text(runner, "started_at"),
            names("queues"),
            names("kinds"),
        ]);
    }
    println!("{table}");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_runner_is_silent_when_its_leases_have_ended() {
        let runner =
            |age: u64, stopped: Value| json!({"heartbeat_age_ms": age, "lease_ms": 300, "stopped_at": stopped});
        assert_eq!(state(&runner(300, Value::Null)), "running");
        assert_eq!(state(&runner(301, Value::Null)), "silent");
        assert_eq!(state(&runner(0, json!("2026-01-01T00:00:00.000Z"))), "stopped");
    }
}
