//! Jobs, and the ways to enqueue them: callers of the library, HTTP connections, and bare batches.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::value::RawValue;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

use super::wire::{EncodedRequest, KeepAliveConnection};
use super::{BenchError, LEAST_PAYLOAD};
use crate::broker::{Broker, Draft};
use crate::job::{Due, JobId, JobOptions, Name, NewJob, OnConflict, Priority};
use crate::store::BareLane;

/// Kind of every job. It does nothing and accepts any payload.
pub(super) const KIND: &str = "noop";
/// Number of connections of the bare store.
pub(super) const LANES: u8 = 4;
/// Number of jobs in one commit when the library enqueues many.
const TOGETHER: usize = 500;
/// Most batches that may wait between inserts and claims. The product's queues are bounded as well.
const DEPTH: usize = 8;

/// Make a payload of this many bytes.
pub(super) fn payload(bytes: usize) -> Result<Box<RawValue>, BenchError> {
    let text = format!("{{\"pad\":\"{}\"}}", "x".repeat(bytes.saturating_sub(LEAST_PAYLOAD)));
    RawValue::from_string(text).map_err(|e| BenchError::Failed(e.to_string()))
}

/// Make jobs as the product would make them, sorted by id.
pub(super) fn jobs(count: u64, payload: &RawValue, due: impl Fn(u64) -> Due) -> Result<Vec<NewJob>, BenchError> {
    let name = |text: &str| text.parse::<Name>().map_err(|e| BenchError::Failed(e.to_string()));
    let (kind, queue) = (name(KIND)?, name("default")?);
    let job = |number: u64| NewJob {
        id: JobId::new(),
        kind: kind.clone(),
        queue: queue.clone(),
        payload: payload.to_owned(),
        due: due(number),
        expires: None,
        priority: Priority::NORMAL,
        max_attempts: 5,
        unique_key: None,
        on_conflict: OnConflict::default(),
        host: None,
        options: JobOptions::default(),
        batch: None,
    };
    Ok((0..count).map(job).collect())
}

/// Divide jobs into parts of this size. Each part has memory for itself alone: cut off from the others with
/// [`Vec::split_off`], each would keep the memory of all that were behind it, which is 24 GB for 600,000 jobs.
pub(super) fn parts(jobs: Vec<NewJob>, size: usize) -> impl Iterator<Item = Vec<NewJob>> {
    let mut jobs = jobs.into_iter();
    std::iter::from_fn(move || Some(jobs.by_ref().take(size).collect::<Vec<_>>()).filter(|part| !part.is_empty()))
}

/// Enqueue `jobs` through the library, one by one, with this many concurrent callers. Return the elapsed time.
pub(super) async fn call(
    broker: &Broker,
    callers: usize,
    jobs: u64,
    payload: &RawValue,
) -> Result<Duration, BenchError> {
    let left = Arc::new(Countdown::new(jobs));
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for _ in 0..callers {
        let (broker, left, payload) = (broker.clone(), Arc::clone(&left), payload.to_owned());
        tasks.spawn(async move {
            while left.take() {
                let job = broker.prepare(Draft::new(KIND, payload.clone()))?;
                broker.enqueue(job).await?;
            }
            Ok(())
        });
    }
    join(tasks).await?;
    Ok(began.elapsed())
}

/// Enqueue `jobs` through the library in batches, of which several are under way at the same time.
pub(super) async fn call_in_batches(broker: &Broker, jobs: Vec<NewJob>) -> Result<(), BenchError> {
    let accepted =
        stream::iter(parts(jobs, TOGETHER)).map(|batch| broker.enqueue_all(batch)).buffer_unordered(LANES.into());
    accepted.try_for_each(async |_| Ok(())).await?;
    Ok(())
}

/// Send `requests` requests over this many connections at the same time. Return the elapsed time without the opening of
/// the connections.
pub(super) async fn post(
    addr: SocketAddr,
    connections: usize,
    requests: u64,
    post: EncodedRequest,
) -> Result<Duration, BenchError> {
    let mut wires = Vec::with_capacity(connections);
    for _ in 0..connections {
        wires.push(KeepAliveConnection::open(addr).await?);
    }
    let (left, post) = (Arc::new(Countdown::new(requests)), Arc::new(post));
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for mut wire in wires {
        let (left, post) = (Arc::clone(&left), Arc::clone(&post));
        tasks.spawn(async move {
            while left.take() {
                wire.send(&post).await?;
            }
            Ok(())
        });
    }
    join(tasks).await?;
    Ok(began.elapsed())
}

