//! Attempts whose verdict comes through the API, from a system that has the finish key.
//!
//! The handler asks for the key before it gives it away, so the system may finish the attempt at any moment, also before
//! the runner knows that it will. If the handler says for how long it would leave the attempt, a report has the same
//! effect as its return: so the attempt outlives a runner that dies before it hears the answer of the system. When the
//! handler has returned, the runner defers the attempt: it renews the lease no longer, and the reports of the system do.
//! The `owed` row decides in all cases, by its token.
//!
//! From the first report on, or from the return of the handler, `deferred_attempts.look_at` says when the time of the
//! attempt is up. The end of a lease says it no more: a heartbeat that was under way may have shortened the lease.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use chrono::TimeDelta;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::attempts::breakers::EndedCall;
use crate::attempts::claim_batches::MARGIN;
use crate::attempts::lease::{Reaped, end, ending, own_policies};
use crate::attempts::limited::SlotsOfJob;
use crate::attempts::remote::slots_of;
use crate::attempts::renewal::progress_text;
use crate::attempts::settlement::Again;
use crate::rows::attempt_logs::{AttemptLogRow, write_log};
use crate::rows::checkpoints::{mark_checkpoints, write_checkpoints};
use crate::rows::limits::LimitKey;
use crate::rows::order::lock_free_keys_of;
use crate::rows::owed::{DEFERRED, Owed, lock_free, lock_held};
use crate::sql::batches::{MAX_ROWS, in_list, statement};
use crate::sql::clock::read_clock;
use crate::sql::connection::{on_pool, transact};
use crate::sql::error::corrupt;
use crate::sql::pools::transact_in_turn;
use crate::sql::session::Session;
use crate::sql::turns::Subject;
use crate::{Store, StoreError};
use tickr_job::{
    AttemptToken, BatchId, CallOutcome, JobId, JobOptions, Name, ProgressReport, RetryPolicy, State, Timestamp,
    TraceContext, Verdict,
};

/// Attempts that one call ends at most.
const PAGE: u32 = 100;

/// The SHA-256 digest of a finish key.
pub type FinishKeyDigest = [u8; 32];

/// How long a deferred attempt may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deferral {
    /// Time until it must be finished.
    pub within: Duration,
    /// Longest time between two reports. None: it need not be reported on.
    pub report_within: Option<Duration>,
}

/// An attempt that a finish key opens.
#[derive(Clone, Debug)]
pub struct DeferredAttempt {
    /// The id of the job.
    pub id: JobId,
    /// The token of the attempt.
    pub token: AttemptToken,
    /// The number of the execution.
    pub number: u32,
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
    /// True while the attempt has no verdict.
    pub open: bool,
    /// The keys of limits of which the attempt has a slot, while it is open.
    pub slots: Arc<[LimitKey]>,
}

/// The answer to a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported {
    /// A client has asked the job to stop.
    pub cancel_requested: bool,
    /// The attempt times out at this moment, unless it is reported on or finished before. None while its handler runs.
    pub until: Option<Timestamp>,
}

/// The times of a row.
struct Times {
    deadline_at: Option<Timestamp>,
    within: Duration,
    report_within: Option<Duration>,
}

impl Times {
    fn read(row: &MySqlRow) -> Result<Self, sqlx::Error> {
        let (within, report): (u64, u64) = (row.try_get("within_ms")?, row.try_get("report_within_ms")?);
        Ok(Self {
            deadline_at: row.try_get("deadline_at")?,
            within: Duration::from_millis(within),
            report_within: (report > 0).then(|| Duration::from_millis(report)),
        })
    }

    /// Return when the attempt times out if nothing more is heard of it.
    fn until(&self, now: Timestamp) -> Option<Timestamp> {
        let report_by = self.report_within.map(|within| now + delta(within));
        Some(report_by.map_or(self.deadline_at?, |report_by| report_by.min(self.deadline_at.unwrap_or(report_by))))
    }
}

