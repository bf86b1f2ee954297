//! A process of this runner's own binary that runs one suspect: how the runner starts it, what it reports, and how it
//! ends.
//!
//! Runner and child talk over a socket, which is the standard input of the child. The first line from the runner is the
//! hand-over: the sources of the configuration, the child's identity, and the job. It goes over the socket and not in
//! the command line or the environment, where other users of the host could read passwords. After it the runner writes
//! nothing. When the runner closes the socket, or dies, the child stops its handler, gives the job back and ends. The
//! child reports when it has claimed the job and when it has settled it. What it does not report, the runner learns
//! from its exit status and from MySQL.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::permits::Permit;
use super::unread::GivenBack;
use super::{EngineState, executor, host_name};
use tickr_config::Sources;
use tickr_event::Event;
use tickr_job::{JobId, Name, RetryPolicy, RunnerId, State, Verdict};
use tickr_store::{Death, DueJob, Reaped, Settled};
use tickr_telemetry::LinePace;

/// Subcommand that makes a program run one suspect instead of serving.
pub const SUSPECT_WORD: &str = "run-suspect";

/// Time that a child has to give its job back after it was told to, before it is killed. Longer than a stopped handler
/// and the settlement take, and shorter than this runner waits for its workers.
const GIVE_BACK: Duration = Duration::from_millis(4_500);
/// Why a child is stopped whose runner goes on.
const NO_PERMIT: &str = "its runner had no permit of its queue for it any more";
/// Longest wait for the last lines of a dead child. A process that its handler started may hold the socket open.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Program and configuration of a process that runs one suspect.
#[derive(Clone, Debug)]
pub struct ChildProgram {
    /// Path of the program: usually this one.
    pub path: PathBuf,
    /// Sources of its configuration.
    pub sources: Sources,
}

impl ChildProgram {
    /// Return this program, even if its file was replaced or removed since it started.
    ///
    /// # Errors
    /// When the operating system does not tell the path.
    pub fn from_this_process(sources: Sources) -> io::Result<Self> {
        let own = Path::new("/proc/self/exe");
        // The path is resolved in the child, which is a copy of this process until it executes the program.
        let path = if own.exists() { own.to_owned() } else { std::env::current_exe()? };
        Ok(Self { path, sources })
    }
}

/// The message with which a runner hands a suspect over to its child.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandOver {
    /// Identity of the child in the tables.
    pub runner: RunnerId,
    /// Runner that started the child.
    pub parent: RunnerId,
    /// Job to run.
    pub job: JobId,
    /// Sources of its configuration.
    pub sources: Sources,
}

/// Report of the child, one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ChildReport {
    /// It claimed the job; its handler starts.
    Claimed {
        /// Number of the attempt.
        number: u32,
        /// Lateness of its start, in microseconds.
        lateness_us: u64,
    },
    /// The job is executing elsewhere, or has ended.
    Gone,
    /// It could not claim the job.
    NotClaimed {
        /// Reason.
        why: String,
    },
    /// It could not read the job, and gives it back for a runner of another version.
    Unread(GivenBack),
    /// It settled the attempt.
    Settled {
        /// Verdict of the attempt.
        verdict: Verdict,
        /// State of the job after it.
        state: State,
    },
    /// It left the attempt to another system.
    Deferred,
    /// The lease was taken away before the verdict was written.
    LeaseLost,
}

/// Result of a child that ended.
#[derive(Debug)]
pub(super) enum ChildEnd {
    /// It reported that its attempt is over.
    Settled,
    /// It died. If it had begun an attempt, that attempt was ended for it.
    Dead,
    /// The job is executing elsewhere, or has ended.
    Gone,
    /// No attempt was begun. The job may be tried again.
    NotBegun {
        /// Reason.
        why: String,
    },
    /// It exited by itself without a report that this runner understands.
    Mute {
        /// Its exit status, in words.
        why: String,
    },
}

/// Return whether there is no point in trying to start such a process again.
pub(super) fn is_for_good(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
}

/// A running child, and this runner's end of the socket.
struct ChildProcess {
    process: Child,
    said: Lines<BufReader<OwnedReadHalf>>,
    /// Closed to tell the child that it must give its job back.
    open: Option<OwnedWriteHalf>,
}

/// Reports received from the child so far.
#[derive(Default)]
struct ChildReports {
    claimed: Option<Instant>,
    over: Option<ChildEnd>,
}

