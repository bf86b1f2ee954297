//! Claims: the writes that start attempts. A claim is a compare-and-set on the row in `owed`, found by primary key.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::value::RawValue;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::attempts::claim_batches::OpenClaims;
use crate::rows::checkpoints::HAS_CHECKPOINT;
use crate::rows::limits::{KnownLimits, LimitKey, LimitsOfClaim};
use crate::rows::order::{Behind, IS_IN_PLACE, held_until};
use crate::rows::owed::{DueJob, MAX_NUMBER, SKIP_LOCKED, SUSPECT_FROM, due_job, unreadable};
use crate::sql::batch::Batch;
use crate::sql::batches::placeholders;
use crate::sql::connection::{DbFuture, PriorRun};
use crate::sql::datetimes::Datetime;
use crate::sql::error::corrupt;
use crate::sql::script::{Script, Value, if_changed};
use crate::sql::session::Session;
use tickr_job::{AttemptToken, BatchId, IdHashes, JobId, JobOptions, Name, Priority, RunnerId, Timestamp};

/// A successful claim. The attempt is committed, and the handler may start.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The job.
    pub id: JobId,
    /// The token of the attempt: the right to write about it.
    pub token: AttemptToken,
    /// Kind of the job.
    pub kind: Name,
    /// Queue of the job.
    pub queue: Name,
    /// Its priority within the queue.
    pub priority: Priority,
    /// Number of this execution, for the ledger. The first is 1.
    pub number: u32,
    /// Number of attempts used, this one included: all executions minus those that used no attempt.
    pub attempt: u32,
    /// Number of attempts that may be used.
    pub max_attempts: u32,
    /// True if the last attempt was lost, because its runner died.
    pub lost_before: bool,
    /// The input of the handler, as JSON.
    pub payload: Box<RawValue>,
    /// The less common options of the job.
    pub options: JobOptions,
    /// The time when the job was accepted.
    pub created_at: Timestamp,
    /// The time when the job was due.
    pub execute_at: Timestamp,
    /// The time of the claim, by the clock of the database.
    pub started_at: Timestamp,
    /// The time from which on no attempt may start, by the clock of the database. The handler may not start either.
    pub expires_at: Option<Timestamp>,
    runner: Arc<RunnerId>,
    keyed: bool,
    links: u8,
    pub(crate) slots: Arc<[LimitKey]>,
    pub(crate) was_parked: bool,
    /// The next jobs of its order key, as far as the claim has looked for them.
    pub(crate) behind: Vec<Behind>,
}

/// The data from the claim that no other process changes while the attempt is open. With it, a success is settled
/// without reading the row again.
#[derive(Clone, Debug)]
pub struct Opened {
    pub(crate) kind: Name,
    pub(crate) queue: Name,
    pub(crate) runner: Arc<RunnerId>,
    pub(crate) burned: u32,
    pub(crate) execute_at: Timestamp,
    pub(crate) started_at: Timestamp,
    /// True if the job holds a unique key.
    pub(crate) keyed: bool,
    /// The links of the job at the claim: `owed.links`.
    pub(crate) links: u8,
    /// The batch that counts the job.
    pub(crate) batch: Option<BatchId>,
    /// The order key of the job.
    pub(crate) order_key: Option<Arc<str>>,
    /// Keys of limits of which the attempt has a slot.
    pub(crate) slots: Arc<[LimitKey]>,
    /// The next jobs of its order key, as far as the claim has looked for them.
    pub(crate) behind: Vec<Behind>,
}

impl Claimed {
    /// Return the keys of limits of which the attempt has a slot.
    #[must_use]
    pub fn slots(&self) -> Arc<[LimitKey]> {
        Arc::clone(&self.slots)
    }

    /// Return whether the job was parked at a limit a moment before. Then others of its key probably are.
    #[must_use]
    pub const fn was_parked(&self) -> bool {
        self.was_parked
    }

    /// Return whether an earlier attempt saved a checkpoint.
    #[must_use]
    pub const fn has_checkpoint(&self) -> bool {
        self.links & HAS_CHECKPOINT != 0
    }

    /// Return the data that the settlement of this attempt needs.
    #[must_use]
    pub fn opened(&self) -> Opened {
        Opened {
            kind: self.kind.clone(),
            queue: self.queue.clone(),
            runner: Arc::clone(&self.runner),
            burned: self.attempt,
            execute_at: self.execute_at,
            started_at: self.started_at,
            keyed: self.keyed,
            links: self.links,
            batch: self.options.batch,
            order_key: self.options.order.as_ref().map(|order| order.key.as_str().into()),
            slots: Arc::clone(&self.slots),
            behind: self.behind.clone(),
        }
    }
}

