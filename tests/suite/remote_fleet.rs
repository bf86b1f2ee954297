//! Fleets of remote workers while tickr processes die and are replaced, and while answers are lost.
//!
//! The small sizes run with the suite, the whole ones with `make test-long ARGS=remote_fleet::`.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::Row as _;
use tickr::handlers::Registry;
use tickr::job::JobId;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{Pulse, Runner, SHORT_LEASE, TestApp, eventually_seen};

/// What the workers of a fleet share.
struct Fleet {
    /// The URLs of the processes that live.
    urls: RwLock<Vec<String>>,
    http: reqwest::Client,
    stop: CancellationToken,
    /// How many times each job was executed to its end.
    executed: Mutex<BTreeMap<String, usize>>,
    settled: AtomicUsize,
    /// Answers that every worker may still lose, and the share of answers that it loses.
    to_lose: AtomicUsize,
    losing: f64,
    /// When the answer with a job was lost, and for each job that came again when it was lost and when it came.
    lost_at: Mutex<HashMap<String, Instant>>,
    came_again: Mutex<Vec<(Instant, Instant)>>,
}

impl Fleet {
    fn new(urls: Vec<String>, to_lose: usize) -> Arc<Self> {
        Arc::new(Self {
            urls: RwLock::new(urls),
            http: reqwest::Client::builder().no_proxy().connect_timeout(Duration::from_secs(2)).build().unwrap(),
            stop: CancellationToken::new(),
            executed: Mutex::default(),
            settled: AtomicUsize::new(0),
            to_lose: AtomicUsize::new(to_lose),
            losing: if to_lose > 0 { 0.5 } else { 0.0 },
            lost_at: Mutex::default(),
            came_again: Mutex::default(),
        })
    }

    /// Send one call to any process until it is answered with 2xx or 404. A client of the specification does the same.
    async fn call(&self, path: &str, body: &Value) -> Option<Value> {
        loop {
            let url = {
                let urls = self.urls.read().unwrap();
                urls[rand::random_range(0..urls.len())].clone()
            };
            let sent = self.http.post(format!("{url}{path}")).json(body).timeout(Duration::from_secs(20)).send().await;
            if let Ok(answer) = sent {
                if answer.status().as_u16() == 404 {
                    return None;
                }
                if answer.status().is_success()
                    && let Ok(body) = answer.json().await
                {
                    return Some(body);
                }
            }
            tokio::time::sleep(Duration::from_millis(rand::random_range(20..200))).await;
        }
    }

    /// Decide whether an answer with these jobs is lost, and note it.
    fn loses(&self, jobs: &[Value]) -> bool {
        if jobs.is_empty() || !rand::random_bool(self.losing) {
            return false;
        }
        let lost = self.to_lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if lost {
            let mut lost_at = self.lost_at.lock().unwrap();
            for job in jobs {
                lost_at.entry(job["id"].as_str().unwrap().to_owned()).or_insert_with(Instant::now);
            }
        }
        lost
    }

    fn note_arrival(&self, jobs: &[Value]) {
        let mut lost_at = self.lost_at.lock().unwrap();
        let again = jobs.iter().filter_map(|job| lost_at.remove(job["id"].as_str().unwrap()));
        self.came_again.lock().unwrap().extend(again.map(|lost| (lost, Instant::now())));
    }
}

