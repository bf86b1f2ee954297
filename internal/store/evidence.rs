//! What the tables say, for a checker: every job with what is owed of it and what was done about it, page by page, all
//! of it in one snapshot of a live system.

use std::collections::BTreeMap;

use sqlx::{MySqlConnection, Row};
use uuid::Uuid;

use super::due::DueJob;
use super::error::corrupt;
use super::link::{self, on_pool};
use super::{Store, StoreError};
use crate::job::{BatchPlace, JobId, Name, State, Timestamp, Verdict, first_id_of};

/// Jobs in one page.
const PAGE: u32 = 2_000;
/// Most faults of one kind that are read from the server.
const MOST_READ: u32 = 10_000;

/// One snapshot of the tables, on a connection of its own. Dropping it ends the snapshot.
pub struct Evidence {
    conn: MySqlConnection,
    at: Timestamp,
    after: Uuid,
    done: bool,
}

impl std::fmt::Debug for Evidence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evidence").field("at", &self.at).finish_non_exhaustive()
    }
}

/// Everything the tables say about one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEvidence {
    /// The job.
    pub id: JobId,
    /// What was asked; absent when other tables speak of a job that is not there.
    pub asked: Option<Asked>,
    /// What is owed; absent when the job has ended.
    pub owed: Option<OwedNow>,
    /// What was done, in order of the line's number.
    pub lines: Vec<LedgerLine>,
    /// Has it a row in `dead_letters`?
    pub letter: bool,
}

/// A row of `jobs`, as far as it can be contradicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Its kind.
    pub kind: Name,
    /// Its queue.
    pub queue: Name,
    /// Attempts that may be burned.
    pub max_attempts: u32,
    /// Has it a unique key?
    pub keyed: bool,
    /// Whom it was accepted with.
    pub batch: Option<BatchPlace>,
    /// When it was accepted.
    pub created_at: Timestamp,
}

/// A row of `owed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwedNow {
    /// Copy of the job's kind.
    pub kind: Name,
    /// Copy of the job's limit.
    pub max_attempts: u32,
    /// Does it hold a row in `unique_keys`?
    pub keyed: bool,
    /// Where it is in its life.
    pub state: State,
    /// When it is due.
    pub execute_at: Timestamp,
    /// Executions begun.
    pub attempt: u32,
    /// Is there a runner, a token, a start and a lease (all of them, or none)?
    pub leased: Option<bool>,
    /// Start of the open attempt.
    pub started_at: Timestamp,
    /// End of its lease.
    pub lease_until: Timestamp,
}

/// A line of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerLine {
    /// Its number.
    pub number: u32,
    /// Attempts burned up to it.
    pub burned: u32,
    /// Did a runner execute it, or does it only close the job?
    pub executed: bool,
    /// When the attempt was due.
    pub execute_at: Timestamp,
    /// When it was claimed.
    pub started_at: Timestamp,
    /// When it was settled.
    pub finished_at: Timestamp,
    /// What it came to.
    pub verdict: Verdict,
    /// The end state in which it left the job, if it ended it.
    pub end: Option<State>,
    /// When the cancel that it saw was asked for.
    pub cancel_requested_at: Option<Timestamp>,
}

/// A tally, summed over its lanes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TallyKey {
    /// The queue.
    pub queue: Name,
    /// The kind.
    pub kind: Name,
    /// The end state.
    pub state: State,
}

impl Store {
    /// Take a snapshot of the tables, of jobs made at `since` or later.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn evidence(&self, since: Option<Timestamp>) -> Result<Evidence, StoreError> {
        let attempted = "take a snapshot of the tables";
        let opened = async {
            let mut conn = link::open(&self.shared.options).await?;
            sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut conn).await?;
            sqlx::raw_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY").execute(&mut conn).await?;
            let at = sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut conn).await?;
            Ok::<_, sqlx::Error>((conn, at))
        };
        let (conn, at) = opened.await.map_err(|e| StoreError::from_driver(attempted, &e))?;
        // Before the first id that is wanted.
        let after = since.map_or(Uuid::nil(), |since| Uuid::from_u128(first_id_of(since).as_u128().saturating_sub(1)));
        Ok(Evidence { conn, at, after, done: false })
    }
}

