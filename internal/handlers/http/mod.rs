//! Kind `http`: a signed callback to another service.
//!
//! One request, no redirects, no proxy, to the public internet and what the operator allows beside it (`guard.rs`), over
//! connections that are used again, HTTP/2 where the receiver offers it. The receiver recognises a repetition by `webhook-id` (the job's id) and a late attempt by `tickr-attempt-token`; with
//! secrets configured it can check that the body is ours (`signature.rs`).
//!
//! The status alone decides: 2xx succeeded, 408, 429 and 5xx are retried (or snoozed, when the receiver says
//! `Retry-After`), everything else is rejected. Of the body a little is kept for people to read.

mod check;
mod exchange;
mod guard;
mod response;
mod secrets;
mod signature;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use reqwest::{Client, Url, redirect};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout};

pub use self::exchange::of_success as exchange_of_success;
use self::guard::{Guard, Lookup, Refused, Rule, SystemLookup};
use self::response::Reply;
pub use self::secrets::CallbackSecrets;
pub use self::signature::{InvalidSecret, SigningSecret};
use super::{Context, Failure, Handler, Kind, KindDefaults, Outcome, Output, Problem};
use crate::config::Allowed;

/// A callback to make.
///
/// Its headers are stored with the job in clear. Prefer the signature over credentials in a header.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpCallback {
    /// The method; `POST` when absent.
    #[serde(default)]
    pub method: Method,
    /// Where to: an absolute `http` or `https` URL without user name and password.
    #[schemars(length(min = 1, max = 2_048))]
    pub url: String,
    /// Headers of your own. Those of the connection, of the signature and `tickr-*` are not yours to set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub headers: BTreeMap<String, String>,
    /// The body, sent byte for byte as JSON; null is the same as none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Value>")]
    pub body: Option<Box<RawValue>>,
    /// How long to wait for the answer, in milliseconds; 30 seconds when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 30_000))]
    pub timeout_ms: Option<u64>,
}

/// The methods a callback may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "they are HTTP's own")]
pub enum Method {
    Get,
    #[default]
    Post,
    Put,
    Patch,
    Delete,
    Head,
}

impl From<Method> for reqwest::Method {
    fn from(method: Method) -> Self {
        match method {
            Method::Get => Self::GET,
            Method::Post => Self::POST,
            Method::Put => Self::PUT,
            Method::Patch => Self::PATCH,
            Method::Delete => Self::DELETE,
            Method::Head => Self::HEAD,
        }
    }
}

impl HttpCallback {
    /// A `POST` of `body` to `url`.
    ///
    /// # Errors
    /// When the body cannot be written as JSON.
    pub fn post<T: Serialize + ?Sized>(url: impl Into<String>, body: &T) -> serde_json::Result<Self> {
        Ok(Self {
            method: Method::Post,
            url: url.into(),
            headers: BTreeMap::new(),
            body: Some(serde_json::value::to_raw_value(body)?),
            timeout_ms: None,
        })
    }

    fn body_bytes(&self) -> &[u8] {
        self.body.as_ref().map_or(&[], |body| body.get().as_bytes())
    }
}

impl Kind for HttpCallback {
    const NAME: &'static str = "http";
}

/// What the operator decides about callbacks.
#[derive(Clone, Debug)]
pub struct CallbackSettings {
    /// The secrets that sign.
    pub secrets: CallbackSecrets,
    /// May callbacks reach loopback, private and other special addresses? Cloud metadata they may not.
    pub allow_private: bool,
    /// Hosts and networks beside the public internet that callbacks may reach.
    pub allow: Vec<Allowed>,
    /// Idle connections kept for each receiver: as many as callbacks may be under way at once.
    pub idle: usize,
}

impl Default for CallbackSettings {
    fn default() -> Self {
        Self { secrets: CallbackSecrets::default(), allow_private: false, allow: Vec::new(), idle: 64 }
    }
}

impl CallbackSettings {
    /// Why a URL can never be called, if that is so. Looks its host up, if it has a name.
    pub async fn problem_of(&self, url: &str) -> Option<String> {
        let rule = Rule::new(self.allow_private, self.allow.clone());
        let callback = HttpCallback::post(url, &()).ok()?;
        if let Some(problem) = check::problems(&callback, &rule).into_iter().next() {
            return Some(problem.detail);
        }
        let judged = async { guard::check_name(&Url::parse(url).ok()?, &rule, &SystemLookup).await.err() };
        // Who answers for names may be out at this moment.
        timeout(LOOKUP_TIMEOUT, judged).await.ok().flatten().map(|refused| refused.to_string())
    }
}

