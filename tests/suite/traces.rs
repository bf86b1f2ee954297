//! Traces: accepted at the enqueue, stored with the job, continued by its attempts, exported to a collector, whose
//! faults do no harm.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State as Shared;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{any, post};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::{Value, json};
use tickr::config::Config;
use tickr::handlers::Registry;
use tickr::job::{JobId, State};
use tokio::net::TcpListener;

use crate::support::{Answer, TestApp, answer, eventually, http, lasting_addr};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

fn sampled() -> String {
    format!("00-{TRACE}-{CALLER}-01")
}

/// A collector that keeps the spans it receives.
#[derive(Clone, Default)]
struct Collector {
    told: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    /// Number of requests that it refuses as busy before it accepts one.
    busy: Arc<Mutex<u32>>,
}

impl Collector {
    async fn start() -> (Self, String) {
        let collector = Self::default();
        let take = |Shared(collector): Shared<Self>, headers: HeaderMap, body: Bytes| async move {
            let mut busy = collector.busy.lock().unwrap();
            if *busy > 0 {
                *busy -= 1;
                return StatusCode::SERVICE_UNAVAILABLE;
            }
            collector.told.lock().unwrap().push((headers, body));
            StatusCode::OK
        };
        let routes = Router::new().route("/v1/traces", post(take)).with_state(collector.clone());
        (collector, serve(routes).await)
    }

    fn spans(&self) -> Vec<Span> {
        let told = self.told.lock().unwrap();
        let requests = told.iter().map(|(_, body)| ExportTraceServiceRequest::decode(body.clone()).unwrap());
        requests.flat_map(|r| r.resource_spans).flat_map(|r| r.scope_spans).flat_map(|s| s.spans).collect()
    }

    /// Wait for this many spans.
    async fn until(&self, count: usize) -> Vec<Span> {
        eventually(&format!("{count} spans"), || async {
            let spans = self.spans();
            (spans.len() >= count).then_some(spans)
        })
        .await
    }
}

async fn serve(routes: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr: SocketAddr = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    format!("http://{addr}")
}

async fn tickr_with(endpoint: &str, change: impl FnOnce(&mut Config)) -> TestApp {
    let set = |config: &mut Config| {
        config.otlp_endpoint = Some(endpoint.to_owned());
        config.otlp_headers = vec![("x-team".into(), "canary-header".to_owned().into())];
        change(config);
    };
    TestApp::start_with(set, Registry::new()).await
}

async fn enqueue(tickr: &TestApp, headers: &[(&str, &str)], job: Value) -> Answer {
    let mut request = http().post(tickr.url("/v1/jobs")).json(&job);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    answer(request).await
}

