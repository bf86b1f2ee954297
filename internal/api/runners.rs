//! `/v1/runners`: the runners, their jobs, and requests to take no new work.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::auth::RequestActor;
use crate::http::body::OptionalBody;
use crate::http::problem::{Code, Problem};
use crate::queues::{PauseView, checked_reason};
use crate::view::{Moment, ProgressView};
use crate::{Api, json};
use tickr_job::{Actor, RunnerId, Timestamp};
use tickr_store::{DrainOutcome, MAX_WORKER_JOBS, PauseRequest, RunnerSeen, WorkerJob, WorkerJobs};

/// Maximum number of runners in the list.
const MAX_RUNNERS: u32 = 200;
/// Maximum number of jobs in the list over all runners, and the number of jobs of each runner that are shown in any
/// case.
const MAX_JOBS: usize = 4_000;
const LEAST_JOBS: usize = 20;

/// The runners, the living ones first.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RunnersAnswer {
    /// Runners, at most 200.
    data: Vec<RunnerView>,
    /// True when there are more living runners than are listed.
    more: bool,
}

/// One tickr process, or one remote worker.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RunnerView {
    /// Id of the runner, as in the attempts.
    id: String,
    state: RunnerState,
    via: RunnerVia,
    version: String,
    /// Host name; null for a runner of an older version.
    host: Option<String>,
    /// Process id on that host.
    pid: Option<u32>,
    kinds: Vec<String>,
    queues: Vec<String>,
    /// Number of workers.
    workers: u32,
    /// Number of busy workers at the last heartbeat.
    busy_workers: u32,
    /// Jobs that its workers execute, the longest running first: at most 200, fewer when there are many runners. With a
    /// long backlog, a job that started after the last heartbeat appears with the next one.
    jobs: Vec<WorkerJobView>,
    /// True when its workers execute more jobs than are shown.
    more: bool,
    #[schema(value_type = String, format = DateTime)]
    started_at: Moment,
    #[schema(value_type = String, format = DateTime)]
    heartbeat_at: Moment,
    /// Age of the last heartbeat in milliseconds, by the clock of the database.
    heartbeat_age_ms: u64,
    /// Time without a heartbeat after which other runners take its jobs, in milliseconds.
    lease_ms: u64,
    /// Clock of the runner minus clock of the database at the last heartbeat, in milliseconds, accurate to about half a
    /// round trip. Nothing in tickr depends on it. Null for a runner of an older version.
    clock_skew_ms: Option<i64>,
    /// Set while the runner is drained: since when it takes no new work, by whom, and why. Null while it takes work.
    draining: Option<PauseView>,
    /// Time when it stopped or was found dead; null while it is alive.
    #[schema(value_type = Option<String>, format = DateTime)]
    stopped_at: Option<Moment>,
    /// Id of the runner that started this process to run one suspect: a job whose last two runners died. Such a process
    /// has no workers of its own and is listed while it is alive. Null for every other runner.
    parent: Option<String>,
}

/// The way in which a runner takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum RunnerVia {
    /// It is a tickr process.
    Process,
    /// It is a remote worker: a program that calls `/v1/workers`.
    Http,
}

/// The state of a runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum RunnerState {
    /// The runner is alive and takes work.
    Working,
    /// The runner is drained: it is alive and finishes the jobs that it runs.
    Draining,
    /// The runner has sent no heartbeat for longer than its lease; other runners are about to take its jobs.
    Silent,
    /// The runner has stopped or was found dead.
    Stopped,
}

impl RunnerState {
    fn new(runner: &RunnerSeen) -> Self {
        match runner {
            RunnerSeen { stopped_at: Some(_), .. } => Self::Stopped,
            _ if runner.is_silent() => Self::Silent,
            RunnerSeen { drain: Some(_), .. } => Self::Draining,
            _ => Self::Working,
        }
    }
}

/// A job that a worker executes.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct WorkerJobView {
    /// Id of the job, a UUIDv7.
    id: String,
    kind: String,
    queue: String,
    /// Attempts used: those that count against `max_attempts`, this one included.
    attempt: u32,
    max_attempts: u32,
    /// Start of the attempt.
    #[schema(value_type = String, format = DateTime)]
    started_at: Moment,
    /// Time of the request to stop the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    cancel_requested_at: Option<Moment>,
    /// Progress that the attempt reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<ProgressView>,
}

impl From<WorkerJob> for WorkerJobView {
    fn from(job: WorkerJob) -> Self {
        Self {
            id: job.id.to_string(),
            kind: job.kind.to_string(),
            queue: job.queue.to_string(),
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            started_at: Moment(job.started_at),
            cancel_requested_at: job.cancel_requested_at.map(Moment),
            progress: job.progress.map(ProgressView::from),
        }
    }
}

fn view(runner: RunnerSeen, shown: WorkerJobs) -> RunnerView {
    RunnerView {
        id: runner.id.to_string(),
        state: RunnerState::new(&runner),
        via: if runner.is_remote { RunnerVia::Http } else { RunnerVia::Process },
        version: runner.version,
        host: runner.host,
        pid: runner.pid,
        kinds: runner.kinds.iter().map(ToString::to_string).collect(),
        queues: runner.queues.iter().map(ToString::to_string).collect(),
        workers: runner.workers,
        busy_workers: runner.busy_workers,
        jobs: shown.jobs.into_iter().map(WorkerJobView::from).collect(),
        more: shown.more,
        started_at: Moment(runner.started_at),
        heartbeat_at: Moment(runner.heartbeat_at),
        heartbeat_age_ms: runner.heartbeat_age.as_millis() as u64,
        lease_ms: runner.lease.as_millis() as u64,
        clock_skew_ms: runner.clock_skew_ms,
        draining: runner.drain.map(PauseView::from),
        stopped_at: runner.stopped_at.map(Moment),
        parent: runner.parent.map(|parent| parent.to_string()),
    }
}

