//! The reconciler: makes the index hold what MySQL says it should.
//!
//! Redis may lose anything: by a flush, an eviction, a lost hint, or an id popped by a runner that died before its
//! claim. So the reconciler reads MySQL lane by lane, in bounded pages, compares the rows with the index, and hints
//! again what is missing. Surplus entries are harmless, because their claims fail. Missing entries are always put back:
//! - *rebuild*, when the epoch is gone or Redis was out: everything due within the horizon
//! - *pass*, every few seconds: jobs that are due next, and overdue jobs
//! - *feed*: jobs that the horizon newly reaches
//! - *refill*: a full ready list left jobs out and has run low
//!
//! A runner reads the lanes of the queues that it serves, and in a rebuild also those of the other living runners. It
//! never reads other queues, so their backlog does not delay it. No living runner needs their entries: a runner that
//! serves one of these queues does a rebuild when it starts.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use tokio::time::Instant;

use super::EngineState;
use super::turns::{PAGE, PassTurns, Rest, SIDE_BY_SIDE, Turns};
use tickr_event::Event;
use tickr_index::{Entry, Health, IndexError, Lane, RefillPosition};
use tickr_job::{JobId, Name, Priority, Timestamp};
use tickr_store::{Depth, DueCursor, DueLane, DueRange, LinePage, StoreError};

/// Time between passes, before jitter. With the grace period below it bounds how long a lost entry stays lost (G3).
const PASS_EVERY: Duration = Duration::from_secs(3);
/// Shortest time between passes, however often another loop requests one.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// Grace period: the hint of a younger job may still be on its way through a channel.
const GRACE: TimeDelta = TimeDelta::seconds(1);
/// Time before its due time from which an entry is checked.
const LOOK_AHEAD: TimeDelta = TimeDelta::seconds(8);
/// Overdue rows that one pass compares. With more, the lanes take turns.
const ROWS_IN_A_PASS: usize = 100_000;
/// Overdue rows of one lane that one pass compares beyond the length of a full ready list. Rows of executing jobs come
/// first in a lane, and the rows behind the list show whether the note about jobs left out of it was lost.
const ROWS_BEYOND_A_LIST: usize = 10_000;
/// In a lane that is too long for one pass, each pass compares the rows that became due within this time, up to this
/// many pages.
const RECENT: TimeDelta = TimeDelta::seconds(15);
const RECENT_PAGES: usize = 10;
/// Waiting rows at the front of each lane that every pass compares, whether the lane has its turn or not.
const ROWS_OF_A_FRONT: usize = 100;
/// Entries at the front of its ready list with which they are compared. More than rows: entries may be superfluous, and
/// jobs may be listed a little out of order.
const ENTRIES_OF_A_FRONT: usize = 400;
/// Pages that one refill reads.
const REFILL_PAGES: usize = 20;
/// Pauses after failures.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Longest time for which the sorted set hides a job of a kind that a runner does not know.
const MAX_REST: TimeDelta = TimeDelta::seconds(10);
/// Shortest time between two looks at the settings of Redis in passes.
const WEAKNESS_EVERY: Duration = Duration::from_secs(5);
/// Time between the first look at a job that seems to be missing and the second look.
const SECOND_LOOK: Duration = Duration::from_millis(300);

#[derive(Debug, thiserror::Error)]
enum PassError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Index(#[from] IndexError),
}

/// State that the loop keeps between passes.
#[derive(Default)]
struct PassState {
    /// The turns of the lanes in the passes.
    turns: Turns,
    /// Everything due before this time was fed to the index.
    fed_until: Option<Timestamp>,
    /// Lanes whose ready lists had left jobs out.
    noted: HashSet<Lane>,
    /// Time of the last look at the settings of Redis.
    looked_for_weakness: Option<Instant>,
}