/// Run a suspect in a process of its own, until both have ended.
///
/// # Errors
/// When the process cannot be started. The job is unchanged.
pub(super) async fn run(
    shared: &EngineState,
    program: &ChildProgram,
    job: &DueJob,
    permit: &Permit,
) -> io::Result<ChildEnd> {
    let runner = RunnerId::new_for_host(&host_name());
    let mut running = start(shared, program, job.id, &runner).await?;
    tracing::info!(job = %job.id, kind = %job.kind, child = %runner, pid = running.process.id(), "two runners in a row died under this job: running it in a process of its own");
    let mut heard = ChildReports::default();
    let (status, stopped) = wait_for_end(shared, (job, permit), &mut running, &mut heard).await?;
    let rest = async {
        while let Ok(Some(line)) = running.said.next_line().await {
            handle_report(shared, job, &line, &mut heard);
        }
    };
    // Without a report of the end, MySQL is asked below.
    let _ = tokio::time::timeout(LAST_WORDS, rest).await;
    if let Some(ended) = heard.over {
        return Ok(ended);
    }
    let why = cause_of_end(status);
    let verdict = if stopped.is_some() { Verdict::Interrupted } else { Verdict::Lost };
    let error = stopped.map_or_else(|| why.clone(), str::to_owned);
    let death = Death { verdict, error, policies: Arc::new(policies(shared)) };
    if let Some(reaped) = end_attempt(shared, job.id, &runner, death).await {
        if verdict == Verdict::Lost {
            tracing::warn!(job = %job.id, kind = %job.kind, child = %runner, why, state = %reaped.state, "the process of a suspect died");
        }
        announce_end(shared, &reaped, verdict);
        return Ok(ChildEnd::Dead);
    }
    // Without a claim no attempt was lost. A claim that was under way when the child died is found by its lease.
    Ok(match (heard.claimed, status.signal()) {
        (Some(_), _) => ChildEnd::Dead,
        // The kernel may have killed the child first when memory ran out.
        (None, Some(_)) => ChildEnd::NotBegun { why },
        (None, None) => ChildEnd::Mute { why },
    })
}

async fn start(
    shared: &EngineState,
    program: &ChildProgram,
    job: JobId,
    runner: &RunnerId,
) -> io::Result<ChildProcess> {
    let (ours, theirs) = StdUnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let process = Command::new(&program.path)
        .arg0("tickr")
        .arg(SUSPECT_WORD)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        // Not in the process group of the runner: Ctrl-C is meant for the runner, which gives its children the same
        // grace period as its own jobs.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let (said, mut open) = UnixStream::from_std(ours)?.into_split();
    let said = BufReader::new(said).lines();
    let hand_over =
        HandOver { runner: runner.clone(), parent: shared.runner.clone(), job, sources: program.sources.clone() };
    let mut text = serde_json::to_vec(&hand_over)?;
    text.push(b'\n');
    // A child that ended at once does not read it. Its exit status says why.
    let open = open.write_all(&text).await.is_ok().then_some(open);
    Ok(ChildProcess { process, said, open })
}