/// The HTTP client could not be built.
#[derive(Debug, thiserror::Error)]
pub enum CallbackSetupError {
    /// No TLS configuration is possible.
    #[error("set up tls for callbacks")]
    Tls(#[from] rustls::Error),
    /// The client refused its settings.
    #[error("build the http client for callbacks")]
    Client(#[from] reqwest::Error),
}

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for an answer, and what a callback gets that asks for nothing else.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an idle connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the one connection of a receiver that speaks HTTP/2 is asked whether it lives while it is in use, and how long it
/// may take to say so: without that, every callback of a connection that died silently would time out.
const ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(10));
/// Longest wait for an answer about a name at the start.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// Shorter values of headers are no secrets.
const SECRET_CHARS: usize = 8;

/// Makes callbacks.
pub struct HttpHandler {
    client: Client,
    secrets: CallbackSecrets,
    rule: Rule,
}

impl HttpHandler {
    /// A handler with a client of its own.
    ///
    /// # Errors
    /// When the HTTP client cannot be built.
    pub fn new(settings: CallbackSettings) -> Result<Self, CallbackSetupError> {
        let CallbackSettings { secrets, allow_private, allow, idle } = settings;
        let roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        Self::with_guard(secrets, Rule::new(allow_private, allow), idle, Arc::new(SystemLookup), roots)
    }

    fn with_guard(
        secrets: CallbackSecrets,
        rule: Rule,
        idle: usize,
        lookup: Arc<dyn Lookup>,
        roots: rustls::RootCertStore,
    ) -> Result<Self, CallbackSetupError> {
        // A provider and roots of our own: what else runs in the process may install another provider or none.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .dns_resolver(Guard { rule: rule.clone(), lookup })
            // A redirect would lead to a target nobody checked, and a proxy from the environment would resolve names
            // by itself, behind the guard's back.
            .redirect(redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_max_idle_per_host(idle)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .http2_keep_alive_interval(ALIVE.0)
            .http2_keep_alive_timeout(ALIVE.1)
            .build()?;
        Ok(Self { client, secrets, rule })
    }

    /// The headers of a callback: the caller's, then ours, which the caller's cannot override.
    fn headers(&self, callback: &HttpCallback, url: &Url, ctx: &Context) -> Result<HeaderMap, Failure> {
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("tickr/", env!("CARGO_PKG_VERSION"))));
        if callback.body.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        for (name, value) in &callback.headers {
            let mut value = header_value(value)?;
            value.set_sensitive(true);
            headers.insert(HeaderName::from_bytes(name.as_bytes()).map_err(unusable)?, value);
        }
        let id = ctx.job_id().to_string();
        headers.insert("tickr-job-id", header_value(&id)?);
        headers.insert("tickr-attempt", ctx.attempt().into());
        headers.insert("tickr-attempt-token", header_value(&ctx.token().to_string())?);
        // A caller that set the trace in the payload means that one.
        if let Some(trace) = ctx.trace().filter(|_| !headers.contains_key("traceparent")) {
            headers.insert("traceparent", header_value(&trace.place.to_string())?);
            if let Some(state) = &trace.state {
                headers.insert("tracestate", header_value(state)?);
            }
        }
        let now = Utc::now().timestamp();
        if let Some(signature) = signature::header(self.secrets.of(url), &id, now, callback.body_bytes()) {
            headers.insert("webhook-id", header_value(&id)?);
            headers.insert("webhook-timestamp", now.into());
            headers.insert("webhook-signature", header_value(&signature)?);
        }
        Ok(headers)
    }

