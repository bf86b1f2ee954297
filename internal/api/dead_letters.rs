//! `/v1/dead-letters`: dead letters, which are jobs that failed for good, singly and in groups; replay and discard.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use chrono::DateTime;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use crate::http::auth::RequestActor;
use crate::http::body::{Body, IdPath, OptionalBody, PathText, QueryParams};
use crate::http::cursor::{Listing, page_size};
use crate::http::filter::{filter_query, refused};
use crate::http::idempotency::{Key, ResponseContent, replay_stored, respond_to_outcome};
use crate::http::problem::{Code, Problem};
use crate::http::searches::run_with_seat;
use crate::jobs::{ListAnswer, json_answer};
use crate::view::{DeadLetterStatusWord, JobView, Moment};
use crate::{Api, json};
use tickr_broker::Invalid;
use tickr_job::{DeadLetterStatus, Filter, Fingerprint, Job, JobId, Name, State as JobState, limits, normalise};
use tickr_store::{Accepted, IdempotentOutcome, JobPage, Original, Refusal, UpdatedJob};

filter_query! {
    /// Filter and page of a listing of dead letters.
    DeadLettersQuery {
        /// Only dead letters with this status. Default: `open`.
        #[param(value_type = Option<DeadLetterStatusWord>, inline)]
        status: Option<String>,
        /// Order. `job`: the newest job first, page by page. `time`: the latest failure, replay or discard first; then
        /// there is only one page, and `status` and `limit` are the only parameters allowed.
        #[param(pattern = "^(job|time)$", default = "job")]
        order: Option<String>,
        /// Number of jobs in one page, 1 to 200.
        #[param(minimum = 1, maximum = 200, default = 50)]
        limit: Option<u32>,
        /// `next_cursor` of the last page. It is valid only with the same filter.
        cursor: Option<String>,
    }
}

/// List dead letters, newest job first
///
/// Failed jobs that were not replayed or discarded, or those with another status. The filters are those of the listing
/// of jobs.
#[utoipa::path(
    get, path = "/v1/dead-letters", tag = "dead letters", operation_id = "list_dead_letters",
    params(DeadLettersQuery),
    responses(
        (status = 200, description = "A page of failed jobs, without payloads and attempts", body = ListAnswer),
        (status = 422, description = "invalid_request, invalid_cursor", body = Problem),
    )
)]
pub(super) async fn list(
    State(api): State<Api>,
    QueryParams(asked): QueryParams<DeadLettersQuery>,
) -> Result<Response, Problem> {
    let mut words = asked.words();
    words.fields.push(("dead_letter", asked.status.as_deref()));
    let mut filter = words.read(api.broker.store().clock().now(), "").map_err(refused)?;
    let status = *filter.dead_letter.get_or_insert(DeadLetterStatus::Open);
    let limit = page_size(asked.limit)?;
    match asked.order.as_deref() {
        None | Some("job") => {}
        Some("time") => {
            let plain = filter == Filter { dead_letter: Some(status), ..Filter::default() };
            if !plain || asked.cursor.is_some() {
                let detail =
                    "time allows only the parameters status and limit; leave out the other parameters, or order";
                return Err(refused(vec![tickr_handlers::Problem::at("order", detail)]));
            }
            return latest(&api, status, limit).await;
        }
        Some(_) => return Err(refused(vec![tickr_handlers::Problem::at("order", "must be job or time")])),
    }
    let listing = Listing::new("dead letters", &words);
    let before = listing.id(asked.cursor.as_deref())?.map(JobId::from_uuid);
    let store = api.broker.store().clone();
    let page = run_with_seat(&api, async move { store.list(filter, before, limit).await }).await?;
    Ok(json(StatusCode::OK, ListAnswer::new(page, &listing)))
}

/// List the dead letters that got this status last.
async fn latest(api: &Api, status: DeadLetterStatus, limit: u32) -> Result<Response, Problem> {
    let store = api.broker.store();
    let ids = store.latest_dead_letters(status, limit).await?;
    let filter = Filter { ids: ids.clone(), dead_letter: Some(status), ..Filter::default() };
    let mut jobs = if ids.is_empty() { Vec::new() } else { store.list(filter, None, limit).await?.jobs };
    let place = |job: &Job| ids.iter().position(|id| *id == job.id);
    jobs.sort_by_key(place);
    let looked_at = jobs.len() as u64;
    let page = JobPage { jobs, next: None, looked_at };
    Ok(json(StatusCode::OK, ListAnswer::new(page, &Listing::new("dead letters", &status))))
}