pub(super) async fn run_until_stopped(shared: Arc<EngineState>) {
    let mut memory = PassState::default();
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
            // The index has logged this error.
            Err(PassError::Index(error)) => tracing::debug!(%error, "cannot reconcile"),
            Err(PassError::Store(error)) => {
                tracing::warn!(%error, "cannot reconcile");
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
        // A rebuild that failed is tried again soon, but not at once.
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

/// Feed the index everything due within the horizon. The epoch is set first: a job committed after that is hinted by
/// its own writer, a job committed before is read here.
async fn rebuild(shared: &EngineState, memory: &mut PassState) -> Result<(), PassError> {
    let began = Instant::now();
    let troubles = shared.index.health().troubles();
    if shared.index.health().take_start_from_empty() {
        // Other runners notice it, as after `tickr rebuild`, and also feed what they find missing.
        shared.index.forget().await.inspect_err(|_| shared.index.health().could_not_empty())?;
    }
    shared.index.begin_epoch().await?;
    let now = shared.store.clock().now();
    let until = now + horizon(shared);
    let lines = shared.store.lines_of(queues_to_rebuild(shared).await?).await?;
    // First the jobs that are due next, of all lanes: a long backlog of one of them must not make those late.
    let soon = (now + LOOK_AHEAD).min(until);
    let mut hinted = feed(shared, &lines, now, soon).await?.jobs;
    let mut compare = Comparison::begin(shared).await?;
    let overdue = lines.iter().map(|line| DueRange::until(line.clone(), now));
    let mut walk = shared.store.walk(overdue, PAGE, Depth::Waiting);
    while let Some(pages) = walk.next().await? {
        let missing = compare.missing(&pages).await?;
        hinted += missing.len();
        if compare.put_back(missing).await?.left_out > 0 {
            compare.read_notes().await?;
        }
        // The rest of a long backlog is left to the refill, and not even read here.
        walk.retain(|range| !compare.is_left_out(range));
    }
    hinted += feed(shared, &lines, soon, until).await?.jobs;
    *memory = PassState { fed_until: Some(until), ..PassState::default() };
    if !shared.index.health().rebuilt(troubles, hinted, began.elapsed()) {
        // A call to Redis failed since the rebuild began: hints may be missing that no page has shown.
        return Ok(());
    }
    metrics::counter!("tickr_rebuilds_total").increment(1);
    tracing::info!(jobs = hinted, elapsed_ms = began.elapsed().as_millis() as u64, "index fed from the store");
    shared.broker.events().emit(Event::Rebuilt { jobs: hinted });
    shared.index.look_for_weakness().await;
    Ok(())
}

/// Return the queues of this runner, then those of other living runners. Other runners repair their own lanes in their
/// passes, but only for jobs that are due soon. Jobs that are due later they feed in a rebuild, and they may not notice
/// that one is needed.
async fn queues_to_rebuild(shared: &EngineState) -> Result<Vec<Name>, StoreError> {
    let mut queues = shared.settings.queues.clone();
    let own: BTreeSet<Name> = queues.iter().cloned().collect();
    queues.extend(shared.store.fed_queues().await?.difference(&own).cloned());
    Ok(queues)
}

/// Return the queues of this runner, then those of remote workers, which repair nothing themselves. MySQL is not asked
/// for the second ones while the summary of changes shows that there is no such worker.
async fn served_queues(shared: &EngineState) -> Result<Vec<Name>, StoreError> {
    let mut queues = shared.settings.queues.clone();
    if !shared.operator_settings.may_have(|summary| summary.remote_workers) {
        return Ok(queues);
    }
    let own: BTreeSet<Name> = queues.iter().cloned().collect();
    queues.extend(shared.store.remote_queues().await?.difference(&own).cloned());
    Ok(queues)
}

async fn pass(shared: &EngineState, memory: &mut PassState) -> Result<(), PassError> {
    // Compare nothing with a server that is no longer the one that other runners use.
    shared.index.follow_master().await;
    // An operator may change the settings of a running Redis.
    if memory.looked_for_weakness.is_none_or(|looked| looked.elapsed() >= WEAKNESS_EVERY) {
        memory.looked_for_weakness = Some(Instant::now());
        shared.index.look_for_weakness().await;
    }
    let now = shared.store.clock().now();
    let lines = shared.store.lines_of(served_queues(shared).await?).await?;

    // The comparison is bounded, so it comes before the jobs that are due next: any number may be due at one moment.
    // Without unfinished jobs there is nothing to compare, and Redis is not asked.
    let mut drift = if lines.is_empty() {
        memory.forget_all_lanes();
        0
    } else {
        compare_overdue(shared, memory, &lines, now - GRACE).await?
    };
    // Adding an entry to the sorted set twice does no harm.
    drift += feed(shared, &lines, now, now + LOOK_AHEAD).await?.unknown;
    metrics::gauge!("tickr_index_drift").set(drift as f64);
    shared.index.health().record_comparison(drift);

    // Jobs that the horizon newly reaches.
    let reach = now + horizon(shared);
    let fed_until = memory.fed_until.unwrap_or(now);
    if reach - fed_until >= (horizon(shared) / 4).min(TimeDelta::seconds(30)) {
        feed(shared, &lines, fed_until, reach).await?;
        memory.fed_until = Some(reach);
    }
    Ok(())
}

/// Result of a feed.
#[derive(Default)]
struct FeedResult {
    /// Number of jobs hinted.
    jobs: usize,
    /// Number of those that the index did not know, or knew with another time.
    unknown: usize,
}

/// Hint all jobs of these lanes that are due from `from` until `until`. These times lie ahead, so none of the jobs
/// executes.
async fn feed(
    shared: &EngineState,
    lines: &[DueLane],
    from: Timestamp,
    until: Timestamp,
) -> Result<FeedResult, PassError> {
    let ranges = lines.iter().map(|line| DueRange { line: line.clone(), after: DueCursor::at(from), until });
    let mut walk = shared.store.walk(ranges, PAGE, Depth::Owed);
    let (mut fed, mut pages) = (FeedResult::default(), walk.next().await?);
    while let Some(found) = pages {
        let found: Vec<Entry> = found.iter().flat_map(entries).collect();
        // Read the next page while Redis takes this one.
        let hint = async { shared.index.hint(&found).await.map_err(PassError::from) };
        let read = async { walk.next().await.map_err(PassError::from) };
        let (hinted, next) = tokio::try_join!(hint, read)?;
        fed.jobs += found.len();
        fed.unknown += hinted.changed;
        pages = next;
    }
    Ok(fed)
}

/// Compare the overdue jobs of these lanes with the ready lists, and put missing ones back. Return how many were put
/// back.
async fn compare_overdue(
    shared: &EngineState,
    memory: &mut PassState,
    lines: &[DueLane],
    until: Timestamp,
) -> Result<usize, PassError> {
    let mut compare = Comparison::begin(shared).await?;
    let mut suspects = MissingJobs { shared, found: Vec::new(), put_back: 0 };
    memory.forget_gone_lanes(lines, &compare);

    let recent = |line: &DueLane| DueRange { line: line.clone(), after: DueCursor::at(until - RECENT), until };
    let mut walk = shared.store.walk(memory.turns.unfinished().map(recent), PAGE, Depth::Owed);
    for _ in 0..RECENT_PAGES {
        let Some(pages) = walk.next().await? else { break };
        suspects.add(&mut compare, &pages).await?;
    }

    let pass = memory.begin_turns(shared, lines, until).await?;
    let left = compare_in_turns(memory, &mut compare, &mut suspects, pass).await?;
    let fronts: Vec<DueLane> = lines.iter().filter(|line| left.contains(*line)).cloned().collect();
    compare_fronts(&mut compare, &mut suspects, &fronts, until).await?;
    suspects.end(&mut compare).await
}

/// Compare lanes in their turns, as far as this pass comes. Return the lanes that were not read from their front to the
/// end of their turn.
async fn compare_in_turns(
    memory: &mut PassState,
    compare: &mut Comparison<'_>,
    suspects: &mut MissingJobs<'_>,
    mut pass: PassTurns,
) -> Result<HashSet<DueLane>, PassError> {
    let mut left: HashSet<DueLane> = pass.unfinished().cloned().collect();
    compare.from_front = pass.read_from_front();
    left.retain(|line| !compare.from_front.contains(line));
    let most_of_a_line = most_of_a_line(suspects.shared);
    while let Some((ranges, most)) = pass.next_ranges() {
        let pages = suspects.shared.store.due_rows(ranges.clone(), most, Depth::Owed).await?;
        suspects.add(compare, &pages).await?;
        let rows = pages.iter().map(|page| (page.line.clone(), page.rows.len()));
        let more = |(range, page): (DueRange, &LinePage)| page.next.map(|after| DueRange { after, ..range });
        let go_on = ranges.into_iter().zip(&pages).filter_map(more).collect();
        pass.has_read(rows, go_on, most_of_a_line, |range| compare.rest(range));
    }
    left.extend(pass.unfinished().cloned());
    memory.turns.end(pass, |range| !compare.is_left_out(range));
    Ok(left)
}

/// Compare the front of lanes that this pass has not compared. A lost job is late only when the jobs that were due
/// before it have been taken. Then it is at the front of its lane, and must not wait for the turn of the lane.
async fn compare_fronts(
    compare: &mut Comparison<'_>,
    suspects: &mut MissingJobs<'_>,
    lines: &[DueLane],
    until: Timestamp,
) -> Result<(), PassError> {
    if lines.is_empty() {
        return Ok(());
    }
    // From here on what is missing goes to the front of its list.
    suspects.flush(compare).await?;
    let shared = suspects.shared;
    for lines in lines.chunks(SIDE_BY_SIDE) {
        let ranges = lines.iter().map(|line| DueRange::until(line.clone(), until)).collect();
        let pages = shared.store.due_rows(ranges, ROWS_OF_A_FRONT, Depth::Waiting).await?;
        let names: Vec<Lane> = lines.iter().map(name_of).collect();
        let listed = shared.index.ready_fronts(&names, ENTRIES_OF_A_FRONT).await?;
        compare.ready.extend(lines.iter().cloned().zip(listed));
        compare.from_front.extend(lines.iter().cloned());
        compare.fronts.extend(names);
        suspects.add(compare, &pages).await?;
    }
    Ok(())
}

fn most_of_a_line(shared: &EngineState) -> usize {
    shared.index.high_water() + ROWS_BEYOND_A_LIST
}

impl PassState {
    /// Forget the lanes of earlier passes: none of them has an unfinished job.
    fn forget_all_lanes(&mut self) {
        self.turns = Turns::default();
        self.noted.clear();
    }

    /// Forget lanes that are gone. If the note about jobs that a full list left out is lost, the way to the jobs behind
    /// the list is lost with it; then the walk through that lane starts again.
    fn forget_gone_lanes(&mut self, lines: &[DueLane], compare: &Comparison<'_>) {
        let lost = |line: &Lane| self.noted.contains(line) && !compare.left_out.contains_key(line);
        self.turns.forget(&lines.iter().collect(), |line| lost(&name_of(line)));
        self.noted = compare.left_out.keys().cloned().collect();
    }

    /// Begin the turns of a pass over these lanes.
    async fn begin_turns(
        &mut self,
        shared: &EngineState,
        lines: &[DueLane],
        until: Timestamp,
    ) -> Result<PassTurns, IndexError> {
        let names: Vec<Lane> = lines.iter().map(name_of).collect();
        let (_, lengths) = shared.index.depth(&names).await?;
        let rows = ROWS_IN_A_PASS.max(most_of_a_line(shared));
        Ok(self.turns.begin(lines.iter().cloned().zip(lengths), until, rows))
    }
}

/// Overdue jobs that wait in MySQL and are in no ready list. They are put back a page at a time, because there may be
/// any number of them after a long outage.
struct MissingJobs<'a> {
    shared: &'a EngineState,
    found: Vec<Entry>,
    put_back: usize,
}

impl MissingJobs<'_> {
    async fn add(&mut self, compare: &mut Comparison<'_>, pages: &[LinePage]) -> Result<(), PassError> {
        let missing = compare.missing(pages).await?;
        if missing.is_empty() {
            return Ok(());
        }
        // Most of the missing rows are those of executing jobs.
        let waiting = self.shared.store.still_waiting(missing.iter().map(|entry| entry.id).collect()).await?;
        self.found.extend(missing.into_iter().filter(|entry| waiting.contains(&entry.id)));
        if self.found.len() >= PAGE {
            self.flush(compare).await?;
        }
        Ok(())
    }

    /// Put back what was found so far.
    async fn flush(&mut self, compare: &mut Comparison<'_>) -> Result<(), PassError> {
        self.put_back += put_back_missing(self.shared, compare, std::mem::take(&mut self.found)).await?;
        Ok(())
    }

    /// Put the rest back. Return how many were put back in all.
    async fn end(mut self, compare: &mut Comparison<'_>) -> Result<usize, PassError> {
        self.flush(compare).await?;
        Ok(self.put_back)
    }
}

