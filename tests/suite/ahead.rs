//! Jobs that were claimed ahead of the workers, when operators, limits, stops and faults come before their start.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickr::handlers::{Context, Failure, Kind, Output, Registry};
use tokio_util::sync::CancellationToken;

use crate::support::{TestApp, eventually};

const WORKERS: usize = 8;
/// Seats of such a runner beyond its workers, at most.
const AHEAD: usize = 32;
const EXECUTING: &str = "SELECT COUNT(*) FROM owed WHERE state = 'executing'";

/// A job that notes its start and ends at once, or that runs until the test lets it end.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
struct Step {
    n: usize,
    hold: bool,
}

impl Kind for Step {
    const NAME: &'static str = "step";
}

/// The handlers of a test.
#[derive(Default)]
struct Steps {
    /// The numbers of the jobs, in the order of their starts.
    started: Mutex<Vec<usize>>,
    open: CancellationToken,
    run: AtomicUsize,
    most: AtomicUsize,
}

impl Steps {
    fn registry(self: &Arc<Self>) -> Registry {
        let (mut registry, steps) = (Registry::new(), Arc::clone(self));
        registry.register(move |step: Step, context: Context| {
            let steps = Arc::clone(&steps);
            async move {
                steps.started.lock().unwrap().push(step.n);
                steps.most.fetch_max(steps.run.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let ended = if step.hold {
                    tokio::select! {
                        () = steps.open.cancelled() => Ok(Output::default()),
                        () = context.stopped() => Err(Failure::retry("told to stop")),
                    }
                } else {
                    Ok(Output::default())
                };
                steps.run.fetch_sub(1, Ordering::SeqCst);
                ended
            }
        });
        registry
    }

    fn started(&self) -> Vec<usize> {
        self.started.lock().unwrap().clone()
    }
}

fn step(n: usize, hold: bool) -> Value {
    json!({"kind": "step", "payload": {"n": n, "hold": hold}})
}

/// Let a job hold each worker while others are claimed ahead, until they are undone, and then end. Check that the next
/// jobs to start are those at the head of the line.
async fn undo_and_go_on(last_attempt: bool) {
    let steps = Arc::<Steps>::default();
    let tickr = TestApp::start_with(|config| config.workers = WORKERS, steps.registry()).await;
    let short = (0..1_000).map(|n| step(n, false));
    let holding = (1_000..1_000 + WORKERS).map(|n| step(n, true));
    let first = 1_000 + WORKERS;
    let behind = (first..first + 1_000).map(|n| {
        let mut job = step(n, false);
        if last_attempt {
            job["max_attempts"] = json!(1);
        }
        job
    });
    tickr.enqueue_many(short.chain(holding).chain(behind)).await;
    eventually("the workers are held", || async { (steps.run.load(Ordering::SeqCst) == WORKERS).then_some(()) }).await;
    // Longer than the patience of a job that was claimed ahead.
    tokio::time::sleep(Duration::from_millis(900)).await;
    tickr.until_count(EXECUTING, WORKERS as i64).await;
    let before = steps.started().len();
    steps.open.cancel();
    tickr.until_idle().await;
    let order = steps.started()[before..].to_vec();
    let place = |n: usize| order.iter().position(|started| *started == n);
    // Those that the runner had claimed or taken are the ones that come first in the line.
    let latest = (first..first + AHEAD).filter_map(place).max();
    println!("of {} jobs, the first {AHEAD} of the line started at places up to {latest:?}", order.len());
    assert!(latest.is_none_or(|latest| latest < 3 * AHEAD), "{latest:?}");
    tickr.assert_each_ran_once(2_000 + WORKERS as i64).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_whose_claim_was_undone_are_the_next_to_start() {
    undo_and_go_on(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_on_their_last_attempt_that_found_no_worker_are_the_next_to_start() {
    undo_and_go_on(true).await;
}
