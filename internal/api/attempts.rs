//! `/v1/attempts`: reports about attempts that other systems finish, and their verdicts.
//!
//! The finish key in the path is the right to do so; an API key is not needed.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{FromRequest as _, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::http::auth::AuthMethod;
use crate::http::body::{PartsBody, PathText, forget_body};
use crate::http::failed_logins::Peer;
use crate::http::follow_ups::{FollowUpBody, FollowUpRights};
use crate::http::problem::{Code, Problem};
use crate::view::{Moment, StateWord};
use crate::{Api, json};
use tickr_broker::Finished;
use tickr_handlers::{FinishKey, FollowUp, KnownKind, RemoteVerdict, sent_follow_ups, wrong_json};
use tickr_job::{JobId, Name, ProgressReport, State as JobState, limits};
use tickr_store::StoreError;

/// Longest note with the progress, in characters.
const MAX_NOTE: usize = 120;
/// Longest error, in characters.
const MAX_ERROR: usize = 2_000;

/// What a system says about an attempt on which it works.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReportBody {
    /// Progress in percent, 0 to 100. Left out, it stays what was reported before, at first 0.
    #[schema(minimum = 0, maximum = 100)]
    percent: Option<f64>,
    /// Short description of the progress, at most 120 characters. Left out, the one before stays; an empty one removes
    /// it.
    #[schema(max_length = 120)]
    note: Option<String>,
    /// JSON with which the next attempt begins if this one fails, at most 64 KiB and 64 levels. A null that is sent
    /// replaces an earlier checkpoint, too.
    #[serde(default, deserialize_with = "tickr_handlers::sent_checkpoint")]
    #[schema(value_type = Option<serde_json::Value>)]
    checkpoint: Option<Box<RawValue>>,
}

/// The answer to a report.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReportAnswer {
    /// The job.
    #[schema(format = "uuid")]
    job: String,
    /// True when a client has asked the job to stop. Stop the work and finish the attempt as `failed`: the job is then
    /// cancelled.
    cancel_requested: bool,
    /// The attempt times out at this moment, unless it is reported on or finished before. Null while a callback is not
    /// answered.
    #[schema(value_type = Option<String>, format = DateTime)]
    until: Option<Moment>,
}

/// Report on an attempt
///
/// It keeps the attempt from timing out, shows its progress, and tells whether the job was cancelled.
#[utoipa::path(
    post, path = "/v1/attempts/{key}/report", tag = "attempts", operation_id = "report_on_attempt",
    params(("key" = String, Path, description = "The finish key")),
    request_body = ReportBody,
    responses(
        (status = 200, description = "The attempt is under way", body = ReportAnswer),
        (status = 404, description = "not_found: no attempt has this finish key", body = Problem),
        (status = 409, description = "attempt_ended", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(super) async fn report(
    State(api): State<Api>,
    peer: Option<Extension<Peer>>,
    PathText(key): PathText,
    request: Request,
) -> Result<Response, Problem> {
    let (digest, body) = body_for_key(&api, peer, &key, request).await?;
    let ReportBody { percent, note, checkpoint } = body;
    let mut problems = Vec::new();
    if percent.is_some_and(|percent| !(0.0..=100.0).contains(&percent)) {
        problems.push(tickr_handlers::Problem::at("/percent", "must be 0 to 100"));
    }
    if note.as_ref().is_some_and(|note| note.chars().count() > MAX_NOTE || note.chars().any(char::is_control)) {
        problems
            .push(tickr_handlers::Problem::at("/note", "must have at most 120 characters, and no control characters"));
    }
    if checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.get().len() > limits::MAX_CHECKPOINT_BYTES) {
        problems.push(tickr_handlers::Problem::at("/checkpoint", "must have at most 65536 bytes"));
    }
    if let Some(detail) = checkpoint.as_deref().and_then(wrong_json) {
        problems.push(tickr_handlers::Problem::at("/checkpoint", detail));
    }
    if !problems.is_empty() {
        return Err(Problem::new(Code::InvalidRequest, "invalid report; `errors` says why").at("", problems));
    }
    let progress = (percent.is_some() || note.is_some()).then_some(ProgressReport { percent, note });
    let checkpoint = checkpoint.map(|checkpoint| Arc::from(Box::<str>::from(checkpoint)));
    match api.broker.report_on(digest, progress, checkpoint).await? {
        Some((id, Some(reported))) => {
            let cancel_requested = reported.cancel_requested;
            let answer = ReportAnswer { job: id.to_string(), cancel_requested, until: reported.until.map(Moment) };
            Ok(json(StatusCode::OK, answer))
        }
        Some((id, None)) => Err(ended(id)),
        None => Err(unknown(&api, peer).await),
    }
}

/// The verdict of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(rename_all = "snake_case")]
pub(super) enum FinishVerdict {
    Succeeded,
    Failed,
    Rejected,
    Snoozed,
    Released,
}

/// The end of an attempt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FinishBody {
    /// `succeeded`; `failed`: another attempt may succeed; `rejected`: no attempt can succeed; `snoozed`: the job runs again
    /// after `delay_ms`, and no attempt is used; `released`: the job runs again at once, and no attempt is used.
    verdict: FinishVerdict,
    /// Result to store with the job, at most 256 KiB of JSON and 64 levels. Only with `succeeded`.
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Box<RawValue>>,
    /// Why the attempt did not succeed, for operators: at most 2,000 characters, without secrets. Required with `failed`,
    /// `rejected` and `snoozed`.
    #[schema(max_length = 2_000)]
    error: Option<String>,
    /// Time until the job runs again, in milliseconds. Required with `snoozed`. With `failed` it replaces the backoff.
    #[schema(minimum = 1_000, maximum = 604_800_000)]
    delay_ms: Option<u64>,
    /// JSON with which the next attempt begins, at most 64 KiB and 64 levels. A null that is sent replaces an earlier
    /// checkpoint, too.
    #[serde(default, deserialize_with = "tickr_handlers::sent_checkpoint")]
    #[schema(value_type = Option<serde_json::Value>)]
    checkpoint: Option<Box<RawValue>>,
    /// Jobs to enqueue: they exist exactly if the attempt has this success. Only with `succeeded`. The finish key is no
    /// right to enqueue: the header `tickr-enqueue-authorization` holds an API key with the scope `enqueue`. Jobs of
    /// the kinds that the declaration of a kind with a receiver names need none.
    #[schema(value_type = Option<Vec<FollowUpBody>>, max_items = 1_000)]
    follow_ups: Option<Vec<Box<RawValue>>>,
}

