//! Jobs that were claimed ahead of the workers, when operators, limits, stops and faults come before their start.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::{Connection, Executor};
use tickr::app::App;
use tickr::broker::OperatorSettings;
use tickr::config::Config;
use tickr::handlers::{Context, Failure, Kind, Output, Registry};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::{DEADLINE, Runner, TestApp, bystander, call, eventually, http};

const WORKERS: usize = 8;
/// Seats of such a runner beyond its workers, at most.
const AHEAD: usize = 32;
/// Jobs that end at once. A runner has learned from far fewer of them that it may claim ahead.
const SHORT: usize = 500;
/// Jobs behind those that hold the workers. Those that go to the end of the line start later than a test allows.
const BEHIND: usize = 400;
const CLAIMED: &str = "SELECT COUNT(*) > 0 FROM owed WHERE state = 'executing'";
const EXECUTING: &str = "SELECT COUNT(*) FROM owed WHERE state = 'executing'";
const LOST: &str = "SELECT COUNT(*) FROM attempts WHERE verdict = 'lost'";

/// A job that notes its start and ends at once, or that runs until the test lets it end.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
struct Step {
    n: usize,
    hold: bool,
}

impl Kind for Step {
    const NAME: &'static str = "step";
}

/// The handlers of a test.
#[derive(Default)]
struct Steps {
    /// The numbers of the jobs, in the order of their starts.
    started: Mutex<Vec<usize>>,
    open: CancellationToken,
    run: AtomicUsize,
    most: AtomicUsize,
}

