//! Settlement of attempts, fenced by the token. The job and the ledger change in one transaction.
//!
//! The `owed` rows are locked by primary key and read, and the pure state machine decides. Then a few statements write
//! the whole batch: rows of jobs that ended are deleted from `owed`, rows of jobs that wait again get a new due time,
//! every attempt gets its line in the ledger (the last one with the end state and the result of the job) and a row for its
//! log if it wrote one, and follow-up jobs are inserted in the same transaction.
//!
//! Every statement names its index or its order. On a small table, MySQL and MariaDB both prefer a full scan for an IN
//! list. Two scans for disjoint rows can deadlock, two index lookups cannot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use chrono::TimeDelta;
use serde_json::value::RawValue;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::attempts::claim_batches::OpenClaims;
use crate::attempts::complete::{Completed, Success, SuccessorClaim, complete};
use crate::attempts::settlement::{Again, CheckpointUse, SettleReply, SettleRequest, Settled, Settlement};
use crate::rows::attempt_logs::{AttemptLogRow, insert_logs_step};
use crate::rows::checkpoints::{HAS_CHECKPOINT, delete_checkpoints, mark_checkpoints, sorted, write_checkpoints};
use crate::rows::dead_letters::{NewDeadLetter, insert_dead_letters};
use crate::rows::jobs::{Accepted, insert_owed};
use crate::rows::ledger::{AttemptRow, append_to_ledger};
use crate::rows::limits::KnownLimits;
use crate::rows::links::{LinkedEnd, check_links, record_ends};
use crate::rows::order::{OrderedJobs, close_places, lock_keys_of_and, order_key_of};
use crate::rows::owed::{
    DEFERRED, DueJob, MAX_EXECUTIONS, MAX_LOSSES, MAX_SPARED, Owed, RESTS, delete_owed, lock_held,
};
use crate::rows::tallies::{Lanes, count};
use crate::rows::unique_keys::release_keys_of_ended;
use crate::sql::batch::Batch;
use crate::sql::batches::{BYTES_PER_ROW, MAX_ROWS, groups, in_list, placeholders, statement, tuples};
use crate::sql::clock::{StoreClock, read_clock};
use crate::sql::connection::{DbFuture, PriorRun, statement_bytes};
use crate::sql::error::corrupt;
use crate::sql::script::{Script, Value, rows_as_text};
use crate::sql::session::Session;
use tickr_job::{
    JobId, Name, NewJob, Priority, RetryPolicy, State, StateInput, Timestamp, Verdict, ceil_ms, limits, next,
};

/// The group commit of settlements.
pub(crate) struct Settles {
    clock: Arc<StoreClock>,
    lanes: Lanes,
    batches: AtomicU8,
    /// The attempts that this process has claimed and not yet settled.
    open: Arc<OpenClaims>,
    /// The limits that this process follows.
    limits: Arc<KnownLimits>,
}

impl Settles {
    pub(crate) fn new(clock: Arc<StoreClock>, lanes: Lanes, open: Arc<OpenClaims>, limits: Arc<KnownLimits>) -> Self {
        Self { clock, lanes, batches: AtomicU8::new(0), open, limits }
    }
}

impl Batch for Settles {
    type Item = SettleRequest;
    type Reply = SettleReply;
    type Mark = u8;
    const ATTEMPTED: &'static str = "settle attempts";
    const FULL: usize = 256;

    fn weight(SettleRequest { settlement: item, .. }: &SettleRequest) -> usize {
        let follow_ups = item.follow_ups.iter().map(|job| 1 + job.payload.get().len() / BYTES_PER_ROW).sum::<usize>();
        let checkpoint = if let CheckpointUse::Unsaved(content) = &item.checkpoint { content.len() } else { 0 };
        let texts = item.result.as_ref().map_or(0, |raw| raw.get().len()) + item.log.as_ref().map_or(0, String::len);
        1 + follow_ups + (texts + checkpoint) / BYTES_PER_ROW
    }

