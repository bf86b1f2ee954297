//! What `tickr serve` tells the supervisor that started it, such as systemd with `Type=notify`: that it is ready, that
//! it is alive, and that it stops. The test is the supervisor, with a socket of its own.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use tickr::handlers::Registry;

use crate::support::program::{command, outcome, tickr as program};
use crate::support::{DEADLINE, Runner, TestApp, answer, eventually, eventually_seen, http, while_unavailable};

/// The socket of a supervisor.
struct Ear(UnixDatagram);

impl Ear {
    fn at(file: &Path) -> Self {
        Self::of(UnixDatagram::bind(file).unwrap())
    }

    fn of(socket: UnixDatagram) -> Self {
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        Self(socket)
    }

    /// Return the next message within this time.
    fn hear_within(&self, limit: Duration) -> Option<String> {
        let (deadline, mut buffer) = (Instant::now() + limit, [0; 1_000]);
        loop {
            if let Ok(length) = self.0.recv(&mut buffer) {
                return Some(String::from_utf8(buffer[..length].to_vec()).unwrap());
            }
            if Instant::now() > deadline {
                return None;
            }
        }
    }

    /// Return the next message that is not about the watchdog.
    fn hear(&self) -> String {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let message = self.hear_within(DEADLINE).expect("a message");
            if message != "WATCHDOG=1" {
                return message;
            }
            assert!(Instant::now() < deadline, "nothing but the watchdog");
        }
    }

    fn hear_watchdog(&self) {
        assert_eq!(self.hear_within(Duration::from_secs(20)).as_deref(), Some("WATCHDOG=1"));
    }
}

