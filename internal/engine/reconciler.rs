//! The reconciler: makes the index hold what the store says it should.
//!
//! Redis may forget anything: a flush, an eviction, a lost hint, an id popped by a runner that died before its claim.
//! So the store is read line by line, in bounded pages, and compared with the index, and what is missing is hinted again.
//! Too much is harmless (claims drop it), too little never lasts:
//! - *rebuild*, when the epoch is gone or Redis was out: everything due within the horizon
//! - every few seconds: what is due next, and what is overdue
//! - *feed*: what the horizon newly reaches
//! - *refill*: a full ready list left jobs out and has run low
//!
//! A runner reads the lines of the queues that it serves, and in a rebuild those of the other living runners as well. It
//! never reads other queues, so no backlog of theirs delays it. No runner needs their entries: a runner that serves one
//! of these queues begins with a rebuild when it starts.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use tokio::time::Instant;

use super::Shared;
use crate::event::Event;
use crate::index::{Entry, Health, IndexError, Line, RefillPlace};
use crate::job::{JobId, Name, Priority, Timestamp};
use crate::store::{Depth, DueCursor, DueLine, DueRange, LinePage, StoreError};

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
/// Overdue rows that one pass compares. With more, the lines that were compared longest ago come first in the next pass.
const ROWS_IN_A_PASS: usize = 100_000;
/// Overdue rows of one line that one pass compares beyond a full ready list: those that execute stand in front of it, and
/// behind it those that show that the note of what it left out is lost.
const ROWS_BEYOND_A_LIST: usize = 10_000;
/// Of a line that is too long for one pass, what became due lately is compared in each, up to so many pages.
const RECENT: TimeDelta = TimeDelta::seconds(15);
const RECENT_PAGES: usize = 10;
/// A ready list with fewer entries is compared before the longer ones: what it lost would start soon.
const SHORT_LIST: usize = 2_000;
/// Pages that one refill reads.
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
#[derive(Default)]
struct Memory {
    /// When each line was compared last.
    compared: HashMap<DueLine, Instant>,
    /// Where to go on in lines that are too long for one pass.
    walks: HashMap<DueLine, DueCursor>,
    /// Everything due before this has been fed to the index.
    fed_until: Option<Timestamp>,
    /// Lines that had left jobs out.
    noted: HashSet<Line>,
}