/// Filter and page of a listing of groups.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct GroupsQuery {
    /// Only groups of this kind.
    #[param(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
    kind: Option<String>,
    /// Number of groups in one page, 1 to 200.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the last page. It is valid only with the same filter.
    cursor: Option<String>,
}

/// A group: open dead letters with the same cause.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct GroupView {
    /// Id of the group: 16 hexadecimal digits of a digest of kind and error.
    fingerprint: String,
    kind: String,
    /// Error of the group, without the parts that differ from job to job.
    error: String,
    /// Number of open dead letters.
    open: u64,
    /// True when there may be more than were counted; `first_seen` may then also be too late.
    capped: bool,
    /// Time of the first failure in the group.
    #[schema(value_type = String, format = DateTime)]
    first_seen: Moment,
    #[schema(value_type = String, format = DateTime)]
    last_seen: Moment,
    /// Number of counted open dead letters that failed in each of the last 24 hours, the oldest hour first; the last
    /// hour ends now.
    #[schema(min_items = 24, max_items = 24)]
    recent: [u64; 24],
    /// Id of the newest job of the group.
    sample: String,
    /// Beginning of the original error of that job.
    sample_error: String,
}

/// A page of groups.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct GroupsAnswer {
    /// Groups, the one with the latest failure first.
    data: Vec<GroupView>,
    /// Cursor of the next page; null on the last page.
    next_cursor: Option<String>,
}

/// List groups of dead letters
///
/// Open dead letters with the same cause form a group. The group with the latest failure comes first. The newest
/// hundred thousand dead letters are counted.
#[utoipa::path(
    get, path = "/v1/dead-letters/groups", tag = "dead letters", operation_id = "list_dead_letter_groups",
    params(GroupsQuery),
    responses(
        (status = 200, description = "A page of groups", body = GroupsAnswer),
        (status = 422, description = "invalid_request, invalid_cursor", body = Problem),
    )
)]
pub(super) async fn groups(
    State(api): State<Api>,
    QueryParams(asked): QueryParams<GroupsQuery>,
) -> Result<Response, Problem> {
    let kind: Option<Name> = asked
        .kind
        .as_deref()
        .map(str::parse)
        .transpose()
        .map_err(|e: tickr_job::InvalidName| refused(vec![tickr_handlers::Problem::at("kind", e.to_string())]))?;
    let limit = page_size(asked.limit)?;
    let listing = Listing::new("dead letter groups", &kind);
    let after = listing.place(asked.cursor.as_deref())?.map(|place| read_place(&place)).transpose()?;
    let store = api.broker.store().clone();
    let mut found = run_with_seat(&api, async move { store.dead_letter_groups(kind, after, limit + 1).await }).await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let next_cursor = found.last().filter(|_| more).map(|last| {
        let place = [&last.last_seen.timestamp_micros().to_be_bytes()[..], last.fingerprint.bytes()].concat();
        listing.cursor(&place)
    });
    let data = found.into_iter().map(|group| GroupView {
        fingerprint: group.fingerprint.to_string(),
        kind: group.kind.to_string(),
        error: normalise(&group.error),
        open: group.open,
        capped: group.capped,
        first_seen: Moment(group.first_seen),
        last_seen: Moment(group.last_seen),
        recent: group.recent,
        sample: group.sample.to_string(),
        sample_error: group.error,
    });
    Ok(json(StatusCode::OK, GroupsAnswer { data: data.collect(), next_cursor }))
}

fn read_place(place: &[u8]) -> Result<(tickr_job::Timestamp, Fingerprint), Problem> {
    let read = || {
        let (micros, fingerprint) = place.split_at_checked(8)?;
        let moment = DateTime::from_timestamp_micros(i64::from_be_bytes(micros.try_into().ok()?));
        let moment = moment.and_then(tickr_job::query::storable)?;
        Some((moment, Fingerprint::from_bytes(fingerprint.try_into().ok()?)))
    };
    read()
        .ok_or_else(|| Problem::new(Code::InvalidCursor, "send next_cursor of a page with the same filter, unchanged"))
}

/// A group with the dead letters of every status.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct GroupAnswer {
    fingerprint: String,
    kind: String,
    /// Error of the group, without the parts that differ from job to job.
    error: String,
    open: u64,
    replayed: u64,
    discarded: u64,
    /// True when there may be more than were counted.
    capped: bool,
    /// Time of the first failure in the group.
    #[schema(value_type = String, format = DateTime)]
    first_seen: Moment,
    #[schema(value_type = String, format = DateTime)]
    last_seen: Moment,
    /// Id of the newest job of the group that is open; without one, of the newest job.
    sample: String,
    /// Beginning of the original error of that job.
    sample_error: String,
}

