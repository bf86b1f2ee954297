//! What is known of a finished report, apart from its content.

use super::{AttemptToken, JobId, RunnerId};

/// A finished report, as the store knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportRecord {
    /// The job that made it. A job has one report.
    pub job: JobId,
    /// The name of its file.
    pub name: String,
    /// The size of its content.
    pub bytes: u64,
    /// How many parts of the content are in the store. None: the content is in the folder of its runner alone.
    pub parts: u32,
    /// SHA-256 of the content, where the store has it.
    pub digest: Option<[u8; 32]>,
    /// The attempt that made it.
    pub token: AttemptToken,
    /// The runner in whose folder it is.
    pub runner: RunnerId,
    /// The host of that runner.
    pub host: String,
    /// Did an operator delete its job?
    pub removed: bool,
}
