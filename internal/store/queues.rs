//! What operators have set about queues.

use sqlx::mysql::MySqlRow;
use sqlx::{MySqlConnection, Row};

use super::audit::{Act, record, was_recorded};
use super::condition::Condition;
use super::error::corrupt;
use super::insert::read_clock;
use super::link::{Earlier, Pool, on_pool, transact};
use super::shape::statement;
use super::{Store, StoreError};
use crate::job::{Actor, Name, Priority, Timestamp};

/// Most queues that can have settings.
pub const MOST_QUEUES: usize = 1_000;

/// What is set about a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSetting {
    /// The queue.
    pub name: Name,
    /// Its urgency among queues.
    pub priority: Priority,
    /// How many of its jobs may run at the same time, all runners together.
    pub concurrency: Option<u32>,
    /// Since when nothing of it is started, and why.
    pub pause: Option<Pause>,
    /// When and by whom it was last changed.
    pub changed: (Timestamp, Actor),
    /// Another one after each change.
    pub version: u32,
}

/// Why a queue or a schedule stands still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Since when.
    pub at: Timestamp,
    /// Who asked for it.
    pub by: Actor,
    /// Why, if they said so.
    pub reason: Option<String>,
}

/// What is to be changed about a queue; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueChange {
    /// Its urgency.
    pub priority: Option<Priority>,
    /// Its limit, or that it has none.
    pub concurrency: Option<Option<u32>>,
    /// To pause it, with a reason or without; or to let it go on.
    pub pause: Option<Paused>,
}

/// Whether a queue stands still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Paused {
    /// It does, for this reason.
    Yes(Option<String>),
    /// It does not.
    No,
}

/// What became of a change.
#[derive(Clone, Debug)]
pub enum QueueChanged {
    /// Done; this is set now.
    Done(QueueSetting),
    /// There was nothing to do; this was set already.
    Unchanged(QueueSetting),
    /// Somebody else changed it meanwhile: it has another version. Nothing was changed.
    Meanwhile(QueueSetting),
    /// [`MOST_QUEUES`] have settings already.
    TooMany,
}

const COLUMNS: &str =
    "name, priority, concurrency, paused_at, paused_by, pause_reason, changed_at, changed_by, version";

impl Store {
    /// Every queue about which something was ever set. For this process's own copy.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn queues(&self) -> Result<Vec<QueueSetting>, StoreError> {
        queues_through(&self.shared.pools.controls).await
    }

    /// As [`queues`](Self::queues), for a client that lists them.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn listed_queues(&self) -> Result<Vec<QueueSetting>, StoreError> {
        queues_through(&self.shared.pools.reads).await
    }

    /// Change what is set about a queue, if it has the version that `condition` wants; 0 for a queue without settings.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn change_queue(
        &self,
        name: &Name,
        change: QueueChange,
        condition: Condition<u32>,
        by: &Actor,
    ) -> Result<QueueChanged, StoreError> {
        let act = Act::new(by, change.action(), name.as_str()).with(change.told());
        let (shared, name) = (self.shared.clone(), name.clone());
        transact(&self.shared.pools.controls, "change a queue", move |conn, earlier| {
            let (shared, name, change, act) = (shared.clone(), name.clone(), change.clone(), act.clone());
            let condition = condition.clone();
            Box::pin(async move {
                let now = read_clock(conn, &shared.clock).await?;
                let Some(before) = lock(conn, &name, &act.actor, now).await? else { return Ok(QueueChanged::TooMany) };
                if earlier == Earlier::MayHaveCommitted && was_recorded(conn, &act).await? {
                    return Ok(QueueChanged::Done(before));
                }
                if !condition.holds(Some(before.version)) {
                    return Ok(QueueChanged::Meanwhile(before));
                }
                let mut after = change.applied(before.clone(), &act.actor, now);
                if after == before {
                    return Ok(QueueChanged::Unchanged(before));
                }
                after.version += 1;
                after.changed = (now, act.actor.clone());
                write(conn, &after).await?;
                record(conn, &act, now).await?;
                Ok(QueueChanged::Done(after))
            })
        })
        .await
    }
}

