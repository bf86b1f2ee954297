//! Removal of rows that are no longer used: runners that stopped, tallies that no job changes any more, records about
//! batches, order keys without jobs, and unique keys whose time is over.

use std::collections::BTreeMap;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use sqlx::Row;

use crate::rows::aged::{Aged, purge_aged};
use crate::rows::limits::{LimitKey, key_in};
use crate::rows::owed::SKIP_LOCKED;
use crate::rows::tallies::OTHER;
use crate::sql::batches::statement;
use crate::sql::connection::{on_pool, transact};
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{JobId, RunnerId};

/// Retention of the row of a stopped runner. A week lets operators look back at the last deploy.
pub const KEEP_RUNNERS: Duration = Duration::from_secs(7 * 86_400);
/// Seconds without a change after which a tally is added to lane 0. Living runners change the tallies in their own
/// lanes more often than that.
const REST: i64 = 600;
/// Rows in one page.
const PAGE: u32 = 200;

/// Records of batches from which jobs were removed.
const DEPARTURES: Aged = Aged { table: "departures", made: "at", page: |pages| &pages.departures };

/// Position in the unique keys that jobs hold for a time, in the order of that time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UniqueKeyPlace {
    held_until: chrono::NaiveDateTime,
    kind: String,
    key: Vec<u8>,
}

/// The rest of a tally's primary key, behind the lane: queue, kind and state.
type Key = (String, String, String);

