//! Two versions of a program at work side by side, in processes of their own (`tests/versions`). Each has another
//! payload type for the kind `parcel`, so each reads parcels that the other cannot read.

use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{SecondsFormat, TimeDelta, Utc};
use reqwest::Method;
use serde_json::{Value, json};
use tickr::handlers::Registry;
use tickr::job::{Actor, Edition, JobId, State};
use tokio::time::{Instant, sleep_until};

use crate::support::program::example;
use crate::support::{self, Runner, TestApp, Translator, answer, call, eventually, http, make_suspects};

/// The two programs.
struct Versions {
    old: PathBuf,
    new: PathBuf,
}

impl Versions {
    async fn built() -> Self {
        Self { old: example("version_old").await, new: example("version_new").await }
    }
}

/// Start a tickr that reaps and answers, but runs none of the jobs.
async fn bystander() -> TestApp {
    TestApp::start_with(support::bystander, Registry::new()).await
}

/// Start a program. The lease decides which runners count as alive. Tests of other things use a lease that is longer
/// than any pause of a busy machine.
fn start(tickr: &TestApp, program: &Path, workers: &str, lease: &str) -> Runner {
    let env = [("TICKR_WORKERS", workers), ("TICKR_LEASE", lease), ("TICKR_QUEUES", "default,narrow")];
    Runner::start_program(tickr, program, &env)
}

fn parcel(ms: u64, more: &[(&str, &str)]) -> Value {
    let mut payload = json!({"to": "Ada", "ms": ms});
    for (field, value) in more {
        payload[*field] = json!(value);
    }
    json!({"kind": "parcel", "payload": payload})
}

/// Return a parcel that both versions can read.
fn plain(ms: u64) -> Value {
    parcel(ms, &[])
}

/// Return a parcel that only the older version can read: every second one because of a field, the others because of
/// their way.
fn of_old(ms: u64, place: usize) -> Value {
    parcel(ms, &[[("fax", "1")], [("way", "rail")]][place % 2])
}

/// Return a parcel that only the newer version can read.
fn of_new(ms: u64, place: usize) -> Value {
    parcel(ms, &[[("phone", "1")], [("way", "drone")]][place % 2])
}

async fn enqueue(base: &str, jobs: Vec<Value>) -> Vec<JobId> {
    let accepted = answer(http().post(format!("{base}/v1/jobs/batch")).json(&json!({"jobs": jobs}))).await;
    assert_eq!(accepted.status, 201, "{:#}", accepted.body);
    let jobs = accepted.body["jobs"].as_array().unwrap();
    jobs.iter().map(|job| job["id"].as_str().unwrap().parse().unwrap()).collect()
}

/// SQL for the version that can read a row of `jobs`; NULL when both can.
const READER: &str = "CASE WHEN j.payload LIKE '%fax%' OR j.payload LIKE '%rail%' THEN 'old' \
                      WHEN j.payload LIKE '%phone%' OR j.payload LIKE '%drone%' THEN 'new' END";

async fn number(tickr: &TestApp, sql: &str) -> i64 {
    tickr.count(sql).await
}

/// Check that each job completed once, in a version that can read it. A job that a runner gave back has used no
/// attempt, and no runner gave it back twice.
async fn each_ended_once_where_it_can_be_read(tickr: &TestApp, jobs: i64) {
    assert_eq!(tickr.count("SELECT COUNT(*) FROM jobs").await, jobs);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'").await, jobs);
    assert_eq!(tickr.count("SELECT COUNT(DISTINCT job_id) FROM attempts WHERE verdict = 'succeeded'").await, jobs);
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'").await, jobs);
    let elsewhere = format!(
        "SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id \
         WHERE a.verdict = 'succeeded' AND a.result NOT LIKE CONCAT('%', {READER}, '%')"
    );
    assert_eq!(number(tickr, &elsewhere).await, 0, "run by a version that cannot read it");
    let others = "SELECT COUNT(*) FROM attempts WHERE verdict NOT IN ('succeeded', 'snoozed', 'lost', 'interrupted')";
    assert_eq!(tickr.count(others).await, 0);
    let burned = "SELECT COUNT(*) FROM attempts a WHERE a.verdict = 'succeeded' AND a.burned <> 1 + (SELECT COUNT(*) \
                  FROM attempts l WHERE l.job_id = a.job_id AND l.verdict = 'lost')";
    assert_eq!(tickr.count(burned).await, 0, "something other than a loss used up an attempt");
    let often = "SELECT COALESCE(MAX(n), 0) FROM (SELECT COUNT(*) AS n FROM attempts WHERE verdict = 'snoozed' \
                 GROUP BY job_id, runner) a";
    assert_eq!(tickr.count(often).await, 1, "no job was given back, or one runner gave a job back more than once");
}

