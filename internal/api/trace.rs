//! The trace that a request comes with.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};

use super::Api;
use super::problem::Problem;
use crate::job::TraceContext;
use crate::telemetry::RequestSpan;

/// The span of a request that enqueues, begun when its headers were read. Headers that are not W3C Trace Context are taken
/// for none: no job is refused for its trace.
pub(super) struct Traced(pub(super) RequestSpan);

impl FromRequestParts<Api> for Traced {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Infallible> {
        Ok(Self(api.tracer.request(caller(parts))))
    }
}

fn caller(parts: &Parts) -> Option<TraceContext> {
    let mut parents = parts.headers.get_all("traceparent").into_iter();
    let parent = parents.next()?.to_str().ok()?;
    if parents.next().is_some() {
        // Which of them is meant, nobody can tell.
        return None;
    }
    // One list may be sent in several headers.
    let states: Option<Vec<&str>> =
        parts.headers.get_all("tracestate").into_iter().map(|value| value.to_str().ok()).collect();
    TraceContext::parse(parent.trim(), states.map(|states| states.join(",")).as_deref())
}

impl Traced {
    /// End the span with the answer.
    pub(super) fn answered(self, route: &'static str, answer: Result<Response, Problem>) -> Response {
        let response = answer.into_response();
        self.0.end(route, response.status().as_u16());
        response
    }
}
