//! Kind `http`: a signed callback to another service.
//!
//! One request, without redirects and without a proxy. It goes to the public internet and to what the operator allows
//! in addition (`guard.rs`). Connections are reused (`clients.rs`), with HTTP/2 where the receiver offers it. The
//! receiver recognises a repetition by `webhook-id` (the job's id) and a late attempt by `tickr-attempt-token`. With
//! configured secrets it can check that tickr sent the body (`signature.rs`).
//!
//! Usually the status decides: 2xx succeeds; 408, 429 and 5xx are retried, or snoozed when the receiver sends
//! `Retry-After`; everything else is rejected. A callback may bring a rule of its own, also about a value in the body
//! (`answer.rs`). The start of the response body is kept for operators.
//!
//! - `answer.rs`: the rule of a callback about its answers
//! - `check.rs`: checks of a payload beyond its schema
//! - `clients.rs`: the HTTP clients, and the receivers whose connections are kept
//! - `guard.rs`: the addresses that callbacks may reach
//! - `secrets.rs`: signing secrets by receiver
//! - `signature.rs`: Standard Webhooks signatures
//! - `push.rs`: calls to the receivers of declared kinds
//! - `response.rs`: the response, and the outcome that follows from it
//! - `sent_back.rs`: values that were sent, hidden where the receiver sends them back
//! - `host.rs`: the host of a URL, by which limits count callbacks
//! - `exchange.rs`: the request and the response without their secrets, for operators
//! - `tests.rs`: tests against receivers on this machine

mod answer;
mod check;
mod clients;
mod exchange;
mod guard;
mod host;
mod push;
mod response;
mod secrets;
mod sent_back;
mod signature;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use reqwest::{Client, Response, StatusCode, Url, redirect};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout};

pub use self::answer::{AnswerRule, AnswerVerdict};
use self::clients::{Clients, IDLE_TIMEOUT};
pub use self::exchange::{exchange_of_success, shown_url};
use self::guard::{Guard, Lookup, Refused, Rule, SystemLookup};
pub use self::host::{host_of_url, is_host};
pub(crate) use self::push::PushHandler;
use self::response::Reply;
pub use self::secrets::CallbackSecrets;
pub use self::signature::{InvalidSecret, SigningSecret};
use super::{Context, Failure, FinishLater, Handler, Kind, KindDefaults, Outcome, Output, Problem};
use tickr_config::Allowed;
use tickr_job::{Exchange, limits};

/// A callback to send.
///
/// Its headers are stored with the job in clear text. Prefer the signature over credentials in a header.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpCallback {
    /// HTTP method. Default: `POST`.
    #[serde(default)]
    pub method: Method,
    /// Target: an absolute `http` or `https` URL without user name and password.
    #[schemars(length(min = 1, max = 2_048))]
    pub url: String,
    /// Headers to send. Headers of the connection, of the signature and `tickr-*` cannot be set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub headers: BTreeMap<String, String>,
    /// Body, sent byte for byte as JSON. Null and no value both mean no body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Value>")]
    pub body: Option<Box<RawValue>>,
    /// Time limit for the response, in milliseconds, at most the setting `callback_timeout` of the runner, which is 30 seconds
    /// unless an operator raises it. Default: 30 seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400_000))]
    pub timeout_ms: Option<u64>,
    /// The receiver may answer 202, work on, and finish the attempt later, with the key in the header `tickr-finish-key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "FinishRule")]
    pub finish: Option<FinishRule>,
    /// How the answer is judged. Default: 2xx is a success, 408, 429 and 5xx are tried again, and everything else has
    /// failed for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<AnswerRule>,
}

/// How long a receiver that answers 202 may take to finish the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FinishRule {
    /// Time until the attempt must be finished, in milliseconds, at most seven days. Then it has timed out.
    #[schemars(range(min = 1_000, max = 604_800_000))]
    pub within_ms: u64,
    /// Longest time between two reports, in milliseconds. Without one for longer, the attempt has timed out. Default: the
    /// receiver need not report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1_000, max = 604_800_000))]
    pub report_within_ms: Option<u64>,
}

impl From<FinishRule> for FinishLater {
    fn from(rule: FinishRule) -> Self {
        let report_within = rule.report_within_ms.map(Duration::from_millis);
        Self { within: Duration::from_millis(rule.within_ms), report_within }
    }
}

/// HTTP methods of callbacks.
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
    /// Make a `POST` of `body` to `url`.
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
            finish: None,
            answer: None,
        })
    }

    fn body_bytes(&self) -> &[u8] {
        self.body.as_ref().map_or(&[], |body| body.get().as_bytes())
    }
}

