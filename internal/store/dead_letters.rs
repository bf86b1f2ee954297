//! Dead letters: inserted together with the failure of a job, replayed as new jobs, or discarded with a reason.
//!
//! The lock is the row of the job in `jobs`: a retry, a replay, a discard and a purge of one job run one after the
//! other. While a transaction holds this lock, a failed job stays failed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use serde_json::json;
use serde_json::value::RawValue;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::audit::AuditEntry;
use crate::idempotency::{Answer, IdempotentOutcome, IdempotentRequest, ResponseBuilder, finish, stored_before};
use crate::jobs::actions::{ActionOutcome, UpdatedJob};
use crate::jobs::key_holders::take_for_operator;
use crate::jobs::read::read_job;
use crate::jobs::subjects::{LockedKeys, subjects_of_change};
use crate::rows::alerts::failed_deliveries;
use crate::rows::dead_letters::{NewDeadLetter, StatusColumns, group, insert_dead_letters, write};
use crate::rows::jobs::{Accepted, accepted_at, mark_held, receipts, write_jobs};
use crate::rows::links::{BatchChanges, MAX_HANDED_OVER, NewLinks, hand_children_over, with_many_children};
use crate::rows::order::{close_places, lock_open_keys_of};
use crate::rows::unique_keys::WantedKey;
use crate::sql::batches::{MAX_ROWS, bind_padded, in_list, padded_len, placeholders, statement};
use crate::sql::clock::read_clock;
use crate::sql::connection::{PriorRun, on_pool, transact};
use crate::sql::error::corrupt;
use crate::sql::pools::transact_in_turn;
use crate::sql::session::Session;
use crate::sql::turns::{Subject, keys_of};
use crate::{Store, StoreError};
use tickr_job::{
    Actor, DeadLetterStatus, Due, Fingerprint, JobId, JobOptions, Name, NewJob, OnConflict, Priority, State, Timestamp,
};

/// Dead letters that are counted at most. A count that reaches this is a lower bound.
const MAX_COUNTED: i64 = 100_000;
/// The limit of counts that read the rows themselves, as [`MAX_COUNTED`] is for counts in an index.
const MAX_READ: i64 = 20_000;
/// Hours for which a group has the number of its failures per hour.
const HOURS: usize = 24;
/// A list of jobs in which no job is. A list in a statement needs at least one value.
const NO_JOB: [Uuid; 1] = [Uuid::nil()];
/// Ledger rows that are read in one page of the search for missing dead letters.
const PAGE: i64 = 2_000;

/// A failed job as it is stored, the source of a replay.
#[derive(Clone, Debug)]
pub struct Original {
    /// The job.
    pub id: JobId,
    /// Its kind.
    pub kind: Name,
    /// Its queue.
    pub queue: Name,
    /// Its priority.
    pub priority: Priority,
    /// Its limit of attempts.
    pub max_attempts: u32,
    /// Its unique key.
    pub unique_key: Option<String>,
    /// The host that it calls, if its kind knows one.
    pub host: Option<String>,
    /// Its options.
    pub options: JobOptions,
    /// Its payload.
    pub payload: Box<RawValue>,
}

impl Original {
    /// Return the options of the new job. It does not count as a second job of the tick that made the original, it does
    /// not wait for parents again, and it does not expire.
    #[must_use]
    pub fn options_of_replay(&self) -> JobOptions {
        let options = self.options.clone();
        JobOptions { replay_of: Some(self.id), schedule: None, after: Vec::new(), expires_at: None, ..options }
    }

    /// Make the new job without a look at its kind: everything is as it was accepted.
    #[must_use]
    pub fn unchanged(&self) -> NewJob {
        NewJob {
            id: JobId::new(),
            kind: self.kind.clone(),
            queue: self.queue.clone(),
            payload: self.payload.clone(),
            due: Due::Now,
            expires: None,
            priority: self.priority,
            max_attempts: self.max_attempts,
            unique_key: self.unique_key.clone(),
            on_conflict: OnConflict::default(),
            host: self.host.clone(),
            options: self.options_of_replay(),
            batch: None,
        }
    }
}

/// Makes the new job of a replay from the failed job. Returns an error text when the failed job cannot be accepted any
/// more.
pub type Remake = Arc<dyn Fn(&Original) -> Result<NewJob, String> + Send + Sync>;

