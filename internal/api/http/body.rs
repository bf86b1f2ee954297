//! Extractors for bodies, paths and query strings. Each error becomes a problem document that names its position.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::BodyDataStream;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use utoipa::openapi::path::Operation;
use utoipa::openapi::{OpenApi, RefOr, Required};

use crate::Api;
use crate::http::answers::operations;
use crate::http::problem::{Code, Problem, add_problems};
use crate::http::revocation::RequestRight;
pub(crate) use tickr_broker::Object;
use tickr_handlers::wording;
use tickr_job::limits::{MAX_LEVELS, deeper_than};
use tickr_job::{BatchId, InvalidName, JobId, Name};

/// Maximum number of fields of a wrong type in one response.
const MAX_PROBLEMS: usize = 20;
/// Maximum size of a body that is parsed again to find more than its first error.
const MAX_BYTES_READ_AGAIN: usize = 64 << 10;
/// Number of bytes that are still read and discarded from a body that is too large.
const MAX_FORGOTTEN_BYTES: usize = 8 << 20;
/// Time for which a body that is not wanted is read and discarded.
const FORGETTING: Duration = Duration::from_secs(1);

/// A JSON body of type `T`, and its text. Unknown fields are errors.
pub(crate) struct Body<T>(pub(crate) T, pub(crate) Vec<u8>);

impl<T: DeserializeOwned> FromRequest<Api> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        read_json(request, api, api.body_limit_bytes, None, parse).await.map(|(parsed, bytes)| Self(parsed, bytes))
    }
}

/// A JSON body of type `T`, and its text, of a call whose fields may all be left out. The body may be left out as well,
/// with its media type; then it counts as `{}`.
pub(crate) struct OptionalBody<T>(pub(crate) T, pub(crate) Vec<u8>);

/// The calls that take such a body, by their names in the OpenAPI document.
const OPTIONAL: [&str; 5] = ["drain_runner", "pause_queue", "pause_schedule", "replay_job", "start_verification"];

impl<T: DeserializeOwned> FromRequest<Api> for OptionalBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        let read = read_json(request, api, api.body_limit_bytes, Some(b"{}".as_slice()), parse);
        read.await.map(|(parsed, bytes)| Self(parsed, bytes))
    }
}

/// Size up to which such bodies are read, whatever `body_limit` is: the largest limit that an operator can set.
const MAX_RESULT_BODY_BYTES: usize = 1 << 20;

/// A JSON body of type `T` that carries results or checkpoints of jobs. It may be larger than other bodies: a result
/// may be as large as the usual `body_limit`, and has more around it. `T` keeps their JSON as text, so the body may be
/// nested to any depth: its handler checks the depth of each part, and one part refuses no other.
pub(crate) struct PartsBody<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Api> for PartsBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        let limit = api.body_limit_bytes.max(MAX_RESULT_BODY_BYTES);
        read_json(request, api, limit, None, parse_of_any_depth).await.map(|(parsed, _)| Self(parsed))
    }
}

/// Read a body that is declared as JSON, and return its value and its text. `absent` is the text that an empty body
/// counts as, where it may be empty.
async fn read_json<T: DeserializeOwned>(
    request: Request,
    api: &Api,
    limit: usize,
    absent: Option<&[u8]>,
    parse: fn(&[u8]) -> Result<T, Problem>,
) -> Result<(T, Vec<u8>), Problem> {
    let declared = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let media = declared.split(';').next().unwrap_or("").trim();
    let is_json = media.eq_ignore_ascii_case("application/json") || media.to_ascii_lowercase().ends_with("+json");
    let encoding = check_encoding(request.headers());
    let bytes = read_while_allowed(request, api, limit).await?;
    if let (Some(absent), Ok([])) = (absent, bytes.as_deref()) {
        return Ok((parse(absent)?, absent.to_vec()));
    }
    if !is_json {
        let detail = "declare the body with Content-Type: application/json";
        return Err(Problem::new(Code::UnsupportedMediaType, detail));
    }
    encoding?;
    let bytes = bytes?;
    Ok((parse(&bytes)?, bytes))
}