    fn row(item: &SettleRequest) -> Option<JobId> {
        Some(item.settlement.id)
    }

    /// Plain successes have a transaction of their own in any case ([`complete`]). The next jobs that it claims start
    /// when the batch is answered, and the rest of it may wait for a lock for seconds.
    fn goes_first(request: &SettleRequest) -> bool {
        let success = Success::from_request(request);
        success.is_some()
    }

    fn mark(&self) -> u8 {
        self.lanes.of_turn(self.batches.fetch_add(1, Ordering::Relaxed))
    }

    fn write<'c>(
        &'c self,
        conn: &'c mut Session<'_>,
        items: &'c [SettleRequest],
        lane: u8,
        _earlier: PriorRun,
    ) -> DbFuture<'c, Vec<SettleReply>> {
        Box::pin(async move {
            let mut answers: Vec<Settled> = (0..items.len()).map(|_| Settled::NotOurs).collect();
            let successes: Vec<Success<'_>> = items.iter().filter_map(Success::from_request).collect();
            let completed =
                if successes.is_empty() { None } else { complete(conn, &successes, lane, &self.limits).await? };
            let are_completed = completed.is_some();
            let Completed { mut released, claim, claim_of_parked, mut linked, freed } = completed.unwrap_or_default();
            let mut rest: Vec<(usize, &Settlement)> = Vec::new();
            for (place, item) in items.iter().enumerate() {
                if are_completed && Success::from_request(item).is_some() {
                    answers[place] = Settled::completed(std::mem::take(&mut released));
                } else {
                    rest.push((place, item.settlement.as_ref()));
                }
            }
            if !rest.is_empty() {
                linked |= self.settle_held(conn, &rest, lane, &mut answers).await?;
            }
            // All of it is committed. Callers that have gone away need not do this, and the others do not take turns.
            self.open.all_ended(items.iter().map(|item| (item.settlement.id, item.settlement.token)));
            let mut next = claim.map(SuccessorClaim::hand_out).unwrap_or_default();
            next.extend(claim_of_parked.map(SuccessorClaim::hand_out).unwrap_or_default());
            let answers = items.iter().zip(answers);
            let reply = |(item, settled): (&SettleRequest, Settled)| SettleReply {
                settled,
                next: next.remove(&item.settlement.id),
                linked: std::mem::take(&mut linked),
                freed: freed.contains(&item.settlement.id.uuid()),
            };
            Ok(answers.map(reply).collect())
        })
    }
}

impl Settles {
    /// Settle attempts with any verdict: lock their rows, decide, and write the outcome. Returns the links
    /// of the jobs that ended.
    async fn settle_held(
        &self,
        conn: &mut Session<'_>,
        items: &[(usize, &Settlement)],
        lane: u8,
        answers: &mut [Settled],
    ) -> Result<u8, sqlx::Error> {
        let mut tx = conn.begin().await?;
        let may_be_ordered =
            items.iter().filter(|(_, item)| item.opened.as_ref().is_none_or(|opened| opened.order_key.is_some()));
        let may_be_ordered: Vec<Uuid> = may_be_ordered.map(|(_, item)| item.id.uuid()).collect();
        // Two settlements may need the keys of each other's follow-up jobs. So both lock all keys at once, in key order.
        let of_follow_ups = items.iter().flat_map(|(_, item)| &item.follow_ups).filter_map(order_key_of).collect();
        let ordered = lock_keys_of_and(&mut tx, &may_be_ordered, of_follow_ups).await?;
        let mut held = lock_held(&mut tx, items.iter().map(|(_, item)| item.id)).await?;
        // Read the clock after the locks, for which this may have waited. So a cancel that held a lock has an earlier
        // time than the end.
        let now = read_clock(&mut tx, &self.clock).await?;
        read_earlier_lives(&mut tx, items.iter().map(|(_, item)| *item), &mut held).await?;
        let mut moves: Vec<Transition<'_>> = Vec::with_capacity(items.len());
        for (place, item) in items {
            if let Some(owed) = held.get(&item.id).filter(|owed| owed.token == item.token) {
                moves.push(decide(*place, item, owed, now)?);
            }
        }
        moves.sort_unstable_by_key(|step| step.item.id);
        moves.dedup_by_key(|step| step.item.id);
        let Written { mut follow_ups, mut released, linked } =
            write_moves(&mut tx, &moves, &ordered, now, &self.clock, lane).await?;
        tx.commit().await?;

        for step in &moves {
            answers[step.place] = Settled::Done {
                state: step.state,
                execute_at: step.execute_at,
                line: step.line(),
                follow_ups: follow_ups.remove(&step.item.id).unwrap_or_default(),
                released: std::mem::take(&mut released),
            };
        }
        recognise_own_work(conn, items, answers).await?;
        keep_late_notes(conn, items, answers).await?;
        Ok(linked)
    }
}

