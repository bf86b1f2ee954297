//! New batches, and their close.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;

use crate::audit::{AuditEntry, record};
use crate::batches::callbacks::{Callback, to_text};
use crate::batches::count::{BatchCounted, lock_callback_keys, progress};
use crate::batches::rows::{Batch, COLUMNS, batch};
use crate::idempotency::{Answer, IdempotentOutcome, IdempotentRequest, ResponseBuilder, store_answer, stored_before};
use crate::jobs::insert::together;
use crate::rows::jobs::{Accepted, accepted_at, mark_held, receipts, write_jobs};
use crate::rows::links::{BatchChanges, LinkProblem, check_links};
use crate::rows::order::{lock_or_make, order_key_of};
use crate::sql::batches::statement;
use crate::sql::clock::read_clock;
use crate::sql::cluster::{Locked, lock_in_cluster};
use crate::sql::connection::PriorRun;
use crate::sql::pools::transact_in_turn;
use crate::sql::session::Session;
use crate::sql::turns::{Subject, subjects_of};
use crate::{Store, StoreError, StoreInner};
use tickr_job::{Actor, BatchId, JobOptions, NewJob, Timestamp};

/// A batch to create.
#[derive(Clone, Debug)]
pub struct NewBatch {
    /// Id made before the write, so that a repeated write is recognised.
    pub id: BatchId,
    /// Its name, for people.
    pub name: Option<String>,
    /// The batch that counts this one as one of its jobs.
    pub parent: Option<BatchId>,
    /// Its callbacks.
    pub callbacks: Vec<Callback>,
    /// True if it is closed at once.
    pub closed: bool,
    /// Its first jobs, without unique keys.
    pub jobs: Vec<NewJob>,
}

/// A batch that was created.
#[derive(Clone, Debug)]
pub struct BatchCreated {
    /// The batch.
    pub id: BatchId,
    /// When it was created.
    pub created_at: Timestamp,
    /// The receipts of its first jobs, in the order of the request.
    pub accepted: Vec<Accepted>,
}

/// The reasons why a batch cannot be created. A position is that of a job; without one it is the parent.
pub type BatchProblems = Vec<(Option<usize>, LinkProblem)>;

impl Store {
    /// Create a batch with its first jobs, all or nothing, at most once for the idempotency key.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn create_batch(
        &self,
        new: NewBatch,
        by: &Actor,
        idempotent: Option<IdempotentRequest>,
        build: ResponseBuilder<BatchCreated>,
    ) -> Result<IdempotentOutcome<BatchCreated, BatchProblems>, StoreError> {
        let (shared, by) = (self.shared.clone(), by.clone());
        let id = new.id;
        let mut new = new;
        for job in &mut new.jobs {
            job.options = JobOptions { batch: Some(id), ..std::mem::take(&mut job.options) };
        }
        new.jobs = together(new.jobs);
        let request = Arc::new((new, by, idempotent, build));
        let mut subjects = subjects_of(&request.0.jobs);
        subjects.extend(request.0.parent.map(Subject::Batch));
        let created = transact_in_turn(&self.shared.pools, subjects, "create a batch", move |conn, earlier| {
            let (shared, request) = (shared.clone(), Arc::clone(&request));
            Box::pin(async move {
                let (new, by, idempotent, build) = &*request;
                create(conn, &shared, (new, by), (idempotent.as_ref(), build), earlier).await
            })
        });
        let created = created.await?;
        if matches!(created, IdempotentOutcome::First { .. }) {
            self.shared.batches_changed.notify_one();
        }
        Ok(created)
    }

    /// Close a batch: no job is expected from outside any more, so it ends with its last job. Returns nothing if there is
    /// no such batch.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn close_batch(&self, id: BatchId, by: &Actor) -> Result<Option<(Batch, BatchCounted)>, StoreError> {
        let shared = self.shared.clone();
        let act = AuditEntry::new(by, "batch.close", id.to_string());
        let subjects = BTreeSet::from([Subject::Batch(id), Subject::Change]);
        let closed = transact_in_turn(&self.shared.pools, subjects, "close a batch", move |conn, _| {
            let (shared, act) = (shared.clone(), act.clone());
            Box::pin(async move {
                lock_callback_keys(conn, id).await?;
                let sql = format!("SELECT {COLUMNS} FROM batches WHERE id = ? FOR UPDATE");
                let row = statement(sql).bind(id.uuid()).fetch_optional(&mut *conn).await?;
                let Some(row) = row else { return Ok(None) };
                lock_in_cluster(conn, Locked::Batch, [id.uuid()]).await?;
                let mut batch = batch(&row)?;
                if batch.closed_at.is_some() {
                    return Ok(Some((batch, BatchCounted::default())));
                }
                let now = read_clock(conn, &shared.clock).await?;
                batch.closed_at = Some(now);
                // What the counts do not know yet is added up by a runner in a moment.
                let counted = progress(conn, &mut batch, now, (false, false)).await?;
                look_again(conn, id).await?;
                record(conn, &act, now).await?;
                Ok(Some((batch, counted)))
            })
        });
        let closed = closed.await?;
        self.shared.batches_changed.notify_one();
        Ok(closed)
    }
}

