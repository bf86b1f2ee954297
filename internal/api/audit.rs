//! `/v1/audit`: the actions of operators.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::http::body::QueryParams;
use crate::http::cursor::{Listing, read_page_size};
use crate::http::problem::{Code, Problem};
use crate::http::range::read_moment;
use crate::http::searches::run_with_seat;
use crate::view::Moment;
use crate::{Api, json};
use tickr_store::{AuditFilter, AuditRecord};

/// Maximum length of a target; the column has this width.
const MAX_TARGET: usize = 255;

/// Filter and page of the audit.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditQuery {
    /// Only actions on this target: the id of a job, or the name of a queue, a schedule or an API key.
    #[param(max_length = 255)]
    target: Option<String>,
    /// Only actions at this time or later.
    #[param(example = "2026-11-01T10:00:00Z")]
    from: Option<String>,
    /// Only actions before this time.
    #[param(example = "2026-11-01T11:00:00Z")]
    to: Option<String>,
    /// Number of actions in one page, 1 to 200.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the last page. It is valid only with the same filter.
    cursor: Option<String>,
    /// Show what one bulk operation did to jobs as one action with `jobs`. The newest 20,000 actions are looked at, and
    /// there is one page: `more` says whether actions were left out.
    fold: Option<bool>,
}

/// A page of actions.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AuditAnswer {
    /// Actions, the newest first.
    data: Vec<ActView>,
    /// Cursor of the next page; null on the last page.
    next_cursor: Option<String>,
    /// With `fold`: true when earlier actions were left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    more: Option<bool>,
}

/// An action of an operator.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ActView {
    id: Uuid,
    /// Time of the action, by the clock of the database.
    #[schema(value_type = String, format = DateTime)]
    at: Moment,
    /// Caller: `key:<name>`, `token:<number>`, or `anyone` for an open API. In brackets the person that the caller said
    /// it acts for, if any.
    actor: String,
    /// Name of the action.
    #[schema(example = "job.cancel")]
    action: String,
    /// Id or name of the object of the action.
    target: String,
    /// Details of the action, depending on the action.
    detail: Option<Value>,
    /// With `fold`: number of jobs to which the bulk operation did this, or 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    jobs: Option<u64>,
}

impl From<AuditRecord> for ActView {
    fn from(done: AuditRecord) -> Self {
        Self {
            id: done.id,
            at: Moment(done.at),
            actor: done.actor.to_string(),
            action: done.action,
            target: done.target,
            detail: done.detail,
            jobs: None,
        }
    }
}

/// List the actions of operators, newest first
#[utoipa::path(
    get, path = "/v1/audit", tag = "system", operation_id = "list_audit", params(AuditQuery),
    responses(
        (status = 200, description = "A page of actions", body = AuditAnswer),
        (status = 422, description = "invalid_request, invalid_cursor", body = Problem),
        (status = 429, description = "overloaded", body = Problem),
    )
)]
pub(super) async fn list(
    State(api): State<Api>,
    QueryParams(asked): QueryParams<AuditQuery>,
) -> Result<Response, Problem> {
    let mut problems = Vec::new();
    let limit = read_page_size(asked.limit, &mut problems);
    if asked.target.as_ref().is_some_and(|target| target.chars().count() > MAX_TARGET) {
        problems.push(tickr_handlers::Problem::at("target", format!("must be at most {MAX_TARGET} characters")));
    }
    let from = read_moment("from", asked.from.as_deref(), &mut problems);
    let to = read_moment("to", asked.to.as_deref(), &mut problems);
    let fold = asked.fold == Some(true);
    if fold && asked.cursor.is_some() {
        problems.push(tickr_handlers::Problem::at("cursor", "a folded audit has one page".to_owned()));
    }
    if !problems.is_empty() {
        return Err(Problem::new(Code::InvalidRequest, "invalid listing; `errors` says why").at("", problems));
    }
    let target = asked.target.filter(|target| !target.is_empty());
    let store = api.broker.store().clone();
    if fold {
        let filter = AuditFilter { target, from, to };
        let found = run_with_seat(&api, async move { store.folded_audit(filter, limit).await }).await?;
        let view = |(done, jobs): (AuditRecord, u64)| ActView { jobs: Some(jobs), ..ActView::from(done) };
        let data = found.acts.into_iter().map(view).collect();
        return Ok(json(StatusCode::OK, AuditAnswer { data, next_cursor: None, more: Some(found.more) }));
    }
    // A cursor of a runner that knows no range stays valid without one.
    let listing = match (from, to) {
        (None, None) => Listing::new("audit", &target),
        range => Listing::new("audit", &(&target, range)),
    };
    let before = listing.id(asked.cursor.as_deref())?;
    // Read one row more than the page holds, to know whether there is another page.
    // The ids of a range begin and end some minutes beside it, and a bulk operation may have filled these minutes.
    let is_range = from.is_some() || to.is_some();
    let read = async move { store.audit(AuditFilter { target, from, to }, before, limit + 1).await };
    let mut done = if is_range { run_with_seat(&api, read).await? } else { read.await? };
    let more = done.len() > limit as usize;
    done.truncate(limit as usize);
    let next_cursor = done.last().filter(|_| more).map(|last| listing.cursor(last.id.as_bytes()));
    let data = done.into_iter().map(ActView::from).collect();
    Ok(json(StatusCode::OK, AuditAnswer { data, next_cursor, more: None }))
}
