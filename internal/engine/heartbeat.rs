//! The heartbeat: renews the leases of all running attempts, on a thread, a runtime and a MySQL connection of its own.
//!
//! A handler may block every thread of the main runtime. That must not cost the other attempts their leases. Between
//! two heartbeats the thread looks once a second for cancel requests, and writes progress. When a lease was not renewed
//! for nine tenths of its length, the thread tells the handler to stop, because another runner may soon start the job.

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::heartbeat_history::HeartbeatHistory;
use super::live::{LiveAttempts, StopReason};
use tickr_event::{Event, Events};
use tickr_store::{HeartbeatAnswer, HeartbeatConnection, LiveAttempt, RunnerRow, StoreError};
use tickr_telemetry::LinePace;

/// Time between two looks for cancel requests, which also write progress.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause before a call that is due, and after the first one that failed.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// Calls that fail in one lease, at least. The leases of all attempts may end soon, so the pauses stay much shorter.
const TRIES_PER_LEASE: u32 = 20;

/// The running thread of the heartbeat.
pub(super) struct Heartbeat {
    stop: std_mpsc::Sender<LastStep>,
    thread: JoinHandle<()>,
}

/// Instruction with which the thread ends.
enum LastStep {
    /// Every attempt is settled: unregister the runner.
    Unregister,
    /// An attempt may be left behind: keep the runner's row, so that the reaper looks for it.
    Silent,
}

impl Heartbeat {
    pub(super) fn start(
        connection: HeartbeatConnection,
        row: RunnerRow,
        live: Arc<LiveAttempts>,
        heartbeats: Arc<HeartbeatHistory>,
        events: Events,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = std_mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("heartbeat".into()).spawn(move || {
            beat_until_stopped(&runtime, connection, &row, &live, &heartbeats, &events, &stopped);
        })?;
        Ok(Self { stop, thread })
    }

    /// End the thread and join it. With `unregister` it unregisters the runner first.
    pub(super) async fn stop(self, unregister: bool) {
        let _ = self.stop.send(if unregister { LastStep::Unregister } else { LastStep::Silent });
        // Every call of the thread has a time limit, so this wait has one as well.
        let joined = tokio::task::spawn_blocking(move || self.thread.join());
        match tokio::time::timeout(Duration::from_secs(8), joined).await {
            Ok(Ok(Ok(()))) => {}
            Ok(_) => tracing::error!("the heartbeat thread panicked"),
            Err(_) => tracing::error!("the heartbeat thread did not end in time"),
        }
    }
}

/// Calls of the heartbeat that failed one after the other.
#[derive(Default)]
struct Failures {
    /// Pause after the last one.
    pause: Option<Duration>,
    lines: LinePace,
}

impl Failures {
    /// Note a call that failed with this error, or got no answer in time. After the first one, the pauses grow: in an
    /// outage, each call costs MySQL and this process new connections.
    fn record(&mut self, error: Option<&StoreError>, lease: Duration) {
        let longest = LOOK_EVERY.min(lease / TRIES_PER_LEASE).max(SHORTEST_PAUSE);
        self.pause = Some(self.pause.map_or(SHORTEST_PAUSE, |pause| (pause * 2).min(longest)));
        match (self.lines.next_line(), error) {
            (Some(left_out), Some(error)) => tracing::warn!(%error, left_out, "heartbeat failed"),
            (Some(left_out), None) => tracing::warn!(left_out, "the heartbeat got no answer in time"),
            (None, _) => {}
        }
    }

    /// Return the pause before the next call, at least.
    fn pause(&self) -> Duration {
        self.pause.unwrap_or(SHORTEST_PAUSE)
    }

    /// Note a call that was answered.
    fn end(&mut self) {
        self.pause = None;
        if self.lines.end() {
            tracing::info!("the heartbeat is answered again");
        }
    }
}

