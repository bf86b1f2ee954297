//! Accepting jobs: rows in `jobs` and `owed`, in one transaction.

use std::sync::Arc;
use std::time::Instant;

use chrono::TimeDelta;
use sqlx::{Connection, MySqlConnection, Row};
use uuid::Uuid;

use super::clock::StoreClock;
use super::error::{Fault, corrupt, fault};
use super::group_commit::Batch;
use super::link::{Earlier, Step};
use super::shape::{BYTES_PER_ROW, groups, groups_by_bytes, pad, padded, places, rows, statement};
use crate::job::{Due, JobId, Name, NewJob, Priority, Timestamp, ceil_ms, floor_ms};

/// The store's receipt for one accepted job: committed, with the times the store gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The job.
    pub id: JobId,
    /// The line it waits in.
    pub queue: Name,
    /// Urgency within the queue.
    pub priority: Priority,
    /// When it is due.
    pub execute_at: Timestamp,
    /// When it was accepted.
    pub created_at: Timestamp,
}

/// What became of jobs some of which have unique keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keyed {
    /// All accepted: no other unfinished job had any of the keys.
    Accepted(Vec<Accepted>),
    /// Nothing was written: these jobs, by their place, have keys that these unfinished jobs hold.
    Taken(Vec<(usize, JobId)>),
}

/// The group commit of inserts. One item is one caller's jobs, all or nothing.
pub(super) struct Inserts {
    pub(super) clock: Arc<StoreClock>,
}

impl Batch for Inserts {
    type Item = Vec<NewJob>;
    type Reply = Vec<Accepted>;
    type Mark = ();
    const ATTEMPTED: &'static str = "insert jobs";
    const FULL: usize = 1_000;

    fn weight(item: &Vec<NewJob>) -> usize {
        item.iter().map(|job| 1 + job.payload.get().len() / BYTES_PER_ROW).sum()
    }

    fn mark(&self) {}

    fn write<'c>(
        &'c self,
        conn: &'c mut MySqlConnection,
        items: &'c [Vec<NewJob>],
        (): (),
        earlier: Earlier,
    ) -> Step<'c, Vec<Vec<Accepted>>> {
        Box::pin(async move {
            let mut jobs: Vec<&NewJob> = items.iter().flatten().collect();
            jobs.sort_unstable_by_key(|job| job.id);
            let mut tx = conn.begin().await?;
            let accepted = insert_owed(&mut tx, &jobs, &self.clock, earlier).await?;
            tx.commit().await?;
            items.iter().map(|jobs| in_order_of(jobs, &accepted)).collect()
        })
    }
}

