//! ETags of jobs: a digest of the job as it is shown, so that it changes with whatever a reader could see.
//!
//! `If-Match` compares strongly, as RFC 9110 wants for changes: a weak tag matches nothing.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{Content, Header, OpenApi, RefOr};

use super::problem::{Code, Problem};
use super::view::JobView;
use crate::handlers;

/// The tag of a job's JSON text.
pub(super) fn of(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    format!("\"{}\"", URL_SAFE_NO_PAD.encode(&digest[..15]))
}

/// A job with its tag.
pub(super) fn tagged(status: StatusCode, job: &JobView) -> Response {
    let text = serde_json::to_string(job).unwrap_or_default();
    let tag = of(&text);
    let mut response = (status, text).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    put(response.headers_mut(), &tag);
    response
}

/// Say the tag of an answer.
pub(super) fn put(headers: &mut HeaderMap, tag: &str) {
    if let Ok(tag) = HeaderValue::try_from(tag) {
        headers.insert(header::ETAG, tag);
    }
}

/// The tags of a conditional request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tags {
    /// Whatever it is.
    Any,
    /// One of these, as they were written.
    These(Vec<String>),
}

impl Tags {
    /// Is it one of these? Weak tags are none.
    pub(super) fn match_strongly(&self, tag: &str) -> bool {
        match self {
            Self::Any => true,
            Self::These(tags) => tags.iter().any(|given| given == tag),
        }
    }

    fn match_weakly(&self, tag: &str) -> bool {
        match self {
            Self::Any => true,
            Self::These(tags) => tags.iter().any(|given| given.strip_prefix("W/").unwrap_or(given) == tag),
        }
    }

    fn read(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Self>, Problem> {
        let wrong = || {
            let here = handlers::Problem::at(name.as_str(), "must be * or tags in quotes, as an ETag header gave them");
            Problem::new(Code::InvalidRequest, format!("the header {name} is not usable")).at("", vec![here])
        };
        let mut tags = Vec::new();
        for value in headers.get_all(name) {
            let text = value.to_str().map_err(|_| wrong())?.trim();
            if text == "*" {
                return Ok(Some(Self::Any));
            }
            let mut rest = text;
            while !rest.is_empty() {
                let (weak, opening) = rest.strip_prefix("W/").map_or(("", rest), |rest| ("W/", rest));
                let inner = opening.strip_prefix('"').ok_or_else(wrong)?;
                let (tag, after) = inner.split_once('"').ok_or_else(wrong)?;
                tags.push(format!("{weak}\"{tag}\""));
                let after = after.trim_start();
                rest = match after.strip_prefix(',') {
                    Some(more) => more.trim_start(),
                    None if after.is_empty() => "",
                    None => return Err(wrong()),
                };
            }
        }
        let given = headers.contains_key(name);
        if given && tags.is_empty() { Err(wrong()) } else { Ok(given.then_some(Self::These(tags))) }
    }
}

/// `If-Match`. What is wrong with it is told after the body was read, as with [`Key`](super::once::Key).
pub(super) struct IfMatch(pub(super) Result<Option<Tags>, Problem>);

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(Tags::read(&parts.headers, &header::IF_MATCH)))
    }
}

/// `If-None-Match` of a read. One that cannot be understood asks for nothing.
pub(super) struct IfNoneMatch(Option<Tags>);

impl<S: Send + Sync> FromRequestParts<S> for IfNoneMatch {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(Tags::read(&parts.headers, &header::IF_NONE_MATCH).ok().flatten()))
    }
}

impl IfNoneMatch {
    /// Nothing, if the reader has it already.
    pub(super) fn spare(&self, answer: Response) -> Response {
        let tag = answer.headers().get(header::ETAG).cloned();
        match (&self.0, tag) {
            (Some(tags), Some(tag)) if tag.to_str().is_ok_and(|tag| tags.match_weakly(tag)) => {
                (StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response()
            }
            _ => answer,
        }
    }
}

/// Every answer that is a job has a tag.
pub(super) fn describe(document: &mut OpenApi) {
    for response in super::operations(document).flat_map(|operation| operation.responses.responses.values_mut()) {
        let RefOr::T(response) = response else { continue };
        let is_job = response.content.values().any(|content| {
            matches!(content, RefOr::T(Content { schema: Some(RefOr::Ref(schema)), .. })
                if schema.ref_location == "#/components/schemas/JobView")
        });
        if is_job {
            let mut tag = Header::new(ObjectBuilder::new().schema_type(Type::String));
            tag.description =
                Some("Changes with whatever is shown of the job; for If-Match and If-None-Match".to_owned());
            response.headers.insert("ETag".to_owned(), tag.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&str]) -> Result<Option<Tags>, Code> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::IF_MATCH, HeaderValue::from_str(value).unwrap());
        }
        Tags::read(&headers, &header::IF_MATCH).map_err(|problem| problem.code)
    }

    fn these(tags: &[&str]) -> Result<Option<Tags>, Code> {
        Ok(Some(Tags::These(tags.iter().map(|tag| (*tag).to_owned()).collect())))
    }

    #[test]
    fn tags_are_read_as_they_may_be_written() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&["*"]), Ok(Some(Tags::Any)));
        assert_eq!(read(&["\"a\""]), these(&["\"a\""]));
        assert_eq!(read(&["\"a\" , W/\"b,c\"", "\"d\""]), these(&["\"a\"", "W/\"b,c\"", "\"d\""]));
        for wrong in ["", "a", "\"a", "\"a\" \"b\"", "w/\"a\""] {
            assert_eq!(read(&[wrong]), Err(Code::InvalidRequest), "{wrong}");
        }
    }

    #[test]
    fn a_weak_tag_allows_no_change() {
        let tags = Tags::These(vec!["W/\"a\"".to_owned()]);
        assert!(!tags.match_strongly("\"a\"") && tags.match_weakly("\"a\""));
        assert!(Tags::Any.match_strongly("\"a\""));
    }
}
