//! Claims of jobs that count against limits by key, and the end of their slots.
//!
//! A claim locks the keys first, and counts. A job without room is parked in the same transaction, so no runner takes its
//! id again before there is room. The transaction that ends an attempt with success frees its slot, if no other session
//! locks its keys at that moment ([`free_with_ends`]). Every other slot is freed in a transaction of its own after the
//! settlement ([`FreedSlots`]): so a settlement waits for no key, and a slot is never free too early. If a runner dies
//! in between, another one frees the slot within a second or two ([`Store::sweep_limits`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::attempts::breakers::{EndedCall, Turned, count_calls, counted, mark_counted};
use crate::attempts::claim::{Claim, Claims, ClaimsById, NOT_EXPIRED, among, gone, read_step};
use crate::attempts::claim_batches::{Late, NO_ROOM, Unstarted};
use crate::rows::limits::{
    DELETE_SLOTS, FairShare, HELD_DUE_AT, KEPT_AT_MOST_S, KEYS_READ, KeyBounds, KeyState, KnownLimits, LimitKey,
    LimitSetting, LimitsOfClaim, SLOTS, ToPark, WAITS, add_keys, begin_with, begin_with_free, begin_within_a_second,
    count_parked, delete_slots_steps, free_and_let_go, free_slots_kept_in_vain, free_slots_of, kept_in_vain, key_in,
    keys_of, keys_of_limit, keys_of_rows, keys_with_parked_jobs, let_go, let_go_at, let_paused_leave, let_uncovered_go,
    lines_behind_paused_jobs, lock_free_keys, lock_keys, lock_those_that_are_free, lock_within_a_second, not_among,
    park_owed, park_step, parked_until, slots_by_key, state_step, states_in, take_back, without_rows, write_rates,
};
use crate::rows::owed::{DueJob, SKIP_LOCKED};
use crate::sql::batch::Batch;
use crate::sql::batches::{MAX_ROWS, Sql, statement};
use crate::sql::connection::{DbFuture, PriorRun, is_in_cluster, on_pool, transact, transact_unless_locked};
use crate::sql::error::{Fault, again, corrupt, fault};
use crate::sql::script::{Script, Value};
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{AttemptToken, CountedBy, JobId, Name, SharedBy, Timestamp};

/// A job to claim that counts against limits.
pub(super) struct Limited {
    pub(super) id: Uuid,
    execute_at: Timestamp,
    keys: Vec<(LimitKey, KeyBounds)>,
}

/// Jobs to claim, by whether a limit applies to them. A job that a limit concerns and that is not due is in no part: it
/// may become due at any moment, so a claim without limits must not try it.
#[derive(Default)]
pub(super) struct Divided {
    /// No limit applies to these.
    pub(super) free: Vec<Uuid>,
    /// These are due, and limits apply to them.
    pub(super) limited: Vec<Limited>,
    /// Limits apply to these, and an earlier run of this claim, whose answer was lost, has claimed them.
    pub(super) ours: Vec<Limited>,
    /// The hosts of all of them, if a limit is shared by host.
    pub(super) hosts: BTreeMap<Uuid, Option<Vec<u8>>>,
}

/// Outcome of claims with limits.
#[derive(Default)]
pub(super) struct TakenLimited {
    pub(super) claims: ClaimsById,
    /// Jobs with a key that another session locks at this moment. They are to be claimed again, in claims that wait.
    pub(super) busy: HashSet<JobId>,
    /// Parked jobs that have a due time now.
    pub(super) let_go: Vec<DueJob>,
}

impl Claims {
    /// Find the jobs among these to which a limit applies.
    pub(super) async fn divide(
        &self,
        conn: &mut Session<'_>,
        ids: &[Uuid],
        limits: &[LimitSetting],
        token: AttemptToken,
    ) -> Result<Divided, sqlx::Error> {
        let mut script = Script::as_text();
        let counted_by = CountedColumns::of(limits);
        let (list, of_ids) = script.list(ids);
        let mut values = vec![Value::from(token.uuid())];
        values.extend(of_ids);
        let sql = format!(
            "SELECT o.id, o.kind, o.queue, o.execute_at, {}, o.state = 'executing' AND o.token = ? AS is_ours, \
             o.state IN ('waiting', 'retrying') AND o.execute_at <= UTC_TIMESTAMP(6) AND {NOT_EXPIRED} AS is_due \
             FROM owed o FORCE INDEX (PRIMARY) {} WHERE o.id IN {list}",
            counted_by.columns, counted_by.joins
        );
        script.push(sql, values);
        let found: Vec<MySqlRow> = script.run(conn).await?.into_iter().flat_map(|step| step.rows).collect();
        let mut divided = Divided::default();
        for row in &found {
            let id = row.try_get("id")?;
            if counted_by.has_hosts {
                divided.hosts.insert(id, row.try_get("host")?);
            }
            // A row that cannot be read is left to the claim without limits, which reports it.
            let name = |column| row.try_get::<&str, _>(column).ok().and_then(|name| name.parse::<Name>().ok());
            let keys = match (name("kind"), name("queue")) {
                (Some(kind), Some(queue)) => {
                    let (key, host) = (text(row, "limit_key")?, text(row, "host")?);
                    keys_of(limits, (&kind, &queue), CountedBy { limit_key: key.as_deref(), host: host.as_deref() })
                }
                _ => Vec::new(),
            };
            let job = Limited { id, execute_at: row.try_get("execute_at")?, keys };
            if job.keys.is_empty() {
                divided.free.push(id);
            } else if row.try_get("is_due")? {
                divided.limited.push(job);
            } else if row.try_get("is_ours")? {
                divided.ours.push(job);
            }
        }
        divided.free.sort_unstable();
        // The job that was due first gets the first slot.
        divided.limited.sort_by_key(|job| (job.execute_at, job.id));
        Ok(divided)
    }

    /// Read the jobs that an earlier run of this claim has claimed.
    pub(super) async fn read_ours(
        &self,
        conn: &mut Session<'_>,
        ours: &[Limited],
        token: AttemptToken,
    ) -> Result<ClaimsById, sqlx::Error> {
        let ids: Vec<Uuid> = ours.iter().map(|job| job.id).collect();
        let mut script = Script::as_text();
        read_step(&mut script, &ids, token);
        let done = script.run(conn).await?;
        let mut claims = self.claims_in(done.iter().flat_map(|step| &step.rows), token)?;
        name_slots(ours, &mut claims);
        Ok(claims)
    }

    /// Claim those of these jobs for which their limits have room, and park the others. With `skips_locked`, jobs whose rows
    /// another session locks are left out. Without `waits`, this waits for no lock of a key.
    pub(super) async fn take_limited(
        &self,
        conn: &mut Session<'_>,
        (jobs, limits): (&[Limited], &LimitsOfClaim),
        (sure, skips_locked, waits): (&[Uuid], bool, bool),
        token: AttemptToken,
        batch: Uuid,
    ) -> Result<TakenLimited, sqlx::Error> {
        let asked: BTreeSet<&LimitKey> = jobs.iter().flat_map(|job| job.keys.iter().map(|(key, _)| key)).collect();
        let asked: Vec<&LimitKey> = asked.into_iter().collect();
        let got = self.begin_with_keys(conn, &asked, waits, token).await?;
        let (jobs, left): (Vec<&Limited>, Vec<&Limited>) =
            jobs.iter().partition(|job| job.keys.iter().all(|(key, _)| got.contains(key)));
        let busy = if waits { HashSet::new() } else { self.busy(&asked, &left, &got) };
        let left = gone(&left.iter().map(|job| job.id).collect::<Vec<_>>());
        if jobs.is_empty() {
            sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
            return Ok(TakenLimited { claims: left, busy, let_go: Vec::new() });
        }
        let ids: Vec<Uuid> = jobs.iter().map(|job| job.id).collect();
        let keys: BTreeMap<&LimitKey, KeyBounds> =
            jobs.iter().flat_map(|job| job.keys.iter().map(|(key, bounds)| (key, *bounds))).collect();
        let sorted: Vec<&LimitKey> = keys.keys().copied().collect();
        let mut script = Script::as_text();
        self.fence_step(&mut script);
        if skips_locked {
            let (list, values) = script.list(&ids);
            let sql = format!(
                "SELECT id FROM owed FORCE INDEX (PRIMARY) WHERE id IN {list} AND state IN ('waiting', 'retrying') \
                 ORDER BY id FOR UPDATE{SKIP_LOCKED}"
            );
            script.push(sql, values);
        }
        let counted: Vec<&LimitKey> =
            keys.iter().filter(|(_, bounds)| bounds.counts_slots()).map(|(key, _)| *key).collect();
        state_step(&mut script, &sorted, &counted);
        // A key whose slots are not counted may keep some for these jobs.
        let reads_kept = counted.len() < sorted.len();
        if reads_kept {
            KeptFor::step(&mut script, &ids);
        }
        let mut done = script.run(conn).await?;
        let mut kept_for = KeptFor::default();
        if reads_kept {
            kept_for = KeptFor::in_rows(&done.pop().unwrap_or_default().rows)?;
        }
        let mut states = states_in(&done.pop().unwrap_or_default().rows)?;
        // Most keys keep no slots, and a look at those of each job would be in vain.
        if !reads_kept && states.values().any(|state| state.kept > 0) {
            kept_for = KeptFor::read(conn, &ids).await?;
        }
        let mut others = ClaimsById::default();
        if skips_locked {
            others = gone(&ids);
            for row in &done.pop().unwrap_or_default().rows {
                others.remove(&JobId::from_uuid(row.try_get("id")?));
            }
        }

        if keys.iter().any(|(key, bounds)| states.get(key).is_some_and(|state| !state.is_of(*bounds))) {
            // Two runners that follow different values of a limit in turn would start more than either allows. The jobs
            // are claimed again in a moment.
            sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
            self.limits.read_again(conn).await?;
            return Ok(TakenLimited::default());
        }

        // The starts of jobs that are admitted and then not claimed do not count.
        let mut rates = states.clone();
        let (mut admitted, mut refused) = (Vec::new(), BTreeMap::new());
        let mut probes: BTreeMap<&LimitKey, Uuid> = BTreeMap::new();
        for job in jobs.iter().copied().filter(|job| !others.contains_key(&JobId::from_uuid(job.id))) {
            match admit(job, &mut states, &kept_for, &mut probes)? {
                None => admitted.push(job.id),
                Some(key) => drop(refused.insert(job.id, key)),
            }
        }
        let mut script = Script::as_text();
        if !admitted.is_empty() {
            self.claim_step(&mut script, (&admitted, &among(sure, &admitted)), token);
            read_step(&mut script, &admitted, token);
        }
        let to_park: Vec<Uuid> = refused.keys().copied().collect();
        let (list, values) = script.list(&to_park);
        script.push(
            format!(
                "SELECT o.id, o.queue, o.execute_at, {HELD_DUE_AT} AS held_due_at FROM owed o FORCE INDEX (PRIMARY) \
                 WHERE o.id IN {list} AND o.state IN ('waiting', 'retrying') \
                 AND o.execute_at <= UTC_TIMESTAMP(6) ORDER BY o.id FOR UPDATE"
            ),
            values,
        );
        let reads_hosts = limits.hosts_step(&mut script, &ids);
        let mut done = script.run(conn).await?;
        let moved = reads_hosts && limits.moved(&done.pop().unwrap_or_default().rows)?;
        if moved || limits.have_changed(conn, &self.limits).await? {
            // The update has waited for a row. See `LimitsOfClaim`.
            sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
            return Ok(TakenLimited::default());
        }
        let still_due = done.pop().unwrap_or_default().rows;
        let mut claims = match done.pop() {
            Some(read) => self.claims_in(read.rows.iter(), token)?,
            None => ClaimsById::default(),
        };

        let won: Vec<&Limited> =
            jobs.iter().copied().filter(|job| claims.contains_key(&JobId::from_uuid(job.id))).collect();
        // The attempts have started a moment after the states were read, and the rate counts from their starts: otherwise a
        // period that begins with a late start would have room for more.
        let starts = claims.values().filter_map(|claim| match claim {
            Claim::Won(claimed) => Some(claimed.started_at),
            _ => None,
        });
        let started = starts.max();
        for (key, bounds) in won.iter().flat_map(|job| &job.keys) {
            if let Some(state) = rates.get_mut(key) {
                state.now = started.map_or(state.now, |started| started.max(state.now));
                state.start(*bounds);
            }
        }
        let bytes: Vec<u8> = won.iter().flat_map(|job| *job.id.as_bytes()).collect();
        let won_ids: Vec<Uuid> = won.iter().map(|job| job.id).collect();
        let queues: Vec<(Uuid, String, Timestamp)> = still_due
            .iter()
            .map(|row| {
                // A job that was let go keeps its place in the line: its due time may be the turn of a rate. The slot
                // that was kept for it may be lost by now, because its queue was paused or all workers were busy.
                let held_due_at: Option<Timestamp> = row.try_get("held_due_at")?;
                let due_at = held_due_at.map_or_else(|| row.try_get("execute_at"), Ok)?;
                Ok((row.try_get("id")?, row.try_get("queue")?, due_at))
            })
            .collect::<Result<_, sqlx::Error>>()?;
        let mut script = Script::as_text();
        if !won.is_empty() {
            self.batch_step(&mut script, &bytes, token, batch);
            // The slots that were kept for them become those of their attempts. Others that were read are left of a
            // time that is over. A sweep deletes the rest of those when the attempts have ended.
            let with_slots: Vec<Uuid> = won_ids.iter().copied().filter(|id| kept_for.with_slots.contains(id)).collect();
            if !with_slots.is_empty() {
                let (list, values) = script.list(&with_slots);
                script.push(format!("{DELETE_SLOTS} {list}"), values);
            }
            slots_step(&mut script, &won, token);
            write_rates(&mut script, &rates);
            for (key, id) in probes.iter().filter(|(_, id)| won_ids.contains(id)) {
                let values = vec![Value::from(*id), key.limit.as_str().into(), Value::from(key.key.as_bytes())];
                script.push("UPDATE limit_keys SET probe_job = ? WHERE limit_name = ? AND limit_key = ?", values);
            }
        }
        let parked: Vec<ToPark<'_>> = queues
            .iter()
            .filter_map(|(id, queue, due_at)| {
                let key = refused.get(id)?;
                Some(ToPark { id: *id, key, queue, due_at: (*due_at).into() })
            })
            .collect();
        if !parked.is_empty() {
            park_step(&mut script, &parked);
            // The slots of other limits that were kept for them are free as well.
            park_owed(&mut script, &parked);
            for job in &parked {
                count_parked(&job.key.limit);
            }
            claims.extend(parked.iter().map(|job| (JobId::from_uuid(job.id), Claim::Parked)));
        }
        let refused: Vec<(&Limited, &LimitKey)> =
            jobs.iter().filter_map(|job| Some((*job, *refused.get(&job.id)?))).collect();
        let next = keys_of_next_jobs(&won, &refused, &kept_for, &states);
        if next.is_empty() {
            script.push("COMMIT", Vec::new());
        }
        script.run(conn).await?;
        name_slots(won, &mut claims);
        for (id, claim) in &mut claims {
            if let Claim::Won(claimed) = claim {
                claimed.was_parked = kept_for.due.contains_key(&id.uuid());
            }
        }
        claims.extend(others);
        claims.extend(left);
        let mut freed = Vec::new();
        if !next.is_empty() {
            freed = let_go(conn, &next, &limits.followed).await?.0;
            if limits.have_changed(conn, &self.limits).await? {
                // It has waited for a parked job.
                sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
                return Ok(TakenLimited::default());
            }
            sqlx::raw_sql("COMMIT").execute(conn).await?;
        }
        Ok(TakenLimited { claims, busy, let_go: freed })
    }

