//! `tickr jobs list|count|show|log|explain|timeline|cancel|retry|run-now|reschedule|set-priority|set-payload|watch`: read,
//! change and follow jobs through the API.

use std::time::Duration;

use anyhow::anyhow;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, value_parser};
use serde_json::{Value, json};

use crate::CommandResult;
use crate::client::{self, Client};
use crate::json::{Body, Json};
use crate::print::{Listing, brief, duration_text, encoded, number, printable, table, text};
use crate::{enqueue, watch};

pub(crate) fn command() -> Command {
    let json = || Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON");
    let id = || Arg::new("id").required(true).value_name("ID").help("The job's id");
    let one =
        |name: &'static str, about: &'static str| client::args(Command::new(name).about(about).arg(id()).arg(json()));
    Command::new("jobs")
        .about("Read, change and follow jobs through the API")
        .subcommand_required(true)
        .subcommand(client::args(
            Command::new("list").about("List jobs, newest first").args(client::filter()).arg(limit()).arg(json()),
        ))
        .subcommand(client::args(
            Command::new("count").about("Count the jobs that match a filter").args(client::filter()).arg(json()),
        ))
        .subcommand(one("show", "Show a job with its attempts, and the reasons if it waits"))
        .subcommand(client::args(
            Command::new("log").about("Print the lines that an attempt of a job wrote").arg(id()).arg(
                Arg::new("attempt")
                    .long("attempt")
                    .value_name("N")
                    .value_parser(value_parser!(u32).range(1..))
                    .help("Number of the attempt; default: the newest one with a log"),
            ),
        ))
        .subcommand(one("explain", "List the reasons why a job does not run, the most important first"))
        .subcommand(one("timeline", "Show where the time of a job went: waits with their causes, attempts, backoffs"))
        .subcommand(
            one("cancel", "Cancel a job").arg(client::idempotency_key()).arg(
                Arg::new("unless-executing")
                    .long("unless-executing")
                    .action(ArgAction::SetTrue)
                    .help("Leave the job alone if it is running"),
            ),
        )
        .subcommand(one("retry", "Run a failed or cancelled job again").arg(client::idempotency_key()))
        .subcommand(one("run-now", "Make a waiting job due now").arg(client::idempotency_key()))
        .subcommand(
            one("reschedule", "Change the due time of a waiting job")
                .arg(
                    Arg::new("at")
                        .long("at")
                        .value_name("TIME")
                        .value_parser(enqueue::moment)
                        .help("New due time, such as 2027-01-01T10:00:00Z"),
                )
                .arg(
                    Arg::new("in")
                        .long("in")
                        .value_name("DURATION")
                        .value_parser(enqueue::duration)
                        .help("New due time as a delay from now, such as 30s, 15m or 2h"),
                )
                .group(ArgGroup::new("when").args(["at", "in"]).required(true)),
        )
        .subcommand(
            one("set-priority", "Change the priority of a waiting job").arg(
                Arg::new("priority")
                    .required(true)
                    .value_name("0-9")
                    .value_parser(value_parser!(u8).range(0..=9))
                    .help("0 runs first, 9 last"),
            ),
        )
        .subcommand(one("set-payload", "Change the payload of a waiting job").arg(
            Arg::new("payload").required(true).value_name("JSON").help("JSON text, @FILE, or - for standard input"),
        ))
        .subcommand(watch::command())
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let Some((verb, matches)) = matches.subcommand() else { return Ok(()) };
    if verb == "watch" {
        return watch::run(matches);
    }
    let client = Client::from_matches(matches)?;
    if verb == "log" {
        return crate::run_to_end(log(&client, matches))?;
    }
    let as_json = matches.get_flag("json");
    crate::run_to_end(async {
        if verb == "list" {
            return list(&client, matches, as_json).await;
        }
        if verb == "count" {
            return count(&client, matches, as_json).await;
        }
        let id = encoded(matches.get_one::<String>("id").map_or("", String::as_str));
        let path = format!("/v1/jobs/{id}");
        let job = match verb {
            "explain" => {
                let explanation = client.get(&format!("{path}/explain")).await?;
                if as_json {
                    println!("{explanation:#}");
                } else {
                    print_reasons(&explanation);
                }
                return Ok(());
            }
            "timeline" => {
                let timeline = client.get(&format!("{path}/timeline")).await?;
                if as_json {
                    println!("{timeline:#}");
                } else {
                    print_timeline(&timeline);
                }
                return Ok(());
            }
            "show" => client.get(&path).await?,
            "reschedule" => {
                let change = match (matches.get_one::<String>("at"), matches.get_one::<Duration>("in")) {
                    (Some(at), _) => json!({"execute_at": at}),
                    (_, delay) => json!({"delay_ms": delay.map(Duration::as_millis)}),
                };
                client.patch(&path, &change).await?
            }
            "set-priority" => client.patch(&path, &json!({"priority": matches.get_one::<u8>("priority")})).await?,
            "set-payload" => {
                let given = matches.get_one::<String>("payload").cloned().unwrap_or_default();
                client.patch(&path, &Body::written("payload", enqueue::payload(&given)?)).await?
            }
            "cancel" if matches.get_flag("unless-executing") => {
                let key = matches.get_one::<String>("idempotency-key");
                client.post(&format!("{path}/cancel?unless=executing"), &json!({}), key).await?
            }
            verb => {
                let key = matches.get_one::<String>("idempotency-key");
                client.post(&format!("/v1/jobs/{id}/{verb}"), &json!({}), key).await?
            }
        };
        if as_json {
            println!("{job:#}");
        } else {
            show(&job);
            if verb == "show" && ["waiting", "retrying"].contains(&text(&job, "state").as_str()) {
                println!("why it waits");
                let reasons = client.get(&format!("{path}/explain")).await?;
                print_reasons(&reasons);
            }
        }
        Ok(())
    })?
}

