//! The fetcher: the only one who takes ids, and only while workers are free to start them.
//!
//! Normally from Redis: everything there is for the free slots in one round trip, and when there is nothing, one
//! blocking pop. As soon as anybody here finds Redis out, it reads due work from the store by its index; the claims are
//! the same.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rand::seq::SliceRandom;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::Shared;
use crate::index::{Fetch, Health, IndexError};
use crate::job::JobId;
use crate::store::DueJob;

/// A due job and the slot it will run in.
pub(super) struct Ticket {
    pub(super) id: JobId,
    pub(super) slot: OwnedSemaphorePermit,
}

/// Most ids taken in one round trip.
const MOST_AT_ONCE: usize = 256;
/// How often the store is asked for due work while Redis is out and nothing wakes us.
const STORE_POLL: Duration = Duration::from_millis(200);
/// Pauses between tries of a Redis that failed the fetcher, before jitter. The store is asked meanwhile.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Rows in one page of the store when the first page held too little for this runner.
const LARGER_PAGE: usize = 2_000;

pub(super) async fn fetch_until_stopped(
    shared: Arc<Shared>,
    mut fetch: Fetch,
    slots: Arc<Semaphore>,
    entrance: mpsc::Sender<Ticket>,
) {
    let (mut pause, mut again) = (FIRST_PAUSE, Instant::now());
    loop {
        // Slots before ids: what is taken here can start at once.
        let first = tokio::select! {
            // In this order: a free slot must not outvote the stop and send the fetcher to sleep for another block.
            biased;
            () = shared.stop_fetching.cancelled() => return,
            slot = Arc::clone(&slots).acquire_owned() => slot,
        };
        let Ok(first) = first else { return };
        if !store_answers(&shared).await {
            continue;
        }
        let mut free = VecDeque::from([first]);
        while free.len() < MOST_AT_ONCE {
            let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else { break };
            free.push_back(slot);
        }
        // A dead master or a full Redis answers errors at once: never hammer it.
        let ids = if shared.index.health().now() == Health::Degraded || Instant::now() < again {
            from_store(&shared, free.len()).await
        } else if let Ok(ids) = from_index_unless_out(&shared, &mut fetch, free.len()).await {
            pause = FIRST_PAUSE;
            ids
        } else {
            shared.reconcile.notify_one();
            again = Instant::now() + pause.mul_f64(0.5 + rand::random::<f64>() / 2.0);
            pause = (pause * 2).min(LONGEST_PAUSE);
            Vec::new()
        };
        for id in ids {
            let Some(slot) = free.pop_front() else { break };
            if entrance.send(Ticket { id, slot }).await.is_err() {
                return;
            }
        }
    }
}

/// As [`from_index`], until anybody here finds Redis out. What waits on a server that has stalled may wait for long; the
/// call and its connection are dropped together, so that no answer comes to a connection that nobody reads, and the
/// store is asked.
async fn from_index_unless_out(shared: &Shared, fetch: &mut Fetch, most: usize) -> Result<Vec<JobId>, IndexError> {
    let health = shared.index.health();
    let outages = health.outages();
    if health.now() == Health::Degraded {
        return Ok(Vec::new());
    }
    tokio::select! {
        biased;
        ids = from_index(shared, fetch, most) => return ids,
        () = health.out_since(outages) => {}
    }
    fetch.abandon();
    Ok(Vec::new())
}

async fn from_index(shared: &Shared, fetch: &mut Fetch, most: usize) -> Result<Vec<JobId>, IndexError> {
    let taken = fetch.take(most).await?;
    if taken.refill {
        shared.refill.notify_one();
    }
    if !taken.ids.is_empty() {
        return Ok(taken.ids);
    }
    // Not cancelled when the runner stops, because Redis would hand the next id to a connection that nobody reads. It
    // returns within a second, and what it took meanwhile is for somebody else.
    let Some((id, list)) = fetch.wait().await? else { return Ok(Vec::new()) };
    if shared.stop_fetching.is_cancelled() {
        fetch.put_back(id, list).await?;
        return Ok(Vec::new());
    }
    Ok(vec![id])
}

/// Due work straight from the store. Reads more than is needed and shuffles, so that several runners rarely claim the
/// same rows. What others must run may stand in front in any number, so it reads on, in bounded pages, until it finds
/// work for this runner.
async fn from_store(shared: &Shared, most: usize) -> Vec<JobId> {
    let ours = |job: &DueJob| {
        shared.settings.queues.contains(&job.queue)
            && shared.registry.get(job.kind.as_str()).is_some()
            && !shared.ward.keeps(job.id)
    };
    let now = shared.store.clock().now();
    let (mut ids, mut after) = (Vec::new(), None);
    let mut page_size = most * 4 + shared.live.len();
    while ids.is_empty() && !shared.stop_fetching.is_cancelled() {
        let page = match shared.store.due_page(after, now, page_size).await {
            Ok(page) => page,
            Err(error) => {
                tracing::warn!(%error, "cannot read due jobs");
                shared.store_failed();
                return Vec::new();
            }
        };
        ids.extend(page.jobs.iter().filter(|job| ours(job)).map(|job| job.id));
        after = page.next;
        if after.is_none() {
            break;
        }
        page_size = LARGER_PAGE;
    }
    if ids.is_empty() {
        tokio::select! {
            () = shared.stop_fetching.cancelled() => {}
            () = tokio::time::sleep(STORE_POLL) => {}
            () = shared.broker.wake().fetcher() => {}
        }
        return ids;
    }
    ids.shuffle(&mut rand::rng());
    ids.truncate(most);
    ids
}

/// After a failed claim: wait here until MySQL takes writes, instead of taking ids that nobody can claim.
async fn store_answers(shared: &Shared) -> bool {
    let mut pause = Duration::from_millis(100);
    while shared.store_trouble.load(Ordering::Relaxed) {
        if shared.stop_fetching.is_cancelled() {
            return false;
        }
        if shared.store.takes_writes(Duration::from_secs(2)).await {
            shared.store_trouble.store(false, Ordering::Relaxed);
            // Ids that were taken and could not be claimed are missing from the index.
            shared.reconcile.notify_one();
            return true;
        }
        tokio::select! {
            () = shared.stop_fetching.cancelled() => return false,
            () = tokio::time::sleep(pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)) => {}
        }
        pause = (pause * 2).min(Duration::from_secs(2));
    }
    true
}
