//! A process that runs one suspect, from its command line to its end.
//!
//! A runner starts it (`engine/child.rs`) and writes everything it needs to its standard input. When that input ends,
//! because the runner closes it or is gone, the process gives its job back and ends. If that takes too long, it exits
//! by force.

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
use crate::engine::{HandOver, LAST_SECONDS, ParentConnection, SUSPECT_WORD, run_suspect as run_in_engine};
use crate::event::Events;
use crate::handlers::Registry;
use crate::store::{Store, StoreSettings};
use crate::telemetry::init_logs;

/// Longest hand-over, in bytes. A configuration with many reports has a few hundred kilobytes.
const MAX_HAND_OVER: u64 = 16 << 20;
/// Longest wait for MySQL. The runner tries again later.
const PATIENCE: Duration = Duration::from_secs(10);

/// Return whether this program was started to run one suspect. Call it before the command line is parsed in any other
/// way.
#[must_use]
pub fn is_for_a_suspect() -> bool {
    let mut args = std::env::args_os().skip(1);
    args.next().is_some_and(|word| word == SUSPECT_WORD) && args.next().is_none()
}

/// Run the suspect that the runner hands over, with the built-in kinds and those in `own`. Exit codes: 0 the result was
/// reported to the runner, 1 the job was not claimed, 2 nothing was handed over.
#[must_use]
pub fn run_suspect(own: Registry) -> ExitCode {
    prefer_to_be_killed();
    let (hand_over, line, rest) = match received() {
        Ok(received) => received,
        Err(error) => {
            eprintln!(
                "tickr: {error:#}\nrunners start `tickr {SUSPECT_WORD}` by themselves, for jobs that lost two attempts in a row"
            );
            return ExitCode::from(2);
        }
    };
    let give_back = CancellationToken::new();
    follow_the_runner(rest, give_back.clone());
    match run(hand_over, own, &line, give_back) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            line.report_not_claimed(format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Tell the kernel to kill this process before the runner when memory runs out.
fn prefer_to_be_killed() {
    // Some systems lack this file, and some sandboxes forbid it.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}

/// Read the hand-over. Return it with the connection for reports and the rest of the input.
fn received() -> anyhow::Result<(HandOver, ParentConnection, BufReader<UnixStream>)> {
    let stdin = std::io::stdin();
    anyhow::ensure!(!stdin.is_terminal(), "the standard input is a terminal, not the socket of a runner");
    let socket = UnixStream::from(stdin.as_fd().try_clone_to_owned().context("use the standard input")?);
    let line = ParentConnection::new(socket.try_clone().context("use the standard input")?);
    let mut input = BufReader::new(socket);
    let mut text = Vec::new();
    input.by_ref().take(MAX_HAND_OVER).read_until(b'\n', &mut text).context("read the hand-over")?;
    // The text holds passwords: the error says at which byte it is wrong, and quotes nothing.
    let hand_over = serde_json::from_slice(&text)
        .map_err(|e| anyhow::anyhow!("cannot read the hand-over, at byte {} of {}", e.column(), text.len()))?;
    Ok((hand_over, line, input))
}

/// Give the job back when the input ends. A handler may block every thread of the runtime, so this is a thread of its
/// own. It exits the process if nothing else does.
fn follow_the_runner(mut rest: BufReader<UnixStream>, give_back: CancellationToken) {
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut rest, &mut std::io::sink());
        give_back.cancel();
        std::thread::sleep(LAST_SECONDS);
        std::process::exit(1);
    });
}

fn run(
    hand_over: HandOver,
    own: Registry,
    line: &ParentConnection,
    give_back: CancellationToken,
) -> anyhow::Result<()> {
    let HandOver { runner, parent, job, sources } = hand_over;
    let config = Config::load_again(&sources)?.config;
    init_logs(&config.log, config.log_format == LogFormat::Json, config.attempt_log);
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        // Some supervisors send their signals to every process of a service.
        let signals = Signals::register()?;
        tokio::spawn(follow_signals(signals, config.shutdown_grace, give_back.clone()));
        let (tracer, exporter) = tracer_of(&config, &runner)?;
        // Use few connections: there may be many such processes.
        let url = config.mysql_url()?.expose().to_owned();
        let settings = StoreSettings { url, connections: 1, flushers: 1, table_prefix: config.table_prefix.clone() };
        let store = tokio::select! {
            store = Store::connect(&settings, PATIENCE) => store?,
            () = give_back.cancelled() => return Ok(()),
        };
        let index = index_of(&config)?;
        let registry = {
            // The folder is that of the runner that started this process. Drop this value here: if it lived longer, it
            // would delay the close of the store.
            let finished = reports::finished(&config, &store, parent.clone());
            Arc::new(kinds::register_all(&config, own, &finished)?)
        };
        let tasks = TaskTracker::new();
        // For follow-up jobs of these kinds.
        match store.declared_kinds().await {
            Ok(kinds) => registry.follow_declared(kinds.iter().map(|set| (&set.kind, (set.version, set.changed.0)))),
            Err(error) => tracing::warn!(%error, "cannot read the declared kinds"),
        }
        let broker = Broker::new(store.clone(), index.clone(), Arc::clone(&registry), Events::default(), &tasks);
        let settings = engine_settings(&config, runner, tracer, None, None);
        let done = run_in_engine((broker, index), registry, settings, (parent, job), line, give_back).await;
        // Wait for the hints of a retry and of follow-up jobs. Without them the reconciler would find these jobs later.
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
    // A handler that blocks its thread must not delay the exit.
    runtime.shutdown_timeout(SHUTDOWN);
    outcome
}

/// On a signal, give the handler the grace of the runner, which may have received the same signal. A second signal ends
/// the grace.
async fn follow_signals(mut signals: Signals, grace: Duration, give_back: CancellationToken) {
    let signal = signals.next().await;
    tracing::info!(signal, "stopping; a second signal gives the job back now");
    tokio::select! {
        () = tokio::time::sleep(grace) => {}
        _ = signals.next() => {}
    }
    give_back.cancel();
}
