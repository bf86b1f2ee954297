//! Queues: pause, priorities and limits, changed while the system runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tickr::app::App;
use tickr::broker::{Draft, OperatorSettings};
use tickr::config::ServerUrl;
use tickr::handlers::{Context, Failure, Kind, Output, Registry};
use tickr::job::{JobId, RunnerId, State};
use tickr::store::{Claim, PermitGrant, PermitRequest};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::program::{command, outcome, tickr as program};
use crate::support::{
    DEADLINE, Proxy, Runner, SHORT_LEASE, TestApp, answer, default_queue, eventually, http, open_transactions,
    short_lease,
};

async fn set(tickr: &TestApp, queue: &str, change: Value) {
    let changed = tickr.patch(&format!("/v1/queues/{queue}"), change).await;
    assert_eq!(changed.status, 200, "{:#}", changed.body);
}

async fn pause(tickr: &TestApp, queue: &str) {
    let paused = tickr.post(&format!("/v1/queues/{queue}/pause"), json!({})).await;
    assert_eq!(paused.status, 200, "{:#}", paused.body);
}

async fn resume(tickr: &TestApp, queue: &str) {
    let resumed = tickr.post(&format!("/v1/queues/{queue}/resume"), json!({})).await;
    assert_eq!((resumed.status, &resumed.body["paused"]), (200, &Value::Null), "{:#}", resumed.body);
}

/// Wait until this process knows the setting.
async fn heard(app: &App, what: impl Fn(&OperatorSettings) -> bool) {
    let mut settings = app.operator_settings().listen();
    let heard = settings.wait_for(|settings| what(settings));
    tokio::time::timeout(DEADLINE, heard).await.unwrap().unwrap();
}

