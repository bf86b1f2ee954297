//! Kinds that programs in other languages execute, as operators declare them.

use serde_json::Value;

use super::{Name, Push, RetryPolicy};

/// A kind whose jobs programs in other languages execute: remote workers, or a receiver that tickr calls. No handler of
/// this program belongs to it.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredKind {
    /// Name of the kind.
    pub name: Name,
    /// Text for people.
    pub description: Option<String>,
    /// JSON Schema (2020-12) of the payload. None: any JSON is accepted.
    pub schema: Option<Value>,
    /// Number of attempts that a job may use.
    pub max_attempts: u32,
    /// Time limit of one attempt, in milliseconds.
    pub timeout_ms: u64,
    /// Backoff between attempts.
    pub retry: RetryPolicy,
    /// Queue of jobs that name none. None: `default`.
    pub queue: Option<Name>,
    /// The receiver that tickr calls. None: remote workers fetch the jobs.
    pub push: Option<Push>,
}

impl DeclaredKind {
    /// Most bytes of a schema, as JSON text.
    pub const MAX_SCHEMA_BYTES: usize = 64 << 10;
    /// Most characters of a description.
    pub const MAX_DESCRIPTION: usize = 500;
}