/// What a runner with a free slot could start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleRunner {
    /// Its kinds.
    pub kinds: Vec<Name>,
    /// Its queues.
    pub queues: Vec<Name>,
}

impl IdleRunner {
    /// Could it start this job?
    #[must_use]
    pub fn serves(&self, job: &DueJob) -> bool {
        self.kinds.contains(&job.kind) && self.queues.contains(&job.queue)
    }
}

impl Store {
    /// Living runners with a free slot, now, that take work. One that runs a job alone, as after a loss, has none. Searches all owed rows.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn idle_runners(&self) -> Result<Vec<IdleRunner>, StoreError> {
        on_pool(&self.shared.pools.loops, "look for idle runners", |conn, _| {
            Box::pin(async move {
                let found = sqlx::query(
                    "SELECT r.kinds, r.queues FROM runners r LEFT JOIN (SELECT runner, COUNT(*) AS busy, \
                     SUM(losses > 0) AS alone FROM owed WHERE state = 'executing' GROUP BY runner) b ON b.runner = r.id \
                     WHERE r.stopped_at IS NULL AND r.drained_at IS NULL AND r.heartbeat_at >= UTC_TIMESTAMP(6) - INTERVAL r.lease_ms * 1000 MICROSECOND \
                     AND COALESCE(b.busy, 0) < r.slots AND COALESCE(b.alone, 0) = 0",
                )
                .fetch_all(conn)
                .await?;
                let names = |text: String| serde_json::from_str(&text).map_err(|e| corrupt(e.to_string()));
                let idle = |row: &sqlx::mysql::MySqlRow| {
                    Ok(IdleRunner { kinds: names(row.try_get(0)?)?, queues: names(row.try_get(1)?)? })
                };
                found.iter().map(idle).collect()
            })
        })
        .await
    }
}

impl Evidence {
    /// The database's clock at the snapshot.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// The next jobs in order of their ids; nothing when all have been read.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses, or a row cannot be read.
    pub async fn next_page(&mut self) -> Result<Option<Vec<JobEvidence>>, StoreError> {
        if self.done {
            return Ok(None);
        }
        let page = self.read_page().await.map_err(|e| StoreError::from_driver("read evidence", &e))?;
        Ok(Some(page))
    }

