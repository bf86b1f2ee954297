//! `tickr schedules list|show|put|delete|pause|resume|trigger|ticks|preview`: jobs on a cron expression or an interval.

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::{Map, Value, json};
use tickr::config::parse_duration;

use crate::client::{self, Client};
use crate::enqueue::payload;
use crate::json::{Body, Json};
use crate::print::{brief, encoded, number, printable, table, text};
use crate::{CommandResult, WrongUsage};

pub(crate) fn command() -> Command {
    let json = || Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON");
    let name = || Arg::new("name").required(true).value_name("NAME").help("The schedule's name");
    let limit =
        || Arg::new("limit").long("limit").value_parser(value_parser!(u32)).default_value("20").help("Number of rows");
    let one =
        |verb: &'static str, about: &'static str| client::args(Command::new(verb).about(about).arg(name()).arg(json()));
    let policies = ["allow", "skip", "replace"];
    let overlap = |help: &'static str| Arg::new("overlap").long("overlap").value_parser(policies).help(help);
    let undeclared = Arg::new("undeclared")
        .long("undeclared")
        .action(ArgAction::SetTrue)
        .help("Allow a schedule from a configuration file, if the runner that answers does not declare it any more");
    Command::new("schedules")
        .about("Create, change, pause and trigger schedules through the API")
        .subcommand_required(true)
        .subcommand(client::args(Command::new("list").about("List schedules by name").arg(limit()).arg(json())))
        .subcommand(one("show", "Show a schedule with its next runs"))
        .subcommand(
            put(one("put", "Create or replace a schedule"))
                .arg(overlap("Policy while the previous job has not ended: allow, skip or replace [default: allow]")),
        )
        .subcommand(one("delete", "Delete a schedule and keep its jobs").arg(undeclared))
        .subcommand(one("pause", "Pause a schedule: its ticks are skipped").arg(text_arg(
            "reason",
            "TEXT",
            "Reason, shown to other operators",
        )))
        .subcommand(one("resume", "Resume a paused schedule"))
        .subcommand(
            one("trigger", "Enqueue a job of a schedule now")
                .arg(overlap(
                    "Overlap policy for this trigger only: allow, skip or replace [default: the schedule's own]",
                ))
                .arg(client::idempotency_key()),
        )
        .subcommand(
            one("ticks", "List the recorded ticks of a schedule with their outcome, newest first")
                .arg(text_arg("outcome", "WORD", "Only ticks with this outcome: fired or skipped"))
                .arg(limit()),
        )
        .subcommand(client::args(
            cadence(Command::new("preview").about("Show when a cron expression or an interval would tick"))
                .arg(text_arg("from", "TIME", "Start of the preview, RFC 3339 [default: now]"))
                .arg(text_arg("count", "N", "Number of ticks").value_parser(value_parser!(u32)).default_value("5"))
                .arg(json()),
        ))
}

