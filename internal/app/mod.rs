//! A whole tickr process: the composition root, with the ordered start and stop.
//!
//! Start: store, address, migrations (while the probes are answered), index (which may be out), broker, engine, API. Stop, on the first SIGTERM or SIGINT:
//! 1. readiness turns red, so that a load balancer looks elsewhere; answers ask clients to close their connections
//! 2. the fetcher stops; what runs gets the shutdown grace, while HTTP goes on
//! 3. what still runs is told to stop and given back without burning its attempt
//! 4. loops end, the runner is struck off the list
//! 5. the door closes behind the last guest, open requests are finished, the last figures written, connections close
//!
//! A second signal ends the grace at once. Everything here may be interrupted by SIGKILL without losing a job.

mod check;
mod connection;
mod door;
mod kinds;
mod migrating;
mod reports;
mod run;
mod schedules;
mod server;
mod signals;
mod suspect;

pub use check::{KindCheck, PendingCheck, PendingProblem, check_pending};
pub use run::{SHUTDOWN, Suspects, exit_code, run, serve, serve_with};
pub use signals::Signals;
pub use suspect::{is_for_a_suspect, run_suspect};

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use secrecy::ExposeSecret as _;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::api::{self, ApiParts, Places, Readiness, Readings, Tokens, Verifier, Warnings};
use crate::broker::{Broker, Controls, Feed, Watches};
use crate::config::{Alerts, Config, ConfigErrors, KindConfig, Threshold};
use crate::dashboard;
use crate::engine::{
    AlertSettings, ChildProgram, Engine, EngineSettings, Recorder, ReportKeeping, Stopped, runner_of_this_process,
};
use crate::event::Events;
use crate::handlers::Registry;
use crate::index::{Index, IndexSettings};
use crate::job::{AlertRule, Name, RunnerId};
use crate::store::{KindRetention, ReportQueries, Retention, Split, Store, StoreError, StoreSettings};
use crate::telemetry::{Exporter, Tracer, TracerError, TracerSettings};
use connection::Patience;
use server::HttpLimits;

/// How long a start waits for MySQL before it says that it is missing.
const PATIENCE: Duration = Duration::from_secs(10);
/// Imports at the same time; each holds a few megabytes.
const MOST_IMPORTS: usize = 16;
/// Reports that are read from MySQL for clients at the same time; each holds a part or two in memory.
const MOST_DOWNLOADS: usize = 16;
/// How long open requests may take after the last job is done.
const HTTP_GRACE: Duration = Duration::from_secs(5);

