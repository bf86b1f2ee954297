//! Settlement of attempts that succeeded, without reading their rows first.
//!
//! Most attempts succeed, and the claim has already read everything that the ledger needs. So the rows are deleted by
//! id and token, unless a cancel was requested. The number of deleted rows tells if every attempt still held its job.
//! If one did not, the transaction is rolled back and the whole batch is settled in `settle.rs`, which reads the rows
//! and decides about each one.
//!
//! The next job of an order key can be claimed in the same transaction, for the runner that ended the one before it. So
//! the jobs of one key cost one commit each, and not two. The slots of limits by key are freed in it as well, if that
//! needs no wait, and the next parked job of the key can be claimed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::attempts::claim::{Claim, Claims, ClaimsById, Opened, read_step};
use crate::attempts::claim_batches::{NO_ROOM, Unstarted};
use crate::attempts::limited::{FreedWithEnds, claim_let_go, free_with_ends, under_one_limit, without_room};
use crate::attempts::settlement::{CheckpointUse, SettleRequest, Settlement};
use crate::rows::attempt_logs::{AttemptLogRow, insert_logs_step};
use crate::rows::checkpoints::HAS_CHECKPOINT;
use crate::rows::limits::{KnownLimits, LimitKey, LimitSetting, LimitsOfClaim};
use crate::rows::links::{AWAITED, BatchChanges, IN_BATCH};
use crate::rows::order::{Successor, due_steps, heads_step, lock_step, successors_step};
use crate::rows::owed::{DEFERRED, DueJob, RESTS};
use crate::rows::tallies::Counts;
use crate::sql::error::{Fault, fault, waited_for_lock};
use crate::sql::script::{Script, Value};
use crate::sql::session::Session;
use tickr_job::{AttemptToken, JobId, Name, State, Timestamp, Verdict};

/// A success with nothing else to write than its place: no follow-up jobs, no unique key and no checkpoint.
pub(crate) struct Success<'a> {
    item: &'a Settlement,
    opened: &'a Opened,
    successor_for: Option<&'a Arc<Claims>>,
}

/// What a batch of successes brought about.
#[derive(Default)]
pub(crate) struct Completed<'a> {
    /// Jobs that are not held or parked any more and were not claimed.
    pub(crate) released: Vec<DueJob>,
    /// The claim of jobs that were held.
    pub(crate) claim: Option<SuccessorClaim<'a>>,
    /// The claim of jobs that were parked.
    pub(crate) claim_of_parked: Option<SuccessorClaim<'a>>,
    /// The links of the jobs: bits of `owed.links`.
    pub(crate) linked: u8,
    /// Jobs whose slots of limits are free.
    pub(crate) freed: HashSet<Uuid>,
}

impl<'a> Success<'a> {
    /// Return the success if the attempt can be settled without reading its row.
    pub(crate) fn from_request(request: &'a SettleRequest) -> Option<Self> {
        let item: &Settlement = &request.settlement;
        let opened = item.opened.as_ref()?;
        let plain = item.verdict == Verdict::Succeeded && item.follow_ups.is_empty() && !opened.keyed;
        let in_batch = opened.links & IN_BATCH != 0;
        let plain = plain && opened.links & (AWAITED | HAS_CHECKPOINT | RESTS | DEFERRED) == 0;
        let plain = plain && in_batch == opened.batch.is_some();
        let plain = plain && matches!(item.checkpoint, CheckpointUse::Unused);
        let may_be_followed = opened.order_key.is_some() || !opened.slots.is_empty();
        let successor_for = request.successor_for.as_ref().filter(|_| may_be_followed);
        plain.then_some(Self { item, opened, successor_for })
    }

    fn bytes(&self) -> usize {
        200 + self.item.result.as_ref().map_or(0, |raw| raw.get().len())
    }

    fn log(&self) -> Option<AttemptLogRow<'a>> {
        let log = self.item.log.as_deref()?;
        Some(AttemptLogRow { job: self.item.id, number: self.item.number, log })
    }
}

