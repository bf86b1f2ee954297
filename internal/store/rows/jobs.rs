//! Rows of new jobs, in `jobs` and `owed`, and the receipts of their acceptance.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use chrono::TimeDelta;
use sqlx::Row;
use uuid::Uuid;

use crate::rows::limits::{LimitKey, ToPark, park_step, parked_until};
use crate::rows::links::{NewLinks, blocked_until, link_steps};
use crate::rows::order::{Newcomer, held_until, lock_or_make, take_places};
use crate::sql::batches::{bind_padded, padded_len, placeholders, statement};
use crate::sql::clock::{StoreClock, begin, read_clock};
use crate::sql::connection::PriorRun;
use crate::sql::datetimes::Datetime;
use crate::sql::error::corrupt;
use crate::sql::script::{Script, Value};
use crate::sql::session::Session;
use tickr_job::{Due, JobId, Name, NewJob, OnFailure, Priority, Timestamp, ceil_ms, floor_ms, moment_of_id};

/// Most time between the making of an id and the acceptance of its job, before or after it. A job beyond it has a row
/// in `distant_ids`.
pub(crate) const ID_TOLERANCE: TimeDelta = TimeDelta::minutes(5);
/// Jobs within this have no such row. It is less, because the time of the acceptance may be an estimate.
const NEAR: TimeDelta = TimeDelta::minutes(4);

/// The receipt for one accepted job. The job is committed, and the receipt has the times that the store gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The job.
    pub id: JobId,
    /// Its kind, which selects the handler.
    pub kind: Name,
    /// Its queue.
    pub queue: Name,
    /// Its priority within the queue.
    pub priority: Priority,
    /// The time when it is due.
    pub execute_at: Timestamp,
    /// The time when it was accepted.
    pub created_at: Timestamp,
    /// True if it waits for its turn: a job in front of it with the same order key has not ended, its limit has no room,
    /// or a parent has not ended. It is due when its turn comes, and not before `execute_at`.
    pub held: bool,
}

/// Insert `jobs`, sorted by id, with the current time of the server. Runs in the caller's transaction, which has checked
/// their links.
pub(crate) async fn insert_owed(
    conn: &mut Session<'_>,
    jobs: &[&NewJob],
    links: &NewLinks,
    clock: &StoreClock,
    earlier: PriorRun,
) -> Result<Vec<Accepted>, sqlx::Error> {
    if let Some(accepted) = written_before(conn, jobs, earlier).await? {
        return Ok(accepted);
    }
    let now = read_clock(conn, clock).await?;
    let mut accepted: Vec<Accepted> = jobs.iter().map(|job| accepted_at(job, now)).collect();
    let pairs: Vec<(&NewJob, &Accepted)> = jobs.iter().copied().zip(&accepted).collect();
    let held = write_jobs(conn, &pairs, links).await?;
    mark_held(&mut accepted, &held);
    Ok(accepted)
}

/// Mark the receipts of the jobs that are held.
pub(crate) fn mark_held<'a>(accepted: impl IntoIterator<Item = &'a mut Accepted>, held: &BTreeSet<JobId>) {
    if !held.is_empty() {
        accepted.into_iter().for_each(|accepted| accepted.held = held.contains(&accepted.id));
    }
}

/// Read the receipts of an earlier run whose commit got no answer. The ids were made before the first run. So if they
/// exist, the lost commit was this one's own, and it wrote all of the jobs.
pub(crate) async fn written_before(
    conn: &mut Session<'_>,
    jobs: &[&NewJob],
    earlier: PriorRun,
) -> Result<Option<Vec<Accepted>>, sqlx::Error> {
    if earlier == PriorRun::Nothing {
        return Ok(None);
    }
    let found = receipts(conn, jobs).await?;
    Ok((!found.is_empty()).then_some(found))
}

/// Make the receipt of a job that is accepted now.
pub(crate) fn accepted_at(job: &NewJob, now: Timestamp) -> Accepted {
    Accepted {
        id: job.id,
        kind: job.kind.clone(),
        queue: job.queue.clone(),
        priority: job.priority,
        execute_at: due_at(job.due, now),
        created_at: now,
        held: false,
    }
}

