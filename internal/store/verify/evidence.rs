//! The contents of the tables, for `tickr verify`: every job with its row in `owed` and its rows in the ledger, page by
//! page.
//!
//! Each page is a snapshot of its own, and no snapshot lasts longer than the reading of one page, however large the
//! tables are. So the server keeps no old row versions for the checker, and an `ALTER TABLE` does not wait longer than
//! that. Checks that need more than one page use single statements, each of which sees one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use chrono::TimeDelta;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::rows::ledger::VERDICT;
use crate::rows::limits::parked_until;
use crate::rows::links::blocked_until;
use crate::rows::order::held_until;
use crate::rows::tallies::OTHER;
use crate::sql::batches::{Sql, bind_padded, padded_len, placeholders, statement};
use crate::sql::connection;
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{BatchPlace, JobId, Name, State, Timestamp, Verdict, first_id_of};

/// Jobs in one page.
pub(super) const PAGE: u32 = 2_000;
/// Jobs in one page of those with distant ids.
const DISTANT: u32 = 256;
/// Time limit of one page. The check gives up on a server that needs longer, so as not to burden it.
pub(super) const PAGE_LIMIT: Duration = Duration::from_secs(60);
/// Unreadable rows that are listed with their errors.
const MAX_UNREADABLE: usize = 20;
/// The greatest time by which the clock of a host is behind that is looked for. The ids of the audit contain such clock
/// times, and the audit has no index by time.
const SKEW: TimeDelta = TimeDelta::days(1);
/// An upper bound for the duration of a transaction that retries jobs, including its waits for locks.
const MAX_CHANGE: TimeDelta = TimeDelta::minutes(2);

/// The columns of `jobs` that are read.
const ASKED: &str = "SELECT id, kind, queue, max_attempts, unique_key IS NOT NULL AS keyed, batch_id, batch_size, \
                     created_at";

/// A pattern for the options of a job with an order key. In a text, such as a tag, the quotes would be escaped.
const HAS_ORDER_KEY: &str = r#"'%"order":{"key":%'"#;

/// A reader of the tables, page by page, on a connection of its own.
pub struct Evidence {
    pub(super) conn: Session<'static>,
    at: Timestamp,
    after: Uuid,
    /// The place in the walk through the jobs that were accepted at `since` or later and have older ids.
    distant: Option<(Timestamp, Uuid)>,
    /// The last id in front of the range that is read.
    begins_behind: Uuid,
    done: bool,
    unreadable: u64,
    examples: Vec<String>,
}

/// The jobs of one page.
enum Span {
    /// Those behind the first of these ids, up to the second.
    Range(Uuid, Uuid),
    /// These.
    Ids(Vec<Uuid>),
}

impl Span {
    /// Return the condition on this column.
    fn of(&self, column: &str) -> String {
        match self {
            Self::Range(..) => format!("{column} > ? AND {column} <= ?"),
            Self::Ids(ids) => format!("{column} IN {}", placeholders(padded_len(ids.len()))),
        }
    }

    fn bind(&self, query: Sql) -> Sql {
        match self {
            Self::Range(after, until) => query.bind(*after).bind(*until),
            Self::Ids(ids) => bind_padded(query, ids),
        }
    }
}

/// The next jobs, all read at one moment.
#[derive(Clone, Debug)]
pub struct EvidencePage {
    /// The time of the database at the snapshot.
    pub at: Timestamp,
    /// The longest lease of the runners that were alive then, in milliseconds. Absent when none was.
    pub longest_lease_ms: Option<u32>,
    /// The longest time for which a living process may judge no departed runner after an outage of MySQL, in
    /// milliseconds. Absent when no process was alive that could.
    pub longest_pause_ms: Option<i64>,
    /// The jobs, in the order of their ids.
    pub jobs: Vec<JobEvidence>,
    /// The last id that this page covers.
    pub until: JobId,
}

impl std::fmt::Debug for Evidence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evidence").field("at", &self.at).finish_non_exhaustive()
    }
}

/// All data of one job in the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEvidence {
    /// The job.
    pub id: JobId,
    /// Its row in `jobs`. Absent when other tables have rows for a job that does not exist.
    pub row: Option<JobRow>,
    /// Its row in `owed`. Absent when the job has ended.
    pub owed: Option<OwedRow>,
    /// Its rows in the ledger, in the order of their numbers.
    pub lines: Vec<LedgerRow>,
    /// True if it has a row in `dead_letters`.
    pub dead_letter: bool,
}

