//! `tickr queues list|show|pause|resume|set`: settings of queues, through the API.

use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::{Map, Value, json};

use crate::client::{self, Client};
use crate::print::{encoded, number, printable, table, text};
use crate::{CommandResult, WrongUsage};

/// The states whose jobs the API counts up to a bound.
const UNFINISHED: [&str; 3] = ["waiting", "retrying", "executing"];
/// Longest time that a change of a queue waits until tickr says whether the queue is known.
const CHECK_LIMIT: Duration = Duration::from_secs(5);

pub(crate) fn command() -> Command {
    let json = || Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON");
    let name = || Arg::new("name").required(true).value_name("QUEUE").help("The queue");
    let reason = Arg::new("reason").long("reason").value_name("TEXT").help("Reason, shown to other operators");
    let create = || {
        Arg::new("create")
            .long("create")
            .action(ArgAction::SetTrue)
            .help("Allow a queue that no job and no runner has named yet")
    };
    let priority = Arg::new("priority").long("priority").value_name("0-9").value_parser(value_parser!(u8).range(0..=9));
    let limit = Arg::new("concurrency").long("concurrency").value_name("N|none");
    let verb =
        |word: &'static str, about: &'static str| client::args(Command::new(word).about(about).arg(name()).arg(json()));
    Command::new("queues")
        .about("List, pause, prioritise and limit queues")
        .subcommand_required(true)
        .subcommand(client::args(Command::new("list").about("List the queues").arg(json())))
        .subcommand(verb("show", "Show a queue"))
        .subcommand(
            verb("pause", "Pause a queue: within 2 s no runner starts its jobs; running jobs finish")
                .arg(reason)
                .arg(create()),
        )
        .subcommand(verb("resume", "Resume a paused queue"))
        .subcommand(
            verb("set", "Set the priority and the concurrency limit of a queue")
                .arg(priority.help("0 is served first, 9 last; 5 for a queue without this setting"))
                .arg(limit.help("Most jobs that may run at the same time on all runners together; `none` for no limit"))
                .arg(create())
                .arg_required_else_help(true),
        )
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let Some((verb, matches)) = matches.subcommand() else { return Ok(()) };
    let client = Client::from_matches(matches)?;
    let as_json = matches.get_flag("json");
    // Before any request, so that wrong usage is told as such also when no server answers.
    let change = (verb == "set").then(|| changes(matches)).transpose()?;
    crate::run_to_end(async {
        if verb == "list" {
            let answer = client.get("/v1/queues").await?;
            if as_json {
                println!("{answer:#}");
            } else {
                list(&answer);
            }
            return Ok(());
        }
        let name = matches.get_one::<String>("name").map_or("", String::as_str);
        if ["pause", "set"].contains(&verb) && !matches.get_flag("create") {
            known(&client, name).await?;
        }
        let path = format!("/v1/queues/{}", encoded(name));
        let queue = match verb {
            "show" => client.get(&path).await?,
            "pause" => {
                let reason = matches.get_one::<String>("reason");
                client.post(&format!("{path}/pause"), &json!({"reason": reason}), None).await?
            }
            "resume" => client.post(&format!("{path}/resume"), &json!({}), None).await?,
            _ => client.patch(&path, &change.unwrap_or_default()).await?,
        };
        if as_json {
            println!("{queue:#}");
        } else {
            show(&queue);
        }
        Ok(())
    })?
}

