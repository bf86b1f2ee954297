//! ETags and conditional requests: `If-Match` keeps two people from overwriting each other's changes unseen.
//!
//! The ETag of a job is a digest of its JSON view, so that it changes with everything that a client can see. That of a
//! queue or schedule is its version. `If-Match` uses the strong comparison, as RFC 9110 requires for changes: a weak
//! tag matches nothing.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use sha2::{Digest, Sha256};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{Content, Header, OpenApi, RefOr};

use crate::http::problem::{Code, Problem};
use crate::json;
use tickr_store::Condition;

/// Return the ETag of the JSON text of a job.
pub(crate) fn compute(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    format!("\"{}\"", URL_SAFE_NO_PAD.encode(&digest[..15]))
}

/// Build a response with a job and its ETag.
pub(crate) fn respond_with_etag(status: StatusCode, job: &impl Serialize) -> Response {
    let text = serde_json::to_string(job).unwrap_or_default();
    let tag = compute(&text);
    let mut response = (status, text).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    put(response.headers_mut(), &tag);
    response
}

/// Set the ETag of a response.
pub(crate) fn put(headers: &mut HeaderMap, tag: &str) {
    if let Ok(tag) = HeaderValue::try_from(tag) {
        headers.insert(header::ETAG, tag);
    }
}

/// Build a response with this ETag.
pub(crate) fn with_tag(status: StatusCode, tag: &str, body: impl Serialize) -> Response {
    let mut response = json(status, body);
    put(response.headers_mut(), tag);
    response
}

/// Return the ETag of a version.
pub(crate) fn from_version(version: u32) -> String {
    format!("\"{version}\"")
}

/// Return the version of an ETag, or `None` for a tag that is not a version and therefore matches nothing.
pub(crate) fn version_of(tag: &str) -> Option<u32> {
    let version = tag.strip_prefix('"')?.strip_suffix('"')?.parse().ok()?;
    // Tags are compared character by character: "007" is not the tag of version 7.
    (from_version(version) == tag).then_some(version)
}

/// The ETags of a conditional request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tags {
    /// `*`: any existing object.
    Any,
    /// One of these tags, as they were written.
    These(Vec<String>),
}

impl Tags {
    /// Return whether this tag matches by the strong comparison. Weak tags do not match.
    pub(crate) fn match_strongly(&self, tag: &str) -> bool {
        match self {
            Self::Any => true,
            Self::These(tags) => tags.iter().any(|given| given == tag),
        }
    }

    /// Return the condition on the object. `wording` parses a tag; tags that it cannot parse match nothing.
    fn condition<V>(&self, wording: impl Fn(&str) -> Option<V>) -> Condition<V> {
        match self {
            Self::Any => Condition::Present,
            Self::These(tags) => Condition::OneOf(tags.iter().filter_map(|tag| wording(tag)).collect()),
        }
    }

    fn match_weakly(&self, tag: &str) -> bool {
        match self {
            Self::Any => true,
            Self::These(tags) => tags.iter().any(|given| given.strip_prefix("W/").unwrap_or(given) == tag),
        }
    }

    fn read(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Self>, Problem> {
        let wrong = || unusable(name, "must be * or tags in quotes, as an ETag header gave them");
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

/// The header `If-Match`. An invalid one is reported after the body was read, as with
/// [`Key`](crate::http::idempotency::Key).
pub(crate) struct IfMatch(pub(crate) Result<Option<Tags>, Problem>);

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(Tags::read(&parts.headers, &header::IF_MATCH)))
    }
}

impl IfMatch {
    /// Return the condition on the object. `wording` parses a tag.
    pub(crate) fn condition<V>(self, wording: impl Fn(&str) -> Option<V>) -> Result<Condition<V>, Problem> {
        Ok(self.0?.map_or(Condition::Any, |tags| tags.condition(wording)))
    }
}

/// The headers `If-Match` and `If-None-Match` of a request that creates or changes an object.
pub(crate) struct Preconditions {
    matching: IfMatch,
    none: Result<Option<Tags>, Problem>,
}

impl<S: Send + Sync> FromRequestParts<S> for Preconditions {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let read = |name| Tags::read(&parts.headers, &name);
        Ok(Self { matching: IfMatch(read(header::IF_MATCH)), none: read(header::IF_NONE_MATCH) })
    }
}