/// Why a process could not start. Texts say what was tried and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Settings are missing or wrong.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The store cannot be reached or used.
    #[error(
        "{0}\ntried {1}\nis MySQL or MariaDB running there? `tickr dev` starts a private one; TICKR_MYSQL_URL or --mysql-url names another"
    )]
    Store(StoreError, String),
    /// The store answers and cannot be used as it is.
    #[error("{0}\nthe server is {1}")]
    StoreRefused(StoreError, String),
    /// The server may lose what it acknowledged, and strict durability is asked for.
    #[error(
        "strict_durability is set and the MySQL server may lose acknowledged commits: {0}\nset innodb_flush_log_at_trx_commit=1 and, with a binary log, sync_binlog=1"
    )]
    NotDurable(String),
    /// The address is taken or not ours.
    #[error("cannot listen on {addr}: {cause}\nTICKR_HTTP_ADDR or --http-addr names another address")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The system's reason.
        cause: std::io::Error,
    },
    /// Anybody could call: the address can be reached from elsewhere, and nothing is asked of callers.
    #[error(
        "{0} can be reached from other hosts, and there is neither a key nor a token, so that anybody could run jobs\n`tickr keys create --in-store --scope admin` makes the first key; TICKR_API_TOKENS sets tokens; or listen on a loopback address"
    )]
    Open(SocketAddr),
    /// A kind cannot be set up.
    #[error("cannot set up the {kind} kind: {cause}")]
    Kind {
        /// The kind.
        kind: &'static str,
        /// Why.
        cause: String,
    },
    /// Alerts would never arrive.
    #[error("the url of [alerts] cannot be called: {0}")]
    Alerts(String),
    /// The configuration speaks of a kind that is not registered.
    #[error("[kinds.{0}] names a kind that this binary does not have; it has {1}")]
    UnknownKind(String, String),
    /// The Redis URL cannot be used. A Redis that is merely out is no error.
    #[error("{0}")]
    Index(#[from] crate::index::IndexError),
    /// The collector of traces cannot be reached as it is configured.
    #[error("cannot set up traces: {0}")]
    Tracer(#[from] TracerError),
    /// The operating system refused a thread.
    #[error("cannot start the heartbeat's thread: {0}")]
    Thread(std::io::Error),
}

/// A running process.
#[derive(Debug)]
pub struct App {
    addr: SocketAddr,
    broker: Broker,
    controls: Controls,
    index: Index,
    store: Store,
    engine: Engine,
    recorder: Recorder,
    http: JoinHandle<()>,
    stop_http: CancellationToken,
    stop_controls: DropGuard,
    stop_telling: CancellationToken,
    draining: watch::Sender<bool>,
    tasks: TaskTracker,
    exporter: Option<Exporter>,
    grace: Duration,
    notice: Duration,
}

impl App {
    /// Start with the kinds that ship and those in `own`.
    ///
    /// # Errors
    /// [`StartError`], after which nothing is left running.
    pub async fn start(config: &Config, own: Registry) -> Result<Self, StartError> {
        Self::start_with(config, own, None).await
    }

    /// As [`start`](Self::start), in a program that runs a suspect when it is started for one: its `main` asks
    /// [`is_for_a_suspect`] first, and then calls [`run_suspect`] with the same kinds. Without `child` suspects run in this
    /// process, one at a time, and one that crashes takes along what runs beside it.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(config: &Config, own: Registry, child: Option<ChildProgram>) -> Result<Self, StartError> {
        // Metrics begin before the first thing worth counting.
        let _ = crate::telemetry::metrics_page();
        let runner = runner_of_this_process();
        let (tracer, exporter) = tracer_of(config, &runner)?;
        let store = connect_store(config).await?;
        store.carries(config.body_limit_bytes).map_err(|e| of_the_store(e, config))?;
        let durability = store.durability().await.map_err(|e| of_the_store(e, config))?;
        if !durability.durable {
            let weaknesses = durability.weaknesses.join("; ");
            if config.strict_durability {
                return Err(StartError::NotDurable(weaknesses));
            }
            tracing::warn!(weaknesses, "the MySQL server may lose acknowledged commits in a power cut");
        }
        tracing::info!(server = durability.server, durable = durability.durable, "connected to mysql");

        let index = index_of(config)?;
        let finished = reports::finished(config, &store, runner.clone());
        let registry = Arc::new(kinds::register_all(config, own, &finished)?);
        if let Some(alerts) = &config.alerts
            && let Some(problem) = kinds::callbacks(config).problem_of(&alerts.url).await
        {
            return Err(StartError::Alerts(problem));
        }
        let listener = TcpListener::bind(config.http_addr).await;
        let listener = listener.map_err(|cause| StartError::Listen { addr: config.http_addr, cause })?;
        let addr = listener.local_addr().map_err(|cause| StartError::Listen { addr: config.http_addr, cause })?;
        migrating::migrate(&store, &listener, http_limits(config)).await.map_err(|e| of_the_store(e, config))?;

        let tasks = TaskTracker::new();
        // Ends with the guard, also when the start fails further down.
        let stop_controls = CancellationToken::new();
        let controls = Controls::start(store.clone(), runner.clone(), stop_controls.clone(), &tasks);
        let stop_controls = stop_controls.drop_guard();
        let controls = controls.await.map_err(|e| of_the_store(e, config))?;
        if !addr.ip().is_loopback() && config.api_tokens.is_empty() && controls.now().keys.is_empty() {
            return Err(StartError::Open(addr));
        }
        let broker = Broker::new(store.clone(), index.clone(), Arc::clone(&registry), Events::default(), &tasks);
        let declared = schedules::declare(config, &broker).await?;
        let settings =
            engine_settings(config, runner, tracer.clone(), child, Some(reports::keeping(config, finished.clone())));
        let queues = settings.queues.clone();
        Box::pin(Engine::enlist(&store, &registry, &settings)).await;
        let engine = Engine::start(broker.clone(), index.clone(), controls.clone(), registry, settings)
            .map_err(StartError::Thread)?;
        let recorder = Recorder::start(broker.clone(), engine.runner().clone(), queues.clone());
        let stop_telling = CancellationToken::new();
        let events = broker.events().clone();
        let feed = Feed::start(&index, store.clone(), events.clone(), engine.runner().clone(), &tasks, &stop_telling);
        let watches = Watches::start(store.clone(), events, &tasks, stop_telling.clone());
        let (draining, drains) = watch::channel(false);
        let verifier =
            Verifier::new(store.clone(), index.clone(), retention_of(config), tasks.clone(), stop_telling.clone());
        let router = api::router(ApiParts {
            broker: broker.clone(),
            index: index.clone(),
            controls: controls.clone(),
            readings: Readings::new(store.clone(), index.clone(), queues, tasks.clone()),
            readiness: Readiness::new(store.clone(), tasks.clone()),
            tracer,
            tokens: Tokens::of(&config.api_tokens),
            loopback: addr.ip().is_loopback(),
            hosts: config.http_hosts.iter().cloned().collect(),
            body_limit_bytes: config.body_limit_bytes,
            declared_schedules: declared,
            body_timeout: config.http_body_timeout,
            reports: finished,
            downloads: Places::new(MOST_DOWNLOADS),
            feed,
            watches,
            streams: Places::new(config.http_streams),
            imports: Places::new(MOST_IMPORTS),
            searches: Arc::new(Semaphore::new(Split::of(config.mysql_connections).searches() as usize)),
            guesses: Arc::default(),
            warnings: Warnings::default(),
            verifier,
            draining: drains,
        })
        .merge(dashboard::router());
        let stop_http = CancellationToken::new();
        let http = tokio::spawn(server::serve(listener, router, http_limits(config), stop_http.clone()));
        tracing::info!(%addr, "listening");
        let (grace, notice) = (config.shutdown_grace, config.shutdown_notice);
        Ok(Self {
            addr,
            broker,
            controls,
            index,
            store,
            engine,
            recorder,
            http,
            stop_http,
            stop_controls,
            stop_telling,
            draining,
            tasks,
            exporter,
            grace,
            notice,
        })
    }

    /// Where the API listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The way in for jobs from inside the process.
    #[must_use]
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// What operators have set, as this process knows it.
    #[must_use]
    pub fn controls(&self) -> &Controls {
        &self.controls
    }

    /// The index, for its health.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// This runner's identity, as it stands in its attempts.
    #[must_use]
    pub fn runner(&self) -> &RunnerId {
        self.engine.runner()
    }

    /// Run until the first SIGTERM or SIGINT, then stop; a second signal hurries.
    pub async fn run_until_signalled(self, signals: &mut Signals) -> Stopped {
        let signal = signals.next().await;
        tracing::info!(
            signal,
            busy = self.engine.busy(),
            grace_s = self.grace.as_secs(),
            "stopping; a second signal gives running jobs back now"
        );
        let hurry = CancellationToken::new();
        let stopping = self.stop(hurry.clone());
        tokio::pin!(stopping);
        tokio::select! {
            stopped = &mut stopping => stopped,
            signal = signals.next() => {
                tracing::warn!(signal, "second signal, giving back what runs");
                hurry.cancel();
                stopping.await
            }
        }
    }

    /// Stop in order. `hurry` ends the grace and the notice early.
    pub async fn stop(self, hurry: CancellationToken) -> Stopped {
        let Self {
            broker,
            controls,
            index,
            store,
            engine,
            recorder,
            mut http,
            stop_http,
            stop_controls,
            stop_telling,
            draining,
            tasks,
            exporter,
            grace,
            notice,
            addr: _,
        } = self;
        draining.send_replace(true);
        let noticed = async {
            tokio::select! {
                () = tokio::time::sleep(notice) => {}
                () = hurry.cancelled() => {}
            }
        };
        let (stopped, ()) = tokio::join!(engine.stop(grace, hurry.clone()), noticed);
        stop_telling.cancel();
        stop_http.cancel();
        if tokio::time::timeout(HTTP_GRACE, &mut http).await.is_err() {
            // A connection that its client keeps open has had its time.
            http.abort();
            let _ = http.await;
        }
        // Now that nothing more can happen.
        recorder.stop().await;
        drop((broker, controls, index, stop_controls));
        tasks.close();
        if tokio::time::timeout(Duration::from_secs(3), tasks.wait()).await.is_err() {
            tracing::warn!("hints to the index were still under way");
        }
        // The last spans are those of the last requests.
        let exported = async {
            if let Some(exporter) = exporter {
                exporter.stop().await;
            }
        };
        tokio::join!(store.close(), exported);
        stopped
    }
}

