//! Attempts of remote workers: programs in other languages that fetch jobs over HTTP, from any tickr process.
//!
//! A worker is a runner: it has a row in `runners`, a lease, and claims of its own in `claim_batches`. So MySQL, and not
//! the process that answers, knows what a worker holds:
//! - A worker has one request for jobs at a time, `runners.fetch_id`. A claim reads it under a shared lock, so nothing is
//!   claimed for an earlier request, whose answer would reach no one.
//! - The rows of a worker in `claim_batches` name what was claimed for it. What it does not list in its next request did
//!   not reach it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::attempts::claim::{Claim, ClaimRequest, Claimed, Claims, RemoteClaim, read_step};
use crate::attempts::claim_batches::OpenClaims;
use crate::attempts::limited::not_counted;
use crate::attempts::permits::{MayJudge, PermitGrant, PermitRequest, open_attempts, take};
use crate::attempts::renewal::{Caution, progress_text, renew, write_progress};
use crate::rows::limits::{KnownLimits, LimitKey, key_in};
use crate::rows::owed::{DueJob, SKIP_LOCKED, SUSPECT_FROM};
use crate::runners::{LiveAttempt, job_ids};
use crate::sql::batch::Batch;
use crate::sql::batches::{MAX_ROWS, bind_padded, in_list, padded_len, placeholders, statement};
use crate::sql::clock::Reading;
use crate::sql::cluster::{Locked, lock_in_cluster};
use crate::sql::connection::{PriorRun, on_pool, transact};
use crate::sql::error::{again, corrupt, is_locked_elsewhere};
use crate::sql::script::Script;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{
    AttemptToken, BatchId, JobId, JobOptions, Name, Progress, RetryPolicy, RunnerId, Timestamp, TraceContext,
};

/// Most attempts that one claim starts: as many as one row of `claim_batches` can list.
pub const MAX_REMOTE_CLAIM: usize = 256;
/// Most batches of claims of one worker that are read. A worker holds at most as many as it has slots.
const MAX_BATCHES: i64 = 2_000;
/// Heartbeats of a worker in one lease.
pub const BEATS_PER_LEASE: u32 = 3;
/// Part of a lease for which an answer may hand out an attempt after its claim. The answer has as much time for its
/// way, and the worker begins nothing of one that takes longer. So half a lease after its claim, an attempt has reached
/// its worker, or it never will.
pub const HANDED_OUT_WITHIN: u32 = 4;
/// Age from which an attempt that no heartbeat has listed counts as not delivered, in times between two heartbeats. A
/// heartbeat without it that was sent before half a lease was over has a sixth of the lease for its way.
const UNDELIVERED_AFTER: u32 = 2;
/// Part of a lease, after the newest heartbeat that listed it, after which an attempt counts as one that its worker has
/// given up.
const GIVEN_UP_AFTER: u32 = 2;
/// Part of a lease, after the claim or that newest heartbeat, after which the heartbeat before this one came. Without
/// this, the first heartbeat of a worker that stood still, and a copy that comes late after an outage, would give back
/// what the worker executes. Its answer has left by then. A worker sends the next heartbeat when half a lease is over,
/// also when both are a little early.
const MISSED_BEFORE: u32 = 4;

/// Most requests for jobs of a worker that are remembered after its next one: the length of `runners.fetched`.
const MAX_FETCHED: usize = 32;
/// Values of `claim_batches.reached`.
const HANDED_OUT_AGAIN: u8 = 1;
const LISTED: u8 = 2;

/// Longest time for which a claim tries to lock its queue, and the longest pause between two tries. Another claim has the
/// lock for a few milliseconds. A session that froze may keep it, and the claim is needed for other queues.
const QUEUE_PATIENCE: Duration = Duration::from_millis(300);
const QUEUE_PAUSE: Duration = Duration::from_millis(10);

/// A worker that registers.
#[derive(Clone, Debug)]
pub struct NewWorker {
    /// Its id.
    pub id: RunnerId,
    /// Version of the program, as it says.
    pub version: String,
    /// Name of its host, as it says.
    pub host: Option<String>,
    /// Its process id, as it says.
    pub pid: Option<u32>,
    /// Kinds that it executes.
    pub kinds: Vec<Name>,
    /// Queues that it serves.
    pub queues: Vec<Name>,
    /// Number of jobs that it executes at once.
    pub slots: u32,
    /// Length of its lease.
    pub lease: Duration,
}

/// A worker that is registered.
#[derive(Clone, Debug)]
pub struct RemoteWorker {
    /// Its id.
    pub id: Arc<RunnerId>,
    /// Kinds that it executes.
    pub kinds: Arc<[Name]>,
    /// Queues that it serves.
    pub queues: Arc<[Name]>,
    /// Length of its lease.
    pub lease: Duration,
    /// An operator has drained it.
    pub drained: bool,
}

/// The answer to the begin of a request for jobs.
#[derive(Debug)]
pub struct BegunFetch {
    /// The worker.
    pub worker: RemoteWorker,
    /// True if the request was answered before. Then nothing new is claimed for it.
    pub repeated: bool,
    /// The attempts that were claimed for this request before and that the worker does not list.
    pub again: Vec<Claimed>,
    /// A moment before the first of them was claimed, by the clock of this process. Without any, that of the call.
    pub claimed_since: Instant,
    /// Attempts that were claimed for earlier requests and that the worker does not list: they did not reach it.
    pub undelivered: Vec<(AttemptToken, Vec<JobId>)>,
    /// Number of open attempts that the worker lists.
    pub holds: usize,
    /// One of them is a suspect, which is executed alone.
    pub holds_suspect: bool,
}

/// A request for jobs.
#[derive(Clone, Debug)]
pub struct RemoteFetch {
    /// The worker that sent it.
    pub worker: RemoteWorker,
    /// The id that the worker gave it.
    pub id: Uuid,
}

/// The outcome of claims for a request for jobs.
#[derive(Debug, Default)]
pub struct RemoteClaims {
    /// The outcome for each job.
    pub claims: Vec<(JobId, Claim)>,
    /// Parked jobs that have a due time now.
    pub let_go: Vec<DueJob>,
    /// Jobs that were not tried, because their queue runs as many as its limit allows.
    pub no_room: Vec<JobId>,
    /// Attempts to give back, by token: a limit had no room for them after a COMMIT that took long.
    pub unstarted: Vec<(AttemptToken, Vec<JobId>)>,
}

/// An attempt that a worker holds, as it reports it.
#[derive(Clone, Debug)]
pub struct HeldAttempt {
    /// The job.
    pub id: JobId,
    /// The token of the attempt.
    pub token: AttemptToken,
    /// The newest progress.
    pub progress: Option<Progress>,
}