/// An attempt that was claimed but cannot be executed, because its row cannot be read. It is an answer and not an
/// error, because an error would leave the other jobs of the batch claimed and not started.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// The job.
    pub id: JobId,
    /// The token of the attempt: the right to write about it.
    pub token: AttemptToken,
    /// Number of this execution.
    pub number: u32,
    /// Kind of the job, unless that is unreadable.
    pub kind: Option<Name>,
    /// Queue of the job, unless that is unreadable.
    pub queue: Option<Name>,
    /// The reason why it cannot be read.
    pub error: String,
}

/// Outcome of one claim.
#[derive(Clone, Debug)]
pub enum Claim {
    /// This runner has the job.
    Won(Box<Claimed>),
    /// The job is not due yet by the clock of the database. The index delivered it too early and should get it back.
    NotDue(DueJob),
    /// The job has a kind that this runner does not execute. It waits for a runner that does.
    OtherKind(DueJob),
    /// The job is due, but its last runners died while they executed it. Only
    /// [`Claimant::claim_suspect`](crate::Claimant::claim_suspect) claims it: from a process that executes
    /// nothing else, or from a runner that cannot start such a process.
    Suspect(DueJob),
    /// The job is due and has one attempt left, so [`Claimant::claim_ahead`](crate::Claimant::claim_ahead) has not
    /// claimed it. If the runner died before a worker was free, the job would fail though no handler had run.
    LastAttempt(DueJob),
    /// The job is due, but a limit leaves no room for it. It is parked: the store lets it go when there is room.
    Parked,
    /// This runner has the job, but its row cannot be read, so no handler can execute it.
    Unreadable(Box<Unreadable>),
    /// The job is executing already or has ended: the index delivered its id twice. Drop it.
    Gone,
}

/// Outcomes of the claims of a batch.
pub(crate) type ClaimsById = HashMap<JobId, Claim, IdHashes>;

/// Condition on a row of `owed`: the next attempt is the last one.
const LAST_ATTEMPT: &str = "(attempt + 1 >= spared + max_attempts)";

/// Condition on a row of `owed`: an attempt may still start. SYSDATE is the time after the wait for the lock of the row,
/// the same that becomes `started_at`.
pub(super) const NOT_EXPIRED: &str = "(expires_at IS NULL OR expires_at > SYSDATE(6))";

/// Condition on a row of `owed`: the job is due.
const IS_DUE: &str = " AND execute_at <= UTC_TIMESTAMP(6)";

/// A job to claim.
pub(crate) struct ClaimRequest {
    pub(crate) id: JobId,
    /// Its queue, for the limits that apply. None if any limit may: then the claim waits for a moment for a key of a
    /// limit that another session locks.
    pub(crate) queue: Option<Name>,
    /// True if the job may have to wait for a worker. Then it is not claimed for its last attempt.
    pub(crate) ahead: bool,
}

/// The answer to a claim.
pub(crate) struct ClaimReply {
    pub(crate) claim: Claim,
    /// Parked jobs that have a due time now. They may follow other claims of the same batch.
    pub(crate) let_go: Vec<DueJob>,
    /// True if another session locks a key of a limit of the job at this moment. Then the job was not claimed, and may
    /// be claimed again by a request that waits.
    pub(crate) busy: bool,
}

/// The group commit of the claims of one runner.
pub(crate) struct Claims {
    pub(crate) runner: Arc<RunnerId>,
    pub(crate) kinds: Arc<[Name]>,
    pub(crate) lease: Duration,
    /// True if suspects are claimed as well: jobs whose last runners died while they executed them.
    pub(crate) suspects: bool,
    /// The limits that the claims follow.
    pub(crate) limits: Arc<KnownLimits>,
    /// True if this group commit is the one for jobs to which a limit may apply.
    pub(crate) limited: bool,
    /// The attempts that this process has claimed and not yet settled.
    pub(crate) open: Arc<OpenClaims>,
    /// Present if the claims are for a request of a remote worker.
    pub(crate) remote: Option<RemoteClaim>,
    /// Keys of limits for which the next run of a claim in the transaction of the caller may wait. None before the
    /// first run.
    pub(crate) had_outside: Mutex<Option<BTreeSet<LimitKey>>>,
}

