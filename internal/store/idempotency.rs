//! Idempotent requests: requests with an idempotency key, which are carried out at most once (G8).
//!
//! The transaction that carries a request out also writes a row with its idempotency key and its response. The unique
//! index on the key decides between two concurrent requests. The second one waits there for the first, gets error 1062,
//! rolls back and answers with the stored response of the first. If the first one rolls back, the second one goes on.
//! Only a request that was carried out is stored. A refused request has changed nothing, and the client may try it
//! again with the same key.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

use crate::audit::{AuditEntry, record};
use crate::rows::aged::{Aged, purge_aged};
use crate::sql::batches::{bind_padded, groups_by_bytes, padded_len, placeholders, statement, tuples};
use crate::sql::connection::on_pool;
use crate::sql::error::{Fault, corrupt, fault, waited_for_lock};
use crate::sql::session::Session;
use crate::{Store, StoreError};
use tickr_job::Timestamp;

/// Stored responses, in the order of their requests.
const ANSWERS: Aged = Aged { table: "idempotency_keys", made: "created_at", page: |pages| &pages.answers };

/// A SHA-256 digest.
pub type Digest = [u8; 32];

/// An idempotent request.
#[derive(Clone, Debug)]
pub struct IdempotentRequest {
    /// Made together with the request, so that a repeated write recognises its own row.
    pub(super) id: Uuid,
    pub(super) key: Digest,
    pub(super) request: Digest,
}

impl IdempotentRequest {
    /// Build an idempotent request. `key` is the digest of the caller and its idempotency key; `request` is the digest
    /// of the request.
    #[must_use]
    pub fn new(key: Digest, request: Digest) -> Self {
        Self { id: Uuid::now_v7(), key, request }
    }
}

/// A response to be stored and returned again. The caller builds it; the store does not interpret it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// An HTTP status, 200 to 299.
    pub status: u16,
    /// The body, byte for byte.
    pub body: String,
}

/// A function that builds the response from the result. It is called within the transaction, so that the response
/// commits together with the work.
pub type ResponseBuilder<T> = Arc<dyn Fn(&T) -> Answer + Send + Sync>;

/// Outcome of an idempotent request: the result `T`, or the refusal `R`.
#[derive(Clone, Debug)]
pub enum IdempotentOutcome<T, R = T> {
    /// Carried out now; the response is stored.
    First {
        /// The result. Absent if an earlier run committed it and MySQL's answer to that COMMIT was lost.
        done: Option<T>,
        /// The stored response.
        answer: Answer,
    },
    /// Not possible. Nothing was changed and nothing was stored: the idempotency key is free.
    Refused(R),
    /// Carried out before. This is the stored response.
    Replayed(Answer),
    /// The idempotency key belongs to a different request.
    Conflict,
    /// A request with this idempotency key is under way and did not end in time.
    Busy,
}

/// The stored row of a request that was carried out.
#[derive(Clone)]
pub(super) struct StoredResponse {
    pub(super) id: Uuid,
    pub(super) request: Digest,
    pub(super) answer: Answer,
}

impl StoredResponse {
    /// Return the outcome that this row means for a request with the same key. `done` is the result of the request, in
    /// case the row is its own.
    pub(super) fn resolve<T, R>(self, idempotent: &IdempotentRequest, done: Option<T>) -> IdempotentOutcome<T, R> {
        if self.id == idempotent.id {
            IdempotentOutcome::First { done, answer: self.answer }
        } else if self.request == idempotent.request {
            IdempotentOutcome::Replayed(self.answer)
        } else {
            IdempotentOutcome::Conflict
        }
    }
}

/// Read the stored row for this idempotency key, if there is one.
async fn find(conn: &mut Session<'_>, idempotent: &IdempotentRequest) -> Result<Option<StoredResponse>, sqlx::Error> {
    Ok(find_all(conn, &[idempotent.key]).await?.remove(&idempotent.key))
}

pub(super) async fn find_all(
    conn: &mut Session<'_>,
    keys: &[Digest],
) -> Result<BTreeMap<Digest, StoredResponse>, sqlx::Error> {
    let mut found = BTreeMap::new();
    for keys in keys.chunks(crate::sql::batches::MAX_ROWS) {
        let sql = format!(
            "SELECT key_hash, id, request_hash, status, answer FROM idempotency_keys FORCE INDEX (idempotency_keys_key) \
             WHERE key_hash IN {}",
            placeholders(padded_len(keys.len()))
        );
        let bytes: Vec<&[u8]> = keys.iter().map(Digest::as_slice).collect();
        let query = bind_padded(statement(sql), &bytes);
        for row in query.fetch_all(&mut *conn).await? {
            let answer = Answer { status: row.try_get("status")?, body: row.try_get("answer")? };
            found.insert(
                digest(&row, "key_hash")?,
                StoredResponse { id: row.try_get("id")?, request: digest(&row, "request_hash")?, answer },
            );
        }
    }
    Ok(found)
}

fn digest(row: &MySqlRow, column: &str) -> Result<Digest, sqlx::Error> {
    row.try_get::<&[u8], _>(column)?.try_into().map_err(|_| corrupt("digest"))
}

