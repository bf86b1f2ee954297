//! SIGTERM, SIGINT and `App::stop`: jobs that can finish do so, all others are given back, and no job is lost or run
//! twice.

use std::time::Duration;

use serde_json::{Value, json};
use tickr::config::Config;
use tickr::engine::Stopped;
use tickr::handlers::Registry;
use tickr::index::Health;
use tickr::job::State;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::{self, Runner, SHORT_LEASE, TestApp, eventually};

fn sleep(ms: u64) -> Value {
    json!({"kind": "sleep", "payload": {"ms": ms}})
}

/// Start a tickr that accepts jobs and runs none of them.
async fn bystander() -> TestApp {
    TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_finishes_what_it_can_and_gives_back_the_rest_without_burning_an_attempt() {
    let tickr = bystander().await;
    let grace = |config: &mut Config| {
        (config.shutdown_grace, config.queues) = (Duration::from_millis(1_500), vec!["default".into()]);
    };
    let runner = tickr.another_with(grace, Registry::new()).await;
    let (short, long) = (tickr.enqueue(sleep(1_000)).await, tickr.enqueue(sleep(4_000)).await);
    for id in [short, long] {
        tickr.until(id, State::Executing).await;
    }
    let stopped = runner.stop(CancellationToken::new()).await;
    assert_eq!(stopped, Stopped { given_back: 1, abandoned: 0 });
    assert_eq!(tickr.verdicts(short).await, ["succeeded"]);
    let job = tickr.job(long).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("waiting"), &json!(0)));
    assert_eq!(tickr.verdicts(long).await, ["interrupted"]);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM runners WHERE stopped_at IS NOT NULL").await, 1);

    let next = tickr.another_with(grace, Registry::new()).await;
    let job = tickr.until(long, State::Completed).await;
    assert_eq!(job["attempt"], 1);
    assert_eq!(tickr.verdicts(long).await, ["interrupted", "succeeded"]);
    next.stop(CancellationToken::new()).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_runner_stops_within_one_block_of_its_fetcher() {
    let tickr = bystander().await;
    let mut runners = Vec::new();
    for _ in 0..5 {
        runners.push(tickr.another().await);
    }
    eventually("all are whole", || async {
        let whole = runners.iter().all(|runner| runner.index().health().now() == Health::Fast);
        whole.then_some(())
    })
    .await;
    let began = Instant::now();
    futures_util::future::join_all(runners.into_iter().map(|runner| runner.stop(CancellationToken::new()))).await;
    // A block of the fetcher lasts a second.
    assert!(began.elapsed() < Duration::from_millis(1_900), "{:?}", began.elapsed());
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hurried_stop_does_not_wait_for_the_grace() {
    let tickr = bystander().await;
    let patient = |config: &mut Config| {
        (config.shutdown_grace, config.queues) = (Duration::from_secs(600), vec!["default".into()]);
    };
    let runner = tickr.another_with(patient, Registry::new()).await;
    let stubborn = json!({"kind": "sleep", "payload": {"ms": 600_000, "stubborn": true}});
    let ids = [tickr.enqueue(sleep(600_000)).await, tickr.enqueue(stubborn).await];
    for id in ids {
        tickr.until(id, State::Executing).await;
    }
    // MySQL has an attempt a moment before its runner knows it.
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE busy = 2", 1).await;
    let (hurry, began) = (CancellationToken::new(), Instant::now());
    hurry.cancel();
    let stopped = runner.stop(hurry).await;
    assert_eq!(stopped, Stopped { given_back: 2, abandoned: 0 });
    // A block of the fetcher, plus the two seconds for a handler that ignores the request to stop.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    for id in ids {
        assert_eq!(tickr.verdicts(id).await, ["interrupted"]);
    }
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_starts_while_the_runner_stops_is_given_back_too() {
    let tickr = bystander().await;
    tickr.enqueue_many((0..400).map(|_| sleep(600_000))).await;
    for _ in 0..6 {
        let at_once = |config: &mut Config| {
            (config.shutdown_grace, config.queues) = (Duration::ZERO, vec!["default".into()]);
            config.workers = 64;
        };
        let runner = tickr.another_with(at_once, Registry::new()).await;
        // The stop begins as soon as any job runs, while claims are under way.
        eventually("something runs", || async {
            (tickr.count("SELECT COUNT(*) FROM owed WHERE state = 'executing'").await > 0).then_some(())
        })
        .await;
        let stopped = runner.stop(CancellationToken::new()).await;
        assert_eq!(stopped.abandoned, 0);
        assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE state = 'executing'").await, 0);
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict <> 'interrupted'").await, 0);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE state = 'waiting' AND spared = attempt").await, 400);
    tickr.assert_sound().await;
    tickr.stop().await;
}

