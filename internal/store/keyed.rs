//! Accepting jobs with unique keys: at most one unfinished job per (kind, key).
//!
//! A row of `unique_keys` lives exactly as long as its job is owed, and is the lock of everything that is done about its
//! key. Whoever wants the key inserts the row; the primary key decides between two at once. Whoever wants to replace its
//! holder locks the row first, so that any number of them take turns.
//!
//! A key is a word that others can guess. So a request is answered with a holder in full, and may replace it, only if the
//! holder is a job of the same producer (`job::Producer`). Whose it is stands in the holder's options, and is read in the
//! statement that reads its state.
//!
//! The order of locks is: unique keys in key order, rows of replaced jobs in id order, the idempotency key, then new rows,
//! and the tallies last. A settle comes the other way, from the owed row to its key; should it meet a replacement of the
//! very job that it ends, MySQL picks one of them, which runs again and sees what the other did.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use sqlx::{MySqlConnection, Row};
use uuid::Uuid;

use super::audit::{Act, record_all};
use super::error::{Fault, again, corrupt, fault};
use super::insert::{Accepted, accepted_at, read_clock, receipts, together, write_jobs};
use super::link::{Earlier, transact};
use super::once::{Once, Outcome, Wording, find, keep, lost};
use super::operate::cancel_waiting;
use super::read::read_job;
use super::settle::{Owed, count, lock_held};
use super::{Shared, Store, StoreError};
use crate::job::{Actor, Attempt, Event, Job, JobId, JobOptions, NewJob, OnConflict, Producer, State, Timestamp, next};

/// An unfinished job that has a unique key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The job.
    pub id: JobId,
    /// Where it is in its life.
    pub state: State,
    /// When it is due.
    pub execute_at: Timestamp,
    /// Is it the job of another producer, who has not told this one what it holds?
    pub foreign: bool,
}

/// What became of one job that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placed {
    /// Accepted.
    New(Accepted),
    /// This job has the unique key, and stands for the one that was asked for.
    Held(Holder),
}

impl Placed {
    /// The receipt, if the job is new.
    #[must_use]
    pub fn accepted(self) -> Option<Accepted> {
        match self {
            Self::New(accepted) => Some(accepted),
            Self::Held(_) => None,
        }
    }
}

/// What became of jobs that were asked for together.
#[derive(Clone, Debug, Default)]
pub struct Receipts {
    /// In the order of the request.
    pub placed: Vec<Placed>,
    /// Jobs that were cancelled, because new ones took their keys.
    pub replaced: Vec<JobId>,
    /// When a single job was asked for, and another of the same producer has its key: that one in full.
    pub holder: Option<Box<(Job, Vec<Attempt>)>>,
}

impl Receipts {
    /// All are new.
    #[must_use]
    pub fn of(accepted: Vec<Accepted>) -> Self {
        Self { placed: accepted.into_iter().map(Placed::New).collect(), ..Self::default() }
    }

    /// The receipts of the new ones.
    pub fn accepted(&self) -> impl Iterator<Item = &Accepted> {
        self.placed.iter().filter_map(|placed| match placed {
            Placed::New(accepted) => Some(accepted),
            Placed::Held(_) => None,
        })
    }
}

/// What became of jobs some of which have unique keys.
#[derive(Clone, Debug)]
pub enum Keyed {
    /// Each is accepted, or another stands for it, as it wished.
    Accepted(Receipts),
    /// Nothing was written: these jobs, by their place, may not have their keys, which these unfinished jobs hold.
    Taken(Vec<(usize, Holder)>),
}

/// What an earlier run of a write decided, for a run that finds it committed.
pub(super) type Memory = Mutex<Option<Receipts>>;

impl Store {
    /// Accept jobs some of which have unique keys, all or none.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn insert_keyed(&self, jobs: Vec<NewJob>) -> Result<Keyed, StoreError> {
        self.insert_keyed_for(Producer::tickr(), jobs).await
    }

    /// As [`insert_keyed`](Self::insert_keyed), for a producer that may not reach the jobs of all others.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn insert_keyed_for(&self, producer: Producer, jobs: Vec<NewJob>) -> Result<Keyed, StoreError> {
        let asked = Arc::new(Asked { jobs: together(signed(jobs, &producer)), producer });
        let (shared, memory) = (self.shared.clone(), Arc::default());
        let attempted = "insert jobs with unique keys";
        let outcome = transact(&self.shared.pools.steering, attempted, move |conn, earlier| {
            let (asked, shared, memory) = (Arc::clone(&asked), shared.clone(), Arc::clone(&memory));
            Box::pin(async move { insert_keyed(conn, &asked, None, &shared, &memory, earlier).await })
        });
        match outcome.await? {
            Outcome::First { done: Some(keyed), .. } | Outcome::Refused(keyed) => Ok(keyed),
            _ => Err(StoreError::Corrupt { attempted, cause: "an answer that belongs to a key".into() }),
        }
    }
}