/// What the claims for a request of a remote worker need besides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteClaim {
    /// The request. Nothing is claimed unless it is the newest one of its worker.
    pub(crate) fetch: Uuid,
    /// The caller has begun the transaction of the claim, which ends it.
    pub(crate) in_transaction: bool,
}

impl Batch for Claims {
    type Item = ClaimRequest;
    type Reply = ClaimReply;
    /// One token for the whole batch. Token and job id together name one attempt, and a single statement can write the
    /// token to all rows.
    type Mark = AttemptToken;
    const ATTEMPTED: &'static str = "claim jobs";
    const FULL: usize = 256;

    fn row(item: &ClaimRequest) -> Option<JobId> {
        Some(item.id)
    }

    /// The session that holds the row lock decides about the job. If the job still waits afterwards, the reconciler
    /// brings it back.
    fn left_out() -> Option<ClaimReply> {
        Some(ClaimReply { claim: Claim::Gone, let_go: Vec::new(), busy: false })
    }

    fn mark(&self) -> AttemptToken {
        AttemptToken::new()
    }

    fn write<'c>(
        &'c self,
        conn: &'c mut Session<'_>,
        items: &'c [ClaimRequest],
        token: AttemptToken,
        earlier: PriorRun,
    ) -> DbFuture<'c, Vec<ClaimReply>> {
        Box::pin(async move {
            if earlier == PriorRun::MayHaveCommitted {
                self.open.uncertain(token);
            }
            let mut ids: Vec<Uuid> = items.iter().map(|item| item.id.uuid()).collect();
            ids.sort_unstable();
            ids.dedup();
            // When the answer to an earlier run was lost, this update changes no row twice, and the token still finds
            // the jobs that the earlier run claimed.
            let batches = [Uuid::now_v7(), Uuid::now_v7()];
            let sure: Vec<Uuid> = items.iter().filter(|item| !item.ahead).map(|item| item.id.uuid()).collect();
            self.limits.catch_up(conn).await?;
            let mut limits = LimitsOfClaim::now(&self.limits);
            // The limits may have changed since the runner chose this group commit for the jobs.
            let may_apply = self.limited || items.iter().any(|item| limits.concern(item.queue.as_ref()));
            let (free, limited, ours) = if may_apply && !limits.followed.is_empty() {
                let divided = self.divide(conn, &ids, &limits.followed, token).await?;
                limits.hosts = divided.hosts;
                (divided.free, divided.limited, divided.ours)
            } else {
                (ids.clone(), Vec::new(), Vec::new())
            };
            let mut claims = ClaimsById::default();
            let skips_locked = self.skips_locked(earlier);
            // One transaction of the caller ends with one claim. The other jobs come back in a moment.
            let limited = if self.is_in_transaction() && !free.is_empty() { Vec::new() } else { limited };
            if !free.is_empty() {
                let jobs = (free.as_slice(), among(&sure, &free));
                claims = if skips_locked {
                    self.take_unlocked(conn, (jobs.0, &jobs.1), (token, batches[0]), &limits).await?
                } else {
                    self.take(conn, (jobs.0, &jobs.1), (token, batches[0]), &limits).await?
                };
            }
            let (mut let_go, mut busy) = (Vec::new(), HashSet::new());
            let own: HashSet<JobId> = limited.iter().chain(&ours).map(|job| JobId::from_uuid(job.id)).collect();
            if !ours.is_empty() {
                claims.extend(self.read_ours(conn, &ours, token).await?);
            }
            if !limited.is_empty() {
                let jobs = (limited.as_slice(), &limits);
                // The claims of a remote worker have no others beside them that would have to wait.
                let waits = self.remote.is_some() || items.iter().all(|item| item.queue.is_none());
                let taken = self.take_limited(conn, jobs, (&sure, skips_locked, waits), token, batches[1]).await?;
                claims.extend(taken.claims);
                (let_go, busy) = (taken.let_go, taken.busy);
            }
            let lost: Vec<Uuid> = ids.into_iter().filter(|id| !claims.contains_key(&JobId::from_uuid(*id))).collect();
            if !lost.is_empty() {
                claims.extend(self.why_lost(conn, &lost, &sure).await?);
            }
            // Only now, because a run that fails is followed by another one. That one might hand out what this one has
            // left, while it is being given back.
            let mut leaves_some = false;
            if !ours.is_empty() || limits.took_long() {
                // Its COMMIT may have come after the count for a new limit.
                let limits = ours.is_empty().then_some(&limits);
                leaves_some = self.leave_without_room(conn, &mut claims, limits, token).await?;
            }
            if earlier == PriorRun::MayHaveCommitted {
                // The COMMIT of an earlier run may have come while this one waited, and this one has no room for them.
                let left = lost.iter().map(|id| JobId::from_uuid(*id)).filter(|id| own.contains(id));
                self.open.gave_up(token, &left.collect::<Vec<_>>());
            }
            // Hand out each attempt that is found under the token only once. A batch may contain an id twice, and its
            // items may be claimed one by one under the same token.
            let won = |claim: &Claim| matches!(claim, Claim::Won(_) | Claim::Unreadable(_));
            for (batch, of_limited) in batches.into_iter().zip([false, true]) {
                let found = claims.iter().filter(|(id, claim)| won(claim) && own.contains(id) == of_limited);
                let found: Vec<JobId> = found.map(|(id, _)| *id).collect();
                if !found.is_empty() {
                    let fresh = if leaves_some {
                        self.open.won_in_part(token, &found)
                    } else {
                        self.open.won(batch, token, &found)
                    };
                    claims.retain(|id, claim| !won(claim) || own.contains(id) != of_limited || fresh.contains(id));
                }
            }
            let mut let_go = Some(let_go).filter(|jobs| !jobs.is_empty());
            // `remove`, not `get`: if two callers in one batch have the same id, only the first may execute the job.
            Ok(items
                .iter()
                .map(|item| {
                    let claim = claims.remove(&item.id).unwrap_or(Claim::Gone);
                    let let_go = let_go.take().unwrap_or_default();
                    ClaimReply { claim, let_go, busy: busy.contains(&item.id) }
                })
                .collect())
        })
    }

    fn gave_up(&self, items: &[ClaimRequest], token: AttemptToken, locked: bool) {
        // If another session locks the row, this claim has changed nothing. The exception: the lock belongs to an
        // earlier run of this same claim, whose COMMIT is still under way.
        if !locked || self.open.is_uncertain(token) {
            let ids: Vec<JobId> = items.iter().map(|item| item.id).collect();
            self.open.gave_up(token, &ids);
        }
    }
}