/// Print the log of an attempt. What is said about the attempt goes to standard error, so that standard output has the
/// log alone.
async fn log(client: &Client, matches: &ArgMatches) -> CommandResult {
    let id = matches.get_one::<String>("id").map_or("", String::as_str);
    let path = format!("/v1/jobs/{}", encoded(id));
    let number = match matches.get_one::<u32>("attempt") {
        Some(number) => u64::from(*number),
        None => {
            let job = client.get(&path).await?;
            let attempts = job.get("attempts").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let newest = attempts.iter().rev().find(|attempt| attempt.get("log_bytes").is_some());
            let Some(newest) = newest else {
                return Err(without_log(&printable(id), attempts).into());
            };
            // Of thousands of attempts the answer has the last ones, and their numbers count those before them.
            let last = attempts.last().map_or(0, |last| number(last, "number"));
            let (number, verdict) = (number(newest, "number"), text(newest, "verdict"));
            eprintln!("attempt {number} of {last}: {}", printable(&verdict));
            number
        }
    };
    print!("{}", client.get_text(&format!("{path}/attempts/{number}/log")).await?);
    Ok(())
}

/// Return the error for a job of which none of these attempts has a log. Those before them may have one.
fn without_log(id: &str, attempts: &[Value]) -> anyhow::Error {
    if attempts.first().is_some_and(|first| number(first, "number") > 1) {
        return anyhow!(
            "none of the last {} attempts of job {id} has a log; name an earlier one with --attempt",
            attempts.len()
        );
    }
    anyhow!("no attempt of job {id} has a log")
}

/// Print the reasons of an explanation, one line each.
fn print_reasons(explanation: &Value) {
    for reason in explanation.get("reasons").and_then(Value::as_array).into_iter().flatten() {
        println!("  {:<18} {}", text(reason, "code"), printable(&text(reason, "text")));
    }
}

/// Print the segments of a timeline, one line each.
fn print_timeline(timeline: &Value) {
    let mut table = table(["FROM", "FOR", "CAUSE", "WHAT HAPPENED"]);
    for segment in timeline.get("segments").and_then(Value::as_array).into_iter().flatten() {
        let ms = segment.get("ms").and_then(Value::as_f64).unwrap_or_default();
        let so_far = if segment.get("to").is_none_or(Value::is_null) { " so far" } else { "" };
        table.add_row([
            text(segment, "from"),
            format!("{}{so_far}", duration_text(ms as u64)),
            text(segment, "cause"),
            printable(&text(segment, "text")),
        ]);
    }
    println!("{table}");
}

async fn count(client: &Client, matches: &ArgMatches, as_json: bool) -> CommandResult {
    let given = client::filter_given(matches);
    let words: Vec<String> = given.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    let answer = client.get(&format!("/v1/jobs/count?{}", words.join("&"))).await?;
    if as_json {
        println!("{answer:#}");
        return Ok(());
    }
    // The API stops to count at a limit. Such a count is printed with a plus sign.
    let more = if answer.get("capped").and_then(Value::as_bool) == Some(true) { "+" } else { "" };
    println!("{}{more}", number(&answer, "count"));
    Ok(())
}

