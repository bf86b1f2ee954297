//! `/v1/index`: the state of Redis compared with MySQL, as this runner sees it, and its rebuild.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::auth::RequestActor;
use crate::http::problem::{Code, Problem};
use crate::http::searches::run_with_seat;
use crate::view::Moment;
use crate::{Api, json};
use tickr_index::{Health, IndexError, IndexMode, IndexStatus, Lane, RebuildTrigger};
use tickr_job::{Name, Timestamp};
use tickr_store::{AuditEntry, DueWithin, StoreError};

/// Maximum numbers of runners and queues that are read.
const MAX_RUNNERS: u32 = 200;
const MAX_QUEUES: usize = 200;

/// The state of Redis compared with MySQL.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct IndexAnswer {
    /// Time of the count, by the clock of the database.
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    /// Id of the runner whose view this is. Each runner has its own connections and compares by itself.
    runner: String,
    health: HealthWord,
    /// Time since which `health` has this value.
    #[schema(value_type = String, format = DateTime)]
    since: Moment,
    /// Reason of the rebuild that is under way; null when there is none.
    rebuilding: Option<RebuildCause>,
    /// Horizon: how far ahead jobs are kept in Redis, in milliseconds.
    horizon_ms: u64,
    /// Contents of Redis; null when it does not answer.
    redis: Option<RedisView>,
    /// Contents that Redis should have, by MySQL.
    store: StoreView,
    /// Last comparison of the two; null before the first.
    drift: Option<DriftView>,
    /// Last finished rebuild; null before the first.
    last_rebuild: Option<RebuildView>,
    /// A setting that makes Redis lose more data than necessary, such as an eviction policy, as far as Redis reports
    /// it.
    weakness: Option<String>,
    /// Last failure of Redis, while `health` is `degraded`; otherwise null.
    problem: Option<String>,
    mode: ModeWord,
    /// Host and port of the Redis server that holds the index, or the path of its socket; null before the first
    /// connection of this runner. Partitions of the index may be on several servers, with commas between.
    server: Option<String>,
}

/// The contents of Redis.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RedisView {
    /// Marker that changes whenever Redis has lost its state; null while Redis has none.
    epoch: Option<String>,
    /// Entries of jobs that are due later. Left-over entries of jobs that were cancelled or run early count as well.
    waiting: u64,
    /// Entries of jobs in ready lists: due, and not taken by a runner yet.
    ready: u64,
    /// Number of ready lists that are full. Further jobs of these lanes stay in MySQL until the lists have run low.
    full_lists: u64,
}

/// The jobs that MySQL has and Redis should know.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StoreView {
    /// Number of jobs that wait and are due.
    due: u32,
    /// Number of jobs that wait and become due within the horizon.
    upcoming: u32,
    /// Number of executing jobs. Redis does not have these.
    executing: u32,
    /// True when there are more: only the 50,000 jobs that are due first are counted.
    more: bool,
}

/// A comparison of the jobs that became due lately, are due next, or are overdue longest. Each runner compares every
/// few seconds.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DriftView {
    /// Number of jobs that were missing in Redis, or had another due time there. They were put back.
    jobs: u64,
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
}

/// A finished rebuild.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RebuildView {
    /// End of the rebuild.
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    /// Number of jobs that were missing in Redis.
    jobs: u64,
    took_ms: u64,
    cause: RebuildCause,
}

/// The condition of the index. Jobs run in every condition.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HealthWord {
    /// Redis answers and has all entries that it should have.
    Fast,
    /// Redis answers; its entries are being read from MySQL again.
    Rebuilding,
    /// Redis does not answer; runners read due jobs from MySQL.
    Degraded,
}

impl From<Health> for HealthWord {
    fn from(health: Health) -> Self {
        match health {
            Health::Fast => Self::Fast,
            Health::Rebuilding => Self::Rebuilding,
            Health::Degraded => Self::Degraded,
        }
    }
}

/// The way in which the Redis server is found.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ModeWord {
    /// `redis_url` names it.
    Single,
    /// Sentinels name the master.
    Sentinel,
    /// The nodes of a Redis Cluster name the master of the slot in which the index is.
    Cluster,
}

impl From<IndexMode> for ModeWord {
    fn from(mode: IndexMode) -> Self {
        match mode {
            IndexMode::Single => Self::Single,
            IndexMode::Sentinel => Self::Sentinel,
            IndexMode::Cluster => Self::Cluster,
        }
    }
}

/// The reason of a rebuild.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RebuildCause {
    /// The runner started.
    Start,
    /// Redis had lost its state, or was restored to an older one.
    LostState,
    /// Redis did not answer for a time.
    Outage,
    /// An operator requested it.
    Asked,
}

impl From<RebuildTrigger> for RebuildCause {
    fn from(cause: RebuildTrigger) -> Self {
        match cause {
            RebuildTrigger::Start => Self::Start,
            RebuildTrigger::LostState => Self::LostState,
            RebuildTrigger::Outage => Self::Outage,
            RebuildTrigger::Asked => Self::Asked,
        }
    }
}

