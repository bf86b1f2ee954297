//! A whole tickr process: it puts all parts together, and starts and stops them in order.
//!
//! Start: MySQL, listening address, migrations (meanwhile the probes are answered), index (Redis may be out), broker,
//! engine, API. Stop, on the first SIGTERM, SIGINT or, without a supervisor that hears of a reload, SIGHUP:
//! 1. readiness turns red, so that a load balancer sends no more requests here; responses ask clients to close their
//!    connections
//! 2. the fetcher stops; running jobs get the shutdown grace, and HTTP goes on meanwhile
//! 3. jobs that still run are told to stop and given back, which uses no attempt
//! 4. the loops end, and the runner is unregistered
//! 5. the listener takes the last connections and closes, open requests are finished, the last metrics are written, and
//!    the connections close
//!
//! A second signal ends the grace at once. SIGKILL may interrupt any of this without losing a job.
//!
//! Its files:
//! - `run.rs`: from the command line to the end of the process.
//! - `migrating.rs`: the migration of a start, during which probes are answered.
//! - `server.rs`: the HTTP server, its limit on connections and its stop.
//! - `connection.rs`: one HTTP connection and its time limits.
//! - `turned_away.rs`: a connection beyond the limit, on which only the probes are answered.
//! - `graceful_close.rs`: a listening socket that closes without breaking a request.
//! - `open_files.rs`: the limit of open files.
//! - `signals.rs`: SIGTERM, SIGINT and SIGHUP.
//! - `supervisor.rs`: messages to systemd, or to another supervisor of this process.
//! - `reload.rs`: reads the configuration again when the supervisor asks for it.
//! - `kinds.rs`: registers the kinds of this process.
//! - `schedules.rs`: writes the schedules of the configuration to MySQL.
//! - `reports.rs`: connects the reports of the handlers with MySQL.
//! - `suspect.rs`: the process that runs one suspect, from its command line to its end.
//! - `check.rs`: `tickr check --pending`.

mod check;
mod connection;
mod graceful_close;
mod kinds;
mod migrating;
mod open_files;
mod reload;
mod reports;
mod run;
mod schedules;
mod server;
mod signals;
mod supervisor;
mod suspect;
mod turned_away;

pub use check::{KindCheck, PendingCheck, PendingProblem, check_pending};
pub use reload::Reload;
pub use run::{SHUTDOWN, Suspects, exit_code, is_wrong_configuration, run, serve, serve_with};
pub use signals::{Signal, Signals};
pub use supervisor::Supervisor;
pub use suspect::{is_for_a_suspect, run_suspect};

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::ExposeSecret as _;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::api::{
    self, ApiParts, AwaitedQueues, CompatRoutes, Readiness, Readings, RequestPermits, Tokens, Verifier, Warnings,
};
use crate::broker::{Broker, ClusterEvents, OperatorSettingsCopy, Watches};
use crate::client::{Client, RunnerClient};
use crate::config::{Alerts, Config, ConfigErrors, KeptLogs, KindConfig, Outbox, ServerUrl, Threshold};
#[cfg(feature = "dashboard")]
use crate::dashboard;
use crate::engine::{
    AlertSettings, ChildProgram, Engine, EngineSettings, Recorder, ReportKeeping, Stopped, runner_of_this_process,
};
use crate::event::Events;
use crate::handlers::Registry;
use crate::index::{Index, IndexSettings, IndexTls};
use crate::job::{AlertRule, Name, RunnerId};
use crate::store::{
    KindRetention, PoolSizes, ReportQueries, Retention, SourceSettings, Store, StoreError, StoreSettings,
};
use crate::telemetry::{Exporter, Tracer, TracerError, TracerSettings};
use connection::ClientTimeouts;
use server::HttpLimits;

/// Longest time that a start waits for MySQL before it fails, and for a server that takes writes.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two rounds of the janitor, before jitter.
const JANITOR_EVERY: Duration = Duration::from_secs(60);
/// Most imports at the same time. Each holds a few megabytes.
const MAX_IMPORTS: usize = 16;
/// Most reports that are read from MySQL for clients at the same time. Each holds one or two parts in memory.
const MAX_DOWNLOADS: usize = 16;
/// Most requests that wait for results at the same time, if there may be as many connections. One statement a second
/// reads the jobs of all of them.
const MAX_RESULT_WAITS: usize = 2_000;
/// Time that open requests have to end after the last job.
const HTTP_GRACE: Duration = Duration::from_secs(5);
/// Longest time between the end of the grace and the end of the process: handlers that were told to stop, loops,
/// results while MySQL is slow or out, open requests, the last spans. Each of them has a limit of its own, 30 s in all,
/// and the close of the store has what is left.
const AFTER_THE_GRACE: Duration = Duration::from_secs(35);

