//! The audit: the record of what operators changed. A row is appended in the transaction of the change, read newest
//! first, and purged by age.

use std::time::Duration;

use async_recursion::async_recursion as boxed;
use chrono::TimeDelta;
use serde_json::Value;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::rows::aged::{Aged, purge_aged};
use crate::sql::batches::{Sql, groups, placeholders, statement, tuples};
use crate::sql::clock::read_clock;
use crate::sql::connection::{on_pool, transact};
use crate::sql::error::{Fault, corrupt, fault};
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Actor, Timestamp, first_id_of};

/// The ids of recorded actions are made by hosts whose clocks may differ by this much from that of the database.
pub(super) const CLOCKS: TimeDelta = TimeDelta::minutes(5);

/// Most recorded actions that are looked at when those of one bulk operation are told as one: the newest.
const MAX_FOLDED: u32 = 20_000;

/// The table `audit`, purged in the order in which the actions were requested.
const ACTS: Aged = Aged { table: "audit", made: "at", page: |pages| &pages.acts };

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

/// Recorded actions in which those of one bulk operation are one.
#[derive(Clone, Debug)]
pub struct FoldedActs {
    /// The first action of each operation, and each of the others, with the number of actions, newest first.
    pub acts: Vec<(AuditRecord, u64)>,
    /// True if older actions were left out, or not counted.
    pub more: bool,
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

/// Return the conditions of a filter. [`bind_filter`] binds their values.
fn conditions(filter: &AuditFilter) -> String {
    let mut conditions = String::new();
    for (is_set, condition) in [
        (filter.target.is_some(), "target = ? AND "),
        (filter.from.is_some(), "id >= ? AND at >= ? AND "),
        (filter.to.is_some(), "at < ? AND "),
    ] {
        conditions.push_str(if is_set { condition } else { "" });
    }
    conditions + "id < ?"
}

/// Bind the values of a filter, and the id before which the actions lie.
fn bind_filter(mut query: Sql, filter: AuditFilter, before: Option<Uuid>) -> Sql {
    if let Some(target) = filter.target {
        query = query.bind(target);
    }
    if let Some(from) = filter.from {
        query = query.bind(first_id_of(from - CLOCKS)).bind(from);
    }
    let mut end = before.unwrap_or(Uuid::max());
    if let Some(to) = filter.to {
        query = query.bind(to);
        end = end.min(first_id_of(to + CLOCKS));
    }
    query.bind(end)
}

fn done(row: &MySqlRow) -> Result<AuditRecord, sqlx::Error> {
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
}

impl Store {
    /// Read recorded actions that match, newest first: those older than the action `before`. A range of time is read as
    /// a range of ids, with some minutes more on both sides.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn audit(
        &self,
        filter: AuditFilter,
        before: Option<Uuid>,
        limit: u32,
    ) -> Result<Vec<AuditRecord>, StoreError> {
        on_pool(&self.shared.pools.reads, "read the audit", move |conn, _| {
            let filter = filter.clone();
            Box::pin(async move {
                let sql = format!(
                    "SELECT id, at, actor, action, target, detail FROM audit WHERE {} ORDER BY id DESC LIMIT ?",
                    conditions(&filter)
                );
                let found = bind_filter(statement(sql), filter, before).bind(limit).fetch_all(conn).await?;
                found.iter().map(done).collect()
            })
        })
        .await
    }

    /// Read recorded actions that match, newest first, where those of one bulk operation are one. A bulk operation
    /// records an action for each of its jobs, so this looks at the newest 20,000 only.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn folded_audit(&self, filter: AuditFilter, limit: u32) -> Result<FoldedActs, StoreError> {
        on_pool(&self.shared.pools.reads, "read the folded audit", move |conn, _| {
            let filter = filter.clone();
            Box::pin(async move {
                let sql = format!(
                    "SELECT a.id, a.at, a.actor, a.action, a.target, a.detail, chosen.counted FROM (SELECT MIN(act) AS \
                     first_act, COUNT(*) AS counted FROM (SELECT id AS act, action, IF(detail LIKE \
                     '{{\"operation\":%', LEFT(detail, 60), NULL) AS operation FROM audit WHERE {} \
                     ORDER BY id DESC LIMIT ?) recent GROUP BY action, operation, IF(operation IS NULL, act, NULL) \
                     ORDER BY first_act DESC LIMIT ?) chosen JOIN audit a ON a.id = chosen.first_act \
                     ORDER BY a.id DESC",
                    conditions(&filter)
                );
                let query = bind_filter(statement(sql), filter, None).bind(MAX_FOLDED).bind(limit.saturating_add(1));
                let mut acts = Vec::new();
                for row in &query.fetch_all(conn).await? {
                    acts.push((done(row)?, row.try_get::<i64, _>("counted")?.unsigned_abs()));
                }
                let counted: u64 = acts.iter().map(|(_, counted)| counted).sum();
                let more = acts.len() > limit as usize || counted >= u64::from(MAX_FOLDED);
                acts.truncate(limit as usize);
                Ok(FoldedActs { acts, more })
            })
        })
        .await
    }

    /// Record an action that changes nothing else in the store.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
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
    #[boxed]
    pub async fn purge_audit(&self, after: Option<Uuid>, keep: Duration) -> Result<(usize, Option<Uuid>), StoreError> {
        purge_aged(&self.shared, "purge the audit", &ACTS, after, keep).await
    }
}