fn delta(duration: Duration) -> TimeDelta {
    TimeDelta::from_std(duration).unwrap_or(TimeDelta::days(36_500))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Store {
    /// Store the finish key of an attempt, before it is given away. With a deferral, the first report leaves the attempt to
    /// the system that has the key, also while the handler runs.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn store_finish_key(
        &self,
        (id, token, number): (JobId, AttemptToken, u32),
        key: FinishKeyDigest,
        deferral: Option<Deferral>,
    ) -> Result<(), StoreError> {
        on_pool(&self.shared.pools.workers, "store a finish key", move |conn, _| {
            Box::pin(async move {
                // Without a deferral there is no deadline: NULL times a number of microseconds is NULL.
                let sql = "INSERT INTO deferred_attempts \
                           (finish_key, job_id, token, number, within_ms, report_within_ms, deadline_at) \
                           VALUES (?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND) \
                           ON DUPLICATE KEY UPDATE number = VALUES(number)";
                let within = deferral.map(|deferral| deferral.within);
                let query = sqlx::query(sql)
                    .bind(key.to_vec())
                    .bind(id.uuid())
                    .bind(token.uuid())
                    .bind(number)
                    .bind(within.map_or(0, millis))
                    .bind(deferral.and_then(|deferral| deferral.report_within).map_or(0, millis))
                    .bind(within.map(|within| i64::try_from(within.as_micros()).unwrap_or(i64::MAX)));
                query.execute(conn).await.map(drop)
            })
        })
        .await
    }

    /// Leave an attempt to the system that has its finish key. Returns false, with the log stored and nothing else
    /// changed, if the token does not hold the job any more: the system may have finished the attempt already. The log
    /// of a lost attempt is not stored.
    ///
    /// `slots` are the keys of limits of which the attempt has a slot. It keeps them. `log` has the lines that the handler
    /// wrote; they are stored whatever the verdict will be. `checkpoint` is the newest one, if it is not stored yet.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses. The lease then still holds, and the caller may try again.
    #[boxed]
    pub async fn defer(
        &self,
        (id, token, number): (JobId, AttemptToken, u32),
        deferral: Deferral,
        (slots, call): (Arc<[LimitKey]>, Option<CallOutcome>),
        (log, checkpoint): (Option<String>, Option<Arc<str>>),
    ) -> Result<bool, StoreError> {
        let shared = self.shared.clone();
        let deferred = transact(&self.shared.pools.workers, "defer an attempt", move |conn, _| {
            let (shared, log, checkpoint) = (shared.clone(), log.clone(), checkpoint.clone());
            Box::pin(async move {
                let held = lock_held(conn, std::iter::once(id)).await?;
                if !is_ours(held.get(&id), token) {
                    keep_log_of_ended(conn, (id, number), log.as_deref()).await?;
                    return Ok(false);
                }
                let now = read_clock(conn, &shared.clock).await?;
                let times = Times {
                    deadline_at: Some(now + delta(deferral.within)),
                    within: deferral.within,
                    report_within: deferral.report_within,
                };
                let until = times.until(now);
                let sql = "UPDATE deferred_attempts SET within_ms = ?, report_within_ms = ?, deadline_at = ?, look_at = ? \
                           WHERE job_id = ? AND token = ?";
                let query = sqlx::query(sql)
                    .bind(millis(times.within))
                    .bind(times.report_within.map_or(0, millis))
                    .bind(times.deadline_at)
                    .bind(until)
                    .bind(id.uuid())
                    .bind(token.uuid());
                query.execute(&mut *conn).await?;
                extend_lease(conn, id, until).await?;
                if let Some(content) = &checkpoint {
                    mark_checkpoints(conn, &[id.uuid()]).await?;
                    write_checkpoints(conn, &[(id.uuid(), content)], now).await?;
                }
                if let Some(log) = &log {
                    write_log(conn, AttemptLogRow { job: id, number, log }).await?;
                }
                Ok(true)
            })
        })
        .await?;
        if deferred {
            self.shared.open_claims.ended(id, token);
            if let Some(outcome) = call.filter(|_| !slots.is_empty()) {
                let call = Some(EndedCall { token, outcome, error: None, in_doubt: true });
                let counted = self.free_slots(SlotsOfJob { id: id.uuid(), keys: slots, call, keeps: true });
                if let Err(error) = counted.await {
                    tracing::debug!(%error, "cannot count a call for the breaker of its host");
                }
            }
        }
        Ok(deferred)
    }

    /// Read the attempt that a finish key opens. Nothing if there is no such key.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn deferred_attempt(&self, key: FinishKeyDigest) -> Result<Option<DeferredAttempt>, StoreError> {
        let limits = Arc::clone(&self.shared.limits);
        on_pool(&self.shared.pools.steering, "read an attempt by its finish key", move |conn, _| {
            let limits = Arc::clone(&limits);
            Box::pin(async move {
                let sql = "SELECT d.job_id, d.token, d.number, j.kind, j.queue, j.options, \
                           COALESCE(o.state = 'executing' AND o.token = d.token, FALSE) AS open \
                           FROM deferred_attempts d FORCE INDEX (PRIMARY) STRAIGHT_JOIN jobs j ON j.id = d.job_id \
                           LEFT JOIN owed o ON o.id = d.job_id WHERE d.finish_key = ?";
                let Some(row) = sqlx::query(sql).bind(key.to_vec()).fetch_optional(&mut *conn).await? else {
                    return Ok(None);
                };
                let (id, open): (Uuid, bool) = (row.try_get("job_id")?, row.try_get::<i64, _>("open")? != 0);
                let slots = if open && !limits.now().is_empty() {
                    slots_of(conn, &[id]).await?.remove(&JobId::from_uuid(id)).unwrap_or_default()
                } else {
                    Arc::default()
                };
                let options: Option<&str> = row.try_get("options")?;
                let options = options.map(JobOptions::as_far_as_readable).unwrap_or_default();
                Ok(Some(DeferredAttempt {
                    id: JobId::from_uuid(id),
                    token: AttemptToken::from_uuid(row.try_get("token")?),
                    number: row.try_get("number")?,
                    kind: row.try_get::<&str, _>("kind")?.parse().map_err(|_| corrupt("kind"))?,
                    queue: row.try_get::<&str, _>("queue")?.parse().map_err(|_| corrupt("queue"))?,
                    retry: options.backoff().cloned(),
                    batch: options.batch,
                    trace: options.trace,
                    open,
                    slots,
                }))
            })
        })
        .await
    }

    /// Record that the system with the finish key works on the attempt, with its progress and a checkpoint. Returns
    /// nothing if the attempt has ended.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn report_on(
        &self,
        attempt: &DeferredAttempt,
        progress: Option<ProgressReport>,
        checkpoint: Option<Arc<str>>,
    ) -> Result<Option<Reported>, StoreError> {
        let (shared, (id, token)) = (self.shared.clone(), (attempt.id, attempt.token));
        let subjects = BTreeSet::from([Subject::Job(id), Subject::Change]);
        transact_in_turn(&self.shared.pools, subjects, "report on an attempt", move |conn, _| {
            let (shared, progress, checkpoint) = (shared.clone(), progress.clone(), checkpoint.clone());
            Box::pin(async move {
                let held = lock_held(conn, std::iter::once(id)).await?;
                let Some(owed) = held.get(&id).filter(|owed| is_ours(Some(owed), token)) else { return Ok(None) };
                let now = read_clock(conn, &shared.clock).await?;
                let sql = "SELECT within_ms, report_within_ms, deadline_at FROM deferred_attempts \
                           FORCE INDEX (deferred_attempts_job) WHERE job_id = ? AND token = ? AND deadline_at IS NOT NULL";
                let row = sqlx::query(sql).bind(id.uuid()).bind(token.uuid()).fetch_optional(&mut *conn).await?;
                // While a handler runs that has not said for how long it will leave the attempt, its runner renews the lease.
                let until = row.map(|row| Times::read(&row)).transpose()?.and_then(|times| times.until(now));
                if until.is_some() {
                    let sql = "UPDATE deferred_attempts SET look_at = ? WHERE job_id = ? AND token = ?";
                    let query = sqlx::query(sql).bind(until).bind(id.uuid()).bind(token.uuid());
                    query.execute(&mut *conn).await?;
                    extend_lease(conn, id, until).await?;
                }
                if let Some(progress) = progress {
                    write_report(conn, id, progress).await?;
                }
                if let Some(content) = checkpoint {
                    mark_checkpoints(conn, &[id.uuid()]).await?;
                    write_checkpoints(conn, &[(id.uuid(), &*content)], now).await?;
                }
                Ok(Some(Reported { cancel_requested: owed.cancel_requested_at.is_some(), until }))
            })
        })
        .await
    }

    /// Count the attempts on which other systems work, up to 100,000.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn deferred_attempts(&self) -> Result<i64, StoreError> {
        on_pool(&self.shared.pools.reads, "count deferred attempts", |conn, _| {
            Box::pin(async move {
                let sql = "SELECT COUNT(*) FROM (SELECT 1 FROM deferred_attempts FORCE INDEX (deferred_attempts_look) \
                           WHERE look_at IS NOT NULL LIMIT 100000) d";
                sqlx::query_scalar(sql).fetch_one(conn).await
            })
        })
        .await
    }

    /// End deferred attempts that were not finished or reported on in time, as timed out. Returns them, and whether there
    /// may be more.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn end_overdue_attempts(
        &self,
        policies: Arc<HashMap<Name, RetryPolicy>>,
    ) -> Result<(Vec<Reaped>, bool), StoreError> {
        let shared = self.shared.clone();
        transact(&self.shared.pools.loops, "end deferred attempts", move |conn, _| {
            let (shared, policies) = (shared.clone(), Arc::clone(&policies));
            Box::pin(async move {
                let overdue = overdue(conn).await?;
                if overdue.is_empty() {
                    return Ok((Vec::new(), false));
                }
                let full = overdue.len() as u32 == PAGE;
                let ids: Vec<JobId> = overdue.iter().map(|attempt| attempt.id).collect();
                let own = own_policies(conn, &ids).await?;
                let uuids: Vec<Uuid> = ids.iter().map(|id| id.uuid()).collect();
                let (ordered, locked) = lock_free_keys_of(conn, &uuids).await?;
                let held = lock_free(conn, ids.iter().copied().filter(|id| !locked.contains(&id.uuid()))).await?;
                let now = read_clock(conn, &shared.clock).await?;
                let still = still_overdue(conn, held.keys().map(|id| id.uuid()).collect()).await?;
                let (mut ends, mut stay) = (Vec::new(), 0);
                for attempt in &overdue {
                    match held.get(&attempt.id) {
                        Some(owed) if is_ours(Some(owed), attempt.token) => {
                            // A report that came since the look has moved the time. The lease does not tell: the runner of a
                            // handler that has not returned yet renews it.
                            if still.contains(&(attempt.id.uuid(), attempt.token.uuid())) {
                                let policy = own.get(&attempt.id).or_else(|| policies.get(&owed.kind)).cloned();
                                let again = Again::Backoff(policy.unwrap_or_default(), rand::random());
                                ends.push(ending(attempt.id, owed, Verdict::TimedOut, &attempt.why(now), again));
                                attempt.forget(conn).await?;
                            }
                        }
                        Some(_) => attempt.forget(conn).await?,
                        // The row is locked, or the job has ended.
                        None if attempt.has_ended(conn).await? => attempt.forget(conn).await?,
                        None => stay += 1,
                    }
                }
                // If the whole page is locked, another look at once would find it locked again.
                let more = full && stay < overdue.len();
                Ok((end(conn, &shared, &ends, &held, &ordered).await?, more))
            })
        })
        .await
    }
}

