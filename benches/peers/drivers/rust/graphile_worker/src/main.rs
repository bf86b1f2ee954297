//! The driver of graphile_worker, the Graphile Worker in Rust.

use std::time::Duration;

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, JobSpecBuilder, LocalQueueConfig, RefetchDelayConfig, TaskHandler, WorkerContext,
    WorkerOptions, WorkerUtils,
};
use kit::{Command, Error, Job, Producer};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

const SCHEMA: &str = "graphile_worker";
/// Connections of a producer, one for each caller, and of a worker.
const CONNECTIONS: u32 = 32;
/// Jobs that a worker fetches in one call.
const FETCH: usize = 500;
/// Time for which a worker collects jobs that have ended, to delete them together.
const COLLECT: Duration = Duration::from_millis(5);
/// Time after which a worker gives fetched jobs back. A worker that stops fetching (its slots took all jobs of a fetch
/// before the fetch noted that there are some) goes on at that time, by default after five minutes.
const HOLD: Duration = Duration::from_secs(1);
/// Time between two looks at an empty queue. New jobs wake it by LISTEN/NOTIFY.
const POLL: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Noop {
    id: u64,
    pad: String,
}

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = "noop";

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        kit::ran(self.id);
        Ok::<(), String>(())
    }
}

#[derive(Clone)]
struct Graphile(WorkerUtils);

fn noop(job: Job) -> Noop {
    Noop { id: job.id, pad: kit::pad() }
}

fn spec(job: Job) -> JobSpec {
    let due = job.due_us.and_then(|due_us| chrono::DateTime::from_timestamp_micros(i64::try_from(due_us).ok()?));
    due.map_or_else(JobSpec::default, |due| JobSpecBuilder::new().run_at(due).build())
}

impl Producer for Graphile {
    async fn one(&mut self, job: Job) -> Result<(), Error> {
        self.0.add_job(noop(job), spec(job)).await?;
        Ok(())
    }

    async fn many(&mut self, jobs: Vec<Job>) -> Result<(), Error> {
        let specs: Vec<JobSpec> = jobs.iter().copied().map(spec).collect();
        let jobs: Vec<(Noop, &JobSpec)> = jobs.into_iter().map(noop).zip(&specs).collect();
        self.0.add_jobs(&jobs).await?;
        Ok(())
    }
}

fn options(pool: PgPool) -> WorkerOptions {
    WorkerOptions::default().schema(SCHEMA).define_job::<Noop>().pg_pool(pool)
}

/// Return the queue inside a worker. Without a delay it asks PostgreSQL again as soon as it got no job; with one it
/// pauses, and a notification ends the pause.
fn local_queue() -> Result<LocalQueueConfig, Error> {
    let queue = LocalQueueConfig::default().with_size(FETCH).with_ttl(HOLD);
    Ok(match kit::number("PEER_REFETCH_MS")? {
        0 => queue,
        ms => {
            let delay = RefetchDelayConfig::default().with_duration(Duration::from_millis(ms));
            queue.with_refetch_delay(delay.with_max_abort_threshold(1))
        }
    })
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let command = Command::read()?;
    let url = kit::variable("PEER_POSTGRES_URL")?;
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(&url).await?;
    match command {
        Command::Prepare => {
            options(pool).init().await?;
            Ok(())
        }
        Command::Enqueue(load) => load.enqueue(Graphile(WorkerUtils::new(pool, SCHEMA))).await,
        Command::Work(workers) => {
            let options = options(pool)
                .concurrency(workers)
                .poll_interval(POLL)
                .local_queue(local_queue()?)
                .complete_job_batch_delay(COLLECT);
            Ok(options.init().await?.run().await?)
        }
    }
}
