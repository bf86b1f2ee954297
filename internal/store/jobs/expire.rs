//! The end of jobs that wait when they expire, for their first attempt or for a further one.
//!
//! A claim takes no job that has expired, so nothing starts late. Here the job then ends as failed, a dead letter in a
//! group of its own, without using an attempt. Any runner may do it: rows that another one locks are left out.

use std::collections::{BTreeMap, BTreeSet};

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use uuid::Uuid;

use crate::rows::dead_letters::{NewDeadLetter, insert_dead_letters};
use crate::rows::ledger::{AttemptRow, append_to_ledger};
use crate::rows::limits::{unpark, waits_for_turn};
use crate::rows::links::{AWAITED, IN_BATCH, LinkedEnd, forget_blocked, record_ends};
use crate::rows::order::{close_places, lock_free_keys_of};
use crate::rows::owed::{DueJob, Owed, delete_owed, lock_free};
use crate::rows::tallies::count;
use crate::rows::unique_keys::release_keys_of;
use crate::sql::batches::in_list;
use crate::sql::clock::read_clock;
use crate::sql::connection::{on_pool, transact};
use crate::sql::session::Session;
use crate::{Store, StoreError, StoreInner};
use tickr_job::{JobId, Name, RunnerId, State, Timestamp, Verdict, floor_ms};

/// Jobs that one transaction looks at.
const PAGE: usize = 256;

/// Outcome of a look for expired jobs.
#[derive(Clone, Debug, Default)]
pub struct ExpiredJobs {
    /// The jobs that ended as failed.
    pub ended: Vec<ExpiredJob>,
    /// Jobs that are not held any more, because one of those was in front of them.
    pub released: Vec<DueJob>,
    /// True if there may be more.
    pub more: bool,
}

/// A job that expired.
#[derive(Clone, Debug)]
pub struct ExpiredJob {
    /// The job.
    pub id: JobId,
    /// Its kind.
    pub kind: Name,
    /// Its queue.
    pub queue: Name,
}

impl Store {
    /// End jobs that have expired, at most 256. The ledger names this runner as the one that found them.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn end_expired(&self, runner: &RunnerId) -> Result<ExpiredJobs, StoreError> {
        let found: Vec<Uuid> = on_pool(&self.shared.pools.loops, "look for expired jobs", |conn, _| {
            Box::pin(async move {
                sqlx::query_scalar(
                    "SELECT job_id FROM job_expiries FORCE INDEX (job_expiries_look) WHERE look_at <= UTC_TIMESTAMP(6) \
                     ORDER BY look_at, job_id LIMIT ?",
                )
                .bind(i64::try_from(PAGE).unwrap_or(i64::MAX))
                .fetch_all(conn)
                .await
            })
        })
        .await?;
        let more = found.len() == PAGE;
        match self.end_these(found.clone(), runner).await {
            Ok(ended) => Ok(ExpiredJobs { more, ..ended }),
            // One of the rows cannot be read or written. The others must not wait for it.
            Err(error) if error.is_about_the_row() => {
                let mut all = ExpiredJobs { more, ..ExpiredJobs::default() };
                for id in found {
                    match self.end_these(vec![id], runner).await {
                        Ok(one) => {
                            all.ended.extend(one.ended);
                            all.released.extend(one.released);
                        }
                        Err(error) if error.is_about_the_row() => {
                            tracing::error!(job = %JobId::from_uuid(id), %error, "cannot end an expired job, leaving it for a minute");
                            self.look_later(id).await?;
                        }
                        Err(error) => return Err(error),
                    }
                }
                Ok(all)
            }
            Err(error) => Err(error),
        }
    }

    async fn end_these(&self, found: Vec<Uuid>, runner: &RunnerId) -> Result<ExpiredJobs, StoreError> {
        let (shared, runner) = (self.shared.clone(), runner.clone());
        let ended = transact(&self.shared.pools.loops, "end expired jobs", move |conn, _| {
            let (shared, runner, found) = (shared.clone(), runner.clone(), found.clone());
            Box::pin(async move { end_page(conn, &shared, &runner, &found).await })
        });
        let ended = ended.await?;
        if !ended.ended.is_empty() {
            self.shared.links_ended(AWAITED | IN_BATCH);
        }
        Ok(ended)
    }

    async fn look_later(&self, id: Uuid) -> Result<(), StoreError> {
        on_pool(&self.shared.pools.loops, "leave an expired job for a minute", move |conn, _| {
            Box::pin(async move {
                sqlx::query("UPDATE job_expiries SET look_at = UTC_TIMESTAMP(3) + INTERVAL 1 MINUTE WHERE job_id = ?")
                    .bind(id)
                    .execute(conn)
                    .await
                    .map(drop)
            })
        })
        .await
    }
}

