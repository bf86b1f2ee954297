//! The driver of apalis-redis.

use std::time::Duration;

use apalis::layers::WorkerBuilderExt;
use apalis::prelude::*;
use apalis_redis::{Config, RedisStorage};
use kit::{Command, Error, Job, Producer};
use serde::{Deserialize, Serialize};

/// Jobs that a worker fetches in one call.
const FETCH: usize = 500;
/// Time between two looks at an empty queue. Without an interval a worker looks at its heartbeat only, every 30 s.
const POLL: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Noop {
    id: u64,
    pad: String,
}

type Storage = RedisStorage<Noop>;

#[derive(Clone)]
struct Apalis(Storage);

impl Apalis {
    async fn connect() -> Result<Self, Error> {
        let url = format!("redis+unix://{}", kit::variable("PEER_REDIS_SOCKET")?);
        let connection = apalis_redis::connect(url).await?;
        let config = Config::default().queue("noop").batch_size(FETCH);
        Ok(Self(RedisStorage::new(connection).with_config(config)))
    }
}

fn noop(job: Job) -> Noop {
    Noop { id: job.id, pad: kit::pad() }
}

impl Producer for Apalis {
    async fn one(&mut self, job: Job) -> Result<(), Error> {
        match job.due_us {
            None => self.0.push(noop(job)).await?,
            // Due times have whole seconds. They are rounded up, because no job may start early.
            Some(due_us) => {
                let task = TaskBuilder::new(noop(job)).run_at_timestamp(due_us.div_ceil(1_000_000)).build();
                self.0.push_task(task).await?;
            }
        }
        Ok(())
    }

    async fn many(&mut self, jobs: Vec<Job>) -> Result<(), Error> {
        Ok(self.0.push_bulk(jobs.into_iter().map(noop).collect()).await?)
    }
}

async fn handle(job: Noop) -> Result<(), BoxDynError> {
    kit::ran(job.id);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let command = Command::read()?;
    let apalis = Apalis::connect().await?;
    match command {
        Command::Prepare => Ok(()),
        Command::Enqueue(load) => load.enqueue(apalis).await,
        Command::Work(workers) => {
            let name = format!("worker-{}", std::process::id());
            let backend = apalis.0.poll_with_interval(POLL);
            let worker = WorkerBuilder::new(name).backend(backend).concurrency(workers).build(handle);
            Ok(worker.run().await?)
        }
    }
}
