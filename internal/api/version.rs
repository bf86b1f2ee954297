//! Versions as ETags, for things that operators change: `If-Match` keeps two of them from overwriting each other unseen.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::Serialize;

use super::json;
use super::problem::{Code, Problem};
use crate::handlers;

/// The version that `If-Match` names: the caller has seen this one and changes no other. Absent for who does not care.
pub(super) struct Seen(pub(super) Option<u32>);

impl<S: Send + Sync> FromRequestParts<S> for Seen {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let Some(given) = parts.headers.get(header::IF_MATCH) else { return Ok(Self(None)) };
        let version = given.to_str().ok().and_then(|tag| tag.trim().strip_prefix('"')?.strip_suffix('"')?.parse().ok());
        version.map(|version| Self(Some(version))).ok_or_else(|| {
            let here = handlers::Problem::at("If-Match", "must be one tag in quotes, as an ETag header gave it");
            Problem::new(Code::InvalidRequest, "the header If-Match is not usable").at("", vec![here])
        })
    }
}

/// An answer that says which version it shows.
pub(super) fn versioned(status: StatusCode, version: u32, body: impl Serialize) -> Response {
    let mut response = json(status, body);
    if let Ok(tag) = HeaderValue::try_from(format!("\"{version}\"")) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}
