//! Lines of owed work: a queue at one priority, in order of due time.
//!
//! The one index of `owed` beside its primary key begins with the line, so each line is a range of its own. A reader
//! names its lines, and what stands in others costs it nothing: not a queue that is paused, not one at its limit, not
//! one that no runner serves. Several lines are read in one statement, a `UNION ALL` with a branch for each.
//!
//! Executing rows stand at the front of their line, because they were due. There are at most as many as attempts are
//! open, so a read may pass over them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::mysql::MySqlRow;
use sqlx::{MySqlConnection, Row};

use super::due::DueJob;
use super::error::corrupt;
use super::link::on_pool;
use super::shape::{padded, statement};
use super::{Store, StoreError};
use crate::job::{JobId, Name, Priority, Timestamp};

/// Most lines in one statement.
pub(super) const MOST_BRANCHES: usize = 16;
/// Rows of one line in a page that many lines share, at least.
const FEWEST_ROWS: usize = 125;

/// A queue at one priority.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DueLine {
    /// The queue.
    pub queue: Name,
    /// Urgency within the queue.
    pub priority: Priority,
}

/// A place in the order of a line: everything after it has not been seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueCursor {
    execute_at: Timestamp,
    id: JobId,
}

impl DueCursor {
    /// Before the first job of a line.
    pub const FRONT: Self = Self::at(Timestamp::UNIX_EPOCH);

    /// Before everything that is due at `moment` or later.
    #[must_use]
    pub const fn at(moment: Timestamp) -> Self {
        Self { execute_at: moment, id: JobId::from_uuid(uuid::Uuid::nil()) }
    }

    /// After the job `id`, due at `moment`.
    #[must_use]
    pub const fn after(moment: Timestamp, id: JobId) -> Self {
        Self { execute_at: moment, id }
    }

    /// The due time of the place.
    #[must_use]
    pub const fn moment(&self) -> Timestamp {
        self.execute_at
    }

    /// The job of the place.
    #[must_use]
    pub const fn id(&self) -> JobId {
        self.id
    }
}

/// A part of a line, to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueRange {
    /// The line.
    pub line: DueLine,
    /// Where to begin.
    pub after: DueCursor,
    /// The last due time that counts.
    pub until: Timestamp,
}

impl DueRange {
    /// All of a line that is due before or at `until`.
    #[must_use]
    pub const fn until(line: DueLine, until: Timestamp) -> Self {
        Self { line, after: DueCursor::FRONT, until }
    }
}

/// A job of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueRow {
    /// The job.
    pub id: JobId,
    /// When it is due.
    pub execute_at: Timestamp,
    /// Its kind, if that was asked for.
    pub kind: Option<Name>,
}

/// A page of one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinePage {
    /// The line.
    pub line: DueLine,
    /// Its jobs, in order of due time.
    pub rows: Vec<DueRow>,
    /// Where to go on; absent when the range is exhausted.
    pub next: Option<DueCursor>,
}

impl LinePage {
    /// The jobs of the page, as far as their kinds were read.
    pub fn jobs(&self) -> impl Iterator<Item = DueJob> + '_ {
        self.rows.iter().filter_map(|row| {
            Some(DueJob {
                id: row.id,
                queue: self.line.queue.clone(),
                priority: self.line.priority,
                execute_at: row.execute_at,
                kind: row.kind.clone()?,
            })
        })
    }
}

/// Which jobs of a line to read, and how much of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Every job that is owed, also those that execute: id and due time, which the index alone can answer.
    Owed,
    /// Those that wait, with their kinds. A row that cannot be read is left out.
    Waiting,
}

impl Store {
    /// The lines of these queues that may hold jobs, queue by queue, the most urgent first. A line between two others may
    /// be empty.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn lines_of(&self, queues: Vec<Name>) -> Result<Vec<DueLine>, StoreError> {
        on_pool(&self.shared.pools.loops, "look for lines of owed jobs", move |conn, _| {
            let queues = queues.clone();
            Box::pin(async move { lines_of(conn, &queues).await })
        })
        .await
    }

    /// The first `most` rows of each of these ranges, in this order.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn due_rows(
        &self,
        ranges: Vec<DueRange>,
        most: usize,
        depth: Depth,
    ) -> Result<Vec<LinePage>, StoreError> {
        on_pool(&self.shared.pools.loops, "read due jobs", move |conn, _| {
            let ranges = ranges.clone();
            Box::pin(async move {
                let mut pages = Vec::with_capacity(ranges.len());
                for ranges in ranges.chunks(MOST_BRANCHES) {
                    pages.extend(read(conn, ranges, most, depth).await?);
                }
                Ok(pages)
            })
        })
        .await
    }

    /// Read these ranges page by page, `page` rows at a time, whatever lines they are of.
    #[must_use]
    pub fn walk(&self, ranges: impl IntoIterator<Item = DueRange>, page: usize, depth: Depth) -> DueWalk {
        DueWalk { store: self.clone(), ranges: ranges.into_iter().collect(), page, depth }
    }

    /// The queues of living runners. Redis holds the jobs of these; what other queues have there is welcome and not
    /// needed. When no runner lives: the queues of those that were heard last.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn fed_queues(&self) -> Result<BTreeSet<Name>, StoreError> {
        on_pool(&self.shared.pools.loops, "read the queues of living runners", |conn, _| Box::pin(fed_queues(conn)))
            .await
    }
}

