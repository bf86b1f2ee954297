//! Scenario `batches`: three runners work off a backlog whose jobs all belong to one batch. The figure beside the first
//! is that of the same backlog without a batch, in the same run. Then a batch is cancelled while it runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::drain;
use super::environment::{RunChecks, RunEnvironment, rate, stop_all};
use super::figure::Target;
use super::load::{jobs, parts, payload};
use super::result_row::{ResultRow, Samples};
use super::{Bench, BenchError, Scenario};
use crate::app::App;
use crate::job::{Actor, BatchId, Due, JobId, Producer, limits};
use crate::store::{Answer, Callback, CallbackEvent, EnqueueOutcome, NewBatch};

/// Number of runners, and of the workers of each.
pub(super) const RUNNERS: usize = 3;
pub(super) const WORKERS: usize = 64;
/// Number of callbacks of a batch: one for its success and one for its end.
const CALLBACKS: u64 = 2;

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let many = bench.jobs(100_000, 2_000);
    let (mut drain, mut told, mut cancel) = (Samples::default(), Samples::default(), Samples::default());
    for round in bench.rounds() {
        let count = round.share_of(many);
        bench.progress.step("a backlog without a batch", round);
        let (plain, plain_checked) = without_links(bench, count).await?;
        bench.progress.step("a backlog in one batch", round);
        let (rate, delay_ms, checked) = work_off(bench, count).await?;
        bench.progress.step("the cancel of a batch", round);
        let (seconds, cancel_checked) = Box::pin(cancel_all(bench, count)).await?;
        if round.counts() {
            drain.bare(plain, plain_checked);
            drain.product(rate, count, checked);
            told.product(delay_ms, count, checked.counted_before());
            cancel.product(seconds, count, cancel_checked);
        }
    }
    let row = |samples: Samples, name: String, unit, aim| samples.line(Scenario::Batches, name, unit, &[aim]);
    Ok(vec![
        row(
            drain,
            format!("drain, noop, {RUNNERS} runners of {WORKERS}, one batch, beside none"),
            "jobs/s",
            Target::relative_to_bare(0.85),
        ),
        row(told, "last end of a batch to the start of its callbacks".to_owned(), "ms", Target::at_most(1_000.0)),
        row(cancel, format!("cancel of a batch of {many} jobs, to its answer"), "s", Target::at_most(20.0)),
    ])
}

/// Let the runners work off a backlog of jobs without a batch and without parents.
pub(super) async fn without_links(bench: &Bench<'_>, count: u64) -> Result<(f64, RunChecks), BenchError> {
    let mut stage = RunEnvironment::open(bench).await?;
    drain::fill(bench, &stage, count).await?;
    let apps = stage.apps(RUNNERS, WORKERS).await?;
    let ended = stage.until_ended(count).await?;
    stop_all(apps).await;
    let (_, started) = stage.counter_connection.beginnings(stage.first).await?;
    let measured = (rate(count, started, ended)?, stage.check(count, 0).await?);
    stage.close().await?;
    Ok(measured)
}

/// Insert these jobs through the product, with their batches and parents.
pub(super) async fn insert_linked(stage: &RunEnvironment<'_>, jobs: Vec<crate::job::NewJob>) -> Result<(), BenchError> {
    for part in parts(jobs, limits::MAX_BATCH) {
        if let EnqueueOutcome::Refused(refusal) = stage.store.insert_unique(Producer::tickr(), part).await? {
            return Err(BenchError::Failed(format!("jobs with a batch or with parents were refused: {refusal:?}")));
        }
    }
    Ok(())
}

/// Fill a batch with a backlog and close it. Return its id and the ids of its callbacks.
async fn fill(bench: &Bench<'_>, stage: &RunEnvironment<'_>, count: u64) -> Result<(BatchId, Vec<JobId>), BenchError> {
    let payload = payload(bench.settings.payload_bytes)?;
    let events = [CallbackEvent::Complete, CallbackEvent::Success, CallbackEvent::Failure];
    let callbacks = jobs(events.len() as u64, &payload, |_| Due::Now)?.into_iter().zip(events);
    let callbacks: Vec<_> = callbacks.map(|(job, event)| Callback { event, job }).collect();
    let told = callbacks.iter().map(|callback| callback.job.id).collect();
    let id = BatchId::new();
    let batch = NewBatch { id, name: None, parent: None, callbacks, closed: false, jobs: Vec::new() };
    let build = |_: &_| Answer { status: 201, body: String::new() };
    stage.store.create_batch(batch, &Actor::command(), None, Arc::new(build)).await?;
    let mut jobs = jobs(count, &payload, |_| Due::Now)?;
    jobs.iter_mut().for_each(|job| job.options.batch = Some(id));
    insert_linked(stage, jobs).await?;
    stage.store.close_batch(id, &Actor::command()).await?;
    Ok((id, told))
}