/// Put back jobs that are still missing after a moment. Most of them are under way: popped and about to be claimed, or
/// claimed since they were read. Hinting those would only cause claims that fail.
async fn put_back_missing(
    shared: &EngineState,
    compare: &mut Comparison<'_>,
    suspects: Vec<Entry>,
) -> Result<usize, PassError> {
    let suspects = not_put_off(shared, suspects).await?;
    if suspects.is_empty() {
        return Ok(0);
    }
    tokio::select! {
        () = shared.stop_loops.cancelled() => return Ok(0),
        () = tokio::time::sleep(SECOND_LOOK) => {}
    }
    let suspects = not_put_off(shared, suspects).await?;
    let due = shared.store.due_jobs(suspects.iter().map(|entry| entry.id).collect()).await?;
    // Use their present rows: an operator may have moved them.
    let now = suspects.iter().filter_map(|suspect| due.get(&suspect.id)).map(|job| Entry {
        id: job.id,
        line: Lane::new(&job.queue, job.priority),
        execute_at: job.execute_at,
    });
    let mut of_lines: HashMap<Lane, Vec<Entry>> = HashMap::new();
    for entry in now {
        of_lines.entry(entry.line.clone()).or_default().push(entry);
    }
    let (lines, found): (Vec<Lane>, Vec<Vec<Entry>>) = of_lines.into_iter().unzip();
    let lists = shared.index.ready_lists(&lines).await?;
    let unlisted = found
        .into_iter()
        .zip(lists)
        .flat_map(|(found, mut listed)| found.into_iter().filter(move |e| listed.insert(e.id)));
    let missing: Vec<Entry> = unlisted.collect();
    compare.read_notes().await?;
    let put = compare.put_back(missing).await?;
    compare.read_notes().await?;
    if put.ready > 0 {
        tracing::info!(jobs = put.ready, "put overdue jobs back that were missing from the index");
        metrics::counter!("tickr_drift_repaired_total").increment(put.ready as u64);
    }
    Ok(put.ready)
}

