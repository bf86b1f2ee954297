//! Scenario `graphs`: three runners work off random graphs of jobs with three parents each, and no job may start before
//! the ends of its parents. Then they work off jobs without parents beside a graph that waits; the figure beside that is
//! the one without the graph, in the same run.

use std::collections::{HashMap, HashSet};

use rand::Rng as _;

use super::batches::{RUNNERS, WORKERS, insert_linked, without_links};
use super::drain;
use super::environment::{RunChecks, RunEnvironment, rate, stop_all};
use super::figure::Target;
use super::load::{jobs, payload};
use super::result_row::{ResultRow, Samples};
use super::{Bench, BenchError, Scenario};
use crate::job::{Due, JobId, NewJob, OnParentFailure};

/// Number of parents of each job that has enough jobs before it.
const PARENTS: usize = 3;
/// The parents of a job are among so many jobs before it. So a graph has hundreds of layers, and each layer is narrow.
const NEAR: usize = 64;

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let (linked, many) = (bench.jobs(10_000, 300), bench.jobs(100_000, 2_000));
    let (mut graph, mut beside) = (Samples::default(), Samples::default());
    for round in bench.rounds() {
        bench.progress.step("a random graph", round);
        let (rate, checked) = work_off(bench, round.share_of(linked)).await?;
        bench.progress.step("jobs without parents", round);
        let count = round.share_of(many);
        let (plain, plain_checked) = without_links(bench, count).await?;
        bench.progress.step("jobs without parents, beside a graph", round);
        let (rate_beside, beside_checked) = beside_a_graph(bench, count, round.share_of(linked)).await?;
        if round.counts() {
            graph.product(rate, linked, checked);
            beside.bare(plain, plain_checked);
            beside.product(rate_beside, count, beside_checked);
        }
    }
    Ok(vec![
        graph.line(Scenario::Graphs, format!("random graph, {PARENTS} parents each, no inversion"), "jobs/s", &[]),
        beside.line(
            Scenario::Graphs,
            format!("drain, noop, {RUNNERS} runners of {WORKERS}, a graph waits, beside none"),
            "jobs/s",
            &[Target::relative_to_bare(0.98)],
        ),
    ])
}

/// Make jobs of which each has random parents among those before it. The first ones are due at `first`.
fn random_graph(bench: &Bench<'_>, count: u64, first: Due) -> Result<Vec<NewJob>, BenchError> {
    let mut made = jobs(count, &payload(bench.settings.payload_bytes)?, |_| Due::Now)?;
    let ids: Vec<JobId> = made.iter().map(|job| job.id).collect();
    for (at, job) in made.iter_mut().enumerate() {
        let before = &ids[at.saturating_sub(NEAR)..at];
        let mut parents = HashSet::new();
        while parents.len() < PARENTS.min(before.len()) {
            parents.insert(before[rand::rng().random_range(0..before.len())]);
        }
        if parents.is_empty() {
            job.due = first;
        }
        job.options.after = parents.into_iter().collect();
        job.options.on_parent_failure = OnParentFailure::Run;
    }
    Ok(made)
}

/// Work off a graph. Return the rate. A job that started before the end of a parent fails the check.
async fn work_off(bench: &Bench<'_>, count: u64) -> Result<(f64, RunChecks), BenchError> {
    let mut stage = RunEnvironment::open(bench).await?;
    let graph = random_graph(bench, count, Due::Now)?;
    let parents: HashMap<JobId, Vec<JobId>> = graph.iter().map(|job| (job.id, job.options.after.clone())).collect();
    insert_linked(&stage, graph).await?;
    let apps = stage.apps(RUNNERS, WORKERS).await?;
    let ended = stage.until_ended(count).await?;
    stop_all(apps).await;
    let spans = stage.counter_connection.spans(stage.first).await?;
    let ends: HashMap<JobId, _> = spans.iter().map(|(id, _, end)| (*id, *end)).collect();
    let is_early = |id: &JobId, start| {
        let of = parents.get(id).into_iter().flatten();
        of.into_iter().any(|parent| ends.get(parent).is_none_or(|end| *end > start))
    };
    let inversions = spans.iter().filter(|(id, start, _)| is_early(id, *start)).count();
    let (_, started) = stage.counter_connection.beginnings(stage.first).await?;
    let mut checked = stage.check(count, 0).await?;
    checked.exactly_once &= inversions == 0;
    let measured = (rate(count, started, ended)?, checked);
    stage.close().await?;
    Ok(measured)
}

/// Work off jobs without parents while a graph waits for its first jobs, which are due in a day.
async fn beside_a_graph(bench: &Bench<'_>, count: u64, linked: u64) -> Result<(f64, RunChecks), BenchError> {
    let mut stage = RunEnvironment::open(bench).await?;
    insert_linked(&stage, random_graph(bench, linked, Due::After(std::time::Duration::from_secs(86_400)))?).await?;
    drain::fill(bench, &stage, count).await?;
    let apps = stage.apps(RUNNERS, WORKERS).await?;
    let ended = stage.until_ended(count).await?;
    stop_all(apps).await;
    let (_, started) = stage.counter_connection.beginnings(stage.first).await?;
    let measured = (rate(count, started, ended)?, stage.check(count, linked).await?);
    stage.close().await?;
    Ok(measured)
}
