//! Enqueueing of jobs with unique keys: at most one unfinished job per pair of kind and unique key.
//!
//! A row of `unique_keys` exists as long as its job is unfinished, and longer if the job completed before its
//! `unique_for_ms` was over. The row of a job that is unique until its start passes to the next job that asks, once an
//! attempt has started. The row is the lock for every change that concerns its unique key. A request that wants the
//! unique key inserts the row; the primary key decides between two concurrent requests. A request that wants to replace
//! the holder or to put it off, or whose job has one of these options, locks the row first, so that concurrent requests
//! take turns.
//!
//! A client can guess a unique key. So the answer shows the holder in full, and a request may replace the holder, only
//! if both belong to the same producer (`job::Producer`). The producer of the holder is in the holder's options. They
//! are read by the statement that reads the holder's state.
//!
//! Rows are locked in this order: order keys, unique keys, both in key order, rows of replaced jobs in id order, rows of
//! parents in id order, batches, the idempotency key, then new rows, and the tallies last. A settle locks in the opposite order: first the `owed` row,
//! then its unique key. If a settle and a replacement of the same job deadlock, MySQL rolls one of them back. That one
//! runs again and sees the result of the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use uuid::Uuid;

use crate::audit::{AuditEntry, record_all};
use crate::idempotency::{Answer, IdempotentOutcome, IdempotentRequest, ResponseBuilder, store_answer, stored_before};
use crate::jobs::actions::cancel_waiting;
use crate::jobs::insert::together;
use crate::jobs::key_holders::{Holds, KeyHolder, options_of, read_holder};
use crate::jobs::read::read_job;
use crate::rows::jobs::{Accepted, accepted_at, due_at, mark_held, receipts, write_jobs};
use crate::rows::limits::{is_parked, note_due_time, unpark, waits_for_turn};
use crate::rows::links::{AWAITED, IN_BATCH, LinkProblem, blocked_until, check_links};
use crate::rows::order::{close_places, lock_keys_of, lock_or_make, order_key_of};
use crate::rows::owed::{Owed, RESTS, lock_held};
use crate::rows::tallies::count;
use crate::rows::unique_keys::{TakenKey, WantedKey, hand_over, insert, lock_or_take, read_taken};
use crate::sql::batches::statement;
use crate::sql::clock::read_clock;
use crate::sql::connection::PriorRun;
use crate::sql::error::{Fault, again, corrupt, fault};
use crate::sql::pools::transact_in_turn;
use crate::sql::session::Session;
use crate::sql::turns::subjects_of;
use crate::{Store, StoreError, StoreInner};
use tickr_job::{
    Actor, Attempt, Due, Job, JobId, NewJob, OnConflict, Producer, State, StateInput, Timestamp, UniqueUntil, limits,
    next,
};

/// Outcome for one requested job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnqueuedJob {
    /// The job was accepted.
    New(Accepted),
    /// The job was not written: this job holds the unique key and is the answer in its place.
    Existing(KeyHolder),
}

impl EnqueuedJob {
    fn accepted_mut(&mut self) -> Option<&mut Accepted> {
        match self {
            Self::New(accepted) => Some(accepted),
            Self::Existing(_) => None,
        }
    }

    /// Return the receipt, if the job is new.
    #[must_use]
    pub fn accepted(self) -> Option<Accepted> {
        match self {
            Self::New(accepted) => Some(accepted),
            Self::Existing(_) => None,
        }
    }
}

/// Outcome for jobs that were requested together.
#[derive(Clone, Debug, Default)]
pub struct EnqueueReceipts {
    /// One entry per requested job, in the order of the request.
    pub jobs: Vec<EnqueuedJob>,
    /// Jobs that were cancelled because new jobs took their unique keys.
    pub replaced: Vec<JobId>,
    /// Jobs whose due times were moved, with the new ones.
    pub postponed: Vec<Accepted>,
    /// The holder in full. Set only if the request has a single job and a job of the same producer holds its unique
    /// key.
    pub holder: Option<Box<(Job, Vec<Attempt>)>>,
}

