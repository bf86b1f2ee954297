//! The engine: one loop per file, started and stopped here.
//!
//! ```text
//! scheduler ── moves due ids to ready lists ──▶ fetcher ── free slots only ──▶ workers ──▶ executor ──▶ settle
//!     ▲                                            ▲                              │
//!   wake (new work)                   Redis, or the store while Redis is out      └─ live attempts ◀── heartbeat
//! reconciler: feeds the index from the store · reaper: ends attempts of dead runners · janitor: ends retention,
//! with reports: its part about their files
//! service: which lines are served next · permits: how many jobs of a queue with a limit may run here
//! ticker: fires the ticks of schedules
//! suspects: jobs that lost two attempts in a row · child: the process that one of them runs in · solo: that process inside
//! alarm: the scheduler's clock · gauges: figures of attempts
//! unread: jobs that this binary cannot read and another may
//! operator: what is done to many jobs at once · alerts: too many dead letters
//! recorder: the history that charts show; it stops by itself, after the last request
//! ```
//!
//! Every loop is owned by the [`Engine`], watches one stop token, and is joined before [`Engine::stop`] returns.

mod alarm;
mod alerts;
mod child;
mod executor;
mod fetcher;
mod gauges;
mod heartbeat;
mod janitor;
mod live;
mod operator;
mod permits;
mod reaper;
mod reconciler;
mod recorder;
mod reports;
mod rhythm;
mod scheduler;
mod service;
mod solo;
mod suspects;
mod ticker;
mod trace;
mod unread;
mod worker;

pub use alerts::AlertSettings;
pub use child::{ChildProgram, HandOver, LAST_SECONDS, SUSPECT_WORD};
pub use live::StopReason;
pub use recorder::Recorder;
pub use reports::ReportKeeping;
pub use solo::{ParentLine, run_suspect};

use std::collections::HashSet;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::broker::{Broker, Controls};
use crate::event::Event;
use crate::handlers::Registry;
use crate::index::Index;
use crate::job::{Hours, Name, RunnerId};
use crate::store::{Retention, RunnerRow, Store};
use crate::telemetry::{Tracer, log_as};
use alarm::Alarm;
use fetcher::Fetcher;
use gauges::Gauges;
use heartbeat::Heartbeat;
use live::Live;
use permits::Permits;
use rhythm::Rhythm;
use suspects::Suspects;
use unread::Unread;

/// How this runner works.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// This runner, from its start to its end.
    pub runner: RunnerId,
    /// Worker slots.
    pub workers: usize,
    /// Queues to serve, in any order: priorities are the operators', and equals take turns.
    pub queues: Vec<Name>,
    /// How long a claimed job stays ours without a heartbeat.
    pub lease: Duration,
    /// Records attempts.
    pub tracer: Tracer,
    /// How long ended jobs are kept.
    pub retention: Retention,
    /// When ended jobs may be removed; at any time when absent.
    pub purge_hours: Option<Hours>,
    /// How long answers are kept for their idempotency keys.
    pub keep_answers: Duration,
    /// Whom to tell of dead letters, if anybody.
    pub alerts: Option<AlertSettings>,
    /// How long it is known what operators did.
    pub keep_audit: Duration,
    /// How long it is known what became of the ticks of schedules.
    pub keep_ticks: Duration,
    /// The finished reports of this runner, and how long they are kept.
    pub reports: Option<ReportKeeping>,
    /// The program that runs suspects, one a process. Without one they run in this process, one at a time.
    pub child: Option<ChildProgram>,
}

/// What all loops share.
struct Shared {
    store: Store,
    index: Index,
    broker: Broker,
    controls: Controls,
    registry: Arc<Registry>,
    runner: RunnerId,
    settings: EngineSettings,
    live: Arc<Live>,
    rhythm: Arc<Rhythm>,
    suspects: Suspects,
    unread: Unread,
    permits: Arc<Permits>,
    gauges: Gauges,
    /// A claim failed: the fetcher asks the store before it takes more.
    store_trouble: AtomicBool,
    /// Kinds that some living runner has, as last seen by the reaper.
    living_kinds: Mutex<HashSet<Name>>,
    /// Something the reconciler should look at before its time.
    reconcile: Notify,
    /// Lines to refill.
    refill: Notify,
    /// Ends the fetcher.
    stop_fetching: CancellationToken,
    /// Ends the other loops, after the workers.
    stop_loops: CancellationToken,
    /// The runner's grace is over: nothing waits any longer for a handler that does not end.
    grace_over: CancellationToken,
    /// Ends the wait for a store that does not come back.
    give_up: CancellationToken,
}

/// A running runner.
pub struct Engine {
    shared: Arc<Shared>,
    fetching: TaskTracker,
    working: TaskTracker,
    looping: TaskTracker,
    heartbeat: Heartbeat,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("runner", &self.shared.runner).finish_non_exhaustive()
    }
}

/// How a stop went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Attempts that were running when the grace ended and were given back.
    pub given_back: usize,
    /// Attempts that could not be settled: their leases end by themselves.
    pub abandoned: usize,
}

