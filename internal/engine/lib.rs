//! The engine: the parts of a runner that execute jobs. One loop per file; [`Engine`] starts and stops them all.
//!
//! ```text
//! scheduler ── moves due ids to ready lists ──▶ fetcher ── one id per free seat ──▶ worker ──▶ executor ──▶ verdict
//!     ▲                                            ▲                                              │
//!   wake (new work)             Redis, or MySQL while Redis is out                              live ◀── heartbeat
//! ```
//!
//! The path of a job:
//! - `scheduler.rs`: moves ids from the sorted set to the ready lists when they are due.
//! - `alarm.rs`: a clock that wakes the scheduler and the ticker with sub-millisecond precision.
//! - `queue_order.rs`: the order in which a runner takes from its lanes (a lane is one priority of one queue).
//! - `permits.rs`: the permits of this runner for queues with a concurrency limit.
//! - `fetcher.rs`: takes ids for free seats.
//! - `skipped.rs`: the front of a lane in MySQL that holds no job to take.
//! - `remote_workers.rs`: serves the requests for jobs of remote workers.
//! - `released.rs`: starts jobs that waited for an order key or a limit without the way through Redis.
//! - `worker_pool.rs`: how many handlers run at once, and how many jobs may be claimed or settled besides.
//! - `worker.rs`: claims an id and has the job executed.
//! - `executor.rs`: runs one attempt, from its claim to its settled verdict.
//! - `kinds.rs`: follows the declared kinds whose receivers this runner calls.
//! - `checkpoints.rs`: saves the checkpoints of attempts that run.
//! - `limits.rs`: the sweep of limits by key.
//! - `live.rs`: the attempts that run in this process.
//! - `trace.rs`: the OpenTelemetry span of an attempt.
//! - `attempt_metrics.rs`: metrics of attempts.
//!
//! Leases and lost attempts:
//! - `heartbeat.rs`: renews leases, on a thread of its own.
//! - `heartbeat_history.rs`: the history of this runner's heartbeat, which says whether it may call other runners dead.
//! - `reaper.rs`: ends attempts whose runner died.
//! - `store_trouble.rs`: whether MySQL failed a call, until it answers again.
//! - `suspects.rs`: the quarantine for jobs that lost two attempts in a row.
//! - `child.rs`: the process that runs one suspect, as its runner sees it.
//! - `solo.rs`: the same process, from the inside.
//! - `unread.rs`: jobs that this binary cannot read and that another version may read.
//!
//! Loops beside them:
//! - `ticker.rs`: fires the ticks of schedules.
//! - `reconciler.rs`: repairs and rebuilds the index from MySQL.
//! - `turns.rs`: the turns of lanes when the reconciler cannot compare all of them at once.
//! - `deferred.rs`: leaves attempts to the systems that finish them, and ends those that nothing is heard of.
//! - `expiry.rs`: ends jobs that did not start before their expiry.
//! - `outbox.rs`: moves jobs from the outbox.
//! - `outbox_sources.rs`: copies rows from the outboxes of applications to the outbox.
//! - `dependencies.rs`: lets jobs run whose parents have ended.
//! - `batches.rs`: counts the jobs of batches, and starts the callbacks.
//! - `bulk_runner.rs`: carries out bulk operations.
//! - `janitor.rs`: removes rows whose retention has ended.
//! - `ledger_walk.rs`: the parts of the ledger in which the janitor looks for such jobs.
//! - `reports.rs`: the part of the janitor that removes report files.
//! - `index_changes.rs`: records when Redis was lost and came back.
//! - `alerts.rs`: measures the dead letters and sends alerts.
//! - `recorder.rs`: writes the history that charts show; it stops by itself, after the last request.
//!
//! Every other loop is owned by the [`Engine`], watches one stop token, and is joined before [`Engine::stop`] returns.