/// An attempt that has run for longer than it may.
#[derive(Clone, Debug)]
pub struct OverdueAttempt {
    /// The attempt.
    pub attempt: RemoteAttempt,
    /// How long it might run.
    pub timeout: Duration,
    /// How long it has run beyond that, by the clock of MySQL.
    pub over: Duration,
    /// Its start, by that clock.
    pub started_at: Timestamp,
    /// Time since the heartbeat of its worker before this one, if that one listed the job.
    pub listed_before: Option<Duration>,
}

/// The answer to the heartbeat of a worker.
#[derive(Debug, Default)]
pub struct WorkerBeat {
    /// An operator has drained it.
    pub drained: bool,
    /// Length of its lease.
    pub lease: Duration,
    /// Attempts that it does not hold any more. It may list an earlier attempt of a job beside the one that it holds.
    pub lost: Vec<(JobId, AttemptToken)>,
    /// Attempts that a client asked to stop.
    pub cancel_requested: Vec<(JobId, AttemptToken)>,
    /// Attempts whose progress was not written, because another session locks their rows.
    pub unsaved: Vec<(JobId, AttemptToken)>,
    /// A reading of MySQL's clock, by which these attempts have run for longer than they may.
    pub reading: Option<Reading>,
    /// Attempts that have run for longer than they may.
    pub overdue: Vec<OverdueAttempt>,
    /// Attempts that were claimed some time ago and that it does not list: they did not reach it.
    pub undelivered: Vec<(AttemptToken, Vec<JobId>)>,
}

/// An attempt of a remote worker, with what its settlement needs.
#[derive(Clone, Debug)]
pub struct RemoteAttempt {
    /// The job.
    pub id: JobId,
    /// The kind of the job.
    pub kind: Name,
    /// The queue of the job.
    pub queue: Name,
    /// The retry policy of the job, if it has its own or keeps that of its declared kind.
    pub retry: Option<RetryPolicy>,
    /// The batch of the job, which its follow-up jobs may join.
    pub batch: Option<BatchId>,
    /// The trace of the job, which its follow-up jobs continue.
    pub trace: Option<TraceContext>,
    /// The attempt that is open, with its number and its runner. None if there is none.
    pub open: Option<(AttemptToken, u32, RunnerId)>,
    /// When the open attempt started, by the clock of the database.
    pub started_at: Option<Timestamp>,
    /// The keys of limits of which the attempt has a slot.
    pub slots: Arc<[LimitKey]>,
}

/// What the settlements of attempts need.
#[derive(Debug, Default)]
pub struct RemoteAttempts {
    /// The attempts of jobs that exist.
    pub found: HashMap<JobId, RemoteAttempt>,
    /// Open attempts whose rows cannot be read, until an operator repairs them.
    pub unreadable: HashSet<(JobId, AttemptToken)>,
}

/// An open attempt of a worker.
struct OpenAttempt {
    id: JobId,
    token: AttemptToken,
    suspect: bool,
    age: Duration,
    /// Time since its lease ended, in microseconds. Negative while the lease holds.
    lapsed_us: i64,
    batch: ClaimBatch,
}

/// What a row in `claim_batches` says of its attempts.
#[derive(Clone, Copy)]
struct ClaimBatch {
    id: Uuid,
    /// How far the answer with them has come.
    reached: u8,
    /// The request for which they were claimed.
    fetch: Option<Uuid>,
}

impl OpenAttempt {
    /// Return the time since its claim, or since the newest heartbeat that listed it.
    fn silent(&self, lease: Duration) -> Duration {
        let lease = i64::try_from(lease.as_micros()).unwrap_or(i64::MAX);
        Duration::from_micros(u64::try_from(lease.saturating_add(self.lapsed_us)).unwrap_or(0))
    }

    /// Return whether a heartbeat has listed it.
    fn is_renewed(&self, lease: Duration) -> bool {
        self.silent(lease) < self.age
    }

    /// Return whether the worker has listed it before. Then it is executed, and a request or a heartbeat that does not list
    /// it may be a copy that comes late.
    fn has_arrived(&self, lease: Duration) -> bool {
        self.batch.reached >= LISTED || self.is_renewed(lease)
    }

    /// Return whether it was claimed for a request that its worker made after this one.
    fn is_behind(&self, fetch: Uuid) -> bool {
        self.batch.fetch.is_some_and(|claimed_for| made_before(fetch, claimed_for))
    }
}