/// Write `jobs`, sorted by id, as accepted now. Within the caller's transaction.
pub(super) async fn insert_owed(
    conn: &mut MySqlConnection,
    jobs: &[&NewJob],
    clock: &StoreClock,
    earlier: Earlier,
) -> Result<Vec<Accepted>, sqlx::Error> {
    if earlier == Earlier::MayHaveCommitted {
        // The ids were made before the first run: if they are there, our own lost commit wrote them, all of them.
        let found = receipts(conn, jobs).await?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    let now = read_clock(conn, clock).await?;
    let accepted: Vec<Accepted> = jobs
        .iter()
        .map(|job| Accepted {
            id: job.id,
            queue: job.queue.clone(),
            priority: job.priority,
            execute_at: due_at(job.due, now),
            created_at: now,
        })
        .collect();
    let pairs: Vec<(&NewJob, &Accepted)> = jobs.iter().copied().zip(&accepted).collect();
    let bytes = |(job, _): &(&NewJob, &Accepted)| 400 + job.payload.get().len();
    for group in groups_by_bytes(&pairs, bytes) {
        let sql = format!(
            "INSERT INTO jobs (id, kind, queue, priority, max_attempts, unique_key, options, payload, execute_at, created_at) \
             VALUES {}",
            rows(&places(10), group.len())
        );
        let mut query = statement(sql);
        for (job, accepted) in group {
            query = query
                .bind(job.id.uuid())
                .bind(job.kind.as_str())
                .bind(job.queue.as_str())
                .bind(job.priority.level())
                .bind(job.max_attempts)
                .bind(job.unique_key.as_ref().map(String::as_bytes))
                .bind(options_text(job)?)
                .bind(job.payload.get())
                .bind(accepted.execute_at)
                .bind(accepted.created_at);
        }
        query.execute(&mut *conn).await?;
    }
    for group in groups(&pairs) {
        let sql = format!(
            "INSERT INTO owed (id, kind, queue, priority, max_attempts, keyed, state, execute_at) VALUES {}",
            rows("(?,?,?,?,?,?,'waiting',?)", group.len())
        );
        let mut query = statement(sql);
        for (job, accepted) in group {
            query = query
                .bind(job.id.uuid())
                .bind(job.kind.as_str())
                .bind(job.queue.as_str())
                .bind(job.priority.level())
                .bind(job.max_attempts)
                .bind(job.unique_key.is_some())
                .bind(accepted.execute_at);
        }
        query.execute(&mut *conn).await?;
    }
    Ok(accepted)
}

fn options_text(job: &NewJob) -> Result<Option<String>, sqlx::Error> {
    if job.options.is_default() {
        return Ok(None);
    }
    serde_json::to_string(&job.options).map(Some).map_err(|e| sqlx::Error::Encode(Box::new(e)))
}

/// The due time of a wish, by the store's clock: never before it, in whole milliseconds.
fn due_at(due: Due, now: Timestamp) -> Timestamp {
    match due {
        // Cut, not raised: what is due now is due already, and must not be early by the rest of a millisecond.
        Due::Now => floor_ms(now),
        Due::After(delay) => ceil_ms(now + TimeDelta::from_std(delay).unwrap_or(TimeDelta::zero())),
        Due::At(moment) => ceil_ms(moment).max(floor_ms(now)),
    }
}

/// Read the server's clock and let the estimate follow it.
pub(super) async fn read_clock(conn: &mut MySqlConnection, clock: &StoreClock) -> Result<Timestamp, sqlx::Error> {
    let sent = Instant::now();
    let now: Timestamp = sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(conn).await?;
    clock.sample(sent, Instant::now(), now);
    Ok(now)
}

async fn receipts(conn: &mut MySqlConnection, jobs: &[&NewJob]) -> Result<Vec<Accepted>, sqlx::Error> {
    let ids: Vec<Uuid> = jobs.iter().map(|job| job.id.uuid()).collect();
    let sql = format!(
        "SELECT id, queue, priority, execute_at, created_at FROM jobs WHERE id IN {} ORDER BY id",
        places(padded(ids.len()))
    );
    let mut query = statement(sql);
    for id in pad(&ids) {
        query = query.bind(id);
    }
    let found = query.fetch_all(conn).await?;
    found
        .iter()
        .map(|row| {
            Ok(Accepted {
                id: JobId::from_uuid(row.try_get(0)?),
                queue: row.try_get::<String, _>(1)?.parse().map_err(|_| corrupt("queue"))?,
                priority: row.try_get::<u8, _>(2)?.try_into().map_err(corrupt)?,
                execute_at: row.try_get(3)?,
                created_at: row.try_get(4)?,
            })
        })
        .collect()
}

/// Write jobs some of which have unique keys, all or none.
pub(super) fn insert_keyed(
    conn: &mut MySqlConnection,
    jobs: Arc<Vec<NewJob>>,
    clock: Arc<StoreClock>,
    earlier: Earlier,
) -> Step<'_, Keyed> {
    Box::pin(async move {
        let mut by_id: Vec<&NewJob> = jobs.iter().collect();
        by_id.sort_unstable_by_key(|job| job.id);
        if earlier == Earlier::MayHaveCommitted {
            let found = receipts(conn, &by_id).await?;
            if !found.is_empty() {
                return Ok(Keyed::Accepted(in_order_of(&jobs, &found)?));
            }
        }
        // In key order, so that two batches with the same keys wait for each other instead of deadlocking.
        let mut keyed: Vec<(usize, &NewJob, &str)> = Vec::new();
        for (place, job) in jobs.iter().enumerate() {
            if let Some(key) = &job.unique_key {
                keyed.push((place, job, key));
            }
        }
        keyed.sort_unstable_by_key(|(_, job, key)| (job.kind.clone(), *key));
        let mut taken = Vec::new();
        for (place, job, key) in keyed {
            if let Some(holder) = take_key(conn, job, key).await? {
                taken.push((place, holder));
            }
        }
        if !taken.is_empty() {
            // The keys taken so far go back; the commit that follows finds nothing to do.
            sqlx::raw_sql("ROLLBACK").execute(conn).await?;
            taken.sort_unstable();
            return Ok(Keyed::Taken(taken));
        }
        let accepted = insert_owed(conn, &by_id, &clock, Earlier::Nothing).await?;
        Ok(Keyed::Accepted(in_order_of(&jobs, &accepted)?))
    })
}

/// Take the key for `job`, or say who holds it. An upsert could not tell who won, because the driver counts matched
/// rows; a plain insert can.
async fn take_key(conn: &mut MySqlConnection, job: &NewJob, key: &str) -> Result<Option<JobId>, sqlx::Error> {
    for _ in 0..3 {
        let inserted = sqlx::query("INSERT INTO unique_keys (kind, unique_key, job_id) VALUES (?, ?, ?)")
            .bind(job.kind.as_str())
            .bind(key.as_bytes())
            .bind(job.id.uuid())
            .execute(&mut *conn)
            .await;
        match inserted {
            Ok(_) => return Ok(None),
            Err(e) if fault(&e) == Fault::Duplicate => {}
            Err(e) => return Err(e),
        }
        let holder: Option<Uuid> =
            sqlx::query_scalar("SELECT job_id FROM unique_keys WHERE kind = ? AND unique_key = ? LOCK IN SHARE MODE")
                .bind(job.kind.as_str())
                .bind(key.as_bytes())
                .fetch_optional(&mut *conn)
                .await?;
        if let Some(holder) = holder {
            return Ok(Some(JobId::from_uuid(holder)));
        }
        // The holder ended between the two statements: try again.
    }
    Err(sqlx::Error::Io(std::io::Error::other("a unique key changed hands three times")))
}

/// Receipts, sorted by id, in the order of the jobs they belong to.
fn in_order_of(jobs: &[NewJob], sorted: &[Accepted]) -> Result<Vec<Accepted>, sqlx::Error> {
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
