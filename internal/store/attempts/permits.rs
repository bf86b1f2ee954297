//! Permits: the number of jobs that each runner may run of a queue with a concurrency limit.
//!
//! A runner takes permits before it has the jobs, in a transaction that locks the row of the queue. It gives back the
//! permits that it does not use. So the limit holds over all runners, and the start of a job needs no coordination.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use uuid::Uuid;

use crate::sql::batches::{MAX_ROWS, bind_padded, padded_len, placeholders, statement};
use crate::sql::clock::Reading;
use crate::sql::cluster::{Locked, lock_in_cluster};
use crate::sql::connection::{on_pool, transact};
use crate::sql::error::corrupt;
use crate::sql::script::rows_as_text;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Name, RunnerId};

/// Most queues in one statement.
const MAX_QUEUES_AT_ONCE: usize = 256;
/// Time beyond its lease for which a runner must be silent before other runners take its permits. A runner that has
/// lost MySQL stops its handlers at nine tenths of its lease, checks this every second, and drops the handlers two
/// seconds later.
const SILENT_FOR: Duration = Duration::from_secs(4);

/// A request for permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitRequest {
    /// Number of jobs of the queue that run here now.
    pub used: u32,
    /// Number of permits that this runner could use.
    pub wanted: u32,
    /// True if this runner accepts the smaller share when others lack permits. If the limit does not divide evenly, one
    /// of them must.
    pub yielding: bool,
}

/// The permits that a runner holds now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitGrant {
    /// This number of jobs may run here. If more are running, none may start until enough have ended.
    Permits(u32),
    /// The queue has no limit.
    Unlimited,
}

/// A function that decides whether this runner may treat another one with this lease as dead because of its silence, at
/// this reading of the database's clock. It is called after the read.
pub type MayJudge = Arc<dyn Fn(&Reading, Duration) -> bool + Send + Sync>;

/// The limit of a queue, and the permits of the other runners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shares {
    limit: u32,
    others: u32,
    /// Number of runners that hold or want permits, this one included.
    runners: u32,
    /// True if another runner has less than its fair share and has jobs for more.
    wanting: bool,
}

/// Another runner that holds or wants permits of a queue.
struct Holder {
    runner: String,
    permits: u32,
    wanting: bool,
    /// It is a remote worker that lives: it may have fewer open attempts than permits.
    may_leak: bool,
}

impl Shares {
    fn beside(others: &[Holder], limit: u32) -> Self {
        let mut shares = Self { limit, others: 0, runners: 1, wanting: false };
        for holder in others {
            shares.others = shares.others.saturating_add(holder.permits);
            shares.wanting |= holder.wanting;
            shares.runners += u32::from(holder.permits > 0 || holder.wanting);
        }
        shares
    }

    fn fair(self) -> u32 {
        self.limit.div_ceil(self.runners.max(1))
    }

    /// Return the number of jobs that may run here, and whether that is less than this runner's fair share of the work
    /// that it has.
    fn granted(self, asked: PermitRequest) -> (u32, bool) {
        let PermitRequest { wanted, yielding, .. } = asked;
        let share = if yielding { self.limit / self.runners.max(1) } else { self.fair() };
        let room = self.limit.saturating_sub(self.others);
        // A runner that has more than its share gives permits back as its jobs end, if another runner lacks some of its
        // share.
        let target = if self.wanting { wanted.min(share) } else { wanted };
        let granted = target.min(room);
        (granted, granted < wanted.min(self.fair()))
    }
}

impl Store {
    /// Take or give back permits, so that this runner holds as many as it can use and the limit of the queue allows.
    /// The permits of a silent runner become free if `may_judge` allows it.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses. The runner then keeps the permits that it had.
    #[boxed]
    pub async fn take_permits(
        &self,
        queue: &Name,
        runner: &RunnerId,
        asked: PermitRequest,
        may_judge: MayJudge,
    ) -> Result<PermitGrant, StoreError> {
        let (queue, runner) = (queue.clone(), runner.clone());
        transact(&self.shared.pools.loops, "take permits of a queue", move |conn, _| {
            let (queue, runner, may_judge) = (queue.clone(), runner.clone(), Arc::clone(&may_judge));
            Box::pin(async move { take(conn, &queue, &runner, asked, &may_judge).await })
        })
        .await
    }

