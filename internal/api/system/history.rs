//! `/v1/history`: counts and durations of the last minutes, hours or day over all runners, in columns as charts need
//! them.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use chrono::TimeDelta;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::http::body::QueryParams;
use crate::http::filter::refused;
use crate::http::problem::Problem;
use crate::http::range::{MAX_RANGE, read_range};
use crate::http::searches::run_with_seat;
use crate::view::Moment;
use crate::{Api, json};
use tickr_job::{Extent, Point, Series, Span};
use tickr_store::History;

/// The longest range of the histories by queue.
const MAX_RANGE_OF_QUEUES: TimeDelta = TimeDelta::hours(24);

/// Time span of a chart: `5m` in steps of five seconds, `1h` in steps of a minute, `24h` in steps of fifteen minutes.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes the words of a parameter")]
pub(super) enum SpanWord {
    #[schema(rename = "5m")]
    FiveMinutes,
    #[schema(rename = "1h")]
    Hour,
    #[schema(rename = "24h")]
    Day,
}

/// Parameters of a history.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct HistoryQuery {
    /// Time span: `5m` in steps of five seconds, `1h` in steps of a minute, or `24h` in steps of fifteen minutes.
    /// Default: `1h`.
    #[param(value_type = Option<SpanWord>, inline)]
    span: Option<String>,
    /// Start of a range, with `to` and without `span`. The range is at most 7 days long. Its steps are minutes if it
    /// is at most three hours long and began in the last 25 hours. Otherwise they are quarters of an hour, which are
    /// kept for 8 days.
    #[param(example = "2026-11-01T10:00:00Z")]
    from: Option<String>,
    /// End of the range.
    #[param(example = "2026-11-01T11:00:00Z")]
    to: Option<String>,
    /// Only this queue, or `_other` for all queues together that have no history of their own. Default: all queues.
    #[param(pattern = "^([a-z0-9][a-z0-9_.-]{0,63}|_other)$")]
    queue: Option<String>,
}

/// Parameters of the histories by queue.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct QueuesHistoryQuery {
    /// Time span: `5m` in steps of five seconds, `1h` in steps of a minute, or `24h` in steps of fifteen minutes.
    /// Default: `1h`.
    #[param(value_type = Option<SpanWord>, inline)]
    span: Option<String>,
    /// Start of a range, with `to` and without `span`. The range is at most 24 hours long. Its steps are minutes if it
    /// is at most three hours long and began in the last 25 hours. Otherwise they are quarters of an hour, which are
    /// kept for 8 days.
    #[param(example = "2026-11-01T10:00:00Z")]
    from: Option<String>,
    /// End of the range.
    #[param(example = "2026-11-01T11:00:00Z")]
    to: Option<String>,
}

/// A history, step by step.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HistoryAnswer {
    /// Time of this reading, by the clock of the database.
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    /// Time span: `5m`, `1h`, `24h`, or `range` for a range.
    span: &'static str,
    /// Length of a step, in milliseconds.
    step_ms: u64,
    /// Time that had passed of the last step, in milliseconds; `step_ms` when the step was over. To get a count,
    /// multiply a rate by the seconds of its step, or by these for the last step.
    last_ms: u64,
    points: PointsView,
}

/// Columns of equal length: one value for each step, the oldest first, 0 or null where nothing happened.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PointsView {
    /// Start of the step, in Unix milliseconds.
    at_ms: Vec<i64>,
    /// Jobs accepted per second.
    accepted: Vec<f64>,
    /// Jobs completed per second.
    completed: Vec<f64>,
    /// Attempts per second that failed, were rejected, timed out, panicked or were lost.
    failed: Vec<f64>,
    /// Jobs per second that completed, failed for good, expired, or were cancelled while they ran.
    ended: Vec<f64>,
    /// Median of the lateness (start − execute_at), in milliseconds, accurate to 6 %.
    lateness_p50_ms: Vec<Option<f64>>,
    /// 99th percentile of the same.
    lateness_p99_ms: Vec<Option<f64>>,
    /// Median of the run time of handlers, in milliseconds, accurate to 6 %.
    run_p50_ms: Vec<Option<f64>>,
    /// 99th percentile of the same.
    run_p99_ms: Vec<Option<f64>>,
}

