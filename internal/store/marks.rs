//! Events that charts mark: starts and losses of runners, pauses of queues, bulk operations, and losses of Redis. They
//! are read from the rows that record them anyway.
//!
//! Each of the reads is bounded, however much happened: it looks at the newest rows of its table only, those before the
//! end of a range. Pauses are looked up by the names of their queues as well.

use std::collections::BTreeMap;

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::audit::{CLOCKS, reason_in};
use crate::index_changes::index_changes;
use crate::sql::batches::{Sql, bind_padded, padded_len, placeholders, statement};
use crate::sql::clock::read_clock;
use crate::sql::connection::on_pool;
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{
    Action, Actor, Extent, Filter, Mark, MarkedEvent, Name, RunnerId, RunnerStart, SlotWidth, Timestamp, first_id_of,
    marks_of_index_changes, marks_of_losses, marks_of_starts,
};

/// Most marks of one reading: the newest.
pub const MAX_MARKS: usize = 50;
/// Most rows of the audit, and most bulk operations, that are searched for events: the newest.
const MAX_SEARCHED: u32 = 5_000;
/// Most queues whose pauses are read by their names, those that are paused and those that changed last first.
const CHANGED_QUEUES: u32 = 256;
/// Most runners that are read, of the living ones and of those that have stopped.
const MAX_STARTS: u32 = 500;

/// The events of a span or of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The database's clock at the time of the read.
    pub at: Timestamp,
    /// The time from which on there are events: the first step of a span, or the beginning of a range.
    pub from: Timestamp,
    /// The newest events, at most [`MAX_MARKS`], the oldest first. A range rather lacks starts of the same version.
    pub marks: Vec<Mark>,
    /// True if there are older events that were left out.
    pub more: bool,
    /// The pauses that began before a range and lasted into it, one of a queue.
    pub paused_before: Vec<Mark>,
    /// The oldest slot of a quarter of an hour in the history, if there is one.
    pub oldest_sample: Option<Timestamp>,
}

impl Store {
    /// Read the events that charts of this extent mark: those of the cluster, and those of this queue, or of all queues
    /// without one.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn marks(&self, extent: Extent, queue: Option<Name>) -> Result<Marks, StoreError> {
        let shared = self.shared.clone();
        on_pool(&self.shared.pools.reads, "read the marks of charts", move |conn, _| {
            let (shared, queue) = (shared.clone(), queue.clone());
            Box::pin(async move {
                let at = read_clock(conn, &shared.clock).await?;
                let within = match extent {
                    Extent::Span(span) => (span.window(at).from, None),
                    Extent::Range(from, to) => (from, Some(to)),
                };
                let (from, to) = within;
                let seen = runners(conn, within).await?;
                let mut marks = marks_of_starts(seen.starts, from);
                marks.extend(marks_of_losses(seen.losses));
                let (changes, too_many_changes) = index_changes(conn, within).await?;
                marks.extend(marks_of_index_changes(changes));
                let mut more = seen.more || too_many_changes;
                let queues = match &queue {
                    Some(queue) => vec![queue.to_string()],
                    None => changed_queues(conn, from).await?,
                };
                let paused = pauses(conn, within, &queues, queue.is_none()).await?;
                let paused_before = match to {
                    Some(_) => pauses_before(conn, from, &queues).await?,
                    None => Vec::new(),
                };
                let released = releases(conn, within, queue.as_ref()).await?;
                for found in [paused, released] {
                    more |= found.len() > MAX_MARKS;
                    marks.extend(found);
                }
                marks.retain(|mark| mark.at >= from && to.is_none_or(|to| mark.at < to));
                marks.sort_by_key(|mark| mark.at);
                more |= marks.len() > MAX_MARKS;
                if to.is_some() {
                    leave_out_starts(&mut marks);
                }
                let older = marks.len().saturating_sub(MAX_MARKS);
                marks.drain(..older);
                // The end of the key: other binaries keep less, and an operator may empty the table.
                let oldest = sqlx::query_scalar("SELECT MIN(at) FROM samples WHERE step = ?");
                let oldest_sample: Option<Timestamp> =
                    oldest.bind(SlotWidth::Quarter.seconds()).fetch_one(conn).await?;
                Ok(Marks { at, from, marks, more, paused_before, oldest_sample })
            })
        })
        .await
    }
}