/// The runner in the path.
pub(super) struct RunnerPath(RunnerId);

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for RunnerPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut axum::http::request::Parts, state: &S) -> Result<Self, Problem> {
        let path: Result<Path<String>, PathRejection> = Path::from_request_parts(parts, state).await;
        let Path(text) = path.map_err(|e| Problem::new(Code::NotFound, e.body_text()))?;
        let id = RunnerId::from_stored(text);
        if id.as_str().len() > RunnerId::MAX_LEN || !id.as_str().is_ascii() { Err(missing(&id)) } else { Ok(Self(id)) }
    }
}

fn missing(id: &RunnerId) -> Problem {
    Problem::new(Code::NotFound, format!("there is no runner {id}; write the slash in an id as %2F in a path"))
}

/// List the runners
///
/// Each with the jobs that its workers execute.
#[utoipa::path(
    get, path = "/v1/runners", tag = "system", operation_id = "list_runners",
    responses(
        (status = 200, description = "The runners", body = RunnersAnswer),
    )
)]
pub(super) async fn list(State(api): State<Api>) -> Result<Response, Problem> {
    let store = api.broker.store();
    let mut runners = store.runners(MAX_RUNNERS + 1).await?;
    let more = runners.get(MAX_RUNNERS as usize).is_some_and(|runner| runner.stopped_at.is_none());
    runners.truncate(MAX_RUNNERS as usize);
    let living: Vec<RunnerSeen> = runners.iter().filter(|runner| runner.stopped_at.is_none()).cloned().collect();
    let share = (MAX_JOBS / living.len().max(1)).clamp(LEAST_JOBS, MAX_WORKER_JOBS);
    let mut jobs = store.worker_jobs(&living, share).await?;
    let mut data = Vec::with_capacity(runners.len());
    for runner in runners {
        let jobs = jobs.remove(&runner.id).unwrap_or_default();
        data.push(view(runner, jobs));
    }
    Ok(json(StatusCode::OK, RunnersAnswer { data, more }))
}

/// Show a runner
#[utoipa::path(
    get, path = "/v1/runners/{id}", tag = "system", operation_id = "show_runner",
    params(("id" = String, Path, description = "The runner's id, with its slash written as %2F")),
    responses(
        (status = 200, description = "The runner", body = RunnerView),
        (status = 404, description = "not_found", body = Problem),
    )
)]
pub(super) async fn show(State(api): State<Api>, RunnerPath(id): RunnerPath) -> Result<Response, Problem> {
    shown(&api, id).await
}

async fn shown(api: &Api, id: RunnerId) -> Result<Response, Problem> {
    let store = api.broker.store();
    let Some(runner) = store.runner(id.clone()).await? else { return Err(missing(&id)) };
    let jobs = if runner.stopped_at.is_none() {
        store.worker_jobs(std::slice::from_ref(&runner), MAX_WORKER_JOBS).await?.remove(&id)
    } else {
        None
    };
    Ok(json(StatusCode::OK, view(runner, jobs.unwrap_or_default())))
}

/// The body of a request to drain a runner.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DrainBody {
    /// Reason that other operators see.
    #[schema(max_length = 255)]
    reason: Option<String>,
}

/// Drain a runner: let it take no new work
///
/// Within 2 s the runner stops starting jobs. It finishes the jobs that it runs, still answers HTTP and repairs, and
/// stays ready for a load balancer. The drain ends with the process. Draining again changes only the reason.
#[utoipa::path(
    post, path = "/v1/runners/{id}/drain", tag = "system", operation_id = "drain_runner", request_body = DrainBody,
    params(("id" = String, Path, description = "The runner's id, with its slash written as %2F")),
    responses(
        (status = 200, description = "The runner is drained", body = RunnerView),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "runner_stopped", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(super) async fn drain(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    RunnerPath(id): RunnerPath,
    OptionalBody(body, _): OptionalBody<DrainBody>,
) -> Result<Response, Problem> {
    let reason = checked_reason(body.reason)?;
    apply(&api, id, PauseRequest::Yes(reason), &who).await
}

/// Let a drained runner take work again
#[utoipa::path(
    post, path = "/v1/runners/{id}/resume", tag = "system", operation_id = "resume_runner",
    params(("id" = String, Path, description = "The runner's id, with its slash written as %2F")),
    responses(
        (status = 200, description = "The runner takes work", body = RunnerView),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "runner_stopped", body = Problem),
    )
)]
pub(super) async fn resume(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    RunnerPath(id): RunnerPath,
) -> Result<Response, Problem> {
    apply(&api, id, PauseRequest::No, &who).await
}

async fn apply(api: &Api, id: RunnerId, request: PauseRequest, who: &Actor) -> Result<Response, Problem> {
    match api.broker.store().drain_runner(id.clone(), request, who).await? {
        DrainOutcome::Done => {}
        DrainOutcome::Stopped(at) => return Err(stopped(&id, at)),
        DrainOutcome::Missing => return Err(missing(&id)),
    }
    // This process applies the change at once, the others within two seconds.
    api.operator_settings.refresh().await?;
    shown(api, id).await
}

fn stopped(id: &RunnerId, at: Timestamp) -> Problem {
    let at = at.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
    Problem::new(Code::RunnerStopped, format!("{id} stopped at {at}"))
}
