//! Watched jobs: one task per process looks at all of them together, and tells each watcher when its job may have
//! changed.
//!
//! It reads MySQL, so it does not matter which runner has the job. A change made in this process is seen at once, every
//! other change within a second. Without watchers the task does nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{Notify, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use tickr_event::{Event, Events};
use tickr_job::JobId;
use tickr_store::{JobRevision, Store};

/// Time between two looks at all watched jobs.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The watched jobs of this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Watches {
    shared: Arc<WatchesInner>,
}

#[derive(Debug)]
struct WatchesInner {
    watched: Mutex<HashMap<JobId, Watched>>,
    /// Signals a new watcher.
    begun: Notify,
}

#[derive(Debug)]
struct Watched {
    watchers: usize,
    /// Number of changes seen.
    changes: watch::Sender<u64>,
    seen: Option<JobRevision>,
}

/// One watched job. Dropping this value ends the watch.
#[derive(Debug)]
pub struct Watch {
    id: JobId,
    shared: Arc<WatchesInner>,
    changes: watch::Receiver<u64>,
}

impl Watches {
    /// Start the task. It runs until `stop`.
    #[must_use]
    pub fn start(store: Store, events: Events, tasks: &TaskTracker, stop: CancellationToken) -> Self {
        let shared = Arc::new(WatchesInner { watched: Mutex::default(), begun: Notify::new() });
        tasks.spawn(look_until_stopped(Arc::clone(&shared), store, events, stop));
        Self { shared }
    }

    /// Watch a job. A caller that reads the job after this call misses no change.
    #[must_use]
    pub fn watch(&self, id: JobId) -> Watch {
        let mut watched = self.shared.watched();
        let entry =
            watched.entry(id).or_insert_with(|| Watched { watchers: 0, changes: watch::Sender::new(0), seen: None });
        entry.watchers += 1;
        let changes = entry.changes.subscribe();
        drop(watched);
        self.shared.begun.notify_one();
        Watch { id, shared: Arc::clone(&self.shared), changes }
    }
}

impl Watch {
    /// Wait until the job may have changed since the last call.
    #[boxed]
    pub async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            // The sender lives as long as this watch.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watched = self.shared.watched();
        if let Some(entry) = watched.get_mut(&self.id) {
            entry.watchers -= 1;
            if entry.watchers == 0 {
                watched.remove(&self.id);
            }
        }
    }
}

impl WatchesInner {
    fn watched(&self) -> MutexGuard<'_, HashMap<JobId, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<JobId> {
        self.watched().keys().copied().collect()
    }

    async fn read_revisions(&self, store: &Store, ids: Vec<JobId>) {
        if ids.is_empty() {
            return;
        }
        let found = match store.job_revisions(ids.clone()).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "cannot read watched jobs");
                return;
            }
        };
        let mut watched = self.watched();
        for id in ids {
            let revision = found.get(&id);
            if let Some(entry) = watched.get_mut(&id).filter(|entry| entry.seen.as_ref() != revision) {
                entry.seen = revision.cloned();
                entry.changes.send_modify(|changes| *changes += 1);
            }
        }
    }
}

async fn look_until_stopped(shared: Arc<WatchesInner>, store: Store, events: Events, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = shared.begun.notified() => {}
        }
        let mut heard = events.listen();
        let mut tick = tokio::time::interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => shared.all(),
                event = heard.recv() => shared.affected_jobs(event, &mut heard),
            };
            shared.read_revisions(&store, due).await;
            if shared.watched().is_empty() {
                break;
            }
        }
    }
}

impl WatchesInner {
    /// Return the watched jobs that this event and the ones behind it are about.
    fn affected_jobs(&self, first: Result<Event, RecvError>, heard: &mut Receiver<Event>) -> Vec<JobId> {
        let mut ids = Vec::new();
        let mut event = match first {
            Ok(event) => Some(event),
            // The missed events may be about any job.
            Err(RecvError::Lagged(_)) => return self.all(),
            Err(RecvError::Closed) => None,
        };
        let watched = self.watched();
        while let Some(next) = event {
            ids.extend(next.job().filter(|id| watched.contains_key(id)));
            event = match heard.try_recv() {
                Ok(event) => Some(event),
                Err(TryRecvError::Lagged(_)) => return watched.keys().copied().collect(),
                Err(TryRecvError::Empty | TryRecvError::Closed) => None,
            };
        }
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}
