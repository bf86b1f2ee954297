//! `/v1/queues`: the settings and pauses of queues, and the counts of their jobs.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::http::auth::RequestActor;
use crate::http::body::{Body, NamePath, OptionalBody};
use crate::http::etag::{self, IfMatch};
use crate::http::problem::{Code, Problem};
use crate::http::searches::run_with_seat;
use crate::view::Moment;
use crate::{Api, json};
use tickr_job::{Actor, Name, Priority};
use tickr_store::{
    Condition, MAX_QUEUES, Pause, PauseRequest, QueueChange, QueueChangeOutcome, QueueDemand, QueueSetting, Stats,
    Store, StoreError,
};

/// Maximum value of a concurrency limit.
const MAX_CONCURRENCY: u32 = 100_000;
/// Maximum length of a reason, in characters.
const MAX_REASON: usize = 255;

/// A queue.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct QueueView {
    name: String,
    /// Priority of the queue: 0 is served first, 9 last. Default: 5. It takes precedence over the priority of jobs.
    priority: u8,
    /// Limit: number of jobs of the queue that may run at the same time on all runners together; null for no limit.
    concurrency: Option<u32>,
    /// Number of permits held: jobs that are running or about to start. Null for a queue without a limit.
    permits: Option<u32>,
    /// Set while the queue is paused; null otherwise.
    paused: Option<PauseView>,
    /// Number of jobs by state. Ended states count every job that ever ended so.
    states: BTreeMap<String, i64>,
    /// False when the queue has too many unfinished jobs to count all; their counts are then lower bounds.
    exact: bool,
    /// Number of failed jobs of the queue that were not retried, replayed or discarded, up to 100,000.
    open_dead_letters: u64,
    /// False when there are more of them than are counted; `open_dead_letters` is then a lower bound. The list of queues
    /// counts 100,000 of all queues together, so with more than that the number of any queue there is a lower bound.
    open_dead_letters_exact: bool,
    /// Number of living runners that serve the queue and take work. With 0, no job of the queue starts.
    runners: u32,
    /// Time when the settings were last changed; null if they never were.
    #[schema(value_type = Option<String>, format = DateTime)]
    changed_at: Option<Moment>,
    changed_by: Option<String>,
}

/// The pause of a queue, or the drain of a runner: when, by whom and why.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PauseView {
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    by: String,
    reason: Option<String>,
}

impl From<Pause> for PauseView {
    fn from(pause: Pause) -> Self {
        Self { at: Moment(pause.at), by: pause.by.to_string(), reason: pause.reason }
    }
}

/// Queues.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct QueuesAnswer {
    /// Queues, in the order of their names: those that a living runner serves, those with settings, and those that have
    /// or had jobs. Of these there are at least the first 200 by name with unfinished jobs, and the first 200 by name
    /// with ended ones. Any other queue can be shown by its name.
    data: Vec<QueueView>,
    /// False when there are too many unfinished jobs to count all. The counts of some queues are then lower bounds, and
    /// those of others are missing.
    exact: bool,
}

/// The demand of a queue for workers, for programs that start and stop runners.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct QueueBacklog {
    queue: String,
    /// Number of workers that the queue could use now: `executing` and those of `due` for which `concurrency` has room. While the queue is
    /// paused, `executing` alone.
    wanted_workers: i64,
    /// Number of jobs that are due and wait for a worker, and of reports that wait for a connection, as far as they are
    /// among the first 10,000 jobs for the next minute. Other jobs for later and held jobs are not among them.
    due: i64,
    /// Number of jobs with a running attempt that occupies a worker. An attempt that another system finishes occupies
    /// none.
    executing: i64,
    /// False when there are more than 10,000 such jobs of one priority; the numbers are then lower bounds.
    exact: bool,
    /// True while the queue is paused.
    paused: bool,
    /// Limit: number of jobs of the queue that may run at the same time on all runners together; null for no limit.
    concurrency: Option<u32>,
    /// Number of living runners that serve the queue and take work.
    runners: u32,
}

/// The changes to a queue. A field that is left out stays as it is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct QueueBody {
    /// New priority: 0 is served first, 9 last.
    #[schema(maximum = 9)]
    priority: Option<u8>,
    /// Limit: number of jobs of the queue that may run at the same time on all runners together; null for no limit.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 100_000)]
    concurrency: Option<Option<u32>>,
}