impl Store {
    /// Register a worker. Its lease runs from now.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn register_worker(&self, worker: NewWorker) -> Result<(), StoreError> {
        on_pool(&self.shared.pools.workers, "register a worker", move |conn, _| {
            let worker = worker.clone();
            Box::pin(async move {
                let names = |names: &[Name]| serde_json::to_string(names).unwrap_or_default();
                sqlx::query(
                    "INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, host, pid, started_at, \
                      heartbeat_at, claim_batches, via) \
                      VALUES (?, ?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), TRUE, 'http') \
                     ON DUPLICATE KEY UPDATE heartbeat_at = UTC_TIMESTAMP(6)",
                )
                .bind(worker.id.as_str())
                .bind(worker.version.as_str())
                .bind(names(&worker.kinds))
                .bind(names(&worker.queues))
                .bind(worker.slots)
                .bind(u32::try_from(worker.lease.as_millis()).unwrap_or(u32::MAX))
                .bind(worker.host.as_deref())
                .bind(worker.pid)
                .execute(conn)
                .await
                .map(drop)
            })
        })
        .await
    }

    /// Begin a request for jobs of a worker, which ends every earlier one. `held` are the attempts that the worker lists,
    /// and `wait` is how long the request may wait. Returns nothing if the worker is not registered, or not any more.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn begin_fetch(
        &self,
        worker: RunnerId,
        fetch: Uuid,
        held: Vec<(JobId, AttemptToken)>,
        wait: Duration,
    ) -> Result<Option<BegunFetch>, StoreError> {
        let held: Arc<HashSet<(JobId, AttemptToken)>> = Arc::new(held.into_iter().collect());
        let limits = Arc::clone(&self.shared.limits);
        transact(&self.shared.pools.workers, "begin a request for jobs", move |conn, _| {
            let (worker, held, limits) = (worker.clone(), Arc::clone(&held), Arc::clone(&limits));
            Box::pin(async move { begin(conn, worker, fetch, (&*held, wait), &limits).await })
        })
        .await
    }

    /// Note that a request for jobs does not wait, because it is refused. Otherwise the checker would look for the jobs
    /// that its worker could have got.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn refuse_fetch(&self, fetch: &RemoteFetch) -> Result<(), StoreError> {
        let (worker, fetch) = (Arc::clone(&fetch.worker.id), fetch.id);
        on_pool(&self.shared.pools.workers, "note a request for jobs that is refused", move |conn, _| {
            let worker = Arc::clone(&worker);
            Box::pin(async move {
                let sql = "UPDATE runners SET polls_until = NULL WHERE id = ? AND fetch_id = ?";
                sqlx::query(sql).bind(worker.as_str()).bind(fetch).execute(conn).await.map(drop)
            })
        })
        .await
    }

    /// Claim jobs for a request. With `suspects`, jobs whose last runners died are claimed as well. With a limited queue,
    /// all jobs are of that queue, and at most as many are claimed as it has room for: none while another session keeps
    /// the queue locked. A job whose row another session locks is not claimed, and the others do not wait for it.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses. What was claimed nevertheless is found by the next request of the worker.
    #[boxed]
    pub async fn claim_remotely(
        &self,
        fetch: &RemoteFetch,
        jobs: Vec<(JobId, Name)>,
        suspects: bool,
        limited: Option<(Name, MayJudge)>,
    ) -> Result<RemoteClaims, StoreError> {
        let worker = &fetch.worker;
        // The rows of `claim_batches` say what the worker holds, and not the memory of this process.
        let open = Arc::new(OpenClaims::default());
        let claims = Arc::new(Claims {
            runner: Arc::clone(&worker.id),
            kinds: Arc::clone(&worker.kinds),
            lease: worker.lease,
            suspects,
            limits: Arc::clone(&self.shared.limits),
            limited: false,
            open: Arc::clone(&open),
            remote: Some(RemoteClaim { fetch: fetch.id, in_transaction: limited.is_some() }),
            had_outside: Mutex::default(),
        });
        let requests = jobs.into_iter().map(|(id, queue)| ClaimRequest { id, queue: Some(queue), ahead: false });
        let requests: Arc<[ClaimRequest]> = requests.collect();
        let (token, limited) = (AttemptToken::new(), limited.map(Arc::new));
        let is_limited = limited.as_ref().map(|limited| limited.0.clone());
        let mut claimed = on_pool(&self.shared.pools.workers, "claim jobs for a worker", move |conn, earlier| {
            let (claims, requests, limited) = (Arc::clone(&claims), Arc::clone(&requests), limited.clone());
            Box::pin(async move {
                let mut room = requests.len();
                if let Some((queue, may_judge)) = limited.as_deref() {
                    if !begin_with_queue(conn, queue).await? {
                        if earlier == PriorRun::MayHaveCommitted {
                            return Err(again("an earlier run of this claim may have locked the queue"));
                        }
                        let no_room = requests.iter().map(|request| request.id).collect();
                        return Ok(RemoteClaims { no_room, ..RemoteClaims::default() });
                    }
                    // What an earlier run has claimed fills the limit, so this run would have no room to find it.
                    if earlier == PriorRun::MayHaveCommitted
                        && let Some(found) = claimed_before(conn, &claims, &requests, token).await?
                    {
                        return Ok(found);
                    }
                    room = reserve(conn, queue, &claims.runner, requests.len(), may_judge).await?.min(room);
                    if room == 0 {
                        sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
                    }
                }
                let (tried, no_room) = requests.split_at(room);
                let no_room = no_room.iter().map(|request| request.id).collect();
                let mut found = RemoteClaims { no_room, ..RemoteClaims::default() };
                if !tried.is_empty() {
                    let replies = claims.write(conn, tried, token, earlier).await?;
                    for (request, reply) in tried.iter().zip(replies) {
                        found.claims.push((request.id, reply.claim));
                        found.let_go.extend(reply.let_go);
                    }
                    if claims.remote.as_ref().is_some_and(|remote| remote.in_transaction) {
                        // The claim has ended the transaction, unless it had nothing to claim.
                        sqlx::raw_sql("COMMIT").execute(&mut *conn).await?;
                    }
                }
                Ok(found)
            })
        })
        .await?;
        let won = claimed.claims.iter().filter(|(_, claim)| matches!(claim, Claim::Won(_))).map(|(id, _)| *id);
        let won: HashSet<JobId> = won.collect();
        for mut left in open.take_unstarted() {
            // A later run may have found room for some of them.
            left.ids.retain(|id| !won.contains(id));
            if !left.ids.is_empty() {
                claimed.unstarted.push((left.token, left.ids));
            }
        }
        if let Some(queue) = is_limited
            && won.len() < claimed.claims.len()
        {
            self.recount_permits(&queue, &worker.id).await?;
        }
        Ok(claimed)
    }

    /// Record as many permits of a queue for a worker as it has open attempts there, unless another session keeps the
    /// queue locked.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn recount_permits(&self, queue: &Name, worker: &RunnerId) -> Result<(), StoreError> {
        let (queue, worker) = (queue.clone(), worker.clone());
        on_pool(&self.shared.pools.workers, "count the permits of a worker", move |conn, _| {
            let (queue, worker) = (queue.clone(), worker.clone());
            Box::pin(async move {
                // Without this, the next runner that lacks room counts the open attempts of the worker.
                if !begin_with_queue(conn, &queue).await? {
                    return Ok(());
                }
                let used = open_attempts(conn, &queue, worker.as_str()).await?;
                let never: MayJudge = Arc::new(|_, _| false);
                let asked = PermitRequest { used, wanted: used, yielding: false };
                take(conn, &queue, &worker, asked, &never).await?;
                sqlx::raw_sql("COMMIT").execute(conn).await.map(drop)
            })
        })
        .await
    }

    /// Return the newest request for jobs of each of these workers that is registered and not drained, and nothing for one
    /// that an operator has drained. Workers that are not registered are left out.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn registered_workers(&self, ids: Vec<String>) -> Result<HashMap<String, Option<Uuid>>, StoreError> {
        on_pool(&self.shared.pools.beats, "look at waiting workers", move |conn, _| {
            let ids = ids.clone();
            Box::pin(async move {
                let mut found = HashMap::new();
                for page in ids.chunks(MAX_ROWS) {
                    let page: Vec<&str> = page.iter().map(String::as_str).collect();
                    let mut script = Script::about(page.len(), 0);
                    let (list, values) = script.list(&page);
                    let sql = format!(
                        "SELECT id, IF(drained_at IS NULL, fetch_id, NULL) AS fetch_id FROM runners WHERE id IN {list} \
                         AND stopped_at IS NULL"
                    );
                    script.push(sql, values);
                    for row in script.run(conn).await?.iter().flat_map(|step| &step.rows) {
                        found.insert(row.try_get("id")?, row.try_get("fetch_id")?);
                    }
                }
                Ok(found)
            })
        })
        .await
    }

    /// Read the kinds and the queues for which a worker is registered, or was before it left. Returns nothing if there
    /// is no such worker.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn kinds_and_queues_of_worker(
        &self,
        worker: &RunnerId,
    ) -> Result<Option<(Vec<Name>, Vec<Name>)>, StoreError> {
        let worker = worker.clone();
        on_pool(&self.shared.pools.beats, "read the kinds and queues of a worker", move |conn, _| {
            let worker = worker.clone();
            Box::pin(async move {
                let sql = "SELECT kinds, queues FROM runners WHERE id = ? AND via = 'http'";
                let Some(row) = sqlx::query(sql).bind(worker.as_str()).fetch_optional(conn).await? else {
                    return Ok(None);
                };
                Ok(Some((names_in(row.try_get("kinds")?)?, names_in(row.try_get("queues")?)?)))
            })
        })
        .await
    }

    /// Count the open attempts of a worker.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn open_attempts_of_worker(&self, worker: &RunnerId) -> Result<usize, StoreError> {
        let worker = worker.clone();
        transact(&self.shared.pools.workers, "count the attempts of a worker", move |conn, _| {
            let worker = worker.clone();
            Box::pin(async move { open_of(conn, &worker, None).await.map(|(open, _)| open.len()) })
        })
        .await
    }

    /// Record the heartbeat of a worker: renew its lease and those of the attempts that it holds. `timeouts` has the
    /// time limits of kinds, and it came here at `arrived`. Rows that another session locks are left out, so that they
    /// hold up no other lease. Returns nothing if the worker is not registered, or not any more.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn beat_of_worker(
        &self,
        worker: RunnerId,
        held: Vec<HeldAttempt>,
        timeouts: Arc<HashMap<Name, Duration>>,
        arrived: Instant,
    ) -> Result<Option<WorkerBeat>, StoreError> {
        let (held, caution) = (Arc::new(held), Arc::clone(&self.shared.caution));
        on_pool(&self.shared.pools.beats, "write the heartbeat of a worker", move |conn, _| {
            let (worker, held, timeouts) = (worker.clone(), Arc::clone(&held), Arc::clone(&timeouts));
            let caution = Arc::clone(&caution);
            Box::pin(async move { beat(conn, &worker, &held, &timeouts, &caution, arrived).await })
        })
        .await
    }

    /// End the registration of a worker, and return the attempts that it still holds. Nothing is claimed for it after this.
    /// Returns nothing if it is not registered.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn unregister_worker(
        &self,
        worker: RunnerId,
    ) -> Result<Option<Vec<(AttemptToken, Vec<JobId>)>>, StoreError> {
        transact(&self.shared.pools.workers, "end the registration of a worker", move |conn, _| {
            let worker = worker.clone();
            Box::pin(async move {
                // This waits for a claim that is under way.
                let sql = "SELECT id FROM runners WHERE id = ? AND via = 'http' FOR UPDATE";
                if sqlx::query(sql).bind(worker.as_str()).fetch_optional(&mut *conn).await?.is_none() {
                    return Ok(None);
                }
                let sql = "UPDATE runners SET stopped_at = COALESCE(stopped_at, UTC_TIMESTAMP(6)), busy = 0, \
                           slot_jobs = NULL, fetch_id = NULL, polls_until = NULL WHERE id = ?";
                sqlx::query(sql).bind(worker.as_str()).execute(&mut *conn).await?;
                let (open, _) = open_of(conn, &worker, None).await?;
                Ok(Some(by_token(open.iter())))
            })
        })
        .await
    }

    /// Return those of these runners that are remote workers and have left.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn workers_that_left(&self, runners: Vec<RunnerId>) -> Result<HashSet<RunnerId>, StoreError> {
        on_pool(&self.shared.pools.loops, "look for workers that left", move |conn, _| {
            let runners = runners.clone();
            Box::pin(async move {
                let left = left_among(conn, &runners.iter().map(RunnerId::as_str).collect()).await?;
                Ok(runners.into_iter().filter(|runner| left.contains(runner.as_str())).collect())
            })
        })
        .await
    }

    /// Read what the settlement of these jobs' attempts needs. Jobs that do not exist are left out. A row that cannot
    /// be read keeps no other attempt from its verdict.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn remote_attempts(&self, ids: Vec<JobId>) -> Result<RemoteAttempts, StoreError> {
        let limits = Arc::clone(&self.shared.limits);
        on_pool(&self.shared.pools.workers, "read the attempts of a worker", move |conn, _| {
            let (ids, limits) = (ids.clone(), Arc::clone(&limits));
            Box::pin(async move {
                let mut ids: Vec<Uuid> = ids.iter().map(|id| id.uuid()).collect();
                ids.sort_unstable();
                ids.dedup();
                let mut all = RemoteAttempts::default();
                for page in ids.chunks(MAX_ROWS) {
                    let sql = "SELECT j.id, j.kind, j.queue, j.options, o.token, o.attempt, o.runner, o.started_at, \
                               COALESCE(o.state = 'executing', FALSE) AS open \
                               FROM jobs j FORCE INDEX (PRIMARY) LEFT JOIN owed o ON o.id = j.id WHERE j.id IN";
                    for row in &in_list(sql, page, "").fetch_all(&mut *conn).await? {
                        match remote_attempt(row) {
                            Ok(attempt) => drop(all.found.insert(attempt.id, attempt)),
                            Err(error) => all.unreadable.extend(open_attempt_in(row, &error)),
                        }
                    }
                    if !limits.now().is_empty() {
                        for (id, slots) in slots_of(conn, page).await? {
                            if let Some(attempt) = all.found.get_mut(&id) {
                                attempt.slots = slots;
                            }
                        }
                    }
                }
                Ok(all)
            })
        })
        .await
    }
}

