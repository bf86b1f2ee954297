//! `/v1/limits`: limits by key, and the keys that have jobs.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::http::auth::RequestActor;
use crate::http::body::{Body, NamePath, Object, QueryParams, or_default};
use crate::http::cursor::check_key;
use crate::http::etag::{self, IfMatch, Preconditions};
use crate::http::problem::{Code, Problem};
use crate::http::searches::run_with_seat;
use crate::view::Moment;
use crate::{Api, json};
use tickr_handlers::http::is_host;
use tickr_job::limit::{MAX_BOUND, MAX_OVERRIDES, MAX_PERIOD_MS, MAX_WEIGHT};
use tickr_job::{Bounds, Breaker, Limit, Name, Rate, SharedBy, limits::MAX_KEY_BYTES};
use tickr_store::{BreakerSeen, KeyUse, LimitKey, LimitOutcome, LimitSetting, MAX_LIMITS};

/// Keys in one page.
const PAGE: usize = 200;

/// The jobs that share a limit.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used; the value is the domain's own type")]
pub(crate) enum SharedByWord {
    Key,
    Parent,
    All,
    Host,
}

/// Most starts in a period.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RateBody {
    /// Number of starts in a period.
    #[schema(minimum = 1, maximum = 1_000_000)]
    starts: u32,
    /// Length of the period in milliseconds.
    #[schema(minimum = 1, maximum = 2_678_400_000_u32)]
    period_ms: u32,
    /// Number of starts that may come at once, in addition. In no period start more than `starts` + `burst` jobs.
    /// Default: the starts of a tenth of a second, at least 1.
    #[schema(minimum = 0, maximum = 1_000_000)]
    burst: Option<u32>,
}

/// When calls to a host stop, and when one is made again.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BreakerBody {
    /// Number of failed calls in a row after which calls to the host stop. Default: 5.
    #[schema(minimum = 1, maximum = 1000)]
    failures: Option<u32>,
    /// Time until one call is made, in milliseconds. It doubles each time that this call fails. Default: 10 s.
    #[schema(minimum = 100, maximum = 86_400_000)]
    pause_ms: Option<u32>,
    /// Longest such time in milliseconds. Default: 10 minutes, or `pause_ms` if that is longer.
    #[schema(minimum = 100, maximum = 86_400_000)]
    max_pause_ms: Option<u32>,
}

/// Values for one key.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BoundsBody {
    /// Most attempts at the same time.
    #[schema(minimum = 1, maximum = 1_000_000)]
    concurrency: Option<u32>,
    /// Most starts in a period.
    #[schema(value_type = Option<RateBody>)]
    rate: Option<Object<RateBody>>,
    /// Weight of the key among the keys of a fair limit. Default: 1. Only with `fair`.
    #[schema(minimum = 1, maximum = 1_000)]
    weight: Option<u32>,
}

/// A limit to set. What is left out is not limited.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitBody {
    /// Only jobs of this kind. Default: all kinds.
    #[schema(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    kind: Option<String>,
    /// Only jobs in this queue. Default: all queues.
    #[schema(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    queue: Option<String>,
    /// The jobs that share the limit. `key`: those with the same `limit_key`. `parent`: those whose limit keys have the
    /// same part before the first `/`. `all`: all jobs of the kind and the queue, with or without a limit key. `host`:
    /// those that call the same host, such as callbacks to `example.com`. Default: `key`.
    #[schema(value_type = Option<SharedByWord>)]
    shared_by: Option<SharedBy>,
    /// Most attempts at the same time, for each key.
    #[schema(minimum = 1, maximum = 1_000_000)]
    concurrency: Option<u32>,
    /// Most starts in a period, for each key.
    #[schema(value_type = Option<RateBody>)]
    rate: Option<Object<RateBody>>,
    /// If true, keys with waiting jobs share the workers of the runners by their weights. A key alone may use all of
    /// them. Default: false.
    #[serde(default)]
    #[schema(required = false)]
    fair: bool,
    /// Stop the calls to a host after repeated failures. Only with `shared_by: host`. Default: no breaker.
    #[schema(value_type = Option<BreakerBody>)]
    breaker: Option<Object<BreakerBody>>,
    /// Other values for single keys. What an override leaves out is as for all keys.
    #[serde(default, deserialize_with = "or_default")]
    #[schema(value_type = Option<BTreeMap<String, BoundsBody>>)]
    overrides: BTreeMap<String, Object<BoundsBody>>,
}