/// Leave out starts of a version that ran before, the oldest first, as long as there are too many events. They say
/// least, and a page about a range must not miss a loss because of them.
fn leave_out_starts(marks: &mut Vec<Mark>) {
    let mut surplus = marks.len().saturating_sub(MAX_MARKS);
    marks.retain(|mark| {
        let is_start = matches!(mark.event, MarkedEvent::RunnersStarted { previous_version: None, .. });
        let goes = surplus > 0 && is_start;
        surplus -= usize::from(goes);
        !goes
    });
}

/// A time from which on events are read, and the time before which they are, if it is not now.
type Within = (Timestamp, Option<Timestamp>);

/// The runners that were there.
struct RunnersSeen {
    starts: Vec<RunnerStart>,
    /// Those that were found dead, with the times of their last heartbeats.
    losses: Vec<(Timestamp, RunnerId)>,
    more: bool,
}

/// Return the range of the ids that recorded actions and bulk operations of this time have.
fn ids((from, to): Within) -> (Uuid, Uuid) {
    (first_id_of(from - CLOCKS), to.map_or(Uuid::max(), |to| first_id_of(to + CLOCKS)))
}

/// Read the runners that live, or that stopped later than `from`, and started before `to`. Of remote workers only those
/// are read that were found dead: they start whenever there is work. Processes for suspects are left out.
async fn runners(conn: &mut Session<'_>, (from, to): Within) -> Result<RunnersSeen, sqlx::Error> {
    let before = if to.is_some() { "AND started_at < ?" } else { "" };
    let newest = |condition: &str, order: &str| {
        format!(
            "SELECT id, started_at, version, heartbeat_at, via = 'process' AS is_process, COALESCE(stopped_at > \
             heartbeat_at + INTERVAL lease_ms * 1000 MICROSECOND, FALSE) AS is_lost FROM (SELECT id, started_at, \
             version, heartbeat_at, stopped_at, lease_ms, parent, via FROM runners FORCE INDEX (runners_stopped) \
             WHERE {condition} {before} ORDER BY {order} DESC LIMIT ?) newest WHERE parent IS NULL"
        )
    };
    let up_to = |query: Sql| if let Some(to) = to { query.bind(to) } else { query };
    let living = up_to(statement(newest("stopped_at IS NULL", "started_at"))).bind(MAX_STARTS);
    let mut rows = living.fetch_all(&mut *conn).await?;
    let mut more = rows.len() >= MAX_STARTS as usize;
    let stopped = up_to(statement(newest("stopped_at >= ?", "stopped_at")).bind(from)).bind(MAX_STARTS);
    let stopped = stopped.fetch_all(conn).await?;
    more |= stopped.len() >= MAX_STARTS as usize;
    rows.extend(stopped);
    let (mut starts, mut losses) = (Vec::new(), Vec::new());
    for row in &rows {
        if row.try_get("is_process")? {
            starts.push(RunnerStart { at: row.try_get("started_at")?, version: row.try_get("version")? });
        }
        if row.try_get("is_lost")? {
            losses.push((row.try_get("heartbeat_at")?, RunnerId::from_stored(row.try_get("id")?)));
        }
    }
    Ok(RunnersSeen { starts, losses, more })
}

/// Columns of a pause or a resume.
const PAUSE_COLUMNS: &str = "a.id AS act, a.at, a.actor, a.action, a.target, a.detail";
/// Condition for pauses and resumes.
const PAUSES: &str = "action IN ('queue.pause', 'queue.resume')";

/// Read the names of the queues whose pauses may lie in the time from this moment on: those that are paused, and those
/// that changed since.
async fn changed_queues(conn: &mut Session<'_>, from: Timestamp) -> Result<Vec<String>, sqlx::Error> {
    let sql = "SELECT name FROM queues WHERE changed_at >= ? OR paused_at IS NOT NULL \
               ORDER BY paused_at IS NULL, changed_at DESC LIMIT ?";
    let rows = sqlx::query(sql).bind(from).bind(CHANGED_QUEUES).fetch_all(conn).await?;
    rows.iter().map(|row| row.try_get("name")).collect()
}

/// Read a pause or a resume.
fn pause_mark(row: &MySqlRow) -> Result<Mark, sqlx::Error> {
    let queue: Name = row.try_get::<String, _>("target")?.parse().map_err(|_| corrupt("target"))?;
    let by = Actor::from_stored(row.try_get("actor")?);
    let event = match row.try_get("action")? {
        "queue.pause" => MarkedEvent::QueuePaused { queue, by, reason: reason_in(row.try_get("detail")?) },
        _ => MarkedEvent::QueueResumed { queue, by },
    };
    Ok(Mark { at: row.try_get("at")?, event })
}

