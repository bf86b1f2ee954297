//! `/v1/history/marks`: events that charts mark, because they may be the reason why figures changed.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use chrono::TimeDelta;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::http::body::QueryParams;
use crate::http::problem::Problem;
use crate::http::range::MAX_RANGE;
use crate::http::searches::run_with_seat;
use crate::system::history::{SpanWord, extent_of, series_of, word_of};
use crate::view::Moment;
use crate::{Api, json};
use tickr_job::{IndexChange, Mark, MarkedEvent, Series, SlotWidth, Timestamp};
use tickr_store::{KEEP_INDEX_CHANGES, KEEP_RUNNERS};

/// Parameters of the marks.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct MarksQuery {
    /// Time span: `5m`, `1h` or `24h`. Default: `1h`.
    #[param(value_type = Option<SpanWord>, inline)]
    span: Option<String>,
    /// Start of a range of at most 7 days, with `to` and without `span`.
    #[param(example = "2026-11-01T10:00:00Z")]
    from: Option<String>,
    /// End of the range.
    #[param(example = "2026-11-01T11:00:00Z")]
    to: Option<String>,
    /// Leave out pauses and bulk operations of other queues; `_other` leaves out none. Default: all queues.
    #[param(pattern = "^([a-z0-9][a-z0-9_.-]{0,63}|_other)$")]
    queue: Option<String>,
}

/// How long the configuration of this runner lets the sources of a page about the past be kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeptFor {
    /// Retention of the audit.
    pub audit: Duration,
    /// Retention of failed jobs. Single kinds may have another one.
    pub failed: Duration,
}

/// The events of a span or a range.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MarksAnswer {
    /// Time of this reading, by the clock of the database.
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    /// Time span: `5m`, `1h`, `24h`, or `range` for a range.
    span: &'static str,
    /// Start of the range, or of the first step of the history of this span.
    #[schema(value_type = String, format = DateTime)]
    from: Moment,
    /// Events, the oldest first, at most 50.
    marks: Vec<MarkView>,
    /// True when older events of the span or range were left out.
    more: bool,
    /// The pauses that began before a range and lasted into it, one of a queue. A span has none.
    paused_before: Vec<MarkView>,
    kept: KeptView,
}

/// The times before which records have been removed, or are about to be. A page about an earlier time lacks them.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeptView {
    /// The history in steps of a quarter of an hour: its oldest step, if it has begun since.
    #[schema(value_type = String, format = DateTime)]
    history: Moment,
    /// Runners that stopped or were lost.
    #[schema(value_type = String, format = DateTime)]
    runners: Moment,
    /// Losses of Redis.
    #[schema(value_type = String, format = DateTime)]
    redis: Moment,
    /// What operators did, pauses among them.
    #[schema(value_type = String, format = DateTime)]
    audit: Moment,
    /// Failed jobs. Single kinds may have another retention.
    #[schema(value_type = String, format = DateTime)]
    failed: Moment,
}

impl KeptView {
    fn new(kept: KeptFor, at: Timestamp, oldest_sample: Option<Timestamp>) -> Self {
        // A retention has at most ten years.
        let before = |kept: Duration| Moment(at - TimeDelta::from_std(kept).unwrap_or(TimeDelta::zero()));
        Self {
            history: Moment(oldest_sample.unwrap_or(at).max(at - SlotWidth::Quarter.keep())),
            runners: before(KEEP_RUNNERS),
            redis: Moment(at - KEEP_INDEX_CHANGES),
            audit: before(kept.audit),
            failed: before(kept.failed),
        }
    }
}

/// Type of an event.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MarkType {
    /// Runners of one version started within 30 s.
    RunnersStarted,
    /// Runners stopped sending heartbeats within 30 s, and were found dead later.
    RunnersLost,
    /// An operator paused a queue, or changed the reason of its pause.
    QueuePaused,
    /// An operator resumed a queue.
    QueueResumed,
    /// A bulk operation with the action `replay`, `retry` or `run_now` began.
    OperationStarted,
    /// Redis did not answer runners, or refused.
    RedisLost,
    /// Redis takes writes again.
    RedisBack,
    /// Redis answered, and its data was gone.
    RedisEmptied,
}

