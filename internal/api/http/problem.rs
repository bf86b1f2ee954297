//! Errors as RFC 9457 problem documents. The `code` is stable, so that scripts may rely on it. A problem never contains
//! SQL.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::broker::Invalid;
use crate::handlers;
use crate::job::{JobId, State};
use crate::store::{Holder, StoreError};

/// Maximum number of errors in one response.
const MAX_ERRORS: usize = 50;
/// Maximum sizes of the pointer and the detail of an error, because both may quote the request.
const MAX_POINTER_BYTES: usize = 256;
const MAX_DETAIL_BYTES: usize = 512;

/// The problem codes. They are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// 400: the body is not JSON.
    InvalidJson,
    /// 400: the body is nested more than 64 levels deep.
    TooDeep,
    /// 401: an API key or token is needed, or the given one is not known.
    Unauthorized,
    /// 403: the caller may not do this; for an API key, the detail names the scope or kind that is needed.
    Forbidden,
    /// 404: the path or the object does not exist.
    NotFound,
    /// 405: the path does not support this method.
    MethodNotAllowed,
    /// 408: the body did not arrive in time.
    RequestTimeout,
    /// 409: the state of the job or bulk operation does not allow this; for a job, `current_state` names the state.
    WrongState,
    /// 409: an unfinished job has this unique key.
    KeyTaken,
    /// 409: an API key has or had this name, and a name is never used for a second one.
    NameTaken,
    /// 409: the dead letter was already replayed; `replayed_as` names the new job.
    AlreadyReplayed,
    /// 409: a request with this idempotency key is under way; Retry-After says when to try again.
    IdempotencyInProgress,
    /// 409: a configuration file declares the schedule, and only the file may change it.
    DeclaredInConfig,
    /// 409: the previous job of the schedule has not ended, and the overlap policy does not allow a second one.
    PreviousUnfinished,
    /// 409: the runner has stopped and accepts no more requests.
    RunnerStopped,
    /// 412: the object does not meet the request's If-Match or If-None-Match.
    PreconditionFailed,
    /// 413: the body is larger than the limit.
    TooLarge,
    /// 415: the `Content-Type` of the body is not one that this call accepts.
    UnsupportedMediaType,
    /// 422: the request could be read, but is not what this call accepts; `errors` says where and why.
    InvalidRequest,
    /// 422: the runner has no handler for this kind.
    UnknownKind,
    /// 422: the payload does not fit the schema of its kind; `errors` says where and why.
    InvalidPayload,
    /// 422: this idempotency key belongs to another request.
    IdempotencyConflict,
    /// 422: the id in the path is malformed.
    InvalidId,
    /// 422: the cursor does not come from this listing with this filter.
    InvalidCursor,
    /// 422: the limit for objects of this type is reached.
    TooMany,
    /// 429: a limit of this runner is reached, such as requests that wait for MySQL; Retry-After says when to try
    /// again.
    Overloaded,
    /// 500: a defect in tickr or in its setup; the log has the details.
    Internal,
    /// 503: this runner is shutting down; send the request to another one, or to this one after its restart.
    Stopping,
    /// 503: MySQL cannot be reached; Retry-After says when to try again. A commit whose confirmation was lost may have
    /// been made.
    StoreUnavailable,
    /// 503: Redis does not answer. Jobs are executed without it; only requests about Redis itself fail.
    IndexUnavailable,
}

impl Code {
    /// All codes, in the order of their statuses.
    pub(crate) const ALL: [Self; 30] = [
        Self::InvalidJson,
        Self::TooDeep,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::RequestTimeout,
        Self::WrongState,
        Self::KeyTaken,
        Self::NameTaken,
        Self::IdempotencyInProgress,
        Self::AlreadyReplayed,
        Self::DeclaredInConfig,
        Self::PreviousUnfinished,
        Self::RunnerStopped,
        Self::PreconditionFailed,
        Self::TooLarge,
        Self::UnsupportedMediaType,
        Self::InvalidRequest,
        Self::UnknownKind,
        Self::InvalidPayload,
        Self::IdempotencyConflict,
        Self::InvalidId,
        Self::InvalidCursor,
        Self::TooMany,
        Self::Overloaded,
        Self::Internal,
        Self::Stopping,
        Self::StoreUnavailable,
        Self::IndexUnavailable,
    ];

