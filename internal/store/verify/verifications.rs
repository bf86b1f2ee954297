//! Checks of all guarantees (`tickr verify`) that operators requested: one at a time in the cluster, and the reports of
//! the newest few.
//!
//! The row of the running check is the lock, by a unique key. If its runner dies, the row stays. The next request finds
//! that its time is over or that its runner has stopped, and ends it.

use std::time::Duration;

use async_recursion::async_recursion as boxed;
use chrono::TimeDelta;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::audit::{AuditEntry, record};
use crate::sql::batches::statement;
use crate::sql::clock::read_clock;
use crate::sql::connection::{PriorRun, on_pool, transact};
use crate::sql::error::{Fault, again, fault};
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Actor, RunnerId, Timestamp};

/// Number of checks that are kept.
const KEPT: u32 = 20;

/// A check of all guarantees.
#[derive(Clone, Debug)]
pub struct Verification {
    /// Its id, made with the request. Ids sort by time.
    pub id: Uuid,
    /// The runner that carries it out.
    pub runner: RunnerId,
    /// Time when it began.
    pub started_at: Timestamp,
    /// The actor that requested it.
    pub by: Actor,
    /// If set, only jobs created since then are checked.
    pub since: Option<Timestamp>,
    /// Time when it ended.
    pub finished_at: Option<Timestamp>,
    /// The report, as JSON.
    pub report: Option<String>,
    /// The reason, if it ended without a report.
    pub failure: Option<String>,
}

/// Outcome of a request for a check.
#[derive(Clone, Debug)]
pub enum BeginOutcome {
    /// Started. The calling runner must carry it out.
    Started(Verification),
    /// Not started, because this check is running.
    UnderWay(Verification),
}

const COLUMNS: &str = "id, runner, started_at, started_by, since, finished_at, report, failure";

impl Store {
    /// Begin a check of the jobs created since `since`, unless another check is running. It may take as long as
    /// `limit`.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn begin_verification(
        &self,
        id: Uuid,
        runner: &RunnerId,
        since: Option<Timestamp>,
        limit: Duration,
        by: &Actor,
    ) -> Result<BeginOutcome, StoreError> {
        let limit = TimeDelta::from_std(limit).unwrap_or(TimeDelta::hours(1));
        let act = AuditEntry::new(by, "verify.start", id.to_string());
        let (shared, runner) = (self.shared.clone(), runner.clone());
        transact(&self.shared.pools.steering, "begin a check", move |conn, earlier| {
            let (shared, runner, act) = (shared.clone(), runner.clone(), act.clone());
            Box::pin(async move {
                let now = read_clock(conn, &shared.clock).await?;
                if let Some((open, over)) = under_way(conn, now).await? {
                    if open.id == id && earlier == PriorRun::MayHaveCommitted {
                        return Ok(BeginOutcome::Started(open));
                    }
                    if !over {
                        return Ok(BeginOutcome::UnderWay(open));
                    }
                    end(conn, open.id, now, None, Some("its runner stopped, or its time ran out")).await?;
                }
                let written = sqlx::query(
                    "INSERT INTO verifications (id, runner, started_at, started_by, since, expires_at, under_way) \
                     VALUES (?, ?, ?, ?, ?, ?, 1)",
                )
                .bind(id)
                .bind(runner.as_str())
                .bind(now)
                .bind(act.actor.as_str())
                .bind(since)
                .bind(now + limit)
                .execute(&mut *conn)
                .await;
                match written {
                    Err(e) if fault(&e) == Fault::Duplicate => return Err(again("another process began a check")),
                    written => written?,
                };
                prune(conn).await?;
                record(conn, &act, now).await?;
                Ok(BeginOutcome::Started(Verification {
                    id,
                    runner,
                    started_at: now,
                    by: act.actor,
                    since,
                    finished_at: None,
                    report: None,
                    failure: None,
                }))
            })
        })
        .await
    }

    /// End a check with its report as JSON, or with the reason why there is none. A check that has already ended stays
    /// unchanged.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn end_verification(&self, id: Uuid, found: Result<String, String>) -> Result<(), StoreError> {
        let shared = self.shared.clone();
        transact(&self.shared.pools.steering, "end a check", move |conn, _| {
            let (shared, found) = (shared.clone(), found.clone());
            Box::pin(async move {
                let now = read_clock(conn, &shared.clock).await?;
                let (report, failure) =
                    (found.as_ref().ok().map(String::as_str), found.as_ref().err().map(String::as_str));
                end(conn, id, now, report, failure).await
            })
        })
        .await
    }

    /// Read the running check and the last one that ended. A check whose runner died counts as neither.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn verifications(&self) -> Result<(Option<Verification>, Option<Verification>), StoreError> {
        on_pool(&self.shared.pools.reads, "read the checks", |conn, _| {
            Box::pin(async move {
                let now: Timestamp = sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut *conn).await?;
                let open = under_way(conn, now).await?.filter(|(_, over)| !over).map(|(open, _)| open);
                let sql =
                    format!("SELECT {COLUMNS} FROM verifications WHERE under_way IS NULL ORDER BY id DESC LIMIT 1");
                let last = statement(sql).fetch_optional(conn).await?;
                Ok((open, last.as_ref().map(verification).transpose()?))
            })
        })
        .await
    }
}

/// Read the running check, and whether it has exceeded its time or lost its runner.
async fn under_way(conn: &mut Session<'_>, now: Timestamp) -> Result<Option<(Verification, bool)>, sqlx::Error> {
    let sql = format!(
        "SELECT {COLUMNS}, expires_at <= ? OR EXISTS (SELECT 1 FROM runners r WHERE r.id = v.runner \
         AND r.stopped_at IS NOT NULL) AS lapsed FROM verifications v WHERE under_way = 1"
    );
    let Some(row) = statement(sql).bind(now).fetch_optional(conn).await? else { return Ok(None) };
    Ok(Some((verification(&row)?, row.try_get("lapsed")?)))
}

async fn end(
    conn: &mut Session<'_>,
    id: Uuid,
    now: Timestamp,
    report: Option<&str>,
    failure: Option<&str>,
) -> Result<(), sqlx::Error> {
    let sql = "UPDATE verifications SET under_way = NULL, finished_at = ?, report = ?, failure = ? \
               WHERE id = ? AND under_way = 1";
    sqlx::query(sql).bind(now).bind(report).bind(failure).bind(id).execute(conn).await.map(drop)
}

async fn prune(conn: &mut Session<'_>) -> Result<(), sqlx::Error> {
    let oldest: Option<Uuid> = sqlx::query_scalar("SELECT id FROM verifications ORDER BY id DESC LIMIT 1 OFFSET ?")
        .bind(KEPT)
        .fetch_optional(&mut *conn)
        .await?;
    let Some(oldest) = oldest else { return Ok(()) };
    let sql = "DELETE FROM verifications WHERE id <= ? AND under_way IS NULL ORDER BY id LIMIT 100";
    sqlx::query(sql).bind(oldest).execute(conn).await.map(drop)
}

fn verification(row: &MySqlRow) -> Result<Verification, sqlx::Error> {
    Ok(Verification {
        id: row.try_get("id")?,
        runner: RunnerId::from_stored(row.try_get("runner")?),
        started_at: row.try_get("started_at")?,
        by: Actor::from_stored(row.try_get("started_by")?),
        since: row.try_get("since")?,
        finished_at: row.try_get("finished_at")?,
        report: row.try_get("report")?,
        failure: row.try_get("failure")?,
    })
}
