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

use sqlx::mysql::MySqlRow;
use sqlx::{Connection, MySqlConnection, Row};
use uuid::Uuid;

use crate::job::{NewJob, Producer, Timestamp};
use crate::store::jobs::insert::{Accepted, accepted_at, bytes_of, in_order_of, read_clock, receipts, write_jobs};
use crate::store::jobs::unique_keys::{Asked, EnqueueOutcome, Placed, Receipts, insert_keyed, signed};
use crate::store::retention::purge::{Aged, purge_aged};
use crate::store::sql::batches::{BYTES_PER_ROW, groups_by_bytes, pad, padded, places, rows, statement};
use crate::store::sql::clock::StoreClock;
use crate::store::sql::connection::{Earlier, Step, on_pool, transact};
use crate::store::sql::error::{Fault, corrupt, fault, waited_for_lock};
use crate::store::sql::group_commit::Batch;
use crate::store::{Store, StoreError};

/// Stored responses, in the order of their requests.
const ANSWERS: Aged = Aged { table: "idempotency_keys", made: "created_at" };
/// Most rounds of a shared write before its requests are written one by one. In each round more of their keys are found
/// to be taken.
const MAX_ROUNDS: usize = 4;

/// A SHA-256 digest.
pub type Digest = [u8; 32];

/// An idempotent request.
#[derive(Clone, Debug)]
pub struct IdempotentRequest {
    /// Made together with the request, so that a repeated write recognises its own row.
    id: Uuid,
    key: Digest,
    request: Digest,
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

/// Outcome of an idempotent request.
#[derive(Debug)]
pub enum Outcome<T> {
    /// Carried out now; the response is stored.
    First {
        /// The result. Absent if an earlier run committed it and MySQL's answer to that COMMIT was lost.
        done: Option<T>,
        /// The stored response.
        answer: Answer,
    },
    /// Not possible. Nothing was changed and nothing was stored: the idempotency key is free.
    Refused(T),
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
    id: Uuid,
    request: Digest,
    answer: Answer,
}

impl StoredResponse {
    /// Return the outcome that this row means for a request with the same key. `done` is the result of the request, in
    /// case the row is its own.
    pub(super) fn meet<T>(self, once: &IdempotentRequest, done: Option<T>) -> Outcome<T> {
        if self.id == once.id {
            Outcome::First { done, answer: self.answer }
        } else if self.request == once.request {
            Outcome::Replayed(self.answer)
        } else {
            Outcome::Conflict
        }
    }
}

/// Read the stored row for this idempotency key, if there is one.
pub(super) async fn find(
    conn: &mut MySqlConnection,
    once: &IdempotentRequest,
) -> Result<Option<StoredResponse>, sqlx::Error> {
    Ok(find_all(conn, &[once.key]).await?.remove(&once.key))
}

async fn find_all(
    conn: &mut MySqlConnection,
    keys: &[Digest],
) -> Result<BTreeMap<Digest, StoredResponse>, sqlx::Error> {
    let mut found = BTreeMap::new();
    for keys in keys.chunks(crate::store::sql::batches::MAX_ROWS) {
        let sql = format!(
            "SELECT key_hash, id, request_hash, status, answer FROM idempotency_keys FORCE INDEX (idempotency_keys_key) \
             WHERE key_hash IN {}",
            places(padded(keys.len()))
        );
        let mut query = statement(sql);
        for key in pad(keys) {
            query = query.bind(key.to_vec());
        }
        for row in query.fetch_all(&mut *conn).await? {
            let answer = Answer { status: row.try_get(3)?, body: row.try_get(4)? };
            found.insert(digest(&row, 0)?, StoredResponse { id: row.try_get(1)?, request: digest(&row, 2)?, answer });
        }
    }
    Ok(found)
}

fn digest(row: &MySqlRow, at: usize) -> Result<Digest, sqlx::Error> {
    row.try_get::<&[u8], _>(at)?.try_into().map_err(|_| corrupt("digest"))
}

/// Insert the rows of requests that are being carried out, in key order. Fails with 1062 if another request inserted
/// one of the keys first.
pub(super) async fn keep(
    conn: &mut MySqlConnection,
    requests: &mut [(&IdempotentRequest, &Answer)],
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    // In key order, so that two batches with the same keys wait for each other instead of deadlocking. A plain insert
    // is used, because it reports a duplicate. An upsert could not tell which request won: the driver counts matched
    // rows.
    requests.sort_unstable_by_key(|(once, _)| once.key);
    for group in groups_by_bytes(requests, |(_, answer)| 200 + answer.body.len()) {
        let sql = format!(
            "INSERT INTO idempotency_keys (id, key_hash, request_hash, status, answer, created_at) VALUES {}",
            rows(&places(6), group.len())
        );
        let mut query = statement(sql);
        for (once, answer) in group {
            query = query
                .bind(once.id)
                .bind(once.key.to_vec())
                .bind(once.request.to_vec())
                .bind(answer.status)
                .bind(answer.body.as_str())
                .bind(now);
        }
        query.execute(&mut *conn).await?;
    }
    Ok(())
}

/// Roll back and return the outcome of a request that cannot go on because another request took its key. Other errors
/// are returned as they are.
pub(super) async fn lost<T>(
    conn: &mut MySqlConnection,
    once: &IdempotentRequest,
    error: sqlx::Error,
) -> Result<Outcome<T>, sqlx::Error> {
    if fault(&error) != Fault::Duplicate && !waited_for_lock(&error) {
        return Err(error);
    }
    // The commit that follows has nothing to write.
    sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
    if waited_for_lock(&error) {
        return Ok(Outcome::Busy);
    }
    match find(conn, once).await? {
        Some(kept) => Ok(kept.meet(once, None)),
        // The other row was purged meanwhile, or the duplicate is our own id. The next run decides.
        None => Err(crate::store::sql::error::again("an idempotency key was taken, but its row is missing")),
    }
}

/// Jobs without unique keys from one idempotent request.
pub(super) struct OnceJobs {
    pub(super) asked: Asked,
    pub(super) once: IdempotentRequest,
    pub(super) word: ResponseBuilder<Receipts>,
}

/// Outcome of one request in a shared write.
pub(super) enum Shareable {
    Settled(Outcome<EnqueueOutcome>),
    /// Its batch could not be written because of the key of some request in it. Write this request alone.
    Alone,
}

/// The group commit of inserts with idempotency keys. It is separate from that of plain inserts, because here a batch
/// may have to wait for another process.
pub(super) struct OnceInserts {
    pub(super) clock: Arc<StoreClock>,
}

impl Batch for OnceInserts {
    type Item = Arc<OnceJobs>;
    type Reply = Shareable;
    type Mark = ();
    const ATTEMPTED: &'static str = "insert jobs once";
    const FULL: usize = 1_000;