fn beat_until_stopped(
    runtime: &tokio::runtime::Runtime,
    mut connection: HeartbeatConnection,
    row: &RunnerRow,
    live: &LiveAttempts,
    heartbeats: &HeartbeatHistory,
    events: &Events,
    stopped: &std_mpsc::Receiver<LastStep>,
) {
    let beat_every = row.lease / 3;
    // A call that takes longer is dropped, so that another one can be made before the leases end.
    let patience = (row.lease / 4).min(Duration::from_secs(5));
    let mut registered = false;
    let mut last_beat: Option<Instant> = None;
    let mut failures = Failures::default();
    let look = || {
        stop_expired(live, row.lease);
        show_beating(heartbeats, row.lease);
    };
    loop {
        heartbeats.record_turn();
        let due = last_beat.is_none_or(|last_beat| last_beat.elapsed() >= beat_every);
        let attempts = live.to_heartbeat();
        if due || !attempts.is_empty() {
            let opened = runtime.block_on(bounded(connection.connect(), patience, row.lease, &look));
            // Count leases from before the request: MySQL counts them from a later moment, never from an earlier one.
            let sent = Instant::now();
            let renewed = |page: &[LiveAttempt]| live.record_renewals(page, sent);
            let told = match opened {
                Some(Ok(())) => {
                    let told = send_heartbeat(&mut connection, row, &mut registered, due, &attempts, &renewed);
                    runtime.block_on(bounded(told, patience, row.lease, &look))
                }
                Some(Err(error)) => Some(Err(error)),
                None => None,
            };
            match told {
                Some(Ok(beat)) => {
                    failures.end();
                    if due {
                        last_beat = Some(sent);
                        // Other runners know of heartbeats by this row alone, and may take the permits of a silent one.
                        if beat.told {
                            heartbeats.record_beat(sent, row.lease);
                        } else {
                            tracing::warn!("another session locks this runner's row: its heartbeat is not written");
                        }
                    }
                    apply_answer(&beat, live, events);
                    let written = connection.write_progress(&attempts);
                    let written = runtime.block_on(bounded(written, patience, row.lease, &look));
                    if let Some(Ok(left)) = written {
                        live.put_back(&left);
                    } else {
                        live.put_back(&attempts);
                        connection.disconnect(patience);
                    }
                }
                failed => {
                    live.put_back(&attempts);
                    connection.disconnect(patience);
                    failures.record(failed.and_then(Result::err).as_ref(), row.lease);
                }
            }
        }
        look();
        let until_beat = last_beat.map_or(Duration::ZERO, |last_beat| beat_every.saturating_sub(last_beat.elapsed()));
        let pause = LOOK_EVERY.min(until_beat.max(failures.pause()));
        match stopped.recv_timeout(pause) {
            Err(std_mpsc::RecvTimeoutError::Timeout) => {}
            Ok(LastStep::Unregister) => {
                let unregister =
                    async { tokio::time::timeout(Duration::from_secs(2), connection.unregister(&row.id)).await };
                if !matches!(runtime.block_on(unregister), Ok(Ok(()))) {
                    tracing::warn!("could not unregister the runner");
                }
                return;
            }
            Ok(LastStep::Silent) | Err(std_mpsc::RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Wait for a call to MySQL for at most `patience`, and look at the leases meanwhile: a call that hangs must not delay
/// the stop of expired attempts beyond the end of their leases.
async fn bounded<T>(call: impl Future<Output = T>, patience: Duration, lease: Duration, look: &impl Fn()) -> Option<T> {
    let over = tokio::time::sleep(patience);
    tokio::pin!(call, over);
    loop {
        tokio::select! {
            answer = &mut call => return Some(answer),
            () = &mut over => return None,
            () = tokio::time::sleep((lease / 40).min(LOOK_EVERY)) => look(),
        }
    }
}

/// Return the time after its last renewal for which a lease counts here. The margin of a tenth of a lease gives
/// handlers time to stop.
pub(super) fn lasting(lease: Duration) -> Duration {
    lease - lease / 10
}

/// Stop attempts whose leases are about to end.
fn stop_expired(live: &LiveAttempts, lease: Duration) {
    let stopped = live.stop_expired(lasting(lease));
    if stopped > 0 {
        tracing::error!(jobs = stopped, "leases could not be renewed, stopping their handlers");
    }
}

/// Show whether heartbeats are answered. The fetcher cannot: it waits for a free worker, for the end of a drain, or for
/// ever in a process without workers.
fn show_beating(heartbeats: &HeartbeatHistory, lease: Duration) {
    metrics::gauge!("tickr_fetching").set(f64::from(heartbeats.is_beating(lease)));
}

async fn send_heartbeat(
    connection: &mut HeartbeatConnection,
    row: &RunnerRow,
    registered: &mut bool,
    due: bool,
    attempts: &[LiveAttempt],
    renewed: &(dyn Fn(&[LiveAttempt]) + Sync),
) -> Result<HeartbeatAnswer, StoreError> {
    if !*registered {
        connection.register(row).await?;
        *registered = true;
    }
    if due { connection.beat(&row.id, row.lease, attempts, renewed).await } else { connection.look(attempts).await }
}

fn apply_answer(beat: &HeartbeatAnswer, live: &LiveAttempts, events: &Events) {
    if !beat.locked.is_empty() {
        let jobs = beat.locked.len();
        tracing::warn!(jobs, "another session locks the rows of attempts: their leases are not renewed");
    }
    for (id, token) in &beat.lost {
        // Compare the token: since the list was made, this runner may have settled the job and claimed it again.
        if live.stop(*id, Some(*token), StopReason::LeaseLost) {
            tracing::warn!(job = %id, "lease is lost, stopping its handler");
        }
    }
    for (id, _) in &beat.cancel_requested {
        if live.stop(*id, None, StopReason::Cancel) {
            events.emit(Event::CancelRequested { id: *id });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_heartbeats_that_fail_grow_and_stay_short_beside_the_lease() {
        let pauses = |lease_s: u64| {
            let mut failures = Failures::default();
            let mut next = || {
                failures.record(None, Duration::from_secs(lease_s));
                failures.pause().as_millis()
            };
            let pauses: [u128; 6] = std::array::from_fn(|_| next());
            failures.end();
            (pauses, failures.pause())
        };
        assert_eq!(pauses(60), ([100, 200, 400, 800, 1_000, 1_000], SHORTEST_PAUSE));
        assert_eq!(pauses(6).0, [100, 200, 300, 300, 300, 300]);
        assert_eq!(pauses(2).0, [100; 6]);
    }
}
