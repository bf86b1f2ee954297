//! Moves rows of the outbox to `jobs` and `owed`.
//!
//! A row and its job change places in one transaction, so nothing is lost or doubled, whatever dies in between. Rows
//! that another session locks are left out: a transaction of an application that stays open delays no other row, and two
//! movers take different rows. No session waits for a row of the outbox while it holds another lock.
//!
//! Rows whose jobs need a lock that another session may keep, that of a unique key, a parent, a batch or an order key,
//! are moved one by one, so that the others do not wait for it. Free order keys are locked for a page at once, and rows
//! of the others are moved one by one. A page locks no key of a row that is moved by itself: another session may be
//! making this key, and to make it as well is to wait for that session.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use uuid::Uuid;

use crate::idempotency::{Answer, IdempotentOutcome, ResponseBuilder};
use crate::jobs::unique_keys::{
    EnqueueReceipts, EnqueueRefusal, EnqueueRequest, EnqueuedJob, PriorDecision, insert_keyed, with_producer,
};
use crate::outbox::answers::{RowAnswer, answers_to, keep_answer};
use crate::outbox::heads::{ROWS, Rows, lock_heads};
use crate::outbox::locks::{NeededLock, Tried, WaitsFor, lock_without_a_wait};
use crate::outbox::rejected::reject;
use crate::outbox::rows::{MAX_OPTIONS_BYTES, NamedKeys, OutboxRow, WrongTimes, outbox_row};
use crate::rows::jobs::{Accepted, accepted_at, mark_held, write_jobs};
use crate::rows::links::{LinkProblem, NewLinks};
use crate::rows::order::{lock_free_keys_or_make, order_key_of as order_key_of_job};
use crate::sql::batches::{MAX_ROWS, in_list, statement};
use crate::sql::clock::read_clock;
use crate::sql::connection::{PriorRun, on_pool, transact, transact_unless_locked};
use crate::sql::session::Session;
use crate::sql::turns::{Turn, subjects_of};
use crate::{Store, StoreError, StoreInner};
use tickr_job::{JobId, Name, NewJob, Producer, Timestamp};

/// Pages of rows that are not moved, in front of a page, whose order keys are read at most.
const PAGES_IN_FRONT: u32 = 10;
/// What the move of one row is called in errors.
const MOVE_ONE: &str = "move one row of the outbox";

/// Makes the job of a row that has waited here for this long, by the clock of the database.
pub type PrepareRow = Arc<dyn Fn(OutboxRow, Duration) -> PreparedRow + Send + Sync>;

/// What can be done with a row.
#[derive(Debug)]
pub enum PreparedRow {
    /// It becomes this job.
    Job(Box<NewJob>),
    /// It stays where it is: a runner of another version may be able to read it.
    ForAnother,
    /// It cannot become a job, for this reason.
    Unfit(String),
}

/// Outcome for a page of rows.
#[derive(Clone, Debug, Default)]
pub struct OutboxPage {
    /// The jobs that were accepted.
    pub accepted: Vec<Accepted>,
    /// Rows whose jobs have unique keys, parents or a batch, or whose order key may be locked, and rows behind one of these
    /// with the same order key. They are still in the outbox: move each with [`Store::move_keyed_row`], in this order.
    pub keyed: Vec<(Uuid, NewJob)>,
    /// Rows that cannot become jobs, with the reasons.
    pub rejected: Vec<(Uuid, String)>,
    /// Rows whose jobs had been accepted before.
    pub repeated: usize,
    /// Rows that were left to runners of another version, or that wait for a row with the same order key or for the row
    /// of a parent.
    pub left: usize,
    /// Those of them that have unique keys, and rows with unique keys that other sessions hold: each with its kind and
    /// its unique key.
    pub left_keys: Vec<(Uuid, Name, String)>,
    /// The id behind which the next page begins, if there may be one.
    pub next: Option<Uuid>,
}

impl OutboxPage {
    /// Note that the row of this job stays, because of another row.
    fn leave(&mut self, row: Uuid, job: NewJob) {
        self.left += 1;
        self.left_keys.extend(job.unique_key.map(|key| (row, job.kind, key)));
    }
}