    async fn read_page(&mut self) -> Result<Vec<JobEvidence>, sqlx::Error> {
        let asked = sqlx::query(
            "SELECT id, kind, queue, max_attempts, unique_key IS NOT NULL, batch_id, batch_size, created_at FROM jobs \
             WHERE id > ? ORDER BY id LIMIT ?",
        )
        .bind(self.after)
        .bind(PAGE)
        .fetch_all(&mut self.conn)
        .await?;
        // What the other tables say beyond the last job belongs to no job, and to the last page.
        let until: Uuid = match asked.last() {
            Some(last) if asked.len() == PAGE as usize => last.try_get(0)?,
            _ => {
                self.done = true;
                Uuid::max()
            }
        };
        let mut jobs: BTreeMap<Uuid, JobEvidence> = BTreeMap::new();
        let job = |id: Uuid| JobEvidence {
            id: JobId::from_uuid(id),
            asked: None,
            owed: None,
            lines: Vec::new(),
            letter: false,
        };
        for row in &asked {
            let id = row.try_get(0)?;
            let (first, size): (Option<Uuid>, Option<u16>) = (row.try_get(5)?, row.try_get(6)?);
            jobs.entry(id).or_insert_with(|| job(id)).asked = Some(Asked {
                kind: name(row.try_get(1)?)?,
                queue: name(row.try_get(2)?)?,
                max_attempts: row.try_get(3)?,
                keyed: row.try_get(4)?,
                batch: first.zip(size).map(|(first, size)| BatchPlace { first: JobId::from_uuid(first), size }),
                created_at: row.try_get(7)?,
            });
        }
        let owed = sqlx::query(
            "SELECT id, kind, max_attempts, keyed, state, execute_at, attempt, started_at, lease_until, \
             runner <> '', token <> 0x00000000000000000000000000000000, started_at > '1970-01-01 00:00:00', \
             lease_until > '1970-01-01 00:00:00' FROM owed FORCE INDEX (PRIMARY) WHERE id > ? AND id <= ?",
        )
        .bind(self.after)
        .bind(until)
        .fetch_all(&mut self.conn)
        .await?;
        for row in &owed {
            let id = row.try_get(0)?;
            let signs: [bool; 4] = [row.try_get(9)?, row.try_get(10)?, row.try_get(11)?, row.try_get(12)?];
            jobs.entry(id).or_insert_with(|| job(id)).owed = Some(OwedNow {
                kind: name(row.try_get(1)?)?,
                max_attempts: row.try_get(2)?,
                keyed: row.try_get(3)?,
                state: State::from_word(row.try_get(4)?).ok_or_else(|| corrupt("state"))?,
                execute_at: row.try_get(5)?,
                attempt: row.try_get(6)?,
                leased: signs.iter().all(|sign| *sign == signs[0]).then_some(signs[0]),
                started_at: row.try_get(7)?,
                lease_until: row.try_get(8)?,
            });
        }
        let lines = sqlx::query(
            "SELECT job_id, number, burned, runner <> '', execute_at, started_at, finished_at, verdict, end_state, \
             cancel_requested_at FROM attempts FORCE INDEX (PRIMARY) WHERE job_id > ? AND job_id <= ? \
             ORDER BY job_id, number",
        )
        .bind(self.after)
        .bind(until)
        .fetch_all(&mut self.conn)
        .await?;
        for row in &lines {
            let id = row.try_get(0)?;
            let end: Option<&str> = row.try_get(8)?;
            jobs.entry(id).or_insert_with(|| job(id)).lines.push(LedgerLine {
                number: row.try_get(1)?,
                burned: row.try_get(2)?,
                executed: row.try_get(3)?,
                execute_at: row.try_get(4)?,
                started_at: row.try_get(5)?,
                finished_at: row.try_get(6)?,
                verdict: Verdict::from_word(row.try_get(7)?).ok_or_else(|| corrupt("verdict"))?,
                end: end.map(|word| State::from_word(word).ok_or_else(|| corrupt("end_state"))).transpose()?,
                cancel_requested_at: row.try_get(9)?,
            });
        }
        let letters: Vec<Uuid> = sqlx::query_scalar(
            "SELECT job_id FROM dead_letters FORCE INDEX (PRIMARY) WHERE job_id > ? AND job_id <= ? ORDER BY job_id",
        )
        .bind(self.after)
        .bind(until)
        .fetch_all(&mut self.conn)
        .await?;
        for id in letters {
            jobs.entry(id).or_insert_with(|| job(id)).letter = true;
        }
        self.after = until;
        Ok(jobs.into_values().collect())
    }