/// Set `spared_before` for jobs that are about to exceed [`MAX_SPARED`]. An operator's retry counts all executions
/// before it as spared. Their number is that of the last line that ended the job.
pub(super) async fn read_earlier_lives<'i>(
    conn: &mut Session<'_>,
    items: impl Iterator<Item = &'i Settlement> + Send,
    held: &mut BTreeMap<JobId, Owed>,
) -> Result<(), sqlx::Error> {
    let is_near = |item: &&Settlement| held.get(&item.id).is_some_and(|owed| owed.spared >= MAX_SPARED);
    let near = items.filter(|item| item.is_bounded()).filter(is_near).map(|item| item.id.uuid()).collect::<Vec<_>>();
    for ids in near.chunks(MAX_ROWS) {
        let sql = "SELECT job_id, MAX(number) AS number FROM attempts FORCE INDEX (PRIMARY) \
                   WHERE end_state IS NOT NULL AND job_id IN";
        for row in in_list(sql, ids, " GROUP BY job_id").fetch_all(&mut *conn).await? {
            let before: u32 = row.try_get("number")?;
            if let Some(owed) = held.get_mut(&JobId::from_uuid(row.try_get("job_id")?)) {
                owed.spared_before = before.min(owed.spared);
            }
        }
    }
    Ok(())
}

/// A settlement that has been decided.
pub(crate) struct Transition<'a> {
    /// Position of the settlement in the batch.
    pub(crate) place: usize,
    pub(crate) item: &'a Settlement,
    pub(crate) owed: &'a Owed,
    /// The verdict to write. A snooze beyond the limit becomes a failure.
    verdict: Verdict,
    pub(crate) state: State,
    pub(crate) execute_at: Option<Timestamp>,
    burned: u32,
    spared: u32,
    losses: u32,
    /// The claim is undone: the attempt leaves no row.
    undone: bool,
    /// The job waits for room in a runner.
    rests: bool,
}

impl Transition<'_> {
    /// Return the lane in which the index lists the job, if the job waits again.
    pub(crate) fn line(&self) -> Option<(Name, Priority)> {
        let priority = self.owed.priority.try_into().ok()?;
        self.execute_at.map(|_| (self.owed.queue.clone(), priority))
    }

    /// Return the row of the log, if the attempt has one.
    fn log(&self) -> Option<AttemptLogRow<'_>> {
        let log = self.item.log.as_deref()?;
        Some(AttemptLogRow { job: self.item.id, number: self.owed.attempt, log })
    }
}

