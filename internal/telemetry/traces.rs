//! Spans of traces, and their export to the collector.
//!
//! A request that enqueues is a span; so are a tick of a schedule and an attempt. The job carries the trace from the
//! enqueue to the attempt ([`TraceContext`]). The decision to record a trace is made once, at its root: by the caller
//! if the request has a trace context, otherwise by chance at the enqueue or the tick. Without a collector, the only
//! cost is to carry the context.
//!
//! Spans go through a bounded queue to one export task. The task that ends a span never waits: if the queue is full,
//! the span is dropped and counted. If the collector is unreachable, slow or misconfigured, only spans are lost.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use metrics::Counter;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, StatusCode, redirect};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::otlp::{self, Resource};
use tickr_job::{JobId, SpanContext, SpanId, TraceContext};

/// Maximum number of spans that wait for the collector.
const CAPACITY: usize = 4_096;
/// Maximum number of spans in one request.
const MAX_AT_ONCE: usize = 512;
/// Time that the first span of a request waits for others.
const GATHER: Duration = Duration::from_secs(1);
/// Time limit of one request.
const LIMIT: Duration = Duration::from_secs(5);
/// Maximum number of times that a request is sent if the collector is temporarily unable to accept it.
const TRIES: u32 = 3;
/// Time that a stop waits for the remaining spans.
const FLUSH: Duration = Duration::from_secs(2);

/// Settings of the export.
#[derive(Clone, Debug)]
pub struct TracerSettings {
    /// URL of the collector, with or without `/v1/traces`.
    pub endpoint: String,
    /// Headers for every request: name and value.
    pub headers: Vec<(String, String)>,
    /// Share of the traces started here that are recorded, 0 to 1.
    pub sample: f64,
    /// Service name for the collector.
    pub service: String,
    /// Name of this process for the collector.
    pub instance: String,
}