/// Leave out jobs that are overdue but have a later time in the sorted set: they were offered to a runner without a
/// handler for them, and are put off for a moment. An entry with a time further ahead than that has a wrong score.
async fn not_put_off(shared: &EngineState, suspects: Vec<Entry>) -> Result<Vec<Entry>, IndexError> {
    if suspects.is_empty() {
        return Ok(suspects);
    }
    let rested = (shared.store.clock().now() + MAX_REST).timestamp_millis();
    let scores = shared.index.scores(&suspects).await?;
    let not_put_off = suspects.into_iter().zip(scores).filter(|(_, score)| score.is_none_or(|ms| ms > rested));
    Ok(not_put_off.map(|(entry, _)| entry).collect())
}

fn horizon(shared: &EngineState) -> TimeDelta {
    TimeDelta::from_std(shared.index.horizon()).unwrap_or(TimeDelta::minutes(15))
}

/// Return the lane as Redis knows it.
fn name_of(line: &DueLane) -> Lane {
    Lane::new(&line.queue, line.priority)
}

fn entries(page: &LinePage) -> impl Iterator<Item = Entry> + '_ {
    let line = name_of(&page.line);
    page.rows.iter().map(move |row| Entry { id: row.id, line: line.clone(), execute_at: row.execute_at })
}

