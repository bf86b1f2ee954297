//! Lanes of unfinished jobs. A lane is one queue at one priority, in order of due time.
//!
//! The only secondary index of `owed` begins with queue and priority, so each lane is a range of its own. A reader
//! names its lanes, and rows in other lanes cost it nothing: paused queues, queues at their limit, queues that no
//! runner serves. One statement reads several lanes: a `UNION ALL` with a branch for each.
//!
//! Executing rows are at the front of their lane, because they were due first. There are at most as many as open
//! attempts, so a read can skip them cheaply.

use std::collections::{BTreeSet, VecDeque};

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;

use crate::rows::owed::{DueJob, unreadable};
use crate::sql::batches::{bind_padded, padded_len, statement};
use crate::sql::connection::on_pool;
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{JobId, Name, Priority, Timestamp};

/// Most lanes in one statement.
pub(crate) const MAX_BRANCHES: usize = 16;
/// Minimum number of rows per lane when many lanes share a page.
const FEWEST_ROWS: usize = 125;

/// A lane: one queue at one priority.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DueLane {
    /// The queue.
    pub queue: Name,
    /// Urgency within the queue.
    pub priority: Priority,
}

/// A position in the order of a lane. Everything behind it has not been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueCursor {
    execute_at: Timestamp,
    id: JobId,
}

impl DueCursor {
    /// The position before the first job of a lane.
    pub const FRONT: Self = Self::at(Timestamp::UNIX_EPOCH);

    /// Return the position before every job that is due at `moment` or later.
    #[must_use]
    pub const fn at(moment: Timestamp) -> Self {
        Self { execute_at: moment, id: JobId::from_uuid(uuid::Uuid::nil()) }
    }

    /// Return the position after the job `id` that is due at `moment`.
    #[must_use]
    pub const fn after(moment: Timestamp, id: JobId) -> Self {
        Self { execute_at: moment, id }
    }

    /// Return the due time of this position.
    #[must_use]
    pub const fn moment(&self) -> Timestamp {
        self.execute_at
    }

    /// Return the job id of this position.
    #[must_use]
    pub const fn id(&self) -> JobId {
        self.id
    }
}

/// A part of a lane, to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueRange {
    /// The lane.
    pub line: DueLane,
    /// The position to read after.
    pub after: DueCursor,
    /// The latest due time to read, inclusive.
    pub until: Timestamp,
}

impl DueRange {
    /// Return the range of all jobs of a lane that are due at or before `until`.
    #[must_use]
    pub const fn until(line: DueLane, until: Timestamp) -> Self {
        Self { line, after: DueCursor::FRONT, until }
    }
}

/// A job of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueRow {
    /// The id of the job.
    pub id: JobId,
    /// Due time of the job.
    pub execute_at: Timestamp,
    /// The kind of the job, if the read asked for it.
    pub kind: Option<Name>,
}

/// A page of one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinePage {
    /// The lane.
    pub line: DueLane,
    /// Jobs of the lane, in order of due time.
    pub rows: Vec<DueRow>,
    /// The position to continue after; absent when the range is exhausted.
    pub next: Option<DueCursor>,
}

impl LinePage {
    /// Iterate over the jobs of the page whose kinds were read.
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

/// Selection of the jobs of a lane to read, and of their columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Every unfinished job, executing ones included: id and due time, which the index alone can answer.
    Owed,
    /// Jobs that are not executing, with their kinds. A row that cannot be read is left out.
    Waiting,
}

