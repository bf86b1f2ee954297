//! What happens in the whole cluster, for those who listen.
//!
//! Each runner tells what happens in it to a stream in Redis, in batches, and only while somebody somewhere listens: a
//! listener leaves a mark that the schedulers see at their next look, within a second. So a cluster that nobody watches
//! pays nothing. Names of kinds and queues are looked up for what is told; the hot path does not carry them.
//!
//! While Redis is out, listeners are told of a gap, and then hear what happens in their own runner alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::error::TryRecvError;
use tokio::sync::broadcast::{self, Receiver};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::event::{Event, Events, Health, Setting};
use crate::index::{FeedId, FeedLine, Index, IndexError};
use crate::job::{JobId, Name, RunnerId, State, Timestamp, Verdict};
use crate::store::Store;

/// How often what happened is told and read.
const PACE: Duration = Duration::from_millis(100);
/// Most that is told at once: beyond ten thousand a second, some of it is left out.
const MOST_TOLD: usize = 1_000;
/// Most entries in one read.
const PAGE: usize = 500;
/// Most pages in one round.
const MOST_PAGES: usize = 20;
/// How often a listener renews its mark.
const MARK_EVERY: Duration = Duration::from_millis(1_500);
/// What a listener may fall behind.
const CAPACITY: usize = 2_048;
/// How long a new listener waits until this runner listens on its behalf.
const UNTIL_LIVE: Duration = Duration::from_secs(2);

/// The kinds of what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A job was accepted.
    Accepted,
    /// An attempt has begun.
    Started,
    /// An attempt was settled.
    Settled,
    /// A runner finished an attempt that was not its own any more.
    LeaseLost,
    /// A running job was asked to stop.
    CancelRequested,
    /// A waiting job was cancelled.
    Cancelled,
    /// A waiting job has another due time or priority.
    Rescheduled,
    /// Attempts of dead runners were ended.
    Reaped,
    /// The index was fed from the store.
    Rebuilt,
    /// The index changed its condition, as one runner sees it.
    IndexHealth,
    /// A queue has another priority or limit.
    QueueChanged,
    /// A queue was paused, or has another reason to be.
    QueuePaused,
    /// A queue goes on.
    QueueResumed,
    /// A schedule is new, or asks for something else.
    SchedulePut,
    /// A schedule was paused.
    SchedulePaused,
    /// A schedule goes on.
    ScheduleResumed,
    /// A schedule was deleted.
    ScheduleDeleted,
    /// A schedule fired, or passed ticks over.
    ScheduleTicked,
    /// A runner stops.
    Draining,
    /// A runner left something out.
    Gap,
}

impl What {
    /// All of them.
    pub const ALL: [Self; 20] = [
        Self::Accepted,
        Self::Started,
        Self::Settled,
        Self::LeaseLost,
        Self::CancelRequested,
        Self::Cancelled,
        Self::Rescheduled,
        Self::Reaped,
        Self::Rebuilt,
        Self::IndexHealth,
        Self::QueueChanged,
        Self::QueuePaused,
        Self::QueueResumed,
        Self::SchedulePut,
        Self::SchedulePaused,
        Self::ScheduleResumed,
        Self::ScheduleDeleted,
        Self::ScheduleTicked,
        Self::Draining,
        Self::Gap,
    ];

    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Started => "started",
            Self::Settled => "settled",
            Self::LeaseLost => "lease_lost",
            Self::CancelRequested => "cancel_requested",
            Self::Cancelled => "cancelled",
            Self::Rescheduled => "rescheduled",
            Self::Reaped => "reaped",
            Self::Rebuilt => "rebuilt",
            Self::IndexHealth => "index_health",
            Self::QueueChanged => "queue_changed",
            Self::QueuePaused => "queue_paused",
            Self::QueueResumed => "queue_resumed",
            Self::SchedulePut => "schedule_put",
            Self::SchedulePaused => "schedule_paused",
            Self::ScheduleResumed => "schedule_resumed",
            Self::ScheduleDeleted => "schedule_deleted",
            Self::ScheduleTicked => "schedule_ticked",
            Self::Draining => "draining",
            Self::Gap => "gap",
        }
    }
}

