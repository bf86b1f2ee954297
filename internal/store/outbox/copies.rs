//! Copies rows from the outboxes of applications to the outbox of tickr, each of them once.
//!
//! Two servers share no transaction, so a copy has three steps: a transaction here that inserts the rows and lists their
//! ids in `outbox_sources`, the deletion at the source, and the removal from the list. Whatever dies in between, the next
//! runner reads the list first: it deletes those rows at the source, and copies none of them. So the row of a source is
//! written before its rows are read elsewhere as done, and a listed row is never read again as a new one.
//!
//! One runner at a time copies from a source. `outbox_sources.turn` says so: every runner that takes the source over
//! changes it, and so does every copy. A copy locks the row and is refused if another runner has changed it, so a runner
//! that was frozen copies nothing that it read before.

use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::outbox::source::{ROWS, SourceBacklog};
use crate::outbox::source_rows::{CopiedRow, storable};
use crate::sql::connection::{PriorRun, on_pool, transact};
use crate::sql::error::corrupt;
use crate::sql::script::{Script, Value};
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Name, RunnerId, Timestamp, limits};

/// Most ids in the list of a source: those of a page, and as many that another session locks there.
const MAX_LISTED: usize = 2 * ROWS;
/// Most sources that are shown.
const MAX_SHOWN: u32 = 100;

/// The right of a runner to copy from a source, and what earlier runners may have left there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceTurn {
    /// The number that a copy must name.
    pub number: u64,
    /// Rows that were copied and perhaps not deleted at the source.
    pub copied: Vec<Uuid>,
    /// By the clock of the source: rows with these ids that were inserted later are others. None for all of them.
    pub until: Option<Timestamp>,
}

/// How a runner takes a source over.
#[derive(Clone, Copy, Debug)]
pub struct TakeOver {
    /// How long it keeps the source without renewing.
    pub lease: Duration,
    /// How long no other runner that was nudged takes it.
    pub calm: Duration,
    /// Take it from a living runner as well, unless that one took it a moment ago.
    pub nudged: bool,
}

/// The state of the outbox of an application, as its runner last reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceState {
    /// Its name.
    pub name: String,
    /// The runner that copies its rows. None if no runner does now.
    pub leader: Option<String>,
    /// When it last answered.
    pub seen_at: Option<Timestamp>,
    /// What waited there then.
    pub backlog: SourceBacklog,
    /// Why it cannot be read now. None if it can.
    pub error: Option<String>,
    /// Since when it cannot.
    pub failing_since: Option<Timestamp>,
}

impl SourceState {
    /// Return true if a runner copies its rows now.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.leader.is_some() && self.error.is_none() && self.seen_at.is_some()
    }
}

/// Rows to copy.
#[derive(Clone, Debug)]
pub struct SourceCopy {
    /// The turn of the runner.
    pub turn: u64,
    /// The rows, in the order of their ids. Unfit ones go to the rejected rows.
    pub rows: Vec<CopiedRow>,
    /// Rows that were copied before and are still at the source.
    pub left: Vec<Uuid>,
    /// By the clock of the source: rows with the ids of this copy that are inserted later are others.
    pub until: Option<Timestamp>,
}

