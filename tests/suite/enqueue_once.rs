//! Enqueue once (G8): the same idempotency key and body give the same job, however often and through whichever runner
//! it is enqueued, even at the same time. And at most one unfinished job has a unique key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sqlx::Connection as _;
use tickr::app::App;
use tickr::broker::{Draft, IdempotencyKey};
use tickr::config::Config;
use tickr::handlers::Registry;
use tickr::job::{JobId, Producer, State};
use tickr::store::{EnqueueReceipts, IdempotentOutcome};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::support::{Answer, Proxy, TestApp, answer, call, eventually, http, make_api_key, while_unavailable};

/// So far ahead that the job waits during the whole test.
const LATER_MS: u64 = 3_600_000;

/// Send a POST with an idempotency key, and check its answer against the OpenAPI document.
async fn post(app: &App, path: &str, key: &str, body: &Value) -> Answer {
    let url = format!("http://{}{path}", app.addr());
    while_unavailable(async || answer(http().post(&url).header("Idempotency-Key", key).json(body)).await).await
}

/// Send a POST with an idempotency key, and return the answer byte for byte.
async fn post_raw(client: &reqwest::Client, app: &App, path: &str, key: &str, body: &str) -> (u16, HeaderMap, String) {
    let request = client.post(format!("http://{}{path}", app.addr())).header("Idempotency-Key", key);
    let response = request.header("Content-Type", "application/json").body(body.to_owned()).send().await.unwrap();
    (response.status().as_u16(), response.headers().clone(), response.text().await.unwrap())
}

fn replayed(headers: &HeaderMap) -> bool {
    match headers.get("idempotency-replayed") {
        Some(value) => value == "true",
        None => false,
    }
}

fn later(n: u64) -> Value {
    json!({"kind": "noop", "payload": {"n": n}, "delay_ms": LATER_MS})
}

