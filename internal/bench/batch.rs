//! Scenario `batch`: enqueue in batches of at most 500 by POST. For comparison, the bare store inserts the same rows by
//! multi-row statements.

use serde_json::json;

use super::enqueue::bare;
use super::environment::{RunChecks, RunEnvironment, rate_of, stop, until_whole};
use super::figure::Target;
use super::load::{KIND, payload, post};
use super::result_row::{ResultRow, Samples};
use super::wire::EncodedRequest;
use super::{Bench, BenchError, Scenario};

/// Most jobs in one request.
const BATCH: u64 = 500;
/// Most bytes around a payload in a request.
const AROUND: u64 = 64;
/// Most requests at the same time. Each carries hundreds of jobs.
const CONNECTIONS: usize = 8;

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    // Large payloads make smaller batches, because a request has a size limit.
    let batch = BATCH.min((1 << 20) / (bench.settings.payload_bytes as u64 + AROUND)).max(1);
    let requests = |jobs: u64| jobs.div_ceil(batch);
    let all = bench.jobs(300_000, 3_000);
    let mut samples = Samples::default();
    for round in bench.rounds() {
        let jobs = requests(round.share_of(all)) * batch;
        bench.progress.step("bare inserts", round);
        let (bare, bare_checked) = bare(bench, jobs).await?;
        bench.progress.step("batches by POST", round);
        let (sample, checked) = Box::pin(product(bench, requests(jobs), batch)).await?;
        if round.counts() {
            samples.bare(bare, bare_checked);
            samples.product(sample, jobs, checked);
        }
    }
    let name = format!("enqueue, batch POSTs of {batch}");
    Ok(vec![samples.line(Scenario::Batch, name, "jobs/s", &[Target::at_least(60_000.0)])])
}

async fn product(bench: &Bench<'_>, requests: u64, batch: u64) -> Result<(f64, RunChecks), BenchError> {
    let payload = payload(bench.settings.payload_bytes)?;
    let mut stage = RunEnvironment::open(bench).await?;
    let app = stage.app_without_work().await?;
    until_whole(&app).await?;
    let jobs: Vec<_> = (0..batch).map(|_| json!({"kind": KIND, "payload": payload})).collect();
    let body = EncodedRequest::new("/v1/jobs/batch", &json!({"jobs": jobs}).to_string());
    let elapsed = post(app.addr(), bench.settings.connections.min(CONNECTIONS), requests, body).await?;
    let jobs = requests * batch;
    let (worked_off, ()) = tokio::join!(stage.work_off(jobs), stop(app));
    worked_off?;
    let checked = stage.check(jobs, 0).await?;
    stage.close().await?;
    Ok((rate_of(jobs, elapsed), checked))
}
