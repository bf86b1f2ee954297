//! `PATCH /v1/jobs/{id}` and ETags: a waiting job gets another due time or priority, at most once and only if it is
//! still as the client saw it. It starts promptly and once, whatever the index holds.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tickr::config::Config;
use tickr::handlers::Registry;
use tickr::job::{JobId, State};
use tokio_util::sync::CancellationToken;

use crate::support::{Answer, Proxy, TestApp, answer, eventually, eventually_seen, gated, http};

const LATER_MS: u64 = 3_600_000;

fn later() -> Value {
    json!({"kind": "noop", "delay_ms": LATER_MS})
}

/// Send a PATCH with headers.
async fn patch(tickr: &TestApp, id: JobId, headers: &[(&str, &str)], body: &Value) -> Answer {
    patch_at(tickr.url(&format!("/v1/jobs/{id}")), headers, body).await
}

async fn patch_at(url: String, headers: &[(&str, &str)], body: &Value) -> Answer {
    let request = http().request(Method::PATCH, url).json(body);
    answer(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await
}

async fn acts(tickr: &TestApp, id: JobId) -> Vec<Value> {
    let answer = tickr.get(&format!("/v1/audit?target={id}")).await;
    answer.body["data"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_job_gets_another_due_time_and_priority_and_the_audit_says_who_did_it() {
    let tickr = TestApp::start().await;
    let id = tickr.enqueue(later()).await;
    let before = tickr.job(id).await;
    let changed = patch(&tickr, id, &[("Tickr-Actor", "ada")], &json!({"delay_ms": 2 * LATER_MS, "priority": 1})).await;
    assert_eq!(changed.status, 200, "{:#}", changed.body);
    let shown = tickr.get(&format!("/v1/jobs/{id}")).await;
    assert_eq!((&shown.body, shown.header("etag")), (&changed.body, changed.header("etag")));
    assert_eq!((&shown.body["priority"], &shown.body["state"]), (&json!(1), &json!("waiting")));
    let moment = |job: &Value| job["execute_at"].as_str().unwrap().parse::<chrono::DateTime<chrono::Utc>>().unwrap();
    let ahead = moment(&shown.body) - moment(&before);
    assert!((LATER_MS as i64 - 60_000..LATER_MS as i64 + 60_000).contains(&ahead.num_milliseconds()), "{ahead}");
    let acts = acts(&tickr, id).await;
    assert_eq!((acts.len(), &acts[0]["action"]), (1, &json!("job.change")));
    assert!(acts[0]["actor"].as_str().unwrap().contains("ada"), "{}", acts[0]);
    assert_eq!(acts[0]["detail"]["priority"], json!({"from": 5, "to": 1}));

    // Only the named fields change, and a past time means now.
    let changed = patch(&tickr, id, &[], &json!({"priority": 7})).await;
    assert_eq!(changed.body["execute_at"], shown.body["execute_at"]);
    let past = patch(&tickr, id, &[], &json!({"execute_at": "2020-01-01T00:00:00Z"})).await;
    assert_eq!((past.status, &past.body["priority"]), (200, &json!(7)));
    assert!(past.body["execute_at"].as_str().unwrap() > "2021", "{}", past.body["execute_at"]);
    let job = tickr.until(id, State::Completed).await;
    let other = tickr.enqueue(later()).await;
    let zero = patch(&tickr, other, &[], &json!({"execute_at": "0001-01-01T00:00:00Z"})).await;
    assert_eq!(zero.status, 200, "{:#}", zero.body);
    tickr.until(other, State::Completed).await;
    assert_eq!((&job["priority"], job["attempts"].as_array().unwrap().len()), (&json!(7), 1));
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_job_gets_another_payload_that_fits_its_kind_and_runs_with_it() {
    let tickr = TestApp::start().await;
    let id = tickr.enqueue(json!({"kind": "fail", "payload": {"times": 5}, "retry": {"delays_ms": [600_000]}})).await;
    tickr.until(id, State::Retrying).await;
    let before = tickr.get(&format!("/v1/jobs/{id}")).await;
    let wrong = patch(&tickr, id, &[], &json!({"payload": {"times": "many"}})).await;
    assert_eq!((wrong.status, wrong.code(), wrong.pointers()), (422, "invalid_payload", vec!["/payload/times"]));
    let null = patch(&tickr, id, &[], &json!({"payload": null})).await;
    assert_eq!((null.status, null.code()), (422, "invalid_payload"), "{:#}", null.body);
    let changed = patch(&tickr, id, &[], &json!({"payload": {"times": 0}, "delay_ms": 0})).await;
    assert_eq!((changed.status, &changed.body["payload"]), (200, &json!({"times": 0})), "{:#}", changed.body);
    assert_ne!(changed.header("etag"), before.header("etag"));
    let job = tickr.until(id, State::Completed).await;
    assert_eq!(job["payload"], json!({"times": 0}));
    let over = patch(&tickr, id, &[], &json!({"payload": {"times": 1}})).await;
    assert_eq!((over.status, over.code()), (409, "wrong_state"));
    // The audit says that it was changed, and does not quote it.
    let acts = acts(&tickr, id).await;
    assert_eq!((acts.len(), &acts[0]["detail"]["payload"]), (1, &json!("changed")));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_with_another_payload_counts_for_its_new_host() {
    let tickr = TestApp::start().await;
    let callback = |host: &str| json!({"url": format!("https://{host}/hook")});
    let id = tickr.enqueue(json!({"kind": "http", "payload": callback("old.example"), "delay_ms": LATER_MS})).await;
    let changed = patch(&tickr, id, &[], &json!({"payload": callback("new.example")})).await;
    assert_eq!((changed.status, &changed.body["host"]), (200, &json!("new.example")), "{:#}", changed.body);
    for (host, expected) in [("old.example", 0), ("new.example", 1)] {
        let found = tickr.get(&format!("/v1/jobs?q=host:{host}")).await;
        assert_eq!(found.body["data"].as_array().unwrap().len(), expected, "{host}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_waiting_and_retrying_jobs_are_changed_and_what_is_wrong_is_pointed_at() {
    let tickr = TestApp::start().await;
    let id = tickr.enqueue(later()).await;
    let far = (chrono::Utc::now() + chrono::TimeDelta::hours(366 * 24 + 23)).to_rfc3339();
    for (body, pointer) in [
        (json!({}), ""),
        (json!({"priority": null}), ""),
        (json!({"priority": 10}), "/priority"),
        (json!({"priority": -1}), "/priority"),
        (json!({"priority": "high"}), "/priority"),
        (json!({"delay_ms": 31_622_400_001_u64}), "/delay_ms"),
        (json!({"delay_ms": 1, "execute_at": "2026-01-01T00:00:00Z"}), "/delay_ms"),
        (json!({"execute_at": far}), "/execute_at"),
        (json!({"execute_at": "tomorrow"}), "/execute_at"),
        (json!({"priority": 1, "kind": "noop"}), "/kind"),
        (json!([1]), ""),
    ] {
        let refused = patch(&tickr, id, &[], &body).await;
        assert_eq!((refused.status, refused.code()), (422, "invalid_request"), "{body}");
        assert_eq!(refused.pointers().first(), Some(&pointer), "{body}: {:#}", refused.body);
    }
    let strange = patch_at(tickr.url("/v1/jobs/x"), &[], &json!({"priority": 1})).await;
    assert_eq!((strange.status, strange.code()), (422, "invalid_id"));
    let missing = patch(&tickr, JobId::new(), &[], &json!({"priority": 1})).await;
    assert_eq!((missing.status, missing.code()), (404, "not_found"));
    assert!(acts(&tickr, id).await.is_empty());

    let runs = tickr.enqueue_kind("sleep", json!({"ms": 600_000})).await;
    tickr.until(runs, State::Executing).await;
    let over = tickr.enqueue_kind("noop", json!({})).await;
    tickr.until(over, State::Completed).await;
    for (id, state) in [(runs, "executing"), (over, "completed")] {
        let refused = patch(&tickr, id, &[], &json!({"priority": 1})).await;
        assert_eq!(
            (refused.status, refused.code(), &refused.body["current_state"]),
            (409, "wrong_state", &json!(state))
        );
    }
    let again = tickr
        .enqueue(json!({"kind": "fail", "payload": {"times": 1}, "retry": {"base_ms": 3_600_000, "cap_ms": 3_600_000}}))
        .await;
    tickr.until(again, State::Retrying).await;
    let changed = patch(&tickr, again, &[], &json!({"delay_ms": 0})).await;
    assert_eq!((changed.status, &changed.body["state"]), (200, &json!("retrying")));
    tickr.until(again, State::Completed).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_changes_with_one_tag_one_is_made_and_every_answer_about_a_job_has_its_tag() {
    let tickr = TestApp::start().await;
    let posted = tickr
        .post(
            "/v1/jobs",
            json!({"kind": "noop", "payload": {"a": [1.50, "ü"]}, "delay_ms": LATER_MS,
        "retry": {"base_ms": 1, "factor": 1.5}, "unique_key": "k"}),
        )
        .await;
    let (id, tag) = (posted.body["id"].as_str().unwrap().parse::<JobId>().unwrap(), posted.header("etag").to_owned());
    let path = format!("/v1/jobs/{id}");
    let shown = tickr.get(&path).await;
    assert_eq!((shown.header("etag"), &shown.body), (tag.as_str(), &posted.body));
    // Warnings are no part of the job.
    assert_eq!(tickr.post("/v1/queues/closed/pause", json!({})).await.status, 200);
    let warned = json!({"kind": "noop", "queue": "closed", "payload": {"warnings": [1]}, "delay_ms": LATER_MS});
    let warned = tickr.post("/v1/jobs", warned).await;
    assert_ne!(warned.body["warnings"], json!(null), "{:#}", warned.body);
    let seen = tickr.get(&format!("/v1/jobs/{}", warned.body["id"].as_str().unwrap())).await;
    assert_eq!(warned.header("etag"), seen.header("etag"));
    // The second job waits behind the first one, the others behind both.
    for key in [None, None, Some("k1"), Some("k2")] {
        let ordered = json!({"kind": "noop", "order_key": "o", "payload": {"held": false}, "delay_ms": LATER_MS});
        let request = http().post(tickr.url("/v1/jobs")).json(&ordered);
        let ordered = answer(match key {
            Some(key) => request.header("Idempotency-Key", key),
            None => request,
        })
        .await;
        let seen = tickr.get(&format!("/v1/jobs/{}", ordered.body["id"].as_str().unwrap())).await;
        assert_eq!(ordered.header("etag"), seen.header("etag"), "{key:?}: {:#}{:#}", ordered.body, seen.body);
    }
    let known = |tag: String| answer(http().get(tickr.url(&path)).header("If-None-Match", tag));
    let spared = known(format!("W/{tag}")).await;
    assert_eq!((spared.status, spared.header("etag")), (304, tag.as_str()));

    let answers = join_all((0..20).map(|n| {
        let (tickr, tag) = (&tickr, tag.clone());
        async move { patch(tickr, id, &[("If-Match", &tag)], &json!({"delay_ms": LATER_MS + n})).await }
    }))
    .await;
    let made: Vec<&Answer> = answers.iter().filter(|answer| answer.status == 200).collect();
    assert_eq!(made.len(), 1);
    for refused in answers.iter().filter(|answer| answer.status != 200) {
        assert_eq!((refused.status, refused.code()), (412, "precondition_failed"));
    }
    assert_eq!(acts(&tickr, id).await.len(), 1);
    let new = made[0].header("etag").to_owned();
    assert_ne!(new, tag);
    assert_eq!(known(tag.clone()).await.status, 200);
    assert_eq!(known(new.clone()).await.status, 304);

    let weak = patch(&tickr, id, &[("If-Match", &format!("W/{new}"))], &json!({"priority": 1})).await;
    assert_eq!(weak.status, 412);
    let broken = patch(&tickr, id, &[("If-Match", "unquoted")], &json!({"priority": 1})).await;
    assert_eq!((broken.status, broken.pointers()), (422, vec!["if-match"]));
    let one_of = patch(&tickr, id, &[("If-Match", &format!("\"x\", {new}"))], &json!({"priority": 1})).await;
    assert_eq!(one_of.status, 200);
    let any = patch(&tickr, id, &[("If-Match", "*")], &json!({"priority": 2})).await;
    assert_eq!(any.status, 200);
    let cancelled = tickr.post(&format!("{path}/cancel"), json!({})).await;
    assert_eq!((cancelled.status, cancelled.header("etag")), (200, tickr.get(&path).await.header("etag")));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_commit_was_not_answered_is_recognised_and_not_repeated() {
    let tickr = TestApp::start().await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let through = Config::for_tests(&proxy.url(), "redis://unused");
    let elsewhere = |config: &mut Config| {
        config.mysql_url = through.mysql_url;
        config.queues = vec!["nothing".into()];
    };
    let cut = tickr.another_with(elsewhere, Registry::new()).await;
    for (n, key) in [None, Some("lost")].into_iter().enumerate() {
        let id = tickr.enqueue(later()).await;
        let tag = tickr.get(&format!("/v1/jobs/{id}")).await.header("etag").to_owned();
        let mut headers = vec![("If-Match", tag.as_str())];
        headers.extend(key.map(|key| ("Idempotency-Key", key)));
        proxy.cut_after("COMMIT");
        let body = json!({"delay_ms": 2 * LATER_MS, "priority": 3});
        let changed = patch_at(format!("http://{}/v1/jobs/{id}", cut.addr()), &headers, &body).await;
        assert_eq!((changed.status, proxy.cuts()), (200, n + 1), "{:#}", changed.body);
        assert_eq!(changed.body, tickr.job(id).await);
        assert_eq!(acts(&tickr, id).await.len(), 1);
        // The request is repeated. With an idempotency key it is recognised. Without one the tag does not fit any more.
        let again = patch(&tickr, id, &headers, &body).await;
        assert_eq!(again.status, if key.is_some() { 200 } else { 412 });
        assert_eq!(again.header("idempotency-replayed"), if key.is_some() { "true" } else { "" });
        assert_eq!(acts(&tickr, id).await.len(), 1);
    }
    cut.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

/// Send a request about a job through the proxy. MySQL commits it, and the job has ended for the `nth` time before the
/// runner learns that it gets no answer.
async fn answered_after_the_end(
    tickr: &TestApp,
    proxy: &Proxy,
    (id, nth): (JobId, usize),
    call: RequestBuilder,
) -> Answer {
    let cuts = proxy.cuts();
    proxy.keep_commit_of("INSERT INTO audit");
    let ends = async {
        eventually("the answer to the COMMIT is lost", || async { (proxy.cuts() > cuts).then_some(()) }).await;
        eventually_seen("the job has ended", || async {
            // The runner of the request has given no hint to the index yet.
            tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await;
            let job = tickr.job(id).await;
            let ended = matches!(job["state"].as_str(), Some("completed" | "failed"));
            if ended && job["attempts"].as_array().unwrap().len() == nth { Ok(()) } else { Err(job) }
        })
        .await;
        proxy.let_in();
    };
    tokio::join!(answer(call), ends).0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_commit_was_not_answered_is_done_once_although_its_job_has_ended_since() {
    let tickr = TestApp::start().await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let through = Config::for_tests(&proxy.url(), "redis://unused");
    let elsewhere = |config: &mut Config| {
        config.mysql_url = through.mysql_url;
        config.queues = vec!["nothing".into()];
    };
    let cut = tickr.another_with(elsewhere, Registry::new()).await;
    let url = |path: String| format!("http://{}/v1/jobs/{path}", cut.addr());
    let done =
        async |id: JobId, action: &str| acts(&tickr, id).await.iter().filter(|act| act["action"] == action).count();

    let failed = tickr.enqueue(json!({"kind": "fail", "payload": {"times": 9}, "max_attempts": 1})).await;
    tickr.until(failed, State::Failed).await;
    let retry = http().post(url(format!("{failed}/retry")));
    let retried = answered_after_the_end(&tickr, &proxy, (failed, 2), retry).await;
    assert_eq!((retried.status, &retried.body["state"]), (200, &json!("failed")), "{:#}", retried.body);
    assert_eq!(done(failed, "job.retry").await, 1);

    let hastened = tickr.enqueue(later()).await;
    let run_now = http().post(url(format!("{hastened}/run-now")));
    let hurried = answered_after_the_end(&tickr, &proxy, (hastened, 1), run_now).await;
    assert_eq!((hurried.status, &hurried.body["state"]), (200, &json!("completed")), "{:#}", hurried.body);

    // With an idempotency key, the first answer is the one that every later request gets.
    for (key, state) in [(None, "completed"), (Some("lost"), "waiting")] {
        let id = tickr.enqueue(later()).await;
        let send = || {
            let request = http().request(Method::PATCH, url(id.to_string())).json(&json!({"priority": 3}));
            key.into_iter().fold(request, |request, key| request.header("Idempotency-Key", key))
        };
        let changed = answered_after_the_end(&tickr, &proxy, (id, 1), send()).await;
        assert_eq!((changed.status, &changed.body["state"]), (200, &json!(state)), "{:#}", changed.body);
        assert_eq!(changed.body["priority"], 3);
        let again = answer(send()).await;
        assert_eq!((again.status, again.body == changed.body), if key.is_some() { (200, true) } else { (409, false) });
        assert_eq!(done(id, "job.change").await, 1);
    }
    cut.stop(CancellationToken::new()).await;
    tickr.until_idle().await;
    assert_eq!(tickr.job(failed).await["attempts"].as_array().unwrap().len(), 2);
    tickr.stop().await;
}

/// Unlike in a new job, neither the kind nor the expiry is a field of a change, and the kind is none of a replay.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_change_or_replay_points_at_its_body_although_the_cause_lies_in_the_job() {
    let tickr = TestApp::start().await;
    assert_eq!(tickr.put("/v1/kinds/resize", json!({"queue": "pictures"})).await.status, 201);
    let picture = tickr.enqueue(json!({"kind": "resize", "delay_ms": LATER_MS})).await;
    let expired = tickr.enqueue(json!({"kind": "resize", "expires_in_ms": 300})).await;
    tickr.until(expired, State::Failed).await;
    assert_eq!(tickr.delete("/v1/kinds/resize").await.status, 204);
    let expires = tickr.enqueue(json!({"kind": "noop", "delay_ms": LATER_MS, "expires_in_ms": 2 * LATER_MS})).await;
    let too_late = chrono::Utc::now() + chrono::TimeDelta::hours(3);
    for (id, body, code, pointer) in [
        (picture, json!({"payload": {"path": "a.png"}}), "unknown_kind", "/payload"),
        (expires, json!({"delay_ms": 3 * LATER_MS}), "invalid_request", "/delay_ms"),
        (expires, json!({"execute_at": too_late}), "invalid_request", "/execute_at"),
    ] {
        let refused = patch(&tickr, id, &[], &body).await;
        assert_eq!((refused.status, refused.code(), refused.pointers()), (422, code, vec![pointer]), "{body}");
    }
    // A replay may have an empty body, so the fault is one of the body as a whole.
    for body in [json!({}), json!({"payload": {"path": "a.png"}})] {
        let refused = tickr.post(&format!("/v1/jobs/{expired}/replay"), body).await;
        let told = (refused.status, refused.code(), refused.pointers());
        assert_eq!(told, (422, "unknown_kind", vec![""]), "{:#}", refused.body);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_moved_to_another_line_starts_at_its_new_place_and_once() {
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|config| config.workers = 1, gated(&open)).await;
    let first = tickr.enqueue_kind("gate", json!({})).await;
    tickr.until(first, State::Executing).await;
    // Two due jobs in the lane of the lowest priority, and one that is not due in the lane of the highest.
    let ids = tickr
        .enqueue_many([
            json!({"kind": "noop", "priority": 9}),
            json!({"kind": "noop", "priority": 9}),
            json!({"kind": "noop", "priority": 5}),
            json!({"kind": "noop", "priority": 0, "delay_ms": LATER_MS}),
            json!({"kind": "noop", "priority": 0}),
        ])
        .await;
    for (at, body) in
        [(1, json!({"priority": 0})), (3, json!({"priority": 9, "delay_ms": 0})), (4, json!({"delay_ms": LATER_MS}))]
    {
        assert_eq!(patch(&tickr, ids[at], &[], &body).await.status, 200);
    }
    open.cancel();
    for at in [1, 2, 0, 3] {
        tickr.until(ids[at], State::Completed).await;
    }
    // It is due a little later than now, so it goes through the waiting set and then counts as due.
    assert_eq!(patch(&tickr, ids[4], &[], &json!({"delay_ms": 50})).await.status, 200);
    tickr.until_idle().await;
    let ran: Vec<uuid::Uuid> = sqlx::query_scalar("SELECT job_id FROM attempts ORDER BY started_at")
        .fetch_all(&mut tickr.mysql().await)
        .await
        .unwrap();
    // The last one was removed from its ready list because of its due time alone.
    assert_eq!(ran[1..], [1, 2, 0, 3, 4].map(|at| ids[at].uuid()));
    tickr.assert_each_ran_once(6).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_and_the_claims_they_race_agree_on_who_was_first() {
    let tickr = TestApp::start().await;
    for round in 0..20 {
        let id = tickr.enqueue(json!({"kind": "noop", "delay_ms": 50})).await;
        tokio::time::sleep(Duration::from_millis(40 + round)).await;
        let changed = patch(&tickr, id, &[], &json!({"delay_ms": LATER_MS})).await;
        let job = match changed.status {
            200 => tickr.job(id).await,
            409 => tickr.until(id, State::Completed).await,
            other => panic!("{other} {:#}", changed.body),
        };
        assert_eq!(job["attempts"].as_array().unwrap().len(), usize::from(changed.status == 409), "{job:#}");
    }
    tickr.assert_sound().await;
    tickr.stop().await;
}
