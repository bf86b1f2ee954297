//! Serves the requests for jobs of remote workers that wait at this process.
//!
//! One loop serves all of them. It takes ids only while a request waits, from the lanes of the queues that the waiting
//! workers serve, and claims each job for a worker: with its id, its kinds and its lease. So the claims, the limits and
//! the order of queues are those of every other runner, and this process holds nothing of the attempt: when it stops, the
//! worker goes on with another one.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio_util::task::TaskTracker;

use super::kinds::hint_due_jobs;
use super::queue_order::{QueueOrder, is_paused};
use super::skipped::Skipped;
use super::{EngineState, executor};
use tickr_broker::{OperatorSettings, Poll};
use tickr_event::Event;
use tickr_index::{Fetch, Health, Popped};
use tickr_job::{JobId, Name, RunnerId, limits};
use tickr_store::{
    Claim, Claimed, Depth, DueCursor, DueJob, DueLane, DueRange, MAX_REMOTE_CLAIM, MayJudge, RemoteClaims, StoreError,
};

/// Most ids taken in one round trip.
const MAX_AT_ONCE: usize = 256;
/// Most bytes of payloads and checkpoints in one answer with several jobs. This process holds an answer several times
/// over, and on a slow line a larger one would take more of a short lease than an answer has for its way.
const MAX_ANSWER_BYTES: usize = 4 << 20;
/// Bytes of the payload and the checkpoint of the largest job.
const LARGEST_JOB_BYTES: usize = limits::MAX_PAYLOAD_BYTES + limits::MAX_CHECKPOINT_BYTES;
/// Time between two looks whether waiting workers are drained, and between two tries of a queue that has no room.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const FULL_FOR: Duration = Duration::from_millis(300);
/// Time between two reads of due jobs from MySQL, while Redis is out and nothing wakes the loop.
const STORE_POLL: Duration = Duration::from_millis(200);
/// Rows in a page of a lane, and pages read in a row, while Redis is out.
const STORE_PAGE: usize = 1_000;
const STORE_PAGES: usize = 8;
/// Pause instead, while a lane is searched whose front no waiting request may have.
const SEARCH_POLL: Duration = Duration::from_millis(10);
/// Most queues whose lanes are kept when no request waits for them any more.
const MAX_QUEUES: usize = 200;
/// Shortest time for which the index keeps a job that it delivered too early.
const NOT_DUE_PAUSE: TimeDelta = TimeDelta::milliseconds(3);
/// Time for which the index hides a job whose kind no waiting request has: short if a living runner that serves its queue
/// has it, long if none has.
const OTHERS_KIND_PAUSE_MS: i64 = 100;
const NOBODYS_KIND_PAUSE: TimeDelta = TimeDelta::seconds(5);
/// Shortest time for which a suspect is put off that no worker was there for. The longest is twice that.
const SUSPECT_PAUSE: Duration = Duration::from_millis(500);
/// Time for which a job is not read from MySQL again, while Redis is out, whose claim had no effect: it has ended, or
/// another session locks its row.
const GONE_PAUSE: Duration = Duration::from_secs(1);
/// Most jobs that are remembered as put off, which bounds the memory.
const MAX_RESTING: usize = 4_096;
/// Longest time for which a worker gets no other job so that it can have a suspect, and the pause between two looks
/// whether it holds nothing by now.
const SET_ASIDE_FOR: Duration = Duration::from_secs(10);
const EMPTY_LOOK_EVERY: Duration = Duration::from_millis(200);

/// Time without a waiting request for a kind after which the kind counts as new here, and the time for which it does.
/// Meanwhile other processes learn that a worker has it, and do not hide its jobs for long any more.
const KIND_FORGOTTEN_AFTER: Duration = Duration::from_secs(4);
const KIND_NEW_FOR: Duration = Duration::from_secs(6);

/// A kind for which a request waits or waited here.
struct SeenKind {
    /// Arrival of the request with which the kind became known.
    since: Instant,
    /// When a request for it was last seen.
    last: Instant,
}

/// What comes back from a claim.
enum Back {
    /// Nothing was won: the request waits again.
    Poll(Poll),
    /// The job has a kind that the worker does not have.
    OtherKind(DueJob),
    /// The job is a suspect, and the worker has other jobs.
    Suspect(DueJob),
    /// The request of the worker that is set aside is over, and the worker still holds jobs.
    StillSetAside(SetAside),
    /// The worker that was set aside for a suspect is not set aside any more. The suspect is put off if it was not
    /// claimed.
    SuspectServed(Option<DueJob>),
    /// The claim of the job had no effect.
    Gone(JobId),
    /// The queue runs as many jobs as its limit allows.
    Full(Name),
}

/// A worker that gets no other job, so that it can have a suspect once it holds nothing.
struct SetAside {
    /// None: the next request that may have the suspect decides which worker it is.
    worker: Option<Arc<RunnerId>>,
    job: DueJob,
    until: Instant,
}

impl SetAside {
    /// Set the worker of a request aside, from now on.
    fn of(poll: &Poll, job: DueJob) -> Self {
        Self { worker: Some(Arc::clone(&poll.fetch.worker.id)), job, until: Instant::now() + SET_ASIDE_FOR }
    }
}

/// Whether a worker is set aside for a suspect. There is at most one, so that the others keep the ordinary jobs going.
enum Aside {
    NoWorker,
    /// A request of the worker waits for this suspect, until the worker holds nothing.
    Asking(JobId),
    /// No request waits for it here at this moment.
    Between(SetAside),
}

impl Aside {
    fn is_for(&self, job: JobId) -> bool {
        match self {
            Self::NoWorker => false,
            Self::Asking(id) => *id == job,
            Self::Between(aside) => aside.job.id == job,
        }
    }
}

/// A job that a claim is about to try, with its lane.
struct Taken {
    id: JobId,
    lane: DueLane,
    /// Its kind, if it was read.
    kind: Option<Name>,
}