mod alarm;
mod alerts;
mod attempt_metrics;
mod batches;
mod bulk_runner;
mod checkpoints;
mod child;
mod deferred;
mod dependencies;
mod executor;
mod expiry;
mod fetcher;
mod heartbeat;
mod heartbeat_history;
mod index_changes;
mod janitor;
mod kinds;
mod ledger_walk;
mod limits;
mod live;
mod outbox;
mod outbox_sources;
mod permits;
mod queue_order;
mod reaper;
mod reconciler;
mod recorder;
mod released;
mod remote_workers;
mod reports;
mod scheduler;
mod skipped;
mod solo;
mod store_trouble;
mod suspects;
mod ticker;
mod trace;
mod turns;
mod unread;
mod worker;
mod worker_pool;

pub use alerts::AlertSettings;
pub use child::{ChildProgram, HandOver, LAST_SECONDS, SUSPECT_WORD};
pub use heartbeat_history::HeartbeatTurns;
pub use live::StopReason;
pub use recorder::Recorder;
pub use reports::ReportKeeping;
pub use solo::{ParentConnection, run_suspect};

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::level_filters::LevelFilter;

use alarm::Alarm;
use attempt_metrics::AttemptMetrics;
use fetcher::Fetcher;
use heartbeat::Heartbeat;
use heartbeat_history::HeartbeatHistory;
use kinds::CurrentClaimant;
use live::LiveAttempts;
use permits::Permits;
use store_trouble::StoreTrouble;
use suspects::Suspects;
use tickr_broker::{Broker, OperatorSettingsCopy, Poll};
use tickr_client::RunnerClient;
use tickr_event::Event;
use tickr_handlers::Registry;
use tickr_index::Index;
use tickr_job::{Hours, JobId, Name, RunnerId};
use tickr_store::{DueJob, Retention, RunnerRow, ServedKinds, SourceSettings, Store, StoreError};
use tickr_telemetry::{Tracer, keep_attempt_logs, log_as};
use unread::Unread;
use worker_pool::WorkerPool;

/// Settings of one runner.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Identity of this runner, the same from its start to its end.
    pub runner: RunnerId,
    /// Number of workers.
    pub workers: usize,
    /// Queues to serve, in any order. Operators set the priorities of queues; queues of equal priority take turns.
    pub queues: Vec<Name>,
    /// Time after which a claimed job is free for other runners if no heartbeat renewed its lease.
    pub lease: Duration,
    /// Records the spans of attempts.
    pub tracer: Tracer,
    /// Level of the lines that are stored with each attempt.
    pub attempt_log: LevelFilter,
    /// Whether an attempt that succeeded keeps its log.
    pub keep_logs_of_successes: bool,
    /// Retention of ended jobs.
    pub retention: Retention,
    /// Hours in which ended jobs may be removed. None: at any time.
    pub purge_hours: Option<Hours>,
    /// Retention of the responses that are stored for idempotency keys.
    pub keep_answers: Duration,
    /// Alerts about dead letters. None: no alerts.
    pub alerts: Option<AlertSettings>,
    /// Retention of audit records.
    pub keep_audit: Duration,
    /// Retention of the recorded ticks of schedules.
    pub keep_ticks: Duration,
    /// Time between two rounds of the janitor, before jitter.
    pub janitor_every: Duration,
    /// The finished reports of this runner and their retention.
    pub reports: Option<ReportKeeping>,
    /// Program that runs each suspect in a process of its own. None: suspects run in this process, one at a time.
    pub child: Option<ChildProgram>,
    /// Outboxes in databases of applications.
    pub outboxes: Vec<SourceSettings>,
    /// Run no loop and no heartbeat: nothing starts, moves, ends or is removed, and MySQL does not list the runner.
    pub held: bool,
}