/// The answer to the end of an attempt.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FinishAnswer {
    /// The job.
    #[schema(format = "uuid")]
    job: String,
    /// State of the job.
    #[schema(value_type = StateWord)]
    state: JobState,
}

/// Finish an attempt
///
/// A repeated call with the same verdict and the same `error` changes nothing, enqueues nothing more and has the same
/// answer, so a call that got no answer can be sent again. If the attempt ended otherwise, the answer is 409.
#[utoipa::path(
    post, path = "/v1/attempts/{key}/finish", tag = "attempts", operation_id = "finish_attempt",
    params(
        ("key" = String, Path, description = "The finish key"),
        ("tickr-enqueue-authorization" = Option<String>, Header,
            description = "`Bearer` and the API key that may enqueue the follow-up jobs of the success"),
    ),
    request_body = FinishBody,
    responses(
        (status = 200, description = "The attempt has this verdict", body = FinishAnswer),
        (status = 404, description = "not_found: no attempt has this finish key", body = Problem),
        (status = 409, description = "attempt_ended", body = Problem),
        (status = 422, description = "invalid_request", body = Problem),
    )
)]
pub(super) async fn finish(
    State(api): State<Api>,
    may_follow: FollowUpRights,
    peer: Option<Extension<Peer>>,
    PathText(key): PathText,
    request: Request,
) -> Result<Response, Problem> {
    let (digest, body) = body_for_key(&api, peer, &key, request).await?;
    let (finish, checkpoint, mut follow_ups) = read(body)?;
    let declared = if follow_ups.is_empty() { Vec::new() } else { declared_kinds(&api, digest).await? };
    let is_declared = |kind: &str| declared.iter().any(|name| name.as_str() == kind);
    let refused = if follow_ups.iter().all(|job| is_declared(&job.kind)) {
        Vec::new()
    } else {
        may_follow.open(&api).await?.check(&api, &mut follow_ups, is_declared)
    };
    let forbidden = !refused.is_empty();
    match api.broker.finish(digest, finish, checkpoint, follow_ups, refused).await? {
        Finished::Done { id, state } => Ok(json(StatusCode::OK, FinishAnswer { job: id.to_string(), state })),
        Finished::Refused(problems) if forbidden => {
            let detail = "this call may not enqueue its follow-up jobs; `errors` says why";
            Err(Problem::new(Code::Forbidden, detail).at("", problems))
        }
        Finished::Refused(problems) => Err(invalid_end(problems)),
        Finished::Ended(id) => Err(ended(id)),
        Finished::Unknown => Err(unknown(&api, peer).await),
    }
}

/// Return the kinds that may follow the attempt without an API key: those that the declaration of its kind names for
/// the receiver.
async fn declared_kinds(api: &Api, digest: [u8; 32]) -> Result<Vec<Name>, StoreError> {
    let Some(attempt) = api.broker.store().deferred_attempt(digest).await? else { return Ok(Vec::new()) };
    // A kind with a handler in this process executes the jobs of a declaration with its name.
    if !matches!(api.broker.registry().find(attempt.kind.as_str()), Some(KnownKind::Declared(_))) {
        return Ok(Vec::new());
    }
    let settings = api.operator_settings.now();
    let kind = settings.kinds.iter().find(|set| set.kind.name == attempt.kind);
    Ok(kind.and_then(|set| set.kind.push.as_ref()).map_or_else(Vec::new, |push| push.follow_ups.clone()))
}

fn invalid_end(problems: Vec<tickr_handlers::Problem>) -> Problem {
    Problem::new(Code::InvalidRequest, "invalid end of an attempt; `errors` says why").at("", problems)
}

