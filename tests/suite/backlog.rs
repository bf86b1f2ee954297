//! The bounds of recovery and of starts hold whatever else is owed: backlogs of queues that are paused, limited, not
//! served or merely long, backlogs of other priorities, and any number of queue names.

use std::time::Duration;

use redis::AsyncTypedCommands;
use reqwest::Method;
use serde_json::json;
use sqlx::{AssertSqlSafe, Row};
use tickr::config::Config;
use tickr::event::{Event, Health};
use tickr::handlers::Registry;
use tickr::index::Lane;
use tickr::job::{JobId, Name, Priority, State};
use tickr::store::due_statements;
use tokio::time::Instant;

use crate::support::{Owed, Pulse, TestApp, answer, draft, eventually, http, is_full};

/// The bound of G3 for lost index entries, plus a second for a busy machine.
const BOUND: Duration = Duration::from_secs(7);

async fn until_health(tickr: &TestApp, wanted: Health) {
    eventually(&format!("the index is {}", wanted.as_str()), || async {
        (tickr.app.index().health().now() == wanted).then_some(())
    })
    .await;
}

/// Start a tickr whose only worker is busy until the returned job is cancelled.
async fn start_busy(queues: &[&str]) -> (TestApp, JobId) {
    start_busy_in(queues, "default", |_| {}).await
}

/// Do the same, with the busy worker in this queue. Every queue but the default one is then at its limit.
async fn start_busy_in(queues: &[&str], busy_in: &str, change: impl FnOnce(&mut Config)) -> (TestApp, JobId) {
    let queues: Vec<String> = queues.iter().map(|queue| (*queue).to_owned()).collect();
    let busy = move |config: &mut Config| {
        change(config);
        (config.workers, config.queues) = (1, queues);
        // A machine that stands still must not cost the sleeper its lease, because the worker would be free then.
        config.lease = Duration::from_secs(120);
    };
    let tickr = TestApp::start_with(busy, Registry::new()).await;
    if busy_in != "default" {
        set(&tickr, Method::PATCH, &format!("/v1/queues/{busy_in}"), json!({"concurrency": 1})).await;
    }
    let sleeper = tickr.enqueue(json!({"kind": "sleep", "queue": busy_in, "payload": {"ms": 600_000}})).await;
    tickr.until(sleeper, State::Executing).await;
    until_health(&tickr, Health::Fast).await;
    (tickr, sleeper)
}

async fn set(tickr: &TestApp, method: Method, path: &str, body: serde_json::Value) {
    let done = answer(http().request(method, tickr.url(path)).json(&body)).await;
    assert_eq!(done.status, 200, "{:#}", done.body);
}

async fn pause(tickr: &TestApp, queue: &str) {
    set(tickr, Method::POST, &format!("/v1/queues/{queue}/pause"), json!({})).await;
    let paused =
        |settings: &tickr::broker::OperatorSettings| settings.queues.get(queue).is_some_and(|set| set.pause.is_some());
    tickr.app.operator_settings().listen().wait_for(|settings| paused(settings)).await.unwrap();
}

fn line(queue: &str, priority: u8) -> Lane {
    Lane::new(&queue.parse::<Name>().unwrap(), Priority::try_from(priority).unwrap())
}

/// Wait until the jobs are in the ready list of this lane.
async fn until_listed(tickr: &TestApp, line: &Lane, jobs: &[JobId]) {
    eventually(&format!("the jobs of {} are listed", line.as_str()), || async {
        let listed = tickr.app.index().ready_ids(line).await.unwrap();
        jobs.iter().all(|id| listed.contains(id)).then_some(())
    })
    .await;
}

/// Enqueue jobs, and date them back by a minute, so that they are not among those that became due lately.
async fn enqueue_a_minute_ago(tickr: &TestApp, line: &Lane, job: serde_json::Value) -> Vec<JobId> {
    let jobs = tickr.enqueue_many((0..50).map(|_| job.clone())).await;
    until_listed(tickr, line, &jobs).await;
    let ids: Vec<String> = jobs.iter().map(|id| format!("UNHEX('{}')", id.uuid().simple())).collect();
    let ids = ids.join(",");
    tickr.sql(format!("UPDATE owed SET execute_at = execute_at - INTERVAL 60 SECOND WHERE id IN ({ids})")).await;
    jobs
}