/// Refuse a body that its client has compressed.
pub(crate) fn check_encoding(headers: &HeaderMap) -> Result<(), Problem> {
    let is_plain = |encoding: &str| encoding.is_empty() || encoding.eq_ignore_ascii_case("identity");
    let encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    let mut encodings = encodings.map(|value| String::from_utf8_lossy(value.as_bytes()));
    let Some(encoding) = encodings.find(|encoding| !is_plain(encoding.trim())) else { return Ok(()) };
    // The response must not be many times as long as the name of an encoding.
    let encoding: String = encoding.chars().take(64).collect();
    let detail = format!("the body has Content-Encoding: {encoding}; send it as it is, without a Content-Encoding");
    Err(Problem::new(Code::UnsupportedMediaType, detail))
}

/// A JSON body of type `T`, and its text, whatever its media type is. For clients of interfaces that never asked for one.
pub(crate) struct AnyMediaBody<T>(pub(crate) T, pub(crate) Vec<u8>);

impl<T: DeserializeOwned> FromRequest<Api> for AnyMediaBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        let encoding = check_encoding(request.headers());
        let bytes = read_while_allowed(request, api, api.body_limit_bytes).await?;
        encoding?;
        let bytes = bytes?;
        parse(&bytes).map(|parsed| Self(parsed, bytes))
    }
}

/// Read a field that may be left out. Null counts as left out, as it does for fields that are an `Option`.
///
/// # Errors
///
/// The value is neither null nor one of this type.
pub(crate) fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Return the payload of a job that has none in its body.
pub(crate) fn empty_object() -> Box<RawValue> {
    RawValue::from_string("{}".into()).unwrap_or_default()
}

fn body_timeout_problem(patience: Duration) -> Problem {
    Problem::new(Code::RequestTimeout, format!("the body did not arrive within {} s", patience.as_secs_f64()))
}

/// Read the body of a request in time, and while the request may continue: its API key may be revoked before the body is
/// complete. The inner result is that of [`read_body`].
async fn read_while_allowed(request: Request, api: &Api, limit: usize) -> Result<Result<Vec<u8>, Problem>, Problem> {
    let right = RequestRight::of(request.extensions(), api);
    let mut body = request.into_body().into_data_stream();
    let read = read_body(&mut body, limit);
    let read = async {
        match right {
            Some(mut right) => right.wait_for(read).await,
            None => Ok(read.await),
        }
    };
    let read = tokio::time::timeout(api.body_timeout, read).await;
    let read = read.map_err(|_| body_timeout_problem(api.body_timeout))?;
    if read.is_err() {
        forget(&mut body).await;
    }
    read
}

/// Read and discard a body that is not wanted, up to a bound and for a moment, for the reason that [`read_body`] has.
pub(crate) async fn forget_body(body: axum::body::Body) {
    forget(&mut body.into_data_stream()).await;
}

async fn forget(chunks: &mut BodyDataStream) {
    let discard = async {
        let mut most = MAX_FORGOTTEN_BYTES;
        while most > 0
            && let Some(Ok(chunk)) = chunks.next().await
        {
            most = most.saturating_sub(chunk.len());
        }
    };
    let _ = tokio::time::timeout(FORGETTING, discard).await;
}

/// Read a body of at most `limit` bytes. Read and discard the rest of a larger one, up to a bound: if the server closes
/// a connection while the client still sends, TCP resets it and the response is lost.
async fn read_body(chunks: &mut BodyDataStream, limit: usize) -> Result<Vec<u8>, Problem> {
    let (mut kept, mut size) = (Vec::new(), 0);
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| Problem::new(Code::InvalidJson, "the body ended too early"))?;
        size += chunk.len();
        if size <= limit {
            kept.extend_from_slice(&chunk);
        } else if size > limit + MAX_FORGOTTEN_BYTES {
            break;
        }
    }
    if size > limit {
        let detail = format!("the body is larger than {limit} bytes; TICKR_BODY_LIMIT sets this limit");
        return Err(Problem::new(Code::TooLarge, detail));
    }
    Ok(kept)
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // Checked before any parser that recurses.
    if deeper_than(bytes, MAX_LEVELS) {
        return Err(Problem::new(Code::TooDeep, format!("the body is nested more than {MAX_LEVELS} levels deep")));
    }
    parse_of_any_depth(bytes)
}

