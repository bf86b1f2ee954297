//! The turns of a canary between its batches: count the outcomes of the jobs that it released, and act on them.
//!
//! A turn is one transaction under the lock of the operation, like a batch. Only the holder of the token takes turns
//! and releases jobs. So no job is released between the count and the decision, and a runner that has lost its lease
//! decides nothing.

use std::time::Duration;

use async_recursion::async_recursion as boxed;
use chrono::TimeDelta;
use serde_json::json;
use sqlx::Row;
use uuid::Uuid;

use crate::audit::{AuditEntry, record};
use crate::bulk::{AT_THE_END, Leased, Locked, OperationLease, lock_leased, text};
use crate::sql::batches::statement;
use crate::sql::clock::read_clock;
use crate::sql::connection::{PriorRun, transact};
use crate::sql::session::Session;
use crate::{Store, StoreError, StoreInner};
use tickr_job::{Actor, Canary, CanaryDecision, CanaryOutcomes, CanaryState, OperationState, State, Timestamp};

/// Outcome of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CanaryTurn {
    /// True if the runner has nothing more to do: the operation has ended, or the lease is lost.
    pub over: bool,
    /// True if another runner has the lease, or the operation was cancelled or paused.
    pub lost: bool,
    /// Jobs per second from now on.
    pub rate: u32,
    /// Number of jobs that may be released before the next turn.
    pub room: u64,
    /// True if the canary has stopped by itself.
    pub stopped: bool,
    /// True if another session locks the operation. Then the turn was not taken.
    pub waits_for_lock: bool,
}

impl Store {
    /// Count the outcomes of the jobs that the present step of a canary released, decide how the canary goes on, and
    /// renew its lease.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn turn_canary(&self, held: OperationLease, lease: Duration) -> Result<CanaryTurn, StoreError> {
        let shared = self.shared.clone();
        let act = AuditEntry::new(&Actor::tickr(), "operation.stop", held.id.to_string());
        transact(&self.shared.pools.loops, "judge a canary", move |conn, earlier| {
            let (shared, act) = (shared.clone(), act.clone());
            Box::pin(async move { turn(conn, &shared, (held, earlier), lease, act).await })
        })
        .await
    }
}

async fn turn(
    conn: &mut Session<'_>,
    shared: &StoreInner,
    (held, earlier): (OperationLease, PriorRun),
    lease: Duration,
    act: AuditEntry,
) -> Result<CanaryTurn, sqlx::Error> {
    let lost = CanaryTurn { over: true, lost: true, ..CanaryTurn::default() };
    let Locked { operation, place, .. } = match lock_leased(conn, held, earlier).await? {
        Leased::Locked(locked) => *locked,
        Leased::Busy => return Ok(CanaryTurn { waits_for_lock: true, ..CanaryTurn::default() }),
        Leased::Lost => return Ok(lost),
    };
    let Some((canary, mut state)) = operation.canary else { return Ok(lost) };
    let now = read_clock(conn, &shared.clock).await?;
    let (found, older) = outcomes(conn, held.id, state.since).await?;
    (state.outcomes, state.counted_at) = (found, Some(now));
    let mut decision = canary.decide(&state, operation.done, place == Some(AT_THE_END));
    // A step that is not the last one has fewer jobs than one count looks at.
    if decision == CanaryDecision::Finish
        && let Some(older) = older
        && one_waits(conn, held.id, older).await?
    {
        state.outcomes.waiting += 1;
        decision = CanaryDecision::Wait;
    }
    state.waits = decision == CanaryDecision::Wait;
    let mut turn = CanaryTurn::default();
    match decision {
        CanaryDecision::Release => {
            let unknown = Canary::MAX_WAITING.saturating_sub(state.outcomes.waiting);
            turn.room = canary.left_in_step(&state, operation.done).min(unknown);
        }
        CanaryDecision::Wait => {}
        CanaryDecision::MoveUp => {
            let since = begin_of_next_step(conn, held.id, state.since, now).await?;
            state = CanaryState {
                step: state.step + 1,
                released_before: operation.done,
                since: Some(since),
                counted_at: Some(now),
                ..CanaryState::default()
            };
            turn.room = canary.left_in_step(&state, operation.done).min(Canary::MAX_WAITING);
        }
        CanaryDecision::Finish => turn.over = true,
        CanaryDecision::Stop => {
            (state.stopped, turn.stopped, turn.over) = (true, true, true);
            let reason = canary.reason_of_stop(&state);
            write(conn, held.id, &state, (OperationState::Failed, Some(reason.as_str())), (now, lease)).await?;
            record(conn, &act.with(json!({"reason": reason})), now).await?;
            return Ok(turn);
        }
    }
    turn.rate = canary.step(state.step).rate;
    let end = if turn.over { OperationState::Done } else { OperationState::Running };
    write(conn, held.id, &state, (end, None), (now, lease)).await?;
    Ok(turn)
}

