//! A client that calls the API of a runner.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::authorities::trusting;
use super::direct::Receipt;
use super::options::Body;
use super::status::JobStatus;
use super::{Cancelled, Conflict, Enqueued, Error};
use tickr_handlers::Problem;
use tickr_job::{JobId, State, TraceContext};

const ATTEMPTED: &str = "call the API of tickr";
/// Longest time of one call. A runner answers within it also while MySQL is slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// The API of a runner, or of a load balancer in front of several.
pub(super) struct Remote {
    /// It may have the user and the password of a proxy.
    url: String,
    token: Option<secrecy::SecretString>,
    http: reqwest::Client,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.url.parse().ok().and_then(|mut url: reqwest::Url| {
            url.set_username("").and_then(|()| url.set_password(None)).ok()?;
            Some(url)
        });
        f.debug_struct("Remote").field("url", &url.as_ref().map(reqwest::Url::as_str)).finish_non_exhaustive()
    }
}

/// A problem document, as far as a client reads it.
#[derive(Debug, Deserialize)]
struct Refusal {
    code: String,
    detail: String,
    #[serde(default)]
    errors: Vec<Problem>,
    holder: Option<JobId>,
    current_state: Option<State>,
}

#[derive(Debug, Deserialize)]
struct Batch {
    jobs: Vec<Receipt>,
}

/// The answer of the API that a client could not use.
#[derive(Debug, thiserror::Error)]
#[error("{code}: {detail}")]
struct Answered {
    code: String,
    detail: String,
}

/// A URL that is a list. A comma may stand in a host, so such a list would be read as one strange URL.
#[derive(Debug, thiserror::Error)]
#[error("the URL names several servers, and this client takes one")]
struct SeveralServers;

/// An answer that sends the client elsewhere.
#[derive(Debug, thiserror::Error)]
#[error("the server redirects to {to:?}; use the URL behind the redirect")]
struct Redirected {
    to: String,
}