fn http_limits(config: &Config) -> HttpLimits {
    HttpLimits {
        connections: config.http_connections,
        patience: Patience {
            head: config.http_header_timeout,
            write: config.http_write_timeout,
            idle: config.http_idle_timeout,
        },
    }
}

/// How the engine of this configuration works.
fn engine_settings(
    config: &Config,
    runner: RunnerId,
    tracer: Tracer,
    child: Option<ChildProgram>,
    reports: Option<ReportKeeping>,
) -> EngineSettings {
    EngineSettings {
        runner,
        workers: config.workers,
        queues: config.queues.iter().filter_map(|name| name.parse().ok()).collect(),
        lease: config.lease,
        tracer,
        retention: retention_of(config),
        purge_hours: config.purge_hours,
        keep_answers: config.retention_idempotency,
        alerts: config.alerts.as_ref().map(alert_settings),
        keep_audit: config.retention_audit,
        keep_ticks: config.retention_ticks,
        reports,
        child,
    }
}

/// Connect to the store alone, for commands that need no more.
///
/// # Errors
/// [`StartError`] when it is not configured or cannot be reached.
pub async fn connect_store(config: &Config) -> Result<Store, StartError> {
    let settings = StoreSettings {
        url: config.mysql_url()?.expose().to_owned(),
        connections: config.mysql_connections,
        flushers: 2,
    };
    Store::connect(&settings, PATIENCE).await.map_err(|e| of_the_store(e, config))
}