/// Return the number of jobs for one version that the other gave back.
async fn given_back(tickr: &TestApp, reader: &str) -> i64 {
    let sql = format!(
        "SELECT COUNT(DISTINCT a.job_id) FROM attempts a JOIN jobs j ON j.id = a.job_id \
         WHERE a.verdict = 'snoozed' AND {READER} = '{reader}'"
    );
    number(tickr, &sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_versions_share_a_load_and_each_job_ends_once_in_one_that_can_read_it() {
    const ROUNDS: usize = 8;
    const AT_ONCE: usize = 25;
    let versions = Versions::built().await;
    let tickr = bystander().await;
    // The lease of the one that dies is short: its jobs wait for the end. The others must not count as gone when the
    // machine stalls, because then jobs fail that only their version can read.
    let (mut dies, stays_old) = (start(&tickr, &versions.old, "8", "6s"), start(&tickr, &versions.old, "8", "60s"));
    let (mut leaves, stays_new) = (start(&tickr, &versions.new, "8", "60s"), start(&tickr, &versions.new, "8", "60s"));
    let (old, new) = (stays_old.base().await, stays_new.base().await);
    dies.base().await;
    leaves.base().await;
    // The API of each version refuses payloads that it cannot read.
    for (base, foreign) in [(&old, of_new(1, 0)), (&old, of_new(1, 1)), (&new, of_old(1, 0)), (&new, of_old(1, 1))] {
        assert_eq!(call(base, Method::POST, "/v1/jobs", "", Some(foreign)).await.status, 422);
    }
    let began = Instant::now();
    let feed = async |base: &str, shape: fn(u64, usize) -> Value| {
        for round in 0..ROUNDS {
            let jobs = (0..AT_ONCE).map(|place| if place % 5 == 0 { plain(20) } else { shape(20, place) });
            enqueue(base, jobs.collect()).await;
            sleep_until(began + Duration::from_millis(200) * (u32::try_from(round).unwrap() + 1)).await;
        }
    };
    let total = i64::try_from(2 * ROUNDS * AT_ONCE).unwrap();
    let midway = async {
        let done = "SELECT COUNT(*) FROM attempts WHERE end_state = 'completed'";
        let mut ended = 0;
        // The deadline counts from the last job that ended.
        while ended <= total / 3 {
            ended = eventually("another job is done", || async {
                let now = tickr.count(done).await;
                (now > ended).then_some(now)
            })
            .await;
        }
        dies.kill9();
        leaves.signal("TERM");
        assert_eq!(leaves.exit_code().await, Some(0));
    };
    tokio::join!(feed(&old, of_old), feed(&new, of_new), midway);
    let pace = total * 1_000 / i64::try_from(began.elapsed().as_millis()).unwrap();
    tickr.until_idle().await;
    each_ended_once_where_it_can_be_read(&tickr, total).await;
    let met = (given_back(&tickr, "old").await, given_back(&tickr, "new").await);
    println!("{pace} jobs/s, given back {met:?}");
    assert!(met.0 > 0 && met.1 > 0, "no job met a runner that cannot read it: {met:?}");
    tickr.stop().await;
}

/// Return the number of jobs that succeeded per second, from the first start since this time of MySQL until the last
/// plain parcel was delivered.
async fn pace(tickr: &TestApp, since: &str) -> f64 {
    let until = format!(
        "(SELECT MAX(p.finished_at) FROM attempts p JOIN jobs j ON j.id = p.job_id WHERE p.verdict = 'succeeded' \
         AND p.started_at >= '{since}' AND j.payload = '{{\"ms\":100,\"to\":\"Ada\"}}')"
    );
    let succeeded = format!(
        "SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded' AND started_at >= '{since}' AND finished_at <= {until}"
    );
    let took = format!(
        "SELECT TIMESTAMPDIFF(MICROSECOND, MIN(started_at), {until}) FROM attempts WHERE started_at >= '{since}'"
    );
    let (jobs, took) = (number(tickr, &succeeded).await, number(tickr, &took).await);
    assert!(jobs >= 200 && took > 0, "{jobs} in {took} µs");
    jobs as f64 * 1e6 / took as f64
}

/// Return the pace of the runners with 200 parcels that both versions can read, and as many of the other jobs that
/// `others` makes. The bases are those of one runner of each version.
async fn pace_beside(tickr: &TestApp, [old, new]: [&str; 2], others: impl Fn(usize) -> Option<(bool, Value)>) -> f64 {
    // All jobs are due at the same moment, after they are written.
    let due = Utc::now() + TimeDelta::seconds(2);
    let since = due.format("%Y-%m-%d %H:%M:%S%.3f").to_string();
    let due = due.to_rfc3339_opts(SecondsFormat::Millis, true);
    let (mut for_old, mut for_new) = (Vec::new(), Vec::new());
    for place in 0..200 {
        for (is_old, mut job) in [Some((true, plain(100))), others(place)].into_iter().flatten() {
            job["execute_at"] = json!(due);
            if is_old { &mut for_old } else { &mut for_new }.push(job);
        }
    }
    let total = for_old.len() + for_new.len();
    for (base, jobs) in [(old, for_old), (new, for_new)] {
        if !jobs.is_empty() {
            enqueue(base, jobs).await;
        }
    }
    tickr.until_idle().await;
    let completed = format!("SELECT COUNT(*) FROM attempts WHERE end_state = 'completed' AND started_at >= '{since}'");
    assert_eq!(number(tickr, &completed).await, i64::try_from(total).unwrap());
    pace(tickr, &since).await
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_half_of_the_runners_cannot_read_leave_the_others_their_pace() {
    let versions = Versions::built().await;
    let tickr = bystander().await;
    let programs = [&versions.old, &versions.new, &versions.old, &versions.new];
    let mut runners = programs.map(|program| start(&tickr, program, "4", "30s"));
    let mut bases = Vec::new();
    for runner in &runners {
        bases.push(runner.base().await);
    }
    let bases = [bases[0].as_str(), bases[1].as_str()];
    let beside = |place: usize| {
        Some(if place.is_multiple_of(2) { (true, of_old(100, place / 2)) } else { (false, of_new(100, place / 2)) })
    };
    // The two paces are taken one after the other. When other programs take the machine in between, they are taken again.
    let mut seen = Vec::new();
    loop {
        let alone = pace_beside(&tickr, bases, |_| None).await;
        let mixed = pace_beside(&tickr, bases, beside).await;
        println!("{alone:.0} jobs/s of both versions alone, {mixed:.0} with as many that only one of them reads");
        if mixed >= 0.5 * alone {
            break;
        }
        seen.push((alone, mixed));
        assert!(seen.len() < 3, "less than half of the pace, three times: {seen:?}");
    }
    for runner in &mut runners {
        runner.signal("TERM");
        assert_eq!(runner.exit_code().await, Some(0));
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_last_runner_that_can_read_a_job_is_gone_it_fails_in_time_and_says_what_to_do() {
    let versions = Versions::built().await;
    let tickr = bystander().await;
    type Shape = fn(u64, usize) -> Value;
    let cases: [(&Path, &Path, Shape, &str); 2] =
        [(&versions.old, &versions.new, of_new, "TERM"), (&versions.new, &versions.old, of_old, "KILL")];
    for (others, readers, shape, signal) in cases {
        let (mut stays, mut goes) = (start(&tickr, others, "4", "4s"), start(&tickr, readers, "4", "4s"));
        stays.base().await;
        let base = goes.base().await;
        let later = (0..2).map(|place| {
            let mut job = shape(1, place);
            (job["delay_ms"], job["max_attempts"]) = (json!(3_600_000), json!(1));
            job
        });
        let ids = enqueue(&base, later.collect()).await;
        goes.signal(signal);
        goes.exit_code().await;
        for id in &ids {
            tickr.app.broker().run_now(*id, &Actor::tickr()).await.unwrap();
        }
        for id in &ids {
            let job = tickr.until(*id, State::Failed).await;
            let attempts = job["attempts"].as_array().unwrap();
            let verdicts: Vec<&str> = attempts.iter().map(|one| one["verdict"].as_str().unwrap()).collect();
            // It was given back if a runner claimed it while the other version still counted as alive.
            assert!(matches!(verdicts.as_slice(), ["rejected"] | ["snoozed", "rejected"]), "{job:#}");
            let error = job["last_error"].as_str().unwrap();
            for part in [
                "read the payload as parcel: unknown ",
                "no living runner of another version is left that might",
                "start one that can, then retry the job",
            ] {
                assert!(error.contains(part), "{part}: {error}");
            }
            assert_eq!(job["attempt"], 1, "{job:#}");
        }
        // The runner that is gone counts as alive for a lease of four seconds. Its last write, at the stop, counts as a
        // heartbeat as well.
        let late = "SELECT TIMESTAMPDIFF(MICROSECOND, (SELECT MAX(r.heartbeat_at) FROM runners r WHERE r.id NOT IN \
                    (SELECT a.runner FROM attempts a) AND r.kinds LIKE '%parcel%'), MAX(d.failed_at)) FROM dead_letters d";
        let late = Duration::from_micros(u64::try_from(tickr.count(late).await).unwrap());
        println!("failed {late:?} after the last heartbeat of a runner that could read it");
        assert!(late >= Duration::from_secs(4) && late <= Duration::from_secs(14), "{late:?}");
        // The advice of the error helps.
        let mut back = start(&tickr, readers, "4", "4s");
        back.base().await;
        for id in &ids {
            assert_eq!(tickr.post(&format!("/v1/jobs/{id}/retry"), json!({})).await.status, 200);
            tickr.until(*id, State::Completed).await;
        }
        for runner in [&mut stays, &mut back] {
            runner.signal("TERM");
            assert_eq!(runner.exit_code().await, Some(0));
        }
        tickr.sql("DELETE FROM runners WHERE kinds LIKE '%parcel%'").await;
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn suspects_run_in_processes_of_a_version_that_can_read_them() {
    let versions = Versions::built().await;
    let tickr = bystander().await;
    let (mut old, mut new) = (start(&tickr, &versions.old, "8", "30s"), start(&tickr, &versions.new, "8", "30s"));
    let (base_old, base_new) = (old.base().await, new.base().await);
    let later = |mut job: Value| {
        job["delay_ms"] = json!(3_600_000);
        job
    };
    let mut ids = enqueue(&base_old, (0..6).map(|place| later(of_old(1, place))).collect()).await;
    ids.extend(enqueue(&base_new, (0..6).map(|place| later(of_new(1, place))).collect()).await);
    let killers = (0..2).map(|place| {
        let mut job = later(of_new(1, place));
        job["payload"]["explodes"] = json!(true);
        job
    });
    let killers = enqueue(&base_new, killers.collect()).await;
    let all: Vec<JobId> = killers.iter().chain(&ids).copied().collect();
    make_suspects(&mut tickr.mysql().await, &all).await;
    for id in &all {
        tickr.app.broker().run_now(*id, &Actor::tickr()).await.unwrap();
    }
    for id in &ids {
        tickr.until(*id, State::Completed).await;
    }
    // The first process for a job may have been unable to read it. Then the job is a suspect as before, and kills no
    // runner.
    for killer in killers {
        let job = tickr.until(killer, State::Failed).await;
        assert!(job["last_error"].as_str().unwrap().contains("signal 6 (SIGABRT)"), "{job:#}");
    }
    // No runner was killed, and a process of the right version wrote every end.
    assert!(!old.has_ended() && !new.has_ended());
    let elsewhere = format!(
        "SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id \
         WHERE a.verdict = 'succeeded' AND a.result NOT LIKE CONCAT('%', {READER}, '%')"
    );
    assert_eq!(number(&tickr, &elsewhere).await, 0, "run by a version that cannot read it");
    let in_runners = "SELECT COUNT(*) FROM attempts a JOIN runners r ON r.id = a.runner WHERE r.parent IS NULL";
    assert_eq!(tickr.count(in_runners).await, 0, "run in a runner");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded'").await, 12);
    // A runner starts one process for a job that it cannot read, and leaves the job alone after that.
    let often = "SELECT COALESCE(MAX(n), 0) FROM (SELECT COUNT(*) AS n FROM attempts WHERE verdict = 'snoozed' \
                 GROUP BY job_id) a";
    assert_eq!(tickr.count(often).await, 1, "no job was given back, or one was given back more than once");
    let burned = "SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded' AND burned <> 3";
    assert_eq!(tickr.count(burned).await, 0, "a job that was given back used up an attempt");
    for runner in [&mut old, &mut new] {
        runner.signal("TERM");
        assert_eq!(runner.exit_code().await, Some(0));
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_one_holds_over_two_versions_and_jams_on_neither() {
    let versions = Versions::built().await;
    let tickr = bystander().await;
    let limit = tickr.patch("/v1/queues/narrow", json!({"concurrency": 1})).await;
    assert_eq!(limit.status, 200, "{:#}", limit.body);
    let (mut old, mut new) = (start(&tickr, &versions.old, "8", "30s"), start(&tickr, &versions.new, "8", "30s"));
    let (base_old, base_new) = (old.base().await, new.base().await);
    let narrow = |mut job: Value| {
        job["queue"] = json!("narrow");
        job
    };
    for place in 0..5 {
        enqueue(&base_old, (0..5).map(|at| narrow(of_old(5, place + at))).collect()).await;
        enqueue(&base_new, (0..5).map(|at| narrow(of_new(5, place + at))).collect()).await;
        enqueue(&base_new, (0..2).map(|_| narrow(plain(5))).collect()).await;
    }
    tickr.until_idle().await;
    each_ended_once_where_it_can_be_read(&tickr, 60).await;
    let at_once = "SELECT COUNT(*) FROM attempts a JOIN attempts b ON a.started_at < b.finished_at AND b.started_at < a.finished_at \
                   WHERE (a.job_id, a.number) < (b.job_id, b.number)";
    assert_eq!(tickr.count(at_once).await, 0, "two at once");
    let took = "SELECT TIMESTAMPDIFF(MICROSECOND, MIN(execute_at), MAX(finished_at)) DIV 1000 FROM attempts";
    println!("60 jobs one after the other in {} ms", tickr.count(took).await);
    for runner in [&mut old, &mut new] {
        runner.signal("TERM");
        assert_eq!(runner.exit_code().await, Some(0));
    }
    tickr.stop().await;
}

/// The options of a job, beside its payload, are a type of tickr itself. Both programs here have the same tickr, so the
/// test makes one of them read and write a field under another name.
#[tokio::test(flavor = "multi_thread")]
async fn options_that_one_tickr_cannot_read_wait_for_the_other() {
    let versions = Versions::built().await;
    let tickr = bystander().await;
    let edition = Edition::for_options().to_string();
    let other_edition: String = edition.chars().rev().collect();
    assert_ne!(edition, other_edition);
    let mysql = tickr.config.mysql_url().unwrap().expose();
    let line = Translator::start(mysql, &[["jitter", "wobble"], [&edition, &other_edition]]).await;
    let env = [("TICKR_MYSQL_URL", line.url()), ("TICKR_WORKERS", "4"), ("TICKR_LEASE", "4s")];
    let (mut here, mut there) =
        (start(&tickr, &versions.old, "4", "4s"), Runner::start_program(&tickr, &versions.old, &env));
    let (base_here, base_there) = (here.base().await, there.base().await);
    let with_options = |ms: u64| {
        let mut job = plain(ms);
        (job["retry"], job["max_attempts"]) = (json!({"base_ms": 5, "jitter": 0.5}), json!(1));
        job
    };
    let (mut of_here, mut of_there) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        of_here.extend(enqueue(&base_here, (0..5).map(|_| with_options(2)).collect()).await);
        of_there.extend(enqueue(&base_there, (0..5).map(|_| with_options(2)).collect()).await);
    }
    tickr.until_idle().await;
    let written = "SELECT COUNT(*) FROM jobs WHERE options LIKE '%wobble%' AND options NOT LIKE '%jitter%'";
    assert_eq!(tickr.count(written).await, 25);
    let executed = "SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded' AND burned = 1";
    assert_eq!(tickr.count(executed).await, 50);
    let pids = [(here.pid(), &of_here), (there.pid(), &of_there)];
    let mut met = 0;
    for (pid, ids) in pids {
        for id in ids {
            let job = tickr.job(*id).await;
            let attempts = job["attempts"].as_array().unwrap();
            let ran = attempts.last().unwrap()["runner"].as_str().unwrap();
            assert!(ran.contains(&format!("/{pid}-")), "{job:#}");
            assert!(attempts.len() <= 2, "{job:#}");
            met += attempts.len() - 1;
            if let Some(error) = attempts[0]["error"].as_str() {
                assert!(error.starts_with("read the stored job: "), "{error}");
                assert!(error.contains("unknown field `") && error.contains("given back"), "{error}");
            }
        }
    }
    assert!(met > 0, "no job met the runner that cannot read it");
    // When the other runner is gone, a job that only it could read fails, with a reason.
    let mut late = with_options(1);
    late["delay_ms"] = json!(3_600_000);
    let id = enqueue(&base_there, vec![late]).await.remove(0);
    there.kill9();
    tickr.app.broker().run_now(id, &Actor::tickr()).await.unwrap();
    let job = tickr.until(id, State::Failed).await;
    let error = job["last_error"].as_str().unwrap();
    assert!(error.starts_with("read the stored job: ") && error.contains("unknown field `wobble`"), "{error}");
    assert!(error.contains("no living runner of another version is left"), "{error}");
    here.signal("TERM");
    assert_eq!(here.exit_code().await, Some(0));
    tickr.stop().await;
}