/// The reason why a replay or a discard is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such job.
    Missing,
    /// The job has not failed; it is in this state.
    State(State),
    /// The dead letter was replayed already, as this job.
    Replayed(JobId),
    /// The dead letter was discarded.
    Discarded,
    /// Another job has its unique key.
    UniqueKeyTaken {
        /// The job that has the unique key.
        holder: JobId,
        /// The state of that job.
        state: State,
    },
    /// More jobs wait for it than a replay can take over.
    ManyChildren,
    /// A new job cannot be made from it, for this reason.
    Unfit(String),
    /// This version of tickr cannot read the job, for this reason.
    Unreadable(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing => f.write_str("there is no such job"),
            Self::State(state) => write!(f, "it is {state}"),
            Self::Replayed(id) => write!(f, "it was replayed as {id}"),
            Self::Discarded => f.write_str("it was discarded"),
            Self::UniqueKeyTaken { holder, .. } => write!(f, "job {holder} has its unique key"),
            Self::ManyChildren => write!(
                f,
                "more than {MAX_HANDED_OVER} jobs wait for it, too many for a replay; retry it, which serves any number"
            ),
            Self::Unfit(why) => f.write_str(why),
            Self::Unreadable(why) => {
                write!(
                    f,
                    "this version of tickr cannot read {why}; a runner of the version that wrote it can replay it"
                )
            }
        }
    }
}

/// The failure of a job, as the tables have it.
struct Failure {
    kind: Name,
    queue: Name,
    failed_at: Timestamp,
    error: String,
}

impl Failure {
    fn dead_letter(&self, id: Uuid) -> NewDeadLetter<'_> {
        let Self { kind, queue, failed_at, error } = self;
        // The dead letter exists already and has the time of its first failure.
        NewDeadLetter { id, kind, queue, failed_at: *failed_at, error, lived_before: false }
    }
}

/// Lock these jobs in the order of their ids. Returns the failure of each failed job that was neither replayed nor
/// discarded, and a refusal for each other job.
async fn lock_failed(
    conn: &mut Session<'_>,
    ids: &[Uuid],
) -> Result<BTreeMap<Uuid, Result<Failure, Refusal>>, sqlx::Error> {
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let lock = "SELECT id FROM jobs FORCE INDEX (PRIMARY) WHERE id IN";
    in_list(lock, ids, " ORDER BY id FOR UPDATE").fetch_all(&mut *conn).await?;
    let sql = "SELECT j.id, j.kind, j.queue, o.state, a.end_state, a.finished_at, a.error, d.standing, d.replayed_as \
               FROM jobs j FORCE INDEX (PRIMARY) LEFT JOIN owed o ON o.id = j.id LEFT JOIN attempts a ON a.job_id = j.id \
               AND a.number = (SELECT MAX(l.number) FROM attempts l WHERE l.job_id = j.id) \
               LEFT JOIN dead_letters d ON d.job_id = j.id WHERE j.id IN";
    let mut found = BTreeMap::new();
    for row in in_list(sql, ids, "").fetch_all(&mut *conn).await? {
        let (owed, end): (Option<&str>, Option<&str>) = (row.try_get("state")?, row.try_get("end_state")?);
        let state = owed.or(end).and_then(State::from_word).unwrap_or(State::Waiting);
        let status = row.try_get::<Option<&str>, _>("standing")?.and_then(DeadLetterStatus::from_word);
        let replayed_as: Option<Uuid> = row.try_get("replayed_as")?;
        let verdict = match (state, status, replayed_as) {
            (State::Failed, Some(DeadLetterStatus::Discarded), _) => Err(Refusal::Discarded),
            (State::Failed, Some(DeadLetterStatus::Replayed), Some(id)) => Err(Refusal::Replayed(JobId::from_uuid(id))),
            (State::Failed, ..) => Ok(Failure {
                kind: row.try_get::<String, _>("kind")?.parse().map_err(|_| corrupt("kind"))?,
                queue: row.try_get::<String, _>("queue")?.parse().map_err(|_| corrupt("queue"))?,
                failed_at: row.try_get("finished_at")?,
                error: row.try_get::<Option<String>, _>("error")?.unwrap_or_default(),
            }),
            (state, ..) => Err(Refusal::State(state)),
        };
        found.insert(row.try_get("id")?, verdict);
    }
    for id in ids {
        found.entry(*id).or_insert(Err(Refusal::Missing));
    }
    Ok(found)
}

