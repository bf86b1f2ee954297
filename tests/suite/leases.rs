//! Leases: a runner that lost a lease writes nothing, and a runner that is alive loses no lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::{Connection, Executor};
use tickr::app::App;
use tickr::broker::Enqueued;
use tickr::config::Config;
use tickr::handlers::{Context, Failure, Kind, Registry};
use tickr::index::Health;
use tickr::job::{JobId, State};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::program::example;
use crate::support::{
    self, DEADLINE, Pulse, Runner, SHORT_LEASE, TestApp, drop_database, eventually, eventually_late, short_lease,
};

const LOST: &str = "SELECT COUNT(*) FROM attempts WHERE verdict = 'lost'";

/// Start a tickr that accepts jobs and reaps, but runs no job.
async fn bystander() -> TestApp {
    TestApp::start_with(support::bystander, Registry::new()).await
}

/// Read all that the tables hold of a job, except for late notes and the renewed lease.
async fn told(tickr: &TestApp, id: JobId) -> Vec<String> {
    let sql = "SELECT CONCAT_WS(' ', 'owed', state, execute_at, attempt, spared, losses, runner, HEX(token), started_at) \
               FROM owed WHERE id = ? UNION ALL \
               SELECT CONCAT_WS(' ', number, burned, runner, started_at, finished_at, verdict, end_state, error, result) \
               FROM attempts WHERE job_id = ?";
    sqlx::query_scalar(sql).bind(id.uuid()).bind(id.uuid()).fetch_all(&mut tickr.mysql().await).await.unwrap()
}

