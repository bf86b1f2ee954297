//! `/v1/operations`: bulk operations, one action on all jobs that match a filter.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::canary::{CanaryBody, CanaryView};
use crate::dead_letters::reason_of;
use crate::http::auth::RequestActor;
use crate::http::body::{Body, Object, PathText, QueryParams, or_default};
use crate::http::cursor::{Listing, page_size};
use crate::http::filter::{filter_struct, refused};
use crate::http::idempotency::{Key, ResponseContent, respond_to_outcome};
use crate::http::problem::{Code, Problem};
use crate::http::searches::run_with_seat;
use crate::jobs::json_answer;
use crate::view::{Moment, StateWord};
use crate::{Api, json};
use tickr_job::{
    Action, Actor, Canary, DeadLetterStatus, Filter, Job, NewOperation, Operation, OperationParams, OperationState,
    Priority, State as JobState, Timestamp, Wanted, operation,
};
use tickr_store::{
    Breakdown, CancelOutcome, IdempotentOutcome, IdempotentRequest, MadeJobs, ReleaseRunning, Replayed,
    ResponseBuilder, StoreError,
};

/// Number of jobs that a dry run shows.
const SAMPLE: u32 = 10;

filter_struct! {
    schema,
    /// Filter of the jobs. Every given condition must hold.
    #[derive(Debug, Default, Deserialize, ToSchema)]
    #[serde(deny_unknown_fields, default)]
    FilterBody {
        /// Only the jobs with these ids, at most 1,000.
        #[serde(deserialize_with = "or_default")]
        #[schema(max_items = 1000, value_type = Option<Vec<String>>)]
        ids: Vec<String>,
        /// Values at paths in the payload: `{"user.id": 42}`. A value has at most 2,000 bytes.
        #[serde(deserialize_with = "or_default")]
        #[schema(value_type = Option<std::collections::BTreeMap<String, serde_json::Value>>)]
        payload: BTreeMap<String, serde_json::Value>,
    }
}

impl FilterBody {
    fn read(&self, now: Timestamp) -> Result<Filter, Vec<tickr_handlers::Problem>> {
        let mut problems = Vec::new();
        let mut filter = self.words().read(now, "/filter/").unwrap_or_else(|wrong| {
            problems = wrong;
            Filter::default()
        });
        let mut wrong = |pointer: String, detail: String| problems.push(tickr_handlers::Problem::at(pointer, detail));
        if self.ids.len() + filter.ids.len() > Filter::MAX_IDS {
            wrong("/filter/ids".into(), format!("must be at most {}", Filter::MAX_IDS));
        } else if !self.ids.is_empty() && !filter.ids.is_empty() {
            wrong("/filter/ids".into(), "must not be given beside the ids in q".into());
        }
        for (place, id) in self.ids.iter().take(Filter::MAX_IDS).enumerate() {
            match id.parse() {
                Ok(id) => filter.ids.push(id),
                Err(_) => wrong(format!("/filter/ids/{place}"), "is no job id".into()),
            }
        }
        let in_words: usize = filter.parts().map(|part| part.payload.len()).sum();
        if self.payload.len() + in_words > Filter::MAX_PATHS {
            wrong("/filter/payload".into(), format!("must be at most {} paths", Filter::MAX_PATHS));
        }
        for (path, value) in self.payload.iter().take(Filter::MAX_PATHS) {
            let pointer = || format!("/filter/payload/{}", path.replace('~', "~0").replace('/', "~1"));
            let wanted = match value {
                serde_json::Value::Null => Wanted::Null(()),
                serde_json::Value::Bool(flag) => Wanted::Bool(*flag),
                serde_json::Value::Number(number) => Wanted::Number(number.clone()),
                serde_json::Value::String(text) => Wanted::Text(text.clone()),
                serde_json::Value::Array(_) | serde_json::Value::Object(_) => {
                    wrong(pointer(), "must be a text, a number, a boolean or null".into());
                    continue;
                }
            };
            let bytes = match &wanted {
                Wanted::Text(text) => text.len(),
                Wanted::Number(number) => number.to_string().len(),
                Wanted::Null(()) | Wanted::Bool(_) | Wanted::Word { .. } => 0,
            };
            if bytes > Filter::MAX_VALUE_BYTES {
                wrong(pointer(), format!("must be at most {} bytes", Filter::MAX_VALUE_BYTES));
                continue;
            }
            match path.parse() {
                Ok(path) if filter.payload.contains_key(&path) => {
                    wrong(pointer(), "must not be given twice: q or another spelling of the path has a value".into());
                }
                Ok(path) => drop(filter.payload.insert(path, wanted)),
                Err(e) => wrong(pointer(), tickr_job::InvalidPath::to_string(&e)),
            }
        }
        if problems.is_empty() { Ok(filter) } else { Err(problems) }
    }
}

