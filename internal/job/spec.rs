//! The job that a client requests.

use std::time::Duration;

use chrono::TimeDelta;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Actor, BatchId, JobId, Name, RetryPolicy, ScheduledBy, Tag, Timestamp, TraceContext, ceil_ms};

/// The limits of one job. The API names the limit that a request exceeds.
pub mod limits {
    use std::time::Duration;

    /// Maximum number of attempts of a job.
    pub const MAX_ATTEMPTS: u32 = 100;
    /// Maximum time that a job may be scheduled ahead.
    pub const MAX_AHEAD: Duration = Duration::from_secs(366 * 24 * 60 * 60);
    /// Maximum time limit of one attempt.
    pub const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
    /// Maximum number of jobs in one batch.
    pub const MAX_BATCH: usize = 1_000;
    /// Maximum time that a unique key stays taken after the acceptance of its job.
    pub const MAX_UNIQUE_FOR: Duration = Duration::from_secs(366 * 24 * 60 * 60);
    /// Maximum length of a unique key, an order key, a limit key or a host, in bytes.
    pub const MAX_KEY_BYTES: usize = 255;
    /// Maximum length of the reason for a discard, in characters.
    pub const MAX_REASON: usize = 500;
    /// Maximum number of tags of one job.
    pub const MAX_TAGS: usize = 10;
    /// Maximum number of parents of one job.
    pub const MAX_PARENTS: usize = 100;
    /// Maximum length of the name of a batch, in characters.
    pub const MAX_BATCH_NAME: usize = 200;
    /// Maximum number of follow-up jobs of one job.
    pub const MAX_FOLLOW_UPS: usize = 1_000;
    /// Maximum size of the payloads of all follow-up jobs of one job, in bytes of JSON. They are written in one
    /// transaction, which has 15 s.
    pub const MAX_FOLLOW_UP_BYTES: usize = 16 << 20;
    /// Maximum length of the error text stored with an attempt, in bytes.
    pub const MAX_ERROR_BYTES: usize = 2_000;
    /// Maximum size of the result stored with a job, in bytes.
    pub const MAX_RESULT_BYTES: usize = 256 * 1024;
    /// Largest result of a handler that is kept as a file instead, in bytes.
    pub const MAX_FILED_RESULT_BYTES: usize = 64 * 1024 * 1024;
    /// Maximum size of a checkpoint of a job, in bytes of JSON.
    pub const MAX_CHECKPOINT_BYTES: usize = 64 * 1024;
    /// Maximum size of the log stored with an attempt, in bytes.
    pub const MAX_LOG_BYTES: usize = 16 * 1024;
    /// Maximum size of a payload that a client in Rust may send, and of a follow-up job: the largest body that the API can
    /// be set to take.
    pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;
    /// Maximum nesting of a body of the API. Deeper JSON is an attack on the parser, not a payload.
    pub const MAX_LEVELS: usize = 64;

    /// Return whether brackets outside strings are nested deeper than `most`.
    #[must_use]
    pub fn deeper_than(bytes: &[u8], most: usize) -> bool {
        let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
        for byte in bytes {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if in_string => escaped = true,
                b'"' => in_string = !in_string,
                b'[' | b'{' if !in_string => {
                    depth += 1;
                    if depth > most {
                        return true;
                    }
                }
                b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        false
    }

    /// Return why this JSON cannot be a payload, as no request of the API could carry it.
    #[must_use]
    pub fn problem_of_payload(json: &str) -> Option<String> {
        // In a request of the API, the payload is one level below the body.
        let most = MAX_LEVELS - 1;
        if json.len() > MAX_PAYLOAD_BYTES {
            Some(format!("is larger than {MAX_PAYLOAD_BYTES} bytes"))
        } else {
            deeper_than(json.as_bytes(), most).then(|| format!("is nested more than {most} levels deep"))
        }
    }

    /// Cut a text to [`MAX_ERROR_BYTES`], at a character boundary.
    #[must_use]
    pub fn cut(mut text: String) -> String {
        if text.len() > MAX_ERROR_BYTES {
            text.truncate(text.floor_char_boundary(MAX_ERROR_BYTES - 4));
            text.push('…');
        }
        text
    }
}

/// The requested start time of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// As soon as a worker is free.
    Now,
    /// This long after the store accepts it.
    After(Duration),
    /// At this moment; a moment in the past means now.
    At(Timestamp),
}

