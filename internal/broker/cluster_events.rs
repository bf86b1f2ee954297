//! The events of the whole cluster, for the clients that listen.
//!
//! Each runner appends its events to a stream in Redis, in batches, and only while at least one client in the cluster
//! listens. A process with a listener sets a key in Redis (the mark), which the schedulers see at their next look,
//! within a second. So a cluster without listeners pays nothing. The names of kinds and queues are read for the events
//! that are sent; the path of a job does not carry them.
//!
//! While Redis is out, listeners are told of a gap, and then receive only the events of their own runner. Another gap
//! follows when Redis is back and all runners have had the time to notice the listeners again. A runner whose events
//! did not reach the stream says so in the stream, and so does one that could not read the kinds and queues of its events,
//! because filters leave these out. A process with listeners tells them of a gap when the stream has lost the position up
//! to which it was read, and when the process stood still for so long that its mark was gone.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::error::TryRecvError;
use tokio::sync::broadcast::{self, Receiver};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use tickr_event::{Event, Events, Health, SettingChanged};
use tickr_index::{EventStream, Index, IndexError, LISTENS_FOR, StreamEntry, StreamPosition};
use tickr_job::{JobId, Name, RunnerId, State, Timestamp, Verdict};
use tickr_store::Store;

/// Time between two rounds of sending and reading.
const PACE: Duration = Duration::from_millis(100);
/// Most events sent in one round. Beyond ten thousand a second, some events are left out.
const MAX_PUBLISHED: usize = 1_000;
/// Most entries in one read.
const PAGE: usize = 500;
/// Most pages in one round, and for a client that comes back.
const MAX_PAGES: usize = 20;
/// Most pages that are read for clients that come back, at a time. They share a connection with the marks and the live
/// events, whose answers would come too late behind those of many clients.
const MAX_PAST_READS: usize = 4;
/// Time between two renewals of the mark of a listener.
const MARK_EVERY: Duration = Duration::from_millis(1_500);
/// Most events by which a listener may fall behind.
const CAPACITY: usize = 2_048;
/// Longest time that a new listener waits until this process has set its mark and knows where to read from.
const UNTIL_LIVE: Duration = Duration::from_secs(2);
/// Time after an outage until all runners have noticed the mark of a listener: the next renewal, and the next look.
const UNTIL_NOTICED: Duration = Duration::from_secs(3);
/// When the listeners elsewhere come back within this time, they may have been there all the time, without a mark.
const ABSENCE: Duration = Duration::from_secs(60);

/// Type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventType {
    /// A job was accepted.
    Accepted,
    /// An attempt was started.
    Started,
    /// An attempt was settled.
    Settled,
    /// An attempt was left to another system, which finishes it.
    Deferred,
    /// A runner finished an attempt whose lease it had lost.
    LeaseLost,
    /// A running job was told to stop.
    CancelRequested,
    /// A waiting job was cancelled.
    Cancelled,
    /// The due time or the priority of a waiting job was changed.
    Rescheduled,
    /// Attempts of dead runners were ended.
    Reaped,
    /// The index was rebuilt from MySQL.
    Rebuilt,
    /// The condition of the index changed, as one runner sees it.
    IndexHealth,
    /// The priority or the limit of a queue was changed.
    QueueChanged,
    /// A queue was paused, or the reason of its pause was changed.
    QueuePaused,
    /// A queue was resumed.
    QueueResumed,
    /// A schedule was created or changed.
    SchedulePut,
    /// A schedule was paused.
    SchedulePaused,
    /// A schedule was resumed.
    ScheduleResumed,
    /// A schedule was deleted.
    ScheduleDeleted,
    /// A schedule fired, or ticks were skipped.
    ScheduleTicked,
    /// A runner is stopping.
    RunnerStopping,
    /// A runner left events out.
    Gap,
}

impl EventType {
    /// All types.
    pub const ALL: [Self; 21] = [
        Self::Accepted,
        Self::Started,
        Self::Settled,
        Self::Deferred,
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
        Self::RunnerStopping,
        Self::Gap,
    ];

    /// Return the type as it is written in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Started => "started",
            Self::Settled => "settled",
            Self::Deferred => "deferred",
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
            Self::RunnerStopping => "runner_stopping",
            Self::Gap => "gap",
        }
    }
}

