//! Kinds that programs in other languages execute, as operators declare them.

use std::time::Duration;

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;

use crate::audit::{AuditEntry, record, was_recorded};
use crate::jobs::condition::Condition;
use crate::sql::batches::{placeholders, statement};
use crate::sql::clock::read_clock;
use crate::sql::connection::{Pool, PriorRun, on_pool, transact};
use crate::sql::error::{Fault, again, corrupt, fault};
use crate::sql::script::rows_as_text;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Actor, DeclaredKind, Editions, Name, Push, PushSecret, Timestamp};

/// Most kinds that operators can declare. Each of them may be the label of a metric.
pub const MAX_DECLARED_KINDS: usize = 500;

/// Largest first version of a declaration. Each change increments it, and the column has room for as many changes again.
const MAX_FIRST_VERSION: u32 = u32::MAX / 2;

/// A declared kind as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct KindSetting {
    /// The declaration.
    pub kind: DeclaredKind,
    /// Time and actor of the last change.
    pub changed: (Timestamp, Actor),
    /// The version. Every change increments it.
    pub version: u32,
}

/// Outcome of a request to declare a kind.
#[derive(Clone, Debug)]
pub enum DeclareOutcome {
    /// Done. True if the declaration is new.
    Done(KindSetting, bool),
    /// Nothing to do: the declaration was as requested.
    Unchanged(KindSetting),
    /// Another change came first, so the version does not match. Nothing was changed.
    Meanwhile(Option<KindSetting>),
    /// A living runner has a handler of this kind.
    Compiled,
    /// There are [`MAX_DECLARED_KINDS`] already.
    TooMany,
}

const COLUMNS: &str = "name, description, payload_schema, max_attempts, timeout_ms, retry, queue, changed_at, \
                       changed_by, version, push_url, push_secret, push_answer_ms, push_lease_ms, push_follow_ups";
/// The columns that change with every change of a row, without the schema, which may be large.
pub(crate) const VERSION_COLUMNS: &str = "name, version, changed_at";

impl Store {
    /// Read all declared kinds, in the order of their names. This is for the copy in this process.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn declared_kinds(&self) -> Result<Vec<KindSetting>, StoreError> {
        kinds_through(&self.shared.pools.controls).await
    }

    /// Read the same as [`declared_kinds`](Self::declared_kinds), on a connection for clients that list them.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn listed_kinds(&self) -> Result<Vec<KindSetting>, StoreError> {
        kinds_through(&self.shared.pools.reads).await
    }

    /// Declare a kind, if the version of its declaration meets `condition`. The version of a kind that is not declared
    /// is 0.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn declare_kind(
        &self,
        kind: DeclaredKind,
        condition: Condition<u32>,
        by: &Actor,
    ) -> Result<DeclareOutcome, StoreError> {
        let act = AuditEntry::new(by, "kind.declare", kind.name.as_str()).with(serde_json::json!({
            "max_attempts": kind.max_attempts,
            "timeout_ms": kind.timeout_ms,
            "queue": kind.queue.as_ref().map(Name::as_str),
            "schema": kind.schema.is_some(),
            "run": if kind.push.is_some() { "push" } else { "pull" },
            "secret": kind.push.as_ref().is_some_and(|push| push.secret.is_some()),
            "follow_ups": kind.push.as_ref().map(|push| names_in(&push.follow_ups)),
        }));
        let shared = self.shared.clone();
        // A declaration that was removed may be made again. If both began with the same version, a client that read the
        // first one would change the second.
        let first_version = rand::random_range(1..=MAX_FIRST_VERSION);
        transact(&self.shared.pools.controls, "declare a kind", move |conn, earlier| {
            let (shared, kind, act, condition) = (shared.clone(), kind.clone(), act.clone(), condition.clone());
            Box::pin(async move {
                let now = read_clock(conn, &shared.clock).await?;
                let before = lock(conn, &kind.name).await?;
                if earlier == PriorRun::MayHaveCommitted
                    && was_recorded(conn, &act).await?
                    && let Some(before) = before
                {
                    let new = before.version == first_version;
                    return Ok(DeclareOutcome::Done(before, new));
                }
                if !condition.is_met_by(before.as_ref().map(|before| before.version)) {
                    return Ok(DeclareOutcome::Meanwhile(before));
                }
                let version = match &before {
                    Some(before) if before.kind == kind => return Ok(DeclareOutcome::Unchanged(before.clone())),
                    Some(before) => before.version + 1,
                    None => {
                        if is_compiled(conn, &kind.name).await? {
                            return Ok(DeclareOutcome::Compiled);
                        }
                        let rows: i64 =
                            sqlx::query_scalar("SELECT COUNT(*) FROM declared_kinds").fetch_one(&mut *conn).await?;
                        if usize::try_from(rows).is_ok_and(|rows| rows >= MAX_DECLARED_KINDS) {
                            return Ok(DeclareOutcome::TooMany);
                        }
                        first_version
                    }
                };
                let set = KindSetting { kind, changed: (now, act.actor.clone()), version };
                match &before {
                    Some(_) => write(conn, "REPLACE", &set).await?,
                    None => insert(conn, &set).await?,
                }
                record(conn, &act, now).await?;
                Ok(DeclareOutcome::Done(set, before.is_none()))
            })
        })
        .await
    }

    /// Remove the declaration of a kind, if its version meets `condition`. Returns the kind, or why nothing was removed:
    /// the version does not match, or, with nothing in it, the kind is not declared.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn remove_kind(
        &self,
        name: &Name,
        condition: Condition<u32>,
        by: &Actor,
    ) -> Result<Result<Name, Option<KindSetting>>, StoreError> {
        let act = AuditEntry::new(by, "kind.remove", name.as_str());
        let (shared, name) = (self.shared.clone(), name.clone());
        transact(&self.shared.pools.controls, "remove a declared kind", move |conn, earlier| {
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
                sqlx::query("DELETE FROM declared_kinds WHERE name = ?")
                    .bind(name.as_str())
                    .execute(&mut *conn)
                    .await?;
                record(conn, &act, now).await?;
                Ok(Ok(name))
            })
        })
        .await
    }
}

