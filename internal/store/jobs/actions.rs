//! Actions on single jobs: cancel, retry, run now. Each is one transaction. It locks the row, asks the state machine,
//! and returns what it did.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use uuid::Uuid;

use crate::audit::{AuditEntry, record, was_recorded};
use crate::idempotency::{IdempotentOutcome, IdempotentRequest, ResponseBuilder, finish, stored_before};
use crate::jobs::key_holders::take_for_operator;
use crate::jobs::read::read_job;
use crate::jobs::subjects::{LockedKeys, subjects_of_change};
use crate::rows::checkpoints::checkpoint_bit;
use crate::rows::dead_letters::{delete_dead_letter, was_replayed};
use crate::rows::jobs::Accepted;
use crate::rows::ledger::{AttemptRow, append_to_ledger};
use crate::rows::limits::{unpark, waits_for_turn};
use crate::rows::links::{AWAITED, IN_BATCH, LinkedEnd, forget_blocked, record_ends, record_retry};
use crate::rows::order::{
    OrderedJobs, close_places, held_until, lock_free_keys_of, lock_free_or_make_keys_of, lock_keys_of,
    lock_or_make_keys_of, place_again,
};
use crate::rows::owed::{DueJob, Owed, delete_owed, lock_held};
use crate::rows::tallies::count;
use crate::rows::unique_keys::{WantedKey, release_keys_of};
use crate::sql::batches::{MAX_ROWS, bind_padded, in_list, padded_len, placeholders, statement};
use crate::sql::clock::read_clock;
use crate::sql::cluster::{Locked, lock_in_cluster};
use crate::sql::connection::PriorRun;
use crate::sql::error::corrupt;
use crate::sql::pools::transact_in_turn;
use crate::sql::session::Session;
use crate::{Store, StoreError, StoreInner};
use tickr_job::{Actor, Attempt, Job, JobId, JobOptions, Name, State, StateInput, Timestamp, Verdict, floor_ms, next};

/// Outcome of an action on one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActionOutcome {
    /// Done. The job is now in this state.
    Done(State),
    /// The job is executing, and its handler was asked to stop. Only after a cancel.
    StopRequested,
    /// Done. The job waits, and the caller must give the index a hint.
    Waits(Accepted),
    /// Not allowed in the job's current state.
    Refused(State),
    /// Not possible while the job waits for its turn: for a job in front of it, for a limit, or for its parents.
    Held(State),
    /// Not possible while another job has the unique key of this one. Only after a retry.
    UniqueKeyTaken {
        /// The job that has the unique key.
        holder: JobId,
        /// The state of that job.
        state: State,
    },
    /// There is no such job.
    Missing,
}

impl ActionOutcome {
    /// Return whether the action was carried out.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        !matches!(self, Self::Refused(_) | Self::Held(_) | Self::UniqueKeyTaken { .. } | Self::Missing)
    }
}

impl Store {
    /// Cancel a job: a waiting job ends now, the handler of an executing job is asked to stop (G9).
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn cancel(&self, id: JobId, by: &Actor) -> Result<ActionOutcome, StoreError> {
        self.act_without_answer(id, JobAction::Cancel, by).await
    }