impl EnqueueReceipts {
    /// Return receipts in which all jobs are new.
    #[must_use]
    pub fn new(accepted: Vec<Accepted>) -> Self {
        Self { jobs: accepted.into_iter().map(EnqueuedJob::New).collect(), ..Self::default() }
    }

    /// Iterate over the receipts of the new jobs.
    pub fn accepted(&self) -> impl Iterator<Item = &Accepted> {
        self.jobs.iter().filter_map(|placed| match placed {
            EnqueuedJob::New(accepted) => Some(accepted),
            EnqueuedJob::Existing(_) => None,
        })
    }
}

/// Outcome for a request with unique keys.
#[derive(Clone, Debug)]
pub enum EnqueueOutcome {
    /// Each job is accepted, or the holder of its unique key is the answer in its place, as the request allows.
    Accepted(EnqueueReceipts),
    /// Nothing was written.
    Refused(EnqueueRefusal),
}

/// The reason why nothing of a request was written.
#[derive(Clone, Debug)]
pub enum EnqueueRefusal {
    /// Unfinished jobs have some of the unique keys.
    KeysTaken(TakenKeys),
    /// Some jobs cannot have the parents or the batch that they name, with the positions of the jobs.
    Links(Vec<(usize, LinkProblem)>),
}

/// The jobs of a request whose unique keys are taken: the position of each, and the unfinished job that holds its key.
pub type TakenKeys = Vec<(usize, KeyHolder)>;

/// What the runs of one write remember.
#[derive(Debug, Default)]
pub(crate) struct PriorDecision {
    /// The decision of an earlier run. A later run returns it when it finds that the earlier one has committed.
    receipts: Mutex<Option<EnqueueReceipts>>,
    /// True when a key has to change hands. The next run locks each key before it tries to take it: many transactions
    /// that go on from the shared lock of a refused insert to the exclusive lock would deadlock.
    lock_first: AtomicBool,
}

impl Store {
    /// Insert jobs, some of which have unique keys, parents or a batch: all of them or none. A unique key shows and replaces only jobs that
    /// the producer may reach.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn insert_unique(&self, producer: Producer, jobs: Vec<NewJob>) -> Result<EnqueueOutcome, StoreError> {
        let linked = jobs.iter().any(|job| job.options.has_links());
        let request = Arc::new(EnqueueRequest::new(together(with_producer(jobs, &producer)), producer));
        let (shared, memory) = (self.shared.clone(), Arc::default());
        let attempted = "insert jobs with unique keys";
        // Without an idempotency key no response is stored.
        let build: ResponseBuilder<EnqueueReceipts> = Arc::new(|_| Answer { status: 200, body: String::new() });
        let subjects = subjects_of(&request.jobs);
        let outcome = transact_in_turn(&self.shared.pools, subjects, attempted, move |conn, earlier| {
            let (request, shared, memory) = (Arc::clone(&request), shared.clone(), Arc::clone(&memory));
            let build = Arc::clone(&build);
            Box::pin(async move { insert_keyed(conn, &request, (None, &build), &shared, &memory, earlier).await })
        });
        match outcome.await? {
            IdempotentOutcome::First { done: Some(receipts), .. } => {
                // New jobs of a batch, a replaced one, or one whose parent has failed.
                if linked || !receipts.replaced.is_empty() {
                    self.shared.links_ended(AWAITED | IN_BATCH);
                }
                Ok(EnqueueOutcome::Accepted(receipts))
            }
            IdempotentOutcome::Refused(refusal) => Ok(EnqueueOutcome::Refused(refusal)),
            _ => Err(StoreError::corrupt(attempted, "a stored response without an idempotency key")),
        }
    }
}

/// The requested jobs and their producer.
pub(crate) struct EnqueueRequest {
    pub(crate) jobs: Vec<NewJob>,
    pub(crate) producer: Producer,
    /// Parents that have completed. Retention may have removed them.
    pub(crate) completed_parents: BTreeSet<Uuid>,
}

