//! Jobs that wait for other jobs, their parents.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::{Executor, MySqlConnection};
use tickr::config::Config;
use tickr::handlers::Registry;
use tickr::job::{JobId, State};
use tickr::store::Retention;
use tokio_util::sync::CancellationToken;

use crate::operations::DIGITS;
use crate::support::{Proxy, Runner, TestApp, broken, bystander, eventually, gated};

/// Children that started before one of their parents ended.
const INVERSIONS: &str = "SELECT COUNT(*) FROM job_parents p JOIN attempts c ON c.job_id = p.child_id AND c.runner <> '' \
                          AND c.expired IS NULL WHERE c.started_at < COALESCE((SELECT MAX(a.finished_at) FROM attempts a \
                          WHERE a.job_id = p.parent_id AND a.end_state IS NOT NULL), '9999-01-01')";

/// Children that started more than three seconds after the last of their parents had ended, though they were due. A
/// runner looks at all blocked jobs from time to time, which may not be what lets them go.
const LATE: &str = "SELECT COUNT(*) FROM (SELECT p.child_id, (SELECT MIN(c.started_at) FROM attempts c \
                    WHERE c.job_id = p.child_id AND c.runner <> '') AS started, MAX((SELECT MAX(a.finished_at) FROM attempts a \
                    WHERE a.job_id = p.parent_id)) AS ended FROM job_parents p GROUP BY p.child_id) t \
                    WHERE started > ended + INTERVAL 3 SECOND";

async fn after(tickr: &TestApp, parents: &[JobId], more: Value) -> JobId {
    let mut job =
        json!({"kind": "noop", "payload": {}, "after": parents.iter().map(ToString::to_string).collect::<Vec<_>>()});
    let Value::Object(more) = more else { panic!("not an object: {more}") };
    job.as_object_mut().unwrap().extend(more);
    tickr.enqueue(job).await
}

