//! Reads of jobs for people: one job with its attempts, or a page of jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use serde_json::value::RawValue;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::jobs::search::{Order, Search, SearchBudget};
use crate::rows::checkpoints::checkpoint_of;
use crate::rows::dead_letters::dead_letter;
use crate::rows::ledger::VERDICT;
use crate::rows::limits::{is_parked, waits_for_turn};
use crate::sql::batches::{bind_padded, padded_len, placeholders, statement};
use crate::sql::connection::on_pool;
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Among, Attempt, Filter, Job, JobId, JobOptions, Progress, RunnerId, State, Timestamp, Verdict};

/// Most rows that one page of a listing may look at before it returns with a position to continue from.
const MAX_LOOKED_AT: i64 = 20_000;
/// Most lines of the ledger that are read with one job, the last ones. A job that shutdowns interrupt or that operators
/// retry may have 65,000.
const MAX_LINES: u32 = 1_000;
/// Longest time of one page. A screen waits for it, and continues from where it stopped.
const PATIENCE: Duration = Duration::from_millis(200);

/// One page of a listing.
#[derive(Debug)]
pub struct JobPage {
    /// The jobs, without payloads and results. Their attempts are counted but not listed.
    pub jobs: Vec<Job>,
    /// The position to continue from: the jobs behind this one, in the order of the listing. Absent at the end.
    pub next: Option<JobId>,
    /// Number of rows that were looked at.
    pub looked_at: u64,
}

/// The columns of a job. `limit_waits` has the due time of a parked job, and no other job needs that table. The date is
/// that of `parked_until`.
const COLUMNS: &str = "j.id, j.kind, j.queue, COALESCE(o.priority, j.priority) AS priority, j.max_attempts, \
     j.unique_key, j.host, j.options, j.execute_at, j.created_at, o.state, o.execute_at AS owed_execute_at, o.attempt, \
     o.expires_at AS owed_expires_at, \
     IF(o.execute_at = '9999-12-30', (SELECT q.due_at FROM limit_waits q FORCE INDEX (PRIMARY) WHERE q.job_id = o.id), \
     NULL) AS due_in_line, o.spared, o.runner, o.started_at, o.cancel_requested_at, o.progress, \
     d.fingerprint, d.failed_at, d.standing, d.since, d.replayed_as, d.actor, d.reason";

impl Store {
    /// Read a job with its attempts, the last 1,000 that have ended and the open one.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn job(&self, id: JobId) -> Result<Option<(Job, Vec<Attempt>)>, StoreError> {
        on_pool(&self.shared.pools.reads, "read a job", move |conn, _| {
            Box::pin(async move {
                // The reads share one snapshot. Otherwise a settle between them could show the job with one attempt too
                // few.
                sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut *conn).await?;
                sqlx::raw_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY").execute(&mut *conn).await?;
                let job = read_job(conn, id).await;
                sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
                job
            })
        })
        .await
    }

    /// Read the log of an attempt, at most [`MAX_LOG_BYTES`](tickr_job::limits::MAX_LOG_BYTES). An attempt that wrote no
    /// line has none, and neither has one that has not ended.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn attempt_log(&self, id: JobId, number: u32) -> Result<Option<String>, StoreError> {
        on_pool(&self.shared.pools.reads, "read the log of an attempt", move |conn, _| {
            Box::pin(async move {
                sqlx::query_scalar("SELECT log FROM attempt_logs WHERE job_id = ? AND number = ?")
                    .bind(id.uuid())
                    .bind(number)
                    .fetch_optional(conn)
                    .await
            })
        })
        .await
    }

    /// Read a page of jobs older than `before`, newest first.
    ///
    /// A page looks at a bounded number of rows. With a filter that matches few jobs, a page may be short or empty and
    /// still have a `next`: the caller continues from there.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn list(&self, filter: Filter, before: Option<JobId>, limit: u32) -> Result<JobPage, StoreError> {
        self.list_among(filter, Among::All, before, limit).await
    }

    /// Read a page as [`list`](Self::list) does, limited to a part of all jobs.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn list_among(
        &self,
        filter: Filter,
        among: Among,
        before: Option<JobId>,
        limit: u32,
    ) -> Result<JobPage, StoreError> {
        self.list_in_order(filter, among, Order::NewestFirst, before, limit).await
    }

    /// Read a page as [`list_among`](Self::list_among) does, in another order: jobs behind `place`.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn list_in_order(
        &self,
        filter: Filter,
        among: Among,
        order: Order,
        place: Option<JobId>,
        limit: u32,
    ) -> Result<JobPage, StoreError> {
        on_pool(&self.shared.pools.reads, "list jobs", move |conn, _| {
            let filter = filter.clone();
            Box::pin(async move { list(conn, &filter, among, order, place, limit).await })
        })
        .await
    }
}

