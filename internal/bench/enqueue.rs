//! Scenario `enqueue`: enqueue jobs one by one, with callers of the library (by default 32), and with single POSTs over
//! several connections (by default 64). For comparison, the bare store inserts the same rows by multi-row statements.

use serde_json::json;

use super::environment::{RunChecks, RunEnvironment, rate_of, stop, until_whole};
use super::figure::Target;
use super::load::{KIND, LANES, call, insert_bare, jobs, payload, post};
use super::result_row::{ResultRow, Samples};
use super::wire::EncodedRequest;
use super::{Bench, BenchError, Scenario};
use crate::job::Due;

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let (called, posted) = (bench.jobs(200_000, 1_000), bench.jobs(100_000, 500));
    let (mut library, mut http) = (Samples::default(), Samples::default());
    for round in bench.rounds() {
        let (called, posted) = (round.share_of(called), round.share_of(posted));
        bench.progress.step("bare inserts", round);
        let (bare, bare_checked) = bare(bench, called).await?;
        bench.progress.step("one by one, library and POST", round);
        let ([by_call, by_post], checked) = Box::pin(product(bench, called, posted)).await?;
        if round.counts() {
            library.bare(bare, bare_checked);
            http.bare(bare, RunChecks::default());
            library.product(by_call, called, checked);
            http.product(by_post, posted, checked.counted_before());
        }
    }
    let callers = format!("enqueue, library, {} callers", bench.settings.callers);
    let connections = format!("enqueue, POST, {} connections", bench.settings.connections);
    Ok(vec![
        library.line(Scenario::Enqueue, callers, "jobs/s", &[Target::at_least(25_000.0)]),
        http.line(Scenario::Enqueue, connections, "jobs/s", &[Target::at_least(10_000.0)]),
    ])
}

/// Bare inserts of this many jobs, in jobs per second.
pub(super) async fn bare(bench: &Bench<'_>, count: u64) -> Result<(f64, RunChecks), BenchError> {
    let mut stage = RunEnvironment::open(bench).await?;
    let jobs = jobs(count, &payload(bench.settings.payload_bytes)?, |_| Due::Now)?;
    let elapsed = insert_bare(stage.lanes(LANES).await?, jobs).await?;
    let checked = stage.check(0, count).await?;
    stage.close().await?;
    Ok((rate_of(count, elapsed), checked))
}

async fn product(bench: &Bench<'_>, called: u64, posted: u64) -> Result<([f64; 2], RunChecks), BenchError> {
    let payload = payload(bench.settings.payload_bytes)?;
    let mut stage = RunEnvironment::open(bench).await?;
    let app = stage.app_without_work().await?;
    until_whole(&app).await?;
    let by_call = call(app.broker(), bench.settings.callers, called, &payload).await?;
    let body = json!({"kind": KIND, "payload": payload}).to_string();
    let by_post = post(app.addr(), bench.settings.connections, posted, EncodedRequest::new("/v1/jobs", &body)).await?;
    // The measured part is over. The accepted jobs are still worked off, to check that each of them exists once.
    let (worked_off, ()) = tokio::join!(stage.work_off(called + posted), stop(app));
    worked_off?;
    let checked = stage.check(called + posted, 0).await?;
    stage.close().await?;
    Ok(([rate_of(called, by_call), rate_of(posted, by_post)], checked))
}
