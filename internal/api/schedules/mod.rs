//! `/v1/schedules`: schedules, which enqueue jobs on a cron expression or at an interval: list, show, put, delete, pause
//! and resume.
//!
//! - `body.rs`: the definition of a schedule, as clients send it
//! - `preview.rs`: the next ticks of an expression
//! - `ticks.rs`: the record of each tick
//! - `trigger.rs`: fire a schedule now
//! - `view.rs`: schedules and ticks, as clients see them
//! - `words.rs`: their words, for the OpenAPI document

mod body;
pub(super) mod preview;
pub(super) mod ticks;
pub(super) mod trigger;
mod view;
mod words;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::http::auth::RequestActor;
use crate::http::body::{Body, NamePath, OptionalBody, QueryParams};
use crate::http::cursor::{Listing, page_size};
use crate::http::etag::Preconditions;
use crate::http::problem::{Code, Problem};
use crate::schedules::body::ScheduleBody;
use crate::schedules::view::{ScheduleView, read_tag};
use crate::{Api, json};
use tickr_job::Name;
use tickr_store::{DeleteOutcome, PutOutcome, ScheduleOrigin, Scheduled, StoreError, UnreadableSchedule};

/// Maximum length of the reason of a pause, in characters.
const MAX_REASON: usize = 1_000;

fn unexpected(name: &Name) -> Problem {
    let detail = format!("the schedule {name} does not meet the condition of the request; nothing was changed");
    Problem::new(Code::PreconditionFailed, detail)
}

/// Turn the error of a call about a schedule into its problem. If this runner cannot read the schedule, name the part.
async fn failed(api: &Api, name: &Name, error: StoreError) -> Problem {
    if matches!(error, StoreError::Corrupt { .. })
        && let Ok(Some(unreadable)) = api.broker.store().unreadable_schedule(name.clone()).await
    {
        let detail = format!("this runner cannot read the schedule {name}: {}", unreadable.why);
        return Problem::new(Code::UnreadableSchedule, detail);
    }
    error.into()
}

/// Read a schedule, or return the problem of a call about it.
async fn find(api: &Api, name: &Name) -> Result<Scheduled, Problem> {
    match api.broker.store().schedule(name.clone()).await {
        Ok(row) => row.ok_or_else(|| Problem::not_found("schedule", name)),
        Err(error) => Err(failed(api, name, error).await),
    }
}

fn declared(name: &Name) -> Problem {
    let detail = format!(
        "a configuration file declares the schedule {name}, and only the file can change it; it can be paused, \
         resumed and triggered here"
    );
    Problem::new(Code::DeclaredInConfig, detail)
}

/// Create or change a schedule
///
/// If the times of an existing schedule do not change, its next tick stays the same. With `If-Match`, only if the
/// schedule has not been changed since it was read. With `If-None-Match: *`, only if it does not exist yet.
#[utoipa::path(
    put, path = "/v1/schedules/{name}", tag = "schedules", operation_id = "put_schedule", request_body = ScheduleBody,
    params(
        ("name" = String, Path, description = "The schedule's name", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$"),
        ("If-Match" = Option<String>, Header, description = "Only if the schedule has one of these ETags",
            pattern = r#"^(\*|(W/)?"[!#-~]*"( *, *(W/)?"[!#-~]*")*)$"#),
        ("If-None-Match" = Option<String>, Header, description = "`*`: only if the schedule does not exist", pattern = r"^\*$"),
    ),
    responses(
        (status = 201, description = "The schedule is created", body = ScheduleView, headers(("ETag" = String))),
        (status = 200, description = "The schedule is changed, or was the same already", body = ScheduleView, headers(("ETag" = String))),
        (status = 409, description = "declared_in_config, unreadable_schedule", body = Problem),
        (status = 412, description = "precondition_failed", body = Problem),
        (status = 422, description = "invalid_request, unknown_kind, invalid_payload", body = Problem),
    )
)]
pub(crate) async fn put(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    NamePath(name): NamePath,
    expected: Preconditions,
    Body(body, _): Body<ScheduleBody>,
) -> Result<Response, Problem> {
    let condition = expected.condition(read_tag)?;
    let schedule = api.broker.prepare_schedule(body.into()).map_err(|invalid| Problem::invalid("", invalid))?;
    let put = api.broker.put_schedule(name.clone(), schedule, ScheduleOrigin::Api, condition, &who).await;
    let (status, row) = match put {
        Ok(PutOutcome::Created(row)) => (StatusCode::CREATED, row),
        Ok(PutOutcome::Changed(row) | PutOutcome::Unchanged(row)) => (StatusCode::OK, row),
        Ok(PutOutcome::Unexpected) => return Err(unexpected(&name)),
        Ok(PutOutcome::OwnedByConfig) => return Err(declared(&name)),
        Err(error) => return Err(failed(&api, &name, error).await),
    };
    ScheduleView::shown(&api, status, row).await
}

