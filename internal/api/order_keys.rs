//! `/v1/order-keys`: the order keys that have jobs.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::http::body::QueryParams;
use crate::http::cursor::check_key;
use crate::http::problem::Problem;
use crate::http::searches::run_with_seat;
use crate::view::Moment;
use crate::{Api, json};
use tickr_store::{OrderKeyHead, OrderKeyUse};

/// Page of the order keys.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OrderKeysQuery {
    /// Only order keys behind this one: `next` of the page before.
    #[param(max_length = 255)]
    after: Option<String>,
    /// If true, only order keys whose jobs wait for a failed one.
    #[serde(default)]
    #[param(required = false)]
    blocked: bool,
}

/// A page of order keys.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OrderKeysAnswer {
    /// The order keys, in the order of their bytes.
    data: Vec<OrderKeyView>,
    /// Give it as `after` to read the next page; null at the end. A page may be empty and have a next one.
    next: Option<String>,
}

/// An order key that has jobs.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OrderKeyView {
    key: String,
    /// The job at the head: the one that may run.
    head: HeadView,
    /// Number of jobs behind the head. Counted up to 10,000.
    waiting: u32,
    /// Due time of the first job behind the head; null without one.
    #[schema(value_type = Option<String>, format = DateTime)]
    waiting_since: Option<Moment>,
}

/// The job at the head of an order key.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct HeadView {
    #[schema(format = "uuid")]
    id: String,
    kind: String,
    queue: String,
    /// `failed` means that the jobs behind it wait until an operator deals with it.
    #[schema(value_type = HeadState)]
    state: &'static str,
    /// When it started if it executes, when it ended if it failed, and its due time otherwise.
    #[schema(value_type = String, format = DateTime)]
    since: Moment,
}

/// The state of the job at the head of an order key.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used; the value is the domain's own type")]
pub(crate) enum HeadState {
    Waiting,
    Retrying,
    Executing,
    Failed,
}

/// List the order keys that have jobs
///
/// A key is listed while jobs of it are unfinished, or a failed job of it holds the others up. A page reads 5,000 keys at
/// most.
#[utoipa::path(
    get, path = "/v1/order-keys", tag = "order keys", operation_id = "list_order_keys",
    params(OrderKeysQuery),
    responses(
        (status = 200, description = "The order keys, 200 at most", body = OrderKeysAnswer),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(super) async fn list(
    State(api): State<Api>,
    QueryParams(asked): QueryParams<OrderKeysQuery>,
) -> Result<Response, Problem> {
    check_key(asked.after.as_deref())?;
    let store = api.broker.store().clone();
    let page = run_with_seat(&api, async move { store.order_keys_in_use(asked.after, asked.blocked).await }).await?;
    let view = |OrderKeyUse { key, head, waiting, waiting_since }: OrderKeyUse| {
        let OrderKeyHead { id, kind, queue, state, since } = head;
        let head = HeadView {
            id: id.to_string(),
            kind: kind.as_str().to_owned(),
            queue: queue.as_str().to_owned(),
            state: state.as_str(),
            since: Moment(since),
        };
        OrderKeyView { key, head, waiting, waiting_since: waiting_since.map(Moment) }
    };
    let answer = OrderKeysAnswer { data: page.keys.into_iter().map(view).collect(), next: page.next };
    Ok(json(StatusCode::OK, answer))
}