/// Ranges of lines that are read page by page.
#[derive(Debug)]
pub struct DueWalk {
    store: Store,
    ranges: VecDeque<DueRange>,
    page: usize,
    depth: Depth,
}

impl DueWalk {
    /// The next pages, each of another line; nothing when all ranges are exhausted.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn next(&mut self) -> Result<Option<Vec<LinePage>>, StoreError> {
        if self.ranges.is_empty() {
            return Ok(None);
        }
        let now: Vec<DueRange> = self.ranges.iter().take(MOST_BRANCHES).cloned().collect();
        let most = (self.page / now.len()).max(FEWEST_ROWS.min(self.page));
        let pages = self.store.due_rows(now.clone(), most, self.depth).await?;
        self.ranges.drain(..now.len());
        // A line that was begun is finished before others are begun.
        for (mut range, page) in now.into_iter().zip(&pages).rev() {
            if let Some(next) = page.next {
                range.after = next;
                self.ranges.push_front(range);
            }
        }
        Ok(Some(pages))
    }

    /// Go on only with these ranges.
    pub fn retain(&mut self, keep: impl FnMut(&DueRange) -> bool) {
        self.ranges.retain(keep);
    }

    /// What has not been read.
    pub fn rest(&self) -> impl Iterator<Item = &DueRange> {
        self.ranges.iter()
    }
}

pub(super) async fn lines_of(conn: &mut MySqlConnection, queues: &[Name]) -> Result<Vec<DueLine>, sqlx::Error> {
    let mut lines = Vec::new();
    for queues in queues.chunks(MOST_BRANCHES) {
        let mut query = statement(probes(padded(queues.len())));
        for queue in super::shape::pad(&queues.iter().collect::<Vec<_>>()) {
            query = query.bind(queue.as_str());
        }
        let mut found: Vec<(usize, i64, i64)> = Vec::with_capacity(queues.len());
        for row in &query.fetch_all(&mut *conn).await? {
            let place = usize::try_from(row.try_get::<i64, _>(0)?).unwrap_or(usize::MAX);
            if let (true, Some(first), Some(last)) = (place < queues.len(), row.try_get(1)?, row.try_get(2)?) {
                found.push((place, first, last));
            }
        }
        found.sort_unstable();
        for (place, first, last) in found {
            if last > i64::from(Priority::LAST.level()) {
                unreadable("a priority above 9");
            }
            let within = |priority: &Priority| (first..=last).contains(&i64::from(priority.level()));
            let line = |priority| DueLine { queue: queues[place].clone(), priority };
            lines.extend(Priority::all().filter(within).map(line));
        }
    }
    Ok(lines)
}

/// One page of each of these ranges, at most [`MOST_BRANCHES`].
async fn read(
    conn: &mut MySqlConnection,
    ranges: &[DueRange],
    most: usize,
    depth: Depth,
) -> Result<Vec<LinePage>, sqlx::Error> {
    let mut query = statement(reads(padded(ranges.len()), depth));
    let most_rows = i64::try_from(most).unwrap_or(i64::MAX);
    for place in 0..padded(ranges.len()) {
        // Branches that fill the statement up read nothing.
        let (range, rows) = ranges.get(place).map_or((&ranges[0], 0), |range| (range, most_rows));
        let DueRange { line, after, until } = range;
        query = query
            .bind(line.queue.as_str())
            .bind(line.priority.level())
            .bind(after.execute_at)
            .bind(until)
            .bind(after.execute_at)
            .bind(after.id.uuid())
            .bind(rows);
    }
    let mut pages: Vec<LinePage> =
        ranges.iter().map(|range| LinePage { line: range.line.clone(), rows: Vec::new(), next: None }).collect();
    let mut read = vec![0; pages.len()];
    for row in &query.fetch_all(conn).await? {
        let place = usize::try_from(row.try_get::<i64, _>(0)?).unwrap_or(usize::MAX);
        let Some(page) = pages.get_mut(place) else { continue };
        let (id, execute_at) = (JobId::from_uuid(row.try_get(1)?), row.try_get(2)?);
        read[place] += 1;
        page.next = Some(DueCursor { execute_at, id });
        match kind(row, depth, page.rows.last()) {
            Ok(kind) => page.rows.push(DueRow { id, execute_at, kind }),
            Err(error) => unreadable(&format!("{error}, job {id}")),
        }
    }
    for (page, read) in pages.iter_mut().zip(read) {
        page.next.take_if(|_| read < most);
    }
    Ok(pages)
}