async fn end_page(
    conn: &mut Session<'_>,
    shared: &StoreInner,
    runner: &RunnerId,
    found: &[Uuid],
) -> Result<ExpiredJobs, sqlx::Error> {
    if found.is_empty() {
        return Ok(ExpiredJobs::default());
    }
    // The order keys come before any other row.
    let (ordered, busy) = lock_free_keys_of(conn, found).await?;
    let free = found.iter().filter(|id| !busy.contains(id));
    let held = lock_free(conn, free.map(|id| JobId::from_uuid(*id))).await?;
    let now = read_clock(conn, &shared.clock).await?;
    // The locks may have waited for a settlement or for an operator's retry, so what is true is read now.
    let mut expiries: BTreeMap<Uuid, Option<Timestamp>> = BTreeMap::new();
    for row in in_list("SELECT id, expires_at FROM owed FORCE INDEX (PRIMARY) WHERE id IN", found, "")
        .fetch_all(&mut *conn)
        .await?
    {
        expiries.insert(row.try_get("id")?, row.try_get("expires_at")?);
    }
    let mut page = Page::default();
    for id in found {
        match (expiries.get(id).copied(), held.get(&JobId::from_uuid(*id))) {
            // The job has ended, or an operator's retry has cleared its expiry.
            (None | Some(None), _) => page.done.push(*id),
            // Another session changes it at this moment.
            (Some(Some(_)), None) => page.later.push(*id),
            (Some(Some(at)), Some(owed)) if at <= now && owed.state != State::Executing => {
                page.expired.push((*id, owed, at));
            }
            (Some(Some(_)), Some(_)) => page.later.push(*id),
        }
    }
    page.expired.sort_unstable_by_key(|(id, _, _)| *id);
    let ids: Vec<Uuid> = page.expired.iter().map(|(id, _, _)| *id).collect();
    page.write_ends(conn, runner, now).await?;
    let places: Vec<Uuid> = ids.iter().copied().filter(|id| ordered.contains(JobId::from_uuid(*id))).collect();
    let released = close_places(conn, &places, now).await?;
    let over: BTreeSet<Uuid> = page.done.iter().chain(&ids).copied().collect();
    let over: Vec<Uuid> = over.into_iter().collect();
    if !over.is_empty() {
        in_list("DELETE FROM job_expiries WHERE job_id IN", &over, " ORDER BY job_id LIMIT 256")
            .execute(&mut *conn)
            .await?;
    }
    page.later.sort_unstable();
    if !page.later.is_empty() {
        // So that they do not stand in front of jobs that can be ended.
        let sql = "UPDATE job_expiries SET look_at = UTC_TIMESTAMP(3) + INTERVAL 5 SECOND WHERE job_id IN";
        in_list(sql, &page.later, " ORDER BY job_id LIMIT 256").execute(&mut *conn).await?;
    }
    let counts = page.counts();
    count(conn, shared.lanes.any(), &counts).await?;
    let ended = page.expired.iter().map(|(id, owed, _)| ExpiredJob {
        id: JobId::from_uuid(*id),
        kind: owed.kind.clone(),
        queue: owed.queue.clone(),
    });
    Ok(ExpiredJobs { ended: ended.collect(), released, more: false })
}

/// Jobs whose time to be looked at has come.
#[derive(Default)]
struct Page<'a> {
    /// These have expired. Their rows are locked.
    expired: Vec<(Uuid, &'a Owed, Timestamp)>,
    /// These need not be looked at again.
    done: Vec<Uuid>,
    /// These are looked at again in a few seconds.
    later: Vec<Uuid>,
}

impl Page<'_> {
    /// Write the ends of the jobs that have expired: what a failure writes, with a ledger line of an attempt that was
    /// never started.
    async fn write_ends(&self, conn: &mut Session<'_>, runner: &RunnerId, now: Timestamp) -> Result<(), sqlx::Error> {
        if self.expired.is_empty() {
            return Ok(());
        }
        delete_owed(conn, &self.expired.iter().map(|(id, _, _)| *id).collect::<Vec<_>>()).await?;
        let errors: Vec<String> = self.expired.iter().map(|(_, owed, at)| error_of(*at, owed.attempt > 0)).collect();
        let lines = self.expired.iter().zip(&errors).map(|((id, owed, _), error)| AttemptRow {
            job: JobId::from_uuid(*id),
            number: owed.attempt + 1,
            burned: owed.attempt - owed.spared,
            runner: runner.as_str(),
            // A job that waited for its turn had no due time.
            execute_at: if waits_for_turn(owed.execute_at) { floor_ms(now) } else { owed.execute_at },
            started_at: now,
            verdict: Verdict::Expired,
            end: Some(State::Failed),
            error: Some(error),
            result: None,
            cancel_requested_at: None,
            exchange: None,
        });
        append_to_ledger(conn, &lines.collect::<Vec<_>>(), now).await?;
        let dead_letters = self.expired.iter().zip(&errors).map(|((id, owed, _), error)| NewDeadLetter {
            id: *id,
            kind: &owed.kind,
            queue: &owed.queue,
            failed_at: now,
            error,
            lived_before: owed.spared > 0,
        });
        insert_dead_letters(conn, &dead_letters.collect::<Vec<_>>()).await?;
        let ends =
            self.expired.iter().map(|(id, owed, _)| LinkedEnd { id: *id, links: owed.links, state: State::Failed });
        record_ends(conn, &ends.collect::<Vec<_>>()).await?;
        for (id, owed, _) in &self.expired {
            if waits_for_turn(owed.execute_at) {
                unpark(conn, *id).await?;
                forget_blocked(conn, *id).await?;
            }
        }
        let keyed: Vec<Uuid> = self.expired.iter().filter(|(_, owed, _)| owed.keyed).map(|(id, ..)| *id).collect();
        release_keys_of(conn, &keyed).await
    }

    fn counts(&self) -> BTreeMap<(Name, Name, State), i64> {
        let mut counts = BTreeMap::new();
        for (_, owed, _) in &self.expired {
            *counts.entry((owed.queue.clone(), owed.kind.clone(), State::Failed)).or_default() += 1;
        }
        counts
    }
}

/// Describe the end of a job that expired. The normalised text is the same for all jobs of a kind that never started,
/// and for all that did, so that they are two groups of dead letters.
fn error_of(at: Timestamp, has_started: bool) -> String {
    let what = if has_started { "no attempt of it succeeded" } else { "it did not start" };
    format!("expired: {what} before {}", at.to_rfc3339_opts(chrono::SecondsFormat::Millis, true))
}