fn is_ours(owed: Option<&Owed>, token: AttemptToken) -> bool {
    owed.is_some_and(|owed| owed.token == token && owed.state == State::Executing)
}

/// Let the lease of an attempt end some time after this moment, which was written as `look_at`. The row is locked. The
/// bit lets the end of the attempt clear `look_at`.
async fn extend_lease(conn: &mut Session<'_>, id: JobId, until: Option<Timestamp>) -> Result<(), sqlx::Error> {
    let sql = statement(format!("UPDATE owed SET lease_until = ?, links = links | {DEFERRED} WHERE id = ?"));
    sql.bind(until.map(|until| until + MARGIN)).bind(id.uuid()).execute(conn).await.map(drop)
}

/// Write the progress of an attempt. The row is locked.
async fn write_report(conn: &mut Session<'_>, id: JobId, report: ProgressReport) -> Result<(), sqlx::Error> {
    let sql = "SELECT progress FROM owed FORCE INDEX (PRIMARY) WHERE id = ?";
    let before: Option<String> = sqlx::query_scalar(sql).bind(id.uuid()).fetch_one(&mut *conn).await?;
    let progress = report.after(before.and_then(|text| serde_json::from_str(&text).ok()));
    let query = sqlx::query("UPDATE owed SET progress = ? WHERE id = ?").bind(progress_text(&progress));
    query.bind(id.uuid()).execute(conn).await.map(drop)
}