/// Compares overdue rows with the ready lists. Each list is read once and kept while its lane is read.
struct Comparison<'a> {
    shared: &'a EngineState,
    ready: HashMap<DueLane, HashSet<JobId>>,
    /// Position from which each lane left jobs out of its ready list. The refill puts back the jobs from there on.
    left_out: HashMap<Lane, RefillPosition>,
    /// Lanes that are read from their front.
    from_front: HashSet<DueLane>,
    /// Lanes of which only the front is compared. What is missing there is due before what their lists have.
    fronts: HashSet<Lane>,
    /// Jobs of these lanes that the refill would put back, but only behind the list. They are missing if a listed job
    /// follows them.
    unsure: HashMap<DueLane, Vec<Entry>>,
    /// The first job of each of these lanes that its list has.
    first_listed: HashMap<Lane, Entry>,
}

/// Number of jobs that were put back.
#[derive(Default)]
struct PutBack {
    /// Jobs that a ready list has now, or gets at once by a refill.
    ready: usize,
    /// Jobs for which a list had no room.
    left_out: usize,
}

impl<'a> Comparison<'a> {
    async fn begin(shared: &'a EngineState) -> Result<Self, IndexError> {
        let left_out = shared.index.left_out().await?;
        Ok(Self {
            shared,
            ready: HashMap::new(),
            left_out,
            from_front: HashSet::new(),
            fronts: HashSet::new(),
            unsure: HashMap::new(),
            first_listed: HashMap::new(),
        })
    }