/// A bulk operation to start.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OperationBody {
    /// Action on each job. Jobs in a state that does not allow it are skipped.
    #[schema(value_type = ActionWord)]
    action: String,
    /// Filter of the jobs. Only jobs that were accepted before this request are changed.
    #[schema(value_type = Option<FilterBody>)]
    filter: Option<Object<FilterBody>>,
    /// Must be true when the filter is empty, to confirm that all jobs are meant.
    #[serde(default, deserialize_with = "or_default")]
    #[schema(value_type = Option<bool>)]
    all: bool,
    /// Maximum rate in jobs per second, 1 to 10,000. Default: no limit.
    #[schema(minimum = 1, maximum = 10_000)]
    rate: Option<u32>,
    /// If true, nothing is changed; the response says what would happen.
    #[serde(default, deserialize_with = "or_default")]
    #[schema(value_type = Option<bool>)]
    dry_run: bool,
    /// Reason, stored with the bulk operation. Required for a discard.
    #[schema(min_length = 1, max_length = 500)]
    reason: Option<String>,
    /// New due time, for `reschedule` only; a past time means now, and the limit is 366 days ahead. A job that expires
    /// by then is skipped, because it would never start.
    execute_at: Option<DateTime<Utc>>,
    /// New priority, for `set_priority` only: 0 runs first, 9 last.
    #[schema(maximum = 9)]
    priority: Option<u8>,
    /// Release dead letters as a canary, for `replay` only. Its steps have rates of their own, so `rate` is not allowed
    /// beside it.
    #[schema(value_type = Option<CanaryBody>)]
    canary: Option<Object<CanaryBody>>,
}

/// The action of a bulk operation.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used; the value is the domain's own type")]
pub(super) enum ActionWord {
    Cancel,
    Retry,
    RunNow,
    Reschedule,
    SetPriority,
    Delete,
    Replay,
    Discard,
}

/// The state of a bulk operation.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used; the value is the domain's own type")]
pub(super) enum OperationStateWord {
    Running,
    Done,
    Cancelled,
    Failed,
}

/// A bulk operation.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OperationView {
    /// Id of the bulk operation, a UUIDv7.
    id: String,
    #[schema(value_type = ActionWord)]
    action: Action,
    #[schema(value_type = OperationStateWord)]
    state: OperationState,
    /// Filter, as tickr understood it: spans have become times.
    #[schema(value_type = serde_json::Value)]
    filter: Filter,
    /// Maximum rate in jobs per second; null for no limit. Of a canary: the rate of its fastest step.
    rate: Option<u32>,
    reason: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    execute_at: Option<Moment>,
    priority: Option<u8>,
    /// Caller that started it.
    asked_by: String,
    #[schema(value_type = String, format = DateTime)]
    created_at: Moment,
    #[schema(value_type = Option<String>, format = DateTime)]
    started_at: Option<Moment>,
    #[schema(value_type = Option<String>, format = DateTime)]
    ended_at: Option<Moment>,
    /// Number of jobs that were changed.
    done: u64,
    /// Number of jobs that were skipped, because their state or their expiry did not allow the action, or because they
    /// waited for their turn.
    skipped: u64,
    /// Number of jobs for which the action failed; `last_error` says why.
    failed: u64,
    /// Number of matching jobs at the start, as far as they were counted.
    estimate: u64,
    /// True when there may have been more than were counted.
    estimate_capped: bool,
    /// Measured rate since the start, in jobs per second.
    measured_rate: Option<f64>,
    /// Estimated remaining time in seconds; null while it is not known, as when more jobs matched than were counted.
    eta_s: Option<f64>,
    last_error: Option<String>,
    /// Id of the runner that executes it, if any.
    runner: Option<String>,
    /// Time when an operator paused it; null while it is not paused.
    #[schema(value_type = Option<String>, format = DateTime)]
    paused_at: Option<Moment>,
    /// Caller that paused it.
    paused_by: Option<String>,
    /// Steps and progress of a canary; null for every other bulk operation.
    canary: Option<CanaryView>,
}