    /// Look at the limits once more after the COMMIT, and leave the attempts that may not start: they are given back.
    /// Returns whether there are any. `limits` is what this claim knew about limits. It is None if an earlier run of
    /// it, which got no answer, has claimed some of the attempts: nothing says what that run knew, so this looks in any
    /// case.
    pub(super) async fn leave_without_room(
        &self,
        conn: &mut Session<'_>,
        claims: &mut ClaimsById,
        limits: Option<&LimitsOfClaim>,
        token: AttemptToken,
    ) -> Result<bool, sqlx::Error> {
        let won = claims.iter().filter(|(_, claim)| matches!(claim, Claim::Won(_)));
        let won: Vec<Uuid> = won.map(|(id, _)| id.uuid()).collect();
        let without = without_room(conn, &won, (limits, &self.limits)).await?;
        let leaves_some = !without.is_empty();
        self.open.leave(Unstarted { token, ids: without.iter().copied().collect(), why: NO_ROOM, late: Late::Never });
        claims.extend(without.into_iter().map(|id| (id, Claim::Gone)));
        Ok(leaves_some)
    }

    /// Begin the transaction of a claim with locks on these keys, unless the caller has begun it. Return those that it
    /// has: all but those that another session locks.
    async fn begin_with_keys(
        &self,
        conn: &mut Session<'_>,
        keys: &[&LimitKey],
        waits: bool,
        token: AttemptToken,
    ) -> Result<BTreeSet<LimitKey>, sqlx::Error> {
        if self.is_in_transaction() {
            // An earlier run that got no answer has ended: this one has the lock of the queue.
            return self.lock_beside_queue(conn, keys).await;
        }
        // An earlier run of this claim got no answer. It may have the locks, until its COMMIT has ended.
        if self.open.is_uncertain(token) {
            begin_with(conn, keys).await?;
            return Ok(keys.iter().copied().cloned().collect());
        }
        if !waits {
            return begin_with_free(conn, keys).await;
        }
        begin_within_a_second(conn, keys, self.limits.locked_keys()).await
    }

    /// Lock keys in a transaction that has locked a queue, and return those that it has.
    ///
    /// All claims of the queue wait for this one. So the first run locks only the keys that are free at once. If others
    /// are worth a wait or have no rows, it gives the queue back, waits and makes rows without it, and lets the claim
    /// begin anew. That run waits for a second at most, and only for keys that it had outside of the queue a moment
    /// before: a key that many runners lock in turn is hardly ever free at once. No other run waits.
    async fn lock_beside_queue(
        &self,
        conn: &mut Session<'_>,
        keys: &[&LimitKey],
    ) -> Result<BTreeSet<LimitKey>, sqlx::Error> {
        let known = self.limits.locked_keys();
        let had = self.next_may_wait_for(BTreeSet::new());
        let is_first = had.is_none();
        let had = had.unwrap_or_default();
        let living: Vec<&LimitKey> = keys.iter().copied().filter(|key| had.contains(*key)).collect();
        let mut got = BTreeSet::new();
        if !living.is_empty() {
            got = lock_within_a_second(conn, &living).await?;
        }
        let others = not_among(keys, &got);
        if !others.is_empty() {
            got.extend(lock_those_that_are_free(conn, &others).await?);
        }
        if is_first
            && got.len() < keys.len()
            && (!known.to_wait_for(keys, &got).is_empty() || !without_rows(conn, keys, &got).await?.is_empty())
        {
            sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
            let had = begin_within_a_second(conn, keys, known).await?;
            self.next_may_wait_for(had);
            return Err(again("the claim has waited for keys of limits"));
        }
        known.note(keys, &got);
        Ok(got)
    }

    /// Set the keys for which the next run of this claim may wait with the lock of a queue. Return those for which this
    /// one may, or nothing in the first run.
    fn next_may_wait_for(&self, keys: BTreeSet<LimitKey>) -> Option<BTreeSet<LimitKey>> {
        self.had_outside.lock().unwrap_or_else(PoisonError::into_inner).replace(keys)
    }

    /// Return the jobs that are to be claimed again at once, of those that were left out because this claim has not got
    /// all keys for which it asked. The others have a key that counts as locked. The reconciler brings them back.
    fn busy(&self, asked: &[&LimitKey], left: &[&Limited], got: &BTreeSet<LimitKey>) -> HashSet<JobId> {
        let known = self.limits.locked_keys();
        known.note(asked, got);
        let locked = known.among(asked);
        let is_locked = |job: &Limited| job.keys.iter().any(|(key, _)| locked.contains(key));
        left.iter().filter(|job| !is_locked(job)).map(|job| JobId::from_uuid(job.id)).collect()
    }
}

/// The columns by which these limits count jobs, and the joins that they need. Rows of `jobs` are read only if a limit is
/// shared by host, because they are wide.
struct CountedColumns {
    columns: &'static str,
    joins: &'static str,
    has_hosts: bool,
}

impl CountedColumns {
    fn of(limits: &[LimitSetting]) -> Self {
        if limits.iter().any(|set| set.limit.shared_by == SharedBy::Host) {
            let joins = "STRAIGHT_JOIN jobs j ON j.id = o.id LEFT JOIN job_limit_keys l ON l.job_id = o.id";
            Self { columns: "l.limit_key, j.host", joins, has_hosts: true }
        } else {
            let joins = "LEFT JOIN job_limit_keys l ON l.job_id = o.id";
            Self { columns: "l.limit_key, NULL AS host", joins, has_hosts: false }
        }
    }
}

