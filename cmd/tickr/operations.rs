//! `tickr operations list|show|start|pause|resume|cancel|watch`: bulk operations on many jobs, through the API.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};

use crate::client::{self, Client};
use crate::jobs::limit;
use crate::json::Json;
use crate::print::{encoded, number, printable, table, text};
use crate::stream::{patience, patience_of};
use crate::{CommandResult, canary};

/// Interval between two reads of a followed bulk operation.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub(crate) fn command() -> Command {
    let json = || Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON");
    let id = || Arg::new("id").required(true).value_name("ID").help("The bulk operation's id");
    let one =
        |name: &'static str, about: &'static str| client::args(Command::new(name).about(about).arg(id()).arg(json()));
    let start = Command::new("start")
        .about("Start a bulk operation on all jobs that match a filter; it runs in the background")
        .arg(
            Arg::new("action")
                .required(true)
                .value_name("ACTION")
                .help("Action: cancel, retry, run_now, reschedule, set_priority, delete, replay or discard"),
        )
        .args(client::filter())
        .arg(
            Arg::new("all")
                .long("all")
                .action(ArgAction::SetTrue)
                .help("Required without a filter: apply the action to all jobs"),
        )
        .arg(
            Arg::new("rate")
                .long("rate")
                .value_name("N")
                .value_parser(value_parser!(u32))
                .help("Jobs per second [default: as fast as possible]"),
        )
        .args(canary::args())
        .arg(
            Arg::new("dry-run")
                .long("dry-run")
                .action(ArgAction::SetTrue)
                .help("Show what would happen, change nothing"),
        )
        .arg(Arg::new("reason").long("reason").value_name("TEXT").help("Reason; required for a discard"))
        .arg(Arg::new("execute-at").long("execute-at").value_name("MOMENT").help("New due time, for reschedule"))
        .arg(
            Arg::new("priority")
                .long("priority")
                .value_name("0-9")
                .value_parser(value_parser!(u8))
                .help("New priority, for set_priority"),
        )
        .arg(Arg::new("watch").long("watch").action(ArgAction::SetTrue).help("Follow the bulk operation to its end"))
        .arg(patience())
        .arg(client::idempotency_key())
        .arg(json());
    Command::new("operations")
        .about("Bulk operations: one action on many jobs, through the API")
        .subcommand_required(true)
        .subcommand(client::args(
            Command::new("list")
                .about("List bulk operations, newest first")
                .arg(
                    Arg::new("state")
                        .long("state")
                        .value_name("STATE")
                        .help("Only in this state: running, done, cancelled or failed"),
                )
                .arg(limit())
                .arg(json()),
        ))
        .subcommand(one("show", "Show a bulk operation with its progress"))
        .subcommand(client::args(start))
        .subcommand(one("pause", "Pause a bulk operation; it keeps its position").arg(client::idempotency_key()))
        .subcommand(one("resume", "Resume a paused bulk operation").arg(client::idempotency_key()))
        .subcommand(one("cancel", "Stop a bulk operation").arg(client::idempotency_key()))
        .subcommand(
            one("watch", "Follow a bulk operation to its end; exit code 0 only if it ends as done").arg(patience()),
        )
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let Some((verb, matches)) = matches.subcommand() else { return Ok(()) };
    let client = Client::from_matches(matches)?;
    let as_json = matches.get_flag("json");
    crate::run_to_end(async {
        if verb == "list" {
            return list(&client, matches, as_json).await;
        }
        if verb == "start" {
            return start(&client, matches, as_json).await;
        }
        let id = encoded(matches.get_one::<String>("id").map_or("", String::as_str));
        match verb {
            "show" => print(&client.get(&format!("/v1/operations/{id}")).await?, as_json),
            "pause" | "resume" | "cancel" => {
                let key = matches.get_one::<String>("idempotency-key");
                print(&client.post(&format!("/v1/operations/{id}/{verb}"), &json!({}), key).await?, as_json);
            }
            _ => {
                let path = format!("/v1/operations/{id}");
                let first = client.get(&path).await?;
                return watch(&client, &path, first, patience_of(matches), as_json).await;
            }
        }
        Ok(())
    })?
}

async fn start(client: &Client, matches: &ArgMatches, as_json: bool) -> CommandResult {
    let given = |name: &str| matches.get_one::<String>(name).map(|text| json!(text));
    let filter: Map<String, Value> =
        client::filter_given(matches).into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    let mut body = Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(name.to_owned(), value);
        }
    };
    put("action", given("action"));
    put("filter", (!filter.is_empty()).then_some(Value::Object(filter)));
    put("all", matches.get_flag("all").then_some(json!(true)));
    put("dry_run", matches.get_flag("dry-run").then_some(json!(true)));
    put("rate", matches.get_one::<u32>("rate").map(|rate| json!(rate)));
    put("canary", canary::given(matches));
    put("priority", matches.get_one::<u8>("priority").map(|priority| json!(priority)));
    put("reason", given("reason"));
    put("execute_at", given("execute-at"));
    begin(client, matches, &Value::Object(body), as_json).await
}