/// Most starts in a period.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RateView {
    starts: u32,
    period_ms: u32,
    burst: u32,
}

/// Values for one key.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BoundsView {
    concurrency: Option<u32>,
    rate: Option<RateView>,
    /// Weight of the key; null for 1.
    weight: Option<u32>,
}

/// When calls to a host stop, and when one is made again.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BreakerView {
    /// Number of failed calls in a row after which calls to the host stop.
    failures: u32,
    /// Time until one call is made, in milliseconds.
    pause_ms: u32,
    /// Longest such time in milliseconds.
    max_pause_ms: u32,
}

/// A limit.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LimitView {
    name: String,
    /// Only jobs of this kind; null for all kinds.
    kind: Option<String>,
    /// Only jobs in this queue; null for all queues.
    queue: Option<String>,
    #[schema(value_type = SharedByWord)]
    shared_by: SharedBy,
    /// Most attempts at the same time, for each key; null for no such limit.
    concurrency: Option<u32>,
    /// Most starts in a period, for each key; null for no such limit.
    rate: Option<RateView>,
    /// True if keys with waiting jobs share the workers of the runners by their weights.
    fair: bool,
    /// When calls to a host stop; null for never.
    breaker: Option<BreakerView>,
    /// Other values for single keys.
    overrides: BTreeMap<String, BoundsView>,
    /// False for three to six seconds after the limit was set, while the attempts that ran before are counted. No job
    /// of a key with a `concurrency` starts meanwhile.
    counted: bool,
    #[schema(value_type = String, format = DateTime)]
    changed_at: Moment,
    changed_by: String,
}

/// All limits.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LimitsAnswer {
    /// Limits, in the order of their names.
    data: Vec<LimitView>,
}

/// The jobs of one key of a limit.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct KeyView {
    /// The key: a limit key, a parent or a host. Empty for a limit that all jobs share.
    key: String,
    /// Most attempts at the same time; null for no such limit.
    concurrency: Option<u32>,
    /// Most starts in a period; null for no such limit.
    rate: Option<RateView>,
    /// Number of attempts, and of jobs about to start, that have slots.
    running: u32,
    /// Number of jobs that wait for the limit. Counted up to 10,000.
    parked: u32,
    /// Time at which the longest-waiting of these jobs was due.
    #[schema(value_type = Option<String>, format = DateTime)]
    parked_since: Option<Moment>,
    /// The breaker of the host; null if the limit has none.
    breaker: Option<BreakerStateView>,
}

/// State of a breaker. `closed`: calls start as usual. `open`: no call starts. `half_open`: the pause is over, and one call
/// decides.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum BreakerWord {
    Closed,
    Open,
    HalfOpen,
}

/// The breaker of a host.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BreakerStateView {
    state: BreakerWord,
    /// Number of failed calls in a row.
    failures: u32,
    /// Since when it is open; null while it is closed.
    #[schema(value_type = Option<String>, format = DateTime)]
    since: Option<Moment>,
    /// Time of the last failed call; null while there is none.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_failure_at: Option<Moment>,
    /// Error of the last failed call; null while there is none.
    last_error: Option<String>,
    /// From when on one call may start; null while it is closed.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_call_at: Option<Moment>,
}

impl BreakerStateView {
    fn new(seen: Option<BreakerSeen>) -> Self {
        let Some(BreakerSeen { failures, failed_at, last_error, opened_at, next_call_at, half_open }) = seen else {
            return Self {
                state: BreakerWord::Closed,
                failures: 0,
                since: None,
                last_failure_at: None,
                last_error: None,
                next_call_at: None,
            };
        };
        Self {
            state: match (opened_at, half_open) {
                (None, _) => BreakerWord::Closed,
                (Some(_), true) => BreakerWord::HalfOpen,
                (Some(_), false) => BreakerWord::Open,
            },
            failures,
            since: opened_at.map(Moment),
            last_failure_at: Some(Moment(failed_at)),
            last_error,
            next_call_at: next_call_at.map(Moment),
        }
    }
}

