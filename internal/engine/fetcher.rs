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
use super::permits::Permit;
use super::service::Service;
use crate::broker::Settings;
use crate::index::{Fetch, Health, IndexError, Popped};
use crate::job::JobId;
use crate::store::{DueCursor, DueJob};

/// A due job, the slot it will run in, and the permit of its queue.
pub(super) struct Ticket {
    pub(super) id: JobId,
    pub(super) slot: OwnedSemaphorePermit,
    pub(super) permit: Permit,
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

/// Due work straight from the store that this runner may not take now, in front of what it may: where to go on looking,
/// and since when it is known.
type Skipped = Option<(DueCursor, Instant)>;

/// How long it is believed that what was skipped need not be looked at again.
const SKIPPED_FOR: Duration = Duration::from_secs(2);

/// The fetcher of one runner.
pub(super) struct Fetcher {
    shared: Arc<Shared>,
    fetch: Fetch,
    service: Service,
    /// What the service follows.
    settings: Arc<Settings>,
    skipped: Skipped,
}

impl Fetcher {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let settings = shared.controls.now();
        let service = Service::new(&shared.settings.queues, &settings);
        let fetch = shared.index.fetch(service.lines(), &shared.runner);
        Self { shared, fetch, service, settings, skipped: None }
    }

    pub(super) async fn fetch_until_stopped(mut self, slots: Arc<Semaphore>, entrance: mpsc::Sender<Ticket>) {
        let shared = Arc::clone(&self.shared);
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
            if shared.controls.now().drained {
                // The slot is not kept meanwhile: the ward needs all of them for what it has begun.
                drop(first);
                if !until_wanted(&shared).await {
                    return;
                }
                continue;
            }
            if !store_answers(&shared).await {
                continue;
            }
            let mut free = VecDeque::from([first]);
            while free.len() < MOST_AT_ONCE {
                let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else { break };
                free.push_back(slot);
            }
            self.follow_settings();
            // A dead master or a full Redis answers errors at once: never hammer it.
            let ids = if shared.index.health().now() == Health::Degraded || Instant::now() < again {
                self.take_from_store(free.len()).await
            } else if let Ok(ids) = self.take_unless_index_is_out(free.len()).await {
                pause = FIRST_PAUSE;
                ids
            } else {
                shared.reconcile.notify_one();
                again = Instant::now() + pause.mul_f64(0.5 + rand::random::<f64>() / 2.0);
                pause = (pause * 2).min(LONGEST_PAUSE);
                Vec::new()
            };
            for (id, permit) in ids {
                let Some(slot) = free.pop_front() else { break };
                if entrance.send(Ticket { id, slot, permit }).await.is_err() {
                    return;
                }
            }
        }
    }

    fn follow_settings(&mut self) {
        let now = self.shared.controls.now();
        if !Arc::ptr_eq(&now, &self.settings) {
            if now.queues != self.settings.queues {
                self.service.follow(&now);
                self.skipped = None;
            }
            self.settings = now;
        }
    }

    /// As [`take_from_index`](Self::take_from_index), until anybody here finds Redis out. What waits on a server that has stalled may
    /// wait for long; the call and its connection are dropped together, so that no answer comes to a connection that nobody
    /// reads, and the store is asked.
    async fn take_unless_index_is_out(&mut self, most: usize) -> Result<Vec<(JobId, Permit)>, IndexError> {
        let shared = Arc::clone(&self.shared);
        let health = shared.index.health();
        let outages = health.outages();
        if health.now() == Health::Degraded {
            return Ok(Vec::new());
        }
        tokio::select! {
            biased;
            ids = self.take_from_index(most) => return ids,
            () = health.out_since(outages) => {}
        }
        self.fetch.abandon();
        Ok(Vec::new())
    }

    async fn take_from_index(&mut self, most: usize) -> Result<Vec<(JobId, Permit)>, IndexError> {
        let permits = Arc::clone(&self.shared.permits);
        let (order, _) = self.service.next_turn(|queue| permits.room(queue));
        let taken = self.fetch.take(most, &order).await?;
        if taken.refill {
            self.shared.refill.notify_one();
        }
        if !taken.ids.is_empty() {
            return self.with_permits(taken.ids).await;
        }
        // Said before the look for room: a permit that is given back in between wakes the pop.
        permits.fetcher_waits(true);
        let (order, left_alone) = self.service.strict(|queue| permits.room(queue));
        permits.fetcher_waits(left_alone);
        // Not cancelled when the runner stops, because Redis would hand the next id to a connection that nobody reads. It
        // returns within a second, and what it took meanwhile is for somebody else.
        let popped = self.fetch.wait(&order).await?;
        permits.fetcher_waits(false);
        let Popped::Job(line, id) = popped else { return Ok(Vec::new()) };
        self.follow_settings();
        let unwanted = self.settings.drained || self.service.is_paused(self.service.queue_of(line));
        if unwanted || self.shared.stop_fetching.is_cancelled() {
            self.fetch.put_back(line, id).await?;
            return Ok(Vec::new());
        }
        self.with_permits(vec![(line, id)]).await
    }

    /// The ids with permits of their queues. One for which the ward was quicker goes back.
    async fn with_permits(&mut self, ids: Vec<(usize, JobId)>) -> Result<Vec<(JobId, Permit)>, IndexError> {
        let mut permitted = Vec::with_capacity(ids.len());
        for (line, id) in ids {
            match self.shared.permits.take(self.service.queue_of(line)) {
                Some(permit) => permitted.push((id, permit)),
                None => self.fetch.put_back(line, id).await?,
            }
        }
        Ok(permitted)
    }

    /// Due work straight from the store. Reads more than is needed and shuffles, so that several runners rarely claim the
    /// same rows. What others must run, and what stands still, may stand in front in any number, so it reads on, in bounded
    /// pages, until it finds work for this runner, and remembers for a moment how far it came.
    async fn take_from_store(&mut self, most: usize) -> Vec<(JobId, Permit)> {
        let shared = Arc::clone(&self.shared);
        let now = shared.store.clock().now();
        self.skipped.take_if(|(_, since)| since.elapsed() > SKIPPED_FOR);
        let (mut found, mut after) = (Vec::new(), self.skipped.map(|(place, _)| place));
        let (mut page_size, mut hopeless) = (most * 4 + shared.live.len(), true);
        while found.is_empty() && !shared.stop_fetching.is_cancelled() {
            let page = match shared.store.due_page(after, now, page_size).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(%error, "cannot read due jobs");
                    shared.store_failed();
                    return Vec::new();
                }
            };
            hopeless &= page.jobs.iter().all(|job| !self.serves(job));
            found.extend(page.jobs.into_iter().filter_map(|job| self.may_run(&job)));
            after = page.next;
            let Some(place) = page.next else { break };
            if hopeless {
                let since = self.skipped.map_or_else(Instant::now, |(_, since)| since);
                self.skipped = Some((place, since));
            }
            page_size = LARGER_PAGE;
        }
        // Urgent ones first, and those of a rank in any order.
        found.shuffle(&mut rand::rng());
        found.sort_by_key(|(rank, _, _)| *rank);
        let permitted = found.into_iter().filter_map(|(_, queue, id)| Some((id, shared.permits.take(queue)?)));
        let ids: Vec<(JobId, Permit)> = permitted.take(most).collect();
        if ids.is_empty() {
            tokio::select! {
                () = shared.stop_fetching.cancelled() => {}
                () = tokio::time::sleep(STORE_POLL) => {}
                () = shared.broker.wake().fetcher() => {}
            }
        }
        ids
    }

    /// Could this runner run it, had it room?
    fn serves(&self, job: &DueJob) -> bool {
        let queue = self.service.place_of(&job.queue);
        queue.is_some_and(|queue| !self.service.is_paused(queue))
            && self.shared.registry.get(job.kind.as_str()).is_some()
    }

    /// May this runner run it now? Then its rank, the place of its queue, and its id.
    fn may_run(&self, job: &DueJob) -> Option<(usize, usize, JobId)> {
        let queue = self.service.place_of(&job.queue)?;
        let may = self.serves(job)
            && self.shared.permits.room(queue) != Some(0)
            && !self.shared.ward.keeps(job.id)
            && !self.shared.unread.rests(job.id);
        may.then(|| (self.service.rank(queue, job.priority), queue, job.id))
    }
}

/// While this runner is asked to take no new work: wait here until it may again. False when it stops.
async fn until_wanted(shared: &Shared) -> bool {
    tracing::info!("asked to take no new work; what runs goes on");
    let mut settings = shared.controls.listen();
    let wanted = tokio::select! {
        biased;
        () = shared.stop_fetching.cancelled() => false,
        heard = settings.wait_for(|settings| !settings.drained) => heard.is_ok(),
    };
    if wanted {
        tracing::info!("takes work again");
    }
    wanted
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
