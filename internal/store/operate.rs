//! What people ask of single jobs: cancel, retry, run now. Each is one transaction that locks the row, asks the state
//! machine, and answers what it did.

use std::collections::BTreeMap;

use sqlx::{MySqlConnection, Row};
use uuid::Uuid;

use super::error::corrupt;
use super::insert::{Accepted, read_clock};
use super::link::{Step, transact};
use super::settle::{Line, append_to_ledger, count, delete_owed, lock_held, release_key_of};
use super::{Shared, Store, StoreError};
use crate::job::{Event, JobId, Name, State, Verdict, floor_ms, next};

/// What became of a request about one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Done; the job is now in this state.
    Done(State),
    /// The job runs: its handler was asked to stop (only after a cancel).
    Asked,
    /// Done; the job waits, and the index should know.
    Waits(Accepted),
    /// Not legal in the state the job is in.
    Refused(State),
    /// There is no such job.
    Missing,
}

impl Store {
    /// Stop a job: a waiting one ends now, an executing one is asked to stop (G9).
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn cancel(&self, id: JobId) -> Result<Moved, StoreError> {
        self.operate("cancel a job", id, Event::Cancel).await
    }

    /// Give a failed or cancelled job a new life with a full set of attempts.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn retry(&self, id: JobId) -> Result<Moved, StoreError> {
        self.operate("retry a job", id, Event::Retry).await
    }

    /// Make a waiting job due now.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn run_now(&self, id: JobId) -> Result<Moved, StoreError> {
        self.operate("run a job now", id, Event::RunNow).await
    }

    async fn operate(&self, attempted: &'static str, id: JobId, event: Event) -> Result<Moved, StoreError> {
        let shared = self.shared.clone();
        transact(&self.shared.pool, attempted, move |conn, _| step(conn, shared.clone(), id, event)).await
    }
}

fn step(conn: &mut MySqlConnection, shared: std::sync::Arc<Shared>, id: JobId, event: Event) -> Step<'_, Moved> {
    Box::pin(async move {
        let now = read_clock(conn, &shared.clock).await?;
        let held = lock_held(conn, std::iter::once(id)).await?;
        let lane = shared.lanes.any();
        let Some(owed) = held.get(&id) else {
            return ended(conn, lane, id, event, now).await;
        };
        let Ok(state) = next(owed.state, event) else { return Ok(Moved::Refused(owed.state)) };
        match event {
            Event::Cancel if state == State::Cancelled => {
                delete_owed(conn, &[id.uuid()]).await?;
                // A closing line without a runner: nobody executed it, but the ledger knows its end.
                let closing = Line {
                    job: id,
                    number: owed.attempt + 1,
                    burned: owed.attempt - owed.spared,
                    runner: "",
                    execute_at: owed.execute_at,
                    started_at: now,
                    verdict: Verdict::Cancelled,
                    end: Some(State::Cancelled),
                    error: None,
                    result: None,
                };
                append_to_ledger(conn, &[closing], now).await?;
                if owed.keyed {
                    release_key_of(conn, id.uuid()).await?;
                }
                let ended = BTreeMap::from([((owed.queue.clone(), owed.kind.clone(), State::Cancelled), 1)]);
                count(conn, lane, &ended).await?;
                Ok(Moved::Done(State::Cancelled))
            }
            Event::Cancel => {
                sqlx::query("UPDATE owed SET cancel_requested_at = COALESCE(cancel_requested_at, ?) WHERE id = ?")
                    .bind(now)
                    .bind(id.uuid())
                    .execute(&mut *conn)
                    .await?;
                Ok(Moved::Asked)
            }
            Event::RunNow => {
                let execute_at = floor_ms(now).min(owed.execute_at);
                sqlx::query("UPDATE owed SET execute_at = ? WHERE id = ?")
                    .bind(execute_at)
                    .bind(id.uuid())
                    .execute(&mut *conn)
                    .await?;
                let priority = owed.priority.try_into().map_err(corrupt)?;
                let queue = owed.queue.clone();
                Ok(Moved::Waits(Accepted { id, queue, priority, execute_at, created_at: now }))
            }
            // The state machine refuses these for every owed state; they have no place here.
            Event::Claim | Event::Settle { .. } | Event::Retry => Ok(Moved::Refused(owed.state)),
        }
    })
}

