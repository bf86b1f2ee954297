//! The second role of this program: a runner whose job kinds write to the journal.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tickr::handlers::{Context, Failure, FollowUp, Handler, Kind, Outcome, Output, Registry};
use uuid::Uuid;

use crate::journal::Journal;

/// Environment variable with the path of the journal. It is set for the processes that are runners.
pub(crate) const ROLE: &str = "CHAOS_JOURNAL";

/// Run as a runner until a signal stops it.
pub(crate) fn run(journal: &Path) -> ExitCode {
    let journal = match Journal::open(journal) {
        Ok(journal) => Arc::new(journal),
        Err(error) => {
            eprintln!("{}: {error}", journal.display());
            return ExitCode::FAILURE;
        }
    };
    // The chaos program holds the other end of standard input, so that no runner outlives it. The process that executes
    // one suspect has another standard input, which tells it when its runner is gone.
    if !tickr::app::is_for_a_suspect() {
        std::thread::spawn(|| {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            std::process::abort();
        });
    }
    let mut kinds = Registry::new();
    kinds.register_handler(Recorder(journal));
    tickr::run(kinds)
}

/// A job whose start and end are recorded in the journal.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// Name of the job in the driver.
    pub(crate) name: String,
    /// Duration of an attempt, in milliseconds.
    #[serde(default)]
    pub(crate) ms: u64,
    /// What the first attempts do when their duration is over.
    #[serde(default)]
    pub(crate) first: Act,
    /// Number of these first attempts.
    #[serde(default)]
    pub(crate) times: u32,
    /// Number of follow-up jobs of its success.
    #[serde(default)]
    pub(crate) then: u64,
}

/// What an attempt does when its duration is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Act {
    #[default]
    Succeed,
    Fail,
    Reject,
    Snooze,
    Panic,
    /// Block the thread for the whole duration instead of waiting.
    Spin,
    /// Kill the process.
    Abort,
}

impl Kind for Record {
    const NAME: &'static str = "record";
}

struct Recorder(Arc<Journal>);

/// Writes the end of an execution to the journal, even when the handler is dropped or panics.
struct End {
    journal: Arc<Journal>,
    job: Uuid,
    token: Uuid,
    word: &'static str,
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.journal.write(self.word, self.job, self.token);
    }
}

/// Return the name of a follow-up job. The first one has the number 1.
pub(crate) fn follow_up(of: &str, number: u64) -> String {
    format!("{of}-then{number}")
}

/// Return the success of an attempt, with the follow-up jobs of the job. Every other one joins the batch of the job, if
/// it has one.
fn success(job: &Record, token: Uuid, lived: Option<&[Uuid]>) -> Outcome {
    let mut output = Output::json(&json!({"token": token, "lived": lived}))?;
    for number in 1..=job.then {
        let next = Record { name: follow_up(&job.name, number), ms: 1, ..Record::default() };
        let next = FollowUp::of(&next)?;
        output = output.then_job(if number.is_multiple_of(2) { next.in_batch() } else { next })?;
    }
    Ok(output)
}

/// Return whether the attempts of a job save checkpoints.
pub(crate) fn saves(job: Uuid) -> bool {
    job.as_u128().is_multiple_of(9)
}

impl Recorder {
    /// Add this attempt to the checkpoint of the job, and return all attempts in it. The journal gets a line when MySQL has
    /// it.
    async fn save(&self, ctx: &Context) -> Result<Vec<Uuid>, Failure> {
        let mut lived: Vec<Uuid> = ctx.checkpoint()?.unwrap_or_default();
        lived.push(ctx.token().uuid());
        ctx.save_checkpoint(&lived)?;
        ctx.checkpoint_saved().await?;
        self.0.write("saved", ctx.job_id().uuid(), ctx.token().uuid())?;
        Ok(lived)
    }
}

impl Handler for Recorder {
    type Payload = Record;

    async fn run(&self, job: Record, ctx: Context) -> Outcome {
        let (id, token) = (ctx.job_id().uuid(), ctx.token().uuid());
        self.0.write_start(id, token, ctx.attempt())?;
        let mut end = End { journal: Arc::clone(&self.0), job: id, token, word: "dropped" };
        let lived = if saves(id) { Some(self.save(&ctx).await?) } else { None };
        let act = if ctx.attempt() <= job.times { job.first } else { Act::Succeed };
        let time = Duration::from_millis(job.ms);
        if job.first == Act::Spin {
            std::thread::sleep(time);
        } else {
            tokio::select! {
                () = tokio::time::sleep(time) => {}
                () = ctx.stopped() => {
                    end.word = "stopped";
                    return Err(Failure::retry("told to stop"));
                }
            }
        }
        end.word = "failed";
        match act {
            Act::Succeed | Act::Spin => success(&job, token, lived.as_deref()).inspect(|_| end.word = "done"),
            Act::Fail => Err(Failure::retry("failed on request")),
            Act::Reject => Err(Failure::reject("rejected on request")),
            // A snooze does not count as an attempt used, so chance ends the series.
            Act::Snooze if rand::random() => success(&job, token, lived.as_deref()).inspect(|_| end.word = "done"),
            Act::Snooze => Err(Failure::snooze(Duration::from_millis(300), "snoozed on request")),
            Act::Panic => panic!("panicked on request"),
            Act::Abort => {
                end.word = "abort";
                drop(end);
                std::process::abort()
            }
        }
    }
}