    /// Read the permits of this runner for these queues, as they are stored.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn permits_of(&self, runner: &RunnerId, queues: Vec<Name>) -> Result<BTreeMap<String, u32>, StoreError> {
        let runner = runner.clone();
        on_pool(&self.shared.pools.loops, "read the permits of a runner", move |conn, _| {
            let (runner, queues) = (runner.clone(), queues.clone());
            Box::pin(async move {
                let mut found = BTreeMap::new();
                for queues in queues.chunks(MAX_QUEUES_AT_ONCE) {
                    let names: Vec<&str> = queues.iter().map(Name::as_str).collect();
                    let sql = format!(
                        "SELECT queue, permits FROM queue_permits WHERE runner = ? AND queue IN {}",
                        placeholders(padded_len(names.len()))
                    );
                    let query = bind_padded(statement(sql).bind(runner.as_str().to_owned()), &names);
                    for row in query.fetch_all(&mut *conn).await? {
                        found.insert(row.try_get("queue")?, row.try_get("permits")?);
                    }
                }
                Ok(found)
            })
        })
        .await
    }

    /// Give back all permits of a runner that stops.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses. The permits then become free when the runner's heartbeat is old enough.
    #[boxed]
    pub async fn return_permits(&self, queues: Vec<Name>, runner: &RunnerId) -> Result<(), StoreError> {
        let runner = runner.clone();
        on_pool(&self.shared.pools.loops, "give permits back", move |conn, _| {
            let (queues, runner) = (queues.clone(), runner.clone());
            Box::pin(async move {
                for queue in queues {
                    remove(conn, queue.as_str(), runner.as_str()).await?;
                }
                Ok(())
            })
        })
        .await
    }

    /// List the pairs of queue and runner where the runner lacks permits that it could use.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn wanting_permits(&self) -> Result<BTreeSet<(Name, String)>, StoreError> {
        on_pool(&self.shared.pools.controls, "read which runners want permits", |conn, _| {
            Box::pin(async move {
                let sql = "SELECT queue, runner FROM queue_permits WHERE wanting LIMIT 2000";
                let mut wanting = BTreeSet::new();
                for row in rows_as_text(conn, sql, Vec::new()).await? {
                    let queue = row.try_get::<String, _>("queue")?.parse().map_err(|_| corrupt("queue"))?;
                    wanting.insert((queue, row.try_get("runner")?));
                }
                Ok(wanting)
            })
        })
        .await
    }

    /// Read the number of permits taken, by queue: the jobs that run, or may start at any time, of each queue with a
    /// limit.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn permits(&self) -> Result<BTreeMap<String, u32>, StoreError> {
        on_pool(&self.shared.pools.reads, "read the permits", |conn, _| {
            Box::pin(async move {
                let sql = "SELECT p.queue, CAST(SUM(p.permits) AS UNSIGNED) AS taken FROM queue_permits p \
                           JOIN runners r ON r.id = p.runner WHERE r.stopped_at IS NULL GROUP BY p.queue LIMIT 2000";
                let rows = sqlx::query(sql).fetch_all(conn).await?;
                rows.iter()
                    .map(|row| {
                        Ok((row.try_get("queue")?, u32::try_from(row.try_get::<u64, _>("taken")?).unwrap_or(u32::MAX)))
                    })
                    .collect()
            })
        })
        .await
    }
}