    async fn call(&self, callback: &HttpCallback, url: Url, ctx: &Context) -> Outcome {
        let target = format!("{} {}", reqwest::Method::from(callback.method), exchange::endpoint(&url));
        let own_limit = callback.timeout_ms.map_or(TOTAL_TIMEOUT, Duration::from_millis);
        let limit = own_limit.min(TOTAL_TIMEOUT).min(ctx.time_left());
        let headers = self.headers(callback, &url, ctx)?;
        let secrets = secrets_of(callback, &headers);
        // Known before it is answered: who stops an attempt that waits, sees for whom it waits.
        let mut exchange = exchange::request(callback.method, &url);
        ctx.keep_exchange(exchange.clone());
        let started = Instant::now();
        let mut request = self.client.request(callback.method.into(), url).headers(headers).timeout(limit);
        if let Some(body) = &callback.body {
            request = request.body(body.get().to_owned());
        }
        let sent = timeout(limit, request.send()).await;
        exchange.took_ms = Some(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX));
        let mut response = match sent {
            Ok(Ok(response)) => response,
            unanswered => {
                ctx.keep_exchange(exchange);
                return Err(match unanswered {
                    Ok(Err(error)) => failure(&target, error, limit),
                    Ok(Ok(_)) | Err(_) => timed_out(&target, limit),
                });
            }
        };
        let reply = Reply::read(&mut response, started + limit, &secrets).await;
        exchange.response = Some(reply.shown(exchange::headers(response.headers())));
        ctx.keep_exchange(exchange);
        reply.judge(&target, started.elapsed())
    }
}

impl Handler for HttpHandler {
    type Payload = HttpCallback;

    fn check(&self, callback: &HttpCallback) -> Vec<Problem> {
        check::problems(callback, &self.rule)
    }

    fn defaults(&self) -> KindDefaults {
        // Twice the longest wait: the attempt's own limit should never be the one that strikes first.
        KindDefaults { timeout: 2 * TOTAL_TIMEOUT, ..KindDefaults::default() }
    }

    async fn run(&self, callback: HttpCallback, ctx: Context) -> Outcome {
        // Again, and not only at enqueue: the rule may have changed since, and this is the gate that counts.
        if let Some(problem) = self.check(&callback).into_iter().next() {
            return Err(Failure::reject(format!("make the callback: {} {}", problem.pointer, problem.detail)));
        }
        let url = Url::parse(&callback.url).map_err(|e| Failure::reject(format!("read the url: {e}")))?;
        tokio::select! {
            biased;
            () = ctx.stopped() => Err(Failure::retry("callback stopped before the receiver answered")),
            outcome = self.call(&callback, url, &ctx) => outcome,
        }
    }
}

/// What was sent and must not be kept, should the receiver send it back: values of the caller's headers, the signature
/// and the token of the attempt. Short ones are words that anybody may say.
fn secrets_of(callback: &HttpCallback, headers: &HeaderMap) -> Vec<String> {
    let ours = ["webhook-signature", "tickr-attempt-token"];
    let ours = ours.into_iter().filter_map(|name| headers.get(name)?.to_str().ok().map(str::to_owned));
    let words = callback.headers.values().flat_map(|value| value.split_whitespace()).map(str::to_owned);
    // A header of two signatures is two words as well.
    let ours: Vec<String> = ours.flat_map(|value| value.split(' ').map(str::to_owned).collect::<Vec<_>>()).collect();
    ours.into_iter().chain(words).filter(|word| word.len() >= SECRET_CHARS).collect()
}

fn header_value(text: &str) -> Result<HeaderValue, Failure> {
    HeaderValue::from_str(text).map_err(unusable)
}

/// Headers pass the check first, so this is a mistake of ours: no retry helps.
fn unusable(error: impl std::fmt::Display) -> Failure {
    Failure::reject(format!("write the headers of the callback: {error}"))
}

fn timed_out(target: &str, limit: Duration) -> Failure {
    Failure::retry(format!("{target} did not answer within {} ms", limit.as_millis()))
}

/// What a failed request comes to. Texts name the endpoint: a query may hold secrets.
fn failure(target: &str, error: reqwest::Error, limit: Duration) -> Failure {
    let error = error.without_url();
    let mut causes = Vec::new();
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(refused) = inner.downcast_ref::<Refused>() {
            return Failure::reject(format!("{target} was not called: {refused}"));
        }
        causes.push(inner.to_string());
        cause = inner.source();
    }
    // The client's own limit is as long as ours and may strike first; connecting has a shorter one.
    if error.is_timeout() && !error.is_connect() {
        return timed_out(target, limit);
    }
    causes.dedup();
    let causes = if causes.is_empty() { error.to_string() } else { causes.join(": ") };
    if error.is_builder() {
        return Failure::reject(format!("{target} was not called: {causes}"));
    }
    Failure::retry(format!("{target} could not be called: {causes}"))
}
