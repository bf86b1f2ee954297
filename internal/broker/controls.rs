//! What operators have set and every process must follow within two seconds: the keys of the API, the queues, and
//! whether this runner takes work.
//!
//! The truth is in the store. Each process keeps a copy, read anew every second, and at once after a change that came in
//! through it. While it cannot be read the last copy stands for queues and drain, so that runners go on as they were told; for
//! keys it stands [`KEYS_HOLD`] and no longer, because one of them may have been revoked meanwhile.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::job::{Name, RunnerId};
use crate::store::{ApiKey, QueueSetting, Store, StoreError};

/// How often the copy is read anew.
const READ_EVERY: Duration = Duration::from_secs(1);
/// How long keys are good after the copy was last read. Tokens of the configuration are good for ever.
pub const KEYS_HOLD: Duration = Duration::from_secs(10);
/// How often it is said that the copy cannot be read.
const SAID_EVERY: Duration = Duration::from_secs(30);
/// How often it is noted which keys were used.
const NOTE_EVERY: Duration = Duration::from_secs(60);

/// What operators have set.
#[derive(Debug, Default)]
pub struct Settings {
    /// Keys that were ever made, revoked ones too.
    pub keys: Vec<ApiKey>,
    /// Queues about which something was ever set.
    pub queues: BTreeMap<Name, QueueSetting>,
    /// Queues with a limit of which runners could run more than they may, and which runners.
    pub wanting: BTreeSet<(Name, String)>,
    /// Is this runner asked to take no new work?
    pub drained: bool,
}

/// This process's copy of what operators have set. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Controls {
    store: Store,
    runner: RunnerId,
    copy: watch::Sender<Arc<Settings>>,
    /// When the copy was last asked for with success.
    read_at: Arc<Mutex<Instant>>,
    used: Arc<Mutex<Used>>,
}

#[derive(Debug)]
struct Used {
    keys: HashSet<Uuid>,
    noted: Instant,
}

impl Controls {
    /// Read the copy of this runner's process, and keep it fresh until `stop`.
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
        // The first use of a key shows soon.
        let noted = Instant::now().checked_sub(NOTE_EVERY).unwrap_or_else(Instant::now);
        let used = Arc::new(Mutex::new(Used { keys: HashSet::new(), noted }));
        let controls = Self { store, runner, copy, read_at: Arc::new(Mutex::new(asked)), used };
        let kept = controls.clone();
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
                    tracing::warn!(%error, age_s, "cannot read what operators have set: pauses, limits and revoked keys");
                    said = Some(Instant::now());
                }
                kept.note_used_keys().await;
            }
        });
        Ok(controls)
    }

    /// A copy that says nothing and is never read: of a process that takes no work and lets no caller in.
    #[must_use]
    pub fn of_no_interest(store: Store, runner: RunnerId) -> Self {
        let used = Arc::new(Mutex::new(Used { keys: HashSet::new(), noted: Instant::now() }));
        Self {
            store,
            runner,
            copy: watch::Sender::new(Arc::default()),
            read_at: Arc::new(Mutex::new(Instant::now())),
            used,
        }
    }

    /// The runner of this process.
    #[must_use]
    pub const fn runner(&self) -> &RunnerId {
        &self.runner
    }

    /// What operators have set, as last read.
    #[must_use]
    pub fn now(&self) -> Arc<Settings> {
        Arc::clone(&self.copy.borrow())
    }

    /// How old the copy is.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.read_at.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Hear of every reading.
    #[must_use]
    pub fn listen(&self) -> watch::Receiver<Arc<Settings>> {
        self.copy.subscribe()
    }

    /// Read the copy anew: after a change that came in through this process.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses; the old copy stands.
    pub async fn refresh(&self) -> Result<(), StoreError> {
        let asked = Instant::now();
        let fresh = read(&self.store, &self.runner).await?;
        self.copy.send_replace(Arc::new(fresh));
        let mut read_at = self.read_at.lock().unwrap_or_else(PoisonError::into_inner);
        *read_at = asked.max(*read_at);
        Ok(())
    }

    /// A key let somebody in.
    pub fn key_was_used(&self, key: Uuid) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).keys.insert(key);
    }

    async fn note_used_keys(&self) {
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
        if let Err(error) = self.store.used_keys(keys).await {
            tracing::debug!(%error, "cannot note which keys were used");
        }
    }
}

async fn read(store: &Store, runner: &RunnerId) -> Result<Settings, StoreError> {
    let (keys, queues, drained) = (store.keys().await?, store.queues().await?, store.is_drained(runner).await?);
    let limits = queues.iter().any(|queue| queue.concurrency.is_some());
    let wanting = if limits { store.wanting_permits().await? } else { BTreeSet::new() };
    let queues = queues.into_iter().map(|queue| (queue.name.clone(), queue)).collect();
    Ok(Settings { keys, queues, wanting, drained })
}