/// Parse a body that may be nested to any depth. The parser itself recurses 128 levels at most, and it skips what `T`
/// keeps as text without recursion.
fn parse_of_any_depth<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // The parser that knows the places of errors costs memory for each field, so only a wrong body is given to it.
    if let Ok(Object(parsed)) = serde_json::from_slice(bytes) {
        return Ok(parsed);
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let parsed: Result<Object<T>, _> = serde_path_to_error::deserialize(&mut reader);
    let Object(parsed) = parsed.map_err(|error| match error.inner().classify() {
        serde_json::error::Category::Data => {
            let problems = all_problems::<T>(bytes, tickr_handlers::Problem::in_json(error));
            Problem::new(Code::InvalidRequest, "the body is not what this call accepts").at("", problems)
        }
        _ => Problem::new(Code::InvalidJson, describe_json_error(error.inner())),
    })?;
    reader.end().map_err(|error| Problem::new(Code::InvalidJson, describe_json_error(&error)))?;
    Ok(parsed)
}

/// Say why a text is not JSON, with the position.
fn describe_json_error(error: &serde_json::Error) -> String {
    let said = error.to_string();
    if error.is_eof() {
        let place = said.rsplit_once(" at ").map_or("its end", |(_, place)| place);
        return format!("the body ends too early, at {place}");
    }
    said
}

/// Find all fields that have a wrong type, so that the client learns of them in one response.
///
/// The parser stops at the first such field. So remove that field (or insert it if it is missing) and parse again. This
/// happens only for bodies that are refused anyway, and only for small ones.
fn all_problems<T: DeserializeOwned>(bytes: &[u8], first: tickr_handlers::Problem) -> Vec<tickr_handlers::Problem> {
    let mut problems = vec![first];
    let Ok(mut body) = serde_json::from_slice::<serde_json::Value>(bytes) else { return problems };
    if bytes.len() > MAX_BYTES_READ_AGAIN {
        return problems;
    }
    let mut wrong = problems[0].pointer.clone();
    for _ in 0..2 * MAX_PROBLEMS {
        if !remove_field(&mut body, &wrong) {
            break;
        }
        let text = body.to_string();
        let mut reader = serde_json::Deserializer::from_str(&text);
        let Err(error) = serde_path_to_error::deserialize::<_, Object<T>>(&mut reader) else { break };
        let next = tickr_handlers::Problem::in_json(error);
        wrong.clone_from(&next.pointer);
        if problems.iter().all(|known| known.pointer != next.pointer) {
            problems.push(next);
        }
        if problems.len() >= MAX_PROBLEMS {
            break;
        }
    }
    problems
}

/// Remove the field at a JSON pointer. If there is none, it is a required field: insert an empty string. Return whether
/// the body changed.
fn remove_field(body: &mut serde_json::Value, pointer: &str) -> bool {
    let Some((parent, name)) = pointer.rsplit_once('/') else { return false };
    let name = name.replace("~1", "/").replace("~0", "~");
    let Some(serde_json::Value::Object(fields)) = body.pointer_mut(parent) else { return false };
    match fields.remove(&name) {
        // Inserted by an earlier round and still not valid.
        Some(serde_json::Value::String(text)) if text.is_empty() => false,
        Some(_) => true,
        None => fields.insert(name, String::new().into()).is_none(),
    }
}

fn invalid_job_id() -> Problem {
    Problem::new(Code::InvalidId, "a job id is a hyphenated UUID such as 0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a")
}

