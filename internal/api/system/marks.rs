//! `/v1/history/marks`: events that charts mark, because they may be the reason why figures changed.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::http::body::QueryParams;
use crate::http::problem::Problem;
use crate::http::searches::run_with_seat;
use crate::system::history::{SpanWord, series_of, span_of};
use crate::view::Moment;
use crate::{Api, json};
use tickr_job::{IndexChange, Mark, MarkedEvent, Series};

/// Parameters of the marks.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct MarksQuery {
    /// Time span: `5m`, `1h` or `24h`. Default: `1h`.
    #[param(value_type = Option<SpanWord>, inline)]
    span: Option<String>,
    /// Leave out pauses and bulk operations of other queues; `_other` leaves out none. Default: all queues.
    #[param(pattern = "^([a-z0-9][a-z0-9_.-]{0,63}|_other)$")]
    queue: Option<String>,
}

/// The events of a span.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MarksAnswer {
    /// Time of this reading, by the clock of the database.
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    /// Time span: `5m`, `1h` or `24h`.
    span: &'static str,
    /// Start of the first step of the history of this span.
    #[schema(value_type = String, format = DateTime)]
    from: Moment,
    /// Events, the oldest first, at most 50.
    marks: Vec<MarkView>,
    /// True when older events of the span were left out.
    more: bool,
}

/// Type of an event.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MarkType {
    /// Runners of one version started within 30 s.
    RunnersStarted,
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
    /// Number of runners that started, or that lost Redis or had it again.
    #[serde(skip_serializing_if = "Option::is_none")]
    runners: Option<u32>,
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
/// Starts of runners with their versions, pauses and resumes of queues, the starts of bulk operations that make jobs run,
/// and when runners lost Redis and had it again. The newest 50 of the span. Pauses are searched among the newest 5,000
/// changes of operators.
#[utoipa::path(
    get, path = "/v1/history/marks", tag = "system", operation_id = "show_history_marks", params(MarksQuery),
    responses(
        (status = 200, description = "The events of the span", body = MarksAnswer),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(crate) async fn show(
    State(api): State<Api>,
    QueryParams(asked): QueryParams<MarksQuery>,
) -> Result<Response, Problem> {
    let span = span_of(asked.span.as_deref())?;
    let queue = match series_of(asked.queue.as_deref())? {
        Series::Queue(name) => Some(name),
        Series::All | Series::Other => None,
    };
    let store = api.broker.store().clone();
    let found = run_with_seat(&api, async move { store.marks(span, queue).await }).await?;
    let answer = MarksAnswer {
        at: Moment(found.at),
        span: span.as_str(),
        from: Moment(found.window.from),
        marks: found.marks.into_iter().map(MarkView::from).collect(),
        more: found.more,
    };
    Ok(json(StatusCode::OK, answer))
}