fn text(row: &MySqlRow, column: &str) -> Result<Option<String>, sqlx::Error> {
    let bytes: Option<Vec<u8>> = row.try_get(column)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// The jobs that were let go, and the keys that keep slots for them.
#[derive(Default)]
struct KeptFor {
    slots: BTreeSet<(LimitKey, Uuid)>,
    /// When they were due, apart from the turn of a rate. None if a binary from before `limit_holds` let one go.
    due: BTreeMap<Uuid, Option<Timestamp>>,
    /// The jobs that have slots of any sort.
    with_slots: BTreeSet<Uuid>,
}

impl KeptFor {
    /// Read what is kept for these jobs.
    async fn read(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<Self, sqlx::Error> {
        let mut script = Script::as_text();
        Self::step(&mut script, ids);
        Self::in_rows(&script.run(conn).await?.pop().unwrap_or_default().rows)
    }

    /// Add the step that reads what is kept for these jobs.
    fn step(script: &mut Script<'_>, ids: &[Uuid]) {
        let (list, values) = script.list(ids);
        let sql = format!(
            "SELECT s.limit_name, s.limit_key, s.job_id, COALESCE(s.kept_until > UTC_TIMESTAMP(6), FALSE) AS is_kept, \
             (SELECT h.due_at FROM limit_holds h FORCE INDEX (PRIMARY) WHERE h.job_id = s.job_id \
             ORDER BY h.attempt DESC LIMIT 1) AS due_at \
             FROM limit_slots s FORCE INDEX (limit_slots_job) WHERE s.job_id IN {list}"
        );
        script.push(sql, values);
    }

    fn in_rows(rows: &[MySqlRow]) -> Result<Self, sqlx::Error> {
        let (mut slots, mut due, mut with_slots) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
        for row in rows {
            let id: Uuid = row.try_get("job_id")?;
            with_slots.insert(id);
            if row.try_get::<i64, _>("is_kept")? != 0 {
                slots.insert((key_in(row)?, id));
                due.insert(id, row.try_get("due_at")?);
            }
        }
        Ok(Self { slots, due, with_slots })
    }

    fn has(&self, key: &LimitKey, id: Uuid) -> bool {
        self.slots.contains(&(key.clone(), id))
    }

    fn due_at(&self, id: Uuid) -> Option<Timestamp> {
        self.due.get(&id).copied().flatten()
    }
}

/// Return the keys whose next parked jobs a claim lets go. `won` have started, `refused` are parked, each at a key.
///
/// - A start makes the next one of its rate due, and a job that is parked at a rate gets its turn.
/// - A slot that a key kept for a job is free when another key refuses the job, and the next job of the line may have
///   room there. But if as many jobs or more share the other key, they mostly find no room there either, and the whole
///   line would go to it. So only a narrower key counts: jobs may go from wide keys to narrow ones at once, and back only
///   when an attempt ends, or with a sweep.
/// - A job that has room and waits behind another one shows that the other one may start.
fn keys_of_next_jobs(
    won: &[&Limited],
    refused: &[(&Limited, &LimitKey)],
    kept_for: &KeptFor,
    states: &BTreeMap<LimitKey, KeyState>,
) -> BTreeSet<LimitKey> {
    let mut next = BTreeSet::new();
    let started = won.iter().flat_map(|job| &job.keys);
    next.extend(started.filter(|(_, bounds)| bounds.bounds.rate.is_some()).map(|(key, _)| key.clone()));
    for (job, at) in refused {
        let Some((_, of_refusal)) = job.keys.iter().find(|(key, _)| key == *at) else { continue };
        if of_refusal.bounds.rate.is_some()
            || (kept_for.due_at(job.id).is_some() && states.get(*at).is_some_and(|state| state.may_start(*of_refusal)))
        {
            next.insert((*at).clone());
        }
        let freed = job
            .keys
            .iter()
            .filter(|(key, bounds)| key != *at && of_refusal.is_narrower_than(bounds) && kept_for.has(key, job.id));
        next.extend(freed.map(|(key, _)| key.clone()));
    }
    next
}

/// Decide whether a job may start, and count it if so. Otherwise return the key that has no room. A job whose call decides
/// about an open breaker is added to `probes`.
fn admit<'j>(
    job: &'j Limited,
    states: &mut BTreeMap<LimitKey, KeyState>,
    kept_for: &KeptFor,
    probes: &mut BTreeMap<&'j LimitKey, Uuid>,
) -> Result<Option<&'j LimitKey>, sqlx::Error> {
    let mut after = Vec::with_capacity(job.keys.len());
    for (key, bounds) in &job.keys {
        let mut state = *states.get(key).ok_or_else(|| corrupt("a key of a limit without a row"))?;
        let may = if kept_for.has(key, job.id) {
            state.admit_let_go(*bounds)
        } else {
            state.admit(*bounds, kept_for.due_at(job.id))
        };
        if !may {
            return Ok(Some(key));
        }
        after.push((key, state));
    }
    for (key, state) in after {
        let before = states.insert(key.clone(), state);
        if state.is_probing() && before.is_some_and(|before| !before.is_probing()) {
            probes.insert(key, job.id);
        }
    }
    Ok(None)
}

/// Note in the claims of these jobs the slots that they have.
fn name_slots<'j>(jobs: impl IntoIterator<Item = &'j Limited>, claims: &mut ClaimsById) {
    for job in jobs {
        if let Some(Claim::Won(claimed)) = claims.get_mut(&JobId::from_uuid(job.id)) {
            claimed.slots = slots_of(job).cloned().collect();
        }
    }
}

/// Return the keys of which an attempt of this job has a slot.
fn slots_of(job: &Limited) -> impl Iterator<Item = &LimitKey> {
    job.keys.iter().filter(|(_, bounds)| bounds.has_slots()).map(|(key, _)| key)
}

/// Add the step that gives these attempts their slots.
fn slots_step<'a>(script: &mut Script<'a>, won: &[&'a Limited], token: AttemptToken) {
    let slots: Vec<(&LimitKey, Uuid)> = won.iter().flat_map(|job| slots_of(job).map(|key| (key, job.id))).collect();
    insert_slots(script, &slots, Some(token));
}