/// The job id in the path.
pub(crate) struct IdPath(pub(crate) JobId);

impl<S: Send + Sync> FromRequestParts<S> for IdPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(text) = Path::<String>::from_request_parts(parts, state).await.map_err(|_| invalid_job_id())?;
        text.parse().map(Self).map_err(|_| invalid_job_id())
    }
}

/// The parameter of a path with one parameter, as text. Bytes that are no text become U+FFFD. No id, key or group has
/// that character, so each handler refuses them as it refuses any other text that it does not know.
pub(crate) struct PathText(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for PathText {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let text = Path::<String>::from_request_parts(parts, state).await;
        Ok(Self(text.map_or_else(|_| char::REPLACEMENT_CHARACTER.to_string(), |Path(text)| text)))
    }
}

/// The job id and the number of an attempt in the path.
pub(crate) struct AttemptPath(pub(crate) JobId, pub(crate) u32);

impl<S: Send + Sync> FromRequestParts<S> for AttemptPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let texts = Path::<(String, String)>::from_request_parts(parts, state).await;
        let Path((id, number)) = texts.map_err(|_| invalid_job_id())?;
        let number = Some(number).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let number = number.and_then(|text| text.parse().ok()).ok_or_else(|| {
            let here = tickr_handlers::Problem::at("number", "must be the number of an attempt, such as 1");
            Problem::new(Code::InvalidRequest, "the number in the path is not valid").at("", vec![here])
        })?;
        Ok(Self(id.parse().map_err(|_| invalid_job_id())?, number))
    }
}

/// The id of a batch in the path.
pub(crate) struct BatchPath(pub(crate) BatchId);

impl<S: Send + Sync> FromRequestParts<S> for BatchPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let wrong = || {
            Problem::new(
                Code::InvalidId,
                "a batch id is a hyphenated UUID such as 0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a",
            )
        };
        let Path(text) = Path::<String>::from_request_parts(parts, state).await.map_err(|_| wrong())?;
        text.parse().map(Self).map_err(|_| wrong())
    }
}

/// The name in the path: of a queue, an API key or a schedule.
pub(crate) struct NamePath(pub(crate) Name);

impl<S: Send + Sync> FromRequestParts<S> for NamePath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let wrong = |detail: String| {
            let here = tickr_handlers::Problem::at("name", detail);
            Problem::new(Code::InvalidRequest, "the name in the path is not valid").at("", vec![here])
        };
        let text = Path::<String>::from_request_parts(parts, state).await;
        let Path(text) = text.map_err(|e| wrong(e.body_text()))?;
        text.parse().map(Self).map_err(|e: InvalidName| wrong(e.to_string()))
    }
}

/// The query string as `T`. Unknown names are errors.
pub(crate) struct QueryParams<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(asked)| Self(asked)).map_err(|error| {
            let said = error.body_text();
            let said = said.strip_prefix("Failed to deserialize query string: ").unwrap_or(&said);
            Problem::new(Code::InvalidRequest, "the query string is not what this call accepts")
                .at("", vec![query_problem(said)])
        })
    }
}

/// Turn an error of the query parser, such as `limit: invalid digit found in string`, into a problem with the name of
/// the parameter as its pointer.
fn query_problem(said: &str) -> tickr_handlers::Problem {
    let (name, why) = match said.split_once(": ") {
        Some((name, why)) if !name.contains(' ') => (name, why),
        _ => (said.split('`').nth(1).unwrap_or_default(), said),
    };
    tickr_handlers::Problem::at(name, wording::plain(why, name))
}

