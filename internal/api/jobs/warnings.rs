//! Warnings in the response to an enqueue: the job is accepted, but nothing would run it at present.
//!
//! They come from a view of the living runners that is at most ten seconds old. One request in ten seconds reads the
//! view again and waits for that a moment; no other request costs MySQL anything.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tickr_broker::OperatorSettingsCopy;
use tickr_job::{Name, NewJob};
use tickr_store::{RunnerSeen, Store};

/// Maximum age of the view.
const FRESH: Duration = Duration::from_secs(10);
/// Maximum time for which a request waits for MySQL to read the view. After that it is answered without warnings.
const PATIENCE: Duration = Duration::from_millis(300);
/// Maximum number of runners that are read.
const MAX_RUNNERS: u32 = 1_000;
/// Maximum number of warnings in one response.
const MAX_WARNINGS: usize = 20;

/// The queues that some runners serve, with the kinds of those runners.
type Served = HashMap<Name, HashSet<Name>>;

/// What living runners serve.
#[derive(Debug, Default)]
struct Living {
    /// Those that take jobs.
    taking: Served,
    /// Those that operators have drained.
    drained: Served,
}

/// The shared view of the living runners.
#[derive(Clone, Debug, Default)]
pub struct Warnings(Arc<Mutex<View>>);

#[derive(Debug, Default)]
struct View {
    served: Option<Arc<Living>>,
    /// Time when a request last began to read it.
    asked: Option<Instant>,
}

impl Warnings {
    /// Return the reasons why some of `jobs` would not run at present, each reason once.
    pub(crate) async fn about(
        &self,
        store: &Store,
        operator_settings: &OperatorSettingsCopy,
        jobs: &[NewJob],
    ) -> Vec<String> {
        let served = self.served(store).await;
        let settings = operator_settings.now();
        let mut seen: HashSet<(&Name, &Name)> = HashSet::new();
        let mut warnings = Vec::new();
        for job in jobs {
            if !seen.insert((&job.queue, &job.kind)) {
                continue;
            }
            let pause = settings.queues.get(&job.queue).and_then(|queue| queue.pause.as_ref());
            let paused = pause.map(|pause| {
                let reason = pause.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
                format!("the queue {} is paused by {}{reason}", job.queue, pause.by)
            });
            let unserved = served.as_deref().and_then(|served| unserved(served, job));
            for warning in [paused, unserved].into_iter().flatten() {
                if warnings.len() < MAX_WARNINGS && !warnings.contains(&warning) {
                    warnings.push(warning);
                }
            }
        }
        warnings
    }

    /// Return the view. Read it again if it is old and no other request is reading it.
    async fn served(&self, store: &Store) -> Option<Arc<Living>> {
        {
            let mut view = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if view.asked.is_some_and(|asked| asked.elapsed() < FRESH) {
                return view.served.clone();
            }
            view.asked = Some(Instant::now());
        }
        let read = tokio::time::timeout(PATIENCE, store.runners(MAX_RUNNERS)).await;
        let served = match read {
            Ok(Ok(runners)) => Some(Arc::new(served_by(&runners))),
            // The old view may be wrong by now, so give no warnings at all.
            Ok(Err(_)) | Err(_) => None,
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).served.clone_from(&served);
        served
    }
}

fn served_by(runners: &[RunnerSeen]) -> Living {
    let mut living = Living::default();
    // A process for a suspect takes its one job alone.
    let ordinary = runners.iter().filter(|runner| runner.stopped_at.is_none() && runner.parent.is_none());
    for runner in ordinary.filter(|runner| !runner.is_silent()) {
        let served = if runner.takes_jobs() { &mut living.taking } else { &mut living.drained };
        for queue in &runner.queues {
            served.entry(queue.clone()).or_default().extend(runner.kinds.iter().cloned());
        }
    }
    living
}

fn unserved(living: &Living, NewJob { queue, kind, .. }: &NewJob) -> Option<String> {
    let has_kind = |served: &Served| served.get(queue).map(|kinds| kinds.contains(kind));
    match (has_kind(&living.taking), has_kind(&living.drained)) {
        (Some(true), _) => None,
        (_, Some(true)) => Some(format!(
            "every living runner that serves {queue} and has the kind {kind} is drained; the job waits until one is resumed"
        )),
        (None, None) => Some(format!("no living runner serves the queue {queue}; the job waits for one that does")),
        (Some(false), _) | (None, Some(false)) => {
            Some(format!("no living runner that serves {queue} has the kind {kind}; the job waits for one"))
        }
    }
}
