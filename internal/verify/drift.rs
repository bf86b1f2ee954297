//! The index against the store. Both live on while they are compared, so a disagreement is a suspicion first: it is
//! looked at again until it is gone or has lasted longer than the repair loops need.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use chrono::TimeDelta;

use super::{Check, Pace, Report, VerifySettings};
use crate::index::{Entry, Index, IndexError, Line, RefillPlace};
use crate::job::{JobId, Timestamp};
use crate::store::{Depth, DueJob, DueRange, LinePage, SUSPECT_FROM, Store, StoreError, StuckJob};

/// Rows and entries read at a time.
const PAGE: usize = 2_000;
/// Suspects of one comparison. With so many, the rest is no better.
const MOST_SUSPECTS: usize = 10_000;
/// Between looks at suspects.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Lost index entries are back within this (G3): a job overdue by more is suspect.
const BOUND: TimeDelta = TimeDelta::seconds(6);
/// A job that was offered to a runner which does not know its kind rests in the sorted set, but not for longer.
const LONGEST_REST: TimeDelta = TimeDelta::seconds(10);
/// Overdue jobs of which at least one must be started while a runner is free.
const OLDEST: usize = 1_000;
/// Of these, at least so many of each line.
const OLDEST_OF_LINE: usize = 10;
/// A job that took runners along waits for a place where it can do no harm. Such a job counts as stuck when it is overdue
/// by this.
const SUSPECTS_WAIT: TimeDelta = TimeDelta::minutes(10);

#[derive(Debug, thiserror::Error)]
enum CompareError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Index(#[from] IndexError),
}

/// A disagreement that may pass.
#[derive(Clone, Debug)]
struct Suspect {
    check: Check,
    entry: Entry,
    what: String,
}

/// Compare, wait, compare again; report what lasted.
pub(super) async fn compare(
    store: &Store,
    index: &Index,
    settings: &VerifySettings,
    report: &mut Report,
) -> Result<(), StoreError> {
    let stuck = Stuck::look(store).await?;
    let began = Instant::now();
    let known = match compare_index(store, index, settings, report, began).await {
        Ok(known) => known,
        Err(CompareError::Store(error)) => return Err(error),
        Err(CompareError::Index(error)) => {
            report.skip_index(&error.to_string());
            HashSet::new()
        }
    };
    let Some(stuck) = stuck else { return Ok(()) };
    // What was not started although a runner was free at both ends of the patience, and the queue open all the time.
    let mut left = stuck.still(store).await?;
    while !left.is_empty() && began.elapsed() < settings.patience {
        tokio::time::sleep(LOOK_EVERY.min(settings.patience)).await;
        left = stuck.still(store).await?;
    }
    for job in startable(store, left).await?.into_iter().filter(|job| !known.contains(&job.id)) {
        report.found(Check::Overdue, job.id, format!("due {}, {} in queue {}", job.execute_at, job.kind, job.queue));
    }
    Ok(())
}

/// The jobs that were reported or repaired.
async fn compare_index(
    store: &Store,
    index: &Index,
    settings: &VerifySettings,
    report: &mut Report,
    began: Instant,
) -> Result<HashSet<JobId>, CompareError> {
    if !index.is_whole().await? {
        report.notes.push("the index has no epoch: runners feed it again from the store".into());
    }
    let mut suspects = suspects(store, index, settings.pace, report).await?;
    while !suspects.is_empty() && began.elapsed() < settings.patience {
        tokio::time::sleep(LOOK_EVERY.min(settings.patience)).await;
        suspects = again(store, index, suspects).await?;
    }
    let known = suspects.iter().map(|suspect| suspect.entry.id).collect();
    if settings.repair && !suspects.is_empty() {
        let before = counts(&suspects);
        repair(store, index, &suspects).await?;
        suspects = again(store, index, suspects).await?;
        let after = counts(&suspects);
        for (check, entries) in before {
            report.repaired(check, entries - after.get(&check).copied().unwrap_or(0));
        }
    }
    for Suspect { check, entry, what } in suspects {
        report.found(check, entry.id, what);
    }
    Ok(known)
}

fn counts(suspects: &[Suspect]) -> HashMap<Check, u64> {
    let mut counts = HashMap::new();
    for suspect in suspects {
        *counts.entry(suspect.check).or_default() += 1;
    }
    counts
}

fn entry(job: &DueJob) -> Entry {
    Entry { id: job.id, line: Line::new(&job.queue, job.priority), execute_at: job.execute_at }
}