impl OperationView {
    pub(super) fn new(operation: &Operation, now: Timestamp) -> Self {
        let seen = operation.done + operation.skipped + operation.failed;
        let until = operation.ended_at.unwrap_or(now);
        let seconds = operation.started_at.map(|since| (until - since).num_milliseconds().max(1) as f64 / 1_000.0);
        let measured_rate = seconds.map(|seconds| (operation.done + operation.failed) as f64 / seconds);
        let running = operation.state == OperationState::Running;
        let pace = measured_rate.filter(|rate| *rate > 0.0).or(operation.rate.map(f64::from));
        let left = operation.estimate.saturating_sub(seen) as f64;
        Self {
            id: operation.id.to_string(),
            action: operation.action,
            state: operation.state,
            filter: operation.filter.clone(),
            rate: operation.rate,
            reason: operation.params.reason.clone(),
            execute_at: operation.params.execute_at.map(Moment),
            priority: operation.params.priority.map(Priority::level),
            asked_by: operation.actor.to_string(),
            created_at: Moment(operation.created_at),
            started_at: operation.started_at.map(Moment),
            ended_at: operation.ended_at.map(Moment),
            done: operation.done,
            skipped: operation.skipped,
            failed: operation.failed,
            estimate: operation.estimate,
            estimate_capped: operation.capped,
            measured_rate,
            eta_s: pace.filter(|_| running && !operation.capped).map(|pace| left / pace),
            last_error: operation.last_error.clone(),
            runner: operation.runner.clone(),
            paused_at: operation.paused.as_ref().map(|(at, _)| Moment(*at)),
            paused_by: operation.paused.as_ref().map(|(_, by)| by.to_string()),
            canary: operation.canary.as_ref().map(|(canary, state)| CanaryView::new(canary, state, operation.done)),
        }
    }
}

/// The result of a dry run.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DryRunAnswer {
    /// Always true: nothing was changed.
    dry_run: bool,
    #[schema(value_type = ActionWord)]
    action: Action,
    /// Number of jobs that match the filter now, as far as they are counted.
    count: u64,
    /// True when there may be more than were counted.
    capped: bool,
    /// Number of counted jobs that the action would change. A job is skipped if another job has its unique key by then.
    would_change: u64,
    /// Jobs that would be skipped, by reason.
    would_skip: Vec<SkippedView>,
    /// Maximum rate in jobs per second; null for no limit.
    rate: Option<u32>,
    /// Examples of the matching jobs, the newest first.
    sample: Vec<SampleView>,
}

/// A number of jobs that a bulk operation would skip, with the reason.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SkippedView {
    jobs: u64,
    /// Reason, such as `completed`, `held`, `replayed already` or `expired by then`.
    reason: String,
}

/// A job that matches the filter.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SampleView {
    id: String,
    kind: String,
    queue: String,
    #[schema(value_type = StateWord)]
    state: JobState,
    /// State that the job would have afterwards; null when it would be skipped.
    would_be: Option<&'static str>,
}