impl Steps {
    fn registry(self: &Arc<Self>) -> Registry {
        let (mut registry, steps) = (Registry::new(), Arc::clone(self));
        registry.register(move |step: Step, context: Context| {
            let steps = Arc::clone(&steps);
            async move {
                steps.started.lock().unwrap().push(step.n);
                steps.most.fetch_max(steps.run.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let ended = if step.hold {
                    tokio::select! {
                        () = steps.open.cancelled() => Ok(Output::default()),
                        () = context.stopped() => Err(Failure::retry("told to stop")),
                    }
                } else {
                    Ok(Output::default())
                };
                steps.run.fetch_sub(1, Ordering::SeqCst);
                ended
            }
        });
        registry
    }

    fn started(&self) -> Vec<usize> {
        self.started.lock().unwrap().clone()
    }
}

fn step(n: usize, hold: bool) -> Value {
    json!({"kind": "step", "payload": {"n": n, "hold": hold}})
}

/// Let a job hold each worker while others are claimed ahead, until they are undone, and then end. Check that the next
/// jobs to start are those at the head of the line.
async fn undo_and_go_on(last_attempt: bool) {
    let steps = Arc::<Steps>::default();
    let tickr = TestApp::start_with(|config| config.workers = WORKERS, steps.registry()).await;
    let short = (0..SHORT).map(|n| step(n, false));
    let holding = (SHORT..SHORT + WORKERS).map(|n| step(n, true));
    let first = SHORT + WORKERS;
    let behind = (first..first + BEHIND).map(|n| {
        let mut job = step(n, false);
        if last_attempt {
            job["max_attempts"] = json!(1);
        }
        job
    });
    tickr.enqueue_many(short.chain(holding).chain(behind)).await;
    eventually("the workers are held", || async { (steps.run.load(Ordering::SeqCst) == WORKERS).then_some(()) }).await;
    // Longer than the patience of a job that was claimed ahead.
    tokio::time::sleep(Duration::from_millis(900)).await;
    tickr.until_count(EXECUTING, WORKERS as i64).await;
    let before = steps.started().len();
    steps.open.cancel();
    tickr.until_idle().await;
    let order = steps.started()[before..].to_vec();
    let place = |n: usize| order.iter().position(|started| *started == n);
    // Those that the runner had claimed or taken are the ones that come first in the line.
    let latest = (first..first + AHEAD).filter_map(place).max();
    println!("of {} jobs, the first {AHEAD} of the line started at places up to {latest:?}", order.len());
    assert!(latest.is_none_or(|latest| latest < 3 * AHEAD), "{latest:?}");
    tickr.assert_each_ran_once((SHORT + WORKERS + BEHIND) as i64).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_whose_claim_was_undone_are_the_next_to_start() {
    undo_and_go_on(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_on_their_last_attempt_that_found_no_worker_are_the_next_to_start() {
    undo_and_go_on(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_was_frozen_starts_no_job_whose_lease_is_over() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let mut holder = tickr.mysql().await;
    if !tickr.ends_silent_transactions().await {
        // The freeze may hit a transaction that locks one of the jobs.
        tickr.stop().await;
        return;
    }
    let mut frozen = Runner::start(&tickr, &[("TICKR_WORKERS", "8")]);
    frozen.base().await;
    loop {
        // The last statements of its claim wait for this lock, and are carried out when it cannot read the answer.
        let mut held = holder.begin().await.unwrap();
        held.execute("SELECT * FROM claim_batches FOR UPDATE").await.unwrap();
        tickr.enqueue_many((0..8).map(|_| json!({"kind": "noop"}))).await;
        tickr.until_said("INSERT INTO claim_batches", 1).await;
        frozen.signal("STOP");
        held.rollback().await.unwrap();
        let claimed = tokio::time::timeout(Duration::from_secs(5), tickr.until_count(CLAIMED, 1)).await;
        if claimed.is_ok() {
            break;
        }
        // The freeze came before the runner had sent the end of its claim. MySQL rolls that back.
        frozen.signal("CONT");
        tickr.until_idle().await;
    }
    tickr.until_count("SELECT COUNT(*) > 0 FROM attempts WHERE verdict = 'lost'", 1).await;
    tickr.until_count(EXECUTING, 0).await;
    let thawed: String =
        sqlx::query_scalar("SELECT CAST(UTC_TIMESTAMP(6) AS CHAR)").fetch_one(&mut holder).await.unwrap();
    frozen.signal("CONT");
    // It runs the next attempts of the jobs, and writes all that it knows of the lost ones before it ends.
    tickr.until_idle().await;
    frozen.signal("TERM");
    assert_eq!(frozen.exit_code().await, Some(0), "{}", frozen.log());
    // A busy machine may lose a later attempt, too, while its handler runs.
    let ran = format!(
        "SELECT COUNT(*) FROM attempts WHERE verdict = 'lost' AND finished_at <= '{thawed}' AND late_note NOT LIKE 'interrupted%'"
    );
    assert_eq!(tickr.count(ran).await, 0, "{}", frozen.log());
    tickr.stop().await;
}

/// Wait until this process knows the setting.
async fn heard(app: &App, what: impl Fn(&OperatorSettings) -> bool) {
    let mut settings = app.operator_settings().listen();
    tokio::time::timeout(DEADLINE, settings.wait_for(|settings| what(settings))).await.unwrap().unwrap();
}

/// Start a runner, and lock the tallies, so that no verdict is written. When so many verdicts wait that the workers wait
/// too, and jobs are claimed ahead, do `act` and unlock the tallies. Return how many of the jobs that were claimed
/// before the act have started after it.
async fn started_after(act: impl AsyncFnOnce(&TestApp)) -> (TestApp, i64) {
    let steps = Arc::<Steps>::default();
    let size = |config: &mut Config| (config.workers, config.lease) = (WORKERS, Duration::from_secs(30));
    let tickr = TestApp::start_with(size, steps.registry()).await;
    tickr.enqueue_many((0..SHORT).map(|n| step(n, false))).await;
    tickr.until_idle().await;
    let mut holder = tickr.mysql().await;
    let mut held = holder.begin().await.unwrap();
    held.execute("SELECT * FROM tallies FOR UPDATE").await.unwrap();
    tickr.enqueue_many((SHORT..SHORT + BEHIND).map(|n| step(n, false))).await;
    // The verdicts on their way, those that wait in the workers, and the claims ahead.
    let all = "SELECT COUNT(*) >= 64 + 8 + 16 FROM owed WHERE state = 'executing'";
    tickr.until_count(all, 1).await;
    act(&tickr).await;
    let before = steps.started().len();
    let mut mysql = tickr.mysql().await;
    let acted: chrono::NaiveDateTime =
        sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut mysql).await.unwrap();
    held.rollback().await.unwrap();
    let claimed_before = async |sql: &'static str| {
        sqlx::query_scalar::<_, i64>(sql).bind(acted).fetch_one(&mut tickr.mysql().await).await.unwrap()
    };
    eventually("what was claimed before is over", || async {
        let open = claimed_before("SELECT COUNT(*) FROM owed WHERE state = 'executing' AND started_at < ?").await;
        (open == 0).then_some(())
    })
    .await;
    let begun = claimed_before("SELECT COUNT(*) FROM attempts WHERE started_at < ?").await;
    (tickr, begun - i64::try_from(before).unwrap())
}

async fn ask(tickr: &TestApp, method: Method, path: &str, body: Value) {
    let answer = call(&tickr.url(""), method, path, "", Some(body)).await;
    assert_eq!(answer.status, 200, "{:#}", answer.body);
}

async fn all_run_once(tickr: TestApp) {
    tickr.until_idle().await;
    tickr.assert_each_ran_once((SHORT + BEHIND) as i64).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_holds_for_jobs_that_were_claimed_ahead() {
    let (tickr, started) = started_after(async |tickr| {
        ask(tickr, Method::POST, "/v1/queues/default/pause", json!({})).await;
        heard(&tickr.app, |settings| settings.queues.values().any(|set| set.pause.is_some())).await;
    })
    .await;
    assert_eq!(started, 0, "jobs of a paused queue started");
    tickr.until_count(EXECUTING, 0).await;
    ask(&tickr, Method::POST, "/v1/queues/default/resume", json!({})).await;
    all_run_once(tickr).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_holds_for_jobs_that_were_claimed_ahead() {
    let (tickr, started) = started_after(async |tickr| {
        let runner = tickr.app.runner().to_string().replace('/', "%2F");
        ask(tickr, Method::POST, &format!("/v1/runners/{runner}/drain"), json!({})).await;
        heard(&tickr.app, |settings| settings.drained).await;
    })
    .await;
    assert_eq!(started, 0, "a drained runner started jobs");
    tickr.until_count(EXECUTING, 0).await;
    let runner = tickr.app.runner().to_string().replace('/', "%2F");
    ask(&tickr, Method::POST, &format!("/v1/runners/{runner}/resume"), json!({})).await;
    all_run_once(tickr).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_holds_for_jobs_that_were_claimed_ahead_of_it() {
    let (tickr, started) = started_after(async |tickr| {
        ask(tickr, Method::PATCH, "/v1/queues/default", json!({"concurrency": 1})).await;
        // The permits in use are those of all claimed jobs.
        tickr.until_count("SELECT COUNT(*) FROM queue_permits WHERE queue = 'default' AND permits > 80", 1).await;
    })
    .await;
    assert_eq!(started, 0, "jobs started beyond the limit");
    all_run_once(tickr).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hurried_stop_starts_nothing_of_what_was_claimed_ahead_and_burns_no_attempt() {
    let tickr = TestApp::start_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
    let mut mysql = tickr.mysql().await;
    // For half a second, jobs are ahead of the workers, which are all held. A busy machine may miss that, and tries again
    // with another runner.
    let mut tries = 0..5;
    let (steps, runner) = loop {
        let number = tries.next().expect("no jobs are ahead");
        let (steps, queue) = (Arc::<Steps>::default(), format!("try-{number}"));
        let patient = |config: &mut Config| {
            (config.workers, config.queues) = (WORKERS, vec![queue.clone()]);
            config.shutdown_grace = Duration::from_secs(600);
        };
        let runner = tickr.another_with(patient, steps.registry()).await;
        let jobs = (0..1_000).map(|n| step(n, false)).chain((1_000..1_200).map(|n| step(n, true)));
        let broker = runner.broker();
        let in_queue = |mut job: Value| {
            job["queue"] = json!(queue);
            broker.prepare(crate::support::draft(&job)).unwrap()
        };
        broker.enqueue_all(jobs.map(in_queue).collect()).await.unwrap();
        let began = Instant::now();
        let are_ahead = loop {
            let executing: i64 = sqlx::query_scalar(EXECUTING).fetch_one(&mut mysql).await.unwrap();
            if steps.run.load(Ordering::SeqCst) == WORKERS && executing > 8 + 16 {
                break true;
            }
            if began.elapsed() > DEADLINE / 4 {
                break false;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        if are_ahead {
            break (steps, runner);
        }
        let hurry = CancellationToken::new();
        hurry.cancel();
        runner.stop(hurry).await;
    };
    let before = steps.started().len();
    let (hurry, began) = (CancellationToken::new(), Instant::now());
    hurry.cancel();
    let stopped = runner.stop(hurry).await;
    println!("gave {} jobs back in {:?}", stopped.given_back, began.elapsed());
    assert_eq!(stopped.abandoned, 0);
    assert_eq!(steps.started().len(), before, "a job started after the stop");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE attempt > spared").await, 0);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE state <> 'waiting'").await, 0);
    tickr.stop_broken("no runner has the kind of its jobs").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a freeze of 40 s, to be run by hand"]
async fn a_freeze_of_mysql_under_load_loses_no_job_on_its_last_attempt() {
    let seconds: u64 = std::env::var("TICKR_FREEZE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(40);
    let lease = std::env::var("TICKR_FREEZE_LEASE").unwrap_or("30s".into());
    let attempts: u64 = std::env::var("TICKR_FREEZE_ATTEMPTS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let tickr = TestApp::start_alone(|_| {}, bystander).await;
    let env = [("TICKR_WORKERS", "64"), ("TICKR_LEASE", lease.as_str()), ("TICKR_MYSQL_CONNECTIONS", "16")];
    let mut runner = Runner::start(&tickr, &env);
    let base = runner.base().await;
    let over = CancellationToken::new();
    let accepted = Arc::new(Mutex::new(Vec::<String>::new()));
    let callers: Vec<_> = (0..16)
        .map(|_| {
            let (over, base, accepted) = (over.clone(), base.clone(), Arc::clone(&accepted));
            tokio::spawn(async move {
                let client = http();
                while !over.is_cancelled() {
                    let job = json!({"kind": "noop", "max_attempts": attempts});
                    let Ok(sent) = client.post(format!("{base}/v1/jobs")).json(&job).send().await else { continue };
                    if sent.status() == 201 {
                        let id = sent.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned();
                        accepted.lock().unwrap().push(id);
                    } else {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(4)).await;
    tickr.services().mysql().pause().unwrap();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    tickr.services().mysql().resume().unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    over.cancel();
    for caller in callers {
        caller.await.unwrap();
    }
    let began = Instant::now();
    while tickr.count("SELECT COUNT(*) FROM owed").await > 0 {
        assert!(began.elapsed() < Duration::from_secs(120), "{}", runner.log());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let rows: Vec<(String, String, i64)> =
        sqlx::query_as("SELECT verdict, COALESCE(end_state, ''), COUNT(*) FROM attempts GROUP BY verdict, end_state")
            .fetch_all(&mut tickr.mysql().await)
            .await
            .unwrap();
    println!("{} accepted, ended after {:?}: {rows:?}", accepted.lock().unwrap().len(), began.elapsed());
    assert_eq!(tickr.count(LOST).await, 0);
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0), "{}", runner.log());
    tickr.stop().await;
}
