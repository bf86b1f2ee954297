//! `/v1/dead-letters/causes`: the causes for which jobs failed for good in a range of time.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::http::body::QueryParams;
use crate::http::filter::refused;
use crate::http::problem::Problem;
use crate::http::range::{MAX_RANGE, read_range};
use crate::http::searches::run_with_seat;
use crate::view::Moment;
use crate::{Api, json};
use tickr_job::{Fingerprint, Name, normalise};
use tickr_store::{CauseFilter, DeadLetterCause};

/// Maximum number of causes in an answer.
const MAX_CAUSES: usize = 50;

/// The range of the causes, and further conditions.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct CausesQuery {
    /// Start of the range.
    #[param(example = "2026-11-01T10:00:00Z")]
    from: String,
    /// End of the range, at most 7 days after its start.
    #[param(example = "2026-11-01T11:00:00Z")]
    to: String,
    /// Only jobs of this kind.
    #[param(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    kind: Option<String>,
    /// Only jobs of this queue.
    #[param(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    queue: Option<String>,
    /// Only this cause.
    #[param(pattern = "^[0-9a-f]{16}$")]
    fingerprint: Option<String>,
}

/// A cause for which jobs failed for good in a range.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CauseView {
    /// Id of the cause, as that of the group of dead letters.
    fingerprint: String,
    kind: String,
    /// Error of the cause, without the parts that differ from job to job.
    error: String,
    /// Number of jobs that failed in the range.
    failed: u64,
    /// Number of jobs that failed in the time before the range that is as long as the range.
    failed_before: u64,
    /// Time of the first failure in the range, of those that were counted.
    #[schema(value_type = String, format = DateTime)]
    first_at: Moment,
    /// Time of the last failure in the range.
    #[schema(value_type = String, format = DateTime)]
    last_at: Moment,
    /// Time of the first failure that is known: earlier than the range when the cause did not begin in it.
    #[schema(value_type = String, format = DateTime)]
    known_since: Moment,
    /// Id of the newest of these jobs.
    sample: String,
    /// Beginning of the original error of that job.
    sample_error: String,
}

/// The causes of a range.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CausesAnswer {
    /// Causes, the one with the most failures first, at most 50.
    data: Vec<CauseView>,
    /// True when there are other causes.
    more: bool,
    /// True when there may be more failures than were counted.
    capped: bool,
}

impl From<DeadLetterCause> for CauseView {
    fn from(cause: DeadLetterCause) -> Self {
        Self {
            fingerprint: cause.fingerprint.to_string(),
            kind: cause.kind.to_string(),
            error: normalise(&cause.error),
            failed: cause.failed,
            failed_before: cause.before,
            first_at: Moment(cause.first),
            last_at: Moment(cause.last),
            known_since: Moment(cause.known_since),
            sample: cause.sample.to_string(),
            sample_error: cause.error,
        }
    }
}

/// List the causes of failures in a range
///
/// The jobs that failed for good in the range, by cause, whether they are open, replayed or discarded now. A job that
/// an operator retried counts where it failed last, and not at all when it has passed. The newest 50,000 failures of
/// the range are counted, and as many of the time before it.
#[utoipa::path(
    get, path = "/v1/dead-letters/causes", tag = "dead letters", operation_id = "list_dead_letter_causes",
    params(CausesQuery),
    responses(
        (status = 200, description = "The causes of the range", body = CausesAnswer),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(super) async fn list(
    State(api): State<Api>,
    QueryParams(asked): QueryParams<CausesQuery>,
) -> Result<Response, Problem> {
    let range = read_range(Some(&asked.from), Some(&asked.to), MAX_RANGE)?;
    let mut problems = Vec::new();
    let mut name = |field: &str, text: Option<&str>| -> Option<Name> {
        let read = text?.parse::<Name>();
        read.map_err(|e: tickr_job::InvalidName| problems.push(tickr_handlers::Problem::at(field, e.to_string()))).ok()
    };
    let (kind, queue) = (name("kind", asked.kind.as_deref()), name("queue", asked.queue.as_deref()));
    let fingerprint = asked.fingerprint.as_deref().map(str::parse::<Fingerprint>).transpose().unwrap_or_else(|e| {
        problems.push(tickr_handlers::Problem::at("fingerprint", e.to_string()));
        None
    });
    let Some((from, to)) = range.filter(|_| problems.is_empty()) else { return Err(refused(problems)) };
    let filter = CauseFilter { from, to, kind, queue, fingerprint };
    let store = api.broker.store().clone();
    let found = run_with_seat(&api, async move { store.dead_letter_causes(filter, MAX_CAUSES).await }).await?;
    let data = found.causes.into_iter().map(CauseView::from).collect();
    Ok(json(StatusCode::OK, CausesAnswer { data, more: found.more, capped: found.capped }))
}