/// A verdict, a checkpoint, and the jobs that follow.
type End = (RemoteVerdict, Option<Arc<str>>, Vec<FollowUp>);

fn read(body: FinishBody) -> Result<End, Problem> {
    let FinishBody { verdict, result, error, delay_ms, checkpoint, follow_ups } = body;
    let mut problems = Vec::new();
    let mut wrong = |pointer: &str, detail: &str| problems.push(tickr_handlers::Problem::at(pointer, detail));
    let succeeded = verdict == FinishVerdict::Succeeded;
    if result.is_some() && !succeeded {
        wrong("/result", "may only be given with the verdict succeeded");
    }
    if result.as_ref().is_some_and(|result| result.get().len() > limits::MAX_RESULT_BYTES) {
        wrong("/result", "must have at most 262144 bytes");
    }
    match &error {
        Some(_) if succeeded => wrong("/error", "may not be given with the verdict succeeded"),
        Some(text) if text.trim().is_empty() || text.chars().count() > MAX_ERROR => {
            wrong("/error", "must have 1 to 2000 characters");
        }
        None if !succeeded && verdict != FinishVerdict::Released => {
            wrong("/error", "must say why the attempt did not succeed");
        }
        Some(_) | None => {}
    }
    match (verdict, delay_ms) {
        (FinishVerdict::Snoozed | FinishVerdict::Failed, Some(1_000..=604_800_000)) => {}
        (FinishVerdict::Snoozed, _) | (FinishVerdict::Failed, Some(_)) => {
            wrong("/delay_ms", "must be 1000 to 604800000");
        }
        (_, Some(_)) => wrong("/delay_ms", "may only be given with the verdicts snoozed and failed"),
        (_, None) => {}
    }
    if checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.get().len() > limits::MAX_CHECKPOINT_BYTES) {
        wrong("/checkpoint", "must have at most 65536 bytes");
    }
    for (pointer, json) in [("/result", &result), ("/checkpoint", &checkpoint)] {
        if let Some(detail) = json.as_deref().and_then(wrong_json) {
            wrong(pointer, detail);
        }
    }
    let follow_ups = sent_follow_ups(follow_ups.as_deref(), succeeded).unwrap_or_else(|wrong| {
        problems.extend(wrong);
        Vec::new()
    });
    if !problems.is_empty() {
        return Err(invalid_end(problems));
    }
    let delay = delay_ms.map(Duration::from_millis);
    let verdict = match (verdict, error) {
        (FinishVerdict::Succeeded, _) => RemoteVerdict::Succeeded(result),
        (FinishVerdict::Failed, error) => RemoteVerdict::Failed(error.unwrap_or_default(), delay),
        (FinishVerdict::Rejected, error) => RemoteVerdict::Rejected(error.unwrap_or_default()),
        (FinishVerdict::Snoozed, error) => RemoteVerdict::Snoozed(delay.unwrap_or_default(), error.unwrap_or_default()),
        (FinishVerdict::Released, error) => {
            RemoteVerdict::Released(error.unwrap_or_else(|| "the system that worked on it gave it back".to_owned()))
        }
    };
    Ok((verdict, checkpoint.map(|checkpoint| Arc::from(Box::<str>::from(checkpoint))), follow_ups))
}

/// Read the body of a call with a finish key, and return it with the digest of the key. The body takes up to 1 MiB of
/// memory, and these calls need no API key. So it is read only for a finish key that an attempt has.
async fn body_for_key<T: DeserializeOwned>(
    api: &Api,
    peer: Option<Extension<Peer>>,
    key: &str,
    mut request: Request,
) -> Result<([u8; 32], T), Problem> {
    // The finish key is the right to this call, also when the API was open and is not any more.
    request.extensions_mut().remove::<AuthMethod>();
    let problem = match known_digest(api, key).await {
        Ok(Some(digest)) => {
            let PartsBody(body) = PartsBody::from_request(request, api).await?;
            return Ok((digest, body));
        }
        Ok(None) => None,
        Err(error) => Some(Problem::from(error)),
    };
    let refuse = async {
        match problem {
            Some(problem) => problem,
            None => unknown(api, peer).await,
        }
    };
    // A client that sends first would otherwise get a reset connection instead of the answer.
    let (problem, ()) = tokio::join!(refuse, forget_body(request.into_body()));
    Err(problem)
}

/// Return the digest of a finish key that an attempt has.
async fn known_digest(api: &Api, key: &str) -> Result<Option<[u8; 32]>, StoreError> {
    let Some(digest) = FinishKey::parse(key).map(|key| key.digest()) else { return Ok(None) };
    Ok(api.broker.store().deferred_attempt(digest).await?.map(|_| digest))
}

fn ended(id: JobId) -> Problem {
    Problem::new(Code::AttemptEnded, format!("this attempt of job {id} has ended, and nothing was changed"))
}

/// Slow down a client that guesses keys.
async fn unknown(api: &Api, peer: Option<Extension<Peer>>) -> Problem {
    tokio::time::sleep(api.failed_logins.record_failure(peer.map(|Extension(peer)| peer))).await;
    Problem::new(Code::NotFound, "no attempt has this finish key")
}
