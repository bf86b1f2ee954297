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
    fn of(&self, kind: Option<&str>, end: State) -> Duration {
        let own = kind.and_then(|kind| self.kinds.get(kind)).copied().unwrap_or_default();
        match end {
            State::Failed => own.failed.unwrap_or(self.failed),
            State::Cancelled => own.cancelled.unwrap_or(self.cancelled),
            _ => own.completed.unwrap_or(self.completed),
        }
    }

    /// The shortest age of any: nothing younger is ever removed, but for discarded dead letters.
    #[must_use]
    pub fn shortest(&self) -> Duration {
        let own = self.kinds.values().flat_map(|kind| [kind.completed, kind.cancelled, kind.failed]).flatten();
        own.chain([self.cancelled, self.failed]).fold(self.completed, Duration::min)
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
                Ok((remove(conn, &ids, Discards::Go).await?, more))
            })
        })
        .await
    }
}

fn page(conn: &mut MySqlConnection, shared: Arc<Shared>, after: Option<JobId>, keep: Retention) -> Step<'_, Purged> {
    Box::pin(async move {
        let now = read_clock(conn, &shared.clock).await?;
        let before = |age: Duration| now - TimeDelta::from_std(age).unwrap_or(TimeDelta::MAX / 4);
        let newest = first_id_of(before(keep.shortest()));
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
        if full {
            // The page may have cut the last job's lines in two: leave it to the next page.
            last_lines.pop_last();
            next = last_lines.last_key_value().map(|(id, _)| JobId::from_uuid(*id));
            if next.is_none() {
                // One job alone fills the page. It has lived through thousands of attempts and is left in peace.
                next = found.last().map(|row| row.try_get(0)).transpose()?.map(JobId::from_uuid);
            }
        }
        let old: Vec<Uuid> = last_lines
            .into_iter()
            .filter(|(_, (end, finished_at, kind))| {
                end.is_some_and(|end| *finished_at < before(keep.of(kind.as_deref(), end)))
            })
            .map(|(id, _)| id)
            .collect();
        let mut jobs = 0;
        for ids in old.chunks(MOST_ROWS) {
            jobs += remove(conn, ids, Discards::Stay).await?;
        }
        Ok(Purged { jobs, next })
    })
}

/// What happens to discarded dead letters among the jobs that are removed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Discards {
    /// They stay: they are kept by an age of their own.
    Stay,
    /// They go.
    Go,
}

/// Remove these ended jobs, except those that an operator gave a new life meanwhile.
pub(super) async fn remove(conn: &mut MySqlConnection, ids: &[Uuid], discards: Discards) -> Result<usize, sqlx::Error> {
    let list = places(padded(ids.len()));
    // The job's row is the lock that a retry takes as well; behind it, nobody can bring the job back.
    let mut query =
        statement(format!("SELECT id FROM jobs FORCE INDEX (PRIMARY) WHERE id IN {list} ORDER BY id FOR UPDATE"));
    for id in pad(ids) {
        query = query.bind(id);
    }
    query.fetch_all(&mut *conn).await?;
    let mut query = statement(format!("SELECT id FROM owed FORCE INDEX (PRIMARY) WHERE id IN {list}"));
    for id in pad(ids) {
        query = query.bind(id);
    }
    let mut owed = BTreeSet::new();
    for row in query.fetch_all(&mut *conn).await? {
        owed.insert(row.try_get::<Uuid, _>(0)?);
    }
    if discards == Discards::Stay {
        let sql = "SELECT job_id FROM dead_letters FORCE INDEX (PRIMARY) WHERE standing = 'discarded' AND job_id IN";
        let mut query = statement(format!("{sql} {list}"));
        for id in pad(ids) {
            query = query.bind(id);
        }
        for row in query.fetch_all(&mut *conn).await? {
            owed.insert(row.try_get::<Uuid, _>(0)?);
        }
    }
    let gone: Vec<Uuid> = ids.iter().copied().filter(|id| !owed.contains(id)).collect();
    if gone.is_empty() {
        return Ok(0);
    }
    // The ledger first: a job without lines would look lost, lines without a job are only invisible.
    for (table, key) in [("attempts", "job_id"), ("job_tags", "job_id"), ("dead_letters", "job_id"), ("jobs", "id")] {
        // In key order and with a bound, which keeps the servers from scanning a small table.
        let sql = format!("DELETE FROM {table} WHERE {key} IN {} ORDER BY {key} LIMIT ?", places(padded(gone.len())));
        let mut query = statement(sql);
        for id in pad(&gone) {
            query = query.bind(id);
        }
        query.bind(2 * PAGE).execute(&mut *conn).await?;
    }
    Ok(gone.len())
}
