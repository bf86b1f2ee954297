//! Settlement of attempts, fenced by the token. The job and the ledger change in one transaction.
//!
//! The `owed` rows are locked by primary key and read, and the pure state machine decides. Then a few statements write
//! the whole batch: rows of jobs that ended are deleted from `owed`, rows of jobs that wait again get a new due time,
//! every attempt gets its line in the ledger (the last one with the end state and the result of the job), and follow-up
//! jobs are inserted in the same transaction.
//!
//! Every statement names its index or its order. On a small table, MySQL and MariaDB both prefer a full scan for an IN
//! list. Two scans for disjoint rows can deadlock, two index lookups cannot.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use chrono::TimeDelta;
use serde_json::value::RawValue;
use sqlx::{Connection, MySqlConnection, Row};
use uuid::Uuid;

use crate::job::{
    AttemptToken, Event, JobId, Name, NewJob, Priority, RetryPolicy, RunnerId, State, Timestamp, Verdict, ceil_ms,
    limits, next,
};
use crate::store::attempts::claim::Opened;
use crate::store::attempts::complete::{Success, complete};
use crate::store::dead_letters::{NewDeadLetter, bury};
use crate::store::jobs::insert::{Accepted, insert_owed, read_clock};
use crate::store::sql::batches::{BYTES_PER_ROW, groups, groups_by_bytes, pad, padded, places, rows, statement};
use crate::store::sql::clock::StoreClock;
use crate::store::sql::connection::{Earlier, Step};
use crate::store::sql::error::corrupt;
use crate::store::sql::group_commit::Batch;
use crate::store::sql::script::{Script, Value};

/// Most executions of a job that do not count against `max_attempts`, before a snooze counts as a failure: a job may
/// not snooze for ever. The same holds for an interruption because the lease could not be renewed. A shutdown never
/// counts against `max_attempts`, however often the job snoozed. It cannot loop, because each time a runner stops.
pub const MAX_SPARED: u32 = 100;
/// Number of losses in a row after which the job fails: it is then taken for the cause of the runners' deaths.
pub const MAX_LOSSES: u32 = 3;
/// Number of losses in a row from which a job is a suspect and runs in a process of its own. One loss is no evidence.
/// Most runners die because of deploys, hosts or memory, and then every job that they run loses an attempt.
pub const SUSPECT_FROM: u32 = 2;

/// The result of an attempt, as the holder of its token reports it.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// The id of the job.
    pub id: JobId,
    /// The token of the attempt, which allows the settlement.
    pub token: AttemptToken,
    /// The number of this execution, from the claim.
    pub number: u32,
    /// The content of the job at the claim, if it could be read.
    pub opened: Option<Opened>,
    /// The verdict of the attempt.
    pub verdict: Verdict,
    /// The reason, if it did not succeed.
    pub error: Option<String>,
    /// The exchange with another service, as JSON: the request and the answer. It is stored unless the job completes.
    pub exchange: Option<String>,
    /// The result that the handler returned. It is stored only if the job completes.
    pub result: Option<Box<RawValue>>,
    /// Jobs to insert if the job completes.
    pub follow_ups: Vec<NewJob>,
    /// Due time of the next attempt, if the job waits again.
    pub again: Again,
}

/// Due time of a job that waits again.
#[derive(Clone, Copy, Debug)]
pub enum Again {
    /// After the backoff of this policy. The random number, 0.0..=1.0, was drawn by the caller.
    Backoff(RetryPolicy, f64),
    /// After this delay.
    After(Duration),
    /// After this delay, on a runner of another version, because this one cannot read the job.
    ForAnother(Duration),
    /// At once.
    Now,
    /// At once, but only as often as snoozes are allowed. This is for attempts that were interrupted while their runner
    /// goes on, because that can happen again and again.
    NowWithinBounds,
}

impl Settlement {
    /// Return whether this settlement does not count against `max_attempts` but is bounded by [`MAX_SPARED`], so that
    /// the job cannot go on for ever.
    fn is_counted(&self) -> bool {
        self.verdict == Verdict::Snoozed
            || (self.verdict == Verdict::Interrupted && matches!(self.again, Again::NowWithinBounds))
    }
}

