//! What people ask of single jobs: cancel, retry, run now. Each is one transaction that locks the row, asks the state
//! machine, and answers what it did.

use std::collections::BTreeMap;
use std::sync::Arc;

use sqlx::{MySqlConnection, Row};
use uuid::Uuid;

use super::audit::{Act, record};
use super::dead::{unbury, was_replayed};
use super::error::{Fault, corrupt, fault};
use super::insert::{Accepted, read_clock};
use super::link::{Earlier, transact};
use super::once::{Once, Outcome, Wording, find, keep, lost};
use super::read::read_job;
use super::settle::{Line, Owed, append_to_ledger, count, delete_owed, lock_held, release_key_of};
use super::{Shared, Store, StoreError};
use crate::job::{Actor, Attempt, Event, Job, JobId, Name, State, Timestamp, Verdict, floor_ms, next};

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
    pub async fn cancel(&self, id: JobId, by: &Actor) -> Result<Moved, StoreError> {
        self.operate("cancel a job", id, Steer::Cancel, by).await
    }

    /// Give a failed or cancelled job a new life with a full set of attempts.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn retry(&self, id: JobId, by: &Actor) -> Result<Moved, StoreError> {
        self.operate("retry a job", id, Steer::Retry, by).await
    }

    /// Make a waiting job due now.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn run_now(&self, id: JobId, by: &Actor) -> Result<Moved, StoreError> {
        self.operate("run a job now", id, Steer::RunNow, by).await
    }

    async fn operate(&self, attempted: &'static str, id: JobId, steer: Steer, by: &Actor) -> Result<Moved, StoreError> {
        let shared = self.shared.clone();
        let act = steer.act(id, by);
        transact(&self.shared.pools.steering, attempted, move |conn, earlier| {
            let (shared, act) = (shared.clone(), act.clone());
            Box::pin(async move {
                let step = step(conn, &shared, id, steer.event(), earlier).await?;
                if !matches!(step.moved, Moved::Refused(_) | Moved::Missing) {
                    record(conn, &act, step.now).await?;
                }
                count(conn, shared.lanes.any(), &step.counts).await?;
                Ok(step.moved)
            })
        })
        .await
    }

    /// Cancel, retry or run a job now, at most once for the key of `once`. `word` words what was done as an answer, which
    /// is committed with it; what is not possible is not kept.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn steer_once(
        &self,
        id: JobId,
        steer: Steer,
        by: &Actor,
        once: Once,
        word: Wording<Steered>,
    ) -> Result<Outcome<Moved>, StoreError> {
        let shared = self.shared.clone();
        let act = steer.act(id, by);
        transact(&self.shared.pools.steering, "steer a job once", move |conn, _| {
            let (shared, act, once, word) = (shared.clone(), act.clone(), once.clone(), Arc::clone(&word));
            Box::pin(async move { steer_step(conn, &shared, id, (steer, &act), &once, &word).await })
        })
        .await
    }
}

/// What people ask of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steer {
    /// Stop it.
    Cancel,
    /// Give it a new life.
    Retry,
    /// Make it due now.
    RunNow,
}

impl Steer {
    const fn event(self) -> Event {
        match self {
            Self::Cancel => Event::Cancel,
            Self::Retry => Event::Retry,
            Self::RunNow => Event::RunNow,
        }
    }

    fn act(self, id: JobId, by: &Actor) -> Act {
        let action = match self {
            Self::Cancel => "job.cancel",
            Self::Retry => "job.retry",
            Self::RunNow => "job.run_now",
        };
        Act::new(by, action, id.to_string())
    }
}

/// A job after what was asked of it has been done.
#[derive(Clone, Debug)]
pub struct Steered {
    /// What became of the request: neither refused nor missing.
    pub moved: Moved,
    /// The job.
    pub job: Job,
    /// All its attempts.
    pub attempts: Vec<Attempt>,
}

async fn steer_step(
    conn: &mut MySqlConnection,
    shared: &Shared,
    id: JobId,
    (steer, act): (Steer, &Act),
    once: &Once,
    word: &Wording<Steered>,
) -> Result<Outcome<Moved>, sqlx::Error> {
    // The locks on the job come first: the same request twice takes turns there, and whoever comes second finds the row
    // of the first, whatever the job allows by then. A repeated run finds its own row in the same way.
    let Step { moved, counts, now } = step(conn, shared, id, steer.event(), Earlier::Nothing).await?;
    if matches!(moved, Moved::Refused(_) | Moved::Missing) {
        return Ok(match find(conn, once).await? {
            Some(kept) => kept.meet(once, None),
            None => Outcome::Refused(moved),
        });
    }
    let (job, attempts) = read_job(conn, id).await?.ok_or_else(|| corrupt("a job that is owed and not there"))?;
    let steered = Steered { moved, job, attempts };
    let answer = word(&steered);
    if let Err(error) = keep(conn, &mut [(once, &answer)], now).await {
        return lost(conn, once, error).await;
    }
    record(conn, act, now).await?;
    count(conn, shared.lanes.any(), &counts).await?;
    Ok(Outcome::First { done: Some(steered.moved), answer })
}

