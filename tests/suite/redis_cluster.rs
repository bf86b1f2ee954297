//! Redis Cluster: the index is in one slot. Whatever happens to the master of this slot, every accepted job runs once, and
//! within the bound of G3.

use std::time::Duration;

use serde_json::json;
use tickr::config::{Config, ServerUrl};
use tickr::event::Health;
use tickr::handlers::Registry;
use tokio::time::Instant;

use crate::redis_faults::{BOUND, assert_late_within, load, until_health};
use crate::support::redis_group::{Cluster, port, send, until_role};
use crate::support::{EventStream, Pulse, TestApp, eventually, eventually_seen, unique_name};

/// Longest time from the moment when the cluster names another master until a runner uses it.
const FOLLOWED: Duration = Duration::from_secs(5);

async fn start_with(change: impl FnOnce(&mut Config, &Cluster)) -> (TestApp, Cluster) {
    let prefix = unique_name();
    let cluster = Cluster::start(&prefix).await;
    let tickr = TestApp::start_with(
        |config| {
            config.redis_prefix = prefix;
            config.redis_url = Some(cluster.url_of(&[0, 1, 2, 3]));
            config.workers = 8;
            change(config, &cluster);
        },
        Registry::new(),
    )
    .await;
    until_health(&tickr, Health::Fast).await;
    assert_eq!(tickr.app.index().servers(), [name_of(&cluster, cluster.owner)]);
    (tickr, cluster)
}

fn name_of(cluster: &Cluster, node: usize) -> String {
    format!("127.0.0.1:{}", port(&cluster.nodes[node]))
}

async fn until_on(tickr: &TestApp, wanted: String) {
    eventually_seen(&format!("the index is whole on {wanted}"), || async {
        let (now, health) = (tickr.app.index().servers(), tickr.app.index().health().now());
        if now == [wanted.as_str()] && health == Health::Fast { Ok(()) } else { Err(format!("{now:?} {health:?}")) }
    })
    .await;
}