/// Wait until the runner has ended a pass from now on.
async fn until_passed(tickr: &TestApp) {
    let passed = || tickr.app.index().health().status().drift.map(|drift| drift.at);
    let before = passed();
    eventually("a pass", || async { (passed() > before).then_some(()) }).await;
}

/// Lose the list of each of these lanes, and check that each comes back within the bound.
async fn lose_lists(tickr: &TestApp, lines: &[(&Lane, &[JobId])]) {
    let pulse = Pulse::start(tickr).await;
    for (line, jobs) in lines {
        // Wait for a few passes, so that the runner's first steps with a new backlog are over.
        for _ in 0..2 {
            until_passed(tickr).await;
        }
        tickr.redis().await.del(tickr.key(&format!("ready:{}", line.as_str()))).await.unwrap();
        let lost = Instant::now();
        until_listed(tickr, line, jobs).await;
        pulse.assert_within(BOUND, lost, &format!("the ready list of {} is back", line.as_str()));
    }
}

/// Let the other jobs run, and check that each ran exactly once.
async fn release(tickr: TestApp, sleeper: JobId, others: i64) {
    Owed::remove(&tickr).await;
    tickr.post(&format!("/v1/jobs/{sleeper}/cancel"), json!({})).await;
    tickr.until_idle().await;
    let count = |what: &str| format!("SELECT COUNT({what}) FROM attempts WHERE verdict = 'succeeded'");
    assert_eq!(tickr.count(&count("DISTINCT job_id")).await, others);
    assert_eq!(tickr.count(&count("*")).await, others);
    // The other attempts are of the sleeper: a machine that stood still for longer than a lease lost some.
    assert_eq!(
        tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict NOT IN ('succeeded', 'cancelled', 'lost')").await,
        0
    );
    tickr.assert_sound().await;
    tickr.stop().await;
}

