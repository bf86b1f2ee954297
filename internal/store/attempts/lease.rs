//! Leases: the heartbeat of a runner renews them, and the reaper ends attempts whose lease has lapsed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use uuid::Uuid;

use crate::attempts::claim_batches::{LapseRule, Lapsed, Unstarted, deferred_among, have_reached};
use crate::attempts::remote::left_among;
use crate::attempts::renewal::{Caution, HeartbeatAnswer, PAUSE, TRIES, look, progress_text, renew, write_progress};
use crate::attempts::settle::{decide, read_earlier_lives, write_moves};
use crate::attempts::settlement::{Again, CheckpointUse, Settled, Settlement};
use crate::rows::order::{OrderedJobs, lock_free_keys_of, lock_keys_of};
use crate::rows::owed::{Owed, SKIP_LOCKED, left_of, lock_free, lock_held};
use crate::runners::{LiveAttempt, job_ids};
use crate::sql::batches::{MAX_ROWS, bind_padded, padded_len, placeholders, statement};
use crate::sql::clock::{Reading, read_clock};
use crate::sql::connection::{DedicatedConnection, on_pool, transact};
use crate::sql::error::{corrupt, is_locked_elsewhere};
use crate::sql::script::Script;
use crate::sql::session::Session;
use crate::{Store, StoreError, StoreInner};
use tickr_job::{AttemptToken, Editions, JobId, JobOptions, Name, RetryPolicy, RunnerId, State, Timestamp, Verdict};

/// The row of a runner, as the runner reports it about itself.
#[derive(Clone, Debug)]
pub struct RunnerRow {
    /// The id of the runner.
    pub id: RunnerId,
    /// Version of the binary.
    pub version: &'static str,
    /// Kinds that it can run.
    pub kinds: Vec<Name>,
    /// The versions of its payload types, per kind.
    pub editions: Editions,
    /// Queues that it serves.
    pub queues: Vec<Name>,
    /// Number of its workers.
    pub workers: u32,
    /// Length of its lease.
    pub lease: Duration,
    /// Name of its host.
    pub host: String,
    /// Its process id on that host.
    pub pid: u32,
    /// The runner that started this process to run a suspect; absent for an ordinary runner.
    pub parent: Option<RunnerId>,
}

/// Why an attempt is given back whose worker has left.
const LEFT: &str = "its worker ended and gave it back";

/// Which attempts of a remote worker are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Returned {
    /// All of them.
    All,
    /// Those that cannot have reached their worker by another answer.
    Unreached,
    /// The same, and their claims are undone: the jobs wait as if they had not been claimed, and the ledger gets no row
    /// of the attempts.
    Undone,
}

/// The outcome for attempts that are given back without a wait for their rows.
#[derive(Debug, Default)]
pub struct GiveBack {
    /// The attempts that were given back.
    pub given: Vec<Reaped>,
    /// Jobs whose rows another session locks at this moment. Their attempts may be open.
    pub locked: Vec<JobId>,
}

/// The connection of the heartbeat to MySQL. Nothing else uses it.
pub struct HeartbeatConnection {
    link: DedicatedConnection,
    clock: Arc<crate::sql::clock::StoreClock>,
    caution: Arc<Caution>,
    /// Whether the newest call, if it is a heartbeat, began with caution.
    began_with_caution: Option<bool>,
    /// The jobs that the runner's workers execute, as they were last written to MySQL.
    told: Option<Vec<u8>>,
}

impl std::fmt::Debug for HeartbeatConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HeartbeatConnection")
    }
}

/// A runner that has not stopped, as its row shows it.
#[derive(Clone, Debug)]
pub struct RunnerBeat {
    /// The id of the runner.
    pub id: RunnerId,
    /// Length of its lease.
    pub lease: Duration,
    /// Time of its last heartbeat, by the database's clock.
    pub heartbeat_at: Timestamp,
    /// True if it records its claims in `claim_batches`. Older binaries do not.
    pub writes_batches: bool,
    /// True if it is a remote worker.
    pub is_remote: bool,
}

/// The runners that have not stopped.
#[derive(Debug)]
pub struct UnstoppedRunners {
    /// The reading of the database's clock that was taken with them.
    pub reading: Reading,
    /// Each of them.
    pub beats: Vec<RunnerBeat>,
    /// What those of them execute that have sent a heartbeat within their lease.
    pub served: ServedKinds,
}

/// The queues and the kinds of living runners.
#[derive(Debug, Default)]
pub struct ServedKinds(Vec<(HashSet<Name>, HashSet<Name>)>);

impl ServedKinds {
    /// Return whether a runner serves this queue and has this kind.
    #[must_use]
    pub fn has(&self, queue: &Name, kind: &Name) -> bool {
        self.0.iter().any(|(queues, kinds)| queues.contains(queue) && kinds.contains(kind))
    }

    /// Return the kinds of all of them.
    #[must_use]
    pub fn kinds(self) -> HashSet<Name> {
        self.0.into_iter().flat_map(|(_, kinds)| kinds).collect()
    }