impl Claims {
    /// Claim the jobs, write the row that lets the reaper find them, and read everything a handler needs of the jobs
    /// under the token. `sure` are those that are claimed for their last attempt as well.
    ///
    /// All of it is one transaction, and the COMMIT is sent only after MySQL has answered the update. So if the caller
    /// stops waiting for the update and the server carries it out later, it is rolled back with its broken connection.
    /// While a COMMIT is under way, the rows stay locked.
    ///
    /// The update may wait for a row that another transaction settles at this moment. UTC_TIMESTAMP is the time when
    /// the statement began to wait; SYSDATE is the time after the wait. So `started_at` is SYSDATE, and no attempt
    /// begins before the previous one ended.
    async fn take(
        &self,
        conn: &mut Session<'_>,
        (ids, sure): (&[Uuid], &[Uuid]),
        (token, batch): (AttemptToken, Uuid),
        limits: &LimitsOfClaim,
    ) -> Result<ClaimsById, sqlx::Error> {
        // BEGIN and UPDATE go in one request when there are few jobs: another round trip costs more than parsing the
        // text.
        let mut script = Script::about(ids.len(), 0);
        if !self.is_in_transaction() {
            script.push("BEGIN", Vec::new());
        }
        self.fence_step(&mut script);
        self.claim_step(&mut script, (ids, sure), token);
        let reads_hosts = limits.hosts_step(&mut script, ids);
        let mut done = script.run(conn).await?;
        let moved = reads_hosts && limits.moved(&done.pop().unwrap_or_default().rows)?;
        let taken: u64 = done.iter().map(|done| done.affected).sum();
        if moved || limits.have_changed(conn, &self.limits).await? {
            // The jobs are claimed again in a moment, but for those that an earlier run of this claim has claimed.
            sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
            let mut script = Script::about(ids.len(), 0);
            read_step(&mut script, ids, token);
            let done = script.run(conn).await?;
            return self.claims_in(done.iter().flat_map(|done| &done.rows), token);
        }

        // The remaining statements also go in one request when there are few jobs.
        let mut script = Script::about(ids.len(), 0);
        let bytes: Vec<u8> = ids.iter().flat_map(|id| *id.as_bytes()).collect();
        if taken > 0 {
            // This lists all ids, also those that were not claimed. Only the next statement shows which were claimed,
            // and this one need not wait for it.
            self.batch_step(&mut script, &bytes, token, batch);
        }
        read_step(&mut script, ids, token);
        script.push("COMMIT", Vec::new());
        let done = script.run(conn).await?;
        self.claims_in(done.iter().flat_map(|done| &done.rows), token)
    }