fn text_arg(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

/// Add the arguments that decide when a schedule ticks.
fn cadence(command: Command) -> Command {
    command
        .arg(
            text_arg("cron", "CRON", "Cron expression of five fields, or six with seconds first")
                .required_unless_present("every"),
        )
        .arg(text_arg("every", "DURATION", "Interval, such as 30s").conflicts_with("cron"))
        .arg(text_arg("anchor", "TIME", "Start of the first interval, RFC 3339").requires("every"))
        .arg(text_arg("zone", "ZONE", "IANA time zone of the cron expression [default: UTC]"))
        .arg(
            text_arg(
                "dst",
                "POLICY",
                "Local times that a clock change repeats or leaves out: once, skip or both [default: once]",
            )
            .value_parser(["once", "skip", "both"]),
        )
}

fn put(command: Command) -> Command {
    cadence(command)
        .arg(text_arg("kind", "KIND", "Kind of its jobs").required(true))
        .arg(
            text_arg("payload", "JSON", "Payload of its jobs; @FILE reads a file, - reads standard input")
                .default_value("{}"),
        )
        .arg(
            text_arg("misfire", "POLICY", "Ticks missed while no runner was up: skip, one or all [default: one]")
                .value_parser(["skip", "one", "all"]),
        )
        .arg(text_arg(
            "misfire-grace",
            "DURATION",
            "Longest delay of a tick that does not count as missed [default: 15s]",
        ))
        .arg(text_arg("queue", "NAME", "Queue of its jobs [default: that of the declared kind, or else default]"))
        .arg(text_arg("priority", "LEVEL", "0 runs first, 9 last").value_parser(value_parser!(u8)))
        .arg(text_arg("max-attempts", "N", "Attempts before a job fails").value_parser(value_parser!(u32)))
        .arg(text_arg("timeout", "DURATION", "Time limit of one attempt"))
        .arg(text_arg("order-key", "KEY", "Order key: its jobs run one at a time, in the order of the ticks"))
        .arg(
            text_arg(
                "on-failure",
                "WHAT",
                "When a job fails for good: block the jobs behind it, or skip to the next one [default: block]",
            )
            .value_parser(["block", "skip"])
            .requires("order-key"),
        )
        .arg(text_arg("limit-key", "KEY", "Limit key: limits count the jobs with the same one; see `tickr limits`"))
        .arg(text_arg("expires-in", "DURATION", "Fail a job that has not started after this time, such as 10m"))
        .arg(text_arg("tag", "TAG", "Tag of its jobs; repeat it for several tags").action(ArgAction::Append))
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let Some((verb, matches)) = matches.subcommand() else { return Ok(()) };
    let said = |name: &str| matches.get_one::<String>(name).cloned();
    let client = Client::from_matches(matches)?;
    let as_json = matches.get_flag("json");
    if verb == "preview" {
        let mut body = cadence_of(matches)?;
        body.insert("count".into(), matches.get_one::<u32>("count").copied().into());
        if let Some(from) = said("from") {
            body.insert("from".into(), from.into());
        }
        let answer = crate::run_to_end(client.ask("/v1/schedules/preview", &Value::Object(body)))??;
        return print(as_json, &answer, |answer| {
            println!("{}", printable(&text(answer, "description")));
            next_runs(answer);
        });
    }
    if verb == "list" {
        let (rows, unreadable) = crate::run_to_end(pages(&client, "/v1/schedules?", matches))??;
        // On standard error, so that the table for scripts stays the same.
        for row in &unreadable {
            eprintln!(
                "{} cannot be read by this runner: {}",
                printable(&text(row, "name")),
                printable(&text(row, "reason"))
            );
        }
        return print(as_json, &rows, list);
    }
    let path = format!("/v1/schedules/{}", encoded(&said("name").unwrap_or_default()));
    crate::run_to_end(async {
        match verb {
            "ticks" => {
                let only = said("outcome").map(|word| format!("outcome={}&", encoded(&word))).unwrap_or_default();
                let (rows, _) = pages(&client, &format!("{path}/ticks?{only}"), matches).await?;
                print(as_json, &rows, ticks)
            }
            "put" => print(as_json, &client.put(&path, &body_of(matches)?).await?, show),
            "delete" => {
                let how = if matches.get_flag("undeclared") { "?undeclared=true" } else { "" };
                client.delete(&format!("{path}{how}")).await?;
                print(as_json, &json!({"deleted": said("name")}).into(), |gone| {
                    println!("deleted {}", text(gone, "deleted"));
                })
            }
            "pause" => {
                let body = json!({"reason": said("reason")});
                print(as_json, &client.post(&format!("{path}/pause"), &body, None).await?, show)
            }
            "resume" => print(as_json, &client.post(&format!("{path}/resume"), &json!({}), None).await?, show),
            "trigger" => {
                let how = said("overlap").map(|word| format!("?overlap={word}")).unwrap_or_default();
                let key = said("idempotency-key");
                let job = client.post(&format!("{path}/trigger{how}"), &json!({}), key.as_ref()).await?;
                print(as_json, &job, |job| println!("{} {}", text(job, "id"), text(job, "state")))
            }
            _ => print(as_json, &client.get(&path).await?, show),
        }
    })?
}

fn print(as_json: bool, answer: &Json, for_people: impl FnOnce(&Json)) -> CommandResult {
    if as_json {
        println!("{answer:#}");
    } else {
        for_people(answer);
    }
    Ok(())
}

/// Read as many rows as the flag `limit` requests, page by page. Return them, and the rows that the runner cannot read.
async fn pages(client: &Client, path: &str, matches: &ArgMatches) -> anyhow::Result<(Json, Vec<Json>)> {
    let wanted = *matches.get_one::<u32>("limit").unwrap_or(&20) as usize;
    let (mut rows, mut unreadable): (Vec<Json>, Vec<Json>) = Default::default();
    let mut cursor = String::new();
    loop {
        let page = format!("{path}limit={}{cursor}", wanted.clamp(1, 200));
        let page = client.get_page(&page, cursor.is_empty()).await?;
        rows.extend(page.rows("data"));
        unreadable.extend(page.rows("unreadable"));
        match page.get("next_cursor").and_then(Value::as_str) {
            Some(next) if rows.len() < wanted => cursor = format!("&cursor={next}"),
            _ => break,
        }
    }
    rows.truncate(wanted);
    Ok((Json::list(&rows), unreadable))
}

fn millis(flag: &str, said: &str) -> Result<u64, WrongUsage> {
    let duration = parse_duration(said).map_err(|why| WrongUsage(format!("--{flag} {said}: {why}")))?;
    Ok(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

fn cadence_of(matches: &ArgMatches) -> anyhow::Result<Map<String, Value>> {
    let mut body = Map::new();
    for field in ["cron", "anchor", "zone", "dst"] {
        if let Some(value) = matches.get_one::<String>(field) {
            body.insert(field.into(), value.clone().into());
        }
    }
    if let Some(every) = matches.get_one::<String>("every") {
        body.insert("every_ms".into(), millis("every", every)?.into());
    }
    Ok(body)
}

fn body_of(matches: &ArgMatches) -> anyhow::Result<Body> {
    let mut body = cadence_of(matches)?;
    let said = |name: &str| matches.get_one::<String>(name);
    for field in ["kind", "misfire", "overlap", "queue", "order-key", "on-failure", "limit-key"] {
        if let Some(value) = said(field) {
            body.insert(field.replace('-', "_"), value.clone().into());
        }
    }
    if let Some(tags) = matches.get_many::<String>("tag") {
        body.insert("tags".into(), tags.cloned().collect::<Vec<_>>().into());
    }
    let durations = [("misfire-grace", "misfire_grace_ms"), ("timeout", "timeout_ms"), ("expires-in", "expires_in_ms")];
    for (flag, field) in durations {
        if let Some(value) = said(flag) {
            body.insert(field.into(), millis(flag, value)?.into());
        }
    }
    if let Some(value) = matches.get_one::<u8>("priority") {
        body.insert("priority".into(), (*value).into());
    }
    if let Some(value) = matches.get_one::<u32>("max-attempts") {
        body.insert("max_attempts".into(), (*value).into());
    }
    let payload = payload(said("payload").map_or("{}", String::as_str))?;
    Ok(Body { fields: body, ..Body::written("payload", payload) })
}

fn list(rows: &Json) {
    let mut table = table(["NAME", "WHEN", "KIND", "QUEUE", "NEXT", "STATE", "OWNER"]);
    for row in rows.as_array().into_iter().flatten() {
        table.add_row([
            text(row, "name"),
            printable(&text(row, "description")),
            text(row, "kind"),
            text(row, "queue"),
            text(row, "next_at"),
            state_of(row).to_owned(),
            text(row, "origin"),
        ]);
    }
    println!("{table}");
}

fn state_of(row: &Value) -> &'static str {
    if row.get("paused").is_some_and(|paused| !paused.is_null()) { "paused" } else { "active" }
}

fn show(row: &Json) {
    let line = |field: &str, value: &str| {
        if !value.is_empty() {
            println!("{field:<12} {}", printable(value));
        }
    };
    line("name", &text(row, "name"));
    line("when", &text(row, "description"));
    let fields = [
        "cron",
        "zone",
        "dst",
        "misfire",
        "overlap",
        "kind",
        "queue",
        "order_key",
        "on_failure",
        "limit_key",
        "origin",
    ];
    for field in fields {
        line(field, &text(row, field));
    }
    if row.get("expires_in_ms").is_some_and(Value::is_u64) {
        line("expires in", &format!("{} ms", number(row, "expires_in_ms")));
    }
    let tags = row.get("tags").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    line("tags", &tags.collect::<Vec<_>>().join(" "));
    if let Some(payload) = row.part("payload") {
        line("payload", &payload.to_string());
    }
    line("state", state_of(row));
    if let Some(pause) = row.get("paused").filter(|pause| !pause.is_null()) {
        line("paused", &format!("{} by {} {}", text(pause, "at"), text(pause, "by"), text(pause, "reason")));
    }
    if let Some(tick) = row.get("last_tick") {
        let job = text(tick, "job_id");
        let what = if job.is_empty() { text(tick, "reason") } else { format!("job {job}") };
        line("last tick", &format!("{} {} {what}", text(tick, "due_at"), text(tick, "outcome")));
    }
    next_runs(row);
}

fn next_runs(answer: &Value) {
    for run in answer.get("next_runs").and_then(Value::as_array).into_iter().flatten() {
        println!("{:<12} {}  {}", "next", text(run, "at"), text(run, "local"));
    }
}

fn ticks(rows: &Json) {
    let mut table = table(["DUE", "OUTCOME", "TICKS", "JOB", "WHY"]);
    for row in rows.as_array().into_iter().flatten() {
        let manual = row.get("manual").and_then(Value::as_bool).unwrap_or_default();
        let why = if manual { format!("triggered by {}", text(row, "recorded_by")) } else { text(row, "reason") };
        table.add_row([
            text(row, "due_at"),
            text(row, "outcome"),
            number(row, "ticks").to_string(),
            text(row, "job_id"),
            brief(&why, 80),
        ]);
    }
    println!("{table}");
}