    /// Read the lists of runners. Most runners have the same ones.
    fn read<'t>(lists: impl IntoIterator<Item = (&'t str, &'t str)>) -> Self {
        let names = |text: &str| -> HashSet<Name> {
            // One bad row must not keep the caller from its other work.
            serde_json::from_str(text).unwrap_or_else(|error| {
                tracing::error!(%error, "cannot read the queues or the kinds of a runner");
                HashSet::new()
            })
        };
        let distinct: HashSet<(&str, &str)> = lists.into_iter().collect();
        Self(distinct.into_iter().map(|(queues, kinds)| (names(queues), names(kinds))).collect())
    }
}

/// One page of a walk through the `owed` rows.
#[derive(Debug)]
pub struct OwedPage {
    /// Attempts whose lease has lapsed.
    pub lapsed: Vec<Lapsed>,
    /// The position to continue after; absent at the end.
    pub next: Option<JobId>,
}

/// An attempt that was ended without its holder.
#[derive(Clone, Debug)]
pub struct Reaped {
    /// The id of the job.
    pub id: JobId,
    /// The kind of the job.
    pub kind: Name,
    /// The queue of the job.
    pub queue: Name,
    /// The state of the job now.
    pub state: State,
    /// The verdict with which it was ended.
    pub verdict: Verdict,
    /// Outcome of the settlement.
    pub settled: Settled,
}

impl Store {
    /// Return a connection for one heartbeat. It is opened at its first use.
    #[must_use]
    pub fn heartbeat_connection(&self) -> HeartbeatConnection {
        let mut link = DedicatedConnection::new(self.shared.options.clone());
        link.hurry(true);
        let clock = self.shared.clock.clone();
        HeartbeatConnection { link, clock, caution: Arc::default(), began_with_caution: None, told: None }
    }

