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
/// Pages of the oldest overdue work looked at in each pass, and pages of the walk through the rest.
const OLDEST_PAGES: usize = 2;
const WALK_PAGES: usize = 8;
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
}

pub(super) async fn run_until_stopped(shared: Arc<Shared>) {
    let now = shared.store.clock().now();
    let mut memory = Memory { compared_until: now, walk: None, fed_until: None };
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
            Ok(()) => {}
            Err(PassError::Index(error)) => shared.index.health().failed(&error),
            Err(PassError::Store(error)) => tracing::warn!(%error, "cannot reconcile"),
        }
        // A rebuild that failed is tried again soon, not at once.
        let until = match shared.index.health().now() {
            Health::Rebuilding => Instant::now() + Duration::from_millis(200),
            Health::Fast | Health::Degraded => next_pass.max(Instant::now() + Duration::from_millis(200)),
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
    shared.index.begin_epoch().await?;
    let now = shared.store.clock().now();
    let until = now + horizon(shared);
    let mut compare = Compare::begin(shared).await?;
    let mut after = None;
    let mut hinted = 0;
    loop {
        let page = shared.store.due_page(after, until, PAGE).await?;
        let missing = compare.missing(page.jobs, now).await?;
        hinted += missing.len();
        shared.index.hint(&missing).await?;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    *memory = Memory { compared_until: now, walk: None, fed_until: Some(until) };
    shared.index.health().rebuilt();
    metrics::counter!("tickr_rebuilds_total").increment(1);
    tracing::info!(jobs = hinted, elapsed_ms = began.elapsed().as_millis() as u64, "index fed from the store");
    shared.broker.events().emit(Event::Rebuilt { jobs: hinted });
    Ok(())
}

async fn pass(shared: &Shared, memory: &mut Memory) -> Result<(), PassError> {
    let now = shared.store.clock().now();
    let mut compare = Compare::begin(shared).await?;
    let mut suspects = Vec::new();

    // What became due since the last pass, and what is due next.
    let (from, until) = (memory.compared_until - GRACE - GRACE, now + LOOK_AHEAD);
    let mut after = Some(DueCursor::at(from));
    while after.is_some() {
        let page = shared.store.due_page(after, until, PAGE).await?;
        after = page.next;
        let (due, ahead): (Vec<DueJob>, Vec<DueJob>) = page.jobs.into_iter().partition(|job| job.execute_at <= now);
        // The sorted set takes an entry twice without harm.
        shared.index.hint(&ahead.iter().map(entry).collect::<Vec<_>>()).await?;
        suspects.extend(compare.missing(due, now - GRACE).await?);
    }
    memory.compared_until = now;

    // The oldest overdue work, and beside it a walk through whatever backlog there is.
    let mut after = None;
    for _ in 0..OLDEST_PAGES {
        let page = shared.store.due_page(after, now - GRACE, PAGE).await?;
        after = page.next;
        suspects.extend(compare.missing(page.jobs, now - GRACE).await?);
        if after.is_none() {
            break;
        }
    }
    if after.is_some() {
        let mut after = memory.walk.take().or(after);
        for _ in 0..WALK_PAGES {
            let page = shared.store.due_page(after, now - GRACE, PAGE).await?;
            after = page.next;
            suspects.extend(compare.missing(page.jobs, now - GRACE).await?);
            if after.is_none() {
                break;
            }
        }
        memory.walk = after;
    }
    bring_back(shared, suspects).await?;

    // What the horizon newly reaches.
    let reach = now + horizon(shared);
    let fed_until = memory.fed_until.unwrap_or(now);
    if reach - fed_until >= (horizon(shared) / 4).min(TimeDelta::seconds(30)) {
        let mut after = Some(DueCursor::at(fed_until));
        while after.is_some() {
            let page = shared.store.due_page(after, reach, PAGE).await?;
            after = page.next;
            shared.index.hint(&page.jobs.iter().map(entry).collect::<Vec<_>>()).await?;
        }
        memory.fed_until = Some(reach);
    }
    Ok(())
}

/// Hint again what is still missing after a moment. Most suspects are on their way: popped and about to be claimed, or
/// claimed since they were read. Hinting those would only make workers claim in vain.
async fn bring_back(shared: &Shared, mut suspects: Vec<Entry>) -> Result<(), PassError> {
    if suspects.is_empty() {
        return Ok(());
    }
    tokio::select! {
        () = shared.stop_loops.cancelled() => return Ok(()),
        () = tokio::time::sleep(SECOND_LOOK) => {}
    }
    let waiting = shared.store.still_waiting(suspects.iter().map(|entry| entry.id).collect()).await?;
    // Overdue and yet scheduled for later: offered to a runner that has no handler for it, and resting.
    let resting = shared.index.scheduled(&suspects).await?;
    let mut listed: HashMap<Line, HashSet<JobId>> = HashMap::new();
    let mut missing = Vec::new();
    for suspect in suspects.drain(..).filter(|entry| waiting.contains(&entry.id) && !resting.contains(&entry.id)) {
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
    Ok(())
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
    let lines = Line::in_service_order(&shared.settings.queues);
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
    let Some(place) = shared.index.begin_refill(line).await? else { return Ok(()) };
    let listed = shared.index.ready_ids(line).await?;
    let room = shared.index.high_water().saturating_sub(listed.len());
    let now = shared.store.clock().now();
    let mut after =
        Some(place.after.map_or(DueCursor::at(place.execute_at), |id| DueCursor::after(place.execute_at, id)));
    let (mut entries, mut rest) = (Vec::with_capacity(room), None);
    'pages: while after.is_some() {
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
    }
    shared.index.hint(&entries).await?;
    shared.index.end_refill(line, rest).await?;
    Ok(())
}