    fn weight(item: &Self::Item) -> usize {
        // The response repeats the payload.
        item.asked.jobs.iter().map(|job| 2 + 2 * job.payload.get().len() / BYTES_PER_ROW).sum()
    }

    fn bytes(item: &Self::Item) -> usize {
        // The response repeats the payload.
        item.asked.jobs.iter().map(|job| 2 * bytes_of(job)).sum()
    }

    fn mark(&self) {}

    fn write<'c>(
        &'c self,
        conn: &'c mut MySqlConnection,
        items: &'c [Self::Item],
        (): (),
        earlier: Earlier,
    ) -> Step<'c, Vec<Shareable>> {
        Box::pin(async move {
            let mut kept = BTreeMap::new();
            let mut done = BTreeMap::new();
            // Of several requests with one key the first is written. The others are answered from its row.
            let mut writers: BTreeMap<Digest, &OnceJobs> = BTreeMap::new();
            for item in items {
                writers.entry(item.once.key).or_insert(item);
            }
            let mut look = earlier == Earlier::MayHaveCommitted;
            let mut busy = false;
            for _ in 0..MAX_ROUNDS {
                if look {
                    let keys: Vec<Digest> = writers.keys().copied().collect();
                    for (key, row) in find_all(conn, &keys).await? {
                        let written = writers.remove(&key);
                        if let Some(item) = written.filter(|item| item.once.id == row.id) {
                            // An earlier run wrote this row, and its commit was not answered.
                            let mut by_id: Vec<&NewJob> = item.asked.jobs.iter().collect();
                            by_id.sort_unstable_by_key(|job| job.id);
                            done.insert(row.id, in_order_of(&item.asked.jobs, &receipts(conn, &by_id).await?)?);
                        }
                        kept.insert(key, row);
                    }
                }
                if writers.is_empty() {
                    break;
                }
                let mut tx = conn.begin().await?;
                match write_all(&mut tx, &writers, &self.clock).await {
                    Ok(written) => {
                        tx.commit().await?;
                        for (row, accepted) in written {
                            done.insert(row.1.id, accepted);
                            kept.insert(row.0, row.1);
                        }
                        break;
                    }
                    Err(e) if fault(&e) == Fault::Duplicate => {
                        tx.rollback().await?;
                        look = true;
                    }
                    Err(e) if waited_for_lock(&e) => {
                        // A request with one of these keys has stopped in the middle of its transaction. Only writing
                        // each request alone shows which key it is.
                        tx.rollback().await?;
                        busy = writers.len() == 1;
                        break;
                    }
                    Err(e) => return Err(e),
                }
            }
            let reply = |item: &Arc<OnceJobs>| match kept.get(&item.once.key) {
                None if busy => Shareable::Settled(Outcome::Busy),
                None => Shareable::Alone,
                Some(row) => {
                    let accepted = done.remove(&item.once.id).map(|a| EnqueueOutcome::Accepted(Receipts::of(a)));
                    Shareable::Settled(row.clone().meet(&item.once, accepted))
                }
            };
            Ok(items.iter().map(reply).collect())
        })
    }
}