pub(super) async fn run_until_stopped(shared: Arc<Shared>) {
    let mut memory = Memory::default();
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
    let lines = shared.store.lines_of(queues_to_rebuild(shared).await?).await?;
    let mut compare = Compare::begin(shared).await?;
    let mut hinted = 0;
    let overdue = lines.iter().map(|line| DueRange::until(line.clone(), now));
    let mut walk = shared.store.walk(overdue, PAGE, Depth::Waiting);
    while let Some(pages) = walk.next().await? {
        let missing = compare.missing(&pages).await?;
        hinted += missing.len();
        if shared.index.hint(&missing).await?.left_out > 0 {
            compare.read_notes().await?;
        }
        // The rest of a long backlog is the refill's: it is not even read here.
        walk.retain(|range| !compare.is_left_out(range));
    }
    hinted += feed(shared, &lines, now, until).await?.jobs;
    *memory = Memory { fed_until: Some(until), ..Memory::default() };
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

/// The queues of this runner first, then those of other living runners. These repair their own lines, but only what is
/// due soon: what becomes due later they feed in their own rebuilds, and they may not notice that one is needed.
async fn queues_to_rebuild(shared: &Shared) -> Result<Vec<Name>, StoreError> {
    let mut queues = shared.settings.queues.clone();
    let own: BTreeSet<Name> = queues.iter().cloned().collect();
    queues.extend(shared.store.fed_queues().await?.difference(&own).cloned());
    Ok(queues)
}

async fn pass(shared: &Shared, memory: &mut Memory) -> Result<(), PassError> {
    let now = shared.store.clock().now();
    let lines = shared.store.lines_of(shared.settings.queues.clone()).await?;

    // What is due next. The sorted set takes an entry twice without harm.
    let mut drift = feed(shared, &lines, now, now + LOOK_AHEAD).await?.unknown;
    drift += compare_overdue(shared, memory, &lines, now - GRACE).await?;
    metrics::gauge!("tickr_index_drift").set(drift as f64);
    shared.index.health().compared(drift);

    // What the horizon newly reaches.
    let reach = now + horizon(shared);
    let fed_until = memory.fed_until.unwrap_or(now);
    if reach - fed_until >= (horizon(shared) / 4).min(TimeDelta::seconds(30)) {
        feed(shared, &lines, fed_until, reach).await?;
        memory.fed_until = Some(reach);
    }
    Ok(())
}

/// What a feed did.
#[derive(Default)]
struct Fed {
    /// Jobs that were hinted.
    jobs: usize,
    /// Those of them that the index did not know, or for another time.
    unknown: usize,
}

/// Hint everything of these lines that is due from `from` to `until`, which is not yet: so none of it executes.
async fn feed(shared: &Shared, lines: &[DueLine], from: Timestamp, until: Timestamp) -> Result<Fed, PassError> {
    let ranges = lines.iter().map(|line| DueRange { line: line.clone(), after: DueCursor::at(from), until });
    let mut walk = shared.store.walk(ranges, PAGE, Depth::Owed);
    let (mut fed, mut pages) = (Fed::default(), walk.next().await?);
    while let Some(found) = pages {
        let found: Vec<Entry> = found.iter().flat_map(entries).collect();
        // The next page is read while Redis takes this one.
        let hint = async { shared.index.hint(&found).await.map_err(PassError::from) };
        let read = async { walk.next().await.map_err(PassError::from) };
        let (hinted, next) = tokio::try_join!(hint, read)?;
        fed.jobs += found.len();
        fed.unknown += hinted.changed;
        pages = next;
    }
    Ok(fed)
}

/// Compare the overdue jobs of these lines with the ready lists, and bring back what is missing: how many it were.
async fn compare_overdue(
    shared: &Shared,
    memory: &mut Memory,
    lines: &[DueLine],
    until: Timestamp,
) -> Result<usize, PassError> {
    let mut compare = Compare::begin(shared).await?;
    let mut suspects = Suspects { shared, found: Vec::new(), brought_back: 0 };
    memory.follow(lines, &compare);

    let recent = |line: &DueLine| DueRange { line: line.clone(), after: DueCursor::at(until - RECENT), until };
    let mut walk = shared.store.walk(memory.walks.keys().map(recent), PAGE, Depth::Owed);
    for _ in 0..RECENT_PAGES {
        let Some(pages) = walk.next().await? else { break };
        suspects.add(&mut compare, &pages).await?;
    }

    let most_of_a_line = shared.index.high_water() + ROWS_BEYOND_A_LIST;
    let (mut left, mut read) = (ROWS_IN_A_PASS.max(most_of_a_line), HashMap::<DueLine, usize>::new());
    let ranges = memory.in_turn(shared, lines, until).await?;
    let mut walk = shared.store.walk(ranges, PAGE, Depth::Owed);
    let began = Instant::now();
    while let Some(pages) = walk.next().await? {
        suspects.add(&mut compare, &pages).await?;
        for page in &pages {
            *read.entry(page.line.clone()).or_default() += page.rows.len();
            left = left.saturating_sub(page.rows.len());
            memory.compared.insert(page.line.clone(), began);
            memory.walks.remove(&page.line);
        }
        walk.retain(|range| {
            let too_long = read.get(&range.line).is_some_and(|rows| *rows >= most_of_a_line);
            if too_long {
                memory.walks.insert(range.line.clone(), range.after);
            }
            !too_long && !compare.is_left_out(range)
        });
        if left == 0 {
            let begun = walk.rest().filter(|range| read.contains_key(&range.line));
            memory.walks.extend(begun.map(|range| (range.line.clone(), range.after)));
            break;
        }
    }
    suspects.end().await
}

impl Memory {
    /// Forget lines that are gone. The note of what a full list left out may have been lost, and with it the way to the
    /// jobs behind the list: then the walk through that line begins anew.
    fn follow(&mut self, lines: &[DueLine], compare: &Compare<'_>) {
        let lines: HashSet<&DueLine> = lines.iter().collect();
        let lost = |line: &Line| self.noted.contains(line) && !compare.left_out.contains_key(line);
        self.walks.retain(|line, _| lines.contains(line) && !lost(&name_of(line)));
        self.compared.retain(|line, _| lines.contains(line));
        self.noted = compare.left_out.keys().cloned().collect();
    }

    /// What to compare, the lines with short lists first, then those that were compared longest ago.
    async fn in_turn(&self, shared: &Shared, lines: &[DueLine], until: Timestamp) -> Result<Vec<DueRange>, IndexError> {
        let names: Vec<Line> = lines.iter().map(name_of).collect();
        let (_, lengths) = shared.index.depth(&names).await?;
        let mut lines: Vec<(&DueLine, usize)> = lines.iter().zip(lengths).collect();
        let ago = |line: &DueLine| self.compared.get(line).map_or(Duration::MAX, Instant::elapsed);
        lines.sort_by_cached_key(|(line, length)| (*length >= SHORT_LIST, Reverse(ago(line))));
        let after = |line: &DueLine| self.walks.get(line).copied().unwrap_or(DueCursor::FRONT);
        Ok(lines.into_iter().map(|(line, _)| DueRange { line: line.clone(), after: after(line), until }).collect())
    }
}

/// Overdue jobs that wait and stand in no list, brought back a page at a time: after a long outage there may be any
/// number.
struct Suspects<'a> {
    shared: &'a Shared,
    found: Vec<Entry>,
    brought_back: usize,
}