    /// Do what [`take`](Self::take) does, without the rows that another session locks: their jobs are answered with
    /// [`Claim::Gone`]. A claim that waited for one row would keep the others locked, and the connection.
    ///
    /// The first request locks the rows, so the update waits for none, and its COMMIT goes with it. If its answer is
    /// lost, the next request of the worker finds what was claimed.
    async fn take_unlocked(
        &self,
        conn: &mut Session<'_>,
        (ids, sure): (&[Uuid], &[Uuid]),
        (token, batch): (AttemptToken, Uuid),
        limits: &LimitsOfClaim,
    ) -> Result<ClaimsById, sqlx::Error> {
        let mut script = Script::about(ids.len(), 0);
        if !self.is_in_transaction() {
            script.push("BEGIN", Vec::new());
        }
        self.fence_step(&mut script);
        self.lock_step(&mut script, (ids, sure));
        let reads_hosts = limits.hosts_step(&mut script, ids);
        let mut done = script.run(conn).await?;
        let moved = reads_hosts && limits.moved(&done.pop().unwrap_or_default().rows)?;
        let locked = done.pop().unwrap_or_default().rows;
        if moved || limits.have_changed(conn, &self.limits).await? {
            // The claim has waited for the row of the worker. The jobs are claimed again in a moment.
            sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
            return Ok(ClaimsById::default());
        }
        let (mut claims, mut ready) = (gone(ids), Vec::with_capacity(locked.len()));
        for row in &locked {
            let id: Uuid = row.try_get("id")?;
            claims.remove(&JobId::from_uuid(id));
            if row.try_get("may_start")? {
                ready.push(id);
            }
        }

        let bytes: Vec<u8> = ready.iter().flat_map(|id| *id.as_bytes()).collect();
        let mut script = Script::about(ready.len(), 0);
        if !ready.is_empty() {
            self.claim_step(&mut script, (&ready, &among(sure, &ready)), token);
            self.batch_step(&mut script, &bytes, token, batch);
            read_step(&mut script, &ready, token);
        }
        script.push("COMMIT", Vec::new());
        let done = script.run(conn).await?;
        claims.extend(self.claims_in(done.iter().flat_map(|done| &done.rows), token)?);
        Ok(claims)
    }

