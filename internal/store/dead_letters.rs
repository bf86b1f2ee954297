//! Dead letters: inserted together with the failure of a job, replayed as new jobs, or discarded with a reason.
//!
//! The lock is the row of the job in `jobs`: a retry, a replay, a discard and a purge of one job run one after the
//! other. While a transaction holds this lock, a failed job stays failed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::json;
use serde_json::value::RawValue;
use sqlx::mysql::MySqlRow;
use sqlx::{MySqlConnection, Row};
use uuid::Uuid;

use crate::job::{
    Actor, DeadLetter, DeadLetterStatus, Fingerprint, JobId, JobOptions, Name, NewJob, Priority, State, Timestamp,
};
use crate::store::audit::{Act, record};
use crate::store::idempotency::{Answer, IdempotentRequest, Outcome, ResponseBuilder, find, keep, lost};
use crate::store::jobs::actions::{ActionOutcome, Steered};
use crate::store::jobs::insert::{Accepted, accepted_at, read_clock, receipts, write_jobs};
use crate::store::jobs::read::read_job;
use crate::store::sql::batches::{MAX_ROWS, groups, pad, padded, places, rows, statement};
use crate::store::sql::connection::{Earlier, on_pool, transact};
use crate::store::sql::error::{Fault, corrupt, fault};
use crate::store::{Store, StoreError};

/// Longest part of an error that is stored with a dead letter, in characters. The column has this width.
const MAX_ERROR: usize = 500;
/// Dead letters that are counted at most. A count that reaches this is a lower bound.
const MAX_COUNTED: i64 = 100_000;
/// Failures of one job that are searched at most for the first one with the same cause.
const MAX_LIVES: u32 = 100;
/// The limit of counts that read the rows themselves, as [`MAX_COUNTED`] is for counts in an index.
const MAX_READ: i64 = 20_000;
/// Hours for which a group has the number of its failures per hour.
const HOURS: usize = 24;
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
    /// Its options.
    pub options: JobOptions,
    /// Its payload.
    pub payload: Box<RawValue>,
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
    /// This unfinished job has its unique key.
    KeyTaken(JobId),
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
            Self::KeyTaken(id) => write!(f, "job {id} has its unique key"),
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

/// A new dead letter: a job that fails in this transaction.
pub(super) struct NewDeadLetter<'a> {
    pub(super) id: Uuid,
    pub(super) kind: &'a Name,
    pub(super) queue: &'a Name,
    pub(super) failed_at: Timestamp,
    pub(super) error: &'a str,
    /// True if the job was retried before, so that it may have failed before.
    pub(super) lived_before: bool,
}

/// The columns of a row of `dead_letters` that record its status.
struct Fate<'a> {
    standing: DeadLetterStatus,
    since: Timestamp,
    replayed_as: Option<Uuid>,
    actor: Option<&'a str>,
    reason: Option<&'a str>,
}

/// Insert the dead letters of jobs that failed, in the transaction that ends the jobs. `graves` must be sorted by id.
pub(super) async fn bury(conn: &mut MySqlConnection, graves: &[NewDeadLetter<'_>]) -> Result<(), sqlx::Error> {
    let open = |grave: &NewDeadLetter<'_>| Fate {
        standing: DeadLetterStatus::Open,
        since: grave.failed_at,
        replayed_as: None,
        actor: None,
        reason: None,
    };
    let letters: Vec<(&NewDeadLetter<'_>, Fate<'_>)> = graves.iter().map(|grave| (grave, open(grave))).collect();
    write(conn, &letters).await?;
    note_first_failures(conn, graves).await?;
    for graves in graves.chunks(MAX_ROWS) {
        note_failures_of_originals(conn, graves).await?;
    }
    Ok(())
}