impl Store {
    /// List the lanes of these queues that may hold jobs: queue by queue, the most urgent lane first. A lane between
    /// two others may be empty.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn lines_of(&self, queues: Vec<Name>) -> Result<Vec<DueLane>, StoreError> {
        on_pool(&self.shared.pools.loops, "look for lanes of unfinished jobs", move |conn, _| {
            let queues = queues.clone();
            Box::pin(async move { lines_of(conn, &queues).await })
        })
        .await
    }

    /// Read the first `most` rows of each of these ranges, in this order.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
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
                for ranges in ranges.chunks(MAX_BRANCHES) {
                    pages.extend(read(conn, ranges, most, depth).await?);
                }
                Ok(pages)
            })
        })
        .await
    }

    /// Start a walk that reads these ranges in pages of `page` rows.
    #[must_use]
    pub fn walk(&self, ranges: impl IntoIterator<Item = DueRange>, page: usize, depth: Depth) -> DueWalk {
        DueWalk { store: self.clone(), ranges: ranges.into_iter().collect(), page, depth }
    }

    /// Read the queues of living remote workers.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn remote_queues(&self) -> Result<BTreeSet<Name>, StoreError> {
        on_pool(&self.shared.pools.loops, "read the queues of remote workers", |conn, _| Box::pin(remote_queues(conn)))
            .await
    }

    /// List the queues of living runners. Redis must hold the jobs of these queues. It may hold jobs of other queues,
    /// but does not need to. If no runner is alive, list the queues of the runners with the newest heartbeats.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn fed_queues(&self) -> Result<BTreeSet<Name>, StoreError> {
        on_pool(&self.shared.pools.loops, "read the queues of living runners", |conn, _| Box::pin(fed_queues(conn)))
            .await
    }
}

/// A walk through ranges of lanes, page by page.
#[derive(Debug)]
pub struct DueWalk {
    store: Store,
    ranges: VecDeque<DueRange>,
    page: usize,
    depth: Depth,
}

impl DueWalk {
    /// Read the next pages, each of another lane. Return nothing when all ranges are exhausted.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn next(&mut self) -> Result<Option<Vec<LinePage>>, StoreError> {
        if self.ranges.is_empty() {
            return Ok(None);
        }
        let now: Vec<DueRange> = self.ranges.iter().take(MAX_BRANCHES).cloned().collect();
        let most = (self.page / now.len()).max(FEWEST_ROWS.min(self.page));
        let pages = self.store.due_rows(now.clone(), most, self.depth).await?;
        self.ranges.drain(..now.len());
        // Finish the lanes that were begun before beginning others.
        for (mut range, page) in now.into_iter().zip(&pages).rev() {
            if let Some(next) = page.next {
                range.after = next;
                self.ranges.push_front(range);
            }
        }
        Ok(Some(pages))
    }

    /// Keep only the ranges for which `keep` returns true.
    pub fn retain(&mut self, keep: impl FnMut(&DueRange) -> bool) {
        self.ranges.retain(keep);
    }

    /// Iterate over the ranges that have not been read to their end.
    pub fn rest(&self) -> impl Iterator<Item = &DueRange> {
        self.ranges.iter()
    }
}

pub(crate) async fn lines_of(conn: &mut Session<'_>, queues: &[Name]) -> Result<Vec<DueLane>, sqlx::Error> {
    let mut lines = Vec::new();
    for queues in queues.chunks(MAX_BRANCHES) {
        let names: Vec<&str> = queues.iter().map(Name::as_str).collect();
        let query = bind_padded(statement(probes(padded_len(queues.len()))), &names);
        let mut found: Vec<(usize, i64, i64)> = Vec::with_capacity(queues.len());
        for row in &query.fetch_all(&mut *conn).await? {
            let place = usize::try_from(row.try_get::<i64, _>("place")?).unwrap_or(usize::MAX);
            if let (true, Some(first), Some(last)) =
                (place < queues.len(), row.try_get("first_priority")?, row.try_get("last_priority")?)
            {
                found.push((place, first, last));
            }
        }
        found.sort_unstable();
        for (place, first, last) in found {
            if last > i64::from(Priority::LAST.level()) {
                unreadable("a priority above 9");
            }
            let within = |priority: &Priority| (first..=last).contains(&i64::from(priority.level()));
            let line = |priority| DueLane { queue: queues[place].clone(), priority };
            lines.extend(Priority::all().filter(within).map(line));
        }
    }
    Ok(lines)
}

