//! Acceptance of jobs in these interfaces.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;

use crate::Api;
use crate::http::caller::Requester;
use crate::http::idempotency::{ResponseContent, replay_stored};
use crate::http::problem::{Code, Problem};
use crate::jobs::{accept, json_answer};
use tickr_job::NewJob;
use tickr_store::{EnqueueReceipts, EnqueuedJob, IdempotentRequest};

/// Accept a job without a unique key, at most once if the request has an idempotency key. `answer` makes the body of the
/// response from the id of the job. A request that is not valid gets its stored response, if it has one.
pub(super) async fn accept_job<A: Serialize + 'static>(
    api: &Api,
    asker: &Requester,
    idempotent: Option<IdempotentRequest>,
    prepared: Result<NewJob, Problem>,
    answer: fn(String) -> A,
) -> Result<Response, Problem> {
    let job = match prepared {
        Ok(job) => job,
        Err(problem) => return replay_stored(api, idempotent, ResponseContent::Other, problem).await,
    };
    let build = move |receipts: &EnqueueReceipts| {
        let id = receipts.jobs.first().map(|placed| match placed {
            EnqueuedJob::New(accepted) => accepted.id.to_string(),
            EnqueuedJob::Existing(holder) => holder.id.to_string(),
        });
        json_answer(StatusCode::OK, &answer(id.unwrap_or_default()))
    };
    let taken = |_: &[_]| Problem::new(Code::Internal, "the job has no unique key, so none can be taken");
    accept(api, asker.producer(), vec![job], idempotent, ResponseContent::Other, Arc::new(build), taken).await
}
