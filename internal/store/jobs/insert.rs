//! Acceptance of jobs: their rows in `jobs` and `owed`, written in one transaction.

use std::collections::BTreeMap;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::rows::jobs::{Accepted, commit_jobs, in_order_of, insert_owed, written_before};
use crate::rows::limits::{KnownLimits, LimitKey, LimitSetting, count_parked, keys_of, keys_with_parked_jobs};
use crate::rows::links::NewLinks;
use crate::rows::order::order_key_of;
use crate::sql::batch::Batch;
use crate::sql::batches::BYTES_PER_ROW;
use crate::sql::clock::StoreClock;
use crate::sql::connection::{DbFuture, PriorRun};
use crate::sql::error::{Fault, fault};
use crate::sql::session::Session;
use tickr_job::{BatchPlace, CountedBy, Due, JobId, NewJob};

/// The group commit of inserts. One item is the jobs of one caller, which are all written or not at all.
pub(crate) struct Inserts {
    pub(crate) clock: Arc<StoreClock>,
    pub(crate) limits: Arc<KnownLimits>,
}

impl Batch for Inserts {
    type Item = Vec<NewJob>;
    type Reply = Vec<Accepted>;
    type Mark = ();
    const ATTEMPTED: &'static str = "insert jobs";
    const FULL: usize = 1_000;

    fn weight(item: &Vec<NewJob>) -> usize {
        item.iter().map(|job| 1 + job.payload.get().len() / BYTES_PER_ROW).sum()
    }

    fn bytes(item: &Vec<NewJob>) -> usize {
        item.iter().map(bytes_of).sum()
    }

    fn mark(&self) {}

    fn write<'c>(
        &'c self,
        conn: &'c mut Session<'_>,
        items: &'c [Vec<NewJob>],
        (): (),
        earlier: PriorRun,
    ) -> DbFuture<'c, Vec<Vec<Accepted>>> {
        Box::pin(async move {
            let mut jobs: Vec<&NewJob> = items.iter().flatten().collect();
            jobs.sort_unstable_by_key(|job| job.id);
            let accepted = match written_before(conn, &jobs, earlier).await? {
                Some(accepted) => accepted,
                None => {
                    let parked = full_limits(conn, &jobs, &self.limits.now()).await?;
                    commit_jobs(conn, &jobs, &self.clock, &parked).await?
                }
            };
            items.iter().map(|jobs| in_order_of(jobs, &accepted)).collect()
        })
    }
}

/// Return the jobs that are due now and whose limits have parked jobs already, with those limits. To park them at once
/// saves them the way through Redis and a claim. The read takes no lock: if the last parked job is let go meanwhile, a
/// sweep lets these go within a second or two.
async fn full_limits(
    conn: &mut Session<'_>,
    jobs: &[&NewJob],
    limits: &[LimitSetting],
) -> Result<BTreeMap<JobId, LimitKey>, sqlx::Error> {
    let mut keys: BTreeMap<LimitKey, Vec<JobId>> = BTreeMap::new();
    if !limits.is_empty() {
        for job in jobs.iter().filter(|job| job.due == Due::Now) {
            let by = CountedBy { limit_key: job.options.limit_key.as_deref(), host: job.host.as_deref() };
            for (key, _) in keys_of(limits, (&job.kind, &job.queue), by) {
                keys.entry(key).or_default().push(job.id);
            }
        }
    }
    let mut parked = BTreeMap::new();
    for full in keys_with_parked_jobs(conn, &keys.keys().collect::<Vec<_>>()).await? {
        for id in keys.get(&full).into_iter().flatten() {
            parked.entry(*id).or_insert_with(|| {
                count_parked(&full.limit);
                full.clone()
            });
        }
    }
    Ok(parked)
}

/// The group commit of inserts with order keys. It is separate from that of other inserts, because here a batch may have
/// to wait for the lock of a key. It has one flusher: several would wait for each other.
pub(crate) struct OrderedInserts {
    pub(crate) clock: Arc<StoreClock>,
}

impl Batch for OrderedInserts {
    type Item = Vec<NewJob>;
    type Reply = Vec<Accepted>;
    type Mark = ();
    const ATTEMPTED: &'static str = "insert ordered jobs";
    const FULL: usize = 1_000;

    fn weight(item: &Vec<NewJob>) -> usize {
        Inserts::weight(item)
    }

    fn bytes(item: &Vec<NewJob>) -> usize {
        Inserts::bytes(item)
    }

    /// The row that may be locked is that of the first order key. It has no id, so a digest of the key stands for it.
    fn row(item: &Vec<NewJob>) -> Option<JobId> {
        let key = item.iter().find_map(order_key_of)?;
        let digest = Sha256::digest(key);
        Some(JobId::from_uuid(Uuid::from_slice(&digest[..16]).unwrap_or_default()))
    }

    fn mark(&self) {}

    fn write<'c>(
        &'c self,
        conn: &'c mut Session<'_>,
        items: &'c [Vec<NewJob>],
        (): (),
        earlier: PriorRun,
    ) -> DbFuture<'c, Vec<Vec<Accepted>>> {
        Box::pin(async move {
            let mut jobs: Vec<&NewJob> = items.iter().flatten().collect();
            jobs.sort_unstable_by_key(|job| job.id);
            let mut tx = conn.begin().await?;
            let accepted = match insert_owed(&mut tx, &jobs, &NewLinks::default(), &self.clock, earlier).await {
                Ok(accepted) => {
                    tx.commit().await?;
                    accepted
                }
                // The ids were made in this process, so the rows that have them are its own. A COMMIT without an answer
                // was still under way, and held the lock of the key, when an earlier run looked for them and gave up.
                Err(error) if fault(&error) == Fault::Duplicate => {
                    tx.rollback().await?;
                    written_before(conn, &jobs, PriorRun::MayHaveCommitted).await?.ok_or(error)?
                }
                Err(error) => return Err(error),
            };
            items.iter().map(|jobs| in_order_of(jobs, &accepted)).collect()
        })
    }
}

/// Estimate the memory in bytes that a job takes while it waits to be written.
pub(crate) fn bytes_of(job: &NewJob) -> usize {
    512 + job.payload.get().len()
}

/// Mark these jobs as one batch, so that `tickr verify` can check that all of them were accepted.
pub(crate) fn together(mut jobs: Vec<NewJob>) -> Vec<NewJob> {
    let batch = match (jobs.first(), u16::try_from(jobs.len())) {
        (Some(first), Ok(size)) if size > 1 => Some(BatchPlace { first: first.id, size }),
        _ => None,
    };
    for job in &mut jobs {
        job.batch = batch;
    }
    jobs
}
