//! Exit codes for scripts: for the state of a job, which `tickr enqueue --wait` and `tickr jobs watch` share, and for
//! signals.

use serde_json::Value;

use crate::client::is_for_a_used_key;
use crate::print::{printable, text};
use crate::{CommandResult, Failure};

/// Exit codes in addition to those of all commands.
const FAILED: u8 = 3;
const CANCELLED: u8 = 4;
/// The job has not ended yet, as far as is known; or it is not known whether it is enqueued.
pub(crate) const NOT_OVER: u8 = 5;
/// Exit code that a shell reports for SIGPIPE, when the reader of the output has ended.
pub(crate) const UNREAD: u8 = 141;
/// Exit codes that a shell reports for SIGHUP, SIGINT and SIGTERM.
const HUNG_UP: u8 = 129;
const INTERRUPTED: u8 = 130;
const TERMINATED: u8 = 143;

/// Turn the state of a job into an exit code. The reason goes to standard error, unless `quiet`.
pub(crate) fn to_exit_code(job: &Value, quiet: bool) -> CommandResult {
    let state = text(job, "state");
    let code = match state.as_str() {
        "completed" => return Ok(()),
        "failed" => FAILED,
        "cancelled" => CANCELLED,
        "waiting" | "executing" | "retrying" => NOT_OVER,
        other => {
            return Err(anyhow::anyhow!(
                "the job is in state {}, which this version of tickr does not know",
                printable(other)
            )
            .into());
        }
    };
    if quiet {
        return Err(Failure::quiet(code));
    }
    let error = printable(&text(job, "last_error"));
    let why = if error.is_empty() || code == CANCELLED { String::new() } else { format!(": {error}") };
    let yet = if code == NOT_OVER { ", not over yet" } else { "" };
    Err(Failure::new(code, anyhow::anyhow!("the job is {state}{yet}{why}")))
}

/// Report a job that was enqueued and whose state cannot be read.
pub(crate) fn unknown(id: &str, error: anyhow::Error) -> Failure {
    Failure::new(NOT_OVER, error.context(format!("job {} is enqueued, but its state cannot be read", printable(id))))
}

/// Report a job that may be enqueued.
pub(crate) fn perhaps(key: &str, error: anyhow::Error) -> Failure {
    let key = printable(key);
    let said = if is_for_a_used_key(&error) {
        format!("another request was sent with --idempotency-key {key}; an earlier run may have enqueued the job")
    } else {
        format!(
            "it is not known whether the job is enqueued; the same command with --idempotency-key {key} finds out, and \
             enqueues nothing twice"
        )
    };
    Failure::new(NOT_OVER, error.context(said))
}

/// Report that a signal of this name ended the command. This prints nothing.
pub(crate) fn stopped(signal: &str) -> Failure {
    Failure::quiet(code_of(signal))
}

/// Return the exit code for a signal of this name.
pub(crate) fn code_of(signal: &str) -> u8 {
    match signal {
        "SIGHUP" => HUNG_UP,
        "SIGINT" => INTERRUPTED,
        _ => TERMINATED,
    }
}