/// Return the time with which the next step begins. The clock may have been set back since the present step released
/// its jobs, and then the next step must not count them as its own.
async fn begin_of_next_step(
    conn: &mut Session<'_>,
    id: Uuid,
    since: Option<Timestamp>,
    now: Timestamp,
) -> Result<Timestamp, sqlx::Error> {
    // A step with a next one has fewer jobs than this looks at.
    let sql = "SELECT MAX(w.since) AS newest FROM (SELECT since FROM dead_letters FORCE INDEX (dead_letters_operation) \
               WHERE operation = ? ORDER BY replayed_as DESC LIMIT ?) w";
    let row = sqlx::query(sql).bind(id).bind(Canary::MAX_LOOKED_AT).fetch_one(conn).await?;
    let newest: Option<Timestamp> = row.try_get("newest")?;
    let behind = newest.map(|newest| newest + TimeDelta::microseconds(1));
    Ok([since, behind].into_iter().flatten().fold(now, Timestamp::max))
}

async fn write(
    conn: &mut Session<'_>,
    id: Uuid,
    state: &CanaryState,
    (end, why): (OperationState, Option<&str>),
    (now, lease): (Timestamp, Duration),
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "UPDATE operations SET canary_state = ?, state = ?, ended_at = ?, last_error = COALESCE(?, last_error), \
         steered_until = ? WHERE id = ?",
    )
    .bind(text(serde_json::to_string(state))?)
    .bind(end.as_str())
    .bind((end != OperationState::Running).then_some(now))
    .bind(why)
    .bind(now + TimeDelta::from_std(lease).unwrap_or(TimeDelta::zero()))
    .bind(id)
    .execute(conn)
    .await
    .map(drop)
}

/// An attempt of the unfinished job `o` has failed. An attempt that was lost with its runner counts as begun, and is no
/// failure of the job. `o.losses` counts only the losses since the last verdict of the job, so the ledger decides. Most
/// jobs have not begun more attempts than `o` accounts for, and need no look into it.
const HAS_FAILED: &str = "(o.attempt > o.spared + o.losses + (o.state = 'executing') AND EXISTS (SELECT 1 FROM attempts f \
                          FORCE INDEX (PRIMARY) WHERE f.job_id = o.id \
                          AND f.verdict IN ('failed', 'rejected', 'timed_out', 'panicked')))";

/// Count the outcomes of the jobs that an operation has made since a moment, the newest first. Returns also the oldest
/// job that was looked at, if there may be older ones.
async fn outcomes(
    conn: &mut Session<'_>,
    id: Uuid,
    since: Option<Timestamp>,
) -> Result<(CanaryOutcomes, Option<Uuid>), sqlx::Error> {
    let later = if since.is_some() { "AND since >= ?" } else { "" };
    let sql = format!(
        "SELECT w.id, COALESCE(CAST(o.state AS CHAR), CAST((SELECT a.end_state FROM attempts a WHERE a.job_id = w.id \
         ORDER BY a.number DESC LIMIT 1) AS CHAR)) AS state, \
         COALESCE({HAS_FAILED}, FALSE) AS has_failed \
         FROM (SELECT replayed_as AS id FROM dead_letters FORCE INDEX (dead_letters_operation) \
         WHERE operation = ? {later} ORDER BY replayed_as DESC LIMIT ?) w LEFT JOIN owed o ON o.id = w.id \
         ORDER BY w.id DESC"
    );
    let mut query = statement(sql).bind(id);
    if let Some(since) = since {
        query = query.bind(since);
    }
    let mut found = CanaryOutcomes::default();
    let rows = query.bind(Canary::MAX_LOOKED_AT).fetch_all(conn).await?;
    let oldest = rows.last().filter(|_| rows.len() >= Canary::MAX_LOOKED_AT as usize);
    let oldest = oldest.map(|row| row.try_get("id")).transpose()?;
    for row in rows {
        // A job that retention or an operator has deleted has no state any more.
        let Some(state) = row.try_get::<Option<String>, _>("state")?.as_deref().and_then(State::from_word) else {
            continue;
        };
        let is_enough = found.passed + found.failed + found.retrying >= Canary::MAX_OUTCOMES;
        let count = match state {
            State::Completed => &mut found.passed,
            State::Failed => &mut found.failed,
            State::Cancelled => &mut found.cancelled,
            State::Waiting | State::Executing | State::Retrying if row.try_get("has_failed")? => &mut found.retrying,
            State::Waiting | State::Executing | State::Retrying => {
                found.waiting += 1;
                continue;
            }
        };
        if !is_enough {
            *count += 1;
        }
    }
    Ok((found, oldest))
}

/// Return whether a job that an operation has made before this one has no outcome. This reads all of them if there is
/// none, so it is only for the end of a canary.
async fn one_waits(conn: &mut Session<'_>, id: Uuid, before: Uuid) -> Result<bool, sqlx::Error> {
    let sql = format!(
        "SELECT 1 FROM dead_letters d FORCE INDEX (dead_letters_operation) \
         STRAIGHT_JOIN owed o FORCE INDEX (PRIMARY) ON o.id = d.replayed_as \
         WHERE d.operation = ? AND d.replayed_as < ? AND NOT ({HAS_FAILED}) ORDER BY d.replayed_as LIMIT 1"
    );
    Ok(statement(sql).bind(id).bind(before).fetch_optional(conn).await?.is_some())
}