/// Return a tickr that runs no job of the queue `default`.
async fn bystander() -> TestApp {
    TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_hears_of_the_start_the_readiness_and_the_stop_in_this_order() {
    let tickr = bystander().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("notify");
    let ear = Ear::at(&file);
    // No stall of the machine may end the lease of its job.
    let env = [("NOTIFY_SOCKET", file.to_str().unwrap()), ("TICKR_SHUTDOWN_GRACE", "40s"), ("TICKR_LEASE", "60s")];
    let mut runner = Runner::start(&tickr, &env);
    assert_eq!(ear.hear(), "STATUS=starting\nEXTEND_TIMEOUT_USEC=60000000");
    let ready = ear.hear();
    let (word, addr) = ready.split_once("\nSTATUS=the API listens on ").expect(&ready);
    assert_eq!(word, "READY=1");
    // The runner was ready when it said so.
    let probed = while_unavailable(async || answer(http().get(format!("http://{addr}/readyz"))).await).await;
    assert_eq!((probed.status, &probed.body["takes_jobs"]), (200, &json!(true)), "{:#}", probed.body);

    // A job that runs keeps the process up, so the message about the stop comes before the end. It runs for longer than
    // the machine may stand still.
    let job = tickr.enqueue(json!({"kind": "sleep", "payload": {"ms": 8_000}})).await;
    tickr.until(job, tickr::job::State::Executing).await;
    assert_eq!(ear.hear_within(Duration::from_millis(200)), None, "no message is due");
    runner.signal("TERM");
    let stopping = ear.hear();
    assert!(!runner.has_ended(), "it said so after its end");
    // 40 s for running jobs and 35 s for the rest, so TimeoutStopSec of a unit need not follow the setting.
    assert_eq!(stopping, "STOPPING=1\nSTATUS=stopping, for at most 75 s\nEXTEND_TIMEOUT_USEC=75000000");
    assert_eq!(runner.exit_code().await, Some(0));
    assert_eq!(ear.hear_within(Duration::from_millis(200)), None, "nothing is said after the stop");
    assert_eq!(tickr.verdicts(job).await, ["succeeded"]);
    tickr.stop().await;
}

/// Replace a file at once, as a deploy does. A runner that reads it meanwhile sees the old or the new one.
fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, file).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_follows_the_log_filter_names_what_needs_a_restart_and_refuses_a_wrong_file_whole() {
    let tickr = bystander().await;
    let dir = tempfile::tempdir().unwrap();
    let (socket, file) = (dir.path().join("notify"), dir.path().join("tickr.toml"));
    let ear = Ear::at(&socket);
    let started_with = "shutdown_grace = \"40s\"\napi_tokens = [\"a-token-of-twenty-letters\"]\n";
    replace(&file, started_with);
    let env = [
        ("NOTIFY_SOCKET", socket.to_str().unwrap()),
        ("TICKR_CONFIG", file.to_str().unwrap()),
        // No stall of the machine may end the lease of its job.
        ("TICKR_LEASE", "60s"),
        ("TICKR_LOG_FORMAT", "json"),
    ];
    let mut runner = Runner::start(&tickr, &env);
    while !ear.hear().starts_with("READY=1\n") {}
    let base = runner.base().await;
    let job = tickr.enqueue(json!({"kind": "sleep", "payload": {"ms": 10_000}})).await;
    tickr.until(job, tickr::job::State::Executing).await;
    let reload = || {
        runner.signal("HUP");
        let reloading = ear.hear();
        let rest = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap_or_else(|| panic!("{reloading}"));
        assert!(rest.split_once('\n').unwrap().0.parse::<u64>().unwrap() > 0, "{reloading}");
        let ready = ear.hear();
        assert!(ready.starts_with("READY=1\n"), "{ready}");
    };
    let is_detailed = async |request: &str| {
        let asked = while_unavailable(async || answer(http().get(format!("{base}/livez"))).await).await;
        assert_eq!(asked.status, 200, "{request}");
        runner.log().contains("\"level\":\"DEBUG\"")
    };
    assert!(!is_detailed("before the reload").await);

    // The filter follows, and settings that need a restart are named, a secret among them. No value of one is shown.
    replace(&file, "log = \"debug\"\nshutdown_grace = \"10s\"\napi_tokens = [\"the-other-token-of-letters\"]\n");
    reload();
    runner.until_log("these settings have changed and need a restart").await;
    assert!(runner.log().contains(r#""settings":"api_tokens, shutdown_grace""#), "{}", runner.log());
    assert!(!runner.log().contains("-of-"), "{}", runner.log());
    eventually("debug lines are written", async || is_detailed("after the reload").await.then_some(())).await;

    // A file with two mistakes changes nothing, also not the filter, and both are named.
    replace(&file, "log = \"warn\"\nworkers = \"many\"\nhorizon = \"1 parsec\"\n");
    reload();
    runner.until_log("the configuration stays as it was").await;
    for setting in ["workers", "horizon"] {
        assert!(runner.log().contains(&format!(r#""setting":"{setting}""#)), "{}", runner.log());
    }
    replace(&file, &format!("log = \"debug\"\n{started_with}"));
    reload();
    // An info line: with the filter of the wrong file it would not be written.
    runner.until_log("the configuration was read again\"").await;

    // None of this touched the job, and the stop is that of the first configuration.
    assert!(!runner.has_ended());
    runner.signal("TERM");
    assert!(ear.hear().starts_with("STOPPING=1\nSTATUS=stopping, for at most 75 s\n"));
    assert_eq!(runner.exit_code().await, Some(0));
    assert_eq!(tickr.verdicts(job).await, ["succeeded"]);
    tickr.stop().await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_with_an_abstract_socket_hears_the_same() {
    use std::os::linux::net::SocketAddrExt as _;

    let tickr = bystander().await;
    let name = crate::support::unique_name();
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let ear = Ear::of(UnixDatagram::bind_addr(&address).unwrap());
    let mut runner = Runner::start(&tickr, &[("NOTIFY_SOCKET", &format!("@{name}"))]);
    let words: Vec<String> = (0..2).map(|_| ear.hear().split('=').next().unwrap().to_owned()).collect();
    assert_eq!(words, ["STATUS", "READY"]);
    runner.signal("TERM");
    assert!(ear.hear().starts_with("STOPPING=1\n"));
    assert_eq!(runner.exit_code().await, Some(0));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_watchdog_is_fed_also_while_mysql_hangs_and_not_by_a_frozen_process() {
    let tickr = TestApp::start_alone(|_| {}, |config| config.queues = vec!["elsewhere".into()]).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("notify");
    let ear = Ear::at(&file);
    let env = [("NOTIFY_SOCKET", file.to_str().unwrap()), ("WATCHDOG_USEC", "2000000")];
    let mut runner = Runner::start(&tickr, &env);
    while !ear.hear().starts_with("READY=1\n") {}
    ear.hear_watchdog();
    // An outage of MySQL is no reason to kill a runner: it waits, and goes on.
    tickr.services().mysql().pause().unwrap();
    for _ in 0..12 {
        ear.hear_watchdog();
    }
    tickr.services().mysql().resume().unwrap();
    runner.signal("STOP");
    while ear.hear_within(Duration::from_millis(100)).is_some() {}
    assert_eq!(ear.hear_within(Duration::from_secs(3)), None, "a frozen process fed the watchdog");
    runner.signal("CONT");
    ear.hear_watchdog();
    runner.signal("TERM");
    assert!(ear.hear().starts_with("STOPPING=1\n"));
    assert_eq!(runner.exit_code().await, Some(0));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tickr_health_says_what_the_probes_say_and_ends_with_their_result() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    let health = async |args: &[&str]| {
        let args: Vec<&str> = std::iter::once("health").chain(args.iter().copied()).collect();
        let mut command = command(&program(), tickr.dir.path(), &args);
        command.env("TICKR_URL", tickr.url(""));
        let (code, said, _) = outcome(command).await;
        (code, said)
    };
    eventually("the runner is ready", async || (health(&[]).await == (0, "ready\n".to_owned())).then_some(())).await;
    assert_eq!(health(&["--live"]).await, (0, "ok\n".to_owned()));
    tickr.services().mysql().pause().unwrap();
    // An answer of MySQL stands for half a second.
    eventually("MySQL is seen to be out", async || {
        (health(&[]).await == (1, "store_unavailable\n".to_owned())).then_some(())
    })
    .await;
    assert_eq!(health(&["--live"]).await, (0, "ok\n".to_owned()));
    tickr.services().mysql().resume().unwrap();
    assert_eq!(health(&["--url", "http://127.0.0.1:9"]).await, (1, String::new()));
    tickr.stop().await;
}

/// An image from scratch has no certificates of authorities, and its probes need none.
#[tokio::test(flavor = "multi_thread")]
async fn commands_work_on_a_system_without_certificates() {
    let tickr = TestApp::start().await;
    for args in [&["health"][..], &["enqueue", "noop", "--wait", "30s"]] {
        // While the machine stands still, the runner may not be ready.
        eventually_seen(&format!("{args:?} works"), || async {
            let mut command = command(&program(), tickr.dir.path(), args);
            command.env("TICKR_URL", tickr.url(""));
            command.env("SSL_CERT_FILE", "/nonexistent").env("SSL_CERT_DIR", "/nonexistent");
            let (code, said, wrong) = outcome(command).await;
            if code == 0 { Ok(()) } else { Err(format!("{code}: {said}{wrong}")) }
        })
        .await;
    }
    tickr.stop().await;
}
