//! Cancels of jobs, as these interfaces need them.

use std::sync::Arc;

use crate::Api;
use crate::http::problem::Problem;
use tickr_job::{Actor, JobId, State};
use tickr_store::{ActionOutcome, Answer, IdempotentOutcome, JobAction, ResponseBuilder, UpdatedJob};

/// The outcome of a cancel.
pub(super) enum Cancelled {
    /// No further attempt starts. A running handler was asked to stop, if that was requested.
    Done,
    /// The job is in a state in which it is not cancelled.
    Refused(State),
    /// There is no such job.
    Missing,
}

/// Cancel a job. With `running`, also while it runs.
pub(super) async fn cancel_job(api: &Api, id: JobId, running: bool, by: &Actor) -> Result<Cancelled, Problem> {
    let action = if running { JobAction::Cancel } else { JobAction::CancelUnlessExecuting };
    // Without an idempotency key no response is stored.
    let build: ResponseBuilder<UpdatedJob> = Arc::new(|_| Answer { status: 200, body: String::new() });
    Ok(match api.broker.act(id, action, by, None, build).await? {
        IdempotentOutcome::Refused(ActionOutcome::Refused(state)) => Cancelled::Refused(state),
        IdempotentOutcome::Refused(_) => Cancelled::Missing,
        _ => Cancelled::Done,
    })
}
