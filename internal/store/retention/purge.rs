//! Retention: removes ended jobs and old rows, in bounded pages and by primary key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use sqlx::{MySqlConnection, Row};
use uuid::Uuid;

use crate::job::{JobId, Name, State, Timestamp, first_id_of};
use crate::store::jobs::insert::read_clock;
use crate::store::retention::remove::{Removal, remove};
use crate::store::sql::batches::{MAX_ROWS, pad, padded, places, statement};
use crate::store::sql::connection::{Step, transact};
use crate::store::sql::error::corrupt;
use crate::store::{Shared, Store, StoreError};

/// Number of ledger lines read in one page.
const PAGE: u32 = 2_000;

/// Retention times of ended jobs, by end state, with exceptions for some kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Retention of completed jobs.
    pub completed: Duration,
    /// Retention of cancelled jobs.
    pub cancelled: Duration,
    /// Retention of failed jobs (dead letters).
    pub failed: Duration,
    /// Retention of discarded dead letters, from the time of the discard.
    pub discarded: Duration,
    /// Kinds with retention times of their own.
    pub kinds: Arc<BTreeMap<Name, KindRetention>>,
}

/// Retention times for the jobs of one kind. Where one is absent, the general one applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindRetention {
    /// Retention of completed jobs.
    pub completed: Option<Duration>,
    /// Retention of cancelled jobs.
    pub cancelled: Option<Duration>,
    /// Retention of failed jobs.
    pub failed: Option<Duration>,
}

impl Retention {
    /// Return the same retention time for all ended jobs.
    #[must_use]
    pub fn all(age: Duration) -> Self {
        Self { completed: age, cancelled: age, failed: age, discarded: age, kinds: Arc::default() }
    }

    /// Return the retention time of a job of this kind that ended in this state.
    pub(crate) fn of(&self, kind: Option<&str>, end: State) -> Duration {
        let own = kind.and_then(|kind| self.kinds.get(kind)).copied().unwrap_or_default();
        match end {
            State::Failed => own.failed.unwrap_or(self.failed),
            State::Cancelled => own.cancelled.unwrap_or(self.cancelled),
            _ => own.completed.unwrap_or(self.completed),
        }
    }

    fn of_kinds(&self) -> impl Iterator<Item = Duration> {
        self.kinds.values().flat_map(|kind| [kind.completed, kind.cancelled, kind.failed]).flatten()
    }

    /// Return the shortest retention time. Retention removes nothing younger, except discarded dead letters.
    fn shortest_ended(&self) -> Duration {
        self.of_kinds().chain([self.cancelled, self.failed]).fold(self.completed, Duration::min)
    }

    /// Return the shortest retention time, discarded dead letters included. Retention removes nothing younger.
    #[must_use]
    pub fn shortest(&self) -> Duration {
        self.shortest_ended().min(self.discarded)
    }

    /// Return the longest time that a job stays after its end. A failed job may be discarded on its last day, so both
    /// times add up.
    #[must_use]
    pub fn longest(&self) -> Duration {
        let failed = self.of_kinds().chain([self.failed]).fold(Duration::ZERO, Duration::max);
        [self.completed, self.cancelled, failed.saturating_add(self.discarded)]
            .into_iter()
            .fold(Duration::ZERO, Duration::max)
    }
}

/// A table whose primary key `id` is a UUIDv7, so that its rows are ordered by the time of their creation.
pub(crate) struct Aged {
    pub(crate) table: &'static str,
    /// The SQL expression for the time from which the age of a row counts, by the database's clock. The ids carry the
    /// time of the hosts' clocks.
    pub(crate) made: &'static str,
}

/// Number of rows of an aged table read in one page.
const AGED_PAGE: u32 = 1_000;

/// Remove the rows older than `keep` from one page after `after`. Return the number of removed rows and the position to
/// continue after; absent at the end.
pub(crate) async fn purge_aged(
    conn: &mut MySqlConnection,
    shared: &Shared,
    aged: &Aged,
    after: Option<Uuid>,
    keep: Duration,
) -> Result<(usize, Option<Uuid>), sqlx::Error> {
    let Aged { table, made } = aged;
    let now = read_clock(conn, &shared.clock).await?;
    let before = now - TimeDelta::from_std(keep).unwrap_or(TimeDelta::MAX / 4);
    let found = statement(format!(
        "SELECT id, {made} FROM {table} FORCE INDEX (PRIMARY) WHERE id > ? AND id < ? ORDER BY id LIMIT ?"
    ))
    .bind(after.unwrap_or_default())
    .bind(first_id_of(before))
    .bind(AGED_PAGE)
    .fetch_all(&mut *conn)
    .await?;
    let mut old: BTreeSet<Uuid> = BTreeSet::new();
    for row in &found {
        if row.try_get::<Timestamp, _>(1)? < before {
            old.insert(row.try_get(0)?);
        }
    }
    let next = match found.last() {
        Some(last) if found.len() == AGED_PAGE as usize => Some(last.try_get(0)?),
        _ => None,
    };
    let old: Vec<Uuid> = old.into_iter().collect();
    for ids in old.chunks(MAX_ROWS) {
        // The order by key and the LIMIT keep MySQL from scanning a small table.
        let sql = format!("DELETE FROM {table} WHERE id IN {} ORDER BY id LIMIT ?", places(padded(ids.len())));
        let mut query = statement(sql);
        for id in pad(ids) {
            query = query.bind(id);
        }
        query.bind(AGED_PAGE).execute(&mut *conn).await?;
    }
    Ok((old.len(), next))
}