/// State that all loops share.
struct EngineState {
    store: Store,
    index: Index,
    broker: Broker,
    /// The client of handlers, which ends with this runner.
    client: Arc<RunnerClient>,
    operator_settings: OperatorSettingsCopy,
    registry: Arc<Registry>,
    runner: RunnerId,
    settings: EngineSettings,
    live: Arc<LiveAttempts>,
    workers: WorkerPool,
    heartbeats: Arc<HeartbeatHistory>,
    suspects: Suspects,
    unread: Unread,
    permits: Arc<Permits>,
    attempt_metrics: AttemptMetrics,
    /// Bounds how many pages the janitor removes at the same time.
    purges: tokio::sync::Semaphore,
    store_trouble: StoreTrouble,
    /// What living runners execute, as the reaper last read it.
    served: Mutex<ServedKinds>,
    /// Jobs that are not held any more, for [`released`].
    released: OnceLock<UnboundedSender<DueJob>>,
    /// Requests for jobs of remote workers.
    polls: tokio::sync::Mutex<Option<UnboundedReceiver<Poll>>>,
    /// The store for finish keys of attempts, which costs each attempt one pointer.
    finish_keys: Arc<Store>,
    /// Wakes the loop that saves checkpoints.
    save_checkpoints: Arc<Notify>,
    /// Held for a pass of that loop.
    saving: tokio::sync::Mutex<()>,
    /// Wakes the reconciler before its next pass is due.
    reconcile: Notify,
    /// Wakes the loop that refills ready lists.
    refill: Notify,
    /// Stops the fetcher.
    stop_fetching: CancellationToken,
    /// Stops the other loops, after the workers.
    stop_loops: CancellationToken,
    /// The grace period of the stop is over: nothing waits any longer for a handler that does not end.
    grace_over: CancellationToken,
    /// Ends the wait for a MySQL server that does not come back.
    give_up: CancellationToken,
}

/// A running runner.
pub struct Engine {
    shared: Arc<EngineState>,
    fetching: TaskTracker,
    working: TaskTracker,
    looping: TaskTracker,
    /// Absent when the runner is held.
    heartbeat: Option<Heartbeat>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("runner", &self.shared.runner).finish_non_exhaustive()
    }
}

/// Result of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Attempts whose handlers still ran when the grace period ended, and were told to stop. Their jobs are given back.
    pub given_back: usize,
    /// Attempts that could not be settled, also of those that had ended before. Their leases end by themselves.
    pub abandoned: usize,
}

/// Longest time that a start waits until MySQL lists the runner.
const TO_ENLIST: Duration = Duration::from_secs(5);

impl Engine {
    /// Register the runner in MySQL before its API accepts requests. A job that only this version can read may be
    /// claimed at once by a runner of another version, and that runner gives it back only if it finds this one
    /// registered. If this call fails, the heartbeat registers the runner.
    pub async fn enlist(store: &Store, registry: &Registry, settings: &EngineSettings) {
        if settings.held {
            return;
        }
        let mut pulse = store.heartbeat_connection();
        let entered = tokio::time::timeout(TO_ENLIST, pulse.register(&row(registry, settings))).await;
        if !matches!(entered, Ok(Ok(()))) {
            tracing::warn!("could not register the runner yet, the heartbeat will");
        }
    }

