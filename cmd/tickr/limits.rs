//! `tickr limits list|show|set|remove|keys|close`: limits by key, through the API.

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::{Map, Value, json};

use crate::client::{self, Client};
use crate::enqueue::duration;
use crate::print::{encoded, number, printable, table, text};
use crate::{CommandResult, WrongUsage};

pub(crate) fn command() -> Command {
    let json = || Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON");
    let name = || Arg::new("name").required(true).value_name("LIMIT").help("The limit");
    let verb =
        |word: &'static str, about: &'static str| client::args(Command::new(word).about(about).arg(name()).arg(json()));
    let own = |flag: &'static str, value: &'static str, help: &'static str| {
        Arg::new(flag).long(flag).value_name(value).help(help)
    };
    let set = verb("set", "Set a limit: it replaces the one with this name, on every runner within 2 s")
        .arg(own("kind", "KIND", "Only jobs of this kind; all kinds without this"))
        .arg(own("queue", "QUEUE", "Only jobs in this queue; all queues without this"))
        .arg(
            own("shared-by", "WHAT", "The jobs that share the limit: those with the same limit key (`key`), with the same part before the first slash (`parent`), that call the same host (`host`), or `all`")
                .value_parser(["key", "parent", "host", "all"]),
        )
        .arg(own("concurrency", "N", "Most attempts at the same time, for each key").value_parser(value_parser!(u32)))
        .arg(own("rate", "N/DURATION", "Most starts in a period, for each key, such as 100/1m"))
        .arg(
            own("burst", "N", "Number of starts that may come at once, in addition to the rate")
                .value_parser(value_parser!(u32))
                .requires("rate"),
        )
        .arg(
            own("breaker", "N", "Stop calls to a host after this many failures in a row; only with --shared-by host")
                .value_parser(value_parser!(u32)),
        )
        .arg(
            own("breaker-pause", "DURATION", "Time until one call is made again, 10s without this; it doubles with each failure")
                .requires("breaker"),
        )
        .arg(own("breaker-max-pause", "DURATION", "Longest such time, 10m without this").requires("breaker"))
        .arg(
            Arg::new("fair")
                .long("fair")
                .action(ArgAction::SetTrue)
                .help("Keys with waiting jobs share the workers of the runners"),
        )
        .arg(
            own("weight", "KEY=N", "Weight of one key of a fair limit, 1 without this; may be repeated")
                .action(ArgAction::Append)
                .requires("fair"),
        )
        .arg(
            own("override", "KEY=N", "Another concurrency for one key; may be repeated")
                .action(ArgAction::Append),
        );
    Command::new("limits")
        .about("Limit how many jobs with the same limit key run at once or start in a period")
        .subcommand_required(true)
        .subcommand(client::args(Command::new("list").about("List the limits").arg(json())))
        .subcommand(verb("show", "Show a limit"))
        .subcommand(set.arg_required_else_help(true))
        .subcommand(verb("remove", "Remove a limit: the jobs that wait for it start within a few seconds"))
        .subcommand(verb("keys", "List the keys of a limit that have jobs: how many run and how many wait").arg(own(
            "after",
            "KEY",
            "Only keys behind this one",
        )))
        .subcommand(
            verb("close", "Close the breaker of a host: its jobs start as the limit allows")
                .arg(Arg::new("host").required(true).value_name("HOST").help("The host, such as example.com")),
        )
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let Some((verb, matches)) = matches.subcommand() else { return Ok(()) };
    let client = Client::from_matches(matches)?;
    let as_json = matches.get_flag("json");
    crate::run_to_end(async {
        if verb == "list" {
            let answer = client.get("/v1/limits").await?;
            if as_json {
                println!("{answer:#}");
            } else {
                list(answer.get("data").and_then(Value::as_array).into_iter().flatten());
            }
            return Ok(());
        }
        let name = matches.get_one::<String>("name").map_or("", String::as_str);
        let path = format!("/v1/limits/{}", encoded(name));
        let answer = match verb {
            "show" => client.get(&path).await?,
            "set" => client.put(&path, &limit(matches)?).await?,
            "keys" => {
                let after = matches.get_one::<String>("after").map(|key| format!("?after={}", encoded(key)));
                client.get(&format!("{path}/keys{}", after.unwrap_or_default())).await?
            }
            "close" => {
                let host = matches.get_one::<String>("host").map_or("", String::as_str);
                client.post(&format!("{path}/close-breaker"), &json!({"host": host}), None).await?
            }
            _ => {
                client.delete(&path).await?;
                if as_json {
                    println!("{:#}", json!({"removed": name}));
                } else {
                    println!("{} is removed", printable(name));
                }
                return Ok(());
            }
        };
        if as_json {
            println!("{answer:#}");
        } else if verb == "close" {
            let closed = answer.get("closed") == Some(&Value::Bool(true));
            let outcome = if closed { "is closed now" } else { "was not open" };
            println!("the breaker of {} {outcome}", printable(&text(&answer, "host")));
        } else if verb == "keys" {
            keys(&answer);
        } else {
            list(std::iter::once(&*answer));
        }
        Ok(())
    })?
}

