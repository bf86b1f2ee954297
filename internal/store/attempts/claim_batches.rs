//! Batches of claims: they let the reaper find the open attempts of a runner without reading `owed`.
//!
//! Each claim writes one row of `claim_batches` for up to 256 jobs, in its own transaction. The reaper reads the rows
//! of runners that sent no heartbeat and looks up their jobs by primary key. So the work of the reaper depends on the
//! number of executing jobs and not on the backlog. Only `owed` says whether an attempt is open. A row of
//! `claim_batches` that outlives its attempts costs one lookup and has no other effect.
//!
//! [`OpenClaims`] keeps the claims of this process in memory. It knows which rows can be deleted, makes sure that no
//! attempt is handed to two callers, and remembers the claims that were never answered.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use chrono::TimeDelta;
use sqlx::Row;
use uuid::Uuid;

use crate::rows::owed::SKIP_LOCKED;
use crate::sql::batches::{MAX_ROWS, bind_padded, in_list, padded, padded_len, placeholders, statement};
use crate::sql::cluster::{Locked, lock_free_in_cluster};
use crate::sql::connection::on_pool;
use crate::sql::error::{Fault, corrupt, fault};
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{AttemptToken, IdHashes, JobId, RunnerId, Timestamp};

/// Batches in one page.
const PAGE: u32 = 64;
/// Rows of finished batches that one call deletes at most.
const MAX_CLOSED: usize = 8_192;
/// Attempts to give back that are remembered. Attempts beyond that end with their leases.
const MAX_UNANSWERED: usize = 8_192;
/// Why attempts are given back whose claim was not answered.
const NOT_ANSWERED: &str = "its claim was not answered, no handler was started";
/// Why attempts are given back for which a limit has no room.
pub(super) const NO_ROOM: &str = "a limit changed while it was claimed, no handler was started";
/// Longest time for which claims are looked for that MySQL may begin with late, once it answers: the longest wait for a
/// lock, twice.
const MAX_LATE: Duration = Duration::from_secs(10);
/// An upper bound for the time in which a claim is repeated.
const MAX_CLAIM: Duration = Duration::from_secs(10 * 60);
/// Runners with batches that one call lists at most.
const MAX_RUNNERS: usize = 1_000;
/// Time between the end of a deferred attempt that times out and the end of its lease.
pub(super) const MARGIN: TimeDelta = TimeDelta::seconds(30);

/// The attempts that this process has claimed and not yet settled.
#[derive(Default)]
pub(crate) struct OpenClaims(Mutex<Open>);

/// Attempts that may be committed and that no handler gets.
#[derive(Debug)]
pub(crate) struct Unstarted {
    pub(crate) token: AttemptToken,
    pub(crate) ids: Vec<JobId>,
    /// Why they are given back, for their lines in the ledger.
    pub(crate) why: &'static str,
    /// Whether MySQL may begin with their claim only later.
    pub(crate) late: Late,
}

/// Whether MySQL may begin with a claim after its client has lost the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Late {
    /// It had begun: its locks were taken before the request that was not answered.
    Never,
    /// The whole claim is in one request, which may wait for its first lock, or in a server that stands still.
    Possible,
    /// The same, and the first answered look did not find the claim at this moment.
    NotFoundAt(Instant),
}

impl Late {
    /// Return what is known after a look that did not find the claim; nothing if it will not come any more.
    pub(crate) fn after_a_look(self) -> Option<Self> {
        match self {
            Self::Never => None,
            Self::Possible => Some(Self::NotFoundAt(Instant::now())),
            Self::NotFoundAt(first) => (first.elapsed() < MAX_LATE).then_some(self),
        }
    }
}

#[derive(Default)]
struct Open {
    /// The attempts that were handed out. The UUID is the row of their batch.
    attempts: HashMap<JobId, (AttemptToken, Uuid), IdHashes>,
    /// Number of open attempts of each row.
    rows: HashMap<Uuid, usize, IdHashes>,
    /// Rows whose attempts have all ended.
    closed: Vec<Uuid>,
    /// Attempts to give back. Most of them are claims that were never answered.
    unanswered: Vec<Unstarted>,
    /// Tokens of claims that were repeated because an earlier run got no answer, and the times of the repetition.
    uncertain: HashMap<AttemptToken, Instant>,
}