    /// Start all loops, or none of them if the runner is held.
    ///
    /// # Errors
    /// When the thread of the heartbeat or of an alarm cannot be started.
    pub fn start(
        broker: Broker,
        index: Index,
        operator_settings: OperatorSettingsCopy,
        registry: Arc<Registry>,
        mut settings: EngineSettings,
    ) -> std::io::Result<Self> {
        settings.queues = settings.queues.into_iter().map(Name::fixed).collect();
        let store = broker.store().clone();
        let runner = settings.runner.clone();
        log_as(&runner);
        keep_attempt_logs(settings.attempt_log);
        let live = Arc::new(LiveAttempts::default());
        if settings.held {
            return Ok(Self::hold((broker, index, operator_settings), registry, settings, live));
        }
        let row = row(&registry, &settings);
        let heartbeats =
            Arc::new(if store.was_out() { HeartbeatHistory::after_an_outage() } else { HeartbeatHistory::default() });
        // The first clock reading of the reaper is compared with this one.
        heartbeats.record_clock(&store.clock().reading(), settings.lease);
        let events = broker.events().clone();
        let heartbeat =
            Heartbeat::start(store.heartbeat_connection(), row, Arc::clone(&live), Arc::clone(&heartbeats), events)?;
        let alarm = Arc::new(Alarm::start()?);
        let tick_alarm = Arc::new(Alarm::start()?);
        let (sender, released) = mpsc::unbounded_channel();
        let claimed = registry.runnable_names();
        let claimant = store.claimant(runner, claimed.clone(), settings.lease).sending_to(sender.clone());
        let claimant = Arc::new(CurrentClaimant::new(claimant));
        let shared =
            Arc::new(EngineState::new((broker, index, operator_settings), registry, settings, (live, heartbeats)));
        let (fetching, working, looping) = (TaskTracker::new(), TaskTracker::new(), TaskTracker::new());
        // It is set here alone.
        let _ = shared.released.set(sender.clone());
        // The fetcher takes a seat for each id before it takes the id.
        let start = {
            let (shared, working, claimant) = (Arc::clone(&shared), working.clone(), Arc::clone(&claimant));
            move |job| drop(working.spawn(worker::work(Arc::clone(&shared), claimant.now(), job)))
        };
        let (released, start_released) = (Arc::new(tokio::sync::Mutex::new(released)), start.clone());
        keep_running(&fetching, &shared, "released jobs", move |shared| {
            released::start_until_stopped(shared, Arc::clone(&released), start_released.clone())
        });
        keep_running(&fetching, &shared, "fetcher", move |shared| {
            Fetcher::new(shared).fetch_until_stopped(start.clone())
        });
        keep_running(&fetching, &shared, "remote workers", remote_workers::serve_until_stopped);
        keep_running(&looping, &shared, "declared kinds", move |shared: Arc<EngineState>| {
            let (claimant, sender, claimed) = (Arc::clone(&claimant), sender.clone(), claimed.clone());
            async move { kinds::follow_until_stopped(&shared, &claimant, sender, claimed).await }
        });
        keep_running(&looping, &shared, "scheduler", move |shared| {
            scheduler::run_until_stopped(shared, Arc::clone(&alarm))
        });
        keep_running(&looping, &shared, "ticker", move |shared| {
            ticker::run_until_stopped(shared, Arc::clone(&tick_alarm))
        });
        keep_running(&looping, &shared, "reconciler", reconciler::run_until_stopped);
        keep_running(&looping, &shared, "permits", permits::keep_until_stopped);
        keep_running(&looping, &shared, "refill", reconciler::refill_until_stopped);
        keep_running(&looping, &shared, "store trouble", store_trouble::end_until_stopped);
        keep_running(&looping, &shared, "reaper", reaper::run_until_stopped);
        keep_running(&looping, &shared, "unanswered claims", reaper::give_back_until_stopped);
        keep_running(&looping, &shared, "expiry", async move |shared: Arc<EngineState>| {
            expiry::end_until_stopped(&shared).await;
        });
        keep_running(&looping, &shared, "deferred attempts", async move |shared: Arc<EngineState>| {
            deferred::end_until_stopped(&shared).await;
        });
        keep_running(&looping, &shared, "janitor", janitor::run_until_stopped);
        keep_running(&looping, &shared, "outbox", outbox::move_until_stopped);
        for source in shared.settings.outboxes.clone() {
            keep_running(&looping, &shared, "outbox source", move |shared| {
                outbox_sources::copy_until_stopped(shared, source.clone())
            });
        }
        keep_running(&looping, &shared, "dependencies", dependencies::tell_until_stopped);
        keep_running(&looping, &shared, "batches", batches::count_until_stopped);
        keep_running(&looping, &shared, "cancels of batches", batches::finish_cancels_until_stopped);
        keep_running(&looping, &shared, "bulk runner", bulk_runner::run_until_stopped);
        keep_running(&looping, &shared, "alerts", alerts::run_until_stopped);
        keep_running(&looping, &shared, "index changes", async move |shared: Arc<EngineState>| {
            index_changes::record_until_stopped(&shared).await;
        });
        keep_running(&looping, &shared, "checkpoints", async move |shared: Arc<EngineState>| {
            checkpoints::save_until_stopped(&shared).await;
        });
        keep_running(&looping, &shared, "cancels", live::forward_cancels);
        tracing::info!(runner = %shared.runner, workers = shared.settings.workers, "runner started");
        Ok(Self { shared, fetching, working, looping, heartbeat: Some(heartbeat) })
    }