/// Keys of a limit that have jobs.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct KeysAnswer {
    /// Keys in order.
    data: Vec<KeyView>,
    /// Value of `after` for the next page; null at the end.
    next: Option<String>,
}

impl From<Rate> for RateView {
    fn from(rate: Rate) -> Self {
        Self { starts: rate.starts, period_ms: rate.period_ms, burst: rate.burst }
    }
}

impl From<Bounds> for BoundsView {
    fn from(bounds: Bounds) -> Self {
        Self { concurrency: bounds.concurrency, rate: bounds.rate.map(Into::into), weight: bounds.weight }
    }
}

impl From<LimitSetting> for LimitView {
    fn from(set: LimitSetting) -> Self {
        let Limit { name, kind, queue, shared_by, fair, breaker, bounds, overrides } = set.limit;
        let breaker = breaker.map(|Breaker { failures, pause_ms, max_pause_ms }| BreakerView {
            failures,
            pause_ms,
            max_pause_ms,
        });
        Self {
            name: name.to_string(),
            kind: kind.map(|kind| kind.to_string()),
            queue: queue.map(|queue| queue.to_string()),
            shared_by,
            concurrency: bounds.concurrency,
            rate: bounds.rate.map(Into::into),
            fair,
            breaker,
            overrides: overrides.into_iter().map(|(key, bounds)| (key, bounds.into())).collect(),
            counted: set.counted,
            changed_at: Moment(set.changed.0),
            changed_by: set.changed.1.to_string(),
        }
    }
}

impl LimitBody {
    /// Check the limit. Return all problems at once.
    fn check(self, name: Name) -> Result<Limit, Vec<tickr_handlers::Problem>> {
        let mut problems = Vec::new();
        let mut name_of = |field: &str, text: Option<String>| {
            let parsed = text.map(|text| text.parse::<Name>()).transpose();
            parsed.unwrap_or_else(|wrong| {
                problems.push(tickr_handlers::Problem::at(format!("/{field}"), wrong.to_string()));
                None
            })
        };
        let (kind, queue) = (name_of("kind", self.kind), name_of("queue", self.queue));
        let shared_by = self.shared_by.unwrap_or_default();
        if self.fair && shared_by == SharedBy::All {
            let detail = "may not be true when all jobs share the limit".to_owned();
            problems.push(tickr_handlers::Problem::at("/fair", detail));
        }
        let bounds = bounds("", self.concurrency, self.rate, &mut problems);
        let breaker = self.breaker.map(|Object(body)| breaker(&body, shared_by, &mut problems));
        if self.overrides.len() > MAX_OVERRIDES {
            problems.push(tickr_handlers::Problem::at("/overrides", format!("must be at most {MAX_OVERRIDES}")));
        }
        if shared_by == SharedBy::All && !self.overrides.is_empty() {
            let detail = "may not be given when all jobs share the limit".to_owned();
            problems.push(tickr_handlers::Problem::at("/overrides", detail));
        }
        let mut overrides = BTreeMap::new();
        for (key, Object(body)) in self.overrides.into_iter().take(MAX_OVERRIDES) {
            let at = format!("/overrides/{}", key.replace('~', "~0").replace('/', "~1"));
            if key.is_empty() || key.len() > MAX_KEY_BYTES {
                problems.push(tickr_handlers::Problem::at(&at, format!("a key must be 1 to {MAX_KEY_BYTES} bytes")));
            } else if shared_by == SharedBy::Parent && key.contains('/') {
                let detail = "a parent is the part of a key before the first /".to_owned();
                problems.push(tickr_handlers::Problem::at(&at, detail));
            }
            if shared_by == SharedBy::Host && !is_host(&key) {
                let detail = "must be a host in lower case, with a port other than the usual one: example.com or \
                              example.com:8443"
                    .to_owned();
                problems.push(tickr_handlers::Problem::at(&at, detail));
            }
            let own = Bounds { weight: body.weight, ..self::bounds(&at, body.concurrency, body.rate, &mut problems) };
            if body.weight.is_some_and(|weight| !(1..=MAX_WEIGHT).contains(&weight)) {
                problems
                    .push(tickr_handlers::Problem::at(format!("{at}/weight"), format!("must be 1 to {MAX_WEIGHT}")));
            }
            if body.weight.is_some() && !self.fair {
                let detail = "may only be given when the limit is fair".to_owned();
                problems.push(tickr_handlers::Problem::at(format!("{at}/weight"), detail));
            }
            if own == Bounds::default() && problems.is_empty() {
                problems.push(tickr_handlers::Problem::at(&at, "must have concurrency, rate or weight".to_owned()));
            }
            overrides.insert(key, own);
        }
        if bounds == Bounds::default() && overrides.is_empty() && !self.fair && breaker.is_none() && problems.is_empty()
        {
            let detail = "must have concurrency, rate, fair, breaker or overrides".to_owned();
            problems.push(tickr_handlers::Problem::at("", detail));
        }
        if problems.is_empty() {
            Ok(Limit { name, kind, queue, shared_by, fair: self.fair, breaker, bounds, overrides })
        } else {
            Err(problems)
        }
    }
}