/// Reason for which a process could not start. The texts say what was tried and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Settings are missing or wrong.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// MySQL cannot be reached.
    #[error(
        "{0}\ntried {1}\nis MySQL or MariaDB running there? `tickr dev` starts a private one; TICKR_MYSQL_URL or --mysql-url names another"
    )]
    Store(#[source] StoreError, String),
    /// MySQL answers, but cannot be used as it is.
    #[error("{0}\nthe server is {1}")]
    StoreRefused(#[source] StoreError, String),
    /// The server may lose commits that it acknowledged, and strict durability is required.
    #[error(
        "strict_durability is set and the MySQL server may lose acknowledged commits: {0}\nset innodb_flush_log_at_trx_commit=1 and, with a binary log, sync_binlog=1"
    )]
    NotDurable(String),
    /// The address is in use or does not belong to this host.
    #[error("cannot listen on {addr}: {cause}\nTICKR_HTTP_ADDR or --http-addr names another address")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// Reason given by the operating system.
        #[source]
        cause: std::io::Error,
    },
    /// The address can be reached from other hosts, and callers need no API key or API token.
    #[error(
        "{0} can be reached from other hosts, and there is no API key and no API token, so that any client could run jobs\n`tickr api-keys create --in-store --scope admin` makes the first API key; TICKR_API_TOKENS sets API tokens; or listen on a loopback address"
    )]
    Open(SocketAddr),
    /// A kind cannot be set up.
    #[error("cannot set up the {kind} kind: {cause}")]
    Kind {
        /// Name of the kind.
        kind: &'static str,
        /// Reason.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The URL for alerts cannot be called, so alerts would never arrive.
    #[error("the url of [alerts] cannot be called: {0}")]
    Alerts(String),
    /// The URL for delayed messages cannot be called, so no message would ever be delivered.
    #[error("the url of [compat.delayed] cannot be called: {0}")]
    DelayedMessages(String),
    /// The configuration has sections of kinds that are not registered.
    #[error("{} in the configuration: this binary has no such kind; it has {has}", sections(unknown))]
    UnknownKinds {
        /// The names that are not registered.
        unknown: Vec<String>,
        /// The names that are registered, as a list.
        has: String,
    },
    /// Settings are wrong, as far as no server is needed to see that.
    #[error("{}", lines(.0))]
    Mistakes(Vec<StartError>),
    /// A file that a MySQL URL names cannot be used.
    #[error("cannot use {parameter} of {setting}: {}: {cause}", file.display())]
    MysqlFile {
        /// Name of the setting that holds the URL.
        setting: String,
        /// Name of the parameter.
        parameter: &'static str,
        /// The file.
        file: PathBuf,
        /// Reason given by the operating system, or what is missing in the file.
        #[source]
        cause: std::io::Error,
    },
    /// The Redis URL or a file for its TLS cannot be used. A Redis that is only out is not an error.
    #[error("{0}")]
    Index(#[from] crate::index::IndexError),
    /// The collector of traces cannot be used as it is configured.
    #[error("cannot set up traces: {0}")]
    Tracer(#[from] TracerError),
    /// The operating system refused a thread.
    #[error("cannot start the thread of the heartbeat or of an alarm: {0}")]
    Thread(#[source] std::io::Error),
}

impl StartError {
    /// Return whether settings are wrong, so that another start with them fails in the same way. An error that may end
    /// by itself is none of these, such as a host that cannot be resolved, because a supervisor gives up on these.
    #[must_use]
    pub const fn is_wrong_configuration(&self) -> bool {
        let is_of_files = matches!(self, Self::MysqlFile { .. } | Self::Index(_) | Self::Kind { .. });
        is_of_files || matches!(self, Self::Config(_) | Self::Mistakes(_) | Self::UnknownKinds { .. })
    }
}

fn lines(mistakes: &[StartError]) -> String {
    mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn sections(kinds: &[String]) -> String {
    kinds.iter().map(|kind| format!("[kinds.{kind}]")).collect::<Vec<_>>().join(", ")
}

/// A running tickr process.
#[derive(Debug)]
pub struct App {
    addr: SocketAddr,
    broker: Broker,
    client: RunnerClient,
    operator_settings: OperatorSettingsCopy,
    index: Index,
    store: Store,
    engine: Engine,
    recorder: Recorder,
    http: JoinHandle<()>,
    stop_http: CancellationToken,
    stop_operator_settings: DropGuard,
    stop_telling: CancellationToken,
    stopping: watch::Sender<bool>,
    tasks: TaskTracker,
    exporter: Option<Exporter>,
    grace: Duration,
    notice: Duration,
}

impl App {
    /// Start with the built-in kinds and those in `own`.
    ///
    /// # Errors
    /// [`StartError`]. Nothing is left running then.
    pub async fn start(config: &Config, own: Registry) -> Result<Self, StartError> {
        Self::start_with(config, own, None).await
    }

    /// Start as [`start`](Self::start) does, in a program that can run a suspect in a process of its own: its `main`
    /// first calls [`is_for_a_suspect`], and if that returns true, [`run_suspect`] with the same kinds. Without
    /// `child`, suspects run in this process one at a time, and one that crashes ends the jobs that run beside it.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(config: &Config, own: Registry, child: Option<ChildProgram>) -> Result<Self, StartError> {
        // One TLS implementation for all connections. An error means that the program chose one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // Metrics must exist before the first event that is counted.
        let _ = crate::telemetry::metrics_page();
        let runner = runner_of_this_process();
        let index = without_mistakes(config, &own)?;
        let (tracer, exporter) = tracer_of(config, &runner)?;
        let store = connect_store(config).await?;
        store.check_payload_size(config.body_limit_bytes).map_err(|e| start_error(e, config))?;
        store.check_primary(PATIENCE).await.map_err(|e| start_error(e, config))?;
        let durability = store.durability().await.map_err(|e| start_error(e, config))?;
        if !durability.durable {
            let weaknesses = durability.weaknesses.join("; ");
            if config.strict_durability {
                return Err(StartError::NotDurable(weaknesses));
            }
            tracing::warn!(weaknesses, "the MySQL server may lose acknowledged commits in a power cut");
        }
        let topology = durability.topology.kind.as_str();
        tracing::info!(server = durability.server, durable = durability.durable, topology, "connected to mysql");

        let finished = reports::finished(config, &store, runner.clone());
        let registry = Arc::new(kinds::register_all(config, own, &finished)?);
        if let Some(alerts) = &config.alerts
            && let Some(problem) = kinds::callbacks(config).problem_of(&alerts.url).await
        {
            return Err(StartError::Alerts(problem));
        }
        if let Some(delayed) = &config.compat.delayed
            && let Some(problem) = kinds::callbacks(config).problem_of(&delayed.url).await
        {
            return Err(StartError::DelayedMessages(problem));
        }
        let listener = TcpListener::bind(config.http_addr).await;
        let listener = listener.map_err(|cause| StartError::Listen { addr: config.http_addr, cause })?;
        let addr = listener.local_addr().map_err(|cause| StartError::Listen { addr: config.http_addr, cause })?;
        migrating::migrate(&store, &listener, http_limits(config)).await.map_err(|e| start_error(e, config))?;

        let tasks = TaskTracker::new();
        // Dropping the guard ends the loop, also when the start fails further down.
        let stop_operator_settings = CancellationToken::new();
        let operator_settings = OperatorSettingsCopy::start(
            store.clone(),
            runner.clone(),
            Arc::clone(&registry),
            stop_operator_settings.clone(),
            &tasks,
        );
        let stop_operator_settings = stop_operator_settings.drop_guard();
        let operator_settings = operator_settings.await.map_err(|e| start_error(e, config))?;
        kinds::warn_of_unknown_alerts(config, &registry);
        if !addr.ip().is_loopback() && config.api_tokens.is_empty() && operator_settings.now().api_keys.is_empty() {
            return Err(StartError::Open(addr));
        }
        let broker = Broker::new(store.clone(), index.clone(), Arc::clone(&registry), Events::default(), &tasks);
        // A held process changes no schedule: the start that ends the hold does.
        let declared = if config.held {
            Arc::new(config.schedules.keys().map(ToString::to_string).collect())
        } else {
            schedules::declare(config, &broker).await?
        };
        let settings =
            engine_settings(config, runner, tracer.clone(), child, Some(reports::keeping(config, finished.clone())));
        let queues = settings.queues.clone();
        Box::pin(Engine::enlist(&store, &registry, &settings)).await;
        let engine = Engine::start(broker.clone(), index.clone(), operator_settings.clone(), registry, settings)
            .map_err(StartError::Thread)?;
        let recorder = Recorder::start(broker.clone(), engine.runner().clone(), queues.clone(), config.held);
        let stop_telling = CancellationToken::new();
        let events = broker.events().clone();
        let cluster_events =
            ClusterEvents::start(&index, store.clone(), events.clone(), engine.runner().clone(), &tasks, &stop_telling);
        let watches = Watches::start(store.clone(), events, &tasks, stop_telling.clone());
        let (stopping, stopping_listener) = watch::channel(false);
        let verifier =
            Verifier::new(store.clone(), index.clone(), retention_of(config), tasks.clone(), stop_telling.clone());
        let readiness = Readiness::new(store.clone(), tasks.clone());
        let router = api::router(ApiParts {
            broker: broker.clone(),
            index: index.clone(),
            operator_settings: operator_settings.clone(),
            readings: Readings::new(
                store.clone(),
                index.clone(),
                readiness.clone(),
                queues,
                config.outboxes.keys().cloned().collect(),
                tasks.clone(),
            ),
            readiness,
            tracer,
            tokens: Tokens::new(&config.api_tokens),
            loopback: addr.ip().is_loopback(),
            hosts: config.http_hosts.iter().cloned().collect(),
            body_limit_bytes: config.body_limit_bytes,
            held: config.held,
            declared_schedules: declared,
            body_timeout: config.http_body_timeout,
            kept: api::KeptFor { audit: config.retention_audit, failed: config.retention_failed },
            reports: finished,
            downloads: RequestPermits::new(MAX_DOWNLOADS),
            cluster_events,
            watches,
            streams: RequestPermits::new(config.http_streams),
            polls: RequestPermits::for_fleets(config.http_polls),
            awaited_queues: AwaitedQueues::default(),
            // With more of them than connections, the share of one API key could be all connections.
            result_waits: RequestPermits::new(MAX_RESULT_WAITS.min(config.http_connections)),
            imports: RequestPermits::new(MAX_IMPORTS),
            searches: Arc::new(Semaphore::new(PoolSizes::new(config.mysql_connections).searches() as usize)),
            failed_logins: Arc::default(),
            warnings: Warnings::default(),
            verifier,
            stopping: stopping_listener,
            compat: CompatRoutes {
                delayed_url: config.compat.delayed.as_ref().map(|delayed| delayed.url.clone()),
                later: config.compat.later,
            },
        })
        .merge(api::beside_the_api(pages()));
        #[cfg(feature = "dashboard")]
        let router = router.layer(axum::middleware::from_fn(dashboard::show_unknown_paths));
        let stop_http = CancellationToken::new();
        let http = tokio::spawn(server::serve(listener, router, http_limits(config), stop_http.clone()));
        tracing::info!(%addr, "listening");
        let (grace, notice) = (config.shutdown_grace, config.shutdown_notice);
        Ok(Self {
            addr,
            client: RunnerClient::new(&broker),
            broker,
            operator_settings,
            index,
            store,
            engine,
            recorder,
            http,
            stop_http,
            stop_operator_settings,
            stop_telling,
            stopping,
            tasks,
            exporter,
            grace,
            notice,
        })
    }

    /// Return the address on which the API listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Return the broker, which accepts jobs from inside the process.
    #[must_use]
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// Return a client for typed jobs, for the rest of this program. It ends with this runner.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.client()
    }

    /// Return the settings of the operators, as this process knows them.
    #[must_use]
    pub fn operator_settings(&self) -> &OperatorSettingsCopy {
        &self.operator_settings
    }

    /// Return the index; used for its health.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Return the identity of this runner, as its attempts show it.
    #[must_use]
    pub fn runner(&self) -> &RunnerId {
        self.engine.runner()
    }

    /// Run until the first SIGTERM, SIGINT or SIGHUP, then stop. A second signal ends the grace at once.
    pub async fn run_until_signalled(self, signals: &mut Signals) -> Stopped {
        self.run_under(&Supervisor::default(), signals, None).await
    }

    /// Run as [`run_until_signalled`](Self::run_until_signalled) does, and tell the supervisor of this process that it
    /// is ready, that it is alive, that it reads its configuration again, and that it stops.
    pub async fn run_under(
        self,
        supervisor: &Supervisor,
        signals: &mut Signals,
        mut reload: Option<Reload>,
    ) -> Stopped {
        supervisor.say_ready(self.addr);
        let (turns, held) = (self.engine.heartbeat_turns(), self.engine.is_held());
        let has_beaten = move |within| held || turns.any_within(within);
        let _feeding = supervisor.feed_watchdog(self.stopping.subscribe(), has_beaten);
        let signal = loop {
            match (signals.receive().await, &mut reload) {
                (Signal::Stop(signal), _) => break signal,
                (Signal::Reload, Some(reload)) => {
                    supervisor.say_reloading();
                    reload.carry_out();
                    supervisor.say_ready(self.addr);
                }
                (Signal::Reload, None) => tracing::warn!("SIGHUP: this program does not read its configuration again"),
            }
        };
        supervisor.say_stopping(self.notice.max(self.grace) + AFTER_THE_GRACE);
        tracing::info!(
            signal,
            busy_workers = self.engine.busy_workers(),
            grace_s = self.grace.as_secs(),
            "stopping; a second signal gives running jobs back now"
        );
        let hurry = CancellationToken::new();
        let stopping = self.stop(hurry.clone());
        tokio::pin!(stopping);
        tokio::select! {
            stopped = &mut stopping => stopped,
            signal = signals.next() => {
                tracing::warn!(signal, "second signal, giving running jobs back");
                hurry.cancel();
                stopping.await
            }
        }
    }

    /// Stop in order. `hurry` ends the grace and the notice early.
    pub async fn stop(self, hurry: CancellationToken) -> Stopped {
        let Self {
            broker,
            client,
            operator_settings,
            index,
            store,
            engine,
            recorder,
            mut http,
            stop_http,
            stop_operator_settings,
            stop_telling,
            stopping,
            tasks,
            exporter,
            grace,
            notice,
            addr: _,
        } = self;
        stopping.send_replace(true);
        // The threads of the runtime have the last second.
        let latest = Instant::now() + grace.max(notice) + AFTER_THE_GRACE - SHUTDOWN;
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
            // The client keeps this connection open although its time is over.
            http.abort();
            let _ = http.await;
        }
        // Stop it last, when nothing more can be counted.
        recorder.stop().await;
        drop((broker, client, operator_settings, index, stop_operator_settings));
        tasks.close();
        if tokio::time::timeout(Duration::from_secs(3), tasks.wait()).await.is_err() {
            tracing::warn!("some hints to the index were not sent; the reconciler repairs that");
        }
        // The last spans are those of the last requests, so the exporter stops after them.
        let exported = async {
            if let Some(exporter) = exporter {
                exporter.stop().await;
            }
        };
        close_until(latest, futures_util::future::join(store.close(), exported)).await;
        stopped
    }
}

/// Wait for the close of the last connections, until this moment. A MySQL that hangs may have held up all that came
/// before, and a supervisor kills a process that takes longer than it said.
async fn close_until<T>(latest: Instant, closing: impl Future<Output = T>) {
    if tokio::time::timeout_at(latest, closing).await.is_err() {
        tracing::warn!("the time of the stop is over, stopping although mysql has not answered all writes");
    }
}

/// Return the pages for a browser.
#[cfg(feature = "dashboard")]
fn pages() -> axum::Router {
    dashboard::router()
}

/// Tell a browser that there are no pages.
#[cfg(not(feature = "dashboard"))]
fn pages() -> axum::Router {
    let detail = "this program was built without the feature `dashboard` of tickr; /docs has the reference of the API";
    let page = move || async move { api::Problem::new(api::Code::NotFound, detail) };
    axum::Router::new().route("/", axum::routing::get(page))
}

fn http_limits(config: &Config) -> HttpLimits {
    HttpLimits {
        connections: config.http_connections,
        patience: ClientTimeouts {
            head: config.http_header_timeout,
            write: config.http_write_timeout,
            idle: config.http_idle_timeout,
        },
    }
}

/// Build the settings of the engine from the configuration. Public for tests of the engine's loops.
#[must_use]
pub fn engine_settings(
    config: &Config,
    runner: RunnerId,
    tracer: Tracer,
    child: Option<ChildProgram>,
    reports: Option<ReportKeeping>,
) -> EngineSettings {
    let executes = config.workers > 0 && !config.held;
    EngineSettings {
        runner,
        workers: if executes { config.workers } else { 0 },
        // Without workers it serves no queue.
        queues: config.queues.iter().filter(|_| executes).filter_map(|name| name.parse().ok()).collect(),
        lease: config.lease,
        tracer,
        attempt_log: config.attempt_log,
        keep_logs_of_successes: config.attempt_log_keep == KeptLogs::All,
        retention: retention_of(config),
        purge_hours: config.purge_hours,
        keep_answers: config.retention_idempotency,
        alerts: config.alerts.as_ref().map(alert_settings),
        keep_audit: config.retention_audit,
        keep_ticks: config.retention_ticks,
        janitor_every: JANITOR_EVERY,
        reports,
        child,
        outboxes: sources_of(config),
        held: config.held,
    }
}

/// Create the index, if no setting is wrong as far as no server is needed to see that. Otherwise report all mistakes.
fn without_mistakes(config: &Config, own: &Registry) -> Result<Index, StartError> {
    let mut mistakes = kinds::mistakes(config, own);
    mistakes.extend(unreadable("mysql_url", config.mysql_url.as_ref()));
    mistakes.extend(unreadable("reports.mysql_url", config.reports.mysql_url.as_ref()));
    for (name, outbox) in &config.outboxes {
        mistakes.extend(unreadable(&format!("outboxes.{name}.mysql_url"), Some(&outbox.mysql_url)));
    }
    match index_of(config) {
        Ok(index) if mistakes.is_empty() => return Ok(index),
        Ok(_) => {}
        Err(mistake) => mistakes.push(mistake),
    }
    Err(StartError::Mistakes(mistakes))
}

/// Find the files of a MySQL URL that cannot be used. The driver would take each for a server that does not answer.
fn unreadable(setting: &str, url: Option<&ServerUrl>) -> Vec<StartError> {
    let read = |(parameter, file): (&'static str, PathBuf)| {
        let cause = std::fs::read(&file).and_then(|pem| check_pem(parameter, &pem)).err()?;
        Some(StartError::MysqlFile { setting: setting.to_owned(), parameter, file, cause })
    };
    url.map(ServerUrl::tls_files).unwrap_or_default().into_iter().filter_map(read).collect()
}

/// Check that a file has what its parameter names, as the driver reads it. The driver takes a file without a certificate
/// for a list of authorities that trusts no server.
fn check_pem(parameter: &str, pem: &[u8]) -> std::io::Result<()> {
    let (what, is_there) = if parameter == "ssl-key" {
        ("key", PrivateKeyDer::from_pem_slice(pem).is_ok())
    } else {
        let mut certificates = CertificateDer::pem_slice_iter(pem).peekable();
        ("certificate", certificates.peek().is_some() && certificates.all(|certificate| certificate.is_ok()))
    };
    let missing = || std::io::Error::new(std::io::ErrorKind::InvalidData, format!("has no {what} in the PEM format"));
    if is_there { Ok(()) } else { Err(missing()) }
}

/// Return the outboxes of applications in this configuration.
fn sources_of(config: &Config) -> Vec<SourceSettings> {
    let source = |(name, outbox): (&Name, &Outbox)| SourceSettings {
        name: name.clone(),
        url: outbox.mysql_url.expose().to_owned(),
    };
    config.outboxes.iter().map(source).collect()
}

/// Connect to MySQL only, for commands that need no more.
///
/// # Errors
/// [`StartError`] when MySQL is not configured or cannot be reached.
pub async fn connect_store(config: &Config) -> Result<Store, StartError> {
    if let Some(unreadable) = unreadable("mysql_url", config.mysql_url.as_ref()).into_iter().next() {
        return Err(unreadable);
    }
    let settings = StoreSettings {
        url: config.mysql_url()?.expose().to_owned(),
        connections: config.mysql_connections,
        flushers: 2,
        table_prefix: config.table_prefix.clone(),
    };
    Store::connect(&settings, PATIENCE).await.map_err(|e| start_error(e, config))
}

/// Create the tracer, and its exporter if an endpoint is configured.
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

/// Create the index of this configuration, for commands that need no more. It connects at its first use.
///
/// # Errors
/// [`StartError`] when the Redis URL is missing or cannot be used.
pub fn index_of(config: &Config) -> Result<Index, StartError> {
    Ok(Index::new(IndexSettings {
        url: config.redis_url()?.expose().to_owned(),
        tls: IndexTls {
            ca_file: config.redis_ca_file.clone(),
            cert_file: config.redis_cert_file.clone(),
            key_file: config.redis_key_file.clone(),
        },
        prefix: config.redis_prefix.clone(),
        partitions: config.index_partitions,
        horizon: config.horizon,
        high_water: config.ready_high_water,
        low_water: config.ready_low_water,
    })?)
}

/// Return the retention of ended jobs in this configuration.
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
        audit: config.retention_audit,
        kinds: Arc::new(own.filter_map(|(name, ages)| Some((name.parse().ok()?, ages))).collect()),
    }
}

