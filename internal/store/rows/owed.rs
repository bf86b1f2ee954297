//! Rows of `owed`, one for each unfinished job: locked, read and deleted.
//!
//! Every statement names its index or its order. On a small table, MySQL and MariaDB both prefer a full scan for an IN
//! list. Two scans for disjoint rows can deadlock, two index lookups cannot.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::sql::batches::{MAX_ROWS, bind_padded, in_list, padded_len, placeholders, statement};
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use tickr_job::{AttemptToken, JobId, Name, Priority, RunnerId, State, Timestamp};

/// A locked row of `owed`.
pub(crate) struct Owed {
    pub(crate) kind: Name,
    pub(crate) queue: Name,
    pub(crate) priority: u8,
    pub(crate) max_attempts: u32,
    pub(crate) keyed: bool,
    pub(crate) links: u8,
    pub(crate) state: State,
    pub(crate) execute_at: Timestamp,
    pub(crate) attempt: u32,
    pub(crate) spared: u32,
    /// The part of `spared` from before an operator's retry. Zero unless the settlement has read it.
    pub(crate) spared_before: u32,
    pub(crate) losses: u32,
    pub(crate) runner: RunnerId,
    /// All zeros unless executing. No token has this value.
    pub(crate) token: AttemptToken,
    pub(crate) started_at: Timestamp,
    pub(crate) lease_until: Timestamp,
    pub(crate) cancel_requested_at: Option<Timestamp>,
}

/// Leaves out rows that another session locks. Servers before MySQL 8.0.1 and MariaDB 10.6 do not know the words. They
/// read comments, and wait for the locks.
pub(crate) const SKIP_LOCKED: &str = " /*!80001 SKIP LOCKED *//*M!100600 SKIP LOCKED */";

/// Lock these rows by primary key, in key order, and read them.
pub(crate) async fn lock_held(
    conn: &mut Session<'_>,
    ids: impl Iterator<Item = JobId>,
) -> Result<BTreeMap<JobId, Owed>, sqlx::Error> {
    lock(conn, ids, "").await
}

/// Do what [`lock_held`] does, without the rows that another session locks at this moment.
pub(crate) async fn lock_free(
    conn: &mut Session<'_>,
    ids: impl Iterator<Item = JobId>,
) -> Result<BTreeMap<JobId, Owed>, sqlx::Error> {
    lock(conn, ids, SKIP_LOCKED).await
}

/// Lock the rows of those of these jobs, at most [`MAX_ROWS`], of which an attempt is executed, without the rows that
/// another session locks at this moment. Return their ids.
pub(crate) async fn lock_free_executing(
    conn: &mut Session<'_>,
    mut ids: Vec<Uuid>,
) -> Result<HashSet<Uuid>, sqlx::Error> {
    ids.sort_unstable();
    ids.dedup();
    let mut free = HashSet::new();
    if ids.is_empty() {
        return Ok(free);
    }
    let sql = "SELECT id FROM owed FORCE INDEX (PRIMARY) WHERE id IN";
    let tail = format!(" AND state = 'executing' ORDER BY id FOR UPDATE{SKIP_LOCKED}");
    for row in in_list(sql, &ids, &tail).fetch_all(conn).await? {
        free.insert(row.try_get("id")?);
    }
    Ok(free)
}

/// Return those of these jobs that [`lock_free`] did not lock although they are unfinished: another session locks them.
pub(crate) async fn left_of(
    conn: &mut Session<'_>,
    mut ids: BTreeSet<JobId>,
    locked: &BTreeMap<JobId, Owed>,
) -> Result<BTreeSet<JobId>, sqlx::Error> {
    ids.retain(|id| !locked.contains_key(id));
    let (mut left, ids) = (BTreeSet::new(), ids.into_iter().map(JobId::uuid).collect::<Vec<_>>());
    for ids in ids.chunks(MAX_ROWS) {
        let sql = "SELECT id FROM owed FORCE INDEX (PRIMARY) WHERE id IN";
        for row in in_list(sql, ids, "").fetch_all(&mut *conn).await? {
            left.insert(JobId::from_uuid(row.try_get("id")?));
        }
    }
    Ok(left)
}

/// Read when those of these unfinished jobs expire that do.
pub(crate) async fn expiries_of(
    conn: &mut Session<'_>,
    ids: &[Uuid],
) -> Result<BTreeMap<JobId, Timestamp>, sqlx::Error> {
    let mut expiries = BTreeMap::new();
    for ids in ids.chunks(MAX_ROWS) {
        let sql = "SELECT id, expires_at FROM owed FORCE INDEX (PRIMARY) WHERE id IN";
        for row in in_list(sql, ids, " AND expires_at IS NOT NULL").fetch_all(&mut *conn).await? {
            expiries.insert(JobId::from_uuid(row.try_get("id")?), row.try_get("expires_at")?);
        }
    }
    Ok(expiries)
}

