//! `/v1/jobs/differences` and `/v1/dead-letters/groups/{fingerprint}/differences`: the traits that failed jobs have
//! more often than jobs of the same kinds that passed at the same time.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::http::body::{PathText, QueryParams};
use crate::http::filter::{filter_query, refused};
use crate::http::problem::{Code, Problem};
use crate::http::searches::run_with_seat;
use crate::view::Moment;
use crate::{Api, json};
use tickr_handlers::is_sensitive_field;
use tickr_job::{Difference, Filter, Fingerprint, Name, State as JobState, TraitCounts, differences};
use tickr_store::{JobSample, ShownFields};

filter_query! {
    /// Filter of the failed jobs.
    DifferencesQuery {}
}

/// The differences between failed jobs and jobs that passed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DifferencesAnswer {
    /// Differences, the greatest first, at most 20. Empty when nothing stands out.
    differences: Vec<DifferenceView>,
    /// Number of traits that were compared.
    compared: u64,
    failed: JobSampleView,
    /// Jobs of the same kinds that completed at the same time, and that meet the other conditions of the filter.
    passed: JobSampleView,
    /// Beginning of the time in which jobs that passed were looked for; null without failed jobs. It begins before the
    /// first failure and ends after the last one, by five minutes or a tenth of the time between them.
    #[schema(value_type = Option<String>, format = DateTime)]
    from: Option<Moment>,
    /// End of that time.
    #[schema(value_type = Option<String>, format = DateTime)]
    to: Option<Moment>,
}

/// The jobs that were looked at.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobSampleView {
    /// Number of jobs, the newest ones; at most 2,000.
    jobs: u64,
    /// Number of these whose payload was read: payloads of more than 8 KiB are left out, and those that are no object.
    payloads: u64,
    /// True when there may be more jobs.
    capped: bool,
}

impl JobSampleView {
    const fn new(sample: &JobSample) -> Self {
        let TraitCounts { jobs, payloads, .. } = &sample.counts;
        Self { jobs: *jobs, payloads: *payloads, capped: sample.capped }
    }
}

/// A trait that failed jobs have more often.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DifferenceView {
    /// Attribute: `kind`, `queue`, `host`, `unique_key`, `order_key`, `limit_key`, `tag`, `runner`, `runner_host`,
    /// `version` (of the runner), `attempts` (used), or `payload.` with the name of a field at the top of the payload.
    attribute: String,
    /// Value: a text, a number, a boolean or null, as the payload has it. Absent when the jobs lack the attribute.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    value: Option<Box<RawValue>>,
    /// True when the jobs lack the attribute.
    lacking: bool,
    /// Number of failed jobs with the trait.
    failed: u64,
    /// Their share of the failed jobs, from 0 to 1.
    failed_share: f64,
    /// Number of jobs that passed with the trait.
    passed: u64,
    /// Their share of the jobs that passed, from 0 to 1.
    passed_share: f64,
    /// Least difference of the two shares that agrees with the samples, with a confidence of 99 % for all compared
    /// traits together. The differences are ordered by it.
    at_least: f64,
    /// Words for `q` that find the jobs with this value; null when the filter has no field for the attribute.
    q: Option<String>,
}

impl DifferenceView {
    fn new(found: Difference) -> Self {
        let share = |(with, of): (u64, u64)| with as f64 / of.max(1) as f64;
        Self {
            attribute: found.attribute.to_string(),
            lacking: found.value.is_none(),
            failed: found.failed.0,
            failed_share: share(found.failed),
            passed: found.passed.0,
            passed_share: share(found.passed),
            at_least: found.at_least,
            q: found.value.as_deref().and_then(|value| found.attribute.search(value)),
            value: found.value.and_then(|value| RawValue::from_string(value).ok()),
        }
    }
}

/// Compare failed jobs with jobs that passed
///
/// The newest failed jobs of the filter, at most 2,000, are compared with the newest jobs of the same kinds that
/// completed at the same time. The answer lists the traits that the failed jobs have more often. Fields that the schema
/// of the kind marks as `writeOnly`, `format: password` or `x-sensitive` are left out, and all fields of a kind that
/// this runner does not know.
#[utoipa::path(
    get, path = "/v1/jobs/differences", tag = "jobs", operation_id = "compare_failed_jobs", params(DifferencesQuery),
    responses(
        (status = 200, description = "The differences", body = DifferencesAnswer),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(crate) async fn of_filter(
    State(api): State<Api>,
    QueryParams(asked): QueryParams<DifferencesQuery>,
) -> Result<Response, Problem> {
    let filter = asked.words().read(api.broker.store().clock().now(), "").map_err(refused)?;
    if filter.state.is_some_and(|state| state != JobState::Failed) {
        let detail = "must be failed, or left out: failed jobs are compared";
        return Err(refused(vec![tickr_handlers::Problem::at("state", detail)]));
    }
    compare(&api, filter).await
}

/// Compare a group of dead letters with jobs that passed
///
/// The same as `/v1/jobs/differences`, for the jobs of a group whatever the status of their dead letters.
#[utoipa::path(
    get, path = "/v1/dead-letters/groups/{fingerprint}/differences", tag = "dead letters",
    operation_id = "compare_dead_letter_group",
    params(("fingerprint" = String, Path, description = "The group: 16 hex digits", pattern = "^[0-9a-f]{16}$")),
    responses(
        (status = 200, description = "The differences", body = DifferencesAnswer),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
    )
)]
pub(crate) async fn of_group(State(api): State<Api>, PathText(text): PathText) -> Result<Response, Problem> {
    let fingerprint: Fingerprint =
        text.parse().map_err(|e: tickr_job::InvalidFingerprint| Problem::new(Code::InvalidId, e.to_string()))?;
    let store = api.broker.store().clone();
    let group = run_with_seat(&api, async move { store.dead_letter_group(fingerprint).await }).await?;
    group.ok_or_else(|| Problem::not_found("group", fingerprint))?;
    compare(&api, Filter { fingerprint: Some(fingerprint), ..Filter::default() }).await
}

async fn compare(api: &Api, filter: Filter) -> Result<Response, Problem> {
    let (store, shown) = (api.broker.store().clone(), shown_fields(api));
    let samples = run_with_seat(api, async move { store.samples_of_failures(filter, shown).await }).await?;
    let found = differences(&samples.failed.counts, &samples.passed.counts);
    let answer = DifferencesAnswer {
        differences: found.found.into_iter().map(DifferenceView::new).collect(),
        compared: found.compared,
        failed: JobSampleView::new(&samples.failed),
        passed: JobSampleView::new(&samples.passed),
        from: samples.within.map(|(from, _)| Moment(from)),
        to: samples.within.map(|(_, to)| Moment(to)),
    };
    Ok(json(StatusCode::OK, answer))
}

/// Return the rule for fields of payloads. The fields of a kind that this runner does not know are not shown, because
/// their schema may call them sensitive.
fn shown_fields(api: &Api) -> ShownFields {
    let (broker, settings) = (api.broker.clone(), api.operator_settings.now());
    Arc::new(move |kind: &Name, field: &str| {
        if let Some(kind) = broker.registry().get(kind.as_str()) {
            return !is_sensitive_field(kind.schema(), field);
        }
        settings.kinds.iter().find(|set| set.kind.name == *kind).is_some_and(|set| match &set.kind.schema {
            Some(schema) => !is_sensitive_field(schema, field),
            None => true,
        })
    })
}
