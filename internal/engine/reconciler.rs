//! The reconciler: makes the index hold what the store says it should.
//!
//! Redis may forget anything: a flush, an eviction, a lost hint, an id popped by a runner that died before its claim.
//! So the store's due order is read in bounded pages and compared with the index, and what is missing is hinted again.
//! Too much is harmless (claims drop it), too little never lasts:
//! - *rebuild*, when the epoch is gone or Redis was out: everything due within the horizon
//! - every few seconds: what became due since the last pass, what is due next, and the oldest overdue work
//! - *feed*: what the horizon newly reaches
//! - *refill*: a full ready list left jobs out and has run low

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use tokio::time::Instant;

use super::Shared;
use crate::event::Event;
use crate::index::{Entry, Health, IndexError, Line, RefillPlace};
use crate::job::{JobId, Timestamp};
use crate::store::{DueCursor, DueJob, StoreError};

/// Between passes, before jitter. With the grace it bounds how long a lost entry stays lost (G3).
const PASS_EVERY: Duration = Duration::from_secs(3);
/// Between passes, however often somebody asks for one.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// Work younger than this may still be on its way through a channel.
const GRACE: TimeDelta = TimeDelta::seconds(1);
/// How far ahead of its time an entry is checked.
const LOOK_AHEAD: TimeDelta = TimeDelta::seconds(8);
/// Rows in one page.
const PAGE: usize = 2_000;
/// Pages looked at in each pass: of what became due lately, of the oldest overdue work, and of the walk through the rest.
const RECENT_PAGES: usize = 50;
const OLDEST_PAGES: usize = 2;
const WALK_PAGES: usize = 8;
/// Pages that one refill reads in search of jobs of its line.
const REFILL_PAGES: usize = 20;
/// Pauses after failures.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A job of a kind that a runner does not know rests in the sorted set, but for no longer than this.
const LONGEST_REST: TimeDelta = TimeDelta::seconds(10);
/// How long a suspect gets to turn up.
const SECOND_LOOK: Duration = Duration::from_millis(300);

#[derive(Debug, thiserror::Error)]
enum PassError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Index(#[from] IndexError),
}

/// What the loop remembers between passes.
struct Memory {
    /// Everything due before this has been compared with the index once.
    compared_until: Timestamp,
    /// Where the walk through a long backlog goes on; absent: at its beginning.
    walk: Option<DueCursor>,
    /// Everything due before this has been fed to the index.
    fed_until: Option<Timestamp>,
    /// Lines that had left jobs out.
    noted: HashSet<Line>,
}