    /// Run a failed or cancelled job again, with a full set of attempts.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn retry(&self, id: JobId, by: &Actor) -> Result<ActionOutcome, StoreError> {
        self.act_without_answer(id, JobAction::Retry, by).await
    }

    /// Make a waiting job due now.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn run_now(&self, id: JobId, by: &Actor) -> Result<ActionOutcome, StoreError> {
        self.act_without_answer(id, JobAction::RunNow, by).await
    }

    async fn act_without_answer(&self, id: JobId, action: JobAction, by: &Actor) -> Result<ActionOutcome, StoreError> {
        let shared = self.shared.clone();
        let act = action.audit_entry(id, by);
        let subjects = subjects_of_change(&self.shared.pools, id, action.locked_keys()).await;
        let outcome = transact_in_turn(&self.shared.pools, subjects, action.attempted(), move |conn, earlier| {
            let (shared, act) = (shared.clone(), act.clone());
            Box::pin(async move {
                let ordered = lock_for(conn, action.event(), &[id.uuid()]).await?;
                if let Some(updated) = done_before(conn, id, (action, &act), earlier).await? {
                    return Ok(updated.outcome);
                }
                let step = apply_event(conn, &shared, id, action.event(), &ordered).await?;
                if step.outcome.is_done() {
                    record(conn, &act, step.now).await?;
                }
                count(conn, shared.lanes.any(), &step.counts).await?;
                Ok(step.outcome)
            })
        });
        let outcome = outcome.await?;
        self.shared.links_ended(AWAITED | IN_BATCH);
        Ok(outcome)
    }

    /// Cancel, retry or run a job now, at most once if the request has an idempotency key. `build` builds the response
    /// from the job after the action; with an idempotency key, it is committed with the change. The outcome of an action
    /// that is not possible is not stored.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn act(
        &self,
        id: JobId,
        action: JobAction,
        by: &Actor,
        idempotent: Option<IdempotentRequest>,
        build: ResponseBuilder<UpdatedJob>,
    ) -> Result<IdempotentOutcome<ActionOutcome>, StoreError> {
        let shared = self.shared.clone();
        let act = action.audit_entry(id, by);
        let subjects = subjects_of_change(&self.shared.pools, id, action.locked_keys()).await;
        let outcome = transact_in_turn(&self.shared.pools, subjects, action.attempted(), move |conn, earlier| {
            let (shared, act, idempotent, build) =
                (shared.clone(), act.clone(), idempotent.clone(), Arc::clone(&build));
            Box::pin(async move {
                // A repeated run finds the stored response of an earlier one, if there is an idempotency key.
                let earlier = if idempotent.is_some() { PriorRun::Nothing } else { earlier };
                act_and_answer(conn, &shared, id, (action, &act), idempotent.as_ref(), &build, earlier).await
            })
        });
        let outcome = outcome.await?;
        self.shared.links_ended(AWAITED | IN_BATCH);
        Ok(outcome)
    }
}

/// An action on one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobAction {
    /// Cancel the job.
    Cancel,
    /// Cancel the job if it waits. An attempt that runs is not stopped.
    CancelUnlessExecuting,
    /// Run the job again after its end.
    Retry,
    /// Make the job due now.
    RunNow,
}

impl JobAction {
    const fn event(self) -> StateInput {
        match self {
            Self::Cancel => StateInput::Cancel,
            Self::CancelUnlessExecuting => StateInput::CancelUnlessExecuting,
            Self::Retry => StateInput::Retry,
            Self::RunNow => StateInput::RunNow,
        }
    }

    const fn locked_keys(self) -> LockedKeys {
        match self {
            Self::Cancel | Self::CancelUnlessExecuting | Self::Retry => LockedKeys::OrderAndUnique,
            Self::RunNow => LockedKeys::None,
        }
    }

    const fn attempted(self) -> &'static str {
        match self {
            Self::Cancel | Self::CancelUnlessExecuting => "cancel a job",
            Self::Retry => "retry a job",
            Self::RunNow => "run a job now",
        }
    }

    fn audit_entry(self, id: JobId, by: &Actor) -> AuditEntry {
        let action = match self {
            Self::Cancel | Self::CancelUnlessExecuting => "job.cancel",
            Self::Retry => "job.retry",
            Self::RunNow => "job.run_now",
        };
        AuditEntry::new(by, action, id.to_string())
    }
}

/// A job after an action on it.
#[derive(Clone, Debug)]
pub struct UpdatedJob {
    /// Outcome of the action: neither refused nor missing.
    pub outcome: ActionOutcome,
    /// The job after the action.
    pub job: Job,
    /// The attempts of the job, as a read of the job gives them.
    pub attempts: Vec<Attempt>,
}

async fn act_and_answer(
    conn: &mut Session<'_>,
    shared: &StoreInner,
    id: JobId,
    (action, act): (JobAction, &AuditEntry),
    idempotent: Option<&IdempotentRequest>,
    build: &ResponseBuilder<UpdatedJob>,
    earlier: PriorRun,
) -> Result<IdempotentOutcome<ActionOutcome>, sqlx::Error> {
    // The locks on the job come first, so that two equal requests take turns there. The second one finds the stored row
    // of the first, whatever the job allows by then. A repeated run finds its own row in the same way.
    let ordered = lock_for(conn, action.event(), &[id.uuid()]).await?;
    if let Some(updated) = done_before(conn, id, (action, act), earlier).await? {
        if let Some(stored) = stored_before(conn, idempotent, Some(updated.outcome.clone())).await? {
            return Ok(stored);
        }
        let answer = build(&updated);
        return Ok(IdempotentOutcome::First { done: Some(updated.outcome), answer });
    }
    let AppliedAction { outcome, counts, now } = apply_event(conn, shared, id, action.event(), &ordered).await?;
    if !outcome.is_done() {
        return Ok(stored_before(conn, idempotent, None).await?.unwrap_or(IdempotentOutcome::Refused(outcome)));
    }
    let (job, attempts) = read_job(conn, id).await?.ok_or_else(|| corrupt("a job whose row in jobs is missing"))?;
    let updated = UpdatedJob { outcome, job, attempts };
    let answer = build(&updated);
    let outcome = finish(conn, idempotent, act, (updated.outcome, answer), now).await?;
    if let IdempotentOutcome::First { .. } = outcome {
        count(conn, shared.lanes.any(), &counts).await?;
    }
    Ok(outcome)
}

