//! Acceptance of jobs with an idempotency key: the jobs and the stored response are written in one transaction.
//!
//! Requests for jobs without unique keys and order keys share their commits. A batch that meets a taken key looks up
//! which key it is, and writes the rest.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;

use crate::idempotency::{
    Answer, Digest, IdempotentOutcome, IdempotentRequest, ResponseBuilder, StoredResponse, find_all, store_responses,
};
use crate::jobs::insert::{bytes_of, together};
use crate::jobs::unique_keys::{
    EnqueueReceipts, EnqueueRefusal, EnqueueRequest, EnqueuedJob, insert_keyed, with_producer,
};
use crate::rows::jobs::{Accepted, accepted_at, in_order_of, receipts, write_jobs};
use crate::rows::links::{AWAITED, IN_BATCH, NewLinks};
use crate::sql::batch::Batch;
use crate::sql::batches::BYTES_PER_ROW;
use crate::sql::clock::{StoreClock, read_clock};
use crate::sql::connection::{DbFuture, PriorRun};
use crate::sql::error::{Fault, fault, waited_for_lock};
use crate::sql::pools::transact_in_turn;
use crate::sql::session::Session;
use crate::sql::turns::subjects_of;
use crate::{Store, StoreError};
use tickr_job::{NewJob, Producer};

/// Most rounds of a shared write before its requests are written one by one. In each round more of their keys are found
/// to be taken.
const MAX_ROUNDS: usize = 4;

/// Jobs without unique keys and order keys from one idempotent request.
pub(crate) struct IdempotentJobs {
    pub(crate) request: EnqueueRequest,
    pub(crate) idempotent: IdempotentRequest,
    pub(crate) build: ResponseBuilder<EnqueueReceipts>,
}

/// Outcome of one request in a shared write.
pub(crate) enum Shareable {
    Settled(IdempotentOutcome<EnqueueReceipts, EnqueueRefusal>),
    /// Its batch could not be written because of the key of some request in it. Write this request alone.
    Alone,
}

/// The group commit of inserts with idempotency keys. It is separate from that of plain inserts, because here a batch
/// may have to wait for another process.
pub(crate) struct IdempotentInserts {
    pub(crate) clock: Arc<StoreClock>,
}

impl Batch for IdempotentInserts {
    type Item = Arc<IdempotentJobs>;
    type Reply = Shareable;
    type Mark = ();
    const ATTEMPTED: &'static str = "insert jobs once";
    const FULL: usize = 1_000;

    fn weight(item: &Self::Item) -> usize {
        // The response repeats the payload.
        item.request.jobs.iter().map(|job| 2 + 2 * job.payload.get().len() / BYTES_PER_ROW).sum()
    }

    fn bytes(item: &Self::Item) -> usize {
        // The response repeats the payload.
        item.request.jobs.iter().map(|job| 2 * bytes_of(job)).sum()
    }

    fn mark(&self) {}

