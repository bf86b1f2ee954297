//! Rows of `unique_keys`: one for each unfinished job that holds a unique key, and one for each job that completed before
//! its time of uniqueness was over.

use std::collections::BTreeSet;

use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::rows::owed::SKIP_LOCKED;
use crate::sql::batches::{MAX_ROWS, in_list, statement};
use crate::sql::error::{Fault, again, fault};
use crate::sql::script::{Script, Value};
use crate::sql::session::Session;
use tickr_job::Name;

/// A unique key that a job asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedKey<'a> {
    pub(crate) kind: &'a Name,
    pub(crate) key: &'a [u8],
    /// The job that asks.
    pub(crate) id: Uuid,
    /// The key stays taken for at least this long, in milliseconds from now.
    pub(crate) for_ms: Option<u64>,
}

/// The row of a taken unique key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenKey {
    /// The job that holds it.
    pub(crate) id: Uuid,
    /// True if the job holds it for a time, which is not over.
    pub(crate) timed: bool,
    /// True if the job held it for a time, which is over.
    pub(crate) over: bool,
}

impl TakenKey {
    fn from_row(row: &MySqlRow) -> Result<Self, sqlx::Error> {
        let over: Option<bool> = row.try_get("is_over")?;
        Ok(Self { id: row.try_get("job_id")?, timed: over == Some(false), over: over == Some(true) })
    }
}

const TAKEN: &str = "SELECT job_id, held_until <= UTC_TIMESTAMP(3) AS is_over FROM unique_keys \
                     WHERE kind = ? AND unique_key = ?";

