//! `/v1/schedules`: schedules, which enqueue jobs on a cron expression or at an interval, and their ticks.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::http::auth::RequestActor;
use crate::http::body::{Body, NamePath, Object, QueryParams, empty_object};
use crate::http::cursor::{Listing, page_size};
use crate::http::etag::{self, Preconditions};
use crate::http::idempotency::{Key, ResponseContent, replay_stored, respond_to_outcome};
use crate::http::problem::{Code, Problem};
use crate::http::trace::RequestTrace;
use crate::view::{JobView, Moment, RetryView};
use crate::{Api, json};
use tickr_broker::TriggerError;
use tickr_job::{
    Actor, Cadence, Dst, Misfire, Name, NewJob, Overlap, Schedule, ScheduleDraft, SkipCause, Timestamp, Zone, floor_ms,
};
use tickr_store::{
    Accepted, Answer, DeleteOutcome, Pause, PutOutcome, ResponseBuilder, ScheduleOrigin, Scheduled, TickLine,
    TriggerOutcome, UnreadableSchedule, VersionTag,
};

/// Number of next ticks that the view of a schedule has.
const NEXT_RUNS: usize = 5;
/// Maximum length of the reason of a pause, in characters.
const MAX_REASON: usize = 1_000;

/// A schedule to create or change.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScheduleBody {
    /// Cron expression of five fields, or of six with seconds first. Not together with `every_ms`.
    #[schema(example = "0 3 * * *", max_length = 255)]
    cron: Option<String>,
    /// Interval in milliseconds, counted from `anchor`, so that it does not drift. Not together with `cron`.
    #[schema(minimum = 1_000, maximum = 31_622_400_000_u64)]
    every_ms: Option<u64>,
    /// Time of a tick from which all others are counted. Default: the time at which the schedule is created. Only with
    /// `every_ms`.
    anchor: Option<DateTime<Utc>>,
    /// IANA time zone. Default: `UTC`.
    #[schema(example = "Europe/Warsaw", max_length = 64)]
    zone: Option<String>,
    /// Rule for the change to and from daylight saving time. `once`: a local time that is skipped runs right after the
    /// gap, and one that occurs twice runs the first time. `skip`: neither runs. `both`: like `once`, but a local time
    /// that occurs twice runs each time. Default: `once`. An expression that runs in every hour is not affected: it
    /// follows elapsed time. Only with `cron`.
    #[schema(value_type = Option<DstWord>)]
    dst: Option<Dst>,
    /// Rule for missed ticks, which no runner processed in time. `skip` fires none of them, `one` the latest, `all`
    /// each of them, but at most the latest thousand. Default: `one`.
    #[schema(value_type = Option<MisfireWord>)]
    misfire: Option<Misfire>,
    /// Time in milliseconds by which a tick may be late without counting as missed. Default: 15,000.
    #[schema(maximum = 86_400_000)]
    misfire_grace_ms: Option<u64>,
    /// Overlap policy for a tick while the previous job of the schedule has not ended. `allow` fires all the same.
    /// `skip` does not fire. `replace` cancels the previous job if it waits, or asks it to stop if it executes, and
    /// fires. Default: `allow`.
    #[schema(value_type = Option<OverlapWord>)]
    overlap: Option<Overlap>,
    /// Kind of the jobs, one of `/v1/kinds`.
    #[schema(example = "http", max_length = 64)]
    kind: String,
    /// Input of the handler. It must fit the schema of the kind. Default: `{}`.
    #[serde(default = "empty_object")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Box<RawValue>,
    /// Queue of the jobs. Default: `default`.
    #[schema(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    queue: Option<String>,
    /// Priority of the jobs: 0 runs first, 9 last. Default: 5.
    #[schema(maximum = 9)]
    priority: Option<u8>,
    /// Number of attempts before a job fails, 1 to 100. Default: that of the kind.
    #[schema(minimum = 1, maximum = 100)]
    max_attempts: Option<u32>,
    /// Time limit of one attempt, in milliseconds. Default: that of the kind.
    #[schema(minimum = 1, maximum = 86_400_000)]
    timeout_ms: Option<u64>,
    /// Backoff between attempts. Default: that of the kind.
    #[schema(value_type = Option<RetryView>)]
    retry: Option<Object<RetryView>>,
}

