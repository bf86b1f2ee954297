//! Changes of the due time, the priority or the payload of a waiting job. One transaction locks the row, asks the state machine,
//! checks the condition of the request, and answers with the job after the change.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use serde_json::json;
use serde_json::value::RawValue;
use sqlx::Row;

use crate::audit::{AuditEntry, was_recorded};
use crate::idempotency::{IdempotentOutcome, IdempotentRequest, ResponseBuilder, finish, stored_before};
use crate::jobs::actions::{ActionOutcome, UpdatedJob, outcome_by_now};
use crate::jobs::read::read_job;
use crate::rows::jobs::{Accepted, due_at};
use crate::rows::limits::{is_parked, note_due_time, unpark, waits_for_turn};
use crate::rows::owed::{RESTS, lock_held};
use crate::sql::batches::statement;
use crate::sql::clock::read_clock;
use crate::sql::connection::PriorRun;
use crate::sql::error::corrupt;
use crate::sql::pools::transact_in_turn;
use crate::sql::session::Session;
use crate::sql::turns::Subject;
use crate::{Store, StoreError, StoreInner};
use tickr_job::{Actor, Attempt, Due, Job, JobId, Priority, State, StateInput, Timestamp, next};

/// The requested change. An absent field stays as it is.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// The new due time.
    pub due: Option<Due>,
    /// The new priority within the queue.
    pub priority: Option<Priority>,
    /// The new payload, which was checked against the kind of the job.
    pub payload: Option<NewPayload>,
}

/// A payload in place of the one with which a job was accepted.
#[derive(Clone)]
pub struct NewPayload {
    /// JSON text.
    pub text: Box<RawValue>,
    /// Host that the job calls, if its kind knows one.
    pub host: Option<String>,
}

impl fmt::Debug for NewPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Payloads must not appear in logs.
        f.debug_struct("NewPayload").finish_non_exhaustive()
    }
}

/// The condition of a request: given the job and its attempts, it returns true if the job may be changed. It is
/// checked within the transaction.
pub type ChangeCondition = Arc<dyn Fn(&Job, &[Attempt]) -> bool + Send + Sync>;

/// Outcome of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeOutcome {
    /// The change is made. The job waits, and the caller should tell the index.
    Done(ActionOutcome),
    /// The job is in this state, in which it cannot be changed.
    Refused(State),
    /// Its due time cannot be changed: a job in front of it with the same order key has not ended.
    Held(State),
    /// Its new due time is not before this time, when it expires: it would never start.
    AfterExpiry(Timestamp),
    /// The condition does not hold.
    Unmet,
    /// There is no such job.
    Missing,
}

/// All parts of one request.
struct ChangeRequest {
    change: Change,
    act: AuditEntry,
    condition: Option<ChangeCondition>,
    idempotent: Option<IdempotentRequest>,
    build: ResponseBuilder<UpdatedJob>,
}

impl Store {
    /// Change a waiting or retrying job, if `condition` holds, and at most once for the idempotency key of `once`.
    /// `build` makes the response from the changed job. The response is stored with the idempotency key.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    #[boxed]
    pub async fn change_job(
        &self,
        id: JobId,
        change: Change,
        by: &Actor,
        condition: Option<ChangeCondition>,
        idempotent: Option<IdempotentRequest>,
        build: ResponseBuilder<UpdatedJob>,
    ) -> Result<IdempotentOutcome<ChangeOutcome>, StoreError> {
        let shared = self.shared.clone();
        let request = Arc::new(ChangeRequest {
            change,
            act: AuditEntry::new(by, "job.change", id.to_string()),
            condition,
            idempotent,
            build,
        });
        let subjects = BTreeSet::from([Subject::Job(id), Subject::Change]);
        transact_in_turn(&self.shared.pools, subjects, "change a job", move |conn, earlier| {
            let (shared, request) = (shared.clone(), Arc::clone(&request));
            Box::pin(async move { apply_change(conn, &shared, id, &request, earlier).await })
        })
        .await
    }
}