/// Jobs, and who asks for them.
pub(super) struct Asked {
    pub(super) jobs: Vec<NewJob>,
    pub(super) producer: Producer,
}

/// Note on each job with a unique key whose it is, unless that is known: a replay stays its first producer's.
pub(super) fn signed(mut jobs: Vec<NewJob>, producer: &Producer) -> Vec<NewJob> {
    for job in jobs.iter_mut().filter(|job| job.unique_key.is_some()) {
        job.options.creator.get_or_insert_with(|| producer.creator().clone());
    }
    jobs
}

/// Write jobs, all or none, at most once if `once` says so. Within the caller's transaction.
pub(super) async fn insert_keyed(
    conn: &mut MySqlConnection,
    Asked { jobs, producer }: &Asked,
    once: Option<(&Once, &Wording<Receipts>)>,
    shared: &Shared,
    memory: &Memory,
    earlier: Earlier,
) -> Result<Outcome<Keyed>, sqlx::Error> {
    if earlier == Earlier::MayHaveCommitted
        && let Some(done) = done_before(conn, jobs, once, memory).await?
    {
        return Ok(done);
    }
    let decided = decide(conn, jobs, producer).await?;
    let mut taken = decided.taken;
    let held = if decided.replace.is_empty() {
        BTreeMap::new()
    } else {
        lock_held(conn, decided.replace.values().map(|holder| holder.id)).await?
    };
    for (place, holder) in &decided.replace {
        // Nobody ends a job without its key, which we hold; but somebody may have begun it since we looked.
        let owed = held.get(&holder.id).ok_or_else(|| again("the holder of a unique key is gone"))?;
        if next(owed.state, Event::Cancel) != Ok(State::Cancelled) {
            taken.push((*place, Holder { state: owed.state, ..*holder }));
        }
    }
    if !taken.is_empty() {
        // The keys taken so far go back; the commit that follows finds nothing to do.
        sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
        if let Some((once, _)) = once
            && let Some(kept) = find(conn, once).await?
        {
            // Perhaps it was this very request, in an earlier call, that took the keys.
            return Ok(kept.meet(once, None));
        }
        taken.sort_unstable_by_key(|(place, _)| *place);
        return Ok(Outcome::Refused(Keyed::Taken(taken)));
    }

    let now = read_clock(conn, &shared.clock).await?;
    let is_new = |place: &usize| !decided.stand_ins.contains_key(place);
    let mut new: Vec<NewJob> = (0..jobs.len()).filter(is_new).map(|place| jobs[place].clone()).collect();
    if new.len() < jobs.len() {
        new = together(new);
    }
    let mut receipts = Receipts { replaced: decided.replace.values().map(|h| h.id).collect(), ..Receipts::default() };
    for (place, job) in jobs.iter().enumerate() {
        receipts.placed.push(match decided.stand_ins.get(&place) {
            None => Placed::New(accepted_at(job, now)),
            Some(StandIn::Holder(holder)) => Placed::Held(*holder),
            Some(StandIn::Earlier(place)) => {
                let Accepted { id, execute_at, .. } = accepted_at(&jobs[*place], now);
                Placed::Held(Holder { id, state: State::Waiting, execute_at, foreign: false })
            }
        });
    }
    if let [Placed::Held(holder)] = receipts.placed[..]
        && !holder.foreign
    {
        receipts.holder = Some(Box::new(read_in_full(conn, holder.id).await?));
    }
    let answer = match once {
        None => None,
        Some((once, word)) => {
            let answer = word(&receipts);
            if let Err(error) = keep(conn, &mut [(once, &answer)], now).await {
                return lost(conn, once, error).await;
            }
            Some(answer)
        }
    };
    replace(conn, jobs, producer.actor(), &decided.replace, &held, now).await?;
    let accepted: Vec<Accepted> = receipts.accepted().cloned().collect();
    let mut pairs: Vec<(&NewJob, &Accepted)> = new.iter().zip(&accepted).collect();
    pairs.sort_unstable_by_key(|(job, _)| job.id);
    write_jobs(conn, &pairs).await?;
    let mut ended = BTreeMap::new();
    for owed in decided.replace.values().filter_map(|holder| held.get(&holder.id)) {
        *ended.entry((owed.queue.clone(), owed.kind.clone(), State::Cancelled)).or_default() += 1;
    }
    count(conn, shared.lanes.any(), &ended).await?;
    *memory.lock().unwrap_or_else(PoisonError::into_inner) = Some(receipts.clone());
    Ok(match answer {
        Some(answer) => Outcome::First { done: Some(Keyed::Accepted(receipts)), answer },
        None => Outcome::Refused(Keyed::Accepted(receipts)),
    })
}