/// Read a job with several statements. The caller makes them consistent, by a snapshot or by holding the locks of the
/// job.
pub(crate) async fn read_job(conn: &mut Session<'_>, id: JobId) -> Result<Option<(Job, Vec<Attempt>)>, sqlx::Error> {
    let sql = format!(
        "SELECT {COLUMNS}, j.payload, c.content AS checkpoint, c.saved_at, f.look_at AS deferred_until FROM jobs j LEFT JOIN owed o ON o.id = j.id \
         LEFT JOIN dead_letters d ON d.job_id = j.id LEFT JOIN checkpoints c ON c.job_id = j.id \
         LEFT JOIN deferred_attempts f ON f.job_id = j.id AND f.token = o.token AND f.look_at IS NOT NULL \
         WHERE j.id = ? LIMIT 1"
    );
    let Some(row) = statement(sql).bind(id.uuid()).fetch_optional(&mut *conn).await? else { return Ok(None) };
    let ledger = ledgers_of(conn, &[id], LedgerDetail::Whole).await?.remove(&id).unwrap_or_default();
    let mut job = job(&row, &ledger)?;
    job.payload = Some(raw(row.try_get("payload")?, "payload")?);
    job.checkpoint = checkpoint_of(&row)?;
    job.deferred_until = row.try_get("deferred_until")?;
    let mut attempts = ledger.attempts;
    attempts.extend(open_attempt(&row, &job)?);
    Ok(Some((job, attempts)))
}

async fn list(
    conn: &mut Session<'_>,
    filter: &Filter,
    among: Among,
    order: Order,
    place: Option<JobId>,
    limit: u32,
) -> Result<JobPage, sqlx::Error> {
    let mut search = Search::prepare(conn, filter, order, among).await?;
    let mut jobs = Vec::new();
    let mut budget = SearchBudget::within(search.most_looked_at(MAX_LOOKED_AT), PATIENCE);
    let mut place = search.span(place.map(JobId::uuid));
    while let Some(span) = place {
        let wanted = limit as usize - jobs.len();
        let chunk = if search.is_narrow() { search.chunk(conn, span).await? } else { search.whole(span) };
        let found = search.matching(COLUMNS, &chunk, wanted as i64).fetch_all(&mut *conn).await?;
        let last: Option<Uuid> = found.last().map(|row| row.try_get("id")).transpose()?;
        read_into(conn, filter, &found, &mut jobs).await?;
        // A full page continues after its last job. Other pages continue after the rows that they looked at.
        let rest = match last.filter(|_| found.len() >= wanted) {
            Some(last) => Some(search.behind(span, last)),
            None => chunk.rest,
        };
        let goes_on = budget.may_continue(&chunk);
        if jobs.len() >= limit as usize || !goes_on {
            let looked_at = budget.looked_at.unsigned_abs().max(jobs.len() as u64);
            return Ok(JobPage { jobs, next: rest.map(|rest| JobId::from_uuid(search.place_before(rest))), looked_at });
        }
        search.widen();
        place = rest;
    }
    let looked_at = budget.looked_at.unsigned_abs().max(jobs.len() as u64);
    Ok(JobPage { jobs, next: None, looked_at })
}

/// Read the jobs of these rows of [`COLUMNS`].
async fn read_into(
    conn: &mut Session<'_>,
    filter: &Filter,
    found: &[MySqlRow],
    jobs: &mut Vec<Job>,
) -> Result<(), sqlx::Error> {
    let ids: Vec<JobId> =
        found.iter().map(|row| Ok(JobId::from_uuid(row.try_get("id")?))).collect::<Result<_, sqlx::Error>>()?;
    let ledgers = ledgers_of(conn, &ids, LedgerDetail::Listed).await?;
    let nothing = Ledger::default();
    for (row, id) in found.iter().zip(&ids) {
        let ledger = ledgers.get(id).unwrap_or(&nothing);
        if ledger.end.is_none() && row.try_get::<Option<&str>, _>("state")?.is_none() {
            // The job was purged, or ended, between the two reads.
            continue;
        }
        let job = job(row, ledger)?;
        // The job may have changed its state between the two reads.
        if filter.state.is_none_or(|state| state == job.state) {
            jobs.push(job);
        }
    }
    Ok(())
}

