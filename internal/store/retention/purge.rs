//! Retention: removes ended jobs and old rows, in bounded pages and by primary key.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use chrono::TimeDelta;
use sqlx::Row;
use uuid::Uuid;

use crate::retention::remove::{Removal, remove};
use crate::retention::times::Retention;
use crate::rows::owed::DueJob;
use crate::sql::batches::{MAX_ROWS, statement};
use crate::sql::clock::read_clock;
use crate::sql::connection::{DbFuture, transact};
use crate::sql::error::corrupt;
use crate::sql::session::Session;
use crate::{Store, StoreError, StoreInner};
use tickr_job::{JobId, State, Timestamp, first_id_of};

/// Most ledger lines read in one page.
pub(crate) const PAGE: u32 = 2_000;
/// Most discarded jobs removed in one page.
pub(crate) const DISCARDED: u32 = MAX_ROWS as u32;
/// Discarded jobs that one page passes because they cannot go now, in multiples of [`DISCARDED`].
const PASSED: u32 = 16;

/// Outcome of one page of a purge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Purged {
    /// Number of jobs removed.
    pub jobs: usize,
    /// The position to continue after; absent at the end.
    pub next: Option<JobId>,
    /// Jobs that are not held any more, because a removed one blocked their order key.
    pub released: Vec<DueJob>,
}

impl Store {
    /// Remove the jobs past their retention time from one page of the ledger after `after`.
    ///
    /// Ids are made before jobs end. So the walk begins at the oldest id and stops where no job can be old enough.
    /// Behind that, it goes on with the few jobs whose ids are of a later time than their acceptance.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn purge_page(&self, after: Option<JobId>, keep: &Retention) -> Result<Purged, StoreError> {
        let (shared, keep) = (self.shared.clone(), keep.clone());
        let (size, began) = (&self.shared.purged_jobs, Instant::now());
        let most = size.get();
        let purged = transact(&self.shared.pools.loops, "purge ended jobs", move |conn, _| {
            page(conn, shared.clone(), (after, most), keep.clone())
        });
        let purged = purged.await;
        // A page without old jobs says nothing about the size.
        if !matches!(purged, Ok(Purged { jobs: 0, .. })) {
            size.learn(began, &purged);
        }
        purged
    }
}

impl Store {
    /// Return how many pages the janitor may remove at the same time, whatever their tables. The other loops of the
    /// runner use the same connections.
    #[must_use]
    pub fn purges_at_once(&self) -> usize {
        self.shared.pools.purges
    }

    /// Remove one page of dead letters that are past the retention time of discarded ones. Return the number of removed
    /// jobs, and whether there may be more.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn purge_discarded(&self, keep: &Retention) -> Result<(usize, bool), StoreError> {
        let (shared, age) = (self.shared.clone(), keep.discarded);
        let (size, began) = (&self.shared.purged_discarded, Instant::now());
        let most = size.get();
        let purged = transact(&self.shared.pools.loops, "purge discarded jobs", move |conn, _| {
            let shared = shared.clone();
            Box::pin(async move {
                let now = read_clock(conn, &shared.clock).await?;
                let before = now - TimeDelta::from_std(age).unwrap_or(TimeDelta::MAX / 4);
                discarded_page(conn, before, most, now).await
            })
        });
        let purged = purged.await;
        if !matches!(purged, Ok((0, _))) {
            size.learn(began, &purged);
        }
        purged
    }
}

/// Remove the first jobs that were discarded before this moment and can go. Return their number, and whether there may
/// be more.
async fn discarded_page(
    conn: &mut Session<'_>,
    before: Timestamp,
    most: u32,
    now: Timestamp,
) -> Result<(usize, bool), sqlx::Error> {
    // Jobs at the beginning may stay for long, such as those that a frozen runner has locked. The others must not wait
    // for them.
    for passed in 0..PASSED {
        let mut ids: Vec<Uuid> = sqlx::query_scalar(
            "SELECT job_id FROM dead_letters FORCE INDEX (dead_letters_since) WHERE standing = 'discarded' \
             AND since < ? ORDER BY since LIMIT ? OFFSET ?",
        )
        .bind(before)
        .bind(DISCARDED)
        .bind(passed * DISCARDED)
        .fetch_all(&mut *conn)
        .await?;
        ids.sort_unstable();
        let is_full = ids.len() == DISCARDED as usize;
        let mut left = ids.len();
        for ids in ids.chunks(most as usize) {
            left -= ids.len();
            let removed = remove(conn, ids, Removal::Discarded { before }, now).await?;
            let gone = removed.gone.len();
            if gone + removed.strays > 0 {
                return Ok((gone, is_full || left > 0 || removed.until.is_some()));
            }
        }
        if !is_full {
            break;
        }
    }
    Ok((0, false))
}