type Written = Vec<((Digest, StoredResponse), Vec<Accepted>)>;

/// Write jobs together with the rows of their idempotency keys, within the caller's transaction.
async fn write_all(
    conn: &mut MySqlConnection,
    writers: &BTreeMap<Digest, &OnceJobs>,
    clock: &StoreClock,
) -> Result<Written, sqlx::Error> {
    let now = read_clock(conn, clock).await?;
    let mut written: Written = Vec::with_capacity(writers.len());
    for (key, item) in writers {
        let accepted: Vec<Accepted> = item.asked.jobs.iter().map(|job| accepted_at(job, now)).collect();
        let receipts = Receipts::of(accepted);
        let answer = (item.word)(&receipts);
        let row = StoredResponse { id: item.once.id, request: item.once.request, answer };
        written.push(((*key, row), receipts.placed.into_iter().filter_map(Placed::accepted).collect()));
    }
    let mut keys: Vec<(&IdempotentRequest, &Answer)> =
        writers.values().zip(&written).map(|(item, ((_, row), _))| (&item.once, &row.answer)).collect();
    keep(conn, &mut keys, now).await?;
    let jobs = writers.values().flat_map(|item| &item.asked.jobs);
    let mut pairs: Vec<(&NewJob, &Accepted)> = jobs.zip(written.iter().flat_map(|(_, accepted)| accepted)).collect();
    pairs.sort_unstable_by_key(|(job, _)| job.id);
    write_jobs(conn, &pairs).await?;
    Ok(written)
}

impl Store {
    /// Insert jobs, all or none, at most once for the idempotency key of `once`. `word` builds the response from the
    /// receipts. The response is committed with the jobs.
    ///
    /// # Errors
    /// [`StoreError::Overloaded`] when too many callers wait, otherwise when MySQL cannot be reached or refuses.
    pub async fn insert_once(
        &self,
        jobs: Vec<NewJob>,
        once: IdempotentRequest,
        word: ResponseBuilder<Receipts>,
    ) -> Result<Outcome<EnqueueOutcome>, StoreError> {
        self.insert_once_for(Producer::tickr(), jobs, once, word).await
    }

    /// Insert jobs as [`insert_once`](Self::insert_once) does, for a producer that may not reach the jobs of other
    /// producers.
    ///
    /// # Errors
    /// [`StoreError::Overloaded`] when too many callers wait, otherwise when MySQL cannot be reached or refuses.
    pub async fn insert_once_for(
        &self,
        producer: Producer,
        jobs: Vec<NewJob>,
        once: IdempotentRequest,
        word: ResponseBuilder<Receipts>,
    ) -> Result<Outcome<EnqueueOutcome>, StoreError> {
        let unique = jobs.iter().any(|job| job.unique_key.is_some());
        let asked = Asked { jobs: crate::store::jobs::insert::together(signed(jobs, &producer)), producer };
        let item = Arc::new(OnceJobs { asked, once, word });
        if !unique {
            match self.onces.submit_or_refuse(Arc::clone(&item)).await? {
                Shareable::Settled(outcome) => return Ok(outcome),
                Shareable::Alone => {}
            }
        }
        let (shared, memory) = (self.shared.clone(), Arc::default());
        transact(&self.shared.pools.steering, "insert jobs once", move |conn, earlier| {
            let (item, shared, memory) = (Arc::clone(&item), shared.clone(), Arc::clone(&memory));
            Box::pin(async move {
                insert_keyed(conn, &item.asked, Some((&item.once, &item.word)), &shared, &memory, earlier).await
            })
        })
        .await
    }

    /// Look up the outcome of an earlier request with this idempotency key: [`Outcome::Replayed`],
    /// [`Outcome::Conflict`], or none if there was no such request.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn recall<T: Send + 'static>(&self, once: IdempotentRequest) -> Result<Option<Outcome<T>>, StoreError> {
        on_pool(&self.shared.pools.steering, "look up an idempotency key", move |conn, _| {
            let once = once.clone();
            Box::pin(async move { Ok(find(conn, &once).await?.map(|kept| kept.meet(&once, None))) })
        })
        .await
    }

    /// Delete stored responses that are older than `keep`, in one page of rows after `after`. Return the number of
    /// deleted rows and the position to continue after; absent at the end.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub async fn purge_keys(&self, after: Option<Uuid>, keep: Duration) -> Result<(usize, Option<Uuid>), StoreError> {
        let shared = self.shared.clone();
        transact(&self.shared.pools.loops, "purge idempotency keys", move |conn, _| {
            let shared = shared.clone();
            Box::pin(async move { purge_aged(conn, &shared, &ANSWERS, after, keep).await })
        })
        .await
    }
}