async fn lock(
    conn: &mut Session<'_>,
    ids: impl Iterator<Item = JobId>,
    locked_rows: &str,
) -> Result<BTreeMap<JobId, Owed>, sqlx::Error> {
    let mut ids: Vec<Uuid> = ids.map(JobId::uuid).collect();
    ids.sort_unstable();
    ids.dedup();
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let sql = format!(
        "SELECT id, kind, queue, priority, max_attempts, state, execute_at, attempt, spared, losses, runner, token, \
         started_at, lease_until, cancel_requested_at, keyed, links FROM owed FORCE INDEX (PRIMARY) WHERE id IN {} ORDER BY id \
         FOR UPDATE{locked_rows}",
        placeholders(padded_len(ids.len())),
    );
    let query = bind_padded(statement(sql), &ids);
    let found = query.fetch_all(conn).await?;
    found
        .iter()
        .map(|row| {
            let id = JobId::from_uuid(row.try_get("id")?);
            let owed = Owed {
                kind: row.try_get::<String, _>("kind")?.parse().map_err(|_| corrupt("kind"))?,
                queue: row.try_get::<String, _>("queue")?.parse().map_err(|_| corrupt("queue"))?,
                priority: row.try_get("priority")?,
                max_attempts: row.try_get("max_attempts")?,
                state: State::from_word(row.try_get::<&str, _>("state")?).ok_or_else(|| corrupt("state"))?,
                execute_at: row.try_get("execute_at")?,
                attempt: row.try_get("attempt")?,
                spared: row.try_get("spared")?,
                spared_before: 0,
                losses: row.try_get("losses")?,
                runner: RunnerId::from_stored(row.try_get("runner")?),
                token: AttemptToken::from_uuid(row.try_get("token")?),
                started_at: row.try_get("started_at")?,
                lease_until: row.try_get("lease_until")?,
                cancel_requested_at: row.try_get("cancel_requested_at")?,
                keyed: row.try_get("keyed")?,
                links: row.try_get("links")?,
            };
            Ok((id, owed))
        })
        .collect()
}

pub(crate) async fn delete_owed(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<(), sqlx::Error> {
    if ids.is_empty() {
        return Ok(());
    }
    // A single-table DELETE takes no index hint. The order and the limit have the same effect.
    let sql = format!("DELETE FROM owed WHERE id IN {} ORDER BY id LIMIT ?", placeholders(padded_len(ids.len())));
    let query = bind_padded(statement(sql), ids);
    query.bind(i64::try_from(ids.len()).unwrap_or(i64::MAX)).execute(conn).await?;
    Ok(())
}

/// Most executions of a job that do not count against `max_attempts`, before a snooze counts as a failure: a job may
/// not snooze for ever. The same holds for an interruption because the lease could not be renewed, and for a job that a
/// worker gives back. A job that did not reach its remote worker, or whose worker left, uses no attempt then either, and
/// comes back after a growing delay. A shutdown never counts against `max_attempts`, however often the job snoozed, and
/// delays nothing. It cannot loop, because each time a runner stops.
pub const MAX_SPARED: u32 = 100;

/// Executions of a job after which it waits for no other one: the verdict that would let it wait rejects it. The columns
/// for the number of an attempt end at [`MAX_NUMBER`], and an operator's retries go on with the number.
pub(crate) const MAX_EXECUTIONS: u32 = 65_000;

/// Largest number of an attempt. A claim beyond it would fail, and the claims beside it with it.
pub(crate) const MAX_NUMBER: u32 = 65_535;

/// Bit of `owed.links`: the last claim was undone, because the kind of the job had no room in that runner. The job counts
/// as due from a minute before its next claim on.
pub(crate) const RESTS: u8 = 8;

/// Bit of `owed.links`: `deferred_attempts.look_at` says when the time of the attempt is up. The end of the attempt
/// clears both, so that no later attempt looks for what it does not have.
pub(crate) const DEFERRED: u8 = 16;

/// Number of losses in a row after which the job fails: it is then taken for the cause of the runners' deaths.
pub const MAX_LOSSES: u32 = 3;

/// Number of losses in a row from which a job is a suspect and runs in a process of its own. One loss is no evidence.
/// Most runners die because of deploys, hosts or memory, and then every job that they run loses an attempt.
pub const SUSPECT_FROM: u32 = 2;

/// One waiting job, with what the index has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueJob {
    /// The job.
    pub id: JobId,
    /// Its queue.
    pub queue: Name,
    /// Its priority within the queue.
    pub priority: Priority,
    /// The time when it is due.
    pub execute_at: Timestamp,
    /// Its kind. Not every runner executes every kind.
    pub kind: Name,
}

/// Read a job from these columns of a row: id, queue, priority, execute_at, kind.
pub(crate) fn due_job(row: &MySqlRow) -> Result<DueJob, sqlx::Error> {
    let name = |column| row.try_get::<&str, _>(column)?.parse().map_err(|_| corrupt(column));
    Ok(DueJob {
        id: JobId::from_uuid(row.try_get("id")?),
        queue: name("queue")?,
        priority: row.try_get::<u8, _>("priority")?.try_into().map_err(corrupt)?,
        execute_at: row.try_get("execute_at")?,
        kind: name("kind")?,
    })
}

/// Log a warning, once per process. Such a row stays until an operator repairs it, and is read every few seconds.
pub(crate) fn unreadable(what: &str) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        tracing::warn!(what, "a row of the table owed cannot be read and is left alone; further ones are not logged");
    }
}