/// Show a schedule with its next runs
#[utoipa::path(
    get, path = "/v1/schedules/{name}", tag = "schedules", operation_id = "show_schedule",
    params(("name" = String, Path, description = "The schedule's name", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")),
    responses(
        (status = 200, description = "The schedule", body = ScheduleView, headers(("ETag" = String))),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "unreadable_schedule", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(crate) async fn show(State(api): State<Api>, NamePath(name): NamePath) -> Result<Response, Problem> {
    let row = find(&api, &name).await?;
    ScheduleView::shown(&api, StatusCode::OK, row).await
}

/// Parameters of a deletion.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeleteQuery {
    /// If true, also delete a schedule that a configuration file declared, unless the file of this runner still
    /// declares it. This removes schedules that no configuration file declares any more. A runner whose file still
    /// declares the schedule creates it again at its next start.
    #[serde(default)]
    undeclared: bool,
}

/// Delete a schedule
///
/// Its jobs stay, and the records of its ticks stay until their retention ends.
#[utoipa::path(
    delete, path = "/v1/schedules/{name}", tag = "schedules", operation_id = "delete_schedule",
    params(
        DeleteQuery,
        ("name" = String, Path, description = "The schedule's name", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$"),
        ("If-Match" = Option<String>, Header, description = "Only if the schedule has one of these ETags",
            pattern = r#"^(\*|(W/)?"[!#-~]*"( *, *(W/)?"[!#-~]*")*)$"#),
    ),
    responses(
        (status = 204, description = "The schedule is deleted"),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "declared_in_config, unreadable_schedule", body = Problem),
        (status = 412, description = "precondition_failed", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(crate) async fn delete(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    NamePath(name): NamePath,
    QueryParams(asked): QueryParams<DeleteQuery>,
    expected: Preconditions,
) -> Result<Response, Problem> {
    let condition = expected.condition(read_tag)?;
    let undeclared = asked.undeclared && !api.declared_schedules.contains(name.as_str());
    match api.broker.delete_schedule(name.clone(), condition, undeclared, &who).await? {
        DeleteOutcome::Done => Ok(StatusCode::NO_CONTENT.into_response()),
        DeleteOutcome::Missing => Err(Problem::not_found("schedule", &name)),
        DeleteOutcome::Unexpected => Err(unexpected(&name)),
        DeleteOutcome::OwnedByConfig => Err(declared(&name)),
    }
}

/// Page of a listing of schedules.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// Number of schedules in one page, 1 to 200.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the last page.
    cursor: Option<String>,
}

/// A page of schedules.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SchedulesAnswer {
    /// Schedules, in the order of their names.
    data: Vec<ScheduleView>,
    /// Schedules of this page that this runner cannot parse, because a newer version or a person wrote them to MySQL.
    unreadable: Vec<UnreadableScheduleView>,
    /// Cursor of the next page; null on the last page.
    next_cursor: Option<String>,
}

/// A schedule that this runner cannot parse. It does not tick on this runner; it can be replaced and deleted.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UnreadableScheduleView {
    name: String,
    /// Part that cannot be parsed.
    reason: String,
}

/// List schedules by name
#[utoipa::path(
    get, path = "/v1/schedules", tag = "schedules", operation_id = "list_schedules", params(ListQuery),
    responses(
        (status = 200, description = "A page of schedules, without payloads, next runs and last ticks", body = SchedulesAnswer),
        (status = 422, description = "invalid_request, invalid_cursor", body = Problem),
    )
)]
pub(crate) async fn list(
    State(api): State<Api>,
    QueryParams(asked): QueryParams<ListQuery>,
) -> Result<Response, Problem> {
    let limit = page_size(asked.limit)?;
    let listing = Listing::new("schedules", &());
    let after = listing.place(asked.cursor.as_deref())?.map(|place| String::from_utf8_lossy(&place).into_owned());
    // Read one row more than the page holds, to know whether there is another page.
    let mut rows = api.broker.store().schedules(after, limit + 1).await?;
    let more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    let name_of = |row: &Result<Scheduled, UnreadableSchedule>| match row {
        Ok(row) => row.name.to_string(),
        Err(row) => row.name.clone(),
    };
    let next_cursor = rows.last().filter(|_| more).map(|last| listing.cursor(name_of(last).as_bytes()));
    let (mut data, mut unreadable) = (Vec::with_capacity(rows.len()), Vec::new());
    for row in rows {
        match row {
            Ok(row) => data.push(ScheduleView::listed(row)),
            Err(UnreadableSchedule { name, why }) => unreadable.push(UnreadableScheduleView { name, reason: why }),
        }
    }
    Ok(json(StatusCode::OK, SchedulesAnswer { data, unreadable, next_cursor }))
}