    /// Read the clock and the runners that have not stopped.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn unstopped_runners(&self) -> Result<UnstoppedRunners, StoreError> {
        let clock = Arc::clone(&self.shared.clock);
        on_pool(&self.shared.pools.loops, "read the heartbeats of runners", move |conn, _| {
            let clock = Arc::clone(&clock);
            Box::pin(async move {
                // One statement, and a row even when there is no runner.
                let sql = "SELECT UTC_TIMESTAMP(6) AS now, r.id, r.lease_ms, r.heartbeat_at, r.claim_batches, \
                           r.via = 'http' AS is_remote, \
                           r.queues, \
                           IF(r.heartbeat_at >= UTC_TIMESTAMP(6) - INTERVAL r.lease_ms * 1000 MICROSECOND, r.kinds, NULL) \
                           AS kinds FROM (SELECT 1 AS n) one LEFT JOIN runners r FORCE INDEX (runners_stopped) \
                           ON r.stopped_at IS NULL";
                let sent = Instant::now();
                let found = sqlx::raw_sql(sql).fetch_all(conn).await?;
                let received = Instant::now();
                let moment = found.first().ok_or_else(|| corrupt("a clock without a row"))?.try_get("now")?;
                clock.sample(sent, received, moment);
                let reading = Reading { sent, received, moment };
                let mut runners = UnstoppedRunners { reading, beats: Vec::new(), served: ServedKinds::default() };
                let mut lists = Vec::new();
                for row in &found {
                    let Some(id) = row.try_get("id")? else { continue };
                    runners.beats.push(RunnerBeat {
                        id: RunnerId::from_stored(id),
                        lease: Duration::from_millis(u64::from(row.try_get::<u32, _>("lease_ms")?)),
                        heartbeat_at: row.try_get("heartbeat_at")?,
                        writes_batches: row.try_get("claim_batches")?,
                        is_remote: row.try_get::<i64, _>("is_remote")? != 0,
                    });
                    if let Some(kinds) = row.try_get::<Option<&str>, _>("kinds")? {
                        lists.push((row.try_get("queues")?, kinds));
                    }
                }
                runners.served = ServedKinds::read(lists);
                Ok(runners)
            })
        })
        .await
    }

    /// Read one page of a walk through the `owed` rows in the order of their ids: the attempts among the next `rows`
    /// rows whose lease has lapsed. The walk finds the attempts of older binaries, which do not record their claims in
    /// `claim_batches`.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn walk_owed(&self, after: Option<JobId>, rule: LapseRule, rows: u32) -> Result<OwedPage, StoreError> {
        let after = after.map_or(Uuid::nil(), JobId::uuid);
        on_pool(&self.shared.pools.loops, "walk through the owed rows", move |conn, _| {
            Box::pin(async move {
                let end = "SELECT id FROM owed FORCE INDEX (PRIMARY) WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?";
                let end: Option<Uuid> = sqlx::query_scalar(end)
                    .bind(after)
                    .bind(i64::from(rows.saturating_sub(1)))
                    .fetch_optional(&mut *conn)
                    .await?;
                let sql = "SELECT id, token, lease_until FROM owed FORCE INDEX (PRIMARY) WHERE id > ? AND id <= ? \
                           AND state = 'executing'";
                let query = sqlx::query(sql).bind(after).bind(end.unwrap_or(Uuid::max()));
                let mut lapsed = Vec::new();
                for row in query.fetch_all(conn).await? {
                    let until: Timestamp = row.try_get("lease_until")?;
                    if rule.has_lapsed(until) {
                        let (id, token) =
                            (JobId::from_uuid(row.try_get("id")?), AttemptToken::from_uuid(row.try_get("token")?));
                        lapsed.push(Lapsed { id, token, until });
                    }
                }
                Ok(OwedPage { lapsed, next: end.map(JobId::from_uuid) })
            })
        })
        .await
    }

    /// Mark a silent runner as stopped, if it has sent no heartbeat since it was read and has no open claim, and no other
    /// session locks its row. The caller waits until the runner has been silent for two leases. One lease would be too
    /// short: the lease of a job that it claimed after its last heartbeat ends later than that.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn mark_runner_gone(&self, runner: &RunnerBeat) -> Result<(), StoreError> {
        let runner = runner.clone();
        transact(&self.shared.pools.loops, "mark a silent runner as gone", move |conn, _| {
            let runner = runner.clone();
            Box::pin(async move {
                // A claim for a remote worker locks the row of the worker, in a process that may have frozen. The reaper
                // does not wait for that, and comes back.
                let lock = statement(format!("SELECT id FROM runners WHERE id = ? FOR UPDATE{SKIP_LOCKED}"));
                if lock.bind(runner.id.as_str()).fetch_optional(&mut *conn).await?.is_none() {
                    return Ok(());
                }
                // Another session may lock a batch that is over. The update would wait for it.
                let batch =
                    sqlx::query("SELECT 1 FROM claim_batches WHERE runner = ? LIMIT 1").bind(runner.id.as_str());
                if batch.fetch_optional(&mut *conn).await?.is_some() {
                    return Ok(());
                }
                sqlx::query(
                    "UPDATE runners SET stopped_at = UTC_TIMESTAMP(6) WHERE id = ? AND stopped_at IS NULL \
                     AND heartbeat_at = ? AND NOT EXISTS (SELECT 1 FROM claim_batches b WHERE b.runner = ?)",
                )
                .bind(runner.id.as_str())
                .bind(runner.heartbeat_at)
                .bind(runner.id.as_str())
                .execute(conn)
                .await?;
                Ok(())
            })
        })
        .await
    }

    /// End attempts whose lease has lapsed, with the verdict `lost`. Those of a remote worker that has left are given
    /// back instead, and no attempt is used: the process that it told may have died before it gave them back, or may
    /// have waited for a locked row in vain. Only attempts whose token and lease are unchanged when the row is locked
    /// are ended, and none that another system finishes: such an attempt has a time of its own. Rows that another
    /// session locks are left for the next call. After its first loss a job keeps its position in the due order and
    /// runs again at once. After further losses a job runs again after a backoff: its own, else that of its kind in
    /// `policies`, else the default. If MySQL refuses to end an attempt, it is returned separately with the error, so
    /// that one bad row does not block the others.
    ///
    /// # Errors
    /// When MySQL cannot be reached.
    #[boxed]
    pub async fn reap(
        &self,
        lapsed: Vec<Lapsed>,
        policies: Arc<HashMap<Name, RetryPolicy>>,
    ) -> Result<(Vec<Reaped>, Vec<(JobId, StoreError)>), StoreError> {
        let (mut reaped, mut refused) = (Vec::new(), Vec::new());
        if lapsed.is_empty() {
            return Ok((reaped, refused));
        }
        match self.reap_together(lapsed.clone(), Arc::clone(&policies)).await {
            Ok(reaped) => return Ok((reaped, refused)),
            Err(error) if error.is_transient() => return Err(error),
            Err(error) if lapsed.len() == 1 => {
                refused.extend(lapsed.first().map(|alone| (alone.id, error)));
                return Ok((reaped, refused));
            }
            Err(error) => tracing::warn!(%error, attempts = lapsed.len(), "cannot end lost attempts together"),
        }
        for alone in lapsed {
            match self.reap_together(vec![alone], Arc::clone(&policies)).await {
                Ok(done) => reaped.extend(done),
                Err(error) if error.is_transient() => return Err(error),
                Err(error) => refused.push((alone.id, error)),
            }
        }
        Ok((reaped, refused))
    }

    async fn reap_together(
        &self,
        lapsed: Vec<Lapsed>,
        policies: Arc<HashMap<Name, RetryPolicy>>,
    ) -> Result<Vec<Reaped>, StoreError> {
        let (shared, lapsed) = (self.shared.clone(), Arc::<[Lapsed]>::from(lapsed));
        let tokens: HashMap<JobId, AttemptToken> = lapsed.iter().map(|lapsed| (lapsed.id, lapsed.token)).collect();
        let reaped: Vec<Reaped> = transact(&self.shared.pools.loops, "end lost attempts", move |conn, _| {
            let (shared, lapsed, policies) = (shared.clone(), Arc::clone(&lapsed), Arc::clone(&policies));
            Box::pin(async move {
                let ids: Vec<JobId> = lapsed.iter().map(|lapsed| lapsed.id).collect();
                let own = own_policies(conn, &ids).await?;
                // A runner that froze in a transaction keeps its locks, perhaps for long. Its other attempts must not
                // wait for that.
                let uuids: Vec<Uuid> = ids.iter().map(|id| id.uuid()).collect();
                let (ordered, locked) = lock_free_keys_of(conn, &uuids).await?;
                let mut held = lock_free(conn, ids.into_iter().filter(|id| !locked.contains(&id.uuid()))).await?;
                // A beat that was under way when the attempt was left to another system has shortened its lease.
                let deferred = deferred_among(conn, held.keys().map(|id| id.uuid()).collect()).await?;
                let left = left_among(conn, &held.values().map(|owed| owed.runner.as_str()).collect()).await?;
                let policy =
                    |id: &JobId| own.get(id).or_else(|| policies.get(&held[id].kind)).cloned().unwrap_or_default();
                let ends: Vec<Settlement> = lapsed
                    .iter()
                    .filter(|lapsed| {
                        held.get(&lapsed.id)
                            .is_some_and(|owed| owed.token == lapsed.token && owed.lease_until == lapsed.until)
                    })
                    .filter(|lapsed| !deferred.contains(&(lapsed.id.uuid(), lapsed.token.uuid())))
                    .map(|lapsed| {
                        let owed = &held[&lapsed.id];
                        if left.contains(owed.runner.as_str()) {
                            return given_back(lapsed.id, owed, LEFT);
                        }
                        let again = after_loss(owed, policy(&lapsed.id));
                        ending(lapsed.id, owed, Verdict::Lost, "the runner died or lost its lease", again)
                    })
                    .collect();
                read_earlier_lives(conn, ends.iter(), &mut held).await?;
                end(conn, &shared, &ends, &held, &ordered).await
            })
        })
        .await?;
        for reaped in &reaped {
            if let Some(token) = tokens.get(&reaped.id) {
                self.shared.open_claims.ended(reaped.id, *token);
            }
        }
        Ok(reaped)
    }

    /// Give back attempts whose handler was not started, if the token still holds them. They do not count against
    /// `max_attempts`, and their jobs are due at once, or later if that has happened very often ([`Again::NowOrLater`]).
    ///
    /// This waits for the row locks of a claim whose COMMIT is under way, so that the claim is either committed or
    /// rolled back when the rows are read.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn give_back(
        &self,
        token: AttemptToken,
        ids: Vec<JobId>,
        why: &'static str,
    ) -> Result<Vec<Reaped>, StoreError> {
        Ok(self.give_back_with(token, ids, why, None).await?.given)
    }

    /// Do what [`give_back`](Self::give_back) does with attempts of a remote worker, without the rows that another session
    /// locks at this moment.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn give_back_free(
        &self,
        worker: &RunnerId,
        token: AttemptToken,
        ids: Vec<JobId>,
        why: &'static str,
        which: Returned,
    ) -> Result<GiveBack, StoreError> {
        self.give_back_with(token, ids, why, Some((worker.clone(), which))).await
    }

    /// Give attempts back. Those `of_worker` are given back without a wait for their rows.
    async fn give_back_with(
        &self,
        token: AttemptToken,
        ids: Vec<JobId>,
        why: &'static str,
        of_worker: Option<(RunnerId, Returned)>,
    ) -> Result<GiveBack, StoreError> {
        let (shared, ids) = (self.shared.clone(), Arc::<[JobId]>::from(ids));
        let done = transact(&self.shared.pools.loops, "give attempts back", move |conn, _| {
            let (shared, ids, of_worker) = (shared.clone(), Arc::clone(&ids), of_worker.clone());
            Box::pin(async move {
                let of_worker = of_worker.as_ref().map(|(worker, which)| (worker, *which));
                give_claim_back(conn, &shared, (token, &ids), why, of_worker).await
            })
        })
        .await?;
        for reaped in &done.given {
            self.shared.open_claims.ended(reaped.id, token);
        }
        Ok(done)
    }

    /// Give back the attempts of claims that were never answered, and those for which a limit left no room after a
    /// COMMIT that took long. No handler was started for them.
    ///
    /// # Errors
    /// When MySQL cannot be reached. The next call tries the remaining attempts again.
    #[boxed]
    pub async fn give_back_unanswered(&self) -> Result<Vec<Reaped>, StoreError> {
        let (mut given, mut later) = (Vec::new(), Vec::new());
        let mut unanswered = self.take_unanswered().into_iter();
        let mut failed = None;
        for Unstarted { token, ids, why, late } in unanswered.by_ref() {
            // A later claim under the same token took these jobs and was answered.
            let mut ids: Vec<JobId> = ids.into_iter().filter(|id| !self.is_handed_out(*id, token)).collect();
            if ids.is_empty() {
                continue;
            }
            match self.give_back(token, ids.clone(), why).await {
                Ok(done) => {
                    ids.retain(|id| done.iter().all(|given| given.id != *id));
                    later.extend(late.after_a_look().map(|late| Unstarted { token, ids, why, late }));
                    given.extend(done);
                }
                Err(error) if error.is_transient() => {
                    later.push(Unstarted { token, ids, why, late });
                    failed = Some(error);
                    break;
                }
                // The leases of these attempts end later, and the reaper ends them as lost.
                Err(error) => tracing::error!(%error, jobs = ids.len(), "cannot give unstarted claims back"),
            }
        }
        for unstarted in later.into_iter().chain(unanswered) {
            self.shared.open_claims.leave(unstarted);
        }
        if let Some(error) = failed {
            return Err(error);
        }
        Ok(given)
    }
}

