//! `tickr dead-letters list|groups|show|compare|release|replay|discard`: dead letters, through the API. A dead letter is
//! a job that failed for good.

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::{Value, json};

use crate::client::{self, Client};
use crate::enqueue::payload;
use crate::jobs::{each_page, limit, show};
use crate::json::{Body, Json};
use crate::operations::begin;
use crate::print::{Listing, brief, encoded, number, printable, table, text};
use crate::stream::patience;
use crate::{CommandResult, canary};

pub(crate) fn command() -> Command {
    let json = || Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON");
    let id = || Arg::new("id").required(true).value_name("ID").help("The failed job's id");
    Command::new("dead-letters")
        .visible_alias("dead")
        .about("Dead letters: jobs that failed for good, through the API")
        .subcommand_required(true)
        .subcommand(client::args(
            Command::new("list")
                .about("List dead letters, newest job first")
                .args(client::filter())
                .arg(
                    Arg::new("status")
                        .long("status")
                        .value_name("STATUS")
                        .help("Only dead letters with this status: open, replayed or discarded [default: open]"),
                )
                .arg(limit())
                .arg(json()),
        ))
        .subcommand(client::args(
            Command::new("groups")
                .about("List groups of dead letters with the same cause, the most recent first")
                .arg(Arg::new("kind").long("kind").value_name("NAME").help("Only dead letters of this kind"))
                .arg(limit())
                .arg(json()),
        ))
        .subcommand(client::args(
            Command::new("show")
                .about("Show a dead letter with its attempts, or a group of dead letters")
                .arg(
                    Arg::new("id")
                        .required(true)
                        .value_name("ID")
                        .help("The failed job's id, or the 16 digits of a group"),
                )
                .arg(json()),
        ))
        .subcommand(client::args(
            Command::new("compare")
                .about("Show what the jobs of a group have more often than jobs of the same kind that passed")
                .arg(Arg::new("group").required(true).value_name("GROUP").help("The 16 digits of the group"))
                .arg(json()),
        ))
        .subcommand(client::args(
            Command::new("release")
                .about("Replay the open dead letters of a group in the background, at a rate or as a canary")
                .arg(Arg::new("group").required(true).value_name("GROUP").help("The 16 digits of the group"))
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
                .arg(
                    Arg::new("reason").long("reason").value_name("TEXT").help("Reason, stored with the bulk operation"),
                )
                .arg(
                    Arg::new("watch")
                        .long("watch")
                        .action(ArgAction::SetTrue)
                        .help("Follow the release to its end; exit code 0 only if it ends as done"),
                )
                .arg(patience())
                .arg(client::idempotency_key())
                .arg(json()),
        ))
        .subcommand(client::args(
            Command::new("replay")
                .about("Run a failed job again as a new job, linked to the failed one")
                .arg(id())
                .arg(Arg::new("payload").long("payload").value_name("JSON").help(
                    "Payload of the new job: JSON text, @FILE, or - for standard input [default: the payload of \
                     the failed job]",
                ))
                .arg(client::idempotency_key())
                .arg(json()),
        ))
        .subcommand(client::args(
            Command::new("discard")
                .about("Discard a dead letter that needs no replay")
                .arg(id())
                .arg(
                    Arg::new("reason")
                        .long("reason")
                        .required(true)
                        .value_name("TEXT")
                        .help("Reason, recorded in the audit"),
                )
                .arg(client::idempotency_key())
                .arg(json()),
        ))
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let Some((verb, matches)) = matches.subcommand() else { return Ok(()) };
    let client = Client::from_matches(matches)?;
    let as_json = matches.get_flag("json");
    let given = |name: &str| matches.try_get_one::<String>(name).ok().flatten();
    crate::run_to_end(async {
        let id = encoded(given("id").map_or("", String::as_str));
        let answer = match verb {
            "list" => {
                let status: Vec<_> = given("status").map(|word| ("status", word.clone())).into_iter().collect();
                let header = &["ID", "KIND", "QUEUE", "FAILED", "GROUP", "STATUS", "ERROR"];
                let mut listing = Listing::new(header, as_json);
                let show = |jobs: &[Json]| listing.print_page(jobs, cells);
                each_page(&client, matches, "/v1/dead-letters", &status, show).await?;
                listing.end();
                return Ok(());
            }
            "groups" => return groups(&client, matches, as_json).await,
            "compare" => return compare(&client, matches, as_json).await,
            "release" => return release(&client, matches, as_json).await,
            // The name of a group has 16 digits. The id of a job has hyphens.
            "show" if id.len() == 16 => {
                let group = client.get(&format!("/v1/dead-letters/groups/{id}")).await?;
                if !as_json {
                    show_group(&group);
                    return Ok(());
                }
                group
            }
            "show" => client.get(&format!("/v1/jobs/{id}")).await?,
            "replay" => {
                let body = match given("payload") {
                    Some(given) => Body::written("payload", payload(given)?),
                    None => Body::default(),
                };
                client.post(&format!("/v1/jobs/{id}/replay"), &body, given("idempotency-key")).await?
            }
            _ => {
                let body = json!({"reason": given("reason")});
                client.post(&format!("/v1/jobs/{id}/discard"), &body, given("idempotency-key")).await?
            }
        };
        if as_json {
            println!("{answer:#}");
        } else {
            show(&answer);
        }
        Ok(())
    })?
}

