//! The reaper: ends attempts whose runner died, so that their jobs run again or fail. After its first loss a job runs again at
//! once, as ordinary work and before all that waits; after two in a row it is a suspect (see `suspects`).
//!
//! The owed rows are not indexed by lease, so they are not searched while everybody is alive: a look at the short list
//! of runners decides. Any runner may reap; two at once read the same rows and one of them finds the token changed. After
//! an interruption of its own a runner judges nobody for a full lease: see [`Rhythm`](super::rhythm::Rhythm).

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::Shared;
use crate::event::Event;
use crate::index::{Entry, Line};
use crate::job::{Name, RetryPolicy, Verdict};
use crate::store::{Reaped, Settled, StoreError};

/// How often the list of runners is looked at, before jitter.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Most attempts ended in one transaction.
const PAGE: u32 = 200;
/// How often the owed rows are searched even when nobody is known to be silent: for attempts of a runner that is not on
/// the list.
const SEARCH_ANYWAY: Duration = Duration::from_secs(60);

pub(super) async fn run_until_stopped(shared: Arc<Shared>) {
    let mut searched = Instant::now();
    loop {
        let pause = LOOK_EVERY.mul_f64(0.5 + rand::random::<f64>());
        tokio::select! {
            () = shared.stop_loops.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        let anyway = shared.in_doubt() || searched.elapsed() >= SEARCH_ANYWAY.max(shared.settings.lease);
        let began = Instant::now();
        match run_once(&shared, anyway).await {
            Ok(round) => {
                if round.searched {
                    searched = began;
                    shared.searched(began);
                }
                if round.attempts > 0 {
                    tracing::warn!(attempts = round.attempts, "ended attempts of runners that died");
                    shared.broker.events().emit(Event::Reaped { attempts: round.attempts });
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot reap");
                shared.rhythm.interrupted();
            }
        }
    }
}

/// What one round of the reaper did.
#[derive(Default)]
struct Round {
    /// Attempts that it ended.
    attempts: usize,
    /// Were all owed rows searched and judged?
    searched: bool,
}

/// Tell the index of what waits again. What is due at once, because it has lost its first attempt, goes to the front of its
/// line: it had its turn before all that waits there.
async fn tell(shared: &Shared, reaped: Vec<Reaped>) {
    let now = shared.store.clock().now();
    let mut first = Vec::new();
    for reaped in reaped {
        shared.gauges.ended(&reaped.kind, Verdict::Lost);
        shared.broker.meters().settled(Some(&reaped.queue), Verdict::Lost, reaped.state);
        let Settled::Done { execute_at: Some(execute_at), line: Some((queue, priority)), .. } = reaped.settled else {
            continue;
        };
        if execute_at <= now {
            first.push(Entry { id: reaped.id, line: Line::new(&queue, priority), execute_at });
        } else {
            shared.broker.hint(reaped.id, &queue, priority, execute_at);
        }
    }
    first.sort_unstable_by_key(|entry| (entry.execute_at, entry.id));
    shared.broker.put_first(&shared.index, &first).await;
}

async fn run_once(shared: &Shared, anyway: bool) -> Result<Round, StoreError> {
    let silent = shared.store.silent_runners().await?;
    // While at the list of runners: whom a job of a foreign kind waits for.
    let kinds = shared.store.living_kinds().await?;
    *shared.living_kinds.lock().unwrap_or_else(PoisonError::into_inner) = kinds;
    if silent.is_empty() && !anyway {
        return Ok(Round::default());
    }
    let policies: HashMap<Name, RetryPolicy> =
        shared.registry.iter().map(|kind| (kind.name().clone(), kind.defaults().retry)).collect();
    let policies = Arc::new(policies);
    let mut round = Round::default();
    loop {
        let expired = shared.store.expired_attempts(PAGE).await?;
        // Asked after the search, which may have hung in the very outage that let the leases lapse.
        if !shared.rhythm.is_steady(shared.settings.lease) {
            tracing::debug!("the heartbeat was interrupted: judging nobody for a lease");
            return Ok(round);
        }
        let last = expired.len() < PAGE as usize;
        if !expired.is_empty() {
            let reaped = shared.store.reap(expired, Arc::clone(&policies)).await?;
            round.attempts += reaped.len();
            tell(shared, reaped).await;
        }
        round.searched = last;
        if last || shared.stop_loops.is_cancelled() {
            break;
        }
    }
    // The store does so only to those whose last claim must have expired by now.
    for runner in silent {
        shared.store.bury_runner(runner).await?;
    }
    Ok(round)
}