/// Start a bulk operation
///
/// A runner executes it in the background, batch by batch, from the oldest job to the newest. It changes no job twice
/// and leaves none out, even if runners or MySQL fail meanwhile. With `dry_run` nothing is changed, and the response
/// (200) says what would happen. While a `replay` with a `fingerprint` runs, another one of that group is refused.
///
/// A `replay` with `canary` releases dead letters in steps of rising rates. A step begins when each job of the one
/// before has an outcome: it completed, or an attempt of it failed. The canary stops by itself, with the state `failed`,
/// when more than `max_failure_pct` of the outcomes are failures. It is done when the last job has an outcome.
#[utoipa::path(
    post, path = "/v1/operations", tag = "operations", operation_id = "start_operation", request_body = OperationBody,
    responses(
        (status = 202, description = "The bulk operation is accepted; read it to follow its progress", body = OperationView),
        (status = 200, description = "A dry run: nothing was changed", body = DryRunAnswer),
        (status = 409, description = "release_running: a bulk operation releases this group already", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
        (status = 429, description = "overloaded: fifty bulk operations have not ended, paused ones included, or this runner is at its limit of heavy reads", body = Problem),
        (status = 503, description = "store_unavailable, stopping: this process is held", body = Problem),
    )
)]
pub(super) async fn start(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    key: Key,
    Body(body, text): Body<OperationBody>,
) -> Result<Response, Problem> {
    let idempotent = key.request("POST /v1/operations", Some(&text))?;
    let now = api.broker.store().clock().now();
    let dry_run = body.dry_run;
    let new = read(body, now).map_err(|problems| {
        Problem::new(Code::InvalidRequest, "invalid bulk operation; `errors` says why").at("", problems)
    })?;
    let store = api.broker.store();
    if dry_run {
        let (counting, action, filter) = (store.clone(), new.action, new.filter);
        let due = new.params.execute_at.map(|moment| moment.max(now));
        let found = async move {
            let breakdown = counting.break_down_for(action, filter.clone(), due).await?;
            let page = counting.list_among(filter, action.among(), None, SAMPLE).await?;
            Ok::<_, StoreError>((breakdown, page))
        };
        let (Breakdown { counted, states, held, expired_by_then }, page) = run_with_seat(&api, found).await?;
        let (mut would_change, mut would_skip) = (0, Vec::new());
        for ((state, replayed), jobs) in states {
            // Retrying a job that was replayed would do its work twice.
            let in_the_way = match (new.action, replayed) {
                (Action::Retry, Replayed::Yes) => Some("replayed already".to_owned()),
                _ => new.action.effect(state).is_none().then(|| state.to_string()),
            };
            match in_the_way {
                None => would_change += jobs,
                Some(reason) => would_skip.push(SkippedView { jobs, reason }),
            }
        }
        if held > 0 {
            would_skip.push(SkippedView { jobs: held, reason: "held".to_owned() });
        }
        if expired_by_then > 0 {
            would_skip.push(SkippedView { jobs: expired_by_then, reason: "expired by then".to_owned() });
        }
        let expires = |job: &Job| due.zip(job.options.expires_at).is_some_and(|(due, expires_at)| due >= expires_at);
        let left_out = |job: &Job| expires(job) || (job.held && new.action.sets_due_time());
        let rate = new.rate;
        let sample = page.jobs.into_iter().map(|job| SampleView {
            id: job.id.to_string(),
            kind: job.kind.to_string(),
            queue: job.queue.to_string(),
            state: job.state,
            would_be: new.action.effect(job.state).filter(|_| !left_out(&job)),
        });
        let (count, capped) = (counted.jobs, counted.capped);
        let answer = DryRunAnswer {
            dry_run: true,
            action: new.action,
            count,
            capped,
            would_change,
            would_skip,
            rate,
            sample: sample.collect(),
        };
        return Ok(json(StatusCode::OK, answer));
    }
    let build = move |operation: &Operation| json_answer(StatusCode::ACCEPTED, &OperationView::new(operation, now));
    let outcome = start_counted(&api, new, &who, idempotent, Arc::new(build)).await?;
    respond_to_outcome(outcome, ResponseContent::Other, |ReleaseRunning { id }| {
        let detail = match id {
            Some(id) => {
                format!("bulk operation {id} releases this group of dead letters; wait for its end or cancel it")
            }
            None => "another bulk operation released this group of dead letters until just now; try again".to_owned(),
        };
        Err(Problem::new(Code::ReleaseRunning, detail))
    })
}