/// Add the step that inserts slots of attempts. `token` is that of attempts whose calls count for breakers.
fn insert_slots<'a>(script: &mut Script<'a>, slots: &[(&'a LimitKey, Uuid)], token: Option<AttemptToken>) {
    if slots.is_empty() {
        return;
    }
    let insert = [
        "INSERT INTO limit_slots (limit_name, limit_key, job_id, call_token) VALUES",
        "(?,?,?,?)",
        "ON DUPLICATE KEY UPDATE kept_until = NULL, call_token = COALESCE(VALUES(call_token), call_token)",
    ];
    script.insert(
        insert,
        slots,
        |_| 400,
        |&(key, id), values| {
            let token = token.map(AttemptToken::uuid).into();
            values.extend([Value::from(key.limit.as_str()), Value::from(key.key.as_bytes()), id.into(), token]);
        },
    );
}

/// Return those of these attempts that may not start. They are committed, and no handler has got one yet. `limits` is
/// what their claim knew about limits. Without it, or if the claim took long and a limit has changed since, the tables
/// decide.
///
/// An attempt that MySQL cannot be asked about may not start either, unless the connection broke: the next run of the
/// claim finds it then.
pub(super) async fn without_room(
    conn: &mut Session<'_>,
    ids: &[Uuid],
    (limits, known): (Option<&LimitsOfClaim>, &KnownLimits),
) -> Result<HashSet<JobId>, sqlx::Error> {
    if ids.is_empty() {
        return Ok(HashSet::new());
    }
    match look_for_room(conn, ids, (limits, known)).await {
        Err(error) if fault(&error) != Fault::Reconnect => {
            let attempts = ids.len();
            tracing::warn!(%error, attempts, "cannot read whether limits have room for attempts, giving them back");
            Ok(ids.iter().map(|id| JobId::from_uuid(*id)).collect())
        }
        looked => looked,
    }
}

async fn look_for_room(
    conn: &mut Session<'_>,
    ids: &[Uuid],
    (limits, known): (Option<&LimitsOfClaim>, &KnownLimits),
) -> Result<HashSet<JobId>, sqlx::Error> {
    let is_in_doubt = match limits {
        Some(limits) => limits.have_changed(conn, known).await?,
        None => {
            known.catch_up(conn).await?;
            true
        }
    };
    if is_in_doubt { exceeding(conn, ids, &known.now()).await } else { Ok(HashSet::new()) }
}

/// Return those of these attempts that these limits do not allow, as the tables are at this moment:
///
/// - those without a slot: their claim did not know the limit, and the limit may have been counted before the COMMIT of
///   the claim. A limit that was counted after it has given them slots.
/// - the last ones at a key at which more attempts have slots than the limit allows: it was lowered before the COMMIT.
async fn exceeding(
    conn: &mut Session<'_>,
    ids: &[Uuid],
    limits: &[LimitSetting],
) -> Result<HashSet<JobId>, sqlx::Error> {
    let found = SlotsOfAttempts::read(conn, ids, limits).await?;
    let mut exceed: BTreeSet<Uuid> = found.without.values().flatten().copied().collect();
    if !found.with.is_empty() {
        let keys: Vec<&LimitKey> = found.with.keys().collect();
        let mut script = Script::as_text();
        state_step(&mut script, &keys, &keys);
        let states = states_in(&script.run(conn).await?.pop().unwrap_or_default().rows)?;
        for (key, ids) in &found.with {
            let (Some(state), Some(most)) = (states.get(key), KeyBounds::find(limits, key).most()) else { continue };
            let too_many = usize::try_from(state.running - i64::from(most)).unwrap_or(0);
            let leave = ids.iter().filter(|id| exceed.contains(*id)).count();
            let last = ids.iter().rev().filter(|id| !exceed.contains(*id)).take(too_many.saturating_sub(leave));
            let last: Vec<Uuid> = last.copied().collect();
            exceed.extend(last);
        }
    }
    Ok(exceed.into_iter().map(JobId::from_uuid).collect())
}

/// Return those of these attempts that have no slot at a limit that has counted the attempts that ran. Their claim did
/// not know the limit, and its COMMIT came after the count: so the process that made the claim took long, and leaves
/// them as well.
pub(super) async fn not_counted(
    conn: &mut Session<'_>,
    ids: &[Uuid],
    limits: &[LimitSetting],
) -> Result<HashSet<JobId>, sqlx::Error> {
    let found = SlotsOfAttempts::read(conn, ids, limits).await?;
    let counted = found.without.iter().filter(|(key, _)| KeyBounds::find(limits, key).has_counted());
    Ok(counted.flat_map(|(_, ids)| ids).map(|id| JobId::from_uuid(*id)).collect())
}

/// The keys at which limits bound attempts, each with the attempts that have a slot there and those that have none.
#[derive(Default)]
struct SlotsOfAttempts {
    with: BTreeMap<LimitKey, Vec<Uuid>>,
    without: BTreeMap<LimitKey, Vec<Uuid>>,
}

impl SlotsOfAttempts {
    async fn read(conn: &mut Session<'_>, ids: &[Uuid], limits: &[LimitSetting]) -> Result<Self, sqlx::Error> {
        let mut found = Self::default();
        let mut keys = keys_of_jobs(conn, ids, limits, " AND o.state = 'executing'").await?;
        // A breaker alone bounds no number, and one runner may not know the share of a fair limit yet.
        keys.retain(|(key, _)| KeyBounds::find(limits, key).most().is_some());
        if keys.is_empty() {
            return Ok(found);
        }
        let mut script = Script::as_text();
        let (list, values) = script.list(ids);
        let sql = format!(
            "SELECT s.limit_name, s.limit_key, s.job_id FROM limit_slots s FORCE INDEX (limit_slots_job) \
             WHERE s.job_id IN {list} AND s.kept_until IS NULL"
        );
        script.push(sql, values);
        let rows = script.run(conn).await?.pop().unwrap_or_default().rows;
        let slots: BTreeSet<(LimitKey, Uuid)> =
            rows.iter().map(|row| Ok((key_in(row)?, row.try_get("job_id")?))).collect::<Result<_, sqlx::Error>>()?;
        for slot in keys {
            let of_key = if slots.contains(&slot) { &mut found.with } else { &mut found.without };
            let (key, id) = slot;
            of_key.entry(key).or_default().push(id);
        }
        Ok(found)
    }
}

/// What the transaction that ends attempts has done about their slots.
#[derive(Default)]
pub(super) struct FreedWithEnds {
    /// The jobs whose slots are free, with the lines of all their keys looked at.
    pub(super) jobs: HashSet<Uuid>,
    /// Parked jobs that have a due time now.
    pub(super) let_go: Vec<DueJob>,
}

/// Free the slots of these attempts, which the caller's transaction ends, and let parked jobs of their keys go. So the
/// next job of a key has its slot with the COMMIT that ends the one before it.
///
/// The transaction has locked rows of `owed`. A claim locks keys before rows, so this waits for no key, and the caller
/// waits for nothing more but its tallies, which it changes in the request of its COMMIT. Left out, for [`FreedSlots`],
/// are attempts with a key that another session locks at this moment, and those with a breaker or of a fair limit. In a
/// Galera cluster all are: a lock of a key is a write there, and a conflict about it would repeat the settlement.
pub(super) async fn free_with_ends(
    conn: &mut Session<'_>,
    ending: &[(Uuid, &[LimitKey])],
    limits: &[LimitSetting],
) -> Result<FreedWithEnds, sqlx::Error> {
    let mut ending = ending.to_vec();
    ending.retain(|(_, keys)| !keys.iter().any(|key| is_freed_afterwards(key, limits)));
    if ending.is_empty() || is_in_cluster() {
        return Ok(FreedWithEnds::default());
    }
    let asked: BTreeSet<&LimitKey> = ending.iter().flat_map(|(_, keys)| keys.iter()).collect();
    let got = lock_those_that_are_free(conn, &asked.into_iter().collect::<Vec<_>>()).await?;
    ending.retain(|(_, keys)| keys.iter().all(|key| got.contains(key)));
    if ending.is_empty() {
        return Ok(FreedWithEnds::default());
    }
    let (let_go, more) = free_and_let_go(conn, &ending, &got, limits).await?;
    let jobs = if more { HashSet::new() } else { ending.iter().map(|(id, _)| *id).collect() };
    Ok(FreedWithEnds { jobs, let_go })
}

/// Return those of these jobs that are under exactly one limit, which has no rate, each with its key. Jobs that have
/// made an attempt are left out: this runner may have given one back because it cannot read it.
pub(super) async fn under_one_limit(
    conn: &mut Session<'_>,
    ids: &[Uuid],
    limits: &[LimitSetting],
) -> Result<BTreeMap<Uuid, LimitKey>, sqlx::Error> {
    let (mut keys, mut others) = (BTreeMap::new(), HashSet::new());
    for (key, id) in keys_of_jobs(conn, ids, limits, " AND o.attempt = 0").await? {
        if KeyBounds::find(limits, &key).bounds.rate.is_some() || keys.insert(id, key).is_some() {
            others.insert(id);
        }
    }
    keys.retain(|id, _| !others.contains(id));
    if keys.is_empty() {
        return Ok(keys);
    }
    // Only a key that has kept a slot for the job, which this transaction has locked. A job may have waited at a limit that
    // was removed or bounds its key no more: nothing has looked for room at another one then.
    let kept_for = KeptFor::read(conn, &keys.keys().copied().collect::<Vec<_>>()).await?;
    keys.retain(|id, key| kept_for.has(key, *id));
    Ok(keys)
}

/// Claim those of these jobs that may start, in the transaction that let them go: the slot that is kept for each of
/// them becomes that of its attempt. `bytes` are their ids, and `keys` the only keys under which they count. Those are
/// locked.
pub(super) async fn claim_let_go(
    conn: &mut Session<'_>,
    claims: &Claims,
    (ids, bytes): (&[Uuid], &[u8]),
    keys: &BTreeMap<Uuid, LimitKey>,
    (token, batch): (AttemptToken, Uuid),
) -> Result<ClaimsById, sqlx::Error> {
    let mut script = Script::about(ids.len(), 0);
    claims.claim_step(&mut script, (ids, &[]), token);
    claims.batch_step(&mut script, bytes, token, batch);
    read_step(&mut script, ids, token);
    let done = script.run(conn).await?;
    let mut won = claims.claims_in(done.iter().flat_map(|step| &step.rows), token)?;
    let slots = keys.iter().filter(|(id, _)| won.contains_key(&JobId::from_uuid(**id)));
    let slots: Vec<(&LimitKey, Uuid)> = slots.map(|(id, key)| (key, *id)).collect();
    let mut script = Script::as_text();
    insert_slots(&mut script, &slots, Some(token));
    script.run(conn).await?;
    for (key, id) in slots {
        if let Some(Claim::Won(claimed)) = won.get_mut(&JobId::from_uuid(id)) {
            claimed.slots = Arc::from([key.clone()]);
            claimed.was_parked = true;
        }
    }
    Ok(won)
}

/// Return whether the slots of this key are freed after the settlement. The ends of calls have to count for a breaker.
/// The keys of a fair limit get their parts if their jobs go one by one behind all that were let go before, and not in
/// the batches of settlements.
fn is_freed_afterwards(key: &LimitKey, limits: &[LimitSetting]) -> bool {
    let is_slow = |set: &LimitSetting| set.limit.fair || set.limit.breaker.is_some();
    limits.iter().any(|set| set.limit.name == key.limit && is_slow(set))
}

/// The group commit that frees the slots of attempts that have ended without it. Those of a key that another session
/// keeps locked are left to the sweep, so that the ends of all other attempts need not wait.
pub(crate) struct FreedSlots {
    pub(crate) limits: Arc<KnownLimits>,
    /// True if this waits for a moment for a key that another session locks. There are two of these: the one that does
    /// not wait sends such slots to the other.
    pub(crate) waits: bool,
}

/// A job whose attempt has ended, and the keys of which it had slots.
#[derive(Clone)]
pub(crate) struct SlotsOfJob {
    pub(crate) id: Uuid,
    pub(crate) keys: Arc<[LimitKey]>,
    /// How its call to a host ended.
    pub(crate) call: Option<EndedCall>,
    /// The attempt goes on without its call and keeps its slots.
    pub(crate) keeps: bool,
}

/// The answer about the slots of a job.
pub(crate) struct SlotsReply {
    /// Parked jobs that have a due time now. They may be of other keys of the same batch.
    pub(crate) let_go: Vec<DueJob>,
    /// True if another session locks one of the keys at this moment. Then nothing was done about the slots of the job.
    pub(crate) busy: bool,
}

impl Batch for FreedSlots {
    type Item = SlotsOfJob;
    type Reply = SlotsReply;
    type Mark = ();
    const ATTEMPTED: &'static str = "free slots";
    const FULL: usize = 256;

    fn mark(&self) {}

    fn write<'c>(
        &'c self,
        conn: &'c mut Session<'_>,
        items: &'c [SlotsOfJob],
        (): (),
        earlier: PriorRun,
    ) -> DbFuture<'c, Vec<SlotsReply>> {
        Box::pin(async move {
            let keys: BTreeSet<LimitKey> = items.iter().flat_map(|item| item.keys.iter().cloned()).collect();
            // The process of a suspect has read the limits before its attempt, which may have taken hours.
            self.limits.catch_up(conn).await?;
            let limits = self.limits.now();
            let asked: Vec<&LimitKey> = keys.iter().collect();
            let known = self.limits.locked_keys();
            // A run without an answer may have counted the calls. Only a run that knows of it counts none twice, so the
            // other group commit must not do it.
            let waits = self.waits || earlier == PriorRun::MayHaveCommitted;
            let got = if waits {
                begin_within_a_second(conn, &asked, known).await?
            } else {
                let got = begin_with_free(conn, &asked).await?;
                known.note(&asked, &got);
                got
            };
            let done: Vec<&SlotsOfJob> =
                items.iter().filter(|item| item.keys.iter().all(|key| got.contains(key))).collect();
            let calls = done.iter().filter_map(|item| Some((item.id, item.call.as_ref()?, &item.keys)));
            let calls = calls.flat_map(|(id, call, keys)| counted((id, call), keys, &limits)).collect();
            let turned = count_calls(conn, calls, earlier).await?;
            let kept = done.iter().filter(|item| item.keeps);
            let kept = kept.filter_map(|item| Some((item.id, item.call.as_ref()?.token)));
            mark_counted(conn, &kept.collect::<Vec<_>>()).await?;
            let ended = done.iter().filter(|item| !item.keeps).map(|item| (item.id, &*item.keys));
            free_slots_of(conn, &slots_by_key(ended)).await?;
            let keys: BTreeSet<LimitKey> = done.iter().flat_map(|item| item.keys.iter().cloned()).collect();
            let (gone, _) = let_go(conn, &keys, &limits).await?;
            sqlx::raw_sql("COMMIT").execute(&mut *conn).await?;
            turned.iter().for_each(Turned::tell);
            // The slots of keys that count as locked, or for which this has waited in vain, are left to the sweep.
            let left: BTreeSet<LimitKey> =
                if waits { asked.into_iter().cloned().collect() } else { known.among(&asked) };
            Ok(replies(items, &got, &left, gone))
        })
    }
}

/// Return the answers about these slots. Those of which this has `got` all keys are free, and the others with a key in
/// `left` are left to the sweep. The callers of the rest ask again.
///
/// Each of the jobs that were let go is told once, and not to a caller that asks again. The last caller is told: the
/// first ones have waited longest, and one that has waited for too long has gone away.
fn replies(
    items: &[SlotsOfJob],
    got: &BTreeSet<LimitKey>,
    left: &BTreeSet<LimitKey>,
    let_go: Vec<DueJob>,
) -> Vec<SlotsReply> {
    let is_done = |item: &SlotsOfJob| item.keys.iter().all(|key| got.contains(key));
    let is_left = |item: &SlotsOfJob| item.keys.iter().any(|key| left.contains(key));
    let reply = |item: &SlotsOfJob| SlotsReply { let_go: Vec::new(), busy: !is_done(item) && !is_left(item) };
    let mut replies: Vec<SlotsReply> = items.iter().map(reply).collect();
    if let Some(last) = items.iter().rposition(is_done) {
        replies[last].let_go = let_go;
    }
    replies
}

/// What a transaction of a sweep has done.
struct Freed {
    /// Jobs that were let go.
    let_go: Vec<DueJob>,
    /// True if there may be more with room.
    more: bool,
}

/// Free the slots of jobs that do not execute any more, and let parked jobs of their keys go.
///
/// A key that another session locks is left to a later sweep: a runner that was suspended within its claim must not hold up
/// the jobs of all other keys.
async fn free(
    conn: &mut Session<'_>,
    page: &[(LimitKey, Vec<Uuid>)],
    limits: &[LimitSetting],
    changed: bool,
) -> Result<Freed, sqlx::Error> {
    let sorted: BTreeSet<&LimitKey> = page.iter().map(|(key, _)| key).collect();
    let sorted: Vec<&LimitKey> = sorted.into_iter().collect();
    let keys = lock_free_keys(conn, &sorted).await?;
    let locked = page.iter().filter(|(key, ids)| keys.contains(key) && !ids.is_empty());
    let slots: Vec<(&LimitKey, Vec<Uuid>)> = locked.map(|(key, ids)| (key, ids.clone())).collect();
    free_slots_of(conn, &slots).await?;
    free_slots_kept_in_vain(conn, &slots).await?;
    if changed {
        take_back(conn, &keys).await?;
    }
    let (gone, more) = let_go(conn, &keys, limits).await?;
    Ok(Freed { let_go: gone, more })
}

/// Keys that one transaction of a sweep looks at.
const PAGE: usize = 64;
/// Slots that one statement of a sweep reads.
const SLOTS_READ: usize = 1_000;
/// Slots among which one statement of a sweep looks for stale ones.
const SLOTS_LOOKED_AT: usize = 5_000;
/// Time after a change of a limit until every runner follows it and the claims that did not are over. It runs from the moment
/// when this process followed the change, and by the monotonic clock: one of MySQL that was set back would keep the jobs of
/// the limit waiting until it is there again.
const HEARD_AFTER: Duration = Duration::from_secs(3);

/// Time for which a new limit is not counted again after another session kept one of its keys locked. Each try holds up
/// the sweep for one wait for a lock.
const LOCKED_RESTS: Duration = Duration::from_secs(10);

/// Parked jobs that one statement reads after a change of their limit.
const PAGE_OF_PARKED: usize = 256;

/// Jobs that one transaction parks behind others of their keys.
const PARKED_AT_ONCE: usize = 500;

/// Time for which a sweep lets jobs of the same keys go, and jobs of paused queues leave all their lines.
const LETTING_GO: Duration = Duration::from_secs(2);

