//! Redis behind sentinels: whatever happens to the master, every accepted job runs once, and within the bound of G3.

use std::time::Duration;

use serde_json::json;
use tickr::app::App;
use tickr::config::{Config, ServerUrl};
use tickr::event::Health;
use tickr::handlers::Registry;
use tickr::job::State;
use tickr::services::Server;
use tokio::time::Instant;

use crate::redis_faults::{BOUND, assert_late_within, load, until_health};
use crate::support::limits::{MOST_AT_ONCE, NO_ROWS_LEFT, set_and_wait, starts_within};
use crate::support::redis_group::{Watched, info, open, port, send, until_role, url_of};
use crate::support::{EventStream, Pulse, TestApp, eventually, eventually_seen};

/// Longest time from the moment when the sentinels name a new master until a runner uses it: the pause before the next
/// connection, the rebuild, and a second for a busy machine.
const FOLLOWED: Duration = Duration::from_secs(5);

async fn start_with(change: impl FnOnce(&mut Config)) -> (TestApp, Watched) {
    let group = Watched::start().await;
    let tickr = TestApp::start_with(
        |config| {
            config.redis_url = Some(group.url());
            config.workers = 8;
            change(config);
        },
        Registry::new(),
    )
    .await;
    until_health(&tickr, Health::Fast).await;
    assert_eq!(tickr.app.index().servers(), [name_of(&group.data[0])]);
    (tickr, group)
}

fn name_of(server: &Server) -> String {
    format!("127.0.0.1:{}", port(server))
}

/// Wait until the index of this runner is whole on this server.
async fn until_on(app: &App, server: &Server) {
    let wanted = name_of(server);
    eventually_seen(&format!("the index is whole on {wanted}"), || async {
        let (now, health) = (app.index().servers(), app.index().health().now());
        if now == [wanted.as_str()] && health == Health::Fast { Ok(()) } else { Err(format!("{now:?} {health:?}")) }
    })
    .await;
}

/// Wait until the stream of events on this server has the newest event.
async fn until_events_reach(tickr: &TestApp, server: &Server) {
    let conn = open(&url_of(server)).await;
    let last = format!("XREVRANGE {} + - COUNT 5", tickr.key("events"));
    eventually("events reach the server", || {
        let (mut conn, last) = (conn.clone(), last.clone());
        async move {
            let id = tickr.enqueue_kind("noop", json!({})).await;
            tickr.until(id, State::Completed).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            let found: redis::Value = send(&mut conn, &last).await;
            format!("{found:?}").contains(&id.to_string()).then_some(())
        }
    })
    .await;
}

