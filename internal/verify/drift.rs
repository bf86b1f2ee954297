//! Comparison of the index with the store. Both change during the comparison, so a difference is only a suspicion at
//! first. It is examined again until it disappears, or has lasted longer than the repair loops need.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use chrono::TimeDelta;

use super::{Check, Pace, Report, VerifySettings};
use tickr_index::{Entry, Index, IndexError, Lane, RefillPosition};
use tickr_job::{JobId, Timestamp};
use tickr_store::{Depth, DueJob, DueRange, LinePage, SUSPECT_FROM, Store, StoreError, StuckJob};

/// Number of rows and entries read at a time.
const PAGE: usize = 2_000;
/// Maximum number of suspects in one comparison. The comparison ends there, and the report says so.
const MAX_SUSPECTS: usize = 10_000;
/// Interval between examinations of the suspects.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Lost index entries are restored within this time (G3). A job that is overdue by more is suspect.
const BOUND: TimeDelta = TimeDelta::seconds(6);
/// Longest time that a job rests in the sorted set after it was delivered to a runner that does not know its kind.
const MAX_REST: TimeDelta = TimeDelta::seconds(10);
/// Number of overdue jobs of which at least one must be started while a runner has a free worker.
const OLDEST: usize = 1_000;
/// Minimum number of these jobs from each lane.
const OLDEST_OF_LINE: usize = 10;
/// A job that caused the loss of runners waits until it can run without harm to other jobs. It counts as stuck if it is
/// overdue by more than this.
const SUSPECTS_WAIT: TimeDelta = TimeDelta::minutes(10);

#[derive(Debug, thiserror::Error)]
enum CompareError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Index(#[from] IndexError),
}

/// A difference that may disappear.
#[derive(Clone, Debug)]
struct Suspect {
    check: Check,
    entry: Entry,
    what: String,
}

/// Compare, wait and compare again. Report the differences that last. `left` is the time that is left of the check.
pub(super) async fn compare(
    store: &Store,
    index: &Index,
    (settings, left): (&VerifySettings, Duration),
    report: &mut Report,
) -> Result<(), StoreError> {
    let stuck = OldestOverdue::look(store).await?;
    let began = Instant::now();
    let known = match compare_index(store, index, (settings, left), report, began).await {
        Ok(known) => known,
        Err(CompareError::Store(error)) => return Err(error),
        Err(CompareError::Index(error)) => {
            report.skip_index(&error.to_string());
            HashSet::new()
        }
    };
    let Some(stuck) = stuck else { return Ok(()) };
    // Jobs that were not started although a runner had a free worker at both ends of the patience, and the queue was
    // never paused.
    let mut left = stuck.still(store).await?;
    while !left.is_empty() && began.elapsed() < settings.patience {
        tokio::time::sleep(LOOK_EVERY.min(settings.patience)).await;
        left = stuck.still(store).await?;
    }
    for job in startable(store, left).await?.into_iter().filter(|job| !known.contains(&job.id)) {
        report.add_finding(
            Check::Overdue,
            job.id,
            format!("due {}, {} in queue {}", job.execute_at, job.kind, job.queue),
        );
    }
    Ok(())
}

/// Compare the index with the store. Return the jobs that were reported or repaired.
async fn compare_index(
    store: &Store,
    index: &Index,
    (settings, left): (&VerifySettings, Duration),
    report: &mut Report,
    began: Instant,
) -> Result<HashSet<JobId>, CompareError> {
    if !index.is_whole().await? {
        // Without a runner nothing has fed this Redis: a database was restored beside an empty one. A runner that starts
        // feeds it with all that is due before it waits for anything in it.
        if !settings.repair && store.runner_counts().await?.alive == 0 {
            report.notes.push("Redis has no index, and no runner is alive: the next one builds it from MySQL".into());
            return Ok(HashSet::new());
        }
        report.notes.push("the index has no epoch: runners rebuild it from the store".into());
    }
    let limit = settings.pace.limit_of_index(left, settings.patience);
    let mut suspects = suspects(store, index, (settings.pace, limit), report).await?;
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
            report.record_repair(check, entries - after.get(&check).copied().unwrap_or(0));
        }
    }
    for Suspect { check, entry, what } in suspects {
        report.add_finding(check, entry.id, what);
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
    Entry { id: job.id, line: Lane::new(&job.queue, job.priority), execute_at: job.execute_at }
}