pub(super) async fn run_until_stopped(shared: Arc<Shared>) {
    let now = shared.store.clock().now();
    let mut memory = Memory { compared_until: now, walk: None, fed_until: None, noted: HashSet::new() };
    let mut pause = FIRST_PAUSE;
    let (mut passed, mut next_pass) = (Instant::now(), Instant::now());
    loop {
        let worked = if shared.index.health().now() == Health::Rebuilding {
            rebuild(&shared, &mut memory).await
        } else if shared.index.health().now() == Health::Fast && Instant::now() >= next_pass {
            passed = Instant::now();
            next_pass = passed + PASS_EVERY.mul_f64(0.75 + rand::random::<f64>() / 2.0);
            pass(&shared, &mut memory).await
        } else {
            Ok(())
        };
        match worked {
            Ok(()) => pause = FIRST_PAUSE,
            // The index has said so.
            Err(PassError::Index(error)) => tracing::debug!(%error, "cannot reconcile"),
            Err(PassError::Store(error)) => {
                tracing::warn!(%error, "cannot reconcile");
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        // A rebuild that failed is tried again soon, not at once.
        let soon = Instant::now() + pause;
        let until = match shared.index.health().now() {
            Health::Rebuilding => soon,
            Health::Fast | Health::Degraded => next_pass.max(soon),
        };
        tokio::select! {
            () = shared.stop_loops.cancelled() => return,
            () = tokio::time::sleep_until(until) => {}
            () = shared.reconcile.notified() => next_pass = next_pass.min(passed + SHORTEST_PAUSE),
        }
    }
}

/// Feed the index everything due within the horizon. The epoch is set first: what is committed after that is hinted by
/// its own writer, what was committed before is read here.
async fn rebuild(shared: &Shared, memory: &mut Memory) -> Result<(), PassError> {
    let began = Instant::now();
    let troubles = shared.index.health().troubles();
    if shared.index.health().begins_from_nothing() {
        // As `tickr rebuild` does; other runners notice, and feed what they think is missing as well.
        shared.index.forget().await?;
    }
    shared.index.begin_epoch().await?;
    let now = shared.store.clock().now();
    let until = now + horizon(shared);
    let mut compare = Compare::begin(shared).await?;
    let mut hinted = 0;
    let mut page = shared.store.due_page(None, until, PAGE).await?;
    loop {
        // The next page is read while Redis takes this one.
        let next = page.next;
        let read = async {
            match next {
                Some(after) => shared.store.due_page(Some(after), until, PAGE).await.map(Some).map_err(PassError::from),
                None => Ok(None),
            }
        };
        let feed = async {
            let missing = compare.missing(page.jobs, now).await?;
            if shared.index.hint(&missing).await?.left_out > 0 {
                // The rest of a long backlog is the refill's, and need not be offered again and again.
                compare.left_out = shared.index.left_out().await?;
            }
            Ok(missing.len())
        };
        let (fed, read) = tokio::try_join!(feed, read)?;
        hinted += fed;
        match read {
            Some(next) => page = next,
            None => break,
        }
    }
    *memory = Memory { compared_until: now, walk: None, fed_until: Some(until), noted: HashSet::new() };
    if !shared.index.health().rebuilt(troubles, hinted, began.elapsed()) {
        // Redis failed somebody since this began: hints may be missing that no page has shown.
        return Ok(());
    }
    metrics::counter!("tickr_rebuilds_total").increment(1);
    tracing::info!(jobs = hinted, elapsed_ms = began.elapsed().as_millis() as u64, "index fed from the store");
    shared.broker.events().emit(Event::Rebuilt { jobs: hinted });
    shared.index.look_for_weakness().await;
    Ok(())
}

async fn pass(shared: &Shared, memory: &mut Memory) -> Result<(), PassError> {
    let now = shared.store.clock().now();
    let mut compare = Compare::begin(shared).await?;
    let mut suspects = Suspects { shared, found: Vec::new(), brought_back: 0 };

    // What is due next. The sorted set takes an entry twice without harm.
    let mut drift = feed(shared, now, now + LOOK_AHEAD).await?;

    // What became due since the last pass; of a long backlog a part, and the next pass goes on from there.
    let mut after = Some(DueCursor::at(memory.compared_until - GRACE - GRACE));
    for _ in 0..RECENT_PAGES {
        let page = shared.store.due_page(after, now, PAGE).await?;
        after = page.next;
        suspects.add(compare.missing(page.jobs, now - GRACE).await?).await?;
        if after.is_none() {
            break;
        }
    }
    memory.compared_until = after.map_or(now, |place| place.moment() + GRACE + GRACE);

    // The oldest overdue work, and beside it a walk through whatever backlog there is. The note of what a full list left
    // out may have been lost, and with it the way to the jobs behind the list: then the walk begins anew.
    let noted: HashSet<Line> = compare.left_out.keys().cloned().collect();
    if !memory.noted.is_subset(&noted) {
        memory.walk = None;
    }
    memory.noted = noted;
    let mut after = None;
    for _ in 0..OLDEST_PAGES {
        let page = shared.store.due_page(after, now - GRACE, PAGE).await?;
        after = page.next;
        suspects.add(compare.missing(page.jobs, now - GRACE).await?).await?;
        if after.is_none() {
            break;
        }
    }
    if after.is_some() {
        let mut after = memory.walk.take().or(after);
        for _ in 0..WALK_PAGES {
            let page = shared.store.due_page(after, now - GRACE, PAGE).await?;
            after = page.next;
            suspects.add(compare.missing(page.jobs, now - GRACE).await?).await?;
            if after.is_none() {
                break;
            }
        }
        memory.walk = after;
    }
    drift += suspects.end().await?;
    metrics::gauge!("tickr_index_drift").set(drift as f64);
    shared.index.health().compared(drift);

    // What the horizon newly reaches.
    let reach = now + horizon(shared);
    let fed_until = memory.fed_until.unwrap_or(now);
    if reach - fed_until >= (horizon(shared) / 4).min(TimeDelta::seconds(30)) {
        feed(shared, fed_until, reach).await?;
        memory.fed_until = Some(reach);
    }
    Ok(())
}

/// Hint everything that is due from `from` to `until`; how much of it the index did not know, or for another time.
async fn feed(shared: &Shared, from: Timestamp, until: Timestamp) -> Result<usize, PassError> {
    let (mut after, mut unknown) = (Some(DueCursor::at(from)), 0);
    while after.is_some() {
        let page = shared.store.due_page(after, until, PAGE).await?;
        after = page.next;
        unknown += shared.index.hint(&page.jobs.iter().map(entry).collect::<Vec<_>>()).await?.changed;
    }
    Ok(unknown)
}

/// Overdue jobs that stand in no list, brought back a page at a time: after a long outage there may be any number.
struct Suspects<'a> {
    shared: &'a Shared,
    found: Vec<Entry>,
    brought_back: usize,
}

impl Suspects<'_> {
    async fn add(&mut self, found: Vec<Entry>) -> Result<(), PassError> {
        self.found.extend(found);
        if self.found.len() >= PAGE {
            self.brought_back += bring_back(self.shared, std::mem::take(&mut self.found)).await?;
        }
        Ok(())
    }

    /// Bring back the rest; how many it were in all.
    async fn end(self) -> Result<usize, PassError> {
        Ok(self.brought_back + bring_back(self.shared, self.found).await?)
    }
}

