//! A client of a process that is no runner: with its own connections to MySQL and Redis.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::declared::Declared;
use super::{Backend, Client, Error, parsed};
use tickr_broker::{Broker, Wake};
use tickr_config::{Config, Flags, ServerUrl};
use tickr_event::{Events, Health};
use tickr_handlers::Registry;
use tickr_index::{Index, IndexSettings, IndexTls};
use tickr_job::Timestamp;
use tickr_store::{PoolSizes, Store, StoreSettings};

const ATTEMPTED: &str = "connect a client";
/// Longest time for which a client waits for MySQL.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two attempts to reach a Redis that is out.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Time between two measurements of the clocks of both servers.
const MEASURE_AGAIN: Duration = Duration::from_secs(60);
/// Time between two looks whether another Redis server holds the index.
const FOLLOW_AGAIN: Duration = Duration::from_secs(3);
/// Most jobs of which one call tells Redis that they are due, and the shortest time between two such calls.
const MOVED_AT_ONCE: usize = 500;
const BREATH: Duration = Duration::from_millis(1);
/// Longest time for the hints that are still to be sent when a client closes.
const LAST_HINTS: Duration = Duration::from_secs(3);

/// A connection that is about to be made. Set its options, then `await` it.
#[derive(Debug)]
#[must_use = "nothing is connected before the await"]
pub struct Connect {
    config: Result<Box<Config>, Error>,
    kinds: Registry,
    table_prefix: Option<String>,
    redis_prefix: Option<String>,
}

impl Connect {
    pub(super) fn to(mysql_url: &str, redis_url: &str) -> Self {
        let parsed = || {
            Ok(Config {
                mysql_url: Some(ServerUrl::mysql(mysql_url).map_err(setup)?),
                redis_url: Some(ServerUrl::redis(redis_url).map_err(setup)?),
                ..Config::defaults()
            })
        };
        Self::with(parsed().map(Box::new))
    }

    pub(super) fn as_configured() -> Self {
        let flags = Flags::default().requiring(&["mysql_url", "redis_url"]);
        let loaded = Config::load(&flags, Config::process_env(), Config::usual_file());
        Self::with(loaded.map(|loaded| Box::new(loaded.config)).map_err(setup))
    }

    fn with(config: Result<Box<Config>, Error>) -> Self {
        Self { config, kinds: Registry::new(), table_prefix: None, redis_prefix: None }
    }

    /// Use the handlers' own checks and defaults for these kinds, as a runner with the same registry does. Kinds that
    /// are not in it are checked by the JSON Schema of their payload types, and have the usual defaults. No job is
    /// executed here.
    pub fn kinds(mut self, kinds: Registry) -> Self {
        self.kinds = kinds;
        self
    }

    /// Set the first part of the name of every table, which is that of the runners. Empty, the default: there is none.
    pub fn table_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.table_prefix = Some(prefix.into());
        self
    }

    /// Set the first part of every Redis key, which is that of the runners. Default: `tickr`, or `tickr.shop_` with the
    /// table prefix `shop_`.
    pub fn redis_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.redis_prefix = Some(prefix.into());
        self
    }

    /// Return the configuration with the prefixes, and the kinds.
    fn finish(self) -> Result<(Box<Config>, Registry), Error> {
        let mut config = self.config?;
        if let Some(prefix) = self.table_prefix {
            config.table_prefix = parsed(&prefix).map_err(setup)?;
            config.redis_prefix = Config::usual_redis_prefix(&config.table_prefix);
        }
        if let Some(prefix) = self.redis_prefix {
            config.redis_prefix = prefix;
        }
        Ok((config, self.kinds))
    }
}

fn setup(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Setup { attempted: ATTEMPTED, source: Box::new(error) }
}

impl IntoFuture for Connect {
    type Output = Result<Client, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (config, kinds) = self.finish()?;
            let connection = Connection::open(&config, kinds).await?;
            Ok(Client::on(Backend::Servers(Arc::new(connection)), None))
        })
    }
}