/// Outcome for a row that is moved by itself.
#[derive(Clone, Debug)]
pub enum KeyedRow {
    /// The job was accepted, or another job is the answer in its place.
    Moved(EnqueueReceipts),
    /// The row is gone, or its job had been accepted before.
    Repeated,
    /// Another job has the unique key, and this one does not accept that, or a link is not possible. The row was rejected.
    Rejected(String),
    /// The row stays, because one of the parents of its job is still in the outbox.
    Left,
    /// The row stays, because another session holds a lock that its job needs: this one, or if it is absent that of the
    /// row, of the order key, or one that cannot be told.
    Locked(Option<NeededLock>),
}

/// Outcome of a row that is moved by itself.
#[derive(Clone, Debug)]
pub struct KeyedMove {
    /// The outcome.
    pub row: KeyedRow,
    /// True if seconds have gone by in a wait in vain: for a lock of another session, or for a turn.
    pub waited: bool,
}

impl Store {
    /// Move a page of rows of the outbox, behind this id. Leave `locked` among the keyed ones: each of these rows has found
    /// a lock of another session before.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn move_outbox_page(
        &self,
        after: Option<Uuid>,
        prepare: PrepareRow,
        locked: HashSet<Uuid>,
    ) -> Result<OutboxPage, StoreError> {
        let rows = after.map_or(Rows::All, Rows::Behind);
        match self.move_rows(rows, &prepare, &Apart::These(Arc::new(locked))).await {
            // MySQL refuses one of the rows. Only alone can it be told from the others, which must not wait for it.
            Err(error) if error.is_about_the_row() => self.move_one_by_one(rows, prepare).await,
            moved => moved,
        }
    }

    async fn move_rows(&self, rows: Rows, prepare: &PrepareRow, apart: &Apart) -> Result<OutboxPage, StoreError> {
        let attempted = "move rows of the outbox";
        let (shared, ready, these) = (self.shared.clone(), Arc::clone(prepare), apart.clone());
        let moved = transact_unless_locked(&self.shared.pools.loops, attempted, move |conn, _| {
            let (shared, prepare, apart) = (shared.clone(), Arc::clone(&ready), these.clone());
            Box::pin(async move { move_page(conn, &shared, rows, &prepare, &apart).await })
        });
        if let Some(page) = moved.await? {
            return Ok(page);
        }
        // Another session is making the order key of one of them. The others must not wait for it.
        let (shared, ready) = (self.shared.clone(), Arc::clone(prepare));
        transact(&self.shared.pools.loops, attempted, move |conn, _| {
            let (shared, prepare) = (shared.clone(), Arc::clone(&ready));
            Box::pin(async move { move_page(conn, &shared, rows, &prepare, &Apart::Ordered).await })
        })
        .await
    }

    /// Move a page of rows, each in a transaction of its own, and reject those that MySQL refuses.
    async fn move_one_by_one(&self, rows: Rows, prepare: PrepareRow) -> Result<OutboxPage, StoreError> {
        let ids: Vec<Uuid> = on_pool(&self.shared.pools.loops, "read rows of the outbox", move |conn, _| {
            Box::pin(async move {
                let sql = format!("SELECT id FROM tickr_outbox WHERE id {} ? ORDER BY id LIMIT ?", rows.compares());
                let found = statement(sql).bind(rows.id()).bind(ROWS).fetch_all(conn).await?;
                found.iter().map(|row| row.try_get("id")).collect()
            })
        })
        .await?;
        let mut all =
            OutboxPage { next: ids.last().copied().filter(|_| ids.len() as u32 == ROWS), ..Default::default() };
        for id in ids {
            match self.move_rows(Rows::Only(id), &prepare, &Apart::Ordered).await {
                Ok(page) => {
                    all.accepted.extend(page.accepted);
                    all.keyed.extend(page.keyed);
                    all.rejected.extend(page.rejected);
                    all.repeated += page.repeated;
                    all.left += page.left;
                    all.left_keys.extend(page.left_keys);
                }
                Err(error) if error.is_about_the_row() => {
                    let reason = format!("MySQL refuses the job: {error}");
                    self.reject_row(id, &reason).await?;
                    all.rejected.push((id, reason));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    async fn reject_row(&self, row: Uuid, reason: &str) -> Result<(), StoreError> {
        let reason = reason.to_owned();
        transact(&self.shared.pools.loops, "reject a row of the outbox", move |conn, _| {
            let reason = reason.clone();
            Box::pin(async move { reject(conn, &[(row, reason)]).await })
        })
        .await
    }

    /// Move one row of the outbox whose job has a unique key, parents or a batch, or an order key that may be locked.
    /// After a wait in vain it is tried once more without a wait, to tell which lock it is that others need as well.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn move_keyed_row(&self, row: Uuid, job: NewJob, waits_for: WaitsFor) -> Result<KeyedMove, StoreError> {
        let producer = Producer::tickr();
        let request = Arc::new(EnqueueRequest::new(with_producer(vec![job], &producer), producer));
        // A move that may wait takes turns, as an enqueue of the same job does.
        let turns = match waits_for {
            WaitsFor::Nothing => Ok(Vec::new()),
            WaitsFor::Everything | WaitsFor::NoOrderKey => {
                self.shared.pools.turns.take(subjects_of(&request.jobs), MOVE_ONE).await
            }
        };
        let missed = turns.is_err();
        let waits_for = if missed { WaitsFor::Nothing } else { waits_for };
        let moved = self.move_in_turn(row, Arc::clone(&request), waits_for, turns.unwrap_or_default()).await?;
        if !moved.waited {
            return Ok(KeyedMove { waited: missed, ..moved });
        }
        let moved = self.move_in_turn(row, request, WaitsFor::Nothing, Vec::new()).await?;
        Ok(KeyedMove { waited: true, ..moved })
    }

    async fn move_in_turn(
        &self,
        row: Uuid,
        request: Arc<EnqueueRequest>,
        waits_for: WaitsFor,
        turns: Vec<Turn>,
    ) -> Result<KeyedMove, StoreError> {
        let (shared, memory) = (self.shared.clone(), Arc::<PriorDecision>::default());
        let build: ResponseBuilder<EnqueueReceipts> = Arc::new(|_| Answer { status: 200, body: String::new() });
        let moved = transact_unless_locked(&self.shared.pools.steering, MOVE_ONE, move |conn, _| {
            // The task of the transaction keeps the turns, also when its caller goes away.
            let _kept = &turns;
            let (request, shared, memory) = (Arc::clone(&request), shared.clone(), Arc::clone(&memory));
            let build = Arc::clone(&build);
            Box::pin(async move {
                let parents = &request.jobs[0].options.after;
                if parent_is_in_outbox(conn, row, parents).await? {
                    return Ok(Moved::Left);
                }
                // The transaction that removes the row of a parent keeps the answer to it, so it is there by now.
                let answers = answers_to(conn, parents).await?;
                let request = if answers.is_empty() { request } else { Arc::new(waiting_for(&request, &answers)) };
                if let Tried::InUse(lock) = lock_without_a_wait(conn, row, &request.jobs[0], waits_for).await? {
                    // The row stays. The commit that follows has nothing to write.
                    sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
                    return Ok(Moved::Locked(lock));
                }
                let delete = sqlx::query("DELETE FROM tickr_outbox WHERE id = ?").bind(row);
                let gone = delete.execute(&mut *conn).await?.rows_affected() == 0;
                if gone || was_moved(conn, &request.jobs[0]).await? {
                    return Ok(Moved::Before);
                }
                // A refusal rolls the deletion of the row back as well.
                let moved = insert_keyed(conn, &request, (None, &build), &shared, &memory, PriorRun::Nothing).await?;
                if let IdempotentOutcome::First { done: Some(receipts), .. } = &moved
                    && let [EnqueuedJob::Existing(holder)] = receipts.jobs[..]
                {
                    keep_answer(conn, request.jobs[0].id, holder).await?;
                }
                Ok(Moved::Now(moved, answers))
            })
        });
        let moved = match moved.await {
            Err(error) if error.is_about_the_row() => {
                let reason = format!("MySQL refuses the job: {error}");
                self.reject_row(row, &reason).await?;
                return Ok(KeyedMove { row: KeyedRow::Rejected(reason), waited: false });
            }
            moved => moved?,
        };
        let Some(moved) = moved else { return Ok(KeyedMove { row: KeyedRow::Locked(None), waited: true }) };
        let row = match moved {
            Moved::Left => KeyedRow::Left,
            Moved::Locked(lock) => KeyedRow::Locked(lock),
            Moved::Before => KeyedRow::Repeated,
            Moved::Now(IdempotentOutcome::First { done: Some(receipts), .. }, _) => KeyedRow::Moved(receipts),
            Moved::Now(IdempotentOutcome::Refused(refusal), answers) => {
                let reason = reason_of(&refusal, &answers);
                self.reject_row(row, &reason).await?;
                KeyedRow::Rejected(reason)
            }
            Moved::Now(..) => {
                return Err(StoreError::corrupt(MOVE_ONE, "a stored response without an idempotency key"));
            }
        };
        Ok(KeyedMove { row, waited: false })
    }
}

/// What one transaction did with a row that is moved by itself.
enum Moved {
    Left,
    /// Another session has a lock for which this move does not wait.
    Locked(Option<NeededLock>),
    /// The row or the job had been moved before.
    Before,
    /// It is moved or refused. The answers are those to rows that it names as parents.
    Now(IdempotentOutcome<EnqueueReceipts, EnqueueRefusal>, BTreeMap<JobId, RowAnswer>),
}

/// Let the job of a row wait for the answers to rows in place of these rows.
fn waiting_for(request: &EnqueueRequest, answers: &BTreeMap<JobId, RowAnswer>) -> EnqueueRequest {
    let mut jobs = request.jobs.clone();
    for job in &mut jobs {
        job.options.replace_parents(|parent| answers.get(&parent).map(|answer| answer.job));
    }
    let completed = answers.values().filter(|answer| answer.completed).map(|answer| answer.job.uuid());
    EnqueueRequest { completed_parents: completed.collect(), ..EnqueueRequest::new(jobs, request.producer.clone()) }
}

/// Return whether one of these parents is a row of the outbox in front of `row`. Another session may hold it, or a runner
/// of another version may be the one that can read it. A row is read here until the transaction that moves it is
/// committed, so a parent that is not found here has become a job, or never will. A parent behind `row` does not count:
/// two rows could wait for each other.
async fn parent_is_in_outbox(conn: &mut Session<'_>, row: Uuid, parents: &[JobId]) -> Result<bool, sqlx::Error> {
    let parents = parents_in_front(row, parents);
    if parents.is_empty() {
        return Ok(false);
    }
    let found = in_list("SELECT id FROM tickr_outbox FORCE INDEX (PRIMARY) WHERE id IN", &parents, " LIMIT 1");
    Ok(found.fetch_optional(conn).await?.is_some())
}

/// Return those of these parents whose ids sort before `row`, in their order.
fn parents_in_front(row: Uuid, parents: &[JobId]) -> Vec<Uuid> {
    let mut parents: Vec<Uuid> = parents.iter().map(|id| id.uuid()).filter(|parent| *parent < row).collect();
    parents.sort_unstable();
    parents
}

/// Return whether the row of this job was moved before: the job exists, or it completed, keeps its unique key for a
/// time and was removed.
async fn was_moved(conn: &mut Session<'_>, job: &NewJob) -> Result<bool, sqlx::Error> {
    let id = job.id.uuid();
    let known = match &job.unique_key {
        None => sqlx::query("SELECT 1 FROM jobs WHERE id = ?").bind(id),
        Some(key) => {
            let sql = "SELECT 1 FROM jobs WHERE id = ? UNION ALL SELECT 1 FROM unique_keys WHERE kind = ? \
                       AND unique_key = ? AND job_id = ? AND held_until > UTC_TIMESTAMP(3) LIMIT 1";
            sqlx::query(sql).bind(id).bind(job.kind.as_str()).bind(key.as_bytes()).bind(id)
        }
    };
    Ok(known.fetch_optional(conn).await?.is_some())
}

/// The rows of a page that are moved one by one, besides those whose jobs have unique keys, parents or a batch.
#[derive(Clone)]
enum Apart {
    These(Arc<HashSet<Uuid>>),
    /// Those whose jobs have order keys.
    Ordered,
}

impl Apart {
    fn has(&self, row: Uuid, order_key: Option<&str>) -> bool {
        match self {
            Self::These(rows) => rows.contains(&row),
            Self::Ordered => order_key.is_some(),
        }
    }

    /// Return whether the row of this job is moved by itself.
    fn concerns(&self, row: Uuid, job: &NewJob) -> bool {
        let order_key = job.options.order.as_ref().map(|order| &*order.key);
        job.unique_key.is_some() || job.options.has_links() || self.has(row, order_key)
    }
}

/// Return the order keys that a page locks: those of the jobs that it may accept itself.
fn keys_of_page<'a>(jobs: impl Iterator<Item = (Uuid, &'a NewJob)>, apart: &Apart) -> BTreeSet<&'a [u8]> {
    let (mut keys, mut one_by_one) = (BTreeSet::new(), BTreeSet::new());
    for (row, job) in jobs {
        let Some(key) = order_key_of_job(job) else { continue };
        if apart.concerns(row, job) {
            one_by_one.insert(key);
        } else if !one_by_one.contains(key) {
            keys.insert(key);
        }
    }
    keys
}