impl EnqueueRequest {
    pub(crate) const fn new(jobs: Vec<NewJob>, producer: Producer) -> Self {
        Self { jobs, producer, completed_parents: BTreeSet::new() }
    }
}

/// Record the producer in each job that has a unique key and no creator yet. A replayed job keeps its first creator.
pub(crate) fn with_producer(mut jobs: Vec<NewJob>, producer: &Producer) -> Vec<NewJob> {
    for job in jobs.iter_mut().filter(|job| job.unique_key.is_some()) {
        job.options.creator.get_or_insert_with(|| producer.creator().clone());
    }
    jobs
}

/// Write the jobs, all or none, within the caller's transaction. With `once`, write them at most once.
pub(crate) async fn insert_keyed(
    conn: &mut Session<'_>,
    EnqueueRequest { jobs, producer, completed_parents }: &EnqueueRequest,
    (idempotent, build): (Option<&IdempotentRequest>, &ResponseBuilder<EnqueueReceipts>),
    shared: &StoreInner,
    memory: &PriorDecision,
    earlier: PriorRun,
) -> Result<IdempotentOutcome<EnqueueReceipts, EnqueueRefusal>, sqlx::Error> {
    if earlier == PriorRun::MayHaveCommitted
        && let Some(done) = done_before(conn, jobs, (idempotent, build), memory).await?
    {
        return Ok(done);
    }
    lock_or_make(conn, &jobs.iter().filter_map(order_key_of).collect()).await?;
    let mut decided = decide(conn, jobs, producer, &memory.lock_first).await?;
    let mut taken = std::mem::take(&mut decided.taken);
    let changed = || decided.replace.iter().chain(&decided.postpone);
    let mut held = match changed().next() {
        None => BTreeMap::new(),
        Some(_) => lock_held(conn, changed().map(|(_, holder)| holder.id)).await?,
    };
    for (_, holder) in changed() {
        // The holder cannot end without its unique key, which this transaction holds. But a runner may have started it
        // since the read without a lock. The next run decides anew: a job that is unique until its start has passed its
        // key on by then.
        let owed = held.get(&holder.id).ok_or_else(|| again("the holder of a unique key is gone"))?;
        if !still_waits(owed.state) {
            return Err(again("the holder of a unique key has started"));
        }
    }
    if !taken.is_empty() {
        // This releases the unique keys taken so far. The commit that follows has nothing to write.
        sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
        // Perhaps an earlier call of this same request took the unique keys.
        if let Some(outcome) = stored_before(conn, idempotent, None).await? {
            return Ok(outcome);
        }
        taken.sort_unstable_by_key(|(place, _)| *place);
        return Ok(IdempotentOutcome::Refused(EnqueueRefusal::KeysTaken(taken)));
    }

    let now = read_clock(conn, &shared.clock).await?;
    let is_new = |place: &usize| !decided.existing.contains_key(place) && !decided.postpone.contains_key(place);
    let mut new: Vec<NewJob> = (0..jobs.len()).filter(is_new).map(|place| jobs[place].clone()).collect();
    if new.len() < jobs.len() {
        new = together(new);
        wait_for_the_answer(&mut new, jobs, &decided);
    }
    let mut receipts =
        EnqueueReceipts { replaced: decided.replace.values().map(|h| h.id).collect(), ..EnqueueReceipts::default() };
    for (place, job) in jobs.iter().enumerate() {
        if let Some(holder) = decided.postpone.get(&place) {
            let (execute_at, moved) = postpone(conn, job, holder, &held, now).await?;
            receipts.jobs.push(EnqueuedJob::Existing(KeyHolder { execute_at, ..*holder }));
            receipts.postponed.extend(moved);
            continue;
        }
        receipts.jobs.push(match decided.existing.get(&place) {
            None => EnqueuedJob::New(accepted_at(job, now)),
            Some(existing) => EnqueuedJob::Existing(existing.holder(jobs, &receipts.jobs, now)),
        });
    }
    if let [EnqueuedJob::Existing(holder)] = receipts.jobs[..]
        && !holder.foreign
    {
        receipts.holder = Some(Box::new(read_in_full(conn, holder.id).await?));
    }
    let completed = &decided.completed_holders() | completed_parents;
    let (links, problems) = check_links(conn, &new.iter().collect::<Vec<_>>(), &BTreeSet::new(), &completed).await?;
    if !problems.is_empty() {
        sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
        // A parent of an earlier call of this same request may have been removed since.
        if let Some(outcome) = stored_before(conn, idempotent, None).await? {
            return Ok(outcome);
        }
        let places: Vec<usize> = (0..jobs.len()).filter(is_new).collect();
        let problems = problems.into_iter().map(|(at, problem)| (places[at], problem)).collect();
        return Ok(IdempotentOutcome::Refused(EnqueueRefusal::Links(problems)));
    }
    let answer = build(&receipts);
    if let Some(instead) = store_answer(conn, idempotent, &answer, now).await? {
        return Ok(instead);
    }
    // A job of the request may wait for a holder that the request replaces. The check has marked that one since its row
    // was read, and its end has to be told.
    for parent in new.iter().flat_map(|job| &job.options.after) {
        if let Some(owed) = held.get_mut(parent) {
            owed.links |= AWAITED;
        }
    }
    replace(conn, jobs, producer.actor(), &decided.replace, &held, now).await?;
    let accepted: Vec<Accepted> = receipts.accepted().cloned().collect();
    let mut pairs: Vec<(&NewJob, &Accepted)> = new.iter().zip(&accepted).collect();
    pairs.sort_unstable_by_key(|(job, _)| job.id);
    let waiting = write_jobs(conn, &pairs, &links).await?;
    mark_held(receipts.jobs.iter_mut().filter_map(EnqueuedJob::accepted_mut), &waiting);
    let mut ended = BTreeMap::new();
    for owed in decided.replace.values().filter_map(|holder| held.get(&holder.id)) {
        *ended.entry((owed.queue.clone(), owed.kind.clone(), State::Cancelled)).or_default() += 1;
    }
    count(conn, shared.lanes.any(), &ended).await?;
    *memory.receipts.lock().unwrap_or_else(PoisonError::into_inner) = Some(receipts.clone());
    Ok(IdempotentOutcome::First { done: Some(receipts), answer })
}

