//! Limits by key, made by operators, and what uses them. The rows of their keys are in `rows/limits.rs`.

use std::sync::Arc;
use std::time::Instant;

use async_recursion::async_recursion as boxed;

use crate::audit::{AuditEntry, record, was_recorded};
use crate::jobs::condition::Condition;
use crate::rows::limits::{COLUMNS, LimitSetting, read_limits, setting};
use crate::sql::batches::{placeholders, statement};
use crate::sql::clock::read_clock;
use crate::sql::connection::{Pool, PriorRun, on_pool, transact};
use crate::sql::error::{Fault, again, fault};
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Actor, Limit, Name};

/// Most limits that operators can set.
pub const MAX_LIMITS: usize = 200;

/// The columns that show each change of a limit, of its count and of its breaker. Every change increments the version, and
/// a limit that is made again begins with another version. So the overrides, which may be long, need not be compared.
pub(crate) const VERSION_COLUMNS: &str = "name, version, changed_at, counted, breaker_since";

/// Largest first version of a limit. Each change increments it, and the column has room for as many changes again.
const MAX_FIRST_VERSION: u32 = u32::MAX / 2;

/// Outcome of a request to set a limit.
#[derive(Clone, Debug)]
pub enum LimitOutcome {
    /// Done. True if the limit is new.
    Done(LimitSetting, bool),
    /// Nothing to do: the limit was as requested.
    Unchanged(LimitSetting),
    /// Another change came first, so the version does not match. Nothing was changed.
    Meanwhile(Option<LimitSetting>),
    /// There are [`MAX_LIMITS`] already.
    TooMany,
}

impl Store {
    /// Read all limits, in the order of their names. This is for the copy in this process.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn limits(&self) -> Result<Vec<LimitSetting>, StoreError> {
        limits_through(&self.shared.pools.controls).await
    }

    /// Read the same as [`limits`](Self::limits), on a connection for clients that list them.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn listed_limits(&self) -> Result<Vec<LimitSetting>, StoreError> {
        limits_through(&self.shared.pools.reads).await
    }

    /// Make the claims and inserts of this process follow these limits, which were read after the moment `asked`.
    pub fn follow_limits(&self, limits: &Arc<Vec<LimitSetting>>, asked: Instant) {
        self.shared.limits.follow(limits, asked);
    }

    /// Set a limit, if its version meets `condition`. The version of a limit that does not exist is 0.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn set_limit(
        &self,
        limit: Limit,
        condition: Condition<u32>,
        by: &Actor,
    ) -> Result<LimitOutcome, StoreError> {
        let act = AuditEntry::new(by, "limit.set", limit.name.as_str()).with(audit_detail(&limit));
        let shared = self.shared.clone();
        // A limit that was removed may be made again. If both began with the same version, a client that read the first one
        // would change the second, and a runner that follows the first one would start jobs by its values.
        let first_version = rand::random_range(1..=MAX_FIRST_VERSION);
        transact(&self.shared.pools.controls, "set a limit", move |conn, earlier| {
            let (shared, limit, act, condition) = (shared.clone(), limit.clone(), act.clone(), condition.clone());
            Box::pin(async move {
                let now = read_clock(conn, &shared.clock).await?;
                let before = lock(conn, &limit.name).await?;
                if earlier == PriorRun::MayHaveCommitted
                    && was_recorded(conn, &act).await?
                    && let Some(before) = before
                {
                    let new = before.version == first_version;
                    return Ok(LimitOutcome::Done(before, new));
                }
                if !condition.is_met_by(before.as_ref().map(|before| before.version)) {
                    return Ok(LimitOutcome::Meanwhile(before));
                }
                let Some(before) = before else {
                    let rows: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM limits").fetch_one(&mut *conn).await?;
                    if usize::try_from(rows).is_ok_and(|rows| rows >= MAX_LIMITS) {
                        return Ok(LimitOutcome::TooMany);
                    }
                    let set = LimitSetting {
                        breaker_since: limit.breaker.map(|_| now),
                        limit,
                        counted: false,
                        changed: (now, act.actor.clone()),
                        version: first_version,
                        share: None,
                    };
                    insert(conn, &set).await?;
                    record(conn, &act, now).await?;
                    return Ok(LimitOutcome::Done(set, true));
                };
                if before.limit == limit {
                    return Ok(LimitOutcome::Unchanged(before));
                }
                // Attempts that run now may count from now on. Those of a limit that only has another number are
                // counted already.
                let counted = before.counted && counts_the_same(&before.limit, &limit);
                let breaker_since = limit.breaker.map(|_| before.breaker_since.unwrap_or(now));
                let set = LimitSetting {
                    limit,
                    counted,
                    breaker_since,
                    changed: (now, act.actor.clone()),
                    version: before.version + 1,
                    share: None,
                };
                write(conn, "REPLACE", &set).await?;
                record(conn, &act, now).await?;
                Ok(LimitOutcome::Done(set, false))
            })
        })
        .await
    }

    /// Remove a limit, if its version meets `condition`. Returns the limit that was removed, or why none was: the
    /// version does not match, or, with nothing in it, there is no such limit.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn remove_limit(
        &self,
        name: &Name,
        condition: Condition<u32>,
        by: &Actor,
    ) -> Result<Result<Name, Option<LimitSetting>>, StoreError> {
        let act = AuditEntry::new(by, "limit.remove", name.as_str());
        let (shared, name) = (self.shared.clone(), name.clone());
        transact(&self.shared.pools.controls, "remove a limit", move |conn, earlier| {
            let (shared, name, act, condition) = (shared.clone(), name.clone(), act.clone(), condition.clone());
            Box::pin(async move {
                let now = read_clock(conn, &shared.clock).await?;
                let Some(before) = lock(conn, &name).await? else {
                    let own = earlier == PriorRun::MayHaveCommitted && was_recorded(conn, &act).await?;
                    return Ok(if own { Ok(name) } else { Err(None) });
                };
                if !condition.is_met_by(Some(before.version)) {
                    return Ok(Err(Some(before)));
                }
                sqlx::query("DELETE FROM limits WHERE name = ?").bind(name.as_str()).execute(&mut *conn).await?;
                record(conn, &act, now).await?;
                Ok(Ok(name))
            })
        })
        .await
    }

    /// Count the jobs that are parked by limits, up to 100,000.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn parked_jobs(&self) -> Result<i64, StoreError> {
        on_pool(&self.shared.pools.reads, "count parked jobs", |conn, _| {
            let sql = "SELECT COUNT(*) FROM (SELECT 1 FROM limit_waits LIMIT 100000) w";
            Box::pin(async move { sqlx::query_scalar(sql).fetch_one(conn).await })
        })
        .await
    }
}

