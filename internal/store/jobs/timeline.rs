//! The facts of which the timeline of a job is made: its attempts, the times for which it was parked, and the pauses of
//! its queue from the audit.

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::audit::reason_in;
use crate::rows::ledger::VERDICT;
use crate::rows::limits::waits_for_turn;
use crate::sql::batches::statement;
use crate::sql::connection::on_pool;
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{
    JobId, JobOptions, LimitHold, Name, QueuePause, State, TimedAttempt, TimelineFacts, Timestamp, Verdict, first_id_of,
};

/// Most lines of the ledger in one timeline, from the first on.
const MAX_LINES: u32 = 1_000;
/// Most changes of the pause of a queue that are read, the newest ones.
const MAX_PAUSES: u32 = 200;

impl Store {
    /// Read the facts of a job's timeline. Returns nothing if there is no such job.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn timeline_of(&self, id: JobId) -> Result<Option<TimelineFacts>, StoreError> {
        on_pool(&self.shared.pools.reads, "read the timeline of a job", move |conn, _| {
            Box::pin(async move {
                // One snapshot, as for the job itself: an attempt that ends between two reads would be missing.
                sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut *conn).await?;
                sqlx::raw_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY").execute(&mut *conn).await?;
                let facts = facts(conn, id.uuid()).await;
                sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
                facts
            })
        })
        .await
    }
}

async fn facts(conn: &mut Session<'_>, id: Uuid) -> Result<Option<TimelineFacts>, sqlx::Error> {
    let sql = "SELECT UTC_TIMESTAMP(6) AS now, j.queue, j.options, j.created_at, j.execute_at, o.state, \
               o.execute_at AS owed_due, o.attempt, o.started_at, EXISTS (SELECT 1 FROM order_places p \
               WHERE p.job_id = j.id) AS has_order_key FROM jobs j LEFT JOIN owed o ON o.id = j.id WHERE j.id = ?";
    let Some(row) = sqlx::query(sql).bind(id).fetch_optional(&mut *conn).await? else { return Ok(None) };
    let (now, created_at): (Timestamp, Timestamp) = (row.try_get("now")?, row.try_get("created_at")?);
    let mut attempts = attempts(conn, id).await?;
    let owed = row.try_get::<Option<&str>, _>("state")?;
    let end = match owed {
        Some(_) => None,
        None => end(conn, id).await?,
    };
    let state = owed.map_or_else(|| end.map(|(state, _)| state), State::from_word);
    let Some(state) = state else { return Ok(None) };
    let due = row.try_get::<Option<Timestamp>, _>("owed_due")?.filter(|due| !waits_for_turn(*due));
    if state == State::Executing {
        attempts.push(TimedAttempt {
            number: row.try_get("attempt")?,
            ran: true,
            due_at: due,
            started_at: row.try_get("started_at")?,
            finished_at: None,
            verdict: None,
            end: None,
        });
    }
    let queue: Name = row.try_get::<String, _>("queue")?.parse().map_err(|_| corrupt("queue"))?;
    let options = row.try_get::<Option<String>, _>("options")?;
    let options = options.map_or_else(JobOptions::default, |text| JobOptions::as_far_as_readable(&text));
    let next = row.try_get::<Option<u32>, _>("attempt")?.map(|attempt| attempt + 1);
    Ok(Some(TimelineFacts {
        created_at,
        due_at: row.try_get("execute_at")?,
        state,
        ended_at: end.map(|(_, at)| at),
        next_due: due.filter(|_| state != State::Executing),
        has_parents: !options.after.is_empty(),
        has_order_key: row.try_get("has_order_key")?,
        attempts,
        holds: holds(conn, id, next).await?,
        pauses: pauses(conn, &queue, created_at).await?,
        now,
    }))
}

/// Read the end of a job from the last line of its ledger. The timeline may leave that line out.
async fn end(conn: &mut Session<'_>, id: Uuid) -> Result<Option<(State, Timestamp)>, sqlx::Error> {
    let sql = "SELECT end_state, finished_at FROM attempts FORCE INDEX (PRIMARY) WHERE job_id = ? \
               ORDER BY number DESC LIMIT 1";
    let Some(row) = sqlx::query(sql).bind(id).fetch_optional(conn).await? else { return Ok(None) };
    let state = row.try_get::<Option<&str>, _>("end_state")?.and_then(State::from_word);
    Ok(state.zip(row.try_get("finished_at")?))
}

