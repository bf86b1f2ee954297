//! The jobs of one call of a driver. Caller *c* of *n* takes the batches *c*, *c + n*, *c + 2n*, …, so that callers
//! share nothing and every id is used once.

use std::future::Future;
use std::time::{Duration, Instant};

use crate::executions::now_us;
use crate::{Error, number};

/// One job of the load.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Id, for the file of executions.
    pub id: u64,
    /// Microseconds since 1970 at which the job is due. None: at once.
    pub due_us: Option<u64>,
}

/// A product, as its producers use it. Each caller has a clone.
pub trait Producer: Clone + Send + 'static {
    /// Enqueue one job by the product's usual call, and wait until the product has acknowledged it.
    fn one(&mut self, job: Job) -> impl Future<Output = Result<(), Error>> + Send;
    /// Enqueue a batch by the product's call for many jobs, and wait until the product has acknowledged all of them.
    fn many(&mut self, jobs: Vec<Job>) -> impl Future<Output = Result<(), Error>> + Send;
}

/// The jobs to enqueue.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    callers: u64,
    batch: u64,
    first: u64,
    /// Most jobs.
    jobs: u64,
    /// Longest time.
    time: Duration,
    /// Start and length of the time over which due times are spread, in microseconds.
    due: Option<(u64, u64)>,
}

impl Load {
    pub(crate) fn read() -> Result<Self, Error> {
        let due = match number("PEER_DUE_US")? {
            0 => None,
            start => Some((start, number("PEER_DUE_WITHIN_US")?)),
        };
        Ok(Self {
            callers: number("PEER_CALLERS")?,
            batch: number("PEER_BATCH")?,
            first: number("PEER_FIRST")?,
            jobs: number("PEER_JOBS")?,
            time: Duration::from_secs_f64(number("PEER_SECONDS")?),
            due,
        })
    }

    /// Enqueue all of it, then print the report.
    ///
    /// # Errors
    /// The first error of a caller.
    pub async fn enqueue<P: Producer>(self, producer: P) -> Result<(), Error> {
        let (began_us, began) = (now_us(), Instant::now());
        let callers: Vec<_> =
            (0..self.callers).map(|caller| tokio::spawn(self.call(caller, began, producer.clone()))).collect();
        let mut jobs = 0;
        for caller in callers {
            jobs += caller.await??;
        }
        let seconds = began.elapsed().as_secs_f64();
        println!("{}", serde_json::json!({"jobs": jobs, "seconds": seconds, "began_us": began_us}));
        Ok(())
    }

    async fn call<P: Producer>(self, caller: u64, began: Instant, mut producer: P) -> Result<u64, Error> {
        let mut sent = 0;
        for turn in 0.. {
            let start = (turn * self.callers + caller) * self.batch;
            if start >= self.jobs || began.elapsed() >= self.time {
                break;
            }
            let end = self.jobs.min(start + self.batch);
            if self.batch == 1 {
                producer.one(self.job(start)).await?;
            } else {
                producer.many((start..end).map(|place| self.job(place)).collect()).await?;
            }
            sent += end - start;
        }
        Ok(sent)
    }

    /// Due times are spread by a multiplicative hash, so that they fall into no step with a product's polling.
    fn job(self, place: u64) -> Job {
        let spread = |(start, within): (u64, u64)| start + ((place * 2_654_435_761) & 0xffff_ffff) * within / (1 << 32);
        Job { id: self.first + place, due_us: self.due.map(spread) }
    }
}
