//! Bulk operations on many jobs: requested by a client, leased by a runner, carried out batch by batch.
//!
//! A batch is one transaction. It locks the operation first, so that a cancel and a batch take turns, and so that a
//! runner that has lost its lease to another runner finds out before it changes anything. Then it finds the next jobs
//! after the operation's position, changes them, and moves the position. A lost COMMIT needs no special treatment: the
//! next batch begins at the position that the table has.
//!
//! A job that another session locks must not stop the operation, and must not be passed over for ever. The position in
//! the table stays in front of the first such job, another column says how far the operation is behind it ([`Ahead`]),
//! and each batch looks again at the jobs that were left. Jobs of an order key that is locked are left as one, because
//! there may be any number of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use chrono::TimeDelta;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::audit::AuditEntry;
use crate::dead_letters::{Each, Refusal, Remake, discard_all, replay_all};
use crate::idempotency::{IdempotentOutcome, IdempotentRequest, ResponseBuilder, finish, stored_before};
use crate::jobs::actions::{ActionOutcome, AppliedAction, apply_event, lock_free_for};
use crate::jobs::search::{Breakdown, Counted, Order, Replayed, Search, SearchBudget, break_down, count};
use crate::retention::remove::{Removal, remove};
use crate::rows::aged::{Aged, purge_aged};
use crate::rows::jobs::Accepted;
use crate::rows::limits::{note_due_time, waits_for_turn};
use crate::rows::links::{AWAITED, IN_BATCH};
use crate::rows::order::{lock_free_keys as lock_free_order_keys, lock_open_keys_of, order_keys_of};
use crate::rows::owed::{DueJob, Owed, RESTS, SKIP_LOCKED, expiries_of, left_of, lock_free};
use crate::rows::unique_keys::lock_free_keys;
use crate::sql::batches::{MAX_ROWS, groups, in_list, placeholders, statement, tuples};
use crate::sql::clock::read_clock;
use crate::sql::connection::{PriorRun, on_pool, transact, transact_unless_locked};
use crate::sql::error::{Fault, again, corrupt, fault, waited_for_lock};
use crate::sql::pools::transact_in_turn;
use crate::sql::session::Session;
use crate::sql::turns::Subject;
use crate::{Store, StoreError, StoreInner};
use tickr_job::{
    Action, Actor, Among, CanaryState, Filter, Fingerprint, JobId, Name, NewOperation, Operation, OperationState,
    Priority, RunnerId, State, StateInput, Timestamp, ceil_ms, floor_ms,
};

/// Most bulk operations that may run at the same time.
const MAX_RUNNING: i64 = 50;
/// Most bulk operations that a runner leases at a time.
const MAX_TAKEN: u32 = 4;
/// Most rows that one batch may look at.
const MAX_LOOKED_AT: i64 = 20_000;
/// Number of locked jobs and order keys that are left at a time before an operation waits for their locks.
const MAX_LEFT: usize = 1_000;
/// Number of order keys that a batch locks at a time to find out which of them are free again.
const KEYS_AT_ONCE: usize = 64;
/// Most jobs of such an order key that a batch looks at.
const MAX_OF_KEY: usize = 512;
/// Lock waits after which a batch leaves its other jobs to the next one. Each takes seconds, as does the lease.
const MAX_WAITS: usize = 1;
/// Time after which a batch leaves its other jobs to the next one, when it changes them one by one. A transaction has 15 s
/// in all: one of two hundred jobs would never end while MySQL answers slowly.
const ENOUGH: Duration = Duration::from_secs(2);
/// Most jobs of a batch. A batch that MySQL does not carry out is followed by smaller ones.
pub const MAX_OPERATED_JOBS: u32 = 200;
/// Most bytes of payloads in a batch that writes them: a replay inserts them again, and a delete has them in the log of
/// MySQL. The runner has those of a replay in its memory, and group replication takes no transaction of 150 MB.
const MAX_BYTES: i64 = 8 << 20;
/// Number of jobs whose payloads a batch measures first. MySQL reads a payload to measure it, and a batch of large ones
/// takes few of them.
const MEASURED_FIRST: usize = 8;

/// The condition that no runner carries an operation out. The lease of a canary has a column of its own.
pub(super) const IS_FREE: &str =
    "state = 'running' AND paused_at IS NULL AND COALESCE(steered_until, lease_until) < UTC_TIMESTAMP(6)";
/// The value of `lease_until` with which binaries that know neither pauses nor canaries leave an operation alone.
const LEFT_ALONE: &str = "'9999-12-31 00:00:00'";
/// The value of a lease that no runner holds.
const EXPIRED: &str = "'1970-01-01 00:00:00'";
/// The assignments that make an operation free for the next runner.
pub(super) const FREED: &str = "runner = '', token = '', \
                                lease_until = IF(steered_until IS NULL, '1970-01-01 00:00:00', lease_until), \
                                steered_until = IF(steered_until IS NULL, NULL, '1970-01-01 00:00:00')";
/// The assignments with which no runner carries an operation out, not even a binary that knows no pauses.
pub(super) const SET_ASIDE: &str = "runner = '', token = '', lease_until = '9999-12-31 00:00:00', \
                                    steered_until = IF(steered_until IS NULL, NULL, '1970-01-01 00:00:00')";
/// The assignments that make a lease end after a number of microseconds, which is bound twice.
const LEASED: &str = "lease_until = IF(steered_until IS NULL, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, lease_until), \
                      steered_until = IF(steered_until IS NULL, NULL, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)";
/// The position of a canary that has no dead letter left to release, and still waits for outcomes.
pub(super) const AT_THE_END: Uuid = Uuid::max();

/// Bulk operations by age. One that is still running counts as new, so it is never purged.
const OPERATIONS: Aged =
    Aged { table: "operations", made: "COALESCE(ended_at, UTC_TIMESTAMP(6))", page: |pages| &pages.operations };

const COLUMNS: &str = "id, action, filter, params, rate, state, actor, created_at, started_at, ended_at, done, skipped, \
                       failed, estimate, capped, last_error, \
                       IF(COALESCE(steered_until, lease_until) >= UTC_TIMESTAMP(6), runner, '') AS holder, place, \
                       token, paused_at, paused_by, canary, canary_state";

/// The right to carry out a bulk operation, as long as its lease lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationLease {
    /// The id of the operation.
    pub id: Uuid,
    /// What it does with each job.
    pub action: Action,
    /// The limit on its rate, if it has one. That of a canary is the rate of its fastest step: its turns say the
    /// present one.
    pub rate: Option<u32>,
    /// True for a canary: its runner has to count outcomes between the batches.
    pub canary: bool,
    pub(super) token: Uuid,
}

/// Outcome of one batch.
#[derive(Clone, Debug, Default)]
pub struct BatchOutcome {
    /// Number of jobs that were changed, or for which the change failed.
    pub handled: u64,
    /// Jobs that were created.
    pub accepted: Vec<Accepted>,
    /// Waiting jobs with a new due time or priority.
    pub waits: Vec<Accepted>,
    /// Jobs that were cancelled before their start.
    pub cancelled: Vec<JobId>,
    /// Failed jobs whose dead letters were discarded.
    pub discarded: Vec<JobId>,
    /// Jobs that are not held any more, because a deleted one blocked their order key.
    pub released: Vec<DueJob>,
    /// Executing jobs that were asked to stop.
    pub stop_requested: Vec<JobId>,
    /// True if the runner has nothing more to do: the operation has ended, or the lease is lost.
    pub over: bool,
    /// True if another runner has the lease, or the operation was cancelled or paused.
    pub lost: bool,
    /// True if all that is left to be done is locked by other sessions: the next batch should wait a moment.
    pub waits_for_locks: bool,
}

