//! Errors as RFC 9457 problem documents. The `code` is stable, so that scripts may rely on it. A problem never contains
//! SQL.

use std::sync::{Mutex, PoisonError};

use axum::Json;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::problem_table::Again;
pub use crate::http::problem_table::Code;
use tickr_broker::Invalid;
use tickr_job::{JobId, State};
use tickr_store::{KeyHolder, StoreError};
use tickr_telemetry::LinePace;

/// Maximum number of errors in one response.
const MAX_ERRORS: usize = 50;
/// Maximum sizes of the pointer and the detail of an error, because both may quote the request.
const MAX_POINTER_BYTES: usize = 256;
const MAX_DETAIL_BYTES: usize = 512;

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
    /// State of a job: with `wrong_state` that of the requested job, with `unique_key_taken` and `previous_unfinished`
    /// that of the job in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<crate::view::StateWord>)]
    pub current_state: Option<State>,
    /// Id of the job in the way: with `unique_key_taken` of a single job, and with `previous_unfinished`.
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

    /// Say that there is no such object: `job` and its id, `schedule` and its name.
    pub(crate) fn not_found(noun: &str, name: impl std::fmt::Display) -> Self {
        Self::new(Code::NotFound, format!("there is no {noun} {name}"))
    }

    /// Set the single errors, each pointer prefixed with `prefix`.
    pub(crate) fn at(mut self, prefix: &str, problems: Vec<tickr_handlers::Problem>) -> Self {
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
    pub(crate) fn held_by(self, holder: &KeyHolder) -> Self {
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
                let here = tickr_handlers::Problem::at("/kind", "is not a registered kind; see /v1/kinds");
                Self::new(Code::UnknownKind, detail).at(prefix, vec![here])
            }
            Invalid::Payload { problems, .. } => {
                Self::new(Code::InvalidPayload, detail).at(&format!("{prefix}/payload"), problems)
            }
            Invalid::Job { problems } => Self::new(Code::InvalidRequest, detail).at(prefix, problems),
            // A defect in the code of the kind, but the same request would panic again, so this is a 422. The message
            // of the panic may quote data of other callers and is not sent.
            Invalid::Panicked(_) => {
                let here = tickr_handlers::Problem::at("", "makes the code of the kind panic, which is a defect in it");
                Self::new(Code::InvalidPayload, detail).at(&format!("{prefix}/payload"), vec![here])
            }
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Unavailable { .. } => {
                log_refusal(&error);
                let detail = "MySQL does not answer, another session keeps rows locked, or all connections of this \
                              process to it are in use; as far as tickr knows, nothing was changed";
                Self::new(Code::StoreUnavailable, detail)
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

/// Log that a request was refused because MySQL is out. While it is out, that happens to each of them.
fn log_refusal(error: &StoreError) {
    static LINES: Mutex<LinePace> = Mutex::new(LinePace::new());
    let next = LINES.lock().unwrap_or_else(PoisonError::into_inner).next_line();
    match next {
        Some(left_out) => tracing::warn!(%error, left_out, "request refused"),
        None => tracing::debug!(%error, "request refused"),
    }
}

/// Cut a text to at most `most` bytes, at the boundary of a character.
fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(most - 3)])
}

/// Describe a response that is a problem. [`super::describe_problems`] sets its media type.
pub(crate) fn describe_problem(description: &str) -> utoipa::openapi::Response {
    let mut described = utoipa::openapi::Response::new(description);
    let schema = utoipa::openapi::Ref::from_schema_name("Problem");
    described.content.insert("application/json".to_owned(), utoipa::openapi::Content::new(Some(schema)).into());
    described
}

/// Describe these responses of an operation, by status, unless it describes them itself.
pub(crate) fn add_problems(operation: &mut utoipa::openapi::path::Operation, answers: &[(&str, &str)]) {
    for (status, description) in answers {
        let described = || utoipa::openapi::RefOr::T(describe_problem(description));
        operation.responses.responses.entry((*status).to_owned()).or_insert_with(described);
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let code = self.code;
        let mut response = (code.status(), Json(self)).into_response();
        // For the layers around the routes, which see the response only.
        response.extensions_mut().insert(code);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if code.entry().again == Again::Later {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if code == Code::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Answer OPTIONS with 204 and any other unsupported method with 405. Both responses carry the `Allow` header.
pub(crate) async fn method_not_allowed(method: Method) -> Response {
    if method == Method::OPTIONS {
        return StatusCode::NO_CONTENT.into_response();
    }
    let detail = "this path does not support that method; the Allow header lists the supported ones";
    Problem::new(Code::MethodNotAllowed, detail).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(count: usize) -> Vec<tickr_handlers::Problem> {
        (0..count).map(|at| tickr_handlers::Problem::at(format!("/{at}"), "is wrong")).collect()
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
        let problem = Problem::new(Code::InvalidRequest, "no").at("", vec![tickr_handlers::Problem::at(&long, &long)]);
        let error = &problem.errors[0];
        assert!(error.pointer.len() <= MAX_POINTER_BYTES && error.detail.len() <= MAX_DETAIL_BYTES);
        assert!(error.pointer.ends_with("ä…") && error.detail.ends_with("ä…"));
    }
}