/// Show a group of dead letters
#[utoipa::path(
    get, path = "/v1/dead-letters/groups/{fingerprint}", tag = "dead letters", operation_id = "show_dead_letter_group",
    params(("fingerprint" = String, Path, description = "The group: 16 hex digits", pattern = "^[0-9a-f]{16}$")),
    responses(
        (status = 200, description = "The group", body = GroupAnswer),
        (status = 404, description = "not_found", body = Problem),
        (status = 422, description = "invalid_id", body = Problem),
    )
)]
pub(super) async fn group(State(api): State<Api>, PathText(text): PathText) -> Result<Response, Problem> {
    let fingerprint: Fingerprint =
        text.parse().map_err(|e: tickr_job::InvalidFingerprint| Problem::new(Code::InvalidId, e.to_string()))?;
    let store = api.broker.store().clone();
    let group = run_with_seat(&api, async move { store.dead_letter_group(fingerprint).await }).await?;
    let group = group.ok_or_else(|| Problem::not_found("group", fingerprint))?;
    let of = |status: DeadLetterStatus| group.statuses.get(status.as_str()).copied().unwrap_or(0);
    let answer = GroupAnswer {
        fingerprint: fingerprint.to_string(),
        kind: group.kind.to_string(),
        error: normalise(&group.error),
        open: of(DeadLetterStatus::Open),
        replayed: of(DeadLetterStatus::Replayed),
        discarded: of(DeadLetterStatus::Discarded),
        capped: group.capped,
        first_seen: Moment(group.seen.0),
        last_seen: Moment(group.seen.1),
        sample: group.sample.to_string(),
        sample_error: group.error,
    };
    Ok(json(StatusCode::OK, answer))
}

/// The body of a request to replay a dead letter.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplayBody {
    /// Payload of the new job. Default: that of the failed job.
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
}

/// Replay a failed job
///
/// Accept a new job that does the same work, with a full set of attempts. The failed job stays as it is, and each of
/// the two names the other. The payload is checked again. To let the same job run again, use retry. Use it also when
/// more than 10,000 jobs wait for the failed one: a replay of it is refused as `wrong_state`.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/replay", tag = "dead letters", operation_id = "replay_job", request_body = ReplayBody,
    params(("id" = Uuid, Path, description = "The failed job's id")),
    responses(
        (status = 201, description = "The new job, accepted and durable", body = JobView, headers(("Location" = String))),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "wrong_state, already_replayed, unique_key_taken: `holder` has the unique key", body = Problem),
        (status = 422, description = "invalid_id, invalid_request, unknown_kind, invalid_payload", body = Problem),
    )
)]
pub(super) async fn replay(
    State(api): State<Api>,
    IdPath(id): IdPath,
    RequestActor(who): RequestActor,
    key: Key,
    OptionalBody(body, text): OptionalBody<ReplayBody>,
) -> Result<Response, Problem> {
    let idempotent = key.request(&format!("POST /v1/jobs/{id}/replay"), Some(&text))?;
    let original = match api.broker.store().job(id).await? {
        Some((job, _)) => original(job),
        None => return replay_stored(&api, idempotent, ResponseContent::Job, Problem::not_found("job", id)).await,
    };
    let job = match api.broker.remake(&original, body.payload) {
        Ok(job) => job,
        Err(invalid) => {
            return replay_stored(&api, idempotent, ResponseContent::Job, unfit(invalid)).await;
        }
    };
    let made = job.clone();
    let build =
        move |accepted: &Accepted| json_answer(StatusCode::CREATED, &JobView::accepted(&made, accepted, Vec::new()));
    let outcome = api.broker.replay(id, job, &who, idempotent, Arc::new(build)).await?;
    respond_to_outcome(outcome, ResponseContent::Job, |refused| Err(refusal(id, refused.err())))
}

fn original(job: Job) -> Original {
    Original {
        id: job.id,
        kind: job.kind,
        queue: job.queue,
        priority: job.priority,
        max_attempts: job.max_attempts,
        unique_key: job.unique_key,
        host: job.host,
        options: job.options,
        payload: job.payload.unwrap_or_default(),
    }
}

/// Make the problem for a dead letter that cannot be accepted again as it is. The body has no field for the kind, so a
/// kind that is gone is a fault of the request as a whole.
fn unfit(invalid: Invalid) -> Problem {
    if !matches!(invalid, Invalid::UnknownKind { .. }) {
        return Problem::invalid("", invalid);
    }
    let here = tickr_handlers::Problem::at("", "the kind of the failed job is not registered; see /v1/kinds");
    Problem::new(Code::UnknownKind, invalid.to_string()).at("", vec![here])
}