/// An event of the cluster. It holds only types, names and ids, never payloads, results or errors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedEvent {
    /// Type of the event.
    #[serde(rename = "type")]
    pub event_type: EventType,
    /// Time of sending, by MySQL's clock.
    pub at: Timestamp,
    /// Runner that sent it.
    pub runner: RunnerId,
    /// Job that the event is about, or that a tick fired. Its kind and queue follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// Kind of the job. Also absent when it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Name>,
    /// Queue of the job, or the queue whose settings were changed. Also absent when it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Name>,
    /// Number of the attempt that was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// Verdict of the attempt that was settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// State of the job after the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Number of attempts that were reaped, of jobs that were hinted in a rebuild, of ticks in one record, or of events
    /// that were left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Condition of the index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
    /// Schedule that the event is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Name>,
    /// Version of the queue or schedule, as its ETag shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The queue or schedule is paused now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Due time of the tick.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Timestamp>,
    /// Reason for which the tick was skipped. In a gap: [`LOST`](Self::LOST), or absent when there were too many
    /// events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

impl PublishedEvent {
    /// Cause of a gap when events did not reach the stream, or reached it without their kinds and queues.
    pub const LOST: &str = "lost";
}

/// Message to a listener.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// An event, with its position in the stream. Without a position when it did not go through the stream.
    Event(Option<StreamPosition>, Arc<PublishedEvent>),
    /// Events may be missing here: Redis is out, and the events of other runners do not arrive until it is back.
    Gap,
    /// Events may be missing here: Redis was out or has lost them, or had no mark of this process for a while. From here
    /// on the events of all runners arrive.
    Lost,
}

/// The cluster events of this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ClusterEvents {
    shared: Arc<ClusterEventsInner>,
}

#[derive(Debug)]
struct ClusterEventsInner {
    stream: EventStream,
    index: Index,
    store: Store,
    events: Events,
    runner: RunnerId,
    deliveries: broadcast::Sender<Delivery>,
    /// This process has set its mark and knows where to read from.
    live: watch::Sender<bool>,
    /// Number of listeners in this process.
    listeners: watch::Sender<usize>,
    /// Redis is out, and the listeners of this process have been told.
    out: AtomicBool,
    /// Turns of the pages that are read for clients that come back.
    past_reads: Semaphore,
}

/// One listener. Dropping it ends the subscription.
#[derive(Debug)]
pub struct Listener {
    deliveries: Receiver<Delivery>,
    shared: Arc<ClusterEventsInner>,
    /// Redis was out at the beginning. The other listeners were told before.
    began_in_outage: bool,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.listeners.send_modify(|count| *count -= 1);
    }
}

impl Listener {
    /// Return the next message, in order.
    ///
    /// # Errors
    /// When the listener fell so far behind that messages were dropped.
    #[boxed]
    pub async fn next(&mut self) -> Result<Delivery, broadcast::error::RecvError> {
        if std::mem::take(&mut self.began_in_outage) {
            return Ok(Delivery::Gap);
        }
        self.deliveries.recv().await
    }

    /// Return whether the listener has received all messages so far.
    #[must_use]
    pub fn is_up_to_date(&self) -> bool {
        self.deliveries.is_empty() && !self.began_in_outage
    }
}

impl ClusterEvents {
    /// Start the tasks. They run until `stop`.
    #[must_use]
    pub fn start(
        index: &Index,
        store: Store,
        events: Events,
        runner: RunnerId,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let shared = Arc::new(ClusterEventsInner {
            stream: index.event_stream(),
            index: index.clone(),
            store,
            events,
            runner,
            deliveries: broadcast::Sender::new(CAPACITY),
            live: watch::Sender::new(false),
            listeners: watch::Sender::new(0),
            out: AtomicBool::new(false),
            past_reads: Semaphore::new(MAX_PAST_READS),
        });
        tasks.spawn(publish_health(Arc::clone(&shared), stop.clone()));
        tasks.spawn(run_until_stopped(Arc::clone(&shared), stop.clone()));
        Self { shared }
    }