/// Read these jobs. A job that cannot be read is returned with the reason.
async fn originals(conn: &mut Session<'_>, ids: &[Uuid]) -> Result<Vec<(Uuid, Result<Original, String>)>, sqlx::Error> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "SELECT id, kind, queue, priority, max_attempts, unique_key, host, options, payload FROM jobs \
               FORCE INDEX (PRIMARY) WHERE id IN";
    let original = |row: &MySqlRow| {
        let id: Uuid = row.try_get("id")?;
        let (key, options): (Option<Vec<u8>>, Option<String>) = (row.try_get("unique_key")?, row.try_get("options")?);
        let host: Option<Vec<u8>> = row.try_get("host")?;
        let (kind, queue): (String, String) = (row.try_get("kind")?, row.try_get("queue")?);
        let (priority, max_attempts, payload): (u8, u32, String) =
            (row.try_get("priority")?, row.try_get("max_attempts")?, row.try_get("payload")?);
        let read = || {
            Ok::<_, String>(Original {
                id: JobId::from_uuid(id),
                kind: kind.parse().map_err(|e| format!("its kind {kind:?}: {e}"))?,
                queue: queue.parse().map_err(|e| format!("its queue {queue:?}: {e}"))?,
                priority: priority.try_into().map_err(|_| format!("its priority {priority}"))?,
                max_attempts,
                unique_key: key.map(|key| String::from_utf8_lossy(&key).into_owned()),
                host: host.map(|host| String::from_utf8_lossy(&host).into_owned()),
                options: match options {
                    Some(text) => serde_json::from_str(&text).map_err(|e| format!("its options: {e}"))?,
                    None => JobOptions::default(),
                },
                payload: RawValue::from_string(payload).map_err(|e| format!("its payload: {e}"))?,
            })
        };
        Ok((id, read()))
    };
    in_list(sql, ids, " ORDER BY id").fetch_all(conn).await?.iter().map(original).collect()
}

/// Take the unique key of a new job. Returns a refusal when another job holds it.
async fn take_key(conn: &mut Session<'_>, job: &NewJob) -> Result<Option<Refusal>, sqlx::Error> {
    let Some(key) = &job.unique_key else { return Ok(None) };
    let (kind, key, id) = (&job.kind, key.as_bytes(), job.id.uuid());
    let holder = take_for_operator(conn, WantedKey { kind, key, id, for_ms: job.options.unique_for_ms }).await?;
    Ok(holder.map(|(holder, state)| Refusal::UniqueKeyTaken { holder, state }))
}

/// The outcome for each job of a batch.
pub(super) type Each<T> = Vec<(JobId, Result<T, Refusal>)>;