impl Kind for HttpCallback {
    const NAME: &'static str = "http";

    fn host(&self) -> Option<String> {
        host_of_url(&self.url)
    }
}

/// The operator's settings for callbacks.
#[derive(Clone, Debug)]
pub struct CallbackSettings {
    /// Secrets that sign callbacks.
    pub secrets: CallbackSecrets,
    /// True when callbacks may reach loopback, private and other special addresses. Cloud metadata stays refused.
    pub allow_private: bool,
    /// Hosts and networks that callbacks may reach in addition to the public internet.
    pub allow: Vec<Allowed>,
    /// Idle connections kept for each receiver: as many as callbacks may run at the same time. The number for all
    /// receivers together is bounded.
    pub idle: usize,
    /// Longest time limit that a callback may have.
    pub longest: Duration,
    /// Certificates of authorities in PEM that are trusted besides the public ones. May be empty.
    pub authorities: Vec<u8>,
}

impl Default for CallbackSettings {
    fn default() -> Self {
        Self {
            secrets: CallbackSecrets::default(),
            allow_private: false,
            allow: Vec::new(),
            idle: 64,
            longest: TOTAL_TIMEOUT,
            authorities: Vec::new(),
        }
    }
}

impl CallbackSettings {
    /// Return the reason why a URL can never be called, if its text alone shows one.
    #[must_use]
    pub fn problem_of_text(&self, url: &str) -> Option<String> {
        let rule = Rule::new(self.allow_private, self.allow.clone());
        let callback = HttpCallback::post(url, &()).ok()?;
        check::problems(&callback, &rule, self.longest).into_iter().next().map(|problem| problem.detail)
    }

    /// Return the reason why a URL can never be called, if there is one. Resolve its host name, if it has one.
    pub async fn problem_of(&self, url: &str) -> Option<String> {
        if let Some(problem) = self.problem_of_text(url) {
            return Some(problem);
        }
        let rule = Rule::new(self.allow_private, self.allow.clone());
        let judged = async { guard::check_name(&Url::parse(url).ok()?, &rule, &SystemLookup).await.err() };
        // The DNS server may be unreachable at this moment. No result within the limit means no problem.
        timeout(LOOKUP_TIMEOUT, judged).await.ok().flatten().map(|refused| refused.to_string())
    }
}

/// Error: the HTTP client could not be built.
#[derive(Debug, thiserror::Error)]
pub enum CallbackSetupError {
    /// The TLS configuration could not be built.
    #[error("set up tls for callbacks")]
    Tls(#[from] rustls::Error),
    /// The file of additional authorities has no certificate, or one that cannot be read.
    #[error("read the certificates of callback_ca_file: {0}")]
    Authorities(String),
    /// The HTTP client refused its settings.
    #[error("build the http client for callbacks")]
    Client(#[from] reqwest::Error),
}

/// Time limit for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for the response of callbacks that set none.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between pings on an HTTP/2 connection in use, and the time limit for each answer. Without pings, every
/// callback over a connection that died silently would time out.
const ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(10));
/// Time limit for a DNS lookup at the start.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// Shorter header values are not treated as secrets.
const SECRET_CHARS: usize = 8;

/// The handler that sends callbacks.
pub struct HttpHandler {
    clients: Clients,
    secrets: CallbackSecrets,
    rule: Rule,
    longest: Duration,
}

impl std::fmt::Debug for HttpHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HttpHandler")
    }
}

impl HttpHandler {
    /// Make a handler with its own HTTP client.
    ///
    /// # Errors
    /// When the HTTP client cannot be built.
    pub fn new(settings: CallbackSettings) -> Result<Self, CallbackSetupError> {
        let CallbackSettings { secrets, allow_private, allow, idle, longest, authorities } = settings;
        let roots = roots(&authorities)?;
        let handler = Self::with_guard(secrets, Rule::new(allow_private, allow), idle, Arc::new(SystemLookup), roots)?;
        Ok(Self { longest, ..handler })
    }