    /// Jobs whose unique key is not held as it should be: owed ones that hold none or not their own, and keys that are
    /// held for a job which is not owed.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn stray_keys(&mut self) -> Result<Vec<JobId>, StoreError> {
        let found: Result<Vec<Uuid>, sqlx::Error> = sqlx::query_scalar(
            "(SELECT k.job_id FROM unique_keys k LEFT JOIN owed o ON o.id = k.job_id AND o.keyed \
              LEFT JOIN jobs j ON j.id = k.job_id AND j.kind = k.kind AND j.unique_key = k.unique_key \
              WHERE o.id IS NULL OR j.id IS NULL LIMIT ?) UNION \
             (SELECT o.id FROM owed o JOIN jobs j ON j.id = o.id \
              LEFT JOIN unique_keys k ON k.kind = j.kind AND k.unique_key = j.unique_key AND k.job_id = o.id \
              WHERE o.keyed AND k.job_id IS NULL LIMIT ?)",
        )
        .bind(MOST_READ)
        .bind(MOST_READ)
        .fetch_all(&mut self.conn)
        .await;
        let found = found.map_err(|e| StoreError::from_driver("compare unique keys", &e))?;
        Ok(found.into_iter().map(JobId::from_uuid).collect())
    }

    /// Ticks of schedules, recorded at `since` or later, that say that they made a job which is not there.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn ticks_without_jobs(
        &mut self,
        since: Timestamp,
    ) -> Result<Vec<(JobId, String, Timestamp)>, StoreError> {
        let found: Result<Vec<(Uuid, String, Timestamp)>, sqlx::Error> = sqlx::query_as(
            "SELECT t.job_id, t.schedule, t.due_at FROM ticks t LEFT JOIN jobs j ON j.id = t.job_id \
             WHERE t.outcome = 'fired' AND t.recorded_at >= ? AND j.id IS NULL LIMIT ?",
        )
        .bind(since)
        .bind(MOST_READ)
        .fetch_all(&mut self.conn)
        .await;
        let found = found.map_err(|e| StoreError::from_driver("compare ticks with jobs", &e))?;
        Ok(found.into_iter().map(|(id, name, due_at)| (JobId::from_uuid(id), name, due_at)).collect())
    }

    /// Replayed jobs whose new job does not say that it was made of them. One that was purged says nothing.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn stray_replays(&mut self) -> Result<Vec<JobId>, StoreError> {
        let found: Result<Vec<Uuid>, sqlx::Error> = sqlx::query_scalar(
            "SELECT d.job_id FROM dead_letters d FORCE INDEX (dead_letters_standing) JOIN jobs n ON n.id = d.replayed_as \
             WHERE d.standing = 'replayed' AND NOT (COALESCE(REPLACE(JSON_UNQUOTE(JSON_EXTRACT(n.options, '$.replay_of')), \
             '-', ''), '') = LOWER(HEX(d.job_id))) LIMIT ?",
        )
        .bind(MOST_READ)
        .fetch_all(&mut self.conn)
        .await;
        let found = found.map_err(|e| StoreError::from_driver("compare replays", &e))?;
        Ok(found.into_iter().map(JobId::from_uuid).collect())
    }

    /// How many jobs ended, ever, as they were counted when they ended.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn tallies(&mut self) -> Result<BTreeMap<TallyKey, i64>, StoreError> {
        let attempted = "read the tallies";
        let found =
            sqlx::query("SELECT queue, kind, state, CAST(SUM(n) AS SIGNED) FROM tallies GROUP BY queue, kind, state")
                .fetch_all(&mut self.conn)
                .await
                .map_err(|e| StoreError::from_driver(attempted, &e))?;
        let tally = |row: &sqlx::mysql::MySqlRow| {
            let state = State::from_word(row.try_get(2)?).ok_or_else(|| corrupt("state"))?;
            Ok((TallyKey { queue: name(row.try_get(0)?)?, kind: name(row.try_get(1)?)?, state }, row.try_get(3)?))
        };
        let tallies: Result<_, sqlx::Error> = found.iter().map(tally).collect();
        tallies.map_err(|e| StoreError::from_driver(attempted, &e))
    }

    /// The longest lease among runners that live at the snapshot; nothing when none does.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn longest_living_lease_ms(&mut self) -> Result<Option<u32>, StoreError> {
        sqlx::query_scalar(
            "SELECT MAX(lease_ms) FROM runners WHERE stopped_at IS NULL AND heartbeat_at >= ? - INTERVAL lease_ms * 1000 MICROSECOND",
        )
        .bind(self.at)
        .fetch_one(&mut self.conn)
        .await
        .map_err(|e| StoreError::from_driver("read living runners", &e))
    }
}

fn name(text: &str) -> Result<Name, sqlx::Error> {
    text.parse().map_err(|_| corrupt(format!("name {text:?}")))
}
