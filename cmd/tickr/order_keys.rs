//! `tickr order-keys`: the order keys that have jobs, through the API.

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};

use crate::CommandResult;
use crate::client::{self, Client};
use crate::print::{encoded, number, printable, table, text};

pub(crate) fn command() -> Command {
    client::args(
        Command::new("order-keys")
            .about("List the order keys that have jobs: which job is at the head of each, and how many wait behind it")
            .arg(
                Arg::new("blocked")
                    .long("blocked")
                    .action(ArgAction::SetTrue)
                    .help("Only order keys whose jobs wait for a failed one"),
            )
            .arg(Arg::new("after").long("after").value_name("KEY").help("Only order keys behind this one"))
            .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON")),
    )
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let client = Client::from_matches(matches)?;
    let blocked = matches.get_flag("blocked");
    let mut after = matches.get_one::<String>("after").cloned();
    let answer = crate::run_to_end(async {
        loop {
            let from = after.as_deref().map(|key| format!("&after={}", encoded(key))).unwrap_or_default();
            let answer = client.get(&format!("/v1/order-keys?blocked={blocked}{from}")).await?;
            // A page may be empty although others follow: the server reads a bounded number of keys for each.
            let is_empty = answer.get("data").and_then(Value::as_array).is_none_or(Vec::is_empty);
            match answer.get("next").and_then(Value::as_str) {
                Some(next) if is_empty => after = Some(next.to_owned()),
                _ => return anyhow::Ok(answer),
            }
        }
    })??;
    if matches.get_flag("json") {
        println!("{answer:#}");
    } else {
        list(&answer);
    }
    Ok(())
}

fn list(answer: &Value) {
    let mut table = table(["ORDER KEY", "HEAD", "KIND", "STATE", "SINCE", "BEHIND IT", "WAITING SINCE"]);
    let none = json!({});
    for key in answer.get("data").and_then(Value::as_array).into_iter().flatten() {
        let head = key.get("head").unwrap_or(&none);
        table.add_row([
            printable(&text(key, "key")),
            text(head, "id"),
            text(head, "kind"),
            text(head, "state"),
            text(head, "since"),
            number(key, "waiting").to_string(),
            text(key, "waiting_since"),
        ]);
    }
    println!("{table}");
    if let Some(next) = answer.get("next").and_then(Value::as_str) {
        println!("more order keys follow: --after {}", printable(next));
    }
}