/// Insert the rows of requests that are being carried out, in key order. Fails with 1062 if another request inserted
/// one of the keys first.
pub(super) async fn store_responses(
    conn: &mut Session<'_>,
    requests: &mut [(&IdempotentRequest, &Answer)],
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    // In key order, so that two batches with the same keys wait for each other instead of deadlocking. A plain insert
    // is used, because it reports a duplicate. An upsert could not tell which request won: the driver counts matched
    // rows.
    requests.sort_unstable_by_key(|(idempotent, _)| idempotent.key);
    for group in groups_by_bytes(requests, |(_, answer)| 200 + answer.body.len()) {
        let sql = format!(
            "INSERT INTO idempotency_keys (id, key_hash, request_hash, status, answer, created_at) VALUES {}",
            tuples(&placeholders(6), group.len())
        );
        let mut query = statement(sql);
        for (idempotent, answer) in group {
            query = query
                .bind(idempotent.id)
                .bind(idempotent.key.to_vec())
                .bind(idempotent.request.to_vec())
                .bind(answer.status)
                .bind(answer.body.as_str())
                .bind(now);
        }
        query.execute(&mut *conn).await?;
    }
    Ok(())
}

/// Return the outcome that an earlier call of the same request has stored, if there was one. `done` is the result of
/// the request, in case the stored row is its own.
pub(super) async fn stored_before<T, R>(
    conn: &mut Session<'_>,
    idempotent: Option<&IdempotentRequest>,
    done: Option<T>,
) -> Result<Option<IdempotentOutcome<T, R>>, sqlx::Error> {
    let Some(idempotent) = idempotent else { return Ok(None) };
    Ok(find(conn, idempotent).await?.map(|kept| kept.resolve(idempotent, done)))
}

/// Store the response of a request that this transaction carries out. If another request has taken the key, everything
/// is rolled back, and the outcome of this request is returned: the caller then writes nothing more.
pub(super) async fn store_answer<T, R>(
    conn: &mut Session<'_>,
    idempotent: Option<&IdempotentRequest>,
    answer: &Answer,
    now: Timestamp,
) -> Result<Option<IdempotentOutcome<T, R>>, sqlx::Error> {
    let Some(idempotent) = idempotent else { return Ok(None) };
    match store_responses(conn, &mut [(idempotent, answer)], now).await {
        Ok(()) => Ok(None),
        Err(error) => resolve_conflict(conn, idempotent, error).await.map(Some),
    }
}

/// Store the response of a request that this transaction has carried out, record the action in the audit, and return
/// the outcome. If another request has taken the key, return the outcome of that one instead, as [`store_answer`] does.
pub(super) async fn finish<T, R>(
    conn: &mut Session<'_>,
    idempotent: Option<&IdempotentRequest>,
    act: &AuditEntry,
    (done, answer): (T, Answer),
    now: Timestamp,
) -> Result<IdempotentOutcome<T, R>, sqlx::Error> {
    if let Some(instead) = store_answer(conn, idempotent, &answer, now).await? {
        return Ok(instead);
    }
    record(conn, act, now).await?;
    Ok(IdempotentOutcome::First { done: Some(done), answer })
}

/// Roll back and return the outcome of a request that cannot go on because another request took its key. Other errors
/// are returned as they are.
async fn resolve_conflict<T, R>(
    conn: &mut Session<'_>,
    idempotent: &IdempotentRequest,
    error: sqlx::Error,
) -> Result<IdempotentOutcome<T, R>, sqlx::Error> {
    if fault(&error) != Fault::Duplicate && !waited_for_lock(&error) {
        return Err(error);
    }
    // The commit that follows has nothing to write.
    sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
    if waited_for_lock(&error) {
        return Ok(IdempotentOutcome::Busy);
    }
    match find(conn, idempotent).await? {
        Some(kept) => Ok(kept.resolve(idempotent, None)),
        // The other row was purged meanwhile, or the duplicate is our own id. The next run decides.
        None => Err(crate::sql::error::again("an idempotency key was taken, but its row is missing")),
    }
}

impl Store {
    /// Look up the outcome of an earlier request with this idempotency key: [`IdempotentOutcome::Replayed`],
    /// [`IdempotentOutcome::Conflict`], or none if there was no such request.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn find_response(
        &self,
        idempotent: IdempotentRequest,
    ) -> Result<Option<IdempotentOutcome<()>>, StoreError> {
        on_pool(&self.shared.pools.steering, "look up an idempotency key", move |conn, _| {
            let idempotent = idempotent.clone();
            Box::pin(async move { Ok(find(conn, &idempotent).await?.map(|kept| kept.resolve(&idempotent, None))) })
        })
        .await
    }

    /// Delete stored responses that are older than `keep`, in one page of rows after `after`. Return the number of
    /// deleted rows and the position to continue after; absent at the end.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn purge_idempotency_keys(
        &self,
        after: Option<Uuid>,
        keep: Duration,
    ) -> Result<(usize, Option<Uuid>), StoreError> {
        purge_aged(&self.shared, "purge idempotency keys", &ANSWERS, after, keep).await
    }
}