    /// Make a runner without loops. It takes no request for jobs of a remote worker: nothing would answer.
    fn hold(
        parts: (Broker, Index, OperatorSettingsCopy),
        registry: Arc<Registry>,
        settings: EngineSettings,
        live: Arc<LiveAttempts>,
    ) -> Self {
        drop(parts.0.polls());
        let shared = Arc::new(EngineState::new(parts, registry, settings, (live, Arc::default())));
        tracing::warn!(
            runner = %shared.runner,
            "held: no job starts, and nothing is fired, moved, ended or removed; start without the setting held to go on"
        );
        let (fetching, working, looping) = (TaskTracker::new(), TaskTracker::new(), TaskTracker::new());
        Self { shared, fetching, working, looping, heartbeat: None }
    }

    /// Return the identity of this runner, as its attempts show it.
    #[must_use]
    pub fn runner(&self) -> &RunnerId {
        &self.shared.runner
    }

    /// Return whether it runs no loop, and no heartbeat.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.heartbeat.is_none()
    }

    /// Return the number of attempts that run now.
    #[must_use]
    pub fn busy_workers(&self) -> usize {
        self.shared.live.len() + self.shared.suspects_elsewhere()
    }

    /// Return the turns of the heartbeat, which show that this runner is alive.
    #[must_use]
    pub fn heartbeat_turns(&self) -> HeartbeatTurns {
        HeartbeatTurns(Arc::clone(&self.shared.heartbeats))
    }

    /// Stop in order: fetch nothing more; give running attempts `grace` to finish, or less if `hurry` is cancelled;
    /// then tell the remaining handlers to stop, and give their jobs back without using up an attempt; then end the
    /// loops. (G10)
    pub async fn stop(self, grace: Duration, hurry: CancellationToken) -> Stopped {
        let Self { shared, fetching, working, looping, heartbeat } = self;
        shared.broker.events().emit(Event::RunnerStopping);
        shared.stop_fetching.cancel();
        fetching.close();
        let end_of_grace = tokio::time::Instant::now() + grace;
        let patience = async {
            tokio::select! {
                () = tokio::time::sleep_until(end_of_grace) => {}
                () = hurry.cancelled() => {}
            }
        };
        // The fetcher returns from its blocking pop within a second, unless a server hangs. In that case this code does
        // not wait for it, and a job that it still pops waits in MySQL.
        working.close();
        let finished = tokio::select! {
            () = async { fetching.wait().await; working.wait().await } => true,
            () = patience => false,
        };
        let (given_back, results_waiting) = if finished { (0, 0) } else { shared.end_grace() };
        shared.grace_over.cancel();
        // While the fetcher has not ended, it may still start a job.
        let ended = async {
            fetching.wait().await;
            working.wait().await;
        };
        let in_time = tokio::time::timeout(executor::STOP_GRACE + Duration::from_secs(3), ended).await;
        let all_settled = in_time.is_ok();
        let abandoned = if all_settled { 0 } else { shared.live.len() };
        shared.give_up.cancel();
        if abandoned > 0 {
            tracing::warn!(jobs = abandoned, "some attempts could not be settled; their leases will end");
        }
        shared.stop_loops.cancel();
        looping.close();
        if tokio::time::timeout(Duration::from_secs(3), looping.wait()).await.is_err() {
            tracing::warn!("a loop still waits for a server, stopping without it");
        }
        if !all_settled {
            // Workers that waited for MySQL gave up above and end now.
            let _ = tokio::time::timeout(Duration::from_secs(1), working.wait()).await;
        }
        permits::give_back(&shared).await;
        let last = async {
            reaper::give_back_unanswered(&shared).await?;
            shared.store.delete_closed_batches(&shared.runner).await
        };
        if !matches!(tokio::time::timeout(Duration::from_secs(2), last).await, Ok(Ok(()))) {
            tracing::warn!("could not clean up after the last claims, other runners will");
        }
        // Unregister the runner only when no claim is under way and every claim was answered. Otherwise an attempt may
        // be left behind, and other runners find it through this runner's row.
        if let Some(heartbeat) = heartbeat {
            heartbeat.stop(all_settled && shared.store.unanswered_claims() == 0).await;
        }
        tracing::info!(runner = %shared.runner, given_back, results_waiting, abandoned, "runner stopped");
        Stopped { given_back, abandoned }
    }
}

