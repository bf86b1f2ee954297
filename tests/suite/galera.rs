//! Runners that write to different nodes of a Galera cluster.

use std::time::Duration;

use serde_json::json;
use tickr::app::App;
use tickr::config::{Config, ServerUrl};
use tickr::handlers::Registry;
use tickr::job::{JobId, State};
use tickr::services::{Services, start_galera};

use crate::support::{TestApp, answer, http, server_options};

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
