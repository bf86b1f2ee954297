//! Rows that end by rest: runners that stopped, tallies that no job changes any more, notes about batches.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::{MySqlConnection, Row};

use super::link::{on_pool, transact};
use super::purge::{Aged, purge_aged};
use super::shape::statement;
use super::{Store, StoreError};
use crate::job::{JobId, RunnerId};

/// How long the row of a stopped runner is kept: for operators who look at a deploy of last week.
pub const KEEP_RUNNERS: Duration = Duration::from_secs(7 * 86_400);
/// A tally that did not change for so long is added to the lane of all that rest. The lanes of living runners that count
/// are younger.
const REST: i64 = 600;
/// Rows looked at in one page.
const PAGE: u32 = 200;
/// What tallies of queues that are gone are added to. No queue can have this name.
pub(super) const OTHER: &str = "_other";

/// Notes about batches of which jobs were removed.
const DEPARTURES: Aged = Aged { table: "departures", made: "at" };

/// The key of a tally behind its lane.
type Key = (String, String, String);

impl Store {
    /// Is this the runner that has lived longest? It does what one runner of the cluster is enough for. Two may believe
    /// it for a moment, and none may: nothing but speed depends on it.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn is_eldest(&self, runner: &RunnerId) -> Result<bool, StoreError> {
        let runner = runner.clone();
        on_pool(&self.shared.pools.loops, "look for the eldest runner", move |conn, _| {
            let runner = runner.clone();
            Box::pin(async move {
                let sql = "SELECT id FROM runners FORCE INDEX (runners_stopped) WHERE stopped_at IS NULL \
                           AND parent IS NULL AND heartbeat_at >= UTC_TIMESTAMP(6) - INTERVAL lease_ms * 1000 MICROSECOND \
                           ORDER BY started_at, id LIMIT 1";
                let eldest: Option<String> = sqlx::query_scalar(sql).fetch_optional(conn).await?;
                Ok(eldest.as_deref() == Some(runner.as_str()))
            })
        })
        .await
    }

    /// Forget runners that stopped longer ago than `keep`, a page at most; how many, and whether there may be more.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn forget_runners(&self, keep: Duration) -> Result<(u64, bool), StoreError> {
        let keep = i64::try_from(keep.as_secs()).unwrap_or(i64::MAX / 2);
        on_pool(&self.shared.pools.loops, "forget stopped runners", move |conn, _| {
            Box::pin(async move {
                let old: Vec<String> = sqlx::query_scalar(
                    "SELECT id FROM runners FORCE INDEX (runners_stopped) \
                     WHERE stopped_at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND ORDER BY stopped_at LIMIT ?",
                )
                .bind(keep)
                .bind(PAGE)
                .fetch_all(&mut *conn)
                .await?;
                let mut gone = 0;
                for id in &old {
                    // A process never takes up an id again; asked again all the same, so that no living row can go.
                    let sql = "DELETE FROM runners WHERE id = ? AND stopped_at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND";
                    gone += sqlx::query(sql).bind(id).bind(keep).execute(&mut *conn).await?.rows_affected();
                }
                Ok((gone, old.len() == PAGE as usize && gone > 0))
            })
        })
        .await
    }

    /// Add up tallies that rest: those of one queue, kind and state in lane 0. How many rows went, and where to go on.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn fold_lanes(&self, after: Option<TallyPlace>) -> Result<(usize, Option<TallyPlace>), StoreError> {
        transact(&self.shared.pools.loops, "add up tallies", move |conn, _| {
            let after = after.clone();
            Box::pin(async move {
                let place = after.unwrap_or(TallyPlace { lane: 1, key: Key::default() });
                let (found, next) = resting(conn, &place, 255, REST).await?;
                let gone = take(conn, &found, REST).await?;
                let rows = gone.len();
                let mut sums: BTreeMap<Key, i64> = BTreeMap::new();
                for (place, n) in gone {
                    *sums.entry(place.key).or_default() += n;
                }
                add(conn, &sums).await?;
                Ok((rows, next))
            })
        })
        .await
    }

    /// Add tallies of queues that no job has changed for longer than jobs are kept to those of no queue. How many rows
    /// went, and where to go on.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn fold_queues(
        &self,
        after: Option<TallyPlace>,
        keep: Duration,
    ) -> Result<(usize, Option<TallyPlace>), StoreError> {
        let rest = i64::try_from(keep.as_secs()).unwrap_or(i64::MAX / 2);
        transact(&self.shared.pools.loops, "add up tallies of old queues", move |conn, _| {
            let after = after.clone();
            Box::pin(async move {
                let place = after.unwrap_or(TallyPlace { lane: 0, key: Key::default() });
                let (found, next) = resting(conn, &place, 0, rest).await?;
                let found: Vec<TallyPlace> = found.into_iter().filter(|place| place.key.0 != OTHER).collect();
                let gone = take(conn, &found, rest).await?;
                let rows = gone.len();
                let mut sums: BTreeMap<Key, i64> = BTreeMap::new();
                for (TallyPlace { key: (_, kind, state), .. }, n) in gone {
                    *sums.entry((OTHER.to_owned(), kind, state)).or_default() += n;
                }
                add(conn, &sums).await?;
                Ok((rows, next))
            })
        })
        .await
    }

    /// Forget notes about batches older than `keep`, looking at one page after `after`; how many, and where to go on.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn forget_departures(
        &self,
        after: Option<JobId>,
        keep: Duration,
    ) -> Result<(usize, Option<JobId>), StoreError> {
        let shared = self.shared.clone();
        transact(&self.shared.pools.loops, "forget old batches", move |conn, _| {
            let shared = shared.clone();
            Box::pin(async move {
                let (gone, next) = purge_aged(conn, &shared, &DEPARTURES, after.map(JobId::uuid), keep).await?;
                Ok((gone, next.map(JobId::from_uuid)))
            })
        })
        .await
    }
}