/// How long a start waits until the runner is in the list.
const TO_ENLIST: Duration = Duration::from_secs(5);

impl Engine {
    /// Enter the runner in the list, before its API takes anything: a job that only this version can read may be met by
    /// another at once, which gives it back only for runners in the list. The heartbeat enters a runner that this did not.
    pub async fn enlist(store: &Store, registry: &Registry, settings: &EngineSettings) {
        let mut pulse = store.pulse();
        let entered = tokio::time::timeout(TO_ENLIST, pulse.register(&row(registry, settings))).await;
        if !matches!(entered, Ok(Ok(()))) {
            tracing::warn!("could not enter the runner in the list yet");
        }
    }

    /// Start all loops.
    ///
    /// # Errors
    /// When the thread of the heartbeat or of the alarm cannot be started.
    pub fn start(
        broker: Broker,
        index: Index,
        controls: Controls,
        registry: Arc<Registry>,
        settings: EngineSettings,
    ) -> std::io::Result<Self> {
        let store = broker.store().clone();
        let runner = settings.runner.clone();
        log_as(&runner);
        let live = Arc::new(Live::default());
        let row = row(&registry, &settings);
        let rhythm = Arc::new(if store.was_out() { Rhythm::after_an_outage() } else { Rhythm::default() });
        // What the reaper's first reading is compared with.
        rhythm.read(&store.clock().reading(), settings.lease);
        let events = broker.events().clone();
        let heartbeat = Heartbeat::start(store.pulse(), row, Arc::clone(&live), Arc::clone(&rhythm), events)?;
        let alarm = Arc::new(Alarm::start()?);
        let tick_alarm = Arc::new(Alarm::start()?);
        let claimant = store.claimant(runner, registry.names(), settings.lease);
        let shared = Arc::new(Shared::of((broker, index, controls), registry, settings, (live, rhythm)));
        let (fetching, working, looping) = (TaskTracker::new(), TaskTracker::new(), TaskTracker::new());
        // A slot is free until the fetcher takes it for an id; the worker gives it back when the job is settled. So
        // the channel never holds more than there are workers, and no id is fetched that nobody could start.
        let slots = Arc::new(Semaphore::new(shared.settings.workers));
        let (entrance, queue) = mpsc::channel(shared.settings.workers);
        let queue = Arc::new(tokio::sync::Mutex::new(queue));
        for _ in 0..shared.settings.workers {
            working.spawn(worker::work_until_closed(Arc::clone(&shared), claimant.clone(), Arc::clone(&queue)));
        }
        fetching.spawn(Fetcher::new(Arc::clone(&shared)).fetch_until_stopped(slots, entrance));
        keep_running(&looping, &shared, "scheduler", move |shared| {
            scheduler::run_until_stopped(shared, Arc::clone(&alarm))
        });
        keep_running(&looping, &shared, "ticker", move |shared| {
            ticker::run_until_stopped(shared, Arc::clone(&tick_alarm))
        });
        keep_running(&looping, &shared, "reconciler", reconciler::run_until_stopped);
        keep_running(&looping, &shared, "permits", permits::keep_until_stopped);
        keep_running(&looping, &shared, "refill", reconciler::refill_until_stopped);
        keep_running(&looping, &shared, "reaper", reaper::run_until_stopped);
        keep_running(&looping, &shared, "unanswered claims", reaper::give_back_until_stopped);
        keep_running(&looping, &shared, "janitor", janitor::run_until_stopped);
        keep_running(&looping, &shared, "operator", operator::run_until_stopped);
        keep_running(&looping, &shared, "alerts", alerts::run_until_stopped);
        keep_running(&looping, &shared, "cancels", live::pass_on_cancels);
        tracing::info!(runner = %shared.runner, workers = shared.settings.workers, "runner started");
        Ok(Self { shared, fetching, working, looping, heartbeat })
    }

    /// This runner's identity, as it stands in its attempts.
    #[must_use]
    pub fn runner(&self) -> &RunnerId {
        &self.shared.runner
    }

    /// Attempts running now.
    #[must_use]
    pub fn busy(&self) -> usize {
        self.shared.live.len() + self.shared.suspects_elsewhere()
    }