    /// Listen from now on. From then on no event of this process is missed; other runners notice the listener within
    /// about a second.
    #[boxed]
    pub async fn listen(&self) -> Listener {
        let shared = Arc::clone(&self.shared);
        // Subscribed first: an outage that is found between the two lines is told twice, and never not at all.
        let deliveries = shared.deliveries.subscribe();
        let began_in_outage = shared.out.load(Ordering::SeqCst);
        let listener = Listener { deliveries, shared: Arc::clone(&shared), began_in_outage };
        shared.listeners.send_modify(|count| *count += 1);
        let mut live = shared.live.subscribe();
        let _ = tokio::time::timeout(UNTIL_LIVE, live.wait_for(|live| *live)).await;
        listener
    }

    /// Return the stored events after `place`, to be read page by page.
    #[must_use]
    pub fn past(&self, place: StreamPosition) -> PastEvents {
        PastEvents { shared: Arc::clone(&self.shared), last: place, until: None, pages_left: MAX_PAGES }
    }
}

/// The stored events behind the position of a client that comes back. A page is read when the client has taken the one
/// before, so that many clients at once need little memory here.
#[derive(Debug)]
pub struct PastEvents {
    shared: Arc<ClusterEventsInner>,
    /// Position up to which events were read.
    last: StreamPosition,
    /// End of the stream at the first page. The client hears of what comes behind it as it happens, and does not count
    /// among what it has missed.
    until: Option<StreamPosition>,
    pages_left: usize,
}

/// A page of stored events.
#[derive(Debug)]
pub struct PastPage {
    /// The events, in order.
    pub events: Vec<(StreamPosition, PublishedEvent)>,
    /// Position of the last entry, or that of the page before if there is none.
    pub last: StreamPosition,
    /// No further entry was stored.
    pub is_last: bool,
}

impl PastEvents {
    /// Return the next page. None when the stream does not hold the last position itself any more, when 10,000 entries or
    /// more lie behind the first one, or when Redis does not answer.
    #[boxed]
    pub async fn next_page(&mut self) -> Option<PastPage> {
        let _turn = self.shared.past_reads.acquire().await;
        // While Redis is out, each of many clients would wait for the time-outs of those in front.
        if self.shared.index.health().now() == Health::Degraded {
            return None;
        }
        let read = async {
            let until = match self.until {
                Some(until) => until,
                None => self.shared.stream.last().await?,
            };
            Ok::<_, IndexError>((until, self.shared.stream.read_after(self.last, PAGE).await?))
        };
        let (until, page) = match read.await {
            Ok(read) => read,
            Err(error) => {
                tracing::debug!(%error, "cannot read stored events for a client");
                return None;
            }
        };
        self.until = Some(until);
        self.pages_left = self.pages_left.saturating_sub(1);
        let is_last = page.entries.len() < PAGE || page.entries.last().is_none_or(|entry| entry.id >= until);
        // Entries behind the last page would be left out, so the client begins anew.
        if !page.is_whole || !is_last && self.pages_left == 0 {
            return None;
        }
        self.last = page.entries.last().map_or(self.last, |entry| entry.id);
        let read = |entry: &StreamEntry| Some((entry.id, serde_json::from_str(&entry.text).ok()?));
        Some(PastPage { events: page.entries.iter().filter_map(read).collect(), last: self.last, is_last })
    }
}

/// Emit changes of the condition of the index on the event bus, also without listeners: they are rare.
async fn publish_health(shared: Arc<ClusterEventsInner>, stop: CancellationToken) {
    let mut seen = shared.index.health().now();
    loop {
        seen = tokio::select! {
            () = stop.cancelled() => return,
            health = shared.index.health().other_than(seen) => health,
        };
        shared.events.emit(Event::IndexHealth(seen));
    }
}