/// Store the time of the first failure with the same cause, for jobs that failed before: a retry that fails again is no
/// new incident. This runs only for retried jobs, which are rare, so it costs other failures nothing.
async fn note_first_failures(conn: &mut MySqlConnection, graves: &[NewDeadLetter<'_>]) -> Result<(), sqlx::Error> {
    for grave in graves.iter().filter(|grave| grave.lived_before) {
        let ends = sqlx::query(
            "SELECT finished_at, error FROM attempts FORCE INDEX (PRIMARY) WHERE job_id = ? AND end_state = 'failed' \
             ORDER BY number LIMIT ?",
        )
        .bind(grave.id)
        .bind(MAX_LIVES)
        .fetch_all(&mut *conn)
        .await?;
        let cause = Fingerprint::of(grave.kind, grave.error);
        let mut first = None;
        for row in &ends {
            let (ended, error): (Timestamp, Option<&str>) = (row.try_get(0)?, row.try_get(1)?);
            if Fingerprint::of(grave.kind, error.unwrap_or_default()) == cause {
                first = Some(ended);
                break;
            }
        }
        if let Some(first) = first.filter(|first| *first < grave.failed_at) {
            sqlx::query("UPDATE dead_letters SET first_failed_at = ? WHERE job_id = ?")
                .bind(first)
                .bind(grave.id)
                .execute(&mut *conn)
                .await?;
        }
    }
    Ok(())
}

/// Store the time of the first failure with the same cause, for jobs that are replays: a replay that fails again is no
/// new incident either. Costs one more read for each batch in which jobs failed.
async fn note_failures_of_originals(
    conn: &mut MySqlConnection,
    graves: &[NewDeadLetter<'_>],
) -> Result<(), sqlx::Error> {
    let ids: Vec<Uuid> = graves.iter().map(|grave| grave.id).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let sql = "SELECT id, options FROM jobs FORCE INDEX (PRIMARY) WHERE id IN";
    let mut original_of: BTreeMap<Uuid, Uuid> = BTreeMap::new();
    for row in in_list(sql, &ids, " AND options LIKE '%\"replay_of\"%'").fetch_all(&mut *conn).await? {
        // The failure is recorded even if the options of the job are unreadable.
        if let Some(original) = JobOptions::as_far_as_readable(row.try_get(1)?).replay_of {
            original_of.insert(row.try_get(0)?, original.uuid());
        }
    }
    let originals: Vec<Uuid> = original_of.values().copied().collect::<BTreeSet<_>>().into_iter().collect();
    if originals.is_empty() {
        return Ok(());
    }
    let sql = "SELECT job_id, fingerprint, COALESCE(first_failed_at, failed_at) FROM dead_letters FORCE INDEX (PRIMARY) \
               WHERE job_id IN";
    let mut firsts: BTreeMap<Uuid, (Fingerprint, Timestamp)> = BTreeMap::new();
    for row in in_list(sql, &originals, "").fetch_all(&mut *conn).await? {
        firsts.insert(row.try_get(0)?, (group(row.try_get(1)?)?, row.try_get(2)?));
    }
    for grave in graves {
        let first = original_of.get(&grave.id).and_then(|original| firsts.get(original));
        let Some((cause, first)) = first else { continue };
        if *cause == Fingerprint::of(grave.kind, grave.error) && *first < grave.failed_at {
            let sql =
                "UPDATE dead_letters SET first_failed_at = LEAST(COALESCE(first_failed_at, ?), ?) WHERE job_id = ?";
            sqlx::query(sql).bind(first).bind(first).bind(grave.id).execute(&mut *conn).await?;
        }
    }
    Ok(())
}

async fn write(conn: &mut MySqlConnection, letters: &[(&NewDeadLetter<'_>, Fate<'_>)]) -> Result<(), sqlx::Error> {
    for group in groups(letters) {
        // A row may exist already: of a job that failed before, or of one that was retried by an old binary that knows
        // no dead letters.
        let sql = format!(
            "INSERT INTO dead_letters (job_id, kind, queue, fingerprint, failed_at, error, standing, since, replayed_as, \
             actor, reason) VALUES {} ON DUPLICATE KEY UPDATE first_failed_at = IF(fingerprint = VALUES(fingerprint), \
             first_failed_at, NULL), fingerprint = VALUES(fingerprint), \
             failed_at = VALUES(failed_at), error = VALUES(error), standing = VALUES(standing), since = VALUES(since), \
             replayed_as = VALUES(replayed_as), actor = VALUES(actor), reason = VALUES(reason)",
            rows(&places(11), group.len())
        );
        let mut query = statement(sql);
        for (grave, fate) in group {
            let error: String = grave.error.chars().take(MAX_ERROR).collect();
            query = query
                .bind(grave.id)
                .bind(grave.kind.as_str())
                .bind(grave.queue.as_str())
                .bind(Fingerprint::of(grave.kind, grave.error).bytes().to_vec())
                .bind(grave.failed_at)
                .bind(error)
                .bind(fate.standing.as_str())
                .bind(fate.since)
                .bind(fate.replayed_as)
                .bind(fate.actor)
                .bind(fate.reason);
        }
        query.execute(&mut *conn).await?;
    }
    Ok(())
}

/// Delete the dead letter of a job that is retried. The caller holds the lock of the job.
pub(super) async fn unbury(conn: &mut MySqlConnection, id: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM dead_letters WHERE job_id = ?").bind(id).execute(conn).await.map(drop)
}

/// Return true if the job was replayed. The caller holds the lock of the job.
pub(super) async fn was_replayed(conn: &mut MySqlConnection, id: Uuid) -> Result<bool, sqlx::Error> {
    let standing: Option<String> =
        sqlx::query_scalar("SELECT standing FROM dead_letters WHERE job_id = ?").bind(id).fetch_optional(conn).await?;
    Ok(standing.as_deref() == Some(DeadLetterStatus::Replayed.as_str()))
}

/// Read the dead letter of a row, if there is one. Its columns start at `at`: fingerprint, failed_at, standing, since,
/// replayed_as, actor, reason.
pub(super) fn letter(row: &MySqlRow, at: usize) -> Result<Option<DeadLetter>, sqlx::Error> {
    let Some(fingerprint) = row.try_get::<Option<&[u8]>, _>(at)? else { return Ok(None) };
    Ok(Some(DeadLetter {
        fingerprint: group(fingerprint)?,
        failed_at: row.try_get(at + 1)?,
        standing: DeadLetterStatus::from_word(row.try_get(at + 2)?).ok_or_else(|| corrupt("standing"))?,
        since: row.try_get(at + 3)?,
        replayed_as: row.try_get::<Option<Uuid>, _>(at + 4)?.map(JobId::from_uuid),
        by: row.try_get(at + 5)?,
        reason: row.try_get(at + 6)?,
    }))
}

fn group(bytes: &[u8]) -> Result<Fingerprint, sqlx::Error> {
    bytes.try_into().map(Fingerprint::from_bytes).map_err(|_| corrupt("fingerprint"))
}

pub(super) fn in_list(sql: &str, ids: &[Uuid], tail: &str) -> crate::store::jobs::search::Sql {
    let mut query = statement(format!("{sql} {}{tail}", places(padded(ids.len()))));
    for id in pad(ids) {
        query = query.bind(id);
    }
    query
}

/// The failure of a job, as the tables have it.
struct Failure {
    kind: Name,
    queue: Name,
    failed_at: Timestamp,
    error: String,
}

impl Failure {
    fn grave(&self, id: Uuid) -> NewDeadLetter<'_> {
        let Self { kind, queue, failed_at, error } = self;
        // The dead letter exists already and has the time of its first failure.
        NewDeadLetter { id, kind, queue, failed_at: *failed_at, error, lived_before: false }
    }
}

/// Lock these jobs in the order of their ids. Returns the failure of each failed job that was neither replayed nor
/// discarded, and a refusal for each other job.
async fn lock_failed(
    conn: &mut MySqlConnection,
    ids: &[Uuid],
) -> Result<BTreeMap<Uuid, Result<Failure, Refusal>>, sqlx::Error> {
    let lock = "SELECT id FROM jobs FORCE INDEX (PRIMARY) WHERE id IN";
    in_list(lock, ids, " ORDER BY id FOR UPDATE").fetch_all(&mut *conn).await?;
    let sql = "SELECT j.id, j.kind, j.queue, o.state, a.end_state, a.finished_at, a.error, d.standing, d.replayed_as \
               FROM jobs j FORCE INDEX (PRIMARY) LEFT JOIN owed o ON o.id = j.id LEFT JOIN attempts a ON a.job_id = j.id \
               AND a.number = (SELECT MAX(l.number) FROM attempts l WHERE l.job_id = j.id) \
               LEFT JOIN dead_letters d ON d.job_id = j.id WHERE j.id IN";
    let mut found = BTreeMap::new();
    for row in in_list(sql, ids, "").fetch_all(&mut *conn).await? {
        let (owed, end): (Option<&str>, Option<&str>) = (row.try_get(3)?, row.try_get(4)?);
        let state = owed.or(end).and_then(State::from_word).unwrap_or(State::Waiting);
        let standing = row.try_get::<Option<&str>, _>(7)?.and_then(DeadLetterStatus::from_word);
        let replayed_as: Option<Uuid> = row.try_get(8)?;
        let verdict = match (state, standing, replayed_as) {
            (State::Failed, Some(DeadLetterStatus::Discarded), _) => Err(Refusal::Discarded),
            (State::Failed, Some(DeadLetterStatus::Replayed), Some(id)) => Err(Refusal::Replayed(JobId::from_uuid(id))),
            (State::Failed, ..) => Ok(Failure {
                kind: row.try_get::<String, _>(1)?.parse().map_err(|_| corrupt("kind"))?,
                queue: row.try_get::<String, _>(2)?.parse().map_err(|_| corrupt("queue"))?,
                failed_at: row.try_get(5)?,
                error: row.try_get::<Option<String>, _>(6)?.unwrap_or_default(),
            }),
            (state, ..) => Err(Refusal::State(state)),
        };
        found.insert(row.try_get(0)?, verdict);
    }
    for id in ids {
        found.entry(*id).or_insert(Err(Refusal::Missing));
    }
    Ok(found)
}

/// Read these jobs. A job that cannot be read is returned with the reason.
async fn originals(
    conn: &mut MySqlConnection,
    ids: &[Uuid],
) -> Result<Vec<(Uuid, Result<Original, String>)>, sqlx::Error> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "SELECT id, kind, queue, priority, max_attempts, unique_key, options, payload FROM jobs \
               FORCE INDEX (PRIMARY) WHERE id IN";
    let original = |row: &MySqlRow| {
        let id: Uuid = row.try_get(0)?;
        let (key, options): (Option<Vec<u8>>, Option<String>) = (row.try_get(5)?, row.try_get(6)?);
        let (kind, queue): (String, String) = (row.try_get(1)?, row.try_get(2)?);
        let (priority, max_attempts, payload): (u8, u32, String) = (row.try_get(3)?, row.try_get(4)?, row.try_get(7)?);
        let read = || {
            Ok::<_, String>(Original {
                id: JobId::from_uuid(id),
                kind: kind.parse().map_err(|e| format!("its kind {kind:?}: {e}"))?,
                queue: queue.parse().map_err(|e| format!("its queue {queue:?}: {e}"))?,
                priority: priority.try_into().map_err(|_| format!("its priority {priority}"))?,
                max_attempts,
                unique_key: key.map(|key| String::from_utf8_lossy(&key).into_owned()),
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

/// Take the unique key of a new job. Returns a refusal when another unfinished job has it.
async fn take_key(conn: &mut MySqlConnection, job: &NewJob) -> Result<Option<Refusal>, sqlx::Error> {
    let Some(key) = &job.unique_key else { return Ok(None) };
    for _ in 0..2 {
        let holder: Option<Uuid> =
            sqlx::query_scalar("SELECT job_id FROM unique_keys WHERE kind = ? AND unique_key = ? FOR UPDATE")
                .bind(job.kind.as_str())
                .bind(key.as_bytes())
                .fetch_optional(&mut *conn)
                .await?;
        if let Some(holder) = holder {
            return Ok(Some(Refusal::KeyTaken(JobId::from_uuid(holder))));
        }
        let inserted = sqlx::query("INSERT INTO unique_keys (kind, unique_key, job_id) VALUES (?, ?, ?)")
            .bind(job.kind.as_str())
            .bind(key.as_bytes())
            .bind(job.id.uuid())
            .execute(&mut *conn)
            .await;
        match inserted {
            Ok(_) => return Ok(None),
            // Another transaction took the key between the two statements: look again.
            Err(e) if fault(&e) == Fault::Duplicate => {}
            Err(e) => return Err(e),
        }
    }
    Err(crate::store::sql::error::again("other transactions keep taking and releasing the unique key"))
}

/// The outcome for each job of a batch.
pub(super) type Each<T> = Vec<(JobId, Result<T, Refusal>)>;

/// Insert a new job for each failed job, and store in both which one belongs to it. Runs in the caller's transaction.
/// `ids` must be sorted.
pub(super) async fn replay_all(
    conn: &mut MySqlConnection,
    ids: &[Uuid],
    remake: &Remake,
    actor: &Actor,
    now: Timestamp,
) -> Result<Each<Accepted>, sqlx::Error> {
    let failed = lock_failed(conn, ids).await?;
    let fit: Vec<Uuid> = failed.iter().filter(|(_, failure)| failure.is_ok()).map(|(id, _)| *id).collect();
    let mut refused: BTreeMap<Uuid, Refusal> = BTreeMap::new();
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
        write_jobs(conn, &pairs).await?;
    }
    let fate = |job: &NewJob| Fate {
        standing: DeadLetterStatus::Replayed,
        since: now,
        replayed_as: Some(job.id.uuid()),
        actor: Some(actor.as_str()),
        reason: None,
    };
    let graves: Vec<(NewDeadLetter<'_>, &NewJob)> =
        made.iter().filter_map(|(id, job, _)| Some((failed.get(id)?.as_ref().ok()?.grave(*id), job))).collect();
    let letters: Vec<(&NewDeadLetter<'_>, Fate<'_>)> = graves.iter().map(|(grave, job)| (grave, fate(job))).collect();
    write(conn, &letters).await?;
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
    conn: &mut MySqlConnection,
    ids: &[Uuid],
    reason: &str,
    actor: &Actor,
    now: Timestamp,
) -> Result<Each<()>, sqlx::Error> {
    let failed = lock_failed(conn, ids).await?;
    let fate = || Fate {
        standing: DeadLetterStatus::Discarded,
        since: now,
        replayed_as: None,
        actor: Some(actor.as_str()),
        reason: Some(reason),
    };
    let graves: Vec<NewDeadLetter<'_>> =
        failed.iter().filter_map(|(id, failure)| Some(failure.as_ref().ok()?.grave(*id))).collect();
    let letters: Vec<(&NewDeadLetter<'_>, Fate<'_>)> = graves.iter().map(|grave| (grave, fate())).collect();
    write(conn, &letters).await?;
    Ok(failed.into_iter().map(|(id, failure)| (JobId::from_uuid(id), failure.map(drop))).collect())
}

impl Store {
    /// Insert `job` as the replay of the failed job `id`, which stays failed and is marked as replayed. This is done at
    /// most once for the idempotency key of `once`; `word` makes the response from the receipt.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    pub async fn replay(
        &self,
        id: JobId,
        job: NewJob,
        by: &Actor,
        once: Option<IdempotentRequest>,
        word: ResponseBuilder<Accepted>,
    ) -> Result<Outcome<Result<Accepted, Refusal>>, StoreError> {
        let shared = self.shared.clone();
        let act = Act::new(by, "job.replay", id.to_string()).with(json!({"replayed_as": job.id}));
        transact(&self.shared.pools.steering, "replay a dead letter", move |conn, earlier| {
            let (shared, act, once, word, job) =
                (shared.clone(), act.clone(), once.clone(), Arc::clone(&word), job.clone());
            Box::pin(async move {
                let made = job.clone();
                let remake: Remake = Arc::new(move |_| Ok(made.clone()));
                let now = read_clock(conn, &shared.clock).await?;
                let each = replay_all(conn, &[id.uuid()], &remake, &act.actor, now).await?;
                let done = each.into_iter().next().map_or(Err(Refusal::Missing), |(_, done)| done);
                let done = match done {
                    // This is the job of an earlier run of this call, whose commit got no answer.
                    Err(Refusal::Replayed(made)) if made == job.id && earlier == Earlier::MayHaveCommitted => {
                        receipts(conn, &[&job]).await?.pop().ok_or(Refusal::Replayed(made))
                    }
                    done => done,
                };
                let answer = done.as_ref().ok().map(|accepted| word(accepted));
                conclude(conn, done, answer, once.as_ref(), &act, now).await
            })
        })
        .await
    }

    /// Discard the dead letter of the failed job `id`. This is done at most once for the idempotency key of `once`;
    /// `word` makes the response from the job.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    pub async fn discard(
        &self,
        id: JobId,
        reason: String,
        by: &Actor,
        once: Option<IdempotentRequest>,
        word: ResponseBuilder<Steered>,
    ) -> Result<Outcome<Result<(), Refusal>>, StoreError> {
        let shared = self.shared.clone();
        let act = Act::new(by, "job.discard", id.to_string()).with(json!({"reason": reason}));
        transact(&self.shared.pools.steering, "discard a dead letter", move |conn, earlier| {
            let (shared, act, once, word, reason) =
                (shared.clone(), act.clone(), once.clone(), Arc::clone(&word), reason.clone());
            Box::pin(async move {
                let now = read_clock(conn, &shared.clock).await?;
                let each = discard_all(conn, &[id.uuid()], &reason, &act.actor, now).await?;
                let done = each.into_iter().next().map_or(Err(Refusal::Missing), |(_, done)| done);
                let done = match done {
                    Err(Refusal::Discarded) if earlier == Earlier::MayHaveCommitted => Ok(()),
                    done => done,
                };
                let mut answer = None;
                if done.is_ok() {
                    let (job, attempts) = read_job(conn, id).await?.ok_or_else(|| corrupt("a locked job is gone"))?;
                    answer = Some(word(&Steered { moved: ActionOutcome::Done(State::Failed), job, attempts }));
                }
                conclude(conn, done, answer, once.as_ref(), &act, now).await
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
    pub async fn bury_missing(&self, before: Option<JobId>) -> Result<(usize, Option<JobId>), StoreError> {
        transact(&self.shared.pools.loops, "look for missing dead letters", move |conn, _| {
            Box::pin(async move { bury_missing(conn, before).await })
        })
        .await
    }
}

async fn conclude<T>(
    conn: &mut MySqlConnection,
    done: Result<T, Refusal>,
    answer: Option<Answer>,
    once: Option<&IdempotentRequest>,
    act: &Act,
    now: Timestamp,
) -> Result<Outcome<Result<T, Refusal>>, sqlx::Error> {
    let Some(answer) = answer else {
        // An earlier call may have carried out this same request.
        let kept = match once {
            Some(once) => find(conn, once).await?.map(|kept| kept.meet(once, None)),
            None => None,
        };
        return Ok(kept.unwrap_or(Outcome::Refused(done)));
    };
    if let Some(once) = once
        && let Err(error) = keep(conn, &mut [(once, &answer)], now).await
    {
        return lost(conn, once, error).await;
    }
    record(conn, act, now).await?;
    Ok(Outcome::First { done: Some(done), answer })
}

async fn bury_missing(
    conn: &mut MySqlConnection,
    before: Option<JobId>,
) -> Result<(usize, Option<JobId>), sqlx::Error> {
    let sql = "SELECT w.job_id, w.end_state, d.job_id IS NULL FROM (SELECT job_id, end_state FROM attempts \
               FORCE INDEX (PRIMARY) WHERE job_id < ? ORDER BY job_id DESC, number DESC LIMIT ?) w \
               LEFT JOIN dead_letters d ON d.job_id = w.job_id";
    let before = before.map_or(Uuid::max(), JobId::uuid);
    let found = sqlx::query(sql).bind(before).bind(PAGE).fetch_all(&mut *conn).await?;
    let (mut last, mut missing) = (before, BTreeSet::new());
    for row in &found {
        let id: Uuid = row.try_get(0)?;
        last = last.min(id);
        if row.try_get::<Option<&str>, _>(1)? == Some(State::Failed.as_str()) && row.try_get::<bool, _>(2)? {
            missing.insert(id);
        }
    }
    let missing: Vec<Uuid> = missing.into_iter().collect();
    let mut buried = 0;
    for ids in missing.chunks(MAX_ROWS) {
        let failed = lock_failed(conn, ids).await?;
        let graves: Vec<NewDeadLetter<'_>> =
            failed.iter().filter_map(|(id, failure)| Some(failure.as_ref().ok()?.grave(*id))).collect();
        buried += graves.len();
        bury(conn, &graves).await?;
    }
    let full = i64::try_from(found.len()) == Ok(PAGE);
    Ok((buried, full.then_some(JobId::from_uuid(last))))
}

/// A group of open dead letters with the same cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadGroup {
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

/// The open dead letters of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadCount {
    /// The kind.
    pub kind: Name,
    /// Their number, up to the limit of the count.
    pub open: u64,
    /// Age of the oldest failure in milliseconds, by the clock of the database.
    pub oldest_ms: i64,
}

/// All dead letters of one group, whatever their status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadGroupWhole {
    /// Number of dead letters by status, up to the limit of the count.
    pub standings: BTreeMap<&'static str, u64>,
    /// True if there may be more than were counted.
    pub capped: bool,
    /// The times of the first and the last failure among the counted dead letters.
    pub seen: (Timestamp, Timestamp),
    /// The newest job.
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
    pub async fn dead_groups(
        &self,
        kind: Option<Name>,
        after: Option<(Timestamp, Fingerprint)>,
        limit: u32,
    ) -> Result<Vec<DeadGroup>, StoreError> {
        on_pool(&self.shared.pools.reads, "group dead letters", move |conn, _| {
            let kind = kind.clone();
            Box::pin(async move { dead_groups(conn, kind.as_ref(), after, limit).await })
        })
        .await
    }

    /// Read one group, or nothing when it has no dead letter.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    pub async fn dead_group(&self, fingerprint: Fingerprint) -> Result<Option<DeadGroupWhole>, StoreError> {
        on_pool(&self.shared.pools.reads, "read a group of dead letters", move |conn, _| {
            Box::pin(async move { dead_group(conn, fingerprint).await })
        })
        .await
    }

    /// List the jobs that changed to this status last, the latest first.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    pub async fn latest_dead(&self, standing: DeadLetterStatus, limit: u32) -> Result<Vec<JobId>, StoreError> {
        on_pool(&self.shared.pools.reads, "read the latest dead letters", move |conn, _| {
            Box::pin(async move {
                let sql = "SELECT job_id FROM dead_letters FORCE INDEX (dead_letters_since) WHERE standing = ? \
                           ORDER BY since DESC, kind DESC, fingerprint DESC, job_id DESC LIMIT ?";
                let ids: Vec<Uuid> =
                    sqlx::query_scalar(sql).bind(standing.as_str()).bind(limit).fetch_all(conn).await?;
                Ok(ids.into_iter().map(JobId::from_uuid).collect())
            })
        })
        .await
    }

    /// Count the open dead letters by kind, with the age of the oldest. Counts only the oldest 100,000.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    pub async fn dead_counts(&self) -> Result<Vec<DeadCount>, StoreError> {
        on_pool(&self.shared.pools.loops, "count dead letters", |conn, _| {
            Box::pin(async move {
                let found = sqlx::query(
                    "SELECT d.kind, COUNT(*), TIMESTAMPDIFF(MICROSECOND, MIN(d.since), UTC_TIMESTAMP(6)) DIV 1000 FROM \
                     (SELECT kind, since FROM dead_letters FORCE INDEX (dead_letters_since) WHERE standing = 'open' \
                     ORDER BY since LIMIT ?) d GROUP BY d.kind",
                )
                .bind(MAX_COUNTED)
                .fetch_all(conn)
                .await?;
                let count = |row: &MySqlRow| {
                    Ok(DeadCount {
                        kind: row.try_get::<String, _>(0)?.parse().map_err(|_| corrupt("kind"))?,
                        open: row.try_get::<i64, _>(1)?.unsigned_abs(),
                        oldest_ms: row.try_get(2)?,
                    })
                };
                found.iter().map(count).collect()
            })
        })
        .await
    }
}

async fn dead_groups(
    conn: &mut MySqlConnection,
    kind: Option<&Name>,
    after: Option<(Timestamp, Fingerprint)>,
    limit: u32,
) -> Result<Vec<DeadGroup>, sqlx::Error> {
    let total: i64 = statement(format!("SELECT COUNT(*) {OPEN_BY_AGE}"))
        .bind(MAX_COUNTED)
        .fetch_one(&mut *conn)
        .await?
        .try_get(0)?;
    let of_kind = if kind.is_some() { "WHERE d.kind = ?" } else { "" };
    let behind = if after.is_some() { "HAVING MAX(h.last) < ? OR (MAX(h.last) = ? AND h.fingerprint < ?)" } else { "" };
    // The inner query groups the dead letters by cause and hour, in a single scan. The outer query groups these hours
    // by cause.
    let hours = (0..HOURS).rev().map(|hour| format!("CAST(SUM(IF(h.hour = {hour}, h.letters, 0)) AS SIGNED)"));
    let sql = format!(
        "SELECT h.fingerprint, h.kind, CAST(SUM(h.letters) AS SIGNED), MIN(h.first), MAX(h.last), MAX(h.newest), {} FROM \
         (SELECT d.fingerprint, d.kind, TIMESTAMPDIFF(HOUR, d.since, UTC_TIMESTAMP(6)) AS hour, COUNT(*) AS letters, \
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
    let samples: Vec<Uuid> = found.iter().map(|row| row.try_get(5)).collect::<Result<_, sqlx::Error>>()?;
    let mut errors: BTreeMap<Uuid, String> = BTreeMap::new();
    if !samples.is_empty() {
        let sql = "SELECT job_id, error FROM dead_letters FORCE INDEX (PRIMARY) WHERE job_id IN";
        for row in in_list(sql, &samples, "").fetch_all(&mut *conn).await? {
            errors.insert(row.try_get(0)?, row.try_get(1)?);
        }
    }
    let firsts = first_failures(conn, &found).await?;
    let dead_group = |row: &MySqlRow| {
        let sample: Uuid = row.try_get(5)?;
        let (fingerprint, first): (Fingerprint, Timestamp) = (group(row.try_get(0)?)?, row.try_get(3)?);
        let mut recent = [0; HOURS];
        for (hour, letters) in recent.iter_mut().enumerate() {
            *letters = row.try_get::<i64, _>(6 + hour)?.unsigned_abs();
        }
        Ok(DeadGroup {
            fingerprint,
            kind: row.try_get::<String, _>(1)?.parse().map_err(|_| corrupt("kind"))?,
            open: row.try_get::<i64, _>(2)?.unsigned_abs(),
            capped: total >= MAX_COUNTED,
            first_seen: firsts.get(&fingerprint).map_or(first, |earlier| first.min(*earlier)),
            last_seen: row.try_get(4)?,
            recent,
            sample: JobId::from_uuid(sample),
            error: errors.remove(&sample).unwrap_or_default(),
        })
    };
    found.iter().map(dead_group).collect()
}

/// Read the time of the first failure of the retried jobs in these groups. The index `dead_letters_first` has it for
/// each fingerprint.
async fn first_failures(
    conn: &mut MySqlConnection,
    groups: &[MySqlRow],
) -> Result<BTreeMap<Fingerprint, Timestamp>, sqlx::Error> {
    let fingerprints: Vec<[u8; 8]> =
        groups.iter().map(|row| Ok(*group(row.try_get(0)?)?.bytes())).collect::<Result<_, sqlx::Error>>()?;
    if fingerprints.is_empty() {
        return Ok(BTreeMap::new());
    }
    let sql = format!(
        "SELECT fingerprint, MIN(first_failed_at) FROM dead_letters FORCE INDEX (dead_letters_first) WHERE fingerprint IN {} \
         AND standing = 'open' AND first_failed_at IS NOT NULL GROUP BY fingerprint",
        places(padded(fingerprints.len()))
    );
    let mut query = statement(sql);
    for bytes in pad(&fingerprints) {
        query = query.bind(bytes.to_vec());
    }
    let mut firsts = BTreeMap::new();
    for row in query.fetch_all(conn).await? {
        firsts.insert(group(row.try_get(0)?)?, row.try_get(1)?);
    }
    Ok(firsts)
}

async fn dead_group(
    conn: &mut MySqlConnection,
    fingerprint: Fingerprint,
) -> Result<Option<DeadGroupWhole>, sqlx::Error> {
    let bytes = fingerprint.bytes().to_vec();
    let found = sqlx::query(
        "SELECT d.standing, COUNT(*), MIN(d.first), MAX(d.failed_at) FROM (SELECT standing, failed_at, \
         COALESCE(first_failed_at, failed_at) AS first FROM dead_letters \
         FORCE INDEX (dead_letters_group) WHERE fingerprint = ? ORDER BY job_id DESC LIMIT ?) d GROUP BY d.standing",
    )
    .bind(bytes.clone())
    .bind(MAX_READ)
    .fetch_all(&mut *conn)
    .await?;
    let newest = sqlx::query(
        "SELECT job_id, kind, error FROM dead_letters FORCE INDEX (dead_letters_group) WHERE fingerprint = ? \
         ORDER BY job_id DESC LIMIT 1",
    )
    .bind(bytes)
    .fetch_optional(conn)
    .await?;
    let Some(newest) = newest else { return Ok(None) };
    let (mut standings, mut seen, mut total) = (BTreeMap::new(), None, 0);
    for row in &found {
        let standing = DeadLetterStatus::from_word(row.try_get(0)?).ok_or_else(|| corrupt("standing"))?;
        let jobs: i64 = row.try_get(1)?;
        let (first, last): (Timestamp, Timestamp) = (row.try_get(2)?, row.try_get(3)?);
        total += jobs;
        standings.insert(standing.as_str(), jobs.unsigned_abs());
        seen = Some(seen.map_or((first, last), |(a, b): (Timestamp, Timestamp)| (a.min(first), b.max(last))));
    }
    let Some(seen) = seen else { return Ok(None) };
    Ok(Some(DeadGroupWhole {
        standings,
        capped: total >= MAX_READ,
        seen,
        sample: JobId::from_uuid(newest.try_get(0)?),
        kind: newest.try_get::<String, _>(1)?.parse().map_err(|_| corrupt("kind"))?,
        error: newest.try_get(2)?,
    }))
}