impl OpenClaims {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Record that a claim of these jobs was answered; `row` is its row in `claim_batches`. Returns the jobs that are
    /// to be handed out now. A job that was handed out before under the same token is not among them, because it would
    /// start twice.
    pub(crate) fn won(&self, row: Uuid, token: AttemptToken, ids: &[JobId]) -> HashSet<JobId, IdHashes> {
        let mut open = self.lock();
        let mut fresh = HashSet::with_capacity_and_hasher(ids.len(), IdHashes::default());
        for id in ids {
            match open.attempts.get(id) {
                Some((held, _)) if *held == token => {}
                _ => {
                    // The reaper ended an older attempt of the same job, and the holder of that attempt has not settled
                    // it yet.
                    if let Some((_, before)) = open.attempts.insert(*id, (token, row)) {
                        open.one_less(before);
                    }
                    fresh.insert(*id);
                }
            }
        }
        if fresh.is_empty() {
            open.closed.push(row);
        } else {
            open.rows.insert(row, fresh.len());
        }
        fresh
    }

    /// Do what [`won`](Self::won) does for a claim of which this process has left other attempts, to give them back.
    /// Its row stays: if this process dies before that, the reaper of another one finds those attempts by it. The
    /// reaper of this process deletes the row when none of its attempts is open any more.
    pub(crate) fn won_in_part(&self, token: AttemptToken, ids: &[JobId]) -> HashSet<JobId, IdHashes> {
        // No row has this id.
        self.won(Uuid::now_v7(), token, ids)
    }

    /// Record that the attempt is settled, by its holder or by another process.
    pub(crate) fn ended(&self, id: JobId, token: AttemptToken) {
        self.all_ended([(id, token)]);
    }

    /// Record that these attempts are settled, as [`ended`](Self::ended) does.
    pub(crate) fn all_ended(&self, attempts: impl IntoIterator<Item = (JobId, AttemptToken)>) {
        let mut open = self.lock();
        for (id, token) in attempts {
            if open.attempts.get(&id).is_some_and(|(held, _)| *held == token)
                && let Some((_, row)) = open.attempts.remove(&id)
            {
                open.one_less(row);
            }
        }
    }

    /// Remember that a claim of these jobs under this token got no answer and that its caller has stopped waiting.
    pub(crate) fn gave_up(&self, token: AttemptToken, ids: &[JobId]) {
        self.leave(Unstarted { token, ids: ids.to_vec(), why: NOT_ANSWERED, late: Late::Never });
    }

    /// Do the same for a claim that is in one request, which MySQL may begin with after its client has gone.
    pub(crate) fn gave_up_early(&self, token: AttemptToken, ids: &[JobId]) {
        self.leave(Unstarted { token, ids: ids.to_vec(), why: NOT_ANSWERED, late: Late::Possible });
    }

    /// Remember attempts that are to be given back.
    pub(crate) fn leave(&self, unstarted: Unstarted) {
        if unstarted.ids.is_empty() {
            return;
        }
        let mut open = self.lock();
        let remembered: usize = open.unanswered.iter().map(|unstarted| unstarted.ids.len()).sum();
        if remembered + unstarted.ids.len() <= MAX_UNANSWERED {
            open.unanswered.push(unstarted);
        }
    }

    /// Take the attempts that are to be given back.
    pub(crate) fn take_unstarted(&self) -> Vec<Unstarted> {
        std::mem::take(&mut self.lock().unanswered)
    }

    /// Record that a claim is repeated under this token, because an earlier run got no answer.
    pub(crate) fn uncertain(&self, token: AttemptToken) {
        let mut open = self.lock();
        open.uncertain.retain(|_, since| since.elapsed() < MAX_CLAIM);
        open.uncertain.insert(token, Instant::now());
    }