/// Give up the unique keys that these jobs hold, with few statements. The rows are locked in the order of the jobs.
pub(crate) async fn release_keys_of(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<(), sqlx::Error> {
    let ended: Vec<(Uuid, bool)> = ids.iter().map(|id| (*id, false)).collect();
    release_keys_of_ended(conn, &ended).await
}

/// Give up the unique keys of jobs that ended, each with whether it completed. Those that completed leave their keys
/// taken until the times of these are over. The rows are locked in the order of the jobs.
pub(crate) async fn release_keys_of_ended(conn: &mut Session<'_>, ended: &[(Uuid, bool)]) -> Result<(), sqlx::Error> {
    for ended in ended.chunks(MAX_ROWS) {
        // A server may scan a small table for an IN list. A join can only look up one job after the other.
        let list = vec!["SELECT CAST(? AS BINARY(16)) AS id, ? AS completed"; ended.len()].join(" UNION ALL ");
        let sql = format!(
            "DELETE k FROM ({list}) x STRAIGHT_JOIN jobs j FORCE INDEX (PRIMARY) ON j.id = x.id \
             STRAIGHT_JOIN unique_keys k FORCE INDEX (PRIMARY) ON k.kind = j.kind AND k.unique_key = j.unique_key \
             WHERE k.job_id = j.id \
             AND (x.completed = 0 OR k.held_until IS NULL OR k.held_until <= UTC_TIMESTAMP(3))"
        );
        let mut script = Script::as_text();
        script.push(sql, ended.iter().flat_map(|(id, completed)| [Value::from(*id), (*completed).into()]).collect());
        script.run(conn).await?;
    }
    Ok(())
}

/// Lock the unique keys of these jobs that no other session locks at this moment, and that some job holds. Returns the
/// jobs whose keys another session locks.
pub(crate) async fn lock_free_keys(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<BTreeSet<Uuid>, sqlx::Error> {
    let mut busy = BTreeSet::new();
    for ids in ids.chunks(MAX_ROWS) {
        let sql = "SELECT id, kind, unique_key FROM jobs FORCE INDEX (PRIMARY) WHERE unique_key IS NOT NULL AND id IN";
        for job in in_list(sql, ids, "").fetch_all(&mut *conn).await? {
            let (kind, key): (String, Vec<u8>) = (job.try_get("kind")?, job.try_get("unique_key")?);
            let lock = statement(format!("{TAKEN} FOR UPDATE{SKIP_LOCKED}")).bind(kind.as_str()).bind(key.as_slice());
            if lock.fetch_optional(&mut *conn).await?.is_some() {
                continue;
            }
            let read = statement(TAKEN.to_owned()).bind(kind.as_str()).bind(key.as_slice());
            if read.fetch_optional(&mut *conn).await?.is_some() {
                busy.insert(job.try_get("id")?);
            }
        }
    }
    Ok(busy)
}

/// Lock this unique key and return the row of the job that holds it, or take the key for the job that asks. A key whose
/// job ended and whose time is over is free.
///
/// # Errors
/// [`again`], when another transaction took the key between the two statements. The refused insert left a shared lock
/// behind. Many transactions that go on from the shared to the exclusive lock would deadlock. So the caller's
/// transaction begins again and waits for the row.
pub(crate) async fn lock_or_take(
    conn: &mut Session<'_>,
    wanted: WantedKey<'_>,
) -> Result<Option<TakenKey>, sqlx::Error> {
    let sql = statement(format!("{TAKEN} FOR UPDATE"));
    let found = sql.bind(wanted.kind.as_str()).bind(wanted.key).fetch_optional(&mut *conn).await?;
    if let Some(row) = found {
        let taken = TakenKey::from_row(&row)?;
        if taken.over && !is_unfinished(conn, taken.id).await? {
            hand_over(conn, wanted).await?;
            return Ok(None);
        }
        return Ok(Some(taken));
    }
    match insert(conn, wanted).await {
        Ok(()) => Ok(None),
        Err(e) if fault(&e) == Fault::Duplicate => Err(again("a unique key was taken meanwhile")),
        Err(e) => Err(e),
    }
}

/// Read the row of this unique key under a shared lock. A refused [`insert`] already has that lock.
pub(crate) async fn read_taken(conn: &mut Session<'_>, wanted: WantedKey<'_>) -> Result<Option<TakenKey>, sqlx::Error> {
    let sql = statement(format!("{TAKEN} LOCK IN SHARE MODE"));
    let found = sql.bind(wanted.kind.as_str()).bind(wanted.key).fetch_optional(conn).await?;
    found.as_ref().map(TakenKey::from_row).transpose()
}

/// Insert the row of a unique key. Fails with 1062 if another job holds the key.
pub(crate) async fn insert(conn: &mut Session<'_>, wanted: WantedKey<'_>) -> Result<(), sqlx::Error> {
    // NULL plus an interval of NULL is NULL: most keys are taken until their job ends.
    sqlx::query(
        "INSERT INTO unique_keys (kind, unique_key, job_id, held_until) \
         VALUES (?, ?, ?, UTC_TIMESTAMP(3) + INTERVAL ? * 1000 MICROSECOND)",
    )
    .bind(wanted.kind.as_str())
    .bind(wanted.key)
    .bind(wanted.id)
    .bind(wanted.for_ms)
    .execute(conn)
    .await?;
    Ok(())
}

/// Give a unique key, whose row is locked, to the job that asks for it.
pub(crate) async fn hand_over(conn: &mut Session<'_>, wanted: WantedKey<'_>) -> Result<(), sqlx::Error> {
    sqlx::query(
        "UPDATE unique_keys SET job_id = ?, held_until = UTC_TIMESTAMP(3) + INTERVAL ? * 1000 MICROSECOND \
         WHERE kind = ? AND unique_key = ?",
    )
    .bind(wanted.id)
    .bind(wanted.for_ms)
    .bind(wanted.kind.as_str())
    .bind(wanted.key)
    .execute(conn)
    .await?;
    Ok(())
}

/// Return true if the holder of a locked key has not ended: its end would first have to give up the key. The read takes
/// no lock, so that it waits for no transaction that itself waits for this key.
pub(crate) async fn is_unfinished(conn: &mut Session<'_>, id: Uuid) -> Result<bool, sqlx::Error> {
    let found = sqlx::query("SELECT 1 FROM owed FORCE INDEX (PRIMARY) WHERE id = ?").bind(id).fetch_optional(conn);
    Ok(found.await?.is_some())
}