fn page<'c>(
    conn: &'c mut Session<'_>,
    shared: Arc<StoreInner>,
    (after, most): (Option<JobId>, u32),
    keep: Retention,
) -> DbFuture<'c, Purged> {
    Box::pin(async move {
        let now = read_clock(conn, &shared.clock).await?;
        let before = |age: Duration| now - TimeDelta::from_std(age).unwrap_or(TimeDelta::MAX / 4);
        let newest = first_id_of(before(keep.shortest_of_ended()));
        // The kind is stored in `jobs`. It is looked up only if some kind has a retention time of its own.
        let kind = if keep.kinds.is_empty() { "NULL" } else { "(SELECT j.kind FROM jobs j WHERE j.id = a.job_id)" };
        let found = statement(format!(
            "SELECT a.job_id, a.end_state, a.finished_at, {kind} AS kind FROM attempts a FORCE INDEX (PRIMARY) \
             WHERE a.job_id > ? AND a.job_id < ? ORDER BY a.job_id, a.number LIMIT ?",
        ))
        .bind(after.map_or(Uuid::nil(), JobId::uuid))
        .bind(newest)
        .bind(PAGE)
        .fetch_all(&mut *conn)
        .await?;
        let mut last_lines: BTreeMap<Uuid, (Option<State>, Timestamp, Option<String>)> = BTreeMap::new();
        for row in &found {
            let end = match row.try_get::<Option<&str>, _>("end_state")? {
                Some(word) => Some(State::from_word(word).ok_or_else(|| corrupt("end_state"))?),
                None => None,
            };
            last_lines.insert(row.try_get("job_id")?, (end, row.try_get("finished_at")?, row.try_get("kind")?));
        }
        let full = found.len() == PAGE as usize;
        let mut next = None;
        let mut alone = None;
        if full {
            // The page may end in the middle of the last job's lines. Leave that job to the next page, unless it is the
            // only one in this page.
            alone = last_lines.last_key_value().map(|(id, _)| *id).filter(|_| last_lines.len() == 1);
            if alone.is_none() {
                last_lines.pop_last();
            }
            next = last_lines.last_key_value().map(|(id, _)| JobId::from_uuid(*id));
        }
        // These are candidates. `remove` checks each one again after locking it, by its last ledger line instead of the
        // last one in this page.
        let mut old: Vec<Uuid> = last_lines
            .into_iter()
            .filter(|(id, (end, finished_at, kind))| {
                alone == Some(*id) || end.is_some_and(|end| *finished_at < before(keep.for_end(kind.as_deref(), end)))
            })
            .map(|(id, _)| id)
            .collect();
        if !full {
            let from = after.map_or(newest, |after| newest.max(just_behind(after.uuid())));
            let (ahead, rest) = old_ahead(conn, from, &keep, now).await?;
            old.extend(ahead);
            next = rest;
        }
        // MySQL may carry out no removal of so many jobs. Those that stay are read at their usual pace all the same.
        if old.len() > most as usize {
            old.truncate(most as usize);
            next = old.last().copied().map(JobId::from_uuid);
        }
        let removed = remove(conn, &old, Removal::Aged { keep: &keep, now }, now).await?;
        let next = removed.until.map(JobId::from_uuid).or(next);
        let jobs = removed.gone.len();
        Ok(Purged { jobs, next, released: removed.released })
    })
}

/// Find jobs at or above an id that ended long enough ago, in one page. The clocks that made their ids were ahead.
/// Return also the position to continue after; absent at the end.
async fn old_ahead(
    conn: &mut Session<'_>,
    from: Uuid,
    keep: &Retention,
    now: Timestamp,
) -> Result<(Vec<Uuid>, Option<JobId>), sqlx::Error> {
    let before = |age: Duration| now - TimeDelta::from_std(age).unwrap_or(TimeDelta::MAX / 4);
    let kind = if keep.kinds.is_empty() { "NULL" } else { "(SELECT j.kind FROM jobs j WHERE j.id = w.job_id)" };
    // No job ends before it is accepted. This index has the acceptance and the id, so jobs that are too young are not
    // read.
    let found = statement(format!(
        "SELECT w.job_id, a.end_state, a.finished_at, {kind} AS kind FROM \
         (SELECT job_id FROM distant_ids FORCE INDEX (distant_ids_created) WHERE created_at < ? AND job_id >= ? \
         ORDER BY job_id LIMIT ?) w LEFT JOIN attempts a ON a.job_id = w.job_id \
         AND a.number = (SELECT MAX(l.number) FROM attempts l WHERE l.job_id = w.job_id) ORDER BY w.job_id"
    ))
    .bind(before(keep.shortest_of_ended()))
    .bind(from)
    .bind(PAGE)
    .fetch_all(&mut *conn)
    .await?;
    let (mut old, mut last) = (Vec::new(), None);
    for row in &found {
        let id: Uuid = row.try_get("job_id")?;
        last = Some(JobId::from_uuid(id));
        let (end, finished_at): (Option<&str>, Option<Timestamp>) =
            (row.try_get("end_state")?, row.try_get("finished_at")?);
        let Some((word, finished_at)) = end.zip(finished_at) else { continue };
        let end = State::from_word(word).ok_or_else(|| corrupt("end_state"))?;
        let kind: Option<String> = row.try_get("kind")?;
        if finished_at < before(keep.for_end(kind.as_deref(), end)) {
            old.push(id);
        }
    }
    Ok((old, last.filter(|_| found.len() == PAGE as usize)))
}

/// Return the id that follows `id` directly.
fn just_behind(id: Uuid) -> Uuid {
    Uuid::from_u128(id.as_u128().saturating_add(1))
}