/// Decide the outcome of a settlement for its row. This is a pure function of its arguments.
pub(crate) fn decide<'a>(
    place: usize,
    item: &'a Settlement,
    owed: &'a Owed,
    now: Timestamp,
) -> Result<Transition<'a>, sqlx::Error> {
    let spared_now = owed.spared - owed.spared_before;
    let undone = item.is_unstarted() && owed.cancel_requested_at.is_none();
    let verdict = match item.verdict {
        verdict @ (Verdict::Succeeded | Verdict::Cancelled) => verdict,
        _ if owed.attempt >= MAX_EXECUTIONS && !undone && owed.cancel_requested_at.is_none() => Verdict::Rejected,
        _ if spared_now >= MAX_SPARED && item.is_counted() => Verdict::Failed,
        verdict => verdict,
    };
    let spared = owed.spared + u32::from(!verdict.burns_attempt() && !undone);
    // Losses are counted in a row. A verdict of its own shows that the job did not kill its runner, so it is no suspect
    // any more. An interruption is no such verdict: the count stays. Otherwise each stop of a runner would turn a
    // suspect into an ordinary job, which might kill two more runners. The count also stays when a runner gives a job
    // back because it cannot read it.
    let losses = match verdict {
        Verdict::Lost => owed.losses + 1,
        Verdict::Interrupted => owed.losses,
        Verdict::Snoozed if matches!(item.again, Again::ForAnother(_)) => owed.losses,
        _ => 0,
    };
    let burned = owed.attempt - spared;
    let spent = burned >= owed.max_attempts || losses >= MAX_LOSSES;
    let event = if undone {
        // Of the attempts that count, one is this claim, which leaves no row.
        StateInput::Undo { tried: burned > 1 }
    } else {
        StateInput::Settle { verdict, spent, cancel_requested: owed.cancel_requested_at.is_some() }
    };
    let state = next(owed.state, event).map_err(|e| corrupt(e.to_string()))?;
    let delay = match &item.again {
        Again::Backoff(policy, chance) => Some(policy.delay(burned, *chance)),
        Again::After(delay) | Again::ForAnother(delay) | Again::UnstartedFor(delay) => Some(*delay),
        Again::NowOrLater(chance) if spared_now >= MAX_SPARED => {
            Some(spared_backoff().delay(spared_now - MAX_SPARED + 1, *chance))
        }
        Again::Now | Again::NowWithinBounds | Again::NowOrLater(_) | Again::Unstarted => None,
    };
    // An interrupted job keeps its position in its lane. Every other job gets its new due time. If the old due time is
    // in the future, the clock has been set back since, so the current time is used.
    let execute_at = match (state.is_end(), delay) {
        (true, _) => None,
        (false, None) => Some(owed.execute_at.min(ceil_ms(now))),
        (false, Some(delay)) => Some(ceil_ms(now + TimeDelta::from_std(delay).unwrap_or(TimeDelta::zero()))),
    };
    let rests = undone && matches!(item.again, Again::UnstartedFor(_));
    Ok(Transition { place, item, owed, verdict, state, execute_at, burned, spared, losses, undone, rests })
}

/// Return the delays of a job that comes back again and again without reaching a worker, from the 101st time on.
fn spared_backoff() -> RetryPolicy {
    RetryPolicy { cap_ms: 600_000, ..RetryPolicy::default() }
}

/// What decided settlements brought about.
#[derive(Default)]
pub(crate) struct Written {
    /// The follow-up jobs that were inserted, by job.
    pub(crate) follow_ups: BTreeMap<JobId, Vec<Accepted>>,
    /// Jobs that are not held any more.
    pub(crate) released: Vec<DueJob>,
    /// The links of the jobs that ended: bits of `owed.links`.
    pub(crate) linked: u8,
}