fn limit(matches: &ArgMatches) -> anyhow::Result<Value> {
    let mut limit = Map::new();
    for (flag, field) in [("kind", "kind"), ("queue", "queue"), ("shared-by", "shared_by")] {
        if let Some(value) = matches.get_one::<String>(flag) {
            limit.insert(field.into(), value.as_str().into());
        }
    }
    if let Some(concurrency) = matches.get_one::<u32>("concurrency") {
        limit.insert("concurrency".into(), (*concurrency).into());
    }
    if let Some(rate) = matches.get_one::<String>("rate") {
        let wrong = || WrongUsage("--rate must be a number and a duration, such as 100/1m".into());
        let (starts, period) = rate.split_once('/').ok_or_else(wrong)?;
        let starts: u32 = starts.parse().map_err(|_| wrong())?;
        let period_ms = u64::try_from(duration(period).map_err(|_| wrong())?.as_millis())?;
        let mut rate = json!({"starts": starts, "period_ms": period_ms});
        if let Some(burst) = matches.get_one::<u32>("burst") {
            rate["burst"] = (*burst).into();
        }
        limit.insert("rate".into(), rate);
    }
    if let Some(failures) = matches.get_one::<u32>("breaker") {
        let mut breaker = json!({"failures": failures});
        for (flag, field) in [("breaker-pause", "pause_ms"), ("breaker-max-pause", "max_pause_ms")] {
            if let Some(pause) = matches.get_one::<String>(flag) {
                let wrong = |_| WrongUsage(format!("--{flag} must be a duration, such as 10s"));
                breaker[field] = u64::try_from(duration(pause).map_err(wrong)?.as_millis())?.into();
            }
        }
        limit.insert("breaker".into(), breaker);
    }
    if matches.get_flag("fair") {
        limit.insert("fair".into(), true.into());
    }
    let mut overrides = Map::new();
    for (flag, field) in [("override", "concurrency"), ("weight", "weight")] {
        for pair in matches.get_many::<String>(flag).into_iter().flatten() {
            let wrong = || WrongUsage(format!("--{flag} must be a key and a number, such as tenant-7=20"));
            let (key, number) = pair.rsplit_once('=').ok_or_else(wrong)?;
            let number: u32 = number.parse().map_err(|_| wrong())?;
            let own = overrides.entry(key.to_owned()).or_insert_with(|| json!({}));
            own[field] = number.into();
        }
    }
    if !overrides.is_empty() {
        limit.insert("overrides".into(), overrides.into());
    }
    Ok(limit.into())
}

fn list<'a>(limits: impl Iterator<Item = &'a Value>) {
    let mut table =
        table(["LIMIT", "KIND", "QUEUE", "SHARED BY", "AT ONCE", "RATE", "FAIR", "BREAKER", "OVERRIDES", "CHANGED BY"]);
    let or_all = |limit: &Value, field| {
        let value = text(limit, field);
        if value.is_empty() { "all".to_owned() } else { value }
    };
    for limit in limits {
        table.add_row([
            text(limit, "name"),
            or_all(limit, "kind"),
            or_all(limit, "queue"),
            text(limit, "shared_by"),
            concurrency(limit),
            rate(limit),
            if limit.get("fair") == Some(&Value::Bool(true)) { "yes".into() } else { "no".into() },
            limit
                .get("breaker")
                .filter(|breaker| breaker.is_object())
                .map_or_else(|| "no".into(), |breaker| format!("after {}", number(breaker, "failures"))),
            limit.get("overrides").and_then(Value::as_object).map_or(0, Map::len).to_string(),
            printable(&text(limit, "changed_by")),
        ]);
    }
    println!("{table}");
}

fn keys(answer: &Value) {
    let data = || answer.get("data").and_then(Value::as_array).into_iter().flatten();
    let has_breaker = data().any(|key| key.get("breaker").is_some_and(|breaker| !breaker.is_null()));
    let mut heads = vec!["KEY", "RUNNING", "AT ONCE", "RATE", "WAITING", "WAITING SINCE"];
    if has_breaker {
        heads.extend(["BREAKER", "SINCE", "NEXT CALL", "LAST ERROR"]);
    }
    let mut table = table(heads);
    for key in data() {
        let name = text(key, "key");
        let mut row = vec![
            if name.is_empty() { "(all jobs)".to_owned() } else { printable(&name) },
            number(key, "running").to_string(),
            concurrency(key),
            rate(key),
            number(key, "parked").to_string(),
            text(key, "parked_since"),
        ];
        if let Some(breaker) = key.get("breaker").filter(|_| has_breaker) {
            row.extend([
                text(breaker, "state").replace('_', "-"),
                text(breaker, "since"),
                text(breaker, "next_call_at"),
                printable(&text(breaker, "last_error")),
            ]);
        }
        table.add_row(row);
    }
    println!("{table}");
    if let Some(next) = answer.get("next").and_then(Value::as_str) {
        println!("more keys follow: --after {}", printable(next));
    }
}

fn concurrency(of: &Value) -> String {
    of.get("concurrency").and_then(Value::as_u64).map_or_else(|| "no limit".into(), |most| most.to_string())
}

fn rate(of: &Value) -> String {
    let Some(rate) = of.get("rate").filter(|rate| !rate.is_null()) else { return "no limit".into() };
    let period = std::time::Duration::from_millis(rate.get("period_ms").and_then(Value::as_u64).unwrap_or(0));
    format!("{} in {period:?}, {} at once", number(rate, "starts"), number(rate, "burst"))
}