pub(super) async fn take(
    conn: &mut Session<'_>,
    queue: &Name,
    runner: &RunnerId,
    asked: PermitRequest,
    may_judge: &MayJudge,
) -> Result<PermitGrant, sqlx::Error> {
    // This row lock makes the runners take turns. It is tried a few times within about a second instead of waited for:
    // a runner that froze inside this transaction may keep it, and the permits of other queues are next in turn.
    let sql = "SELECT concurrency FROM queues WHERE name = ? FOR UPDATE NOWAIT";
    let limit: Option<Option<u32>> = sqlx::query_scalar(sql).bind(queue.as_str()).fetch_optional(&mut *conn).await?;
    lock_in_cluster(conn, Locked::Queue, [queue.as_str()]).await?;
    let Some(limit) = limit.flatten() else {
        remove(conn, queue.as_str(), runner.as_str()).await?;
        return Ok(PermitGrant::Unlimited);
    };
    // A runner that has been silent for its lease and `SILENT_FOR` starts no more jobs under its permits.
    let silent_for_us = i64::try_from(SILENT_FOR.as_micros()).unwrap_or(i64::MAX);
    let sent = Instant::now();
    let held = sqlx::query(
        "SELECT p.runner, p.permits, p.wanting, r.id IS NOT NULL AND r.stopped_at IS NULL AS listed, \
             r.heartbeat_at > UTC_TIMESTAMP(6) - INTERVAL r.lease_ms * 1000 + ? MICROSECOND AS heard, \
             UTC_TIMESTAMP(6) AS moment, CAST(COALESCE(r.lease_ms, 0) AS SIGNED) AS lease_ms, \
             COALESCE(r.via = 'http', FALSE) AS is_remote \
         FROM queue_permits p LEFT JOIN runners r ON r.id = p.runner WHERE p.queue = ? ORDER BY p.runner",
    )
    .bind(silent_for_us)
    .bind(queue.as_str())
    .fetch_all(&mut *conn)
    .await?;
    let received = Instant::now();
    let mut others = Vec::with_capacity(held.len());
    for row in &held {
        let holder: String = row.try_get("runner")?;
        if holder == runner.as_str() {
            continue;
        }
        let is_remote: bool = row.try_get("is_remote")?;
        let listed: bool = row.try_get("listed")?;
        let silent = !row.try_get::<Option<bool>, _>("heard")?.unwrap_or(false);
        // While MySQL is down, or when its clock is set, every runner looks silent. So its row counts until `may_judge`
        // can decide.
        let lease = Duration::from_millis(row.try_get::<i64, _>("lease_ms")?.unsigned_abs());
        let gone = !listed || (silent && may_judge(&Reading { sent, received, moment: row.try_get("moment")? }, lease));
        let (mut permits, mut wanting): (u32, bool) = (row.try_get("permits")?, row.try_get("wanting")?);
        if gone {
            // Some permits may still be in use: the leases of jobs claimed after the last heartbeat end later, and
            // suspects run on in processes of their own.
            permits = permits.min(open_attempts(conn, queue, &holder).await?);
            wanting = false;
            if permits == 0 {
                remove(conn, queue.as_str(), &holder).await?;
                continue;
            }
        }
        others.push(Holder { runner: holder, permits, wanting, may_leak: is_remote && !gone && permits > 0 });
    }
    let (mut granted, mut wanting) = Shares::beside(&others, limit).granted(asked);
    if granted < asked.wanted && others.iter().any(|holder| holder.may_leak) {
        take_leaked(conn, queue, &mut others).await?;
        (granted, wanting) = Shares::beside(&others, limit).granted(asked);
    }
    // Running jobs count even beyond the grant: no other runner may take these permits before the jobs have ended.
    let held = granted.max(asked.used);
    if held == 0 && !wanting {
        remove(conn, queue.as_str(), runner.as_str()).await?;
    } else {
        let sql = "INSERT INTO queue_permits (queue, runner, permits, wanting) VALUES (?, ?, ?, ?) \
                   ON DUPLICATE KEY UPDATE permits = VALUES(permits), wanting = VALUES(wanting)";
        let insert = sqlx::query(sql).bind(queue.as_str()).bind(runner.as_str()).bind(held).bind(wanting);
        insert.execute(conn).await?;
    }
    Ok(PermitGrant::Permits(granted))
}

/// Free the permits of remote workers without open attempts, in a transaction that has locked the queue. A remote worker
/// takes permits and starts its attempts in one transaction, so it starts none under permits that it has left. They are
/// given back after the end of each attempt, but the process that does it may die before.
async fn take_leaked(conn: &mut Session<'_>, queue: &Name, others: &mut [Holder]) -> Result<(), sqlx::Error> {
    let names: Vec<&str> =
        others.iter().filter(|holder| holder.may_leak).map(|holder| holder.runner.as_str()).collect();
    let open = open_attempts_of_each(conn, queue, &names).await?;
    for holder in others.iter_mut().filter(|holder| holder.may_leak) {
        let used = open.get(&holder.runner).copied().unwrap_or(0);
        if used >= holder.permits {
            continue;
        }
        (holder.permits, holder.wanting) = (used, holder.wanting && used > 0);
        if used == 0 {
            remove(conn, queue.as_str(), &holder.runner).await?;
        } else {
            let sql = "UPDATE queue_permits SET permits = ? WHERE queue = ? AND runner = ?";
            let update = sqlx::query(sql).bind(used).bind(queue.as_str()).bind(holder.runner.as_str());
            update.execute(&mut *conn).await?;
        }
    }
    Ok(())
}

