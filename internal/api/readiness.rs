//! Is MySQL there, and does it take writes? One look for all probes that come at about the same time.
//!
//! A balancer with many nodes may probe a thousand times a second. Those probes must not become as many writes, and while MySQL
//! hangs they must not take the connections of the loops. So at most one look is under way, and its answer stands for
//! [`FRESH`]. An answer proves that MySQL was there when it gave it; so no probe is told "ready" for longer than that after MySQL
//! went.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::store::{Durability, Store};

/// How long the answer of a look stands.
const FRESH: Duration = Duration::from_millis(500);
/// A MySQL that takes longer counts as out.
const LIMIT: Duration = Duration::from_secs(2);

/// What a look found.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    /// Does MySQL answer, and take writes?
    pub(super) mysql: bool,
    /// What its settings promise; absent when it does not answer.
    pub(super) durability: Option<Durability>,
}

/// Looks for readiness. Cheap to clone; all clones share their looks.
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
    /// The newest answer, and when it came.
    last: Option<(Instant, Look)>,
    /// The look that is under way.
    coming: Option<watch::Receiver<Option<Look>>>,
}

impl Readiness {
    /// Each look runs in a task of its own, which is joined through `tasks` and over within a few seconds. A probe that hangs up
    /// ends no look: the next one would begin another.
    #[must_use]
    pub fn new(store: Store, tasks: TaskTracker) -> Self {
        Self { shared: Arc::new(Shared { store, tasks, looks: Mutex::default() }) }
    }

    /// What a look found that is not older than [`FRESH`].
    pub(super) async fn look(&self) -> Look {
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
        // One that broke off has closed its end.
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
        // A server that takes no writes still tells its settings.
        Ok(Err(_)) => {
            let told = tokio::time::timeout(LIMIT, store.durability()).await;
            Look { mysql: false, durability: told.ok().and_then(Result::ok) }
        }
        Err(_) => Look::default(),
    }
}