/// Let jobs whose parents are not written wait for the jobs that are the answers in their place.
fn wait_for_the_answer(new: &mut [NewJob], jobs: &[NewJob], decided: &Decided) {
    let existing = decided.existing.iter().map(|(place, existing)| match existing {
        Existing::Holder(holder) => (jobs[*place].id, holder.id),
        Existing::Earlier(first) => (jobs[*place].id, jobs[*first].id),
    });
    let postponed = decided.postpone.iter().map(|(place, holder)| (jobs[*place].id, holder.id));
    // An earlier job of the request may itself be answered with another one.
    let answers: BTreeMap<JobId, JobId> = existing.chain(postponed).collect();
    let answer = |id: JobId| answers.get(&id).map(|first| *answers.get(first).unwrap_or(first));
    for job in new {
        job.options.replace_parents(answer);
    }
}

/// Return the decision of an earlier run if that run has committed.
async fn done_before(
    conn: &mut Session<'_>,
    jobs: &[NewJob],
    (idempotent, build): (Option<&IdempotentRequest>, &ResponseBuilder<EnqueueReceipts>),
    memory: &PriorDecision,
) -> Result<Option<IdempotentOutcome<EnqueueReceipts, EnqueueRefusal>>, sqlx::Error> {
    let decided = memory.receipts.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if idempotent.is_some() {
        return stored_before(conn, idempotent, decided).await;
    }
    let Some(decided) = decided else { return Ok(None) };
    let committed = if decided.accepted().next().is_some() {
        let mut by_id: Vec<&NewJob> = jobs.iter().collect();
        by_id.sort_unstable_by_key(|job| job.id);
        // The ids were made before the first run. If they exist, our own commit without an answer wrote them, all of
        // them.
        !receipts(conn, &by_id).await?.is_empty()
    } else {
        all_put_off(conn, &decided.postponed).await?
    };
    Ok(committed.then(|| IdempotentOutcome::First { answer: build(&decided), done: Some(decided) }))
}