/// Something that happened somewhere. Words, names and ids only, never payloads, results or errors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Happening {
    /// What.
    #[serde(rename = "type")]
    pub what: What,
    /// When it was told, by the database's clock.
    pub at: Timestamp,
    /// Which runner told it.
    pub runner: RunnerId,
    /// The job, its kind and its queue, if it is about one; the job that a tick fired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// Absent also when they could not be looked up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Name>,
    /// As the kind. Of what was set about a queue: which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Name>,
    /// Of an attempt that has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// Of an attempt that was settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// The job's state after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// How many: attempts that were reaped, jobs that were fed, ticks of one line, events that were left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The condition of the index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
    /// The schedule, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Name>,
    /// What a queue or a schedule has in its ETag now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Does that queue or schedule stand still now?
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// When a tick was due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Timestamp>,
    /// Why a tick did not fire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// What listeners are told.
#[derive(Clone, Debug)]
pub enum Told {
    /// Something happened. Its place in the stream, unless it was told past it.
    Happened(Option<FeedId>, Arc<Happening>),
    /// Something may be missing here: Redis is out, and other runners are not heard until it is back.
    Gap,
}

/// The feed of this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Feed {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    line: FeedLine,
    index: Index,
    store: Store,
    events: Events,
    runner: RunnerId,
    told: broadcast::Sender<Told>,
    /// Is this process listening on behalf of its listeners?
    live: watch::Sender<bool>,
    /// How many listen here.
    listeners: watch::Sender<usize>,
}

/// One who listens, for as long as this lives.
#[derive(Debug)]
pub struct Listener {
    told: Receiver<Told>,
    shared: Arc<Shared>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.listeners.send_modify(|count| *count -= 1);
    }
}

impl Listener {
    /// What is told next, in order.
    ///
    /// # Errors
    /// When the listener fell so far behind that something was dropped.
    pub async fn next(&mut self) -> Result<Told, broadcast::error::RecvError> {
        self.told.recv().await
    }

    /// Has everything been heard so far?
    #[must_use]
    pub fn is_up_to_date(&self) -> bool {
        self.told.is_empty()
    }
}

impl Feed {
    /// Begin, until `stop`.
    #[must_use]
    pub fn start(
        index: &Index,
        store: Store,
        events: Events,
        runner: RunnerId,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let shared = Arc::new(Shared {
            line: index.feed(),
            index: index.clone(),
            store,
            events,
            runner,
            told: broadcast::Sender::new(CAPACITY),
            live: watch::Sender::new(false),
            listeners: watch::Sender::new(0),
        });
        tasks.spawn(tell_health(Arc::clone(&shared), stop.clone()));
        tasks.spawn(run_until_stopped(Arc::clone(&shared), stop.clone()));
        Self { shared }
    }

    /// Listen from now on. In this process nothing is missed from then on; other runners notice within about a second.
    pub async fn listen(&self) -> Listener {
        let shared = Arc::clone(&self.shared);
        let listener = Listener { told: shared.told.subscribe(), shared: Arc::clone(&shared) };
        shared.listeners.send_modify(|count| *count += 1);
        let mut live = shared.live.subscribe();
        let _ = tokio::time::timeout(UNTIL_LIVE, live.wait_for(|live| *live)).await;
        listener
    }

    /// Everything that is still known from after `place`, in order; nothing when the place itself is forgotten.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub async fn since(&self, place: FeedId) -> Result<Option<Vec<(FeedId, Happening)>>, IndexError> {
        if !self.shared.line.holds(place).await? {
            return Ok(None);
        }
        let (mut found, mut last) = (Vec::new(), place);
        for _ in 0..MOST_PAGES {
            let page = self.shared.line.after(last, PAGE).await?;
            let more = page.len() == PAGE;
            last = page.last().map_or(last, |entry| entry.id);
            found.extend(page.iter().filter_map(|entry| Some((entry.id, serde_json::from_str(&entry.text).ok()?))));
            if !more {
                break;
            }
        }
        Ok(Some(found))
    }
}

/// The condition of the index, told on the bus whether or not anybody listens: it changes rarely.
async fn tell_health(shared: Arc<Shared>, stop: CancellationToken) {
    let mut seen = shared.index.health().now();
    loop {
        seen = tokio::select! {
            () = stop.cancelled() => return,
            health = shared.index.health().other_than(seen) => health,
        };
        shared.events.emit(Event::IndexHealth(seen));
    }
}