/// Let a runner look at the batch, even if no job of it changes.
pub(super) async fn look_again(conn: &mut Session<'_>, id: BatchId) -> Result<(), sqlx::Error> {
    let mut changes = BatchChanges::default();
    changes.of(id.uuid());
    changes.write(conn).await
}

async fn create(
    conn: &mut Session<'_>,
    shared: &StoreInner,
    (new, by): (&NewBatch, &Actor),
    (idempotent, build): (Option<&IdempotentRequest>, &ResponseBuilder<BatchCreated>),
    earlier: PriorRun,
) -> Result<IdempotentOutcome<BatchCreated, BatchProblems>, sqlx::Error> {
    let mut sorted: Vec<&NewJob> = new.jobs.iter().collect();
    sorted.sort_unstable_by_key(|job| job.id);
    if earlier == PriorRun::MayHaveCommitted {
        let made = sqlx::query_scalar("SELECT created_at FROM batches WHERE id = ?").bind(new.id.uuid());
        if let Some(created_at) = made.fetch_optional(&mut *conn).await? {
            let accepted = if sorted.is_empty() { Vec::new() } else { receipts(conn, &sorted).await? };
            let accepted = crate::rows::jobs::in_order_of(&new.jobs, &accepted)?;
            let created = BatchCreated { id: new.id, created_at, accepted };
            let answer: Answer = build(&created);
            return Ok(IdempotentOutcome::First { done: Some(created), answer });
        }
    }
    lock_or_make(conn, &new.jobs.iter().filter_map(order_key_of).collect()).await?;
    let own = BTreeSet::from([new.id]);
    let (links, problems) = check_links(conn, &sorted, &own, &BTreeSet::new()).await?;
    let mut problems: BatchProblems = problems
        .into_iter()
        .map(|(at, problem)| (new.jobs.iter().position(|job| job.id == sorted[at].id), problem))
        .collect();
    if let Some(parent) = new.parent {
        problems.extend(crate::rows::links::lock_open(conn, parent).await?.map(|(problem, _)| (None, problem)));
    }
    if !problems.is_empty() {
        sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
        if let Some(outcome) = stored_before(conn, idempotent, None).await? {
            return Ok(outcome);
        }
        return Ok(IdempotentOutcome::Refused(problems));
    }
    let now = read_clock(conn, &shared.clock).await?;
    let mut accepted: Vec<Accepted> = sorted.iter().map(|job| accepted_at(job, now)).collect();
    let in_order = crate::rows::jobs::in_order_of(&new.jobs, &accepted)?;
    let created = BatchCreated { id: new.id, created_at: now, accepted: in_order };
    let answer = build(&created);
    if let Some(instead) = store_answer(conn, idempotent, &answer, now).await? {
        return Ok(instead);
    }
    sqlx::query(
        "INSERT INTO batches (id, name, parent, actor, created_at, closed_at, callbacks) VALUES (?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(new.id.uuid())
    .bind(&new.name)
    .bind(new.parent.map(BatchId::uuid))
    .bind(by.as_str())
    .bind(now)
    .bind(new.closed.then_some(now))
    .bind(to_text(&new.callbacks)?)
    .execute(&mut *conn)
    .await?;
    let mut changes = BatchChanges::default();
    if let Some(parent) = new.parent {
        changes.of(parent.uuid()).total += 1;
    }
    if new.closed {
        // A batch without jobs ends at once.
        changes.of(new.id.uuid());
    }
    changes.write(conn).await?;
    let pairs: Vec<(&NewJob, &Accepted)> = sorted.iter().copied().zip(&accepted).collect();
    let held = write_jobs(conn, &pairs, &links).await?;
    mark_held(&mut accepted, &held);
    let accepted = crate::rows::jobs::in_order_of(&new.jobs, &accepted)?;
    Ok(IdempotentOutcome::First { done: Some(BatchCreated { accepted, ..created }), answer })
}
