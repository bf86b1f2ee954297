//! From the command line to the end of the process, for `tickr serve` and for programs with kinds of their own.

use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgMatches, Command};

use super::check::check_pending;
use super::open_files;
use super::{App, Reload, Signals, StartError, Supervisor, is_for_a_suspect, run_suspect};
use crate::config::{Config, ConfigErrors, Flags, LogFormat, Subset};
use crate::engine::ChildProgram;
use crate::handlers::Registry;
use crate::telemetry::init_logs;

/// Time that threads have to end when the ordered stop could not reach them.
pub const SHUTDOWN: Duration = Duration::from_secs(1);

/// Run a whole tickr, with the built-in kinds and those in `own`, until SIGTERM, SIGINT or SIGHUP. Under a supervisor that
/// sets `NOTIFY_SOCKET`, SIGHUP makes it read its configuration again instead.
///
/// Takes the flags, the `TICKR_*` environment variables and the `tickr.toml` of `tickr serve`. With the subcommand
/// `check` it runs no job: it tells whether the handlers of this binary can read the payloads of all unfinished jobs,
/// as `tickr check --pending` does. Use it before a rollout. Exit codes: 0 stopped on request, 1 could not start or a
/// job would be rejected, 2 wrong usage or configuration.
///
/// Call it first in `main`, and leave the standard input to it: for a job that lost two attempts in a row, a runner
/// starts this program with the subcommand `run-suspect`, and talks to it there.
///
/// ```no_run
/// use tickr::handlers::Registry;
///
/// fn main() -> std::process::ExitCode {
///     tickr::run(Registry::new())
/// }
/// ```
#[must_use]
pub fn run(own: Registry) -> ExitCode {
    if is_for_a_suspect() {
        return run_suspect(own);
    }
    let word =
        Command::new("check").about("Check whether this binary can read all unfinished jobs, and run none of them");
    let command = Command::new("tickr").about("Run jobs and the HTTP API until SIGTERM");
    let command = Flags::args(command, Subset::All).subcommand(Flags::args(word, Subset::All));
    let matches = command.get_matches();
    let done = match matches.subcommand() {
        Some((_, matches)) => check(matches, own),
        None => serve_with(&matches, own, Suspects::InChildren),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tickr: {error:#}");
            exit_code(&error)
        }
    }
}

fn check(matches: &ArgMatches, own: Registry) -> anyhow::Result<()> {
    let flags = Flags::from_matches(matches).requiring(&["mysql_url"]);
    let config = Config::load(&flags, Config::process_env(), Config::usual_file())?.config;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let found = runtime.block_on(check_pending(&config, own, |_| {}))?;
    print!("{found}");
    found.refusal().map_or(Ok(()), |refusal| Err(anyhow::anyhow!(refusal)))
}

/// Place where suspects run: jobs that lost two attempts in a row because their runners died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspects {
    /// In child processes of this same program. Its `main` must call [`is_for_a_suspect`] first.
    InChildren,
    /// In this process, one at a time.
    Here,
}

/// Run as [`run`] does, for a command whose arguments were made with [`Flags::args`] and are already parsed. Suspects
/// run in this process, because the `main` of the program is not known.
///
/// # Errors
/// When the configuration is wrong or the start fails.
pub fn serve(matches: &ArgMatches, own: Registry) -> anyhow::Result<()> {
    serve_with(matches, own, Suspects::Here)
}

/// Run as [`serve`] does. `suspects` tells where suspects run.
///
/// # Errors
/// As [`serve`].
pub fn serve_with(matches: &ArgMatches, own: Registry, suspects: Suspects) -> anyhow::Result<()> {
    let flags = Flags::from_matches(matches).requiring(&["mysql_url", "redis_url"]);
    let loaded = Config::load(&flags, Config::process_env(), Config::usual_file())?;
    init_logs(&loaded.config.log, loaded.config.log_format == LogFormat::Json, loaded.config.attempt_log);
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    open_files::raise(&loaded.config);
    // Use one TLS implementation for all connections. An error means that the program chose one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let child = match suspects {
        Suspects::InChildren => Some(ChildProgram::from_this_process(loaded.sources.clone())?),
        Suspects::Here => None,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome: anyhow::Result<()> = runtime.block_on(async {
        let supervisor = Supervisor::from_env();
        // Registered before the start, so that a signal during the start is not lost.
        let mut signals = Signals::register_under(&supervisor)?;
        tell_what_is_signed(&loaded.config);
        let app = tokio::select! {
            app = supervisor.while_starting(App::start_with(&loaded.config, own, child)) => app?,
            signal = signals.next() => {
                tracing::info!(signal, "stopped before the start was complete");
                supervisor.say_stopping(SHUTDOWN);
                return Ok(());
            }
        };
        app.run_under(&supervisor, &mut signals, Some(Reload::new(flags, &loaded))).await;
        Ok(())
    });
    // Everything is settled. A handler that blocks its thread must not delay the exit.
    runtime.shutdown_timeout(SHUTDOWN);
    outcome.inspect_err(|error| {
        // The program also prints it as plain lines, which a reader of JSON cannot take.
        if loaded.config.log_format == LogFormat::Json {
            tracing::error!(reason = format!("{error:#}"), "tickr does not start");
        }
    })
}

/// Warn when callbacks are not signed: their receiver cannot tell them from forged ones. If some hosts have secrets,
/// the operator has made a choice, so only log it.
fn tell_what_is_signed(config: &Config) {
    match (config.callback_secret.as_slice(), config.callback_host_secrets.as_slice()) {
        ([], []) => tracing::warn!(
            "callbacks are not signed, so that their receivers cannot tell them from others; set callback_secret \
             (TICKR_CALLBACK_SECRET) to whsec_ and the base64 of 32 random bytes"
        ),
        ([], hosts) => {
            let hosts: Vec<String> = hosts.iter().map(|one| one.host.to_string()).collect();
            tracing::info!(hosts = hosts.join(","), "callbacks to these hosts are signed, and no others");
        }
        _ => {}
    }
}

/// Return the exit code for an error: 2 for a wrong configuration, 1 for every other error.
#[must_use]
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(if is_wrong_configuration(error) { 2 } else { 1 })
}

/// Return whether the configuration is wrong, so that another start with it fails in the same way.
#[must_use]
pub fn is_wrong_configuration(error: &anyhow::Error) -> bool {
    error.is::<ConfigErrors>() || error.downcast_ref().is_some_and(StartError::is_wrong_configuration)
}