/// A row of `jobs`: the columns that other tables could contradict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRow {
    /// Its kind.
    pub kind: Name,
    /// Its queue.
    pub queue: Name,
    /// Number of attempts that may be used.
    pub max_attempts: u32,
    /// True if it has a unique key.
    pub keyed: bool,
    /// The batch of jobs with which it was accepted, if there is one.
    pub batch: Option<BatchPlace>,
    /// The time when it was accepted.
    pub created_at: Timestamp,
}

/// A row of `owed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwedRow {
    /// Copy of the job's kind.
    pub kind: Name,
    /// Copy of the job's limit of attempts.
    pub max_attempts: u32,
    /// True if the row says that the job holds a row in `unique_keys`.
    pub keyed: bool,
    /// True if the job holds that row, or does not say that it does.
    pub key_held: bool,
    /// False if the job has the due time of a job that waits for its turn, and no place with an order key or no limit.
    /// False as well if it has an order key and no open place.
    pub placed: bool,
    /// True if the job is parked: it has the due time of a job that waits for a limit.
    pub parked: bool,
    /// True if the job is blocked: it has the due time of a job that waits for its parents.
    pub blocked: bool,
    /// State of the job.
    pub state: State,
    /// The time when it is due.
    pub execute_at: Timestamp,
    /// Number of executions that were started.
    pub attempt: u32,
    /// True if the row has a runner, a token, a start and a lease; false if it has none of them. Absent if it has only
    /// some.
    pub leased: Option<bool>,
    /// Start of the open attempt.
    pub started_at: Timestamp,
    /// End of its lease.
    pub lease_until: Timestamp,
    /// True if the runner that holds the open attempt is a remote worker that has left, or has no row.
    pub departed: bool,
}

/// A row of the ledger (table `attempts`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerRow {
    /// Number of the execution.
    pub number: u32,
    /// Number of attempts used up to this row.
    pub burned: u32,
    /// True if a runner executed it. False for a row that only ends the job.
    pub executed: bool,
    /// The time when the attempt was due.
    pub execute_at: Timestamp,
    /// The time of its claim.
    pub started_at: Timestamp,
    /// The time of its settlement.
    pub finished_at: Timestamp,
    /// Verdict of the attempt.
    pub verdict: Verdict,
    /// The end state of the job, if this row ended it.
    pub end: Option<State>,
    /// The time of the cancel request that the settlement found, if there was one.
    pub cancel_requested_at: Option<Timestamp>,
}

/// Number of all jobs that ever ended, as they were counted at their end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tallies {
    by_queue: BTreeMap<TallyKey, i64>,
    /// Counts of queues that did not change for longer than jobs are kept, by kind and state.
    elsewhere: BTreeMap<(Name, State), i64>,
}

impl Tallies {
    /// Return the count for this queue, kind and state. The counts of old queues are added, because they may include
    /// this queue.
    #[must_use]
    pub fn get(&self, key: &TallyKey) -> i64 {
        let elsewhere = self.elsewhere.get(&(key.kind.clone(), key.state)).copied().unwrap_or(0);
        self.by_queue.get(key).copied().unwrap_or(0) + elsewhere.max(0)
    }
}

/// A queue, kind and end state. A tally is the sum over all values of the column `lane`.
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
    /// Begin to read the tables, with the jobs that were accepted at `since` or later. Those whose ids were made
    /// earlier, such as rows that waited in an outbox, come first.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn evidence(&self, since: Option<Timestamp>) -> Result<Evidence, StoreError> {
        let opened = async {
            let mut conn = connection::open(&self.shared.options).await?;
            let at = sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut conn).await?;
            Ok::<_, sqlx::Error>((conn, at))
        };
        let (conn, at) = opened.await.map_err(|e| StoreError::from_driver("read the tables", &e))?;
        // The id before the first one that is wanted.
        let after = since.map_or(Uuid::nil(), |since| Uuid::from_u128(first_id_of(since).as_u128().saturating_sub(1)));
        let distant = since.map(|since| (since, Uuid::nil()));
        let (done, unreadable, examples) = (false, 0, Vec::new());
        Ok(Evidence { conn, at, after, distant, begins_behind: after, done, unreadable, examples })
    }
}