impl Store {
    /// Take a source over for this runner. Returns nothing if another runner keeps it.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn take_source(
        &self,
        name: &Name,
        runner: &RunnerId,
        how: TakeOver,
    ) -> Result<Option<SourceTurn>, StoreError> {
        let (name, runner) = (name.clone(), runner.clone());
        transact(&self.shared.pools.sources, "take an outbox over", move |conn, _| {
            let (name, runner) = (name.clone(), runner.clone());
            Box::pin(async move { take(conn, &name, &runner, how).await })
        })
        .await
    }

    /// Return whether a runner may take this source over: none has it, or its lease is over.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn source_is_free(&self, name: &Name) -> Result<bool, StoreError> {
        let name = name.clone();
        on_pool(&self.shared.pools.sources, "look for the runner of an outbox", move |conn, _| {
            let name = name.clone();
            Box::pin(async move {
                let sql =
                    "SELECT EXISTS (SELECT 1 FROM outbox_sources WHERE name = ? AND lease_until > UTC_TIMESTAMP(6))";
                let taken: i64 = sqlx::query_scalar(sql).bind(name.as_str()).fetch_one(conn).await?;
                Ok(taken == 0)
            })
        })
        .await
    }

    /// Keep a source for this long, and report what waits there. Returns false if another runner has it.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn keep_source(
        &self,
        name: &Name,
        turn: u64,
        lease: Duration,
        backlog: SourceBacklog,
    ) -> Result<bool, StoreError> {
        let (name, lease) = (name.clone(), microseconds(lease));
        on_pool(&self.shared.pools.sources, "keep an outbox", move |conn, _| {
            let name = name.clone();
            Box::pin(async move {
                let kept = sqlx::query(
                    "UPDATE outbox_sources SET lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, \
                     seen_at = UTC_TIMESTAMP(6), waiting = ?, oldest_at = ?, oldest_us = ?, error = NULL, \
                     failing_since = NULL WHERE name = ? AND turn = ?",
                );
                let kept = kept.bind(lease).bind(backlog.waiting).bind(backlog.oldest_at.map(|at| at.naive_utc()));
                let kept = kept.bind(i64::try_from(backlog.oldest_us).unwrap_or(i64::MAX));
                Ok(kept.bind(name.as_str()).bind(turn).execute(conn).await?.rows_affected() > 0)
            })
        })
        .await
    }

    /// Keep a source for this long while it answers a question. No runner that is nudged takes it meanwhile, because it
    /// would ask the same question again. Returns false if another runner has it.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn extend_source(&self, name: &Name, turn: u64, lease: Duration) -> Result<bool, StoreError> {
        let (name, lease) = (name.clone(), microseconds(lease));
        on_pool(&self.shared.pools.sources, "keep an outbox", move |conn, _| {
            let name = name.clone();
            Box::pin(async move {
                // MySQL sets the columns from the left to the right.
                let sql = "UPDATE outbox_sources SET lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, \
                           calm_until = GREATEST(calm_until, lease_until) WHERE name = ? AND turn = ?";
                let kept = sqlx::query(sql).bind(lease).bind(name.as_str()).bind(turn).execute(conn).await?;
                Ok(kept.rows_affected() > 0)
            })
        })
        .await
    }

    /// Leave a source to other runners. `error` says why it cannot be read; without one, the runner stops.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn leave_source(&self, name: &Name, runner: &RunnerId, error: Option<String>) -> Result<(), StoreError> {
        let (name, runner, error) = (name.clone(), runner.clone(), error.map(limits::cut));
        on_pool(&self.shared.pools.sources, "leave an outbox", move |conn, _| {
            let (name, runner, error) = (name.clone(), runner.clone(), error.clone());
            Box::pin(async move {
                // MySQL sets the columns from the left to the right.
                let sql = "UPDATE outbox_sources SET lease_until = UTC_TIMESTAMP(6), error = COALESCE(?, error), \
                           failing_since = IF(error IS NULL, NULL, COALESCE(failing_since, UTC_TIMESTAMP(6))) \
                           WHERE name = ? AND runner = ?";
                sqlx::query(sql).bind(error).bind(name.as_str()).bind(runner.as_str()).execute(conn).await.map(drop)
            })
        })
        .await
    }

    /// Copy rows of a source to the outbox, and list them as copied. Returns the number of the next turn, or nothing if
    /// another runner has the source.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses. The rows may have been copied then: take the source over again.
    #[boxed]
    pub async fn copy_rows(&self, name: &Name, runner: &RunnerId, copy: SourceCopy) -> Result<Option<u64>, StoreError> {
        debug_assert!(copy.rows.len() + copy.left.len() <= MAX_LISTED, "the list of a source is bounded");
        let (name, runner, copy) = (name.clone(), runner.clone(), Arc::new(copy));
        transact(&self.shared.pools.sources, "copy rows of an outbox", move |conn, earlier| {
            let (name, runner, copy) = (name.clone(), runner.clone(), Arc::clone(&copy));
            Box::pin(async move { insert_copy(conn, earlier, &name, &runner, &copy).await })
        })
        .await
    }

    /// Note that everything that was copied is deleted at the source. Does nothing if another runner has it.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn forget_copied(&self, name: &Name, turn: u64) -> Result<(), StoreError> {
        let name = name.clone();
        on_pool(&self.shared.pools.sources, "forget copied rows", move |conn, _| {
            let name = name.clone();
            Box::pin(async move {
                let sql = "UPDATE outbox_sources SET copied = '', copied_until = NULL WHERE name = ? AND turn = ?";
                sqlx::query(sql).bind(name.as_str()).bind(turn).execute(conn).await.map(drop)
            })
        })
        .await
    }

    /// Read the state of the outboxes of applications, by name, at most 100.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn source_states(&self) -> Result<Vec<SourceState>, StoreError> {
        on_pool(&self.shared.pools.reads, "read the state of the outboxes", |conn, _| {
            Box::pin(async move {
                let sql = "SELECT name, IF(lease_until > UTC_TIMESTAMP(6), runner, NULL) AS leader, seen_at, waiting, \
                           oldest_at, oldest_us, error, failing_since FROM outbox_sources ORDER BY name LIMIT ?";
                let found = sqlx::query(sql).bind(MAX_SHOWN).fetch_all(conn).await?;
                found.iter().map(source_state).collect()
            })
        })
        .await
    }
}