/// Outcome of one page of a purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purged {
    /// Number of jobs removed.
    pub jobs: usize,
    /// The position to continue after; absent at the end.
    pub next: Option<JobId>,
}

impl Store {
    /// Remove the jobs past their retention time from one page of the ledger after `after`.
    ///
    /// Ids are made before jobs end. So the walk begins at the oldest id and stops where no job can be old enough.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn purge_page(&self, after: Option<JobId>, keep: &Retention) -> Result<Purged, StoreError> {
        let (shared, keep) = (self.shared.clone(), keep.clone());
        transact(&self.shared.pools.loops, "purge ended jobs", move |conn, _| {
            page(conn, shared.clone(), after, keep.clone())
        })
        .await
    }
}

impl Store {
    /// Remove one page of dead letters that are past the retention time of discarded ones. Return the number of removed
    /// jobs, and whether there may be more.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn purge_discarded(&self, keep: &Retention) -> Result<(usize, bool), StoreError> {
        let (shared, age) = (self.shared.clone(), keep.discarded);
        transact(&self.shared.pools.loops, "purge discarded jobs", move |conn, _| {
            let shared = shared.clone();
            Box::pin(async move {
                let now = read_clock(conn, &shared.clock).await?;
                let before = now - TimeDelta::from_std(age).unwrap_or(TimeDelta::MAX / 4);
                let mut ids: Vec<Uuid> = sqlx::query_scalar(
                    "SELECT job_id FROM dead_letters FORCE INDEX (dead_letters_since) WHERE standing = 'discarded' \
                     AND since < ? ORDER BY since LIMIT ?",
                )
                .bind(before)
                .bind(MAX_ROWS as u32)
                .fetch_all(&mut *conn)
                .await?;
                ids.sort_unstable();
                let more = ids.len() == MAX_ROWS;
                if ids.is_empty() {
                    return Ok((0, false));
                }
                let removed = remove(conn, &ids, Removal::Discarded { before }, now).await?;
                let gone = removed.gone.len();
                // Without progress, another call would find the same rows again.
                Ok((gone, (more || removed.until.is_some()) && gone + removed.strays > 0))
            })
        })
        .await
    }
}

fn page(conn: &mut MySqlConnection, shared: Arc<Shared>, after: Option<JobId>, keep: Retention) -> Step<'_, Purged> {
    Box::pin(async move {
        let now = read_clock(conn, &shared.clock).await?;
        let before = |age: Duration| now - TimeDelta::from_std(age).unwrap_or(TimeDelta::MAX / 4);
        let newest = first_id_of(before(keep.shortest_ended()));
        // The kind is stored in `jobs`. It is looked up only if some kind has a retention time of its own.
        let kind = if keep.kinds.is_empty() { "NULL" } else { "(SELECT j.kind FROM jobs j WHERE j.id = a.job_id)" };
        let found = statement(format!(
            "SELECT a.job_id, a.end_state, a.finished_at, {kind} FROM attempts a FORCE INDEX (PRIMARY) \
             WHERE a.job_id > ? AND a.job_id < ? ORDER BY a.job_id, a.number LIMIT ?",
        ))
        .bind(after.map_or(Uuid::nil(), JobId::uuid))
        .bind(newest)
        .bind(PAGE)
        .fetch_all(&mut *conn)
        .await?;
        let mut last_lines: BTreeMap<Uuid, (Option<State>, Timestamp, Option<String>)> = BTreeMap::new();
        for row in &found {
            let end = match row.try_get::<Option<&str>, _>(1)? {
                Some(word) => Some(State::from_word(word).ok_or_else(|| corrupt("end_state"))?),
                None => None,
            };
            last_lines.insert(row.try_get(0)?, (end, row.try_get(2)?, row.try_get(3)?));
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
        let old: Vec<Uuid> = last_lines
            .into_iter()
            .filter(|(id, (end, finished_at, kind))| {
                alone == Some(*id) || end.is_some_and(|end| *finished_at < before(keep.of(kind.as_deref(), end)))
            })
            .map(|(id, _)| id)
            .collect();
        let removed = remove(conn, &old, Removal::Aged { keep: &keep, now }, now).await?;
        let next = removed.until.map(JobId::from_uuid).or(next);
        let jobs = removed.gone.len();
        Ok(Purged { jobs, next })
    })
}