/// The progress of a walk through a table in the order of its primary key, page by page.
#[derive(Clone, Debug)]
pub enum Walk<Place> {
    /// The walk continues behind this row.
    From(Place),
    /// All rows were read.
    Over,
}

/// A position in the ledger of ticks: schedule, due time and number.
pub type TickPlace = (String, Timestamp, u32);

impl Evidence {
    /// The time of the database when the reading began.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// The last id before the range that is read. Of the jobs up to it, only those are read that are known to have been
    /// accepted later than their ids were made.
    #[must_use]
    pub const fn begins_behind(&self) -> JobId {
        JobId::from_uuid(self.begins_behind)
    }

    /// Number of rows that could not be read, and the errors of the first of them.
    #[must_use]
    pub fn unreadable(&self) -> (u64, &[String]) {
        (self.unreadable, &self.examples)
    }

    pub(super) fn cannot_read(&mut self, table: &str, id: &str, error: &sqlx::Error) {
        self.unreadable += 1;
        if self.examples.len() < MAX_UNREADABLE {
            self.examples.push(format!("{table} {id}: {error}"));
        }
    }

    /// Read the next jobs in the order of their ids; nothing when all have been read. A job with an unreadable row is
    /// left out, and the row is counted.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn next_page(&mut self) -> Result<Option<EvidencePage>, StoreError> {
        if self.done {
            return Ok(None);
        }
        let page = connection::within(PAGE_LIMIT, self.read_snapshot()).await;
        page.map(Some).map_err(|e| StoreError::from_driver("read evidence", &e))
    }

    async fn read_snapshot(&mut self) -> Result<EvidencePage, sqlx::Error> {
        self.begin_snapshot().await?;
        let page = self.read_page().await?;
        self.end_snapshot().await?;
        Ok(page)
    }

    /// Let all statements up to [`end_snapshot`](Self::end_snapshot) see the tables as they are now.
    pub(super) async fn begin_snapshot(&mut self) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut self.conn).await?;
        sqlx::raw_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY").execute(&mut self.conn).await?;
        Ok(())
    }

    pub(super) async fn end_snapshot(&mut self) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("ROLLBACK").execute(&mut self.conn).await?;
        Ok(())
    }

    async fn read_page(&mut self) -> Result<EvidencePage, sqlx::Error> {
        // A process gives remote workers with longer leases a minute after an outage, and others their leases, also
        // those that have not come back yet.
        let (at, longest_lease_ms, longest_pause_ms) = sqlx::query_as(
            "SELECT UTC_TIMESTAMP(6), MAX(IF(r.lives, r.lease_ms, NULL)), \
             CAST(IF(SUM(r.lives AND r.via = 'process') > 0, \
             MAX(IF(r.via = 'http', LEAST(r.lease_ms, 60000), r.lease_ms)), NULL) AS SIGNED) \
             FROM (SELECT 1 AS n) one LEFT JOIN (SELECT via, lease_ms, \
             heartbeat_at >= UTC_TIMESTAMP(6) - INTERVAL lease_ms * 1000 MICROSECOND AS lives \
             FROM runners WHERE stopped_at IS NULL) r ON TRUE",
        )
        .fetch_one(&mut self.conn)
        .await?;
        let distant = self.distant_ids().await?;
        let (asked, span) = if distant.is_empty() {
            let sql = format!("{ASKED} FROM jobs WHERE id > ? ORDER BY id LIMIT ?");
            let asked = statement(sql).bind(self.after).bind(PAGE).fetch_all(&mut self.conn).await?;
            // Rows of other tables behind the last job belong to no job. They are part of the last page.
            let until: Uuid = match asked.last() {
                Some(last) if asked.len() == PAGE as usize => last.try_get("id")?,
                _ => {
                    self.done = true;
                    Uuid::max()
                }
            };
            (asked, Span::Range(self.after, until))
        } else {
            let span = Span::Ids(distant);
            let sql = format!("{ASKED} FROM jobs FORCE INDEX (PRIMARY) WHERE {} ORDER BY id", span.of("id"));
            (span.bind(statement(sql)).fetch_all(&mut self.conn).await?, span)
        };
        let mut jobs = Jobs::default();
        for row in &asked {
            let asked = job_row(row);
            self.note(&mut jobs, "jobs", row, asked, |job, asked| job.row = Some(asked))?;
        }
        let owed = statement(format!(
            "SELECT o.id, o.kind, o.max_attempts, o.keyed, o.state, o.execute_at, o.attempt, o.started_at, o.lease_until, \
             o.runner <> '' AS has_runner, o.token <> 0x00000000000000000000000000000000 AS has_token, \
             o.started_at > '1970-01-01 00:00:00' AS has_start, o.lease_until > '1970-01-01 00:00:00' AS has_lease, \
             IF(o.keyed, EXISTS (SELECT 1 FROM jobs j LEFT JOIN unique_keys k ON k.kind = j.kind \
             AND k.unique_key = j.unique_key AND k.job_id = j.id WHERE j.id = o.id \
             AND (k.job_id IS NOT NULL OR j.options LIKE '%\"unique_until\":\"start\"%')), TRUE) AS key_held, \
             IF(o.execute_at = ?, EXISTS (SELECT 1 FROM limit_waits w WHERE w.job_id = o.id), \
             IF(o.execute_at = ?, EXISTS (SELECT 1 FROM blocked_jobs b WHERE b.job_id = o.id), \
             IF(o.execute_at = ? OR EXISTS (SELECT 1 FROM jobs j WHERE j.id = o.id AND j.options LIKE {HAS_ORDER_KEY}), \
             EXISTS (SELECT 1 FROM order_places p JOIN order_keys k ON k.order_key = p.order_key \
             WHERE p.job_id = o.id AND p.open AND p.place >= k.head), TRUE))) \
             AS placed, o.execute_at = ? AS parked, o.execute_at = ? AS blocked, \
             IF(o.state = 'executing', NOT EXISTS (SELECT 1 FROM runners r WHERE r.id = o.runner \
             AND (r.via = 'process' OR r.stopped_at IS NULL)), FALSE) AS departed \
             FROM owed o FORCE INDEX (PRIMARY) WHERE {}",
            span.of("o.id")
        ))
        .bind(parked_until().naive_utc())
        .bind(blocked_until().naive_utc())
        .bind(held_until().naive_utc())
        .bind(parked_until().naive_utc())
        .bind(blocked_until().naive_utc());
        let owed = span.bind(owed).fetch_all(&mut self.conn).await?;
        for row in &owed {
            let owed = owed_row(row);
            self.note(&mut jobs, "owed", row, owed, |job, owed| job.owed = Some(owed))?;
        }
        let lines = statement(format!(
            "SELECT job_id AS id, number, burned, runner <> '' AND expired IS NULL AS executed, execute_at, started_at, \
             finished_at, {VERDICT} AS verdict, end_state, cancel_requested_at FROM attempts FORCE INDEX (PRIMARY) \
             WHERE {} ORDER BY job_id, number",
            span.of("job_id")
        ));
        let lines = span.bind(lines).fetch_all(&mut self.conn).await?;
        for row in &lines {
            let line = ledger_row(row);
            self.note(&mut jobs, "attempts", row, line, |job, line| job.lines.push(line))?;
        }
        let dead_letters = statement(format!(
            "SELECT job_id FROM dead_letters FORCE INDEX (PRIMARY) WHERE {} ORDER BY job_id",
            span.of("job_id")
        ));
        for row in &span.bind(dead_letters).fetch_all(&mut self.conn).await? {
            jobs.entry(row.try_get("job_id")?).dead_letter = true;
        }
        let until = match span {
            Span::Range(_, until) => {
                self.after = until;
                until
            }
            Span::Ids(ids) => ids.into_iter().max().unwrap_or_default(),
        };
        let until = JobId::from_uuid(until);
        Ok(EvidencePage { at, longest_lease_ms, longest_pause_ms, jobs: jobs.readable(), until })
    }

    /// Read the next jobs that were accepted at `since` or later and have ids from before it. Nothing when all have
    /// been read.
    async fn distant_ids(&mut self) -> Result<Vec<Uuid>, sqlx::Error> {
        let Some((at, id)) = self.distant else { return Ok(Vec::new()) };
        let found = sqlx::query(
            "SELECT job_id, created_at FROM distant_ids FORCE INDEX (distant_ids_created) WHERE created_at >= ? \
             AND (created_at > ? OR job_id > ?) AND job_id <= ? ORDER BY created_at, job_id LIMIT ?",
        )
        .bind(at)
        .bind(at)
        .bind(id)
        .bind(self.begins_behind)
        .bind(DISTANT)
        .fetch_all(&mut self.conn)
        .await?;
        self.distant = match found.last() {
            Some(last) => Some((last.try_get("created_at")?, last.try_get("job_id")?)),
            None => None,
        };
        found.iter().map(|row| row.try_get("job_id")).collect()
    }

    /// Store the data of a row with its job. If the row is unreadable, count it and leave its job out.
    fn note<T>(
        &mut self,
        jobs: &mut Jobs,
        table: &str,
        row: &MySqlRow,
        read: Result<T, sqlx::Error>,
        say: impl FnOnce(&mut JobEvidence, T),
    ) -> Result<(), sqlx::Error> {
        let id: Uuid = row.try_get("id")?;
        match read {
            Ok(read) => say(jobs.entry(id), read),
            Err(error) => {
                self.cannot_read(table, &id.to_string(), &error);
                jobs.unreadable.insert(id);
            }
        }
        Ok(())
    }

    /// Check one page of unique keys behind `after`. Returns the jobs that hold a unique key although they have ended,
    /// or although their own unique key is another one.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn stray_unique_keys(
        &mut self,
        after: (String, Vec<u8>),
    ) -> Result<(Vec<JobId>, Walk<(String, Vec<u8>)>), StoreError> {
        let (kind, key) = after;
        let read = async {
            let found = sqlx::query(
                "SELECT k.kind, k.unique_key, k.job_id, \
                 k.held_until IS NULL AND (o.id IS NULL OR j.id IS NULL) AS stray \
                 FROM (SELECT kind, unique_key, job_id, held_until FROM unique_keys FORCE INDEX (PRIMARY) WHERE kind > ? \
                 OR (kind = ? AND unique_key > ?) ORDER BY kind, unique_key LIMIT ?) k \
                 LEFT JOIN owed o ON o.id = k.job_id AND o.keyed \
                 LEFT JOIN jobs j ON j.id = k.job_id AND j.kind = k.kind AND j.unique_key = k.unique_key \
                 ORDER BY k.kind, k.unique_key",
            )
            .bind(&kind)
            .bind(&kind)
            .bind(key)
            .bind(PAGE)
            .fetch_all(&mut self.conn)
            .await?;
            let mut stray = Vec::new();
            for row in &found {
                if row.try_get::<bool, _>("stray")? {
                    stray.push(JobId::from_uuid(row.try_get("job_id")?));
                }
            }
            let next = match found.last() {
                Some(last) if found.len() == PAGE as usize => {
                    Walk::From((last.try_get("kind")?, last.try_get("unique_key")?))
                }
                _ => Walk::Over,
            };
            Ok((stray, next))
        };
        connection::within(PAGE_LIMIT, read).await.map_err(|e| StoreError::from_driver("compare unique keys", &e))
    }

    /// Check one page of the ledger of ticks behind `after`. Returns the ticks that were recorded at `since` or later,
    /// name a job that does not exist, and do not say that it was removed.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn ticks_without_jobs(
        &mut self,
        since: Timestamp,
        after: TickPlace,
    ) -> Result<(Vec<(JobId, String, Timestamp)>, Walk<TickPlace>), StoreError> {
        let (schedule, due_at, number) = after;
        let read = async {
            let found = sqlx::query(
                "SELECT t.schedule, t.due_at, t.number, t.job_id, t.outcome = 'fired' AND NOT t.job_removed \
                 AND t.recorded_at >= ? AND j.id IS NULL AS lost FROM (SELECT schedule, due_at, number, job_id, \
                 outcome, job_removed, recorded_at FROM ticks FORCE INDEX (PRIMARY) WHERE schedule > ? \
                 OR (schedule = ? AND (due_at > ? OR (due_at = ? AND number > ?))) \
                 ORDER BY schedule, due_at, number LIMIT ?) t \
                 LEFT JOIN jobs j ON j.id = t.job_id ORDER BY t.schedule, t.due_at, t.number",
            )
            .bind(since)
            .bind(&schedule)
            .bind(&schedule)
            .bind(due_at)
            .bind(due_at)
            .bind(number)
            .bind(PAGE)
            .fetch_all(&mut self.conn)
            .await?;
            let mut lost = Vec::new();
            for row in &found {
                if row.try_get::<Option<bool>, _>("lost")?.unwrap_or(false) {
                    lost.push((
                        JobId::from_uuid(row.try_get("job_id")?),
                        row.try_get("schedule")?,
                        row.try_get("due_at")?,
                    ));
                }
            }
            let next = match found.last() {
                Some(last) if found.len() == PAGE as usize => {
                    Walk::From((last.try_get("schedule")?, last.try_get("due_at")?, last.try_get("number")?))
                }
                _ => Walk::Over,
            };
            Ok((lost, next))
        };
        connection::within(PAGE_LIMIT, read).await.map_err(|e| StoreError::from_driver("compare ticks with jobs", &e))
    }

    /// Check one page of replayed jobs behind `after`. Returns those whose new job does not name them as its original.
    /// A new job that was purged is not an error.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn stray_replays(&mut self, after: JobId) -> Result<(Vec<JobId>, Walk<JobId>), StoreError> {
        let read = async {
            let found = sqlx::query(
                "SELECT d.job_id, n.id IS NOT NULL AND NOT (COALESCE(REPLACE(JSON_UNQUOTE(JSON_EXTRACT(n.options, \
                 '$.replay_of')), '-', ''), '') = LOWER(HEX(d.job_id))) AS stray FROM (SELECT job_id, replayed_as \
                 FROM dead_letters FORCE INDEX (dead_letters_standing) WHERE standing = 'replayed' AND job_id > ? \
                 ORDER BY job_id LIMIT ?) d LEFT JOIN jobs n ON n.id = d.replayed_as ORDER BY d.job_id",
            )
            .bind(after.uuid())
            .bind(PAGE)
            .fetch_all(&mut self.conn)
            .await?;
            let mut stray = Vec::new();
            for row in &found {
                if row.try_get::<bool, _>("stray")? {
                    stray.push(JobId::from_uuid(row.try_get("job_id")?));
                }
            }
            let next = match found.last() {
                Some(last) if found.len() == PAGE as usize => Walk::From(JobId::from_uuid(last.try_get("job_id")?)),
                _ => Walk::Over,
            };
            Ok((stray, next))
        };
        connection::within(PAGE_LIMIT, read).await.map_err(|e| StoreError::from_driver("compare replays", &e))
    }

    /// Count the jobs of a batch, from its first to the last that was seen, and those that were removed after their
    /// end. A single statement, because the batch may be accepted or lose a job while pages are read.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn batch_now(&mut self, first: JobId, last: JobId) -> Result<(u64, u64), StoreError> {
        let read = async {
            let (jobs, removed): (i64, i64) = sqlx::query_as(
                "SELECT (SELECT COUNT(*) FROM jobs FORCE INDEX (PRIMARY) WHERE id >= ? AND id <= ? AND batch_id = ?), \
                 CAST(COALESCE((SELECT jobs FROM departures WHERE id = ?), 0) AS SIGNED)",
            )
            .bind(first.uuid())
            .bind(last.uuid())
            .bind(first.uuid())
            .bind(first.uuid())
            .fetch_one(&mut self.conn)
            .await?;
            Ok((jobs.unsigned_abs(), removed.unsigned_abs()))
        };
        connection::within(PAGE_LIMIT, read).await.map_err(|e| StoreError::from_driver("count a batch", &e))
    }

    /// Count the ended jobs that may have been retried since the reading began. Each of them was subtracted from the
    /// tallies. A retry has the time when its transaction began and becomes visible when the transaction ends, so some
    /// retries from before are counted as well.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn retries_meanwhile(&mut self) -> Result<i64, StoreError> {
        let read = sqlx::query_scalar(
            "SELECT COUNT(*) FROM audit FORCE INDEX (PRIMARY) WHERE id > ? AND at >= ? AND action = 'job.retry'",
        )
        .bind(first_id_of(self.at - MAX_CHANGE - SKEW))
        .bind(self.at - MAX_CHANGE)
        .fetch_one(&mut self.conn);
        connection::within(PAGE_LIMIT, read).await.map_err(|e| StoreError::from_driver("count retries", &e))
    }

    /// Read the number of all jobs that ever ended, as they were counted at their end.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn tallies(&mut self) -> Result<Tallies, StoreError> {
        let read = async {
            let found = sqlx::query(
                "SELECT queue, kind, state, CAST(SUM(n) AS SIGNED) AS jobs FROM tallies GROUP BY queue, kind, state",
            )
            .fetch_all(&mut self.conn)
            .await?;
            let mut tallies = Tallies::default();
            for row in &found {
                let (queue, counted): (String, i64) = (row.try_get("queue")?, row.try_get("jobs")?);
                let names = || {
                    let state = State::from_word(row.try_get("state")?).ok_or_else(|| corrupt("state"))?;
                    Ok::<_, sqlx::Error>((name(row.try_get("kind")?)?, state))
                };
                match names() {
                    Ok(key) if queue == OTHER => *tallies.elsewhere.entry(key).or_default() += counted,
                    Ok((kind, state)) => match name(&queue) {
                        Ok(queue) => {
                            tallies.by_queue.insert(TallyKey { queue, kind, state }, counted);
                        }
                        Err(error) => self.cannot_read("tallies", &queue, &error),
                    },
                    Err(error) => self.cannot_read("tallies", &queue, &error),
                }
            }
            Ok(tallies)
        };
        connection::within(PAGE_LIMIT, read).await.map_err(|e| StoreError::from_driver("read the tallies", &e))
    }
}

