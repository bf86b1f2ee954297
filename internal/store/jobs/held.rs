//! Counts of the jobs that are held, by queue and reason, for metrics. Like the counts in `backlog.rs`, they cost the
//! same behind any backlog.
//!
//! A held job has a due time in the year 9999, which tells the reason. So the jobs of one lane and one reason stand
//! side by side in the index of the lanes. Which of the parked jobs wait for a breaker is read from the keys with an
//! open one.

use std::collections::BTreeMap;

use async_recursion::async_recursion as boxed;
use sqlx::Row;

use crate::jobs::lanes::{DueLane, MAX_BRANCHES, lines_of, queues_to_show};
use crate::rows::limits::parked_until;
use crate::rows::links::blocked_until;
use crate::rows::order::held_until;
use crate::rows::owed::unreadable;
use crate::sql::batches::{padded_len, statement};
use crate::sql::connection::on_pool;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Name, Timestamp};

/// Most queues that are counted in addition to those that runners serve: the first ones by name.
const MAX_QUEUES: usize = 200;
/// Most lanes that are counted. The lanes are sorted by queue.
const MAX_LANES: usize = 2_000;
/// Rows that one count may read, over all lanes and reasons together.
const MAX_COUNTED: usize = 100_000;
/// Rows of each lane and reason that are counted first. What is left of [`MAX_COUNTED`] is then shared by those that
/// have more.
const FIRST_SHARE: usize = 1_000;

/// The reason why a job is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HoldReason {
    /// Another job with its order key is in front of it.
    OrderKey,
    /// A limit by key leaves no room for it.
    Limit,
    /// The breaker of its host is open.
    Breaker,
    /// It waits for its parents.
    Parents,
}

impl HoldReason {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::OrderKey, Self::Limit, Self::Breaker, Self::Parents];

    /// Return the word for metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OrderKey => "order_key",
            Self::Limit => "limit",
            Self::Breaker => "breaker",
            Self::Parents => "parents",
        }
    }
}

/// The number of jobs of one queue that are held for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldCount {
    /// The queue.
    pub queue: Name,
    /// The reason.
    pub reason: HoldReason,
    /// Number of jobs, counted up to a limit.
    pub jobs: i64,
}

impl Store {
    /// Count the jobs that are held, by queue and reason. At most a hundred thousand are counted, shared among the
    /// lanes; above that, a count is a lower bound.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn held_jobs(&self) -> Result<Vec<HeldCount>, StoreError> {
        let has_breakers = self.shared.limits.now().iter().any(|set| set.breaker_rule().is_some());
        on_pool(&self.shared.pools.reads, "count held jobs", move |conn, _| {
            Box::pin(async move {
                let (queues, _) = queues_to_show(conn, MAX_QUEUES).await?;
                let lanes = lines_of(conn, &queues).await?;
                let mut counts = by_due_time(conn, &lanes).await?;
                if has_breakers {
                    for (queue, waiting) in behind_breakers(conn).await? {
                        let parked = counts.entry((queue.clone(), HoldReason::Limit)).or_default();
                        *parked = (*parked - waiting).max(0);
                        counts.insert((queue, HoldReason::Breaker), waiting);
                    }
                }
                let held = |((queue, reason), jobs)| HeldCount { queue, reason, jobs };
                Ok(counts.into_iter().map(held).collect())
            })
        })
        .await
    }
}

/// A part of a lane: the jobs that are held for one reason.
type Part<'a> = (&'a DueLane, HoldReason);

