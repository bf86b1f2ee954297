//! Runners that write to different nodes of a Galera cluster.

use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::Executor;
use tickr::app::App;
use tickr::config::{Config, ServerUrl};
use tickr::handlers::Registry;
use tickr::job::{AttemptToken, JobId, RunnerId, State};
use tickr::services::{Services, start_galera};
use tickr::store::{Returned, Store, StoreSettings};
use uuid::Uuid;

use crate::support::limits::{NO_ROWS_LEFT, set_and_wait};
use crate::support::{Proxy, TestApp, answer, connect, eventually, http, server_options, table_prefix};

/// Start a cluster of three nodes.
async fn cluster() -> Vec<Services> {
    let nodes = tokio::task::spawn_blocking(|| {
        let each = [(); 3].map(|()| server_options());
        start_galera(&each).unwrap_or_else(|error| panic!("{error}"))
    });
    nodes.await.unwrap()
}

/// Return the URL of the database of a test on another node.
fn on_node(tickr: &TestApp, node: &Services) -> ServerUrl {
    let url = tickr.config.mysql_url().unwrap().expose();
    let name = url.split(['/', '?']).nth(3).unwrap();
    ServerUrl::mysql(&node.mysql_url(name)).unwrap()
}

/// Start two runners on different nodes of a cluster. Returns the other nodes as well, which end when they are dropped.
async fn on_two_nodes(change: impl FnOnce(&mut Config)) -> (TestApp, App, Vec<Services>) {
    let mut nodes = cluster().await;
    let tickr = TestApp::start_on_own(nodes.remove(0), change).await;
    let elsewhere = on_node(&tickr, &nodes[0]);
    let other = tickr.another_with(|config| config.mysql_url = Some(elsewhere), Registry::new()).await;
    assert_eq!(tickr.get("/readyz").await.body["topology"], "galera");
    (tickr, other, nodes)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "fetches Galera and starts three servers: make test-long ARGS=galera::"]
