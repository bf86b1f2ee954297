//! `Idempotency-Key`: a POST that is sent again with the same idempotency key is not carried out again (G8).
//!
//! An idempotency key belongs to the caller that sent it and to one request: the same call with the same body. Only
//! responses of requests that were carried out, all of them 2xx, are stored and sent again. A request that was refused
//! changed nothing; it may be sent again with the same idempotency key, also with another body.

use std::borrow::Cow;
use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{Header, OpenApi, RefOr, Required};

use crate::Api;
use crate::http::auth::CallerDigest;
use crate::http::etag;
use crate::http::problem::{Code, Problem, describe_problem};
use tickr_broker::IdempotencyKey;
use tickr_job::{JobId, limits};
use tickr_store::{Answer, IdempotentOutcome, IdempotentRequest};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// The idempotency key of a request, if it has one. An invalid one is reported only by [`request`](Key::request) and
/// [`given`](Key::given), after the body was read: if the server responds earlier, it may reset the connection while
/// the client still sends, and the response is lost.
pub(crate) struct Key(Result<Option<IdempotencyKey>, Problem>);

impl<S: Send + Sync> FromRequestParts<S> for Key {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let mut given = parts.headers.get_all(KEY).iter();
        let wrong = |detail: String| {
            let here = tickr_handlers::Problem::at("Idempotency-Key", detail);
            Problem::new(Code::InvalidRequest, "invalid header Idempotency-Key; `errors` says why").at("", vec![here])
        };
        let caller = parts.extensions.get::<CallerDigest>().map_or(&[][..], |caller| &caller.0);
        Ok(Self(match (given.next(), given.next()) {
            (None, _) => Ok(None),
            (Some(_), Some(_)) => Err(wrong("is present more than once".to_owned())),
            (Some(key), None) => {
                IdempotencyKey::new(caller, key.as_bytes()).map(Some).map_err(|invalid| wrong(invalid.to_string()))
            }
        }))
    }
}

impl Key {
    /// Return the idempotency key, if there is one.
    pub(crate) fn given(self) -> Result<Option<IdempotencyKey>, Problem> {
        self.0
    }

    /// Return the idempotent request, if it has an idempotency key. `call` identifies the route and the object; `body`
    /// is the JSON text of the body.
    pub(crate) fn request(self, call: &str, body: Option<&[u8]>) -> Result<Option<IdempotentRequest>, Problem> {
        let Some(key) = self.0? else { return Ok(None) };
        let body: Option<&RawValue> = body.map(serde_json::from_slice).transpose().map_err(|error| {
            // The body has been parsed before, so this does not happen.
            Problem::new(Code::InvalidJson, error.to_string())
        })?;
        Ok(Some(key.request(call, body)))
    }
}

/// What the body of a stored response shows. A request is bound to its route, so the route knows it, also when the
/// response is returned again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseContent {
    /// A job. The response has its ETag and, if the job is new, its Location.
    Job,
    /// A new job that is held. With an idempotency key the body does not say so, because it is made before MySQL decides
    /// whether the job waits for its order key or its parents.
    HeldJob,
    /// Anything else.
    Other,
}

/// The fields of a job in a response on which the headers depend.
#[derive(Deserialize)]
struct AnsweredJob {
    id: JobId,
    #[serde(default)]
    warnings: Option<Box<RawValue>>,
}

impl AnsweredJob {
    /// Read the fields from a body. One without warnings need not be parsed, because the id comes first in it.
    fn read(body: &str) -> Option<Self> {
        let id =
            body.strip_prefix("{\"id\":\"").and_then(|rest| rest.split_once('"')).and_then(|(id, _)| id.parse().ok());
        match id {
            Some(id) if !body.contains("\"warnings\":") => Some(Self { id, warnings: None }),
            _ => serde_json::from_str(body).ok(),
        }
    }