/// How far an operation is ahead of its position, while jobs are left that other sessions lock. A binary that does not know
/// it begins at the position, so it handles some jobs once more, but leaves none out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Ahead {
    /// The jobs that were left. All of them are behind the position, and not behind `place`.
    left: BTreeSet<Uuid>,
    /// Those of them that a batch has waited for in vain. They are tried when nothing else can be done.
    slow: BTreeSet<Uuid>,
    /// Order keys that were locked when the walk met a job of them, each with a position: the jobs of the key behind
    /// it, as far as the walk has come, were left as well. A key may have more jobs than an operation can name.
    keys: BTreeMap<String, Uuid>,
    /// How far the walk has come; absent at its end.
    place: Option<Uuid>,
    /// True if jobs were left for want of time. They come before the walk goes on.
    #[serde(default)]
    late: bool,
    /// The jobs that the operation had counted. With another number, a binary that does not know this was at work since.
    /// A binary that knows only `left` misses the name of this field, so it begins at the position as well.
    handled: u64,
}

impl Ahead {
    /// Return how much was left.
    fn size(&self) -> usize {
        self.left.len() + self.keys.len()
    }

    /// Return the position in front of all that was left, if something was.
    fn behind(&self) -> Option<Uuid> {
        let first = self.left.first().map(|id| just_before(*id));
        self.keys.values().copied().chain(first).min()
    }
}

/// Return the position behind which this id is the first one.
fn just_before(id: Uuid) -> Uuid {
    Uuid::from_u128(id.as_u128().saturating_sub(1))
}

/// What a batch does about a lock of another session.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnLock {
    /// Wait for it, unless it is that of a row in `owed` or of an order key: few are locked, and most of them not for
    /// long.
    Wait,
    /// Leave the job.
    Leave,
}

/// Outcome of a request to cancel a bulk operation.
#[derive(Clone, Debug)]
pub enum CancelOutcome {
    /// Cancelled. It changes no more jobs.
    Done(Box<Operation>),
    /// It had already ended, in this state.
    Over(OperationState),
    /// There is no such operation.
    Missing,
}

/// A count of the jobs that a replay made.
#[derive(Clone, Debug, Default)]
pub struct MadeJobs {
    /// The jobs by state. Of more jobs than the count has room for, the oldest ones.
    pub found: Breakdown,
    /// The jobs that failed, also behind the limit of `found`.
    pub failed: Counted,
}

/// The refusal of a second release of a group.
#[derive(Clone, Copy, Debug)]
pub struct ReleaseRunning {
    /// The bulk operation that releases the group; absent if it has just ended.
    pub id: Option<Uuid>,
}

