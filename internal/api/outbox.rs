//! `/v1/outbox`: jobs that other programs request with a plain INSERT in their own transactions.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::http::auth::RequestActor;
use crate::http::body::{IdPath, QueryParams};
use crate::http::cursor::{Listing, page_size};
use crate::http::problem::Problem;
use crate::http::searches::run_with_seat;
use crate::view::Moment;
use crate::{Api, json};
use tickr_job::Timestamp;
use tickr_store::{RejectedAction, RejectedRow, SourceState};

/// The state of the outbox.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OutboxAnswer {
    /// Number of committed rows that are not jobs yet. Counted up to 10,000.
    waiting: u32,
    /// When the oldest of the first 10,000 of them was inserted, or copied from an outbox of an application; null without
    /// one.
    #[schema(value_type = Option<String>, format = DateTime)]
    oldest_at: Option<Moment>,
    /// Number of rejected rows. Counted up to 10,000.
    rejected: u32,
    /// The runner that looks for rows all the time; null while nothing was inserted for ten minutes.
    leader: Option<String>,
    /// The outboxes in databases of applications, by name, at most 100.
    sources: Vec<SourceView>,
}

/// The outbox in the database of an application, as the runner that copies its rows last reported it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SourceView {
    /// Its name in the configuration.
    #[schema(example = "shop")]
    name: String,
    /// True if a runner copies its rows now.
    up: bool,
    /// The runner that copies its rows; null if none does.
    leader: Option<String>,
    /// Number of committed rows that waited there at `seen_at`. Counted up to 10,000.
    waiting: u32,
    /// When the oldest of the first 10,000 of them was inserted, by the clock of that server; null without one.
    #[schema(value_type = Option<String>, format = DateTime)]
    oldest_at: Option<Moment>,
    /// How long that row had waited at `seen_at`, in milliseconds, by the clock of that server.
    oldest_ms: u64,
    /// When the server last answered; null if it never did.
    #[schema(value_type = Option<String>, format = DateTime)]
    seen_at: Option<Moment>,
    /// Why it cannot be read now; null if it can. Without the URL and the password.
    error: Option<String>,
    /// Since when it cannot be read.
    #[schema(value_type = Option<String>, format = DateTime)]
    failing_since: Option<Moment>,
}

impl From<SourceState> for SourceView {
    fn from(state: SourceState) -> Self {
        Self {
            up: state.is_up(),
            name: state.name,
            leader: state.leader,
            waiting: state.backlog.waiting,
            oldest_at: state.backlog.oldest_at.map(Moment),
            oldest_ms: state.backlog.oldest_us / 1_000,
            seen_at: state.seen_at.map(Moment),
            error: state.error,
            failing_since: state.failing_since.map(Moment),
        }
    }
}

/// Show the state of the outbox
#[utoipa::path(
    get, path = "/v1/outbox", tag = "outbox", operation_id = "show_outbox",
    responses((status = 200, description = "The state of the outbox", body = OutboxAnswer))
)]
pub(super) async fn show(State(api): State<Api>) -> Result<Response, Problem> {
    let store = api.broker.store().clone();
    let (state, sources) = run_with_seat(&api, async move {
        let state = store.outbox_state().await?;
        store.source_states().await.map(|sources| (state, sources))
    })
    .await?;
    let answer = OutboxAnswer {
        waiting: state.waiting,
        oldest_at: state.oldest_at.map(Moment),
        rejected: state.rejected,
        leader: state.leader,
        sources: sources.into_iter().map(SourceView::from).collect(),
    };
    Ok(json(StatusCode::OK, answer))
}

/// Move the rows of the outbox now
///
/// Call it after the COMMIT, so that the jobs start within milliseconds. Nothing is lost without it: a runner finds the rows
/// by itself. The process also copies the rows of the outboxes in databases of applications.
#[utoipa::path(
    post, path = "/v1/outbox/nudge", tag = "outbox", operation_id = "nudge_outbox",
    responses((status = 204, description = "This process moves the rows that are committed"))
)]
pub(super) async fn nudge(State(api): State<Api>) -> Response {
    api.broker.nudge_outbox();
    StatusCode::NO_CONTENT.into_response()
}

/// Page of the rejected rows.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RejectedQuery {
    /// Number of rows in one page, 1 to 200.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the last page.
    cursor: Option<String>,
}

/// A page of rejected rows.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RejectedAnswer {
    /// The rows, the one that was rejected last first.
    data: Vec<RejectedView>,
    /// Cursor of the next page; null on the last page.
    next_cursor: Option<String>,
}