/// Insert a new job for each failed job, and store in both which one belongs to it. Runs in the caller's transaction.
/// `ids` must be sorted. `operation` is the bulk operation that asks for it, and `since` the time that the dead letters
/// get.
pub(super) async fn replay_all(
    conn: &mut Session<'_>,
    ids: &[Uuid],
    remake: &Remake,
    (actor, operation): (&Actor, Option<Uuid>),
    (now, since): (Timestamp, Timestamp),
) -> Result<Each<Accepted>, sqlx::Error> {
    lock_open_keys_of(conn, ids).await?;
    let failed = lock_failed(conn, ids).await?;
    let mut fit: Vec<Uuid> = failed.iter().filter(|(_, failure)| failure.is_ok()).map(|(id, _)| *id).collect();
    let many = with_many_children(conn, &fit).await?;
    fit.retain(|id| !many.contains(id));
    let mut refused: BTreeMap<Uuid, Refusal> = many.into_iter().map(|id| (id, Refusal::ManyChildren)).collect();
    let mut made: Vec<(Uuid, NewJob, Accepted)> = Vec::new();
    for (id, original) in originals(conn, &fit).await? {
        let original = match original {
            Ok(original) => original,
            Err(why) => {
                refused.insert(id, Refusal::Unreadable(why));
                continue;
            }
        };
        let job = match remake(&original) {
            Ok(job) => job,
            Err(why) => {
                refused.insert(id, Refusal::Unfit(why));
                continue;
            }
        };
        if let Some(refusal) = take_key(conn, &job).await? {
            refused.insert(id, refusal);
            continue;
        }
        let accepted = accepted_at(&job, now);
        made.push((id, job, accepted));
    }
    let mut pairs: Vec<(&NewJob, &Accepted)> = made.iter().map(|(_, job, accepted)| (job, accepted)).collect();
    pairs.sort_unstable_by_key(|(job, _)| job.id);
    if !pairs.is_empty() {
        // A replay takes the place of the failed job: in its batch, and for the jobs that wait for it.
        let replays = made.iter().map(|(failed, job, _)| (*failed, job.id.uuid())).collect();
        let awaited = hand_children_over(conn, &replays).await?;
        let mut changes = BatchChanges::default();
        for batch in made.iter().filter_map(|(_, job, _)| job.options.batch) {
            let change = changes.of(batch.uuid());
            change.total -= 1;
            change.failed -= 1;
        }
        changes.write(conn).await?;
        let held = write_jobs(conn, &pairs, &NewLinks::of_replays(awaited)).await?;
        mark_held(made.iter_mut().map(|(_, _, accepted)| accepted), &held);
    }
    let columns = |job: &NewJob| StatusColumns {
        status: DeadLetterStatus::Replayed,
        since,
        replayed_as: Some(job.id.uuid()),
        operation,
        actor: Some(actor.as_str()),
        reason: None,
    };
    let dead_letters: Vec<(NewDeadLetter<'_>, &NewJob)> =
        made.iter().filter_map(|(id, job, _)| Some((failed.get(id)?.as_ref().ok()?.dead_letter(*id), job))).collect();
    let rows: Vec<(&NewDeadLetter<'_>, StatusColumns<'_>)> =
        dead_letters.iter().map(|(dead_letter, job)| (dead_letter, columns(job))).collect();
    write(conn, &rows).await?;
    let mut each: BTreeMap<Uuid, Result<Accepted, Refusal>> =
        made.into_iter().map(|(id, _, accepted)| (id, Ok(accepted))).collect();
    each.extend(refused.into_iter().map(|(id, refusal)| (id, Err(refusal))));
    for (id, failure) in failed {
        if let Err(refusal) = failure {
            each.insert(id, Err(refusal));
        }
    }
    Ok(each.into_iter().map(|(id, done)| (JobId::from_uuid(id), done)).collect())
}

/// Discard dead letters. Runs in the caller's transaction. `ids` must be sorted.
pub(super) async fn discard_all(
    conn: &mut Session<'_>,
    ids: &[Uuid],
    reason: &str,
    actor: &Actor,
    now: Timestamp,
) -> Result<Each<()>, sqlx::Error> {
    let ordered = lock_open_keys_of(conn, ids).await?;
    let failed = lock_failed(conn, ids).await?;
    let columns = || StatusColumns {
        status: DeadLetterStatus::Discarded,
        since: now,
        replayed_as: None,
        operation: None,
        actor: Some(actor.as_str()),
        reason: Some(reason),
    };
    let dead_letters: Vec<NewDeadLetter<'_>> =
        failed.iter().filter_map(|(id, failure)| Some(failure.as_ref().ok()?.dead_letter(*id))).collect();
    let rows: Vec<(&NewDeadLetter<'_>, StatusColumns<'_>)> =
        dead_letters.iter().map(|dead_letter| (dead_letter, columns())).collect();
    write(conn, &rows).await?;
    let closed = failed.iter().filter(|(id, failure)| failure.is_ok() && ordered.contains(JobId::from_uuid(**id)));
    close_places(conn, &closed.map(|(id, _)| *id).collect::<Vec<_>>(), now).await?;
    Ok(failed.into_iter().map(|(id, failure)| (JobId::from_uuid(id), failure.map(drop))).collect())
}

impl Store {
    /// Insert `job` as the replay of the failed job `id`, which stays failed and is marked as replayed. This is done at
    /// most once for the idempotency key of `once`; `build` makes the response from the receipt.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn replay(
        &self,
        id: JobId,
        job: NewJob,
        by: &Actor,
        idempotent: Option<IdempotentRequest>,
        build: ResponseBuilder<Accepted>,
    ) -> Result<IdempotentOutcome<Result<Accepted, Refusal>>, StoreError> {
        let shared = self.shared.clone();
        let act = AuditEntry::new(by, "job.replay", id.to_string()).with(json!({"replayed_as": job.id}));
        // The new job has the keys of the failed one.
        let mut subjects = BTreeSet::from([Subject::Job(id), Subject::Change]);
        subjects.extend(keys_of(&job));
        transact_in_turn(&self.shared.pools, subjects, "replay a dead letter", move |conn, earlier| {
            let (shared, act, idempotent, build, job) =
                (shared.clone(), act.clone(), idempotent.clone(), Arc::clone(&build), job.clone());
            Box::pin(async move {
                let made = job.clone();
                let remake: Remake = Arc::new(move |_| Ok(made.clone()));
                let now = read_clock(conn, &shared.clock).await?;
                let each = replay_all(conn, &[id.uuid()], &remake, (&act.actor, None), (now, now)).await?;
                let done = each.into_iter().next().map_or(Err(Refusal::Missing), |(_, done)| done);
                let done = match done {
                    // This is the job of an earlier run of this call, whose commit got no answer.
                    Err(Refusal::Replayed(made)) if made == job.id && earlier == PriorRun::MayHaveCommitted => {
                        receipts(conn, &[&job]).await?.pop().ok_or(Refusal::Replayed(made))
                    }
                    done => done,
                };
                let answer = done.as_ref().ok().map(|accepted| build(accepted));
                finish_action(conn, done, answer, idempotent.as_ref(), &act, now).await
            })
        })
        .await
    }

    /// Discard the dead letter of the failed job `id`. This is done at most once for the idempotency key of `once`;
    /// `build` makes the response from the job.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn discard(
        &self,
        id: JobId,
        reason: String,
        by: &Actor,
        idempotent: Option<IdempotentRequest>,
        build: ResponseBuilder<UpdatedJob>,
    ) -> Result<IdempotentOutcome<Result<(), Refusal>>, StoreError> {
        let shared = self.shared.clone();
        let act = AuditEntry::new(by, "job.discard", id.to_string()).with(json!({"reason": reason}));
        let subjects = subjects_of_change(&self.shared.pools, id, LockedKeys::Order).await;
        transact_in_turn(&self.shared.pools, subjects, "discard a dead letter", move |conn, earlier| {
            let (shared, act, idempotent, build, reason) =
                (shared.clone(), act.clone(), idempotent.clone(), Arc::clone(&build), reason.clone());
            Box::pin(async move {
                let now = read_clock(conn, &shared.clock).await?;
                let each = discard_all(conn, &[id.uuid()], &reason, &act.actor, now).await?;
                let done = each.into_iter().next().map_or(Err(Refusal::Missing), |(_, done)| done);
                let done = match done {
                    Err(Refusal::Discarded) if earlier == PriorRun::MayHaveCommitted => Ok(()),
                    done => done,
                };
                let mut answer = None;
                if done.is_ok() {
                    let (job, attempts) = read_job(conn, id).await?.ok_or_else(|| corrupt("a locked job is gone"))?;
                    answer = Some(build(&UpdatedJob { outcome: ActionOutcome::Done(State::Failed), job, attempts }));
                }
                finish_action(conn, done, answer, idempotent.as_ref(), &act, now).await
            })
        })
        .await
    }

    /// Insert the dead letters that are missing, in one page of the ledger, from the newest job on. A failed job has
    /// none if it failed before there were dead letters, or under an old binary that writes none. Returns the number of
    /// inserted rows and the place where the next page begins.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn backfill_dead_letters(&self, before: Option<JobId>) -> Result<(usize, Option<JobId>), StoreError> {
        transact(&self.shared.pools.loops, "look for missing dead letters", move |conn, _| {
            Box::pin(async move { backfill_dead_letters(conn, before).await })
        })
        .await
    }
}