/// Start a bulk operation. The count of its jobs takes a seat, as that of a dry run does. A held process starts none:
/// no runner would carry it out before the normal start, and then it would race with the starts of its jobs.
pub(super) async fn start_counted(
    api: &Api,
    new: NewOperation,
    who: &Actor,
    idempotent: Option<IdempotentRequest>,
    build: ResponseBuilder<Operation>,
) -> Result<IdempotentOutcome<(), ReleaseRunning>, Problem> {
    let store = api.broker.store();
    let new = match store.prepare_operation(new, idempotent.clone()).await? {
        Ok(new) => new,
        Err(outcome) => return Ok(outcome),
    };
    if api.held {
        let detail = "this process is held, and no runner carries bulk operations out before a start without the \
                      setting held; cancel single jobs or batches, or pause queues and start the operation after it";
        return Err(Problem::new(Code::Stopping, detail));
    }
    let (counting, action, filter) = (store.clone(), new.action, new.filter.clone());
    let estimate = run_with_seat(api, async move { counting.count_for(action, filter).await }).await?;
    Ok(store.start_operation((new, estimate), who, idempotent, build).await?)
}

fn read(body: OperationBody, now: Timestamp) -> Result<NewOperation, Vec<tickr_handlers::Problem>> {
    let Object(asked) = body.filter.unwrap_or(Object(FilterBody::default()));
    let mut problems = Vec::new();
    let mut filter = asked.read(now).unwrap_or_else(|wrong| {
        problems = wrong;
        Filter::default()
    });
    let understood = problems.is_empty();
    let is_canary = body.canary.is_some();
    let canary = body.canary.map(|Object(asked)| asked.read()).transpose().unwrap_or_else(|wrong| {
        problems.extend(wrong);
        None
    });
    let mut wrong = |pointer: &str, detail: String| problems.push(tickr_handlers::Problem::at(pointer, detail));
    let action = Action::from_word(&body.action);
    if action.is_none() {
        let words = Action::ALL.map(Action::as_str).join(", ");
        wrong("/action", format!("is not one of {words}"));
    }
    if understood && filter.is_empty() && !body.all {
        wrong("/filter", "is empty; send all: true if every job is meant".into());
    }
    if understood && !filter.is_empty() && body.all {
        wrong("/all", "is valid only without a filter".into());
    }
    if is_canary && body.rate.is_some() {
        wrong("/rate", "is not allowed for a canary, whose steps have rates".into());
    }
    if is_canary && action.is_some_and(|action| action != Action::Replay) {
        wrong("/canary", "is allowed only for replay".into());
    }
    if body.rate.is_some_and(|rate| rate == 0 || rate > operation::MAX_RATE) {
        wrong("/rate", format!("must be 1 to {}", operation::MAX_RATE));
    }
    let reason = body.reason.as_deref().map(reason_of).transpose().unwrap_or_else(|problem| {
        wrong("/reason", problem.detail);
        None
    });
    let is = |wanted: Action| action == Some(wanted);
    if is(Action::Discard) && body.reason.is_none() {
        wrong("/reason", "is required for a discard".into());
    }
    if is(Action::Reschedule) != body.execute_at.is_some() && action.is_some() {
        wrong("/execute_at", "is required for reschedule and not allowed for other actions".into());
    }
    if is(Action::SetPriority) != body.priority.is_some() && action.is_some() {
        wrong("/priority", "is required for set_priority and not allowed for other actions".into());
    }
    let latest = now + tickr_job::limits::MAX_AHEAD;
    if body.execute_at.is_some_and(|moment| moment > latest) {
        wrong("/execute_at", "must be at most 366 days from now".into());
    }
    // A past time means now, whichever it is.
    let execute_at = body.execute_at.map(|moment| moment.max(DateTime::UNIX_EPOCH));
    let priority = body.priority.map(Priority::try_from).transpose().unwrap_or_else(|why| {
        wrong("/priority", why.to_owned());
        None
    });
    if is(Action::Replay) || is(Action::Discard) {
        match filter.dead_letter {
            None => filter.dead_letter = Some(DeadLetterStatus::Open),
            Some(DeadLetterStatus::Open) => {}
            Some(_) => wrong("/filter", "only open dead letters can be replayed or discarded".into()),
        }
    }
    match action {
        Some(action) if problems.is_empty() => Ok(NewOperation {
            id: Uuid::now_v7(),
            action,
            filter,
            params: OperationParams { execute_at, priority, reason },
            rate: canary.as_ref().map(Canary::highest_rate).or(body.rate),
            canary,
        }),
        _ => Err(problems),
    }
}

