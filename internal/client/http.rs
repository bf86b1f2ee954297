//! A client that calls the API of a runner.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::header;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;

use super::authorities::trusting;
use super::direct::{Receipt, RequestShape};
use super::options::Body;
use super::shared::{Shared, SharedRequests, WaitingJob};
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
    /// The URLs of enqueues, parsed once.
    jobs_url: reqwest::Url,
    batch_url: reqwest::Url,
    token: Option<secrecy::SecretString>,
    http: reqwest::Client,
    shared: SharedRequests,
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
#[derive(Clone, Debug, Deserialize)]
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

/// An answer that does not have a receipt for each job.
#[derive(Debug, thiserror::Error)]
#[error("the answer has {told} receipts for {sent} jobs")]
struct WrongCount {
    told: usize,
    sent: usize,
}

/// The error of a request that several callers shared.
#[derive(Clone, Debug)]
struct SharedError(Arc<dyn std::error::Error + Send + Sync>);

impl fmt::Display for SharedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for SharedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

/// Outcome of a request that carried the jobs of several callers.
enum SharedOutcome {
    /// Receipts, in the order of the jobs.
    Accepted(Vec<Receipt>),
    /// The server wrote nothing, or the request was not sent.
    NothingWritten,
    /// As [`NothingWritten`](Self::NothingWritten): the request was larger than the server accepts.
    TooLarge,
    /// The server could not carry the request out now. This does not depend on its jobs, and a request for each of them
    /// would add to the load of a server that has too much.
    Refused(Refusal),
    /// The jobs may be written. Each caller gets this error.
    Unknown(fn(SharedError) -> Error, SharedError),
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
        let parsed = |path: &str| reqwest::Url::parse(&format!("{url}{path}")).map_err(setup);
        let (jobs_url, batch_url) = (parsed("/v1/jobs")?, parsed("/v1/jobs/batch")?);
        let token = token.map(Into::into);
        Ok(Self { url, jobs_url, batch_url, token, http, shared: SharedRequests::default() })
    }

    /// Enqueue a job. `shares` says that it may share a request with the jobs of other callers.
    pub(super) async fn enqueue_one(
        self: &Arc<Self>,
        body: &Body,
        key: Option<&str>,
        trace: Option<&TraceContext>,
        shares: bool,
    ) -> Result<Enqueued, Error> {
        let text = serde_json::to_vec(body).map_err(setup)?;
        // A job that may conflict with others, or whose request has headers of its own, is sent alone.
        let is_plain = key.is_none() && trace.is_none() && body.is_plain();
        if !(shares && is_plain && self.shared.may_share(text.len())) {
            return self.post_one(text, key, trace, PATIENCE).await;
        }
        let began = Instant::now();
        let (permit, text) = match self.shared.permit_at_once() {
            Some(permit) => (Some(permit), text),
            None => match self.shared.wait(text, PATIENCE, |jobs, permit| self.start_together(jobs, permit)).await {
                Shared::Told(told) => return told,
                Shared::Alone(permit) => (permit, serde_json::to_vec(body).map_err(setup)?),
            },
        };
        let told = self.post_one(text, None, None, PATIENCE.saturating_sub(began.elapsed())).await;
        drop(permit);
        told
    }

    async fn post_one(
        &self,
        text: Vec<u8>,
        key: Option<&str>,
        trace: Option<&TraceContext>,
        patience: Duration,
    ) -> Result<Enqueued, Error> {
        let request = self.post(&self.jobs_url, text).timeout(patience);
        let (status, repeated, receipt) = self.send::<Receipt>(request, key, trace).await?;
        let told = receipt.into_enqueued(repeated);
        Ok(Enqueued { existing: status == 200, ..told })
    }

    /// Send jobs of several callers in a task of its own: a caller that goes away must not take the others with it. The
    /// task ends with the answer, or with the time limit of a call. It stands still if the thread of this caller leaves
    /// its runtime alone, so each caller has a time limit of its own as well.
    fn start_together(self: &Arc<Self>, jobs: Vec<WaitingJob>, permit: Option<OwnedSemaphorePermit>) {
        let remote = Arc::clone(self);
        tokio::spawn(async move { remote.send_together(jobs, permit).await });
    }

    async fn send_together(&self, jobs: Vec<WaitingJob>, permit: Option<OwnedSemaphorePermit>) {
        let text = body_of(&jobs);
        let size_bytes = text.len();
        let outcome = self.post_together(text, jobs.len()).await;
        drop(permit);
        if matches!(outcome, SharedOutcome::TooLarge) {
            self.shared.is_too_large(size_bytes);
        }
        match outcome {
            SharedOutcome::Accepted(receipts) => {
                for (job, receipt) in jobs.into_iter().zip(receipts) {
                    job.tell(Shared::Told(Ok(receipt.into_enqueued(false))));
                }
            }
            // One wrong job fails all of a request. Alone, each gets its own answer.
            SharedOutcome::NothingWritten | SharedOutcome::TooLarge => {
                jobs.into_iter().for_each(|job| job.tell(Shared::Alone(None)));
            }
            SharedOutcome::Refused(refusal) => {
                jobs.into_iter().for_each(|job| job.tell(Shared::Told(Err(refusal.clone().error()))));
            }
            SharedOutcome::Unknown(kind, error) => {
                jobs.into_iter().for_each(|job| job.tell(Shared::Told(Err(kind(error.clone())))));
            }
        }
    }

    async fn post_together(&self, text: Vec<u8>, sent: usize) -> SharedOutcome {
        let response = match self.authorized(self.post(&self.batch_url, text)).send().await {
            Ok(response) => response,
            Err(error) if error.is_builder() || error.is_connect() => return SharedOutcome::NothingWritten,
            Err(error) => return SharedOutcome::Unknown(unavailable, SharedError(Arc::new(error))),
        };
        let status = response.status();
        if status == reqwest::StatusCode::PAYLOAD_TOO_LARGE {
            return SharedOutcome::TooLarge;
        }
        let is_busy = status == reqwest::StatusCode::TOO_MANY_REQUESTS;
        if !status.is_success() && !status.is_server_error() && !may_pass(status) {
            return SharedOutcome::NothingWritten;
        }
        let bytes = match response.bytes().await {
            Ok(bytes) => bytes,
            Err(error) => return SharedOutcome::Unknown(unavailable, SharedError(Arc::new(error))),
        };
        if status.is_server_error() || may_pass(status) {
            return match serde_json::from_slice::<Refusal>(&bytes) {
                Ok(refusal) if status.is_server_error() || is_busy => SharedOutcome::Refused(refusal),
                // The request took too long. Smaller ones may be in time.
                Ok(_) => SharedOutcome::NothingWritten,
                // Not an answer of tickr: of a proxy in front of it, for example.
                Err(error) => SharedOutcome::Unknown(unavailable, SharedError(Arc::new(error))),
            };
        }
        match serde_json::from_slice::<Batch>(&bytes) {
            Ok(batch) if batch.jobs.len() == sent => SharedOutcome::Accepted(batch.jobs),
            Ok(batch) => {
                let wrong = WrongCount { told: batch.jobs.len(), sent };
                SharedOutcome::Unknown(setup, SharedError(Arc::new(wrong)))
            }
            Err(error) => SharedOutcome::Unknown(setup, SharedError(Arc::new(error))),
        }
    }

    pub(super) async fn enqueue_many(
        &self,
        bodies: &[Body],
        shape: RequestShape,
        key: Option<&str>,
        trace: Option<&TraceContext>,
    ) -> Result<Vec<Enqueued>, Error> {
        let body = match shape {
            RequestShape::Chain => json!({"jobs": bodies, "chain": true}),
            RequestShape::One | RequestShape::Many => json!({"jobs": bodies}),
        };
        let request = self.http.post(self.batch_url.clone()).json(&body);
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

    fn post(&self, url: &reqwest::Url, text: Vec<u8>) -> reqwest::RequestBuilder {
        self.http.post(url.clone()).header(header::CONTENT_TYPE, "application/json").body(text)
    }

    fn authorized(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        use secrecy::ExposeSecret as _;
        match &self.token {
            Some(token) => request.bearer_auth(token.expose_secret()),
            None => request,
        }
    }

    /// Send a request. Return the status, whether the answer belongs to an earlier request, and the body.
    async fn call<T: DeserializeOwned>(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<Result<(u16, bool, T), Refusal>, Error> {
        let response = self.authorized(request).send().await.map_err(|error| {
            // A request that cannot even be built, for example because of a key with a line break, fails every time.
            if error.is_builder() { setup(error) } else { unavailable(error) }
        })?;
        let status = response.status();
        if status.is_redirection() {
            let to = response.headers().get(header::LOCATION).map(|to| to.as_bytes().to_vec());
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
            Err(error) if status.is_server_error() || may_pass(status) => Err(unavailable(error)),
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

/// Return whether the same request may succeed later, although the status blames the client: the proxy in front of a
/// runner may limit how many requests come, or how long they take.
fn may_pass(status: reqwest::StatusCode) -> bool {
    use reqwest::StatusCode;
    matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS)
}

/// Make the body of a request with these jobs.
fn body_of(jobs: &[WaitingJob]) -> Vec<u8> {
    let mut text = Vec::with_capacity(16 + jobs.iter().map(|job| job.text.len() + 1).sum::<usize>());
    text.extend_from_slice(b"{\"jobs\":[");
    for (place, job) in jobs.iter().enumerate() {
        if place > 0 {
            text.push(b',');
        }
        text.extend_from_slice(&job.text);
    }
    text.extend_from_slice(b"]}");
    text
}

pub(super) fn unavailable(error: impl std::error::Error + Send + Sync + 'static) -> Error {
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
