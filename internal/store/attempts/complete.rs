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
//!
//! The jobs of one key follow each other strictly, so their speed is that of this transaction. A job that was claimed in
//! this way knows those behind it, and is settled in one request, together with the claim of the next one
//! ([`Ends::and_next`]). If something is not as it was, a guard stops the transaction, and the slower way follows.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::attempts::claim::{Claim, Claims, ClaimsById, Opened, read_step};
use crate::attempts::claim_batches::{Late, NO_ROOM, Unstarted};
use crate::attempts::limited::{FreedWithEnds, claim_let_go, free_with_ends, under_one_limit, without_room};
use crate::attempts::settlement::{CheckpointUse, SettleRequest, Settlement};
use crate::rows::attempt_logs::{AttemptLogRow, insert_logs_step};
use crate::rows::checkpoints::HAS_CHECKPOINT;
use crate::rows::limits::{KnownLimits, LimitKey, LimitSetting, LimitsOfClaim};
use crate::rows::links::{AWAITED, BatchChanges, IN_BATCH};
use crate::rows::order::{
    Behind, Successor, behind_step, due_steps, heads_step, lock_step, pass_head_step, successors_step,
};
use crate::rows::owed::{DEFERRED, DueJob, RESTS};
use crate::rows::tallies::Counts;
use crate::sql::connection::is_in_cluster;
use crate::sql::error::{Fault, certainly_rolled_back, fault, waited_for_lock};
use crate::sql::script::{Script, StepResult, Value, if_changed, is_guarded};
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
    let ends = Ends::of(successes);
    if let (Some(limits), false) = (&limits, frees)
        && let Some((mut claim, linked)) = ends.and_next(conn, lane).await?
    {
        claim.leave_what_a_limit_concerns(conn, limits).await?;
        return Ok(Some(Completed { claim: Some(claim), linked, ..Completed::default() }));
    }
    let sorted = &ends.sorted;
    let mut take = ends.script();
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
    ends.take_step(&mut take, "");
    if !keys.is_empty() {
        successors_step(&mut take, &keys);
    }
    let mut done = take.run(conn).await?;
    let found = if keys.is_empty() { Vec::new() } else { done.pop().map_or_else(Vec::new, |step| step.rows) };
    let taken = done.last().map_or(0, |deleted| deleted.affected);
    let locked: usize = done.iter().map(|step| step.rows.len()).sum();
    let ordered = sorted.iter().filter(|success| success.opened.order_key.is_some()).count();
    let successors = if taken == sorted.len() as u64 && locked == keys.len() && ordered == keys.len() {
        Successor::read_all(conn, &found, &heads).await?
    } else {
        None
    };
    let Some(successors) = successors else {
        sqlx::raw_sql("ROLLBACK").execute(conn).await?;
        return Ok(None);
    };

    let (mut write, counts) = (ends.script(), ends.counts(lane));
    let linked = ends.record_steps(&mut write, "?");
    let mut claim = claims.and_then(|claims| SuccessorClaim::new(claims, sorted, &successors));
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
        claim.answered(&written)?;
    }
    let (freed, mut claim_of_parked) = match free_and_claim(conn, (sorted, &ending), claims, &known.now()).await {
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

/// The ends of a batch of successes, by id.
struct Ends<'b, 'a> {
    sorted: Vec<&'b Success<'a>>,
    ids: Vec<Uuid>,
    /// The fence is the pair of id and token. The token alone is not enough: it belongs to a whole batch of claims, and
    /// one job of that batch may have a newer attempt. The primary key of the ledger is a second fence: a lost attempt
    /// has its row there, and MySQL refuses another one.
    pairs: Vec<[u8; 32]>,
    logs: Vec<AttemptLogRow<'a>>,
    bytes: usize,
}

impl<'b, 'a> Ends<'b, 'a> {
    fn of(successes: &'b [Success<'a>]) -> Self {
        let mut sorted: Vec<&Success<'_>> = successes.iter().collect();
        sorted.sort_unstable_by_key(|success| success.item.id);
        let logs: Vec<AttemptLogRow<'_>> = sorted.iter().filter_map(|success| success.log()).collect();
        let bytes = sorted.iter().map(|success| success.bytes()).sum::<usize>();
        let bytes = bytes + logs.iter().map(AttemptLogRow::bytes).sum::<usize>();
        let ids = sorted.iter().map(|success| success.item.id.uuid()).collect();
        let pairs = sorted.iter().map(|success| pair(success.item)).collect();
        Self { sorted, ids, pairs, logs, bytes }
    }

    fn script<'s>(&self) -> Script<'s> {
        Script::about(self.sorted.len(), self.bytes)
    }

    /// Add the step that deletes the rows of those whose attempts still hold their jobs. `guard` is one more condition.
    fn take_step<'s>(&'s self, script: &mut Script<'s>, guard: &str) {
        let pairs: Vec<&[u8]> = self.pairs.iter().map(<[u8; 32]>::as_slice).collect();
        let ((ids_list, mut values), (pairs_list, pairs)) = (script.list(&self.ids), script.list(&pairs));
        values.extend(pairs);
        values.push(i64::try_from(self.ids.len()).unwrap_or(i64::MAX).into());
        // A single-table DELETE accepts no index hint. The ORDER BY and the LIMIT have the same effect.
        let delete = format!(
            "DELETE FROM owed WHERE id IN {ids_list} AND CONCAT(id, token) IN {pairs_list} AND cancel_requested_at IS NULL \
             AND links < {AWAITED}{guard} ORDER BY id LIMIT ?"
        );
        script.push(delete, values);
    }

    /// Add the steps that write the ledger, the logs and the changes of batches. `number` stands for the number of an
    /// attempt. Return the links of the jobs.
    fn record_steps<'s>(&'s self, script: &mut Script<'s>, number: &str) -> u8 {
        // SYSDATE is read after the locks are taken, so a request that was made while this statement waited comes before
        // the end. GREATEST makes sure that an attempt does not end before it began when the clock was set back.
        let tuple = format!("(?,{number},?,?,?,?,GREATEST(SYSDATE(6), TIMESTAMP(?)),'succeeded','completed',?)");
        let ledger = [
            "INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict, \
             end_state, result) VALUES",
            &tuple,
            "",
        ];
        script.insert(
            ledger,
            &self.sorted,
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
        insert_logs_step(script, &self.logs);
        let mut changes = BatchChanges::default();
        for batch in self.sorted.iter().filter_map(|success| success.opened.batch) {
            changes.of(batch.uuid()).completed += 1;
        }
        let linked = if changes.is_empty() { 0 } else { IN_BATCH };
        changes.add_step(script);
        linked
    }

    fn counts(&self, lane: u8) -> Counts<'a> {
        let mut ended: BTreeMap<(&'a Name, &'a Name), i64> = BTreeMap::new();
        for success in &self.sorted {
            *ended.entry((&success.opened.queue, &success.opened.kind)).or_default() += 1;
        }
        let counts = ended.into_iter().map(|((queue, kind), n)| (queue, kind, State::Completed, n)).collect();
        Counts::new(lane, counts)
    }

    /// Return the only one that has an order key, if it knows the job behind it and that one may be claimed.
    fn in_line(&self) -> Option<(&'b Success<'a>, &'a Arc<Claims>, Behind)> {
        let mut in_line = self.sorted.iter().copied().filter(|success| success.opened.order_key.is_some());
        let (front, None) = (in_line.next()?, in_line.next()) else { return None };
        let (claims, behind) = (front.successor_for?, front.opened.behind.first()?);
        (!claims.limits.concern(Some(&front.opened.queue))).then_some((front, claims, *behind))
    }

    /// Settle all of them, and claim the job behind the only one that has an order key, in one request. Return the claim
    /// and the links of the jobs. Returns nothing, with nothing written, if there is no such job, or if the request was
    /// stopped by a guard:
    ///
    /// - The head of the key is not at the job that ends. Then the DELETE meets no row.
    /// - The DELETE met fewer rows than there are ends: a token no longer holds its job, or a cancel was requested.
    /// - The job behind was not claimed. It has left its place, or it may not start here and now.
    ///
    /// On a node of a cluster each statement is a request of its own, so there is nothing to gain.
    async fn and_next(
        &self,
        conn: &mut Session<'_>,
        lane: u8,
    ) -> Result<Option<(SuccessorClaim<'a>, u8)>, sqlx::Error> {
        let Some((front, claims, behind)) = self.in_line() else { return Ok(None) };
        let mut script = self.script();
        if !script.is_one_request() || is_in_cluster() {
            return Ok(None);
        }
        let Some(mut claim) = SuccessorClaim::of_behind(claims, front, behind) else { return Ok(None) };
        let key = front.opened.order_key.as_deref().unwrap_or_default();
        let counts = self.counts(lane);
        script.push("BEGIN", Vec::new());
        // Before any other row.
        pass_head_step(&mut script, key.as_bytes(), behind);
        self.take_step(&mut script, " AND ROW_COUNT() = 1");
        let linked = self.record_steps(&mut script, &if_changed(self.ids.len()));
        claim.add_guarded_steps(&mut script, behind, &front.opened.queue);
        // The tallies come last, because this may wait for the row of the next job, as in the slower way.
        counts.add_step(&mut script);
        script.push("COMMIT", Vec::new());
        match script.run(conn).await {
            Ok(done) => {
                claim.answered(&done)?;
                Ok(Some((claim, linked)))
            }
            Err(error) if is_guarded(&error) => {
                claim.forget();
                sqlx::raw_sql("ROLLBACK").execute(conn).await?;
                Ok(None)
            }
            Err(error) => {
                if certainly_rolled_back(&error) {
                    claim.forget();
                }
                Err(error)
            }
        }
    }
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
    /// The order key and the place of the job, if it is the only one.
    place: Option<(Arc<str>, i64)>,
    /// The jobs behind it, as far as they are known.
    behind: Vec<Behind>,
    /// Whether the claim is in one request with all that comes before it.
    is_one_request: bool,
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
        let execute_at = successors.iter().filter_map(Successor::of_key).map(|(_, _, job)| job.execute_at).min()?;
        let (mut front_of, mut last) = (HashMap::new(), None);
        for (key, place, job) in successors.iter().filter_map(Successor::of_key) {
            let Some(front) = front.get(key).filter(|_| job.execute_at == execute_at) else { continue };
            if front.opened.queue == job.queue && !claims.limits.concern(Some(&job.queue)) {
                front_of.insert(job.id, front.item.id);
                last = front.opened.order_key.clone().map(|key| (key, place));
            }
        }
        // With many keys, each commit is shared by many jobs, and a look at the job behind each would cost more than it
        // saves.
        let place = last.filter(|_| front_of.len() == 1);
        let mut claim = Self::of(claims, front_of, execute_at)?;
        claim.place = place;
        Some(claim)
    }

    /// Claim the job behind this one, which is in the same queue.
    fn of_behind(claims: &'a Arc<Claims>, front: &Success<'_>, behind: Behind) -> Option<Self> {
        let front_of = HashMap::from([(JobId::from_uuid(behind.id), front.item.id)]);
        let mut claim = Self::of(claims, front_of, Timestamp::default())?;
        claim.place = front.opened.order_key.clone().map(|key| (key, behind.place));
        claim.is_one_request = true;
        claim.behind = front.opened.behind.iter().skip(1).copied().collect();
        Some(claim)
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
            place: None,
            behind: Vec::new(),
            is_one_request: false,
        })
    }

    /// Add the steps of the claim. A job that may have to wait for a worker is not claimed for its last attempt.
    fn add_steps<'s>(&'s self, script: &mut Script<'s>) {
        self.claims.claim_held_step(script, &self.ids, self.execute_at, self.token);
        self.claims.batch_step(script, &self.bytes, self.token, self.batch);
        self.add_read_step(script);
    }

    /// Add the steps of the claim of the job behind. They fail unless it is claimed.
    fn add_guarded_steps<'s>(&'s self, script: &mut Script<'s>, behind: Behind, queue: &'s Name) {
        self.claims.claim_behind_step(script, behind, queue, self.token);
        self.claims.guarded_batch_step(script, &self.bytes, self.token, self.batch);
        self.add_read_step(script);
    }

    fn add_read_step<'s>(&'s self, script: &mut Script<'s>) {
        read_step(script, &self.ids, self.token);
        if let Some((key, place)) = self.place.as_ref().filter(|_| self.behind.is_empty()) {
            behind_step(script, key.as_bytes(), *place);
        }
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

    /// Read the rows of the claim. No other step of its script returns rows.
    fn answered(&mut self, done: &[StepResult]) -> Result<(), sqlx::Error> {
        let rows = done.iter().flat_map(|step| &step.rows);
        let (behind, claimed): (Vec<&MySqlRow>, Vec<&MySqlRow>) = rows.partition(|row| Behind::is_in(row));
        self.won = self.claims.claims_in(claimed.into_iter(), self.token)?;
        if let Some((_, place)) = &self.place {
            if !behind.is_empty() {
                self.behind = Behind::read_all(&behind, *place);
            }
            for claim in self.won.values_mut() {
                if let Claim::Won(claimed) = claim {
                    claimed.behind = std::mem::take(&mut self.behind);
                }
            }
        }
        Ok(())
    }

    /// Forget a claim that was not committed.
    fn forget(&mut self) {
        self.ids.clear();
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
        self.claims.open.leave(Unstarted { token: self.token, ids: left, why: NO_ROOM, late: Late::Never });
        self.ids.clear();
        let won = std::mem::take(&mut self.won);
        won.into_iter().filter_map(|(id, claim)| Some((*self.front_of.get(&id)?, claim))).collect()
    }
}

impl Drop for SuccessorClaim<'_> {
    fn drop(&mut self) {
        if !self.ids.is_empty() {
            let ids: Vec<JobId> = self.ids.iter().copied().map(JobId::from_uuid).collect();
            if self.is_one_request {
                self.claims.open.gave_up_early(self.token, &ids);
            } else {
                self.claims.open.gave_up(self.token, &ids);
            }
        }
    }
}

fn pair(item: &Settlement) -> [u8; 32] {
    let mut pair = [0; 32];
    pair[..16].copy_from_slice(item.id.uuid().as_bytes());
    pair[16..].copy_from_slice(item.token.uuid().as_bytes());
    pair
}