/// Time for which a sweep looks for stale slots, and for keys with room. The next one goes on, in a second: a turn of a
/// slow rate that is further ahead than a minute is found by a sweep only, so the keys of all tenants must have done in
/// time.
const LOOKING: Duration = Duration::from_millis(100);

/// Where a sweep of the limits goes on.
#[derive(Clone, Debug, Default)]
pub struct LimitSweep {
    /// The last key that was looked at.
    after: Option<LimitKey>,
    /// The last slot that was looked at.
    slots: Option<SlotPlace>,
    /// Limits of which another session kept a key locked while a sweep waited for it, and when. For a while no sweep
    /// waits for their keys.
    locked: BTreeMap<Name, Instant>,
    /// The last key whose line jobs of paused queues left.
    left: Option<LimitKey>,
}

impl Store {
    /// Mend what the settlements of attempts have not done: free slots whose attempts have ended or that were kept in
    /// vain, let jobs go that have room, and count the attempts that ran when a limit was set. Returns where the next
    /// sweep goes on. With `changed`, after a change of settings, it looks at all keys. `tell` gets the jobs that are
    /// due now as soon as they are let go, so no later part of the sweep holds them up or loses them.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn sweep_limits(
        &self,
        sweep: LimitSweep,
        changed: bool,
        tell: impl Fn(Vec<DueJob>) + Send + Sync,
    ) -> Result<LimitSweep, StoreError> {
        let LimitSweep { after, slots, mut locked, left } = sweep;
        tell(self.count_attempts_of_new_limits(&mut locked).await);
        if let Err(error) = self.share_fairly().await {
            // The jobs of all other limits need the rest of the sweep.
            tracing::debug!(%error, "cannot read what the keys of fair limits share, the last shares stay");
        }
        let limits = self.shared.limits.now();
        let (let_go, slots) = self.free_stale_slots(&limits, slots).await?;
        tell(let_go);
        for page in self.keys_to_probe(&limits).await?.chunks(PAGE) {
            let page = page.iter().map(|key| (key.clone(), Vec::new())).collect();
            tell(self.free_page(page, &limits, false).await?.let_go);
        }
        let mut after = if changed { None } else { after };
        let (looking, mut behind_paused) = (Instant::now(), Vec::new());
        loop {
            let keys = self.keys_with_room(after, &limits, changed).await?;
            behind_paused.extend(keys.behind_paused);
            for page in keys.with_room.chunks(PAGE) {
                let page: Vec<(LimitKey, Vec<Uuid>)> = page.iter().map(|key| (key.clone(), Vec::new())).collect();
                // A limit that was removed may have any number of parked jobs.
                let began = Instant::now();
                while began.elapsed() < LETTING_GO {
                    let freed = self.free_page(page.clone(), &limits, changed).await?;
                    tell(freed.let_go);
                    if !freed.more {
                        break;
                    }
                }
            }
            after = keys.last;
            if after.is_none() || (!changed && looking.elapsed() >= LOOKING) {
                break;
            }
        }
        let left = self.let_paused_leave(in_turn(behind_paused, left.as_ref()), &mut locked, tell).await?;
        Ok(LimitSweep { after, slots, locked, left })
    }

    /// Let jobs of paused queues leave the front of the lines of these keys, for a while of each in turn. Otherwise
    /// each claim and each end of an attempt would read all of them, with the key locked, to find the next job of
    /// another queue. Later sweeps go on, behind the key that is returned: all the rest of a sweep is more urgent.
    ///
    /// Such claims hardly ever leave the key free, so this waits for it.
    async fn let_paused_leave(
        &self,
        mut lines: VecDeque<LimitKey>,
        locked: &mut BTreeMap<Name, Instant>,
        tell: impl Fn(Vec<DueJob>) + Send + Sync,
    ) -> Result<Option<LimitKey>, StoreError> {
        let (mut last, began) = (None, Instant::now());
        while began.elapsed() < LETTING_GO {
            let Some(key) = lines.pop_front() else { break };
            last = Some(key.clone());
            if locked.contains_key(&key.limit) {
                continue;
            }
            let of_line = Arc::new(key.clone());
            let left = transact_unless_locked(&self.shared.pools.loops, "let jobs leave a limit", move |conn, _| {
                let key = Arc::clone(&of_line);
                Box::pin(async move {
                    lock_keys(conn, &[&*key]).await?;
                    let_paused_leave(conn, &key).await
                })
            });
            let Some((jobs, more)) = left.await? else {
                locked.insert(key.limit, Instant::now());
                continue;
            };
            tell(jobs);
            if more {
                lines.push_back(key);
            }
        }
        Ok(last)
    }

    /// Read what the keys of fair limits share: the workers of the runners, less those that work for keys without
    /// waiting jobs.
    async fn share_fairly(&self) -> Result<(), StoreError> {
        let limits = self.shared.limits.now();
        let fair: Vec<LimitSetting> = limits.iter().filter(|set| set.limit.fair).cloned().collect();
        if fair.is_empty() {
            return Ok(());
        }
        let fair = Arc::new(fair);
        let shares = on_pool(&self.shared.pools.loops, "read the shares of keys", move |conn, _| {
            let fair = Arc::clone(&fair);
            Box::pin(async move {
                let mut shares = BTreeMap::new();
                for set in fair.iter() {
                    shares.insert(set.limit.name.clone(), read_share(conn, set).await?);
                }
                Ok(shares)
            })
        });
        self.shared.limits.share(&shares.await?);
        Ok(())
    }

    /// Free the slots whose attempts have ended or that were kept in vain, and let parked jobs of their keys go.
    /// Returns these, and the slot behind which the next sweep goes on: there may be any number of slots, because
    /// attempts that other systems finish have some as well. The slots of locked keys stay.
    async fn free_stale_slots(
        &self,
        limits: &Arc<Vec<LimitSetting>>,
        mut after: Option<SlotPlace>,
    ) -> Result<(Vec<DueJob>, Option<SlotPlace>), StoreError> {
        let (mut gone, looking) = (Vec::new(), Instant::now());
        loop {
            let stale = self.stale_slots(after).await?;
            let slots: Vec<(LimitKey, Vec<Uuid>)> = stale.slots.into_iter().collect();
            for page in slots.chunks(PAGE) {
                gone.extend(self.free_page(page.to_vec(), limits, false).await?.let_go);
            }
            after = stale.last;
            if after.is_none() || looking.elapsed() >= LOOKING {
                return Ok((gone, after));
            }
        }
    }

    /// Read the first stale slots among those behind this one.
    async fn stale_slots(&self, after: Option<SlotPlace>) -> Result<StaleSlots, StoreError> {
        on_pool(&self.shared.pools.loops, "read slots of limits", move |conn, _| {
            let after = after.clone();
            Box::pin(async move {
                // The slots end at this one, if there are many.
                let sql = format!(
                    "SELECT s.limit_name, s.limit_key, s.job_id FROM limit_slots s FORCE INDEX (PRIMARY) WHERE {} \
                     ORDER BY s.limit_name, s.limit_key, s.job_id LIMIT 1 OFFSET {}",
                    slots_from(after.as_ref(), '>'),
                    SLOTS_LOOKED_AT - 1
                );
                let query = bind_place(statement(sql), after.as_ref());
                let end = query.fetch_optional(&mut *conn).await?.as_ref().map(slot_place).transpose()?;
                let sql = format!(
                    "SELECT s.limit_name, s.limit_key, s.job_id FROM limit_slots s FORCE INDEX (PRIMARY) \
                     LEFT JOIN owed o ON o.id = s.job_id WHERE ((s.kept_until IS NULL AND \
                     (o.id IS NULL OR o.state <> 'executing')) OR s.kept_until <= UTC_TIMESTAMP(6) \
                     OR s.kept_until > UTC_TIMESTAMP(6) + INTERVAL {KEPT_AT_MOST_S} SECOND OR {}) AND {} AND {} \
                     ORDER BY s.limit_name, s.limit_key, s.job_id LIMIT {SLOTS_READ}",
                    kept_in_vain(),
                    slots_from(after.as_ref(), '>'),
                    slots_from(end.as_ref(), '<')
                );
                let query = bind_place(bind_place(statement(sql), after.as_ref()), end.as_ref());
                let rows = query.fetch_all(conn).await?;
                let last = match rows.last().filter(|_| rows.len() == SLOTS_READ) {
                    Some(row) => Some(slot_place(row)?),
                    None => end,
                };
                let mut slots: BTreeMap<LimitKey, Vec<Uuid>> = BTreeMap::new();
                for row in &rows {
                    slots.entry(key_in(row)?).or_default().push(row.try_get("job_id")?);
                }
                Ok(StaleSlots { slots, last })
            })
        })
        .await
    }

    /// Return whether a key of a limit counts as locked, because another session keeps its row.
    #[must_use]
    pub fn knows_locked_keys(&self) -> bool {
        self.shared.limits.locked_keys().has_some()
    }

    /// Return whether a fair limit applies to jobs of this kind and queue, as far as this process knows.
    #[must_use]
    pub fn shares_fairly(&self, kind: &Name, queue: &Name) -> bool {
        self.shared.limits.shares_fairly(kind, queue)
    }

    /// Return whether a fair limit may apply to jobs of this queue, as far as this process knows.
    #[must_use]
    pub fn may_share_fairly(&self, queue: &Name) -> bool {
        self.shared.limits.may_share_fairly(queue)
    }

    /// Return when those of these jobs were let go that have not started since. A job whose slot was kept for long enough
    /// is left out: it is parked again.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn let_go_at(&self, ids: &[JobId]) -> Result<HashMap<JobId, Timestamp>, StoreError> {
        let ids: Arc<[Uuid]> = ids.iter().map(|id| id.uuid()).collect();
        on_pool(&self.shared.pools.loops, "read which jobs were let go", move |conn, _| {
            let ids = Arc::clone(&ids);
            Box::pin(async move {
                let mut found = HashMap::new();
                for ids in ids.chunks(MAX_ROWS) {
                    let some = let_go_at(conn, ids).await?;
                    found.extend(some.into_iter().map(|(id, at)| (JobId::from_uuid(id), at)));
                }
                Ok(found)
            })
        })
        .await
    }

    /// Park those of these due jobs that have a key of a fair limit with parked jobs. Return their number.
    ///
    /// None of them may start before the parked jobs. A claim would park them one by one, each with a free worker. Like
    /// an insert of such jobs, this locks no key: if the last parked job is let go meanwhile, a sweep lets these go.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn park_behind_others(&self, ids: &[JobId]) -> Result<usize, StoreError> {
        let mut parked = 0;
        for ids in ids.chunks(PARKED_AT_ONCE) {
            let (ids, known): (Arc<[Uuid]>, _) =
                (ids.iter().map(|id| id.uuid()).collect(), Arc::clone(&self.shared.limits));
            let some = transact(&self.shared.pools.loops, "park jobs behind others", move |conn, _| {
                let (ids, known) = (Arc::clone(&ids), Arc::clone(&known));
                Box::pin(async move {
                    known.catch_up(conn).await?;
                    park_behind_others(conn, &ids, &known.now()).await
                })
            });
            parked += some.await?;
        }
        Ok(parked)
    }

    /// Return whether a fair limit has no share yet, because no sweep of this process has read one. Until then its jobs
    /// start like any other, and leave no rows that would call for a sweep.
    #[must_use]
    pub fn lacks_shares(&self) -> bool {
        self.shared.limits.lack_shares()
    }

    /// Return those of these jobs that have a key of a limit that counts as locked. A claim would leave them out.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn behind_locked_keys(&self, ids: &[JobId]) -> Result<HashSet<JobId>, StoreError> {
        let ids: Arc<[Uuid]> = ids.iter().map(|id| id.uuid()).collect();
        let known = Arc::clone(&self.shared.limits);
        on_pool(&self.shared.pools.loops, "look for jobs behind locked keys", move |conn, _| {
            let (ids, known) = (Arc::clone(&ids), Arc::clone(&known));
            Box::pin(async move {
                let (limits, mut behind) = (known.now(), HashSet::new());
                for ids in ids.chunks(MAX_ROWS) {
                    let keys = keys_of_jobs(conn, ids, &limits, "").await?;
                    let asked: Vec<&LimitKey> = keys.iter().map(|(key, _)| key).collect();
                    let locked = known.locked_keys().among(&asked);
                    let left = keys.iter().filter(|(key, _)| locked.contains(key));
                    behind.extend(left.map(|(_, id)| JobId::from_uuid(*id)));
                }
                Ok(behind)
            })
        })
        .await
    }

    /// Read the keys of open breakers whose pause is over.
    async fn keys_to_probe(&self, limits: &[LimitSetting]) -> Result<Vec<LimitKey>, StoreError> {
        if limits.iter().all(|set| set.breaker_rule().is_none()) {
            return Ok(Vec::new());
        }
        on_pool(&self.shared.pools.loops, "read open breakers", |conn, _| {
            Box::pin(async move {
                let sql = format!(
                    "SELECT k.limit_name, k.limit_key FROM limit_keys k FORCE INDEX (limit_keys_probe) \
                     WHERE k.probe_at <= UTC_TIMESTAMP(6) AND EXISTS (SELECT 1 FROM limit_waits w \
                     FORCE INDEX (limit_waits_line) WHERE w.limit_name = k.limit_name AND w.limit_key = k.limit_key) \
                     ORDER BY k.probe_at LIMIT {KEYS_READ}"
                );
                statement(sql).fetch_all(conn).await?.iter().map(key_in).collect()
            })
        })
        .await
    }

    async fn free_page(
        &self,
        page: Vec<(LimitKey, Vec<Uuid>)>,
        limits: &Arc<Vec<LimitSetting>>,
        changed: bool,
    ) -> Result<Freed, StoreError> {
        let (page, limits) = (Arc::new(page), Arc::clone(limits));
        transact(&self.shared.pools.loops, "free slots of limits", move |conn, _| {
            let (page, limits) = (Arc::clone(&page), Arc::clone(&limits));
            Box::pin(async move { free(conn, &page, &limits, changed).await })
        })
        .await
    }

    /// Read a page of the keys with parked jobs. Returns those with room.
    async fn keys_with_room(
        &self,
        after: Option<LimitKey>,
        limits: &Arc<Vec<LimitSetting>>,
        changed: bool,
    ) -> Result<KeysRead, StoreError> {
        let limits = Arc::clone(limits);
        on_pool(&self.shared.pools.loops, "read keys with parked jobs", move |conn, _| {
            let (limits, after) = (Arc::clone(&limits), after.clone());
            Box::pin(async move {
                let mut read = KeysBehind::read(conn, WAITS, after.clone()).await?;
                // After a change of a limit, jobs that were let go with a due time ahead count as well.
                if changed {
                    read = read.and(KeysBehind::read(conn, SLOTS, after).await?);
                }
                let KeysBehind { keys, last } = read;
                let keys: Vec<LimitKey> = keys.into_iter().collect();
                let paused = is_any_queue_paused(conn).await?;
                let (mut with_room, mut behind_paused) = (Vec::new(), Vec::new());
                for keys in keys.chunks(PAGE) {
                    let asked: Vec<&LimitKey> = keys.iter().collect();
                    if paused {
                        behind_paused.extend(lines_behind_paused_jobs(conn, &asked).await?);
                    }
                    let mut script = Script::as_text();
                    state_step(&mut script, &asked, &asked);
                    let found: Vec<MySqlRow> = script.run(conn).await?.into_iter().flat_map(|step| step.rows).collect();
                    let states = states_in(&found)?;
                    with_room.extend(
                        keys.iter()
                            .filter(|key| {
                                // A key without a row has no attempts and no kept slots.
                                changed
                                    || states.get(key).is_none_or(|state| state.room(KeyBounds::find(&limits, key)) > 0)
                            })
                            .cloned(),
                    );
                }
                Ok(KeysRead { with_room, behind_paused, last })
            })
        })
        .await
    }

    /// Give the executing jobs of limits that were set a moment ago their slots, and let the parked jobs go that these limits
    /// do not cover any more. Returns those.
    ///
    /// A limit with a key that another session locks is left to a later sweep, after one wait for the lock: the jobs of
    /// all other limits need their sweeps. So is a limit that MySQL refuses to count.
    async fn count_attempts_of_new_limits(&self, locked: &mut BTreeMap<Name, Instant>) -> Vec<DueJob> {
        locked.retain(|_, found| found.elapsed() < LOCKED_RESTS);
        let (mut gone, mut are_counted) = (Vec::new(), false);
        for set in self.shared.limits.uncounted_for(HEARD_AFTER) {
            if locked.contains_key(&set.limit.name) {
                continue;
            }
            match self.count_attempts_of(&set, &mut gone).await {
                Ok(true) => are_counted = true,
                Ok(false) => {
                    tracing::debug!(limit = %set.limit.name, "a key of a new limit is locked, it is counted later");
                    locked.insert(set.limit.name, Instant::now());
                    break;
                }
                // The jobs of all other limits need the rest of the sweep.
                Err(error) => {
                    tracing::warn!(
                        limit = %set.limit.name, %error,
                        "cannot count the attempts that ran when a limit was set, its jobs wait"
                    );
                }
            }
        }
        if are_counted {
            // The rest of this sweep lets parked jobs go that have room. Read after the commit, because a count that is
            // not committed is none.
            let known = Arc::clone(&self.shared.limits);
            let read = on_pool(&self.shared.pools.loops, "read limits that are counted", move |conn, _| {
                let known = Arc::clone(&known);
                Box::pin(async move { known.read_again(conn).await })
            });
            if let Err(error) = read.await {
                tracing::debug!(%error, "cannot read the limits that were counted, the next summary brings them");
            }
        }
        gone
    }

    /// Return the time until a sweep counts the attempts of a limit that was set a moment ago.
    #[must_use]
    pub fn until_limits_are_counted(&self) -> Option<Duration> {
        self.shared.limits.next_uncounted(HEARD_AFTER)
    }

    /// Count the attempts of a new limit. Returns false if another session locks one of its keys. The jobs that it does
    /// not cover any more are added to `gone`.
    async fn count_attempts_of(&self, set: &LimitSetting, gone: &mut Vec<DueJob>) -> Result<bool, StoreError> {
        if !self.let_uncovered_go(set, gone).await? || !self.free_uncovered_slots(set).await? {
            return Ok(false);
        }
        let set = Arc::new(set.clone());
        let counted = transact_unless_locked(&self.shared.pools.loops, "count for a new limit", move |conn, _| {
            let set = Arc::clone(&set);
            Box::pin(async move { count_attempts(conn, std::slice::from_ref(&*set)).await })
        });
        Ok(counted.await?.is_some())
    }

    /// Let the parked jobs of a limit go that it does not cover any more, since it is about another kind or queue or is
    /// shared in another way. Their keys would let them go one by one, each with a slot that no claim needs.
    ///
    /// This is done once for each change, before the attempts of the changed limit are counted. Every runner follows it by
    /// then, so no further jobs are parked under its former values. Adds the jobs to `gone`, and returns false if
    /// another session locks one of the keys.
    async fn let_uncovered_go(&self, set: &LimitSetting, gone: &mut Vec<DueJob>) -> Result<bool, StoreError> {
        let mut after = Some((Vec::new(), Timestamp::default(), Uuid::nil()));
        while let Some(position) = after {
            let set = Arc::new(set.clone());
            let page = on_pool(&self.shared.pools.loops, "read parked jobs of a changed limit", move |conn, _| {
                let (set, position) = (Arc::clone(&set), position.clone());
                Box::pin(async move { read_uncovered(conn, &set, &position).await })
            });
            let uncovered;
            (uncovered, after) = page.await?;
            if uncovered.is_empty() {
                continue;
            }
            let uncovered = Arc::new(uncovered);
            let some =
                transact_unless_locked(&self.shared.pools.loops, "let jobs of a changed limit go", move |conn, _| {
                    let uncovered = Arc::clone(&uncovered);
                    Box::pin(async move {
                        let keys: BTreeSet<&LimitKey> = uncovered.values().collect();
                        lock_keys(conn, &keys.into_iter().collect::<Vec<_>>()).await?;
                        let_uncovered_go(conn, &uncovered).await
                    })
                });
            let Some(some) = some.await? else { return Ok(false) };
            gone.extend(some);
        }
        Ok(true)
    }
}