    /// Read the notes again: a list that had no room for all jobs has a note now.
    async fn read_notes(&mut self) -> Result<(), IndexError> {
        self.left_out = self.shared.index.left_out().await?;
        Ok(())
    }

    /// Return whether the rest of this range lies behind the position from which the refill puts jobs back.
    fn is_left_out(&self, range: &DueRange) -> bool {
        let Some(place) = self.left_out.get(&name_of(&range.line)) else { return false };
        let read = (range.after.moment(), range.after.id());
        place.after.map_or(read.0 >= place.execute_at, |id| read >= (place.execute_at, id))
    }

    /// Return what is to be compared of the rest of this range: of a lane that left jobs out, the rows as far as the
    /// list may begin, because Redis may have lost jobs at its front.
    fn rest(&self, range: &DueRange) -> Rest {
        if !self.is_left_out(range) {
            Rest::Rows
        } else if self.may_begin_behind(range) {
            Rest::UpToTheList
        } else {
            Rest::Nothing
        }
    }

    /// Return whether the first job of the ready list may lie behind what was read.
    fn may_begin_behind(&self, range: &DueRange) -> bool {
        let is_filled = self.ready.get(&range.line).is_some_and(|listed| !listed.is_empty());
        is_filled && self.from_front.contains(&range.line) && !self.first_listed.contains_key(&name_of(&range.line))
    }

    /// Return the overdue jobs of these pages that are in no ready list and that no refill will put back.
    async fn missing(&mut self, pages: &[LinePage]) -> Result<Vec<Entry>, IndexError> {
        let new = pages.iter().filter(|page| !page.rows.is_empty() && !self.ready.contains_key(&page.line));
        let new: Vec<&DueLane> = new.map(|page| &page.line).collect();
        let names: Vec<Lane> = new.iter().map(|line| name_of(line)).collect();
        if !new.is_empty() {
            let lists = self.shared.index.ready_lists(&names).await?;
            self.ready.extend(new.into_iter().cloned().zip(lists));
        }
        let mut missing = Vec::new();
        for page in pages {
            let Some(listed) = self.ready.get_mut(&page.line) else { continue };
            let name = name_of(&page.line);
            let place = self.left_out.get(&name);
            let from_front = self.from_front.contains(&page.line);
            for entry in entries(page) {
                if listed.contains(&entry.id) {
                    if from_front && !self.first_listed.contains_key(&name) {
                        // Lists are taken from the front, so the jobs before the first one were there and were lost.
                        missing.append(&mut self.unsure.remove(&page.line).unwrap_or_default());
                        self.first_listed.insert(name.clone(), entry);
                    }
                } else if place.is_none_or(|place| !place.leads_to(&entry)) {
                    missing.push(entry);
                } else if from_front && !self.first_listed.contains_key(&name) {
                    self.unsure.entry(page.line.clone()).or_default().push(entry);
                }
            }
            if page.next.is_none() {
                self.ready.remove(&page.line);
            }
        }
        Ok(missing)
    }

    /// Put missing jobs back, those of each lane in due order. A list with a note takes no hints, so jobs that belong
    /// before what it has are put in front: up to twice the high water, because the refill may have filled their places.
    /// If the list has run low, the hints make the refill begin with them instead.
    async fn put_back(&self, missing: Vec<Entry>) -> Result<PutBack, PassError> {
        let index = &self.shared.index;
        let is_ahead = |entry: &Entry| {
            let first = self.first_listed.get(&entry.line);
            let place = self.left_out.get(&entry.line);
            let is_before = |first: &Entry| (entry.execute_at, entry.id) < (first.execute_at, first.id);
            self.fronts.contains(&entry.line)
                || place.is_some_and(|place| !place.leads_to(entry) || first.is_some_and(is_before))
        };
        let (ahead, mut others): (Vec<Entry>, Vec<Entry>) = missing.into_iter().partition(is_ahead);
        let mut put = PutBack::default();
        if !ahead.is_empty() {
            let names: BTreeSet<Lane> = ahead.iter().map(|entry| entry.line.clone()).collect();
            let names: Vec<Lane> = names.into_iter().collect();
            let (_, lengths) = index.depth(&names).await?;
            let (high, low) = (index.high_water(), index.low_water());
            let room = |(line, length): (Lane, usize)| {
                let is_refilled = length < low && self.left_out.contains_key(&line);
                (line, if is_refilled { None } else { Some((2 * high).saturating_sub(length)) })
            };
            let mut rooms: HashMap<Lane, Option<usize>> = names.into_iter().zip(lengths).map(room).collect();
            let mut first = Vec::new();
            for entry in ahead {
                match rooms.get_mut(&entry.line) {
                    Some(Some(room)) if *room > 0 => {
                        *room -= 1;
                        first.push(entry);
                    }
                    Some(None) => {
                        put.ready += 1;
                        others.push(entry);
                    }
                    _ => others.push(entry),
                }
            }
            index.put_first(&first).await?;
            put.ready += first.len();
        }
        let hinted = index.hint(&others).await?;
        if put.ready > 0 {
            self.shared.refill.notify_one();
        }
        put.ready += hinted.ready;
        put.left_out = hinted.left_out;
        Ok(put)
    }
}