/// The front of a lane of which no waiting request may have a job, while Redis is out. Any number of jobs of other kinds may
/// be there.
struct Front {
    skipped: Skipped,
    /// The kinds of the requests for this lane. A request of another kind may have a job of the front.
    kinds: BTreeSet<Name>,
}

/// The requests that wait, and what they wait for.
struct WaitingPolls {
    shared: Arc<EngineState>,
    waiting: Vec<Poll>,
    sender: UnboundedSender<Back>,
    back: UnboundedReceiver<Back>,
    /// Queues whose lanes are known to the connection, and the place of each. The API bounds the number of queues for
    /// which requests wait.
    queues: Vec<Name>,
    places: HashMap<Name, usize>,
    order: QueueOrder,
    settings: Arc<OperatorSettings>,
    /// Queues without room, each with the moment to try again.
    full: HashMap<Name, Instant>,
    /// The kinds of the requests.
    seen: HashMap<Name, SeenKind>,
    looked: Instant,
    aside: Aside,
    /// Suspects that are put off, each with the moment when that ends.
    put_off: Vec<(Instant, DueJob)>,
    /// Jobs that are not read from MySQL again before these moments.
    resting: HashMap<JobId, Instant>,
    fronts: HashMap<DueLane, Front>,
    /// The name under which a blocking pop is woken.
    nudged: RunnerId,
    claims: TaskTracker,
}

/// Serve the requests for jobs until the runner stops. Then each of them gets an empty answer at once.
pub(super) async fn serve_until_stopped(shared: Arc<EngineState>) {
    let mut exit = shared.polls.lock().await;
    let Some(entrance) = exit.as_mut() else { return };
    let mut polls = WaitingPolls::new(&shared);
    let mut fetch = shared.index.fetch(polls.order.lines(), &polls.nudged);
    polls.serve(entrance, &mut fetch).await;
    entrance.close();
    while let Ok(poll) = entrance.try_recv() {
        polls.waiting.push(poll);
    }
    polls.claims.close();
    loop {
        polls.answer_all();
        tokio::select! {
            () = polls.claims.wait() => break,
            back = polls.back.recv() => if let Some(back) = back { polls.take_back(back) },
        }
    }
    while let Ok(back) = polls.back.try_recv() {
        polls.take_back(back);
    }
    polls.answer_all();
    if let Aside::Between(aside) = polls.aside {
        hide_suspect(&shared, aside.job, SUSPECT_PAUSE);
    }
}

impl WaitingPolls {
    fn new(shared: &Arc<EngineState>) -> Self {
        let (sender, back) = mpsc::unbounded_channel();
        let settings = shared.operator_settings.now();
        Self {
            shared: Arc::clone(shared),
            waiting: Vec::new(),
            sender,
            back,
            queues: Vec::new(),
            places: HashMap::new(),
            order: QueueOrder::new(&[], &settings),
            settings,
            full: HashMap::new(),
            seen: HashMap::new(),
            looked: Instant::now(),
            aside: Aside::NoWorker,
            put_off: Vec::new(),
            resting: HashMap::new(),
            fronts: HashMap::new(),
            nudged: RunnerId::from_stored(format!("{}#polls", shared.runner)),
            claims: TaskTracker::new(),
        }
    }

    async fn serve(&mut self, entrance: &mut UnboundedReceiver<Poll>, fetch: &mut Fetch) {
        let shared = Arc::clone(&self.shared);
        let gauge = metrics::gauge!("tickr_remote_polls");
        loop {
            // A worker that was set aside may have asked again by now.
            while let Ok(back) = self.back.try_recv() {
                self.take_back(back);
            }
            while let Ok(poll) = entrance.try_recv() {
                self.take_in(poll);
            }
            self.answer_those_over().await;
            gauge.set(self.waiting.len() as f64);
            if shared.stop_fetching.is_cancelled() {
                return;
            }
            if self.waiting.is_empty() {
                tokio::select! {
                    biased;
                    () = shared.stop_fetching.cancelled() => return,
                    back = self.back.recv() => if let Some(back) = back { self.take_back(back) },
                    poll = entrance.recv() => match poll {
                        Some(poll) => self.take_in(poll),
                        None => return,
                    },
                }
                continue;
            }
            if self.follow() {
                *fetch = shared.index.fetch(self.order.lines(), &self.nudged);
            }
            let taken = if shared.index.health().now() == Health::Degraded {
                self.take_from_store(entrance).await
            } else {
                self.take_from_index(entrance, fetch).await
            };
            let left = self.hand_out(taken);
            if !left.is_empty() {
                self.put_back(fetch, left).await;
            }
        }
    }

    /// Let a request wait. Jobs of a kind that no request had may be hidden from the index for seconds: hint them again.
    fn take_in(&mut self, poll: Poll) {
        let (now, mut new) = (Instant::now(), false);
        for kind in poll.fetch.worker.kinds.iter() {
            match self.seen.get_mut(kind) {
                Some(seen) if now - seen.last < KIND_FORGOTTEN_AFTER => seen.last = now,
                _ => {
                    self.seen.insert(kind.clone(), SeenKind { since: now, last: now });
                    new = true;
                }
            }
        }
        match self.aside_for(&poll) {
            Some(aside) => self.ask_aside(poll, aside),
            None => self.waiting.push(poll),
        }
        if new {
            self.hint_new_kinds();
        }
    }

    /// Hint the due jobs of the kinds that are new here, in the queues of the requests for them.
    fn hint_new_kinds(&self) {
        let new = self.seen.iter().filter(|(_, seen)| seen.since.elapsed() < KIND_NEW_FOR);
        let kinds: Vec<Name> = new.map(|(kind, _)| kind.clone()).collect();
        let waits = |poll: &&Poll| poll.fetch.worker.kinds.iter().any(|kind| kinds.contains(kind));
        let waiting = self.waiting.iter().filter(waits);
        let queues: BTreeSet<Name> = waiting.flat_map(|poll| poll.fetch.worker.queues.iter().cloned()).collect();
        if queues.is_empty() || self.shared.index.health().now() == Health::Degraded {
            return;
        }
        let shared = Arc::clone(&self.shared);
        self.claims.spawn(async move {
            if let Err(error) = hint_due_jobs(&shared, queues.into_iter().collect(), &kinds).await {
                tracing::debug!(%error, "cannot look for jobs of the kinds of new workers");
            }
        });
    }

