//! Queues: pause, priorities and limits, changed while everything runs.

use std::time::{Duration, Instant};

use reqwest::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tickr::app::App;
use tickr::broker::{Draft, Settings};
use tickr::config::ServerUrl;
use tickr::handlers::{Context, Kind, Registry};
use tickr::job::{JobId, State};

use crate::support::program::{command, outcome, tickr as program};
use crate::support::{Answer, DEADLINE, Runner, TestApp, answer, eventually, http};

async fn call(tickr: &TestApp, method: Method, path: &str, body: Option<Value>) -> Answer {
    let request = http().request(method, tickr.url(path));
    answer(match body {
        Some(body) => request.json(&body),
        None => request,
    })
    .await
}

async fn set(tickr: &TestApp, queue: &str, change: Value) {
    let changed = call(tickr, Method::PATCH, &format!("/v1/queues/{queue}"), Some(change)).await;
    assert_eq!(changed.status, 200, "{:#}", changed.body);
}

async fn pause(tickr: &TestApp, queue: &str) {
    let paused = call(tickr, Method::POST, &format!("/v1/queues/{queue}/pause"), Some(json!({}))).await;
    assert_eq!(paused.status, 200, "{:#}", paused.body);
}

async fn resume(tickr: &TestApp, queue: &str) {
    let resumed = call(tickr, Method::POST, &format!("/v1/queues/{queue}/resume"), None).await;
    assert_eq!((resumed.status, &resumed.body["paused"]), (200, &Value::Null), "{:#}", resumed.body);
}

/// Wait until this process has heard of what was set.
async fn heard(app: &App, what: impl Fn(&Settings) -> bool) {
    let mut settings = app.controls().listen();
    let heard = settings.wait_for(|settings| what(settings));
    tokio::time::timeout(DEADLINE, heard).await.unwrap().unwrap();
}