async fn finish_action<T>(
    conn: &mut Session<'_>,
    done: Result<T, Refusal>,
    answer: Option<Answer>,
    idempotent: Option<&IdempotentRequest>,
    act: &AuditEntry,
    now: Timestamp,
) -> Result<IdempotentOutcome<Result<T, Refusal>>, sqlx::Error> {
    let Some(answer) = answer else {
        // An earlier call may have carried out this same request.
        return Ok(stored_before(conn, idempotent, None).await?.unwrap_or(IdempotentOutcome::Refused(done)));
    };
    finish(conn, idempotent, act, (done, answer), now).await
}

async fn backfill_dead_letters(
    conn: &mut Session<'_>,
    before: Option<JobId>,
) -> Result<(usize, Option<JobId>), sqlx::Error> {
    let sql = "SELECT w.job_id, w.end_state, d.job_id IS NULL AS missing FROM (SELECT job_id, end_state FROM attempts \
               FORCE INDEX (PRIMARY) WHERE job_id < ? ORDER BY job_id DESC, number DESC LIMIT ?) w \
               LEFT JOIN dead_letters d ON d.job_id = w.job_id";
    let before = before.map_or(Uuid::max(), JobId::uuid);
    let found = sqlx::query(sql).bind(before).bind(PAGE).fetch_all(&mut *conn).await?;
    let (mut last, mut missing) = (before, BTreeSet::new());
    for row in &found {
        let id: Uuid = row.try_get("job_id")?;
        last = last.min(id);
        if row.try_get::<Option<&str>, _>("end_state")? == Some(State::Failed.as_str())
            && row.try_get::<bool, _>("missing")?
        {
            missing.insert(id);
        }
    }
    let missing: Vec<Uuid> = missing.into_iter().collect();
    let mut inserted = 0;
    for ids in missing.chunks(MAX_ROWS) {
        let failed = lock_failed(conn, ids).await?;
        let dead_letters: Vec<NewDeadLetter<'_>> =
            failed.iter().filter_map(|(id, failure)| Some(failure.as_ref().ok()?.dead_letter(*id))).collect();
        inserted += dead_letters.len();
        insert_dead_letters(conn, &dead_letters).await?;
    }
    let full = i64::try_from(found.len()) == Ok(PAGE);
    Ok((inserted, full.then_some(JobId::from_uuid(last))))
}

/// A group of open dead letters with the same cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterGroup {
    /// The fingerprint that names the group.
    pub fingerprint: Fingerprint,
    /// Kind of the jobs.
    pub kind: Name,
    /// Number of open dead letters that were counted.
    pub open: u64,
    /// True if there may be more than were counted.
    pub capped: bool,
    /// The time of the first failure.
    pub first_seen: Timestamp,
    /// The time of the last failure.
    pub last_seen: Timestamp,
    /// Number of counted failures in each of the last 24 hours, the oldest hour first. The last hour ends now.
    pub recent: [u64; HOURS],
    /// The newest job.
    pub sample: JobId,
    /// The beginning of its error.
    pub error: String,
}