    fn take_back(&mut self, back: Back) {
        match back {
            // The oldest request is served first.
            Back::Poll(poll) => self.waiting.insert(0, poll),
            Back::Full(queue) => drop(self.full.insert(queue, Instant::now() + FULL_FOR)),
            Back::OtherKind(job) => {
                let taken = Taken { id: job.id, lane: lane_of(&job), kind: Some(job.kind.clone()) };
                if !self.hand_out(vec![taken]).is_empty() {
                    self.hide(job);
                }
            }
            Back::Suspect(job) => self.set_aside(job),
            Back::StillSetAside(aside) => self.aside = Aside::Between(aside),
            Back::SuspectServed(left) => {
                self.aside = Aside::NoWorker;
                left.into_iter().for_each(|job| self.put_off(job));
            }
            Back::Gone(id) => self.rest(id, GONE_PAUSE),
        }
    }

    /// Return the worker that is set aside, if this request may have its suspect: a request of that worker, or of one that
    /// holds nothing.
    fn aside_for(&mut self, poll: &Poll) -> Option<SetAside> {
        let Aside::Between(aside) = &self.aside else { return None };
        let taken = Taken { id: aside.job.id, lane: lane_of(&aside.job), kind: Some(aside.job.kind.clone()) };
        let may_have = poll.idle || aside.worker.as_ref().is_none_or(|worker| *worker == poll.fetch.worker.id);
        if !may_have || !wants(poll, &taken) || aside.until <= Instant::now() {
            return None;
        }
        match std::mem::replace(&mut self.aside, Aside::NoWorker) {
            Aside::Between(SetAside { worker: None, job, .. }) => Some(SetAside::of(poll, job)),
            Aside::Between(aside) => Some(aside),
            other => {
                self.aside = other;
                None
            }
        }
    }

    fn ask_aside(&mut self, poll: Poll, aside: SetAside) {
        self.aside = Aside::Asking(aside.job.id);
        self.claims.spawn(claim_suspect(Arc::clone(&self.shared), self.sender.clone(), poll, aside));
    }

    /// Put a suspect off for a moment. Then it is the first of its lane, because it has waited for its turn before.
    fn put_off(&mut self, job: DueJob) {
        let pause = SUSPECT_PAUSE.mul_f64(1.0 + rand::random::<f64>());
        self.rest(job.id, pause);
        // The index may have delivered the job twice, and MySQL lists it while a worker is set aside for it.
        if self.aside.is_for(job.id) || self.put_off.iter().any(|(_, known)| known.id == job.id) {
            return;
        }
        // If this process dies, the index delivers the job a little later.
        hide_suspect(&self.shared, job.clone(), 2 * pause);
        if self.put_off.len() < MAX_RESTING {
            self.put_off.push((Instant::now() + pause, job));
        }
    }

    fn rest(&mut self, id: JobId, pause: Duration) {
        let now = Instant::now();
        if self.resting.len() >= MAX_RESTING {
            self.resting.retain(|_, until| now < *until);
        }
        if self.resting.len() < MAX_RESTING {
            self.resting.insert(id, now + pause);
        }
    }

    fn is_resting(&self, id: JobId) -> bool {
        self.resting.get(&id).is_some_and(|until| Instant::now() < *until)
    }

    /// Bring suspects back whose pause is over, and those of a worker that has not asked again in time.
    fn end_pauses(&mut self) {
        let now = Instant::now();
        if let Aside::Between(aside) = &self.aside
            && aside.until <= now
        {
            let job = aside.job.clone();
            self.aside = Aside::NoWorker;
            self.put_off(job);
        }
        for (_, job) in self.put_off.extract_if(.., |(until, _)| *until <= now) {
            self.shared.broker.hint_first(job.id, &job.queue, job.priority, self.shared.store.clock().now());
        }
    }

    /// Keep a request free for a suspect until its worker holds nothing: a request of a worker that holds nothing now, or
    /// any other. Without this, a suspect would wait for as long as all workers have jobs.
    fn set_aside(&mut self, job: DueJob) {
        let taken = Taken { id: job.id, lane: lane_of(&job), kind: Some(job.kind.clone()) };
        let able = (0..self.waiting.len()).filter(|place| wants(&self.waiting[*place], &taken));
        // By chance among equals: a worker may be busy with something long.
        let best = able.min_by_key(|place| (!self.waiting[*place].idle, rand::random::<u32>()));
        if !matches!(self.aside, Aside::NoWorker) || self.shared.stop_fetching.is_cancelled() {
            self.put_off(job);
        } else if let Some(place) = best {
            let poll = self.waiting.remove(place);
            let aside = SetAside::of(&poll, job);
            self.ask_aside(poll, aside);
        } else {
            // The jobs beside it have answered all requests. If every request takes several jobs, it is always so. If this
            // process dies, or no request comes here any more, the index delivers the job a little later.
            hide_suspect(&self.shared, job.clone(), 2 * SUSPECT_PAUSE);
            self.aside = Aside::Between(SetAside { worker: None, job, until: Instant::now() + SUSPECT_PAUSE });
        }
    }

    /// Hide a job from the index whose kind no request has that waits here. In MySQL the job stays due.
    fn hide(&self, mut job: DueJob) {
        let pause = if self.shared.is_served(&job.queue, &job.kind) {
            TimeDelta::milliseconds(OTHERS_KIND_PAUSE_MS / 2 + rand::random_range(0..OTHERS_KIND_PAUSE_MS))
        } else {
            NOBODYS_KIND_PAUSE
        };
        job.execute_at = self.shared.store.clock().now() + pause;
        self.shared.broker.hint_due(&job);
    }