/// Lose ready lists behind four backlogs of this many overdue jobs each: of a queue that is not served, of a paused
/// queue, of a queue at its limit, and of a lower priority.
async fn lost_lists_come_back_behind(jobs: u32, change: impl FnOnce(&mut Config)) {
    let (tickr, sleeper) = start_busy_in(&["default", "mail", "narrow"], "narrow", change).await;
    pause(&tickr, "mail").await;
    let began = Instant::now();
    Owed { queue: "'elsewhere'", ..Owed::overdue(jobs) }.insert_waiting(&tickr, 1).await;
    Owed { queue: "'mail'", ..Owed::overdue(jobs) }.insert_waiting(&tickr, 2).await;
    Owed { priority: 9, ..Owed::overdue(jobs) }.insert_waiting(&tickr, 3).await;
    Owed { queue: "'narrow'", ..Owed::overdue(jobs) }.insert_waiting(&tickr, 4).await;
    println!("4 x {jobs} overdue jobs were made in {:?}", began.elapsed());
    let (normal, urgent) = (line("default", 5), line("default", 1));
    let jobs = enqueue_a_minute_ago(&tickr, &normal, json!({"kind": "noop"})).await;
    let first = enqueue_a_minute_ago(&tickr, &urgent, json!({"kind": "noop", "priority": 1})).await;
    lose_lists(&tickr, &[(&normal, &jobs), (&urgent, &first)]).await;
    release(tickr, sleeper, 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_list_comes_back_within_the_bound_behind_any_backlog() {
    // More than one pass compares of a lane: the length of a full list, and 10,000.
    let short_lists = |config: &mut Config| (config.ready_high_water, config.ready_low_water) = (2_500, 600);
    lost_lists_come_back_behind(13_000, short_lists).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "makes four million jobs"]
async fn a_lost_list_comes_back_within_the_bound_behind_a_million_of_each() {
    lost_lists_come_back_behind(1_000_000, |_| {}).await;
}

/// Queues with long lists, and the overdue jobs in each. A pass reads sixteen lanes at a time, and these have more jobs
/// than it compares.
const LONG_QUEUES: u32 = 20;
const JOBS_OF_A_LONG_QUEUE: u32 = 6_300;
/// Jobs of the list that loses one entry. It is so long that other lists are compared first.
const JOBS_OF_THE_LIST: u32 = 2_200;
/// Most passes until that entry is back. A pass compares 100,000 overdue jobs, so the long queues take two passes, and
/// the third has this list. One pass is under way when the entry is lost, and one is to spare. Passes are counted,
/// because each takes longer on a busy machine.
const PASSES: u32 = 5;
/// Most passes until an entry is back that the next pass finds: one is under way when it is lost.
const PASSES_FOR_A_FRONT: u32 = 2;

/// Wait until the ready list of each of these lanes has this many entries.
async fn until_lengths(tickr: &TestApp, lines: &[(Lane, u32)]) {
    let (names, lengths): (Vec<Lane>, Vec<u32>) = lines.iter().cloned().unzip();
    let lengths: Vec<usize> = lengths.iter().map(|length| usize::try_from(*length).unwrap()).collect();
    let mut listed = Vec::new();
    // The deadline counts from the last entry that came: all lists together take long to fill on a busy machine.
    while listed != lengths {
        listed = eventually(&format!("the lists are longer than {listed:?}"), || async {
            let now = tickr.app.index().depth(&names).await.unwrap().1;
            (now != listed).then_some(now)
        })
        .await;
    }
}

/// Lose the entry of a list that has this many entries in front of it. It must be back after so many passes.
async fn lose_entry(tickr: &TestApp, line: &Lane, in_front: isize, most: u32) {
    let (mut redis, list) = (tickr.redis().await, tickr.key(&format!("ready:{}", line.as_str())));
    // The fetcher takes from the end of the list.
    let entry = redis.lindex(&list, -1 - in_front).await.unwrap().unwrap();
    assert_eq!(redis.lrem(&list, 1, &entry).await.unwrap(), 1);
    let (lost, id): (Instant, JobId) = (Instant::now(), entry.parse().unwrap());
    let mut passes = 0;
    while !tickr.app.index().ready_ids(line).await.unwrap().contains(&id) {
        assert!(passes < most, "the entry behind {in_front} others is not back after {passes} passes");
        until_passed(tickr).await;
        passes += 1;
    }
    println!("the entry behind {in_front} others was back after {:?} and {passes} passes", lost.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_head_of_a_long_list_comes_back_beside_twenty_long_queues() {
    let long: Vec<String> = (0..LONG_QUEUES).map(|n| format!("long-{n}")).collect();
    let names: Vec<&str> = std::iter::once("default").chain(long.iter().map(String::as_str)).chain(["last"]).collect();
    let (tickr, sleeper) = start_busy(&names).await;
    let queue = format!("CONCAT('long-', n % {LONG_QUEUES})");
    Owed { queue: &queue, ..Owed::overdue(LONG_QUEUES * JOBS_OF_A_LONG_QUEUE) }.insert_waiting(&tickr, 1).await;
    Owed { queue: "'last'", ..Owed::overdue(JOBS_OF_THE_LIST) }.insert_waiting(&tickr, 2).await;
    // A rebuild fills the lists sooner than passes do.
    tickr.app.index().forget().await.unwrap();
    let last = line("last", 5);
    let long = long.iter().map(|name| (line(name, 5), JOBS_OF_A_LONG_QUEUE));
    until_lengths(&tickr, &long.chain([(last.clone(), JOBS_OF_THE_LIST)]).collect::<Vec<_>>()).await;
    // So many entries are in front of this one that only the turn of the lane finds it.
    lose_entry(&tickr, &last, 200, PASSES).await;
    // The lane has just had its turn. But the next pass compares the front of every lane.
    lose_entry(&tickr, &last, 0, PASSES_FOR_A_FRONT).await;

    // A list that is short, because its jobs would start soon, is compared first.
    let normal = line("default", 5);
    let jobs = enqueue_a_minute_ago(&tickr, &normal, json!({"kind": "noop"})).await;
    lose_lists(&tickr, &[(&normal, &jobs)]).await;
    release(tickr, sleeper, 50).await;
}

/// Queues with short lists, and the overdue jobs in each: together more than a pass compares.
const SHORT_QUEUES: u32 = 54;
const JOBS_OF_A_SHORT_QUEUE: u32 = 1_900;

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_entry_of_a_long_list_comes_back_beside_more_short_lists_than_a_pass_compares() {
    let short: Vec<String> = (0..SHORT_QUEUES).map(|n| format!("short-{n}")).collect();
    let names: Vec<&str> = std::iter::once("default").chain(short.iter().map(String::as_str)).chain(["last"]).collect();
    let (tickr, sleeper) = start_busy(&names).await;
    let queue = format!("CONCAT('short-', n % {SHORT_QUEUES})");
    Owed { queue: &queue, ..Owed::overdue(SHORT_QUEUES * JOBS_OF_A_SHORT_QUEUE) }.insert_waiting(&tickr, 1).await;
    Owed { queue: "'last'", ..Owed::overdue(JOBS_OF_THE_LIST) }.insert_waiting(&tickr, 2).await;
    // A rebuild fills the lists sooner than passes do.
    tickr.app.index().forget().await.unwrap();
    let last = line("last", 5);
    let short = short.iter().map(|name| (line(name, 5), JOBS_OF_A_SHORT_QUEUE));
    until_lengths(&tickr, &short.chain([(last.clone(), JOBS_OF_THE_LIST)]).collect::<Vec<_>>()).await;
    // So many entries are in front of it that only the turn of the lane finds it. Half of each pass is for lanes with
    // long lists, so the next pass does.
    lose_entry(&tickr, &last, 200, PASSES_FOR_A_FRONT).await;
    release(tickr, sleeper, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_twenty_thousand_queue_names_in_front_delay_no_job() {
    without_redis_queue_names_in_front(if is_full() { 20_000 } else { 5_000 }).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "makes twenty thousand queues"]
async fn without_redis_all_of_twenty_thousand_queue_names_in_front_delay_no_job() {
    without_redis_queue_names_in_front(20_000).await;
}

/// Start jobs without Redis behind this many jobs of as many queues that the runner does not serve.
async fn without_redis_queue_names_in_front(others: u32) {
    let served: Vec<String> = (0..200).map(|n| format!("tenant-{n}")).collect();
    let names = move |config: &mut Config| {
        config.workers = 8;
        config.queues = std::iter::once("default".to_owned()).chain(served).collect();
    };
    let tickr = TestApp::start_alone(|_| {}, names).await;
    until_health(&tickr, Health::Fast).await;
    tickr.services().redis().kill9().unwrap();
    until_health(&tickr, Health::Degraded).await;
    // The runner serves none of these queues, whose jobs were due first.
    Owed { queue: "CONCAT('other-', n)", ..Owed::overdue(others) }.insert_waiting(&tickr, 1).await;
    let broker = tickr.app.broker();
    let (mut ticks, mut jobs) = (tokio::time::interval(SPACING), 0);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        ticks.tick().await;
        let queue = if jobs % 2 == 0 { "default".to_owned() } else { format!("tenant-{}", jobs % 200) };
        let job = json!({"kind": "noop", "queue": queue, "delay_ms": jobs * 37 % 500});
        broker.enqueue(broker.prepare(draft(&job)).unwrap()).await.unwrap();
        jobs += 1;
    }
    tickr.until_count(ENDED, jobs).await;
    let (p90, worst) = lateness(&tickr, "").await;
    println!("{jobs} jobs behind {others} queue names, late by p90 {p90} ms, at worst {worst} ms");
    assert!(p90 < MAX_LATE_MS && worst < MAX_WORST_MS, "{p90} ms late, at worst {worst} ms");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE queue NOT LIKE 'other-%'").await, 0);
    Owed::remove(&tickr).await;
    tickr.services().redis().start_again().unwrap();
    until_health(&tickr, Health::Fast).await;
    tickr.assert_each_ran_once(jobs).await;
    tickr.stop().await;
}

const ENDED: &str = "SELECT COUNT(*) FROM attempts";

/// Lateness in milliseconds that nine of ten jobs keep on a very busy machine. A runner that reads the jobs in front
/// first starts none of them before the deadline of the test.
const MAX_LATE_MS: i64 = 3_000;

/// The bound of G3 for each job, however busy the machine is.
const MAX_WORST_MS: i64 = 6_000;

/// Time between two jobs whose lateness is measured. A runner that looks for due jobs in many lanes, on a busy machine,
/// still starts more.
const SPACING: Duration = Duration::from_millis(50);

/// Return the lateness of attempts in milliseconds: the 90th percentile and the maximum. A few may have met a machine
/// that stood still for a moment; a backlog in front delays all.
async fn lateness(tickr: &TestApp, of: &str) -> (i64, i64) {
    let late = format!("SELECT TIMESTAMPDIFF(MICROSECOND, a.execute_at, a.started_at) DIV 1000 FROM attempts a {of}");
    let mut late: Vec<i64> = sqlx::query_scalar(AssertSqlSafe(late)).fetch_all(&mut tickr.mysql().await).await.unwrap();
    late.sort_unstable();
    (late[late.len() * 90 / 100], late[late.len() - 1])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_list_comes_back_within_the_bound_beside_twenty_thousand_queue_names() {
    lost_lists_come_back_beside(if is_full() { 20_000 } else { 4_000 }).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "makes twenty thousand queues"]
async fn a_lost_list_comes_back_within_the_bound_beside_all_of_twenty_thousand_queue_names() {
    lost_lists_come_back_beside(20_000).await;
}

/// Lose ready lists, and then the whole index, beside this many queues.
async fn lost_lists_come_back_beside(queues: u32) {
    let served: Vec<String> = (0..200).map(|n| format!("tenant-{n}")).collect();
    let served: Vec<&str> = std::iter::once("default").chain(served.iter().map(String::as_str)).collect();
    let (tickr, sleeper) = start_busy(&served).await;
    Owed { queue: "CONCAT('tenant-', n)", ..Owed::overdue(queues) }.insert_waiting(&tickr, 1).await;
    let (normal, tenant) = (line("default", 5), line("tenant-150", 5));
    let jobs = enqueue_a_minute_ago(&tickr, &normal, json!({"kind": "noop"})).await;
    let others = enqueue_a_minute_ago(&tickr, &tenant, json!({"kind": "noop", "queue": "tenant-150"})).await;
    lose_lists(&tickr, &[(&normal, &jobs), (&tenant, &others)]).await;
    // A runner feeds only the queues that it serves. A runner that serves the others feeds them when it starts.
    let keys: Vec<String> =
        tickr.redis().await.keys(format!("*{}*:ready:tenant-*", tickr.config.redis_prefix)).await.unwrap();
    assert!(keys.len() <= 200, "{} lists", keys.len());
    // Redis lost the epoch and all lists with it, so the runner rebuilds them.
    let pulse = Pulse::start(&tickr).await;
    tickr.app.index().forget().await.unwrap();
    let lost = Instant::now();
    for (line, jobs) in [(&normal, &jobs), (&tenant, &others)] {
        until_listed(&tickr, line, jobs).await;
    }
    eventually("the index is whole", || async { tickr.app.index().is_whole().await.unwrap().then_some(()) }).await;
    pulse.assert_within(BOUND, lost, "the index was rebuilt");
    release(tickr, sleeper, 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_starts_later_feeds_the_queues_that_no_other_served() {
    let tickr = TestApp::start().await;
    until_health(&tickr, Health::Fast).await;
    let mail = tickr.enqueue_many((0..20).map(|_| json!({"kind": "noop", "queue": "mail"}))).await;
    let later = tickr.enqueue_many((0..20).map(|_| json!({"kind": "noop", "queue": "mail", "delay_ms": 5_000}))).await;
    until_listed(&tickr, &line("mail", 5), &mail).await;
    eventually("the others are scheduled", || async {
        (tickr.app.index().depth(&[]).await.unwrap().0 == later.len()).then_some(())
    })
    .await;
    // Redis lost everything. One runner, which does not serve those queues, has fed it again.
    tickr.app.index().forget().await.unwrap();
    let rebuilt = || tickr.app.index().health().status().last.map(|rebuilt| rebuilt.at);
    let before = rebuilt();
    eventually("redis is fed again", || async {
        (rebuilt() > before && tickr.app.index().is_whole().await.unwrap()).then_some(())
    })
    .await;
    until_health(&tickr, Health::Fast).await;
    let listed = tickr.app.index().ready_ids(&line("mail", 5)).await.unwrap();
    assert_eq!((listed.len(), tickr.app.index().depth(&[]).await.unwrap().0), (0, 0), "no runner serves them");
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    let other = tickr.another_with(|config| config.queues = vec!["mail".to_owned()], Registry::new()).await;
    for id in mail {
        tickr.until(id, State::Completed).await;
    }
    pulse.assert_within(BOUND, began, "the queue of the other runner is fed");
    for id in later {
        tickr.until(id, State::Completed).await;
    }
    let late_ms = tickr
        .count("SELECT MAX(TIMESTAMPDIFF(MICROSECOND, GREATEST(execute_at, (SELECT MIN(started_at) FROM attempts)), started_at)) DIV 1000 FROM attempts")
        .await;
    assert!(late_ms < 6_000, "{late_ms} ms late");

    // From now on one runner feeds the queues of the other runner as well: running runners do not always notice what
    // was lost.
    let far = tickr.enqueue_many((0..20).map(|_| json!({"kind": "noop", "queue": "mail", "delay_ms": 600_000}))).await;
    let forget = async {
        let again = tickr.post("/v1/index/rebuild", json!({})).await;
        assert_eq!(again.status, 202, "{:#}", again.body);
    };
    let hinted = tickr
        .event("a rebuild", forget, |event| match event {
            Event::Rebuilt { jobs } => Some(*jobs),
            _ => None,
        })
        .await;
    assert_eq!(hinted, far.len());
    tickr.assert_sound().await;
    other.stop(Default::default()).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_a_limited_and_a_paused_backlog_in_front_delay_no_other_queue() {
    // More than one look for due jobs reads.
    let (limited, paused) = if is_full() { (300_000, 100_000) } else { (20_000, 20_000) };
    without_redis_backlogs_in_front(limited, paused).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "makes two million jobs"]
async fn without_redis_a_million_limited_and_a_million_paused_jobs_delay_no_other_queue() {
    without_redis_backlogs_in_front(1_000_000, 1_000_000).await;
}

/// Start jobs without Redis behind overdue jobs of a queue at its limit and of a paused one.
async fn without_redis_backlogs_in_front(limited: u32, paused: u32) {
    let names = |config: &mut Config| {
        config.workers = 8;
        config.queues = ["default", "narrow", "mail"].map(str::to_owned).to_vec();
    };
    let tickr = TestApp::start_alone(|_| {}, names).await;
    until_health(&tickr, Health::Fast).await;
    set(&tickr, Method::PATCH, "/v1/queues/narrow", json!({"concurrency": 1})).await;
    pause(&tickr, "mail").await;
    tickr.services().redis().kill9().unwrap();
    until_health(&tickr, Health::Degraded).await;
    Owed { queue: "'narrow'", ..Owed::overdue(limited) }.insert(&tickr, 1).await;
    Owed { queue: "'mail'", ..Owed::overdue(paused) }.insert_waiting(&tickr, 2).await;
    let broker = tickr.app.broker();
    let (mut ticks, mut jobs) = (tokio::time::interval(SPACING), Vec::new());
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        ticks.tick().await;
        let job = json!({"kind": "noop", "delay_ms": jobs.len() * 37 % 500});
        jobs.push(broker.enqueue(broker.prepare(draft(&job)).unwrap()).await.unwrap());
    }
    let ours = "FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.queue = 'default'";
    tickr.until_count(format!("SELECT COUNT(*) {ours}"), i64::try_from(jobs.len()).unwrap()).await;
    let (p90, worst) = lateness(&tickr, "JOIN jobs j ON j.id = a.job_id WHERE j.queue = 'default'").await;
    println!("{} jobs beside a limit and a pause, late by p90 {p90} ms, at worst {worst} ms", jobs.len());
    assert!(p90 < MAX_LATE_MS && worst < MAX_WORST_MS, "{p90} ms late, at worst {worst} ms");
    // The limited queue was served as well, within its limit. The pause still holds.
    let others = "SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.queue = 'narrow'";
    let narrow = tickr.count(others).await;
    println!("{narrow} jobs of the limited queue ran");
    assert!(narrow >= 5, "{narrow} jobs of the limited queue ran");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE queue = 'mail' AND state <> 'waiting'").await, 0);
    set(&tickr, Method::POST, "/v1/queues/narrow/pause", json!({})).await;
    tickr
        .until_count(
            "SELECT COUNT(*) FROM owed FORCE INDEX (owed_line) WHERE queue = 'narrow' AND state = 'executing'",
            0,
        )
        .await;
    Owed::remove(&tickr).await;
    tickr.services().redis().start_again().unwrap();
    until_health(&tickr, Health::Fast).await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_cannot_be_read_costs_no_other_its_start() {
    let tickr = TestApp::start_alone(|_| {}, |config| config.workers = 2).await;
    until_health(&tickr, Health::Fast).await;
    let bad = tickr.enqueue_many((0..3).map(|_| json!({"kind": "noop", "delay_ms": 3_600_000}))).await;
    let ids: Vec<String> = bad.iter().map(|id| format!("UNHEX('{}')", id.uuid().simple())).collect();
    // No binary has ever written such a kind, but a restore or an edit by hand may have.
    tickr
        .sql(format!(
            "UPDATE owed SET kind = 'not a name!', execute_at = UTC_TIMESTAMP(3) - INTERVAL 1 HOUR WHERE id IN ({}); \
             UPDATE owed SET priority = 200 WHERE id = {}",
            ids.join(","),
            ids[2]
        ))
        .await;
    // Rebuilds, passes, the refill, and the fallback without Redis all find the row.
    for turn in 0..2 {
        let lose = async { tickr.redis().await.del(tickr.key("epoch")).await.map(drop).unwrap() };
        tickr.event("a rebuild", lose, |event| matches!(event, Event::Rebuilt { .. }).then_some(())).await;
        let jobs = tickr.enqueue_many((0..40).map(|n| json!({"kind": "noop", "delay_ms": n * 50}))).await;
        for id in jobs {
            tickr.until(id, State::Completed).await;
        }
        let drift = tickr.app.index().health().status().drift;
        println!("turn {turn}: {drift:?}");
    }
    tickr.services().redis().kill9().unwrap();
    until_health(&tickr, Health::Degraded).await;
    let jobs = tickr.enqueue_many((0..20).map(|_| json!({"kind": "noop"}))).await;
    for id in jobs {
        tickr.until(id, State::Completed).await;
    }
    let late_ms =
        tickr.count("SELECT MAX(TIMESTAMPDIFF(MICROSECOND, execute_at, started_at)) DIV 1000 FROM attempts").await;
    assert!(late_ms < 5_000, "{late_ms} ms late");
    tickr.sql("UPDATE owed SET kind = 'noop', priority = 5").await;
    tickr.until_idle().await;
    tickr.redis_stays_out();
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_due_work_reads_its_lines_and_nothing_else() {
    let tickr = TestApp::start_alone(|_| {}, |_| {}).await;
    until_health(&tickr, Health::Fast).await;
    Owed { queue: "'elsewhere'", ..Owed::overdue(20_000) }.insert_waiting(&tickr, 1).await;
    Owed { queue: "CONCAT('tenant-', n)", ..Owed::overdue(2_000) }.insert_waiting(&tickr, 2).await;
    Owed { due: "UTC_TIMESTAMP(3) + INTERVAL 1 DAY", ..Owed::overdue(20_000) }.insert_waiting(&tickr, 3).await;
    // Check the plans with fresh statistics, and with those of an empty table, which a server may have for a while.
    for analyze in [false, true] {
        if analyze {
            tickr.sql("ANALYZE TABLE owed").await;
        }
        for text in due_statements() {
            let values = ["'default'", "5", "'1970-01-01'", "UTC_TIMESTAMP(3)", "'1970-01-01'", "0x00", "2000"];
            let mut values = values.iter().cycle();
            // The probe reads only queue names.
            let probe = text.contains("MIN(");
            let text: String = text
                .split_inclusive('?')
                .map(|part| {
                    let value = if probe { "'default'" } else { *values.next().unwrap() };
                    part.replace('?', value)
                })
                .collect();
            let plan = sqlx::query(AssertSqlSafe(format!("EXPLAIN FORMAT=TRADITIONAL {text}")));
            for row in plan.fetch_all(&mut tickr.mysql().await).await.unwrap() {
                let word = |name| row.try_get::<Option<String>, _>(name).unwrap().unwrap_or_default();
                let (table, key, extra) = (word("table"), word("key"), word("Extra"));
                let told = format!("{} {table} {key} {} {extra}", word("select_type"), word("type"));
                assert!(!extra.contains("filesort"), "{told}: {text}");
                assert!(table != "owed" || key == "owed_line" && word("type") != "index", "{told}: {text}");
            }
        }
    }
    // Check the server's own count of rows read as well, over a few passes.
    let fewest = rows_of_a_pass(&tickr).await;
    println!("{fewest} rows were read in a pass");
    assert!(fewest < 10_000, "{fewest} rows");
    Owed::remove(&tickr).await;
    tickr.stop().await;
}

/// Return the fewest rows that the server read during a pass of the reconciler. In that time the scheduler and the
/// reaper have looked as well, and in one of several passes no rarer loop has.
async fn rows_of_a_pass(tickr: &TestApp) -> i64 {
    let read = "SELECT CAST(SUM(VARIABLE_VALUE) AS SIGNED) FROM INFORMATION_SCHEMA.GLOBAL_STATUS WHERE VARIABLE_NAME IN \
                ('HANDLER_READ_NEXT', 'HANDLER_READ_PREV', 'HANDLER_READ_RND_NEXT')";
    let read: &'static str = if std::env::var_os("TICKR_MYSQLD").is_some() {
        Box::leak(read.replace("INFORMATION_SCHEMA.GLOBAL_STATUS", "performance_schema.global_status").into_boxed_str())
    } else {
        read
    };
    let passed = || tickr.app.index().health().status().drift.map(|drift| drift.at);
    let mut fewest = i64::MAX;
    for _ in 0..5 {
        let (before, at) = (tickr.count(read).await, passed());
        eventually("a pass", || async { (passed() > at).then_some(()) }).await;
        fewest = fewest.min(tickr.count(read).await - before);
    }
    fewest
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loops_read_as_many_rows_with_jobs_of_next_month_as_with_none() {
    let silent = |config: &mut Config| config.lease = Duration::from_secs(3);
    let tickr = TestApp::start_alone(|_| {}, silent).await;
    until_health(&tickr, Health::Fast).await;
    // A runner that fell silent a while ago, so that the reaper looks at the attempts of every pass.
    tickr
        .sql(
            "INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, claim_batches, started_at, heartbeat_at) \
             VALUES ('gone/1-abcdef', '0', '[]', '[]', 1, 3000, 1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) - INTERVAL 60 SECOND)",
        )
        .await;
    let without = rows_of_a_pass(&tickr).await;
    // Half of them are in a queue that the runner serves.
    let next_month = "UTC_TIMESTAMP(3) + INTERVAL 30 DAY";
    Owed { due: next_month, ..Owed::overdue(8_000) }.insert_waiting(&tickr, 1).await;
    Owed { due: next_month, queue: "'elsewhere'", ..Owed::overdue(8_000) }.insert_waiting(&tickr, 2).await;
    tickr.sql("ANALYZE TABLE owed").await;
    let with = rows_of_a_pass(&tickr).await;
    println!("a pass read {without} rows, and {with} with 16,000 jobs of next month");
    // A few rows more or less are those of the runner's own bookkeeping, such as its samples.
    assert!(with - without < 200, "{without} rows became {with}");
    Owed::remove(&tickr).await;
    tickr.stop().await;
}