impl Remote {
    pub(super) fn new(url: &str, token: Option<&str>) -> Result<Self, Error> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        if url.split(',').skip(1).any(|more| more.trim_start().starts_with("http")) {
            return Err(setup(SeveralServers));
        }
        let url = reqwest::Url::parse(url).map_err(setup)?;
        let http = trusting(&url, || reqwest::Client::builder().timeout(PATIENCE)).map_err(setup)?;
        let url = url.as_str().trim_end_matches('/').to_owned();
        Ok(Self { url, token: token.map(Into::into), http })
    }

    pub(super) async fn enqueue_one(
        &self,
        body: &Body,
        key: Option<&str>,
        trace: Option<&TraceContext>,
    ) -> Result<Enqueued, Error> {
        let request = self.http.post(format!("{}/v1/jobs", self.url)).json(body);
        let (status, repeated, receipt) = self.send::<Receipt>(request, key, trace).await?;
        let told = receipt.into_enqueued(repeated);
        Ok(Enqueued { existing: status == 200, ..told })
    }

    pub(super) async fn enqueue_many(
        &self,
        bodies: &[Body],
        key: Option<&str>,
        trace: Option<&TraceContext>,
    ) -> Result<Vec<Enqueued>, Error> {
        let request = self.http.post(format!("{}/v1/jobs/batch", self.url)).json(&json!({"jobs": bodies}));
        let (_, repeated, batch) = self.send::<Batch>(request, key, trace).await?;
        Ok(batch.jobs.into_iter().map(|receipt| receipt.into_enqueued(repeated)).collect())
    }

    pub(super) async fn status(&self, id: JobId) -> Result<Option<JobStatus>, Error> {
        let request = self.http.get(format!("{}/v1/jobs/{id}", self.url));
        match self.call::<JobStatus>(request).await? {
            Ok((_, _, status)) => Ok(Some(status)),
            Err(refusal) if refusal.code == "not_found" => Ok(None),
            Err(refusal) => Err(refusal.error()),
        }
    }

    pub(super) async fn cancel(&self, id: JobId) -> Result<Cancelled, Error> {
        let request = self.http.post(format!("{}/v1/jobs/{id}/cancel", self.url));
        match self.call::<serde::de::IgnoredAny>(request).await? {
            Ok((202, ..)) => Ok(Cancelled::StopRequested),
            Ok(_) => Ok(Cancelled::Done),
            Err(refusal) => match (refusal.code.as_str(), refusal.current_state) {
                ("not_found", _) => Ok(Cancelled::Missing),
                ("wrong_state", Some(state)) => Ok(Cancelled::Ended(state)),
                _ => Err(refusal.error()),
            },
        }
    }

    pub(super) async fn nudge(&self) -> Result<(), Error> {
        let request = self.http.post(format!("{}/v1/outbox/nudge", self.url));
        self.call::<serde::de::IgnoredAny>(request).await?.map(drop).map_err(Refusal::error)
    }

    async fn send<T: DeserializeOwned>(
        &self,
        request: reqwest::RequestBuilder,
        key: Option<&str>,
        trace: Option<&TraceContext>,
    ) -> Result<(u16, bool, T), Error> {
        let request = match key {
            Some(key) => request.header("idempotency-key", key),
            None => request,
        };
        let request = match trace {
            Some(trace) => request.header("traceparent", trace.span_context.to_string()),
            None => request,
        };
        self.call(request).await?.map_err(Refusal::error)
    }

    /// Send a request. Return the status, whether the answer belongs to an earlier request, and the body.
    async fn call<T: DeserializeOwned>(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<Result<(u16, bool, T), Refusal>, Error> {
        use secrecy::ExposeSecret as _;
        let request = match &self.token {
            Some(token) => request.bearer_auth(token.expose_secret()),
            None => request,
        };
        let response = request.send().await.map_err(|error| {
            // A request that cannot even be built, for example because of a key with a line break, fails every time.
            if error.is_builder() { setup(error) } else { unavailable(error) }
        })?;
        let status = response.status();
        if status.is_redirection() {
            let to = response.headers().get(reqwest::header::LOCATION).map(|to| to.as_bytes().to_vec());
            let to = String::from_utf8_lossy(&to.unwrap_or_default()).into_owned();
            return Err(setup(Redirected { to }));
        }
        let repeated = response.headers().contains_key("idempotency-replayed");
        let bytes = response.bytes().await.map_err(unavailable)?;
        if status.is_success() {
            // 204 has no body.
            let text: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
            let body = serde_json::from_slice(text).map_err(setup)?;
            return Ok(Ok((status.as_u16(), repeated, body)));
        }
        match serde_json::from_slice::<Refusal>(&bytes) {
            Ok(refusal) => Ok(Err(refusal)),
            // Not an answer of tickr: of a proxy in front of it, for example.
            Err(error) if status.is_server_error() => Err(unavailable(error)),
            Err(error) => Err(setup(error)),
        }
    }
}

impl Refusal {
    fn error(self) -> Error {
        let Self { code, detail, errors, holder, current_state } = self;
        match (code.as_str(), holder) {
            ("unique_key_taken", Some(holder)) => Error::Conflict(Conflict::UniqueKey { holder, state: current_state }),
            ("idempotency_conflict", _) => Error::Conflict(Conflict::IdempotencyKey),
            ("idempotency_in_progress", _) => Error::Conflict(Conflict::InProgress),
            (
                "invalid_request" | "unknown_kind" | "invalid_payload" | "too_deep" | "too_large" | "unique_key_taken",
                _,
            ) => Error::Refused { detail, problems: errors, source: None },
            ("store_unavailable" | "overloaded" | "stopping" | "request_timeout" | "internal", _) => {
                unavailable(Answered { code, detail })
            }
            _ => setup(Answered { code, detail }),
        }
    }
}

fn unavailable(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Unavailable { attempted: ATTEMPTED, source: Box::new(error) }
}

fn setup(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Setup { attempted: ATTEMPTED, source: Box::new(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_debug_form_of_a_client_shows_neither_the_token_nor_the_password_of_its_url() {
        let remote = Remote::new("https://user:canary-password@tickr.example.com/base/", Some("canary-token")).unwrap();
        let shown = format!("{remote:?}");
        assert!(shown.contains("https://tickr.example.com/base"), "{shown}");
        assert!(!shown.contains("canary") && !shown.contains("user"), "{shown}");
    }
}