    /// Answer requests whose time is over, those that a newer one has replaced, and those of workers that are drained or
    /// gone.
    async fn answer_those_over(&mut self) {
        self.end_pauses();
        let now = Instant::now();
        self.waiting.retain(|poll| !poll.answer.is_closed());
        let (over, waiting): (Vec<Poll>, Vec<Poll>) = self.waiting.drain(..).partition(|poll| poll.until <= now);
        self.waiting = waiting;
        over.into_iter().for_each(|poll| self.answer(poll, false));
        if self.waiting.is_empty() || self.looked.elapsed() < LOOK_EVERY {
            return;
        }
        self.looked = now;
        for kind in self.waiting.iter().flat_map(|poll| poll.fetch.worker.kinds.iter()) {
            if let Some(seen) = self.seen.get_mut(kind) {
                seen.last = now;
            }
        }
        self.seen.retain(|_, seen| now - seen.last < KIND_FORGOTTEN_AFTER);
        self.hint_new_kinds();
        let ids = self.waiting.iter().map(|poll| poll.fetch.worker.id.to_string()).collect();
        match self.shared.store.registered_workers(ids).await {
            Ok(found) => {
                let stays = |poll: &Poll| found.get(poll.fetch.worker.id.as_str()) == Some(&Some(poll.fetch.id));
                let (waiting, over): (Vec<Poll>, Vec<Poll>) = self.waiting.drain(..).partition(stays);
                self.waiting = waiting;
                for poll in over {
                    let drained = found.get(poll.fetch.worker.id.as_str()) == Some(&None);
                    self.answer(poll, drained);
                }
            }
            Err(error) => tracing::debug!(%error, "cannot look at waiting workers"),
        }
    }

    fn answer_all(&mut self) {
        for poll in std::mem::take(&mut self.waiting) {
            self.answer(poll, false);
        }
    }

    fn answer(&self, poll: Poll, drained: bool) {
        let _ = poll.answer.send(self.shared.broker.delivery(&poll.fetch.worker.id, Vec::new(), drained));
    }

    /// Follow the settings of operators and the queues of the requests. Return true if the lanes have changed.
    fn follow(&mut self) -> bool {
        let now = self.shared.operator_settings.now();
        let missing = self.missing_queues();
        let changed = !missing.is_empty();
        if changed {
            if self.queues.len() > MAX_QUEUES {
                let awaited: HashSet<&Name> = self.waiting.iter().flat_map(queues_of).collect();
                self.queues.retain(|queue| awaited.contains(queue));
            }
            self.queues.extend(missing);
            self.places = self.queues.iter().enumerate().map(|(place, queue)| (queue.clone(), place)).collect();
            self.order = QueueOrder::new(&self.queues, &now);
        } else if !Arc::ptr_eq(&now, &self.settings) {
            self.order.follow(&now);
        }
        self.settings = now;
        self.full.retain(|_, until| Instant::now() < *until);
        changed
    }

    fn missing_queues(&self) -> BTreeSet<Name> {
        let wanted = self.waiting.iter().flat_map(queues_of);
        wanted.filter(|queue| !self.places.contains_key(*queue)).cloned().collect()
    }

    /// Return how many jobs of each known queue the waiting requests take.
    fn rooms(&self) -> Vec<usize> {
        let mut rooms = vec![0_usize; self.queues.len()];
        for poll in &self.waiting {
            for place in queues_of(poll).filter_map(|queue| self.places.get(queue)) {
                rooms[*place] += poll.slots.min(MAX_REMOTE_CLAIM);
            }
        }
        for (room, queue) in rooms.iter_mut().zip(&self.queues) {
            let limit = self.settings.queues.get(queue).and_then(|set| set.concurrency);
            let limit = if self.full.contains_key(queue) { Some(0) } else { limit };
            *room = limit.map_or(*room, |limit| (*room).min(limit as usize));
        }
        rooms
    }

    async fn take_from_index(&mut self, entrance: &mut UnboundedReceiver<Poll>, fetch: &mut Fetch) -> Vec<Taken> {
        let shared = Arc::clone(&self.shared);
        let rooms = self.rooms();
        let most = self.waiting.iter().map(|poll| poll.slots).sum::<usize>().min(MAX_AT_ONCE);
        let (order, _) = self.order.next_turn(|queue| rooms.get(queue).copied());
        if order.lines.is_empty() {
            // All queues are paused or full.
            self.until_news(entrance, STORE_POLL).await;
            return Vec::new();
        }
        let (health, outages) = (shared.index.health(), shared.index.health().outages());
        let taken = tokio::select! {
            biased;
            taken = fetch.take(most, &order) => Some(taken),
            () = health.out_since(outages) => None,
        };
        match taken {
            Some(Ok(taken)) => {
                if taken.refill {
                    shared.refill.notify_one();
                }
                if !taken.ids.is_empty() {
                    return taken.ids.into_iter().map(|(place, id)| self.taken(place, id)).collect();
                }
            }
            Some(Err(_)) => {
                shared.reconcile.notify_one();
                self.until_news(entrance, STORE_POLL).await;
                return Vec::new();
            }
            None => {
                fetch.abandon();
                return Vec::new();
            }
        }
        let (order, _) = self.order.strict(|queue| rooms.get(queue).copied());
        let popped = {
            let wait = fetch.wait(&order);
            tokio::pin!(wait);
            let mut stopped = false;
            loop {
                let ends =
                    self.waiting.iter().map(|poll| poll.until).chain(self.put_off.iter().map(|(until, _)| *until));
                let next = ends.min().unwrap_or_else(Instant::now);
                tokio::select! {
                    biased;
                    popped = &mut wait => break popped.ok(),
                    () = health.out_since(outages) => break None,
                    // The pop is not cancelled, because Redis would send the next id to a connection that is not read.
                    () = shared.stop_fetching.cancelled(), if !stopped => {
                        stopped = true;
                        self.answer_all();
                        self.nudge().await;
                    }
                    back = self.back.recv() => if let Some(back) = back {
                        let more = matches!(&back, Back::Poll(poll) if self.waits_for_more(poll, &rooms));
                        self.take_back(back);
                        if more {
                            self.nudge().await;
                        }
                    },
                    poll = entrance.recv(), if !stopped => if let Some(poll) = poll {
                        let more = self.waits_for_more(&poll, &rooms);
                        self.take_in(poll);
                        if more {
                            self.nudge().await;
                        }
                    },
                    () = tokio::time::sleep_until(next.min(self.looked + LOOK_EVERY).into()), if !self.waiting.is_empty() => {
                        self.answer_those_over().await;
                    }
                }
            }
        };
        match popped {
            Some(Popped::Job(place, id)) => vec![self.taken(place, id)],
            Some(Popped::Nudge | Popped::Nothing) => Vec::new(),
            None => {
                fetch.abandon();
                Vec::new()
            }
        }
    }

