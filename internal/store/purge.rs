//! The end of retention: ended jobs leave the tables, bounded, by primary key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use sqlx::{MySqlConnection, Row};
use uuid::Uuid;

use super::error::corrupt;
use super::insert::read_clock;
use super::link::{Step, transact};
use super::remove::{Removal, remove};
use super::shape::{MOST_ROWS, pad, padded, places, statement};
use super::{Shared, Store, StoreError};
use crate::job::{JobId, Name, State, Timestamp, first_id_of};

/// Ledger lines looked at in one page.
const PAGE: u32 = 2_000;

/// How long ended jobs are kept, by how they ended, and for some kinds otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Completed jobs.
    pub completed: Duration,
    /// Cancelled jobs.
    pub cancelled: Duration,
    /// Failed jobs: the dead letters.
    pub failed: Duration,
    /// Discarded dead letters, since they were discarded.
    pub discarded: Duration,
    /// Kinds whose jobs are kept for other ages.
    pub kinds: Arc<BTreeMap<Name, KindRetention>>,
}

/// Ages of the jobs of one kind; where there is none, that of all kinds holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindRetention {
    /// Completed jobs.
    pub completed: Option<Duration>,
    /// Cancelled jobs.
    pub cancelled: Option<Duration>,
    /// Failed jobs.
    pub failed: Option<Duration>,
}

impl Retention {
    /// The same age for all.
    #[must_use]
    pub fn all(age: Duration) -> Self {
        Self { completed: age, cancelled: age, failed: age, discarded: age, kinds: Arc::default() }
    }

    /// How long a job of this kind that ended in this state is kept.
    pub(super) fn of(&self, kind: Option<&str>, end: State) -> Duration {
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

    /// The shortest age of any: retention removes nothing younger, but for discarded dead letters.
    fn shortest_ended(&self) -> Duration {
        self.of_kinds().chain([self.cancelled, self.failed]).fold(self.completed, Duration::min)
    }

    /// The shortest age of any, discarded dead letters included: retention removes nothing younger.
    #[must_use]
    pub fn shortest(&self) -> Duration {
        self.shortest_ended().min(self.discarded)
    }

    /// No job stays for longer than this after it ended. A failed one may be discarded on its last day.
    #[must_use]
    pub fn longest(&self) -> Duration {
        let failed = self.of_kinds().chain([self.failed]).fold(Duration::ZERO, Duration::max);
        [self.completed, self.cancelled, failed.saturating_add(self.discarded)]
            .into_iter()
            .fold(Duration::ZERO, Duration::max)
    }
}

/// A table whose primary key `id` is a UUIDv7, so that its rows stand in the order in which they were made.
pub(super) struct Aged {
    pub(super) table: &'static str,
    /// The column that says when a row was made, by the database's clock; the ids are by the clocks of the hosts.
    pub(super) made: &'static str,
}

/// Rows of an aged table looked at in one page.
const AGED_PAGE: u32 = 1_000;

/// Remove rows that were made longer ago than `keep`, looking at one page after `after`; how many, and where to go on.
pub(super) async fn purge_aged(
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
    for ids in old.chunks(MOST_ROWS) {
        // In key order and with a bound, which keeps the servers from scanning a small table.
        let sql = format!("DELETE FROM {table} WHERE id IN {} ORDER BY id LIMIT ?", places(padded(ids.len())));
        let mut query = statement(sql);
        for id in pad(ids) {
            query = query.bind(id);
        }
        query.bind(AGED_PAGE).execute(&mut *conn).await?;
    }
    Ok((old.len(), next))
}

/// What one page of a purge did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purged {
    /// Jobs removed.
    pub jobs: usize,
    /// Where to go on; absent at the end.
    pub next: Option<JobId>,
}

impl Store {
    /// Remove jobs that ended longer ago than they are kept, looking at one page of the ledger after `after`.
    ///
    /// Ids are made before jobs end, so the walk goes from the oldest id and stops where nothing can be old enough.
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
    /// Remove dead letters that were discarded longer ago than they are kept, a page at most; how many, and whether
    /// there may be more.
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
                .bind(MOST_ROWS as u32)
                .fetch_all(&mut *conn)
                .await?;
                ids.sort_unstable();
                let more = ids.len() == MOST_ROWS;
                if ids.is_empty() {
                    return Ok((0, false));
                }
                let removed = remove(conn, &ids, Removal::Discarded { before }, now).await?;
                let gone = removed.gone.len();
                // Without progress there is nothing to go on with.
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
        // The kind stands in the job, which is looked up only if some kind is kept otherwise.
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
            // The page may have cut the last job's lines in two: leave it to the next page, unless it fills this one.
            alone = last_lines.last_key_value().map(|(id, _)| *id).filter(|_| last_lines.len() == 1);
            if alone.is_none() {
                last_lines.pop_last();
            }
            next = last_lines.last_key_value().map(|(id, _)| JobId::from_uuid(*id));
        }
        // Candidates: each is judged again behind its lock, by its last line and not by the last one of this page.
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