fn breaker(body: &BreakerBody, shared_by: SharedBy, problems: &mut Vec<tickr_handlers::Problem>) -> Breaker {
    let mut wrong =
        |place: &str, detail: String| problems.push(tickr_handlers::Problem::at(format!("/breaker{place}"), detail));
    if shared_by != SharedBy::Host {
        wrong("", "may only be given when the limit is shared by host".to_owned());
    }
    let usual = Breaker::default();
    let (failures, pause_ms) = (body.failures.unwrap_or(usual.failures), body.pause_ms.unwrap_or(usual.pause_ms));
    let max_pause_ms = body.max_pause_ms.unwrap_or(usual.max_pause_ms.max(pause_ms));
    if !(1..=Breaker::MAX_FAILURES).contains(&failures) {
        wrong("/failures", format!("must be 1 to {}", Breaker::MAX_FAILURES));
    }
    let (least, most) = (Breaker::MIN_PAUSE_MS, Breaker::MAX_PAUSE_MS);
    if !(least..=most).contains(&pause_ms) {
        wrong("/pause_ms", format!("must be {least} to {most}"));
    } else if !(pause_ms..=most).contains(&max_pause_ms) {
        wrong("/max_pause_ms", format!("must be {pause_ms}, the first pause, to {most}"));
    }
    Breaker { failures, pause_ms, max_pause_ms }
}

fn bounds(
    at: &str,
    concurrency: Option<u32>,
    rate: Option<Object<RateBody>>,
    problems: &mut Vec<tickr_handlers::Problem>,
) -> Bounds {
    let mut within = |field: &str, value: u32, least: u32, most: u32| {
        if !(least..=most).contains(&value) {
            problems.push(tickr_handlers::Problem::at(format!("{at}/{field}"), format!("must be {least} to {most}")));
        }
    };
    if let Some(concurrency) = concurrency {
        within("concurrency", concurrency, 1, MAX_BOUND);
    }
    let rate = rate.map(|Object(RateBody { starts, period_ms, burst })| {
        within("rate/starts", starts, 1, MAX_BOUND);
        within("rate/period_ms", period_ms, 1, MAX_PERIOD_MS);
        let burst = burst.unwrap_or_else(|| Rate::default_burst(starts, period_ms));
        within("rate/burst", burst, 0, MAX_BOUND);
        Rate { starts, period_ms, burst }
    });
    Bounds { concurrency, rate, weight: None }
}

fn missing(name: &Name) -> Problem {
    Problem::new(Code::NotFound, format!("there is no limit {name}"))
}

fn meanwhile(name: &Name, set: Option<&LimitSetting>) -> Problem {
    let detail = match set {
        Some(set) => format!(
            "{name} was changed by {} meanwhile and has the ETag \"{}\" now; nothing was changed",
            set.changed.1, set.version
        ),
        None => format!("there is no limit {name}; nothing was changed"),
    };
    Problem::new(Code::PreconditionFailed, detail)
}