async fn attempts(conn: &mut Session<'_>, id: Uuid) -> Result<Vec<TimedAttempt>, sqlx::Error> {
    let sql = format!(
        "SELECT number, runner, execute_at, started_at, finished_at, {VERDICT} AS verdict, end_state FROM attempts \
         FORCE INDEX (PRIMARY) WHERE job_id = ? ORDER BY number LIMIT ?"
    );
    let attempt = |row: &MySqlRow| {
        let (runner, verdict): (&str, &str) = (row.try_get("runner")?, row.try_get("verdict")?);
        Ok(TimedAttempt {
            number: row.try_get("number")?,
            ran: !runner.is_empty() && verdict != Verdict::Expired.as_str(),
            due_at: Some(row.try_get::<Timestamp, _>("execute_at")?).filter(|due| !waits_for_turn(*due)),
            started_at: row.try_get("started_at")?,
            finished_at: Some(row.try_get("finished_at")?),
            verdict: Some(Verdict::from_word(verdict).ok_or_else(|| corrupt("verdict"))?),
            end: row.try_get::<Option<&str>, _>("end_state")?.and_then(State::from_word),
        })
    };
    statement(sql).bind(id).bind(MAX_LINES).fetch_all(conn).await?.iter().map(attempt).collect()
}

/// Read the times for which a job was parked. `next` is the number of its next attempt.
async fn holds(conn: &mut Session<'_>, id: Uuid, next: Option<u32>) -> Result<Vec<LimitHold>, sqlx::Error> {
    let sql = "SELECT attempt, limit_name, due_at, parked_at, released_at FROM limit_holds WHERE job_id = ? \
               ORDER BY attempt LIMIT ?";
    let hold = |row: &MySqlRow| {
        Ok(LimitHold {
            attempt: row.try_get("attempt")?,
            limit: row.try_get("limit_name")?,
            due_at: row.try_get("due_at")?,
            from: row.try_get("parked_at")?,
            to: Some(row.try_get("released_at")?),
        })
    };
    let found = sqlx::query(sql).bind(id).bind(MAX_LINES).fetch_all(&mut *conn).await?;
    let mut holds: Vec<LimitHold> = found.iter().map(hold).collect::<Result<_, sqlx::Error>>()?;
    let sql = "SELECT limit_name, due_at, COALESCE(parked_at, due_at) AS since FROM limit_waits WHERE job_id = ?";
    if let (Some(row), Some(attempt)) = (sqlx::query(sql).bind(id).fetch_optional(conn).await?, next) {
        holds.push(LimitHold {
            attempt,
            limit: row.try_get("limit_name")?,
            due_at: row.try_get("due_at")?,
            from: row.try_get("since")?,
            to: None,
        });
    }
    Ok(holds)
}

/// Read the pauses of a queue that lasted beyond `since`, as far as the audit and the queue itself know them.
async fn pauses(conn: &mut Session<'_>, queue: &Name, since: Timestamp) -> Result<Vec<QueuePause>, sqlx::Error> {
    let columns = "id, at, actor, action, detail FROM audit FORCE INDEX (audit_target) WHERE target = ? \
                   AND action IN ('queue.pause', 'queue.resume')";
    let newest = format!("SELECT {columns} AND id >= ? ORDER BY id DESC LIMIT ?");
    // The ids are made by the hosts of runners, whose clocks may differ, so the times decide below.
    let from = first_id_of(since - chrono::TimeDelta::minutes(5));
    let mut acts = statement(newest).bind(queue.as_str()).bind(from).bind(MAX_PAUSES).fetch_all(&mut *conn).await?;
    let before = format!("SELECT {columns} AND id < ? ORDER BY id DESC LIMIT 1");
    acts.extend(statement(before).bind(queue.as_str()).bind(from).fetch_optional(&mut *conn).await?);
    let mut pauses: Vec<QueuePause> = Vec::new();
    for row in acts.iter().rev() {
        let (at, action): (Timestamp, &str) = (row.try_get("at")?, row.try_get("action")?);
        let open = pauses.last_mut().filter(|pause| pause.to.is_none());
        match (action, open) {
            ("queue.resume", Some(pause)) => pause.to = Some(at),
            // A second pause with another reason does not end the first one.
            ("queue.pause", Some(_)) => {}
            ("queue.pause", None) => pauses.push(QueuePause {
                from: at,
                to: None,
                by: row.try_get("actor")?,
                reason: reason_in(row.try_get("detail")?),
            }),
            _ => {}
        }
    }
    // The queue itself knows its present pause, also when the audit has been purged.
    let sql = "SELECT paused_at, paused_by, pause_reason FROM queues WHERE name = ?";
    let now = sqlx::query(sql).bind(queue.as_str()).fetch_optional(conn).await?;
    let paused_at = now.as_ref().map(|row| row.try_get::<Option<Timestamp>, _>("paused_at")).transpose()?.flatten();
    let open = pauses.last().is_some_and(|pause| pause.to.is_none());
    match (paused_at, now) {
        (Some(from), Some(row)) if !open => pauses.push(QueuePause {
            from,
            to: None,
            by: row.try_get::<Option<String>, _>("paused_by")?.unwrap_or_default(),
            reason: row.try_get("pause_reason")?,
        }),
        // Without the record of a resume, a pause that is over cannot be placed.
        (None, _) if open => drop(pauses.pop()),
        _ => {}
    }
    pauses.retain(|pause| pause.to.is_none_or(|to| to > since));
    Ok(pauses)
}