    pub(crate) const fn status(self) -> StatusCode {
        match self {
            Self::InvalidJson | Self::TooDeep => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::WrongState
            | Self::KeyTaken
            | Self::NameTaken
            | Self::IdempotencyInProgress
            | Self::AlreadyReplayed
            | Self::DeclaredInConfig
            | Self::PreviousUnfinished
            | Self::RunnerStopped => StatusCode::CONFLICT,
            Self::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::InvalidRequest
            | Self::UnknownKind
            | Self::InvalidPayload
            | Self::IdempotencyConflict
            | Self::InvalidId
            | Self::TooMany
            | Self::InvalidCursor => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Overloaded => StatusCode::TOO_MANY_REQUESTS,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Stopping | Self::StoreUnavailable | Self::IndexUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::InvalidJson => "The body is not JSON",
            Self::TooDeep => "The body is nested too deeply",
            Self::Unauthorized => "A valid API key or token is needed",
            Self::Forbidden => "The caller may not do this",
            Self::NotFound => "Not found",
            Self::MethodNotAllowed => "Method not allowed",
            Self::RequestTimeout => "The body took too long",
            Self::WrongState => "Not possible in the current state",
            Self::AlreadyReplayed => "The dead letter was already replayed",
            Self::KeyTaken => "An unfinished job has this unique key",
            Self::NameTaken => "The name is taken",
            Self::IdempotencyInProgress => "A request with this idempotency key is under way",
            Self::DeclaredInConfig => "A configuration file owns the schedule",
            Self::PreviousUnfinished => "The previous job has not ended",
            Self::RunnerStopped => "The runner has stopped",
            Self::PreconditionFailed => "The condition of the request is not met",
            Self::TooLarge => "The body is too large",
            Self::UnsupportedMediaType => "Unsupported media type of the body",
            Self::InvalidRequest => "Invalid request",
            Self::UnknownKind => "Unknown kind",
            Self::InvalidPayload => "The payload does not fit the kind",
            Self::IdempotencyConflict => "The idempotency key belongs to another request",
            Self::InvalidId => "Malformed id",
            Self::InvalidCursor => "Not a cursor of this listing",
            Self::TooMany => "A limit on the number of objects is reached",
            Self::Overloaded => "A limit of this runner is reached",
            Self::Internal => "Internal error",
            Self::Stopping => "This runner is stopping",
            Self::StoreUnavailable => "MySQL cannot be reached",
            Self::IndexUnavailable => "Redis does not answer",
        }
    }

    pub(crate) fn word(self) -> String {
        serde_json::to_value(self).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
    }
}

/// One error in the request.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct FieldError {
    /// JSON pointer (RFC 6901) into the body, empty for the body as a whole; or the name of a query parameter or of a
    /// header.
    pub pointer: String,
    /// The error and how to correct it, in words.
    pub detail: String,
}

/// A problem document.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Problem {
    /// `urn:tickr:problem:` followed by the code. Stable.
    #[serde(rename = "type")]
    pub kind: String,
    /// The code in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The problem code. Stable, for programs.
    pub code: Code,
    /// Description of this occurrence, for people. The wording may change.
    pub detail: String,
    /// The single errors, at most 50. If there are more, the last entry says how many were left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 51)]
    pub errors: Vec<FieldError>,
    /// Number of errors that were left out.
    #[serde(skip)]
    unsaid: usize,
    /// State of a job: with `wrong_state` that of the requested job, with `key_taken` and `previous_unfinished` that of
    /// the job in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<crate::api::jobs::view::StateWord>)]
    pub current_state: Option<State>,
    /// Id of the job in the way: with `key_taken` of a single job, and with `previous_unfinished`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Id of the job that replayed the dead letter, with `already_replayed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed_as: Option<String>,
}