fn raw(text: String, what: &str) -> Result<Box<RawValue>, sqlx::Error> {
    RawValue::from_string(text).map_err(|e| corrupt(format!("{what}: {e}")))
}

/// Build the job from its row in `jobs`, its `owed` row if it is unfinished, and otherwise the last line of its ledger.
fn job(row: &MySqlRow, ledger: &Ledger) -> Result<Job, sqlx::Error> {
    let owed: Option<&str> = row.try_get("state")?;
    let state = match owed {
        Some(word) => State::from_word(word),
        None => ledger.end.as_ref().map(|end| end.state),
    };
    let state = state.ok_or_else(|| corrupt("a job that is neither unfinished nor ended"))?;
    let end = ledger.end.as_ref().filter(|_| state.is_end());
    let executing = state == State::Executing;
    let key: Option<Vec<u8>> = row.try_get("unique_key")?;
    let host: Option<Vec<u8>> = row.try_get("host")?;
    let options: Option<String> = row.try_get("options")?;
    let progress: Option<String> = row.try_get("progress")?;
    let due: Option<Timestamp> = row.try_get("owed_execute_at")?;
    let own_due: Option<Timestamp> = match due {
        // A client may have changed the due time before the job was parked.
        Some(parked) if is_parked(parked) => row.try_get("due_in_line")?,
        _ => due.filter(|due| !waits_for_turn(*due)),
    };
    let (begun, spared): (Option<u32>, Option<u32>) = (row.try_get("attempt")?, row.try_get("spared")?);
    let mut options: JobOptions = match options {
        Some(text) => JobOptions::as_far_as_readable(&text),
        None => JobOptions::default(),
    };
    if owed.is_some() {
        // An operator's retry drops the expiry, and a later request with the same unique key moves it.
        options.expires_at = row.try_get("owed_expires_at")?;
    }
    let last = ledger.attempts.last();
    let started_at: Option<Timestamp> = row.try_get("started_at")?;
    Ok(Job {
        id: JobId::from_uuid(row.try_get("id")?),
        kind: row.try_get::<String, _>("kind")?.parse().map_err(|_| corrupt("kind"))?,
        queue: row.try_get::<String, _>("queue")?.parse().map_err(|_| corrupt("queue"))?,
        priority: row.try_get::<u8, _>("priority")?.try_into().map_err(corrupt)?,
        state,
        payload: None,
        attempt: match (begun, spared) {
            (Some(begun), Some(spared)) => begun - spared,
            _ => ledger.burned,
        },
        max_attempts: row.try_get("max_attempts")?,
        unique_key: key.map(|key| String::from_utf8_lossy(&key).into_owned()),
        host: host.map(|host| String::from_utf8_lossy(&host).into_owned()),
        options,
        created_at: row.try_get("created_at")?,
        execute_at: match (own_due, last) {
            (Some(due), _) => due,
            // A job that waits for its turn in another way has the due time that was asked for.
            (None, Some(last)) if due.is_none() => last.execute_at,
            (None, _) => row.try_get("execute_at")?,
        },
        held: due.is_some_and(waits_for_turn),
        started_at: if executing {
            started_at
        } else {
            ledger.attempts.iter().rev().find_map(|attempt| attempt.started_at)
        },
        finished_at: end.map(|end| end.finished_at),
        cancel_requested_at: row.try_get("cancel_requested_at")?,
        last_error: match state {
            State::Completed => None,
            // A closing line, which no runner executed, may also have an error.
            _ => end
                .and_then(|end| end.error.clone())
                .or_else(|| ledger.attempts.iter().rev().find_map(|attempt| attempt.error.clone())),
        },
        result: end.and_then(|end| end.result.clone()),
        progress: progress.and_then(|text| serde_json::from_str::<Progress>(&text).ok()),
        checkpoint: None,
        deferred_until: None,
        dead_letter: dead_letter(row)?.filter(|_| state == State::Failed),
    })
}

fn open_attempt(row: &MySqlRow, job: &Job) -> Result<Option<Attempt>, sqlx::Error> {
    let (State::Executing, Some(started_at)) = (job.state, job.started_at) else { return Ok(None) };
    Ok(Some(Attempt {
        number: row.try_get("attempt")?,
        runner: RunnerId::from_stored(row.try_get("runner")?),
        execute_at: job.execute_at,
        started_at: Some(started_at),
        finished_at: None,
        verdict: None,
        error: None,
        late_note: None,
        exchange: None,
        log_bytes: None,
    }))
}