/// Urgency of a job within its queue: 0 runs first, 9 last. Default: 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Priority(u8);

impl Priority {
    /// The default priority.
    pub const NORMAL: Self = Self(5);
    /// The least urgent level.
    pub const LAST: Self = Self(9);

    /// Return the level, 0 (first) to 9 (last).
    #[must_use]
    pub const fn level(self) -> u8 {
        self.0
    }

    /// Return every level, most urgent first.
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

/// The less common options of a job, stored as one JSON object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobOptions {
    /// Time limit of one attempt in milliseconds; the default of the kind if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Backoff of this job; the default of the kind if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// The schedule that created the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduledBy>,
    /// Tags to find the job by.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<Tag>,
    /// The failed job that this job replays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay_of: Option<JobId>,
    /// The trace that its attempts continue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceContext>,
    /// The creator of the job. It is stored only for jobs with a unique key, which another client can find by guessing
    /// that unique key. The id of any other job is known only to the clients that its producer told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creator: Option<Actor>,
    /// Order key of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// Limit key of the job, 1 to 255 bytes: the limits that operators set count the jobs with the same one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_key: Option<String>,
    /// When the job gives up its unique key.
    #[serde(skip_serializing_if = "UniqueUntil::is_default")]
    pub unique_until: UniqueUntil,
    /// The job holds its unique key for at least this long after its acceptance, in milliseconds, also when it
    /// completes before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique_for_ms: Option<u64>,
    /// Requests with the same unique key put the job off at most until this long after its acceptance, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_wait_ms: Option<u64>,
    /// No attempt of the job starts at this time or later. Set by the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// The parents of the job: it waits until all of them have ended. Each once, in the order of the request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<JobId>,
    /// What happens to the job when a parent does not complete.
    #[serde(skip_serializing_if = "OnParentFailure::is_default")]
    pub on_parent_failure: OnParentFailure,
    /// The batch that counts the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchId>,
    /// The batch of which the job is a callback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback_of: Option<BatchId>,
    /// The defaults of the declared kind as they were when the job was accepted, for what the job does not set itself.
    /// Neither another declaration nor its removal changes them. Absent if runners have a handler of the kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_kind: Option<KindOptions>,
}

/// Defaults of a declared kind that its jobs keep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KindOptions {
    /// Time limit of one attempt in milliseconds.
    pub timeout_ms: u64,
    /// Backoff.
    pub retry: RetryPolicy,
}

/// What happens to a job when one of its parents fails for good or is cancelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnParentFailure {
    /// The job is cancelled.
    #[default]
    Cancel,
    /// The job runs as if the parent had completed.
    Run,
    /// The job waits until an operator has retried the parent and it has completed.
    Hold,
}
words!(OnParentFailure {
    Cancel => "cancel",
    Run => "run",
    Hold => "hold",
});

impl OnParentFailure {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The time at which a job gives up its unique key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UniqueUntil {
    /// When it ends.
    #[default]
    End,
    /// When its first attempt starts and another job asks for the key. So work that is requested while the job runs is
    /// not lost: it becomes a job of its own.
    Start,
}

impl UniqueUntil {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Order of a job among others: jobs with the same order key run one at a time, in the order of their acceptance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Order key, 1 to 255 bytes. It is the same key for all kinds and queues.
    pub key: String,
    /// What the final failure of the job does to the jobs behind it.
    #[serde(default)]
    pub on_failure: OnFailure,
}

/// What the final failure of a job does to the jobs behind it with the same order key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// They wait until an operator retries, replays, discards or deletes the failed job.
    #[default]
    Block,
    /// The next one runs.
    Skip,
}