async fn assert_survived(tickr: TestApp, pulse: &Pulse, jobs: i64) {
    tickr.until_idle().await;
    tickr.assert_each_ran_once(jobs).await;
    assert_late_within(&tickr, pulse, BOUND).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_keys_of_an_index_are_in_one_slot_and_every_command_works() {
    // One node is enough to find the others: the URL names only the replica.
    let replica_alone = |config: &mut Config, cluster: &Cluster| {
        config.redis_url = Some(cluster.url_of(&[3]));
        (config.ready_high_water, config.ready_low_water) = (100, 30);
    };
    let (tickr, cluster) = start_with(replica_alone).await;
    let mut stream = EventStream::open(&tickr.url("/v1/events"), None).await;
    tickr.enqueue_many((0..500).map(|n| json!({"kind": "noop", "delay_ms": (n % 3) * 200, "priority": n % 4}))).await;
    stream.until("a job is settled", |told| told.kind == "settled").await;
    tickr.until_idle().await;
    assert_eq!(tickr.post("/v1/index/rebuild", json!({})).await.status, 202);
    eventually("the index is rebuilt", || async {
        (tickr.get("/v1/index").await.body["last_rebuild"]["cause"] == "asked").then_some(())
    })
    .await;
    until_health(&tickr, Health::Fast).await;
    eventually_seen("readiness names the master", || async {
        let ready = tickr.get("/readyz").await.body;
        let named = ready["index_server"] == name_of(&cluster, cluster.owner);
        if ready["index_mode"] == "cluster" && named { Ok(()) } else { Err(ready) }
    })
    .await;
    for node in 0..3 {
        let keys: Vec<String> = send(&mut cluster.conn(node).await, "KEYS *").await;
        assert_eq!(keys.is_empty(), node != cluster.owner, "node {node}: {keys:?}");
    }
    tickr.assert_each_ran_once(500).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_moves_under_load_costs_no_job() {
    let (tickr, cluster) = start_with(|_, _| {}).await;
    let pulse = Pulse::start(&tickr).await;
    let target = (cluster.owner + 1) % 3;
    let moves = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        // The slot is on its way for longer than a stall may last unnoticed.
        cluster.move_slot(cluster.owner, target, Duration::from_secs(3)).await;
        let moved = Instant::now();
        until_on(&tickr, name_of(&cluster, target)).await;
        pulse.assert_recovered(FOLLOWED, moved, "the runner followed");
        // And back, without a pause.
        cluster.move_slot(target, cluster.owner, Duration::ZERO).await;
        until_on(&tickr, name_of(&cluster, cluster.owner)).await;
    };
    let (jobs, ()) = tokio::join!(load(&tickr, Duration::from_millis(50), Duration::from_secs(10)), moves);
    assert_survived(tickr, &pulse, jobs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_master_of_the_slot_is_replaced_by_its_replica_and_costs_no_job() {
    // The URL names only the node that is lost. The others were learned from it.
    let (tickr, cluster) =
        start_with(|config, cluster| config.redis_url = Some(cluster.url_of(&[cluster.owner]))).await;
    let pulse = Pulse::start(&tickr).await;
    let loss = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        cluster.nodes[cluster.owner].kill9().unwrap();
        until_promoted(&cluster).await;
        let promoted = Instant::now();
        until_on(&tickr, name_of(&cluster, 3)).await;
        pulse.assert_recovered(FOLLOWED, promoted, "the runner followed");
        // It comes back as a replica of the other one.
        cluster.nodes[cluster.owner].start_again().unwrap();
    };
    let (jobs, ()) = tokio::join!(load(&tickr, Duration::from_millis(50), Duration::from_secs(14)), loss);
    until_on(&tickr, name_of(&cluster, 3)).await;
    assert_survived(tickr, &pulse, jobs).await;
}

async fn until_promoted(cluster: &Cluster) {
    until_role(&cluster.nodes[3], "master").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes servers and a machine for half a minute; the suite has a lost master and a slot that moves"]
async fn a_frozen_master_of_the_slot_that_comes_back_is_not_used_again() {
    let (tickr, cluster) = start_with(|_, _| {}).await;
    let pulse = Pulse::start(&tickr).await;
    let freeze = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        cluster.nodes[cluster.owner].pause().unwrap();
        until_promoted(&cluster).await;
        until_on(&tickr, name_of(&cluster, 3)).await;
        cluster.nodes[cluster.owner].resume().unwrap();
        until_role(&cluster.nodes[cluster.owner], "slave").await;
    };
    let (jobs, ()) = tokio::join!(load(&tickr, Duration::from_millis(25), Duration::from_secs(14)), freeze);
    until_on(&tickr, name_of(&cluster, 3)).await;
    assert_survived(tickr, &pulse, jobs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_no_cluster_is_named() {
    let plain = crate::support::redis_group::start(tickr::services::RedisRole::Data, "").await;
    let url = ServerUrl::redis(&format!("redis+cluster://127.0.0.1:{}", port(&plain))).unwrap();
    let tickr = TestApp::start_with(|config| config.redis_url = Some(url), Registry::new()).await;
    eventually_seen("readiness says why", || async {
        let problem = tickr.get("/readyz").await.body["index_problem"].as_str().unwrap_or_default().to_owned();
        if problem.contains("cluster support disabled") { Ok(()) } else { Err(problem) }
    })
    .await;
    let id = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(id, tickr::job::State::Completed).await;
    tickr.redis_stays_out();
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes servers and a machine for half a minute; the suite has a lost master and a slot that moves"]
async fn partitions_are_on_several_masters_and_the_loss_of_one_costs_no_job() {
    let (tickr, cluster) = start_partitioned().await;
    let pulse = Pulse::start(&tickr).await;
    let servers = tickr.app.index().servers();
    assert!(servers.len() > 1, "all partitions are on {servers:?}");
    // The master of the first partition, which has a replica.
    let loss = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        cluster.nodes[cluster.owner].kill9().unwrap();
        until_promoted(&cluster).await;
        let promoted = name_of(&cluster, 3);
        eventually("the index is whole on the other masters", || async {
            let whole = tickr.app.index().health().now() == Health::Fast;
            (whole && tickr.app.index().servers().contains(&promoted)).then_some(())
        })
        .await;
    };
    let (jobs, ()) = tokio::join!(load(&tickr, Duration::from_millis(25), Duration::from_secs(12)), loss);
    assert_survived(tickr, &pulse, jobs).await;
}

/// Start a tickr whose index has several partitions. The replica follows the master of the first one.
async fn start_partitioned() -> (TestApp, Cluster) {
    let prefix = unique_name();
    let cluster = Cluster::start(&format!("{prefix}/0")).await;
    let tickr = TestApp::start_with(
        |config| {
            config.redis_prefix = prefix;
            config.redis_url = Some(cluster.url_of(&[0, 1, 2, 3]));
            config.index_partitions = 8;
        },
        Registry::new(),
    )
    .await;
    until_health(&tickr, Health::Fast).await;
    (tickr, cluster)
}