impl Store {
    /// Return true if this is the runner that has lived longest. It does the work for which one runner of the cluster
    /// is enough. For a moment two runners may get true, or none; this costs time and nothing else.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn is_eldest(&self, runner: &RunnerId) -> Result<bool, StoreError> {
        let runner = runner.clone();
        on_pool(&self.shared.pools.loops, "look for the eldest runner", move |conn, _| {
            let runner = runner.clone();
            Box::pin(async move {
                let sql = "SELECT id FROM runners FORCE INDEX (runners_stopped) WHERE stopped_at IS NULL \
                           AND parent IS NULL AND via = 'process' AND heartbeat_at >= UTC_TIMESTAMP(6) - INTERVAL lease_ms * 1000 MICROSECOND \
                           ORDER BY started_at, id LIMIT 1";
                let eldest: Option<String> = sqlx::query_scalar(sql).fetch_optional(conn).await?;
                Ok(eldest.as_deref() == Some(runner.as_str()))
            })
        })
        .await
    }

    /// Delete runners that stopped longer ago than `keep`, one page at most. Returns the number of deleted rows, and
    /// true if there may be more.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn forget_runners(&self, keep: Duration) -> Result<(u64, bool), StoreError> {
        let keep = i64::try_from(keep.as_secs()).unwrap_or(i64::MAX / 2);
        on_pool(&self.shared.pools.loops, "delete stopped runners", move |conn, _| {
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
                    // A process never uses an id again. The condition is repeated nevertheless, so that the row of a
                    // living runner cannot be deleted.
                    let sql = "DELETE FROM runners WHERE id = ? AND stopped_at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND";
                    gone += sqlx::query(sql).bind(id).bind(keep).execute(&mut *conn).await?.rows_affected();
                }
                Ok((gone, old.len() == PAGE as usize && gone > 0))
            })
        })
        .await
    }

    /// Delete the rows of order keys behind `after` none of whose jobs are kept any more, one page at most. Returns the
    /// number of deleted rows and the key behind which the next page begins.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn forget_order_keys(&self, after: Vec<u8>) -> Result<(u64, Option<Vec<u8>>), StoreError> {
        transact(&self.shared.pools.loops, "delete order keys", move |conn, _| {
            let after = after.clone();
            Box::pin(async move {
                // A key that a transaction is about to use is locked, and is left for the next walk.
                let sql = format!(
                    "SELECT order_key FROM order_keys FORCE INDEX (PRIMARY) WHERE order_key > ? ORDER BY order_key \
                     LIMIT ? FOR UPDATE{SKIP_LOCKED}"
                );
                let page = statement(sql).bind(after).bind(PAGE).fetch_all(&mut *conn).await?;
                let keys: Vec<Vec<u8>> = page.iter().map(|row| row.try_get("order_key")).collect::<Result<_, _>>()?;
                let mut forgotten = 0;
                for key in &keys {
                    let sql = "DELETE FROM order_keys WHERE order_key = ? AND head > tail AND NOT EXISTS \
                               (SELECT 1 FROM order_places p WHERE p.order_key = ?)";
                    forgotten += sqlx::query(sql).bind(key).bind(key).execute(&mut *conn).await?.rows_affected();
                }
                Ok((forgotten, keys.last().filter(|_| keys.len() == PAGE as usize).cloned()))
            })
        })
        .await
    }

    /// Delete the rows of keys of limits behind `after` that no job uses and whose rate allows a start at once, one page
    /// at most. Failed calls are forgotten after a day. Returns the number of deleted rows and the key behind which the next page begins.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn forget_limit_keys(&self, after: Option<LimitKey>) -> Result<(u64, Option<LimitKey>), StoreError> {
        transact(&self.shared.pools.loops, "delete keys of limits", move |conn, _| {
            let (limit, key) = after.clone().map_or_else(Default::default, |key| (key.limit.to_string(), key.key));
            Box::pin(async move {
                // A key that a transaction is about to use is locked, and is left for the next walk.
                let sql = format!(
                    "SELECT limit_name, limit_key FROM limit_keys FORCE INDEX (PRIMARY) WHERE limit_name > ? \
                     OR (limit_name = ? AND limit_key > ?) ORDER BY limit_name, limit_key LIMIT ? FOR UPDATE{SKIP_LOCKED}"
                );
                let query = statement(sql).bind(limit.clone()).bind(limit).bind(key.into_bytes()).bind(PAGE);
                let page = query.fetch_all(&mut *conn).await?;
                let keys: Vec<LimitKey> = page.iter().map(key_in).collect::<Result<_, _>>()?;
                let mut forgotten = 0;
                for LimitKey { limit, key } in &keys {
                    let sql = "DELETE FROM limit_keys WHERE limit_name = ? AND limit_key = ? \
                               AND (next_start IS NULL OR next_start < UTC_TIMESTAMP(6)) \
                               AND (failed_at IS NULL OR GREATEST(failed_at, COALESCE(probe_at, failed_at)) \
                               < UTC_TIMESTAMP(6) - INTERVAL 1 DAY) \
                               AND NOT EXISTS (SELECT 1 FROM limit_slots s WHERE s.limit_name = ? AND s.limit_key = ?) \
                               AND NOT EXISTS (SELECT 1 FROM limit_waits w WHERE w.limit_name = ? AND w.limit_key = ?)";
                    let mut query = sqlx::query(sql);
                    for _ in 0..3 {
                        query = query.bind(limit.as_str()).bind(key.as_bytes());
                    }
                    forgotten += query.execute(&mut *conn).await?.rows_affected();
                }
                Ok((forgotten, keys.last().filter(|_| keys.len() == PAGE as usize).cloned()))
            })
        })
        .await
    }

    /// Delete the rows of unique keys behind `after` whose jobs ended and whose time is over, one page at most. Returns
    /// the number of deleted rows and the place behind which the next page begins.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn forget_unique_keys(
        &self,
        after: Option<UniqueKeyPlace>,
    ) -> Result<(u64, Option<UniqueKeyPlace>), StoreError> {
        on_pool(&self.shared.pools.loops, "delete unique keys", move |conn, _| {
            let after = after.clone().unwrap_or_default();
            Box::pin(async move {
                let found = sqlx::query(
                    "SELECT k.held_until, k.kind, k.unique_key, k.job_id, o.id IS NULL AS free \
                     FROM unique_keys k FORCE INDEX (unique_keys_window) \
                     LEFT JOIN owed o FORCE INDEX (PRIMARY) ON o.id = k.job_id \
                     WHERE k.held_until >= ? AND k.held_until <= UTC_TIMESTAMP(3) \
                     AND (k.held_until > ? OR k.kind > ? OR (k.kind = ? AND k.unique_key > ?)) \
                     ORDER BY k.held_until, k.kind, k.unique_key LIMIT ?",
                )
                .bind(after.held_until)
                .bind(after.held_until)
                .bind(&after.kind)
                .bind(&after.kind)
                .bind(&after.key)
                .bind(PAGE)
                .fetch_all(&mut *conn)
                .await?;
                let (mut gone, mut next) = (0, None);
                for row in &found {
                    let place = UniqueKeyPlace {
                        held_until: row.try_get("held_until")?,
                        kind: row.try_get("kind")?,
                        key: row.try_get("unique_key")?,
                    };
                    if row.try_get::<bool, _>("free")? {
                        // Another job may have taken the key since, which has its own time.
                        let sql = "DELETE FROM unique_keys WHERE kind = ? AND unique_key = ? AND job_id = ? \
                                   AND held_until <= UTC_TIMESTAMP(3)";
                        let delete = sqlx::query(sql).bind(&place.kind).bind(&place.key);
                        let id: uuid::Uuid = row.try_get("job_id")?;
                        gone += delete.bind(id).execute(&mut *conn).await?.rows_affected();
                    }
                    next = Some(place);
                }
                Ok((gone, next.filter(|_| found.len() == PAGE as usize)))
            })
        })
        .await
    }

    /// Sum up tallies that no longer change: add those of one queue, kind and state to lane 0. Returns the number of
    /// deleted rows and the place where the next page begins.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
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

    /// Sum up tallies of old queues, which no job has changed for longer than `keep`: add them to the name that stands
    /// for all old queues. `keep` must be longer than jobs are kept. Returns the number of deleted rows and the place
    /// where the next page begins.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
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

    /// Delete records about batches older than `keep`, in the page behind `after`. Returns the number of deleted rows
    /// and the place where the next page begins.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn forget_departures(
        &self,
        after: Option<JobId>,
        keep: Duration,
    ) -> Result<(usize, Option<JobId>), StoreError> {
        let after = after.map(JobId::uuid);
        let purged = purge_aged(&self.shared, "delete records of old batches", &DEPARTURES, after, keep);
        let (gone, next) = purged.await?;
        Ok((gone, next.map(JobId::from_uuid)))
    }
}

