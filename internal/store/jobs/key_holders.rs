//! Jobs that hold unique keys, as requests and operators find them.

use sqlx::Row;
use sqlx::mysql::MySqlRow;

use crate::rows::limits::parked_until;
use crate::rows::unique_keys::{TakenKey, WantedKey, hand_over, lock_or_take};
use crate::sql::error::{again, corrupt};
use crate::sql::session::Session;
use tickr_job::{JobId, JobOptions, Producer, State, Timestamp, UniqueUntil};

/// A job that has a unique key: an unfinished one, or one that completed and holds the key for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHolder {
    /// The id of the job.
    pub id: JobId,
    /// State of the job.
    pub state: State,
    /// Due time of the job.
    pub execute_at: Timestamp,
    /// True if the job belongs to another producer. The requesting producer may not see it in full and may not replace
    /// it.
    pub foreign: bool,
}

/// Take the unique key of a job that an operator runs again, or return the job that holds it and its state. As after a
/// request, a holder that is unique until its start and has started gives the key up.
pub(crate) async fn take_for_operator(
    conn: &mut Session<'_>,
    wanted: WantedKey<'_>,
) -> Result<Option<(JobId, State)>, sqlx::Error> {
    let Some(taken) = lock_or_take(conn, wanted).await? else { return Ok(None) };
    match read_holder(conn, taken, &Producer::tickr()).await? {
        Holds::Key(holder) => Ok(Some((holder.id, holder.state))),
        Holds::NotAnyMore => {
            hand_over(conn, wanted).await?;
            Ok(None)
        }
    }
}

/// The job in the row of a unique key.
pub(super) enum Holds {
    /// It holds the key.
    Key(KeyHolder),
    /// It has started and is unique until then, or it completed and its time is over.
    NotAnyMore,
}

/// Read the holder of a locked unique key. The `owed` row of an unfinished one exists, because its end would first have
/// to give up the key. The read takes no lock, so that it does not wait for a transaction that itself waits for this
/// key.
pub(super) async fn read_holder(
    conn: &mut Session<'_>,
    taken: TakenKey,
    producer: &Producer,
) -> Result<Holds, sqlx::Error> {
    // A job that ended without an attempt has a line in the ledger all the same. An operator's retry takes its number.
    let sql = "SELECT o.state, o.attempt > COALESCE((SELECT MAX(a.number) FROM attempts a WHERE a.job_id = o.id \
               AND a.end_state IS NOT NULL), 0) AS begun, CASE WHEN o.execute_at < ? THEN o.execute_at \
               WHEN o.execute_at = ? THEN COALESCE(q.due_at, j.execute_at) ELSE j.execute_at END AS execute_at, \
               j.options FROM owed o FORCE INDEX (PRIMARY) JOIN jobs j FORCE INDEX (PRIMARY) ON j.id = o.id \
               LEFT JOIN limit_waits q FORCE INDEX (PRIMARY) ON q.job_id = o.id WHERE o.id = ?";
    // A client may have changed the due time of a parked job since the acceptance. Its row in `limit_waits` has it.
    let parked = parked_until().naive_utc();
    let query = sqlx::query(sql).bind(parked).bind(parked).bind(taken.id);
    let row = query.fetch_optional(&mut *conn).await?;
    let Some(row) = row else { return read_completed(conn, taken, producer).await };
    let state = State::from_word(row.try_get::<&str, _>("state")?).ok_or_else(|| corrupt("state"))?;
    let options = options_of(&row)?;
    // The claim counts as the start, also if it is undone later: no row tells when a handler begins, and it may have
    // read the old state by now.
    let started = state == State::Executing || row.try_get::<i64, _>("begun")? != 0;
    if started && options.unique_until == UniqueUntil::Start && !taken.timed {
        return Ok(Holds::NotAnyMore);
    }
    Ok(Holds::Key(KeyHolder {
        id: JobId::from_uuid(taken.id),
        state,
        execute_at: row.try_get("execute_at")?,
        foreign: !producer.reaches(&options),
    }))
}

/// Read a holder without an `owed` row. It completed before its time was over.
async fn read_completed(conn: &mut Session<'_>, taken: TakenKey, producer: &Producer) -> Result<Holds, sqlx::Error> {
    if taken.over {
        return Ok(Holds::NotAnyMore);
    }
    if !taken.timed {
        return Err(again("the holder of a unique key has no owed row"));
    }
    let id = JobId::from_uuid(taken.id);
    let row = sqlx::query("SELECT execute_at, options FROM jobs FORCE INDEX (PRIMARY) WHERE id = ?").bind(taken.id);
    Ok(Holds::Key(match row.fetch_optional(conn).await? {
        Some(row) => KeyHolder {
            id,
            state: State::Completed,
            execute_at: row.try_get("execute_at")?,
            foreign: !producer.reaches(&options_of(&row)?),
        },
        // Retention removed it. There is nothing to show but that it completed.
        None => KeyHolder { id, state: State::Completed, execute_at: Timestamp::default(), foreign: true },
    }))
}

/// Read the options of a holder. If this binary cannot read them, it must not assume that the job belongs to this
/// producer.
pub(super) fn options_of(row: &MySqlRow) -> Result<JobOptions, sqlx::Error> {
    let options: Option<String> = row.try_get("options")?;
    Ok(options.and_then(|text| serde_json::from_str::<JobOptions>(&text).ok()).unwrap_or_default())
}