async fn take(
    conn: &mut Session<'_>,
    name: &Name,
    runner: &RunnerId,
    how: TakeOver,
) -> Result<Option<SourceTurn>, sqlx::Error> {
    const READ: &str = "SELECT runner = ? OR lease_until <= UTC_TIMESTAMP(6) AS free, \
                        calm_until < UTC_TIMESTAMP(6) AS calm, turn, copied, copied_until \
                        FROM outbox_sources WHERE name = ? FOR UPDATE";
    let read = || sqlx::query(READ).bind(runner.as_str()).bind(name.as_str());
    let found = match read().fetch_optional(&mut *conn).await? {
        Some(found) => found,
        None => {
            // The turns begin with the time, so those of a row that the janitor has deleted do not come again.
            let sql = "INSERT IGNORE INTO outbox_sources (name, runner, lease_until, calm_until, turn, copied) \
                       VALUES (?, '', '1970-01-01 00:00:00', '1970-01-01 00:00:00', \
                       TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)), '')";
            sqlx::query(sql).bind(name.as_str()).execute(&mut *conn).await?;
            read().fetch_one(&mut *conn).await?
        }
    };
    let holds = |column| -> Result<bool, sqlx::Error> { Ok(found.try_get::<i64, _>(column)? != 0) };
    if !(holds("free")? || how.nudged && holds("calm")?) {
        return Ok(None);
    }
    let number = found.try_get::<u64, _>("turn")? + 1;
    let sql = "UPDATE outbox_sources SET runner = ?, turn = ?, \
               lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, \
               calm_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE name = ?";
    let update = sqlx::query(sql).bind(runner.as_str()).bind(number).bind(microseconds(how.lease));
    update.bind(microseconds(how.calm)).bind(name.as_str()).execute(conn).await?;
    let copied: Vec<u8> = found.try_get("copied")?;
    let ids = copied.chunks(16).map(Uuid::from_slice).collect::<Result<Vec<_>, _>>();
    let ids = ids.map_err(|_| corrupt("a list of copied rows that is cut off"))?;
    Ok(Some(SourceTurn { number, copied: ids, until: found.try_get("copied_until")? }))
}

