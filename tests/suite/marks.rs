//! The events that charts mark: starts of runners, pauses of queues, bulk operations, and losses of Redis.

use std::time::{Duration, Instant};

use serde_json::json;
use tickr::config::Config;
use tickr::handlers::Registry;

use crate::support::{TestApp, call, eventually, make_api_key};

/// Configure a tickr that accepts jobs and runs none of them.
fn bystander(config: &mut Config) {
    config.queues = vec!["elsewhere".into()];
}

/// Return the types of the marks of a span.
async fn marked(tickr: &TestApp, query: &str) -> Vec<String> {
    let answer = tickr.get(&format!("/v1/history/marks?{query}")).await;
    assert_eq!(answer.status, 200, "{:#}", answer.body);
    let marks = answer.body["marks"].as_array().unwrap().clone();
    assert!(marks.windows(2).all(|pair| pair[0]["at"].as_str() <= pair[1]["at"].as_str()), "{marks:#?}");
    marks.iter().map(|mark| mark["type"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn charts_are_told_of_starts_pauses_and_bulk_operations() {
    let tickr = TestApp::start().await;
    // A runner of another version ran until just now.
    tickr
        .sql(
            "INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, started_at, heartbeat_at, stopped_at) \
             VALUES ('gone/1-00000000', '0.0.1', '[]', '[]', 1, 30000, UTC_TIMESTAMP(6) - INTERVAL 30 HOUR, \
             UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))"
                .to_owned(),
        )
        .await;
    let paused = json!({"reason": "the press is being cleaned"});
    assert_eq!(tickr.post("/v1/queues/press/pause", paused).await.status, 200);
    let retry = |queue: &str| json!({"action": "retry", "filter": {"state": "failed", "queue": queue}});
    let operation = tickr.post("/v1/operations", retry("press")).await;
    assert_eq!(operation.status, 202, "{:#}", operation.body);
    assert_eq!(tickr.post("/v1/queues/press/resume", json!({})).await.status, 200);
    // No such job waits, and a cancel makes none run.
    let cancel = json!({"action": "cancel", "filter": {"queue": "press"}});
    assert_eq!(tickr.post("/v1/operations", cancel).await.status, 202);

    let all = ["runners_started", "queue_paused", "operation_started", "queue_resumed"];
    for span in ["5m", "1h", "24h"] {
        assert_eq!(marked(&tickr, &format!("span={span}")).await, all, "{span}");
    }
    assert_eq!(marked(&tickr, "span=5m&queue=press").await, all);
    assert_eq!(marked(&tickr, "span=5m&queue=other").await, ["runners_started"]);
    let answer = tickr.get("/v1/history/marks?span=5m").await.body;
    let [started, paused, released, resumed] = [0, 1, 2, 3].map(|n| answer["marks"][n].clone());
    assert_eq!((&started["runners"], &started["previous_version"]), (&json!(1), &json!("0.0.1")), "{started:#}");
    assert_eq!(started["version"], env!("CARGO_PKG_VERSION"), "{started:#}");
    assert_eq!(
        (&paused["queue"], &paused["reason"], &paused["by"]),
        (&json!("press"), &json!("the press is being cleaned"), &json!("anyone")),
        "{paused:#}"
    );
    assert_eq!(
        (&released["operation"], &released["action"], &released["canary"]),
        (&operation.body["id"], &json!("retry"), &json!(false)),
        "{released:#}"
    );
    assert_eq!((&resumed["queue"], &answer["more"]), (&json!("press"), &json!(false)), "{resumed:#}");

    for (query, pointer) in [("span=1d", "span"), ("queue=No%20Name", "queue")] {
        let refused = tickr.get(&format!("/v1/history/marks?{query}")).await;
        assert_eq!((refused.status, refused.pointers()), (422, vec![pointer]), "{query}");
    }
    // What the marks say stands in the audit and in the list of runners, which a reader may see.
    let admin = make_api_key(&tickr.url(""), "", "ops", json!({"scope": "admin"})).await;
    for (scope, status) in [("read", 200), ("enqueue", 403), ("work", 403)] {
        let key = make_api_key(&tickr.url(""), &admin, scope, json!({"scope": scope})).await;
        let answer = call(&tickr.url(""), reqwest::Method::GET, "/v1/history/marks", &key, None).await;
        assert_eq!(answer.status, status, "{scope}");
    }
    tickr.stop().await;
}

/// A bulk operation records a change for each of its jobs.
#[tokio::test(flavor = "multi_thread")]
async fn pauses_are_found_behind_the_changes_of_many_jobs() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    assert_eq!(tickr.post("/v1/queues/press/pause", json!({"reason": "ink"})).await.status, 200);
    assert_eq!(tickr.post("/v1/queues/press/resume", json!({})).await.status, 200);
    let digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL \
                  SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    let now = tickr.app.broker().store().clock().now().timestamp_millis();
    tickr
        .sql(format!(
            "INSERT INTO audit (id, at, actor, action, target, detail) SELECT \
             UNHEX(CONCAT(LPAD(HEX({now} + 1000), 12, '0'), '7000', LPAD(HEX(n), 16, '0'))), UTC_TIMESTAMP(6), \
             'anyone', 'job.cancel', CONCAT('job ', n), '{{\"operation\":\"01890a5d-ac96-774b-bcce-b302099a8057\"}}' \
             FROM (SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n \
             FROM {digits} a, {digits} b, {digits} c, {digits} e) s"
        ))
        .await;
    for query in ["span=5m", "span=5m&queue=press"] {
        let types = marked(&tickr, query).await;
        assert!(types.ends_with(&["queue_paused".to_owned(), "queue_resumed".to_owned()]), "{query}: {types:?}");
    }
    // The audit tells them as one action when it is asked for that.
    let folded = tickr.get("/v1/audit?fold=true").await.body;
    let acts: Vec<(&str, u64)> = folded["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|act| (act["action"].as_str().unwrap(), act["jobs"].as_u64().unwrap()))
        .collect();
    assert_eq!(acts, [("job.cancel", 10_000), ("queue.resume", 1), ("queue.pause", 1)], "{folded:#}");
    assert_eq!((&folded["more"], &folded["next_cursor"]), (&json!(false), &serde_json::Value::Null), "{folded:#}");
    let plain = tickr.get("/v1/audit?fold=false&limit=1").await.body;
    assert_eq!((plain.get("more"), plain["data"][0].get("jobs")), (None, None), "{plain:#}");
    let cursor = plain["next_cursor"].as_str().unwrap();
    let refused = tickr.get(&format!("/v1/audit?fold=true&cursor={cursor}")).await;
    assert_eq!((refused.status, refused.pointers()), (422, vec!["cursor"]));
    tickr.stop_broken("its audit was written by hand").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn marks_are_bounded_and_read_quickly_from_long_tables() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let digits = "(SELECT 0 d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL \
                  SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    let now = tickr.app.broker().store().clock().now().timestamp_millis();
    // A change each second of the last hours, and one pause among a hundred of them.
    let numbers = format!(
        "(SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n FROM {digits} a, {digits} b, {digits} c, {digits} e) s"
    );
    let id = format!("UNHEX(CONCAT(LPAD(HEX({now} - 1000 * n), 12, '0'), '70008000000000000001'))");
    let at = format!("FROM_UNIXTIME(({now} - 1000 * n) / 1000)");
    tickr
        .sql(format!(
            "INSERT INTO audit (id, at, actor, action, target) SELECT {id}, {at}, 'anyone', \
             IF(n % 100 = 0, 'queue.pause', 'job.cancel'), 'mail' FROM {numbers}; \
             INSERT INTO operations (id, action, filter, params, state, actor, created_at, ended_at, estimate, capped) \
             SELECT {id}, IF(n % 100 = 50, 'retry', 'cancel'), '{{}}', '{{}}', 'done', 'anyone', {at}, {at}, 0, FALSE \
             FROM {numbers}; \
             INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, started_at, heartbeat_at, stopped_at) \
             SELECT CONCAT('gone/', n, '-00000000'), '1', '[]', '[]', 1, 30000, {at}, {at}, {at} + INTERVAL 1 SECOND \
             FROM {numbers} WHERE n > 10; \
             INSERT INTO index_changes (at, runner, what) SELECT {at}, CONCAT('gone/', n, '-00000000'), \
             IF(n % 2, 'lost', 'back') FROM {numbers}"
        ))
        .await;
    for query in ["span=5m", "span=1h", "span=24h", "span=24h&queue=mail"] {
        let mut took = Vec::new();
        for _ in 0..5 {
            let began = Instant::now();
            let answer = tickr.get(&format!("/v1/history/marks?{query}")).await.body;
            took.push(began.elapsed());
            let marks = answer["marks"].as_array().unwrap();
            // The newest ones: in five minutes there are fewer.
            let whole = query != "span=5m";
            assert!(marks.len() <= 50 && (marks.len() == 50 || !whole), "{query}: {}", marks.len());
            assert!(answer["more"] == true || !whole, "{query}");
        }
        took.sort_unstable();
        println!("{query}: {:?}", took[2]);
        assert!(took[2] < Duration::from_secs(1), "{query}: {took:?}");
    }
    tickr.stop_broken("its rows were written by hand").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn charts_are_told_when_redis_was_lost_and_came_back() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    tickr.enqueue_many([json!({"kind": "noop"})]).await;
    tickr.until_idle().await;
    assert_eq!(marked(&tickr, "span=5m").await, ["runners_started"]);
    tickr.services().redis().kill9().unwrap();
    let mark = async |word: &str| {
        eventually(&format!("{word} is marked"), || async {
            let answer = tickr.get("/v1/history/marks?span=5m").await.body;
            answer["marks"].as_array().unwrap().iter().find(|mark| mark["type"] == word).cloned()
        })
        .await
    };
    let lost = mark("redis_lost").await;
    assert_eq!(lost["runners"], 1, "{lost:#}");
    tickr.services().redis().start_again().unwrap();
    let back = mark("redis_back").await;
    assert!(back["at"].as_str() > lost["at"].as_str(), "{lost:#} {back:#}");
    tickr.stop().await;
}
