//! Redis as a hint: whatever happens to it, every accepted job runs once, and lost entries come back within the bound
//! of G3.

use std::num::NonZeroUsize;
use std::time::Duration;

use chrono::NaiveDateTime;
use redis::AsyncTypedCommands;
use redis::aio::MultiplexedConnection;
use serde_json::json;
use sqlx::AssertSqlSafe;
use tickr::config::{Config, ServerUrl};
use tickr::event::{Event, Health};
use tickr::handlers::Registry;
use tickr::index::{Entry, Lane};
use tickr::job::{JobId, Priority, State};
use tickr::services::Services;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::redis_group::open;
use crate::support::{
    Condition, DEADLINE, Owed, Pulse, Relay, TestApp, draft, eventually, eventually_seen, server_options,
};

/// The bound of G3 for lost index entries, plus a second for a busy machine.
pub(crate) const BOUND: Duration = Duration::from_secs(7);

pub(crate) async fn until_health(tickr: &TestApp, wanted: Health) {
    eventually(&format!("the index is {}", wanted.as_str()), || async {
        (tickr.app.index().health().now() == wanted).then_some(())
    })
    .await;
}

/// Start a tickr with servers of its own, which reaches its Redis through a relay.
async fn start_behind_a_relay(change: impl FnOnce(&mut Config)) -> (TestApp, Relay) {
    let relay = Relay::start().await;
    let tickr = TestApp::start_alone(
        |own| relay.lead_to(&own.redis_url()),
        |config| {
            config.redis_url = Some(ServerUrl::redis(&relay.redis_url()).unwrap());
            change(config);
        },
    )
    .await;
    (tickr, relay)
}

/// Open a connection to a server that bypasses any relay.
async fn direct(services: &Services) -> MultiplexedConnection {
    open(&services.redis_url()).await
}

async fn config_set(redis: &mut MultiplexedConnection, name: &str, value: &str) {
    redis::cmd("CONFIG").arg("SET").arg(name).arg(value).exec_async(redis).await.unwrap();
}

async fn info(redis: &mut MultiplexedConnection, name: &str) -> u64 {
    let info: redis::InfoDict = redis::cmd("INFO").query_async(redis).await.unwrap();
    info.get(name).unwrap()
}

/// Enqueue a job at every interval of `every` for a while, due within the next second. Return the number of jobs.
pub(crate) async fn load(tickr: &TestApp, every: Duration, time: Duration) -> i64 {
    load_ahead(tickr, every, time, 1_000).await
}

/// Do the same as [`load`], with jobs due up to this many milliseconds ahead.
async fn load_ahead(tickr: &TestApp, every: Duration, time: Duration, ahead_ms: i64) -> i64 {
    let broker = tickr.app.broker();
    let pulse = Pulse::start(tickr).await;
    let mut ticks = tokio::time::interval(every);
    let (began, mut jobs, mut slow) = (Instant::now(), 0, Vec::new());
    while began.elapsed() < time {
        ticks.tick().await;
        let job = json!({"kind": "noop", "delay_ms": jobs * 37 % ahead_ms});
        let asked = Instant::now();
        let enqueued = broker.enqueue(broker.prepare(draft(&job)).unwrap()).await;
        let (answered, took) = (Instant::now(), asked.elapsed());
        if let Err(error) = enqueued {
            assert!(pulse.saw_outage(asked), "after {took:?}: {error}");
            continue;
        }
        // An enqueue that waits for Redis waits for at least a second (`PATIENCE` in internal/index/link.rs). Less than
        // that was the machine, and so were stalls for most of this time in which no write at all was committed.
        if took > Duration::from_millis(900) {
            let stalled = pulse.stood_still(asked, answered);
            slow.extend((took.saturating_sub(stalled) > Duration::from_millis(500)).then_some((took, stalled)));
        }
        jobs += 1;
    }
    pulse.assert_watching();
    // In a run of many minutes, the disk may be slow now and then.
    assert!(slow.len() as i64 <= jobs / 5_000, "of {jobs} enqueues these took long, beside stalls: {slow:?}");
    jobs
}

/// Return the time by the clock of MySQL.
async fn clock(tickr: &TestApp) -> NaiveDateTime {
    sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut tickr.mysql().await).await.unwrap()
}

/// Return the 99th percentile of the lateness of the attempts that were due since a time, in milliseconds.
async fn p99_late_ms(tickr: &TestApp, since: NaiveDateTime) -> i64 {
    let late = "SELECT TIMESTAMPDIFF(MICROSECOND, execute_at, started_at) DIV 1000 AS ms FROM attempts \
                WHERE execute_at >= ? ORDER BY ms";
    let late: Vec<i64> = sqlx::query_scalar(late).bind(since).fetch_all(&mut tickr.mysql().await).await.unwrap();
    let (p99, worst) = (late[late.len() * 99 / 100], late[late.len() - 1]);
    println!("{} attempts, late by p99 {p99} ms, at worst {worst} ms", late.len());
    p99
}

/// Do the same as [`load`], and check that 99 of 100 jobs started within a second. A load during which the machine
/// stood still proves nothing, so there is another one.
async fn load_promptly(tickr: &TestApp, pulse: &Pulse, every: Duration, time: Duration) -> i64 {
    let mut jobs = 0;
    for _ in 0..5 {
        let (since, began) = (clock(tickr).await, Instant::now());
        jobs += load(tickr, every, time).await;
        tickr.until_idle().await;
        let p99 = p99_late_ms(tickr, since).await;
        if p99 < 1_000 {
            return jobs;
        }
        assert!(pulse.saw_outage(began), "{p99} ms late");
    }
    panic!("the machine stood still in each of five loads");
}