impl QueueChange {
    const fn action(&self) -> &'static str {
        match self {
            Self { pause: Some(Paused::Yes(_)), .. } => "queue.pause",
            Self { pause: Some(Paused::No), .. } => "queue.resume",
            Self { pause: None, .. } => "queue.change",
        }
    }

    fn told(&self) -> serde_json::Value {
        let mut told = serde_json::Map::new();
        if let Some(priority) = self.priority {
            told.insert("priority".into(), priority.level().into());
        }
        if let Some(concurrency) = self.concurrency {
            told.insert("concurrency".into(), concurrency.into());
        }
        if let Some(Paused::Yes(Some(reason))) = &self.pause {
            told.insert("reason".into(), reason.as_str().into());
        }
        told.into()
    }

    fn applied(&self, mut setting: QueueSetting, by: &Actor, now: Timestamp) -> QueueSetting {
        setting.priority = self.priority.unwrap_or(setting.priority);
        setting.concurrency = self.concurrency.unwrap_or(setting.concurrency);
        if let Some(wish) = &self.pause {
            setting.pause = wish.applied(setting.pause, by, now);
        }
        setting
    }
}

impl Paused {
    /// The pause as it is then. The first one stands, unless there is a new reason.
    pub(super) fn applied(&self, before: Option<Pause>, by: &Actor, now: Timestamp) -> Option<Pause> {
        match (self, before) {
            (Self::No, _) => None,
            (Self::Yes(reason), Some(pause)) if reason.is_none() || *reason == pause.reason => Some(pause),
            (Self::Yes(reason), _) => Some(Pause { at: now, by: by.clone(), reason: reason.clone() }),
        }
    }
}

/// The row of a queue, made if there is none, and locked. Nothing when there may not be more.
async fn lock(
    conn: &mut MySqlConnection,
    name: &Name,
    by: &Actor,
    now: Timestamp,
) -> Result<Option<QueueSetting>, sqlx::Error> {
    let sql = format!("SELECT {COLUMNS} FROM queues WHERE name = ? FOR UPDATE");
    if let Some(row) = statement(sql.clone()).bind(name.as_str()).fetch_optional(&mut *conn).await? {
        return setting(&row).map(Some);
    }
    let rows: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM queues").fetch_one(&mut *conn).await?;
    if usize::try_from(rows).is_ok_and(|rows| rows >= MOST_QUEUES) {
        return Ok(None);
    }
    // Somebody else may have made it meanwhile.
    let insert =
        "INSERT INTO queues (name, changed_at, changed_by) VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE name = name";
    sqlx::query(insert).bind(name.as_str()).bind(now).bind(by.as_str()).execute(&mut *conn).await?;
    let row = statement(sql).bind(name.as_str()).fetch_one(conn).await?;
    setting(&row).map(Some)
}

async fn write(conn: &mut MySqlConnection, after: &QueueSetting) -> Result<(), sqlx::Error> {
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
            statement(sql).fetch_all(conn).await?.iter().map(setting).collect()
        })
    })
    .await
}

fn setting(row: &MySqlRow) -> Result<QueueSetting, sqlx::Error> {
    let (at, by): (Option<Timestamp>, Option<String>) = (row.try_get(3)?, row.try_get(4)?);
    let reason = row.try_get(5)?;
    Ok(QueueSetting {
        name: row.try_get::<String, _>(0)?.parse().map_err(|_| corrupt("name"))?,
        priority: row.try_get::<u8, _>(1)?.try_into().map_err(corrupt)?,
        concurrency: row.try_get(2)?,
        pause: at.zip(by).map(|(at, by)| Pause { at, by: Actor::from_stored(by), reason }),
        changed: (row.try_get(6)?, Actor::from_stored(row.try_get(7)?)),
        version: row.try_get(8)?,
    })
}