/// Return true if each of these jobs has the due time that an earlier run gave it, or a later one. Such a run leaves no
/// other trace, and its jobs may have started or ended since: a decision made anew would refuse the request, or make a
/// second job of it. A job that is held or parked tells nothing by its due time in the year 9999. It has not started, so
/// a new decision puts it off again. So a job that waited for its parents is not looked at.
async fn all_put_off(conn: &mut Session<'_>, postponed: &[Accepted]) -> Result<bool, sqlx::Error> {
    for moved in postponed.iter().filter(|moved| !moved.held) {
        let found: Option<bool> = sqlx::query_scalar(
            "SELECT COALESCE((SELECT execute_at FROM owed WHERE id = ? AND execute_at < '9999-01-01'), \
             (SELECT MAX(execute_at) FROM attempts WHERE job_id = ?)) >= ?",
        )
        .bind(moved.id.uuid())
        .bind(moved.id.uuid())
        .bind(moved.execute_at)
        .fetch_one(&mut *conn)
        .await?;
        if found != Some(true) {
            return Ok(false);
        }
    }
    Ok(postponed.iter().any(|moved| !moved.held))
}

/// The job that is the answer for a requested job that is not written.
#[derive(Clone, Copy)]
enum Existing {
    /// An unfinished job that holds the unique key.
    Holder(KeyHolder),
    /// The job at this earlier position of the same request, which takes the unique key or puts its holder off.
    Earlier(usize),
}

impl Existing {
    /// Return the job that holds the unique key. `earlier` are the receipts of the jobs in front.
    fn holder(&self, jobs: &[NewJob], earlier: &[EnqueuedJob], now: Timestamp) -> KeyHolder {
        match self {
            Self::Holder(holder) => *holder,
            Self::Earlier(first) => match earlier.get(*first) {
                // The first job put this holder off, so it is not written itself.
                Some(EnqueuedJob::Existing(holder)) => *holder,
                _ => {
                    let Accepted { id, execute_at, .. } = accepted_at(&jobs[*first], now);
                    KeyHolder { id, state: State::Waiting, execute_at, foreign: false }
                }
            },
        }
    }
}

/// The decision for each job of one request, by position. The rows of the unique keys are locked.
#[derive(Default)]
struct Decided {
    existing: BTreeMap<usize, Existing>,
    /// Holders to cancel. Their state was read without a lock, so it is checked again later.
    replace: BTreeMap<usize, KeyHolder>,
    /// Holders to put off. Their state is checked again as well.
    postpone: BTreeMap<usize, KeyHolder>,
    taken: Vec<(usize, KeyHolder)>,
}

impl Decided {
    /// Return the holders that completed and keep their unique keys for a time, also when retention has removed them.
    fn completed_holders(&self) -> BTreeSet<Uuid> {
        let holders = self.existing.values().filter_map(|existing| match existing {
            Existing::Holder(holder) => Some(holder),
            Existing::Earlier(_) => None,
        });
        holders.filter(|holder| holder.state == State::Completed).map(|holder| holder.id.uuid()).collect()
    }
}

/// Return true if the job waits, so that it can be replaced or put off.
fn still_waits(state: State) -> bool {
    next(state, StateInput::Cancel) == Ok(State::Cancelled)
}

