//! The audit log: what operators did is recorded in the transaction that makes the change.

use serde_json::{Map, Value, json};
use tickr::job::Actor;

use crate::support::{TestApp, answer, http};

async fn acts(tickr: &TestApp, query: &str) -> Vec<(String, String, String)> {
    let page = tickr.get(&format!("/v1/audit?{query}")).await;
    assert_eq!(page.status, 200, "{:#}", page.body);
    let word = |act: &Value, name: &str| act[name].as_str().unwrap().to_owned();
    let acts = page.body["data"].as_array().unwrap().iter();
    acts.map(|act| (word(act, "actor"), word(act, "action"), word(act, "target"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_operator_changes_is_written_down_and_what_was_refused_is_not() {
    let tickr = TestApp::start().await;
    let job = tickr.post("/v1/jobs", json!({"kind": "noop", "delay_ms": 3_600_000})).await;
    let id = job.body["id"].as_str().unwrap().to_owned();
    let steer = async |word: &str, actor: &str, status: u16| {
        let request = http().post(tickr.url(&format!("/v1/jobs/{id}/{word}"))).header("tickr-actor", actor);
        assert_eq!(answer(request).await.status, status, "{word}");
    };
    steer("retry", "ada", 409).await;
    steer("cancel", "ada@build-7", 200).await;
    steer("cancel", "ada", 409).await;
    steer("retry", "  ", 200).await;
    let act = |actor: &str, action: &str| (actor.to_owned(), action.to_owned(), id.clone());
    let expected = [act("anyone", "job.retry"), act("anyone (ada@build-7)", "job.cancel")];
    assert_eq!(acts(&tickr, &format!("target={id}")).await, expected);

    // A request that is sent twice has one record.
    let before = acts(&tickr, "").await.len();
    let other = tickr.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await;
    for _ in 0..2 {
        let request = http().post(tickr.url(&format!("/v1/jobs/{other}/cancel"))).header("idempotency-key", "k1");
        assert_eq!(answer(request).await.status, 200);
    }
    assert_eq!(acts(&tickr, "").await.len(), before + 1);

    // The records come page by page, and a cursor is refused for another filter.
    let page = tickr.get(&format!("/v1/audit?limit=1&target={id}")).await.body;
    let cursor = page["next_cursor"].as_str().unwrap();
    let rest = tickr.get(&format!("/v1/audit?limit=1&target={id}&cursor={cursor}")).await.body;
    assert_eq!((rest["data"].as_array().unwrap().len(), &rest["next_cursor"]), (1, &Value::Null));
    assert_eq!(tickr.get(&format!("/v1/audit?cursor={cursor}")).await.code(), "invalid_cursor");
    assert_eq!(tickr.get("/v1/audit?limit=0").await.pointers(), ["limit"]);

    // A program that uses the library names its actor.
    tickr.app.broker().retry(other, &Actor::tickr()).await.unwrap();
    assert_eq!(acts(&tickr, "limit=1").await[0].0, "tickr");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_actor_and_the_longest_details_are_recorded_and_values_of_a_filter_are_bounded() {
    let tickr = TestApp::start().await;
    let said = "a".repeat(Actor::MAX_SAID);
    let overrides: Map<String, Value> = (0..1_000)
        .map(|n| (format!("{n:0>100}"), json!({"concurrency": 7, "rate": {"starts": 1_000, "period_ms": 60_000}})))
        .collect();
    let limit = json!({"concurrency": 1, "overrides": overrides});
    let request = http().put(tickr.url("/v1/limits/wide")).header("tickr-actor", &said).json(&limit);
    let set = answer(request).await;
    let actor = format!("anyone ({said})");
    assert_eq!((set.status, &set.body["changed_by"]), (201, &json!(actor)), "{:#}", set.body);
    let page = tickr.get("/v1/audit?limit=1").await.body;
    let detail = &page["data"][0]["detail"];
    assert!(detail.to_string().len() > 1 << 16, "{}", detail.to_string().len());
    assert_eq!((&page["data"][0]["actor"], detail["overrides"].as_object().unwrap().len()), (&json!(actor), 1_000));

    for (length, status) in [(2_000, 202), (2_001, 422), (70_000, 422)] {
        let body = json!({"action": "cancel", "filter": {"payload": {"a.b": "x".repeat(length)}}});
        let started = tickr.post("/v1/operations", body).await;
        assert_eq!(started.status, status, "{length}: {:#}", started.body);
        if status == 422 {
            assert_eq!(started.pointers(), ["/filter/payload/a.b"]);
        }
    }
    let body = json!({"action": "cancel", "filter": {"finished_after": "2026-11-01T00:00:60Z"}});
    let started = tickr.post("/v1/operations", body).await;
    assert_eq!((started.status, &started.body["filter"]["finished_after"]), (202, &json!("2026-11-01T00:01:00Z")));
    tickr.stop().await;
}