/// An earlier run may have committed: if it did, what it decided.
async fn done_before(
    conn: &mut MySqlConnection,
    jobs: &[NewJob],
    once: Option<(&Once, &Wording<Receipts>)>,
    memory: &Memory,
) -> Result<Option<Outcome<Keyed>>, sqlx::Error> {
    let decided = memory.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some((once, _)) = once {
        return Ok(find(conn, once).await?.map(|kept| kept.meet(once, decided.map(Keyed::Accepted))));
    }
    let mut by_id: Vec<&NewJob> = jobs.iter().collect();
    by_id.sort_unstable_by_key(|job| job.id);
    let found = receipts(conn, &by_id).await?;
    // The ids were made before the first run: if they are there, our own lost commit wrote them, all of them.
    Ok(decided.filter(|_| !found.is_empty()).map(|decided| Outcome::Refused(Keyed::Accepted(decided))))
}

/// What stands for a job that is not accepted itself.
#[derive(Clone, Copy)]
enum StandIn {
    /// An unfinished job that has its key.
    Holder(Holder),
    /// The job at this earlier place of the same request, which takes the key.
    Earlier(usize),
}

/// What is to become of the jobs of one request, by place. The keys are locked.
#[derive(Default)]
struct Decided {
    stand_ins: BTreeMap<usize, StandIn>,
    /// Holders to cancel, as far as a look without a lock can tell.
    replace: BTreeMap<usize, Holder>,
    taken: Vec<(usize, Holder)>,
}