    /// Return the ETag of the job in this body, which is that of the job when it is read. `held` says that the job waits
    /// for its turn, whatever the body says.
    fn tag(&self, body: &str, held: bool) -> String {
        let mut text = Cow::Borrowed(body);
        // Only the response to an enqueue has warnings. The payload is in front of them, so the last match is theirs.
        if let Some(warnings) = &self.warnings
            && let Some((before, after)) = body.rsplit_once(&format!(",\"warnings\":{}", warnings.get()))
        {
            text = Cow::Owned(format!("{before}{after}"));
        }
        if held && let Some(place) = place_of_held(&text) {
            let (before, after) = text.split_at(place);
            text = Cow::Owned(format!("{before},\"held\":true{after}"));
        }
        etag::compute(&text)
    }
}

/// Return the place at which `held` would stand in the body of a new job that lacks it: in front of the first member
/// that comes behind it. The search begins behind the payload, which may have members of any name.
fn place_of_held(body: &str) -> Option<usize> {
    let next = ["after", "on_parent_failure", "batch", "callback_of", "schedule", "tags", "trace", "created_at"];
    let start = body.rfind(",\"attempt\":0,\"max_attempts\":")?;
    let options = body.get(start..)?;
    if options.contains(",\"held\":true") {
        return None;
    }
    next.iter().filter_map(|name| options.find(&format!(",\"{name}\":"))).min().map(|place| start + place)
}