impl From<ScheduleBody> for ScheduleDraft {
    fn from(body: ScheduleBody) -> Self {
        Self {
            cron: body.cron,
            every_ms: body.every_ms,
            anchor: body.anchor,
            zone: body.zone,
            dst: body.dst,
            misfire: body.misfire,
            misfire_grace_ms: body.misfire_grace_ms,
            overlap: body.overlap,
            kind: body.kind,
            payload: body.payload,
            queue: body.queue,
            priority: body.priority,
            max_attempts: body.max_attempts,
            timeout_ms: body.timeout_ms,
            retry: body.retry.map(|Object(retry)| retry.into()),
        }
    }
}

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($variant:ident),+ })+) => {$(
        $(#[$doc])*
        #[derive(ToSchema)]
        #[schema(rename_all = "snake_case")]
        #[expect(dead_code, reason = "only its schema is used; the value is the domain's own type")]
        pub(crate) enum $name { $($variant),+ }
    )+};
}

words! {
    /// The rule for the change to and from daylight saving time.
    DstWord { Once, Skip, Both }
    /// The rule for missed ticks.
    MisfireWord { Skip, One, All }
    /// The overlap policy.
    OverlapWord { Allow, Skip, Replace }
    /// The owner of a schedule: the clients of the API, or a configuration file.
    OriginWord { Api, Config }
    /// The outcome of a tick.
    OutcomeWord { Fired, Skipped }
    /// The reason why a tick was skipped. `missed`: no runner processed it in time. `paused`: the schedule was paused.
    /// `overlap`: the previous job had not ended. `invalid`: the kind does not accept the payload any more. `changed`:
    /// the schedule was changed before a runner processed the tick.
    CauseWord { Missed, Paused, Overlap, Invalid, Changed }
}

/// A schedule.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ScheduleView {
    name: String,
    /// Times of the ticks, in words.
    description: String,
    cron: Option<String>,
    every_ms: Option<u64>,
    #[schema(value_type = Option<String>, format = DateTime)]
    anchor: Option<Moment>,
    zone: String,
    /// Rule for the change to and from daylight saving time; null for an interval, which does not depend on local time.
    #[schema(value_type = Option<DstWord>)]
    dst: Option<Dst>,
    #[schema(value_type = MisfireWord)]
    misfire: Misfire,
    misfire_grace_ms: u64,
    #[schema(value_type = OverlapWord)]
    overlap: Overlap,
    kind: String,
    /// Input of the handler. Left out of listings.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    queue: String,
    priority: u8,
    /// Null for the default of the kind.
    max_attempts: Option<u32>,
    /// Null for the default of the kind.
    timeout_ms: Option<u64>,
    /// Null for the default of the kind.
    retry: Option<RetryView>,
    #[schema(value_type = OriginWord)]
    origin: &'static str,
    /// Set while the schedule is paused; null otherwise.
    paused: Option<SchedulePauseView>,
    /// Time of the first tick that no runner has processed; null when there will be none.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_at: Option<Moment>,
    /// Next ticks, at most five. Left out of listings.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_runs: Option<Vec<RunView>>,
    /// Newest record of its ticks. Left out of listings.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_tick: Option<TickView>,
    /// Id of its last job.
    last_job: Option<Uuid>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Moment,
    created_by: String,
    /// Time of the last change of its settings.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Moment,
    updated_by: String,
}

/// The pause of a schedule.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SchedulePauseView {
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    /// Caller that paused it.
    by: String,
    reason: Option<String>,
}

/// A future tick.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RunView {
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    /// The same time in the time zone of the schedule.
    #[schema(value_type = String, format = DateTime)]
    local: String,
}

/// The outcome of a tick.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TickView {
    /// Due time of the tick. When several ticks share the record, that of the first.
    #[schema(value_type = String, format = DateTime)]
    due_at: Moment,
    /// True when the schedule was triggered by hand, so this is not one of its own ticks.
    manual: bool,
    #[schema(value_type = OutcomeWord)]
    outcome: &'static str,
    /// Reason why it was skipped; null when it fired.
    #[schema(value_type = Option<CauseWord>)]
    cause: Option<&'static str>,
    /// The reason in words.
    reason: Option<String>,
    /// Number of ticks that share the record, counted up to ten thousand: after an outage, not every tick gets its own
    /// record.
    ticks: u32,
    /// Id of the job, if it fired.
    job_id: Option<Uuid>,
    #[schema(value_type = String, format = DateTime)]
    recorded_at: Moment,
    /// Runner that processed the tick, or caller that triggered or changed the schedule.
    recorded_by: String,
}

impl From<Pause> for SchedulePauseView {
    fn from(pause: Pause) -> Self {
        Self { at: Moment(pause.at), by: pause.by.to_string(), reason: pause.reason }
    }
}

