//! Jobs as people read them: one with its attempts, or a page of many.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::RawValue;
use sqlx::mysql::MySqlRow;
use sqlx::{MySqlConnection, Row};
use uuid::Uuid;

use super::error::corrupt;
use super::link::on_pool;
use super::shape::{pad, padded, places, statement};
use super::{Store, StoreError};
use crate::job::{Attempt, Job, JobId, JobOptions, Name, Progress, RunnerId, State, Timestamp, Verdict};

/// Rows of `jobs` that one page of a listing may look at before it says "go on from here".
const MOST_LOOKED_AT: i64 = 20_000;

/// Which jobs a listing wants.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only jobs in this state.
    pub state: Option<State>,
    /// Only jobs of this kind.
    pub kind: Option<Name>,
    /// Only jobs of this queue.
    pub queue: Option<Name>,
}

/// One page of a listing, newest first.
#[derive(Debug)]
pub struct JobPage {
    /// The jobs, without payloads and results, each with its attempts so far left out but counted.
    pub jobs: Vec<Job>,
    /// Go on with jobs older than this one; absent at the end.
    pub next: Option<JobId>,
}

const COLUMNS: &str = "j.id, j.kind, j.queue, j.priority, j.max_attempts, j.unique_key, j.options, j.execute_at, \
     j.created_at, j.state, j.finished_at, o.state, o.execute_at, o.attempt, o.spared, o.runner, o.started_at, \
     o.cancel_requested_at, o.progress";

impl Store {
    /// A job with all its attempts, the open one included.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn job(&self, id: JobId) -> Result<Option<(Job, Vec<Attempt>)>, StoreError> {
        on_pool(&self.shared.pool, "read a job", move |conn, _| {
            Box::pin(async move {
                // The three reads are one snapshot, or a settle in between could show a job with one attempt too few.
                sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut *conn).await?;
                sqlx::raw_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY").execute(&mut *conn).await?;
                let job = read_job(conn, id).await;
                sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
                job
            })
        })
        .await
    }

    /// A page of jobs, newest first, older than `before`.
    ///
    /// A page looks at a bounded number of rows. With a filter that matches little it may come back short, or empty,
    /// and still have a `next`: the caller goes on.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn list(&self, filter: Filter, before: Option<JobId>, limit: u32) -> Result<JobPage, StoreError> {
        on_pool(&self.shared.pool, "list jobs", move |conn, _| {
            let filter = filter.clone();
            Box::pin(async move { list(conn, &filter, before, limit).await })
        })
        .await
    }
}

async fn read_job(conn: &mut MySqlConnection, id: JobId) -> Result<Option<(Job, Vec<Attempt>)>, sqlx::Error> {
    let sql =
        format!("SELECT {COLUMNS}, j.payload, j.result FROM jobs j LEFT JOIN owed o ON o.id = j.id WHERE j.id = ?");
    let Some(row) = statement(sql).bind(id.uuid()).fetch_optional(&mut *conn).await? else { return Ok(None) };
    let mut job = job(&row)?;
    job.payload = Some(raw(row.try_get(19)?, "payload")?);
    job.result = row.try_get::<Option<String>, _>(20)?.map(|text| raw(text, "result")).transpose()?;
    let ledger = attempts_of(conn, &[id]).await?.remove(&id).unwrap_or_default();
    finish(&mut job, &ledger);
    let mut attempts = ledger.attempts;
    if let Some(open) = open_attempt(&row, &job)? {
        attempts.push(open);
    }
    Ok(Some((job, attempts)))
}

async fn list(
    conn: &mut MySqlConnection,
    filter: &Filter,
    before: Option<JobId>,
    limit: u32,
) -> Result<JobPage, sqlx::Error> {
    let before = before.map_or(Uuid::max(), JobId::uuid);
    let owed_state = filter.state.filter(|state| !state.is_end());
    let ended_state = filter.state.filter(|state| state.is_end());
    // An inner window bounds the rows looked at, whatever the filter matches. Unfinished states are looked up where
    // they live, so that a few waiting jobs are found behind any number of finished ones.
    let window = if owed_state.is_some() {
        "SELECT id FROM owed WHERE id < ? ORDER BY id DESC LIMIT ?"
    } else {
        "SELECT id FROM jobs WHERE id < ? ORDER BY id DESC LIMIT ?"
    };
    let mut conditions = Vec::new();
    if owed_state.is_some() {
        conditions.push("o.state = ?");
    }
    if ended_state.is_some() {
        conditions.push("j.state = ?");
    }
    if filter.kind.is_some() {
        conditions.push("j.kind = ?");
    }
    if filter.queue.is_some() {
        conditions.push("j.queue = ?");
    }
    let narrowed = !conditions.is_empty();
    let look_at = if narrowed { MOST_LOOKED_AT } else { i64::from(limit) };
    let whole = if narrowed { format!("WHERE {}", conditions.join(" AND ")) } else { String::new() };
    let sql = format!(
        "SELECT {COLUMNS} FROM ({window}) w JOIN jobs j ON j.id = w.id LEFT JOIN owed o ON o.id = j.id {whole} \
         ORDER BY j.id DESC LIMIT ?"
    );
    let mut query = statement(sql).bind(before).bind(look_at);
    if let Some(state) = owed_state.or(ended_state) {
        query = query.bind(state.as_str());
    }
    for name in [&filter.kind, &filter.queue].into_iter().flatten() {
        query = query.bind(name.as_str());
    }
    let found = query.bind(limit).fetch_all(&mut *conn).await?;
    let mut jobs: Vec<Job> = found.iter().map(job).collect::<Result<_, _>>()?;
    let full = u32::try_from(jobs.len()).is_ok_and(|count| count == limit);
    let next = if full {
        jobs.last().map(|job| job.id)
    } else if narrowed {
        // Short of the limit: either the window ended, or the table did.
        let last: Option<Uuid> = statement(format!("SELECT MIN(id) FROM ({window}) w HAVING COUNT(*) = ?"))
            .bind(before)
            .bind(look_at)
            .bind(look_at)
            .fetch_optional(&mut *conn)
            .await?
            .map(|row| row.try_get(0))
            .transpose()?
            .flatten();
        last.map(JobId::from_uuid)
    } else {
        None
    };
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    let mut ledgers = attempts_of(conn, &ids).await?;
    for job in &mut jobs {
        finish(job, &ledgers.remove(&job.id).unwrap_or_default());
    }
    Ok(JobPage { jobs, next })
}

