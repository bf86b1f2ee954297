//! The audit: the record of what operators changed. A row is appended in the transaction of the change, read newest
//! first, and purged by age.

use std::time::Duration;

use chrono::TimeDelta;
use serde_json::Value;
use sqlx::Row;
use uuid::Uuid;

use crate::rows::aged::{Aged, purge_aged};
use crate::sql::batches::{groups, placeholders, statement, tuples};
use crate::sql::clock::read_clock;
use crate::sql::connection::{on_pool, transact};
use crate::sql::error::{Fault, corrupt, fault};
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Actor, Timestamp, first_id_of};

/// The ids of recorded actions are made by hosts whose clocks may differ by this much from that of the database.
pub(super) const CLOCKS: TimeDelta = TimeDelta::minutes(5);

/// The table `audit`, purged in the order in which the actions were requested.
const ACTS: Aged = Aged { table: "audit", made: "at" };

/// An operator's action that is about to change something.
#[derive(Clone, Debug)]
pub struct AuditEntry {
    /// Made with the request, so that a repeated write recognises its own row.
    id: Uuid,
    /// The actor that requested it.
    pub actor: Actor,
    /// The action in two words, such as `job.cancel` or `queue.pause`.
    pub action: &'static str,
    /// The id or the name of the thing that it changes.
    pub target: String,
    /// Details, a JSON object.
    pub detail: Option<Value>,
}

impl AuditEntry {
    /// An action without details.
    #[must_use]
    pub fn new(actor: &Actor, action: &'static str, target: impl Into<String>) -> Self {
        Self { id: Uuid::now_v7(), actor: actor.clone(), action, target: target.into(), detail: None }
    }

    /// The same action with details.
    #[must_use]
    pub fn with(mut self, detail: Value) -> Self {
        self.detail = Some(detail);
        self
    }
}

/// A recorded action, as it is stored in `audit`.
#[derive(Clone, Debug)]
pub struct AuditRecord {
    /// Its id, by which the list is ordered.
    pub id: Uuid,
    /// The time of the change, by the clock of the database.
    pub at: Timestamp,
    /// The actor that requested it.
    pub actor: Actor,
    /// The action in two words, such as `job.cancel`.
    pub action: String,
    /// The id or the name of the thing that it changed.
    pub target: String,
    /// Details, a JSON object.
    pub detail: Option<Value>,
}

/// Conditions for recorded actions.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// The id or the name of the thing that was changed.
    pub target: Option<String>,
    /// The time of the change, by the clock of the database: this or later.
    pub from: Option<Timestamp>,
    /// The time of the change: earlier than this.
    pub to: Option<Timestamp>,
}

/// Record an action, in the transaction of its change.
pub(super) async fn record(conn: &mut Session<'_>, act: &AuditEntry, now: Timestamp) -> Result<(), sqlx::Error> {
    let written = sqlx::query("INSERT INTO audit (id, at, actor, action, target, detail) VALUES (?, ?, ?, ?, ?, ?)")
        .bind(act.id)
        .bind(now)
        .bind(act.actor.as_str())
        .bind(act.action)
        .bind(act.target.as_str())
        .bind(act.detail.as_ref().map(Value::to_string))
        .execute(conn)
        .await;
    match written {
        // An earlier run of the same transaction was committed after all, although its answer was lost.
        Err(e) if fault(&e) == Fault::Duplicate => Ok(()),
        written => written.map(drop),
    }
}

/// Record several actions of one transaction. The transaction must not run again after its commit, because this
/// function does not accept rows that exist already.
pub(super) async fn record_all(conn: &mut Session<'_>, acts: &[AuditEntry], now: Timestamp) -> Result<(), sqlx::Error> {
    for group in groups(acts) {
        let sql = format!(
            "INSERT INTO audit (id, at, actor, action, target, detail) VALUES {}",
            tuples(&placeholders(6), group.len())
        );
        let mut query = statement(sql);
        for act in group {
            query = query
                .bind(act.id)
                .bind(now)
                .bind(act.actor.as_str())
                .bind(act.action)
                .bind(act.target.as_str())
                .bind(act.detail.as_ref().map(Value::to_string));
        }
        query.execute(&mut *conn).await?;
    }
    Ok(())
}