    fn taken(&self, place: usize, id: JobId) -> Taken {
        Taken { id, lane: self.order.due_line(place), kind: None }
    }

    /// Return whether a new request waits for a queue from which the pop does not take. Those before it were looked at
    /// when they came.
    fn waits_for_more(&self, poll: &Poll, rooms: &[usize]) -> bool {
        let covered = |queue: &Name| {
            let room = self.places.get(queue).and_then(|place| rooms.get(*place));
            room.is_some_and(|room| *room > 0) || self.full.contains_key(queue)
        };
        !queues_of(poll).all(covered)
    }

    async fn nudge(&self) {
        if let Err(error) = self.shared.index.nudge(&self.nudged).await {
            tracing::debug!(%error, "cannot wake the pop for remote workers");
        }
    }

    /// Wait for a new request, for a claim that ends, or for this long.
    async fn until_news(&mut self, entrance: &mut UnboundedReceiver<Poll>, pause: Duration) {
        let shared = Arc::clone(&self.shared);
        tokio::select! {
            // A worker that was set aside may have asked again by now.
            biased;
            () = shared.stop_fetching.cancelled() => {}
            back = self.back.recv() => if let Some(back) = back { self.take_back(back) },
            poll = entrance.recv() => if let Some(poll) = poll { self.take_in(poll) },
            () = tokio::time::sleep(pause) => {}
        }
    }

    /// Take due jobs from MySQL, of the kinds that the waiting requests have.
    async fn take_from_store(&mut self, entrance: &mut UnboundedReceiver<Poll>) -> Vec<Taken> {
        let shared = Arc::clone(&self.shared);
        let rooms = self.rooms();
        let most = self.waiting.iter().map(|poll| poll.slots).sum::<usize>().min(MAX_AT_ONCE);
        let (order, _) = self.order.next_turn(|queue| rooms.get(queue).copied());
        let (now, mut found) = (shared.store.clock().now(), Vec::new());
        self.fronts.retain(|_, front| front.skipped.is_kept());
        let names: BTreeSet<usize> = order.lines.iter().map(|place| self.order.queue_of(*place)).collect();
        let names = names.into_iter().map(|queue| self.queues[queue].clone()).collect();
        // Most lanes are empty, and each read of one is a round trip.
        let filled: HashSet<DueLane> = match shared.store.lines_of(names).await {
            Ok(lanes) => lanes.into_iter().collect(),
            Err(error) => {
                tracing::warn!(%error, "cannot read the lanes for remote workers");
                HashSet::new()
            }
        };
        for place in order.lines {
            let line = self.order.due_line(place);
            let room = rooms.get(self.order.queue_of(place)).copied().unwrap_or(0).min(most - found.len());
            if !filled.contains(&line) {
                continue;
            }
            match self.take_from_line(line, now, room).await {
                Ok(taken) => found.extend(taken),
                Err(error) => {
                    tracing::warn!(%error, "cannot read due jobs for remote workers");
                    break;
                }
            }
            if found.len() >= most {
                break;
            }
        }
        if found.is_empty() {
            let searches = self.fronts.values().any(|front| front.skipped.goes_on());
            self.until_news(entrance, if searches { SEARCH_POLL } else { STORE_POLL }).await;
        }
        found
    }

    /// Read jobs of a lane that waiting requests may have, behind the front of which they may have none.
    async fn take_from_line(
        &mut self,
        line: DueLane,
        until: tickr_job::Timestamp,
        room: usize,
    ) -> Result<Vec<Taken>, tickr_store::StoreError> {
        let of_lane = self.waiting.iter().map(|poll| &poll.fetch.worker).filter(|w| w.queues.contains(&line.queue));
        let kinds: BTreeSet<Name> = of_lane.flat_map(|worker| worker.kinds.iter().cloned()).collect();
        let front = self.fronts.remove(&line).filter(|front| kinds.is_subset(&front.kinds));
        let mut front =
            front.unwrap_or_else(|| Front { skipped: Skipped::new(DueCursor::FRONT), kinds: kinds.clone() });
        let (mut found, mut after, mut seen) = (Vec::new(), front.skipped.until(), false);
        let mut goes_on = false;
        for _ in 0..STORE_PAGES {
            let range = DueRange { line: line.clone(), after, until };
            let pages = self.shared.store.due_rows(vec![range], STORE_PAGE, Depth::Waiting).await?;
            let Some(page) = pages.into_iter().next() else { break };
            let mut locked = HashSet::new();
            if self.shared.store.knows_locked_keys() {
                let ids: Vec<JobId> = page.rows.iter().map(|row| row.id).collect();
                locked = self.shared.store.behind_locked_keys(&ids).await?;
            }
            for row in page.rows.into_iter().filter(|row| !locked.contains(&row.id)) {
                let Some(kind) = row.kind.filter(|kind| kinds.contains(kind)) else { continue };
                seen = true;
                if found.len() < room && !self.is_resting(row.id) {
                    found.push(Taken { id: row.id, lane: line.clone(), kind: Some(kind) });
                }
            }
            goes_on = page.next.is_some() && !seen;
            match page.next {
                Some(next) if found.len() < room => after = next,
                _ => break,
            }
            if goes_on {
                front.skipped.go_on(after);
            }
        }
        if !goes_on {
            front.skipped.end();
        }
        if front.skipped.until() != DueCursor::FRONT {
            self.fronts.insert(line, front);
        }
        Ok(found)
    }