/// Compare for the first time: all jobs of served queues that are due within the horizon, and all scheduled entries.
async fn suspects(
    store: &Store,
    index: &Index,
    (pace, limit): (Pace, Duration),
    report: &mut Report,
) -> Result<Vec<Suspect>, CompareError> {
    let mut suspects = Vec::new();
    let began = Instant::now();
    let is_over = || began.elapsed() >= limit;
    let now = store.clock().now();
    let horizon = TimeDelta::from_std(index.horizon()).unwrap_or(TimeDelta::minutes(15));
    // The far end of the horizon is fed in steps, so jobs there may not be in the index yet.
    let until = (now + horizon - (horizon / 4).min(TimeDelta::seconds(30)) - TimeDelta::seconds(10)).max(now);
    let mut look = IndexComparison::begin(index).await?;
    let mut walk = store.walk(ranges(store, until).await?, PAGE, Depth::Waiting);
    loop {
        let read = Instant::now();
        let Some(pages) = walk.next().await? else { break };
        let jobs: Vec<DueJob> = pages.iter().flat_map(LinePage::jobs).collect();
        suspects.extend(look.missing(&jobs, now).await?);
        if suspects.len() >= MAX_SUSPECTS || is_over() {
            break;
        }
        pace.rest(read).await;
    }
    let (mut from, mut left_over) = (0, 0);
    loop {
        let page = index.scheduled_page(from, PAGE).await?;
        if page.is_empty() || suspects.len() >= MAX_SUSPECTS || is_over() {
            break;
        }
        from += page.len();
        report.looked_at.scheduled += page.len() as u64;
        suspects.extend(extra(store, index, page, &mut left_over).await?);
    }
    if is_over() {
        report.record_unchecked("time was over before all of Redis was compared with MySQL".into());
    } else if suspects.len() >= MAX_SUSPECTS {
        // The suspects may be gone at the second look, and then the rest is all that is wrong.
        report.record_unchecked(format!(
            "Redis and MySQL differ in {} places or more; the rest was not compared",
            suspects.len()
        ));
    }
    if left_over > 0 {
        report.notes.push(format!("{left_over} entries of jobs that no longer wait are dropped when they come due"));
    }
    Ok(suspects)
}

/// Return the ranges of all jobs due at `until` or earlier in the queues that runners serve. Redis need not have the
/// jobs of other queues: a runner that starts to serve one of them feeds its jobs then.
async fn ranges(store: &Store, until: Timestamp) -> Result<Vec<DueRange>, StoreError> {
    let queues = store.fed_queues().await?;
    let lines = store.lines_of(queues.into_iter().collect()).await?;
    Ok(lines.into_iter().map(|line| DueRange::until(line, until)).collect())
}

/// Return the entries without a purpose: long due and never moved, or of no existing job and further ahead than any job
/// is scheduled. The entry of a job that was cancelled, or run early, is not one of them: it stays until its time, also
/// if the job is removed, and its claim then drops it.
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
        let what = format!("scheduled for {}, but the job does not wait", entry.execute_at);
        suspects.push(Suspect { check: Check::IndexExtra, entry, what });
    }
    Ok(suspects)
}

/// Examine suspects again and return those that remain.
async fn again(store: &Store, index: &Index, suspects: Vec<Suspect>) -> Result<Vec<Suspect>, CompareError> {
    let (extra_ones, others): (Vec<Suspect>, Vec<Suspect>) =
        suspects.into_iter().partition(|suspect| suspect.check == Check::IndexExtra);
    let now = store.clock().now();
    let due = store.due_jobs(others.iter().map(|suspect| suspect.entry.id).collect()).await?;
    let mut look = IndexComparison::begin(index).await?;
    let mut left = Vec::new();
    // The last runner that served a queue may have stopped in the meantime.
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

/// Compares rows with the index. Each ready list is read once.
struct IndexComparison<'a> {
    index: &'a Index,
    ready: HashMap<Lane, HashSet<JobId>>,
    left_out: HashMap<Lane, RefillPosition>,
}

impl<'a> IndexComparison<'a> {
    async fn begin(index: &'a Index) -> Result<Self, IndexError> {
        Ok(Self { index, ready: HashMap::new(), left_out: index.left_out().await? })
    }

