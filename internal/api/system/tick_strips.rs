//! `/v1/history/ticks`: the ticks of schedules in the last day, in slots of time, for charts.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::http::body::QueryParams;
use crate::http::filter::refused;
use crate::http::problem::Problem;
use crate::http::searches::run_with_seat;
use crate::view::Moment;
use crate::{Api, json};
use tickr_job::Name;
use tickr_store::{MAX_STRIPS, TickStrip};

/// Parameters of the ticks.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TicksHistoryQuery {
    /// Names of schedules, separated by commas, at most 50. Default: the first 50 by name.
    #[param(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}(,[a-z0-9][a-z0-9_.-]{0,63}){0,49}$")]
    schedules: Option<String>,
}

/// The ticks of schedules in the last day.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TicksHistoryAnswer {
    /// Time of this reading, by the clock of the database.
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    /// Length of a step, in milliseconds.
    step_ms: u64,
    /// Starts of the steps, in Unix milliseconds, the oldest first.
    at_ms: Vec<i64>,
    /// The schedules, in the order of the request.
    schedules: Vec<TickStripView>,
}

/// The ticks of one schedule. The columns are as long as `at_ms`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TickStripView {
    /// Name of the schedule.
    schedule: String,
    /// Number of ticks that made a job, triggers by hand included.
    fired: Vec<u32>,
    /// Number of these jobs that failed for good.
    failed: Vec<u32>,
    /// Number of ticks that were skipped.
    skipped: Vec<u32>,
    /// Due time of the oldest tick that was counted, when older ones of the last day were left out; otherwise null.
    #[schema(value_type = Option<String>, format = DateTime)]
    counted_from: Option<Moment>,
}

impl From<TickStrip> for TickStripView {
    fn from(strip: TickStrip) -> Self {
        Self {
            schedule: strip.schedule.to_string(),
            fired: strip.slots.iter().map(|slot| slot.fired).collect(),
            failed: strip.slots.iter().map(|slot| slot.failed).collect(),
            skipped: strip.slots.iter().map(|slot| slot.skipped).collect(),
            counted_from: strip.counted_from.map(Moment),
        }
    }
}

/// Show the ticks of schedules in the last day
///
/// In steps of fifteen minutes. Of a schedule up to 1,500 records of ticks are counted, of all schedules of a request
/// together up to 50,000: the newest.
#[utoipa::path(
    get, path = "/v1/history/ticks", tag = "system", operation_id = "show_history_of_ticks", params(TicksHistoryQuery),
    responses(
        (status = 200, description = "Every step of the day for each schedule", body = TicksHistoryAnswer),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(crate) async fn show(
    State(api): State<Api>,
    QueryParams(asked): QueryParams<TicksHistoryQuery>,
) -> Result<Response, Problem> {
    let names = names_in(asked.schedules.as_deref())?;
    let store = api.broker.store().clone();
    let found = run_with_seat(&api, async move { store.tick_strips(names).await }).await?;
    let answer = TicksHistoryAnswer {
        at: Moment(found.at),
        step_ms: u64::try_from(found.window.step.width().num_milliseconds()).unwrap_or(0),
        at_ms: found.window.moments().map(|moment| moment.timestamp_millis()).collect(),
        schedules: found.strips.into_iter().map(TickStripView::from).collect(),
    };
    Ok(json(StatusCode::OK, answer))
}

fn names_in(text: Option<&str>) -> Result<Vec<Name>, Problem> {
    let wrong = |detail: String| refused(vec![tickr_handlers::Problem::at("schedules", detail)]);
    let Some(text) = text else { return Ok(Vec::new()) };
    let names: Vec<&str> = text.split(',').collect();
    if names.len() > MAX_STRIPS {
        return Err(wrong(format!("must be at most {MAX_STRIPS} names")));
    }
    names.into_iter().map(|name| name.parse().map_err(|_| wrong(tickr_job::InvalidName.to_string()))).collect()
}
