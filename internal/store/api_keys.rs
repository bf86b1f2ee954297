//! API keys: names, scopes and digests. The secret values are never stored here.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::audit::{AuditEntry, record};
use crate::idempotency::Digest;
use crate::sql::batches::{bind_padded, padded_len, placeholders, statement};
use crate::sql::clock::read_clock;
use crate::sql::connection::{Pool, on_pool, transact};
use crate::sql::error::{Fault, corrupt, fault};
use crate::sql::script::rows_as_text;
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::{Actor, Name, Scope, Timestamp};

/// Most API keys that are valid at the same time. Each request is compared with all of them.
pub const MAX_API_KEYS: usize = 500;

/// API keys that are listed.
const MAX_LISTED: usize = 2_000;

/// An API key without its secret value.
#[derive(Clone)]
pub struct ApiKey {
    /// The id of the API key.
    pub id: Uuid,
    /// The name of the API key. Names are never used again, not even after a revocation.
    pub name: Name,
    /// The rights of the API key.
    pub scope: Scope,
    /// The only kinds that the API key may enqueue or execute, in order; all kinds when absent.
    pub kinds: Option<Arc<BTreeSet<Name>>>,
    /// The only queues that the API key may use, in order; all queues when absent.
    pub queues: Option<Arc<BTreeSet<Name>>>,
    /// The producer name of its jobs with unique keys; the name of the API key when absent.
    pub producer: Option<Name>,
    /// SHA-256 of the secret value.
    pub digest: Digest,
    /// Time when the API key was created.
    pub created_at: Timestamp,
    /// The actor that created it.
    pub created_by: Actor,
    /// Time when it was last used, precise to about a minute.
    pub last_used_at: Option<Timestamp>,
    /// Time and actor of the revocation, if it was revoked.
    pub revoked: Option<(Timestamp, Actor)>,
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiKey").field("name", &self.name).field("scope", &self.scope).finish_non_exhaustive()
    }
}

/// An API key to create.
#[derive(Clone, Debug)]
pub struct NewApiKey {
    /// The name of the API key.
    pub name: Name,
    /// The rights of the API key.
    pub scope: Scope,
    /// The only kinds that it may enqueue or execute; all kinds when absent.
    pub kinds: Option<BTreeSet<Name>>,
    /// The only queues that it may use; all queues when absent.
    pub queues: Option<BTreeSet<Name>>,
    /// The producer name of its jobs with unique keys; its own name when absent.
    pub producer: Option<Name>,
}

impl NewApiKey {
    /// Return an API key without limits of its own.
    #[must_use]
    pub const fn new(name: Name, scope: Scope) -> Self {
        Self { name, scope, kinds: None, queues: None, producer: None }
    }
}

impl ApiKey {
    /// Return the creator that is stored with jobs that have unique keys.
    #[must_use]
    pub fn creator(&self) -> Actor {
        Actor::key(self.producer.as_ref().unwrap_or(&self.name).as_str())
    }
}

/// Outcome of the creation of an API key.
#[derive(Debug)]
pub enum MadeApiKey {
    /// The API key was created and is valid from now on.
    Made(ApiKey),
    /// Another API key has, or had, this name.
    NameTaken,
    /// There are [`MAX_API_KEYS`] valid API keys already.
    TooMany,
}

/// Outcome of the revocation of an API key.
#[derive(Debug)]
pub enum RevokedApiKey {
    /// The API key was revoked now.
    Revoked(ApiKey),
    /// The API key was already revoked.
    Before(ApiKey),
    /// There is no API key with this name.
    Missing,
}

/// The columns that operators change. They tell when a process has to read the API keys again, so the time of the last
/// use is none of them: it changes each minute in a system whose clients have API keys.
pub(crate) const SETTINGS: &str =
    "id, name, scope, digest, created_at, created_by, revoked_at, revoked_by, kinds, producer, queues";