/// The job is not owed: it has ended, or never was.
async fn ended(
    conn: &mut MySqlConnection,
    lane: u8,
    id: JobId,
    event: Event,
    now: crate::job::Timestamp,
) -> Result<Moved, sqlx::Error> {
    // The job's own row is the lock that makes two retries at once take turns.
    let found = sqlx::query("SELECT kind, queue, priority, max_attempts, unique_key FROM jobs WHERE id = ? FOR UPDATE")
        .bind(id.uuid())
        .fetch_optional(&mut *conn)
        .await?;
    let Some(row) = found else { return Ok(Moved::Missing) };
    let last = sqlx::query(
        "SELECT a.number, a.end_state, o.state FROM attempts a LEFT JOIN owed o ON o.id = a.job_id WHERE a.job_id = ? \
         ORDER BY a.number DESC LIMIT 1",
    )
    .bind(id.uuid())
    .fetch_optional(&mut *conn)
    .await?;
    let (done, end, owed): (u32, Option<String>, Option<String>) = match last {
        Some(last) => (last.try_get(0)?, last.try_get(1)?, last.try_get(2)?),
        None => (0, None, None),
    };
    let state = owed.or(end).as_deref().and_then(State::from_word).unwrap_or(State::Waiting);
    if !state.is_end() {
        // Accepted, or retried by somebody else, since we looked for it among the owed.
        return Ok(Moved::Refused(state));
    }
    if next(state, event).is_err() {
        return Ok(Moved::Refused(state));
    }
    let kind: Name = row.try_get::<String, _>(0)?.parse().map_err(|_| corrupt("kind"))?;
    let queue: Name = row.try_get::<String, _>(1)?.parse().map_err(|_| corrupt("queue"))?;
    let (priority, max_attempts): (u8, u32) = (row.try_get(2)?, row.try_get(3)?);
    let key: Option<Vec<u8>> = row.try_get(4)?;
    if let Some(key) = &key {
        // Another unfinished job may have taken the key since: then this one may not come back.
        let taken: Option<Uuid> =
            sqlx::query_scalar("SELECT job_id FROM unique_keys WHERE kind = ? AND unique_key = ? FOR UPDATE")
                .bind(kind.as_str())
                .bind(key)
                .fetch_optional(&mut *conn)
                .await?;
        if taken.is_some() {
            return Ok(Moved::Refused(state));
        }
        sqlx::query("INSERT INTO unique_keys (kind, unique_key, job_id) VALUES (?, ?, ?)")
            .bind(kind.as_str())
            .bind(key)
            .bind(id.uuid())
            .execute(&mut *conn)
            .await?;
    }
    let execute_at = floor_ms(now);
    // The ledger's numbers go on; what was burned before counts as spared, so the new life has all its attempts.
    sqlx::query(
        "INSERT INTO owed (id, kind, queue, priority, max_attempts, keyed, state, execute_at, attempt, spared) \
         VALUES (?, ?, ?, ?, ?, ?, 'waiting', ?, ?, ?)",
    )
    .bind(id.uuid())
    .bind(kind.as_str())
    .bind(queue.as_str())
    .bind(priority)
    .bind(max_attempts)
    .bind(key.is_some())
    .bind(execute_at)
    .bind(done)
    .bind(done)
    .execute(&mut *conn)
    .await?;
    count(conn, lane, &BTreeMap::from([((queue.clone(), kind, state), -1)])).await?;
    let priority = priority.try_into().map_err(corrupt)?;
    Ok(Moved::Waits(Accepted { id, queue, priority, execute_at, created_at: now }))
}