fn reason_of(refusal: &EnqueueRefusal, answers: &BTreeMap<JobId, RowAnswer>) -> String {
    match refusal {
        EnqueueRefusal::KeysTaken(taken) => taken.first().map_or_else(
            || "another job has the unique key".to_owned(),
            |(_, holder)| format!("job {} has the unique key and is {}", holder.id, holder.state),
        ),
        EnqueueRefusal::Links(problems) => {
            problems.iter().map(|(_, problem)| reason_of_link(*problem, answers)).collect::<Vec<_>>().join("; ")
        }
    }
}

fn reason_of_link(problem: LinkProblem, answers: &BTreeMap<JobId, RowAnswer>) -> String {
    let row = answers.iter().find(|(_, answer)| problem == LinkProblem::UnknownParent(answer.job));
    match row {
        Some((row, _)) => format!("{problem}; it was the answer to the row {row}, whose unique key it had"),
        None => problem.to_string(),
    }
}

async fn move_page(
    conn: &mut Session<'_>,
    shared: &StoreInner,
    rows: Rows,
    prepare: &PrepareRow,
    apart: &Apart,
) -> Result<OutboxPage, sqlx::Error> {
    let heads = lock_heads(conn, rows).await?;
    let mut page = OutboxPage { next: heads.next(), ..OutboxPage::default() };
    page.rejected.extend_from_slice(&heads.large);
    if let Rows::Only(id) = rows
        && heads.found.is_empty()
    {
        page.left_keys.extend(held_unique_keys(conn, rows, (&heads.found, id)).await?);
    }
    if heads.found.is_empty() {
        return Ok(page);
    }

    let mut jobs: BTreeMap<Uuid, NewJob> = BTreeMap::new();
    let mut stays = OrderKeysInFront::default();
    for ids in heads.small.chunks(MAX_ROWS) {
        let sql = format!(
            "SELECT {}, TIMESTAMPDIFF(MICROSECOND, COALESCE(copied_at, created_at), UTC_TIMESTAMP(6)) AS waited_us \
             FROM tickr_outbox FORCE INDEX (PRIMARY) WHERE id IN",
            OutboxRow::COLUMNS
        );
        for row in in_list(&sql, ids, "").fetch_all(&mut *conn).await? {
            if let Some(reason) = WrongTimes::of(&row)?.reason() {
                page.rejected.push((row.try_get("id")?, reason));
                continue;
            }
            let waited = Duration::from_micros(u64::try_from(row.try_get::<i64, _>("waited_us")?).unwrap_or(0));
            let row = outbox_row(&row, Timestamp::UNIX_EPOCH)?;
            let id = row.id;
            let named = row.options.as_deref().map(|options| NamedKeys::read(&row.kind, options)).unwrap_or_default();
            match prepare(row, waited) {
                PreparedRow::Job(job) => drop(jobs.insert(id, *job)),
                PreparedRow::ForAnother => {
                    page.left += 1;
                    page.left_keys.extend(named.unique_key.map(|(kind, key)| (id, kind, key)));
                    stays.add(named.order_key, id);
                }
                PreparedRow::Unfit(reason) => page.rejected.push((id, reason)),
            }
        }
    }
    let known = known_jobs(conn, &jobs).await?;
    if let Some(last) = heads.last
        && jobs.values().any(|job| job.options.order.is_some())
    {
        stays.read(conn, &heads.found, last).await?;
    }
    // Rows of later pages may have unique keys as well.
    if let Some(last) = heads.last
        && (page.next.is_some() || jobs.values().any(|job| job.unique_key.is_some()))
    {
        page.left_keys.extend(held_unique_keys(conn, rows, (&heads.found, last)).await?);
    }
    let is_behind =
        |row: Uuid, job: &NewJob| job.options.order.as_ref().is_some_and(|by| stays.is_behind(&by.key, row));
    let unknown = jobs.iter().filter(|(_, job)| !known.contains(&job.id.uuid()));
    let moved = unknown.map(|(row, job)| (*row, job)).filter(|(row, job)| !is_behind(*row, job));
    let keys = keys_of_page(moved, apart);
    let busy = lock_free_keys_or_make(conn, &keys.into_iter().collect::<Vec<_>>()).await?;
    // Order keys of rows that are moved one by one, after the others.
    let mut one_by_one: HashSet<String> = HashSet::new();
    let mut done: Vec<Uuid> = Vec::with_capacity(jobs.len());
    let mut plain: Vec<NewJob> = Vec::with_capacity(jobs.len());
    for (row, job) in jobs {
        let order_key = job.options.order.as_ref().map(|order| &*order.key);
        if known.contains(&job.id.uuid()) {
            page.repeated += 1;
            done.push(row);
        } else if is_behind(row, &job) {
            page.leave(row, job);
        } else if apart.concerns(row, &job)
            || order_key.is_some_and(|key| busy.contains(key.as_bytes()))
            || order_key.is_some_and(|key| one_by_one.contains(key))
        {
            one_by_one.extend(order_key.map(str::to_owned));
            page.keyed.push((row, job));
        } else {
            done.push(row);
            plain.push(job);
        }
    }
    if !plain.is_empty() {
        plain.sort_unstable_by_key(|job| job.id);
        let now = read_clock(conn, &shared.clock).await?;
        page.accepted = plain.iter().map(|job| accepted_at(job, now)).collect();
        let pairs: Vec<(&NewJob, &Accepted)> = plain.iter().zip(&page.accepted).collect();
        let held = write_jobs(conn, &pairs, &NewLinks::default()).await?;
        mark_held(&mut page.accepted, &held);
    }
    for ids in done.chunks(MAX_ROWS) {
        let tail = format!(" ORDER BY id LIMIT {}", ids.len());
        in_list("DELETE FROM tickr_outbox WHERE id IN", ids, &tail).execute(&mut *conn).await?;
    }
    reject(conn, &page.rejected).await?;
    leave_children(conn, &mut page).await?;
    Ok(page)
}