/// Filter and page of a listing of bulk operations.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OperationsQuery {
    /// Only bulk operations in this state.
    #[param(value_type = Option<OperationStateWord>, inline)]
    state: Option<String>,
    /// Number of bulk operations in one page, 1 to 200.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the last page. It is valid only with the same filter.
    cursor: Option<String>,
}

/// A page of bulk operations.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OperationsAnswer {
    /// Bulk operations, the newest first.
    data: Vec<OperationView>,
    /// Cursor of the next page; null on the last page.
    next_cursor: Option<String>,
}

/// List bulk operations, newest first
#[utoipa::path(
    get, path = "/v1/operations", tag = "operations", operation_id = "list_operations", params(OperationsQuery),
    responses(
        (status = 200, description = "A page of bulk operations", body = OperationsAnswer),
        (status = 422, description = "invalid_request, invalid_cursor", body = Problem),
    )
)]
pub(super) async fn list(
    State(api): State<Api>,
    QueryParams(asked): QueryParams<OperationsQuery>,
) -> Result<Response, Problem> {
    let state = match asked.state.as_deref().map(OperationState::from_word) {
        Some(None) => {
            let words = OperationState::ALL.map(OperationState::as_str).join(", ");
            return Err(refused(vec![tickr_handlers::Problem::at("state", format!("is not one of {words}"))]));
        }
        given => given.flatten(),
    };
    let limit = page_size(asked.limit)?;
    let listing = Listing::new("operations", &state);
    let before = listing.id(asked.cursor.as_deref())?;
    let now = api.broker.store().clock().now();
    let mut found = api.broker.store().operations(state, before, limit + 1).await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let next_cursor = found.last().filter(|_| more).map(|last| listing.cursor(last.id.as_bytes()));
    let data = found.iter().map(|operation| OperationView::new(operation, now)).collect();
    Ok(json(StatusCode::OK, OperationsAnswer { data, next_cursor }))
}

/// Read the id of a bulk operation.
pub(super) fn id_of(text: &str) -> Result<Uuid, Problem> {
    let id = text.parse::<uuid::fmt::Hyphenated>();
    id.map(Into::into).map_err(|_| Problem::new(Code::InvalidId, "the id of a bulk operation is a hyphenated UUID"))
}

/// Show a bulk operation with its progress
#[utoipa::path(
    get, path = "/v1/operations/{id}", tag = "operations", operation_id = "show_operation",
    params(("id" = Uuid, Path, description = "The id of the bulk operation")),
    responses(
        (status = 200, description = "The operation", body = OperationView),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
    )
)]
pub(super) async fn show(State(api): State<Api>, PathText(text): PathText) -> Result<Response, Problem> {
    let id = id_of(&text)?;
    let found = api.broker.store().operation(id).await?.ok_or_else(|| Problem::not_found("bulk operation", id))?;
    Ok(json(StatusCode::OK, OperationView::new(&found, api.broker.store().clock().now())))
}