/// Count the open attempts of this queue that these runners started, by runner. Those without one are left out.
async fn open_attempts_of_each(
    conn: &mut Session<'_>,
    queue: &Name,
    holders: &[&str],
) -> Result<BTreeMap<String, u32>, sqlx::Error> {
    let mut ids: BTreeSet<Uuid> = BTreeSet::new();
    for holders in holders.chunks(MAX_ROWS) {
        let sql = format!("SELECT ids FROM claim_batches WHERE runner IN {}", placeholders(padded_len(holders.len())));
        for batch in bind_padded(statement(sql), holders).fetch_all(&mut *conn).await? {
            for id in batch.try_get::<&[u8], _>(0)?.chunks_exact(16) {
                ids.insert(Uuid::from_slice(id).map_err(|e| corrupt(e.to_string()))?);
            }
        }
    }
    let mut open = BTreeMap::new();
    let ids: Vec<Uuid> = ids.into_iter().collect();
    for ids in ids.chunks(MAX_ROWS) {
        let sql = format!(
            "SELECT runner, COUNT(*) AS open FROM owed FORCE INDEX (PRIMARY) WHERE id IN {} AND queue = ? \
             AND state = 'executing' GROUP BY runner",
            placeholders(padded_len(ids.len()))
        );
        for row in bind_padded(statement(sql), ids).bind(queue.as_str()).fetch_all(&mut *conn).await? {
            let count = u32::try_from(row.try_get::<i64, _>("open")?).unwrap_or(u32::MAX);
            *open.entry(row.try_get("runner")?).or_insert(0) += count;
        }
    }
    Ok(open)
}

/// Count the open attempts of this queue that this runner started, or the processes of its suspects. The reaper ends
/// those whose leases have lapsed.
pub(super) async fn open_attempts(conn: &mut Session<'_>, queue: &Name, holder: &str) -> Result<u32, sqlx::Error> {
    let sql = "SELECT b.ids FROM claim_batches b WHERE b.runner = ? \
               UNION ALL SELECT b.ids FROM runners r JOIN claim_batches b ON b.runner = r.id WHERE r.parent = ?";
    let mut ids: Vec<Uuid> = Vec::new();
    for batch in sqlx::query(sql).bind(holder).bind(holder).fetch_all(&mut *conn).await? {
        for id in batch.try_get::<&[u8], _>(0)?.chunks_exact(16) {
            ids.push(Uuid::from_slice(id).map_err(|e| corrupt(e.to_string()))?);
        }
    }
    ids.sort_unstable();
    ids.dedup();
    let mut open = 0;
    for ids in ids.chunks(MAX_ROWS) {
        let sql = format!(
            "SELECT COUNT(*) FROM owed o FORCE INDEX (PRIMARY) LEFT JOIN runners r ON r.id = o.runner \
             WHERE o.id IN {} AND o.queue = ? AND o.state = 'executing' AND (o.runner = ? OR r.parent = ?)",
            placeholders(padded_len(ids.len()))
        );
        let query = bind_padded(statement(sql), ids);
        let row = query.bind(queue.as_str()).bind(holder).bind(holder).fetch_one(&mut *conn).await?;
        open += u32::try_from(row.try_get::<i64, _>(0)?).unwrap_or(u32::MAX);
    }
    Ok(open)
}

async fn remove(conn: &mut Session<'_>, queue: &str, runner: &str) -> Result<(), sqlx::Error> {
    let delete = sqlx::query("DELETE FROM queue_permits WHERE queue = ? AND runner = ?").bind(queue).bind(runner);
    delete.execute(conn).await.map(drop)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn who_has_more_than_its_share_gives_way_and_nobody_keeps_what_others_can_use() {
        let shares = |others, wanting| Shares { limit: 10, others, runners: 2, wanting };
        let asked = |used, wanted| PermitRequest { used, wanted, yielding: false };
        // The only runner with work gets all permits.
        assert_eq!(shares(0, false).granted(asked(0, 64)), (10, false));
        // The second runner gets nothing, lacks its share, and reports that it wants permits.
        assert_eq!(shares(10, false).granted(asked(0, 64)), (0, true));
        // The first runner gives permits back as its jobs end.
        assert_eq!(shares(0, true).granted(asked(10, 64)), (5, false));
        assert_eq!(shares(3, true).granted(asked(4, 64)), (5, false));
        // A lowered limit stops no running job and starts none.
        assert_eq!(shares(40, false).granted(asked(24, 64)), (0, true));
    }

    proptest! {
        #[test]
        fn what_may_start_never_breaks_the_limit(
            limit in 0_u32..50, others in 0_u32..80, runners in 1_u32..6, wanting: bool, used in 0_u32..20, more in 0_u32..80,
            yielding: bool,
        ) {
            let shares = Shares { limit, others, runners, wanting };
            let (granted, _) = shares.granted(PermitRequest { used, wanted: used + more, yielding });
            prop_assert!(granted <= used + more && (granted == 0 || granted + others <= limit));
        }
    }
}
