//! `tickr bench`: measure this build on this machine, and the bare store for comparison.

use std::time::Duration;

use anyhow::Context as _;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use tickr::app::{SHUTDOWN, Signals};
use tickr::bench::{BenchError, BenchServers, BenchSettings, LEAST_PAYLOAD, Report, Scenario, run as measure, table};
use tickr::job::TablePrefix;
use tickr::services::{Options, Services};

use crate::{CommandResult, Failure};

/// Largest payload. The API accepts 1 MiB in one request.
const MAX_PAYLOAD: u64 = 512 << 10;
/// Time limit for the removal of databases and keys from servers that keep running.
const SWEEP_LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn command() -> Command {
    let named = Scenario::USUAL.iter().chain(&Scenario::NAMED).map(|scenario| scenario.as_str());
    let all: Vec<&str> = named.chain(["all"]).collect();
    Command::new("bench")
        .about("Measure this build, and the bare store on the same servers for comparison")
        .long_about(
            "Start private MySQL and Redis servers that sync every commit, measure, and print a table: each figure as \
             the median and range of several runs, the same figure of the bare store (the same rows in full batches, \
             without a runner), the ratio of both, and the target if there is one. Every run must complete each job \
             exactly once, without a deadlock.\n\n\
             With --mysql-url and --redis-url the bench uses running servers. It creates databases and keys named \
             tickr_bench_… there and removes them at the end. It touches nothing else, but puts the servers under \
             load.\n\n\
             Exit code 0 when every job completed exactly once, at any speed; 1 when one did not, or when the bench \
             could not finish.",
        )
        .arg(
            Arg::new("scenario")
                .value_name("SCENARIO")
                .value_parser(PossibleValuesParser::new(all))
                .num_args(0..)
                .default_value("all")
                .help(
                    "Scenarios to measure; all is each of them but delayed, limits, workers and runners, which take \
                     minutes",
                ),
        )
        .arg(number("repeat", "N", 1..=100).help("Measured runs of each scenario [default: 3, or 1 with --short]"))
        .arg(number("jobs", "N", 1..=100_000_000).help("Jobs of one run [default: each scenario's own]"))
        .arg(
            Arg::new("short")
                .long("short")
                .action(ArgAction::SetTrue)
                .help("One tiny run of each scenario without a warm-up, to check that everything works"),
        )
        .arg(
            Arg::new("growth")
                .long("growth")
                .action(ArgAction::SetTrue)
                .help("Also measure the drain scenario beside 5 M finished and 1 M waiting jobs, which takes minutes"),
        )
        .arg(
            number("payload", "BYTES", LEAST_PAYLOAD as u64..=MAX_PAYLOAD)
                .default_value("200")
                .help("Size of each payload"),
        )
        .arg(
            number("callers", "N", 1..=4_096)
                .default_value("32")
                .help("Concurrent callers of the library, and remote workers that fetch batches"),
        )
        .arg(number("connections", "N", 1..=4_096).default_value("64").help("Concurrent HTTP connections"))
        .arg(number("workers", "N", 1..=4_096).default_value("1024").help("Workers of the measured runner"))
        .arg(
            number("commit-delay", "MS", 0..=100)
                .default_value("0")
                .conflicts_with("mysql-url")
                .help("Let the private MySQL hold each group of commits for so many milliseconds")
                .long_help(
                    "Let the private MySQL hold each group of commits for so many milliseconds, as a slow disk or a \
                     replica that acknowledges does. The server writes a binary log, and waits before each sync of it. \
                     Transactions that commit meanwhile share the sync: the first one waits for the whole time, and the \
                     others for the rest of it. MariaDB ends the wait early when a transaction waits for a row lock that \
                     a held one has. The binary log takes space in the folder for temporary files",
                ),
        )
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON"))
        .arg(
            Arg::new("mysql-url")
                .long("mysql-url")
                .value_name("URL")
                .requires("redis-url")
                .help("URL of a running MySQL server; its account must be allowed to create and drop databases"),
        )
        .arg(
            Arg::new("redis-url")
                .long("redis-url")
                .value_name("URL")
                .requires("mysql-url")
                .help("URL of a running Redis server"),
        )
        .arg(
            Arg::new("table-prefix")
                .long("table-prefix")
                .value_name("PREFIX")
                .value_parser(|text: &str| text.parse::<TablePrefix>().map_err(|error| error.to_string()))
                .help("Measure with a prefix before the names of the tables"),
        )
        .arg(
            Arg::new("log")
                .long("log")
                .value_name("FILTER")
                .default_value("error")
                .help("Log filter of the measured runners"),
        )
}

