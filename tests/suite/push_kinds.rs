//! Declared kinds whose receiver tickr calls: the call, its answers, and attempts that the receiver finishes later.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::Sha256;
use tickr::config::{Config, Flags, ServerUrl};
use tickr::handlers::Registry;
use tickr::job::{JobId, State};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::support::limits::set_and_wait;
use crate::support::program::{command, tickr as program};
use crate::support::{Answer, Proxy, Runner, TestApp, answer, bystander, eventually, http, short_lease};

/// A secret in the form in which operators write it.
const SECRET: &str = "whsec_ALA1undIWH4YchSEr3keYO3HRN8xRuWl";
/// The secret of the specification's own examples.
const PUBLISHED: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// What the receiver does with a call.
#[derive(Clone, Debug)]
enum Reaction {
    /// Answer with this status, these headers and this body.
    Answer(u16, &'static str, String),
    /// Read the call and close the connection.
    Cut,
    /// Begin the answer of a verdict and close the connection in the middle of its body.
    CutInside,
    /// Keep the connection open and say nothing.
    Silence,
    /// Answer 500 with the signature and the token of the call.
    Echo,
    /// Report on the attempt at this process, and answer with a verdict when this token is cancelled.
    Report(SocketAddr, CancellationToken),
}

/// A call as the receiver saw it.
#[derive(Clone, Debug)]
struct Call {
    head: String,
    body: String,
    document: Value,
}

impl Call {
    fn token(&self) -> String {
        self.document["token"].as_str().unwrap().to_owned()
    }

    fn header(&self, name: &str) -> Option<&str> {
        let line = self.head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}:")))?;
        line.split_once(':').map(|(_, value)| value.trim())
    }
}

/// A receiver of pushed jobs. It reacts as planned, and then with 202.
struct Receiver {
    addr: SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    calls: Mutex<VecDeque<Call>>,
    seen: Mutex<usize>,
    plan: Mutex<VecDeque<Reaction>>,
}

impl Receiver {
    async fn start() -> Self {
        Self::start_with(serve).await
    }

    /// Start a receiver behind TLS, with a certificate for `localhost` that no authority of the machine has signed. Return
    /// the certificate, too.
    async fn start_with_tls() -> (Self, String) {
        let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![key.cert.der().clone()], key.signing_key.into())
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let receiver = Self::start_with(move |socket, shared| {
            let acceptor = acceptor.clone();
            async move {
                // A caller that does not trust the certificate ends the connection here.
                if let Ok(stream) = acceptor.accept(socket).await {
                    serve(stream, shared).await;
                }
            }
        });
        (receiver.await, key.cert.pem())
    }

    async fn start_with<F: Future<Output = ()> + Send + 'static>(
        serves: impl Fn(TcpStream, Arc<Shared>) -> F + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let serving = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                while let Ok((socket, _)) = listener.accept().await {
                    tokio::spawn(serves(socket, Arc::clone(&shared)));
                }
            }
        });
        Self { addr, shared, serving }
    }

    /// React to the next calls like this, in this order.
    fn plan(&self, reactions: impl IntoIterator<Item = Reaction>) {
        self.shared.plan.lock().unwrap().extend(reactions);
    }

    /// Return a declaration that names this receiver, with these fields of the push and of the kind besides.
    fn kind(&self, push: Value, fields: Value) -> Value {
        let (Value::Object(push), Value::Object(fields)) = (push, fields) else { panic!("both are objects") };
        let mut run = json!({"url": format!("http://{}/jobs", self.addr)});
        run.as_object_mut().unwrap().extend(push);
        let mut kind =
            json!({"run": {"push": run}, "retry": {"base_ms": 1, "factor": 1.0, "cap_ms": 1, "jitter": 0.0}});
        kind.as_object_mut().unwrap().extend(fields);
        kind
    }

    /// Wait for the next call.
    async fn call(&self) -> Call {
        eventually("the receiver is called", || async { self.shared.calls.lock().unwrap().pop_front() }).await
    }

    /// Return the number of calls so far.
    fn count(&self) -> usize {
        *self.shared.seen.lock().unwrap()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(mut socket: impl AsyncRead + AsyncWrite + Unpin, shared: Arc<Shared>) {
    let (mut bytes, mut part) = (Vec::new(), [0; 65_536]);
    loop {
        // One connection may carry several calls.
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            match socket.read(&mut part).await {
                Ok(0) | Err(_) => return,
                Ok(read) => bytes.extend_from_slice(&part[..read]),
            }
            continue;
        };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
        });
        let whole = end + 4 + length.unwrap();
        while bytes.len() < whole {
            match socket.read(&mut part).await {
                Ok(0) | Err(_) => return,
                Ok(read) => bytes.extend_from_slice(&part[..read]),
            }
        }
        let body = String::from_utf8(bytes[end + 4..whole].to_vec()).unwrap();
        bytes.drain(..whole);
        let document = serde_json::from_str(&body).unwrap();
        let reaction = shared.plan.lock().unwrap().pop_front();
        *shared.seen.lock().unwrap() += 1;
        let call = Call { head, body, document };
        let echo = format!("{} {}", call.header("webhook-signature").unwrap_or_default(), call.token());
        let token = call.token();
        shared.calls.lock().unwrap().push_back(call);
        let text = match reaction.unwrap_or_else(accepted) {
            Reaction::Answer(status, headers, body) => {
                format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len())
            }
            Reaction::Echo => format!("HTTP/1.1 500 X\r\ncontent-length: {}\r\n\r\n{echo}", echo.len()),
            Reaction::Report(at, answers) => {
                let report = http().post(format!("http://{at}/v1/attempts/{token}/report")).json(&json!({}));
                let reported = answer(report).await;
                assert!(reported.status == 200 && reported.body["until"].is_string(), "{:#}", reported.body);
                answers.cancelled().await;
                let body = succeeded().to_string();
                format!("HTTP/1.1 200 X\r\ncontent-length: {}\r\n\r\n{body}", body.len())
            }
            Reaction::Cut => return,
            Reaction::CutInside => "HTTP/1.1 200 OK\r\ncontent-length: 400\r\n\r\n{\"verdict\":".to_owned(),
            Reaction::Silence => {
                let _ = socket.read(&mut part).await;
                return;
            }
        };
        let written = socket.write_all(text.as_bytes()).await.is_ok() && socket.flush().await.is_ok();
        if !written || text.contains("length: 400") {
            return;
        }
    }
}

fn accepted() -> Reaction {
    Reaction::Answer(202, "", String::new())
}

fn verdict(body: &Value) -> Reaction {
    Reaction::Answer(200, "content-type: application/json\r\n", body.to_string())
}

