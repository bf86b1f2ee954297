//! Refusals of requests, as clients of these interfaces know them. Some are made by the layers around the routes: a
//! missing API key, an unknown method, a body that does not come. So they are translated around all of them.

use axum::body::{Body, to_bytes};
use axum::http::{StatusCode, header};
use axum::response::Response;
use serde_json::{Map, Value};

use crate::compat::CompatRoutes;
use crate::http::problem::Code;

/// Longest problem document. It lists 50 errors of about 1 KiB at most.
const MAX_PROBLEM_BYTES: usize = 1 << 20;

/// An interface of another service.
#[derive(Clone, Copy)]
pub(crate) enum Interface {
    Delayed,
    Later,
}

impl Interface {
    /// Return the interface that serves this path.
    pub(crate) fn of(on: &CompatRoutes, path: &str) -> Option<Self> {
        let delayed = path == "/schedule" || path.starts_with("/cancel/");
        let later = matches!(path, "/create" | "/delete" | "/query");
        (delayed && on.delayed_url.is_some())
            .then_some(Self::Delayed)
            .or_else(|| (later && on.later).then_some(Self::Later))
    }

    /// Return the status by which clients recognise a refusal. They know 400 for every request that is not valid, and
    /// clients of Later know 500 for a service that cannot serve them now.
    const fn status_of(self, status: StatusCode) -> StatusCode {
        match (self, status) {
            (
                _,
                StatusCode::UNPROCESSABLE_ENTITY
                | StatusCode::UNSUPPORTED_MEDIA_TYPE
                | StatusCode::PAYLOAD_TOO_LARGE
                | StatusCode::REQUEST_TIMEOUT,
            ) => StatusCode::BAD_REQUEST,
            (Self::Later, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            (_, status) => status,
        }
    }

    async fn translate(self, response: Response) -> Response {
        let (mut parts, body) = response.into_parts();
        parts.status = self.status_of(parts.status);
        let text = to_bytes(body, MAX_PROBLEM_BYTES).await.unwrap_or_default();
        // An answer to HEAD has no document.
        let Ok(mut problem) = serde_json::from_slice::<Map<String, Value>>(&text) else {
            return Response::from_parts(parts, Body::from(text));
        };
        problem.insert("status".to_owned(), parts.status.as_u16().into());
        if let Self::Delayed = self {
            let error = problem.get("detail").cloned().unwrap_or_default();
            problem.extend([("success".to_owned(), false.into()), ("error".to_owned(), error)]);
        }
        parts.headers.remove(header::CONTENT_LENGTH);
        Response::from_parts(parts, Body::from(Value::Object(problem).to_string()))
    }
}

/// Let the clients of this interface understand the problem document that answers them.
pub(crate) async fn translate(interface: Option<Interface>, response: Response) -> Response {
    // Every problem document has its code beside it.
    match interface.filter(|_| response.extensions().get::<Code>().is_some()) {
        Some(interface) => interface.translate(response).await,
        None => response,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_not_valid_gets_400_and_later_knows_500_when_it_cannot_be_served() {
        let both = |status| [Interface::Delayed, Interface::Later].map(|one| one.status_of(status).as_u16());
        for status in [
            StatusCode::BAD_REQUEST,
            StatusCode::UNPROCESSABLE_ENTITY,
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            StatusCode::PAYLOAD_TOO_LARGE,
            StatusCode::REQUEST_TIMEOUT,
        ] {
            assert_eq!(both(status), [400, 400], "{status}");
        }
        assert_eq!(both(StatusCode::SERVICE_UNAVAILABLE), [503, 500]);
        assert_eq!(both(StatusCode::TOO_MANY_REQUESTS), [429, 500]);
        assert_eq!(both(StatusCode::METHOD_NOT_ALLOWED), [405, 405]);
    }
}