/// Return the job after an earlier run of this action that was committed without an answer. The job may have started or
/// ended since, and the action is not carried out again. The order keys are locked, as [`lock_for`] does it.
async fn done_before(
    conn: &mut Session<'_>,
    id: JobId,
    (action, act): (JobAction, &AuditEntry),
    earlier: PriorRun,
) -> Result<Option<UpdatedJob>, sqlx::Error> {
    if earlier == PriorRun::Nothing {
        return Ok(None);
    }
    // The lock waits for the end of the earlier run.
    let held = lock_held(conn, std::iter::once(id)).await?;
    if !was_recorded(conn, act).await? {
        return Ok(None);
    }
    let Some((job, attempts)) = read_job(conn, id).await? else { return Ok(None) };
    let outcome = match held.get(&id) {
        Some(owed)
            if action == JobAction::Cancel && owed.state == State::Executing && owed.cancel_requested_at.is_some() =>
        {
            ActionOutcome::StopRequested
        }
        owed => outcome_by_now(&job, owed),
    };
    Ok(Some(UpdatedJob { outcome, job, attempts }))
}

/// Return the outcome of an action that was carried out some time ago. `owed` is the locked row of the job, if the job
/// has not ended.
pub(super) fn outcome_by_now(job: &Job, owed: Option<&Owed>) -> ActionOutcome {
    match owed {
        Some(owed) if owed.state != State::Executing => ActionOutcome::Waits(Accepted {
            id: job.id,
            kind: job.kind.clone(),
            queue: job.queue.clone(),
            priority: job.priority,
            execute_at: job.execute_at,
            created_at: job.created_at,
            held: waits_for_turn(owed.execute_at),
        }),
        _ => ActionOutcome::Done(job.state),
    }
}

/// End a waiting job whose row is locked as cancelled, without a runner. The caller must release its unique key and close
/// its place.
pub(crate) async fn cancel_waiting(
    conn: &mut Session<'_>,
    id: JobId,
    owed: &Owed,
    now: Timestamp,
    error: Option<&str>,
) -> Result<(), sqlx::Error> {
    delete_owed(conn, &[id.uuid()]).await?;
    if waits_for_turn(owed.execute_at) {
        unpark(conn, id.uuid()).await?;
        forget_blocked(conn, id.uuid()).await?;
    }
    record_ends(conn, &[LinkedEnd { id: id.uuid(), links: owed.links, state: State::Cancelled }]).await?;
    append_to_ledger(conn, &[closing_line(id, owed, now, error)], now).await
}

/// Return the line that ends a waiting job as cancelled. No attempt was executed, but the ledger must record the end.
fn closing_line<'a>(id: JobId, owed: &Owed, now: Timestamp, error: Option<&'a str>) -> AttemptRow<'a> {
    AttemptRow {
        job: id,
        number: owed.attempt + 1,
        burned: owed.attempt - owed.spared,
        runner: "",
        // A job that waited for its turn had no due time.
        execute_at: if waits_for_turn(owed.execute_at) { floor_ms(now) } else { owed.execute_at },
        started_at: now,
        verdict: Verdict::Cancelled,
        end: Some(State::Cancelled),
        error,
        result: None,
        cancel_requested_at: Some(now),
        exchange: None,
    }
}