fn names_in(text: &str) -> Result<Vec<Name>, sqlx::Error> {
    serde_json::from_str(text).map_err(|e| corrupt(e.to_string()))
}

async fn begin(
    conn: &mut Session<'_>,
    worker: RunnerId,
    fetch: Uuid,
    (held, wait): (&HashSet<(JobId, AttemptToken)>, Duration),
    limits: &KnownLimits,
) -> Result<Option<BegunFetch>, sqlx::Error> {
    // A claim for an earlier request holds this row until it is committed, so it is seen below.
    let sql = "SELECT kinds, queues, lease_ms, drained_at IS NOT NULL AS drained, fetch_id, fetched FROM runners \
               WHERE id = ? AND via = 'http' AND stopped_at IS NULL FOR UPDATE";
    let Some(row) = sqlx::query(sql).bind(worker.as_str()).fetch_optional(&mut *conn).await? else {
        return Ok(None);
    };
    let found = RemoteWorker {
        id: Arc::new(worker),
        kinds: names_in(row.try_get("kinds")?)?.into(),
        queues: names_in(row.try_get("queues")?)?.into(),
        lease: Duration::from_millis(u64::from(row.try_get::<u32, _>("lease_ms")?)),
        drained: row.try_get::<i64, _>("drained")? != 0,
    };
    let newest: Option<Uuid> = row.try_get("fetch_id")?;
    let mut fetched = row.try_get::<Option<Vec<u8>>, _>("fetched")?.unwrap_or_default();
    if newest != Some(fetch) && fetched.chunks_exact(16).any(|earlier| earlier == fetch.as_bytes().as_slice()) {
        // The worker has sent another one since, so it knows the answer to this one.
        return Ok(Some(BegunFetch {
            worker: found,
            repeated: true,
            again: Vec::new(),
            claimed_since: Instant::now(),
            undelivered: Vec::new(),
            holds: held.len(),
            holds_suspect: false,
        }));
    }
    if let Some(newest) = newest.filter(|newest| *newest != fetch) {
        fetched = [newest.as_bytes().as_slice(), fetched.as_slice()].concat();
        fetched.truncate(MAX_FETCHED * 16);
    }
    // This is no heartbeat: a worker that asks for jobs and does not renew the leases of its own must count as silent.
    let sql = "UPDATE runners SET fetch_id = ?, fetched = ?, busy = LEAST(?, slots), \
               polls_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE id = ?";
    sqlx::query(sql)
        .bind(fetch)
        .bind(fetched)
        .bind(u32::try_from(held.len()).unwrap_or(u32::MAX))
        .bind(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX))
        .bind(found.id.as_str())
        .execute(&mut *conn)
        .await?;
    let asked = Instant::now();
    let (open, of_fetch) = open_of(conn, &found.id, Some(fetch)).await?;
    let (listed, unlisted): (Vec<_>, Vec<_>) =
        open.iter().partition(|attempt| held.contains(&(attempt.id, attempt.token)));
    let incomplete: HashSet<Uuid> = unlisted.iter().map(|attempt| attempt.batch.id).collect();
    let (of_this, others): (Vec<_>, Vec<_>) =
        unlisted.into_iter().partition(|attempt| of_fetch.contains(&attempt.token));
    // An attempt that has arrived is left to the heartbeats. So is one that was claimed for a later request: then this
    // one is a copy that comes late, which no process has seen before, or which is not remembered any more.
    let is_lost = |attempt: &&OpenAttempt| !attempt.has_arrived(found.lease) && !attempt.is_behind(fetch);
    let mut others: Vec<_> = others.into_iter().filter(is_lost).collect();
    // A heartbeat may give an old one back before the worker lists it. A worker that has it already keeps it.
    let young = |attempt: &&OpenAttempt| attempt.age < found.lease / HANDED_OUT_WITHIN;
    let ours: Vec<_> = of_this.iter().copied().filter(young).collect();
    // The process that claimed them may have died before it looked at the limits after its COMMIT.
    let without_slots = without_slots(conn, &ours, limits).await?;
    let (left, ours): (Vec<_>, Vec<_>) = ours.into_iter().partition(|attempt| without_slots.contains(&attempt.id));
    others.extend(left);
    // An attempt that is not listed beside another one of its batch has not arrived.
    let listed_batches: BTreeSet<Uuid> = listed
        .iter()
        .map(|attempt| attempt.batch)
        .filter(|batch| batch.reached < LISTED && !incomplete.contains(&batch.id))
        .map(|batch| batch.id)
        .collect();
    note_reached(conn, &found.id, listed_batches, LISTED).await?;
    let repeated: BTreeSet<Uuid> = ours.iter().map(|attempt| attempt.batch.id).collect();
    lock_in_cluster(conn, Locked::Claims, &repeated).await?;
    note_reached(conn, &found.id, repeated, HANDED_OUT_AGAIN).await?;
    // After this note: the process that claimed them may have given them back, and gives none of them back from now on.
    let again = read_again(conn, &found, &ours).await?;
    let oldest = ours.iter().map(|attempt| attempt.age).max().unwrap_or_default();
    Ok(Some(BegunFetch {
        repeated: !of_fetch.is_empty(),
        again,
        claimed_since: asked.checked_sub(oldest).unwrap_or(asked),
        undelivered: by_token(others.into_iter()),
        holds: listed.len(),
        holds_suspect: listed.iter().any(|attempt| attempt.suspect),
        worker: found,
    }))
}

