//! The inside of a process that runs one suspect: a runner with one job and a heartbeat, and nothing else.
//!
//! It registers itself as a runner, claims the job, executes and settles it like any other runner, unregisters and
//! ends. It gives the job back when it is told to stop, or when its runner dies: a job that runs without supervision
//! would be noticed only through its lease.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::child::ChildReport;
use super::heartbeat::Heartbeat;
use super::heartbeat_history::HeartbeatHistory;
use super::live::{LiveAttempts, StopReason};
use super::{EngineSettings, EngineState, checkpoints, executor, reaper};
use tickr_broker::{Broker, OperatorSettingsCopy};
use tickr_event::Event;
use tickr_handlers::Registry;
use tickr_index::Index;
use tickr_job::{JobId, RunnerId};
use tickr_store::{Claim, StoreError};
use tickr_telemetry::{keep_attempt_logs, log_as};

/// Time for settling and unregistering after the handler has ended.
const TO_SETTLE: Duration = Duration::from_secs(3);

/// The connection to the runner that started this process.
#[derive(Debug)]
pub struct ParentConnection(Mutex<UnixStream>);

impl ParentConnection {
    /// Create it from this socket.
    #[must_use]
    pub const fn new(socket: UnixStream) -> Self {
        Self(Mutex::new(socket))
    }

    /// Report that the job was not claimed.
    pub fn report_not_claimed(&self, why: String) {
        self.report(&ChildReport::NotClaimed { why });
    }

    /// Send a report. If the runner is gone, the report is lost; MySQL has everything that it needs to know.
    fn report(&self, said: &ChildReport) {
        let Ok(mut text) = serde_json::to_vec(said) else { return };
        text.push(b'\n');
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&text);
    }
}

/// Run one suspect of the runner `parent`, until its attempt is settled or `give_back` is cancelled.
///
/// # Errors
/// When MySQL cannot be reached, or the thread of the heartbeat cannot be started. The job is unchanged.
pub async fn run_suspect(
    (broker, index): (Broker, Index),
    registry: Arc<Registry>,
    settings: EngineSettings,
    (parent, job): (RunnerId, JobId),
    line: &ParentConnection,
    give_back: CancellationToken,
) -> anyhow::Result<()> {
    let store = broker.store().clone();
    let runner = settings.runner.clone();
    log_as(&runner);
    keep_attempt_logs(settings.attempt_log);
    // It has no workers of its own: it uses one of its parent.
    let row = super::RunnerRow { workers: 0, parent: Some(parent), ..super::row(&registry, &settings) };
    // Register before the claim, so that other runners notice if this process falls silent.
    store.heartbeat_connection().register(&row).await?;
    let (live, heartbeats) = (Arc::new(LiveAttempts::default()), Arc::new(HeartbeatHistory::default()));
    let events = broker.events().clone();
    let heartbeat =
        Heartbeat::start(store.heartbeat_connection(), row, Arc::clone(&live), Arc::clone(&heartbeats), events)?;
    let operator_settings = OperatorSettingsCopy::empty(store.clone(), runner.clone());
    let claimant = store.claimant(runner, registry.runnable_names(), settings.lease);
    let shared = Arc::new(EngineState::new((broker, index, operator_settings), registry, settings, (live, heartbeats)));
    let saves = {
        let shared = Arc::clone(&shared);
        AbortOnDropHandle::new(tokio::spawn(async move { checkpoints::save_until_stopped(&shared).await }))
    };
    let mut happened = shared.broker.events().listen();
    let asked = Instant::now();
    // A suspect counts against its limits as well.
    let asked_limits = Instant::now();
    store.follow_limits(&Arc::new(store.limits().await?), asked_limits);
    let claim = claimant.claim_suspect(job).await;
    // The connection of the claimant is not needed any more.
    drop(claimant);
    // A limit may have had no room for it after a COMMIT that took long.
    if claim.is_ok()
        && store.unanswered_claims() > 0
        && let Err(error) = reaper::give_back_unanswered(&shared).await
    {
        tracing::debug!(%error, "cannot give a suspect back that was not started");
    }
    let in_doubt = claim.is_err() || store.unanswered_claims() > 0;
    let settled = match begin(&shared, claim, asked, line) {
        Some(attempt) => to_its_end(&shared, attempt, &give_back).await,
        None => !in_doubt,
    };
    drop(saves);
    if let Some(given_back) = shared.unread.given_back(job) {
        line.report(&ChildReport::Unread(given_back));
    }
    while let Ok(event) = happened.try_recv() {
        match event {
            Event::Settled { id, verdict, state } if id == job => line.report(&ChildReport::Settled { verdict, state }),
            Event::Deferred { id } if id == job => line.report(&ChildReport::Deferred),
            Event::LeaseLost { id } if id == job => line.report(&ChildReport::LeaseLost),
            _ => {}
        }
    }
    // Do not unregister while an attempt may be left behind.
    heartbeat.stop(settled).await;
    Ok(())
}

/// Start the attempt that was claimed, and report the result of the claim to the runner.
fn begin(
    shared: &Arc<EngineState>,
    claim: Result<Claim, StoreError>,
    asked: Instant,
    line: &ParentConnection,
) -> Option<tokio::task::JoinHandle<()>> {
    match claim {
        Ok(Claim::Won(claimed)) => {
            let lateness = (claimed.started_at - claimed.execute_at).to_std().unwrap_or_default();
            let lateness_us = u64::try_from(lateness.as_micros()).unwrap_or(u64::MAX);
            line.report(&ChildReport::Claimed { number: claimed.number, lateness_us });
            let shared = Arc::clone(shared);
            Some(tokio::spawn(async move { drop(executor::execute(&shared, *claimed, asked, None).await) }))
        }
        Ok(Claim::Unreadable(unreadable)) => {
            line.report(&ChildReport::Claimed { number: unreadable.number, lateness_us: 0 });
            let shared = Arc::clone(shared);
            Some(tokio::spawn(async move { executor::refuse(&shared, *unreadable).await }))
        }
        Ok(Claim::Gone | Claim::Parked) => {
            line.report(&ChildReport::Gone);
            None
        }
        Ok(Claim::NotDue(_) | Claim::OtherKind(_) | Claim::Suspect(_) | Claim::LastAttempt(_)) => {
            line.report(&ChildReport::NotClaimed { why: "it is not due any more".into() });
            None
        }
        Err(error) => {
            line.report(&ChildReport::NotClaimed { why: error.to_string() });
            None
        }
    }
}

/// Wait for the attempt. After `give_back`, wait only as long as a stopping runner does. Return whether the attempt is
/// settled.
async fn to_its_end(
    shared: &EngineState,
    mut attempt: tokio::task::JoinHandle<()>,
    give_back: &CancellationToken,
) -> bool {
    tokio::select! {
        ended = &mut attempt => return ended.is_ok(),
        () = give_back.cancelled() => {}
    }
    tracing::info!("told to stop, giving the job back");
    shared.live.close(StopReason::GivenBack);
    shared.grace_over.cancel();
    if let Ok(ended) = tokio::time::timeout(executor::STOP_GRACE + TO_SETTLE, &mut attempt).await {
        return ended.is_ok();
    }
    shared.give_up.cancel();
    tokio::time::timeout(Duration::from_secs(1), attempt).await.is_ok_and(|ended| ended.is_ok())
}
