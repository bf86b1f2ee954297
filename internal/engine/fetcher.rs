//! The fetcher: the only one who takes ids, and only while workers are free to start them.
//!
//! Normally from Redis: everything there is for the free slots in one round trip, and when there is nothing, one
//! blocking pop. As soon as anybody here finds Redis out, it reads due work from the store, the same lines in the same
//! order; the claims are the same.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
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
use crate::job::{JobId, Timestamp};
use crate::store::{Depth, DueCursor, DueLine, DueRange, DueRow, LinePage, StoreError};

/// A due job, the slot it will run in, and the permit of its queue.
pub(super) struct Ticket {
    pub(super) id: JobId,
    pub(super) slot: OwnedSemaphorePermit,
    pub(super) permit: Permit,
}

/// Most ids taken in one round trip.
const MOST_AT_ONCE: usize = 256;
/// Ids that are looked at together when a queue with a limit has many of ended jobs, and how often in a row.
const STALE_PAGE: usize = 500;
const STALE_PAGES: usize = 20;
/// How often the store is asked for due work while Redis is out and nothing wakes us.
const STORE_POLL: Duration = Duration::from_millis(200);
/// Pauses between tries of a Redis that failed the fetcher, before jitter. The store is asked meanwhile.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often is looked whether the heartbeat is answered again, and how long a silence is not worth a word.
const BEAT_POLL: Duration = Duration::from_millis(20);
const FIRST_BEAT: Duration = Duration::from_secs(1);
/// Lines of which due work is read from the store at a time.
const LINES_AT_ONCE: usize = 8;
/// Rows in one page of the store, and pages read between two looks at the other lines, when a line begins with work that
/// this runner may not take.
const LARGER_PAGE: usize = 2_000;
const LARGER_PAGES: usize = 8;
/// How long it is believed that what was skipped need not be looked at again, once its end was found; and how long a search
/// for the end may be interrupted.
const SKIPPED_FOR: Duration = Duration::from_secs(2);
const SEARCHED_FOR: Duration = Duration::from_secs(10);

/// Due work straight from the store that this runner may not take, at the front of a line: jobs of kinds that it does not
/// have, suspects that run or were put off, and jobs that it gave back because it cannot read them.
#[derive(Clone, Copy, Debug)]
struct Skipped {
    /// Where to go on looking.
    until: DueCursor,
    /// When it was last seen.
    seen: Instant,
    /// Its end was not found yet.
    goes_on: bool,
}

/// What a look for due work in the store came to.
enum Looked {
    /// Work for this runner.
    Found(Vec<(JobId, Permit)>),
    /// There is none.
    Nothing,
    /// None yet, behind some that it may not take.
    GoesOn,
}

/// The fetcher of one runner.
pub(super) struct Fetcher {
    shared: Arc<Shared>,
    fetch: Fetch,
    service: Service,
    /// What the service follows.
    settings: Arc<Settings>,
    /// By the place of the line.
    skipped: HashMap<usize, Skipped>,
}