/// Build the response to a request that was carried out now or, if `replayed`, earlier.
pub(crate) fn respond(answer: Answer, replayed: bool, shows: ResponseContent) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
    let job = match shows {
        ResponseContent::Job | ResponseContent::HeldJob => AnsweredJob::read(&answer.body),
        ResponseContent::Other => None,
    };
    let tag = job.as_ref().map(|job| job.tag(&answer.body, shows == ResponseContent::HeldJob));
    let mut response = (status, answer.body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(tag) = tag {
        etag::put(headers, &tag);
    }
    if let Some(job) = job.filter(|_| status == StatusCode::CREATED)
        && let Ok(location) = HeaderValue::try_from(format!("/v1/jobs/{}", job.id))
    {
        headers.insert(header::LOCATION, location);
    }
    if replayed {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

/// Build the response from the outcome of an idempotent request. `refused` builds it for a request that was refused.
pub(crate) fn respond_to_outcome<T, R>(
    outcome: IdempotentOutcome<T, R>,
    shows: ResponseContent,
    refused: impl FnOnce(R) -> Result<Response, Problem>,
) -> Result<Response, Problem> {
    match outcome {
        IdempotentOutcome::First { answer, .. } => Ok(respond(answer, false, shows)),
        IdempotentOutcome::Replayed(answer) => Ok(respond(answer, true, shows)),
        IdempotentOutcome::Refused(refusal) => refused(refusal),
        IdempotentOutcome::Conflict => Err(Problem::new(
            Code::IdempotencyConflict,
            "this idempotency key belongs to another request, which was carried out; nothing was changed",
        )),
        IdempotentOutcome::Busy => Err(Problem::new(
            Code::IdempotencyInProgress,
            "a request with this idempotency key is under way and has not ended yet; this request changed nothing",
        )),
    }
}

/// Return the stored response of an earlier request with this idempotency key, or else `problem`. A request that is
/// invalid on this runner may have been carried out before, for example on a runner that had the kind.
pub(crate) async fn replay_stored(
    api: &Api,
    idempotent: Option<IdempotentRequest>,
    shows: ResponseContent,
    problem: Problem,
) -> Result<Response, Problem> {
    let Some(idempotent) = idempotent else { return Err(problem) };
    match api.broker.store().find_response(idempotent).await? {
        Some(IdempotentOutcome::Replayed(answer)) => Ok(respond(answer, true, shows)),
        _ => Err(problem),
    }
}

/// POSTs without an idempotency key, because repeating them changes nothing or joins what is already running. The calls
/// of remote workers have rules of their own; a worker that registers twice leaves a row that ends with its lease.
const REPEATABLE: [&str; 20] = [
    "pause_schedule",
    "resume_schedule",
    "preview_schedule",
    "pause_queue",
    "resume_queue",
    "drain_runner",
    "resume_runner",
    "rebuild_index",
    "start_verification",
    "nudge_outbox",
    "replay_rejected_row",
    "close_batch",
    "cancel_batch",
    "close_breaker",
    "register_worker",
    "fetch_jobs",
    "beat",
    "finish_attempts",
    "report_on_attempt",
    "finish_attempt",
];

/// Describe the header and its responses for every other POST and for the PATCH of a job.
pub(crate) fn describe(document: &mut OpenApi) {
    let takes_key = |id: &Option<String>| id.as_deref().is_none_or(|id| !REPEATABLE.contains(&id));
    let items = document.paths.paths.values_mut();
    let operations = items.flat_map(|item| {
        let post = item.post.as_mut().filter(|post| takes_key(&post.operation_id));
        let patch = item.patch.as_mut().filter(|patch| patch.operation_id.as_deref() == Some("change_job"));
        [post, patch]
    });
    for operation in operations.flatten() {
        let key = ObjectBuilder::new()
            .schema_type(Type::String)
            .min_length(Some(1))
            .max_length(Some(limits::MAX_KEY_BYTES))
            .pattern(Some("^[!-~]+$"))
            .build();
        let mut header = Parameter::new("Idempotency-Key");
        header.parameter_in = ParameterIn::Header;
        header.required = Required::False;
        header.description = Some(
            "Carry out this request at most once: when it is sent again by the same caller with the same key and body, it gets the first response."
                .to_owned(),
        );
        header.schema = Some(key.into());
        operation.parameters.get_or_insert_default().push(header.into());

        let responses = &mut operation.responses.responses;
        let mut say = |status: &str, codes: &str| {
            let problem = || RefOr::T(describe_problem(""));
            if let RefOr::T(described) = responses.entry(status.to_owned()).or_insert_with(problem) {
                let gap = if described.description.is_empty() { "" } else { "; " };
                described.description = format!("{}{gap}{codes}", described.description);
            }
        };
        say("409", "idempotency_in_progress: a request with this idempotency key is under way");
        say(
            "422",
            "invalid_request: the idempotency key is invalid; idempotency_conflict: it belongs to another request",
        );
        for (status, response) in responses.iter_mut().filter(|(status, _)| status.starts_with('2')) {
            let RefOr::T(response) = response else { continue };
            debug_assert!(status.len() == 3, "{status}");
            let mut replayed = Header::new(ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["true"])));
            replayed.description =
                Some("Present when this is the response to an earlier request with this idempotency key".to_owned());
            response.headers.insert("Idempotency-Replayed".to_owned(), replayed.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_is_not_parsed_shows_the_same_job() {
        let id = JobId::new();
        let bodies = [
            format!(r#"{{"id":"{id}","kind":"a","payload":{{"id":"x"}}}}"#),
            format!(r#"{{"id":"{id}","payload":{{"warnings":["p"]}}}}"#),
            format!(r#"{{"id":"{id}","payload":{{"warnings":["p"]}},"warnings":["the queue is paused"]}}"#),
            format!(r#"{{"kind":"a","id":"{id}"}}"#),
            format!(r#"{{"id":"{id}","state":"waiting"}}"#),
            "null".to_owned(),
            r#"{"id":"no id"}"#.to_owned(),
        ];
        for body in bodies {
            let shown = |job: AnsweredJob| (job.id, job.tag(&body, false), job.tag(&body, true));
            let parsed = serde_json::from_str::<AnsweredJob>(&body).ok();
            assert_eq!(AnsweredJob::read(&body).map(shown), parsed.map(shown), "{body}");
        }
    }
}