/// Insert the rows of jobs, sorted by id, with the times in their receipts. Jobs with an order key take their places in
/// this order; those that are held or blocked are returned. Runs in the caller's transaction, which has checked their
/// links.
pub(crate) async fn write_jobs(
    conn: &mut Session<'_>,
    pairs: &[(&NewJob, &Accepted)],
    links: &NewLinks,
) -> Result<BTreeSet<JobId>, sqlx::Error> {
    let mut held = take_places_of(conn, pairs).await?;
    let rows: Vec<JobRow<'_>> = pairs.iter().map(|(job, accepted)| JobRow::at(job, accepted)).collect();
    let options = options_of(&rows)?;
    let mut script = script_about(&rows);
    let parked = BTreeMap::new();
    insert_into(&mut script, &rows, &options, &Turns { held: &held, parked: &parked, links });
    script.run(conn).await?;
    held.extend(pairs.iter().map(|(job, _)| job.id).filter(|id| links.is_blocked(*id)));
    Ok(held)
}

/// Give each of these new jobs that has an order key its place, and mark the receipts of those that are held. `pairs`
/// is in the order in which the jobs take their places.
async fn take_places_of(
    conn: &mut Session<'_>,
    pairs: &[(&NewJob, &Accepted)],
) -> Result<BTreeSet<JobId>, sqlx::Error> {
    let newcomers: Vec<Newcomer<'_>> = pairs
        .iter()
        .filter_map(|(job, accepted)| {
            let order = job.options.order.as_ref()?;
            Some(Newcomer {
                id: job.id.uuid(),
                key: order.key.as_bytes(),
                due_at: accepted.execute_at,
                blocks: order.on_failure == OnFailure::Block,
                instead_of: job.options.replay_of.map(JobId::uuid),
            })
        })
        .collect();
    if newcomers.is_empty() {
        return Ok(BTreeSet::new());
    }
    lock_or_make(conn, &newcomers.iter().map(|new| new.key).collect()).await?;
    take_places(conn, &newcomers).await
}

/// Insert `jobs`, sorted by id and without order keys and links, in a transaction of their own, and return their receipts. Those
/// in `parked` wait for a limit.
///
/// The time of the server is the time of their acceptance. When all of them are due at once and there are few of them,
/// MySQL takes the time itself, in the request that writes and commits them. Otherwise the time is read first, because
/// due times follow from it.
pub(crate) async fn commit_jobs(
    conn: &mut Session<'_>,
    jobs: &[&NewJob],
    clock: &StoreClock,
    parked: &BTreeMap<JobId, LimitKey>,
) -> Result<Vec<Accepted>, sqlx::Error> {
    let turns = Turns { held: &BTreeSet::new(), parked, links: &NewLinks::default() };
    let receipts_at = |now| {
        let mut accepted: Vec<Accepted> = jobs.iter().map(|job| accepted_at(job, now)).collect();
        accepted.iter_mut().for_each(|accepted| accepted.held = parked.contains_key(&accepted.id));
        accepted
    };
    let about_now = clock.now();
    let due_now: Vec<JobRow<'_>> = jobs.iter().map(|job| JobRow::due_now(job, about_now)).collect();
    let options = options_of(&due_now)?;
    let mut script = script_about(&due_now);
    // An expiry follows from the time of the acceptance, too.
    let at_once = |job: &&NewJob| job.due == Due::Now && job.expires.is_none();
    if script.is_one_request() && jobs.iter().all(at_once) {
        script.push("BEGIN", Vec::new());
        for sql in SET_NOW {
            script.push(sql, Vec::new());
        }
        insert_into(&mut script, &due_now, &options, &turns);
        script.push("COMMIT", Vec::new());
        let sent = Instant::now();
        let done = script.run(conn).await?;
        let row = done.iter().flat_map(|step| &step.rows).next().ok_or_else(|| corrupt("no time of the server"))?;
        let now = row.try_get::<Datetime, _>(0)?.0;
        clock.sample(sent, Instant::now(), now);
        return Ok(receipts_at(now));
    }
    let now = begin(conn, clock).await?;
    let accepted = receipts_at(now);
    let rows: Vec<JobRow<'_>> = jobs.iter().zip(&accepted).map(|(job, accepted)| JobRow::at(job, accepted)).collect();
    let options = options_of(&rows)?;
    let mut script = script_about(&rows);
    insert_into(&mut script, &rows, &options, &turns);
    script.push("COMMIT", Vec::new());
    script.run(conn).await?;
    Ok(accepted)
}