/// A row of the outbox that cannot become a job.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RejectedView {
    /// The id that the application chose.
    #[schema(format = "uuid")]
    id: String,
    /// The outbox of an application from which the row was copied; null for a row that was inserted in the database of
    /// tickr.
    source: Option<String>,
    kind: String,
    queue: Option<String>,
    /// The payload as the application wrote it, 64 KiB of it at most.
    payload: String,
    /// The other options as the application wrote them.
    options: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    execute_at: Option<Moment>,
    /// When the row was inserted, by the clock of the server in which that was.
    #[schema(value_type = String, format = DateTime)]
    created_at: Moment,
    #[schema(value_type = String, format = DateTime)]
    rejected_at: Moment,
    /// Why it cannot become a job.
    reason: String,
}

impl From<RejectedRow> for RejectedView {
    fn from(rejected: RejectedRow) -> Self {
        let RejectedRow { row, rejected_at, reason } = rejected;
        Self {
            id: row.id.hyphenated().to_string(),
            source: row.copied_from,
            kind: row.kind,
            queue: row.queue,
            payload: row.payload,
            options: row.options,
            execute_at: row.execute_at.map(Moment),
            created_at: Moment(row.created_at),
            rejected_at: Moment(rejected_at),
            reason,
        }
    }
}

/// List rejected rows of the outbox, the newest first
#[utoipa::path(
    get, path = "/v1/outbox/rejected", tag = "outbox", operation_id = "list_rejected_rows", params(RejectedQuery),
    responses(
        (status = 200, description = "A page of rejected rows", body = RejectedAnswer),
        (status = 422, description = "invalid_request, invalid_cursor", body = Problem),
    )
)]
pub(super) async fn rejected(
    State(api): State<Api>,
    QueryParams(asked): QueryParams<RejectedQuery>,
) -> Result<Response, Problem> {
    let limit = page_size(asked.limit)?;
    let listing = Listing::new("rejected rows", &"");
    let before = listing.place(asked.cursor.as_deref())?.map(|place| place_of(&place).ok_or_else(Listing::wrong));
    let before = before.transpose()?;
    let mut rows = api.broker.store().rejected_rows(before, limit + 1).await?;
    let more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    let place = |rejected: &RejectedRow| {
        let at = rejected.rejected_at.timestamp_micros().to_be_bytes();
        listing.cursor(&[at.as_slice(), rejected.row.id.as_bytes()].concat())
    };
    let next_cursor = rows.last().filter(|_| more).map(place);
    Ok(json(StatusCode::OK, RejectedAnswer { data: rows.into_iter().map(RejectedView::from).collect(), next_cursor }))
}

/// Read the position of a cursor: the time and the id of a row.
fn place_of(place: &[u8]) -> Option<(Timestamp, uuid::Uuid)> {
    let (at, id) = place.split_at_checked(8)?;
    let at = Timestamp::from_timestamp_micros(i64::from_be_bytes(at.try_into().ok()?));
    let at = at.and_then(tickr_job::query::storable)?;
    Some((at, uuid::Uuid::from_slice(id).ok()?))
}

/// Move a rejected row back to the outbox
///
/// After a fix: a kind that was missing is there, or a newer version reads the payload. If it is wrong again, it is
/// rejected again.
#[utoipa::path(
    post, path = "/v1/outbox/rejected/{id}/replay", tag = "outbox", operation_id = "replay_rejected_row",
    params(("id" = Uuid, Path, description = "The row's id")),
    responses(
        (status = 204, description = "The row is in the outbox again"),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
    )
)]
pub(super) async fn replay(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    IdPath(id): IdPath,
) -> Result<Response, Problem> {
    if !api.broker.store().act_on_rejected(id.uuid(), RejectedAction::Replay, &who).await? {
        return Err(Problem::not_found("rejected row", id));
    }
    api.broker.nudge_outbox();
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Remove a rejected row
#[utoipa::path(
    delete, path = "/v1/outbox/rejected/{id}", tag = "outbox", operation_id = "discard_rejected_row",
    params(("id" = Uuid, Path, description = "The row's id")),
    responses(
        (status = 204, description = "The row is gone"),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
    )
)]
pub(super) async fn discard(
    State(api): State<Api>,
    RequestActor(who): RequestActor,
    IdPath(id): IdPath,
) -> Result<Response, Problem> {
    if api.broker.store().act_on_rejected(id.uuid(), RejectedAction::Discard, &who).await? {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Err(Problem::not_found("rejected row", id))
}
