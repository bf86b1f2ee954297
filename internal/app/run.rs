//! From the command line to the end of the process, for `tickr serve` and for binaries with kinds of their own.

use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgMatches, Command};

use super::check::check_pending;
use super::{App, Signals, is_for_a_suspect, run_suspect};
use crate::config::{Config, Flags, LogFormat, Subset};
use crate::engine::ChildProgram;
use crate::handlers::Registry;
use crate::telemetry::init_logs;

/// How long threads may take that the ordered stop could not reach.
pub const SHUTDOWN: Duration = Duration::from_secs(1);

/// Run a whole tickr, with the kinds that ship and those in `own`, until SIGTERM or SIGINT.
///
/// Takes the flags, the `TICKR_*` environment and the `tickr.toml` of `tickr serve`. With the word `check` it does not run
/// anything, and tells whether the handlers of this binary can read the payloads of all unfinished jobs, as
/// `tickr check --pending` does: to be asked before a rollout. Exit codes: 0 stopped on request, 1 could not start or
/// something would be rejected, 2 wrong usage or configuration.
///
/// Call it first in `main`, and leave the standard input to it: a runner starts this very program with the word
/// `run-suspect` for a job whose last two runners died under it, and speaks with it there.
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
    let word = Command::new("check").about("Check with this binary what waits in MySQL, and run nothing");
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
    anyhow::ensure!(found.failing() == 0, "{} of {} unfinished jobs would be rejected", found.failing(), found.jobs());
    Ok(())
}

/// Where jobs run that lost two attempts in a row, because their runners died under them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspects {
    /// In processes of their own, of this very program. Its `main` must ask [`is_for_a_suspect`] before all else.
    InChildren,
    /// In this process, one at a time.
    Here,
}

/// As [`run`], for a command whose arguments were made with [`Flags::args`] and are parsed already. Suspects run in this
/// process: nothing is known of its `main`.
///
/// # Errors
/// When the configuration is wrong or the start fails.
pub fn serve(matches: &ArgMatches, own: Registry) -> anyhow::Result<()> {
    serve_with(matches, own, Suspects::Here)
}

/// As [`serve`], and says where suspects run.
///
/// # Errors
/// As [`serve`].
pub fn serve_with(matches: &ArgMatches, own: Registry, suspects: Suspects) -> anyhow::Result<()> {
    let flags = Flags::from_matches(matches).requiring(&["mysql_url", "redis_url"]);
    let loaded = Config::load(&flags, Config::process_env(), Config::usual_file())?;
    init_logs(&loaded.config.log, loaded.config.log_format == LogFormat::Json);
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    // One TLS implementation for everything; an error says that the caller chose one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let child = match suspects {
        Suspects::InChildren => Some(ChildProgram::of_this_process(loaded.sources.clone())?),
        Suspects::Here => None,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        // Before the start, so that a signal during it is not lost.
        let mut signals = Signals::register()?;
        tell_what_is_signed(&loaded.config);
        let app = tokio::select! {
            app = App::start_with(&loaded.config, own, child) => app?,
            signal = signals.next() => {
                tracing::info!(signal, "stopped before the start was complete");
                return Ok(());
            }
        };
        app.run_until_signalled(&mut signals).await;
        Ok(())
    });
    // Everything is settled. A handler that blocks its thread does not get to hold the exit as well.
    runtime.shutdown_timeout(SHUTDOWN);
    outcome
}

/// A receiver without a signature cannot tell our callbacks from others. Where single hosts have secrets, an operator has
/// thought of it.
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

/// The exit code that goes with an error: 2 for wrong configuration, 1 for everything else.
#[must_use]
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(if error.is::<crate::config::ConfigErrors>() { 2 } else { 1 })
}
