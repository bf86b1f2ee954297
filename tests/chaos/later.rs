//! The system behind the sink that finishes some callbacks later: it takes their finish keys, reports on a few, and ends
//! the attempts through any runner that answers. Now and then it forgets one, and the attempt times out.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::request::{Answer, Request};
use crate::world::World;

/// One attempt in this many is forgotten.
const FORGOTTEN: u32 = 10;
/// Largest number of times that the system sends a verdict. It is enough for the longest fault.
const MAX_TRIES: u32 = 200;
/// Longest time for an attempt that is left to the system, in milliseconds.
pub(crate) const WITHIN_MS: u64 = 2_000;

/// An attempt that the sink has taken over.
#[derive(Clone, Debug)]
pub(crate) struct Promise {
    pub(crate) key: String,
    pub(crate) job: Uuid,
    pub(crate) token: Uuid,
}

/// End what the sink takes over, until the token is cancelled.
pub(crate) async fn finish_until_stopped(world: Arc<World>, end: CancellationToken) {
    let mut under_way = JoinSet::new();
    while !end.is_cancelled() {
        for promise in world.sink.promised() {
            under_way.spawn(keep(Arc::clone(&world), promise));
        }
        tokio::select! {
            () = end.cancelled() => {}
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
    }
    // No job is owed any more, so no attempt waits for these.
    under_way.shutdown().await;
}

async fn keep(world: Arc<World>, promise: Promise) {
    let mut rng = StdRng::seed_from_u64(promise.token.as_u64_pair().1);
    if rng.random_ratio(1, FORGOTTEN) {
        return;
    }
    if rng.random_ratio(1, 3) {
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..400))).await;
        send(&world, &mut rng, &promise, Request::post(path(&promise, "report")).with(json!({"percent": 50}))).await;
    }
    tokio::time::sleep(Duration::from_millis(rng.random_range(0..800))).await;
    if rng.random_ratio(1, 8) {
        let verdict = json!({"verdict": "failed", "error": "failed on request"});
        send(&world, &mut rng, &promise, Request::post(path(&promise, "finish")).with(verdict)).await;
        return;
    }
    let attempt = (promise.job, promise.token);
    world.ledger.write(|book| book.finishes.insert(attempt, false));
    let verdict = json!({"verdict": "succeeded", "result": {"token": promise.token}});
    if send(&world, &mut rng, &promise, Request::post(path(&promise, "finish")).with(verdict)).await {
        world.ledger.write(|book| book.finishes.insert(attempt, true));
    }
}

fn path(promise: &Promise, what: &str) -> String {
    format!("/v1/attempts/{}/{what}", promise.key)
}

/// Repeat the request until there is an answer. Return whether it was carried out.
async fn send(world: &World, rng: &mut StdRng, promise: &Promise, request: Request) -> bool {
    for _ in 0..MAX_TRIES {
        match world.call(rng, request.clone()).await {
            Answer::Said(200, _) => return true,
            // The attempt has timed out, or a runner took it for lost.
            Answer::Said(409, body) if body["code"] == "attempt_ended" => return false,
            Answer::Said(429 | 500.., _) | Answer::Silent | Answer::NotSent => {}
            other @ Answer::Said(..) => {
                let (job, token) = (promise.job, promise.token);
                world
                    .ledger
                    .complain(format!("for attempt {token} of {job}, a finish key was answered with {other:?}"));
                return false;
            }
        }
        tokio::time::sleep(Duration::from_millis(rng.random_range(50..500))).await;
    }
    false
}