/// Return whether a worker made one request before another, as far as their ids tell: UUIDs of version 7 begin with the
/// milliseconds of its clock.
fn made_before(request: Uuid, other: Uuid) -> bool {
    let tell = request.get_version_num() == 7 && other.get_version_num() == 7;
    tell && request.as_bytes()[..6] < other.as_bytes()[..6]
}

/// Return the jobs of those of these attempts that no limit has counted, although it has counted what ran when it was
/// set. The process that claimed them hands none of them out.
async fn without_slots(
    conn: &mut Session<'_>,
    attempts: &[&OpenAttempt],
    limits: &KnownLimits,
) -> Result<HashSet<JobId>, sqlx::Error> {
    // A limit that this process does not know is too new to have counted.
    if attempts.is_empty() || (!limits.are_old() && limits.now().is_empty()) {
        return Ok(HashSet::new());
    }
    limits.read_again(conn).await?;
    let ids: Vec<Uuid> = attempts.iter().map(|attempt| attempt.id.uuid()).collect();
    not_counted(conn, &ids, &limits.now()).await
}

/// Write how far the answers with these claims have come.
async fn note_reached(
    conn: &mut Session<'_>,
    worker: &RunnerId,
    batches: BTreeSet<Uuid>,
    reached: u8,
) -> Result<(), sqlx::Error> {
    for batch in batches {
        let sql = "UPDATE claim_batches SET reached = GREATEST(reached, ?) WHERE runner = ? AND id = ?";
        sqlx::query(sql).bind(reached).bind(worker.as_str()).bind(batch).execute(&mut *conn).await?;
    }
    Ok(())
}