async fn decide(
    conn: &mut Session<'_>,
    jobs: &[NewJob],
    producer: &Producer,
    lock_first: &AtomicBool,
) -> Result<Decided, sqlx::Error> {
    // In key order, so that two batches with the same unique keys wait for each other instead of deadlocking.
    let mut by_key: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
    for (place, job) in jobs.iter().enumerate() {
        if let Some(key) = &job.unique_key {
            by_key.entry((job.kind.as_str(), key)).or_default().push(place);
        }
    }
    let mut decided = Decided::default();
    for ((_, key), places) in by_key {
        let (first, others) = (places[0], &places[1..]);
        let job = &jobs[first];
        let wanted =
            WantedKey { kind: &job.kind, key: key.as_bytes(), id: job.id.uuid(), for_ms: job.options.unique_for_ms };
        // Keys of these jobs change hands while their rows exist, so they are locked before they are looked at.
        let passes_on = job.options.unique_for_ms.is_some() || job.options.unique_until == UniqueUntil::Start;
        let locked = job.on_conflict.changes_holder() || passes_on || lock_first.load(Ordering::Relaxed);
        let taken = if locked { lock_or_take(conn, wanted).await? } else { take_key(conn, wanted).await? };
        let holder = match taken {
            None => None,
            Some(taken) => match read_holder(conn, taken, producer).await? {
                Holds::Key(holder) => Some(holder),
                Holds::NotAnyMore if !locked => {
                    lock_first.store(true, Ordering::Relaxed);
                    return Err(again("a unique key changes hands"));
                }
                Holds::NotAnyMore => {
                    hand_over(conn, wanted).await?;
                    None
                }
            },
        };
        let mut existing = Existing::Earlier(first);
        if let Some(holder) = holder {
            if jobs.iter().any(|job| job.id == holder.id) {
                return Err(again("an earlier run of the same write has committed after all"));
            }
            match job.on_conflict {
                OnConflict::Return => {
                    existing = Existing::Holder(holder);
                    decided.existing.insert(first, existing);
                }
                // A producer may not end or put off another producer's job only because it knows the unique key.
                OnConflict::Replace if !holder.foreign && still_waits(holder.state) => {
                    decided.replace.insert(first, holder);
                }
                OnConflict::Postpone if !holder.foreign && still_waits(holder.state) => {
                    decided.postpone.insert(first, holder);
                }
                OnConflict::Reject | OnConflict::Replace | OnConflict::Postpone => decided.taken.push((first, holder)),
            }
        }
        for place in others {
            match jobs[*place].on_conflict {
                OnConflict::Return => drop(decided.existing.insert(*place, existing)),
                // A job can neither replace nor put off another job of the same request.
                OnConflict::Reject | OnConflict::Replace | OnConflict::Postpone => {
                    let holder = holder.unwrap_or(KeyHolder {
                        id: job.id,
                        state: State::Waiting,
                        execute_at: Timestamp::default(),
                        foreign: false,
                    });
                    decided.taken.push((*place, holder));
                }
            }
        }
    }
    Ok(decided)
}

/// Take a unique key, or return the row of the job that holds it. A plain insert is used, because it reports a
/// duplicate. An upsert could not tell which request won: the driver counts matched rows.
async fn take_key(conn: &mut Session<'_>, wanted: WantedKey<'_>) -> Result<Option<TakenKey>, sqlx::Error> {
    for _ in 0..3 {
        match insert(conn, wanted).await {
            Ok(()) => return Ok(None),
            Err(e) if fault(&e) == Fault::Duplicate => {}
            Err(e) => return Err(e),
        }
        if let Some(taken) = read_taken(conn, wanted).await? {
            return Ok(Some(taken));
        }
        // The holder ended between the two statements, so try again.
    }
    Err(again("a unique key changed hands three times"))
}

/// Read a job in full. This takes several reads. The lock on the unique key keeps the job from ending but not from
/// changing, so read again until two reads in a row agree.
async fn read_in_full(conn: &mut Session<'_>, id: JobId) -> Result<(Job, Vec<Attempt>), sqlx::Error> {
    let mut seen: Option<(String, u32)> = None;
    for _ in 0..6 {
        let read = read_job(conn, id).await?;
        let now = sqlx::query_as("SELECT state, attempt FROM owed WHERE id = ?")
            .bind(id.uuid())
            .fetch_optional(&mut *conn)
            .await?;
        match read {
            Some(read) if now.is_some() && now == seen => return Ok(read),
            Some(read) if now.is_none() && read.0.state.is_end() => return Ok(read),
            _ => seen = now,
        }
    }
    Err(again("a job kept changing while it was read"))
}

