//! From the command line to the end of a process that runs one suspect.
//!
//! A runner starts it (`engine/child.rs`) and hands over on its standard input what it needs. When that input ends, because
//! the runner says so or is gone, the process gives its job back and ends, at the latest with force.

use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{SHUTDOWN, Signals, engine_settings, index_of, kinds, reports, tracer_of};
use crate::broker::Broker;
use crate::config::{Config, LogFormat};
use crate::engine::{HandOver, LAST_SECONDS, ParentLine, SUSPECT_WORD, run_suspect as run_in_engine};
use crate::event::Events;
use crate::handlers::Registry;
use crate::store::{Store, StoreSettings};
use crate::telemetry::init_logs;

/// Longest hand-over: a configuration with many reports is some hundred kilobytes.
const LONGEST_HAND_OVER: u64 = 16 << 20;
/// How long MySQL may take to answer. The runner tries again later.
const PATIENCE: Duration = Duration::from_secs(10);

/// Was this program started to run one suspect? Asked before the command line is read in any other way.
#[must_use]
pub fn is_for_a_suspect() -> bool {
    let mut args = std::env::args_os().skip(1);
    args.next().is_some_and(|word| word == SUSPECT_WORD) && args.next().is_none()
}

/// Run the one suspect that the runner hands over, with the kinds that ship and those in `own`. Exit codes: 0 the runner
/// was told what happened, 1 the job was not touched, 2 nothing was handed over.
#[must_use]
pub fn run_suspect(own: Registry) -> ExitCode {
    prefer_to_be_killed();
    let (hand_over, line, rest) = match received() {
        Ok(received) => received,
        Err(error) => {
            eprintln!(
                "tickr: {error:#}\nrunners start `tickr {SUSPECT_WORD}` by themselves, for jobs whose last runners died under them"
            );
            return ExitCode::from(2);
        }
    };
    let give_back = CancellationToken::new();
    follow_the_runner(rest, give_back.clone());
    match run(hand_over, own, &line, give_back) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            line.say_not_claimed(format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// When memory runs out, the kernel should take this process and not the runner.
fn prefer_to_be_killed() {
    // Not every system has it, and not every sandbox allows it.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}

/// What the runner handed over, the line on which to answer, and the rest of its input.
fn received() -> anyhow::Result<(HandOver, ParentLine, BufReader<UnixStream>)> {
    let stdin = std::io::stdin();
    anyhow::ensure!(!stdin.is_terminal(), "nothing is handed over on the standard input");
    let socket = UnixStream::from(stdin.as_fd().try_clone_to_owned().context("use the standard input")?);
    let line = ParentLine::new(socket.try_clone().context("use the standard input")?);
    let mut input = BufReader::new(socket);
    let mut text = Vec::new();
    input.by_ref().take(LONGEST_HAND_OVER).read_until(b'\n', &mut text).context("read what is handed over")?;
    // The text holds passwords: the error says where it stopped fitting, and nothing of it.
    let hand_over = serde_json::from_slice(&text).map_err(|e| {
        anyhow::anyhow!("what is handed over is not understood, at byte {} of {}", e.column(), text.len())
    })?;
    Ok((hand_over, line, input))
}

/// Give the job back when the input ends. A handler may block every thread of the runtime, so this one is apart, and ends
/// the process when nothing else does.
fn follow_the_runner(mut rest: BufReader<UnixStream>, give_back: CancellationToken) {
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut rest, &mut std::io::sink());
        give_back.cancel();
        std::thread::sleep(LAST_SECONDS);
        std::process::exit(1);
    });
}

fn run(hand_over: HandOver, own: Registry, line: &ParentLine, give_back: CancellationToken) -> anyhow::Result<()> {
    let HandOver { runner, parent, job, sources } = hand_over;
    let config = Config::load_again(&sources)?.config;
    init_logs(&config.log, config.log_format == LogFormat::Json);
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        // Some supervisors send their signals to every process of a service.
        let signals = Signals::register()?;
        tokio::spawn(follow_signals(signals, config.shutdown_grace, give_back.clone()));
        let (tracer, exporter) = tracer_of(&config, &runner)?;
        // Few connections: there may be many such processes.
        let url = config.mysql_url()?.expose().to_owned();
        let settings = StoreSettings { url, connections: 1, flushers: 1 };
        let store = tokio::select! {
            store = Store::connect(&settings, PATIENCE) => store?,
            () = give_back.cancelled() => return Ok(()),
        };
        let index = index_of(&config)?;
        let registry = {
            // The folder is that of the runner that started this process. Kept longer, it would hold up the end of the store.
            let finished = reports::finished(&config, &store, parent.clone());
            Arc::new(kinds::register_all(&config, own, &finished)?)
        };
        let tasks = TaskTracker::new();
        let broker = Broker::new(store.clone(), index.clone(), Arc::clone(&registry), Events::default(), &tasks);
        let settings = engine_settings(&config, runner, tracer, None, None);
        let done = run_in_engine((broker, index), registry, settings, (parent, job), line, give_back).await;
        // The hints of a retry and of follow-up jobs; without them the reconciler finds these.
        tasks.close();
        let _ = tokio::time::timeout(Duration::from_secs(1), tasks.wait()).await;
        let exported = async {
            if let Some(exporter) = exporter {
                exporter.stop().await;
            }
        };
        tokio::join!(store.close(), exported);
        done
    });
    // A handler that blocks its thread does not get to hold the exit.
    runtime.shutdown_timeout(SHUTDOWN);
    outcome
}

/// A signal gives the handler the grace of the runner, which may have had the same signal; a second one ends the grace.
async fn follow_signals(mut signals: Signals, grace: Duration, give_back: CancellationToken) {
    let signal = signals.next().await;
    tracing::info!(signal, "stopping; a second signal gives the job back now");
    tokio::select! {
        () = tokio::time::sleep(grace) => {}
        _ = signals.next() => {}
    }
    give_back.cancel();
}