/// Read the pauses and resumes of these queues and, if `all` is true, those among the newest changes of all things. The
/// changes of many jobs hide only those of queues that are not named.
async fn pauses(
    conn: &mut Session<'_>,
    within: Within,
    queues: &[String],
    all: bool,
) -> Result<Vec<Mark>, sqlx::Error> {
    let (first, end) = ids(within);
    let mut found = Vec::new();
    if !queues.is_empty() {
        let sql = format!(
            "SELECT {PAUSE_COLUMNS} FROM audit a FORCE INDEX (audit_target) WHERE target IN {} AND id >= ? AND id < ? \
             AND {PAUSES} ORDER BY id DESC LIMIT ?",
            placeholders(padded_len(queues.len()))
        );
        let names: Vec<&str> = queues.iter().map(String::as_str).collect();
        let query = bind_padded(statement(sql), &names).bind(first).bind(end).bind(MAX_MARKS as u32 + 1);
        found.extend(query.fetch_all(&mut *conn).await?);
    }
    if all {
        // The rows themselves are read of those that are shown alone: details may be long.
        let sql = format!(
            "SELECT {PAUSE_COLUMNS} FROM (SELECT id FROM (SELECT id, action FROM audit WHERE id >= ? AND id < ? \
             ORDER BY id DESC LIMIT ?) recent WHERE {PAUSES} ORDER BY id DESC LIMIT ?) chosen \
             JOIN audit a ON a.id = chosen.id"
        );
        let query = statement(sql).bind(first).bind(end).bind(MAX_SEARCHED).bind(MAX_MARKS as u32 + 1);
        found.extend(query.fetch_all(conn).await?);
    }
    let mut marks: BTreeMap<Uuid, Mark> = BTreeMap::new();
    for row in &found {
        marks.insert(row.try_get("act")?, pause_mark(row)?);
    }
    Ok(marks.into_values().collect())
}

/// Read the pauses of these queues that began before this moment and had not ended at it.
async fn pauses_before(conn: &mut Session<'_>, from: Timestamp, queues: &[String]) -> Result<Vec<Mark>, sqlx::Error> {
    let sql = format!(
        "SELECT {PAUSE_COLUMNS} FROM audit a FORCE INDEX (audit_target) WHERE target = ? AND id < ? AND at < ? \
         AND {PAUSES} ORDER BY id DESC LIMIT 1"
    );
    let mut marks = Vec::new();
    for queue in queues {
        let query = statement(sql.clone()).bind(queue.clone()).bind(first_id_of(from + CLOCKS)).bind(from);
        if let Some(row) = query.fetch_optional(&mut *conn).await? {
            let mark = pause_mark(&row)?;
            if matches!(mark.event, MarkedEvent::QueuePaused { .. }) {
                marks.push(mark);
            }
        }
    }
    Ok(marks)
}

/// Read the bulk operations that make jobs run, of a queue or of all queues, one more than can be shown.
async fn releases(conn: &mut Session<'_>, within: Within, queue: Option<&Name>) -> Result<Vec<Mark>, sqlx::Error> {
    // The rows themselves are read of those that are shown alone: filters may be long.
    let sql = "SELECT a.id AS operation_id, action, filter, actor, created_at, canary IS NOT NULL AS is_canary FROM \
               (SELECT id FROM (SELECT id, action FROM operations WHERE id >= ? AND id < ? ORDER BY id DESC LIMIT ?) \
               recent WHERE action IN ('replay', 'retry', 'run_now') ORDER BY id DESC LIMIT ?) chosen \
               JOIN operations a ON a.id = chosen.id";
    let (first, end) = ids(within);
    let query = sqlx::query(sql).bind(first).bind(end).bind(MAX_SEARCHED).bind(MAX_MARKS as u32 + 1);
    let mut marks = Vec::new();
    for row in &query.fetch_all(conn).await? {
        let filter: Filter =
            serde_json::from_str(row.try_get("filter")?).map_err(|e| corrupt(format!("filter: {e}")))?;
        if queue.is_some() && filter.queue.is_some() && filter.queue.as_ref() != queue {
            continue;
        }
        let event = MarkedEvent::OperationStarted {
            operation: row.try_get("operation_id")?,
            action: Action::from_word(row.try_get("action")?).ok_or_else(|| corrupt("action"))?,
            is_canary: row.try_get("is_canary")?,
            by: Actor::from_stored(row.try_get("actor")?),
        };
        marks.push(Mark { at: row.try_get("created_at")?, event });
    }
    Ok(marks)
}
