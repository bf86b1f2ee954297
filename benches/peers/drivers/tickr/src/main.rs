//! The driver of tickr. Producers use its client, through connections of their own, or with `PEER_API` through the API
//! of a runner. Without the command `enqueue` it is a whole tickr with one kind more: the runner and the API.

use std::process::ExitCode;

use kit::{Command, Error, Job, Producer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickr::{Client, Context, Kind, Outcome, Registry};

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Noop {
    id: u64,
    pad: String,
}

impl Kind for Noop {
    const NAME: &'static str = "noop";
}

async fn handle(job: Noop, _: Context) -> Outcome {
    kit::ran(job.id);
    Ok(().into())
}

#[derive(Clone)]
struct Tickr(Client);

fn noop(job: Job) -> Noop {
    Noop { id: job.id, pad: kit::pad() }
}

impl Producer for Tickr {
    async fn one(&mut self, job: Job) -> Result<(), Error> {
        let enqueue = self.0.enqueue(&noop(job));
        let due = job.due_us.and_then(|due_us| chrono::DateTime::from_timestamp_micros(i64::try_from(due_us).ok()?));
        match due {
            Some(due) => enqueue.execute_at(due).await?,
            None => enqueue.await?,
        };
        Ok(())
    }

    async fn many(&mut self, jobs: Vec<Job>) -> Result<(), Error> {
        let jobs: Vec<Noop> = jobs.into_iter().map(noop).collect();
        self.0.enqueue_many(&jobs).await?;
        Ok(())
    }
}

#[tokio::main]
async fn produce() -> Result<(), Error> {
    let Command::Enqueue(load) = Command::read()? else { return Err("a runner makes the tables".into()) };
    let client = match std::env::var("PEER_API") {
        Ok(api) => Client::http(&api, None)?,
        Err(_) => Client::from_env().await?,
    };
    load.enqueue(Tickr(client.clone())).await?;
    // The last hints are sent before the process ends.
    client.close().await;
    Ok(())
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() != Some("enqueue") {
        let mut kinds = Registry::new();
        kinds.register(handle);
        return tickr::run(kinds);
    }
    match produce() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // With its causes.
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}