/// Send the request for a bulk operation, and follow the operation if the flags ask for that.
pub(crate) async fn begin(client: &Client, matches: &ArgMatches, body: &Value, as_json: bool) -> CommandResult {
    let key = matches.get_one::<String>("idempotency-key");
    let dry_run = matches.get_flag("dry-run");
    let path = "/v1/operations";
    let answer = if dry_run { client.ask(path, body).await? } else { client.post(path, body, key).await? };
    if !dry_run {
        let id = client::id_of(&answer)?;
        if matches.get_flag("watch") {
            // An operation goes on without the command that follows it.
            eprintln!("tickr: following the operation {id}");
            let patience = patience_of(matches);
            let path = format!("/v1/operations/{}", encoded(&id));
            let say = |word: &str| eprintln!("tickr: {word}");
            let first = client.get_until(&path, Instant::now() + patience, say).await?;
            return watch(client, &path, first, patience, as_json).await;
        }
    }
    print(&answer, as_json);
    Ok(())
}

/// Follow a bulk operation, which was just read from `path`, to its end. On a terminal it shows a progress bar; elsewhere
/// it prints a line for each change. The server may restart meanwhile, for as long as `patience`.
async fn watch(client: &Client, path: &str, mut operation: Json, patience: Duration, as_json: bool) -> CommandResult {
    // The bar is drawn on standard error. A pipe gets lines, also when only standard error is a terminal.
    let bar = if std::io::stdout().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
    let mut said = String::new();
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}").unwrap_or(ProgressStyle::default_bar());
    bar.set_style(style);
    loop {
        let seen = number(&operation, "done") + number(&operation, "skipped") + number(&operation, "failed");
        bar.set_length(number(&operation, "estimate").max(seen));
        bar.set_position(seen);
        let rate = operation.get("measured_rate").and_then(Value::as_f64).unwrap_or_default();
        let state = text(&operation, "state");
        let mut canary = canary::progress(&operation).map(|progress| format!(" {progress}")).unwrap_or_default();
        let paused_by = text(&operation, "paused_by");
        if canary.is_empty() && !paused_by.is_empty() {
            canary.push_str(&format!(", paused by {}", printable(&paused_by)));
        }
        bar.set_message(format!("{state} {rate:.0}/s{canary}"));
        let line = format!("{seen}/{} {state} {rate:.0}/s{canary}", bar.length().unwrap_or_default());
        if bar.is_hidden() && !as_json && line != said && state == "running" {
            println!("{line}");
            said = line;
        }
        if state != "running" {
            bar.finish_and_clear();
            print(&operation, as_json);
            if state == "done" {
                return Ok(());
            }
            let why = text(&operation, "last_error");
            let why =
                if state == "failed" && !why.is_empty() { format!(": {}", printable(&why)) } else { String::new() };
            return Err(anyhow::anyhow!("the operation is {state}{why}").into());
        }
        tokio::time::sleep(LOOK_EVERY).await;
        let say = |word: &str| bar.suspend(|| eprintln!("tickr: {word}"));
        operation = client.get_until(path, Instant::now() + patience, say).await?;
    }
}

async fn list(client: &Client, matches: &ArgMatches, as_json: bool) -> CommandResult {
    let state = matches.get_one::<String>("state").map(|state| format!("state={}&", encoded(state)));
    let page = client.get_pages(&format!("/v1/operations?{}", state.unwrap_or_default()), matches).await?;
    let data = page.rows("data");
    if as_json {
        println!("{:#}", Json::list(&data));
        return Ok(());
    }
    let mut table = table(["ID", "ACTION", "STATE", "DONE", "SKIPPED", "FAILED", "OF", "REQUESTED BY", "CREATED"]);
    for operation in &data {
        let more = if operation.get("estimate_capped").and_then(Value::as_bool) == Some(true) { "+" } else { "" };
        table.add_row([
            text(operation, "id"),
            text(operation, "action"),
            text(operation, "state"),
            number(operation, "done").to_string(),
            number(operation, "skipped").to_string(),
            number(operation, "failed").to_string(),
            format!("{}{more}", number(operation, "estimate")),
            printable(&text(operation, "asked_by")),
            text(operation, "created_at"),
        ]);
    }
    println!("{table}");
    Ok(())
}

fn print(answer: &Json, as_json: bool) {
    if as_json {
        println!("{answer:#}");
        return;
    }
    for (field, value) in answer.as_object().into_iter().flatten() {
        match value {
            Value::Null if field == "rate" => println!("{field:<15} as fast as possible"),
            Value::Null => {}
            Value::String(text) => println!("{field:<15} {}", printable(text)),
            Value::Array(items) => {
                println!("{field:<15} {}", items.len());
                for item in answer.rows(field) {
                    println!("  {}", printable(&item.to_string()));
                }
            }
            _ => {
                let value = answer.part(field).map_or_else(String::new, |value| value.to_string());
                println!("{field:<15} {}", printable(&value));
            }
        }
    }
}