impl Store {
    /// Delete rows of the outbox that were rejected longer ago than `keep`, one page at most. Returns true if there may
    /// be more.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn forget_rejected_rows(&self, keep: Duration) -> Result<bool, StoreError> {
        let keep = i64::try_from(keep.as_secs()).unwrap_or(i64::MAX / 2);
        on_pool(&self.shared.pools.loops, "delete old rejected rows of the outbox", move |conn, _| {
            Box::pin(async move {
                let gone = sqlx::query(
                    "DELETE FROM outbox_rejected WHERE rejected_at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND \
                     ORDER BY rejected_at LIMIT ?",
                );
                let gone = gone.bind(keep).bind(PAGE).execute(conn).await?.rows_affected();
                Ok(gone == u64::from(PAGE))
            })
        })
        .await
    }
}

impl Store {
    /// Delete the rows of outboxes of applications from which no runner has copied for `keep`. One whose copied rows may
    /// still be at the source stays: without the list they would be copied again. Their number is bounded by the names
    /// that operators have given. Returns the number of deleted rows.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn forget_sources(&self, keep: Duration) -> Result<u64, StoreError> {
        let keep = i64::try_from(keep.as_secs()).unwrap_or(i64::MAX / 2);
        on_pool(&self.shared.pools.loops, "delete outboxes that are gone", move |conn, _| {
            Box::pin(async move {
                let gone = sqlx::query(
                    "DELETE FROM outbox_sources WHERE lease_until < UTC_TIMESTAMP(6) - INTERVAL ? SECOND AND copied = ''",
                );
                Ok(gone.bind(keep).execute(conn).await?.rows_affected())
            })
        })
        .await
    }
}

/// The primary key of a tally.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TallyPlace {
    lane: u8,
    key: Key,
}

/// Read the next rows from `after` on, in lanes up to `last`, that have not changed for `rest` seconds. Takes no locks.
/// A page may end between the states of one kind, so the next page begins with that kind again.
async fn resting(
    conn: &mut Session<'_>,
    after: &TallyPlace,
    last: u8,
    rest: i64,
) -> Result<(Vec<TallyPlace>, Option<TallyPlace>), sqlx::Error> {
    let TallyPlace { lane, key: (queue, kind, _) } = after;
    let found = sqlx::query(
        "SELECT lane, queue, kind, CAST(state AS CHAR) AS state_word, changed_at < NOW() - INTERVAL ? SECOND AS rests \
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
        let place = TallyPlace {
            lane: row.try_get("lane")?,
            key: (row.try_get("queue")?, row.try_get("kind")?, row.try_get("state_word")?),
        };
        if row.try_get::<bool, _>("rests")? {
            rests.push(place.clone());
        }
        next = Some(place);
    }
    Ok((rests, next.filter(|_| found.len() == PAGE as usize)))
}

/// Delete these rows in the order of their primary key and return their counts. Rows that have changed in the meantime
/// stay.
async fn take(conn: &mut Session<'_>, places: &[TallyPlace], rest: i64) -> Result<Vec<(TallyPlace, i64)>, sqlx::Error> {
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

async fn add(conn: &mut Session<'_>, sums: &BTreeMap<Key, i64>) -> Result<(), sqlx::Error> {
    for ((queue, kind, state), n) in sums {
        let sql = "INSERT INTO tallies (lane, queue, kind, state, n) VALUES (0, ?, ?, ?, ?) \
                   ON DUPLICATE KEY UPDATE n = n + VALUES(n)";
        sqlx::query(sql).bind(queue).bind(kind).bind(state).bind(n).execute(&mut *conn).await?;
    }
    Ok(())
}