/// Read the open attempts of a worker, and the tokens of those batches that were claimed for this request. Other batches
/// without an open attempt are deleted, except those that another session locks.
async fn open_of(
    conn: &mut Session<'_>,
    worker: &RunnerId,
    fetch: Option<Uuid>,
) -> Result<(Vec<OpenAttempt>, HashSet<AttemptToken>), sqlx::Error> {
    let sql =
        "SELECT id, token, ids, fetch_id, reached FROM claim_batches WHERE runner = ? ORDER BY runner, id LIMIT ?";
    let found = sqlx::query(sql).bind(worker.as_str()).bind(MAX_BATCHES).fetch_all(&mut *conn).await?;
    let (mut of_fetch, mut batches) = (HashSet::new(), BTreeMap::new());
    let mut claimed: HashMap<(Uuid, Uuid), ClaimBatch> = HashMap::new();
    for row in &found {
        let token: Uuid = row.try_get("token")?;
        let batch =
            ClaimBatch { id: row.try_get("id")?, reached: row.try_get("reached")?, fetch: row.try_get("fetch_id")? };
        if fetch.is_some() && batch.fetch == fetch {
            of_fetch.insert(AttemptToken::from_uuid(token));
        } else {
            batches.insert(token, batch.id);
        }
        for id in row.try_get::<&[u8], _>("ids")?.chunks_exact(16) {
            let id = Uuid::from_slice(id).map_err(|e| corrupt(e.to_string()))?;
            claimed.insert((id, token), batch);
        }
    }
    let mut ids: Vec<Uuid> = claimed.keys().map(|(id, _)| *id).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut open = Vec::new();
    for page in ids.chunks(MAX_ROWS) {
        let sql = "SELECT id, token, losses, TIMESTAMPDIFF(MICROSECOND, started_at, UTC_TIMESTAMP(6)) AS age_us, \
                   TIMESTAMPDIFF(MICROSECOND, lease_until, UTC_TIMESTAMP(6)) AS lapsed_us FROM owed FORCE INDEX (PRIMARY) WHERE id IN";
        for row in &in_list(sql, page, " AND state = 'executing'").fetch_all(&mut *conn).await? {
            let (id, token): (Uuid, Uuid) = (row.try_get("id")?, row.try_get("token")?);
            if let Some(batch) = claimed.get(&(id, token)) {
                batches.remove(&token);
                open.push(OpenAttempt {
                    id: JobId::from_uuid(id),
                    token: AttemptToken::from_uuid(token),
                    suspect: row.try_get::<u32, _>("losses")? >= SUSPECT_FROM,
                    age: Duration::from_micros(u64::try_from(row.try_get::<i64, _>("age_us")?).unwrap_or(0)),
                    lapsed_us: row.try_get("lapsed_us")?,
                    batch: *batch,
                });
            }
        }
    }
    // Another session may lock a batch, such as a request for jobs in a process that froze. A later call deletes it.
    let over: Vec<Uuid> = batches.into_values().collect();
    for page in over.chunks(MAX_ROWS) {
        let list = placeholders(padded_len(page.len()));
        let free = format!("SELECT id FROM claim_batches WHERE runner = ? AND id IN {list} FOR UPDATE{SKIP_LOCKED}");
        let free = bind_padded(statement(free).bind(worker.as_str()), page).fetch_all(&mut *conn).await?;
        for row in &free {
            let sql = "DELETE FROM claim_batches WHERE runner = ? AND id = ?";
            let delete = sqlx::query(sql).bind(worker.as_str()).bind(row.try_get::<Uuid, _>("id")?);
            delete.execute(&mut *conn).await?;
        }
    }
    Ok((open, of_fetch))
}

/// Read everything that the worker needs of attempts that were claimed for it before.
async fn read_again(
    conn: &mut Session<'_>,
    worker: &RemoteWorker,
    attempts: &[&OpenAttempt],
) -> Result<Vec<Claimed>, sqlx::Error> {
    let mut again = Vec::new();
    for (token, ids) in by_token(attempts.iter().copied()) {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.uuid()).collect();
        let claims = Claims::reading(Arc::clone(&worker.id), Arc::clone(&worker.kinds));
        let mut script = Script::about(ids.len(), 0);
        read_step(&mut script, &ids, token);
        let done = script.run(conn).await?;
        let found = claims.claims_in(done.iter().flat_map(|step| &step.rows), token)?;
        again.extend(found.into_values().filter_map(|claim| match claim {
            Claim::Won(claimed) => Some(*claimed),
            _ => None,
        }));
    }
    again.sort_by_key(|claimed| (claimed.execute_at, claimed.id));
    Ok(again)
}

fn by_token<'a>(attempts: impl Iterator<Item = &'a OpenAttempt>) -> Vec<(AttemptToken, Vec<JobId>)> {
    let mut found: BTreeMap<Uuid, Vec<JobId>> = BTreeMap::new();
    for attempt in attempts {
        found.entry(attempt.token.uuid()).or_default().push(attempt.id);
    }
    found.into_iter().map(|(token, ids)| (AttemptToken::from_uuid(token), ids)).collect()
}

/// Read what an earlier run of this claim has claimed, whose answer was lost, and end the transaction. Returns nothing, and
/// goes on with the transaction, if it has claimed nothing.
async fn claimed_before(
    conn: &mut Session<'_>,
    claims: &Claims,
    requests: &[ClaimRequest],
    token: AttemptToken,
) -> Result<Option<RemoteClaims>, sqlx::Error> {
    let ids: Vec<Uuid> = requests.iter().map(|request| request.id.uuid()).collect();
    let mut script = Script::about(ids.len(), 0);
    read_step(&mut script, &ids, token);
    let done = script.run(conn).await?;
    let mut won = claims.claims_in(done.iter().flat_map(|step| &step.rows), token)?;
    if won.is_empty() {
        return Ok(None);
    }
    claims.leave_without_room(conn, &mut won, None, token).await?;
    sqlx::raw_sql("COMMIT").execute(conn).await?;
    let mut found = RemoteClaims::default();
    for request in requests {
        match won.remove(&request.id) {
            Some(claim) => found.claims.push((request.id, claim)),
            None => found.no_room.push(request.id),
        }
    }
    Ok(Some(found))
}

/// Begin a transaction that locks a queue. Returns false, without a transaction, if another session keeps the queue locked.
async fn begin_with_queue(conn: &mut Session<'_>, queue: &Name) -> Result<bool, sqlx::Error> {
    let until = Instant::now() + QUEUE_PATIENCE;
    loop {
        // Each try begins anew, because a server may be set to roll a transaction back when it does not get a lock.
        let mut script = Script::as_text();
        script.push("BEGIN", Vec::new());
        let sql = "SELECT concurrency FROM queues WHERE name = ? FOR UPDATE NOWAIT";
        script.push(sql, vec![queue.as_str().into()]);
        match script.run(conn).await {
            Ok(_) => break,
            Err(error) if !is_locked_elsewhere(&error) => return Err(error),
            Err(_) if Instant::now() < until => {
                tokio::time::sleep(QUEUE_PAUSE.mul_f64(rand::random())).await;
            }
            Err(_) => return sqlx::raw_sql("ROLLBACK").execute(conn).await.map(|_| false),
        }
    }
    lock_in_cluster(conn, Locked::Queue, [queue.as_str()]).await?;
    Ok(true)
}