/// Distinguish null, which means "no limit", from a field that is left out.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<u32>>, D::Error> {
    Option::<u32>::deserialize(deserializer).map(Some)
}

/// The body of a request to pause a queue.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PauseBody {
    /// Reason that other operators see.
    #[schema(max_length = 255)]
    reason: Option<String>,
}

/// Return the reason in the form that is stored, if there is one.
pub(super) fn checked_reason(reason: Option<String>) -> Result<Option<String>, Problem> {
    let reason = reason.map(|reason| reason.trim().to_owned()).filter(|reason| !reason.is_empty());
    if reason.as_ref().is_some_and(|reason| reason.chars().count() > MAX_REASON) {
        let here = tickr_handlers::Problem::at("/reason", format!("must be at most {MAX_REASON} characters"));
        return Err(Problem::new(Code::InvalidRequest, "the reason is too long").at("", vec![here]));
    }
    Ok(reason)
}

struct Counts {
    states: BTreeMap<Name, BTreeMap<String, i64>>,
    /// The queues that living runners serve, drained ones included, with the number of those that take work.
    runners: BTreeMap<Name, u32>,
    permits: BTreeMap<String, u32>,
    open_dead_letters: BTreeMap<Name, u64>,
    open_dead_letters_exact: bool,
    whole: BTreeSet<Name>,
    exact: bool,
}

/// Count the jobs of all queues, or of one, in a seat of the heavy reads.
async fn counts_in_a_seat(api: &Api, only: Option<Name>) -> Result<Counts, Problem> {
    let store = api.broker.store().clone();
    run_with_seat(api, async move { counts(&store, only.as_ref()).await }).await
}

async fn counts(store: &Store, only: Option<&Name>) -> Result<Counts, StoreError> {
    let stats = match only {
        Some(queue) => store.stats_of(queue.clone()).await?,
        None => store.stats().await?,
    };
    let runners = match only {
        Some(queue) => store.runners_of_queue(queue, 1_000).await?,
        None => store.runners(1_000).await?,
    };
    let permits = store.permits().await?;
    let mut states: BTreeMap<Name, BTreeMap<String, i64>> = BTreeMap::new();
    for count in stats.owed.iter().chain(&stats.ended) {
        *states.entry(count.queue.clone()).or_default().entry(count.state.to_string()).or_default() += count.jobs;
    }
    let mut serving: BTreeMap<Name, u32> = BTreeMap::new();
    for runner in runners.iter().filter(|runner| runner.stopped_at.is_none() && runner.parent.is_none()) {
        for queue in &runner.queues {
            *serving.entry(queue.clone()).or_default() += u32::from(runner.takes_jobs());
        }
    }
    let Stats { open_dead_letters, open_dead_letters_exact, exact, whole, .. } = stats;
    Ok(Counts { states, runners: serving, permits, open_dead_letters, open_dead_letters_exact, whole, exact })
}

fn view(name: &Name, setting: Option<&QueueSetting>, counts: &Counts) -> QueueView {
    let concurrency = setting.and_then(|set| set.concurrency);
    // A row of version 0 exists because a change was attempted, but nothing was ever changed.
    let changed = setting.filter(|set| set.version > 0).map(|set| &set.changed);
    QueueView {
        name: name.to_string(),
        priority: setting.map_or(Priority::NORMAL, |set| set.priority).level(),
        concurrency,
        permits: concurrency.map(|_| counts.permits.get(name.as_str()).copied().unwrap_or(0)),
        paused: setting.and_then(|set| set.pause.clone()).map(PauseView::from),
        states: counts.states.get(name).cloned().unwrap_or_default(),
        exact: counts.exact || counts.whole.contains(name),
        open_dead_letters: counts.open_dead_letters.get(name).copied().unwrap_or(0),
        open_dead_letters_exact: counts.open_dead_letters_exact,
        runners: counts.runners.get(name).copied().unwrap_or(0),
        changed_at: changed.map(|(at, _)| Moment(*at)),
        changed_by: changed.map(|(_, by)| by.to_string()),
    }
}