fn id(answer: &Answer) -> JobId {
    assert_eq!(answer.status, 201, "{:#}", answer.body);
    answer.body["id"].as_str().unwrap().parse().unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(pairs: &[KeyValue]) -> BTreeMap<String, String> {
    let word = |value: &Option<AnyValue>| match value.as_ref().and_then(|value| value.value.clone()) {
        Some(Any::StringValue(text)) => text,
        Some(Any::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    };
    pairs.iter().map(|pair| (pair.key.clone(), word(&pair.value))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_and_every_attempt_continue_the_callers_trace() {
    let (collector, endpoint) = Collector::start().await;
    // The collector is busy twice, and the refused spans come again.
    *collector.busy.lock().unwrap() = 2;
    let tickr = tickr_with(&endpoint, |_| {}).await;
    let job = json!({"kind": "fail", "payload": {"times": 2}, "retry": {"base_ms": 1}, "unique_key": "canary-key"});
    let headers = [("traceparent", sampled()), ("tracestate", "rojo=1,congo=2".to_owned())];
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let accepted = enqueue(&tickr, &headers, job).await;
    let job = id(&accepted);
    let ended = tickr.until(job, State::Completed).await;
    let runner = ended["attempts"][0]["runner"].as_str().unwrap().to_owned();
    let spans = collector.until(4).await;
    assert_eq!(spans.len(), 4);

    let request = spans.iter().find(|span| span.name == "POST /v1/jobs").unwrap();
    assert_eq!((hex(&request.trace_id).as_str(), hex(&request.parent_span_id).as_str()), (TRACE, CALLER));
    assert_eq!((request.kind, request.trace_state.as_str(), request.flags), (2, "rojo=1,congo=2", 0x301));
    assert_eq!(attributes(&request.attributes)["http.response.status_code"], "201");
    // The job carries the span of the request.
    let carried = format!("00-{TRACE}-{}-01", hex(&request.span_id));
    for shown in [&accepted.body, &ended] {
        assert_eq!(shown["trace"], json!({"traceparent": carried, "tracestate": "rojo=1,congo=2"}));
    }

    let mut attempts: Vec<&Span> = spans.iter().filter(|span| span.name == "run fail").collect();
    attempts.sort_by_key(|span| span.start_time_unix_nano);
    for (at, span) in attempts.iter().enumerate() {
        assert_eq!((hex(&span.trace_id).as_str(), &span.parent_span_id), (TRACE, &request.span_id));
        assert!(span.kind == 5 && span.end_time_unix_nano >= span.start_time_unix_nano);
        let said = attributes(&span.attributes);
        let verdict = if at < 2 { "failed" } else { "succeeded" };
        for (name, value) in [
            ("tickr.job", job.to_string()),
            ("tickr.kind", "fail".into()),
            ("tickr.queue", "default".into()),
            ("tickr.attempt", (at + 1).to_string()),
            ("tickr.runner", runner.clone()),
            ("tickr.verdict", verdict.into()),
        ] {
            assert_eq!(said[name], value, "{name}");
        }
        assert_eq!(said.get("error.type").map(String::as_str), (at < 2).then_some("failed"));
        assert_eq!(span.status.as_ref().map_or(0, |status| status.code), if at < 2 { 2 } else { 0 });
        // A retry links to the attempt before it.
        let links: Vec<&Vec<u8>> = span.links.iter().map(|link| &link.span_id).collect();
        assert_eq!(links, attempts[..at].last().map(|before| &before.span_id).into_iter().collect::<Vec<_>>());
    }
    let told = collector.told.lock().unwrap().clone();
    let first = ExportTraceServiceRequest::decode(told[0].1.clone()).unwrap();
    let resource = attributes(&first.resource_spans[0].resource.as_ref().unwrap().attributes);
    assert_eq!((resource["service.name"].as_str(), &resource["service.instance.id"]), ("tickr", &runner));
    assert_eq!(resource["service.version"], env!("CARGO_PKG_VERSION"));
    assert!(told.iter().all(|(headers, _)| headers["x-team"] == "canary-header"));
    let bytes: Vec<u8> = told.iter().flat_map(|(_, body)| body.to_vec()).collect();
    assert!(!String::from_utf8_lossy(&bytes).contains("canary"), "text of the job went to the collector");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_trace_is_taken_for_none_and_refuses_no_job() {
    let tickr = TestApp::start().await;
    let good = sampled();
    for bad in ["", "x", "00-0-0-0", &good.to_uppercase(), &format!("{good}-x"), &"0".repeat(4_000)] {
        let job = enqueue(&tickr, &[("traceparent", bad)], json!({"kind": "noop"})).await;
        assert!(job.status == 201 && job.body.get("trace").is_none(), "{bad:?}: {:#}", job.body);
    }
    let twice = [("traceparent", good.as_str()), ("traceparent", good.as_str())];
    let job = enqueue(&tickr, &twice, json!({"kind": "noop"})).await;
    assert!(job.status == 201 && job.body.get("trace").is_none());
    // A malformed tracestate is left out. Without a collector the traceparent is passed on unchanged.
    let job = enqueue(&tickr, &[("traceparent", &good), ("tracestate", "A")], json!({"kind": "noop"})).await;
    assert_eq!(job.body["trace"], json!({"traceparent": good}));
    assert_eq!(tickr.until(id(&job), State::Completed).await["trace"], json!({"traceparent": good}));

    // Each job of a batch may have its own trace.
    let other = good.replace(TRACE, &"a".repeat(32));
    let own = |traceparent: &str| json!({"kind": "noop", "trace": {"traceparent": traceparent}});
    let batch = json!({"jobs": [own(&other), own("nonsense"), {"kind": "noop"}]});
    let request = http().post(tickr.url("/v1/jobs/batch")).header("traceparent", &good).json(&batch);
    let accepted = answer(request).await;
    assert_eq!(accepted.status, 201, "{:#}", accepted.body);
    for (place, wanted) in [&other, &good, &good].into_iter().enumerate() {
        let id: JobId = accepted.body["jobs"][place]["id"].as_str().unwrap().parse().unwrap();
        assert_eq!(tickr.job(id).await["trace"]["traceparent"], **wanted);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_carries_the_trace_of_its_attempt() {
    let seen: Arc<Mutex<Vec<HeaderMap>>> = Arc::default();
    let take = |Shared(seen): Shared<Arc<Mutex<Vec<HeaderMap>>>>, headers: HeaderMap| async move {
        seen.lock().unwrap().push(headers);
    };
    let receiver = serve(Router::new().route("/", any(take)).with_state(Arc::clone(&seen))).await;
    let (collector, endpoint) = Collector::start().await;
    let tickr = tickr_with(&endpoint, |_| {}).await;
    let callback = json!({"kind": "http", "payload": {"url": format!("{receiver}/")}});
    let good = sampled();
    let job = enqueue(&tickr, &[("traceparent", &good), ("tracestate", "a=1")], callback.clone()).await;
    tickr.until(id(&job), State::Completed).await;
    let spans = collector.until(2).await;
    let attempt = spans.iter().find(|span| span.name == "run http").unwrap();
    let own = format!("00-{TRACE}-{}-01", hex(&attempt.span_id));
    {
        let seen = seen.lock().unwrap();
        assert_eq!((&seen[0]["traceparent"], &seen[0]["tracestate"]), (&own.parse().unwrap(), &"a=1".parse().unwrap()));
    }
    // A trace that its caller does not record is passed on unchanged, and stays unrecorded.
    let quiet = good.replace("-01", "-00");
    let job = enqueue(&tickr, &[("traceparent", &quiet)], callback.clone()).await;
    tickr.until(id(&job), State::Completed).await;
    // A traceparent in the payload's own headers takes precedence.
    let mut named = callback;
    named["payload"]["headers"] = json!({"traceparent": "00-mine"});
    let job = enqueue(&tickr, &[("traceparent", &quiet)], named).await;
    tickr.until(id(&job), State::Completed).await;
    {
        let seen = seen.lock().unwrap();
        assert_eq!(
            (&seen[1]["traceparent"], &seen[2]["traceparent"]),
            (&quiet.parse().unwrap(), &"00-mine".parse().unwrap())
        );
    }
    tickr.stop().await;
    assert_eq!(collector.spans().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tick_is_the_root_of_the_trace_of_its_job() {
    let (collector, endpoint) = Collector::start().await;
    let tickr = tickr_with(&endpoint, |config| config.otlp_sample = 1.0).await;
    let schedule = json!({"cron": "* * * * * *", "kind": "noop"});
    let put = tickr.put("/v1/schedules/each-second", &schedule).await;
    assert_eq!(put.status, 201, "{:#}", put.body);
    tickr.until_count("SELECT COUNT(*) >= 2 FROM attempts WHERE end_state = 'completed'", 1).await;
    assert_eq!(tickr.delete("/v1/schedules/each-second").await.status, 204);
    tickr.until_idle().await;
    let jobs = tickr.get("/v1/jobs?schedule=each-second").await.body["data"].as_array().unwrap().clone();
    let spans = collector.until(2 * jobs.len()).await;
    assert_eq!(spans.len(), 2 * jobs.len());
    let mut traces = std::collections::BTreeSet::new();
    for job in &jobs {
        let id = job["id"].as_str().unwrap();
        let of = |name: &str| {
            let mut named = spans.iter().filter(|span| span.name == name);
            named.find(|span| attributes(&span.attributes)["tickr.job"] == id).unwrap()
        };
        let (tick, attempt) = (of("tick"), of("run noop"));
        assert!(tick.parent_span_id.is_empty() && tick.kind == 4, "{tick:?}");
        assert_eq!((&attempt.parent_span_id, &attempt.trace_id), (&tick.span_id, &tick.trace_id));
        assert_eq!(attributes(&tick.attributes)["tickr.schedule"], "each-second");
        let shown = tickr.job(id.parse().unwrap()).await;
        let carried = format!("00-{}-{}-01", hex(&tick.trace_id), hex(&tick.span_id));
        assert_eq!(shown["trace"], json!({"traceparent": carried}));
        // Each tick has a trace of its own.
        assert!(traces.insert(tick.trace_id.clone()));
    }
    // A trigger is a request of a client, and continues the trace of that client.
    let yearly = json!({"cron": "0 0 1 1 *", "kind": "noop"});
    assert_eq!(tickr.put("/v1/schedules/yearly", &yearly).await.status, 201);
    let path = "/v1/schedules/yearly/trigger";
    let fired = answer(http().post(tickr.url(path)).header("traceparent", sampled())).await;
    let job = tickr.until(id(&fired), State::Completed).await;
    let spans = collector.until(2 * jobs.len() + 2).await;
    let request = spans.iter().find(|span| span.name == "POST /v1/schedules/{name}/trigger").unwrap();
    assert_eq!((hex(&request.trace_id).as_str(), hex(&request.parent_span_id).as_str()), (TRACE, CALLER));
    assert_eq!(job["trace"]["traceparent"], format!("00-{TRACE}-{}-01", hex(&request.span_id)));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_carries_its_callers_trace_unless_a_line_names_one() {
    let import = async |tickr: &TestApp, header: Option<&str>, lines: &[Value]| -> Vec<Value> {
        let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let mut request = http().post(tickr.url("/v1/jobs/import")).header("content-type", "application/x-ndjson");
        if let Some(header) = header {
            request = request.header("traceparent", header);
        }
        let response = request.body(body).send().await.unwrap();
        assert_eq!(response.status(), 200);
        let text = response.text().await.unwrap();
        let mut traces = Vec::new();
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let Some(id) = line["id"].as_str() else { continue };
            traces.push(tickr.job(id.parse().unwrap()).await["trace"]["traceparent"].clone());
        }
        traces
    };
    let (plain, own) = (json!({"kind": "noop"}), format!("00-{}-{CALLER}-00", "a".repeat(32)));
    let lines = [plain.clone(), json!({"kind": "noop", "trace": {"traceparent": own}}), plain];
    // Without a collector the trace is passed on unchanged.
    let tickr = TestApp::start().await;
    let traces = import(&tickr, Some(&sampled()), &lines).await;
    assert_eq!(traces, [json!(sampled()), json!(own), json!(sampled())]);
    assert_eq!(import(&tickr, None, &lines).await, [Value::Null, json!(own), Value::Null]);
    tickr.stop().await;
    // With a collector, the import is a span and the attempts are its children. None of them begins a trace of its own.
    let (collector, endpoint) = Collector::start().await;
    let tickr = tickr_with(&endpoint, |config| config.otlp_sample = 1.0).await;
    assert_eq!(import(&tickr, None, &lines).await, [Value::Null, json!(own), Value::Null]);
    import(&tickr, Some(&sampled()), &lines).await;
    tickr.until_idle().await;
    let spans = collector.until(3).await;
    let request = spans.iter().find(|span| span.name == "POST /v1/jobs/import").unwrap();
    assert_eq!((hex(&request.trace_id).as_str(), hex(&request.parent_span_id).as_str()), (TRACE, CALLER));
    let attempts: Vec<&Span> = spans.iter().filter(|span| span.kind == 5).collect();
    assert!(attempts.iter().all(|span| span.parent_span_id == request.span_id));
    tickr.stop().await;
    assert_eq!(collector.spans().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn whether_a_trace_that_begins_here_is_recorded_is_decided_once() {
    let (collector, endpoint) = Collector::start().await;
    let tickr = tickr_with(&endpoint, |config| config.otlp_sample = 0.5).await;
    let mut recorded = 0;
    for _ in 0..40 {
        let job = enqueue(&tickr, &[], json!({"kind": "noop"})).await;
        let shown = tickr.until(id(&job), State::Completed).await;
        recorded += usize::from(shown.get("trace").is_some());
    }
    // The chance that all or none are recorded is 2 in 10^12.
    assert!((1..40).contains(&recorded), "{recorded}");
    // The stop sends the spans that the collector has not received yet.
    tickr.stop().await;
    let spans = collector.spans();
    assert_eq!(spans.len(), 2 * recorded);
    for attempt in spans.iter().filter(|span| span.kind == 5) {
        let request = spans.iter().find(|span| span.span_id == attempt.parent_span_id).unwrap();
        assert!(request.parent_span_id.is_empty() && request.trace_id == attempt.trace_id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_hangs_or_is_gone_costs_spans_and_nothing_else() {
    // One collector accepts connections and never answers, and one does not exist.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hanging = format!("http://{}", silent.local_addr().unwrap());
    let absent = format!("http://{}", lasting_addr());
    for (endpoint, jobs) in [(hanging, 6_500), (absent, 100)] {
        let tickr = tickr_with(&endpoint, |config| config.workers = 64).await;
        let before = spans_counted(&tickr, "dropped").await;
        let good = sampled();
        let traced = json!({"kind": "noop", "trace": {"traceparent": good}});
        tickr.enqueue_many(std::iter::repeat_n(traced, jobs)).await;
        tickr.until_idle().await;
        if jobs > 5_000 {
            // There are more spans than may wait, also if the collector lets some fail meanwhile. The rest is dropped at
            // once, and counted. A span ends after the verdict
            // of its attempt is written, so the last ones may still be on their way.
            eventually("the spans that may not wait are dropped", || async {
                (spans_counted(&tickr, "dropped").await >= before + 500.0).then_some(())
            })
            .await;
        }
        tickr.assert_each_ran_once(jobs as i64).await;
        let began = Instant::now();
        let stopped = tickr.stop().await;
        println!("stop with a collector that does not take spans: {} ms", began.elapsed().as_millis());
        assert_eq!(stopped.abandoned, 0);
        // Two seconds for the spans, plus what any stop takes.
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
}

/// Return the counter, which covers all tickrs of this process.
async fn spans_counted(tickr: &TestApp, outcome: &str) -> f64 {
    let page = tickr.get("/metrics").await;
    let series = format!("tickr_spans_total{{outcome=\"{outcome}\"}} ");
    let line = page.body.as_str().unwrap().lines().find_map(|line| line.strip_prefix(&series).map(str::to_owned));
    line.unwrap().parse().unwrap()
}
