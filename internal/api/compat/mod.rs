//! Interfaces of other services, for clients that were written for them. The operator turns each one on in the
//! configuration. They are not part of `/openapi.json`, because they may change with their models only.
//!
//! - `delayed.rs`: messages that are delivered after a delay (`/schedule`, `/cancel/{id}`)
//! - `later.rs`: tasks of Later (`/create`, `/delete`, `/query`)

mod delayed;
mod later;

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{delete, post};

use crate::Api;
use crate::http::problem::Problem;
use tickr_job::{Actor, JobId, State};
use tickr_store::{ActionOutcome, Answer, IdempotentOutcome, JobAction, ResponseBuilder, UpdatedJob};

/// The interfaces of other services that this process serves.
#[derive(Clone, Debug, Default)]
pub struct CompatRoutes {
    /// URL that delayed messages are delivered to; absent if they are off.
    pub delayed_url: Option<String>,
    /// True to serve the interface of Later.
    pub later: bool,
}

/// Return the routes that are turned on.
pub(super) fn routes(on: &CompatRoutes) -> Router<Api> {
    let mut routes = Router::new();
    if on.delayed_url.is_some() {
        routes = routes.route("/schedule", post(delayed::schedule)).route("/cancel/{id}", delete(delayed::cancel));
    }
    if on.later {
        routes = routes
            .route("/create", post(later::create))
            .route("/delete", post(later::delete))
            .route("/query", post(later::query));
    }
    routes
}

/// Return the status by which clients of these interfaces recognise a problem. They know 400 for every request that is
/// not valid.
fn status_of(problem: &Problem) -> StatusCode {
    match problem.code.status() {
        StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
        status => status,
    }
}

/// The outcome of a cancel.
enum Cancelled {
    /// No further attempt starts. A running handler was asked to stop, if that was requested.
    Done,
    /// The job is in a state in which it is not cancelled.
    Refused(State),
    /// There is no such job.
    Missing,
}

/// Cancel a job. With `running`, also while it runs.
async fn cancel_job(api: &Api, id: JobId, running: bool, by: &Actor) -> Result<Cancelled, Problem> {
    let action = if running { JobAction::Cancel } else { JobAction::CancelUnlessExecuting };
    // Without an idempotency key no response is stored.
    let build: ResponseBuilder<UpdatedJob> = Arc::new(|_| Answer { status: 200, body: String::new() });
    Ok(match api.broker.act(id, action, by, None, build).await? {
        IdempotentOutcome::Refused(ActionOutcome::Refused(state)) => Cancelled::Refused(state),
        IdempotentOutcome::Refused(_) => Cancelled::Missing,
        _ => Cancelled::Done,
    })
}