/// Describe the problems of every operation that reads a JSON body. An import describes its own: it has no limits of
/// one body.
pub(crate) fn describe(document: &mut OpenApi) {
    let reads_json = |operation: &&mut Operation| {
        operation.request_body.is_some() && !operation.responses.responses.contains_key("415")
    };
    for operation in operations(document).filter(reads_json) {
        let answers = [
            ("400", "invalid_json, too_deep"),
            ("408", "request_timeout"),
            ("413", "too_large"),
            ("415", "unsupported_media_type"),
        ];
        add_problems(operation, &answers);
        let is_optional = operation.operation_id.as_deref().is_some_and(|id| OPTIONAL.contains(&id));
        if let Some(RefOr::T(body)) = operation.request_body.as_mut().filter(|_| is_optional) {
            body.required = Some(Required::False);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Parcel {
        #[expect(dead_code, reason = "only its parsing matters")]
        to: Vec<u8>,
    }

    fn problem(body: &str) -> (Code, Vec<String>) {
        let problem = parse::<Parcel>(body.as_bytes()).unwrap_err();
        (problem.code, problem.errors.into_iter().map(|e| e.pointer).collect())
    }

    #[test]
    fn problems_say_where() {
        assert_eq!(problem(r#"{"to":[1,"x"]}"#), (Code::InvalidRequest, vec!["/to/1".into()]));
        assert_eq!(problem(r#"{"to":[],"from":1}"#), (Code::InvalidRequest, vec!["/from".into()]));
        assert_eq!(problem(r#"{"to":[]"#).0, Code::InvalidJson);
        assert_eq!(problem(r#"{"to":[]} x"#).0, Code::InvalidJson);
        assert_eq!(problem("").0, Code::InvalidJson);
        assert_eq!(parse::<Parcel>(br#"{"to":["#).unwrap_err().detail, "the body ends too early, at line 1 column 7");
    }

    #[test]
    fn every_field_of_a_wrong_type_is_told_of_at_once() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "only its parsing matters")]
        struct Letter {
            kind: String,
            delay_ms: Option<u64>,
            at: Option<chrono::DateTime<chrono::Utc>>,
            #[serde(default)]
            to: Vec<u8>,
        }
        let told = |body: &str| {
            let errors = parse::<Letter>(body.as_bytes()).unwrap_err().errors;
            errors.into_iter().map(|error| format!("{} {}", error.pointer, error.detail)).collect::<Vec<_>>()
        };
        let everything = told(r#"{"delay_ms":-5,"at":"tomorrow","to":[1,"x"],"from":1}"#);
        assert_eq!(
            everything,
            [
                "/delay_ms must be a whole number of milliseconds, 0 or more, not -5",
                "/at must be a moment in RFC 3339 with an offset, like 2027-01-01T10:00:00Z",
                "/from is not a field here; use kind, delay_ms, at, to",
                "/to/1 must be a whole number, 0 or more, not \"x\"",
            ]
        );
        assert_eq!(told(r#"{"delay_ms":true,"kind":7}"#).len(), 2);
        assert_eq!(
            told(r#"{"from":1}"#),
            ["/from is not a field here; use kind, delay_ms, at, to", "/kind is required"]
        );
        let long = format!(r#"{{"kind":"{}","delay_ms":-5,"at":"x"}}"#, "k".repeat(MAX_BYTES_READ_AGAIN));
        assert_eq!(told(&long).len(), 1);
    }

    #[test]
    fn a_wrong_parameter_is_named() {
        let told = |said: &str| query_problem(said);
        assert_eq!(
            told("limit: invalid digit found in string"),
            tickr_handlers::Problem::at("limit", "must be a whole number, 0 or more")
        );
        assert_eq!(
            told("unknown field `lim`, expected `limit` or `cursor`"),
            tickr_handlers::Problem::at("lim", "is not a field here; use limit or cursor")
        );
    }

    #[test]
    fn depth_is_counted_outside_strings() {
        assert!(!deeper_than(r#"{"a":"[[[[[[\"[[[["}"#.as_bytes(), 2));
        assert!(deeper_than("[[[".as_bytes(), 2));
        assert!(!deeper_than("[][][][]".as_bytes(), 1));
        assert_eq!(problem(&"[".repeat(5_000)).0, Code::TooDeep);
    }
}