/// Reserve permits of a queue for a worker, in a transaction that has locked the queue. Returns how many jobs it may
/// start. The permits are counted from the open attempts under the lock of the queue, so a verdict that comes meanwhile
/// frees none that is reserved here.
async fn reserve(
    conn: &mut Session<'_>,
    queue: &Name,
    worker: &RunnerId,
    wanted: usize,
    may_judge: &MayJudge,
) -> Result<usize, sqlx::Error> {
    let used = open_attempts(conn, queue, worker.as_str()).await?;
    let wanted = used.saturating_add(u32::try_from(wanted).unwrap_or(u32::MAX));
    let asked = PermitRequest { used, wanted, yielding: false };
    Ok(match take(conn, queue, worker, asked, may_judge).await? {
        PermitGrant::Permits(granted) => granted.saturating_sub(used) as usize,
        PermitGrant::Unlimited => usize::MAX,
    })
}

async fn beat(
    conn: &mut Session<'_>,
    worker: &RunnerId,
    held: &[HeldAttempt],
    timeouts: &HashMap<Name, Duration>,
    caution: &Arc<Caution>,
    arrived: Instant,
) -> Result<Option<WorkerBeat>, sqlx::Error> {
    let sql = "SELECT lease_ms, drained_at IS NOT NULL AS drained, slot_jobs, UTC_TIMESTAMP(6) AS moment, \
               TIMESTAMPDIFF(MICROSECOND, heartbeat_at, UTC_TIMESTAMP(6)) AS silent_us FROM runners \
               WHERE id = ? AND via = 'http' AND stopped_at IS NULL";
    let sent = Instant::now();
    let Some(row) = sqlx::query(sql).bind(worker.as_str()).fetch_optional(&mut *conn).await? else {
        return Ok(None);
    };
    let reading = Reading { sent, received: Instant::now(), moment: row.try_get("moment")? };
    let lease = Duration::from_millis(u64::from(row.try_get::<u32, _>("lease_ms")?));
    // Time since the heartbeat before. None if one was written while this one waited, which may be a run of this one.
    let silent = Duration::from_micros(u64::try_from(row.try_get::<i64, _>("silent_us")?).unwrap_or(0));
    let before = Some(silent).filter(|silent| *silent > arrived.elapsed());
    let drained = row.try_get::<i64, _>("drained")? != 0;
    let mut found = WorkerBeat { drained, lease, ..WorkerBeat::default() };
    let jobs_before: Vec<u8> = row.try_get::<Option<Vec<u8>>, _>("slot_jobs")?.unwrap_or_default();
    let leased = Instant::now();
    let live = |held: &HeldAttempt| {
        let (id, token) = (held.id, held.token);
        LiveAttempt { id, token, progress: None, leased, has_finish_key: false }
    };
    let mut attempts: Vec<LiveAttempt> = held.iter().map(live).collect();
    attempts.sort_unstable_by_key(|attempt| attempt.id);
    // Before everything that may fail: each of the attempts depends on it.
    for page in attempts.chunks(MAX_ROWS) {
        let answer = renew(conn, Arc::new(page.to_vec()), lease, Arc::clone(caution)).await?;
        found.lost.extend(answer.lost);
        found.cancel_requested.extend(answer.cancel_requested);
        if !answer.locked.is_empty() {
            let jobs = answer.locked.len();
            tracing::warn!(%worker, jobs, "another session locks the rows of attempts: their leases are not renewed");
        }
    }
    renew_worker(conn, worker, held.len(), &job_ids(&attempts), caution).await?;
    let said = held.iter().filter_map(|held| {
        let text = progress_text(held.progress.as_ref()?);
        Some((held.id.uuid(), held.token.uuid(), text))
    });
    let left = write_progress(conn, &said.collect::<Vec<_>>()).await?;
    let unsaved = held.iter().filter(|held| held.progress.is_some() && left.contains(&held.id.uuid()));
    let unsaved = unsaved.map(|held| (held.id, held.token)).filter(|attempt| !found.lost.contains(attempt));
    found.unsaved = unsaved.collect();
    let listed: HashSet<(JobId, AttemptToken)> = held.iter().map(|held| (held.id, held.token)).collect();
    found.reading = Some(reading);
    found.overdue = overdue(conn, &listed, timeouts, reading.moment).await?;
    for overdue in &mut found.overdue {
        // Of a worker that holds many jobs, the row names the first ones.
        let id = overdue.attempt.id.uuid();
        overdue.listed_before = before.filter(|_| jobs_before.chunks_exact(16).any(|job| job == id.as_bytes()));
    }
    let open = match open_of(conn, worker, None).await {
        Ok((open, _)) => open,
        // Another session has locked a batch that is over, just before it was deleted. A later heartbeat looks again.
        Err(error) if is_locked_elsewhere(&error) => Vec::new(),
        Err(error) => return Err(error),
    };
    // What the worker has received since it sent this heartbeat is not listed, however long the heartbeat waited here.
    let (waited, since_reading) = (arrived.elapsed(), sent.elapsed());
    let is_late = |open: &&OpenAttempt| {
        let (missing, longest) = if open.is_renewed(lease) {
            (open.silent(lease), lease / GIVEN_UP_AFTER)
        } else {
            (open.age, lease * UNDELIVERED_AFTER / BEATS_PER_LEASE)
        };
        let missing_then = before.and_then(|silent| missing.checked_sub(silent + since_reading));
        let missed_before = missing_then.is_some_and(|missing| missing >= lease / MISSED_BEFORE);
        missing.saturating_sub(waited) >= longest && missed_before
    };
    let unlisted = open.iter().filter(is_late).filter(|open| !listed.contains(&(open.id, open.token)));
    found.undelivered = by_token(unlisted);
    Ok(Some(found))
}