/// List the queues
#[utoipa::path(
    get, path = "/v1/queues", tag = "queues", operation_id = "list_queues",
    responses(
        (status = 200, description = "The queues", body = QueuesAnswer),
    )
)]
pub(super) async fn list(State(api): State<Api>) -> Result<Response, Problem> {
    let counts = counts_in_a_seat(&api, None).await?;
    let set: BTreeMap<Name, QueueSetting> =
        api.broker.store().listed_queues().await?.into_iter().map(|set| (set.name.clone(), set)).collect();
    let names: BTreeSet<&Name> = counts.states.keys().chain(counts.runners.keys()).chain(set.keys()).collect();
    let data = names.into_iter().map(|name| view(name, set.get(name), &counts)).collect();
    Ok(json(StatusCode::OK, QueuesAnswer { data, exact: counts.exact }))
}

/// Show a queue
#[utoipa::path(
    get, path = "/v1/queues/{name}", tag = "queues", operation_id = "show_queue",
    params(("name" = String, Path, description = "The queue", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")),
    responses(
        (status = 200, description = "The queue", body = QueueView, headers(("ETag" = String))),
        (status = 404, description = "not_found: the queue has no jobs, no settings and no living runner", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(super) async fn show(State(api): State<Api>, NamePath(name): NamePath) -> Result<Response, Problem> {
    let counts = counts_in_a_seat(&api, Some(name.clone())).await?;
    let set = api.broker.store().listed_queues().await?.into_iter().find(|set| set.name == name);
    if set.is_none() && !counts.states.contains_key(&name) && !counts.runners.contains_key(&name) {
        return Err(Problem::not_found("queue", name));
    }
    let version = set.as_ref().map_or(0, |set| set.version);
    Ok(etag::with_tag(StatusCode::OK, &etag::from_version(version), view(&name, set.as_ref(), &counts)))
}

/// Show the demand of a queue for workers
///
/// For programs that start and stop runners, such as KEDA. Any runner answers for any queue, also for one that no
/// runner serves. A queue that has no jobs and that is not known wants no workers.
#[utoipa::path(
    get, path = "/v1/queues/{name}/backlog", tag = "queues", operation_id = "show_queue_backlog",
    params(("name" = String, Path, description = "The queue", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")),
    responses(
        (status = 200, description = "The demand of the queue", body = QueueBacklog),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(super) async fn backlog(State(api): State<Api>, NamePath(name): NamePath) -> Result<Response, Problem> {
    let (store, queue) = (api.broker.store().clone(), name.clone());
    let (demand, runners, set) = run_with_seat(&api, async move {
        let demand = store.demand_of(queue.clone()).await?;
        let runners = store.takers_of_queue(&queue).await?;
        let set = store.listed_queues().await?.into_iter().find(|set| set.name == queue);
        Ok::<_, StoreError>((demand, runners, set))
    })
    .await?;
    let QueueDemand { due, executing, exact } = demand;
    let concurrency = set.as_ref().and_then(|set| set.concurrency);
    let paused = set.as_ref().is_some_and(|set| set.pause.is_some());
    let startable = if paused { 0 } else { due };
    // A limit that was lowered stops no running job.
    let room = concurrency.map_or(i64::MAX, |limit| (i64::from(limit) - executing).max(0));
    let wanted_workers = executing + startable.min(room);
    let queue = name.to_string();
    let view = QueueBacklog { queue, wanted_workers, due, executing, exact, paused, concurrency, runners };
    Ok(json(StatusCode::OK, view))
}

/// Change a queue's priority or limit
///
/// The change takes effect on every runner within 2 s. A lower limit does not stop running jobs. The queue need not
/// have jobs yet.
#[utoipa::path(
    patch, path = "/v1/queues/{name}", tag = "queues", operation_id = "change_queue", request_body = QueueBody,
    params(
        ("name" = String, Path, description = "The queue", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$"),
        ("If-Match" = Option<String>, Header, description = "Change the queue only if it has one of these ETags",
            pattern = r#"^(\*|(W/)?"[!#-~]*"( *, *(W/)?"[!#-~]*")*)$"#),
    ),
    responses(
        (status = 200, description = "The queue with its new settings", body = QueueView, headers(("ETag" = String))),
        (status = 412, description = "precondition_failed: the queue has another ETag now; nothing was changed", body = Problem),
        (status = 422, description = "invalid_request, too_many", body = Problem),
    )
)]
pub(super) async fn change(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    NamePath(name): NamePath,
    seen: IfMatch,
    Body(body, _): Body<QueueBody>,
) -> Result<Response, Problem> {
    let seen = seen.condition(etag::version_of)?;
    let mut problems = Vec::new();
    let priority = body.priority.and_then(|level| {
        let priority = level.try_into().ok();
        if priority.is_none() {
            problems.push(tickr_handlers::Problem::at("/priority", "must be 0 to 9"));
        }
        priority
    });
    if body.concurrency.flatten().is_some_and(|limit| !(1..=MAX_CONCURRENCY).contains(&limit)) {
        let detail = format!("must be 1 to {MAX_CONCURRENCY}, or null for no limit; to start nothing, pause the queue");
        problems.push(tickr_handlers::Problem::at("/concurrency", detail));
    }
    if body.priority.is_none() && body.concurrency.is_none() {
        problems.push(tickr_handlers::Problem::at("", "must have priority, concurrency or both"));
    }
    if !problems.is_empty() {
        return Err(
            Problem::new(Code::InvalidRequest, "invalid settings of a queue; `errors` says why").at("", problems)
        );
    }
    let change = QueueChange { priority, concurrency: body.concurrency, pause: None };
    apply(&api, &name, change, seen, &who).await
}

/// Pause a queue
///
/// Within 2 s no runner starts a job of the queue any more. Running jobs go on. Pausing it again changes only the
/// reason.
#[utoipa::path(
    post, path = "/v1/queues/{name}/pause", tag = "queues", operation_id = "pause_queue", request_body = PauseBody,
    params(("name" = String, Path, description = "The queue", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")),
    responses(
        (status = 200, description = "Paused", body = QueueView, headers(("ETag" = String))),
        (status = 422, description = "invalid_request, too_many", body = Problem),
    )
)]
pub(super) async fn pause(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    NamePath(name): NamePath,
    OptionalBody(body, _): OptionalBody<PauseBody>,
) -> Result<Response, Problem> {
    let reason = checked_reason(body.reason)?;
    let change = QueueChange { pause: Some(PauseRequest::Yes(reason)), ..QueueChange::default() };
    apply(&api, &name, change, Condition::Any, &who).await
}

/// Resume a paused queue
#[utoipa::path(
    post, path = "/v1/queues/{name}/resume", tag = "queues", operation_id = "resume_queue",
    params(("name" = String, Path, description = "The queue", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")),
    responses(
        (status = 200, description = "The queue is not paused", body = QueueView, headers(("ETag" = String))),
        (status = 422, description = "invalid_request, too_many", body = Problem),
    )
)]
pub(super) async fn resume(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    NamePath(name): NamePath,
) -> Result<Response, Problem> {
    let change = QueueChange { pause: Some(PauseRequest::No), ..QueueChange::default() };
    apply(&api, &name, change, Condition::Any, &who).await
}

async fn apply(
    api: &Api,
    name: &Name,
    change: QueueChange,
    seen: Condition<u32>,
    who: &Actor,
) -> Result<Response, Problem> {
    let setting = match api.broker.change_queue(name, change, seen, who).await? {
        QueueChangeOutcome::Done(setting) | QueueChangeOutcome::Unchanged(setting) => setting,
        QueueChangeOutcome::Meanwhile(setting) => {
            let detail = format!(
                "{name} was changed by {} meanwhile and has the ETag \"{}\" now; nothing was changed",
                setting.changed.1, setting.version
            );
            return Err(Problem::new(Code::PreconditionFailed, detail));
        }
        QueueChangeOutcome::TooMany => {
            return Err(Problem::new(Code::TooMany, format!("{MAX_QUEUES} queues have settings already")));
        }
    };
    // This process applies the change at once, the others within two seconds.
    api.operator_settings.refresh().await?;
    // The change is made, so its answer waits for no seat.
    let counts = counts(api.broker.store(), Some(name)).await?;
    Ok(etag::with_tag(StatusCode::OK, &etag::from_version(setting.version), view(name, Some(&setting), &counts)))
}