impl Problem {
    /// Make a problem without single errors.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:tickr:problem:{}", code.word()),
            title: code.title().to_owned(),
            status: code.status().as_u16(),
            code,
            detail: detail.into(),
            errors: Vec::new(),
            unsaid: 0,
            current_state: None,
            holder: None,
            replayed_as: None,
        }
    }

    /// Set the single errors, each pointer prefixed with `prefix`.
    pub(crate) fn at(mut self, prefix: &str, problems: Vec<handlers::Problem>) -> Self {
        (self.errors, self.unsaid) = (Vec::new(), 0);
        for problem in problems {
            self.say(&format!("{prefix}{}", problem.pointer), &problem.detail);
        }
        self.count_unsaid();
        self
    }

    /// Add the single errors of another problem.
    pub(crate) fn join(&mut self, other: &Self) {
        if self.unsaid > 0 {
            self.errors.pop();
        }
        let said = other.errors.len() - usize::from(other.unsaid > 0);
        for error in &other.errors[..said] {
            self.say(&error.pointer, &error.detail);
        }
        self.unsaid += other.unsaid;
        self.count_unsaid();
    }

    /// Add an error if the limit allows it: a response must not be many times as long as its request.
    fn say(&mut self, pointer: &str, detail: &str) {
        if self.errors.len() < MAX_ERRORS {
            let (pointer, detail) = (cut(pointer, MAX_POINTER_BYTES), cut(detail, MAX_DETAIL_BYTES));
            self.errors.push(FieldError { pointer, detail });
        } else {
            self.unsaid += 1;
        }
    }

    /// Add the entry that says how many errors were left out.
    fn count_unsaid(&mut self) {
        if self.unsaid > 0 {
            let detail = format!("{} more errors are not listed", self.unsaid);
            self.errors.push(FieldError { pointer: String::new(), detail });
        }
    }

    pub(crate) fn in_state(mut self, state: State) -> Self {
        self.current_state = Some(state);
        self
    }

    /// Name the job in the way and its state.
    pub(crate) fn held_by(self, holder: &Holder) -> Self {
        self.held_by_job(holder.id, holder.state)
    }

    /// Name the job in the way and its state.
    pub(crate) fn held_by_job(mut self, id: JobId, state: State) -> Self {
        self.holder = Some(id.to_string());
        self.in_state(state)
    }

    /// Make the problem for a refused draft; `prefix` points at the draft in the body.
    pub(crate) fn invalid(prefix: &str, invalid: Invalid) -> Self {
        let detail = invalid.to_string();
        match invalid {
            Invalid::UnknownKind { .. } => {
                let here = handlers::Problem::at("/kind", "is not a registered kind; see /v1/kinds");
                Self::new(Code::UnknownKind, detail).at(prefix, vec![here])
            }
            Invalid::Payload { problems, .. } => {
                Self::new(Code::InvalidPayload, detail).at(&format!("{prefix}/payload"), problems)
            }
            Invalid::Job { problems } => Self::new(Code::InvalidRequest, detail).at(prefix, problems),
            // A defect in the code of the kind, but the same request would panic again, so this is a 422. The message
            // of the panic may quote data of other callers and is not sent.
            Invalid::Panicked(_) => {
                let here = handlers::Problem::at("", "makes the code of the kind panic, which is a defect in it");
                Self::new(Code::InvalidPayload, detail).at(&format!("{prefix}/payload"), vec![here])
            }
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Unavailable { .. } => {
                tracing::warn!(%error, "request refused");
                Self::new(Code::StoreUnavailable, "MySQL cannot be reached; as far as tickr knows, nothing was changed")
            }
            StoreError::Overloaded { .. } => Self::new(Code::Overloaded, "too many requests wait for MySQL"),
            StoreError::Refused { .. } | StoreError::Unfit { .. } | StoreError::Corrupt { .. } => {
                tracing::error!(%error, "request failed");
                Self::new(
                    Code::Internal,
                    "MySQL refused the statement or returned invalid data; the log of this runner has the details",
                )
            }
        }
    }
}

/// Cut a text to at most `most` bytes, at the boundary of a character.
fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most - 3).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…", &text[..end])
}

/// Describe a response that is a problem. [`super::describe_problems`] sets its media type.
pub(crate) fn describe_problem(description: &str) -> utoipa::openapi::Response {
    let mut described = utoipa::openapi::Response::new(description);
    let schema = utoipa::openapi::Ref::from_schema_name("Problem");
    described.content.insert("application/json".to_owned(), utoipa::openapi::Content::new(Some(schema)).into());
    described
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.code.status();
        let code = self.code;
        let mut response = (status, Json(self)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if crate::api::http::problem_table::entry(code).again == crate::api::http::problem_table::Again::Later {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if code == Code::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(count: usize) -> Vec<handlers::Problem> {
        (0..count).map(|at| handlers::Problem::at(format!("/{at}"), "is wrong")).collect()
    }

    #[test]
    fn fifty_errors_are_listed_and_the_others_counted() {
        let problem = |count| Problem::new(Code::InvalidRequest, "no").at("/p", wrong(count));
        assert_eq!((problem(0).errors.len(), problem(50).errors.len(), problem(51).errors.len()), (0, 50, 51));
        let many = problem(80_000);
        assert_eq!(many.errors[49].pointer, "/p/49");
        assert_eq!((many.errors.len(), many.errors[50].detail.as_str()), (51, "79950 more errors are not listed"));
        let mut joined = problem(30);
        joined.join(&problem(10));
        assert_eq!(joined.errors.len(), 40);
        joined.join(&problem(60));
        joined.join(&problem(2));
        assert_eq!((joined.errors.len(), joined.errors[50].detail.as_str()), (51, "52 more errors are not listed"));
        assert!(joined.errors[..50].iter().all(|error| error.detail == "is wrong"));
    }

    #[test]
    fn what_an_error_quotes_is_cut_at_a_character() {
        let long = "ä".repeat(5_000);
        let problem = Problem::new(Code::InvalidRequest, "no").at("", vec![handlers::Problem::at(&long, &long)]);
        let error = &problem.errors[0];
        assert!(error.pointer.len() <= MAX_POINTER_BYTES && error.detail.len() <= MAX_DETAIL_BYTES);
        assert!(error.pointer.ends_with("ä…") && error.detail.ends_with("ä…"));
    }
}