fn shown(status: StatusCode, set: LimitSetting) -> Response {
    etag::with_tag(status, &etag::from_version(set.version), LimitView::from(set))
}

/// List the limits
#[utoipa::path(
    get, path = "/v1/limits", tag = "limits", operation_id = "list_limits",
    responses((status = 200, description = "The limits", body = LimitsAnswer))
)]
pub(super) async fn list(State(api): State<Api>) -> Result<Response, Problem> {
    let data = api.broker.store().listed_limits().await?.into_iter().map(Into::into).collect();
    Ok(json(StatusCode::OK, LimitsAnswer { data }))
}

/// Show a limit
#[utoipa::path(
    get, path = "/v1/limits/{name}", tag = "limits", operation_id = "show_limit",
    params(("name" = String, Path, description = "The limit", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")),
    responses(
        (status = 200, description = "The limit", body = LimitView, headers(("ETag" = String))),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(super) async fn show(State(api): State<Api>, NamePath(name): NamePath) -> Result<Response, Problem> {
    let set = find(&api, &name).await?;
    Ok(shown(StatusCode::OK, set))
}

async fn find(api: &Api, name: &Name) -> Result<LimitSetting, Problem> {
    let limits = api.broker.store().listed_limits().await?;
    limits.into_iter().find(|set| set.limit.name == *name).ok_or_else(|| missing(name))
}

/// Set a limit
///
/// The limit replaces the one with the same name, if there is one. It holds on every runner within 2 s. A lower limit
/// does not stop running jobs. No job of a new limit with a `concurrency` starts in the first three to six seconds,
/// because the attempts that run are counted first.
#[utoipa::path(
    put, path = "/v1/limits/{name}", tag = "limits", operation_id = "set_limit", request_body = LimitBody,
    params(
        ("name" = String, Path, description = "The limit", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$"),
        ("If-Match" = Option<String>, Header, description = "Only if the limit has one of these ETags",
            pattern = r#"^(\*|(W/)?"[!#-~]*"( *, *(W/)?"[!#-~]*")*)$"#),
        ("If-None-Match" = Option<String>, Header, description = "With `*`: only if there is no such limit",
            pattern = r"^\*$"),
    ),
    responses(
        (status = 200, description = "The limit is changed, or was so already", body = LimitView, headers(("ETag" = String))),
        (status = 201, description = "The limit is new", body = LimitView, headers(("ETag" = String))),
        (status = 412, description = "precondition_failed", body = Problem),
        (status = 422, description = "invalid_request, too_many", body = Problem),
    )
)]
pub(super) async fn put(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    NamePath(name): NamePath,
    expected: Preconditions,
    Body(body, _): Body<LimitBody>,
) -> Result<Response, Problem> {
    let condition = expected.condition(etag::version_of)?;
    let limit = body
        .check(name.clone())
        .map_err(|problems| Problem::new(Code::InvalidRequest, "invalid limit; `errors` says why").at("", problems))?;
    let (status, set) = match api.broker.store().set_limit(limit, condition, &who).await? {
        LimitOutcome::Done(set, true) => (StatusCode::CREATED, set),
        LimitOutcome::Done(set, false) | LimitOutcome::Unchanged(set) => (StatusCode::OK, set),
        LimitOutcome::Meanwhile(set) => return Err(meanwhile(&name, set.as_ref())),
        LimitOutcome::TooMany => {
            return Err(Problem::new(Code::TooMany, format!("there are {MAX_LIMITS} limits already")));
        }
    };
    // This process follows the limit at once, the others within two seconds.
    api.operator_settings.refresh().await?;
    Ok(shown(status, set))
}

/// Remove a limit
///
/// Jobs that wait for it start within a few seconds, unless another limit holds them back.
#[utoipa::path(
    delete, path = "/v1/limits/{name}", tag = "limits", operation_id = "remove_limit",
    params(
        ("name" = String, Path, description = "The limit", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$"),
        ("If-Match" = Option<String>, Header, description = "Only if the limit has one of these ETags",
            pattern = r#"^(\*|(W/)?"[!#-~]*"( *, *(W/)?"[!#-~]*")*)$"#),
    ),
    responses(
        (status = 204, description = "The limit is removed"),
        (status = 404, description = "not_found", body = Problem),
        (status = 412, description = "precondition_failed", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(super) async fn remove(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    NamePath(name): NamePath,
    seen: IfMatch,
) -> Result<Response, Problem> {
    let condition = seen.condition(etag::version_of)?;
    match api.broker.store().remove_limit(&name, condition, &who).await? {
        Ok(_) => {}
        Err(None) => return Err(missing(&name)),
        Err(Some(set)) => return Err(meanwhile(&name, Some(&set))),
    }
    api.operator_settings.refresh().await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Page of the keys of a limit.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct KeysQuery {
    /// Only keys behind this one: `next` of the page before.
    #[param(max_length = 255)]
    after: Option<String>,
}

/// List the keys of a limit that have jobs
///
/// A key is listed while jobs of it run or wait for the limit, and while its breaker is open.
#[utoipa::path(
    get, path = "/v1/limits/{name}/keys", tag = "limits", operation_id = "list_limit_keys",
    params(
        KeysQuery,
        ("name" = String, Path, description = "The limit", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$"),
    ),
    responses(
        (status = 200, description = "The keys, 200 at most", body = KeysAnswer),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(super) async fn keys(
    State(api): State<Api>,
    NamePath(name): NamePath,
    QueryParams(asked): QueryParams<KeysQuery>,
) -> Result<Response, Problem> {
    check_key(asked.after.as_deref())?;
    let set = find(&api, &name).await?;
    let store = api.broker.store().clone();
    let mut used = run_with_seat(&api, async move { store.limit_keys_in_use(&name, asked.after).await }).await?;
    let more = used.len() > PAGE;
    used.truncate(PAGE);
    let next = used.last().filter(|_| more).map(|last| last.key.clone());
    let has_breaker = set.limit.breaker.is_some();
    let view = |KeyUse { key, running, parked, parked_since, breaker }: KeyUse| {
        let bounds = set.limit.bounds_of(&key);
        KeyView {
            concurrency: bounds.concurrency,
            rate: bounds.rate.map(Into::into),
            key,
            running,
            parked,
            parked_since: parked_since.map(Moment),
            breaker: has_breaker.then(|| BreakerStateView::new(breaker)),
        }
    };
    Ok(json(StatusCode::OK, KeysAnswer { data: used.into_iter().map(view).collect(), next }))
}

/// The host whose breaker is to be closed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CloseBreakerBody {
    /// The host, as the keys of the limit name it.
    #[schema(min_length = 1, max_length = 255)]
    host: String,
}

/// Outcome of a request to close a breaker.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CloseBreakerAnswer {
    host: String,
    /// True if the breaker was open, and is closed now. False if it was not open.
    closed: bool,
}

/// Close the breaker of a host
///
/// The jobs of the host start as the limit allows. Failures are counted anew.
#[utoipa::path(
    post, path = "/v1/limits/{name}/close-breaker", tag = "limits", operation_id = "close_breaker",
    request_body = CloseBreakerBody,
    params(("name" = String, Path, description = "The limit", pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")),
    responses(
        (status = 200, description = "The breaker is closed", body = CloseBreakerAnswer),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(super) async fn close_breaker(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    NamePath(name): NamePath,
    Body(body, _): Body<CloseBreakerBody>,
) -> Result<Response, Problem> {
    let host = body.host;
    if host.is_empty() || host.len() > MAX_KEY_BYTES {
        let here = tickr_handlers::Problem::at("/host", format!("must be 1 to {MAX_KEY_BYTES} bytes"));
        return Err(Problem::new(Code::InvalidRequest, "invalid host; `errors` says why").at("", vec![here]));
    }
    find(&api, &name).await?;
    let gone = api.broker.store().close_breaker(LimitKey { limit: name, key: host.clone() }, &who).await?;
    let closed = gone.is_some();
    for job in gone.iter().flatten() {
        api.broker.hint_released(job);
    }
    Ok(json(StatusCode::OK, CloseBreakerAnswer { host, closed }))
}