async fn explained(tickr: &TestApp, id: JobId) -> (String, String) {
    let body = tickr.get(&format!("/v1/jobs/{id}/explain")).await.body;
    let reason = &body["reasons"][0];
    (reason["code"].as_str().unwrap().to_owned(), reason["text"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_waits_for_all_of_its_parents_and_says_so() {
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, gated(&open)).await;
    let gate = json!({"kind": "gate", "payload": {}});
    let runs = tickr.enqueue(gate.clone()).await;
    tickr.until(runs, State::Executing).await;
    let waits = tickr.enqueue(json!({"kind": "noop", "payload": {}, "delay_ms": 600_000})).await;
    let done = tickr.enqueue(json!({"kind": "noop", "payload": {}})).await;
    tickr.until(done, State::Completed).await;
    // A parent that is named twice is one parent.
    let child =
        after(&tickr, &[runs, waits, done, runs], json!({"limit_key": "t", "unique_key": "u", "tags": ["a"]})).await;
    let only_done = after(&tickr, &[done], json!({})).await;
    tickr.until(only_done, State::Completed).await;
    let shown = tickr.job(child).await;
    assert_eq!(
        (&shown["state"], &shown["held"], &shown["on_parent_failure"]),
        (&json!("waiting"), &json!(true), &json!("cancel"))
    );
    assert_eq!(shown["after"], json!([runs.to_string(), waits.to_string(), done.to_string()]));
    let (code, text) = explained(&tickr, child).await;
    assert_eq!(code, "waits_for_parents");
    assert!(text.starts_with("it waits for 2 of 3 parents: "), "{text}");
    assert!(text.contains(&format!("{runs} is executing")) && text.contains(&format!("{waits} is waiting")), "{text}");
    // It cannot be started by hand.
    let refused = tickr.post(&format!("/v1/jobs/{child}/run-now"), json!({})).await;
    assert_eq!((refused.status, refused.code()), (409, "wrong_state"), "{:#}", refused.body);
    tickr.assert_sound().await;

    open.cancel();
    tickr.until(runs, State::Completed).await;
    assert_eq!(explained(&tickr, child).await.0, "waits_for_parents");
    assert_eq!(tickr.post(&format!("/v1/jobs/{waits}/run-now"), json!({})).await.status, 200);
    let ended = tickr.until(child, State::Completed).await;
    assert_eq!(ended["held"], Value::Null);
    assert_eq!(tickr.count(INVERSIONS).await, 0);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM blocked_jobs").await, 0);
    assert_eq!(tickr.count(LATE).await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_parent_cancels_runs_or_holds_its_children_as_they_wish() {
    let mended = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, broken(&mended)).await;
    let bad = tickr.enqueue(json!({"kind": "broken", "payload": {}, "max_attempts": 1, "delay_ms": 300})).await;
    let cancel = after(&tickr, &[bad], json!({})).await;
    let grandchild = after(&tickr, &[cancel], json!({})).await;
    let run = after(&tickr, &[bad], json!({"on_parent_failure": "run"})).await;
    let hold = after(&tickr, &[bad], json!({"on_parent_failure": "hold"})).await;
    tickr.until(bad, State::Failed).await;
    tickr.until(run, State::Completed).await;
    for (job, parent, how) in [(cancel, bad, "failed"), (grandchild, cancel, "was cancelled")] {
        let ended = tickr.until(job, State::Cancelled).await;
        assert_eq!(ended["last_error"], json!(format!("its parent {parent} {how}")));
    }
    let (code, text) = explained(&tickr, hold).await;
    assert_eq!(code, "waits_for_parents");
    assert!(text.contains("is failed; retry the failed parent, or cancel this job"), "{text}");

    // Those that come later find the failure.
    let late_cancel = after(&tickr, &[bad], json!({})).await;
    let late_run = after(&tickr, &[bad], json!({"on_parent_failure": "run"})).await;
    let late_hold = after(&tickr, &[bad], json!({"on_parent_failure": "hold"})).await;
    tickr.until(late_cancel, State::Cancelled).await;
    tickr.until(late_run, State::Completed).await;
    tickr.assert_sound().await;

    mended.cancel();
    assert_eq!(tickr.post(&format!("/v1/jobs/{bad}/retry"), json!({})).await.status, 200);
    tickr.until(bad, State::Completed).await;
    tickr.until(hold, State::Completed).await;
    tickr.until(late_hold, State::Completed).await;
    // The cancelled one may run again by itself. Its parents are not asked once more.
    assert_eq!(tickr.post(&format!("/v1/jobs/{cancel}/retry"), json!({})).await.status, 200);
    tickr.until(cancel, State::Completed).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_of_a_child_that_runs_anyway_names_the_parents_that_have_not_ended() {
    let mended = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, broken(&mended)).await;
    let waits = tickr.enqueue(json!({"kind": "noop", "payload": {}, "delay_ms": 600_000})).await;
    let bad = tickr.enqueue(json!({"kind": "broken", "payload": {}, "max_attempts": 1, "delay_ms": 600_000})).await;
    let anyway = json!({"on_parent_failure": "run"});
    let before = after(&tickr, &[bad, waits], anyway.clone()).await;
    let both = explained(&tickr, before).await.1;
    assert!(both.starts_with("it waits for 2 of 2 parents: "), "{both}");
    assert_eq!(tickr.post(&format!("/v1/jobs/{bad}/run-now"), json!({})).await.status, 200);
    tickr.until(bad, State::Failed).await;
    tickr.until_count("SELECT COUNT(*) FROM parent_ends", 0).await;
    // This one finds the failure.
    let behind = after(&tickr, &[bad, waits], anyway).await;
    let left = ("waits_for_parents".to_owned(), format!("it waits for 1 of 2 parents: {waits} is waiting"));
    assert_eq!([explained(&tickr, before).await, explained(&tickr, behind).await], [left.clone(), left]);

    // The failed parent is retried, and both wait for it again.
    assert_eq!(tickr.post("/v1/queues/default/pause", json!({})).await.status, 200);
    assert_eq!(tickr.post(&format!("/v1/jobs/{bad}/retry"), json!({})).await.status, 200);
    for child in [before, behind] {
        let text = explained(&tickr, child).await.1;
        assert!(text.starts_with("it waits for 2 of 2 parents: "), "{text}");
        assert!(text.contains(&format!("{bad} is waiting")), "{text}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_parents_are_refused_with_their_names_and_nothing_is_written() {
    let tickr = TestApp::start().await;
    let job = |more: Value| {
        let mut job = json!({"kind": "noop", "payload": {}});
        let Value::Object(more) = more else { panic!("not an object: {more}") };
        job.as_object_mut().unwrap().extend(more);
        job
    };
    let unknown = JobId::new();
    for (body, pointer, part) in [
        (json!({"after": [unknown.to_string()]}), "/after", format!("there is no job {unknown}")),
        (json!({"after": ["x"]}), "/after/0", "must be the id of a job".to_owned()),
        (json!({"after": [0]}), "/after/0", "there is no earlier job in this request".to_owned()),
        (json!({"after": vec![unknown.to_string(); 101]}), "/after", "at most 100".to_owned()),
        (json!({"after": [unknown.to_string()], "order_key": "k"}), "/after", "together with order_key".to_owned()),
        (json!({"on_parent_failure": "run"}), "/on_parent_failure", "together with after".to_owned()),
        (json!({"batch": "x"}), "/batch", "must be the id of a batch".to_owned()),
        (json!({"batch": unknown.to_string()}), "/batch", "there is no batch".to_owned()),
    ] {
        let refused = tickr.post("/v1/jobs", job(body.clone())).await;
        assert_eq!((refused.status, refused.code()), (422, "invalid_request"), "{body:#}: {:#}", refused.body);
        assert_eq!(refused.pointers(), [pointer], "{:#}", refused.body);
        assert!(refused.body["errors"][0]["detail"].as_str().unwrap().contains(&part), "{:#}", refused.body);
    }
    let jobs = json!({"jobs": [job(json!({})), job(json!({"after": [1]})), job(json!({"after": [0, 1]}))]});
    let refused = tickr.post("/v1/jobs/batch", jobs).await;
    assert_eq!(
        (refused.status, refused.pointers()),
        (422, vec!["/jobs/1/after/0", "/jobs/2/after/1"]),
        "{:#}",
        refused.body
    );
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_in_one_request_runs_in_its_order() {
    let tickr = TestApp::start().await;
    let chain = (0..30).map(|n| {
        let parents = if n == 0 { json!([]) } else { json!([n - 1]) };
        json!({"kind": "noop", "payload": {}, "after": parents})
    });
    let ids = tickr.enqueue_many(chain).await;
    for id in &ids {
        tickr.until(*id, State::Completed).await;
    }
    assert_eq!(tickr.count(INVERSIONS).await, 0);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM job_parents WHERE outcome = 'completed'").await, 29);
    tickr.stop().await;
}

/// Return the parents that a job shows.
async fn parents_of(tickr: &TestApp, id: JobId) -> BTreeSet<String> {
    let shown = tickr.job(id).await;
    let parents = shown["after"].as_array().map(Vec::as_slice).unwrap_or_default();
    parents.iter().map(|id| id.as_str().unwrap().to_owned()).collect()
}

async fn enqueue_together(tickr: &TestApp, body: Value) -> Vec<JobId> {
    let answer = tickr.post("/v1/jobs/batch", body).await;
    assert_eq!(answer.status, 201, "{:#}", answer.body);
    let jobs = answer.body["jobs"].as_array().unwrap();
    jobs.iter().map(|job| job["id"].as_str().unwrap().parse().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_of_a_chain_run_one_after_the_other_without_a_word_about_parents() {
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, gated(&open)).await;
    let other = tickr.another().await;
    let gate = tickr.enqueue(json!({"kind": "gate", "payload": {}})).await;
    let mut jobs = vec![json!({"kind": "noop", "payload": {}}); 12];
    // What a job names itself is added, and a parent that is named twice is one parent.
    jobs[3]["after"] = json!([0, 2, gate.to_string()]);
    let ids = enqueue_together(&tickr, json!({"jobs": jobs, "chain": true})).await;
    for (place, id) in ids.iter().enumerate() {
        let mut parents: BTreeSet<String> =
            place.checked_sub(1).map(|before| ids[before].to_string()).into_iter().collect();
        if place == 3 {
            parents.extend([ids[0].to_string(), gate.to_string()]);
        }
        assert_eq!(parents_of(&tickr, *id).await, parents, "job {place}");
    }
    tickr.until(ids[2], State::Completed).await;
    assert_eq!(tickr.job(ids[3]).await["held"], true);
    open.cancel();
    tickr.until(ids[11], State::Completed).await;
    assert_eq!(tickr.count(INVERSIONS).await, 0);
    // The first jobs of a batch may be a chain as well.
    let body = json!({"jobs": vec![json!({"kind": "noop", "payload": {}}); 3], "chain": true, "close": true});
    let batch = tickr.post("/v1/batches", body).await;
    assert_eq!(batch.status, 201, "{:#}", batch.body);
    let ids: Vec<JobId> =
        batch.body["jobs"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().parse().unwrap()).collect();
    assert_eq!(parents_of(&tickr, ids[2]).await, [ids[1].to_string()].into());
    tickr.until(ids[2], State::Completed).await;
    // A job may have a hundred parents, and the one before it among them is no further one.
    let mut jobs = vec![json!({"kind": "noop", "payload": {}}); 101];
    jobs[100]["after"] = (0..100).collect();
    let ids = enqueue_together(&tickr, json!({"jobs": jobs, "chain": true})).await;
    assert_eq!(parents_of(&tickr, ids[100]).await.len(), 100);
    tickr.until(ids[100], State::Completed).await;
    // Without the word, jobs do not wait for each other.
    let ids = enqueue_together(&tickr, json!({"jobs": vec![json!({"kind": "noop", "payload": {}}); 2]})).await;
    assert_eq!(parents_of(&tickr, ids[1]).await, BTreeSet::new());
    tickr.until_idle().await;
    assert_eq!(tickr.count(INVERSIONS).await, 0);
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_in_a_chain_ends_it_unless_a_job_says_otherwise() {
    let mended = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, broken(&mended)).await;
    let noop = json!({"kind": "noop", "payload": {}});
    let bad = json!({"kind": "broken", "payload": {}, "max_attempts": 1});
    let anyway = json!({"kind": "noop", "payload": {}, "on_parent_failure": "run"});
    let ids = enqueue_together(&tickr, json!({"jobs": [noop, bad, noop, noop, anyway], "chain": true})).await;
    let states = [State::Completed, State::Failed, State::Cancelled, State::Cancelled, State::Completed];
    for (id, state) in ids.iter().zip(states) {
        tickr.until(*id, state).await;
    }
    let error = tickr.job(ids[2]).await["last_error"].as_str().unwrap().to_owned();
    assert!(error.contains(&ids[1].to_string()), "{error}");
    // Each job but the first has a parent, so none may have an order key.
    let ordered = json!({"kind": "noop", "payload": {}, "order_key": "k"});
    let refused = tickr.post("/v1/jobs/batch", json!({"jobs": [ordered, ordered], "chain": true})).await;
    assert_eq!((refused.status, refused.pointers()), (422, vec!["/jobs/1/after"]), "{:#}", refused.body);
    // An invalid job is named once, and not by the job behind it.
    let refused = tickr.post("/v1/jobs/batch", json!({"jobs": [{"kind": "nope", "payload": {}}, noop], "chain": true}));
    let refused = refused.await;
    assert_eq!((refused.status, refused.pointers()), (422, vec!["/jobs/0/kind"]), "{:#}", refused.body);
    let body = json!({"jobs": [{"kind": "nope", "payload": {}}, anyway, anyway], "chain": true});
    let refused = tickr.post("/v1/jobs/batch", body).await;
    assert_eq!((refused.status, refused.pointers()), (422, vec!["/jobs/0/kind"]), "{:#}", refused.body);
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, 5);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_takes_no_job_that_another_one_may_answer_for() {
    let tickr = TestApp::start().await;
    let noop = json!({"kind": "noop", "payload": {}});
    let keyed = |key: &str, to: &str| json!({"kind": "noop", "payload": {}, "unique_key": key, "on_conflict": to});
    let plain = json!({"kind": "noop", "payload": {}, "unique_key": "k"});
    let fields = json!({"kind": "sleep", "payload": {"ms": 1}, "unique_fields": ["/ms"]});
    for one in [plain, fields, keyed("k", "return"), keyed("k", "postpone")] {
        let refused = tickr.post("/v1/jobs/batch", json!({"jobs": [noop, one, noop, one], "chain": true})).await;
        let at = vec!["/jobs/1/unique_key", "/jobs/3/unique_key"];
        assert_eq!((refused.status, refused.pointers()), (422, at), "{:#}", refused.body);
        // The first job of a chain waits for none, so another one may answer for it.
        let keep = json!({"jobs": [one, noop], "chain": true});
        tickr.until(enqueue_together(&tickr, keep).await[1], State::Completed).await;
    }
    let jobs = [noop, keyed("a", "reject"), keyed("b", "replace")];
    let ids = enqueue_together(&tickr, json!({"jobs": jobs, "chain": true})).await;
    assert_eq!(parents_of(&tickr, ids[2]).await, [ids[1].to_string()].into());
    tickr.until(ids[2], State::Completed).await;
    tickr.until_idle().await;
    assert_eq!(tickr.count(INVERSIONS).await, 0);
    tickr.stop().await;
}

/// Make a layer of jobs with up to three parents each. They name each other by position, and those of earlier layers,
/// some of which have ended by then, by id.
fn layer(round: u64, jobs: u64, earlier: &[JobId]) -> Vec<Value> {
    let mut layer = Vec::new();
    for n in 0..jobs {
        let mut parents: BTreeSet<String> = BTreeSet::new();
        let mut places: BTreeSet<u64> = BTreeSet::new();
        for draw in 0..3_u64 {
            let pick = (round * 7_919 + n * 104_729 + draw * 1_299_709) % 1_000_003;
            if n > 0 && pick.is_multiple_of(3) {
                places.insert(pick % n);
            } else if !earlier.is_empty() {
                parents.insert(earlier[usize::try_from(pick).unwrap() % earlier.len()].to_string());
            }
        }
        let mut named: Vec<Value> = parents.into_iter().map(Value::from).collect();
        named.extend(places.into_iter().map(Value::from));
        let (kind, payload) = if n % 9 == 0 { ("fail", json!({"times": 1})) } else { ("noop", json!({})) };
        layer.push(json!({"kind": kind, "payload": payload, "after": named, "retry": {"delays_ms": [20]}}));
    }
    layer
}

#[tokio::test(flavor = "multi_thread")]
async fn random_graphs_run_in_order_on_two_runners_while_redis_is_flushed() {
    let tickr = TestApp::start_alone(|_| {}, |config| config.workers = 16).await;
    let other = tickr.another_with(|config| config.workers = 16, Registry::new()).await;
    let mut all: Vec<JobId> = Vec::new();
    for round in 0..10 {
        let jobs = layer(round, 60, &all);
        all.extend(tickr.enqueue_many(jobs).await);
        tickr.flush_redis().await;
    }
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'").await, 600);
    assert!(tickr.count("SELECT COUNT(*) FROM job_parents").await > 900);
    assert_eq!(tickr.count(INVERSIONS).await, 0);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM parent_ends").await, 0);
    other.stop(CancellationToken::new()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs ten thousand jobs under kills, which takes minutes"]
async fn random_graphs_of_ten_thousand_jobs_run_in_order_under_kills_and_lost_answers() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let url = Config::for_tests(&proxy.url(), "redis://unused").mysql_url;
    let served =
        |config: &mut Config| (config.mysql_url, config.queues, config.workers) = (url, vec!["default".into()], 16);
    let through = tickr.another_with(served, Registry::new()).await;
    let env = [("TICKR_WORKERS", "16"), ("TICKR_LEASE", "2s")];
    let mut runners = [Runner::start(&tickr, &env), Runner::start(&tickr, &env)];
    let mut all: Vec<JobId> = Vec::new();
    for round in 0..100_u64 {
        let jobs = layer(round, 100, &all);
        all.extend(tickr.enqueue_many(jobs).await);
        proxy.cut_after("COMMIT");
        if round % 5 == 4 {
            let doomed = &mut runners[usize::try_from(round / 5 % 2).unwrap()];
            doomed.base().await;
            doomed.kill9();
            *doomed = Runner::start(&tickr, &env);
        }
    }
    proxy.pass();
    let (mut left, mut moved) = (i64::MAX, Instant::now());
    while left > 0 {
        let now = tickr.count("SELECT COUNT(*) FROM owed").await;
        if now < left {
            (left, moved) = (now, Instant::now());
        }
        assert!(moved.elapsed() < Duration::from_secs(60), "{left} jobs do not end");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let lost = tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'lost'").await;
    let edges = tickr.count("SELECT COUNT(*) FROM job_parents").await;
    println!("10,000 jobs with {edges} parents, {} answers lost, 20 kills, {lost} attempts lost", proxy.cuts());
    let ended = "SELECT COUNT(DISTINCT job_id) FROM attempts WHERE end_state = 'completed'";
    assert_eq!(tickr.count(ended).await, 10_000);
    assert!(edges > 20_000 && proxy.cuts() >= 50, "{edges} edges, {} answers lost", proxy.cuts());
    assert_eq!(tickr.count(INVERSIONS).await, 0);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM parent_ends").await, 0);
    through.stop(CancellationToken::new()).await;
    drop(runners);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_parent_reaches_all_of_its_children() {
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, gated(&open)).await;
    let parent = tickr.enqueue(json!({"kind": "gate", "payload": {}})).await;
    tickr.until(parent, State::Executing).await;
    let mut children = 0;
    // More than two pages of 512.
    for _ in 0..3 {
        let children_of = (0..350).map(|_| json!({"kind": "noop", "payload": {}, "after": [parent.to_string()]}));
        children += tickr.enqueue_many(children_of).await.len();
    }
    open.cancel();
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'", 1 + children as i64).await;
    assert_eq!(tickr.count(INVERSIONS).await, 0);
    tickr.stop().await;
}

/// Make a job wait for a parent that has ended, as if the transaction that ended it had left this row and no runner had
/// followed it.
async fn forget(tickr: &TestApp, rest: &str) -> JobId {
    let ended = tickr.enqueue(json!({"kind": "noop", "payload": {}})).await;
    tickr.until(ended, State::Completed).await;
    let forgotten = after(tickr, &[ended], json!({"delay_ms": 600_000})).await;
    let (child, parent) = (forgotten.uuid().simple().to_string(), ended.uuid().simple().to_string());
    for sql in [
        "UPDATE owed SET execute_at = '9999-12-31 12:00:00' WHERE id = UNHEX('CHILD')",
        "UPDATE job_parents SET outcome = NULL WHERE child_id = UNHEX('CHILD')",
        "INSERT INTO blocked_jobs VALUES (UNHEX('CHILD'), UTC_TIMESTAMP(3), 'cancel')",
        rest,
    ] {
        tickr.sql(sql.replace("CHILD", &child).replace("PARENT", &parent)).await;
    }
    forgotten
}

#[tokio::test(flavor = "multi_thread")]
async fn the_row_of_an_ended_parent_is_followed_by_any_runner_within_seconds() {
    let tickr = TestApp::start().await;
    let began = std::time::Instant::now();
    let forgotten = forget(&tickr, "INSERT INTO parent_ends (parent_id) VALUES (UNHEX('PARENT'))").await;
    tickr.until(forgotten, State::Completed).await;
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn children_start_while_another_session_holds_the_row_of_another_parent() {
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|config| config.workers = 8, gated(&open)).await;
    let mut children = Vec::new();
    for _ in 0..6 {
        let parent = tickr.enqueue(json!({"kind": "gate", "payload": {}})).await;
        tickr.until(parent, State::Executing).await;
        children.push(after(&tickr, &[parent], json!({})).await);
    }
    // A transaction that ends a parent and is not committed yet. A session that waits for its row and holds
    // locks of children can deadlock with it.
    let mut other = tickr.mysql().await;
    other.execute("BEGIN").await.unwrap();
    other.execute("INSERT INTO parent_ends (parent_id) VALUES (UNHEX(LEFT(SHA2('p', 256), 32)))").await.unwrap();
    let began = std::time::Instant::now();
    open.cancel();
    for child in children {
        tickr.until(child, State::Completed).await;
    }
    tickr.until_count("SELECT COUNT(*) FROM parent_ends", 0).await;
    println!("{:?}", began.elapsed());
    other.execute("ROLLBACK").await.unwrap();
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_is_locked_or_unreadable_holds_up_no_other_child() {
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|config| config.workers = 8, gated(&open)).await;
    let mut children = Vec::new();
    for _ in 0..3 {
        let parent = tickr.enqueue(json!({"kind": "gate", "payload": {}})).await;
        tickr.until(parent, State::Executing).await;
        children.push(after(&tickr, &[parent], json!({})).await);
    }
    let [locked, unreadable, other] = children[..] else { panic!("{children:?}") };
    let mut session = hold_row(&tickr, "SELECT id FROM owed WHERE id = ? FOR UPDATE", &[locked]).await;
    let kind = |kind: &str| {
        let id = unreadable.uuid().simple();
        format!("UPDATE owed SET kind = '{kind}' WHERE id = UNHEX('{id}')")
    };
    tickr.sql(kind("No Kind")).await;
    open.cancel();
    tickr.until(other, State::Completed).await;
    session.execute("ROLLBACK").await.unwrap();
    tickr.until(locked, State::Completed).await;
    // Its parent stays noted as ended, until the child can be told.
    assert_eq!(tickr.count("SELECT COUNT(*) FROM parent_ends").await, 1);
    tickr.sql(kind("noop")).await;
    tickr.until(unreadable, State::Completed).await;
    tickr.until_count("SELECT COUNT(*) FROM parent_ends", 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_child_of_many_is_told_when_it_is_free_and_is_noted_once() {
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|config| config.workers = 32, gated(&open)).await;
    let parent = tickr.enqueue(json!({"kind": "gate", "payload": {}})).await;
    tickr.until(parent, State::Executing).await;
    let child = json!({"kind": "noop", "payload": {}, "after": [parent.to_string()]});
    // Two pages and a bit, with one that is locked in each of the first two.
    let children = tickr.enqueue_many(vec![child; 1_100]).await;
    let locked = [children[3], children[600]];
    let mut session = tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    for id in locked {
        let row = sqlx::query("SELECT id FROM owed WHERE id = ? FOR UPDATE").bind(id.uuid());
        row.fetch_one(&mut session).await.unwrap();
    }
    open.cancel();
    tickr.until_count("SELECT COUNT(*) FROM blocked_jobs", 2).await;
    tickr.until_count("SELECT COUNT(*) FROM parent_ends", 1).await;
    let number = "SELECT CAST(MAX(id) AS SIGNED) FROM parent_ends";
    let before = tickr.count(number).await;
    // It is noted anew with each look, about one in a second.
    eventually("two looks", || async { (tickr.count(number).await >= before + 2).then_some(()) }).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM parent_ends").await, 1);
    let looks = tickr.count(number).await - before;
    assert!(looks < 20, "{looks} looks");
    session.execute("ROLLBACK").await.unwrap();
    for id in locked {
        tickr.until(id, State::Completed).await;
    }
    tickr.until_count("SELECT COUNT(*) FROM parent_ends", 0).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parent_of_many_children_that_stay_blocked_is_told_once_they_are_free() {
    let tickr = TestApp::start().await;
    let parent = tickr.enqueue(json!({"kind": "noop", "payload": {}, "delay_ms": 600_000})).await;
    let after = [parent.to_string()];
    let child = json!({"kind": "noop", "payload": {}, "after": after, "on_parent_failure": "hold"});
    // More than one look takes.
    let children = tickr.enqueue_many(vec![child; 600]).await;
    let mut session = hold_row(&tickr, "SELECT id FROM owed WHERE id = ? FOR UPDATE", &[children[3]]).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{parent}/cancel"), json!({})).await.status, 200);
    // The parent is noted anew for the locked child, at least once after the first walk through all of them.
    let number = "SELECT CAST(COALESCE(MAX(id), 0) AS SIGNED) FROM parent_ends";
    eventually("two looks have left the child", || async { (tickr.count(number).await >= 3).then_some(()) }).await;
    session.execute("ROLLBACK").await.unwrap();
    tickr.until_count("SELECT COUNT(*) FROM parent_ends", 0).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM blocked_jobs").await, 600);
    let unknown = "SELECT COUNT(*) FROM job_parents WHERE outcome IS NULL";
    assert_eq!(tickr.count(unknown).await, 0, "children that were not told");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_whose_parent_was_ended_by_an_older_version_is_found() {
    let tickr = TestApp::start().await;
    // A version that does not know of children leaves no row.
    let forgotten = forget(&tickr, "DO 0").await;
    tickr.until(forgotten, State::Completed).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_job_is_cancelled_expires_and_is_replaced_like_any_other() {
    let tickr = TestApp::start().await;
    let parent = tickr.enqueue(json!({"kind": "noop", "payload": {}, "delay_ms": 600_000})).await;
    let cancelled = after(&tickr, &[parent], json!({"unique_key": "a"})).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{cancelled}/cancel"), json!({})).await.status, 200);
    let expires = after(&tickr, &[parent], json!({"expires_in_ms": 200})).await;
    assert!(tickr.until(expires, State::Failed).await["last_error"].as_str().unwrap().starts_with("expired"));
    let first = after(&tickr, &[parent], json!({"unique_key": "b"})).await;
    let second = after(&tickr, &[parent], json!({"unique_key": "b", "on_conflict": "replace"})).await;
    tickr.until(first, State::Cancelled).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM blocked_jobs").await, 1);
    let change = tickr.patch(&format!("/v1/jobs/{second}"), json!({"priority": 1})).await;
    assert_eq!(change.status, 200, "{:#}", change.body);
    let change = tickr.patch(&format!("/v1/jobs/{second}"), json!({"delay_ms": 1})).await;
    assert_eq!((change.status, change.code()), (409, "wrong_state"), "{:#}", change.body);
    assert_eq!(tickr.post(&format!("/v1/jobs/{parent}/cancel"), json!({})).await.status, 200);
    tickr.until(second, State::Cancelled).await;
    tickr.until_idle().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn children_that_are_accepted_while_their_parent_ends_are_not_forgotten() {
    let tickr = TestApp::start_with(|config| config.workers = 8, Registry::new()).await;
    let mut children: BTreeMap<JobId, JobId> = BTreeMap::new();
    for round in 0..60 {
        let ms = 1 + round % 7;
        let parent = tickr.enqueue(json!({"kind": "sleep", "payload": {"ms": ms}})).await;
        tokio::time::sleep(Duration::from_millis(round % 9)).await;
        children.insert(after(&tickr, &[parent], json!({})).await, parent);
    }
    for child in children.keys() {
        tickr.until(*child, State::Completed).await;
    }
    assert_eq!(tickr.count(INVERSIONS).await, 0);
    assert_eq!(tickr.count(LATE).await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_parent_that_failed_still_holds_its_children() {
    let mended = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, broken(&mended)).await;
    let bad = tickr.enqueue(json!({"kind": "broken", "payload": {}, "max_attempts": 1, "delay_ms": 200})).await;
    let other = tickr.enqueue(json!({"kind": "noop", "payload": {}, "delay_ms": 600_000})).await;
    let hold = after(&tickr, &[bad, other], json!({"on_parent_failure": "hold"})).await;
    tickr.until(bad, State::Failed).await;
    tickr.until_count("SELECT COUNT(*) FROM parent_ends", 0).await;
    let started = tickr.post("/v1/operations", json!({"action": "delete", "filter": {"ids": [bad.to_string()]}})).await;
    assert_eq!(started.status, 202, "{:#}", started.body);
    tickr.until_count("SELECT COUNT(*) FROM jobs", 2).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{other}/run-now"), json!({})).await.status, 200);
    tickr.until(other, State::Completed).await;
    tickr.until_count("SELECT COUNT(*) FROM parent_ends", 0).await;
    let (code, text) = explained(&tickr, hold).await;
    assert_eq!(code, "waits_for_parents", "{text}");
    // No retry brings back a parent that was removed.
    assert_eq!(text, format!("it waits for 1 of 2 parents: {bad} was removed; cancel this job"));
    assert_eq!(tickr.job(hold).await["state"], "waiting");
    assert_eq!(tickr.post(&format!("/v1/jobs/{hold}/cancel"), json!({})).await.status, 200);
    tickr.stop().await;
}

/// Delete a job by a bulk operation. Return how many jobs were deleted and how many skipped.
async fn delete(tickr: &TestApp, id: JobId) -> (Value, Value) {
    let body = json!({"action": "delete", "filter": {"ids": [id.to_string()]}});
    let started = tickr.post("/v1/operations", body).await;
    assert_eq!(started.status, 202, "{:#}", started.body);
    let path = format!("/v1/operations/{}", started.body["id"].as_str().unwrap());
    eventually("the operation is over", || async {
        let now = tickr.get(&path).await.body;
        (now["state"] == "done").then(|| (now["done"].clone(), now["skipped"].clone()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parent_that_completed_stays_until_its_children_have_been_told() {
    let tickr = TestApp::start().await;
    let store = tickr.app.broker().store();
    let parent = tickr.enqueue(json!({"kind": "noop", "payload": {}, "delay_ms": 600_000})).await;
    let child = after(&tickr, &[parent], json!({})).await;
    // No runner can tell the child while this session holds its row.
    let mut session = hold_row(&tickr, "SELECT id FROM owed WHERE id = ? FOR UPDATE", &[child]).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{parent}/run-now"), json!({})).await.status, 200);
    tickr.until(parent, State::Completed).await;
    let deleted = delete(&tickr, parent).await;
    let keep = Retention { completed: Duration::ZERO, ..Retention::all(Duration::from_secs(86_400)) };
    let purged = store.purge_page(None, &keep).await.unwrap().jobs;
    session.execute("ROLLBACK").await.unwrap();
    tickr.until(child, State::Completed).await;
    assert_eq!((deleted, purged), ((json!(0), json!(1)), 0));
    tickr.until_count("SELECT COUNT(*) FROM parent_ends", 0).await;
    assert_eq!(delete(&tickr, parent).await, (json!(1), json!(0)));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_takes_the_place_of_a_failed_parent() {
    let mended = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, broken(&mended)).await;
    let bad = tickr.enqueue(json!({"kind": "broken", "payload": {}, "max_attempts": 1})).await;
    let hold = after(&tickr, &[bad], json!({"on_parent_failure": "hold"})).await;
    tickr.until(bad, State::Failed).await;
    mended.cancel();
    let replayed = tickr.post(&format!("/v1/jobs/{bad}/replay"), json!({})).await;
    assert_eq!(replayed.status, 201, "{:#}", replayed.body);
    tickr.until(hold, State::Completed).await;
    assert_eq!(tickr.count(LATE).await, 0);
    tickr.stop().await;
}

/// A replay locks and moves the jobs that wait for the failed one in a single transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_beyond_ten_thousand_children_is_refused_and_stops_no_other() {
    let mended = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, broken(&mended)).await;
    let fails = async || {
        let bad = tickr.enqueue(json!({"kind": "broken", "payload": {}, "max_attempts": 1})).await;
        tickr.until(bad, State::Failed).await;
        bad
    };
    let (parent, other) = (fails().await, fails().await);
    let row = format!("parent_id = UNHEX('{}')", parent.uuid().simple());
    let children = format!(
        "SELECT UNHEX(CONCAT(LPAD(HEX(1780000000000 + n), 12, '0'), '70008000000000000001')) AS id FROM (SELECT a.d \
         + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n FROM {DIGITS} a, {DIGITS} b, {DIGITS} c, {DIGITS} e, \
         {DIGITS} f) s WHERE n <= 10000"
    );
    tickr
        .sql(format!(
            "INSERT INTO blocked_jobs (job_id, due_at, on_parent_failure) SELECT c.id, UTC_TIMESTAMP(3), 'hold' \
             FROM ({children}) c; INSERT INTO job_parents (parent_id, child_id, outcome) \
             SELECT UNHEX('{}'), c.id, 'failed' FROM ({children}) c",
            parent.uuid().simple()
        ))
        .await;
    mended.cancel();
    let replay = format!("/v1/jobs/{parent}/replay");
    let refused = tickr.post(&replay, json!({})).await;
    assert_eq!((refused.status, refused.code()), (409, "wrong_state"), "{:#}", refused.body);
    assert!(refused.body["detail"].as_str().unwrap().contains("retry"), "{:#}", refused.body);
    let all = json!({"action": "replay", "filter": {"ids": [parent, other]}});
    let started = tickr.post("/v1/operations", all).await;
    let path = format!("/v1/operations/{}", started.body["id"].as_str().unwrap());
    let over = eventually("the operation is over", || async {
        let operation = tickr.get(&path).await.body;
        (operation["state"] != "running").then_some(operation)
    })
    .await;
    assert_eq!((&over["done"], &over["failed"]), (&json!(1), &json!(1)), "{over:#}");
    assert!(over["last_error"].as_str().unwrap().contains(&parent.to_string()), "{over:#}");
    // With one child fewer it is replayed.
    tickr.sql(format!("DELETE FROM job_parents WHERE {row} LIMIT 1")).await;
    let replayed = tickr.post(&replay, json!({})).await;
    assert_eq!(replayed.status, 201, "{:#}", replayed.body);
    // These children are no jobs.
    tickr.sql(format!("DELETE FROM job_parents WHERE {row}; DELETE FROM blocked_jobs")).await;
    tickr.until_idle().await;
    tickr.stop().await;
}

/// Open a session that holds the lock of a row.
async fn hold_row(tickr: &TestApp, sql: &'static str, ids: &[JobId]) -> MySqlConnection {
    let mut session = tickr.mysql().await;
    session.execute("BEGIN").await.unwrap();
    let query = ids.iter().fold(sqlx::query(sql), |query, id| query.bind(id.uuid()));
    assert!(query.fetch_optional(&mut session).await.unwrap().is_some(), "{sql}");
    session
}

/// Replay a failed job while a runner tells its children and waits for a session. Let the session go once the replay
/// waits for the runner, or has been made.
async fn replay_beside(tickr: &TestApp, failed: JobId, mut session: MySqlConnection) {
    let replay = format!("/v1/jobs/{failed}/replay");
    let replay = tickr.post(&replay, json!({}));
    tokio::pin!(replay);
    let early = tokio::select! {
        answer = &mut replay => Some(answer),
        () = tickr.until_said("SELECT id FROM owed FORCE INDEX", 1) => None,
        () = tickr.until_said("UPDATE job_parents", 1) => None,
    };
    session.execute("ROLLBACK").await.unwrap();
    let replayed = match early {
        Some(answer) => answer,
        None => replay.await,
    };
    assert_eq!(replayed.status, 201, "{:#}", replayed.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_is_told_of_a_failure_during_a_replay_waits_for_the_replay_alone() {
    let mended = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, broken(&mended)).await;
    let other = tickr.enqueue(json!({"kind": "noop", "payload": {}, "delay_ms": 600_000})).await;
    let bad = tickr.enqueue(json!({"kind": "broken", "payload": {}, "max_attempts": 1, "delay_ms": 600_000})).await;
    let hold = after(&tickr, &[other, bad], json!({"on_parent_failure": "hold"})).await;
    // No runner reads how the parents have ended until both of them have.
    let mut child = hold_row(&tickr, "SELECT id FROM owed WHERE id = ? FOR UPDATE", &[hold]).await;
    let edge = "SELECT child_id FROM job_parents WHERE parent_id = ? AND child_id = ? FOR UPDATE";
    let edge = hold_row(&tickr, edge, &[other, hold]).await;
    for parent in [other, bad] {
        assert_eq!(tickr.post(&format!("/v1/jobs/{parent}/run-now"), json!({})).await.status, 200);
    }
    tickr.until(other, State::Completed).await;
    tickr.until(bad, State::Failed).await;
    mended.cancel();
    child.execute("ROLLBACK").await.unwrap();
    // The runner has read both ends, and waits while it writes down the first.
    tickr.until_said("INSERT INTO job_parents", 1).await;
    replay_beside(&tickr, bad, edge).await;
    tickr.until(hold, State::Completed).await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM job_parents").await, 2);
    assert_eq!(tickr.count(LATE).await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_leaves_a_child_that_is_let_go_meanwhile_its_failed_parent() {
    let mended = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, broken(&mended)).await;
    let bad = tickr.enqueue(json!({"kind": "broken", "payload": {}, "max_attempts": 1, "delay_ms": 600_000})).await;
    let mut children = Vec::new();
    for _ in 0..3 {
        children.push(after(&tickr, &[bad], json!({"on_parent_failure": "run"})).await);
    }
    // The runner writes down how the parent has ended, and waits while it lets the children go.
    let row = hold_row(&tickr, "SELECT job_id FROM blocked_jobs WHERE job_id = ? FOR UPDATE", &children[..1]).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{bad}/run-now"), json!({})).await.status, 200);
    tickr.until(bad, State::Failed).await;
    tokio::select! {
        () = tickr.until_said("UPDATE owed o FORCE INDEX", 1) => {}
        () = tickr.until_said("DELETE FROM blocked_jobs", 1) => {}
    }
    mended.cancel();
    replay_beside(&tickr, bad, row).await;
    for child in children {
        tickr.until(child, State::Completed).await;
    }
    let kept = "SELECT COUNT(*) FROM job_parents p JOIN dead_letters d ON d.job_id = p.parent_id";
    assert_eq!(tickr.count(kept).await, 3);
    tickr.until_idle().await;
    assert_eq!(tickr.count(INVERSIONS).await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_waits_for_the_answer_in_place_of_its_parent() {
    let tickr = TestApp::start().await;
    let holder = tickr.enqueue(json!({"kind": "noop", "payload": {}, "unique_key": "u", "delay_ms": 600_000})).await;
    let parent = json!({"kind": "noop", "payload": {}, "unique_key": "u"});
    let jobs = json!({"jobs": [parent, parent, {"kind": "noop", "payload": {}, "after": [0]},
                               {"kind": "noop", "payload": {}, "after": [1]}]});
    let made = tickr.post("/v1/jobs/batch", jobs).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    assert_eq!(made.body["jobs"][0]["id"], json!(holder.to_string()));
    for place in [2, 3] {
        let child: JobId = made.body["jobs"][place]["id"].as_str().unwrap().parse().unwrap();
        assert_eq!(tickr.job(child).await["after"], json!([holder.to_string()]));
    }
    assert_eq!(tickr.post(&format!("/v1/jobs/{holder}/run-now"), json!({})).await.status, 200);
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'").await, 3);
    assert_eq!(tickr.count(INVERSIONS).await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parents_that_have_one_answer_are_one_parent() {
    let tickr = TestApp::start().await;
    let holder = tickr.enqueue(json!({"kind": "noop", "payload": {}, "unique_key": "u", "delay_ms": 600_000})).await;
    let unique = |key: &str| json!({"kind": "noop", "payload": {}, "unique_key": key});
    let put_off = json!({"kind": "noop", "payload": {}, "unique_key": "u", "on_conflict": "postpone",
        "delay_ms": 600_000});
    let child = |after: Value| json!({"kind": "noop", "payload": {}, "after": after});
    // Two positions with one answer, a position whose answer is named as well, and two positions of one new job.
    for (jobs, answer) in [
        (json!([unique("u"), unique("u"), child(json!([0, 1]))]), Some(holder)),
        (json!([unique("u"), child(json!([0, holder.to_string()]))]), Some(holder)),
        (json!([put_off, child(json!([holder.to_string(), 0]))]), Some(holder)),
        (json!([unique("v"), unique("v"), child(json!([0, 1]))]), None),
    ] {
        let made = tickr.post("/v1/jobs/batch", json!({"jobs": jobs})).await;
        assert_eq!(made.status, 201, "{:#}", made.body);
        let made = made.body["jobs"].as_array().unwrap();
        let child: JobId = made.last().unwrap()["id"].as_str().unwrap().parse().unwrap();
        let answer = answer.map_or(made[0]["id"].clone(), |id| json!(id.to_string()));
        assert_eq!(tickr.job(child).await["after"], json!([answer]));
    }
    assert_eq!(tickr.post(&format!("/v1/jobs/{holder}/run-now"), json!({})).await.status, 200);
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'").await, 6);
    assert_eq!(tickr.count(INVERSIONS).await, 0);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_runs_whose_parent_is_answered_with_a_completed_job_that_was_removed() {
    let tickr = TestApp::start().await;
    let unique = json!({"kind": "noop", "payload": {}, "unique_key": "u", "unique_for_ms": 3_600_000});
    let holder = tickr.enqueue(unique.clone()).await;
    tickr.until(holder, State::Completed).await;
    assert_eq!(delete(&tickr, holder).await, (json!(1), json!(0)));
    let jobs = json!({"jobs": [unique, {"kind": "noop", "payload": {}, "after": [0]}]});
    let made = tickr.post("/v1/jobs/batch", jobs).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    assert_eq!(made.body["jobs"][0]["id"], holder.to_string());
    let child: JobId = made.body["jobs"][1]["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(tickr.until(child, State::Completed).await["after"], json!([holder.to_string()]));
    // It counts only as the answer: a client that names it by its id alone is told that it is gone.
    let refused = tickr.post("/v1/jobs", json!({"kind": "noop", "payload": {}, "after": [holder.to_string()]})).await;
    assert_eq!((refused.status, refused.code()), (422, "invalid_request"), "{:#}", refused.body);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_is_told_at_once_of_a_parent_that_its_own_request_replaces() {
    let tickr = TestApp::start().await;
    let later = json!({"kind": "noop", "payload": {}, "unique_key": "u", "delay_ms": 600_000});
    let replaces = json!({"unique_key": "u", "on_conflict": "replace", "on_parent_failure": "run"});
    // A runner looks at all blocked jobs, but only every five seconds. So of two children in a row it finds one late.
    for _ in 0..2 {
        let holder = tickr.enqueue(later.clone()).await;
        let child = after(&tickr, &[holder], replaces.clone()).await;
        assert_eq!(tickr.job(holder).await["state"], "cancelled");
        tickr.until(child, State::Completed).await;
    }
    assert_eq!(tickr.count(LATE).await, 0);
    // The same for a child that is another job of the request.
    for _ in 0..2 {
        let holder = tickr.enqueue(later.clone()).await;
        let new = json!({"kind": "noop", "payload": {}, "unique_key": "u", "on_conflict": "replace"});
        let child = json!({"kind": "noop", "payload": {}, "after": [holder.to_string()]});
        let made = tickr.enqueue_many([new, child]).await;
        tickr.until(made[1], State::Cancelled).await;
        tickr.until(made[0], State::Completed).await;
    }
    let late = "SELECT COUNT(*) FROM job_parents p JOIN attempts c ON c.job_id = p.child_id \
                AND c.end_state = 'cancelled' WHERE c.finished_at > (SELECT MAX(a.finished_at) FROM attempts a \
                WHERE a.job_id = p.parent_id) + INTERVAL 3 SECOND";
    assert_eq!(tickr.count(late).await, 0);
    tickr.stop().await;
}
