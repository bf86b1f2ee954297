//! The `tickr` command: one file per subcommand.
//!
//! - `main.rs`: the list of subcommands, exit codes, configuration and runtime
//! - `serve.rs`: run jobs and the HTTP API
//! - `dev.rs`: the same, with private servers in a data folder
//! - `migrate.rs`: create or upgrade the tables
//! - `enqueue.rs`: enqueue one job
//! - `jobs.rs`: read, change and follow jobs
//! - `watch.rs`: `tickr jobs watch`, which follows one job to its end
//! - `schedules.rs`: create, change, pause and trigger schedules
//! - `dead_letters.rs`: list, release, replay and discard dead letters
//! - `operations.rs`: bulk operations on many jobs
//! - `canary.rs`: the flags and the progress of a canary
//! - `api_keys.rs`: list, create and revoke API keys
//! - `kinds.rs`: the kinds of jobs, and the declared ones
//! - `limits.rs`: limits by key
//! - `order_keys.rs`: the order keys that have jobs
//! - `batches.rs`: jobs that belong together
//! - `outbox.rs`: jobs that other programs request with a plain INSERT
//! - `queues.rs`: list, pause, prioritise and limit queues
//! - `runners.rs`: list, drain and resume runners
//! - `health.rs`: ask the probes of a running tickr
//! - `events.rs`: follow the events of the cluster
//! - `rebuild.rs`: rebuild the Redis index from MySQL
//! - `verify.rs`: check the guarantees against the tables
//! - `check.rs`: check that this binary can run the unfinished jobs and the schedules
//! - `bench.rs`: measure this build
//! - `conformance.rs`: test a client of remote workers
//! - `config.rs`: print the effective settings
//! - `top.rs`: a live view in the terminal
//! - `completions.rs`: completion scripts for shells
//! - `client.rs`: HTTP client of the commands that call the API
//! - `json.rs`: JSON whose numbers stay as they were written
//! - `stream.rs`: event streams that reconnect
//! - `ending.rs`: exit codes for the end state of a job and for signals
//! - `print.rs`: tables, and output that cannot control a terminal

// First, because its macros are visible only in the modules declared after it.
#[macro_use]
mod print;

mod api_keys;
mod batches;
#[cfg(feature = "bench")]
mod bench;
mod canary;
mod check;
mod client;
mod completions;
mod config;
#[cfg(feature = "conformance")]
mod conformance;
mod dead_letters;
mod dev;
mod ending;
mod enqueue;
mod events;
mod health;
mod jobs;
mod json;
mod kinds;
mod limits;
mod migrate;
mod operations;
mod order_keys;
mod outbox;
mod queues;
mod rebuild;
mod runners;
mod schedules;
mod serve;
mod stream;
#[cfg(feature = "top")]
mod top;
mod verify;
mod watch;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::OnceLock;

use clap::{ArgMatches, Command};
use tickr::config::{Config, Flags, Loaded};
use tickr::handlers::Registry;

/// The allocator of musl takes one lock for all threads, so the static binary brings its own.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Exit codes of every command: 0 success, 1 failure, 2 wrong usage or configuration. `tickr enqueue --wait`, `tickr
/// jobs watch` and `tickr verify` have further ones.
fn main() -> ExitCode {
    // A runner started this process to run a suspect job. It is not in the list of commands, because operators never
    // call it.
    if tickr::app::is_for_a_suspect() {
        return tickr::app::run_suspect(Registry::new());
    }
    end_with_the_reader();
    // One TLS implementation for the whole process, installed before any connection needs it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let command = Command::new("tickr")
        .about("A durable job runner for teams on MySQL")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help(
            "Settings come from flags, else from the TICKR_* environment, else from tickr.toml, else from the defaults. \
             `tickr config` shows the effective values.",
        )
        .subcommands([
            serve::command(),
            dev::command(),
            migrate::command(),
            enqueue::command(),
            jobs::command(),
            schedules::command(),
            dead_letters::command(),
            operations::command(),
            api_keys::command(),
            queues::command(),
            kinds::command(),
            limits::command(),
            order_keys::command(),
            batches::command(),
            outbox::command(),
            runners::command(),
            events::command(),
            health::command(),
            rebuild::command(),
            verify::command(),
            check::command(),
            #[cfg(feature = "bench")]
            bench::command(),
            #[cfg(feature = "conformance")]
            conformance::command(),
            config::command(),
            #[cfg(feature = "top")]
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
        Some(("kinds", matches)) => kinds::run(matches),
        Some(("limits", matches)) => limits::run(matches),
        Some(("order-keys", matches)) => order_keys::run(matches),
        Some(("batches", matches)) => batches::run(matches),
        Some(("outbox", matches)) => outbox::run(matches),
        Some(("runners", matches)) => runners::run(matches),
        Some(("events", matches)) => events::run(matches),
        Some(("health", matches)) => health::run(matches),
        Some(("schedules", matches)) => schedules::run(matches),
        Some(("dead-letters", matches)) => dead_letters::run(matches),
        Some(("operations", matches)) => operations::run(matches),
        Some(("api-keys", matches)) => api_keys::run(matches),
        Some(("rebuild", matches)) => rebuild::run(matches),
        Some(("verify", matches)) => verify::run(matches),
        Some(("check", matches)) => check::run(matches),
        #[cfg(feature = "bench")]
        Some(("bench", matches)) => bench::run(matches),
        #[cfg(feature = "conformance")]
        Some(("conformance", matches)) => conformance::run(matches),
        Some(("config", matches)) => config::run(matches),
        #[cfg(feature = "top")]
        Some(("top", matches)) => top::run(matches),
        Some(("completions", matches)) => completions::run(matches, command),
        // clap refuses all other subcommands.
        _ => Ok(()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, error }) => {
            // Returning the error from `main` would print a backtrace.
            if let Some(error) = error {
                eprintln!("tickr: {}", with_causes(&error));
            }
            ExitCode::from(code)
        }
    }
}

