//! The jobs of a dead runner: an innocent job runs again at once, and a job that kills its runners fails in a process
//! of its own, with little effect on its neighbours.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::Row;
use tickr::config::Config;
use tickr::handlers::Registry;
use tickr::job::{Actor, JobId, State};
use tickr::store::{MAX_LOSSES, SUSPECT_FROM};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::{self, Pulse, Runner, TestApp, eventually, http, make_suspects};

/// Start a tickr that accepts jobs and reaps, but runs no job.
async fn bystander() -> TestApp {
    TestApp::start_with(support::bystander, Registry::new()).await
}

fn job(kind: &str, payload: &Value) -> Value {
    // The retry delay is constant, so that jobs that were lost together are due together.
    json!({"kind": kind, "payload": payload, "retry": {"base_ms": 1, "factor": 1.0, "cap_ms": 1, "jitter": 0.0}})
}

fn sleeping(ms: u64) -> Value {
    job("sleep", &json!({"ms": ms}))
}

/// Enqueue jobs, make the tables say that they lost two attempts in a row, and make them due.
async fn suspects(tickr: &TestApp, jobs: impl IntoIterator<Item = Value>) -> Vec<JobId> {
    let later = |mut job: Value| {
        job["delay_ms"] = json!(3_600_000);
        job
    };
    let ids = tickr.enqueue_many(jobs.into_iter().map(later)).await;
    make_suspects(&mut tickr.mysql().await, &ids).await;
    for id in &ids {
        tickr.app.broker().run_now(*id, &Actor::tickr()).await.unwrap();
    }
    ids
}

async fn suspect(tickr: &TestApp, job: Value) -> JobId {
    suspects(tickr, [job]).await.remove(0)
}

async fn lost(tickr: &TestApp) -> i64 {
    tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'lost'").await
}

/// Return the verdicts of a suspect's attempts after those two.
async fn since(tickr: &TestApp, id: JobId) -> Vec<String> {
    tickr.verdicts(id).await.split_off(SUSPECT_FROM as usize)
}

/// Wait until a suspect runs, and return the id of its process.
async fn child_of(tickr: &TestApp, id: JobId) -> u32 {
    eventually(&format!("a child executes {id}"), || async {
        let sql = "SELECT r.pid FROM owed o JOIN runners r ON r.id = o.runner \
                   WHERE o.id = ? AND o.state = 'executing' AND r.parent IS NOT NULL AND r.stopped_at IS NULL";
        sqlx::query_scalar(sql).bind(id.uuid()).fetch_optional(&mut tickr.mysql().await).await.unwrap()
    })
    .await
}

/// A lease that no stall of the machine ends, in a test in which none has to end.
const LONG_LEASE: (&str, &str) = ("TICKR_LEASE", "60s");

const CHILDREN: &str = "SELECT COUNT(*) FROM runners WHERE parent IS NOT NULL";