/// The error of an exporter that cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TracerError {
    /// A header has a name or value that HTTP does not permit.
    #[error("a header for the collector is not valid: {0:?}")]
    Header(String),
    /// No TLS configuration is possible.
    #[error("set up tls for the collector")]
    Tls(#[from] rustls::Error),
    /// The client refused its settings.
    #[error("build the http client for the collector")]
    Client(#[from] reqwest::Error),
}

/// Role of a span towards the spans around it. The numbers are those of the wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It answers a request.
    Server = 2,
    /// It created work for later without a request.
    Producer = 4,
    /// It processes queued work.
    Consumer = 5,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Text.
    Text(Cow<'static, str>),
    /// A number.
    Number(u64),
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

/// A finished span. Its attributes contain names and ids, never payloads or other content.
#[derive(Clone, Debug)]
pub struct Span {
    /// Name of the operation, from a small set of names.
    pub name: Cow<'static, str>,
    /// Role of the span.
    pub role: Role,
    /// Its trace and span id.
    pub span_context: SpanContext,
    /// The parent span.
    pub parent: Option<SpanId>,
    /// The `tracestate` of other tracing systems.
    pub state: Option<String>,
    /// A span of the same trace that this one follows.
    pub link: Option<SpanId>,
    /// Begin, by the clock of this host.
    pub started: SystemTime,
    /// End, by the clock of this host.
    pub ended: SystemTime,
    /// Attributes.
    pub attributes: Vec<(&'static str, Value)>,
    /// True if the operation failed.
    pub failed: bool,
}

/// The input of the export. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Tracer {
    entrance: Option<Arc<Entrance>>,
}

#[derive(Debug)]
struct Entrance {
    queue: mpsc::Sender<Span>,
    sample: f64,
    tallies: Arc<Tallies>,
}

impl Tracer {
    /// Return a tracer that records nothing.
    #[must_use]
    pub fn off() -> Self {
        Self::default()
    }

    /// Start the export task. Return the tracer that hands spans to it, and the handle of the task.
    ///
    /// # Errors
    /// [`TracerError`] if the settings cannot be used. The collector is not contacted.
    pub fn start(settings: TracerSettings) -> Result<(Self, Exporter), TracerError> {
        let mut headers = HeaderMap::new();
        for (name, value) in &settings.headers {
            let wrong = || TracerError::Header(name.clone());
            let mut value = HeaderValue::from_str(value).map_err(|_| wrong())?;
            value.set_sensitive(true);
            headers.insert(HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?, value);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let endpoint = settings.endpoint.trim_end_matches('/');
        let endpoint =
            if endpoint.ends_with("/v1/traces") { endpoint.to_owned() } else { format!("{endpoint}/v1/traces") };
        let (queue, spans) = mpsc::channel(CAPACITY);
        let tallies = Arc::new(Tallies::new());
        let way = Way {
            client: client(headers)?,
            endpoint,
            resource: Resource { service: settings.service, instance: settings.instance },
            tallies: Arc::clone(&tallies),
            silent: false,
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(export_until_stopped(way, spans, stop.clone()));
        let entrance = Entrance { queue, sample: settings.sample, tallies: Arc::clone(&tallies) };
        Ok((Self { entrance: Some(Arc::new(entrance)) }, Exporter { stop, task, tallies }))
    }

    /// Begin the span of a request that enqueues jobs: the span to record, if it is recorded, and the context for its
    /// jobs.
    #[must_use]
    pub fn request(&self, caller: Option<TraceContext>) -> RequestSpan {
        let Some(entrance) = &self.entrance else { return RequestSpan { carried: caller, recorded: None } };
        let (span_context, parent, state) = match &caller {
            Some(context) if context.span_context.is_sampled() => (
                context.span_context.with_span(SpanId::random()),
                Some(context.span_context.span()),
                context.state.clone(),
            ),
            // The caller decides for the whole trace: if it does not record, neither does tickr.
            Some(_) => return RequestSpan { carried: caller, recorded: None },
            None if entrance.is_chosen() => (SpanContext::root(), None, None),
            None => return RequestSpan { carried: None, recorded: None },
        };
        let recorded =
            Recorded { tracer: self.clone(), span_context, parent, state: state.clone(), started: SystemTime::now() };
        RequestSpan { carried: Some(TraceContext { span_context, state }), recorded: Some(recorded) }
    }

    /// Begin the span of a tick that is to create a job, if chance selects it: the root of that job's trace.
    #[must_use]
    pub fn tick(&self) -> Option<TickSpan> {
        self.entrance.as_ref().filter(|entrance| entrance.is_chosen())?;
        Some(TickSpan { tracer: self.clone(), span_context: SpanContext::root(), started: SystemTime::now() })
    }

    /// Return true if an attempt that continues this context is recorded.
    #[must_use]
    pub fn records(&self, context: &TraceContext) -> bool {
        self.entrance.is_some() && context.span_context.is_sampled()
    }

    /// Hand in a finished span. Never waits.
    pub fn record(&self, span: Span) {
        let Some(entrance) = &self.entrance else { return };
        entrance.tallies.waiting.fetch_add(1, Ordering::Relaxed);
        if entrance.queue.try_send(span).is_err() {
            entrance.tallies.count_finished(&entrance.tallies.dropped, 1);
        }
    }
}

impl Entrance {
    /// Decide by chance if a trace that begins here is recorded.
    fn is_chosen(&self) -> bool {
        rand::random::<f64>() < self.sample
    }
}

/// The span of a tick of a schedule. If it is dropped, nothing is recorded: another runner processed the tick.
#[derive(Debug)]
pub struct TickSpan {
    tracer: Tracer,
    span_context: SpanContext,
    started: SystemTime,
}

impl TickSpan {
    /// Return the context for the job of the tick.
    #[must_use]
    pub fn trace_context(&self) -> TraceContext {
        TraceContext { span_context: self.span_context, state: None }
    }

    /// End the span of a tick that fired and created this job.
    pub fn end(self, schedule: &str, job: JobId) {
        let Self { tracer, span_context, started } = self;
        let job = job.to_string();
        tracer.record(Span {
            name: Cow::Borrowed("tick"),
            role: Role::Producer,
            span_context,
            parent: None,
            state: None,
            link: None,
            started,
            ended: SystemTime::now(),
            attributes: vec![
                ("messaging.system", "tickr".into()),
                ("messaging.operation.type", "send".into()),
                ("messaging.message.id", job.clone().into()),
                ("tickr.schedule", schedule.to_owned().into()),
                ("tickr.job", job.into()),
            ],
            failed: false,
        });
    }
}

/// The span of a request that enqueues.
#[derive(Debug)]
pub struct RequestSpan {
    carried: Option<TraceContext>,
    recorded: Option<Recorded>,
}

#[derive(Debug)]
struct Recorded {
    tracer: Tracer,
    span_context: SpanContext,
    parent: Option<SpanId>,
    state: Option<String>,
    started: SystemTime,
}

impl RequestSpan {
    /// Return the context for the jobs of this request.
    #[must_use]
    pub fn trace_context(&self) -> Option<&TraceContext> {
        self.carried.as_ref()
    }

    /// End the span of a request that was answered with this status.
    pub fn end(self, route: &'static str, status: u16) {
        let Some(Recorded { tracer, span_context, parent, state, started }) = self.recorded else { return };
        tracer.record(Span {
            name: Cow::Owned(format!("POST {route}")),
            role: Role::Server,
            span_context,
            parent,
            state,
            link: None,
            started,
            ended: SystemTime::now(),
            attributes: vec![
                ("http.request.method", "POST".into()),
                ("http.route", route.into()),
                ("http.response.status_code", u64::from(status).into()),
            ],
            failed: status >= 500,
        });
    }
}

/// Counters of spans by outcome.
#[derive(Debug)]
struct Tallies {
    exported: Counter,
    dropped: Counter,
    failed: Counter,
    /// Spans handed in that are not exported, dropped or failed yet.
    waiting: AtomicU64,
}

impl Tallies {
    fn new() -> Self {
        let counter = |outcome: &'static str| metrics::counter!("tickr_spans_total", "outcome" => outcome);
        let of = |outcome| {
            let counter = counter(outcome);
            counter.increment(0);
            counter
        };
        Self { exported: of("exported"), dropped: of("dropped"), failed: of("failed"), waiting: AtomicU64::new(0) }
    }

    fn count_finished(&self, counter: &Counter, spans: u64) {
        self.waiting.fetch_sub(spans, Ordering::Relaxed);
        counter.increment(spans);
    }
}

/// The export task of a [`Tracer`].
#[derive(Debug)]
pub struct Exporter {
    stop: CancellationToken,
    task: JoinHandle<()>,
    tallies: Arc<Tallies>,
}

impl Exporter {
    /// Send the remaining spans for at most two seconds. The rest is dropped and counted.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if tokio::time::timeout(FLUSH, &mut self.task).await.is_err() {
            self.task.abort();
            let _ = self.task.await;
            let left = self.tallies.waiting.swap(0, Ordering::Relaxed);
            self.tallies.dropped.increment(left);
            tracing::warn!(spans = left, "the collector did not accept the last spans in time");
        }
    }
}

/// The connection to the collector.
struct Way {
    client: Client,
    endpoint: String,
    resource: Resource,
    tallies: Arc<Tallies>,
    /// True if the last request failed. The failure is logged once, not for every request.
    silent: bool,
}

fn client(headers: HeaderMap) -> Result<Client, TracerError> {
    // The client uses its own crypto provider and root certificates, like callbacks: other code in the process may
    // install another provider or none.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client = Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(redirect::Policy::none())
        .no_proxy()
        .timeout(LIMIT)
        .pool_max_idle_per_host(1)
        .default_headers(headers)
        .build()?;
    Ok(client)
}

async fn export_until_stopped(mut way: Way, mut spans: mpsc::Receiver<Span>, stop: CancellationToken) {
    let mut batch = Vec::with_capacity(MAX_AT_ONCE);
    loop {
        let first = tokio::select! {
            () = stop.cancelled() => break,
            first = spans.recv() => first,
        };
        let Some(first) = first else { return };
        batch.push(first);
        let until = Instant::now() + GATHER;
        while batch.len() < MAX_AT_ONCE {
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep_until(until) => break,
                more = spans.recv_many(&mut batch, MAX_AT_ONCE) => if more == 0 { break },
            }
        }
        way.send(&mut batch, &stop).await;
    }
    // Spans handed in from here on are dropped. The queued spans are sent without delay.
    spans.close();
    while spans.recv_many(&mut batch, MAX_AT_ONCE).await > 0 {
        way.send(&mut batch, &stop).await;
    }
}

impl Way {
    /// Send these spans, several times if the collector is temporarily unable to accept them, then discard them.
    async fn send(&mut self, batch: &mut Vec<Span>, stop: &CancellationToken) {
        let spans = batch.len() as u64;
        let body = otlp::request(&self.resource, batch);
        batch.clear();
        let mut pause = Duration::from_millis(200);
        for tried in 1..=TRIES {
            let why = match self.post(body.clone()).await {
                Ok(()) => {
                    if std::mem::replace(&mut self.silent, false) {
                        tracing::info!("the collector accepts spans again");
                    }
                    return self.tallies.count_finished(&self.tallies.exported, spans);
                }
                Err(Refusal { why, for_now }) if for_now && tried < TRIES && !stop.is_cancelled() => {
                    tracing::debug!(why, tried, "the collector cannot accept spans now");
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = tokio::time::sleep(pause.mul_f64(0.5 + rand::random::<f64>())) => {}
                    }
                    pause *= 4;
                    continue;
                }
                Err(Refusal { why, .. }) => why,
            };
            if !std::mem::replace(&mut self.silent, true) {
                tracing::warn!(why, spans, "the collector does not accept spans; they are discarded, jobs continue");
            }
            return self.tallies.count_finished(&self.tallies.failed, spans);
        }
    }

    async fn post(&self, body: Vec<u8>) -> Result<(), Refusal> {
        // The body of the response is not read: it is not needed, and may be of any length.
        let sent = self.client.post(&self.endpoint).body(body).send().await;
        let status = match sent {
            Ok(response) => response.status(),
            // Without the URL, because an operator may have put a secret into it.
            Err(error) => return Err(Refusal { why: error.without_url().to_string(), for_now: true }),
        };
        let busy = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::BAD_GATEWAY,
            StatusCode::SERVICE_UNAVAILABLE,
            StatusCode::GATEWAY_TIMEOUT,
        ];
        match status.is_success() {
            true => Ok(()),
            false => Err(Refusal { why: format!("it answered {status}"), for_now: busy.contains(&status) }),
        }
    }
}

/// The reason why a request was not accepted.
struct Refusal {
    why: String,
    /// True if the collector may accept the request later.
    for_now: bool,
}