impl Preconditions {
    /// Return the condition on the object. `wording` parses a tag.
    pub(crate) fn condition<V>(self, wording: impl Fn(&str) -> Option<V>) -> Result<Condition<V>, Problem> {
        let wanted = self.matching.condition(wording)?;
        match (wanted, self.none?) {
            (wanted, None) => Ok(wanted),
            (Condition::Any, Some(Tags::Any)) => Ok(Condition::Absent),
            (Condition::Any, Some(Tags::These(_))) => {
                Err(unusable(&header::IF_NONE_MATCH, "must be *, which means that the object is new"))
            }
            (_, Some(_)) => Err(unusable(&header::IF_NONE_MATCH, "is not allowed together with If-Match")),
        }
    }
}

fn unusable(name: &HeaderName, why: &str) -> Problem {
    let here = tickr_handlers::Problem::at(name.as_str(), why);
    Problem::new(Code::InvalidRequest, format!("invalid header {name}; `errors` says why")).at("", vec![here])
}

/// The header `If-None-Match` of a read. An invalid one is ignored.
pub(crate) struct IfNoneMatch(Option<Tags>);

impl<S: Send + Sync> FromRequestParts<S> for IfNoneMatch {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(Tags::read(&parts.headers, &header::IF_NONE_MATCH).ok().flatten()))
    }
}

impl IfNoneMatch {
    /// Replace the response with 304 if the client already has it.
    pub(crate) fn not_modified_if_match(&self, answer: Response) -> Response {
        let tag = answer.headers().get(header::ETAG).cloned();
        match (&self.0, tag) {
            (Some(tags), Some(tag)) if tag.to_str().is_ok_and(|tag| tags.match_weakly(tag)) => {
                (StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response()
            }
            _ => answer,
        }
    }
}

/// Describe the ETag header of every response that is a job.
pub(crate) fn describe(document: &mut OpenApi) {
    for response in crate::operations(document).flat_map(|operation| operation.responses.responses.values_mut()) {
        let RefOr::T(response) = response else { continue };
        let is_job = response.content.values().any(|content| {
            matches!(content, RefOr::T(Content { schema: Some(RefOr::Ref(schema)), .. })
                if matches!(schema.ref_location.as_str(), "#/components/schemas/JobView" | "#/components/schemas/SeenJob"))
        });
        if is_job {
            let mut tag = Header::new(ObjectBuilder::new().schema_type(Type::String));
            tag.description =
                Some("Changes with every visible change of the job; for If-Match and If-None-Match".to_owned());
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
        let versions = Tags::These(["\"7\"", "W/\"8\"", "\"x\"", "\"9\""].map(str::to_owned).into());
        assert_eq!(versions.condition(version_of), Condition::OneOf(vec![7, 9]));
        assert_eq!(version_of(&from_version(7)), Some(7));
        for other in ["\"007\"", "\"+7\"", "\"\"", "\"", "7", "\"4294967296\""] {
            assert_eq!(version_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_request_expects_what_is_new_or_what_is_there_but_not_both() {
        let wanted = |matching: Option<&str>, none: Option<&str>| {
            let tags = |name: &HeaderName, text: Option<&str>| {
                let mut headers = HeaderMap::new();
                if let Some(text) = text {
                    headers.insert(name, HeaderValue::from_str(text).unwrap());
                }
                Tags::read(&headers, name)
            };
            let matching = IfMatch(tags(&header::IF_MATCH, matching));
            let expected = Preconditions { matching, none: tags(&header::IF_NONE_MATCH, none) };
            expected.condition(version_of).map_err(|problem| problem.code)
        };
        assert_eq!(wanted(None, None), Ok(Condition::Any));
        assert_eq!(wanted(None, Some("*")), Ok(Condition::Absent));
        assert_eq!(wanted(Some("*"), None), Ok(Condition::Present));
        assert_eq!(wanted(Some("\"3\""), None), Ok(Condition::OneOf(vec![3])));
        for (matching, none) in [
            (Some("*"), Some("*")),
            (Some("\"3\""), Some("*")),
            (None, Some("\"3\"")),
            (Some("3"), None),
            (None, Some("x")),
        ] {
            assert_eq!(wanted(matching, none), Err(Code::InvalidRequest), "{matching:?} {none:?}");
        }
    }
}