/// Return whether every attempt that counts against `after` had a slot under `before`.
fn counts_the_same(before: &Limit, after: &Limit) -> bool {
    (&before.kind, &before.queue, before.shared_by) == (&after.kind, &after.queue, after.shared_by)
        && (before.bounds.concurrency.is_some() || before.breaker.is_some())
}

fn audit_detail(limit: &Limit) -> serde_json::Value {
    serde_json::json!({
        "kind": limit.kind.as_ref().map(Name::as_str),
        "queue": limit.queue.as_ref().map(Name::as_str),
        "shared_by": limit.shared_by,
        "concurrency": limit.bounds.concurrency,
        "rate": limit.bounds.rate,
        "fair": limit.fair,
        "breaker": limit.breaker,
        "overrides": limit.overrides,
    })
}

async fn lock(conn: &mut Session<'_>, name: &Name) -> Result<Option<LimitSetting>, sqlx::Error> {
    let sql = format!("SELECT {COLUMNS} FROM limits WHERE name = ? FOR UPDATE");
    let row = statement(sql).bind(name.as_str()).fetch_optional(conn).await?;
    row.as_ref().map(setting).transpose()
}

/// Insert a limit that the caller did not find. The caller could lock no row, so another transaction may have inserted
/// the limit meanwhile. Then the next run finds it.
async fn insert(conn: &mut Session<'_>, set: &LimitSetting) -> Result<(), sqlx::Error> {
    match write(conn, "INSERT", set).await {
        Err(e) if fault(&e) == Fault::Duplicate => Err(again("a limit was made meanwhile")),
        done => done,
    }
}

/// Write a limit by INSERT, or by REPLACE if the caller has locked its row.
async fn write(conn: &mut Session<'_>, verb: &'static str, set: &LimitSetting) -> Result<(), sqlx::Error> {
    let Limit { name, kind, queue, shared_by, fair, breaker, bounds, overrides } = &set.limit;
    let overrides = if overrides.is_empty() {
        None
    } else {
        Some(serde_json::to_string(overrides).map_err(|e| sqlx::Error::Encode(Box::new(e)))?)
    };
    statement(format!(
        "{verb} INTO limits (name, kind, queue, shared_by, concurrency, rate, period_ms, burst, fair, overrides, \
         counted, changed_at, changed_by, version, breaker_failures, breaker_pause_ms, breaker_max_pause_ms, breaker_since) \
         VALUES {}",
        placeholders(18)
    ))
    .bind(name.as_str())
    .bind(kind.as_ref().map(Name::as_str))
    .bind(queue.as_ref().map(Name::as_str))
    .bind(shared_by.as_str())
    .bind(bounds.concurrency)
    .bind(bounds.rate.map(|rate| rate.starts))
    .bind(bounds.rate.map(|rate| rate.period_ms))
    .bind(bounds.rate.map(|rate| rate.burst))
    .bind(fair)
    .bind(overrides)
    .bind(set.counted)
    .bind(set.changed.0)
    .bind(set.changed.1.as_str())
    .bind(set.version)
    .bind(breaker.map(|breaker| breaker.failures))
    .bind(breaker.map(|breaker| breaker.pause_ms))
    .bind(breaker.map(|breaker| breaker.max_pause_ms))
    .bind(set.breaker_since)
    .execute(conn)
    .await
    .map(drop)
}

async fn limits_through(pool: &Pool) -> Result<Vec<LimitSetting>, StoreError> {
    on_pool(pool, "read the limits", |conn, _| Box::pin(async move { read_limits(conn).await })).await
}