impl From<TickLine> for TickView {
    fn from(line: TickLine) -> Self {
        Self {
            outcome: line.outcome(),
            due_at: Moment(line.due_at),
            manual: line.number > 0,
            cause: line.cause.map(SkipCause::as_str),
            reason: line.reason,
            ticks: line.ticks,
            job_id: line.job.map(tickr_job::JobId::uuid),
            recorded_at: Moment(line.recorded_at),
            recorded_by: line.recorded_by.to_string(),
        }
    }
}

impl ScheduleView {
    /// Build the view of a schedule in a listing.
    fn listed(row: Scheduled) -> Self {
        let Schedule { cadence, zone, misfire, grace, overlap, template, .. } = row.schedule;
        let ms = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let description = cadence.describe();
        let (cron, every_ms, anchor, dst) = match cadence {
            Cadence::Cron { cron, dst, .. } => (Some(cron.as_str().to_owned()), None, None, Some(dst)),
            Cadence::Every { every, anchor } => (None, Some(ms(every)), Some(Moment(anchor)), None),
        };
        Self {
            name: row.name.to_string(),
            description,
            cron,
            every_ms,
            anchor,
            zone: zone.to_string(),
            dst,
            misfire,
            misfire_grace_ms: ms(grace),
            overlap,
            kind: template.kind.to_string(),
            payload: None,
            queue: template.queue.to_string(),
            priority: template.priority.level(),
            max_attempts: template.max_attempts,
            timeout_ms: template.timeout_ms,
            retry: template.retry.map(Into::into),
            origin: row.origin.as_str(),
            paused: row.paused.map(Into::into),
            next_at: row.next_at.map(Moment),
            next_runs: None,
            last_tick: None,
            last_job: row.last_job.map(tickr_job::JobId::uuid),
            created_at: Moment(row.created.0),
            created_by: row.created.1.to_string(),
            updated_at: Moment(row.updated.0),
            updated_by: row.updated.1.to_string(),
        }
    }

    /// Build the response with the whole schedule and its ETag.
    async fn shown(api: &Api, status: StatusCode, row: Scheduled) -> Result<Response, Problem> {
        let last = api.broker.store().ticks(row.name.clone(), None, None, 1).await?.lines.pop();
        let now = api.broker.store().clock().now();
        let runs = runs(&row.schedule.cadence, row.schedule.zone, row.next_at, now, NEXT_RUNS);
        let payload = row.schedule.template.payload.clone();
        let tag = tag_text(row.tag());
        let view = Self {
            payload: Some(payload),
            next_runs: Some(runs),
            last_tick: last.map(Into::into),
            ..Self::listed(row)
        };
        Ok(etag::with_tag(status, &tag, view))
    }
}

/// Return the next ticks, beginning with `next_at` unless it is overdue.
fn runs(cadence: &Cadence, zone: Zone, next_at: Option<Timestamp>, now: Timestamp, count: usize) -> Vec<RunView> {
    let first = next_at.filter(|next| *next > now).or_else(|| cadence.next_after(now).filter(|_| next_at.is_some()));
    let run = |at: Timestamp| RunView { at: Moment(at), local: zone.local(at) };
    std::iter::successors(first, |tick| cadence.next_after(*tick)).take(count).map(run).collect()
}

fn tag_text(tag: VersionTag) -> String {
    format!("\"{tag}\"")
}

fn read_tag(text: &str) -> Option<VersionTag> {
    let (created, version) = text.strip_prefix('"')?.strip_suffix('"')?.split_once('-')?;
    Some(VersionTag { created_us: i64::from_str_radix(created, 16).ok()?, version: version.parse().ok()? })
}