    /// Add the step that locks the rows of those of these jobs that wait, but for rows that another session locks, and
    /// reads whether the claim may start them.
    fn lock_step<'s>(&'s self, script: &mut Script<'s>, (ids, sure): (&[Uuid], &[Uuid])) {
        let (last_attempts, of_last_attempts) = last_attempts(script, (ids, sure));
        let (condition, mut values) = self.condition([IS_DUE, &last_attempts], [Vec::new(), of_last_attempts]);
        let (list, ids) = script.list(ids);
        values.extend(ids);
        let select = format!(
            "SELECT id, (TRUE{condition}) AS may_start FROM owed FORCE INDEX (PRIMARY) WHERE id IN {list} \
             AND state IN ('waiting', 'retrying') ORDER BY id FOR UPDATE{SKIP_LOCKED}"
        );
        script.push(select, values);
    }

    /// Add the step that lets the next request of the worker wait until this claim has ended. So it sees what was claimed
    /// for this request.
    pub(super) fn fence_step<'s>(&'s self, script: &mut Script<'s>) {
        if self.remote.is_some() {
            script.push("SELECT id FROM runners WHERE id = ? LOCK IN SHARE MODE", vec![self.runner.as_str().into()]);
        }
    }

    /// Add the step that claims those of these jobs that are due and of the runner's kinds. `sure`, a part of them, are
    /// claimed for their last attempt as well.
    pub(super) fn claim_step<'s>(
        &'s self,
        script: &mut Script<'s>,
        (ids, sure): (&[Uuid], &[Uuid]),
        token: AttemptToken,
    ) {
        let (last_attempts, values) = last_attempts(script, (ids, sure));
        self.claim(script, ids, token, ["", IS_DUE, &last_attempts], [Vec::new(), Vec::new(), values]);
    }

    /// Add the step that claims those of these jobs that are held until they are at the head of their order key, which
    /// they are now, and that are due at `execute_at`. None is claimed for its last attempt.
    pub(super) fn claim_held_step<'s>(
        &'s self,
        script: &mut Script<'s>,
        ids: &[Uuid],
        execute_at: Timestamp,
        token: AttemptToken,
    ) {
        let is_held = " AND execute_at = ? AND TIMESTAMP(?) <= UTC_TIMESTAMP(6)";
        let due = [Value::from(execute_at)];
        let values = [due.to_vec(), vec![held_until().into(), execute_at.into()], Vec::new()];
        let not_last = format!(" AND NOT {LAST_ATTEMPT}");
        // MySQL sets columns from the left to the right, and this one last.
        self.claim(script, ids, token, [", execute_at = ?", is_held, &not_last], values);
    }

    /// Add the step that claims this job, which is held at the place that is the head of its order key by now, if it is
    /// still there, is due and is in this queue. It is not claimed for its last attempt.
    pub(super) fn claim_behind_step<'s>(
        &'s self,
        script: &mut Script<'s>,
        behind: Behind,
        queue: &'s Name,
        token: AttemptToken,
    ) {
        let is_next = format!(" AND execute_at = ? AND queue = ? AND {IS_IN_PLACE}");
        let of_next = vec![held_until().into(), queue.as_str().into(), behind.id.into(), behind.place.into()];
        let not_last = format!(" AND NOT {LAST_ATTEMPT}");
        // It was due before it was at the head, so it is due now.
        let parts = [", execute_at = UTC_TIMESTAMP(3)", &is_next, &not_last];
        self.claim(script, &[behind.id], token, parts, [Vec::new(), of_next, Vec::new()]);
    }

    fn claim<'s>(
        &'s self,
        script: &mut Script<'s>,
        ids: &[Uuid],
        token: AttemptToken,
        [set, is_due, last_attempts]: [&str; 3],
        [of_set, of_due, of_last_attempts]: [Vec<Value<'s>>; 3],
    ) {
        let (list, ids) = script.list(ids);
        let lease = i64::try_from(self.lease.as_micros()).unwrap_or(i64::MAX);
        let mut values = vec![Value::from(token.uuid()), self.runner.as_str().into(), lease.into()];
        values.extend(of_set);
        values.extend(ids);
        let (condition, of_condition) = self.condition([is_due, last_attempts], [of_due, of_last_attempts]);
        values.extend(of_condition);
        let mut fence = "";
        if let Some(remote) = &self.remote {
            fence = " AND EXISTS (SELECT 1 FROM runners r WHERE r.id = ? AND r.fetch_id = ? AND r.stopped_at IS NULL \
                     AND r.drained_at IS NULL)";
            values.extend([Value::from(self.runner.as_str()), remote.fetch.into()]);
        }
        let update = format!(
            "UPDATE owed FORCE INDEX (PRIMARY) SET state = 'executing', attempt = attempt + 1, token = ?, runner = ?, \
             started_at = SYSDATE(6), lease_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, progress = NULL{set} \
             WHERE id IN {list} AND state IN ('waiting', 'retrying'){condition}{fence}"
        );
        script.push(update, values);
    }

    /// Return the condition on a waiting job for its claim, and the values in it.
    fn condition<'s>(
        &'s self,
        [is_due, last_attempts]: [&str; 2],
        [of_due, of_last_attempts]: [Vec<Value<'s>>; 2],
    ) -> (String, Vec<Value<'s>>) {
        let mut values = of_due;
        values.extend(self.kinds.iter().map(|kind| Value::from(kind.as_str())));
        if self.kinds.is_empty() {
            values.push("".into());
        }
        values.extend(of_last_attempts);
        let condition = format!(
            "{is_due} AND {NOT_EXPIRED} AND attempt < {MAX_NUMBER} AND kind IN {}{last_attempts}{}",
            placeholders(self.kinds.len().max(1)),
            if self.suspects { String::new() } else { format!(" AND losses < {SUSPECT_FROM}") },
        );
        (condition, values)
    }

    /// Add the step that lets the reaper find the claims of these jobs.
    pub(super) fn batch_step<'s>(&'s self, script: &mut Script<'s>, ids: &'s [u8], token: AttemptToken, batch: Uuid) {
        self.list_step(script, (ids, "?"), token, batch);
    }

    /// Do what [`batch_step`](Self::batch_step) does for a claim of one job. The step fails unless the statement before
    /// it has claimed the job.
    pub(super) fn guarded_batch_step<'s>(
        &'s self,
        script: &mut Script<'s>,
        id: &'s [u8],
        token: AttemptToken,
        batch: Uuid,
    ) {
        self.list_step(script, (id, &if_changed(1)), token, batch);
    }

    fn list_step<'s>(
        &'s self,
        script: &mut Script<'s>,
        (ids, list): (&'s [u8], &str),
        token: AttemptToken,
        batch: Uuid,
    ) {
        let mut values = vec![Value::from(self.runner.as_str()), batch.into(), token.uuid().into(), Value::from(ids)];
        if let Some(remote) = &self.remote {
            values.push(remote.fetch.into());
            let sql =
                format!("INSERT INTO claim_batches (runner, id, token, ids, fetch_id) VALUES (?, ?, ?, {list}, ?)");
            return script.push(sql, values);
        }
        script.push(format!("INSERT INTO claim_batches (runner, id, token, ids) VALUES (?, ?, ?, {list})"), values);
    }

    /// Read the rows of [`read_step`].
    pub(super) fn claims_in<'r>(
        &self,
        rows: impl Iterator<Item = &'r MySqlRow>,
        token: AttemptToken,
    ) -> Result<ClaimsById, sqlx::Error> {
        let mut queue = None;
        rows.map(|row| {
            let (id, number) = (JobId::from_uuid(row.try_get("id")?), row.try_get("attempt")?);
            let claim = match self.claimed(row, token, &mut queue) {
                Ok(claimed) => Claim::Won(Box::new(claimed)),
                Err(e) => {
                    let name = |column: &str| row.try_get::<&str, _>(column).ok().and_then(|name| name.parse().ok());
                    let (kind, queue) = (name("kind"), name("queue"));
                    Claim::Unreadable(Box::new(Unreadable { id, token, number, kind, queue, error: e.to_string() }))
                }
            };
            Ok((id, claim))
        })
        .collect()
    }

    /// Find out why the other jobs were not claimed. This is not part of the claim: it is a hint for the index, read a
    /// moment later.
    async fn why_lost(
        &self,
        conn: &mut Session<'_>,
        ids: &[Uuid],
        sure: &[Uuid],
    ) -> Result<Vec<(JobId, Claim)>, sqlx::Error> {
        let mut script = Script::about(ids.len(), 0);
        let (list, values) = script.list(ids);
        let sql = format!(
            "SELECT id, queue, priority, execute_at, kind, losses >= {SUSPECT_FROM} AND execute_at <= UTC_TIMESTAMP(6) \
             AS due_suspect, {LAST_ATTEMPT} AND execute_at <= UTC_TIMESTAMP(6) AS due_last FROM owed FORCE INDEX (PRIMARY) \
             WHERE id IN {list} AND state IN ('waiting', 'retrying') AND {NOT_EXPIRED} AND attempt < {MAX_NUMBER}"
        );
        script.push(sql, values);
        let found: Vec<MySqlRow> = script.run(conn).await?.into_iter().flat_map(|done| done.rows).collect();
        // An unreadable row must not cost the other jobs their answer.
        let readable = found
            .iter()
            .filter_map(|row| due_job(row).map(|job| (row, job)).map_err(|error| unreadable(&error.to_string())).ok());
        readable
            .map(|(row, job)| {
                let id = job.id;
                let (due_suspect, due_last): (bool, bool) = (row.try_get("due_suspect")?, row.try_get("due_last")?);
                let claim = if !self.kinds.contains(&job.kind) {
                    Claim::OtherKind(job)
                } else if due_suspect && !self.suspects {
                    Claim::Suspect(job)
                } else if due_last && !sure.contains(&id.uuid()) {
                    Claim::LastAttempt(job)
                } else {
                    Claim::NotDue(job)
                };
                Ok((id, claim))
            })
            .collect()
    }
}

