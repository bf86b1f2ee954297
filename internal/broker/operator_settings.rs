//! The settings of operators that every process must follow within two seconds: API keys, queues, and whether this
//! runner is drained.
//!
//! They are stored in MySQL. Each process keeps a copy, which it reads again every second, and at once after a change
//! made through it. While MySQL cannot be read, the last copy stays valid for queues and drains, so that runners go on
//! as before. For API keys it stays valid only for [`KEYS_HOLD`], because one of them may have been revoked meanwhile.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use tickr_job::{Name, RunnerId};
use tickr_store::{ApiKey, QueueSetting, Store, StoreError};

/// Time between two reads of the copy.
const READ_EVERY: Duration = Duration::from_secs(1);
/// Time for which API keys stay valid after the last successful read. API tokens of the configuration do not expire.
pub const KEYS_HOLD: Duration = Duration::from_secs(10);
/// Time between two log lines that the copy cannot be read.
const SAID_EVERY: Duration = Duration::from_secs(30);
/// Time between two updates of the record of used API keys.
const NOTE_EVERY: Duration = Duration::from_secs(60);

/// The settings of operators.
#[derive(Debug, Default)]
pub struct OperatorSettings {
    /// All API keys ever created, including revoked ones.
    pub api_keys: Vec<ApiKey>,
    /// Queues that have or had settings.
    pub queues: BTreeMap<Name, QueueSetting>,
    /// Queues with a limit, each with a runner that wants more permits than it has.
    pub wanting: BTreeSet<(Name, String)>,
    /// An operator drained this runner: it takes no new work.
    pub drained: bool,
}

/// This process's copy of the settings of operators. Cheap to clone.
#[derive(Clone, Debug)]
pub struct OperatorSettingsCopy {
    store: Store,
    runner: RunnerId,
    copy: watch::Sender<Arc<OperatorSettings>>,
    /// A moment before the last successful read.
    read_at: Arc<Mutex<Instant>>,
    used: Arc<Mutex<Used>>,
}

#[derive(Debug)]
struct Used {
    keys: HashSet<Uuid>,
    noted: Instant,
}

impl OperatorSettingsCopy {
    /// Read the copy for this runner, and keep it fresh until `stop`.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn start(
        store: Store,
        runner: RunnerId,
        stop: CancellationToken,
        tasks: &TaskTracker,
    ) -> Result<Self, StoreError> {
        let asked = Instant::now();
        let copy = watch::Sender::new(Arc::new(read(&store, &runner).await?));
        // Back-dated, so that the first use of an API key is recorded soon.
        let noted = Instant::now().checked_sub(NOTE_EVERY).unwrap_or_else(Instant::now);
        let used = Arc::new(Mutex::new(Used { keys: HashSet::new(), noted }));
        let operator_settings = Self { store, runner, copy, read_at: Arc::new(Mutex::new(asked)), used };
        let kept = operator_settings.clone();
        tasks.spawn(async move {
            let mut said: Option<Instant> = None;
            while tokio::time::timeout(READ_EVERY, stop.cancelled()).await.is_err() {
                let failed = kept.refresh().await.err();
                let age = kept.age();
                metrics::gauge!("tickr_controls_age_seconds").set(age.as_secs_f64());
                if let Some(error) = failed
                    && said.is_none_or(|said| said.elapsed() > SAID_EVERY)
                {
                    let age_s = age.as_secs();
                    tracing::warn!(%error, age_s, "cannot read the settings of operators: pauses, limits and revoked API keys");
                    said = Some(Instant::now());
                }
                kept.record_used_keys().await;
            }
        });
        Ok(operator_settings)
    }

    /// Create an empty copy that is never read, for a process that takes no work and serves no callers.
    #[must_use]
    pub fn empty(store: Store, runner: RunnerId) -> Self {
        let used = Arc::new(Mutex::new(Used { keys: HashSet::new(), noted: Instant::now() }));
        Self {
            store,
            runner,
            copy: watch::Sender::new(Arc::default()),
            read_at: Arc::new(Mutex::new(Instant::now())),
            used,
        }
    }

    /// Return the runner of this process.
    #[must_use]
    pub const fn runner(&self) -> &RunnerId {
        &self.runner
    }

    /// Return the settings as they were last read.
    #[must_use]
    pub fn now(&self) -> Arc<OperatorSettings> {
        Arc::clone(&self.copy.borrow())
    }

    /// Return the age of the copy.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.read_at.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Subscribe to the copy. The receiver sees every successful read.
    #[must_use]
    pub fn listen(&self) -> watch::Receiver<Arc<OperatorSettings>> {
        self.copy.subscribe()
    }

    /// Read the copy again, after a change made through this process.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses. The old copy stays valid then.
    pub async fn refresh(&self) -> Result<(), StoreError> {
        let asked = Instant::now();
        let fresh = read(&self.store, &self.runner).await?;
        self.copy.send_replace(Arc::new(fresh));
        let mut read_at = self.read_at.lock().unwrap_or_else(PoisonError::into_inner);
        *read_at = asked.max(*read_at);
        Ok(())
    }

    /// Record that an API key was used.
    pub fn key_was_used(&self, key: Uuid) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).keys.insert(key);
    }

    async fn record_used_keys(&self) {
        let keys: Vec<Uuid> = {
            let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
            if used.keys.is_empty() || used.noted.elapsed() < NOTE_EVERY {
                return;
            }
            used.noted = Instant::now();
            let mut keys: Vec<Uuid> = used.keys.drain().collect();
            keys.sort_unstable();
            keys
        };
        if let Err(error) = self.store.used_api_keys(keys).await {
            tracing::debug!(%error, "cannot record which API keys were used");
        }
    }
}

async fn read(store: &Store, runner: &RunnerId) -> Result<OperatorSettings, StoreError> {
    let (api_keys, queues, drained) = (store.api_keys().await?, store.queues().await?, store.is_drained(runner).await?);
    let limits = queues.iter().any(|queue| queue.concurrency.is_some());
    let wanting = if limits { store.wanting_permits().await? } else { BTreeSet::new() };
    let queues = queues.into_iter().map(|queue| (queue.name.clone(), queue)).collect();
    Ok(OperatorSettings { api_keys, queues, wanting, drained })
}