/// Check that each attempt started within the bound after it was due. The time for which the machine stood still does
/// not count, and after a stall that was an outage of its own the bound begins anew.
pub(crate) async fn assert_late_within(tickr: &TestApp, pulse: &Pulse, bound: Duration) {
    let late = pulse.latest_start(tickr, "TRUE").await;
    assert!(late < bound, "{late:?} late beside stalls of the machine");
}

/// Records the changes of the index's health until `end`.
pub(crate) struct Changes {
    over: CancellationToken,
    seen: tokio::task::JoinHandle<Vec<Health>>,
}

impl Changes {
    pub(crate) fn watch(tickr: &TestApp) -> Self {
        let (index, over) = (tickr.app.index().clone(), CancellationToken::new());
        let end = over.clone();
        // Before the caller goes on: the task may begin after the first change.
        let mut seen = vec![index.health().now()];
        let seen = tokio::spawn(async move {
            while !end.is_cancelled() {
                let now = index.health().now();
                if seen.last() != Some(&now) {
                    seen.push(now);
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            seen
        });
        Self { over, seen }
    }

    pub(crate) async fn end(self) -> Vec<Health> {
        self.over.cancel();
        self.seen.await.unwrap()
    }
}

/// Start a tickr whose only worker is busy until the returned job is cancelled.
async fn start_busy(change: impl FnOnce(&mut Config)) -> (TestApp, JobId) {
    let busy = |config: &mut Config| {
        config.workers = 1;
        change(config);
    };
    let tickr = TestApp::start_with(busy, Registry::new()).await;
    // A job that is accepted while the start rebuilds the index is listed by its hint and again by the rebuild. The
    // second entry would stay in the list, because the only worker is busy.
    until_health(&tickr, Health::Fast).await;
    let sleeper = tickr.enqueue_kind("sleep", json!({"ms": 600_000})).await;
    tickr.until(sleeper, State::Executing).await;
    (tickr, sleeper)
}

/// Let the other jobs run, and check that each ran exactly once.
async fn release(tickr: &TestApp, sleeper: JobId, others: i64) {
    tickr.post(&format!("/v1/jobs/{sleeper}/cancel"), json!({})).await;
    tickr.until_idle().await;
    let succeeded = "SELECT COUNT(DISTINCT job_id) FROM attempts WHERE verdict = 'succeeded'";
    assert_eq!(tickr.count(succeeded).await, others);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts").await, others + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_deleted_one_by_one_under_load_cost_no_job_more_than_the_bound() {
    let tickr = TestApp::start_with(|config| config.workers = 8, Registry::new()).await;
    until_health(&tickr, Health::Fast).await;
    let (mut redis, pulse) = (tickr.redis().await, Pulse::start(&tickr).await);
    let keys =
        ["epoch", "sequence", "waiting", "ready:default", "overflow", "refill:default"].map(|key| tickr.key(key));
    let deletions = async {
        for turn in 0..24 {
            tokio::time::sleep(Duration::from_millis(rand::random_range(100..300))).await;
            redis.del(&keys[turn % keys.len()]).await.unwrap();
        }
    };
    let (jobs, ()) =
        tokio::join!(load_ahead(&tickr, Duration::from_millis(25), Duration::from_secs(5), 3_000), deletions);
    tickr.until_idle().await;
    tickr.assert_each_ran_once(jobs).await;
    assert_late_within(&tickr, &pulse, BOUND).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_wrong_type_are_made_again_and_cost_no_job_more_than_the_bound() {
    let tickr = TestApp::start_with(|config| config.workers = 8, Registry::new()).await;
    until_health(&tickr, Health::Fast).await;
    let mut redis = tickr.redis().await;
    let pulse = Pulse::start(&tickr).await;
    let types = [("ready:default", "list"), ("waiting", "zset"), ("overflow", "hash"), ("sequence", "string")];
    let spoil = async {
        for (name, wanted) in types {
            let key = tickr.key(name);
            // Another client uses the name for a value of its own.
            let set: redis::RedisResult<()> = redis::cmd("SET").arg(&key).arg("mine").query_async(&mut redis).await;
            set.unwrap();
            let spoiled = Instant::now();
            eventually(&format!("{name} is a {wanted} again or gone, and the index whole"), || {
                let (mut redis, key, index) = (redis.clone(), key.clone(), tickr.app.index().clone());
                async move {
                    let found: redis::RedisResult<Option<String>> = redis.get(&key).await;
                    let mended = match found {
                        Ok(value) => value.as_deref() != Some("mine"),
                        Err(error) if error.code() == Some("WRONGTYPE") => true,
                        Err(error) => panic!("{error}"),
                    };
                    (mended && index.health().now() == Health::Fast).then_some(())
                }
            })
            .await;
            pulse.assert_recovered(BOUND, spoiled, &format!("{name} was mended"));
        }
    };
    let (jobs, ()) = tokio::join!(load_ahead(&tickr, Duration::from_millis(40), Duration::from_secs(10), 3_000), spoil);
    tickr.until_idle().await;
    tickr.assert_each_ran_once(jobs).await;
    assert_late_within(&tickr, &pulse, BOUND).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_sorted_set_comes_back_within_the_bound() {
    let tickr = TestApp::start().await;
    until_health(&tickr, Health::Fast).await;
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    let mut redis = tickr.redis().await;
    let waiting = tickr.key("waiting");
    // None of them is due soon, however long the machine stands still meanwhile.
    tickr.enqueue_many((0..100).map(|n| json!({"kind": "noop", "delay_ms": 6_000 + n * 80}))).await;
    eventually("most are scheduled", || {
        let (mut redis, waiting) = (redis.clone(), waiting.clone());
        async move { (redis.zcard(waiting).await.unwrap() > 75).then_some(()) }
    })
    .await;
    let lost = clock(&tickr).await;
    redis.del(&waiting).await.unwrap();
    tickr.until_idle().await;
    tickr.assert_each_ran_once(100).await;
    assert_late_within(&tickr, &pulse, BOUND).await;
    // Jobs that were not due for a while are back in Redis before their time. After an outage they may come later.
    let late = "SELECT MAX(TIMESTAMPDIFF(MICROSECOND, execute_at, started_at)) DIV 1000 FROM attempts \
                WHERE execute_at > ? + INTERVAL 7 SECOND";
    let late_ms: i64 = sqlx::query_scalar(late).bind(lost).fetch_one(&mut tickr.mysql().await).await.unwrap();
    if !pulse.saw_outage(began) {
        pulse.assert_prompt(late_ms, began);
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_note_of_what_a_full_list_left_out_comes_back_within_the_bound() {
    let (tickr, sleeper) = start_busy(|config| (config.ready_high_water, config.ready_low_water) = (100, 30)).await;
    tickr.enqueue_many((0..300).map(|_| json!({"kind": "noop"}))).await;
    let (redis, overflow) = (tickr.redis().await, tickr.key("overflow"));
    let noted = |what: &'static str| {
        eventually(what, || {
            let (mut redis, overflow) = (redis.clone(), overflow.clone());
            async move { redis.exists(overflow).await.unwrap().then_some(()) }
        })
    };
    noted("jobs are left out").await;
    let pulse = Pulse::start(&tickr).await;
    redis.clone().del(&overflow).await.unwrap();
    let lost = Instant::now();
    noted("the note is back").await;
    pulse.assert_recovered(BOUND, lost, "the note is back");
    release(&tickr, sleeper, 300).await;
    tickr.stop().await;
}

/// Take this many entries of waiting jobs out of the ready list of the queue `default`, from the end that a runner
/// takes from. An entry of the sleeper is no loss, because that job executes: no pass puts it back.
async fn take_entries(tickr: &TestApp, sleeper: JobId, count: usize) -> Vec<String> {
    let (mut redis, ready, sleeper) = (tickr.redis().await, tickr.key("ready:default"), sleeper.to_string());
    let (mut taken, deadline) = (Vec::new(), Instant::now() + DEADLINE);
    while let Some(missing) = NonZeroUsize::new(count - taken.len()) {
        let ids: Vec<String> = redis.rpop(&ready, Some(missing)).await.unwrap();
        if ids.is_empty() {
            // After the machine stood still, the index may be made again.
            assert!(Instant::now() < deadline, "the list had only {taken:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        taken.extend(ids.into_iter().filter(|id| *id != sleeper));
    }
    taken
}

/// Return the state of each of these jobs that has not ended, behind its id without hyphens.
async fn rows_of(tickr: &TestApp, ids: &[&String]) -> Vec<String> {
    let ids: Vec<String> = ids.iter().map(|id| format!("UNHEX('{}')", id.replace('-', ""))).collect();
    let sql = format!("SELECT CONCAT(LOWER(HEX(id)), ' ', state) FROM owed WHERE id IN ({})", ids.join(", "));
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut tickr.mysql().await).await.unwrap()
}

/// Wait until the ready list of the queue `default` has these ids again.
async fn until_listed_again(tickr: &TestApp, ids: &[String]) {
    let (lost, pulse) = (Instant::now(), Pulse::start(tickr).await);
    let (redis, ready, overflow) = (tickr.redis().await, tickr.key("ready:default"), tickr.key("overflow"));
    eventually_seen("what Redis lost is in the list again", || {
        let (mut redis, ready, overflow) = (redis.clone(), ready.clone(), overflow.clone());
        async move {
            let listed: Vec<String> = redis.lrange(ready, 0, -1).await.unwrap();
            let missing: Vec<&String> = ids.iter().filter(|id| !listed.contains(*id)).collect();
            if missing.is_empty() {
                return Ok(());
            }
            let note: Option<String> = redis.hget(overflow, "default").await.unwrap();
            let rows = rows_of(tickr, &missing).await;
            Err(format!("{} are listed, not {missing:?}; their rows: {rows:?}; the note: {note:?}", listed.len()))
        }
    })
    .await;
    pulse.assert_recovered(BOUND, lost, &format!("{ids:?} are listed again"));
}

/// Wait for a note of the queue `default` about jobs that its list left out.
async fn until_noted(tickr: &TestApp, what: &str, fits: impl Fn(&str) -> bool + Copy) {
    let (redis, overflow) = (tickr.redis().await, tickr.key("overflow"));
    eventually(what, || {
        let (mut redis, overflow) = (redis.clone(), overflow.clone());
        async move {
            let note: Option<String> = redis.hget(overflow, "default").await.unwrap();
            note.is_some_and(|note| fits(&note)).then_some(())
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_entry_comes_back_within_the_bound_also_if_its_list_left_jobs_out() {
    let (tickr, sleeper) = start_busy(|config| (config.ready_high_water, config.ready_low_water) = (100, 30)).await;
    for _ in 0..3 {
        tickr.enqueue_many((0..100).map(|_| json!({"kind": "noop"}))).await;
    }
    until_noted(&tickr, "jobs are left out", |_| true).await;
    // As if a runner had died after it took them. The worker is busy, so the list does not run low.
    let ids = take_entries(&tickr, sleeper, 5).await;
    until_listed_again(&tickr, &ids).await;
    release(&tickr, sleeper, 300).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_entry_comes_back_within_the_bound_also_if_the_note_has_the_same_due_time() {
    let (tickr, sleeper) = start_busy(|config| (config.ready_high_water, config.ready_low_water) = (100, 30)).await;
    let soon =
        (chrono::Utc::now() + chrono::TimeDelta::seconds(2)).to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
    tickr.enqueue_many((0..300).map(|_| json!({"kind": "noop", "execute_at": soon}))).await;
    until_noted(&tickr, "jobs are left out", |_| true).await;
    // The note has a due time alone. All jobs have this due time.
    let ids = take_entries(&tickr, sleeper, 5).await;
    until_listed_again(&tickr, &ids).await;
    // The list runs low. The refill notes the last job that it listed.
    let ids = take_entries(&tickr, sleeper, 75).await;
    until_noted(&tickr, "the note names a job", |note| note.contains(':')).await;
    until_listed_again(&tickr, &ids).await;
    release(&tickr, sleeper, 300).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_entry_of_a_job_that_was_run_now_comes_back_within_the_bound() {
    let (tickr, sleeper) = start_busy(|_| {}).await;
    let (mut redis, waiting, ready) = (tickr.redis().await, tickr.key("waiting"), tickr.key("ready:default"));
    // Its former due time is no further ahead than a runner without a handler puts a job off.
    let id = tickr.enqueue(json!({"kind": "noop", "delay_ms": 9_800})).await;
    eventually("it is scheduled", || {
        let (mut redis, waiting) = (redis.clone(), waiting.clone());
        async move { (redis.zcard(waiting).await.unwrap() == 1).then_some(()) }
    })
    .await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await.status, 200);
    eventually("it is listed", || {
        let (mut redis, ready) = (redis.clone(), ready.clone());
        async move { redis.lrange(ready, 0, -1).await.unwrap().contains(&id.to_string()).then_some(()) }
    })
    .await;
    redis.del(&ready).await.unwrap();
    until_listed_again(&tickr, &[id.to_string()]).await;
    release(&tickr, sleeper, 1).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_hints_about_one_job_the_later_one_decides_whether_it_is_scheduled() {
    let tickr = TestApp::start().await;
    until_health(&tickr, Health::Fast).await;
    let (index, line) = (tickr.app.index(), Lane::new(&"elsewhere".parse().unwrap(), Priority::NORMAL));
    let (now, minute) = (chrono::Utc::now(), chrono::TimeDelta::minutes(1));
    for (hints, scheduled) in [([minute, -minute], false), ([-minute, minute], true)] {
        let id = JobId::new();
        let entries = hints.map(|ahead| Entry { id, line: line.clone(), execute_at: now + ahead });
        index.hint(&entries).await.unwrap();
        assert_eq!(index.scores(&entries[..1]).await.unwrap()[0].is_some(), scheduled, "{hints:?}");
        index.unschedule(&entries[..1]).await.unwrap();
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refill_that_took_too_long_leaves_its_successors_lock_alone() {
    let tickr = TestApp::start().await;
    let (index, line) = (tickr.app.index(), Lane::new(&"elsewhere".parse().unwrap(), Priority::NORMAL));
    let (mut redis, overflow, lock) = (tickr.redis().await, tickr.key("overflow"), tickr.key("refill:elsewhere"));
    redis.hset(&overflow, line.as_str(), "1000").await.unwrap();
    let slow = index.begin_refill(&line).await.unwrap().unwrap();
    // Its lock expires, and another runner begins.
    redis.del(&lock).await.unwrap();
    redis.hset(&overflow, line.as_str(), "2000").await.unwrap();
    let quick = index.begin_refill(&line).await.unwrap().unwrap();
    index.end_refill(&line, slow, None).await.unwrap();
    assert!(redis.exists(&lock).await.unwrap(), "the lock belongs to the second refill");
    index.end_refill(&line, quick, None).await.unwrap();
    assert!(!redis.exists(&lock).await.unwrap());
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_went_back_in_time_is_rebuilt_though_no_connection_broke() {
    let tickr = TestApp::start().await;
    until_health(&tickr, Health::Fast).await;
    let mut redis = tickr.redis().await;
    let keys = ["epoch", "sequence"].map(|key| tickr.key(key));
    let mut snapshot = Vec::new();
    for key in &keys {
        let dump: Vec<u8> = redis::cmd("DUMP").arg(key).query_async(&mut redis).await.unwrap();
        snapshot.push(dump);
    }
    let sequence: u64 = redis.get(&keys[1]).await.unwrap().unwrap().parse().unwrap();
    tickr.enqueue_many((0..50).map(|n| json!({"kind": "noop", "delay_ms": 600_000 + n}))).await;
    eventually("time goes on", || {
        let (mut redis, key) = (redis.clone(), keys[1].clone());
        async move { (redis.get(key).await.unwrap().unwrap().parse::<u64>().unwrap() > sequence + 2).then_some(()) }
    })
    .await;
    // A proxy's failover to a replica that lagged behind does this, and no connection breaks.
    let restore = async {
        let mut back = redis::pipe();
        back.atomic().del(tickr.key("waiting"));
        for (key, dump) in keys.iter().zip(&snapshot) {
            back.cmd("RESTORE").arg(key).arg(0).arg(dump).arg("REPLACE");
        }
        back.exec_async(&mut redis.clone()).await.unwrap();
    };
    let jobs = tickr
        .event("a rebuild", restore, |event| match event {
            Event::Rebuilt { jobs } => Some(*jobs),
            _ => None,
        })
        .await;
    assert_eq!(jobs, 50);
    assert_eq!(redis.zcard(tickr.key("waiting")).await.unwrap(), 50);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_restarted_with_stale_data_costs_no_job_more_than_the_bound() {
    let tickr = TestApp::start_alone(|_| {}, |config| config.workers = 8).await;
    until_health(&tickr, Health::Fast).await;
    let (mut redis, pulse) = (direct(tickr.services()).await, Pulse::start(&tickr).await);
    // None of the jobs is due before the snapshot is made, however long the machine stands still. The snapshot has
    // entries of jobs that have ended when it is loaded, and of one whose due time was moved.
    tickr.enqueue_many((0..100).map(|n| json!({"kind": "noop", "delay_ms": 7_000 + n}))).await;
    let later = tickr.enqueue(json!({"kind": "noop", "delay_ms": 8_500})).await;
    eventually("all are scheduled", || {
        let (mut redis, key) = (redis.clone(), tickr.key("waiting"));
        async move { (redis.zcard(key).await.unwrap() == 101).then_some(()) }
    })
    .await;
    redis.set("the snapshot", "is loaded").await.unwrap();
    redis::cmd("SAVE").exec_async(&mut redis).await.unwrap();
    tickr
        .sql(format!(
            "UPDATE owed SET execute_at = execute_at + INTERVAL 3 SECOND WHERE id = UNHEX('{}')",
            later.uuid().simple()
        ))
        .await;
    let early = format!("SELECT COUNT(*) FROM owed WHERE id <> UNHEX('{}')", later.uuid().simple());
    tickr.until_count(early, 0).await;
    // The snapshot does not contain these jobs.
    tickr.enqueue_many((0..100).map(|n| json!({"kind": "noop", "delay_ms": n * 50}))).await;
    tickr.services().redis().kill9().unwrap();
    tickr.services().redis().start_again().unwrap();
    assert!(direct(tickr.services()).await.exists("the snapshot").await.unwrap());
    tickr.until_idle().await;
    tickr.assert_each_ran_once(201).await;
    assert_late_within(&tickr, &pulse, BOUND).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_evicted_by_memory_pressure_cost_no_job_more_than_the_bound() {
    let tickr = TestApp::start_alone(|_| {}, |config| config.workers = 8).await;
    until_health(&tickr, Health::Fast).await;
    let (mut redis, pulse) = (direct(tickr.services()).await, Pulse::start(&tickr).await);
    let limit = info(&mut redis, "used_memory").await + 2_000_000;
    config_set(&mut redis, "maxmemory-policy", "allkeys-lru").await;
    config_set(&mut redis, "maxmemory", &limit.to_string()).await;
    // Other clients fill the server with big keys. Each is newer than the keys of tickr, so that those are always the
    // oldest.
    let pressure = async {
        let mut gone = 0;
        for n in 0..150 {
            redis.set(format!("other:{n}"), "x".repeat(300_000)).await.unwrap();
            gone += usize::from(!redis.exists(tickr.key("waiting")).await.unwrap());
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        gone
    };
    let (jobs, gone) =
        tokio::join!(load_ahead(&tickr, Duration::from_millis(30), Duration::from_secs(4), 3_000), pressure);
    println!("{gone} times found without the sorted set");
    assert!(gone > 0, "no key of tickr was evicted");
    tickr.until_idle().await;
    tickr.assert_each_ran_once(jobs).await;
    assert_late_within(&tickr, &pulse, BOUND).await;
    // The rebuild after an eviction has read the settings of Redis.
    redis.del(tickr.key("epoch")).await.unwrap();
    eventually("readiness tells of the policy", || async {
        let ready = tickr.get("/readyz").await;
        let told = ready.body["index_weakness"].as_str().is_some_and(|told| told.contains("allkeys-lru"));
        (ready.status == 200 && told).then_some(())
    })
    .await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_follows_a_policy_that_is_changed_on_a_running_redis() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    until_health(&tickr, Health::Fast).await;
    let mut redis = direct(tickr.services()).await;
    config_set(&mut redis, "maxmemory", "1000000000").await;
    for (policy, evicts) in [("allkeys-lru", true), ("noeviction", false)] {
        config_set(&mut redis, "maxmemory-policy", policy).await;
        eventually(&format!("readiness follows {policy}"), || async {
            let ready = tickr.get("/readyz").await;
            let told = ready.body["index_weakness"].as_str().is_some_and(|told| told.contains("allkeys-lru"));
            (told == evicts).then_some(())
        })
        .await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_limit_of_redis_is_no_outage_for_a_runner_with_busy_workers() {
    let tickr = TestApp::start_alone(|_| {}, |config| config.workers = 1).await;
    until_health(&tickr, Health::Fast).await;
    let pulse = Pulse::start(&tickr).await;
    // For Redis the connection that takes jobs is idle while the only worker is busy.
    config_set(&mut direct(tickr.services()).await, "timeout", "2").await;
    for turn in 0.. {
        let (began, changes) = (Instant::now(), Changes::watch(&tickr));
        let id = tickr.enqueue_kind("sleep", json!({"ms": 6_000})).await;
        tickr.until(id, State::Completed).await;
        let next = tickr.enqueue_kind("noop", json!({})).await;
        tickr.until(next, State::Completed).await;
        let seen = changes.end().await;
        if seen == [Health::Fast] {
            break;
        }
        assert!(turn < 3 && pulse.saw_outage(began), "{seen:?}");
        until_health(&tickr, Health::Fast).await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_that_evicts_nothing_degrades_once_and_heals() {
    let tickr = TestApp::start_alone(|_| {}, |config| config.workers = 8).await;
    until_health(&tickr, Health::Fast).await;
    let (mut redis, pulse) = (direct(tickr.services()).await, Pulse::start(&tickr).await);
    config_set(&mut redis, "maxmemory-policy", "noeviction").await;
    until_health(&tickr, Health::Fast).await;
    let changes = Changes::watch(&tickr);
    config_set(&mut redis, "maxmemory", "1").await;
    let (before, began) = (info(&mut redis, "total_commands_processed").await, Instant::now());
    let full = load_promptly(&tickr, &pulse, Duration::from_millis(10), Duration::from_secs(4)).await;
    let (after, took) = (info(&mut redis, "total_commands_processed").await, began.elapsed());
    let seen = changes.end().await;
    assert_eq!(seen, [Health::Fast, Health::Degraded], "the health changes only once");
    let per_second = (after - before) as f64 / took.as_secs_f64();
    println!("{per_second:.1} commands per second while Redis was full");
    assert!(per_second < 40.0, "{per_second} commands per second");

    config_set(&mut redis, "maxmemory", "0").await;
    let healed = Instant::now();
    until_health(&tickr, Health::Fast).await;
    pulse.assert_recovered(BOUND, healed, "the index is whole");
    let jobs = load(&tickr, Duration::from_millis(20), Duration::from_secs(1)).await;
    tickr.until_idle().await;
    tickr.assert_each_ran_once(full + jobs).await;
    assert_late_within(&tickr, &pulse, BOUND).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetcher_that_blocks_turns_to_the_store_and_back_at_once() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    let (mut redis, pulse) = (direct(tickr.services()).await, Pulse::start(&tickr).await);
    let (mut rounds, mut calm, mut total_ms) = (0, 0, 0);
    while calm < 8 {
        rounds += 1;
        assert!(rounds <= 40, "the machine stood still in most rounds");
        until_health(&tickr, Health::Fast).await;
        eventually("the fetcher blocks", || {
            let mut redis = redis.clone();
            async move { (info(&mut redis, "blocked_clients").await == 1).then_some(()) }
        })
        .await;
        let (since, began) = (clock(&tickr).await, Instant::now());
        // The hint is refused, and the fetcher does not wait for the end of its blocking pop.
        config_set(&mut redis, "maxmemory", "1").await;
        let out = tickr.enqueue_kind("noop", json!({})).await;
        tickr.until(out, State::Completed).await;
        // The abandoned pop takes none of the next entries.
        config_set(&mut redis, "maxmemory", "0").await;
        until_health(&tickr, Health::Fast).await;
        let back = tickr.enqueue_kind("noop", json!({})).await;
        tickr.until(back, State::Completed).await;
        // A round in which the machine stood still says nothing.
        if pulse.stalled_since(began).is_zero() {
            calm += 1;
            let late = "SELECT CAST(SUM(TIMESTAMPDIFF(MICROSECOND, execute_at, started_at)) DIV 1000 AS SIGNED) \
                        FROM attempts WHERE started_at >= ?";
            let late_ms: i64 = sqlx::query_scalar(late).bind(since).fetch_one(&mut tickr.mysql().await).await.unwrap();
            total_ms += late_ms;
        }
    }
    tickr.assert_each_ran_once(2 * rounds).await;
    println!("sixteen jobs were {total_ms} ms late, together");
    // A block lasts a second, and on average half of it is left.
    assert!(total_ms < 1_600, "{total_ms} ms late, together");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demoted_redis_is_left_for_the_store_until_it_is_promoted() {
    let tickr = TestApp::start_alone(|_| {}, |config| config.workers = 8).await;
    until_health(&tickr, Health::Fast).await;
    let (mut redis, pulse) = (direct(tickr.services()).await, Pulse::start(&tickr).await);
    // The fetcher blocks now, as a client of the server that is demoted.
    eventually("the fetcher blocks", || {
        let mut redis = redis.clone();
        async move { (info(&mut redis, "blocked_clients").await == 1).then_some(()) }
    })
    .await;
    until_health(&tickr, Health::Fast).await;
    let changes = Changes::watch(&tickr);
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).exec_async(&mut redis).await.unwrap();
    let (before, began) = (info(&mut redis, "total_commands_processed").await, Instant::now());
    let jobs = load(&tickr, Duration::from_millis(10), Duration::from_secs(4)).await;
    tickr.until_idle().await;
    let (after, took) = (info(&mut redis, "total_commands_processed").await, began.elapsed());
    // No job is due any more. A check without work writes nothing, so it could succeed on a replica. The index must
    // stay degraded all the same.
    eventually("a look at a replica without work", || {
        let mut redis = redis.clone();
        async move { (info(&mut redis, "total_commands_processed").await > after + 8).then_some(()) }
    })
    .await;
    let seen = changes.end().await;
    assert_eq!(seen, [Health::Fast, Health::Degraded], "the health changes only once");
    let per_second = (after - before) as f64 / took.as_secs_f64();
    println!("{per_second:.1} commands per second on the replica");
    assert!(per_second < 40.0, "{per_second} commands per second");

    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec_async(&mut redis).await.unwrap();
    let promoted = Instant::now();
    until_health(&tickr, Health::Fast).await;
    pulse.assert_recovered(BOUND, promoted, "the index is whole");
    let more = load(&tickr, Duration::from_millis(20), Duration::from_secs(1)).await;
    tickr.until_idle().await;
    tickr.assert_each_ran_once(jobs + more).await;
    assert_late_within(&tickr, &pulse, Duration::from_secs(3)).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failover_the_new_master_is_found_though_old_connections_live_on() {
    let (tickr, relay) = start_behind_a_relay(|config| config.workers = 8).await;
    until_health(&tickr, Health::Fast).await;
    let pulse = Pulse::start(&tickr).await;
    let second = Services::start(&server_options()).unwrap();
    let (mut old, mut new) = (direct(tickr.services()).await, direct(&second).await);
    let (to_old, to_new) = (Relay::start().await, Relay::start().await);
    to_old.lead_to(&tickr.services().redis_url());
    to_new.lead_to(&second.redis_url());
    let follow = |port: u16| {
        let mut follow = redis::cmd("REPLICAOF");
        follow.arg("127.0.0.1").arg(port);
        follow
    };
    follow(to_old.port()).exec_async(&mut new).await.unwrap();
    eventually("the replica follows", || {
        let (mut new, key) = (new.clone(), tickr.key("epoch"));
        async move { new.exists(key).await.unwrap().then_some(()) }
    })
    .await;
    let failover = async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec_async(&mut new.clone()).await.unwrap();
        follow(to_new.port()).exec_async(&mut old).await.unwrap();
        relay.lead_to(&second.redis_url());
    };
    let (jobs, ()) = tokio::join!(load(&tickr, Duration::from_millis(20), Duration::from_secs(5)), failover);
    until_health(&tickr, Health::Fast).await;
    tickr.until_idle().await;
    tickr.assert_each_ran_once(jobs).await;
    assert_late_within(&tickr, &pulse, BOUND).await;
    // The counter grows on the new master.
    let sequence = |mut redis: MultiplexedConnection, key: String| async move {
        redis.get(key).await.unwrap().unwrap().parse::<u64>().unwrap()
    };
    let then = sequence(new.clone(), tickr.key("sequence")).await;
    eventually("the counter grows on the new master", || {
        let now = sequence(new.clone(), tickr.key("sequence"));
        async move { (now.await > then).then_some(()) }
    })
    .await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_redis_slows_no_enqueue_and_the_store_takes_over_within_moments() {
    let tickr = TestApp::start_alone(|_| {}, |config| config.workers = 8).await;
    until_health(&tickr, Health::Fast).await;
    let pulse = Pulse::start(&tickr).await;
    tickr.services().redis().pause().unwrap();
    // `load` checks the time of every enqueue.
    let stalled = load(&tickr, Duration::from_millis(20), Duration::from_secs(5)).await;
    tickr.until_idle().await;
    // Two seconds until the stall is noticed, plus one for a busy machine.
    assert_late_within(&tickr, &pulse, Duration::from_secs(3)).await;
    tickr.services().redis().resume().unwrap();
    let resumed = Instant::now();
    until_health(&tickr, Health::Fast).await;
    pulse.assert_recovered(BOUND, resumed, "the index is whole");
    let jobs = load(&tickr, Duration::from_millis(20), Duration::from_secs(1)).await;
    tickr.until_idle().await;
    tickr.assert_each_ran_once(stalled + jobs).await;
    assert_late_within(&tickr, &pulse, BOUND).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_open_connection_is_given_up_within_moments() {
    let (tickr, relay) = start_behind_a_relay(|config| config.workers = 8).await;
    until_health(&tickr, Health::Fast).await;
    let pulse = Pulse::start(&tickr).await;
    let quiet = load(&tickr, Duration::from_millis(10), Duration::from_millis(500)).await;
    relay.set(Condition::HalfOpen);
    let gone = load(&tickr, Duration::from_millis(20), Duration::from_secs(4)).await;
    tickr.until_idle().await;
    assert_late_within(&tickr, &pulse, Duration::from_secs(3)).await;
    relay.set(Condition::Pass);
    let back = Instant::now();
    until_health(&tickr, Health::Fast).await;
    pulse.assert_recovered(BOUND, back, "the index is whole");
    let jobs = load(&tickr, Duration::from_millis(20), Duration::from_secs(1)).await;
    tickr.until_idle().await;
    tickr.assert_each_ran_once(quiet + gone + jobs).await;
    assert_late_within(&tickr, &pulse, BOUND).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_redis_is_not_hammered() {
    let (tickr, relay) = start_behind_a_relay(|_| {}).await;
    let (mut redis, pulse) = (direct(tickr.services()).await, Pulse::start(&tickr).await);
    until_health(&tickr, Health::Fast).await;
    for (turn, condition) in [Condition::Cut, Condition::Stall].into_iter().enumerate() {
        relay.set(condition);
        until_health(&tickr, Health::Degraded).await;
        tickr.enqueue_many((0..20).map(|_| json!({"kind": "noop", "delay_ms": 600_000}))).await;
        let (before, began) = (relay.connections(), Instant::now());
        let others = async {
            // Other callers ask all the time.
            while began.elapsed() < Duration::from_secs(4) {
                assert!(tickr.app.index().depth(&[]).await.is_err());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::join!(load(&tickr, Duration::from_millis(50), Duration::from_secs(4)), others);
        let per_second = (relay.connections() - before) as f64 / began.elapsed().as_secs_f64();
        println!("{per_second:.1} connections per second while the relay is {condition:?}");
        assert!(per_second < 4.0, "{per_second} connections per second while the relay is {condition:?}");
        let passed = Instant::now();
        relay.set(Condition::Pass);
        // These jobs were never hinted to Redis, but they are there, because every outage ends with a rebuild. Beside a
        // stall of the machine there may be another outage, and another rebuild.
        let later = (chrono::Utc::now().timestamp_millis() + 60_000).to_string();
        let wanted = 20 * (turn + 1);
        loop {
            until_health(&tickr, Health::Fast).await;
            let found = redis.zcount(tickr.key("waiting"), later.as_str(), "+inf").await.unwrap();
            if found == wanted {
                break;
            }
            assert!(pulse.saw_outage(passed), "{found} of {wanted}");
            assert!(passed.elapsed() < DEADLINE, "{found} of {wanted}");
        }
    }
    tickr.until_count("SELECT COUNT(*) FROM owed", 40).await;
    tickr.stop().await;
}

/// Return the seconds without Redis. The long version: `TICKR_TEST_OUTAGE_SECONDS=600 cargo test --test suite
/// without_redis_200`.
fn outage() -> Duration {
    let seconds = std::env::var("TICKR_TEST_OUTAGE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(4))
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_200_jobs_a_second_start_within_a_second() {
    let tickr = TestApp::start_alone(|_| {}, |config| config.workers = 8).await;
    until_health(&tickr, Health::Fast).await;
    let (pulse, mut jobs, mut turns) = (Pulse::start(&tickr).await, 0, 0);
    // A turn in which the machine stood still proves nothing, so there is another one.
    loop {
        let (since, began) = (clock(&tickr).await, Instant::now());
        tickr.services().redis().kill9().unwrap();
        jobs += load(&tickr, Duration::from_millis(5), outage()).await;
        let without = p99_late_ms(&tickr, since).await;
        tickr.services().redis().start_again().unwrap();
        jobs += load(&tickr, Duration::from_millis(5), Duration::from_secs(1)).await;
        until_health(&tickr, Health::Fast).await;
        tickr.until_idle().await;
        let whole = p99_late_ms(&tickr, since).await;
        if without.max(whole) < 1_000 {
            break;
        }
        turns += 1;
        assert!(pulse.saw_outage(began) && turns < 5, "{without} ms late, and {whole} ms with the return of Redis");
    }
    tickr.assert_each_ran_once(jobs).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_beyond_the_horizon_leave_the_memory_of_redis_flat() {
    // In Redis, twenty thousand would take more than two megabytes. `TICKR_TEST_FAR_JOBS=1000000` inserts a million.
    let jobs = std::env::var("TICKR_TEST_FAR_JOBS").ok().and_then(|text| text.parse().ok()).unwrap_or(20_000);
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    until_health(&tickr, Health::Fast).await;
    let mut redis = direct(tickr.services()).await;
    let before = info(&mut redis, "used_memory").await;
    let began = Instant::now();
    Owed { due: "UTC_TIMESTAMP(3) + INTERVAL 1 DAY", ..Owed::overdue(jobs) }.insert(&tickr, 0).await;
    println!("{jobs} jobs inserted in {:?}", began.elapsed());
    // Some jobs go the usual way, through the API.
    tickr.enqueue_many((0..500).map(|n| json!({"kind": "noop", "delay_ms": 86_400_000 + n}))).await;
    let lose = async { redis.clone().del(tickr.key("epoch")).await.map(drop).unwrap() };
    let hinted = tickr
        .event("a rebuild", lose, |event| match event {
            Event::Rebuilt { jobs } => Some(*jobs),
            _ => None,
        })
        .await;
    assert_eq!(hinted, 0);
    assert!(!redis.exists(tickr.key("waiting")).await.unwrap());
    let after = info(&mut redis, "used_memory").await;
    println!("{jobs} jobs beyond the horizon: {before} bytes before, {after} after");
    // The buffers of connections change the memory a little.
    assert!(after.saturating_sub(before) < 500_000, "{before} bytes before, {after} after");
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_jobs_within_the_horizon_take_less_than_two_megabytes_of_redis() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    until_health(&tickr, Health::Fast).await;
    let mut redis = direct(tickr.services()).await;
    let before = info(&mut redis, "used_memory").await;
    tickr.enqueue_many((0..10_000).map(|n| json!({"kind": "noop", "delay_ms": 600_000 + n}))).await;
    eventually("all are scheduled", || {
        let (mut redis, key) = (redis.clone(), tickr.key("waiting"));
        async move { (redis.zcard(key).await.unwrap() == 10_000).then_some(()) }
    })
    .await;
    let bytes = info(&mut redis, "used_memory").await - before;
    println!("10,000 jobs within the horizon: {bytes} bytes");
    assert!(bytes < 2_000_000, "{bytes} bytes");
    tickr.stop().await;
}
