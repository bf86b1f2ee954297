//! Callbacks as operators and receivers see them: connections, allowed targets, signatures, errors.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use axum::serve::Listener;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use sha2::Sha256;
use tickr::app::App;
use tickr::config::{Alerts, CallbackSecret, Config, Flags, Threshold};
use tickr::handlers::Registry;
use tickr::job::State;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::Barrier;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::support::documents::document;
use crate::support::off_machine::call_to_another_machine;
use crate::support::program::{Program, command, outcome, tickr as binary};
use crate::support::{Runner, TestApp, answer, eventually, http};

/// A receiver that counts the connections it accepts. The first part of the path is the status of its answer.
struct Counting {
    addr: SocketAddr,
    accepted: Arc<AtomicUsize>,
    called: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

struct Door(TcpListener, Arc<AtomicUsize>);

impl Listener for Door {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        let (stream, addr) = self.0.accept().await.unwrap();
        self.1.fetch_add(1, Ordering::SeqCst);
        (stream, addr)
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

impl Counting {
    async fn start() -> Self {
        Self::start_with(|| std::future::ready(())).await
    }

    /// Do the same as [`start`](Self::start). Each answer waits for `before`.
    async fn start_with<F>(before: impl Fn() -> F + Clone + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (accepted, called) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let calls = Arc::clone(&called);
        let answer = move |uri: axum::http::Uri| {
            calls.fetch_add(1, Ordering::SeqCst);
            let status = uri.path().split('/').nth(1).and_then(|word| word.parse().ok()).unwrap_or(200);
            let before = before();
            async move {
                before.await;
                (StatusCode::from_u16(status).unwrap(), "so it is")
            }
        };
        let app = axum::Router::new().fallback(answer);
        let door = Door(listener, Arc::clone(&accepted));
        let serving = tokio::spawn(async move { axum::serve(door, app).await.unwrap() });
        Self { addr, accepted, called, serving }
    }

