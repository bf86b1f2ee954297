//! Scenario `batches`: a complete runner works off a backlog whose jobs all belong to one batch. The figure beside the
//! first is that of the same backlog without a batch. Then a batch is cancelled while it runs.

use std::time::Instant;

use tokio_util::sync::CancellationToken;

use super::drain::product;
use super::environment::{RunChecks, RunEnvironment, rate, stop};
use super::figure::Target;
use super::load::{jobs, payload};
use super::result_row::{ResultRow, Samples};
use super::{Bench, BenchError, Scenario};
use crate::job::{Actor, BatchId, Due, Producer, limits};
use crate::store::{Answer, Callback, CallbackEvent, EnqueueOutcome, NewBatch};

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let many = bench.jobs(100_000, 2_000);
    let (mut drain, mut told, mut cancel) = (Samples::default(), Samples::default(), Samples::default());
    for round in bench.rounds() {
        let count = round.share_of(many);
        bench.progress.step("a backlog without a batch", round);
        let mut stage = RunEnvironment::open(bench).await?;
        let (plain, plain_checked) = product(bench, &mut stage, count).await?;
        stage.close().await?;
        bench.progress.step("a backlog in one batch", round);
        let (rate, delay_ms, checked) = work_off(bench, count).await?;
        bench.progress.step("the cancel of a batch", round);
        let (seconds, cancel_checked) = cancel_all(bench, count).await?;
        if round.counts() {
            drain.bare(plain, plain_checked);
            drain.product(rate, count, checked);
            told.product(delay_ms, count, checked.counted_before());
            cancel.product(seconds, count, cancel_checked);
        }
    }
    Ok(vec![
        drain.line(
            Scenario::Batches,
            "drain, noop, one batch, beside none",
            "jobs/s",
            &[Target::relative_to_bare(0.85)],
        ),
        told.line(Scenario::Batches, "last end of a batch to its callback", "ms", &[Target::at_most(1_000.0)]),
        cancel.line(Scenario::Batches, format!("cancel of a batch of {many} jobs"), "s", &[Target::at_most(20.0)]),
    ])
}

/// Fill a batch with a backlog and close it.
async fn fill(bench: &Bench<'_>, stage: &RunEnvironment<'_>, count: u64) -> Result<BatchId, BenchError> {
    let payload = payload(bench.settings.payload_bytes)?;
    let callbacks =
        jobs(1, &payload, |_| Due::Now)?.into_iter().map(|job| Callback { event: CallbackEvent::Complete, job });
    let batch = NewBatch {
        id: BatchId::new(),
        name: None,
        parent: None,
        callbacks: callbacks.collect(),
        closed: false,
        jobs: Vec::new(),
    };
    let id = batch.id;
    let build = |_: &_| Answer { status: 201, body: String::new() };
    stage.store.create_batch(batch, &Actor::command(), None, std::sync::Arc::new(build)).await?;
    let mut jobs = jobs(count, &payload, |_| Due::Now)?;
    jobs.iter_mut().for_each(|job| job.options.batch = Some(id));
    while !jobs.is_empty() {
        let rest = jobs.split_off(jobs.len().min(limits::MAX_BATCH));
        let part = std::mem::replace(&mut jobs, rest);
        if let EnqueueOutcome::Refused(refusal) = stage.store.insert_unique(Producer::tickr(), part).await? {
            return Err(BenchError::Failed(format!("the jobs of a batch were refused: {refusal:?}")));
        }
    }
    stage.store.close_batch(id, &Actor::command()).await?;
    Ok(id)
}

/// Work off a batch. Return the rate, and the time from its last end to its own in milliseconds.
async fn work_off(bench: &Bench<'_>, count: u64) -> Result<(f64, f64, RunChecks), BenchError> {
    let mut stage = RunEnvironment::open(bench).await?;
    let id = fill(bench, &stage, count).await?;
    let app = stage.app().await?;
    // The callback ends as well.
    stage.until_ended(count + 1).await?;
    stop(app).await;
    let missing = || BenchError::Failed("the batch has not ended".to_owned());
    let last = stage.counter_connection.last_end_of(id).await?.ok_or_else(missing)?;
    let batch = stage.store.batch(id).await?.ok_or_else(missing)?;
    let delay = batch.completed_at.ok_or_else(missing)? - last;
    let (_, started) = stage.counter_connection.beginnings(stage.first).await?;
    let delay_ms = delay.num_microseconds().unwrap_or(i64::MAX) as f64 / 1e3;
    let measured = (rate(count, started, last)?, delay_ms, stage.check(count + 1, 0).await?);
    stage.close().await?;
    Ok(measured)
}

/// Cancel a batch while it runs. Return the time that this takes in seconds.
async fn cancel_all(bench: &Bench<'_>, count: u64) -> Result<(f64, RunChecks), BenchError> {
    let mut stage = RunEnvironment::open(bench).await?;
    let id = fill(bench, &stage, count).await?;
    let app = stage.app().await?;
    while stage.counter_connection.ended().await?.0 == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let began = Instant::now();
    let batches = stage.store.cancel_batch(id, &Actor::command()).await?;
    app.broker().cancel_batch_jobs(&batches, &CancellationToken::new()).await?;
    let seconds = began.elapsed().as_secs_f64();
    let answered = stage.counter_connection.now().await?;
    stage.until_ended(count + 1).await?;
    stop(app).await;
    let last_start = stage.counter_connection.last_start_of(id).await?;
    let deadlocks = stage.check(0, 0).await?.deadlocks;
    // No job may start after the answer.
    let checked = RunChecks { exactly_once: last_start.is_none_or(|start| start <= answered), deadlocks };
    stage.close().await?;
    Ok((seconds, checked))
}