impl Store {
    /// Free the slots of running attempts that count under another key of a changed limit, or under none. Otherwise a
    /// job would be parked until attempts end that have nothing to do with the limit any more. Their keys let jobs go in
    /// the rest of the sweep. Returns false if another session locks one of the keys.
    ///
    /// This is done before the attempts are counted. No job of the limit starts until then, so no claim makes such slots.
    async fn free_uncovered_slots(&self, set: &LimitSetting) -> Result<bool, StoreError> {
        let (set, mut after) = (Arc::new(set.clone()), Some((Vec::new(), Uuid::nil())));
        while let Some(position) = after {
            let set = Arc::clone(&set);
            let next =
                transact_unless_locked(&self.shared.pools.loops, "free slots of a changed limit", move |conn, _| {
                    let (set, position) = (Arc::clone(&set), position.clone());
                    Box::pin(async move { free_uncovered_slots(conn, &set, &position).await })
                });
            let Some(next) = next.await? else { return Ok(false) };
            after = next;
        }
        Ok(true)
    }
}

/// Position in the slots of a limit: key and job.
type SlotPosition = (Vec<u8>, Uuid);

/// Free the slots of a page that the limit does not cover. Returns the end of the page unless it is the last one.
async fn free_uncovered_slots(
    conn: &mut Session<'_>,
    set: &LimitSetting,
    position: &SlotPosition,
) -> Result<Option<SlotPosition>, sqlx::Error> {
    let (found, next) = read_uncovered_slots(conn, set, position).await?;
    if found.is_empty() {
        return Ok(next);
    }
    lock_keys(conn, &found.keys().collect::<Vec<_>>()).await?;
    // Some of the attempts may have ended before the keys were locked.
    let (again, _) = read_uncovered_slots(conn, set, position).await?;
    let slots: Vec<(&LimitKey, Vec<Uuid>)> =
        again.iter().filter(|(key, _)| found.contains_key(*key)).map(|(key, ids)| (key, ids.clone())).collect();
    if !slots.is_empty() {
        let mut script = Script::as_text();
        delete_slots_steps(&mut script, &slots, " AND s.kept_until IS NULL");
        script.run(conn).await?;
    }
    Ok(next)
}