impl EngineState {
    /// Build the shared state of a runner that is about to start.
    fn new(
        (broker, index, operator_settings): (Broker, Index, OperatorSettingsCopy),
        registry: Arc<Registry>,
        settings: EngineSettings,
        (live, heartbeats): (Arc<LiveAttempts>, Arc<HeartbeatHistory>),
    ) -> Self {
        let polls = broker.polls();
        let (watched, steps, lease) = (Arc::clone(&heartbeats), Arc::clone(&heartbeats), settings.lease);
        let set_ahead_since = move |moment| steps.set_ahead_since(moment);
        broker.judge_clock_by(move |reading| watched.trust_clock(reading, lease), set_ahead_since);
        Self {
            store: broker.store().clone(),
            purges: tokio::sync::Semaphore::new(broker.store().purges_at_once()),
            finish_keys: Arc::new(broker.store().clone()),
            runner: settings.runner.clone(),
            workers: WorkerPool::new(settings.workers),
            suspects: Suspects::new(settings.workers, settings.child.is_some()),
            unread: Unread::default(),
            permits: Permits::new(&settings.queues, &operator_settings.now(), Arc::clone(&heartbeats), settings.lease),
            attempt_metrics: AttemptMetrics::new(&registry.names(), &settings.queues, settings.workers),
            index,
            client: Arc::new(RunnerClient::new(&broker)),
            broker,
            operator_settings,
            registry,
            live,
            heartbeats,
            store_trouble: StoreTrouble::new(),
            served: Mutex::default(),
            released: OnceLock::new(),
            polls: tokio::sync::Mutex::new(polls),
            save_checkpoints: Arc::default(),
            saving: tokio::sync::Mutex::default(),
            reconcile: Notify::new(),
            refill: Notify::new(),
            stop_fetching: CancellationToken::new(),
            stop_loops: CancellationToken::new(),
            grace_over: CancellationToken::new(),
            give_up: CancellationToken::new(),
            settings,
        }
    }

    /// Start these jobs, which are not held any more, if this runner can start them at once. Hint the others.
    fn start_or_hint(&self, released: Vec<DueJob>) {
        for job in released {
            let left = match self.released.get() {
                Some(sender) => sender.send(job).err().map(|refused| refused.0),
                None => Some(job),
            };
            if let Some(job) = left {
                self.broker.hint_released(&job);
            }
        }
    }

    /// Note that a call to MySQL failed for a reason that may pass.
    fn store_failed(&self) {
        self.store_trouble.note();
    }