/// Show the differences between the jobs of a group and jobs that passed, the greatest first.
async fn compare(client: &Client, matches: &ArgMatches, as_json: bool) -> CommandResult {
    let group = encoded(matches.get_one::<String>("group").map_or("", String::as_str));
    let answer = client.get(&format!("/v1/dead-letters/groups/{group}/differences")).await?;
    if as_json {
        println!("{answer:#}");
        return Ok(());
    }
    let percent = |share: &Value| format!("{:.0} %", 100.0 * share.as_f64().unwrap_or_default());
    let mut table = table(["TRAIT", "VALUE", "OF THE FAILED", "OF THE PASSED", "AT LEAST"]);
    for one in &answer.rows("differences") {
        let value = match &one["value"] {
            Value::Null if one["lacking"] == true => "(none)".to_owned(),
            Value::String(text) => brief(text, 60),
            _ => one.part("value").map_or_else(|| "null".to_owned(), |value| value.to_string()),
        };
        table.add_row([
            printable(&text(one, "attribute")),
            value,
            percent(&one["failed_share"]),
            percent(&one["passed_share"]),
            format!("+{:.0} points", 100.0 * one["at_least"].as_f64().unwrap_or_default()),
        ]);
    }
    println!("{table}");
    let jobs = |name: &str| {
        let more = if answer[name]["capped"] == true { "+" } else { "" };
        format!("{}{more}", number(&answer[name], "jobs"))
    };
    println!(
        "compared {} traits of {} failed jobs and {} that passed",
        answer["compared"],
        jobs("failed"),
        jobs("passed")
    );
    Ok(())
}

/// Start the bulk operation that replays the open dead letters of a group.
async fn release(client: &Client, matches: &ArgMatches, as_json: bool) -> CommandResult {
    let group = matches.get_one::<String>("group");
    let mut body = json!({"action": "replay", "filter": {"fingerprint": group}});
    if let Some(rate) = matches.get_one::<u32>("rate") {
        body["rate"] = json!(rate);
    }
    if let Some(canary) = canary::given(matches) {
        body["canary"] = canary;
    }
    if let Some(reason) = matches.get_one::<String>("reason") {
        body["reason"] = json!(reason);
    }
    if matches.get_flag("dry-run") {
        body["dry_run"] = json!(true);
    }
    begin(client, matches, &body, as_json).await
}

fn cells(job: &Value) -> Vec<String> {
    let dead_letter = job.get("dead_letter").unwrap_or(&Value::Null);
    vec![
        text(job, "id"),
        text(job, "kind"),
        text(job, "queue"),
        text(dead_letter, "failed_at"),
        text(dead_letter, "fingerprint"),
        text(dead_letter, "status"),
        brief(&text(job, "last_error"), 60),
    ]
}

async fn groups(client: &Client, matches: &ArgMatches, as_json: bool) -> CommandResult {
    let wanted = *matches.get_one::<u32>("limit").unwrap_or(&20) as usize;
    let mut path = format!("/v1/dead-letters/groups?limit={}", wanted.clamp(1, 200));
    if let Some(kind) = matches.get_one::<String>("kind") {
        path.push_str(&format!("&kind={}", encoded(kind)));
    }
    let (mut groups, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = client.get_page(&format!("{path}{cursor}"), cursor.is_empty()).await?;
        groups.extend(page.rows("data"));
        match page.get("next_cursor").and_then(Value::as_str) {
            Some(next) if groups.len() < wanted => cursor = format!("&cursor={next}"),
            _ => break,
        }
    }
    groups.truncate(wanted);
    if as_json {
        println!("{:#}", Json::list(&groups));
        return Ok(());
    }
    let mut table = table(["GROUP", "KIND", "OPEN", "FIRST SEEN", "LAST SEEN", "ERROR"]);
    for group in &groups {
        let more = if group.get("capped").and_then(Value::as_bool) == Some(true) { "+" } else { "" };
        table.add_row([
            text(group, "fingerprint"),
            text(group, "kind"),
            format!("{}{more}", number(group, "open")),
            text(group, "first_seen"),
            text(group, "last_seen"),
            brief(&text(group, "error"), 80),
        ]);
    }
    println!("{table}");
    Ok(())
}

fn show_group(group: &Value) {
    for field in ["fingerprint", "kind", "error", "first_seen", "last_seen", "sample", "sample_error"] {
        println!("{field:<12} {}", printable(&text(group, field)));
    }
    for field in ["open", "replayed", "discarded"] {
        println!("{field:<12} {}", number(group, field));
    }
}