    fn write<'c>(
        &'c self,
        conn: &'c mut Session<'_>,
        items: &'c [Self::Item],
        (): (),
        earlier: PriorRun,
    ) -> DbFuture<'c, Vec<Shareable>> {
        Box::pin(async move {
            let mut kept = BTreeMap::new();
            let mut done = BTreeMap::new();
            // Of several requests with one key the first is written. The others are answered from its row.
            let mut writers: BTreeMap<Digest, &IdempotentJobs> = BTreeMap::new();
            for item in items {
                writers.entry(item.idempotent.key).or_insert(item);
            }
            let mut look = earlier == PriorRun::MayHaveCommitted;
            let mut busy = false;
            for _ in 0..MAX_ROUNDS {
                if look {
                    let keys: Vec<Digest> = writers.keys().copied().collect();
                    for (key, row) in find_all(conn, &keys).await? {
                        let written = writers.remove(&key);
                        if let Some(item) = written.filter(|item| item.idempotent.id == row.id) {
                            // An earlier run wrote this row, and its commit was not answered.
                            let mut by_id: Vec<&NewJob> = item.request.jobs.iter().collect();
                            by_id.sort_unstable_by_key(|job| job.id);
                            done.insert(row.id, in_order_of(&item.request.jobs, &receipts(conn, &by_id).await?)?);
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
            let reply = |item: &Arc<IdempotentJobs>| match kept.get(&item.idempotent.key) {
                None if busy => Shareable::Settled(IdempotentOutcome::Busy),
                None => Shareable::Alone,
                Some(row) => {
                    let accepted = done.remove(&item.idempotent.id).map(EnqueueReceipts::new);
                    Shareable::Settled(row.clone().resolve(&item.idempotent, accepted))
                }
            };
            Ok(items.iter().map(reply).collect())
        })
    }
}

type Written = Vec<((Digest, StoredResponse), Vec<Accepted>)>;

/// Write jobs together with the rows of their idempotency keys, within the caller's transaction.
async fn write_all(
    conn: &mut Session<'_>,
    writers: &BTreeMap<Digest, &IdempotentJobs>,
    clock: &StoreClock,
) -> Result<Written, sqlx::Error> {
    let now = read_clock(conn, clock).await?;
    let mut written: Written = Vec::with_capacity(writers.len());
    for (key, item) in writers {
        let accepted: Vec<Accepted> = item.request.jobs.iter().map(|job| accepted_at(job, now)).collect();
        let receipts = EnqueueReceipts::new(accepted);
        let answer = (item.build)(&receipts);
        let row = StoredResponse { id: item.idempotent.id, request: item.idempotent.request, answer };
        written.push(((*key, row), receipts.jobs.into_iter().filter_map(EnqueuedJob::accepted).collect()));
    }
    let mut keys: Vec<(&IdempotentRequest, &Answer)> =
        writers.values().zip(&written).map(|(item, ((_, row), _))| (&item.idempotent, &row.answer)).collect();
    store_responses(conn, &mut keys, now).await?;
    let jobs = writers.values().flat_map(|item| &item.request.jobs);
    let mut pairs: Vec<(&NewJob, &Accepted)> = jobs.zip(written.iter().flat_map(|(_, accepted)| accepted)).collect();
    pairs.sort_unstable_by_key(|(job, _)| job.id);
    write_jobs(conn, &pairs, &NewLinks::default()).await?;
    Ok(written)
}

impl Store {
    /// Insert jobs, all or none, at most once for the idempotency key of `once`, for a producer. `build` builds the
    /// response from the receipts. The response is committed with the jobs.
    ///
    /// # Errors
    /// [`StoreError::Overloaded`] when too many callers wait, otherwise when MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn insert_idempotent(
        &self,
        producer: Producer,
        jobs: Vec<NewJob>,
        idempotent: IdempotentRequest,
        build: ResponseBuilder<EnqueueReceipts>,
    ) -> Result<IdempotentOutcome<EnqueueReceipts, EnqueueRefusal>, StoreError> {
        // These may have to wait for the lock of a key, a parent or a batch.
        let waits = |job: &NewJob| job.unique_key.is_some() || job.options.order.is_some() || job.options.has_links();
        let alone = jobs.iter().any(waits);
        let request = EnqueueRequest::new(together(with_producer(jobs, &producer)), producer);
        let item = Arc::new(IdempotentJobs { request, idempotent, build });
        if !alone {
            match self.idempotent_inserts.submit_or_refuse(Arc::clone(&item)).await? {
                Shareable::Settled(outcome) => return Ok(outcome),
                Shareable::Alone => {}
            }
        }
        let linked = item.request.jobs.iter().any(|job| job.options.has_links());
        let (shared, memory) = (self.shared.clone(), Arc::default());
        let subjects = subjects_of(&item.request.jobs);
        let outcome = transact_in_turn(&self.shared.pools, subjects, "insert jobs once", move |conn, earlier| {
            let (item, shared, memory) = (Arc::clone(&item), shared.clone(), Arc::clone(&memory));
            Box::pin(async move {
                insert_keyed(conn, &item.request, (Some(&item.idempotent), &item.build), &shared, &memory, earlier)
                    .await
            })
        });
        let outcome = outcome.await?;
        if let IdempotentOutcome::First { done, .. } = &outcome
            && (linked || done.as_ref().is_none_or(|receipts| !receipts.replaced.is_empty()))
        {
            // As without an idempotency key: new jobs of a batch, a replaced one, or one whose parent has failed.
            self.shared.links_ended(AWAITED | IN_BATCH);
        }
        Ok(outcome)
    }
}