    /// Give these jobs to requests that wait, evenly, and have them claimed. Return those that no request takes.
    fn hand_out(&mut self, jobs: Vec<Taken>) -> Vec<Taken> {
        let mut given: Vec<Vec<Taken>> = self.waiting.iter().map(|_| Vec::new()).collect();
        let mut left = Vec::new();
        let settings = self.shared.operator_settings.now();
        for job in jobs {
            if is_paused(&settings, &job.lane.queue) || self.shared.stop_fetching.is_cancelled() {
                left.push(job);
                continue;
            }
            let takes = |place: &usize| {
                let poll = &self.waiting[*place];
                wants(poll, &job) && given[*place].len() < poll.slots.min(MAX_REMOTE_CLAIM)
            };
            match (0..self.waiting.len()).filter(takes).min_by_key(|place| given[*place].len()) {
                Some(place) => given[place].push(job),
                None => left.push(job),
            }
        }
        let mut waiting = Vec::with_capacity(self.waiting.len());
        for (poll, jobs) in self.waiting.drain(..).zip(given) {
            if jobs.is_empty() {
                waiting.push(poll);
            } else {
                let work = claim(Arc::clone(&self.shared), self.sender.clone(), poll, jobs);
                self.claims.spawn(work);
            }
        }
        self.waiting = waiting;
        left
    }

    async fn put_back(&self, fetch: &mut Fetch, jobs: Vec<Taken>) {
        let mut lanes: Vec<(usize, Vec<JobId>)> = Vec::new();
        for job in jobs {
            let Some(place) = self.order.place_of(&job.lane) else { continue };
            match lanes.iter_mut().find(|(known, _)| *known == place) {
                Some((_, ids)) => ids.push(job.id),
                None => lanes.push((place, vec![job.id])),
            }
        }
        if self.shared.index.health().now() == Health::Degraded {
            return;
        }
        for (place, ids) in lanes {
            if fetch.put_all_back(place, &ids).await.is_err() {
                // The reconciler puts the others back.
                self.shared.reconcile.notify_one();
                return;
            }
        }
    }
}

fn queues_of(poll: &Poll) -> std::slice::Iter<'_, Name> {
    poll.fetch.worker.queues.iter()
}

/// Return whether the worker of this request executes the job, as far as is known.
fn wants(poll: &Poll, job: &Taken) -> bool {
    let worker = &poll.fetch.worker;
    worker.queues.contains(&job.lane.queue) && job.kind.as_ref().is_none_or(|kind| worker.kinds.contains(kind))
}

/// Claim jobs for a request, and send what was won to its worker.
async fn claim(shared: Arc<EngineState>, back: UnboundedSender<Back>, poll: Poll, jobs: Vec<Taken>) {
    if poll.answer.is_closed() {
        for job in jobs {
            shared.broker.hint_first(job.id, &job.lane.queue, job.lane.priority, shared.store.clock().now());
        }
        return;
    }
    let jobs = for_one_answer(&shared, jobs).await;
    let settings = shared.operator_settings.now();
    let limited = |queue: &Name| settings.queues.get(queue).is_some_and(|set| set.concurrency.is_some());
    let (mut free, mut by_queue): (Vec<Taken>, Vec<(Name, Vec<Taken>)>) = (Vec::new(), Vec::new());
    for job in jobs {
        if !limited(&job.lane.queue) {
            free.push(job);
            continue;
        }
        match by_queue.iter_mut().find(|(queue, _)| *queue == job.lane.queue) {
            Some((_, jobs)) => jobs.push(job),
            None => by_queue.push((job.lane.queue.clone(), vec![job])),
        }
    }
    let mut groups = by_queue.into_iter().map(|(queue, jobs)| (Some(queue), jobs)).collect::<Vec<_>>();
    if !free.is_empty() {
        groups.insert(0, (None, free));
    }
    let (mut won, mut suspects, mut failed, mut refused) = (Vec::new(), Vec::new(), false, false);
    let asked = Instant::now();
    for (queue, jobs) in groups {
        match try_claim(&shared, &poll, &jobs, false, queue.clone()).await {
            Some(claims) => {
                hint_without_room(&shared, &back, &jobs, &claims);
                refused |= sort_out(&shared, &back, claims, (&mut won, &mut suspects)).await;
            }
            None => failed = true,
        }
    }
    // A suspect is executed alone.
    if won.is_empty()
        && poll.idle
        && let Some(job) = suspects.pop()
    {
        let queue = Some(job.queue.clone()).filter(limited);
        let alone = [Taken { id: job.id, lane: lane_of(&job), kind: None }];
        match try_claim(&shared, &poll, &alone, true, queue).await {
            Some(claims) => {
                // Another worker may have taken the room since the claim before.
                hint_without_room(&shared, &back, &alone, &claims);
                refused |= sort_out(&shared, &back, claims, (&mut won, &mut suspects)).await;
            }
            None => failed = true,
        }
    }
    if won.is_empty() {
        if refused && !is_newest(&shared, &poll).await {
            // A newer request has replaced this one, or the worker is drained or gone.
            let _ = poll.answer.send(shared.broker.delivery(&poll.fetch.worker.id, Vec::new(), false));
        } else if !failed {
            // Without an answer, the request is repeated with the same id, and finds what was claimed nevertheless.
            let _ = back.send(Back::Poll(poll));
        }
    } else {
        deliver(&shared, poll, won, asked);
    }
    for job in suspects {
        if let Err(returned) = back.send(Back::Suspect(job))
            && let Back::Suspect(job) = returned.0
        {
            hide_suspect(&shared, job, SUSPECT_PAUSE);
        }
    }
}