/// Read a page of the slots of a limit behind this position that executing jobs have. Returns those of jobs that count
/// under another key or under none, and the end of the page unless it is the last one. Slots of ended attempts are left
/// out: the sweep frees them, once the ends of their calls have counted.
async fn read_uncovered_slots(
    conn: &mut Session<'_>,
    set: &LimitSetting,
    (key, id): &SlotPosition,
) -> Result<(BTreeMap<LimitKey, Vec<Uuid>>, Option<SlotPosition>), sqlx::Error> {
    let name = set.limit.name.as_str();
    let counted_by = CountedColumns::of(std::slice::from_ref(set));
    let sql = format!(
        "SELECT s.limit_name, s.limit_key, s.job_id, o.kind, o.queue, s.kept_until IS NULL AND o.state = 'executing' \
         AS runs, {} FROM limit_slots s FORCE INDEX (PRIMARY) LEFT JOIN owed o FORCE INDEX (PRIMARY) \
         ON o.id = s.job_id {} WHERE s.limit_name = ? AND (s.limit_key > ? OR (s.limit_key = ? AND s.job_id > ?)) \
         ORDER BY s.limit_name, s.limit_key, s.job_id LIMIT {SLOTS_READ}",
        counted_by.columns.replace("l.limit_key", "l.limit_key AS limit_key_of_job"),
        counted_by.joins.replace("STRAIGHT_JOIN", "LEFT JOIN")
    );
    let rows = statement(sql).bind(name).bind(key).bind(key).bind(*id).fetch_all(conn).await?;
    let mut uncovered: BTreeMap<LimitKey, Vec<Uuid>> = BTreeMap::new();
    for row in &rows {
        let name = |column| row.try_get::<&str, _>(column).ok().and_then(|name| name.parse::<Name>().ok());
        let (Some(kind), Some(queue)) = (name("kind"), name("queue")) else { continue };
        let (limit_key, host) = (text(row, "limit_key_of_job")?, text(row, "host")?);
        let by = CountedBy { limit_key: limit_key.as_deref(), host: host.as_deref() };
        let (slot_of, counts_under) = (key_in(row)?, set.limit.key_of(&kind, &queue, by));
        let runs: Option<i64> = row.try_get("runs")?;
        if runs == Some(1) && counts_under != Some(slot_of.key.as_str()) {
            uncovered.entry(slot_of).or_default().push(row.try_get("job_id")?);
        }
    }
    let last = match rows.last().filter(|_| rows.len() == SLOTS_READ) {
        Some(row) => Some((row.try_get("limit_key")?, row.try_get("job_id")?)),
        None => None,
    };
    Ok((uncovered, last))
}

/// Position in the parked jobs of a limit: key, due time and id.
type Position = (Vec<u8>, Timestamp, Uuid);

/// Read a page of the parked jobs of a limit behind this position. Returns those that the limit does not cover, and the end
/// of the page unless it is the last one.
async fn read_uncovered(
    conn: &mut Session<'_>,
    set: &LimitSetting,
    (key, due_at, id): &Position,
) -> Result<(BTreeMap<Uuid, LimitKey>, Option<Position>), sqlx::Error> {
    let name = set.limit.name.as_str();
    let counted_by = CountedColumns::of(std::slice::from_ref(set));
    let sql = format!(
        "SELECT w.limit_name, w.limit_key, w.due_at, w.job_id, o.kind, o.queue, {} FROM limit_waits w \
         FORCE INDEX (limit_waits_line) LEFT JOIN owed o FORCE INDEX (PRIMARY) ON o.id = w.job_id {} \
         WHERE (w.limit_name = ? AND w.limit_key > ?) OR (w.limit_name = ? AND w.limit_key = ? AND w.due_at > ?) \
         OR (w.limit_name = ? AND w.limit_key = ? AND w.due_at = ? AND w.job_id > ?) \
         ORDER BY w.limit_name, w.limit_key, w.due_at, w.job_id LIMIT {PAGE_OF_PARKED}",
        counted_by.columns.replace("l.limit_key", "l.limit_key AS limit_key_of_job"),
        counted_by.joins.replace("STRAIGHT_JOIN", "LEFT JOIN")
    );
    let query = statement(sql).bind(name).bind(key).bind(name).bind(key).bind(due_at);
    let rows = query.bind(name).bind(key).bind(due_at).bind(*id).fetch_all(conn).await?;
    let mut uncovered = BTreeMap::new();
    for row in &rows {
        let name = |column| row.try_get::<&str, _>(column).ok().and_then(|name| name.parse::<Name>().ok());
        let (Some(kind), Some(queue)) = (name("kind"), name("queue")) else { continue };
        let (limit_key, host) = (text(row, "limit_key_of_job")?, text(row, "host")?);
        let by = CountedBy { limit_key: limit_key.as_deref(), host: host.as_deref() };
        let key = key_in(row)?;
        if set.limit.key_of(&kind, &queue, by) != Some(key.key.as_str()) {
            uncovered.insert(row.try_get("job_id")?, key);
        }
    }
    let last = match rows.last().filter(|_| rows.len() == PAGE_OF_PARKED) {
        Some(row) => Some((row.try_get("limit_key")?, row.try_get("due_at")?, row.try_get("job_id")?)),
        None => None,
    };
    Ok((uncovered, last))
}

/// Park those of these due jobs that have a key of a fair limit with parked jobs. Return their number.
///
/// Jobs that were let go are left out, by the slots that are kept for them: no other session makes one while this one has
/// the lock of the job. So are jobs that count by their hosts, because an operator may change the host meanwhile, and
/// those that another session locks.
async fn park_behind_others(
    conn: &mut Session<'_>,
    ids: &[Uuid],
    limits: &[LimitSetting],
) -> Result<usize, sqlx::Error> {
    let is_fair = |set: &&LimitSetting| set.limit.fair && set.limit.shared_by != SharedBy::Host;
    let fair: Vec<LimitSetting> = limits.iter().filter(is_fair).cloned().collect();
    if fair.is_empty() || ids.is_empty() {
        return Ok(0);
    }
    let keys = keys_of_jobs(conn, ids, &fair, "").await?;
    let asked: BTreeSet<&LimitKey> = keys.iter().map(|(key, _)| key).collect();
    let with_parked_jobs = keys_with_parked_jobs(conn, &asked.into_iter().collect::<Vec<_>>()).await?;
    let with_parked_jobs: BTreeSet<LimitKey> = with_parked_jobs.into_iter().collect();
    let behind = keys.iter().filter(|(key, _)| with_parked_jobs.contains(key));
    let behind: BTreeMap<Uuid, &LimitKey> = behind.map(|(key, id)| (*id, key)).collect();
    if behind.is_empty() {
        return Ok(0);
    }
    let ids: Vec<Uuid> = behind.keys().copied().collect();
    let mut script = Script::as_text();
    let (list, values) = script.list(&ids);
    script.push(
        format!(
            "SELECT o.id, o.queue, COALESCE({HELD_DUE_AT}, o.execute_at) AS due_at FROM owed o FORCE INDEX (PRIMARY) \
             WHERE o.id IN {list} AND o.state IN ('waiting', 'retrying') AND o.execute_at <= UTC_TIMESTAMP(6) \
             AND {NOT_EXPIRED} ORDER BY o.id FOR UPDATE{SKIP_LOCKED}"
        ),
        values,
    );
    let (list, values) = script.list(&ids);
    let sql = "SELECT job_id FROM limit_slots FORCE INDEX (limit_slots_job) WHERE job_id IN";
    script.push(format!("{sql} {list}"), values);
    let mut done = script.run(conn).await?;
    let with_slots = done.pop().unwrap_or_default().rows;
    let with_slots: BTreeSet<Uuid> =
        with_slots.iter().map(|row| row.try_get("job_id")).collect::<Result<_, sqlx::Error>>()?;
    let mut due: Vec<(Uuid, String, Timestamp)> = Vec::new();
    for row in &done.pop().unwrap_or_default().rows {
        let id: Uuid = row.try_get("id")?;
        if !with_slots.contains(&id) {
            due.push((id, row.try_get("queue")?, row.try_get("due_at")?));
        }
    }
    let parked: Vec<ToPark<'_>> = due
        .iter()
        .filter_map(|(id, queue, due_at)| {
            let key = behind.get(id).copied()?;
            Some(ToPark { id: *id, key, queue, due_at: (*due_at).into() })
        })
        .collect();
    if parked.is_empty() {
        return Ok(0);
    }
    let mut script = Script::as_text();
    park_step(&mut script, &parked);
    let (list, of_ids) = script.list(&parked.iter().map(|job| job.id).collect::<Vec<_>>());
    let mut values = vec![Value::from(parked_until())];
    values.extend(of_ids);
    script.push(format!("UPDATE owed FORCE INDEX (PRIMARY) SET execute_at = ? WHERE id IN {list}"), values);
    script.run(conn).await?;
    parked.iter().for_each(|job| count_parked(&job.key.limit));
    Ok(parked.len())
}

/// Keys with waiting jobs whose weights are read. With more, each key has as many slots as its weight in any case.
const MAX_WEIGHED: usize = 2_000;

async fn read_share(conn: &mut Session<'_>, set: &LimitSetting) -> Result<FairShare, sqlx::Error> {
    let (name, queue) = (set.limit.name.as_str(), set.limit.queue.as_ref().map(Name::as_str));
    let workers: i64 = sqlx::query_scalar(
        "SELECT CAST(COALESCE(SUM(slots), 0) AS SIGNED) FROM runners WHERE stopped_at IS NULL AND parent IS NULL \
         AND drained_at IS NULL AND heartbeat_at >= UTC_TIMESTAMP(6) - INTERVAL lease_ms * 1000 MICROSECOND \
         AND (? IS NULL OR JSON_CONTAINS(queues, JSON_QUOTE(?)))",
    )
    .bind(queue)
    .bind(queue.unwrap_or_default())
    .fetch_one(&mut *conn)
    .await?;
    let keys = keys_of_limit(conn, WAITS, (name, None), MAX_WEIGHED).await?;
    let keys = those_that_may_go(conn, keys).await?;
    let keys: BTreeSet<String> = keys.into_iter().map(|key| key.key).collect();
    let used =
        sqlx::query("SELECT limit_key, COUNT(*) AS slots FROM limit_slots WHERE limit_name = ? GROUP BY limit_key");
    let mut elsewhere = 0;
    for row in used.bind(name).fetch_all(conn).await? {
        let key: Vec<u8> = row.try_get("limit_key")?;
        if !keys.contains(String::from_utf8_lossy(&key).as_ref()) {
            elsewhere += row.try_get::<i64, _>("slots")?;
        }
    }
    let of = |key: &String| {
        let bounds = set.limit.bounds_of(key);
        (bounds.weight.unwrap_or(1), bounds.concurrency)
    };
    let keys: Vec<(u32, Option<u32>)> = keys.iter().map(of).collect();
    Ok(FairShare::among(u64::try_from(workers - elsewhere).unwrap_or(0), &keys))
}

/// Return those of these keys that have parked jobs in queues that are not paused: the others take nothing from anyone.
async fn those_that_may_go(
    conn: &mut Session<'_>,
    keys: BTreeSet<LimitKey>,
) -> Result<BTreeSet<LimitKey>, sqlx::Error> {
    // Without paused queues, which is the usual case, the keys alone tell it.
    if !is_any_queue_paused(conn).await? {
        return Ok(keys);
    }
    let found = keys_with_parked_jobs(conn, &keys.iter().collect::<Vec<_>>()).await?;
    Ok(found.into_iter().collect())
}

async fn is_any_queue_paused(conn: &mut Session<'_>) -> Result<bool, sqlx::Error> {
    let sql = "SELECT EXISTS (SELECT 1 FROM queues WHERE paused_at IS NOT NULL)";
    sqlx::query_scalar(sql).fetch_one(conn).await
}