/// The histories of the queues, step by step.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QueuesHistoryAnswer {
    /// Time of this reading, by the clock of the database.
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    /// Time span: `5m`, `1h`, `24h`, or `range` for a range.
    span: &'static str,
    /// Length of a step, in milliseconds.
    step_ms: u64,
    /// Time that had passed of the last step, in milliseconds; `step_ms` when the step was over.
    last_ms: u64,
    /// Starts of the steps, in Unix milliseconds, the oldest first.
    at_ms: Vec<i64>,
    /// Queues with any activity, the busiest first, at most 100.
    queues: Vec<QueueHistoryView>,
    /// True when there are other, less busy queues.
    more: bool,
}

/// The history of one queue. The columns are as long as `at_ms`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QueueHistoryView {
    /// Name of the queue; `_other` for all queues together that have no history of their own.
    queue: String,
    /// Jobs accepted per second.
    accepted: Vec<f64>,
    /// Jobs completed per second.
    completed: Vec<f64>,
    /// Attempts per second that failed, were rejected, timed out, panicked or were lost.
    failed: Vec<f64>,
    /// Jobs per second that completed, failed for good, expired, or were cancelled while they ran.
    ended: Vec<f64>,
    /// Median of the lateness (start − execute_at), in milliseconds, accurate to 6 %.
    lateness_p50_ms: Vec<Option<f64>>,
    /// 99th percentile of the same.
    lateness_p99_ms: Vec<Option<f64>>,
    /// Median of the run time of handlers, in milliseconds, accurate to 6 %.
    run_p50_ms: Vec<Option<f64>>,
    /// 99th percentile of the same.
    run_p99_ms: Vec<Option<f64>>,
}

/// Return the time that a chart is about: that of `span`, or the range of `from` and `to`, at most this long.
pub(super) fn extent_of(
    span: Option<&str>,
    from: Option<&str>,
    to: Option<&str>,
    longest: TimeDelta,
) -> Result<Extent, Problem> {
    let wrong = |detail: &str| refused(vec![tickr_handlers::Problem::at("span", detail)]);
    match (span, read_range(from, to, longest)?) {
        (Some(_), Some(_)) => Err(wrong("is not allowed together with from and to")),
        (None, Some((from, to))) => Ok(Extent::Range(from, to)),
        (None, None) => Ok(Extent::Span(Span::Hour)),
        (Some(word), None) => Span::from_word(word).map(Extent::Span).ok_or_else(|| wrong("must be 5m, 1h or 24h")),
    }
}

/// Return the word for the time of a chart in its answer.
pub(super) const fn word_of(extent: Extent) -> &'static str {
    match extent {
        Extent::Span(span) => span.as_str(),
        Extent::Range(..) => "range",
    }
}

pub(super) fn series_of(queue: Option<&str>) -> Result<Series, Problem> {
    let Some(queue) = queue else { return Ok(Series::All) };
    let named = Series::from_word(queue).filter(|series| *series != Series::All);
    named.ok_or_else(|| {
        let detail = tickr_job::InvalidName.to_string();
        refused(vec![tickr_handlers::Problem::at("queue", detail)])
    })
}