    fn with_guard(
        secrets: CallbackSecrets,
        rule: Rule,
        idle: usize,
        lookup: Arc<dyn Lookup>,
        roots: rustls::RootCertStore,
    ) -> Result<Self, CallbackSetupError> {
        // Own provider and own roots: other code in the process may install another provider or none.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let guarded = rule.clone();
        let clients = Clients::new(idle, move |idle| {
            Client::builder()
                .tls_backend_preconfigured(tls.clone())
                .dns_resolver(Guard { rule: guarded.clone(), lookup: Arc::clone(&lookup) })
                // A redirect would lead to a target that was not checked. A proxy from the environment would resolve
                // names itself and bypass the guard.
                .redirect(redirect::Policy::none())
                .no_proxy()
                .connect_timeout(CONNECT_TIMEOUT)
                .pool_max_idle_per_host(idle)
                .pool_idle_timeout(IDLE_TIMEOUT)
                .http2_keep_alive_interval(ALIVE.0)
                .http2_keep_alive_timeout(ALIVE.1)
                .build()
        })?;
        Ok(Self { clients, secrets, rule, longest: TOTAL_TIMEOUT })
    }

    /// Return the longest time limit that a callback may have.
    pub(crate) const fn longest(&self) -> Duration {
        self.longest
    }

    /// The headers of a callback: first those of the payload, then those of tickr, which override them.
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
        // A `traceparent` in the payload takes precedence over the trace of the job.
        if let Some(trace) = ctx.trace().filter(|_| !headers.contains_key("traceparent")) {
            headers.insert("traceparent", header_value(&trace.span_context.to_string())?);
            if let Some(state) = &trace.state {
                headers.insert("tracestate", header_value(state)?);
            }
        }
        // A receiver refuses a call whose time is minutes off, so a wrong clock of this host must not play a part.
        let now = ctx.now().timestamp();
        if let Some(signature) = signature::header(self.secrets.for_url(url), &id, now, callback.body_bytes()) {
            headers.insert("webhook-id", header_value(&id)?);
            headers.insert("webhook-timestamp", now.into());
            headers.insert("webhook-signature", header_value(&signature)?);
        }
        Ok(headers)
    }

    /// Make the call. It has ended when the status is known.
    async fn call(&self, callback: &HttpCallback, url: Url, ctx: &Context) -> Result<Answered, Failure> {
        let target = format!("{} {}", reqwest::Method::from(callback.method), exchange::endpoint(&url));
        ctx.host_call_is_to_come();
        // First, because it waits while MySQL is out, and the time of the signature must be that of the call.
        let key = if callback.finish.is_some() { Some(ctx.finish_key().await?) } else { None };
        let own_limit = callback.timeout_ms.map_or(TOTAL_TIMEOUT, Duration::from_millis);
        let limit = own_limit.min(self.longest).min(ctx.time_left());
        let mut headers = self.headers(callback, &url, ctx)?;
        if let Some(key) = key {
            let mut key = header_value(key.expose())?;
            key.set_sensitive(true);
            headers.insert("tickr-finish-key", key);
        }
        let secrets = secrets_of(callback, &headers);
        // Kept before the response arrives, so that an operator who cancels a waiting attempt sees the receiver it
        // waits for.
        let mut exchange = exchange::request(callback.method, &url);
        ctx.keep_exchange(exchange.clone());
        let started = Instant::now();
        let client = self.clients.for_call(&url);
        let mut request = client.request(callback.method.into(), url).headers(headers).timeout(limit);
        if let Some(body) = &callback.body {
            request = request.body(body.get().to_owned());
        }
        ctx.host_call_begins();
        let sent = timeout(limit, request.send()).await;
        exchange.took_ms = Some(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX));
        let unanswered = match sent {
            Ok(Ok(response)) => return Ok(Answered { response, exchange, target, secrets, started, limit }),
            Ok(Err(error)) => failure(&target, error, limit),
            Err(_) => timed_out(&target, limit),
        };
        ctx.keep_exchange(exchange);
        // A call that was refused here says nothing about the receiver.
        if matches!(unanswered, Failure::Retry { .. }) {
            ctx.host_failed();
        }
        Err(unanswered)
    }
}

/// A call whose status is known, before its body is read.
struct Answered {
    response: Response,
    exchange: Exchange,
    target: String,
    secrets: Vec<String>,
    started: Instant,
    limit: Duration,
}

impl Answered {
    /// Read the body and judge the answer.
    async fn judge(self, callback: &HttpCallback, ctx: &Context) -> Outcome {
        let Self { mut response, mut exchange, target, secrets, started, limit } = self;
        let (rule, status) = (callback.answer.as_ref(), response.status());
        let finish = callback.finish.filter(|_| status == StatusCode::ACCEPTED);
        let decides = finish.is_none() && rule.is_some_and(|rule| rule.reads_body(status));
        let reply = Reply::read(&mut response, started + limit, &secrets, decides, ctx).await;
        exchange.response = Some(reply.shown(exchange::headers(response.headers(), &secrets)));
        ctx.keep_exchange(exchange);
        if reply.is_receivers_fault() {
            ctx.host_failed();
        } else {
            ctx.host_answered();
        }
        match finish {
            Some(finish) => Ok(Output::finished_later(finish.into())),
            None => reply.judge(&target, started.elapsed(), rule),
        }
    }
}