async fn run_until_stopped(shared: Arc<ClusterEventsInner>, stop: CancellationToken) {
    let mut listened = shared.stream.has_listeners();
    let mut listeners = shared.listeners.subscribe();
    let mut ended: Option<Instant> = None;
    loop {
        let here = *listeners.borrow_and_update() > 0;
        let elsewhere = *listened.borrow_and_update();
        if here || elsewhere {
            // Listeners of this process have missed nothing of it. Those of others may have been there all the time: a
            // flush deletes their mark, and so does an outage.
            let lost = !here && ended.is_some_and(|ended| ended.elapsed() < ABSENCE);
            Session::begin(&shared, lost).await.run(&stop).await;
            shared.live.send_replace(false);
            shared.out.store(false, Ordering::SeqCst);
            ended = Some(Instant::now());
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

/// The time from the first listener to the last.
struct Session<'a> {
    shared: &'a ClusterEventsInner,
    local_events: Receiver<Event>,
    /// Position up to which the stream was read. Not known until Redis has answered.
    read: Option<StreamPosition>,
    /// Events of this process did not reach the stream. The next batch says so first.
    lost: bool,
    /// After an outage, or a time without a mark, the time at which the listeners are told that it is over.
    back_at: Option<Instant>,
    mark: Mark,
    mark_at: Instant,
}

/// The mark in Redis that this process has listeners, as this process has set it.
#[derive(Debug, Default)]
struct Mark {
    /// Time before the call that last set it.
    set_at: Option<Instant>,
}

impl Mark {
    /// Note that a call from `began` to `done` has set the mark. Return whether the mark may have been gone before, so
    /// that other runners may have published nothing.
    fn note_renewal(&mut self, began: Instant, done: Instant) -> bool {
        self.set_at.replace(began).is_some_and(|before| done.duration_since(before) > LISTENS_FOR)
    }
}

impl<'a> Session<'a> {
    async fn begin(shared: &'a ClusterEventsInner, lost: bool) -> Self {
        let local_events = shared.events.listen();
        let mark_at = Instant::now();
        let mark = Mark::default();
        let mut session = Self { shared, local_events, read: None, lost, back_at: None, mark, mark_at };
        session.mark().await;
        if session.has_listeners() {
            session.find_position().await;
        }
        shared.live.send_replace(true);
        session
    }

    fn has_listeners(&self) -> bool {
        *self.shared.listeners.borrow() > 0
    }

    async fn run(mut self, stop: &CancellationToken) {
        let mut listened = self.shared.stream.has_listeners();
        let mut pace = tokio::time::interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = pace.tick() => {}
            }
            let here = self.has_listeners();
            if !here && !*listened.borrow_and_update() {
                return;
            }
            self.mark().await;
            if here {
                self.read_from_here_on().await;
                self.publish().await;
                self.read().await;
                self.tell_return();
            } else {
                (self.read, self.back_at, self.mark) = (None, None, Mark::default());
                self.shared.out.store(false, Ordering::SeqCst);
                self.publish().await;
            }
        }
        // Send the last event: this runner is stopping.
        self.publish().await;
    }

    /// Set the mark in Redis while this process has listeners.
    async fn mark(&mut self) {
        let began = Instant::now();
        if !self.has_listeners() || began < self.mark_at || !self.may_use_redis() {
            return;
        }
        self.mark_at = began + MARK_EVERY;
        match self.shared.stream.mark_listener().await {
            Ok(()) => {
                let done = Instant::now();
                if self.mark.note_renewal(began, done) {
                    // This process stood still. Other runners have published nothing while the mark was gone, and do not
                    // say so after a long time.
                    self.back_at = Some(done + UNTIL_NOTICED);
                }
            }
            Err(error) => self.note_outage(&error),
        }
    }

    /// Return whether Redis may be called. If the runner knows that it is out, this task does not call it as well.
    fn may_use_redis(&self) -> bool {
        self.shared.index.health().now() != Health::Degraded
    }

    fn note_outage(&mut self, error: &IndexError) {
        tracing::debug!(%error, "cannot use the stream of cluster events");
        self.tell_outage();
    }

    /// Tell the listeners of this process once that Redis is out.
    fn tell_outage(&mut self) {
        self.back_at = None;
        if self.has_listeners() && !self.shared.out.swap(true, Ordering::SeqCst) {
            let _ = self.shared.deliveries.send(Delivery::Gap);
        }
    }

    /// Tell the listeners that an outage, or a time without a mark, is over. Other runners published nothing while they
    /// saw no mark, so the listeners are told when these have noticed it.
    fn tell_return(&mut self) {
        if self.back_at.take_if(|at| *at <= Instant::now()).is_some() {
            let _ = self.shared.deliveries.send(Delivery::Lost);
        }
    }

    async fn publish(&mut self) {
        let batch = self.collect().await;
        if batch.is_empty() && !self.lost {
            return;
        }
        if self.may_use_redis() {
            match self.append(&batch).await {
                Ok(()) => {
                    self.lost = false;
                    return;
                }
                Err(error) => self.note_outage(&error),
            }
        } else {
            self.tell_outage();
        }
        self.lost |= !batch.is_empty();
        if self.has_listeners() {
            for published in batch {
                let _ = self.shared.deliveries.send(Delivery::Event(None, Arc::new(published)));
            }
        }
    }

    /// Append a batch to the stream, behind a gap if earlier events did not reach it.
    async fn append(&self, batch: &[PublishedEvent]) -> Result<(), IndexError> {
        let gap = self.lost.then(|| self.lost_events(self.shared.store.clock().now()));
        let published = gap.iter().chain(batch);
        let texts: Vec<String> = published.filter_map(|published| serde_json::to_string(published).ok()).collect();
        self.shared.stream.append(&texts).await
    }

    /// Collect the events of this process since the last round.
    async fn collect(&mut self) -> Vec<PublishedEvent> {
        let (mut events, mut missed) = (Vec::new(), 0);
        while events.len() < MAX_PUBLISHED {
            match self.local_events.try_recv() {
                Ok(event) => events.push(event),
                Err(TryRecvError::Lagged(count)) => missed += count,
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        if events.is_empty() && missed == 0 {
            return Vec::new();
        }
        let ids: Vec<JobId> = events.iter().filter_map(Event::job).collect();
        let names = self.read_names(ids).await;
        let at = self.shared.store.clock().now();
        let mut batch: Vec<PublishedEvent> = Vec::with_capacity(events.len() + 2);
        if missed > 0 {
            batch.push(PublishedEvent { count: Some(missed), ..self.blank(EventType::Gap, at) });
        }
        if names.is_none() {
            // Filters by kind and queue leave out the events behind this one.
            batch.push(self.lost_events(at));
        }
        let names = names.unwrap_or_default();
        for event in &events {
            let published = self.describe(event, at);
            let (kind, queue) = event.job().and_then(|id| names.get(&id).cloned()).unzip();
            batch.push(PublishedEvent {
                job: event.job(),
                kind,
                queue: queue.or(published.queue.clone()),
                ..published
            });
        }
        batch
    }

    /// Read the kinds and queues of these jobs. None when MySQL does not answer.
    async fn read_names(&self, ids: Vec<JobId>) -> Option<HashMap<JobId, (Name, Name)>> {
        if ids.is_empty() {
            return Some(HashMap::new());
        }
        let read = self.shared.store.kinds_and_queues(ids).await;
        read.inspect_err(|error| tracing::debug!(%error, "cannot read the kinds and queues of cluster events")).ok()
    }

    /// Make a gap of events that listeners do not get.
    fn lost_events(&self, at: Timestamp) -> PublishedEvent {
        PublishedEvent { cause: Some(PublishedEvent::LOST.to_owned()), ..self.blank(EventType::Gap, at) }
    }

    fn blank(&self, event_type: EventType, at: Timestamp) -> PublishedEvent {
        PublishedEvent {
            event_type,
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

    fn describe(&self, event: &Event, at: Timestamp) -> PublishedEvent {
        let blank = |event_type| self.blank(event_type, at);
        let set = |event_type, set: &SettingChanged| PublishedEvent {
            version: Some(set.version.clone()),
            paused: Some(set.paused),
            ..blank(event_type)
        };
        let queue = |event_type, setting: &SettingChanged| PublishedEvent {
            queue: Some(setting.name.clone()),
            ..set(event_type, setting)
        };
        let schedule = |event_type, setting: &SettingChanged| PublishedEvent {
            schedule: Some(setting.name.clone()),
            ..set(event_type, setting)
        };
        match event {
            Event::Accepted { .. } => blank(EventType::Accepted),
            Event::Started { number, .. } => PublishedEvent { number: Some(*number), ..blank(EventType::Started) },
            Event::Settled { verdict, state, .. } => {
                PublishedEvent { verdict: Some(*verdict), state: Some(*state), ..blank(EventType::Settled) }
            }
            Event::Deferred { .. } => blank(EventType::Deferred),
            Event::LeaseLost { .. } => blank(EventType::LeaseLost),
            Event::CancelRequested { .. } => blank(EventType::CancelRequested),
            Event::Cancelled { .. } => blank(EventType::Cancelled),
            Event::Rescheduled { .. } => blank(EventType::Rescheduled),
            Event::Reaped { attempts } => PublishedEvent { count: Some(*attempts as u64), ..blank(EventType::Reaped) },
            Event::Rebuilt { jobs } => PublishedEvent { count: Some(*jobs as u64), ..blank(EventType::Rebuilt) },
            Event::IndexHealth(health) => {
                PublishedEvent { health: Some(health.as_str().to_owned()), ..blank(EventType::IndexHealth) }
            }
            Event::QueueChanged(setting) => queue(EventType::QueueChanged, setting),
            Event::QueuePaused(setting) => queue(EventType::QueuePaused, setting),
            Event::QueueResumed(setting) => queue(EventType::QueueResumed, setting),
            Event::SchedulePut(setting) => schedule(EventType::SchedulePut, setting),
            Event::SchedulePaused(setting) => schedule(EventType::SchedulePaused, setting),
            Event::ScheduleResumed(setting) => schedule(EventType::ScheduleResumed, setting),
            Event::ScheduleDeleted { name } => {
                PublishedEvent { schedule: Some(name.clone()), ..blank(EventType::ScheduleDeleted) }
            }
            Event::ScheduleTicked { name, due_at, cause, ticks, .. } => PublishedEvent {
                schedule: Some(name.clone()),
                due_at: Some(*due_at),
                cause: cause.map(|cause| cause.as_str().to_owned()),
                count: Some(u64::from(*ticks)),
                ..blank(EventType::ScheduleTicked)
            },
            Event::RunnerStopping => blank(EventType::RunnerStopping),
        }
    }

    /// Find the position to read from, if it is not known. Do so before the events of this process are appended, so
    /// that they are read.
    async fn read_from_here_on(&mut self) {
        if !self.may_use_redis() {
            self.tell_outage();
        } else if self.read.is_none() {
            self.find_position().await;
        }
    }

    async fn find_position(&mut self) {
        if !self.may_use_redis() {
            return;
        }
        match self.shared.stream.last().await {
            Ok(last) => self.read = Some(last),
            Err(error) => self.note_outage(&error),
        }
    }

    async fn read(&mut self) {
        if !self.may_use_redis() {
            return;
        }
        let Some(mut last) = self.read else { return };
        for _ in 0..MAX_PAGES {
            let page = match self.shared.stream.read_after(last, PAGE).await {
                Ok(page) => page,
                Err(error) => return self.note_outage(&error),
            };
            if self.shared.out.swap(false, Ordering::SeqCst) {
                self.back_at = Some(Instant::now() + UNTIL_NOTICED);
            }
            if !page.is_whole && last != StreamPosition::START {
                return self.skip_lost().await;
            }
            let more = page.entries.len() == PAGE;
            for entry in page.entries {
                last = entry.id;
                if let Ok(published) = serde_json::from_str(&entry.text) {
                    let _ = self.shared.deliveries.send(Delivery::Event(Some(entry.id), Arc::new(published)));
                }
            }
            self.read = Some(last);
            if !more {
                return;
            }
        }
    }

    /// Go on at the end of a stream that has lost the position up to which it was read, as after a flush. The entries
    /// behind that position are gone, or are older ones of a server that went back in time.
    async fn skip_lost(&mut self) {
        self.read = None;
        self.find_position().await;
        if self.read.is_some() {
            let _ = self.shared.deliveries.send(Delivery::Lost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_same_everywhere() {
        for event_type in EventType::ALL {
            assert_eq!(serde_json::to_value(event_type).unwrap(), event_type.as_str());
        }
    }

    #[test]
    fn a_mark_that_expired_before_it_was_set_again_is_noticed() {
        let (mut mark, began) = (Mark::default(), Instant::now());
        let at = |ms: u64| began + Duration::from_millis(ms);
        // The first mark of a process, and one that is set again in time.
        assert!(!mark.note_renewal(at(0), at(900)));
        assert!(!mark.note_renewal(at(4_000), at(5_000)));
        // The mark lasts for 5 s from its call at the earliest, and the next one is there at the end of its call.
        assert!(mark.note_renewal(at(8_500), at(9_100)));
        assert!(!mark.note_renewal(at(10_000), at(10_100)));
        // The process stood still for more than a minute.
        assert!(mark.note_renewal(at(80_000), at(80_100)));
    }
}