impl Store {
    /// Read the valid API keys, newest first, and then the newest one of those that were revoked: it shows that there was
    /// one. This is for the copy in this process.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn api_keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        keys_through(&self.shared.pools.controls, 1).await
    }

    /// Read the API keys, revoked ones included, at most 2,000: first the valid ones, newest first. This is for clients
    /// that list them.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn listed_keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        keys_through(&self.shared.pools.reads, MAX_LISTED).await
    }

    /// Create an API key.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn make_api_key(
        &self,
        name: &Name,
        scope: Scope,
        digest: Digest,
        by: &Actor,
    ) -> Result<MadeApiKey, StoreError> {
        self.make_limited_api_key(NewApiKey::new(name.clone(), scope), digest, by).await
    }

    /// Create an API key with limits of its own.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn make_limited_api_key(
        &self,
        key: NewApiKey,
        digest: Digest,
        by: &Actor,
    ) -> Result<MadeApiKey, StoreError> {
        let (kinds, queues) = (key.kinds.as_ref().map(words), key.queues.as_ref().map(words));
        let mut detail = serde_json::json!({"scope": key.scope.as_str()});
        if let Some(kinds) = &kinds {
            detail["kinds"] = serde_json::json!(kinds);
        }
        if let Some(queues) = &queues {
            detail["queues"] = serde_json::json!(queues);
        }
        if let Some(producer) = &key.producer {
            detail["producer"] = serde_json::json!(producer.as_str());
        }
        let act = AuditEntry::new(by, "api_key.create", key.name.as_str()).with(detail);
        let (shared, id) = (self.shared.clone(), Uuid::now_v7());
        let (kinds, queues) = (kinds.map(|kinds| kinds.join(",")), queues.map(|queues| queues.join(",")));
        transact(&self.shared.pools.controls, "create an API key", move |conn, _| {
            let (shared, new, act) = (shared.clone(), key.clone(), act.clone());
            let (kinds, queues) = (kinds.clone(), queues.clone());
            Box::pin(async move {
                let now = read_clock(conn, &shared.clock).await?;
                let good: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM api_keys WHERE revoked_at IS NULL")
                    .fetch_one(&mut *conn)
                    .await?;
                if usize::try_from(good).is_ok_and(|good| good >= MAX_API_KEYS) {
                    return Ok(MadeApiKey::TooMany);
                }
                let sql = "INSERT INTO api_keys (id, name, scope, digest, created_at, created_by, kinds, producer, \
                           queues) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
                let inserted = sqlx::query(sql)
                    .bind(id)
                    .bind(new.name.as_str())
                    .bind(new.scope.as_str())
                    .bind(&digest[..])
                    .bind(now)
                    .bind(act.actor.as_str())
                    .bind(kinds)
                    .bind(new.producer.as_ref().map(Name::as_str))
                    .bind(queues)
                    .execute(&mut *conn)
                    .await;
                match inserted {
                    Ok(_) => record(conn, &act, now).await?,
                    Err(e) if fault(&e) == Fault::Duplicate => {}
                    Err(e) => return Err(e),
                }
                Ok(match read(conn, &new.name, "").await? {
                    // Our own row: written now, or by an earlier run whose commit succeeded without an answer.
                    Some(key) if key.id == id => MadeApiKey::Made(key),
                    _ => MadeApiKey::NameTaken,
                })
            })
        })
        .await
    }

    /// Revoke an API key.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn revoke_api_key(&self, name: &Name, by: &Actor) -> Result<RevokedApiKey, StoreError> {
        let act = AuditEntry::new(by, "api_key.revoke", name.as_str());
        let (shared, name) = (self.shared.clone(), name.clone());
        transact(&self.shared.pools.controls, "revoke an API key", move |conn, _| {
            let (shared, name, act) = (shared.clone(), name.clone(), act.clone());
            Box::pin(async move {
                let Some(mut key) = read(conn, &name, "FOR UPDATE").await? else { return Ok(RevokedApiKey::Missing) };
                if key.revoked.is_some() {
                    return Ok(RevokedApiKey::Before(key));
                }
                let now = read_clock(conn, &shared.clock).await?;
                sqlx::query("UPDATE api_keys SET revoked_at = ?, revoked_by = ? WHERE id = ?")
                    .bind(now)
                    .bind(act.actor.as_str())
                    .bind(key.id)
                    .execute(&mut *conn)
                    .await?;
                record(conn, &act, now).await?;
                key.revoked = Some((now, act.actor));
                Ok(RevokedApiKey::Revoked(key))
            })
        })
        .await
    }

    /// Record that these API keys were used now.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn used_api_keys(&self, ids: Vec<Uuid>) -> Result<(), StoreError> {
        if ids.is_empty() {
            return Ok(());
        }
        on_pool(&self.shared.pools.controls, "record the use of API keys", move |conn, _| {
            let ids = ids.clone();
            Box::pin(async move {
                let sql = format!(
                    "UPDATE api_keys SET last_used_at = UTC_TIMESTAMP(6) WHERE id IN {} ORDER BY id LIMIT 2000",
                    placeholders(padded_len(ids.len()))
                );
                let query = bind_padded(statement(sql), &ids);
                query.execute(conn).await.map(drop)
            })
        })
        .await
    }
}