/// Settle all of them or none. Returns nothing, with nothing written, when a token no longer holds its job, a cancel
/// was requested for one of them, or their slots cannot be freed now. `known` are the limits of this process.
pub(crate) async fn complete<'a>(
    conn: &mut Session<'_>,
    successes: &[Success<'a>],
    lane: u8,
    known: &KnownLimits,
) -> Result<Option<Completed<'a>>, sqlx::Error> {
    let mut claims = successes.iter().find_map(|success| success.successor_for);
    let mut frees = successes.iter().any(|success| !success.opened.slots.is_empty());
    if claims.is_some() || frees {
        match known.catch_up(conn).await {
            Ok(()) => {}
            // A limit that this version cannot read must not cost an attempt its verdict.
            Err(error) if is_about_limits(&error) => (claims, frees) = (None, false),
            Err(error) => return Err(error),
        }
    }
    let limits = claims.map(|of| LimitsOfClaim::now(&of.limits));
    let mut sorted: Vec<&Success<'_>> = successes.iter().collect();
    sorted.sort_unstable_by_key(|success| success.item.id);
    let logs: Vec<AttemptLogRow<'_>> = sorted.iter().filter_map(|success| success.log()).collect();
    let bytes = sorted.iter().map(|success| success.bytes()).sum::<usize>();
    let bytes = bytes + logs.iter().map(AttemptLogRow::bytes).sum::<usize>();

    let ids: Vec<Uuid> = sorted.iter().map(|success| success.item.id.uuid()).collect();
    // The fence is the pair of id and token. The token alone is not enough: it belongs to a whole batch of claims, and
    // one job of that batch may have a newer attempt. The primary key of the ledger is a second fence: a lost attempt
    // has its row there, and MySQL refuses another one.
    let pairs: Vec<[u8; 32]> = sorted.iter().map(|success| pair(success.item)).collect();
    let pairs: Vec<&[u8]> = pairs.iter().map(<[u8; 32]>::as_slice).collect();
    let mut take = Script::about(sorted.len(), bytes);
    let ((ids_list, mut values), (pairs_list, pairs)) = (take.list(&ids), take.list(&pairs));
    values.extend(pairs);
    values.push(i64::try_from(ids.len()).unwrap_or(i64::MAX).into());
    take.push("BEGIN", Vec::new());
    let order_key = |success: &&Success<'_>| success.opened.order_key.clone();
    let keys: Vec<Arc<str>> = sorted.iter().filter_map(order_key).collect();
    let keys: BTreeSet<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
    let heads = sorted
        .iter()
        .filter_map(|success| success.opened.order_key.as_ref().map(|key| (key.as_bytes(), success.item.id.uuid())));
    let heads: BTreeMap<&[u8], Uuid> = heads.collect();
    if !keys.is_empty() {
        // Before any other row.
        lock_step(&mut take, &keys);
    }
    // A single-table DELETE accepts no index hint. The ORDER BY and the LIMIT have the same effect.
    let delete = format!(
        "DELETE FROM owed WHERE id IN {ids_list} AND CONCAT(id, token) IN {pairs_list} AND cancel_requested_at IS NULL \
         AND links < {AWAITED} ORDER BY id LIMIT ?"
    );
    take.push(delete, values);
    if !keys.is_empty() {
        successors_step(&mut take, &keys);
    }
    let mut done = take.run(conn).await?;
    let found = if keys.is_empty() { Vec::new() } else { done.pop().map_or_else(Vec::new, |step| step.rows) };
    let taken = done.last().map_or(0, |deleted| deleted.affected);
    let locked: usize = done.iter().map(|step| step.rows.len()).sum();
    let ordered = sorted.iter().filter(|success| success.opened.order_key.is_some()).count();
    let successors = if taken == ids.len() as u64 && locked == keys.len() && ordered == keys.len() {
        Successor::read_all(conn, &found, &heads).await?
    } else {
        None
    };
    let Some(successors) = successors else {
        sqlx::raw_sql("ROLLBACK").execute(conn).await?;
        return Ok(None);
    };

    let mut write = Script::about(sorted.len(), bytes);
    // SYSDATE is read after the locks are taken, so a request that was made while this statement waited comes before
    // the end. GREATEST makes sure that an attempt does not end before it began when the clock was set back.
    let ledger = [
        "INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict, end_state, \
         result) VALUES",
        "(?,?,?,?,?,?,GREATEST(SYSDATE(6), TIMESTAMP(?)),'succeeded','completed',?)",
        "",
    ];
    write.insert(
        ledger,
        &sorted,
        |success| success.bytes(),
        |success, values| {
            let (item, opened) = (success.item, success.opened);
            values.extend([
                Value::from(item.id.uuid()),
                item.number.into(),
                opened.burned.into(),
                opened.runner.as_str().into(),
                opened.execute_at.into(),
                opened.started_at.into(),
                opened.started_at.into(),
                item.result.as_ref().map(|raw| raw.get()).into(),
            ]);
        },
    );
    let mut ended: BTreeMap<(&Name, &Name), i64> = BTreeMap::new();
    for success in &sorted {
        *ended.entry((&success.opened.queue, &success.opened.kind)).or_default() += 1;
    }
    let counts = ended.into_iter().map(|((queue, kind), n)| (queue, kind, State::Completed, n)).collect();
    let counts = Counts::new(lane, counts);
    insert_logs_step(&mut write, &logs);
    let mut changes = BatchChanges::default();
    for batch in sorted.iter().filter_map(|success| success.opened.batch) {
        changes.of(batch.uuid()).completed += 1;
    }
    let linked = if changes.is_empty() { 0 } else { IN_BATCH };
    changes.add_step(&mut write);
    let mut claim = claims.and_then(|claims| SuccessorClaim::new(claims, &sorted, &successors));
    if let Some(claim) = &claim {
        claim.add_steps(&mut write);
    }
    if !successors.is_empty() {
        heads_step(&mut write, &successors);
        // A job that was claimed has its due time by now, and is not held any more. So this meets those that were not.
        due_steps(&mut write, &successors);
    }
    let ending = sorted.iter().filter(|success| frees && !success.opened.slots.is_empty());
    let ending: Vec<(Uuid, &[LimitKey])> =
        ending.map(|success| (success.item.id.uuid(), &*success.opened.slots)).collect();
    // The tallies come last, because this may wait for the row of a next job, which another session locks, and the ends
    // of all other jobs of the kind must not wait for that.
    let commits_at_once = ending.is_empty() && write.is_one_request();
    if commits_at_once {
        counts.add_step(&mut write);
        // MySQL does not go on to it when a statement before it fails.
        write.push("COMMIT", Vec::new());
    }
    let written = write.run(conn).await?;
    if let Some(claim) = &mut claim {
        claim.answered(written.iter().flat_map(|step| &step.rows))?;
    }
    let (freed, mut claim_of_parked) = match free_and_claim(conn, (&sorted, &ending), claims, &known.now()).await {
        Ok(done) => done,
        // The slower way settles the attempts, and leaves their slots.
        Err(error) if is_about_limits(&error) => {
            sqlx::raw_sql("ROLLBACK").execute(conn).await?;
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    if !commits_at_once {
        let claimed = claim.as_ref().or(claim_of_parked.as_ref());
        if let (Some(claim), Some(limits)) = (claimed, &limits)
            && claim.follows_old_limits(conn, limits).await?
        {
            sqlx::raw_sql("ROLLBACK").execute(conn).await?;
            return Ok(None);
        }
        counts.commit(conn).await?;
    }
    let mut released: Vec<DueJob> = successors.into_iter().filter_map(Successor::released).collect();
    if let Some(claim) = &claim {
        released.retain(|job| !claim.won.contains_key(&job.id));
    }
    let is_claimed = |job: &DueJob| claim_of_parked.as_ref().is_some_and(|claim| claim.won.contains_key(&job.id));
    released.extend(freed.let_go.into_iter().filter(|job| !is_claimed(job)));
    if let Some(limits) = &limits {
        if let Some(claim) = &mut claim {
            claim.leave_what_a_limit_concerns(conn, limits).await?;
        }
        if let Some(claim) = &mut claim_of_parked {
            claim.look_again(conn, limits).await?;
        }
    }
    Ok(Some(Completed { released, claim, claim_of_parked, linked, freed: freed.jobs }))
}

/// Free the slots of these attempts, as the last that the transaction may have to wait for, and claim parked jobs that
/// have room then.
async fn free_and_claim<'a>(
    conn: &mut Session<'_>,
    (successes, ending): (&[&Success<'_>], &[(Uuid, &[LimitKey])]),
    claims: Option<&'a Arc<Claims>>,
    limits: &[LimitSetting],
) -> Result<(FreedWithEnds, Option<SuccessorClaim<'a>>), sqlx::Error> {
    let freed = free_with_ends(conn, ending, limits).await?;
    let claim = match claims {
        Some(claims) => SuccessorClaim::of_let_go(conn, claims, successes, &freed.let_go, limits).await?,
        None => None,
    };
    Ok((freed, claim))
}

/// Return whether an error of a statement about limits is about them, and not about the connection or a conflict:
/// another run would end in the same way.
fn is_about_limits(error: &sqlx::Error) -> bool {
    let is_refused = || matches!(fault(error), Fault::Refused | Fault::Unfit | Fault::Duplicate);
    is_unreadable(error) || waited_for_lock(error) || is_refused()
}

/// Return whether an error says that this version cannot read a row.
fn is_unreadable(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. })
}