/// Turn an error of MySQL into an error of the start. Only for a server that does not answer does the text ask whether
/// it runs; a server that refuses has given its reason.
fn start_error(error: StoreError, config: &Config) -> StartError {
    let of = if error.is_transient() { StartError::Store } else { StartError::StoreRefused };
    of(error, mysql_of(config))
}

fn mysql_of(config: &Config) -> String {
    config.mysql_url().map(ToString::to_string).unwrap_or_default()
}

/// Turn the thresholds of the configuration into rules: one for all kinds, and one for each kind with its own.
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

/// Create the connections from which reports read: with their own MySQL account if one is set, otherwise with the usual
/// one.
fn report_source(config: &Config) -> Result<ReportQueries, StartError> {
    // The account of its own may be of replicas; the usual one reads what the runners have written.
    let (url, from_writer) = match &config.reports.mysql_url {
        Some(url) => (url, false),
        None => (config.mysql_url()?, true),
    };
    ReportQueries::connect_lazy(url.expose(), config.reports.connections, from_writer)
        .map_err(|e| StartError::Kind { kind: "report", cause: e.into() })
}

/// Return the SMTP user and password, if they are set. The secret is exposed only here.
#[cfg(feature = "smtp")]
fn smtp_login(smtp: &crate::config::Smtp) -> Option<(String, secrecy::SecretString)> {
    let (user, password) = (smtp.username.as_ref()?, smtp.password.as_ref()?);
    Some((user.clone(), password.expose_secret().into()))
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn a_file_of_a_mysql_url_has_what_its_parameter_names() {
        let own = rcgen::generate_simple_self_signed(["db".to_owned()]).unwrap();
        let (certificate, key) = (own.cert.pem(), own.signing_key.serialize_pem());
        let two = format!("# ours\n{certificate}{certificate}");
        for (parameter, pem, is_usable) in [
            ("ssl-ca", certificate.as_str(), true),
            ("ssl-ca", two.as_str(), true),
            ("ssl-ca", key.as_str(), false),
            ("ssl-ca", "", false),
            ("ssl-cert", certificate.as_str(), true),
            ("ssl-cert", key.as_str(), false),
            ("ssl-key", key.as_str(), true),
            ("ssl-key", certificate.as_str(), false),
        ] {
            assert_eq!(check_pem(parameter, pem.as_bytes()).is_ok(), is_usable, "{parameter}: {pem}");
        }
    }

    #[tokio::test]
    async fn a_stop_that_took_long_waits_no_longer_for_the_last_connections() {
        let never = || std::future::pending::<()>();
        let began = Instant::now();
        // The parts before it have used up the time.
        tokio::time::timeout(Duration::from_secs(5), close_until(began, never())).await.unwrap();
        let left = began + Duration::from_millis(300);
        tokio::time::timeout(Duration::from_secs(5), close_until(left, never())).await.unwrap();
        assert!(Instant::now() >= left, "it had that long");
    }

    #[test]
    fn errors_of_a_start_have_their_causes_as_sources() {
        let of_store = || StoreError::corrupt("read", "a value");
        let io = || std::io::Error::from(std::io::ErrorKind::AddrInUse);
        let is_io = |error: &StartError| error.source().is_some_and(<dyn std::error::Error>::is::<std::io::Error>);
        for error in [StartError::Store(of_store(), "x".into()), StartError::StoreRefused(of_store(), "x".into())] {
            assert!(error.source().is_some_and(<dyn std::error::Error>::is::<StoreError>), "{error}");
        }
        let addr = SocketAddr::from(([127, 0, 0, 1], 7070));
        assert!(is_io(&StartError::Listen { addr, cause: io() }) && is_io(&StartError::Thread(io())));
        assert!(StartError::Kind { kind: "email", cause: "no server".into() }.source().is_some());
    }
}