    pub(crate) fn is_uncertain(&self, token: AttemptToken) -> bool {
        self.lock().uncertain.contains_key(&token)
    }

    /// Number of attempts that are to be given back.
    fn unanswered(&self) -> usize {
        self.lock().unanswered.iter().map(|unstarted| unstarted.ids.len()).sum()
    }

    /// Rows whose open attempts all run in this process.
    fn rows_that_run(&self, live: &HashSet<JobId>) -> HashSet<Uuid> {
        let open = self.lock();
        let mut rows: HashSet<Uuid> = open.rows.keys().copied().collect();
        for (id, (_, row)) in &open.attempts {
            if !live.contains(id) {
                rows.remove(row);
            }
        }
        rows
    }

    fn contains(&self, id: JobId, token: AttemptToken) -> bool {
        self.lock().attempts.get(&id).is_some_and(|(held, _)| *held == token)
    }
}

impl Open {
    fn one_less(&mut self, row: Uuid) {
        if let Some(left) = self.rows.get_mut(&row) {
            *left -= 1;
            if *left == 0 {
                self.rows.remove(&row);
                self.closed.push(row);
            }
        }
    }
}

/// One page of a runner's batches.
#[derive(Debug, Default)]
pub struct BatchPage {
    /// Attempts whose lease has ended.
    pub lapsed: Vec<Lapsed>,
    /// Number of open attempts, including those in `lapsed`.
    pub open: usize,
    /// The place where the next page begins. Absent at the end.
    pub next: Option<Uuid>,
}

/// The rule that decides if a lease has ended.
#[derive(Clone, Copy, Debug)]
pub struct LapseRule {
    /// The time of the database, which was checked against the monotonic clock of this process. Leases that end before
    /// it have ended.
    pub at: Timestamp,
    /// A lease that ends later than this was taken before the clock of the database was set back. It has ended as well,
    /// if its runner sends no heartbeat.
    pub beyond: Option<Timestamp>,
}

impl LapseRule {
    /// The rule for leases that end before this moment.
    #[must_use]
    pub const fn at(at: Timestamp) -> Self {
        Self { at, beyond: None }
    }

    /// The rule for all leases of a runner that holds nothing any more.
    #[must_use]
    pub const fn all(at: Timestamp) -> Self {
        Self { at, beyond: Some(Timestamp::MIN_UTC) }
    }

    pub(crate) fn has_lapsed(&self, until: Timestamp) -> bool {
        until < self.at || self.beyond.is_some_and(|beyond| until > beyond)
    }
}