fn lives(pid: u32) -> bool {
    // A child that has ended and was not waited for yet is a zombie.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

async fn until_gone(pid: u32) {
    eventually(&format!("process {pid} is gone"), || async { (!lives(pid)).then_some(()) }).await;
}

fn send(signal: &str, pid: u32) {
    tickr::services::signal(signal, pid).unwrap();
}

/// Return the duration of the last attempt in milliseconds, by the database's times.
async fn last_attempt_ms(tickr: &TestApp, id: JobId) -> i64 {
    let sql = "SELECT TIMESTAMPDIFF(MICROSECOND, started_at, finished_at) DIV 1000 FROM attempts \
               WHERE job_id = ? ORDER BY number DESC LIMIT 1";
    sqlx::query_scalar(sql).bind(id.uuid()).fetch_one(&mut tickr.mysql().await).await.unwrap()
}

/// Runners that are started again when they end, as an init system does.
struct Fleet {
    env: Vec<(&'static str, &'static str)>,
    runners: Vec<Runner>,
    deaths: u32,
}

impl Fleet {
    fn start(tickr: &TestApp, count: usize, env: &[(&'static str, &'static str)]) -> Self {
        let runners = (0..count).map(|_| Runner::start(tickr, env)).collect();
        Self { env: env.to_vec(), runners, deaths: 0 }
    }

    fn start_again(&mut self, tickr: &TestApp) {
        for runner in &mut self.runners {
            if runner.has_ended() {
                self.deaths += 1;
                *runner = Runner::start(tickr, &self.env);
            }
        }
    }

    /// Keep the runners running until the query gives this number.
    async fn until(&mut self, tickr: &TestApp, sql: &'static str, wanted: i64, patience: Duration) {
        let (began, mut mysql) = (Instant::now(), tickr.mysql().await);
        while sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut mysql).await.unwrap() != wanted {
            self.start_again(tickr);
            if began.elapsed() > patience {
                let logs: Vec<String> = self.runners.iter().map(Runner::log).collect();
                panic!("{} deaths and not yet {wanted} = {sql}:\n{}", self.deaths, logs.join("\n"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn stop(mut self) {
        for runner in &self.runners {
            runner.signal("TERM");
        }
        for runner in &mut self.runners {
            assert_eq!(runner.exit_code().await, Some(0));
        }
    }
}

/// Check that exactly these jobs have failed, and that every other job lost no more attempts than two crashes beside it
/// explain.
async fn assert_only_culprits_failed(tickr: &TestApp, culprits: &[JobId]) {
    let failed = "SELECT job_id, error FROM attempts WHERE end_state = 'failed'";
    let rows = sqlx::query(failed).fetch_all(&mut tickr.mysql().await).await.unwrap();
    let failed: HashSet<JobId> = rows.iter().map(|row| JobId::from_uuid(row.get(0))).collect();
    assert_eq!(failed, culprits.iter().copied().collect::<HashSet<_>>());
    for row in rows {
        let error: String = row.get(1);
        assert_eq!(error, "its process was killed by signal 6 (SIGABRT)");
    }
    let most = "SELECT job_id, COUNT(*) FROM attempts WHERE verdict = 'lost' GROUP BY job_id";
    for row in sqlx::query(most).fetch_all(&mut tickr.mysql().await).await.unwrap() {
        let (id, losses): (JobId, i64) = (JobId::from_uuid(row.get(0)), row.get(1));
        let allowed = if culprits.contains(&id) { MAX_LOSSES } else { 2 };
        assert!(losses <= i64::from(allowed), "{id} lost {losses} attempts");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_aborts_its_runners_fails_and_its_neighbours_lose_two_attempts_at_most() {
    let tickr = bystander().await;
    // These jobs run for longer than the culprit takes to crash, so that it kills neighbours.
    tickr.enqueue_many((0..5).map(|_| sleeping(400))).await;
    let culprit = tickr.enqueue(job("abort", &json!({"after_ms": 50}))).await;
    tickr.enqueue_many((0..20).map(|_| sleeping(50))).await;
    // A machine that stands still must cost no other attempt.
    let mut fleet = Fleet::start(&tickr, 1, &[("TICKR_WORKERS", "8"), ("TICKR_LEASE", "5s")]);
    fleet.until(&tickr, "SELECT COUNT(*) FROM owed", 0, Duration::from_secs(90)).await;
    println!("{} deaths, {} attempts lost", fleet.deaths, lost(&tickr).await);
    // The third attempt killed no runner.
    assert_eq!(fleet.deaths, SUSPECT_FROM);
    assert_eq!(tickr.verdicts(culprit).await, vec!["lost"; MAX_LOSSES as usize]);
    assert!(lost(&tickr).await > i64::from(MAX_LOSSES), "nothing ran beside it");
    assert_only_culprits_failed(&tickr, &[culprit]).await;
    tickr.assert_sound().await;
    fleet.stop().await;
    tickr.stop().await;
}

/// Run culprits among innocent jobs, on runners that are started again.
async fn crowd(culprits: usize, innocents: usize, runners: usize, workers: &'static str, ms: u64) -> Duration {
    let tickr = bystander().await;
    let mut jobs: Vec<Value> = (0..innocents).map(|_| sleeping(ms)).collect();
    let guilty: Vec<usize> = (0..culprits).map(|n| n * (innocents / 4 / culprits.max(1)).max(1)).collect();
    for place in &guilty {
        jobs.insert(*place, job("abort", &json!({"after_ms": ms / 2})));
    }
    let ids = tickr.enqueue_many(jobs).await;
    let guilty: Vec<JobId> = guilty.into_iter().map(|place| ids[place]).collect();
    let mut fleet = Fleet::start(&tickr, runners, &[("TICKR_WORKERS", workers), ("TICKR_LEASE", "5s")]);
    fleet.until(&tickr, "SELECT COUNT(*) FROM owed", 0, Duration::from_secs(240)).await;
    let last_innocent = "SELECT TIMESTAMPDIFF(MICROSECOND, (SELECT MIN(started_at) FROM attempts), MAX(a.finished_at)) \
                         FROM attempts a WHERE a.end_state = 'completed'";
    let took = Duration::from_micros(tickr.count(last_innocent).await as u64);
    println!(
        "{culprits} culprits among {innocents}: {} deaths, {} attempts lost, {} children, innocents done after {took:?}",
        fleet.deaths,
        lost(&tickr).await,
        tickr.count(CHILDREN).await
    );
    assert_only_culprits_failed(&tickr, &guilty).await;
    tickr.assert_sound().await;
    fleet.stop().await;
    tickr.stop().await;
    took
}

/// Run by hand: `cargo test --test suite -- --ignored --test-threads 1 poison::`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute; the suite has a smaller one"]
async fn one_job_that_aborts_among_a_thousand_innocents_fails_alone() {
    crowd(1, 1_000, 3, "64", 500).await;
}

/// Run by hand: `cargo test --test suite -- --ignored --test-threads 1 poison::`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes two minutes; the suite has a smaller one"]
async fn twenty_jobs_that_abort_leave_the_others_half_of_their_throughput() {
    // The jobs are long enough that the lease after each death is only a part of the whole time.
    let without = crowd(0, 6_000, 3, "32", 500).await;
    let with = crowd(20, 6_000, 3, "32", 500).await;
    assert!(with < without * 2, "{with:?} with them, {without:?} without");
}

/// Let culprits abort at once beside so many innocent jobs that those last for longer than both windows: one without
/// culprits, and one from the start of the first culprit on.
async fn abort_at_once(culprits: usize, innocents: usize, runners: usize, workers: &'static str, ms: u64) {
    let tickr = bystander().await;
    tickr.enqueue_many((0..innocents).map(|_| sleeping(ms))).await;
    let mut fleet = Fleet::start(&tickr, runners, &[("TICKR_WORKERS", workers), ("TICKR_LEASE", "5s")]);
    let all = i64::try_from(runners).unwrap();
    tickr.until_count("SELECT COUNT(DISTINCT runner) FROM attempts WHERE verdict = 'succeeded'", all).await;
    let (pulse, baseline) = (Pulse::start(&tickr).await, Duration::from_secs(4));
    let (from, began) = (clock(&tickr).await, Instant::now());
    tokio::time::sleep(baseline).await;
    let guilty = (0..culprits).map(|_| {
        let mut culprit = job("abort", &json!({"after_ms": 100}));
        culprit["priority"] = json!(0);
        culprit
    });
    let guilty = tickr.enqueue_many(guilty).await;
    fleet.until(&tickr, "SELECT COUNT(*) FROM owed", 0, Duration::from_secs(240)).await;

    // The culprits kill all runners twice, a lease apart. The window contains that, and ends before the work does.
    let window = "SELECT MIN(started_at), LEAST(MIN(started_at) + INTERVAL 12 SECOND, (SELECT MAX(a.started_at) \
                  FROM attempts a JOIN jobs i ON i.id = a.job_id WHERE i.kind = 'sleep' AND a.number = 1)) \
                  FROM attempts WHERE job_id = ?";
    let (begins, ends): (chrono::NaiveDateTime, chrono::NaiveDateTime) =
        sqlx::query_as(window).bind(guilty[0].uuid()).fetch_one(&mut tickr.mysql().await).await.unwrap();
    let moment = |time: chrono::NaiveDateTime| began + (time - from).to_std().unwrap_or_default();
    let rate = async |from: chrono::NaiveDateTime, to: chrono::NaiveDateTime| {
        let done = "SELECT COUNT(*) FROM attempts WHERE verdict = 'succeeded' AND finished_at >= ? AND finished_at < ?";
        let mut mysql = tickr.mysql().await;
        let done = sqlx::query_scalar::<_, i64>(done).bind(from).bind(to).fetch_one(&mut mysql);
        // Nothing ends while the machine stands still.
        done.await.unwrap() as f64 / pulse.time_between(moment(from), moment(to)).as_secs_f64()
    };
    let without = rate(from, from + baseline).await;
    let with = rate(begins, ends).await;
    println!(
        "{culprits} culprits, {} deaths, {} attempts lost: {without:.1} jobs/s without culprits, {with:.1} with them, in {} ms",
        fleet.deaths,
        lost(&tickr).await,
        (ends - begins).num_milliseconds()
    );
    assert!(ends - begins > chrono::TimeDelta::seconds(8), "the work ended too early to tell: {}", ends - begins);
    assert!(with >= without / 2.0, "{with:.1} jobs/s beside culprits, {without:.1} without");
    assert_only_culprits_failed(&tickr, &guilty).await;
    tickr.assert_sound().await;
    fleet.stop().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_jobs_that_abort_at_once_fail_alone_and_leave_the_others_half_their_throughput() {
    // Two runners of 8 workers carry 40 of these jobs a second.
    abort_at_once(4, 750, 2, "8", 400).await;
}

/// Run by hand: `cargo test --test suite -- --ignored --test-threads 1 poison::`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the machine for itself; the suite has a smaller one"]
async fn twenty_jobs_that_abort_at_once_fail_alone_and_leave_the_others_half_their_throughput() {
    // Three runners of 64 workers carry 384 of these jobs a second.
    abort_at_once(20, 8_000, 3, "64", 500).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_one_loss_a_job_runs_again_at_once_before_all_that_waits() {
    let tickr = bystander().await;
    let mut first = Runner::start(&tickr, &[("TICKR_WORKERS", "4")]);
    // Neither the long backoff of these jobs nor the long backlog delays them.
    let mut slow = json!({"kind": "sleep", "payload": {"ms": 600_000}});
    slow["retry"] = json!({"base_ms": 3_600_000, "cap_ms": 3_600_000});
    let unlucky = tickr.enqueue_many((0..4).map(|_| slow.clone())).await;
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE state = 'executing'", 4).await;
    // The second runner works them off meanwhile, also while it is not sure yet that the first one is dead.
    tickr.enqueue_many((0..1_000).map(|_| sleeping(100))).await;
    tickr.sql("UPDATE jobs SET payload = '{\"ms\": 50}' WHERE payload LIKE '%600000%'").await;
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    first.kill9();
    let mut second = Runner::start(&tickr, &[("TICKR_WORKERS", "4")]);
    for id in &unlucky {
        tickr.until(*id, State::Completed).await;
        assert_eq!(tickr.verdicts(*id).await, ["lost", "succeeded"]);
    }
    // The time from the end of the lost attempts to the start of the next ones.
    let late_ms = tickr
        .count(
            "SELECT TIMESTAMPDIFF(MICROSECOND, MAX(l.finished_at), MAX(a.started_at)) DIV 1000 FROM attempts l \
             JOIN attempts a ON a.job_id = l.job_id AND a.number = 2 WHERE l.verdict = 'lost'",
        )
        .await;
    let waiting = tickr.count("SELECT COUNT(*) FROM owed WHERE state = 'waiting'").await;
    println!("started again {late_ms} ms after their loss was found, with {waiting} waiting behind them");
    let stalled_ms = i64::try_from(pulse.stalled_since(began).as_millis()).unwrap();
    assert!(late_ms >= 0 && late_ms - stalled_ms < 2_000, "{late_ms} ms, beside stalls of {stalled_ms} ms");
    assert!(waiting > 100, "only {waiting} are left: they waited with the others");
    assert_eq!(tickr.count(CHILDREN).await, 0, "one loss makes no suspect");
    second.signal("TERM");
    assert_eq!(second.exit_code().await, Some(0));
    tickr.stop().await;
}

/// The scenario of one killed runner out of three.
struct OneOfThree {
    workers: &'static str,
    lease: &'static str,
    job_ms: u64,
    per_second: f64,
    /// Duration of the load before the kill and after it.
    before: Duration,
    after: Duration,
}

/// What is left when a runner was killed and every job has ended.
struct Killed {
    tickr: TestApp,
    /// The killed runner is the first.
    runners: Vec<Runner>,
    /// The time of the kill, by the clock of MySQL and by that of the test.
    at: chrono::NaiveDateTime,
    killed: Instant,
    /// Stalls of the machine since the start.
    pulse: Pulse,
    sent: u64,
    lost: i64,
}

impl OneOfThree {
    async fn kill_under_load(&self) -> Killed {
        let tickr = bystander().await;
        let pulse = Pulse::start(&tickr).await;
        let env = [("TICKR_WORKERS", self.workers), ("TICKR_LEASE", self.lease)];
        let mut runners: Vec<Runner> = (0..3).map(|_| Runner::start(&tickr, &env)).collect();
        for runner in &runners {
            runner.base().await;
        }
        let over = CancellationToken::new();
        let load = async {
            let (began, mut sent) = (Instant::now(), 0_u64);
            while !over.is_cancelled() {
                let due = (began.elapsed().as_secs_f64() * self.per_second) as u64;
                tickr.enqueue_many((sent..due).map(|_| sleeping(self.job_ms))).await;
                sent = sent.max(due);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            sent
        };
        let kill = async {
            tokio::time::sleep(self.before).await;
            let killed = (clock(&tickr).await, Instant::now());
            runners[0].kill9();
            tokio::time::sleep(self.after).await;
            over.cancel();
            killed
        };
        let (sent, (at, killed)) = tokio::join!(load, kill);
        tickr.until_idle().await;
        let lost = lost(&tickr).await;
        assert!(lost > 0, "the runner ran nothing when it was killed");
        Killed { tickr, runners, at, killed, pulse, sent, lost }
    }

    /// Return the begins of the steps of five seconds after the kill.
    fn steps(&self) -> impl Iterator<Item = i64> {
        (0..self.after.as_secs() / 5).map(|step| i64::try_from(step * 5).unwrap())
    }

    fn lease_s(&self) -> i64 {
        self.lease.trim_end_matches('s').parse().unwrap()
    }

    /// Kill a runner under half load. The two that are left can carry that, so the loss may slow them by nothing.
    async fn at_half_load(self) {
        let killed = self.kill_under_load().await;
        // The number of starts shows what the other runners can carry, whatever the length of the jobs. Each step counts
        // by itself, because a slow one would not show in a sum that began with faster ones.
        let mut starts = Vec::new();
        for from in self.steps() {
            starts.push((killed.ran_within(from, from + 5), killed.started("number = 1", from, from + 5).await));
        }
        let again_ms = killed.again_ms().await;
        println!(
            "{} jobs, load {}/s, seconds and starts of each step after the kill: {starts:?}, {} lost, the last of them started again after {again_ms} ms",
            killed.sent, self.per_second, killed.lost
        );
        for (seconds, started) in &starts {
            // At the end of a step, those of half a second may be on their way, which takes as long on a busy machine.
            // They start in the next step.
            let due = self.per_second * (0.9 * seconds - 0.5);
            assert!(*started as f64 >= due, "{starts:?} of {}/s", self.per_second);
        }
        let bound_ms = (self.lease_s() + 5) * 1_000 + killed.pulse.leeway_ms(killed.killed, self.lease_s());
        assert!(again_ms <= bound_ms, "the last lost job started again after {again_ms} ms");
        killed.end().await;
    }

    /// Kill a runner under full load. The two that are left carry two thirds of it at best: each of their workers
    /// starts one job whenever one ends. The lost jobs go before all that waits, and count as starts here. Those for
    /// which no worker is free within the lease and 5 s have to wait for one.
    async fn at_full_load(self) {
        let killed = self.kill_under_load().await;
        let (job_s, workers) = (i64::try_from(self.job_ms / 1_000).unwrap(), self.workers.parse::<i64>().unwrap());
        assert!(killed.lost * 5 >= workers * 4, "the runner ran {} jobs on {workers} workers", killed.lost);
        let dead: String = sqlx::query_scalar("SELECT MAX(runner) FROM attempts WHERE verdict = 'lost'")
            .fetch_one(&mut killed.tickr.mysql().await)
            .await
            .unwrap();
        let of_others = format!("runner <> '{dead}'");
        // In each step those workers become free that started a job this long before. The runners may have shared the
        // load unevenly, so these need not be the same number in each step.
        let (mut starts, mut free) = (Vec::new(), Vec::new());
        for from in self.steps() {
            starts.push(killed.started("TRUE", from, from + 5).await);
            free.push(killed.started(&of_others, from - job_s, from + 5 - job_s).await);
        }
        let (again_ms, carried) = (killed.again_ms().await, 2.0 * workers as f64 / job_s as f64);
        // First attempts between the second after the last loss was found and the last start of a lost job.
        let overtook = killed
            .tickr
            .count(
                "SELECT COUNT(*) FROM attempts WHERE number = 1 AND started_at > (SELECT MAX(finished_at) \
                 + INTERVAL 1 SECOND FROM attempts WHERE verdict = 'lost') \
                 AND started_at < (SELECT MAX(started_at) FROM attempts WHERE number = 2)",
            )
            .await;
        println!(
            "{} jobs, load {}/s, of which two runners carry {carried:.1}; starts in steps of 5 s after the kill {starts:?}, \
             workers that became free {free:?}; {} lost, the last of them started again after {again_ms} ms, {overtook} \
             others before it",
            killed.sent, self.per_second, killed.lost
        );
        for (started, free) in starts.iter().zip(&free) {
            assert!(*started as f64 >= 0.9 * *free as f64, "{starts:?} starts on {free:?} workers");
        }
        // Each worker starts one job in the time of a job.
        for pair in starts.windows(usize::try_from(job_s / 5).unwrap()) {
            let rate = pair.iter().sum::<i64>() as f64 / job_s as f64;
            assert!(rate >= 0.9 * carried, "{rate:.1} starts/s of {carried:.1}: {starts:?}");
        }
        let bound_s = (self.lease_s() + 5) as f64 + killed.lost as f64 / (0.9 * carried);
        assert!(again_ms as f64 <= bound_s * 1_000.0, "the last lost job started again after {again_ms} ms");
        assert!(overtook * 10 <= killed.lost, "{overtook} others started before the last of {} lost jobs", killed.lost);
        killed.end().await;
    }
}

impl Killed {
    /// Count the attempts with this property that began between these seconds after the kill.
    async fn started(&self, which: &str, from: i64, to: i64) -> i64 {
        let at = format!("CAST('{}' AS DATETIME(6))", self.at);
        let sql = format!(
            "SELECT COUNT(*) FROM attempts WHERE {which} AND started_at >= {at} + INTERVAL {from} SECOND \
             AND started_at < {at} + INTERVAL {to} SECOND"
        );
        self.tickr.count(sql).await
    }

    /// Return the part of the time between these seconds after the kill in which the machine did not stand still. The
    /// runners go on within a second and a half after a stall, also after one that ended shortly before.
    fn ran_within(&self, from: i64, to: i64) -> f64 {
        const GO_ON: Duration = Duration::from_millis(1_500);
        let after = |seconds: i64| self.killed + Duration::from_secs(seconds.unsigned_abs());
        let (from, to) = (after(from), after(to));
        let ran = self.pulse.time_between(from, to);
        let was_still = self.pulse.time_between(from - GO_ON, to) < to - from + GO_ON;
        if was_still { ran.saturating_sub(GO_ON).as_secs_f64() } else { ran.as_secs_f64() }
    }

    /// Return the time from the kill until the last lost job started again, by the clock of MySQL.
    async fn again_ms(&self) -> i64 {
        let sql = "SELECT TIMESTAMPDIFF(MICROSECOND, ?, MAX(a.started_at)) DIV 1000 FROM attempts a \
                   JOIN attempts l ON l.job_id = a.job_id AND l.verdict = 'lost' WHERE a.number = 2";
        sqlx::query_scalar(sql).bind(self.at).fetch_one(&mut self.tickr.mysql().await).await.unwrap()
    }

    /// Check that the loss did nothing else, and stop everything.
    async fn end(self) {
        let Self { tickr, mut runners, .. } = self;
        let again = tickr.count("SELECT COUNT(*) FROM attempts WHERE verdict = 'lost' AND number > 1").await;
        assert_eq!((again, tickr.count(CHILDREN).await), (0, 0), "a loss led to more than running again");
        tickr.assert_sound().await;
        for runner in &runners[1..] {
            runner.signal("TERM");
        }
        for runner in &mut runners[1..] {
            assert_eq!(runner.exit_code().await, Some(0));
        }
        tickr.stop().await;
    }
}

async fn clock(tickr: &TestApp) -> chrono::NaiveDateTime {
    sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)").fetch_one(&mut tickr.mysql().await).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn killing_one_of_three_half_loaded_runners_slows_the_others_by_nothing() {
    // A machine that stands still must not end the leases of those that live.
    let (before, after) = (Duration::from_secs(3), Duration::from_secs(15));
    let one = OneOfThree { workers: "16", lease: "6s", job_ms: 2_000, per_second: 12.0, before, after };
    one.at_half_load().await;
}

/// Run by hand: `cargo test --test suite -- --ignored --test-threads 1 poison::`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the machine for itself; the suite has a smaller one"]
async fn killing_one_of_three_runners_of_128_workers_slows_the_others_by_nothing() {
    let (before, after) = (Duration::from_secs(10), Duration::from_secs(30));
    let one = OneOfThree { workers: "128", lease: "5s", job_ms: 500, per_second: 368.0, before, after };
    one.at_half_load().await;
}

/// Run by hand: `cargo test --test suite -- --ignored --test-threads 1 poison::`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the machine for itself; the suite has a smaller one"]
async fn killing_one_of_three_runners_with_long_jobs_slows_the_others_by_nothing() {
    // Three runners of 256 workers carry 77 of these jobs a second. This is half of it.
    let (before, after) = (Duration::from_secs(20), Duration::from_secs(30));
    let one = OneOfThree { workers: "256", lease: "5s", job_ms: 10_000, per_second: 38.0, before, after };
    one.at_half_load().await;
}

/// Run by hand: `cargo test --test suite -- --ignored --test-threads 1 poison::`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the machine for itself; the suite has a smaller one, with half of the load"]
async fn killing_one_of_three_fully_loaded_runners_leaves_what_two_can_carry_and_lost_jobs_go_first() {
    // Three runners of 256 workers carry 77 of these jobs a second, and two carry 51.
    let (before, after) = (Duration::from_secs(20), Duration::from_secs(30));
    let one = OneOfThree { workers: "256", lease: "5s", job_ms: 10_000, per_second: 77.0, before, after };
    one.at_full_load().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn suspects_run_in_processes_of_their_own_beside_ordinary_work() {
    let tickr = bystander().await;
    let mut runner = Runner::start(&tickr, &[("TICKR_WORKERS", "8"), LONG_LEASE]);
    runner.base().await;
    let slow = tickr.enqueue(sleeping(600_000)).await;
    tickr.until(slow, State::Executing).await;
    // The first one runs for longer than the machine may stand still before it is looked at.
    let ids = suspects(&tickr, [8_000, 1_500, 1_500].map(sleeping)).await;
    let child = child_of(&tickr, ids[0]).await;
    // The list of runners shows the process while it is alive.
    let listed = tickr.get("/v1/runners").await.body;
    let listed = listed["data"].as_array().unwrap();
    let shown = listed.iter().find(|runner| runner["pid"] == child).unwrap_or_else(|| panic!("{listed:#?}"));
    let parent = listed.iter().find(|other| other["pid"] == runner.pid()).unwrap();
    assert_eq!((&shown["parent"], &shown["workers"]), (&parent["id"], &json!(0)));
    assert_eq!(parent["parent"], Value::Null);
    // The command line shows no secret, because other users of the host can read it.
    let line = std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap();
    assert_eq!(line, "tickr\0run-suspect\0");
    assert_eq!(std::fs::read_to_string(format!("/proc/{child}/oom_score_adj")).unwrap().trim(), "1000");
    for id in &ids {
        tickr.until(*id, State::Completed).await;
        assert_eq!(since(&tickr, *id).await, ["succeeded"]);
    }
    // Each suspect had a process of its own, which left the list at its end.
    let processes = "SELECT COUNT(DISTINCT a.runner) FROM attempts a JOIN runners r ON r.id = a.runner \
                     WHERE r.parent IS NOT NULL AND r.stopped_at IS NOT NULL";
    tickr.until_count(processes, 3).await;
    let listed = tickr.get("/v1/runners").await.body;
    assert!(listed["data"].as_array().unwrap().iter().all(|runner| runner["parent"].is_null()), "{listed:#}");
    assert_eq!(tickr.job(slow).await["state"], "executing");
    tickr.post(&format!("/v1/jobs/{slow}/cancel"), json!({})).await;
    tickr.until(slow, State::Cancelled).await;
    let url = format!("{}/metrics", runner.base().await);
    eventually("the runner has counted its suspects", || async {
        let metrics = reqwest::get(&url).await.unwrap().text().await.unwrap();
        let ended = "tickr_attempts_total{kind=\"sleep\",verdict=\"succeeded\"} 3";
        (metrics.contains("tickr_suspects_total 3") && metrics.contains(ended)).then_some(())
    })
    .await;
    tickr.assert_sound().await;
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_is_killed_loses_its_attempt_at_once_and_the_third_loss_fails_the_job() {
    let tickr = bystander().await;
    // The lease is so long that no attempt of this test is found by it.
    let mut runner = Runner::start(&tickr, &[("TICKR_LEASE", "60s")]);
    let id = suspect(&tickr, sleeping(600_000)).await;
    let child = child_of(&tickr, id).await;
    send("KILL", child);
    let job = tickr.until(id, State::Failed).await;
    assert_eq!(
        job["last_error"],
        "its process was killed by signal 9 (SIGKILL), which the kernel also uses when memory runs out"
    );
    let ran_ms = last_attempt_ms(&tickr, id).await;
    assert!(ran_ms < 20_000, "found after {ran_ms} ms");
    tickr.until_count("SELECT COUNT(*) FROM runners WHERE parent IS NOT NULL AND stopped_at IS NULL", 0).await;
    assert!(!runner.has_ended());
    tickr.assert_sound().await;
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_whose_runner_is_killed_gives_its_job_back_and_ends() {
    let tickr = bystander().await;
    let mut first = Runner::start(&tickr, &[("TICKR_LEASE", "5s")]);
    let ids = suspects(&tickr, [sleeping(600_000), job("sleep", &json!({"ms": 600_000, "stubborn": true}))]).await;
    let children = [child_of(&tickr, ids[0]).await, child_of(&tickr, ids[1]).await];
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    first.kill9();
    let killed = clock(&tickr).await;
    for child in children {
        until_gone(child).await;
    }
    for id in &ids {
        tickr.until_attempts(*id, 3).await;
        assert_eq!(since(&tickr, *id).await, ["interrupted"]);
    }
    let sql = "SELECT TIMESTAMPDIFF(MICROSECOND, ?, MAX(finished_at)) DIV 1000 FROM attempts";
    let found_ms: i64 = sqlx::query_scalar(sql).bind(killed).fetch_one(&mut tickr.mysql().await).await.unwrap();
    // Found by the lease alone, it would take the lease plus five seconds.
    assert!(found_ms < 10_000 + pulse.leeway_ms(began, 0), "given back after {found_ms} ms");
    let stopped = "SELECT COUNT(*) FROM attempts WHERE error = 'its process was stopped and gave the job back'";
    assert_eq!(tickr.count(stopped).await, 2);
    // No attempt is used up, and the jobs are suspects as before.
    let as_before = "SELECT COUNT(*) FROM owed WHERE losses = 2 AND attempt - spared = 2 AND state = 'waiting'";
    assert_eq!(tickr.count(as_before).await, 2, "{:?}", tickr.job(ids[0]).await);
    tickr.sql("UPDATE jobs SET payload = '{\"ms\": 10}'").await;
    let mut second = Runner::start(&tickr, &[("TICKR_LEASE", "5s")]);
    for id in &ids {
        tickr.until(*id, State::Completed).await;
        assert_eq!(since(&tickr, *id).await, ["interrupted", "succeeded"]);
    }
    assert_eq!(tickr.count(CHILDREN).await, 4);
    tickr.assert_sound().await;
    second.signal("TERM");
    assert_eq!(second.exit_code().await, Some(0));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_and_its_children_that_die_together_are_found_by_their_leases() {
    let tickr = bystander().await;
    let mut first = Runner::start(&tickr, &[("TICKR_LEASE", "2s")]);
    let id = suspect(&tickr, sleeping(600_000)).await;
    let child = child_of(&tickr, id).await;
    // A runner that is stopped does not see that its child dies. A child that is stopped would be woken by the system as
    // soon as its runner is dead.
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    first.signal("STOP");
    send("KILL", child);
    let killed = clock(&tickr).await;
    first.kill9();
    tickr.until(id, State::Failed).await;
    let sql = "SELECT TIMESTAMPDIFF(MICROSECOND, ?, MAX(finished_at)) DIV 1000 FROM attempts";
    let found_ms: i64 = sqlx::query_scalar(sql).bind(killed).fetch_one(&mut tickr.mysql().await).await.unwrap();
    assert!(found_ms < 7_000 + pulse.leeway_ms(began, 2), "found after {found_ms} ms");
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_that_runs_can_be_cancelled() {
    let tickr = bystander().await;
    let mut runner = Runner::start(&tickr, &[LONG_LEASE]);
    let id = suspect(&tickr, sleeping(600_000)).await;
    let child = child_of(&tickr, id).await;
    assert_eq!(tickr.post(&format!("/v1/jobs/{id}/cancel"), json!({})).await.status, 202);
    tickr.until(id, State::Cancelled).await;
    until_gone(child).await;
    assert_eq!(since(&tickr, id).await, ["cancelled"]);
    tickr.assert_sound().await;
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_of_a_paused_queue_or_of_one_at_its_limit_is_not_started() {
    let tickr = bystander().await;
    let queue = |name: &str, mut job: Value| {
        job["queue"] = json!(name);
        job
    };
    set_limit(&tickr, "narrow").await;
    assert_eq!(tickr.post("/v1/queues/still/pause", json!({})).await.status, 200);
    // A runner reads the settings before it takes jobs.
    let env = [("TICKR_QUEUES", "still,narrow,open"), ("TICKR_WORKERS", "8"), LONG_LEASE];
    let mut runner = Runner::start(&tickr, &env);
    runner.base().await;
    let holder = tickr.enqueue(queue("narrow", sleeping(600_000))).await;
    tickr.until(holder, State::Executing).await;
    let still = suspect(&tickr, queue("still", sleeping(10))).await;
    let second = suspect(&tickr, queue("narrow", sleeping(8_000))).await;
    // Jobs of other queues still run, including suspects.
    let open = suspect(&tickr, queue("open", sleeping(10))).await;
    tickr.until(open, State::Completed).await;
    let after = tickr.enqueue(queue("open", sleeping(1_000))).await;
    tickr.until(after, State::Completed).await;
    assert_eq!(tickr.count(CHILDREN).await, 1, "a suspect was started that may not be");
    for id in [still, second] {
        assert_eq!(tickr.job(id).await["state"], "retrying");
    }
    // The running suspect holds the only permit.
    tickr.post(&format!("/v1/jobs/{holder}/cancel"), json!({})).await;
    child_of(&tickr, second).await;
    let third = tickr.enqueue(queue("narrow", sleeping(10))).await;
    tickr.until(third, State::Completed).await;
    let both = "SELECT COUNT(*) FROM attempts a JOIN attempts b ON a.job_id < b.job_id AND a.started_at < b.finished_at \
                AND b.started_at < a.finished_at JOIN jobs i ON i.id = a.job_id JOIN jobs j ON j.id = b.job_id \
                WHERE i.queue = 'narrow' AND j.queue = 'narrow' AND 'gone/1-abcdef' NOT IN (a.runner, b.runner)";
    assert_eq!(tickr.count(both).await, 0, "two ran at once");
    assert_eq!(tickr.post("/v1/queues/still/resume", json!({})).await.status, 200);
    tickr.until(still, State::Completed).await;
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_keeps_the_permit_of_its_queue_while_its_runner_stands_still() {
    let tickr = bystander().await;
    set_limit(&tickr, "narrow").await;
    let narrow = |ms: u64| {
        let mut job = sleeping(ms);
        job["queue"] = json!("narrow");
        job
    };
    // A machine that stands still must not end this lease.
    let env = [("TICKR_QUEUES", "narrow"), ("TICKR_LEASE", "8s")];
    let mut holder = Runner::start(&tickr, &env);
    // The job takes longer than its runner may be suspended before others take its permits: a lease and four seconds.
    let long = suspect(&tickr, narrow(17_000)).await;
    child_of(&tickr, long).await;
    let mut other = Runner::start(&tickr, &env);
    let second = tickr.enqueue(narrow(10)).await;
    holder.signal("STOP");
    tickr.until(long, State::Completed).await;
    // Now the permit is free, though its runner is still suspended.
    tickr.until(second, State::Completed).await;
    assert_eq!(since(&tickr, long).await, ["succeeded"]);
    let between = "SELECT TIMESTAMPDIFF(MICROSECOND, MAX(a.finished_at), MAX(b.started_at)) FROM attempts a, attempts b \
                   WHERE a.job_id = ? AND b.job_id = ?";
    let between_us: i64 = sqlx::query_scalar(between)
        .bind(long.uuid())
        .bind(second.uuid())
        .fetch_one(&mut tickr.mysql().await)
        .await
        .unwrap();
    assert!(between_us > 0, "the other runner started its job {} ms before the suspect had ended", -between_us / 1_000);
    holder.signal("CONT");
    for runner in [&mut holder, &mut other] {
        runner.signal("TERM");
        assert_eq!(runner.exit_code().await, Some(0));
    }
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_runner_gives_the_only_permit_up_when_its_suspect_ends() {
    let tickr = bystander().await;
    set_limit(&tickr, "narrow").await;
    let narrow = |ms: u64| {
        let mut job = sleeping(ms);
        job["queue"] = json!("narrow");
        job
    };
    // A machine that is busy with other tests keeps this lease, and one that stands still does not end it.
    let env = [("TICKR_QUEUES", "narrow"), ("TICKR_LEASE", "8s")];
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    let mut holder = Runner::start(&tickr, &env);
    // It takes longer than a lease and four seconds.
    let long = suspect(&tickr, narrow(17_000)).await;
    child_of(&tickr, long).await;
    let id: String = sqlx::query_scalar("SELECT parent FROM runners WHERE parent IS NOT NULL AND stopped_at IS NULL")
        .fetch_one(&mut tickr.mysql().await)
        .await
        .unwrap();
    let path = format!("/v1/runners/{}", id.replace('/', "%2F"));
    let drained = tickr.post(&format!("{path}/drain"), json!({"reason": "a deploy"})).await;
    assert_eq!(drained.status, 200, "{:#}", drained.body);
    let mut other = Runner::start(&tickr, &env);
    let next = tickr.enqueue_many([narrow(10), narrow(10)]).await;
    tickr.until(long, State::Completed).await;
    for id in &next {
        tickr.until(*id, State::Completed).await;
        assert_eq!(tickr.verdicts(*id).await, ["succeeded"]);
    }
    assert_eq!(since(&tickr, long).await, ["succeeded"]);
    // The time from the end of the suspect to the start of the next job, by the clock of MySQL.
    let free = "SELECT TIMESTAMPDIFF(MICROSECOND, l.finished_at, MIN(a.started_at)) DIV 1000 FROM attempts l, attempts a \
                WHERE l.job_id = ? AND l.verdict = 'succeeded' AND a.job_id <> l.job_id GROUP BY l.finished_at";
    let free_ms: i64 = sqlx::query_scalar(free).bind(long.uuid()).fetch_one(&mut tickr.mysql().await).await.unwrap();
    println!("the permit of the suspect was used again after {free_ms} ms");
    assert!(free_ms >= 0 && free_ms < 4_000 + pulse.leeway_ms(began, 0), "{free_ms} ms");
    // Nothing is left on the drained runner, neither a job nor a permit, and it stops at once.
    eventually("the drained runner is idle", || async {
        let runner = tickr.get(&path).await.body;
        (runner["state"] == "draining" && runner["busy_workers"] == 0).then_some(())
    })
    .await;
    let mut mysql = tickr.mysql().await;
    let kept: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM queue_permits WHERE runner = ? AND permits > 0")
        .bind(&id)
        .fetch_one(&mut mysql)
        .await
        .unwrap();
    assert_eq!(kept, 0);
    let stopped = Instant::now();
    for runner in [&mut holder, &mut other] {
        runner.signal("TERM");
        assert_eq!(runner.exit_code().await, Some(0));
    }
    pulse.assert_within(Duration::from_secs(10), stopped, "both stop");
    tickr.stop().await;
}

async fn set_limit(tickr: &TestApp, queue: &str) {
    let url = tickr.url(&format!("/v1/queues/{queue}"));
    let set = http().patch(url).json(&json!({"concurrency": 1})).send().await.unwrap();
    assert!(set.status().is_success(), "{}", set.text().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_suspects_does_not_starve_ordinary_work() {
    let tickr = bystander().await;
    let flood = suspects(&tickr, (0..80).map(|_| sleeping(500))).await;
    // They last for longer than a busy machine needs to start the process of a suspect.
    tickr.enqueue_many((0..100).map(|_| sleeping(150))).await;
    let mut runner = Runner::start(&tickr, &[("TICKR_WORKERS", "4"), LONG_LEASE]);
    tickr.until_count("SELECT COUNT(*) FROM owed WHERE losses = 0", 0).await;
    let left = tickr.count("SELECT COUNT(*) FROM owed WHERE losses = 2").await;
    println!("{left} of {} suspects left when the last ordinary job was done", flood.len());
    assert!(left > 40, "the suspects went first");
    assert!(left < 80, "no suspect ran");
    let at_once = tickr.count("SELECT COUNT(*) FROM owed WHERE losses = 2 AND state = 'executing'").await;
    assert!(at_once <= 2, "{at_once} at once of 4 workers");
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0));
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_eats_all_memory_kills_its_process_and_not_its_runner() {
    let tickr = bystander().await;
    // The limit leaves room for the runner and some gigabytes more, for it and for each of its children.
    let mut runner = Runner::start_limited(&tickr, 8 << 20, &[LONG_LEASE]);
    let neighbour = tickr.enqueue(sleeping(600_000)).await;
    tickr.until(neighbour, State::Executing).await;
    let id = suspect(&tickr, job("hoard", &json!({"mib": 16_384}))).await;
    let ended = tickr.until(id, State::Failed).await;
    assert_eq!(since(&tickr, id).await, ["lost"]);
    assert_eq!(ended["last_error"], "its process was killed by signal 6 (SIGABRT)");
    assert!(!runner.has_ended());
    assert_eq!(tickr.verdicts(neighbour).await, ["open"]);
    tickr.post(&format!("/v1/jobs/{neighbour}/cancel"), json!({})).await;
    tickr.until(neighbour, State::Cancelled).await;
    tickr.assert_sound().await;
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_gives_suspects_the_grace_and_gives_back_what_does_not_finish() {
    let tickr = bystander().await;
    // The grace is longer than the last job and a stall of the machine.
    let env = [("TICKR_SHUTDOWN_GRACE", "12s"), ("TICKR_WORKERS", "16"), LONG_LEASE];
    let mut runner = Runner::start(&tickr, &env);
    let ids = suspects(&tickr, [sleeping(600_000), job("sleep", &json!({"ms": 600_000, "stubborn": true}))]).await;
    let children = [child_of(&tickr, ids[0]).await, child_of(&tickr, ids[1]).await];
    let quick = suspect(&tickr, sleeping(6_000)).await;
    let third = child_of(&tickr, quick).await;
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0));
    for child in children.into_iter().chain([third]) {
        assert!(!lives(child), "process {child} outlived its runner");
    }
    assert_eq!(since(&tickr, quick).await, ["succeeded"]);
    for id in &ids {
        assert_eq!(since(&tickr, *id).await, ["interrupted"]);
    }
    let unburned = "SELECT COUNT(*) FROM owed WHERE attempt - spared = 2 AND state = 'waiting'";
    assert_eq!(tickr.count(unburned).await, 2);
    // The handlers were told to stop: one gave its job back at once, and the stubborn one was given two seconds.
    // Processes that are not told are killed, both at the same time.
    let apart = "SELECT TIMESTAMPDIFF(MICROSECOND, MIN(finished_at), MAX(finished_at)) DIV 1000 FROM attempts \
                 WHERE verdict = 'interrupted'";
    let apart = tickr.count(apart).await;
    // A stall of the machine may take the two seconds.
    let stalled = pulse.stalled_since(began);
    assert!(apart > 500 || !stalled.is_zero(), "given back {apart} ms apart");
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binary_with_kinds_of_its_own_runs_its_suspects_in_processes_too() {
    let tickr = bystander().await;
    let program: PathBuf = crate::support::program::example("own_kind").await;
    let mut runner = Runner::start_program(&tickr, &program, &[]);
    runner.base().await;
    let job = job("sleep", &json!({"ms": 10}));
    let id = suspect(&tickr, job).await;
    tickr.until(id, State::Completed).await;
    assert_eq!(tickr.count(CHILDREN).await, 1);
    runner.signal("TERM");
    assert_eq!(runner.exit_code().await, Some(0));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_processes_suspects_run_one_at_a_time_beside_ordinary_work() {
    let tickr = TestApp::start_with(|config| config.workers = 8, Registry::new()).await;
    let neighbour = tickr.enqueue(sleeping(600_000)).await;
    tickr.until(neighbour, State::Executing).await;
    let ids = suspects(&tickr, (0..3).map(|_| sleeping(200))).await;
    tickr.enqueue_many((0..30).map(|_| sleeping(100))).await;
    for id in &ids {
        tickr.until(*id, State::Completed).await;
        assert_eq!(since(&tickr, *id).await, ["succeeded"]);
    }
    let mut mysql = tickr.mysql().await;
    for (place, id) in ids.iter().enumerate() {
        for other in &ids[place + 1..] {
            let sql = "SELECT COUNT(*) FROM attempts a JOIN attempts b ON a.started_at < b.finished_at \
                       AND b.started_at < a.finished_at WHERE a.job_id = ? AND b.job_id = ?";
            let both: i64 =
                sqlx::query_scalar(sql).bind(id.uuid()).bind(other.uuid()).fetch_one(&mut mysql).await.unwrap();
            assert_eq!(both, 0, "two suspects ran at once");
        }
    }
    assert_eq!(tickr.job(neighbour).await["state"], "executing");
    tickr.post(&format!("/v1/jobs/{neighbour}/cancel"), json!({})).await;
    tickr.until_idle().await;
    tickr.assert_sound().await;
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_gives_suspects_back_that_wait_for_their_turn() {
    let tickr = bystander().await;
    let busy = |config: &mut Config| {
        (config.workers, config.queues) = (2, vec!["default".into()]);
        config.shutdown_grace = Duration::ZERO;
    };
    let runner = tickr.another_with(busy, Registry::new()).await;
    // This job has the only worker for suspects.
    let first = suspect(&tickr, sleeping(600_000)).await;
    tickr.until(first, State::Executing).await;
    let ids = suspects(&tickr, (0..8).map(|_| sleeping(10))).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (pulse, began) = (Pulse::start(&tickr).await, Instant::now());
    runner.stop(CancellationToken::new()).await;
    pulse.assert_within(Duration::from_secs(5), began, "the stop");
    assert_eq!(tickr.count("SELECT COUNT(*) FROM owed WHERE state IN ('waiting', 'retrying')").await, 9);
    tickr.post(&format!("/v1/jobs/{first}/cancel"), json!({})).await;
    let mut second = Runner::start(&tickr, &[("TICKR_WORKERS", "16")]);
    for id in ids {
        tickr.until(id, State::Completed).await;
        assert_eq!(since(&tickr, id).await, ["succeeded"]);
    }
    tickr.assert_sound().await;
    second.signal("TERM");
    assert_eq!(second.exit_code().await, Some(0));
    tickr.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_suspects_wait_for_room_without_spinning() {
    let tickr = TestApp::start_alone(|own| own.redis().kill9().unwrap(), |config| config.workers = 4).await;
    let first = suspect(&tickr, sleeping(600_000)).await;
    tickr.until(first, State::Executing).await;
    let second = suspect(&tickr, sleeping(10)).await;
    let mut mysql = tickr.mysql().await;
    let mut asked = async || -> u64 {
        let row: (String, String) =
            sqlx::query_as("SHOW GLOBAL STATUS LIKE 'Questions'").fetch_one(&mut mysql).await.unwrap();
        row.1.parse().unwrap()
    };
    let (before, began) = (asked().await, Instant::now());
    tokio::time::sleep(Duration::from_secs(3)).await;
    let per_second = (asked().await - before) as f64 / began.elapsed().as_secs_f64();
    println!("{per_second:.0} questions/s");
    assert!(per_second < 200.0, "{per_second} questions/s");
    // Ordinary jobs overtake the waiting suspect.
    let ordinary = tickr.enqueue(sleeping(10)).await;
    tickr.until(ordinary, State::Completed).await;
    assert_eq!(tickr.job(second).await["state"], "retrying");
    tickr.post(&format!("/v1/jobs/{first}/cancel"), json!({})).await;
    tickr.until(second, State::Completed).await;
    tickr.redis_stays_out();
    tickr.stop().await;
}