/// Return whether SIGHUP is ignored in this process, and so in each runner that a test starts, as under nohup.
fn hangups_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.is_none_or(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_under_load_lose_nothing_and_run_nothing_twice() {
    let tickr = bystander().await;
    tickr.enqueue_many((0..1_500).map(|n| sleep(n % 40))).await;
    let signals = if hangups_are_ignored() { vec!["TERM", "INT"] } else { vec!["TERM", "INT", "HUP"] };
    for signal in signals {
        let done = tickr.count("SELECT COUNT(*) FROM attempts").await;
        let mut runner = Runner::start(&tickr, &[("TICKR_WORKERS", "8")]);
        eventually("it works", || async {
            (tickr.count("SELECT COUNT(*) FROM attempts").await > done + 100).then_some(())
        })
        .await;
        runner.signal(signal);
        assert_eq!(runner.exit_code().await, Some(0), "{}", runner.log());
        assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE state <> 'waiting'").await, 0);
    }
    let owed = tickr.count("SELECT COUNT(*) FROM owed").await;
    assert!(owed > 0, "the signals came in the middle of the work");
    // The rest is 25 s of work for one worker.
    let many = |config: &mut Config| (config.queues, config.workers) = (vec!["default".into()], 16);
    let runner = tickr.another_with(many, Registry::new()).await;
    tickr.until_idle().await;
    tickr.assert_each_ran_once(1_500).await;
    runner.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_gives_back_now() {
    let tickr = bystander().await;
    let id = tickr.enqueue(sleep(600_000)).await;
    for (turn, signals) in [["TERM", "TERM"], ["INT", "TERM"]].into_iter().enumerate() {
        let mut runner = Runner::start(&tickr, &[("TICKR_SHUTDOWN_GRACE", "10m")]);
        tickr.until(id, State::Executing).await;
        runner.signal(signals[0]);
        runner.until_log("a second signal gives running jobs back now").await;
        let second = Instant::now();
        runner.signal(signals[1]);
        assert_eq!(runner.exit_code().await, Some(0), "{}", runner.log());
        assert!(second.elapsed() < Duration::from_secs(5), "{:?}", second.elapsed());
        let job = tickr.job(id).await;
        assert_eq!((&job["state"], &job["attempt"]), (&json!("waiting"), &json!(0)));
        assert_eq!(tickr.verdicts(id).await, vec!["interrupted"; turn + 1]);
    }
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_while_mysql_hangs_still_ends() {
    let tickr = TestApp::start_alone(|_| {}, support::bystander).await;
    let hasty = |config: &mut Config| {
        (config.shutdown_grace, config.queues) = (Duration::from_millis(200), vec!["default".into()]);
    };
    let runner = tickr.another_with(hasty, Registry::new()).await;
    let id = tickr.enqueue(sleep(600_000)).await;
    tickr.until(id, State::Executing).await;
    tickr.services().mysql().pause().unwrap();
    let began = Instant::now();
    let stopped = runner.stop(CancellationToken::new()).await;
    let took = began.elapsed();
    println!("stopped beside a MySQL that hangs in {took:?}");
    tickr.services().mysql().resume().unwrap();
    // Its verdict could not be written, and its lease expires.
    assert_eq!(stopped.abandoned, 1);
    // The handler and its settle take 5 s, the loops 3 s, the heartbeat 8 s, the store 12 s, plus the rest of a
    // request.
    assert!(took < Duration::from_secs(30), "{took:?}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_handler_blocks_at_the_stop_is_due_only_after_the_process_has_ended() {
    let tickr = bystander().await;
    let mut runner = Runner::start(&tickr, &[("TICKR_SHUTDOWN_GRACE", "0s"), ("TICKR_WORKERS", "1")]);
    let id = tickr.enqueue(json!({"kind": "spin", "payload": {"ms": 60_000}})).await;
    tickr.until(id, State::Executing).await;
    let began = Instant::now();
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0), "{}", runner.log());
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(tickr.verdicts(id).await, ["interrupted"]);
    let rest_ms = "SELECT TIMESTAMPDIFF(MICROSECOND, a.finished_at, o.execute_at) DIV 1000 FROM owed o JOIN attempts a ON a.job_id = o.id";
    assert!((14_000..16_000).contains(&tickr.count(rest_ms).await));
    assert_eq!(tickr.job(id).await["attempt"], 0);
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_while_mysql_and_redis_are_out_still_ends() {
    let hasty = |config: &mut Config| (config.shutdown_grace, config.lease) = (Duration::from_millis(200), SHORT_LEASE);
    let tickr = TestApp::start_alone(|_| {}, hasty).await;
    let id = tickr.enqueue(sleep(600_000)).await;
    tickr.until(id, State::Executing).await;
    // Of this runner, one job ends during the outage.
    let env = [("TICKR_QUEUES", "other"), ("TICKR_SHUTDOWN_GRACE", "200ms"), ("TICKR_LEASE", "30s")];
    let mut runner = Runner::start(&tickr, &env);
    for ms in [600_000, 8_000] {
        let mut job = sleep(ms);
        job["queue"] = json!("other");
        let id = tickr.enqueue(job).await;
        tickr.until(id, State::Executing).await;
    }
    tickr.services().redis().kill9().unwrap();
    tickr.services().mysql().kill9().unwrap();
    runner.until_log("cannot settle yet").await;
    runner.signal("TERM");
    let began = Instant::now();
    let stopped = tickr.stop_broken("its servers are gone").await;
    // Its verdict could not be written, and its lease expires.
    assert_eq!(stopped.abandoned, 1);
    println!("stopped without servers in {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    assert_eq!(runner.exit_code().await, Some(0), "{}", runner.log());
    let counts = "given_back=1 results_waiting=1 abandoned=2";
    assert!(runner.log().contains(counts), "{}", runner.log());
}