/// First look: everything of served queues that is due within the horizon, and everything that is scheduled.
async fn suspects(store: &Store, index: &Index, pace: Pace, report: &mut Report) -> Result<Vec<Suspect>, CompareError> {
    let mut suspects = Vec::new();
    let began = Instant::now();
    let now = store.clock().now();
    let horizon = TimeDelta::from_std(index.horizon()).unwrap_or(TimeDelta::minutes(15));
    // The far end of the horizon is fed in steps.
    let until = (now + horizon - (horizon / 4).min(TimeDelta::seconds(30)) - TimeDelta::seconds(10)).max(now);
    let mut look = Look::begin(index).await?;
    let mut walk = store.walk(ranges(store, until).await?, PAGE, Depth::Waiting);
    loop {
        let read = Instant::now();
        let Some(pages) = walk.next().await? else { break };
        let jobs: Vec<DueJob> = pages.iter().flat_map(LinePage::jobs).collect();
        suspects.extend(look.missing(&jobs, now).await?);
        if suspects.len() >= MOST_SUSPECTS || pace.is_over(began) {
            break;
        }
        pace.rest(read).await;
    }
    let (mut from, mut left_over) = (0, 0);
    loop {
        let page = index.scheduled_page(from, PAGE).await?;
        if page.is_empty() || suspects.len() >= MOST_SUSPECTS || pace.is_over(began) {
            break;
        }
        from += page.len();
        report.looked_at.scheduled += page.len() as u64;
        suspects.extend(extra(store, index, page, &mut left_over).await?);
    }
    if pace.is_over(began) {
        report.unchecked("time was over before all of Redis was compared with MySQL".into());
    }
    if left_over > 0 {
        report.notes.push(format!("{left_over} entries of jobs that wait no more are dropped when they come due"));
    }
    Ok(suspects)
}

/// All that is due before or at `until` in the queues that runners serve. Redis need not hold the jobs of other queues: a
/// runner that serves one of these feeds them when it starts.
async fn ranges(store: &Store, until: Timestamp) -> Result<Vec<DueRange>, StoreError> {
    let queues = store.fed_queues().await?;
    let lines = store.lines_of(queues.into_iter().collect()).await?;
    Ok(lines.into_iter().map(|line| DueRange::until(line, until)).collect())
}

/// Entries that lead nowhere: long due and never moved, or of no job and farther ahead than anything is scheduled. An entry
/// of a job that was cancelled, or run early, is none: it stays until its time, when its claim drops it, also after the job
/// was removed.
async fn extra(
    store: &Store,
    index: &Index,
    entries: Vec<Entry>,
    left_over: &mut u64,
) -> Result<Vec<Suspect>, StoreError> {
    let waiting = store.still_waiting(entries.iter().map(|entry| entry.id).collect()).await?;
    let idle: Vec<Entry> = entries.into_iter().filter(|entry| !waiting.contains(&entry.id)).collect();
    let known = store.known(idle.iter().map(|entry| entry.id).collect()).await?;
    let now = store.clock().now();
    let (late, horizon) = (now - BOUND, TimeDelta::from_std(index.horizon()).unwrap_or(TimeDelta::minutes(15)));
    let far = now + horizon + BOUND;
    let mut suspects = Vec::new();
    for entry in idle {
        if entry.execute_at > late && (entry.execute_at <= far || known.contains(&entry.id)) {
            *left_over += 1;
            continue;
        }
        let what = format!("scheduled for {} and does not wait", entry.execute_at);
        suspects.push(Suspect { check: Check::IndexExtra, entry, what });
    }
    Ok(suspects)
}

/// Another look at suspects: those that are left.
async fn again(store: &Store, index: &Index, suspects: Vec<Suspect>) -> Result<Vec<Suspect>, CompareError> {
    let (extra_ones, others): (Vec<Suspect>, Vec<Suspect>) =
        suspects.into_iter().partition(|suspect| suspect.check == Check::IndexExtra);
    let now = store.clock().now();
    let due = store.due_jobs(others.iter().map(|suspect| suspect.entry.id).collect()).await?;
    let mut look = Look::begin(index).await?;
    let mut left = Vec::new();
    // The last runner that served a queue may have ended meanwhile.
    let fed = store.fed_queues().await?;
    let now_due = others.iter().filter_map(|suspect| due.get(&suspect.entry.id));
    let still: Vec<DueJob> = now_due.filter(|job| fed.contains(&job.queue)).cloned().collect();
    for page in still.chunks(PAGE) {
        left.extend(look.missing(page, now).await?);
    }
    let entries: Vec<Entry> = extra_ones.into_iter().map(|suspect| suspect.entry).collect();
    let scores = index.scores(&entries).await?;
    let there = entries.into_iter().zip(scores).filter(|(_, score)| score.is_some()).map(|(entry, _)| entry);
    left.extend(extra(store, index, there.collect(), &mut 0).await?);
    Ok(left)
}

/// Compares rows with the index; each ready list is read once.
struct Look<'a> {
    index: &'a Index,
    ready: HashMap<Line, HashSet<JobId>>,
    left_out: HashMap<Line, RefillPlace>,
}

impl<'a> Look<'a> {
    async fn begin(index: &'a Index) -> Result<Self, IndexError> {
        Ok(Self { index, ready: HashMap::new(), left_out: index.left_out().await? })
    }

