//! The interface of Later: `POST /create`, `/delete` and `/query`, and its callbacks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use serde_json::{Value, json};
use sqlx::Row;
use tickr::config::Config;
use tickr::handlers::Registry;
use tickr::job::{JobId, State};
use tokio::time::Instant;

use crate::support::sink::{Sink, SinkCall};
use crate::support::{Proxy, Runner, TestApp, bystander, eventually, http};

fn on(config: &mut Config) {
    config.compat.later = true;
}

/// Send a request as clients of Later do: without a media type.
async fn call(base: &str, path: &str, body: &str) -> (u16, String) {
    let response = http().post(format!("{base}{path}")).body(body.to_owned()).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

async fn create(base: &str, delay: i64, retry: u32, callback: &str) -> String {
    let task = json!({"topic": "order", "delay": delay, "retry": retry, "callback": callback, "content": "hello"});
    let (status, body) = call(base, "/create", &task.to_string()).await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str::<Value>(&body).unwrap()["id"].as_str().unwrap().to_owned()
}

async fn query(base: &str, id: &str) -> (u16, Value) {
    let (status, body) = call(base, "/query", &json!({"id": id}).to_string()).await;
    (status, serde_json::from_str(&body).unwrap())
}

fn success(_: usize, _: &Value) -> (u16, String) {
    (200, r#"{"code":100}"#.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_requests_of_its_readme_get_the_answers_of_its_readme() {
    let tickr = TestApp::start_with(on, Registry::new()).await;
    let before = Utc::now().timestamp();
    let example = "{\n\t\"topic\":\"order\",\n\t\"delay\":15,\n\t\"retry\":3,\n\t\"callback\":\"http://127.0.0.1:8888/\",\n\t\"content\":\"hello\"\n}";
    let (status, created) = call(&tickr.url(""), "/create", example).await;
    let id = serde_json::from_str::<Value>(&created).unwrap()["id"].as_str().unwrap().to_owned();
    assert_eq!((status, created), (200, format!("{{\"id\":\"{id}\"}}")));

    let (status, shown) = call(&tickr.url(""), "/query", &format!("{{\n\t\"id\":\"{id}\"\n}}")).await;
    let at = serde_json::from_str::<Value>(&shown).unwrap()["creat_time"].as_i64().unwrap();
    assert!((before..=Utc::now().timestamp()).contains(&at), "{at}");
    // The due time is 15 seconds later to the microsecond, and both are shown in whole seconds.
    let expected = format!(
        "{{\"id\":\"{id}\",\"topic\":\"order\",\"execute_time\":{},\"max_retry\":3,\"has_retry\":0,\
         \"callback\":\"http://127.0.0.1:8888/\",\"content\":\"hello\",\"creat_time\":{at}}}",
        at + 15
    );
    assert_eq!((status, shown), (200, expected));

    // The topic is a tag, by which operators find the tasks of a class.
    let tagged = tickr.get("/v1/jobs?tag=topic%3Aorder").await;
    assert_eq!((tagged.status, &tagged.body["data"][0]["id"]), (200, &json!(id)), "{:#}", tagged.body);

    let delete = format!("{{\n\t\"id\":\"{id}\"\n}}");
    assert_eq!(call(&tickr.url(""), "/delete", &delete).await, (200, String::new()));
    // Later forgets a deleted task. The job is still there for tickr.
    assert_eq!(call(&tickr.url(""), "/delete", &delete).await.0, 404);
    assert_eq!(query(&tickr.url(""), &id).await.0, 404);
    tickr.until(id.parse().unwrap(), State::Cancelled).await;

    // A topic that no tag may have is kept all the same.
    let worded = json!({"topic": "two words", "delay": 3_600, "callback": "http://127.0.0.1:8888/"}).to_string();
    let (status, created) = call(&tickr.url(""), "/create", &worded).await;
    assert_eq!(status, 200, "{created}");
    let id: JobId = serde_json::from_str::<Value>(&created).unwrap()["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(query(&tickr.url(""), &id.to_string()).await.1["topic"], "two words");
    assert_eq!(tickr.job(id).await["tags"], Value::Null);
    assert_eq!(call(&tickr.url(""), "/delete", &created).await.0, 200);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_code_100_is_a_success_whatever_the_status_is() {
    let long = format!(r#"{{"fill":"{}","code":100}}"#, "x".repeat(70 << 10));
    let cases: Vec<(u16, String, bool)> = vec![
        (200, r#"{"code":100}"#.into(), true),
        (500, r#"{"code": 100, "more": [1]}"#.into(), true),
        (200, r#"{"code":101}"#.into(), false),
        (200, r#"{"code":102}"#.into(), false),
        (200, r#"{"code":"100"}"#.into(), false),
        (200, "{}".into(), false),
        (200, "x".into(), false),
        (200, String::new(), false),
        (204, String::new(), false),
        (404, String::new(), false),
        (200, long, false),
    ];
    let answers = cases.clone();
    let sink = Sink::start(move |_, body| {
        let place: usize = body["content"].as_str().unwrap().parse().unwrap();
        (answers[place].0, answers[place].1.clone())
    })
    .await;
    let tickr = TestApp::start_with(on, Registry::new()).await;
    for (place, (status, answer, good)) in cases.iter().enumerate() {
        let task = json!({"topic": "t", "retry": 1, "callback": sink.url(), "content": place.to_string()});
        let (_, created) = call(&tickr.url(""), "/create", &task.to_string()).await;
        let id: JobId = serde_json::from_str::<Value>(&created).unwrap()["id"].as_str().unwrap().parse().unwrap();
        let job = tickr.until_attempts(id, 1).await;
        let expected = if *good { ("completed", "succeeded") } else { ("retrying", "failed") };
        let seen = (job["state"].as_str().unwrap(), job["attempts"][0]["verdict"].as_str().unwrap());
        assert_eq!(seen, expected, "{status} {answer:.40}: {job:#}");
        let calls = sink.calls();
        let expected = format!(r#"{{"id":"{id}","topic":"t","content":"{place}"}}"#);
        assert_eq!(calls.last().unwrap().text, expected, "byte for byte");
    }
    tickr.post("/v1/operations", json!({"action": "cancel", "filter": {"kind": "later"}})).await;
    tickr.until_idle().await;
    tickr.stop().await;
}

/// The delay between the end of the newest attempt and the next one, in milliseconds.
async fn wait_ms(tickr: &TestApp, id: JobId) -> i64 {
    let sql = "SELECT TIMESTAMPDIFF(MICROSECOND, a.finished_at, o.execute_at) DIV 1000 AS ms FROM owed o \
               JOIN attempts a ON a.job_id = o.id AND a.number = o.attempt WHERE o.id = ?";
    sqlx::query(sql).bind(id.uuid()).fetch_one(&mut tickr.mysql().await).await.unwrap().get("ms")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_repeated_after_10_20_and_40_seconds_and_is_then_forgotten() {
    let sink = Sink::start(|_, _| (200, r#"{"code":101}"#.to_owned())).await;
    let tickr = TestApp::start_with(on, Registry::new()).await;
    let task = create(&tickr.url(""), 0, 3, &sink.url()).await;
    let id: JobId = task.parse().unwrap();
    let first = query(&tickr.url(""), &task).await.1["execute_time"].clone();
    for (attempt, expected) in [(1, 10_000), (2, 20_000), (3, 40_000)] {
        tickr.until_attempts(id, attempt).await;
        assert_eq!(wait_ms(&tickr, id).await, expected, "after attempt {attempt}");
        let (status, shown) = query(&tickr.url(""), &task).await;
        assert_eq!((status, &shown["max_retry"], &shown["has_retry"]), (200, &json!(3), &json!(attempt)));
        assert_eq!(shown["execute_time"], first, "it is the time that the client asked for");
        assert_eq!(tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await.status, 200);
    }
    tickr.until(id, State::Failed).await;
    let calls = sink.calls();
    assert_eq!(calls.len(), 4);
    // A receiver recognises the repetitions.
    assert!(calls.iter().all(|call| call.headers["tickr-job-id"] == task && call.body["id"] == task));
    assert_eq!(query(&tickr.url(""), &task).await.0, 404);
    let dead = tickr.get("/v1/dead-letters?kind=later").await;
    assert_eq!(dead.body["data"].as_array().unwrap().len(), 1, "an operator can replay it: {:#}", dead.body);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_wait_of_a_task_is_twice_as_long_as_the_one_before_up_to_a_week() {
    let sink = Sink::start(|_, _| (200, r#"{"code":102}"#.to_owned())).await;
    let tickr = TestApp::start_with(on, Registry::new()).await;
    let id: JobId = create(&tickr.url(""), 0, 18, &sink.url()).await.parse().unwrap();
    let mut waits = Vec::new();
    for attempt in 1..=18 {
        tickr.until_attempts(id, attempt).await;
        waits.push(wait_ms(&tickr, id).await);
        assert_eq!(tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await.status, 200);
    }
    let expected: Vec<i64> = (0..18).map(|n| (10_000 << n).min(7 * 86_400_000)).collect();
    assert_eq!(waits, expected);
    tickr.until(id, State::Failed).await;
    assert_eq!(sink.calls().len(), 19);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_created_twice_with_one_idempotency_key_is_one_task() {
    let sink = Sink::start(success).await;
    let tickr = TestApp::start_with(on, Registry::new()).await;
    let once = async |content: &str| {
        let task = json!({"topic": "order", "delay": 0, "retry": 3, "callback": sink.url(), "content": content});
        let request = http().post(tickr.url("/create")).header("idempotency-key", "order-42");
        let response = request.body(task.to_string()).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    let first = once("hello").await;
    assert_eq!((first.0, &once("hello").await), (200, &first));
    let (status, said) = once("another").await;
    assert!(status == 400 && said.contains("idempotency_conflict"), "{status} {said}");
    tickr.until_idle().await;
    assert_eq!(sink.calls().len(), 1);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_operation_replays_the_tasks_of_a_receiver_that_was_down_and_each_is_delivered_once() {
    let mended = Arc::<AtomicBool>::default();
    let is_mended = Arc::clone(&mended);
    let answer = move |_: usize, _: &Value| {
        let code = if is_mended.load(Ordering::SeqCst) { 100 } else { 102 };
        (200, json!({"code": code}).to_string())
    };
    let sink = Sink::start(answer).await;
    let tickr = TestApp::start_with(on, Registry::new()).await;
    let (base, receiver) = (tickr.url(""), sink.url());
    let tasks = join_all((0..40).map(|_| create(&base, 0, 0, &receiver))).await;
    let tasks: BTreeSet<String> = tasks.into_iter().collect();
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE end_state = 'failed'", 40).await;
    mended.store(true, Ordering::SeqCst);
    let failed = sink.calls().len();
    let replay = json!({"action": "replay", "filter": {"kind": "later"}, "reason": "the receiver is back"});
    assert_eq!(tickr.post("/v1/operations", replay).await.status, 202);
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'", 40).await;
    // A replay is a task of its own, with an id of its own, and with the topic and the content of the old one.
    let calls = sink.calls().split_off(failed);
    let delivered: BTreeSet<&str> = calls.iter().map(|call| call.body["id"].as_str().unwrap()).collect();
    assert_eq!((calls.len(), delivered.len()), (40, 40));
    assert!(calls.iter().all(|call| call.body["topic"] == "order" && call.body["content"] == "hello"));
    let replayed = tickr.get("/v1/dead-letters?status=replayed&limit=200").await;
    let replayed = replayed.body["data"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned());
    assert_eq!(replayed.collect::<BTreeSet<String>>(), tasks);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_has_three_seconds() {
    let sink = Sink::start(success).await;
    sink.holds(true);
    let tickr = TestApp::start_with(on, Registry::new()).await;
    let id: JobId = create(&tickr.url(""), -5, 1, &sink.url()).await.parse().unwrap();
    let job = tickr.until_attempts(id, 1).await;
    let error = job["attempts"][0]["error"].as_str().unwrap();
    assert!(error.contains("did not answer within 3000 ms"), "{job:#}");
    let time = |name: &str| job["attempts"][0][name].as_str().unwrap().parse::<DateTime<Utc>>().unwrap();
    assert!((time("finished_at") - time("started_at")).num_milliseconds() >= 3_000);
    sink.holds(false);
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await.status, 200);
    tickr.until(id, State::Completed).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_task_is_not_delivered_and_a_running_one_is_not_repeated() {
    let sink = Sink::start(success).await;
    let tickr = TestApp::start_with(on, Registry::new()).await;
    let base = tickr.url("");
    let delete_one = async |_| {
        let id = create(&base, 3_600, 3, &sink.url()).await;
        assert_eq!(call(&base, "/delete", &json!({"id": id}).to_string()).await, (200, String::new()));
        tickr.until(id.parse().unwrap(), State::Cancelled).await
    };
    let mut deleted: Vec<Value> = Vec::new();
    for _ in 0..10 {
        deleted.extend(join_all((0..10).map(delete_one)).await);
    }
    // The ledger line of a cancel is the only one of each.
    assert!(deleted.iter().all(|job| job["attempt"] == 0), "{:#}", deleted[0]);
    tickr.until_idle().await;

    sink.holds(true);
    let running: JobId = create(&base, 0, 3, &sink.url()).await.parse().unwrap();
    eventually("the call has begun", || async { (!sink.calls().is_empty()).then_some(()) }).await;
    assert_eq!(call(&base, "/delete", &json!({"id": running.to_string()}).to_string()).await.0, 200);
    tickr.until(running, State::Cancelled).await;
    sink.holds(false);
    tickr.until_idle().await;
    assert_eq!(sink.calls().len(), 1);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_deleted_before_its_time_is_never_delivered_also_a_moment_before() {
    // Few at once, so that also a slow machine deletes some in time.
    assert!(deletes(10, 40).await > 0);
}

/// `cargo test --test suite -- --ignored compat_`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute; the suite has a smaller one"]
async fn ten_thousand_tasks_that_are_deleted_a_moment_before_their_time_are_never_delivered() {
    assert!(deletes(50, 10_000).await >= 10_000);
}

/// Delete tasks in `lanes` at once, about the moment at which they are due, until so many were deleted before it. A
/// slow machine deletes many too late, so this gives up after twice as many. Return how many were deleted in time.
async fn deletes(lanes: usize, wanted: usize) -> usize {
    let sink = Sink::start(success).await;
    let tickr = TestApp::start_with(on, Registry::new()).await;
    let (base, receiver) = (tickr.url(""), sink.url());
    let try_one = async || {
        let asked = Instant::now();
        let task = create(&base, 1, 3, &receiver).await;
        tokio::time::sleep_until(asked + Duration::from_micros(rand::random_range(700_000..1_040_000))).await;
        let delete = json!({"id": task}).to_string();
        let status = eventually("an answer that is not to come back", || async {
            let (status, _) = call(&base, "/delete", &delete).await;
            (status != 500).then_some(status)
        })
        .await;
        // The task was accepted after it was asked for, so it is due a second later or later still.
        (task, status, asked.elapsed() < Duration::from_secs(1))
    };
    let (done, most) = (AtomicUsize::new(0), 2 * wanted / lanes);
    let lanes = (0..lanes).map(async |_| {
        let mut tries = Vec::new();
        while tries.len() < most && done.load(Ordering::SeqCst) < wanted {
            let (task, status, before) = try_one().await;
            done.fetch_add(usize::from(status == 200 && before), Ordering::SeqCst);
            tries.push((task, status, before));
        }
        tries
    });
    let tries = join_all(lanes).await.concat();
    tickr.until_idle().await;
    let mut calls = BTreeMap::<String, usize>::new();
    for call in sink.calls() {
        *calls.entry(call.body["id"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    let (mut early, mut over) = (0, 0);
    for (task, status, before) in tries {
        let called = calls.get(&task).copied().unwrap_or(0);
        match (status, before) {
            (200, true) => {
                early += 1;
                assert_eq!(called, 0, "task {task} was deleted before its time");
            }
            // A delivery under way is stopped and not repeated.
            (200, false) => assert!(called <= 1, "task {task} was called {called} times"),
            (404, _) => {
                over += 1;
                assert_eq!(called, 1, "task {task} was over");
            }
            _ => panic!("task {task}: {status}"),
        }
    }
    println!("{early} tasks were deleted before their time, {over} were over");
    tickr.stop().await;
    early
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_not_valid_get_400_and_unknown_tasks_404() {
    let tickr = TestApp::start_with(on, Registry::new()).await;
    let base = tickr.url("");
    for body in [
        "",
        "{",
        "[]",
        "7",
        "{}",
        r#"{"topic":"t","delay":15,"retry":3,"content":"x"}"#,
        r#"{"callback":""}"#,
        r#"{"callback":"ftp://example.com"}"#,
        r#"{"callback":"nowhere"}"#,
        r#"{"callback":"http://127.0.0.1:8888/","delay":"soon"}"#,
        r#"{"callback":"http://127.0.0.1:8888/","delay":31622401}"#,
        r#"{"callback":"http://127.0.0.1:8888/","retry":-1}"#,
        r#"{"callback":"http://127.0.0.1:8888/","retry":100}"#,
        r#"{"callback":"http://127.0.0.1:8888/","content":7}"#,
    ] {
        let (status, said) = call(&base, "/create", body).await;
        assert_eq!(status, 400, "{body}: {said}");
        let problem: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(problem["status"], 400);
        let pointers = problem["errors"].as_array().into_iter().flatten();
        assert!(pointers.clone().all(|e| !e["pointer"].as_str().unwrap().starts_with("/payload")), "{body}: {said}");
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 0);
    let noop = tickr.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await.to_string();
    for path in ["/delete", "/query"] {
        for body in ["", "{}", r#"{"id":""}"#, r#"{"id":7}"#] {
            assert_eq!(call(&base, path, body).await.0, 400, "{path} {body}");
        }
        for id in ["35adbde5", "35adbde5-77c4-4d65-adac-0082d91f2554", &noop] {
            assert_eq!(call(&base, path, &json!({"id": id}).to_string()).await.0, 404, "{path} {id}");
        }
    }
    // Its README knows 400 alone for a request that is not valid.
    let large = json!({"callback": "http://127.0.0.1:8888/", "content": "x".repeat(2 << 20)}).to_string();
    let (status, said) = call(&base, "/create", &large).await;
    assert!(status == 400 && said.contains("too_large"), "{status} {said}");
    // A body that is compressed is named as one.
    let request = http().post(format!("{base}/create")).header("content-encoding", "gzip");
    let compressed = request.body(r#"{"callback":"http://127.0.0.1:8888/"}"#).send().await.unwrap();
    let (status, said) = (compressed.status(), compressed.text().await.unwrap());
    assert!(status == 400 && said.contains("Content-Encoding: gzip"), "{status} {said}");
    // Fields that Later does not know are ignored, and so are those that are left out.
    let few = r#"{"callback":"http://127.0.0.1:8888/","delay":3600,"priority":"high"}"#;
    let nulls = r#"{"callback":"http://127.0.0.1:8888/","delay":3600,"topic":null,"retry":null,"content":null}"#;
    for body in [few, nulls] {
        let (status, created) = call(&base, "/create", body).await;
        assert_eq!(status, 200, "{body}: {created}");
        assert_eq!(call(&base, "/delete", &created).await.0, 200, "{body}");
    }
    tickr.post(&format!("/v1/jobs/{noop}/cancel"), json!({})).await;
    tickr.stop().await;

    let off = TestApp::start().await;
    assert_eq!(call(&off.url(""), "/create", few).await.0, 404);
    off.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_fields_count_in_any_case_and_a_null_is_a_field_left_out() {
    let tickr = TestApp::start_with(on, Registry::new()).await;
    let base = tickr.url("");
    let body = r#"{"CALLBACK":"http://127.0.0.1:8888/","Delay":3600,"Retry":3,"Content":"hello","topic":null}"#;
    let (status, created) = call(&base, "/create", body).await;
    assert_eq!(status, 200, "{created}");
    let id = serde_json::from_str::<Value>(&created).unwrap()["id"].as_str().unwrap().to_owned();
    let (status, shown) = call(&base, "/query", &json!({"Id": id}).to_string()).await;
    assert_eq!(status, 200, "{shown}");
    let task: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!([&task["content"], &task["topic"], &task["max_retry"]], [&json!("hello"), &json!(""), &json!(3)]);
    let seconds = task["execute_time"].as_i64().unwrap() - task["creat_time"].as_i64().unwrap();
    assert!((3_599..=3_601).contains(&seconds), "{shown}");
    let (status, said) = call(&base, "/create", r#"{"Callback":"http://127.0.0.1:8888/","Delay":"soon"}"#).await;
    assert!(status == 400 && said.contains("/Delay"), "{status} {said}");
    assert_eq!(call(&base, "/delete", &json!({"ID": id}).to_string()).await.0, 200);

    let sink = Sink::start(success).await;
    let now = json!({"callback": sink.url(), "topic": null, "delay": null, "retry": null, "content": null});
    assert_eq!(call(&base, "/create", &now.to_string()).await.0, 200);
    tickr.until_idle().await;
    let contents: Vec<Value> = sink.calls().into_iter().map(|call| call.body["content"].clone()).collect();
    assert_eq!(contents, [json!("")]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_mysql_the_answer_is_500() {
    let tickr = TestApp::start().await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let through = Config::for_tests(&proxy.url(), "redis://unused");
    let elsewhere = |config: &mut Config| {
        config.mysql_url = through.mysql_url;
        config.queues = vec!["nothing".into()];
        config.compat.later = true;
    };
    let cut = tickr.another_with(elsewhere, Registry::new()).await;
    let base = format!("http://{}", cut.addr());
    let id = create(&base, 3_600, 0, "http://127.0.0.1:8888/").await;
    let few = r#"{"callback":"http://127.0.0.1:8888/","delay":3600}"#;
    for (path, body) in [("/create", few.to_owned()), ("/query", json!({"id": id}).to_string())] {
        // Each cut ends one connection, maybe one of a loop, and no new one comes. Calls use the others up.
        let out = eventually("no connection is left", || async {
            proxy.cut_and_refuse("");
            let (status, said) = call(&base, path, &body).await;
            (status != 200).then_some((status, said))
        });
        let (status, said) = out.await;
        assert_eq!(status, 500, "{path}: {said}");
        assert!(said.contains("store_unavailable"), "{said}");
    }
    let again = eventually("the task is deleted", || async {
        // The last cut may still be to come.
        proxy.let_in();
        let (status, _) = call(&base, "/delete", &json!({"id": id}).to_string()).await;
        (status == 200).then_some(())
    });
    again.await;
    cut.stop(tokio_util::sync::CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_deliver_each_task_without_overlap_and_a_killed_one_loses_none() {
    kill_one_of_two(300).await;
}

/// `cargo test --test suite -- --ignored compat_`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute; the suite has a smaller one"]
async fn instances_deliver_each_of_three_thousand_tasks_and_a_killed_one_loses_none() {
    kill_one_of_two(3_000).await;
}

/// Create this many tasks on two runners, and kill one of them in the middle.
async fn kill_one_of_two(count: usize) {
    let sink = Sink::start(success).await;
    let tickr = TestApp::start_alone(|_| {}, bystander).await;
    let file = tickr.dir.path().join("tickr.toml");
    std::fs::write(&file, "callback_allow_private = true\n[compat.later]\nenabled = true\n").unwrap();
    let env = [("TICKR_CONFIG", file.to_str().unwrap())];
    let mut runners = [Runner::start(&tickr, &env), Runner::start(&tickr, &env)];
    let bases = [runners[0].base().await, runners[1].base().await];
    let url = sink.url();
    let mut tasks: Vec<String> = Vec::new();
    for from in (0..count).step_by(100) {
        let some = (from..count.min(from + 100)).map(|n| create(&bases[n % 2], i64::try_from(n % 3).unwrap(), 3, &url));
        tasks.extend(join_all(some).await);
    }
    eventually("half of the tasks are delivered", || async { (sink.calls().len() >= count / 2).then_some(()) }).await;
    sink.holds(true);
    eventually("calls are open", || async { sink.calls().iter().any(|call| call.answered.is_none()).then_some(()) })
        .await;
    runners[0].kill9();
    sink.holds(false);
    tickr.until_idle().await;

    let mut calls = BTreeMap::<String, Vec<SinkCall>>::new();
    for call in sink.calls() {
        calls.entry(call.body["id"].as_str().unwrap().to_owned()).or_default().push(call);
    }
    for task in &tasks {
        let of_task = calls.get(task).map_or(&[][..], |calls| calls);
        assert!(of_task.iter().any(|call| call.answered.is_some()), "task {task} was never answered");
        for pair in of_task.windows(2) {
            let end = pair[0].answered.unwrap_or(pair[0].at);
            assert!(end <= pair[1].at, "two calls of task {task} overlap");
        }
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs WHERE kind = 'later'").await, i64::try_from(count).unwrap());
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE end_state = 'failed'").await, 0);
    drop(runners);
    tickr.stop().await;
}
