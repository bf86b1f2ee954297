//! An index in several partitions: the queues are shared out among them, and everything else is as with one.

use std::time::Duration;

use redis::AsyncTypedCommands;
use serde_json::json;
use tickr::config::{Config, ServerUrl};
use tickr::event::Health;
use tickr::handlers::Registry;
use tickr::job::State;
use tickr::services::RedisRole;

use crate::redis_faults::{BOUND, Changes, assert_late_within, until_health};
use crate::support::redis_group::{open, port, send, start};
use crate::support::{Pulse, TestApp, eventually, unique_name};

const QUEUES: [&str; 6] = ["default", "mail", "reports", "q0", "q1", "q3"];

fn partitioned(config: &mut Config) {
    config.index_partitions = 4;
    config.queues = QUEUES.map(Into::into).to_vec();
}

/// Return the queues whose jobs are in this partition, as Redis has them.
async fn lists(tickr: &TestApp, partition: usize) -> Vec<String> {
    let prefix = format!("{{{}/{partition}}}:ready:", tickr.config.redis_prefix);
    let keys = tickr.redis().await.keys(format!("{prefix}*")).await.unwrap();
    keys.into_iter().map(|key| key[prefix.len()..].to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queues_are_shared_out_and_every_promise_holds() {
    let few = |config: &mut Config| {
        partitioned(config);
        (config.workers, config.ready_high_water, config.ready_low_water) = (4, 25, 10);
    };
    let tickr = TestApp::start_with(few, Registry::new()).await;
    until_health(&tickr, Health::Fast).await;
    let narrow = tickr.patch("/v1/queues/mail", json!({"concurrency": 1})).await;
    assert_eq!(narrow.status, 200, "{:#}", narrow.body);
    // Lists overflow, and others wait for later.
    for queue in QUEUES {
        tickr.post(&format!("/v1/queues/{queue}/pause"), json!({})).await;
    }
    let jobs = (0..450).map(|n| {
        let delay_ms = if n % 2 == 0 { 0 } else { 2 * n };
        json!({"kind": "sleep", "payload": {"ms": 1}, "queue": QUEUES[n % 6], "delay_ms": delay_ms, "priority": n % 4})
    });
    tickr.enqueue_many(jobs).await;
    eventually("lists are in every partition", || async {
        let mut filled = 0;
        for partition in 0..4 {
            filled += usize::from(!lists(&tickr, partition).await.is_empty());
        }
        (filled == 4).then_some(())
    })
    .await;
    for partition in 0..4 {
        for list in lists(&tickr, partition).await {
            // Each queue is in one partition, with all its priorities.
            let queue = list.split(':').next().unwrap().to_owned();
            for other in (0..4).filter(|other| *other != partition) {
                let others = lists(&tickr, other).await;
                assert!(!others.iter().any(|list| list.split(':').next() == Some(&queue)), "{queue} is in two");
            }
        }
    }
    for queue in QUEUES {
        tickr.post(&format!("/v1/queues/{queue}/resume"), json!({})).await;
    }
    // The whole index is made again meanwhile.
    assert_eq!(tickr.post("/v1/index/rebuild", json!({})).await.status, 202);
    tickr.until_idle().await;
    tickr.assert_each_ran_once(450).await;
    let overlaps = "SELECT COUNT(*) FROM attempts a JOIN attempts b ON b.started_at < a.finished_at \
                    AND a.started_at < b.started_at JOIN jobs j ON j.id = a.job_id JOIN jobs k ON k.id = b.job_id \
                    WHERE j.queue = 'mail' AND k.queue = 'mail'";
    assert_eq!(tickr.count(overlaps).await, 0, "the limit of a queue holds");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_any_partition_starts_at_once_on_an_idle_runner() {
    let tickr = TestApp::start_with(partitioned, Registry::new()).await;
    until_health(&tickr, Health::Fast).await;
    for turn in 0..30 {
        let queue = QUEUES[turn % 6];
        let delay = if turn % 3 == 0 { 50 } else { 0 };
        let id = tickr.enqueue(json!({"kind": "noop", "queue": queue, "delay_ms": delay})).await;
        tickr.until(id, State::Completed).await;
    }
    let late = "SELECT COUNT(*) FROM attempts WHERE started_at > execute_at + INTERVAL 500000 MICROSECOND";
    assert_eq!(tickr.count(late).await, 0, "the fetcher waits in every partition at the same time");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn urgent_jobs_of_all_partitions_start_before_others() {
    let one = |config: &mut Config| {
        partitioned(config);
        config.workers = 1;
    };
    let tickr = TestApp::start_with(one, Registry::new()).await;
    until_health(&tickr, Health::Fast).await;
    let sleeper = tickr.enqueue_kind("sleep", json!({"ms": 600_000})).await;
    tickr.until(sleeper, State::Executing).await;
    let jobs =
        (0..120).map(|n| json!({"kind": "noop", "queue": QUEUES[n % 6], "priority": if n < 60 { 5 } else { 0 }}));
    tickr.enqueue_many(jobs).await;
    tickr.post(&format!("/v1/jobs/{sleeper}/cancel"), json!({})).await;
    tickr.until_idle().await;
    // The place of each urgent job among all starts. A share of the turns begins with the least urgent lanes.
    let early = "SELECT COUNT(*) FROM (SELECT j.priority, ROW_NUMBER() OVER (ORDER BY a.started_at) AS place \
                 FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.kind = 'noop') starts \
                 WHERE priority = 0 AND place <= 80";
    let early = tickr.count(early).await;
    assert!(early >= 55, "only {early} of 60 urgent jobs were among the first 80");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_number_of_partitions_after_a_restart_loses_no_job_and_costs_the_bound_at_most() {
    let tickr = TestApp::start_with(partitioned, Registry::new()).await;
    until_health(&tickr, Health::Fast).await;
    let pulse = Pulse::start(&tickr).await;
    let jobs = (0..150).map(|n| json!({"kind": "noop", "queue": QUEUES[n % 6], "delay_ms": 500 + n * 40}));
    tickr.enqueue_many(jobs).await;
    // A runner with another number: it feeds keys of its own.
    let other = tickr.another_with(|config| config.index_partitions = 1, Registry::new()).await;
    let more = (0..50).map(|n| json!({"kind": "noop", "queue": QUEUES[n % 6], "delay_ms": n * 40}));
    tickr.enqueue_many(more).await;
    tickr.until_idle().await;
    let runners = tickr.count("SELECT COUNT(DISTINCT runner) FROM attempts").await;
    assert_eq!(runners, 2, "both ran jobs");
    tickr.assert_each_ran_once(200).await;
    assert_late_within(&tickr, &pulse, BOUND).await;
    other.stop(tokio_util::sync::CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_partition_comes_back_within_the_bound() {
    let tickr = TestApp::start_with(partitioned, Registry::new()).await;
    until_health(&tickr, Health::Fast).await;
    let pulse = Pulse::start(&tickr).await;
    let jobs = (0..200).map(|n| json!({"kind": "noop", "queue": QUEUES[n % 6], "delay_ms": 300 + n * 20}));
    tickr.enqueue_many(jobs).await;
    let mut redis = tickr.redis().await;
    for partition in [2, 0] {
        tokio::time::sleep(Duration::from_millis(400)).await;
        let keys = redis.keys(format!("{{{}/{partition}}}:*", tickr.config.redis_prefix)).await.unwrap();
        assert!(!keys.is_empty());
        redis.del(keys).await.unwrap();
    }
    tickr.until_idle().await;
    tickr.assert_each_ran_once(200).await;
    assert_late_within(&tickr, &pulse, BOUND).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_lost_its_data_while_another_is_out_does_not_end_the_outage() {
    let prefix = unique_name();
    let rights = |partitions: std::ops::Range<usize>| {
        let keys: Vec<String> = partitions.map(|number| format!("~{{{prefix}/{number}}}:*")).collect();
        format!("resetkeys {}", keys.join(" "))
    };
    let users = format!(
        "user default off\nuser operator on >of-operator ~* &* +@all\nuser tickr on >of-tickr &* +@all {}\n",
        rights(0..4)
    );
    let server = start(RedisRole::Data, users).await;
    let mut redis = open(&format!("redis://operator:of-operator@127.0.0.1:{}", port(&server))).await;
    let own = |config: &mut Config| {
        partitioned(config);
        config.redis_prefix.clone_from(&prefix);
        let url = format!("redis://tickr:of-tickr@127.0.0.1:{}", port(&server));
        config.redis_url = Some(ServerUrl::redis(&url).unwrap());
    };
    let tickr = TestApp::start_with(own, Registry::new()).await;
    until_health(&tickr, Health::Fast).await;
    // The first partition refuses every command, and the second one is emptied.
    let _: () = send(&mut redis, &format!("ACL SETUSER tickr {}", rights(1..4))).await;
    until_health(&tickr, Health::Degraded).await;
    let _: i64 = send(&mut redis, &format!("DEL {{{prefix}/1}}:epoch {{{prefix}/1}}:sequence")).await;
    let changes = Changes::watch(&tickr);
    // A rebuild that is begun fails at once, and the scheduler looks again within two seconds.
    for turn in 0..60 {
        tickr.enqueue(json!({"kind": "noop", "queue": QUEUES[turn % 6]})).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(changes.end().await, [Health::Degraded]);
    let _: () = send(&mut redis, &format!("ACL SETUSER tickr {}", rights(0..4))).await;
    until_health(&tickr, Health::Fast).await;
    let epoch: Option<String> = send(&mut redis, &format!("GET {{{prefix}/1}}:epoch")).await;
    assert!(epoch.is_some(), "all partitions are rebuilt");
    tickr.until_idle().await;
    tickr.assert_each_ran_once(60).await;
    tickr.stop().await;
}
