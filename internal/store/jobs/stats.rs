//! Counts of jobs, for people and for metrics.

use std::collections::{BTreeMap, BTreeSet};

use async_recursion::async_recursion as boxed;
use sqlx::Row;

use crate::jobs::backlog::{Backlog, StateCount, backlog, backlog_of};
use crate::jobs::ended::{Ended, ended, ended_of, first_ended, known};
use crate::jobs::lanes::{lines_of, queues_to_show};
use crate::rows::limits::parked_until;
use crate::sql::batches::statement;
use crate::sql::connection::on_pool;
use crate::sql::error::corrupt;
use crate::{Store, StoreError};
use tickr_job::{Name, State, Timestamp};

/// Most queues that are counted in addition to those that runners serve: the first ones by name that have unfinished
/// jobs. As many of those that have ended ones are named.
const MAX_QUEUES: usize = 200;

/// Most open dead letters that are counted.
const MAX_OPEN: u32 = 100_000;

/// A reading of the tables.
#[derive(Clone, Debug)]
pub struct Stats {
    /// The database's clock at the time of the read.
    pub at: Timestamp,
    /// Unfinished jobs by queue and state.
    pub owed: Vec<StateCount>,
    /// Jobs that ever ended, by queue and state: of the queues in `owed`, of those with settings or a runner, and of
    /// the first ones by name. An operator's retry subtracts one.
    pub ended: Vec<StateCount>,
    /// Ended jobs of all other queues, added up by state.
    pub ended_elsewhere: Vec<(State, i64)>,
    /// Open dead letters by queue: failed jobs that were neither retried, replayed nor discarded.
    pub open_dead_letters: BTreeMap<Name, u64>,
    /// False if there are more open dead letters than are counted.
    pub open_dead_letters_exact: bool,
    /// True if all unfinished jobs of all queues were counted.
    pub exact: bool,
    /// The queues whose unfinished jobs were all counted. It matters only if `exact` is false.
    pub whole: BTreeSet<Name>,
    /// Due time of the oldest waiting job that is overdue.
    pub oldest_due: Option<Timestamp>,
    /// The same for each queue with overdue jobs.
    pub oldest_due_by_queue: BTreeMap<Name, Timestamp>,
    /// Due time of the next waiting job that is not due yet.
    pub next_due: Option<Timestamp>,
}

impl Stats {
    /// Return whether all unfinished jobs of this queue were counted.
    #[must_use]
    pub fn is_exact_about(&self, queue: &Name) -> bool {
        self.exact || self.whole.contains(queue)
    }
}

/// Use of a pool of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// `controls`, `loops`, `steering`, `reads` or `reports`.
    pub pool: &'static str,
    /// Connections that are open but not in use.
    pub idle: usize,
    /// Connections in use.
    pub busy: usize,
}

impl Store {
    /// Return the use of each pool. The group commits and the heartbeat have connections of their own.
    #[must_use]
    pub fn pool_use(&self) -> [PoolUse; 8] {
        self.shared.pools.each().map(|(name, pool)| {
            let connections = pool.connections();
            let (size, idle) = (connections.size() as usize, connections.num_idle());
            PoolUse { pool: name, idle, busy: size.saturating_sub(idle) }
        })
    }

