//! `tickr enqueue KIND PAYLOAD`: enqueue one job through the API.

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, value_parser};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::client::{self, Client, Failed, LAST_CALL};
use crate::json::{Body, Json};
use crate::print::{self, printable};
use crate::stream::{patience, patience_of};
use crate::{CommandResult, Failure, WrongUsage, ending};

/// Longest wait that the API accepts in one call.
const MAX_CALL: Duration = Duration::from_secs(30);
/// Shortest time between two reads of a job. A server that stops answers at once, however long it was asked to wait.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub(crate) fn command() -> Command {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let command = Command::new("enqueue")
        .about("Enqueue one job through the API")
        .long_about(
            "Enqueue one job and print its id and its state. With --quiet, print the id alone, for scripts.\n\n\
             With --wait, wait for the end of the job and print its result; the exit code then shows how the job \
             ended: 0 completed, 3 failed, 4 cancelled, 5 not over yet when the time is up, or its state cannot be \
             read. A restart of the server does not end the wait. Without --wait, 0 means accepted.\n\n\
             When an answer is lost, the request is repeated with its idempotency key, and enqueues nothing twice. 1 \
             means that nothing was enqueued, 2 wrong usage, and 5 also that the job may be enqueued: no answer came \
             within --patience, or the id could not be printed. With --idempotency-key, 1 means that nothing was \
             enqueued by earlier runs either: without an answer of tickr the code is 5 at once.",
        )
        .arg(Arg::new("kind").required(true).value_name("KIND").help("Kind of the job, one of the registered kinds"))
        .arg(
            Arg::new("payload")
                .value_name("JSON")
                .default_value("{}")
                .help("Payload of the job; @FILE reads a file, - reads standard input"),
        )
        .arg(text("queue", "NAME", "Queue of the job [default: default]"))
        .arg(
            text("at", "TIME", "Start at this time, such as 2027-01-01T10:00:00Z")
                .value_parser(moment)
                .conflicts_with("delay-ms"),
        )
        .arg(
            text("delay-ms", "MS", "Start this many milliseconds from now")
                .value_parser(milliseconds)
                .allow_negative_numbers(true),
        )
        .arg(text("max-attempts", "N", "Attempts before the job fails").value_parser(value_parser!(u32)))
        .arg(
            text("timeout-ms", "MS", "Time limit of one attempt, in milliseconds")
                .value_parser(milliseconds)
                .allow_negative_numbers(true),
        )
        .arg(text("priority", "LEVEL", "0 runs first, 9 last").value_parser(value_parser!(u8)))
        .arg(text("unique-key", "KEY", "Unique key: at most one unfinished job per kind and unique key"))
        .arg(
            text(
                "unique-field",
                "POINTER",
                "Make the unique key from this field of the payload, such as /to; repeatable",
            )
            .action(ArgAction::Append)
            .conflicts_with("unique-key"),
        )
        .group(ArgGroup::new("unique").args(["unique-key", "unique-field"]).multiple(true))
        .arg(
            text(
                "on-conflict",
                "WHAT",
                "When an unfinished job has the unique key: return that job, reject this one, replace that job, or postpone \
                 that job to the due time of this one",
            )
            .value_parser(["return", "reject", "replace", "postpone"])
            .requires("unique"),
        )
        .arg(
            text(
                "unique-until",
                "WHEN",
                "The job gives up its unique key at its end, or to the next job that asks after its start",
            )
            .value_parser(["end", "start"])
            .requires("unique"),
        )
        .arg(
            text(
                "unique-for",
                "DURATION",
                "Keep the unique key taken for at least this long, such as 1h, also when the job completes before",
            )
            .value_parser(duration)
            .requires("unique"),
        )
        .arg(
            text("max-wait", "DURATION", "Postpone the job at most until this long after its acceptance, such as 10m")
                .value_parser(duration)
                .requires("on-conflict"),
        )
        .arg(text(
            "order-key",
            "KEY",
            "Order key: jobs with the same one run one at a time, in the order of acceptance",
        ))
        .arg(
            text(
                "on-failure",
                "WHAT",
                "When the job fails for good: block the jobs behind it, or skip to the next one",
            )
            .value_parser(["block", "skip"])
            .requires("order-key"),
        )
        .arg(
            text("expires-in", "DURATION", "Fail the job if it has not started after this time, such as 10m")
                .value_parser(duration),
        )
        .arg(
            text("retry-delays", "DURATIONS", "Delays before the second attempt, the third, and so on, such as 1s,5s,1m")
                .value_parser(duration)
                .value_delimiter(','),
        )
        .arg(
            text("after", "ID", "Wait until this job has completed; repeat it for several jobs")
                .action(ArgAction::Append)
                .conflicts_with("order-key"),
        )
        .arg(
            text(
                "on-parent-failure",
                "WHAT",
                "When a job of --after fails for good or is cancelled: cancel this one, run it nevertheless, or hold it until \
                 the other one has been retried",
            )
            .value_parser(["cancel", "run", "hold"])
            .requires("after"),
        )
        .arg(text("batch", "ID", "Add the job to this batch; see `tickr batches`"))
        .arg(text("limit-key", "KEY", "Limit key: limits count the jobs with the same one; see `tickr limits`"))
        .arg(client::idempotency_key())
        .arg(patience())
        .arg(
            text("wait", "DURATION", "Wait at most this long for the end of the job, such as 30s or 10m")
                .value_parser(duration),
        )
        .arg(
            Arg::new("quiet")
                .long("quiet")
                .short('q')
                .action(ArgAction::SetTrue)
                .conflicts_with("json")
                .help("Print only the id"),
        )
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print the job as JSON"));
    client::args(command)
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let mut job = Map::new();
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    job.insert("kind".into(), text("kind").into());
    let payload = payload(&text("payload").unwrap_or_default())?;
    let texts = [
        ("queue", "queue"),
        ("at", "execute_at"),
        ("unique-key", "unique_key"),
        ("on-conflict", "on_conflict"),
        ("unique-until", "unique_until"),
        ("order-key", "order_key"),
        ("on-failure", "on_failure"),
        ("limit-key", "limit_key"),
        ("on-parent-failure", "on_parent_failure"),
        ("batch", "batch"),
    ];
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
    if let Some(parents) = matches.get_many::<String>("after") {
        job.insert("after".into(), parents.cloned().collect::<Vec<_>>().into());
    }
    if let Some(pointers) = matches.get_many::<String>("unique-field") {
        job.insert("unique_fields".into(), pointers.cloned().collect::<Vec<_>>().into());
    }
    for (flag, field) in [("unique-for", "unique_for_ms"), ("max-wait", "max_wait_ms"), ("expires-in", "expires_in_ms")]
    {
        if let Some(time) = matches.get_one::<Duration>(flag) {
            job.insert(field.into(), u64::try_from(time.as_millis()).unwrap_or(u64::MAX).into());
        }
    }
    if let Some(delays) = matches.get_many::<Duration>("retry-delays") {
        let delays: Vec<u64> = delays.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).collect();
        job.insert("retry".into(), serde_json::json!({"delays_ms": delays}));
    }
    if let Some(value) = matches.get_one::<u32>("max-attempts") {
        job.insert("max_attempts".into(), (*value).into());
    }
    if let Some(value) = matches.get_one::<u8>("priority") {
        job.insert("priority".into(), (*value).into());
    }
    let client = Client::from_matches(matches)?;
    crate::run_to_end(async {
        let body = Body { fields: job, ..Body::written("payload", payload) };
        // With a key of its own, a request whose answer is lost can be repeated.
        let given = text("idempotency-key");
        let may_be_repeated = given.is_some();
        let key = given.unwrap_or_else(|| Uuid::new_v4().to_string());
        let say = |word: &str| eprintln!("tickr: {word}");
        let asked = client.post_until_known("/v1/jobs", &body, &key, may_be_repeated, patience_of(matches), say).await;
        let mut job = asked.map_err(|failed| match failed {
            Failed::NotDone(error) => Failure::from(error),
            Failed::Unknown(error) => ending::perhaps(&key, error),
        })?;
        let id = client::id_of(&job).map_err(|error| ending::perhaps(&key, error))?;
        crate::note_enqueued(&id);
        let (as_json, quiet) = (matches.get_flag("json"), matches.get_flag("quiet"));
        // The id is printed before the wait, so that an interrupted script knows which job it enqueued.
        if quiet {
            println!("{id}");
        }
        // With --json the warnings are part of the printed job.
        let warnings = job.get("warnings").and_then(Value::as_array).filter(|_| !as_json);
        for warning in warnings.into_iter().flatten() {
            eprintln!("tickr: {}", printable(warning.as_str().unwrap_or_default()));
        }
        let wait = matches.get_one::<Duration>("wait");
        if !quiet && !as_json {
            print!("{id} ");
            let _ = std::io::stdout().flush();
        }
        if let Some(wait) = wait {
            if as_json {
                eprintln!("tickr: job {id}");
            }
            job = until_over(&client, &id, *wait).await.map_err(|error| {
                if !quiet && !as_json {
                    println!();
                }
                ending::unknown(&id, error)
            })?;
        }
        if as_json {
            if wait.is_none() {
                job = with_held(&client, &id, job).await;
            }
            println!("{job:#}");
        } else if !quiet {
            println!("{}", print::text(&job, "state"));
            if let Some(result) = job.part("result") {
                println!("{result}");
            }
        }
        if wait.is_none() {
            return Ok(());
        }
        ending::to_exit_code(&job, as_json).map_err(|failure| match failure {
            // Exit code 1 would say that nothing was enqueued.
            Failure { code: 1, error: Some(error) } => ending::unknown(&id, error),
            known => known,
        })
    })?
}