/// Return when a job runs again after its runner died. The first loss is no evidence against the job, so it does not
/// wait. After further losses each job draws its own random delay, so that jobs lost together come back at different
/// times.
pub(crate) fn after_loss(owed: &Owed, policy: RetryPolicy) -> Again {
    if owed.losses == 0 { Again::Now } else { Again::Backoff(policy, rand::random()) }
}

/// Give back the attempts of a claim, or those `of_worker` that are meant.
async fn give_claim_back(
    conn: &mut Session<'_>,
    shared: &StoreInner,
    (token, ids): (AttemptToken, &[JobId]),
    why: &str,
    of_worker: Option<(&RunnerId, Returned)>,
) -> Result<GiveBack, sqlx::Error> {
    let uuids: Vec<Uuid> = ids.iter().map(|id| id.uuid()).collect();
    let waits = of_worker.is_none();
    let (ordered, mut held, locked) = if waits {
        let ordered = lock_keys_of(conn, &uuids).await?;
        (ordered, lock_held(conn, ids.iter().copied()).await?, BTreeSet::new())
    } else {
        let (ordered, busy) = lock_free_keys_of(conn, &uuids).await?;
        let held = lock_free(conn, ids.iter().copied().filter(|id| !busy.contains(&id.uuid()))).await?;
        let locked = left_of(conn, ids.iter().copied().collect(), &held).await?;
        (ordered, held, locked)
    };
    // Behind the locks of their rows: a repeated request may have got them meanwhile.
    if let Some((worker, Returned::Unreached | Returned::Undone)) = of_worker {
        match have_reached(conn, worker, token).await? {
            Some(false) => {}
            Some(true) => return Ok(GiveBack::default()),
            None => return Ok(GiveBack { given: Vec::new(), locked: ids.to_vec() }),
        }
    }
    let mut ends: Vec<Settlement> = Vec::new();
    for (id, owed) in held.iter().filter(|(_, owed)| owed.token == token) {
        ends.push(match of_worker {
            Some((_, Returned::Undone)) => ending(*id, owed, Verdict::Interrupted, why, Again::Unstarted),
            _ => given_back(*id, owed, why),
        });
    }
    read_earlier_lives(conn, ends.iter(), &mut held).await?;
    let given = end(conn, shared, &ends, &held, &ordered).await?;
    Ok(GiveBack { given, locked: locked.into_iter().collect() })
}