impl Fetcher {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let settings = shared.controls.now();
        let service = Service::new(&shared.settings.queues, &settings);
        let fetch = shared.index.fetch(service.lines(), &shared.runner);
        Self { shared, fetch, service, settings, skipped: HashMap::new() }
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
                drop(first);
                if !until_wanted(&shared).await {
                    return;
                }
                continue;
            }
            if !shared.rhythm.is_beating(shared.settings.lease) {
                drop(first);
                until_beating(&shared).await;
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
                self.skipped.clear();
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
        for queue in permits.stale_queues() {
            self.drop_stale(queue).await?;
        }
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

    /// Take the ids of ended jobs from the front of a queue's lists.
    ///
    /// As many jobs of a queue are claimed at a time as it has permits. With few, a claim for each id whose job was
    /// cancelled or ran without Redis would hold up the queue for minutes, so MySQL is asked about many at once.
    async fn drop_stale(&mut self, queue: usize) -> Result<(), IndexError> {
        let whole = self.service.whole_queue(queue);
        let mut dropped = 0;
        for _ in 0..STALE_PAGES {
            let taken = self.fetch.take(STALE_PAGE, &whole).await?;
            if taken.refill {
                self.shared.refill.notify_one();
            }
            if taken.ids.is_empty() {
                break;
            }
            let ids = taken.ids.iter().map(|(_, id)| *id).collect();
            let waiting = self.shared.store.still_waiting(ids).await;
            let mut kept: BTreeMap<usize, Vec<JobId>> = BTreeMap::new();
            for (place, id) in &taken.ids {
                if waiting.as_ref().map_or(true, |waiting| waiting.contains(id)) {
                    kept.entry(*place).or_default().push(*id);
                }
            }
            let left: usize = kept.values().map(Vec::len).sum();
            dropped += taken.ids.len() - left;
            for (place, ids) in kept {
                self.fetch.put_all_back(place, &ids).await?;
            }
            if let Err(error) = waiting {
                tracing::debug!(%error, "cannot tell the ids of ended jobs from others yet");
                return Ok(());
            }
            if left > 0 {
                break;
            }
        }
        self.shared.permits.dropped_stale(queue);
        metrics::counter!("tickr_claims_dropped_total").increment(dropped as u64);
        Ok(())
    }

    /// The ids with permits of their queues. One that finds none any more goes back.
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

    /// Due work straight from the store.
    async fn take_from_store(&mut self, most: usize) -> Vec<(JobId, Permit)> {
        let shared = Arc::clone(&self.shared);
        match self.look_in_store(most).await {
            Ok(Looked::Found(ids)) => return ids,
            Ok(Looked::GoesOn) => return Vec::new(),
            Ok(Looked::Nothing) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot read due jobs");
                shared.store_failed();
                return Vec::new();
            }
        }
        tokio::select! {
            () = shared.stop_fetching.cancelled() => {}
            () = tokio::time::sleep(STORE_POLL) => {}
            () = shared.broker.wake().fetcher() => {}
        }
        Vec::new()
    }

    /// The same lines in the same order as from Redis: those of paused queues and of queues at their limit are not even
    /// read. Reads more than is needed and shuffles, so that several runners rarely claim the same rows.
    async fn look_in_store(&mut self, most: usize) -> Result<Looked, StoreError> {
        let shared = Arc::clone(&self.shared);
        let now = shared.store.clock().now();
        self.skipped
            .retain(|_, skipped| skipped.seen.elapsed() < if skipped.goes_on { SEARCHED_FOR } else { SKIPPED_FOR });
        let (order, _) = self.service.next_turn(|queue| shared.permits.room(queue));
        let queues: HashSet<usize> = order.lines.iter().map(|place| self.service.queue_of(*place)).collect();
        let names = queues.into_iter().map(|queue| shared.settings.queues[queue].clone()).collect();
        let filled: HashSet<DueLine> = shared.store.lines_of(names).await?.into_iter().collect();
        let lines: Vec<usize> =
            order.lines.into_iter().filter(|place| filled.contains(&self.service.due_line(*place))).collect();
        let (mut taken, mut barred) = (Vec::new(), Vec::new());
        for places in lines.chunks(LINES_AT_ONCE) {
            let left = most - taken.len();
            for (place, page) in self.read_lines(places, now, left * 4).await? {
                let whole = page.next.is_none();
                let found = self.runnable(&page);
                if found.is_empty() && !whole {
                    barred.push(place);
                    self.skip(place, &page);
                } else {
                    self.end_of_skipped(place);
                }
                self.take_permitted(place, found, most, &mut taken);
            }
            if taken.len() == most {
                break;
            }
        }
        if taken.is_empty() && !barred.is_empty() {
            return self.look_further(&barred, now, most).await;
        }
        Ok(if taken.is_empty() { Looked::Nothing } else { Looked::Found(taken) })
    }

    /// What this runner may not take stands in front in any number. So it reads on, in larger pages, and looks at the other
    /// lines again in between.
    async fn look_further(&mut self, barred: &[usize], now: Timestamp, most: usize) -> Result<Looked, StoreError> {
        let mut taken = Vec::new();
        let mut goes_on = false;
        for place in barred {
            for _ in 0..LARGER_PAGES.div_ceil(barred.len()) {
                let Some((_, page)) = self.read_lines(&[*place], now, LARGER_PAGE).await?.pop() else { break };
                let found = self.runnable(&page);
                if found.is_empty() && page.next.is_some() {
                    self.skip(*place, &page);
                    continue;
                }
                self.end_of_skipped(*place);
                self.take_permitted(*place, found, most, &mut taken);
                break;
            }
            if !taken.is_empty() {
                return Ok(Looked::Found(taken));
            }
            goes_on |= self.skipped.get(place).is_some_and(|skipped| skipped.goes_on);
        }
        Ok(if goes_on { Looked::GoesOn } else { Looked::Nothing })
    }

    /// The first rows of these lines behind what is skipped.
    async fn read_lines(
        &self,
        places: &[usize],
        now: Timestamp,
        most: usize,
    ) -> Result<Vec<(usize, LinePage)>, StoreError> {
        let range = |place: &usize| DueRange {
            line: self.service.due_line(*place),
            after: self.skipped.get(place).map_or(DueCursor::FRONT, |skipped| skipped.until),
            until: now,
        };
        let pages = self.shared.store.due_rows(places.iter().map(range).collect(), most, Depth::Waiting).await?;
        Ok(places.iter().copied().zip(pages).collect())
    }

    /// Those that this runner can run, in any order.
    fn runnable(&self, page: &LinePage) -> Vec<JobId> {
        let has_kind =
            |row: &&DueRow| row.kind.as_ref().is_some_and(|kind| self.shared.registry.get(kind.as_str()).is_some());
        let mut found: Vec<JobId> = page.rows.iter().filter(has_kind).map(|row| row.id).collect();
        found.retain(|id| !self.shared.suspects.rests(*id) && !self.shared.unread.rests(*id));
        found.shuffle(&mut rand::rng());
        found
    }

    fn take_permitted(&self, place: usize, found: Vec<JobId>, most: usize, taken: &mut Vec<(JobId, Permit)>) {
        let queue = self.service.queue_of(place);
        for id in found {
            if taken.len() == most {
                return;
            }
            let Some(permit) = self.shared.permits.take(queue) else { return };
            taken.push((id, permit));
        }
    }

    fn skip(&mut self, place: usize, page: &LinePage) {
        if let Some(until) = page.next {
            self.skipped.insert(place, Skipped { until, seen: Instant::now(), goes_on: true });
        }
    }

    fn end_of_skipped(&mut self, place: usize) {
        if let Some(skipped) = self.skipped.get_mut(&place).filter(|skipped| skipped.goes_on) {
            (skipped.seen, skipped.goes_on) = (Instant::now(), false);
        }
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

/// While the heartbeat is not answered: wait here. What would be started now is stopped when its lease ends, so that jobs
/// which take longer would be started again and again.
async fn until_beating(shared: &Shared) {
    let since = Instant::now();
    let gauge = metrics::gauge!("tickr_fetching");
    let mut told = false;
    while !shared.stop_fetching.is_cancelled() && !shared.rhythm.is_beating(shared.settings.lease) {
        // The first beat of a runner takes a moment, and is no news.
        if !told && since.elapsed() > FIRST_BEAT {
            tracing::warn!("the heartbeat is not answered: this runner takes no new work until it is");
            gauge.set(0.0);
            told = true;
        }
        tokio::select! {
            () = shared.stop_fetching.cancelled() => {}
            () = tokio::time::sleep(BEAT_POLL) => {}
        }
    }
    if told {
        tracing::info!(after_ms = since.elapsed().as_millis(), "the heartbeat is answered again, taking work");
    }
    gauge.set(1.0);
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