    /// Count jobs by queue and state. At most a hundred thousand unfinished jobs are counted. Ended jobs come from the
    /// tallies.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn stats(&self) -> Result<Stats, StoreError> {
        self.count_jobs(None).await
    }

    /// Count the jobs of this queue alone, so that other queues add nothing to the cost. `exact` is about this queue.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn stats_of(&self, queue: Name) -> Result<Stats, StoreError> {
        self.count_jobs(Some(queue)).await
    }

    async fn count_jobs(&self, only: Option<Name>) -> Result<Stats, StoreError> {
        on_pool(&self.shared.pools.reads, "count jobs", move |conn, _| {
            let only = only.clone();
            Box::pin(async move {
                let at: Timestamp = sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut *conn).await?;
                let (queues, others) = match &only {
                    Some(queue) => (vec![queue.clone()], false),
                    None => queues_to_show(conn, MAX_QUEUES).await?,
                };
                let lines = lines_of(conn, &queues).await?;
                let counted = match &only {
                    Some(_) => backlog_of(conn, &queues, &lines, others).await?,
                    None => backlog(conn, &queues, &lines, others).await?,
                };
                let Backlog { counts: owed, exact, whole } = counted;
                let Ended { counts: ended, elsewhere: ended_elsewhere } = match &only {
                    Some(queue) => ended_of(conn, queue).await?,
                    None => {
                        let mut shown = first_ended(conn, MAX_QUEUES).await?;
                        shown.append(&mut known(conn).await?);
                        shown.extend(owed.iter().map(|count| &count.queue).chain(&queues).cloned());
                        ended(conn, &shown).await?
                    }
                };
                let (mut oldest_due, mut next_due): (Option<Timestamp>, Option<Timestamp>) = (None, None);
                let mut oldest_due_by_queue = BTreeMap::new();
                for line in &lines {
                    let edges = sqlx::query(
                        "SELECT (SELECT execute_at FROM owed FORCE INDEX (owed_line) WHERE queue = ? AND priority = ? \
                         AND execute_at <= UTC_TIMESTAMP(3) AND state <> 'executing' ORDER BY execute_at LIMIT 1) \
                         AS oldest_due, (SELECT execute_at FROM owed FORCE INDEX (owed_line) WHERE queue = ? \
                         AND priority = ? AND execute_at > UTC_TIMESTAMP(3) AND execute_at < ? \
                         ORDER BY execute_at LIMIT 1) AS next_due",
                    );
                    let (queue, priority) = (line.queue.as_str(), line.priority.level());
                    let edges = edges.bind(queue).bind(priority).bind(queue).bind(priority);
                    // A job that waits for its turn has no due time.
                    let edges = edges.bind(parked_until().naive_utc());
                    let row = edges.fetch_one(&mut *conn).await?;
                    let oldest: Option<Timestamp> = row.try_get("oldest_due")?;
                    if let Some(oldest) = oldest {
                        let of_queue = oldest_due_by_queue.entry(line.queue.clone()).or_insert(oldest);
                        *of_queue = oldest.min(*of_queue);
                    }
                    oldest_due = earlier(oldest_due, oldest);
                    next_due = earlier(next_due, row.try_get("next_due")?);
                }
                let condition = if only.is_some() { "AND queue = ?" } else { "" };
                let mut dead_letters = statement(format!(
                    "SELECT queue, COUNT(*) AS jobs FROM (SELECT queue FROM dead_letters \
                     FORCE INDEX (dead_letters_queue) WHERE standing = 'open' {condition} LIMIT ?) d GROUP BY queue"
                ));
                if let Some(queue) = &only {
                    dead_letters = dead_letters.bind(queue.as_str());
                }
                let dead_letters = dead_letters.bind(MAX_OPEN).fetch_all(&mut *conn).await?;
                let mut open_dead_letters = BTreeMap::new();
                for row in &dead_letters {
                    let queue: Name = row.try_get::<String, _>("queue")?.parse().map_err(|_| corrupt("queue"))?;
                    open_dead_letters.insert(queue, row.try_get::<i64, _>("jobs")?.unsigned_abs());
                }
                let open_dead_letters_exact = open_dead_letters.values().sum::<u64>() < u64::from(MAX_OPEN);
                Ok(Stats {
                    at,
                    owed,
                    ended,
                    ended_elsewhere,
                    open_dead_letters,
                    open_dead_letters_exact,
                    exact,
                    whole,
                    oldest_due,
                    oldest_due_by_queue,
                    next_due,
                })
            })
        })
        .await
    }
}

/// Return the earlier of two moments. Either may be absent.
fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}
