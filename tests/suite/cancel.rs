//! The answer to a cancel is what happens (G9): after 200 the job never starts (again), 202 means that it was asked to
//! stop, 409 that it was over already.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::Row;
use tickr::app::App;
use tickr::config::Config;
use tickr::handlers::{Context, Failure, Kind, Registry};
use tickr::job::{Actor, JobId, State};
use tickr::store::{ActionOutcome, StoreError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{Pulse, TestApp, draft, eventually, http};

/// Sleeps a little, or fails at first, and records every start.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
struct Noted {
    ms: u64,
    fail_first: bool,
}

impl Kind for Noted {
    const NAME: &'static str = "noted";
}

/// Job and token of each start, from all runners.
type Starts = Arc<Mutex<Vec<(JobId, Uuid)>>>;

fn noted(starts: &Starts) -> Registry {
    let starts = Arc::clone(starts);
    let mut own = Registry::new();
    own.register(move |job: Noted, ctx: Context| {
        starts.lock().unwrap().push((ctx.job_id(), ctx.token().uuid()));
        async move {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(job.ms)) => {}
                () = ctx.stopped() => return Err(Failure::retry("told to stop")),
            }
            if job.fail_first && ctx.attempt() == 1 { Err(Failure::retry("at first")) } else { Ok(().into()) }
        }
    });
    own
}

/// End of one job of the race, as the tables hold it.
#[derive(Debug, Default)]
struct Ended {
    state: String,
    /// Verdicts of the attempts whose handlers were started.
    executed: Vec<String>,
    /// Whether a cancel came between the claim of the last attempt and the start of its handler.
    unstarted: bool,
    /// Whether its last row in the ledger closes a job that was cancelled while it waited.
    closed: bool,
    /// Whether its last row in the ledger says that a cancel was requested.
    asked: bool,
}

async fn ends(tickr: &TestApp) -> HashMap<JobId, Ended> {
    let lines = sqlx::query(
        "SELECT job_id, runner, verdict, end_state, cancel_requested_at IS NOT NULL, error FROM attempts \
         ORDER BY job_id, number",
    );
    let mut ends = HashMap::<JobId, Ended>::new();
    for line in lines.fetch_all(&mut tickr.mysql().await).await.unwrap() {
        let end = ends.entry(JobId::from_uuid(line.get(0))).or_default();
        assert_eq!(end.state, "", "nothing follows an end");
        let error = line.get::<Option<String>, _>(5).unwrap_or_default();
        if line.get::<String, _>(1).is_empty() {
            end.closed = true;
        } else if error == "it was told to stop before its handler started" {
            end.unstarted = true;
        } else if !error.ends_with("no handler was started") {
            end.executed.push(line.get(2));
        }
        end.state = line.get::<Option<String>, _>(3).unwrap_or_default();
        end.asked = line.get(4);
    }
    ends
}

#[tokio::test(flavor = "multi_thread")]
async fn cancels_that_race_start_or_finish_keep_what_they_answered() {
    race_cancels(1_000).await;
}

#[ignore = "takes half a minute; the suite has a smaller one"]
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_cancels_that_race_start_or_finish_keep_what_they_answered() {
    race_cancels(10_000).await;
}