fn refusal(id: JobId, refused: Option<Refusal>) -> Problem {
    match refused {
        None | Some(Refusal::Missing) => Problem::not_found("job", id),
        Some(Refusal::State(state)) => {
            let detail = format!("only a failed job can be replayed or discarded; this one is {state}");
            Problem::new(Code::WrongState, detail).in_state(state)
        }
        Some(Refusal::Replayed(made)) => {
            let mut problem =
                Problem::new(Code::AlreadyReplayed, format!("the dead letter was already replayed as job {made}"));
            problem.replayed_as = Some(made.to_string());
            problem
        }
        Some(Refusal::Discarded) => {
            Problem::new(Code::WrongState, "the dead letter was discarded; a retry of the job takes that back")
                .in_state(JobState::Failed)
        }
        Some(Refusal::UniqueKeyTaken { holder, state }) => {
            let detail = format!("job {holder} has the unique key and is {state}; nothing was written");
            Problem::new(Code::UniqueKeyTaken, detail).held_by_job(holder, state)
        }
        Some(many @ Refusal::ManyChildren) => {
            Problem::new(Code::WrongState, format!("job {id} cannot be replayed: {many}")).in_state(JobState::Failed)
        }
        Some(Refusal::Unfit(why)) => Problem::new(Code::InvalidPayload, why),
        Some(unreadable @ Refusal::Unreadable(_)) => {
            Problem::new(Code::InvalidRequest, format!("job {id} cannot be replayed: {unreadable}"))
        }
    }
}

/// The body of a request to discard a dead letter.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DiscardBody {
    /// Reason, stored with the dead letter and in the audit.
    #[schema(min_length = 1, max_length = 500)]
    reason: String,
}

/// Return the reason in the form that is stored, or the error in it.
pub(super) fn reason_of(reason: &str) -> Result<String, tickr_handlers::Problem> {
    let reason = reason.trim();
    if (1..=limits::MAX_REASON).contains(&reason.chars().count()) {
        Ok(reason.to_owned())
    } else {
        Err(tickr_handlers::Problem::at("/reason", format!("must be 1 to {} characters", limits::MAX_REASON)))
    }
}

/// Discard a failed job
///
/// Take the job out of the open dead letters, with a reason. The job can still be read, and is deleted after
/// `retention_discarded`.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/discard", tag = "dead letters", operation_id = "discard_job", request_body = DiscardBody,
    params(("id" = Uuid, Path, description = "The failed job's id")),
    responses(
        (status = 200, description = "Discarded", body = JobView),
        (status = 404, description = "not_found", body = Problem),
        (status = 409, description = "wrong_state, already_replayed", body = Problem),
        (status = 422, description = "invalid_id, invalid_request", body = Problem),
    )
)]
pub(super) async fn discard(
    State(api): State<Api>,
    IdPath(id): IdPath,
    RequestActor(who): RequestActor,
    key: Key,
    Body(body, text): Body<DiscardBody>,
) -> Result<Response, Problem> {
    let idempotent = key.request(&format!("POST /v1/jobs/{id}/discard"), Some(&text))?;
    let reason = reason_of(&body.reason)
        .map_err(|wrong| Problem::new(Code::InvalidRequest, "a discard needs a reason").at("", vec![wrong]))?;
    let build = |updated: &UpdatedJob| {
        json_answer(StatusCode::OK, &JobView::read(updated.job.clone(), Some(updated.attempts.clone())))
    };
    let outcome = api.broker.store().discard(id, reason, &who, idempotent, Arc::new(build)).await?;
    if matches!(&outcome, IdempotentOutcome::First { .. }) {
        api.broker.hint_heads(&[id]).await;
    }
    respond_to_outcome(outcome, ResponseContent::Job, |refused| Err(refusal(id, refused.err())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_of_a_kind_that_is_gone_names_no_field_of_the_body() {
        let gone = Invalid::UnknownKind { kind: "resize".to_owned(), known: "noop".to_owned() };
        let problem = unfit(gone);
        assert_eq!(problem.code, Code::UnknownKind);
        assert!(problem.detail.contains("resize"), "{}", problem.detail);
        let errors: Vec<(&str, &str)> =
            problem.errors.iter().map(|error| (error.pointer.as_str(), error.detail.as_str())).collect();
        assert_eq!(errors, [("", "the kind of the failed job is not registered; see /v1/kinds")]);
        let wrong = vec![tickr_handlers::Problem::at("/ms", "is missing")];
        let problem = unfit(Invalid::Payload { kind: "noop".parse().unwrap(), problems: wrong });
        assert_eq!((problem.code, problem.errors[0].pointer.as_str()), (Code::InvalidPayload, "/payload/ms"));
    }
}