/// The ledger of one job.
#[derive(Default)]
struct Ledger {
    /// Number of attempts that count against `max_attempts`, from the last line.
    burned: u32,
    /// The end of the job, if the last line ended it.
    end: Option<End>,
    /// The attempts, without closing lines, which no runner executed.
    attempts: Vec<Attempt>,
}

struct End {
    state: State,
    finished_at: Timestamp,
    error: Option<String>,
    result: Option<Box<RawValue>>,
}

/// The columns and lines of a ledger that are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LedgerDetail {
    /// All columns of the last [`MAX_LINES`] lines of one job.
    Whole,
    /// All lines without the columns that no listing shows: the result, the exchange and the size of the log.
    Listed,
}

impl LedgerDetail {
    /// Build the SQL for the ledgers of so many jobs. That of a whole ledger begins with its last line.
    fn sql(self, jobs: usize) -> String {
        let (columns, logs, order) = match self {
            Self::Whole => (
                "result, a.exchange AS exchange, g.size_bytes AS log_bytes",
                "LEFT JOIN attempt_logs g FORCE INDEX (PRIMARY) ON g.job_id = a.job_id AND g.number = a.number",
                format!("a.job_id DESC, a.number DESC LIMIT {MAX_LINES}"),
            ),
            Self::Listed => {
                ("NULL AS result, NULL AS exchange, NULL AS log_bytes", "", "a.job_id, a.number".to_owned())
            }
        };
        format!(
            "SELECT a.job_id, a.number, runner, execute_at, started_at, finished_at, {VERDICT} AS verdict, error, burned, \
             end_state, late_note, {columns} \
             FROM attempts a FORCE INDEX (PRIMARY) {logs} WHERE a.job_id IN {} ORDER BY {order}",
            placeholders(padded_len(jobs))
        )
    }
}

/// Read the ledgers of these jobs, each in the order of its attempts.
async fn ledgers_of(
    conn: &mut Session<'_>,
    ids: &[JobId],
    detail: LedgerDetail,
) -> Result<BTreeMap<JobId, Ledger>, sqlx::Error> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.uuid()).collect::<BTreeSet<_>>().into_iter().collect();
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let query = bind_padded(statement(detail.sql(ids.len())), &ids);
    let mut rows = query.fetch_all(conn).await?;
    if detail == LedgerDetail::Whole {
        rows.reverse();
    }
    let mut ledgers: BTreeMap<JobId, Ledger> = BTreeMap::new();
    for row in rows {
        let ledger = ledgers.entry(JobId::from_uuid(row.try_get("job_id")?)).or_default();
        let finished_at = row.try_get("finished_at")?;
        let (end, result): (Option<&str>, Option<String>) = (row.try_get("end_state")?, row.try_get("result")?);
        let error: Option<String> = row.try_get("error")?;
        ledger.burned = row.try_get("burned")?;
        ledger.end = match end {
            None => None,
            Some(word) => Some(End {
                state: State::from_word(word).ok_or_else(|| corrupt("end_state"))?,
                finished_at,
                error: error.clone(),
                result: result.map(|text| raw(text, "result")).transpose()?,
            }),
        };
        let runner: String = row.try_get("runner")?;
        if runner.is_empty() {
            continue;
        }
        let verdict = Verdict::from_word(row.try_get("verdict")?).ok_or_else(|| corrupt("verdict"))?;
        let started_at: Timestamp = row.try_get("started_at")?;
        ledger.attempts.push(Attempt {
            number: row.try_get("number")?,
            runner: RunnerId::from_stored(runner),
            execute_at: row.try_get("execute_at")?,
            // The ledger needs a time in each line. Nothing started when the job expired.
            started_at: Some(started_at).filter(|_| verdict != Verdict::Expired),
            finished_at: Some(finished_at),
            verdict: Some(verdict),
            error,
            late_note: row.try_get("late_note")?,
            // The exchange is only information for people, so one that cannot be read is left out.
            exchange: row.try_get::<Option<String>, _>("exchange")?.and_then(|text| serde_json::from_str(&text).ok()),
            log_bytes: row.try_get::<Option<u16>, _>("log_bytes")?.map(u32::from),
        });
    }
    Ok(ledgers)
}
