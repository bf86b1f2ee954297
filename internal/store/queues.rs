//! Settings of queues, made by operators.

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;

use crate::audit::{AuditEntry, record, was_recorded};
use crate::jobs::condition::Condition;
use crate::sql::batches::statement;
use crate::sql::clock::read_clock;
use crate::sql::connection::{Pool, PriorRun, on_pool, transact};
use crate::sql::error::corrupt;
use crate::sql::script::rows_as_text;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Actor, Name, Priority, Timestamp};

/// Most queues that can have settings.
pub const MAX_QUEUES: usize = 1_000;

/// The settings of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSetting {
    /// The name of the queue.
    pub name: Name,
    /// The priority of the queue among other queues.
    pub priority: Priority,
    /// Most jobs of the queue that may run at the same time, on all runners together; no limit when absent.
    pub concurrency: Option<u32>,
    /// The pause, if the queue is paused: no job of it is started.
    pub pause: Option<Pause>,
    /// Time and actor of the last change.
    pub changed: (Timestamp, Actor),
    /// The version of the settings. Every change increments it.
    pub version: u32,
}

/// A pause of a queue or a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The time when the pause began.
    pub at: Timestamp,
    /// The actor that paused it.
    pub by: Actor,
    /// The reason, if the actor gave one.
    pub reason: Option<String>,
}

/// A change of a queue's settings. Absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueChange {
    /// The new priority.
    pub priority: Option<Priority>,
    /// The new concurrency limit, or `Some(None)` to remove it.
    pub concurrency: Option<Option<u32>>,
    /// Pause the queue, with or without a reason, or resume it.
    pub pause: Option<PauseRequest>,
}

/// A requested pause or its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PauseRequest {
    /// Paused, for this reason if there is one.
    Yes(Option<String>),
    /// Not paused.
    No,
}

/// Outcome of a change.
#[derive(Clone, Debug)]
pub enum QueueChangeOutcome {
    /// Done. These are the settings now.
    Done(QueueSetting),
    /// Nothing to do: these were the settings already.
    Unchanged(QueueSetting),
    /// Another change came first, so the version does not match. Nothing was changed.
    Meanwhile(QueueSetting),
    /// [`MAX_QUEUES`] have settings already.
    TooMany,
}

pub(crate) const COLUMNS: &str =
    "name, priority, concurrency, paused_at, paused_by, pause_reason, changed_at, changed_by, version";

impl Store {
    /// Read the settings of all queues that have any, at most 2,000. This is for the copy in this process.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn queues(&self) -> Result<Vec<QueueSetting>, StoreError> {
        queues_through(&self.shared.pools.controls).await
    }

    /// Read the same settings as [`queues`](Self::queues), on a connection for clients that list them.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn listed_queues(&self) -> Result<Vec<QueueSetting>, StoreError> {
        queues_through(&self.shared.pools.reads).await
    }

    /// Change the settings of a queue, if its version meets `condition`. The version of a queue without settings is 0.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn change_queue(
        &self,
        name: &Name,
        change: QueueChange,
        condition: Condition<u32>,
        by: &Actor,
    ) -> Result<QueueChangeOutcome, StoreError> {
        let act = AuditEntry::new(by, change.action(), name.as_str()).with(change.audit_detail());
        let (shared, name) = (self.shared.clone(), name.clone());
        transact(&self.shared.pools.controls, "change a queue", move |conn, earlier| {
            let (shared, name, change, act) = (shared.clone(), name.clone(), change.clone(), act.clone());
            let condition = condition.clone();
            Box::pin(async move {
                let now = read_clock(conn, &shared.clock).await?;
                let Some(before) = lock(conn, &name, &act.actor, now).await? else {
                    return Ok(QueueChangeOutcome::TooMany);
                };
                if earlier == PriorRun::MayHaveCommitted && was_recorded(conn, &act).await? {
                    return Ok(QueueChangeOutcome::Done(before));
                }
                if !condition.is_met_by(Some(before.version)) {
                    return Ok(QueueChangeOutcome::Meanwhile(before));
                }
                let mut after = change.apply_to(before.clone(), &act.actor, now);
                if after == before {
                    return Ok(QueueChangeOutcome::Unchanged(before));
                }
                after.version += 1;
                after.changed = (now, act.actor.clone());
                write(conn, &after).await?;
                record(conn, &act, now).await?;
                Ok(QueueChangeOutcome::Done(after))
            })
        })
        .await
    }
}

