//! The jobs that follow the success of an attempt that a program in another language executes: the right to enqueue
//! them, and how they are described.
//!
//! The call with such a success holds the right to end the attempt, as a worker or by the key of the attempt. It needs
//! the right to enqueue as well: otherwise an API key with the scope `work`, or a link that approves an invoice, could
//! enqueue any job.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::Api;
use crate::http::auth::{Enqueuer, is_open};
use crate::http::caller::Requester;
use crate::http::failed_logins::Peer;
use crate::http::problem::Problem;
use crate::view::RetryView;
use tickr_handlers::FollowUp;
use tickr_job::{Actor, Name};

/// A job that follows a success. It continues the trace of the job before it. What is left out is as at enqueue.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only its schema is used; the value is read by the handlers' own type")]
pub(crate) struct FollowUpBody {
    /// Name of the kind, one of `/v1/kinds`.
    #[schema(example = "http", max_length = 64)]
    kind: String,
    /// Input of the handler, at most 63 levels deep. It must fit the schema of the kind. Default: `{}`.
    payload: Option<serde_json::Value>,
    /// Name of the queue. Default: that of the kind.
    #[schema(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    queue: Option<String>,
    /// Time at which the job becomes due; a past time means now. Not together with `delay_ms`.
    execute_at: Option<chrono::DateTime<chrono::Utc>>,
    /// Delay after which the job becomes due, from the success on. Not together with `execute_at`.
    #[schema(maximum = 31_622_400_000_u64)]
    delay_ms: Option<u64>,
    /// Time after the success from which on no attempt of the job starts, in milliseconds. A job that is due only then
    /// is accepted, and expires.
    #[schema(minimum = 1, maximum = 31_622_400_000_u64)]
    expires_in_ms: Option<u64>,
    /// Priority within the queue: 0 runs first, 9 last. Default: 5.
    #[schema(maximum = 9)]
    priority: Option<u8>,
    /// Number of attempts before the job fails, 1 to 100. Default: that of the kind.
    #[schema(minimum = 1, maximum = 100)]
    max_attempts: Option<u32>,
    /// Time limit of one attempt, in milliseconds. Default: that of the kind.
    #[schema(minimum = 1, maximum = 86_400_000)]
    timeout_ms: Option<u64>,
    /// Backoff between attempts. Default: that of the kind.
    retry: Option<RetryView>,
    /// Order key. The jobs of one success with the same order key run in their order.
    #[schema(min_length = 1, max_length = 255)]
    order_key: Option<String>,
    /// What the final failure of the job does to the jobs behind it. Default: `block`. Only with `order_key`.
    #[schema(value_type = Option<crate::view::OnFailureWord>)]
    on_failure: Option<tickr_job::OnFailure>,
    /// Limit key.
    #[schema(min_length = 1, max_length = 255)]
    limit_key: Option<String>,
    /// True: the batch of the job that ends counts this job as well. Without a batch it changes nothing. Default: false.
    in_batch: Option<bool>,
    /// Tags to find the job by, at most ten.
    #[schema(max_items = 10)]
    tags: Option<Vec<String>>,
}

/// The caller of a call with verdicts, and what may let it enqueue the jobs that follow them.
pub(crate) struct FollowUpRights {
    enqueuer: Enqueuer,
    peer: Option<Peer>,
}

impl<S: Send + Sync> FromRequestParts<S> for FollowUpRights {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self { enqueuer: Enqueuer::of(parts), peer: parts.extensions.get::<Peer>().copied() })
    }
}

impl FollowUpRights {
    /// Find out what the caller may enqueue. Ask once for each call that has follow-up jobs: an API key that is not known
    /// is slowed down, as it is elsewhere.
    ///
    /// # Errors
    /// When MySQL was not read for so long that the API key may have been revoked.
    pub(crate) async fn open(self, api: &Api) -> Result<EnqueueRight, Problem> {
        let holder = match self.enqueuer {
            Enqueuer::Open => {
                // The body may have come slowly, and no revocation ends a call with a finish key.
                let is_open = is_open(api, &api.operator_settings.now());
                return Ok(EnqueueRight(is_open.then(|| Requester::of(Actor::anyone(), None))));
            }
            Enqueuer::Caller(holder) => Some(holder),
            Enqueuer::Key(Some(digest)) => Enqueuer::holder_of(digest, api)?,
            Enqueuer::Key(None) => None,
            Enqueuer::Nothing => return Ok(EnqueueRight(None)),
        };
        let Some(holder) = holder else {
            metrics::counter!("tickr_unauthorized_total").increment(1);
            tokio::time::sleep(api.failed_logins.record_failure(self.peer)).await;
            return Ok(EnqueueRight(None));
        };
        if !holder.may_enqueue() {
            return Ok(EnqueueRight(None));
        }
        holder.was_used(api);
        Ok(EnqueueRight(Some(Requester::of(holder.actor().clone(), Some(&holder)))))
    }
}

/// What the caller of a call with verdicts may enqueue. Nothing without a requester.
pub(crate) struct EnqueueRight(Option<Requester>);

impl EnqueueRight {
    /// Return the first of these follow-up jobs that the caller may not enqueue, with a pointer relative to the verdict.
    /// Jobs of the kinds that `is_free` says need no right. The others get the queue that was checked, so that a kind
    /// that is declared anew meanwhile takes none of them elsewhere.
    pub(crate) fn check(
        &self,
        api: &Api,
        follow_ups: &mut [FollowUp],
        is_free: impl Fn(&str) -> bool,
    ) -> Vec<tickr_handlers::Problem> {
        let mut bound = follow_ups.iter_mut().enumerate().filter(|(_, job)| !is_free(&job.kind)).peekable();
        if bound.peek().is_none() {
            return Vec::new();
        }
        let Some(requester) = &self.0 else {
            let why = "need an API key with the scope enqueue, in the header tickr-enqueue-authorization";
            return vec![tickr_handlers::Problem::at("/follow_ups", why)];
        };
        let registry = api.broker.registry();
        let problem = |(place, job): (usize, &mut FollowUp)| {
            let of_kind = || {
                let kind = registry.find(&job.kind);
                kind.as_ref().and_then(|kind| kind.queue()).map_or("default", Name::as_str).to_owned()
            };
            let queue = job.options.queue.clone().unwrap_or_else(of_kind);
            let problem = requester.problem_of_kind(&job.kind, &job.payload);
            let problem = problem.or_else(|| requester.problem_of_queue(&queue));
            if requester.has_queues() {
                job.options.queue = Some(queue);
            }
            let problem = problem?;
            Some(tickr_handlers::Problem::at(format!("/follow_ups/{place}{}", problem.pointer), problem.detail))
        };
        // The first one will do. It may name all kinds of the API key, and an answer has up to 500 verdicts.
        bound.find_map(problem).into_iter().collect()
    }
}