/// Cancel these jobs, whose rows and order keys are locked: those that wait end now, the handlers of executing ones are
/// asked to stop. What [`cancel_waiting`] does for one job, with as few statements as for one. `errors` has the text for
/// the closing line of each job that has one.
pub(crate) async fn cancel_all(
    conn: &mut Session<'_>,
    jobs: &BTreeMap<JobId, Owed>,
    ordered: &OrderedJobs,
    errors: &BTreeMap<JobId, String>,
    now: Timestamp,
) -> Result<CancelledJobs, sqlx::Error> {
    let waits = |owed: &Owed| next(owed.state, StateInput::Cancel) == Ok(State::Cancelled);
    let mut done = CancelledJobs::default();
    let waiting: Vec<(JobId, &Owed)> =
        jobs.iter().filter(|(_, owed)| waits(owed)).map(|(id, owed)| (*id, owed)).collect();
    done.stop_requested = jobs.iter().filter(|(_, owed)| !waits(owed)).map(|(id, _)| *id).collect();
    for ids in done.stop_requested.iter().map(|id| id.uuid()).collect::<Vec<_>>().chunks(MAX_ROWS) {
        let sql = format!(
            "UPDATE owed FORCE INDEX (PRIMARY) SET cancel_requested_at = COALESCE(cancel_requested_at, ?) \
             WHERE id IN {} ORDER BY id",
            placeholders(padded_len(ids.len()))
        );
        bind_padded(statement(sql).bind(now), ids).execute(&mut *conn).await?;
    }
    if waiting.is_empty() {
        return Ok(done);
    }
    delete_owed(conn, &waiting.iter().map(|(id, _)| id.uuid()).collect::<Vec<_>>()).await?;
    let lines = waiting.iter().map(|(id, owed)| closing_line(*id, owed, now, errors.get(id).map(String::as_str)));
    append_to_ledger(conn, &lines.collect::<Vec<_>>(), now).await?;
    let ends = waiting.iter().map(|(id, owed)| LinkedEnd { id: id.uuid(), links: owed.links, state: State::Cancelled });
    record_ends(conn, &ends.collect::<Vec<_>>()).await?;
    let turns: Vec<Uuid> =
        waiting.iter().filter(|(_, owed)| waits_for_turn(owed.execute_at)).map(|(id, _)| id.uuid()).collect();
    for ids in turns.chunks(MAX_ROWS) {
        let tail = format!(" ORDER BY job_id LIMIT {MAX_ROWS}");
        in_list("DELETE FROM limit_waits WHERE job_id IN", ids, &tail).execute(&mut *conn).await?;
        in_list("DELETE FROM blocked_jobs WHERE job_id IN", ids, &tail).execute(&mut *conn).await?;
    }
    let keyed: Vec<Uuid> = waiting.iter().filter(|(_, owed)| owed.keyed).map(|(id, _)| id.uuid()).collect();
    release_keys_of(conn, &keyed).await?;
    let places: Vec<Uuid> = waiting.iter().filter(|(id, _)| ordered.contains(*id)).map(|(id, _)| id.uuid()).collect();
    done.released = close_places(conn, &places, now).await?;
    for (id, owed) in waiting {
        *done.counts.entry((owed.queue.clone(), owed.kind.clone(), State::Cancelled)).or_default() += 1;
        done.cancelled.push(id);
    }
    Ok(done)
}

/// Outcome of [`cancel_all`]. The caller writes the tallies last in the transaction.
#[derive(Default)]
pub(crate) struct CancelledJobs {
    pub(crate) cancelled: Vec<JobId>,
    pub(crate) stop_requested: Vec<JobId>,
    /// Jobs that are not held any more.
    pub(crate) released: Vec<DueJob>,
    pub(crate) counts: BTreeMap<(Name, Name, State), i64>,
}

/// Outcome of an action, and the changes for the tallies. The caller writes the tallies last in the transaction.
pub(crate) struct AppliedAction {
    pub(crate) outcome: ActionOutcome,
    pub(crate) counts: BTreeMap<(Name, Name, State), i64>,
    now: Timestamp,
}

/// Lock the order keys of these jobs, as far as `event` concerns their places.
pub(crate) async fn lock_for(
    conn: &mut Session<'_>,
    event: StateInput,
    ids: &[Uuid],
) -> Result<OrderedJobs, sqlx::Error> {
    match event {
        StateInput::Cancel | StateInput::CancelUnlessExecuting => lock_keys_of(conn, ids).await,
        StateInput::Retry => lock_or_make_keys_of(conn, ids).await,
        StateInput::RunNow
        | StateInput::Change
        | StateInput::Claim
        | StateInput::Settle { .. }
        | StateInput::Undo { .. } => Ok(OrderedJobs::default()),
    }
}

