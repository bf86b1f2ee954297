//! `tickr enqueue KIND PAYLOAD`: enqueue one job through the API.

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::{Map, Value};

use crate::Done;
use crate::client::{self, Client};

pub(crate) fn command() -> Command {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let command = Command::new("enqueue")
        .about("Enqueue one job through the API")
        .arg(Arg::new("kind").required(true).value_name("KIND").help("One of the registered kinds"))
        .arg(
            Arg::new("payload")
                .value_name("JSON")
                .default_value("{}")
                .help("The payload; @FILE reads it, - takes standard input"),
        )
        .arg(text("queue", "NAME", "The queue [default: default]"))
        .arg(text("at", "TIME", "Start at this moment, RFC 3339").conflicts_with("delay-ms"))
        .arg(text("delay-ms", "MS", "Start this long after now").value_parser(value_parser!(u64)))
        .arg(text("max-attempts", "N", "Attempts before the job fails").value_parser(value_parser!(u32)))
        .arg(text("timeout-ms", "MS", "Time limit of one attempt").value_parser(value_parser!(u64)))
        .arg(text("priority", "LEVEL", "0 runs first, 9 last").value_parser(value_parser!(u8)))
        .arg(text("unique-key", "KEY", "At most one unfinished job per kind and key"))
        .arg(
            text("on-conflict", "WHAT", "If a job has the unique key: return it, reject this one, or replace it")
                .value_parser(["return", "reject", "replace"])
                .requires("unique-key"),
        )
        .arg(client::idempotency_key())
        .arg(text("wait", "DURATION", "Wait for the result, such as 30s"))
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print the job as JSON"));
    client::args(command)
}

pub(crate) fn run(matches: &ArgMatches) -> Done {
    let mut job = Map::new();
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    job.insert("kind".into(), text("kind").into());
    job.insert("payload".into(), payload(&text("payload").unwrap_or_default())?);
    let texts =
        [("queue", "queue"), ("at", "execute_at"), ("unique-key", "unique_key"), ("on-conflict", "on_conflict")];
    for (flag, field) in texts {
        if let Some(value) = text(flag) {
            job.insert(field.into(), value.into());
        }
    }
    for (flag, field) in [("delay-ms", "delay_ms"), ("timeout-ms", "timeout_ms")] {
        if let Some(value) = matches.get_one::<u64>(flag) {
            job.insert(field.into(), (*value).into());
        }
    }
    if let Some(value) = matches.get_one::<u32>("max-attempts") {
        job.insert("max_attempts".into(), (*value).into());
    }
    if let Some(value) = matches.get_one::<u8>("priority") {
        job.insert("priority".into(), (*value).into());
    }
    let client = Client::from_matches(matches)?;
    crate::runtime()?.block_on(async {
        let mut job = client.post("/v1/jobs", &Value::Object(job), text("idempotency-key").as_ref()).await?;
        let id = job.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
        if let Some(wait) = text("wait") {
            client.get(&format!("/v1/jobs/{id}/result?wait={wait}")).await?;
            job = client.get(&format!("/v1/jobs/{id}")).await?;
        }
        if matches.get_flag("json") {
            println!("{job:#}");
        } else {
            println!("{id} {}", job.get("state").and_then(Value::as_str).unwrap_or_default());
        }
        Ok(())
    })
}

/// JSON as it is given: in words, with `@` from a file, with `-` from standard input.
pub(crate) fn payload(text: &str) -> anyhow::Result<Value> {
    let read = match text.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file).with_context(|| format!("read {file}"))?,
        None if text == "-" => std::io::read_to_string(std::io::stdin()).context("read standard input")?,
        None => text.to_owned(),
    };
    serde_json::from_str(&read).context("the payload is not JSON")
}
