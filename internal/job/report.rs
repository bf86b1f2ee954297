//! The data of a finished report, without its content.

use super::{AttemptToken, JobId, RunnerId};

/// A finished report, as the store knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportRecord {
    /// The job that created it. A job has one report.
    pub job: JobId,
    /// File name.
    pub name: String,
    /// Size of the content, in bytes.
    pub bytes: u64,
    /// Number of parts of the content in the store. If 0, the content is only in the folder of its runner.
    pub parts: u32,
    /// SHA-256 of the content, if the store holds the content.
    pub digest: Option<[u8; 32]>,
    /// The token of the attempt that created it.
    pub token: AttemptToken,
    /// The runner whose folder holds it.
    pub runner: RunnerId,
    /// The host of that runner.
    pub host: String,
    /// True if an operator deleted the job.
    pub removed: bool,
}
