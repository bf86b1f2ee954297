//! The fetcher: the only loop that takes ids, and only while seats are free ([`worker_pool`](super::worker_pool)).
//!
//! Normally it takes from Redis: ids for all free seats in one round trip, and when there are none, one blocking pop.
//! As soon as any code in this process finds Redis out, it reads due jobs from MySQL, from the same lanes in the same
//! order. The claims are the same in both cases.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::seq::SliceRandom;

use super::EngineState;
use super::permits::Permit;
use super::queue_order::QueueOrder;
use super::skipped::Skipped;
use super::worker_pool::Seat;
use tickr_broker::OperatorSettings;
use tickr_index::{Fetch, Health, IndexError, Popped};
use tickr_job::{JobId, Timestamp};
use tickr_store::{Depth, DueCursor, DueLane, DueRange, DueRow, LinePage, StoreError};

/// A due job, its seat in this runner, and the permit of its queue.
pub(super) struct FetchedJob {
    pub(super) id: JobId,
    pub(super) seat: Seat,
    pub(super) permit: Permit,
}

/// Most ids taken in one round trip.
const MAX_AT_ONCE: usize = 256;
/// Ids that are checked together when the ready lists of a queue hold many ids of ended jobs, and how many times in a
/// row.
const STALE_PAGE: usize = 500;
const STALE_PAGES: usize = 20;
/// Time between two reads of due jobs from MySQL, while Redis is out and nothing wakes the fetcher.
const STORE_POLL: Duration = Duration::from_millis(200);
/// Pauses between tries of a Redis that failed the fetcher, before jitter. Meanwhile it reads from MySQL.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// Time between two looks whether the heartbeat is answered again, and the silence below which nothing is logged.
const BEAT_POLL: Duration = Duration::from_millis(20);
const FIRST_BEAT: Duration = Duration::from_secs(1);
/// Number of lanes whose due jobs are read from MySQL at a time.
const LINES_AT_ONCE: usize = 8;
/// Rows in one page, and pages read before the other lanes are read again, when a lane begins with jobs that this
/// runner may not take.
const LARGER_PAGE: usize = 2_000;
const LARGER_PAGES: usize = 8;
/// Rows that are read at first of a lane in which keys take turns, beside those that the free workers need: as many as
/// one key may have on their way to a worker.
const MAX_ON_THEIR_WAY: usize = 64;
/// Times that one look parks the jobs of a flood in such a lane.
const MAX_READ_AGAIN: usize = 3;
/// Time after which a lane is looked at again in which no job of a flood could be parked.
const PARK_AGAIN: Duration = Duration::from_millis(500);

/// Free all seats but one, before the fetcher waits for an id. The next jobs of order keys and of limit keys start on free
/// seats, without a way through Redis.
fn keep_one(free: &mut VecDeque<Seat>) {
    free.truncate(1);
}

/// Result of a read of due jobs from MySQL.
enum DueWork {
    /// Jobs for this runner.
    Found(Vec<(JobId, Permit)>),
    /// No job for this runner.
    Nothing,
    /// No job yet: the search behind skipped jobs has not reached their end.
    NotYet,
}

/// The fetcher of one runner.
pub(super) struct Fetcher {
    shared: Arc<EngineState>,
    fetch: Fetch,
    queue_order: QueueOrder,
    /// The settings that the queue order follows.
    settings: Arc<OperatorSettings>,
    /// Skipped jobs, by the position of their lane: jobs of kinds that this runner does not have, suspects that run or
    /// were put off, jobs that it gave back because it cannot read them, and jobs of locked keys of limits.
    skipped: HashMap<usize, Skipped>,
    /// The first jobs of the last looks in MySQL at lanes in which keys take turns, by the positions of the lanes.
    heads: HashMap<usize, JobId>,
    /// When a look parked no job of a flood, by the positions of the lanes.
    parked_none: HashMap<usize, Instant>,
    /// The last blocking pop waited for all lanes, and no id came. Then the next one needs no look before it.
    nothing_came: bool,
}

impl Fetcher {
    pub(super) fn new(shared: Arc<EngineState>) -> Self {
        let settings = shared.operator_settings.now();
        let queue_order = QueueOrder::new(&shared.settings.queues, &settings);
        let fetch = shared.index.fetch(queue_order.lines(), &shared.runner);
        Self {
            shared,
            fetch,
            queue_order,
            settings,
            skipped: HashMap::new(),
            heads: HashMap::new(),
            parked_none: HashMap::new(),
            nothing_came: false,
        }
    }