/// Return whether a living runner has a handler of this kind. A remote worker has none. The kinds of a runner also name
/// those whose receivers it calls; only the handlers in its program have an edition.
async fn is_compiled(conn: &mut Session<'_>, name: &Name) -> Result<bool, sqlx::Error> {
    let sql = "SELECT DISTINCT kinds, kind_schemas FROM runners WHERE stopped_at IS NULL AND via = 'process' \
               AND heartbeat_at >= UTC_TIMESTAMP(6) - INTERVAL lease_ms * 1000 MICROSECOND";
    for row in &sqlx::query(sql).fetch_all(conn).await? {
        let (kinds, editions): (&str, Option<&str>) = (row.try_get("kinds")?, row.try_get("kind_schemas")?);
        // The texts of another version may be unreadable for this binary.
        let has_kind = serde_json::from_str::<Vec<Name>>(kinds).is_ok_and(|kinds| kinds.contains(name));
        let editions = editions.and_then(|text| serde_json::from_str::<Editions>(text).ok());
        if has_kind && editions.is_none_or(|editions| editions.kinds.contains_key(name)) {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn lock(conn: &mut Session<'_>, name: &Name) -> Result<Option<KindSetting>, sqlx::Error> {
    let sql = format!("SELECT {COLUMNS} FROM declared_kinds WHERE name = ? FOR UPDATE");
    let row = statement(sql).bind(name.as_str()).fetch_optional(conn).await?;
    row.as_ref().map(setting).transpose()
}

/// Insert a declaration that the caller did not find. The caller could lock no row, so another transaction may have
/// inserted one meanwhile. Then the next run finds it.
async fn insert(conn: &mut Session<'_>, set: &KindSetting) -> Result<(), sqlx::Error> {
    match write(conn, "INSERT", set).await {
        Err(e) if fault(&e) == Fault::Duplicate => Err(again("a kind was declared meanwhile")),
        done => done,
    }
}

/// Write a declaration by INSERT, or by REPLACE if the caller has locked its row.
async fn write(conn: &mut Session<'_>, verb: &'static str, set: &KindSetting) -> Result<(), sqlx::Error> {
    let DeclaredKind { name, description, schema, max_attempts, timeout_ms, retry, queue, push } = &set.kind;
    let ms = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    let retry = serde_json::to_string(retry).map_err(|e| sqlx::Error::Encode(Box::new(e)))?;
    let follow_ups = push.as_ref().map(|push| serde_json::json!(names_in(&push.follow_ups)).to_string());
    statement(format!(
        "{verb} INTO declared_kinds (name, description, payload_schema, max_attempts, timeout_ms, retry, queue, \
         changed_at, changed_by, version, push_url, push_secret, push_answer_ms, push_lease_ms, push_follow_ups) \
         VALUES {}",
        placeholders(15)
    ))
    .bind(name.as_str())
    .bind(description.as_deref())
    .bind(schema.as_ref().map(serde_json::Value::to_string))
    .bind(max_attempts)
    .bind(timeout_ms)
    .bind(retry)
    .bind(queue.as_ref().map(Name::as_str))
    .bind(set.changed.0)
    .bind(set.changed.1.as_str())
    .bind(set.version)
    .bind(push.as_ref().map(|push| push.url.as_str()))
    .bind(push.as_ref().and_then(|push| push.secret.as_ref()).map(PushSecret::expose))
    .bind(push.as_ref().map(|push| ms(push.answer_within)))
    .bind(push.as_ref().and_then(|push| push.lease).map(ms))
    .bind(follow_ups)
    .execute(conn)
    .await
    .map(drop)
}

fn names_in(names: &[Name]) -> Vec<&str> {
    names.iter().map(Name::as_str).collect()
}

async fn kinds_through(pool: &Pool) -> Result<Vec<KindSetting>, StoreError> {
    on_pool(pool, "read the declared kinds", |conn, _| {
        Box::pin(async move {
            let sql = format!("SELECT {COLUMNS} FROM declared_kinds ORDER BY name LIMIT 2000");
            rows_as_text(conn, sql, Vec::new()).await?.iter().map(setting).collect()
        })
    })
    .await
}

fn setting(row: &MySqlRow) -> Result<KindSetting, sqlx::Error> {
    let (name, queue): (String, Option<String>) = (row.try_get("name")?, row.try_get("queue")?);
    let schema: Option<String> = row.try_get("payload_schema")?;
    let retry: String = row.try_get("retry")?;
    let ms = |column: &str| -> Result<Option<Duration>, sqlx::Error> {
        Ok(row.try_get::<Option<u32>, _>(column)?.map(|ms| Duration::from_millis(ms.into())))
    };
    let push = match row.try_get::<Option<String>, _>("push_url")? {
        Some(url) => Some(Push {
            url,
            secret: row.try_get::<Option<String>, _>("push_secret")?.map(PushSecret::new),
            answer_within: ms("push_answer_ms")?.unwrap_or(Push::ANSWER_WITHIN.0),
            lease: ms("push_lease_ms")?,
            follow_ups: match row.try_get::<Option<String>, _>("push_follow_ups")? {
                Some(names) => serde_json::from_str(&names).map_err(|e| corrupt(e.to_string()))?,
                None => Vec::new(),
            },
        }),
        None => None,
    };
    let kind = DeclaredKind {
        name: name.parse().map_err(|_| corrupt("kind"))?,
        description: row.try_get("description")?,
        schema: schema.map(|text| serde_json::from_str(&text)).transpose().map_err(|e| corrupt(e.to_string()))?,
        max_attempts: row.try_get("max_attempts")?,
        timeout_ms: row.try_get("timeout_ms")?,
        retry: serde_json::from_str(&retry).map_err(|e| corrupt(e.to_string()))?,
        queue: queue.map(|queue| queue.parse()).transpose().map_err(|_| corrupt("queue"))?,
        push,
    };
    let by: String = row.try_get("changed_by")?;
    Ok(KindSetting {
        kind,
        changed: (row.try_get("changed_at")?, Actor::from_stored(by)),
        version: row.try_get("version")?,
    })
}