/// Store what a handler wrote before it returned, although its attempt has a verdict already: the system was faster.
/// The lock on the line keeps the janitor from removing the job meanwhile, which would leave the log behind.
async fn keep_log_of_ended(
    conn: &mut Session<'_>,
    (id, number): (JobId, u32),
    log: Option<&str>,
) -> Result<(), sqlx::Error> {
    let Some(log) = log else { return Ok(()) };
    let sql =
        "SELECT 1 FROM attempts FORCE INDEX (PRIMARY) WHERE job_id = ? AND number = ? AND verdict <> 'lost' FOR UPDATE";
    let ended = sqlx::query(sql).bind(id.uuid()).bind(number).fetch_optional(&mut *conn).await?;
    if ended.is_some() {
        write_log(conn, AttemptLogRow { job: id, number, log }).await?;
    }
    Ok(())
}

/// An attempt whose time is up.
struct Overdue {
    id: JobId,
    token: AttemptToken,
    times: Times,
}

impl Overdue {
    fn why(&self, now: Timestamp) -> String {
        match self.times.report_within {
            Some(within) if self.times.deadline_at.is_none_or(|deadline| deadline > now) => {
                format!("nothing was heard of it for {} ms", within.as_millis())
            }
            _ => format!("it was not finished within {} ms", self.times.within.as_millis()),
        }
    }