impl JobOptions {
    /// Read stored options for display, as far as this binary understands them: another version of tickr may have
    /// written options that are unknown here. Do not run a job by the result.
    #[must_use]
    pub fn as_far_as_readable(text: &str) -> Self {
        // Only a value that cannot be read is unknown, not the others beside it.
        let in_part = || {
            let mut options: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).ok()?;
            options.retain(|name, value| {
                let alone = serde_json::json!({ (name.as_str()): value });
                serde_json::from_value::<Self>(alone).is_ok()
            });
            serde_json::from_value(serde_json::Value::Object(options)).ok()
        };
        serde_json::from_str(text).ok().or_else(in_part).unwrap_or_default()
    }

    /// Return the time limit of one attempt in milliseconds: that of the job, or that of its declared kind, which it
    /// keeps.
    #[must_use]
    pub fn time_limit_ms(&self) -> Option<u64> {
        self.timeout_ms.or_else(|| self.of_kind.as_ref().map(|kind| kind.timeout_ms))
    }

    /// Return the backoff: that of the job, or that of its declared kind, which it keeps.
    #[must_use]
    pub fn backoff(&self) -> Option<&RetryPolicy> {
        self.retry.as_ref().or_else(|| self.of_kind.as_ref().map(|kind| &kind.retry))
    }

    /// Return true if the job waits for other jobs or belongs to a batch.
    #[must_use]
    pub fn has_links(&self) -> bool {
        !self.after.is_empty() || self.batch.is_some()
    }

    /// Let the job wait for these answers in place of its parents. Two parents may have one answer, and a parent may be
    /// the answer of another one: each is named once.
    pub fn replace_parents(&mut self, answer: impl Fn(JobId) -> Option<JobId>) {
        let named = std::mem::take(&mut self.after);
        for parent in named.into_iter().map(|parent| answer(parent).unwrap_or(parent)) {
            if !self.after.contains(&parent) {
                self.after.push(parent);
            }
        }
    }

    /// Return true if all options have the defaults of the kind.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A requested job: complete and checked, with its id, not yet written.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// Id made before the write, so that a repeated write is recognised.
    pub id: JobId,
    /// Kind, which selects the handler.
    pub kind: Name,
    /// Queue in which the job waits.
    pub queue: Name,
    /// The handler's input, as JSON text.
    pub payload: Box<RawValue>,
    /// Requested start time.
    pub due: Due,
    /// When the job expires: no attempt starts then or later.
    pub expires: Option<Due>,
    /// Urgency within the queue.
    pub priority: Priority,
    /// Attempts that may be used before the job fails.
    pub max_attempts: u32,
    /// Unique key: at most one unfinished job exists per (kind, unique key).
    pub unique_key: Option<String>,
    /// Behaviour if an unfinished job has the unique key.
    pub on_conflict: OnConflict,
    /// Host that the job calls, if its kind knows one: the limits that operators set count the jobs of a host.
    pub host: Option<String>,
    /// The less common options.
    pub options: JobOptions,
    /// The batch that the job belongs to, if any. Set by the store.
    pub batch: Option<BatchPlace>,
}

impl NewJob {
    /// Return when the job expires, if it was accepted at `accepted_at`: in whole milliseconds.
    #[must_use]
    pub fn expires_at(&self, accepted_at: Timestamp) -> Option<Timestamp> {
        self.expires.map(|expires| match expires {
            Due::Now => ceil_ms(accepted_at),
            Due::After(delay) => ceil_ms(accepted_at + TimeDelta::from_std(delay).unwrap_or(TimeDelta::zero())),
            Due::At(moment) => ceil_ms(moment),
        })
    }
}

/// Behaviour for a new job whose unique key belongs to an unfinished job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// Write nothing and return the existing job.
    #[default]
    Return,
    /// Write nothing and refuse the request.
    Reject,
    /// Cancel the existing job and write the new one. If the existing job executes, behave as [`Reject`](Self::Reject).
    Replace,
    /// Write nothing, put the existing job off to the due time of the new one, and return it. The job never becomes due
    /// earlier by that, nor later than its longest wait allows. If it executes, behave as [`Reject`](Self::Reject).
    Postpone,
}

impl OnConflict {
    /// Return true if the job changes or ends the one that has its unique key.
    #[must_use]
    pub const fn changes_holder(self) -> bool {
        matches!(self, Self::Replace | Self::Postpone)
    }

    /// Return why a job with a unique key may not behave like this in a chain, behind the first job.
    #[must_use]
    pub const fn problem_in_chain(self) -> Option<&'static str> {
        match self {
            Self::Return | Self::Postpone => Some(
                "may not be given behind the first job of a chain with on_conflict return or postpone: a job that \
                 answers in its place would not wait for the job before it",
            ),
            Self::Reject | Self::Replace => None,
        }
    }
}

/// The batch of a job. The jobs of a batch are accepted all or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPlace {
    /// Id of its first job.
    pub first: JobId,
    /// Number of jobs, at least two.
    pub size: u16,
}