/// Write decided settlements, sorted by id. The order keys of their jobs are locked.
pub(crate) async fn write_moves(
    conn: &mut Session<'_>,
    moves: &[Transition<'_>],
    ordered: &OrderedJobs,
    now: Timestamp,
    clock: &StoreClock,
    lane: u8,
) -> Result<Written, sqlx::Error> {
    if moves.is_empty() {
        return Ok(Written::default());
    }
    let ended: Vec<&Transition<'_>> = moves.iter().filter(|step| step.state.is_end()).collect();
    let again: Vec<&Transition<'_>> = moves.iter().filter(|step| !step.state.is_end()).collect();
    delete_owed(conn, &ended.iter().map(|step| step.item.id.uuid()).collect::<Vec<_>>()).await?;
    wait_again(conn, &again).await?;
    forget_times(conn, moves).await?;
    settle_checkpoints(conn, moves, now).await?;
    let started = moves.iter().filter(|step| !step.undone);
    append_to_ledger(conn, &started.clone().map(AttemptRow::from_transition).collect::<Vec<_>>(), now).await?;
    append_logs(conn, &started.filter_map(Transition::log).collect::<Vec<_>>()).await?;
    let failed = ended.iter().filter(|step| step.state == State::Failed);
    let dead_letters: Vec<NewDeadLetter<'_>> = failed
        .map(|step| NewDeadLetter {
            id: step.item.id.uuid(),
            kind: &step.owed.kind,
            queue: &step.owed.queue,
            failed_at: now,
            error: step.item.error.as_deref().unwrap_or_default(),
            // An operator's retry counts earlier executions as spared.
            lived_before: step.owed.spared > 0,
        })
        .collect();
    insert_dead_letters(conn, &dead_letters).await?;
    release_unique_keys(conn, &ended).await?;
    let ends: Vec<LinkedEnd> = ended
        .iter()
        .map(|step| LinkedEnd { id: step.item.id.uuid(), links: step.owed.links, state: step.state })
        .collect();
    let linked = record_ends(conn, &ends).await?;
    let closed = ended.iter().filter(|step| ordered.closes(step.item.id, step.state));
    let released = close_places(conn, &closed.map(|step| step.item.id.uuid()).collect::<Vec<_>>(), now).await?;
    let follow_ups = accept_follow_ups(conn, &ended, clock).await?;
    let mut counts: BTreeMap<(Name, Name, State), i64> = BTreeMap::new();
    for step in &ended {
        *counts.entry((step.owed.queue.clone(), step.owed.kind.clone(), step.state)).or_default() += 1;
    }
    count(conn, lane, &counts).await?;
    Ok(Written { follow_ups, released, linked })
}

/// Forget when the times of attempts were up that other systems worked on. The rows stay, so that the finish keys still
/// find the attempts, which have ended.
async fn forget_times(conn: &mut Session<'_>, moves: &[Transition<'_>]) -> Result<(), sqlx::Error> {
    let deferred = moves.iter().filter(|step| step.owed.links & DEFERRED != 0);
    let deferred: Vec<Uuid> = deferred.map(|step| step.item.id.uuid()).collect();
    for ids in deferred.chunks(MAX_ROWS) {
        // No other attempt of these jobs is open, so the tokens need not be compared.
        let sql = "UPDATE deferred_attempts FORCE INDEX (deferred_attempts_job) SET look_at = NULL WHERE job_id IN";
        in_list(sql, ids, " AND look_at IS NOT NULL").execute(&mut *conn).await?;
    }
    Ok(())
}

