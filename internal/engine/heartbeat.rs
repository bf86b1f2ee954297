//! The heartbeat: renews the leases of everything that runs, on a thread, a runtime and a connection of its own.
//!
//! A handler may block every thread of the main runtime; that must not cost the others their leases. Between beats it
//! looks once a second for cancels and writes progress. When it cannot reach the store for as long as a lease lasts, it
//! tells the handlers to stop: by then somebody else may have started their jobs.

use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::live::{Live, StopReason};
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
    pub(super) fn start(pulse: Pulse, row: RunnerRow, live: Arc<Live>, events: Events) -> std::io::Result<Self> {
        let (stop, stopped) = std_mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("heartbeat".into()).spawn(move || {
            beat_until_stopped(&runtime, pulse, &row, &live, &events, &stopped);
        })?;
        Ok(Self { stop, thread })
    }

    /// Say goodbye, or fall silent, and join the thread.
    pub(super) async fn stop(self, goodbye: bool) {
        let _ = self.stop.send(if goodbye { Farewell::Goodbye } else { Farewell::Silent });
        // Joining blocks for at most the statement that is under way.
        let joined = tokio::task::spawn_blocking(move || self.thread.join()).await;
        if !matches!(joined, Ok(Ok(()))) {
            tracing::error!("the heartbeat's thread panicked");
        }
    }
}

fn beat_until_stopped(
    runtime: &tokio::runtime::Runtime,
    mut pulse: Pulse,
    row: &RunnerRow,
    live: &Live,
    events: &Events,
    stopped: &std_mpsc::Receiver<Farewell>,
) {
    let beat_every = row.lease / 3;
    let mut registered = false;
    let mut beaten: Option<Instant> = None;
    let mut heard = Instant::now();
    loop {
        let due = beaten.is_none_or(|beaten| beaten.elapsed() >= beat_every);
        let attempts = live.for_the_heartbeat();
        if due || !attempts.is_empty() {
            let told = runtime.block_on(tell(&mut pulse, row, &mut registered, due, &attempts));
            match told {
                Ok(beat) => {
                    heard = Instant::now();
                    if due {
                        beaten = Some(heard);
                    }
                    pass_on(&beat, &attempts, live, events);
                }
                Err(error) => {
                    tracing::warn!(%error, "heartbeat failed");
                    if heard.elapsed() > row.lease && live.stop_all(StopReason::LeaseLost) > 0 {
                        tracing::error!("no heartbeat for a whole lease, stopping what runs");
                    }
                }
            }
        }
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

async fn tell(
    pulse: &mut Pulse,
    row: &RunnerRow,
    registered: &mut bool,
    due: bool,
    attempts: &[LiveAttempt],
) -> Result<Beat, StoreError> {
    if !*registered {
        pulse.register(row).await?;
        *registered = true;
    }
    if due { pulse.beat(&row.id, row.lease, attempts).await } else { pulse.look(attempts).await }
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