/// Show the history of the cluster or of one queue
///
/// All runners together. The data come from MySQL, so every runner gives the same response, also about runners that
/// have stopped since. Runners write every five seconds. The newest step shown is one that they had two seconds to
/// write; the last step of `1h`, `24h` and a range may still be open. A range is shown by all steps that share time
/// with it. Each runner keeps separate histories for the first two
/// hundred queues that it sees.
#[utoipa::path(
    get, path = "/v1/history", tag = "system", operation_id = "show_history", params(HistoryQuery),
    responses(
        (status = 200, description = "Every step of the span or range", body = HistoryAnswer),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(crate) async fn show(
    State(api): State<Api>,
    QueryParams(asked): QueryParams<HistoryQuery>,
) -> Result<Response, Problem> {
    let extent = extent_of(asked.span.as_deref(), asked.from.as_deref(), asked.to.as_deref(), MAX_RANGE)?;
    let series = series_of(asked.queue.as_deref())?;
    let store = api.broker.store().clone();
    let history = run_with_seat(&api, async move { store.history(extent, series).await }).await?;
    let scale = Scale::new(&history);
    let points = history.series.first().map(|(_, points)| points.as_slice()).unwrap_or_default();
    let queue = scale.view(String::new(), points);
    let answer = HistoryAnswer {
        at: Moment(history.at),
        span: word_of(extent),
        step_ms: millis(scale.step),
        last_ms: millis(scale.last),
        points: PointsView {
            at_ms: at_ms(&history),
            accepted: queue.accepted,
            completed: queue.completed,
            failed: queue.failed,
            ended: queue.ended,
            lateness_p50_ms: queue.lateness_p50_ms,
            lateness_p99_ms: queue.lateness_p99_ms,
            run_p50_ms: queue.run_p50_ms,
            run_p99_ms: queue.run_p99_ms,
        },
    };
    Ok(json(StatusCode::OK, answer))
}

/// Show the histories of all queues
///
/// Like `/v1/history`, for the hundred busiest queues.
#[utoipa::path(
    get, path = "/v1/history/queues", tag = "system", operation_id = "show_history_of_queues",
    params(QueuesHistoryQuery),
    responses(
        (status = 200, description = "Every step of the span or range for each queue", body = QueuesHistoryAnswer),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(crate) async fn queues(
    State(api): State<Api>,
    QueryParams(asked): QueryParams<QueuesHistoryQuery>,
) -> Result<Response, Problem> {
    let (span, from, to) = (asked.span.as_deref(), asked.from.as_deref(), asked.to.as_deref());
    let extent = extent_of(span, from, to, MAX_RANGE_OF_QUEUES)?;
    let store = api.broker.store().clone();
    let history = run_with_seat(&api, async move { store.history_by_queue(extent).await }).await?;
    let scale = Scale::new(&history);
    let answer = QueuesHistoryAnswer {
        at: Moment(history.at),
        span: word_of(extent),
        step_ms: millis(scale.step),
        last_ms: millis(scale.last),
        at_ms: at_ms(&history),
        queues: history.series.iter().map(|(series, points)| scale.view(series.as_str().to_owned(), points)).collect(),
        more: history.more,
    };
    Ok(json(StatusCode::OK, answer))
}

fn at_ms(history: &History) -> Vec<i64> {
    history.window.moments().map(|moment| moment.timestamp_millis()).collect()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The lengths of the steps, which turn counts into rates.
struct Scale {
    step: Duration,
    last: Duration,
}

impl Scale {
    fn new(history: &History) -> Self {
        let window = history.window;
        Self { step: window.step.width().to_std().unwrap_or_default(), last: window.last(history.counted_to) }
    }

    fn view(&self, queue: String, points: &[Point]) -> QueueHistoryView {
        let rate = |count: fn(&Point) -> u64| {
            let of = |(at, point): (usize, &Point)| {
                let passed = if at + 1 == points.len() { self.last } else { self.step };
                rounded(count(point) as f64 / passed.as_secs_f64())
            };
            points.iter().enumerate().map(of).collect()
        };
        let ms = |duration: fn(&Point) -> Option<Duration>| {
            points.iter().map(|point| duration(point).map(|found| rounded(found.as_secs_f64() * 1_000.0))).collect()
        };
        QueueHistoryView {
            queue,
            accepted: rate(|point| point.accepted),
            completed: rate(|point| point.completed),
            failed: rate(|point| point.failed),
            ended: rate(|point| point.ended),
            lateness_p50_ms: ms(|point| point.lateness.map(|[middle, _]| middle)),
            lateness_p99_ms: ms(|point| point.lateness.map(|[_, worst]| worst)),
            run_p50_ms: ms(|point| point.run.map(|[middle, _]| middle)),
            run_p99_ms: ms(|point| point.run.map(|[_, worst]| worst)),
        }
    }
}

/// Round to four decimals. A chart of a hundred queues is long enough without more digits.
fn rounded(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}