/// Read one page of each of these ranges, at most [`MAX_BRANCHES`] ranges.
async fn read(
    conn: &mut Session<'_>,
    ranges: &[DueRange],
    most: usize,
    depth: Depth,
) -> Result<Vec<LinePage>, sqlx::Error> {
    let mut query = statement(reads(padded_len(ranges.len()), depth));
    let most_rows = i64::try_from(most).unwrap_or(i64::MAX);
    for place in 0..padded_len(ranges.len()) {
        // Branches that only pad the statement read no rows.
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
        let place = usize::try_from(row.try_get::<i64, _>("place")?).unwrap_or(usize::MAX);
        let Some(page) = pages.get_mut(place) else { continue };
        let (id, execute_at) = (JobId::from_uuid(row.try_get("id")?), row.try_get("execute_at")?);
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

/// Build the statement that finds the lowest and highest priority of each queue. It costs two index lookups per queue:
/// MySQL answers MIN and MAX without reading the rows between them.
fn probes(queues: usize) -> String {
    let branch = |place: usize| {
        format!(
            "SELECT {place} AS place, CAST(MIN(priority) AS SIGNED) AS first_priority, \
             CAST(MAX(priority) AS SIGNED) AS last_priority FROM owed FORCE INDEX (owed_line) WHERE queue = ?"
        )
    };
    (0..queues).map(branch).collect::<Vec<_>>().join(" UNION ALL ")
}

/// Build the statement that reads this number of ranges. Every branch has the same form, because an OR over two forms
/// would keep the optimiser from a plain range scan.
fn reads(ranges: usize, depth: Depth) -> String {
    let (columns, only) = match depth {
        Depth::Owed => ("id, execute_at", ""),
        Depth::Waiting => ("id, execute_at, kind", "AND state <> 'executing' "),
    };
    let branch = |place: usize| {
        format!(
            "(SELECT {place} AS place, {columns} FROM owed FORCE INDEX (owed_line) WHERE queue = ? AND priority = ? \
             AND execute_at >= ? AND execute_at <= ? AND (execute_at > ? OR id > ?) {only}ORDER BY execute_at, id LIMIT ?)"
        )
    };
    (0..ranges).map(branch).collect::<Vec<_>>().join(" UNION ALL ")
}

/// The statements that read lanes, for the test that checks their query plans on the servers.
#[doc(hidden)]
#[must_use]
pub fn due_statements() -> Vec<String> {
    let reads = [Depth::Owed, Depth::Waiting].map(|depth| reads(2, depth));
    [vec![probes(2)], reads.to_vec()].concat()
}

/// Read the kind of a row. Reuse the name of the row before it if they are the same, which is nearly always the case.
fn kind(row: &MySqlRow, depth: Depth, before: Option<&DueRow>) -> Result<Option<Name>, sqlx::Error> {
    if depth == Depth::Owed {
        return Ok(None);
    }
    let text: &str = row.try_get("kind")?;
    let known = before.and_then(|before| before.kind.as_ref()).filter(|kind| kind.as_str() == text);
    match known {
        Some(known) => Ok(Some(known.clone())),
        None => text.parse().map(Some).map_err(|_| corrupt("kind")),
    }
}

/// Read the queues of living remote workers.
pub(crate) async fn remote_queues(conn: &mut Session<'_>) -> Result<BTreeSet<Name>, sqlx::Error> {
    let living =
        "SELECT DISTINCT queues FROM runners FORCE INDEX (runners_stopped) WHERE stopped_at IS NULL AND via = 'http'";
    let found: Vec<String> = sqlx::query_scalar(living).fetch_all(conn).await?;
    let mut queues = BTreeSet::new();
    for text in found {
        queues.extend(serde_json::from_str::<Vec<Name>>(&text).map_err(|e| corrupt(e.to_string()))?);
    }
    Ok(queues)
}

pub(crate) async fn fed_queues(conn: &mut Session<'_>) -> Result<BTreeSet<Name>, sqlx::Error> {
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

/// List queues to show: those that runners serve, and the first `most` queues by name that have unfinished jobs. Also
/// return whether there are more. This costs one index lookup per queue.
pub(crate) async fn queues_to_show(conn: &mut Session<'_>, most: usize) -> Result<(Vec<Name>, bool), sqlx::Error> {
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

/// Find the first queue after this name that has unfinished jobs.
async fn next_queue(conn: &mut Session<'_>, after: &str) -> Result<Option<String>, sqlx::Error> {
    let next = "SELECT queue FROM owed FORCE INDEX (owed_line) WHERE queue > ? ORDER BY queue LIMIT 1";
    sqlx::query_scalar(next).bind(after).fetch_optional(conn).await
}
