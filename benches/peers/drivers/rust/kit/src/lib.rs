//! The contract of a driver, for the drivers in Rust: its commands, its load, and the file of executions. The README of
//! the comparison describes it.
//!
//! - `executions.rs`: the file in which each execution of a job is a line
//! - `load.rs`: the jobs that a driver enqueues, and the callers that enqueue them

mod executions;
mod load;

pub use executions::ran;
pub use load::{Job, Load, Producer};

use std::str::FromStr;

/// Any reason for which a driver ends. The comparison shows it.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Word of the command line.
pub enum Command {
    /// Make the tables, or whatever the product needs before its first job.
    Prepare,
    /// Enqueue this load, and report it.
    Enqueue(Load),
    /// Run jobs until SIGTERM, this many at a time.
    Work(usize),
}

impl Command {
    /// Read the command line and the environment.
    ///
    /// # Errors
    /// When the word is unknown, or a variable is missing or no number.
    pub fn read() -> Result<Self, Error> {
        match std::env::args().nth(1).as_deref() {
            Some("prepare") => Ok(Self::Prepare),
            Some("enqueue") => Ok(Self::Enqueue(Load::read()?)),
            Some("work") => Ok(Self::Work(number("PEER_WORKERS")?)),
            other => Err(format!("unknown command {other:?}: there are prepare, enqueue and work").into()),
        }
    }
}

/// Return a variable of the environment.
///
/// # Errors
/// When it is not set.
pub fn variable(name: &str) -> Result<String, Error> {
    std::env::var(name).map_err(|_| format!("{name} is not set").into())
}

/// Return a variable of the environment as a number.
///
/// # Errors
/// When it is not set, or no number.
pub fn number<N: FromStr>(name: &str) -> Result<N, Error> {
    let text = variable(name)?;
    text.parse().map_err(|_| format!("{name} is no number: {text}").into())
}

/// Return the part of a payload that is ballast, which makes a payload about 200 bytes of JSON.
#[must_use]
pub fn pad() -> String {
    "x".repeat(176)
}
