//! The heartbeat: renews the leases of everything that runs, on a thread, a runtime and a connection of its own.
//!
//! A handler may block every thread of the main runtime; that must not cost the others their leases. Between beats it
//! looks once a second for cancels and writes progress. When a lease could not be renewed for about as long as it lasts, it
//! tells its handler to stop: soon somebody else may start the job.

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::live::{Live, StopReason};
use super::rhythm::Rhythm;
use crate::event::{Event, Events};
use crate::store::{Beat, LiveAttempt, Pulse, RunnerRow, StoreError};

/// How often cancels are looked for and progress is written.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The running thread.
pub(super) struct Heartbeat {
    stop: std_mpsc::Sender<Farewell>,
    thread: JoinHandle<()>,
}

/// How the thread should end.
enum Farewell {
    /// Everything is settled: strike the runner off.
    Goodbye,
    /// Something is not: leave the row, so that the reaper looks for it.
    Silent,
}

impl Heartbeat {
    pub(super) fn start(
        pulse: Pulse,
        row: RunnerRow,
        live: Arc<Live>,
        rhythm: Arc<Rhythm>,
        events: Events,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = std_mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("heartbeat".into()).spawn(move || {
            beat_until_stopped(&runtime, pulse, &row, &live, &rhythm, &events, &stopped);
        })?;
        Ok(Self { stop, thread })
    }

    /// Say goodbye, or fall silent, and join the thread.
    pub(super) async fn stop(self, goodbye: bool) {
        let _ = self.stop.send(if goodbye { Farewell::Goodbye } else { Farewell::Silent });
        // Every call of the thread is bounded, and so is this wait.
        let joined = tokio::task::spawn_blocking(move || self.thread.join());
        match tokio::time::timeout(Duration::from_secs(8), joined).await {
            Ok(Ok(Ok(()))) => {}
            Ok(_) => tracing::error!("the heartbeat's thread panicked"),
            Err(_) => tracing::error!("the heartbeat's thread did not end in time"),
        }
    }
}

fn beat_until_stopped(
    runtime: &tokio::runtime::Runtime,
    mut pulse: Pulse,
    row: &RunnerRow,
    live: &Live,
    rhythm: &Rhythm,
    events: &Events,
    stopped: &std_mpsc::Receiver<Farewell>,
) {
    let beat_every = row.lease / 3;
    // A call that takes longer is given up, so that there is a next one before the leases end.
    let patience = (row.lease / 4).min(Duration::from_secs(5));
    let mut registered = false;
    let mut beaten: Option<Instant> = None;
    loop {
        let due = beaten.is_none_or(|beaten| beaten.elapsed() >= beat_every);
        let attempts = live.for_the_heartbeat();
        if due || !attempts.is_empty() {
            // Leases are counted from before the request: the store's count begins later, never earlier.
            let sent = Instant::now();
            let renewed = |page: &[LiveAttempt]| live.renewed(page, sent);
            let told = tell(&mut pulse, row, &mut registered, due, &attempts, &renewed);
            let told = runtime.block_on(bounded(told, patience, live, row.lease));
            match told {
                Some(Ok(beat)) => {
                    if due {
                        beaten = Some(sent);
                        rhythm.beaten(sent, row.lease);
                    }
                    pass_on(&beat, &attempts, live, events);
                    let written = pulse.write_progress(&attempts);
                    let written = runtime.block_on(bounded(written, patience, live, row.lease));
                    if !matches!(written, Some(Ok(()))) {
                        live.put_back(&attempts);
                        pulse.disconnect();
                    }
                }
                failed => {
                    live.put_back(&attempts);
                    pulse.disconnect();
                    match failed {
                        Some(Err(error)) => tracing::warn!(%error, "heartbeat failed"),
                        _ => tracing::warn!("heartbeat got no answer in time"),
                    }
                }
            }
        }
        stop_expired(live, row.lease);
        let until_beat = beaten.map_or(Duration::ZERO, |beaten| beat_every.saturating_sub(beaten.elapsed()));
        let pause = LOOK_EVERY.min(until_beat.max(Duration::from_millis(100)));
        match stopped.recv_timeout(pause) {
            Err(std_mpsc::RecvTimeoutError::Timeout) => {}
            Ok(Farewell::Goodbye) => {
                let goodbye = async { tokio::time::timeout(Duration::from_secs(2), pulse.goodbye(&row.id)).await };
                if !matches!(runtime.block_on(goodbye), Ok(Ok(()))) {
                    tracing::warn!("could not strike the runner off the list");
                }
                return;
            }
            Ok(Farewell::Silent) | Err(std_mpsc::RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Make a call to the store for at most this long, and look after the leases meanwhile: a call that hangs must not hold
/// them up beyond their end.
async fn bounded<T>(call: impl Future<Output = T>, patience: Duration, live: &Live, lease: Duration) -> Option<T> {
    let over = tokio::time::sleep(patience);
    tokio::pin!(call, over);
    loop {
        tokio::select! {
            answer = &mut call => return Some(answer),
            () = &mut over => return None,
            () = tokio::time::sleep((lease / 40).min(LOOK_EVERY)) => stop_expired(live, lease),
        }
    }
}

/// Stop what runs under leases that are about to end, with a margin for handlers to stop in.
fn stop_expired(live: &Live, lease: Duration) {
    let stopped = live.stop_expired(lease - lease / 10);
    if stopped > 0 {
        tracing::error!(jobs = stopped, "leases could not be renewed, stopping what runs under them");
    }
}

async fn tell(
    pulse: &mut Pulse,
    row: &RunnerRow,
    registered: &mut bool,
    due: bool,
    attempts: &[LiveAttempt],
    renewed: &(dyn Fn(&[LiveAttempt]) + Sync),
) -> Result<Beat, StoreError> {
    if !*registered {
        pulse.register(row).await?;
        *registered = true;
    }
    if due { pulse.beat(&row.id, row.lease, attempts, renewed).await } else { pulse.look(attempts).await }
}

fn pass_on(beat: &Beat, attempts: &[LiveAttempt], live: &Live, events: &Events) {
    for id in &beat.lost {
        // By token: the job may have been settled and claimed again by us since the list was made.
        let token = attempts.iter().find(|attempt| attempt.id == *id).map(|attempt| attempt.token);
        if token.is_some() && live.stop(*id, token, StopReason::LeaseLost) {
            tracing::warn!(job = %id, "lease is lost, stopping its handler");
        }
    }
    for id in &beat.cancel_requested {
        if live.stop(*id, None, StopReason::Cancel) {
            events.emit(Event::CancelRequested { id: *id });
        }
    }
}