/// Put this locked holder off to the due time that `job` asks for: never to an earlier one, and not beyond the longest
/// wait of either. The holder also expires no earlier than the new job would, because it does the work of both. Returns
/// its due time, and what to tell if it has another one now. A job that is held for its order keeps its own.
async fn postpone(
    conn: &mut Session<'_>,
    job: &NewJob,
    holder: &KeyHolder,
    held: &BTreeMap<JobId, Owed>,
    now: Timestamp,
) -> Result<(Timestamp, Option<Accepted>), sqlx::Error> {
    let unchanged = (holder.execute_at, None);
    let Some(owed) = held.get(&holder.id) else { return Ok(unchanged) };
    let row = sqlx::query("SELECT created_at, options FROM jobs FORCE INDEX (PRIMARY) WHERE id = ?")
        .bind(holder.id.uuid())
        .fetch_one(&mut *conn)
        .await?;
    extend_expiry(conn, holder.id, row.try_get("options")?, job.expires_at(now)).await?;
    let Some(before) = due_apart(conn, holder.id, owed).await? else { return Ok(unchanged) };
    let (created_at, own): (Timestamp, _) = (row.try_get("created_at")?, options_of(&row)?.max_wait_ms);
    let longest = own.into_iter().chain(job.options.max_wait_ms).min();
    let latest = longest.map(|ms| due_at(Due::After(Duration::from_millis(ms).min(limits::MAX_AHEAD)), created_at));
    let asked = due_at(job.due, now);
    let execute_at = latest.map_or(asked, |latest| asked.min(latest)).max(before);
    if execute_at == before {
        return Ok(unchanged);
    }
    let is_blocked = owed.execute_at == blocked_until();
    if is_blocked {
        // It is due at this time once its parents let it go, and until then it shows this time.
        let sets =
            ["UPDATE blocked_jobs SET due_at = ? WHERE job_id = ?", "UPDATE jobs SET execute_at = ? WHERE id = ?"];
        for sql in sets {
            sqlx::query(sql).bind(execute_at).bind(holder.id.uuid()).execute(&mut *conn).await?;
        }
    } else {
        put_off_in_line(conn, holder.id, owed, execute_at).await?;
    }
    let priority = owed.priority.try_into().map_err(corrupt)?;
    let (id, kind, queue) = (holder.id, owed.kind.clone(), owed.queue.clone());
    let moved = Accepted { id, kind, queue, priority, execute_at, created_at, held: is_blocked };
    Ok((execute_at, Some(moved)))
}

/// Give a locked job that does not wait for parents another due time.
async fn put_off_in_line(
    conn: &mut Session<'_>,
    id: JobId,
    owed: &Owed,
    execute_at: Timestamp,
) -> Result<(), sqlx::Error> {
    if is_parked(owed.execute_at) {
        // Its claim finds out at the new time whether the limit has room then.
        unpark(conn, id.uuid()).await?;
    }
    statement(format!("UPDATE owed SET links = links & ~{RESTS}, execute_at = ? WHERE id = ?"))
        .bind(execute_at)
        .bind(id.uuid())
        .execute(&mut *conn)
        .await?;
    note_due_time(conn, &[id.uuid()], execute_at).await
}