/// Refill ready lists that left jobs out, whenever the scheduler or the fetcher finds that one has run low.
pub(super) async fn refill_until_stopped(shared: Arc<EngineState>) {
    let of_queue = |queue: Name| Priority::all().map(move |priority| DueLane { queue: queue.clone(), priority });
    loop {
        tokio::select! {
            () = shared.stop_loops.cancelled() => return,
            () = shared.refill.notified() => {}
        }
        let noted = match shared.index.left_out().await {
            Ok(noted) => noted,
            Err(error) => {
                tracing::warn!(%error, "cannot refill ready lists");
                continue;
            }
        };
        if noted.is_empty() {
            continue;
        }
        let queues = match served_queues(&shared).await {
            Ok(queues) => queues,
            Err(error) => {
                tracing::warn!(%error, "cannot read the queues of remote workers");
                shared.settings.queues.clone()
            }
        };
        let lines: Vec<DueLane> = queues.into_iter().flat_map(of_queue).collect();
        for line in &lines {
            let name = name_of(line);
            if !noted.contains_key(&name) {
                continue;
            }
            if let Err(error) = refill(&shared, line, &name).await {
                tracing::warn!(line = name.as_str(), %error, "cannot refill a ready list");
            }
        }
    }
}

async fn refill(shared: &EngineState, line: &DueLane, name: &Lane) -> Result<(), PassError> {
    if !shared.index.has_run_low(name).await? {
        return Ok(());
    }
    let Some(refill) = shared.index.begin_refill(name).await? else { return Ok(()) };
    match list_more(shared, line, name, refill.place).await {
        Ok(rest) => Ok(shared.index.end_refill(name, refill, rest).await?),
        Err(error) => {
            // The note was removed at the beginning. Without it, the jobs that were left out would not be found.
            let place = refill.place;
            shared.index.end_refill(name, refill, Some(place)).await?;
            Err(error)
        }
    }
}

/// List more jobs of a lane from a position on, as many as there is room for. Return the position where it stopped
/// short, if it did.
async fn list_more(
    shared: &EngineState,
    line: &DueLane,
    name: &Lane,
    place: RefillPosition,
) -> Result<Option<RefillPosition>, PassError> {
    let listed = shared.index.ready_ids(name).await?;
    let room = shared.index.high_water().saturating_sub(listed.len());
    let after = place.after.map_or(DueCursor::at(place.execute_at), |id| DueCursor::after(place.execute_at, id));
    let range = DueRange { line: line.clone(), after, until: shared.store.clock().now() };
    let mut walk = shared.store.walk([range], PAGE, Depth::Waiting);
    let (mut found, mut rest) = (Vec::with_capacity(room), None);
    'pages: for _ in 0..REFILL_PAGES {
        let Some(pages) = walk.next().await? else { break };
        for entry in pages.iter().flat_map(entries).filter(|entry| !listed.contains(&entry.id)) {
            if found.len() >= room {
                rest = found.last().map(|last: &Entry| DueCursor::after(last.execute_at, last.id)).or(Some(after));
                break 'pages;
            }
            found.push(entry);
        }
        // A refill that stops here continues in another turn, so that other lanes get theirs.
        rest = walk.rest().next().map(|range| range.after);
    }
    if found.len() < room && rest.is_some() {
        shared.refill.notify_one();
    }
    shared.index.hint(&found).await?;
    Ok(rest.map(|rest| RefillPosition { execute_at: rest.moment(), after: Some(rest.id()) }))
}