impl Suspects<'_> {
    async fn add(&mut self, compare: &mut Compare<'_>, pages: &[LinePage]) -> Result<(), PassError> {
        let missing = compare.missing(pages).await?;
        if missing.is_empty() {
            return Ok(());
        }
        // Most of them execute.
        let waiting = self.shared.store.still_waiting(missing.iter().map(|entry| entry.id).collect()).await?;
        self.found.extend(missing.into_iter().filter(|entry| waiting.contains(&entry.id)));
        if self.found.len() >= PAGE {
            self.brought_back += bring_back(self.shared, std::mem::take(&mut self.found)).await?;
            compare.read_notes().await?;
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
    let suspects = restless(shared, suspects).await?;
    if suspects.is_empty() {
        return Ok(0);
    }
    tokio::select! {
        () = shared.stop_loops.cancelled() => return Ok(0),
        () = tokio::time::sleep(SECOND_LOOK) => {}
    }
    let suspects = restless(shared, suspects).await?;
    let due = shared.store.due_jobs(suspects.iter().map(|entry| entry.id).collect()).await?;
    // As they stand now: an operator may have moved them.
    let now = suspects.iter().filter_map(|suspect| due.get(&suspect.id)).map(|job| Entry {
        id: job.id,
        line: Line::new(&job.queue, job.priority),
        execute_at: job.execute_at,
    });
    let mut of_lines: HashMap<Line, Vec<Entry>> = HashMap::new();
    for entry in now {
        of_lines.entry(entry.line.clone()).or_default().push(entry);
    }
    let (lines, found): (Vec<Line>, Vec<Vec<Entry>>) = of_lines.into_iter().unzip();
    let lists = shared.index.ready_lists(&lines).await?;
    let unlisted = found
        .into_iter()
        .zip(lists)
        .flat_map(|(found, mut listed)| found.into_iter().filter(move |e| listed.insert(e.id)));
    let missing: Vec<Entry> = unlisted.collect();
    let hinted = shared.index.hint(&missing).await?;
    if hinted.ready > 0 {
        tracing::info!(jobs = hinted.ready, "overdue jobs were missing from the index and are back");
        metrics::counter!("tickr_drift_repaired_total").increment(hinted.ready as u64);
    }
    Ok(hinted.ready)
}

/// Without those that are overdue and yet scheduled for later: they were offered to a runner that has no handler for them,
/// and rest for a moment. For longer than that only a wrong score keeps an entry.
async fn restless(shared: &Shared, suspects: Vec<Entry>) -> Result<Vec<Entry>, IndexError> {
    if suspects.is_empty() {
        return Ok(suspects);
    }
    let rested = (shared.store.clock().now() + LONGEST_REST).timestamp_millis();
    let scores = shared.index.scores(&suspects).await?;
    let restless = suspects.into_iter().zip(scores).filter(|(_, score)| score.is_none_or(|ms| ms > rested));
    Ok(restless.map(|(entry, _)| entry).collect())
}

fn horizon(shared: &Shared) -> TimeDelta {
    TimeDelta::from_std(shared.index.horizon()).unwrap_or(TimeDelta::minutes(15))
}

/// The line as Redis knows it.
fn name_of(line: &DueLine) -> Line {
    Line::new(&line.queue, line.priority)
}

fn entries(page: &LinePage) -> impl Iterator<Item = Entry> + '_ {
    let line = name_of(&page.line);
    page.rows.iter().map(move |row| Entry { id: row.id, line: line.clone(), execute_at: row.execute_at })
}