fn raw(text: String, what: &str) -> Result<Box<RawValue>, sqlx::Error> {
    RawValue::from_string(text).map_err(|e| corrupt(format!("{what}: {e}")))
}

/// The job as far as its own two rows tell it.
fn job(row: &MySqlRow) -> Result<Job, sqlx::Error> {
    let ended: &str = row.try_get(9)?;
    let owed: Option<&str> = row.try_get(11)?;
    let state =
        State::from_word(owed.unwrap_or(ended)).ok_or_else(|| corrupt("a job that is neither owed nor ended"))?;
    let key: Option<Vec<u8>> = row.try_get(5)?;
    let options: Option<String> = row.try_get(6)?;
    let progress: Option<String> = row.try_get(18)?;
    let due: Option<Timestamp> = row.try_get(12)?;
    let (begun, spared): (Option<u32>, Option<u32>) = (row.try_get(13)?, row.try_get(14)?);
    Ok(Job {
        id: JobId::from_uuid(row.try_get(0)?),
        kind: row.try_get::<String, _>(1)?.parse().map_err(|_| corrupt("kind"))?,
        queue: row.try_get::<String, _>(2)?.parse().map_err(|_| corrupt("queue"))?,
        priority: row.try_get::<u8, _>(3)?.try_into().map_err(corrupt)?,
        state,
        payload: None,
        attempt: begun.unwrap_or(0) - spared.unwrap_or(0),
        max_attempts: row.try_get(4)?,
        unique_key: key.map(|key| String::from_utf8_lossy(&key).into_owned()),
        options: match options {
            Some(text) => serde_json::from_str(&text).map_err(|e| corrupt(format!("options: {e}")))?,
            None => JobOptions::default(),
        },
        created_at: row.try_get(8)?,
        execute_at: due.map_or_else(|| row.try_get(7), Ok)?,
        started_at: row.try_get(16)?,
        finished_at: row.try_get(10)?,
        cancel_requested_at: row.try_get(17)?,
        last_error: None,
        result: None,
        progress: match progress {
            Some(text) => serde_json::from_str::<Progress>(&text).ok(),
            None => None,
        },
    })
}

/// What only the ledger knows: the last error, and of an ended job its attempts and last times.
fn finish(job: &mut Job, ledger: &Ledger) {
    if job.state != State::Completed {
        job.last_error = ledger.attempts.iter().rev().find_map(|attempt| attempt.error.clone());
    }
    if job.state.is_end() {
        job.attempt = ledger.burned;
    }
    if let (None, Some(last)) = (job.started_at, ledger.attempts.last()) {
        job.started_at = Some(last.started_at);
        if job.state.is_end() {
            job.execute_at = last.execute_at;
        }
    }
}

fn open_attempt(row: &MySqlRow, job: &Job) -> Result<Option<Attempt>, sqlx::Error> {
    let runner: Option<String> = row.try_get(15)?;
    let (Some(runner), Some(started_at)) = (runner, row.try_get(16)?) else { return Ok(None) };
    Ok(Some(Attempt {
        number: row.try_get(13)?,
        runner: RunnerId::from_stored(runner),
        execute_at: job.execute_at,
        started_at,
        finished_at: None,
        verdict: None,
        error: None,
    }))
}

/// The ended attempts of one job, in order.
#[derive(Default)]
struct Ledger {
    /// Attempts burned so far, as the newest line says.
    burned: u32,
    attempts: Vec<Attempt>,
}

async fn attempts_of(conn: &mut MySqlConnection, ids: &[JobId]) -> Result<BTreeMap<JobId, Ledger>, sqlx::Error> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.uuid()).collect::<BTreeSet<_>>().into_iter().collect();
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let sql = format!(
        "SELECT job_id, number, runner, execute_at, started_at, finished_at, verdict, error, burned FROM attempts \
         WHERE job_id IN {} ORDER BY job_id, number",
        places(padded(ids.len()))
    );
    let mut query = statement(sql);
    for id in pad(&ids) {
        query = query.bind(id);
    }
    let mut ledger: BTreeMap<JobId, Ledger> = BTreeMap::new();
    for row in query.fetch_all(conn).await? {
        let of_job = ledger.entry(JobId::from_uuid(row.try_get(0)?)).or_default();
        of_job.burned = row.try_get(8)?;
        of_job.attempts.push(Attempt {
            number: row.try_get(1)?,
            runner: RunnerId::from_stored(row.try_get(2)?),
            execute_at: row.try_get(3)?,
            started_at: row.try_get(4)?,
            finished_at: Some(row.try_get(5)?),
            verdict: Some(Verdict::from_word(row.try_get(6)?).ok_or_else(|| corrupt("verdict"))?),
            error: row.try_get(7)?,
        });
    }
    Ok(ledger)
}