impl Handler for HttpHandler {
    type Payload = HttpCallback;

    fn check(&self, callback: &HttpCallback) -> Vec<Problem> {
        check::problems(callback, &self.rule, self.longest)
    }

    fn defaults(&self) -> KindDefaults {
        // Twice the time limit of the response, so that the limit of the attempt is never reached first.
        let timeout = (2 * self.longest.max(TOTAL_TIMEOUT)).min(limits::MAX_TIMEOUT);
        KindDefaults { timeout, ..KindDefaults::default() }
    }

    async fn run(&self, callback: HttpCallback, ctx: Context) -> Outcome {
        // Check again, not only at enqueue: the rule may have changed since then, and this check is the one that
        // protects. A time limit above that of this runner is cut to it: the runner that accepted the job may have a
        // longer one, or operators may have lowered it since then.
        if let Some(problem) = check::problems(&callback, &self.rule, Duration::MAX).into_iter().next() {
            return Err(Failure::reject(format!("make the callback: {} {}", problem.pointer, problem.detail)));
        }
        let url = Url::parse(&callback.url).map_err(|e| Failure::reject(format!("read the url: {e}")))?;
        let answered = tokio::select! {
            biased;
            () = ctx.stopped() => return Err(Failure::retry("callback stopped before the receiver answered")),
            answered = self.call(&callback, url, &ctx) => answered?,
        };
        // A stop from here on ends the body, and not the call: the receiver has taken it, and would get it again.
        answered.judge(&callback, &ctx).await
    }
}

/// Return the public authorities, and those of this PEM text.
fn roots(pem: &[u8]) -> Result<rustls::RootCertStore, CallbackSetupError> {
    let mut roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if pem.is_empty() {
        return Ok(roots);
    }
    let wrong = |error: String| CallbackSetupError::Authorities(error);
    let mut count = 0;
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
        count += 1;
    }
    if count == 0 {
        Err(wrong("it has none; PEM begins with -----BEGIN CERTIFICATE-----".to_owned()))
    } else {
        Ok(roots)
    }
}

/// Values that were sent and must not be stored if the receiver sends them back: values of the payload's headers, the
/// signature, the token and the finish key of the attempt. Short values are left out, because they are ordinary words,
/// and media types, because they are no secrets.
fn secrets_of(callback: &HttpCallback, headers: &HeaderMap) -> Vec<String> {
    let ours = ["webhook-signature", "tickr-attempt-token", "tickr-finish-key"];
    let ours = ours.into_iter().filter_map(|name| headers.get(name)?.to_str().ok());
    let is_media_type = |name: &str| ["accept", "content-type"].iter().any(|media| name.eq_ignore_ascii_case(media));
    let values = callback.headers.iter().filter(|(name, _)| !is_media_type(name)).map(|(_, value)| value.as_str());
    // Headers may repeat a word many thousand times.
    let secrets: BTreeSet<&str> = ours.chain(values).flat_map(secret_words).collect();
    secrets.into_iter().map(str::to_owned).collect()
}

/// Return the words of a header's value that may be secrets, and the parts that a receiver may show by themselves: it
/// parses a cookie, or the parameters of a signature, before it quotes them.
fn secret_words(value: &str) -> impl Iterator<Item = &str> {
    let words = value.split_whitespace();
    let parts = words.flat_map(|word| std::iter::once(word).chain(word.split([';', ',', '=', '"'])));
    parts.filter(|part| part.len() >= SECRET_CHARS)
}

fn header_value(text: &str) -> Result<HeaderValue, Failure> {
    HeaderValue::from_str(text).map_err(unusable)
}

/// Headers pass the check first, so this is an error in tickr, and no retry helps.
fn unusable(error: impl std::fmt::Display) -> Failure {
    Failure::reject(format!("write the headers of the callback: {error}"))
}

fn timed_out(target: &str, limit: Duration) -> Failure {
    Failure::retry(format!("{target} did not answer within {} ms", limit.as_millis()))
}

/// Turn a failed request into a failure of the attempt. The text names the endpoint only, because a query may hold
/// secrets.
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
    // The client's own time limit is as long as this one and may be reached first. Connecting has a shorter limit.
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