impl Store {
    /// List the runners that have batches, at most 1,000. Reads one row for each.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn runners_with_batches(&self) -> Result<Vec<RunnerId>, StoreError> {
        on_pool(&self.shared.pools.loops, "list runners with open claims", move |conn, _| {
            Box::pin(async move {
                let mut runners: Vec<RunnerId> = Vec::new();
                // One lookup in the primary key for each runner: neither MySQL nor MariaDB reliably skips through the
                // index for a DISTINCT.
                let sql = "SELECT runner FROM claim_batches WHERE runner > ? ORDER BY runner LIMIT 1";
                while runners.len() < MAX_RUNNERS {
                    let after = runners.last().map_or("", RunnerId::as_str);
                    let next: Option<String> = sqlx::query_scalar(sql).bind(after).fetch_optional(&mut *conn).await?;
                    let Some(next) = next else { break };
                    runners.push(RunnerId::from_stored(next));
                }
                Ok(runners)
            })
        })
        .await
    }

    /// Read the page of a runner's batches behind `after`, and return the attempts whose lease has ended. Batches
    /// without an open attempt are deleted. Batches whose attempts all run in this process, according to `live`, are
    /// skipped.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn lapsed_of(
        &self,
        runner: &RunnerId,
        after: Option<Uuid>,
        rule: LapseRule,
        live: Arc<HashSet<JobId>>,
    ) -> Result<BatchPage, StoreError> {
        let (runner, shared) = (runner.clone(), self.shared.clone());
        on_pool(&self.shared.pools.loops, "read the claims of a runner", move |conn, _| {
            let (runner, shared, live) = (runner.clone(), shared.clone(), Arc::clone(&live));
            Box::pin(async move {
                let run_here = shared.open_claims.rows_that_run(&live);
                page_of(conn, &run_here, &runner, after, rule).await
            })
        })
        .await
    }

    /// Delete the rows of batches that this process has settled, up to the limit of one call. Rows that another session
    /// locks are left for a later call.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement. A later call deletes the rows.
    #[boxed]
    pub async fn delete_closed_batches(&self, runner: &RunnerId) -> Result<(), StoreError> {
        let open_claims = Arc::clone(&self.shared.open_claims);
        let closed: Arc<[Uuid]> = {
            let mut open = open_claims.lock();
            let count = open.closed.len().min(MAX_CLOSED);
            open.closed.drain(..count).collect()
        };
        if closed.is_empty() {
            return Ok(());
        }
        let (runner, rows) = (runner.clone(), Arc::clone(&closed));
        let deleted = on_pool(&self.shared.pools.loops, "delete settled batches of claims", move |conn, _| {
            let (runner, rows) = (runner.clone(), Arc::clone(&rows));
            Box::pin(async move { delete(conn, &runner, &rows).await })
        })
        .await;
        let left = deleted.as_ref().map_or(&*closed, Vec::as_slice);
        open_claims.lock().closed.extend_from_slice(left);
        deleted.map(drop)
    }

    /// Number of attempts of this process that are to be given back: their claims were never answered and may have been
    /// committed, or a limit left no room for them after a COMMIT that took long.
    #[must_use]
    pub fn unanswered_claims(&self) -> usize {
        self.shared.open_claims.unanswered()
    }

    /// Take the attempts that are to be given back with [`give_back`](Self::give_back).
    pub(crate) fn take_unanswered(&self) -> Vec<Unstarted> {
        self.shared.open_claims.take_unstarted()
    }

    /// Return true if this process has handed out this attempt and not yet settled it.
    pub(crate) fn is_handed_out(&self, id: JobId, token: AttemptToken) -> bool {
        self.shared.open_claims.contains(id, token)
    }
}

async fn page_of(
    conn: &mut Session<'_>,
    run_here: &HashSet<Uuid>,
    runner: &RunnerId,
    after: Option<Uuid>,
    rule: LapseRule,
) -> Result<BatchPage, sqlx::Error> {
    let sql = "SELECT id, token, ids FROM claim_batches WHERE runner = ? AND id > ? ORDER BY runner, id LIMIT ?";
    let query = sqlx::query(sql).bind(runner.as_str()).bind(after.unwrap_or(Uuid::nil())).bind(PAGE);
    let found = query.fetch_all(&mut *conn).await?;
    let mut page = BatchPage::default();
    // The batch of each attempt. A job may be in several batches, claimed under different tokens.
    let mut batch_of: HashMap<(Uuid, Uuid), Uuid> = HashMap::new();
    let mut batches: HashSet<Uuid> = HashSet::new();
    for row in &found {
        let (batch, token): (Uuid, Uuid) = (row.try_get("id")?, row.try_get("token")?);
        if found.len() == PAGE as usize {
            page.next = Some(batch);
        }
        if run_here.contains(&batch) {
            continue;
        }
        batches.insert(batch);
        for id in row.try_get::<&[u8], _>("ids")?.chunks_exact(16) {
            batch_of.insert((Uuid::from_slice(id).map_err(|e| corrupt(e.to_string()))?, token), batch);
        }
    }
    let mut ids: Vec<Uuid> = batch_of.keys().map(|(id, _)| *id).collect();
    ids.sort_unstable();
    ids.dedup();
    for ids in ids.chunks(MAX_ROWS) {
        let sql = format!(
            "SELECT id, token, lease_until FROM owed FORCE INDEX (PRIMARY) WHERE id IN {} AND state = 'executing'",
            placeholders(padded_len(ids.len()))
        );
        let mut query = statement(sql);
        for id in padded(ids) {
            query = query.bind(id);
        }
        let mut executing: Vec<(Uuid, Uuid, Timestamp)> = Vec::new();
        for row in query.fetch_all(&mut *conn).await? {
            executing.push((row.try_get("id")?, row.try_get("token")?, row.try_get("lease_until")?));
        }
        // An attempt that another system finishes is not this runner's any more. Its lease may end later than those that the
        // runner gives, which is no sign of a clock that was set back, or earlier than the time of the other system.
        let deferred = deferred_among(conn, executing.iter().map(|(id, ..)| *id).collect()).await?;
        for (id, token, until) in executing {
            let Some(batch) = batch_of.get(&(id, token)).filter(|_| !deferred.contains(&(id, token))) else { continue };
            batches.remove(batch);
            page.open += 1;
            if rule.has_lapsed(until) {
                let (id, token) = (JobId::from_uuid(id), AttemptToken::from_uuid(token));
                page.lapsed.push(Lapsed { id, token, until });
            }
        }
    }
    delete_if_free(conn, runner, &batches.into_iter().collect::<Vec<_>>()).await?;
    Ok(page)
}

