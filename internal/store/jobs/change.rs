//! Changes of the due time or the priority of a waiting job. One transaction locks the row, asks the state machine,
//! checks the condition of the request, and answers with the job after the change.

use std::sync::Arc;

use serde_json::json;
use sqlx::MySqlConnection;

use crate::job::{Actor, Attempt, Due, Event, Job, JobId, Priority, State, next};
use crate::store::attempts::settle::lock_held;
use crate::store::audit::{Act, record, was_recorded};
use crate::store::idempotency::{IdempotentRequest, Outcome, ResponseBuilder, find, keep, lost};
use crate::store::jobs::actions::{ActionOutcome, Steered};
use crate::store::jobs::insert::{Accepted, due_at, read_clock};
use crate::store::jobs::read::read_job;
use crate::store::sql::connection::{Earlier, transact};
use crate::store::sql::error::corrupt;
use crate::store::{Shared, Store, StoreError};

/// The requested change. An absent field stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The new due time.
    pub due: Option<Due>,
    /// The new priority within the queue.
    pub priority: Option<Priority>,
}

/// The condition of a request: given the job and all its attempts, it returns true if the job may be changed. It is
/// checked within the transaction.
pub type Holds = Arc<dyn Fn(&Job, &[Attempt]) -> bool + Send + Sync>;

/// Outcome of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The change is made. The job waits, and the caller should tell the index.
    Done(ActionOutcome),
    /// The job is in this state, in which it cannot be changed.
    Refused(State),
    /// The condition does not hold.
    Unmet,
    /// There is no such job.
    Missing,
}

/// All parts of one request.
struct Wish {
    change: Change,
    act: Act,
    condition: Option<Holds>,
    once: Option<IdempotentRequest>,
    word: ResponseBuilder<Steered>,
}

impl Store {
    /// Change a waiting or retrying job, if `condition` holds, and at most once for the idempotency key of `once`.
    /// `word` makes the response from the changed job. The response is stored with the idempotency key.
    ///
    /// # Errors
    /// [`StoreError`] when MySQL cannot be reached or refuses the statement.
    pub async fn change_job(
        &self,
        id: JobId,
        change: Change,
        by: &Actor,
        condition: Option<Holds>,
        once: Option<IdempotentRequest>,
        word: ResponseBuilder<Steered>,
    ) -> Result<Outcome<Changed>, StoreError> {
        let shared = self.shared.clone();
        let wish = Arc::new(Wish { change, act: Act::new(by, "job.change", id.to_string()), condition, once, word });
        transact(&self.shared.pools.steering, "change a job", move |conn, earlier| {
            let (shared, wish) = (shared.clone(), Arc::clone(&wish));
            Box::pin(async move { step(conn, &shared, id, &wish, earlier).await })
        })
        .await
    }
}

async fn step(
    conn: &mut MySqlConnection,
    shared: &Shared,
    id: JobId,
    wish: &Wish,
    earlier: Earlier,
) -> Result<Outcome<Changed>, sqlx::Error> {
    // Lock first: requests about one job run one after the other here, and the second one sees what the first one did.
    let held = lock_held(conn, std::iter::once(id)).await?;
    let now = read_clock(conn, &shared.clock).await?;
    let Some((job, attempts)) = read_job(conn, id).await? else { return Ok(Outcome::Refused(Changed::Missing)) };
    let Some(owed) = held.get(&id) else { return refuse(conn, wish, Changed::Refused(job.state)).await };
    let waits = |priority, execute_at| {
        ActionOutcome::Waits(Accepted {
            id,
            kind: owed.kind.clone(),
            queue: owed.queue.clone(),
            priority,
            execute_at,
            created_at: job.created_at,
        })
    };
    let own = earlier == Earlier::MayHaveCommitted && was_recorded(conn, &wish.act).await?;
    if own {
        // An earlier run of this transaction was committed, but its answer was lost. The job may be executing by now.
        let moved = if job.state == State::Executing {
            ActionOutcome::Done(job.state)
        } else {
            waits(job.priority, job.execute_at)
        };
        let steered = Steered { moved, job, attempts };
        let answer = (wish.word)(&steered);
        return Ok(Outcome::First { done: Some(Changed::Done(steered.moved)), answer });
    }
    if next(owed.state, Event::Change).is_err() {
        return refuse(conn, wish, Changed::Refused(owed.state)).await;
    }
    if wish.condition.as_ref().is_some_and(|holds| !holds(&job, &attempts)) {
        return refuse(conn, wish, Changed::Unmet).await;
    }
    let before: Priority = owed.priority.try_into().map_err(corrupt)?;
    let priority = wish.change.priority.unwrap_or(before);
    let execute_at = wish.change.due.map_or(owed.execute_at, |due| due_at(due, now));
    sqlx::query("UPDATE owed SET execute_at = ?, priority = ? WHERE id = ?")
        .bind(execute_at)
        .bind(priority.level())
        .bind(id.uuid())
        .execute(&mut *conn)
        .await?;
    if priority != before {
        // Of a row in `jobs`, only the priority ever changes after the insert. It is one byte before and after, so the
        // row does not grow.
        sqlx::query("UPDATE jobs SET priority = ? WHERE id = ?")
            .bind(priority.level())
            .bind(id.uuid())
            .execute(&mut *conn)
            .await?;
    }
    let (job, attempts) = read_job(conn, id).await?.ok_or_else(|| corrupt("a job is in owed but not in jobs"))?;
    let steered = Steered { moved: waits(priority, execute_at), job, attempts };
    let answer = (wish.word)(&steered);
    if let Some(once) = &wish.once
        && let Err(error) = keep(conn, &mut [(once, &answer)], now).await
    {
        return lost(conn, once, error).await;
    }
    let detail = json!({
        "execute_at": {"from": owed.execute_at, "to": execute_at},
        "priority": {"from": before.level(), "to": priority.level()},
    });
    record(conn, &wish.act.clone().with(detail), now).await?;
    Ok(Outcome::First { done: Some(Changed::Done(steered.moved)), answer })
}

/// Answer that nothing is changed. If the same request was carried out before, return its stored response instead.
async fn refuse(conn: &mut MySqlConnection, wish: &Wish, why: Changed) -> Result<Outcome<Changed>, sqlx::Error> {
    if let Some(once) = &wish.once
        && let Some(kept) = find(conn, once).await?
    {
        return Ok(kept.meet(once, None));
    }
    Ok(Outcome::Refused(why))
}