/// Save the checkpoints that are not saved yet, and delete those of jobs that completed. A job that failed or was
/// cancelled keeps its checkpoint, because an operator may retry it.
async fn settle_checkpoints(
    conn: &mut Session<'_>,
    moves: &[Transition<'_>],
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let completed = |step: &&Transition<'_>| step.state == State::Completed;
    let unsaved = moves.iter().filter(|step| !completed(step)).filter_map(|step| match &step.item.checkpoint {
        CheckpointUse::Unsaved(content) => Some((step, &**content)),
        CheckpointUse::Unused | CheckpointUse::Saved => None,
    });
    let unsaved: Vec<(&Transition<'_>, &str)> = unsaved.collect();
    if !unsaved.is_empty() {
        let unmarked = unsaved.iter().filter(|(step, _)| step.owed.links & HAS_CHECKPOINT == 0 && !step.state.is_end());
        mark_checkpoints(conn, &unmarked.map(|(step, _)| step.item.id.uuid()).collect::<Vec<_>>()).await?;
        let rows = sorted(unsaved.iter().map(|(step, content)| (step.item.id.uuid(), *content)));
        write_checkpoints(conn, &rows, now).await?;
    }
    let over = moves.iter().filter(|step| completed(step) && step.owed.links & HAS_CHECKPOINT != 0);
    delete_checkpoints(conn, &over.map(|step| step.item.id.uuid()).collect::<Vec<_>>()).await
}

/// Write the logs of attempts, in key order.
async fn append_logs(conn: &mut Session<'_>, logs: &[AttemptLogRow<'_>]) -> Result<(), sqlx::Error> {
    if logs.is_empty() {
        return Ok(());
    }
    let mut script = Script::about(logs.len(), logs.iter().map(AttemptLogRow::bytes).sum());
    insert_logs_step(&mut script, logs);
    script.run(conn).await.map(drop)
}

/// Write the new values of jobs that wait again. An upsert of rows that are locked and known to exist updates many
/// rows, each with its own values, in one statement.
async fn wait_again(conn: &mut Session<'_>, moves: &[&Transition<'_>]) -> Result<(), sqlx::Error> {
    for group in groups(moves) {
        let sql = format!(
            "INSERT INTO owed (id, kind, queue, priority, max_attempts, state, execute_at, attempt, spared, losses, \
             links) VALUES {} ON DUPLICATE KEY UPDATE state = VALUES(state), execute_at = VALUES(execute_at), \
             attempt = VALUES(attempt), spared = VALUES(spared), losses = VALUES(losses), \
             links = links & ~({RESTS} | {DEFERRED}) | VALUES(links), runner = DEFAULT(runner), \
             token = DEFAULT(token), started_at = DEFAULT(started_at), lease_until = DEFAULT(lease_until), \
             cancel_requested_at = NULL, progress = NULL",
            tuples(&placeholders(11), group.len())
        );
        let mut query = statement(sql);
        for step in group {
            query = query
                .bind(step.item.id.uuid())
                .bind(step.owed.kind.as_str())
                .bind(step.owed.queue.as_str())
                .bind(step.owed.priority)
                .bind(step.owed.max_attempts)
                .bind(step.state.as_str())
                .bind(step.execute_at)
                .bind(step.owed.attempt - u32::from(step.undone))
                .bind(step.spared)
                .bind(step.losses)
                .bind(if step.rests { RESTS } else { 0 });
        }
        query.execute(&mut *conn).await?;
    }
    Ok(())
}

impl<'a> AttemptRow<'a> {
    fn from_transition(step: &Transition<'a>) -> Self {
        let completed = step.state == State::Completed;
        Self {
            job: step.item.id,
            number: step.owed.attempt,
            burned: step.burned,
            runner: step.owed.runner.as_str(),
            execute_at: step.owed.execute_at,
            started_at: step.owed.started_at,
            verdict: step.verdict,
            end: step.state.is_end().then_some(step.state),
            error: step.item.error.as_deref(),
            result: step.item.result.as_ref().filter(|_| completed).map(|raw| raw.get()),
            cancel_requested_at: step.owed.cancel_requested_at,
            exchange: step.item.exchange.as_deref().filter(|_| !completed),
        }
    }
}

/// Delete the unique keys of jobs that ended. A flag in the `owed` row says which jobs have one, so that for most jobs
/// there is nothing to look up.
async fn release_unique_keys(conn: &mut Session<'_>, ended: &[&Transition<'_>]) -> Result<(), sqlx::Error> {
    let keyed = ended.iter().filter(|step| step.owed.keyed);
    let keyed: Vec<(Uuid, bool)> = keyed.map(|step| (step.item.id.uuid(), step.state == State::Completed)).collect();
    release_keys_of_ended(conn, &keyed).await
}