/// Build the end of an attempt that is given back without a word of its worker.
fn given_back(id: JobId, owed: &Owed, why: &str) -> Settlement {
    ending(id, owed, Verdict::Interrupted, why, Again::NowOrLater(rand::random()))
}

/// Build the end of an attempt that its holder does not settle.
pub(super) fn ending(id: JobId, owed: &Owed, verdict: Verdict, why: &str, again: Again) -> Settlement {
    Settlement {
        id,
        token: owed.token,
        number: owed.attempt,
        opened: None,
        verdict,
        error: Some(why.into()),
        exchange: None,
        log: None,
        result: None,
        follow_ups: Vec::new(),
        again,
        call: None,
        checkpoint: CheckpointUse::Unused,
    }
}

/// Write the ends of attempts whose rows are locked.
pub(super) async fn end(
    conn: &mut Session<'_>,
    shared: &StoreInner,
    ends: &[Settlement],
    held: &std::collections::BTreeMap<JobId, Owed>,
    ordered: &OrderedJobs,
) -> Result<Vec<Reaped>, sqlx::Error> {
    // Read the clock after the locks, because this may have waited for them.
    let now = read_clock(conn, &shared.clock).await?;
    let mut moves = Vec::with_capacity(ends.len());
    for item in ends {
        moves.push(decide(0, item, &held[&item.id], now)?);
    }
    moves.sort_unstable_by_key(|step| step.item.id);
    let mut written = write_moves(conn, &moves, ordered, now, &shared.clock, shared.lanes.any()).await?;
    // A moment before the COMMIT. If the loops come too early, the summary of changes tells them again.
    shared.links_ended(written.linked);
    let done = |step: &crate::attempts::settle::Transition<'_>| Reaped {
        id: step.item.id,
        kind: step.owed.kind.clone(),
        queue: step.owed.queue.clone(),
        state: step.state,
        verdict: step.item.verdict,
        settled: Settled::Done {
            state: step.state,
            execute_at: step.execute_at,
            line: step.line(),
            follow_ups: Vec::new(),
            released: std::mem::take(&mut written.released),
        },
    };
    Ok(moves.iter().map(done).collect())
}