/// Do what [`lock_for`] does, without the order keys that another session locks at this moment. Returns also the jobs that
/// have one of those.
pub(crate) async fn lock_free_for(
    conn: &mut Session<'_>,
    event: StateInput,
    ids: &[Uuid],
) -> Result<(OrderedJobs, BTreeSet<Uuid>), sqlx::Error> {
    match event {
        StateInput::Cancel | StateInput::CancelUnlessExecuting => lock_free_keys_of(conn, ids).await,
        StateInput::Retry => lock_free_or_make_keys_of(conn, ids).await,
        StateInput::RunNow
        | StateInput::Change
        | StateInput::Claim
        | StateInput::Settle { .. }
        | StateInput::Undo { .. } => Ok((OrderedJobs::default(), BTreeSet::new())),
    }
}

/// Carry out an action. The order keys are locked, as [`lock_for`] does it.
pub(crate) async fn apply_event(
    conn: &mut Session<'_>,
    shared: &StoreInner,
    id: JobId,
    event: StateInput,
    ordered: &OrderedJobs,
) -> Result<AppliedAction, sqlx::Error> {
    let held = lock_held(conn, std::iter::once(id)).await?;
    // Read only now: the lock may have waited for a settle, whose end must not lie after what follows it.
    let now = read_clock(conn, &shared.clock).await?;
    let done = |outcome: ActionOutcome| AppliedAction { outcome, counts: BTreeMap::new(), now };
    let Some(owed) = held.get(&id) else { return ended(conn, id, event, ordered, now).await };
    let priority = owed.priority.try_into().map_err(corrupt)?;
    let waits = |execute_at| {
        let (kind, queue) = (owed.kind.clone(), owed.queue.clone());
        Accepted { id, kind, queue, priority, execute_at, created_at: now, held: waits_for_turn(execute_at) }
    };
    let Ok(state) = next(owed.state, event) else { return Ok(done(ActionOutcome::Refused(owed.state))) };
    match event {
        StateInput::Cancel | StateInput::CancelUnlessExecuting if state == State::Cancelled => {
            cancel_waiting(conn, id, owed, now, None).await?;
            if owed.keyed {
                release_keys_of(conn, &[id.uuid()]).await?;
            }
            if ordered.contains(id) {
                close_places(conn, &[id.uuid()], now).await?;
            }
            let counts = BTreeMap::from([((owed.queue.clone(), owed.kind.clone(), State::Cancelled), 1)]);
            Ok(AppliedAction { outcome: ActionOutcome::Done(State::Cancelled), counts, now })
        }
        StateInput::Cancel => {
            sqlx::query("UPDATE owed SET cancel_requested_at = COALESCE(cancel_requested_at, ?) WHERE id = ?")
                .bind(now)
                .bind(id.uuid())
                .execute(&mut *conn)
                .await?;
            Ok(done(ActionOutcome::StopRequested))
        }
        StateInput::RunNow if waits_for_turn(owed.execute_at) => Ok(done(ActionOutcome::Held(owed.state))),
        StateInput::RunNow => {
            let execute_at = floor_ms(now).min(owed.execute_at);
            sqlx::query("UPDATE owed SET execute_at = ? WHERE id = ?")
                .bind(execute_at)
                .bind(id.uuid())
                .execute(&mut *conn)
                .await?;
            Ok(done(ActionOutcome::Waits(waits(execute_at))))
        }
        // The state machine refuses these events for every unfinished state, so they do not get here.
        StateInput::Claim
        | StateInput::Settle { .. }
        | StateInput::Undo { .. }
        | StateInput::Retry
        | StateInput::Change
        | StateInput::CancelUnlessExecuting => Ok(done(ActionOutcome::Refused(owed.state))),
    }
}