/// Leave the rows that wait for the row of a parent, unless that one is moved just before them. A try of one of them
/// costs a transaction, and there may be any number.
async fn leave_children(conn: &mut Session<'_>, page: &mut OutboxPage) -> Result<(), sqlx::Error> {
    let parents_of = |row, job: &NewJob| parents_in_front(row, &job.options.after);
    let keyed: HashSet<Uuid> = page.keyed.iter().map(|(row, _)| *row).collect();
    let all: BTreeSet<Uuid> = page.keyed.iter().flat_map(|(row, job)| parents_of(*row, job)).collect();
    let elsewhere: Vec<Uuid> = all.into_iter().filter(|parent| !keyed.contains(parent)).collect();
    let mut waiting: HashSet<Uuid> = HashSet::new();
    for ids in elsewhere.chunks(MAX_ROWS) {
        let sql = "SELECT id FROM tickr_outbox FORCE INDEX (PRIMARY) WHERE id IN";
        for row in in_list(sql, ids, "").fetch_all(&mut *conn).await? {
            waiting.insert(row.try_get("id")?);
        }
    }
    if waiting.is_empty() {
        return Ok(());
    }
    for (row, job) in std::mem::take(&mut page.keyed) {
        if parents_of(row, &job).iter().any(|parent| waiting.contains(parent)) {
            // Its own children wait as well.
            waiting.insert(row);
            page.leave(row, job);
        } else {
            page.keyed.push((row, job));
        }
    }
    Ok(())
}

