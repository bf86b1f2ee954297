//! `tickr kinds list|show|declare|delete`: the kinds of jobs, and the declarations of those that programs in other
//! languages execute.

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};

use crate::CommandResult;
use crate::client::{self, Client};
use crate::enqueue::payload;
use crate::json::Json;
use crate::print::{encoded, number, printable, table, text};

pub(crate) fn command() -> Command {
    let json = || Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON");
    let name = || Arg::new("name").required(true).value_name("KIND").help("The kind");
    let verb =
        |word: &'static str, about: &'static str| client::args(Command::new(word).about(about).arg(name()).arg(json()));
    Command::new("kinds")
        .about("List the kinds of jobs, and declare those that programs in other languages execute")
        .subcommand_required(true)
        .subcommand(client::args(
            Command::new("list")
                .about("List the kinds")
                .arg(json())
                .arg(Arg::new("declared").long("declared").action(ArgAction::SetTrue).help("Only the declared kinds")),
        ))
        .subcommand(verb("show", "Show a kind with the schema of its payload"))
        .subcommand(
            verb("declare", "Declare a kind: it replaces the declaration with this name, on every runner within 2 s")
                .arg(Arg::new("declaration").value_name("JSON").default_value("{}").help(
                "description, schema, max_attempts, timeout_ms, retry, queue and run, each as in PUT /v1/kinds/{kind}; \
                     @FILE reads a file, - reads standard input",
            )),
        )
        .subcommand(verb("delete", "Remove a declaration: no further job of the kind is accepted"))
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let Some((verb, matches)) = matches.subcommand() else { return Ok(()) };
    let client = Client::from_matches(matches)?;
    let as_json = matches.get_flag("json");
    crate::run_to_end(async {
        if verb == "list" {
            let mut answer = client.get("/v1/kinds").await?;
            if matches.get_flag("declared") {
                let mut kinds = answer.rows("data");
                kinds.retain(|kind| text(kind, "origin") == "declared");
                answer = answer.with("data", &Json::list(&kinds));
            }
            if as_json {
                println!("{answer:#}");
            } else {
                list(answer.get("data").and_then(Value::as_array).into_iter().flatten());
            }
            return Ok(());
        }
        let name = matches.get_one::<String>("name").map_or("", String::as_str);
        let path = format!("/v1/kinds/{}", encoded(name));
        let answer = match verb {
            "show" => client.get(&path).await?,
            "declare" => {
                let declaration = matches.get_one::<String>("declaration").map_or("{}", String::as_str);
                client.put(&path, &payload(declaration)?).await?
            }
            _ => {
                client.delete(&path).await?;
                if as_json {
                    println!("{:#}", json!({"deleted": name}));
                } else {
                    println!("{} is not declared any more", printable(name));
                }
                return Ok(());
            }
        };
        if as_json || verb == "show" {
            println!("{answer:#}");
        } else {
            list(std::iter::once(&*answer));
        }
        Ok(())
    })?
}

/// Say in which way a program in another language gets the jobs of a kind. Empty for a kind of which runners have a
/// handler.
fn run_of(kind: &Value) -> String {
    let url = kind.pointer("/run/push/url").and_then(Value::as_str);
    let place = url.map(|url| url.split_once("://").map_or(url, |(_, rest)| rest));
    match place {
        Some(place) => format!("push to {}", place.split(['/', '?']).next().unwrap_or_default()),
        None => kind.get("run").and_then(Value::as_str).unwrap_or_default().to_owned(),
    }
}

fn list<'a>(kinds: impl Iterator<Item = &'a Value>) {
    let mut table =
        table(["KIND", "ORIGIN", "RUN", "QUEUE", "ATTEMPTS", "TIMEOUT", "SCHEMA", "CHANGED BY", "DESCRIPTION"]);
    for kind in kinds {
        let any = kind.get("schema").and_then(Value::as_object).is_none_or(serde_json::Map::is_empty);
        table.add_row([
            text(kind, "kind"),
            text(kind, "origin"),
            printable(&run_of(kind)),
            text(kind, "queue"),
            number(kind, "max_attempts").to_string(),
            format!("{:?}", std::time::Duration::from_millis(number(kind, "timeout_ms"))),
            if any { "any JSON".to_owned() } else { "yes".to_owned() },
            printable(&text(kind, "changed_by")),
            printable(&text(kind, "description")),
        ]);
    }
    println!("{table}");
}