    /// Return those of these waiting jobs that the index does not have, or has with another due time.
    async fn missing(&mut self, jobs: &[DueJob], now: Timestamp) -> Result<Vec<Suspect>, IndexError> {
        let entries: Vec<Entry> = jobs.iter().map(entry).collect();
        let scores = self.index.scores(&entries).await?;
        let mut suspects = Vec::new();
        for (entry, score) in entries.into_iter().zip(scores) {
            let due_ms = entry.execute_at.timestamp_millis();
            let (check, what) = match score {
                // The job rests because it was delivered to a runner without a handler for it, or it is about to be
                // moved.
                Some(ms) if entry.execute_at <= now && ms <= (now + MAX_REST).timestamp_millis() => continue,
                Some(ms) if ms == due_ms => continue,
                // The job was run before its time: it is in its ready list, and its old entry is dropped when it comes
                // due.
                _ if entry.execute_at <= now && self.is_listed(&entry).await? => continue,
                _ if entry.execute_at <= now - BOUND => {
                    (Check::Overdue, format!("due {}, and the index will not deliver it", entry.execute_at))
                }
                Some(ms) => (Check::IndexScore, format!("due {due_ms}, scheduled for {ms} (unix ms)")),
                None => (Check::IndexMissing, format!("due {}, unknown to the index", entry.execute_at)),
            };
            suspects.push(Suspect { check, entry, what });
        }
        Ok(suspects)
    }

    /// Return true if the entry is in its ready list, or after the position from which the refill will deliver it.
    async fn is_listed(&mut self, entry: &Entry) -> Result<bool, IndexError> {
        if self.left_out.get(&entry.line).is_some_and(|place| place.leads_to(entry)) {
            return Ok(true);
        }
        if !self.ready.contains_key(&entry.line) {
            let ids = self.index.ready_ids(&entry.line).await?;
            self.ready.insert(entry.line.clone(), ids);
        }
        Ok(self.ready.get(&entry.line).is_some_and(|ids| ids.contains(&entry.id)))
    }
}

/// Correct the index entries of these suspects from the store.
async fn repair(store: &Store, index: &Index, suspects: &[Suspect]) -> Result<(), CompareError> {
    // Without an epoch the index accepts nothing. Each writer hints the jobs that are committed after this.
    index.begin_epoch().await?;
    let (extra, others): (Vec<&Suspect>, Vec<&Suspect>) =
        suspects.iter().partition(|suspect| suspect.check == Check::IndexExtra);
    let extra: Vec<Entry> = extra.into_iter().map(|suspect| suspect.entry.clone()).collect();
    index.unschedule(&extra).await?;
    let due = store.due_jobs(others.iter().map(|suspect| suspect.entry.id).collect()).await?;
    index.hint(&due.values().map(entry).collect::<Vec<_>>()).await?;
    Ok(())
}

/// The oldest overdue jobs that a runner with a free worker could have started.
struct OldestOverdue {
    jobs: Vec<DueJob>,
}

impl OldestOverdue {
    async fn look(store: &Store) -> Result<Option<Self>, StoreError> {
        let late = store.clock().now() - BOUND;
        // The oldest jobs of each lane: a long lane must not hide a blocked one.
        let ranges = ranges(store, late).await?;
        let most = (OLDEST / ranges.len().max(1)).max(OLDEST_OF_LINE);
        let pages = store.due_rows(ranges, most, Depth::Waiting).await?;
        let jobs = startable(store, pages.iter().flat_map(LinePage::jobs).collect()).await?;
        Ok((!jobs.is_empty()).then_some(Self { jobs }))
    }

    /// Return the jobs whose queue is not paused, if none of the jobs has been started. If one has been started, return
    /// nothing, because work continues.
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

/// Return those of these jobs that could be started now. A living runner that takes work has a free worker, the queue
/// is neither paused nor at its limit, the job need not wait because of the runners that it lost, and the version of
/// that runner has not given it back unread.
async fn startable(store: &Store, jobs: Vec<DueJob>) -> Result<Vec<DueJob>, StoreError> {
    if jobs.is_empty() {
        return Ok(jobs);
    }
    let waiting = store.stuck_jobs(jobs.iter().map(|job| job.id).collect()).await?;
    let late = store.clock().now() - SUSPECTS_WAIT;
    let now = store.startable().await?;
    // While other suspects run there may be no room for another one, for as long as their handlers run.
    let may_wait = |suspect: &StuckJob| now.suspects_run() || suspect.job.execute_at >= late;
    let is_due =
        |job: &DueJob| waiting.get(&job.id).is_some_and(|waiting| waiting.losses < SUSPECT_FROM || !may_wait(waiting));
    // Such a job waits for a runner of another version, and that one may have no free worker.
    let is_spared = |id: &JobId| waiting.get(id).is_some_and(|waiting| waiting.spared > 0);
    let refused = store.editions_that_refused(jobs.iter().map(|job| job.id).filter(is_spared).collect()).await?;
    let nothing = BTreeSet::new();
    let has_room = |job: &DueJob| now.has_room_for(&job.kind, &job.queue, refused.get(&job.id).unwrap_or(&nothing));
    Ok(jobs.into_iter().filter(|job| is_due(job) && has_room(job)).collect())
}