/// Write an error and its causes in one text. Most errors name their cause, which is then not repeated.
fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// End quietly when the reader of a pipe ends, as in `tickr jobs list | head`. The exit code is 141, the one that a
/// shell reports for SIGPIPE. On a full disk, end with one line and exit code 1, or 5 when a job is enqueued already. A
/// macro that prints panics in both cases, so this is a panic hook, and the last one that is set has to be this one.
fn end_with_the_reader() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let Some(why) = info.payload_as_str().and_then(|said| said.strip_prefix("failed printing to stdout: ")) else {
            return usual(info);
        };
        if why.contains("Broken pipe") {
            std::process::exit(ending::UNREAD.into());
        }
        // Standard error may be the same full disk.
        let Some(id) = ENQUEUED.get() else {
            let _ = writeln!(std::io::stderr(), "tickr: cannot write to standard output: {why}");
            std::process::exit(1);
        };
        let id = print::printable(id);
        let _ = writeln!(std::io::stderr(), "tickr: job {id} is enqueued, but cannot write to standard output: {why}");
        std::process::exit(ending::NOT_OVER.into());
    }));
}

/// The job that this process has enqueued.
static ENQUEUED: OnceLock<String> = OnceLock::new();

/// Remember that this process has enqueued a job: from then on it does not end with 1, which says that nothing was.
fn note_enqueued(id: &str) {
    let _ = ENQUEUED.set(id.to_owned());
}

/// The cause of a failed subcommand, and its exit code.
struct Failure {
    code: u8,
    /// Printed to standard error. `None` prints nothing.
    error: Option<anyhow::Error>,
}

impl Failure {
    fn new(code: u8, error: impl Into<anyhow::Error>) -> Self {
        Self { code, error: Some(error.into()) }
    }

    /// A failure that prints nothing.
    const fn quiet(code: u8) -> Self {
        Self { code, error: None }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error: anyhow::Error = error.into();
        let usage = error.is::<WrongUsage>() || tickr::app::is_wrong_configuration(&error);
        Self::new(if usage { 2 } else { 1 }, error)
    }
}

/// An argument that clap accepts and that the command cannot use.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongUsage(String);

type CommandResult = Result<(), Failure>;

/// Load the configuration of a subcommand whose flags come from the table of settings.
fn load(matches: &ArgMatches, requiring: &[&'static str]) -> Result<Loaded, Failure> {
    load_flags(&Flags::from_matches(matches).requiring(requiring))
}

fn load_flags(flags: &Flags) -> Result<Loaded, Failure> {
    let loaded = Config::load(flags, Config::process_env(), Config::usual_file())?;
    let Config { log, log_format, attempt_log, .. } = &loaded.config;
    tickr::telemetry::init_logs(log, *log_format == tickr::config::LogFormat::Json, *attempt_log);
    // Logs have a panic hook of their own.
    end_with_the_reader();
    for warning in &loaded.warnings {
        tracing::warn!("{}: {}", warning.setting, warning.message);
    }
    Ok(loaded)
}

/// Build the runtime of a server or of a short command.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

/// Run the work of a client of the API. A look-up of the server's name may hang in a thread that cannot be stopped, and
/// the command does not wait for it.
fn run_to_end<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = runtime()?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    Ok(done)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    #[test]
    fn a_command_ends_while_a_look_up_of_its_server_hangs() {
        let began = Instant::now();
        let work = async {
            // Its handle is dropped, as that of a look-up whose time was over.
            drop(tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_secs(60))));
            7
        };
        assert!(crate::run_to_end(work).is_ok_and(|done| done == 7));
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    }
}
