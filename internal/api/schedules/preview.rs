//! `POST /v1/schedules/preview`: the next ticks of an expression.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::body::{Body, empty_object};
use crate::http::problem::{Code, Problem};
use crate::schedules::view::{NEXT_RUNS, RunView, runs};
use crate::schedules::words::DstWord;
use crate::{Api, json};
use tickr_job::{Dst, ScheduleDraft};

/// The settings of a schedule whose ticks to preview.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PreviewBody {
    /// As in the body of a schedule.
    #[schema(example = "30 2 * * *", max_length = 255)]
    cron: Option<String>,
    /// As in the body of a schedule.
    #[schema(minimum = 1_000, maximum = 31_622_400_000_u64)]
    every_ms: Option<u64>,
    /// As in the body of a schedule.
    anchor: Option<DateTime<Utc>>,
    /// As in the body of a schedule.
    #[schema(example = "Europe/Warsaw", max_length = 64)]
    zone: Option<String>,
    /// As in the body of a schedule.
    #[schema(value_type = Option<DstWord>)]
    dst: Option<Dst>,
    /// Time from which ticks are listed. Default: now. To see the effect of a change of daylight saving time, start on
    /// the day before.
    from: Option<DateTime<Utc>>,
    /// Number of ticks, 1 to 100. Default: 5.
    #[schema(minimum = 1, maximum = 100)]
    count: Option<usize>,
}

/// The ticks of a previewed schedule.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PreviewAnswer {
    /// Times of the ticks, in words.
    description: String,
    next_runs: Vec<RunView>,
}

/// Preview the ticks of a schedule without creating it
#[utoipa::path(
    post, path = "/v1/schedules/preview", tag = "schedules", operation_id = "preview_schedule", request_body = PreviewBody,
    responses(
        (status = 200, description = "The next ticks", body = PreviewAnswer),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(crate) async fn preview(State(api): State<Api>, Body(body, _): Body<PreviewBody>) -> Result<Response, Problem> {
    let now = api.broker.store().clock().now();
    let from = body.from.unwrap_or(now);
    let count = body.count.unwrap_or(NEXT_RUNS);
    let draft = ScheduleDraft {
        cron: body.cron,
        every_ms: body.every_ms,
        anchor: body.anchor,
        zone: body.zone,
        dst: body.dst,
        ..ScheduleDraft::new("preview", empty_object())
    };
    let mut problems = Vec::new();
    if !(1..=100).contains(&count) {
        problems.push(tickr_handlers::Problem::at("/count", "must be 1 to 100"));
    }
    if (from - now).abs() > chrono::TimeDelta::days(366 * 100) {
        problems.push(tickr_handlers::Problem::at("/from", "must lie within a century of now"));
    }
    let checked = draft.check(now).map_err(|wrong| {
        wrong.into_iter().map(|wrong| tickr_handlers::Problem::at(format!("/{}", wrong.field), wrong.detail)).collect()
    });
    match checked {
        Ok(schedule) if problems.is_empty() => {
            let cadence = schedule.cadence;
            let next_runs = runs(&cadence, schedule.zone, Some(from), from, count);
            Ok(json(StatusCode::OK, PreviewAnswer { description: cadence.describe(), next_runs }))
        }
        Ok(_) => Err(problems),
        Err(wrong) => {
            let mut all: Vec<tickr_handlers::Problem> = wrong;
            all.extend(problems);
            Err(all)
        }
    }
    .map_err(|problems| Problem::new(Code::InvalidRequest, "invalid schedule; `errors` says why").at("", problems))
}