async fn list(client: &Client, matches: &ArgMatches, as_json: bool) -> CommandResult {
    let mut listing = Listing::new(&["ID", "KIND", "QUEUE", "STATE", "ATTEMPT", "DUE", "LAST ERROR"], as_json);
    each_page(client, matches, "/v1/jobs", &[], |jobs| listing.print_page(jobs, cells)).await?;
    listing.end();
    Ok(())
}

/// Read pages of jobs until there are as many as the flag `limit` requests, and show each before the next is read.
pub(crate) async fn each_page(
    client: &Client,
    matches: &ArgMatches,
    path: &str,
    more: &[(&str, String)],
    mut show: impl FnMut(&[Json]),
) -> anyhow::Result<()> {
    let mut left = *matches.get_one::<u32>("limit").unwrap_or(&20) as usize;
    let mut path = format!("{path}?limit={}", left.clamp(1, 200));
    let given = client::filter_given(matches);
    for (name, value) in given.iter().chain(more) {
        path.push_str(&format!("&{name}={}", encoded(value)));
    }
    let mut cursor: Option<String> = None;
    loop {
        let page = match &cursor {
            Some(cursor) => client.get_page(&format!("{path}&cursor={cursor}"), false).await?,
            None => client.get_page(&path, true).await?,
        };
        let jobs = page.rows("data");
        let jobs = &jobs[..jobs.len().min(left)];
        left -= jobs.len();
        show(jobs);
        cursor = page.get("next_cursor").and_then(Value::as_str).map(str::to_owned);
        if cursor.is_none() || left == 0 {
            return Ok(());
        }
    }
}

/// The argument `limit` of commands that list something.
pub(crate) fn limit() -> Arg {
    Arg::new("limit").long("limit").value_parser(value_parser!(u32)).default_value("20").help("Number of rows")
}

fn cells(job: &Value) -> Vec<String> {
    vec![
        text(job, "id"),
        text(job, "kind"),
        text(job, "queue"),
        text(job, "state"),
        format!("{}/{}", number(job, "attempt"), number(job, "max_attempts")),
        text(job, "execute_at"),
        brief(&text(job, "last_error"), 60),
    ]
}

pub(crate) fn show(job: &Json) {
    for field in ["id", "kind", "queue", "state", "execute_at", "expires_at", "started_at", "finished_at", "last_error"]
    {
        let value = text(job, field);
        if !value.is_empty() {
            println!("{field:<12} {}", printable(&value));
        }
    }
    println!("{:<12} {}/{}", "attempt", number(job, "attempt"), number(job, "max_attempts"));
    for field in ["payload", "result"] {
        if let Some(value) = job.part(field) {
            println!("{field:<12} {value}");
        }
    }
    for attempt in job.get("attempts").and_then(Value::as_array).into_iter().flatten() {
        let verdict = text(attempt, "verdict");
        let verdict = if verdict.is_empty() { "running".to_owned() } else { verdict };
        println!(
            "  #{} {} {} {} {}",
            number(attempt, "number"),
            Some(text(attempt, "started_at"))
                .filter(|at| !at.is_empty())
                .unwrap_or_else(|| text(attempt, "finished_at")),
            verdict,
            text(attempt, "runner"),
            printable(&text(attempt, "error"))
        );
        if let Some(bytes) = attempt.get("log_bytes").and_then(Value::as_u64) {
            println!(
                "     log: {bytes} bytes, `tickr jobs log {} --attempt {}`",
                text(job, "id"),
                number(attempt, "number")
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_without_a_log_is_told_apart_from_one_whose_last_attempts_have_none() {
        let said = |numbers: &[u32]| {
            let attempts: Vec<Value> = numbers.iter().map(|number| json!({"number": number})).collect();
            without_log("j1", &attempts).to_string()
        };
        assert_eq!(said(&[]), "no attempt of job j1 has a log");
        assert_eq!(said(&[1, 2]), "no attempt of job j1 has a log");
        let later = "none of the last 2 attempts of job j1 has a log; name an earlier one with --attempt";
        assert_eq!(said(&[202, 203]), later);
    }
}