impl QueueChange {
    const fn action(&self) -> &'static str {
        match self {
            Self { pause: Some(PauseRequest::Yes(_)), .. } => "queue.pause",
            Self { pause: Some(PauseRequest::No), .. } => "queue.resume",
            Self { pause: None, .. } => "queue.change",
        }
    }

    fn audit_detail(&self) -> serde_json::Value {
        let mut told = serde_json::Map::new();
        if let Some(priority) = self.priority {
            told.insert("priority".into(), priority.level().into());
        }
        if let Some(concurrency) = self.concurrency {
            told.insert("concurrency".into(), concurrency.into());
        }
        if let Some(PauseRequest::Yes(Some(reason))) = &self.pause {
            told.insert("reason".into(), reason.as_str().into());
        }
        told.into()
    }

    fn apply_to(&self, mut setting: QueueSetting, by: &Actor, now: Timestamp) -> QueueSetting {
        setting.priority = self.priority.unwrap_or(setting.priority);
        setting.concurrency = self.concurrency.unwrap_or(setting.concurrency);
        if let Some(request) = &self.pause {
            setting.pause = request.apply_to(setting.pause, by, now);
        }
        setting
    }
}

impl PauseRequest {
    /// Return the pause after this request. The first pause stays, unless the request has a new reason.
    pub(super) fn apply_to(&self, before: Option<Pause>, by: &Actor, now: Timestamp) -> Option<Pause> {
        match (self, before) {
            (Self::No, _) => None,
            (Self::Yes(reason), Some(pause)) if reason.is_none() || *reason == pause.reason => Some(pause),
            (Self::Yes(reason), _) => Some(Pause { at: now, by: by.clone(), reason: reason.clone() }),
        }
    }
}

/// Lock the row of a queue, and insert it first if there is none. Return nothing if the number of rows is at its limit.
async fn lock(
    conn: &mut Session<'_>,
    name: &Name,
    by: &Actor,
    now: Timestamp,
) -> Result<Option<QueueSetting>, sqlx::Error> {
    let sql = format!("SELECT {COLUMNS} FROM queues WHERE name = ? FOR UPDATE");
    if let Some(row) = statement(sql.clone()).bind(name.as_str()).fetch_optional(&mut *conn).await? {
        return setting(&row).map(Some);
    }
    let rows: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM queues").fetch_one(&mut *conn).await?;
    if usize::try_from(rows).is_ok_and(|rows| rows >= MAX_QUEUES) {
        return Ok(None);
    }
    // Another process may have inserted the row since the read.
    let insert =
        "INSERT INTO queues (name, changed_at, changed_by) VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE name = name";
    sqlx::query(insert).bind(name.as_str()).bind(now).bind(by.as_str()).execute(&mut *conn).await?;
    let row = statement(sql).bind(name.as_str()).fetch_one(conn).await?;
    setting(&row).map(Some)
}

async fn write(conn: &mut Session<'_>, after: &QueueSetting) -> Result<(), sqlx::Error> {
    let pause = after.pause.as_ref();
    let sql = "UPDATE queues SET priority = ?, concurrency = ?, paused_at = ?, paused_by = ?, pause_reason = ?, \
               changed_at = ?, changed_by = ?, version = ? WHERE name = ?";
    sqlx::query(sql)
        .bind(after.priority.level())
        .bind(after.concurrency)
        .bind(pause.map(|pause| pause.at))
        .bind(pause.map(|pause| pause.by.as_str()))
        .bind(pause.and_then(|pause| pause.reason.as_deref()))
        .bind(after.changed.0)
        .bind(after.changed.1.as_str())
        .bind(after.version)
        .bind(after.name.as_str())
        .execute(conn)
        .await
        .map(drop)
}

async fn queues_through(pool: &Pool) -> Result<Vec<QueueSetting>, StoreError> {
    on_pool(pool, "read the queues", |conn, _| {
        Box::pin(async move {
            let sql = format!("SELECT {COLUMNS} FROM queues ORDER BY name LIMIT 2000");
            rows_as_text(conn, sql, Vec::new()).await?.iter().map(setting).collect()
        })
    })
    .await
}

fn setting(row: &MySqlRow) -> Result<QueueSetting, sqlx::Error> {
    let (at, by): (Option<Timestamp>, Option<String>) = (row.try_get("paused_at")?, row.try_get("paused_by")?);
    let reason = row.try_get("pause_reason")?;
    Ok(QueueSetting {
        name: row.try_get::<String, _>("name")?.parse().map_err(|_| corrupt("name"))?,
        priority: row.try_get::<u8, _>("priority")?.try_into().map_err(corrupt)?,
        concurrency: row.try_get("concurrency")?,
        pause: at.zip(by).map(|(at, by)| Pause { at, by: Actor::from_stored(by), reason }),
        changed: (row.try_get("changed_at")?, Actor::from_stored(row.try_get("changed_by")?)),
        version: row.try_get("version")?,
    })
}
