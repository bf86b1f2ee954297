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
/// Work younger than this may still be on its way through a channel.
const GRACE: TimeDelta = TimeDelta::seconds(1);
/// How far ahead of its time an entry is checked.
const LOOK_AHEAD: TimeDelta = TimeDelta::seconds(8);
/// Rows in one page.
const PAGE: usize = 2_000;
/// Most rows of overdue work looked at in one pass.
const MOST_OVERDUE: usize = 20_000;

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
    let mut next_pass = Instant::now();
    loop {
        let worked = if shared.index.health().now() == Health::Rebuilding {
            rebuild(&shared, &mut memory).await
        } else if shared.index.health().now() == Health::Fast && Instant::now() >= next_pass {
            next_pass = Instant::now() + PASS_EVERY.mul_f64(0.75 + rand::random::<f64>() / 2.0);
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
            () = shared.reconcile.notified() => next_pass = Instant::now(),
        }
    }
}

/// Feed the index everything due within the horizon. The epoch is set first: what is committed after that is hinted by
/// its own writer, what was committed before is read here.
async fn rebuild(shared: &Shared, memory: &mut Memory) -> Result<(), PassError> {
    let began = Instant::now();
    shared.index.begin_epoch().await?;
    let now = shared.store.clock().now();
    let until = now + TimeDelta::from_std(shared.index.horizon()).unwrap_or(TimeDelta::minutes(15));
    let mut compare = Compare::new(shared);
    let mut after = None;
    loop {
        let page = shared.store.due_page(after, until, PAGE).await?;
        compare.hint_missing(&page.jobs, now).await?;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    *memory = Memory { compared_until: now, walk: None, fed_until: Some(until) };
    shared.index.health().rebuilt();
    metrics::counter!("tickr_rebuilds_total").increment(1);
    tracing::info!(jobs = compare.hinted, elapsed_ms = began.elapsed().as_millis() as u64, "index fed from the store");
    shared.broker.events().emit(Event::Rebuilt { jobs: compare.hinted });
    Ok(())
}

async fn pass(shared: &Shared, memory: &mut Memory) -> Result<(), PassError> {
    let now = shared.store.clock().now();
    let mut compare = Compare::new(shared);

    // What became due since the last pass, and what is due next.
    let (from, until) = (memory.compared_until - GRACE - GRACE, now + LOOK_AHEAD);
    let mut after = Some(DueCursor::at(from));
    while after.is_some() {
        let page = shared.store.due_page(after, until, PAGE).await?;
        // The sorted set takes an entry twice without harm; a ready list would not, so the young are left alone.
        let old_enough: Vec<DueJob> =
            page.jobs.into_iter().filter(|job| job.execute_at <= now - GRACE || job.execute_at > now).collect();
        compare.hint_missing(&old_enough, now).await?;
        after = page.next;
    }
    memory.compared_until = now;

    // The oldest overdue work, and behind it a walk through whatever backlog there is.
    let mut after = memory.walk.take();
    let mut looked_at = 0;
    while looked_at < MOST_OVERDUE {
        let page = shared.store.due_page(after, now - GRACE, PAGE).await?;
        looked_at += PAGE;
        compare.hint_missing(&page.jobs, now).await?;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    memory.walk = after;

    // What the horizon newly reaches.
    let horizon = TimeDelta::from_std(shared.index.horizon()).unwrap_or(TimeDelta::minutes(15));
    let reach = now + horizon;
    let fed_until = memory.fed_until.unwrap_or(now);
    if reach - fed_until >= (horizon / 4).min(TimeDelta::seconds(30)) {
        let mut after = Some(DueCursor::at(fed_until));
        while after.is_some() {
            let page = shared.store.due_page(after, reach, PAGE).await?;
            compare.hint_missing(&page.jobs, now).await?;
            after = page.next;
        }
        memory.fed_until = Some(reach);
    }
    if compare.missing > 0 {
        tracing::info!(jobs = compare.missing, "overdue jobs were missing from the index and are back");
        metrics::counter!("tickr_drift_repaired_total").increment(compare.missing as u64);
    }
    Ok(())
}

/// Compares rows with the ready lists, each of which is read at most once, and hints what is missing.
struct Compare<'a> {
    shared: &'a Shared,
    ready: HashMap<Line, HashSet<JobId>>,
    /// Entries hinted.
    hinted: usize,
    /// Overdue entries among them, which should have been there.
    missing: usize,
}

impl<'a> Compare<'a> {
    fn new(shared: &'a Shared) -> Self {
        Self { shared, ready: HashMap::new(), hinted: 0, missing: 0 }
    }

    async fn hint_missing(&mut self, jobs: &[DueJob], now: Timestamp) -> Result<(), IndexError> {
        let mut entries = Vec::new();
        for job in jobs {
            let line = Line::new(&job.queue, job.priority);
            if job.execute_at <= now {
                if !self.ready.contains_key(&line) {
                    let ids = self.shared.index.ready_ids(&line).await?;
                    self.ready.insert(line.clone(), ids);
                }
                let listed = self.ready.get_mut(&line);
                // A full list has a note of what it left out; its refill brings these.
                let full = listed.as_ref().is_some_and(|ids| ids.len() >= self.shared.index.high_water());
                if full || !listed.is_some_and(|ids| ids.insert(job.id)) {
                    continue;
                }
                self.missing += 1;
            }
            entries.push(Entry { id: job.id, line, execute_at: job.execute_at });
        }
        self.hinted += entries.len();
        self.shared.index.hint(&entries).await?;
        Ok(())
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
