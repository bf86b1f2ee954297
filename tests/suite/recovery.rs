//! Recovery from a lost index, dead runners and a killed MySQL: every accepted job still runs, in bounded time.

use std::collections::HashSet;
use std::time::Duration;

use redis::AsyncTypedCommands;
use serde_json::{Value, json};
use tickr::event::Event;
use tickr::handlers::Registry;
use tickr::index::{Health, Lane};
use tickr::job::{JobId, Name, Priority, State};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::{
    Pulse, Runner, SHORT_LEASE, TestApp, bystander, drop_database, eventually, eventually_seen, short_lease,
};

/// Return jobs that are due between now and a second from now.
fn soon(jobs: u64) -> impl Iterator<Item = Value> {
    (0..jobs).map(|n| json!({"kind": "noop", "delay_ms": n % 1_000}))
}

async fn until_health(tickr: &TestApp, wanted: Health) {
    eventually(&format!("the index is {}", wanted.as_str()), || async {
        (tickr.app.index().health().now() == wanted).then_some(())
    })
    .await;
}

/// Wait until the runner is ready with this state of its index. It may not be while the machine stands still.
async fn until_ready(tickr: &TestApp, index: &str) {
    eventually_seen(&format!("the runner is ready, its index {index}"), || async {
        let ready = tickr.get("/readyz").await;
        if ready.status == 200 && ready.body["index"] == index { Ok(()) } else { Err(ready.body) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_run_without_redis_and_a_redis_that_comes_later_is_used() {
    let tickr = TestApp::start_alone(|own| own.redis().kill9().unwrap(), |_| {}).await;
    tickr.enqueue_many(soon(150)).await;
    tickr.until_idle().await;
    let succeeded = "SELECT COUNT(DISTINCT job_id) FROM attempts WHERE end_state = 'completed'";
    assert_eq!((tickr.count(succeeded).await, tickr.count("SELECT COUNT(*) FROM attempts").await), (150, 150));
    until_ready(&tickr, "degraded").await;

    tickr.services().redis().start_again().unwrap();
    until_health(&tickr, Health::Fast).await;
    until_ready(&tickr, "fast").await;
    // From here on the index is used: a job that is due later is in it.
    let id = tickr.enqueue(json!({"kind": "noop", "delay_ms": 60_000})).await;
    let mut redis = tickr.redis().await;
    let member = format!("default:{id}");
    eventually("the index knows the job", || {
        let (mut redis, key, member) = (redis.clone(), tickr.key("waiting"), member.clone());
        async move { redis.zscore(key, member).await.unwrap() }
    })
    .await;
    assert!(redis.exists(tickr.key("epoch")).await.unwrap());
    tickr.post(&format!("/v1/jobs/{id}/run-now"), json!({})).await;
    tickr.until(id, State::Completed).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_restarted_empty_under_waiting_jobs_loses_none_and_runs_each_once() {
    let tickr = TestApp::start_alone(|_| {}, |config| config.workers = 16).await;
    until_health(&tickr, Health::Fast).await;
    tickr.enqueue_many((0..250).map(|n| json!({"kind": "noop", "delay_ms": 500 + n * 6}))).await;
    tickr.services().redis().kill9().unwrap();
    until_health(&tickr, Health::Degraded).await;
    tickr.services().redis().start_again().unwrap();
    until_health(&tickr, Health::Fast).await;
    tickr.until_idle().await;
    tickr.assert_each_ran_once(250).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flushing_redis_at_random_moments_under_load_loses_none_and_runs_each_once() {
    let tickr = TestApp::start_alone(|_| {}, |config| config.workers = 16).await;
    let load = async {
        // The flushes take 1.8 s on average.
        let mut ticks = tokio::time::interval(Duration::from_millis(90));
        for _ in 0..20 {
            ticks.tick().await;
            tickr.enqueue_many(soon(40)).await;
        }
    };
    let flushes = async {
        for _ in 0..30 {
            tokio::time::sleep(Duration::from_millis(rand::random_range(0..120))).await;
            tickr.flush_redis().await;
        }
    };
    tokio::join!(load, flushes);
    tickr.until_idle().await;
    tickr.assert_each_ran_once(800).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flushed_backlog_longer_than_a_ready_list_is_worked_off_without_pauses() {
    let small = |config: &mut tickr::config::Config| {
        (config.ready_high_water, config.ready_low_water, config.workers) = (50, 15, 16);
    };
    let tickr = TestApp::start_with(small, Registry::new()).await;
    // The jobs are due so late that all of them wait when the index is lost.
    tickr.enqueue_many((0..1_000).map(|_| json!({"kind": "noop", "delay_ms": 3_600_000}))).await;
    tickr.sql("UPDATE owed SET execute_at = UTC_TIMESTAMP(3)").await;
    let mut redis = tickr.redis().await;
    let keys = [tickr.key("epoch"), tickr.key("waiting")];
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    redis.del(&keys[..]).await.unwrap();
    tickr.until_idle().await;
    // If the reconciler alone refilled the list, every three seconds would bring only fifty jobs, so all of them would
    // take a minute.
    pulse.assert_recovered(Duration::from_secs(25), began, "1,000 jobs behind a ready list of 50");
    tickr.assert_each_ran_once(1_000).await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_ready_list_comes_back_within_its_bound() {
    let busy = |config: &mut tickr::config::Config| config.workers = 1;
    let tickr = TestApp::start_with(busy, Registry::new()).await;
    let first = tickr.enqueue_kind("sleep", json!({"ms": 600_000})).await;
    tickr.until(first, State::Executing).await;
    let jobs = tickr.enqueue_many((0..50).map(|_| json!({"kind": "noop"}))).await;
    // A job that a hint and a rebuild have both listed stands there twice, which harms nothing.
    let lane = Lane::new(&"default".parse::<Name>().unwrap(), Priority::default());
    let until_listed = async |what: &str| {
        eventually_seen(what, || async {
            let listed = match tickr.app.index().ready_ids(&lane).await {
                Ok(listed) => listed,
                Err(error) => return Err(error.to_string()),
            };
            let missing = jobs.iter().filter(|id| !listed.contains(id)).count();
            if missing == 0 { Ok(()) } else { Err(format!("{missing} are missing among {}", listed.len())) }
        })
        .await;
    };
    until_listed("all are listed").await;
    let pulse = Pulse::start(&tickr).await;
    tickr.redis().await.del(tickr.key(&format!("ready:{}", lane.as_str()))).await.unwrap();
    let lost = Instant::now();
    until_listed("all are listed again").await;
    // The bound of G3, plus a second for a busy machine.
    pulse.assert_recovered(Duration::from_secs(7), lost, "all are listed again");
    tickr.post(&format!("/v1/jobs/{first}/cancel"), json!({})).await;
    tickr.until_idle().await;
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'").await, 50);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts").await, 51);
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_a_runner_finds_its_work_behind_any_backlog_of_others() {
    let tickr = TestApp::start_alone(|own| own.redis().kill9().unwrap(), |_| {}).await;
    // The jobs in front are overdue: those of another queue, and those of a kind that this runner does not have.
    tickr.enqueue_many((0..300).map(|_| json!({"kind": "noop", "queue": "mail"}))).await;
    let far = (0..300).map(|_| json!({"kind": "noop", "delay_ms": 3_600_000}));
    tickr.enqueue_many(far).await;
    tickr.sql(
        "UPDATE owed SET kind = 'later', execute_at = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND WHERE queue = 'default'; \
         UPDATE jobs SET kind = 'later' WHERE queue = 'default'",
    )
    .await;
    let ours = tickr.enqueue_many((0..10).map(|_| json!({"kind": "noop"}))).await;
    for id in ours {
        tickr.until(id, State::Completed).await;
    }
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts").await, 10);
    tickr.redis_stays_out();
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_runner_is_not_forgotten_while_a_lease_of_its_own_runs_on() {
    let lease = |config: &mut tickr::config::Config| config.lease = Duration::from_secs(3);
    let tickr = TestApp::start_with(lease, Registry::new()).await;
    let id = tickr.enqueue(json!({"kind": "noop", "delay_ms": 3_600_000})).await;
    // A runner calls others dead only when it has watched them for a lease.
    tickr
        .sql(
            "INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, started_at, heartbeat_at) \
             VALUES ('long/1-abcdef', '0', '[]', '[]', 1, 3000, UTC_TIMESTAMP(6) - INTERVAL 60 SECOND, \
             UTC_TIMESTAMP(6) - INTERVAL 50 SECOND)",
        )
        .await;
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE id = 'long/1-abcdef' AND stopped_at IS NOT NULL", 1).await;
    // A runner fell silent a lease ago, after a last claim. The reaper sees both at once, also if the machine stands
    // still between the statements.
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    tickr
        .sql(
            "SET @now = UTC_TIMESTAMP(6); START TRANSACTION; \
             INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, started_at, heartbeat_at) \
             VALUES ('gone/1-abcdef', '0', '[]', '[]', 1, 3000, @now - INTERVAL 60 SECOND, @now - INTERVAL 3 SECOND); \
             UPDATE owed SET state = 'executing', attempt = 1, token = UNHEX(REPLACE(UUID(), '-', '')), \
             runner = 'gone/1-abcdef', execute_at = @now - INTERVAL 1 SECOND, started_at = @now, \
             lease_until = @now + INTERVAL 2500000 MICROSECOND; COMMIT",
        )
        .await;
    tickr.until(id, State::Completed).await;
    assert_eq!(tickr.verdicts(id).await, ["lost", "succeeded"]);
    let late_ms = tickr
        .count(
            "SELECT TIMESTAMPDIFF(MICROSECOND, started_at, finished_at) DIV 1000 - 2500 FROM attempts WHERE verdict = 'lost'",
        )
        .await;
    // G3: the lease plus five seconds. A reaper waits for one more lease after a stall of the machine.
    let bound_ms = 5_000 + pulse.leeway_ms(began, 3);
    assert!((0..bound_ms).contains(&late_ms), "{late_ms} ms after the lease, of {bound_ms} ms");
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE id = 'gone/1-abcdef' AND stopped_at IS NOT NULL", 1).await;
    let early = "SELECT COUNT(*) FROM runners r JOIN attempts a ON a.runner = r.id WHERE r.stopped_at < a.finished_at";
    assert_eq!(tickr.count(early).await, 0, "it was forgotten before its attempt was ended");
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_renewed_is_never_reaped() {
    let tickr = TestApp::start_with(short_lease, Registry::new()).await;
    // One runner is silent, so the reaper searches the owed rows at every check.
    tickr
        .sql(
            "INSERT INTO runners (id, version, kinds, queues, slots, lease_ms, started_at, heartbeat_at) \
             VALUES ('gone/1-abcdef', '0', '[]', '[]', 1, 600000, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) - INTERVAL 700 SECOND)",
        )
        .await;
    let (pulse, mut turns) = (Pulse::start(&tickr).await, 0);
    loop {
        let began = Instant::now();
        let id = tickr.enqueue_kind("sleep", json!({"ms": 5_000})).await;
        tickr.until(id, State::Completed).await;
        let verdicts = tickr.verdicts(id).await;
        if verdicts == ["succeeded"] {
            break;
        }
        // The lease ends if the machine stands still for so long, and nothing is proved.
        turns += 1;
        assert!(pulse.saw_outage(began) && turns < 5, "{verdicts:?}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_killed_runner_are_lost_and_run_again_elsewhere() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    // A stall of the machine ends no lease before the kill, and none of the second runner.
    let mut first = Runner::start(&tickr, &[("TICKR_WORKERS", "20"), ("TICKR_LEASE", "6s")]);
    let ids = tickr.enqueue_many((0..20).map(|_| json!({"kind": "sleep", "payload": {"ms": 600_000}}))).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 20).await;
    // The next attempts are short, so that the test is.
    tickr.sql("UPDATE jobs SET payload = '{\"ms\": 50}'").await;
    let pulse = Pulse::start(&tickr).await;
    first.kill9();
    let killed = Instant::now();
    let mut second = Runner::start(&tickr, &[("TICKR_WORKERS", "20"), ("TICKR_LEASE", "60s")]);
    tickr.until_count("SELECT COUNT(*) FROM attempts WHERE verdict = 'lost'", 20).await;
    // G3: the lease of six seconds plus five more, and two for a busy machine.
    let (after, leeway_ms) = (killed.elapsed(), pulse.leeway_ms(killed, 6).unsigned_abs());
    let bound = Duration::from_secs(13) + Duration::from_millis(leeway_ms);
    assert!(after < bound, "{after:?} of {bound:?}");
    tickr.until_idle().await;
    for id in ids {
        assert_eq!(tickr.verdicts(id).await, ["lost", "succeeded"]);
        assert_eq!(tickr.job(id).await["attempt"], 2);
    }
    tickr.assert_sound().await;
    second.signal("TERM");
    assert_eq!(second.exit_code().await, Some(0));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_kills_its_runners_ends_as_failed() {
    let tickr = TestApp::start_with(bystander, Registry::new()).await;
    let retry = json!({"base_ms": 1, "factor": 1.0, "cap_ms": 1});
    let id = tickr.enqueue(json!({"kind": "abort", "max_attempts": 2, "retry": retry})).await;
    for attempt in 1..=2 {
        let mut runner = Runner::start(&tickr, &[]);
        assert_eq!(runner.exit_code().await, None, "it aborts");
        tickr.until_attempts(id, attempt).await;
    }
    let job = tickr.until(id, State::Failed).await;
    assert_eq!(tickr.verdicts(id).await, ["lost", "lost"]);
    assert_eq!(job["last_error"], "the runner died or lost its lease");
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killing_mysql_under_load_loses_no_acknowledged_job() {
    let tickr = TestApp::start_alone(|_| {}, |config| (config.workers, config.lease) = (16, SHORT_LEASE)).await;
    // Another server watches the machine: the one of the test is killed.
    let (pulse, name, url) = Pulse::apart().await;
    let broker = tickr.app.broker();
    let over = CancellationToken::new();
    let load = {
        let over = &over;
        async move {
            let mut acknowledged: Vec<JobId> = Vec::new();
            while !over.is_cancelled() {
                let jobs = soon(8).map(|job| super::support::draft(&job));
                let jobs = jobs.map(|draft| broker.prepare(draft).unwrap()).collect();
                match broker.enqueue_all(jobs).await {
                    Ok(accepted) => acknowledged.extend(accepted.iter().map(|receipt| receipt.id)),
                    Err(error) => assert!(error.is_transient(), "{error}"),
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            acknowledged
        }
    };
    let chaos = async {
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(700)).await;
            tickr.services().mysql().kill9().unwrap();
            tokio::time::sleep(Duration::from_millis(300)).await;
            tickr.services().mysql().start_again().unwrap();
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        over.cancel();
    };
    let (acknowledged, ()) = tokio::join!(load, chaos);
    let back = Instant::now();
    tickr.until_idle().await;
    println!("{} jobs, done {:?} after mysql was back", acknowledged.len(), back.elapsed());
    // Attempts whose claim was committed but not answered end with their lease.
    pulse.assert_recovered(Duration::from_secs(20), back, "all jobs are done");
    drop(pulse);
    drop_database(&url, &name).await;
    let completed: Vec<uuid::Uuid> = sqlx::query_scalar("SELECT job_id FROM attempts WHERE end_state = 'completed'")
        .fetch_all(&mut tickr.mysql().await)
        .await
        .unwrap();
    let completed: HashSet<uuid::Uuid> = completed.into_iter().collect();
    for id in &acknowledged {
        assert!(completed.contains(&id.uuid()), "{id}");
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_epoch_leads_to_a_rebuild() {
    let tickr = TestApp::start().await;
    until_health(&tickr, Health::Fast).await;
    let mut redis = tickr.redis().await;
    let lose = async { redis.del(tickr.key("epoch")).await.map(drop).unwrap() };
    tickr.event("a rebuild", lose, |event| matches!(event, Event::Rebuilt { .. }).then_some(())).await;
    tickr.stop().await;
}
