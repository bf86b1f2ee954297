//! `POST /v1/schedules/preview`: the next ticks of an expression.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::body::{Body, empty_object};
use crate::http::problem::{Code, Problem};
use crate::schedules::view::{NEXT_RUNS, RunView, runs};
use crate::schedules::words::DstWord;
use crate::{Api, json};
use tickr_job::{Cadence, Dst, Schedule, ScheduleDraft, Timestamp};

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
    /// Time from which ticks are listed; a tick at this time is one of them. Default: now. To see the effect of a
    /// change of daylight saving time, start on the day before.
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
    if body.from.is_some_and(|from| (from - now).abs() > TimeDelta::days(366 * 100)) {
        problems.push(tickr_handlers::Problem::at("/from", "must lie within a century of now"));
    }
    let checked = draft.check(now).map_err(|wrong| {
        wrong.into_iter().map(|wrong| tickr_handlers::Problem::at(format!("/{}", wrong.field), wrong.detail)).collect()
    });
    match checked {
        Ok(schedule) if problems.is_empty() => {
            let description = schedule.cadence.describe();
            let next_runs = runs_from(&schedule, now, body.from, count);
            Ok(json(StatusCode::OK, PreviewAnswer { description, next_runs }))
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

/// Return the ticks of a schedule that was checked `now`, those at `from` or later.
fn runs_from(schedule: &Schedule, now: Timestamp, from: Option<Timestamp>, count: usize) -> Vec<RunView> {
    let mut after = from.map_or(now, |from| from - TimeDelta::nanoseconds(1));
    if let Cadence::Every { anchor, .. } = &schedule.cadence
        && schedule.unanchored
    {
        // The moment of the declaration is no tick.
        after = after.max(*anchor);
    }
    runs(&schedule.cadence, schedule.zone, Some(after), after, count)
}