/// Do what [`delete`] does. A row that outlives its attempts has no effect, so a lock or a deadlock is no error: the
/// caller has found attempts that must not wait.
async fn delete_if_free(conn: &mut Session<'_>, runner: &RunnerId, rows: &[Uuid]) -> Result<(), sqlx::Error> {
    match delete(conn, runner, rows).await {
        Err(error) if fault(&error) == Fault::Again => {
            tracing::debug!(%error, "cannot delete batches that are over yet");
            Ok(())
        }
        done => done.map(drop),
    }
}

/// Return those attempts of these jobs that other systems finish: their handlers have left them, or the systems have
/// reported on them. Such an attempt is ended by [`end_overdue_attempts`](Store::end_overdue_attempts) when its time is up,
/// and before that neither by the end of its lease nor by that of its process. The answer stays true under the locks of the
/// `owed` rows. An attempt that nothing has ended for as long as [`MARGIN`] after its time is not among them.
pub(super) async fn deferred_among(
    conn: &mut Session<'_>,
    mut ids: Vec<Uuid>,
) -> Result<HashSet<(Uuid, Uuid)>, sqlx::Error> {
    ids.sort_unstable();
    let mut deferred = HashSet::new();
    for ids in ids.chunks(MAX_ROWS) {
        let sql = "SELECT job_id, token FROM deferred_attempts FORCE INDEX (deferred_attempts_job) WHERE job_id IN";
        let query = in_list(sql, ids, " AND look_at > UTC_TIMESTAMP(6) - INTERVAL ? SECOND").bind(MARGIN.num_seconds());
        for row in query.fetch_all(&mut *conn).await? {
            deferred.insert((row.try_get("job_id")?, row.try_get("token")?));
        }
    }
    Ok(deferred)
}

/// Return whether these claims for a remote worker may have reached it by another answer than the first: a repeated
/// request got them as well, or the worker has listed them. The answer stays true until the end of the transaction: a
/// repeated request that comes meanwhile waits for it, and looks behind the wait whether they are still open. Returns
/// nothing if another session locks what it has to read, such as a request in a process that froze.
pub(super) async fn have_reached(
    conn: &mut Session<'_>,
    worker: &RunnerId,
    token: AttemptToken,
) -> Result<Option<bool>, sqlx::Error> {
    // Only these rows are locked: another session may keep one of another claim locked for long.
    let sql = "SELECT id FROM claim_batches WHERE runner = ? AND token = ? ORDER BY runner, id LIMIT ?";
    let query = sqlx::query_scalar(sql).bind(worker.as_str()).bind(token.uuid()).bind(PAGE);
    let found: Vec<Uuid> = query.fetch_all(&mut *conn).await?;
    // A repeated request at another node of a cluster finds no lock of this one. The rows of the cluster come first, as
    // in a repeated request, so the two do not deadlock.
    let claims: BTreeSet<Vec<u8>> = found.iter().map(|batch| batch.as_bytes().to_vec()).collect();
    let all = claims.len();
    if lock_free_in_cluster(conn, Locked::Claims, claims, SKIP_LOCKED).await?.len() < all {
        return Ok(None);
    }
    for batch in found {
        let sql = format!("SELECT reached FROM claim_batches WHERE runner = ? AND id = ? FOR UPDATE{SKIP_LOCKED}");
        let query = statement(sql).bind(worker.as_str()).bind(batch);
        match query.fetch_optional(&mut *conn).await? {
            Some(row) if row.try_get::<u8, _>("reached")? > 0 => return Ok(Some(true)),
            Some(_) => {}
            // A row that was deleted meanwhile is not read the next time.
            None => return Ok(None),
        }
    }
    Ok(Some(false))
}

