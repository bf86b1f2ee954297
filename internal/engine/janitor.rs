//! The janitor: removes what retention no longer keeps. A little at a time, by primary key, and by age alone: nothing is
//! ever dropped because there is much of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Shared;
use crate::job::JobId;
use crate::store::StoreError;

/// Between rounds, before jitter.
const ROUND_EVERY: Duration = Duration::from_secs(60);
/// Pages in one round; a round that does not reach the end goes on where it stopped.
const PAGES: usize = 50;
/// Between pages: the disk belongs to jobs.
const BREATH: Duration = Duration::from_millis(20);
/// Between two searches of the whole ledger for failed jobs without a letter.
const REST: Duration = Duration::from_secs(3_600);

pub(super) async fn run_until_stopped(shared: Arc<Shared>) {
    let mut place = None;
    let mut schedule = String::new();
    let mut letters = Letters::default();
    loop {
        if let Err(error) = letters.look(&shared).await {
            tracing::warn!(%error, "cannot look for missing dead letters");
        }
        let pause = ROUND_EVERY.mul_f64(0.5 + rand::random::<f64>());
        tokio::select! {
            () = shared.stop_loops.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        if shared.settings.purge_hours.is_some_and(|hours| !hours.contain(shared.store.clock().now().time())) {
            continue;
        }
        match round(&shared, place).await {
            Ok((jobs, next)) => {
                place = next;
                if jobs > 0 {
                    tracing::info!(jobs, "removed jobs whose retention has ended");
                    metrics::counter!("tickr_jobs_purged_total").increment(jobs as u64);
                }
            }
            Err(error) => tracing::warn!(%error, "cannot purge"),
        }
        if let Err(error) = forget_discarded(&shared).await {
            tracing::warn!(%error, "cannot purge discarded dead letters");
        }
        if let Err(error) = forget_operations(&shared).await {
            tracing::warn!(%error, "cannot purge operations");
        }
        if let Err(error) = forget_answers(&shared).await {
            tracing::warn!(%error, "cannot purge idempotency keys");
        }
        if let Err(error) = forget_acts(&shared).await {
            tracing::warn!(%error, "cannot purge the audit");
        }
        if let Err(error) = forget_ticks(&shared, &mut schedule).await {
            tracing::warn!(%error, "cannot purge the ticks of schedules");
        }
    }
}

async fn round(shared: &Shared, mut place: Option<JobId>) -> Result<(usize, Option<JobId>), StoreError> {
    let mut jobs = 0;
    for _ in 0..PAGES {
        let purged = shared.store.purge_page(place, &shared.settings.retention).await?;
        jobs += purged.jobs;
        place = purged.next;
        if place.is_none() || shared.stop_loops.is_cancelled() {
            break;
        }
        tokio::time::sleep(BREATH).await;
    }
    Ok((jobs, place))
}

/// The search for failed jobs without a letter: those that failed before there were letters, or under an older binary
/// while a deploy was under way. From the newest job to the oldest, a part in every round, then again after a rest.
#[derive(Default)]
struct Letters {
    place: Option<JobId>,
    rested: Option<Instant>,
}

impl Letters {
    async fn look(&mut self, shared: &Shared) -> Result<(), StoreError> {
        if self.rested.is_some_and(|since| since.elapsed() < REST) {
            return Ok(());
        }
        for _ in 0..PAGES {
            let (buried, next) = shared.store.bury_missing(self.place).await?;
            if buried > 0 {
                tracing::info!(buried, "found failed jobs without a dead letter");
            }
            self.place = next;
            self.rested = next.is_none().then(Instant::now);
            if next.is_none() || shared.stop_loops.is_cancelled() {
                break;
            }
            tokio::time::sleep(BREATH).await;
        }
        Ok(())
    }
}

async fn forget_discarded(shared: &Shared) -> Result<(), StoreError> {
    for _ in 0..PAGES {
        let (jobs, more) = shared.store.purge_discarded(&shared.settings.retention).await?;
        metrics::counter!("tickr_jobs_purged_total").increment(jobs as u64);
        if !more || shared.stop_loops.is_cancelled() {
            break;
        }
        tokio::time::sleep(BREATH).await;
    }
    Ok(())
}

/// Answers stand in the order of their age, so a round begins at the oldest and soon finds nothing to do.
async fn forget_answers(shared: &Shared) -> Result<(), StoreError> {
    let mut place = None;
    for _ in 0..PAGES {
        let (forgotten, next) = shared.store.purge_keys(place, shared.settings.keep_answers).await?;
        metrics::counter!("tickr_answers_purged_total").increment(forgotten as u64);
        place = next;
        if place.is_none() || shared.stop_loops.is_cancelled() {
            break;
        }
        tokio::time::sleep(BREATH).await;
    }
    Ok(())
}

async fn forget_operations(shared: &Shared) -> Result<(), StoreError> {
    let mut place = None;
    for _ in 0..PAGES {
        place = shared.store.purge_operations(place, shared.settings.keep_audit).await?.1;
        if place.is_none() || shared.stop_loops.is_cancelled() {
            break;
        }
        tokio::time::sleep(BREATH).await;
    }
    Ok(())
}

async fn forget_acts(shared: &Shared) -> Result<(), StoreError> {
    let mut place = None;
    for _ in 0..PAGES {
        place = shared.store.purge_audit(place, shared.settings.keep_audit).await?.1;
        if place.is_none() || shared.stop_loops.is_cancelled() {
            break;
        }
        tokio::time::sleep(BREATH).await;
    }
    Ok(())
}

/// Ticks stand in the order of their schedules, so a round goes on with the schedule where the last one stopped.
async fn forget_ticks(shared: &Shared, after: &mut String) -> Result<(), StoreError> {
    for _ in 0..PAGES {
        let (forgotten, next) = shared.store.purge_ticks(after.clone(), shared.settings.keep_ticks).await?;
        metrics::counter!("tickr_ticks_purged_total").increment(forgotten);
        *after = next.unwrap_or_default();
        if after.is_empty() || shared.stop_loops.is_cancelled() {
            break;
        }
        if forgotten > 0 {
            tokio::time::sleep(BREATH).await;
        }
    }
    Ok(())
}