fn unexpected(name: &Name) -> Problem {
    let detail = format!("the schedule {name} does not meet the condition of the request; nothing was changed");
    Problem::new(Code::PreconditionFailed, detail)
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
        (status = 409, description = "declared_in_config", body = Problem),
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
    let (status, row) =
        match api.broker.put_schedule(name.clone(), schedule, ScheduleOrigin::Api, condition, &who).await? {
            PutOutcome::Created(row) => (StatusCode::CREATED, row),
            PutOutcome::Changed(row) | PutOutcome::Unchanged(row) => (StatusCode::OK, row),
            PutOutcome::Unexpected => return Err(unexpected(&name)),
            PutOutcome::OwnedByConfig => return Err(declared(&name)),
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
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(crate) async fn show(State(api): State<Api>, NamePath(name): NamePath) -> Result<Response, Problem> {
    let row = api.broker.store().schedule(name.clone()).await?.ok_or_else(|| Problem::not_found("schedule", &name))?;
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
        (status = 409, description = "declared_in_config", body = Problem),
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

/// A schedule that this runner cannot parse. It does not tick on this runner; it can be deleted.
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
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(crate) async fn pause(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    NamePath(name): NamePath,
    Body(body, _): Body<SchedulePauseBody>,
) -> Result<Response, Problem> {
    if body.reason.as_ref().is_some_and(|reason| reason.chars().count() > MAX_REASON) {
        let here = tickr_handlers::Problem::at("/reason", format!("must be at most {MAX_REASON} characters"));
        return Err(Problem::new(Code::InvalidRequest, "the reason is too long").at("", vec![here]));
    }
    let reason = body.reason.filter(|reason| !reason.trim().is_empty());
    let row = api
        .broker
        .pause_schedule(name.clone(), reason, &who)
        .await?
        .ok_or_else(|| Problem::not_found("schedule", &name))?;
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
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(crate) async fn resume(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    NamePath(name): NamePath,
) -> Result<Response, Problem> {
    let row =
        api.broker.resume_schedule(name.clone(), &who).await?.ok_or_else(|| Problem::not_found("schedule", &name))?;
    ScheduleView::shown(&api, StatusCode::OK, row).await
}

/// Parameters of a trigger.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TriggerQuery {
    /// Overlap policy for this trigger. Default: that of the schedule.
    #[param(value_type = Option<OverlapWord>, inline)]
    overlap: Option<String>,
}

/// Fire a schedule now
///
/// Enqueue a job at once, also while the schedule is paused. The ticks of the schedule are not affected. 409 when the
/// overlap policy is `skip` and the previous job has not ended.
#[utoipa::path(
    post, path = "/v1/schedules/{name}/trigger", tag = "schedules", operation_id = "trigger_schedule",
    params(
        TriggerQuery,
        ("name" = String, Path, description = "The schedule's name", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$"),
    ),
    responses(
        (status = 201, description = "The job is accepted and durable", body = JobView, headers(("Location" = String))),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "previous_unfinished: `holder` has not ended; nothing was written", body = Problem),
        (status = 422, description = "invalid_request, unknown_kind, invalid_payload", body = Problem),
    )
)]
pub(crate) async fn trigger(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    NamePath(name): NamePath,
    QueryParams(asked): QueryParams<TriggerQuery>,
    traced: RequestTrace,
    key: Key,
) -> Response {
    let answer = fire(&api, &who, &name, asked, &traced, key).await;
    traced.end_with("/v1/schedules/{name}/trigger", answer)
}

async fn fire(
    api: &Api,
    who: &Actor,
    name: &Name,
    asked: TriggerQuery,
    traced: &RequestTrace,
    key: Key,
) -> Result<Response, Problem> {
    let overlap = match asked.overlap.as_deref().map(|word| Overlap::from_word(word).ok_or(word)) {
        Some(Err(word)) => {
            let here = tickr_handlers::Problem::at("overlap", format!("{word:?} is not one of allow, skip, replace"));
            return Err(
                Problem::new(Code::InvalidRequest, "invalid overlap policy; `errors` says why").at("", vec![here])
            );
        }
        Some(Ok(overlap)) => Some(overlap),
        None => None,
    };
    let word = overlap.map_or("", Overlap::as_str);
    let once = key.request(&format!("POST /v1/schedules/{name}/trigger {word}"), None)?;
    let build = |job: &NewJob| -> ResponseBuilder<Accepted> {
        let job = job.clone();
        Arc::new(move |accepted: &Accepted| {
            let mut job = job.clone();
            if let Some(by) = &mut job.options.schedule {
                by.tick_at = floor_ms(accepted.created_at);
            }
            let body = serde_json::to_string(&JobView::accepted(&job, accepted, Vec::new())).unwrap_or_default();
            Answer { status: StatusCode::CREATED.as_u16(), body }
        })
    };
    match api.broker.trigger_schedule(name, overlap, who, traced.0.trace_context(), once.clone(), build).await {
        Ok(outcome) => respond_to_outcome(outcome, ResponseContent::Job, |refused| {
            Err(match refused {
                TriggerOutcome::Busy(id, state) => Problem::new(
                    Code::PreviousUnfinished,
                    format!("the schedule's previous job {id} is {state}; `overlap=allow` fires all the same"),
                )
                .held_by_job(id, state),
                TriggerOutcome::Missing | TriggerOutcome::Fired(_) => Problem::not_found("schedule", name),
                TriggerOutcome::Changed => {
                    let detail = "the schedule is being changed at this moment; try again";
                    Problem::new(Code::StoreUnavailable, detail)
                }
            })
        }),
        Err(TriggerError::Invalid(invalid)) => {
            replay_stored(api, once, ResponseContent::Job, Problem::invalid("", invalid)).await
        }
        Err(TriggerError::Store(error)) => Err(error.into()),
    }
}

/// Filter and page of a listing of ticks.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TicksQuery {
    /// Only ticks with this outcome.
    #[param(value_type = Option<OutcomeWord>, inline)]
    outcome: Option<String>,
    /// Number of records in one page, 1 to 200.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the last page. It is valid only with the same filter.
    cursor: Option<String>,
}