fn id_of(answer: &Answer) -> JobId {
    answer.body["id"].as_str().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_callers_with_one_key_and_body_on_two_runners_make_one_job() {
    let tickr = TestApp::start().await;
    let other = tickr.another().await;
    let client = http();
    for round in 0..4 {
        let (key, body) = (format!("round-{round}"), later(round).to_string());
        let calls = (0..50_u32).map(|n| {
            let app = if n.is_multiple_of(2) { &tickr.app } else { &other };
            post_raw(&client, app, "/v1/jobs", &key, &body)
        });
        let answers = join_all(calls).await;
        let first: Vec<_> = answers.iter().filter(|(_, headers, _)| !replayed(headers)).collect();
        assert_eq!(first.len(), 1);
        for (status, headers, body) in &answers {
            assert_eq!((*status, body), (201, &first[0].2));
            assert_eq!(headers["location"], first[0].1["location"]);
            assert_eq!(headers["content-type"], "application/json");
        }
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 4);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM idempotency_keys").await, 4);
    tickr.assert_sound().await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_callers_with_one_key_and_different_bodies_make_one_job() {
    let tickr = TestApp::start().await;
    let other = tickr.another().await;
    let call = async |n: u64| {
        let app = if n.is_multiple_of(2) { &tickr.app } else { &other };
        post(app, "/v1/jobs", "one-for-all", &later(n)).await
    };
    let answers = join_all((0..50).map(call)).await;
    let won: Vec<&Answer> = answers.iter().filter(|answer| answer.status == 201).collect();
    assert_eq!(won.len(), 1);
    for answer in answers.iter().filter(|answer| answer.status != 201) {
        assert_eq!((answer.status, answer.code()), (422, "idempotency_conflict"));
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1);
    let payload = &tickr.job(id_of(won[0])).await["payload"];
    assert_eq!(payload, &won[0].body["payload"]);
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_keys_at_once_share_their_commits_and_each_makes_one_job() {
    let tickr = TestApp::start().await;
    let other = tickr.another().await;
    // Every idempotency key comes four times, through both processes, in different orders, at the same moment.
    let call = async |n: u64| {
        let app = if n.is_multiple_of(2) { &tickr.app } else { &other };
        let key = (n * 7) % 60;
        (key, post(app, "/v1/jobs", &format!("key-{key}"), &later(key)).await)
    };
    let mut ids: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
    let mut first = 0;
    for (key, answer) in join_all((0..240).map(call)).await {
        assert_eq!(answer.status, 201, "{:#}", answer.body);
        first += u32::from(!replayed(&answer.headers));
        ids.entry(key).or_default().insert(answer.body["id"].to_string());
    }
    assert_eq!((first, ids.len()), (60, 60));
    assert!(ids.values().all(|ids| ids.len() == 1));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 60);
    tickr.assert_sound().await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_gives_the_first_answer_after_the_job_ended_after_a_restart_and_after_its_purge() {
    let tickr = TestApp::start().await;
    let client = http();
    let body = r#"{"kind":"noop","payload":{"n":1}}"#;
    let (status, headers, first) = post_raw(&client, &tickr.app, "/v1/jobs", "k", body).await;
    assert!(status == 201 && !replayed(&headers), "{first}");
    let id: JobId = serde_json::from_str::<Value>(&first).unwrap()["id"].as_str().unwrap().parse().unwrap();
    tickr.until(id, State::Completed).await;
    // The same JSON in another spelling is the same request.
    let same = "{ \"payload\": {\"\\u006e\": 1},\n \"kind\":\"no\\u006fp\" }";
    let (status, headers, again) = post_raw(&client, &tickr.app, "/v1/jobs", "k", same).await;
    assert_eq!((status, replayed(&headers), &again), (201, true, &first));
    // Other JSON is another request.
    for other in
        [r#"{"kind":"noop","payload":{"n":1.0}}"#, r#"{"kind":"noop"}"#, r#"{"kind":"noop","payload":{"n":2}}"#]
    {
        let (status, _, refused) = post_raw(&client, &tickr.app, "/v1/jobs", "k", other).await;
        assert!(status == 422 && refused.contains("idempotency_conflict"), "{refused}");
    }
    let tickr = tickr.restart().await;
    let (status, headers, again) = post_raw(&client, &tickr.app, "/v1/jobs", "k", body).await;
    assert_eq!((status, replayed(&headers), &again), (201, true, &first));
    tickr.sql("DELETE FROM attempts; DELETE FROM jobs; DELETE FROM tallies").await;
    let (status, headers, again) = post_raw(&client, &tickr.app, "/v1/jobs", "k", body).await;
    assert_eq!((status, replayed(&headers), &again), (201, true, &first));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_with_a_key_is_all_or_nothing_and_replays_in_order() {
    let tickr = TestApp::start().await;
    let batch = json!({"jobs": (0..300).map(later).collect::<Vec<_>>()});
    let calls = (0..8).map(|_| post(&tickr.app, "/v1/jobs/batch", "batch", &batch));
    let answers = join_all(calls).await;
    assert_eq!(answers.iter().filter(|answer| !replayed(&answer.headers)).count(), 1);
    for answer in &answers {
        assert_eq!((answer.status, &answer.body), (201, &answers[0].body));
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 300);
    let receipts = answers[0].body["jobs"].as_array().unwrap();
    for n in [0, 1, 150, 299] {
        let job = tickr.job(receipts[n]["id"].as_str().unwrap().parse().unwrap()).await;
        assert_eq!(job["payload"]["n"], n);
    }
    // A refused batch leaves nothing behind, and its idempotency key can be used again.
    let keyed = |key: &str| json!({"kind": "noop", "delay_ms": LATER_MS, "unique_key": key, "on_conflict": "reject"});
    let holder = tickr.enqueue(keyed("held")).await;
    let batch = json!({"jobs": [later(1), keyed("free"), keyed("held")]});
    for _ in 0..2 {
        let answer = post(&tickr.app, "/v1/jobs/batch", "refused", &batch).await;
        assert_eq!(
            (answer.status, answer.code(), answer.pointers()),
            (409, "unique_key_taken", vec!["/jobs/2/unique_key"])
        );
        assert!(answer.body["errors"][0]["detail"].as_str().unwrap().contains(&holder.to_string()));
    }
    let invalid = json!({"jobs": [later(1), {"kind": "noop", "max_attempts": 0}]});
    assert_eq!(post(&tickr.app, "/v1/jobs/batch", "refused", &invalid).await.status, 422);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 301);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM unique_keys").await, 1);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM idempotency_keys").await, 1);
    assert_eq!(tickr.post(&format!("/v1/jobs/{holder}/cancel"), json!({})).await.status, 200);
    let calls = (0..8).map(|_| post(&tickr.app, "/v1/jobs/batch", "refused", &batch));
    let answers = join_all(calls).await;
    assert_eq!(answers.iter().filter(|answer| !replayed(&answer.headers)).count(), 1);
    assert!(answers.iter().all(|answer| answer.status == 201 && answer.body == answers[0].body));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 304);
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_not_done_again_and_its_answer_is_the_first() {
    let tickr = TestApp::start().await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    // All statements of this runner go through the proxy. It executes no job, so the next COMMIT is the one of the
    // request.
    let through = Config::for_tests(&proxy.url(), "redis://unused");
    let elsewhere = |config: &mut Config| {
        config.mysql_url = through.mysql_url;
        config.queues = vec!["nothing".into()];
    };
    let cut = tickr.another_with(elsewhere, Registry::new()).await;
    let keyed = |key: &str| json!({"kind": "noop", "queue": "q", "unique_key": key, "on_conflict": "replace"});
    let waits = tickr.enqueue(later(0)).await;
    let requests = [
        ("/v1/jobs".to_owned(), later(1)),
        ("/v1/jobs".to_owned(), keyed("u")),
        ("/v1/jobs".to_owned(), keyed("u")),
        ("/v1/jobs/batch".to_owned(), json!({"jobs": [later(2), later(3)]})),
        (format!("/v1/jobs/{waits}/run-now"), json!({})),
    ];
    for (n, (path, body)) in requests.iter().enumerate() {
        let key = format!("lost-{n}");
        proxy.cut_after("COMMIT");
        let first = post(&cut, path, &key, body).await;
        assert_eq!(proxy.cuts(), n + 1, "{path}");
        assert!(matches!(first.status, 200 | 201) && !replayed(&first.headers), "{path}: {:#}", first.body);
        let again = post(&tickr.app, path, &key, body).await;
        assert_eq!((again.status, replayed(&again.headers), &again.body), (first.status, true, &first.body), "{path}");
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 6);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM unique_keys").await, 1);
    tickr.assert_sound().await;
    cut.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_bytes_within_their_limits() {
    let tickr = TestApp::start().await;
    let client = http();
    let long = "k".repeat(255);
    for (n, key) in ["abc", "ABC", "\"abc\"", "abc.", "a=b;c,d", long.as_str()].iter().enumerate() {
        let answer = post(&tickr.app, "/v1/jobs", key, &later(n as u64)).await;
        assert_eq!((answer.status, replayed(&answer.headers)), (201, false), "{key}");
        let answer = post(&tickr.app, "/v1/jobs", key, &later(n as u64)).await;
        assert_eq!((answer.status, replayed(&answer.headers)), (201, true), "{key}");
    }
    let target = tickr.enqueue(later(9)).await;
    let paths = ["/v1/jobs", "/v1/jobs/batch", "cancel", "retry", "run-now"];
    for path in paths.map(|p| if p.starts_with('/') { p.to_owned() } else { format!("/v1/jobs/{target}/{p}") }) {
        let body = if path.ends_with("batch") { json!({"jobs": [later(0)]}) } else { later(0) };
        let request = || client.post(tickr.url(&path)).json(&body);
        let too_long = "k".repeat(256);
        for bad in [&b""[..], b"a b", b"\tx y", b"\xc3\xa4", too_long.as_bytes()] {
            let value = reqwest::header::HeaderValue::from_bytes(bad).unwrap();
            let answer = answer(request().header("Idempotency-Key", value)).await;
            assert_eq!((answer.status, answer.code()), (422, "invalid_request"), "{path} {bad:?}");
            assert_eq!(answer.pointers(), ["Idempotency-Key"]);
        }
        let twice = answer(request().header("Idempotency-Key", "a").header("Idempotency-Key", "a")).await;
        assert_eq!((twice.status, twice.pointers()), (422, vec!["Idempotency-Key"]), "{path}");
    }
    assert_eq!(tickr.job(target).await["state"], "waiting");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 7);

    // Unique keys are compared as bytes as well.
    let unique = async |key: &str| {
        let job = json!({"kind": "noop", "delay_ms": LATER_MS, "unique_key": key});
        tickr.post("/v1/jobs", job).await.status
    };
    for key in ["abc", "ABC", "abc ", "äbc"] {
        assert_eq!((unique(key).await, unique(key).await), (201, 200), "{key:?}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_belongs_to_its_token_and_to_one_call() {
    let tickr = TestApp::start_with(|config| config.api_tokens = vec!["ta".into(), "tb".into()], Registry::new()).await;
    let call = async |token: &str, path: &str| {
        let request = http().post(tickr.url(path)).bearer_auth(token).header("Idempotency-Key", "k");
        answer(request.json(&later(1))).await
    };
    let (a, b) = (call("ta", "/v1/jobs").await, call("tb", "/v1/jobs").await);
    assert_eq!((a.status, b.status), (201, 201));
    assert!(!replayed(&a.headers) && !replayed(&b.headers) && a.body["id"] != b.body["id"]);
    for (token, first) in [("ta", &a), ("tb", &b)] {
        let again = call(token, "/v1/jobs").await;
        assert_eq!((replayed(&again.headers), &again.body), (true, &first.body));
        let cancel = call(token, &format!("/v1/jobs/{}/cancel", id_of(first))).await;
        assert_eq!((cancel.status, cancel.code()), (422, "idempotency_conflict"));
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE state = 'waiting'").await, 2);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_forgotten_after_their_time_and_not_before() {
    let tickr = TestApp::start().await;
    let store = tickr.app.broker().store();
    let week = tickr.config.retention_idempotency;
    assert_eq!(week, Duration::from_secs(7 * 86_400));
    let mut ids = Vec::new();
    for n in 0..5_u64 {
        ids.push(id_of(&post(&tickr.app, "/v1/jobs", &format!("k{n}"), &later(n)).await));
    }
    // Two requests look more than a week old by both clocks, and one by the host's clock alone.
    let age = |nth: u64, days: u64| {
        format!(
            "UPDATE idempotency_keys SET created_at = created_at - INTERVAL {days} DAY, \
             id = CONCAT(UNHEX(LPAD(HEX(UNIX_TIMESTAMP() * 1000 - 8 * 86400000), 12, '0')), SUBSTRING(id, 7)) \
             WHERE JSON_VALUE(answer, '$.payload.n') = {nth}"
        )
    };
    tickr.sql(age(0, 8)).await;
    tickr.sql(age(1, 8)).await;
    tickr.sql(age(2, 6)).await;
    assert_eq!(store.purge_idempotency_keys(None, week).await.unwrap(), (2, None));
    assert_eq!(store.purge_idempotency_keys(None, week).await.unwrap(), (0, None));
    for (n, id) in ids.iter().enumerate() {
        let again = post(&tickr.app, "/v1/jobs", &format!("k{n}"), &later(n as u64)).await;
        assert_eq!((again.status, replayed(&again.headers)), (201, n > 1), "{n}");
        assert_eq!(id_of(&again) == *id, n > 1, "{n}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_retry_and_run_now_with_a_key_are_done_once() {
    let tickr = TestApp::start().await;
    let other = tickr.another().await;
    let empty = json!({});
    let fifty = async |path: &str, key: &str| {
        let calls = (0..50_u32).map(|n| post(if n.is_multiple_of(2) { &tickr.app } else { &other }, path, key, &empty));
        let answers = join_all(calls).await;
        let first: Vec<&Answer> = answers.iter().filter(|answer| !replayed(&answer.headers)).collect();
        assert_eq!(first.len(), 1, "{path}");
        for answer in &answers {
            assert_eq!((answer.status, &answer.body), (first[0].status, &first[0].body), "{path}");
        }
        answers.into_iter().next().unwrap()
    };
    // A cancel of a waiting job answers 200 to every client, though the job is over at the second request.
    let id = tickr.enqueue(later(1)).await;
    let answer = fifty(&format!("/v1/jobs/{id}/cancel"), "cancel").await;
    assert_eq!((answer.status, &answer.body["state"]), (200, &json!("cancelled")));
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 409);
    // A retry starts the job again once.
    let failed = tickr.enqueue(json!({"kind": "fail", "payload": {"permanent": true}})).await;
    tickr.until(failed, State::Failed).await;
    let answer = fifty(&format!("/v1/jobs/{failed}/retry"), "retry").await;
    assert_eq!((answer.status, &answer.body["state"]), (200, &json!("waiting")));
    tickr.until(failed, State::Failed).await;
    // The same request again, at a time when the retry would be possible: it is not carried out again.
    let again = post(&tickr.app, &format!("/v1/jobs/{failed}/retry"), "retry", &empty).await;
    assert_eq!((replayed(&again.headers), &again.body), (true, &answer.body));
    assert_eq!(tickr.job(failed).await["state"], "failed");
    assert_eq!(tickr.verdicts(failed).await.len(), 2);
    // Run now, then cancel the running job. The cancel answers 202 to every client, even after the job is over.
    let id = tickr.enqueue(json!({"kind": "sleep", "payload": {"ms": 600_000}, "delay_ms": LATER_MS})).await;
    assert_eq!(fifty(&format!("/v1/jobs/{id}/run-now"), "run").await.body["state"], "waiting");
    tickr.until(id, State::Executing).await;
    assert_eq!(fifty(&format!("/v1/jobs/{id}/cancel"), "stop").await.status, 202);
    tickr.until(id, State::Cancelled).await;
    assert_eq!(fifty_replays(&tickr, &format!("/v1/jobs/{id}/cancel"), "stop").await, 202);
    // A refusal is not stored, and the idempotency key can be used again.
    let wrong = post(&tickr.app, &format!("/v1/jobs/{id}/run-now"), "again", &empty).await;
    assert_eq!((wrong.status, wrong.code()), (409, "wrong_state"));
    let right = post(&tickr.app, &format!("/v1/jobs/{id}/retry"), "again", &empty).await;
    assert_eq!((right.status, replayed(&right.headers)), (200, false));
    let missing = post(&tickr.app, &format!("/v1/jobs/{}/cancel", JobId::new()), "nobody", &empty).await;
    assert_eq!((missing.status, missing.code()), (404, "not_found"));
    // An idempotency key of one action is refused for any other action, whether that is possible or not.
    for path in [format!("/v1/jobs/{failed}/cancel"), format!("/v1/jobs/{failed}/retry")] {
        let answer = post(&tickr.app, &path, "cancel", &empty).await;
        assert_eq!((answer.status, answer.code()), (422, "idempotency_conflict"), "{path}");
    }
    assert_eq!(tickr.job(failed).await["state"], "failed");
    tickr.assert_sound().await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_about_things_that_are_gone_get_their_first_answer_again() {
    let tickr = TestApp::start().await;
    let url = tickr.url("");
    let admin = make_api_key(&url, "", "ops", json!({"scope": "admin"})).await;
    let shop = make_api_key(&url, &admin, "shop", json!({"scope": "enqueue"})).await;
    let plain = async |method: Method, path: &str, by: &str, body: Value| {
        let answered = call(&url, method, path, by, Some(body)).await;
        assert!(answered.status < 300, "{path}: {:#}", answered.body);
        answered
    };
    let changed = id_of(&plain(Method::POST, "/v1/jobs", &admin, later(1)).await);
    let cancelled = id_of(&plain(Method::POST, "/v1/jobs", &shop, later(2)).await);
    plain(Method::PUT, "/v1/schedules/yearly", &admin, json!({"cron": "0 0 1 1 *", "kind": "noop"})).await;
    let batch = plain(Method::POST, "/v1/batches", &admin, json!({})).await.body["id"].as_str().unwrap().to_owned();
    let requests = [
        (Method::PATCH, format!("/v1/jobs/{changed}"), &admin, json!({"payload": {"n": 3}})),
        (Method::PATCH, format!("/v1/jobs/{changed}"), &admin, json!({"priority": 1})),
        (Method::POST, format!("/v1/jobs/{cancelled}/cancel"), &shop, json!({})),
        (Method::POST, "/v1/schedules/yearly/trigger".to_owned(), &admin, json!({})),
        (Method::POST, format!("/v1/batches/{batch}/retry"), &admin, json!({})),
    ];
    let send = async |at: usize| {
        let (method, path, by, body) = &requests[at];
        let request = http().request(method.clone(), tickr.url(path)).bearer_auth(by).json(body);
        answer(request.header("Idempotency-Key", format!("k{at}"))).await
    };
    let mut first = Vec::new();
    for at in 0..requests.len() {
        first.push(send(at).await);
    }
    assert_eq!(first.iter().map(|answer| answer.status).collect::<Vec<_>>(), [200, 200, 200, 201, 202]);

    plain(Method::POST, &format!("/v1/jobs/{changed}/cancel"), &admin, json!({})).await;
    let delete = json!({"action": "delete", "filter": {"ids": [changed, cancelled]}});
    plain(Method::POST, "/v1/operations", &admin, delete).await;
    plain(Method::DELETE, "/v1/schedules/yearly", &admin, json!({})).await;
    tickr.sql("DELETE FROM batches").await;
    tickr.until_count("SELECT COUNT(*) FROM jobs", 1).await;
    for (at, first) in first.iter().enumerate() {
        let again = send(at).await;
        let replayed = again.header("idempotency-replayed");
        assert_eq!((again.status, &again.body, replayed), (first.status, &first.body, "true"), "{:?}", requests[at]);
    }
    // A request that was not carried out is told that its job is missing.
    let request = http().patch(tickr.url(&format!("/v1/jobs/{changed}"))).bearer_auth(&admin);
    let unknown = answer(request.header("Idempotency-Key", "new").json(&json!({"priority": 1}))).await;
    assert_eq!((unknown.status, unknown.code()), (404, "not_found"));
    tickr.stop().await;
}

/// Repeat the request fifty times and return the status that all replays have.
async fn fifty_replays(tickr: &TestApp, path: &str, key: &str) -> u16 {
    let empty = json!({});
    let answers = join_all((0..50).map(|_| post(&tickr.app, path, key, &empty))).await;
    assert!(answers.iter().all(|answer| replayed(&answer.headers) && answer.body == answers[0].body));
    answers[0].status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_is_served_at_most_once() {
    let tickr = TestApp::start().await;
    let body = later(1).to_string();
    for n in 0..40 {
        let key = format!("left-{}", n % 10);
        let mut socket = TcpStream::connect(tickr.app.addr()).await.unwrap();
        let request = format!(
            "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: {key}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        if n % 3 == 0 {
            // Some of the clients wait for the beginning of the answer.
            let _ = socket.read(&mut [0; 1]).await.unwrap();
        }
    }
    // They send the request again, as clients do that got no answer.
    let answers = join_all((0..10).map(|n| {
        let (app, key) = (&tickr.app, format!("left-{n}"));
        async move { post(app, "/v1/jobs", &key, &later(1)).await }
    }))
    .await;
    assert!(answers.iter().all(|answer| answer.status == 201));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 10);
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_hangs_elsewhere_makes_its_twin_wait_and_harms_no_other() {
    let tickr = TestApp::start().await;
    // Another process has stopped in the middle of a request: it has inserted a row and not committed it.
    let first = post(&tickr.app, "/v1/jobs", "stuck", &later(1)).await;
    let mut elsewhere = tickr.mysql().await;
    let mut open = elsewhere.begin().await.unwrap();
    sqlx::query("DELETE FROM idempotency_keys").execute(&mut *open).await.unwrap();
    let body = later(1);
    let twin = post(&tickr.app, "/v1/jobs", "stuck", &body);
    let others = async {
        let mut slowest = Duration::ZERO;
        for n in 0..50 {
            let began = tokio::time::Instant::now();
            assert_eq!(tickr.post("/v1/jobs", later(n)).await.status, 201);
            slowest = slowest.max(began.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        slowest
    };
    let (twin, slowest) = tokio::join!(twin, others);
    assert_eq!((twin.status, twin.code()), (409, "idempotency_in_progress"));
    assert_eq!(twin.header("retry-after"), "1");
    assert!(slowest < Duration::from_secs(4), "{slowest:?}");
    open.rollback().await.unwrap();
    let again = post(&tickr.app, "/v1/jobs", "stuck", &later(1)).await;
    assert_eq!((replayed(&again.headers), &again.body), (true, &first.body));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 51);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_fails_in_the_middle_leaves_no_key_and_may_be_sent_again() {
    let tickr = TestApp::start().await;
    let client = http();
    let waits = tickr.enqueue(later(1)).await;
    let job = json!({"kind": "noop", "priority": 7, "delay_ms": LATER_MS});
    let unique = json!({"kind": "noop", "priority": 7, "delay_ms": LATER_MS, "unique_key": "u"});
    let requests = [
        ("job", "/v1/jobs".to_owned(), job.clone(), 201),
        ("unique", "/v1/jobs".to_owned(), unique, 201),
        ("batch", "/v1/jobs/batch".to_owned(), json!({"jobs": [later(2), job]}), 201),
        ("cancel", format!("/v1/jobs/{waits}/cancel"), json!({}), 200),
    ];
    // The tables refuse the last rows that each of these requests writes.
    tickr.sql("ALTER TABLE owed ADD CONSTRAINT nothing_goes CHECK (priority <> 7)").await;
    tickr.sql("ALTER TABLE tallies ADD CONSTRAINT nothing_ends CHECK (state <> 'cancelled')").await;
    for (key, path, body, _) in &requests {
        let (status, _, refused) = post_raw(&client, &tickr.app, path, key, &body.to_string()).await;
        assert_eq!(status, 500, "{key}: {refused}");
    }
    for table in ["idempotency_keys", "unique_keys", "attempts"] {
        let rows: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("SELECT COUNT(*) FROM {table}")))
            .fetch_one(&mut tickr.mysql().await)
            .await
            .unwrap();
        assert_eq!(rows, 0, "{table}");
    }
    tickr.assert_sound().await;
    tickr.sql("ALTER TABLE owed DROP CONSTRAINT nothing_goes").await;
    tickr.sql("ALTER TABLE tallies DROP CONSTRAINT nothing_ends").await;
    for (key, path, body, status) in &requests {
        for again in [false, true] {
            let answer = post(&tickr.app, path, key, body).await;
            assert_eq!((answer.status, replayed(&answer.headers)), (*status, again), "{key}");
        }
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 5);
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_retries_that_want_one_unique_key_one_is_done() {
    let tickr = TestApp::start().await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let id =
            tickr.enqueue(json!({"kind": "noop", "queue": "nobodys", "delay_ms": LATER_MS, "unique_key": "u"})).await;
        assert_eq!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 200);
        ids.push(id);
    }
    for _ in 0..30 {
        let retries = ids.iter().map(async |id| tickr.post(&format!("/v1/jobs/{id}/retry"), json!({})).await.status);
        let mut answers = join_all(retries).await;
        answers.sort_unstable();
        assert_eq!(answers, [200, 409]);
        let cancels = ids.iter().map(async |id| tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status);
        let mut answers = join_all(cancels).await;
        answers.sort_unstable();
        assert_eq!(answers, [200, 409]);
    }
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_enqueues_once_without_http() {
    let tickr = TestApp::start().await;
    let broker = tickr.app.broker();
    let key = IdempotencyKey::new(b"importer", b"order-7").unwrap();
    let word = |receipts: &EnqueueReceipts| tickr::store::Answer {
        status: 201,
        body: receipts.accepted().map(|accepted| accepted.id.to_string()).collect(),
    };
    let enqueue = async |payload: &'static str| {
        let payload = RawValue::from_string(payload.to_owned()).unwrap();
        let once = key.request("noop", Some(&payload));
        let job = broker.prepare(Draft::new("noop", payload)).unwrap();
        broker.enqueue_request(&Producer::tickr(), vec![job], Some(once), Arc::new(word)).await.unwrap()
    };
    let IdempotentOutcome::First { done: Some(receipts), answer } = enqueue(r#"{"n": 7}"#).await else {
        panic!("there was no earlier request");
    };
    assert_eq!(receipts.accepted().map(|accepted| accepted.id.to_string()).collect::<String>(), answer.body);
    assert!(matches!(enqueue(r#"{"n":7}"#).await, IdempotentOutcome::Replayed(again) if again == answer));
    assert!(matches!(enqueue(r#"{"n":8}"#).await, IdempotentOutcome::Conflict));
    tickr.until_idle().await;
    tickr.assert_each_ran_once(1).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn at_most_one_unfinished_job_has_a_unique_key_whatever_fifty_callers_on_two_runners_want() {
    let tickr = TestApp::start().await;
    let other = tickr.another().await;
    for mode in ["return", "reject", "replace"] {
        let watched = CancellationToken::new();
        let watch = async {
            let mut mysql = tickr.mysql().await;
            let sql = "SELECT COUNT(*) FROM owed o JOIN jobs j USING (id) WHERE j.unique_key = 'u'";
            while !watched.is_cancelled() {
                let unfinished: i64 = sqlx::query_scalar(sql).fetch_one(&mut mysql).await.unwrap();
                assert!(unfinished <= 1, "{mode}: {unfinished}");
            }
        };
        let calls = async {
            let call = async |n: u64| {
                let app = if n.is_multiple_of(2) { &tickr.app } else { &other };
                let job = json!({
                    "kind": "noop", "payload": {"n": n}, "delay_ms": LATER_MS, "unique_key": "u", "on_conflict": mode,
                });
                while_unavailable(async || {
                    answer(http().post(format!("http://{}/v1/jobs", app.addr())).json(&job)).await
                })
                .await
            };
            let answers = join_all((0..50).map(call)).await;
            watched.cancel();
            answers
        };
        let (answers, ()) = tokio::join!(calls, watch);
        let made: BTreeSet<JobId> = answers.iter().filter(|answer| answer.status == 201).map(id_of).collect();
        let holder = tickr.get("/v1/jobs?state=waiting&limit=200").await.body["data"][0]["id"].clone();
        match mode {
            "replace" => assert_eq!(made.len(), 50),
            _ => assert_eq!(made.len(), 1),
        }
        for answer in answers.iter().filter(|answer| answer.status != 201) {
            match mode {
                "return" => assert_eq!((answer.status, &answer.body["id"]), (200, &holder)),
                _ => {
                    assert_eq!(
                        (answer.status, answer.code(), &answer.body["holder"]),
                        (409, "unique_key_taken", &holder)
                    );
                    assert_eq!(answer.body["current_state"], "waiting");
                }
            }
        }
        // Every job but one was replaced, and its ledger names the job that replaced it.
        let replaced = "SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id \
                        WHERE a.verdict = 'cancelled' AND a.error LIKE 'replaced by job %'";
        assert_eq!(tickr.count(replaced).await, made.len() as i64 - 1);
        assert_eq!(tickr.count("SELECT COUNT(*) FROM owed").await, 1);
        tickr.assert_sound().await;
        let id: JobId = holder.as_str().unwrap().parse().unwrap();
        assert_eq!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 200);
    }
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unique_keys_stay_exact_while_their_holders_run_and_end() {
    let tickr = TestApp::start().await;
    let other = tickr.another().await;
    // The jobs end as fast as they can, and the clients use their unique keys with every `on_conflict`.
    let modes = ["return", "reject", "replace"];
    let caller = async |n: usize| {
        let mut made = 0;
        for round in 0..18 {
            let app = if (n + round).is_multiple_of(2) { &tickr.app } else { &other };
            let job = json!({"kind": "noop", "unique_key": format!("u{}", round % 2), "on_conflict": modes[n % 3]});
            // A machine that is busy with other tests may have no connection free for seconds, and then the answer is 503.
            let answer = eventually("the request is answered", || async {
                let answer = post(app, "/v1/jobs", &format!("{n}-{round}"), &job).await;
                (answer.status != 503).then_some(answer)
            })
            .await;
            match (modes[n % 3], answer.status) {
                (_, 201) => made += 1,
                ("return", 200) => {}
                ("reject", 409) => assert_eq!(answer.code(), "unique_key_taken"),
                ("replace", 409) => assert_eq!(answer.body["current_state"], "executing"),
                other => panic!("{other:?}: {:#}", answer.body),
            }
        }
        made
    };
    let made: i64 = join_all((0..12).map(caller)).await.into_iter().sum();
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, made);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM unique_keys").await, 0);
    // No two jobs with one unique key were ever unfinished together: each was accepted after the one before had ended.
    let together = "SELECT COUNT(*) FROM (SELECT j.created_at, LAG(a.finished_at) OVER \
                    (PARTITION BY j.unique_key ORDER BY j.created_at, a.finished_at) AS before_it \
                    FROM jobs j JOIN attempts a ON a.job_id = j.id AND a.end_state IS NOT NULL) t \
                    WHERE before_it > created_at";
    assert_eq!(tickr.count(together).await, 0);
    tickr.assert_sound().await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replace_spares_a_job_that_executes_and_return_is_remembered() {
    let tickr = TestApp::start().await;
    let sleep =
        |mode: &str| json!({"kind": "sleep", "payload": {"ms": 600_000}, "unique_key": "u", "on_conflict": mode});
    let id = tickr.enqueue(sleep("reject")).await;
    tickr.until(id, State::Executing).await;
    let answer = tickr.post("/v1/jobs", sleep("replace")).await;
    assert_eq!((answer.status, answer.code(), answer.pointers()), (409, "unique_key_taken", vec!["/unique_key"]));
    assert_eq!((&answer.body["holder"], &answer.body["current_state"]), (&json!(id), &json!("executing")));
    assert_eq!(tickr.job(id).await["state"], "executing");
    // A client that was given that job gets it again for the same idempotency key, even when the job is over and its
    // unique key is free.
    let returned = post(&tickr.app, "/v1/jobs", "r", &sleep("return")).await;
    assert_eq!((returned.status, id_of(&returned), replayed(&returned.headers)), (200, id, false));
    assert_eq!(returned.body["attempts"].as_array().unwrap().len(), 1);
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 202);
    tickr.until(id, State::Cancelled).await;
    let again = post(&tickr.app, "/v1/jobs", "r", &sleep("return")).await;
    assert_eq!((again.status, replayed(&again.headers), &again.body), (200, true, &returned.body));
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 1);
    // A job that waits for a retry is replaced, and its attempts stay.
    let fails = json!({"kind": "fail", "payload": {"times": 9}, "unique_key": "f", "on_conflict": "replace",
        "retry": {"base_ms": 3_600_000, "cap_ms": 3_600_000}});
    let old = tickr.enqueue(fails.clone()).await;
    tickr.until(old, State::Retrying).await;
    let new = tickr.enqueue(fails).await;
    assert_eq!(tickr.verdicts(old).await, ["failed"]);
    let ended = tickr.job(old).await;
    assert_eq!(
        (&ended["state"], &ended["last_error"]),
        (&json!("cancelled"), &json!(format!("replaced by job {new}")))
    );
    tickr.assert_sound().await;
    // A combination of options that makes no sense is refused.
    let answer = tickr.post("/v1/jobs", json!({"kind": "noop", "on_conflict": "return"})).await;
    assert_eq!((answer.status, answer.pointers()), (422, vec!["/on_conflict"]));
    let answer = tickr.post("/v1/jobs", json!({"kind": "noop", "unique_key": "x", "on_conflict": "maybe"})).await;
    assert_eq!((answer.status, answer.pointers()), (422, vec!["/on_conflict"]));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_settles_its_unique_keys_job_by_job_and_as_a_whole() {
    let tickr = TestApp::start().await;
    let job =
        |key: &str, mode: &str| json!({"kind": "noop", "delay_ms": LATER_MS, "unique_key": key, "on_conflict": mode});
    let batch = async |jobs: Value| tickr.post("/v1/jobs/batch", json!({"jobs": jobs})).await;
    let (a, b) = (tickr.enqueue(job("a", "return")).await, tickr.enqueue(job("b", "return")).await);
    // Of these five jobs, one already exists, one replaces another, two are new, and one is the same as a job in this
    // batch.
    let jobs = json!([job("a", "return"), job("b", "replace"), job("c", "reject"), job("c", "return"), later(1)]);
    let answer = batch(jobs).await;
    assert_eq!(answer.status, 201, "{:#}", answer.body);
    let receipts = answer.body["jobs"].as_array().unwrap();
    let existing: Vec<bool> = receipts.iter().map(|receipt| receipt["existing"] == true).collect();
    assert_eq!(existing, [true, false, false, true, false]);
    assert_eq!((&receipts[0]["id"], &receipts[3]["id"]), (&json!(a), &receipts[2]["id"]));
    assert_eq!(tickr.job(b).await["state"], "cancelled");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 5);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs WHERE batch_size = 3").await, 3);
    // All of these jobs exist already, so nothing is written.
    let answer = batch(json!([job("c", "return"), job("a", "return")])).await;
    assert_eq!((answer.status, &answer.body["jobs"][1]["id"]), (200, &json!(a)));
    // One refused job refuses the whole batch, including the jobs that would have replaced others.
    let answer = batch(json!([job("a", "replace"), job("d", "return"), job("c", "reject")])).await;
    assert_eq!(
        (answer.status, answer.code(), answer.pointers()),
        (409, "unique_key_taken", vec!["/jobs/2/unique_key"])
    );
    assert_eq!(tickr.job(a).await["state"], "waiting");
    // The jobs of one batch cannot compete for a unique key with each other.
    for mode in ["reject", "replace"] {
        let answer = batch(json!([job("e", "replace"), later(1), job("e", mode)])).await;
        assert_eq!((answer.status, answer.pointers()), (422, vec!["/jobs/2/unique_key"]), "{mode}");
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 5);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM unique_keys").await, 3);
    tickr.assert_sound().await;

    // Two batches with the same unique keys in opposite order wait for each other, without a deadlock.
    let keys: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    let forward: Vec<Value> = keys.iter().map(|key| job(key, "replace")).collect();
    let backward: Vec<Value> = keys.iter().rev().map(|key| job(key, "replace")).collect();
    let batch = &batch;
    let calls = (0..10_u32).map(async |n| {
        let jobs = json!(if n.is_multiple_of(2) { &forward } else { &backward });
        while_unavailable(async || batch(jobs.clone()).await).await
    });
    for answer in join_all(calls).await {
        assert_eq!(answer.status, 201, "{:#}", answer.body);
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM unique_keys").await, 23);
    tickr.assert_sound().await;
    eventually("only the last of each is left", || async {
        (tickr.count("SELECT COUNT(*) FROM owed").await == 24).then_some(())
    })
    .await;
    tickr.stop().await;
}