/// Between which priorities the lines of each queue lie. Two dives into the index for each: the server answers MIN and MAX
/// without reading what is between.
fn probes(queues: usize) -> String {
    let branch = |place: usize| {
        format!(
            "SELECT {place}, CAST(MIN(priority) AS SIGNED), CAST(MAX(priority) AS SIGNED) FROM owed \
             FORCE INDEX (owed_line) WHERE queue = ?"
        )
    };
    (0..queues).map(branch).collect::<Vec<_>>().join(" UNION ALL ")
}

/// The rows of so many ranges. One form for all of them: an OR over two would keep the optimiser from a plain range.
fn reads(ranges: usize, depth: Depth) -> String {
    let (columns, only) = match depth {
        Depth::Owed => ("id, execute_at", ""),
        Depth::Waiting => ("id, execute_at, kind", "AND state <> 'executing' "),
    };
    let branch = |place: usize| {
        format!(
            "(SELECT {place}, {columns} FROM owed FORCE INDEX (owed_line) WHERE queue = ? AND priority = ? \
             AND execute_at >= ? AND execute_at <= ? AND (execute_at > ? OR id > ?) {only}ORDER BY execute_at, id LIMIT ?)"
        )
    };
    (0..ranges).map(branch).collect::<Vec<_>>().join(" UNION ALL ")
}

/// The statements that read lines, for the test that asks the servers for their plans.
#[doc(hidden)]
#[must_use]
pub fn due_statements() -> Vec<String> {
    let reads = [Depth::Owed, Depth::Waiting].map(|depth| reads(2, depth));
    [vec![probes(2)], reads.to_vec()].concat()
}

/// The kind of a row, with the name of the row before it where they are the same, which they are nearly always.
fn kind(row: &MySqlRow, depth: Depth, before: Option<&DueRow>) -> Result<Option<Name>, sqlx::Error> {
    if depth == Depth::Owed {
        return Ok(None);
    }
    let text: &str = row.try_get(3)?;
    let known = before.and_then(|before| before.kind.as_ref()).filter(|kind| kind.as_str() == text);
    match known {
        Some(known) => Ok(Some(known.clone())),
        None => text.parse().map(Some).map_err(|_| corrupt("kind")),
    }
}

/// Said once: such a row stays until an operator mends it, and is met every few seconds.
pub(super) fn unreadable(what: &str) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        tracing::warn!(what, "a row of the table owed cannot be read and is left alone; further ones are not told of");
    }
}

pub(super) async fn fed_queues(conn: &mut MySqlConnection) -> Result<BTreeSet<Name>, sqlx::Error> {
    let living = "SELECT DISTINCT queues FROM runners WHERE stopped_at IS NULL \
                  AND heartbeat_at >= UTC_TIMESTAMP(6) - INTERVAL lease_ms * 1000 MICROSECOND";
    let mut found: Vec<String> = sqlx::query_scalar(living).fetch_all(&mut *conn).await?;
    if found.is_empty() {
        let last = "SELECT DISTINCT queues FROM runners WHERE heartbeat_at >= (SELECT MAX(heartbeat_at) FROM runners) - \
                    INTERVAL 10 SECOND";
        found = sqlx::query_scalar(last).fetch_all(&mut *conn).await?;
    }
    let mut queues = BTreeSet::new();
    for text in found {
        let names: Vec<Name> = serde_json::from_str(&text).map_err(|e| corrupt(e.to_string()))?;
        queues.extend(names);
    }
    Ok(queues)
}

/// Queues to show: those that runners serve, and the first by name that have owed jobs, at most `most` of these. Whether
/// there are more. One dive into the index for each.
pub(super) async fn queues_to_show(conn: &mut MySqlConnection, most: usize) -> Result<(Vec<Name>, bool), sqlx::Error> {
    let (mut queues, mut last) = (fed_queues(conn).await?, String::new());
    for _ in 0..most {
        let Some(next) = next_queue(conn, &last).await? else { return Ok((queues.into_iter().collect(), false)) };
        match next.parse() {
            Ok(queue) => drop(queues.insert(queue)),
            Err(_) => unreadable("the name of a queue"),
        }
        last = next;
    }
    let more = next_queue(conn, &last).await?.is_some();
    Ok((queues.into_iter().collect(), more))
}

/// The first queue behind this name that has owed jobs.
async fn next_queue(conn: &mut MySqlConnection, after: &str) -> Result<Option<String>, sqlx::Error> {
    let next = "SELECT queue FROM owed FORCE INDEX (owed_line) WHERE queue > ? ORDER BY queue LIMIT 1";
    sqlx::query_scalar(next).bind(after).fetch_optional(conn).await
}