/// Outcome of a settlement.
#[derive(Clone, Debug)]
pub enum Settled {
    /// The settlement was written.
    Done {
        /// The state of the job now.
        state: State,
        /// Due time of the next attempt, if the job waits again.
        execute_at: Option<Timestamp>,
        /// Queue and priority for the index, if the job waits again.
        line: Option<(Name, Priority)>,
        /// The follow-up jobs that were inserted with it.
        follow_ups: Vec<Accepted>,
    },
    /// The token does not hold the job any more, because the lease was taken away. Nothing was changed.
    NotOurs,
}

/// The group commit of settlements.
pub(crate) struct Settles {
    clock: Arc<StoreClock>,
    lanes: Lanes,
    batches: AtomicU8,
}

impl Settles {
    pub(crate) fn new(clock: Arc<StoreClock>, lanes: Lanes) -> Self {
        Self { clock, lanes, batches: AtomicU8::new(0) }
    }
}

/// Tally lanes of one process. A tally lane is a number in the key of the tally rows. Each process draws a small range,
/// which is probably its own, so that processes rarely wait for each other's tally rows. Two processes with the same
/// lane wait for a moment. They cannot deadlock, because the tallies are written last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lanes {
    first: u8,
}

impl Lanes {
    pub(crate) fn drawn() -> Self {
        Self { first: rand::random() }
    }

    pub(crate) fn any(self) -> u8 {
        self.of_turn(rand::random())
    }

    /// Return the tally lanes in turn, so that successive writes, which may overlap, use different lanes.
    fn of_turn(self, turn: u8) -> u8 {
        self.first.wrapping_add(turn % 4)
    }
}

impl Batch for Settles {
    type Item = Settlement;
    type Reply = Settled;
    type Mark = u8;
    const ATTEMPTED: &'static str = "settle attempts";
    const FULL: usize = 256;

    fn weight(item: &Settlement) -> usize {
        let follow_ups = item.follow_ups.iter().map(|job| 1 + job.payload.get().len() / BYTES_PER_ROW).sum::<usize>();
        1 + follow_ups + item.result.as_ref().map_or(0, |raw| raw.get().len()) / BYTES_PER_ROW
    }

    fn row(item: &Settlement) -> Option<JobId> {
        Some(item.id)
    }

    fn mark(&self) -> u8 {
        self.lanes.of_turn(self.batches.fetch_add(1, Ordering::Relaxed))
    }

    fn write<'c>(
        &'c self,
        conn: &'c mut MySqlConnection,
        items: &'c [Settlement],
        lane: u8,
        _earlier: Earlier,
    ) -> Step<'c, Vec<Settled>> {
        Box::pin(async move {
            let mut answers: Vec<Settled> = (0..items.len()).map(|_| Settled::NotOurs).collect();
            let successes: Vec<Success<'_>> = items.iter().filter_map(Success::of).collect();
            let completed = !successes.is_empty() && complete(conn, &successes, lane).await?;
            let mut rest: Vec<(usize, &Settlement)> = Vec::new();
            for (place, item) in items.iter().enumerate() {
                if completed && Success::of(item).is_some() {
                    answers[place] = Settled::completed();
                } else {
                    rest.push((place, item));
                }
            }
            if !rest.is_empty() {
                self.settle_held(conn, &rest, lane, &mut answers).await?;
            }
            Ok(answers)
        })
    }
}

impl Settles {
    /// Settle attempts with any verdict: lock their rows, decide, and write the outcome.
    async fn settle_held(
        &self,
        conn: &mut MySqlConnection,
        items: &[(usize, &Settlement)],
        lane: u8,
        answers: &mut [Settled],
    ) -> Result<(), sqlx::Error> {
        let mut tx = conn.begin().await?;
        let mut held = lock_held(&mut tx, items.iter().map(|(_, item)| item.id)).await?;
        // Read the clock after the locks, for which this may have waited. So a cancel that held a lock has an earlier
        // time than the end.
        let now = read_clock(&mut tx, &self.clock).await?;
        read_earlier_lives(&mut tx, items, &mut held).await?;
        let mut moves: Vec<Transition<'_>> = Vec::with_capacity(items.len());
        for (place, item) in items {
            if let Some(owed) = held.get(&item.id).filter(|owed| owed.token == item.token) {
                moves.push(decide(*place, item, owed, now)?);
            }
        }
        moves.sort_unstable_by_key(|step| step.item.id);
        moves.dedup_by_key(|step| step.item.id);
        let mut follow_ups = write_moves(&mut tx, &moves, now, &self.clock, lane).await?;
        tx.commit().await?;

        for step in &moves {
            answers[step.place] = Settled::Done {
                state: step.state,
                execute_at: step.execute_at,
                line: step.line(),
                follow_ups: follow_ups.remove(&step.item.id).unwrap_or_default(),
            };
        }
        recognise_own_work(conn, items, answers).await?;
        keep_late_notes(conn, items, answers).await
    }
}