/// Read the retry policies of those jobs that have their own or keep that of their declared kind. If options cannot be
/// read, the default applies: the job must not stay lost.
pub(crate) async fn own_policies(
    conn: &mut Session<'_>,
    ids: &[JobId],
) -> Result<HashMap<JobId, RetryPolicy>, sqlx::Error> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.uuid()).collect();
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let sql = format!(
        "SELECT id, options FROM jobs FORCE INDEX (PRIMARY) WHERE id IN {} AND options IS NOT NULL",
        placeholders(padded_len(ids.len()))
    );
    let query = bind_padded(statement(sql), &ids);
    let mut own = HashMap::new();
    for row in query.fetch_all(conn).await? {
        let options = serde_json::from_str::<JobOptions>(row.try_get("options")?).unwrap_or_default();
        if let Some(policy) = options.backoff() {
            own.insert(JobId::from_uuid(row.try_get("id")?), policy.clone());
        }
    }
    Ok(own)
}

/// Time after which a call that waits for a locked row has given up and said so, unless MySQL is very slow.
const SURE_OF_LOCKS: Duration = Duration::from_secs(3);

impl HeartbeatConnection {
    /// Open the connection, if it is closed. While MySQL is slow this takes longer than a heartbeat, so it has a time of its
    /// own.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn connect(&mut self) -> Result<(), StoreError> {
        self.began_with_caution = None;
        self.link.run("connect for heartbeats", |_, _| Box::pin(async { Ok(()) })).await
    }

    /// Register this runner in the table `runners`. Its lease runs from now.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn register(&mut self, runner: &RunnerRow) -> Result<(), StoreError> {
        let names = |names: &[Name]| serde_json::to_string(names).unwrap_or_default();
        let (kinds, queues) = (names(&runner.kinds), names(&runner.queues));
        let editions = serde_json::to_string(&runner.editions).ok();
        let runner = runner.clone();
        self.link
            .run("register the runner", |conn, _| {
                let (runner, kinds, queues, editions) = (runner.clone(), kinds.clone(), queues.clone(), editions.clone());
                Box::pin(async move {
                    sqlx::query(
                        "INSERT INTO runners (id, version, kinds, kind_schemas, queues, slots, lease_ms, host, pid, parent, \
                          started_at, heartbeat_at, claim_batches) \
                          VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), TRUE) \
                         ON DUPLICATE KEY UPDATE heartbeat_at = UTC_TIMESTAMP(6), stopped_at = NULL",
                    )
                    .bind(runner.id.as_str())
                    .bind(runner.version)
                    .bind(kinds)
                    .bind(editions)
                    .bind(queues)
                    .bind(runner.workers)
                    .bind(u32::try_from(runner.lease.as_millis()).unwrap_or(u32::MAX))
                    .bind(runner.host.as_str())
                    .bind(runner.pid)
                    .bind(runner.parent.as_ref().map(RunnerId::as_str))
                    .execute(conn)
                    .await?;
                    Ok(())
                })
            })
            .await
    }

    /// Renew the leases of all live attempts, and return those that are lost or have a cancel requested. The ids of the
    /// first [`MAX_WORKER_JOBS`](crate::MAX_WORKER_JOBS) attempts are written to the runner's row for operators,
    /// if they have changed.
    ///
    /// Leases are renewed in pages, those renewed longest ago first. `renewed` is called after each page, so that the
    /// renewals of earlier pages count even if a later page fails or takes too long. A row that another session locks
    /// keeps no other lease from being renewed. The runner's row is written last, and a lock on it fails no heartbeat.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn beat(
        &mut self,
        runner: &RunnerId,
        lease: Duration,
        live: &[LiveAttempt],
        renewed: &(dyn Fn(&[LiveAttempt]) + Sync),
    ) -> Result<HeartbeatAnswer, StoreError> {
        self.began_with_caution = Some(self.caution.holds());
        let clock = self.clock.clone();
        let (runner, busy) = (runner.clone(), u32::try_from(live.len()).unwrap_or(u32::MAX));
        let listed = job_ids(live);
        let news = (self.told.as_ref() != Some(&listed)).then(|| Arc::new(listed));
        let mut beat = HeartbeatAnswer::default();
        let mut oldest_first: Vec<LiveAttempt> = live.to_vec();
        oldest_first.sort_unstable_by_key(|attempt| (attempt.leased, attempt.id));
        for page in oldest_first.chunks_mut(MAX_ROWS) {
            page.sort_unstable_by_key(|attempt| attempt.id);
            let page = Arc::new(page.to_vec());
            let caution = &self.caution;
            let answer = self
                .link
                .run("renew leases", |conn, _| renew(conn, Arc::clone(&page), lease, Arc::clone(caution)))
                .await?;
            let is_renewed = |attempt: &&LiveAttempt| !answer.locked.contains(&(attempt.id, attempt.token));
            renewed(&page.iter().filter(is_renewed).cloned().collect::<Vec<_>>());
            beat.lost.extend(answer.lost);
            beat.cancel_requested.extend(answer.cancel_requested);
            beat.locked.extend(answer.locked);
        }
        let caution = &self.caution;
        beat.told = self
            .link
            .run("write the heartbeat", |conn, _| {
                let (clock, runner, news, caution) = (clock.clone(), runner.clone(), news.clone(), Arc::clone(caution));
                Box::pin(async move {
                    read_clock(conn, &clock).await?;
                    // Use the best of the recent clock readings, because this one may have been delayed.
                    let skew = (chrono::Utc::now() - clock.now()).num_milliseconds();
                    let jobs = news.as_ref().map(|ids| ids.as_slice());
                    write_runner(conn, &runner, (busy, skew), jobs, &caution).await
                })
            })
            .await?;
        if beat.told
            && let Some(news) = news
        {
            self.told = Some(Arc::unwrap_or_clone(news));
        }
        Ok(beat)
    }

    /// Read cancel requests between heartbeats, without renewing leases.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn look(&mut self, live: &[LiveAttempt]) -> Result<HeartbeatAnswer, StoreError> {
        self.began_with_caution = None;
        let mut beat = HeartbeatAnswer::default();
        for page in live.chunks(MAX_ROWS) {
            let page = Arc::new(page.to_vec());
            let answer = self.link.run("look for cancels", |conn, _| look(conn, page.clone())).await?;
            beat.lost.extend(answer.lost);
            beat.cancel_requested.extend(answer.cancel_requested);
        }
        Ok(beat)
    }

    /// Write the progress of live attempts. This is not part of a heartbeat, because a lease must not depend on it.
    /// Returns those whose progress was not written, because another session locks their rows or they have ended.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn write_progress(&mut self, live: &[LiveAttempt]) -> Result<Vec<LiveAttempt>, StoreError> {
        let said: Vec<(Uuid, Uuid, String)> = live
            .iter()
            .filter_map(|attempt| Some((attempt, attempt.progress.as_ref()?)))
            .map(|(attempt, progress)| (attempt.id.uuid(), attempt.token.uuid(), progress_text(progress)))
            .collect();
        if said.is_empty() {
            return Ok(Vec::new());
        }
        self.began_with_caution = None;
        let said = Arc::new(said);
        let left = self
            .link
            .run("write progress", |conn, _| {
                let said = Arc::clone(&said);
                Box::pin(async move { write_progress(conn, &said).await })
            })
            .await?;
        let is_left = |attempt: &&LiveAttempt| attempt.progress.is_some() && left.contains(&attempt.id.uuid());
        Ok(live.iter().filter(is_left).cloned().collect())
    }

    /// Close the connection without waiting for the statement that runs on it. `patience` is the time that the call had.
    ///
    /// If that was short, a heartbeat may have waited for a locked row for longer, so the next one leaves such rows out. That
    /// takes many more answers, and while MySQL is slow a heartbeat may fail for that alone: the one after it does not.
    pub fn disconnect(&mut self, patience: Duration) {
        self.link.disconnect();
        match self.began_with_caution.take() {
            Some(true) => self.caution.end(),
            Some(false) if patience < SURE_OF_LOCKS => self.caution.begin(),
            _ => {}
        }
    }

    /// Mark this runner as stopped. Its attempts are settled by now.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn unregister(&mut self, runner: &RunnerId) -> Result<(), StoreError> {
        let runner = runner.clone();
        self.link
            .run("mark the runner as stopped", |conn, _| {
                let runner = runner.clone();
                Box::pin(async move {
                    sqlx::query(
                        "UPDATE runners SET stopped_at = UTC_TIMESTAMP(6), busy = 0, slot_jobs = NULL WHERE id = ?",
                    )
                    .bind(runner.as_str())
                    .execute(conn)
                    .await?;
                    Ok(())
                })
            })
            .await
    }
}