    /// Look at it no more. The row stays, so that its key still finds the attempt, which has ended.
    async fn forget(&self, conn: &mut Session<'_>) -> Result<(), sqlx::Error> {
        let query = sqlx::query("UPDATE deferred_attempts SET look_at = NULL WHERE job_id = ? AND token = ?");
        query.bind(self.id.uuid()).bind(self.token.uuid()).execute(conn).await.map(drop)
    }

    async fn has_ended(&self, conn: &mut Session<'_>) -> Result<bool, sqlx::Error> {
        let owed = sqlx::query("SELECT 1 FROM owed WHERE id = ?").bind(self.id.uuid());
        Ok(owed.fetch_optional(conn).await?.is_none())
    }
}

async fn overdue(conn: &mut Session<'_>) -> Result<Vec<Overdue>, sqlx::Error> {
    let sql = "SELECT job_id, token, within_ms, report_within_ms, deadline_at FROM deferred_attempts \
               FORCE INDEX (deferred_attempts_look) WHERE look_at <= UTC_TIMESTAMP(6) ORDER BY look_at LIMIT ?";
    let found = sqlx::query(sql).bind(PAGE).fetch_all(conn).await?;
    let attempt = |row: &MySqlRow| {
        Ok(Overdue {
            id: JobId::from_uuid(row.try_get("job_id")?),
            token: AttemptToken::from_uuid(row.try_get("token")?),
            times: Times::read(row)?,
        })
    };
    found.iter().map(attempt).collect()
}

/// Return those attempts of these jobs, whose rows are locked, whose time is up.
async fn still_overdue(conn: &mut Session<'_>, mut ids: Vec<Uuid>) -> Result<HashSet<(Uuid, Uuid)>, sqlx::Error> {
    ids.sort_unstable();
    let sql = "SELECT job_id, token FROM deferred_attempts FORCE INDEX (deferred_attempts_job) WHERE job_id IN";
    let mut still = HashSet::new();
    for ids in ids.chunks(MAX_ROWS) {
        for row in in_list(sql, ids, " AND look_at <= UTC_TIMESTAMP(6)").fetch_all(&mut *conn).await? {
            still.insert((row.try_get("job_id")?, row.try_get("token")?));
        }
    }
    Ok(still)
}
