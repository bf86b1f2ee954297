//! `tickr outbox show|nudge|rejected|replay|discard|schema`: jobs that other programs request with a plain INSERT.

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;

use tickr::store::OUTBOX_SCHEMA;

use crate::CommandResult;
use crate::client::{self, Client};
use crate::print::{brief, encoded, number, printable, table, text};

pub(crate) fn command() -> Command {
    let json = || Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON");
    let id = || Arg::new("id").required(true).value_name("ID").help("The row's id");
    Command::new("outbox")
        .about("See and steer the outbox: jobs that other programs request with a plain INSERT")
        .subcommand_required(true)
        .subcommand(client::args(Command::new("show").about("Show how many rows wait").arg(json())))
        .subcommand(client::args(Command::new("nudge").about("Move the rows that are committed now")))
        .subcommand(client::args(
            Command::new("rejected")
                .about("List the rows that cannot become jobs, the newest first")
                .arg(crate::jobs::limit())
                .arg(json()),
        ))
        .subcommand(client::args(Command::new("replay").about("Move a rejected row back, after a fix").arg(id())))
        .subcommand(client::args(Command::new("discard").about("Remove a rejected row").arg(id())))
        .subcommand(
            Command::new("schema").about("Print the statement that makes an outbox in the database of an application"),
        )
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let Some((verb, matches)) = matches.subcommand() else { return Ok(()) };
    if verb == "schema" {
        println!("{OUTBOX_SCHEMA}");
        return Ok(());
    }
    let client = Client::from_matches(matches)?;
    let row = || encoded(matches.get_one::<String>("id").map_or("", String::as_str));
    crate::run_to_end(async {
        match verb {
            "show" => {
                let state = client.get("/v1/outbox").await?;
                if matches.get_flag("json") {
                    println!("{state:#}");
                    return Ok(());
                }
                for field in ["waiting", "rejected"] {
                    println!("{field:<10} {}", number(&state, field));
                }
                for field in ["oldest_at", "leader"] {
                    println!("{field:<10} {}", printable(&text(&state, field)));
                }
                let sources: Vec<&Value> =
                    state.get("sources").and_then(Value::as_array).into_iter().flatten().collect();
                if sources.is_empty() {
                    return Ok(());
                }
                let mut table = table(["SOURCE", "UP", "WAITING", "OLDEST AT", "LEADER", "FAILING SINCE", "ERROR"]);
                for source in sources {
                    table.add_row([
                        text(source, "name"),
                        if source.get("up") == Some(&Value::Bool(true)) { "yes" } else { "no" }.to_owned(),
                        number(source, "waiting").to_string(),
                        text(source, "oldest_at"),
                        text(source, "leader"),
                        text(source, "failing_since"),
                        brief(&text(source, "error"), 90),
                    ]);
                }
                println!("\n{table}");
            }
            "nudge" => client.tell("/v1/outbox/nudge").await?,
            "rejected" => {
                let page = client.get_pages("/v1/outbox/rejected?", matches).await?;
                if matches.get_flag("json") {
                    println!("{page:#}");
                    return Ok(());
                }
                let mut table = table(["ID", "SOURCE", "KIND", "QUEUE", "REJECTED AT", "REASON"]);
                for row in page.get("data").and_then(Value::as_array).into_iter().flatten() {
                    table.add_row([
                        text(row, "id"),
                        text(row, "source"),
                        text(row, "kind"),
                        text(row, "queue"),
                        text(row, "rejected_at"),
                        brief(&text(row, "reason"), 90),
                    ]);
                }
                println!("{table}");
            }
            "replay" => {
                client.tell(&format!("/v1/outbox/rejected/{}/replay", row())).await?;
                println!("the row is in the outbox again");
            }
            _ => {
                drop(client.delete(&format!("/v1/outbox/rejected/{}", row())).await?);
                println!("the row is gone");
            }
        }
        Ok(())
    })?
}
