//! Deploys: runners are stopped and replaced under load, and a client that retries on another runner does not notice.
//! No request breaks after it was sent, no job runs twice, and no attempt is used up.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tickr::config::Config;
use tickr::handlers::Registry;
use tickr::job::JobId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::support::{Runner, TestApp, eventually, http, lasting_addr};

/// Outcome of a request.
#[derive(Debug)]
enum Ended {
    Answered(u16, Value),
    /// No process accepted the connection. The request was never sent and may go to another runner.
    Refused,
}

/// A client that is as simple as `curl`: one request at a time, on a connection that it keeps as long as the server
/// does.
struct Client {
    addr: SocketAddr,
    kept: Option<TcpStream>,
}

impl Client {
    fn new(addr: SocketAddr) -> Self {
        Self { addr, kept: None }
    }

    /// Send a request. Panic if the connection breaks after the request was sent, because then its outcome is unknown.
    async fn request(&mut self, method: &str, path: &str, body: &Value) -> Ended {
        self.request_once(method, path, None, body).await
    }

    /// Send a request with an idempotency key.
    async fn request_once(&mut self, method: &str, path: &str, key: Option<&str>, body: &Value) -> Ended {
        // A connection that the server has closed is useless, and every HTTP client checks for that before it sends.
        let kept = self.kept.take().filter(
            |stream| matches!(stream.try_read(&mut [0; 1]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock),
        );
        let mut stream = match kept {
            Some(stream) => stream,
            None => match tokio::time::timeout(Duration::from_millis(400), TcpStream::connect(self.addr)).await {
                Ok(Ok(stream)) => stream,
                _ => return Ended::Refused,
            },
        };
        let body = body.to_string();
        let key = key.map(|key| format!("idempotency-key: {key}\r\n")).unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n{key}content-length: {}\r\n\r\n{body}",
            self.addr,
            body.len()
        );
        stream.write_all(request.as_bytes()).await.expect("a connection that was taken takes the request");
        let mut answer = Vec::new();
        loop {
            match tokio::time::timeout(Duration::from_secs(20), stream.read_buf(&mut answer)).await {
                Ok(Ok(count)) if count > 0 => {}
                broken => panic!("{method} {path} was sent: {broken:?} {:?}", String::from_utf8_lossy(&answer)),
            }
            let text = String::from_utf8_lossy(&answer).to_lowercase();
            let Some((head, rest)) = text.split_once("\r\n\r\n") else { continue };
            let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let length: usize = header("content-length:").unwrap().parse().unwrap();
            if rest.len() >= length {
                if header("connection:") != Some("close") {
                    self.kept = Some(stream);
                }
                let status = head.split(' ').nth(1).unwrap().parse().unwrap();
                return Ended::Answered(status, serde_json::from_str(rest).unwrap_or_default());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_connection_that_came_in_before_the_door_closed_is_answered() {
    let tickr = TestApp::start().await;
    let (mut answered, mut refused) = (0, 0);
    for _ in 0..3 {
        let other = tickr.another_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
        let addr = other.addr();
        let guests = (0..8).map(|guest| {
            tokio::spawn(async move {
                let mut served = 0;
                loop {
                    // Some clients make one request per connection, and some keep it.
                    let mut client = Client::new(addr);
                    for _ in 0..if guest < 5 { 1 } else { 20 } {
                        match client.request("GET", "/livez", &json!({})).await {
                            Ended::Answered(200, _) => served += 1,
                            Ended::Refused => return served,
                            other @ Ended::Answered(..) => panic!("{other:?}"),
                        }
                    }
                }
            })
        });
        let guests: Vec<_> = guests.collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        other.stop(CancellationToken::new()).await;
        for guest in guests {
            answered += guest.await.unwrap();
            refused += 1;
        }
    }
    println!("{answered} requests answered, {refused} connections refused by the closed listener");
    assert!(answered > 200, "{answered}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_runner_goes_on_for_its_notice_and_asks_its_clients_to_leave() {
    let tickr = TestApp::start().await;
    let noticed = |config: &mut Config| {
        (config.shutdown_notice, config.queues) = (Duration::from_secs(600), vec!["elsewhere".into()]);
    };
    let other = tickr.another_with(noticed, Registry::new()).await;
    let (addr, hurry) = (other.addr(), CancellationToken::new());
    let mut client = Client::new(addr);
    let job = json!({"kind": "noop"});
    assert!(matches!(client.request("GET", "/readyz", &json!({})).await, Ended::Answered(200, _)));
    assert!(client.kept.is_some());
    let stopping = tokio::spawn(other.stop(hurry.clone()));
    eventually("readiness is red", async || {
        let mut client = Client::new(addr);
        match client.request("GET", "/readyz", &json!({})).await {
            Ended::Answered(503, said) if said["status"] == "stopping" => Some(()),
            _ => None,
        }
    })
    .await;
    // First on the old connection, which closes then, and after that on a new one.
    for _ in 0..2 {
        assert!(matches!(client.request("POST", "/v1/jobs", &job).await, Ended::Answered(201, _)));
        assert!(client.kept.is_none());
    }
    assert!(!stopping.is_finished());
    hurry.cancel();
    stopping.await.unwrap();
    assert!(matches!(client.request("POST", "/v1/jobs", &job).await, Ended::Refused));
    tickr.until_idle().await;
    tickr.assert_each_ran_once(2).await;
    tickr.stop().await;
}

fn start(tickr: &TestApp, port: u16) -> Runner {
    let addr = format!("127.0.0.1:{port}");
    let env = [
        ("TICKR_HTTP_ADDR", addr.as_str()),
        ("TICKR_WORKERS", "16"),
        ("TICKR_LEASE", "30s"),
        // Shorter than the longest job, so that some jobs are given back.
        ("TICKR_SHUTDOWN_GRACE", "1s"),
    ];
    Runner::start(tickr, &env)
}

async fn until_ready(port: u16) {
    let client = http();
    eventually("the runner is ready", || {
        let request = client.get(format!("http://127.0.0.1:{port}/readyz"));
        async move { request.send().await.ok().filter(|answer| answer.status() == 200).map(drop) }
    })
    .await;
}

/// Enqueue fifty jobs per second, one by one, through any runner that accepts them. Return the jobs, and the number of
/// times that another runner had to be tried.
async fn enqueue(ports: [u16; 3], first: usize, over: CancellationToken) -> (Vec<JobId>, usize) {
    let (mut at, mut accepted, mut elsewhere) = (first, Vec::new(), 0);
    let mut client = Client::new(SocketAddr::from(([127, 0, 0, 1], ports[at % 3])));
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    while !over.is_cancelled() {
        pace.tick().await;
        let job = json!({"kind": "noop", "delay_ms": rand::random_range(0..50)});
        // Every second request has an idempotency key, which stays the same on every runner.
        let key = (accepted.len() % 2 == 0).then(|| JobId::new().to_string());
        loop {
            match client.request_once("POST", "/v1/jobs", key.as_deref(), &job).await {
                Ended::Answered(201, job) => {
                    accepted.push(job["id"].as_str().unwrap().parse().unwrap());
                    break;
                }
                Ended::Refused => {
                    elsewhere += 1;
                    at += 1;
                    client = Client::new(SocketAddr::from(([127, 0, 0, 1], ports[at % 3])));
                }
                other @ Ended::Answered(..) => panic!("{other:?}"),
            }
        }
        // Open a new connection now and then, as a load balancer does.
        if accepted.len() % 25 == 0 {
            at += 1;
            client = Client::new(SocketAddr::from(([127, 0, 0, 1], ports[at % 3])));
        }
    }
    (accepted, elsewhere)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_under_load_refuses_nobody_runs_nothing_twice_and_burns_no_attempt() {
    let bystander = |config: &mut Config| config.queues = vec!["elsewhere".into()];
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let ports = [0; 3].map(|_| lasting_addr().port());
    let mut runners = ports.map(|port| start(&tickr, port));
    for port in ports {
        until_ready(port).await;
    }
    let over = CancellationToken::new();
    let began = Instant::now();
    let enqueuers: Vec<_> = (0..10).map(|lane| tokio::spawn(enqueue(ports, lane, over.clone()))).collect();
    let mut long = Vec::new();
    for (runner, port) in runners.iter_mut().zip(ports) {
        let young = format!(
            "SELECT COUNT(*) FROM owed o JOIN runners r ON r.id = o.runner WHERE r.pid = {} AND o.kind = 'sleep' \
             AND o.state = 'executing' AND o.started_at > UTC_TIMESTAMP(6) - INTERVAL 2 SECOND",
            runner.pid()
        );
        // Until this runner has one of these jobs, too. They run for longer than the grace period.
        let young = &*young.leak();
        while tickr.count(young).await == 0 {
            long.extend(tickr.enqueue_many((0..12).map(|_| json!({"kind": "sleep", "payload": {"ms": 4_000}}))).await);
            tickr.until_count("SELECT COUNT(*) FROM owed WHERE kind = 'sleep' AND state <> 'executing'", 0).await;
        }
        runner.signal("TERM");
        assert_eq!(runner.exit_code().await, Some(0), "{}", runner.log());
        *runner = start(&tickr, port);
        until_ready(port).await;
    }
    over.cancel();
    let (mut accepted, mut elsewhere) = (Vec::new(), 0);
    for enqueuer in enqueuers {
        let (jobs, times) = enqueuer.await.unwrap();
        accepted.extend(jobs);
        elsewhere += times;
    }
    let rate = accepted.len() as f64 / began.elapsed().as_secs_f64();
    tickr.until_idle().await;
    let given_back = tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'interrupted'").await;
    println!(
        "{} jobs at {rate:.0}/s over three restarts in {:?}; {elsewhere} refused and taken elsewhere, {given_back} given back",
        accepted.len(),
        began.elapsed()
    );
    // Every answer belongs to one job, and every job to one answer.
    let jobs = (accepted.len() + long.len()) as i64;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, jobs);
    assert_eq!(tickr.count("SELECT COUNT(DISTINCT job_id) FROM attempts WHERE end_state = 'completed'").await, jobs);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts").await, jobs + given_back);
    assert_eq!(
        tickr.count("SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.kind = 'noop'").await,
        accepted.len() as i64
    );
    // Only the attempt that succeeded counts as used.
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE burned <> IF(verdict = 'interrupted', 0, 1)").await, 0);
    assert!(given_back > 0 && elsewhere > 0, "{given_back} given back, {elsewhere} refused");
    // Ten enqueuers ask for two hundred. If enqueues waited for restarts, there would be ten.
    assert!(rate > 30.0, "{rate}");
    tickr.assert_sound().await;
    for runner in &mut runners {
        runner.signal("TERM");
    }
    for runner in &mut runners {
        assert_eq!(runner.exit_code().await, Some(0), "{}", runner.log());
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binary_starts_on_the_tables_of_a_newer_one_so_that_a_deploy_may_be_taken_back() {
    let tickr = TestApp::start().await;
    tickr
        .sql("INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (999999, 'newer', TRUE, 'x', 0)")
        .await;
    let older = tickr.another().await;
    // The older binary also starts while one of its own migrations is missing, which it then applies.
    older.stop(CancellationToken::new()).await;
    tickr.sql("DROP TABLE queue_permits").await;
    tickr.sql("DELETE FROM _sqlx_migrations WHERE version = 12").await;
    let older = tickr.another().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM queue_permits").await, 0);
    older.stop(CancellationToken::new()).await;
    tickr.stop().await;
}