/// Cancel at least as many jobs at any moment of their lives, and compare each answer with the ledger.
async fn race_cancels(jobs: usize) {
    let starts = Starts::default();
    let size = |config: &mut Config| {
        (config.workers, config.mysql_connections, config.lease) = (32, 40, Duration::from_secs(30));
    };
    let tickr = TestApp::start_with(size, noted(&starts)).await;
    let other = tickr.another_with(|_| {}, noted(&starts)).await;
    let runners: [&App; 2] = [&tickr.app, &other];
    let client = http();
    let began = Instant::now();
    // Each turn enqueues a small batch through one runner. Then it cancels each of the jobs through any runner, while
    // they start, run, fail, start again and end.
    let turn = async |enqueued_by: usize| {
        let jobs: Vec<_> = (0..20)
            .map(|_| {
                let noted = Noted { ms: rand::random_range(0..4), fail_first: rand::random_ratio(1, 4) };
                let delay = [None, Some(1), Some(3), Some(6)][rand::random_range(0..4)];
                let mut draft = draft(&json!({"kind": "noted", "payload": noted, "delay_ms": delay}));
                draft.retry = serde_json::from_value(json!({"base_ms": 1, "factor": 1.0, "cap_ms": 1})).unwrap();
                runners[0].broker().prepare(draft).unwrap()
            })
            .collect();
        let accepted = runners[enqueued_by].broker().enqueue_all(jobs).await.unwrap();
        let cancels = accepted.into_iter().map(async |receipt| {
            tokio::time::sleep(Duration::from_micros(rand::random_range(0..20_000))).await;
            let through = runners[rand::random_range(0..2)];
            if rand::random_ratio(3, 4) {
                // Without HTTP the call is faster, and the answer is the same.
                let moved = eventually("an answer that is not to come back", || async {
                    match through.broker().cancel(receipt.id, &Actor::tickr()).await {
                        // On a slow machine some find no connection in time. Nothing was done then.
                        Err(StoreError::Unavailable { .. }) => None,
                        answer => Some(answer.unwrap()),
                    }
                });
                return match moved.await {
                    ActionOutcome::Done(_) => (receipt.id, 200, String::new()),
                    ActionOutcome::StopRequested => (receipt.id, 202, String::new()),
                    ActionOutcome::Refused(state) => (receipt.id, 409, state.to_string()),
                    unexpected => panic!("{unexpected:?}"),
                };
            }
            let url = format!("http://{}/v1/jobs/{}/cancel", through.addr(), receipt.id);
            let response = eventually("an answer that is not to come back", || async {
                let response = client.post(&url).send().await.unwrap();
                (response.status() != 503).then_some(response)
            });
            let response = response.await;
            let status = response.status().as_u16();
            let problem = response.json::<serde_json::Value>().await.unwrap();
            (receipt.id, status, problem["current_state"].as_str().unwrap_or("").to_owned())
        });
        futures_util::future::join_all(cancels).await
    };
    let lanes = (0..8).map(async |lane| {
        let mut answers = Vec::new();
        for _ in 0..jobs / 20 / 8 + 1 {
            answers.extend(turn(lane % 2).await);
        }
        answers
    });
    let answers = futures_util::future::join_all(lanes).await.concat();
    assert!(answers.len() >= jobs);
    println!("{} cancels in {:?}", answers.len(), began.elapsed());
    tickr.until_idle().await;

    let ends = ends(&tickr).await;
    let mut started = HashMap::<JobId, usize>::new();
    let log = starts.lock().unwrap().clone();
    for (id, _) in &log {
        *started.entry(*id).or_default() += 1;
    }
    assert_eq!(log.iter().collect::<HashSet<_>>().len(), log.len(), "no token starts twice");
    let mut tally = BTreeMap::<String, usize>::new();
    for (id, status, current) in &answers {
        let end = &ends[id];
        let starts = started.get(id).copied().unwrap_or_default();
        let said = format!("{id} was answered {status} {current:?}, started {starts} times and is {end:?}");
        // Every start has a row in the ledger, and every other row says that its handler was not started.
        assert_eq!(starts, end.executed.len(), "{said}");
        match status {
            // It waited, and it did not start after the cancel. Earlier attempts come before.
            200 => {
                assert!(end.closed && end.state == "cancelled", "{said}");
                assert!(end.executed.iter().all(|verdict| verdict == "failed"), "{said}");
            }
            // It ran. The attempt that was asked to stop is its last one.
            202 => {
                assert!(!end.closed && end.asked, "{said}");
                let before = if end.unstarted { end.executed.len() } else { end.executed.len() - 1 };
                let (before, last) = end.executed.split_at(before);
                assert!(before.iter().all(|verdict| verdict == "failed"), "{said}");
                let state = if last == ["succeeded"] { "completed" } else { "cancelled" };
                assert_eq!(end.state, state, "{said}");
            }
            // It was over already, and stays so.
            409 => assert_eq!((&end.state, current.as_str()), (current, "completed"), "{said}"),
            _ => panic!("{said}"),
        }
        *tally.entry(format!("{status} {}", end.state)).or_default() += 1;
    }
    println!("{tally:?}");
    for seen in ["200 cancelled", "202 cancelled", "202 completed", "409 completed"] {
        assert!(tally.get(seen).is_some_and(|count| *count > jobs / 500), "hardly any {seen}: {tally:?}");
    }
    tickr.assert_sound().await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

/// Runs until it is asked to stop, and records the time of that.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
struct Patient {}

impl Kind for Patient {
    const NAME: &'static str = "patient";
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_handler_sees_a_cancel_through_another_runner_within_two_seconds() {
    let told = Arc::<Mutex<HashMap<JobId, Instant>>>::default();
    let mut own = Registry::new();
    own.register({
        let told = Arc::clone(&told);
        move |_: Patient, ctx: Context| {
            let told = Arc::clone(&told);
            async move {
                ctx.stopped().await;
                told.lock().unwrap().insert(ctx.job_id(), Instant::now());
                Err(Failure::retry("told to stop"))
            }
        }
    });
    let tickr = TestApp::start_with(|config| (config.workers, config.lease) = (32, Duration::from_secs(30)), own).await;
    let other = tickr.another_with(|config| config.queues = vec!["elsewhere".into()], Registry::new()).await;
    let ids = tickr.enqueue_many((0..20).map(|_| json!({"kind": "patient"}))).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 20).await;
    let (client, pulse) = (http(), Pulse::start(&tickr).await);
    // The cancels come at random moments between two heartbeats.
    let asked = futures_util::future::join_all(ids.iter().map(async |id| {
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..1_500))).await;
        let asked = Instant::now();
        let answer = client.post(format!("http://{}/v1/jobs/{id}/cancel", other.addr())).send().await.unwrap();
        assert_eq!(answer.status(), 202);
        asked
    }))
    .await;
    tickr.until_idle().await;
    let told = told.lock().unwrap().clone();
    let mut took: Vec<Duration> =
        ids.iter().zip(&asked).map(|(id, asked)| pulse.time_between(*asked, told[id])).collect();
    took.sort_unstable();
    println!("a handler sees a cancel through another runner after {:?} (median), {:?} (most)", took[10], took[19]);
    assert!(took[19] < Duration::from_secs(2), "{took:?}");
    assert_eq!(
        tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'cancelled' AND end_state = 'cancelled'").await,
        20
    );
    tickr.assert_sound().await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_unless_executing_leaves_an_attempt_alone_and_still_ends_a_job_that_waits() {
    let tickr = TestApp::start().await;
    let cancel = async |id: JobId| tickr.post(&format!("/v1/jobs/{id}/cancel?unless=executing"), json!({})).await;
    let runs = tickr.enqueue_kind("sleep", json!({"ms": 1_500})).await;
    tickr.until(runs, State::Executing).await;
    let refused = cancel(runs).await;
    assert_eq!((refused.status, refused.code()), (409, "wrong_state"), "{:#}", refused.body);
    assert_eq!(refused.body["current_state"], "executing");
    let job = tickr.until(runs, State::Completed).await;
    assert_eq!(job["cancel_requested_at"], json!(null));
    // It is over, and a later cancel does not change that.
    assert_eq!(cancel(runs).await.body["current_state"], "completed");

    let waits = tickr.enqueue(json!({"kind": "noop", "delay_ms": 600_000})).await;
    let ended = cancel(waits).await;
    assert_eq!((ended.status, &ended.body["state"]), (200, &json!("cancelled")));
    let retries = tickr.enqueue(json!({"kind": "fail", "retry": {"delays_ms": [600_000]}})).await;
    tickr.until(retries, State::Retrying).await;
    assert_eq!((cancel(retries).await.status, cancel(retries).await.status), (200, 409));
    assert_eq!(
        (tickr.job(retries).await["state"].clone(), tickr.verdicts(retries).await),
        (json!("cancelled"), vec!["failed".to_owned()])
    );
    let wrong = tickr.post(&format!("/v1/jobs/{waits}/cancel?unless=waiting"), json!({})).await;
    assert_eq!((wrong.status, wrong.code(), wrong.pointers()), (422, "invalid_request", vec!["unless"]));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM audit WHERE action = 'job.cancel'").await, 2);
    tickr.stop().await;
}