impl Store {
    /// Count the jobs that a bulk operation would change. The count stops at a limit.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn count_for(&self, action: Action, filter: Filter) -> Result<Counted, StoreError> {
        on_pool(&self.shared.pools.reads, "count jobs of an operation", move |conn, _| {
            let filter = filter.clone();
            Box::pin(async move {
                let search = Search::prepare(conn, &filter, Order::OldestFirst, action.among()).await?;
                count(conn, search).await
            })
        })
        .await
    }

    /// Count the jobs that a bulk operation would change, broken down by what it would do to them. `due` is the new due
    /// time that it would give them.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn break_down_for(
        &self,
        action: Action,
        filter: Filter,
        due: Option<Timestamp>,
    ) -> Result<Breakdown, StoreError> {
        on_pool(&self.shared.pools.reads, "count jobs of an operation", move |conn, _| {
            let filter = filter.clone();
            Box::pin(async move {
                let search = Search::among(&filter, Order::OldestFirst, action.among());
                break_down(conn, &search, Some(action), due).await
            })
        })
        .await
    }

    /// Count the jobs that a replay made, by state, as far as the dead letters are kept. The count stops at a limit, and
    /// jobs often fail only later in a release. So of more jobs the failed ones are counted on their own, the newest
    /// first.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn jobs_of_operation(&self, id: Uuid) -> Result<MadeJobs, StoreError> {
        on_pool(&self.shared.pools.reads, "count the jobs of an operation", move |conn, _| {
            let all = Filter { operation: Some(id), ..Filter::default() };
            Box::pin(async move {
                let found = break_down(conn, &Search::among(&all, Order::OldestFirst, Among::All), None, None).await?;
                let of_state =
                    |replayed: Replayed| found.states.get(&(State::Failed, replayed)).copied().unwrap_or_default();
                let jobs = of_state(Replayed::Yes) + of_state(Replayed::No);
                let mut failed = Counted { jobs, capped: false };
                if found.counted.capped {
                    let filter = Filter { state: Some(State::Failed), ..all };
                    let newest = count(conn, Search::among(&filter, Order::NewestFirst, Among::All)).await?;
                    failed = Counted { jobs: newest.jobs.max(jobs), capped: newest.capped };
                }
                Ok(MadeJobs { found, failed })
            })
        })
        .await
    }

    /// Return a bulk operation that may start, with the time up to which jobs belong to it. Return the outcome instead
    /// if the request was carried out before, or if it is a second release of a group that is being released.
    ///
    /// # Errors
    /// [`StoreError::Overloaded`] when too many operations run, otherwise when MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn prepare_operation(
        &self,
        mut new: NewOperation,
        idempotent: Option<IdempotentRequest>,
    ) -> Result<Result<NewOperation, IdempotentOutcome<(), ReleaseRunning>>, StoreError> {
        let attempted = "start an operation";
        let (shared, sent_before, group) = (self.shared.clone(), idempotent, fingerprint_of(&new));
        let running = on_pool(&self.shared.pools.steering, attempted, move |conn, _| {
            let (shared, sent_before) = (shared.clone(), sent_before.clone());
            Box::pin(async move {
                let release = releasing(conn, group).await?;
                // A request that is repeated gets its answer, however many operations run.
                if let Some(outcome) = stored_before(conn, sent_before.as_ref(), Some(())).await? {
                    return Ok(Err(outcome));
                }
                // The count of the jobs takes seconds, and would be in vain.
                if release.is_some() {
                    return Ok(Err(IdempotentOutcome::Refused(ReleaseRunning { id: release })));
                }
                let sql = "SELECT COUNT(*) FROM (SELECT 1 FROM operations WHERE state = 'running' LIMIT ?) r";
                let running = sqlx::query_scalar::<_, i64>(sql).bind(MAX_RUNNING).fetch_one(&mut *conn).await?;
                // By the estimate of the clock, a job that the client enqueued just before may lie in the future.
                let now = read_clock(conn, &shared.clock).await?;
                Ok(Ok((running, now)))
            })
        });
        let now = match running.await? {
            Err(outcome) => return Ok(Err(outcome)),
            Ok((running, _)) if running >= MAX_RUNNING => return Err(StoreError::Overloaded { attempted }),
            Ok((_, now)) => now,
        };
        new.filter.created_before = Some(new.filter.created_before.map_or(now, |before| before.min(now)));
        Ok(Ok(new))
    }

    /// Start a bulk operation that [`prepare_operation`](Self::prepare_operation) has returned, at most once for the
    /// idempotency key of `once`. `estimate` is the number of its jobs, and `build` builds the response. A second
    /// release of a group that is being released is refused.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn start_operation(
        &self,
        (new, estimate): (NewOperation, Counted),
        by: &Actor,
        idempotent: Option<IdempotentRequest>,
        build: ResponseBuilder<Operation>,
    ) -> Result<IdempotentOutcome<(), ReleaseRunning>, StoreError> {
        let attempted = "start an operation";
        let shared = self.shared.clone();
        let detail = json!({
            "action": new.action,
            "filter": new.filter,
            "params": new.params,
            "rate": new.rate,
            "canary": new.canary,
        });
        let act = AuditEntry::new(by, "operation.start", new.id.to_string()).with(detail);
        transact(&self.shared.pools.steering, attempted, move |conn, earlier| {
            let (shared, act, idempotent, build, new) =
                (shared.clone(), act.clone(), idempotent.clone(), build.clone(), new.clone());
            Box::pin(async move {
                if let Some(outcome) = stored_before(conn, idempotent.as_ref(), Some(())).await? {
                    return Ok(outcome);
                }
                if earlier == PriorRun::MayHaveCommitted
                    && let Some(operation) = read(conn, new.id).await?
                {
                    return Ok(IdempotentOutcome::First { done: Some(()), answer: build(&operation) });
                }
                let now = read_clock(conn, &shared.clock).await?;
                if let Err(error) = insert(conn, &new, &act.actor, estimate, now).await {
                    let release = fingerprint_of(&new).filter(|_| fault(&error) == Fault::Duplicate);
                    if release.is_none() {
                        return Err(error);
                    }
                    // The server may have ended it since, and its index knows nothing of it then.
                    let id = releasing(conn, release).await?;
                    return Ok(IdempotentOutcome::Refused(ReleaseRunning { id }));
                }
                let operation = read(conn, new.id).await?.ok_or_else(|| corrupt("an operation without a row"))?;
                finish(conn, idempotent.as_ref(), &act, ((), build(&operation)), now).await
            })
        })
        .await
    }

    /// Read a bulk operation.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn operation(&self, id: Uuid) -> Result<Option<Operation>, StoreError> {
        on_pool(&self.shared.pools.reads, "read an operation", move |conn, _| Box::pin(read(conn, id))).await
    }

    /// List bulk operations that are older than `before`, newest first.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn operations(
        &self,
        state: Option<OperationState>,
        before: Option<Uuid>,
        limit: u32,
    ) -> Result<Vec<Operation>, StoreError> {
        on_pool(&self.shared.pools.reads, "list operations", move |conn, _| {
            Box::pin(async move {
                let of = if state.is_some() { "state = ? AND" } else { "" };
                let sql = format!("SELECT {COLUMNS} FROM operations WHERE {of} id < ? ORDER BY id DESC LIMIT ?");
                let mut query = statement(sql);
                if let Some(state) = state {
                    query = query.bind(state.as_str());
                }
                let found = query.bind(before.unwrap_or(Uuid::max())).bind(limit).fetch_all(conn).await?;
                found.iter().map(operation).collect()
            })
        })
        .await
    }

    /// Cancel a bulk operation. After this returns, the operation changes no more jobs.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn cancel_operation(
        &self,
        id: Uuid,
        by: &Actor,
        idempotent: Option<IdempotentRequest>,
        build: ResponseBuilder<Operation>,
    ) -> Result<IdempotentOutcome<CancelOutcome>, StoreError> {
        let shared = self.shared.clone();
        let act = AuditEntry::new(by, "operation.cancel", id.to_string());
        let subjects = BTreeSet::from([Subject::Operation(id), Subject::Change]);
        transact_in_turn(&self.shared.pools, subjects, "cancel an operation", move |conn, earlier| {
            let (shared, act, idempotent, build) = (shared.clone(), act.clone(), idempotent.clone(), build.clone());
            Box::pin(async move {
                let held = lock(conn, id).await?.map(|held| held.state);
                let ours = earlier == PriorRun::MayHaveCommitted && held == Some(OperationState::Cancelled);
                if held != Some(OperationState::Running) && !ours {
                    let refused = held.map_or(CancelOutcome::Missing, CancelOutcome::Over);
                    return Ok(stored_before(conn, idempotent.as_ref(), None)
                        .await?
                        .unwrap_or(IdempotentOutcome::Refused(refused)));
                }
                let now = read_clock(conn, &shared.clock).await?;
                sqlx::query("UPDATE operations SET state = 'cancelled', ended_at = COALESCE(ended_at, ?) WHERE id = ?")
                    .bind(now)
                    .bind(id)
                    .execute(&mut *conn)
                    .await?;
                let operation = read(conn, id).await?.ok_or_else(|| corrupt("a locked operation is gone"))?;
                let answer = build(&operation);
                finish(conn, idempotent.as_ref(), &act, (CancelOutcome::Done(Box::new(operation)), answer), now).await
            })
        })
        .await
    }

    /// Lease a few bulk operations that no runner carries out. One whose row another session locks is passed over: a
    /// runner that freezes in a batch keeps this lock when its lease is over.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn lease_operations(&self, runner: RunnerId, lease: Duration) -> Result<Vec<OperationLease>, StoreError> {
        let attempted = "lease operations";
        let free = on_pool(&self.shared.pools.loops, attempted, |conn, _| {
            Box::pin(async move {
                let sql = format!(
                    "SELECT id FROM operations FORCE INDEX (operations_state) WHERE {IS_FREE} ORDER BY id LIMIT ?"
                );
                let found = statement(sql).bind(MAX_RUNNING).fetch_all(conn).await?;
                found.iter().map(|row| row.try_get("id")).collect::<Result<Vec<Uuid>, _>>()
            })
        });
        let free = free.await?;
        if free.is_empty() {
            return Ok(Vec::new());
        }
        // All or none: an operation whose lease is written, but not returned, would rest until the lease is over.
        let leased = transact_unless_locked(&self.shared.pools.loops, attempted, move |conn, _| {
            let (runner, free) = (runner.clone(), free.clone());
            Box::pin(async move { lease_free(conn, &runner, lease, &free).await })
        });
        Ok(leased.await?.unwrap_or_default())
    }

    /// Give a bulk operation back, so that the next runner can lease it at once. Without effect while another session
    /// locks its row: the lease ends by itself.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn release_operation(&self, held: OperationLease) -> Result<(), StoreError> {
        transact(&self.shared.pools.loops, "give an operation back", move |conn, _| {
            Box::pin(async move {
                if lock_own(conn, held).await? != Own::Locked {
                    return Ok(());
                }
                let sql = format!("UPDATE operations SET {FREED} WHERE id = ? AND token = ?");
                statement(sql).bind(held.id).bind(held.token).execute(conn).await.map(drop)
            })
        })
        .await
    }

    /// Renew the lease of a bulk operation without a batch. Without effect while another session locks its row.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn keep_operation(&self, held: OperationLease, lease: Duration) -> Result<(), StoreError> {
        transact(&self.shared.pools.loops, "renew the lease of an operation", move |conn, earlier| {
            Box::pin(async move {
                let leased = lock_leased(conn, held, earlier).await?;
                if matches!(leased, Leased::Locked(_)) {
                    let lease = micros(lease);
                    let renew = statement(format!("UPDATE operations SET {LEASED} WHERE id = ?"));
                    renew.bind(lease).bind(lease).bind(held.id).execute(&mut *conn).await?;
                }
                Ok(())
            })
        })
        .await
    }

    /// Handle the next `most` jobs of a bulk operation, and renew its lease. Jobs that another session locks are left for the
    /// next batches.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn advance_operation(
        &self,
        held: OperationLease,
        most: u32,
        lease: Duration,
        remake: Remake,
    ) -> Result<BatchOutcome, StoreError> {
        let tries: &[OnLock] = match held.action {
            // These do not leave single jobs.
            Action::Delete | Action::Replay | Action::Discard => &[OnLock::Wait],
            Action::Cancel | Action::Retry | Action::RunNow | Action::Reschedule | Action::SetPriority => {
                &[OnLock::Wait, OnLock::Leave]
            }
        };
        let size = &self.shared.operated_jobs;
        let most = most.min(size.get());
        for on_lock in tries.iter().copied() {
            let (shared, remake, found) = (self.shared.clone(), remake.clone(), Arc::new(AtomicU32::new(0)));
            let of_batch = Arc::clone(&found);
            let attempted = "carry out an operation";
            let batched = transact_unless_locked(&self.shared.pools.loops, attempted, move |conn, earlier| {
                let (shared, remake, found) = (shared.clone(), remake.clone(), Arc::clone(&of_batch));
                Box::pin(async move {
                    advance(conn, &shared, (held, lease), (most, &found), (on_lock, earlier), &remake).await
                })
            });
            let batched = batched.await;
            match &batched {
                // A wait for a lock says nothing about the number of jobs.
                Ok(None) => {}
                Ok(Some(done)) => size.learn_of(u32::try_from(done.handled).unwrap_or(most), &batched),
                // Nor does a failure before the jobs were found, or of a batch of one job, whatever it was allowed.
                Err(_) => size.learn_of(found.load(Ordering::Relaxed), &batched),
            }
            if let Some(batched) = batched? {
                self.shared.links_ended(AWAITED | IN_BATCH);
                return Ok(batched);
            }
        }
        tracing::debug!(operation = %held.id, "other sessions lock rows that an operation needs");
        Ok(BatchOutcome { waits_for_locks: true, ..BatchOutcome::default() })
    }

    /// End a bulk operation that cannot go on, and record why. Returns false if another session locks its row: the
    /// operation runs as before.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn fail_operation(&self, held: OperationLease, why: String) -> Result<bool, StoreError> {
        transact(&self.shared.pools.loops, "end an operation", move |conn, _| {
            let why: String = why.chars().take(500).collect();
            Box::pin(async move {
                match lock_own(conn, held).await? {
                    Own::Locked => {}
                    Own::Busy => return Ok(false),
                    Own::Gone => return Ok(true),
                }
                sqlx::query(
                    "UPDATE operations SET state = 'failed', ended_at = UTC_TIMESTAMP(6), last_error = ? \
                     WHERE id = ? AND token = ? AND state = 'running'",
                )
                .bind(why)
                .bind(held.id)
                .bind(held.token)
                .execute(conn)
                .await?;
                Ok(true)
            })
        })
        .await
    }

    /// Delete bulk operations that ended longer ago than `keep`, in one page of rows after `after`. Return the number
    /// of deleted rows and the position to continue after; absent at the end.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn purge_operations(
        &self,
        after: Option<Uuid>,
        keep: Duration,
    ) -> Result<(usize, Option<Uuid>), StoreError> {
        purge_aged(&self.shared, "purge operations", &OPERATIONS, after, keep).await
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// Return the group that an operation releases, if it releases one.
fn fingerprint_of(new: &NewOperation) -> Option<Fingerprint> {
    new.filter.fingerprint.filter(|_| new.action == Action::Replay)
}

/// Return the operation that releases this group at present.
async fn releasing(conn: &mut Session<'_>, group: Option<Fingerprint>) -> Result<Option<Uuid>, sqlx::Error> {
    let Some(group) = group else { return Ok(None) };
    let sql = "SELECT id FROM operations WHERE releasing = ?";
    sqlx::query_scalar(sql).bind(group.bytes().to_vec()).fetch_optional(conn).await
}

async fn insert(
    conn: &mut Session<'_>,
    new: &NewOperation,
    actor: &Actor,
    estimate: Counted,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let canary = new.canary.as_ref().map(|canary| text(serde_json::to_string(canary))).transpose()?;
    let (steered, leased) = if canary.is_some() { (EXPIRED, LEFT_ALONE) } else { ("NULL", EXPIRED) };
    let sql = format!(
        "INSERT INTO operations (id, action, filter, params, rate, actor, created_at, estimate, capped, fingerprint, \
         canary, steered_until, lease_until) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {steered}, {leased})"
    );
    statement(sql)
        .bind(new.id)
        .bind(new.action.as_str())
        .bind(text(serde_json::to_string(&new.filter))?)
        .bind(text(serde_json::to_string(&new.params))?)
        .bind(new.rate)
        .bind(actor.as_str())
        .bind(now)
        .bind(u32::try_from(estimate.jobs).unwrap_or(u32::MAX))
        .bind(estimate.capped)
        .bind(fingerprint_of(new).map(|group| group.bytes().to_vec()))
        .bind(canary)
        .execute(conn)
        .await
        .map(drop)
}

/// Return the text of JSON, or the error of a value that has none.
pub(super) fn text(json: serde_json::Result<String>) -> Result<String, sqlx::Error> {
    json.map_err(|e| sqlx::Error::Encode(Box::new(e)))
}

pub(super) async fn read(conn: &mut Session<'_>, id: Uuid) -> Result<Option<Operation>, sqlx::Error> {
    let sql = format!("SELECT {COLUMNS} FROM operations WHERE id = ?");
    statement(sql).bind(id).fetch_optional(conn).await?.as_ref().map(operation).transpose()
}

fn operation(row: &MySqlRow) -> Result<Operation, sqlx::Error> {
    let (filter, params): (String, String) = (row.try_get("filter")?, row.try_get("params")?);
    let runner: String = row.try_get("holder")?;
    let state = OperationState::from_word(row.try_get("state")?).ok_or_else(|| corrupt("state of an operation"))?;
    let paused_at: Option<Timestamp> = row.try_get("paused_at")?;
    let paused_by = row.try_get::<Option<String>, _>("paused_by")?.map(Actor::from_stored);
    Ok(Operation {
        id: row.try_get("id")?,
        action: Action::from_word(row.try_get("action")?).ok_or_else(|| corrupt("action"))?,
        filter: serde_json::from_str(&filter).map_err(|e| corrupt(format!("filter: {e}")))?,
        params: serde_json::from_str(&params).map_err(|e| corrupt(format!("params: {e}")))?,
        rate: row.try_get("rate")?,
        state,
        actor: Actor::from_stored(row.try_get("actor")?),
        created_at: row.try_get("created_at")?,
        started_at: row.try_get("started_at")?,
        ended_at: row.try_get("ended_at")?,
        done: row.try_get::<u32, _>("done")?.into(),
        skipped: row.try_get::<u32, _>("skipped")?.into(),
        failed: row.try_get::<u32, _>("failed")?.into(),
        estimate: row.try_get::<u32, _>("estimate")?.into(),
        capped: row.try_get("capped")?,
        last_error: row.try_get("last_error")?,
        runner: (!runner.is_empty() && state == OperationState::Running).then_some(runner),
        paused: paused_at.zip(paused_by).filter(|_| state == OperationState::Running),
        canary: match row.try_get::<Option<String>, _>("canary")? {
            None => None,
            Some(canary) => {
                let progress = row.try_get::<Option<String>, _>("canary_state")?;
                let progress = progress.as_deref().map(serde_json::from_str::<CanaryState>).transpose();
                let canary = serde_json::from_str(&canary).map_err(|e| corrupt(format!("canary: {e}")))?;
                Some((canary, progress.map_err(|e| corrupt(format!("canary_state: {e}")))?.unwrap_or_default()))
            }
        },
    })
}

pub(super) struct Locked {
    pub(super) state: OperationState,
    pub(super) operation: Operation,
    pub(super) place: Option<Uuid>,
    pub(super) token: Uuid,
    ahead: Option<Ahead>,
}

/// Lease some of these operations, those that are free and that no other session locks.
async fn lease_free(
    conn: &mut Session<'_>,
    runner: &RunnerId,
    lease: Duration,
    free: &[Uuid],
) -> Result<Vec<OperationLease>, sqlx::Error> {
    let sql =
        "SELECT id, action, rate, canary IS NOT NULL AS is_canary FROM operations FORCE INDEX (PRIMARY) WHERE id IN";
    let tail = format!(" AND {IS_FREE} ORDER BY id LIMIT {MAX_TAKEN} FOR UPDATE{SKIP_LOCKED}");
    let mut taken = Vec::new();
    for row in in_list(sql, free, &tail).fetch_all(&mut *conn).await? {
        let (id, token): (Uuid, Uuid) = (row.try_get("id")?, Uuid::new_v4());
        let action = Action::from_word(row.try_get("action")?).ok_or_else(|| corrupt("action"))?;
        let (rate, canary) = (row.try_get("rate")?, row.try_get("is_canary")?);
        let sql = format!(
            "UPDATE operations SET runner = ?, token = ?, \
             started_at = COALESCE(started_at, UTC_TIMESTAMP(6)), {LEASED} WHERE id = ? AND {IS_FREE}"
        );
        let won = statement(sql)
            .bind(runner.as_str())
            .bind(token)
            .bind(micros(lease))
            .bind(micros(lease))
            .bind(id)
            .execute(&mut *conn)
            .await?;
        if won.rows_affected() == 1 {
            taken.push(OperationLease { id, action, rate, canary, token });
        }
    }
    Ok(taken)
}

/// Lock the row of an operation, and read it.
pub(super) async fn lock(conn: &mut Session<'_>, id: Uuid) -> Result<Option<Locked>, sqlx::Error> {
    lock_row(conn, id, "").await
}

/// Outcome of [`lock_leased`].
pub(super) enum Leased {
    Locked(Box<Locked>),
    /// Another session locks the row at this moment.
    Busy,
    /// The operation has ended, or another runner has its lease.
    Lost,
}

/// Lock the row of an operation for the runner that has this lease. The runner does not wait for a lock of another
/// session, because its other operations would wait as well.
pub(super) async fn lock_leased(
    conn: &mut Session<'_>,
    held: OperationLease,
    earlier: PriorRun,
) -> Result<Leased, sqlx::Error> {
    // The session that locks it may be the one that this runner has just lost.
    let locked_rows = if earlier == PriorRun::MayHaveCommitted { "" } else { SKIP_LOCKED };
    let Some(locked) = lock_row(conn, held.id, locked_rows).await? else {
        let sql = "SELECT 1 FROM operations WHERE id = ? AND token = ? AND state = 'running'";
        let there = sqlx::query(sql).bind(held.id).bind(held.token).fetch_optional(conn).await?;
        return Ok(if there.is_some() { Leased::Busy } else { Leased::Lost });
    };
    if locked.token == held.token && locked.state == OperationState::Running {
        Ok(Leased::Locked(Box::new(locked)))
    } else {
        Ok(Leased::Lost)
    }
}

/// Outcome of [`lock_own`].
#[derive(PartialEq, Eq)]
enum Own {
    Locked,
    /// Another session locks the row at this moment.
    Busy,
    /// The operation has ended, or another runner has its lease.
    Gone,
}

/// Do what [`lock_leased`] does, without a look at what is in the row: it may be the reason why the operation cannot go
/// on.
async fn lock_own(conn: &mut Session<'_>, held: OperationLease) -> Result<Own, sqlx::Error> {
    let own = "SELECT 1 FROM operations FORCE INDEX (PRIMARY) WHERE id = ? AND token = ? AND state = 'running'";
    let lock = statement(format!("{own} FOR UPDATE{SKIP_LOCKED}")).bind(held.id).bind(held.token);
    if lock.fetch_optional(&mut *conn).await?.is_some() {
        return Ok(Own::Locked);
    }
    let there = sqlx::query(own).bind(held.id).bind(held.token).fetch_optional(conn).await?;
    Ok(if there.is_some() { Own::Busy } else { Own::Gone })
}

async fn lock_row(conn: &mut Session<'_>, id: Uuid, locked_rows: &str) -> Result<Option<Locked>, sqlx::Error> {
    let sql = format!("SELECT {COLUMNS}, ahead FROM operations WHERE id = ? FOR UPDATE{locked_rows}");
    let Some(row) = statement(sql).bind(id).fetch_optional(conn).await? else { return Ok(None) };
    let operation = operation(&row)?;
    let ahead: Option<String> = row.try_get("ahead")?;
    let ahead = ahead.and_then(|text| serde_json::from_str(&text).ok());
    let (place, token) = (row.try_get("place")?, row.try_get("token")?);
    Ok(Some(Locked { state: operation.state, operation, place, token, ahead }))
}

async fn advance(
    conn: &mut Session<'_>,
    shared: &StoreInner,
    (held, lease): (OperationLease, Duration),
    (most, number): (u32, &Arc<AtomicU32>),
    (on_lock, earlier): (OnLock, PriorRun),
    remake: &Remake,
) -> Result<BatchOutcome, sqlx::Error> {
    let locked = match lock_leased(conn, held, earlier).await? {
        Leased::Locked(locked) => *locked,
        Leased::Busy => return Ok(BatchOutcome { waits_for_locks: true, ..BatchOutcome::default() }),
        Leased::Lost => return Ok(BatchOutcome { over: true, lost: true, ..BatchOutcome::default() }),
    };
    let operation = &locked.operation;
    let most = match &operation.canary {
        Some((canary, state)) => u32::try_from(canary.left_in_step(state, operation.done)).unwrap_or(most).min(most),
        None => most,
    };
    if most == 0 {
        return Ok(BatchOutcome::default());
    }
    let counted = operation.done + operation.skipped + operation.failed;
    let mut ahead = locked.ahead.filter(|ahead| ahead.handled == counted).unwrap_or_default();
    let is_ahead = ahead.size() > 0;
    // A batch that was too slow has left jobs of a key. More of them would be left, and all stay locked meanwhile.
    let of_keys =
        if ahead.late { Vec::new() } else { next_of_keys(conn, operation, &mut ahead, most as usize).await? };
    // The walk goes on when no job with an order key that was left can be handled.
    let walks = of_keys.is_empty();
    let filter = &operation.filter;
    let (found, place) = match ahead.place {
        place if !walks => (of_keys, place),
        _ if !is_ahead => next_jobs(conn, operation, filter, locked.place, most as usize).await?,
        Some(place) if ahead.size() < MAX_LEFT && !ahead.late => {
            next_jobs(conn, operation, filter, Some(place), most as usize).await?
        }
        place => (Vec::new(), place),
    };
    let now = read_clock(conn, &shared.clock).await?;
    let mut work = Work {
        most: most as usize,
        // While jobs are left, the sessions that lock them may lock more.
        is_careful: on_lock == OnLock::Leave || is_ahead,
        walks,
        found: found.iter().copied().collect(),
        keys: ahead.keys,
        slow: ahead.slow.into_iter().map(JobId::from_uuid).collect(),
        number: Arc::clone(number),
        ..Work::default()
    };
    // In id order, because the walk is.
    let ids: Vec<Uuid> = ahead.left.into_iter().chain(found).collect::<BTreeSet<_>>().into_iter().collect();
    work.tries(ids.len());
    if !ids.is_empty() {
        work.carry_out(conn, shared, operation, &ids, remake, now).await?;
    }
    // A batch that stopped early continues after the last job that it handled.
    let (looked_at, place) = match work.until {
        Some(until) => (ids.iter().filter(|id| **id <= until).count() as u64, Some(until)),
        None => (ids.len() as u64, place),
    };
    // A canary ends with the last outcome, not with the last released job.
    let place = place.or_else(|| operation.canary.is_some().then_some(AT_THE_END));
    let left: BTreeSet<Uuid> = work.left.iter().map(|id| id.uuid()).collect();
    let looked_at = looked_at - (left.len() + work.of_keys.len()) as u64;
    let done = work.done.len() as u64;
    let skipped = looked_at - done - work.failed;
    work.batched.handled = done + work.failed;
    let slow = work.slow.iter().map(|id| id.uuid()).filter(|id| left.contains(id)).collect();
    let ahead = Ahead { left, slow, keys: work.keys, place, late: work.late, handled: counted + looked_at };
    let over = place.is_none() && ahead.size() == 0;
    work.batched.over = over;
    let rests = place.is_none() || ahead.size() >= MAX_LEFT;
    work.batched.waits_for_locks = ahead.size() > 0 && looked_at == 0 && rests;
    // The next runner comes back to the jobs that were left.
    let noted = ahead.behind().or(place);
    let ahead = (ahead.size() > 0).then(|| text(serde_json::to_string(&ahead))).transpose()?;
    audit(conn, operation, &work.done, now).await?;
    let leased_until = now + TimeDelta::from_std(lease).unwrap_or(TimeDelta::zero());
    sqlx::query(
        "UPDATE operations SET place = COALESCE(?, place), ahead = ?, done = done + ?, skipped = skipped + ?, \
         failed = failed + ?, last_error = COALESCE(?, last_error), lease_until = IF(steered_until IS NULL, ?, lease_until), \
         steered_until = IF(steered_until IS NULL, NULL, ?), state = ?, ended_at = ? WHERE id = ?",
    )
    .bind(noted)
    .bind(ahead)
    .bind(done)
    .bind(skipped)
    .bind(work.failed)
    .bind(work.last_error.map(|error| error.chars().take(500).collect::<String>()))
    .bind(leased_until)
    .bind(leased_until)
    .bind(if over { OperationState::Done.as_str() } else { OperationState::Running.as_str() })
    .bind(over.then_some(now))
    .bind(held.id)
    .execute(&mut *conn)
    .await?;
    crate::rows::tallies::count(conn, shared.lanes.any(), &work.counts).await?;
    Ok(work.batched)
}

/// Find the next jobs with order keys that were left and that no other session locks any more. Note how far they were
/// found, and forget keys of which no job is left.
async fn next_of_keys(
    conn: &mut Session<'_>,
    operation: &Operation,
    ahead: &mut Ahead,
    most: usize,
) -> Result<Vec<Uuid>, sqlx::Error> {
    let keys: Vec<String> = ahead.keys.keys().cloned().collect();
    let mut found = Vec::new();
    for keys in keys.chunks(KEYS_AT_ONCE) {
        let busy = lock_free_order_keys(conn, &keys.iter().map(String::as_bytes).collect::<Vec<_>>()).await?;
        for key in keys.iter().filter(|key| !busy.contains(key.as_bytes())) {
            let Some(behind) = ahead.keys.get(key).copied().filter(|_| found.len() < most) else { break };
            let span = (behind, ahead.place.unwrap_or(Uuid::max()));
            let (jobs, place) = next_of_key(conn, operation, key, span, most - found.len()).await?;
            found.extend(jobs);
            match place {
                Some(place) => ahead.keys.insert(key.clone(), place),
                None => ahead.keys.remove(key),
            };
        }
        if !found.is_empty() {
            break;
        }
    }
    Ok(found)
}

/// Find the next jobs of an operation that have this order key, behind an id and not behind another one. Also return
/// the position behind which the next ones are found; absent at the end.
async fn next_of_key(
    conn: &mut Session<'_>,
    operation: &Operation,
    key: &str,
    (behind, up_to): (Uuid, Uuid),
    most: usize,
) -> Result<(Vec<Uuid>, Option<Uuid>), sqlx::Error> {
    let sql = format!(
        "SELECT job_id FROM order_places FORCE INDEX (order_places_job) \
         WHERE order_key = ? AND job_id > ? AND job_id <= ? ORDER BY job_id LIMIT {MAX_OF_KEY}"
    );
    let found = statement(sql).bind(key.as_bytes()).bind(behind).bind(up_to).fetch_all(&mut *conn).await?;
    let ids: Vec<Uuid> = found.iter().map(|row| row.try_get("job_id")).collect::<Result<_, _>>()?;
    let rest = ids.last().copied().filter(|_| ids.len() >= MAX_OF_KEY);
    let mut filter = operation.filter.clone();
    let named = std::mem::take(&mut filter.ids);
    filter.ids = ids.into_iter().map(JobId::from_uuid).filter(|id| named.is_empty() || named.contains(id)).collect();
    if filter.ids.is_empty() {
        return Ok((Vec::new(), rest));
    }
    let (jobs, place) = next_jobs(conn, operation, &filter, None, most).await?;
    Ok((jobs, place.or(rest)))
}

/// Find the next jobs of an operation that match this filter. Also return the new position of the walk; absent at its
/// end.
async fn next_jobs(
    conn: &mut Session<'_>,
    operation: &Operation,
    filter: &Filter,
    place: Option<Uuid>,
    most: usize,
) -> Result<(Vec<Uuid>, Option<Uuid>), sqlx::Error> {
    let search = Search::among(filter, Order::OldestFirst, operation.action.among());
    let mut budget = SearchBudget::new(MAX_LOOKED_AT);
    let mut ids = Vec::new();
    let mut rest = search.span(place);
    while let Some(span) = rest {
        let wanted = most - ids.len();
        let chunk = search.chunk(conn, span).await?;
        let found = search.matching("j.id", &chunk, wanted as i64).fetch_all(&mut *conn).await?;
        for row in &found {
            ids.push(row.try_get::<Uuid, _>("id")?);
        }
        if found.len() >= wanted {
            let last = ids.last().copied();
            return Ok((ids, last));
        }
        rest = chunk.rest;
        if let Some(behind) = rest
            && !budget.may_continue(&chunk)
        {
            return Ok((ids, Some(just_before(behind.from))));
        }
    }
    Ok((ids, None))
}

/// Return those of these jobs that still match the filter of an operation, in their order. The search has found them
/// without a lock, some of them many batches ago. The caller has locked them, so what is true now stays true until the
/// COMMIT.
async fn still_matching(
    conn: &mut Session<'_>,
    operation: &Operation,
    mut jobs: Vec<JobId>,
) -> Result<Vec<JobId>, sqlx::Error> {
    let mut matching = BTreeSet::new();
    for ids in jobs.chunks(MAX_ROWS) {
        let filter = Filter { ids: ids.to_vec(), ..operation.filter.clone() };
        let search = Search::among(&filter, Order::OldestFirst, operation.action.among());
        let Some(span) = search.span(None) else { continue };
        let found = search.matching("j.id", &search.whole(span), ids.len() as i64).fetch_all(&mut *conn).await?;
        for row in &found {
            matching.insert(JobId::from_uuid(row.try_get("id")?));
        }
    }
    jobs.retain(|id| matching.contains(id));
    Ok(jobs)
}

/// Lock ended jobs, and return those of them that still match the filter of an operation. The order keys come before
/// the rows in `jobs`, as wherever both are locked.
async fn lock_matching(conn: &mut Session<'_>, operation: &Operation, ids: &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error> {
    lock_open_keys_of(conn, ids).await?;
    lock_rows(conn, ids).await?;
    let jobs = ids.iter().copied().map(JobId::from_uuid).collect();
    Ok(still_matching(conn, operation, jobs).await?.into_iter().map(JobId::uuid).collect())
}

/// Return the number of these locked jobs, from the first one on, whose payloads have at most [`MAX_BYTES`] together. It
/// is at least one, if there is a job.
async fn count_fitting(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<usize, sqlx::Error> {
    let (mut fit, mut bytes, mut size) = (0, 0, MEASURED_FIRST);
    while fit < ids.len() {
        let part: Vec<Uuid> = ids.iter().skip(fit).take(size).copied().collect();
        let sql = "SELECT id, CAST(LENGTH(payload) AS SIGNED) AS bytes FROM jobs FORCE INDEX (PRIMARY) WHERE id IN";
        let mut lengths: BTreeMap<Uuid, i64> = BTreeMap::new();
        for row in in_list(sql, &part, "").fetch_all(&mut *conn).await? {
            lengths.insert(row.try_get("id")?, row.try_get("bytes")?);
        }
        for id in &part {
            bytes += lengths.get(id).copied().unwrap_or_default();
            if bytes > MAX_BYTES && fit > 0 {
                return Ok(fit);
            }
            fit += 1;
        }
        size = (2 * size).min(MAX_ROWS);
    }
    Ok(fit)
}

/// Lock the rows of these jobs. Waits for other sessions.
async fn lock_rows(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<(), sqlx::Error> {
    for ids in ids.chunks(MAX_ROWS) {
        let sql = "SELECT id FROM jobs FORCE INDEX (PRIMARY) WHERE id IN";
        in_list(sql, ids, " ORDER BY id FOR UPDATE").fetch_all(&mut *conn).await?;
    }
    Ok(())
}

/// Outcome of a batch while it is being carried out.
#[derive(Default)]
struct Work {
    /// Most jobs that the batch may handle.
    most: usize,
    /// The number of jobs that the transaction has, for the sizes of later ones if MySQL does not carry it out.
    number: Arc<AtomicU32>,
    batched: BatchOutcome,
    done: Vec<Uuid>,
    /// True if the batch does not wait for locks that keep it from other jobs.
    is_careful: bool,
    /// True if the walk has found `found`, false if the jobs have order keys that were left before.
    walks: bool,
    /// The jobs that no earlier batch has left by themselves.
    found: BTreeSet<Uuid>,
    /// Order keys that are left, as in [`Ahead`].
    keys: BTreeMap<String, Uuid>,
    /// Jobs that are left with their order keys.
    of_keys: Vec<Uuid>,
    /// Jobs for the next batches.
    left: BTreeSet<JobId>,
    /// Jobs that this batch or an earlier one has waited for in vain.
    slow: BTreeSet<JobId>,
    /// Number of those that this batch has waited for.
    waits: usize,
    /// Set if the batch stopped early, after this job.
    until: Option<Uuid>,
    /// True if the batch left jobs for want of time.
    late: bool,
    failed: u64,
    last_error: Option<String>,
    counts: BTreeMap<(Name, Name, State), i64>,
}

impl Work {
    /// Note how many jobs the transaction has from here on.
    fn tries(&self, jobs: usize) {
        self.number.store(u32::try_from(jobs).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    async fn carry_out(
        &mut self,
        conn: &mut Session<'_>,
        shared: &StoreInner,
        operation: &Operation,
        ids: &[Uuid],
        remake: &Remake,
        now: Timestamp,
    ) -> Result<(), sqlx::Error> {
        match operation.action {
            Action::Cancel => self.act_on_each(conn, shared, (operation, ids), StateInput::Cancel, now).await,
            Action::Retry => self.act_on_each(conn, shared, (operation, ids), StateInput::Retry, now).await,
            Action::RunNow => self.act_on_each(conn, shared, (operation, ids), StateInput::RunNow, now).await,
            Action::Reschedule | Action::SetPriority => self.change(conn, operation, ids, now).await,
            Action::Delete => {
                let ids = lock_matching(conn, operation, ids).await?;
                let ids = self.take_fitting(conn, ids).await?;
                let removed = remove(conn, &ids, Removal::Asked, now).await?;
                self.until = removed.until.or(self.until);
                (self.done, self.batched.released) = (removed.gone, removed.released);
                Ok(())
            }
            Action::Replay => {
                let ids = lock_matching(conn, operation, ids).await?;
                let ids = self.take_fitting(conn, ids).await?;
                // The canary finds the jobs of its step by this time, also when the clock was set back since the step
                // began.
                let step = operation.canary.as_ref().and_then(|(_, state)| state.since);
                let since = step.map_or(now, |step| step.max(now));
                let each = replay_all(conn, &ids, remake, (&operation.actor, Some(operation.id)), (now, since)).await?;
                self.batched.accepted = self.sort(each);
                Ok(())
            }
            Action::Discard => {
                let reason = operation.params.reason.as_deref().unwrap_or("no reason was given");
                let ids = lock_matching(conn, operation, ids).await?;
                let each = discard_all(conn, &ids, reason, &operation.actor, now).await?;
                self.sort(each);
                self.batched.discarded = self.done.iter().copied().map(JobId::from_uuid).collect();
                Ok(())
            }
        }
    }

    /// Return the first of these locked jobs, so many that their payloads fit into one batch. The batch stops behind
    /// them.
    async fn take_fitting(&mut self, conn: &mut Session<'_>, mut ids: Vec<Uuid>) -> Result<Vec<Uuid>, sqlx::Error> {
        let fit = count_fitting(conn, &ids).await?;
        self.until = ids.get(fit).map(|next| just_before(*next));
        ids.truncate(fit);
        self.tries(fit);
        Ok(ids)
    }

    /// Count the dead letters by outcome, and return the results of the successful ones. Those that were replayed or
    /// discarded meanwhile are skipped; other refusals count as failed.
    fn sort<T>(&mut self, each: Each<T>) -> Vec<T> {
        let mut made = Vec::new();
        for (id, done) in each {
            match done {
                Ok(receipt) => {
                    self.done.push(id.uuid());
                    made.push(receipt);
                }
                Err(
                    refusal @ (Refusal::UniqueKeyTaken { .. }
                    | Refusal::ManyChildren
                    | Refusal::Unfit(_)
                    | Refusal::Unreadable(_)),
                ) => {
                    self.failed += 1;
                    self.last_error = Some(format!("job {id}: {refusal}"));
                }
                Err(Refusal::Missing | Refusal::State(_) | Refusal::Replayed(_) | Refusal::Discarded) => {}
            }
        }
        made
    }

    /// Return those of these jobs that the batch handles, in their order. The others are left: those in `locked`, the
    /// slow ones, and those that are too many because jobs of earlier batches are not locked any more. If all that are
    /// not locked are slow, the batch tries one of them, another one each time.
    fn share_out(&mut self, ids: &[Uuid], locked: BTreeSet<JobId>, now: Timestamp) -> Vec<JobId> {
        self.left = locked;
        let mut handled = Vec::with_capacity(ids.len());
        let mut slow = Vec::new();
        for id in ids.iter().copied().map(JobId::from_uuid) {
            if self.left.contains(&id) {
                continue;
            }
            if self.slow.contains(&id) {
                slow.push(id);
            } else if handled.len() < self.most {
                handled.push(id);
                continue;
            }
            self.left.insert(id);
        }
        if handled.is_empty() && !slow.is_empty() {
            let turn = usize::try_from(now.timestamp_millis()).unwrap_or(0) % slow.len();
            self.left.remove(&slow[turn]);
            handled.push(slow[turn]);
        }
        handled
    }

    /// Begin the change of a job. Returns whether the batch goes on with it; otherwise the job is left.
    async fn begins(&mut self, conn: &mut Session<'_>, id: JobId) -> Result<bool, sqlx::Error> {
        if self.waits >= MAX_WAITS {
            self.left.insert(id);
            return Ok(false);
        }
        if self.is_careful {
            sqlx::raw_sql("SAVEPOINT one_job").execute(conn.driver()).await?;
        }
        Ok(true)
    }

    /// Leave these jobs to the next batch if this one has used up its time since it `began` to change jobs. It changes one
    /// in any case. Returns whether the batch stops here.
    fn stops_before(&mut self, rest: &[JobId], began: Instant, has_changed: bool) -> bool {
        let Some(first) = rest.first().filter(|_| has_changed && began.elapsed() >= ENOUGH) else { return false };
        if self.is_careful {
            // Earlier batches have left jobs on both sides of the first one.
            self.left.extend(rest);
            self.late = true;
            return true;
        }
        // The walk goes on with the first one, and meets again what was left behind it.
        let until = just_before(first.uuid());
        self.left.retain(|id| id.uuid() <= until);
        self.of_keys.retain(|id| *id <= until);
        self.keys.retain(|_, behind| *behind < until);
        self.until = Some(until);
        true
    }

    /// Take back the change of a job after a lock wait that has timed out, and leave the job. Returns false if the
    /// whole transaction has to be rolled back.
    async fn leaves(&mut self, conn: &mut Session<'_>, id: JobId) -> bool {
        if !self.is_careful || sqlx::raw_sql("ROLLBACK TO SAVEPOINT one_job").execute(conn.driver()).await.is_err() {
            return false;
        }
        self.waits += 1;
        self.slow.insert(id);
        self.left.insert(id);
        true
    }

    /// Leave those of the new jobs whose order key is locked, or was when the walk met another job of it. Returns the
    /// other jobs.
    async fn leave_order_keys(
        &mut self,
        conn: &mut Session<'_>,
        ids: &[Uuid],
        busy: &BTreeSet<Uuid>,
    ) -> Result<Vec<Uuid>, sqlx::Error> {
        if busy.is_empty() && self.keys.is_empty() {
            return Ok(ids.to_vec());
        }
        let keys = order_keys_of(conn, ids).await?;
        let mut others = Vec::with_capacity(ids.len());
        for id in ids {
            let key = keys.get(id).filter(|_| self.found.contains(id));
            let key = key.and_then(|key| std::str::from_utf8(key).ok());
            let Some(key) = key.filter(|key| busy.contains(id) || (self.walks && self.keys.contains_key(*key))) else {
                others.push(*id);
                continue;
            };
            let behind = self.keys.entry(key.to_owned()).or_insert(just_before(*id));
            *behind = just_before(*id).min(*behind);
            self.of_keys.push(*id);
        }
        Ok(others)
    }

    async fn act_on_each(
        &mut self,
        conn: &mut Session<'_>,
        shared: &StoreInner,
        (operation, ids): (&Operation, &[Uuid]),
        event: StateInput,
        now: Timestamp,
    ) -> Result<(), sqlx::Error> {
        let (ordered, busy) = lock_free_for(conn, event, ids).await?;
        let ids = self.leave_order_keys(conn, ids, &busy).await?;
        let free = ids.iter().filter(|id| !busy.contains(id));
        let held = lock_free(conn, free.map(|id| JobId::from_uuid(*id))).await?;
        let mut locked = left_of(conn, ids.iter().copied().map(JobId::from_uuid).collect(), &held).await?;
        if event == StateInput::Retry {
            // Jobs that have ended have no row that says so.
            locked.extend(ids.iter().filter(|id| busy.contains(id)).copied().map(JobId::from_uuid));
        }
        if self.is_careful {
            let free = ids.iter().copied().filter(|id| !locked.contains(&JobId::from_uuid(*id))).collect();
            locked.extend(lock_more(conn, event, free, &held).await?);
        }
        let handled = self.share_out(&ids, locked, now);
        if event == StateInput::Retry && !self.is_careful {
            // Ended jobs have no row in `owed` that is locked by now.
            let ended = handled.iter().filter(|id| !held.contains_key(id)).map(|id| id.uuid());
            lock_rows(conn, &ended.collect::<Vec<_>>()).await?;
        }
        let matching = still_matching(conn, operation, handled).await?;
        let began = Instant::now();
        for (at, id) in matching.iter().copied().enumerate() {
            if self.stops_before(&matching[at..], began, at > 0) {
                break;
            }
            if !self.begins(conn, id).await? {
                continue;
            }
            let applied = apply_event(conn, shared, id, event, &ordered).await;
            let AppliedAction { outcome, counts, .. } = match applied {
                Err(error) if waited_for_lock(&error) && self.leaves(conn, id).await => continue,
                applied => applied?,
            };
            for (key, n) in counts {
                *self.counts.entry(key).or_default() += n;
            }
            match outcome {
                ActionOutcome::Refused(_) | ActionOutcome::Held(_) | ActionOutcome::Missing => continue,
                ActionOutcome::UniqueKeyTaken { holder, state } => {
                    self.failed += 1;
                    self.last_error = Some(format!("job {id}: {}", Refusal::UniqueKeyTaken { holder, state }));
                    continue;
                }
                ActionOutcome::Waits(accepted) => self.batched.waits.push(accepted),
                ActionOutcome::StopRequested => self.batched.stop_requested.push(id),
                ActionOutcome::Done(State::Cancelled) => self.batched.cancelled.push(id),
                ActionOutcome::Done(_) => {}
            }
            self.done.push(id.uuid());
        }
        Ok(())
    }

    /// Change the due time or priority of waiting jobs.
    async fn change(
        &mut self,
        conn: &mut Session<'_>,
        operation: &Operation,
        ids: &[Uuid],
        now: Timestamp,
    ) -> Result<(), sqlx::Error> {
        let params = &operation.params;
        // A moment in the past means now. Due times are whole milliseconds, rounded so that no job starts early.
        let due = params.execute_at.map(|moment| ceil_ms(moment).max(floor_ms(now)));
        let mut free = lock_free(conn, ids.iter().copied().map(JobId::from_uuid)).await?;
        let locked = left_of(conn, ids.iter().copied().map(JobId::from_uuid).collect(), &free).await?;
        let expiries = if due.is_some() { expiries_of(conn, ids).await? } else { BTreeMap::new() };
        let mut changed = Vec::new();
        let handled = self.share_out(ids, locked, now);
        let matching = still_matching(conn, operation, handled).await?;
        let began = Instant::now();
        for (at, id) in matching.iter().copied().enumerate() {
            if self.stops_before(&matching[at..], began, at > 0) {
                break;
            }
            let Some(owed) = free.remove(&id) else { continue };
            let held = waits_for_turn(owed.execute_at);
            if !matches!(owed.state, State::Waiting | State::Retrying) || (held && due.is_some()) {
                continue;
            }
            if due.zip(expiries.get(&id)).is_some_and(|(due, expires_at)| due >= *expires_at) {
                // The job would never start.
                continue;
            }
            let execute_at = due.unwrap_or(owed.execute_at);
            let priority = match params.priority {
                Some(priority) => priority,
                None => owed.priority.try_into().map_err(corrupt)?,
            };
            if !self.begins(conn, id).await? {
                continue;
            }
            match write_change(conn, id, execute_at, (priority, params.priority.is_some())).await {
                Err(error) if waited_for_lock(&error) && self.leaves(conn, id).await => continue,
                written => written?,
            }
            changed.push(id.uuid());
            self.done.push(id.uuid());
            self.batched.waits.push(Accepted {
                id,
                kind: owed.kind,
                queue: owed.queue,
                priority,
                execute_at,
                created_at: now,
                held,
            });
        }
        match due {
            Some(due) if !changed.is_empty() => note_due_time(conn, &changed, due).await,
            _ => Ok(()),
        }
    }
}

/// Write the due time and the priority of a job whose row in `owed` is locked.
async fn write_change(
    conn: &mut Session<'_>,
    id: JobId,
    execute_at: Timestamp,
    (priority, is_new): (Priority, bool),
) -> Result<(), sqlx::Error> {
    // With another due time the job does not wait for room any more. MySQL sets the columns in their order.
    let sql = format!(
        "UPDATE owed SET links = IF(execute_at = ?, links, links & ~{RESTS}), execute_at = ?, priority = ? WHERE id = ?"
    );
    statement(sql)
        .bind(execute_at.naive_utc())
        .bind(execute_at.naive_utc())
        .bind(priority.level())
        .bind(id.uuid())
        .execute(&mut *conn)
        .await?;
    if is_new {
        // A PATCH writes this row too. A retry after the end, and every reader of the ended job, uses this priority.
        sqlx::query("UPDATE jobs SET priority = ? WHERE id = ?")
            .bind(priority.level())
            .bind(id.uuid())
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}

/// Lock what an action on these jobs needs besides order keys and the rows in `owed`: the rows of jobs that run again,
/// and unique keys. Returns the jobs of which another session locks something at this moment.
async fn lock_more(
    conn: &mut Session<'_>,
    event: StateInput,
    mut ids: Vec<Uuid>,
    held: &BTreeMap<JobId, Owed>,
) -> Result<BTreeSet<JobId>, sqlx::Error> {
    let mut busy = BTreeSet::new();
    if event == StateInput::Retry {
        ids.retain(|id| !held.contains_key(&JobId::from_uuid(*id)));
        busy = lock_free_rows(conn, &ids).await?;
        ids.retain(|id| !busy.contains(id));
    } else if event == StateInput::Cancel {
        ids.retain(|id| held.get(&JobId::from_uuid(*id)).is_some_and(|owed| owed.keyed));
    } else {
        ids.clear();
    }
    busy.extend(lock_free_keys(conn, &ids).await?);
    Ok(busy.into_iter().map(JobId::from_uuid).collect())
}

/// Lock the rows of these jobs that no other session locks at this moment. Returns the others.
async fn lock_free_rows(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<BTreeSet<Uuid>, sqlx::Error> {
    let mut free = BTreeSet::new();
    let mut there = BTreeSet::new();
    for ids in ids.chunks(MAX_ROWS) {
        let sql = "SELECT id FROM jobs FORCE INDEX (PRIMARY) WHERE id IN";
        let tail = format!(" ORDER BY id FOR UPDATE{SKIP_LOCKED}");
        for (tail, rows) in [(tail.as_str(), &mut free), ("", &mut there)] {
            for row in in_list(sql, ids, tail).fetch_all(&mut *conn).await? {
                rows.insert(row.try_get::<Uuid, _>("id")?);
            }
        }
    }
    Ok(there.difference(&free).copied().collect())
}

/// Write an audit record for each changed job, with the actor and the operation.
async fn audit(conn: &mut Session<'_>, operation: &Operation, ids: &[Uuid], now: Timestamp) -> Result<(), sqlx::Error> {
    let detail = json!({"operation": operation.id}).to_string();
    for group in groups(ids) {
        let sql = format!(
            "INSERT INTO audit (id, at, actor, action, target, detail) VALUES {}",
            tuples(&placeholders(6), group.len())
        );
        let mut query = statement(sql);
        for id in group {
            query = query
                .bind(Uuid::now_v7())
                .bind(now)
                .bind(operation.actor.as_str())
                .bind(operation.action.act())
                .bind(id.to_string())
                .bind(detail.as_str());
        }
        query.execute(&mut *conn).await.map_err(|e| match fault(&e) {
            Fault::Duplicate => again("the id of an audit record is taken"),
            _ => e,
        })?;
    }
    Ok(())
}