/// The jobs of one page.
#[derive(Default)]
struct Jobs {
    jobs: BTreeMap<Uuid, JobEvidence>,
    unreadable: BTreeSet<Uuid>,
}

impl Jobs {
    fn entry(&mut self, id: Uuid) -> &mut JobEvidence {
        self.jobs.entry(id).or_insert_with(|| JobEvidence {
            id: JobId::from_uuid(id),
            row: None,
            owed: None,
            lines: Vec::new(),
            dead_letter: false,
        })
    }

    fn readable(self) -> Vec<JobEvidence> {
        let Self { jobs, unreadable } = self;
        jobs.into_iter().filter(|(id, _)| !unreadable.contains(id)).map(|(_, job)| job).collect()
    }
}

fn job_row(row: &MySqlRow) -> Result<JobRow, sqlx::Error> {
    let (first, size): (Option<Uuid>, Option<u16>) = (row.try_get("batch_id")?, row.try_get("batch_size")?);
    Ok(JobRow {
        kind: name(row.try_get("kind")?)?,
        queue: name(row.try_get("queue")?)?,
        max_attempts: row.try_get("max_attempts")?,
        keyed: row.try_get("keyed")?,
        batch: first.zip(size).map(|(first, size)| BatchPlace { first: JobId::from_uuid(first), size }),
        created_at: row.try_get("created_at")?,
    })
}