/// Both sides of the race: a job that starts at the moment at which a client asks.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_unless_executing_that_races_the_start_either_prevents_it_or_does_nothing() {
    let starts = Starts::default();
    let tickr = TestApp::start_with(|_| {}, noted(&starts)).await;
    let client = http();
    let mut tally: BTreeMap<u16, usize> = BTreeMap::new();
    for _ in 0..12 {
        let delays = (0..20).map(|_| rand::random_range(0..8));
        let jobs = delays.map(|ms| json!({"kind": "noted", "payload": {"ms": 2, "fail_first": false}, "delay_ms": ms}));
        let ids = tickr.enqueue_many(jobs).await;
        let asked = ids.iter().map(async |id| {
            tokio::time::sleep(Duration::from_millis(rand::random_range(0..8))).await;
            let url = tickr.url(&format!("/v1/jobs/{id}/cancel?unless=executing"));
            (*id, client.post(url).send().await.unwrap().status().as_u16())
        });
        let answers = futures_util::future::join_all(asked).await;
        tickr.until_idle().await;
        let started: HashSet<JobId> = starts.lock().unwrap().iter().map(|(id, _)| *id).collect();
        for (id, status) in answers {
            assert_eq!(status == 409, started.contains(&id), "{id}: {status}");
            *tally.entry(status).or_default() += 1;
        }
    }
    println!("{tally:?}");
    assert!([200, 409].iter().all(|status| tally.get(status).is_some_and(|count| *count > 10)), "{tally:?}");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict NOT IN ('succeeded', 'cancelled')").await, 0);
    tickr.stop().await;
}
