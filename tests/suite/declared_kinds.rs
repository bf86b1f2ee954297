//! Kinds that operators declare for remote workers: accepted by every runner, checked by their schemas.

use reqwest::Method;
use serde_json::{Value, json};
use tickr::config::{Config, Flags};
use tickr::handlers::Registry;

use crate::support::program::{command, tickr as program};
use crate::support::{TestApp, answer, eventually, http};

fn resize() -> Value {
    json!({
        "description": "makes pictures smaller",
        "schema": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "width": {"type": "integer", "minimum": 1}},
            "required": ["path"],
            "additionalProperties": false,
        },
        "max_attempts": 7,
        "timeout_ms": 90_000,
        "retry": {"base_ms": 2_000, "factor": 1.0},
        "queue": "pictures",
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declared_kind_is_accepted_by_every_runner_and_checked_by_its_schema() {
    let tickr = TestApp::start().await;
    let other = tickr.another().await;
    let job = json!({"kind": "resize", "payload": {"path": "a.png"}});
    assert_eq!(tickr.post("/v1/jobs", &job).await.code(), "unknown_kind");
    let declared = tickr.put("/v1/kinds/resize", resize()).await;
    assert_eq!(declared.status, 201, "{:#}", declared.body);
    assert_eq!((&declared.body["origin"], &declared.body["queue"]), (&json!("declared"), &json!("pictures")));

    // The process that answered knows it at once, the other one within two seconds.
    let id = tickr.enqueue(job.clone()).await;
    let accepted = tickr.job(id).await;
    assert_eq!((&accepted["queue"], &accepted["max_attempts"]), (&json!("pictures"), &json!(7)));
    let there = format!("http://{}/v1/jobs", other.addr());
    eventually("the other runner accepts the kind", || async {
        let sent = http().post(&there).json(&job).send().await.unwrap();
        (sent.status().as_u16() == 201).then_some(())
    })
    .await;

    for (payload, pointer) in [
        (json!({}), "/payload"),
        (json!({"path": 7}), "/payload/path"),
        (json!({"path": "a", "width": 0}), "/payload/width"),
        (json!({"path": "a", "x": 1}), "/payload"),
    ] {
        let refused = tickr.post("/v1/jobs", json!({"kind": "resize", "payload": payload})).await;
        assert_eq!((refused.status, refused.code(), refused.pointers()), (422, "invalid_payload", vec![pointer]));
    }
    // Own options of a job replace the defaults.
    let own = json!({"kind": "resize", "payload": {"path": "b"}, "queue": "mine", "max_attempts": 1});
    let own = tickr.job(tickr.enqueue(own).await).await;
    assert_eq!((&own["queue"], &own["max_attempts"]), (&json!("mine"), &json!(1)));
    other.stop(tokio_util::sync::CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_to_enqueue_takes_declared_kinds() {
    let tickr = TestApp::start().await;
    assert_eq!(tickr.put("/v1/kinds/resize", resize()).await.status, 201);
    let job = json!({"kind": "resize", "payload": {"path": "a"}});
    let ids = tickr.enqueue_many([job.clone(), job.clone()]).await;
    assert_eq!(tickr.job(ids[1]).await["queue"], "pictures");
    let batch = tickr.post("/v1/batches", json!({"jobs": [job.clone()], "close": true})).await;
    assert_eq!(batch.status, 201, "{:#}", batch.body);

    let outbox = "INSERT INTO tickr_outbox (id, kind, payload) VALUES (?, 'resize', ?)";
    let row = uuid::Uuid::now_v7();
    let insert = sqlx::query(outbox).bind(row).bind(r#"{"path":"o"}"#);
    insert.execute(&mut tickr.mysql().await).await.unwrap();
    let moved = eventually("the row of the outbox is a job", || async {
        let job = tickr.get(&format!("/v1/jobs/{row}")).await;
        (job.status == 200).then_some(job.body)
    })
    .await;
    assert_eq!(moved["queue"], "pictures");

    // A schedule of a declared kind fires, though no runner executes it.
    let schedule = json!({"every_ms": 1_000, "kind": "resize", "payload": {"path": "s"}});
    let put = tickr.put("/v1/schedules/pictures", schedule).await;
    assert_eq!(put.status, 201, "{:#}", put.body);
    eventually("the schedule has fired", || async {
        let ticks = tickr.get("/v1/schedules/pictures/ticks").await;
        ticks.body["data"].as_array().unwrap().iter().any(|tick| tick["outcome"] == "fired").then_some(())
    })
    .await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs WHERE kind = 'resize' AND queue <> 'pictures'").await, 0);
    tickr.delete("/v1/schedules/pictures").await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_of_the_file_goes_to_the_queue_of_its_declared_kind() {
    let tickr = TestApp::start().await;
    assert_eq!(tickr.put("/v1/kinds/resize", resize()).await.status, 201);
    let file = tickr.dir.path().join("schedules.toml");
    let plain = "cron = \"0 0 1 1 *\"\nkind = \"resize\"\npayload = '{\"path\": \"a\"}'\n";
    let text = format!("[schedules.plain]\n{plain}[schedules.own]\n{plain}queue = \"default\"\n");
    std::fs::write(&file, text).unwrap();
    let loaded = Config::load(&Flags::default(), std::iter::empty(), Some(file)).unwrap();
    let schedules = loaded.config.schedules;
    let start = async || {
        let other = tickr.another_with(|config| config.schedules = schedules.clone(), Registry::new()).await;
        other.stop(tokio_util::sync::CancellationToken::new()).await;
    };
    let queue = async |name: &str| tickr.get(&format!("/v1/schedules/{name}")).await.body["queue"].clone();
    start().await;
    assert_eq!((queue("plain").await, queue("own").await), (json!("pictures"), json!("default")));
    // The next start follows the kind.
    assert_eq!(tickr.put("/v1/kinds/resize", json!({"queue": "films"})).await.status, 200);
    start().await;
    assert_eq!((queue("plain").await, queue("own").await), (json!("films"), json!("default")));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn declarations_have_versions_and_are_listed_beside_the_compiled_kinds() {
    let tickr = TestApp::start().await;
    let declared = tickr.put("/v1/kinds/resize", resize()).await;
    let first = declared.header("etag").to_owned();
    assert_eq!(declared.status, 201);
    assert_eq!(tickr.put("/v1/kinds/resize", resize()).await.header("etag"), first);
    let with = |tag: &str, body: Value| {
        let request = tickr.request(Method::PUT, "/v1/kinds/resize").header("if-match", tag).json(&body);
        async move { answer(request).await }
    };
    let changed = with(&first, json!({"max_attempts": 2})).await;
    let second = changed.header("etag").to_owned();
    assert_eq!((changed.status, second == first), (200, false), "{first} {second}");
    let stale = with(&first, json!({"max_attempts": 3})).await;
    assert_eq!((stale.status, stale.code()), (412, "precondition_failed"));
    let absent = tickr.request(Method::PUT, "/v1/kinds/resize").header("if-none-match", "*").json(&json!({}));
    assert_eq!(answer(absent).await.status, 412);

    let kinds = tickr.get("/v1/kinds").await.body;
    let origin = |kind: &str| {
        let found = kinds["data"].as_array().unwrap().iter().find(|known| known["kind"] == kind);
        found.map(|kind| (kind["origin"].clone(), kind["max_attempts"].clone()))
    };
    assert_eq!(origin("resize"), Some((json!("declared"), json!(2))));
    assert_eq!(origin("noop").map(|(origin, _)| origin), Some(json!("compiled")));
    assert_eq!(tickr.get("/v1/kinds/resize").await.header("etag"), second);
    assert_eq!(tickr.get("/v1/kinds/noop").await.body["origin"], "compiled");
    assert_eq!(tickr.get("/v1/kinds/nothing").await.status, 404);

    for (body, pointer) in [
        (json!({"max_attempts": 0}), "/max_attempts"),
        (json!({"timeout_ms": 0}), "/timeout_ms"),
        (json!({"retry": {"factor": 0.0}}), "/retry/factor"),
        (json!({"queue": "No"}), "/queue"),
        (json!({"schema": {"type": "nothing"}}), "/schema"),
        (json!({"schema": {"$ref": "http://example.com/schema.json"}}), "/schema"),
        (json!({"description": "x".repeat(501)}), "/description"),
    ] {
        let refused = tickr.put("/v1/kinds/other", body).await;
        assert_eq!((refused.status, refused.pointers()), (422, vec![pointer]), "{:#}", refused.body);
    }
    assert_eq!(tickr.delete("/v1/kinds/resize").await.status, 204);
    assert_eq!(tickr.delete("/v1/kinds/resize").await.status, 404);
    assert_eq!(tickr.post("/v1/jobs", json!({"kind": "resize", "payload": {}})).await.code(), "unknown_kind");
    let acts = tickr.get("/v1/audit").await.body;
    let acts: Vec<&str> = acts["data"].as_array().unwrap().iter().map(|act| act["action"].as_str().unwrap()).collect();
    assert_eq!(acts, ["kind.remove", "kind.declare", "kind.declare"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_version_of_a_removed_declaration_changes_none_that_has_its_name() {
    let tickr = TestApp::start().await;
    let first = tickr.put("/v1/kinds/resize", json!({"max_attempts": 1})).await.header("etag").to_owned();
    assert_eq!(tickr.delete("/v1/kinds/resize").await.status, 204);
    assert_eq!(tickr.put("/v1/kinds/resize", json!({"max_attempts": 2})).await.status, 201);
    let put = tickr.request(Method::PUT, "/v1/kinds/resize").header("if-match", &first);
    assert_eq!(answer(put.json(&json!({"max_attempts": 3}))).await.status, 412);
    assert_eq!(tickr.get("/v1/kinds/resize").await.body["max_attempts"], 2);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_of_which_a_living_runner_has_a_handler_cannot_be_declared() {
    let tickr = TestApp::start().await;
    for refused in [tickr.put("/v1/kinds/noop", json!({})).await, tickr.delete("/v1/kinds/noop").await] {
        assert_eq!((refused.status, refused.code()), (409, "kind_compiled"));
    }
    // The handler may be one of another runner.
    let other = tickr.another_with(|_| {}, own_kind()).await;
    let refused = tickr.put("/v1/kinds/own", json!({})).await;
    assert_eq!((refused.status, refused.code()), (409, "kind_compiled"), "{:#}", refused.body);
    other.stop(tokio_util::sync::CancellationToken::new()).await;
    assert_eq!(tickr.put("/v1/kinds/own", json!({})).await.status, 201);
    tickr.stop().await;
}

/// A payload of the test's own.
#[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
struct Own {}

impl tickr::handlers::Kind for Own {
    const NAME: &'static str = "own";
}

fn own_kind() -> Registry {
    let mut kinds = Registry::new();
    kinds.register(|_: Own, _| async { Ok(tickr::handlers::Output::default()) });
    kinds
}

#[tokio::test(flavor = "multi_thread")]
async fn tickr_kinds_declares_a_kind_from_a_file_and_deletes_it() {
    let tickr = TestApp::start().await;
    let run = async |args: &[&str]| {
        let mut kinds = command(&program(), tickr.dir.path(), &[&["kinds"], args].concat());
        kinds.env("TICKR_URL", tickr.url(""));
        let output = kinds.output().await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    std::fs::write(tickr.dir.path().join("resize.json"), resize().to_string()).unwrap();
    let (code, out, err) = run(&["declare", "resize", "@resize.json"]).await;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("resize") && out.contains("pictures") && out.contains("makes pictures smaller"), "{out}");
    let (code, out, _) = run(&["show", "resize"]).await;
    let shown: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &shown["schema"], &shown["max_attempts"]), (0, &resize()["schema"], &json!(7)));

    let (code, out, _) = run(&["list"]).await;
    assert!(code == 0 && out.contains("compiled") && out.contains("declared"), "{out}");
    let (code, out, _) = run(&["list", "--declared", "--json"]).await;
    let listed: Value = serde_json::from_str(&out).unwrap();
    assert!(
        code == 0 && listed["data"].as_array().unwrap().len() == 1 && listed["data"][0]["kind"] == "resize",
        "{out}"
    );

    for (args, part, code) in [
        (&["declare", "resize", "{\"slots\": 1}"][..], "slots", 1),
        (&["declare", "resize", "nonsense"], "not JSON", 2),
        (&["declare", "email", "{}"], "handler", 1),
        (&["show", "absent"], "absent", 1),
        (&["delete", "absent"], "absent", 1),
    ] {
        let (ended, _, err) = run(args).await;
        assert!(ended == code && err.contains(part), "{args:?}: {ended} {err}");
    }
    let (code, out, err) = run(&["delete", "resize"]).await;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert_eq!(tickr.get("/v1/kinds/resize").await.status, 404);
    tickr.stop().await;
}