/// Rows in front of others that are not moved with them, by their order keys. Rows that were committed together become jobs
/// in the order of their ids, so a row stays while one with the same order key stays in front of it.
#[derive(Default)]
struct OrderKeysInFront {
    first: HashMap<String, Uuid>,
    /// There are too many of these rows to read them all, so every row with an order key behind this one stays.
    unread_behind: Option<Uuid>,
}

impl OrderKeysInFront {
    fn add(&mut self, order_key: Option<String>, row: Uuid) {
        if let Some(key) = order_key {
            let first = self.first.entry(key).or_insert(row);
            *first = row.min(*first);
        }
    }

    /// Add the rows up to `last` that the page does not have: other sessions hold them, or have committed them since.
    async fn read(&mut self, conn: &mut Session<'_>, page: &[Uuid], last: Uuid) -> Result<(), sqlx::Error> {
        let taken: HashSet<Uuid> = page.iter().copied().collect();
        let sql = "SELECT COUNT(*) FROM tickr_outbox FORCE INDEX (PRIMARY) WHERE id <= ?";
        let there: i64 = sqlx::query_scalar(sql).bind(last).fetch_one(&mut *conn).await?;
        if usize::try_from(there).unwrap_or(usize::MAX) <= taken.iter().filter(|id| **id <= last).count() {
            return Ok(());
        }
        // The text is read here, because MySQL refuses the whole statement over one row that is nested too deeply. Rows with
        // longer options are rejected.
        let sql = "SELECT id, IF(LENGTH(options) <= ?, options, NULL) AS options FROM tickr_outbox \
                   FORCE INDEX (PRIMARY) WHERE id > ? AND id <= ? ORDER BY id LIMIT ?";
        let mut after = Uuid::nil();
        for _ in 0..PAGES_IN_FRONT {
            let page = statement(sql.to_owned()).bind(MAX_OPTIONS_BYTES as u64).bind(after).bind(last).bind(ROWS);
            let page = page.fetch_all(&mut *conn).await?;
            for row in &page {
                let id: Uuid = row.try_get("id")?;
                if !taken.contains(&id) {
                    let options: Option<String> = row.try_get("options")?;
                    self.add(options.and_then(|options| NamedKeys::read("", &options).order_key), id);
                }
                after = id;
            }
            if (page.len() as u32) < ROWS {
                return Ok(());
            }
        }
        self.unread_behind = Some(after);
        Ok(())
    }