/// Return the reason in the details of an action, if they have one.
pub(super) fn reason_in(detail: Option<&str>) -> Option<String> {
    let detail: Value = serde_json::from_str(detail?).ok()?;
    Some(detail.get("reason")?.as_str()?.to_owned())
}

/// Return true if an earlier run of the same transaction has recorded this action.
pub(super) async fn was_recorded(conn: &mut Session<'_>, act: &AuditEntry) -> Result<bool, sqlx::Error> {
    let found: Option<i64> =
        sqlx::query_scalar("SELECT 1 FROM audit WHERE id = ?").bind(act.id).fetch_optional(conn).await?;
    Ok(found.is_some())
}

impl Store {
    /// Read recorded actions that match, newest first: those older than the action `before`. A range of time is read as
    /// a range of ids, with some minutes more on both sides.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    pub async fn audit(
        &self,
        filter: AuditFilter,
        before: Option<Uuid>,
        limit: u32,
    ) -> Result<Vec<AuditRecord>, StoreError> {
        on_pool(&self.shared.pools.reads, "read the audit", move |conn, _| {
            let AuditFilter { target, from, to } = filter.clone();
            Box::pin(async move {
                let mut conditions = String::new();
                for (is_set, condition) in [
                    (target.is_some(), "target = ? AND "),
                    (from.is_some(), "id >= ? AND at >= ? AND "),
                    (to.is_some(), "at < ? AND "),
                ] {
                    conditions.push_str(if is_set { condition } else { "" });
                }
                let sql = format!(
                    "SELECT id, at, actor, action, target, detail FROM audit WHERE {conditions}id < ? \
                     ORDER BY id DESC LIMIT ?"
                );
                let mut query = statement(sql);
                if let Some(target) = target {
                    query = query.bind(target);
                }
                if let Some(from) = from {
                    query = query.bind(first_id_of(from - CLOCKS)).bind(from);
                }
                let mut end = before.unwrap_or(Uuid::max());
                if let Some(to) = to {
                    query = query.bind(to);
                    end = end.min(first_id_of(to + CLOCKS));
                }
                let found = query.bind(end).bind(limit).fetch_all(conn).await?;
                let done = |row: &sqlx::mysql::MySqlRow| {
                    let detail: Option<String> = row.try_get("detail")?;
                    let detail = detail.map(|text| serde_json::from_str(&text)).transpose();
                    Ok(AuditRecord {
                        id: row.try_get("id")?,
                        at: row.try_get("at")?,
                        actor: Actor::from_stored(row.try_get("actor")?),
                        action: row.try_get("action")?,
                        target: row.try_get("target")?,
                        detail: detail.map_err(|e| corrupt(format!("detail: {e}")))?,
                    })
                };
                found.iter().map(done).collect()
            })
        })
        .await
    }

    /// Record an action that changes nothing else in the store.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    pub async fn note(&self, act: AuditEntry) -> Result<(), StoreError> {
        let shared = self.shared.clone();
        transact(&self.shared.pools.steering, "record an audit entry", move |conn, _| {
            let (shared, act) = (shared.clone(), act.clone());
            Box::pin(async move {
                let now = read_clock(conn, &shared.clock).await?;
                record(conn, &act, now).await
            })
        })
        .await
    }

    /// Purge the recorded actions older than `keep`, in the page after `after`. Returns the number of purged rows and
    /// the place where the next page begins.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    pub async fn purge_audit(&self, after: Option<Uuid>, keep: Duration) -> Result<(usize, Option<Uuid>), StoreError> {
        let shared = self.shared.clone();
        transact(&self.shared.pools.loops, "purge the audit", move |conn, _| {
            let shared = shared.clone();
            Box::pin(async move { purge_aged(conn, &shared, &ACTS, after, keep).await })
        })
        .await
    }
}