/// Compares overdue rows with the ready lists, each of which is read once for as long as its line is read.
struct Compare<'a> {
    shared: &'a Shared,
    ready: HashMap<DueLine, HashSet<JobId>>,
    /// Where the lines that left jobs out did so: from there on they are the refill's.
    left_out: HashMap<Line, RefillPlace>,
}

impl<'a> Compare<'a> {
    async fn begin(shared: &'a Shared) -> Result<Self, IndexError> {
        Ok(Self { shared, ready: HashMap::new(), left_out: shared.index.left_out().await? })
    }

    /// A list that had no room for all has a note now.
    async fn read_notes(&mut self) -> Result<(), IndexError> {
        self.left_out = self.shared.index.left_out().await?;
        Ok(())
    }

    /// Is what is left of this range behind the place from which the refill brings it?
    fn is_left_out(&self, range: &DueRange) -> bool {
        let place = self.left_out.get(&name_of(&range.line));
        place.is_some_and(|place| range.after.moment() >= place.execute_at)
    }

    /// Those of these overdue jobs that stand in no ready list, and that no refill will bring.
    async fn missing(&mut self, pages: &[LinePage]) -> Result<Vec<Entry>, IndexError> {
        let new = pages.iter().filter(|page| !page.rows.is_empty() && !self.ready.contains_key(&page.line));
        let new: Vec<&DueLine> = new.map(|page| &page.line).collect();
        let names: Vec<Line> = new.iter().map(|line| name_of(line)).collect();
        if !new.is_empty() {
            let lists = self.shared.index.ready_lists(&names).await?;
            self.ready.extend(new.into_iter().cloned().zip(lists));
        }
        let mut missing = Vec::new();
        for page in pages {
            let Some(listed) = self.ready.get_mut(&page.line) else { continue };
            let left_out = self.left_out.get(&name_of(&page.line)).map(|place| place.execute_at);
            let due = entries(page).filter(|entry| left_out.is_none_or(|from| entry.execute_at < from));
            missing.extend(due.filter(|entry| listed.insert(entry.id)));
            if page.next.is_none() {
                self.ready.remove(&page.line);
            }
        }
        Ok(missing)
    }
}

/// Fill ready lists that left jobs out, whenever the scheduler or the fetcher sees one run low.
pub(super) async fn refill_until_stopped(shared: Arc<Shared>) {
    let of_queue = |queue: &Name| {
        let queue = queue.clone();
        Priority::all().map(move |priority| DueLine { queue: queue.clone(), priority })
    };
    let lines: Vec<DueLine> = shared.settings.queues.iter().flat_map(of_queue).collect();
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

async fn refill(shared: &Shared, line: &DueLine, name: &Line) -> Result<(), PassError> {
    if !shared.index.has_run_low(name).await? {
        return Ok(());
    }
    let Some(refill) = shared.index.begin_refill(name).await? else { return Ok(()) };
    match list_more(shared, line, name, refill.place).await {
        Ok(rest) => Ok(shared.index.end_refill(name, refill, rest).await?),
        Err(error) => {
            // The note was taken off at the beginning; without it nobody would look for what was left out.
            let place = refill.place;
            shared.index.end_refill(name, refill, Some(place)).await?;
            Err(error)
        }
    }
}

/// List more jobs of a line from a place on, as many as there is room for; where it stopped short.
async fn list_more(
    shared: &Shared,
    line: &DueLine,
    name: &Line,
    place: RefillPlace,
) -> Result<Option<RefillPlace>, PassError> {
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
        // A refill that stops here goes on in another turn, so that other lines get theirs.
        rest = walk.rest().next().map(|range| range.after);
    }
    if found.len() < room && rest.is_some() {
        shared.refill.notify_one();
    }
    shared.index.hint(&found).await?;
    Ok(rest.map(|rest| RefillPlace { execute_at: rest.moment(), after: Some(rest.id()) }))
}
