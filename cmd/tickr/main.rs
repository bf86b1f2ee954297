//! The `tickr` command: one file per subcommand.

// First: its macros are for all that follow.
#[macro_use]
mod print;

mod bench;
mod check;
mod client;
mod completions;
mod config;
mod dead;
mod dev;
mod ending;
mod enqueue;
mod events;
mod jobs;
mod keys;
mod migrate;
mod operations;
mod queues;
mod rebuild;
mod runners;
mod schedules;
mod serve;
mod stream;
mod top;
mod verify;
mod watch;

use std::process::ExitCode;

use clap::{ArgMatches, Command};
use tickr::config::{Config, Flags, Loaded};
use tickr::handlers::Registry;

/// Exit codes: 0 done, 1 failed, 2 wrong usage or configuration; `tickr enqueue --wait` and `tickr jobs watch` have
/// their own beside them.
fn main() -> ExitCode {
    // Started by a runner. No command of the list below: it is of no use to people.
    if tickr::app::is_for_a_suspect() {
        return tickr::app::run_suspect(Registry::new());
    }
    end_with_the_reader();
    // One TLS implementation for everything, chosen before anybody asks for one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let command = Command::new("tickr")
        .about("A durable job runner for teams on MySQL")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help(
            "Settings: flags > TICKR_* environment > tickr.toml > default. `tickr config` shows the effective ones.",
        )
        .subcommands([
            serve::command(),
            dev::command(),
            migrate::command(),
            enqueue::command(),
            jobs::command(),
            schedules::command(),
            dead::command(),
            operations::command(),
            keys::command(),
            queues::command(),
            runners::command(),
            events::command(),
            rebuild::command(),
            verify::command(),
            check::command(),
            bench::command(),
            config::command(),
            top::command(),
            completions::command(),
        ]);
    let matches = command.clone().get_matches();
    let outcome = match matches.subcommand() {
        Some(("serve", matches)) => serve::run(matches),
        Some(("dev", matches)) => dev::run(matches),
        Some(("migrate", matches)) => migrate::run(matches),
        Some(("enqueue", matches)) => enqueue::run(matches),
        Some(("jobs", matches)) => jobs::run(matches),
        Some(("queues", matches)) => queues::run(matches),
        Some(("runners", matches)) => runners::run(matches),
        Some(("events", matches)) => events::run(matches),
        Some(("schedules", matches)) => schedules::run(matches),
        Some(("dead", matches)) => dead::run(matches),
        Some(("operations", matches)) => operations::run(matches),
        Some(("keys", matches)) => keys::run(matches),
        Some(("rebuild", matches)) => rebuild::run(matches),
        Some(("verify", matches)) => verify::run(matches),
        Some(("check", matches)) => check::run(matches),
        Some(("bench", matches)) => bench::run(matches),
        Some(("config", matches)) => config::run(matches),
        Some(("top", matches)) => top::run(matches),
        Some(("completions", matches)) => completions::run(matches, command),
        // clap refuses every other word.
        _ => Ok(()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, error }) => {
            // `{:#}` for the chain of causes; returning the error from main would print a backtrace.
            if let Some(error) = error {
                eprintln!("tickr: {error:#}");
            }
            ExitCode::from(code)
        }
    }
}

/// `tickr jobs list | head` ends when `head` has seen enough, as other commands do: without a word, with the exit code that
/// a shell gives to SIGPIPE.
fn end_with_the_reader() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info
            .payload_as_str()
            .is_some_and(|said| said.starts_with("failed printing to stdout") && said.contains("Broken pipe"))
        {
            std::process::exit(141);
        }
        usual(info);
    }));
}

/// Why a subcommand failed, and its exit code.
struct Failure {
    code: u8,
    /// Nothing is said without one.
    error: Option<anyhow::Error>,
}

impl Failure {
    fn new(code: u8, error: impl Into<anyhow::Error>) -> Self {
        Self { code, error: Some(error.into()) }
    }

    /// With a word to nobody.
    const fn quiet(code: u8) -> Self {
        Self { code, error: None }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error: anyhow::Error = error.into();
        let usage = error.is::<tickr::config::ConfigErrors>();
        Self::new(if usage { 2 } else { 1 }, error)
    }
}

type Done = Result<(), Failure>;

/// The configuration for a subcommand whose arguments came from the table of settings.
fn load(matches: &ArgMatches, requiring: &[&'static str]) -> Result<Loaded, Failure> {
    load_flags(&Flags::from_matches(matches).requiring(requiring))
}

fn load_flags(flags: &Flags) -> Result<Loaded, Failure> {
    let loaded = Config::load(flags, Config::process_env(), Config::usual_file())?;
    tickr::telemetry::init_logs(&loaded.config.log, loaded.config.log_format == tickr::config::LogFormat::Json);
    for warning in &loaded.warnings {
        tracing::warn!("{}: {}", warning.setting, warning.message);
    }
    Ok(loaded)
}

/// A runtime for a server or a short command.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}