/// Count the held jobs of these lanes by the reasons that their due times tell.
async fn by_due_time(
    conn: &mut Session<'_>,
    lanes: &[DueLane],
) -> Result<BTreeMap<(Name, HoldReason), i64>, sqlx::Error> {
    let lanes = &lanes[..lanes.len().min(MAX_LANES)];
    let told = [HoldReason::OrderKey, HoldReason::Limit, HoldReason::Parents];
    let parts: Vec<Part<'_>> = lanes.iter().flat_map(|lane| told.map(|reason| (lane, reason))).collect();
    let first = FIRST_SHARE.min(MAX_COUNTED / parts.len().max(1));
    let mut found = count(conn, &parts, first).await?;
    let rows = |jobs: i64| usize::try_from(jobs).unwrap_or(0);
    let longer: Vec<usize> = (0..found.len()).filter(|place| rows(found[*place]) >= first).collect();
    if !longer.is_empty() {
        let read: usize = found.iter().copied().map(rows).sum();
        let share = first.max(MAX_COUNTED.saturating_sub(read) / longer.len());
        let again: Vec<Part<'_>> = longer.iter().map(|place| parts[*place]).collect();
        for (place, jobs) in longer.into_iter().zip(count(conn, &again, share).await?) {
            found[place] = jobs;
        }
    }
    let mut counts: BTreeMap<(Name, HoldReason), i64> = BTreeMap::new();
    for ((lane, reason), jobs) in parts.into_iter().zip(found) {
        *counts.entry((lane.queue.clone(), reason)).or_default() += jobs;
    }
    Ok(counts)
}

/// Count the first `share` jobs of each of these parts.
async fn count(conn: &mut Session<'_>, parts: &[Part<'_>], share: usize) -> Result<Vec<i64>, sqlx::Error> {
    let mut found = Vec::with_capacity(parts.len());
    let most = i64::try_from(share).unwrap_or(i64::MAX);
    for parts in parts.chunks(MAX_BRANCHES) {
        let mut query = statement(counts(padded_len(parts.len())));
        for place in 0..padded_len(parts.len()) {
            // The branches that only pad the statement to its length count nothing.
            let ((lane, reason), rows) = parts.get(place).map_or((parts[0], 0), |part| (*part, most));
            let at = due_time_of(reason).naive_utc();
            query = query.bind(lane.queue.as_str()).bind(lane.priority.level()).bind(at).bind(rows);
        }
        let mut page = vec![0; parts.len()];
        for row in &query.fetch_all(&mut *conn).await? {
            let place = usize::try_from(row.try_get::<i64, _>("place")?).unwrap_or(usize::MAX);
            if let Some(jobs) = page.get_mut(place) {
                *jobs = row.try_get("jobs")?;
            }
        }
        found.append(&mut page);
    }
    Ok(found)
}

/// Return the due time in `owed` that tells a reason.
fn due_time_of(reason: HoldReason) -> Timestamp {
    match reason {
        HoldReason::OrderKey => held_until(),
        HoldReason::Limit | HoldReason::Breaker => parked_until(),
        HoldReason::Parents => blocked_until(),
    }
}

/// The statement that counts this number of parts.
fn counts(parts: usize) -> String {
    let branch = |place: usize| {
        format!(
            "SELECT {place} AS place, COUNT(*) AS jobs FROM (SELECT 1 FROM owed FORCE INDEX (owed_line) \
             WHERE queue = ? AND priority = ? AND execute_at = ? LIMIT ?) o{place}"
        )
    };
    (0..parts).map(branch).collect::<Vec<_>>().join(" UNION ALL ")
}

/// Count the parked jobs of keys whose breaker is open, by queue.
async fn behind_breakers(conn: &mut Session<'_>) -> Result<BTreeMap<Name, i64>, sqlx::Error> {
    let sql = "SELECT queue, COUNT(*) AS jobs FROM (SELECT w.queue FROM limit_keys k FORCE INDEX (limit_keys_probe) \
               STRAIGHT_JOIN limits l ON l.name = k.limit_name STRAIGHT_JOIN limit_waits w \
               FORCE INDEX (limit_waits_line) ON w.limit_name = k.limit_name AND w.limit_key = k.limit_key \
               WHERE k.probe_at IS NOT NULL AND k.failed_at >= l.breaker_since LIMIT ?) b GROUP BY queue";
    let most = i64::try_from(MAX_COUNTED).unwrap_or(i64::MAX);
    let mut found = BTreeMap::new();
    for row in &sqlx::query(sql).bind(most).fetch_all(conn).await? {
        match row.try_get::<&str, _>("queue")?.parse() {
            Ok(queue) => drop(found.insert(queue, row.try_get("jobs")?)),
            Err(_) => unreadable("the queue of a parked job"),
        }
    }
    Ok(found)
}

/// The statement that counts held jobs of lanes, for the test that checks its query plan on the servers.
#[doc(hidden)]
#[must_use]
pub fn held_statement() -> String {
    counts(2)
}