/// Delete these rows, but for those that another session locks, perhaps in a process that froze. Returns the rows that
/// were left.
async fn delete(conn: &mut Session<'_>, runner: &RunnerId, rows: &[Uuid]) -> Result<Vec<Uuid>, sqlx::Error> {
    let (mut rows, mut left) = (rows.to_vec(), Vec::new());
    rows.sort_unstable();
    for rows in rows.chunks(MAX_ROWS) {
        let mut tx = conn.begin().await?;
        let mine = format!("runner = ? AND id IN {}", placeholders(padded_len(rows.len())));
        let free = format!("SELECT id FROM claim_batches WHERE {mine} ORDER BY runner, id FOR UPDATE{SKIP_LOCKED}");
        let free = bind_padded(statement(free).bind(runner.as_str()), rows).fetch_all(&mut *tx).await?;
        let free: Vec<Uuid> = free.iter().map(|row| row.try_get("id")).collect::<Result<_, _>>()?;
        if !free.is_empty() {
            // A single-table DELETE accepts no index hint. The ORDER BY and the LIMIT have the same effect.
            let list = placeholders(padded_len(free.len()));
            let sql =
                format!("DELETE FROM claim_batches WHERE runner = ? AND id IN {list} ORDER BY runner, id LIMIT ?");
            let query = bind_padded(statement(sql).bind(runner.as_str()), &free);
            query.bind(i64::try_from(free.len()).unwrap_or(i64::MAX)).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        left.extend(rows.iter().filter(|row| !free.contains(row)));
    }
    Ok(left)
}

/// An attempt whose lease had lapsed when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lapsed {
    /// The id of the job.
    pub id: JobId,
    /// The token of the attempt.
    pub token: AttemptToken,
    /// The time when the lease ended. If the holder has renewed the lease since, the row has a later time.
    pub until: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_handed_out_once_and_its_row_goes_with_the_last_of_the_batch() {
        let (open, token, row) = (OpenClaims::default(), AttemptToken::new(), Uuid::now_v7());
        let ids = [JobId::new(), JobId::new()];
        assert_eq!(open.won(row, token, &ids).len(), 2);
        // A second run finds the attempts again under the same token. It starts neither of them, and its row can be
        // deleted.
        let other = Uuid::now_v7();
        assert!(open.won(other, token, &ids).is_empty());
        assert_eq!(open.lock().closed, [other]);
        open.ended(ids[0], token);
        open.all_ended([(ids[0], token), (ids[1], AttemptToken::new())]);
        let runs = |ids: &[JobId]| open.rows_that_run(&ids.iter().copied().collect());
        assert!(runs(&ids[1..]).contains(&row) && open.contains(ids[1], token));
        assert!(runs(&[]).is_empty(), "its attempt does not run");
        // A newer attempt of the same job replaces the older one.
        let (newer, next) = (AttemptToken::new(), Uuid::now_v7());
        assert_eq!(open.won(next, newer, &ids[1..]).len(), 1);
        assert_eq!(runs(&ids), HashSet::from([next]));
        open.ended(ids[1], token);
        assert_eq!(runs(&ids), HashSet::from([next]));
        open.ended(ids[1], newer);
        assert_eq!(open.lock().closed, [other, row, next]);
        assert!(open.lock().attempts.is_empty());
    }
}