    /// Take ids until the runner stops, and call `start` with each of them.
    pub(super) async fn fetch_until_stopped(mut self, start: impl Fn(FetchedJob)) {
        let shared = Arc::clone(&self.shared);
        let (mut pause, mut again) = (FIRST_PAUSE, Instant::now());
        loop {
            shared.workers.drop_ahead_if_quiet();
            // Take seats before ids, so that every id taken here can start at once or soon.
            let first = tokio::select! {
                // The order matters: if a free seat were chosen before the stop, the fetcher would wait for another
                // blocking pop.
                biased;
                () = shared.stop_fetching.cancelled() => return,
                seat = shared.workers.seat() => seat,
            };
            let Ok(first) = first else { return };
            if shared.operator_settings.now().drained {
                drop(first);
                if !until_wanted(&shared).await {
                    return;
                }
                continue;
            }
            if !shared.heartbeats.is_beating(shared.settings.lease) {
                drop(first);
                until_beating(&shared).await;
                continue;
            }
            // Ids that are taken while MySQL fails cannot be claimed.
            if shared.store_trouble.is_known() {
                drop(first);
                tokio::select! {
                    () = shared.stop_fetching.cancelled() => return,
                    () = shared.store_trouble.until_over() => {}
                }
                continue;
            }
            let mut free = VecDeque::from([first]);
            while free.len() < MAX_AT_ONCE {
                let Some(seat) = shared.workers.another_seat() else { break };
                free.push_back(seat);
            }
            self.follow_settings();
            // A Redis without its master, or out of memory, answers with errors at once. Pause, so as not to flood it.
            let ids = if shared.index.health().now() == Health::Degraded || Instant::now() < again {
                self.take_from_store(&mut free).await
            } else if let Ok(ids) = self.take_unless_index_is_out(&mut free).await {
                pause = FIRST_PAUSE;
                ids
            } else {
                shared.reconcile.notify_one();
                again = Instant::now() + pause.mul_f64(0.5 + rand::random::<f64>() / 2.0);
                pause = (pause * 2).min(MAX_PAUSE);
                Vec::new()
            };
            for (id, permit) in ids {
                let Some(seat) = free.pop_front() else { break };
                start(FetchedJob { id, seat, permit });
            }
        }
    }

    fn follow_settings(&mut self) {
        let now = self.shared.operator_settings.now();
        if !Arc::ptr_eq(&now, &self.settings) {
            if now.queues != self.settings.queues {
                self.queue_order.follow(&now);
                self.skipped.clear();
                self.heads.clear();
                self.parked_none.clear();
                self.nothing_came = false;
            }
            self.settings = now;
        }
    }

    /// Call [`take_from_index`](Self::take_from_index), until any code in this process finds Redis out. A call to a
    /// server that has stalled may wait for long. So the call and its connection are dropped together, and no id is
    /// delivered to a connection that is no longer read. Then the fetcher reads from MySQL.
    async fn take_unless_index_is_out(
        &mut self,
        free: &mut VecDeque<Seat>,
    ) -> Result<Vec<(JobId, Permit)>, IndexError> {
        let shared = Arc::clone(&self.shared);
        let health = shared.index.health();
        let outages = health.outages();
        if health.now() == Health::Degraded {
            return Ok(Vec::new());
        }
        tokio::select! {
            biased;
            ids = self.take_from_index(free) => return ids,
            () = health.out_since(outages) => {}
        }
        self.fetch.abandon();
        Ok(Vec::new())
    }

    async fn take_from_index(&mut self, free: &mut VecDeque<Seat>) -> Result<Vec<(JobId, Permit)>, IndexError> {
        let permits = Arc::clone(&self.shared.permits);
        for queue in permits.stale_queues() {
            self.drop_stale(queue).await?;
        }
        if !std::mem::take(&mut self.nothing_came) {
            let (order, _) = self.queue_order.next_turn(|queue| permits.room(queue));
            let taken = self.fetch.take(free.len(), &order).await?;
            if taken.refill {
                self.shared.refill.notify_one();
            }
            if !taken.ids.is_empty() {
                return self.with_permits(taken.ids).await;
            }
        }
        // Set before the look for room: a permit that is freed in between ends the blocking pop.
        permits.fetcher_waits(true);
        let (order, left_alone) = self.queue_order.strict(|queue| permits.room(queue));
        permits.fetcher_waits(left_alone);
        keep_one(free);
        // A stop does not cancel the pop, because Redis would hand the next id to a connection that is no longer read.
        // The pop returns within a second, and an id taken meanwhile is put back for other runners.
        let popped = self.fetch.wait(&order).await?;
        permits.fetcher_waits(false);
        let Popped::Job(line, id) = popped else {
            self.nothing_came = popped == Popped::Nothing && !left_alone;
            return Ok(Vec::new());
        };
        self.follow_settings();
        let unwanted = self.settings.drained || self.queue_order.is_paused(self.queue_order.queue_of(line));
        if unwanted || self.shared.stop_fetching.is_cancelled() {
            self.fetch.put_back(line, id).await?;
            return Ok(Vec::new());
        }
        self.with_permits(vec![(line, id)]).await
    }