async fn run_until_stopped(shared: Arc<Shared>, stop: CancellationToken) {
    let mut listened = shared.line.listened();
    let mut listeners = shared.listeners.subscribe();
    loop {
        let here = *listeners.borrow_and_update() > 0;
        let elsewhere = *listened.borrow_and_update();
        if here || elsewhere {
            Session::begin(&shared).await.run(&stop).await;
            shared.live.send_replace(false);
        }
        if stop.is_cancelled() {
            return;
        }
        if *shared.listeners.borrow() == 0 && !*listened.borrow() {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = listeners.changed() => {}
                changed = listened.changed() => if changed.is_err() { return },
            }
        }
    }
}

/// From the first listener to the last.
struct Session<'a> {
    shared: &'a Shared,
    heard: Receiver<Event>,
    /// Up to where the stream has been read; unknown until Redis has answered.
    read: Option<FeedId>,
    /// Redis is out, and those who listen have been told.
    out: bool,
    mark_at: Instant,
}

impl<'a> Session<'a> {
    async fn begin(shared: &'a Shared) -> Self {
        let heard = shared.events.listen();
        let mut session = Self { shared, heard, read: None, out: false, mark_at: Instant::now() };
        session.mark().await;
        if session.is_heard_here() {
            session.find_place().await;
        }
        shared.live.send_replace(true);
        session
    }

    fn is_heard_here(&self) -> bool {
        *self.shared.listeners.borrow() > 0
    }