/// Compare Redis with MySQL
///
/// The two counts are not taken at the same moment, and jobs on their way to a worker are in neither. `drift` has the
/// jobs that were missing in two looks in a row.
#[utoipa::path(
    get, path = "/v1/index", tag = "system", operation_id = "show_index",
    responses(
        (status = 200, description = "Redis and MySQL side by side", body = IndexAnswer),
    )
)]
pub(crate) async fn show(State(api): State<Api>) -> Result<Response, Problem> {
    let counting = Arc::clone(&api);
    let (owed, redis) = run_with_seat(&api, async move { count_both(&counting).await }).await?;
    let clock = api.broker.store().clock();
    let at = |when: Instant| Moment(clock.at(when));
    let IndexStatus { health, since, cause, last, drift } = api.index.health().status();
    let answer = IndexAnswer {
        at: Moment(owed.at),
        runner: api.operator_settings.runner().to_string(),
        health: health.into(),
        since: at(since),
        rebuilding: cause.map(RebuildCause::from),
        horizon_ms: api.index.horizon().as_millis() as u64,
        redis,
        store: of_store(&owed),
        drift: drift.map(|drift| DriftView { jobs: drift.jobs as u64, at: at(drift.at) }),
        last_rebuild: last.map(|last| RebuildView {
            at: at(last.at),
            jobs: last.jobs as u64,
            took_ms: last.took.as_millis() as u64,
            cause: last.cause.into(),
        }),
        weakness: api.index.weakness(),
        problem: api.index.health().problem(),
        mode: api.index.mode().into(),
        server: Some(api.index.servers().join(", ")).filter(|servers| !servers.is_empty()),
    };
    Ok(json(StatusCode::OK, answer))
}

/// Count the jobs in MySQL and the entries in Redis. The latter are absent while Redis does not answer.
async fn count_both(api: &Api) -> Result<(DueWithin, Option<RedisView>), StoreError> {
    let store = api.broker.store();
    let owed = store.due_within(api.index.horizon()).await?;
    // Only the scheduler probes Redis until it answers again.
    if api.index.health().now() == Health::Degraded {
        return Ok((owed, None));
    }
    let runners = store.runners(MAX_RUNNERS).await?;
    let living = runners.into_iter().filter(|runner| runner.stopped_at.is_none());
    let mut queues = owed.queues.clone();
    queues.extend(living.flat_map(|runner| runner.queues));
    let queues: Vec<Name> = queues.into_iter().take(MAX_QUEUES).collect();
    // If Redis fails here, the index records that and its health changes.
    let redis = holds(api, &queues).await.ok();
    Ok((owed, redis))
}

async fn holds(api: &Api, queues: &[Name]) -> Result<RedisView, IndexError> {
    let epoch = api.index.epoch().await?;
    let (waiting, ready) = api.index.depth(&Lane::all_of(queues)).await?;
    let full_lists = api.index.left_out().await?.len() as u64;
    Ok(RedisView { epoch, waiting: waiting as u64, ready: ready.iter().map(|list| *list as u64).sum(), full_lists })
}

fn of_store(owed: &DueWithin) -> StoreView {
    let DueWithin { due, upcoming, executing, more, .. } = *owed;
    StoreView { due, upcoming, executing, more }
}

/// The response to a request for a rebuild.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RebuildAnswer {
    /// False when a rebuild was already under way. If that one only adds entries, it begins again from nothing.
    started: bool,
    health: HealthWord,
    /// Time of the request. The rebuild has ended when `last_rebuild.at` of `/v1/index` is later than this.
    #[schema(value_type = String, format = DateTime)]
    asked_at: Moment,
}

/// Rebuild Redis from MySQL
///
/// Delete the entries in Redis, and read all jobs that are due within the horizon from MySQL again; other runners
/// notice and help. This is safe at any time: an id that reaches the runners twice is dropped. The rebuild has ended
/// when `/v1/index` has a later `last_rebuild`; the event `rebuilt` reports it too.
#[utoipa::path(
    post, path = "/v1/index/rebuild", tag = "system", operation_id = "rebuild_index",
    responses(
        (status = 202, description = "A rebuild begins, or is already under way", body = RebuildAnswer),
        (status = 503, description = "store_unavailable, index_unavailable", body = Problem),
    )
)]
pub(crate) async fn rebuild(State(api): State<Api>, RequestActor(who): RequestActor) -> Result<Response, Problem> {
    if api.index.health().now() == Health::Degraded {
        let detail = "Redis does not answer; when it does, the runners rebuild it by themselves";
        return Err(Problem::new(Code::IndexUnavailable, detail));
    }
    let runner = api.operator_settings.runner();
    api.broker.store().note(AuditEntry::new(&who, "index.rebuild", runner.as_str())).await?;
    let asked_at: Timestamp = api.broker.store().clock().now();
    let started = api.index.health().ask_for_rebuild();
    let answer = RebuildAnswer { started, health: api.index.health().now().into(), asked_at: Moment(asked_at) };
    Ok(json(StatusCode::ACCEPTED, answer))
}