/// One worker: it fetches, executes for this long, beats and finishes until the fleet stops.
async fn work(fleet: Arc<Fleet>, slots: usize, runs: std::ops::Range<u64>) {
    // No answer hands out what was claimed a quarter of a lease ago, and the machine may stand still for seconds.
    let register =
        json!({"name": "fleet", "kinds": ["resize"], "queues": ["pictures"], "slots": slots, "lease_ms": 60_000});
    let register = async || {
        let made = fleet.call("/v1/workers", &register).await.unwrap();
        made["id"].as_str().unwrap().to_owned()
    };
    let mut id = register().await;
    let mut beaten = Instant::now();
    while !fleet.stop.is_cancelled() {
        let mut fetch = json!({"slots": slots, "wait_ms": 1_000, "holding": [], "fetch_id": Uuid::now_v7()});
        let jobs = loop {
            let Some(fetched) = fleet.call(&format!("/v1/workers/{id}/fetch"), &fetch).await else {
                id = register().await;
                break Vec::new();
            };
            let jobs = fetched["jobs"].as_array().unwrap().clone();
            if !fleet.loses(&jobs) {
                break jobs;
            }
            // Half of the workers repeat the request, as the specification says. The others send a new one, which does not
            // list what was lost.
            if rand::random_bool(0.5) {
                fetch["fetch_id"] = json!(Uuid::now_v7());
            }
        };
        fleet.note_arrival(&jobs);
        if beaten.elapsed() > Duration::from_secs(3) {
            let holding: Vec<Value> = jobs.iter().map(|job| json!({"token": job["token"]})).collect();
            fleet.call(&format!("/v1/workers/{id}/beat"), &json!({"holding": holding})).await;
            beaten = Instant::now();
        }
        if jobs.is_empty() {
            continue;
        }
        // The work of the handlers.
        tokio::time::sleep(Duration::from_millis(rand::random_range(runs.clone()))).await;
        for job in &jobs {
            *fleet.executed.lock().unwrap().entry(job["id"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        let verdicts: Vec<Value> =
            jobs.iter().map(|job| json!({"token": job["token"], "verdict": "succeeded"})).collect();
        let finish = json!({"verdicts": verdicts});
        let finished = loop {
            let finished = fleet.call(&format!("/v1/workers/{id}/finish"), &finish).await.unwrap();
            // A process that was replaced or killed may keep a row locked for a moment.
            if finished["results"].as_array().unwrap().iter().all(|result| result["result"] != "locked") {
                break finished;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        let settled = finished["results"].as_array().unwrap().iter().filter(|result| result["result"] == "settled");
        fleet.settled.fetch_add(settled.count(), Ordering::SeqCst);
    }
}

async fn started() -> TestApp {
    let tickr = TestApp::start_with(|config| (config.workers, config.lease) = (0, SHORT_LEASE), Registry::new()).await;
    let declared = tickr.put("/v1/kinds/resize", json!({"queue": "pictures"})).await;
    assert_eq!(declared.status, 201, "{:#}", declared.body);
    tickr
}

async fn until_settled(fleet: &Fleet, jobs: usize) {
    let mut last = (0, Instant::now());
    // The deadline is for progress, because the whole size takes minutes.
    while fleet.settled.load(Ordering::SeqCst) < jobs {
        let settled = fleet.settled.load(Ordering::SeqCst);
        if settled > last.0 {
            last = (settled, Instant::now());
        }
        assert!(last.1.elapsed() < Duration::from_secs(60), "{settled} of {jobs} jobs are settled, and no more");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Return the number of attempts by verdict.
async fn verdicts(tickr: &TestApp) -> BTreeMap<String, i64> {
    let sql = "SELECT CAST(verdict AS CHAR) AS verdict, COUNT(*) AS attempts FROM attempts GROUP BY verdict";
    let rows = sqlx::query(sql).fetch_all(&mut tickr.mysql().await).await.unwrap();
    rows.iter().map(|row| (row.get("verdict"), row.get("attempts"))).collect()
}

/// Kill a process of three without warning and replace it, then replace all of them in turn, under this many workers.
async fn replace_all_under(workers: usize, jobs: usize, restarts: usize) {
    let tickr = started().await;
    let env = [("TICKR_WORKERS", "0"), ("TICKR_SHUTDOWN_NOTICE", "0s")];
    let mut nodes: Vec<Runner> = (0..3).map(|_| Runner::start(&tickr, &env)).collect();
    let mut urls = Vec::new();
    for node in &nodes {
        urls.push(node.base().await);
    }
    let fleet = Fleet::new(urls, 0);
    let mut working = JoinSet::new();
    for _ in 0..workers {
        working.spawn(work(Arc::clone(&fleet), 1, 20..400));
    }
    let ids: Vec<JobId> = tickr.enqueue_many((0..jobs).map(|n| json!({"kind": "resize", "payload": n}))).await;
    until_settled(&fleet, jobs / 10).await;

    for turn in 0..restarts {
        for (place, node) in nodes.iter_mut().enumerate() {
            let killed = turn == 0 && place == 0;
            let mut old = std::mem::replace(node, Runner::start(&tickr, &env));
            if killed {
                old.kill9();
            }
            // A load balancer learns of the end of a process later than its clients.
            let base = node.base().await;
            if !killed {
                old.signal("TERM");
                assert_eq!(old.exit_code().await, Some(0), "{}", old.log());
            }
            fleet.urls.write().unwrap()[place] = base;
        }
    }
    until_settled(&fleet, jobs).await;
    fleet.stop.cancel();
    while let Some(ended) = working.join_next().await {
        ended.unwrap();
    }
    let executed = fleet.executed.lock().unwrap().clone();
    let doubled = executed.values().filter(|times| **times > 1).count();
    assert_eq!((executed.len(), doubled), (ids.len(), 0));
    assert_eq!(verdicts(&tickr).await, BTreeMap::from([("succeeded".to_owned(), jobs as i64)]));
    println!(
        "{workers} workers, {jobs} jobs, one process killed and {} replaced: 0 interrupted, 0 burned, 0 doubled",
        restarts * 3
    );
    drop(nodes);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_die_and_are_replaced_interrupt_burn_and_double_no_job_of_their_workers() {
    // With few workers the jobs last until the processes are replaced.
    replace_all_under(6, 240, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a hundred workers, and each process replaced five times"]
async fn a_hundred_workers_lose_nothing_while_every_process_is_replaced() {
    replace_all_under(100, 20_000, 5).await;
}

/// Lose this many answers with jobs, to workers that live on.
async fn lose(answers: usize, workers: usize) {
    let tickr = started().await;
    let pulse = Pulse::start(&tickr).await;
    let other = tickr.another().await;
    let fleet = Fleet::new(vec![tickr.url(""), format!("http://{}", other.addr())], answers);
    let mut working = JoinSet::new();
    for _ in 0..workers {
        working.spawn(work(Arc::clone(&fleet), 2, 0..5));
    }
    let mut jobs = 0;
    while fleet.to_lose.load(Ordering::SeqCst) > 0 {
        tickr.enqueue_many((0..200).map(|n| json!({"kind": "resize", "payload": n}))).await;
        jobs += 200;
        until_settled(&fleet, jobs).await;
    }
    fleet.stop.cancel();
    while let Some(ended) = working.join_next().await {
        ended.unwrap();
    }
    eventually_seen("every lost job came again", || async {
        let lost = fleet.lost_at.lock().unwrap().len();
        if lost == 0 { Ok(()) } else { Err(format!("{lost} did not")) }
    })
    .await;
    pulse.assert_watching();
    let came_again = fleet.came_again.lock().unwrap().clone();
    let mut times: Vec<Duration> = came_again.iter().map(|(lost, came)| pulse.time_between(*lost, *came)).collect();
    times.sort();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    // Given back is `interrupted`, which uses no attempt.
    let burned = "SELECT COUNT(*) FROM attempts WHERE verdict NOT IN ('succeeded', 'interrupted')";
    assert_eq!(tickr.count(burned).await, 0, "{:?}", verdicts(&tickr).await);
    let doubled = fleet.executed.lock().unwrap().values().filter(|times| **times > 1).count();
    assert_eq!(doubled, 0);
    assert!(median <= Duration::from_secs(2) && worst <= Duration::from_secs(10), "{median:?}, {worst:?}");
    println!("{answers} lost answers, {jobs} jobs: 0 burned, 0 doubled; again after {median:?}, at worst {worst:?}");
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_to_workers_that_live_on_burn_no_attempt_and_their_jobs_come_again_at_once() {
    lose(40, 8).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "ten thousand lost answers"]
async fn ten_thousand_lost_answers_burn_no_attempt() {
    lose(10_000, 32).await;
}
