//! `tickr batches create|list|show|close|cancel|retry`: jobs that belong together.

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};

use crate::CommandResult;
use crate::client::{self, Client};
use crate::enqueue::payload;
use crate::json::{Body, Json};
use crate::print::{brief, encoded, number, printable, table, text};

pub(crate) fn command() -> Command {
    let json = || Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON");
    let id = || Arg::new("id").required(true).value_name("ID").help("The batch's id");
    let one =
        |name: &'static str, about: &'static str| client::args(Command::new(name).about(about).arg(id()).arg(json()));
    let option = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    Command::new("batches")
        .about("See and steer batches: jobs that belong together, with callbacks")
        .subcommand_required(true)
        .subcommand(client::args(
            Command::new("create")
                .about("Create a batch and print its id; add jobs with `tickr enqueue --batch`, then close it")
                .arg(Arg::new("name").value_name("NAME").help("Name of the batch, for people"))
                .arg(option("on-success", "JSON", "Job to enqueue when all jobs have completed, or @FILE, or -"))
                .arg(option("on-complete", "JSON", "Job to enqueue when all jobs have ended, or @FILE, or -"))
                .arg(option("on-failure", "JSON", "Job to enqueue when the first job fails for good, or @FILE, or -"))
                .arg(option("parent", "ID", "Batch in which this one is nested"))
                .arg(client::idempotency_key())
                .arg(json()),
        ))
        .subcommand(client::args(
            Command::new("list")
                .about("List batches, the newest first")
                .arg(crate::jobs::limit())
                .arg(
                    Arg::new("unfinished")
                        .long("unfinished")
                        .action(ArgAction::SetTrue)
                        .help("Only those that have not ended"),
                )
                .arg(option("parent", "ID", "Only those that are nested in this one"))
                .arg(json()),
        ))
        .subcommand(one("show", "Show a batch"))
        .subcommand(one("close", "Close a batch: it ends with its last job"))
        .subcommand(one("cancel", "Cancel a batch with all of its jobs"))
        .subcommand(
            one("retry", "Retry the failed jobs of a batch and of those nested in it").arg(
                Arg::new("alone")
                    .long("alone")
                    .action(ArgAction::SetTrue)
                    .help("Only the failed jobs of the batch itself, and none of nested batches"),
            ),
        )
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let Some((verb, matches)) = matches.subcommand() else { return Ok(()) };
    let client = Client::from_matches(matches)?;
    let id = || encoded(matches.get_one::<String>("id").map_or("", String::as_str));
    let as_json = matches.get_flag("json");
    let given = |name: &str| matches.try_get_one::<String>(name).ok().flatten().cloned();
    crate::run_to_end(async {
        match verb {
            "create" => {
                let mut body = Body::default();
                for field in ["name", "parent"] {
                    if let Some(value) = given(field) {
                        body.fields.insert(field.to_owned(), value.into());
                    }
                }
                for (flag, field) in
                    [("on-success", "on_success"), ("on-complete", "on_complete"), ("on-failure", "on_failure")]
                {
                    if let Some(job) = given(flag) {
                        body.written.insert(field, payload(&job).with_context(|| format!("read --{flag}"))?);
                    }
                }
                let key = given("idempotency-key");
                let batch = client.post("/v1/batches", &body, key.as_ref()).await?;
                let id = client::id_of(&batch)?;
                if as_json {
                    println!("{batch:#}");
                } else {
                    println!("{}", printable(&id));
                }
            }
            "list" => {
                let unfinished = matches.get_flag("unfinished");
                let parent = given("parent").map(|id| format!("&parent={}", encoded(&id))).unwrap_or_default();
                let path = format!("/v1/batches?unfinished={unfinished}{parent}&");
                let page = client.get_pages(&path, matches).await?;
                if as_json {
                    println!("{page:#}");
                    return Ok(());
                }
                let mut table = table(["ID", "NAME", "STATE", "JOBS", "PENDING", "FAILED", "CREATED AT"]);
                for batch in page.get("data").and_then(Value::as_array).into_iter().flatten() {
                    table.add_row([
                        text(batch, "id"),
                        brief(&text(batch, "name"), 40),
                        text(batch, "state"),
                        number(batch, "total").to_string(),
                        number(batch, "pending").to_string(),
                        number(batch, "failed").to_string(),
                        text(batch, "created_at"),
                    ]);
                }
                println!("{table}");
            }
            "show" => print(&client.get(&format!("/v1/batches/{}", id())).await?, as_json),
            "close" | "cancel" => {
                print(&client.post(&format!("/v1/batches/{}/{verb}", id()), &json!({}), None).await?, as_json);
            }
            _ => {
                let alone = if matches.get_flag("alone") { "?nested=false" } else { "" };
                let path = format!("/v1/batches/{}/retry{alone}", id());
                let operation = client.post(&path, &json!({}), None).await?;
                if as_json {
                    println!("{operation:#}");
                } else {
                    println!("the operation {} retries the failed jobs", printable(&text(&operation, "id")));
                }
            }
        }
        Ok(())
    })?
}

fn print(batch: &Json, as_json: bool) {
    if as_json {
        println!("{batch:#}");
        return;
    }
    for field in ["id", "name", "state"] {
        println!("{field:<12} {}", printable(&text(batch, field)));
    }
    for field in ["total", "pending", "completed", "failed", "cancelled"] {
        println!("{field:<12} {}", number(batch, field));
    }
    for field in ["parent", "created_at", "closed_at", "cancelled_at", "completed_at", "succeeded_at"] {
        if batch.get(field).is_some_and(|value| !value.is_null()) {
            println!("{field:<12} {}", printable(&text(batch, field)));
        }
    }
    for field in ["on_success", "on_complete", "on_failure"] {
        if let Some(callback) = batch.get(field) {
            println!("{field:<12} {} job {}", printable(&text(callback, "kind")), text(callback, "job_id"));
        }
    }
}