/// The claim of the next jobs of order keys, or of limit keys, in the transaction that ends the jobs in front of them.
///
/// Each run of a batch has a token of its own. When a run gets no answer or fails later, its claims are given back,
/// because no later run can tell whether they were committed.
pub(crate) struct SuccessorClaim<'a> {
    claims: &'a Arc<Claims>,
    token: AttemptToken,
    batch: Uuid,
    /// The job in front of each job that is claimed.
    front_of: HashMap<JobId, JobId>,
    /// The jobs that are claimed, in order. Empty when they are handed out.
    ids: Vec<Uuid>,
    /// The claims that were answered.
    won: ClaimsById,
    /// Those for which a limit had no room after the COMMIT.
    without_room: Vec<JobId>,
    /// When they are due, if they were held.
    execute_at: Timestamp,
    bytes: Vec<u8>,
}

impl<'a> SuccessorClaim<'a> {
    /// Choose the jobs to claim: those in the same queue as the job in front of them, whose permit they need. A job to
    /// which a limit may apply goes the usual way.
    fn new(claims: &'a Arc<Claims>, successes: &[&Success<'_>], successors: &[Successor]) -> Option<Self> {
        let asks = |success: &&&Success<'_>| success.successor_for.is_some_and(|of| Arc::ptr_eq(of, claims));
        let front: HashMap<&[u8], &Success<'_>> = successes
            .iter()
            .filter(asks)
            .filter_map(|success| Some((success.opened.order_key.as_ref()?.as_bytes(), *success)))
            .collect();
        // Those that were due before they were at the head are due now, all at the same time. The others come later.
        let execute_at = successors.iter().filter_map(Successor::of_key).map(|(_, job)| job.execute_at).min()?;
        let mut front_of = HashMap::new();
        for (key, job) in successors.iter().filter_map(Successor::of_key) {
            let Some(front) = front.get(key).filter(|_| job.execute_at == execute_at) else { continue };
            if front.opened.queue == job.queue && !claims.limits.concern(Some(&job.queue)) {
                front_of.insert(job.id, front.item.id);
            }
        }
        Self::of(claims, front_of, execute_at)
    }

    /// Claim jobs that were let go in this transaction: for each attempt that ends, whose seat and permit it needs, one
    /// job in the same queue. The keys of the jobs are locked. Jobs under several limits or a rate go the usual way.
    async fn of_let_go(
        conn: &mut Session<'_>,
        claims: &'a Arc<Claims>,
        successes: &[&Success<'_>],
        let_go: &[DueJob],
        limits: &[LimitSetting],
    ) -> Result<Option<Self>, sqlx::Error> {
        let mut fronts: BTreeMap<&Name, Vec<JobId>> = BTreeMap::new();
        for success in successes {
            let asks = success.successor_for.is_some_and(|of| Arc::ptr_eq(of, claims));
            if asks && !success.opened.slots.is_empty() && success.opened.order_key.is_none() {
                fronts.entry(&success.opened.queue).or_default().push(success.item.id);
            }
        }
        if fronts.is_empty() || let_go.is_empty() {
            return Ok(None);
        }
        let ids: Vec<Uuid> = let_go.iter().map(|job| job.id.uuid()).collect();
        let mut keys = under_one_limit(conn, &ids, limits).await?;
        let mut front_of = HashMap::new();
        for job in let_go.iter().filter(|job| keys.contains_key(&job.id.uuid())) {
            if let Some(front) = fronts.get_mut(&job.queue).and_then(Vec::pop) {
                front_of.insert(job.id, front);
            }
        }
        keys.retain(|id, _| front_of.contains_key(&JobId::from_uuid(*id)));
        let Some(mut claim) = Self::of(claims, front_of, Timestamp::default()) else { return Ok(None) };
        let (of_jobs, of_claim) = ((claim.ids.as_slice(), claim.bytes.as_slice()), (claim.token, claim.batch));
        let won = claim_let_go(conn, claims, of_jobs, &keys, of_claim).await?;
        claim.won = won;
        Ok(Some(claim))
    }

    fn of(claims: &'a Arc<Claims>, front_of: HashMap<JobId, JobId>, execute_at: Timestamp) -> Option<Self> {
        let mut ids: Vec<Uuid> = front_of.keys().map(|id| id.uuid()).collect();
        ids.sort_unstable();
        let bytes = ids.iter().flat_map(|id| *id.as_bytes()).collect();
        let (token, batch) = (AttemptToken::new(), Uuid::now_v7());
        (!ids.is_empty()).then_some(Self {
            claims,
            token,
            batch,
            front_of,
            ids,
            won: ClaimsById::default(),
            without_room: Vec::new(),
            execute_at,
            bytes,
        })
    }

    /// Add the steps of the claim. A job that may have to wait for a worker is not claimed for its last attempt.
    fn add_steps<'s>(&'s self, script: &mut Script<'s>) {
        self.claims.claim_held_step(script, &self.ids, self.execute_at, self.token);
        self.claims.batch_step(script, &self.bytes, self.token, self.batch);
        read_step(script, &self.ids, self.token);
    }

    /// Return whether a limit has changed while the claim waited for a row: see [`LimitsOfClaim`]. The slower way then
    /// settles the attempts, and claims nothing.
    async fn follows_old_limits(&self, conn: &mut Session<'_>, limits: &LimitsOfClaim) -> Result<bool, sqlx::Error> {
        match limits.have_changed(conn, &self.claims.limits).await {
            // A limit that this version cannot read must not cost an attempt its verdict.
            Err(error) if is_unreadable(&error) => Ok(true),
            looked => looked,
        }
    }

    /// Leave the jobs that a limit concerns by now, after a request that may have waited for a row, for a tally or for the
    /// disk of the server. No limit concerned a next job of an order key when the claim began, so it counts nowhere: not
    /// against a concurrency, a rate or a breaker that was set meanwhile. It is given back, and the usual claim counts it.
    async fn leave_what_a_limit_concerns(
        &mut self,
        conn: &mut Session<'_>,
        limits: &LimitsOfClaim,
    ) -> Result<(), sqlx::Error> {
        let known = &self.claims.limits;
        let changed = match limits.have_changed(conn, known).await {
            Err(error) if fault(&error) != Fault::Reconnect => {
                tracing::warn!(%error, "cannot read the limits after a claim, giving back what they may concern");
                true
            }
            looked => looked?,
        };
        if changed {
            let is_concerned = |claim: &Claim| match claim {
                Claim::Won(claimed) => known.concern(Some(&claimed.queue)),
                _ => false,
            };
            let without: HashSet<JobId> =
                self.won.iter().filter(|(_, claim)| is_concerned(claim)).map(|(id, _)| *id).collect();
            self.won.retain(|id, _| !without.contains(id));
            self.without_room.extend(without);
        }
        Ok(())
    }

    /// Look at the limits once more after the COMMIT, which may have waited for a tally or for the disk of the server, and
    /// keep only the parked jobs that may start. A failure costs no verdict: the next run finds that the attempts have
    /// ended, and the claims are given back.
    async fn look_again(&mut self, conn: &mut Session<'_>, limits: &LimitsOfClaim) -> Result<(), sqlx::Error> {
        if limits.took_long() {
            let won: Vec<Uuid> = self.won.keys().map(|id| id.uuid()).collect();
            let without = without_room(conn, &won, (Some(limits), &self.claims.limits)).await?;
            self.won.retain(|id, _| !without.contains(id));
            self.without_room.extend(without);
        }
        Ok(())
    }

    /// Read the rows of the claim.
    fn answered<'r>(&mut self, rows: impl Iterator<Item = &'r MySqlRow>) -> Result<(), sqlx::Error> {
        self.won = self.claims.claims_in(rows, self.token)?;
        Ok(())
    }

    /// Return the claims, by the job in front, when the whole batch is written.
    pub(crate) fn hand_out(mut self) -> ClaimsById {
        let won: Vec<JobId> = self.won.keys().copied().collect();
        let left = std::mem::take(&mut self.without_room);
        if left.is_empty() {
            self.claims.open.won(self.batch, self.token, &won);
        } else {
            self.claims.open.won_in_part(self.token, &won);
        }
        self.claims.open.leave(Unstarted { token: self.token, ids: left, why: NO_ROOM });
        self.ids.clear();
        let won = std::mem::take(&mut self.won);
        won.into_iter().filter_map(|(id, claim)| Some((*self.front_of.get(&id)?, claim))).collect()
    }
}

impl Drop for SuccessorClaim<'_> {
    fn drop(&mut self) {
        if !self.ids.is_empty() {
            let ids: Vec<JobId> = self.ids.iter().copied().map(JobId::from_uuid).collect();
            self.claims.open.gave_up(self.token, &ids);
        }
    }
}

fn pair(item: &Settlement) -> [u8; 32] {
    let mut pair = [0; 32];
    pair[..16].copy_from_slice(item.id.uuid().as_bytes());
    pair[16..].copy_from_slice(item.token.uuid().as_bytes());
    pair
}