/// Keep the first jobs, which fit into one answer together, and put the others back, as the next ones of their lanes.
/// None of those is claimed, so none keeps a permit or a place behind an order key.
async fn for_one_answer(shared: &EngineState, mut jobs: Vec<Taken>) -> Vec<Taken> {
    if jobs.len() <= MAX_ANSWER_BYTES / LARGEST_JOB_BYTES {
        return jobs;
    }
    let known = shared.store.bytes_of_jobs(jobs.iter().map(|job| job.id).collect()).await;
    if let Err(error) = &known {
        tracing::debug!(%error, "cannot read how large the jobs for a worker are, claiming a few of them");
    }
    // A job that is gone needs no bytes.
    let bytes =
        |job: &Taken| known.as_ref().map_or(LARGEST_JOB_BYTES, |known| known.get(&job.id).copied().unwrap_or_default());
    let left = jobs.split_off(how_many_fit(jobs.iter().map(bytes)));
    for job in left {
        shared.broker.hint_first(job.id, &job.lane.queue, job.lane.priority, shared.store.clock().now());
    }
    jobs
}

/// Return how many of the first jobs, which have so many bytes each, fit into one answer: at least one.
fn how_many_fit(sizes: impl Iterator<Item = usize>) -> usize {
    let mut sum = 0_usize;
    let fitting = sizes.take_while(|bytes| {
        sum = sum.saturating_add(*bytes);
        sum <= MAX_ANSWER_BYTES
    });
    fitting.count().max(1)
}

/// Put jobs back that were not tried because their queue has no room.
fn hint_without_room(shared: &EngineState, back: &UnboundedSender<Back>, jobs: &[Taken], claims: &RemoteClaims) {
    for job in jobs.iter().filter(|job| claims.no_room.contains(&job.id)) {
        let now = shared.store.clock().now();
        shared.broker.hint_first(job.id, &job.lane.queue, job.lane.priority, now);
    }
    if let Some(job) = jobs.first().filter(|_| !claims.no_room.is_empty()) {
        let _ = back.send(Back::Full(job.lane.queue.clone()));
    }
}

/// Claim a suspect for a request once its worker holds nothing. The worker gets no other job meanwhile, for a while: also
/// not with its next requests, because a request may be shorter than its jobs.
async fn claim_suspect(shared: Arc<EngineState>, back: UnboundedSender<Back>, mut poll: Poll, aside: SetAside) {
    let until = poll.until.min(aside.until);
    let job = &aside.job;
    let (mut won, mut suspects, mut failed, mut refused) = (Vec::new(), Vec::new(), false, false);
    let (mut tried, mut asked) = (false, Instant::now());
    while !tried && Instant::now() < until && !shared.stop_fetching.is_cancelled() && !poll.answer.is_closed() {
        let holds = if poll.idle { Ok(0) } else { shared.store.open_attempts_of_worker(&poll.fetch.worker.id).await };
        match holds {
            Ok(0) => {
                poll.idle = true;
                let settings = shared.operator_settings.now();
                if is_paused(&settings, &job.queue) {
                    break;
                }
                let limited = |queue: &Name| settings.queues.get(queue).is_some_and(|set| set.concurrency.is_some());
                let queue = Some(job.queue.clone()).filter(limited);
                let alone = [Taken { id: job.id, lane: lane_of(job), kind: None }];
                (tried, asked) = (true, Instant::now());
                match try_claim(&shared, &poll, &alone, true, queue).await {
                    Some(claims) if claims.no_room.is_empty() => {
                        refused |= sort_out(&shared, &back, claims, (&mut won, &mut suspects)).await;
                    }
                    // The queue is at its limit.
                    Some(_) => tried = false,
                    None => failed = true,
                }
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "cannot look whether a worker holds nothing"),
        }
        if !tried {
            tokio::select! {
                () = shared.stop_fetching.cancelled() => {}
                () = poll.answer.closed() => {}
                () = tokio::time::sleep(EMPTY_LOOK_EVERY) => {}
            }
        }
    }
    let now = Instant::now();
    let is_over = poll.until <= now || poll.answer.is_closed();
    if !tried && is_over && now < aside.until && !shared.stop_fetching.is_cancelled() {
        // Answered here, because on its way back the request could get another job. So could the next one of the worker,
        // if it arrived before it is known that the worker is still set aside.
        let _ = back.send(Back::StillSetAside(aside));
        let _ = poll.answer.send(shared.broker.delivery(&poll.fetch.worker.id, Vec::new(), false));
        return;
    }
    if !won.is_empty() {
        deliver(&shared, poll, won, asked);
    } else if refused && !is_newest(&shared, &poll).await {
        let _ = poll.answer.send(shared.broker.delivery(&poll.fetch.worker.id, Vec::new(), false));
    } else if !failed {
        let _ = back.send(Back::Poll(poll));
    }
    let left = if tried { suspects.pop() } else { Some(aside.job) };
    let _ = back.send(Back::SuspectServed(left));
}

/// Hide a suspect from the index for a moment. In MySQL it stays due.
fn hide_suspect(shared: &EngineState, mut job: DueJob, pause: Duration) {
    job.execute_at = shared.store.clock().now() + TimeDelta::from_std(pause).unwrap_or_default();
    shared.broker.hint_due(&job);
}

fn lane_of(job: &DueJob) -> DueLane {
    DueLane { queue: job.queue.clone(), priority: job.priority }
}