async fn apply_change(
    conn: &mut Session<'_>,
    shared: &StoreInner,
    id: JobId,
    request: &ChangeRequest,
    earlier: PriorRun,
) -> Result<IdempotentOutcome<ChangeOutcome>, sqlx::Error> {
    // Lock first: requests about one job run one after the other here, and the second one sees what the first one did.
    let held = lock_held(conn, std::iter::once(id)).await?;
    let now = read_clock(conn, &shared.clock).await?;
    let Some((job, attempts)) = read_job(conn, id).await? else {
        return refuse(conn, request, ChangeOutcome::Missing).await;
    };
    let own = earlier == PriorRun::MayHaveCommitted && was_recorded(conn, &request.act).await?;
    if own {
        let outcome = outcome_by_now(&job, held.get(&id));
        return answer_again(conn, request, UpdatedJob { outcome, job, attempts }).await;
    }
    let Some(owed) = held.get(&id) else { return refuse(conn, request, ChangeOutcome::Refused(job.state)).await };
    let waits = |priority, execute_at, held| {
        ActionOutcome::Waits(Accepted {
            id,
            kind: owed.kind.clone(),
            queue: owed.queue.clone(),
            priority,
            execute_at,
            created_at: job.created_at,
            held,
        })
    };
    if next(owed.state, StateInput::Change).is_err() {
        return refuse(conn, request, ChangeOutcome::Refused(owed.state)).await;
    }
    if request.condition.as_ref().is_some_and(|holds| !holds(&job, &attempts)) {
        return refuse(conn, request, ChangeOutcome::Unmet).await;
    }
    if request.change.due.is_some() && waits_for_turn(owed.execute_at) {
        return refuse(conn, request, ChangeOutcome::Held(owed.state)).await;
    }
    let before: Priority = owed.priority.try_into().map_err(corrupt)?;
    let priority = request.change.priority.unwrap_or(before);
    let unparked = match &request.change.payload {
        Some(payload) if is_parked(owed.execute_at) => unpark_for(conn, id, payload.host.as_deref()).await?,
        _ => None,
    };
    let waited_until = unparked.unwrap_or(owed.execute_at);
    let execute_at = request.change.due.map_or(waited_until, |due| due_at(due, now));
    if request.change.due.is_some()
        && let Some(expires_at) = job.options.expires_at
        && execute_at >= expires_at
    {
        return refuse(conn, request, ChangeOutcome::AfterExpiry(expires_at)).await;
    }
    // With another due time the job does not wait for room any more. MySQL sets the columns in their order.
    let sql = format!(
        "UPDATE owed SET links = IF(execute_at = ?, links, links & ~{RESTS}), execute_at = ?, priority = ? WHERE id = ?"
    );
    statement(sql)
        .bind(execute_at.naive_utc())
        .bind(execute_at.naive_utc())
        .bind(priority.level())
        .bind(id.uuid())
        .execute(&mut *conn)
        .await?;
    if request.change.due.is_some() {
        note_due_time(conn, &[id.uuid()], execute_at).await?;
    }
    if priority != before {
        // The priority is one byte before and after, so the row does not grow.
        sqlx::query("UPDATE jobs SET priority = ? WHERE id = ?")
            .bind(priority.level())
            .bind(id.uuid())
            .execute(&mut *conn)
            .await?;
    }
    if let Some(payload) = &request.change.payload {
        // The row in `owed` is locked, so no claim reads the payload meanwhile.
        sqlx::query("UPDATE jobs SET payload = ?, host = ? WHERE id = ?")
            .bind(payload.text.get())
            .bind(payload.host.as_ref().map(String::as_bytes))
            .bind(id.uuid())
            .execute(&mut *conn)
            .await?;
    }
    let (job, attempts) = read_job(conn, id).await?.ok_or_else(|| corrupt("a job is in owed but not in jobs"))?;
    let updated = UpdatedJob { outcome: waits(priority, execute_at, waits_for_turn(execute_at)), job, attempts };
    let answer = (request.build)(&updated);
    let mut detail = json!({
        "execute_at": {"from": owed.execute_at, "to": execute_at},
        "priority": {"from": before.level(), "to": priority.level()},
    });
    if waits_for_turn(owed.execute_at) || waits_for_turn(execute_at) {
        // It has no due time yet.
        detail["execute_at"] = json!(null);
    }
    if request.change.payload.is_some() {
        // The audit does not quote payloads.
        detail["payload"] = json!("changed");
    }
    let act = request.act.clone().with(detail);
    finish(conn, request.idempotent.as_ref(), &act, (ChangeOutcome::Done(updated.outcome), answer), now).await
}

/// Answer for an earlier run of this transaction that was committed without an answer. The job may have started or ended
/// since. With an idempotency key, the answer is the one that was committed with the change, as for later requests.
async fn answer_again(
    conn: &mut Session<'_>,
    request: &ChangeRequest,
    updated: UpdatedJob,
) -> Result<IdempotentOutcome<ChangeOutcome>, sqlx::Error> {
    let done = || Some(ChangeOutcome::Done(updated.outcome.clone()));
    if let Some(stored) = stored_before(conn, request.idempotent.as_ref(), done()).await? {
        return Ok(stored);
    }
    Ok(IdempotentOutcome::First { done: done(), answer: (request.build)(&updated) })
}

/// Let a parked job go if its new payload calls another host: it waits in the line of the former one, whose breaker may be
/// open for a day. A claim finds out whether the limits of the new host have room. Return the due time of the job. Its row
/// in `owed` is locked.
async fn unpark_for(conn: &mut Session<'_>, id: JobId, host: Option<&str>) -> Result<Option<Timestamp>, sqlx::Error> {
    let sql = "SELECT w.due_at, j.host FROM limit_waits w FORCE INDEX (PRIMARY) JOIN jobs j ON j.id = w.job_id \
               WHERE w.job_id = ?";
    let Some(row) = sqlx::query(sql).bind(id.uuid()).fetch_optional(&mut *conn).await? else { return Ok(None) };
    let before: Option<Vec<u8>> = row.try_get("host")?;
    if before.as_deref() == host.map(str::as_bytes) {
        return Ok(None);
    }
    unpark(conn, id.uuid()).await?;
    row.try_get("due_at").map(Some)
}

/// Answer that nothing is changed. If the same request was carried out before, return its stored response instead.
async fn refuse(
    conn: &mut Session<'_>,
    request: &ChangeRequest,
    why: ChangeOutcome,
) -> Result<IdempotentOutcome<ChangeOutcome>, sqlx::Error> {
    Ok(stored_before(conn, request.idempotent.as_ref(), None).await?.unwrap_or(IdempotentOutcome::Refused(why)))
}