/// Variables of the session with the current time of the server and with the due time of a job that is due at once:
/// the same time in whole milliseconds, as [`due_at`] rounds it.
const NOW: Value<'static> = Value::Expression("@now");
const DUE_NOW: Value<'static> = Value::Expression("@due");
const SET_NOW: [&str; 3] = [
    "SET @now = UTC_TIMESTAMP(6)",
    "SET @due = @now - INTERVAL MICROSECOND(@now) % 1000 MICROSECOND",
    "SELECT CAST(@now AS DATETIME(6))",
];

/// The rows of one new job.
struct JobRow<'a> {
    job: &'a NewJob,
    execute_at: Value<'a>,
    created_at: Value<'a>,
    expires_at: Option<Timestamp>,
    /// The id was made long before or after the acceptance.
    is_distant: bool,
}

impl<'a> JobRow<'a> {
    fn at(job: &'a NewJob, accepted: &Accepted) -> Self {
        Self {
            job,
            execute_at: accepted.execute_at.into(),
            created_at: accepted.created_at.into(),
            expires_at: job.expires_at(accepted.created_at),
            is_distant: is_distant(job.id, accepted.created_at),
        }
    }

    /// Make the rows of a job that is due at once and does not expire. MySQL takes the time.
    fn due_now(job: &'a NewJob, about_now: Timestamp) -> Self {
        let is_distant = is_distant(job.id, about_now);
        Self { job, execute_at: DUE_NOW, created_at: NOW, expires_at: None, is_distant }
    }

    fn bytes(&self) -> usize {
        400 + self.job.payload.get().len()
    }
}

fn is_distant(id: JobId, accepted: Timestamp) -> bool {
    moment_of_id(id.uuid()).is_none_or(|made| (made - accepted).abs() > NEAR)
}

/// Return the options of each job as JSON text, if it has any.
fn options_of(rows: &[JobRow<'_>]) -> Result<Vec<Option<String>>, sqlx::Error> {
    rows.iter().map(options_text).collect()
}

fn script_about<'a>(rows: &[JobRow<'_>]) -> Script<'a> {
    Script::about(rows.len(), rows.iter().map(JobRow::bytes).sum())
}

/// The new jobs that wait for their turns: for their order, for a limit, or for their parents.
struct Turns<'a> {
    held: &'a BTreeSet<JobId>,
    parked: &'a BTreeMap<JobId, LimitKey>,
    links: &'a NewLinks,
}