/// Answer a request with the attempts that were claimed for it, from `asked` on.
fn deliver(shared: &EngineState, poll: Poll, won: Vec<Claimed>, asked: Instant) {
    let mut delivery = shared.broker.delivery(&poll.fetch.worker.id, won, false);
    delivery.note_claim(asked, poll.fetch.worker.lease);
    let now = shared.store.clock().now();
    for claimed in delivery.claimed() {
        let lateness = (now - claimed.execute_at).to_std().unwrap_or_default();
        shared.attempt_metrics.record_started(claimed, lateness);
        shared.broker.meters().record_started(&claimed.queue, lateness);
        shared.broker.events().emit(Event::Started { id: claimed.id, number: claimed.number });
    }
    // If the worker does not wait any more, the delivery comes back here and gives the jobs back.
    let _ = poll.answer.send(delivery);
}

/// Return whether this is the newest request of its worker, as far as MySQL answers.
async fn is_newest(shared: &EngineState, poll: &Poll) -> bool {
    let worker = &poll.fetch.worker.id;
    match shared.store.registered_workers(vec![worker.to_string()]).await {
        Ok(found) => found.get(worker.as_str()) == Some(&Some(poll.fetch.id)),
        Err(_) => true,
    }
}

/// Claim jobs. Return nothing if MySQL failed. If MySQL refuses the claim for the row of one of them, each is claimed
/// alone, so that the row keeps no other job from its worker.
async fn try_claim(
    shared: &EngineState,
    poll: &Poll,
    jobs: &[Taken],
    suspects: bool,
    limited: Option<Name>,
) -> Option<RemoteClaims> {
    match send_claim(shared, poll, jobs, suspects, limited.clone()).await {
        Err(error) if error.is_about_the_row() => {}
        claims => return claims.ok(),
    }
    let mut all = RemoteClaims::default();
    for job in jobs {
        match send_claim(shared, poll, std::slice::from_ref(job), suspects, limited.clone()).await {
            Ok(RemoteClaims { claims, let_go, no_room, unstarted: _ }) => {
                all.claims.extend(claims);
                all.let_go.extend(let_go);
                all.no_room.extend(no_room);
            }
            // The index gets it back later. Until an operator repairs its row, it starts nowhere.
            Err(error) if error.is_about_the_row() => all.claims.push((job.id, Claim::Gone)),
            // The jobs that were won are on their way, and what this claim has won is found by the next request.
            Err(_) if all.claims.iter().any(|(_, claim)| matches!(claim, Claim::Won(_))) => break,
            Err(_) => return None,
        }
    }
    Some(all)
}

/// Send one claim.
async fn send_claim(
    shared: &EngineState,
    poll: &Poll,
    jobs: &[Taken],
    suspects: bool,
    limited: Option<Name>,
) -> Result<RemoteClaims, StoreError> {
    let (heartbeats, lease) = (Arc::clone(&shared.heartbeats), shared.settings.lease);
    let may_judge: MayJudge = Arc::new(move |reading, theirs| {
        heartbeats.record_clock(reading, lease);
        heartbeats.may_call_dead(lease, theirs)
    });
    let asked = Instant::now();
    let ids = jobs.iter().map(|job| (job.id, job.lane.queue.clone())).collect();
    let limited = limited.map(|queue| (queue, may_judge));
    let claims = shared.store.claim_remotely(&poll.fetch, ids, suspects, limited).await;
    shared.attempt_metrics.record_claimed(asked.elapsed());
    match claims {
        Ok(mut claims) => {
            let unstarted = std::mem::take(&mut claims.unstarted);
            if !unstarted.is_empty() {
                shared.broker.give_back_unstarted(&poll.fetch.worker.id, unstarted);
            }
            Ok(claims)
        }
        Err(error) => {
            tracing::warn!(worker = %poll.fetch.worker.id, %error, jobs = jobs.len(), "cannot claim jobs for a remote worker");
            if !error.is_about_the_row() {
                // The ids are gone from the index.
                shared.reconcile.notify_one();
            }
            Err(error)
        }
    }
}

/// Keep what was won, and give hints about the other jobs. Return whether a job was refused although it is due.
async fn sort_out(
    shared: &EngineState,
    back: &UnboundedSender<Back>,
    found: RemoteClaims,
    (won, suspects): (&mut Vec<Claimed>, &mut Vec<DueJob>),
) -> bool {
    let mut refused = false;
    shared.start_or_hint(found.let_go);
    for (id, claim) in found.claims {
        match claim {
            Claim::Won(claimed) => {
                shared.broker.note_claimed(&claimed);
                won.push(*claimed);
            }
            Claim::OtherKind(job) => {
                let _ = back.send(Back::OtherKind(job));
            }
            Claim::NotDue(mut job) => {
                let now = shared.store.clock().now();
                refused |= job.execute_at <= now;
                job.execute_at = job.execute_at.max(now + NOT_DUE_PAUSE);
                shared.broker.hint_due(&job);
            }
            Claim::Suspect(job) => suspects.push(job),
            Claim::LastAttempt(job) => shared.broker.hint_due(&job),
            Claim::Unreadable(unreadable) => executor::refuse(shared, *unreadable).await,
            Claim::Parked => {}
            Claim::Gone => {
                metrics::counter!("tickr_claims_dropped_total").increment(1);
                if shared.index.health().now() == Health::Degraded {
                    let _ = back.send(Back::Gone(id));
                }
            }
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_as_many_jobs_as_fit_and_at_least_one() {
        let mebibyte = 1 << 20;
        assert_eq!(how_many_fit([mebibyte; 10].into_iter()), 4);
        assert_eq!(how_many_fit([100; 256].into_iter()), 256);
        assert_eq!(how_many_fit([5 * mebibyte, 1].into_iter()), 1, "one job, however large it is");
        assert_eq!(how_many_fit([1, usize::MAX, 1].into_iter()), 1);
        assert_eq!(how_many_fit([3 * mebibyte, 2 * mebibyte, 1].into_iter()), 1, "the order stays");
    }
}
