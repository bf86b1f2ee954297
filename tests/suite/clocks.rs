//! Clocks (G7): the clock of MySQL decides what is due. A runner whose own clock is hours off, and jumps while it
//! works, starts no job early and none at its expiry or later, leaves no due job waiting, loses no lease, and gives no
//! job a wrong place in a line.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use tickr::config::CallbackSecret;
use tickr::handlers::Registry;
use tickr::job::{JobId, State};
use tickr::verify::{Check, verify};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::expiry::{LATE, TOO_SOON};
use crate::support::clock::{Clock, faketime};
use crate::support::{
    DEADLINE, Pulse, Runner, SHORT_LEASE, TestApp, answer, bystander, eventually, eventually_late, eventually_seen,
    halted, http, short_lease, while_unavailable,
};

/// Return the library that turns clocks. `None` where there is none: on macOS, a preloaded library cannot replace the
/// libraries of the system, and without a network it may not be there.
async fn library() -> Option<PathBuf> {
    let library = faketime().await;
    if library.is_none() {
        let offline = std::env::var_os("TICKR_OFFLINE").is_some_and(|value| !value.is_empty());
        assert!(!cfg!(target_os = "linux") || offline, "sh internal/services/install.sh --faketime fails");
        println!("skipped: there is no libfaketime");
    }
    library
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_with_a_clock_of_its_own_leaves_no_shared_memory() {
    let Some(library) = library().await else { return };
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new(dir.path().join("clock"));
    clock.turn(60).unwrap();
    let mut child = Command::new("sh")
        .args(["-c", "echo ready; read line"])
        .envs(clock.environment(&library))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let pid = child.id().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(DEADLINE, output.next_line()).await.unwrap().unwrap();
    assert_eq!(line.as_deref(), Some("ready"));
    child.kill().await.unwrap();
    drop(clock);
    for left in [format!("/dev/shm/faketime_shm_{pid}"), format!("/dev/shm/sem.faketime_sem_{pid}")] {
        assert!(!Path::new(&left).exists(), "{left}");
    }
}

/// Return jobs of every sort that depends on time, due now and over the next four seconds. By the clock of the wrong
/// runner, their `execute_at` is hours ahead or hours in the past.
fn wave() -> Vec<Value> {
    let now = Utc::now();
    let mut jobs = Vec::new();
    for step in 0_i32..20 {
        let ms = step * 200;
        jobs.push(json!({"kind": "noop", "payload": {}, "delay_ms": ms}));
        jobs.push(json!({"kind": "noop", "payload": {}, "execute_at": now + TimeDelta::milliseconds(ms.into())}));
    }
    jobs.extend((0..12).map(|step| failing(step * 400)));
    // Some expire a millisecond after their due time, some while they may just start, and some long after. The last
    // ones name the moment, which by the clock of the wrong runner has passed or is hours ahead.
    for step in 0_u64..20 {
        let delay_ms = step * 200;
        let expires_in_ms = delay_ms + [1, 5, 25, 2_000][usize::try_from(step % 4).unwrap()];
        jobs.push(json!({"kind": "noop", "payload": {}, "delay_ms": delay_ms, "expires_in_ms": expires_in_ms}));
        let expires_at = now + TimeDelta::minutes(5);
        jobs.push(json!({"kind": "noop", "payload": {}, "delay_ms": delay_ms, "expires_at": expires_at}));
    }
    // They take longer than a lease, and stay within a time limit that a jump of the clock would exceed.
    jobs.extend((0..12).map(|_| json!({"kind": "sleep", "payload": {"ms": 9_000}, "timeout_ms": 60_000})));
    jobs
}

/// Return a job whose first attempt fails, and its runner logs that.
fn failing(delay_ms: u32) -> Value {
    let retry = json!({"base_ms": 700, "factor": 1.0, "cap_ms": 700});
    json!({"kind": "fail", "payload": {"times": 1}, "retry": retry, "delay_ms": delay_ms})
}

/// Enqueue a few jobs of one order key, one after the other through the runners in turn. Return their ids, in the order
/// in which they were accepted.
async fn in_line(doors: &[String]) -> Vec<uuid::Uuid> {
    let mut ids = Vec::new();
    for door in doors.iter().cycle().take(9) {
        let job = json!({"kind": "noop", "order_key": "line"});
        let accepted = answer(http().post(format!("{door}/v1/jobs")).json(&job)).await;
        assert_eq!(accepted.status, 201, "{:#}", accepted.body);
        ids.push(accepted.body["id"].as_str().unwrap().parse::<JobId>().unwrap().uuid());
    }
    ids
}

/// Return whether the process has written a log line while its clock is off by this much. The Date header does not show
/// that, because the server caches it and keeps the old value when the clock goes back.
fn lives_at(runner: &Runner, seconds: i64) -> bool {
    let wanted = Utc::now() + TimeDelta::seconds(seconds);
    let log = runner.log();
    let mut times = log.lines().filter_map(|line| line.split(' ').next()?.parse::<DateTime<Utc>>().ok());
    times.any(|time| (time - wanted).abs() < TimeDelta::minutes(1))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_two_hours_off_and_stepped_starts_nothing_early_and_leaves_nothing_lying() {
    let Some(library) = library().await else { return };
    let two_hours = TimeDelta::hours(2).num_seconds();
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let clock = Clock::new(tickr.dir.path().join("clock"));
    clock.turn(two_hours).unwrap();
    let environment = clock.environment(&library);
    // The jobs that sleep must not take all workers of a runner: it would log no failure while they last.
    let common = [("TICKR_LEASE", "8s"), ("TICKR_WORKERS", "128")];
    let mut turned: Vec<(&str, &str)> =
        environment.iter().map(|(name, path)| (*name, path.to_str().unwrap())).collect();
    turned.extend(common);
    let turned = Runner::start(&tickr, &turned);
    // A runner that listens may not be listed yet.
    tickr.until_count("SELECT COUNT(*) FROM runners", 2).await;
    let id: String = sqlx::query_scalar("SELECT id FROM runners WHERE id <> ?")
        .bind(tickr.app.runner().to_string())
        .fetch_one(&mut tickr.mysql().await)
        .await
        .unwrap();
    let others = [Runner::start(&tickr, &common), Runner::start(&tickr, &common)];
    let mut doors = vec![turned.base().await];
    for other in &others {
        doors.push(other.base().await);
    }

    let pulse = Pulse::start(&tickr).await;
    let (mut enqueued, mut line) = (0, Vec::new());
    let mut started_before = 0_i64;
    // The runner starts two hours ahead, jumps four hours back, and then ahead to the right time.
    for seconds in [two_hours, -two_hours, 0] {
        for door in &doors {
            let jobs = wave();
            enqueued += jobs.len();
            let accepted = answer(http().post(format!("{door}/v1/jobs/batch")).json(&json!({"jobs": jobs}))).await;
            assert_eq!(accepted.status, 201, "{:#}", accepted.body);
        }
        // The clock changes in the middle of these jobs.
        line.extend(in_line(&doors).await);
        clock.turn(seconds).unwrap();
        let deadline = Instant::now() + DEADLINE;
        while !lives_at(&turned, seconds) {
            assert!(Instant::now() < deadline, "the clock has not jumped by {seconds} s");
            tokio::time::sleep(Duration::from_millis(300)).await;
            // Beside a stall of the machine, the jobs before it may have failed before the clock changed.
            tickr.enqueue(failing(0)).await;
            enqueued += 1;
        }
        line.extend(in_line(&doors).await);
        eventually("the API shows the clock skew", || async {
            let path = format!("/v1/runners/{}", id.replace('/', "%2F"));
            let skew = tickr.get(&path).await.body["clock_skew_ms"].as_i64()?;
            ((skew - seconds * 1_000).abs() < 5_000).then_some(())
        })
        .await;
        tickr.until_idle().await;
        let started: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM attempts WHERE runner = ?")
            .bind(&id)
            .fetch_one(&mut tickr.mysql().await)
            .await
            .unwrap();
        let share = started - started_before;
        assert!(share >= 5, "the runner with the wrong clock takes part, with {share} of {enqueued} so far");
        started_before = started;
    }

    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, i64::try_from(enqueued + line.len()).unwrap());
    let by_start = "SELECT p.job_id FROM order_places p JOIN attempts a ON a.job_id = p.job_id ORDER BY a.started_at";
    let started: Vec<uuid::Uuid> = sqlx::query_scalar(by_start).fetch_all(&mut tickr.mysql().await).await.unwrap();
    assert_eq!(started, line, "jobs of an order key start in the order in which they were accepted");
    let early = "SELECT COUNT(*) FROM attempts WHERE started_at < execute_at";
    assert_eq!(tickr.count(early).await, 0, "never early");
    assert_eq!(tickr.count(LATE).await, 0, "none starts at its expiry or later");
    assert_eq!(tickr.count(TOO_SOON).await, 0, "none ends before its expiry");
    let expired = tickr.count("SELECT COUNT(*) FROM attempts WHERE expired").await;
    println!("{expired} jobs expired");
    // Each of the nine waves had five jobs that could start for one millisecond, and twenty that expire in minutes.
    let in_minutes = "SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE a.expired AND \
                      TIMESTAMPDIFF(SECOND, j.created_at, a.finished_at) > 100";
    assert_eq!(tickr.count(in_minutes).await, 0, "a job that has minutes starts");
    assert!(expired >= 10, "{expired} jobs expired");
    let latest = pulse.latest_start(&tickr, "expired IS NULL").await;
    assert!(latest < Duration::from_secs(6), "a due job waited for {latest:?} beside stalls of the machine");
    let ended = "SELECT COUNT(*) FROM attempts WHERE verdict NOT IN ('succeeded', 'failed') AND expired IS NULL";
    assert_eq!(tickr.count(ended).await, 0, "no lease was lost and no time limit hit");
    tickr.assert_sound().await;
    drop((turned, others));
    tickr.stop().await;
}

/// Answer as a receiver does that refuses calls whose time is five minutes off or more.
async fn refuse_stale(headers: HeaderMap) -> StatusCode {
    let signed_at = headers.get("webhook-timestamp").and_then(|at| at.to_str().ok()?.parse::<i64>().ok());
    let is_fresh = signed_at.is_some_and(|at| (Utc::now().timestamp() - at).abs() < 300);
    if is_fresh { StatusCode::NO_CONTENT } else { StatusCode::UNAUTHORIZED }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_two_hours_off_signs_callbacks_at_the_time_of_mysql() {
    let Some(library) = library().await else { return };
    // Only the runner with the wrong clock executes the jobs.
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let receiver = axum::Router::new().fallback(refuse_stale);
    let serving = tokio::spawn(async move { axum::serve(listener, receiver).await });
    let secret = CallbackSecret::generate();
    let push = json!({"run": {"push": {"url": url, "secret": secret}}, "max_attempts": 1});
    assert_eq!(tickr.put("/v1/kinds/pushed", push).await.status, 201);
    let clock = Clock::new(tickr.dir.path().join("clock"));
    clock.turn(TimeDelta::hours(2).num_seconds()).unwrap();
    let environment = clock.environment(&library);
    let mut turned: Vec<(&str, &str)> =
        environment.iter().map(|(name, path)| (*name, path.to_str().unwrap())).collect();
    turned.extend([("TICKR_CALLBACK_SECRET", secret.as_str()), ("TICKR_CALLBACK_ALLOW_PRIVATE", "true")]);
    turned.push(("TICKR_LEASE", "15s"));
    let turned = Runner::start(&tickr, &turned);
    turned.base().await;
    assert!(lives_at(&turned, TimeDelta::hours(2).num_seconds()), "its clock is right: {}", turned.log());
    let callback = tickr.enqueue_kind("http", json!({"url": url, "body": {}})).await;
    let pushed = tickr.enqueue_kind("pushed", json!({})).await;
    for id in [callback, pushed] {
        tickr.until(id, State::Completed).await;
        assert_eq!(tickr.verdicts(id).await, ["succeeded"]);
    }
    drop(turned);
    serving.abort();
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_of_mysql_that_is_set_ahead_and_back_ends_no_attempt() {
    let Some(library) = library().await else { return };
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new(dir.path().join("clock"));
    clock.turn(0).unwrap();
    let environment = clock.environment(&library);
    let turned = |options: tickr::services::Options| {
        environment.iter().fold(options, |options, (name, value)| options.mysql_environment(*name, value.clone()))
    };
    // No stall of the machine may end a lease.
    let lease = |config: &mut tickr::config::Config| {
        (config.workers, config.lease) = (4, Duration::from_secs(9));
    };
    let tickr = TestApp::start_alone_as(turned, |_| {}, lease).await;
    let env = [("TICKR_LEASE", "9s"), ("TICKR_WORKERS", "8")];
    let runners = [Runner::start(&tickr, &env), Runner::start(&tickr, &env)];
    tickr.until_count("SELECT COUNT(*) FROM runners", 3).await;
    let every_second = json!({"cron": "* * * * * *", "kind": "noop", "misfire_grace_ms": 60_000});
    let put = tickr.put("/v1/schedules/every-second", &every_second).await;
    assert_eq!(put.status, 201);
    let sleep = json!({"kind": "sleep", "payload": {"ms": 20_000}, "max_attempts": 1});
    let sleeping = tickr.enqueue_many((0..16).map(|_| sleep.clone())).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing' AND max_attempts = 1", 16).await;
    let moved = async |seconds: i64| {
        clock.turn(seconds).unwrap();
        eventually("the clock of mysql has moved", || async {
            let now: DateTime<Utc> =
                sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut tickr.mysql().await).await.unwrap();
            ((now - Utc::now()).num_seconds() - seconds).abs().lt(&3).then_some(())
        })
        .await;
    };
    // The clock goes ahead by two leases, so that every lease has expired, and then back by an hour while the jobs
    // still run.
    moved(18).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    moved(18 - 3_600).await;
    for id in &sleeping {
        tickr.until(*id, State::Completed).await;
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict <> 'succeeded'").await, 0);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE started_at < execute_at").await, 0, "never early");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE finished_at < started_at").await, 0);
    let twice = "SELECT COUNT(*) FROM (SELECT due_at FROM ticks GROUP BY due_at HAVING COUNT(*) > 1) t";
    assert_eq!(tickr.count(twice).await, 0);

    // A runner that dies now is found, although its last lease and heartbeat may be ahead of the clock.
    let job = json!({"kind": "sleep", "payload": {"ms": 600_000}});
    let ids = tickr.enqueue_many((0..12).map(|_| job.clone())).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing' AND max_attempts > 1", 12).await;
    let pids = runners.each_ref().map(Runner::pid);
    runners.iter().for_each(|runner| runner.signal("KILL"));
    tickr
        .sql(format!(
            "UPDATE runners SET heartbeat_at = heartbeat_at + INTERVAL 1 HOUR WHERE pid IN ({}, {}); \
             UPDATE owed o JOIN runners r ON r.id = o.runner SET o.lease_until = o.lease_until + INTERVAL 1 HOUR \
             WHERE r.pid IN ({}, {})",
            pids[0], pids[1], pids[0], pids[1]
        ))
        .await;
    let held = "SELECT COUNT(*) FROM owed o JOIN runners r ON r.id = o.runner WHERE r.stopped_at IS NOT NULL";
    eventually_late(2 * DEADLINE, "the dead runners are struck off", || async {
        let listed = tickr.count("SELECT COUNT(*) FROM runners WHERE stopped_at IS NULL").await;
        (listed == 1).then_some(())
    })
    .await;
    assert_eq!(tickr.count(held).await, 0);
    for id in ids {
        tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    }
    drop(runners);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_of_mysql_that_is_set_ahead_ends_no_attempt_of_a_remote_worker_that_began_before() {
    let Some(library) = library().await else { return };
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new(dir.path().join("clock"));
    clock.turn(0).unwrap();
    let environment = clock.environment(&library);
    let turned = |options: tickr::services::Options| {
        environment.iter().fold(options, |options, (name, value)| options.mysql_environment(*name, value.clone()))
    };
    let tickr = TestApp::start_alone_as(turned, |_| {}, short_lease).await;
    assert_eq!(tickr.put("/v1/kinds/resize", json!({"queue": "pictures", "max_attempts": 1})).await.status, 201);
    let worker = json!({"name": "test", "kinds": ["resize"], "slots": 2, "lease_ms": 600_000});
    let worker = tickr.post("/v1/workers", worker).await.body["id"].as_str().unwrap().to_owned();
    // The limit is shorter than the step of the clock.
    tickr.enqueue(json!({"kind": "resize", "payload": 1, "timeout_ms": 100_000})).await;
    let fetched = async |holding: Value| {
        eventually("the worker gets the job", || async {
            let fetch = json!({"slots": 1, "wait_ms": 20_000, "holding": holding, "fetch_id": uuid::Uuid::now_v7()});
            let body = tickr.post(&format!("/v1/workers/{worker}/fetch"), fetch).await.body;
            body["jobs"][0]["token"].is_string().then(|| body["jobs"][0]["token"].clone())
        })
        .await
    };
    let before = &fetched(json!([])).await;
    clock.turn(120).unwrap();
    eventually("the clock of mysql has moved", || async {
        let now: DateTime<Utc> =
            sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut tickr.mysql().await).await.unwrap();
        ((now - Utc::now()).num_seconds() > 100).then_some(())
    })
    .await;
    let beat = async || {
        let holding = json!({"holding": [{"token": before}]});
        tickr.post(&format!("/v1/workers/{worker}/beat"), holding).await
    };
    let beaten = while_unavailable(beat).await;
    assert_eq!(beaten.body, json!({"cancel": [], "lost": [], "drain": false}));
    // The time of an attempt that began after the step is over as soon as the process judges by the clock again.
    tickr.enqueue(json!({"kind": "resize", "payload": 2, "timeout_ms": 1_000})).await;
    let after = &fetched(json!([before])).await;
    let told = eventually("the worker is told to stop an attempt", || async {
        let holding = json!({"holding": [{"token": before}, {"token": after}]});
        let beaten = tickr.post(&format!("/v1/workers/{worker}/beat"), holding).await;
        (beaten.status == 200 && beaten.body["cancel"] != json!([])).then_some(beaten.body)
    })
    .await;
    assert_eq!(told, json!({"cancel": [after], "lost": [], "drain": false}));
    // So does a process that starts after the step, which another one has recorded.
    eventually("the step is recorded", || async {
        (tickr.count("SELECT COUNT(*) FROM clock_steps WHERE step_us > 100000000").await > 0).then_some(())
    })
    .await;
    let later = tickr.another_with(short_lease, Registry::new()).await;
    let beat = format!("http://{}/v1/workers/{worker}/beat", later.addr());
    let told = eventually("the worker is told by another process to stop an attempt", || async {
        let holding = json!({"holding": [{"token": before}, {"token": after}]});
        let beaten = answer(http().post(&beat).json(&holding)).await;
        (beaten.status == 200 && beaten.body["cancel"] != json!([])).then_some(beaten.body)
    })
    .await;
    assert_eq!(told, json!({"cancel": [after], "lost": [], "drain": false}));
    later.stop(CancellationToken::new()).await;
    for token in [before, after] {
        let result = eventually("the verdict is written", || async {
            let verdicts = json!({"verdicts": [{"token": token, "verdict": "succeeded"}]});
            let finished = tickr.post(&format!("/v1/workers/{worker}/finish"), verdicts).await;
            let result = finished.body["results"][0]["result"].clone();
            (finished.status == 200 && result != "locked").then_some(result)
        })
        .await;
        assert_eq!(result, "settled");
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict <> 'succeeded'").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_whose_clock_was_set_back_ticks_no_moment_twice_and_goes_on_where_it_was() {
    let Some(library) = library().await else { return };
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new(dir.path().join("clock"));
    clock.turn(0).unwrap();
    let environment = clock.environment(&library);
    let turned = |options: tickr::services::Options| {
        environment.iter().fold(options, |options, (name, value)| options.mysql_environment(*name, value.clone()))
    };
    let size = |config: &mut tickr::config::Config| (config.workers, config.lease) = (4, SHORT_LEASE);
    let tickr = TestApp::start_alone_as(turned, |_| {}, size).await;
    let moved = async |seconds: i64| {
        clock.turn(seconds).unwrap();
        eventually("the clock of mysql has moved", || async {
            let now: DateTime<Utc> =
                sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut tickr.mysql().await).await.unwrap();
            ((now - Utc::now()).num_seconds() - seconds).abs().lt(&3).then_some(())
        })
        .await;
    };
    let every_second = json!({"cron": "* * * * * *", "kind": "noop", "misfire_grace_ms": 60_000});
    let declare = async |name: &str| {
        let put = tickr.put(&format!("/v1/schedules/{name}"), &every_second).await;
        assert_eq!(put.status, 201, "{:#}", put.body);
    };
    let ticks = |name: &str| format!("SELECT COUNT(*) FROM ticks WHERE schedule = '{name}'");
    let until_more_than = async |name: &str, ticked: i64| {
        eventually("the schedule ticks", || async { (tickr.count(&ticks(name)).await > ticked).then_some(()) }).await;
    };
    declare("before").await;
    until_more_than("before", 2).await;

    // For an hour the clock shows moments that have ticked: the schedule is silent, and a trigger fires at once.
    moved(-3_600).await;
    // That holds for a schedule that is changed as well. One with a new name has not ticked yet.
    let every_other = json!({"cron": "*/2 * * * * *", "kind": "noop", "misfire_grace_ms": 60_000});
    let changed = tickr.put("/v1/schedules/before", &every_other).await;
    assert_eq!(changed.status, 200, "{:#}", changed.body);
    let ticked = tickr.count(&ticks("before")).await;
    declare("after").await;
    // In this time the schedule would have ticked five times, as the other one does.
    until_more_than("after", 4).await;
    assert_eq!(tickr.count(&ticks("before")).await, ticked, "a moment that had ticked came again");
    let next =
        "SELECT COUNT(*) FROM schedules WHERE name = 'before' AND next_at > UTC_TIMESTAMP(3) + INTERVAL 50 MINUTE";
    assert_eq!(tickr.count(next).await, 1);
    let triggered = tickr.post("/v1/schedules/before/trigger", json!({})).await;
    assert!(triggered.status < 300, "{:#}", triggered.body);

    // When the clock is where it was, the schedule goes on.
    moved(0).await;
    until_more_than("before", ticked + 3).await;
    for name in ["before", "after"] {
        let paused = tickr.post(&format!("/v1/schedules/{name}/pause"), json!({})).await;
        assert_eq!(paused.status, 200, "{:#}", paused.body);
    }
    tickr.until_idle().await;
    let fired = tickr.count("SELECT COUNT(*) FROM ticks WHERE job_id IS NOT NULL").await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, fired, "each tick has its job");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_given_back_after_the_clock_of_mysql_was_set_back_is_due_at_once() {
    let Some(library) = library().await else { return };
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new(dir.path().join("clock"));
    clock.turn(0).unwrap();
    let environment = clock.environment(&library);
    let turned = |options: tickr::services::Options| {
        environment.iter().fold(options, |options, (name, value)| options.mysql_environment(*name, value.clone()))
    };
    // This runner executes nothing. It sends heartbeats often, so it notices the step.
    let idle = |config: &mut tickr::config::Config| {
        (config.lease, config.queues) = (Duration::from_secs(2), vec!["elsewhere".into()]);
    };
    let tickr = TestApp::start_alone_as(turned, |_| {}, idle).await;
    let busy = |config: &mut tickr::config::Config| {
        (config.lease, config.queues) = (Duration::from_secs(60), vec!["default".into()]);
        config.shutdown_grace = Duration::ZERO;
    };
    let first = tickr.another_with(busy, Registry::new()).await;
    let id = tickr.enqueue_kind("sleep", json!({"ms": 600_000})).await;
    tickr.until(id, State::Executing).await;
    clock.turn(-3_600).unwrap();
    eventually("the step back is noted", || async {
        (tickr.count("SELECT COUNT(*) FROM clock_steps WHERE step_us < -3500000000").await > 0).then_some(())
    })
    .await;
    first.stop(CancellationToken::new()).await;
    assert_eq!(tickr.verdicts(id).await, ["interrupted"]);
    // By the clock as it is now, its old due time lies an hour ahead.
    let due = "SELECT COUNT(*) FROM owed WHERE execute_at <= UTC_TIMESTAMP(3) + INTERVAL 1 SECOND";
    assert_eq!(tickr.count(due).await, 1, "{:#}", tickr.job(id).await);
    tickr.sql("UPDATE jobs SET payload = '{\"ms\": 10}'").await;
    let second = tickr.another_with(busy, Registry::new()).await;
    tickr.until(id, State::Completed).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE started_at < execute_at").await, 0, "never early");
    second.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_starts_after_a_step_of_the_clock_of_mysql_judges_no_other_by_it() {
    let Some(library) = library().await else { return };
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new(dir.path().join("clock"));
    clock.turn(0).unwrap();
    let environment = clock.environment(&library);
    let turned = |options: tickr::services::Options| {
        environment.iter().fold(options, |options, (name, value)| options.mysql_environment(*name, value.clone()))
    };
    // One runner has work and sends a heartbeat every twenty seconds. Another has a short lease and notices the step.
    let long = Duration::from_secs(60);
    let tickr = TestApp::start_alone_as(turned, |_| {}, |config| (config.workers, config.lease) = (20, long)).await;
    let idle = |lease: Duration| {
        move |config: &mut tickr::config::Config| (config.lease, config.queues) = (lease, vec!["elsewhere".into()])
    };
    let short = tickr.another_with(idle(Duration::from_secs(2)), Registry::new()).await;
    let sleep = json!({"kind": "sleep", "payload": {"ms": 600_000}});
    let held = tickr.enqueue_many((0..16).map(|_| sleep.clone())).await;
    let retry = json!({"base_ms": 600_000, "factor": 1.0, "cap_ms": 600_000});
    let retried = tickr.enqueue(json!({"kind": "fail", "payload": {"times": 1}, "retry": retry})).await;
    let open = "SELECT COUNT(*) FROM owed WHERE state = 'executing' AND attempt = 1";
    tickr.until_count(open, 16).await;
    tickr.until_attempts(retried, 1).await;
    let holder = tickr.app.runner().to_string();
    let beat_age_ms = async || -> i64 {
        let sql =
            "SELECT TIMESTAMPDIFF(MICROSECOND, heartbeat_at, UTC_TIMESTAMP(6)) DIV 1000 FROM runners WHERE id = ?";
        sqlx::query_scalar(sql).bind(&holder).fetch_one(&mut tickr.mysql().await).await.unwrap()
    };
    // The change comes long before its next heartbeat.
    eventually("it has just sent a heartbeat", || async { (beat_age_ms().await < 3_000).then_some(()) }).await;
    let moved = async |seconds: i64| {
        clock.turn(seconds).unwrap();
        eventually("the clock of mysql has moved", || async {
            let now: DateTime<Utc> =
                sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut tickr.mysql().await).await.unwrap();
            ((now - Utc::now()).num_seconds() - seconds).abs().lt(&3).then_some(())
        })
        .await;
    };
    // The clock goes ahead by two leases: every lease has expired and every heartbeat is old. Then a runner starts that
    // has not seen the step.
    moved(240).await;
    assert!(beat_age_ms().await > 200_000, "it sent a heartbeat before the other runners could look");
    let late = tickr.another_with(idle(long), Registry::new()).await;
    // It sends them every twenty seconds.
    eventually_late(2 * DEADLINE, "the holder sends heartbeats again", || async {
        (beat_age_ms().await < 60_000).then_some(())
    })
    .await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'lost'").await, 0);
    assert_eq!(tickr.count(open).await, 16, "and each attempt is the first");

    // The clock goes back by an hour. An attempt that starts now has a start time before the end time of the attempt
    // before it.
    moved(-3_600).await;
    eventually("the step back is noted", || async {
        (tickr.count("SELECT COUNT(*) FROM clock_steps WHERE step_us < -3600000000").await > 0).then_some(())
    })
    .await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{retried}/run-now"), json!({})).await.status, 200);
    tickr.until(retried, State::Completed).await;
    let before = "SELECT COUNT(*) FROM attempts a JOIN attempts b ON b.job_id = a.job_id AND b.number = a.number + 1 \
                  WHERE b.started_at < a.finished_at";
    assert_eq!(tickr.count(before).await, 1);
    for id in held {
        tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    }
    tickr.until_idle().await;
    tickr.assert_sound().await;
    // Without the recorded clock step, this looks the same as two attempts at once, and the finding says so. Another
    // runner may still record the step.
    let settings = halted::settings(&tickr.config, Duration::ZERO, false);
    let report = eventually_seen("the attempts look as if they overlapped", || async {
        tickr.sql("DELETE FROM clock_steps").await;
        let report = verify(tickr.app.broker().store(), tickr.app.index(), &settings, |_| {}).await.unwrap();
        if report.finding(Check::Overlap).faults == 1 { Ok(report) } else { Err(format!("{report:#?}")) }
    })
    .await;
    let overlap = report.finding(Check::Overlap);
    assert!(overlap.samples[0].what.contains("set back"), "{overlap:#?}");
    for app in [short, late] {
        app.stop(CancellationToken::new()).await;
    }
    tickr.stop_broken("the note of a step of the clock was taken away").await;
}