fn succeeded() -> Value {
    json!({"verdict": "succeeded", "result": {"rows": 7}})
}

impl TestApp {
    async fn declare(&self, kind: &Value) {
        let declared = self.put("/v1/kinds/resize", kind).await;
        assert!(declared.status == 201 || declared.status == 200, "{:#}", declared.body);
    }

    async fn resize(&self) -> JobId {
        self.enqueue(json!({"kind": "resize", "payload": {"path": "a.png"}})).await
    }

    async fn finish_pushed(&self, token: &str, body: Value) -> Answer {
        self.post(&format!("/v1/attempts/{token}/finish"), body).await
    }

    async fn until_held_by_receiver(&self, id: JobId) -> Value {
        eventually("the receiver has the attempt", || async {
            let job = self.job(id).await;
            job["deferred_until"].is_string().then_some(job)
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_gets_the_signed_document_of_an_attempt_and_its_verdict_counts() {
    let tickr = TestApp::start().await;
    let receiver = Receiver::start().await;
    tickr.declare(&receiver.kind(json!({"secret": SECRET}), json!({"timeout_ms": 90_000}))).await;
    receiver.plan([verdict(&json!({"verdict": "succeeded", "result": {"rows": 7}, "log": "one\ntwo"}))]);
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let job = json!({"kind": "resize", "payload": {"path": "a.png"}, "tags": ["eu"], "trace": {"traceparent": trace}});
    let id = tickr.enqueue(job).await;
    let call = receiver.call().await;
    let done = tickr.until(id, State::Completed).await;
    assert_eq!((&done["result"], &done["attempt"]), (&json!({"rows": 7}), &json!(1)), "{done:#}");

    let document = &call.document;
    assert_eq!(document["id"], id.to_string());
    assert_eq!((&document["kind"], &document["queue"]), (&json!("resize"), &json!("default")));
    assert_eq!((&document["payload"], &document["tags"]), (&json!({"path": "a.png"}), &json!(["eu"])));
    assert_eq!((&document["attempt"], &document["max_attempts"]), (&json!(1), &json!(5)));
    assert_eq!(
        (&document["timeout_ms"], &document["started_at"]),
        (&json!(90_000), &done["attempts"][0]["started_at"])
    );
    assert!(document["deadline_at"].as_str().unwrap() > document["started_at"].as_str().unwrap(), "{document:#}");
    assert!(document["traceparent"].as_str().unwrap().starts_with(&trace[..35]), "{document:#}");
    assert_eq!(document.get("checkpoint"), None);
    assert!(call.head.starts_with("POST /jobs HTTP/1.1"), "{}", call.head);
    let (sent_id, at) = (call.header("webhook-id").unwrap(), call.header("webhook-timestamp").unwrap());
    assert_eq!((sent_id, call.header("tickr-job-id").unwrap()), (&*id.to_string(), &*id.to_string()));
    let key = STANDARD.decode(SECRET.strip_prefix("whsec_").unwrap()).unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    mac.update(format!("{sent_id}.{at}.{}", call.body).as_bytes());
    let expected = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
    assert_eq!(call.header("webhook-signature").unwrap(), expected);

    // A kind that no other test has: all of them share one process.
    receiver.plan([verdict(&succeeded())]);
    let metered = tickr.put("/v1/kinds/metered", receiver.kind(json!({}), json!({}))).await;
    assert_eq!(metered.status, 201, "{:#}", metered.body);
    let id = tickr.enqueue_kind("metered", json!({})).await;
    tickr.until(id, State::Completed).await;
    tickr.until_metric("tickr_attempts_total{kind=\"metered\",verdict=\"succeeded\"} 1").await;
    tickr.until_metric("tickr_run_seconds_count{kind=\"metered\"} 1").await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_of_a_receiver_has_its_consequence() {
    let tickr = TestApp::start().await;
    let receiver = Receiver::start().await;
    tickr.declare(&receiver.kind(json!({}), json!({"max_attempts": 20}))).await;
    receiver.plan([
        verdict(&json!({"verdict": "failed", "error": "a disk", "checkpoint": {"at": 4}})),
        verdict(&json!({"verdict": "failed", "error": "a rest", "delay_ms": 5})),
        verdict(&json!({"verdict": "snoozed", "error": "busy", "delay_ms": 1})),
        verdict(&json!({"verdict": "released"})),
        Reaction::Answer(500, "", "oh no".to_owned()),
        Reaction::Answer(503, "retry-after: 1\r\n", String::new()),
        Reaction::Answer(404, "", String::new()),
        Reaction::Answer(302, "location: /elsewhere\r\n", String::new()),
        Reaction::Answer(200, "", "<html>hello</html>".to_owned()),
        verdict(&json!({"verdict": "succeeded", "error": "both"})),
        Reaction::Answer(200, "", r#"["succeeded",null,null,null,null,null]"#.to_owned()),
        Reaction::Answer(200, "", format!("{} Fatal error: out of memory", succeeded())),
        Reaction::Answer(422, "", "no such picture".to_owned()),
    ]);
    let id = tickr.resize().await;
    let job = tickr.until(id, State::Failed).await;
    let attempts: Vec<(&str, &str)> = job["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|attempt| (attempt["verdict"].as_str().unwrap(), attempt["error"].as_str().unwrap_or_default()))
        .collect();
    let verdicts: Vec<&str> = attempts.iter().map(|(verdict, _)| *verdict).collect();
    let expected = [
        "failed",
        "failed",
        "snoozed",
        "interrupted",
        "failed",
        "snoozed",
        "failed",
        "failed",
        "failed",
        "failed",
        "failed",
        "failed",
        "rejected",
    ];
    assert_eq!(verdicts, expected, "{job:#}");
    assert_eq!(attempts[0].1, "a disk");
    assert!(attempts[4].1.contains("answered 500") && attempts[4].1.ends_with(": oh no"), "{attempts:#?}");
    assert!(attempts[8].1.contains("without a usable verdict"), "{attempts:#?}");
    assert!(attempts[9].1.contains("error may not be given"), "{attempts:#?}");
    assert!(attempts[10].1.ends_with("the answer is no JSON object"), "{attempts:#?}");
    assert!(attempts[11].1.ends_with("something follows the verdict"), "{attempts:#?}");
    assert!(attempts[12].1.ends_with("no such picture"), "{attempts:#?}");
    // Only attempts that count are counted.
    assert_eq!(job["attempt"], 10);
    let calls: Vec<Call> = receiver.shared.calls.lock().unwrap().drain(..).collect();
    assert_eq!(calls[0].document.get("checkpoint"), None);
    assert_eq!(calls[1].document["checkpoint"], json!({"at": 4}));

    // An answer without a body is a success without a result.
    receiver.plan([Reaction::Answer(204, "", String::new())]);
    let id = tickr.resize().await;
    assert_eq!(tickr.until(id, State::Completed).await["result"], Value::Null);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_answers_202_reports_and_finishes_later_through_any_process() {
    let tickr = TestApp::start_with(|config| config.workers = 1, Registry::new()).await;
    let receiver = Receiver::start().await;
    tickr.declare(&receiver.kind(json!({"lease_ms": 60_000}), json!({"timeout_ms": 600_000}))).await;
    let id = tickr.resize().await;
    let token = receiver.call().await.token();
    let job = tickr.until_held_by_receiver(id).await;
    assert!(job["state"] == "executing" && !job.to_string().contains(&token), "{job:#}");
    // The only worker is free meanwhile.
    let other = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(other, State::Completed).await;
    let why = tickr.get(&format!("/v1/jobs/{id}/explain")).await.body;
    assert!(why["summary"].as_str().unwrap().contains("another system works on it"), "{why:#}");

    let runner = tickr.another().await;
    let base = format!("http://{}/v1/attempts/{token}", runner.addr());
    let report = json!({"percent": 40, "note": "halfway", "checkpoint": {"at": 2}});
    let reported = answer(http().post(format!("{base}/report")).json(&report)).await;
    assert_eq!((reported.status, &reported.body["cancel_requested"]), (200, &json!(false)), "{:#}", reported.body);
    assert_eq!(tickr.job(id).await["progress"], json!({"percent": 40.0, "note": "halfway"}));
    // The job comes back with the checkpoint, and no attempt is used.
    let finished = answer(http().post(format!("{base}/finish")).json(&json!({"verdict": "released"}))).await;
    assert_eq!((finished.status, &finished.body["state"]), (200, &json!("waiting")), "{:#}", finished.body);
    let again = receiver.call().await;
    assert_eq!((&again.document["attempt"], &again.document["checkpoint"]), (&json!(1), &json!({"at": 2})));
    let base = format!("http://{}/v1/attempts/{}", runner.addr(), again.token());
    for _ in 0..2 {
        let finished = answer(http().post(format!("{base}/finish")).json(&succeeded())).await;
        assert_eq!((finished.status, &finished.body["state"]), (200, &json!("completed")), "{:#}", finished.body);
    }
    assert_eq!(tickr.until(id, State::Completed).await["result"], json!({"rows": 7}));
    assert_eq!(tickr.verdicts(id).await, ["interrupted", "succeeded"]);
    runner.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

/// Return JSON that is nested this deep.
fn nested(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verdict_that_is_nested_too_deep_is_not_usable_whatever_is_around_it() {
    let tickr = TestApp::start().await;
    let receiver = Receiver::start().await;
    tickr.declare(&receiver.kind(json!({}), json!({}))).await;
    let with_result =
        |levels| Reaction::Answer(200, "", format!(r#"{{"verdict":"succeeded","result":{}}}"#, nested(levels)));
    let checkpoint = format!(r#"{{"verdict":"failed","error":"no disk","checkpoint":{}}}"#, nested(65));
    receiver.plan([with_result(100_000), with_result(65), Reaction::Answer(200, "", checkpoint), with_result(64)]);
    let id = tickr.resize().await;
    let job = tickr.until(id, State::Completed).await;
    assert_eq!(tickr.verdicts(id).await, ["failed", "failed", "failed", "succeeded"]);
    for (attempt, field) in job["attempts"].as_array().unwrap().iter().zip(["result", "result", "checkpoint"]) {
        let said = format!("without a usable verdict: {field} must be nested at most 64 levels deep");
        assert!(attempt["error"].as_str().unwrap().ends_with(&said), "{attempt:#}");
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE LENGTH(result) = 128").await, 1);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE LENGTH(result) > 128").await, 0);

    // The depth counts from the value also in the calls of a receiver that finishes later, and not from the body.
    let id = tickr.resize().await;
    let token = until_called(&receiver, id).await.token();
    let call = async |verb: &str, field: &str, levels: usize| {
        let said = if verb == "finish" { r#""verdict":"succeeded","# } else { "" };
        let body = format!(r#"{{{said}"{field}":{}}}"#, nested(levels));
        let url = tickr.url(&format!("/v1/attempts/{token}/{verb}"));
        answer(http().post(url).header("content-type", "application/json").body(body)).await
    };
    for (verb, field) in [("report", "checkpoint"), ("finish", "result"), ("finish", "checkpoint")] {
        let refused = call(verb, field, 65).await;
        let expected = (422, "invalid_request", vec![format!("/{field}")]);
        let pointers = refused.pointers().into_iter().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!((refused.status, refused.code(), pointers), expected, "{verb}: {:#}", refused.body);
    }
    assert_eq!(call("report", "checkpoint", 64).await.status, 200);
    assert_eq!(call("finish", "result", 64).await.body["state"], "completed");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE LENGTH(result) = 128").await, 2);
    tickr.stop().await;
}

/// Wait for the newest call about this job.
async fn until_called(receiver: &Receiver, id: JobId) -> Call {
    eventually("the receiver is called for the job", || async {
        let id = id.to_string();
        let calls = receiver.shared.calls.lock().unwrap();
        calls.iter().rev().find(|call| call.document["id"] == id.as_str()).cloned()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finish_through_the_api_frees_the_slot_of_its_job_for_the_next_one() {
    let tickr = TestApp::start().await;
    let receiver = Receiver::start().await;
    tickr.declare(&receiver.kind(json!({}), json!({}))).await;
    set_and_wait(&tickr, "one", json!({"kind": "resize", "shared_by": "all", "concurrency": 1})).await;
    for _ in 0..5 {
        tickr.resize().await;
    }
    for left in (0..5).rev() {
        let call = receiver.call().await;
        let id: JobId = call.document["id"].as_str().unwrap().parse().unwrap();
        tickr.until_held_by_receiver(id).await;
        tickr.until_count("SELECT COUNT(*) FROM limit_waits", left).await;
        let slot = format!("SELECT COUNT(*) FROM limit_slots WHERE job_id = x'{}'", id.uuid().simple());
        assert_eq!(tickr.count(&slot).await, 1);
        assert_eq!(tickr.finish_pushed(&call.token(), succeeded()).await.body["state"], "completed");
        // The answer comes behind this. A sweep of limits comes about once a second, and not behind each of the five.
        assert_eq!(tickr.count(&slot).await, 0, "the finish has freed the slot");
        assert_eq!(tickr.count("SELECT COUNT(*) FROM limit_waits").await, (left - 1).max(0), "and let the next job go");
    }
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_was_reported_on_before_its_answer_is_forgotten_with_its_verdict() {
    let tickr = TestApp::start().await;
    let receiver = Receiver::start().await;
    tickr.declare(&receiver.kind(json!({"lease_ms": 60_000}), json!({}))).await;
    let answers = CancellationToken::new();
    receiver.plan([Reaction::Report(tickr.app.addr(), answers.clone())]);
    let id = tickr.resize().await;
    tickr.until_held_by_receiver(id).await;
    answers.cancel();
    let done = tickr.until(id, State::Completed).await;
    assert_eq!((&done["result"], tickr.verdicts(id).await), (&json!({"rows": 7}), vec!["succeeded".to_owned()]));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM deferred_attempts").await, 1, "the key still finds the attempt");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM deferred_attempts WHERE look_at IS NOT NULL").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_during_a_call_ends_no_attempt_before_its_answer() {
    let tickr = TestApp::start_with(short_lease, Registry::new()).await;
    let receiver = Receiver::start().await;
    tickr.declare(&receiver.kind(json!({"lease_ms": 1_000}), json!({}))).await;
    let answers = CancellationToken::new();
    receiver.plan([Reaction::Report(tickr.app.addr(), answers.clone())]);
    let id = tickr.resize().await;
    tickr.until_held_by_receiver(id).await;
    // This one is answered with 202, and its lease begins later. So its end shows that the process has looked.
    let silent = tickr.enqueue(json!({"kind": "resize", "payload": {}, "max_attempts": 1})).await;
    let ended = tickr.until(silent, State::Failed).await;
    assert_eq!(ended["attempts"][0]["error"], "nothing was heard of it for 1000 ms", "{ended:#}");
    answers.cancel();
    let done = tickr.until(id, State::Completed).await;
    assert_eq!((&done["result"], tickr.verdicts(id).await), (&json!({"rows": 7}), vec!["succeeded".to_owned()]));
    assert_eq!(receiver.count(), 2, "one call for each of the two jobs");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mysql_that_goes_away_before_the_call_uses_no_attempt() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let through = |config: &mut Config| {
        config.mysql_url = Some(ServerUrl::mysql(&proxy.url()).unwrap());
        config.queues = vec!["default".into()];
    };
    let runner = tickr.another_with(through, Registry::new()).await;
    let receiver = Receiver::start().await;
    tickr.declare(&receiver.kind(json!({}), json!({"max_attempts": 1}))).await;
    receiver.plan([verdict(&succeeded())]);
    // After three broken connections the store says that MySQL is out. So it says that twice.
    proxy.refuse("INSERT INTO deferred_attempts", 1053, 7);
    let id = tickr.resize().await;
    let done = tickr.until(id, State::Completed).await;
    assert_eq!((&done["result"], &done["attempt"]), (&json!({"rows": 7}), &json!(1)), "{done:#}");
    assert_eq!((tickr.verdicts(id).await, receiver.count()), (vec!["succeeded".to_owned()], 1));
    assert!(proxy.is_through(), "MySQL was out");
    runner.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_never_finishes_is_called_again_at_its_lease_and_its_late_finish_is_refused() {
    let tickr = TestApp::start_with(short_lease, Registry::new()).await;
    let receiver = Receiver::start().await;
    tickr.declare(&receiver.kind(json!({"lease_ms": 1_000}), json!({}))).await;
    let id = tickr.resize().await;
    let old = receiver.call().await.token();
    let new = receiver.call().await;
    assert_eq!((&new.document["attempt"], new.document["id"].as_str().unwrap()), (&json!(2), &*id.to_string()));
    assert_ne!(new.token(), old);
    tickr.until_held_by_receiver(id).await;
    let job = tickr.job(id).await;
    assert_eq!(job["attempts"][0]["verdict"], "timed_out", "{job:#}");
    assert_eq!(job["attempts"][0]["error"], "nothing was heard of it for 1000 ms");
    for body in [succeeded(), json!({"verdict": "failed", "error": "late"})] {
        let refused = tickr.finish_pushed(&old, body).await;
        assert_eq!((refused.status, refused.code()), (409, "attempt_ended"), "{:#}", refused.body);
    }
    assert_eq!(tickr.post(&format!("/v1/attempts/{old}/report"), json!({})).await.status, 409);
    assert_eq!(tickr.finish_pushed(&new.token(), succeeded()).await.status, 200);
    tickr.until(id, State::Completed).await;
    assert_eq!(tickr.verdicts(id).await, ["timed_out", "succeeded"]);

    // Without a lease, the time limit of the attempt ends it.
    tickr.declare(&receiver.kind(json!({}), json!({"timeout_ms": 1_500, "max_attempts": 1}))).await;
    let id = tickr.resize().await;
    let token = receiver.call().await.token();
    let job = tickr.until(id, State::Failed).await;
    assert_eq!(job["attempts"][0]["verdict"], "timed_out", "{job:#}");
    assert_eq!(tickr.finish_pushed(&token, succeeded()).await.status, 409);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finish_is_refused_when_the_process_has_ended_the_attempt_with_the_same_word() {
    let tickr = TestApp::start().await;
    let receiver = Receiver::start().await;
    tickr.declare(&receiver.kind(json!({"answer_ms": 1_000}), json!({"max_attempts": 2}))).await;
    receiver.plan([Reaction::Silence]);
    let id = tickr.resize().await;
    let first = receiver.call().await.token();
    assert_eq!(tickr.until_attempts(id, 1).await["attempts"][0]["verdict"], "failed", "no answer in time");
    let late = json!({"verdict": "failed", "error": "disk full", "delay_ms": 600_000, "checkpoint": {"at": 7}});
    let refused = tickr.finish_pushed(&first, late).await;
    assert_eq!((refused.status, refused.code()), (409, "attempt_ended"), "{:#}", refused.body);
    // The verdict of the receiver itself has the same answer again.
    tickr.until_held_by_receiver(id).await;
    let second = until_called(&receiver, id).await;
    assert_eq!((&second.document["attempt"], second.document.get("checkpoint")), (&json!(2), None));
    for _ in 0..2 {
        let finished = tickr.finish_pushed(&second.token(), json!({"verdict": "failed", "error": "disk full"})).await;
        assert_eq!((finished.status, &finished.body["state"]), (200, &json!("failed")), "{:#}", finished.body);
    }
    assert_eq!(tickr.verdicts(id).await, ["failed", "failed"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the receiver takes twenty minutes"]
async fn a_receiver_finishes_after_twenty_minutes() {
    let tickr = TestApp::start().await;
    let receiver = Receiver::start().await;
    tickr.declare(&receiver.kind(json!({}), json!({"timeout_ms": 3_600_000}))).await;
    let id = tickr.resize().await;
    let token = receiver.call().await.token();
    tickr.until_held_by_receiver(id).await;
    // The time that the receiver takes. Nothing may happen meanwhile.
    tokio::time::sleep(Duration::from_secs(20 * 60)).await;
    assert_eq!(receiver.count(), 1);
    assert_eq!(tickr.finish_pushed(&token, succeeded()).await.status, 200);
    tickr.until(id, State::Completed).await;
    assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    println!("a receiver finished after twenty minutes: one call, one attempt");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_a_stop_nor_the_death_of_a_process_interrupts_a_job_that_a_receiver_holds() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let receiver = Receiver::start().await;
    tickr.declare(&receiver.kind(json!({}), json!({"timeout_ms": 600_000}))).await;
    let stopped = tickr.another_with(|config| config.queues = vec!["default".into()], Registry::new()).await;
    let first = tickr.resize().await;
    let first_token = receiver.call().await.token();
    tickr.until_held_by_receiver(first).await;
    stopped.stop(CancellationToken::new()).await;

    let mut killed = Runner::start(&tickr, &[("TICKR_CALLBACK_ALLOW_PRIVATE", "true")]);
    let second = tickr.resize().await;
    let second_token = receiver.call().await.token();
    tickr.until_held_by_receiver(second).await;
    killed.kill9();
    // The reaper has looked at what the dead runner left.
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE stopped_at IS NULL", 1).await;
    for (id, token) in [(first, first_token), (second, second_token)] {
        assert_eq!(tickr.verdicts(id).await, ["open"]);
        assert_eq!(tickr.finish_pushed(&token, succeeded()).await.status, 200);
        tickr.until(id, State::Completed).await;
        assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    }
    assert_eq!(receiver.count(), 2);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_whose_call_outlives_its_process_finishes_or_is_called_again_with_another_token() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let receiver = Receiver::start().await;
    tickr.declare(&receiver.kind(json!({}), json!({"timeout_ms": 600_000}))).await;
    let mut killed = Runner::start(&tickr, &[("TICKR_CALLBACK_ALLOW_PRIVATE", "true")]);
    receiver.plan([Reaction::Silence, Reaction::Silence]);
    let (first, second) = (tickr.resize().await, tickr.resize().await);
    let (a, b) = (receiver.call().await, receiver.call().await);
    let (one, two) = if a.document["id"] == first.to_string() { (a, b) } else { (b, a) };
    killed.kill9();
    // The process never saw an answer. The receiver has the token, and it counts as long as the lease of the dead lasts.
    assert_eq!(tickr.finish_pushed(&one.token(), succeeded()).await.status, 200);
    tickr.until(first, State::Completed).await;
    assert_eq!(tickr.verdicts(first).await, ["succeeded"]);
    // After that the attempt is lost, and the receiver is called with the next one.
    let other = Runner::start(&tickr, &[("TICKR_CALLBACK_ALLOW_PRIVATE", "true")]);
    let again = receiver.call().await;
    assert_eq!((&again.document["id"], &again.document["attempt"]), (&json!(second.to_string()), &json!(2)));
    assert_eq!(tickr.finish_pushed(&two.token(), succeeded()).await.status, 409);
    tickr.until_held_by_receiver(second).await;
    assert_eq!(tickr.finish_pushed(&again.token(), succeeded()).await.status, 200);
    tickr.until(second, State::Completed).await;
    assert_eq!(tickr.verdicts(second).await, ["lost", "succeeded"]);
    drop(other);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_reports_keeps_an_attempt_whose_process_died_before_it_answered() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let receiver = Receiver::start().await;
    tickr.declare(&receiver.kind(json!({"lease_ms": 60_000}), json!({"timeout_ms": 600_000}))).await;
    let mut killed = Runner::start(&tickr, &[("TICKR_CALLBACK_ALLOW_PRIVATE", "true")]);
    receiver.plan([Reaction::Silence]);
    let id = tickr.resize().await;
    let token = receiver.call().await.token();
    killed.kill9();
    let reported = tickr.post(&format!("/v1/attempts/{token}/report"), json!({"percent": 1})).await;
    assert!(reported.status == 200 && reported.body["until"].is_string(), "{:#}", reported.body);
    // The reaper has looked at what the dead runner left.
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE stopped_at IS NULL", 1).await;
    assert_eq!(tickr.verdicts(id).await, ["open"]);
    assert_eq!(tickr.finish_pushed(&token, succeeded()).await.status, 200);
    tickr.until(id, State::Completed).await;
    assert_eq!((tickr.verdicts(id).await, receiver.count()), (vec!["succeeded".to_owned()], 1));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_during_a_call_outlasts_the_beats_and_the_death_of_the_process() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let receiver = Receiver::start().await;
    tickr.declare(&receiver.kind(json!({"lease_ms": 60_000}), json!({"timeout_ms": 600_000}))).await;
    let mut killed = Runner::start(&tickr, &[("TICKR_CALLBACK_ALLOW_PRIVATE", "true")]);
    receiver.plan([Reaction::Silence]);
    let id = tickr.resize().await;
    let token = receiver.call().await.token();
    let reported = tickr.post(&format!("/v1/attempts/{token}/report"), json!({"percent": 1})).await;
    assert!(reported.status == 200 && reported.body["until"].is_string(), "{:#}", reported.body);
    // A runner writes its next heartbeat when it has renewed the leases of the one before.
    for _ in 0..2 {
        let mut mysql = tickr.mysql().await;
        let now: String =
            sqlx::query_scalar("SELECT CAST(UTC_TIMESTAMP(6) AS CHAR)").fetch_one(&mut mysql).await.unwrap();
        tickr.until_count(format!("SELECT COUNT(*) FROM runners WHERE heartbeat_at > '{now}'"), 2).await;
    }
    killed.kill9();
    let long = "SELECT COUNT(*) FROM owed WHERE lease_until > UTC_TIMESTAMP(6) + INTERVAL 30 SECOND";
    assert_eq!(tickr.count(long).await, 1, "a beat has shortened the time of the receiver");
    // The reaper has looked at what the dead runner left.
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE stopped_at IS NULL", 1).await;
    assert_eq!(tickr.verdicts(id).await, ["open"]);
    assert_eq!(tickr.finish_pushed(&token, succeeded()).await.status, 200);
    tickr.until(id, State::Completed).await;
    assert_eq!((tickr.verdicts(id).await, receiver.count()), (vec!["succeeded".to_owned()], 1));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_answer_is_lost_is_repeated_with_the_same_token_and_uses_no_attempt() {
    let tickr = TestApp::start().await;
    let receiver = Receiver::start().await;
    tickr.declare(&receiver.kind(json!({}), json!({}))).await;
    receiver.plan([Reaction::Cut, Reaction::CutInside, verdict(&succeeded())]);
    let id = tickr.resize().await;
    let done = tickr.until(id, State::Completed).await;
    assert_eq!((&done["result"], &done["attempt"]), (&json!({"rows": 7}), &json!(1)), "{done:#}");
    let tokens: Vec<String> = receiver.shared.calls.lock().unwrap().drain(..).map(|call| call.token()).collect();
    assert!(tokens.len() == 3 && tokens.iter().all(|token| *token == tokens[0]), "{tokens:?}");
    assert_eq!(tickr.verdicts(id).await, ["succeeded"]);

    // A receiver that never answers has its retries, each with a token of its own.
    receiver.plan((0..4).map(|_| Reaction::Cut));
    receiver.plan([verdict(&succeeded())]);
    let id = tickr.resize().await;
    let done = tickr.until(id, State::Completed).await;
    assert!(done["attempts"][0]["error"].as_str().unwrap().contains("the answer was lost"), "{done:#}");
    assert_eq!(tickr.verdicts(id).await, ["failed", "succeeded"]);
    let tokens: Vec<String> = receiver.shared.calls.lock().unwrap().drain(..).map(|call| call.token()).collect();
    assert!(tokens[..4].iter().all(|token| *token == tokens[0]) && tokens[4] != tokens[0], "{tokens:?}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_secret_of_a_receiver_is_shown_nowhere() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
    let receiver = Receiver::start().await;
    let runner = Runner::start(&tickr, &[("TICKR_CALLBACK_ALLOW_PRIVATE", "true"), ("TICKR_LOG", "debug")]);
    let base = runner.base().await;
    receiver.plan([Reaction::Answer(500, "", String::new())]);
    let kind = receiver.kind(json!({"secret": SECRET}), json!({}));
    let declared = tickr.put("/v1/kinds/resize", kind.clone()).await;
    assert_eq!(declared.body["run"]["push"]["has_secret"], true, "{:#}", declared.body);
    let through = answer(http().put(format!("{base}/v1/kinds/resize")).json(&kind)).await;
    assert_eq!(through.status, 200, "{:#}", through.body);
    let id = tickr.resize().await;
    receiver.call().await;
    let token = receiver.call().await.token();
    tickr.until_held_by_receiver(id).await;
    let mut shown = vec![declared.body, through.body];
    for path in ["/v1/kinds", "/v1/kinds/resize", "/v1/audit", "/v1/jobs", &format!("/v1/jobs/{id}/explain")] {
        shown.push(tickr.get(path).await.body);
    }
    let mut wrong = kind.clone();
    wrong["run"]["push"]["secret"] = json!(format!("{SECRET}!"));
    let refused = tickr.put("/v1/kinds/resize", wrong).await;
    assert_eq!((refused.status, refused.pointers()), (422, vec!["/run/push/secret"]));
    shown.push(refused.body);
    let words = &SECRET["whsec_".len()..];
    for shown in &shown {
        assert!(!shown.to_string().contains(words), "{shown:#}");
    }
    let job = tickr.job(id).await;
    assert!(!job.to_string().contains(&token), "{job:#}");
    assert!(!runner.log().contains(words) && !runner.log().contains(&token), "{}", runner.log());
    tickr.delete("/v1/kinds/resize").await;
    assert!(!tickr.get("/v1/audit").await.body.to_string().contains(words));
    assert_eq!(tickr.finish_pushed(&token, succeeded()).await.status, 200);
    drop(runner);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declaration_with_the_secret_of_the_published_examples_is_refused() {
    let tickr = TestApp::start().await;
    let receiver = Receiver::start().await;
    let refused = tickr.put("/v1/kinds/resize", receiver.kind(json!({"secret": PUBLISHED}), json!({}))).await;
    assert_eq!((refused.status, refused.pointers()), (422, vec!["/run/push/secret"]), "{:#}", refused.body);
    let said = refused.body.to_string();
    assert!(said.contains("openssl rand") && !said.contains(PUBLISHED), "{said}");
    assert_eq!(tickr.get("/v1/kinds/resize").await.status, 404);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_of_an_attempt_is_not_stored_when_the_receiver_sends_it_back() {
    let tickr = TestApp::start().await;
    let receiver = Receiver::start().await;
    tickr.declare(&receiver.kind(json!({"secret": SECRET}), json!({"max_attempts": 1}))).await;
    receiver.plan([Reaction::Echo]);
    let id = tickr.resize().await;
    let call = receiver.call().await;
    let job = tickr.until(id, State::Failed).await;
    assert!(job["last_error"].as_str().unwrap().contains("answered 500"), "{job:#}");
    assert!(job["attempts"][0]["exchange"]["response"]["body"].as_str().unwrap().contains("***"), "{job:#}");
    let (text, signature) = (job.to_string(), call.header("webhook-signature").unwrap());
    assert!(!text.contains(&call.token()) && !text.contains(signature), "{text}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_at_a_private_address_is_refused_unless_it_is_allowed() {
    let tickr = TestApp::start_with(
        |config| {
            config.callback_allow_private = false;
            config.queues = vec!["elsewhere".into()];
        },
        Registry::new(),
    )
    .await;
    let receiver = Receiver::start().await;
    let port = receiver.addr.port();
    for url in [
        format!("http://127.0.0.1:{port}/"),
        format!("http://localhost:{port}/"),
        "http://169.254.169.254/".to_owned(),
        "ftp://example.com/".to_owned(),
        "https://me:secret@example.com/".to_owned(),
        "jobs".to_owned(),
    ] {
        let refused = tickr.put("/v1/kinds/resize", json!({"run": {"push": {"url": url}}})).await;
        assert_eq!((refused.status, refused.pointers()), (422, vec!["/run/push/url"]), "{url}");
    }
    for (push, pointer) in [
        (json!({"url": "https://example.com/", "lease_ms": 999}), "/run/push/lease_ms"),
        (json!({"url": "https://example.com/", "answer_ms": 0}), "/run/push/answer_ms"),
        (json!({"url": "https://example.com/", "secret": "whsec_c2hvcnQ="}), "/run/push/secret"),
        (json!({"url": "https://example.com/", "slots": 1}), "/run/push/slots"),
        (json!({}), "/run/push/url"),
    ] {
        let refused = tickr.put("/v1/kinds/resize", json!({"run": {"push": push}})).await;
        assert_eq!((refused.status, refused.pointers()), (422, vec![pointer]), "{:#}", refused.body);
    }
    let allows = tickr
        .another_with(
            |config| {
                config.callback_allow_private = true;
                config.queues = vec!["mine".into()];
            },
            Registry::new(),
        )
        .await;
    let url = format!("http://{}/v1/kinds/resize", allows.addr());
    let kind = receiver.kind(json!({}), json!({"max_attempts": 2}));
    assert_eq!(answer(http().put(&url).json(&kind)).await.status, 201);

    // A process that may not call it fails the attempt, and calls nothing.
    let strict = tickr.another_with(|config| config.queues = vec!["default".into()], Registry::new()).await;
    let id = eventually("the kind is known", || async {
        let job = json!({"kind": "resize", "payload": {}});
        let sent = tickr.post("/v1/jobs", job).await;
        (sent.status == 201).then(|| sent.body["id"].as_str().unwrap().parse::<JobId>().unwrap())
    })
    .await;
    let job = tickr.until(id, State::Failed).await;
    assert!(job["last_error"].as_str().unwrap().contains("callback_allow"), "{job:#}");
    assert_eq!(tickr.verdicts(id).await, ["failed", "failed"]);
    assert_eq!(receiver.count(), 0);
    receiver.plan([verdict(&succeeded())]);
    let mine = tickr.enqueue(json!({"kind": "resize", "payload": {}, "queue": "mine"})).await;
    tickr.until(mine, State::Completed).await;
    strict.stop(CancellationToken::new()).await;
    allows.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_callback_allow_names_is_called_and_no_other_private_address_is_allowed() {
    let receiver = Receiver::start().await;
    let kind = receiver.kind(json!({}), json!({"max_attempts": 1}));
    let closed = |config: &mut Config| config.callback_allow_private = false;
    let tickr = TestApp::start_with(closed, Registry::new()).await;
    let refused = tickr.put("/v1/kinds/resize", &kind).await;
    assert_eq!((refused.status, refused.pointers()), (422, vec!["/run/push/url"]), "{:#}", refused.body);
    let detail = refused.body["errors"][0]["detail"].as_str().unwrap().to_owned();
    let (_, entry) = detail.split_once("callback_allow = [\"").unwrap();
    let (entry, _) = entry.split_once('"').unwrap();
    tickr.stop().await;

    // The entry that the refusal names is enough.
    let flags = Flags::default().with("callback_allow", entry);
    let allow = Config::load(&flags, std::iter::empty(), None).unwrap().config.callback_allow;
    let open = move |config: &mut Config| {
        config.callback_allow_private = false;
        config.callback_allow = allow;
    };
    let tickr = TestApp::start_with(open, Registry::new()).await;
    tickr.declare(&kind).await;
    receiver.plan([verdict(&succeeded())]);
    let id = tickr.resize().await;
    assert_eq!(tickr.until(id, State::Completed).await["result"], json!({"rows": 7}));
    assert_eq!(receiver.count(), 1);
    for url in ["http://127.0.0.2/jobs", "http://10.0.0.7/jobs", "http://[::1]/jobs", "http://169.254.169.254/"] {
        let refused = tickr.put("/v1/kinds/elsewhere", json!({"run": {"push": {"url": url}}})).await;
        assert_eq!((refused.status, refused.pointers()), (422, vec!["/run/push/url"]), "{url}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_with_a_certificate_of_an_own_authority_is_called_by_the_runner_that_trusts_it_alone() {
    let (receiver, certificate) = Receiver::start_with_tls().await;
    // This runner trusts the authorities of the machine alone.
    let tickr = TestApp::start_with(|config| config.queues = vec!["default".into()], Registry::new()).await;
    let file = tickr.dir.path().join("ca.pem");
    std::fs::write(&file, certificate).unwrap();
    let trusts = tickr
        .another_with(
            |config| (config.queues, config.callback_ca_file) = (vec!["mine".into()], Some(file)),
            Registry::new(),
        )
        .await;
    let url = format!("https://localhost:{}/jobs", receiver.addr.port());
    let kind = receiver.kind(json!({"url": url, "secret": SECRET}), json!({"max_attempts": 1}));
    tickr.declare(&kind).await;
    let id = tickr.resize().await;
    let job = tickr.until(id, State::Failed).await;
    assert!(job["last_error"].as_str().unwrap().contains("could not be called"), "{job:#}");
    assert_eq!(receiver.count(), 0, "nothing was said to a receiver that is not trusted");

    receiver.plan([verdict(&succeeded())]);
    let mine = tickr.enqueue(json!({"kind": "resize", "payload": {"path": "b.png"}, "queue": "mine"})).await;
    assert_eq!(tickr.until(mine, State::Completed).await["result"], json!({"rows": 7}));
    let call = receiver.call().await;
    assert_eq!(call.document["id"], mine.to_string());
    assert!(call.header("webhook-signature").is_some(), "{}", call.head);
    trusts.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_gets_a_receiver_changes_it_and_loses_it_while_runners_live() {
    let tickr = TestApp::start().await;
    let other = tickr.another().await;
    let (first, second) = (Receiver::start().await, Receiver::start().await);
    tickr.declare(&json!({})).await;
    // Nothing executes the kind yet.
    let id = tickr.resize().await;
    // A busy machine may make the runner silent for a moment.
    eventually("the reason is that nothing executes the kind", || async {
        let why = tickr.get(&format!("/v1/jobs/{id}/explain")).await.body;
        why.to_string().contains("kind_unknown").then_some(())
    })
    .await;
    first.plan([verdict(&succeeded())]);
    tickr.declare(&first.kind(json!({}), json!({}))).await;
    tickr.until(id, State::Completed).await;
    // Both runners say that they execute it now.
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE kinds LIKE '%\"resize\"%' AND stopped_at IS NULL", 2).await;
    let worker = json!({"name": "php", "kinds": ["resize"], "slots": 1});
    let refused = tickr.post("/v1/workers", worker.clone()).await;
    assert_eq!((refused.status, refused.pointers()), (422, vec!["/kinds/0"]), "{:#}", refused.body);

    second.plan((0..20).map(|_| verdict(&succeeded())));
    tickr.declare(&second.kind(json!({}), json!({}))).await;
    let calls = first.count();
    let later = eventually("both runners call the other receiver", || async {
        let id = tickr.resize().await;
        first.plan([verdict(&succeeded())]);
        tickr.until(id, State::Completed).await;
        (second.count() >= 10).then_some(id)
    });
    later.await;
    assert!(first.count() < calls + 20, "{} calls", first.count());

    assert_eq!(tickr.delete("/v1/kinds/resize").await.status, 204);
    // It can be declared again at once, and for workers, though the rows of the runners may still name it.
    tickr.declare(&json!({"run": "pull"})).await;
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE kinds LIKE '%\"resize\"%' AND stopped_at IS NULL", 0).await;
    let registered = tickr.post("/v1/workers", worker).await;
    assert_eq!(registered.status, 201, "{:#}", registered.body);
    assert_eq!(tickr.get("/v1/kinds/resize").await.body["run"], "pull");
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_a_kind_counts_the_jobs_that_its_receiver_holds() {
    let tickr = TestApp::start().await;
    let receiver = Receiver::start().await;
    tickr.declare(&receiver.kind(json!({}), json!({"timeout_ms": 600_000}))).await;
    set_and_wait(&tickr, "pictures", json!({"kind": "resize", "shared_by": "all", "concurrency": 2})).await;
    let ids = tickr.enqueue_many((0..5).map(|_| json!({"kind": "resize", "payload": {}}))).await;
    for turn in 0..5 {
        let call = receiver.call().await;
        let id: JobId = call.document["id"].as_str().unwrap().parse().unwrap();
        assert!(ids.contains(&id));
        tickr.until_held_by_receiver(id).await;
        // The third call comes only after a finish.
        assert!(receiver.count() <= turn + 2, "{} calls with {turn} finished", receiver.count());
        assert_eq!(tickr.finish_pushed(&call.token(), succeeded()).await.status, 200);
    }
    for id in ids {
        tickr.until(id, State::Completed).await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_a_receiver_with_its_next_report() {
    let tickr = TestApp::start().await;
    let receiver = Receiver::start().await;
    tickr.declare(&receiver.kind(json!({"lease_ms": 60_000}), json!({}))).await;
    let id = tickr.resize().await;
    let token = receiver.call().await.token();
    tickr.until_held_by_receiver(id).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 202);
    let reported = tickr.post(&format!("/v1/attempts/{token}/report"), json!({})).await;
    assert_eq!(reported.body["cancel_requested"], true, "{:#}", reported.body);
    let stopped = json!({"verdict": "failed", "error": "stopped"});
    assert_eq!(tickr.finish_pushed(&token, stopped).await.body["state"], "cancelled");
    tickr.until(id, State::Cancelled).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tickr_kinds_declares_a_receiver_and_lists_it() {
    let tickr = TestApp::start().await;
    let receiver = Receiver::start().await;
    let declaration = receiver.kind(json!({"secret": SECRET, "lease_ms": 5_000}), json!({})).to_string();
    std::fs::write(tickr.dir.path().join("resize.json"), declaration).unwrap();
    let run = async |args: &[&str]| {
        let mut kinds = command(&program(), tickr.dir.path(), &[&["kinds"], args].concat());
        let output = kinds.env("TICKR_URL", tickr.url("")).output().await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let (code, out, err) = run(&["declare", "resize", "@resize.json"]).await;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let place = receiver.addr.to_string();
    assert!(out.contains(&format!("push to {place}")) && !out.contains(&SECRET["whsec_".len()..]), "{out}");
    let (_, out, _) = run(&["show", "resize"]).await;
    let shown: Value = serde_json::from_str(&out).unwrap();
    let push = json!({"url": format!("http://{place}/jobs"), "has_secret": true, "answer_ms": 30_000, "lease_ms": 5_000,
               "follow_ups": []});
    assert_eq!(shown["run"], json!({"push": push}), "{out}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_follow_the_answer_of_a_receiver_if_its_declaration_names_their_kinds() {
    const FOLLOWED: &str = "SELECT COUNT(*) FROM jobs WHERE kind = 'noop'";
    let tickr = TestApp::start().await;
    let receiver = Receiver::start().await;
    let wrong = tickr.put("/v1/kinds/resize", receiver.kind(json!({"follow_ups": ["No"]}), json!({}))).await;
    assert_eq!((wrong.status, wrong.pointers()), (422, vec!["/run/push/follow_ups/0"]), "{:#}", wrong.body);
    tickr.declare(&receiver.kind(json!({"follow_ups": ["noop"]}), json!({}))).await;
    let shown = tickr.get("/v1/kinds/resize").await.body;
    assert_eq!(shown["run"]["push"]["follow_ups"], json!(["noop"]), "{shown:#}");
    let with = |jobs: Value| json!({"verdict": "succeeded", "result": {"rows": 7}, "follow_ups": jobs});
    receiver.plan([
        verdict(&with(json!([{"kind": "noop"}, {"kind": "email"}]))),
        verdict(&with(json!([{"kind": "noop"}, {"kind": "noop", "delay_ms": 3_600_000}]))),
    ]);
    let id = tickr.resize().await;
    let done = tickr.until(id, State::Completed).await;
    assert_eq!(tickr.verdicts(id).await, ["failed", "succeeded"]);
    assert!(done["attempts"][0]["error"].as_str().unwrap().contains("follow_ups"), "{done:#}");
    assert_eq!((&done["result"], tickr.count(FOLLOWED).await), (&json!({"rows": 7}), 2));

    // The receiver holds this one. Once there are API keys, its token is no right to enqueue anything else.
    let id = tickr.resize().await;
    receiver.call().await;
    receiver.call().await;
    let token = receiver.call().await.token();
    tickr.until_held_by_receiver(id).await;
    let root = tickr.put("/v1/api-keys/root", json!({"scope": "admin"})).await;
    let admin = root.body["token"].as_str().unwrap();
    let both = with(json!([{"kind": "noop"}, {"kind": "email"}]));
    let refused = tickr.finish_pushed(&token, both.clone()).await;
    assert_eq!((refused.status, refused.code(), refused.pointers()), (403, "forbidden", vec!["/follow_ups"]));
    // An API key is asked only for the kinds that the declaration does not name.
    let other = tickr.request(Method::PUT, "/v1/api-keys/other").bearer_auth(admin);
    let other = answer(other.json(&json!({"scope": "enqueue", "kinds": ["http"]}))).await;
    let right = format!("Bearer {}", other.body["token"].as_str().unwrap());
    let refused = tickr.request(Method::POST, &format!("/v1/attempts/{token}/finish")).json(&both);
    let refused = answer(refused.header("tickr-enqueue-authorization", right)).await;
    assert_eq!((refused.status, refused.pointers()), (403, vec!["/follow_ups/1/kind"]), "{:#}", refused.body);
    assert_eq!(tickr.count(FOLLOWED).await, 2);
    for _ in 0..2 {
        let finished = tickr.finish_pushed(&token, with(json!([{"kind": "noop"}]))).await;
        assert_eq!((finished.status, &finished.body["state"]), (200, &json!("completed")), "{:#}", finished.body);
    }
    assert_eq!(tickr.count(FOLLOWED).await, 3);
    tickr.stop().await;
}