/// The connections of a client.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) broker: Broker,
    pub(super) declared: Declared,
    store: Store,
    tasks: TaskTracker,
    stop: DropGuard,
}

impl Connection {
    async fn open(config: &Config, mut kinds: Registry) -> Result<Self, Error> {
        let url = config.mysql_url().map_err(setup)?.expose().to_owned();
        let redis = config.redis_url().map_err(setup)?.expose().to_owned();
        // One TLS implementation for all connections. An error means that the program chose one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        for (kind, changes) in &config.kinds {
            kinds.set_defaults(kind, |defaults| defaults.change(changes));
        }
        let index = Index::new(IndexSettings {
            url: redis,
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
        })
        .map_err(setup)?;
        // Two flushers, as in a runner: one collects jobs while MySQL syncs those of the other.
        let table_prefix = config.table_prefix.clone();
        let settings = StoreSettings { url, connections: PoolSizes::LEAST, flushers: 2, table_prefix };
        let store = Store::connect(&settings, PATIENCE).await.map_err(|error| Error::from_store(ATTEMPTED, &error))?;
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let broker = Broker::new(store.clone(), index.clone(), Arc::new(kinds), Events::default(), &tasks);
        // The wake-ups, and not the broker: hints are sent until its last clone is dropped.
        let wake = broker.wake().clone();
        tasks.spawn(stop.clone().run_until_cancelled_owned(follow(index, store.clone(), wake)));
        Ok(Self { broker, declared: Declared::with(config.kinds.clone()), store, tasks, stop: stop.drop_guard() })
    }

    /// Send the last hints, then close the connections.
    pub(super) async fn close(self) {
        let Self { broker, store, tasks, stop, declared: _ } = self;
        drop((stop, broker));
        tasks.close();
        if tokio::time::timeout(LAST_HINTS, tasks.wait()).await.is_err() {
            tracing::warn!("some hints to the index were not sent; a runner's reconciler repairs that");
        }
        store.close().await;
    }
}

/// Measure the clocks of both servers, find out when a Redis that was out is back, and move the jobs of this client
/// that are due soon. In a runner, the scheduler does all of it.
async fn follow(index: Index, store: Store, wake: Wake) {
    let mut soon = None;
    loop {
        // Nothing is moved. A failure is recorded in the health of the index.
        let _ = index.move_due(0, |moment| store.clock().at(moment)).await;
        if index.health().now() == Health::Degraded {
            tokio::time::sleep(LOOK_AGAIN).await;
            continue;
        }
        let seen = index.health().outages();
        let still = async {
            let until = tokio::time::Instant::now() + MEASURE_AGAIN;
            while tokio::time::Instant::now() < until {
                tokio::time::sleep(FOLLOW_AGAIN).await;
                index.follow_master().await;
            }
        };
        tokio::select! {
            () = still => {}
            // It never ends.
            () = move_soon(&index, &store, &wake, &mut soon) => {}
            () = index.health().out_since(seen) => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

/// Move the jobs of this client to their ready lists when they are due, if that is before the schedulers of the runners
/// look next. These sleep for up to a second, and no hint of another process wakes them. `soon` has the next due time
/// and the last one of such jobs. It outlives this call, which the caller may drop.
async fn move_soon(index: &Index, store: &Store, wake: &Wake, soon: &mut Option<(Timestamp, Timestamp)>) {
    loop {
        let Some((next, last)) = *soon else {
            wake.scheduler().await;
            *soon = wake.take_soon();
            continue;
        };
        let rest = (next - store.clock().now()).to_std().unwrap_or_default();
        tokio::select! {
            () = tokio::time::sleep(rest.max(BREATH)) => {}
            () = wake.scheduler() => {
                if let Some((first, later)) = wake.take_soon() {
                    *soon = Some((next.min(first), last.max(later)));
                }
                continue;
            }
        }
        let moved = index.move_due(MOVED_AT_ONCE, |moment| store.clock().at(moment)).await;
        // When Redis fails, the runners find the jobs in MySQL.
        let next = moved.ok().and_then(|report| report.next).filter(|next| *next <= last);
        *soon = next.map(|next| (next, last));
    }
}