async fn limits_hold_for_runners_that_write_to_different_nodes() {
    let (tickr, other, _nodes) = on_two_nodes(|config| {
        config.queues = vec!["one".into(), "limited".into()];
        config.workers = 32;
    })
    .await;
    let narrow = tickr.patch("/v1/queues/one", json!({"concurrency": 1})).await;
    assert_eq!(narrow.status, 200, "{:#}", narrow.body);
    let made = tickr.put("/v1/limits/of-one", json!({"queue": "limited", "concurrency": 1})).await;
    assert!(matches!(made.status, 200 | 201), "{:#}", made.body);
    // A rule holds everywhere within two seconds.
    tokio::time::sleep(Duration::from_secs(2)).await;

    let sleep =
        |queue: &str, key: String| json!({"kind": "sleep", "payload": {"ms": 30}, "queue": queue, "limit_key": key});
    let limited = (0..400).map(|n| sleep("limited", format!("k{}", n / 4)));
    tickr.enqueue_many(limited.chain((0..20).map(|_| sleep("one", "k".to_owned())))).await;
    tickr.until_idle().await;
    let at_once = |same: &str| {
        format!(
            "SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id JOIN job_limit_keys l ON l.job_id = j.id \
             JOIN job_limit_keys m ON m.limit_key = l.limit_key AND m.job_id <> l.job_id JOIN attempts b \
             ON b.job_id = m.job_id AND b.started_at <= a.started_at AND b.finished_at > a.started_at WHERE {same}"
        )
    };
    assert_eq!(tickr.count(at_once("j.queue = 'limited'")).await, 0, "pairs of jobs of one key ran at once");
    assert_eq!(tickr.count(at_once("j.queue = 'one'")).await, 0, "pairs of jobs of the queue ran at once");
    // Otherwise this proves nothing.
    let runners =
        "SELECT COUNT(DISTINCT a.runner) FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.queue = 'limited'";
    assert_eq!(tickr.count(runners).await, 2, "runners with limited jobs");
    other.stop(Default::default()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "fetches Galera and starts three servers: make test-long ARGS=galera::"]
async fn a_locked_key_of_a_limit_holds_up_the_jobs_of_no_other_key_of_its_node() {
    let mut nodes = cluster().await;
    let tickr = TestApp::start_on_own(nodes.remove(0), |config| config.workers = 8).await;
    set_and_wait(&tickr, "l", json!({"concurrency": 1})).await;
    let job = |key: &str, ms: u64| json!({"kind": "sleep", "payload": {"ms": ms}, "limit_key": key});
    let first = tickr.enqueue(job("a", 1)).await;
    tickr.until(first, State::Completed).await;
    tickr.until_idle().await;
    // A session has the lock of `a` as a claim has it: the row of the key, and the one that stands for it.
    let mut session = tickr.mysql().await;
    session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    session.execute("BEGIN").await.unwrap();
    let lock = "SELECT limit_key FROM limit_keys WHERE limit_name = 'l' AND limit_key = 'a' FOR UPDATE";
    assert_eq!(session.fetch_all(lock).await.unwrap().len(), 1);
    let written = session.execute("UPDATE cluster_locks SET turn = turn + 1 WHERE id < 1024").await.unwrap();
    assert!(written.rows_affected() > 0);
    let orphan = "INSERT INTO limit_slots (limit_name, limit_key, job_id) VALUES ('l', 'a', UNHEX(REPEAT('00', 16)))";
    tickr.sql(orphan).await;
    let running = tickr.enqueue(job("b", 600_000)).await;
    tickr.until(running, State::Executing).await;
    let parked = tickr.enqueue(job("b", 1)).await;
    tickr.until_count("SELECT COUNT(*) FROM limit_waits", 1).await;
    // The slot of `b` is freed by a sweep alone, because the end of its attempt is lost with its runner.
    let id = running.uuid().simple();
    tickr.sql(format!("UPDATE limit_slots SET job_id = UNHEX(REPEAT('11', 16)) WHERE job_id = UNHEX('{id}')")).await;
    let began = Instant::now();
    tickr.until(parked, State::Completed).await;
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    session.execute("ROLLBACK").await.unwrap();
    let cancelled = tickr.post(&format!("/v1/jobs/{running}/cancel"), json!({})).await;
    assert!(matches!(cancelled.status, 200 | 202), "{:#}", cancelled.body);
    tickr.until_idle().await;
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "fetches Galera and starts three servers: make test-long ARGS=galera::"]
async fn a_transaction_that_another_node_aborts_leaves_no_part_of_it() {
    let (tickr, other, _nodes) = on_two_nodes(|config| config.workers = 8).await;
    // The places of one order key are given out in one row, for which the two nodes compete.
    let mut callers = Vec::new();
    for caller in 0..16 {
        let base = if caller % 2 == 0 { tickr.url("") } else { format!("http://{}", other.addr()) };
        callers.push(tokio::spawn(async move {
            let mut accepted = Vec::new();
            for _ in 0..15 {
                let job = json!({"kind": "noop", "order_key": "k"});
                let answer = answer(http().post(format!("{base}/v1/jobs")).json(&job)).await;
                // Under so many conflicts a request may give up.
                if answer.status == 201 {
                    accepted.push(answer.body["id"].as_str().unwrap().parse::<JobId>().unwrap());
                }
            }
            accepted
        }));
    }
    let mut accepted = Vec::new();
    for caller in callers {
        accepted.extend(caller.await.unwrap());
    }
    assert!(accepted.len() > 50, "only {} jobs were accepted", accepted.len());
    for id in &accepted {
        tickr.until(*id, State::Completed).await;
    }
    tickr.until_idle().await;
    let parts = "SELECT COUNT(*) FROM (SELECT id FROM owed UNION SELECT job_id FROM attempts UNION \
                 SELECT job_id FROM order_places) x LEFT JOIN jobs j ON j.id = x.id WHERE j.id IS NULL";
    assert_eq!(tickr.count(parts).await, 0, "parts of jobs that do not exist");
    other.stop(Default::default()).await;
    tickr.stop().await;
}

/// 1. The answer to a request for jobs got lost at a process of one node, which is about to give its job back.
/// 2. A process of another node has the repeated request. It has read what it hands out, and has not committed.
/// 3. The first process gives the job back. Then the second one commits.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "fetches Galera and starts three servers: make test-long ARGS=galera::"]
async fn a_job_that_is_given_back_at_one_node_is_not_handed_out_again_at_another() {
    let mut nodes = cluster().await;
    let tickr = TestApp::start_on_own(nodes.remove(0), |_| {}).await;
    let declared = tickr.put("/v1/kinds/resize", json!({"queue": "pictures"})).await;
    assert_eq!(declared.status, 201, "{:#}", declared.body);
    let made = tickr.post("/v1/workers", json!({"name": "test", "kinds": ["resize"], "slots": 1})).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    let worker = made.body["id"].as_str().unwrap().to_owned();
    let fetched = async |request: Uuid| {
        let body = json!({"slots": 1, "wait_ms": 30_000, "holding": [], "fetch_id": request});
        tickr.post(&format!("/v1/workers/{worker}/fetch"), body).await.body["jobs"][0].clone()
    };
    let id = tickr.enqueue_kind("resize", json!(1)).await;
    let request = Uuid::now_v7();
    assert_eq!(fetched(request).await["id"], json!(id.to_string()));
    let token: Uuid = sqlx::query_scalar("SELECT token FROM owed WHERE id = ?")
        .bind(id.uuid())
        .fetch_one(&mut tickr.mysql().await)
        .await
        .unwrap();

    let elsewhere = on_node(&tickr, &nodes[0]);
    eventually("the other node knows of the claim", || async {
        let sql = "SELECT COUNT(*) FROM claim_batches WHERE fetch_id IS NOT NULL";
        let known: i64 = sqlx::query_scalar(sql).fetch_one(&mut connect(elsewhere.expose()).await).await.unwrap();
        (known == 1).then_some(())
    })
    .await;
    let proxy = Proxy::start(elsewhere.expose()).await;
    let settings = StoreSettings { url: proxy.url(), connections: 4, flushers: 1, table_prefix: table_prefix() };
    let store = Store::connect(&settings, Duration::from_secs(10)).await.unwrap();
    let runner = RunnerId::from_stored(worker.clone());
    proxy.hold_back("COMMIT");
    let repeated = tokio::spawn({
        let (store, runner) = (store.clone(), runner.clone());
        async move { store.begin_fetch(runner, request, Vec::new(), Duration::ZERO).await.unwrap().unwrap() }
    });
    eventually("the repeated request has read", || async { proxy.holds_one_back().then_some(()) }).await;
    let token = AttemptToken::from_uuid(token);
    let why = "its answer got lost";
    let at_first = tickr.app.broker().store();
    let given = at_first.give_back_free(&runner, token, vec![id], why, Returned::Unreached).await.unwrap();
    assert_eq!(given.given.len(), 1);
    proxy.pass_held_back();
    let repeated = repeated.await.unwrap();
    assert!(repeated.again.is_empty(), "{repeated:?}");
    store.close().await;

    let again = fetched(Uuid::now_v7()).await;
    assert_eq!((&again["id"], &again["attempt"]), (&json!(id.to_string()), &json!(1)));
    let verdicts = json!({"verdicts": [{"token": again["token"], "verdict": "succeeded"}]});
    let finished = tickr.post(&format!("/v1/workers/{worker}/finish"), verdicts).await;
    assert_eq!(finished.body["results"][0]["state"], "completed", "{:#}", finished.body);
    tickr.stop().await;
}