fn queues(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Jobs in the order of their starts.
async fn started(tickr: &TestApp) -> Vec<JobId> {
    let mut mysql = tickr.mysql().await;
    let ids = sqlx::query_scalar("SELECT job_id FROM attempts ORDER BY started_at, job_id").fetch_all(&mut mysql).await;
    ids.unwrap().into_iter().map(JobId::from_uuid).collect()
}

/// Most jobs of a queue that ran at the same moment, by the ledger.
async fn most_at_once(tickr: &TestApp, queue: &str) -> i64 {
    let sql = format!(
        "SELECT CAST(COALESCE(MAX(n), 0) AS SIGNED) FROM (SELECT (SELECT COUNT(*) FROM attempts b JOIN jobs k ON k.id = b.job_id \
         WHERE k.queue = '{queue}' AND b.started_at <= a.started_at AND b.finished_at > a.started_at) n \
         FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.queue = '{queue}') x"
    );
    tickr.count(Box::leak(sql.into_boxed_str())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_queue_starts_nothing_on_any_runner_until_it_goes_on() {
    let tickr = TestApp::start_with(|config| config.queues = queues(&["default", "mail"]), Registry::new()).await;
    let other = tickr.another().await;
    // Another one that has no Redis and reads from the store.
    let without = |config: &mut tickr::config::Config| {
        config.redis_url = Some(ServerUrl::redis("redis://127.0.0.1:1").unwrap());
    };
    let without = tickr.another_with(without, Registry::new()).await;

    let reason = json!({"reason": "provider is down"});
    let paused = call(&tickr, Method::POST, "/v1/queues/mail/pause", Some(reason)).await;
    assert_eq!(paused.body["paused"]["reason"], "provider is down");
    assert_eq!(paused.body["paused"]["by"], "anyone");
    assert_eq!((&paused.body["runners"], &paused.body["priority"]), (&json!(3), &json!(5)));
    let told = Instant::now();
    for app in [&tickr.app, &other, &without] {
        heard(app, |settings| settings.queues.get("mail").is_some_and(|set| set.pause.is_some())).await;
    }
    println!("every runner knew of the pause after {} ms", told.elapsed().as_millis());
    let mail: Vec<JobId> = tickr.enqueue_many((0..40).map(|_| json!({"kind": "noop", "queue": "mail"}))).await;
    let rest: Vec<JobId> = tickr.enqueue_many((0..40).map(|_| json!({"kind": "noop"}))).await;
    for id in rest {
        tickr.until(id, State::Completed).await;
    }
    // A job that is told to run now waits for its queue as well.
    let moved = call(&tickr, Method::POST, &format!("/v1/jobs/{}/run-now", mail[0]), None).await;
    assert_eq!(moved.status, 200);
    let waiting = "SELECT COUNT(*) FROM owed WHERE queue = 'mail' AND state = 'waiting'";
    assert_eq!(tickr.count(waiting).await, 40);
    assert_eq!(
        tickr.count("SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.queue = 'mail'").await,
        0
    );

    // It goes on soon, on all of them.
    let asked = Instant::now();
    resume(&tickr, "mail").await;
    for id in mail {
        tickr.until(id, State::Completed).await;
    }
    println!("40 jobs of a queue that went on were done after {} ms", asked.elapsed().as_millis());
    let acts =
        tickr.count("SELECT COUNT(*) FROM audit WHERE target = 'mail' AND action IN ('queue.pause', 'queue.resume')");
    assert_eq!(acts.await, 2);
    tickr.assert_sound().await;
    without.stop(Default::default()).await;
    other.stop(Default::default()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_holds_over_all_runners_and_does_not_slow_what_is_within_it() {
    let tickr = TestApp::start_with(
        |config| {
            config.queues = queues(&["default", "slow", "one"]);
            config.workers = 16;
        },
        Registry::new(),
    )
    .await;
    let other = tickr.another().await;
    set(&tickr, "slow", json!({"concurrency": 3})).await;
    set(&tickr, "one", json!({"concurrency": 1})).await;
    for app in [&tickr.app, &other] {
        heard(app, |settings| settings.queues.contains_key("one")).await;
    }
    // Of which each takes one permit ahead, as far as there are any.
    tickr.until_count("SELECT COUNT(*) FROM queue_permits WHERE queue = 'slow' AND permits > 0", 2).await;
    let slow = (0..30).map(|_| json!({"kind": "sleep", "payload": {"ms": 100}, "queue": "slow"}));
    let one = (0..60).map(|_| json!({"kind": "noop", "queue": "one"}));
    let asked = Instant::now();
    let mut ids = tickr.enqueue_many(slow).await;
    ids.extend(tickr.enqueue_many(one).await);
    for id in &ids {
        tickr.until(*id, State::Completed).await;
    }
    let took = asked.elapsed();
    println!("30 jobs of 100 ms with a limit of 3, and 60 with a limit of 1: {} ms", took.as_millis());
    // Not one job per look at the clock: a place that is free is taken at once. Alone it takes about 1.1 s.
    assert!(took < Duration::from_secs(15), "{took:?}");
    assert_eq!(most_at_once(&tickr, "slow").await, 3);
    assert_eq!(most_at_once(&tickr, "one").await, 1);

    // A lower limit stops nobody and starts nothing; without one everything runs.
    set(&tickr, "slow", json!({"concurrency": null})).await;
    let view = call(&tickr, Method::GET, "/v1/queues/slow", None).await.body;
    assert_eq!((&view["concurrency"], &view["permits"]), (&Value::Null, &Value::Null));
    let long = (0..20).map(|_| json!({"kind": "sleep", "payload": {"ms": 60_000}, "queue": "slow"}));
    let long = tickr.enqueue_many(long).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE queue = 'slow' AND state = 'executing'", 20).await;
    set(&tickr, "slow", json!({"concurrency": 5})).await;
    // Both have said how many they run, which is more than the limit.
    tickr.until_count("SELECT COUNT(*) FROM queue_permits WHERE queue = 'slow' AND permits > 0", 2).await;
    tickr.until_count("SELECT CAST(SUM(permits) AS SIGNED) FROM queue_permits WHERE queue = 'slow'", 20).await;
    let more = tickr.enqueue(json!({"kind": "noop", "queue": "slow"})).await;
    // Fifteen may end before the next may start.
    for id in &long[..15] {
        call(&tickr, Method::POST, &format!("/v1/jobs/{id}/cancel"), None).await;
    }
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE queue = 'slow' AND state = 'executing'", 5).await;
    assert_eq!(tickr.job(more).await["state"], "waiting");
    call(&tickr, Method::POST, &format!("/v1/jobs/{}/cancel", long[15]), None).await;
    tickr.until(more, State::Completed).await;
    for id in &long[16..] {
        call(&tickr, Method::POST, &format!("/v1/jobs/{id}/cancel"), None).await;
    }
    tickr.until_idle().await;
    tickr.assert_sound().await;
    other.stop(Default::default()).await;
    assert_eq!(
        tickr
            .count(
                "SELECT COUNT(*) FROM queue_permits p JOIN runners r ON r.id = p.runner AND r.stopped_at IS NOT NULL"
            )
            .await,
        0
    );
    tickr.stop().await;
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Special {}

impl Kind for Special {
    const NAME: &'static str = "special";
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_of_a_killed_runner_are_free_again_and_an_idle_one_gives_way() {
    let short = |config: &mut tickr::config::Config| config.lease = Duration::from_secs(2);
    let tickr = TestApp::start_with(short, Registry::new()).await;
    set(&tickr, "one", json!({"concurrency": 1})).await;
    // One runner has the only place and dies with it.
    let mut child = Runner::start(&tickr, &[("TICKR_QUEUES", "one")]);
    let sleep = json!({"kind": "sleep", "payload": {"ms": 600_000}, "queue": "one", "max_attempts": 1});
    let id = tickr.enqueue(sleep).await;
    tickr.until(id, State::Executing).await;
    let of_one = |config: &mut tickr::config::Config| config.queues = queues(&["one"]);
    let heir = tickr.another_with(of_one, Registry::new()).await;
    let next = tickr.enqueue(json!({"kind": "noop", "queue": "one"})).await;
    child.kill9();
    tickr.until(id, State::Failed).await;
    tickr.until(next, State::Completed).await;
    let of_the_dead =
        "SELECT COUNT(*) FROM queue_permits p JOIN runners r ON r.id = p.runner WHERE r.stopped_at IS NOT NULL";
    assert_eq!(tickr.count(of_the_dead).await, 0);

    // Another one is the only one who can run this, while the heir keeps the place in case that something comes.
    let mut own = Registry::new();
    own.register(|_: Special, _: Context| async { Ok(().into()) });
    let able = tickr.another_with(of_one, own).await;
    let payload = RawValue::from_string("{}".into()).unwrap();
    let mut special = Draft::new("special", payload);
    special.queue = Some("one".into());
    let job = able.broker().prepare(special).unwrap();
    let id = job.id;
    able.broker().enqueue(job).await.unwrap();
    tickr.until(id, State::Completed).await;
    able.stop(Default::default()).await;
    heir.stop(Default::default()).await;
    tickr.stop().await;
}

/// Most jobs of a queue that ran at the same moment, but for attempts that were lost: nobody could stop those in time.
async fn most_kept_at_once(tickr: &TestApp, queue: &str) -> i64 {
    let sql = format!(
        "SELECT CAST(COALESCE(MAX(n), 0) AS SIGNED) FROM (SELECT (SELECT COUNT(*) FROM attempts b JOIN jobs k ON k.id = b.job_id \
         WHERE k.queue = '{queue}' AND b.verdict <> 'lost' AND b.started_at <= a.started_at AND b.finished_at > a.started_at) n \
         FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.queue = '{queue}' AND a.verdict <> 'lost') x"
    );
    tickr.count(Box::leak(sql.into_boxed_str())).await
}

const OF_ONE: [(&str, &str); 3] = [("TICKR_QUEUES", "one"), ("TICKR_LEASE", "2s"), ("TICKR_WORKERS", "4")];

/// Two runners that serve a queue with a limit of one, and a job of it that runs.
async fn holder_and_heir(tickr: &TestApp) -> [Runner; 2] {
    set(tickr, "one", json!({"concurrency": 1})).await;
    let sleep = json!({"kind": "sleep", "payload": {"ms": 300}, "queue": "one"});
    let holder = Runner::start(tickr, &OF_ONE);
    tickr.enqueue_many((0..35).map(|_| sleep.clone())).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE queue = 'one' AND state = 'executing'", 1).await;
    let heir = Runner::start(tickr, &OF_ONE);
    heir.base().await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE queue = 'one' AND state = 'executing'", 1).await;
    [holder, heir]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_holds_after_its_holder_slept() {
    let short = |config: &mut tickr::config::Config| config.lease = Duration::from_secs(2);
    let tickr = TestApp::start_with(short, Registry::new()).await;
    let [holder, heir] = holder_and_heir(&tickr).await;
    holder.signal("STOP");
    // Longer than its lease and the five seconds after which another may have its place.
    let by_heir =
        format!("SELECT COUNT(*) FROM attempts a JOIN runners r ON r.id = a.runner WHERE r.pid = {}", heir.pid());
    let by_heir: &'static str = Box::leak(by_heir.into_boxed_str());
    eventually("the heir has taken its place", || async { (tickr.count(by_heir).await >= 2).then_some(()) }).await;
    holder.signal("CONT");
    tickr.until_idle().await;
    assert_eq!(most_kept_at_once(&tickr, "one").await, 1);
    assert!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'").await >= 35);
    drop((holder, heir));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_holds_after_mysql_stood_still() {
    let short = |config: &mut tickr::config::Config| config.lease = Duration::from_secs(2);
    let tickr = TestApp::start_alone(|_| {}, short).await;
    let [holder, heir] = holder_and_heir(&tickr).await;
    tickr.services().mysql().pause().unwrap();
    tokio::time::sleep(Duration::from_secs(8)).await;
    tickr.services().mysql().resume().unwrap();
    tickr.until_idle().await;
    assert_eq!(most_kept_at_once(&tickr, "one").await, 1);
    drop((holder, heir));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_that_are_gone_are_asked_for_anew() {
    let short = |config: &mut tickr::config::Config| config.lease = Duration::from_secs(2);
    let tickr = TestApp::start_with(short, Registry::new()).await;
    let [holder, heir] = holder_and_heir(&tickr).await;
    // Another runner has them, for all that anybody here knows.
    tickr
        .sql(
            "DELETE FROM queue_permits; INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, started_at, heartbeat_at) \
             VALUES ('else/1-abcdef', '0', '[]', '[]', 1, 600000, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)); \
             INSERT INTO queue_permits (queue, runner, permits, wanting) VALUES ('one', 'else/1-abcdef', 1, FALSE)",
        )
        .await;
    // What runs ends, and nothing starts any more.
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE queue = 'one' AND state = 'executing'", 0).await;
    eventually("nothing starts", || async {
        let before = tickr.count("SELECT COUNT(*) FROM attempts").await;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        (tickr.count("SELECT COUNT(*) FROM attempts").await == before).then_some(())
    })
    .await;
    assert!(tickr.count("SELECT COUNT(*) FROM owed").await > 0);
    drop((holder, heir));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn urgent_queues_and_jobs_go_first_equals_take_turns_and_the_last_do_not_starve() {
    let names = ["a", "b", "first", "last"];
    let tickr = TestApp::start_with(
        |config| {
            config.queues = queues(&names);
            config.workers = 1;
        },
        Registry::new(),
    )
    .await;
    for name in names {
        pause(&tickr, name).await;
    }
    set(&tickr, "first", json!({"priority": 0})).await;
    set(&tickr, "last", json!({"priority": 9})).await;
    let many = async |queue: &str, jobs: usize| {
        tickr.enqueue_many((0..jobs).map(|_| json!({"kind": "noop", "queue": queue}))).await
    };
    let (last, b, a, first) =
        (many("last", 40).await, many("b", 100).await, many("a", 100).await, many("first", 60).await);
    // All of them are where the fetcher can see them before it may look.
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'waiting'", 300).await;
    let mut redis = tickr.redis().await;
    eventually("the ready lists are full", || async {
        let mut redis = redis.clone();
        let mut ready = 0;
        for name in names {
            ready += redis::AsyncTypedCommands::llen(&mut redis, tickr.key(&format!("ready:{name}"))).await.unwrap();
        }
        (ready == 300).then_some(())
    })
    .await;
    let _ = &mut redis;
    for name in names {
        resume(&tickr, name).await;
    }
    tickr.until_count("SELECT COUNT(*) FROM owed", 0).await;
    let order = started(&tickr).await;
    let place = |id: &JobId| order.iter().position(|started| started == id).unwrap();
    let middle = |ids: &[JobId]| {
        let mut places: Vec<usize> = ids.iter().map(place).collect();
        places.sort_unstable();
        places[places.len() / 2]
    };
    let (first, a, b, last_middle) = (middle(&first), middle(&a), middle(&b), middle(&last));
    println!("middle places of 300: first {first}, a {a}, b {b}, last {last_middle}");
    // While the queues went on one by one, a few started out of order.
    assert!(first < a && first < b && a < last_middle && b < last_middle, "{first} {a} {b} {last_middle}");
    assert!(a.abs_diff(b) < 40, "{a} {b}");
    // One turn in twenty is theirs, whatever the others have: in 200 starts about ten.
    let early = last.iter().filter(|id| place(id) < 200).count();
    assert!((4..=30).contains(&early), "{early} of the least urgent among the first 200");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_set_about_a_queue_is_checked_versioned_and_shown() {
    let tickr = TestApp::start().await;
    for (body, pointer) in [
        (json!({"priority": 10}), "/priority"),
        (json!({"concurrency": 0}), "/concurrency"),
        (json!({"concurrency": 100_001}), "/concurrency"),
        (json!({"concurrency": -1}), "/concurrency"),
        (json!({}), ""),
        (json!({"paused": true}), "/paused"),
    ] {
        let refused = call(&tickr, Method::PATCH, "/v1/queues/mail", Some(body.clone())).await;
        assert_eq!((refused.status, refused.pointers()), (422, vec![pointer]), "{body}");
    }
    let long = json!({"reason": "x".repeat(256)});
    assert_eq!(call(&tickr, Method::POST, "/v1/queues/mail/pause", Some(long)).await.pointers(), ["/reason"]);
    assert_eq!(call(&tickr, Method::POST, "/v1/queues/Mail/pause", Some(json!({}))).await.pointers(), ["name"]);
    assert_eq!(call(&tickr, Method::GET, "/v1/queues/mail", None).await.status, 404);

    // Nobody overwrites what they have not seen.
    let mine = call(&tickr, Method::PATCH, "/v1/queues/mail", Some(json!({"priority": 3}))).await;
    let tag = mine.header("etag").to_owned();
    let with_tag = async |tag: &str, change: Value| {
        let request = http().patch(tickr.url("/v1/queues/mail")).header("if-match", tag).json(&change);
        answer(request).await
    };
    let theirs = with_tag(&tag, json!({"concurrency": 7})).await;
    assert_eq!((theirs.status, theirs.body["priority"].as_u64()), (200, Some(3)));
    let late = with_tag(&tag, json!({"concurrency": 9})).await;
    assert_eq!((late.status, late.code()), (412, "precondition_failed"));
    assert_eq!(with_tag("x", json!({"concurrency": 9})).await.pointers(), ["if-match"]);
    // A tag is read as for jobs and schedules: a list, or any; a weak one allows no change.
    let one_of = format!("\"999\", {}", theirs.header("etag"));
    assert_eq!(with_tag(&one_of, json!({"concurrency": 7})).await.status, 200);
    assert_eq!(with_tag("*", json!({"concurrency": 7})).await.status, 200);
    assert_eq!(with_tag(&format!("W/{}", theirs.header("etag")), json!({"concurrency": 9})).await.status, 412);
    // What changes nothing leaves the version as it is.
    assert_eq!(with_tag(theirs.header("etag"), json!({"concurrency": 7})).await.header("etag"), theirs.header("etag"));

    let run = async |args: &[&str]| {
        let mut command = command(&program(), tickr.dir.path(), args);
        command.env("TICKR_URL", tickr.url(""));
        outcome(command).await
    };
    let (code, out, err) = run(&["queues", "pause", "mail", "--reason", "\u{1b}[31mfire"]).await;
    assert!(code == 0 && out.contains("fire") && !out.contains('\u{1b}'), "{out}{err}");
    let (code, out, _) = run(&["queues", "list"]).await;
    assert!(code == 0 && out.contains("mail") && out.contains("0/7") && out.contains("default"), "{out}");
    let (code, out, _) = run(&["queues", "set", "mail", "--concurrency", "none", "--priority", "4", "--json"]).await;
    let shown: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &shown["concurrency"], &shown["priority"]), (0, &Value::Null, &json!(4)));
    let (code, out, _) = run(&["queues", "resume", "mail"]).await;
    assert!(code == 0 && out.contains("paused       no"), "{out}");
    let (code, _, err) = run(&["queues", "set", "mail", "--concurrency", "few"]).await;
    assert!(code == 1 && err.contains("none"), "{err}");
    tickr.stop().await;
}
