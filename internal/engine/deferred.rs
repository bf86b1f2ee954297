//! Leaves attempts to the systems that finish them, and ends those that were not finished or reported on in time.
//!
//! The runner renews the lease of a deferred attempt no longer. Reports do, through the API of any runner. The summary of
//! changes says when the time of one is up: a look costs nothing more.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::EngineState;
use super::live::StopSwitch;
use super::reaper::announce;
use tickr_event::Event;
use tickr_handlers::{FinishKeyStore, FinishLater};
use tickr_job::{AttemptToken, CallOutcome, JobId, Verdict};
use tickr_store::{Claimed, Deferral, Store};
use tickr_telemetry::LinePace;

/// Shortest and longest time that another system may take.
const WITHIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(7 * 24 * 60 * 60));
/// Pause before another try to store a finish key.
const PAUSE: Duration = Duration::from_millis(500);

/// Stores the finish key of an attempt. A handler that blocks its thread keeps this beyond the end of its runner, and must
/// not keep the store open.
#[derive(Debug)]
pub(super) struct FinishKeys {
    store: Weak<Store>,
    attempt: (JobId, AttemptToken, u32),
    stop: CancellationToken,
}

impl FinishKeys {
    pub(super) fn of(shared: &EngineState, claimed: &Claimed, stop: &StopSwitch) -> Self {
        let attempt = (claimed.id, claimed.token, claimed.number);
        Self { store: Arc::downgrade(&shared.finish_keys), attempt, stop: stop.token().clone() }
    }
}

impl FinishKeyStore for FinishKeys {
    /// Wait until MySQL has the key. An outage that ends in time must use no attempt, because the receiver was not called
    /// yet.
    fn store(
        &self,
        digest: [u8; 32],
        later: Option<FinishLater>,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        Box::pin(async move {
            let (job, began, mut lines) = (self.attempt.0, Instant::now(), LinePace::new());
            loop {
                let store = self.store.upgrade().ok_or("the runner has stopped")?;
                // The time of the attempt goes on while MySQL is out.
                let left = |later: FinishLater| later.within.saturating_sub(began.elapsed());
                let later = later.map(|later| FinishLater { within: left(later), ..later });
                let stored = store.store_finish_key(self.attempt, digest, later.map(deferral)).await;
                drop(store);
                match stored {
                    Ok(()) => return Ok(()),
                    Err(error) if error.is_transient() && !self.stop.is_cancelled() => {
                        if lines.next_line().is_some() {
                            tracing::warn!(%job, %error, "cannot store a finish key yet, trying again");
                        }
                    }
                    Err(error) => return Err(error.to_string()),
                }
                tokio::select! {
                    () = self.stop.cancelled() => return Err("the attempt was told to stop before that".to_owned()),
                    () = tokio::time::sleep(PAUSE) => {}
                }
            }
        })
    }
}

fn deferral(later: FinishLater) -> Deferral {
    let bounded = |time: Duration| time.clamp(WITHIN.0, WITHIN.1);
    Deferral { within: bounded(later.within), report_within: later.report_within.map(bounded) }
}

/// Leave the attempt to the system that has its finish key. Like a verdict, this is tried until it is written or the
/// runner gives up. Returns false if the attempt has ended: the system was faster, or the lease is lost.
pub(super) async fn defer(
    shared: &EngineState,
    claimed: &Claimed,
    later: FinishLater,
    (call, mut log, checkpoint): (Option<CallOutcome>, Option<String>, Option<Arc<str>>),
) -> bool {
    let deferral = deferral(later);
    let mut pause = Duration::from_millis(100);
    let mut lines = LinePace::new();
    loop {
        let (attempt, kept) = ((claimed.id, claimed.token, claimed.number), (log.clone(), checkpoint.clone()));
        match shared.store.defer(attempt, deferral, (claimed.slots(), call), kept).await {
            Ok(deferred) => return deferred,
            Err(error) if error.is_about_the_row() && log.is_some() => {
                tracing::error!(job = %claimed.id, %error, "mysql refuses the log of an attempt, deferring it without");
                log = None;
                continue;
            }
            Err(error) if error.is_about_the_row() => {
                // The lease ends and the attempt counts as lost.
                tracing::error!(job = %claimed.id, %error, "mysql refuses to defer an attempt, its lease will end");
                return false;
            }
            Err(error) => {
                if lines.next_line().is_some() {
                    tracing::warn!(job = %claimed.id, %error, "cannot defer an attempt yet, trying again");
                }
                shared.store_failed();
            }
        }
        tokio::select! {
            () = shared.give_up.cancelled() => return false,
            () = tokio::time::sleep(pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)) => {}
        }
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// End deferred attempts whose time is up, after each summary of changes that shows some, about once a second.
pub(super) async fn end_until_stopped(shared: &EngineState) {
    let mut summaries = shared.operator_settings.summaries();
    loop {
        tokio::select! {
            () = shared.stop_loops.cancelled() => break,
            changed = summaries.changed() => if changed.is_err() {
                return;
            },
        }
        let some = summaries.borrow_and_update().as_ref().is_some_and(|summary| summary.deferred_overdue);
        if !some {
            continue;
        }
        let policies = Arc::new(shared.registry.retry_policies());
        // After an outage of MySQL, or a step of its clock, the systems have a lease's time to report.
        let lease = shared.settings.lease;
        while !shared.stop_loops.is_cancelled()
            && !shared.store_trouble.is_known()
            && shared.heartbeats.may_call_dead(lease, lease)
        {
            match shared.store.end_overdue_attempts(Arc::clone(&policies)).await {
                Ok((ended, more)) => {
                    if !ended.is_empty() {
                        tracing::info!(attempts = ended.len(), "deferred attempts timed out");
                    }
                    for ended in ended {
                        shared.attempt_metrics.record_ended(&ended.kind, Verdict::TimedOut);
                        announce(shared, &ended, Verdict::TimedOut);
                        let (verdict, state) = (Verdict::TimedOut, ended.state);
                        shared.broker.events().emit(Event::Settled { id: ended.id, verdict, state });
                    }
                    if !more {
                        break;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot end deferred attempts yet");
                    break;
                }
            }
        }
    }
}
