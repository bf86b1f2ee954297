//! The settings of operators that every process must follow within two seconds: API keys, queues, limits, declared
//! kinds, and whether this runner is drained.
//!
//! They are stored in MySQL. Each process keeps a copy, which it compares with MySQL every second, and at once after a
//! change made through it. While MySQL cannot be read, the last copy stays valid for queues and drains, so that runners
//! go on as before. For API keys it stays valid only for [`API_KEYS_HOLD`], because one of them may have been revoked
//! meanwhile.
//!
//! The comparison is a [`ChangeSummary`], one statement. The settings are read only if it differs from the one before
//! the last read. Other loops use the same summary instead of looks of their own.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use tickr_handlers::Registry;
use tickr_job::{Name, RunnerId};
use tickr_store::{ApiKey, ChangeSummary, KindSetting, LimitSetting, QueueSetting, Store, StoreError};
use tickr_telemetry::LinePace;

/// Time between two comparisons of the copy with MySQL.
const READ_EVERY: Duration = Duration::from_secs(1);
/// Time after which the settings are read although their checksum is the same.
const READ_ANYWAY_AFTER: Duration = Duration::from_secs(30);
/// Longest wait for a summary. After that the settings are read with statements of their own.
const SUMMARY_LIMIT: Duration = Duration::from_millis(500);
/// Time without a summary after which the loops that depend on it look by themselves. One locked table, or the deleted rows
/// that a long read of another session keeps, hold up the summary and nothing else.
const ASSUME_AFTER: Duration = Duration::from_secs(2);
/// Time for which a summary shows that there is nothing to look at. It is longer than the time between two summaries.
const SUMMARY_HOLDS: Duration = Duration::from_secs(3);
/// Time for which API keys stay valid after the last successful read, except for the metrics page. API tokens of the
/// configuration do not expire.
pub const API_KEYS_HOLD: Duration = Duration::from_secs(10);
/// Time after which the API keys are read once more while a read of the other settings lasts. A slow MySQL, or a lock on
/// another table, must not make them older than [`API_KEYS_HOLD`].
const API_KEYS_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// Time between two updates of the record of used API keys.
const NOTE_EVERY: Duration = Duration::from_secs(60);

/// The settings of operators.
#[derive(Clone, Debug, Default)]
pub struct OperatorSettings {
    /// The valid API keys, and the newest one of those that were revoked.
    pub api_keys: Arc<[ApiKey]>,
    /// Queues that have or had settings.
    pub queues: BTreeMap<Name, QueueSetting>,
    /// Limits by key.
    pub limits: Arc<Vec<LimitSetting>>,
    /// Kinds that remote workers execute.
    pub kinds: Arc<Vec<KindSetting>>,
    /// Queues with a limit, each with a runner that wants more permits than it has.
    pub wanting: BTreeSet<(Name, String)>,
    /// An operator drained this runner: it takes no new work.
    pub drained: bool,
    /// The checksum of the API keys, queues, limits and declared kinds before they were read, and the moment of that. Absent when it
    /// could not be read.
    pub checksum: Option<(String, Instant)>,
}

/// This process's copy of the settings of operators. Cheap to clone.
#[derive(Clone, Debug)]
pub struct OperatorSettingsCopy {
    store: Store,
    runner: RunnerId,
    registry: Arc<Registry>,
    copy: watch::Sender<Arc<OperatorSettings>>,
    summary: watch::Sender<Option<Arc<ChangeSummary>>>,
    /// Time of the last summary, or of the start.
    summarized_at: Arc<Mutex<Instant>>,
    /// Held while MySQL is asked for a summary, so that a MySQL that does not answer occupies one connection only.
    summarizing: Arc<tokio::sync::Mutex<()>>,
    read_at: Arc<Mutex<ReadAt>>,
    used: Arc<Mutex<Used>>,
}