/// Put a load on tickr while a failover happens: `fault` before it, and `after` when the new master is in use. Check
/// that each job ran once and in time, with those that ran `before`.
async fn survive(
    tickr: TestApp,
    group: &Watched,
    before: i64,
    fault: impl AsyncFnOnce(&Watched),
    after: impl AsyncFnOnce(&Watched),
) -> TestApp {
    let pulse = Pulse::start(&tickr).await;
    let failover = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        fault(group).await;
        group.until_master(&group.data[1]).await;
        let named = Instant::now();
        until_on(&tickr.app, &group.data[1]).await;
        pulse.assert_recovered(FOLLOWED, named, "the runner followed");
        after(group).await;
    };
    let (jobs, ()) = tokio::join!(load(&tickr, Duration::from_millis(50), Duration::from_secs(12)), failover);
    tickr.until_idle().await;
    tickr.assert_each_ran_once(before + jobs).await;
    assert_late_within(&tickr, &pulse, BOUND).await;
    tickr
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_master_is_followed_by_every_connection_and_costs_no_job() {
    let (tickr, group) = start_with(|_| {}).await;
    let tickr = survive(tickr, &group, 0, async |group| group.data[0].kill9().unwrap(), async |_| {}).await;
    let ready = eventually_seen("readiness names the new master", || async {
        let ready = tickr.get("/readyz").await.body;
        let named = ready["index_server"] == name_of(&group.data[1]) && ready["index_mode"] == "sentinel";
        if ready["index"] == "fast" && named { Ok(ready) } else { Err(ready) }
    })
    .await;
    let line = format!("tickr_index_server{{mode=\"sentinel\",server=\"{}\"}} 1", name_of(&group.data[1]));
    let page = eventually(&format!("the metrics say {line}"), || async {
        let page = reqwest::get(tickr.url("/metrics")).await.unwrap().text().await.unwrap();
        page.contains(&line).then_some(page)
    })
    .await;
    for text in [page, ready.to_string(), tickr.get("/v1/index").await.body.to_string()] {
        assert!(!text.contains("of-tickr"), "a password is shown");
    }
    let stream = EventStream::open(&tickr.url("/v1/events"), None).await;
    until_events_reach(&tickr, &group.data[1]).await;
    drop(stream);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for half a minute; the suite has a killed master and an old one that still answers"]
async fn limits_and_rates_hold_while_a_killed_master_is_replaced() {
    let (tickr, group) = start_with(|_| {}).await;
    let rate = json!({"starts": 20, "period_ms": 1_000, "burst": 5});
    let rate = json!({"kind": "noop", "shared_by": "all", "rate": rate});
    let at_once = json!({"kind": "sleep", "concurrency": 2});
    tokio::join!(set_and_wait(&tickr, "rate", rate), set_and_wait(&tickr, "at-once", at_once));
    let sleep = json!({"kind": "sleep", "payload": {"ms": 100}, "limit_key": "k"});
    let jobs = (0..210).map(|n| if n % 3 == 0 { sleep.clone() } else { json!({"kind": "noop"}) });
    tickr.enqueue_many(jobs).await;
    tickr.until_count("SELECT COUNT(*) >= 20 FROM attempts", 1).await;
    group.data[0].kill9().unwrap();
    group.until_master(&group.data[1]).await;
    until_on(&tickr.app, &group.data[1]).await;
    tickr.until_idle().await;
    let (within, took_ms) = starts_within(&tickr, "j.kind = 'noop'", 1_000).await;
    println!("at most {within} starts in a second, {took_ms} ms for work of 6.7 s");
    assert!(within <= 25, "{within} in a second");
    assert_eq!(tickr.count(MOST_AT_ONCE).await, 2);
    tickr.until_count(NO_ROWS_LEFT, 0).await;
    tickr.assert_each_ran_once(210).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for half a minute; the suite has a killed master and an old one that still answers"]
async fn a_master_that_freezes_and_comes_back_as_a_stale_one_is_not_used_again() {
    let (tickr, group) = start_with(|_| {}).await;
    let freeze = async |group: &Watched| group.data[0].pause().unwrap();
    let thaw = async |group: &Watched| {
        group.data[0].resume().unwrap();
        // For a moment there are two masters, until the sentinels demote the old one.
        until_role(&group.data[0], "slave").await;
    };
    let tickr = survive(tickr, &group, 0, freeze, thaw).await;
    until_on(&tickr.app, &group.data[1]).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a machine for half a minute; the suite has a killed master and an old one that still answers"]
async fn a_failover_on_request_leaves_the_demoted_master_at_once() {
    let (tickr, group) = start_with(|_| {}).await;
    let tickr = survive(tickr, &group, 0, async |group| group.fail_over().await, async |_| {}).await;
    until_role(&group.data[0], "slave").await;
    // A second failover leads back.
    group.fail_over().await;
    group.until_master(&group.data[0]).await;
    until_on(&tickr.app, &group.data[0]).await;
    tickr.stop().await;
}

/// Cut the master off from its sentinels, so that they promote the replica. It goes on to answer all others.
async fn cut_off(group: &Watched) {
    let mut old = open(&url_of(&group.data[0])).await;
    let _: () = send(&mut old, "ACL SETUSER sentinel off").await;
    let _: () = send(&mut old, "CLIENT KILL USER sentinel").await;
    group.until_master(&group.data[1]).await;
    assert_eq!(info(&mut old, "role").await, "master");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_was_replaced_and_still_answers_is_left_within_seconds() {
    let (tickr, group) = start_with(|_| {}).await;
    let mut stream = EventStream::open(&tickr.url("/v1/events"), None).await;
    let id = tickr.enqueue_kind("noop", json!({})).await;
    stream.until("it is settled", |told| told.kind == "settled" && told.data["job"] == id.to_string()).await;
    tickr.until(id, State::Completed).await;
    // The load keeps the connections to the old master busy: none of them fails.
    let tickr = survive(tickr, &group, 1, async |group| cut_off(group).await, async |_| {}).await;
    let mut old = open(&url_of(&group.data[0])).await;
    assert_eq!(info(&mut old, "role").await, "master", "it was never demoted");
    // The stream of events has a connection of its own.
    until_events_reach(&tickr, &group.data[1]).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runners_on_both_sides_of_a_split_brain_run_each_job_once_and_in_time() {
    let (tickr, group) = start_with(|config| config.workers = 4).await;
    // The other runner cannot reach the sentinels, and stays with the master of before.
    let old = ServerUrl::redis(&url_of(&group.data[0])).unwrap();
    let both = |config: &mut Config| {
        config.redis_url = Some(old);
        config.queues = vec!["default".into(), "far".into()];
    };
    let other = tickr.another_with(both, Registry::new()).await;
    let pulse = Pulse::start(&tickr).await;
    eventually("the other index is whole", || async { (other.index().health().now() == Health::Fast).then_some(()) })
        .await;
    cut_off(&group).await;
    until_on(&tickr.app, &group.data[1]).await;
    // The hints go to the new master. The queue `far` is served only on the other side, whose runner must find its jobs in
    // MySQL.
    let far = (0..100).map(|n| json!({"kind": "noop", "queue": "far", "delay_ms": n * 50}));
    let jobs =
        100 + tokio::join!(tickr.enqueue_many(far), load(&tickr, Duration::from_millis(50), Duration::from_secs(6))).1;
    until_on(&other, &group.data[0]).await;
    tickr.until_idle().await;
    let runners = "SELECT COUNT(DISTINCT runner) FROM attempts";
    assert_eq!(tickr.count(runners).await, 2, "both sides ran jobs");
    assert_late_within(&tickr, &pulse, BOUND).await;
    // The brain heals: the sentinels make a replica of the old master, which loses what only it has.
    let mut healed = open(&url_of(&group.data[0])).await;
    let _: () = send(&mut healed, "ACL SETUSER sentinel on").await;
    // A sentinel authenticates when it connects, and keeps a connection that answers its PING with an error.
    for links in ["normal", "pubsub"] {
        let _: i64 = send(&mut healed, &format!("CLIENT KILL TYPE {links} SKIPME yes")).await;
    }
    until_role(&group.data[0], "slave").await;
    let more = load(&tickr, Duration::from_millis(50), Duration::from_secs(2)).await;
    tickr.until_idle().await;
    tickr.assert_each_ran_once(jobs + more).await;
    assert_late_within(&tickr, &pulse, BOUND).await;
    other.stop(tokio_util::sync::CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_sentinel_delays_nothing_and_without_any_jobs_run() {
    let group = Watched::start().await;
    group.sentinels[0].pause().unwrap();
    let began = Instant::now();
    let tickr = TestApp::start_with(|config| config.redis_url = Some(group.url()), Registry::new()).await;
    until_health(&tickr, Health::Fast).await;
    println!("whole after {:?} with one sentinel frozen", began.elapsed());
    tickr.stop().await;

    for sentinel in &group.sentinels[1..] {
        sentinel.kill9().unwrap();
    }
    let tickr = TestApp::start_with(|config| config.redis_url = Some(group.url()), Registry::new()).await;
    until_health(&tickr, Health::Degraded).await;
    eventually_seen("readiness says that no sentinel answers", || async {
        let problem = tickr.get("/readyz").await.body["index_problem"].as_str().unwrap_or_default().to_owned();
        if problem.contains("no sentinel names the master") { Ok(()) } else { Err(problem) }
    })
    .await;
    let id = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(id, State::Completed).await;
    group.sentinels[0].resume().unwrap();
    until_health(&tickr, Health::Fast).await;
    tickr.stop().await;
}