/// Say of a new job that it is held behind its order key or its parents. The answer to a request with an idempotency key
/// is made before MySQL knows. A job that cannot be read is returned as it is.
async fn with_held(client: &Client, id: &str, job: Json) -> Json {
    let may_be_held = ["order_key", "after"].iter().any(|field| job.get(*field).is_some());
    if !may_be_held || job.get("held").is_some() {
        return job;
    }
    let path = format!("/v1/jobs/{id}");
    let Ok(read) = tokio::time::timeout(LAST_CALL, client.get(&path)).await else { return job };
    match read.ok().and_then(|read| read.part("held")) {
        Some(held) => job.with("held", &held),
        None => job,
    }
}

/// Wait until a job has ended, but at most for `wait`, also while its server restarts. Return the job as it is then. A
/// server that says nothing has [`LAST_CALL`] more.
async fn until_over(client: &Client, id: &str, wait: Duration) -> anyhow::Result<Json> {
    let end = Instant::now() + wait;
    loop {
        let asked = Instant::now();
        let wait = end.saturating_duration_since(asked).min(MAX_CALL);
        // Only the wait counts here. If this call fails for good, the next one fails as well.
        let path = format!("/v1/jobs/{id}/result?wait={}ms", wait.as_millis());
        let _ = tokio::time::timeout(wait + LOOK_EVERY, client.get(&path)).await;
        let path = format!("/v1/jobs/{id}");
        let longest = end.saturating_duration_since(Instant::now()) + LAST_CALL;
        let read = tokio::time::timeout(longest, client.get_until(&path, end, |_| {})).await;
        let job = read.map_err(|_| anyhow::anyhow!("no answer came from {}", client.url()))??;
        let over = ["completed", "failed", "cancelled"].contains(&print::text(&job, "state").as_str());
        let now = Instant::now();
        if over || now >= end {
            return Ok(job);
        }
        tokio::time::sleep((asked + LOOK_EVERY).min(end).saturating_duration_since(now)).await;
    }
}

/// Parse the time of a flag. The API checks it as well, but only after a call.
pub(crate) fn moment(text: &str) -> Result<String, String> {
    match chrono::DateTime::parse_from_rfc3339(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("write the time in RFC 3339 with an offset, such as 2027-01-01T10:00:00Z".to_owned()),
    }
}

fn milliseconds(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "write a whole number of milliseconds, 0 or more, such as 30000 for 30 s".to_owned())
}

/// Parse the duration of a flag.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    tickr::config::parse_duration(text)
        .map_err(|wrong| format!("{wrong}; write a duration such as 250ms, 30s, 15m or 2h"))
}

/// Read the JSON of an argument: the argument itself, a file after `@`, or standard input for `-`. Numbers stay as they
/// are written there.
pub(crate) fn payload(text: &str) -> anyhow::Result<Json> {
    let read = match text.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file).with_context(|| format!("read {file}"))?,
        None if text == "-" => std::io::read_to_string(std::io::stdin()).context("read standard input")?,
        None => text.to_owned(),
    };
    Ok(Json::parse(read.as_bytes()).map_err(|why| WrongUsage(format!("the payload is not JSON: {why}")))?)
}
