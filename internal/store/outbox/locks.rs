//! The locks that a row of the outbox needs which is moved by itself, taken without a wait.
//!
//! Another session may keep any number of rows for seconds, such as a runner that froze in a settlement. A mover that
//! waits for each of them would delay all rows behind. So it waits once, and tries the others like this.

use uuid::Uuid;

use crate::rows::order::{lock_at_once, order_key_of, order_keys_of};
use crate::sql::batches::{in_list, statement};
use crate::sql::error::is_locked_elsewhere;
use crate::sql::session::Session;
use tickr_job::{BatchId, JobId, Name, NewJob, OnConflict};

/// The locks of other sessions for which the move of one row waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// Whatever the job needs.
    Everything,
    /// Whatever the job needs, except an order key.
    NoOrderKey,
    /// None.
    Nothing,
}

/// What the row of a job may have to wait for, besides its order key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NeededLock {
    /// The unique key of this kind, and the job that has it.
    UniqueKey(Name, String),
    /// This parent.
    Parent(JobId),
    /// This batch.
    Batch(BatchId),
}

/// Outcome of a try to lock without a wait.
pub(super) enum Tried {
    /// Everything is locked for which the move does not wait.
    Locked,
    /// Another session locks some of it: this, or if it is absent the row, its order key, or what cannot be told.
    InUse(Option<NeededLock>),
}

/// Shares a row, or fails if another session locks it. Each server reads one of the comments (see
/// [`SKIP_LOCKED`](crate::rows::owed::SKIP_LOCKED)).
const SHARE_AT_ONCE: &str = " /*!80001 FOR SHARE NOWAIT *//*M!100600 LOCK IN SHARE MODE NOWAIT */";

/// Lock what the move of this row does not wait for, in the order in which an enqueue locks it. If another session
/// locks some of it, the server may have rolled the transaction back, so the caller has to end it.
pub(super) async fn lock_without_a_wait(
    conn: &mut Session<'_>,
    row: Uuid,
    job: &NewJob,
    waits_for: WaitsFor,
) -> Result<Tried, sqlx::Error> {
    let mut tried = None;
    let locked = match waits_for {
        WaitsFor::Everything => return Ok(Tried::Locked),
        WaitsFor::NoOrderKey => lock_row_and_order_key(conn, row, job).await,
        WaitsFor::Nothing => lock_all(conn, row, job, &mut tried).await,
    };
    match locked {
        Ok(true) => Ok(Tried::Locked),
        Ok(false) => Ok(Tried::InUse(tried)),
        Err(error) if is_locked_elsewhere(&error) => Ok(Tried::InUse(tried)),
        Err(error) => Err(error),
    }
}

async fn lock_row_and_order_key(conn: &mut Session<'_>, row: Uuid, job: &NewJob) -> Result<bool, sqlx::Error> {
    // Another runner may be moving the row, and may wait for a lock meanwhile. It locks the row before the order key.
    // So the order key must not be locked while this waits for the row.
    let sql = "SELECT id FROM tickr_outbox FORCE INDEX (PRIMARY) WHERE id = ? FOR UPDATE NOWAIT";
    sqlx::query(sql).bind(row).fetch_optional(&mut *conn).await?;
    match order_key_of(job) {
        Some(key) => lock_at_once(conn, &[key]).await,
        None => Ok(true),
    }
}

/// Lock all that the job needs. Returns false, or an error, if another session locks some of it. `tried` is then what
/// this has tried to lock, if that has a name.
async fn lock_all(
    conn: &mut Session<'_>,
    row: Uuid,
    job: &NewJob,
    tried: &mut Option<NeededLock>,
) -> Result<bool, sqlx::Error> {
    if !lock_row_and_order_key(conn, row, job).await? {
        return Ok(false);
    }
    if let Some(key) = &job.unique_key {
        *tried = Some(NeededLock::UniqueKey(job.kind.clone(), key.clone()));
        let sql = "SELECT job_id FROM unique_keys WHERE kind = ? AND unique_key = ? FOR UPDATE NOWAIT";
        let holder = sqlx::query_scalar(sql).bind(job.kind.as_str()).bind(key.as_bytes());
        let holder: Option<Uuid> = holder.fetch_optional(&mut *conn).await?;
        if let Some(holder) = holder
            && !lock_holder(conn, holder, job.on_conflict).await?
        {
            return Ok(false);
        }
    }
    let parents: Vec<Uuid> = job.options.after.iter().map(|id| id.uuid()).collect();
    if !parents.is_empty() {
        *tried = None;
        let sql = "SELECT id FROM owed FORCE INDEX (PRIMARY) WHERE id IN";
        let locked = in_list(sql, &parents, " ORDER BY id FOR UPDATE NOWAIT").fetch_all(&mut *conn).await;
        match locked {
            Ok(_) => {}
            Err(error) if is_locked_elsewhere(&error) => {
                *tried = parent_in_use(conn, &parents).await?;
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
    }
    if let Some(batch) = job.options.batch {
        *tried = Some(NeededLock::Batch(batch));
        let sql = format!("SELECT id FROM batches WHERE id = ?{SHARE_AT_ONCE}");
        statement(sql).bind(batch.uuid()).fetch_optional(&mut *conn).await?;
    }
    Ok(true)
}

/// Return the first of these parents that another session locks.
async fn parent_in_use(conn: &mut Session<'_>, parents: &[Uuid]) -> Result<Option<NeededLock>, sqlx::Error> {
    for parent in parents {
        let sql = "SELECT id FROM owed FORCE INDEX (PRIMARY) WHERE id = ? FOR UPDATE NOWAIT";
        let locked = sqlx::query(sql).bind(*parent).fetch_optional(&mut *conn).await;
        match locked {
            Ok(_) => {}
            Err(error) if is_locked_elsewhere(&error) => {
                return Ok(Some(NeededLock::Parent(JobId::from_uuid(*parent))));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Lock what a job needs that replaces the holder of its unique key, or puts it off.
async fn lock_holder(conn: &mut Session<'_>, holder: Uuid, on_conflict: OnConflict) -> Result<bool, sqlx::Error> {
    if !on_conflict.changes_holder() {
        return Ok(true);
    }
    let sql = "SELECT id FROM owed FORCE INDEX (PRIMARY) WHERE id = ? FOR UPDATE NOWAIT";
    sqlx::query(sql).bind(holder).fetch_optional(&mut *conn).await?;
    if on_conflict == OnConflict::Postpone {
        return Ok(true);
    }
    let order_keys = order_keys_of(conn, &[holder]).await?;
    match order_keys.get(&holder) {
        Some(key) => lock_at_once(conn, &[key.as_slice()]).await,
        None => Ok(true),
    }
}
