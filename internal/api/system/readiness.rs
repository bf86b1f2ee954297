//! The check whether MySQL answers and accepts writes, shared by all probes that come at about the same time.
//!
//! A load balancer with many nodes may probe a thousand times a second. Those probes must not become as many writes,
//! and while MySQL hangs they must not take the connections of the loops. So at most one check runs at a time, and its
//! result is used for [`FRESH`]. A result proves that MySQL committed at that moment, so no probe gets "ready" for
//! longer than that after MySQL has failed. A check that is given up after [`LIMIT`] leaves its write behind; the store
//! lets the next one wait for its end, and that one is "not ready" meanwhile.
//!
//! A request that could not reach MySQL knows better than a "ready" from before it. So it ends such a result, and the
//! next probe asks MySQL anew. A "not ready" stays, because otherwise the failing requests of an outage would start one
//! check after another.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use tickr_store::{Durability, Store};

/// Time for which the result of a check is used.
const FRESH: Duration = Duration::from_millis(500);
/// Time after which MySQL counts as failed.
const LIMIT: Duration = Duration::from_secs(2);

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadinessCheck {
    /// True when MySQL answers and accepts writes.
    pub(crate) mysql: bool,
    /// Durability that its settings give; `None` when MySQL does not answer.
    pub(crate) durability: Option<Durability>,
}

/// Runs the checks of readiness. Cheap to clone; all clones share their checks.
#[derive(Clone, Debug)]
pub struct Readiness {
    shared: Arc<ReadinessInner>,
}

#[derive(Debug)]
struct ReadinessInner {
    store: Store,
    tasks: TaskTracker,
    checks: Mutex<ReadinessChecks>,
}

#[derive(Debug, Default)]
struct ReadinessChecks {
    /// The newest result and its time.
    last: Option<(Instant, ReadinessCheck)>,
    /// The check that is running.
    coming: Option<watch::Receiver<Option<ReadinessCheck>>>,
    /// Number of requests that could not reach MySQL.
    failures: u64,
}

impl Readiness {
    /// Make the checks of a store. Each check runs in a task of its own, which `tasks` joins and which ends within a
    /// few seconds. A probe that hangs up does not end the check, because the next probe would only start another.
    #[must_use]
    pub fn new(store: Store, tasks: TaskTracker) -> Self {
        Self { shared: Arc::new(ReadinessInner { store, tasks, checks: Mutex::default() }) }
    }

    /// Return a result that is not older than [`FRESH`].
    pub(crate) async fn check(&self) -> ReadinessCheck {
        let mut coming = match self.result_or_running() {
            Ok(known) => return known,
            Err(coming) => coming,
        };
        let found = coming.wait_for(Option::is_some).await;
        found.ok().and_then(|found| found.clone()).unwrap_or_default()
    }

    /// Note that a request could not reach MySQL: a "ready" from before it is not used any more.
    pub(crate) fn note_failure(&self) {
        let mut checks = self.shared.checks();
        checks.failures += 1;
        checks.last.take_if(|(_, check)| check.mysql);
    }

    fn result_or_running(&self) -> Result<ReadinessCheck, watch::Receiver<Option<ReadinessCheck>>> {
        let mut checks = self.shared.checks();
        if let Some((_, check)) = checks.last.as_ref().filter(|(came, _)| came.elapsed() < FRESH) {
            return Ok(check.clone());
        }
        // A check that failed has closed its end of the channel.
        if let Some(coming) = checks.coming.as_ref().filter(|coming| coming.has_changed().is_ok()) {
            return Err(coming.clone());
        }
        let (tell, coming) = watch::channel(None);
        checks.coming = Some(coming.clone());
        let shared = Arc::clone(&self.shared);
        drop(self.shared.tasks.spawn(async move {
            let _ = tell.send(Some(shared.check().await));
        }));
        Err(coming)
    }
}

impl ReadinessInner {
    /// Ask MySQL and keep the result. If a request could not reach MySQL meanwhile, a "ready" may come from before
    /// that. Then ask once more, and not for ever: while requests fail and checks succeed, each probe makes its own
    /// check.
    async fn check(&self) -> ReadinessCheck {
        let mut check = ReadinessCheck::default();
        for _ in 0..2 {
            let failures = self.checks().failures;
            check = ask(&self.store).await;
            let mut checks = self.checks();
            if !check.mysql || checks.failures == failures {
                checks.last = Some((Instant::now(), check.clone()));
                break;
            }
        }
        check
    }

    fn checks(&self) -> MutexGuard<'_, ReadinessChecks> {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ask(store: &Store) -> ReadinessCheck {
    match tokio::time::timeout(LIMIT, store.writable()).await {
        Ok(Ok(durability)) => ReadinessCheck { mysql: true, durability: Some(durability) },
        // A server that accepts no writes may still report its settings.
        Ok(Err(_)) => {
            let told = tokio::time::timeout(LIMIT, store.durability()).await;
            ReadinessCheck { mysql: false, durability: told.ok().and_then(Result::ok) }
        }
        Err(_) => ReadinessCheck::default(),
    }
}