    fn callback(&self, path: &str) -> Value {
        json!({"kind": "http", "payload": {"url": format!("http://{}{path}", self.addr), "body": {"n": 1}}})
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Make this many callbacks to one receiver. Connections must be used again: there may be one per worker, plus a few
/// that were opened while another was about to be free.
async fn one_receiver(jobs: usize) {
    const WORKERS: usize = 32;
    let tickr = TestApp::start_with(|config| config.workers = WORKERS, Registry::new()).await;
    let receiver = Counting::start().await;
    tickr.enqueue_many((0..jobs).map(|_| receiver.callback("/in"))).await;
    eventually("all are done", || async { (tickr.count("SELECT COUNT(*) FROM owed").await == 0).then_some(()) }).await;
    let accepted = receiver.accepted.load(Ordering::SeqCst);
    println!("{jobs} callbacks, {accepted} connections");
    assert_eq!(receiver.called.load(Ordering::SeqCst), jobs);
    assert!(accepted <= 2 * WORKERS, "{accepted} connections for {jobs} callbacks");
    tickr.assert_each_ran_once(i64::try_from(jobs).unwrap()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callbacks_to_one_receiver_use_its_connections_again() {
    one_receiver(1_000).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute in a debug build; the same as above, ten times as long"]
async fn twenty_thousand_callbacks_to_one_receiver_use_its_connections_again() {
    one_receiver(20_000).await;
}

/// Each wave of calls has one for each worker, and none is answered before all have arrived. So a wave opens as many
/// connections as there are fewer idle ones than workers. In one of the first waves that is none: a call that comes
/// before the connection of the last wave is given back may open one more.
#[tokio::test(flavor = "multi_thread")]
async fn six_hundred_workers_use_their_connections_to_one_receiver_again() {
    const WORKERS: usize = 600;
    // A shell gives a program 1,024 open files. Both ends of the connections are in this process.
    let limits = getrlimit(Resource::Nofile);
    let enough = limits.maximum.map_or(8_192, |maximum| maximum.min(8_192));
    assert!(enough >= 4_096, "the hard limit of open files is {enough}, too few for this test");
    setrlimit(Resource::Nofile, Rlimit { current: limits.current.map(|now| now.max(enough)), ..limits }).unwrap();
    let tickr = TestApp::start_with(|config| config.workers = WORKERS, Registry::new()).await;
    let all_are_here = Arc::new(Barrier::new(WORKERS));
    let receiver = Counting::start_with(move || {
        let all_are_here = Arc::clone(&all_are_here);
        async move {
            all_are_here.wait().await;
        }
    })
    .await;
    let (mut jobs, mut opened) = (0, Vec::new());
    while opened.last() != Some(&0) {
        assert!(opened.len() < 10, "connections that each wave opened: {opened:?}");
        let before = receiver.accepted.load(Ordering::SeqCst);
        tickr.enqueue_many((0..WORKERS).map(|_| receiver.callback("/in"))).await;
        tickr.until_count("SELECT COUNT(*) FROM owed", 0).await;
        opened.push(receiver.accepted.load(Ordering::SeqCst) - before);
        jobs += WORKERS;
    }
    println!("connections that each wave opened: {opened:?}");
    tickr.assert_each_ran_once(i64::try_from(jobs).unwrap()).await;
    tickr.stop().await;
}

/// Start a receiver behind TLS that speaks HTTP/2 alone. Return its port, its certificate, and the numbers of accepted
/// connections and of calls.
async fn http_2_receiver() -> (u16, String, [Arc<AtomicUsize>; 2]) {
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![key.cert.der().clone()], key.signing_key.into())
        .unwrap();
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let counts = [Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default()];
    let [accepted, called] = counts.clone();
    tokio::spawn(async move {
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        while let Ok((socket, _)) = listener.accept().await {
            accepted.fetch_add(1, Ordering::SeqCst);
            let (acceptor, called) = (acceptor.clone(), Arc::clone(&called));
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(socket).await else { return };
                let answer = hyper::service::service_fn(move |_: hyper::Request<hyper::body::Incoming>| {
                    called.fetch_add(1, Ordering::SeqCst);
                    std::future::ready(Ok::<_, std::convert::Infallible>(hyper::Response::new("thanks".to_owned())))
                });
                let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = http.serve_connection(TokioIo::new(stream), answer).await;
            });
        }
    });
    (port, key.cert.pem(), counts)
}

#[tokio::test(flavor = "multi_thread")]
async fn callbacks_share_one_connection_to_a_receiver_that_speaks_http_2() {
    let (port, certificate, [accepted, called]) = http_2_receiver().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, certificate).unwrap();
    let change = |config: &mut Config| (config.workers, config.callback_ca_file) = (16, Some(file.clone()));
    let tickr = TestApp::start_with(change, Registry::new()).await;
    let job = || {
        let payload = json!({"url": format!("https://localhost:{port}/in"), "body": {"n": 1}});
        json!({"kind": "http", "payload": payload, "max_attempts": 1})
    };
    // The client knows that the receiver speaks HTTP/2 only after the first call.
    let first = tickr.enqueue(job()).await;
    tickr.until(first, State::Completed).await;
    tickr.enqueue_many((0..100).map(|_| job())).await;
    eventually("all are done", || async { (tickr.count("SELECT COUNT(*) FROM owed").await == 0).then_some(()) }).await;
    assert_eq!((called.load(Ordering::SeqCst), accepted.load(Ordering::SeqCst)), (101, 1), "calls and connections");
    tickr.stop().await;
}

fn configured(name: &'static str, value: &str) -> Config {
    Config::load(&Flags::default().with(name, value), std::iter::empty(), None).unwrap().config
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_target_names_the_setting_and_what_the_setting_names_is_reached() {
    let receiver = Counting::start().await;
    let closed = |config: &mut Config| config.callback_allow_private = false;
    let tickr = TestApp::start_with(closed, Registry::new()).await;
    let refused = tickr.post("/v1/jobs", receiver.callback("/in")).await;
    assert_eq!((refused.status, refused.pointers()), (422, vec!["/payload/url"]), "{:#}", refused.body);
    let detail = refused.body["errors"][0]["detail"].as_str().unwrap().to_owned();
    let (_, entry) = detail.split_once("callback_allow = [\"").unwrap();
    let (entry, _) = entry.split_once('"').unwrap();
    tickr.stop().await;

    // The entry that the refusal names is enough, and it allows nothing else.
    let allow = configured("callback_allow", entry).callback_allow;
    let open = move |config: &mut Config| {
        config.callback_allow_private = false;
        config.callback_allow = allow;
    };
    let tickr = TestApp::start_with(open, Registry::new()).await;
    let id = tickr.enqueue(receiver.callback("/in")).await;
    tickr.until(id, State::Completed).await;
    // These jobs are not due during the test either, so a guard that lets them through sends nothing off the machine.
    for url in ["http://127.0.0.2/", "http://10.0.0.7/", "http://[::1]/"] {
        let job = json!({"kind": "http", "payload": {"url": url}, "delay_ms": 3_600_000});
        let answer = tickr.post("/v1/jobs", job).await;
        assert_eq!(answer.status, 422, "{url}: {:#}", answer.body);
    }
    tickr.stop().await;

    // `callback_allow_private` leaves cloud metadata out. The jobs are not due during the test, even if they are
    // accepted.
    let tickr = TestApp::start().await;
    for url in [
        "http://169.254.169.254/latest/",
        "http://168.63.129.16/machine/",
        "http://[fd00:ec2::254]/",
        "http://[fd00:c1::a9fe:a9fe]/opc/v2/",
        "http://[fd00:a9fe:a9fe::1]/v1/token",
        // 169.254.169.254 behind prefixes of NAT64 of 48, 56, 64 and 96 bits.
        "http://[64:ff9b:1:a9fe:a9:fe00::]/latest/",
        "http://[64:ff9b:1:a9:fe:a9fe::]/latest/",
        "http://[64:ff9b:1::a9:fea9:fe00:0]/latest/",
        "http://[64:ff9b:1::a9fe:a9fe]/latest/",
    ] {
        let job = json!({"kind": "http", "payload": {"url": url}, "delay_ms": 3_600_000});
        let answer = tickr.post("/v1/jobs", job).await;
        assert_eq!(answer.status, 422, "{url}: {:#}", answer.body);
        assert!(answer.body.to_string().contains("adding exactly that address to callback_allow"), "{:#}", answer.body);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_that_was_accepted_with_a_longer_time_limit_is_made_within_that_of_its_runner() {
    let tickr = TestApp::start().await;
    let receiver = Counting::start().await;
    let mut job = receiver.callback("/in");
    (job["payload"]["timeout_ms"], job["delay_ms"]) = (json!(29_999), json!(3_600_000));
    let id = tickr.enqueue(job).await;
    // As if another runner had accepted it, or operators had lowered callback_timeout since then.
    let hex = id.to_string().replace('-', "");
    let sql = format!("UPDATE jobs SET payload = REPLACE(payload, '29999', '90000') WHERE id = UNHEX('{hex}')");
    tickr.sql(sql).await;
    assert_eq!(tickr.job(id).await["payload"]["timeout_ms"], 90_000);
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await.status, 200);
    tickr.until(id, State::Completed).await;
    assert_eq!(receiver.called.load(Ordering::SeqCst), 1);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_to_hundreds_of_secret_words_is_hidden_and_a_repeated_word_counts_once() {
    let tickr = TestApp::start().await;
    let receiver = Counting::start().await;
    let repeated: Vec<String> = vec!["aaaaaaaa ".repeat(400); 30];
    let distinct = vec![(0..300).map(|n| format!("word{n:05} ")).collect::<String>()];
    for (values, shown) in [(repeated, "so it is"), (distinct, "***")] {
        let mut job = receiver.callback("/in");
        for (n, value) in values.iter().enumerate() {
            job["payload"]["headers"][format!("x-{n}")] = json!(value.trim_end());
        }
        let id = tickr.enqueue(job).await;
        let job = tickr.until(id, State::Completed).await;
        assert_eq!(job["result"]["body_snippet"], shown, "{:#}", job["result"]);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_that_would_call_another_machine_is_stopped_before_it_sends() {
    let job = |url: &str| json!({"kind": "http", "payload": {"url": url}});
    let others = ["http://10.0.0.7/", "http://169.254.169.254/x", "https://Example.COM:8443/", "http://[fd00:ec2::1]/"];
    for url in others {
        let mut later = job(url);
        let elsewhere = call_to_another_machine(&later);
        assert_eq!(elsewhere.as_deref(), Some(url));
        for body in [json!({"jobs": [{"kind": "noop"}, later]}), json!({"on_success": later})] {
            assert_eq!(call_to_another_machine(&body).as_deref(), Some(url), "{body:#}");
        }
        later["delay_ms"] = json!(3_600_000);
        assert_eq!(call_to_another_machine(&later), None, "{url} is not called during the test");
    }
    for url in ["http://127.0.0.1:1/", "http://[::ffff:127.0.0.1]/", "http://0.0.0.0/", "http://a.example/", "data:x"] {
        assert_eq!(call_to_another_machine(&job(url)), None, "{url}");
    }
    let tickr = TestApp::start().await;
    let request = tickr.request(reqwest::Method::POST, "/v1/jobs").json(&job("http://10.0.0.7/"));
    assert!(tokio::spawn(answer(request)).await.unwrap_err().is_panic());
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_may_wait_as_long_as_the_setting_says_and_no_longer() {
    let receiver = Counting::start().await;
    // Without the setting the limit is 30 s.
    for (setting, most) in [(None, 30_000), (Some("90s"), 90_000)] {
        let change = |config: &mut Config| {
            if let Some(setting) = setting {
                config.callback_timeout = configured("callback_timeout", setting).callback_timeout;
            }
        };
        let tickr = TestApp::start_with(change, Registry::new()).await;
        let job = |timeout_ms: u64| {
            let mut job = receiver.callback("/in");
            job["payload"]["timeout_ms"] = json!(timeout_ms);
            job
        };
        let refused = tickr.post("/v1/jobs", job(most + 1)).await;
        assert_eq!((refused.status, refused.pointers()), (422, vec!["/payload/timeout_ms"]), "{:#}", refused.body);
        let detail = refused.body["errors"][0]["detail"].as_str().unwrap();
        assert!(detail.contains(&format!("at most {most}:")) && detail.contains("callback_timeout"), "{detail}");
        let id = tickr.enqueue(job(most)).await;
        tickr.until(id, State::Completed).await;
        tickr.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_useless_url_of_alerts_is_refused_at_the_start_with_the_reason() {
    let tickr = TestApp::start().await;
    let start = async |url: &str, change: &dyn Fn(&mut Config)| {
        let mut config = tickr.config.clone();
        config.callback_allow_private = false;
        config.alerts = Some(Alerts {
            url: url.to_owned(),
            queue: "default".into(),
            cooldown: Duration::from_secs(60),
            all: Threshold { dead_letters: Some(1), dead_letter_age: None },
            kinds: std::collections::BTreeMap::new(),
        });
        change(&mut config);
        App::start(&config, Registry::new()).await
    };
    for url in ["http://127.0.0.1:9/alerts", "http://localhost:9/alerts", "https://10.0.0.7/"] {
        let refused = start(url, &|_| {}).await.unwrap_err().to_string();
        assert!(refused.contains("[alerts]") && refused.contains("callback_allow = [\""), "{url}: {refused}");
    }
    let allow = configured("callback_allow", "127.0.0.0/8").callback_allow;
    let app = start("http://127.0.0.1:9/alerts", &|config| config.callback_allow = allow.clone()).await.unwrap();
    app.stop(tokio_util::sync::CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_tell_the_endpoints_of_a_receiver_apart_and_say_nothing_of_a_query() {
    let receiver = Counting::start().await;
    let tickr = TestApp::start().await;
    for (path, times) in [("/404/orders/in", 2), ("/404/users/in", 1)] {
        for n in 0..times {
            let url = format!("{path}/{n}?token=canary{n}#part");
            let id = tickr.enqueue(receiver.callback(&url)).await;
            let error = tickr.until(id, State::Failed).await["last_error"].as_str().unwrap().to_owned();
            let said = format!("POST http://{}{path}/{n} answered 404 Not Found", receiver.addr);
            assert!(error.starts_with(&said) && !error.contains("canary"), "{error}");
        }
    }
    let groups = tickr.get("/v1/dead-letters/groups").await.body;
    let counts: BTreeSet<u64> =
        groups["data"].as_array().unwrap().iter().map(|group| group["open"].as_u64().unwrap()).collect();
    assert_eq!(counts, BTreeSet::from([1, 2]), "{groups:#}");

    // Output into a pipe has the whole error.
    let long = format!("/404/{}/end", "long/".repeat(20));
    let id = tickr.enqueue(receiver.callback(&long)).await;
    tickr.until(id, State::Failed).await;
    for args in [&["dead-letters", "groups"][..], &["dead-letters", "list"], &["jobs", "list"]] {
        let mut listing = command(&binary(), tickr.dir.path(), args);
        listing.env("TICKR_URL", tickr.url(""));
        let (code, out, err) = outcome(listing).await;
        assert!(
            code == 0 && out.to_lowercase().contains("/end answered 404 not found: so it is"),
            "{args:?}: {out}{err}"
        );
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_as_old_as_its_first_failure_though_its_jobs_are_retried_in_vain() {
    let receiver = Counting::start().await;
    let tickr = TestApp::start().await;
    let id = tickr.enqueue(receiver.callback("/404/in")).await;
    tickr.until(id, State::Failed).await;
    let seen = async || {
        let groups = tickr.get("/v1/dead-letters/groups").await.body["data"].as_array().unwrap().clone();
        assert_eq!(groups.len(), 1, "{groups:#?}");
        let path = format!("/v1/dead-letters/groups/{}", groups[0]["fingerprint"].as_str().unwrap());
        let whole = tickr.get(&path).await.body;
        assert_eq!((&whole["first_seen"], &whole["last_seen"]), (&groups[0]["first_seen"], &groups[0]["last_seen"]));
        (groups[0]["first_seen"].as_str().unwrap().to_owned(), groups[0]["last_seen"].as_str().unwrap().to_owned())
    };
    let (first, mut last) = seen().await;
    for times in 2..4 {
        assert_eq!(tickr.post(&format!("/v1/jobs/{id}/retry"), json!({})).await.status, 200);
        tickr.until_attempts(id, times).await;
        tickr.until(id, State::Failed).await;
        let (still, later) = seen().await;
        assert_eq!(still, first);
        assert!(later > last, "{later} after {last}");
        last = later;
    }
    // Another cause is another group, whose first failure is later.
    tickr.sql(format!("UPDATE jobs SET payload = '{{\"url\":\"http://{}/410/in\"}}'", receiver.addr)).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/retry"), json!({})).await.status, 200);
    tickr.until_attempts(id, 4).await;
    tickr.until(id, State::Failed).await;
    assert!(seen().await.0 > last);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_a_callback_secret_says_so_once() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
    let words = "callbacks are not signed";
    let mut runner = Runner::start(&tickr, &[]);
    runner.base().await;
    let receiver = Counting::start().await;
    let id = tickr.enqueue(receiver.callback("/in")).await;
    tickr.until(id, State::Failed).await;
    assert_eq!(runner.log().matches(words).count(), 1, "{}", runner.log());
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0));
    let secret = CallbackSecret::generate();
    let signing = Runner::start(&tickr, &[("TICKR_CALLBACK_SECRET", secret.as_str())]);
    signing.base().await;
    assert!(!signing.log().contains(words) && !signing.log().contains(&secret), "{}", signing.log());
    // If every secret belongs to one host, the missing general secret is on purpose, and an info line is enough.
    let hosts = format!("shop.example={secret},*.partner.example={secret}");
    let signing = Runner::start(&tickr, &[("TICKR_CALLBACK_HOST_SECRETS", hosts.as_str())]);
    signing.base().await;
    signing.until_log("callbacks to these hosts are signed, and no others").await;
    let log = signing.log();
    assert!(!log.contains(words) && !log.contains(&secret[6..]), "{log}");
    assert!(log.contains("shop.example,*.partner.example"), "{log}");
    tickr.stop().await;
}

/// Return the command that starts a receiver of the document, and what it prints before its port. `None` if its
/// language is not on this machine.
fn receiver_in(language: &str, dir: &Path) -> Option<(Command, &'static str)> {
    let block = document("docs/HANDLERS.md").block(language);
    let (program, file, text, args, mark) = match language {
        "python" => ("python3", "receiver.py", block, vec!["-u", "receiver.py"], "listening on "),
        // A part of a page. The web server of PHP runs it for every request.
        _ => (
            "php",
            "receiver.php",
            format!("<?php\n{block}"),
            vec!["-S", "127.0.0.1:0", "receiver.php"],
            "Development Server (http://127.0.0.1:",
        ),
    };
    if std::process::Command::new(program).arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: there is no {program}");
        return None;
    }
    std::fs::write(dir.join(file), text).unwrap();
    Some((command(Path::new(program), dir, &args), mark))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_receivers_of_the_readme_take_what_is_signed_and_nothing_else() {
    let secret = CallbackSecret::generate();
    let config = configured("callback_secret", &secret);
    let tickr = TestApp::start_with(|to| to.callback_secret = config.callback_secret, Registry::new()).await;
    for language in ["python", "php"] {
        let Some((mut start, mark)) = receiver_in(language, tickr.dir.path()) else { continue };
        // An empty part is no secret. Every client could sign with it.
        start.env("CALLBACK_SECRET", format!("{secret},")).env("PORT", "0");
        let mut receiver = Program::spawn(start);
        let port: String = receiver.says(mark).await.chars().take_while(char::is_ascii_digit).collect();
        takes_what_is_signed(&tickr, &format!("http://127.0.0.1:{port}/hooks"), &secret).await;
        receiver.signal("TERM").await;
        receiver.ends().await;
    }
    tickr.stop().await;
}

/// Check that a receiver takes a callback and refuses what is not signed as one.
async fn takes_what_is_signed(tickr: &TestApp, url: &str, secret: &str) {
    let job = json!({"kind": "http", "payload": {"url": url, "body": {"n": 12, "s": "ü"}}, "max_attempts": 1});
    let id = tickr.enqueue(job).await;
    let job = tickr.until(id, State::Completed).await;
    assert_eq!(job["result"]["status"], 204, "{job:#}");
    // The receiver refuses the rest: no signature, a wrong one, another body, another time, and a time that is too old.
    let client = http();
    let (now, key) = (chrono::Utc::now().timestamp(), CallbackSecret::parse(secret).unwrap());
    let sign_with = |key: &[u8], at: i64, body: &str| {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        mac.update(format!("x.{at}.{body}").as_bytes());
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    };
    let sign = |at: i64, body: &str| sign_with(key.expose(), at, body);
    let late = now - 3_600;
    for (at, signature, status) in [
        (now, sign(now, "{}"), 204),
        (now, format!("v1,AAAA {}", sign(now, "{}")), 204),
        (now, String::new(), 401),
        (now, "v1,AAAA".to_owned(), 401),
        (now, sign(now, "{} "), 401),
        (now, sign(now - 1, "{}"), 401),
        (now, sign_with(b"", now, "{}"), 401),
        (late, sign(late, "{}"), 401),
    ] {
        let request = client.post(url).header("webhook-id", "x").header("webhook-timestamp", at);
        let answer = request.header("webhook-signature", &signature).body("{}").send().await.unwrap();
        assert_eq!(answer.status(), status, "{url} {at} {signature}");
    }
    assert_eq!(client.post(url).body("{}").send().await.unwrap().status(), 401);
}