    /// Take the ids of ended jobs from the front of a queue's ready lists.
    ///
    /// A queue has as many claims at a time as this runner has free workers and the queue has permits. With few of them,
    /// one claim for each id whose job was cancelled, expired or ran without Redis would delay the queue for minutes. So
    /// MySQL is asked about many ids at once.
    async fn drop_stale(&mut self, queue: usize) -> Result<(), IndexError> {
        let whole = self.queue_order.whole_queue(queue);
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
                tracing::debug!(%error, "cannot tell yet which ids are those of ended jobs");
                return Ok(());
            }
            if left > 0 {
                break;
            }
        }
        self.shared.permits.clear_stale(queue);
        metrics::counter!("tickr_claims_dropped_total").increment(dropped as u64);
        Ok(())
    }

    /// Take a permit for each id. An id for which no permit is free goes back to its ready list.
    async fn with_permits(&mut self, ids: Vec<(usize, JobId)>) -> Result<Vec<(JobId, Permit)>, IndexError> {
        let mut permitted = Vec::with_capacity(ids.len());
        for (line, id) in ids {
            match self.shared.permits.take(self.queue_order.queue_of(line)) {
                Some(permit) => permitted.push((id, permit)),
                None => self.fetch.put_back(line, id).await?,
            }
        }
        Ok(permitted)
    }

    /// Take due jobs from MySQL.
    async fn take_from_store(&mut self, free: &mut VecDeque<Seat>) -> Vec<(JobId, Permit)> {
        let shared = Arc::clone(&self.shared);
        match self.look_in_store(free.len()).await {
            Ok(DueWork::Found(ids)) => return ids,
            Ok(DueWork::NotYet) => return Vec::new(),
            Ok(DueWork::Nothing) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot read due jobs");
                shared.store_trouble.note_unclaimed();
                return Vec::new();
            }
        }
        keep_one(free);
        tokio::select! {
            () = shared.stop_fetching.cancelled() => {}
            () = tokio::time::sleep(STORE_POLL) => {}
            () = shared.broker.wake().fetcher() => {}
        }
        Vec::new()
    }

    /// Read the same lanes in the same order as from Redis, without those of paused queues and of queues at their
    /// limit. Read more rows than needed and shuffle them, so that several runners rarely claim the same rows.
    async fn look_in_store(&mut self, most: usize) -> Result<DueWork, StoreError> {
        let shared = Arc::clone(&self.shared);
        let now = shared.store.clock().now();
        self.skipped.retain(|_, skipped| skipped.is_kept());
        let (order, _) = self.queue_order.next_turn(|queue| shared.permits.room(queue));
        let queues: HashSet<usize> = order.lines.iter().map(|place| self.queue_order.queue_of(*place)).collect();
        let names = queues.into_iter().map(|queue| shared.settings.queues[queue].clone()).collect();
        let filled: HashSet<DueLane> = shared.store.lines_of(names).await?.into_iter().collect();
        let lines: Vec<usize> =
            order.lines.into_iter().filter(|place| filled.contains(&self.queue_order.due_line(*place))).collect();
        let (mut taken, mut barred) = (Vec::new(), Vec::new());
        for places in lines.chunks(LINES_AT_ONCE) {
            for (place, mut page, mut found) in self.read_runnable(places, now, (most - taken.len()) * 4).await? {
                let left = most - taken.len();
                // Most lanes are empty, and are read once.
                if left > 0 && !found.is_empty() && self.keys_take_turns(place) {
                    (page, found) = self.read_in_turns(place, now, left).await?;
                }
                let whole = page.next.is_none();
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
        Ok(if taken.is_empty() { DueWork::Nothing } else { DueWork::Found(taken) })
    }

    /// Return whether a fair limit may apply to jobs of this lane.
    fn keys_take_turns(&self, place: usize) -> bool {
        let queue = &self.shared.settings.queues[self.queue_order.queue_of(place)];
        self.shared.store.may_share_fairly(queue)
    }

    /// Read the first rows of these lanes, and find the jobs that this runner can run, in random order.
    async fn read_runnable(
        &self,
        places: &[usize],
        now: Timestamp,
        most: usize,
    ) -> Result<Vec<(usize, LinePage, Vec<JobId>)>, StoreError> {
        let mut pages = Vec::with_capacity(places.len());
        for (place, page) in self.read_lines(places, now, most).await? {
            let found = self.runnable(&page).await?;
            pages.push((place, page, found));
        }
        Ok(pages)
    }

    /// Read the first rows of a lane to which a fair limit may apply, and find jobs for `left` free workers.
    ///
    /// From Redis the jobs of such a lane come in the order in which they became due or were let go, so the keys take
    /// turns. The same order is made here. In MySQL the jobs that were let go have the due times from before they were
    /// parked, so those of a flood stand in front for as long as it lasts. Jobs of the flood that are not parked yet
    /// stand between them and the jobs of other keys. They are parked here, without a worker for each of them.
    async fn read_in_turns(
        &mut self,
        place: usize,
        now: Timestamp,
        left: usize,
    ) -> Result<(LinePage, Vec<JobId>), StoreError> {
        let shared = Arc::clone(&self.shared);
        let queue = &shared.settings.queues[self.queue_order.queue_of(place)];
        let (mut rows, mut reads) = (left * 4 + MAX_ON_THEIR_WAY, 0);
        loop {
            let Some((_, page, mut found)) = self.read_runnable(&[place], now, rows).await?.pop() else {
                return Ok((
                    LinePage { line: self.queue_order.due_line(place), rows: Vec::new(), next: None },
                    Vec::new(),
                ));
            };
            // Jobs that another limit let go keep the place of their due time, as they do in Redis.
            let takes_turns =
                |row: &&DueRow| row.kind.as_ref().is_some_and(|kind| shared.store.shares_fairly(kind, queue));
            let in_turns: HashSet<JobId> = page.rows.iter().filter(takes_turns).map(|row| row.id).collect();
            let in_turns: Vec<JobId> = found.iter().copied().filter(|id| in_turns.contains(id)).collect();
            let let_go = if in_turns.is_empty() { HashMap::new() } else { shared.store.let_go_at(&in_turns).await? };
            let has_too_few = found.len() - let_go.len() < left * 4 && page.next.is_some() && rows < LARGER_PAGE;
            let flood: Vec<JobId> = in_turns.into_iter().filter(|id| !let_go.contains_key(id)).collect();
            if has_too_few || (reads < MAX_READ_AGAIN && self.park_flood(place, &flood, left).await) {
                (rows, reads) = (LARGER_PAGE, reads + 1);
                continue;
            }
            let due: HashMap<JobId, Timestamp> = page.rows.iter().map(|row| (row.id, row.execute_at)).collect();
            found.sort_by_key(|id| let_go.get(id).or_else(|| due.get(id)).copied());
            found.truncate(left * 4);
            self.keep_head(place, &mut found);
            return Ok((page, found));
        }
    }

    /// Park the jobs of a flood in this lane, if these jobs are more than `left` free workers need. Return whether some
    /// were parked. A look that parked none is not repeated at once: each would cost a transaction. An error loses no
    /// job, because a claim parks them as well.
    async fn park_flood(&mut self, place: usize, flood: &[JobId], left: usize) -> bool {
        let in_vain = self.parked_none.get(&place).is_some_and(|at| at.elapsed() < PARK_AGAIN);
        if flood.len() <= left * 4 || in_vain || self.shared.stop_fetching.is_cancelled() {
            return false;
        }
        match self.shared.store.park_behind_others(flood).await {
            Ok(0) => {}
            Ok(_) => return true,
            Err(error) => tracing::debug!(%error, "cannot park the jobs of a flood"),
        }
        self.parked_none.insert(place, Instant::now());
        false
    }

    /// Leave the first of these jobs in front, so that it starts next however few workers are free, and mix the others,
    /// so that several runners rarely claim the same. A job that was in front at the last look as well is mixed with
    /// the others: another session may keep it.
    fn keep_head(&mut self, place: usize, found: &mut [JobId]) {
        let Some((head, others)) = found.split_first_mut() else { return };
        if self.heads.insert(place, *head) == Some(*head) {
            found.shuffle(&mut rand::rng());
        } else {
            others.shuffle(&mut rand::rng());
        }
    }

    /// Read further behind jobs that this runner may not take. There may be any number of them at the front of a lane,
    /// so it reads larger pages, and reads the other lanes again in between.
    async fn look_further(&mut self, barred: &[usize], now: Timestamp, most: usize) -> Result<DueWork, StoreError> {
        let mut taken = Vec::new();
        let mut goes_on = false;
        for place in barred {
            for _ in 0..LARGER_PAGES.div_ceil(barred.len()) {
                let Some((_, page)) = self.read_lines(&[*place], now, LARGER_PAGE).await?.pop() else { break };
                let found = self.runnable(&page).await?;
                if found.is_empty() && page.next.is_some() {
                    self.skip(*place, &page);
                    continue;
                }
                self.end_of_skipped(*place);
                self.take_permitted(*place, found, most, &mut taken);
                break;
            }
            if !taken.is_empty() {
                return Ok(DueWork::Found(taken));
            }
            goes_on |= self.skipped.get(place).is_some_and(Skipped::goes_on);
        }
        Ok(if goes_on { DueWork::NotYet } else { DueWork::Nothing })
    }

    /// Read the first rows of these lanes behind the skipped ones.
    async fn read_lines(
        &self,
        places: &[usize],
        now: Timestamp,
        most: usize,
    ) -> Result<Vec<(usize, LinePage)>, StoreError> {
        let range = |place: &usize| DueRange {
            line: self.queue_order.due_line(*place),
            after: self.skipped.get(place).map_or(DueCursor::FRONT, Skipped::until),
            until: now,
        };
        let pages = self.shared.store.due_rows(places.iter().map(range).collect(), most, Depth::Waiting).await?;
        Ok(places.iter().copied().zip(pages).collect())
    }

    /// Return the jobs that this runner can run, in random order.
    async fn runnable(&self, page: &LinePage) -> Result<Vec<JobId>, StoreError> {
        let has_kind = |row: &&DueRow| {
            row.kind.as_ref().is_some_and(|kind| self.shared.registry.runnable(kind.as_str()).is_some())
        };
        let mut found: Vec<JobId> = page.rows.iter().filter(has_kind).map(|row| row.id).collect();
        found.retain(|id| !self.shared.suspects.is_resting(*id) && !self.shared.unread.is_resting(*id));
        if self.shared.store.knows_locked_keys() {
            let locked = self.shared.store.behind_locked_keys(&found).await?;
            found.retain(|id| !locked.contains(id));
        }
        found.shuffle(&mut rand::rng());
        Ok(found)
    }

    fn take_permitted(&self, place: usize, found: Vec<JobId>, most: usize, taken: &mut Vec<(JobId, Permit)>) {
        let queue = self.queue_order.queue_of(place);
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
            let known = self.skipped.entry(place).and_modify(|skipped| skipped.go_on(until));
            known.or_insert_with(|| Skipped::new(until));
        }
    }

    fn end_of_skipped(&mut self, place: usize) {
        if let Some(skipped) = self.skipped.get_mut(&place) {
            skipped.end();
        }
    }
}

/// Wait while an operator keeps this runner drained. Return false when the runner stops.
async fn until_wanted(shared: &EngineState) -> bool {
    tracing::info!("drained by an operator: taking no new work, running jobs continue");
    let mut settings = shared.operator_settings.listen();
    let wanted = tokio::select! {
        biased;
        () = shared.stop_fetching.cancelled() => false,
        heard = settings.wait_for(|settings| !settings.drained) => heard.is_ok(),
    };
    if wanted {
        tracing::info!("drain ended, taking work again");
    }
    wanted
}

/// Wait while the heartbeat is not answered. A job started now would be stopped when its lease ends; a job that takes
/// longer would be started again and again.
async fn until_beating(shared: &EngineState) {
    let since = Instant::now();
    let mut told = false;
    while !shared.stop_fetching.is_cancelled() && !shared.heartbeats.is_beating(shared.settings.lease) {
        // The first heartbeat of a runner takes a moment; that is not worth a log line.
        if !told && since.elapsed() > FIRST_BEAT {
            tracing::warn!("the heartbeat is not answered: this runner takes no new work until it is");
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
}
