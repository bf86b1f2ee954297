//! Redis as a disposable index: wrong, stale and missing entries change only when jobs start, and the index stays
//! small.

use std::time::Duration;

use redis::AsyncTypedCommands;
use serde_json::json;
use tickr::config::Config;
use tickr::event::Event;
use tickr::handlers::Registry;
use tickr::index::{Entry, Index, IndexSettings, IndexTls, Lane};
use tickr::job::{JobId, State};
use tokio::time::Instant;

use crate::support::redis_group::open;
use crate::support::{DEADLINE, Pulse, TestApp, answer, eventually, http, servers, unique_name};

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_strangers_and_garbage_in_a_ready_list_run_each_job_once() {
    let tickr = TestApp::start().await;
    let ids = tickr.enqueue_many((0..50).map(|_| json!({"kind": "noop", "delay_ms": 700}))).await;
    let mut redis = tickr.redis().await;
    let list = tickr.key("ready:default");
    let mut pushed: Vec<String> = Vec::new();
    for turn in 0..5 {
        pushed.extend(ids.iter().map(ToString::to_string));
        pushed.extend([JobId::new().to_string(), format!("garbage-{turn}"), String::new(), "\u{1F4A5}".into()]);
    }
    // Push the entries before the jobs are due, and while they are due.
    redis.lpush(&list, &pushed).await.unwrap();
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE execute_at > UTC_TIMESTAMP(3)", 0).await;
    redis.lpush(&list, &pushed).await.unwrap();
    tickr.until_idle().await;
    tickr.assert_each_ran_once(50).await;
    // Push them again after the jobs have ended: the list is emptied, and nothing starts.
    redis.lpush(&list, &pushed).await.unwrap();
    let last = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(last, State::Completed).await;
    tickr.assert_each_ran_once(51).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_score_in_the_past_starts_nothing_early() {
    let tickr = TestApp::start().await;
    let ids = tickr.enqueue_many((0..30).map(|n| json!({"kind": "noop", "delay_ms": 1_500 + n * 10}))).await;
    let mut redis = tickr.redis().await;
    eventually("all are listed", || {
        let (mut redis, key) = (redis.clone(), tickr.key("waiting"));
        async move { (redis.zcard(key).await.unwrap() == 30).then_some(()) }
    })
    .await;
    // Repeat this, because the reconciler restores the right scores.
    for _ in 0..10 {
        for id in &ids {
            redis.zadd(tickr.key("waiting"), format!("default:{id}"), 1_000).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Members without a job do no harm either.
    redis.zadd(tickr.key("waiting"), "nonsense", 1).await.unwrap();
    tickr.until_idle().await;
    tickr.assert_each_ran_once(30).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_beyond_the_horizon_cost_redis_nothing_and_are_fed_when_it_reaches_them() {
    let short = |config: &mut Config| config.horizon = Duration::from_secs(3);
    let tickr = TestApp::start_with(short, Registry::new()).await;
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    let mut redis = tickr.redis().await;
    let near = tickr.enqueue(json!({"kind": "noop", "delay_ms": 2_500})).await;
    tickr.enqueue_many((0..500).map(|n| json!({"kind": "noop", "delay_ms": 86_400_000 + n}))).await;
    let soon = tickr.enqueue_many((0..20).map(|n| json!({"kind": "noop", "delay_ms": 12_000 + n}))).await;
    eventually("the near one is listed", || {
        let (mut redis, key) = (redis.clone(), tickr.key("waiting"));
        async move { (redis.zcard(key).await.unwrap() == 1).then_some(()) }
    })
    .await;
    tickr.until(near, State::Completed).await;
    for id in soon {
        tickr.until(id, State::Completed).await;
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE started_at < execute_at").await, 0);
    let late_ms =
        tickr.count("SELECT MAX(TIMESTAMPDIFF(MICROSECOND, execute_at, started_at)) DIV 1000 FROM attempts").await;
    // The jobs are fed before their due time, not found after it.
    pulse.assert_prompt(late_ms, began);
    assert_eq!(redis.zcard(tickr.key("waiting")).await.unwrap(), 0);
    tickr.stop().await;
}

/// Run a backlog through a short ready list. Return the longest length of the list.
async fn backlog(jobs: i64, high: usize, low: usize) -> usize {
    let change = |config: &mut Config| {
        (config.ready_high_water, config.ready_low_water, config.workers) = (high, low, 8);
    };
    let tickr = TestApp::start_with(change, Registry::new()).await;
    let over = tokio_util::sync::CancellationToken::new();
    let watch = {
        let (mut redis, list, over) = (tickr.redis().await, tickr.key("ready:default"), over.clone());
        tokio::spawn(async move {
            let mut longest = 0;
            while !over.is_cancelled() {
                longest = longest.max(redis.llen(&list).await.unwrap());
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            longest
        })
    };
    tickr.enqueue_many((0..jobs).map(|_| json!({"kind": "noop"}))).await;
    tickr.until_idle().await;
    over.cancel();
    let longest = watch.await.unwrap();
    tickr.assert_each_ran_once(jobs).await;
    // The order is kept roughly: most jobs start near their position in the lane.
    let started: Vec<uuid::Uuid> = sqlx::query_scalar("SELECT job_id FROM attempts ORDER BY started_at, job_id")
        .fetch_all(&mut tickr.mysql().await)
        .await
        .unwrap();
    let mut asked = started.clone();
    asked.sort();
    let place: std::collections::HashMap<_, _> = asked.iter().enumerate().map(|(at, id)| (id, at)).collect();
    let mut off: Vec<usize> = started.iter().enumerate().map(|(at, id)| at.abs_diff(place[id])).collect();
    off.sort_unstable();
    let (middle, farthest) = (off[off.len() / 2], off[off.len() - 1]);
    println!("{jobs} jobs, high {high}, low {low}: longest list {longest}, farthest from its position {farthest}");
    assert!(middle <= high.max(100), "{middle} positions out of order");
    tickr.stop().await;
    longest
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ready_list_stays_within_its_high_water_and_all_behind_it_run_in_order() {
    let longest = backlog(1_200, 200, 50).await;
    // Jobs that the fetcher took and puts back come on top, at most 256. In the meantime others may have filled the list.
    assert!((100..=200 + 256).contains(&longest), "{longest}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ready_list_without_a_low_water_is_refilled_when_it_is_empty() {
    assert!(backlog(300, 20, 0).await <= 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_listed_by_several_runners_runs_once() {
    let tickr = TestApp::start().await;
    let second = tickr.another().await;
    let third = tickr.another().await;
    tickr.enqueue_many((0..300).map(|n| json!({"kind": "noop", "delay_ms": n}))).await;
    tickr.until_idle().await;
    tickr.assert_each_ran_once(300).await;
    let stopped = tokio_util::sync::CancellationToken::new();
    second.stop(stopped.clone()).await;
    third.stop(stopped).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_redis_holds_stands_beside_what_it_should_and_a_rebuild_that_was_asked_for_is_seen_to_end() {
    // Only the queues of runners whose heartbeats are not older than their leases are counted.
    let patient = |config: &mut Config| config.lease = Duration::from_secs(60);
    let tickr = TestApp::start_with(patient, Registry::new()).await;
    // A Redis that does not answer for a second, because the machine stalls, counts as out. The next rebuild has the
    // outage as its cause.
    let outages = || tickr.app.index().health().outages();
    assert_eq!(tickr.post("/v1/queues/default/pause", json!({})).await.status, 200);
    eventually("it knows of the pause", || async {
        tickr.app.operator_settings().now().queues.get("default").is_some_and(|set| set.pause.is_some()).then_some(())
    })
    .await;
    tickr.enqueue_many((0..3).map(|_| json!({"kind": "noop", "delay_ms": 300_000}))).await;
    tickr.enqueue_many((0..2).map(|_| json!({"kind": "noop"}))).await;
    // This job is not in Redis, and is not expected there.
    tickr.enqueue(json!({"kind": "noop", "delay_ms": 86_400_000})).await;
    let both = json!({"due": 2, "upcoming": 3, "executing": 0, "more": false});
    let as_it_is = || async {
        let shown = tickr.get("/v1/index").await;
        assert_eq!(shown.status, 200, "{:#}", shown.body);
        let shown = shown.body;
        let whole = shown["store"] == both
            && shown["redis"]["waiting"] == 3
            && shown["redis"]["ready"] == 2
            && shown["health"] == "fast";
        (whole && shown["drift"]["jobs"] == 0).then_some(shown)
    };
    let before = eventually("Redis holds what it should", as_it_is).await;
    let cause = &before["last_rebuild"]["cause"];
    assert!(cause == "start" || (cause == "outage" && outages() > 0), "{cause}");
    assert_eq!(before["rebuilding"], json!(null));
    assert_eq!((&before["horizon_ms"], &before["redis"]["full_lists"]), (&json!(900_000), &json!(0)));
    assert_eq!(before["runner"], tickr.app.runner().as_str());

    let (mut asked, seen) = (None, outages());
    let ask = async {
        let answer = tickr.post("/v1/index/rebuild", json!({})).await;
        assert_eq!((answer.status, &answer.body["started"]), (202, &json!(true)), "{:#}", answer.body);
        asked = Some(answer.body["asked_at"].clone());
    };
    let jobs = tickr
        .event("the rebuild", ask, |event| match event {
            Event::Rebuilt { jobs } => Some(*jobs),
            _ => None,
        })
        .await;
    let after = eventually("Redis holds it again", as_it_is).await;
    let last = &after["last_rebuild"];
    if outages() == seen {
        assert_eq!((jobs, &last["cause"], &last["jobs"]), (5, &json!("asked"), &json!(5)));
    }
    assert!(last["at"].as_str() > asked.unwrap().as_str());
    assert_ne!(after["redis"]["epoch"], before["redis"]["epoch"]);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM audit WHERE action = 'index.rebuild' AND actor = 'anyone'").await, 1);
    tickr.assert_sound().await;

    // A runner without Redis says so, and has no index to rebuild.
    let without = |config: &mut Config| {
        config.redis_url = Some(tickr::config::ServerUrl::redis("redis://127.0.0.1:1").unwrap());
    };
    let without = tickr.another_with(without, Registry::new()).await;
    let asks = |path: &str| format!("http://{}{path}", without.addr());
    let shown = eventually("it knows that Redis is out", || async {
        let shown = answer(http().get(asks("/v1/index"))).await.body;
        (shown["health"] == "degraded").then_some(shown)
    })
    .await;
    assert_eq!((&shown["redis"], &shown["store"]), (&json!(null), &both));
    let refused = answer(http().post(asks("/v1/index/rebuild"))).await;
    assert_eq!((refused.status, refused.code()), (503, "index_unavailable"));
    without.stop(Default::default()).await;
    tickr.stop().await;
}

/// Return the list that gives a blocked client its first id, when one hint fills both lanes.
async fn first_list_served(
    url: &str,
    index: &Index,
    key: impl Fn(&Lane) -> String,
    urgent: &Lane,
    other: &Lane,
) -> String {
    let client = redis::Client::open(url).unwrap();
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(DEADLINE));
    let mut waiting = client.get_multiplexed_async_connection_with_config(&patient).await.unwrap();
    let mut looking = open(url).await;
    let id: usize = redis::cmd("CLIENT").arg("ID").query_async(&mut waiting).await.unwrap();
    let lists = [key(urgent), key(other)];
    let popped = tokio::spawn(async move { waiting.brpop(&lists, 0.0).await.unwrap().unwrap() });
    eventually("the client is blocked", || {
        let mut looking = looking.clone();
        async move {
            let line: String =
                redis::cmd("CLIENT").arg("LIST").arg("ID").arg(id).query_async(&mut looking).await.unwrap();
            let flags = line.split(' ').find_map(|word| word.strip_prefix("flags=")).unwrap();
            flags.contains('b').then_some(())
        }
    })
    .await;
    let execute_at = chrono::DateTime::UNIX_EPOCH;
    let entry = |line: &Lane| Entry { id: JobId::new(), line: line.clone(), execute_at };
    assert_eq!(index.hint(&[entry(other), entry(urgent)]).await.unwrap().ready, 2);
    let [list, _] = popped.await.unwrap();
    // The other id stays, and would be served first in another round of the same lanes.
    redis::cmd("DEL").arg(key(urgent)).arg(key(other)).exec_async(&mut looking).await.unwrap();
    list
}

/// Return the settings of an index that no runner uses.
fn settings_of(prefix: &str) -> IndexSettings {
    IndexSettings {
        url: servers().redis_url(),
        tls: IndexTls::default(),
        prefix: prefix.to_owned(),
        partitions: 1,
        horizon: Duration::from_secs(60),
        high_water: 1_000,
        low_water: 10,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_look_sees_a_lost_epoch_also_while_a_client_listens() {
    let prefix = unique_name();
    let settings = settings_of(&prefix);
    let (url, index) = (settings.url.clone(), Index::new(settings).unwrap());
    let mut redis = open(&url).await;
    let key = |name: &str| format!("{{{prefix}}}:{name}");
    index.begin_epoch().await.unwrap();
    index.move_due(0, |_| chrono::Utc::now()).await.unwrap();
    assert!(index.is_quiet().await.unwrap());
    redis.set(key("listeners"), "1").await.unwrap();
    assert!(index.is_quiet().await.unwrap(), "a client listens");
    redis.del(key("epoch")).await.unwrap();
    assert!(!index.is_quiet().await.unwrap(), "a client listens, and the epoch is gone");
    redis.del(key("listeners")).await.unwrap();
    assert!(!index.is_quiet().await.unwrap(), "the epoch is gone");
    index.forget().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_jobs_that_become_ready_together_the_more_urgent_one_goes_to_the_waiting_fetcher() {
    let prefix = unique_name();
    let settings = settings_of(&prefix);
    let (url, index) = (settings.url.clone(), Index::new(settings).unwrap());
    index.begin_epoch().await.unwrap();
    let key = |lane: &Lane| format!("{{{prefix}}}:ready:{}", lane.as_str());
    // The names decide the order of a Lua table, so one pair proves nothing.
    for n in 0..24 {
        let lane = |name: &str, level: u8| Lane::new(&format!("{name}{n}").parse().unwrap(), level.try_into().unwrap());
        let (urgent, other) = (lane("urgent", n % 5), lane("other", 5 + n % 5));
        let first = first_list_served(&url, &index, key, &urgent, &other).await;
        assert_eq!(first, key(&urgent), "beside {}", other.as_str());
    }
    index.forget().await.unwrap();
}