/// End a job that waits and is locked: cancelled, without a runner. Its unique key is the caller's to give back.
pub(super) async fn cancel_waiting(
    conn: &mut MySqlConnection,
    id: JobId,
    owed: &Owed,
    now: Timestamp,
    error: Option<&str>,
) -> Result<(), sqlx::Error> {
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
        error,
        result: None,
        cancel_requested_at: Some(now),
        exchange: None,
    };
    append_to_ledger(conn, &[closing], now).await
}

/// What was done, and what the tallies are to learn of it, last in the transaction.
pub(super) struct Step {
    pub(super) moved: Moved,
    pub(super) counts: BTreeMap<(Name, Name, State), i64>,
    now: Timestamp,
}

pub(super) async fn step(
    conn: &mut MySqlConnection,
    shared: &Shared,
    id: JobId,
    event: Event,
    earlier: Earlier,
) -> Result<Step, sqlx::Error> {
    let held = lock_held(conn, std::iter::once(id)).await?;
    // Read only now: the lock may have waited for a settle, whose end must not lie after what follows it.
    let now = read_clock(conn, &shared.clock).await?;
    let done = |moved: Moved| Step { moved, counts: BTreeMap::new(), now };
    let Some(owed) = held.get(&id) else {
        let step = ended(conn, id, event, now).await?;
        return Ok(match (&step.moved, event, earlier) {
            // The commit of the earlier run arrived and its answer did not. Whoever cancelled it, 200 is true.
            (Moved::Refused(State::Cancelled), Event::Cancel, Earlier::MayHaveCommitted) => {
                done(Moved::Done(State::Cancelled))
            }
            _ => step,
        });
    };
    let priority = owed.priority.try_into().map_err(corrupt)?;
    let waits = |execute_at| {
        let (kind, queue) = (owed.kind.clone(), owed.queue.clone());
        Accepted { id, kind, queue, priority, execute_at, created_at: now }
    };
    let Ok(state) = next(owed.state, event) else {
        return Ok(done(match (owed.state, event, earlier) {
            // Our own retry, whose answer was lost.
            (State::Waiting, Event::Retry, Earlier::MayHaveCommitted) => Moved::Waits(waits(owed.execute_at)),
            // It was made to run, and runs.
            (State::Executing, Event::Retry | Event::RunNow, Earlier::MayHaveCommitted) => Moved::Done(owed.state),
            _ => Moved::Refused(owed.state),
        }));
    };
    match event {
        Event::Cancel if state == State::Cancelled => {
            cancel_waiting(conn, id, owed, now, None).await?;
            if owed.keyed {
                release_key_of(conn, id.uuid()).await?;
            }
            let counts = BTreeMap::from([((owed.queue.clone(), owed.kind.clone(), State::Cancelled), 1)]);
            Ok(Step { moved: Moved::Done(State::Cancelled), counts, now })
        }
        Event::Cancel => {
            sqlx::query("UPDATE owed SET cancel_requested_at = COALESCE(cancel_requested_at, ?) WHERE id = ?")
                .bind(now)
                .bind(id.uuid())
                .execute(&mut *conn)
                .await?;
            Ok(done(Moved::Asked))
        }
        Event::RunNow => {
            let execute_at = floor_ms(now).min(owed.execute_at);
            sqlx::query("UPDATE owed SET execute_at = ? WHERE id = ?")
                .bind(execute_at)
                .bind(id.uuid())
                .execute(&mut *conn)
                .await?;
            Ok(done(Moved::Waits(waits(execute_at))))
        }
        // The state machine refuses these for every owed state; they have no place here.
        Event::Claim | Event::Settle { .. } | Event::Retry | Event::Change => Ok(done(Moved::Refused(owed.state))),
    }
}

/// The job is not owed: it has ended, or never was.
async fn ended(conn: &mut MySqlConnection, id: JobId, event: Event, now: Timestamp) -> Result<Step, sqlx::Error> {
    let only = |moved: Moved| Step { moved, counts: BTreeMap::new(), now };
    // The job's own row is the lock that makes two retries at once take turns.
    let found = sqlx::query("SELECT kind, queue, priority, max_attempts, unique_key FROM jobs WHERE id = ? FOR UPDATE")
        .bind(id.uuid())
        .fetch_optional(&mut *conn)
        .await?;
    let Some(row) = found else { return Ok(only(Moved::Missing)) };
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
        return Ok(only(Moved::Refused(state)));
    }
    if next(state, event).is_err() {
        return Ok(only(Moved::Refused(state)));
    }
    if was_replayed(conn, id.uuid()).await? {
        // Its work was given to another job.
        return Ok(only(Moved::Refused(state)));
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
            return Ok(only(Moved::Refused(state)));
        }
        let inserted = sqlx::query("INSERT INTO unique_keys (kind, unique_key, job_id) VALUES (?, ?, ?)")
            .bind(kind.as_str())
            .bind(key)
            .bind(id.uuid())
            .execute(&mut *conn)
            .await;
        match inserted {
            Ok(_) => {}
            // It has taken it between the two statements.
            Err(e) if fault(&e) == Fault::Duplicate => return Ok(only(Moved::Refused(state))),
            Err(e) => return Err(e),
        }
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
    unbury(conn, id.uuid()).await?;
    let counts = BTreeMap::from([((queue.clone(), kind.clone(), state), -1)]);
    let priority = priority.try_into().map_err(corrupt)?;
    Ok(Step { moved: Moved::Waits(Accepted { id, kind, queue, priority, execute_at, created_at: now }), counts, now })
}