/// Return when a locked job is due, apart from the limit or the parents that it waits for. Return nothing for a job
/// that is held for its order: its order key is not locked, so a session that ends the job in front may have read its
/// due time.
async fn due_apart(conn: &mut Session<'_>, id: JobId, owed: &Owed) -> Result<Option<Timestamp>, sqlx::Error> {
    let sql = if is_parked(owed.execute_at) {
        "SELECT due_at FROM limit_waits FORCE INDEX (PRIMARY) WHERE job_id = ?"
    } else if owed.execute_at == blocked_until() {
        "SELECT due_at FROM blocked_jobs FORCE INDEX (PRIMARY) WHERE job_id = ?"
    } else {
        return Ok(Some(owed.execute_at).filter(|at| !waits_for_turn(*at)));
    };
    sqlx::query_scalar(sql).bind(id.uuid()).fetch_optional(conn).await
}

/// Let a locked job with these options expire no earlier than at `wanted`, or never.
async fn extend_expiry(
    conn: &mut Session<'_>,
    id: JobId,
    options: Option<String>,
    wanted: Option<Timestamp>,
) -> Result<(), sqlx::Error> {
    // Most jobs have no expiry. The options of one that has it were written with it, and name it.
    if !options.as_deref().is_some_and(|text| text.contains("\"expires_at\"")) {
        return Ok(());
    }
    // The greatest of NULL and another value is NULL.
    let sql = "UPDATE owed SET expires_at = GREATEST(expires_at, ?) WHERE id = ? AND expires_at IS NOT NULL";
    let update = sqlx::query(sql).bind(wanted.map(|wanted| wanted.naive_utc())).bind(id.uuid());
    if update.execute(&mut *conn).await?.rows_affected() == 0 {
        return Ok(());
    }
    let look = match wanted {
        Some(wanted) => {
            let sql = "UPDATE job_expiries SET look_at = GREATEST(look_at, ?) WHERE job_id = ?";
            sqlx::query(sql).bind(wanted.naive_utc())
        }
        None => sqlx::query("DELETE FROM job_expiries WHERE job_id = ?"),
    };
    look.bind(id.uuid()).execute(&mut *conn).await?;
    // The options keep the expiry for the time when the row in `owed` is gone. Another version may have written further
    // ones, which stay.
    let options =
        options.and_then(|text| serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&text).ok());
    let Some(mut options) = options else { return Ok(()) };
    let sql = "SELECT expires_at FROM owed WHERE id = ?";
    let expires_at: Option<Timestamp> = sqlx::query_scalar(sql).bind(id.uuid()).fetch_one(&mut *conn).await?;
    match expires_at {
        Some(at) => drop(options.insert("expires_at".to_owned(), serde_json::json!(at))),
        None => drop(options.remove("expires_at")),
    }
    let text = serde_json::Value::Object(options).to_string();
    sqlx::query("UPDATE jobs SET options = ? WHERE id = ?").bind(text).bind(id.uuid()).execute(conn).await?;
    Ok(())
}

/// Cancel these locked holders, give their unique keys to the jobs at these positions, and write audit records.
async fn replace(
    conn: &mut Session<'_>,
    jobs: &[NewJob],
    actor: &Actor,
    replace: &BTreeMap<usize, KeyHolder>,
    held: &BTreeMap<JobId, Owed>,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let mut acts = Vec::with_capacity(replace.len());
    for (place, holder) in replace {
        let (job, Some(owed)) = (&jobs[*place], held.get(&holder.id)) else { continue };
        let detail = serde_json::json!({"replaced_by": job.id.to_string()});
        acts.push(AuditEntry::new(actor, "job.replace", holder.id.to_string()).with(detail));
        cancel_waiting(conn, holder.id, owed, now, Some(&format!("replaced by job {}", job.id))).await?;
        // The order key of the holder is locked late. A deadlock with a settlement is possible, and the loser runs again.
        if lock_keys_of(conn, &[holder.id.uuid()]).await?.contains(holder.id) {
            close_places(conn, &[holder.id.uuid()], now).await?;
        }
        if let Some(key) = &job.unique_key {
            let (kind, key, id) = (&job.kind, key.as_bytes(), job.id.uuid());
            hand_over(conn, WantedKey { kind, key, id, for_ms: job.options.unique_for_ms }).await?;
        }
    }
    record_all(conn, &acts, now).await
}