/// Refuse the name of a queue that no job, no runner and no setting has. It is most likely a typing error, and would
/// show up as a paused queue. A server that is too busy to say so must not keep an operator from pausing a queue.
async fn known(client: &Client, name: &str) -> anyhow::Result<()> {
    let path = format!("/v1/queues/{}", encoded(name));
    let asked = tokio::time::timeout(CHECK_LIMIT, client.get(&path)).await;
    if !matches!(&asked, Ok(Err(error)) if client::is_not_found(error)) {
        return Ok(());
    }
    let listed = tokio::time::timeout(CHECK_LIMIT, client.get("/v1/queues")).await;
    let queues = listed.ok().and_then(Result::ok).map(|answer| answer.rows("data")).unwrap_or_default();
    let few = queues.iter().take(20).map(|queue| printable(&text(queue, "name"))).collect::<Vec<_>>().join(", ");
    anyhow::bail!(
        "there is no queue {}; known queues: {few}. To set a queue before its first job, repeat with --create",
        printable(name)
    )
}

fn changes(matches: &ArgMatches) -> Result<Value, WrongUsage> {
    let mut changes = Map::new();
    if let Some(priority) = matches.get_one::<u8>("priority") {
        changes.insert("priority".into(), (*priority).into());
    }
    match matches.get_one::<String>("concurrency").map(String::as_str) {
        None => {}
        Some("none") => drop(changes.insert("concurrency".into(), Value::Null)),
        Some(limit) => {
            let limit: u32 =
                limit.parse().map_err(|_| WrongUsage("--concurrency must be a number or `none`".into()))?;
            changes.insert("concurrency".into(), limit.into());
        }
    }
    Ok(changes.into())
}

fn list(answer: &Value) {
    let mut table = table([
        "QUEUE",
        "PRIORITY",
        "LIMIT",
        "WAITING",
        "RETRYING",
        "EXECUTING",
        "OPEN",
        "FAILED",
        "RUNNERS",
        "PAUSED",
    ]);
    for queue in answer.get("data").and_then(Value::as_array).into_iter().flatten() {
        let [waiting, retrying, executing] = UNFINISHED.map(|state| jobs_in(queue, state));
        // A runner of an older version does not say it.
        let capped = queue.get("open_dead_letters_exact") == Some(&Value::Bool(false));
        let plus = if capped { "+" } else { "" };
        table.add_row([
            text(queue, "name"),
            number(queue, "priority").to_string(),
            limit(queue),
            waiting,
            retrying,
            executing,
            format!("{}{plus}", number(queue, "open_dead_letters")),
            jobs_in(queue, "failed"),
            number(queue, "runners").to_string(),
            paused(queue),
        ]);
    }
    println!("{table}");
}

fn show(queue: &Value) {
    for (name, value) in [
        ("queue", text(queue, "name")),
        ("priority", number(queue, "priority").to_string()),
        ("limit", limit(queue)),
        ("paused", paused(queue)),
        ("runners", number(queue, "runners").to_string()),
    ] {
        println!("{name:<12} {value}");
    }
    let states = queue.get("states").and_then(Value::as_object);
    let ended =
        states.into_iter().flatten().map(|(state, _)| state.as_str()).filter(|state| !UNFINISHED.contains(state));
    for state in UNFINISHED.into_iter().chain(ended) {
        println!("{state:<12} {}", jobs_in(queue, state));
    }
}

/// The number of jobs of a queue in a state. It has a plus sign where the API did not count all unfinished jobs.
fn jobs_in(queue: &Value, state: &str) -> String {
    let jobs = queue.get("states").map(|states| number(states, state)).unwrap_or_default();
    let is_floor = UNFINISHED.contains(&state) && queue.get("exact") == Some(&Value::Bool(false));
    format!("{jobs}{}", if is_floor { "+" } else { "" })
}

/// The limit, and how many of its permits are in use.
fn limit(queue: &Value) -> String {
    match queue.get("concurrency").and_then(Value::as_u64) {
        Some(limit) => format!("{}/{limit}", number(queue, "permits")),
        None => "none".into(),
    }
}

fn paused(queue: &Value) -> String {
    let Some(pause) = queue.get("paused").filter(|pause| !pause.is_null()) else { return "no".into() };
    let reason = text(pause, "reason");
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    printable(&format!("since {} by {}{reason}", text(pause, "at"), text(pause, "by")))
}
