//! Events that charts mark: starts of runners, pauses of queues, bulk operations, and losses of Redis. They are read from the
//! rows that record them anyway.
//!
//! Each of the reads is bounded, however much happened: it looks at the newest rows of its table only.

use chrono::TimeDelta;
use sqlx::Row;
use sqlx::mysql::MySqlRow;

use crate::audit::reason_in;
use crate::index_changes::index_changes;
use crate::sql::batches::statement;
use crate::sql::clock::read_clock;
use crate::sql::connection::on_pool;
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{
    Action, Actor, Filter, Mark, MarkedEvent, Name, RunnerStart, Span, Timestamp, Window, first_id_of,
    marks_of_index_changes, marks_of_starts,
};

/// Most marks of one reading: the newest.
pub const MAX_MARKS: usize = 50;
/// Most rows of the audit, and most bulk operations, that are searched for events: the newest.
const MAX_SEARCHED: u32 = 5_000;
/// Most runners that are read, of the living ones and of those that have stopped.
const MAX_STARTS: u32 = 500;
/// The ids of recorded actions are made by hosts whose clocks may differ by this much from that of the database.
const CLOCKS: TimeDelta = TimeDelta::minutes(5);

/// The events within the steps of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The database's clock at the time of the read.
    pub at: Timestamp,
    /// The steps.
    pub window: Window,
    /// The newest events since the first step, at most [`MAX_MARKS`], the oldest first.
    pub marks: Vec<Mark>,
    /// True if there are older events that were left out.
    pub more: bool,
}

impl Store {
    /// Read the events that charts of this span mark: those of the cluster, and those of this queue, or of all queues
    /// without one.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses.
    pub async fn marks(&self, span: Span, queue: Option<Name>) -> Result<Marks, StoreError> {
        let shared = self.shared.clone();
        on_pool(&self.shared.pools.reads, "read the marks of charts", move |conn, _| {
            let (shared, queue) = (shared.clone(), queue.clone());
            Box::pin(async move {
                let at = read_clock(conn, &shared.clock).await?;
                let window = span.window(at);
                let (starts, too_many_starts) = starts(conn, window.from).await?;
                let mut marks = marks_of_starts(starts, window.from);
                let (changes, too_many_changes) = index_changes(conn, window.from).await?;
                marks.extend(marks_of_index_changes(changes));
                let mut more = too_many_starts || too_many_changes;
                for found in [
                    pauses(conn, window.from, queue.as_ref()).await?,
                    releases(conn, window.from, queue.as_ref()).await?,
                ] {
                    more |= found.len() > MAX_MARKS;
                    marks.extend(found);
                }
                marks.retain(|mark| mark.at >= window.from);
                marks.sort_by_key(|mark| mark.at);
                let older = marks.len().saturating_sub(MAX_MARKS);
                marks.drain(..older);
                Ok(Marks { at, window, marks, more: more || older > 0 })
            })
        })
        .await
    }
}

/// Read the starts of runners that live, or that stopped later than `from`, and whether there are more. Remote workers
/// and processes for suspects are left out: these start whenever there is work.
async fn starts(conn: &mut Session<'_>, from: Timestamp) -> Result<(Vec<RunnerStart>, bool), sqlx::Error> {
    let newest = |condition: &str, order: &str| {
        format!(
            "SELECT started_at, version FROM (SELECT started_at, version, parent, via FROM runners \
             FORCE INDEX (runners_stopped) WHERE {condition} ORDER BY {order} DESC LIMIT ?) newest \
             WHERE parent IS NULL AND via = 'process'"
        )
    };
    let living = newest("stopped_at IS NULL", "started_at");
    let mut rows = statement(living).bind(MAX_STARTS).fetch_all(&mut *conn).await?;
    let mut more = rows.len() >= MAX_STARTS as usize;
    let stopped = newest("stopped_at >= ?", "stopped_at");
    let stopped = statement(stopped).bind(from).bind(MAX_STARTS).fetch_all(conn).await?;
    more |= stopped.len() >= MAX_STARTS as usize;
    rows.extend(stopped);
    let start = |row: &MySqlRow| Ok(RunnerStart { at: row.try_get("started_at")?, version: row.try_get("version")? });
    Ok((rows.iter().map(start).collect::<Result<_, sqlx::Error>>()?, more))
}

/// Read the pauses and resumes of a queue, or of all queues, one more than can be shown.
async fn pauses(conn: &mut Session<'_>, from: Timestamp, queue: Option<&Name>) -> Result<Vec<Mark>, sqlx::Error> {
    const THESE: &str = "action IN ('queue.pause', 'queue.resume')";
    const COLUMNS: &str = "at, actor, action, target, detail";
    let first = first_id_of(from - CLOCKS);
    let found = match queue {
        Some(queue) => {
            let sql = format!(
                "SELECT {COLUMNS} FROM audit FORCE INDEX (audit_target) WHERE target = ? AND id >= ? AND {THESE} \
                 ORDER BY id DESC LIMIT ?"
            );
            statement(sql)
                .bind(queue.as_str().to_owned())
                .bind(first)
                .bind(MAX_MARKS as u32 + 1)
                .fetch_all(conn)
                .await?
        }
        None => {
            // The rows themselves are read of those that are shown alone: details may be long.
            let sql = format!(
                "SELECT {COLUMNS} FROM (SELECT id FROM (SELECT id, action FROM audit WHERE id >= ? ORDER BY id DESC LIMIT ?) \
                 recent WHERE {THESE} ORDER BY id DESC LIMIT ?) chosen JOIN audit a ON a.id = chosen.id"
            );
            statement(sql).bind(first).bind(MAX_SEARCHED).bind(MAX_MARKS as u32 + 1).fetch_all(conn).await?
        }
    };
    let mark = |row: &MySqlRow| {
        let queue: Name = row.try_get::<String, _>("target")?.parse().map_err(|_| corrupt("target"))?;
        let by = Actor::from_stored(row.try_get("actor")?);
        let event = match row.try_get("action")? {
            "queue.pause" => MarkedEvent::QueuePaused { queue, by, reason: reason_in(row.try_get("detail")?) },
            _ => MarkedEvent::QueueResumed { queue, by },
        };
        Ok(Mark { at: row.try_get("at")?, event })
    };
    found.iter().map(mark).collect()
}

/// Read the bulk operations that make jobs run, of a queue or of all queues, one more than can be shown.
async fn releases(conn: &mut Session<'_>, from: Timestamp, queue: Option<&Name>) -> Result<Vec<Mark>, sqlx::Error> {
    // The rows themselves are read of those that are shown alone: filters may be long.
    let sql = "SELECT a.id AS operation_id, action, filter, actor, created_at, canary IS NOT NULL AS is_canary FROM \
               (SELECT id FROM (SELECT id, action FROM operations WHERE id >= ? ORDER BY id DESC LIMIT ?) recent \
               WHERE action IN ('replay', 'retry', 'run_now') ORDER BY id DESC LIMIT ?) chosen \
               JOIN operations a ON a.id = chosen.id";
    let first = first_id_of(from - CLOCKS);
    let query = sqlx::query(sql).bind(first).bind(MAX_SEARCHED).bind(MAX_MARKS as u32 + 1);
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