/// Handle a job without an `owed` row: it has ended, or never existed.
async fn ended(
    conn: &mut Session<'_>,
    id: JobId,
    event: StateInput,
    ordered: &OrderedJobs,
    now: Timestamp,
) -> Result<AppliedAction, sqlx::Error> {
    let only = |outcome: ActionOutcome| AppliedAction { outcome, counts: BTreeMap::new(), now };
    // The job's own row is the lock that makes two concurrent retries take turns.
    let found = sqlx::query(
        "SELECT kind, queue, priority, max_attempts, unique_key, options, created_at FROM jobs WHERE id = ? FOR UPDATE",
    )
    .bind(id.uuid())
    .fetch_optional(&mut *conn)
    .await?;
    let Some(row) = found else { return Ok(only(ActionOutcome::Missing)) };
    lock_in_cluster(conn, Locked::Job, [id.uuid()]).await?;
    let last = sqlx::query(
        "SELECT a.number, a.end_state, o.state FROM attempts a LEFT JOIN owed o ON o.id = a.job_id WHERE a.job_id = ? \
         ORDER BY a.number DESC LIMIT 1",
    )
    .bind(id.uuid())
    .fetch_optional(&mut *conn)
    .await?;
    let (done, end, owed): (u32, Option<String>, Option<String>) = match last {
        Some(last) => (last.try_get("number")?, last.try_get("end_state")?, last.try_get("state")?),
        None => (0, None, None),
    };
    let state = owed.or(end).as_deref().and_then(State::from_word).unwrap_or(State::Waiting);
    if !state.is_end() {
        // The job was accepted, or retried by another caller, after the read of its `owed` row.
        return Ok(only(ActionOutcome::Refused(state)));
    }
    if next(state, event).is_err() {
        return Ok(only(ActionOutcome::Refused(state)));
    }
    if was_replayed(conn, id.uuid()).await? {
        // The job was replayed: another job does its work now.
        return Ok(only(ActionOutcome::Refused(state)));
    }
    let kind: Name = row.try_get::<String, _>("kind")?.parse().map_err(|_| corrupt("kind"))?;
    let queue: Name = row.try_get::<String, _>("queue")?.parse().map_err(|_| corrupt("queue"))?;
    let (priority, max_attempts): (u8, u32) = (row.try_get("priority")?, row.try_get("max_attempts")?);
    let key: Option<Vec<u8>> = row.try_get("unique_key")?;
    if let Some(key) = &key {
        // Another unfinished job may have taken the unique key since. Then this job cannot run again.
        let options: Option<String> = row.try_get("options")?;
        let options = options.map(|text| JobOptions::as_far_as_readable(&text)).unwrap_or_default();
        let for_ms = rest_of_window(options.unique_for_ms, row.try_get("created_at")?, now);
        let wanted = WantedKey { kind: &kind, key, id: id.uuid(), for_ms };
        if let Some((holder, state)) = take_for_operator(conn, wanted).await? {
            return Ok(only(ActionOutcome::UniqueKeyTaken { holder, state }));
        }
    }
    let execute_at = floor_ms(now);
    let held = place_again(conn, ordered, id, execute_at).await?;
    let links = record_retry(conn, id.uuid(), state).await? | checkpoint_bit(conn, id.uuid()).await?;
    // The numbers in the ledger continue. Earlier attempts count as spared, so that the job has all its attempts again.
    sqlx::query(
        "INSERT INTO owed (id, kind, queue, priority, max_attempts, keyed, state, execute_at, attempt, spared, links) \
         VALUES (?, ?, ?, ?, ?, ?, 'waiting', ?, ?, ?, ?)",
    )
    .bind(id.uuid())
    .bind(kind.as_str())
    .bind(queue.as_str())
    .bind(priority)
    .bind(max_attempts)
    .bind(key.is_some())
    .bind(if held { held_until() } else { execute_at }.naive_utc())
    .bind(done)
    .bind(done)
    .bind(links)
    .execute(&mut *conn)
    .await?;
    delete_dead_letter(conn, id.uuid()).await?;
    let counts = BTreeMap::from([((queue.clone(), kind.clone(), state), -1)]);
    let priority = priority.try_into().map_err(corrupt)?;
    Ok(AppliedAction {
        outcome: ActionOutcome::Waits(Accepted { id, kind, queue, priority, execute_at, created_at: now, held }),
        counts,
        now,
    })
}

/// Return the rest of the time for which a job keeps its unique key at least, in milliseconds. That time counts from
/// the acceptance, so a retry does not begin it again.
fn rest_of_window(unique_for_ms: Option<u64>, created_at: Timestamp, now: Timestamp) -> Option<u64> {
    let gone = u64::try_from((now - created_at).num_milliseconds()).unwrap_or(0);
    unique_for_ms?.checked_sub(gone).filter(|rest| *rest > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_unique_key_counts_from_the_acceptance_of_its_job() {
        let at = |ms| chrono::DateTime::from_timestamp_millis(ms).unwrap();
        let rest = |for_ms, now| rest_of_window(for_ms, at(1_000), at(now));
        assert_eq!(
            [1_000, 1_001, 3_999, 4_000, 9_000].map(|now| rest(Some(3_000), now).unwrap_or(0)),
            [3_000, 2_999, 1, 0, 0]
        );
        // The clock was set back.
        assert_eq!(rest(Some(3_000), 500), Some(3_000));
        assert_eq!(rest(None, 2_000), None);
    }
}