/// The body of a request to pause a schedule.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SchedulePauseBody {
    /// Reason that other operators see.
    #[schema(max_length = 1000)]
    reason: Option<String>,
}

/// Pause a schedule
///
/// Until the schedule is resumed, its ticks do not fire; each is recorded as skipped. Pausing it again changes nothing.
/// Existing jobs run on.
#[utoipa::path(
    post, path = "/v1/schedules/{name}/pause", tag = "schedules", operation_id = "pause_schedule",
    request_body = SchedulePauseBody,
    params(("name" = String, Path, description = "The schedule's name", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")),
    responses(
        (status = 200, description = "The schedule is paused", body = ScheduleView, headers(("ETag" = String))),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "unreadable_schedule", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(crate) async fn pause(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    NamePath(name): NamePath,
    OptionalBody(body, _): OptionalBody<SchedulePauseBody>,
) -> Result<Response, Problem> {
    if body.reason.as_ref().is_some_and(|reason| reason.chars().count() > MAX_REASON) {
        let here = tickr_handlers::Problem::at("/reason", format!("must be at most {MAX_REASON} characters"));
        return Err(Problem::new(Code::InvalidRequest, "the reason is too long").at("", vec![here]));
    }
    let reason = body.reason.filter(|reason| !reason.trim().is_empty());
    let row = match api.broker.pause_schedule(name.clone(), reason, &who).await {
        Ok(row) => row.ok_or_else(|| Problem::not_found("schedule", &name))?,
        Err(error) => return Err(failed(&api, &name, error).await),
    };
    ScheduleView::shown(&api, StatusCode::OK, row).await
}

/// Resume a schedule
///
/// The schedule ticks again. Ticks that were due during the pause do not fire.
#[utoipa::path(
    post, path = "/v1/schedules/{name}/resume", tag = "schedules", operation_id = "resume_schedule",
    params(("name" = String, Path, description = "The schedule's name", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")),
    responses(
        (status = 200, description = "The schedule is not paused", body = ScheduleView, headers(("ETag" = String))),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "unreadable_schedule", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(crate) async fn resume(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    NamePath(name): NamePath,
) -> Result<Response, Problem> {
    let row = match api.broker.resume_schedule(name.clone(), &who).await {
        Ok(row) => row.ok_or_else(|| Problem::not_found("schedule", &name))?,
        Err(error) => return Err(failed(&api, &name, error).await),
    };
    ScheduleView::shown(&api, StatusCode::OK, row).await
}