impl Settled {
    fn completed() -> Self {
        Self::Done { state: State::Completed, execute_at: None, line: None, follow_ups: Vec::new() }
    }
}

/// A locked row of `owed`.
pub(crate) struct Owed {
    pub(crate) kind: Name,
    pub(crate) queue: Name,
    pub(crate) priority: u8,
    pub(crate) max_attempts: u32,
    pub(crate) keyed: bool,
    pub(crate) state: State,
    pub(crate) execute_at: Timestamp,
    pub(crate) attempt: u32,
    pub(crate) spared: u32,
    /// The part of `spared` from before an operator's retry. Zero unless [`read_earlier_lives`] has set it.
    spared_before: u32,
    pub(crate) losses: u32,
    pub(crate) runner: RunnerId,
    /// All zeros unless executing. No token has this value.
    pub(crate) token: AttemptToken,
    pub(crate) started_at: Timestamp,
    pub(crate) lease_until: Timestamp,
    pub(crate) cancel_requested_at: Option<Timestamp>,
}

/// Lock these rows by primary key, in key order, and read them.
pub(crate) async fn lock_held(
    conn: &mut MySqlConnection,
    ids: impl Iterator<Item = JobId>,
) -> Result<BTreeMap<JobId, Owed>, sqlx::Error> {
    let mut ids: Vec<Uuid> = ids.map(JobId::uuid).collect();
    ids.sort_unstable();
    ids.dedup();
    let sql = format!(
        "SELECT id, kind, queue, priority, max_attempts, state, execute_at, attempt, spared, losses, runner, token, \
         started_at, lease_until, cancel_requested_at, keyed FROM owed FORCE INDEX (PRIMARY) WHERE id IN {} ORDER BY id FOR UPDATE",
        places(padded(ids.len())),
    );
    let mut query = statement(sql);
    for id in pad(&ids) {
        query = query.bind(id);
    }
    let found = query.fetch_all(conn).await?;
    found
        .iter()
        .map(|row| {
            let id = JobId::from_uuid(row.try_get(0)?);
            let owed = Owed {
                kind: row.try_get::<String, _>(1)?.parse().map_err(|_| corrupt("kind"))?,
                queue: row.try_get::<String, _>(2)?.parse().map_err(|_| corrupt("queue"))?,
                priority: row.try_get(3)?,
                max_attempts: row.try_get(4)?,
                state: State::from_word(row.try_get::<&str, _>(5)?).ok_or_else(|| corrupt("state"))?,
                execute_at: row.try_get(6)?,
                attempt: row.try_get(7)?,
                spared: row.try_get(8)?,
                spared_before: 0,
                losses: row.try_get(9)?,
                runner: RunnerId::from_stored(row.try_get(10)?),
                token: AttemptToken::from_uuid(row.try_get(11)?),
                started_at: row.try_get(12)?,
                lease_until: row.try_get(13)?,
                cancel_requested_at: row.try_get(14)?,
                keyed: row.try_get(15)?,
            };
            Ok((id, owed))
        })
        .collect()
}

/// Set `spared_before` for jobs that are about to exceed [`MAX_SPARED`]. An operator's retry counts all executions
/// before it as spared. Their number is that of the last line that ended the job.
async fn read_earlier_lives(
    conn: &mut MySqlConnection,
    items: &[(usize, &Settlement)],
    held: &mut BTreeMap<JobId, Owed>,
) -> Result<(), sqlx::Error> {
    for (_, item) in items.iter().filter(|(_, item)| item.is_counted()) {
        let Some(owed) = held.get_mut(&item.id).filter(|owed| owed.spared >= MAX_SPARED) else { continue };
        let before: Option<u32> =
            sqlx::query_scalar("SELECT MAX(number) FROM attempts WHERE job_id = ? AND end_state IS NOT NULL")
                .bind(item.id.uuid())
                .fetch_one(&mut *conn)
                .await?;
        owed.spared_before = before.unwrap_or(0).min(owed.spared);
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
}

impl Transition<'_> {
    /// Return the lane in which the index lists the job, if the job waits again.
    pub(crate) fn line(&self) -> Option<(Name, Priority)> {
        let priority = self.owed.priority.try_into().ok()?;
        self.execute_at.map(|_| (self.owed.queue.clone(), priority))
    }
}