/// The open dead letters of one kind. The jobs that deliver alerts are counted apart from the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterCount {
    /// The kind.
    pub kind: Name,
    /// True if they are the jobs that deliver alerts.
    pub of_alerts: bool,
    /// Their number, up to the limit of the count.
    pub open: u64,
    /// Age of the oldest failure in milliseconds, by the clock of the database.
    pub oldest_ms: i64,
}

/// All dead letters of one group, whatever their status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeDeadLetterGroup {
    /// Number of dead letters by status, up to the limit of the count.
    pub statuses: BTreeMap<&'static str, u64>,
    /// True if there may be more than were counted.
    pub capped: bool,
    /// The times of the first and the last failure among the counted dead letters.
    pub seen: (Timestamp, Timestamp),
    /// The newest job whose dead letter is open; without one, the newest job.
    pub sample: JobId,
    /// Its kind.
    pub kind: Name,
    /// The beginning of its error.
    pub error: String,
}

const OPEN_BY_AGE: &str = "FROM (SELECT fingerprint, kind, since, job_id FROM dead_letters FORCE INDEX (dead_letters_since) \
                           WHERE standing = 'open' ORDER BY since DESC LIMIT ?) d";

impl Store {
    /// List groups of open dead letters, the group with the latest failure first. `after` is the end of the previous
    /// page: the time of the last failure of a group, and its fingerprint. Counts only the newest 100,000 open dead
    /// letters.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn dead_letter_groups(
        &self,
        kind: Option<Name>,
        after: Option<(Timestamp, Fingerprint)>,
        limit: u32,
    ) -> Result<Vec<DeadLetterGroup>, StoreError> {
        on_pool(&self.shared.pools.reads, "group dead letters", move |conn, _| {
            let kind = kind.clone();
            Box::pin(async move { dead_letter_groups(conn, kind.as_ref(), after, limit).await })
        })
        .await
    }

    /// Read one group, or nothing when it has no dead letter.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn dead_letter_group(
        &self,
        fingerprint: Fingerprint,
    ) -> Result<Option<WholeDeadLetterGroup>, StoreError> {
        on_pool(&self.shared.pools.reads, "read a group of dead letters", move |conn, _| {
            Box::pin(async move { dead_letter_group(conn, fingerprint).await })
        })
        .await
    }

    /// List the jobs that changed to this status last, the latest first.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn latest_dead_letters(&self, status: DeadLetterStatus, limit: u32) -> Result<Vec<JobId>, StoreError> {
        on_pool(&self.shared.pools.reads, "read the latest dead letters", move |conn, _| {
            Box::pin(async move {
                let sql = "SELECT job_id FROM dead_letters FORCE INDEX (dead_letters_since) WHERE standing = ? \
                           ORDER BY since DESC, kind DESC, fingerprint DESC, job_id DESC LIMIT ?";
                let ids: Vec<Uuid> = sqlx::query_scalar(sql).bind(status.as_str()).bind(limit).fetch_all(conn).await?;
                Ok(ids.into_iter().map(JobId::from_uuid).collect())
            })
        })
        .await
    }

    /// Count the open dead letters by kind, with the age of the oldest. Deliveries of alerts are counted apart. Counts
    /// the oldest of all kinds together and the newest, at most `most` of either. Dead letters of a kind that begins to
    /// fail are among the newest, however many older ones there are.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn dead_letter_counts(&self, most: u32) -> Result<Vec<DeadLetterCount>, StoreError> {
        on_pool(&self.shared.pools.loops, "count dead letters", move |conn, _| {
            Box::pin(async move {
                let mut counts = BTreeMap::new();
                let alerts: Vec<Uuid> = failed_deliveries(conn).await?.into_iter().collect();
                count_open(conn, "", most, &alerts, &mut counts).await?;
                let oldest: u64 = counts.values().map(|count: &DeadLetterCount| count.open).sum();
                if oldest >= u64::from(most) {
                    let known: i64 = sqlx::query_scalar(
                        "SELECT COUNT(*) FROM (SELECT since FROM dead_letters FORCE INDEX (dead_letters_since) \
                         WHERE standing = 'open' LIMIT ?) d",
                    )
                    .bind(2 * i64::from(most))
                    .fetch_one(&mut *conn)
                    .await?;
                    // Those that are among the oldest as well are counted once.
                    let newest = u32::try_from(known).unwrap_or(u32::MAX).saturating_sub(most);
                    count_open(conn, " DESC", newest, &alerts, &mut counts).await?;
                }
                Ok(counts.into_values().collect())
            })
        })
        .await
    }
}

