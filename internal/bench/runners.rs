//! Scenario `runners`: 1 to 32 runners of 64 workers each on one store. For each number of runners the rows show how fast
//! they work off a backlog and what MySQL does for it, how late jobs start, and how much all of them ask the servers
//! while there is no work. The jobs of the backlog are due at one moment, when all runners have started: none of them
//! works alone before. All runners live in the process of the bench and share its cores. As processes of their own
//! they would need their own memory in addition, and nothing else.

use std::time::Duration;

use super::batches::WORKERS;
use super::environment::{RunChecks, RunEnvironment, rate, stop_all, until_whole};
use super::idle::{RequestWatch, Requests};
use super::lateness::{Shape, measure};
use super::load::{LANES, insert_bare, jobs, payload};
use super::result_row::{ResultRow, Samples, deadlocks};
use super::{Bench, BenchError, Repetition, Scenario};
use crate::job::{Due, ceil_ms};
use crate::store::{BareLane, ServerCounters};

/// Numbers of runners.
const SIZES: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// How many of these a short run measures.
const SHORT_SIZES: usize = 2;
/// Jobs that become due in a second while lateness is measured, and most such jobs. They come at their rate, so a larger
/// number only takes longer.
const PER_SECOND: u64 = 100;
const MAX_DUE: u64 = 2_000;
/// Time before the due time at which the counters of the server are read. The runners have no work then.
const JUST_BEFORE: Duration = Duration::from_millis(100);
/// An estimate of the commits of the start of a runner, one after the other. If it is too low, the backlog is made once
/// more.
const COMMITS_OF_A_START: u32 = 10;

/// The numbers of runners that a run measures.
pub(super) fn sizes(short: bool) -> &'static [usize] {
    if short { &SIZES[..SHORT_SIZES] } else { &SIZES }
}

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let mut rows = Vec::new();
    for runners in sizes(bench.settings.short) {
        rows.extend(Box::pin(of_backlog(bench, *runners)).await?);
        let shape = Shape {
            name: format!("lateness, {PER_SECOND}/s, {}", named(*runners)),
            runners: *runners,
            workers: WORKERS,
            jobs: bench.jobs(MAX_DUE, 50).min(bench.pick(MAX_DUE, 50)),
            per_second: PER_SECOND,
            waiting: 0,
            keyed: 0,
            aims: [None, None],
            redis: None,
        };
        rows.extend(Box::pin(measure(bench, Scenario::Runners, &shape)).await?);
    }
    let counted = deadlocks(Scenario::Runners, &rows);
    rows.extend(counted);
    Ok(rows)
}

fn named(runners: usize) -> String {
    format!("{runners} {} of {WORKERS}", if runners == 1 { "runner" } else { "runners" })
}

/// Measure the backlog and the time without work after it.
async fn of_backlog(bench: &Bench<'_>, runners: usize) -> Result<Vec<ResultRow>, BenchError> {
    let jobs = bench.jobs(100_000, 2_000);
    let [mut speed, mut statements, mut commits, mut waits, mut mysql, mut redis] =
        std::array::from_fn(|_| Samples::default());
    let name = format!("drain, noop, {}", named(runners));
    for round in bench.rounds() {
        bench.progress.step(&name, round);
        let WorkedOff { per_second, done, checked, requests } = work_off(bench, runners, round).await?;
        let Some(requests) = requests else { continue };
        speed.product(per_second, jobs, checked);
        let of_thousand = |counted: u64| counted as f64 * 1e3 / jobs as f64;
        let again = checked.counted_before();
        statements.product(of_thousand(done.statements), jobs, again);
        commits.product(of_thousand(done.commits), jobs, again);
        waits.product(of_thousand(done.lock_waits), jobs, again);
        mysql.product(requests.statements_per_second, jobs, again);
        redis.product(requests.commands_per_second, jobs, again);
    }
    let row = |samples: Samples, name: String, unit| samples.line(Scenario::Runners, name, unit, &[]);
    let mut rows = vec![row(speed, name.clone(), "jobs/s")];
    // The server counts the work of all its users.
    if bench.ground.is_private() {
        rows.push(row(statements, format!("{name}, statements to MySQL for 1,000 jobs"), ""));
        rows.push(row(commits, format!("{name}, commits for 1,000 jobs"), ""));
        rows.push(row(waits, format!("{name}, waits for row locks for 1,000 jobs"), ""));
    }
    rows.push(row(mysql, format!("idle, {}, statements to MySQL", named(runners)), "/s"));
    rows.push(row(redis, format!("idle, {}, commands to Redis", named(runners)), "/s"));
    Ok(rows)
}

/// A backlog that the runners have worked off.
struct WorkedOff {
    per_second: f64,
    done: ServerWork,
    checked: RunChecks,
    /// The requests of all runners in a time without work. A warm-up has none.
    requests: Option<Requests>,
}

/// The work of MySQL while the runners worked off a backlog.
struct ServerWork {
    statements: u64,
    commits: u64,
    lock_waits: u64,
}

impl ServerWork {
    fn between(before: &ServerCounters, after: &ServerCounters) -> Self {
        Self {
            statements: after.questions.saturating_sub(before.questions),
            commits: after.commits.saturating_sub(before.commits),
            lock_waits: after.lock_waits.saturating_sub(before.lock_waits),
        }
    }
}

