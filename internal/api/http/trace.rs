//! The W3C trace context of a request.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};

use crate::Api;
use crate::http::problem::Problem;
use tickr_job::TraceContext;
use tickr_telemetry::RequestSpan;

/// The span of a request that enqueues jobs. It begins when the headers have been read. Headers that are not valid W3C
/// Trace Context are ignored, so that no job is refused because of its trace.
pub(crate) struct RequestTrace(pub(crate) RequestSpan);

impl FromRequestParts<Api> for RequestTrace {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Infallible> {
        Ok(Self(api.tracer.request(caller(parts))))
    }
}

fn caller(parts: &Parts) -> Option<TraceContext> {
    let mut parents = parts.headers.get_all("traceparent").into_iter();
    let parent = parents.next()?.to_str().ok()?;
    if parents.next().is_some() {
        // With several parents it is not clear which one is meant.
        return None;
    }
    // The specification allows one list in several headers.
    let states: Option<Vec<&str>> =
        parts.headers.get_all("tracestate").into_iter().map(|value| value.to_str().ok()).collect();
    TraceContext::parse(parent.trim(), states.map(|states| states.join(",")).as_deref())
}

/// The span of an import. It exists only when the client sent a trace: a trace that began here would have an attempt
/// for every line, of any number. The span ends with the response, also when the client does not wait for it.
pub(crate) struct ImportSpan {
    span: Option<RequestSpan>,
    status: StatusCode,
}

impl FromRequestParts<Api> for ImportSpan {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Infallible> {
        let span = caller(parts).map(|caller| api.tracer.request(Some(caller)));
        Ok(Self { span, status: StatusCode::OK })
    }
}

impl ImportSpan {
    /// Return the trace that the jobs of the import continue, unless their lines name one.
    pub(crate) fn trace_context(&self) -> Option<&TraceContext> {
        self.span.as_ref().and_then(RequestSpan::trace_context)
    }

    /// End the span with a refusal.
    pub(crate) fn refused(mut self, problem: Problem) -> Response {
        let response = problem.into_response();
        self.status = response.status();
        response
    }
}

impl Drop for ImportSpan {
    fn drop(&mut self) {
        if let Some(span) = self.span.take() {
            span.end("/v1/jobs/import", self.status.as_u16());
        }
    }
}

impl RequestTrace {
    /// End the span with the response.
    pub(crate) fn end_with(self, route: &'static str, answer: Result<Response, Problem>) -> Response {
        let response = answer.into_response();
        self.0.end(route, response.status().as_u16());
        response
    }
}