fn queues(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Return the jobs in the order of their starts.
async fn started(tickr: &TestApp) -> Vec<JobId> {
    let mut mysql = tickr.mysql().await;
    let ids = sqlx::query_scalar("SELECT job_id FROM attempts ORDER BY started_at, job_id").fetch_all(&mut mysql).await;
    ids.unwrap().into_iter().map(JobId::from_uuid).collect()
}

/// Return the largest number of jobs of a queue that ran at the same moment, by the ledger.
async fn most_at_once(tickr: &TestApp, queue: &str) -> i64 {
    let sql = format!(
        "SELECT CAST(COALESCE(MAX(n), 0) AS SIGNED) FROM (SELECT (SELECT COUNT(*) FROM attempts b JOIN jobs k ON k.id = b.job_id \
         WHERE k.queue = '{queue}' AND b.started_at <= a.started_at AND b.finished_at > a.started_at) n \
         FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.queue = '{queue}') x"
    );
    tickr.count(sql).await
}

/// Return the median of the times between the end of an attempt of a queue whose limit is one and the next start.
async fn usual_gap(tickr: &TestApp, queue: &str) -> Duration {
    let spans = "SELECT a.started_at, a.finished_at FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.queue = ? \
                 ORDER BY a.started_at";
    let spans: Vec<(DateTime<Utc>, DateTime<Utc>)> =
        sqlx::query_as(spans).bind(queue).fetch_all(&mut tickr.mysql().await).await.unwrap();
    let mut gaps: Vec<TimeDelta> = spans.windows(2).map(|pair| pair[1].0 - pair[0].1).collect();
    gaps.sort_unstable();
    gaps[gaps.len() / 2].to_std().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_queue_starts_nothing_on_any_runner_until_it_goes_on() {
    let tickr = TestApp::start_with(|config| config.queues = queues(&["default", "mail"]), Registry::new()).await;
    let other = tickr.another().await;
    // Another runner has no Redis and reads from the store.
    let without = |config: &mut tickr::config::Config| {
        config.redis_url = Some(ServerUrl::redis("redis://127.0.0.1:1").unwrap());
    };
    let without = tickr.another_with(without, Registry::new()).await;

    let reason = json!({"reason": "provider is down"});
    let paused = tickr.post("/v1/queues/mail/pause", reason).await;
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
    // A job that is made due at once waits for its paused queue as well.
    let moved = tickr.post(&format!("/v1/jobs/{}/run-now", mail[0]), json!({})).await;
    assert_eq!(moved.status, 200);
    let waiting = "SELECT COUNT(*) FROM owed WHERE queue = 'mail' AND state = 'waiting'";
    assert_eq!(tickr.count(waiting).await, 40);
    assert_eq!(
        tickr.count("SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.queue = 'mail'").await,
        0
    );

    // After the resume, the queue continues soon on all runners.
    let asked = Instant::now();
    resume(&tickr, "mail").await;
    for id in mail {
        tickr.until(id, State::Completed).await;
    }
    println!("40 jobs of a resumed queue were done after {} ms", asked.elapsed().as_millis());
    let acts =
        tickr.count("SELECT COUNT(*) FROM audit WHERE target = 'mail' AND action IN ('queue.pause', 'queue.resume')");
    assert_eq!(acts.await, 2);
    tickr.assert_sound().await;
    without.stop(Default::default()).await;
    other.stop(Default::default()).await;
    tickr.stop().await;
}

/// A job that runs until it is told to stop.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Endless {}

impl Kind for Endless {
    const NAME: &'static str = "endless";
}

/// Return the kind `endless`, which counts its handlers that have started.
fn endless(started: &Arc<AtomicUsize>) -> Registry {
    let started = Arc::clone(started);
    let mut own = Registry::new();
    own.register(move |_: Endless, context: Context| {
        started.fetch_add(1, Ordering::SeqCst);
        async move {
            context.stopped().await;
            Err::<Output, _>(Failure::retry("told to stop"))
        }
    });
    own
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_holds_over_all_runners_and_does_not_slow_what_is_within_it() {
    let started = Arc::default();
    let tickr = TestApp::start_with(
        |config| {
            config.queues = queues(&["default", "slow", "one"]);
            config.workers = 16;
            // A machine that stalls must not end the attempts that hold the permits.
            config.lease = Duration::from_secs(60);
        },
        endless(&started),
    )
    .await;
    let other = tickr.another_with(|_| {}, endless(&started)).await;
    set(&tickr, "slow", json!({"concurrency": 3})).await;
    set(&tickr, "one", json!({"concurrency": 1})).await;
    for app in [&tickr.app, &other] {
        heard(app, |settings| settings.queues.contains_key("one")).await;
    }
    // Each runner takes one permit ahead, as far as there are any.
    tickr.until_count("SELECT COUNT(*) FROM queue_permits WHERE queue = 'slow' AND permits > 0", 2).await;
    let slow = (0..30).map(|_| json!({"kind": "sleep", "payload": {"ms": 100}, "queue": "slow"}));
    let one = (0..60).map(|_| json!({"kind": "noop", "queue": "one"}));
    let asked = Instant::now();
    tickr.enqueue_many(slow).await;
    tickr.enqueue_many(one).await;
    tickr.until_idle().await;
    let took = asked.elapsed();
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'").await, 90);
    let gap = usual_gap(&tickr, "one").await;
    println!("30 jobs of 100 ms with a limit of 3, and 60 with a limit of 1: {took:?}, usually {gap:?} between two");
    // A free permit is taken at once, and not only at the next periodic check, which comes after a second. Handovers
    // and stalls of the machine make a few gaps long, and not half of them.
    assert!(gap < Duration::from_millis(600), "{gap:?}");
    assert_eq!(most_at_once(&tickr, "slow").await, 3);
    assert_eq!(most_at_once(&tickr, "one").await, 1);

    // A lower limit stops no running job and starts no new one. Without a limit all jobs run.
    set(&tickr, "slow", json!({"concurrency": null})).await;
    let view = tickr.get("/v1/queues/slow").await.body;
    assert_eq!((&view["concurrency"], &view["permits"]), (&Value::Null, &Value::Null));
    let long = tickr.enqueue_many((0..20).map(|_| json!({"kind": "endless", "queue": "slow"}))).await;
    // A runner gives a job that it has claimed back if the limit comes before the handler starts.
    eventually("all of them have started", || async { (started.load(Ordering::SeqCst) == 20).then_some(()) }).await;
    set(&tickr, "slow", json!({"concurrency": 5})).await;
    // Both runners have reported how many jobs they run, which is more than the limit.
    tickr.until_count("SELECT COUNT(*) FROM queue_permits WHERE queue = 'slow' AND permits > 0", 2).await;
    tickr.until_count("SELECT CAST(SUM(permits) AS SIGNED) FROM queue_permits WHERE queue = 'slow'", 20).await;
    let more = tickr.enqueue(json!({"kind": "noop", "queue": "slow"})).await;
    // Fifteen jobs may end before the next one may start.
    for id in &long[..15] {
        tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    }
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE queue = 'slow' AND state = 'executing'", 5).await;
    assert_eq!(tickr.job(more).await["state"], "waiting");
    tickr.post(&format!("/v1/jobs/{}/cancel", long[15]), json!({})).await;
    tickr.until(more, State::Completed).await;
    for id in &long[16..] {
        tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_lowered_limit_holds_on_a_runner_that_is_never_short_of_jobs() {
    let one = |config: &mut tickr::config::Config| {
        config.queues = queues(&["slow"]);
        config.workers = 16;
    };
    let tickr = TestApp::start_with(one, Registry::new()).await;
    set(&tickr, "slow", json!({"concurrency": 6})).await;
    // A limit holds within two seconds, and the jobs come as soon as it does.
    tickr.until_count("SELECT COUNT(*) FROM queue_permits WHERE queue = 'slow' AND permits > 0", 1).await;
    tickr.enqueue_many((0..30).map(|_| json!({"kind": "sleep", "payload": {"ms": 60_000}, "queue": "slow"}))).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE queue = 'slow' AND state = 'executing'", 6).await;
    set(&tickr, "slow", json!({"concurrency": 2})).await;
    heard(&tickr.app, |settings| settings.queues["slow"].concurrency == Some(2)).await;
    let executing = "SELECT id FROM owed WHERE queue = 'slow' AND state = 'executing'";
    let mut ended = 0;
    loop {
        let running: Vec<Uuid> = sqlx::query_scalar(executing).fetch_all(&mut tickr.mysql().await).await.unwrap();
        if running.len() <= 2 {
            break;
        }
        let id = JobId::from_uuid(running[0]);
        tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
        tickr.until(id, State::Cancelled).await;
        ended += 1;
        // Four must end. A few others may have started before the runner asked MySQL.
        assert!(ended <= 8, "jobs start above the limit");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_limit_counts_the_jobs_of_a_runner_that_hears_of_it_later() {
    let tickr = TestApp::start().await;
    let of_slow = |workers| [("TICKR_QUEUES", "slow"), ("TICKR_LEASE", "30s"), ("TICKR_WORKERS", workers)];
    let executing = "SELECT COUNT(*) FROM owed WHERE queue = 'slow' AND state = 'executing'";
    let long = |n| (0..n).map(|_| json!({"kind": "sleep", "payload": {"ms": 60_000}, "queue": "slow"}));
    let late = Runner::start(&tickr, &of_slow("4"));
    let mut ids = tickr.enqueue_many(long(4)).await;
    tickr.until_count(executing, 4).await;
    let early = Runner::start(&tickr, &of_slow("16"));
    ids.extend(tickr.enqueue_many(long(3)).await);
    tickr.until_count(executing, 7).await;
    late.signal("STOP");
    set(&tickr, "slow", json!({"concurrency": 5})).await;
    tickr.until_count("SELECT COUNT(*) FROM queue_permits WHERE queue = 'slow' AND permits > 0", 1).await;
    let short = tickr.enqueue_many((0..5).map(|_| json!({"kind": "noop", "queue": "slow"}))).await;
    late.signal("CONT");
    tickr.until_count("SELECT COUNT(*) FROM queue_permits WHERE queue = 'slow' AND permits > 0", 2).await;
    // Seven run. The first of the short ones may start when three have ended.
    for (cancelled, id) in ids.iter().enumerate() {
        if cancelled == 3 {
            for id in &short {
                tickr.until(*id, State::Completed).await;
            }
        }
        tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await;
    }
    tickr.until_idle().await;
    let beside_short_ones = "SELECT CAST(MAX(n) AS SIGNED) FROM (SELECT (SELECT COUNT(*) FROM attempts b \
         WHERE b.started_at <= a.started_at AND b.finished_at > a.started_at) n \
         FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.kind = 'noop') x";
    assert_eq!(tickr.count(beside_short_ones).await, 5);
    drop((late, early));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limited_queue_goes_on_while_the_row_of_another_one_is_locked() {
    let both = |config: &mut tickr::config::Config| config.queues = queues(&["one", "stuck"]);
    let tickr = TestApp::start_with(both, Registry::new()).await;
    set(&tickr, "one", json!({"concurrency": 1})).await;
    set(&tickr, "stuck", json!({"concurrency": 1})).await;
    tickr.until_count("SELECT COUNT(*) FROM queue_permits WHERE queue IN ('one', 'stuck') AND permits > 0", 2).await;
    // A runner that froze inside its transaction holds this lock. Meanwhile the permits of this queue cannot be
    // updated.
    let mut frozen = tickr.mysql().await;
    sqlx::raw_sql("BEGIN").execute(&mut frozen).await.unwrap();
    sqlx::query("SELECT * FROM queues WHERE name = 'stuck' FOR UPDATE").execute(&mut frozen).await.unwrap();
    let stuck = tickr.enqueue_many((0..3).map(|_| json!({"kind": "noop", "queue": "stuck"}))).await;
    let asked = Instant::now();
    for id in tickr.enqueue_many((0..60).map(|_| json!({"kind": "noop", "queue": "one"}))).await {
        tickr.until(id, State::Completed).await;
    }
    // One job per block of the fetcher would take a minute. Alone this takes less than two seconds.
    assert!(asked.elapsed() < Duration::from_secs(30), "{:?}", asked.elapsed());
    sqlx::raw_sql("ROLLBACK").execute(&mut frozen).await.unwrap();
    for id in stuck {
        tickr.until(id, State::Completed).await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_freezes_in_a_transaction_holds_up_only_the_queue_whose_row_it_has_locked() {
    let all = |config: &mut tickr::config::Config| {
        (config.queues, config.lease) = (queues(&["one", "two", "default"]), SHORT_LEASE);
    };
    let tickr = TestApp::start_with(all, Registry::new()).await;
    for queue in ["one", "two"] {
        set(&tickr, queue, json!({"concurrency": 1})).await;
    }
    tickr.until_count("SELECT COUNT(*) FROM queue_permits WHERE queue IN ('one', 'two') AND permits > 0", 2).await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    // The runner gets no answer to its first statement behind the lock.
    proxy.silent_from("SELECT p.runner, p.permits, p.wanting");
    let mut frozen = Runner::start(&tickr, &[("TICKR_QUEUES", "one"), ("TICKR_MYSQL_URL", &proxy.url())]);
    eventually("it has locked the row of its queue", || async { proxy.is_through().then_some(()) }).await;
    frozen.signal("STOP");
    let lock = "SELECT name FROM queues WHERE name = 'one' FOR UPDATE NOWAIT";
    assert!(sqlx::query(lock).execute(&mut tickr.mysql().await).await.is_err(), "the row is not locked");
    let held = tickr.enqueue_many((0..3).map(|_| json!({"kind": "noop", "queue": "one"}))).await;
    let asked = Instant::now();
    let others = ["two", "default"].into_iter().cycle().take(60);
    for id in tickr.enqueue_many(others.map(|queue| json!({"kind": "noop", "queue": queue}))).await {
        tickr.until(id, State::Completed).await;
    }
    println!("60 jobs of other queues took {:?}", asked.elapsed());
    assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
    assert!(sqlx::query(lock).execute(&mut tickr.mysql().await).await.is_err(), "the row was locked all the time");
    // With the process its connection ends, and MySQL rolls its transaction back.
    frozen.kill9();
    for id in held {
        tickr.until(id, State::Completed).await;
    }
    tickr.stop().await;
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Special {}

impl Kind for Special {
    const NAME: &'static str = "special";
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_of_a_killed_runner_are_free_again_and_an_idle_one_gives_way() {
    let tickr = TestApp::start_with(short_lease, Registry::new()).await;
    set(&tickr, "one", json!({"concurrency": 1})).await;
    // One runner holds the only permit and dies with it.
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

    // Only another runner can run this job, while the heir keeps the permit in case a job comes for it.
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

/// Return the largest number of jobs of a queue that ran at the same moment. Lost attempts do not count, because no
/// runner could stop them in time.
async fn most_kept_at_once(tickr: &TestApp, queue: &str) -> i64 {
    let sql = format!(
        "SELECT CAST(COALESCE(MAX(n), 0) AS SIGNED) FROM (SELECT (SELECT COUNT(*) FROM attempts b JOIN jobs k ON k.id = b.job_id \
         WHERE k.queue = '{queue}' AND b.verdict <> 'lost' AND b.started_at <= a.started_at AND b.finished_at > a.started_at) n \
         FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.queue = '{queue}' AND a.verdict <> 'lost') x"
    );
    tickr.count(sql).await
}

const OF_ONE: [(&str, &str); 3] = [("TICKR_QUEUES", "one"), ("TICKR_LEASE", "2s"), ("TICKR_WORKERS", "4")];

/// Start two runners that serve a queue with a limit of one, and wait until a job of that queue runs.
async fn two_of_one(tickr: &TestApp, environment: &[(&str, &str)]) -> [Runner; 2] {
    set(tickr, "one", json!({"concurrency": 1})).await;
    let sleep = json!({"kind": "sleep", "payload": {"ms": 300}, "queue": "one"});
    let first = Runner::start(tickr, environment);
    tickr.enqueue_many((0..50).map(|_| sleep.clone())).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE queue = 'one' AND state = 'executing'", 1).await;
    let second = Runner::start(tickr, environment);
    second.base().await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE queue = 'one' AND state = 'executing'", 1).await;
    [first, second]
}

/// Return the ids of the transactions that are open in this database.
async fn open_ids(tickr: &TestApp) -> Vec<String> {
    let open = open_transactions(tickr.config.mysql_url().unwrap().expose()).await.into_iter();
    open.map(|transaction| transaction.id).collect()
}

/// Suspend the process that has the only permit or slot, while a job runs in it. Return that one first.
pub(crate) async fn stop_the_holder(tickr: &TestApp, runners: [Runner; 2]) -> [Runner; 2] {
    let [first, second] = &runners;
    let runs = "SELECT CAST(r.pid AS SIGNED) FROM owed o JOIN runners r ON r.id = o.runner WHERE o.state = 'executing'";
    let running =
        async || -> Option<i64> { sqlx::query_scalar(runs).fetch_optional(&mut tickr.mysql().await).await.unwrap() };
    let first_has_it = eventually("a runner is stopped over a job", || async {
        let pid = running().await?;
        let is_first = pid == i64::from(first.pid());
        let holder = if is_first { first } else { second };
        holder.signal("STOP");
        // By then its earlier messages have arrived.
        tokio::time::sleep(Duration::from_millis(200)).await;
        // A process that is suspended inside a transaction would hold the locks of the queue or of the job all the
        // time.
        let open = open_ids(tickr).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let still_open = open_ids(tickr).await.iter().any(|id| open.contains(id));
        if !still_open && running().await == Some(pid) {
            return Some(is_first);
        }
        holder.signal("CONT");
        None
    })
    .await;
    let [first, second] = runners;
    if first_has_it { [first, second] } else { [second, first] }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_holds_after_its_holder_slept() {
    let tickr = TestApp::start_with(short_lease, Registry::new()).await;
    let [holder, heir] = stop_the_holder(&tickr, two_of_one(&tickr, &OF_ONE).await).await;
    let stopped = Instant::now();
    // Another runner may take its permit four seconds after its lease.
    let by_heir =
        format!("SELECT COUNT(*) FROM attempts a JOIN runners r ON r.id = a.runner WHERE r.pid = {}", heir.pid());
    let before = tickr.count(&by_heir).await;
    eventually("the heir has taken its permit", || async { (tickr.count(&by_heir).await >= before + 2).then_some(()) })
        .await;
    // The holder goes on when others have long had the permit, and while there are jobs that it could take.
    tokio::time::sleep((SHORT_LEASE + Duration::from_secs(7)).saturating_sub(stopped.elapsed())).await;
    let waiting = tickr.count("SELECT COUNT(*) FROM owed WHERE queue = 'one' AND state = 'waiting'").await;
    assert!(waiting > 0, "all jobs had ended before the holder went on");
    holder.signal("CONT");
    tickr.until_idle().await;
    assert_eq!(most_kept_at_once(&tickr, "one").await, 1);
    assert!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'").await >= 50);
    drop((holder, heir));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_that_waited_for_work_is_not_good_after_its_holder_slept() {
    let tickr = TestApp::start_with(short_lease, Registry::new()).await;
    set(&tickr, "one", json!({"concurrency": 1})).await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let url = proxy.url();
    let mut through_proxy = OF_ONE.to_vec();
    through_proxy.push(("TICKR_MYSQL_URL", &url));
    let holder = Runner::start(&tickr, &through_proxy);
    tickr.until_count("SELECT COUNT(*) FROM queue_permits WHERE queue = 'one' AND permits = 1", 1).await;
    holder.signal("STOP");
    // When it continues, it reads its permit back from MySQL. Without an answer, only its heartbeat tells it that
    // another runner may have the permit.
    proxy.silent_from("SELECT queue, permits FROM queue_permits");
    let heir = Runner::start(&tickr, &OF_ONE);
    let sleep = json!({"kind": "sleep", "payload": {"ms": 300}, "queue": "one"});
    tickr.enqueue_many((0..20).map(|_| sleep.clone())).await;
    tickr.until_count("SELECT COUNT(*) >= 2 FROM attempts", 1).await;
    // From its first heartbeat on it looks for work. No job of it ends here, so nothing else makes it check its permit
    // earlier.
    holder.signal("CONT");
    tickr.until_idle().await;
    assert_eq!(most_kept_at_once(&tickr, "one").await, 1);
    drop((holder, heir));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limited_queue_goes_on_for_longer_than_a_lease() {
    let tickr = TestApp::start().await;
    set(&tickr, "one", json!({"concurrency": 1})).await;
    let alone = Runner::start(&tickr, &OF_ONE);
    let sleep = json!({"kind": "sleep", "payload": {"ms": 300}, "queue": "one"});
    tickr.enqueue_many((0..20).map(|_| sleep.clone())).await;
    tickr.until_idle().await;
    assert_eq!(most_kept_at_once(&tickr, "one").await, 1);
    drop(alone);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_holds_after_mysql_stood_still() {
    let short = |config: &mut tickr::config::Config| config.lease = Duration::from_secs(4);
    let tickr = TestApp::start_alone(|_| {}, short).await;
    let of_four_seconds = [("TICKR_QUEUES", "one"), ("TICKR_LEASE", "4s"), ("TICKR_WORKERS", "4")];
    let runners = two_of_one(&tickr, &of_four_seconds).await;
    // Longer than a lease plus the four seconds after which another runner may take the permit. The heir continues
    // first. It must not count the silence of the holder as death, because MySQL answered no heartbeat.
    let [holder, heir] = stop_the_holder(&tickr, runners).await;
    tickr.services().mysql().pause().unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    tickr.services().mysql().resume().unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    holder.signal("CONT");
    tickr.until_idle().await;
    assert_eq!(most_kept_at_once(&tickr, "one").await, 1);
    drop((holder, heir));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_whose_return_mysql_carried_out_without_an_answer_starts_no_job() {
    let tickr = TestApp::start().await;
    set(&tickr, "one", json!({"concurrency": 1})).await;
    let proxy = Proxy::start(tickr.config.mysql_url().unwrap().expose()).await;
    let url = proxy.url();
    // The permits are confirmed every third of a lease, so not during this test.
    let of_one = |config: &mut tickr::config::Config| {
        (config.queues, config.workers, config.lease) = (queues(&["one"]), 2, Duration::from_secs(120));
    };
    let through = |config: &mut tickr::config::Config| {
        of_one(config);
        config.mysql_url = Some(ServerUrl::mysql(&url).unwrap());
    };
    let first = tickr.another_with(through, Registry::new()).await;
    let noop = tickr.enqueue(json!({"kind": "noop", "queue": "one"})).await;
    tickr.until(noop, State::Completed).await;
    let holds = |runner: &App| {
        format!("SELECT COUNT(*) FROM queue_permits WHERE permits = 1 AND runner = '{}'", runner.runner())
    };
    println!("the first runner is {}", first.runner());
    tickr.until_count(holds(&first), 1).await;
    // From now on MySQL carries out each request of the first runner for permits, and no answer arrives.
    let cuts = proxy.cuts();
    proxy.cut_commits_of("SELECT concurrency FROM queues WHERE name", usize::MAX);
    let second = tickr.another_with(of_one, Registry::new()).await;
    tickr.until_count(holds(&second), 1).await;
    assert!(proxy.cuts() > cuts, "the first runner gave its permit back");
    let sleep = json!({"kind": "sleep", "payload": {"ms": 1_000}, "queue": "one"});
    let jobs = tickr.enqueue_many((0..4).map(|_| sleep.clone())).await;
    for id in jobs {
        tickr.until(id, State::Completed).await;
    }
    assert_eq!(most_at_once(&tickr, "one").await, 1);
    proxy.pass();
    second.stop(Default::default()).await;
    // Without the other runner it gets the permit again.
    let last = tickr.enqueue(json!({"kind": "noop", "queue": "one"})).await;
    tickr.until(last, State::Completed).await;
    first.stop(Default::default()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_that_are_gone_are_asked_for_anew() {
    let tickr = TestApp::start().await;
    set(&tickr, "one", json!({"concurrency": 1})).await;
    // No other runner wants a permit, so this runner has no other reason to request one.
    let alone = Runner::start(&tickr, &OF_ONE);
    let sleep = json!({"kind": "sleep", "payload": {"ms": 300}, "queue": "one"});
    tickr.enqueue_many((0..50).map(|_| sleep.clone())).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE queue = 'one' AND state = 'executing'", 1).await;
    // The tables say that another runner has the permits.
    tickr
        .sql(
            "DELETE FROM queue_permits; INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, started_at, heartbeat_at) \
             VALUES ('else/1-abcdef', '0', '[]', '[]', 1, 600000, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)); \
             INSERT INTO queue_permits (queue, runner, permits, wanting) VALUES ('one', 'else/1-abcdef', 1, FALSE)",
        )
        .await;
    // The running jobs end, and no job starts any more.
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE queue = 'one' AND state = 'executing'", 0).await;
    eventually("nothing starts", || async {
        let before = tickr.count("SELECT COUNT(*) FROM attempts").await;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        (tickr.count("SELECT COUNT(*) FROM attempts").await == before).then_some(())
    })
    .await;
    assert!(tickr.count("SELECT COUNT(*) FROM owed").await > 0);
    drop(alone);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_is_not_free_while_an_attempt_under_it_is_open() {
    let tickr = TestApp::start_with(|config| config.queues = queues(&["elsewhere"]), Registry::new()).await;
    set(&tickr, "one", json!({"concurrency": 1})).await;
    let ids = tickr.enqueue_many((0..2).map(|_| json!({"kind": "noop", "queue": "one"}))).await;
    let store = tickr.app.broker().store();
    // A runner claimed a job after its last heartbeat, and fell silent.
    let (silent, child, other) =
        (RunnerId::new_for_host("a"), RunnerId::new_for_host("b"), RunnerId::new_for_host("c"));
    let kinds = || vec!["noop".parse().unwrap()];
    let claimed =
        store.claimant(silent.clone(), kinds(), Duration::from_secs(60)).claim(ids[0], default_queue()).await.unwrap();
    assert!(matches!(claimed, Claim::Won(_)), "{claimed:?}");
    let runner = |id: &RunnerId, parent: &str, ago: u32| {
        format!(
            "INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, started_at, heartbeat_at, parent) VALUES \
             ('{id}', '0', '[]', '[]', 1, 60000, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) - INTERVAL {ago} SECOND, {parent});"
        )
    };
    let held =
        format!("INSERT INTO queue_permits (queue, runner, permits, wanting) VALUES ('one', '{silent}', 1, FALSE)");
    tickr.sql(runner(&silent, "NULL", 70) + &held).await;
    let ask = || async {
        let asked = PermitRequest { used: 0, wanted: 1, yielding: false };
        store.take_permits(&"one".parse().unwrap(), &other, asked, Arc::new(|_, _| true)).await.unwrap()
    };
    assert_eq!(ask().await, PermitGrant::Permits(0), "its attempt is open");
    // That attempt ended. The silent runner's suspect runs in a process of its own, which sends heartbeats.
    let suspect =
        store.claimant(child.clone(), kinds(), Duration::from_secs(60)).claim(ids[1], default_queue()).await.unwrap();
    assert!(matches!(suspect, Claim::Won(_)), "{suspect:?}");
    let ended = format!("DELETE FROM owed WHERE runner = '{silent}';");
    tickr.sql(ended + &runner(&child, &format!("'{silent}'"), 1)).await;
    assert_eq!(ask().await, PermitGrant::Permits(0), "the attempt of its suspect is open");
    tickr.sql(format!("DELETE FROM runners WHERE id = '{silent}'")).await;
    assert_eq!(ask().await, PermitGrant::Permits(0), "also when the runner is not listed any more");
    tickr.sql(format!("DELETE FROM owed WHERE runner = '{child}'")).await;
    assert_eq!(ask().await, PermitGrant::Permits(1), "nothing is open");
    tickr.stop_broken("the test wrote claims of runners that do not exist").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_ended_jobs_do_not_hold_up_a_queue_with_a_limit() {
    let tickr = TestApp::start_with(|config| config.queues = queues(&["one"]), Registry::new()).await;
    set(&tickr, "one", json!({"concurrency": 1})).await;
    let first = tickr.enqueue(json!({"kind": "noop", "queue": "one"})).await;
    tickr.until(first, State::Completed).await;
    pause(&tickr, "one").await;
    heard(&tickr.app, |settings| settings.queues.get("one").is_some_and(|set| set.pause.is_some())).await;
    let mut redis = tickr.redis().await;
    let list = tickr.key("ready:one");
    for _ in 0..40 {
        let ids: Vec<String> = (0..1_000).map(|_| JobId::new().to_string()).collect();
        let _: usize = redis::AsyncCommands::rpush(&mut redis, &list, ids).await.unwrap();
    }
    let id = tickr.enqueue(json!({"kind": "noop", "queue": "one"})).await;
    let asked = Instant::now();
    resume(&tickr, "one").await;
    tickr.until(id, State::Completed).await;
    // A claim for each of them would take a millisecond at the very least.
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(10), "behind 40,000 ids of ended jobs it was done after {took:?}");
    tickr.stop().await;
}

/// Each of the ids would cost the one worker a claim. A few claims show that there are many, and these are read together.
#[tokio::test(flavor = "multi_thread")]
async fn ids_of_ended_jobs_do_not_hold_up_a_queue_without_a_limit() {
    let tickr =
        TestApp::start_with(|config| (config.queues, config.workers) = (queues(&["one"]), 1), Registry::new()).await;
    pause(&tickr, "one").await;
    heard(&tickr.app, |settings| settings.queues.get("one").is_some_and(|set| set.pause.is_some())).await;
    let mut redis = tickr.redis().await;
    let list = tickr.key("ready:one");
    for _ in 0..40 {
        let ids: Vec<String> = (0..1_000).map(|_| JobId::new().to_string()).collect();
        let _: usize = redis::AsyncCommands::rpush(&mut redis, &list, ids).await.unwrap();
    }
    let id = tickr.enqueue(json!({"kind": "noop", "queue": "one"})).await;
    let asked = Instant::now();
    resume(&tickr, "one").await;
    tickr.until(id, State::Completed).await;
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(10), "behind 40,000 ids of ended jobs it was done after {took:?}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_below_the_number_of_runners_is_not_handed_over_after_every_job() {
    let tickr = TestApp::start_with(|config| config.queues = queues(&["elsewhere"]), Registry::new()).await;
    set(&tickr, "one", json!({"concurrency": 1})).await;
    // A runner that stalls for its lease loses its permit, which is no handover.
    let env = [("TICKR_QUEUES", "one"), ("TICKR_LEASE", "30s")];
    let runners: Vec<Runner> = (0..3).map(|_| Runner::start(&tickr, &env)).collect();
    for runner in &runners {
        runner.base().await;
    }
    let asked = Instant::now();
    tickr.enqueue_many((0..100).map(|_| json!({"kind": "sleep", "payload": {"ms": 140}, "queue": "one"}))).await;
    tickr.until_idle().await;
    let took = asked.elapsed();
    let mut mysql = tickr.mysql().await;
    let by: Vec<String> =
        sqlx::query_scalar("SELECT runner FROM attempts ORDER BY started_at").fetch_all(&mut mysql).await.unwrap();
    let handed_over = by.windows(2).filter(|pair| pair[0] != pair[1]).count();
    // A runner keeps the permit for five seconds at least. The whole run takes some fifteen seconds, on a busy machine
    // more. Runners that gave way every half second would do so some twenty times: during each handover no job runs, for
    // up to a second.
    let most = 2 + usize::try_from(took.as_secs() / 5).unwrap();
    println!("100 jobs by three runners in {took:?}, handed over {handed_over} times, of at most {most}");
    assert!(handed_over <= most, "handed over {handed_over} times in {took:?}");
    drop(runners);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_below_the_number_of_runners_reaches_each_of_them_under_load() {
    let tickr = TestApp::start_with(|config| config.queues = queues(&["elsewhere"]), Registry::new()).await;
    set(&tickr, "one", json!({"concurrency": 1})).await;
    // The queue is never empty during this test, so a runner that has the permit always has work for it. Between two
    // jobs the permit is unused for a moment. A busy machine may make that long enough for the runner to give it away,
    // which is what must not help here. So the jobs are few and long, but shorter than the time for which a runner
    // gives way.
    tickr.enqueue_many((0..200).map(|_| json!({"kind": "sleep", "payload": {"ms": 500}, "queue": "one"}))).await;
    // Nor may a lease that ends while a runner stalls.
    let env = [("TICKR_QUEUES", "one"), ("TICKR_LEASE", "30s")];
    let runners: Vec<Runner> = (0..2).map(|_| Runner::start(&tickr, &env)).collect();
    for runner in &runners {
        runner.base().await;
    }
    let began = Instant::now();
    // A runner gives way after 5 to 15 s, and if the other one just misses that, after as long again.
    while tickr.count("SELECT COUNT(DISTINCT runner) FROM attempts").await < 2 {
        assert!(began.elapsed() < 2 * DEADLINE, "one runner keeps the permit for itself");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("both runners had the permit after {:?}", began.elapsed());
    assert!(tickr.count("SELECT COUNT(*) FROM owed WHERE state = 'waiting'").await > 50, "the queue has run dry");
    let rest = json!({"action": "cancel", "filter": {"queue": "one", "state": "waiting"}, "rate": 10_000});
    assert_eq!(tickr.post("/v1/operations", rest).await.status, 202);
    tickr.until_idle().await;
    assert_eq!(most_at_once(&tickr, "one").await, 1);
    drop(runners);
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
    // All jobs are in Redis before the fetcher may look.
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
    println!("median positions of 300: first {first}, a {a}, b {b}, last {last_middle}");
    // While the queues were resumed one by one, a few jobs started out of order.
    assert!(first < a && first < b && a < last_middle && b < last_middle, "{first} {a} {b} {last_middle}");
    assert!(a.abs_diff(b) < 40, "{a} {b}");
    // One turn in twenty goes to the least urgent queue, whatever the others have: about ten in 200 starts.
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
        let refused = tickr.patch("/v1/queues/mail", body.clone()).await;
        assert_eq!((refused.status, refused.pointers()), (422, vec![pointer]), "{body}");
    }
    let long = json!({"reason": "x".repeat(256)});
    assert_eq!(tickr.post("/v1/queues/mail/pause", long).await.pointers(), ["/reason"]);
    assert_eq!(tickr.post("/v1/queues/Mail/pause", json!({})).await.pointers(), ["name"]);
    assert_eq!(tickr.get("/v1/queues/mail").await.status, 404);

    // A change with the tag of an older version is refused.
    let mine = tickr.patch("/v1/queues/mail", json!({"priority": 3})).await;
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
    // A tag is read as for jobs and schedules: a list of tags, or `*`. A weak tag allows no change.
    let one_of = format!("\"999\", {}", theirs.header("etag"));
    assert_eq!(with_tag(&one_of, json!({"concurrency": 7})).await.status, 200);
    assert_eq!(with_tag("*", json!({"concurrency": 7})).await.status, 200);
    assert_eq!(with_tag(&format!("W/{}", theirs.header("etag")), json!({"concurrency": 9})).await.status, 412);
    // A request that changes nothing keeps the version.
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
    assert!(code == 2 && err.contains("none"), "{err}");

    // The queue of a drained runner is known, also before its first job.
    assert_eq!(tickr.get("/v1/queues/default").await.body["runners"], 1);
    let runner = tickr.app.runner().as_str().replace('/', "%2F");
    assert_eq!(tickr.post(&format!("/v1/runners/{runner}/drain"), json!({})).await.status, 200);
    let served = tickr.get("/v1/queues/default").await;
    assert_eq!((served.status, &served.body["runners"]), (200, &json!(0)), "{:#}", served.body);
    let listed = tickr.get("/v1/queues").await.body;
    assert!(listed["data"].as_array().unwrap().iter().any(|queue| queue["name"] == "default"), "{listed:#}");
    let (code, _, err) = run(&["queues", "pause", "default"]).await;
    assert_eq!(code, 0, "{err}");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demand_of_a_queue_that_no_runner_serves_is_told_by_any_runner() {
    let tickr = TestApp::start_with(|config| config.queues = queues(&["elsewhere"]), Registry::new()).await;
    let demand = async |queue: &str| {
        let told = tickr.get(&format!("/v1/queues/{queue}/backlog")).await;
        assert_eq!(told.status, 200, "{:#}", told.body);
        told.body
    };
    let mut none = json!({"queue": "mail", "wanted_workers": 0, "due": 0, "executing": 0, "exact": true,
        "paused": false, "concurrency": null, "runners": 0});
    assert_eq!(demand("mail").await, none);
    assert_eq!(tickr.get("/v1/queues/Mail/backlog").await.pointers(), ["name"]);

    // Jobs for later and jobs behind another one need no worker yet.
    let noop = |more: Value| {
        let mut job = json!({"kind": "noop", "queue": "mail"});
        job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        job
    };
    tickr.enqueue_many([noop(json!({"delay_ms": 3_600_000})), noop(json!({"delay_ms": 86_400_000 * 30_i64}))]).await;
    assert_eq!(demand("mail").await, none);
    tickr.enqueue_many((0..3).map(|_| noop(json!({"order_key": "one"})))).await;
    tickr.enqueue_many((0..4).map(|priority| noop(json!({"priority": priority})))).await;
    (none["due"], none["wanted_workers"]) = (json!(5), json!(5));
    assert_eq!(demand("mail").await, none);

    set(&tickr, "mail", json!({"concurrency": 2})).await;
    (none["concurrency"], none["wanted_workers"]) = (json!(2), json!(2));
    assert_eq!(demand("mail").await, none);
    pause(&tickr, "mail").await;
    (none["paused"], none["wanted_workers"]) = (json!(true), json!(0));
    assert_eq!(demand("mail").await, none);
    tickr.halt().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn executing_jobs_keep_their_workers_in_the_demand_of_a_queue() {
    let open = CancellationToken::new();
    let tickr = TestApp::start_with(|_| {}, crate::support::gated(&open)).await;
    let job = tickr.enqueue(json!({"kind": "gate", "payload": {}})).await;
    tickr.until(job, State::Executing).await;
    pause(&tickr, "default").await;
    tickr.enqueue(json!({"kind": "noop"})).await;
    let told = tickr.get("/v1/queues/default/backlog").await.body;
    let parts = ["wanted_workers", "due", "executing", "runners"].map(|part| told[part].as_i64().unwrap());
    assert_eq!(parts, [1, 1, 1, 1], "{told:#}");
    open.cancel();
    tickr.until(job, State::Completed).await;
    resume(&tickr, "default").await;
    tickr.until_idle().await;
    tickr.stop().await;
}
