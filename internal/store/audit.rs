//! What operators did: appended in the transaction of the change, read newest first, purged by age.

use std::time::Duration;

use serde_json::Value;
use sqlx::{MySqlConnection, Row};
use uuid::Uuid;

use super::error::{Fault, corrupt, fault};
use super::insert::read_clock;
use super::link::{on_pool, transact};
use super::purge::{Aged, purge_aged};
use super::shape::{groups, places, rows, statement};
use super::{Store, StoreError};
use crate::job::{Actor, Timestamp};

/// Actions, in the order in which they were asked for.
const ACTS: Aged = Aged { table: "audit", made: "at" };

/// An action that is about to change something.
#[derive(Clone, Debug)]
pub struct Act {
    /// Made with the request, so that a repeated write recognises its own row.
    id: Uuid,
    /// Who asked.
    pub actor: Actor,
    /// What for, in two words: `job.cancel`, `queue.pause`.
    pub action: &'static str,
    /// What it is done to: an id or a name.
    pub target: String,
    /// Particulars, a JSON object.
    pub detail: Option<Value>,
}

impl Act {
    /// An action without particulars.
    #[must_use]
    pub fn new(actor: &Actor, action: &'static str, target: impl Into<String>) -> Self {
        Self { id: Uuid::now_v7(), actor: actor.clone(), action, target: target.into(), detail: None }
    }

    /// With particulars.
    #[must_use]
    pub fn with(mut self, detail: Value) -> Self {
        self.detail = Some(detail);
        self
    }
}

/// An action as it was written down.
#[derive(Clone, Debug)]
pub struct Done {
    /// Its id, by which the list is ordered.
    pub id: Uuid,
    /// When, by the database's clock.
    pub at: Timestamp,
    /// Who asked.
    pub actor: Actor,
    /// What for.
    pub action: String,
    /// What it was done to.
    pub target: String,
    /// Particulars.
    pub detail: Option<Value>,
}

/// Write an action down, in the transaction of what it changes.
pub(super) async fn record(conn: &mut MySqlConnection, act: &Act, now: Timestamp) -> Result<(), sqlx::Error> {
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
        // An earlier run of the same transaction was committed after all.
        Err(e) if fault(&e) == Fault::Duplicate => Ok(()),
        written => written.map(drop),
    }
}

/// Write down several actions of one transaction, which is not run again once it is committed.
pub(super) async fn record_all(conn: &mut MySqlConnection, acts: &[Act], now: Timestamp) -> Result<(), sqlx::Error> {
    for group in groups(acts) {
        let sql = format!(
            "INSERT INTO audit (id, at, actor, action, target, detail) VALUES {}",
            rows(&places(6), group.len())
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

/// Was this very action written down by an earlier run of its transaction?
pub(super) async fn was_recorded(conn: &mut MySqlConnection, act: &Act) -> Result<bool, sqlx::Error> {
    let found: Option<i64> =
        sqlx::query_scalar("SELECT 1 FROM audit WHERE id = ?").bind(act.id).fetch_optional(conn).await?;
    Ok(found.is_some())
}

impl Store {
    /// What was done, newest first, before the action `before`; to one `target` if one is named.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn audit(
        &self,
        target: Option<String>,
        before: Option<Uuid>,
        limit: u32,
    ) -> Result<Vec<Done>, StoreError> {
        on_pool(&self.shared.pools.reads, "read the audit", move |conn, _| {
            let target = target.clone();
            Box::pin(async move {
                let only = if target.is_some() { "target = ? AND" } else { "" };
                let sql = format!(
                    "SELECT id, at, actor, action, target, detail FROM audit WHERE {only} id < ? ORDER BY id DESC LIMIT ?"
                );
                let mut query = statement(sql);
                if let Some(target) = target {
                    query = query.bind(target);
                }
                let found = query.bind(before.unwrap_or(Uuid::max())).bind(limit).fetch_all(conn).await?;
                let done = |row: &sqlx::mysql::MySqlRow| {
                    let detail: Option<String> = row.try_get(5)?;
                    let detail = detail.map(|text| serde_json::from_str(&text)).transpose();
                    Ok(Done {
                        id: row.try_get(0)?,
                        at: row.try_get(1)?,
                        actor: Actor::from_stored(row.try_get(2)?),
                        action: row.try_get(3)?,
                        target: row.try_get(4)?,
                        detail: detail.map_err(|e| corrupt(format!("detail: {e}")))?,
                    })
                };
                found.iter().map(done).collect()
            })
        })
        .await
    }

    /// Write down an action that changes nothing in the store.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn note(&self, act: Act) -> Result<(), StoreError> {
        let shared = self.shared.clone();
        transact(&self.shared.pools.steering, "write an action down", move |conn, _| {
            let (shared, act) = (shared.clone(), act.clone());
            Box::pin(async move {
                let now = read_clock(conn, &shared.clock).await?;
                record(conn, &act, now).await
            })
        })
        .await
    }

    /// Forget actions older than `keep`, looking at one page after `after`; how many, and where to go on.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn purge_audit(&self, after: Option<Uuid>, keep: Duration) -> Result<(usize, Option<Uuid>), StoreError> {
        let shared = self.shared.clone();
        transact(&self.shared.pools.loops, "purge the audit", move |conn, _| {
            let shared = shared.clone();
            Box::pin(async move { purge_aged(conn, &shared, &ACTS, after, keep).await })
        })
        .await
    }
}