/// Hint again what is still missing after a moment. Most suspects are on their way: popped and about to be claimed, or
/// claimed since they were read. Hinting those would only make workers claim in vain.
async fn bring_back(shared: &Shared, suspects: Vec<Entry>) -> Result<usize, PassError> {
    if suspects.is_empty() {
        return Ok(0);
    }
    tokio::select! {
        () = shared.stop_loops.cancelled() => return Ok(0),
        () = tokio::time::sleep(SECOND_LOOK) => {}
    }
    let waiting = shared.store.still_waiting(suspects.iter().map(|entry| entry.id).collect()).await?;
    // Overdue and yet scheduled for later: offered to a runner that has no handler for it, and resting for a moment. For
    // longer than that only a wrong score keeps an entry.
    let rested = (shared.store.clock().now() + LONGEST_REST).timestamp_millis();
    let scores = shared.index.scores(&suspects).await?;
    let restless = suspects.into_iter().zip(scores).filter(|(_, score)| score.is_none_or(|ms| ms > rested));
    let mut listed: HashMap<Line, HashSet<JobId>> = HashMap::new();
    let mut missing = Vec::new();
    for suspect in restless.map(|(entry, _)| entry).filter(|entry| waiting.contains(&entry.id)) {
        if !listed.contains_key(&suspect.line) {
            listed.insert(suspect.line.clone(), shared.index.ready_ids(&suspect.line).await?);
        }
        if listed.get_mut(&suspect.line).is_some_and(|ids| ids.insert(suspect.id)) {
            missing.push(suspect);
        }
    }
    let hinted = shared.index.hint(&missing).await?;
    if hinted.ready > 0 {
        tracing::info!(jobs = hinted.ready, "overdue jobs were missing from the index and are back");
        metrics::counter!("tickr_drift_repaired_total").increment(hinted.ready as u64);
    }
    Ok(hinted.ready)
}

fn horizon(shared: &Shared) -> TimeDelta {
    TimeDelta::from_std(shared.index.horizon()).unwrap_or(TimeDelta::minutes(15))
}

fn entry(job: &DueJob) -> Entry {
    Entry { id: job.id, line: Line::new(&job.queue, job.priority), execute_at: job.execute_at }
}

