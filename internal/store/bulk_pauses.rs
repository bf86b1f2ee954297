//! Pauses of bulk operations. A paused operation keeps its position and changes nothing until an operator resumes it.
//!
//! A pause takes the token of the runner that carries the operation out, under the lock of its row. So a batch that is
//! under way is finished first, and the next one finds that the runner has lost its lease.

use std::collections::BTreeSet;

use async_recursion::async_recursion as boxed;
use uuid::Uuid;

use crate::audit::AuditEntry;
use crate::bulk::{FREED, SET_ASIDE, lock, read};
use crate::idempotency::{IdempotentOutcome, IdempotentRequest, ResponseBuilder, finish, store_answer, stored_before};
use crate::sql::batches::statement;
use crate::sql::clock::read_clock;
use crate::sql::connection::PriorRun;
use crate::sql::error::corrupt;
use crate::sql::pools::transact_in_turn;
use crate::sql::session::Session;
use crate::sql::turns::Subject;
use crate::{Store, StoreError};
use tickr_job::{Actor, Operation, OperationState, Timestamp};

/// A change of the pause of a bulk operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseOperation {
    /// Change no more jobs until it is resumed.
    Pause,
    /// Go on at the position that it has.
    Resume,
}

/// Outcome of a request to pause or to resume a bulk operation.
#[derive(Clone, Debug)]
pub enum OperationPause {
    /// Paused or resumed; also when it was so before.
    Done(Box<Operation>),
    /// It had already ended, in this state.
    Over(OperationState),
    /// There is no such operation.
    Missing,
}

impl Store {
    /// Pause a running bulk operation, or resume it. After a pause has been answered, the operation changes no more
    /// jobs.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn pause_operation(
        &self,
        id: Uuid,
        change: PauseOperation,
        by: &Actor,
        idempotent: Option<IdempotentRequest>,
        build: ResponseBuilder<Operation>,
    ) -> Result<IdempotentOutcome<OperationPause>, StoreError> {
        let shared = self.shared.clone();
        let (attempted, action) = match change {
            PauseOperation::Pause => ("pause an operation", "operation.pause"),
            PauseOperation::Resume => ("resume an operation", "operation.resume"),
        };
        let act = AuditEntry::new(by, action, id.to_string());
        let subjects = BTreeSet::from([Subject::Operation(id), Subject::Change]);
        transact_in_turn(&self.shared.pools, subjects, attempted, move |conn, earlier| {
            let (shared, act, idempotent, build) = (shared.clone(), act.clone(), idempotent.clone(), build.clone());
            Box::pin(async move {
                let held = lock(conn, id).await?;
                let Some(held) = held.filter(|held| held.state == OperationState::Running) else {
                    let refused = match read(conn, id).await? {
                        Some(operation) => OperationPause::Over(operation.state),
                        None => OperationPause::Missing,
                    };
                    let stored = stored_before(conn, idempotent.as_ref(), None).await?;
                    return Ok(stored.unwrap_or(IdempotentOutcome::Refused(refused)));
                };
                if let Some(stored) = stored_before(conn, idempotent.as_ref(), None).await? {
                    return Ok(stored);
                }
                let is_so = held.operation.paused.is_some() == (change == PauseOperation::Pause);
                let now = read_clock(conn, &shared.clock).await?;
                if !is_so {
                    write(conn, id, change, &act.actor, now).await?;
                }
                let operation = read(conn, id).await?.ok_or_else(|| corrupt("a locked operation is gone"))?;
                let answer = build(&operation);
                let done = OperationPause::Done(Box::new(operation));
                if is_so && earlier == PriorRun::Nothing {
                    // The operator changed nothing, so the audit gets no row.
                    let instead = store_answer(conn, idempotent.as_ref(), &answer, now).await?;
                    return Ok(instead.unwrap_or(IdempotentOutcome::First { done: Some(done), answer }));
                }
                finish(conn, idempotent.as_ref(), &act, (done, answer), now).await
            })
        })
        .await
    }
}

async fn write(
    conn: &mut Session<'_>,
    id: Uuid,
    change: PauseOperation,
    by: &Actor,
    now: Timestamp,
) -> Result<(), sqlx::Error> {
    let (at, by, lease) = match change {
        PauseOperation::Pause => (Some(now), Some(by.as_str()), SET_ASIDE),
        PauseOperation::Resume => (None, None, FREED),
    };
    statement(format!("UPDATE operations SET paused_at = ?, paused_by = ?, {lease} WHERE id = ?"))
        .bind(at)
        .bind(by)
        .bind(id)
        .execute(conn)
        .await
        .map(drop)
}
