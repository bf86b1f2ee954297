//! `/v1/index`: Redis against MySQL, as this runner sees it.

use std::time::Instant;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::auth::Who;
use super::problem::{Code, Problem};
use super::view::Moment;
use super::{Api, json};
use crate::index::{Bearing, Cause, Health, IndexError, Line};
use crate::job::{Name, Timestamp};
use crate::store::{Act, DueWithin};

/// Most runners and queues that are asked about.
const MOST_RUNNERS: u32 = 200;
const MOST_QUEUES: usize = 200;

/// Redis against MySQL.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct IndexAnswer {
    /// The database's clock at the count.
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    /// Whose view this is: each runner has its own connections, and compares for itself.
    runner: String,
    health: HealthWord,
    /// Since when.
    #[schema(value_type = String, format = DateTime)]
    since: Moment,
    /// Why it is being fed from MySQL; null unless it is.
    rebuilding: Option<RebuildCause>,
    /// How far ahead jobs are kept in Redis, in milliseconds.
    horizon_ms: u64,
    /// What Redis holds; null when it does not answer.
    redis: Option<RedisView>,
    /// What it should hold.
    store: StoreView,
    /// The last comparison of the two; null before the first.
    drift: Option<DriftView>,
    /// The last time that everything was fed from MySQL; null when that has not happened yet.
    last_rebuild: Option<RebuildView>,
    /// What makes Redis forget more than it must, such as an eviction policy. As far as Redis tells.
    weakness: Option<String>,
}

/// What Redis holds.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RedisView {
    /// Another one whenever Redis has lost its state; null while it has.
    epoch: Option<String>,
    /// Jobs scheduled for later, left-over entries of jobs that were cancelled or run early among them.
    waiting: u64,
    /// Jobs in ready lists: due, and not taken yet.
    ready: u64,
    /// Ready lists that are full. Of these the rest stays in MySQL until they have run low.
    full_lists: u64,
}

/// What Redis should hold, by MySQL.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StoreView {
    /// Jobs that wait and are due.
    due: u32,
    /// Jobs that wait and become due within the horizon.
    upcoming: u32,
    /// Jobs that run. Redis does not hold these.
    executing: u32,
    /// There are more: the 50,000 that are due first were counted.
    more: bool,
}

/// A comparison of what became due lately, is due next, or is overdue longest. One is made every few seconds.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DriftView {
    /// Jobs that Redis should have held and did not, or for another time. They were brought back.
    jobs: u64,
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
}

/// A rebuild that is done.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RebuildView {
    /// When it was done.
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    /// Jobs that were missing.
    jobs: u64,
    took_ms: u64,
    cause: RebuildCause,
}

/// The condition of the index. Jobs run in each of them.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum HealthWord {
    /// Redis answers and holds what it should.
    Fast,
    /// Redis answers; what it should hold is being fed from MySQL.
    Rebuilding,
    /// Redis does not answer: runners read due work from MySQL.
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

/// Why the index is fed from MySQL.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum RebuildCause {
    /// The runner started.
    Start,
    /// Redis had lost its state, or went back in time.
    LostState,
    /// Redis was out.
    Outage,
    /// An operator asked for it.
    Asked,
}

impl From<Cause> for RebuildCause {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Start => Self::Start,
            Cause::LostState => Self::LostState,
            Cause::Outage => Self::Outage,
            Cause::Asked => Self::Asked,
        }
    }
}

/// Compare Redis with MySQL
///
/// The counts of the two are not of one moment, and jobs on their way to a worker are in neither. `drift` is what was found
/// missing when it was looked at twice.
#[utoipa::path(
    get, path = "/v1/index", tag = "operations", operation_id = "show_index",
    responses(
        (status = 200, description = "Both sides", body = IndexAnswer),
        (status = 401, description = "unauthorized", body = Problem),
        (status = 503, description = "store_unavailable", body = Problem),
    )
)]
pub(super) async fn show(State(api): State<Api>) -> Result<Response, Problem> {
    let store = api.broker.store();
    let owed = store.due_within(api.index.horizon()).await?;
    let redis = match api.index.health().now() {
        // Asked by the scheduler alone, until it answers.
        Health::Degraded => None,
        Health::Fast | Health::Rebuilding => {
            let runners = store.runners(MOST_RUNNERS).await?;
            let living = runners.into_iter().filter(|runner| runner.stopped_at.is_none());
            let mut queues = owed.queues.clone();
            queues.extend(living.flat_map(|runner| runner.queues));
            let queues: Vec<Name> = queues.into_iter().take(MOST_QUEUES).collect();
            // That it does not answer is known from now on.
            holds(&api, &queues).await.ok()
        }
    };
    let clock = store.clock();
    let at = |when: Instant| Moment(clock.at(when));
    let Bearing { health, since, cause, last, drift } = api.index.health().bearing();
    let answer = IndexAnswer {
        at: Moment(owed.at),
        runner: api.controls.runner().to_string(),
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
    };
    Ok(json(StatusCode::OK, answer))
}

async fn holds(api: &Api, queues: &[Name]) -> Result<RedisView, IndexError> {
    let epoch = api.index.epoch().await?;
    let (waiting, ready) = api.index.depth(&Line::of_queues(queues)).await?;
    let full_lists = api.index.left_out().await?.len() as u64;
    Ok(RedisView { epoch, waiting: waiting as u64, ready: ready.iter().map(|list| *list as u64).sum(), full_lists })
}

fn of_store(owed: &DueWithin) -> StoreView {
    let DueWithin { due, upcoming, executing, more, .. } = *owed;
    StoreView { due, upcoming, executing, more }
}

/// A rebuild that was asked for.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RebuildAnswer {
    /// False when one was under way already, which this asks for as well.
    started: bool,
    health: HealthWord,
    /// The rebuild is over when `last_rebuild.at` of `/v1/index` is later than this.
    #[schema(value_type = String, format = DateTime)]
    asked_at: Moment,
}

/// Have Redis fed again from MySQL
///
/// Forgets what Redis holds, and feeds everything that is due within the horizon; other runners notice and help. Harmless
/// at any time: jobs that are delivered twice are dropped. Done when `/v1/index` has a later `last_rebuild`, and told by
/// the event `rebuilt`.
#[utoipa::path(
    post, path = "/v1/index/rebuild", tag = "operations", operation_id = "rebuild_index",
    responses(
        (status = 202, description = "It begins, or one is under way", body = RebuildAnswer),
        (status = 401, description = "unauthorized", body = Problem),
        (status = 503, description = "store_unavailable, index_unavailable", body = Problem),
    )
)]
pub(super) async fn rebuild(State(api): State<Api>, Who(who): Who) -> Result<Response, Problem> {
    if api.index.health().now() == Health::Degraded {
        let detail = "Redis does not answer; when it does, it is fed again without being asked";
        return Err(Problem::new(Code::IndexUnavailable, detail));
    }
    let runner = api.controls.runner();
    api.broker.store().note(Act::new(&who, "index.rebuild", runner.as_str())).await?;
    let asked_at: Timestamp = api.broker.store().clock().now();
    let started = api.index.health().ask_for_rebuild();
    let answer = RebuildAnswer { started, health: api.index.health().now().into(), asked_at: Moment(asked_at) };
    Ok(json(StatusCode::ACCEPTED, answer))
}