/// The jobs that a replay made of dead letters, by the state that they have now.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct MadeAnswer {
    /// Number of jobs found.
    count: u64,
    /// True when there may be more: the count stops at ten thousand jobs, the oldest ones. The numbers by state, except
    /// that of the failed ones, are then those of the counted jobs.
    capped: bool,
    waiting: u64,
    executing: u64,
    retrying: u64,
    completed: u64,
    /// Jobs that failed for good, as the jobs that they were made of did. Of more jobs than the count has room for, they
    /// are counted on their own, the newest first.
    failed: u64,
    /// True when there may be more failed jobs: their count stops at ten thousand of them, or after 100,000 jobs.
    failed_capped: bool,
    cancelled: u64,
}

/// Count the jobs that a replay made
///
/// By the state that they have now, so that a caller sees whether a release heals. For another action all counts are 0.
/// A job counts as long as it and the dead letter that it was made of are kept.
#[utoipa::path(
    get, path = "/v1/operations/{id}/made", tag = "operations", operation_id = "count_made_jobs",
    params(("id" = Uuid, Path, description = "The id of the bulk operation")),
    responses(
        (status = 200, description = "The counts", body = MadeAnswer),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
    )
)]
pub(super) async fn made(State(api): State<Api>, PathText(text): PathText) -> Result<Response, Problem> {
    let id = id_of(&text)?;
    let store = api.broker.store().clone();
    store.operation(id).await?.ok_or_else(|| Problem::not_found("bulk operation", id))?;
    let MadeJobs { found, failed } = run_with_seat(&api, async move { store.jobs_of_operation(id).await }).await?;
    let of_state = |state: JobState| {
        let jobs = |replayed: Replayed| found.states.get(&(state, replayed)).copied().unwrap_or_default();
        jobs(Replayed::Yes) + jobs(Replayed::No)
    };
    let made = MadeAnswer {
        count: found.counted.jobs,
        capped: found.counted.capped,
        waiting: of_state(JobState::Waiting),
        executing: of_state(JobState::Executing),
        retrying: of_state(JobState::Retrying),
        completed: of_state(JobState::Completed),
        failed: failed.jobs,
        failed_capped: failed.capped,
        cancelled: of_state(JobState::Cancelled),
    };
    Ok(json(StatusCode::OK, made))
}

/// Cancel a bulk operation
///
/// After the response it changes no more jobs. Changes that it has already made stay.
#[utoipa::path(
    post, path = "/v1/operations/{id}/cancel", tag = "operations", operation_id = "cancel_operation",
    params(("id" = Uuid, Path, description = "The id of the bulk operation")),
    responses(
        (status = 200, description = "Stopped", body = OperationView),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "wrong_state: the bulk operation has ended", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
    )
)]
pub(super) async fn cancel(
    State(api): State<Api>,
    PathText(text): PathText,
    RequestActor(who): RequestActor,
    key: Key,
) -> Result<Response, Problem> {
    let id = id_of(&text)?;
    let idempotent = key.request(&format!("POST /v1/operations/{id}/cancel"), None)?;
    let now = api.broker.store().clock().now();
    let build = move |operation: &Operation| json_answer(StatusCode::OK, &OperationView::new(operation, now));
    let outcome = api.broker.store().cancel_operation(id, &who, idempotent, Arc::new(build)).await?;
    respond_to_outcome(outcome, ResponseContent::Other, |refused| {
        Err(match refused {
            CancelOutcome::Over(state) => Problem::new(
                Code::WrongState,
                format!("only a running bulk operation can be cancelled; this one is {}", state.as_str()),
            ),
            CancelOutcome::Missing | CancelOutcome::Done(_) => Problem::not_found("bulk operation", id),
        })
    })
}