fn owed_row(row: &MySqlRow) -> Result<OwedRow, sqlx::Error> {
    let signs: [bool; 4] =
        [row.try_get("has_runner")?, row.try_get("has_token")?, row.try_get("has_start")?, row.try_get("has_lease")?];
    Ok(OwedRow {
        kind: name(row.try_get("kind")?)?,
        max_attempts: row.try_get("max_attempts")?,
        keyed: row.try_get("keyed")?,
        key_held: row.try_get("key_held")?,
        placed: row.try_get("placed")?,
        parked: row.try_get("parked")?,
        blocked: row.try_get("blocked")?,
        state: State::from_word(row.try_get("state")?).ok_or_else(|| corrupt("state"))?,
        execute_at: row.try_get("execute_at")?,
        attempt: row.try_get("attempt")?,
        leased: signs.iter().all(|sign| *sign == signs[0]).then_some(signs[0]),
        started_at: row.try_get("started_at")?,
        lease_until: row.try_get("lease_until")?,
        departed: row.try_get("departed")?,
    })
}

fn ledger_row(row: &MySqlRow) -> Result<LedgerRow, sqlx::Error> {
    let end: Option<&str> = row.try_get("end_state")?;
    Ok(LedgerRow {
        number: row.try_get("number")?,
        burned: row.try_get("burned")?,
        executed: row.try_get("executed")?,
        execute_at: row.try_get("execute_at")?,
        started_at: row.try_get("started_at")?,
        finished_at: row.try_get("finished_at")?,
        verdict: Verdict::from_word(row.try_get("verdict")?).ok_or_else(|| corrupt("verdict"))?,
        end: end.map(|word| State::from_word(word).ok_or_else(|| corrupt("end_state"))).transpose()?,
        cancel_requested_at: row.try_get("cancel_requested_at")?,
    })
}

fn name(text: &str) -> Result<Name, sqlx::Error> {
    text.parse().map_err(|_| corrupt(format!("name {text:?}")))
}