/// Renew the lease of a worker, unless another session locks its row: a claim for the worker does that, in a process that
/// may have frozen. The leases of its attempts do not depend on the row.
async fn renew_worker(
    conn: &mut Session<'_>,
    worker: &RunnerId,
    holds: usize,
    jobs: &[u8],
    caution: &Caution,
) -> Result<(), sqlx::Error> {
    if !caution.holds() {
        match write_worker(conn, worker, holds, jobs).await {
            Err(error) if is_locked_elsewhere(&error) => caution.begin(),
            done => return done,
        }
    }
    let mut tx = conn.begin().await?;
    let lock = statement(format!("SELECT id FROM runners WHERE id = ? FOR UPDATE{SKIP_LOCKED}"));
    if lock.bind(worker.as_str()).fetch_optional(&mut *tx).await?.is_some() {
        write_worker(&mut tx, worker, holds, jobs).await?;
    }
    tx.commit().await
}

async fn write_worker(conn: &mut Session<'_>, worker: &RunnerId, holds: usize, jobs: &[u8]) -> Result<(), sqlx::Error> {
    let sql = "UPDATE runners SET heartbeat_at = UTC_TIMESTAMP(6), busy = LEAST(?, slots), slot_jobs = ? \
               WHERE id = ? AND stopped_at IS NULL";
    let query = sqlx::query(sql).bind(u32::try_from(holds).unwrap_or(u32::MAX)).bind(jobs).bind(worker.as_str());
    query.execute(conn).await.map(drop)
}

/// Return those of these attempts that have run for longer than they may. `now` is the reading of the clock by which
/// the caller judges, and not a later one: the clock may have been set since.
async fn overdue(
    conn: &mut Session<'_>,
    listed: &HashSet<(JobId, AttemptToken)>,
    timeouts: &HashMap<Name, Duration>,
    now: Timestamp,
) -> Result<Vec<OverdueAttempt>, sqlx::Error> {
    let mut ids: Vec<Uuid> = listed.iter().map(|(id, _)| id.uuid()).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut found = Vec::new();
    for page in ids.chunks(MAX_ROWS) {
        let sql = "SELECT j.id, j.kind, j.queue, j.options, o.token, o.attempt, o.runner, TRUE AS open, o.started_at \
                   FROM owed o FORCE INDEX (PRIMARY) STRAIGHT_JOIN jobs j ON j.id = o.id WHERE o.id IN";
        for row in &in_list(sql, page, " AND o.state = 'executing'").fetch_all(&mut *conn).await? {
            let attempt = match remote_attempt(row) {
                Ok(attempt) => attempt,
                Err(error) => {
                    // Its lease is renewed all the same, as are those of the others.
                    open_attempt_in(row, &error);
                    continue;
                }
            };
            if !attempt.open.as_ref().is_some_and(|(token, ..)| listed.contains(&(attempt.id, *token))) {
                continue;
            }
            let started_at: Timestamp = row.try_get("started_at")?;
            let age = (now - started_at).to_std().unwrap_or_default();
            let own = row
                .try_get::<Option<&str>, _>("options")?
                .and_then(|text| JobOptions::as_far_as_readable(text).time_limit_ms());
            let timeout = own.map(Duration::from_millis).or_else(|| timeouts.get(&attempt.kind).copied());
            let timeout = timeout.unwrap_or(Duration::from_secs(300));
            if let Some(over) = age.checked_sub(timeout) {
                found.push(OverdueAttempt { attempt, timeout, over, started_at, listed_before: None });
            }
        }
    }
    Ok(found)
}

/// Return the open attempt of a row that cannot be read as a whole, and log the job, so that an operator can repair it.
fn open_attempt_in(row: &MySqlRow, error: &sqlx::Error) -> Option<(JobId, AttemptToken)> {
    let id = JobId::from_uuid(row.try_get("id").ok()?);
    tracing::error!(job = %id, %error, "cannot read the row of an attempt of a remote worker, leaving it out");
    let is_open = row.try_get::<i64, _>("open").is_ok_and(|open| open != 0);
    let token = row.try_get("token").ok().filter(|_| is_open)?;
    Some((id, AttemptToken::from_uuid(token)))
}

fn remote_attempt(row: &MySqlRow) -> Result<RemoteAttempt, sqlx::Error> {
    let options: Option<&str> = row.try_get("options")?;
    let (open, started_at) = if row.try_get::<i64, _>("open")? != 0 {
        let token = AttemptToken::from_uuid(row.try_get("token")?);
        let open = (token, row.try_get("attempt")?, RunnerId::from_stored(row.try_get("runner")?));
        (Some(open), Some(row.try_get("started_at")?))
    } else {
        (None, None)
    };
    let options = options.map(JobOptions::as_far_as_readable).unwrap_or_default();
    Ok(RemoteAttempt {
        id: JobId::from_uuid(row.try_get("id")?),
        kind: row.try_get::<&str, _>("kind")?.parse().map_err(|_| corrupt("kind"))?,
        queue: row.try_get::<&str, _>("queue")?.parse().map_err(|_| corrupt("queue"))?,
        retry: options.backoff().cloned(),
        batch: options.batch,
        trace: options.trace,
        open,
        started_at,
        slots: Arc::default(),
    })
}

/// Read the keys of limits of which these jobs have a slot.
pub(super) async fn slots_of(
    conn: &mut Session<'_>,
    page: &[Uuid],
) -> Result<HashMap<JobId, Arc<[LimitKey]>>, sqlx::Error> {
    let mut slots: HashMap<JobId, Vec<LimitKey>> = HashMap::new();
    let sql = "SELECT limit_name, limit_key, job_id FROM limit_slots FORCE INDEX (limit_slots_job) WHERE job_id IN";
    for row in &in_list(sql, page, "").fetch_all(conn).await? {
        slots.entry(JobId::from_uuid(row.try_get("job_id")?)).or_default().push(key_in(row)?);
    }
    Ok(slots.into_iter().map(|(id, keys)| (id, keys.into())).collect())
}

/// Return those of these runners that are remote workers and have left. A runner that died holds attempts while it is
/// not marked as stopped, and nothing is claimed for one that is. So what a stopped worker holds is to be given back.
pub(super) async fn left_among(
    conn: &mut Session<'_>,
    runners: &BTreeSet<&str>,
) -> Result<HashSet<String>, sqlx::Error> {
    let (runners, mut left) = (runners.iter().copied().collect::<Vec<_>>(), HashSet::new());
    for page in runners.chunks(MAX_ROWS) {
        let sql = format!(
            "SELECT id FROM runners FORCE INDEX (PRIMARY) WHERE id IN {} AND via = 'http' AND stopped_at IS NOT NULL",
            placeholders(padded_len(page.len()))
        );
        for row in &bind_padded(statement(sql), page).fetch_all(&mut *conn).await? {
            left.insert(row.try_get("id")?);
        }
    }
    Ok(left)
}