/// Compares rows with the ready lists, each of which is read at most once.
struct Compare<'a> {
    shared: &'a Shared,
    ready: HashMap<Line, HashSet<JobId>>,
    /// Where the lines that left jobs out did so: from there on they are the refill's.
    left_out: HashMap<Line, RefillPlace>,
}

impl<'a> Compare<'a> {
    async fn begin(shared: &'a Shared) -> Result<Self, IndexError> {
        Ok(Self { shared, ready: HashMap::new(), left_out: shared.index.left_out().await? })
    }

    /// Those that the index should hold and does not: all that are not due by `now`, and of the others those that
    /// stand in no ready list.
    async fn missing(&mut self, jobs: Vec<DueJob>, now: Timestamp) -> Result<Vec<Entry>, IndexError> {
        let mut missing = Vec::new();
        for job in &jobs {
            let entry = entry(job);
            if job.execute_at <= now {
                if !self.ready.contains_key(&entry.line) {
                    let ids = self.shared.index.ready_ids(&entry.line).await?;
                    self.ready.insert(entry.line.clone(), ids);
                }
                if self.left_out.get(&entry.line).is_some_and(|place| job.execute_at >= place.execute_at) {
                    continue;
                }
                if !self.ready.get_mut(&entry.line).is_some_and(|listed| listed.insert(job.id)) {
                    continue;
                }
            }
            missing.push(entry);
        }
        Ok(missing)
    }
}

/// Fill ready lists that left jobs out, whenever the scheduler or the fetcher sees one run low.
pub(super) async fn refill_until_stopped(shared: Arc<Shared>) {
    let lines = Line::of_queues(&shared.settings.queues);
    loop {
        tokio::select! {
            () = shared.stop_loops.cancelled() => return,
            () = shared.refill.notified() => {}
        }
        for line in &lines {
            if let Err(error) = refill(&shared, line).await {
                tracing::warn!(line = line.as_str(), %error, "cannot refill a ready list");
            }
        }
    }
}

async fn refill(shared: &Shared, line: &Line) -> Result<(), PassError> {
    if !shared.index.has_run_low(line).await? {
        return Ok(());
    }
    let Some(refill) = shared.index.begin_refill(line).await? else { return Ok(()) };
    match list_more(shared, line, refill.place).await {
        Ok(rest) => Ok(shared.index.end_refill(line, refill, rest).await?),
        Err(error) => {
            // The note was taken off at the beginning; without it nobody would look for what was left out.
            let place = refill.place;
            shared.index.end_refill(line, refill, Some(place)).await?;
            Err(error)
        }
    }
}

/// List more jobs of a line from a place on, as many as there is room for; where it stopped short.
async fn list_more(shared: &Shared, line: &Line, place: RefillPlace) -> Result<Option<RefillPlace>, PassError> {
    let listed = shared.index.ready_ids(line).await?;
    let room = shared.index.high_water().saturating_sub(listed.len());
    let now = shared.store.clock().now();
    let mut after =
        Some(place.after.map_or(DueCursor::at(place.execute_at), |id| DueCursor::after(place.execute_at, id)));
    let (mut entries, mut rest) = (Vec::with_capacity(room), None);
    'pages: for pages in 1.. {
        let page = shared.store.due_page(after, now, PAGE).await?;
        for job in page.jobs {
            if Line::new(&job.queue, job.priority) != *line || listed.contains(&job.id) {
                continue;
            }
            if entries.len() >= room {
                rest = entries
                    .last()
                    .map(|last: &Entry| RefillPlace { execute_at: last.execute_at, after: Some(last.id) });
                break 'pages;
            }
            entries.push(Entry { id: job.id, line: line.clone(), execute_at: job.execute_at });
        }
        after = page.next;
        let Some(reached) = after else { break };
        if pages == REFILL_PAGES {
            // Few of this line among many of others: the rest in another turn, so that other lines get theirs.
            rest = Some(RefillPlace { execute_at: reached.moment(), after: Some(reached.id()) });
            shared.refill.notify_one();
            break;
        }
    }
    shared.index.hint(&entries).await?;
    Ok(rest)
}