    /// Note that a job could not be claimed, and write a line about it at times.
    fn claim_failed(&self, job: JobId, error: &StoreError) {
        match self.store_trouble.next_claim_line() {
            Some(left_out) => tracing::warn!(%job, %error, left_out, "cannot claim a job"),
            None => tracing::debug!(%job, %error, "cannot claim a job"),
        }
        self.store_trouble.note_unclaimed();
    }

    /// Tell the attempts that are left to stop. Return how many jobs are given back, and how many attempts have ended and
    /// wait for MySQL to take their results.
    fn end_grace(&self) -> (usize, usize) {
        let told = self.live.close(StopReason::Shutdown);
        let given_back = told.running + self.suspects_elsewhere();
        if given_back > 0 {
            tracing::info!(jobs = given_back, "the grace period is over, giving running jobs back");
        }
        if told.settling > 0 {
            tracing::info!(results_waiting = told.settling, "the grace period is over, and results wait for mysql");
        }
        (given_back, told.settling)
    }

    /// Return the number of suspects of this runner that run in processes of their own.
    fn suspects_elsewhere(&self) -> usize {
        if self.settings.child.is_some() { self.suspects.running() } else { 0 }
    }

    /// Return whether a living runner that serves this queue has this kind: this one, or one that the reaper has read.
    fn is_served(&self, queue: &Name, kind: &Name) -> bool {
        let here = self.settings.workers > 0 && self.settings.queues.contains(queue);
        here && self.registry.runnable(kind.as_str()).is_some()
            || self.served.lock().unwrap_or_else(PoisonError::into_inner).has(queue, kind)
    }
}

/// Build the row that registers this runner in MySQL.
fn row(registry: &Registry, settings: &EngineSettings) -> RunnerRow {
    // Without workers it executes no kind, and other runners must not leave it jobs.
    let kinds = if settings.workers > 0 { registry.runnable_names() } else { Vec::new() };
    RunnerRow {
        id: settings.runner.clone(),
        version: env!("CARGO_PKG_VERSION"),
        kinds,
        editions: registry.editions(),
        queues: settings.queues.clone(),
        workers: u32::try_from(settings.workers).unwrap_or(u32::MAX),
        lease: settings.lease,
        host: host_name(),
        pid: std::process::id(),
        parent: None,
    }
}

/// Run a loop until the stop. A panic in a loop is a defect, but the runner must not go on without the loop: the panic
/// is logged and the loop starts again after a second.
fn keep_running<T, F, L>(tasks: &TaskTracker, shared: &Arc<T>, name: &'static str, run: L)
where
    T: Send + Sync + 'static,
    F: Future<Output = ()> + Send,
    L: Fn(Arc<T>) -> F + Send + 'static,
{
    let shared = Arc::clone(shared);
    tasks.spawn(async move {
        while AssertUnwindSafe(run(Arc::clone(&shared))).catch_unwind().await.is_err() {
            tracing::error!(name, "a loop panicked, starting it again");
            metrics::counter!("tickr_loop_panics_total", "loop" => name).increment(1);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
}

/// Return a new identity for a runner in this process.
#[must_use]
pub fn runner_of_this_process() -> RunnerId {
    RunnerId::new_for_host(&host_name())
}

/// Return the name of this host, at most 255 characters. Empty when it is not known.
#[must_use]
pub fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .map(|name| name.trim().chars().take(255).collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_loop_that_panics_starts_again() {
        let (tasks, starts) = (TaskTracker::new(), Arc::new(AtomicU32::new(0)));
        keep_running(&tasks, &starts, "test", |starts| async move {
            assert!(starts.fetch_add(1, Ordering::SeqCst) == 2, "a panic on purpose");
        });
        tasks.close();
        tasks.wait().await;
        assert_eq!(starts.load(Ordering::SeqCst), 3);
    }
}