/// An event. It has the fields of its type alone.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MarkView {
    /// Time of the event, by the clock of the database; of the first when several runners had it.
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    r#type: MarkType,
    /// The queue that was paused or resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    /// Caller that paused, resumed or began it, as in the audit.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    /// Reason of a pause.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Number of runners that started or were lost, or that lost Redis or had it again.
    #[serde(skip_serializing_if = "Option::is_none")]
    runners: Option<u32>,
    /// Id of the first runner that was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    runner: Option<String>,
    /// Version of the runners that started.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// Version of the runner that started before them, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_version: Option<String>,
    /// Id of the bulk operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<Uuid>,
    /// Action of the bulk operation: `replay`, `retry` or `run_now`.
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<&'static str>,
    /// True when the bulk operation is a canary.
    #[serde(skip_serializing_if = "Option::is_none")]
    canary: Option<bool>,
}

impl From<Mark> for MarkView {
    fn from(Mark { at, event }: Mark) -> Self {
        let blank = |r#type| Self {
            at: Moment(at),
            r#type,
            queue: None,
            by: None,
            reason: None,
            runners: None,
            runner: None,
            version: None,
            previous_version: None,
            operation: None,
            action: None,
            canary: None,
        };
        match event {
            MarkedEvent::RunnersStarted { runners, version, previous_version } => Self {
                runners: Some(runners),
                version: Some(version),
                previous_version,
                ..blank(MarkType::RunnersStarted)
            },
            MarkedEvent::RunnersLost { runner, runners } => {
                Self { runners: Some(runners), runner: Some(runner.to_string()), ..blank(MarkType::RunnersLost) }
            }
            MarkedEvent::QueuePaused { queue, by, reason } => Self {
                queue: Some(queue.to_string()),
                by: Some(by.to_string()),
                reason,
                ..blank(MarkType::QueuePaused)
            },
            MarkedEvent::QueueResumed { queue, by } => {
                Self { queue: Some(queue.to_string()), by: Some(by.to_string()), ..blank(MarkType::QueueResumed) }
            }
            MarkedEvent::OperationStarted { operation, action, is_canary, by } => Self {
                by: Some(by.to_string()),
                operation: Some(operation),
                action: Some(action.as_str()),
                canary: Some(is_canary),
                ..blank(MarkType::OperationStarted)
            },
            MarkedEvent::IndexChanged { change, runners } => {
                let r#type = match change {
                    IndexChange::Lost => MarkType::RedisLost,
                    IndexChange::Back => MarkType::RedisBack,
                    IndexChange::Emptied => MarkType::RedisEmptied,
                };
                Self { runners: Some(runners), ..blank(r#type) }
            }
        }
    }
}

/// Show the events that charts mark
///
/// Starts of runners with their versions, runners that were lost, pauses and resumes of queues, the starts of bulk
/// operations that make jobs run, and when runners lost Redis and had it again. The newest 50 of the span or range; a
/// range rather lacks starts of the version that ran before. Pauses are searched by the queues that changed and among
/// the newest 5,000 changes of operators. `kept` says how far back the records go.
#[utoipa::path(
    get, path = "/v1/history/marks", tag = "system", operation_id = "show_history_marks", params(MarksQuery),
    responses(
        (status = 200, description = "The events of the span or range", body = MarksAnswer),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(crate) async fn show(
    State(api): State<Api>,
    QueryParams(asked): QueryParams<MarksQuery>,
) -> Result<Response, Problem> {
    let extent = extent_of(asked.span.as_deref(), asked.from.as_deref(), asked.to.as_deref(), MAX_RANGE)?;
    let queue = match series_of(asked.queue.as_deref())? {
        Series::Queue(name) => Some(name),
        Series::All | Series::Other => None,
    };
    let store = api.broker.store().clone();
    let found = run_with_seat(&api, async move { store.marks(extent, queue).await }).await?;
    let answer = MarksAnswer {
        at: Moment(found.at),
        span: word_of(extent),
        from: Moment(found.from),
        marks: found.marks.into_iter().map(MarkView::from).collect(),
        more: found.more,
        paused_before: found.paused_before.into_iter().map(MarkView::from).collect(),
        kept: KeptView::new(api.kept, found.at, found.oldest_sample),
    };
    Ok(json(StatusCode::OK, answer))
}
