//! Scenario `rebuild`: fill an index that has lost everything. The time is taken from the new epoch to the end of the
//! rebuild. For comparison, pipelined ZADDs of the same entries, without reads from MySQL.

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use tokio::sync::broadcast::error::RecvError;

use super::environment::{RunChecks, RunEnvironment, rate_of, stop, until_whole};
use super::figure::Target;
use super::load::{LANES, insert_bare, jobs, payload};
use super::result_row::{ResultRow, Samples};
use super::{Bench, BenchError, Scenario};
use crate::event::Event;
use crate::index::{Entry, Index, Lane as ReadyLine};
use crate::job::Due;

/// Time limit of a rebuild.
const LIMIT: Duration = Duration::from_secs(120);

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let all = bench.jobs(300_000, 3_000);
    let mut samples = Samples::default();
    for round in bench.rounds() {
        let jobs = round.share_of(all);
        bench.progress.step("a runner feeds the index", round);
        let (sample, bare, checked) = once(bench, jobs).await?;
        if round.counts() {
            samples.bare(bare, RunChecks::default());
            samples.product(sample, jobs, checked);
        }
    }
    Ok(vec![samples.line(Scenario::Rebuild, "rebuild of the index", "jobs/s", &[Target::at_least(200_000.0)])])
}

/// Measure one run. Return jobs per second of the product and of bare ZADDs.
async fn once(bench: &Bench<'_>, count: u64) -> Result<(f64, f64, RunChecks), BenchError> {
    let mut stage = RunEnvironment::open(bench).await?;
    // All jobs are within the horizon, and none is due before the end of the run.
    let due = stage.store.clock().now() + TimeDelta::minutes(8);
    let spread = |number: u64| TimeDelta::milliseconds(i64::try_from(number % 300_000).unwrap_or(0));
    let jobs = jobs(count, &payload(bench.settings.payload_bytes)?, |number| Due::At(due + spread(number)))?;
    let entry = |(number, job): (usize, &crate::job::NewJob)| Entry {
        id: job.id,
        line: ReadyLine::new(&job.queue, job.priority),
        execute_at: due + spread(number as u64),
    };
    let entries: Vec<Entry> = jobs.iter().enumerate().map(entry).collect();
    insert_bare(stage.lanes(LANES).await?, jobs).await?;

    // The bare ZADDs use the same Redis keys, before a runner uses them.
    let index = stage.index()?;
    let mut bare = index.bare().await?;
    let began = Instant::now();
    let added = bare.add_all(&entries).await?;
    let by_bare = began.elapsed();
    index.forget().await?;

    let app = stage.app().await?;
    until_whole(&app).await?;
    let rebuilt_at = || app.index().health().status().last.map(|rebuilt| rebuilt.at);
    let (mut events, first) = (app.broker().events().listen(), rebuilt_at());
    index.forget().await?;
    let began = until_begun(&index).await?;
    let rebuilt = async {
        loop {
            match events.recv().await {
                // The event of the first rebuild may come late.
                Ok(Event::Rebuilt { .. }) if rebuilt_at() > first => return Ok(began.elapsed()),
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return Err(BenchError::Failed("the runner ended".to_owned())),
            }
        }
    };
    let late = |_| BenchError::Failed(format!("the index is not rebuilt after {} s", LIMIT.as_secs()));
    let elapsed = tokio::time::timeout(LIMIT, rebuilt).await.map_err(late)??;
    let (scheduled, _) = index.depth(&[]).await?;
    stop(app).await;
    let mut checked = stage.check(0, count).await?;
    checked.exactly_once &= scheduled as u64 == count && added as u64 == count;
    stage.close().await?;
    Ok((rate_of(count, elapsed), rate_of(count, by_bare), checked))
}

/// Wait until a runner has noticed that the index is empty. A rebuild starts with a new epoch.
async fn until_begun(index: &Index) -> Result<Instant, BenchError> {
    let asked = Instant::now();
    while asked.elapsed() < LIMIT {
        if index.is_whole().await? {
            return Ok(Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Err(BenchError::Failed("no runner noticed that the index is empty".to_owned()))
}