/// A page of ticks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TicksAnswer {
    /// Records of ticks, the newest first.
    data: Vec<TickView>,
    /// Cursor of the next page; null on the last page. A page may be short or empty and still have a cursor, because
    /// one page reads only a bounded number of records.
    next_cursor: Option<String>,
}

/// List the ticks of a schedule, newest first
///
/// The ticks of a deleted schedule are listed as well, until their retention ends.
#[utoipa::path(
    get, path = "/v1/schedules/{name}/ticks", tag = "schedules", operation_id = "list_ticks",
    params(
        TicksQuery,
        ("name" = String, Path, description = "The schedule's name", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$"),
    ),
    responses(
        (status = 200, description = "A page of ticks", body = TicksAnswer),
        (status = 404, description = "not_found: neither the schedule nor a tick of it exists", body = Problem),
        (status = 422, description = "invalid_request, invalid_cursor", body = Problem),
    )
)]
pub(crate) async fn ticks(
    State(api): State<Api>,
    NamePath(name): NamePath,
    QueryParams(asked): QueryParams<TicksQuery>,
) -> Result<Response, Problem> {
    let limit = page_size(asked.limit)?;
    let fired = match asked.outcome.as_deref() {
        None => None,
        Some("fired") => Some(true),
        Some("skipped") => Some(false),
        Some(word) => {
            let here = tickr_handlers::Problem::at("outcome", format!("{word:?} is not one of fired, skipped"));
            let detail = "invalid listing; `errors` says why";
            return Err(Problem::new(Code::InvalidRequest, detail).at("", vec![here]));
        }
    };
    let listing = Listing::new("ticks", &(&name, fired));
    let before = match listing.place(asked.cursor.as_deref())? {
        None => None,
        Some(place) => Some(read_place(&place).ok_or_else(|| {
            Problem::new(Code::InvalidCursor, "send next_cursor of a page with the same filter, unchanged")
        })?),
    };
    let page = api.broker.store().ticks(name.clone(), fired, before, limit).await?;
    if page.lines.is_empty() && page.next.is_none() && api.broker.store().schedule(name.clone()).await?.is_none() {
        return Err(Problem::not_found("schedule", &name));
    }
    let next_cursor = page.next.map(|next| listing.cursor(&place_of(next)));
    let data = page.lines.into_iter().map(TickView::from).collect();
    Ok(json(StatusCode::OK, TicksAnswer { data, next_cursor }))
}

fn place_of((due_at, number): (Timestamp, u16)) -> Vec<u8> {
    [&due_at.timestamp_millis().to_be_bytes()[..], &number.to_be_bytes()].concat()
}

fn read_place(place: &[u8]) -> Option<(Timestamp, u16)> {
    let (due_at, number) = place.split_at_checked(8)?;
    let due_at = DateTime::from_timestamp_millis(i64::from_be_bytes(due_at.try_into().ok()?))?;
    Some((due_at, u16::from_be_bytes(number.try_into().ok()?)))
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_places_read_back() {
        let tag = VersionTag { created_us: 1_795_000_000_123_456, version: 7 };
        assert_eq!(read_tag(&tag_text(tag)), Some(tag));
        for other in ["", "\"\"", "7", "\"x-1\"", "W/\"1-1\"", "\"1-x\""] {
            assert_eq!(read_tag(other), None, "{other}");
        }
        let place = (DateTime::from_timestamp_millis(1_795_000_000_123).unwrap(), 3);
        assert_eq!(read_place(&place_of(place)), Some(place));
        for other in [&b""[..], b"12345678", b"12345678901", &[0xff; 10]] {
            let _ = read_place(other);
        }
    }
}
