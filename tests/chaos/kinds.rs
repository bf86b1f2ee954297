//! The other role of this program: a runner with kinds of its own, which keep the journal.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tickr::handlers::{Context, Failure, Handler, Kind, Outcome, Output, Registry};
use uuid::Uuid;

use crate::journal::Journal;

/// Where the journal is. Set for the programs that are runners.
pub(crate) const ROLE: &str = "CHAOS_JOURNAL";

/// Be a runner until told to stop.
pub(crate) fn run(journal: &Path) -> ExitCode {
    let journal = match Journal::open(journal) {
        Ok(journal) => Arc::new(journal),
        Err(error) => {
            eprintln!("{}: {error}", journal.display());
            return ExitCode::FAILURE;
        }
    };
    // The chaos program holds the other end of standard input: no runner outlives it. A process that runs one suspect has
    // another standard input, which tells it when its runner is gone.
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

/// A job that is written down when it starts and when it ends.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// What the driver calls it.
    pub(crate) name: String,
    /// How long it takes.
    #[serde(default)]
    pub(crate) ms: u64,
    /// What the first attempts do.
    #[serde(default)]
    pub(crate) first: Act,
    /// How many attempts that is.
    #[serde(default)]
    pub(crate) times: u32,
}

/// What an attempt does after its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Act {
    #[default]
    Succeed,
    Fail,
    Reject,
    Snooze,
    Panic,
    /// Block the thread for that time instead of waiting.
    Spin,
    /// Kill the process.
    Abort,
}

impl Kind for Record {
    const NAME: &'static str = "record";
}

struct Recorder(Arc<Journal>);

/// Writes the end of an execution, also when the handler is dropped or panics.
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

impl Handler for Recorder {
    type Payload = Record;

    async fn run(&self, job: Record, ctx: Context) -> Outcome {
        let (id, token) = (ctx.job_id().uuid(), ctx.token().uuid());
        self.0.write("start", id, token)?;
        let mut end = End { journal: Arc::clone(&self.0), job: id, token, word: "dropped" };
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
            Act::Succeed | Act::Spin => {
                end.word = "done";
                Output::json(&json!({"token": token}))
            }
            Act::Fail => Err(Failure::retry("failed on request")),
            Act::Reject => Err(Failure::reject("rejected on request")),
            // A snooze burns no attempt, so chance ends it.
            Act::Snooze if rand::random() => Output::json(&json!({"token": token})).inspect(|_| end.word = "done"),
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