/// Decide the outcome of a settlement for its row. This is a pure function of its arguments.
pub(crate) fn decide<'a>(
    place: usize,
    item: &'a Settlement,
    owed: &'a Owed,
    now: Timestamp,
) -> Result<Transition<'a>, sqlx::Error> {
    let too_often = owed.spared - owed.spared_before >= MAX_SPARED && item.is_counted();
    let verdict = if too_often { Verdict::Failed } else { item.verdict };
    let spared = owed.spared + u32::from(!verdict.burns_attempt());
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
    let event = Event::Settle { verdict, spent, cancel_requested: owed.cancel_requested_at.is_some() };
    let state = next(owed.state, event).map_err(|e| corrupt(e.to_string()))?;
    let delay = match item.again {
        Again::Backoff(policy, chance) => policy.delay(burned, chance),
        Again::After(delay) | Again::ForAnother(delay) => delay,
        Again::Now | Again::NowWithinBounds => Duration::ZERO,
    };
    let due = || ceil_ms(now + TimeDelta::from_std(delay).unwrap_or(TimeDelta::zero()));
    // An interrupted job keeps its position in its lane. Every other job gets its new due time. If the old due time is
    // in the future, the clock has been set back since, so the current time is used.
    let execute_at = match (state.is_end(), item.again) {
        (true, _) => None,
        (false, Again::Now | Again::NowWithinBounds) => Some(owed.execute_at.min(ceil_ms(now))),
        (false, _) => Some(due()),
    };
    Ok(Transition { place, item, owed, verdict, state, execute_at, burned, spared, losses })
}