impl Claims {
    /// Create the claims of a runner that only reads what it has claimed.
    pub(super) fn reading(runner: Arc<RunnerId>, kinds: Arc<[Name]>) -> Self {
        Self {
            runner,
            kinds,
            lease: Duration::ZERO,
            suspects: false,
            limits: Arc::default(),
            limited: false,
            open: Arc::default(),
            remote: None,
            had_outside: Mutex::default(),
        }
    }

    pub(super) fn is_in_transaction(&self) -> bool {
        self.remote.is_some_and(|remote| remote.in_transaction)
    }

    /// Return whether rows that another session locks are left out. After a run without an answer, the COMMIT of that run
    /// may be under way, and then it locks the rows: the claim waits for it to find out what was claimed.
    fn skips_locked(&self, earlier: PriorRun) -> bool {
        self.remote.is_some() && earlier == PriorRun::Nothing
    }
}

/// Return the condition on a row for the last attempt of its job, and the values in it. `sure`, a part of the ids, are
/// claimed for their last attempt as well.
fn last_attempts<'s>(script: &Script<'s>, (ids, sure): (&[Uuid], &[Uuid])) -> (String, Vec<Value<'s>>) {
    // Most claims have none of the other sort.
    match (sure.is_empty(), sure.len() < ids.len()) {
        (_, false) => (String::new(), Vec::new()),
        (true, true) => (format!(" AND NOT {LAST_ATTEMPT}"), Vec::new()),
        (false, true) => {
            let (list, sure) = script.list(sure);
            (format!(" AND (NOT {LAST_ATTEMPT} OR id IN {list})"), sure)
        }
    }
}