/// Where spans go, if anywhere.
fn tracer_of(config: &Config, runner: &RunnerId) -> Result<(Tracer, Option<Exporter>), TracerError> {
    let Some(endpoint) = &config.otlp_endpoint else { return Ok((Tracer::off(), None)) };
    let headers = config.otlp_headers.iter();
    let settings = TracerSettings {
        endpoint: endpoint.clone(),
        headers: headers.map(|(name, value)| (name.clone(), value.expose_secret().to_owned())).collect(),
        sample: config.otlp_sample,
        service: config.otlp_service.clone(),
        instance: runner.to_string(),
    };
    Tracer::start(settings).map(|(tracer, exporter)| (tracer, Some(exporter)))
}

/// The index of this configuration, for commands that need no more. Connects when it is first asked.
///
/// # Errors
/// [`StartError`] when it is not configured, or not as an index can be.
pub fn index_of(config: &Config) -> Result<Index, StartError> {
    Ok(Index::new(IndexSettings {
        url: config.redis_url()?.expose().to_owned(),
        prefix: config.redis_prefix.clone(),
        horizon: config.horizon,
        high_water: config.ready_high_water,
        low_water: config.ready_low_water,
    })?)
}

/// How long the configuration keeps ended jobs.
#[must_use]
pub fn retention_of(config: &Config) -> Retention {
    let ages = |kind: &KindConfig| KindRetention {
        completed: kind.retention_completed,
        cancelled: kind.retention_cancelled,
        failed: kind.retention_failed,
    };
    let own = config.kinds.iter().map(|(name, kind)| (name, ages(kind)));
    let own = own.filter(|(_, ages)| *ages != KindRetention::default());
    Retention {
        completed: config.retention_completed,
        cancelled: config.retention_cancelled.unwrap_or(config.retention_completed),
        failed: config.retention_failed,
        discarded: config.retention_discarded,
        kinds: Arc::new(own.filter_map(|(name, ages)| Some((name.parse().ok()?, ages))).collect()),
    }
}

/// Only a server that does not answer is asked for; one that refuses has said why.
fn of_the_store(error: StoreError, config: &Config) -> StartError {
    let of = if error.is_transient() { StartError::Store } else { StartError::StoreRefused };
    of(error, mysql_of(config))
}

fn mysql_of(config: &Config) -> String {
    config.mysql_url().map(ToString::to_string).unwrap_or_default()
}

/// The thresholds of the configuration as rules: one for all kinds, one for each that has its own.
fn alert_settings(alerts: &Alerts) -> AlertSettings {
    let rule = |kind: Option<Name>, threshold: &Threshold| {
        let Threshold { dead_letters, dead_letter_age } = threshold;
        threshold.is_set().then_some(AlertRule { kind, count: *dead_letters, age: *dead_letter_age })
    };
    let kinds = alerts.kinds.iter().filter_map(|(kind, threshold)| rule(Some(kind.parse().ok()?), threshold));
    AlertSettings {
        url: alerts.url.clone(),
        queue: alerts.queue.clone(),
        cooldown: alerts.cooldown,
        rules: rule(None, &alerts.all).into_iter().chain(kinds).collect(),
    }
}

/// Where reports read from: their own account if there is one, otherwise the store's.
fn report_source(config: &Config) -> Result<ReportQueries, StartError> {
    let url = match &config.reports.mysql_url {
        Some(url) => url,
        None => config.mysql_url()?,
    };
    ReportQueries::connect_lazy(url.expose(), config.reports.connections)
        .map_err(|e| StartError::Kind { kind: "report", cause: e.to_string() })
}

/// The smtp password, where one is set: kept here so that the secret is exposed in one place.
fn smtp_login(smtp: &crate::config::Smtp) -> Option<(String, secrecy::SecretString)> {
    let (user, password) = (smtp.username.as_ref()?, smtp.password.as_ref()?);
    Some((user.clone(), password.expose_secret().into()))
}