async fn accept_follow_ups(
    conn: &mut Session<'_>,
    ended: &[&Transition<'_>],
    clock: &StoreClock,
) -> Result<BTreeMap<JobId, Vec<Accepted>>, sqlx::Error> {
    let completed = ended.iter().filter(|step| step.state == State::Completed);
    let mut jobs: Vec<(&NewJob, JobId)> =
        completed.flat_map(|step| step.item.follow_ups.iter().map(|job| (job, step.item.id))).collect();
    if jobs.is_empty() {
        return Ok(BTreeMap::new());
    }
    jobs.sort_unstable_by_key(|(job, _)| job.id);
    let plain: Vec<&NewJob> = jobs.iter().map(|(job, _)| *job).collect();
    // They belong to the batches of the jobs that end, which cannot have ended before. One may have been cancelled: then
    // its cancel, which is not over while it has unfinished jobs, ends them as well.
    let own = plain.iter().filter_map(|job| job.options.batch).collect();
    let (links, _) = check_links(conn, &plain, &own, &BTreeSet::new()).await?;
    let accepted = insert_owed(conn, &plain, &links, clock, PriorRun::Nothing).await?;
    let mut by_parent: BTreeMap<JobId, Vec<Accepted>> = BTreeMap::new();
    for ((_, parent), receipt) in jobs.into_iter().zip(accepted) {
        by_parent.entry(parent).or_default().push(receipt);
    }
    Ok(by_parent)
}

/// Recognise settlements that an earlier run has written, of this batch or of one that its caller gave up. If the
/// answer to its COMMIT was lost, the token is gone and the ledger has our line. Others write lines as well: the reaper,
/// the process that gives an undelivered attempt back, and beside a receiver the process that called it. So only a line
/// with our verdict and our error is ours. This is checked before a caller is told that its lease was taken away.
///
/// Behind an outage all verdicts of a batch may be old ones, so one request asks about all of them. With one for each,
/// a batch over a slow line would never end within its time.
async fn recognise_own_work(
    conn: &mut Session<'_>,
    items: &[(usize, &Settlement)],
    answers: &mut [Settled],
) -> Result<(), sqlx::Error> {
    let unclear = items.iter().filter(|(place, _)| !matches!(answers[*place], Settled::Done { .. }));
    let unclear: Vec<(usize, &Settlement)> = unclear.copied().collect();
    for items in unclear.chunks(MAX_ROWS) {
        for row in read_lines_of(conn, items).await? {
            let at = usize::try_from(row.try_get::<i64, _>("place")?).unwrap_or(usize::MAX);
            if let Some((place, item)) = items.get(at)
                && let Some(done) = own_work(item, &row)?
            {
                answers[*place] = done;
            }
        }
    }
    Ok(())
}

/// Read the line of the ledger with the number of each settlement, if there is one, and what its job is now.
async fn read_lines_of(conn: &mut Session<'_>, items: &[(usize, &Settlement)]) -> Result<Vec<MySqlRow>, sqlx::Error> {
    let one = |at| format!("SELECT {at} AS place, CAST(? AS BINARY(16)) AS id, CAST(? AS UNSIGNED) AS number");
    // A job may have many thousand lines. A join looks up one of each.
    let wanted = (0..items.len()).map(one).collect::<Vec<_>>().join(" UNION ALL ");
    let sql = format!(
        "SELECT w.place, a.verdict, a.error, COALESCE(a.end_state, o.state, (SELECT l.end_state FROM attempts l \
         FORCE INDEX (PRIMARY) WHERE l.job_id = w.id ORDER BY l.number DESC LIMIT 1)) AS state, \
         o.state AS unfinished, o.execute_at, o.queue, o.priority FROM ({wanted}) w \
         LEFT JOIN attempts a FORCE INDEX (PRIMARY) ON a.job_id = w.id AND a.number = w.number \
         LEFT JOIN owed o FORCE INDEX (PRIMARY) ON o.id = w.id"
    );
    let values = items.iter().flat_map(|(_, item)| [Value::from(item.id.uuid()), item.number.into()]);
    rows_as_text(conn, sql, values.collect()).await
}

/// Return the answer to a settlement that an earlier run has written, if the row of [`read_lines_of`] shows that.
fn own_work(item: &Settlement, row: &MySqlRow) -> Result<Option<Settled>, sqlx::Error> {
    let Some(verdict) = row.try_get::<Option<&str>, _>("verdict")? else {
        return if item.is_unstarted() { undone(row) } else { Ok(None) };
    };
    let is_ours = verdict == item.verdict.as_str()
        // A snooze or an interruption beyond the limit was written as a failure.
        || (item.is_counted() && verdict == Verdict::Failed.as_str())
        // So was any verdict of an execution with the last numbers.
        || (item.number >= MAX_EXECUTIONS && verdict == Verdict::Rejected.as_str());
    let error: Option<&str> = row.try_get("error")?;
    let word: Option<&str> = row.try_get("state")?;
    // Without a state, the job changes at this moment.
    let Some(state) = word.and_then(State::from_word).filter(|_| is_ours && error == item.error.as_deref()) else {
        return Ok(None);
    };
    // The reconciler gives the hints for this job, its follow-up jobs and the next one of its order key.
    let execute_at = row.try_get("execute_at")?;
    Ok(Some(Settled::Done { state, execute_at, line: None, follow_ups: Vec::new(), released: Vec::new() }))
}

/// Recognise a claim that an earlier run has undone. It left no row in the ledger. A claim that the reaper has ended
/// left one, and nothing else takes the token of a claim away. If another runner has claimed the job since, the number
/// of its attempt is the same, and the answer is that of a job that executes.
fn undone(row: &MySqlRow) -> Result<Option<Settled>, sqlx::Error> {
    let Some(word) = row.try_get::<Option<&str>, _>("unfinished")? else { return Ok(None) };
    let queue: Name = row.try_get::<&str, _>("queue")?.parse().map_err(|_| corrupt("queue"))?;
    let priority: Priority = row.try_get::<u8, _>("priority")?.try_into().map_err(corrupt)?;
    Ok(Some(Settled::Done {
        state: State::from_word(word).ok_or_else(|| corrupt("state"))?,
        execute_at: Some(row.try_get("execute_at")?),
        line: Some((queue, priority)),
        follow_ups: Vec::new(),
        released: Vec::new(),
    }))
}

/// Most bytes of one statement of [`keep_late_notes`].
const NOTE_BYTES: usize = limits::MAX_ERROR_BYTES + 200;

/// Store results that came too late as notes on their lost attempts. They are evidence for people and have no effect.
/// The number identifies the attempt, because every claim draws a new one unless it is undone. A handler that was not
/// started has no result, so nothing is noted of it.
async fn keep_late_notes(
    conn: &mut Session<'_>,
    items: &[(usize, &Settlement)],
    answers: &[Settled],
) -> Result<(), sqlx::Error> {
    let late =
        |(place, item): &&(usize, &Settlement)| matches!(answers[*place], Settled::NotOurs) && !item.is_unstarted();
    let notes = items.iter().filter(late).map(|(_, item)| (*item, late_note(item)));
    let mut notes: Vec<(&Settlement, String)> = notes.collect();
    // In key order, so that two such transactions do not deadlock. Of two notes for one attempt, the first one stays.
    notes.sort_by_key(|(item, _)| (item.id, item.number));
    for notes in notes.chunks((statement_bytes() / NOTE_BYTES).clamp(1, MAX_ROWS)) {
        let mut script = Script::as_text();
        script.push("BEGIN", Vec::new());
        for (item, note) in notes {
            let sql = "UPDATE attempts SET late_note = ? WHERE job_id = ? AND number = ? AND verdict = 'lost' \
                       AND late_note IS NULL";
            script.push(sql, vec![note.as_str().into(), item.id.uuid().into(), item.number.into()]);
        }
        script.push("COMMIT", Vec::new());
        script.run(conn).await?;
    }
    Ok(())
}

fn late_note(item: &Settlement) -> String {
    let said = item.error.as_deref().or(item.result.as_deref().map(RawValue::get));
    let text = said.map_or_else(|| item.verdict.to_string(), |said| format!("{}: {said}", item.verdict));
    limits::cut(text)
}
