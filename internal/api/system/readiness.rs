//! The check whether MySQL answers and accepts writes, shared by all probes that come at about the same time.
//!
//! A load balancer with many nodes may probe a thousand times a second. Those probes must not become as many writes,
//! and while MySQL hangs they must not take the connections of the loops. So at most one check runs at a time, and its
//! result is used for [`FRESH`]. A result proves that MySQL answered at that moment, so no probe gets "ready" for
//! longer than that after MySQL has failed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::store::{Durability, Store};

/// Time for which the result of a check is used.
const FRESH: Duration = Duration::from_millis(500);
/// Time after which MySQL counts as failed.
const LIMIT: Duration = Duration::from_secs(2);

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    /// True when MySQL answers and accepts writes.
    pub(crate) mysql: bool,
    /// Durability that its settings give; `None` when MySQL does not answer.
    pub(crate) durability: Option<Durability>,
}

/// Runs the checks of readiness. Cheap to clone; all clones share their checks.
#[derive(Clone, Debug)]
pub struct Readiness {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Store,
    tasks: TaskTracker,
    looks: Mutex<Looks>,
}

#[derive(Debug, Default)]
struct Looks {
    /// The newest result and its time.
    last: Option<(Instant, Look)>,
    /// The check that is running.
    coming: Option<watch::Receiver<Option<Look>>>,
}

impl Readiness {
    /// Make the checks of a store. Each check runs in a task of its own, which `tasks` joins and which ends within a
    /// few seconds. A probe that hangs up does not end the check, because the next probe would only start another.
    #[must_use]
    pub fn new(store: Store, tasks: TaskTracker) -> Self {
        Self { shared: Arc::new(Shared { store, tasks, looks: Mutex::default() }) }
    }

    /// Return a result that is not older than [`FRESH`].
    pub(crate) async fn look(&self) -> Look {
        let mut coming = match self.known_or_coming() {
            Ok(known) => return known,
            Err(coming) => coming,
        };
        let found = coming.wait_for(Option::is_some).await;
        found.ok().and_then(|found| found.clone()).unwrap_or_default()
    }

    fn known_or_coming(&self) -> Result<Look, watch::Receiver<Option<Look>>> {
        let mut looks = self.shared.looks();
        if let Some((_, look)) = looks.last.as_ref().filter(|(came, _)| came.elapsed() < FRESH) {
            return Ok(look.clone());
        }
        // A check that failed has closed its end of the channel.
        if let Some(coming) = looks.coming.as_ref().filter(|coming| coming.has_changed().is_ok()) {
            return Err(coming.clone());
        }
        let (tell, coming) = watch::channel(None);
        looks.coming = Some(coming.clone());
        let shared = Arc::clone(&self.shared);
        drop(self.shared.tasks.spawn(async move {
            let look = ask(&shared.store).await;
            shared.looks().last = Some((Instant::now(), look.clone()));
            let _ = tell.send(Some(look));
        }));
        Err(coming)
    }
}

impl Shared {
    fn looks(&self) -> MutexGuard<'_, Looks> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ask(store: &Store) -> Look {
    match tokio::time::timeout(LIMIT, store.writable()).await {
        Ok(Ok(durability)) => Look { mysql: true, durability: Some(durability) },
        // A server that accepts no writes may still report its settings.
        Ok(Err(_)) => {
            let told = tokio::time::timeout(LIMIT, store.durability()).await;
            Look { mysql: false, durability: told.ok().and_then(Result::ok) }
        }
        Err(_) => Look::default(),
    }
}