/// Start a runner that claims a job, is suspended for longer than its lease, and resumes while another runner executes
/// the job, with another payload. A stall of the machine ends the lease of neither.
async fn zombie(tickr: &TestApp, job: Value, then: &Value) -> (JobId, Runner, Runner) {
    let zombie = Runner::start(tickr, &[("TICKR_WORKERS", "1"), ("TICKR_LEASE", "6s")]);
    let id = tickr.enqueue(job).await;
    tickr.until(id, State::Executing).await;
    zombie.signal("STOP");
    tickr.until_count(LOST, 1).await;
    tickr.sql(format!("UPDATE jobs SET payload = '{then}'")).await;
    let other = Runner::start(tickr, &[("TICKR_WORKERS", "1"), ("TICKR_LEASE", "60s")]);
    eventually("the job runs elsewhere", || async {
        let job = tickr.job(id).await;
        (job["state"] == "executing" && job["attempts"].as_array().unwrap().len() == 2).then_some(())
    })
    .await;
    let before = told(tickr, id).await;
    zombie.signal("CONT");
    zombie.until_log("lease was lost, verdict dropped").await;
    let after = told(tickr, id).await;
    assert_eq!(after, before, "the zombie changed something");
    (id, zombie, other)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_that_finishes_late_changes_nothing_but_a_note() {
    let tickr = bystander().await;
    // The handler ignores requests to stop. Its time is over when the runner resumes, so it finishes its work then. That
    // of the other runner goes on meanwhile, also if the machine stands still.
    let stubborn = json!({"kind": "sleep", "payload": {"ms": 6_000, "stubborn": true}});
    let (id, mut zombie, mut other) = zombie(&tickr, stubborn, &json!({"ms": 10_000})).await;
    let job = tickr.until(id, State::Completed).await;
    assert_eq!(tickr.verdicts(id).await, ["lost", "succeeded"]);
    assert_eq!(job["attempts"][0]["late_note"], r#"succeeded: {"slept_ms":6000}"#);
    assert_eq!(job["attempts"][1].get("late_note"), None);
    for runner in [&mut zombie, &mut other] {
        runner.signal("TERM");
        assert_eq!(runner.exit_code().await, Some(0));
    }
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_in_the_middle_of_its_work_is_told_to_stop() {
    let tickr = bystander().await;
    let sleep = json!({"kind": "sleep", "payload": {"ms": 600_000}});
    let (id, zombie, _other) = zombie(&tickr, sleep, &json!({"ms": 600_000})).await;
    let log = zombie.log();
    assert!(
        log.contains("lease is lost, stopping its handler") || log.contains("leases could not be renewed"),
        "{log}"
    );
    let job = tickr.job(id).await;
    assert_eq!(job["state"], "executing");
    assert_eq!(job["attempts"][0]["late_note"], "interrupted: the lease could not be renewed in time");
    tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    tickr.until(id, State::Cancelled).await;
    assert_eq!(tickr.verdicts(id).await, ["lost", "cancelled"]);
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_a_silent_runner_locks_delays_no_other_of_its_lost_attempts() {
    let tickr = bystander().await;
    let mut silent = Runner::start(&tickr, &[("TICKR_WORKERS", "8"), ("TICKR_LEASE", "6s")]);
    let sleep = json!({"kind": "sleep", "payload": {"ms": 600_000}});
    tickr.enqueue_many((0..8).map(|_| sleep.clone())).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 8).await;
    // A runner that freezes in a transaction keeps its locks.
    let mut holder = tickr.mysql().await;
    let mut held = holder.begin().await.unwrap();
    held.execute("SELECT id FROM owed ORDER BY id LIMIT 1 FOR UPDATE").await.unwrap();
    let pulse = Pulse::start(&tickr).await;
    silent.kill9();
    let killed = Instant::now();
    tickr.until_count(LOST, 7).await;
    // The lease, and the time in which a reaper looks. After a stall of the machine a reaper waits for one more lease.
    let (after, leeway_ms) = (killed.elapsed(), pulse.leeway_ms(killed, 6).unsigned_abs());
    println!("seven attempts were lost after {after:?}, with {leeway_ms} ms for stalls of the machine");
    assert!(after < Duration::from_secs(11) + Duration::from_millis(leeway_ms), "{after:?}");
    held.rollback().await.unwrap();
    tickr.until_count(LOST, 8).await;
    tickr.sql("UPDATE owed SET execute_at = UTC_TIMESTAMP(3) + INTERVAL 1 HOUR").await;
    tickr.stop_broken("no runner has the queue of its jobs").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_batch_that_another_session_locks_delays_no_lost_attempt() {
    let tickr = bystander().await;
    let mut silent = Runner::start(&tickr, &[("TICKR_WORKERS", "1"), ("TICKR_LEASE", "6s")]);
    let id = tickr.enqueue(json!({"kind": "sleep", "payload": {"ms": 600_000}})).await;
    tickr.until(id, State::Executing).await;
    let pulse = Pulse::start(&tickr).await;
    silent.kill9();
    let killed = Instant::now();
    // A batch of the runner whose attempts have ended. Another runner froze while it deleted that.
    let mut holder = tickr.mysql().await;
    let runner: String = sqlx::query_scalar("SELECT runner FROM owed").fetch_one(&mut holder).await.unwrap();
    let over = "INSERT INTO claim_batches (runner, id, token, ids) VALUES (?, ?, ?, ?)";
    let over = sqlx::query(over).bind(&runner).bind(&[1_u8; 16][..]).bind(&[2_u8; 16][..]).bind(&[3_u8; 16][..]);
    over.execute(&mut holder).await.unwrap();
    let mut held = holder.begin().await.unwrap();
    let lock = "SELECT id FROM claim_batches WHERE runner = ? AND id = ? FOR UPDATE";
    let locked = sqlx::query(lock).bind(&runner).bind(&[1_u8; 16][..]).fetch_all(&mut *held).await.unwrap();
    assert_eq!(locked.len(), 1);
    tickr.until_count(LOST, 1).await;
    let (after, leeway_ms) = (killed.elapsed(), pulse.leeway_ms(killed, 6).unsigned_abs());
    println!("the attempt was lost after {after:?}, with {leeway_ms} ms for stalls of the machine");
    assert!(after < Duration::from_secs(11) + Duration::from_millis(leeway_ms), "{after:?}");
    held.rollback().await.unwrap();
    tickr.sql("UPDATE owed SET execute_at = UTC_TIMESTAMP(3) + INTERVAL 1 HOUR").await;
    tickr.stop_broken("no runner has the queue of its jobs").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "waits for the limit of a silent transaction, 15 s; MariaDB only"]
async fn jobs_that_a_runner_was_claiming_when_it_froze_run_elsewhere() {
    let tickr = bystander().await;
    let frozen = Runner::start(&tickr, &[("TICKR_WORKERS", "8"), ("TICKR_LEASE", "2s")]);
    frozen.base().await;
    tickr.enqueue_many((0..8).map(|_| json!({"kind": "noop", "delay_ms": 500}))).await;
    // Its claim waits for these locks, and is carried out when it cannot go on any more.
    let mut holder = tickr.mysql().await;
    let mut held = holder.begin().await.unwrap();
    held.execute("SELECT id FROM owed FOR UPDATE").await.unwrap();
    tickr.until_said("UPDATE owed", 1).await;
    frozen.signal("STOP");
    held.rollback().await.unwrap();
    let began = Instant::now();
    let other = Runner::start(&tickr, &[("TICKR_WORKERS", "8"), ("TICKR_LEASE", "2s")]);
    tickr.until_idle().await;
    println!("the jobs were over {:?} after the freeze", began.elapsed());
    frozen.signal("CONT");
    frozen.base().await;
    drop((frozen, other));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_took_no_job_when_its_runner_froze_locks_none_for_long() {
    let tickr = bystander().await;
    let mut holder = tickr.mysql().await;
    if !tickr.ends_silent_transactions().await {
        tickr.stop().await;
        return;
    }
    let frozen = Runner::start(&tickr, &[("TICKR_WORKERS", "8"), ("TICKR_LEASE", "2s")]);
    frozen.base().await;
    // It is not due before it is locked, also if the machine stands still.
    tickr.enqueue_many([json!({"kind": "noop", "delay_ms": 6_000})]).await;
    // Its claim waits for this lock, and finds then that the job is not due. Such a transaction has written nothing,
    // and holds the lock for which it waited.
    let mut held = holder.begin().await.unwrap();
    held.execute("SELECT id FROM owed FOR UPDATE").await.unwrap();
    tickr.until_said("UPDATE owed", 1).await;
    frozen.signal("STOP");
    held.execute("UPDATE owed SET execute_at = UTC_TIMESTAMP(3) + INTERVAL 1 HOUR").await.unwrap();
    held.commit().await.unwrap();
    let began = Instant::now();
    tickr.sql("UPDATE owed SET execute_at = UTC_TIMESTAMP(3)").await;
    println!("the job was locked for {:?}", began.elapsed());
    assert!(began.elapsed() < DEADLINE, "{:?}", began.elapsed());
    frozen.signal("CONT");
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_mysql_that_outlasts_every_lease_loses_no_attempt() {
    let tickr = TestApp::start_alone(|_| {}, |config| (config.workers, config.lease) = (4, SHORT_LEASE)).await;
    let other = tickr.another().await;
    // The handlers continue for two seconds after the request to stop, so that their attempts are open when MySQL is
    // back.
    let stubborn = json!({"kind": "sleep", "payload": {"ms": 8_000, "stubborn": true}});
    let ids = tickr.enqueue_many((0..8).map(|_| stubborn.clone())).await;
    // Each runner has some.
    let all = "SELECT COUNT(*) = 8 AND COUNT(DISTINCT runner) = 2 FROM owed WHERE state = 'executing'";
    tickr.until_count(all, 1).await;
    // Leases last two seconds. Both reapers check within three seconds, and may hang until MySQL is back.
    tickr.services().mysql().pause().unwrap();
    tokio::time::sleep(Duration::from_millis(3_200)).await;
    tickr.services().mysql().resume().unwrap();
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing' AND attempt = 1", 0).await;
    assert_eq!(tickr.count(LOST).await, 0, "lost although every runner was alive");
    for id in ids {
        tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    }
    tickr.until_idle().await;
    assert_eq!(tickr.count(LOST).await, 0);
    tickr.assert_sound().await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Slow {}

impl Kind for Slow {
    const NAME: &'static str = "slow";
}

/// Return a kind whose first executions block a thread for longer than their lease, the grace period, one more lease
/// and a stall of the machine.
fn slow(first: &Arc<AtomicUsize>) -> Registry {
    let (mut own, first) = (Registry::new(), Arc::clone(first));
    own.register(move |_: Slow, _: Context| {
        let blocks = first.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        async move {
            if blocks {
                std::thread::sleep(Duration::from_secs(9));
            }
            Ok(().into())
        }
    });
    own
}

#[tokio::test(flavor = "multi_thread", worker_threads = 12)]
async fn runners_that_could_not_renew_are_not_judged_before_they_had_the_chance() {
    let tickr = bystander().await;
    let first = Arc::new(AtomicUsize::new(4));
    let two = |config: &mut Config| (config.workers, config.queues) = (2, vec!["default".into()]);
    let runners = [tickr.another_with(two, slow(&first)).await, tickr.another_with(two, slow(&first)).await];
    let broker = runners[0].broker();
    for _ in 0..4 {
        let draft = crate::support::draft(&json!({"kind": "slow"}));
        broker.enqueue(broker.prepare(draft).unwrap()).await.unwrap();
    }
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 4).await;
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE busy = 2", 2).await;
    // MySQL accepts everything except a heartbeat. Every reaper checks once within three seconds, when all leases have
    // expired.
    let mut lock = tickr.mysql().await;
    let mut held = lock.begin().await.unwrap();
    sqlx::query("SELECT id FROM runners FOR UPDATE").fetch_all(&mut *held).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5_500)).await;
    held.rollback().await.unwrap();
    tickr.until_idle().await;
    assert_eq!(tickr.count(LOST).await, 0, "lost although every runner was alive");
    tickr.assert_sound().await;
    for runner in runners {
        runner.stop(CancellationToken::new()).await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_outage_no_runner_judges_another_before_a_lease_of_that_one() {
    let tickr = TestApp::start_alone(|_| {}, support::bystander).await;
    let slept = Runner::start(&tickr, &[("TICKR_WORKERS", "1"), ("TICKR_LEASE", "20s")]);
    let id = tickr.enqueue_kind("sleep", json!({"ms": 600_000})).await;
    tickr.until(id, State::Executing).await;
    // One runner lives through the outage, and another one starts in it. Both find the suspended runner silent for
    // longer than its lease soon afterwards, and it had no time to send a heartbeat.
    slept.signal("STOP");
    tickr.services().mysql().pause().unwrap();
    let outage = async {
        tokio::time::sleep(Duration::from_secs(9)).await;
        let resumed = chrono::Utc::now().naive_utc();
        tickr.services().mysql().resume().unwrap();
        resumed
    };
    let (late, resumed) = tokio::join!(tickr.another(), outage);
    eventually_late(2 * DEADLINE, "the attempt is lost", || async { (tickr.count(LOST).await == 1).then_some(()) })
        .await;
    // A runner that knows of no outage judges when the lease is over, which is eleven seconds after this one, and a
    // runner that has just started after six tenths of a lease.
    let after_ms = "SELECT TIMESTAMPDIFF(MICROSECOND, ?, finished_at) DIV 1000 FROM attempts WHERE verdict = 'lost'";
    let after_ms: i64 = sqlx::query_scalar(after_ms).bind(resumed).fetch_one(&mut tickr.mysql().await).await.unwrap();
    println!("the suspended runner was judged {after_ms} ms after the outage");
    assert!(after_ms > 19_500, "{after_ms} ms");
    slept.signal("CONT");
    tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    tickr.until(id, State::Cancelled).await;
    assert_eq!(tickr.verdicts(id).await[0], "lost");
    late.stop(CancellationToken::new()).await;
    drop(slept);
    tickr.stop().await;
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Patient {}

impl Kind for Patient {
    const NAME: &'static str = "patient";
}

/// The lease of the runner of [`start_patient`]. A stall of the machine does not end it before MySQL is frozen.
const PATIENT_LEASE: Duration = Duration::from_secs(8);

/// Start a tickr and a second runner on servers of the test. The handler of the second runner waits until it is told to
/// stop, and says then when that was.
async fn start_patient() -> (TestApp, App, UnboundedReceiver<Instant>) {
    let tickr = TestApp::start_alone(|_| {}, short_lease).await;
    let (told, heard) = tokio::sync::mpsc::unbounded_channel();
    let mut own = Registry::new();
    own.register(move |_: Patient, ctx: Context| {
        let told = told.clone();
        async move {
            ctx.stopped().await;
            told.send(Instant::now()).unwrap();
            Err(Failure::retry("told to stop"))
        }
    });
    let runner = tickr.another_with(|config| config.lease = PATIENT_LEASE, own).await;
    (tickr, runner, heard)
}

/// Enqueue through a runner that has kinds of its own.
async fn enqueue_through(runner: &App, job: &Value) -> JobId {
    let draft = crate::support::draft(job);
    match runner.broker().enqueue(runner.broker().prepare(draft).unwrap()).await.unwrap() {
        Enqueued::Accepted(accepted) => accepted.id,
        taken => panic!("{taken:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_cannot_renew_stops_its_handlers_before_their_leases_end() {
    let (tickr, runner, mut heard) = start_patient().await;
    let id = enqueue_through(&runner, &json!({"kind": "patient"})).await;
    tickr.until(id, State::Executing).await;
    // Another server watches the machine: the one of the test is frozen.
    let (pulse, name, url) = Pulse::apart().await;
    tickr.services().mysql().pause().unwrap();
    let paused = Instant::now();
    let stopped = tokio::time::timeout(DEADLINE, heard.recv()).await.expect("it is told").unwrap();
    pulse.assert_watching();
    let after = pulse.time_between(paused, stopped);
    println!("told to stop {after:?} after the last chance to renew a lease of {PATIENT_LEASE:?}, beside stalls");
    assert!(after < PATIENT_LEASE, "{after:?} beside stalls of the machine");
    drop(pulse);
    drop_database(&url, &name).await;
    tickr.services().mysql().resume().unwrap();
    tickr.until_attempts(id, 1).await;
    assert_eq!(tickr.verdicts(id).await[0], "interrupted");
    runner.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_that_outlasts_a_lease_stops_its_handler_and_uses_no_attempt() {
    let tickr = TestApp::start_alone(|_| {}, support::bystander).await;
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let mut own = Registry::new();
    // The first execution waits until it is told to stop. The next one succeeds.
    let first = AtomicUsize::new(1);
    own.register(move |_: Patient, ctx: Context| {
        let told = told.clone();
        let waits = first.swap(0, Ordering::SeqCst) == 1;
        async move {
            if waits {
                ctx.stopped().await;
                told.send(Instant::now()).unwrap();
                return Err(Failure::retry("told to stop"));
            }
            Ok(().into())
        }
    });
    let lease = Duration::from_secs(5);
    let patient = |config: &mut Config| (config.queues, config.lease) = (vec!["default".into()], lease);
    let runner = tickr.another_with(patient, own).await;
    // No attempt but the last one may end without a success.
    let id = enqueue_through(&runner, &json!({"kind": "patient", "max_attempts": 1})).await;
    tickr.until(id, State::Executing).await;
    tickr.services().mysql().kill9().unwrap();
    tokio::time::timeout(DEADLINE, heard.recv()).await.expect("it is told").unwrap();
    tickr.services().mysql().start_again().unwrap();
    let job = tickr.until(id, State::Completed).await;
    assert_eq!(tickr.verdicts(id).await, ["interrupted", "succeeded"]);
    assert_eq!(
        (&job["attempt"], &job["attempts"][0]["error"]),
        (&json!(1), &json!("the lease could not be renewed in time")),
        "{job:#}"
    );
    runner.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_of_a_killed_runner_wait_for_its_lease_and_not_for_a_longer_one() {
    // This runner starts now, and would judge one with its own lease after 72 s.
    let long = |config: &mut Config| {
        (config.queues, config.lease) = (vec!["elsewhere".into()], Duration::from_secs(120));
    };
    let tickr = TestApp::start_with(long, Registry::new()).await;
    let mut killed = Runner::start(&tickr, &[("TICKR_WORKERS", "1"), ("TICKR_LEASE", "3s")]);
    let id = tickr.enqueue_kind("sleep", json!({"ms": 600_000})).await;
    tickr.until(id, State::Executing).await;
    killed.kill9();
    let since = Instant::now();
    // A stall of the machine makes the other runner wait for one more lease of three seconds.
    tickr.until_count("SELECT COUNT(*) > 0 FROM attempts WHERE verdict = 'lost'", 1).await;
    println!("the attempt of a runner with a lease of 3 s was lost after {:?}", since.elapsed());
    tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    tickr.until(id, State::Cancelled).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_leases_could_not_be_renewed_a_hundred_times_fails() {
    let (tickr, runner, mut heard) = start_patient().await;
    let later = json!({"kind": "patient", "delay_ms": 3_600_000});
    let id = enqueue_through(&runner, &later).await;
    // A hundred attempts before this one did not count, and this one is the only one that may.
    tickr.sql("UPDATE owed SET attempt = 100, spared = 100, max_attempts = 1").await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await.status, 200);
    tickr.until(id, State::Executing).await;
    tickr.services().mysql().pause().unwrap();
    tokio::time::timeout(DEADLINE, heard.recv()).await.expect("it is told").unwrap();
    tickr.services().mysql().resume().unwrap();
    let job = tickr.until(id, State::Failed).await;
    let last = job["attempts"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&last["number"], &last["verdict"], &last["error"]),
        (&json!(101), &json!("failed"), &json!("the lease could not be renewed in time")),
        "{job:#}"
    );
    runner.stop(CancellationToken::new()).await;
    tickr.stop_broken("the test made up the numbers of a hundred attempts").await;
}

/// A job that blocks a thread of its runner, which is a program of `tests/versions`. The tickr of the test only accepts
/// it.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Block {
    ms: u64,
}

impl Kind for Block {
    const NAME: &'static str = "block";
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_that_block_every_thread_for_many_leases_lose_none() {
    // To run it by hand: TICKR_BLOCK_MS=120000 cargo test --test suite handlers_that_block_every_thread
    let ms: u64 = std::env::var("TICKR_BLOCK_MS").ok().and_then(|ms| ms.parse().ok()).unwrap_or(6_000);
    let mut accepts = Registry::new();
    accepts.register(|_: Block, _: Context| async { Ok(().into()) });
    let tickr = TestApp::start_with(support::bystander, accepts).await;
    let env = [("TICKR_WORKERS", "32"), ("TICKR_LEASE", "2s")];
    let mut runner = Runner::start_program(&tickr, &example("version_old").await, &env);
    // One runner is silent, so the reaper searches the owed rows at every check.
    tickr
        .sql(
            "INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, started_at, heartbeat_at) \
             VALUES ('gone/1-abcdef', '0', '[]', '[]', 1, 600000, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) - INTERVAL 700 SECOND)",
        )
        .await;
    let threads = std::thread::available_parallelism().unwrap().get();
    let pulse = Pulse::start(&tickr).await;
    let mut turns = 0;
    loop {
        // One more job only waits. No thread is free to drive it, and only the heartbeat keeps its lease.
        let waiting = tickr.enqueue_kind("sleep", json!({"ms": ms / 2})).await;
        tickr.until(waiting, State::Executing).await;
        let began = Instant::now();
        let jobs = (0..threads).map(|_| json!({"kind": "block", "payload": {"ms": ms}}));
        let ids = tickr.enqueue_many(jobs).await;
        // The waiting job continues when the threads are free again.
        let longest = Duration::from_millis(ms * 3 / 2) + 2 * DEADLINE;
        while tickr.count("SELECT COUNT(*) FROM owed").await > 0 {
            assert!(began.elapsed() < longest, "{}", runner.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let mut verdicts = Vec::new();
        for id in ids.into_iter().chain([waiting]) {
            verdicts.extend(tickr.verdicts(id).await);
        }
        println!("{threads} threads blocked for {ms} ms under leases of 2 s: {verdicts:?}");
        if verdicts.iter().all(|verdict| verdict == "succeeded") && verdicts.len() == threads + 1 {
            break;
        }
        // Such leases end while the machine stands still, and nothing is proved.
        turns += 1;
        assert!(pulse.saw_outage(began) && turns < 5, "{verdicts:?}");
    }
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0), "{}", runner.log());
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_runners_share_a_flood_of_jobs_and_are_listed() {
    let tickr = TestApp::start_with(|config| config.workers = 3, Registry::new()).await;
    let mail = tickr
        .another_with(
            |config| (config.workers, config.queues) = (5, vec!["default".into(), "mail".into()]),
            Registry::new(),
        )
        .await;
    let third = tickr.another().await;
    eventually("all are whole", || async {
        let whole = [&tickr.app, &mail, &third].iter().all(|app| app.index().health().now() == Health::Fast);
        whole.then_some(())
    })
    .await;
    let (pulse, mut floods) = (Pulse::start(&tickr).await, 0);
    loop {
        let began = Instant::now();
        let since: chrono::NaiveDateTime =
            sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut tickr.mysql().await).await.unwrap();
        tickr
            .enqueue_many((0..400).map(|n| json!({"kind": "sleep", "payload": {"ms": 2}, "delay_ms": 500 + n % 400})))
            .await;
        tickr.until_idle().await;
        floods += 1;
        let shares = "SELECT runner, COUNT(*) FROM attempts WHERE started_at >= ? GROUP BY runner ORDER BY 2";
        let shares: Vec<(String, i64)> =
            sqlx::query_as(shares).bind(since).fetch_all(&mut tickr.mysql().await).await.unwrap();
        println!("{shares:?}");
        if shares.len() == 3 && shares[0].1 >= 25 {
            break;
        }
        // After the machine stood still, a runner may do without Redis for a while, and then others are quicker.
        assert!(pulse.saw_outage(began) && floods < 5, "{shares:?}");
    }
    tickr.assert_each_ran_once(400 * floods).await;

    let listed = tickr.get("/v1/runners").await.body["data"].clone();
    let line = |app: &tickr::app::App| {
        let id = app.runner().to_string();
        listed
            .as_array()
            .unwrap()
            .iter()
            .find(|line| line["id"] == id)
            .unwrap_or_else(|| panic!("{id} in {listed:#}"))
            .clone()
    };
    for (app, workers, queues) in
        [(&tickr.app, 3, json!(["default"])), (&mail, 5, json!(["default", "mail"])), (&third, 3, json!(["default"]))]
    {
        let line = line(app);
        assert_eq!(
            (&line["workers"], &line["queues"], &line["version"]),
            (&json!(workers), &queues, &json!(env!("CARGO_PKG_VERSION")))
        );
        assert!(line["kinds"].as_array().unwrap().contains(&json!("sleep")), "{line:#}");
        assert!(line["busy_workers"].as_u64().unwrap() <= workers, "{line:#}");
        let age = line["heartbeat_age_ms"].as_i64().unwrap();
        // A heartbeat comes every five seconds.
        assert!((0..20_000).contains(&age), "{line:#}");
        assert_eq!(line["stopped_at"], Value::Null);
    }
    mail.stop(CancellationToken::new()).await;
    third.stop(CancellationToken::new()).await;
    tickr.stop().await;
}