/// Let the runners work off a backlog. On a slow machine they may have started too late for it; then it is made once more,
/// and due later.
async fn work_off(bench: &Bench<'_>, runners: usize, round: Repetition) -> Result<WorkedOff, BenchError> {
    let count = round.share_of(bench.jobs(100_000, 2_000));
    let lead = lead(count, runners, Duration::from_millis(bench.settings.commit_delay_ms));
    for times in [1, 4, 16] {
        if let Some(worked_off) = Box::pin(work_off_after(bench, runners, round, count, lead * times)).await? {
            return Ok(worked_off);
        }
    }
    Err(BenchError::Failed(format!("{} had not started before the jobs were due", named(runners))))
}

/// Return the time that it takes to insert these jobs and then to start the runners, on a small machine.
fn lead(jobs: u64, runners: usize, commit_delay: Duration) -> Duration {
    let runners = u32::try_from(runners).unwrap_or(u32::MAX);
    let groups = jobs.div_ceil(BareLane::FULL as u64 * u64::from(LANES));
    let inserts = Duration::from_micros(30 * jobs) + commit_delay * u32::try_from(groups).unwrap_or(u32::MAX);
    let starts = (Duration::from_millis(150) + commit_delay * COMMITS_OF_A_START) * runners;
    Duration::from_secs(1) + inserts + starts
}

/// Let the runners work off a backlog that is due after `lead`. Return nothing if they had not started by then.
async fn work_off_after(
    bench: &Bench<'_>,
    runners: usize,
    round: Repetition,
    count: u64,
    lead: Duration,
) -> Result<Option<WorkedOff>, BenchError> {
    let mut stage = RunEnvironment::open(bench).await?;
    if bench.ground.is_private() {
        stage.counter_connection.count_commits().await?;
    }
    let begin = ceil_ms(stage.store.clock().now() + lead);
    let backlog = jobs(count, &payload(bench.settings.payload_bytes)?, |_| Due::At(begin))?;
    insert_bare(stage.lanes(LANES).await?, backlog).await?;
    let apps = stage.apps(runners, WORKERS).await?;
    for app in &apps {
        until_whole(app).await?;
    }
    let ahead = (begin - stage.store.clock().now()).to_std().ok();
    let Some(ahead) = ahead.and_then(|ahead| ahead.checked_sub(JUST_BEFORE)) else {
        stop_all(apps).await;
        stage.close().await?;
        return Ok(None);
    };
    tokio::time::sleep(ahead).await;
    let before = stage.counter_connection.counters().await?;
    let ended = stage.until_ended(count).await?;
    let after = stage.counter_connection.counters().await?;
    let requests = if round.counts() { Some(without_work(bench, &mut stage).await?) } else { None };
    stop_all(apps).await;
    let (_, started) = stage.counter_connection.beginnings(stage.first).await?;
    let mut checked = stage.check(count, 0).await?;
    // No job may be early (G7).
    checked.exactly_once &= started.is_some_and(|started| started >= begin);
    let per_second = rate(count, started, ended)?;
    stage.close().await?;
    Ok(Some(WorkedOff { per_second, done: ServerWork::between(&before, &after), checked, requests }))
}

/// Watch the runners while they have no work.
async fn without_work(bench: &Bench<'_>, stage: &mut RunEnvironment<'_>) -> Result<Requests, BenchError> {
    let (settle, window) = bench
        .pick((Duration::from_secs(5), Duration::from_secs(10)), (Duration::from_millis(200), Duration::from_secs(1)));
    let mut index = stage.index()?.bare().await?;
    tokio::time::sleep(settle).await;
    let watch = RequestWatch::begin(stage, &mut index).await?;
    tokio::time::sleep(window).await;
    watch.end(stage, &mut index).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_has_one_runner_and_several() {
        assert_eq!(sizes(true), [1, 2]);
        assert_eq!(sizes(false).last(), Some(&32));
        assert_eq!([named(1), named(2)], ["1 runner of 64", "2 runners of 64"]);
    }

    #[test]
    fn the_jobs_are_due_later_with_more_of_them_more_runners_and_slower_commits() {
        let least = lead(2_000, 1, Duration::ZERO);
        assert!(least > Duration::from_secs(1), "{least:?}");
        for longer in [lead(100_000, 1, Duration::ZERO), lead(2_000, 32, Duration::ZERO)] {
            assert!(longer > least, "{longer:?}");
        }
        // Two groups of four inserts, and ten commits of a start.
        assert_eq!(lead(2_000, 1, Duration::from_millis(10)) - least, Duration::from_millis(120));
    }

    #[test]
    fn the_work_of_the_server_is_the_difference_of_its_counters() {
        let before = ServerCounters { questions: 10, commits: 20, lock_waits: 3, ..ServerCounters::default() };
        let after = ServerCounters { questions: 15, commits: 40, lock_waits: 3, ..ServerCounters::default() };
        let ServerWork { statements, commits, lock_waits } = ServerWork::between(&before, &after);
        assert_eq!((statements, commits, lock_waits), (5, 20, 0));
    }
}