/// Count the open dead letters at one end of the order of their age, and add them to `counts`. Those of the jobs in
/// `alerts` are counted apart.
async fn count_open(
    conn: &mut Session<'_>,
    direction: &str,
    most: u32,
    alerts: &[Uuid],
    counts: &mut BTreeMap<(String, bool), DeadLetterCount>,
) -> Result<(), sqlx::Error> {
    let alerts = if alerts.is_empty() { &NO_JOB } else { alerts };
    let sql = format!(
        "SELECT d.kind, d.of_alerts, COUNT(*) AS counted, \
         TIMESTAMPDIFF(MICROSECOND, MIN(d.since), UTC_TIMESTAMP(6)) DIV 1000 AS oldest_ms FROM \
         (SELECT kind, since, job_id IN {} AS of_alerts FROM dead_letters FORCE INDEX (dead_letters_since) \
         WHERE standing = 'open' ORDER BY since{direction}, kind{direction}, fingerprint{direction}, job_id{direction} \
         LIMIT ?) d GROUP BY d.kind, d.of_alerts",
        placeholders(padded_len(alerts.len()))
    );
    for row in bind_padded(statement(sql), alerts).bind(most).fetch_all(conn).await? {
        let (name, of_alerts): (String, bool) = (row.try_get("kind")?, row.try_get::<i64, _>("of_alerts")? != 0);
        let kind = name.parse::<Name>().map_err(|_| corrupt("kind"))?;
        let none = DeadLetterCount { kind, of_alerts, open: 0, oldest_ms: 0 };
        let count = counts.entry((name, of_alerts)).or_insert(none);
        count.open += row.try_get::<i64, _>("counted")?.unsigned_abs();
        count.oldest_ms = count.oldest_ms.max(row.try_get("oldest_ms")?);
    }
    Ok(())
}

async fn dead_letter_groups(
    conn: &mut Session<'_>,
    kind: Option<&Name>,
    after: Option<(Timestamp, Fingerprint)>,
    limit: u32,
) -> Result<Vec<DeadLetterGroup>, sqlx::Error> {
    let total: i64 = statement(format!("SELECT COUNT(*) {OPEN_BY_AGE}"))
        .bind(MAX_COUNTED)
        .fetch_one(&mut *conn)
        .await?
        .try_get(0)?;
    let of_kind = if kind.is_some() { "WHERE d.kind = ?" } else { "" };
    let behind = if after.is_some() { "HAVING MAX(h.last) < ? OR (MAX(h.last) = ? AND h.fingerprint < ?)" } else { "" };
    // The inner query groups the dead letters by cause and hour, in a single scan. The outer query groups these hours
    // by cause.
    let hours =
        (0..HOURS).rev().map(|hour| format!("CAST(SUM(IF(h.hour = {hour}, h.jobs, 0)) AS SIGNED) AS hour_{hour}"));
    let sql = format!(
        "SELECT h.fingerprint, h.kind, CAST(SUM(h.jobs) AS SIGNED) AS counted, MIN(h.first) AS first_seen, \
         MAX(h.last) AS last_seen, MAX(h.newest) AS sample, {} FROM \
         (SELECT d.fingerprint, d.kind, TIMESTAMPDIFF(HOUR, d.since, UTC_TIMESTAMP(6)) AS hour, COUNT(*) AS jobs, \
         MIN(d.since) AS first, MAX(d.since) AS last, MAX(d.job_id) AS newest {OPEN_BY_AGE} {of_kind} \
         GROUP BY d.fingerprint, d.kind, hour) h \
         GROUP BY h.fingerprint, h.kind {behind} ORDER BY MAX(h.last) DESC, h.fingerprint DESC LIMIT ?",
        hours.collect::<Vec<_>>().join(", ")
    );
    let mut query = statement(sql).bind(MAX_COUNTED);
    if let Some(kind) = kind {
        query = query.bind(kind.as_str());
    }
    if let Some((moment, fingerprint)) = after {
        query = query.bind(moment).bind(moment).bind(fingerprint.bytes().to_vec());
    }
    let found = query.bind(limit).fetch_all(&mut *conn).await?;
    let samples: Vec<Uuid> = found.iter().map(|row| row.try_get("sample")).collect::<Result<_, sqlx::Error>>()?;
    let mut errors: BTreeMap<Uuid, String> = BTreeMap::new();
    if !samples.is_empty() {
        let sql = "SELECT job_id, error FROM dead_letters FORCE INDEX (PRIMARY) WHERE job_id IN";
        for row in in_list(sql, &samples, "").fetch_all(&mut *conn).await? {
            errors.insert(row.try_get("job_id")?, row.try_get("error")?);
        }
    }
    let firsts = first_failures(conn, &found).await?;
    let dead_letter_group = |row: &MySqlRow| {
        let sample: Uuid = row.try_get("sample")?;
        let (fingerprint, first): (Fingerprint, Timestamp) =
            (group(row.try_get("fingerprint")?)?, row.try_get("first_seen")?);
        let mut recent = [0; HOURS];
        for (hour, jobs) in recent.iter_mut().rev().enumerate() {
            *jobs = row.try_get::<i64, _>(format!("hour_{hour}").as_str())?.unsigned_abs();
        }
        Ok(DeadLetterGroup {
            fingerprint,
            kind: row.try_get::<String, _>("kind")?.parse().map_err(|_| corrupt("kind"))?,
            open: row.try_get::<i64, _>("counted")?.unsigned_abs(),
            capped: total >= MAX_COUNTED,
            first_seen: firsts.get(&fingerprint).map_or(first, |earlier| first.min(*earlier)),
            last_seen: row.try_get("last_seen")?,
            recent,
            sample: JobId::from_uuid(sample),
            error: errors.remove(&sample).unwrap_or_default(),
        })
    };
    found.iter().map(dead_letter_group).collect()
}