/// Write decided settlements, sorted by id. Return the follow-up jobs that were inserted, by job.
pub(crate) async fn write_moves(
    conn: &mut MySqlConnection,
    moves: &[Transition<'_>],
    now: Timestamp,
    clock: &StoreClock,
    lane: u8,
) -> Result<BTreeMap<JobId, Vec<Accepted>>, sqlx::Error> {
    if moves.is_empty() {
        return Ok(BTreeMap::new());
    }
    let ended: Vec<&Transition<'_>> = moves.iter().filter(|step| step.state.is_end()).collect();
    let again: Vec<&Transition<'_>> = moves.iter().filter(|step| !step.state.is_end()).collect();
    delete_owed(conn, &ended.iter().map(|step| step.item.id.uuid()).collect::<Vec<_>>()).await?;
    wait_again(conn, &again).await?;
    append_to_ledger(conn, &moves.iter().map(AttemptRow::of).collect::<Vec<_>>(), now).await?;
    let failed = ended.iter().filter(|step| step.state == State::Failed);
    let graves: Vec<NewDeadLetter<'_>> = failed
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
    bury(conn, &graves).await?;
    release_unique_keys(conn, &ended).await?;
    let follow_ups = accept_follow_ups(conn, &ended, clock).await?;
    let mut counts: BTreeMap<(Name, Name, State), i64> = BTreeMap::new();
    for step in &ended {
        *counts.entry((step.owed.queue.clone(), step.owed.kind.clone(), step.state)).or_default() += 1;
    }
    count(conn, lane, &counts).await?;
    Ok(follow_ups)
}

pub(crate) async fn delete_owed(conn: &mut MySqlConnection, ids: &[Uuid]) -> Result<(), sqlx::Error> {
    if ids.is_empty() {
        return Ok(());
    }
    // A single-table DELETE takes no index hint. The order and the limit have the same effect.
    let sql = format!("DELETE FROM owed WHERE id IN {} ORDER BY id LIMIT ?", places(padded(ids.len())));
    let mut query = statement(sql);
    for id in pad(ids) {
        query = query.bind(id);
    }
    query.bind(i64::try_from(ids.len()).unwrap_or(i64::MAX)).execute(conn).await?;
    Ok(())
}

/// Write the new values of jobs that wait again. An upsert of rows that are locked and known to exist updates many
/// rows, each with its own values, in one statement.
async fn wait_again(conn: &mut MySqlConnection, moves: &[&Transition<'_>]) -> Result<(), sqlx::Error> {
    for group in groups(moves) {
        let sql = format!(
            "INSERT INTO owed (id, kind, queue, priority, max_attempts, state, execute_at, attempt, spared, losses) \
             VALUES {} ON DUPLICATE KEY UPDATE state = VALUES(state), execute_at = VALUES(execute_at), \
             spared = VALUES(spared), losses = VALUES(losses), runner = DEFAULT(runner), token = DEFAULT(token), \
             started_at = DEFAULT(started_at), lease_until = DEFAULT(lease_until), cancel_requested_at = NULL, \
             progress = NULL",
            rows(&places(10), group.len())
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
                .bind(step.owed.attempt)
                .bind(step.spared)
                .bind(step.losses);
        }
        query.execute(&mut *conn).await?;
    }
    Ok(())
}

/// One line of the ledger, which is the table `attempts`.
pub(crate) struct AttemptRow<'a> {
    pub(crate) job: JobId,
    pub(crate) number: u32,
    pub(crate) burned: u32,
    pub(crate) runner: &'a str,
    pub(crate) execute_at: Timestamp,
    pub(crate) started_at: Timestamp,
    pub(crate) verdict: Verdict,
    pub(crate) end: Option<State>,
    pub(crate) error: Option<&'a str>,
    pub(crate) result: Option<&'a str>,
    pub(crate) cancel_requested_at: Option<Timestamp>,
    pub(crate) exchange: Option<&'a str>,
}

impl<'a> AttemptRow<'a> {
    fn of(step: &Transition<'a>) -> Self {
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

/// Append lines to the ledger, in key order.
pub(crate) async fn append_to_ledger(
    conn: &mut MySqlConnection,
    lines: &[AttemptRow<'_>],
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let text = |text: Option<&str>| text.map_or(0, str::len);
    let bytes = |line: &AttemptRow<'_>| 200 + text(line.result) + text(line.error) + text(line.exchange);
    for group in groups_by_bytes(lines, bytes) {
        let sql = format!(
            "INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict, \
             end_state, error, result, cancel_requested_at, exchange) VALUES {}",
            rows(&places(13), group.len())
        );
        let mut query = statement(sql);
        for line in group {
            query = query
                .bind(line.job.uuid())
                .bind(line.number)
                .bind(line.burned)
                .bind(line.runner)
                .bind(line.execute_at)
                .bind(line.started_at)
                // After the clock was set back, an attempt must not end before it began.
                .bind(now.max(line.started_at))
                .bind(line.verdict.as_str())
                .bind(line.end.map(State::as_str))
                .bind(line.error)
                .bind(line.result)
                .bind(line.cancel_requested_at)
                .bind(line.exchange);
        }
        query.execute(&mut *conn).await?;
    }
    Ok(())
}

/// Delete the unique keys of jobs that ended. A flag in the `owed` row says which jobs have one, so that for most jobs
/// there is nothing to look up.
async fn release_unique_keys(conn: &mut MySqlConnection, ended: &[&Transition<'_>]) -> Result<(), sqlx::Error> {
    for step in ended.iter().filter(|step| step.owed.keyed) {
        release_key_of(conn, step.item.id.uuid()).await?;
    }
    Ok(())
}

/// Delete the unique key that this job holds. It is found through the job's own row.
pub(crate) async fn release_key_of(conn: &mut MySqlConnection, id: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query(
        "DELETE k FROM unique_keys k JOIN jobs j ON j.kind = k.kind AND j.unique_key = k.unique_key \
         WHERE j.id = ? AND k.job_id = j.id",
    )
    .bind(id)
    .execute(conn)
    .await?;
    Ok(())
}

async fn accept_follow_ups(
    conn: &mut MySqlConnection,
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
    let accepted = insert_owed(conn, &plain, clock, Earlier::Nothing).await?;
    let mut by_parent: BTreeMap<JobId, Vec<Accepted>> = BTreeMap::new();
    for ((_, parent), receipt) in jobs.into_iter().zip(accepted) {
        by_parent.entry(parent).or_default().push(receipt);
    }
    Ok(by_parent)
}

/// Add to the tallies, in key order. The caller does this last in its transaction.
pub(crate) async fn count(
    conn: &mut MySqlConnection,
    lane: u8,
    counts: &BTreeMap<(Name, Name, State), i64>,
) -> Result<(), sqlx::Error> {
    let counts: Vec<_> = counts.iter().map(|((queue, kind, state), n)| (queue, kind, *state, *n)).collect();
    let mut script = Script::about(counts.len(), 0);
    tally(&mut script, lane, &counts);
    script.run(conn).await.map(drop)
}

/// Add a step that adds to the tallies to a script. `counts` must be in key order.
pub(crate) fn tally<'a>(script: &mut Script<'a>, lane: u8, counts: &[(&'a Name, &'a Name, State, i64)]) {
    let sql = [
        "INSERT INTO tallies (lane, queue, kind, state, n) VALUES",
        "(?,?,?,?,?)",
        "ON DUPLICATE KEY UPDATE n = n + VALUES(n)",
    ];
    script.insert(
        sql,
        counts,
        |_| 100,
        |&(queue, kind, state, n), values| {
            values.extend([
                Value::from(lane),
                queue.as_str().into(),
                kind.as_str().into(),
                state.as_str().into(),
                n.into(),
            ]);
        },
    );
}

/// Recognise settlements that an earlier run has written, of this batch or of one that its caller gave up. If the
/// answer to its COMMIT was lost, the token is gone and the ledger has our line. Only the holder of the token and the
/// reaper write the line of an attempt, and the reaper's line says `lost`. So any other line with our verdict is ours.
/// This is checked before a caller is told that its lease was taken away.
async fn recognise_own_work(
    conn: &mut MySqlConnection,
    items: &[(usize, &Settlement)],
    answers: &mut [Settled],
) -> Result<(), sqlx::Error> {
    for (place, item) in items {
        let answer = &mut answers[*place];
        if matches!(answer, Settled::Done { .. }) {
            continue;
        }
        let ours = sqlx::query(
            "SELECT COALESCE(a.end_state, o.state), o.execute_at FROM attempts a LEFT JOIN owed o ON o.id = a.job_id \
             WHERE a.job_id = ? AND a.number = ? AND a.verdict IN (?, ?)",
        )
        .bind(item.id.uuid())
        .bind(item.number)
        .bind(item.verdict.as_str())
        // A snooze or an interruption beyond the limit was written as a failure.
        .bind(if item.is_counted() { Verdict::Failed.as_str() } else { item.verdict.as_str() })
        .fetch_optional(&mut *conn)
        .await?;
        if let Some(row) = ours {
            let word: Option<&str> = row.try_get(0)?;
            // Without a state, the job was retried and has ended again since, so the caller does not need this answer
            // any more.
            let Some(state) = word.and_then(State::from_word) else { continue };
            // The reconciler gives the hints for this job and its follow-up jobs.
            *answer = Settled::Done { state, execute_at: row.try_get(1)?, line: None, follow_ups: Vec::new() };
        }
    }
    Ok(())
}

/// Store a result that came too late as a note on its lost attempt. It is evidence for people and has no effect. The
/// number identifies the attempt, because every claim draws a new one.
async fn keep_late_notes(
    conn: &mut MySqlConnection,
    items: &[(usize, &Settlement)],
    answers: &[Settled],
) -> Result<(), sqlx::Error> {
    for (_, item) in items.iter().filter(|(place, _)| matches!(answers[*place], Settled::NotOurs)) {
        let sql = "UPDATE attempts SET late_note = ? WHERE job_id = ? AND number = ? AND verdict = 'lost' AND late_note IS NULL";
        let query = sqlx::query(sql).bind(late_note(item)).bind(item.id.uuid()).bind(item.number);
        query.execute(&mut *conn).await?;
    }
    Ok(())
}

fn late_note(item: &Settlement) -> String {
    let said = item.error.as_deref().or(item.result.as_deref().map(RawValue::get));
    let text = said.map_or_else(|| item.verdict.to_string(), |said| format!("{}: {said}", item.verdict));
    limits::cut(text)
}
