//! `/v1/jobs/{id}/timeline`: the life of a job as segments of time with their causes.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::body::IdPath;
use crate::http::problem::Problem;
use crate::view::Moment;
use crate::{Api, json};
use tickr_job::{Segment, State as JobState, WaitCause, timeline};

/// The timeline of a job.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TimelineAnswer {
    #[schema(value_type = crate::view::StateWord)]
    state: JobState,
    /// Time of the acceptance.
    #[schema(value_type = String, format = DateTime)]
    from: Moment,
    /// End of the job, or the time of this reading by the clock of the database.
    #[schema(value_type = String, format = DateTime)]
    to: Moment,
    /// Segments in their order, without gaps.
    segments: Vec<SegmentView>,
    /// Sum of the segments by cause, in milliseconds.
    #[schema(value_type = BTreeMap<String, u64>)]
    total_ms: BTreeMap<&'static str, u64>,
}

/// A segment of a timeline.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SegmentView {
    #[schema(value_type = TimelineCauseWord)]
    cause: WaitCause,
    /// The cause in words, for people.
    text: String,
    #[schema(value_type = String, format = DateTime)]
    from: Moment,
    /// End of the segment; null while it goes on.
    #[schema(value_type = Option<String>, format = DateTime)]
    to: Option<Moment>,
    /// Its duration in milliseconds, so far.
    ms: f64,
    /// Number of the attempt that ran, or that follows the wait.
    attempt: u32,
    /// Limit that had no room; null for other causes.
    limit: Option<String>,
    /// False if tickr recorded the segment with the job. True if it follows from other records: from the pauses of the
    /// queue in the audit, or from the lack of another cause.
    derived: bool,
}

/// The cause of a segment.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used; the value is the domain's own type")]
pub(crate) enum TimelineCauseWord {
    /// The job was not due yet.
    NotDue,
    /// A parent of the job had not ended.
    Parents,
    /// Jobs in front of it had the same order key.
    OrderKey,
    /// The queue was paused.
    QueuePaused,
    /// A limit by key had no room.
    Limit,
    /// No worker took the job: none was free, its queue was at its limit, or no runner served it.
    Worker,
    /// An attempt ran.
    Running,
    /// The backoff after a failed attempt.
    Backoff,
    /// The handler asked to run again later.
    Snoozed,
    /// The job had ended, until an operator retried it.
    Ended,
}

impl SegmentView {
    fn new(segment: Segment) -> Self {
        let text = text_of(&segment);
        let ms = (segment.to - segment.from).num_microseconds().map_or(f64::MAX, |us| us as f64 / 1_000.0);
        Self {
            cause: segment.cause,
            text,
            from: Moment(segment.from),
            to: (!segment.open).then_some(Moment(segment.to)),
            ms,
            attempt: segment.attempt,
            derived: segment.is_derived(),
            limit: segment.limit,
        }
    }
}

fn text_of(segment: &Segment) -> String {
    let attempt = segment.attempt;
    match segment.cause {
        WaitCause::NotDue => "waited for its due time".to_owned(),
        WaitCause::Parents => "waited for its parents".to_owned(),
        WaitCause::OrderKey => "waited behind jobs with the same order key".to_owned(),
        WaitCause::QueuePaused => match &segment.pause {
            Some(pause) => {
                let reason = pause.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
                format!("the queue was paused by {}{reason}", pause.by)
            }
            None => "the queue was paused".to_owned(),
        },
        WaitCause::Limit => {
            format!("waited for room at the limit {}", segment.limit.as_deref().unwrap_or("by its key"))
        }
        WaitCause::Worker => "waited for a free worker".to_owned(),
        WaitCause::Running => format!("attempt {attempt} ran"),
        WaitCause::Backoff => format!("backed off before attempt {attempt}"),
        WaitCause::Snoozed => format!("snoozed before attempt {attempt}"),
        WaitCause::Ended => "had ended, until an operator retried it".to_owned(),
    }
}

/// Show the timeline of a job
///
/// The answer says where the time of the job went, from its acceptance to its end: waits with their causes, attempts
/// and backoffs, up to the first 1,000 attempts. A wait for a worker is what no other cause explains.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/timeline", tag = "jobs", operation_id = "show_timeline",
    params(("id" = Uuid, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The timeline", body = TimelineAnswer),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
    )
)]
pub(crate) async fn show(State(api): State<Api>, IdPath(id): IdPath) -> Result<Response, Problem> {
    let facts = api.broker.store().timeline_of(id).await?.ok_or_else(|| Problem::not_found("job", id))?;
    let segments: Vec<SegmentView> = timeline(&facts).into_iter().map(SegmentView::new).collect();
    let mut total_ms: BTreeMap<&'static str, u64> = BTreeMap::new();
    for segment in &segments {
        *total_ms.entry(segment.cause.as_str()).or_default() += segment.ms as u64;
    }
    let to = Moment(facts.ended_at.unwrap_or(facts.now));
    Ok(json(
        StatusCode::OK,
        TimelineAnswer { state: facts.state, from: Moment(facts.created_at), to, segments, total_ms },
    ))
}