/// Return the answer for jobs whose rows another session locks. That session decides about them. If they still wait
/// afterwards, the reconciler brings them back.
pub(super) fn gone(ids: &[Uuid]) -> ClaimsById {
    ids.iter().map(|id| (JobId::from_uuid(*id), Claim::Gone)).collect()
}

/// Return those of these ids that are in `all`.
pub(super) fn among(ids: &[Uuid], all: &[Uuid]) -> Vec<Uuid> {
    let all: HashSet<&Uuid> = all.iter().collect();
    ids.iter().copied().filter(|id| all.contains(id)).collect()
}

/// Add the step that reads everything a handler needs of the jobs under the token.
pub(super) fn read_step(script: &mut Script<'_>, ids: &[Uuid], token: AttemptToken) {
    let (list, mut values) = script.list(ids);
    values.push(token.uuid().into());
    let select = format!(
        "SELECT o.id, o.kind, o.queue, o.priority, o.attempt, o.spared, o.losses, o.max_attempts, o.execute_at, \
         o.started_at, o.expires_at, j.payload, j.options, o.keyed, o.links, j.created_at FROM owed o \
         FORCE INDEX (PRIMARY) STRAIGHT_JOIN jobs j ON j.id = o.id WHERE o.id IN {list} AND o.token = ?",
    );
    script.push(select, values);
}

impl Claims {
    /// Read a row of [`read_step`]. `queue` is that of the row before, and becomes that of this one.
    fn claimed(&self, row: &MySqlRow, token: AttemptToken, queue: &mut Option<Name>) -> Result<Claimed, sqlx::Error> {
        let number: u32 = row.try_get("attempt")?;
        let spared: u32 = row.try_get("spared")?;
        let options: Option<&str> = row.try_get("options")?;
        let kind: &str = row.try_get("kind")?;
        let kind = match self.kinds.iter().find(|known| known.as_str() == kind) {
            Some(known) => known.clone(),
            None => kind.parse().map_err(|_| corrupt("kind"))?,
        };
        Ok(Claimed {
            id: JobId::from_uuid(row.try_get("id")?),
            token,
            kind,
            queue: queue_of(row, queue)?,
            priority: row.try_get::<u8, _>("priority")?.try_into().map_err(corrupt)?,
            number,
            attempt: number - spared,
            max_attempts: row.try_get("max_attempts")?,
            lost_before: row.try_get::<u32, _>("losses")? > 0,
            payload: RawValue::from_string(row.try_get("payload")?).map_err(|e| corrupt(format!("payload: {e}")))?,
            options: match options {
                Some(text) => serde_json::from_str(text).map_err(|e| corrupt(format!("options: {e}")))?,
                None => JobOptions::default(),
            },
            created_at: row.try_get::<Datetime, _>("created_at")?.0,
            execute_at: row.try_get::<Datetime, _>("execute_at")?.0,
            started_at: row.try_get::<Datetime, _>("started_at")?.0,
            expires_at: row.try_get::<Option<Datetime>, _>("expires_at")?.map(|at| at.0),
            runner: Arc::clone(&self.runner),
            keyed: row.try_get("keyed")?,
            links: row.try_get("links")?,
            slots: Arc::default(),
            was_parked: false,
            behind: Vec::new(),
        })
    }
}

/// Return the queue of a row. Most rows have that of the row before, and share its text.
fn queue_of(row: &MySqlRow, last: &mut Option<Name>) -> Result<Name, sqlx::Error> {
    let text: &str = row.try_get("queue")?;
    if let Some(name) = last.as_ref().filter(|name| name.as_str() == text) {
        return Ok(name.clone());
    }
    let name: Name = text.parse().map_err(|_| corrupt("queue"))?;
    let name = name.fixed_if_known();
    *last = Some(name.clone());
    Ok(name)
}