/// A row of the tallies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TallyPlace {
    lane: u8,
    key: Key,
}

/// The next rows from those of `after` on, in lanes up to `last`, that have not changed for `rest` seconds. Without locks.
/// A page may end between the states of one kind, so the next one begins with that kind again.
async fn resting(
    conn: &mut MySqlConnection,
    after: &TallyPlace,
    last: u8,
    rest: i64,
) -> Result<(Vec<TallyPlace>, Option<TallyPlace>), sqlx::Error> {
    let TallyPlace { lane, key: (queue, kind, _) } = after;
    let found = sqlx::query(
        "SELECT lane, queue, kind, CAST(state AS CHAR), changed_at < NOW() - INTERVAL ? SECOND \
         FROM tallies FORCE INDEX (PRIMARY) WHERE (lane > ? OR (lane = ? AND (queue > ? OR (queue = ? AND kind >= ?)))) \
         AND lane <= ? ORDER BY lane, queue, kind, state LIMIT ?",
    )
    .bind(rest)
    .bind(lane)
    .bind(lane)
    .bind(queue)
    .bind(queue)
    .bind(kind)
    .bind(last)
    .bind(PAGE)
    .fetch_all(&mut *conn)
    .await?;
    let (mut rests, mut next) = (Vec::new(), None);
    for row in &found {
        let place = TallyPlace { lane: row.try_get(0)?, key: (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?) };
        if row.try_get::<bool, _>(4)? {
            rests.push(place.clone());
        }
        next = Some(place);
    }
    Ok((rests, next.filter(|_| found.len() == PAGE as usize)))
}

/// Take these rows out, in the order of their key, those excepted that changed meanwhile.
async fn take(
    conn: &mut MySqlConnection,
    places: &[TallyPlace],
    rest: i64,
) -> Result<Vec<(TallyPlace, i64)>, sqlx::Error> {
    let mut taken = Vec::new();
    for place in places {
        let (queue, kind, state) = &place.key;
        let one = "WHERE lane = ? AND queue = ? AND kind = ? AND state = ?";
        let lock = format!("SELECT n FROM tallies {one} AND changed_at < NOW() - INTERVAL ? SECOND FOR UPDATE");
        let n = statement(lock).bind(place.lane).bind(queue).bind(kind).bind(state).bind(rest);
        let Some(row) = n.fetch_optional(&mut *conn).await? else { continue };
        let delete = statement(format!("DELETE FROM tallies {one}"));
        delete.bind(place.lane).bind(queue).bind(kind).bind(state).execute(&mut *conn).await?;
        taken.push((place.clone(), row.try_get(0)?));
    }
    Ok(taken)
}

async fn add(conn: &mut MySqlConnection, sums: &BTreeMap<Key, i64>) -> Result<(), sqlx::Error> {
    for ((queue, kind, state), n) in sums {
        let sql = "INSERT INTO tallies (lane, queue, kind, state, n) VALUES (0, ?, ?, ?, ?) \
                   ON DUPLICATE KEY UPDATE n = n + VALUES(n)";
        sqlx::query(sql).bind(queue).bind(kind).bind(state).bind(n).execute(&mut *conn).await?;
    }
    Ok(())
}