/// Moments before the last successful reads.
#[derive(Clone, Copy, Debug)]
struct ReadAt {
    settings: Instant,
    /// The API keys alone. They are read first, and used as soon as they are read.
    api_keys: Instant,
}

#[derive(Debug)]
struct Used {
    keys: HashSet<Uuid>,
    noted: Instant,
}

impl OperatorSettingsCopy {
    /// Read the copy for this runner, which has these kinds, and keep it fresh until `stop`. The registry follows the
    /// declared kinds.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn start(
        store: Store,
        runner: RunnerId,
        registry: Arc<Registry>,
        stop: CancellationToken,
        tasks: &TaskTracker,
    ) -> Result<Self, StoreError> {
        let asked = Instant::now();
        let api_keys = store.api_keys().await?.into();
        let first = OperatorSettings { api_keys, ..read_others(&store, &runner).await? };
        store.follow_limits(&first.limits, asked);
        follow_kinds(&registry, &first);
        let copy = watch::Sender::new(Arc::new(first));
        // Back-dated, so that the first use of an API key is recorded soon.
        let noted = Instant::now().checked_sub(NOTE_EVERY).unwrap_or_else(Instant::now);
        let used = Arc::new(Mutex::new(Used { keys: HashSet::new(), noted }));
        let operator_settings = Self {
            store,
            runner,
            registry,
            copy,
            summary: watch::Sender::new(None),
            summarized_at: Arc::new(Mutex::new(Instant::now())),
            summarizing: Arc::default(),
            read_at: Arc::new(Mutex::new(ReadAt { settings: asked, api_keys: asked })),
            used,
        };
        let kept = operator_settings.clone();
        tasks.spawn(async move {
            let mut lines = LinePace::new();
            while tokio::time::timeout(READ_EVERY, stop.cancelled()).await.is_err() {
                let failed = kept.refresh().await.err();
                let age = kept.last_read().settings.elapsed();
                metrics::gauge!("tickr_controls_age_seconds").set(age.as_secs_f64());
                if let Some(error) = failed
                    && lines.next_line().is_some()
                {
                    let age_s = age.as_secs();
                    tracing::warn!(%error, age_s, "cannot read the settings of operators: pauses, limits and revoked API keys");
                }
                kept.record_used_keys().await;
            }
        });
        Ok(operator_settings)
    }

    /// Create an empty copy that is never read, for a process that takes no work and serves no callers.
    #[must_use]
    pub fn empty(store: Store, runner: RunnerId) -> Self {
        let now = Instant::now();
        let used = Arc::new(Mutex::new(Used { keys: HashSet::new(), noted: now }));
        Self {
            store,
            runner,
            registry: Arc::default(),
            copy: watch::Sender::new(Arc::default()),
            summary: watch::Sender::new(None),
            summarized_at: Arc::new(Mutex::new(now)),
            summarizing: Arc::default(),
            read_at: Arc::new(Mutex::new(ReadAt { settings: now, api_keys: now })),
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

    /// Return the age of the API keys of the copy.
    #[must_use]
    pub fn api_keys_age(&self) -> Duration {
        self.last_read().api_keys.elapsed()
    }

    fn last_read(&self) -> ReadAt {
        *self.read_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribe to the copy. The receiver sees every successful read, and those of the API keys alone.
    #[must_use]
    pub fn listen(&self) -> watch::Receiver<Arc<OperatorSettings>> {
        self.copy.subscribe()
    }

    /// Subscribe to the summaries, about one in a second. While MySQL does not answer, none comes. While it answers and only
    /// the summary does not come, [assumed](ChangeSummary::assumed) ones come.
    #[must_use]
    pub fn summaries(&self) -> watch::Receiver<Option<Arc<ChangeSummary>>> {
        self.summary.subscribe()
    }

    /// Return whether MySQL may have what a summary shows in this way. It may, unless a summary of the last seconds
    /// shows that it has none.
    #[must_use]
    pub fn may_have(&self, shows: impl FnOnce(&ChangeSummary) -> bool) -> bool {
        may_have(self.summary.borrow().as_deref(), shows)
    }

    /// Compare the copy with MySQL, and read it again if it has changed.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses. The old copy stays valid then.
    #[boxed]
    pub async fn refresh(&self) -> Result<(), StoreError> {
        let asked = Instant::now();
        let summary = self.summarize().await;
        let old = self.now();
        let as_before = summary.as_ref().filter(|summary| old.is_as(summary));
        let fresh = match as_before {
            Some(summary) => {
                self.confirm_api_keys(asked);
                let wanting = self.with_fresh_api_keys(wanting(&self.store, old.queues.values())).await?;
                if (summary.drained, &wanting) == (old.drained, &old.wanting) {
                    old
                } else {
                    Arc::new(OperatorSettings { wanting, drained: summary.drained, ..OperatorSettings::clone(&old) })
                }
            }
            None => {
                self.refresh_api_keys().await?;
                let mut fresh = self.with_fresh_api_keys(read_others(&self.store, &self.runner)).await?;
                if summary.is_none() {
                    self.assume_changes();
                }
                fresh.checksum = summary.map(|summary| (summary.settings.clone(), summary.asked));
                Arc::new(fresh)
            }
        };
        self.store.follow_limits(&fresh.limits, asked);
        let mut read_at = self.read_at.lock().unwrap_or_else(PoisonError::into_inner);
        // Two reads may overlap. The one that began earlier may not undo a change that the other one has seen.
        if asked >= read_at.settings {
            follow_kinds(&self.registry, &fresh);
            // The API keys of the copy are at least as new as this read.
            self.copy.send_modify(|copy| {
                let api_keys = Arc::clone(&copy.api_keys);
                *copy = if Arc::ptr_eq(&api_keys, &fresh.api_keys) {
                    fresh
                } else {
                    Arc::new(OperatorSettings { api_keys, ..Arc::unwrap_or_clone(fresh) })
                };
            });
            read_at.settings = asked;
        }
        Ok(())
    }

    /// Read the API keys and use them at once, so that requests with API keys wait for no other setting.
    async fn refresh_api_keys(&self) -> Result<(), StoreError> {
        let asked = Instant::now();
        let api_keys: Arc<[ApiKey]> = self.store.api_keys().await?.into();
        let mut read_at = self.read_at.lock().unwrap_or_else(PoisonError::into_inner);
        // As with all settings, the later one of two reads that overlap holds.
        if asked >= read_at.api_keys {
            self.copy.send_modify(|copy| {
                *copy = Arc::new(OperatorSettings { api_keys, ..OperatorSettings::clone(copy) });
            });
            read_at.api_keys = asked;
        }
        Ok(())
    }

    /// Note that a summary of this moment showed the API keys of the copy.
    fn confirm_api_keys(&self, asked: Instant) {
        let mut read_at = self.read_at.lock().unwrap_or_else(PoisonError::into_inner);
        read_at.api_keys = read_at.api_keys.max(asked);
    }

    /// Wait for a read of other settings, and keep the API keys fresh meanwhile.
    async fn with_fresh_api_keys<T>(
        &self,
        others: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let mut others = pin!(others);
        loop {
            if let Ok(read) = tokio::time::timeout(API_KEYS_AGAIN_AFTER, &mut others).await {
                return read;
            }
            if let Err(error) = self.refresh_api_keys().await {
                tracing::debug!(%error, "cannot read the API keys while the other settings are read");
            }
        }
    }

    /// Ask MySQL for a summary. Return nothing while an earlier one is not answered, or after an error. A summary that comes
    /// late is told to the loops all the same.
    async fn summarize(&self) -> Option<Arc<ChangeSummary>> {
        let alone = Arc::clone(&self.summarizing).try_lock_owned().ok()?;
        let (store, runner, kinds) = (self.store.clone(), self.runner.clone(), self.registry.known_names());
        let (told, summarized_at) = (self.summary.clone(), Arc::clone(&self.summarized_at));
        let asking = tokio::spawn(async move {
            let summary = store.change_summary(&runner, &kinds).await.map(Arc::new);
            if let Ok(summary) = &summary {
                *summarized_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                told.send_replace(Some(Arc::clone(summary)));
            }
            drop(alone);
            summary
        });
        match tokio::time::timeout(SUMMARY_LIMIT, asking).await {
            Ok(Ok(Ok(summary))) => Some(summary),
            Ok(Ok(Err(error))) => {
                tracing::debug!(%error, "cannot read the summary of changes");
                None
            }
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// Have the loops look, if no summary has come for a while.
    fn assume_changes(&self) {
        let summarized_at = *self.summarized_at.lock().unwrap_or_else(PoisonError::into_inner);
        if summarized_at.elapsed() >= ASSUME_AFTER {
            let last = self.summary.borrow().clone();
            self.summary.send_replace(Some(Arc::new(ChangeSummary::assumed(last.as_deref(), summarized_at))));
        }
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

impl OperatorSettings {
    /// Return whether the API keys, queues, limits and declared kinds are those that this summary saw.
    fn is_as(&self, summary: &ChangeSummary) -> bool {
        self.checksum
            .as_ref()
            .is_some_and(|(checksum, read_at)| *checksum == summary.settings && read_at.elapsed() < READ_ANYWAY_AFTER)
    }
}

/// Read all settings but the API keys.
async fn read_others(store: &Store, runner: &RunnerId) -> Result<OperatorSettings, StoreError> {
    let (queues, drained) = (store.queues().await?, store.is_drained(runner).await?);
    let wanting = wanting(store, queues.iter()).await?;
    let queues = queues.into_iter().map(|queue| (queue.name.clone(), queue)).collect();
    let (limits, kinds) = (Arc::new(store.limits().await?), Arc::new(store.declared_kinds().await?));
    Ok(OperatorSettings { api_keys: Arc::default(), queues, limits, kinds, wanting, drained, checksum: None })
}

fn may_have(last: Option<&ChangeSummary>, shows: impl FnOnce(&ChangeSummary) -> bool) -> bool {
    last.is_none_or(|summary| summary.asked.elapsed() >= SUMMARY_HOLDS || shows(summary))
}

/// Make the registry follow the declared kinds.
fn follow_kinds(registry: &Registry, settings: &OperatorSettings) {
    registry.follow_declared(settings.kinds.iter().map(|set| (&set.kind, (set.version, set.changed.0))));
}

/// Read which runners want permits, if any of these queues has a limit.
async fn wanting(
    store: &Store,
    mut queues: impl Iterator<Item = &QueueSetting>,
) -> Result<BTreeSet<(Name, String)>, StoreError> {
    if queues.any(|queue| queue.concurrency.is_some()) { store.wanting_permits().await } else { Ok(BTreeSet::new()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_summary_of_the_last_seconds_shows_that_there_is_nothing() {
        let blocked = |summary: &ChangeSummary| summary.jobs_blocked;
        let now = Instant::now();
        let mut summary = ChangeSummary { jobs_blocked: false, ..ChangeSummary::assumed(None, now) };
        assert!(may_have(None, blocked), "before the first summary");
        assert!(!may_have(Some(&summary), blocked));
        assert!(may_have(Some(&ChangeSummary::assumed(Some(&summary), now)), blocked), "no summary in time");
        summary.jobs_blocked = true;
        assert!(may_have(Some(&summary), blocked));
        let before = now.checked_sub(SUMMARY_HOLDS).expect("the machine runs for some seconds");
        let old = ChangeSummary { jobs_blocked: false, ..ChangeSummary::assumed(None, before) };
        assert!(may_have(Some(&old), blocked), "MySQL has not answered since");
    }
}