    /// Stop in order: fetch nothing more; give what runs `grace` to finish, or until `hurry`; ask the rest to stop and
    /// give it back without burning its attempt; then end the loops. (G10)
    pub async fn stop(self, grace: Duration, hurry: CancellationToken) -> Stopped {
        let Self { shared, fetching, working, looping, heartbeat } = self;
        shared.broker.events().emit(Event::Draining);
        shared.stop_fetching.cancel();
        fetching.close();
        let end_of_grace = tokio::time::Instant::now() + grace;
        let patience = async {
            tokio::select! {
                () = tokio::time::sleep_until(end_of_grace) => {}
                () = hurry.cancelled() => {}
            }
        };
        // The fetcher returns from its blocking pop within a second, unless a server hangs; then it is left behind, and
        // what it may still take waits in the store. It drops its end of the channel: workers finish what was handed to
        // them and end.
        working.close();
        let finished = tokio::select! {
            () = async { fetching.wait().await; working.wait().await } => true,
            () = patience => false,
        };
        let given_back = if finished { 0 } else { shared.live.close() + shared.suspects_elsewhere() };
        shared.grace_over.cancel();
        if given_back > 0 {
            tracing::info!(jobs = given_back, "grace is over, giving back what still runs");
        }
        let in_time = tokio::time::timeout(executor::STOP_GRACE + Duration::from_secs(3), working.wait()).await;
        let all_settled = in_time.is_ok();
        let abandoned = if all_settled { 0 } else { shared.live.len() };
        shared.give_up.cancel();
        if abandoned > 0 {
            tracing::warn!(jobs = abandoned, "some attempts could not be settled; their leases will end");
        }
        shared.stop_loops.cancel();
        looping.close();
        if tokio::time::timeout(Duration::from_secs(3), looping.wait()).await.is_err() {
            tracing::warn!("a loop is still waiting for a server, leaving it behind");
        }
        if !all_settled {
            // Those that gave up waiting for the store end now.
            let _ = tokio::time::timeout(Duration::from_secs(1), working.wait()).await;
        }
        permits::give_back(&shared).await;
        let last = async {
            reaper::give_back_unanswered(&shared).await?;
            shared.store.delete_closed_batches(&shared.runner).await
        };
        if !matches!(tokio::time::timeout(Duration::from_secs(2), last).await, Ok(Ok(()))) {
            tracing::warn!("could not tidy up after the last claims, other runners will");
        }
        // No goodbye either while a claim is under way, or was never answered: it may leave an attempt behind that others
        // must look for.
        heartbeat.stop(all_settled && shared.store.unanswered_claims() == 0).await;
        tracing::info!(runner = %shared.runner, given_back, abandoned, "runner stopped");
        Stopped { given_back, abandoned }
    }
}

impl Shared {
    /// What the loops of a runner share that is about to start.
    fn of(
        (broker, index, controls): (Broker, Index, Controls),
        registry: Arc<Registry>,
        settings: EngineSettings,
        (live, rhythm): (Arc<Live>, Arc<Rhythm>),
    ) -> Self {
        Self {
            store: broker.store().clone(),
            runner: settings.runner.clone(),
            suspects: Suspects::beside(settings.workers, settings.child.is_some()),
            unread: Unread::default(),
            permits: Permits::new(&settings.queues, &controls.now(), Arc::clone(&rhythm), settings.lease),
            gauges: Gauges::of(&registry.names(), &settings.queues, settings.workers),
            index,
            broker,
            controls,
            registry,
            live,
            rhythm,
            store_trouble: AtomicBool::new(false),
            living_kinds: Mutex::new(HashSet::new()),
            reconcile: Notify::new(),
            refill: Notify::new(),
            stop_fetching: CancellationToken::new(),
            stop_loops: CancellationToken::new(),
            grace_over: CancellationToken::new(),
            give_up: CancellationToken::new(),
            settings,
        }
    }

    /// A call to the store failed for a reason that may pass.
    fn store_failed(&self) {
        self.store_trouble.store(true, Ordering::Relaxed);
    }

    /// Suspects of this runner that run in processes of their own.
    fn suspects_elsewhere(&self) -> usize {
        if self.settings.child.is_some() { self.suspects.running() } else { 0 }
    }

    /// Can some other living runner run this kind?
    fn runs_elsewhere(&self, kind: &Name) -> bool {
        self.living_kinds.lock().unwrap_or_else(PoisonError::into_inner).contains(kind)
    }
}

/// What a runner tells about itself.
fn row(registry: &Registry, settings: &EngineSettings) -> RunnerRow {
    RunnerRow {
        id: settings.runner.clone(),
        version: env!("CARGO_PKG_VERSION"),
        kinds: registry.names(),
        editions: registry.editions(),
        queues: settings.queues.clone(),
        slots: u32::try_from(settings.workers).unwrap_or(u32::MAX),
        lease: settings.lease,
        host: host_name(),
        pid: std::process::id(),
        parent: None,
    }
}

/// Run a loop until the stop. A panic in it is a defect, but not one that may leave the runner without the loop: it is
/// logged and the loop starts again.
fn keep_running<T, F, L>(tasks: &TaskTracker, shared: &Arc<T>, name: &'static str, run: L)
where
    T: Send + Sync + 'static,
    F: Future<Output = ()> + Send,
    L: Fn(Arc<T>) -> F + Send + 'static,
{
    let shared = Arc::clone(shared);
    tasks.spawn(async move {
        while AssertUnwindSafe(run(Arc::clone(&shared))).catch_unwind().await.is_err() {
            tracing::error!(name, "a loop panicked and starts again");
            metrics::counter!("tickr_loop_panics_total", "loop" => name).increment(1);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
}

/// A new identity for a runner in this process.
#[must_use]
pub fn runner_of_this_process() -> RunnerId {
    RunnerId::of_process(&host_name())
}

/// The name of this host; empty when it has none.
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
    use std::sync::atomic::AtomicU32;

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
