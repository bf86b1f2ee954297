//! What a caller asks for.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Actor, JobId, Name, RetryPolicy, ScheduledBy, Tag, Timestamp, TraceContext};

/// The limits on what one job may ask for; the API says which one was passed.
pub mod limits {
    use std::time::Duration;

    /// Most attempts a job may have.
    pub const MAX_ATTEMPTS: u32 = 100;
    /// Farthest a job may be scheduled ahead.
    pub const MAX_AHEAD: Duration = Duration::from_secs(366 * 24 * 60 * 60);
    /// Longest time limit of one attempt.
    pub const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
    /// Most jobs in one batch.
    pub const MAX_BATCH: usize = 1_000;
    /// Longest unique key, in bytes.
    pub const MAX_KEY_BYTES: usize = 255;
    /// Longest reason for a discard, in characters.
    pub const MAX_REASON: usize = 500;
    /// Most tags of one job.
    pub const MAX_TAGS: usize = 10;
    /// Most jobs that may follow one.
    pub const MAX_FOLLOW_UPS: usize = 1_000;
    /// Longest error text kept with an attempt, in bytes.
    pub const MAX_ERROR_BYTES: usize = 2_000;
    /// Largest result kept with a job, in bytes.
    pub const MAX_RESULT_BYTES: usize = 256 * 1024;

    /// Cut a text to [`MAX_ERROR_BYTES`], at a character boundary.
    #[must_use]
    pub fn cut(mut text: String) -> String {
        if text.len() > MAX_ERROR_BYTES {
            let end = (0..=MAX_ERROR_BYTES - 4).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(end);
            text.push('…');
        }
        text
    }
}

/// When a job should start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// As soon as a worker is free.
    Now,
    /// This long after the store accepts it.
    After(Duration),
    /// At this moment; a moment in the past means now.
    At(Timestamp),
}

/// How urgent a job is within its queue: 0 runs first, 9 last, 5 unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Priority(u8);

impl Priority {
    /// The priority of jobs that ask for none.
    pub const NORMAL: Self = Self(5);
    /// The least urgent level.
    pub const LAST: Self = Self(9);

    /// The level, 0 (first) to 9 (last).
    #[must_use]
    pub const fn level(self) -> u8 {
        self.0
    }

    /// Every level, most urgent first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=Self::LAST.0).map(Self)
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::NORMAL
    }
}

impl TryFrom<u8> for Priority {
    type Error = &'static str;

    fn try_from(level: u8) -> Result<Self, Self::Error> {
        if level <= Self::LAST.0 { Ok(Self(level)) } else { Err("a priority is 0 (first) to 9 (last)") }
    }
}

impl From<Priority> for u8 {
    fn from(priority: Priority) -> Self {
        priority.0
    }
}

/// The rarer wishes of a job, kept as one JSON object beside it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobOptions {
    /// Time limit of one attempt in milliseconds; the kind's own when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Backoff of this job; the kind's own when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// The schedule that it comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduledBy>,
    /// Words to find it again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<Tag>,
    /// The failed job that it was made of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay_of: Option<JobId>,
    /// The trace that its attempts continue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceContext>,
    /// Whose job it is: written for jobs with a unique key alone, which others can find by guessing the key. The id of any
    /// other job is known to those whom its producer told it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creator: Option<Actor>,
}

impl JobOptions {
    /// Stored options for people to read, as far as this binary can: another version of tickr may have written wishes that
    /// are unknown here. Nothing is run by them.
    #[must_use]
    pub fn as_far_as_readable(text: &str) -> Self {
        let without_retry = || {
            let mut value: serde_json::Value = serde_json::from_str(text).ok()?;
            value.as_object_mut()?.remove("retry");
            serde_json::from_value(value).ok()
        };
        serde_json::from_str(text).ok().or_else(without_retry).unwrap_or_default()
    }

    /// Nothing asked for beyond the kind's defaults?
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A job as it is asked for: complete, checked, with its identity, not yet written anywhere.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// Made here, before the write, so that a repeated write is recognised.
    pub id: JobId,
    /// Picks the handler.
    pub kind: Name,
    /// The line it waits in.
    pub queue: Name,
    /// The handler's input, JSON text.
    pub payload: Box<RawValue>,
    /// When it should start.
    pub due: Due,
    /// Urgency within the queue.
    pub priority: Priority,
    /// Attempts that may be burned before the job fails.
    pub max_attempts: u32,
    /// At most one unfinished job per (kind, key).
    pub unique_key: Option<String>,
    /// What happens when an unfinished job has the unique key.
    pub on_conflict: OnConflict,
    /// The rarer wishes.
    pub options: JobOptions,
    /// The jobs it is accepted with, if it does not come alone. Set by the store.
    pub batch: Option<BatchPlace>,
}

/// What happens to a new job whose unique key an unfinished job has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// Nothing is written; the caller is given the job that has the key.
    #[default]
    Return,
    /// Nothing is written; the caller is told no.
    Reject,
    /// The job that has the key is cancelled and the new one takes its place, unless the old one executes: then as
    /// [`Reject`](Self::Reject).
    Replace,
}

/// Which jobs were accepted together, all or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPlace {
    /// The first of them.
    pub first: JobId,
    /// How many they are, two at the least.
    pub size: u16,
}