/// Follow the child until it has ended. Return also why it was told to stop, if it was.
async fn wait_for_end(
    shared: &EngineState,
    (job, permit): (&DueJob, &Permit),
    running: &mut ChildProcess,
    heard: &mut ChildReports,
) -> io::Result<(ExitStatus, Option<&'static str>)> {
    let mut talks = true;
    let mut told_to_stop: Option<(Instant, &'static str)> = None;
    loop {
        let too_long = async {
            match told_to_stop {
                Some((told, _)) => tokio::time::sleep_until(told + GIVE_BACK).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            line = running.said.next_line(), if talks => match line {
                Ok(Some(line)) => {
                    let waited = heard.claimed.is_none();
                    handle_report(shared, job, &line, heard);
                    if waited && heard.claimed.is_some() && !permit.is_usable() && told_to_stop.is_none() {
                        tracing::warn!(job = %job.id, "the permit may be gone, telling the process of the suspect to give the job back");
                        told_to_stop = Some((Instant::now(), NO_PERMIT));
                        running.open = None;
                    }
                }
                Ok(None) | Err(_) => talks = false,
            },
            status = running.process.wait() => return Ok((status?, told_to_stop.map(|(_, why)| why))),
            () = shared.grace_over.cancelled(), if told_to_stop.is_none() => {
                told_to_stop = Some((Instant::now(), executor::SHUT_DOWN));
                running.open = None;
            }
            () = too_long => {
                running.process.start_kill()?;
                return Ok((running.process.wait().await?, told_to_stop.map(|(_, why)| why)));
            }
        }
    }
}

/// Act on a report of the child. This runner counts and publishes it as if the attempt had run here.
fn handle_report(shared: &EngineState, job: &DueJob, line: &str, heard: &mut ChildReports) {
    let Ok(said) = serde_json::from_str::<ChildReport>(line) else {
        tracing::debug!(job = %job.id, line, "cannot read a report of a child");
        return;
    };
    let (kind, queue) = (&job.kind, &job.queue);
    let ran = heard.claimed.map(|since| since.elapsed());
    match said {
        ChildReport::Claimed { number, lateness_us } => {
            heard.claimed = Some(Instant::now());
            shared.broker.meters().record_started(queue, Duration::from_micros(lateness_us));
            shared.broker.events().emit(Event::Started { id: job.id, number });
        }
        ChildReport::Gone => heard.over = Some(ChildEnd::Gone),
        ChildReport::NotClaimed { why } => heard.over = Some(ChildEnd::NotBegun { why }),
        // This runner pops the job again, and would start one process after the other for it.
        ChildReport::Unread(given_back) => {
            shared.unread.leave_to_others(job.id, given_back, queue.clone(), job.priority);
        }
        ChildReport::Settled { verdict, state } => {
            let ran = ran.unwrap_or_default();
            shared.attempt_metrics.record_ran(kind, ran);
            shared.attempt_metrics.record_ended(kind, verdict);
            shared.broker.meters().record_ended(queue, ran, Some((verdict, state)));
            shared.broker.events().emit(Event::Settled { id: job.id, verdict, state });
            heard.over = Some(ChildEnd::Settled);
        }
        ChildReport::Deferred => {
            shared.broker.meters().record_ended(queue, ran.unwrap_or_default(), None);
            shared.broker.events().emit(Event::Deferred { id: job.id });
            heard.over = Some(ChildEnd::Settled);
        }
        ChildReport::LeaseLost => {
            metrics::counter!("tickr_leases_lost_total").increment(1);
            shared.broker.meters().record_ended(queue, ran.unwrap_or_default(), None);
            shared.broker.events().emit(Event::LeaseLost { id: job.id });
            heard.over = Some(ChildEnd::Settled);
        }
    }
}

/// Record that the attempt of a dead child is over. MySQL may be out for a while; if the lease ends first, the reaper
/// records it.
async fn end_attempt(shared: &EngineState, job: JobId, child: &RunnerId, death: Death) -> Option<Reaped> {
    let mut pause = Duration::from_millis(100);
    let mut lines = LinePace::new();
    loop {
        match shared.store.end_of_child(job, child.clone(), death.clone()).await {
            Ok(reaped) => return reaped,
            Err(error) if error.is_transient() => {
                if lines.next_line().is_some() {
                    tracing::warn!(%job, %error, "cannot end the attempt of a dead process yet");
                }
            }
            Err(error) => {
                tracing::error!(%job, %error, "cannot end the attempt of a dead process; it ends with its lease");
                return None;
            }
        }
        tokio::select! {
            () = shared.give_up.cancelled() => return None,
            () = tokio::time::sleep(pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)) => {}
        }
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

fn policies(shared: &EngineState) -> HashMap<Name, RetryPolicy> {
    shared.registry.retry_policies()
}

/// Tell the index and the listeners of events about an attempt that this runner ended.
fn announce_end(shared: &EngineState, reaped: &Reaped, verdict: Verdict) {
    shared.attempt_metrics.record_ended(&reaped.kind, verdict);
    shared.broker.meters().record_settled(Some(&reaped.queue), verdict, reaped.state);
    if let Settled::Done { released, .. } = &reaped.settled {
        released.iter().for_each(|job| shared.broker.hint_released(job));
    }
    if let Settled::Done { execute_at: Some(execute_at), line: Some((queue, priority)), .. } = &reaped.settled {
        shared.broker.hint(reaped.id, queue, *priority, *execute_at);
    }
    shared.broker.events().emit(Event::Settled { id: reaped.id, verdict, state: reaped.state });
}

/// Describe how a process ended, as the error of its attempt.
fn cause_of_end(status: ExitStatus) -> String {
    let Some(signal) = status.signal() else {
        let code = status.code().unwrap_or_default();
        return format!("its process ended with exit code {code} before its handler did");
    };
    let name = signal_hook::low_level::signal_name(signal).map(|name| format!(" ({name})")).unwrap_or_default();
    // SIGKILL is the only signal that a process cannot have caused by a mistake of its own.
    let hint =
        if signal == signal_hook::consts::SIGKILL { ", which the kernel also uses when memory runs out" } else { "" };
    format!("its process was killed by signal {signal}{name}{hint}")
}

/// Longest time that a child needs to end after it was told to give its job back. Used by the child itself.
pub const LAST_SECONDS: Duration = executor::STOP_GRACE.saturating_add(Duration::from_secs(8));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_process_is_said_in_words() {
        let killed = |signal| cause_of_end(ExitStatus::from_raw(signal));
        assert_eq!(killed(6), "its process was killed by signal 6 (SIGABRT)");
        assert_eq!(
            killed(9),
            "its process was killed by signal 9 (SIGKILL), which the kernel also uses when memory runs out"
        );
        assert_eq!(killed(11), "its process was killed by signal 11 (SIGSEGV)");
        assert_eq!(killed(7 << 8), "its process ended with exit code 7 before its handler did");
    }
}