fn words(names: &BTreeSet<Name>) -> Vec<&str> {
    names.iter().map(Name::as_str).collect()
}

async fn read(conn: &mut Session<'_>, name: &Name, lock: &'static str) -> Result<Option<ApiKey>, sqlx::Error> {
    let sql = format!("SELECT {SETTINGS}, last_used_at FROM api_keys WHERE name = ? {lock}");
    statement(sql).bind(name.as_str()).fetch_optional(conn).await?.as_ref().map(key).transpose()
}

/// Read the valid API keys, newest first, and then so many of the revoked ones, [`MAX_LISTED`] in all. One statement sees
/// both: an API key that is revoked meanwhile is among the valid ones or among the others. Rows of older revoked API keys,
/// which are any number, are not read.
async fn keys_through(pool: &Pool, revoked: usize) -> Result<Vec<ApiKey>, StoreError> {
    on_pool(pool, "read the API keys", move |conn, _| {
        Box::pin(async move {
            let some = |only: &str, most: usize| {
                let sql = format!("SELECT {SETTINGS}, last_used_at FROM api_keys WHERE revoked_at {only}");
                format!("({sql} ORDER BY id DESC LIMIT {most})")
            };
            let sql = format!("{} UNION ALL {}", some("IS NULL", MAX_LISTED), some("IS NOT NULL", revoked));
            let rows = rows_as_text(conn, sql, Vec::new()).await?;
            let mut keys: Vec<ApiKey> = rows.iter().map(key).collect::<Result<_, _>>()?;
            keys.sort_by_key(|key| (key.revoked.is_some(), Reverse(key.id)));
            keys.truncate(MAX_LISTED);
            Ok(keys)
        })
    })
    .await
}

fn key(row: &MySqlRow) -> Result<ApiKey, sqlx::Error> {
    let revoked_at: Option<Timestamp> = row.try_get("revoked_at")?;
    let revoked_by: Option<String> = row.try_get("revoked_by")?;
    let name = |text: String| text.parse::<Name>().map_err(|_| corrupt("name"));
    let names = |column: &str| -> Result<Option<Arc<BTreeSet<Name>>>, sqlx::Error> {
        let text: Option<String> = row.try_get(column)?;
        let names = text.map(|text| text.split(',').map(|word| name(word.to_owned())).collect::<Result<_, _>>());
        Ok(names.transpose()?.map(Arc::new))
    };
    let producer: Option<String> = row.try_get("producer")?;
    Ok(ApiKey {
        id: row.try_get("id")?,
        name: name(row.try_get("name")?)?,
        kinds: names("kinds")?,
        queues: names("queues")?,
        producer: producer.map(name).transpose()?,
        scope: Scope::from_word(row.try_get("scope")?).ok_or_else(|| corrupt("scope"))?,
        digest: row.try_get::<&[u8], _>("digest")?.try_into().map_err(|_| corrupt("digest"))?,
        created_at: row.try_get("created_at")?,
        created_by: Actor::from_stored(row.try_get("created_by")?),
        last_used_at: row.try_get("last_used_at")?,
        revoked: revoked_at.zip(revoked_by.map(Actor::from_stored)),
    })
}