/// Insert jobs in bare batches. Return the elapsed time.
pub(super) async fn insert_bare(lanes: Vec<BareLane>, jobs: Vec<NewJob>) -> Result<Duration, BenchError> {
    let (jobs, turn) = (Arc::new(jobs), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for mut lane in lanes {
        let (jobs, turn) = (Arc::clone(&jobs), Arc::clone(&turn));
        tasks.spawn(async move {
            while let Some(batch) = next_batch(&jobs, &turn) {
                lane.insert(batch).await?;
            }
            Ok(())
        });
    }
    join(tasks).await?;
    Ok(began.elapsed())
}

/// Claim and settle jobs in bare batches. Return the elapsed time.
pub(super) async fn work_off_bare(lanes: Vec<BareLane>, ids: Vec<JobId>) -> Result<Duration, BenchError> {
    let (ids, turn) = (Arc::new(ids), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for mut lane in lanes {
        let (ids, turn) = (Arc::clone(&ids), Arc::clone(&turn));
        tasks.spawn(async move {
            while let Some(batch) = next_batch(&ids, &turn) {
                let claims = lane.claim(batch).await?;
                lane.settle(&claims).await?;
            }
            Ok(())
        });
    }
    join(tasks).await?;
    Ok(began.elapsed())
}

/// Insert jobs in bare batches over half of the connections, and at the same time claim and settle them over the other
/// half. Return the elapsed time.
pub(super) async fn flow_bare(mut lanes: Vec<BareLane>, jobs: Vec<NewJob>) -> Result<Duration, BenchError> {
    let takers = lanes.split_off(lanes.len() / 2);
    let (jobs, turn) = (Arc::new(jobs), Arc::new(AtomicUsize::new(0)));
    let (accepted, due) = mpsc::channel::<Vec<JobId>>(DEPTH);
    let due = Arc::new(Mutex::new(due));
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for mut lane in lanes {
        let (jobs, turn, accepted) = (Arc::clone(&jobs), Arc::clone(&turn), accepted.clone());
        tasks.spawn(async move {
            while let Some(batch) = next_batch(&jobs, &turn) {
                lane.insert(batch).await?;
                // If this fails, a task that claims has failed. Its error ends the run and says more than this one.
                let _ = accepted.send(batch.iter().map(|job| job.id).collect()).await;
            }
            Ok(())
        });
    }
    drop(accepted);
    for mut lane in takers {
        let due = Arc::clone(&due);
        tasks.spawn(async move {
            loop {
                let batch = due.lock().await.recv().await;
                let Some(ids) = batch else { return Ok(()) };
                let claims = lane.claim(&ids).await?;
                lane.settle(&claims).await?;
            }
        });
    }
    join(tasks).await?;
    Ok(began.elapsed())
}

/// Take the next batch that no task has taken yet.
fn next_batch<'a, T>(all: &'a [T], turn: &AtomicUsize) -> Option<&'a [T]> {
    all.chunks(BareLane::FULL).nth(turn.fetch_add(1, Ordering::Relaxed))
}

/// A counter that several tasks count down.
pub(super) struct Countdown {
    left: AtomicU64,
}

impl Countdown {
    pub(super) fn new(count: u64) -> Self {
        Self { left: AtomicU64::new(count) }
    }

    pub(super) fn take(&self) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

/// Wait for all tasks. The first error ends the others.
pub(super) async fn join(mut tasks: JoinSet<Result<(), BenchError>>) -> Result<(), BenchError> {
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_have_the_size_that_was_asked_for() {
        for bytes in [LEAST_PAYLOAD, 11, 200] {
            assert_eq!(payload(bytes).unwrap().get().len(), bytes);
        }
    }

    #[test]
    fn batches_are_dealt_once_and_whole() {
        let (all, turn) = ((0..600).collect::<Vec<u32>>(), AtomicUsize::new(0));
        let sizes: Vec<usize> = std::iter::from_fn(|| next_batch(&all, &turn)).map(<[u32]>::len).collect();
        assert_eq!(sizes, [250, 250, 100]);
        let left = Countdown::new(2);
        assert_eq!([left.take(), left.take(), left.take()], [true, true, false]);
    }
}