async fn decide(conn: &mut MySqlConnection, jobs: &[NewJob], producer: &Producer) -> Result<Decided, sqlx::Error> {
    // In key order, so that two batches with the same keys wait for each other instead of deadlocking.
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
        let holder = match job.on_conflict {
            OnConflict::Replace => lock_key(conn, job, key, producer).await?,
            OnConflict::Return | OnConflict::Reject => take_key(conn, job, key, producer).await?,
        };
        let mut stand_in = StandIn::Earlier(first);
        if let Some(holder) = holder {
            if jobs.iter().any(|job| job.id == holder.id) {
                return Err(again("an earlier run of the same write has committed after all"));
            }
            match job.on_conflict {
                OnConflict::Return => {
                    stand_in = StandIn::Holder(holder);
                    decided.stand_ins.insert(first, stand_in);
                }
                OnConflict::Replace
                    // To end the job of another takes more than knowing its key.
                    if !holder.foreign && next(holder.state, Event::Cancel) == Ok(State::Cancelled) =>
                {
                    decided.replace.insert(first, holder);
                }
                OnConflict::Reject | OnConflict::Replace => decided.taken.push((first, holder)),
            }
        }
        for place in others {
            match jobs[*place].on_conflict {
                OnConflict::Return => drop(decided.stand_ins.insert(*place, stand_in)),
                // A job cannot push out its neighbour: both were asked for in the same breath.
                OnConflict::Reject | OnConflict::Replace => {
                    let holder = holder.unwrap_or(Holder {
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

/// Take the key for `job`, or say who holds it. An upsert could not tell who won, because the driver counts matched
/// rows; a plain insert can.
async fn take_key(
    conn: &mut MySqlConnection,
    job: &NewJob,
    key: &str,
    producer: &Producer,
) -> Result<Option<Holder>, sqlx::Error> {
    for _ in 0..3 {
        match insert_key(conn, job, key).await {
            Ok(()) => return Ok(None),
            Err(e) if fault(&e) == Fault::Duplicate => {}
            Err(e) => return Err(e),
        }
        let holder: Option<Uuid> =
            sqlx::query_scalar("SELECT job_id FROM unique_keys WHERE kind = ? AND unique_key = ? LOCK IN SHARE MODE")
                .bind(job.kind.as_str())
                .bind(key.as_bytes())
                .fetch_optional(&mut *conn)
                .await?;
        if let Some(id) = holder {
            return read_holder(conn, id, producer).await.map(Some);
        }
        // The holder ended between the two statements: try again.
    }
    Err(again("a unique key changed hands three times"))
}

/// Lock the key and say who holds it, or take it for `job`.
async fn lock_key(
    conn: &mut MySqlConnection,
    job: &NewJob,
    key: &str,
    producer: &Producer,
) -> Result<Option<Holder>, sqlx::Error> {
    let holder: Option<Uuid> =
        sqlx::query_scalar("SELECT job_id FROM unique_keys WHERE kind = ? AND unique_key = ? FOR UPDATE")
            .bind(job.kind.as_str())
            .bind(key.as_bytes())
            .fetch_optional(&mut *conn)
            .await?;
    if let Some(id) = holder {
        return read_holder(conn, id, producer).await.map(Some);
    }
    match insert_key(conn, job, key).await {
        Ok(()) => Ok(None),
        // Somebody took it between the two statements. The refused insert left a shared lock behind, and many who went
        // on from there to the exclusive one would deadlock: begin again instead, and queue for the row.
        Err(e) if fault(&e) == Fault::Duplicate => Err(again("a unique key was taken meanwhile")),
        Err(e) => Err(e),
    }
}

async fn insert_key(conn: &mut MySqlConnection, job: &NewJob, key: &str) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO unique_keys (kind, unique_key, job_id) VALUES (?, ?, ?)")
        .bind(job.kind.as_str())
        .bind(key.as_bytes())
        .bind(job.id.uuid())
        .execute(conn)
        .await?;
    Ok(())
}

/// The holder of a key that is locked: owed, because its end would have to take the key away first. Read without a
/// lock, so that nobody waits for somebody who waits for the key.
async fn read_holder(conn: &mut MySqlConnection, id: Uuid, producer: &Producer) -> Result<Holder, sqlx::Error> {
    let sql = "SELECT o.state, o.execute_at, j.options FROM owed o FORCE INDEX (PRIMARY) \
               JOIN jobs j FORCE INDEX (PRIMARY) ON j.id = o.id WHERE o.id = ?";
    let row = sqlx::query(sql).bind(id).fetch_optional(conn).await?;
    let row = row.ok_or_else(|| again("the holder of a unique key is not owed"))?;
    let state = State::from_word(row.try_get::<&str, _>(0)?).ok_or_else(|| corrupt("state"))?;
    let options: Option<String> = row.try_get(2)?;
    // Options that this binary cannot read do not say that the job is the producer's own.
    let options = options.and_then(|text| serde_json::from_str::<JobOptions>(&text).ok()).unwrap_or_default();
    Ok(Holder { id: JobId::from_uuid(id), state, execute_at: row.try_get(1)?, foreign: !producer.reaches(&options) })
}

/// A job in full. It takes several reads, and nothing holds the job still but the lock on its key, which keeps it from
/// ending; so read until it did not move meanwhile.
async fn read_in_full(conn: &mut MySqlConnection, id: JobId) -> Result<(Job, Vec<Attempt>), sqlx::Error> {
    let mut seen: Option<(String, u32)> = None;
    for _ in 0..6 {
        let read = read_job(conn, id).await?;
        let now = sqlx::query_as("SELECT state, attempt FROM owed WHERE id = ?")
            .bind(id.uuid())
            .fetch_optional(&mut *conn)
            .await?;
        match read {
            Some(read) if now.is_some() && now == seen => return Ok(read),
            _ => seen = now,
        }
    }
    Err(again("a job would not hold still"))
}

/// Cancel these locked holders, give their keys to the jobs at those places, and write down who did it.
async fn replace(
    conn: &mut MySqlConnection,
    jobs: &[NewJob],
    actor: &Actor,
    replace: &BTreeMap<usize, Holder>,
    held: &BTreeMap<JobId, Owed>,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let mut acts = Vec::with_capacity(replace.len());
    for (place, holder) in replace {
        let (job, Some(owed)) = (&jobs[*place], held.get(&holder.id)) else { continue };
        let detail = serde_json::json!({"replaced_by": job.id.to_string()});
        acts.push(Act::new(actor, "job.replace", holder.id.to_string()).with(detail));
        cancel_waiting(conn, holder.id, owed, now, Some(&format!("replaced by job {}", job.id))).await?;
        sqlx::query("UPDATE unique_keys SET job_id = ? WHERE kind = ? AND unique_key = ?")
            .bind(job.id.uuid())
            .bind(job.kind.as_str())
            .bind(job.unique_key.as_ref().map(String::as_bytes))
            .execute(&mut *conn)
            .await?;
    }
    record_all(conn, &acts, now).await
}