/// Read the time of the first failure of the retried jobs in these groups. The index `dead_letters_first` has it for
/// each fingerprint.
async fn first_failures(
    conn: &mut Session<'_>,
    groups: &[MySqlRow],
) -> Result<BTreeMap<Fingerprint, Timestamp>, sqlx::Error> {
    let fingerprints: Vec<[u8; 8]> = groups
        .iter()
        .map(|row| Ok(*group(row.try_get("fingerprint")?)?.bytes()))
        .collect::<Result<_, sqlx::Error>>()?;
    if fingerprints.is_empty() {
        return Ok(BTreeMap::new());
    }
    let sql = format!(
        "SELECT fingerprint, MIN(first_failed_at) AS first_at FROM dead_letters FORCE INDEX (dead_letters_first) \
         WHERE fingerprint IN {} AND standing = 'open' AND first_failed_at IS NOT NULL GROUP BY fingerprint",
        placeholders(padded_len(fingerprints.len()))
    );
    let bytes: Vec<&[u8]> = fingerprints.iter().map(<[u8; 8]>::as_slice).collect();
    let query = bind_padded(statement(sql), &bytes);
    let mut firsts = BTreeMap::new();
    for row in query.fetch_all(conn).await? {
        firsts.insert(group(row.try_get("fingerprint")?)?, row.try_get("first_at")?);
    }
    Ok(firsts)
}

async fn dead_letter_group(
    conn: &mut Session<'_>,
    fingerprint: Fingerprint,
) -> Result<Option<WholeDeadLetterGroup>, sqlx::Error> {
    let bytes = fingerprint.bytes().to_vec();
    let found = sqlx::query(
        "SELECT d.standing, COUNT(*) AS counted, MIN(d.first) AS first_seen, MAX(d.failed_at) AS last_seen, \
         MAX(d.job_id) AS newest FROM (SELECT job_id, standing, failed_at, COALESCE(first_failed_at, failed_at) AS first \
         FROM dead_letters FORCE INDEX (dead_letters_group) WHERE fingerprint = ? ORDER BY job_id DESC LIMIT ?) d \
         GROUP BY d.standing",
    )
    .bind(bytes.clone())
    .bind(MAX_READ)
    .fetch_all(&mut *conn)
    .await?;
    let (mut statuses, mut seen, mut total) = (BTreeMap::new(), None, 0);
    let mut newest_open = None;
    for row in &found {
        let status = DeadLetterStatus::from_word(row.try_get("standing")?).ok_or_else(|| corrupt("standing"))?;
        let jobs: i64 = row.try_get("counted")?;
        let (first, last): (Timestamp, Timestamp) = (row.try_get("first_seen")?, row.try_get("last_seen")?);
        total += jobs;
        if status == DeadLetterStatus::Open {
            newest_open = Some(row.try_get::<Uuid, _>("newest")?);
        }
        statuses.insert(status.as_str(), jobs.unsigned_abs());
        seen = Some(seen.map_or((first, last), |(a, b): (Timestamp, Timestamp)| (a.min(first), b.max(last))));
    }
    let Some(seen) = seen else { return Ok(None) };
    let mut sample = None;
    // The open one may be gone since the statement above.
    for last in newest_open.into_iter().chain([Uuid::max()]) {
        let newest = sqlx::query(
            "SELECT job_id, kind, error FROM dead_letters FORCE INDEX (dead_letters_group) WHERE fingerprint = ? \
             AND job_id <= ? ORDER BY job_id DESC LIMIT 1",
        );
        sample = newest.bind(bytes.clone()).bind(last).fetch_optional(&mut *conn).await?;
        if sample.is_some() {
            break;
        }
    }
    let Some(sample) = sample else { return Ok(None) };
    Ok(Some(WholeDeadLetterGroup {
        statuses,
        capped: total >= MAX_READ,
        seen,
        sample: JobId::from_uuid(sample.try_get("job_id")?),
        kind: sample.try_get::<String, _>("kind")?.parse().map_err(|_| corrupt("kind"))?,
        error: sample.try_get("error")?,
    }))
}
