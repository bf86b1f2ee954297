//! The reaper: ends attempts whose runner died, so that their jobs run again or fail.
//!
//! The owed rows are not indexed by lease, so they are not searched while everybody is alive: a look at the short list
//! of runners decides. Any runner may reap; two at once read the same rows and one of them finds the token changed.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::Shared;
use crate::event::Event;
use crate::store::{Settled, StoreError};

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
        match run_once(&shared, anyway).await {
            Ok(0) => {}
            Ok(attempts) => {
                tracing::warn!(attempts, "ended attempts of runners that died");
                shared.broker.events().emit(Event::Reaped { attempts });
            }
            Err(error) => tracing::warn!(%error, "cannot reap"),
        }
        if anyway {
            searched = Instant::now();
        }
    }
}

async fn run_once(shared: &Shared, anyway: bool) -> Result<usize, StoreError> {
    let silent = shared.store.silent_runners().await?;
    // While at the list of runners: whom a job of a foreign kind waits for.
    let kinds = shared.store.living_kinds().await?;
    *shared.living_kinds.lock().unwrap_or_else(PoisonError::into_inner) = kinds;
    if silent.is_empty() && !anyway {
        return Ok(0);
    }
    let mut reaped = 0;
    loop {
        let expired = shared.store.expired_attempts(PAGE).await?;
        let last = expired.len() < PAGE as usize;
        if !expired.is_empty() {
            for (id, settled) in shared.store.reap(expired).await? {
                reaped += 1;
                if let Settled::Done { execute_at: Some(execute_at), line: Some((queue, priority)), .. } = settled {
                    shared.broker.hint(id, &queue, priority, execute_at);
                }
            }
        }
        if last || shared.stop_loops.is_cancelled() {
            break;
        }
    }
    // The store does so only to those whose last claim must have expired by now.
    for runner in silent {
        shared.store.bury_runner(runner).await?;
    }
    Ok(reaped)
}