/// Work off a batch. Return the rate, and the time from its last end to the start of its last callback in milliseconds.
async fn work_off(bench: &Bench<'_>, count: u64) -> Result<(f64, f64, RunChecks), BenchError> {
    let mut stage = RunEnvironment::open(bench).await?;
    let (id, callbacks) = fill(bench, &stage, count).await?;
    let apps = stage.apps(RUNNERS, WORKERS).await?;
    // The callbacks end as well, except that of a failure.
    stage.until_ended(count + CALLBACKS).await?;
    stop_all(apps).await;
    let missing = || BenchError::Failed("the batch has not ended".to_owned());
    let last = stage.counter_connection.last_end_of(id).await?.ok_or_else(missing)?;
    let starts = stage.counter_connection.starts(stage.first).await?;
    let told = starts.into_iter().filter(|(id, _)| callbacks.contains(id)).map(|(_, at)| at);
    let delay_ms = (told.max().ok_or_else(missing)? - last).num_microseconds().unwrap_or(i64::MAX) as f64 / 1e3;
    let (_, started) = stage.counter_connection.beginnings(stage.first).await?;
    // Each job and each callback is there once and completed once.
    let measured = (rate(count, started, last)?, delay_ms, stage.check(count + CALLBACKS, 0).await?);
    stage.close().await?;
    Ok(measured)
}

/// Cancel a batch while it runs, as a client does. Return the time that this takes in seconds. A small batch may end
/// before the request arrives; then a larger one is tried.
async fn cancel_all(bench: &Bench<'_>, count: u64) -> Result<(f64, RunChecks), BenchError> {
    for times in [1, 4, 16, 64] {
        if let Some(measured) = cancel_running(bench, count * times).await? {
            return Ok(measured);
        }
    }
    Err(BenchError::Failed("each batch ended before its cancel arrived".to_owned()))
}

/// Cancel a batch of this size. Return nothing if it ended before.
async fn cancel_running(bench: &Bench<'_>, count: u64) -> Result<Option<(f64, RunChecks)>, BenchError> {
    let mut stage = RunEnvironment::open(bench).await?;
    let (id, _) = fill(bench, &stage, count).await?;
    // Made before the jobs run: a client reads the certificates of the system first.
    let client = reqwest::Client::builder().no_proxy().build().map_err(|error| cancel_failed(&error))?;
    let apps = stage.apps(RUNNERS, WORKERS).await?;
    while stage.counter_connection.ended().await?.0 == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let began = Instant::now();
    let is_cancelled = cancel_until_answered(&client, &apps[0], id).await?;
    let seconds = began.elapsed().as_secs_f64();
    let answered = stage.counter_connection.now().await?;
    // The callback of the end runs after a cancel as well.
    stage.until_ended(count + 1).await?;
    stop_all(apps).await;
    if !is_cancelled {
        stage.close().await?;
        return Ok(None);
    }
    let last_start = stage.counter_connection.last_start_of(id).await?;
    let deadlocks = stage.check(0, 0).await?.deadlocks;
    // No job may start after the answer.
    let checked = RunChecks { exactly_once: last_start.is_none_or(|start| start <= answered), deadlocks };
    stage.close().await?;
    Ok(Some((seconds, checked)))
}

fn cancel_failed(error: &reqwest::Error) -> BenchError {
    BenchError::Failed(format!("the cancel of the batch: {error}"))
}

/// Ask for the cancel of a batch, and again until the answer is that no job of it starts any more. Return false if the
/// batch had ended.
async fn cancel_until_answered(client: &reqwest::Client, app: &App, id: BatchId) -> Result<bool, BenchError> {
    let url = format!("http://{}/v1/batches/{id}/cancel", app.addr());
    loop {
        let answer = client.post(&url).send().await.map_err(|error| cancel_failed(&error))?;
        match answer.status().as_u16() {
            200 => return Ok(true),
            202 => {}
            409 => return Ok(false),
            status => return Err(BenchError::Failed(format!("the cancel of the batch was answered {status}"))),
        }
    }
}
