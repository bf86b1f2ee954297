//! `/v1/jobs/survey`: how many jobs of a filter there are, by time and state and by their other facts.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::body::QueryParams;
use crate::http::filter::{filter_query, refused};
use crate::http::problem::Problem;
use crate::http::searches::run_with_seat;
use crate::view::Moment;
use crate::{Api, json};
use tickr_job::{Filter, State as JobState};
use tickr_store::{Bar, Facet, MAX_BARS, Survey};

/// Number of bars unless the client asks for another one.
const BARS: u32 = 60;

filter_query! {
    /// Filter of a survey, and its bars.
    SurveyQuery {
        /// Number of bars, 1 to 120. The answer may have one more, because bars begin at round times.
        #[param(minimum = 1, maximum = 120, default = 60)]
        bars: Option<u32>,
    }
}

/// A survey of the jobs of a filter.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SurveyAnswer {
    /// Begin of the first bar.
    #[schema(value_type = String, format = DateTime)]
    from: Moment,
    /// End of the last bar.
    #[schema(value_type = String, format = DateTime)]
    to: Moment,
    /// Width of a bar, in milliseconds.
    step_ms: u64,
    /// Number of jobs in all bars.
    jobs: u64,
    /// True when every job was counted. Otherwise the numbers are estimates from samples.
    exact: bool,
    /// Number of jobs that were looked at.
    looked_at: u64,
    /// The bars, the oldest one first.
    bars: Vec<BarView>,
    /// The values that the jobs have, by field. A field without values is left out.
    facets: Vec<FacetView>,
}

/// The jobs that were accepted within a range of time.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BarView {
    /// Begin of the range.
    #[schema(value_type = String, format = DateTime)]
    from: Moment,
    /// Number of jobs by their state now. States without jobs are left out.
    #[schema(value_type = BTreeMap<String, u64>)]
    states: BTreeMap<JobState, u64>,
    /// True when every job of the range was counted. Otherwise the numbers are estimates from the newest of them.
    exact: bool,
    /// False when the call had no time left for this range.
    looked: bool,
}

/// The values of one field.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FacetView {
    /// The field, as the filter language has it.
    field: FacetWord,
    /// The most frequent values, the most frequent one first.
    values: Vec<FacetValueView>,
    /// Number of other values that were seen.
    others: u64,
}

/// A value of a field.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FacetValueView {
    /// The value, as the filter language has it.
    value: String,
    /// The text that an operator knows it by, if that is another one: the error of a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    text: Option<String>,
    /// Number of jobs.
    jobs: u64,
}

/// A field whose values are counted.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FacetWord {
    State,
    Kind,
    Queue,
    Group,
    Tag,
    Attempt,
    Runner,
    Schedule,
    Host,
    UniqueKey,
    Order,
    Limit,
}

impl From<tickr_store::FacetField> for FacetWord {
    fn from(field: tickr_store::FacetField) -> Self {
        use tickr_store::FacetField as Of;
        match field {
            Of::State => Self::State,
            Of::Kind => Self::Kind,
            Of::Queue => Self::Queue,
            Of::Group => Self::Group,
            Of::Tag => Self::Tag,
            Of::Attempt => Self::Attempt,
            Of::Runner => Self::Runner,
            Of::Schedule => Self::Schedule,
            Of::Host => Self::Host,
            Of::UniqueKey => Self::UniqueKey,
            Of::Order => Self::Order,
            Of::Limit => Self::Limit,
        }
    }
}

impl From<Survey> for SurveyAnswer {
    fn from(survey: Survey) -> Self {
        let bar =
            |bar: Bar| BarView { from: Moment(bar.from), states: bar.states, exact: bar.exact, looked: bar.looked };
        let facet = |facet: Facet| FacetView {
            field: facet.field.into(),
            values: facet
                .values
                .into_iter()
                .map(|value| FacetValueView { value: value.value, text: value.text, jobs: value.jobs })
                .collect(),
            others: facet.others,
        };
        Self {
            from: Moment(survey.from),
            to: Moment(survey.to),
            step_ms: survey.step_ms.unsigned_abs(),
            jobs: survey.jobs,
            exact: survey.exact,
            looked_at: survey.looked_at,
            bars: survey.bars.into_iter().map(bar).collect(),
            facets: survey.facets.into_iter().map(facet).collect(),
        }
    }
}

/// Survey jobs by time, by state and by their other facts
///
/// The bars divide the range of creation times that the filter gives, or the range from the oldest job of the filter to
/// now. Up to 5,000 jobs are counted exactly. Of more, a call looks at the newest ones of each bar and estimates: `exact`
/// says so, for the whole and for each bar. A narrower range of time becomes exact. Each runner executes a few searches
/// and surveys at a time and refuses the others with 429 `overloaded`.
#[utoipa::path(
    get, path = "/v1/jobs/survey", tag = "jobs", operation_id = "survey_jobs", params(SurveyQuery),
    responses(
        (status = 200, description = "The survey", body = SurveyAnswer),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(crate) async fn show(
    State(api): State<Api>,
    QueryParams(asked): QueryParams<SurveyQuery>,
) -> Result<Response, Problem> {
    let mut problems = Vec::new();
    let filter = asked.words().read(api.broker.store().clock().now(), "").unwrap_or_else(|wrong| {
        problems = wrong;
        Filter::default()
    });
    let bars = asked.bars.unwrap_or(BARS);
    if !(1..=MAX_BARS).contains(&bars) {
        problems.push(tickr_handlers::Problem::at("bars", format!("must be 1 to {MAX_BARS}")));
    }
    if !problems.is_empty() {
        return Err(refused(problems));
    }
    let store = api.broker.store().clone();
    let survey = run_with_seat(&api, async move { store.survey(filter, bars).await }).await?;
    Ok(json(StatusCode::OK, SurveyAnswer::from(survey)))
}