async fn insert_copy(
    conn: &mut Session<'_>,
    earlier: PriorRun,
    name: &Name,
    runner: &RunnerId,
    copy: &SourceCopy,
) -> Result<Option<u64>, sqlx::Error> {
    let next = copy.turn + 1;
    let sql = "SELECT turn, runner FROM outbox_sources WHERE name = ? FOR UPDATE";
    let Some(row) = sqlx::query(sql).bind(name.as_str()).fetch_optional(&mut *conn).await? else { return Ok(None) };
    let (turn, holder): (u64, String) = (row.try_get("turn")?, row.try_get("runner")?);
    if earlier == PriorRun::MayHaveCommitted && turn == next && holder == runner.as_str() {
        // An earlier run has copied these rows, and its commit was not answered.
        return Ok(Some(next));
    }
    if turn != copy.turn {
        return Ok(None);
    }
    write_rows(conn, name, &copy.rows).await?;
    let listed = copy.left.iter().copied().chain(copy.rows.iter().map(|row| row.id));
    let listed: Vec<u8> = listed.flat_map(Uuid::into_bytes).collect();
    let sql = "UPDATE outbox_sources SET turn = ?, copied = ?, copied_until = ? WHERE name = ?";
    let list = sqlx::query(sql).bind(next).bind(listed).bind(copy.until.map(|until| until.naive_utc()));
    list.bind(name.as_str()).execute(conn).await?;
    Ok(Some(next))
}

/// Insert these rows into the outbox, and the unfit ones into the rejected rows.
async fn write_rows(conn: &mut Session<'_>, name: &Name, rows: &[CopiedRow]) -> Result<(), sqlx::Error> {
    let size = |row: &CopiedRow| row.payload.len() + row.options.as_ref().map_or(0, String::len) + 256;
    let fit: Vec<&CopiedRow> = rows.iter().filter(|row| row.unfit.is_none()).collect();
    let unfit = rows.iter().filter_map(|row| Some((row, limits::cut(row.unfit.clone()?))));
    let unfit: Vec<(&CopiedRow, String)> = unfit.collect();
    let rejected: Vec<(&CopiedRow, &str)> = unfit.iter().map(|(row, reason)| (*row, reason.as_str())).collect();
    let mut script = Script::about(rows.len(), rows.iter().map(size).sum());
    script.insert(
        [
            "INSERT INTO tickr_outbox (id, kind, payload, queue, execute_at, options, created_at, copied_from, copied_at) \
             VALUES",
            "(?, ?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6))",
            // The application may have inserted the same row here as well. Both ask for the same job.
            "ON DUPLICATE KEY UPDATE id = VALUES(id)",
        ],
        &fit,
        |row| size(row),
        |row, values| {
            values.extend(columns(row));
            values.push(name.as_str().into());
        },
    );
    if !rejected.is_empty() {
        // An earlier row with one of these ids may have been rejected as well. The newest counts.
        let ids: Vec<Uuid> = rejected.iter().map(|(row, _)| row.id).collect();
        let (places, values) = script.list(&ids);
        script.push(format!("DELETE FROM outbox_rejected WHERE id IN {places}"), values);
    }
    script.insert(
        [
            "INSERT INTO outbox_rejected (id, kind, payload, queue, execute_at, options, created_at, copied_from, reason, \
             rejected_at) VALUES",
            "(?, ?, ?, ?, ?, ?, COALESCE(?, UTC_TIMESTAMP(6)), ?, ?, UTC_TIMESTAMP(6))",
            "",
        ],
        &rejected,
        |(row, _)| size(row),
        |(row, reason), values| {
            values.extend(columns(row));
            values.push(name.as_str().into());
            values.push((*reason).into());
        },
    );
    script.run(conn).await.map(drop)
}

/// Return the values of the columns that a row has wherever it is.
fn columns(row: &CopiedRow) -> [Value<'_>; 7] {
    [
        row.id.into(),
        row.kind.as_str().into(),
        row.payload.as_str().into(),
        row.queue.as_deref().into(),
        row.execute_at.into(),
        row.options.as_deref().into(),
        storable(row.inserted_at).into(),
    ]
}

fn source_state(row: &MySqlRow) -> Result<SourceState, sqlx::Error> {
    Ok(SourceState {
        name: row.try_get("name")?,
        leader: row.try_get("leader")?,
        seen_at: row.try_get("seen_at")?,
        backlog: SourceBacklog {
            waiting: row.try_get("waiting")?,
            oldest_at: row.try_get("oldest_at")?,
            oldest_us: row.try_get("oldest_us")?,
        },
        error: row.try_get("error")?,
        failing_since: row.try_get("failing_since")?,
    })
}

fn microseconds(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