/// Add the statements that write these jobs. `options` has the text of the options of each job.
fn insert_into<'a>(script: &mut Script<'a>, rows: &[JobRow<'a>], options: &'a [Option<String>], turns: &Turns<'a>) {
    let asked = [
        "INSERT INTO jobs (id, kind, queue, priority, max_attempts, unique_key, options, payload, execute_at, created_at, \
         batch_id, batch_size, host) VALUES",
        "(?,?,?,?,?,?,?,?,?,?,?,?,?)",
        "",
    ];
    let with_options: Vec<_> = rows.iter().zip(options).collect();
    script.insert(
        asked,
        &with_options,
        |(row, _)| row.bytes(),
        |&(row, options), values| {
            let job = row.job;
            values.extend([
                Value::from(job.id.uuid()),
                job.kind.as_str().into(),
                job.queue.as_str().into(),
                job.priority.level().into(),
                job.max_attempts.into(),
                job.unique_key.as_ref().map(String::as_bytes).into(),
                options.as_deref().into(),
                job.payload.get().into(),
                row.execute_at,
                row.created_at,
                job.batch.map(|batch| batch.first.uuid()).into(),
                job.batch.map(|batch| batch.size).into(),
                job.host.as_ref().map(String::as_bytes).into(),
            ]);
        },
    );
    let rarer = rows.iter().any(|row| row.expires_at.is_some() || turns.links.bits_of(row.job) != 0);
    let owed = if rarer {
        [
            "INSERT INTO owed (id, kind, queue, priority, max_attempts, keyed, state, execute_at, expires_at, links) VALUES",
            "(?,?,?,?,?,?,'waiting',?,?,?)",
            "",
        ]
    } else {
        [
            "INSERT INTO owed (id, kind, queue, priority, max_attempts, keyed, state, execute_at) VALUES",
            "(?,?,?,?,?,?,'waiting',?)",
            "",
        ]
    };
    script.insert(
        owed,
        rows,
        |_| 200,
        |row, values| {
            let job = row.job;
            values.extend([
                Value::from(job.id.uuid()),
                job.kind.as_str().into(),
                job.queue.as_str().into(),
                job.priority.level().into(),
                job.max_attempts.into(),
                job.unique_key.is_some().into(),
                if turns.links.is_blocked(job.id) {
                    blocked_until().into()
                } else if turns.held.contains(&job.id) {
                    held_until().into()
                } else if turns.parked.contains_key(&job.id) {
                    parked_until().into()
                } else {
                    row.execute_at
                },
            ]);
            if rarer {
                values.extend([Value::from(row.expires_at), turns.links.bits_of(job).into()]);
            }
        },
    );
    let parked: Vec<ToPark<'a>> = rows
        .iter()
        .filter_map(|row| {
            let key = turns.parked.get(&row.job.id)?;
            Some(ToPark { id: row.job.id.uuid(), key, queue: row.job.queue.as_str(), due_at: row.execute_at })
        })
        .collect();
    if !parked.is_empty() {
        park_step(script, &parked);
    }
    let linked: Vec<(&NewJob, Value<'a>)> = rows.iter().map(|row| (row.job, row.execute_at)).collect();
    link_steps(script, turns.links, &linked);
    // One more statement each, for the jobs that expire, that have distant ids, limit keys or tags.
    let expiries: Vec<(Uuid, Timestamp)> =
        rows.iter().filter_map(|row| Some((row.job.id.uuid(), row.expires_at?))).collect();
    if !expiries.is_empty() {
        let insert = ["INSERT INTO job_expiries (job_id, look_at) VALUES", "(?,?)", ""];
        script.insert(insert, &expiries, |_| 60, |&(id, at), values| values.extend([Value::from(id), at.into()]));
    }
    let distant: Vec<(Uuid, Value<'a>)> =
        rows.iter().filter(|row| row.is_distant).map(|row| (row.job.id.uuid(), row.created_at)).collect();
    if !distant.is_empty() {
        // An older binary that removed a former job with this id has left the row.
        let again = "ON DUPLICATE KEY UPDATE created_at = VALUES(created_at)";
        let insert = ["INSERT INTO distant_ids (job_id, created_at) VALUES", "(?,?)", again];
        script.insert(insert, &distant, |_| 60, |&(id, at), values| values.extend([Value::from(id), at]));
    }
    let limited: Vec<(Uuid, &str)> =
        rows.iter().filter_map(|row| Some((row.job.id.uuid(), row.job.options.limit_key.as_deref()?))).collect();
    if !limited.is_empty() {
        let keys = ["INSERT INTO job_limit_keys (job_id, limit_key) VALUES", "(?,?)", ""];
        script.insert(
            keys,
            &limited,
            |_| 300,
            |&(id, key), values| values.extend([Value::from(id), Value::from(key.as_bytes())]),
        );
    }
    let tags: Vec<(&str, Uuid)> =
        rows.iter().flat_map(|row| row.job.options.tags.iter().map(|tag| (tag.as_str(), row.job.id.uuid()))).collect();
    if !tags.is_empty() {
        let tagged = ["INSERT INTO job_tags (tag, job_id) VALUES", "(?,?)", ""];
        script.insert(tagged, &tags, |_| 100, |&(tag, id), values| values.extend([Value::from(tag), id.into()]));
    }
}

fn options_text(row: &JobRow<'_>) -> Result<Option<String>, sqlx::Error> {
    let mut options = Cow::Borrowed(&row.job.options);
    if row.expires_at.is_some() {
        options.to_mut().expires_at = row.expires_at;
    }
    if options.is_default() {
        return Ok(None);
    }
    serde_json::to_string(&options).map(Some).map_err(|e| sqlx::Error::Encode(Box::new(e)))
}

/// Return the due time of a job by the clock of the database: in whole milliseconds and never earlier than requested. A
/// requested time in the past becomes now.
pub(crate) fn due_at(due: Due, now: Timestamp) -> Timestamp {
    match due {
        // Rounded down: the job is due already, and must not wait for the rest of the millisecond.
        Due::Now => floor_ms(now),
        Due::After(delay) => ceil_ms(now + TimeDelta::from_std(delay).unwrap_or(TimeDelta::zero())),
        Due::At(moment) => ceil_ms(moment).max(floor_ms(now)),
    }
}

pub(crate) async fn receipts(conn: &mut Session<'_>, jobs: &[&NewJob]) -> Result<Vec<Accepted>, sqlx::Error> {
    let ids: Vec<Uuid> = jobs.iter().map(|job| job.id.uuid()).collect();
    let sql = format!(
        "SELECT j.id, j.queue, j.priority, j.execute_at, j.created_at, j.kind, COALESCE(o.execute_at >= ?, FALSE) AS held \
         FROM jobs j FORCE INDEX (PRIMARY) LEFT JOIN owed o ON o.id = j.id WHERE j.id IN {} ORDER BY j.id",
        placeholders(padded_len(ids.len()))
    );
    let query = bind_padded(statement(sql).bind(parked_until().naive_utc()), &ids);
    let found = query.fetch_all(conn).await?;
    found
        .iter()
        .map(|row| {
            Ok(Accepted {
                id: JobId::from_uuid(row.try_get("id")?),
                kind: row.try_get::<String, _>("kind")?.parse().map_err(|_| corrupt("kind"))?,
                queue: row.try_get::<String, _>("queue")?.parse().map_err(|_| corrupt("queue"))?,
                priority: row.try_get::<u8, _>("priority")?.try_into().map_err(corrupt)?,
                execute_at: row.try_get("execute_at")?,
                created_at: row.try_get("created_at")?,
                held: row.try_get("held")?,
            })
        })
        .collect()
}

/// Return the receipts, which are sorted by id, in the order of their jobs.
pub(crate) fn in_order_of(jobs: &[NewJob], sorted: &[Accepted]) -> Result<Vec<Accepted>, sqlx::Error> {
    let receipt = |job: &NewJob| {
        let at = sorted.binary_search_by_key(&job.id, |a| a.id).map_err(|_| corrupt("receipt is missing"))?;
        Ok(sorted[at].clone())
    };
    jobs.iter().map(receipt).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use chrono::DateTime;

    use super::*;

    #[test]
    fn due_times_are_never_early_and_never_in_the_past() {
        let now = DateTime::from_timestamp_micros(10_000_700).unwrap();
        let ms = |ms| DateTime::from_timestamp_millis(ms).unwrap();
        assert_eq!(due_at(Due::Now, now), ms(10_000));
        assert_eq!(due_at(Due::After(Duration::from_millis(5)), now), ms(10_006));
        assert_eq!(due_at(Due::At(ms(11_000)), now), ms(11_000));
        assert_eq!(due_at(Due::At(ms(11_000) + TimeDelta::microseconds(1)), now), ms(11_001));
        assert_eq!(due_at(Due::At(ms(3)), now), ms(10_000));
    }
}