/// Return these keys in the order in which their lines get their turns, beginning behind `last`. Otherwise the first
/// ones could use up the time of every sweep.
fn in_turn(mut keys: Vec<LimitKey>, last: Option<&LimitKey>) -> VecDeque<LimitKey> {
    keys.sort_unstable();
    let had_their_turns = keys.partition_point(|key| Some(key) <= last);
    keys.rotate_left(had_their_turns);
    keys.into()
}

/// Position among all slots: key and job.
type SlotPlace = (LimitKey, Uuid);

struct StaleSlots {
    slots: BTreeMap<LimitKey, Vec<Uuid>>,
    /// The last slot that was looked at, unless there are no more.
    last: Option<SlotPlace>,
}

fn slot_place(row: &MySqlRow) -> Result<SlotPlace, sqlx::Error> {
    Ok((key_in(row)?, row.try_get("job_id")?))
}

/// Build the condition that a slot of `limit_slots s` stands behind (`>`) a place, or not behind it (`<`).
fn slots_from(place: Option<&SlotPlace>, side: char) -> String {
    if place.is_none() {
        return "TRUE".to_owned();
    }
    // The place itself is among those that are not behind it.
    let last = if side == '<' { "<=" } else { ">" };
    format!(
        "(s.limit_name {side} ? OR (s.limit_name = ? AND (s.limit_key {side} ? OR (s.limit_key = ? AND s.job_id {last} ?))))"
    )
}

/// Bind the values of [`slots_from`].
fn bind_place(query: Sql, place: Option<&SlotPlace>) -> Sql {
    let Some((LimitKey { limit, key }, id)) = place else { return query };
    let (name, key) = (limit.to_string(), key.clone().into_bytes());
    query.bind(name.clone()).bind(name).bind(key.clone()).bind(key).bind(*id)
}

/// Keys that have rows in a table.
struct KeysBehind {
    keys: BTreeSet<LimitKey>,
    /// The last key that was read, unless there are no more.
    last: Option<LimitKey>,
}

impl KeysBehind {
    /// Read keys behind this one for a while.
    async fn read(conn: &mut Session<'_>, table: &str, mut after: Option<LimitKey>) -> Result<Self, sqlx::Error> {
        let (mut keys, looking) = (BTreeSet::new(), Instant::now());
        loop {
            let (limit, key) = after.map_or_else(Default::default, |key| (key.limit.to_string(), key.key));
            let query = keys_of_rows(table, "limit_name > ? OR (limit_name = ? AND limit_key > ?)");
            let query = query.bind(limit.clone()).bind(limit).bind(key.into_bytes());
            let may_have_more = add_keys(conn, query, &mut keys).await?;
            after = keys.last().filter(|_| may_have_more).cloned();
            if after.is_none() || keys.len() >= KEYS_READ || looking.elapsed() >= LOOKING {
                return Ok(Self { keys, last: after });
            }
        }
    }

    /// Add the keys of another table, up to the key to which both have been read.
    fn and(mut self, other: Self) -> Self {
        let last = [self.last, other.last].into_iter().flatten().min();
        self.keys.extend(other.keys);
        self.keys.retain(|key| last.as_ref().is_none_or(|last| key <= last));
        Self { keys: self.keys, last }
    }
}

struct KeysRead {
    with_room: Vec<LimitKey>,
    /// Keys whose lines begin with many jobs of paused queues.
    behind_paused: Vec<LimitKey>,
    last: Option<LimitKey>,
}

/// Insert the slots of executing jobs that these limits count, and say that they are counted.
async fn count_attempts(conn: &mut Session<'_>, new: &[LimitSetting]) -> Result<(), sqlx::Error> {
    // Every attempt is in a batch of claims until some time after its end, but for a deferred one: it has a row of its own.
    let batches: Vec<Vec<u8>> = sqlx::query_scalar("SELECT ids FROM claim_batches").fetch_all(&mut *conn).await?;
    // The rows of attempts that have ended stay for as long as their jobs. Only the attempts that another system works
    // on have a time at which they time out.
    let sql = "SELECT job_id FROM deferred_attempts FORCE INDEX (deferred_attempts_look) WHERE look_at IS NOT NULL";
    let deferred: Vec<Uuid> = sqlx::query_scalar(sql).fetch_all(&mut *conn).await?;
    let ids = batches.iter().flat_map(|ids| ids.chunks_exact(16)).filter_map(|id| Uuid::from_slice(id).ok());
    let ids: BTreeSet<Uuid> = ids.chain(deferred).collect();
    let ids: Vec<Uuid> = ids.into_iter().collect();
    for ids in ids.chunks(MAX_ROWS) {
        let slots = keys_of_jobs(conn, ids, new, " AND o.state = 'executing'").await?;
        let slots: Vec<(&LimitKey, Uuid)> = slots.iter().map(|(key, id)| (key, *id)).collect();
        let keys: BTreeSet<&LimitKey> = slots.iter().map(|(key, _)| *key).collect();
        if slots.is_empty() {
            continue;
        }
        lock_keys(conn, &keys.into_iter().collect::<Vec<_>>()).await?;
        let mut script = Script::as_text();
        insert_slots(&mut script, &slots, None);
        script.run(conn).await?;
    }
    for set in new {
        sqlx::query("UPDATE limits SET counted = TRUE WHERE name = ? AND version = ?")
            .bind(set.limit.name.as_str())
            .bind(set.version)
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}

/// Read the keys under which these jobs count against these limits. `only` is a condition on the jobs.
async fn keys_of_jobs(
    conn: &mut Session<'_>,
    ids: &[Uuid],
    limits: &[LimitSetting],
    only: &str,
) -> Result<BTreeSet<(LimitKey, Uuid)>, sqlx::Error> {
    let mut script = Script::as_text();
    let (list, values) = script.list(ids);
    let counted_by = CountedColumns::of(limits);
    let sql = format!(
        "SELECT o.id, o.kind, o.queue, {} FROM owed o FORCE INDEX (PRIMARY) {} WHERE o.id IN {list}{only}",
        counted_by.columns, counted_by.joins
    );
    script.push(sql, values);
    let found: Vec<MySqlRow> = script.run(conn).await?.into_iter().flat_map(|step| step.rows).collect();
    let mut keys = BTreeSet::new();
    for row in &found {
        let name = |column| row.try_get::<&str, _>(column).ok().and_then(|name| name.parse::<Name>().ok());
        let (Some(kind), Some(queue)) = (name("kind"), name("queue")) else { continue };
        let (key, host) = (text(row, "limit_key")?, text(row, "host")?);
        let by = CountedBy { limit_key: key.as_deref(), host: host.as_deref() };
        let id: Uuid = row.try_get("id")?;
        keys.extend(keys_of(limits, (&kind, &queue), by).into_iter().map(|(key, _)| (key, id)));
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use tickr_job::{Actor, Bounds, Limit, Priority};

    use super::*;

    /// A limit of three attempts.
    fn limit(name: &str, shared_by: SharedBy) -> LimitSetting {
        let bounds = Bounds { concurrency: Some(3), ..Bounds::default() };
        let (name, overrides) = (name.parse().unwrap(), BTreeMap::new());
        let limit = Limit { name, kind: None, queue: None, shared_by, fair: false, breaker: None, bounds, overrides };
        let changed = (Timestamp::default(), Actor::tickr());
        LimitSetting { limit, counted: true, changed, version: 1, breaker_since: None, share: None }
    }

    #[test]
    fn the_last_caller_whose_slots_are_free_is_told_which_jobs_were_let_go() {
        let key = |key: &str| LimitKey { limit: "l".parse().unwrap(), key: key.to_owned() };
        let slots_at = |keys: &[&str]| SlotsOfJob {
            id: Uuid::now_v7(),
            keys: keys.iter().copied().map(key).collect(),
            call: None,
            keeps: false,
        };
        let items = [&["a"][..], &["a", "b"], &["a"], &["b"], &["a", "c"]].map(slots_at);
        let job = DueJob {
            id: JobId::new(),
            queue: "default".parse().unwrap(),
            priority: Priority::default(),
            execute_at: Timestamp::default(),
            kind: "noop".parse().unwrap(),
        };
        let told = |got: &[&str], left: &[&str]| -> Vec<(usize, bool)> {
            let [got, left]: [BTreeSet<LimitKey>; 2] = [got, left].map(|keys| keys.iter().copied().map(key).collect());
            let replies = replies(&items, &got, &left, vec![job.clone()]);
            replies.into_iter().map(|reply| (reply.let_go.len(), reply.busy)).collect()
        };
        // The caller of the third one may have come seconds after the first one.
        assert_eq!(told(&["a"], &["c"]), [(0, false), (0, true), (1, false), (0, true), (0, false)]);
        assert_eq!(told(&["a", "b", "c"], &[]).iter().map(|(jobs, _)| *jobs).collect::<Vec<_>>(), [0, 0, 0, 0, 1]);
        assert_eq!(told(&[], &["a", "b"]), [(0, false); 5]);
    }

    #[test]
    fn keys_of_two_tables_are_read_up_to_where_both_were_read() {
        let key = |key: &str| LimitKey { limit: "l".parse().unwrap(), key: key.to_owned() };
        let read = |keys: &[&str], last: Option<&str>| KeysBehind {
            keys: keys.iter().copied().map(key).collect(),
            last: last.map(key),
        };
        let both = |one: KeysBehind, other: KeysBehind| -> (Vec<String>, Option<String>) {
            let KeysBehind { keys, last } = one.and(other);
            (keys.into_iter().map(|key| key.key).collect(), last.map(|key| key.key))
        };
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let to_c = both(read(&["a", "c"], Some("c")), read(&["b", "d", "f"], Some("f")));
        assert_eq!(to_c, (words(&["a", "b", "c"]), Some("c".to_owned())));
        let to_d = both(read(&["e", "f"], None), read(&["c", "d"], Some("d")));
        assert_eq!(to_d, (words(&["c", "d"]), Some("d".to_owned())));
        assert_eq!(both(read(&["b"], None), read(&["a", "b"], None)), (words(&["a", "b"]), None));
    }

    #[test]
    fn lines_behind_paused_jobs_take_turns_over_the_sweeps() {
        let key = |key: &str| LimitKey { limit: "l".parse().unwrap(), key: key.to_owned() };
        let order = |last: Option<&str>| -> String {
            let keys = ["c", "a", "b"].map(key).to_vec();
            in_turn(keys, last.map(key).as_ref()).into_iter().map(|key| key.key).collect()
        };
        assert_eq!([None, Some("a"), Some("bb"), Some("c")].map(order), ["abc", "bca", "cab", "abc"]);
    }

    #[test]
    fn jobs_go_from_a_wide_line_to_a_narrow_one_at_once_and_not_back() {
        let limits = [limit("all", SharedBy::All), limit("key", SharedBy::Key)];
        let (kind, queue) = ("noop".parse().unwrap(), "default".parse().unwrap());
        let keys = keys_of(&limits, (&kind, &queue), CountedBy { limit_key: Some("a"), host: None });
        let job = Limited { id: Uuid::from_u128(1), execute_at: Timestamp::default(), keys };
        let [wide, narrow] = [0, 1].map(|place| job.keys[place].0.clone());
        let next = |kept: &LimitKey, refused_at: &LimitKey| {
            let slots = BTreeSet::from([(kept.clone(), job.id)]);
            let kept_for =
                KeptFor { with_slots: BTreeSet::new(), slots, due: BTreeMap::from([(job.id, Some(job.execute_at))]) };
            keys_of_next_jobs(&[], &[(&job, refused_at)], &kept_for, &BTreeMap::new())
        };
        assert_eq!(next(&wide, &narrow), BTreeSet::from([wide.clone()]));
        assert_eq!(next(&narrow, &wide), BTreeSet::new());
    }
}
