//! Server-sent events: a client follows a job to its end through any runner. Cluster events are published while a
//! client listens and cost nothing otherwise, and no listener delays other work.

use std::cell::RefCell;
use std::collections::HashSet;
use std::time::Duration;

use redis::AsyncTypedCommands as _;
use reqwest::Method;
use serde_json::{Value, json};
use tickr::config::{Config, ServerUrl};
use tickr::event::{Event, Health};
use tickr::handlers::Registry;
use tickr::job::State;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::{Condition, DEADLINE, EventStream, Proxy, Relay, TestApp, Told, answer, eventually, http};

fn elsewhere(config: &mut Config) {
    config.queues = vec!["elsewhere".into()];
}

/// Return the events of one job as short texts, in order.
fn words(told: &[Told]) -> Vec<String> {
    let word = |told: &Told| {
        let at = |name: &str| told.data[name].as_str().unwrap_or("").to_owned();
        match told.kind.as_str() {
            "state" | "end" => format!("{} {}", told.kind, at("state")),
            "attempt" => format!("{} {}", told.number_and_word(), at("verdict")).trim().to_owned(),
            other => other.to_owned(),
        }
    };
    told.iter().map(word).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_followed_to_its_end_through_a_runner_that_does_not_run_it() {
    let tickr = TestApp::start().await;
    let other = tickr.another_with(elsewhere, Registry::new()).await;
    let id = tickr.enqueue(json!({"kind": "sleep", "payload": {"ms": 2_500}, "delay_ms": 700})).await;
    let events = format!("http://{}/v1/jobs/{id}/events", other.addr());
    let told = EventStream::open(&events, None).await.rest().await;
    let mut said = words(&told);
    assert!(said.contains(&"progress".to_owned()), "{said:?}");
    said.retain(|word| word != "progress");
    let expected =
        ["state waiting", "1.begin", "state executing", "1.done succeeded", "state completed", "end completed"];
    assert_eq!(said, expected);
    // The end was sent. A client that reconnects gets 204, as browsers require to stop.
    let last = told.last().unwrap().id.clone().unwrap();
    assert_eq!(EventStream::ask(&events, Some(&last)).await.status(), 204);
    // A client that comes late gets the whole history at once.
    let again = EventStream::open(&tickr.url(&format!("/v1/jobs/{id}/events")), None).await.rest().await;
    assert_eq!(words(&again), ["1.begin", "1.done succeeded", "state completed", "end completed"]);
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_story_goes_on_behind_the_last_event_without_losing_a_line_of_the_ledger() {
    let tickr = TestApp::start().await;
    let retry = json!({"base_ms": 30, "factor": 1.0, "jitter": 0.0});
    let job = json!({"kind": "fail", "payload": {"times": 3}, "retry": retry, "unique_key": "canary-key"});
    let id = tickr.enqueue(job).await;
    tickr.until(id, State::Completed).await;
    let url = tickr.url(&format!("/v1/jobs/{id}/events"));
    let behind = async |last: &str| words(&EventStream::open(&url, Some(last)).await.rest().await);
    let whole = behind("nonsense").await;
    let (ends, lines) = (["state completed", "end completed"], |from: u32| {
        (from..=4).flat_map(|n| {
            let verdict = if n < 4 { "failed" } else { "succeeded" };
            [format!("{n}.begin"), format!("{n}.done {verdict}")]
        })
    });
    let story = |skip: usize| -> Vec<String> { lines(1).skip(skip).chain(ends.map(str::to_owned)).collect() };
    assert_eq!(whole, story(0));
    for (last, skip) in [("1.begin", 1), ("1.done", 2), ("2.begin", 3), ("3.done", 6), ("4.done", 8)] {
        assert_eq!(behind(last).await, story(skip), "{last}");
    }

    // A cancel of a waiting job has no attempt. A retry continues the history after the old end.
    let id = tickr.enqueue(json!({"kind": "sleep", "payload": {"ms": 1}, "delay_ms": 3_600_000})).await;
    let url = tickr.url(&format!("/v1/jobs/{id}/events"));
    let mut stream = EventStream::open(&url, None).await;
    assert_eq!(stream.next().await.unwrap().data["state"], "waiting");
    tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    let told = stream.rest().await;
    assert_eq!(words(&told), ["state cancelled", "end cancelled"]);
    let last = told[1].id.clone().unwrap();
    tickr.post(&format!("/v1/jobs/{id}/retry"), json!({})).await;
    tickr.until(id, State::Completed).await;
    let told = EventStream::open(&url, Some(&last)).await.rest().await;
    // The row in the ledger that closes the cancelled job has the number 1, so the attempt is the second.
    assert_eq!(words(&told), ["2.begin", "2.done succeeded", "state completed", "end completed"]);
    let missing = tickr.get("/v1/jobs/0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a/events").await;
    assert_eq!((missing.status, missing.code()), (404, "not_found"));
    tickr.stop().await;
}

/// The test writes what two runners leave in the tables: one whose claim is undone, and one that starts the job.
#[tokio::test(flavor = "multi_thread")]
async fn the_start_of_a_job_is_told_also_after_a_claim_that_was_undone() {
    let tickr = TestApp::start().await;
    let id = tickr.enqueue(json!({"kind": "noop", "queue": "parked"})).await;
    let mut stream = EventStream::open(&tickr.url(&format!("/v1/jobs/{id}/events")), None).await;
    assert_eq!(stream.next().await.unwrap().data["state"], "waiting");
    let mut ids = Vec::new();
    for runner in ["undone/1-abcdef", "real/1-abcdef"] {
        tickr
            .sql(format!(
                "UPDATE owed SET state = 'executing', attempt = 1, runner = '{runner}', \
                 token = UNHEX(REPEAT('11', 16)), started_at = UTC_TIMESTAMP(6), \
                 lease_until = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR"
            ))
            .await;
        let begun = stream.until("the start is told", |told| told.kind == "attempt").await;
        assert_eq!((begun.number_and_word(), &begun.data["runner"]), ("1.begin".into(), &json!(runner)), "{begun:?}");
        ids.push(begun.id.unwrap());
    }
    // A client that reconnects after the start that was undone is told of the other one. A client that knows that one,
    // or whose id has no time, is not.
    let url = tickr.url(&format!("/v1/jobs/{id}/events"));
    for (last, next) in
        [(ids[0].as_str(), "1.begin"), (ids[1].as_str(), "state executing"), ("1.begin", "state executing")]
    {
        let told = EventStream::open(&url, Some(last)).await.next().await.unwrap();
        assert_eq!(words(std::slice::from_ref(&told)), [next], "{last}: {told:?}");
    }
    tickr
        .sql(
            "UPDATE owed SET state = 'waiting', attempt = 0, runner = '', token = DEFAULT(token), \
             started_at = DEFAULT(started_at), lease_until = DEFAULT(lease_until)",
        )
        .await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 200);
    tickr.stop().await;
}

/// Return true if the runner of the test, which has no listener of its own, has published an event. The runner with the
/// listener publishes from the beginning.
async fn publishes(tickr: &TestApp) -> bool {
    let mut range = redis::cmd("XRANGE");
    range.arg(tickr.key("events")).arg("-").arg("+");
    let entries: Vec<(String, Vec<String>)> = range.query_async(&mut tickr.redis().await).await.unwrap();
    let runner = tickr.app.runner().to_string();
    entries.iter().any(|(_, fields)| fields.iter().any(|text| text.contains(&runner)))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_is_heard_through_any_runner_by_what_one_wants_and_from_where_one_was() {
    let tickr = TestApp::start().await;
    let other = tickr.another_with(elsewhere, Registry::new()).await;
    let url = |query: &str| format!("http://{}/v1/events{query}", other.addr());
    let mut all = EventStream::open(&url(""), None).await;
    let mut settled = EventStream::open(&url("?type=settled,cancelled&kind=noop&queue=default"), None).await;
    // The runner that executes the jobs notices the listener within a second. Until then the test enqueues again.
    let job = json!({"kind": "noop", "payload": {"secret": "canary-payload"}, "unique_key": "canary-key"});
    eventually("the other runner is heard", async || {
        let id = tickr.enqueue(job.clone()).await;
        tickr.until(id, State::Completed).await;
        publishes(&tickr).await.then_some(())
    })
    .await;
    tickr.enqueue(json!({"kind": "sleep", "payload": {"ms": 1}})).await;
    let id = tickr.enqueue(job).await;
    let about = |told: &Told, kind: &str| told.kind == kind && told.data["job"] == id.to_string();
    let accepted = all.until("it is accepted", |told| about(told, "accepted")).await;
    assert_eq!((&accepted.data["kind"], &accepted.data["queue"]), (&json!("noop"), &json!("default")));
    assert_eq!(accepted.data["runner"], tickr.app.runner().to_string());
    let started = all.until("it is started", |told| about(told, "started")).await;
    assert_eq!(started.data["number"], 1);
    let end = all.until("it is settled", |told| about(told, "settled")).await;
    assert_eq!((&end.data["verdict"], &end.data["state"]), (&json!("succeeded"), &json!("completed")));
    let heard = settled.until("it is settled", |told| about(told, "settled")).await;
    assert_eq!(heard.id, end.id);

    // A client continues at its last position through the other runner, and gets an event if that position is not known
    // any more.
    let from = async |last: &str| EventStream::open(&tickr.url("/v1/events"), Some(last)).await;
    let mut resumed = from(accepted.id.as_deref().unwrap()).await;
    let mut kinds = Vec::new();
    while kinds.last().is_none_or(|kind| kind != "settled") {
        let told = resumed.until("the next event of the job", |told| {
            assert!(told.id > accepted.id && !told.data.to_string().contains("canary"), "{told:?}");
            told.data["job"] == id.to_string()
        });
        kinds.push(told.await.kind);
    }
    assert_eq!(kinds, ["started", "settled"]);
    for unknown in ["1-1", "nonsense"] {
        let first = from(unknown).await.next().await.unwrap();
        assert_eq!((first.kind.as_str(), &first.data["reason"]), ("reset", &json!("forgotten")));
    }
    for query in ["?type=nothing", "?kind=No%20Name", "?queue=%00", "?colour=red"] {
        let refused = tickr.get(&format!("/v1/events{query}")).await;
        assert_eq!((refused.status, refused.code()), (422, "invalid_request"), "{query}");
    }
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_missed_more_events_than_are_read_at_once_is_told_so() {
    let tickr = TestApp::start().await;
    // Redis keeps a few more events than 10,000, because it removes them in groups.
    let last =
        json!({"type": "runner_stopping", "at": "2026-01-01T00:00:00Z", "runner": tickr.app.runner().to_string()});
    let entries: Vec<u32> = (1..=10_050).collect();
    for some in entries.chunks(1_000) {
        let mut pipe = redis::pipe();
        for number in some {
            let text = if *number == 10_050 { last.to_string() } else { "{}".to_owned() };
            pipe.cmd("XADD").arg(tickr.key("events")).arg(format!("1-{number}")).arg("e").arg(text).ignore();
        }
        pipe.exec_async(&mut tickr.redis().await).await.unwrap();
    }
    let from = async |last: &str| {
        let mut stream = EventStream::open(&tickr.url("/v1/events"), Some(last)).await;
        tokio::time::timeout(DEADLINE, stream.next()).await.expect("an event comes").unwrap()
    };
    let first = from("1-1").await;
    assert_eq!((first.kind.as_str(), &first.data["reason"]), ("reset", &json!("forgotten")));
    // A client that missed fewer gets them.
    let first = from("1-1000").await;
    assert_eq!((first.kind.as_str(), first.id.as_deref()), ("runner_stopping", Some("1-10050")));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_set_about_queues_and_schedules_is_told_once_through_any_runner() {
    let tickr = TestApp::start().await;
    let other = tickr.another_with(elsewhere, Registry::new()).await;
    let open = async |query: &str| EventStream::open(&format!("http://{}/v1/events{query}", other.addr()), None).await;
    let mut all = open("?type=queue_changed,queue_paused,queue_resumed,schedule_put,schedule_paused,schedule_resumed,schedule_deleted,schedule_ticked").await;
    let (mut nightly, mut mail) = (open("?schedule=nightly").await, open("?queue=mail").await);
    eventually("the other runner is heard", async || {
        tickr.enqueue_kind("noop", json!({})).await;
        publishes(&tickr).await.then_some(())
    })
    .await;
    let send = async |method: Method, path: &str, body: Value| {
        answer(http().request(method, tickr.url(path)).json(&body)).await
    };
    let etag = async |path: &str| tickr.get(path).await.headers["etag"].to_str().unwrap().trim_matches('"').to_owned();

    let queue = "/v1/queues/mail";
    assert_eq!(send(Method::PATCH, queue, json!({"concurrency": 3})).await.status, 200);
    assert_eq!(send(Method::PATCH, queue, json!({"concurrency": 3})).await.status, 200);
    let changed = etag(queue).await;
    for (verb, body) in [("pause", json!({"reason": "canary"})), ("pause", json!({})), ("resume", json!({}))] {
        assert_eq!(tickr.post(&format!("{queue}/{verb}"), body).await.status, 200);
    }
    let resumed = etag(queue).await;
    for paused in ["queue_changed", "queue_paused", "queue_resumed"] {
        let told = all.next().await.unwrap();
        assert_eq!((told.kind.as_str(), &told.data["queue"]), (paused, &json!("mail")), "{told:?}");
        assert_eq!(told.data["paused"], paused == "queue_paused");
        match paused {
            "queue_changed" => assert_eq!(told.data["version"], changed),
            "queue_resumed" => assert_eq!(told.data["version"], resumed),
            _ => assert!(!told.data.to_string().contains("canary"), "{told:?}"),
        }
        assert_eq!(told.data["runner"], tickr.app.runner().to_string());
        assert_eq!(mail.next().await.unwrap().id, told.id);
    }

    let path = "/v1/schedules/nightly";
    let wanted = json!({"cron": "0 3 1 1 *", "kind": "noop", "payload": {"secret": "canary"}});
    for status in [201, 200] {
        assert_eq!(send(Method::PUT, path, wanted.clone()).await.status, status);
    }
    let version = etag(path).await;
    for verb in ["pause", "pause", "resume", "resume"] {
        assert_eq!(tickr.post(&format!("{path}/{verb}"), json!({})).await.status, 200);
    }
    let fired = tickr.post(&format!("{path}/trigger"), json!({})).await;
    assert_eq!(fired.status, 201);
    assert_eq!(send(Method::DELETE, path, json!({})).await.status, 204);
    for kind in ["schedule_put", "schedule_paused", "schedule_resumed", "schedule_ticked", "schedule_deleted"] {
        let told = all.next().await.unwrap();
        assert_eq!((told.kind.as_str(), &told.data["schedule"]), (kind, &json!("nightly")), "{told:?}");
        match kind {
            "schedule_deleted" => assert_eq!(told.data["version"], Value::Null),
            "schedule_ticked" => {
                assert_eq!((&told.data["job"], &told.data["count"]), (&fired.body["id"], &json!(1)));
                assert_eq!((&told.data["kind"], &told.data["queue"]), (&json!("noop"), &json!("default")));
                assert!(told.data["due_at"].is_string() && told.data["cause"].is_null(), "{told:?}");
            }
            _ => {
                let paused = json!(kind == "schedule_paused");
                assert_eq!((&told.data["version"], &told.data["paused"]), (&json!(version), &paused));
            }
        }
        assert!(!told.data.to_string().contains("canary"), "{told:?}");
        assert_eq!(nightly.next().await.unwrap().id, told.id);
    }

    // For ticks by the clock, each row of the ledger is published once, though both runners tick, and a skipped tick
    // has its cause.
    let every = json!({"cron": "* * * * * *", "kind": "sleep", "payload": {"ms": 60_000}, "overlap": "skip"});
    assert_eq!(send(Method::PUT, "/v1/schedules/often", every).await.status, 201);
    assert_eq!(all.next().await.unwrap().kind, "schedule_put");
    let mut due = Vec::new();
    for line in 0..3 {
        let told = all.next().await.unwrap();
        assert_eq!((told.kind.as_str(), &told.data["schedule"]), ("schedule_ticked", &json!("often")), "{told:?}");
        let cause = if line == 0 { Value::Null } else { json!("overlap") };
        assert_eq!((told.data["job"].is_string(), &told.data["cause"]), (line == 0, &cause), "{told:?}");
        due.push(told.data["due_at"].as_str().unwrap().to_owned());
    }
    assert!(due.is_sorted() && due[0] != due[1] && due[1] != due[2], "{due:?}");
    assert_eq!(send(Method::DELETE, "/v1/schedules/often", json!({})).await.status, 204);
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_events_stay_in_redis_until_a_client_has_taken_those_before_them() {
    let tickr = TestApp::start().await;
    // Together they are more than the buffers of a connection hold.
    let event = json!({"type": "index_health", "at": "2026-01-01T00:00:00Z", "runner": tickr.app.runner().to_string(),
                       "health": "x".repeat(4_000)})
    .to_string();
    let entries: Vec<u32> = (1..=9_000).collect();
    for some in entries.chunks(500) {
        let mut pipe = redis::pipe();
        for number in some {
            pipe.cmd("XADD").arg(tickr.key("events")).arg(format!("1-{number}")).arg("e").arg(&event).ignore();
        }
        pipe.exec_async(&mut tickr.redis().await).await.unwrap();
    }
    let mut stream = EventStream::open(&tickr.url("/v1/events"), Some("1-1")).await;
    assert_eq!(stream.next().await.unwrap().id.as_deref(), Some("1-2"));
    tickr.redis().await.del(tickr.key("events")).await.unwrap();
    let reset = stream.until("the rest is forgotten", |told| {
        assert_ne!(told.id.as_deref(), Some("1-9000"), "the runner held all of them");
        told.kind == "reset"
    });
    assert_eq!(reset.await.data, json!({"reason": "forgotten"}));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_whose_kinds_cannot_be_read_are_a_gap_for_a_client_with_a_filter() {
    let tickr = TestApp::start().await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let through = |config: &mut Config| {
        elsewhere(config);
        config.mysql_url = Some(ServerUrl::mysql(&proxy.url()).unwrap());
    };
    let other = tickr.another_with(through, Registry::new()).await;
    let id = tickr.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await;
    let mut stream = EventStream::open(&format!("http://{}/v1/events?kind=noop", other.addr()), None).await;
    proxy.refuse("SELECT id, kind, queue FROM jobs FORCE INDEX", 1054, 1);
    other.broker().events().emit(Event::Rescheduled { id });
    let gap = stream.until("the gap of an event without a kind", |told| lost(told, true)).await;
    assert_eq!(gap.data, json!({"reason": "lost"}));
    assert!(proxy.is_through());
    other.broker().events().emit(Event::Rescheduled { id });
    let told = stream.until("the next event", |told| told.kind == "rescheduled").await;
    assert_eq!((&told.data["job"], &told.data["kind"]), (&json!(id), &json!("noop")));
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_for_its_parents_tells_that_it_was_put_off() {
    let tickr = TestApp::start().await;
    let parent = tickr.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await;
    let id = tickr.enqueue(json!({"kind": "noop", "after": [parent.to_string()], "unique_key": "k"})).await;
    let mut job = EventStream::open(&tickr.url(&format!("/v1/jobs/{id}/events")), None).await;
    assert_eq!(job.next().await.unwrap().data["state"], "waiting");
    let mut all = EventStream::open(&tickr.url("/v1/events?type=rescheduled"), None).await;
    let later = json!({"kind": "noop", "unique_key": "k", "on_conflict": "postpone", "delay_ms": 600_000});
    let put_off = tickr.post("/v1/jobs", later).await;
    assert_eq!((put_off.status, &put_off.body["id"]), (200, &json!(id)), "{:#}", put_off.body);
    let told = job.until("it has its new due time", |told| told.data["execute_at"] == put_off.body["execute_at"]).await;
    assert_eq!((told.kind.as_str(), &told.data["state"]), ("state", &json!("waiting")));
    let told = all.until("it is put off", |told| told.kind == "rescheduled").await;
    assert_eq!(told.data["job"], json!(id));
    for id in [id, parent] {
        assert_eq!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 200);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_listening_leaves_nothing_in_redis() {
    let tickr = TestApp::start().await;
    let mut redis = tickr.redis().await;
    let (events, listeners) = (tickr.key("events"), tickr.key("listeners"));
    tickr.enqueue_many((0..50).map(|n| json!({"kind": "noop", "payload": {"n": n}}))).await;
    tickr.until_idle().await;
    assert!(!redis.exists(&events).await.unwrap() && !redis.exists(&listeners).await.unwrap());

    let mut stream = EventStream::open(&tickr.url("/v1/events"), None).await;
    tickr.enqueue_kind("noop", json!({})).await;
    stream.until("it is settled", |told| told.kind == "settled").await;
    assert!(redis.exists(&events).await.unwrap() && redis.ttl(&events).await.unwrap().raw() > 0);
    drop(stream);
    eventually("the mark is gone", async || (!tickr.redis().await.exists(&listeners).await.unwrap()).then_some(()))
        .await;
    // The runner notices that at its next check, and stops publishing.
    eventually("no event is published any more", async || {
        let mut redis = tickr.redis().await;
        let length = async |redis: &mut redis::aio::MultiplexedConnection| -> u64 {
            redis::cmd("XLEN").arg(&events).query_async(redis).await.unwrap()
        };
        let before = length(&mut redis).await;
        let id = tickr.enqueue_kind("noop", json!({})).await;
        tickr.until(id, State::Completed).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        (length(&mut redis).await == before).then_some(())
    })
    .await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_redis_out_a_gap_is_told_and_the_own_runner_is_heard_on() {
    let relay = Relay::start().await;
    let tickr = TestApp::start_alone(
        |own| relay.lead_to(&own.redis_url()),
        |config| config.redis_url = Some(ServerUrl::redis(&relay.redis_url()).unwrap()),
    )
    .await;
    eventually("the index is whole", async || (tickr.app.index().health().now() == Health::Fast).then_some(())).await;
    let mut stream = EventStream::open(&tickr.url("/v1/events"), None).await;
    tickr.enqueue_kind("noop", json!({})).await;
    assert!(stream.until("it is settled", |told| told.kind == "settled").await.id.is_some());
    // The internal event bus reports the change as well.
    tickr
        .event("the index is degraded", async { relay.set(Condition::Cut) }, |event| {
            (*event == Event::IndexHealth(Health::Degraded)).then_some(())
        })
        .await;
    // A machine that stands still for seconds may bring another gap before it.
    stream.until("the gap", |told| told.kind == "gap" && told.data == json!({"reason": "redis"})).await;
    let id = tickr.enqueue_kind("noop", json!({})).await;
    let local =
        stream.until("it is settled", |told| told.kind == "settled" && told.data["job"] == id.to_string()).await;
    assert_eq!((local.id, &local.data["kind"]), (None, &json!("noop")));
    tickr.post("/v1/queues/mail/pause", json!({})).await;
    let local = stream.until("it is paused", |told| told.kind == "queue_paused").await;
    assert_eq!((local.id, &local.data["queue"]), (None, &json!("mail")));
    relay.set(Condition::Pass);
    let whole =
        stream.until("the index is whole", |told| told.kind == "index_health" && told.data["health"] == "fast").await;
    assert_eq!(whole.data["runner"], tickr.app.runner().to_string());
    // The events have positions in the stream again.
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < DEADLINE, "events have no ids");
        let id = tickr.enqueue_kind("noop", json!({})).await;
        let told = stream.until("settled", |told| told.kind == "settled" && told.data["job"] == id.to_string()).await;
        if told.id.is_some() {
            break;
        }
    }
    tickr.stop().await;
}

/// Return whether this is a gap because events were lost, which came through the stream or not.
fn lost(told: &Told, through_the_stream: bool) -> bool {
    told.kind == "gap" && told.data["reason"] == "lost" && told.id.is_some() == through_the_stream
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_connect_while_redis_is_out_are_told_of_a_gap_then_and_at_its_return() {
    let relay = Relay::start().await;
    let tickr = TestApp::start_alone(
        |own| relay.lead_to(&own.redis_url()),
        |config| config.redis_url = Some(ServerUrl::redis(&relay.redis_url()).unwrap()),
    )
    .await;
    eventually("the index is whole", async || (tickr.app.index().health().now() == Health::Fast).then_some(())).await;
    tickr
        .event("the index is degraded", async { relay.set(Condition::Cut) }, |event| {
            (*event == Event::IndexHealth(Health::Degraded)).then_some(())
        })
        .await;
    let mut streams = Vec::new();
    for client in ["first", "second"] {
        let mut stream = EventStream::open(&tickr.url("/v1/events"), None).await;
        let told = stream.until("a gap", |told| told.kind == "gap").await;
        assert_eq!(told.data, json!({"reason": "redis"}), "the {client} client");
        streams.push(stream);
    }
    relay.set(Condition::Pass);
    for mut stream in streams {
        stream.until("the index is whole", |told| told.kind == "index_health" && told.data["health"] == "fast").await;
        stream.until("all runners are heard again", |told| lost(told, false)).await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_job_that_is_accepted_beside_a_flush_of_redis_is_told_or_a_gap_is() {
    let tickr = TestApp::start_alone(|_| {}, |config| config.workers = 4).await;
    let other = tickr.another_with(elsewhere, Registry::new()).await;
    let mut stream = EventStream::open(&format!("http://{}/v1/events", other.addr()), None).await;
    eventually("the runner of the test is heard", async || {
        tickr.enqueue_kind("noop", json!({})).await;
        publishes(&tickr).await.then_some(())
    })
    .await;
    let (mut ticks, mut ids) = (tokio::time::interval(Duration::from_millis(50)), HashSet::new());
    for turn in 0..60 {
        ticks.tick().await;
        if turn == 20 {
            tickr.flush_redis().await;
        }
        ids.insert(tickr.enqueue_kind("noop", json!({})).await.to_string());
    }
    let missing = RefCell::new(ids);
    let told = stream.until("every job, or a gap", |told| {
        if told.kind == "accepted" {
            missing.borrow_mut().remove(told.data["job"].as_str().unwrap());
        }
        told.kind == "gap" || missing.borrow().is_empty()
    });
    told.await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_mark_and_a_lost_stream_are_told_as_gaps_by_the_runner_that_notices_them() {
    let tickr = TestApp::start().await;
    let other = tickr.another_with(elsewhere, Registry::new()).await;
    let mut stream = EventStream::open(&format!("http://{}/v1/events", other.addr()), None).await;
    eventually("the runner of the test is heard", async || {
        tickr.enqueue_kind("noop", json!({})).await;
        publishes(&tickr).await.then_some(())
    })
    .await;
    // The mark is lost until the runner of the test has seen it. That runner leaves out events until the mark is back.
    let (listened, mut redis) = (tickr.app.index().event_stream().has_listeners(), tickr.redis().await);
    let (listeners, events) = (tickr.key("listeners"), tickr.key("events"));
    let (began, mut seen) = (Instant::now(), None);
    // It looks whether there are listeners ten times a second.
    while seen.is_none_or(|seen: Instant| seen.elapsed() < Duration::from_secs(1)) {
        assert!(began.elapsed() < DEADLINE, "the runner sees a mark that is gone");
        redis.del(&listeners).await.unwrap();
        seen = if *listened.borrow() { None } else { seen.or_else(|| Some(Instant::now())) };
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let gap = stream.until("the gap of the runner without a mark", |told| lost(told, true)).await;
    assert_eq!(gap.data, json!({"reason": "lost"}));
    // The stream is lost together with what was in it.
    redis.del(&events).await.unwrap();
    stream.until("the gap of the lost stream", |told| lost(told, false)).await;
    let id = tickr.enqueue_kind("noop", json!({})).await.to_string();
    stream.until("the next job", |told| told.kind == "settled" && told.data["job"] == id).await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_that_redis_has_ended_costs_listeners_no_event() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    let other = tickr.another_with(elsewhere, Registry::new()).await;
    let mut stream = EventStream::open(&format!("http://{}/v1/events", other.addr()), None).await;
    eventually("the runner of the test is heard", async || {
        tickr.enqueue_kind("noop", json!({})).await;
        publishes(&tickr).await.then_some(())
    })
    .await;
    tickr.until_idle().await;
    eventually("the connection for events was idle and is ended", async || {
        let mut redis = tickr.redis().await;
        let clients: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut redis).await.unwrap();
        let mut ended = 0;
        // The last command of a batch of events.
        for client in clients.lines().filter(|client| client.contains(" cmd=expire ")) {
            let id = client.split_whitespace().find_map(|word| word.strip_prefix("id=")).unwrap();
            let mut kill = redis::cmd("CLIENT");
            ended += kill.arg("KILL").arg("ID").arg(id).query_async::<usize>(&mut redis).await.unwrap();
        }
        (ended > 0).then_some(())
    })
    .await;
    let id = tickr.enqueue_kind("noop", json!({})).await.to_string();
    stream.until("it is accepted", |told| told.kind == "accepted" && told.data["job"] == id).await;
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_was_cut_off_from_redis_tells_the_listeners_of_others_of_a_gap() {
    let relay = Relay::start().await;
    let tickr = TestApp::start_alone(
        |own| relay.lead_to(&own.redis_url()),
        |config| config.redis_url = Some(ServerUrl::redis(&relay.redis_url()).unwrap()),
    )
    .await;
    let direct = |config: &mut Config| {
        elsewhere(config);
        config.redis_url = Some(ServerUrl::redis(&tickr.services().redis_url()).unwrap());
    };
    let other = tickr.another_with(direct, Registry::new()).await;
    let mut stream = EventStream::open(&format!("http://{}/v1/events", other.addr()), None).await;
    eventually("the runner of the test is heard", async || {
        tickr.enqueue_kind("noop", json!({})).await;
        publishes(&tickr).await.then_some(())
    })
    .await;
    tickr.until_idle().await;
    let mut own = EventStream::open(&tickr.url("/v1/events"), None).await;
    tickr
        .event("the index is degraded", async { relay.set(Condition::Cut) }, |event| {
            (*event == Event::IndexHealth(Health::Degraded)).then_some(())
        })
        .await;
    // Its own listener gets the event without a position: it is not in the stream.
    let id = tickr.enqueue_kind("noop", json!({})).await.to_string();
    let settled = own.until("it is settled", |told| told.kind == "settled" && told.data["job"] == id).await;
    assert_eq!(settled.id, None);
    relay.set(Condition::Pass);
    let gap = stream.until("the gap of the other runner", |told| lost(told, true)).await;
    assert_eq!(gap.data, json!({"reason": "lost"}));
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_bounded_and_one_that_nobody_reads_is_cut_off() {
    let few = |config: &mut Config| {
        config.http_streams = 2;
        config.http_write_timeout = Duration::from_millis(500);
        config.workers = 8;
    };
    let tickr = TestApp::start_with(few, Registry::new()).await;
    let waits = tickr.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await;
    let path = format!("/v1/jobs/{waits}/events");
    let mut held = EventStream::open(&tickr.url(&path), None).await;
    assert_eq!(held.next().await.unwrap().kind, "state");

    // The client requests all events, and reads none of them.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut socket = socket.connect(tickr.app.addr()).await.unwrap();
    socket.write_all(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut head = [0; 12];
    socket.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    eventually("every stream is taken", async || {
        let full = tickr.get("/v1/jobs/0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a/events").await;
        (full.status == 429 && full.code() == "overloaded").then_some(())
    })
    .await;
    // The client is cut off when the data that it does not read has filled all buffers in between. Meanwhile jobs are
    // accepted.
    let began = Instant::now();
    let mut jobs = 0;
    while tickr.get("/v1/jobs/0192f8c0-7f3a-7c4e-9d5b-3e2a1f0c9b8a/events").await.status == 429 {
        assert!(began.elapsed() < Duration::from_secs(60), "still there after {jobs} jobs");
        jobs += tickr
            .enqueue_many((0..1_000).map(|n| json!({"kind": "noop", "payload": {"n": n}, "delay_ms": 3_600_000})))
            .await
            .len();
    }
    drop(socket);
    // The other stream is not affected.
    tickr.post(&format!("/v1/jobs/{waits}/cancel"), json!({})).await;
    assert_eq!(words(&held.rest().await), ["state cancelled", "end cancelled"]);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn open_streams_end_with_their_runner_and_do_not_hold_it_up() {
    let tickr = TestApp::start().await;
    let other = tickr.another_with(elsewhere, Registry::new()).await;
    let waits = tickr.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await;
    let base = format!("http://{}", other.addr());
    let mut streams = Vec::new();
    for path in ["/v1/events".to_owned(), format!("/v1/jobs/{waits}/events")] {
        for _ in 0..5 {
            streams.push(EventStream::open(&format!("{base}{path}"), None).await);
        }
    }
    let began = Instant::now();
    let (_, ended) = tokio::join!(
        other.stop(CancellationToken::new()),
        futures_util::future::join_all(streams.into_iter().map(EventStream::rest))
    );
    // The fetcher blocks for a second at most. Open requests would get five seconds.
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(ended.len(), 10);
    let data: Vec<&Value> = ended.iter().flatten().map(|told| &told.data).collect();
    assert!(data.len() >= 5, "{data:?}");
    tickr.stop().await;
}