    fn is_behind(&self, order_key: &str, row: Uuid) -> bool {
        self.first.get(order_key).is_some_and(|first| *first < row) || self.unread_behind.is_some_and(|last| last < row)
    }
}

/// Return the unique keys of the rows between those of a page, up to the `last` one, that are not among the `found` ones:
/// other sessions hold them, or have committed them since. A key that is made from the payload is not among them,
/// because the page does not read that.
async fn held_unique_keys(
    conn: &mut Session<'_>,
    rows: Rows,
    (found, last): (&[Uuid], Uuid),
) -> Result<Vec<(Uuid, Name, String)>, sqlx::Error> {
    let taken: HashSet<Uuid> = found.iter().copied().filter(|id| *id <= last).collect();
    let among = format!("FROM tickr_outbox FORCE INDEX (PRIMARY) WHERE id {} ? AND id <= ?", rows.compares());
    let there = statement(format!("SELECT COUNT(*) AS there {among}")).bind(rows.id()).bind(last);
    let there: i64 = there.fetch_one(&mut *conn).await?.try_get("there")?;
    if usize::try_from(there).unwrap_or(usize::MAX) <= taken.len() {
        return Ok(Vec::new());
    }
    // A runner holds a page of rows at most, so of more rows the first ones are enough.
    let sql =
        format!("SELECT id, kind, IF(LENGTH(options) <= ?, options, NULL) AS options {among} ORDER BY id LIMIT ?");
    let found = statement(sql).bind(MAX_OPTIONS_BYTES as u64).bind(rows.id()).bind(last).bind(2 * ROWS);
    let mut held = Vec::new();
    for row in found.fetch_all(&mut *conn).await? {
        let id: Uuid = row.try_get("id")?;
        if !taken.contains(&id)
            && let Some(options) = row.try_get::<Option<&str>, _>("options")?
        {
            let unique_key = NamedKeys::read(row.try_get("kind")?, options).unique_key;
            held.extend(unique_key.map(|(kind, key)| (id, kind, key)));
        }
    }
    Ok(held)
}

/// Return the ids of those jobs that exist already: the application has repeated its transaction.
async fn known_jobs(conn: &mut Session<'_>, jobs: &BTreeMap<Uuid, NewJob>) -> Result<HashSet<Uuid>, sqlx::Error> {
    let mut ids: Vec<Uuid> = jobs.values().map(|job| job.id.uuid()).collect();
    ids.sort_unstable();
    let mut known = HashSet::new();
    for ids in ids.chunks(MAX_ROWS) {
        for row in
            in_list("SELECT id FROM jobs FORCE INDEX (PRIMARY) WHERE id IN", ids, "").fetch_all(&mut *conn).await?
        {
            known.insert(row.try_get("id")?);
        }
    }
    Ok(known)
}