fn number(name: &'static str, unit: &'static str, range: std::ops::RangeInclusive<u64>) -> Arg {
    Arg::new(name).long(name).value_name(unit).value_parser(value_parser!(u64).range(range))
}

pub(crate) fn run(matches: &ArgMatches) -> CommandResult {
    let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
    tickr::telemetry::init_logs(text("log").unwrap_or("error"), false, tickr::config::Config::defaults().attempt_log);
    let settings = settings(matches)?;
    // Register signals before the servers start, so that Ctrl-C during their start also stops them in order.
    let runtime = crate::runtime()?;
    let mut signals = runtime.block_on(async { Signals::register() })?;
    let (services, ground) = match (text("mysql-url"), text("redis-url")) {
        (Some(mysql), Some(redis)) => (None, BenchServers::new(mysql, redis).map_err(wrong_usage)?),
        _ => {
            let services = private_servers(&settings)?;
            let ground = BenchServers::new(&services.mysql_url("tickr"), &services.redis_url())?.private();
            (Some(services), ground)
        }
    };
    let ground = ground.with_table_prefix(matches.get_one::<TablePrefix>("table-prefix").cloned().unwrap_or_default());
    let outcome = runtime.block_on(async {
        tokio::select! {
            report = measure(&settings, &ground) => report.map_err(anyhow::Error::from),
            signal = signals.next() => Err(anyhow::anyhow!("stopped by {signal} before the end")),
        }
    });
    // End all tasks first: none may write into the databases that are removed next.
    runtime.shutdown_timeout(SHUTDOWN);
    let swept = match &services {
        // Private servers are removed with everything they hold.
        Some(_) => Ok(()),
        None => sweep(&ground),
    };
    drop(services);
    let report = outcome?;
    if matches.get_flag("json") {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", table(&report));
    }
    swept?;
    judge(&report)
}

fn settings(matches: &ArgMatches) -> Result<BenchSettings, Failure> {
    let number = |name: &str| matches.get_one::<u64>(name).copied();
    let size = |name: &str| number(name).and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
    let short = matches.get_flag("short");
    let named: Vec<&str> = matches.get_many::<String>("scenario").into_iter().flatten().map(String::as_str).collect();
    let named_one = |scenario: &Scenario| named.contains(&scenario.as_str());
    let wanted = |scenario: &Scenario| named.contains(&"all") || named_one(scenario);
    let mut scenarios: Vec<Scenario> = Scenario::USUAL.into_iter().filter(wanted).collect();
    scenarios.extend(Scenario::NAMED.into_iter().filter(named_one));
    if matches.get_flag("growth") {
        scenarios.push(Scenario::Growth);
    }
    Ok(BenchSettings {
        scenarios,
        repeat: number("repeat").map_or(if short { 1 } else { 3 }, |n| n as usize),
        jobs: number("jobs"),
        short,
        payload_bytes: size("payload"),
        callers: size("callers"),
        connections: size("connections"),
        workers: size("workers"),
        commit_delay_ms: number("commit-delay").unwrap_or(0),
        program: std::env::current_exe().context("find this program")?,
    })
}

/// Start private servers that are as durable as a real installation: they sync every commit. Their memory is that of a
/// database on a small machine.
fn private_servers(settings: &BenchSettings) -> Result<Services, Failure> {
    let dir = std::env::temp_dir().join(format!("tickr-bench-{}", std::process::id()));
    let options = Options::ephemeral(dir)
        .durable(true)
        .commit_delay(Duration::from_millis(settings.commit_delay_ms))
        // Each of 32 runners opens 54 connections at most.
        .mysql_flag("--max-connections=2000");
    let options = if settings.short { options } else { options.large() };
    Ok(Services::start(&options)?)
}

/// Remove the bench's databases and keys from servers that keep running, also after an interruption.
fn sweep(ground: &BenchServers) -> CommandResult {
    let swept = crate::runtime()?.block_on(async { tokio::time::timeout(SWEEP_LIMIT, ground.sweep()).await });
    let swept = swept.map_err(anyhow::Error::from).and_then(|swept| swept.map_err(anyhow::Error::from));
    Ok(swept.context("databases named tickr_bench_… may be left over")?)
}

fn judge(report: &Report) -> CommandResult {
    if report.ok {
        return Ok(());
    }
    Err(Failure::new(1, anyhow::anyhow!("{}", report.faults().join("\n"))))
}

fn wrong_usage(error: BenchError) -> Failure {
    Failure::new(2, error)
}