    /// Those of these waiting jobs that the index does not know, or knows for another time.
    async fn missing(&mut self, jobs: &[DueJob], now: Timestamp) -> Result<Vec<Suspect>, IndexError> {
        let entries: Vec<Entry> = jobs.iter().map(entry).collect();
        let scores = self.index.scores(&entries).await?;
        let mut suspects = Vec::new();
        for (entry, score) in entries.into_iter().zip(scores) {
            let due_ms = entry.execute_at.timestamp_millis();
            let (check, what) = match score {
                // It rests after it was offered to a runner without a handler for it, or is about to be moved.
                Some(ms) if entry.execute_at <= now && ms <= (now + LONGEST_REST).timestamp_millis() => continue,
                Some(ms) if ms == due_ms => continue,
                // Run before its time: it is listed, and its old entry is dropped when it comes due.
                _ if entry.execute_at <= now && self.listed(&entry).await? => continue,
                _ if entry.execute_at <= now - BOUND => {
                    (Check::Overdue, format!("due {}, and the index will not bring it", entry.execute_at))
                }
                Some(ms) => (Check::IndexScore, format!("due {due_ms}, scheduled for {ms} (unix ms)")),
                None => (Check::IndexMissing, format!("due {}, unknown to the index", entry.execute_at)),
            };
            suspects.push(Suspect { check, entry, what });
        }
        Ok(suspects)
    }

    /// Does it stand in its ready list, or behind the place from which the refill will bring it?
    async fn listed(&mut self, entry: &Entry) -> Result<bool, IndexError> {
        if self.left_out.get(&entry.line).is_some_and(|place| entry.execute_at >= place.execute_at) {
            return Ok(true);
        }
        if !self.ready.contains_key(&entry.line) {
            let ids = self.index.ready_ids(&entry.line).await?;
            self.ready.insert(entry.line.clone(), ids);
        }
        Ok(self.ready.get(&entry.line).is_some_and(|ids| ids.contains(&entry.id)))
    }
}

/// Make the index say what the store says about these.
async fn repair(store: &Store, index: &Index, suspects: &[Suspect]) -> Result<(), CompareError> {
    // Without an epoch it takes nothing. What is committed after this is hinted by its own writer.
    index.begin_epoch().await?;
    let (extra, others): (Vec<&Suspect>, Vec<&Suspect>) =
        suspects.iter().partition(|suspect| suspect.check == Check::IndexExtra);
    let extra: Vec<Entry> = extra.into_iter().map(|suspect| suspect.entry.clone()).collect();
    index.unschedule(&extra).await?;
    let due = store.due_jobs(others.iter().map(|suspect| suspect.entry.id).collect()).await?;
    index.hint(&due.values().map(entry).collect::<Vec<_>>()).await?;
    Ok(())
}

/// The oldest overdue jobs that a runner with a free slot could have started.
struct Stuck {
    jobs: Vec<DueJob>,
}

impl Stuck {
    async fn look(store: &Store) -> Result<Option<Self>, StoreError> {
        let late = store.clock().now() - BOUND;
        // The oldest of each line: a long line must not hide what stands still in another.
        let ranges = ranges(store, late).await?;
        let most = (OLDEST / ranges.len().max(1)).max(OLDEST_OF_LINE);
        let pages = store.due_rows(ranges, most, Depth::Waiting).await?;
        let jobs = startable(store, pages.iter().flat_map(LinePage::jobs).collect()).await?;
        Ok((!jobs.is_empty()).then_some(Self { jobs }))
    }

    /// Those whose queue stands open, if not one of them has been started; otherwise nothing: work goes on.
    async fn still(&self, store: &Store) -> Result<Vec<DueJob>, StoreError> {
        let waiting = store.stuck_jobs(self.jobs.iter().map(|job| job.id).collect()).await?;
        let same = |job: &&DueJob| waiting.get(&job.id).is_some_and(|now| now.job.execute_at == job.execute_at);
        let left: Vec<DueJob> = self.jobs.iter().filter(same).cloned().collect();
        if left.len() < self.jobs.len() {
            return Ok(Vec::new());
        }
        let paused = store.paused_queues().await?;
        Ok(left.into_iter().filter(|job| !paused.contains(&job.queue)).collect())
    }
}

/// Those of these jobs that could be started at this moment: a living runner that takes work has a free slot, the queue
/// is neither paused nor at its limit, and the job need not wait because of the runners that it lost.
async fn startable(store: &Store, jobs: Vec<DueJob>) -> Result<Vec<DueJob>, StoreError> {
    if jobs.is_empty() {
        return Ok(jobs);
    }
    let waiting = store.stuck_jobs(jobs.iter().map(|job| job.id).collect()).await?;
    let late = store.clock().now() - SUSPECTS_WAIT;
    let now = store.startable().await?;
    // While other suspects run there may be no room for one more, for as long as their handlers take.
    let may_wait = |suspect: &StuckJob| now.suspects_run() || suspect.job.execute_at >= late;
    let is_due =
        |job: &DueJob| waiting.get(&job.id).is_some_and(|waiting| waiting.losses < SUSPECT_FROM || !may_wait(waiting));
    Ok(jobs.into_iter().filter(|job| is_due(job) && now.has_room_for(&job.kind, &job.queue)).collect())
}