/// Write the row of a runner with its heartbeat. Returns false if it was not written, because another session locks it:
/// a process that froze while it drained the runner, or an operator.
async fn write_runner(
    conn: &mut Session<'_>,
    runner: &RunnerId,
    (busy, skew): (u32, i64),
    jobs: Option<&[u8]>,
    caution: &Caution,
) -> Result<bool, sqlx::Error> {
    let script = || {
        // NULL leaves the column unchanged, so the text of the statement is the same either way.
        let mut script = Script::about(1, jobs.map_or(0, <[u8]>::len));
        // Attempts whose verdicts are being written occupy no worker. The process of a suspect has no workers of its
        // own.
        script.push(
            "UPDATE runners SET heartbeat_at = UTC_TIMESTAMP(6), busy = IF(slots = 0, ?, LEAST(?, slots)), \
             clock_skew_ms = ?, slot_jobs = COALESCE(?, slot_jobs), stopped_at = NULL WHERE id = ?",
            vec![busy.into(), busy.into(), skew.into(), jobs.into(), runner.as_str().into()],
        );
        script
    };
    if !caution.holds() {
        match script().run(conn).await {
            Err(error) if is_locked_elsewhere(&error) => caution.begin(),
            done => return done.map(|_| true),
        }
    }
    for turn in 0..TRIES {
        if turn > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let mut tx = conn.begin().await?;
        let lock = statement(format!("SELECT id FROM runners WHERE id = ? FOR UPDATE{SKIP_LOCKED}"));
        let is_free = lock.bind(runner.as_str()).fetch_optional(&mut *tx).await?.is_some();
        if is_free {
            script().run(&mut tx).await?;
        }
        tx.commit().await?;
        if is_free {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;
    use crate::rows::owed::MAX_EXECUTIONS;

    /// Return the row of a job that executes, none of whose earlier attempts was used.
    fn executing(attempt: u32, now: Timestamp) -> Owed {
        Owed {
            kind: "noop".parse().unwrap(),
            queue: "default".parse().unwrap(),
            priority: 4,
            max_attempts: 3,
            state: State::Executing,
            execute_at: now - TimeDelta::seconds(60),
            attempt,
            spared: attempt - 1,
            spared_before: 0,
            losses: 0,
            runner: RunnerId::from_stored("test".to_owned()),
            token: AttemptToken::new(),
            started_at: now,
            lease_until: now,
            cancel_requested_at: None,
            keyed: false,
            links: 0,
        }
    }

    #[test]
    fn a_job_that_never_arrives_comes_back_later_each_time_and_uses_no_attempt() {
        let now = chrono::Utc::now();
        let seconds = |attempt: u32, spared_before: u32| {
            let owed = Owed { spared_before, ..executing(attempt, now) };
            let item = given_back(JobId::new(), &owed, "test");
            let step = decide(0, &item, &owed, now).unwrap();
            assert!(!step.state.is_end(), "{attempt}");
            (step.execute_at.unwrap() - now).num_milliseconds() as f64 / 1_000.0
        };
        assert_eq!((seconds(1, 0), seconds(100, 0)), (-60.0, -60.0), "it keeps its position");
        for (attempt, delay) in [(101, 1.0), (102, 2.0), (104, 8.0), (111, 600.0), (9_000, 600.0)] {
            let said = seconds(attempt, 0);
            assert!(said > delay * 0.89 && said < delay * 1.11, "{attempt}: {said}");
        }
        assert_eq!(seconds(150, 50), -60.0, "executions before an operator's retry do not count");
    }

    #[test]
    fn a_job_ends_before_the_column_for_the_number_of_its_attempt_does() {
        let now = chrono::Utc::now();
        let state = |attempt: u32, again: fn(&Owed) -> Settlement| {
            let owed = executing(attempt, now);
            let item = again(&owed);
            decide(0, &item, &owed, now).unwrap().state
        };
        let given = |owed: &Owed| given_back(JobId::new(), owed, "test");
        let interrupted = |owed: &Owed| ending(JobId::new(), owed, Verdict::Interrupted, "test", Again::Now);
        let unstarted = |owed: &Owed| ending(JobId::new(), owed, Verdict::Interrupted, "test", Again::Unstarted);
        for again in [given as fn(&Owed) -> Settlement, interrupted] {
            assert!(!state(MAX_EXECUTIONS - 1, again).is_end());
            assert_eq!(state(MAX_EXECUTIONS, again), State::Failed);
        }
        assert!(!state(MAX_EXECUTIONS, unstarted).is_end(), "its number is given back");
    }

    #[test]
    fn a_kind_is_served_in_the_queues_of_the_runners_that_have_it_alone() {
        let name = |text: &str| -> Name { text.parse().unwrap() };
        let lists = [(r#"["a","b"]"#, r#"["resize"]"#), (r#"["c"]"#, r#"["crop"]"#), ("no list", r#"["mail"]"#)];
        let served = ServedKinds::read(lists);
        let has = |queue: &str, kind: &str| served.has(&name(queue), &name(kind));
        assert_eq!((has("a", "resize"), has("b", "resize"), has("c", "crop")), (true, true, true));
        assert_eq!((has("c", "resize"), has("a", "crop"), has("a", "mail")), (false, false, false));
        assert_eq!(served.kinds(), ["resize", "crop", "mail"].map(name).into());
    }
}
