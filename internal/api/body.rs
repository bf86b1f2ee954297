//! Reading bodies and paths: whatever is wrong becomes a problem document that says where.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header;
use axum::http::request::Parts;
use futures_util::StreamExt as _;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::Api;
use super::problem::{Code, Problem};
use crate::handlers;
use crate::job::{InvalidName, JobId, Name};

/// Deepest nesting of a body. Deeper JSON is no payload, it is an attack on a parser.
const MOST_LEVELS: usize = 64;
/// How much of a body that is too large is still read.
const MOST_FORGOTTEN_BYTES: usize = 8 << 20;

/// A JSON body of type `T`, in which unknown fields are errors, and its text.
pub(super) struct Body<T>(pub(super) T, pub(super) Vec<u8>);

impl<T: DeserializeOwned> FromRequest<Api> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Api) -> Result<Self, Problem> {
        let declared = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
        let media = declared.split(';').next().unwrap_or("").trim();
        let is_json = media.eq_ignore_ascii_case("application/json") || media.to_ascii_lowercase().ends_with("+json");
        let read = read(request.into_body(), api.body_limit_bytes);
        let bytes = tokio::time::timeout(api.body_timeout, read).await.map_err(|_| too_slow(api.body_timeout))?;
        if !is_json {
            let detail = "declare the body with Content-Type: application/json";
            return Err(Problem::new(Code::UnsupportedMediaType, detail));
        }
        let bytes = bytes?;
        parse(&bytes).map(|parsed| Self(parsed, bytes))
    }
}

pub(super) fn too_slow(patience: Duration) -> Problem {
    Problem::new(Code::RequestTimeout, format!("the body did not arrive within {} s", patience.as_secs_f64()))
}

/// Read a body of at most `limit` bytes. The rest of a larger one is read and forgotten, as far as that is bearable: a
/// connection that is closed on a client in the middle of its sentence is reset, and the answer is lost with it.
async fn read(body: axum::body::Body, limit: usize) -> Result<Vec<u8>, Problem> {
    let mut chunks = body.into_data_stream();
    let (mut kept, mut size) = (Vec::new(), 0);
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| Problem::new(Code::InvalidJson, "the body ended before its time"))?;
        size += chunk.len();
        if size <= limit {
            kept.extend_from_slice(&chunk);
        } else if size > limit + MOST_FORGOTTEN_BYTES {
            break;
        }
    }
    if size > limit {
        let detail = format!("the body is larger than {limit} bytes; TICKR_BODY_LIMIT sets the limit");
        return Err(Problem::new(Code::TooLarge, detail));
    }
    Ok(kept)
}

pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // Before any parser that would recurse.
    if deeper_than(bytes, MOST_LEVELS) {
        return Err(Problem::new(Code::TooDeep, format!("the body is nested more than {MOST_LEVELS} levels deep")));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let Object(parsed) =
        serde_path_to_error::deserialize(&mut reader).map_err(|error| match error.inner().classify() {
            serde_json::error::Category::Data => {
                Problem::new(Code::InvalidRequest, "the body is not what this call takes")
                    .at("", vec![handlers::Problem::in_json(error)])
            }
            _ => Problem::new(Code::InvalidJson, error.inner().to_string()),
        })?;
    reader.end().map_err(|error| Problem::new(Code::InvalidJson, error.to_string()))?;
    Ok(parsed)
}

/// A JSON object as `T`. A derived type takes an array of its fields' values as well, which nobody has documented.
#[derive(Debug)]
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields))
            }
        }
        deserializer.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

/// Are brackets outside strings nested deeper than `most`?
fn deeper_than(bytes: &[u8], most: usize) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                if depth > most {
                    return true;
                }
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// The job id in the path.
pub(super) struct IdPath(pub(super) JobId);

impl<S: Send + Sync> FromRequestParts<S> for IdPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let wrong = || {
            Problem::new(Code::InvalidId, "a job id is a hyphenated UUID such as 0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a")
        };
        let Path(text) = Path::<String>::from_request_parts(parts, state).await.map_err(|_| wrong())?;
        text.parse().map(Self).map_err(|_| wrong())
    }
}

/// The name in the path: of a queue, a key, a schedule.
pub(super) struct NamePath(pub(super) Name);

impl<S: Send + Sync> FromRequestParts<S> for NamePath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let wrong = |detail: String| {
            let here = handlers::Problem::at("name", detail);
            Problem::new(Code::InvalidRequest, "the name in the path is no name").at("", vec![here])
        };
        let text = Path::<String>::from_request_parts(parts, state).await;
        let Path(text) = text.map_err(|e| wrong(e.body_text()))?;
        text.parse().map(Self).map_err(|e: InvalidName| wrong(e.to_string()))
    }
}

/// The query string as `T`, in which unknown names are errors.
pub(super) struct Asked<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(asked)| Self(asked)).map_err(|e| Problem::new(Code::InvalidRequest, e.body_text()))
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
    }

    #[test]
    fn depth_is_counted_outside_strings() {
        assert!(!deeper_than(r#"{"a":"[[[[[[\"[[[["}"#.as_bytes(), 2));
        assert!(deeper_than("[[[".as_bytes(), 2));
        assert!(!deeper_than("[][][][]".as_bytes(), 1));
        assert_eq!(problem(&"[".repeat(5_000)).0, Code::TooDeep);
    }
}