    async fn run(mut self, stop: &CancellationToken) {
        let mut listened = self.shared.line.listened();
        let mut pace = tokio::time::interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = pace.tick() => {}
            }
            let here = self.is_heard_here();
            if !here && !*listened.borrow_and_update() {
                return;
            }
            self.mark().await;
            self.tell().await;
            if here {
                self.read().await;
            } else {
                self.read = None;
            }
        }
        // The last words: that this runner stops.
        self.tell().await;
    }

    /// Say that somebody here listens.
    async fn mark(&mut self) {
        if self.is_heard_here() && Instant::now() >= self.mark_at && self.may_ask() {
            self.mark_at = Instant::now() + MARK_EVERY;
            if let Err(error) = self.shared.line.listen().await {
                self.is_out(&error);
            }
        }
    }

    /// A Redis that the rest of the runner knows to be out is not asked by us as well.
    fn may_ask(&self) -> bool {
        self.shared.index.health().now() != Health::Degraded
    }

    fn is_out(&mut self, error: &IndexError) {
        if !self.out {
            self.out = true;
            tracing::debug!(%error, "the feed of events is out");
            let _ = self.shared.told.send(Told::Gap);
        }
    }

    async fn tell(&mut self) {
        let happened = self.collect().await;
        if happened.is_empty() {
            return;
        }
        let mut failed = !self.may_ask();
        if !failed {
            let texts: Vec<String> =
                happened.iter().filter_map(|happening| serde_json::to_string(happening).ok()).collect();
            if let Err(error) = self.shared.line.append(&texts).await {
                self.is_out(&error);
                failed = true;
            }
        }
        if failed && self.is_heard_here() {
            if !self.out {
                self.out = true;
                let _ = self.shared.told.send(Told::Gap);
            }
            for happening in happened {
                let _ = self.shared.told.send(Told::Happened(None, Arc::new(happening)));
            }
        }
    }

    /// What happened here since the last time.
    async fn collect(&mut self) -> Vec<Happening> {
        let (mut events, mut missed) = (Vec::new(), 0);
        while events.len() < MOST_TOLD {
            match self.heard.try_recv() {
                Ok(event) => events.push(event),
                Err(TryRecvError::Lagged(count)) => missed += count,
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        if events.is_empty() && missed == 0 {
            return Vec::new();
        }
        let ids: Vec<JobId> = events.iter().filter_map(Event::job).collect();
        let names = if ids.is_empty() {
            HashMap::new()
        } else {
            self.shared.store.kinds_and_queues(ids).await.unwrap_or_default()
        };
        let at = self.shared.store.clock().now();
        let mut happened: Vec<Happening> = Vec::with_capacity(events.len() + 1);
        if missed > 0 {
            happened.push(Happening { count: Some(missed), ..self.bare(What::Gap, at) });
        }
        for event in &events {
            let happening = self.happening(event, at);
            let (kind, queue) = event.job().and_then(|id| names.get(&id).cloned()).unzip();
            happened.push(Happening { job: event.job(), kind, queue: queue.or(happening.queue.clone()), ..happening });
        }
        happened
    }

    fn bare(&self, what: What, at: Timestamp) -> Happening {
        Happening {
            what,
            at,
            runner: self.shared.runner.clone(),
            job: None,
            kind: None,
            queue: None,
            number: None,
            verdict: None,
            state: None,
            count: None,
            health: None,
            schedule: None,
            version: None,
            paused: None,
            due_at: None,
            cause: None,
        }
    }

    fn happening(&self, event: &Event, at: Timestamp) -> Happening {
        let bare = |what| self.bare(what, at);
        let set = |what, set: &Setting| Happening {
            version: Some(set.version.clone()),
            paused: Some(set.paused),
            ..bare(what)
        };
        let queue = |what, setting: &Setting| Happening { queue: Some(setting.name.clone()), ..set(what, setting) };
        let schedule =
            |what, setting: &Setting| Happening { schedule: Some(setting.name.clone()), ..set(what, setting) };
        match event {
            Event::Accepted { .. } => bare(What::Accepted),
            Event::Started { number, .. } => Happening { number: Some(*number), ..bare(What::Started) },
            Event::Settled { verdict, state, .. } => {
                Happening { verdict: Some(*verdict), state: Some(*state), ..bare(What::Settled) }
            }
            Event::LeaseLost { .. } => bare(What::LeaseLost),
            Event::CancelRequested { .. } => bare(What::CancelRequested),
            Event::Cancelled { .. } => bare(What::Cancelled),
            Event::Rescheduled { .. } => bare(What::Rescheduled),
            Event::Reaped { attempts } => Happening { count: Some(*attempts as u64), ..bare(What::Reaped) },
            Event::Rebuilt { jobs } => Happening { count: Some(*jobs as u64), ..bare(What::Rebuilt) },
            Event::IndexHealth(health) => {
                Happening { health: Some(health.as_str().to_owned()), ..bare(What::IndexHealth) }
            }
            Event::QueueChanged(setting) => queue(What::QueueChanged, setting),
            Event::QueuePaused(setting) => queue(What::QueuePaused, setting),
            Event::QueueResumed(setting) => queue(What::QueueResumed, setting),
            Event::SchedulePut(setting) => schedule(What::SchedulePut, setting),
            Event::SchedulePaused(setting) => schedule(What::SchedulePaused, setting),
            Event::ScheduleResumed(setting) => schedule(What::ScheduleResumed, setting),
            Event::ScheduleDeleted { name } => {
                Happening { schedule: Some(name.clone()), ..bare(What::ScheduleDeleted) }
            }
            Event::ScheduleTicked { name, due_at, cause, ticks, .. } => Happening {
                schedule: Some(name.clone()),
                due_at: Some(*due_at),
                cause: cause.map(|cause| cause.as_str().to_owned()),
                count: Some(u64::from(*ticks)),
                ..bare(What::ScheduleTicked)
            },
            Event::Draining => bare(What::Draining),
        }
    }

    async fn find_place(&mut self) {
        if !self.may_ask() {
            return;
        }
        match self.shared.line.last().await {
            Ok(last) => self.read = Some(last),
            Err(error) => self.is_out(&error),
        }
    }

    async fn read(&mut self) {
        if !self.may_ask() {
            return;
        }
        let Some(mut last) = self.read else { return self.find_place().await };
        for _ in 0..MOST_PAGES {
            let page = match self.shared.line.after(last, PAGE).await {
                Ok(page) => page,
                Err(error) => return self.is_out(&error),
            };
            self.out = false;
            let more = page.len() == PAGE;
            for entry in page {
                last = entry.id;
                if let Ok(happening) = serde_json::from_str(&entry.text) {
                    let _ = self.shared.told.send(Told::Happened(Some(entry.id), Arc::new(happening)));
                }
            }
            self.read = Some(last);
            if !more {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_same_everywhere() {
        for what in What::ALL {
            assert_eq!(serde_json::to_value(what).unwrap(), what.as_str());
        }
    }
}
